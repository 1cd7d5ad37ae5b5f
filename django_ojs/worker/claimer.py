"""Claim jobs for the free slots of a worker, from the queues that it serves, and sleep while there is none to claim.

How it sleeps depends on the database: see `wakers`.
"""

from __future__ import annotations

import contextlib
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from django_ojs import outbox
from django_ojs.client.context import CONTEXT_COLUMNS, Link
from django_ojs.conf import ojs_settings
from django_ojs.faults import may_be_done
from django_ojs.guard import get_logger
from django_ojs.jobs.fetch import Fetch, fetch
from django_ojs.jobs.finish import requeue
from django_ojs.lifecycle.waking import woken_here
from django_ojs.messages import jobs
from django_ojs.models import JobRow, Queue
from django_ojs.models.queue import TEMPLATE
from django_ojs.registry import registry
from django_ojs.rules import suggest
from django_ojs.scheduler.service import GaveUp, Service, persist
from django_ojs.store import store_of
from django_ojs.worker.lifecycle import Lifecycle, Order, Stage
from django_ojs.worker.pool import Pool
from django_ojs.worker.runs import JobRun
from django_ojs.worker.wakers import PollingWaker
from django_ojs.worker.writer import WriteLock
from django_ojs.workerregistry import deaths
from django_ojs.workerregistry.registration import requeue_unknown

logger = get_logger(__name__)

PATIENCE_SECONDS = 0.75  #: how long a job may wait in the line; with the sleep in between about a second
PAUSE_OF_SUSPECTS = 30.0  #: seconds until jobs that are to be run alone are looked for after none could be claimed
REFRESH_SECONDS = 1.0  #: how long the names of all queues are remembered


class QueueNames:
    """The queues that a worker serves: those it was given, strictly left to right (L0: FETCH), or all there are.

    All are those of the handlers here and those in the database, looked up once a second. Each is the first in turn,
    so that a busy one does not starve the others.
    """

    def __init__(self, given: Sequence[str], using: str) -> None:
        self.given, self._using = list(given), using
        self._names: list[str] = list(given)
        self._read_at = float("-inf")
        self._first = 0

    def current(self) -> list[str]:
        """The queues of this look, in the order in which to serve them."""
        if self.given:
            return self.given
        if time.monotonic() - self._read_at >= REFRESH_SECONDS:
            self.refresh()
        self._first = (self._first + 1) % max(len(self._names), 1)
        return self._names[self._first :] + self._names[: self._first]

    def served(self) -> set[str]:
        """The queues as they were read last, in no order."""
        return set(self.given or self._names)

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
                like = suggest.nearest(name, stored - set(self.given))
                found.append(f"There is no queue {name} yet{f': did you mean {like}?' if like else '.'}")
        return found

    def __str__(self) -> str:
        return ", ".join(self.given) or "all"


class Suspects:
    """The jobs that are to be run alone (`workerregistry.deaths`), and who runs them.

    A supervised process tells its supervisor of them (`notify`), which starts a process for them and nothing else
    (`only`). One without a supervisor ends what it has, runs them one by one, and goes on as usual.
    """

    def __init__(
        self, queues: QueueNames, types: Sequence[str], using: str, *, only: bool = False,
        notify: Callable[[], None] | None = None,
    ) -> None:  # fmt: skip
        self._queues, self._types, self._using, self._notify = queues, types, using, notify
        self.only = only
        self.claiming = only  #: this process claims these jobs now, and no others
        self._next_look = float("-inf")

    def waiting(self) -> list[uuid.UUID]:
        """Those that this process may claim, in the order in which to run them."""
        return deaths.waiting(self._queues.served(), self._types, using=self._using)

    def start(self) -> None:
        """If there are any, notify the supervisor of them; without a supervisor claim them here from now on."""
        if self.only or self.claiming or time.monotonic() < self._next_look or not self.waiting():
            return
        if self._notify is not None:
            self._notify()
        else:
            self.claiming = True

    def end(self) -> None:
        """Claim other jobs again. None of these is left that could be claimed: one that a limit or a paused queue holds
        back must not stop the rest."""
        self.claiming, self._next_look = False, time.monotonic() + PAUSE_OF_SUSPECTS


class Claimer(Service):
    """Claims as many jobs as there are free slots, and ahead of them jobs of types that are known to be short.

    Jobs that are to be run alone it claims only where it is their turn, one at a time. Begins once the server knows the
    worker (`ready`). `max_jobs` ends the worker after so many jobs, `until_empty` when no job is left that could be
    claimed now.
    """

    name = "claimer"

    def __init__(
        self, worker_id: str, types: Sequence[str], queues: QueueNames, pool: Pool,
        link: Link, lifecycle: Lifecycle, waker: PollingWaker, ready: threading.Event,
        using: str, *, suspects: Suspects | None = None, write_lock: WriteLock | None = None, incarnation: str = "",
        max_jobs: int | None = None, until_empty: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(lifecycle.crashed)
        self._worker_id, self._types, self._queues, self._using = worker_id, list(types), queues, using
        self._pool, self._link, self._lifecycle, self._waker = pool, link, lifecycle, waker
        self._ready, self._incarnation = ready, incarnation
        self._suspects = suspects or Suspects(queues, self._types, using)
        self._alone = False
        self._write_lock = write_lock or contextlib.nullcontext()
        self._left = max_jobs
        self._until_empty = until_empty
        self._unsure = False
        self._looked: Sequence[str] = ()  #: the queues of the last look
        self._told = False  #: whether there is a reason to think that a job waits

    def wake(self) -> None:
        self._waker.wake()

    def run(self) -> None:
        while not (self._ready.wait(0.1) or self.stopping.is_set()):
            pass
        try:
            with woken_here(self._using, self.wake):
                while not self.stopping.is_set():
                    if self._lifecycle.stage is not Stage.RUNNING:
                        self._waker.wait(found=False)
                    else:
                        self._poll()
        finally:
            self._waker.close()

    def _poll(self) -> None:
        """Claim what there is room for; then sleep, unless there may be more."""
        with contextlib.suppress(GaveUp):  # away, and the worker is to stop: their reservations end by themselves
            self._hand_back(self._pool.stale(PATIENCE_SECONDS))
        self._alone = self._pool.alone = alone = self._suspects.claiming
        free = self._capped(self._pool.free(), 0)
        ahead = self._capped(self._pool.ahead(), free)
        if free <= 0 and ahead <= 0:
            self._waker.wait_for_slot()
            return
        was_idle = not self._pool.active()
        short = self._pool.ahead_limit.short_types
        if len(short) == len(self._types) and not alone:
            free, ahead = free + ahead, 0
        free, ahead = _one_of_few(free), _one_of_few(ahead)
        relayed = self._relay() if self._until_empty and not alone else 0
        found = self._claim(free, self._types) if free > 0 else 0
        if ahead > 0 and found == free:
            more = self._claim(ahead, short)
            found, free = found + more, free + ahead
        if alone and not found and not self._suspects.only:
            self._suspects.end()
            return
        self._waker.looked(found=found > 0)
        self._finish_if(was_idle=was_idle, found=found + relayed)
        self._told = found >= free or self._waker.wait(found=bool(found))

    def _relay(self) -> int:
        """Take what waits in the outbox to the jobs, so that the claim that follows sees it; return how much it was."""
        try:
            return persist(lambda: outbox.relay(using=self._using), self._using, self.stopping)
        except GaveUp:
            return 0

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
        except GaveUp:  # the database is away, and the worker is to stop
            return 0
        self._pool.offer(rows, self._link)
        if self._left is not None:
            self._left -= len(rows)
        return len(rows)

    def _hand_back(self, runs: Sequence[JobRun]) -> None:
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
                logger.warning("Handed back %s whose claim went unanswered.", jobs(len(strays)))
            self._unsure = False
        self._looked = self._queues.current()
        # With nothing to do it claims in vain at times, so that the claim of the next job does not wait for a plan.
        optimistic = self._told or store_of(self._using).needs_warmup()
        urgent = self._told and not self._pool.active()
        try:
            if self._alone:
                return self._fetch_alone()
            with self._write_lock:
                return self._fetch_some(count, types, unsuspected=True, optimistic=optimistic, urgent=urgent)
        except Exception as error:
            self._unsure = self._unsure or may_be_done(error)
            raise

    def _fetch_alone(self) -> list[JobRow]:
        """Claim the first of the jobs that are to be run alone which no other process has and no limit holds back."""
        for job_id in self._suspects.waiting():
            with self._write_lock:
                if rows := self._fetch_some(1, self._types, only=[job_id]):
                    return rows
        return []

    def _fetch_some(self, count: int, types: Sequence[str], **how: Any) -> list[JobRow]:
        wanted = Fetch(
            self._looked, count, self._worker_id, types=types, check_worker=False,
            fallback_visibility_ms=ojs_settings.WORKER_VISIBILITY_TIMEOUT * 1000, columns=CONTEXT_COLUMNS, raw=True,
            except_ids=self._pool.not_to_claim(), opens_in=self._waker.wake_in, **how,
        )  # fmt: skip
        return fetch(wanted, using=self._using)

    def _finish_if(self, *, was_idle: bool, found: int) -> None:
        if self._left == 0:
            self._lifecycle.give(Order.RECYCLE, "all the jobs it was to run have been claimed")
            self.stopping.set()
        elif self._until_empty and was_idle and not found:
            if self._has_new_queues():
                self._waker.wake()  # to look there at once
                return
            self._suspects.start()
            if self._suspects.claiming and not self._suspects.only:
                return  # those are left
            self._lifecycle.give(Order.STOP, "no job is left")
            self.stopping.set()

    def _has_new_queues(self) -> bool:
        """Whether there are queues that the last look did not know: what has just ended may have enqueued into one."""
        try:
            return not set(self._looked).issuperset(persist(self._queues.refresh, self._using, self.stopping))
        except GaveUp:
            return False


def _one_of_few(count: int) -> int:
    """A little less than `count`, where that is large: PostgreSQL plans a claim anew for each number of jobs."""
    return count if count <= 20 else count - count % 20
