"""The statements through the ORM: the readable reference, and what MariaDB runs.

Every method is a constant number of statements, however many jobs it is given. Every statement that
changes a state says in its WHERE clause from which states it may start: zero rows means that another
statement was first.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import uuid
from collections.abc import Collection, Iterable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from django.db import OperationalError, connections, transaction
from django.db.models import Case, Exists, F, Q, QuerySet, Value, When, Window
from django.db.models.functions import Cast, RowNumber

from django_ojs import clock, states
from django_ojs.errors import InvalidStateTransition
from django_ojs.events import catalogue
from django_ojs.events.catalogue import Record, milliseconds, moment
from django_ojs.models import (
    Event,
    IdempotencyKey,
    Job,
    JobProgress,
    JobReplay,
    Maintenance,
    Queue,
    UniqueLock,
    Workflow,
    WorkflowStart,
)
from django_ojs.models.fields import RawJSON, any_of, split
from django_ojs.models.job import COLUMNS, JSON_COLUMNS, LIMITED, STAGED, JobRow
from django_ojs.models.queue import TEMPLATE
from django_ojs.models.statistics import NUMBERS, CountDelta
from django_ojs.states import State, Verb

#: MariaDB and MySQL: another transaction has the row that NOWAIT asks for.
_NOT_NOW = frozenset({1205, 3572})
_JOB, _QUEUE, _MAINTENANCE = (model._meta.db_table for model in (Job, Queue, Maintenance))


@dataclasses.dataclass(frozen=True, slots=True)
class Claim:
    """What one FETCH asks of one queue. Lengths in milliseconds."""

    queue: str
    limit: int
    now: dt.datetime
    worker_id: str
    visibility_ms: int | None  #: the request's; beats the job's own
    base_visibility_ms: int  #: for jobs without a value of their own
    base_timeout_ms: int
    types: Sequence[str] | None = None  #: job types, and `mail.*` for all that begin with `mail.`; None: any
    #: Only these jobs, whose limits have been looked at; None: any that is under no limit.
    ids: Sequence[uuid.UUID] | None = None
    except_ids: Sequence[uuid.UUID] = ()  #: jobs that are not to be claimed

    def lease_ms(self, own: int | None) -> int:
        return self.visibility_ms or own or self.base_visibility_ms


class Outlook(NamedTuple):
    """What a FETCH has to know first: is anything due in its queues, is anything there under a limit, and does
    maintenance close them all."""

    due: bool
    limited: bool
    closed: bool


@dataclasses.dataclass(slots=True)
class Ack:
    """One job's success, as a worker reports it.

    `result` is JSON text, None when there is no result. A non-empty `worker_id` must be that of the
    holder, an `attempt` that of the claim; both fence off a worker that lost the job.
    """

    job_id: uuid.UUID
    result: str | None = None
    worker_id: str = ""
    attempt: int | None = None


class Store:
    """The interface, and its implementation for any database that Django knows."""

    #: Whether `SELECT ... FOR UPDATE SKIP LOCKED` is there.
    skip_locked = True

    def __init__(self, using: str) -> None:
        self.using = using

    @property
    def jobs(self) -> QuerySet[Job]:
        return Job.objects.using(self.using)

    def lock(
        self, ids: Iterable[uuid.UUID], *, skip_locked: bool = False, columns: Sequence[str] | None = None
    ) -> list[JobRow]:
        """Lock these jobs in the order of their ids (the fixed lock order) and read them; None: all columns."""
        return self.lock_where(Q(pk__in=list(ids)), skip_locked=skip_locked, columns=columns)

    def lock_where(
        self, condition: Q, *, limit: int | None = None, skip_locked: bool = False,
        columns: Sequence[str] | None = None,
    ) -> list[JobRow]:  # fmt: skip
        query = (
            self.jobs.filter(condition).order_by("pk").select_for_update(skip_locked=skip_locked and self.skip_locked)
        )
        return (query[:limit] if limit else query).rows(columns)  # type: ignore[attr-defined, no-any-return]

    def push(self, rows: Sequence[JobRow], component: str) -> bool:
        """Insert new jobs and their first events; return whether a worker sleeps that waits to be woken.

        Raises IntegrityError when an id is taken.
        """
        with transaction.atomic(using=self.using, savepoint=False):
            Job.objects.using(self.using).bulk_create(Job(**_as_values(row)) for row in rows)
            self.count(new_jobs(rows), rows[0]["created_at"])
            self.insert_events([record for row in rows if (record := catalogue.of_new_job(row, component))])
        return False

    def insert_events(self, records: Sequence[Record]) -> None:
        """Append to the event log, in the caller's transaction."""
        fields = [{**record._asdict(), "data": RawJSON(record.data)} for record in records]
        Event.objects.using(self.using).bulk_create(Event(**values) for values in fields)

    def claim(self, claim: Claim, columns: Sequence[str] = COLUMNS, *, raw: bool = False) -> list[JobRow]:
        """Take up to `limit` jobs of one queue for a worker, in delivery order, with their events.

        Delivery order is priority descending, then first in, first out. Of each job the named columns
        are returned, as they are after the claim. `raw` lets times come as the database's ISO text (UTC)
        where that saves time; who needs one parses it.
        """
        condition = Q(queue=claim.queue, state=State.AVAILABLE) & _claimable(claim)
        closed = Q(name=claim.queue, paused=True)
        if claim.ids is None:
            condition &= Q(rate_key="")
            closed |= Q(name__in=[claim.queue, TEMPLATE], limited=True)
        else:
            condition &= Q(pk__in=claim.ids)
        query = self.jobs.filter(condition, ~Exists(Queue.objects.filter(closed)))
        query = query.order_by(F("priority").desc(), "enqueued_at", "pk")
        rows = query.select_for_update(skip_locked=self.skip_locked)[: claim.limit].rows()  # type: ignore[attr-defined]
        for row in rows:
            reserve(row, claim)
        self.update_jobs(Verb.FETCH, rows, CLAIM_COLUMNS)
        if rows:
            began = self.begin_workflows([(row["workflow_id"], row["id"]) for row in rows], claim.now)
            self.insert_events([*began, *(catalogue.started(row, row["started_at"]) for row in rows)])
        return rows  # type: ignore[no-any-return]

    def begin_workflows(self, members: Sequence[tuple[uuid.UUID | None, uuid.UUID]], now: dt.datetime) -> list[Record]:
        """The `workflow.started` events of those (workflow, job) of which the job is the first to be claimed.

        No lock is needed: of several claims one inserts the row, and the others insert nothing.
        """
        first: dict[uuid.UUID, uuid.UUID] = {}
        for flow, job in members:
            if flow is not None:
                first.setdefault(flow, job)
        if not first:
            return []
        starts = WorkflowStart.objects.using(self.using).filter(pk__in=list(first))
        known = set(starts.values_list("pk", flat=True))
        new = [WorkflowStart(pk=flow, job_id=first[flow], started_at=now) for flow in sorted(first.keys() - known)]
        if not new:
            return []
        WorkflowStart.objects.using(self.using).bulk_create(new, ignore_conflicts=True)
        ours = starts.filter(pk__in=[start.pk for start in new], job_id__in=[start.job_id for start in new])
        flows = Workflow.objects.using(self.using).filter(pk__in=ours.values("pk")).order_by("pk")
        return [catalogue.of_workflow("workflow.started", f.pk, f.public_id, f.facts, now) for f in flows]

    def instant(self, name: str) -> F | Cast:
        """A time in a `values_list()` as this database gives it fastest: a datetime or its ISO text."""
        return F(name)

    def save_workflows(self, flows: Sequence[Workflow], columns: Sequence[str]) -> None:
        """Write `columns` of locked workflows back, in one statement."""
        Workflow.objects.using(self.using).bulk_update(flows, columns)

    def complete(
        self, acks: Sequence[Ack], now: dt.datetime, *, with_result: bool, columns: Sequence[str] = COLUMNS
    ) -> list[JobRow]:
        """Complete those jobs that are active and whose holder and attempt fit, with their events.

        Of each completed job the named columns are returned, `LIMITED` among them if named, in no particular order.
        """
        by_id = {ack.job_id: ack for ack in acks}
        locked = self.lock(by_id, columns=(*COLUMNS, LIMITED))
        rows = [row for row in locked if holds(row, by_id[row["id"]].worker_id, by_id[row["id"]].attempt)]
        for row in rows:
            finish(row, State.COMPLETED, now)
            row["result"], row["losses"] = by_id[row["id"]].result, 0
        self.update_jobs(Verb.ACK, rows, (*FINISH_COLUMNS, "result", "losses"))
        if rows:
            self.insert_events([catalogue.completed(row, row["finished_at"], with_result=with_result) for row in rows])
        return rows

    def lose_patience(self) -> None:
        """Let the rest of this transaction fail, rather than wait for long, where another one holds what it needs.

        PostgreSQL only; the failure is one that `contention.is_contention` knows.
        """

    def begin_writing(self) -> None:
        """What a transaction must do first if it decides by what it reads. Nothing, where rows can be locked."""

    def hold_key(self, digest: str) -> bool:
        """Hold this idempotency key until the transaction ends; False where another transaction holds it.

        Here a key is its row, of which a lock finds one that is not committed yet. Of two that come at once and find
        none, the second waits at its insert.
        """
        wanted = IdempotencyKey.objects.using(self.using).filter(pk=digest).select_for_update(nowait=True)
        try:
            list(wanted.values_list("pk"))
        except OperationalError as error:
            if error.args[:1] and error.args[0] in _NOT_NOW:
                return False
            raise
        return True

    def lock_stripes(self, stripes: Sequence[int]) -> None:
        """Hold these rows of `UniqueLock` until the transaction ends; `stripes` are sorted (jobs 2.6).

        Missing rows are inserted before any is locked, both in sorted order: so two
        transactions never wait for each other here.
        """
        locks = UniqueLock._default_manager.using(self.using)
        wanted = locks.filter(stripe__in=list(stripes)).order_by("stripe")
        if len(stripes) == 1 and list(wanted.select_for_update().values_list("stripe")):
            return  # with its only row in hand, it waits for no other transaction
        known = set(wanted.values_list("stripe", flat=True))
        missing = [UniqueLock(stripe=stripe) for stripe in stripes if stripe not in known]
        if missing:
            locks.bulk_create(missing, ignore_conflicts=True)
        for _ in wanted.select_for_update().values_list("stripe"):
            pass

    def same_key(self, keys: Sequence[str], wanted: Sequence[State]) -> list[JobRow]:
        """The jobs with these unique keys in these states: the live ones all, and locked; of the terminal ones
        the newest of each key and state, which is the last to get out of the way."""
        live = [state for state in wanted if state in states.LIVE]
        over = [state for state in wanted if state in states.TERMINAL]
        found: list[JobRow] = []
        if live:
            found += self.lock_live(keys, live)
        if over:
            place = Window(RowNumber(), partition_by=["unique_key", "state"], order_by=F("created_at").desc())
            jobs = self.jobs.filter(unique_key__in=list(keys), state__in=over).extra(where=["unique_key > ''"])
            newest = jobs.annotate(place=place).filter(place=1)
            found += self.jobs.filter(pk__in=list(newest.values_list("pk", flat=True))).rows()  # type: ignore[attr-defined]
        return found

    def lock_live(self, keys: Sequence[str], live: Sequence[State]) -> list[JobRow]:
        """Lock and read the jobs with these unique keys in these states."""
        jobs = self.jobs.filter(unique_key__in=list(keys), state__in=list(live)).extra(where=["unique_key > ''"])
        return jobs.order_by("pk").select_for_update().rows()  # type: ignore[attr-defined, no-any-return]

    def depths(self, queues: Sequence[str], *, in_bytes: bool) -> dict[str, tuple[int, int]]:
        """How many jobs of these queues have not ended, and how many bytes they take (0 unless `in_bytes`).

        One part for each index that knows such jobs, so that the ended ones are never looked at.
        """
        marks = ", ".join(["%s"] * len(queues))
        size = " + ".join(self.octets.format(name) for name in ("args", "meta", "extra"))
        staged = ", ".join(f"'{state}'" for state in STAGED)
        part = (
            f"SELECT queue, count(*) AS n, {f'coalesce(sum({size}), 0)' if in_bytes else '0'} AS size "
            f"FROM {Job._meta.db_table} WHERE queue IN ({marks}) AND state "
        )
        parts = [f"{part} {test} GROUP BY queue" for test in ("= 'available'", f"IN ({staged})", "= 'active'")]
        with connections[self.using].cursor() as cursor:
            cursor.execute(
                f"SELECT queue, sum(n), sum(size) FROM ({' UNION ALL '.join(parts)}) AS parts GROUP BY queue",
                list(queues) * len(parts),
            )
            found = {queue: (int(count), int(size)) for queue, count, size in cursor.fetchall()}
        return {queue: found.get(queue, (0, 0)) for queue in queues}

    #: The bytes of a text column in SQL.
    octets = "octet_length({})"

    def outlook(self, queues: Sequence[str], now: dt.datetime) -> Outlook:
        """One cheap look before a claim, at three small indexes and a table that is nearly always empty."""
        names = ", ".join(["%s"] * len(queues))
        at = connections[self.using].ops.adapt_datetimefield_value(now)
        with connections[self.using].cursor() as cursor:
            cursor.execute(
                f"SELECT EXISTS(SELECT 1 FROM {_JOB} WHERE wake_at <= %s AND queue IN ({names}) "
                f"AND state IN ('scheduled', 'retryable', 'available')), "
                f"EXISTS(SELECT 1 FROM {_JOB} WHERE state = 'available' AND rate_key > '' AND queue IN ({names})) "
                f"OR EXISTS(SELECT 1 FROM {_QUEUE} WHERE limited AND name IN (%s, {names})), "
                f"EXISTS(SELECT 1 FROM {_MAINTENANCE})",
                [at, *queues, *queues, TEMPLATE, *queues],
            )
            return Outlook(*map(bool, cursor.fetchone()))

    def candidates(
        self, queue: str, now: dt.datetime, types: Sequence[str] | None, limit: int,
        without: Collection[tuple[str, str, str]] = (), except_ids: Sequence[uuid.UUID] = (),
    ) -> list[tuple[uuid.UUID, str, str, str]]:  # fmt: skip
        """The next jobs of a queue in delivery order as (id, type, rate key, rate limit), unlocked.

        `without` leaves out jobs by key and its numbers, or by type where that is given; `except_ids` leaves out
        these jobs.
        """
        at = connections[self.using].ops.adapt_datetimefield_value(now)
        params: list[Any] = [queue, *[at] * ALIVE.count("%s"), at, queue]
        narrowed = ""
        if types is not None:
            wanted, values = _of_types(types)
            narrowed += f" AND {wanted}"
            params += values
        for key, policy, job_type in without:
            narrowed += " AND type <> %s" if job_type else " AND NOT (rate_key = %s AND rate_limit = %s)"
            params += [job_type] if job_type else [key, policy]
        if except_ids:
            narrowed += f" AND id NOT IN ({', '.join(['%s'] * len(except_ids))})"
            identity: Any = Job._meta.pk
            params += [identity.get_db_prep_value(job_id, connections[self.using]) for job_id in except_ids]
        with connections[self.using].cursor() as cursor:
            cursor.execute(
                f"SELECT id, type, rate_key, rate_limit FROM {_JOB} WHERE queue = %s AND state = 'available' "
                f"{ALIVE} AND (due_at IS NULL OR due_at <= %s) "
                f"AND NOT EXISTS (SELECT 1 FROM {_QUEUE} WHERE name = %s AND paused){narrowed} "
                f"ORDER BY priority DESC, enqueued_at, id LIMIT {int(limit)}",
                params,
            )
            found = cursor.fetchall()
        return [(pk if isinstance(pk, uuid.UUID) else uuid.UUID(str(pk)), *rest) for pk, *rest in found]

    def update_jobs(self, guard: Verb | State, rows: Sequence[JobRow], columns: Sequence[str]) -> None:
        """Write `columns` of locked rows back, in one statement that still names the state they must be in.

        `guard` is the verb whose legal states they are, or the one state itself.
        """
        if not rows:
            return
        values: dict[str, Any] = {}
        for column in columns:
            field: Any = Job._meta.get_field(column)
            if all(row[column] == rows[0][column] for row in rows):  # as most are; a long CASE is slow to read
                values[column] = Value(_value(column, rows[0][column]), output_field=field)
                continue
            cases = [When(pk=row["id"], then=Value(_value(column, row[column]), output_field=field)) for row in rows]
            values[column] = Case(*cases, output_field=field)
        tally = self.moved(guard, rows, columns)
        query = self.jobs.filter(pk__in=[row["id"] for row in rows], state__in=guarded(guard))
        self.check_count(guard, rows, QuerySet.update(query, **values))
        self.count(tally)

    def delete_jobs(self, ids: Sequence[uuid.UUID]) -> int:
        """Delete these jobs, which the caller has locked; return how many there were."""
        tally = Tally()
        doomed = self.jobs.filter(pk__in=ids)
        places: list[Place] = list(doomed.select_for_update().values_list("queue", "state", "dead_letter"))
        tally.leave(places)
        doomed._raw_delete(self.using)  # no rows to load
        JobProgress.objects.using(self.using).filter(pk__in=list(ids))._raw_delete(self.using)
        JobReplay.objects.using(self.using).filter(job_id__in=list(ids))._raw_delete(self.using)
        self.count(tally)
        return len(places)

    def moved(self, guard: Verb | State, rows: Sequence[JobRow], columns: Sequence[str]) -> Tally:
        """What writing these columns of locked rows changes in the counts; to be asked before the update."""
        tally = Tally()
        if "state" not in columns and "queue" not in columns:
            return tally
        sources = guarded(guard)
        if len(sources) == 1 and "queue" not in columns:  # as of most verbs: no statement is needed
            places: Iterable[Place] = [(row["queue"], sources[0], False) for row in rows]
        else:
            found = self.jobs.filter(pk__in=[row["id"] for row in rows], state__in=sources).select_for_update()
            places = found.values_list("queue", "state", "dead_letter")
        tally.leave(places)
        for row in rows:
            tally.enter(row, guard)
        return tally

    def count(self, tally: Tally, at: dt.datetime | None = None) -> None:
        """Add the differences to the counts of `at`, or of now, in the caller's transaction."""
        if deltas := tally.rows(at or clock.now(self.using)):
            values = (dict(zip(COUNTED, row, strict=True)) for row in deltas)
            CountDelta.objects.using(self.using).bulk_create(CountDelta(**names) for names in values)

    def check_count(self, guard: Verb | State, rows: Sequence[JobRow], touched: int) -> None:
        """The rows were locked, so all of them must have been touched (MariaDB counts matched rows here)."""
        if touched != len(rows):
            raise InvalidStateTransition.of(str(rows[0]["id"]), None, guard, rows[0]["state"])


@lru_cache
def guarded(guard: Verb | State) -> tuple[State, ...]:
    """The states that a statement under this guard may touch."""
    return (guard,) if isinstance(guard, State) else tuple(states.ordered(states.sources(guard)))


def new_jobs(rows: Sequence[JobRow]) -> Tally:
    """What new jobs change in the counts."""
    tally = Tally()
    for row in rows:
        tally.add(row["queue"], row["state"], 1)
    return tally


def _claimable(claim: Claim) -> Q:
    condition = ~ended(claim.now)
    condition &= Q(due_at__isnull=True) | Q(due_at__lte=claim.now)
    if claim.except_ids:
        condition &= ~Q(pk__in=claim.except_ids)
    return condition & any_of("type", claim.types) if claim.types is not None else condition


def _value(column: str, value: Any) -> Any:
    return RawJSON(value) if column in JSON_COLUMNS and value is not None else value


def _as_values(row: JobRow) -> dict[str, Any]:
    return {column: _value(column, value) for column, value in row.items()}


def _of_types(entries: Sequence[str]) -> tuple[str, list[Any]]:
    """A condition that every database knows, and its parameters: jobs of these types, or patterns such as `mail.*`.

    The claim reads rows in its own order anyway, so a pattern costs what a name costs.
    """
    exact, prefixes = split(entries)
    marks = ", ".join(["%s"] * len(exact)) or "NULL"
    params = [*exact, *(value for begin in prefixes for value in (len(begin), begin))]
    return f"(type IN ({marks}){' OR substr(type, 1, %s) = %s' * len(prefixes)})", params


def workflow_values(flow: Workflow, columns: Sequence[str]) -> list[Any]:
    """The id of a workflow and these columns, as they are stored."""
    fields = {field.attname: field for field in Workflow._meta.concrete_fields}
    return [flow.pk, *(fields[name].get_prep_value(getattr(flow, name)) for name in columns)]


# Counts: what a change of states means for them, a few numbers a queue whatever the number of jobs

#: Where a job was: queue, state, whether it was in the dead letter queue.
Place = tuple[str, str, bool]

COUNTED: tuple[str, ...] = ("queue", "at", *NUMBERS, "failed", "run_ms", "wait_ms")
#: The verbs by which a job fails for good, as `job.discarded` tells; expiry is no failure.
_FAILING = frozenset({Verb.FAIL, Verb.RESCUE})


class Tally:
    """Differences, by queue and column of `CountDelta`."""

    def __init__(self) -> None:
        self.changes: dict[str, dict[str, int]] = {}

    def add(self, queue: str, column: str, amount: int) -> None:
        numbers = self.changes.setdefault(queue, {})
        numbers[column] = numbers.get(column, 0) + amount

    def leave(self, places: Iterable[Place]) -> None:
        for queue, state, dead in places:
            self.add(queue, str(state), -1)
            if dead:
                self.add(queue, "dead", -1)

    def enter(self, row: JobRow, guard: Verb | State | None = None) -> None:
        """Count the job in `row` where it is now, and what its way there tells about the work done."""
        queue, state = row["queue"], str(row["state"])
        self.add(queue, state, 1)
        if state == State.ACTIVE and guard is Verb.FETCH:
            self.add(queue, "wait_ms", milliseconds(row["enqueued_at"], row["started_at"]))
        elif state == State.COMPLETED:
            self.add(queue, "run_ms", milliseconds(row["started_at"], row["finished_at"]))
        elif state == State.DISCARDED:
            self.add(queue, "dead", int(row["dead_letter"]))
            self.add(queue, "failed", int(guard in _FAILING))

    def rows(self, at: dt.datetime) -> list[tuple[Any, ...]]:
        """The values of `COLUMNS`, one row a queue; a queue in which nothing changed has none."""
        return [
            (queue, at, *(numbers.get(name, 0) for name in COUNTED[2:]))
            for queue, numbers in self.changes.items()
            if any(numbers.values())
        ]


# Rows: what a claim and an end make of a job's row, and when its time has run out

#: What the row of a new job says; all other columns begin at their defaults.
NEW_COLUMNS = ("id", "type", "queue", "state", "priority", "max_attempts", "args", "meta", "extra", "retry",
                 "timeout_ms", "visibility_ms", "heartbeat_ms", "grace_ms", "trace_id", "created_at", "enqueued_at",
                 "due_at", "expires_at", "start_by", "deadline_at", "wake_at", "unique_key", "workflow_id",
                 "result_ttl", "rate_key", "rate_limit")  # fmt: skip
#: What a claim writes.
CLAIM_COLUMNS = ("state", "attempt", "started_at", "worker_id", "lease_ms", "visible_until", "timeout_at", "wake_at",
                 "due_at")  # fmt: skip
#: What entering a terminal state writes.
FINISH_COLUMNS = ("state", "finished_at", "due_at", "visible_until", "timeout_at", "wake_at")
#: What may still be claimed, with the time of the claim three times: `ended` in SQL.
ALIVE = (
    "AND (expires_at IS NULL OR expires_at > %s) AND (deadline_at IS NULL OR deadline_at > %s) "
    "AND (start_by IS NULL OR start_by > %s OR attempt > 0)"
)


def ended(now: dt.datetime) -> Q:
    """Waiting jobs whose time has run out (binding 5)."""
    return Q(expires_at__lte=now) | Q(deadline_at__lte=now) | Q(start_by__lte=now, attempt=0)


def under_limit(queue: str) -> str:
    """`models.job.LIMITED` in SQL: whether a job is under a limit; `queue` is its column there."""
    limited = f"SELECT 1 FROM {Queue._meta.db_table} AS q WHERE q.limited AND q.name IN ({queue}, '{TEMPLATE}')"
    return f"(rate_key <> '' OR EXISTS ({limited}))"


def reserve(row: JobRow, claim: Claim) -> None:
    """Make `row` what the claim makes it (core 7.2)."""
    lease = claim.lease_ms(row["visibility_ms"])
    timeout = (row["timeout_ms"] or claim.base_timeout_ms) + (row["grace_ms"] or 0)
    row.update(
        state=State.ACTIVE.value, attempt=row["attempt"] + 1, worker_id=claim.worker_id,
        started_at=max(claim.now, row["enqueued_at"] or claim.now),
        lease_ms=lease, visible_until=held_until(row, lease, claim.now),
        timeout_at=claim.now + dt.timedelta(milliseconds=timeout), due_at=None,
    )  # fmt: skip
    row["wake_at"] = min(row["visible_until"], row["timeout_at"], row["deadline_at"] or row["timeout_at"])


def held_until(row: JobRow, lease_ms: int, now: dt.datetime) -> dt.datetime:
    """The end of a reservation that begins anew now: no later than its worker has to be heard of the job."""
    return now + dt.timedelta(milliseconds=min(lease_ms, row["heartbeat_ms"] or lease_ms))


def finish(row: JobRow, state: State, now: dt.datetime) -> None:
    """Make `row` enter a terminal state."""
    row.update(state=state.value, finished_at=moment(row, now), due_at=None, visible_until=None, timeout_at=None)
    row["wake_at"] = None


def holds(row: JobRow, worker_id: str, attempt: int | None) -> bool:
    """Whether a worker may speak for this job: it is active, and holder and attempt fit where both are known."""
    return (
        row["state"] == State.ACTIVE
        and (not worker_id or not row["worker_id"] or worker_id == row["worker_id"])
        and (attempt is None or attempt == row["attempt"])
    )
