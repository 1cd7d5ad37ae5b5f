"""How a run ended, as a value; one `match` in `report()` turns it into what the server is told.

A handler says it by returning, by raising one of the three `directives`, or by raising anything else.
"""

from __future__ import annotations

import asyncio
import dataclasses
import enum
import uuid
from typing import Any, TypeAlias

from django_ojs import jsontext
from django_ojs.client import arguments
from django_ojs.conf import ojs_settings
from django_ojs.operations.ack import Ack
from django_ojs.operations.fail import Failure
from django_ojs.policies import errorobjects
from django_ojs.worker.directives import Discard, Retry, Snooze


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
    """Completed, and the server knows: a transactional handler tells it in its own transaction."""


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
class Forgotten:
    """The job was cancelled, or is somebody else's by now: there is nobody to report to."""


Outcome: TypeAlias = Completed | Acknowledged | Failed | Snoozed | HandedBack | Forgotten


def report(outcome: Outcome, job_id: uuid.UUID, worker_id: str, attempt: int) -> Ack | Failure | None:
    """What the server is told, fenced by holder and attempt; None: nothing."""
    match outcome:
        case Completed(result):
            return Ack(job_id, result, worker_id, attempt)
        case Failed(error, retry_after_ms):
            return Failure(job_id, error, worker_id, attempt, retry_after_ms=retry_after_ms)
        case Snoozed(delay_ms):
            return Failure(job_id, None, worker_id, attempt, snooze_ms=delay_ms)
        case HandedBack():
            return Failure(job_id, None, worker_id, attempt, requeue=True)
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
