"""SQLite: one writer, so no locks to take; statements prepared once and run for every row in process."""

from __future__ import annotations

import datetime as dt
import json
import uuid
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Any

from django.db import connections, transaction

from django_ojs import clock
from django_ojs.events import catalogue
from django_ojs.events.catalogue import Record
from django_ojs.models import CountDelta, Event, Job, Queue, UniqueLock, Workflow
from django_ojs.models.fields import split
from django_ojs.models.job import COLUMNS, LIMITED, JobRow
from django_ojs.models.queue import TEMPLATE
from django_ojs.states import State, Verb
from django_ojs.store.base import (
    ALIVE,
    COUNTED,
    Ack,
    Claim,
    Store,
    Tally,
    guarded,
    new_jobs,
    under_limit,
    workflow_values,
)

_JOB, _QUEUE, _EVENT, _DELTA = (m._meta.db_table for m in (Job, Queue, Event, CountDelta))
_KINDS = {f.attname: type(f).__name__ for f in Job._meta.concrete_fields}
# Times are text and compared as text, so a full second must look as Django writes it: without a fraction.
_LATER = "replace(strftime('%%Y-%%m-%%d %%H:%%M:%%f', %s, printf('+%%.3f seconds', {ms} / 1000.0)), '.000', '')"


class SQLiteStore(Store):
    """`executemany` is one prepared statement stepped in process: no round trips to save by arrays."""

    skip_locked = False

    def lock_stripes(self, stripes: Sequence[int]) -> None:
        """Nothing to do: `begin_writing` took the only lock there is."""

    def begin_writing(self) -> None:
        """Take the write lock before anything is read, also where the site's transactions would take it late."""
        with connections[self.using].cursor() as cursor:
            cursor.execute(f"DELETE FROM {UniqueLock._meta.db_table} WHERE stripe = %s", [UniqueLock.STRIPES])

    def hold_key(self, digest: str) -> bool:
        """The only write lock there is; the first request with the key has committed when it is given."""
        self.begin_writing()
        return True

    octets = "length(CAST({} AS BLOB))"

    def push(self, rows: Sequence[JobRow], component: str) -> bool:
        marks = ", ".join(["%s"] * len(COLUMNS))
        with transaction.atomic(using=self.using, savepoint=False):
            with connections[self.using].cursor() as cursor:
                cursor.executemany(
                    f"INSERT INTO {_JOB} ({', '.join(COLUMNS)}) VALUES ({marks})",
                    [_all_to_db([row[name] for name in COLUMNS]) for row in rows],
                )
            self.count(new_jobs(rows), rows[0]["created_at"])
            self.insert_events([record for row in rows if (record := catalogue.of_new_job(row, component))])
        return False

    def count(self, tally: Tally, at: dt.datetime | None = None) -> None:
        if deltas := tally.rows(at or clock.now(self.using)):
            marks = ", ".join(["%s"] * len(COUNTED))
            with connections[self.using].cursor() as cursor:
                cursor.executemany(
                    f"INSERT INTO {_DELTA} ({', '.join(COUNTED)}) VALUES ({marks})",
                    [_all_to_db(row) for row in deltas],
                )

    def insert_events(self, records: Sequence[Record]) -> None:
        marks = ", ".join(["%s"] * len(Record._fields))
        with connections[self.using].cursor() as cursor:
            cursor.executemany(
                f"INSERT INTO {_EVENT} ({', '.join(Record._fields)}) VALUES ({marks})",
                [_all_to_db(record) for record in records],
            )

    def claim(self, claim: Claim, columns: Sequence[str] = COLUMNS, *, raw: bool = False) -> list[JobRow]:
        statement = _claim_statement(
            claim.limit, claim.types is not None, claim.visibility_ms, claim.base_visibility_ms,
            claim.base_timeout_ms, tuple(columns), claim.ids is not None, bool(claim.except_ids),
        )  # fmt: skip
        now = _to_db(claim.now)
        params: list[Any] = [claim.worker_id, *[now] * 5, claim.queue, *[now] * (ALIVE.count("%s") + 1)]
        if claim.types is not None:
            params += map(json.dumps, split(claim.types))
        if claim.except_ids:
            params.append(_id_list(claim.except_ids))
        params += [claim.queue] * 2 if claim.ids is None else [_id_list(claim.ids), claim.queue]
        with connections[self.using].cursor() as cursor:
            cursor.execute(statement, params)
            taken = sorted(cursor.fetchall(), key=lambda values: (-values[0], values[1], values[2]))
            if any(values[3] for values in taken):
                members = [(_uuid(values[3]), uuid.UUID(values[2])) for values in taken]
                self.insert_events(self.begin_workflows(members, claim.now))
            if taken:
                cursor.execute(_STARTED, [json.dumps([values[2] for values in taken])])
                waited = _total_ms([values[1] for values in taken], claim.now)
                cursor.execute(_COUNT_STARTED, [claim.queue, now, -len(taken), len(taken), waited])
        return [_from_db(columns, values[4:], raw=raw) for values in taken]

    def complete(
        self, acks: Sequence[Ack], now: dt.datetime, *, with_result: bool, columns: Sequence[str] = COLUMNS
    ) -> list[JobRow]:
        given = json.dumps([[ack.job_id.hex, ack.worker_id, ack.attempt, ack.result] for ack in acks])
        with connections[self.using].cursor() as cursor:
            cursor.execute(_complete_statement(tuple(columns)), [_to_db(now), given])
            done = cursor.fetchall()
            if done:
                ids = json.dumps([values[0] for values in done])
                cursor.execute(_COMPLETED_WITH_RESULT if with_result else _COMPLETED, [ids])
                self.count(_completions(done, now), now)
        return [_from_db(columns, values[3:]) for values in done]

    def save_workflows(self, flows: Sequence[Workflow], columns: Sequence[str]) -> None:
        assignments = ", ".join(f"{name} = %s" for name in columns)
        rows = (_all_to_db(workflow_values(flow, columns)) for flow in flows)
        with connections[self.using].cursor() as cursor:
            cursor.executemany(
                f"UPDATE {Workflow._meta.db_table} SET {assignments} WHERE id = %s",
                [[*values, pk] for pk, *values in rows],
            )

    def update_jobs(self, guard: Verb | State, rows: Sequence[JobRow], columns: Sequence[str]) -> None:
        if not rows:
            return
        sources = ", ".join(f"'{state}'" for state in guarded(guard))
        assignments = ", ".join(f"{name} = %s" for name in columns)
        with connections[self.using].cursor() as cursor:
            tally = self.moved(guard, rows, columns)
            cursor.executemany(
                f"UPDATE {_JOB} SET {assignments} WHERE id = %s AND state IN ({sources})",
                [_all_to_db([*(row[name] for name in columns), row["id"]]) for row in rows],
            )
            self.check_count(guard, rows, cursor.rowcount)
        self.count(tally)


def _completions(done: Sequence[Any], now: dt.datetime) -> Tally:
    """The counts of completed jobs, from rows that begin with id, queue and start."""
    tally = Tally()
    for queue in {values[1] for values in done}:
        starts = [values[2] for values in done if values[1] == queue]
        tally.add(queue, "active", -len(starts))
        tally.add(queue, "completed", len(starts))
        tally.add(queue, "run_ms", _total_ms(starts, now))
    return tally


def _total_ms(starts: Sequence[Any], until: dt.datetime) -> int:
    """The time from these instants to `until`, summed before it becomes a number."""
    end = until.astimezone(dt.UTC).replace(tzinfo=None)
    read = dt.datetime.fromisoformat
    spans = (end - (read(at) if isinstance(at, str) else at.replace(tzinfo=None)) for at in starts if at)
    return round(sum((max(span, dt.timedelta()) for span in spans), dt.timedelta()).total_seconds() * 1000)


def _to_db(value: Any) -> Any:
    """The form in which Django's SQLite backend keeps a value (UTC, as the system check demands)."""
    match value:
        case uuid.UUID():
            return value.hex
        case dt.datetime():
            return str(value.astimezone(dt.UTC).replace(tzinfo=None))
        case _:
            return value


#: What SQLite keeps as it is.
_PLAIN = frozenset({str, int, float, bool, type(None)})


def _all_to_db(values: Iterable[Any]) -> list[Any]:
    """A row's values as the database keeps them. Most need no call: a push of one job converts 68 values."""
    return [value if type(value) in _PLAIN else _to_db(value) for value in values]


def _uuid(value: str | None) -> uuid.UUID | None:
    return uuid.UUID(value) if value else None


def _instant(value: str | dt.datetime) -> dt.datetime:
    """SQLite tells the declared type of a RETURNING column in some versions only; Django parses it then."""
    return (dt.datetime.fromisoformat(value) if isinstance(value, str) else value).replace(tzinfo=dt.UTC)


_READERS: dict[str, Callable[[Any], Any]] = {"UUIDField": uuid.UUID, "DateTimeField": _instant, "BooleanField": bool}
_IDENTITIES = [("id", uuid.UUID), ("workflow_id", uuid.UUID)]
_CONVERTED = [(name, _READERS[kind]) for name, kind in _KINDS.items() if kind in _READERS]


def _from_db(columns: Sequence[str], values: Sequence[Any], *, raw: bool = False) -> JobRow:
    row = dict(zip(columns, values, strict=True))
    for name, convert in _IDENTITIES if raw else _CONVERTED:
        if row.get(name) is not None:
            row[name] = convert(row[name])
    return row


#: Whether the queue delivers, and the job is under no limit or passed it.
_OPEN = (
    f"AND rate_key = '' AND NOT EXISTS (SELECT 1 FROM {_QUEUE} WHERE name = %s AND paused "
    f"OR name IN (%s, '{TEMPLATE}') AND limited)"
)
_OPEN_IF_CHOSEN = (
    f"AND id IN (SELECT value FROM json_each(%s)) AND NOT EXISTS (SELECT 1 FROM {_QUEUE} WHERE name = %s AND paused)"
)


_EXCEPT = "AND id NOT IN (SELECT value FROM json_each(%s))"
#: The types, then the prefixes. json_each has a column `type` of its own.
_OF_TYPES = (
    f"AND (type IN (SELECT value FROM json_each(%s)) OR EXISTS (SELECT 1 FROM json_each(%s) AS prefix "
    f"WHERE substr({_JOB}.type, 1, length(prefix.value)) = prefix.value))"
)


def _id_list(ids: Sequence[uuid.UUID]) -> str:
    return json.dumps([job_id.hex for job_id in ids])


@lru_cache(maxsize=256)
def _claim_statement(
    limit: int,
    typed: bool,
    visibility_ms: int | None,
    base_ms: int,
    timeout_ms: int,
    columns: tuple[str, ...],
    chosen: bool,
    excepting: bool,
) -> str:
    """One UPDATE with RETURNING; first the three columns of the delivery order, which RETURNING does not keep,
    then the workflow."""
    lease = f"coalesce({int(visibility_ms) if visibility_ms else 'NULL'}, visibility_ms, {int(base_ms)})"
    until = _LATER.format(ms=f"min({lease}, coalesce(heartbeat_ms, {lease}))")
    ends = _LATER.format(ms=f"(coalesce(timeout_ms, {int(timeout_ms)}) + coalesce(grace_ms, 0))")
    return (
        f"UPDATE {_JOB} SET state = 'active', attempt = attempt + 1, worker_id = %s, "
        f"started_at = max(%s, coalesce(enqueued_at, '')), "
        f"due_at = NULL, lease_ms = {lease}, visible_until = {until}, timeout_at = {ends}, "
        f"wake_at = min({until}, {ends}, coalesce(deadline_at, '9999')) WHERE state = 'available' AND id IN ("
        f"SELECT id FROM {_JOB} WHERE queue = %s AND state = 'available' "
        f"{ALIVE} AND (due_at IS NULL OR due_at <= %s) "
        f"{_OF_TYPES if typed else ''} {_EXCEPT if excepting else ''} "
        f"{_OPEN_IF_CHOSEN if chosen else _OPEN} "
        f"ORDER BY priority DESC, enqueued_at, id LIMIT {int(limit)}) "
        f"RETURNING priority, enqueued_at, id, workflow_id, {', '.join(columns)}"
    )


@lru_cache(maxsize=16)
def _complete_statement(columns: tuple[str, ...]) -> str:
    shown = ", ".join(under_limit("queue") if name == LIMITED else name for name in columns)
    return (
        f"UPDATE {_JOB} AS j SET state = 'completed', result = a.result, finished_at = max(%s, started_at), "
        f"losses = 0, due_at = NULL, visible_until = NULL, timeout_at = NULL, wake_at = NULL FROM ("
        f"SELECT json_extract(value, '$[0]') AS id, json_extract(value, '$[1]') AS worker, "
        f"json_extract(value, '$[2]') AS attempt, json_extract(value, '$[3]') AS result FROM json_each(%s)) AS a "
        f"WHERE j.id = a.id AND j.state = 'active' AND (a.worker = '' OR j.worker_id = '' OR j.worker_id = a.worker) "
        f"AND (a.attempt IS NULL OR a.attempt = j.attempt) RETURNING id, queue, started_at, {shown}"
    )


def _log_statement(type: str, time: str, data: str) -> str:
    """Append an event of a worker for each of the jobs in a JSON list, from the rows as they are now."""
    return (
        f"INSERT INTO {_EVENT} (type, time, component, subject, job_id, job_type, queue, state, attempt, worker_id, "
        f"trace_id, workflow_id, data) SELECT '{type}', j.{time}, 'workers', '', j.id, j.type, j.queue, j.state, "
        f"j.attempt, j.worker_id, j.trace_id, j.workflow_id, {data} FROM json_each(%s) AS wanted "
        f"CROSS JOIN {_JOB} AS j ON j.id = wanted.value"
    )


_DURATION, _WAIT = (
    f"'{{\"{name}\":' || coalesce(max(0, CAST(round((julianday(j.{until}) - julianday(j.{since})) * 86400000.0) "
    "AS INTEGER)), 0)"
    for name, since, until in (("duration_ms", "started_at", "finished_at"), ("wait_ms", "enqueued_at", "started_at"))
)
_COUNT_STARTED = f"INSERT INTO {_DELTA} (queue, at, available, active, wait_ms) VALUES (%s, %s, %s, %s, %s)"
_STARTED = _log_statement("job.started", "started_at", _WAIT + " || '}'")
_COMPLETED = _log_statement("job.completed", "finished_at", _DURATION + " || '}'")
_COMPLETED_WITH_RESULT = _log_statement(
    "job.completed", "finished_at", _DURATION + " || coalesce(',\"result\":' || j.result, '') || '}'"
)
