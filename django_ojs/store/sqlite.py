"""Makes the statements for SQLite: without row locks, since there is one writer; prepared once and run for each row."""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import re
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, TypeAlias

from django.db import connections, transaction
from django.db.models import Q

from django_ojs import clock
from django_ojs.events import catalogue
from django_ojs.events.catalogue import Record
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
    WorkflowStep,
)
from django_ojs.models.fields import split
from django_ojs.models.job import COLUMNS, LIMITED, JobRow
from django_ojs.models.queue import TEMPLATE
from django_ojs.states import State, Verb
from django_ojs.store import eventdata
from django_ojs.store.conditions import ALIVE, guarded_states, under_limit
from django_ojs.store.counts import COUNTED, Tally, new_jobs
from django_ojs.store.newjobs import NEW_DEFAULTS, compared, new_constant, said
from django_ojs.store.orm import Store, ended_attempts
from django_ojs.store.values import (
    Ack,
    Claim,
    Claimant,
    EndedAttempt,
    EndedMembers,
    FlowChange,
    Heard,
    Membership,
    Running,
    StoredKey,
)
from django_ojs.store.workflows import (
    members,
    members_statement,
    membership,
    memberships_statement,
    results_statement,
    workflow_values,
)

_JOB, _QUEUE, _EVENT, _DELTA, _KEY, _ATTEMPT, _WORKER = (
    m._meta.db_table for m in (Job, Queue, Event, CountDelta, IdempotencyKey, JobAttempt, Worker)
)
_INSERT_ATTEMPT = (
    f"INSERT OR IGNORE INTO {_ATTEMPT} ({', '.join(EndedAttempt._fields)}, release) "
    f"VALUES ({', '.join(['%s'] * len(EndedAttempt._fields))}, "
    f"coalesce((SELECT release FROM {_WORKER} WHERE id = %s), ''))"
)
_KINDS = {f.attname: f.get_internal_type() for f in Job._meta.concrete_fields} | {LIMITED: "BooleanField"}
# Times are text and compared as text, so a full second must look as Django writes it: without a fraction.
_LATER = "replace(strftime('%%Y-%%m-%%d %%H:%%M:%%f', %(now)s, printf('+%%.3f seconds', {ms} / 1000.0)), '.000', '')"


class SQLiteStore(Store):
    """The store on SQLite. `executemany` runs one prepared statement for each row: there are no round trips to save."""

    skip_locked = False

    def lock_stripes(self, stripes: Sequence[int]) -> None:
        """Nothing to do: `begin_writing` took the only lock there is."""

    def lock_where(
        self, condition: Q, *, limit: int | None = None, skip_locked: bool = False,
        columns: Sequence[str] | None = None,
    ) -> list[JobRow]:  # fmt: skip
        """No row is locked, so the order of those up to a limit is free. By their ids SQLite would read all jobs."""
        if limit is None:
            return super().lock_where(condition, columns=columns)
        rows: list[JobRow] = self.jobs.filter(condition)[:limit].rows(columns)  # type: ignore[attr-defined]
        return rows

    def begin_writing(self) -> None:
        """Take the write lock before anything is read, where the site's transactions would take it late."""
        connection: Any = connections[self.using]
        if connection.transaction_mode in ("IMMEDIATE", "EXCLUSIVE") and connection.commit_on_exit:
            return  # it was taken by the BEGIN; not where autocommit is off, and there was none of Django's
        with connections[self.using].cursor() as cursor:
            cursor.execute(f"DELETE FROM {UniqueLock._meta.db_table} WHERE stripe = %s", [UniqueLock.STRIPES])

    def lock_live(self, keys: Sequence[str], live: Sequence[State]) -> list[JobRow]:
        states = ", ".join(f"'{state}'" for state in live)
        with connections[self.using].cursor() as cursor:
            cursor.execute(
                f"SELECT {', '.join(COLUMNS)} FROM {_JOB} WHERE unique_key IN (SELECT value FROM json_each(%s)) "
                f"AND unique_key > '' AND state IN ({states}) ORDER BY id",
                [json.dumps(keys)],
            )
            return _from_db(COLUMNS, [dict(zip(COLUMNS, values, strict=True)) for values in cursor.fetchall()])

    refuses_held_keys = False

    def hold_keys(self, digests: Sequence[str], now: dt.datetime) -> dict[str, StoredKey | None]:
        """By the only write lock there is, which an update takes that changes nothing. The first request with a key
        has committed when the next one is given the lock."""
        columns = ", ".join(StoredKey._fields)
        with connections[self.using].cursor() as cursor:
            cursor.execute(
                f"UPDATE {_KEY} SET request = request WHERE digest IN (SELECT value FROM json_each(%s)) "
                f"RETURNING {columns}",
                [json.dumps(list(digests))],
            )
            rows = [StoredKey._make((*stored, _instant(at))) for *stored, at in cursor.fetchall()]
        found: dict[str, StoredKey | None] = dict.fromkeys(digests)
        return found | {row.digest: row for row in rows}

    def keep_answers(self, keys: Sequence[StoredKey], free: Sequence[str], stale: dt.datetime) -> None:
        columns, marks = ", ".join(StoredKey._fields), ", ".join(["%s"] * len(StoredKey._fields))
        with connections[self.using].cursor() as cursor:
            cursor.executemany(
                f"INSERT OR REPLACE INTO {_KEY} ({columns}) VALUES ({marks})", [_all_to_db(key) for key in keys]
            )

    def listed(self, texts: Sequence[str]) -> tuple[str, list[Any]]:
        """As one parameter: a statement takes no more than 32,766."""
        return "SELECT value FROM json_each(%s)", [json.dumps(texts)]

    octets = "length(CAST({} AS BLOB))"
    waits_since = "datetime(due_at, '-' || (retry_delay_ms / 1000) || ' seconds')"

    def push(self, rows: Sequence[JobRow], component: str, change: FlowChange | None = None) -> bool:
        if change:
            self.save(change)
        with self._transaction() as cursor:
            if len(rows) == 1:
                self._push_one(cursor, rows[0], component)
            else:
                self._push_many(cursor, rows, component)
        return False

    def _push_one(self, cursor: Any, row: JobRow, component: str) -> None:
        given = said(row)
        cursor.execute(_push_one_statement(tuple(given)), _all_to_db(given.values()))
        counted = f"INSERT INTO {_DELTA} (queue, at, {row['state']}) VALUES (%s, %s, 1)"
        cursor.execute(counted, [row["queue"], _to_db(row["created_at"])])
        if record := catalogue.of_new_job(row, component):
            cursor.execute(_EVENT_STATEMENT, _all_to_db(record))

    def _push_many(self, cursor: Any, rows: Sequence[JobRow], component: str) -> None:
        """What differs between the jobs travels as one JSON text, which takes a third of the time of `executemany`."""
        alike, varying = compared(rows)
        arrays: list[list[Any]] = []
        places: dict[str, int] = {}
        for name, column in varying.items():
            if isinstance(column, str):
                places[name] = places[column]
            else:
                places[name] = len(arrays)
                arrays.append(_column_to_db(column))
        given = json.dumps(list(zip(*arrays, strict=True)), ensure_ascii=False)
        statement = _push_statement(tuple(alike), tuple(places.items()))
        cursor.execute(statement, [*_all_to_db(alike.values()), given])
        self.count(new_jobs(rows), rows[0]["created_at"])
        cursor.execute(_pushed_statement(places["id"]), [component, given])

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[Any]:
        """A cursor in the open transaction, or in one of its own. Django's `atomic` takes four times as long."""
        connection = connections[self.using]
        with self._cursor() as cursor:
            if connection.in_atomic_block or not connection.get_autocommit():
                with transaction.mark_for_rollback_on_error(self.using):
                    yield cursor
                return
            cursor.execute("BEGIN IMMEDIATE")
            try:
                yield cursor
                cursor.execute("COMMIT")
            except BaseException:
                if connection.connection.in_transaction:  # SQLite has not ended it by itself
                    cursor.execute("ROLLBACK")
                raise

    def _cursor(self) -> Any:
        """A cursor that translates the marks for parameters once for each statement: it takes as long as a push."""
        cursor = connections[self.using].cursor()
        cursor.cursor.convert_query = _with_marks_of_sqlite
        return cursor

    def count(self, tally: Tally, at: dt.datetime | None = None) -> None:
        if deltas := tally.rows(at or clock.now(self.using)):
            marks = ", ".join(["%s"] * len(COUNTED))
            with connections[self.using].cursor() as cursor:
                cursor.executemany(
                    f"INSERT INTO {_DELTA} ({', '.join(COUNTED)}) VALUES ({marks})",
                    [_all_to_db(row) for row in deltas],
                )

    def insert_events(self, records: Sequence[Record]) -> None:
        with connections[self.using].cursor() as cursor:
            cursor.executemany(_EVENT_STATEMENT, [_all_to_db(record) for record in records])

    def claim(self, claim: Claim, columns: Sequence[str] = COLUMNS, *, raw: bool = False) -> list[list[JobRow]]:
        """No other one writes meanwhile, and a statement costs no round trip, so each worker claims by itself."""
        given: list[list[JobRow]] = []
        for claimant in claim.claimants:
            rows: list[JobRow] = []
            for queue in claim.queues:
                if len(rows) < claimant.limit:
                    rows += self._claim_from(queue, claim, claimant, claimant.limit - len(rows), columns, raw=raw)
            given.append(rows)
            if len(rows) < claimant.limit:
                break  # nothing is left
        return given + [[] for _ in claim.claimants[len(given) :]]

    def _claim_from(
        self, queue: str, claim: Claim, claimant: Claimant, limit: int, columns: Sequence[str], *, raw: bool
    ) -> list[JobRow]:
        terms = claimant.visibility_ms, claim.queues[queue], claim.base_timeout_ms
        until, ends = (
            _to_db(claim.now + dt.timedelta(milliseconds=length))
            for length in (claimant.lease_ms(None, claim.queues[queue]), claim.base_timeout_ms)
        )
        params: dict[str, Any] = {
            "queue": queue, "now": _to_db(claim.now), "worker": claimant.worker_id, "until": until, "ends": ends,
        }  # fmt: skip
        if claim.types is not None:
            params["types"], params["prefixes"] = map(json.dumps, split(claim.types))
        if claim.except_ids:
            params["except"] = _id_list(claim.except_ids)
        if claim.ids is not None:
            params["ids"] = _id_list(claim.ids)
        names = tuple(dict.fromkeys((*columns, "id", "workflow_id", "enqueued_at")))
        chosen = _next_statement(
            names, terms, limit, typed=claim.types is not None, excepting=bool(claim.except_ids),
            chosen=claim.ids is not None, roomy=claim.roomy, unsuspected=claim.unsuspected,
        )  # fmt: skip
        with connections[self.using].cursor() as cursor:
            cursor.execute(chosen, params)
            places, found = cursor.fetchone()
            if places == "[]":
                return []
            rows = _named(names, found)
            cursor.execute(_reserve_statement(terms), {**params, "places": places})
            self.check_count(Verb.FETCH, rows, cursor.rowcount)
            if any(row["workflow_id"] for row in rows):
                members = [(row["workflow_id"] and _identity(row["workflow_id"]), _identity(row["id"])) for row in rows]
                if began := self.begin_workflows(members, claim.now):
                    self.insert_events(began)
            cursor.execute(_STARTED, [places])
            waited = _total_ms([row["enqueued_at"] for row in rows], claim.now)
            cursor.execute(_COUNT_STARTED, [queue, params["now"], -len(rows), len(rows), waited])
        return _from_db(columns, rows, raw=raw)

    def complete(
        self, acks: Sequence[Ack], now: dt.datetime, *, with_result: bool, columns: Sequence[str] = COLUMNS,
        members: bool = True, skip_locked: bool = False,
    ) -> list[JobRow]:  # fmt: skip
        names = tuple(dict.fromkeys((*columns, "queue", "started_at")))
        given = json.dumps([[ack.job_id.hex, ack.worker_id, ack.attempt, ack.result] for ack in acks])
        params = {"now": _to_db(now), "acks": given}
        with connections[self.using].cursor() as cursor:
            cursor.execute(_held_statement(names), params)
            places, found = cursor.fetchone()
            if places == "[]":
                return []
            rows = _named(names, found)
            cursor.execute(_COMPLETE, {**params, "places": places})
            self.check_count(Verb.ACK, rows, cursor.rowcount)
            cursor.execute(_COMPLETED_WITH_RESULT if with_result else _COMPLETED, [places])
            self.count(_completions(rows, now), now)
        ids = {ack.job_id.hex: ack.job_id for ack in acks}
        return _from_db(columns, rows, ids.__getitem__)

    def lock_members(self, jobs: Collection[uuid.UUID], flows: Collection[uuid.UUID], *, errors: bool) -> EndedMembers:
        with connections[self.using].cursor() as cursor:
            cursor.execute(_members_statement(errors), [_id_list(sorted(flows)), _id_list(jobs)])
            found = cursor.fetchall()
        return members(map(_of_member, found))

    def memberships(self, jobs: Collection[uuid.UUID]) -> list[Membership]:
        with connections[self.using].cursor() as cursor:
            cursor.execute(_MEMBERSHIPS, [_id_list(jobs)])
            found = cursor.fetchall()
        return [
            membership(_identity(job), _identity(flow), at, _instant(created), before)
            for job, flow, at, created, before in found
        ]

    def results(self, places: Collection[tuple[uuid.UUID, int]]) -> dict[tuple[uuid.UUID, int], Heard]:
        if not places:
            return {}
        with connections[self.using].cursor() as cursor:
            cursor.execute(_RESULTS, [json.dumps([(flow.hex, position) for flow, position in places])])
            return {(uuid.UUID(flow), position): Heard(*rest) for flow, position, *rest in cursor.fetchall()}

    def save_workflows(
        self, flows: Sequence[Workflow | Running], columns: Sequence[str], records: Sequence[Record]
    ) -> None:
        assignments = ", ".join(f"{name} = %s" for name in columns)
        rows = (_all_to_db(workflow_values(flow, columns)) for flow in flows)
        with connections[self.using].cursor() as cursor:
            cursor.executemany(
                f"UPDATE {Workflow._meta.db_table} SET {assignments} WHERE id = %s",
                [[*values, pk] for pk, *values in rows],
            )
        if records:
            self.insert_events(records)

    def update_jobs(self, guard: Verb | State, rows: Sequence[JobRow], columns: Sequence[str]) -> None:
        if not rows:
            return
        sources = ", ".join(f"'{state}'" for state in guarded_states(guard))
        assignments = ", ".join(f"{name} = %s" for name in columns)
        with connections[self.using].cursor() as cursor:
            tally = self.moved(guard, rows, columns)
            cursor.executemany(
                f"UPDATE {_JOB} SET {assignments} WHERE id = %s AND state IN ({sources})",
                [_all_to_db([*(row[name] for name in columns), row["id"]]) for row in rows],
            )
            self.check_count(guard, rows, cursor.rowcount)
        self.count(tally)
        if ended := ended_attempts(rows):
            self.insert_attempts(ended)
            self.trim_attempts(ended)

    def insert_attempts(self, ended: Sequence[EndedAttempt]) -> None:
        with connections[self.using].cursor() as cursor:
            cursor.executemany(_INSERT_ATTEMPT, [_all_to_db([*one, one.worker_id]) for one in ended])


def _completions(rows: Sequence[JobRow], now: dt.datetime) -> Tally:
    """The counts of completed jobs."""
    tally = Tally()
    for queue in {row["queue"] for row in rows}:
        starts = [row["started_at"] for row in rows if row["queue"] == queue]
        tally.add(queue, "active", -len(starts))
        tally.add(queue, "completed", len(starts))
        tally.add(queue, "run_ms", _total_ms(starts, now))
    return tally


def _total_ms(starts: Sequence[str | None], until: dt.datetime) -> int:
    """The time from these instants to `until`, summed before it becomes a number."""
    end = until.astimezone(dt.UTC).replace(tzinfo=None)
    spans = (end - dt.datetime.fromisoformat(at) for at in starts if at)
    return round(sum((max(span, dt.timedelta()) for span in spans), dt.timedelta()).total_seconds() * 1000)


def _to_db(value: Any) -> Any:
    """The form in which Django's SQLite backend keeps a value (UTC, as the system check demands)."""
    match value:
        case uuid.UUID():
            return value.hex
        case dt.datetime():
            return value.astimezone(dt.UTC).isoformat(" ")[:-6]
        case _:
            return value


#: What SQLite keeps as it is.
_PLAIN = frozenset({str, int, float, bool, type(None)})


def _all_to_db(values: Iterable[Any]) -> list[Any]:
    """A row's values as the database keeps them. Most need no call: a push of one job converts 68 values."""
    return [value if type(value) in _PLAIN else _to_db(value) for value in values]


def _column_to_db(values: Sequence[Any]) -> list[Any]:
    """Values of one column as the database keeps them; those of one type faster than one by one."""
    kinds = set(map(type, values))
    if kinds == {uuid.UUID}:
        return [f"{value.int:032x}" for value in values]
    if kinds == {dt.datetime} and {value.tzinfo for value in values} == {dt.UTC}:
        first = min(values).replace(microsecond=0)
        if first == max(values).replace(microsecond=0) and all(value.microsecond for value in values):
            begin = _to_db(first)
            return [f"{begin}.{value.microsecond:06}" for value in values]
    return _all_to_db(values)


@lru_cache(maxsize=256)
def _with_marks_of_sqlite(statement: str, param_names: None = None) -> str:
    """`statement` with `?` for `%s` and `%` for `%%`, as Django's cursor makes it; there are no parameters by name."""
    return re.sub("(?<!%)%s", "?", statement).replace("%%", "%")


_SQL = eventdata.Dialect(
    instant=lambda column: f"replace(substr({column} || '.000', 1, 23), ' ', 'T') || 'Z'",
    elapsed=lambda since, until: (
        f"coalesce(max(0, CAST(round((julianday({until}) - julianday({since})) * 86400000.0) AS INTEGER)), 0)"
    ),
)
_APPEND = f"INSERT INTO {_EVENT} ({', '.join(Record._fields)})"
_EVENT_STATEMENT = f"{_APPEND} VALUES ({', '.join(['%s'] * len(Record._fields))})"


@lru_cache(maxsize=256)
def _push_one_statement(given: tuple[str, ...]) -> str:
    """Insert one job that says something in these columns."""
    says = dict.fromkeys(given, "%s")
    return _insert_statement(says) + f" VALUES ({', '.join((says | _silent(says)).values())}, 0, 0, false, '', '')"


@lru_cache(maxsize=256)
def _push_statement(alike: tuple[str, ...], places: tuple[tuple[str, int], ...]) -> str:
    """Insert jobs that say the same in the columns `alike`, and in others what is at these places of each element of a
    JSON array."""
    says = dict.fromkeys(alike, "%s") | {name: f"json_extract(value, '$[{place}]')" for name, place in places}
    values = ", ".join((says | _silent(says)).values())
    return _insert_statement(says) + f" SELECT {values}, 0, 0, false, '', '' FROM json_each(%s)"


def _insert_statement(says: Collection[str]) -> str:
    return f"INSERT INTO {_JOB} ({', '.join([*says, *_silent(says)])}, attempt, losses, dead_letter, worker_id, errors)"


def _silent(says: Collection[str]) -> dict[str, str]:
    """What the other columns hold that must hold something."""
    return {name: new_constant(name) for name, value in NEW_DEFAULTS.items() if name not in says and value is not None}


@lru_cache(maxsize=64)
def _pushed_statement(place: int) -> str:
    """Append the event of each new job; its id is at this place of each element of a JSON array."""
    return (
        f"{_APPEND} SELECT {eventdata.values('', _SQL, state='j.state', attempt='0', component='%s', of='j')} "
        f"FROM json_each(%s) AS new CROSS JOIN {_JOB} AS j ON j.id = json_extract(new.value, '$[{place}]') "
        f"WHERE j.state <> 'pending'"
    )


def _instant(value: str | dt.datetime) -> dt.datetime:
    """As text, or as what Django made of it where SQLite tells the declared type of a column."""
    return (dt.datetime.fromisoformat(value) if isinstance(value, str) else value).replace(tzinfo=dt.UTC)


def _identity(value: str) -> uuid.UUID:
    """From the hexadecimal digits that Django stores; they need no search for hyphens."""
    return uuid.UUID(int=int(value, 16))


_READERS: dict[str, Callable[[Any], Any]] = {"UUIDField": _identity, "DateTimeField": _instant, "BooleanField": bool}


def _named(names: tuple[str, ...], found: str) -> list[JobRow]:
    """Rows by the names of their columns, from a JSON list of their values, which stay as the database keeps them."""
    return [dict(zip(names, values)) for values in json.loads(found)]  # noqa: B905 - the statement has these columns


def _from_db(
    columns: Sequence[str], stored: list[JobRow], identity: Callable[[str], uuid.UUID] | None = None, *,
    raw: bool = False,
) -> list[JobRow]:  # fmt: skip
    """The rows with these columns, whose values are read in place where they have no others. `identity` reads ids."""
    rows = stored
    if stored and len(stored[0]) > len(columns):
        rows = [{name: row[name] for name in columns} for row in stored]
    for name, convert in _converted(tuple(columns), raw=raw):
        read = identity if identity is not None and name == "id" else convert
        for row in rows:
            if (value := row[name]) is not None:
                row[name] = read(value)
    return rows


@lru_cache(maxsize=64)
def _converted(columns: tuple[str, ...], *, raw: bool) -> list[tuple[str, Callable[[Any], Any]]]:
    """Those of the columns whose values the database keeps in another form, with what reads them."""
    kinds = ("UUIDField",) if raw else _READERS
    return [(name, _READERS[_KINDS[name]]) for name in columns if _KINDS.get(name) in kinds]


#: Whether the queue delivers, and the job is under no limit or passed it.
_DELIVERS = f"NOT EXISTS (SELECT 1 FROM {_QUEUE} WHERE name = %(queue)s AND paused"
_OPEN = f"AND rate_key = '' AND {_DELIVERS} OR name IN (%(queue)s, '{TEMPLATE}') AND limited)"
_OPEN_IF_ROOMY = f"AND rate_key = '' AND {_DELIVERS})"
_OPEN_IF_CHOSEN = f"AND id IN (SELECT value FROM json_each(%(ids)s)) AND {_DELIVERS})"


_EXCEPT = "AND id NOT IN (SELECT value FROM json_each(%(except)s))"
#: The types, then the prefixes. json_each has a column `type` of its own.
_OF_TYPES = (
    "AND (type IN (SELECT value FROM json_each(%(types)s)) OR EXISTS (SELECT 1 FROM json_each(%(prefixes)s) AS prefix "
    "WHERE substr(j.type, 1, length(prefix.value)) = prefix.value))"
)


#: The steps of jobs as a source.
_GIVEN = f"(SELECT value AS id FROM json_each(%s)) AS g JOIN {WorkflowStep._meta.db_table} s ON s.job_id = g.id"
_MEMBERSHIPS = memberships_statement(_GIVEN, "(SELECT group_concat(result, char(31)) FROM ({before}))", text="")


@lru_cache(maxsize=2)
def _members_statement(errors: bool) -> str:
    return members_statement(_GIVEN, "IN (SELECT value FROM json_each(%s))", "", text="", errors=errors)


_RESULTS = results_statement(
    "(SELECT json_extract(value, '$[0]') AS flow, json_extract(value, '$[1]') AS position FROM json_each(%s)) AS v"
)


def _of_member(row: Sequence[Any]) -> list[Any]:
    """A row of `_members_statement` with its ids and times."""
    values = list(row)
    for readers, places in ((_identity, (0, 3, 16)), (_instant, (6, 7, 12, 13))):
        for place in places:
            if values[place] is not None:
                values[place] = readers(values[place])
    return values


def _id_list(ids: Iterable[uuid.UUID]) -> str:
    return json.dumps([job_id.hex for job_id in ids])


# A statement that returns a row for each job lets other threads run Python code between two rows, and waits up to 5 ms
# for its turn. So a claim and a completion are statements that return one row at most, of JSON lists: the first look
# reads the jobs as they will be, and what follows finds them by their places in the table (`rowid`), which is faster
# than by their ids. The transaction that all of them are in has the only write lock, or gets it with the first of their
# changes, and only if no other transaction has written since the first look.

#: The reservation length that a worker asks for, that of the queue, and the usual timeout; in ms.
Terms: TypeAlias = tuple[int | None, int, int]


@lru_cache(maxsize=64)
def _claimed(terms: Terms) -> dict[str, str]:
    """What a claim writes, by column.

    The times at which the reservation and the timeout end are parameters for a job without lengths of its own: to add
    milliseconds to a text takes 1 µs.
    """
    visibility_ms, base_ms, timeout_ms = terms
    lease = f"coalesce({int(visibility_ms) if visibility_ms else 'NULL'}, visibility_ms, {int(base_ms)})"
    usual = "heartbeat_ms IS NULL" if visibility_ms else "heartbeat_ms IS NULL AND visibility_ms IS NULL"
    later = _LATER.format(ms=f"min({lease}, coalesce(heartbeat_ms, {lease}))")
    until = f"CASE WHEN {usual} THEN %(until)s ELSE {later} END"
    later = _LATER.format(ms=f"(coalesce(timeout_ms, {int(timeout_ms)}) + coalesce(grace_ms, 0))")
    ends = f"CASE WHEN coalesce(timeout_ms, {int(timeout_ms)}) = {int(timeout_ms)} AND coalesce(grace_ms, 0) = 0 "
    ends += f"THEN %(ends)s ELSE {later} END"
    return {
        "state": "'active'", "attempt": "attempt + 1", "worker_id": "%(worker)s",
        "started_at": "max(%(now)s, coalesce(enqueued_at, ''))", "due_at": "NULL", "lease_ms": lease,
        "visible_until": until, "timeout_at": ends, "wake_at": f"min({until}, {ends}, coalesce(deadline_at, '9999'))",
    }  # fmt: skip


#: What an ACK writes, by column; `a` is the worker's report.
_COMPLETED_VALUES = {
    "state": "'completed'", "result": "a.result", "finished_at": "max(%(now)s, started_at)", "losses": "0",
    "due_at": "NULL", "visible_until": "NULL", "timeout_at": "NULL", "wake_at": "NULL",
}  # fmt: skip


def _assigned(values: Mapping[str, str]) -> str:
    return ", ".join(f"{name} = {value}" for name, value in values.items())


def _written_columns(names: Iterable[str], values: Mapping[str, str]) -> list[str]:
    """These columns of the job `j` as they are once the values are written."""
    return [under_limit("j.queue") if name == LIMITED else values.get(name, f"j.{name}") for name in names]


@lru_cache(maxsize=256)
def _next_statement(
    names: tuple[str, ...], terms: Terms, limit: int, *, typed: bool, excepting: bool, chosen: bool, roomy: bool,
    unsuspected: bool,
) -> str:  # fmt: skip
    """The places of the next jobs of a queue, in the order of delivery, and their columns as they are once claimed."""
    shown = {f"c{number}": value for number, value in enumerate(_written_columns(names, _claimed(terms)))}
    return (
        f"SELECT json_group_array(place), json_group_array(json_array({', '.join(shown)})) FROM (SELECT "
        f"j.rowid AS place, {', '.join(f'{value} AS {name}' for name, value in shown.items())} FROM {_JOB} AS j "
        f"WHERE queue = %(queue)s AND state = 'available' {_ALIVE} AND (due_at IS NULL OR due_at <= %(now)s) "
        f"{_OF_TYPES if typed else ''} {_EXCEPT if excepting else ''} {'AND suspected IS NULL' if unsuspected else ''} "
        f"{_OPEN_IF_CHOSEN if chosen else _OPEN_IF_ROOMY if roomy else _OPEN} "
        f"ORDER BY priority DESC, enqueued_at, id LIMIT {int(limit)})"
    )


@lru_cache(maxsize=64)
def _reserve_statement(terms: Terms) -> str:
    """Make the jobs at these places active."""
    return (
        f"UPDATE {_JOB} SET {_assigned(_claimed(terms))} "
        f"WHERE state = 'available' AND rowid IN (SELECT value FROM json_each(%(places)s))"
    )


@lru_cache(maxsize=64)
def _held_statement(names: tuple[str, ...]) -> str:
    """The jobs that these workers hold: their places and results, and their columns as they are once completed."""
    return (
        f"SELECT json_group_array(json_array(j.rowid, a.result)), "
        f"json_group_array(json_array({', '.join(_written_columns(names, _COMPLETED_VALUES))})) "
        f"FROM {_REPORTS} CROSS JOIN {_JOB} AS j "
        f"WHERE j.id = a.id AND j.state = 'active' AND (a.worker = '' OR j.worker_id = '' OR j.worker_id = a.worker) "
        f"AND (a.attempt IS NULL OR a.attempt = j.attempt)"
    )


_ALIVE = ALIVE.replace("%s", "%(now)s")
_REPORTS = (
    "(SELECT json_extract(value, '$[0]') AS id, json_extract(value, '$[1]') AS worker, "
    "json_extract(value, '$[2]') AS attempt, json_extract(value, '$[3]') AS result FROM json_each(%(acks)s)) AS a"
)
_COMPLETE = (
    f"UPDATE {_JOB} AS j SET {_assigned(_COMPLETED_VALUES)} FROM (SELECT json_extract(value, '$[0]') AS place, "
    f"json_extract(value, '$[1]') AS result FROM json_each(%(places)s)) AS a "
    f"WHERE j.rowid = a.place AND j.state = 'active'"
)


def _log_statement(type: str, place: str, without: Collection[str] = ()) -> str:
    """Append an event for each of the jobs at the places in a JSON list, from the rows as they are now."""
    event = eventdata.values(type, _SQL, state="j.state", attempt="j.attempt", of="j", without=without)
    return f"{_APPEND} SELECT {event} FROM json_each(%s) CROSS JOIN {_JOB} AS j ON j.rowid = {place}"


_COUNT_STARTED = f"INSERT INTO {_DELTA} (queue, at, available, active, wait_ms) VALUES (%s, %s, %s, %s, %s)"
_STARTED = _log_statement("job.started", "value")
_COMPLETED, _COMPLETED_WITH_RESULT = (
    _log_statement("job.completed", "json_extract(value, '$[0]')", without) for without in ((catalogue.RESULT,), ())
)
