"""Delete dead letters (jobs 7.3) and other ended jobs (binding 6) for good."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from django_ojs import clock, sql, states
from django_ojs.contention import retried
from django_ojs.errors import InvalidStateTransition, NotFound, OJSError
from django_ojs.events import catalogue, log
from django_ojs.models.job import JobRow
from django_ojs.operations.common import atomic, database, only
from django_ojs.states import State


@retried
def delete(job_ids: Sequence[uuid.UUID], *, using: str | None = None) -> list[uuid.UUID | OJSError]:
    """Delete these jobs from the dead letter queue; whatever is not in there is `NotFound`."""
    using = database(using)
    with atomic(using=using):
        locked = sql.store(using).lock(set(job_ids))
        rows = {row["id"]: row for row in locked if row["state"] == State.DISCARDED and row["dead_letter"]}
        if rows:
            sql.store(using).delete_jobs(list(rows))
        now = clock.now(using)
        records = [catalogue.of_job("dead_letter.deleted", row, now, "api") for row in rows.values()]
        log.append(records, using)
    return [job_id if job_id in rows else NotFound.resource("dead_letter_job", str(job_id)) for job_id in job_ids]


@retried
def delete_ended(job_ids: Sequence[uuid.UUID], *, using: str | None = None) -> list[uuid.UUID | OJSError]:
    """Delete these jobs, dead letters or not; one that has not ended is refused with its state."""
    using = database(using)
    with atomic(using=using):
        locked = {row["id"]: row for row in sql.store(using).lock(set(job_ids))}
        ended = {job_id: row for job_id, row in locked.items() if row["state"] in states.TERMINAL}
        if ended:
            sql.store(using).delete_jobs(list(ended))
        now = clock.now(using)
        dead = [row for row in ended.values() if row["state"] == State.DISCARDED and row["dead_letter"]]
        log.append([catalogue.of_job("dead_letter.deleted", row, now, "api") for row in dead], using)

    def outcome(job_id: uuid.UUID) -> uuid.UUID | OJSError:
        if job_id in ended:
            return job_id
        if job_id in locked:
            return refused(locked[job_id])
        return NotFound.resource("job", str(job_id))

    return [outcome(job_id) for job_id in job_ids]


def refused(row: JobRow) -> InvalidStateTransition:
    """The error that says why a job that has not ended is not deleted."""
    ended = [state.value for state in states.ordered(states.TERMINAL)]
    return InvalidStateTransition.of(str(row["id"]), row["state"], "delete", "deleted", expected_state=ended)


def delete_one(job_id: uuid.UUID, *, using: str | None = None) -> uuid.UUID:
    """Delete one dead letter. Raises `NotFound`."""
    return only(delete([job_id], using=using))
