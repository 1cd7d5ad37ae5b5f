"""Makes the statements for PostgreSQL: each takes jobs as arrays, skips locked rows and returns what it changed."""

from __future__ import annotations

import contextlib
import datetime as dt
import uuid
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import AbstractContextManager
from functools import lru_cache
from itertools import accumulate
from operator import itemgetter
from typing import Any, NamedTuple

from django.db import connections
from django.db.models import F, QuerySet, TextField
from django.db.models.functions import Cast

from django_ojs import clock, lockwaits, states
from django_ojs.database import atomic, in_own_transaction
from django_ojs.events import catalogue
from django_ojs.events.catalogue import Record
from django_ojs.faults import LostRace
from django_ojs.models import (
    CountDelta,
    Event,
    IdempotencyKey,
    Job,
    JobAttempt,
    Queue,
    UniqueLock,
    Worker,
    Workflow,
    WorkflowStart,
    WorkflowStep,
)
from django_ojs.models.fields import split
from django_ojs.models.job import COLUMNS, LIMITED, JobRow
from django_ojs.models.queue import TEMPLATE
from django_ojs.states import State, Verb
from django_ojs.store import eventdata, prepared
from django_ojs.store.conditions import ALIVE, guarded_states, obstacles, under_limit
from django_ojs.store.counts import COUNTED
from django_ojs.store.newjobs import NEW_COLUMNS, NEW_DEFAULTS, compared, new_constant, said
from django_ojs.store.orm import M, Store, ended_attempts
from django_ojs.store.values import (
    MEMBERSHIP,
    Ack,
    Claim,
    EndedAttempt,
    EndedMembers,
    FlowChange,
    Heard,
    Membership,
    Running,
    StoredKey,
)
from django_ojs.store.workflows import (
    BESIDE,
    members,
    members_statement,
    membership,
    memberships_statement,
    results_before,
    results_statement,
    shown_beside,
    workflow_values,
)

_JOB, _QUEUE, _EVENT, _WORKER, _WORKFLOW, _START, _DELTA, _LOCK = (
    m._meta.db_table for m in (Job, Queue, Event, Worker, Workflow, WorkflowStart, CountDelta, UniqueLock)
)
_KEY, _STEP, _ATTEMPT = (m._meta.db_table for m in (IdempotencyKey, WorkflowStep, JobAttempt))


def _array_types(model: type[Any]) -> dict[str, str]:
    """Column -> array type for unnest(), from the model's own column types."""
    kinds = {
        "UUIDField": "uuid[]", "CharField": "text[]", "TextField": "text[]",
        "DateTimeField": "timestamptz[]", "BooleanField": "boolean[]", "SmallIntegerField": "smallint[]",
        "IntegerField": "int[]",
        "PositiveSmallIntegerField": "smallint[]", "PositiveIntegerField": "int[]", "BigIntegerField": "bigint[]",
    }  # fmt: skip
    found = {field.attname: field.get_internal_type() for field in model._meta.concrete_fields}
    return {name: kinds[kind] for name, kind in found.items() if kind in kinds}


_JOB_ARRAYS = _array_types(Job)
_JOB_TYPES = {name: kind.removesuffix("[]") for name, kind in _JOB_ARRAYS.items()}
_EVENT_ARRAYS = _array_types(Event)
_DELTA_ARRAYS = _array_types(CountDelta)
_ATTEMPT_ARRAYS = _array_types(JobAttempt)
_WORKFLOW_ARRAYS = _array_types(Workflow)

#: What every insert into the log says first: the transaction, by which the log is put in order.
_LOG = (
    f"INSERT INTO {_EVENT} (txid, type, time, component, subject, job_id, job_type, queue, state, attempt, "
    f"worker_id, trace_id, workflow_id, data) SELECT pg_current_xact_id()::text::bigint"
)
_SQL = eventdata.Dialect(
    instant=lambda column: f"""to_char({column} AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"')""",
    elapsed=lambda since, until: f"coalesce(round(date_part('epoch', {until} - {since}) * 1000)::bigint, 0)",
)
_STARTED = eventdata.values("job.started", _SQL, state="'active'", attempt="attempt")
_NEW_COUNTS = {str(state): f"count(*) FILTER (WHERE state = '{state}')" for state in states.ordered(states.INITIAL)}
#: Sums of times, cheaply: in floating seconds, which become a number once.
_WAITED_MS = "coalesce(round(sum(date_part('epoch', started_at - enqueued_at)) * 1000)::bigint, 0)"
_RAN_MS = "round(sum(date_part('epoch', finished_at - started_at)) * 1000)::bigint"


#: Rows of one insert, where a push is sent in several: the server inserts them while the next are written.
PART = 250


class PostgreSQLStore(Store):
    """The store on PostgreSQL: one statement for each step of a job, which writes the events too.

    A job is found by a partial index and locked without waiting for others. The server plans each statement once for
    a connection (`store.prepared`), so none may depend on how many rows a plan for other parameters would meet.
    """

    single_statements = True
    claims_optimistically = True

    def needs_warmup(self) -> bool:
        return prepared.are_old(self.using)

    def takes_rows_as_they_come(self, count: int) -> bool:
        return count >= 2 * PART and prepared.can_pipeline(self.using)

    def push(self, rows: Sequence[JobRow], component: str, change: FlowChange | None = None) -> bool:
        if change and (change.stored or len(rows) >= 2 * PART):
            self.save(change)
            change = None
        are_made = isinstance(rows, list)
        if self.takes_rows_as_they_come(len(rows)) and not (are_made and in_own_transaction(self.using)):
            parts = (_pushing(rows[start : start + PART], component) for start in range(0, len(rows), PART))
            with self._one_transaction():
                return any(found[0][0] for found in prepared.pipelined(self.using, parts))
        if len(rows) == 1:
            statement, given = _pushing_one(rows[0], component, change, self._lock_timeout)
        else:
            statement, given = _pushing(rows, component, change, self._lock_timeout)
        ((worker_sleeps,),) = prepared.execute(self.using, statement, given)
        if change:
            change.stored = True
        return bool(worker_sleeps)

    def _one_transaction(self) -> AbstractContextManager[None]:
        """The transaction that is open, or one for what follows."""
        if connections[self.using].in_atomic_block:
            return contextlib.nullcontext()
        return atomic(using=self.using)

    def push_if_free(
        self, row: JobRow, component: str, wanted: Sequence[State], since: dt.datetime | None
    ) -> bool | None:
        """The lock and the insert travel together, as two statements: one statement would not see what was committed
        while it waited for the lock."""
        pipelines = prepared.can_pipeline(self.using)
        if not (pipelines or self.takes_scripts):
            return None
        names, given = _new_parameters(row, component)
        unless = _Unless(tuple(map(str, wanted)), aged=since is not None)
        insert = _push_one_statement(names, row["state"], logged="event" in given, unless=unless)
        given |= {"stripes": array_literal([UniqueLock.of(row["unique_key"])]), "since": since}
        if pipelines:
            _, found = prepared.pipelined(self.using, [(_lock_stripes(self._lock_timeout), given), (insert, given)])
            free, sleeps = found[0]
        else:
            with connections[self.using].cursor() as cursor:
                cursor.execute(f"{_lock_stripes(self._lock_timeout)}; {insert}", given)
                cursor.nextset()
                free, sleeps = cursor.fetchone()
        return sleeps if free else None

    @property
    def takes_scripts(self) -> bool:
        """Whether statements can be sent together. Not where the site has the server put in the parameters."""
        return not connections[self.using].settings_dict["OPTIONS"].get("server_side_binding")

    def lock_stripes(self, stripes: Sequence[int]) -> None:
        """One statement makes and locks the rows, each in its turn: a condition that is never true leaves them as they
        are, and they are locked before it is asked."""
        self._execute(_lock_stripes(self._lock_timeout), {"stripes": array_literal(stripes)})

    def lock_live(self, keys: Sequence[str], live: Sequence[State]) -> list[JobRow]:
        """The jobs are found key by key first, and mostly there are none. While the table is small, a plan for many
        keys at once reads all of it, and it is kept while the table grows."""
        found = self._execute(_with_keys_statement(tuple(map(str, live))), [array_literal(keys)])
        if not found:
            return []
        locked = self._execute(
            f"SELECT {', '.join(COLUMNS)} FROM {_JOB} j WHERE id = ANY(%s::uuid[]) AND {_still(*live)} "
            f"ORDER BY id FOR UPDATE",
            [array_literal(job_id for (job_id,) in found)],
        )
        return [dict(zip(COLUMNS, values, strict=True)) for values in locked]

    def insert_events(self, records: Sequence[Record]) -> None:
        self._execute(_INSERT_EVENTS, [array_literal(column) for column in zip(*records, strict=True)])

    def claim(self, claim: Claim, columns: Sequence[str] = COLUMNS, *, raw: bool = False) -> list[list[JobRow]]:
        if len(claim.queues) == len(claim.claimants) == 1:
            (claimant,), ((queue, base),) = claim.claimants, claim.queues.items()
            given: dict[str, Any] = {
                "queue": queue, "base": base, "worker": claimant.worker_id, "visibility": claimant.visibility_ms,
            }  # fmt: skip
        else:
            ends = [*accumulate(claimant.limit for claimant in claim.claimants)]
            given = {
                "queues": array_literal(claim.queues), "bases": array_literal(claim.queues.values()),
                "workers": array_literal(claimant.worker_id for claimant in claim.claimants),
                "visibilities": array_literal(claimant.visibility_ms for claimant in claim.claimants),
                "ends": array_literal(ends), "begins": array_literal([0, *ends[:-1]]),
            }  # fmt: skip
        shared = "queues" in given
        statement = _claim_statement(
            _power_of_two(claim.limit), claim.types is not None, tuple(columns), raw=raw, chosen=claim.ids is not None,
            admitted=claim.roomy or claim.ids is not None,
            excepting=bool(claim.except_ids), shared=shared,
            optimistic=claim.optimistic, unsuspected=claim.unsuspected, lock_timeout=self._lock_timeout,
        )  # fmt: skip
        exact, prefixes = split(claim.types or ())
        given |= {
            "limit": claim.limit, "now": claim.now, "timeout": claim.base_timeout_ms, "types": exact,
            "prefixes": prefixes, "ids": array_literal(claim.ids or ()),
            "except_ids": array_literal(claim.except_ids),
        }  # fmt: skip
        found = prepared.execute(self.using, statement, given, urgent=claim.urgent)
        if claim.optimistic and not claim.urgent:
            found = prepared.practise(self.using, statement, given, found)
        if not shared:
            return [[_claimed_row(columns, values) for values in found]]
        rows: list[list[JobRow]] = [[] for _ in claim.claimants]
        for place, *values in found:
            rows[place - 1].append(_claimed_row(columns, values))
        return rows

    def complete(
        self, acks: Sequence[Ack], now: dt.datetime, *, with_result: bool, columns: Sequence[str] = COLUMNS,
        members: bool = True, skip_locked: bool = False,
    ) -> list[JobRow]:  # fmt: skip
        skip_locked = skip_locked or not members
        statement = _complete_statement(with_result, tuple(columns), members=members, skip_locked=skip_locked)
        found = self._execute(statement, _reported(acks, now))
        return [dict(zip(columns, values, strict=True)) for values in found]

    def complete_members(
        self, acks: Sequence[Ack], now: dt.datetime, *, with_result: bool, columns: Sequence[str], errors: bool,
        skip_locked: bool = False,
    ) -> tuple[list[JobRow], EndedMembers | None]:  # fmt: skip
        statement, names = _complete_members_statement(
            with_result, tuple(columns), errors=errors, skip_locked=skip_locked, lock_timeout=self._lock_timeout
        )
        rows: list[JobRow] = []
        places = []
        for values in self._execute(statement, _reported(acks, now)):
            row: JobRow = dict(zip(names, values))  # noqa: B905 - behind them is where it is in its workflow
            rows.append(row)
            position, step, kind, created, began, *beside = values[len(names) :]
            if position is not None:
                job = (*_of_ended(row), row["errors"] if errors else None)
                places.append((row["workflow_id"], position, step, row["id"], kind, State.COMPLETED, *job,
                               _instant(created), began and _instant(began), *beside))  # fmt: skip
        return rows, members(places)

    def update_jobs(self, guard: Verb | State, rows: Sequence[JobRow], columns: Sequence[str]) -> None:
        if not rows:
            return
        names = ("id", *columns)
        assignments = ", ".join(f"{name} = v.{name}" for name in columns)
        update = (
            f"UPDATE {_JOB} j SET {assignments} FROM {_unnest(names, _JOB_ARRAYS)} AS v({', '.join(names)}) "
            f"WHERE j.id = v.id AND j.state = ANY(%s)"
        )
        params: list[Any] = [*_arrays(rows, names), list(guarded_states(guard))]
        beside = []
        if ended := ended_attempts(rows):
            beside.append(f"ended AS ({_INSERT_ATTEMPTS})")
            params = [*map(array_literal, zip(*ended, strict=True)), *params]
        if deltas := self.moved(guard, rows, columns).rows(clock.now(self.using)):
            counted = f"INSERT INTO {_DELTA} ({', '.join(COUNTED)}) SELECT * FROM "
            counted += _unnest(COUNTED, _DELTA_ARRAYS)
            beside.insert(0, f"counted AS ({counted})")
            params = [*map(array_literal, zip(*deltas, strict=True)), *params]
        if beside:
            update = f"WITH {', '.join(beside)} {update}"
        with connections[self.using].cursor() as cursor:
            cursor.execute(update, params)
            self.check_count(guard, rows, cursor.rowcount)
        self.trim_attempts(ended)

    def hold_keys(self, digests: Sequence[str], now: dt.datetime) -> dict[str, StoredKey | None]:
        """By an advisory lock for each request under way: a row that is not committed yet cannot be seen.

        The look is as old as the statement, so it may miss what was committed just before the lock was had. Then
        `keep_answers` finds it.
        """
        numbers = [int.from_bytes(bytes.fromhex(digest)[:8], signed=True) for digest in digests]
        found = self._execute(_hold_keys(self._lock_timeout), [array_literal(digests), array_literal(numbers)])
        return {digest: StoredKey(digest, *stored) if stored[0] else None for digest, *stored in found}

    def keep_answers(self, keys: Sequence[StoredKey], free: Sequence[str], stale: dt.datetime) -> None:
        if not keys:
            return
        arrays = [array_literal(column) for column in zip(*keys, strict=True)]
        with connections[self.using].cursor() as cursor:
            cursor.execute(_KEEP_ANSWERS, [*arrays, stale])
            if cursor.rowcount < len(keys):
                raise LostRace("Another request with this idempotency key was first.")

    def set_lock_timeout(self) -> None:
        with connections[self.using].cursor() as cursor:
            cursor.execute(f"SELECT {_setting(lockwaits.SHARED)}")

    def with_lock_timeout(self, rows: QuerySet[M]) -> QuerySet[M]:
        return rows.extra(where=[_within(self._lock_timeout)]) if self._lock_timeout else rows  # noqa: S610 - no text of a caller's

    @property
    def _lock_timeout(self) -> float | None:
        return lockwaits.lock_timeout(self.using)

    def instant(self, name: str) -> F | Cast:
        return Cast(F(name), TextField())  # Django's loader of times is Python code

    def lock_members(self, jobs: Collection[uuid.UUID], flows: Collection[uuid.UUID], *, errors: bool) -> EndedMembers:
        found = self._execute(_members_statement(errors), [array_literal(sorted(flows)), array_literal(jobs)])
        return members(
            (*row[:12], row[12] and _instant(row[12]), row[13] and _instant(row[13]), *row[14:]) for row in found
        )

    def memberships(self, jobs: Collection[uuid.UUID]) -> list[Membership]:
        found = self._execute(_MEMBERSHIPS, [array_literal(jobs)])
        return [membership(job, flow, at, _instant(created), before) for job, flow, at, created, before in found]

    def results(self, places: Collection[tuple[uuid.UUID, int]]) -> dict[tuple[uuid.UUID, int], Heard]:
        if not places:
            return {}
        found = self._execute(_RESULTS, [array_literal(column) for column in zip(*places, strict=True)])
        return {(flow, position): Heard(*rest) for flow, position, *rest in found}

    def save_workflows(
        self, flows: Sequence[Workflow | Running], columns: Sequence[str], records: Sequence[Record]
    ) -> None:
        change = FlowChange(flows, columns, records)
        saving = _saving_of(tuple(columns), told=bool(records))
        log = f"{_LOG}, e.* FROM ({saving.told}) AS e" if saving.told else "SELECT 1"
        self._execute(f"WITH {saving.saved} {log}", _changed(change))

    def _execute(self, statement: str, params: Any) -> list[tuple[Any, ...]]:
        return prepared.execute(self.using, statement, params)


def _setting(seconds: float) -> str:
    """An expression that lets no later statement of the transaction, and nothing that comes behind it in its own, wait
    longer for a lock; as a function, because it may be part of a statement, and ends with the transaction."""
    return f"set_config('lock_timeout', '{round(seconds * 1000)}ms', true)"


def _within(lock_timeout: float | None) -> str:
    """A condition that is true for every row, and sets the timeout, in seconds, before it comes to the first."""
    return f"(SELECT {_setting(lock_timeout)}) <> ''" if lock_timeout else "true"


@lru_cache(maxsize=8)
def _lock_stripes(lock_timeout: float | None) -> str:
    return (
        f"INSERT INTO {_LOCK} (stripe, used) SELECT stripe, true FROM unnest(%(stripes)s::int[]) AS stripe "
        f"WHERE {_within(lock_timeout)} ON CONFLICT (stripe) DO UPDATE SET used = true WHERE false"
    )


@lru_cache(maxsize=16)
def _with_keys_statement(wanted: tuple[str, ...]) -> str:
    """The ids of the jobs with these keys in one of these states. The limit keeps the planner from joining the keys
    with all jobs."""
    return (
        f"SELECT found.id FROM unnest(%s::text[]) AS k(key) CROSS JOIN LATERAL (SELECT id FROM {_JOB} "
        f"WHERE unique_key = k.key AND unique_key > '' AND {_is_among(wanted)} LIMIT {2**31 - 1}) AS found"
    )


#: The lock is taken once for each key, whatever the plan: a materialized query is run once.
@lru_cache(maxsize=8)
def _hold_keys(lock_timeout: float | None) -> str:
    return (
        "WITH held AS MATERIALIZED (SELECT digest, pg_try_advisory_xact_lock(number) AS held "
        f"FROM unnest(%s::text[], %s::bigint[]) AS given(digest, number) WHERE {_within(lock_timeout)}) "
        "SELECT held.digest, k.request, k.status, k.body, k.headers, k.created_at "
        f"FROM held LEFT JOIN {_KEY} k ON k.digest = held.digest WHERE held.held"
    )


_KEEP_ANSWERS = (
    f"INSERT INTO {_KEY} AS k ({', '.join(StoredKey._fields)}) "
    "SELECT * FROM unnest(%s::text[], %s::text[], %s::smallint[], %s::text[], %s::text[], %s::timestamptz[]) "
    f"ON CONFLICT (digest) DO UPDATE SET {', '.join(f'{name} = EXCLUDED.{name}' for name in StoredKey._fields[1:])} "
    "WHERE k.status IS NULL OR k.created_at < %s"
)

#: What events of workflows say; their other columns are empty.
_TOLD = ("type", "time", "component", "subject", "worker_id", "trace_id", "workflow_id", "data")


class _Saving(NamedTuple):
    """How a statement saves a change of workflows: `saved` is a query to begin its WITH with, `told` the rows for the
    log, '' where there are none. The log has what is inserted at once in the order of the rows, so they come first."""

    saved: str
    told: str


def _saving(change: FlowChange | None) -> _Saving | None:
    return _saving_of(tuple(change.columns), told=bool(change.records)) if change else None


@lru_cache(maxsize=8)
def _saving_of(columns: tuple[str, ...], *, told: bool) -> _Saving:
    names = ("id", *columns)
    values = ", ".join(f"%(flow_{name})s::{_WORKFLOW_ARRAYS[name]}" for name in names)
    saved = (
        f"saved AS (UPDATE {_WORKFLOW} w SET {', '.join(f'{name} = v.{name}' for name in columns)} "
        f"FROM unnest({values}) AS v({', '.join(names)}) WHERE w.id = v.id)"
    )
    values = ", ".join(f"%(told_{name})s::{_EVENT_ARRAYS[name]}" for name in _TOLD)
    empty = {"job_id": "NULL::uuid", "attempt": "0"}
    shown = ", ".join(f"v.{name}" if name in _TOLD else empty.get(name, "''") for name in Record._fields)
    return _Saving(saved, f"SELECT {shown} FROM unnest({values}) AS v({', '.join(_TOLD)})" if told else "")


def _changed(change: FlowChange) -> dict[str, str]:
    """The parameters of `_saving`."""
    columns = zip(*(workflow_values(flow, change.columns) for flow in change.flows), strict=True)
    named = zip(("id", *change.columns), columns, strict=True)
    given = {f"flow_{name}": array_literal(column) for name, column in named}
    if change.records:
        told = dict(zip(Record._fields, zip(*change.records, strict=True), strict=True))
        given |= {f"told_{name}": array_literal(told[name]) for name in _TOLD}
    return given


#: What a push answers: whether some worker sleeps. Asked here it costs no round trip of its own.
_WORKER_SLEEPS = f"EXISTS (SELECT 1 FROM {_WORKER} WHERE asleep)"


class _Unless(NamedTuple):
    """Where a job is not to be inserted: there is one with its key in one of these states; `aged`: created later than
    `since`."""

    states: tuple[str, ...]
    aged: bool


def _new_parameters(row: JobRow, component: str) -> tuple[tuple[str, ...], dict[str, Any]]:
    """The columns in which a new job says something, and the parameters of `_push_one_statement`; those of its event
    only if it has one."""
    given = said(row)
    names = tuple(given)
    if record := catalogue.of_new_job(row, component):
        given |= {"event": record.type, "component": component, "data": record.data}
    return names, given


@lru_cache(maxsize=256)
def _push_one_statement(
    given: tuple[str, ...], state: str, *, logged: bool, saving: _Saving | None = None, unless: _Unless | None = None,
    lock_timeout: float | None = None,
) -> str:  # fmt: skip
    """Insert one job that says something in these columns, its count, and its event if it is `logged`; and save a
    change of workflows. With `unless` its rows begin with whether the job was inserted."""
    says = {name: new_constant(name) for name, value in NEW_DEFAULTS.items() if value is not None}
    says |= {name: f"%({name})s::{_JOB_TYPES[name]}" for name in given}
    event = {
        "txid": "pg_current_xact_id()::text::bigint", "type": "%(event)s::text", "time": says["created_at"],
        "component": "%(component)s::text", "subject": "''", "job_id": says["id"], "job_type": says["type"],
        "queue": says["queue"], "state": f"'{state}'", "attempt": "0", "worker_id": "''", "trace_id": says["trace_id"],
        "workflow_id": says.get("workflow_id", "NULL"), "data": "%(data)s::text",
    }  # fmt: skip

    def row(*values: str) -> str:
        return f"SELECT {', '.join(values)} FROM free" if unless else f"VALUES ({', '.join(values)})"

    parts = [saving.saved] if saving else []
    if unless:
        too_old = " AND created_at > %(since)s::timestamptz" if unless.aged else ""
        parts.append(
            f"free AS MATERIALIZED (SELECT 1 WHERE NOT EXISTS (SELECT 1 FROM {_JOB} WHERE unique_key = "
            f"{says['unique_key']} AND unique_key > '' AND {_is_among(unless.states)}{too_old}))"
        )
    fixed = {"attempt": "0", "losses": "0", "dead_letter": "false", "worker_id": "''", "errors": "''"}
    columns = says | fixed
    new = ", ".join(columns.values())
    inserted = f"SELECT {new} WHERE {_within(lock_timeout)}" if lock_timeout else row(*columns.values())
    parts.append(f"inserted AS (INSERT INTO {_JOB} ({', '.join(columns)}) {inserted})")
    counted = row(says["queue"], says["created_at"], "1")
    parts.append(f"counted AS (INSERT INTO {_DELTA} (queue, at, {state}) {counted})")
    log = row(*event.values()) if logged else ""
    if saving and saving.told:
        first, *values = event.values()
        rows = saving.told + (f" UNION ALL SELECT {', '.join(values)}" if logged else "")
        log = f"SELECT {first}, e.* FROM ({rows}) AS e"
    if log:
        parts.append(f"logged AS (INSERT INTO {_EVENT} ({', '.join(event)}) {log})")
    whether = "SELECT EXISTS (SELECT 1 FROM free), " if unless else "SELECT "
    return f"WITH {', '.join(parts)} {whether}{_WORKER_SLEEPS}"


def _pushing_one(
    row: JobRow, component: str, change: FlowChange | None, lock_timeout: float | None
) -> tuple[str, dict[str, Any]]:
    """The statement that inserts one job, with what it is given.

    Three inserts of constants take the server half the time of one that feeds the others.
    """
    names, given = _new_parameters(row, component)
    statement = _push_one_statement(
        names, row["state"], logged="event" in given, saving=_saving(change), lock_timeout=lock_timeout
    )
    return statement, given | (_changed(change) if change else {})


def _pushing(
    rows: Sequence[JobRow], component: str, change: FlowChange | None = None, lock_timeout: float | None = None
) -> tuple[str, dict[str, Any]]:
    """The statement that inserts several jobs, with what it is given."""
    alike, varying = compared(rows)
    sources = {name: column if isinstance(column, str) else name for name, column in varying.items()}
    arrays = {name: array_literal(column) for name, column in varying.items() if sources[name] == name}
    statement = _push_statement(tuple(alike), tuple(sources.items()), _saving(change), lock_timeout)
    return statement, {**alike, **arrays, "component": component, **(_changed(change) if change else {})}


@lru_cache(maxsize=256)
def _push_statement(
    alike: tuple[str, ...], varying: tuple[tuple[str, str], ...], saving: _Saving | None = None,
    lock_timeout: float | None = None,
) -> str:  # fmt: skip
    """Insert jobs, their counts and events, all from what was sent; the arguments are the names in `compared`. Save a
    change of workflows, too.

    Counts and events made of the rows just inserted take the server half as long again.
    """
    says = {name: f"{new_constant(name)}::{_JOB_TYPES[name]}" for name in NEW_COLUMNS}
    says |= {name: f"%({name})s::{_JOB_TYPES[name]}" for name in alike}
    says |= {name: f"v.{source}" for name, source in varying}
    arrays = {source: _JOB_ARRAYS[source] for _, source in varying}
    names = ", ".join(NEW_COLUMNS)
    event = eventdata.values("", _SQL, state="state", attempt="0", component="%(component)s")
    logged = f"{event} FROM new WHERE state <> 'pending'"
    begin = f"{saving.saved}, " if saving else ""
    if saving and saving.told:
        logged = f"e.* FROM ({saving.told} UNION ALL SELECT {logged}) AS e"
    return (
        f"WITH {begin}"
        f"new AS NOT MATERIALIZED (SELECT {', '.join(f'{value} AS {name}' for name, value in says.items())} "
        f"FROM unnest({', '.join(f'%({name})s::{kind}' for name, kind in arrays.items())}) AS v({', '.join(arrays)})), "
        f"inserted AS (INSERT INTO {_JOB} ({names}, attempt, losses, dead_letter, worker_id, errors) "
        f"SELECT {names}, 0, 0, false, '', '' FROM new{f' WHERE {_within(lock_timeout)}' if lock_timeout else ''}), "
        f"counted AS (INSERT INTO {_DELTA} (queue, at, {', '.join(_NEW_COUNTS)}) SELECT queue, max(created_at), "
        f"{', '.join(_NEW_COUNTS.values())} FROM new GROUP BY queue), "
        f"logged AS ({_LOG}, {logged}) SELECT {_WORKER_SLEEPS}"
    )


#: Whether a queue delivers, and where no limits have been looked at, whether it is under none.
_DELIVERS = f"NOT EXISTS (SELECT 1 FROM {_QUEUE} WHERE name = {{queue}} AND paused{{limited}})"
_UNDER_LIMIT = f" OR name IN ({{queue}}, '{TEMPLATE}') AND limited"
_EXCEPT = "AND id <> ALL(%(except_ids)s::uuid[])"
_OF_TYPES = "AND (type = ANY(%(types)s) OR type ^@ ANY(%(prefixes)s::text[]))"


@lru_cache(maxsize=256)
def _claim_statement(
    most: int,
    typed: bool,
    columns: tuple[str, ...],
    *,
    raw: bool,
    chosen: bool,
    admitted: bool,
    excepting: bool,
    shared: bool,
    optimistic: bool,
    unsuspected: bool,
    lock_timeout: float | None,
) -> str:
    """Claim jobs, with their events and counts; return these columns of each job, and its place in its workflow.

    The inner query picks and locks the rows. The update repeats the state, so that a row is claimed once whatever the
    locks do.

    Args:
        most: as many jobs as are claimed, or more. It is in the text, so that the planner knows that few rows come, and
            takes few values, so that few statements are prepared. The parameter `%(limit)s` around it says how many
            rows are taken; no more are locked, because they are locked one by one as they come.
        shared: for several queues or several claimants. Its rows begin with the place of their claimant.
    """
    worker, visibility, base = (
        ("picked.worker", "picked.visibility", "picked.base")
        if shared
        else ("%(worker)s", "%(visibility)s::bigint", "%(base)s::bigint")
    )
    lease = f"coalesce({visibility}, j.visibility_ms, {base})"
    until = f"%(now)s::timestamptz + least({lease}, j.heartbeat_ms) * interval '1 millisecond'"
    length = "coalesce(j.timeout_ms, %(timeout)s::bigint) + coalesce(j.grace_ms, 0)"
    ends = f"%(now)s::timestamptz + ({length}) * interval '1 millisecond'"
    logged = ("id", "type", "queue", "attempt", "worker_id", "trace_id", "workflow_id", "priority", "enqueued_at",
              "started_at")  # fmt: skip
    # Django's loader of times is Python code: as text they cost next to nothing.
    shown = [f"c.{name}::text" if raw and _JOB_ARRAYS[name] == "timestamptz[]" else f"c.{name}" for name in columns]
    shown += ["m.position", "m.created_at::text", "m.before"]
    returned = ", ".join(f"j.{name}" for name in dict.fromkeys((*columns, *logged)))
    delivers = _DELIVERS.replace("{limited}", "" if admitted else _UNDER_LIMIT)
    fits = "id = ANY(%(ids)s::uuid[])" if chosen else "rate_key = ''"
    waits = (
        f"AND state = 'available' {ALIVE.replace('%s', '%(now)s')} AND (due_at IS NULL OR due_at <= %(now)s) "
        f"{_OF_TYPES if typed else ''} {_EXCEPT if excepting else ''} "
        f"{'AND suspected IS NULL ' if unsuspected else ''}AND {fits}"
    )
    if lock_timeout:
        waits += f" AND {_within(lock_timeout)}"
    if optimistic:  # depends on no row, so it is asked once
        these = "= ANY(%(queues)s::text[])" if shared else "= %(queue)s"
        waits += f" AND NOT ({' OR '.join(obstacles(these, '%(now)s'))})"
    order = f"ORDER BY priority DESC, enqueued_at, id LIMIT {int(most)} FOR UPDATE SKIP LOCKED"
    if shared:
        # It stops the loop over the queues, too.
        picked = (
            f"SELECT found.id, found.base, t.worker, t.visibility, t.place, found.n FROM (SELECT id, base, "
            f"row_number() OVER () AS n FROM (SELECT waiting.id, q.base FROM "
            f"unnest(%(queues)s::text[], %(bases)s::bigint[]) AS q(name, base) CROSS JOIN LATERAL "
            f"(SELECT id FROM {_JOB} WHERE queue = q.name {waits} {order}) AS waiting "
            f"WHERE {delivers.format(queue='q.name')} LIMIT %(limit)s::bigint) AS taken) AS found "
            f"JOIN unnest(%(workers)s::text[], %(visibilities)s::bigint[], %(begins)s::bigint[], %(ends)s::bigint[]) "
            f"WITH ORDINALITY AS t(worker, visibility, begins, ends, place) ON found.n > t.begins AND found.n <= t.ends"
        )
        begun, answered, delivered = ", picked.n, picked.place", ["c.place", *shown], "n"
        these = "FROM picked WHERE j.id = picked.id"
    else:
        queue = "%(queue)s"
        waiting = f"SELECT id FROM {_JOB} WHERE queue = {queue} {waits} AND {delivers.format(queue=queue)} {order}"
        picked = f"SELECT id FROM ({waiting}) AS waiting LIMIT %(limit)s::bigint"
        begun, answered, delivered = "", shown, "priority DESC, enqueued_at, id"
        # As an array: the planner thinks that a source has more rows, for which it reads all jobs while they are few.
        these = "WHERE j.id = ANY(ARRAY(SELECT id FROM picked))"
    return (
        f"WITH picked AS MATERIALIZED ({picked}), "
        f"claimed AS (UPDATE {_JOB} j SET state = 'active', attempt = j.attempt + 1, "
        f"started_at = greatest(%(now)s, j.enqueued_at), worker_id = {worker}, due_at = NULL, "
        f"lease_ms = {lease}, visible_until = {until}, timeout_at = {ends}, "
        f"wake_at = least({until}, {ends}, j.deadline_at) "
        f"{these} AND {_still('available')} RETURNING {returned}{begun}), "
        f"began AS (INSERT INTO {_START} (workflow_id, job_id, started_at) SELECT DISTINCT ON (workflow_id) "
        f"workflow_id, id, %(now)s::timestamptz FROM claimed WHERE workflow_id IS NOT NULL "
        f"ORDER BY workflow_id, {delivered} ON CONFLICT DO NOTHING RETURNING workflow_id, job_id), "
        f"logged AS ({_LOG}, e.* FROM (SELECT 'workflow.started', %(now)s::timestamptz, 'api', "
        f"coalesce(w.own_id, w.id::text), NULL::uuid, '', '', '', 0, '', c.trace_id, w.id, '{{' || w.facts || '}}' "
        f"FROM began JOIN {_WORKFLOW} w ON w.id = began.workflow_id JOIN claimed c ON c.id = began.job_id UNION ALL "
        f"SELECT {_STARTED} FROM claimed) AS e), "
        f"counted AS (INSERT INTO {_DELTA} (queue, at, available, active, wait_ms) "
        f"SELECT queue, %(now)s, -count(*), count(*), {_WAITED_MS} FROM claimed GROUP BY queue) "
        f"SELECT {', '.join(answered)} FROM claimed c LEFT JOIN LATERAL ({_PLACE}) AS m ON true "
        f"ORDER BY {', '.join(f'c.{name}' for name in delivered.split(', '))}"
    )


def _reported(acks: Sequence[Ack], now: dt.datetime) -> dict[str, Any]:
    """The parameters of a completion."""
    acks = sorted(acks, key=lambda ack: ack.job_id.int)
    return {
        "ids": array_literal([ack.job_id for ack in acks]), "results": array_literal([ack.result for ack in acks]),
        "workers": array_literal([ack.worker_id for ack in acks]),
        "attempts": array_literal([ack.attempt for ack in acks]), "now": now,
    }  # fmt: skip


@lru_cache(maxsize=32)
def _complete_statement(with_result: bool, columns: tuple[str, ...], *, members: bool, skip_locked: bool) -> str:
    completing = _completing(with_result, columns, members=members, skip_locked=skip_locked)
    return f"{completing} SELECT {_select_list(columns)} FROM done"


def _select_list(columns: Iterable[str]) -> str:
    return ", ".join(under_limit("done.queue") if name == LIMITED else f"done.{name}" for name in columns)


def _completing(
    with_result: bool, columns: tuple[str, ...], *, members: bool, skip_locked: bool, lock_timeout: float | None = None
) -> str:
    """The beginning of a statement that completes jobs, with their events and counts; of those that it completes, which
    are called `done`, it knows these columns.

    The jobs are locked in the order of their ids first, so that flushes that overlap do not deadlock. With
    `skip_locked` those that another transaction has locked are left alone: the caller comes back for them.
    """
    logged = ("id", "type", "queue", "attempt", "worker_id", "trace_id", "workflow_id", "started_at", "finished_at",
              "result", "rate_key")  # fmt: skip
    returned = ", ".join(f"j.{name}" for name in dict.fromkeys((*columns, *logged)) if name != LIMITED)
    left_out = () if with_result else (catalogue.RESULT,)
    event = eventdata.values("job.completed", _SQL, state="'completed'", attempt="attempt", without=left_out)
    return (
        f"WITH a AS MATERIALIZED (SELECT a.* FROM unnest(%(ids)s::uuid[], %(results)s::text[], %(workers)s::text[], "
        f"%(attempts)s::int[]) AS a(id, result, worker, attempt) JOIN {_JOB} AS locked ON locked.id = a.id "
        f"{f'WHERE {_within(lock_timeout)} ' if lock_timeout else ''}"
        f"ORDER BY a.id FOR UPDATE OF locked{' SKIP LOCKED' if skip_locked else ''}), "
        f"done AS (UPDATE {_JOB} j SET state = 'completed', result = a.result, losses = 0, "
        f"finished_at = greatest(%(now)s, j.started_at), "
        f"due_at = NULL, visible_until = NULL, timeout_at = NULL, wake_at = NULL "
        f"FROM a WHERE j.id = a.id AND {_still('active')} "
        f"AND (a.worker = '' OR j.worker_id = '' OR j.worker_id = a.worker) "
        f"AND (a.attempt IS NULL OR a.attempt = j.attempt) {'' if members else 'AND j.workflow_id IS NULL'} "
        f"RETURNING {returned}), "
        f"logged AS ({_LOG}, {event} FROM done), "
        f"counted AS (INSERT INTO {_DELTA} (queue, at, active, completed, run_ms) "
        f"SELECT queue, %(now)s, -count(*), count(*), {_RAN_MS} FROM done GROUP BY queue)"
    )


#: What the events of a workflow say of a job that has ended.
_ENDED = ("started_at", "finished_at", "worker_id", "trace_id", "attempt")
_of_ended = itemgetter(*_ENDED)


@lru_cache(maxsize=32)
def _complete_members_statement(
    with_result: bool, columns: tuple[str, ...], *, errors: bool, skip_locked: bool, lock_timeout: float | None
) -> tuple[str, tuple[str, ...]]:
    """Complete jobs, and lock and read the workflows of those that are members. The names of the first columns of its
    rows, too.

    Each workflow is locked as it is by then, whatever the rest of the statement sees. Jobs and workflows meet in a full
    join, because that is never a loop in a loop, however few the planner believes there are.
    """
    names = tuple(dict.fromkeys((*columns, "id", "workflow_id", *_ENDED, *(["errors"] if errors else []))))
    shown = _select_list(names)
    for name in ("started_at", "finished_at"):
        if name not in columns:  # as text it costs next to nothing
            shown = shown.replace(f"done.{name}", f"done.{name}::text")
    place = "ORDER BY s.workflow_id, done.finished_at, s.position"
    return (
        f"{_completing(with_result, names, members=True, skip_locked=skip_locked, lock_timeout=lock_timeout)}, "
        f"flows AS MATERIALIZED (SELECT id, created_at, progress, type FROM {_WORKFLOW} "
        f"WHERE id = ANY(ARRAY(SELECT workflow_id FROM done)) AND state || '' = 'running' ORDER BY id FOR UPDATE) "
        f"SELECT {shown}, s.position, s.step_id, s.type, {shown_beside(place, '::text')} "
        f"FROM done FULL JOIN flows w ON w.id = done.workflow_id "
        f"LEFT JOIN LATERAL (SELECT * FROM {_STEP} WHERE w.id IS NOT NULL AND job_id = done.id LIMIT 1) AS s ON true "
        f"{BESIDE} {place}, done.id"
    ), names


def _still(*states: str) -> str:
    """That a job, which is found by its id, is in one of these states, in words that fit no partial index.

    The planner believes in the number of such jobs at the last ANALYZE. If that was small it would find the jobs by
    reading the whole index of those that are active, however many there are now.
    """
    return f"j.state || '' IN ({_literals(states)})"


def _is_among(states: Iterable[str]) -> str:
    """The same of a job that is found by its unique key: the index of the keys has the state, too. The empty text is no
    state, and such a list fits no other index."""
    return f"state IN ({_literals(('', *states))})"


def _power_of_two(number: int) -> int:
    """The least power of two that is not smaller, 1 at least."""
    return 1 << max(number - 1, 0).bit_length()


def _literals(words: Iterable[str]) -> str:
    return ", ".join(f"'{word}'" for word in words)


def _arrays(rows: Sequence[JobRow], names: Iterable[str]) -> list[str]:
    return [array_literal([row[name] for row in rows]) for name in names]


def array_literal(values: Iterable[Any]) -> str:
    """A PostgreSQL array in its text form: five times as fast as the driver's own, which asks each value's type."""
    values = list(values)
    kinds = set(map(type, values))
    write = _WRITERS.get(kinds.pop(), _each_element) if len(kinds) == 1 else _each_element
    return f"{{{','.join(write(values))}}}"


def _element(value: Any) -> str:
    if value is None:
        return "NULL"
    if type(value) is int:
        return str(value)
    text = str(value)
    if "\\" in text or '"' in text:
        text = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{text}"'


def _each_element(values: Sequence[Any]) -> Iterable[str]:
    return map(_element, values)


def _instants(values: Sequence[dt.datetime]) -> Iterable[str]:
    """Times in ISO format. Those of a push are microseconds apart, and `isoformat` takes three times as long."""
    first = min(values).replace(microsecond=0)
    if first == max(values).replace(microsecond=0) and {value.tzinfo for value in values} == {dt.UTC}:
        begin = first.isoformat()[:19]
        return [f"{begin}.{value.microsecond:06}+00:00" for value in values]
    return map(dt.datetime.isoformat, values)


#: How the values of an array look that are all of this type, where that is faster than `_element`.
_WRITERS: dict[type, Callable[[Sequence[Any]], Iterable[str]]] = {
    uuid.UUID: lambda values: [f"{value.int:032x}" for value in values], dt.datetime: _instants,
    type(None): lambda values: ["NULL"] * len(values),
}  # fmt: skip


def _unnest(names: Iterable[str], arrays: dict[str, str]) -> str:
    return f"unnest({', '.join('%s::' + arrays[name] for name in names)})"


_INSERT_EVENTS = (
    f"INSERT INTO {_EVENT} (txid, {', '.join(Record._fields)}) SELECT pg_current_xact_id()::text::bigint, * "
    f"FROM {_unnest(Record._fields, _EVENT_ARRAYS)}"
)

#: Each with the release that its worker runs. One that is stored stays as it is.
_INSERT_ATTEMPTS = (
    f"INSERT INTO {_ATTEMPT} ({', '.join(EndedAttempt._fields)}, release) SELECT e.*, coalesce(w.release, '') "
    f"FROM {_unnest(EndedAttempt._fields, _ATTEMPT_ARRAYS)} AS e({', '.join(EndedAttempt._fields)}) "
    f"LEFT JOIN {_WORKER} w ON w.id = e.worker_id ON CONFLICT DO NOTHING"
)


#: The time that a text of the server's stands for. Django's loader of times takes ten times as long.
_instant = dt.datetime.fromisoformat

#: The steps of jobs as a source. The limit makes the planner look for each: it would read all steps if they seem few.
_GIVEN = (
    f"unnest(%s::uuid[]) AS g(id) CROSS JOIN LATERAL "
    f"(SELECT * FROM {WorkflowStep._meta.db_table} WHERE job_id = g.id LIMIT 1) AS s"
)


#: How `results_before` becomes one text.
_JOINED = "array_to_string(ARRAY({before}), E'\\x1f')"
#: The place of a claimed job `c` in its workflow, if it has one, as `_claimed_row` reads it.
_PLACE = (
    f"SELECT s.position, w.created_at, {results_before(_JOINED)} AS before FROM {_STEP} s "
    f"JOIN {_WORKFLOW} w ON w.id = s.workflow_id WHERE c.workflow_id IS NOT NULL AND s.job_id = c.id LIMIT 1"
)


def _claimed_row(columns: Sequence[str], values: Sequence[Any]) -> JobRow:
    """The columns, and behind them the position in a workflow, the time of its creation, and the results before."""
    row: JobRow = dict(zip(columns, values))  # noqa: B905 - there are more values
    position, created, before = values[-3:]
    if position is not None and "workflow_id" in row:
        row[MEMBERSHIP] = membership(row["id"], row["workflow_id"], position, _instant(created), before)
    return row


@lru_cache(maxsize=2)
def _members_statement(errors: bool) -> str:
    return members_statement(_GIVEN, "= ANY(%s::uuid[])", "FOR UPDATE", text="::text", errors=errors)


_RESULTS = results_statement("unnest(%s::uuid[], %s::int[]) AS v(flow, position)")
_MEMBERSHIPS = memberships_statement(_GIVEN, _JOINED, text="::text")
