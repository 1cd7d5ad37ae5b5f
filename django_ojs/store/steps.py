"""Record a step of a durable job in one statement, if the job is still the run's that has done it.

The statement reads the job's row for the fence. It does not lock that row, so that a heartbeat never waits for a step:
a run that has lost its job a moment ago may still record what it has done, and the unique constraint on the name lets
one of two runs record a step. `locked` is for a step whose effects are in the same transaction: a cancellation or
another worker's claim comes before the whole of it or after it.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from django.db import connections

from django_ojs.models import Job, JobStep
from django_ojs.states import State
from django_ojs.store import prepared

#: The columns of a step that its caller fills.
STEP_COLUMNS = (
    "job_id", "name", "kind", "result", "error", "tries", "code", "attempt", "began_at", "ended_at", "due_at",
)  # fmt: skip
#: The columns of a step that waits for an event.
EVENT_COLUMNS = (*STEP_COLUMNS, "event_name", "event_key")
#: What every database takes as it is. Most values of a step are.
_AS_THEY_ARE = frozenset({str, int, type(None)})


class Holder(NamedTuple):
    """A run of a job, by which a step is fenced."""

    job_id: uuid.UUID
    worker_id: str
    attempt: int


def insert(holder: Holder, values: Mapping[str, Any], *, locked: bool = False, using: str) -> bool:
    """Record a step with these values by `STEP_COLUMNS` or `EVENT_COLUMNS`; False where the job is not this run's.

    Raises `IntegrityError` where the job has a step of that name already.
    """
    connection = connections[using]
    columns = EVENT_COLUMNS if values.get("event_name") is not None else STEP_COLUMNS
    field_of: Any = JobStep._meta.get_field
    given = {name: values[name] for name in columns}
    given |= {
        name: field_of(name).get_db_prep_save(value, connection)
        for name, value in given.items()
        if type(value) not in _AS_THEY_ARE
    }
    fence = {
        "state": State.ACTIVE.value, "worker_id": holder.worker_id, "holder_attempt": holder.attempt,
        "holder_id": Job._meta.get_field("id").get_db_prep_save(holder.job_id, connection),
    }  # fmt: skip
    statement = _statement(connection.vendor, columns, locked=locked)
    if connection.vendor == "postgresql":
        return bool(prepared.execute(using, f"{statement} RETURNING 1", given | fence))
    with connection.cursor() as cursor:
        cursor.execute(statement, given | fence)
        return bool(cursor.rowcount)


@lru_cache(maxsize=16)
def _statement(vendor: str, columns: tuple[str, ...], *, locked: bool) -> str:
    types = _POSTGRESQL_TYPES if vendor == "postgresql" else {}
    selected = ", ".join(f"%({name})s{types.get(name, '')}" for name in columns)
    lock = {"postgresql": " FOR SHARE", "mysql": " LOCK IN SHARE MODE"}.get(vendor, "") if locked else ""
    return (
        f"INSERT INTO {JobStep._meta.db_table} ({', '.join(columns)}) SELECT {selected} "
        f"FROM {Job._meta.db_table} WHERE id = %(holder_id)s{types.get('job_id', '')} AND state = %(state)s "
        f"AND worker_id = %(worker_id)s AND attempt = %(holder_attempt)s{lock}"
    )


_POSTGRESQL_TYPES = {
    "job_id": "::uuid", "name": "::varchar", "kind": "::varchar", "result": "::text", "error": "::text",
    "tries": "::int", "code": "::varchar", "attempt": "::int", "began_at": "::timestamptz",
    "ended_at": "::timestamptz", "due_at": "::timestamptz", "event_name": "::varchar", "event_key": "::varchar",
}  # fmt: skip
