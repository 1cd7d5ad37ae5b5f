"""The statements through the ORM: the readable reference, and what MariaDB runs.

Every method is a constant number of statements, however many jobs it is given. Every statement that
changes a state says in its WHERE clause from which states it may start: zero rows means that another
statement was first.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import uuid
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from operator import itemgetter
from typing import Any, NamedTuple

from django.db import IntegrityError, OperationalError, connections, transaction
from django.db.models import Case, Exists, ExpressionWrapper, F, Q, QuerySet, TextField, Value, When, Window
from django.db.models.functions import Cast, RowNumber

from django_ojs import clock, states
from django_ojs.database import LostRace
from django_ojs.errors import InvalidStateTransition
from django_ojs.events import catalogue
from django_ojs.events.catalogue import Record, milliseconds, moment
from django_ojs.models import (
    CronRun,
    Event,
    IdempotencyKey,
    Job,
    JobProgress,
    JobReplay,
    Maintenance,
    Queue,
    UniqueLock,
    Worker,
    Workflow,
    WorkflowStart,
    WorkflowStep,
)
from django_ojs.models.fields import RawJSON, any_of, split
from django_ojs.models.job import BLANK, COLUMNS, JSON_COLUMNS, LIMITED, STAGED, JobRow
from django_ojs.models.queue import TEMPLATE
from django_ojs.models.statistics import NUMBERS, CountDelta
from django_ojs.states import State, Verb

#: MariaDB and MySQL: another transaction has the row that NOWAIT asks for.
_NOT_NOW = frozenset({1205, 3572})
_JOB, _QUEUE, _MAINTENANCE, _CRON_RUN, _WORKER = (
    model._meta.db_table for model in (Job, Queue, Maintenance, CronRun, Worker)
)


class Taker(NamedTuple):
    """A worker that takes part in a claim, with the most jobs that it takes.

    `visibility_ms` is the reservation length that it asks for; that beats the job's own.
    """

    worker_id: str
    limit: int
    visibility_ms: int | None = None

    def lease_ms(self, own: int | None, base: int) -> int:
        """How long the reservation of a job is, which may have a length of its own; `base` is that of its queue."""
        return self.visibility_ms or own or base


@dataclasses.dataclass(frozen=True, slots=True)
class Claim:
    """What a FETCH asks of its queues, or several FETCHes together. Lengths in milliseconds."""

    queues: Mapping[str, int]  #: in the order in which they are served; the length for jobs without one of their own
    takers: Sequence[Taker]  #: in the order of their calls: each is served before the next
    now: dt.datetime
    base_timeout_ms: int
    types: Sequence[str] | None = None  #: job types, and `mail.*` for all that begin with `mail.`; None: any
    #: Only these jobs, whose limits have been looked at; None: any that is under no limit.
    ids: Sequence[uuid.UUID] | None = None
    except_ids: Sequence[uuid.UUID] = ()  #: jobs that are not to be claimed
    roomy: bool = False  #: without ids: the limits of the queues have been looked at, and leave room for all
    #: No outlook was asked: take nothing where it would show more than jobs that wait. For stores that can do that.
    unasked: bool = False
    urgent: bool = False  #: a job is known to wait: what serves only later claims can be done by a later one

    @property
    def limit(self) -> int:
        return sum(taker.limit for taker in self.takers)

    def places(self) -> list[int]:
        """For each job that is claimed, in the order of delivery, the index of its taker."""
        return [index for index, taker in enumerate(self.takers) for _ in range(taker.limit)]


class Presence(NamedTuple):
    """What a FETCH has to know of its worker. `unseen`: its row does not say yet that it has called lately."""

    state: str
    directive: str
    unseen: bool


class StoredKey(NamedTuple):
    """What is stored of an idempotency key; without a `status` it has no answer."""

    digest: str
    request: str
    status: int | None
    body: str
    headers: str
    created_at: dt.datetime


class Outlook(NamedTuple):
    """What a FETCH has to know first, of its queues and of its workers."""

    waiting: bool  #: a job is there, whether or not it may be claimed
    due: bool  #: time has something to do with a job that waits
    keyed: bool  #: a job there is under a limit of its own
    bounded: bool  #: a queue there is under a limit, or a job type
    closed: bool  #: maintenance closes all queues
    held: bool  #: a run of a schedule waits there for the run before it
    workers: dict[str, Presence]  #: those of the workers asked about that are known

    @property
    def limited(self) -> bool:
        return self.keyed or self.bounded


@dataclasses.dataclass(slots=True)
class Ack:
    """One job's success, as a worker reports it.

    `result` is JSON text, None when there is no result. A non-empty `worker_id` must be that of the
    holder, an `attempt` that of the claim; both fence off a worker that lost the job. `in_workflow`: the worker knows
    that the job is a member of a workflow, which spares the attempt to complete it without one.
    """

    job_id: uuid.UUID
    result: str | None = None
    worker_id: str = ""
    attempt: int | None = None
    in_workflow: bool = False


@dataclasses.dataclass(slots=True)
class Running:
    """What changes of a workflow that runs, as `Workflow` has it. Read under its lock."""

    pk: uuid.UUID
    created_at: dt.datetime
    progress: str
    state: str = Workflow.State.RUNNING
    finished_at: dt.datetime | None = None
    error: Any = None


@dataclasses.dataclass(slots=True)
class FlowChange:
    """`columns` of locked workflows, to be stored with the events of what led to them."""

    flows: Sequence[Workflow | Running]
    columns: Sequence[str]
    records: Sequence[Record]
    stored: bool = False


class Members(NamedTuple):
    """Workflows that run, locked, and what ended in them.

    Attributes:
        flows: each with the time of its first start.
        ended: of each job that ended `MEMBER` and its errors as text, by workflow, in the order in which they ended.
        following: `NEXT` of steps that may be next, as far as they come at no cost.
    """

    flows: list[tuple[Running, dt.datetime | None]]
    ended: list[Sequence[Any]]
    following: list[Sequence[Any]]


class Heard(NamedTuple):
    """A step as those after it know it: `result` is that of its job as JSON text, None where it has not completed."""

    step_id: str
    result: str | None


class Membership(NamedTuple):
    """Where a job is in its workflow, which was created then.

    `before` are the results of all steps before it as JSON texts, in their order. None: they take another statement.
    """

    job_id: uuid.UUID
    workflow_id: uuid.UUID
    position: int
    created_at: dt.datetime
    before: Sequence[str] | None


#: Where `claim` puts the `Membership` of a row, if that comes at no cost.
MEMBERSHIP = "membership"


class Store:
    """The interface, and its implementation for any database that Django knows."""

    #: Whether `SELECT ... FOR UPDATE SKIP LOCKED` is there.
    skip_locked = True
    #: Whether `claim`, and `complete` of jobs without a workflow, are one statement each, which needs no transaction
    #: around it. BEGIN and COMMIT would be two more round trips.
    single_statements = False
    #: Whether `claim` can find out by itself, in its statement, that a plain claim is not enough (`Claim.unasked`).
    claims_unasked = False

    def wants_practice(self) -> bool:
        """Whether the worker should make a claim in vain while no job waits, so that the next one needs no plan."""
        return False

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

    def takes_rows_as_they_come(self, count: int) -> bool:
        """Whether `push` inserts the first of so many rows before it looks at the last. It does so in a transaction,
        in which those who make the rows may not use the database."""
        return False

    def push(self, rows: Sequence[JobRow], component: str) -> bool:
        """Insert new jobs and their first events; return whether a worker sleeps that waits to be woken.

        Raises IntegrityError when an id is taken.
        """
        with transaction.atomic(using=self.using, savepoint=False):
            Job.objects.using(self.using).bulk_create(Job(**_as_values(row)) for row in rows)
            self.count(new_jobs(rows), rows[0]["created_at"])
            self.insert_events([record for row in rows if (record := catalogue.of_new_job(row, component))])
        return False

    def push_with(self, change: FlowChange, rows: Sequence[JobRow], component: str) -> bool:
        """`save` and `push`, in one statement where that is possible."""
        self.save(change)
        return self.push(rows, component)

    def push_if_free(
        self, row: JobRow, component: str, wanted: Sequence[State], since: dt.datetime | None
    ) -> bool | None:
        """`push` of one unique job, under the lock of its key, if no job with the key is in one of the states `wanted`
        and, where `since` is given, was created after it; None if there is one, or if it takes a closer look to tell.

        Raises IntegrityError when the id is taken.
        """
        return None

    def insert_events(self, records: Sequence[Record]) -> None:
        """Append to the event log, in the caller's transaction."""
        fields = [{**record._asdict(), "data": RawJSON(record.data)} for record in records]
        Event.objects.using(self.using).bulk_create(Event(**values) for values in fields)

    def claim(self, claim: Claim, columns: Sequence[str] = COLUMNS, *, raw: bool = False) -> list[list[JobRow]]:
        """Take jobs for workers, in delivery order, with their events; return for each taker the rows that it has.

        Delivery order is the queues from left to right, in a queue priority descending, then first in, first out. Of
        each job the named columns are returned, as they are after the claim, and of a member of a workflow maybe its
        `MEMBERSHIP`. `raw` lets times come as the database's ISO text (UTC) where that saves time; who needs one parses
        it.
        """
        given: list[list[JobRow]] = [[] for _ in claim.takers]
        places = iter(claim.places())
        left, claimed = claim.limit, []
        for queue, base in claim.queues.items():
            found = self._lock_claimable(claim, queue, left) if left else []
            for row, place in zip(found, places):  # noqa: B905 - there may be more places
                reserve(row, claim, claim.takers[place], base)
                given[place].append(row)
            left -= len(found)
            claimed += found
        self.update_jobs(Verb.FETCH, claimed, CLAIM_COLUMNS)
        if claimed:
            began = self.begin_workflows([(row["workflow_id"], row["id"]) for row in claimed], claim.now)
            self.insert_events([*began, *(catalogue.started(row, row["started_at"]) for row in claimed)])
        return given

    def _lock_claimable(self, claim: Claim, queue: str, limit: int) -> list[JobRow]:
        """The next jobs of one queue that may be claimed, locked."""
        condition = Q(queue=queue, state=State.AVAILABLE) & _claimable(claim)
        closed = Q(name=queue, paused=True)
        if claim.ids is None:
            condition &= Q(rate_key="")
            if not claim.roomy:
                closed |= Q(name__in=[queue, TEMPLATE], limited=True)
        else:
            condition &= Q(pk__in=claim.ids)
        query = self.jobs.filter(condition, ~Exists(Queue.objects.filter(closed)))
        query = query.order_by(F("priority").desc(), "enqueued_at", "pk").select_for_update(
            skip_locked=self.skip_locked
        )
        return query[:limit].rows()  # type: ignore[attr-defined, no-any-return]

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

    def lock_members(self, jobs: Collection[uuid.UUID], flows: Collection[uuid.UUID], *, errors: bool) -> Members:
        """Lock those of these workflows that run, in the order of their ids, and read what ended in them.

        Only with `errors` are those of the jobs read.
        """
        running = Workflow.objects.using(self.using).filter(pk__in=list(flows), state=Workflow.State.RUNNING)
        locked = list(running.select_for_update().order_by("pk").values_list("pk", "created_at", "progress"))
        starts = WorkflowStart.objects.using(self.using).filter(pk__in=[row[0] for row in locked])
        began = dict(starts.values_list("pk", "started_at"))
        steps = WorkflowStep.objects.using(self.using).filter(job_id__in=list(jobs), workflow_id__in=list(flows))
        steps = steps.order_by("workflow_id", "job__finished_at", "position")
        text = ExpressionWrapper(F("job__errors"), TextField()) if errors else Value(None, output_field=TextField())
        found = [(Running(pk, created_at, progress), began.get(pk)) for pk, created_at, progress in locked]
        return Members(found, list(steps.values_list(*MEMBER, text)), [])

    def memberships(self, jobs: Collection[uuid.UUID]) -> list[Membership]:
        """Where these members of workflows are, with the results before them where they come at no cost."""
        steps = WorkflowStep.objects.using(self.using).filter(job_id__in=list(jobs))
        found = steps.values_list("job_id", "workflow_id", "position", "workflow__created_at")
        return [Membership(*values, before=None) for values in found]

    def results(self, places: Collection[tuple[uuid.UUID, int]]) -> dict[tuple[uuid.UUID, int], Heard]:
        """What the steps at these places (workflow, position) leave to those after them."""
        if not places:
            return {}
        steps = WorkflowStep.objects.using(self.using).filter(
            workflow_id__in={flow for flow, _ in places}, position__in={position for _, position in places}
        )
        text = ExpressionWrapper(F("job__result"), TextField())
        completed = Case(When(job__state=State.COMPLETED, then=text), output_field=TextField())
        found = steps.values_list("workflow_id", "position", "step_id", completed)
        return {(flow, place): Heard(*rest) for flow, place, *rest in found if (flow, place) in places}

    def save(self, change: FlowChange) -> None:
        """Store a change of workflows, unless it is."""
        if not change.stored:
            self.save_workflows(change.flows, change.columns, change.records)
            change.stored = True

    def save_workflows(
        self, flows: Sequence[Workflow | Running], columns: Sequence[str], records: Sequence[Record]
    ) -> None:
        """Write `columns` of locked workflows back, and the events of the change, in one statement each."""
        rows = [Workflow(pk=flow.pk, **{name: getattr(flow, name) for name in columns}) for flow in flows]
        Workflow.objects.using(self.using).bulk_update(rows, columns)
        if records:
            self.insert_events(records)

    def complete(
        self, acks: Sequence[Ack], now: dt.datetime, *, with_result: bool, columns: Sequence[str] = COLUMNS,
        members: bool = True,
    ) -> list[JobRow]:  # fmt: skip
        """Complete those jobs that are active and whose holder and attempt fit, with their events.

        Without `members` those that belong to a workflow are left alone, and those that another transaction has
        locked; only where `single_statements` is true.

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

    def complete_members(
        self, acks: Sequence[Ack], now: dt.datetime, *, with_result: bool, columns: Sequence[str], errors: bool
    ) -> tuple[list[JobRow], Members | None]:
        """`complete`, and for those of the jobs that belong to workflows `lock_members`; None where none does.

        `columns` have `workflow_id` among them.
        """
        rows = self.complete(acks, now, with_result=with_result, columns=columns)
        ended = {row["id"]: row["workflow_id"] for row in rows if row["workflow_id"] is not None}
        return rows, self.lock_members(ended, set(ended.values()), errors=errors) if ended else None

    def lose_patience(self) -> None:
        """Let the rest of this transaction fail, rather than wait for long, where another one holds what it needs.

        PostgreSQL only; the failure is one that `contention.is_contention` knows.
        """

    def begin_writing(self) -> None:
        """What a transaction must do first if it decides by what it reads. Nothing, where rows can be locked."""

    #: Whether a request is refused whose idempotency key another one holds; else it waits for the other's answer.
    refuses_held_keys = True

    def hold_keys(self, digests: Sequence[str], now: dt.datetime) -> dict[str, StoredKey | None]:
        """Hold these idempotency keys until the transaction ends, but for those that another one holds; what is stored
        of each that is held, None where nothing is.

        Here a key is its row, so a new one is inserted at once. Raises LostRace where one of several is held by
        another transaction, or one was inserted meanwhile.
        """
        keys = IdempotencyKey.objects.using(self.using)
        rows = keys.filter(pk__in=list(digests)).select_for_update(nowait=True)
        try:
            stored = [StoredKey(*values) for values in rows.values_list(*StoredKey._fields)]
        except OperationalError as error:
            if not error.args[:1] or error.args[0] not in _NOT_NOW:
                raise
            if len(digests) == 1:
                return {}
            raise LostRace("Another transaction holds an idempotency key of these.") from error
        found: dict[str, StoredKey | None] = {key.digest: key for key in stored}
        new = [IdempotencyKey(digest=digest, created_at=now) for digest in digests if digest not in found]
        try:
            keys.bulk_create(new)
        except IntegrityError as error:
            raise LostRace("Another transaction has just stored this idempotency key.") from error
        return found | {key.digest: None for key in new}

    def keep_answers(self, keys: Sequence[StoredKey], free: Sequence[str], stale: dt.datetime) -> None:
        """Store the answers of requests with keys that are held, and free the keys of others. What was stored before
        `stale` may be replaced; raises LostRace where a newer answer is there, and then keeps nothing.
        """
        known = IdempotencyKey.objects.using(self.using)
        if free:
            known.filter(pk__in=list(free), status=None)._raw_delete(self.using)
        if keys:
            columns = [name for name in StoredKey._fields if name != "digest"]
            known.bulk_update([IdempotencyKey(**key._asdict()) for key in keys], columns)

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

    def outlook(self, queues: Sequence[str], workers: Collection[str], now: dt.datetime, *, unseen: float) -> Outlook:
        """One cheap look before a claim, at small indexes, at tables that are nearly always empty, and at the workers.

        A worker counts as unseen if its row does not know of a call in the last `unseen` seconds.
        """
        names = ", ".join(["%s"] * len(queues))
        asked = [*workers]
        asked += asked[-1:] * ((1 << (len(asked) - 1).bit_length()) - len(asked) if asked else 0)  # few texts
        adapt = connections[self.using].ops.adapt_datetimefield_value
        available = f"EXISTS(SELECT 1 FROM {_JOB} WHERE state = 'available' AND queue IN ({names}))"
        questions = ", ".join([available, *obstacles(f"IN ({names})", "%s")])
        params = [*queues, adapt(now), *queues, *queues, *queues, *queues]
        if not asked:
            statement = f"SELECT {questions}"
        else:
            statement = (
                f"SELECT {questions}, w.id, w.state, w.directive, w.last_seen_at < %s FROM (SELECT 1 AS one) AS here "
                f"LEFT JOIN {_WORKER} AS w ON w.id IN ({', '.join(['%s'] * len(asked))})"
            )
            params += [adapt(now - dt.timedelta(seconds=unseen)), *asked]
        found = self._execute(statement, params)
        known = {row[6]: Presence(row[7], row[8], bool(row[9])) for row in found if row[6:] and row[6] is not None}
        waiting, due, keyed, bounded, closed, held = map(bool, found[0][:6])
        return Outlook(waiting, due, keyed, bounded, closed, held, known)

    def _execute(self, statement: str, params: Any) -> list[tuple[Any, ...]]:
        """Run a statement and return its rows."""
        with connections[self.using].cursor() as cursor:
            cursor.execute(statement, params)
            return cursor.fetchall() if cursor.description else []

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
        query = self.jobs.filter(self.still_in(guarded(guard)), pk__in=[row["id"] for row in rows])
        self.check_count(guard, rows, QuerySet.update(query, **values))
        self.count(tally)

    def still_in(self, states: Sequence[State]) -> Q:
        """That a job, which is found by its id, is in one of these states."""
        return Q(state__in=states)

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
    for (queue, state), number in Counter(map(itemgetter("queue", "state"), rows)).items():
        tally.add(queue, state, number)
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


#: What `lock_members` reads of a job that has ended, and its place.
MEMBER = ("workflow_id", "position", "step_id", "job_id", "type", "job__state", "job__started_at", "job__finished_at",
          "job__worker_id", "job__trace_id", "job__attempt")  # fmt: skip
#: What is read of a step whose job is to be enqueued.
NEXT = ("workflow_id", "position", "step_id", "job_id", "type", "document")


_FLOW, _STEP, _START = (model._meta.db_table for model in (Workflow, WorkflowStep, WorkflowStart))
#: What is read beside the step `s` of a job that ended in the workflow `w`: its start, and in a chain the step behind.
BESIDE = (
    f"LEFT JOIN {_START} b ON b.workflow_id = s.workflow_id "
    f"LEFT JOIN {_STEP} n ON w.type = 'chain' AND n.workflow_id = s.workflow_id AND n.position = s.position + 1"
)


def shown_beside(place: str, text: str) -> str:
    """What is shown of `BESIDE`; only the first of the rows of a workflow, which come in the order `place`, shows its
    progress."""
    return (
        f"w.created_at{text}, b.started_at{text}, "
        f"CASE WHEN lag(s.workflow_id) OVER ({place}) = s.workflow_id THEN NULL ELSE w.progress END, "
        f"n.step_id, n.job_id, n.type, n.document"
    )


def members_statement(own: str, given: str, lock: str, *, text: str, errors: bool) -> str:
    """`lock_members` as one statement. `own` are the steps of the jobs that are meant, as the source `s`, `given` says
    which workflows, `lock` how rows are locked, `text` how times become text, which is the fastest to read.

    The steps are found by their jobs, and the workflows by their ids in words that fit no other index, since there may
    be many steps in a workflow, and many workflows that run.
    """
    times = ", ".join(f"j.{name}{text}" for name in ("started_at", "finished_at"))
    place = "ORDER BY s.workflow_id, j.finished_at, s.position"
    return (
        f"WITH flows AS (SELECT id, created_at, progress, type FROM {_FLOW} "
        f"WHERE id {given} AND state || '' = 'running' ORDER BY id {lock}), "
        f"ended AS MATERIALIZED (SELECT s.workflow_id, s.position, s.step_id, s.job_id, s.type "
        f"FROM {own}) "
        f"SELECT s.workflow_id, s.position, s.step_id, s.job_id, s.type, j.state, {times}, j.worker_id, j.trace_id, "
        f"j.attempt, {'j.errors' if errors else 'NULL'}, {shown_beside(place, text)} "
        f"FROM ended s JOIN flows w ON w.id = s.workflow_id JOIN {_JOB} j ON j.id = s.job_id {BESIDE} {place}"
    )


#: Between two results of `memberships_statement`: JSON text never contains it.
_BETWEEN = "\x1f"


def results_before(joined: str) -> str:
    """The results of the steps before the step `s` of the workflow `w`, in their order as one text. `joined` makes that
    of the query `{before}`.

    In a chain that has only steps, all before a step lie at lower positions, and that is all it hears. Elsewhere there
    may be many that do not concern it, and this is NULL.
    """
    before = (
        f"SELECT CASE WHEN j.state = 'completed' THEN coalesce(j.result, 'null') ELSE 'null' END AS result "
        f"FROM {_STEP} p LEFT JOIN {_JOB} j ON j.id = p.job_id WHERE p.workflow_id = s.workflow_id "
        f"AND p.position < s.position ORDER BY p.position"
    )
    only_steps = "w.type = 'chain' AND length(w.progress) = w.job_count + 1"
    return f"CASE WHEN {only_steps} THEN coalesce({joined.format(before=before)}, '') END"


def memberships_statement(given: str, joined: str, *, text: str) -> str:
    """`Store.memberships` as one statement. `given` are the steps of the jobs as the source `s`, `joined` is for
    `results_before`, and `text` how a time becomes text."""
    return (
        f"SELECT s.job_id, s.workflow_id, s.position, w.created_at{text}, {results_before(joined)} "
        f"FROM {given} JOIN {_FLOW} w ON w.id = s.workflow_id"
    )


def membership(
    job_id: uuid.UUID, flow_id: uuid.UUID, position: int, created_at: dt.datetime, results: str | None
) -> Membership:
    """A row of `memberships_statement`."""
    before = None if results is None else results.split(_BETWEEN) if results else ()
    return Membership(job_id, flow_id, position, created_at, before)


def results_statement(source: str) -> str:
    """`Store.results` as one statement. `source` gives the places as `v`, with the columns `flow` and `position`."""
    return (
        f"SELECT s.workflow_id, s.position, s.step_id, CASE WHEN j.state = 'completed' THEN j.result END FROM {source} "
        f"JOIN {WorkflowStep._meta.db_table} s ON s.workflow_id = v.flow AND s.position = v.position "
        f"LEFT JOIN {_JOB} j ON j.id = s.job_id"
    )


def members(found: Iterable[Sequence[Any]]) -> Members:
    """The rows of `members_statement`."""
    answer = Members([], [], [])
    width = len(MEMBER) + 1
    for row in found:
        answer.ended.append(row[:width])
        created_at, began, progress, *behind = row[width:]
        if progress is not None:
            answer.flows.append((Running(row[0], created_at, progress), began))
        if behind[-1]:
            answer.following.append((row[0], row[1] + 1, *behind))
    return answer


def workflow_values(flow: Workflow | Running, columns: Sequence[str]) -> list[Any]:
    """The id of a workflow and these columns, as they are stored."""
    return [flow.pk, *(_FLOW_FIELDS[name].get_prep_value(getattr(flow, name)) for name in columns)]


_FLOW_FIELDS: dict[str, Any] = {field.attname: field for field in Workflow._meta.concrete_fields}


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
#: What a new job has in them that says nothing.
NEW_DEFAULTS = {name: BLANK[name] for name in NEW_COLUMNS}
_new_values = itemgetter(*NEW_COLUMNS)


def said(row: JobRow) -> dict[str, Any]:
    """What a new job says: its columns that are not at their defaults."""
    pairs = zip(NEW_COLUMNS, _new_values(row), strict=True)
    return {name: value for name, value in pairs if value != NEW_DEFAULTS[name]}


def compared(rows: Sequence[JobRow]) -> tuple[dict[str, Any], dict[str, tuple[Any, ...] | str]]:
    """What new jobs say: the columns in which all say the same with that value, and the others with a value for each
    job, or with the name of the column that has the same values.

    So of a thousand like jobs only the ids and the times travel a thousand times.
    """
    alike: dict[str, Any] = {}
    varying: dict[str, tuple[Any, ...] | str] = {}
    for name, column in zip(NEW_COLUMNS, zip(*map(_new_values, rows), strict=True), strict=True):
        first = column[0]
        if column.count(first) < len(column):
            varying[name] = next((other for other, found in varying.items() if found == column), column)
        elif first != NEW_DEFAULTS[name]:
            alike[name] = first
    return alike, varying


def new_constant(name: str) -> str:
    """What a new job has by default in a column, in SQL: null, a number, or a text without quotes in it."""
    value = NEW_DEFAULTS[name]
    return "NULL" if value is None else f"'{value}'" if isinstance(value, str) else str(value)


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


def obstacles(these_queues: str, now: str) -> tuple[str, str, str, str, str]:
    """What a plain claim cannot do with, as conditions in SQL, in the order of `Outlook`: due, keyed, bounded, closed,
    held.

    `these_queues` is how a column is compared with the queues, such as `IN (%s, %s)`. Parameters are `now`, and three
    times the queues after the queues of the first condition.
    """
    # In an order that only the index of these times has: with EXISTS, PostgreSQL may read all jobs.
    due = (
        f"(SELECT wake_at FROM {_JOB} WHERE wake_at <= {now} AND queue {these_queues} "
        f"AND state IN ('scheduled', 'retryable', 'available') ORDER BY wake_at LIMIT 1) IS NOT NULL"
    )
    keyed = f"EXISTS(SELECT 1 FROM {_JOB} WHERE state = 'available' AND rate_key > '' AND queue {these_queues})"
    bounded = f"EXISTS(SELECT 1 FROM {_QUEUE} WHERE limited AND (name = '{TEMPLATE}' OR name {these_queues}))"
    closed = f"EXISTS(SELECT 1 FROM {_MAINTENANCE})"
    return due, keyed, bounded, closed, f"EXISTS(SELECT 1 FROM {_CRON_RUN} WHERE held AND queue {these_queues})"


def reserve(row: JobRow, claim: Claim, taker: Taker, base_visibility_ms: int) -> None:
    """Make `row` what the claim makes it (core 7.2)."""
    lease = taker.lease_ms(row["visibility_ms"], base_visibility_ms)
    timeout = (row["timeout_ms"] or claim.base_timeout_ms) + (row["grace_ms"] or 0)
    row.update(
        state=State.ACTIVE.value, attempt=row["attempt"] + 1, worker_id=taker.worker_id,
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
