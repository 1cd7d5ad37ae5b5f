"""A thread with a name, a beginning and an end: what the parts of a worker and of the scheduler are made of."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from django.db import connections

logger = logging.getLogger(__name__)


class Service:
    """Override `run()`, and return from it soon after `self.stopping` is set.

    An exception that leaves `run()` is logged and told to `on_crash`: a worker whose part died must not go on
    as if nothing had happened.
    """

    name = "service"

    def __init__(self, on_crash: Callable[[str], None] | None = None) -> None:
        self.stopping = threading.Event()
        self._on_crash = on_crash
        self._thread = threading.Thread(target=self._run, name=f"ojs-{self.name}", daemon=True)

    @property
    def works(self) -> bool:
        """Whether the thread runs, or has ended because it was asked to."""
        return self.stopping.is_set() or self._thread.is_alive()

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout: float | None = None) -> bool:
        """Ask the thread to end and wait so many seconds; False if it has not ended by then."""
        self.stopping.set()
        self.wake()
        if self._thread.ident is not None:
            self._thread.join(timeout)
        return not self._thread.is_alive()

    def wake(self) -> None:
        """Called by `stop()`: override it if `run()` waits for anything but `stopping`."""

    def run(self) -> None:
        raise NotImplementedError

    def _run(self) -> None:
        try:
            self.run()
        except Exception:
            logger.exception("The %s thread died.", self.name)
            if self._on_crash is not None:
                self._on_crash(self.name)
        finally:
            connections.close_all()
