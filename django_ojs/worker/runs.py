"""Track one run of one job in this process, and say how it ended, as a value.

A handler ends by returning, by raising `Retry`, `Fail`, `Discard` or `Snooze`, or by raising anything else; or it is
interrupted. Each of these becomes an `RunOutcome`, and one `match` in `report()` decides what the server gets.
"""

from __future__ import annotations

import asyncio
import dataclasses
import enum
import threading
import time
import uuid
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeAlias

from django_ojs import jsontext
from django_ojs.client.children import ChildFailed
from django_ojs.client.context import JobContext, Link, ProgressValue, instant, time_left
from django_ojs.client.directives import Directive, Discard, Fail, Retry, Snooze, StepBoundary, Suspended
from django_ojs.client.options import check_json
from django_ojs.client.steps import ApprovalTimeout, EventTimeout, ReplayMismatch, StepLog, StepStore
from django_ojs.conf import ojs_settings
from django_ojs.errors import NotFound, ReservationLost
from django_ojs.faults import is_outage
from django_ojs.groupcommit import LEFT_OUT
from django_ojs.guard import Interrupted, log_fault
from django_ojs.jobs import checkpoints, progress
from django_ojs.jobs.finish import Ack, Failure
from django_ojs.rules import errorobjects
from django_ojs.rules.steps import COMPENSATES
from django_ojs.worker import joblogs
from django_ojs.worker.steps import StoredSteps

if TYPE_CHECKING:
    from django_ojs.models import JobRow
    from django_ojs.registry import Definition
    from django_ojs.worker.board import Board
    from django_ojs.worker.joblogs import LogCollector


class JobRun:
    """Holds what the threads of a worker know about a job, and decides which of them may stop it.

    A runner calls `enter()` before and `leave()` after the handler; `interrupt()` reaches the handler only
    in between, so that a deadline that passes at the last moment never hits the worker's own code.

    `claimed` and `deadline` are instants of this process' monotonic clock, `seconds` is how long the handler
    took. The server counts the execution timeout from the claim, so the deadline does too; it comes earlier where
    the job's time as a whole ends before. `grace` is how many seconds after it the server leaves the job to the
    handler. `forced_at` is when `stop` was first used. From `doubtful_at` on the server may have taken the job from
    this run, as far as this process knows: half of a reservation is left for a claim or a renewal that was slow to be
    answered.
    """

    __slots__ = (
        "_inside", "_lease", "_lock", "_place", "_started", "_stop", "_total", "abandoned", "attempt", "began", "board",
        "claimed", "context", "deadline", "definition", "doubtful_at", "ended_with", "forced_at", "grace", "id",
        "interruption", "logs", "outcome", "seconds", "timeout_ms",
    )  # fmt: skip

    def __init__(self, row: JobRow, definition: Definition, claimed: float, link: Link) -> None:
        self.id: uuid.UUID = row["id"]
        self.attempt: int = row["attempt"]
        self.definition = definition
        self.context = JobContext(row, link)
        self.interruption: Interruption | None = None
        #: As soon as it is decided; what follows until its report cannot change it.
        self.outcome: RunOutcome | None = None
        self.abandoned = False  #: handed back by a drain, or given up: its outcome no longer counts
        self.timeout_ms: int | None = row["timeout_ms"]
        self.claimed = claimed
        lease, heartbeat = row["lease_ms"], row["heartbeat_ms"]
        self._lease = (min(lease, heartbeat) if heartbeat else lease) / 1000 if lease else float("inf")
        self.doubtful_at = claimed + self._lease / 2
        self.began = False  #: the handler was called, or was about to be; not where it was interrupted before
        limit, left = self.timeout_ms / 1000 if self.timeout_ms else float("inf"), time_left(row)
        self.deadline = claimed + min(limit, left)
        self._total = left < limit  #: the deadline is the end of the job's time as a whole
        self.grace = (row["grace_ms"] or 0) / 1000
        self.seconds = 0.0
        self._started = claimed
        self._lock = threading.Lock()
        self._stop: Callable[[], object] | None = None
        self._inside = False
        self.ended_with: BaseException | None = None  #: what the handler left on its loop has raised
        self.board: Board | None = None  #: where a supervisor sees that it runs
        self._place: int | None = None
        self.forced_at: float | None = None
        self.logs: LogCollector | None = None  #: takes what the handler logs

    def enter(self, stop: Callable[[], None]) -> None:
        """The handler starts; `stop` makes it end. A run that was interrupted before ends at once."""
        self._started = time.monotonic()
        if self.logs is not None:
            joblogs.begin(self.logs, self.context)
        with self._lock:
            self.began = self.interruption is None
            if self.board is not None:
                self._place = self.board.enter(self.id, self.attempt)
            self._inside, self._stop = True, stop
            if self.interruption is not None:
                self.forced_at = time.monotonic()  # how long it may have waited before is nothing that it did
                stop()

    def stop_by(self, stop: Callable[[], object]) -> None:
        """From now on `stop` makes the handler end, which has begun. One that was told to end already ends at once."""
        with self._lock:
            self._stop = stop
            if self.forced_at is not None:
                stop()

    def end_with(self, error: BaseException) -> bool:
        """End the handler, because a task or a callback of its own has raised this; False: it has ended before."""
        with self._lock:
            if not self._inside or self._stop is None:
                return False
            self.ended_with = self.ended_with or error
            self._stop()
        return True

    def begin_steps(self) -> None:
        """Read what is recorded of a durable job, before its handler is called."""
        one_by_one = not self.definition.is_async
        log = StepLog(
            self.step_store(), self.definition.durable, self.attempt, sequential=one_by_one, undoes=self.undoes
        )
        self.context.record_steps(log, self.definition)
        log.load()

    @property
    def undoes(self) -> bool:
        """Whether the job undoes another one, instead of what its handler does."""
        return COMPENSATES in (self.context.row.get("extra") or "") and COMPENSATES in self.context.job

    def step_store(self) -> StepStore:
        """Where its steps are recorded. The testing kit lets it crash there."""
        return StoredSteps(self.context.row)

    @property
    def arguments(self) -> list[Any]:
        """The handler's arguments, as a job has them: those of the job, unless it was continued with others."""
        given = self.context.step_arguments if self.definition.durable is not None else None
        return self.context.args if given is None else given

    @property
    def is_inside(self) -> bool:
        """Whether the handler, or what surrounds it, runs now: one of several in a row may wait for those before."""
        return self._inside

    @property
    def renewable(self) -> float:
        """The length of the reservation in seconds; inf where only the handler renews it."""
        row = self.context.row
        return self._lease if row["visibility_ms"] is None and row["heartbeat_ms"] is None else float("inf")

    def renewed(self, asked_at: float) -> None:
        """The server renewed the reservation, as it was asked to at that instant."""
        with self._lock:
            if self.interruption is None:
                self.doubtful_at = asked_at + self._lease / 2

    def raised(self, exc: BaseException) -> None:
        """Called with what the handler raised. A worker keeps what the job's error says; the testing kit keeps more."""

    def leave(self) -> None:
        """The handler has ended. May be called twice."""
        with self._lock:
            if self._inside:
                self.seconds = time.monotonic() - self._started
            self._inside, self._stop = False, None
            if self.board is not None and self._place is not None:
                self.board.leave(self._place)
                self._place = None

    def interrupt(self, reason: Interruption, *, force: bool) -> None:
        """Tell the handler to stop: always through its context, with `force` also by `stop`, once.

        The first reason counts. A handler that was only asked (its job is lost, say) may be forced later.
        """
        with self._lock:
            self.interruption = self.interruption or reason  # before a step can end the run for it
            self.context.cancel()
            self.doubtful_at = float("-inf")
            if force and self.forced_at is None:
                self.forced_at = time.monotonic()
                if self._inside and self._stop is not None:
                    self._stop()

    def interrupted(self, reason: Interruption) -> RunOutcome:
        """What becomes of this run, which was stopped: for this reason where none was given."""
        return self._stopped(self.interruption or reason, began=self.began)

    def stopped_between_steps(self) -> RunOutcome:
        """What becomes of this run, which ended between two of its steps: it was told to, or its job is another's.

        A run that was not told may have met what another one had recorded, or its own handler that begins anew. So the
        worker hands the job back, instead of leaving it until its reservation ends. The server refuses that where
        another worker has the job.
        """
        if self.interruption is None:
            return NotRun()
        return self._stopped(self.interruption, began=False)

    def _stopped(self, reason: Interruption, *, began: bool) -> RunOutcome:
        if reason is Interruption.TIMEOUT and self._total:
            return of_total_timeout(self.context.row)
        return of_interruption(reason, self.timeout_ms, began=began)


class Interruption(enum.Enum):
    """Why a run is being stopped from outside."""

    TIMEOUT = "timeout"
    CANCELLED = "cancelled"
    LOST = "lost"
    SHUTDOWN = "shutdown"


@dataclasses.dataclass(frozen=True, slots=True)
class Completed:
    """`result` is JSON text; None: the handler returned nothing."""

    result: str | None


@dataclasses.dataclass(frozen=True, slots=True)
class Acknowledged:
    """Completed and reported already: a transactional handler does so in its own transaction."""


@dataclasses.dataclass(frozen=True, slots=True)
class Failed:
    error: dict[str, Any]
    retry_after_ms: int | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Snoozed:
    """`waits`: the steps of the job that an event may end before."""

    delay_ms: int
    waits: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class JobHandedBack:
    """The worker stops before the handler did."""


@dataclasses.dataclass(frozen=True, slots=True)
class NotRun:
    """The worker gives the claim up before it called the handler, or between two of its steps: nothing is lost."""


@dataclasses.dataclass(frozen=True, slots=True)
class CutOff:
    """The database went away while the handler ran, or before it was called (`began` False). The job runs again, and
    the attempt does not count."""

    said: str
    began: bool = True


@dataclasses.dataclass(frozen=True, slots=True)
class Forgotten:
    """The job was cancelled, or another worker has it by now: nothing is reported."""


RunOutcome: TypeAlias = Completed | Acknowledged | Failed | Snoozed | JobHandedBack | NotRun | CutOff | Forgotten


def report(
    outcome: RunOutcome, job_id: uuid.UUID, worker_id: str, attempt: int, *, in_workflow: bool = False
) -> Ack | Failure | None:
    """The report for the server, fenced by holder and attempt; None: nothing is reported."""
    match outcome:
        case Completed(result):
            return Ack(job_id, result, worker_id, attempt, in_workflow)
        case Failed(error, retry_after_ms):
            return Failure(job_id, error, worker_id, attempt, retry_after_ms=retry_after_ms)
        case Snoozed(delay_ms, waits):
            return Failure(job_id, None, worker_id, attempt, snooze_ms=delay_ms, waits=waits)
        case JobHandedBack():
            return Failure(job_id, None, worker_id, attempt, requeue=True)
        case NotRun():
            return Failure(job_id, None, worker_id, attempt, requeue=True, unrun=True)
        case CutOff(said, began):
            return Failure(job_id, None, worker_id, attempt, requeue=True, unrun=not began, outage=said)
        case Acknowledged() | Forgotten():
            return None


def of_result(value: Any) -> RunOutcome:
    """Completed, unless the result is not JSON or too large; then the job fails and the error says why."""
    if value is None:
        return Completed(None)
    try:
        check_json(value, "result")
        text = jsontext.dumps(value)
    except Interrupted:
        raise
    except BaseException as error:  # noqa: BLE001 - an object of the site's may raise anything when it is read
        message = errorobjects.cut(errorobjects.text_of(error) or type(error).__name__, errorobjects.MAX_MESSAGE)
        return Failed({"type": "ResultNotSerializable", "code": "result_not_serializable", "message": message})
    limit = ojs_settings.MAX_RESULT_BYTES
    if len(text) * 4 > limit and len(text.encode()) > limit:
        size = len(text.encode())
        message = f"The result has {size} bytes, {limit} are allowed: store it elsewhere and return a reference."
        return Failed({"type": "ResultTooLarge", "code": "RESULT_TOO_LARGE", "message": message})
    return Completed(text)


def of_exception(exc: BaseException) -> RunOutcome:
    """What an exception that left the handler means. Raises nothing, whatever the exception does when it is read."""
    try:
        return _of_exception(exc)
    except BaseException as error:  # noqa: BLE001 - the job has failed all the same
        log_fault("Reading an exception", error)
        return Failed(errorobjects.least(exc))


def meant(exc: BaseException) -> BaseException:
    """What an exception stands for: a group of nothing but `Retry`, `Fail`, `Discard` and `Snooze` for one of them.

    `except*` and a TaskGroup put what is raised in them into a group. Of several the one that ends the job counts
    first, `Fail` before `Discard`, then the one with the longest delay; of several sleeps the one that ends first.
    """
    if not isinstance(exc, BaseExceptionGroup):
        return exc
    found = errorobjects.leaves(exc)
    if all(isinstance(leaf, Suspended) for leaf in found):
        waits = [name for leaf in found if isinstance(leaf, Suspended) for name in leaf.waits]
        return Suspended(min(map(_delay_ms, found)), tuple(waits))
    if not all(isinstance(leaf, Directive) for leaf in found):
        return exc
    ranks = (Fail, Discard, Retry)
    return max(found, key=lambda one: (*(isinstance(one, rank) for rank in ranks), _delay_ms(one)))


def _delay_ms(directive: BaseException) -> int:
    return getattr(directive, "after_ms", None) or getattr(directive, "delay_ms", None) or 0


def is_interruption(exc: BaseException) -> bool:
    """Whether this is how a run ends that was stopped: also in a group, as it comes out of a TaskGroup."""
    return all(isinstance(leaf, Interrupted | asyncio.CancelledError) for leaf in errorobjects.leaves(exc))


def is_boundary(exc: BaseException) -> bool:
    """Whether this is how a run ends between two of its steps, in a group with none but those that let it wait."""
    found = errorobjects.leaves(exc)
    ends = [leaf for leaf in found if isinstance(leaf, StepBoundary)]
    return bool(ends) and all(isinstance(leaf, StepBoundary | Suspended) for leaf in found)


def is_cut_off(exc: BaseException) -> bool:
    """Whether this is how a run ends whose database went away: in a group each of its exceptions."""
    return all(is_outage(leaf) for leaf in errorobjects.leaves(exc))


def _of_exception(exc: BaseException) -> RunOutcome:
    exc = meant(exc)
    match exc:
        case Retry():
            error = errorobjects.from_exception(exc.__cause__ or exc) | {"code": "RETRY"}
            return Failed(error, exc.after_ms)
        case Discard() | Fail():
            message = errorobjects.cut(errorobjects.text_of(exc) or type(exc).__name__, errorobjects.MAX_MESSAGE)
            verdict = {"code": "DISCARD"} if isinstance(exc, Discard) else {"retryable": False}
            return Failed(errorobjects.from_exception(exc.__cause__ or exc) | verdict | {"message": message})
        case Snooze():
            return Snoozed(exc.delay_ms)
        case Suspended():
            return Snoozed(exc.delay_ms, exc.waits) if exc.delay_ms else NotRun()
        case EventTimeout():  # it is recorded: each run would come to it again
            return Failed(errorobjects.from_exception(exc) | {"code": "event_timeout", "retryable": False})
        case ChildFailed():
            return Failed(errorobjects.from_exception(exc) | {"code": "child_failed", "retryable": False})
        case ApprovalTimeout():
            return Failed(errorobjects.from_exception(exc) | {"code": "approval_timeout", "retryable": False})
        case ReplayMismatch():
            return Failed(errorobjects.from_exception(exc) | {"code": "replay_mismatch", "retryable": False})
        case asyncio.CancelledError() if not errorobjects.text_of(exc):
            return Failed(errorobjects.from_exception(exc) | {"message": "The handler's task was cancelled."})
        case _:
            return Failed(errorobjects.from_exception(exc))


def of_fault(what: str) -> RunOutcome:
    """What becomes of a run around which our own code failed before its outcome was decided."""
    message = f"What the worker does around a handler failed: {what}. The job may have done its work."
    return Failed({"type": "WorkerFault", "code": "worker_fault", "message": message})


def of_interruption(reason: Interruption, limit_ms: int | None = None, *, began: bool = True) -> RunOutcome:
    """What becomes of a run that was stopped from outside; `began`: after its handler had begun."""
    match reason:
        case Interruption.TIMEOUT:
            limit = (limit_ms or 0) / 1000
            return Failed({
                "type": "timeout", "code": "timeout", "timeout_kind": "execution", "limit_seconds": limit,
                "message": f"The job ran longer than its execution timeout of {limit:g} s.",
            })  # fmt: skip
        case Interruption.SHUTDOWN:
            return JobHandedBack() if began else NotRun()
        case Interruption.CANCELLED | Interruption.LOST:
            return Forgotten()


def of_total_timeout(row: JobRow) -> RunOutcome:
    """What becomes of a run that was stopped because its job's time as a whole is over."""
    limit = (instant(row["deadline_at"]) - instant(row["created_at"])).total_seconds()
    return Failed({
        "type": "total_timeout", "code": "total_timeout", "timeout_kind": "total", "limit_seconds": limit,
        "retryable": False, "message": f"The job's total timeout of {limit:g} s leaves no time for it.",
    })  # fmt: skip


def report_progress(context: JobContext, progressed: ProgressValue, using: str) -> bool | None:
    """Write one progress report; False if the job is no longer this run's, None if another transaction holds it."""
    (known,) = progress.report_free([_progress(context, progressed)], using=using)
    if known is LEFT_OUT:
        return None
    return isinstance(known, progress.ReportedJob) and known.accepted


def save_checkpoint(context: JobContext, state: Any, using: str) -> int:
    """Store the state that a handler saves; return its sequence. Raises `StepBoundary` where the job is lost."""
    worker_id = context.row["worker_id"]
    new = checkpoints.NewCheckpoint(context.id, state, worker_id=worker_id, attempt=context.attempt)
    try:
        return checkpoints.save(new, using=using).sequence
    except (ReservationLost, NotFound) as error:
        raise StepBoundary(error.message) from error


def clear_checkpoint(context: JobContext, using: str) -> bool:
    """Delete the checkpoint of a handler's job; return whether there was one. Raises `StepBoundary` where the job is
    lost."""
    worker_id = context.row["worker_id"]
    try:
        return checkpoints.clear(context.id, worker_id=worker_id, attempt=context.attempt, using=using)
    except (ReservationLost, NotFound) as error:
        raise StepBoundary(error.message) from error


def last_progress(contexts: Iterable[JobContext]) -> list[progress.ProgressReport]:
    """The newest progress reports of these runs, which have ended, as far as they are not written yet."""
    found = ((context, context.take_progress()) for context in contexts)
    return [_progress(context, progressed, last=True) for context, progressed in found if progressed is not None]


def _progress(context: JobContext, progressed: ProgressValue, *, last: bool = False) -> progress.ProgressReport:
    worker_id = context.row["worker_id"]
    return progress.ProgressReport(context.id, *progressed, worker_id=worker_id, attempt=context.attempt, last=last)
