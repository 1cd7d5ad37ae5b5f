"""Say how a run ended, as a value, and turn it into the report that the server gets.

A handler ends by returning, by raising `Retry`, `Discard` or `Snooze`, or by raising anything else. One `match` in
`report()` decides what is reported. The progress reports of handlers are here, too.
"""

from __future__ import annotations

import asyncio
import dataclasses
import enum
import uuid
from collections.abc import Iterable
from typing import Any, TypeAlias

from django_ojs import jsontext
from django_ojs.client import arguments
from django_ojs.client.context import Discard, JobContext, Progress, Retry, Snooze
from django_ojs.conf import ojs_settings
from django_ojs.jobs import progress
from django_ojs.jobs.finish import Ack, Failure
from django_ojs.rules import errorobjects


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


def report(outcome: Outcome, job_id: uuid.UUID, worker_id: str, attempt: int) -> Ack | Failure | None:
    """The report for the server, fenced by holder and attempt; None: nothing is reported."""
    match outcome:
        case Completed(result):
            return Ack(job_id, result, worker_id, attempt)
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
        arguments.check(value, "result")
        text = jsontext.dumps(value)
    except (TypeError, ValueError) as error:
        return Failed({"type": "ResultNotSerializable", "code": "result_not_serializable", "message": str(error)})
    limit = ojs_settings.MAX_RESULT_BYTES
    if len(text) * 4 > limit and len(text.encode()) > limit:
        size = len(text.encode())
        message = f"The result has {size} bytes, {limit} are allowed: store it elsewhere and return a reference."
        return Failed({"type": "ResultTooLarge", "code": "RESULT_TOO_LARGE", "message": message})
    return Completed(text)


def of_exception(exc: BaseException) -> Outcome:
    """What an exception that left the handler means."""
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
            return Failed(errorobjects.from_exception(exc))


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
