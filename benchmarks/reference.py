"""What plain SQL reaches with the same rows: the same tables, the same commits, batches of 100, no Python between.

Where the database is neither PostgreSQL nor SQLite there is no reference.
"""

from __future__ import annotations

import json
import time
from typing import Any

from django.db import connection

from django_ojs.models import Event, Job
from django_ojs.rules.names import new_id

_JOB, _EVENT = Job._meta.db_table, Event._meta.db_table
BATCH = 100
_EVENT_COLUMNS = "type, time, component, subject, job_id, job_type, queue, state, attempt, worker_id, trace_id, data"
_JOB_VALUES = {
    "id": "i.id", "type": "'bench.sync'", "queue": "'reference'", "state": "'available'", "max_attempts": "3",
    "args": "'[1]'", "meta": "'{}'", "timeout_ms": "1800000",
}  # fmt: skip


def job_values(now: str) -> dict[str, str]:
    """A literal for every column that must not be null: what a plain job has there."""
    given = {**_JOB_VALUES, "created_at": now, "enqueued_at": now}
    zeros = {"BooleanField": "false", "CharField": "''", "TextField": "''", "JSONTextField": "''"}
    missing = [f for f in Job._meta.concrete_fields if not f.null and f.attname not in given]
    return given | {f.attname: zeros.get(type(f).__name__, "0") for f in missing}


def available() -> bool:
    return connection.vendor in ("postgresql", "sqlite")


def insert(jobs: int, batch: int) -> float:
    """Jobs per second inserted with one event each, `batch` to a commit."""
    now = "now()" if connection.vendor == "postgresql" else "strftime('%%Y-%%m-%%d %%H:%%M:%%f', 'now')"
    postgres = connection.vendor == "postgresql"
    source = "unnest(%s::uuid[]) AS i(id)" if postgres else "(SELECT value AS id FROM json_each(%s)) AS i"
    values = job_values(now)
    jobs_in = f"INSERT INTO {_JOB} ({', '.join(values)}) SELECT {', '.join(values.values())} FROM {source}"
    events_in = (
        f"INSERT INTO {_EVENT} ({_EVENT_COLUMNS}) SELECT 'job.enqueued', {now}, 'api', '', i.id, 'bench.sync', "
        f"'reference', 'available', 0, '', '', '{{\"priority\":0}}' FROM {source}"
    )
    ids = [[_id() for _ in range(batch)] for _ in range(jobs // batch)]
    started = time.perf_counter()
    with connection.cursor() as cursor:
        for chunk in ids:
            given = chunk if connection.vendor == "postgresql" else json.dumps(chunk)
            cursor.execute("BEGIN" if connection.vendor == "postgresql" else "BEGIN IMMEDIATE")
            for statement in (jobs_in, events_in):
                cursor.execute(statement, [given])
            cursor.execute("COMMIT")
    return len(ids) * batch / (time.perf_counter() - started)


def drain() -> float:
    """Jobs per second claimed and completed in batches of 100, with their two events, until none is left."""
    claim, started_events, complete, completed_events = _drain_statements()
    done, began = 0, time.perf_counter()
    with connection.cursor() as cursor:
        while True:
            cursor.execute("BEGIN" if connection.vendor == "postgresql" else "BEGIN IMMEDIATE")
            cursor.execute(claim)
            ids = [row[0] for row in cursor.fetchall()]
            given = _list(ids)
            if ids:
                cursor.execute(started_events, [given])
            cursor.execute("COMMIT")
            if not ids:
                return done / (time.perf_counter() - began)
            cursor.execute("BEGIN" if connection.vendor == "postgresql" else "BEGIN IMMEDIATE")
            cursor.execute(complete, [given])
            cursor.execute(completed_events, [given])
            cursor.execute("COMMIT")
            done += len(ids)


def _drain_statements() -> tuple[str, str, str, str]:
    postgres = connection.vendor == "postgresql"
    now = "now()" if postgres else "strftime('%%Y-%%m-%%d %%H:%%M:%%f', 'now')"
    lock = "FOR UPDATE SKIP LOCKED" if postgres else ""
    these = "ANY(%s::uuid[])" if postgres else "(SELECT value FROM json_each(%s))"
    match = f"id = {these}" if postgres else f"id IN {these}"
    later = "now() + interval '1 hour'" if postgres else "strftime('%%Y-%%m-%%d %%H:%%M:%%f', 'now', '+1 hour')"
    claim = (
        f"UPDATE {_JOB} SET state = 'active', attempt = attempt + 1, started_at = {now}, worker_id = 'reference', "
        f"visible_until = {later}, timeout_at = {later}, wake_at = {later} WHERE id IN (SELECT id FROM {_JOB} "
        f"WHERE queue = 'reference' AND state = 'available' ORDER BY priority DESC, enqueued_at, id "
        f"LIMIT {BATCH} {lock}) RETURNING id, args"
    )
    complete = (
        f"UPDATE {_JOB} SET state = 'completed', finished_at = {now}, visible_until = NULL, timeout_at = NULL, "
        f"wake_at = NULL WHERE {match} AND state = 'active'"
    )

    def events(kind: str, state: str, data: str) -> str:
        return (
            f"INSERT INTO {_EVENT} ({_EVENT_COLUMNS}) SELECT '{kind}', {now}, 'workers', '', id, type, queue, "
            f"'{state}', 1, 'reference', '', '{data}' FROM {_JOB} WHERE {match}"
        )

    if not postgres:
        claim = claim.replace("%%", "%")
    return (
        claim,
        events("job.started", "active", ""),
        complete,
        events("job.completed", "completed", '{"duration_ms":1}'),
    )


def _list(ids: list[Any]) -> Any:
    return ids if connection.vendor == "postgresql" else json.dumps(ids)


def _id() -> Any:
    new = new_id()
    return new if connection.vendor == "postgresql" else new.hex
