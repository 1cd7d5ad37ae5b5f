"""Makes every statement of the store through the ORM: the reference to read, and what MariaDB runs.

Every method is a constant number of statements, however many jobs it is given, unless what they bring is more than the
database takes at once (`in_parts`). Every statement that changes a state says in its WHERE clause from which states it
may start: zero rows means that another statement was first.
"""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from django.db import Error, IntegrityError, connections
from django.db.models import (
    Case,
    Exists,
    ExpressionWrapper,
    F,
    Model,
    Q,
    QuerySet,
    Subquery,
    TextField,
    Value,
    When,
    Window,
)
from django.db.models.functions import Cast, Coalesce, RowNumber

from django_ojs import clock, states
from django_ojs.conf import ojs_settings
from django_ojs.database import atomic
from django_ojs.errors import InvalidStateTransition
from django_ojs.events import catalogue
from django_ojs.events.catalogue import Record
from django_ojs.faults import LostRace, is_contention, only_if_taken
from django_ojs.models import (
    Event,
    IdempotencyKey,
    Job,
    JobAttempt,
    JobCheckpoint,
    JobLog,
    JobProgress,
    JobReplay,
    JobStep,
    Queue,
    UniqueLock,
    Worker,
    Workflow,
    WorkflowStart,
    WorkflowStep,
)
from django_ojs.models.fields import RawJSON
from django_ojs.models.job import COLUMNS, JSON_COLUMNS, LIMITED, STAGED, JobRow
from django_ojs.models.queue import TEMPLATE
from django_ojs.models.statistics import CountDelta
from django_ojs.rules.rows import finish, holds, reserve
from django_ojs.states import State, Verb
from django_ojs.store.conditions import (
    _CRON_RUN,
    _JOB,
    _QUEUE,
    _WORKER,
    ALIVE,
    CLAIM_COLUMNS,
    FINISH_COLUMNS,
    _claimable,
    _of_types,
    guarded_states,
    obstacles,
)
from django_ojs.store.counts import COUNTED, Place, Tally, new_jobs
from django_ojs.store.values import (
    ENDED_ATTEMPT,
    Ack,
    Choice,
    Claim,
    EndedAttempt,
    EndedMembers,
    FlowChange,
    Heard,
    Membership,
    QueueStatus,
    Running,
    StoredKey,
    WorkerPresence,
)
from django_ojs.store.workflows import MEMBER

M = TypeVar("M", bound=Model)
T = TypeVar("T")


class Store:
    """The interface, and its implementation for any database that Django knows."""

    #: Whether `SELECT ... FOR UPDATE SKIP LOCKED` is there.
    skip_locked = True
    #: Whether `claim`, and `complete` of jobs without a workflow, are one statement each, which needs no transaction
    #: around it. BEGIN and COMMIT would be two more round trips.
    single_statements = False
    #: Whether `claim` can find out by itself, in its statement, that a plain claim is not enough (`Claim.optimistic`).
    claims_optimistically = False

    def needs_warmup(self) -> bool:
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
        """Lock these jobs in the order of their ids (the fixed lock order) and read them; None: all columns.

        `skip_locked`: but for those that another transaction has locked, where the database can tell.
        """
        return self.lock_where(Q(pk__in=list(ids)), skip_locked=skip_locked, columns=columns)

    def lock_where(
        self, condition: Q, *, limit: int | None = None, skip_locked: bool = False,
        columns: Sequence[str] | None = None,
    ) -> list[JobRow]:  # fmt: skip
        query = self.with_lock_timeout(self.jobs.filter(condition).order_by("pk"))
        query = query.select_for_update(skip_locked=skip_locked and self.skip_locked)
        return (query[:limit] if limit else query).rows(columns)  # type: ignore[attr-defined, no-any-return]

    def in_parts(self, items: Sequence[T], size: Callable[[T], int]) -> Iterable[Sequence[T]]:
        """The items in parts of which each can be one statement, none where there are none. `size` is how many
        characters an item brings."""
        return (items,) if items else ()

    def takes_rows_as_they_come(self, count: int) -> bool:
        """Whether `push` inserts the first of so many rows before it looks at the last. It does so in a transaction,
        in which those who make the rows may not use the database."""
        return False

    def push(self, rows: Sequence[JobRow], component: str, change: FlowChange | None = None) -> bool:
        """Insert new jobs and their first events; return whether a worker sleeps that waits to be woken.

        A `change` of workflows is stored with them, unless it is stored already (`save`). Raises IntegrityError when an
        id is taken.
        """
        if change:
            self.save(change)
        with atomic(using=self.using, savepoint=False):
            for part in self.in_parts(rows, lambda row: characters(row.values())):
                Job.objects.using(self.using).bulk_create(Job(**_as_values(row)) for row in part)
            self.count(new_jobs(rows), rows[0]["created_at"])
            self.insert_events([record for row in rows if (record := catalogue.of_new_job(row, component))])
        return False

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
        for part in self.in_parts(records, lambda record: len(record.data)):
            fields = [{**record._asdict(), "data": RawJSON(record.data)} for record in part]
            Event.objects.using(self.using).bulk_create(Event(**values) for values in fields)

    def claim(self, claim: Claim, columns: Sequence[str] = COLUMNS, *, raw: bool = False) -> list[list[JobRow]]:
        """Take jobs for workers, in delivery order, with their events; return for each claimant the rows that it has.

        Delivery order is the queues from left to right, in a queue priority descending, then first in, first out. Of
        each job the named columns are returned, as they are after the claim, and of a member of a workflow maybe its
        `MEMBERSHIP`. `raw` lets times come as the database's ISO text (UTC) where that saves time; who needs one parses
        it.
        """
        given: list[list[JobRow]] = [[] for _ in claim.claimants]
        places = iter(claim.places())
        left, claimed = claim.limit, []
        for queue, base in claim.queues.items():
            found = self._lock_claimable(claim, queue, left) if left else []
            for row, place in zip(found, places):  # noqa: B905 - there may be more places
                claimant = claim.claimants[place]
                lease = claimant.lease_ms(row["visibility_ms"], base)
                reserve(row, claimant.worker_id, claim.now, lease_ms=lease, default_timeout_ms=claim.base_timeout_ms)
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

    def lock_members(self, jobs: Collection[uuid.UUID], flows: Collection[uuid.UUID], *, errors: bool) -> EndedMembers:
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
        return EndedMembers(found, list(steps.values_list(*MEMBER, text)), [])

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
        members: bool = True, skip_locked: bool = False,
    ) -> list[JobRow]:  # fmt: skip
        """Complete those jobs that are active and whose holder and attempt fit, with their events.

        With `skip_locked` those that another transaction has locked are left alone; without `members`, too, and those
        that belong to a workflow; the latter only where `single_statements` is true.

        Of each completed job the named columns are returned, `LIMITED` among them if named, in no particular order.
        """
        by_id = {ack.job_id: ack for ack in acks}
        locked = self.lock(by_id, columns=(*COLUMNS, LIMITED), skip_locked=skip_locked)
        rows = [row for row in locked if holds(row, by_id[row["id"]].worker_id, by_id[row["id"]].attempt)]
        for row in rows:
            finish(row, State.COMPLETED, now)
            row["result"], row["losses"] = by_id[row["id"]].result, 0
        self.update_jobs(Verb.ACK, rows, (*FINISH_COLUMNS, "result", "losses"))
        if rows:
            self.insert_events([catalogue.completed(row, row["finished_at"], with_result=with_result) for row in rows])
        return rows

    def complete_members(
        self, acks: Sequence[Ack], now: dt.datetime, *, with_result: bool, columns: Sequence[str], errors: bool,
        skip_locked: bool = False,
    ) -> tuple[list[JobRow], EndedMembers | None]:  # fmt: skip
        """`complete`, and for those of the jobs that belong to workflows `lock_members`; None where none does.

        `columns` have `workflow_id` among them.
        """
        rows = self.complete(acks, now, with_result=with_result, columns=columns, skip_locked=skip_locked)
        ended = {row["id"]: row["workflow_id"] for row in rows if row["workflow_id"] is not None}
        return rows, self.lock_members(ended, set(ended.values()), errors=errors) if ended else None

    def set_lock_timeout(self) -> None:
        """Let the rest of this transaction fail, rather than wait for long, where another one holds what it needs.

        PostgreSQL only; the failure is one that `faults.is_contention` knows.
        """

    def with_lock_timeout(self, rows: QuerySet[M]) -> QuerySet[M]:
        """A query that is about to lock rows or to change them, with the timeout of the block that the thread is in
        (`lockwaits.LockTimeout`) for itself and the rest of the transaction. As it is, where each statement has it.
        """
        return rows

    def certify(self, rows: QuerySet[M], moment: str = "updated_at") -> None:
        """Let no transaction on another node of a cluster hold these rows as well, which the caller has just locked.

        For a lock behind which the caller decides by other rows than the locked ones, and may leave these as they are.
        It has to come before the caller reads what it decides by. `moment` is a column with microseconds to spare.
        """

    def begin_writing(self) -> None:
        """What a transaction must do first if it decides by what it reads. Nothing, where rows can be locked."""

    #: Whether a request is refused whose idempotency key another one holds; else it waits for the other's answer.
    refuses_held_keys = True

    def hold_keys(self, digests: Sequence[str], now: dt.datetime) -> dict[str, StoredKey | None]:
        """Hold these idempotency keys until the transaction ends, except those that another transaction holds. Return
        what is stored under each key that is held now, or None.

        Here a key is its row, so a new one is inserted at once. Raises LostRace where one of several is held by
        another transaction, or one was inserted meanwhile.
        """
        keys = IdempotencyKey.objects.using(self.using)
        rows = keys.filter(pk__in=list(digests)).select_for_update(nowait=True)
        try:
            stored = [StoredKey(*values) for values in rows.values_list(*StoredKey._fields)]
        except Error as error:
            if not is_contention(error):
                raise
            if len(digests) == 1:
                return {}
            raise LostRace("Another transaction holds an idempotency key of these.") from error
        found: dict[str, StoredKey | None] = {key.digest: key for key in stored}
        new = [IdempotencyKey(digest=digest, created_at=now) for digest in digests if digest not in found]
        try:
            keys.bulk_create(new)
        except IntegrityError as error:
            only_if_taken(error)
            raise LostRace("Another transaction has just stored this idempotency key.") from error
        return found | {key.digest: None for key in new}

    def keep_answers(self, keys: Sequence[StoredKey], free: Sequence[str], stale: dt.datetime) -> None:
        """Store the answers of requests with keys that are held, and free the keys of others. What was stored before
        `stale` may be replaced; raises LostRace where a newer answer is there, and then keeps nothing.
        """
        known = IdempotencyKey.objects.using(self.using)
        if free:
            known.filter(pk__in=list(free), status=None)._raw_delete(self.using)
        columns = [name for name in StoredKey._fields if name != "digest"]
        for part in self.in_parts(keys, characters):
            known.bulk_update([IdempotencyKey(**key._asdict()) for key in part], columns)

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

    #: When a retryable job began to wait.
    waits_since = "due_at - retry_delay_ms * INTERVAL '1 millisecond'"

    def occupied_queues(self, now: dt.datetime) -> set[str]:
        """The queues in which a FETCH may have something to do: jobs that are available or due, or a run of a schedule
        that is put off.

        It costs as much as there are such queues, however many others there are, and however many jobs they have.
        """
        with connections[self.using].cursor() as cursor:
            cursor.execute(
                f"{self._available_queues} UNION SELECT queue FROM {_JOB} WHERE wake_at <= %s "
                f"AND state IN ('scheduled', 'retryable') UNION SELECT queue FROM {_CRON_RUN} WHERE held",
                [connections[self.using].ops.adapt_datetimefield_value(now)],
            )
            return {name for (name,) in cursor.fetchall()}

    #: The queues that have available jobs: by the index of the claim, from one queue to the next.
    _available_queues = (
        f"WITH RECURSIVE occupied (queue) AS (SELECT min(queue) FROM {_JOB} WHERE state = 'available' UNION ALL "
        f"SELECT (SELECT min(queue) FROM {_JOB} WHERE state = 'available' AND queue > occupied.queue) FROM occupied "
        "WHERE occupied.queue IS NOT NULL) SELECT queue FROM occupied WHERE queue IS NOT NULL"
    )

    def queue_status(
        self, queues: Sequence[str], workers: Collection[str], now: dt.datetime, *, unseen: float
    ) -> QueueStatus:
        """What a FETCH has to know of these queues and workers before it claims, by one statement.

        It is cheap: it looks at small indexes, at tables that are nearly always empty, and at the workers. A worker
        counts as unseen if its row does not know of a call in the last `unseen` seconds.
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
                f"SELECT {questions}, w.id, w.state, w.directive, w.owner, w.last_seen_at < %s "
                f"FROM (SELECT 1 AS one) AS here LEFT JOIN {_WORKER} AS w ON w.id IN ({', '.join(['%s'] * len(asked))})"
            )
            params += [adapt(now - dt.timedelta(seconds=unseen)), *asked]
        found = self._execute(statement, params)
        known = {
            row[6]: WorkerPresence(row[7], row[8], row[9], bool(row[10]))
            for row in found
            if row[6:] and row[6] is not None
        }
        waiting, due, keyed, queue_limited, closed, postponed = map(bool, found[0][:6])
        return QueueStatus(waiting, due, keyed, queue_limited, closed, postponed, known)

    def _execute(self, statement: str, params: Any) -> list[tuple[Any, ...]]:
        """Run a statement and return its rows."""
        with connections[self.using].cursor() as cursor:
            cursor.execute(statement, params)
            return cursor.fetchall() if cursor.description else []

    def claimable(
        self, choice: Choice, queue: str, now: dt.datetime, limit: int, without: Collection[tuple[str, str, str]] = ()
    ) -> list[tuple[uuid.UUID, str, str, str]]:
        """The next jobs of one queue that a claim may take, in delivery order as (id, type, rate key, rate limit).

        They are not locked. `without` leaves out jobs by key and its numbers, or by type where that is given.
        """
        if choice.only is not None and not choice.only:
            return []
        at = connections[self.using].ops.adapt_datetimefield_value(now)
        params: list[Any] = [queue, *[at] * ALIVE.count("%s"), at, queue]
        narrowed = ""
        if choice.types is not None:
            wanted, values = _of_types(choice.types)
            narrowed += f" AND {wanted}"
            params += values
        if job_types := [job_type for _, _, job_type in without if job_type]:
            narrowed += f" AND type NOT IN ({', '.join(['%s'] * len(job_types))})"
            params += job_types
        if shut := [(key, policy) for key, policy, job_type in without if not job_type]:
            # Numbers that name a key are of that key alone, and a condition for each pair would be too many for SQLite.
            (keys, of_keys), (policies, of_policies) = map(self.listed, zip(*shut, strict=True))
            narrowed += f" AND NOT (rate_key IN ({keys}) AND rate_limit IN ({policies}))"
            params += [*of_keys, *of_policies]
        identity: Any = Job._meta.pk
        for test, ids in (("NOT IN", choice.except_ids), ("IN", choice.only or ())):
            if ids:
                narrowed += f" AND id {test} ({', '.join(['%s'] * len(ids))})"
                params += [identity.get_db_prep_value(job_id, connections[self.using]) for job_id in ids]
        if choice.unsuspected:
            narrowed += " AND suspected IS NULL"
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

    def listed(self, texts: Sequence[str]) -> tuple[str, list[Any]]:
        """What stands between the brackets of an IN for any number of texts, and its parameters."""
        return ", ".join(["%s"] * len(texts)), [*texts]

    def update_jobs(self, guard: Verb | State, rows: Sequence[JobRow], columns: Sequence[str]) -> None:
        """Write `columns` of locked rows back, in one statement that still names the state they must be in; in more
        where they are large (`in_parts`). Attempts that the rows say have ended (`ENDED_ATTEMPT`) are written, too.

        `guard` is the verb whose legal states they are, or the one state itself.
        """
        for part in self.in_parts(rows, lambda row: characters(row[column] for column in columns)):
            self._update_jobs(guard, part, columns)
        if ended := ended_attempts(rows):
            self.insert_attempts(ended)
            self.trim_attempts(ended)

    def _update_jobs(self, guard: Verb | State, rows: Sequence[JobRow], columns: Sequence[str]) -> None:
        values: dict[str, Any] = {}
        for column in columns:
            field: Any = Job._meta.get_field(column)
            if all(row[column] == rows[0][column] for row in rows):  # as most are; a long CASE is slow to read
                values[column] = Value(_value(column, rows[0][column]), output_field=field)
                continue
            cases = [When(pk=row["id"], then=Value(_value(column, row[column]), output_field=field)) for row in rows]
            values[column] = Case(*cases, output_field=field)
        tally = self.moved(guard, rows, columns)
        query = self.jobs.filter(self.still_in(guarded_states(guard)), pk__in=[row["id"] for row in rows])
        self.check_count(guard, rows, QuerySet.update(query, **values))
        self.count(tally)

    def insert_attempts(self, ended: Sequence[EndedAttempt]) -> None:
        """Store ended attempts, each with the release that its worker runs. One that is stored stays as it is."""
        releases = self.releases_of({one.worker_id for one in ended})
        for part in self.in_parts(ended, lambda one: len(one.error)):
            rows = [
                JobAttempt(**one._asdict() | {"error": RawJSON(one.error), "release": releases[one.worker_id]})
                for one in part
            ]
            JobAttempt.objects.using(self.using).bulk_create(rows, ignore_conflicts=True)

    def releases_of(self, worker_ids: Collection[str]) -> Mapping[str, Any]:
        """The release that each of these workers runs, as a value of an insert."""
        return {worker_id: _release_of(worker_id) for worker_id in worker_ids}

    def trim_attempts(self, ended: Sequence[EndedAttempt]) -> None:
        """Delete what these jobs have stored beyond their newest `ATTEMPT_MAX_COUNT` attempts. Nothing is sent for a
        job that has no more."""
        kept, surplus = ojs_settings.attempts_kept, Q(pk__in=[])
        stored = JobAttempt.objects.using(self.using)
        for one in ended:
            if one.attempt >= kept:  # in a round the numbers have no gaps
                surplus |= Q(job_id=one.job_id) & (Q(round__lt=one.round) | Q(attempt__lte=one.attempt - kept))
            elif one.round:
                newest = stored.filter(job_id=one.job_id).order_by("-round", "-attempt")
                if (edge := newest.values_list("pk", flat=True)[kept : kept + 1].first()) is not None:
                    surplus |= Q(job_id=one.job_id, pk__lte=edge)
        if surplus != Q(pk__in=[]):
            stored.filter(surplus)._raw_delete(self.using)

    def still_in(self, states: Sequence[State]) -> Q:
        """That a job, which is found by its id, is in one of these states."""
        return Q(state__in=states)

    def delete_jobs(self, ids: Sequence[uuid.UUID]) -> int:
        """Delete these jobs, which the caller has locked; return how many there were."""
        tally = Tally()
        doomed = self.jobs.filter(pk__in=ids)
        found = list(doomed.select_for_update().values_list("queue", "state", "dead_letter", "resumable"))
        places: list[Place] = [(queue, state, dead) for queue, state, dead, _ in found]
        tally.leave(places)
        doomed._raw_delete(self.using)  # no rows to load
        if any(resumable for *_, resumable in found):
            JobCheckpoint.objects.using(self.using).filter(pk__in=list(ids))._raw_delete(self.using)
        JobProgress.objects.using(self.using).filter(pk__in=list(ids))._raw_delete(self.using)
        JobReplay.objects.using(self.using).filter(job_id__in=list(ids))._raw_delete(self.using)
        JobStep.objects.using(self.using).filter(job_id__in=list(ids))._raw_delete(self.using)
        JobAttempt.objects.using(self.using).filter(job_id__in=list(ids))._raw_delete(self.using)
        JobLog.objects.using(self.using).filter(job_id__in=list(ids))._raw_delete(self.using)
        self.count(tally)
        return len(places)

    def moved(self, guard: Verb | State, rows: Sequence[JobRow], columns: Sequence[str]) -> Tally:
        """What writing these columns of locked rows changes in the counts; to be asked before the update."""
        tally = Tally()
        if "state" not in columns and "queue" not in columns:
            return tally
        sources = guarded_states(guard)
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


def ended_attempts(rows: Sequence[JobRow]) -> list[EndedAttempt]:
    """The attempts that these rows say have ended; the rows say it no more."""
    return [row.pop(ENDED_ATTEMPT) for row in rows if ENDED_ATTEMPT in row]


def _release_of(worker_id: str) -> Any:
    """The release that a worker runs, as a value of an insert."""
    if not worker_id:
        return ""
    return Coalesce(Subquery(Worker.objects.filter(pk=worker_id).values("release")[:1]), Value(""))


def characters(values: Iterable[Any]) -> int:
    """How many characters the texts among these values have."""
    return sum(len(value) for value in values if isinstance(value, str))


def _value(column: str, value: Any) -> Any:
    return RawJSON(value) if column in JSON_COLUMNS and value is not None else value


def _as_values(row: JobRow) -> dict[str, Any]:
    return {column: _value(column, value) for column, value in row.items()}
