"""Changes the row of a job from one state to another and makes the events: one function for each arrow of `states.py`.

The functions are named by what happens to the job: `discard` and `back_off` are FAIL, `release` is REQUEUE, `lose` is
RESCUE, `revive` is RETRY, and the others have the names of their verbs. The verbs lock the rows (`each_locked`), decide
which arrow each takes, and write the columns named here. FETCH and ACK, the hot path, are statements of `store`.
"""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, TypeVar

from django.db.models import QuerySet

from django_ojs import clock, jsontext, states
from django_ojs.conf import ojs_settings
from django_ojs.errors import Conflict, InvalidStateTransition, NotFound, OJSError
from django_ojs.events import catalogue
from django_ojs.events.catalogue import Record
from django_ojs.groupcommit import passed_on
from django_ojs.messages import phrase
from django_ojs.models import Job
from django_ojs.models.attempt import JobAttempt
from django_ojs.models.job import COLUMNS, LIMITED, JobRow
from django_ojs.rules import errorobjects
from django_ojs.rules.durations import format_instant
from django_ojs.rules.rows import finish, moment
from django_ojs.states import State, Verb
from django_ojs.store import store_of
from django_ojs.store.conditions import FINISH_COLUMNS
from django_ojs.store.values import ENDED_ATTEMPT, EndedAttempt

Outcome = JobAttempt.Outcome
T = TypeVar("T")
K = TypeVar("K", uuid.UUID, int)
R = TypeVar("R")
RowOrError = JobRow | OJSError
#: A whole job, and whether its end may let others start.
WITH_LIMITED = (*COLUMNS, LIMITED)
#: What a discard writes.
DISCARD_COLUMNS = (*FINISH_COLUMNS, "errors", "dead_letter", "retry_delay_ms", "losses")
#: What CANCEL writes.
CANCEL_COLUMNS = (*FINISH_COLUMNS, "retry_delay_ms")
#: What entering `available` writes, whatever the job comes from.
AVAILABLE_COLUMNS = ("state", "enqueued_at", "due_at", "wake_at")
#: What PROMOTE writes for a scheduled job; for a retryable one it is `AVAILABLE_COLUMNS`.
PROMOTE_COLUMNS = (*AVAILABLE_COLUMNS, "extra")
#: What ACTIVATE writes.
ACTIVATE_COLUMNS = (*PROMOTE_COLUMNS, "activated_at")
#: What leaving `active` for the queue writes.
RELEASE_COLUMNS = (*AVAILABLE_COLUMNS, "started_at", "worker_id", "visible_until", "timeout_at", "uncounted",
                   "suspected")  # fmt: skip
#: What a failure may write.
FAIL_COLUMNS = (*DISCARD_COLUMNS, "uncounted", "suspected")
#: What a lost reservation writes.
LOST_COLUMNS = tuple(dict.fromkeys((*RELEASE_COLUMNS, *DISCARD_COLUMNS)))
#: What RETRY writes, but for what an operator overrides.
REVIVE_COLUMNS = (*RELEASE_COLUMNS, "attempt", "round", "errors", "extra", "finished_at", "dead_letter",
                  "retry_delay_ms", "losses", "expires_at", "start_by", "deadline_at")  # fmt: skip


def discard(
    row: JobRow, error: dict[str, Any], now: dt.datetime, component: str, *, dead_letter: bool = True,
    after_failure: bool = False,
) -> list[Record]:  # fmt: skip
    """FAIL for good: discard the job with `error` as the last of its errors; change `row` and return the events.

    `after_failure`: a `job.failed` comes before them, which reports that the job was active.
    """
    was = {} if after_failure else {"previous_state": row["state"]}
    _enter_discarded(row, error, now, dead_letter)
    return [catalogue.discarded(row, now, component, error, **was), *_in_dead_letters(row, now, component)]


def discard_because(
    row: JobRow, kind: str, message: str, now: dt.datetime, component: str, *, after_failure: bool = False, **facts: Any
) -> list[Record]:
    """Discard the job for a reason that the server found: an error of type `kind` with `facts`, worth no retry."""
    return discard(row, _final(row, kind, message, now, facts), now, component, after_failure=after_failure)


def give_up(row: JobRow, now: dt.datetime, component: str, *, after_failure: bool = False) -> list[Record]:
    """Discard a job whose `total_timeout` leaves no time for it, whatever its retries (binding 5)."""
    facts = errorobjects.overrun("total", row["deadline_at"] - row["created_at"], now - row["created_at"])
    message = f"The job's total timeout of {facts['limit_seconds']:g} s leaves no time for it."
    discarded, *more = discard_because(
        row, "total_timeout", message, now, component, after_failure=after_failure, **facts
    )
    timed_out = catalogue.of_job("job.total_timeout", row, now, component, worker_id=row["worker_id"], **facts)
    return [discarded, timed_out, *more]


def expire(row: JobRow, kind: str, message: str, end: dt.datetime, now: dt.datetime, **facts: Any) -> list[Record]:
    """EXPIRE: discard a job that did not start before `end`, as `discard_because`, but the event is `job.expired`."""
    was = row["state"]
    _enter_discarded(row, _final(row, kind, message, now, facts), now, dead_letter=True)
    return [catalogue.expired(row, now, was, end), *_in_dead_letters(row, now, "scheduler")]


def cancel(row: JobRow, now: dt.datetime, by: str, reason: str) -> Record:
    """CANCEL: change `row` and return the event."""
    was = row["state"]
    end_attempt(row, now, Outcome.CANCELLED)
    finish(row, State.CANCELLED, now)
    row["retry_delay_ms"] = None
    return catalogue.cancelled(row, now, by, reason, was)


def make_available(row: JobRow, using: str) -> None:
    """Let the job wait in its queue for a worker, behind those that wait there already."""
    row.update(state=State.AVAILABLE.value, enqueued_at=clock.stamps(1, clock.now(using)), due_at=None)
    row["wake_at"] = wake_at(row)


def release(row: JobRow, now: dt.datetime, using: str) -> None:
    """REQUEUE: let an active job wait in its queue again; its attempt keeps its number."""
    end_attempt(row, now, Outcome.RELEASED)
    row.update(started_at=None, worker_id="", visible_until=None, timeout_at=None)
    make_available(row, using)


def lose(
    row: JobRow, now: dt.datetime, using: str, kind: str, message: str, *, counts: bool = True, **more: Any
) -> list[Record]:
    """RESCUE: let an active job that lost its worker wait in its queue again, its attempt keeps its number (L1-VT-002).

    After `POISON_LIMIT` losses in a row the job is discarded instead, with the error `visibility_timeout` whatever the
    last loss was: it may be what kills its workers. A loss that does not count (`counts`) is told and no more. `more`
    is known of the loss, for its error and its event.
    """
    row["losses"] += counts
    limit = dt.timedelta(milliseconds=row["lease_ms"])
    facts = errorobjects.overrun("visibility", limit, now - row["started_at"]) | more
    if counts and row["losses"] >= ojs_settings.POISON_LIMIT:
        message = f"{message} It happened {row['losses']} times in a row, so the job is given up."
        return discard_because(row, "visibility_timeout", message, now, "scheduler", **facts)
    error = errorobjects.server_error(kind, message, row["attempt"], now, **facts)
    add_error(row, error)
    end_attempt(row, now, outcome_of(error), error)
    worker_id = row["worker_id"]
    release(row, now, using)
    return [catalogue.of_job("job.stalled", row, now, "scheduler", worker_id=worker_id, **facts)]


def back_off(row: JobRow, delay_ms: int, now: dt.datetime) -> None:
    """FAIL, to be tried again: let an active job wait so many milliseconds; then `promote` makes it available.

    Its attempt is snoozed, unless `end_attempt` has said something else of it.
    """
    end_attempt(row, now, Outcome.SNOOZED)
    row.update(state=State.RETRYABLE.value, retry_delay_ms=delay_ms, due_at=now + dt.timedelta(milliseconds=delay_ms))
    row.update(visible_until=None, timeout_at=None)
    row["wake_at"] = wake_at(row)


def promote(row: JobRow, now: dt.datetime, component: str, using: str) -> list[Record]:
    """PROMOTE: end the wait of a scheduled or retryable job; change `row` and return the events.

    The end of a backoff has none of its own (events 1.7).
    """
    was, due_at = row["state"], row["due_at"]
    make_available(row, using)
    if was == State.RETRYABLE:
        return []
    forget_schedule(row)
    return [catalogue.enqueued(row, now, component, scheduled_at=format_instant(due_at))]


def activate(row: JobRow, now: dt.datetime, using: str) -> Record:
    """ACTIVATE: let a pending job wait for its start if that is still ahead, else for a worker. Change `row` and return
    the event."""
    was = row["state"]
    row["activated_at"] = now
    if row["due_at"] is not None and row["due_at"] > now:
        row["state"] = State.SCHEDULED.value
        row["wake_at"] = wake_at(row)
        return catalogue.scheduled(row, now, "api", previous_state=was)
    if row["due_at"] is not None:
        forget_schedule(row)
    make_available(row, using)
    return catalogue.enqueued(row, now, "api", previous_state=was)


def revive(row: JobRow, now: dt.datetime, using: str) -> None:
    """RETRY: let a discarded job begin anew, with attempt 0, no errors but as `x_previous_errors`, and no end that has
    passed."""
    forget_schedule(row)
    extra = jsontext.loads(row["extra"]) if row["extra"] else {}
    if row["errors"]:
        before = extra.get("x_previous_errors")  # a client may have sent one of its own, of any kind
        errors = [*(before if isinstance(before, list) else []), *jsontext.loads(row["errors"])]
        extra["x_previous_errors"] = errors[-ojs_settings.ERROR_HISTORY :]
    for name in ("expires_at", "start_by", "deadline_at"):
        if row[name] is not None and row[name] <= now:
            row[name] = None
            extra.pop(name, None)  # the times of the other two are not the client's
    row.update(
        attempt=0, round=(row["round"] or 0) + 1, errors="", finished_at=None, dead_letter=False, retry_delay_ms=None,
        losses=0, uncounted=None, suspected=None, extra=jsontext.dumps(extra) if extra else "",
    )  # fmt: skip
    release(row, now, using)  # the job is not active, so no attempt ends


def forget_schedule(row: JobRow) -> None:
    """Drop the `scheduled_at` that the job has waited for (core 6.3); the event of its promotion carries it on."""
    if '"scheduled_at"' in row["extra"]:
        extra = jsontext.loads(row["extra"])
        extra.pop("scheduled_at", None)
        row["extra"] = jsontext.dumps(extra) if extra else ""


def _enter_discarded(row: JobRow, error: dict[str, Any], now: dt.datetime, dead_letter: bool) -> None:
    add_error(row, error)
    end_attempt(row, now, outcome_of(error), error)
    finish(row, State.DISCARDED, now)
    row.update(dead_letter=dead_letter, retry_delay_ms=None, losses=0)


def _in_dead_letters(row: JobRow, now: dt.datetime, component: str) -> list[Record]:
    """What tells that a job which has just been discarded is a dead letter now; nothing unless the site asks for it."""
    if not (ojs_settings.EXTENSION_EVENTS and row["dead_letter"]):
        return []
    return [catalogue.of_job(kind, row, now, component) for kind in ("dead_letter.added", "job.dead_lettered")]


def _final(row: JobRow, kind: str, message: str, now: dt.datetime, facts: dict[str, Any]) -> dict[str, Any]:
    return errorobjects.server_error(kind, message, row["attempt"], now, **{**facts, "retryable": False})


# What the verbs do alike with rows: lock and refuse them, and note when time changes them next


def each_locked(
    ids: Sequence[uuid.UUID], using: str, decide: Callable[[JobRow], T | OJSError],
    columns: Sequence[str] | None = None,
) -> list[T | OJSError]:  # fmt: skip
    """Lock the jobs and let `decide` say what becomes of each; unknown ids are `NotFound`. No `columns`: all."""
    rows = {row["id"]: row for row in store_of(using).lock(set(ids), columns=columns)}
    decided = {job_id: decide(row) for job_id, row in rows.items()}
    return [decided[job_id] if job_id in decided else NotFound.resource("job", str(job_id)) for job_id in ids]


def still_fitting(
    rows: QuerySet[Any], ids: Sequence[K], using: str, *, skip_locked: bool = False
) -> set[K]:  # fmt: skip
    """Lock those of the rows `ids` that `rows` still holds, in the order of their ids, and return their ids.

    What was listed before the lock may have changed since: a dead letter may have been retried. The lock is held until
    the end of the caller's transaction. With `skip_locked`, rows that another transaction has locked do not count.
    """
    store_of(using).begin_writing()
    skips = skip_locked and store_of(using).skip_locked
    wanted = rows.filter(pk__in=list(ids)).order_by("pk").select_for_update(skip_locked=skips)
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


def in_turns(
    reports: Sequence[R], act: Callable[[Sequence[R]], Sequence[T | Exception]], *, about: Callable[[R], Hashable]
) -> list[T | Exception]:
    """`act` on reports about different jobs, and then on the second ones about the same jobs, and so on; the outcomes
    in the order of `reports`, as if they had come one after the other. `about` tells the job, or the worker.

    Raises what `act` raises while nothing has been changed; later it becomes the outcome of those that it concerns.
    """
    outcomes: dict[int, T | Exception] = {}
    left = list(range(len(reports)))
    while left:
        first = {about(reports[index]): index for index in reversed(left)}
        now = sorted(first.values())
        try:
            found = act([reports[index] for index in now])
        except Exception as error:
            if not outcomes:
                raise
            found = [passed_on(error)] * len(now)
        outcomes |= zip(now, found, strict=True)
        left = [index for index in left if index not in outcomes]
    return [outcomes[index] for index in range(len(reports))]


def settled_all(outcomes: Iterable[T | Exception]) -> list[T | OJSError]:
    """The outcomes of a verb on many jobs; raises the first that is another error than a refusal."""
    settled: list[T | OJSError] = []
    for outcome in outcomes:
        if isinstance(outcome, Exception) and not isinstance(outcome, OJSError):
            raise outcome
        settled.append(outcome)
    return settled


def wake_at(row: JobRow) -> dt.datetime | None:
    """The next instant at which time alone changes this job (see `jobs.timers`)."""
    state = row["state"]
    if state in _WAITING:
        due_at = row["due_at"] if state in _TIMED else None
        start_by = row["start_by"] if row["attempt"] == 0 else None  # what has started once need not start in time
        moments = (due_at, row["expires_at"], row["deadline_at"], start_by)
    elif state == State.ACTIVE:
        moments = (row["visible_until"], row["timeout_at"], row["deadline_at"], None)
    else:
        return None
    return min(filter(None, moments), default=None)


_TIMED = frozenset({State.SCHEDULED, State.RETRYABLE})  #: which wait for `due_at`
_WAITING = _TIMED | {State.AVAILABLE, State.PENDING}


def uncount(row: JobRow) -> None:
    """Let the present attempt count against no limit."""
    row["uncounted"] = (row["uncounted"] or 0) + 1


#: What came of an attempt by the type of the error that ended it; of any other it has failed.
_OUTCOMES = {
    "timeout": Outcome.TIMED_OUT, "total_timeout": Outcome.TIMED_OUT, "stalled": Outcome.LOST,
    "visibility_timeout": Outcome.LOST, "worker_death": Outcome.LOST, "database_outage": Outcome.LOST,
}  # fmt: skip


def outcome_of(error: dict[str, Any]) -> str:
    """What came of an attempt that this error has ended."""
    return _OUTCOMES.get(error["type"], Outcome.FAILED)


def end_attempt(row: JobRow, now: dt.datetime, outcome: str, error: dict[str, Any] | None = None) -> None:
    """Let `update_jobs` record what came of the attempt of an active job, before the row shows that it has ended.

    Of several outcomes of one attempt the first counts. A job that is not active has no attempt to end.
    """
    if row["state"] != State.ACTIVE or not ojs_settings.attempts_kept:
        return
    number = row["round"] or 0, row["attempt"]
    before: EndedAttempt | None = row.get(ENDED_ATTEMPT)
    if before is None or (before.round, before.attempt) != number:
        row[ENDED_ATTEMPT] = EndedAttempt(
            row["id"], *number, row["worker_id"], row["started_at"], moment(row, now), str(outcome),
            jsontext.dumps(error) if error else "",
        )  # fmt: skip


def add_error(row: JobRow, error: dict[str, Any]) -> None:
    """Append to the history, keeping the newest (L1: at least ten)."""
    history = jsontext.loads(row["errors"]) if row["errors"] else []
    row["errors"] = jsontext.dumps([*history, error][-ojs_settings.ERROR_HISTORY :])
