"""ACTIVATE (core 6.3): a staged job becomes available.

A pending job with a start still ahead becomes available too, since the table knows no other way, but no
FETCH takes it before its `scheduled_at` (L2-DEL-002).
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from django_ojs import clock, sql
from django_ojs.contention import retried
from django_ojs.events import catalogue, log
from django_ojs.models.job import JobRow
from django_ojs.operations.common import Outcome, atomic, database, each_locked, only, refuse, wake_at
from django_ojs.states import State, Verb
from django_ojs.waking import wake_workers


@retried
def activate(job_ids: Sequence[uuid.UUID], *, using: str | None = None) -> list[Outcome]:
    """Activate these jobs; return for each its row, or the error that refused it."""
    using = database(using)
    with atomic(using=using):
        now = clock.now(using)
        changed: list[JobRow] = []

        def decide(row: JobRow) -> Outcome:
            if row["state"] != State.PENDING:
                return refuse(row, Verb.ACTIVATE, State.AVAILABLE)
            row.update(state=State.AVAILABLE.value, activated_at=now, enqueued_at=clock.stamps(1, using))
            row["wake_at"] = wake_at(row)
            changed.append(row)
            return row

        outcomes = each_locked(Verb.ACTIVATE, job_ids, using, decide)
        columns = ("state", "activated_at", "enqueued_at", "wake_at")
        sql.store(using).update_jobs(Verb.ACTIVATE, changed, columns)
        if changed:
            wake_workers(using)
        log.append([catalogue.enqueued(row, now, "api", previous_state=State.PENDING.value) for row in changed], using)
    return outcomes


def activate_one(job_id: uuid.UUID, *, using: str | None = None) -> JobRow:
    """Activate one job. Raises `NotFound` or `InvalidStateTransition`."""
    return only(activate([job_id], using=using))
