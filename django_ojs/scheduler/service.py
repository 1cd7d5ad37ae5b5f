"""Run the parts of a worker and of the scheduler as threads that start, stop, and outlast an outage of the database.

`Service` is one thread, `DutyThread` one that does the scheduler's duties. `persist` repeats an action while the
database cannot be used, with growing pauses, and logs the outage once.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Sequence
from typing import Final, Literal, Protocol, TypeVar

from django.db import close_old_connections, connections

from django_ojs import parts
from django_ojs.backoff import REMIND_EVERY, Backoff, SharedBackoff
from django_ojs.conf import use_site_prefix
from django_ojs.database import answers, leave_old_server, note_read_only
from django_ojs.errors import BackendUnavailable
from django_ojs.events import order
from django_ojs.faults import is_contention, is_general, is_unusable, may_be_done, passes
from django_ojs.guard import get_logger, may_fail, words_of
from django_ojs.parts import FIRST_RESTART, LONGEST_RESTART, PATIENCE, Part, PartEvent

logger = get_logger(__name__)

AFTER_FAULT, LONGEST_AFTER_FAULT = 1.0, 60.0  #: seconds until a duty that failed is tried again
FOLLOWER_LOOK = 0.25  #: how often a process that does not lead asks whether it does now


#: The owner of a service whose thread runs it again, after pauses that grow, where it has ended by itself.
RESTART: Final = "restart"


class Service(Part):
    """A thread of a worker or scheduler. A subclass overrides `run()`, which returns soon after `self.stopping` is set.

    Args:
        owner: what becomes of a thread that ends without being asked to, whether an exception left `run()` or it
            returned: a function that is called with the name before anything is logged, and ends the process, or
            `RESTART`.
    """

    name = "service"

    def __init__(self, owner: Callable[[str], object] | Literal["restart"]) -> None:
        super().__init__()
        self._owner = owner
        self._events: list[PartEvent] = []
        self.stopping = self.event()
        self._restarts = Backoff(f"The {self.name} thread", FIRST_RESTART, LONGEST_RESTART, logger=logger)
        self._thread = threading.Thread(target=self._run, name=f"ojs-{self.name}", daemon=True)

    def event(self) -> PartEvent:
        """An event that ends waits of `run()`: the part shows that it lives by asking for it."""
        self._events.append(event := PartEvent(self))
        return event

    def is_running(self) -> bool:
        """Whether the thread runs, or has ended because it was asked to."""
        return self.stopping.is_set() or self._thread.is_alive()

    def failing(self) -> float:
        return self._restarts.lasts

    def why_stuck(self) -> str:
        return "" if self.stopping.is_set() else super().why_stuck()

    def start(self) -> None:
        self.tick()  # before it runs: only its own thread says so from then on
        self._thread.start()
        parts.register(self)
        if self.stopping.is_set():  # meanwhile
            parts.unregister(self)

    def ask_to_stop(self) -> None:
        """Ask the thread to end, and do not wait for it."""
        self.stopping.set()
        parts.unregister(self)
        self.wake()

    def stop(self, timeout: float | None = None) -> bool:
        """Ask the thread to end and wait so many seconds; False if it has not ended by then."""
        self.ask_to_stop()
        if self._thread.ident is not None:
            self._thread.join(timeout)
        return not self._thread.is_alive()

    def tick(self) -> None:
        super().tick()
        self._restarts.worked()

    def wake(self) -> None:
        """Called by `ask_to_stop()`: override it if `run()` waits for anything but `stopping`."""

    def run(self) -> None:
        raise NotImplementedError

    def _run(self) -> None:
        for event in self._events:
            event.belongs_to_this_thread()
        use_site_prefix()
        while (pause := self._run_once()) is not None and not self.stopping.wait(pause):
            pass

    def _run_once(self) -> float | None:
        """Run until it ends; return how many seconds to wait before it runs again, None where it is not to."""
        try:
            self.run()
            if self.stopping.is_set():
                return None
            raise RuntimeError(f"The {self.name} thread has ended without being asked to.")
        except BaseException:
            if callable(self._owner):
                self._owner(self.name)
                logger.exception("The %s thread died.", self.name)
                return None
            return self._restarts.failed("died")
        finally:
            may_fail("Closing the connections of a thread", connections.close_all)


class Duty(Protocol):
    """Something that the leading scheduler does again and again."""

    name: str

    def run_once(self, using: str) -> float:
        """Do what there is to do; return how many seconds this duty can wait."""


class DutyThread(Service):
    """A thread that does `duties`, each when its time has come, while `leads()` is true.

    A duty that fails, unless because the database is away, read-only or busy, is logged with its traceback and tried
    again after a second, longer each time: one broken duty must not stop the others.
    """

    patience = 3 * PATIENCE  #: a duty may take long, and runs code of the site

    def __init__(self, name: str, duties: Sequence[Duty], using: str, leads: Callable[[], bool] = lambda: True) -> None:
        self.name = name
        super().__init__(RESTART)
        self._duties, self._using, self._leads = list(duties), using, leads
        self._due = dict.fromkeys((duty.name for duty in self._duties), float("-inf"))
        self._faults = {
            name: Backoff(
                f"The scheduler's duty '{name}'", AFTER_FAULT, LONGEST_AFTER_FAULT, logger=logger, among="duties"
            )
            for name in self._due
        }

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
            pause: float = persist(
                lambda: duty.run_once(self._using), self._using, self.stopping, stops_all, asks_others=True
            )
        except GaveUp:
            return AFTER_FAULT
        except BaseException:  # noqa: BLE001 - it is logged there; SystemExit in a site's code must not end the rest
            may_fail("Closing the connections that a duty has lost", close_old_connections)
            return self._faults[duty.name].failed()
        self._faults[duty.name].worked()
        return pause


T = TypeVar("T")

FIRST_PAUSE, LONGEST_PAUSE = 0.1, 5.0
QUIET_SECONDS = 2.0  #: seconds that a new failure right after an outage may last without being logged again
LASTING = 10.0  #: seconds after which it is logged that other transactions are in the way
RECOVERY_SECONDS = 3 * LONGEST_PAUSE  #: seconds after an outage in which workers may still have to report


class Outage:
    """The state of the database for all threads of this process, so that an outage is logged once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._since: float | None = None
        self._logged: float | None = None  #: when this outage was last logged
        self._ended = self._well_at = float("-inf")

    @property
    def is_recent(self) -> bool:
        """Whether the database is away or has not been back for long: workers that seem dead may have been cut off."""
        return self._since is not None or time.monotonic() - self._ended < RECOVERY_SECONDS

    def forget(self) -> None:
        """Begin anew, as tests do."""
        with self._lock:
            self._since, self._logged, self._ended = None, None, float("-inf")

    def contended(self, error: Exception, seconds: float) -> None:
        """Note that an action has waited so long for other transactions. Where no other action went well meanwhile, no
        worker can beat or report, as in an outage: another process has the lock of the SQLite file, say."""
        if time.monotonic() - self._well_at >= LASTING:
            self.noticed(error)
        else:
            _refusals.failed(f"has waited {seconds:.0f} s for other transactions", error)

    def noticed(self, error: Exception, after: float = 0.0) -> None:
        """Note that an action has failed so many seconds after it began."""
        if after >= order.IDLE_SECONDS and may_be_done(error) and self._since is None:
            # No outage, unless it fails again at once: so it looks to a process that was stopped and goes on.
            logger.warning(
                "The database has closed a connection %.0f s after an action began, as it does where a transaction"
                " stands still. Trying again. (%s)",
                after,
                words_of(error),
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
            logger.warning("The database cannot be used (%s). Trying again until it can.", words_of(error))
        else:
            logger.warning("The database could not be used for %.0f s: %s", lasted, words_of(error))

    def over(self, began: float) -> None:
        """End the outage: an action that began at this instant went well. One from before the outage proves nothing."""
        self._well_at = time.monotonic()
        since = self._since
        if since is None or began < since:
            return
        with self._lock:
            logged = self._logged
            self._since, self._logged, self._ended = None, None, time.monotonic()
        if logged is not None:
            logger.warning("The database is back after %.1f s.", time.monotonic() - since)


outage = Outage()
#: What is refused to some, or waits for others, while the database answers: of all threads and actions.
_refusals = SharedBackoff("What is asked of the database", logger=logger, level=logging.WARNING, brief=True)


class GaveUp(BackendUnavailable):
    """The database could not be used until the caller was to stop. The cause is its last error."""


def stops_all(error: BaseException) -> bool:
    """Whether an error keeps all duties from being done, and not one whose statement fails for itself."""
    return is_unusable(error) or is_contention(error)


def persist(
    action: Callable[[], T], using: str, stopping: threading.Event, waits: Callable[[Exception], bool] = passes,
    *, asks_others: bool = False,
) -> T:  # fmt: skip
    """`action()`, again and again while it fails by an error of the database that passes.

    A connection on which it has failed is closed, unless another transaction was in the way. So is one that may lead to
    a server which is not the site's any more (`database.leave_old_server`). What concerns the
    database as a whole is noted as its outage.

    Args:
        waits: which of these errors are waited for; the others are raised, as those are for which the action itself is
            to blame.
        asks_others: the action asks other databases as well: that of the outbox, those of code of the site. An error
            that comes twice while `using` takes writes is theirs, and raised.

    Raises:
        GaveUp: `stopping` was set before it went well.
    """
    tries = Backoff("What is asked of the database", FIRST_PAUSE, LONGEST_PAUSE)  # its pauses; others tell of it
    doubted = False
    while True:
        leave_old_server(using)
        began = time.monotonic()
        try:
            result = action()
        except Exception as error:
            note_read_only(error)
            if passes(error) and not is_contention(error):
                connections[using].close()
            if not waits(error):
                raise
            if is_contention(error):  # others are in the way, as they are now and then
                if tries.lasts >= LASTING:
                    outage.contended(error, tries.lasts)
            elif is_general(error) and asks_others and answers(using, writes=True):
                if doubted:
                    raise
                doubted = True  # the connection may have been cut for a moment
            elif is_general(error):
                outage.noticed(error, after=time.monotonic() - began)
            else:
                _refusals.failed("is refused", error)
            if stopping.wait(tries.failed(quiet=math.inf)):
                raise GaveUp(words_of(error)) from error
        else:
            outage.over(began)
            _refusals.worked()
            return result
