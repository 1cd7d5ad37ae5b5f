"""Deletes dead letters (jobs 7.3) and other ended jobs (binding 6). What a durable one did is undone all the same."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from django_ojs import clock, states
from django_ojs.database import atomic, database, retried
from django_ojs.errors import InvalidStateTransition, NotFound, OJSError
from django_ojs.events import catalogue, log
from django_ojs.jobs import compensations
from django_ojs.lifecycle.transitions import only
from django_ojs.models.job import JobRow
from django_ojs.states import State
from django_ojs.store import store_of

DELETABLE = states.ordered(states.TERMINAL)


@retried
def delete(job_ids: Sequence[uuid.UUID], *, using: str | None = None) -> list[uuid.UUID | OJSError]:
    """Delete these jobs from the dead letter queue (jobs 7.3); whatever is not in there is `NotFound`."""
    return _delete(job_ids, not_a_dead_letter, "dead_letter_job", database(using))


@retried
def delete_ended(job_ids: Sequence[uuid.UUID], *, using: str | None = None) -> list[uuid.UUID | OJSError]:
    """Delete these jobs, dead letters or not (binding 6); one that has not ended is refused with its state."""
    return _delete(job_ids, not_deleted, "job", database(using))


def _delete(
    job_ids: Sequence[uuid.UUID], refusal: Callable[[JobRow], OJSError | None], resource: str, using: str
) -> list[uuid.UUID | OJSError]:
    with atomic(using=using):
        refused: dict[uuid.UUID, OJSError] = {}
        gone: dict[uuid.UUID, JobRow] = {}
        for row in store_of(using).lock(set(job_ids)):
            if error := refusal(row):
                refused[row["id"]] = error
            else:
                gone[row["id"]] = row
        undoing = compensations.undo_first(gone.values(), using=using)
        refused |= undoing
        gone = {job_id: row for job_id, row in gone.items() if job_id not in undoing}
        if gone:
            store_of(using).delete_jobs(list(gone))
        now = clock.now(using)
        letters = [row for row in gone.values() if is_dead_letter(row)]
        log.append([catalogue.of_job("dead_letter.deleted", row, now, "api") for row in letters], using)

    def outcome(job_id: uuid.UUID) -> uuid.UUID | OJSError:
        return job_id if job_id in gone else refused.get(job_id) or NotFound.resource(resource, str(job_id))

    return [outcome(job_id) for job_id in job_ids]


def is_dead_letter(row: Mapping[str, Any]) -> bool:
    return bool(row["state"] == State.DISCARDED and row["dead_letter"])


def not_a_dead_letter(row: JobRow) -> OJSError | None:
    """Why `delete` refuses this job; None where it does not."""
    return None if is_dead_letter(row) else NotFound.resource("dead_letter_job", str(row["id"]))


def not_deleted(row: JobRow) -> OJSError | None:
    """Why `delete_ended` refuses this job; None where it does not."""
    if row["state"] in DELETABLE:
        return None
    ended = [state.value for state in DELETABLE]
    return InvalidStateTransition.of(str(row["id"]), row["state"], "delete", "deleted", expected_state=ended)


def delete_one(job_id: uuid.UUID, *, using: str | None = None) -> uuid.UUID:
    """Delete one dead letter. Raises `NotFound`."""
    return only(delete([job_id], using=using))
