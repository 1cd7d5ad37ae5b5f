"""What time alone does to jobs: PROMOTE, EXPIRE, the timeouts of binding 5, and lost reservations.

Every job that time will change carries the instant in `wake_at`, behind one index. Whoever looks, the
scheduler continuously or a FETCH in passing, takes the jobs whose instant has come, and one `match` over
their state says what becomes of them.

In maintenance mode nothing is promoted. What has to happen all the same so that nobody waits in vain goes on: lost
reservations and timeouts of what runs, and the end of jobs whose time has run out.
"""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Callable, Sequence
from typing import Any

from django.db.models import Min, Q

from django_ojs import clock, sql
from django_ojs.conf import ojs_settings
from django_ojs.contention import retried
from django_ojs.events import catalogue, log
from django_ojs.events.catalogue import Record
from django_ojs.models import Job
from django_ojs.models.job import JobRow
from django_ojs.operations import advance, deadletters, maintenance
from django_ojs.operations.common import RELEASE_COLUMNS, add_error, atomic, database, make_available, wake_at
from django_ojs.operations.fail import FAIL_COLUMNS, give_up, settle_error
from django_ojs.policies import errorobjects
from django_ojs.policies.durations import format_instant
from django_ojs.sql.rows import FINISH_COLUMNS, ended, finish
from django_ojs.states import State, Verb
from django_ojs.waking import wake_workers

_PROMOTE_COLUMNS = ("state", "enqueued_at", "due_at", "wake_at")
_EXPIRE_COLUMNS = (*FINISH_COLUMNS, "errors", "dead_letter", "retry_delay_ms", "losses")
LOST_COLUMNS = tuple(dict.fromkeys((*RELEASE_COLUMNS, *FINISH_COLUMNS, "errors", "losses", "dead_letter")))


@retried
def settle(
    *, limit: int = 500, spare_active: bool = False, ids: Sequence[uuid.UUID] | None = None, using: str | None = None
) -> int:
    """Do what is due, for at most `limit` jobs; return how many there were. Locked jobs are left alone.

    `spare_active` leaves active jobs alone too, `ids` all but these.
    """
    using = database(using)
    condition = ~Q(state=State.ACTIVE) if spare_active else Q()
    if maintenance.is_on(using=using):
        condition &= ~Q(state__in=[State.SCHEDULED, State.RETRYABLE]) | ended(clock.now(using))
    return _settle(condition if ids is None else condition & Q(pk__in=ids), using, limit)


def settle_waiting(queues: Sequence[str], using: str) -> int:
    """Promote and expire the due jobs of these queues, as part of a FETCH."""
    waiting = [State.SCHEDULED, State.RETRYABLE, State.AVAILABLE]
    return _settle(Q(queue__in=list(queues), state__in=waiting), using, limit=500)


def next_due(*, using: str | None = None) -> dt.datetime | None:
    """The earliest instant at which time will change a job; None when there is none."""
    found: dt.datetime | None = Job.objects.using(database(using)).aggregate(at=Min("wake_at"))["at"]
    return found


def _settle(condition: Q, using: str, limit: int) -> int:
    with atomic(using=using):
        now = clock.now(using)
        store = sql.store(using)
        rows = store.lock_where(condition & Q(wake_at__lte=now), limit=limit, skip_locked=True)
        if not rows:
            return 0
        changes: dict[Verb, tuple[list[JobRow], Sequence[str]]] = {
            Verb.PROMOTE: ([], _PROMOTE_COLUMNS), Verb.EXPIRE: ([], _EXPIRE_COLUMNS),
            Verb.FAIL: ([], FAIL_COLUMNS), Verb.RESCUE: ([], LOST_COLUMNS),
        }  # fmt: skip
        records: list[Record] = []
        for row in sorted(rows, key=lambda row: (row["wake_at"], row["created_at"], row["id"])):
            verb, events = _change(row, now, using)
            changes[verb][0].append(row)
            records += events
        for verb, (changed, columns) in changes.items():
            store.update_jobs(verb, changed, columns)
        log.append(records, using)
        advance.settled(rows, now, using)
        wake_workers(using)
        return len(rows)


def _change(row: JobRow, now: dt.datetime, using: str) -> tuple[Verb, list[Record]]:
    """What is due for this job: change the row, name the verb, return the events."""
    active, over = row["state"] == State.ACTIVE, _passed(row, now)
    if over("deadline_at"):
        return Verb.FAIL if active else Verb.EXPIRE, give_up(row, now, "scheduler", previous_state=row["state"])
    if active:
        if over("timeout_at"):
            return Verb.FAIL, _time_out(row, now)
        if row["heartbeat_ms"] is not None and row["heartbeat_ms"] <= row["lease_ms"]:
            return Verb.FAIL, _stall(row, now)
        return Verb.RESCUE, lose(row, now, using, "visibility_timeout", "The reservation expired unanswered.")
    if over("expires_at"):
        return Verb.EXPIRE, _expire(row, now, "expired", row["expires_at"], "The job expired before it started.")
    if over("start_by") and row["attempt"] == 0:
        return Verb.EXPIRE, _miss_start(row, now)
    return Verb.PROMOTE, _promote(row, now, using)


def _passed(row: JobRow, now: dt.datetime) -> Callable[[str], bool]:
    return lambda column: row[column] is not None and row[column] <= now


def _promote(row: JobRow, now: dt.datetime, using: str) -> list[Record]:
    was, due_at = row["state"], row["due_at"]
    row.update(state=State.AVAILABLE.value, enqueued_at=clock.stamps(1, using), due_at=None)
    row["wake_at"] = wake_at(row)
    if was == State.RETRYABLE:  # the end of a backoff has no event of its own (events 1.7)
        return []
    return [catalogue.enqueued(row, now, "scheduler", scheduled_at=format_instant(due_at))]


def _expire(row: JobRow, now: dt.datetime, kind: str, end: dt.datetime, message: str, **facts: Any) -> list[Record]:
    was = row["state"]
    add_error(row, errorobjects.server_error(kind, message, row["attempt"], now, retryable=False, **facts))
    finish(row, State.DISCARDED, now)
    row["dead_letter"] = True
    return [catalogue.expired(row, now, was, end), *deadletters.added(row, now, "scheduler")]


def _miss_start(row: JobRow, now: dt.datetime) -> list[Record]:
    """Nobody took the job within its `enqueue_ttl`."""
    facts = errorobjects.overrun("enqueue_ttl", row["start_by"] - row["created_at"], now - row["created_at"])
    message = f"Nothing began the job within its enqueue TTL of {facts['limit_seconds']:g} s."
    records = _expire(row, now, "enqueue_ttl_expired", row["start_by"], message, **facts)
    return [*records, catalogue.of_job("job.ttl_expired", row, now, "scheduler", **facts)]


def _stall(row: JobRow, now: dt.datetime) -> list[Record]:
    """Its worker was silent about the job for longer than its `heartbeat_timeout`: a failure like any other."""
    limit = dt.timedelta(milliseconds=row["heartbeat_ms"])
    facts = errorobjects.overrun("stalled", limit, now - row["visible_until"] + limit)
    message = (
        f"The worker was silent about the job for longer than its heartbeat timeout of {facts['limit_seconds']:g} s."
    )
    return _failed(row, now, "stalled", message, "job.stalled", facts)


def _time_out(row: JobRow, now: dt.datetime) -> list[Record]:
    limit = dt.timedelta(milliseconds=row["timeout_ms"])
    facts = errorobjects.overrun("execution", limit, now - row["started_at"])
    message = f"The job ran longer than its execution timeout of {facts['limit_seconds']:g} s."
    return _failed(row, now, "timeout", message, "job.timeout", facts)


def _failed(row: JobRow, now: dt.datetime, kind: str, message: str, event: str, facts: dict[str, Any]) -> list[Record]:
    error = errorobjects.server_error(kind, message, row["attempt"], now, **facts)
    records = settle_error(row, error, now, "scheduler")
    return [*records, catalogue.of_job(event, row, now, "scheduler", worker_id=row["worker_id"], **facts)]


def lose(row: JobRow, now: dt.datetime, using: str, kind: str, message: str) -> list[Record]:
    """An active job lost its worker: back to the queue at once, the attempt keeps its number (L1-VT-002).

    After `POISON_LIMIT` losses in a row the job is discarded instead: no crash loop for ever (decision 5).
    """
    row["losses"] += 1
    limit = dt.timedelta(milliseconds=row["lease_ms"])
    facts = errorobjects.overrun("visibility", limit, now - row["started_at"])
    error = errorobjects.server_error(kind, message, row["attempt"], now, **facts)
    worker_id = row["worker_id"]
    if row["losses"] >= ojs_settings.POISON_LIMIT:
        error["type"] = error["code"] = "visibility_timeout"
        error["message"] = f"{message} It happened {row['losses']} times in a row, so the job is given up."
        add_error(row, {**error, "retryable": False})
        finish(row, State.DISCARDED, now)
        row["dead_letter"] = True
        fatal = {**error, "retryable": False}
        told = catalogue.discarded(row, now, "scheduler", fatal, previous_state=State.ACTIVE.value)
        return [told, *deadletters.added(row, now, "scheduler")]
    add_error(row, error)
    make_available(row, now, using)
    return [catalogue.of_job("job.stalled", row, now, "scheduler", worker_id=worker_id, **facts)]
