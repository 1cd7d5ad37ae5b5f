"""What plain SQL reaches with the same rows and commits, without Python between: on the tables of django-ojs, and on
lean ones, which have only what a queue needs.

Where the database is neither PostgreSQL nor SQLite there is no reference.
"""

from __future__ import annotations

import json
import threading
import time
from typing import Any, NamedTuple

from django.db import connection, connections

from benchmarks.measures import BULK
from django_ojs.models import Event, Job
from django_ojs.rules.ids import new_job_id

BATCH = 100
_EVENT_COLUMNS = "type, time, component, subject, job_id, job_type, queue, state, attempt, worker_id, trace_id, data"
_JOB_VALUES = {
    "id": "i.id", "type": "'bench.sync'", "queue": "'reference'", "state": "'available'", "max_attempts": "3",
    "args": "'[1]'", "meta": "'{}'", "timeout_ms": "1800000",
}  # fmt: skip
#: A queue and its log as one would write them for one purpose: a key, what a claim orders by, and one partial index.
_LEAN_TABLES = """
CREATE TABLE IF NOT EXISTS bench_job (
    id {id} PRIMARY KEY, type varchar(255) NOT NULL, queue varchar(255) NOT NULL, state varchar(16) NOT NULL,
    priority integer NOT NULL, attempt integer NOT NULL, args text NOT NULL, enqueued_at {time} NOT NULL,
    started_at {time}, finished_at {time}, worker_id varchar(255) NOT NULL
);
CREATE INDEX IF NOT EXISTS bench_claim ON bench_job (queue, priority DESC, enqueued_at, id) WHERE state = 'available';
CREATE TABLE IF NOT EXISTS bench_event (
    id {serial} PRIMARY KEY, type varchar(64) NOT NULL, time {time} NOT NULL, job_id {id}, data text NOT NULL
)
"""


class Tables(NamedTuple):
    """Where the rows go, and what a row has there."""

    job: str
    event: str
    event_columns: str

    @property
    def lean(self) -> bool:
        return self.job == "bench_job"


OWN = Tables(Job._meta.db_table, Event._meta.db_table, _EVENT_COLUMNS)
LEAN = Tables("bench_job", "bench_event", "type, time, job_id, data")
TABLES = {"ours": OWN, "lean": LEAN}


def job_values(now: str) -> dict[str, str]:
    """A literal for every column that must not be null: what a plain job has there."""
    given = {**_JOB_VALUES, "created_at": now, "enqueued_at": now}
    zeros = {"BooleanField": "false", "CharField": "''", "TextField": "''", "JSONTextField": "''"}
    missing = [f for f in Job._meta.concrete_fields if not f.null and f.attname not in given]
    return given | {f.attname: zeros.get(type(f).__name__, "0") for f in missing}


def available() -> bool:
    return connection.vendor in ("postgresql", "sqlite")


def _postgres() -> bool:
    return connection.vendor == "postgresql"


def insert(jobs: int, batch: int, tables: Tables = OWN) -> float:
    """Jobs per second inserted with one event each, `batch` to a commit."""
    statements = _insert_statements(tables)
    ids = [[_id() for _ in range(batch)] for _ in range(jobs // batch)]
    started = time.perf_counter()
    with connection.cursor() as cursor:
        for chunk in ids:
            if _postgres():  # one statement is a transaction by itself
                cursor.execute(statements[0], [chunk])
                continue
            cursor.execute("BEGIN IMMEDIATE")
            for statement in statements:
                cursor.execute(statement, [json.dumps(chunk)])
            cursor.execute("COMMIT")
    return len(ids) * batch / (time.perf_counter() - started)


def _insert_statements(tables: Tables) -> tuple[str, ...]:
    now = _now().replace("%", "%%")
    source = "unnest(%s::uuid[]) AS i(id)" if _postgres() else "(SELECT value AS id FROM json_each(%s)) AS i"
    values = _lean_values(now) if tables.lean else job_values(now)
    jobs_in = f"INSERT INTO {tables.job} ({', '.join(values)}) SELECT {', '.join(values.values())} FROM {source}"
    event = _event(tables, "job.enqueued", now, "i.id", "'bench.sync', 'reference'", "available", '{"priority":0}')
    events_in = f"INSERT INTO {tables.event} ({tables.event_columns}) SELECT {event} FROM "
    if _postgres():
        return (f"WITH i AS ({jobs_in} RETURNING id) {events_in} i",)
    return jobs_in, events_in + source


def _lean_values(now: str) -> dict[str, str]:
    kept = {name: _JOB_VALUES[name] for name in ("id", "type", "queue", "state", "args")}
    return kept | {"priority": "0", "attempt": "0", "enqueued_at": now, "worker_id": "''"}


def _event(tables: Tables, kind: str, now: str, job: str, of_job: str, state: str, data: str) -> str:
    if tables.lean:
        return f"'{kind}', {now}, {job}, '{data}'"
    return f"'{kind}', {now}, 'api', '', {job}, {of_job}, '{state}', 1, 'reference', '', '{data}'"


def drain(jobs: int, processes: int = 1, tables: Tables = OWN) -> float:
    """Jobs per second claimed and completed in batches of 100, with their two events, until none is left.

    Each of the `processes` is a connection with a thread here, which does nothing but wait for the server.
    """
    if tables.lean:
        _make_lean_tables()
    insert(jobs, BULK, tables)
    if _postgres():
        with connection.cursor() as cursor:
            cursor.execute(f"ANALYZE {tables.job}")
    began = time.perf_counter()
    errors: list[BaseException] = []

    def work() -> None:
        try:
            _drain(tables)
        except BaseException as error:  # noqa: BLE001 - raised below, in the main thread
            errors.append(error)
        finally:
            connections["default"].close()

    threads = [threading.Thread(target=work) for _ in range(processes)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return jobs / (time.perf_counter() - began)


def _drain(tables: Tables) -> None:
    claim, started_events, complete, completed_events = _drain_statements(tables)
    begin = "BEGIN" if _postgres() else "BEGIN IMMEDIATE"
    with connections["default"].cursor() as cursor:
        while True:
            cursor.execute(begin)
            cursor.execute(claim)
            ids = [row[0] for row in cursor.fetchall()]
            given = ids if _postgres() else json.dumps(ids)
            if ids:
                cursor.execute(started_events, [given])
            cursor.execute("COMMIT")
            if not ids:
                return
            cursor.execute(begin)
            cursor.execute(complete, [given])
            cursor.execute(completed_events, [given])
            cursor.execute("COMMIT")


def _drain_statements(tables: Tables) -> tuple[str, str, str, str]:
    now = _now()
    lock = "FOR UPDATE SKIP LOCKED" if _postgres() else ""
    match = "id = ANY(%s::uuid[])" if _postgres() else "id IN (SELECT value FROM json_each(%s))"
    later = "now() + interval '1 hour'" if _postgres() else "strftime('%Y-%m-%d %H:%M:%f', 'now', '+1 hour')"
    reserve = "" if tables.lean else f", visible_until = {later}, timeout_at = {later}, wake_at = {later}"
    free = "" if tables.lean else ", visible_until = NULL, timeout_at = NULL, wake_at = NULL"
    claim = (
        f"UPDATE {tables.job} SET state = 'active', attempt = attempt + 1, started_at = {now}, "
        f"worker_id = 'reference'{reserve} WHERE id IN (SELECT id FROM {tables.job} "
        f"WHERE queue = 'reference' AND state = 'available' ORDER BY priority DESC, enqueued_at, id "
        f"LIMIT {BATCH} {lock}) RETURNING id, args"
    )
    now = now.replace("%", "%%")
    complete = (
        f"UPDATE {tables.job} SET state = 'completed', finished_at = {now}{free} WHERE {match} AND state = 'active'"
    )

    def events(kind: str, state: str, data: str) -> str:
        event = _event(tables, kind, now, "id", "type, queue", state, data)
        return f"INSERT INTO {tables.event} ({tables.event_columns}) SELECT {event} FROM {tables.job} WHERE {match}"

    return (
        claim,
        events("job.started", "active", ""),
        complete,
        events("job.completed", "completed", '{"duration_ms":1}'),
    )


def _make_lean_tables() -> None:
    types = (
        {"id": "uuid", "time": "timestamptz", "serial": "bigserial"}
        if _postgres()
        else {"id": "char(32)", "time": "datetime", "serial": "integer"}
    )
    with connection.cursor() as cursor:
        for statement in _LEAN_TABLES.split(";"):
            cursor.execute(statement.format(**types))
        for table in (LEAN.job, LEAN.event):
            cursor.execute(f"TRUNCATE {table}" if _postgres() else f"DELETE FROM {table}")


def _now() -> str:
    return "now()" if _postgres() else "strftime('%Y-%m-%d %H:%M:%f', 'now')"


def _id() -> Any:
    new = new_job_id()
    return new if _postgres() else new.hex
