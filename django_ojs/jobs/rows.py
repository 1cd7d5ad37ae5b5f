"""What the verbs do alike with the rows of jobs: lock and refuse them, and note when time changes them next."""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from django.db.models import QuerySet

from django_ojs import jsontext, states
from django_ojs.conf import ojs_settings
from django_ojs.errors import Conflict, InvalidStateTransition, NotFound, OJSError
from django_ojs.messages import phrase
from django_ojs.models import Job
from django_ojs.models.job import COLUMNS, LIMITED, JobRow
from django_ojs.states import State, Verb
from django_ojs.store import store_of

T = TypeVar("T")
Outcome = JobRow | OJSError


def each_locked(
    verb: Verb, ids: Sequence[uuid.UUID], using: str, decide: Callable[[JobRow], T | OJSError],
    columns: Sequence[str] | None = None,
) -> list[T | OJSError]:  # fmt: skip
    """Lock the jobs and let `decide` say what becomes of each; unknown ids are `NotFound`. No `columns`: all."""
    rows = {row["id"]: row for row in store_of(using).lock(set(ids), columns=columns)}
    decided = {job_id: decide(row) for job_id, row in rows.items()}
    return [decided[job_id] if job_id in decided else NotFound.resource("job", str(job_id)) for job_id in ids]


def still_fitting(
    jobs: QuerySet[Job], ids: Sequence[uuid.UUID], using: str, *, skip_locked: bool = False
) -> set[uuid.UUID]:  # fmt: skip
    """Lock those of the jobs `ids` that `jobs` still holds, in the order of their ids, and return their ids.

    What was listed before the lock may have changed since: a dead letter may have been retried. The lock is held until
    the end of the caller's transaction. With `skip_locked`, jobs that another transaction has locked do not count.
    """
    store_of(using).begin_writing()
    skips = skip_locked and store_of(using).skip_locked
    wanted = jobs.filter(pk__in=list(ids)).order_by("pk").select_for_update(skip_locked=skips)
    return set(wanted.values_list("pk", flat=True))


def done_where_fitting(
    act: Callable[[Sequence[uuid.UUID]], Sequence[T | OJSError]],
    jobs: QuerySet[Job], ids: Sequence[uuid.UUID], using: str,
) -> list[T | OJSError]:  # fmt: skip
    """`act` on those of the jobs `ids` that `jobs` still holds under the lock; the others are refused as `Conflict`.

    For operators' acts on all jobs that a filter means, of which the list is older than the act. In the caller's
    transaction.
    """
    fitting = still_fitting(jobs, ids, using)
    kept = [job_id for job_id in ids if job_id in fitting]
    done = dict(zip(kept, act(kept), strict=True)) if kept else {}
    return [done[job_id] if job_id in done else _changed_since(job_id) for job_id in ids]


def _changed_since(job_id: uuid.UUID) -> Conflict:
    return Conflict(
        phrase("The job %(job_id)s has changed and does not fit the filter any more.", job_id=str(job_id)),
        details={"resource_type": "job", "resource_id": str(job_id)},
        hint="It was left as it is: read it to see what became of it.",
    )


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
    """The next instant at which time alone changes this job (see `jobs.timers`)."""
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


def counted(row: JobRow) -> int:
    """How many of the job's attempts count against its `max_attempts`."""
    return int(row["attempt"]) - (row["uncounted"] or 0)


def uncount(row: JobRow) -> None:
    """Let the present attempt count against no limit."""
    row["uncounted"] = (row["uncounted"] or 0) + 1


def add_error(row: JobRow, error: dict[str, Any]) -> None:
    """Append to the history, keeping the newest (L1: at least ten)."""
    history = jsontext.loads(row["errors"]) if row["errors"] else []
    row["errors"] = jsontext.dumps([*history, error][-ojs_settings.ERROR_HISTORY :])


#: A whole job, and whether its end may let others start.
WITH_LIMITED = (*COLUMNS, LIMITED)
