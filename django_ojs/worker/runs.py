"""Track one run of one job in this process, and say how it ended, as a value.

A handler ends by returning, by raising `Retry`, `Discard` or `Snooze`, or by raising anything else; or it is
interrupted. Each of these becomes an `Outcome`, and one `match` in `report()` decides what the server gets.
"""

from __future__ import annotations

import asyncio
import dataclasses
import enum
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from django_ojs import jsontext
from django_ojs.client.context import Discard, JobContext, Link, Progress, Retry, Snooze, time_left
from django_ojs.client.options import check_json
from django_ojs.conf import ojs_settings
from django_ojs.jobs import progress
from django_ojs.jobs.finish import Ack, Failure
from django_ojs.rules import errorobjects

if TYPE_CHECKING:
    from django_ojs.models import JobRow
    from django_ojs.registry import Definition


class Run:
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
        "_inside", "_lease", "_lock", "_started", "_stop", "attempt", "began", "claimed", "context", "deadline",
        "definition", "doubtful_at", "forced_at", "grace", "id", "interruption", "released", "seconds", "timeout_ms",
    )  # fmt: skip

    def __init__(self, row: JobRow, definition: Definition, claimed: float, link: Link) -> None:
        self.id: uuid.UUID = row["id"]
        self.attempt: int = row["attempt"]
        self.definition = definition
        self.context = JobContext(row, link)
        self.interruption: Interruption | None = None
        self.released = False  #: handed back by a drain, or given up: its outcome no longer counts
        self.timeout_ms: int | None = row["timeout_ms"]
        self.claimed = claimed
        lease, heartbeat = row["lease_ms"], row["heartbeat_ms"]
        self._lease = (min(lease, heartbeat) if heartbeat else lease) / 1000 if lease else float("inf")
        self.doubtful_at = claimed + self._lease / 2
        self.began = False  #: the handler was called, or was about to be
        limit = self.timeout_ms / 1000 if self.timeout_ms else float("inf")
        self.deadline = claimed + min(limit, time_left(row))
        self.grace = (row["grace_ms"] or 0) / 1000
        self.seconds = 0.0
        self._started = claimed
        self._lock = threading.Lock()
        self._stop: Callable[[], None] | None = None
        self._inside = False
        self.forced_at: float | None = None

    def enter(self, stop: Callable[[], None]) -> None:
        """The handler starts; `stop` makes it end. A run that was interrupted before ends at once."""
        self._started = time.monotonic()
        with self._lock:
            self.began = True
            self._inside, self._stop = True, stop
            if self.interruption is not None:
                self.forced_at = self.forced_at or time.monotonic()
                stop()

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

    def interrupt(self, reason: Interruption, *, force: bool) -> None:
        """Tell the handler to stop: always through its context, with `force` also by `stop`, once.

        The first reason counts. A handler that was only asked (its job is lost, say) may be forced later.
        """
        self.context.cancel()
        with self._lock:
            self.interruption = self.interruption or reason
            self.doubtful_at = float("-inf")
            if force and self.forced_at is None:
                self.forced_at = time.monotonic()
                if self._inside and self._stop is not None:
                    self._stop()


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
    delay_ms: int


@dataclasses.dataclass(frozen=True, slots=True)
class HandedBack:
    """The worker stops before the handler did."""


@dataclasses.dataclass(frozen=True, slots=True)
class NotRun:
    """The worker gives the claim up before it called the handler."""


@dataclasses.dataclass(frozen=True, slots=True)
class Forgotten:
    """The job was cancelled, or another worker has it by now: nothing is reported."""


Outcome: TypeAlias = Completed | Acknowledged | Failed | Snoozed | HandedBack | NotRun | Forgotten


def report(
    outcome: Outcome, job_id: uuid.UUID, worker_id: str, attempt: int, *, in_workflow: bool = False
) -> Ack | Failure | None:
    """The report for the server, fenced by holder and attempt; None: nothing is reported."""
    match outcome:
        case Completed(result):
            return Ack(job_id, result, worker_id, attempt, in_workflow)
        case Failed(error, retry_after_ms):
            return Failure(job_id, error, worker_id, attempt, retry_after_ms=retry_after_ms)
        case Snoozed(delay_ms):
            return Failure(job_id, None, worker_id, attempt, snooze_ms=delay_ms)
        case HandedBack():
            return Failure(job_id, None, worker_id, attempt, requeue=True)
        case NotRun():
            return Failure(job_id, None, worker_id, attempt, requeue=True, unrun=True)
        case Acknowledged() | Forgotten():
            return None


def of_result(value: Any) -> Outcome:
    """Completed, unless the result is not JSON or too large; then the job fails and the error says why."""
    if value is None:
        return Completed(None)
    try:
        check_json(value, "result")
        text = jsontext.dumps(value)
    except (TypeError, ValueError) as error:
        return Failed({"type": "ResultNotSerializable", "code": "result_not_serializable", "message": str(error)})
    limit = ojs_settings.MAX_RESULT_BYTES
    if len(text) * 4 > limit and len(text.encode()) > limit:
        size = len(text.encode())
        message = f"The result has {size} bytes, {limit} are allowed: store it elsewhere and return a reference."
        return Failed({"type": "ResultTooLarge", "code": "RESULT_TOO_LARGE", "message": message})
    return Completed(text)


def of_exception(exc: BaseException, reports: Sequence[str] = ()) -> Outcome:
    """What an exception that left the handler means. `reports` is where the site's error reporters have it."""
    match exc:
        case Retry():
            error = errorobjects.from_exception(exc.__cause__ or exc) | {"code": "RETRY"}
            return Failed(error, exc.after_ms)
        case Discard():
            return Failed(errorobjects.from_exception(exc.__cause__ or exc) | {"code": "DISCARD", "message": str(exc)})
        case Snooze():
            return Snoozed(exc.delay_ms)
        case asyncio.CancelledError() if not str(exc):
            return Failed(errorobjects.from_exception(exc) | {"message": "The handler's task was cancelled."})
        case _:
            error = errorobjects.from_exception(exc)
            if reports:
                error["details"]["reports"] = list(reports)
            return Failed(error)


def of_interruption(reason: Interruption, limit_ms: int | None = None) -> Outcome:
    """What becomes of a run that was stopped from outside."""
    match reason:
        case Interruption.TIMEOUT:
            limit = (limit_ms or 0) / 1000
            return Failed({
                "type": "timeout", "code": "timeout", "timeout_kind": "execution", "limit_seconds": limit,
                "message": f"The job ran longer than its execution timeout of {limit:g} s.",
            })  # fmt: skip
        case Interruption.SHUTDOWN:
            return HandedBack()
        case Interruption.CANCELLED | Interruption.LOST:
            return Forgotten()


def report_progress(context: JobContext, progressed: Progress, using: str) -> bool:
    """Write one progress report; False if the job is no longer this run's."""
    (known,) = progress.report([_progress(context, progressed)], using=using)
    return isinstance(known, progress.Known) and known.accepted


def last_progress(contexts: Iterable[JobContext]) -> list[progress.Report]:
    """The newest progress reports of these runs, which have ended, as far as they are not written yet."""
    found = ((context, context.take_progress()) for context in contexts)
    return [_progress(context, progressed, last=True) for context, progressed in found if progressed is not None]


def _progress(context: JobContext, progressed: Progress, *, last: bool = False) -> progress.Report:
    percent, message = progressed
    worker_id = context.row["worker_id"]
    return progress.Report(context.id, percent, message, worker_id=worker_id, attempt=context.attempt, last=last)
