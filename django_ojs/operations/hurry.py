"""PROMOTE by hand: somebody ends the wait of scheduled and retryable jobs, which keep their attempts and errors."""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Sequence

from django_ojs import clock, jsontext, sql
from django_ojs.contention import retried
from django_ojs.events import catalogue, log
from django_ojs.events.catalogue import Record
from django_ojs.models.job import JobRow
from django_ojs.operations.common import Outcome, atomic, database, each_locked, refuse, wake_at
from django_ojs.policies.durations import format_instant
from django_ojs.states import State, Verb
from django_ojs.waking import wake_workers

_WAITING_FOR_TIME = (State.SCHEDULED, State.RETRYABLE)
_COLUMNS = ("state", "enqueued_at", "due_at", "wake_at", "extra")


@retried
def hurry(job_ids: Sequence[uuid.UUID], *, using: str | None = None) -> list[Outcome]:
    """Make scheduled and retryable jobs available at once; return for each its row, or the error that refused it.

    A scheduled job, whose `scheduled_at` becomes now, is enqueued thereby; the end of a backoff has no event of its
    own, whoever ends it (events 1.7).
    """
    using = database(using)
    with atomic(using=using):
        now = clock.now(using)
        changed: list[JobRow] = []
        enqueued: list[Record] = []

        def decide(row: JobRow) -> Outcome:
            if row["state"] not in _WAITING_FOR_TIME:
                return refuse(row, Verb.PROMOTE, State.AVAILABLE, called="run")
            was, due_at = row["state"], row["due_at"]
            row.update(state=State.AVAILABLE.value, enqueued_at=clock.stamps(1, using), due_at=None)
            row["wake_at"] = wake_at(row)
            changed.append(row)
            if was == State.SCHEDULED:
                row["extra"] = _scheduled_at(row["extra"], now)
                enqueued.append(catalogue.enqueued(row, now, "api", scheduled_at=format_instant(due_at)))
            return row

        outcomes = each_locked(Verb.PROMOTE, job_ids, using, decide)
        sql.store(using).update_jobs(Verb.PROMOTE, changed, _COLUMNS)
        log.append(enqueued, using)
        if changed:
            wake_workers(using)
    return outcomes


def _scheduled_at(text: str, now: dt.datetime) -> str:
    """What the client sent, with `scheduled_at` as it is now."""
    extra = jsontext.loads(text) if text else {}
    return jsontext.dumps({**extra, "scheduled_at": format_instant(now)})
