"""Store and run the jobs of a test: inline, as soon as they are enqueued, or by a worker, on `drain()`.

`Engine` claims a job, runs its handler and reports the outcome in the thread of the test. Its parts are those of a real
worker, without threads. It has no heartbeats and no execution timeout, which need time or another thread.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import threading
import time
import uuid
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar, Protocol, TypeVar, Unpack

from asgiref.sync import async_to_sync, sync_to_async
from django.db import connections, transaction
from django.db.models import Min

from django_ojs import clock, outbox, states
from django_ojs.client.context import CONTEXT_COLUMNS, JobContext, NoLink
from django_ojs.client.directives import Discard, Retry, Suspended
from django_ojs.client.handle import JobFailed, JobHandle
from django_ojs.client.options import Duration, milliseconds
from django_ojs.client.steps import StepStore
from django_ojs.client.sync import declared
from django_ojs.conf import ojs_settings
from django_ojs.cron import schedules
from django_ojs.database import database
from django_ojs.errors import OJSError
from django_ojs.jobs import compensations, durableevents, timers
from django_ojs.jobs.candidates import Pushed, PushOutcome
from django_ojs.jobs.fetch import Fetch, fetch
from django_ojs.jobs.finish import requeue
from django_ojs.lifecycle.transitions import RowOrError, only
from django_ojs.limits import claim
from django_ojs.messages import jobs
from django_ojs.models import Approval, CronSchedule, Job
from django_ojs.models.job import JobRow
from django_ojs.registry import registry
from django_ojs.rules.durableevents import Emitted
from django_ojs.rules.rows import END_OF_TIME
from django_ojs.states import State
from django_ojs.store.values import Choice
from django_ojs.testing.jobs import (
    Expected,
    ExpectedJobs,
    Jobs,
    JobsMixin,
    JobType,
    Lasting,
    Mode,
    how_often,
    name_of,
)
from django_ojs.worker import joblogs, runs
from django_ojs.worker.execution import aexecute, execute, in_clean_context
from django_ojs.worker.runs import Failed, JobRun
from django_ojs.worker.writer import Writer
from django_ojs.workflows import children
from django_ojs.workflows.workflow import WorkflowView
from django_ojs.workflows.workflow import info as read_workflow

T = TypeVar("T")

#: After so many runs something enqueues or snoozes without end.
ENDLESS = 10_000
WAITING = (State.SCHEDULED, State.RETRYABLE, State.AVAILABLE)
WORKER = "test"  #: the id of the worker that runs the jobs


@dataclasses.dataclass(frozen=True, slots=True)
class Drained:
    """The result of a drain: its runs in order, and the number of jobs that have not ended."""

    runs: tuple[Performed, ...]
    remaining: int

    @property
    def completed(self) -> int:
        return self._count(State.COMPLETED)

    @property
    def failed(self) -> int:
        """The number of runs that failed, including those that will be retried."""
        return self._count(State.RETRYABLE) + self._count(State.DISCARDED)

    @property
    def discarded(self) -> int:
        return self._count(State.DISCARDED)

    @property
    def exceptions(self) -> list[BaseException]:
        return [run.exception for run in self.runs if run.exception is not None]

    def raise_first(self) -> Drained:
        """Raise the first exception of a handler, if there was any. For tests in which no job may fail."""
        for exception in self.exceptions:
            raise exception
        return self

    def __len__(self) -> int:
        return len(self.runs)

    def __bool__(self) -> bool:
        return True

    def __str__(self) -> str:
        left = f"{jobs(self.remaining)} {'remains' if self.remaining == 1 else 'remain'}"
        runs = f"{len(self)} {'run' if len(self) == 1 else 'runs'}"
        lines = [f"{runs}, {self.completed} completed, {self.failed} failed, {left}."]
        return "\n".join([*lines, *(f"  {run}" for run in self.runs)])

    def _count(self, state: State) -> int:
        return sum(run.state == state for run in self.runs)


class RunningJobs(Jobs):
    """Jobs that are stored in the test's database and run in the test's thread."""

    def __init__(self) -> None:
        super().__init__()
        self._engine = Engine()
        self.performed: list[Performed] = []

    def on_push(self, verb: Callable[..., list[PushOutcome]], *args: Any, **kwargs: Any) -> list[PushOutcome]:
        outcomes = verb(*args, **kwargs)
        self._record_created(outcomes)
        return outcomes

    def on_create_workflow(self, verb: Callable[..., WorkflowView], *args: Any, **kwargs: Any) -> WorkflowView:
        lasting = Lasting()
        view = verb(*args, **kwargs)
        if all(known.workflow.pk != view.workflow.pk for known, _ in self._views):  # else it comes from the outbox
            self._views.append((view, lasting))
        return view

    def on_put(self, verb: Callable[..., list[Pushed]], *args: Any, **kwargs: Any) -> list[Pushed]:
        outcomes = verb(*args, **kwargs)
        self._record_created(outcomes)
        return outcomes

    def on_put_workflow(self, verb: Callable[..., WorkflowView], *args: Any, **kwargs: Any) -> WorkflowView:
        return self.on_create_workflow(verb, *args, **kwargs)

    def on_emit(self, verb: Callable[..., Emitted], *args: Any, **kwargs: Any) -> Emitted:
        return self._record_emitted(verb(*args, **kwargs))

    def trigger(self, schedule: str) -> JobHandle:
        known = CronSchedule.objects.using(self._engine.using).filter(pk=schedule)
        for spec in declared():
            if spec.name == schedule and not known.exists():
                schedules.register(spec, source=CronSchedule.Source.CODE)
        return super().trigger(schedule)

    def drain(
        self, *, queues: str | Sequence[str] = (), with_scheduled: bool = False,
        until: dt.datetime | Duration | None = None, max_jobs: int | None = None,
    ) -> Drained:  # fmt: skip
        """Run the jobs that are due, and the jobs that they enqueue, until none is left. Return what was done.

        Args:
            queues: run only these, in this order; empty: all, first the job that has waited longest.
            with_scheduled: also run delayed jobs, retries, and jobs that a rate limit holds back. Whenever no other
                job is left, the clock of django-ojs jumps to the next of them; it returns when the drain ends.
            until: the same, but no further than this instant, or this time from now.
            max_jobs: stop after this number of runs.

        Raises RuntimeError after 10,000 runs, because then jobs enqueue or snooze without end.
        """
        edge = self._edge(until)
        runs: list[Performed] = []
        names = [queues] if isinstance(queues, str) else list(queues)
        before = clock.override()
        try:
            while max_jobs is None or len(runs) < max_jobs:
                if (row := self._next(names)) is not None:
                    runs.append(self._perform(row))
                elif not ((with_scheduled or edge is not None) and self._jump(edge, names)):
                    break
                if len(runs) >= ENDLESS:
                    raise RuntimeError(f"Still not empty after {ENDLESS} runs; the last was {runs[-1]}.")
        finally:
            clock.freeze(before)
        return Drained(tuple(runs), self._remaining())

    async def adrain(
        self, *, queues: str | Sequence[str] = (), with_scheduled: bool = False,
        until: dt.datetime | Duration | None = None, max_jobs: int | None = None,
    ) -> Drained:  # fmt: skip
        """`drain` from asynchronous code."""
        return await sync_to_async(self.drain)(
            queues=queues, with_scheduled=with_scheduled, until=until, max_jobs=max_jobs
        )

    def tick(self, duration: Duration) -> Drained:
        """Let so much time pass: run what becomes due meanwhile, each job at its time. Return what was done.

        The clock of django-ojs stands still at the end of it, until the next tick or the end of the mode.
        """
        edge = clock.now() + dt.timedelta(milliseconds=milliseconds(duration, "duration"))
        done = self.drain(until=edge)
        self.freeze(edge)
        return done

    def fail_next(self, type: JobType, error: BaseException, *, times: int = 1) -> None:
        """Let the next run of this job type, or the next `times` runs, fail with `error` without its handler."""
        self._engine.injected[name_of(type)].extend([error] * times)

    def fail_all(self, type: JobType, error: BaseException | None) -> None:
        """Let all runs of this job type fail with `error` without its handler. None ends that."""
        self._engine.broken.pop(name_of(type), None)
        if error is not None:
            self._engine.broken[name_of(type)] = error

    def crash(self, crashes: Crashes) -> None:
        """Let the worker crash once, in the runs from here on; see `django_ojs.testing.assert_survives_crashes`."""
        self._engine.crashes = crashes

    def clear_all(self) -> None:
        super().clear_all()
        self._engine.crashes = None
        self.performed.clear()
        self._engine.injected.clear()
        self._engine.broken.clear()

    def assert_performed(
        self, type: JobType, *, times: int | None = None, count: int | None = None, **expected: Unpack[Expected]
    ) -> Performed:
        """Fail unless such a job ran here (`times` times, if given), however it ended. Return the newest run."""
        __tracebackhide__ = True
        times = how_often(times, count, "performed")
        wanted = ExpectedJobs.of(type, expected)
        found = [run for run in self.performed if wanted.fits(run.job)]
        self._check(found, wanted, times, [run.job for run in self.performed], "run")
        return found[-1]

    def assert_not_performed(self, type: JobType | None = None, **expected: Unpack[Expected]) -> None:
        """Fail if such a job ran in this test."""
        __tracebackhide__ = True
        wanted = ExpectedJobs.of(type, expected)
        if found := [run for run in self.performed if wanted.fits(run.job)]:
            raise AssertionError("\n".join([f"This was not to be run: {wanted}.", *(f"  {run}" for run in found)]))

    refute_performed = assert_not_performed

    def assert_completed(
        self, type: JobType, *, times: int | None = None, count: int | None = None, **expected: Unpack[Expected]
    ) -> JobHandle:
        """Fail unless such a job ran in this test and completed."""
        __tracebackhide__ = True
        expected["state"] = State.COMPLETED.value
        return self.assert_performed(type, times=times, count=count, **expected).job

    def assert_failed(self, type: JobType, **expected: Unpack[Expected]) -> JobHandle:
        """Fail unless the newest run of such a job failed: the job waits for a retry, or is discarded."""
        __tracebackhide__ = True
        run = self.assert_performed(type, **expected)
        if run.state not in (State.RETRYABLE, State.DISCARDED):
            raise AssertionError(f"This did not fail: {run}")
        return run.job

    def _perform(self, row: JobRow) -> Performed:
        done = self._engine.perform(row)
        self.performed.append(done)
        return done

    def _next(self, queues: Sequence[str]) -> JobRow | None:
        """Do what is due, as the scheduler would, and claim a job."""
        while timers.apply_due(using=self._engine.using):
            pass
        while outbox.relay():
            pass
        while self._follow_up():
            pass
        names = queues or self._busy_queues()
        return self._engine.claim(names) if names else None

    def _follow_up(self) -> int:
        """Do what the scheduler would for durable jobs that have ended: enqueue what undoes them, and cancel what they
        have left running."""
        using = self._engine.using
        return children.follow_up(using=using) + compensations.follow_up(using=using)

    def _busy_queues(self) -> list[str]:
        waiting = Job.objects.using(self._engine.using).filter(state__in=WAITING, type__in=registry.types())
        longest = waiting.values("queue").annotate(since=Min("enqueued_at")).order_by("since", "queue")
        return [entry["queue"] for entry in longest]

    def _jump(self, edge: dt.datetime | None, queues: Sequence[str]) -> bool:
        """Move the clock to the next instant at which a job here may start. False: there is none before the edge."""
        using, types = self._engine.using, tuple(registry.types())
        now = clock.now(using)
        ahead = Job.objects.using(using).filter(
            state__in=WAITING, type__in=types, due_at__gt=now, due_at__lt=END_OF_TIME
        )
        if queues:
            ahead = ahead.filter(queue__in=queues)
        instants = [
            ahead.aggregate(first=Min("due_at"))["first"],
            claim.next_start(Choice(tuple(dict.fromkeys(queues or self._busy_queues())), types), now, using=using),
        ]
        instant = min(filter(None, instants), default=None)
        if instant is None or (edge is not None and instant > edge):
            return False
        clock.freeze(instant)
        return True

    @staticmethod
    def _edge(until: dt.datetime | Duration | None) -> dt.datetime | None:
        if until is None or isinstance(until, dt.datetime):
            return until
        return clock.now() + dt.timedelta(milliseconds=milliseconds(until, "until"))

    def _remaining(self) -> int:
        unfinished = states.ordered(set(State) - states.TERMINAL)
        return Job.objects.using(self._engine.using).filter(state__in=unfinished).count()


class WorkerJobs(RunningJobs):
    """Jobs that wait until the test calls `drain()`."""


class _ThreadWork(threading.local):
    """What a thread is in the middle of."""

    def __init__(self) -> None:
        self.depth = 0
        self.busy = False
        self.waiting: deque[uuid.UUID] = deque()
        self.suspended: set[uuid.UUID] = set()  #: jobs that wait for events, or for jobs that they run
        self.follow_up = False  #: whether a durable job may have ended


class InlineJobs(RunningJobs):
    """Jobs that run at once, before the call that enqueues them returns, in its thread and its transaction.

    The mode skips delays and the pauses between attempts; each run sees a clock with the right time. A job that
    becomes a dead letter raises what its last attempt raised, unless `raise_errors` is False.
    """

    def __init__(self, *, raise_errors: bool = True) -> None:
        super().__init__()
        self.raise_errors = raise_errors
        self._thread = _ThreadWork()

    def on_push(self, verb: Callable[..., list[PushOutcome]], *args: Any, **kwargs: Any) -> list[PushOutcome]:
        whole = not kwargs.get("workflows")  # else it is a part of a workflow's change
        return self._act(lambda: RunningJobs.on_push(self, verb, *args, **kwargs), whole=whole)

    def on_create_workflow(self, verb: Callable[..., WorkflowView], *args: Any, **kwargs: Any) -> WorkflowView:
        view = self._act(lambda: RunningJobs.on_create_workflow(self, verb, *args, **kwargs))
        return read_workflow(view.workflow.pk)

    def on_trigger(self, verb: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return self._act(lambda: verb(*args, **kwargs))

    def on_put(self, verb: Callable[..., list[Pushed]], *args: Any, **kwargs: Any) -> list[Pushed]:
        """Into the outbox, and out of it at once."""
        outcomes = self._act(lambda: _relayed(RunningJobs.on_put(self, verb, *args, **kwargs)))
        return [done._replace(status="created") for done in outcomes]

    def on_put_workflow(self, verb: Callable[..., WorkflowView], *args: Any, **kwargs: Any) -> WorkflowView:
        view = self._act(lambda: _relayed(RunningJobs.on_create_workflow(self, verb, *args, **kwargs)))
        return read_workflow(view.workflow.pk)

    def on_emit(self, verb: Callable[..., Emitted], *args: Any, **kwargs: Any) -> Emitted:
        """The jobs that waited for the event go on at once."""

        def emit() -> Emitted:
            done = RunningJobs.on_emit(self, verb, *args, **kwargs)
            self._thread.waiting += done.job_ids
            return done

        return self._act(emit)

    def on_decide(self, verb: Callable[..., Approval], *args: Any, **kwargs: Any) -> Approval:
        """The job that waited for the decision goes on at once."""

        def decide() -> Approval:
            done = verb(*args, **kwargs)
            self._thread.waiting.append(done.job_id)
            return done

        return self._act(decide)

    def on_retry_jobs(self, verb: Callable[..., list[RowOrError]], *args: Any, **kwargs: Any) -> list[RowOrError]:
        """The jobs run again at once."""

        def retry() -> list[RowOrError]:
            done = verb(*args, **kwargs)
            self._thread.waiting += [row["id"] for row in done if not isinstance(row, OJSError)]
            return done

        done = self._act(retry)
        return [row if isinstance(row, OJSError) else self._engine.find(row["id"]) or row for row in done]

    def on_restart_job(self, verb: Callable[..., JobRow], *args: Any, **kwargs: Any) -> JobRow:
        return only(self.on_retry_jobs(lambda: [verb(*args, **kwargs)]))

    def on_cancel_jobs(self, verb: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """What undoes these jobs runs at once."""

        def cancel() -> T:
            self._thread.follow_up = True
            return verb(*args, **kwargs)

        return self._act(cancel)

    def on_cancel_workflow(self, verb: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        return self.on_cancel_jobs(verb, *args, **kwargs)

    def on_together(self, verb: Callable[..., T], act: Callable[[], T]) -> T:
        return self._act(lambda: verb(act))

    def _act(self, act: Callable[[], T], *, whole: bool = True) -> T:
        """`act()`, and then run what it enqueued, unless it is a part of something larger."""
        mine = self._thread
        mine.depth += 1
        seen = len(self._entries)
        try:
            result = act()
        except BaseException:
            if mine.depth == 1 and not mine.busy:
                mine.waiting.clear()
            raise
        finally:
            mine.depth -= 1
        known = set(mine.waiting)
        mine.waiting += [job.id for job, _ in self._entries[seen:] if job.id not in known]
        if whole and not mine.depth and not mine.busy:
            try:
                self._run_all(mine)
            finally:
                for job, _ in self._entries[seen:]:
                    job.row.update(self._engine.find(job.id) or {})
        return result

    def _run_all(self, mine: _ThreadWork) -> None:
        errors: list[BaseException] = []
        mine.busy = True
        try:
            while mine.waiting or (mine.follow_up and self._follow_up()):
                error = self._finish(mine.waiting.popleft()) if mine.waiting else None
                if error is not None:
                    errors.append(error)
                if mine.suspended:
                    free = mine.suspended - durableevents.waiting(list(mine.suspended), using=self._engine.using)
                    mine.suspended -= free
                    mine.waiting += sorted(free)
        finally:
            mine.busy = mine.follow_up = False
            mine.waiting.clear()
            mine.suspended.clear()
        if errors and self.raise_errors:
            raise errors[0]

    def _finish(self, job_id: uuid.UUID) -> BaseException | None:
        """Run a job until it has ended; the last exception if that is the dead letter queue."""
        for _ in range(ENDLESS):
            row = self._engine.find(job_id)
            definition = None if row is None else registry.get(row["type"])
            if row is None or row["state"] not in WAITING or definition is None:
                return None
            if row["state"] == State.RETRYABLE and durableevents.waiting([job_id], using=self._engine.using):
                self._thread.suspended.add(job_id)
                return None
            if row["due_at"] is not None and row["due_at"] >= END_OF_TIME:
                return None
            with moment(row["due_at"]):
                timers.apply_due(ids=[job_id], using=self._engine.using)
                claimed = self._engine.claim([row["queue"]], [job_id])
                if claimed is None:
                    return None
                done = self._perform(claimed)
            self._thread.follow_up |= definition.durable is not None
            if done.state == State.DISCARDED:
                return None if isinstance(done.exception, Discard) else done.exception
        raise RuntimeError(f"The job {job_id} did not end after {ENDLESS} runs.")


class inline(Mode[InlineJobs]):  # noqa: N801
    """Run each job before the call that enqueues it returns; see `InlineJobs` for `raise_errors`."""

    def __init__(
        self, *, raise_errors: bool = True, kwarg_name: str | None = None, attr_name: str | None = "jobs"
    ) -> None:
        super().__init__(kwarg_name=kwarg_name, attr_name=attr_name)
        self.raise_errors = raise_errors

    def _new(self) -> InlineJobs:
        return InlineJobs(raise_errors=self.raise_errors)


class InlineJobsMixin(JobsMixin):
    """Runs jobs at once. With `raise_job_errors = False`, a job that becomes a dead letter raises nothing."""

    jobs: InlineJobs
    raise_job_errors: ClassVar[bool] = True

    def _jobs(self) -> InlineJobs:
        return InlineJobs(raise_errors=self.raise_job_errors)


class worker(Mode[WorkerJobs]):  # noqa: N801
    """Store jobs. The `drain()` of what it gives runs them by the verbs of a real worker."""

    def _new(self) -> WorkerJobs:
        return WorkerJobs()


class WorkerJobsMixin(JobsMixin):
    """Stores jobs; `self.jobs.drain()` runs them."""

    jobs: WorkerJobs

    def _jobs(self) -> WorkerJobs:
        return WorkerJobs()


def _relayed(answer: T) -> T:
    while outbox.relay():
        pass
    return answer


@dataclasses.dataclass(frozen=True, slots=True)
class Performed:
    """One run of one job: `job` after the run, the number of the `attempt`, and the `exception` that it raised."""

    job: JobHandle
    attempt: int
    exception: BaseException | None

    @property
    def state(self) -> State:
        """The state after the run; `retryable` if it failed and will be retried."""
        return self.job.state

    def __str__(self) -> str:
        why = f": {type(self.exception).__name__}: {self.exception}" if self.exception is not None else ""
        return f"{self.job.type} {self.job.args} attempt {self.attempt} -> {self.state}{why}"


class Crashes(StepStore, Protocol):
    """Lets a worker crash while the steps of a durable handler are recorded (`testing.crashes`)."""

    crashed: bool

    def around(self, store: StepStore) -> StepStore: ...


class _Run(JobRun):
    """A run that keeps what its handler raised."""

    __slots__ = ("crashes", "exception")

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.exception: BaseException | None = None
        self.crashes: Crashes | None = None

    def step_store(self) -> StepStore:
        store = super().step_store()
        return store if self.crashes is None else self.crashes.around(store)

    def raised(self, exc: BaseException) -> None:
        if isinstance(runs.meant(exc), Suspended):  # it goes on later, and nothing has failed
            return
        # What a directive was raised from says more than the directive.
        self.exception = exc.__cause__ or exc if isinstance(exc, Retry) else exc


class _StoringLink(NoLink):
    """Stores what a handler saves, as a worker does; it sends no heartbeats and no progress."""

    def __init__(self, using: str) -> None:
        self._using = using

    def save_checkpoint(self, context: JobContext, state: Any) -> int:
        return runs.save_checkpoint(context, state, self._using)

    def clear_checkpoint(self, context: JobContext) -> bool:
        return runs.clear_checkpoint(context, self._using)


class Engine:
    """Claims and runs jobs one at a time in the thread that calls it."""

    def __init__(self) -> None:
        self.using = database(None)
        self.injected: dict[str, deque[BaseException]] = defaultdict(deque)
        self.broken: dict[str, BaseException] = {}
        self.crashes: Crashes | None = None
        self._logs = joblogs.LogWriter(joblogs.LogCollector(), self.using)
        self._writer = Writer(WORKER, self.using, lambda runs: None, lambda name: None, logs=self._logs)

    def claim(self, queues: Sequence[str], ids: Sequence[uuid.UUID] | None = None) -> JobRow | None:
        """FETCH one job that a handler here can run, from the first of these queues that has one."""
        wanted = Fetch(
            queues, 1, WORKER, types=registry.types(), ids=ids, check_worker=False, columns=CONTEXT_COLUMNS,
            fallback_visibility_ms=ojs_settings.WORKER_VISIBILITY_TIMEOUT * 1000,
        )  # fmt: skip
        rows = fetch(wanted, using=self.using)
        return rows[0] if rows else None

    def perform(self, row: JobRow) -> Performed:
        """Run a claimed job and report its outcome. RuntimeError if the outcome could not be stored."""
        definition = registry.get(row["type"])
        assert definition is not None
        run = _Run(row, definition, time.monotonic(), _StoringLink(self.using))
        run.crashes, crashes = self.crashes, self.crashes
        run.logs = self._logs.collector if ojs_settings.JOB_LOGS else None
        with _sheltered(), joblogs.in_use() if run.logs is not None else contextlib.nullcontext():
            call = partial(async_to_sync(aexecute) if definition.is_async else execute, run)
            outcome = self._injected(run) or in_clean_context(call)
            _undo_if_broken(suspect=isinstance(outcome, Failed))
        if crashes is not None and crashes.crashed:
            requeue([run.id], unrun=[run.id], using=self.using)
            self.crashes = None  # the next run is that of another worker
            return Performed(JobHandle(self.find(run.id) or row), run.attempt, None)
        self._writer.write([(run, outcome)])
        after = self.find(run.id)
        if after is not None and after["state"] == State.ACTIVE and after["worker_id"] == WORKER:
            raise RuntimeError(f"The outcome of {run.definition.type} {run.id} could not be stored: {outcome!r:.300}")
        if definition.after is not None:
            with _sheltered():
                definition.after([run.context])
                _undo_if_broken(suspect=True)
        if isinstance(outcome, Failed) and run.exception is None:
            run.exception = JobFailed(JobHandle(after or row))
        return Performed(JobHandle(after or row), run.attempt, run.exception)

    def find(self, job_id: uuid.UUID) -> JobRow | None:
        rows = Job.objects.using(self.using).filter(pk=job_id).rows()
        return rows[0] if rows else None

    def _injected(self, run: _Run) -> runs.RunOutcome | None:
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
