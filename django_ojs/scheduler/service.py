"""Run the parts of a worker and of the scheduler as threads that start, stop, and outlast an outage of the database.

`Service` is one thread, `DutyThread` one that does the scheduler's duties. `persist` repeats an action while the
database is away, with growing pauses, and logs the outage once.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from django.db import InterfaceError, OperationalError, connections

from django_ojs.database import is_contention, is_disconnection
from django_ojs.errors import BackendUnavailable
from django_ojs.events import order
from django_ojs.guard import get_logger

logger = get_logger(__name__)

AFTER_FAULT = 1.0  #: seconds until a duty that failed is tried again
FOLLOWER_LOOK = 0.25  #: how often a process that does not lead asks whether it does now


class Service:
    """Override `run()`, and return from it soon after `self.stopping` is set.

    An exception that leaves `run()` is logged, and `on_crash` is called with the name: a worker whose part died must
    not go on as if nothing had happened.
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

    def ask_to_stop(self) -> None:
        """Ask the thread to end, and do not wait for it."""
        self.stopping.set()
        self.wake()

    def stop(self, timeout: float | None = None) -> bool:
        """Ask the thread to end and wait so many seconds; False if it has not ended by then."""
        self.ask_to_stop()
        if self._thread.ident is not None:
            self._thread.join(timeout)
        return not self._thread.is_alive()

    def wake(self) -> None:
        """Called by `ask_to_stop()`: override it if `run()` waits for anything but `stopping`."""

    def run(self) -> None:
        raise NotImplementedError

    def _run(self) -> None:
        try:
            self.run()
        except BaseException:
            logger.exception("The %s thread died.", self.name)
            if self._on_crash is not None:
                self._on_crash(self.name)
        finally:
            connections.close_all()


class Duty(Protocol):
    """Something that the leading scheduler does again and again."""

    name: str

    def run_once(self, using: str) -> float:
        """Do what there is to do; return how many seconds this duty can wait."""


class DutyThread(Service):
    """A thread that does `duties`, each when its time has come, while `leads()` is true.

    A duty that fails, unless because the database is away, is logged with its traceback and tried again after
    a second, longer each time: one broken duty must not stop the others.
    """

    def __init__(self, name: str, duties: Sequence[Duty], using: str, leads: Callable[[], bool] = lambda: True) -> None:
        self.name = name
        super().__init__()
        self._duties, self._using, self._leads = list(duties), using, leads
        self._due = dict.fromkeys((duty.name for duty in self._duties), float("-inf"))
        self._faults = dict.fromkeys(self._due, 0)

    def run(self) -> None:
        while not self.stopping.is_set():
            pause = self.run_once() if self._leads() else FOLLOWER_LOOK
            self.stopping.wait(pause)

    def run_once(self) -> float:
        """Do every duty whose time has come; return the seconds until the next one's has."""
        for duty in self._duties:
            if self.stopping.is_set():
                break
            if self._due[duty.name] <= time.monotonic():
                self._due[duty.name] = time.monotonic() + self._perform(duty)
        return max(min(self._due.values()) - time.monotonic(), 0.0)

    def _perform(self, duty: Duty) -> float:
        try:
            pause: float = persist(lambda: duty.run_once(self._using), self._using, self.stopping)
        except ERRORS:
            return AFTER_FAULT
        except BaseException:
            self._faults[duty.name] += 1
            pause = min(AFTER_FAULT * 2 ** (self._faults[duty.name] - 1), 60.0)
            logger.exception("The scheduler's duty '%s' failed; the next try is in %g s.", duty.name, pause)
            return pause
        self._faults[duty.name] = 0
        return pause


T = TypeVar("T")

ERRORS = (OperationalError, InterfaceError, BackendUnavailable)
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 5.0
REMIND_EVERY = 60.0
QUIET_SECONDS = 2.0  #: seconds that a new failure right after an outage may last without being logged again
RECOVERY_SECONDS = 3 * LONGEST_PAUSE  #: seconds after an outage in which workers may still have to report


class Outage:
    """The state of the database for all threads of this process, so that an outage is logged once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._since: float | None = None
        self._logged: float | None = None  #: when this outage was last logged
        self._ended = float("-inf")

    @property
    def is_recent(self) -> bool:
        """Whether the database is away or has not been back for long: workers that seem dead may have been cut off."""
        return self._since is not None or time.monotonic() - self._ended < RECOVERY_SECONDS

    def forget(self) -> None:
        """Begin anew, as tests do."""
        with self._lock:
            self._since, self._logged, self._ended = None, None, float("-inf")

    def noticed(self, error: Exception, after: float = 0.0) -> None:
        """Note that an action has failed so many seconds after it began."""
        if after >= order.IDLE_SECONDS and is_disconnection(error) and self._since is None:
            # No outage, unless it fails again at once: so it looks to a process that was stopped and goes on.
            logger.warning(
                "The database has closed a connection %.0f s after an action began, as it does where a transaction"
                " stands still. Trying again. (%s)",
                after,
                str(error).strip(),
            )
            return
        now = time.monotonic()
        with self._lock:
            self._since = self._since or now
            lasted = now - self._since
            if self._logged is None:
                # Right after an outage one thread after the other finds that its connection is broken.
                if now - self._ended < RECOVERY_SECONDS and lasted < QUIET_SECONDS:
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
                outage.noticed(error, after=time.monotonic() - began)
            if stopping.wait(pause * random.uniform(0.5, 1.0)):  # noqa: S311 - spreads the load
                raise
            pause = min(pause * 2, LONGEST_PAUSE)
        else:
            outage.over(began)
            return result
