"""Record a step of a durable job in one statement, if the job is still the run's that has done it.

The statement reads the job's row for the fence. It does not lock that row, so that a heartbeat never waits for a step:
a run that has lost its job a moment ago may still record what it has done, and the unique constraint on the name lets
one of two runs record a step. `locked` is for a step whose effects are in the same transaction: a cancellation or
another worker's claim comes before the whole of it or after it.
"""

from __future__ import annotations

import uuid
from functools import cache
from typing import Any, NamedTuple

from django_ojs import jsontext
from django_ojs.models import Job, JobStep
from django_ojs.rules.steps import Step
from django_ojs.states import State
from django_ojs.store import prepared

_ACTIVE = State.ACTIVE.value


class Holder(NamedTuple):
    """A run of a job, by which a step is fenced."""

    job_id: uuid.UUID
    worker_id: str
    attempt: int


def insert(holder: Holder, step: Step, connection: Any, *, locked: bool = False) -> bool:
    """Record a step, by this connection of Django's; False where the job is not this run's.

    Raises `IntegrityError` where the job has a step of that name already.
    """
    moment = connection.ops.adapt_datetimefield_value
    params = {"name": step.name, "kind": step.kind, "tries": step.tries, "code": step.code, "attempt": step.attempt}
    params["began_at"] = moment(step.began_at)
    if step.result is not None:
        params["result"] = step.result
    if step.ended_at is not None:
        params["ended_at"] = moment(step.ended_at)
    if step.due_at is not None:
        params["due_at"] = moment(step.due_at)
    if step.error is not None:
        params["error"] = jsontext.dumps(step.error)
    if step.event_name is not None:
        params["event_name"], params["event_key"] = step.event_name, step.event_key
    statement = _statement(connection.vendor, tuple(params), locked)
    params["state"], params["worker_id"], params["holder_attempt"] = _ACTIVE, holder.worker_id, holder.attempt
    params["holder_id"] = _JOB_ID.get_db_prep_value(holder.job_id, connection)
    if connection.vendor == "postgresql":
        return bool(prepared.execute(connection.alias, statement, params))
    cursor = _kept_cursor(connection)
    cursor.execute(statement, params)
    return bool(cursor.rowcount)


def _kept_cursor(connection: Any) -> Any:
    """A cursor for this thread's statements that give no rows: to make one takes Django half as long as the statement
    takes SQLite. What logs queries gets one of its own."""
    connection.close_if_health_check_failed()
    known: tuple[Any, Any] | None = connection.__dict__.get("_ojs_steps")
    if known is not None and known[0] is connection.connection and not connection.queries_logged:
        return known[1]
    cursor = connection.cursor()
    if not connection.queries_logged:
        connection._ojs_steps = connection.connection, cursor
    return cursor


@cache
def _statement(vendor: str, columns: tuple[str, ...], locked: bool) -> str:
    """The statement for a step that has these columns. What is null in a step is named by none of them."""
    types = _POSTGRESQL_TYPES if vendor == "postgresql" else {}
    selected = ", ".join(f"%({name})s{types.get(name, '')}" for name in columns)
    lock = {"postgresql": " FOR SHARE", "mysql": " LOCK IN SHARE MODE"}.get(vendor, "") if locked else ""
    returning = " RETURNING 1" if vendor == "postgresql" else ""
    return (
        f"INSERT INTO {JobStep._meta.db_table} (job_id, {', '.join(columns)}) SELECT id, {selected} "
        f"FROM {Job._meta.db_table} WHERE id = %(holder_id)s{types.get('job_id', '')} AND state = %(state)s "
        f"AND worker_id = %(worker_id)s AND attempt = %(holder_attempt)s{lock}{returning}"
    )


_JOB_ID: Any = Job._meta.get_field("id")
_POSTGRESQL_TYPES = {
    "job_id": "::uuid", "name": "::varchar", "kind": "::varchar", "result": "::text", "error": "::text",
    "tries": "::int", "code": "::varchar", "attempt": "::int", "began_at": "::timestamptz",
    "ended_at": "::timestamptz", "due_at": "::timestamptz", "event_name": "::varchar", "event_key": "::varchar",
}  # fmt: skip
