"""Claim a job, run its handler and report the outcome, in the thread of the test: a worker without threads.

Its parts are those of a real worker. It has no heartbeats and no execution timeout, which need time or another thread.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import time
import uuid
from collections import defaultdict, deque
from collections.abc import Sequence
from typing import Any

from asgiref.sync import async_to_sync
from django.db import connections, transaction

from django_ojs import clock
from django_ojs.client.context import COLUMNS, NoLink, Retry
from django_ojs.client.handle import JobFailed, JobHandle
from django_ojs.conf import ojs_settings
from django_ojs.database import database
from django_ojs.jobs.fetch import fetch
from django_ojs.models import Job
from django_ojs.models.job import JobRow
from django_ojs.registry import registry
from django_ojs.states import State
from django_ojs.worker import runs
from django_ojs.worker.execution import aexecute, execute
from django_ojs.worker.runs import Failed, Outcome, Run
from django_ojs.worker.writer import Writer

WORKER = "test"


@dataclasses.dataclass(frozen=True, slots=True)
class Performed:
    """One run of one job: `job` as it was right after it, `attempt` its number, `exception` what was raised."""

    job: JobHandle
    attempt: int
    exception: BaseException | None

    @property
    def state(self) -> State:
        """The state that the run led to; `retryable` if it failed and is to be tried again."""
        return self.job.state

    def __str__(self) -> str:
        why = f": {type(self.exception).__name__}: {self.exception}" if self.exception is not None else ""
        return f"{self.job.type} {self.job.args} attempt {self.attempt} -> {self.state}{why}"


class _Run(Run):
    """A run that keeps what its handler raised."""

    __slots__ = ("exception",)

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.exception: BaseException | None = None

    def raised(self, exc: BaseException) -> None:
        # What a directive was raised from says more than the directive.
        self.exception = exc.__cause__ or exc if isinstance(exc, Retry) else exc


class Engine:
    """Claims and runs jobs one at a time in the thread that calls it."""

    def __init__(self) -> None:
        self.using = database(None)
        self.injected: dict[str, deque[BaseException]] = defaultdict(deque)
        self.broken: dict[str, BaseException] = {}
        self._writer = Writer(WORKER, self.using, lambda runs: None, lambda name: None)

    def claim(self, queues: Sequence[str], ids: Sequence[uuid.UUID] | None = None) -> JobRow | None:
        """FETCH one job that a handler here can run, from the first of these queues that has one."""
        rows = fetch(
            queues, count=1, worker_id=WORKER, types=registry.types(), ids=ids, gate=False, columns=COLUMNS,
            fallback_visibility_ms=ojs_settings.WORKER_VISIBILITY_TIMEOUT * 1000, using=self.using,
        )  # fmt: skip
        return rows[0] if rows else None

    def perform(self, row: JobRow) -> Performed:
        """Run a claimed job and report its outcome. RuntimeError if the outcome could not be stored."""
        definition = registry.get(row["type"])
        assert definition is not None
        run = _Run(row, definition, time.monotonic(), NoLink())
        with _sheltered():
            outcome = self._injected(run) or (async_to_sync(aexecute)(run) if definition.is_async else execute(run))
            _undo_if_broken(suspect=isinstance(outcome, Failed))
        self._writer.write([(run, outcome)])
        after = self.look(run.id)
        if after is not None and after["state"] == State.ACTIVE and after["worker_id"] == WORKER:
            raise RuntimeError(f"The outcome of {run.definition.type} {run.id} could not be stored: {outcome!r:.300}")
        if definition.after is not None:
            with _sheltered():
                definition.after([run.context])
                _undo_if_broken(suspect=True)
        if isinstance(outcome, Failed) and run.exception is None:
            run.exception = JobFailed(JobHandle(after or row))
        return Performed(JobHandle(after or row), run.attempt, run.exception)

    def look(self, job_id: uuid.UUID) -> JobRow | None:
        rows = Job.objects.using(self.using).filter(pk=job_id).rows()
        return rows[0] if rows else None

    def _injected(self, run: _Run) -> Outcome | None:
        """The failure that the test wants instead of the handler."""
        waiting = self.injected.get(run.definition.type)
        error = waiting.popleft() if waiting else self.broken.get(run.definition.type)
        if error is None:
            return None
        run.raised(error)
        return runs.of_exception(error)


def moment(instant: dt.datetime | None) -> contextlib.AbstractContextManager[None]:
    """A block in which the clock of django-ojs shows this instant, if it is still ahead."""
    if instant is None or instant <= clock.now():
        return contextlib.nullcontext()
    return clock.frozen(instant)


@contextlib.contextmanager
def _sheltered() -> Any:
    """Inside the test's transactions: a savepoint for each, so that a handler's database error stays its own.

    It looks like one of a TestCase, which lets a handler open a `durable` block in it, as it can in a worker.
    """
    with contextlib.ExitStack() as blocks:
        for connection in connections.all(initialized_only=True):
            if connection.in_atomic_block:
                block = transaction.atomic(using=connection.alias)
                block._from_testcase = True  # type: ignore[attr-defined]
                blocks.enter_context(block)
        yield


def _undo_if_broken(*, suspect: bool) -> None:
    """Roll back to the savepoint where the transaction cannot be used any more. What worked stays, as in a worker.

    A database is asked only where something went wrong that may have been its error.
    """
    for connection in connections.all(initialized_only=True):
        if not connection.in_atomic_block:
            continue
        if connection.needs_rollback or (suspect and not connection.is_usable()):
            transaction.set_rollback(True, using=connection.alias)
