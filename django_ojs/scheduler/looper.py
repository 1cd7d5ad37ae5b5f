"""A thread that does several duties, each when its time has come."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence

from django_ojs.scheduler.loops import Loop
from django_ojs.scheduler.outage import ERRORS, persist
from django_ojs.scheduler.service import Service

logger = logging.getLogger(__name__)

AFTER_FAULT = 1.0  #: seconds until a duty that failed is tried again
FOLLOWER_LOOK = 0.25  #: how often a process that does not lead asks whether it does now


class Looper(Service):
    """Runs `loops` one after the other while `leads()` says so.

    A duty that fails, other than for want of a database, is logged with its traceback and tried again after
    a second, longer each time: one broken duty must not stop the others.
    """

    def __init__(self, name: str, loops: Sequence[Loop], using: str, leads: Callable[[], bool] = lambda: True) -> None:
        self.name = name
        super().__init__()
        self._loops, self._using, self._leads = list(loops), using, leads
        self._due = dict.fromkeys((loop.name for loop in self._loops), float("-inf"))
        self._faults = dict.fromkeys(self._due, 0)

    def run(self) -> None:
        while not self.stopping.is_set():
            pause = self.run_once() if self._leads() else FOLLOWER_LOOK
            self.stopping.wait(pause)

    def run_once(self) -> float:
        """Do every duty whose time has come; return the seconds until the next one's has."""
        for loop in self._loops:
            if self.stopping.is_set():
                break
            if self._due[loop.name] <= time.monotonic():
                self._due[loop.name] = time.monotonic() + self._perform(loop)
        return max(min(self._due.values()) - time.monotonic(), 0.0)

    def _perform(self, loop: Loop) -> float:
        try:
            pause: float = persist(lambda: loop.run_once(self._using), self._using, self.stopping)
        except ERRORS:
            return AFTER_FAULT
        except Exception:
            self._faults[loop.name] += 1
            pause = min(AFTER_FAULT * 2 ** (self._faults[loop.name] - 1), 60.0)
            logger.exception("The scheduler's duty '%s' failed; the next try is in %g s.", loop.name, pause)
            return pause
        self._faults[loop.name] = 0
        return pause
