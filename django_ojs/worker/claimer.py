"""Claim jobs for the free slots of a worker, from the queues that it serves, and sleep while there is none to claim.

PostgreSQL notifies a sleeping claimer of new jobs, an SQLite file is watched, other databases are polled.
"""

from __future__ import annotations

import contextlib
import difflib
import logging
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from django.db import connections

from django_ojs.client.context import COLUMNS, Link
from django_ojs.conf import ojs_settings
from django_ojs.database import is_contention
from django_ojs.jobs.fetch import fetch
from django_ojs.jobs.finish import requeue
from django_ojs.models import JobRow, Queue, Worker
from django_ojs.models.queue import TEMPLATE
from django_ojs.registry import registry
from django_ojs.scheduler.service import ERRORS, Service, persist
from django_ojs.worker.lifecycle import Lifecycle, Order, Stage
from django_ojs.worker.pool import Pool
from django_ojs.worker.runs import Run
from django_ojs.workers.registration import requeue_unknown
from django_ojs.workers.waking import CHANNEL, identity, woken_here

logger = logging.getLogger(__name__)

PATIENCE_SECONDS = 0.75  #: how long a job may wait in the line; with the sleep in between about a second
REFRESH_SECONDS = 1.0  #: how long the names of all queues are remembered
SHORTEST, LONGEST = 0.05, 0.5  #: seconds between two looks: after a job was found, and when there is none for long
NOTIFIED_LONGEST = 1.0  #: the same where the database notifies us: a notification may have been missed


class QueueNames:
    """The queues that a worker serves: those it was given, strictly left to right (L0: FETCH), or all there are.

    All are those of the handlers here and those in the database, looked up once a second. Each is the first in turn,
    so that a busy one does not starve the others.
    """

    def __init__(self, given: Sequence[str], using: str) -> None:
        self.given, self._using = list(given), using
        self._names: list[str] = list(given)
        self._read_at = float("-inf")
        self._turn = 0

    def current(self) -> list[str]:
        """The queues of this look, in the order in which to serve them."""
        if self.given:
            return self.given
        if time.monotonic() - self._read_at >= REFRESH_SECONDS:
            self.refresh()
        self._turn = (self._turn + 1) % max(len(self._names), 1)
        return self._names[self._turn :] + self._names[: self._turn]

    def refresh(self) -> list[str]:
        """Read the queues anew; all names, sorted unless they were given."""
        if not self.given:
            stored = Queue.objects.using(self._using).values_list("name", flat=True)
            self._names = sorted({*stored, *(definition.queue for definition in registry.definitions())})
            self._read_at = time.monotonic()
        return self._names

    def unknown(self) -> list[str]:
        """A sentence for each given queue that does not exist, with the queue whose name is most like it."""
        if not self.given:
            return []
        stored = set(Queue.objects.using(self._using).values_list("name", flat=True)) - {TEMPLATE}
        found = []
        for name in self.given:
            if name not in stored:
                like = difflib.get_close_matches(name, stored - set(self.given), n=1)
                found.append(f"There is no queue {name} yet{f': did you mean {like[0]}?' if like else '.'}")
        return found

    def __str__(self) -> str:
        return ", ".join(self.given) or "all"


class Claimer(Service):
    """Claims as many jobs as there are free slots, and ahead of them jobs of types that are known to be short.

    Begins once the server knows the worker (`ready`). `max_jobs` ends the worker after so many jobs,
    `until_empty` when no job is left that could be claimed now.
    """

    name = "claimer"

    def __init__(
        self, worker_id: str, types: Sequence[str], queues: QueueNames, pool: Pool,
        link: Link, lifecycle: Lifecycle, waker: PollingWaker, ready: threading.Event,
        using: str, *, incarnation: str = "", max_jobs: int | None = None, until_empty: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(lifecycle.crashed)
        self._worker_id, self._types, self._queues, self._using = worker_id, list(types), queues, using
        self._pool, self._link, self._lifecycle, self._waker = pool, link, lifecycle, waker
        self._ready, self._incarnation = ready, incarnation
        self._left = max_jobs
        self._until_empty = until_empty
        self._unsure = False

    def wake(self) -> None:
        self._waker.wake()

    def run(self) -> None:
        while not (self._ready.wait(0.1) or self.stopping.is_set()):
            pass
        with woken_here(self._using, self.wake):
            while not self.stopping.is_set():
                if self._lifecycle.stage is not Stage.RUNNING:
                    self._waker.wait(found=False)
                else:
                    self._look()

    def _look(self) -> None:
        """Claim what there is room for; then sleep, unless there may be more."""
        with contextlib.suppress(*ERRORS):  # away, and the worker is to stop: their reservations end by themselves
            self._hand_back(self._pool.stale(PATIENCE_SECONDS))
        free = self._capped(self._pool.free(), 0)
        ahead = self._capped(self._pool.ahead(), free)
        if free <= 0 and ahead <= 0:
            self._waker.wait_for_slot()
            return
        was_idle = not self._pool.active()
        short = self._pool.ahead_limit.short_types
        if len(short) == len(self._types):
            free, ahead = free + ahead, 0
        found = self._claim(free, self._types) if free > 0 else 0
        if ahead > 0 and found == free:
            more = self._claim(ahead, short)
            found, free = found + more, free + ahead
        self._finish_if(was_idle=was_idle, found=found)
        if found < free:
            self._waker.wait(found=bool(found))

    def _capped(self, room: int, planned: int) -> int:
        """No more than `max_jobs` allows beside those that are planned already."""
        return room if self._left is None else min(room, self._left - planned)

    def _claim(self, count: int, types: Sequence[str]) -> int:
        try:
            rows = persist(lambda: self._fetch(count, types), self._using, self.stopping)
            if rows and (self.stopping.is_set() or self._lifecycle.stage is not Stage.RUNNING):
                # An order came while the claim was under way: other workers can have these jobs now.
                self._requeue({row["id"]: row["attempt"] for row in rows})
                return 0
        except ERRORS:  # the database is away, and the worker is to stop
            return 0
        self._pool.offer(rows, self._link)
        if self._left is not None:
            self._left -= len(rows)
        return len(rows)

    def _hand_back(self, runs: Sequence[Run]) -> None:
        """Give back jobs that wait for a handler that takes longer than usual: other workers may be free."""
        if runs:
            self._pool.ahead_limit.slow_down()
            self._requeue({run.id: run.attempt for run in runs})

    def _requeue(self, claims: Mapping[uuid.UUID, int]) -> None:
        """Give these jobs back, by id and attempt, whose handlers have not been called."""
        give = partial(requeue, claims, worker_id=self._worker_id, attempts=claims, unrun=claims, using=self._using)
        persist(give, self._using, self.stopping)

    def _fetch(self, count: int, types: Sequence[str]) -> list[JobRow]:
        """Claim. After a claim that failed, hand back what we hold unknowingly: only its answer may have been lost."""
        if self._unsure:
            known = [run.id for run in self._pool.active()]
            strays = requeue_unknown(known, self._worker_id, incarnation=self._incarnation, using=self._using)
            if strays:
                logger.warning("Handed back %d jobs whose claim went unanswered.", len(strays))
            self._unsure = False
        try:
            return fetch(
                self._queues.current(), count=count, worker_id=self._worker_id, types=types, gate=False,
                fallback_visibility_ms=ojs_settings.WORKER_VISIBILITY_TIMEOUT * 1000, columns=COLUMNS, raw=True,
                except_ids=self._pool.not_to_claim(), using=self._using,
            )  # fmt: skip
        except ERRORS as error:
            self._unsure = self._unsure or not is_contention(error)
            raise

    def _finish_if(self, *, was_idle: bool, found: int) -> None:
        if self._left == 0:
            self._lifecycle.give(Order.RECYCLE, "all the jobs it was to run have been claimed")
            self.stopping.set()
        elif self._until_empty and was_idle and not found:
            self._lifecycle.give(Order.STOP, "no job is left")
            self.stopping.set()


def waker_for(using: str, worker_id: str) -> PollingWaker:
    """The best way of sleeping that the database offers."""
    match connections[using].vendor:
        case "postgresql":
            return ListeningWaker(using, worker_id)
        case "sqlite":
            return WatchingWaker(using)
        case _:
            return PollingWaker()


class PollingWaker:
    """How the claimer sleeps: it looks again after 50 ms, and up to ten times as long while there is nothing to do."""

    name = "waker"

    def __init__(self, shortest: float = SHORTEST, longest: float = LONGEST) -> None:
        self._shortest, self._longest = shortest, longest
        self._interval = shortest
        self._woken = threading.Event()

    def wait(self, *, found: bool) -> None:
        """Return when it is time to look for jobs; `found`: whether the last look brought some."""
        self._interval = self._shortest if found else min(self._interval * 1.5, self._longest)
        self._sleep(self._interval)

    def wait_for_slot(self) -> None:
        """Return when a slot may have become free."""
        self._sleep(self._longest)

    def wake(self) -> None:
        """Let `wait` and `wait_for_slot` return. From any thread, but not from a signal handler."""
        self._woken.set()

    def start(self) -> None:
        """Begin to listen."""

    def stop(self, timeout: float | None = None) -> bool:
        """Listen no longer; False if that takes longer than so many seconds."""
        return True

    def _sleep(self, seconds: float) -> None:
        self._woken.wait(seconds)
        self._woken.clear()


class WatchingWaker(PollingWaker):
    """SQLite: asks the file for its version every few milliseconds, which costs some microseconds.

    `PRAGMA data_version` changes when another connection commits. What this process commits through other
    connections counts too; a look in vain is cheap.
    """

    EVERY = 0.005

    def __init__(self, using: str) -> None:
        super().__init__(longest=NOTIFIED_LONGEST)
        self._using = using
        self._seen: int | None = None

    def wait(self, *, found: bool) -> None:
        if found:
            return
        deadline = time.monotonic() + self._longest
        while time.monotonic() < deadline and not self._woken.wait(self.EVERY):
            version = self._version()
            if version != self._seen:
                self._seen = version
                break
        self._woken.clear()

    def _version(self) -> int:
        with connections[self._using].cursor() as cursor:
            cursor.execute("PRAGMA data_version")
            return int(cursor.fetchone()[0])


class ListeningWaker(PollingWaker):
    """PostgreSQL: sleeps until a NOTIFY, on a connection of its own; polls as long as that cannot be had.

    Before it sleeps it says so in the worker's row and lets the claimer look once more, so that a job that
    was enqueued in between is seen.
    """

    def __init__(self, using: str, worker_id: str) -> None:
        super().__init__()
        self._using, self._worker_id = using, worker_id
        self._asleep = False
        self._listener = Listener(using, self.wake)

    def start(self) -> None:
        self._listener.start()

    def stop(self, timeout: float | None = None) -> bool:
        return self._listener.stop(timeout)

    def wait(self, *, found: bool) -> None:
        if not self._listener.listening.is_set():
            super().wait(found=found)
        elif found:
            self._say_asleep(False)
        elif not self._asleep:
            self._say_asleep(True)
        else:
            self._sleep(NOTIFIED_LONGEST)

    def wait_for_slot(self) -> None:
        self._say_asleep(False)
        super().wait_for_slot()

    def _say_asleep(self, asleep: bool) -> None:
        if asleep == self._asleep:
            return
        with contextlib.suppress(*ERRORS):  # away: the next look will notice, and wait
            Worker.objects.using(self._using).filter(pk=self._worker_id).update(asleep=asleep)
            self._asleep = asleep


class Listener(Service):
    """The thread that holds the listening connection, and gets a new one when it breaks."""

    name = "listener"

    def __init__(self, using: str, notified: Callable[[], None]) -> None:
        super().__init__()
        self._using, self._notified = using, notified
        self.listening = threading.Event()
        self._warned = False

    def run(self) -> None:
        while not self.stopping.is_set():
            try:
                self._listen()
            except Exception as error:  # noqa: BLE001 - polling goes on without notifications
                self._lost(error)
                self.stopping.wait(1.0)

    def _listen(self) -> None:
        with self._connect() as connection:
            connection.execute(f"LISTEN {CHANNEL}")
            if not self._receives(connection):
                self._give_up()
                return
            self.listening.set()
            self._warned = False
            while not self.stopping.is_set():
                for notice in connection.notifies(timeout=0.5, stop_after=1):
                    if notice.payload != identity():
                        self._notified()

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

    def _lost(self, error: Exception) -> None:
        self.listening.clear()
        self._notified()
        if not self._warned:
            self._warned = True
            logger.warning("No notifications from the database (%s): polling until they come back.", str(error).strip())

    def _connect(self) -> Any:
        import psycopg

        params = connections[self._using].get_connection_params()
        for name in ("cursor_factory", "pool", "context", "prepare_threshold"):
            params.pop(name, None)
        return psycopg.connect(**params, autocommit=True)
