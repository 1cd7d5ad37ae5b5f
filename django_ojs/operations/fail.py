"""FAIL (core 7.4): a worker reports a failure, or hands a job back.

The retry policy in force decides (`policies.retry.decide`); one `match` turns its outcome into the job's
next state. The scheduler ends jobs that overran their execution timeout through the same code.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import uuid
from collections.abc import Sequence
from typing import Any

from django_ojs import clock, sql
from django_ojs.conf import ojs_settings
from django_ojs.contention import retried
from django_ojs.errors import InvalidRequest, ResultTooLarge
from django_ojs.events import catalogue, log
from django_ojs.events.catalogue import Record
from django_ojs.models.job import JobRow
from django_ojs.operations import advance, deadletters, limits, results
from django_ojs.operations.ack import why_not
from django_ojs.operations.common import (
    RELEASE_COLUMNS,
    WITH_LIMITED,
    Outcome,
    add_error,
    atomic,
    database,
    each_locked,
    make_available,
    only,
    wake_at,
)
from django_ojs.policies import errorobjects
from django_ojs.policies import retry as policies
from django_ojs.sql.base import Ack
from django_ojs.sql.rows import FINISH_COLUMNS, finish, holds
from django_ojs.states import State, Verb
from django_ojs.waking import slots_freed, wake_workers


@dataclasses.dataclass(slots=True)
class Failure:
    """One report of a worker. Lengths in milliseconds.

    Attributes:
        error: the error object as the worker sent it; required unless `requeue` or `snooze_ms`.
        requeue: hand the job back at once, without counting it as a failure.
        retry_after_ms: wait so long instead of the policy's backoff.
        snooze_ms: run again after so long, as if this attempt had not been.
    """

    job_id: uuid.UUID
    error: Any = None
    worker_id: str = ""
    attempt: int | None = None
    requeue: bool = False
    retry_after_ms: int | None = None
    snooze_ms: int | None = None


#: What any failure may write.
FAIL_COLUMNS = tuple(dict.fromkeys((*FINISH_COLUMNS, "errors", "retry_delay_ms", "dead_letter", "losses",
                                    "max_attempts")))  # fmt: skip


@retried
def fail(failures: Sequence[Failure], *, using: str | None = None) -> list[Outcome]:
    """Settle these failures; return for each the job's row, or the error that refused the report.

    Raises `InvalidRequest` for a malformed error object, before anything is changed.
    """
    using = database(using)
    by_id = {failure.job_id: failure for failure in failures}
    for failure in by_id.values():
        _check(failure)
    with atomic(using=using):
        now = clock.now(using)
        released: list[JobRow] = []
        blocked: dict[str, dt.datetime] = {}
        failed: list[tuple[JobRow, Failure]] = []

        def decide(row: JobRow) -> Outcome:
            failure = by_id[row["id"]]
            if not holds(row, failure.worker_id, failure.attempt):
                claim = Ack(row["id"], None, failure.worker_id, failure.attempt)
                target = State.AVAILABLE if failure.requeue else State.RETRYABLE
                return why_not(row, row["id"], Verb.REQUEUE if failure.requeue else Verb.FAIL, target, claim)
            if failure.requeue:
                released.append(row)
            else:
                failed.append((row, failure))
            return row

        outcomes = each_locked(Verb.FAIL, [failure.job_id for failure in failures], using, decide, WITH_LIMITED)
        release(released, now, using)
        records: list[Record] = []
        for row, failure in failed:
            until = limits.rate_limit_until(failure.error)
            if until and row["rate_key"]:
                blocked[row["rate_key"]] = max(until, blocked.get(row["rate_key"], until))
            records += _settle(row, failure, now)
        sql.store(using).update_jobs(Verb.FAIL, [row for row, _ in failed], FAIL_COLUMNS)
        if blocked:
            records += limits.block(blocked, now, using)
        log.append(records, using)
        advance.settled([row for row, _ in failed], now, using)
        slots_freed([row for row, _ in failed], using)
    return outcomes


def fail_one(failure: Failure, *, using: str | None = None) -> JobRow:
    """Settle one failure. Raises `NotFound`, `InvalidStateTransition` or `InvalidRequest`."""
    return only(fail([failure], using=using))


def release(rows: Sequence[JobRow], now: dt.datetime, using: str) -> None:
    """Hand locked active jobs back to their queues: no error, no backoff, the attempt keeps its number."""
    for row in rows:
        make_available(row, now, using)
    sql.store(using).update_jobs(Verb.REQUEUE, rows, RELEASE_COLUMNS)
    if rows:
        wake_workers(using)


def settle_error(row: JobRow, error: dict[str, Any], now: dt.datetime, component: str) -> list[Record]:
    """Let the policy decide about a failure of an active job; change `row` and return its events."""
    policy = policies.from_json(row["retry"])
    policy = dataclasses.replace(policy, max_attempts=row["max_attempts"])
    match policies.decide(policy, error, row["attempt"]):
        case policies.Outcome.RETRY:
            return _retry(row, error, policies.backoff_ms(policy, row["attempt"]), now, component)
        case policies.Outcome.DISCARD:
            return _discard(row, error, now, component, dead_letter=False)
        case _:
            return _discard(row, error, now, component, dead_letter=True)


def _check(failure: Failure) -> None:
    if failure.requeue or failure.snooze_ms is not None:
        return
    if failure.error is None:
        raise InvalidRequest(
            "`error` is required: an object with at least `message`.",
            details={"field": "error", "expected": "object", "received": None},
            hint="Send `error`, or `requeue: true` to hand the job back.",
        )
    errorobjects.normalise(failure.error, 1, clock.now())
    limits.rate_limit_until(failure.error)


def _settle(row: JobRow, failure: Failure, now: dt.datetime) -> list[Record]:
    if failure.snooze_ms is not None:
        return _snooze(row, failure.snooze_ms, now)
    keep = ojs_settings.STORE_BACKTRACES
    error = errorobjects.normalise(failure.error, row["attempt"], now, store_backtrace=keep)
    if failure.retry_after_ms is not None and row["attempt"] < max(1, row["max_attempts"]):
        records = _retry(row, error, failure.retry_after_ms, now, "workers")
    else:
        records = settle_error(row, error, now, "workers")
    if ojs_settings.EXTENSION_EVENTS and error["code"] == ResultTooLarge.code:  # our own worker looks itself
        records.append(results.rejection(row, now))
    return records


def give_up(row: JobRow, now: dt.datetime, component: str, **data: Any) -> list[Record]:
    """Discard a job whose `total_timeout` leaves no time for it, whatever its retries (binding 5).

    `data` goes into the event of the discard.
    """
    facts = errorobjects.overrun("total", row["deadline_at"] - row["created_at"], now - row["created_at"])
    message = f"The job's total timeout of {facts['limit_seconds']:g} s leaves no time for it."
    error = errorobjects.server_error("total_timeout", message, row["attempt"], now, retryable=False, **facts)
    add_error(row, error)
    finish(row, State.DISCARDED, now)
    row.update(dead_letter=True, retry_delay_ms=None, losses=0)
    return [
        catalogue.discarded(row, now, component, error, **data),
        catalogue.of_job("job.total_timeout", row, now, component, worker_id=row["worker_id"], **facts),
        *deadletters.added(row, now, component),
    ]


def _retry(row: JobRow, error: dict[str, Any], delay_ms: int, now: dt.datetime, component: str) -> list[Record]:
    add_error(row, error)
    if row["deadline_at"] is not None and now + dt.timedelta(milliseconds=delay_ms) >= row["deadline_at"]:
        ends = give_up(row, now, component)
        return [catalogue.failed(row, now, component, error), *ends]
    _wait(row, delay_ms, now)
    return [
        catalogue.failed(row, now, component, error),
        catalogue.retrying(row, now, component, error),
    ]


def _discard(
    row: JobRow, error: dict[str, Any], now: dt.datetime, component: str, *, dead_letter: bool
) -> list[Record]:
    add_error(row, error)
    finish(row, State.DISCARDED, now)
    row.update(dead_letter=dead_letter, retry_delay_ms=None, losses=0)
    return [
        catalogue.failed(row, now, component, error),
        catalogue.discarded(row, now, component, error),
        *deadletters.added(row, now, component),
    ]


def _snooze(row: JobRow, delay_ms: int, now: dt.datetime) -> list[Record]:
    """Not a failure: no error is kept and the attempt does not count against the limit."""
    row["max_attempts"] = min(row["max_attempts"] + 1, policies.MAX_ATTEMPTS)
    _wait(row, delay_ms, now)
    reason = errorobjects.server_error("snoozed", "The handler asked to run again later.", row["attempt"], now)
    told = {**reason, "retryable": True}
    return [catalogue.retrying(row, now, "workers", told, previous_state=State.ACTIVE.value)]


def _wait(row: JobRow, delay_ms: int, now: dt.datetime) -> None:
    row.update(state=State.RETRYABLE.value, retry_delay_ms=delay_ms, due_at=now + dt.timedelta(milliseconds=delay_ms))
    row.update(visible_until=None, timeout_at=None, losses=0)
    row["wake_at"] = wake_at(row)
