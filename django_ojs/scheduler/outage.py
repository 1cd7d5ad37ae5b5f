"""Retry while the database is away, with growing pauses, and log the outage once."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from django.db import InterfaceError, OperationalError, connections

from django_ojs.contention import is_contention
from django_ojs.errors import BackendUnavailable

logger = logging.getLogger(__name__)

T = TypeVar("T")

ERRORS = (OperationalError, InterfaceError, BackendUnavailable)
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 5.0
REMIND_EVERY = 60.0
AFTERSHOCK = 2.0  #: seconds that a new failure right after an outage may last without being logged again
CONVALESCENCE = 3 * LONGEST_PAUSE  #: seconds after an outage in which workers may still have to report


class Outage:
    """The state of the database for all threads of this process, so that an outage is logged once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._since: float | None = None
        self._logged: float | None = None  #: when this outage was last logged
        self._ended = float("-inf")

    @property
    def is_felt(self) -> bool:
        """Whether the database is away or has not been back for long: workers that seem dead may have been cut off."""
        return self._since is not None or time.monotonic() - self._ended < CONVALESCENCE

    def forget(self) -> None:
        """Begin anew, as tests do."""
        with self._lock:
            self._since, self._logged, self._ended = None, None, float("-inf")

    def noticed(self, error: Exception) -> None:
        now = time.monotonic()
        with self._lock:
            self._since = self._since or now
            lasted = now - self._since
            if self._logged is None:
                # Right after an outage one thread after the other finds that its connection is broken.
                if now - self._ended < CONVALESCENCE and lasted < AFTERSHOCK:
                    return
            elif now - self._logged < REMIND_EVERY:
                return
            first, self._logged = self._logged is None, now
        if first:
            logger.warning("The database cannot be used (%s). Trying again until it can.", str(error).strip())
        else:
            logger.warning("The database could not be used for %.0f s: %s", lasted, str(error).strip())

    def over(self, began: float) -> None:
        """End the outage: an action that began at this instant went well. One from before the outage proves nothing."""
        since = self._since
        if since is None or began < since:
            return
        with self._lock:
            logged = self._logged
            self._since, self._logged, self._ended = None, None, time.monotonic()
        if logged is not None:
            logger.warning("The database is back after %.1f s.", time.monotonic() - since)


outage = Outage()


def persist(action: Callable[[], T], using: str, stopping: threading.Event) -> T:
    """`action()`, again and again while the database is away. Raises its error once `stopping` is set."""
    pause = FIRST_PAUSE
    while True:
        began = time.monotonic()
        try:
            result = action()
        except ERRORS as error:
            if not is_contention(error):
                connections[using].close()
                outage.noticed(error)
            if stopping.wait(pause * random.uniform(0.5, 1.0)):  # noqa: S311 - spreads the load
                raise
            pause = min(pause * 2, LONGEST_PAUSE)
        else:
            outage.over(began)
            return result
