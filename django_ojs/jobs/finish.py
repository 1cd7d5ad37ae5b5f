"""ACK, FAIL and REQUEUE (core 7.3 and 7.4): a worker reports success or failure, or hands a job back.

After a failure the retry policy in force decides (`rules.retrypolicy.decide`), and one `match` turns its decision into
the job's next state. A worker may instead hand a job back, put it off (snooze), or say when to try again; then no
policy is asked. The scheduler ends jobs that overran their execution timeout through the same code.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import uuid
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from django.db import connections
from django.db.models import Q

from django_ojs import clock, garbage, hooks, jsontext, lockwaits, spellings
from django_ojs.access import UNLIMITED, Limits
from django_ojs.conf import ojs_settings
from django_ojs.database import atomic, database, retried
from django_ojs.errors import InvalidRequest, NotFound, OJSError, ResultTooLarge
from django_ojs.events import catalogue, log
from django_ojs.events.catalogue import Record
from django_ojs.faults import may_be_done
from django_ojs.groupcommit import LEFT_OUT, CommitGroup
from django_ojs.jobs import durableevents
from django_ojs.lifecycle import transitions
from django_ojs.lifecycle.ended import jobs_ended
from django_ojs.lifecycle.reservations import release
from django_ojs.lifecycle.transitions import (
    WITH_LIMITED,
    RowOrError,
    add_error,
    end_attempt,
    in_turns,
    outcome_of,
    refuse,
    settled_all,
    uncount,
)
from django_ojs.lifecycle.waking import slots_freed
from django_ojs.limits import ratelimits
from django_ojs.models import Job
from django_ojs.models.job import COLUMNS, LIMITED, JobRow
from django_ojs.rules import envelope, errorobjects, retrypolicy
from django_ojs.rules.durations import format_instant
from django_ojs.rules.rows import counted, holds, is_last_attempt
from django_ojs.states import State, Verb
from django_ojs.store import store_of
from django_ojs.store.values import Ack, EndedMembers

__all__ = ["Ack", "Failure", "ack", "ack_one", "apply_retry_policy", "fail", "fail_one"]


def ack_free(
    acks: Sequence[Ack], *, columns: Sequence[str] = COLUMNS, using: str | None = None
) -> list[RowOrError | Exception]:
    """`ack`, but a job that another transaction has locked is `LEFT_OUT`: its report is to be made again by itself.

    Raises the error of a lost race where nothing was changed, because more is locked than a job.
    """
    by_id = {ack.job_id: ack for ack in acks}
    with lockwaits.LockTimeout(lockwaits.SHARED, database(using)):
        found = _ack(list(by_id.values()), columns, database(using), skip_locked=True)
    outcomes = dict(zip(by_id, found, strict=True))
    return [outcomes[ack.job_id] for ack in acks]


def ack(acks: Sequence[Ack], *, columns: Sequence[str] = COLUMNS, using: str | None = None) -> list[RowOrError]:
    """Complete these jobs; return for each its row, or the error that refused it.

    Of the rows `columns` are returned, `id` among them. Of several reports on one job the last counts. Jobs of
    workflows are completed after the others: where that raises an error of the database, the others are completed.

    A result over the limit leaves its job active (jobs section 8). A late or foreign ACK changes nothing.
    """
    by_id = {ack.job_id: ack for ack in acks}
    found = settled_all(_ack(list(by_id.values()), columns, database(using)))
    outcomes = dict(zip(by_id, found, strict=True))
    return [outcomes[ack.job_id] for ack in acks]


def ack_one(ack_: Ack, *, using: str | None = None) -> JobRow:
    """Complete one job, together with those that other threads complete at this moment.

    Raises `NotFound`, `InvalidStateTransition` or `ResultTooLarge`.
    """
    return _acks.call(ack_, database(using))


def _ack_each(acks: Sequence[Ack], *, using: str) -> list[RowOrError | Exception]:
    """ACK for several callers. Of several reports on one job each counts after the one before."""
    skip_locked = len(acks) > 1
    return in_turns(
        acks, lambda some: _ack(some, COLUMNS, using, skip_locked=skip_locked, tries_again=False),
        about=lambda ack: ack.job_id,
    )  # fmt: skip


def _ack(
    acks: Sequence[Ack], columns: Sequence[str], using: str, *, skip_locked: bool = False, tries_again: bool = True
) -> list[RowOrError | Exception]:
    """ACK for different jobs.

    Most belong to no workflow. Where the store completes those in one statement, that is all, and it needs no
    transaction around it. The others follow with their workflows, in a transaction, as do those that another
    transaction has locked. `skip_locked`: those that are still locked then are `LEFT_OUT`, and all of them if that
    fails. `tries_again` False: it is the caller who runs a lost race again.
    """
    oversized = {ack.job_id: error for ack in acks if ack.result and (error := _oversized(ack.job_id, ack.result))}
    wanted = [ack for ack in acks if ack.job_id not in oversized]
    outcomes: dict[uuid.UUID, RowOrError | Exception] = {**oversized}
    if store_of(using).single_statements and not ojs_settings.EXTENSION_EVENTS:
        alone = [ack for ack in wanted if not ack.in_workflow]
        if len(alone) > 1 and connections[using].in_atomic_block:
            # It passes by jobs that are locked, and inside a transaction it would hold the others while it waits for
            # them: two that do so with the same jobs would wait for each other.
            alone = []
        done = _complete_alone(alone, columns, using=using) if alone else []
        outcomes |= {row["id"]: row for row in done}
        slots_freed(done, using)
        wanted = [ack for ack in wanted if ack.job_id not in outcomes]
    told = oversized if ojs_settings.EXTENSION_EVENTS else {}
    rejections = [(ack, oversized[ack.job_id]) for ack in acks if ack.job_id in told]
    if not wanted and not rejections:
        return [outcomes[ack.job_id] for ack in acks]
    act = retried(_complete_together) if tries_again and not skip_locked else _complete_together
    try:
        outcomes |= act(wanted, rejections, columns, skip_locked=skip_locked, using=using)
    except Exception as error:
        if len(outcomes) == len(oversized):
            raise
        # The others are completed. Where the connection was lost, these may be as well.
        again = skip_locked and not may_be_done(error)
        outcomes |= {ack.job_id: LEFT_OUT if again else error for ack in wanted}
    return [outcomes[ack.job_id] for ack in acks]


@retried
def _complete_alone(acks: Sequence[Ack], columns: Sequence[str], *, using: str) -> list[JobRow]:
    """Complete those of the jobs that belong to no workflow, in one statement; return their rows."""
    return _complete(acks, clock.now(using), columns, using, members=False)[0]


def _complete_together(
    acks: Sequence[Ack], rejections: Sequence[tuple[Ack, ResultTooLarge]], columns: Sequence[str], *, skip_locked: bool,
    using: str,
) -> dict[uuid.UUID, RowOrError | Exception]:  # fmt: skip
    """Complete these jobs with all that follows from it, in one transaction; refuse the others."""
    with atomic(using=using):
        now = clock.now(using)
        needed = RESULT_COLUMNS if ojs_settings.EXTENSION_EVENTS else ("workflow_id",)
        wanted = (*columns, *needed)
        done, found = _complete(acks, now, wanted, using, skip_locked=skip_locked) if acks else ([], None)
        if ojs_settings.EXTENSION_EVENTS:
            stored(done, now, using)
            rejected(rejections, now, using)
        with garbage.collection_paused(len(done)):
            jobs_ended(done, now, using, found)
        slots_freed(done, using)
        outcomes: dict[uuid.UUID, RowOrError | Exception] = {row["id"]: row for row in done}
        late = [ack for ack in acks if ack.job_id not in outcomes]
        return outcomes | (_refusals(late, using, passed_by=skip_locked) if late else {})


def _complete(
    acks: Sequence[Ack], now: dt.datetime, columns: Sequence[str], using: str, *, members: bool = True,
    skip_locked: bool = False,
) -> tuple[list[JobRow], EndedMembers | None]:  # fmt: skip
    """The store's part of ACK, and what listeners hear of it. With `members` it locks and reads workflows, too."""
    listening = [one for one in hooks.event_listeners if one.wants("job.completed")]
    heard = [name for listener in listening for name in listener.columns]
    returned = tuple(dict.fromkeys((*columns, LIMITED, *heard)))
    store, keep = store_of(using), ojs_settings.RESULTS_IN_EVENTS
    found = None
    if members:
        errors = ojs_settings.EXTENSION_EVENTS
        done, found = store.complete_members(
            acks, now, with_result=keep, columns=returned, errors=errors, skip_locked=skip_locked
        )
    else:
        done = store.complete(acks, now, with_result=keep, columns=returned, members=False)
    if listening:
        hooks.notify(listening, [catalogue.completed(row, now, with_result=False) for row in done], using)
    return done, found


def _oversized(job_id: uuid.UUID, result: str) -> ResultTooLarge | None:
    limit = ojs_settings.MAX_RESULT_BYTES
    size = len(result.encode()) if len(result) * 4 > limit else 0
    if size <= limit:
        return None
    details = {"actual_bytes": size, "max_bytes": limit, "field": "result", "job_id": str(job_id)}
    return ResultTooLarge(f"The result has {size} bytes; at most {limit} are kept.", details=details)


def _refusals(acks: Sequence[Ack], using: str, *, passed_by: bool) -> dict[uuid.UUID, Exception]:
    """Why each of these could not be completed; `LEFT_OUT` for one that could, where locked jobs were `passed_by`."""
    found = {row["id"]: row for row in Job.objects.using(using).filter(pk__in=[a.job_id for a in acks]).rows()}

    def why(ack: Ack) -> Exception:
        row = found.get(ack.job_id)
        if passed_by and _could_report(row, ack):
            return LEFT_OUT
        return why_not(row, ack.job_id, Verb.ACK, State.COMPLETED, ack)

    return {ack.job_id: why(ack) for ack in acks}


def _could_report(row: JobRow | None, claim: Ack) -> bool:
    """Whether the report fits the job as it is, unless the transaction that has locked it changes that."""
    return row is not None and holds(row, claim.worker_id, claim.attempt)


def why_not(row: JobRow | None, job_id: object, verb: Verb, target: State, claim: Ack) -> OJSError:
    """The refusal of a worker's report: unknown job, wrong state, or held by another worker."""
    if row is None:
        return NotFound.resource("job", str(job_id))
    if row["state"] == State.ACTIVE and not holds(row, claim.worker_id, claim.attempt):
        return refuse(row, verb, target, reason="not_claimant", worker_id=claim.worker_id)
    return refuse(row, verb, target)


@dataclasses.dataclass(slots=True)
class Failure:
    """One report of a worker. Lengths in milliseconds.

    Attributes:
        error: the error object as the worker sent it; required unless `requeue` or `snooze_ms`.
        requeue: hand the job back at once, without counting it as a failure.
        unrun: with `requeue` or `outage`: no handler ran, so that the attempt counts against nothing.
        retry_after_ms: wait so long instead of the policy's backoff.
        snooze_ms: run again after so long, as if this attempt had not been.
        waits: with `snooze_ms`: the names of steps that wait for events. Where one has ended since, the job is handed
            back at once instead.
        outage: with `requeue`: what was said when the database went away under the handler. The attempt counts as a
            loss; from the `POISON_LIMIT`th in a row on it is a failure, for it may be its own query that ends the
            connection.
        limits: what the caller reaches; it blocks no rate limit that jobs beyond share (`rate_limit_until`).
    """

    job_id: uuid.UUID
    error: Any = None
    worker_id: str = ""
    attempt: int | None = None
    requeue: bool = False
    unrun: bool = False
    retry_after_ms: int | None = None
    snooze_ms: int | None = None
    waits: tuple[str, ...] = ()
    outage: str = ""
    limits: Limits = UNLIMITED


#: What `_read` makes of the error of a failure.
_Error = tuple[dict[str, Any], dt.datetime | None]


def fail_free(failures: Sequence[Failure], *, using: str | None = None) -> list[RowOrError | Exception]:
    """`fail`, but a job that another transaction has locked is `LEFT_OUT`: its report is to be made again by itself.

    Raises the error of a lost race where nothing was changed, because more is locked than a job.
    """
    by_id = {failure.job_id: failure for failure in failures}
    with lockwaits.LockTimeout(lockwaits.SHARED, database(using)):
        found = _fail([_Reported(failure) for failure in by_id.values()], skip_locked=True, using=database(using))
    outcomes = dict(zip(by_id, found, strict=True))
    return [outcomes[failure.job_id] for failure in failures]


def fail(failures: Sequence[Failure], *, using: str | None = None) -> list[RowOrError]:
    """Apply these failures; return for each the job's row, or the error that refused the report.

    Of several reports on one job the last counts. Raises `InvalidRequest` for a malformed error object, before anything
    is changed.
    """
    by_id = {failure.job_id: failure for failure in failures}
    found = settled_all(retried(_fail)([_Reported(failure) for failure in by_id.values()], using=database(using)))
    outcomes = dict(zip(by_id, found, strict=True))
    return [outcomes[failure.job_id] for failure in failures]


def fail_one(failure: Failure, *, using: str | None = None) -> JobRow:
    """Apply one failure, together with those that other threads report at this moment.

    Raises `NotFound`, `InvalidStateTransition` or `InvalidRequest`.
    """
    return _failures.call(_Reported(failure), database(using))


class _Reported:
    """A failure whose error has been read. Raises `InvalidRequest` for one that is malformed."""

    def __init__(self, failure: Failure) -> None:
        self.job_id, self.failure = failure.job_id, failure
        self.error, self.until = ({}, None) if failure.requeue else _read(failure)


def _fail_each(reports: Sequence[_Reported], *, using: str) -> list[RowOrError | Exception]:
    """FAIL for several callers. Of several reports on one job each counts after the one before."""
    skip_locked = len(reports) > 1
    return in_turns(
        reports, lambda some: _fail(some, skip_locked=skip_locked, using=using), about=lambda one: one.job_id
    )


def _fail(
    reports: Sequence[_Reported], *, skip_locked: bool = False, using: str
) -> Sequence[RowOrError | Exception]:  # fmt: skip
    """FAIL for different jobs. `skip_locked`: those that another transaction has locked are `LEFT_OUT`."""
    by_id = {report.job_id: report for report in reports}
    with atomic(using=using):
        now = clock.now(using)
        released: list[JobRow] = []
        lost: list[JobRow] = []
        blocked: dict[str, dt.datetime] = {}
        failed: list[tuple[JobRow, _Reported]] = []

        def decide(row: JobRow) -> RowOrError:
            failure = by_id[row["id"]].failure
            claim = Ack(row["id"], None, failure.worker_id, failure.attempt)
            if not holds(row, claim.worker_id, claim.attempt):
                target = State.AVAILABLE if failure.requeue else State.RETRYABLE
                return why_not(row, row["id"], Verb.REQUEUE if failure.requeue else Verb.FAIL, target, claim)
            if failure.requeue:
                (lost if failure.outage else released).append(row)
            elif row["id"] in came:
                row["suspected"] = None  # a run has ended
                released.append(row)
            else:
                failed.append((row, by_id[row["id"]]))
            return row

        locked = {row["id"]: row for row in store_of(using).lock(by_id, columns=WITH_LIMITED, skip_locked=skip_locked)}
        waits = {job_id: by_id[job_id].failure.waits for job_id in locked if by_id[job_id].failure.waits}
        came = durableevents.came_meanwhile(waits, using) if waits else ()
        outcomes: dict[uuid.UUID, RowOrError | Exception] = {job_id: decide(row) for job_id, row in locked.items()}
        for job_id in by_id.keys() - locked.keys():
            outcomes[job_id] = NotFound.resource("job", str(job_id))
        if skip_locked and len(locked) < len(by_id):
            passed_by = Job.objects.using(using).filter(pk__in=by_id.keys() - locked.keys())
            outcomes |= dict.fromkeys(passed_by.values_list("pk", flat=True), LEFT_OUT)
        if released:
            unrun = {report.job_id for report in reports if report.failure.unrun}
            release(released, now, using, unrun=unrun.union(came))
        records: list[Record] = []
        for row in lost:
            records += _cut_off(row, by_id[row["id"]].failure, now)
        for row, report in failed:
            until = report.until
            if until and row["rate_key"] and not ratelimits.is_shared(row["rate_key"], report.failure.limits, using):
                blocked[row["rate_key"]] = max(until, blocked.get(row["rate_key"], until))
            records += _apply_failure(row, report.failure, dict(report.error), now)
        changed = [*lost, *(row for row, _ in failed)]  # some have ended, others wait for their next attempt
        store_of(using).update_jobs(Verb.FAIL, changed, transitions.FAIL_COLUMNS)
        if blocked:
            records += ratelimits.block(blocked, now, using)
        log.append(records, using)
        jobs_ended(changed, now, using)
        slots_freed(changed, using)
    return [outcomes[job_id] for job_id in by_id]


_acks: CommitGroup[Ack, JobRow] = CommitGroup(_ack_each, size=lambda ack: len(ack.result or ""))
_failures: CommitGroup[_Reported, JobRow] = CommitGroup(_fail_each)


@retried
def requeue(
    job_ids: Collection[uuid.UUID], *, worker_id: str = "", attempts: Mapping[uuid.UUID, int] | None = None,
    unrun: Collection[uuid.UUID] = (), skip_locked: bool = False, using: str | None = None,
) -> list[uuid.UUID]:  # fmt: skip
    """REQUEUE (orchestration 3.6): hand back those of the jobs that are active and held by `worker_id`, if it is given.

    Where `attempts` names a job's attempt, it must be the present one. The attempts of the jobs in `unrun`, which no
    handler ran, do not count against `max_attempts`. No error is recorded and no backoff applies. With `skip_locked`
    jobs that another transaction has locked are left alone. Returns the ids that were handed back.
    """
    using = database(using)
    with atomic(using=using):
        held = Q(pk__in=list(job_ids), state=State.ACTIVE) & (Q(worker_id=worker_id) if worker_id else Q())
        rows = store_of(using).lock_where(held, skip_locked=skip_locked)
        rows = [row for row in rows if (attempts or {}).get(row["id"], row["attempt"]) == row["attempt"]]
        release(rows, clock.now(using), using, unrun=unrun)
    return [row["id"] for row in rows]


#: Milliseconds that a job waits after its worker has lost a database for the first time; twice as long each time in a
#: row. A database that takes no connection refuses the next run as fast as this one.
OUTAGE_PAUSE = 1000


def _cut_off(row: JobRow, failure: Failure, now: dt.datetime) -> list[Record]:
    """Let a job under whose handler the database went away run again soon; change `row` and return its events.

    The attempt does not count. It is a loss, and from the `POISON_LIMIT`th in a row on a failure as any other, about
    which the retry policy decides: the handler may end its connection itself, or ask for a database that stays away.
    """
    if failure.unrun:
        said, losses = f"The database went away before the handler began: {failure.outage}", row["losses"]
    else:
        said, losses = f"The database went away while the handler ran: {failure.outage}", row["losses"] + 1
        row["suspected"] = None  # a run has ended
    message = errorobjects.cut(said, errorobjects.MAX_MESSAGE)
    error = errorobjects.server_error("database_outage", message, row["attempt"], now) | {"retryable": True}
    if losses > row["losses"]:
        if losses >= ojs_settings.POISON_LIMIT:
            records = apply_retry_policy(row, error, now, "workers")
            if row["state"] != State.DISCARDED:
                row["losses"] = losses  # the next is a failure, too, until a run ends in another way
            return records
        add_error(row, error)
    end_attempt(row, now, outcome_of(error), error)
    uncount(row)
    row["losses"] = losses
    policy = retrypolicy.from_json(row["retry"])
    pause = min(OUTAGE_PAUSE * 2 ** max(losses - 1, 0), retrypolicy.backoff_ms(policy, losses))
    if row["deadline_at"] is not None and now + dt.timedelta(milliseconds=pause) >= row["deadline_at"]:
        return transitions.give_up(row, now, "workers")
    transitions.back_off(row, pause, now)
    return [catalogue.retrying(row, now, "workers", error, previous_state=State.ACTIVE.value)]


def apply_retry_policy(row: JobRow, error: dict[str, Any], now: dt.datetime, component: str) -> list[Record]:
    """Let the policy decide about a failure of an active job; change `row` and return its events."""
    row["suspected"] = None  # a run has ended
    policy = _policy(row)
    error = {**error, "retryable": retrypolicy.is_retryable(policy, error)}  # what was decided, not what was reported
    attempts = counted(row)
    match retrypolicy.decide(policy, error, attempts):
        case retrypolicy.FailureOutcome.RETRY:
            return _back_off(row, error, retrypolicy.backoff_ms(policy, attempts), now, component)
        case retrypolicy.FailureOutcome.DISCARD:
            return _discard(row, error, now, component, dead_letter=False)
        case retrypolicy.FailureOutcome.DEAD_LETTER:
            return _discard(row, error, now, component, dead_letter=True)


def is_repeated(row: Mapping[str, Any], failure: Failure) -> bool:
    """Whether the job of this failure will be tried again, as far as `row` tells: what a worker asks before it reports.

    The last time at which the next attempt may start counts: where the job's time as a whole is over then, it is not.
    """
    error, _ = _read(failure)
    pause = _own_pause(row, failure)
    if pause is None:
        if retrypolicy.decide(_policy(row), error, counted(row)) is not retrypolicy.FailureOutcome.RETRY:
            return False
        pause = retrypolicy.backoff_ms(_policy(row), counted(row), random=lambda: 1.0)
    return row["deadline_at"] is None or clock.now() + dt.timedelta(milliseconds=pause) < row["deadline_at"]


def _own_pause(row: Mapping[str, Any], failure: Failure) -> int | None:
    """For how many milliseconds the handler lets its job wait; None: the retry policy decides, as about the last
    attempt, whatever the handler says."""
    return None if is_last_attempt(row) else failure.retry_after_ms


def _policy(row: Mapping[str, Any]) -> retrypolicy.RetryPolicy:
    """The retry policy of a job, with the `max_attempts` that it has now."""
    return dataclasses.replace(retrypolicy.from_json(row["retry"]), max_attempts=row["max_attempts"])


def _read(failure: Failure) -> _Error:
    """The error of a failure as it is stored, but for its attempt and time; and until when the service that
    it called wants no calls (`rate_limit_until`). A snoozed job has no error. Raises `InvalidRequest`."""
    if failure.snooze_ms is not None:
        return {}, ratelimits.rate_limit_until(failure.error)
    if failure.error is None:
        raise InvalidRequest(
            "`error` is required: an object with at least `message`.",
            details={"field": "error", "expected": "object", "received": None},
            hint="Send `error`, or `requeue: true` to hand the job back.",
        )
    error = spellings.read_error(failure.error, store_backtrace=ojs_settings.STORE_BACKTRACES)
    return error, ratelimits.rate_limit_until(failure.error)


#: A worker's word that a time limit is over counts if no more than this share of it is left, or this much time. The
#: instants between which the server measures may come from two processes that estimate the database's time, each for
#: itself; and on SQLite `clock` is up to 5 % slower after a wall clock was set back.
_SLACK, _MOST_SLACK = 0.05, dt.timedelta(seconds=60)


def _is_over(limit: dt.timedelta, elapsed: dt.timedelta) -> bool:
    return elapsed >= limit - min(limit * _SLACK, _MOST_SLACK)


def _apply_failure(row: JobRow, failure: Failure, error: dict[str, Any], now: dt.datetime) -> list[Record]:
    """Do what the report of an active job asks for: snooze it, let it wait as long as the handler says, or let the
    retry policy decide. Change `row` and return its events."""
    row["suspected"] = None
    if failure.snooze_ms is not None:
        return _snooze(row, failure.snooze_ms, now)
    kind = error.get("timeout_kind")
    elapsed = max(now - row["started_at"], dt.timedelta())
    deadline = row["deadline_at"]
    if kind == "total" and deadline is not None and _is_over(deadline - row["started_at"], elapsed):
        return transitions.give_up(row, now, "workers")
    error |= errorobjects.stamp(row["attempt"], now)
    if (pause := _own_pause(row, failure)) is not None:
        records = _back_off(row, {**error, "retryable": True}, pause, now, "workers")
    else:
        records = apply_retry_policy(row, error, now, "workers")
    limit = dt.timedelta(milliseconds=row["timeout_ms"] or 0)
    if kind == "execution" and limit and _is_over(limit, elapsed):  # else a worker has stopped it by a limit of its own
        facts = errorobjects.overrun(kind, limit, elapsed)
        records.append(catalogue.of_job("job.timeout", row, now, "workers", worker_id=row["worker_id"], **facts))
    if ojs_settings.EXTENSION_EVENTS and error["code"] == ResultTooLarge.code:  # our own worker looks itself
        records.append(rejection(row, now))
    return records


def _back_off(row: JobRow, error: dict[str, Any], delay_ms: int, now: dt.datetime, component: str) -> list[Record]:
    """Let a job that failed wait so long for its next attempt; change `row` and return its events. It is given up where
    its time as a whole would be over by then."""
    add_error(row, error)
    end_attempt(row, now, outcome_of(error), error)
    if row["deadline_at"] is not None and now + dt.timedelta(milliseconds=delay_ms) >= row["deadline_at"]:
        ends = transitions.give_up(row, now, component, after_failure=True)
        return [catalogue.failed(row, now, component, error), *ends]
    transitions.back_off(row, delay_ms, now)
    row["losses"] = 0
    return [
        catalogue.failed(row, now, component, error),
        catalogue.retrying(row, now, component, error),
    ]


def _discard(
    row: JobRow, error: dict[str, Any], now: dt.datetime, component: str, *, dead_letter: bool
) -> list[Record]:
    """Discard a job that failed, as a dead letter or not; change `row` and return its events."""
    ends = transitions.discard(row, error, now, component, dead_letter=dead_letter, after_failure=True)
    if ojs_settings.EXTENSION_EVENTS and error["retryable"]:  # only the number of attempts is against another one
        ends.insert(0, catalogue.retry_exhausted(row, now, component))
    return [catalogue.failed(row, now, component, error), *ends]


def _snooze(row: JobRow, delay_ms: int, now: dt.datetime) -> list[Record]:
    """Not a failure: no error is kept, and the attempt counts against no limit. The lost reservations stay counted."""
    uncount(row)
    transitions.back_off(row, delay_ms, now)
    reason = errorobjects.server_error("snoozed", "The handler asked to run again later.", row["attempt"], now)
    error = {**reason, "retryable": True}
    return [catalogue.retrying(row, now, "workers", error, previous_state=State.ACTIVE.value)]


# The events of results (jobs 10), written where `OJS["EXTENSION_EVENTS"]` asks for them: a result comes with every
# other job. `retention` writes `result.pruned`.

#: What the events need of a job.
RESULT_COLUMNS = (
    "id", "type", "queue", "state", "attempt", "worker_id", "trace_id", "workflow_id", "result", "result_ttl",
    "finished_at",
)  # fmt: skip


def stored(rows: Sequence[JobRow], now: dt.datetime, using: str) -> None:
    """Write the events of those of the completed jobs that have a result to keep."""
    kept = [row for row in rows if row["result"] is not None and envelope.result_ttl(row) != 0]
    log.append([_of_row("result.stored", row, now) for row in kept], using)


def rejected(refusals: Sequence[tuple[Ack, ResultTooLarge]], now: dt.datetime, using: str) -> None:
    """Write that these results were over the limit, for jobs that the caller may complete; the jobs stay active."""
    acks = {ack.job_id: ack for ack, _ in refusals}
    rows = {row["id"]: row for row in Job.objects.using(using).filter(pk__in=list(acks)).rows()} if acks else {}
    held = [(rows.get(ack.job_id), ack, error) for ack, error in refusals]
    records = [
        rejection(row, now, size_bytes=error.details["actual_bytes"], max_bytes=error.details["max_bytes"])
        for row, ack, error in held
        if row is not None and holds(row, ack.worker_id, ack.attempt)
    ]
    log.append(records, using)


def rejection(row: Mapping[str, Any], now: dt.datetime, **facts: Any) -> Record:
    return catalogue.of_job(
        "result.rejected", row, now, "workers", worker_id=row["worker_id"], reason="RESULT_TOO_LARGE", **facts
    )


@retried
def retrieved(rows: Sequence[JobRow], *, using: str | None = None) -> None:
    """Write that the endpoints for results showed the results of these jobs. INFO never writes."""
    if not ojs_settings.EXTENSION_EVENTS:
        return
    using = database(using)
    now = clock.now(using)
    there = [row for row in rows if row["state"] == State.COMPLETED and row["result"] is not None]
    shown = [row for row in there if not envelope.result_is_gone(row, now)]
    log.append([_of_row("result.retrieved", row, now)._replace(component="api", worker_id="") for row in shown], using)


def _of_row(type: str, row: Mapping[str, Any], now: dt.datetime) -> Record:
    end = envelope.result_expires_at(row)
    facts = {"size_bytes": jsontext.byte_length(row["result"]), "expires_at": format_instant(end) if end else None}
    return catalogue.of_job(type, row, now, "workers", worker_id=row["worker_id"], **facts)
