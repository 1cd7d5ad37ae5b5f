"""What the verbs share: the database, the lock, the refusal, the next instant to look at a job."""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from django.db import router, transaction

from django_ojs import jsontext, sql, states
from django_ojs.conf import ojs_settings
from django_ojs.errors import InvalidStateTransition, NotFound, OJSError
from django_ojs.models import Job
from django_ojs.models.job import COLUMNS, LIMITED, JobRow
from django_ojs.states import State, Verb

T = TypeVar("T")
Outcome = JobRow | OJSError


def database(using: str | None) -> str:
    """The alias of the database that jobs are written to."""
    return using or router.db_for_write(Job)


def each_locked(
    verb: Verb, ids: Sequence[uuid.UUID], using: str, decide: Callable[[JobRow], T | OJSError],
    columns: Sequence[str] | None = None,
) -> list[T | OJSError]:  # fmt: skip
    """Lock the jobs and let `decide` say what becomes of each; unknown ids are `NotFound`. No `columns`: all."""
    rows = {row["id"]: row for row in sql.store(using).lock(set(ids), columns=columns)}
    decided = {job_id: decide(row) for job_id, row in rows.items()}
    return [decided[job_id] if job_id in decided else NotFound.resource("job", str(job_id)) for job_id in ids]


def refuse(row: JobRow, verb: Verb, target: State, *, called: str = "", **facts: object) -> InvalidStateTransition:
    """The error that says why `verb`, which the caller knows as `called`, cannot take this job to `target`."""
    expected = [state.value for state in states.ordered(states.sources(verb)) if states.is_legal(verb, state, target)]
    facts = {"expected_state": expected[0] if len(expected) == 1 else expected} | facts
    return InvalidStateTransition.of(str(row["id"]), row["state"], verb, target, called=called, **facts)


def only(outcomes: Iterable[T | OJSError]) -> T:
    """The single outcome of a verb on one job; raises it when it is an error."""
    (outcome,) = outcomes
    if isinstance(outcome, OJSError):
        raise outcome
    return outcome


def wake_at(row: JobRow) -> dt.datetime | None:
    """The next instant at which time alone changes this job (see `operations.due`)."""
    moments: tuple[dt.datetime | None, ...] = ()
    match row["state"]:
        case State.ACTIVE:
            moments = (row["visible_until"], row["timeout_at"], row["deadline_at"])
        case State.SCHEDULED | State.RETRYABLE:
            moments = (row["due_at"], *_ends(row))
        case State.AVAILABLE | State.PENDING:
            moments = _ends(row)
    return min((moment for moment in moments if moment is not None), default=None)


def _ends(row: JobRow) -> tuple[dt.datetime | None, ...]:
    """When a waiting job ends unless something happens before: what has started once need not start in time."""
    return (row["expires_at"], row["deadline_at"], row["start_by"] if row["attempt"] == 0 else None)


def make_available(row: JobRow, now: dt.datetime, using: str) -> None:
    """Make `row` wait in its queue again, behind those that wait there already."""
    from django_ojs import clock

    row.update(state=State.AVAILABLE.value, enqueued_at=clock.stamps(1, using), started_at=None, worker_id="")
    row.update(visible_until=None, timeout_at=None)
    row["wake_at"] = wake_at(row)


def add_error(row: JobRow, error: dict[str, Any]) -> None:
    """Append to the history, keeping the newest (L1: at least ten)."""
    history = jsontext.loads(row["errors"]) if row["errors"] else []
    row["errors"] = jsontext.dumps([*history, error][-ojs_settings.ERROR_HISTORY :])


#: A whole job, and whether its end may let others start.
WITH_LIMITED = (*COLUMNS, LIMITED)
#: What leaving `active` for the queue writes.
RELEASE_COLUMNS = ("state", "enqueued_at", "started_at", "worker_id", "visible_until", "timeout_at", "wake_at")

atomic = transaction.atomic
