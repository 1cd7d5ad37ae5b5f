"""Let the claimer sleep until there may be a job for it.

PostgreSQL notifies a sleeping claimer of new jobs, where Django uses psycopg 3. The files of an SQLite database are
watched. Other databases are polled. The claimer's own thread waits for the notification or the file: a thread in
between would cost each job a switch of threads, which takes 0.1 ms on an idle machine and 1 ms on a busy one.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import math
import os
import random
import select
import threading
import time
from collections.abc import Callable, Collection
from typing import Any

from django.db import connections

from django_ojs.backoff import Backoff
from django_ojs.faults import is_contention, suppress_passing
from django_ojs.guard import get_logger
from django_ojs.lifecycle.waking import CHANNEL, process_identity, say_asleep
from django_ojs.scheduler.service import RESTART, Service
from django_ojs.worker.filewatch import FileWatch, Gone, watch

logger = get_logger(__name__)

SHORTEST, LONGEST = 0.05, 0.5  #: seconds between two looks: after a job was found, and when there is none for long
NOTIFIED_LONGEST = 1.0  #: the same where the database notifies us: a notification may have been missed
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 15.0  #: seconds until notifications that do not come are asked for again


MILLISECOND = 0.001


def waker_for(using: str, workers: Callable[[], Collection[str]]) -> PollingWaker:
    """The best way of sleeping that the database offers. `workers` names those whose rows are to say that they sleep;
    one is enough to be woken."""
    vendor = connections[using].vendor if hasattr(select, "poll") else ""  # Windows has none
    match vendor:
        case "postgresql" if _can_listen():
            return ListeningWaker(using, workers)
        case "sqlite":
            return WatchingWaker(using)
        case _:
            return PollingWaker()


@functools.cache
def _can_listen() -> bool:
    """Whether Django uses psycopg 3 for PostgreSQL: psycopg2 has no listener of ours. Says it once in a process."""
    from django.db.backends.postgresql.psycopg_any import is_psycopg3  # sites on another database have no driver

    if not is_psycopg3:
        logger.info("Without psycopg 3 nothing wakes this worker: it looks for jobs every %s s at most.", LONGEST)
    return bool(is_psycopg3)


class PollingWaker:
    """How the claimer sleeps: it looks again after 50 ms, and up to ten times as long while there is nothing to do."""

    name = "waker"

    def __init__(self, shortest: float = SHORTEST, longest: float = LONGEST) -> None:
        self._shortest, self._longest = shortest, longest
        self._interval = shortest
        self._woken = threading.Event()
        self._alarm = math.inf  #: by the monotonic clock
        self._floor = 0.0  #: seconds by which the next alarm is put off, for the last ones brought nothing

    def wait(self, *, found: bool) -> bool:
        """Return when it is time to look for jobs; `found`: whether the last look brought some.

        True: there is a reason to think that a job waits.
        """
        self._interval = self._shortest if found else min(self._interval * 1.5, self._longest)
        self._doze(self._interval)
        self._woken.clear()
        return found

    def wait_for_slot(self) -> None:
        """Return when a slot may have become free. The claimer looks then, as an alarm of the time before would have it
        do."""
        self._idle(self._longest)

    def wake(self) -> None:
        """Let `wait` and `wait_for_slot` return. From any thread, but not from a signal handler."""
        self._woken.set()

    def wake_in(self, seconds: float) -> None:
        """Let the sleep end in so many seconds, by its first alarm, unless alarms have ended sleeps for nothing.

        For the thread of the claimer, before it sleeps. The worker that got a job last looks again at that moment. Of
        many that wait for one limit the others look in vain, so each of them rests longer from one alarm to the next.
        """
        self._alarm = min(self._alarm, time.monotonic() + seconds)

    def looked(self, *, found: bool) -> None:
        """Note whether a look brought some jobs. If those that alarms led to brought none, the next alarm rings later,
        and not at once for all workers. From the thread of the claimer, after each look."""
        if found or self._alarm == math.inf:
            self._floor = 0.0
        elif self._floor:
            spread = random.uniform(0.0, self._floor / 2)  # noqa: S311
            self._alarm = max(self._alarm, time.monotonic() + self._floor) + spread

    def awake(self) -> bool:
        """Note that the claimer need not be woken until the next `wait`, which may be long after.

        Returns False if others do not know that yet, and this is to be called again. From the thread of the claimer.
        """
        return True

    def start(self) -> None:
        """Begin to listen."""

    def stop(self, timeout: float | None = None) -> bool:
        """Listen no longer; False if that takes longer than so many seconds."""
        return True

    def close(self) -> None:
        """Let go what only the thread of the claimer uses. It calls this itself, when it looks no more."""

    def _idle(self, seconds: float) -> None:
        """Sleep so many seconds, or until `wake`; an alarm is over then, too, without having led to a look in vain."""
        self._await(seconds, None)
        self._woken.clear()
        if time.monotonic() >= self._alarm:
            self._alarm = math.inf

    def _doze(self, seconds: float, descriptor: int | None = None) -> None:
        """Sleep so many seconds, or until `wake` or the alarm, which `_woken` then tells, or until the descriptor can
        be read."""
        if self._alarm == math.inf:
            self._await(seconds, descriptor)
            return
        self._await(min(seconds, max(self._alarm - time.monotonic(), 0.0)), descriptor)
        if time.monotonic() >= self._alarm:
            self._alarm, self._floor = math.inf, min(max(2 * self._floor, self._shortest), self._longest)
            self._woken.set()

    def _await(self, seconds: float, descriptor: int | None) -> None:
        """Sleep so many seconds, or until `wake`, or until the descriptor can be read."""
        self._woken.wait(seconds)


class DescriptorWaker(PollingWaker):
    """Sleeps until a descriptor can be read, too. `wake` writes into a pipe, but only while the claimer sleeps."""

    def __init__(self, longest: float) -> None:
        super().__init__(longest=longest)
        self._lock = threading.Lock()
        self._pipe: tuple[int, int] | None = None
        self._sleeping = False

    def start(self) -> None:
        self._pipe = os.pipe()
        for end in self._pipe:
            os.set_blocking(end, False)

    def stop(self, timeout: float | None = None) -> bool:
        with self._lock:  # or another thread might write into what has the same number by then
            pipe, self._pipe = self._pipe, None
        for end in pipe or ():
            os.close(end)
        return True

    def wake(self) -> None:
        self._woken.set()
        if self._sleeping:
            with (
                self._lock,
                contextlib.suppress(OSError),
            ):  # full, so it wakes anyway; or a handler closed it, which the claimer finds
                if self._pipe is not None:
                    os.write(self._pipe[1], b"!")

    def _await(self, seconds: float, descriptor: int | None) -> None:
        if (pipe := self._pipe) is None:  # not started, or stopped
            self._woken.wait(min(seconds, self._shortest))
            return
        if seconds < MILLISECOND:  # `poll` takes whole ones
            self._woken.wait(max(seconds, 0))
            return
        poll = select.poll()
        poll.register(pipe[0], select.POLLIN)
        if descriptor is not None:
            poll.register(descriptor, select.POLLIN)
        self._sleeping = True  # before the look at `_woken`: a `wake` that this look misses writes into the pipe
        try:
            ready = poll.poll(0 if self._woken.is_set() else max(seconds, 0) * 1000)
        finally:
            self._sleeping = False
        if any(found == pipe[0] for found, _ in ready):
            with contextlib.suppress(BlockingIOError):
                os.read(pipe[0], 4096)


class WatchingWaker(DescriptorWaker):
    """SQLite: watches the files of the database, and asks for its version when one of them has changed.

    `PRAGMA data_version`, which takes some microseconds, changes when another connection has committed. What this
    process commits through other connections counts too; a look in vain is cheap. A file changes before the commit
    can be seen, and long before it in a large transaction. So after a change the version is asked for until it is new.

    Most commits of a busy site bring no job, and each look costs the handlers of this process as much time. So the more
    looks in a row were in vain, the longer it rests before it asks for the version again, and looks once for all
    commits of that time. A job that another process enqueues meanwhile begins so much later; `wake` ends the rest.

    Where files cannot be watched, or their changes are not reported, the version is asked for every 5 ms.
    """

    PATIENT = 2  #: looks in vain in a row before which it does not wait
    FIRST_REST, LONGEST_REST = 0.001, 0.016  #: seconds that it waits after one more, and at most
    EVERY = 0.005  #: seconds between two looks at the version where no file is watched
    FIRST_PAUSE = 0.0002  #: seconds between the first two looks after a change of a file
    RESTLESS = 0.1  #: seconds after a change of a file in which the version is asked for as often as that
    QUIET = 0.25  #: seconds between two looks at the version while no file changes
    UNREPORTED = 3  #: new versions in a row of which no file told, until the watch is given up

    def __init__(self, using: str) -> None:
        super().__init__(longest=NOTIFIED_LONGEST)
        self._using = using
        self._seen: int | None = None
        self._watch: FileWatch | None = None
        self._chosen = False  #: whether it is known if the files can be watched
        self._told = False  #: whether a change of a file was reported since the last new version
        self._unreported = 0
        self._in_vain = 0  #: looks that it led to since one brought jobs, or since no commit came for a while

    def wait(self, *, found: bool) -> bool:
        if found:
            self._in_vain = 0
            return True
        with suppress_passing():
            return self._wait()
        # The claim meets the same, and waits until it is over.
        connections[self._using].close()
        self._seen = None
        self._doze(self.QUIET, None)
        self._woken.clear()
        return True

    def _wait(self) -> bool:
        if not self._chosen:
            path = self._path()
            self._chosen, self._watch = True, watch(path)
            self._seen = None  # what was committed before the watch began was not reported
        started = time.monotonic()
        deadline, restless_until, pause = started + self._longest, started, 0.0
        self._rest()
        looked = time.monotonic()
        while not self._is_new(self._version()) and not self._woken.is_set():
            now = time.monotonic()
            if now - looked >= self.LONGEST_REST:
                self._in_vain = 0
            if now >= deadline:
                return False
            if now < restless_until:
                pause = min(max(2 * pause, self.FIRST_PAUSE), self.EVERY)
            else:
                pause = self.EVERY if self._watch is None else self.QUIET
            self._doze(min(pause, deadline - now), self._watch.fileno() if self._watch else None)
            if self._changed():
                restless_until, pause = time.monotonic() + self.RESTLESS, 0.0
        self._in_vain += 1
        self._woken.clear()
        return True

    def _rest(self) -> None:
        """Let the commits of others pass, if the last ones brought no job."""
        more = self._in_vain - self.PATIENT
        if more > 0:
            self._doze(min(self.FIRST_REST * 2 ** min(more - 1, 10), self.LONGEST_REST))

    def close(self) -> None:
        if self._watch is not None:
            self._watch.close()
            self._watch = None

    def _is_new(self, version: int) -> bool:
        """Whether the last look came before this version of the database. A watch that never tells is given up."""
        if version == self._seen:
            return False
        if self._watch is not None and self._seen is not None:
            self._changed()
            self._unreported = 0 if self._told else self._unreported + 1
            if self._unreported >= self.UNREPORTED:
                self._give_up("changes are not reported here")
        self._seen, self._told = version, False
        return True

    def _changed(self) -> bool:
        """Whether a change of a file was reported since the last call."""
        if self._watch is None:
            return False
        try:
            changed = self._watch.changed()
        except (Gone, OSError) as error:
            self._give_up(str(error))
            return True
        self._told = self._told or changed
        return changed

    def _give_up(self, reason: str) -> None:
        logger.warning(
            "The files of the database are watched no longer (%s): asking for changes every %g ms instead.",
            reason, self.EVERY * 1000,
        )  # fmt: skip
        self.close()

    def _version(self) -> int:
        with connections[self._using].cursor() as cursor:
            cursor.execute("PRAGMA data_version")
            return int(cursor.fetchone()[0])

    def _path(self) -> str:
        """The file of the database as SQLite knows it; empty: it is in memory."""
        with connections[self._using].cursor() as cursor:
            cursor.execute("PRAGMA database_list")
            return next((file or "" for _, name, file in cursor.fetchall() if name == "main"), "")


class ListeningWaker(DescriptorWaker):
    """PostgreSQL: sleeps until a NOTIFY, on a connection of its own; polls as long as that cannot be had.

    Before it sleeps it says so in the worker's row and lets the claimer look once more, so that a job that was
    enqueued in between is seen. It takes that back only when it has been busy for a while: a worker to which jobs come
    one by one neither writes nor looks between two of them.

    A push that began before the row was written does not notify, and may commit after the last look: so the first naps
    are short. While the row cannot be written, because another transaction holds it or the database takes no writes, it
    sleeps as one that nobody wakes.
    """

    BUSY = 0.1  #: seconds of work without a pause after which nothing needs to be notified
    PAUSE = 0.01  #: seconds without a job that count as a pause
    FIRST_NAP = 0.02

    def __init__(self, using: str, workers: Callable[[], Collection[str]]) -> None:
        super().__init__(longest=LONGEST)
        self._using, self._workers = using, workers
        self._asleep = False  #: what the rows of the workers say
        self._sleepers: list[str] = []  #: whose rows these are
        self._busy_since: float | None = None
        self._nap = self.FIRST_NAP
        self._listener = Listener(using, self.wake)

    def start(self) -> None:
        super().start()
        self._listener.start()

    def awake(self) -> bool:
        return self._say_asleep(False)

    def stop(self, timeout: float | None = None) -> bool:
        stopped = self._listener.stop(timeout)
        return super().stop() and stopped

    def wait(self, *, found: bool) -> bool:
        if not self._listener.listening.is_set():
            return super().wait(found=found)
        if self._asleep and not (found and self._is_busy()):
            return self._sleep_until_notified()
        said = self._say_asleep(not found)
        self._listener.heard()
        if not found and not said:
            return super().wait(found=False)
        self._nap = self.FIRST_NAP
        return found

    def wait_for_slot(self) -> None:
        if self._is_busy():
            self._say_asleep(False)
        self._idle(self.BUSY if self._asleep else self._longest)
        self._listener.heard()

    def _is_busy(self) -> bool:
        now = time.monotonic()
        self._busy_since = self._busy_since or now
        return now - self._busy_since >= self.BUSY

    def _sleep_until_notified(self) -> bool:
        """Whether it was notified, rather than that its nap is over."""
        began = time.monotonic()
        notified = True
        while not self._woken.is_set() and not self._listener.heard():
            left = began + self._nap - time.monotonic()
            if left <= 0:
                self._nap, notified = min(4 * self._nap, NOTIFIED_LONGEST), False
                break
            self._doze(left, self._listener.fileno())
        self._woken.clear()
        if time.monotonic() - began >= self.PAUSE:
            self._busy_since = None
        return notified

    def _say_asleep(self, asleep: bool) -> bool:
        """Whether that is what the rows say now: that one sleeps, or that none does."""
        if asleep == self._asleep:
            return True
        workers = list(self._workers()) if asleep else self._sleepers
        with suppress_passing(self._refused):
            left = say_asleep(workers, asleep, self._using)
            self._sleepers = [name for name in workers if (name in left) is not asleep]
            self._asleep = bool(self._sleepers)
        return self._asleep is asleep

    def _refused(self, error: Exception) -> None:
        """The next look gets another connection: this one is cut, or leads to a server that takes no writes any more,
        and a claimer that has nothing to do only reads."""
        if not is_contention(error):
            connections[self._using].close()


class Listener(Service):
    """Holds the listening connection, and gets a new one when it breaks. The claimer's thread reads from it."""

    name = "listener"

    def __init__(self, using: str, listens: Callable[[], None]) -> None:
        super().__init__(RESTART)
        self._using, self._listens = using, listens
        self.listening = threading.Event()
        self._connection: Any = None
        self._broken = threading.Event()
        self._error: Exception | None = None
        self._tries = Backoff(
            "Listening for notifications", FIRST_PAUSE, LONGEST_PAUSE, logger=logger, level=logging.WARNING, brief=True
        )

    def fileno(self) -> int | None:
        """The descriptor that can be read when a notification has come."""
        connection = self._connection
        return connection.fileno() if connection is not None and not connection.closed else None

    def heard(self) -> bool:
        """Whether notifications of other processes have come since the last call, or the connection is lost."""
        import psycopg

        connection = self._connection
        if connection is None:
            return True
        found = False
        try:
            connection.pgconn.consume_input()
            while (notice := connection.pgconn.notifies()) is not None:
                found = found or notice.extra.decode() != process_identity()
        except psycopg.Error as error:
            self._error, self._connection = error, None
            self.listening.clear()
            self._broken.set()
            return True
        return found

    def wake(self) -> None:
        self._broken.set()

    def run(self) -> None:
        while not self.stopping.is_set():
            try:
                self._listen()
            except Exception:  # noqa: BLE001 - polling goes on without notifications
                self._lost()
                self.stopping.wait(self._tries.failed("failed, so the worker polls"))

    def _listen(self) -> None:
        with self._connect() as connection:
            connection.execute(f"LISTEN {CHANNEL}")
            if not self._receives(connection):
                self._give_up()
                return
            self._broken.clear()
            self._error, self._connection = None, connection
            self.listening.set()
            self._listens()  # for what was committed before
            try:
                if not self.stopping.is_set():
                    with self.resting():
                        self._tries.worked()
                        while not self._broken.wait(LONGEST_PAUSE if self._tries.failures else None):
                            self._tries.worked()
            finally:
                self._connection = None
                self.listening.clear()
            if self._error is not None:
                raise self._error

    def _receives(self, connection: Any) -> bool:
        """Whether notifications arrive: behind a pooler that gives out connections per transaction they do not."""
        with self._connect() as other:
            other.execute(f"NOTIFY {CHANNEL}")
        return any(True for _ in connection.notifies(timeout=2.0, stop_after=1))

    def _give_up(self) -> None:
        logger.warning(
            "Notifications do not arrive, as behind a transaction pooler: looking for jobs every %s s at most instead. "
            "Give the worker a direct connection to be woken at once.", LONGEST,
        )  # fmt: skip
        self.stopping.set()

    def _lost(self) -> None:
        self.listening.clear()
        self._connection = None
        self._listens()

    def _connect(self) -> Any:
        import psycopg

        params = connections[self._using].get_connection_params()
        for name in ("cursor_factory", "pool", "context", "prepare_threshold"):
            params.pop(name, None)
        return psycopg.connect(**params, autocommit=True)
