"""The thread that claims jobs for free slots."""

from __future__ import annotations

import contextlib
import logging
import threading
import uuid
from collections.abc import Callable, Sequence

from django.db.models import Q

from django_ojs.conf import ojs_settings
from django_ojs.contention import is_contention
from django_ojs.models import JobRow
from django_ojs.operations.fetch import fetch
from django_ojs.operations.requeue import release_where, requeue
from django_ojs.scheduler.outage import ERRORS, persist
from django_ojs.scheduler.service import Service
from django_ojs.waking import woken_here
from django_ojs.worker.context import COLUMNS
from django_ojs.worker.lifecycle import Lifecycle, Order, Stage
from django_ojs.worker.pool import Pool
from django_ojs.worker.queues import QueueNames
from django_ojs.worker.run import Run
from django_ojs.worker.waker import Waker

logger = logging.getLogger(__name__)

PATIENCE_SECONDS = 0.75  #: how long a job may wait in the line; with the sleep in between about a second


class Claimer(Service):
    """Claims as many jobs as there are free slots, and ahead of them jobs of types that are known to be short.

    Begins once the server knows the worker (`ready`). `max_jobs` ends the worker after so many jobs,
    `until_empty` when no job is left that could be claimed now.
    """

    name = "claimer"

    def __init__(
        self, worker_id: str, types: Sequence[str], queues: QueueNames, pool: Pool,
        start: Callable[[Sequence[JobRow]], None], lifecycle: Lifecycle, waker: Waker, ready: threading.Event,
        using: str, *, max_jobs: int | None = None, until_empty: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(lambda name: lifecycle.give(Order.CRASH, f"the {name} crashed"))
        self._worker_id, self._types, self._queues, self._using = worker_id, list(types), queues, using
        self._pool, self._start, self._lifecycle, self._waker = pool, start, lifecycle, waker
        self._ready = ready
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
        short = self._pool.pace.short_types()
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
            rows = persist(lambda: self._fetch_surely(count, types), self._using, self.stopping)
            if rows and (self.stopping.is_set() or self._lifecycle.stage is not Stage.RUNNING):
                # Told to stop while the claim was under way: these jobs need not wait for us.
                self._requeue([row["id"] for row in rows])
                return 0
        except ERRORS:  # the database is away, and the worker is to stop
            return 0
        self._start(rows)
        if self._left is not None:
            self._left -= len(rows)
        return len(rows)

    def _hand_back(self, runs: Sequence[Run]) -> None:
        """Claimed ahead in vain, because a handler took longer than its kind: let others have these jobs."""
        if runs:
            self._pool.pace.slow_down()
            self._requeue([run.id for run in runs])

    def _requeue(self, ids: Sequence[uuid.UUID]) -> None:
        persist(lambda: requeue(ids, worker_id=self._worker_id, using=self._using), self._using, self.stopping)

    def _fetch_surely(self, count: int, types: Sequence[str]) -> list[JobRow]:
        """Claim; and when a claim failed, its answer alone may be lost: hand back what we hold and do not know of."""
        if self._unsure:
            known = Q(pk__in=[run.id for run in self._pool.active()])
            strays = release_where(~known, self._worker_id, self._using)
            if strays:
                logger.warning("Handed back %d jobs whose claim went unanswered.", len(strays))
            self._unsure = False
        try:
            return self._fetch(count, types)
        except ERRORS as error:
            self._unsure = self._unsure or not is_contention(error)
            raise

    def _fetch(self, count: int, types: Sequence[str]) -> list[JobRow]:
        return fetch(
            self._queues.current(), count=count, worker_id=self._worker_id, types=types, gate=False,
            fallback_visibility_ms=ojs_settings.WORKER_VISIBILITY_TIMEOUT * 1000, columns=COLUMNS, raw=True,
            using=self._using,
        )  # fmt: skip

    def _finish_if(self, *, was_idle: bool, found: int) -> None:
        if self._left == 0:
            self._lifecycle.give(Order.RECYCLE, "all the jobs it was to run have been claimed")
            self.stopping.set()
        elif self._until_empty and was_idle and not found:
            self._lifecycle.give(Order.STOP, "no job is left")
            self.stopping.set()
