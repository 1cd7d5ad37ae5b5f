"""PostgreSQL: arrays in, RETURNING out, SKIP LOCKED in between."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

from django.db import connections
from django.db.models import F, TextField
from django.db.models.functions import Cast

from django_ojs import clock, states
from django_ojs.events import catalogue
from django_ojs.events.catalogue import Record
from django_ojs.models import CountDelta, Event, Job, Queue, Worker, Workflow, WorkflowStart
from django_ojs.models.fields import split
from django_ojs.models.job import COLUMNS, LIMITED, JobRow
from django_ojs.models.queue import TEMPLATE
from django_ojs.states import State, Verb
from django_ojs.store.base import ALIVE, COUNTED, NEW_COLUMNS, Ack, Claim, Store, guarded, under_limit, workflow_values

_JOB, _QUEUE, _EVENT, _WORKER, _WORKFLOW, _START, _DELTA = (
    m._meta.db_table for m in (Job, Queue, Event, Worker, Workflow, WorkflowStart, CountDelta)
)


def _array_types(model: type[Any]) -> dict[str, str]:
    """Column -> array type for unnest(), from the model's own column types."""
    kinds = {
        "UUIDField": "uuid[]", "CharField": "text[]", "TextField": "text[]", "JSONTextField": "text[]",
        "DateTimeField": "timestamptz[]", "BooleanField": "boolean[]", "SmallIntegerField": "smallint[]",
        "IntegerField": "int[]",
        "PositiveSmallIntegerField": "smallint[]", "PositiveIntegerField": "int[]", "BigIntegerField": "bigint[]",
    }  # fmt: skip
    return {f.attname: kinds[type(f).__name__] for f in model._meta.concrete_fields if type(f).__name__ in kinds}


_JOB_ARRAYS = _array_types(Job)
_EVENT_ARRAYS = _array_types(Event)
_DELTA_ARRAYS = _array_types(CountDelta)
_WORKFLOW_ARRAYS = _array_types(Workflow)

#: What every insert into the log says first: the transaction, by which the log is put in order.
_LOG = (
    f"INSERT INTO {_EVENT} (txid, type, time, component, subject, job_id, job_type, queue, state, attempt, "
    f"worker_id, trace_id, workflow_id, data) SELECT pg_current_xact_id()::text::bigint"
)
_NEW_DATA = """CASE state
    WHEN 'available' THEN '{"priority":' || priority
        || CASE WHEN unique_key = '' THEN '' ELSE ',"unique_key":"' || unique_key || '"' END || '}'
    ELSE '{"scheduled_at":"' || to_char(due_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"') || '"}' END"""
_NEW_COUNTS = {str(state): f"count(*) FILTER (WHERE state = '{state}')" for state in states.ordered(states.INITIAL)}
#: Sums of times, cheaply: in floating seconds, which become a number once.
_WAITED_MS = "coalesce(round(sum(date_part('epoch', started_at - enqueued_at)) * 1000)::bigint, 0)"
_RAN_MS = "round(sum(date_part('epoch', finished_at - started_at)) * 1000)::bigint"
_WAIT_MS = "coalesce(round(date_part('epoch', started_at - enqueued_at) * 1000)::bigint, 0)"
_DURATION_MS = "round(date_part('epoch', finished_at - started_at) * 1000)::bigint"


class PostgreSQLStore(Store):
    """One statement for each step, its events included.

    A job is found by a partial index and locked without waiting for others. LIMIT is a literal: as a
    parameter it would be planned anew each time.
    """

    def push(self, rows: Sequence[JobRow], component: str) -> bool:
        if len(rows) == 1:
            found = self._push_one(rows[0], component)
        else:
            found = self._execute(_push_statement(), [*_arrays(rows, NEW_COLUMNS), component])
        return bool(found[0][0])

    def _push_one(self, row: JobRow, component: str) -> list[tuple[Any, ...]]:
        """Three inserts of constants take the server half the time of one that feeds the others."""
        given = tuple(name for name in NEW_COLUMNS if row[name] is not None)
        record = catalogue.of_new_job(row, component)
        statement = _push_one_statement(given, row["state"], logged=record is not None)
        return self._execute(
            statement, [*(row[name] for name in given), row["queue"], row["created_at"], *(record or ())]
        )

    def insert_events(self, records: Sequence[Record]) -> None:
        arrays = _unnest(Record._fields, _EVENT_ARRAYS)
        names = ", ".join(Record._fields)
        self._execute(
            f"INSERT INTO {_EVENT} (txid, {names}) SELECT pg_current_xact_id()::text::bigint, * FROM {arrays}",
            [array_literal(column) for column in zip(*records, strict=True)],
        )

    def claim(self, claim: Claim, columns: Sequence[str] = COLUMNS, *, raw: bool = False) -> list[JobRow]:
        statement = _claim_statement(
            claim.limit, claim.types is not None, tuple(columns), raw=raw, chosen=claim.ids is not None,
            excepting=bool(claim.except_ids),
        )  # fmt: skip
        exact, prefixes = split(claim.types or ())
        found = self._execute(
            statement,
            {
                "queue": claim.queue, "now": claim.now, "worker": claim.worker_id, "types": exact, "prefixes": prefixes,
                "ids": array_literal(claim.ids or ()), "except_ids": array_literal(claim.except_ids),
                "visibility": claim.visibility_ms, "base": claim.base_visibility_ms, "timeout": claim.base_timeout_ms,
            },
        )  # fmt: skip
        return [dict(zip(columns, values, strict=True)) for values in found]

    def complete(
        self, acks: Sequence[Ack], now: dt.datetime, *, with_result: bool, columns: Sequence[str] = COLUMNS
    ) -> list[JobRow]:
        acks = sorted(acks, key=lambda ack: ack.job_id)
        found = self._execute(
            _complete_statement(with_result, tuple(columns)),
            {
                "ids": array_literal([ack.job_id for ack in acks]),
                "results": array_literal([ack.result for ack in acks]),
                "workers": array_literal([ack.worker_id for ack in acks]),
                "attempts": array_literal([ack.attempt for ack in acks]), "now": now,
            },
        )  # fmt: skip
        return [dict(zip(columns, values, strict=True)) for values in found]

    def update_jobs(self, guard: Verb | State, rows: Sequence[JobRow], columns: Sequence[str]) -> None:
        if not rows:
            return
        names = ("id", *columns)
        assignments = ", ".join(f"{name} = v.{name}" for name in columns)
        update = (
            f"UPDATE {_JOB} j SET {assignments} FROM {_unnest(names, _JOB_ARRAYS)} AS v({', '.join(names)}) "
            f"WHERE j.id = v.id AND j.state = ANY(%s)"
        )
        params: list[Any] = [*_arrays(rows, names), list(guarded(guard))]
        if deltas := self.moved(guard, rows, columns).rows(clock.now(self.using)):
            counted = f"INSERT INTO {_DELTA} ({', '.join(COUNTED)}) SELECT * FROM "
            counted += _unnest(COUNTED, _DELTA_ARRAYS)
            update = f"WITH counted AS ({counted}) {update}"
            params = [*(array_literal(column) for column in zip(*deltas, strict=True)), *params]
        with connections[self.using].cursor() as cursor:
            cursor.execute(update, params)
            self.check_count(guard, rows, cursor.rowcount)

    def hold_key(self, digest: str) -> bool:
        """By an advisory lock: a row that is not committed yet cannot be seen. One for each request under way."""
        number = int.from_bytes(bytes.fromhex(digest)[:8], signed=True)
        return bool(self._execute("SELECT pg_try_advisory_xact_lock(%s::bigint)", [number])[0][0])

    def lose_patience(self) -> None:
        self._execute("SET LOCAL lock_timeout = '100ms'", [])

    def instant(self, name: str) -> F | Cast:
        return Cast(F(name), TextField())  # Django's loader of times is Python code

    def save_workflows(self, flows: Sequence[Workflow], columns: Sequence[str]) -> None:
        names = ("id", *columns)
        values = zip(*(workflow_values(flow, columns) for flow in flows), strict=True)
        self._execute(
            f"UPDATE {_WORKFLOW} w SET {', '.join(f'{name} = v.{name}' for name in columns)} "
            f"FROM {_unnest(names, _WORKFLOW_ARRAYS)} AS v({', '.join(names)}) WHERE w.id = v.id",
            [array_literal(column) for column in values],
        )

    def _execute(self, statement: str, params: Any) -> list[tuple[Any, ...]]:
        with connections[self.using].cursor() as cursor:
            cursor.execute(statement, params)
            return cursor.fetchall() if cursor.description else []


#: What a push answers: whether some worker sleeps. Asked here it costs no round trip of its own.
_WORKER_SLEEPS = f"SELECT EXISTS (SELECT 1 FROM {_WORKER} WHERE asleep)"


@lru_cache(maxsize=64)
def _push_one_statement(given: tuple[str, ...], state: str, *, logged: bool) -> str:
    """Insert one job of which these columns are not null, its count, and its event if it has one."""
    event = f"pg_current_xact_id()::text::bigint, {_marks(Record._fields)}"
    log = f", logged AS (INSERT INTO {_EVENT} (txid, {', '.join(Record._fields)}) VALUES ({event}))" if logged else ""
    return (
        f"WITH inserted AS (INSERT INTO {_JOB} ({', '.join(given)}, attempt, losses, dead_letter, worker_id, errors) "
        f"VALUES ({_marks(given)}, 0, 0, false, '', '')), "
        f"counted AS (INSERT INTO {_DELTA} (queue, at, {state}) VALUES (%s, %s, 1)){log} {_WORKER_SLEEPS}"
    )


@lru_cache(maxsize=1)
def _push_statement() -> str:
    """Insert jobs from arrays, and their events from the rows just inserted."""
    names = ", ".join(NEW_COLUMNS)
    return (
        f"WITH inserted AS (INSERT INTO {_JOB} ({names}, attempt, losses, dead_letter, worker_id, errors) "
        f"SELECT b.*, 0, 0, false, '', '' FROM {_unnest(NEW_COLUMNS, _JOB_ARRAYS)} AS b RETURNING {names}), "
        f"counted AS (INSERT INTO {_DELTA} (queue, at, {', '.join(_NEW_COUNTS)}) SELECT queue, max(created_at), "
        f"{', '.join(_NEW_COUNTS.values())} FROM inserted GROUP BY queue), "
        f"logged AS ({_LOG}, CASE state WHEN 'available' THEN 'job.enqueued' ELSE 'job.scheduled' END, "
        f"created_at, %s, '', id, type, queue, state, 0, '', trace_id, workflow_id, {_NEW_DATA} FROM inserted "
        f"WHERE state <> 'pending') {_WORKER_SLEEPS}"
    )


#: Whether the queue delivers, and the job is under no limit or passed it.
_OPEN = (
    f"AND rate_key = '' AND NOT EXISTS (SELECT 1 FROM {_QUEUE} WHERE name = %(queue)s AND paused "
    f"OR name IN (%(queue)s, '{TEMPLATE}') AND limited)"
)
_OPEN_IF_CHOSEN = (
    f"AND id = ANY(%(ids)s::uuid[]) AND NOT EXISTS (SELECT 1 FROM {_QUEUE} WHERE name = %(queue)s AND paused)"
)
_EXCEPT = "AND id <> ALL(%(except_ids)s::uuid[])"
_OF_TYPES = "AND (type = ANY(%(types)s) OR type ^@ ANY(%(prefixes)s::text[]))"


@lru_cache(maxsize=256)
def _claim_statement(
    limit: int, typed: bool, columns: tuple[str, ...], *, raw: bool, chosen: bool, excepting: bool
) -> str:
    """The inner query fixes which rows; the update repeats the state, so that a row is claimed once whatever
    the locks do."""
    lease = "coalesce(%(visibility)s::bigint, j.visibility_ms, %(base)s::bigint)"
    until = f"%(now)s::timestamptz + least({lease}, j.heartbeat_ms) * interval '1 millisecond'"
    limit_ms = "coalesce(j.timeout_ms, %(timeout)s::bigint) + coalesce(j.grace_ms, 0)"
    ends = f"%(now)s::timestamptz + ({limit_ms}) * interval '1 millisecond'"
    logged = ("id", "type", "queue", "attempt", "worker_id", "trace_id", "workflow_id", "priority", "enqueued_at",
              "started_at")  # fmt: skip
    # Django's loader of times is Python code: as text they cost next to nothing.
    shown = [f"{name}::text" if raw and _JOB_ARRAYS[name] == "timestamptz[]" else name for name in columns]
    returned = ", ".join(f"j.{name}" for name in dict.fromkeys((*columns, *logged)))
    return (
        f"WITH picked AS MATERIALIZED (SELECT id FROM {_JOB} WHERE queue = %(queue)s AND state = 'available' "
        f"{ALIVE.replace('%s', '%(now)s')} AND (due_at IS NULL OR due_at <= %(now)s) "
        f"{_OF_TYPES if typed else ''} {_EXCEPT if excepting else ''} {_OPEN_IF_CHOSEN if chosen else _OPEN} "
        f"ORDER BY priority DESC, enqueued_at, id LIMIT {int(limit)} FOR UPDATE SKIP LOCKED), "
        f"claimed AS (UPDATE {_JOB} j SET state = 'active', attempt = j.attempt + 1, "
        f"started_at = greatest(%(now)s, j.enqueued_at), worker_id = %(worker)s, due_at = NULL, "
        f"lease_ms = {lease}, visible_until = {until}, timeout_at = {ends}, "
        f"wake_at = least({until}, {ends}, j.deadline_at) "
        f"FROM picked WHERE j.id = picked.id AND j.state = 'available' RETURNING {returned}), "
        f"began AS (INSERT INTO {_START} (workflow_id, job_id, started_at) SELECT DISTINCT ON (workflow_id) "
        f"workflow_id, id, %(now)s::timestamptz FROM claimed WHERE workflow_id IS NOT NULL "
        f"ORDER BY workflow_id, priority DESC, enqueued_at, id ON CONFLICT DO NOTHING RETURNING workflow_id, job_id), "
        f"logged AS ({_LOG}, e.* FROM (SELECT 'workflow.started', %(now)s::timestamptz, 'api', "
        f"coalesce(w.own_id, w.id::text), NULL::uuid, '', '', '', 0, '', c.trace_id, w.id, '{{' || w.facts || '}}' "
        f"FROM began JOIN {_WORKFLOW} w ON w.id = began.workflow_id JOIN claimed c ON c.id = began.job_id UNION ALL "
        f"SELECT 'job.started', started_at, 'workers', '', id, type, queue, 'active', attempt, worker_id, "
        f"trace_id, workflow_id, '{{\"wait_ms\":' || {_WAIT_MS} || '}}' FROM claimed) AS e), "
        f"counted AS (INSERT INTO {_DELTA} (queue, at, available, active, wait_ms) "
        f"SELECT %(queue)s, %(now)s, -count(*), count(*), {_WAITED_MS} FROM claimed HAVING count(*) > 0) "
        f"SELECT {', '.join(shown)} FROM claimed ORDER BY priority DESC, enqueued_at, id"
    )


@lru_cache(maxsize=16)
def _complete_statement(with_result: bool, columns: tuple[str, ...]) -> str:
    """The jobs are locked in the order of their ids first, so that flushes that overlap do not deadlock."""
    logged = ("id", "type", "queue", "attempt", "worker_id", "trace_id", "workflow_id", "started_at", "finished_at",
              "result", "rate_key")  # fmt: skip
    returned = ", ".join(f"j.{name}" for name in dict.fromkeys((*columns, *logged)) if name != LIMITED)
    shown = ", ".join(under_limit("done.queue") if name == LIMITED else name for name in columns)
    result = "|| coalesce(',\"result\":' || result, '')" if with_result else ""
    return (
        f"WITH a AS (SELECT * FROM unnest(%(ids)s::uuid[], %(results)s::text[], %(workers)s::text[], "
        f"%(attempts)s::int[]) AS a(id, result, worker, attempt)), "
        f"locked AS MATERIALIZED (SELECT id FROM {_JOB} WHERE id = ANY(%(ids)s::uuid[]) ORDER BY id FOR UPDATE), "
        f"done AS (UPDATE {_JOB} j SET state = 'completed', result = a.result, losses = 0, "
        f"finished_at = greatest(%(now)s, j.started_at), "
        f"due_at = NULL, visible_until = NULL, timeout_at = NULL, wake_at = NULL "
        f"FROM a JOIN locked ON locked.id = a.id WHERE j.id = a.id AND j.state = 'active' "
        f"AND (a.worker = '' OR j.worker_id = '' OR j.worker_id = a.worker) "
        f"AND (a.attempt IS NULL OR a.attempt = j.attempt) RETURNING {returned}), "
        f"logged AS ({_LOG}, 'job.completed', finished_at, 'workers', '', id, type, queue, 'completed', attempt, "
        f"worker_id, trace_id, workflow_id, '{{\"duration_ms\":' || {_DURATION_MS} {result} || '}}' FROM done), "
        f"counted AS (INSERT INTO {_DELTA} (queue, at, active, completed, run_ms) "
        f"SELECT queue, %(now)s, -count(*), count(*), {_RAN_MS} FROM done GROUP BY queue) "
        f"SELECT {shown} FROM done"
    )


def _marks(names: Iterable[str]) -> str:
    return ", ".join("%s" for _ in names)


def _arrays(rows: Sequence[JobRow], names: Iterable[str]) -> list[str]:
    return [array_literal([row[name] for row in rows]) for name in names]


def array_literal(values: Iterable[Any]) -> str:
    """A PostgreSQL array in its text form: five times as fast as the driver's own, which asks each value's type."""
    values = list(values)
    if values and values.count(values[0]) == len(values):  # most columns of a batch say the same in every row
        return "{" + ",".join([_element(values[0])] * len(values)) + "}"
    return "{" + ",".join(map(_element, values)) + "}"


def _element(value: Any) -> str:
    if value is None:
        return "NULL"
    if type(value) is int:
        return str(value)
    text = str(value)
    if "\\" in text or '"' in text:
        text = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{text}"'


def _unnest(names: Iterable[str], arrays: dict[str, str]) -> str:
    return f"unnest({', '.join('%s::' + arrays[name] for name in names)})"
