"""What time alone does to jobs: PROMOTE, EXPIRE, the execution timeout, and lost reservations.

Every job that time will change carries the instant in `wake_at`, behind one index. Whoever looks, the
scheduler continuously or a FETCH in passing, takes the jobs whose instant has come, and one `match` over
their state says what becomes of them.

In maintenance mode nothing is promoted. What has to happen all the same so that nobody waits in vain goes on: lost
reservations and timeouts of what runs, and the end of jobs whose time has run out.
"""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Sequence

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
from django_ojs.operations.fail import FAIL_COLUMNS, settle_error
from django_ojs.policies import errorobjects
from django_ojs.policies.durations import format_instant
from django_ojs.sql.base import FINISH_COLUMNS, finish
from django_ojs.states import State, Verb
from django_ojs.waking import wake_workers

_PROMOTE_COLUMNS = ("state", "enqueued_at", "due_at", "wake_at")
_EXPIRE_COLUMNS = (*FINISH_COLUMNS, "errors", "dead_letter")
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
        condition &= ~Q(state__in=[State.SCHEDULED, State.RETRYABLE]) | Q(expires_at__lte=clock.now(using))
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
    if row["state"] == State.ACTIVE:
        if row["timeout_at"] is not None and row["timeout_at"] <= now:
            return Verb.FAIL, _time_out(row, now)
        return Verb.RESCUE, lose(row, now, using, "visibility_timeout", "The reservation expired unanswered.")
    if row["expires_at"] is not None and row["expires_at"] <= now:
        return Verb.EXPIRE, _expire(row, now)
    return Verb.PROMOTE, _promote(row, now, using)


def _promote(row: JobRow, now: dt.datetime, using: str) -> list[Record]:
    was, due_at = row["state"], row["due_at"]
    row.update(state=State.AVAILABLE.value, enqueued_at=clock.stamps(1, using), due_at=None)
    row["wake_at"] = wake_at(row)
    if was == State.RETRYABLE:  # the end of a backoff has no event of its own (events 1.7)
        return []
    return [catalogue.enqueued(row, now, "scheduler", scheduled_at=format_instant(due_at))]


def _expire(row: JobRow, now: dt.datetime) -> list[Record]:
    message, was = "The job expired before it started.", row["state"]
    add_error(row, errorobjects.server_error("expired", message, row["attempt"], now, retryable=False))
    finish(row, State.DISCARDED, now)
    row["dead_letter"] = True
    return [catalogue.expired(row, now, was), *deadletters.added(row, now, "scheduler")]


def _time_out(row: JobRow, now: dt.datetime) -> list[Record]:
    limit = row["timeout_ms"] / 1000
    elapsed = (now - row["started_at"]).total_seconds()
    message = f"The job ran longer than its execution timeout of {limit:g} s."
    facts = {"timeout_kind": "execution", "limit_seconds": limit, "elapsed_seconds": round(elapsed, 3)}
    error = errorobjects.server_error("timeout", message, row["attempt"], now, **facts)
    records = settle_error(row, error, now, "scheduler")
    return [*records, catalogue.of_job("job.timeout", row, now, "scheduler", worker_id=row["worker_id"], **facts)]


def lose(row: JobRow, now: dt.datetime, using: str, kind: str, message: str) -> list[Record]:
    """An active job lost its worker: back to the queue at once, the attempt keeps its number (L1-VT-002).

    After `POISON_LIMIT` losses in a row the job is discarded instead: no crash loop for ever (decision 5).
    """
    row["losses"] += 1
    elapsed = (now - row["started_at"]).total_seconds()
    facts = {
        "timeout_kind": "visibility",
        "limit_seconds": row["lease_ms"] / 1000,
        "elapsed_seconds": round(elapsed, 3),
    }
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
