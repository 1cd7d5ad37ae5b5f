"""Whether a worker is healthy, told several times a second: to its supervisor, or by touching a file."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable
from pathlib import Path

from django_ojs.scheduler.service import Service

logger = logging.getLogger(__name__)


class HealthFile:
    """A file whose age tells a liveness probe how long ago the worker was last known to be healthy."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._next = 0.0
        self._warned = False

    def touch(self) -> None:
        """At most twice a second. A path that cannot be written is told once and fails the probe, not the worker."""
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + 0.5
        try:
            self._path.touch()
        except OSError as error:
            if not self._warned:
                logger.error("The health file cannot be touched: %s", error)
            self._warned = True

    def remove(self) -> None:
        with contextlib.suppress(OSError):
            self._path.unlink()


class Pulse(Service):
    """Takes the worker's pulse: `beat(healthy)` is called twice a second, and so is each of `checks`."""

    name = "pulse"
    EVERY = 0.5

    def __init__(
        self, is_healthy: Callable[[], bool], beat: Callable[[bool], None], *checks: Callable[[], None],
        on_crash: Callable[[str], None],
    ) -> None:  # fmt: skip
        super().__init__(on_crash)
        self._is_healthy, self._beat, self._checks = is_healthy, beat, checks

    def run(self) -> None:
        while True:
            self._beat(self._is_healthy())
            for check in self._checks:
                check()
            if self.stopping.wait(self.EVERY):
                break
        self._beat(self._is_healthy())
