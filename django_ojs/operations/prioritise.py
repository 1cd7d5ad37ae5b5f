"""Change the priority of a job that waits (jobs 3)."""

from __future__ import annotations

import uuid
from typing import Any, NamedTuple

from django_ojs import clock, sql
from django_ojs.conf import ojs_settings
from django_ojs.contention import retried
from django_ojs.errors import Conflict, NotFound
from django_ojs.events import catalogue, log
from django_ojs.models.job import JobRow
from django_ojs.operations.common import atomic, database
from django_ojs.policies import priority as priorities
from django_ojs.policies.faults import fault
from django_ojs.states import State
from django_ojs.told import reason, told

#: Where a priority still decides something.
WAITING = (State.AVAILABLE, State.SCHEDULED)


class Prioritised(NamedTuple):
    row: JobRow
    previous: int


@retried
def prioritise(job_id: uuid.UUID, value: Any, *, by: str = "", using: str | None = None) -> Prioritised:
    """Give a job this priority, a number or a name. Its place among equals stays, for it keeps `enqueued_at`.

    Raises `InvalidPayload` for what is no priority, `NotFound`, and `Conflict` unless the job is available
    or scheduled.
    """
    using = database(using)
    try:
        number = priorities.parse(value, ojs_settings.PRIORITY_LEVELS)
    except ValueError as error:
        raise fault("priority", reason(error), value) from error
    with atomic(using=using):
        store = sql.store(using)
        rows = store.lock([job_id])
        if not rows:
            raise NotFound.resource("job", str(job_id))
        (row,) = rows
        if row["state"] not in WAITING:
            raise _refusal(row)
        previous, row["priority"] = row["priority"], number
        if number != previous:
            store.update_jobs(State(row["state"]), [row], ("priority",))
            facts = {"priority": number, "previous_priority": previous} | ({"changed_by": by} if by else {})
            log.append([catalogue.of_job("priority.changed", row, clock.now(using), "api", **facts)], using)
    return Prioritised(row, previous)


def _refusal(row: JobRow) -> Conflict:
    details = {"job_id": str(row["id"]), "current_state": row["state"], "attempted": "prioritise"}
    details |= {"expected_state": [state.value for state in WAITING]}
    message = told(
        "The priority of job '%(job)s' cannot be changed: it is %(state)s, not available or scheduled.",
        job=row["id"], state=str(row["state"]),
    )  # fmt: skip
    return Conflict(message, details=details)
