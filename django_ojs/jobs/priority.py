"""Changes the priority of a waiting job (jobs 3)."""

from __future__ import annotations

import uuid
from typing import Any, NamedTuple

from django_ojs import clock
from django_ojs.conf import ojs_settings
from django_ojs.database import atomic, database, retried
from django_ojs.errors import Conflict, NotFound
from django_ojs.events import catalogue, log
from django_ojs.messages import phrase
from django_ojs.messages import reason as reason_of
from django_ojs.models.job import JobRow
from django_ojs.rules.attributes import parse_priority
from django_ojs.rules.faults import job_fault
from django_ojs.states import State
from django_ojs.store import store_of

#: Where a priority still decides something.
PRIORITISABLE = (State.AVAILABLE, State.SCHEDULED)


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
        number = parse_priority(value, ojs_settings.PRIORITY_LEVELS)
    except ValueError as error:
        raise job_fault("priority", reason_of(error), value) from error
    with atomic(using=using):
        store = store_of(using)
        rows = store.lock([job_id])
        if not rows:
            raise NotFound.resource("job", str(job_id))
        (row,) = rows
        if row["state"] not in PRIORITISABLE:
            raise _not_prioritised(row)
        previous, row["priority"] = row["priority"], number
        if number != previous:
            store.update_jobs(State(row["state"]), [row], ("priority",))
            facts = {"priority": number, "previous_priority": previous} | ({"changed_by": by} if by else {})
            log.append([catalogue.of_job("priority.changed", row, clock.now(using), "api", **facts)], using)
    return Prioritised(row, previous)


def _not_prioritised(row: JobRow) -> Conflict:
    details = {"job_id": str(row["id"]), "current_state": row["state"], "attempted": "prioritise"}
    details |= {"expected_state": [state.value for state in PRIORITISABLE]}
    message = phrase(
        "The priority of job '%(job)s' cannot be changed: it is %(state)s, not available or scheduled.",
        job=row["id"], state=str(row["state"]),
    )  # fmt: skip
    return Conflict(message, details=details)
