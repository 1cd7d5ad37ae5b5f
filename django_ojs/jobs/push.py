"""PUSH (core 7.1): enqueue jobs with their events, in the caller's transaction.

The order is: validate, enqueue middleware, validate what it made of the job, schema, uniqueness, room in a
bounded queue, store. Everything is decided before anything is written, with one exception: if there is nothing to
decide about the first jobs of a large push, the database stores them while Python reads the others, and undoes that
should one of those need a decision. Each document is a `Candidate` on its way; what becomes of it is `Pushed`, or the
error that refused it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import functools
import uuid
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from itertools import accumulate, islice, repeat
from typing import Any, NamedTuple, TypeAlias, overload

from django.db import IntegrityError, connections

from django_ojs import clock, garbage, hooks, jsontext, middleware, states
from django_ojs.conf import ojs_settings
from django_ojs.database import atomic, database, retried
from django_ojs.errors import BatchAborted, Duplicate, MiddlewareRejected, OJSError
from django_ojs.events import catalogue, log
from django_ojs.events.catalogue import Record
from django_ojs.hooks import replaceable
from django_ojs.jobs import schemas
from django_ojs.jobs.transitions import wake_at
from django_ojs.limits import ratelimits
from django_ojs.messages import phrase
from django_ojs.models import Job, UniqueLock
from django_ojs.models.job import BLANK, JobRow
from django_ojs.queues import bounds
from django_ojs.queues import configuration as queues
from django_ojs.queues.bounds import Pressure
from django_ojs.rules import envelope, ratelimit
from django_ojs.rules import retry as retry_policy
from django_ojs.rules.envelope import JobSpec
from django_ojs.rules.retry import RetryPolicy
from django_ojs.rules.unique import Strategy
from django_ojs.states import State
from django_ojs.store import store_of
from django_ojs.store.base import FlowChange
from django_ojs.workers.waking import wake_workers


class Pushed(NamedTuple):
    """What became of one document.

    `status` is `created`, `duplicate` (a unique policy found `row` there already) or `dropped` (by a
    middleware; no row). `warnings` name members that mean nothing, and what a registered schema has against the
    arguments.
    """

    row: JobRow | None
    status: str
    warnings: tuple[dict[str, Any], ...] = ()
    pressure: Pressure | None = None


@dataclasses.dataclass(slots=True)
class Candidate:
    """One document: `index` is its place in a batch, `outcome` what was decided, None while it is open."""

    index: int | None
    spec: JobSpec | None = None
    named: bool = False  #: the client chose the id, which may be taken
    document: Any = None  #: the envelope as the middleware left it
    outcome: Pushed | OJSError | None = None
    warnings: tuple[dict[str, Any], ...] = ()

    @property
    def job(self) -> JobSpec:
        assert self.spec is not None
        return self.spec

    def refuse(self, error: OJSError) -> None:
        if self.index is not None:
            error.details.setdefault("index", self.index)
        self.outcome = error


Outcome: TypeAlias = Pushed | OJSError

_DROPPED = Pushed(None, "dropped")
_MICROSECOND: Any = dt.timedelta(microseconds=1)
#: How often a push looks again for ids that were taken between its last look and its insert.
_LOOKS = 3
#: Stores a job that has been read, unless it is refused or dropped already; returns what became of it.
Through = Callable[["Candidate", str], "Outcome | None"]
#: Given the outcomes, what else to log in the transaction of the push.
Closing = Callable[[Sequence[Outcome]], Sequence[Record]]


class Frame(NamedTuple):
    """What holds for all jobs of one push.

    Attributes:
        stamp: the first of as many instants that `clock.stamps` gave.
        partial: the others are stored though one is refused.
        ended: gets the jobs that the push replaces or drops, whose workflows are then the caller's to take further.
        own: an open transaction is undone as a whole where this push fails, so that nothing in it has to be spared.
        hurried: fail as a lost race, rather than wait for long for what another transaction has locked.
        along: a change of workflows that is stored in the statement of the insert, or before there is something to
            decide. Where nothing is inserted it may not be stored.
    """

    now: dt.datetime
    stamp: dt.datetime
    using: str
    partial: bool = True
    component: str = "api"
    ended: list[JobRow] | None = None
    own: bool = False
    hurried: bool = False
    along: FlowChange | None = None

    def stamps(self) -> Iterator[dt.datetime]:
        """The instants, in order: first in, first out."""
        return accumulate(repeat(_MICROSECOND), initial=self.stamp)


def push(
    documents: Sequence[Any],
    *,
    component: str = "api",
    patience: float = 0.0,
    workflows: Mapping[uuid.UUID, uuid.UUID] | None = None,
    ended: list[JobRow] | None = None,
    using: str | None = None,
) -> list[Pushed]:
    """Enqueue the jobs that these envelopes describe, all or none; return what became of each, in order.

    Raises an `OJSError` (`InvalidPayload`, `Duplicate`, `QueueFull`, ...) for the first faulty document,
    with its `index` in the details when there are several; nothing is stored then. `patience` is how many
    seconds to wait for room in a queue whose strategy is `block`; `workflows` says which workflow a job
    belongs to, by job id. Where `ended` is given, the jobs that this push replaces or drops are added to it,
    and it is the caller who takes their workflows further.
    """
    using = database(using)
    act = functools.partial(
        push_each, documents, partial=False, component=component, workflows=workflows, ended=ended, using=using
    )
    return bounds.patiently(lambda: or_raise(act()), patience, using)


@hooks.around(hooks.around_push)
@replaceable("push")
@hooks.around(hooks.around_work_of_push)
def push_each(
    documents: Sequence[Any],
    *,
    partial: bool = True,
    component: str = "api",
    closing: Closing | None = None,
    workflows: Mapping[uuid.UUID, uuid.UUID] | None = None,
    ended: list[JobRow] | None = None,
    through: Through | None = None,
    along: FlowChange | None = None,
    using: str | None = None,
) -> list[Outcome]:
    """Enqueue what can be; return for each document what became of it, or the error that refused it.

    With `partial` the others are stored though one is refused; without, nothing is, and the culprits come
    with their errors, the others with `BatchAborted`. `through` stores each job by
    itself, once it has been read. `Frame` describes `along`.
    """
    using = database(using)
    if through:
        candidates = [read(document, clock.now(using), None) for document in documents]
        schemas.check(candidates, using)
        return [through(candidate, using) or aborted(candidate) for candidate in candidates]
    return _push_each(documents, partial, component, closing, workflows, ended, along, using=using)


@retried
def _push_each(
    documents: Sequence[Any],
    partial: bool,
    component: str,
    closing: Closing | None,
    workflows: Mapping[uuid.UUID, uuid.UUID] | None,
    ended: list[JobRow] | None,
    along: FlowChange | None,
    *,
    using: str,
) -> list[Outcome]:
    with garbage.collection_paused(len(documents)):
        return _push_all(documents, partial, component, closing, workflows, ended, along, using)


def _push_all(
    documents: Sequence[Any], partial: bool, component: str, closing: Closing | None,
    workflows: Mapping[uuid.UUID, uuid.UUID] | None, ended: list[JobRow] | None, along: FlowChange | None, using: str,
) -> list[Outcome]:  # fmt: skip
    now, stamp = clock.now(using), clock.stamps(len(documents), using)
    frame = Frame(now, stamp, using, partial, component, ended, along=along)
    coming = (read(document, now, i if len(documents) > 1 else None) for i, document in enumerate(documents))
    candidates: list[Candidate] = []
    if not (workflows or along):
        stored = _store_while_reading(candidates, coming, len(documents), frame, closing)
        if stored is not None:
            return stored
    candidates += coming
    for candidate in candidates if workflows else ():
        if candidate.spec:
            candidate.spec.workflow_id = (workflows or {}).get(candidate.spec.id)
            candidate.named = (
                candidate.named and candidate.spec.workflow_id is None
            )  # a workflow's job has an id of ours
    if not partial and workflows is None and len(candidates) > 1:
        _refuse_dropped(candidates)
    return push_read(candidates, frame, closing)


def _refuse_dropped(candidates: Sequence[Candidate]) -> None:
    """An atomic batch is stored whole or not at all (core 7.1), so a job that a middleware drops refuses it."""
    for candidate in candidates:
        if isinstance(candidate.outcome, Pushed) and candidate.outcome.row is None:
            candidate.refuse(
                MiddlewareRejected(
                    "An enqueue middleware dropped this job, and the jobs of this request are stored all or none.",
                    hint="Send the other jobs without it, or all of them with `atomicity: partial` to /jobs/bulk.",
                )
            )


def push_read(candidates: Sequence[Candidate], frame: Frame, closing: Closing | None = None) -> list[Outcome]:
    """`push_each` for documents that have been read, and changed by the middleware, before."""
    if len(candidates) > 1:
        refuse_repeated_ids(candidates)
    schemas.check(candidates, frame.using)
    if frame.partial or not _failed(candidates):
        store(candidates, frame, closing)
    return [candidate.outcome or aborted(candidate) for candidate in candidates]


def or_raise(outcomes: Sequence[Outcome]) -> list[Pushed]:
    """The outcomes of an atomic push. Raises the error of the first culprit."""
    for outcome in outcomes:
        if isinstance(outcome, OJSError) and not isinstance(outcome, BatchAborted):
            raise outcome
    return [outcome for outcome in outcomes if isinstance(outcome, Pushed)]


def _failed(candidates: Sequence[Candidate]) -> bool:
    return any(isinstance(candidate.outcome, OJSError) for candidate in candidates)


def is_decided(spec: JobSpec, queue: queues.QueueDefaults) -> bool:
    """Whether a push decides about this job under locks: a unique one, or one of a bounded queue."""
    return bool(spec.unique_policy or queue.bound)


def store(candidates: Sequence[Candidate], frame: Frame, closing: Closing | None = None) -> None:
    """Store those that are neither refused nor dropped, and say of each in its `outcome` what became of it."""
    using, partial = frame.using, frame.partial
    waiting = [candidate for candidate in candidates if candidate.outcome is None]
    specs = [candidate.job for candidate in waiting]
    defaults = queues.ensure((spec.queue for spec in specs), frame.now, using) if specs else {}
    choosy = {name for name, known in defaults.items() if known.is_choosy}
    for candidate, spec in zip(waiting, specs, strict=True) if choosy else ():
        try:
            queues.admit(defaults[spec.queue], spec.queue, spec.type, candidate.index)
        except OJSError as error:
            candidate.refuse(error)
    if choosy and _failed(waiting):
        if not partial:
            return
        waiting = [candidate for candidate in waiting if candidate.outcome is None]
        specs = [candidate.job for candidate in waiting]
    bounded = [name for name, known in defaults.items() if known.bound]
    if not closing and not any(is_decided(spec, defaults[spec.queue]) for spec in specs):
        _store_plain(waiting, defaults, frame)
        return
    if frame.along:
        store_of(using).save(frame.along)
    if not closing and not bounded and _store_if_free(waiting, defaults, frame):
        return

    def act() -> None:
        for candidate in waiting:
            candidate.outcome = None
        try:
            with atomic(using=using):
                sleeps = _decide_and_write(waiting, defaults, bounded, frame)
                if closing:
                    log.append(closing([candidate.outcome or aborted(candidate) for candidate in candidates]), using)
        except IntegrityError as error:
            raise duplicate_of_id(specs, using) from error
        _wake(sleeps, using)

    _despite_races(act) if partial else act()


def _store_plain(waiting: Sequence[Candidate], defaults: Mapping[str, queues.QueueDefaults], frame: Frame) -> None:
    """Store jobs about which there is nothing to decide, all or none; with `partial` those whose ids are free, and
    refuse the others. Which ids are taken it asks only where an insert has failed."""
    for _ in range(_LOOKS if frame.partial else 0):
        try:
            return _insert(waiting, defaults, frame)
        except IntegrityError:
            taken = _taken_ids([candidate.job for candidate in waiting], frame.using)
        for candidate in waiting:
            if (state := taken.get(candidate.job.id)) is not None:
                candidate.refuse(duplicate_id(candidate.job.id, state))
        waiting = [candidate for candidate in waiting if candidate.outcome is None]
    try:
        return _insert(waiting, defaults, frame)
    except IntegrityError as error:
        if frame.own:
            raise
        raise duplicate_of_id([candidate.job for candidate in waiting], frame.using) from error


def _insert(waiting: Sequence[Candidate], defaults: Mapping[str, queues.QueueDefaults], frame: Frame) -> None:
    """Raises IntegrityError when an id is taken."""
    with _guarded(waiting, frame):
        worker_sleeps = _insert_all(waiting, defaults, frame)
    _wake(worker_sleeps, frame.using)


def _insert_all(waiting: Sequence[Candidate], defaults: Mapping[str, queues.QueueDefaults], frame: Frame) -> bool:
    """Insert jobs that nothing is in the way of; none, where all are refused. Returns whether a worker sleeps."""
    specs = [candidate.job for candidate in waiting]
    rows = NewRows(RowMaker(defaults, frame.now), specs, frame.stamps(), len(specs))
    worker_sleeps = insert(rows, frame.component, frame.using, frame.along)
    for candidate, row in zip(waiting, rows, strict=True):
        candidate.outcome = Pushed(row, "created", candidate.warnings)
    return worker_sleeps


#: How many jobs of a large push say of which forms the others are.
_SAMPLE = 100


class _Undecided(Exception):
    """A push that is being stored has come to a job that its sample did not announce."""


def _store_while_reading(
    candidates: list[Candidate], coming: Iterator[Candidate], total: int, frame: Frame, closing: Closing | None
) -> list[Outcome] | None:
    """Store all of a large push about which there is nothing to decide, and return what became of each job; None:
    nothing is stored, and it takes a closer look. Those of `coming` that it has read are among the `candidates` then.

    The jobs behind the sample must be of its forms, so what is true of the sample is true of them.
    """
    using = frame.using
    if not store_of(using).takes_rows_as_they_come(total) or middleware.enqueue_chain.entries:
        return None
    candidates += islice(coming, _SAMPLE)
    if any(candidate.outcome for candidate in candidates):
        return None
    sample = [candidate.job for candidate in candidates]
    # `unique`, because the `meta` of a job may say that its policy means nothing, and those of the next may not.
    if any(spec.unique is not None or schemas.are_asked(spec, using) for spec in sample):
        return None
    defaults = queues.ensure((spec.queue for spec in sample), frame.now, using)
    if any(is_decided(spec, defaults[spec.queue]) or defaults[spec.queue].is_choosy for spec in sample):
        return None
    forms = {id(spec.form) for spec in sample if spec.form is not None}

    def specs() -> Iterator[JobSpec]:
        yield from sample
        for candidate in coming:
            candidates.append(candidate)
            if candidate.spec is None or id(candidate.spec.form) not in forms:
                raise _Undecided
            yield candidate.spec

    rows = NewRows(RowMaker(defaults, frame.now), specs(), frame.stamps(), total)
    try:
        with atomic(using=using):
            worker_sleeps = insert(rows, frame.component, using)
            stored: list[Outcome] = [
                Pushed(row, "created", candidate.warnings) for candidate, row in zip(candidates, rows, strict=True)
            ]
            if closing:
                log.append(closing(stored), using)
    except (_Undecided, IntegrityError):  # or an id is taken
        return None
    _wake(worker_sleeps, using)
    return stored


def _guarded(waiting: Iterable[Candidate], frame: Frame) -> AbstractContextManager[None]:
    """Around an insert: inside the caller's transaction a taken id must not spoil the rest of it. Ids of ours are not
    taken."""
    foreign = connections[frame.using].in_atomic_block and not frame.own
    needed = foreign and any(candidate.named for candidate in waiting)
    return atomic(using=frame.using) if needed else contextlib.nullcontext()


def _store_if_free(waiting: Sequence[Candidate], defaults: Mapping[str, queues.QueueDefaults], frame: Frame) -> bool:
    """Store a unique job that comes alone, and has nothing in its way; False: it takes a closer look to tell."""
    if len(waiting) != 1:
        return False
    candidate, spec, using = waiting[0], waiting[0].job, frame.using
    policy = spec.unique_policy
    if policy is None or not spec.unique_key:
        return False
    row = new_row(spec, defaults[spec.queue], frame.now, frame.stamp)
    wanted, since = states.ordered(policy.states), policy.since(frame.now)
    try:
        with _guarded(waiting, frame):
            worker_sleeps = store_of(using).push_if_free(row, frame.component, wanted, since)
    except IntegrityError:  # the id is taken
        if frame.own:
            raise
        return False
    if worker_sleeps is None:
        return False
    _inserted([row], frame.component, using)
    candidate.outcome = Pushed(row, "created", candidate.warnings)
    _wake(worker_sleeps, using)
    return True


def _wake(worker_sleeps: bool, using: str) -> None:
    """Wake sleeping workers. Inside the caller's transaction always: a worker may fall asleep before it commits."""
    if worker_sleeps or connections[using].in_atomic_block:
        wake_workers(using)


def _despite_races(act: Callable[[], None]) -> None:
    """`act` again, where an id was taken between the look and the insert: the next look finds it."""
    for _ in range(_LOOKS):
        with contextlib.suppress(Duplicate):
            return act()
    return act()


def _decide_and_write(
    waiting: Sequence[Candidate], defaults: Mapping[str, queues.QueueDefaults], bounded: Sequence[str], frame: Frame
) -> bool:
    """Take the locks (keys, queues, jobs, in this order), decide, write. Returns whether a worker sleeps."""
    using = frame.using
    specs = [candidate.job for candidate in waiting]
    store_of(using).begin_writing()
    if frame.hurried:
        store_of(using).lose_patience()
    lock_keys(specs, using)
    locked = bounds.lock(bounded, using)
    ledger = Ledger.read(specs, using)
    gates = bounds.gates(locked, specs, using)
    taken = _taken_ids(specs, using) if frame.partial or any(map(_may_ignore, specs)) else {}
    if not gates and not taken and ledger.is_free_for(specs):
        return _insert_all(waiting, defaults, frame)
    return _decide(waiting, defaults, ledger, gates, taken, frame)


def _decide(
    waiting: Sequence[Candidate], defaults: Mapping[str, queues.QueueDefaults], ledger: Ledger,
    gates: Mapping[str, bounds.Gate], taken: Mapping[uuid.UUID, str], frame: Frame,
) -> bool:  # fmt: skip
    """Decide about each job under the locks, one after the other, and write. Returns whether a worker sleeps."""
    rows: list[JobRow] = []
    replaced: dict[uuid.UUID, JobRow] = {}
    new_row_of = RowMaker(defaults, frame.now)
    for candidate, stamp in zip(waiting, frame.stamps()):  # noqa: B905 - there are always more stamps
        spec = candidate.job
        verdict = ledger.judge(spec, frame.now)
        refusal: OJSError | None = verdict.error
        if spec.id in taken:
            refusal = duplicate_id(spec.id, taken[spec.id])
        elif verdict is FREE and not gates:  # nothing is in the way of most
            row = new_row_of(spec, stamp)
            ledger.add(row)
            rows.append(row)
            candidate.outcome = Pushed(row, "created", candidate.warnings)
            continue
        if refusal is None and verdict.existing is not None:
            candidate.outcome = Pushed(verdict.existing, "duplicate", candidate.warnings)
            continue
        gate = gates.get(spec.queue)
        if refusal is None and gate:
            dropped = len(gate.dropped)
            refusal = gate.enter(spec, verdict.replaced)
            ledger.end(gate.dropped[dropped:], State.DISCARDED)
        if refusal is not None:
            candidate.refuse(refusal)
            continue
        for row in verdict.replaced:
            if row["queue"] in gates:
                gates[row["queue"]].leave(row)
        ledger.end(verdict.replaced, State.CANCELLED)
        replaced |= {row["id"]: row for row in verdict.replaced}
        spec = rescheduled(spec, verdict.replaced)
        row = new_row_of(spec, stamp)
        ledger.add(row)
        rows.append(row)
        candidate.outcome = Pushed(row, "created", candidate.warnings, gate.pressure if gate else None)
    if frame.partial or not _failed(waiting):
        return _write(rows, replaced, gates.values(), frame)
    for candidate in waiting:
        candidate.outcome = candidate.outcome if isinstance(candidate.outcome, OJSError) else None
    return False


def _write(
    rows: Sequence[JobRow], replaced: Mapping[uuid.UUID, JobRow], gates: Collection[bounds.Gate], frame: Frame
) -> bool:
    """Cancel what is replaced, make room, insert; then cancel what a later job of the same push replaced.

    The workflows of all that ended go on last: they may push jobs into the same queues, where those of this
    push must have been counted by then.
    """
    from django_ojs.workflows import advance  # which pushes

    using = frame.using
    new = {row["id"]: row for row in rows}
    gone = _cancel([job_id for job_id in replaced if job_id not in new], using)
    if gates:
        gone += bounds.settle(gates, frame.now, using)
    worker_sleeps = insert(rows, frame.component, using)
    for row in _cancel([job_id for job_id in replaced if job_id in new], using):
        new[row["id"]].update(row)
        gone.append(row)
    if frame.ended is not None:
        frame.ended.extend(gone)
    elif any(row["workflow_id"] for row in gone):
        advance.settled(gone, frame.now, using)
        for row in Job.objects.using(using).filter(pk__in=list(new), state=State.DISCARDED).rows():
            new[row["id"]].update(row)  # it had to make room for a callback
    return worker_sleeps


def _cancel(job_ids: Sequence[uuid.UUID], using: str) -> list[JobRow]:
    from django_ojs.jobs.verbs import cancel

    gone: list[JobRow] = []
    if not job_ids:
        return gone
    reason = "Replaced by a newer unique job."
    for outcome in cancel(job_ids, cancelled_by=REPLACER, reason=reason, ended=gone, using=using):
        if isinstance(outcome, OJSError):
            raise outcome
    return gone


def _may_ignore(spec: JobSpec) -> bool:
    return spec.unique_policy is not None and spec.unique_policy.on_conflict is Strategy.IGNORE


def insert(rows: Sequence[JobRow], component: str, using: str, along: FlowChange | None = None) -> bool:
    """Insert new rows with their events; say whether a worker sleeps. Raises IntegrityError when an id is taken."""
    if not rows:
        return False
    store = store_of(using)
    worker_sleeps = store.push_with(along, rows, component) if along else store.push(rows, component)
    _inserted(rows, component, using)
    return worker_sleeps


def _inserted(rows: Sequence[JobRow], component: str, using: str) -> None:
    """What follows on an insert, in its transaction if it has one."""
    if listening := [one for one in hooks.event_listeners if one.wants("job.enqueued")]:
        hooks.tell(listening, [made for row in rows if (made := catalogue.of_new_job(row, component))], using)
    if any(row["rate_key"] for row in rows):
        ratelimits.note(rows, using)


def duplicate_of_id(specs: Sequence[JobSpec], using: str) -> Duplicate:
    """Which of these ids is taken, for the IntegrityError of an insert that was rolled back; with the state of that job
    as far as the transaction can still be asked."""
    taken = {} if connections[using].needs_rollback else _taken_ids(specs, using)
    return duplicate_id(*min(taken.items(), default=(specs[0].id, None)))


def _taken_ids(specs: Sequence[JobSpec], using: str) -> dict[uuid.UUID, str]:
    """The ids that stored jobs have already, with the states of those."""
    found = Job.objects.using(using).filter(pk__in=[spec.id for spec in specs])
    return dict(found.values_list("pk", "state"))


# Documents on their way in


def read(document: Any, now: dt.datetime, index: int | None) -> Candidate:
    """Validate, run the middleware chain, and validate again if there was one."""
    candidate = Candidate(index)
    try:
        candidate.spec = envelope.parse(document, now=now, index=index)
        candidate.named = document.get("id") is not None
        candidate.document = document
        if middleware.enqueue_chain:
            job_id = str(candidate.spec.id)
            changed = middleware.run_enqueue_chain({**document, "id": job_id})
            if changed is None:
                candidate.outcome = _DROPPED
            else:
                candidate.document = {**changed, "id": job_id}
                candidate.spec = envelope.parse(candidate.document, now=now, index=index)
        candidate.warnings = candidate.spec.warnings
    except OJSError as error:
        candidate.refuse(error)
    return candidate


def refuse_repeated_ids(candidates: Sequence[Candidate]) -> None:
    numbers = {candidate.spec.id.int for candidate in candidates if candidate.spec}  # a UUID's hash is Python code
    if len(numbers) == len(candidates):
        return
    seen: set[uuid.UUID] = set()
    for candidate in candidates:
        if candidate.outcome is None:
            job_id = candidate.job.id
            if job_id in seen:
                candidate.refuse(duplicate_id(job_id, None))
            seen.add(job_id)


def aborted(candidate: Candidate) -> OJSError:
    details = {} if candidate.index is None else {"index": candidate.index}
    return BatchAborted("Not stored, because another job of this atomic request was refused.", details=details)


def duplicate_id(job_id: uuid.UUID, state: str | None) -> Duplicate:
    details = {"job_id": str(job_id), "existing_job_id": str(job_id)}
    if state:
        details |= {"existing_job_state": state, "existing_state": state}
    return Duplicate(phrase("A job with the id '%(job_id)s' exists already.", job_id=job_id), details=details)


# The row of a new job: what its envelope asks for, over the defaults of its queue, over those of the site.


def new_row(spec: JobSpec, defaults: queues.QueueDefaults, now: dt.datetime, enqueued_at: dt.datetime) -> JobRow:
    """The row of a new job, in the state that its envelope asks for (core 7.1). One that is available at once is
    created when it is enqueued (core 5.3); others are created `now`."""
    return _with_own(_blank(spec, defaults, now), spec, now, enqueued_at)


class RowMaker:
    """Makes the rows of the jobs of one push. What jobs of one form have in common it decides once."""

    def __init__(self, defaults: Mapping[str, queues.QueueDefaults], now: dt.datetime) -> None:
        self._defaults, self._now = defaults, now
        self._blanks: dict[int, JobRow] = {}  # by the identity of the form

    def __call__(self, spec: JobSpec, enqueued_at: dt.datetime) -> JobRow:
        blank = self._blanks.get(id(spec.form))
        if blank is None:
            blank = _blank(spec, self._defaults[spec.queue], self._now)
            if spec.form is not None:
                self._blanks[id(spec.form)] = blank
        return _with_own(blank, spec, self._now, enqueued_at)


class NewRows(Sequence[JobRow]):
    """The rows of new jobs. Each is made when it, or one behind it, is first looked at: a store that sends a large push
    in parts has the first on its way before the last is made."""

    def __init__(self, make: RowMaker, specs: Iterable[JobSpec], stamps: Iterator[dt.datetime], length: int) -> None:
        self._made: list[JobRow] = []
        self._length, self._coming = length, map(make, specs, stamps)

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, place: int) -> JobRow: ...
    @overload
    def __getitem__(self, place: slice) -> list[JobRow]: ...
    def __getitem__(self, place: int | slice) -> JobRow | list[JobRow]:
        last = max(range(self._length)[place], default=-1) if isinstance(place, slice) else range(self._length)[place]
        self._made += islice(self._coming, max(0, last + 1 - len(self._made)))
        return self._made[place]

    def __iter__(self) -> Iterator[JobRow]:
        self._made += self._coming
        return iter(self._made)


def _blank(spec: JobSpec, defaults: queues.QueueDefaults, now: dt.datetime) -> JobRow:
    """What the rows of all jobs of one form say that are pushed at the same time."""
    policy = _policy(defaults.retry, spec.retry)
    later = spec.scheduled_at is not None and spec.scheduled_at > now
    state = State.PENDING if spec.pending else State.SCHEDULED if later else State.AVAILABLE
    blank = {
        **BLANK, "type": spec.type, "queue": spec.queue, "state": state.value, "priority": spec.priority,
        "max_attempts": policy.max_attempts, "extra": spec.extra_text, "retry": retry_policy.to_json(policy),
        "timeout_ms": spec.timeout_ms or defaults.timeout_ms or ojs_settings.DEFAULT_TIMEOUT * 1000,
        "visibility_ms": spec.visibility_ms, "expires_at": spec.expires_at, "result_ttl": spec.result_ttl,
    }  # fmt: skip
    if later:
        blank["due_at"] = spec.scheduled_at
    if spec.rate_limit is not None:
        blank["rate_key"] = spec.rate_limit.key or ratelimit.queue_key(spec.queue)
        blank["rate_limit"] = ratelimit.to_json(spec.rate_limit)
    blank["wake_at"] = wake_at(blank)
    return blank


def _with_own(blank: JobRow, spec: JobSpec, now: dt.datetime, enqueued_at: dt.datetime) -> JobRow:
    """The row of one job."""
    row = blank.copy()
    row["id"], row["args"], row["meta"], row["trace_id"] = spec.id, spec.args_text, spec.meta_text, spec.trace_id
    row["unique_key"], row["workflow_id"] = spec.unique_key, spec.workflow_id
    if row["state"] == State.AVAILABLE:
        row["created_at"] = row["enqueued_at"] = enqueued_at
    else:
        row["created_at"] = now
    if spec.limits_ms:
        _limit(row, spec.limits_ms)
        row["wake_at"] = wake_at(row)
    return row


def _limit(row: JobRow, given: Mapping[str, int]) -> None:
    """Its other timeouts (binding 5): how long it may take as a whole, wait for its start, be silent, clean up."""
    for name, column in (("enqueue_ttl", "start_by"), ("total_timeout", "deadline_at")):
        if name in given:
            row[column] = row["created_at"] + dt.timedelta(milliseconds=given[name])
    row.update(heartbeat_ms=given.get("heartbeat_timeout"), grace_ms=given.get("grace_period") or None)


def _policy(of_queue: Mapping[str, Any] | None, of_job: Mapping[str, Any]) -> RetryPolicy:
    """Site, queue, job: the later layer wins, field by field (jobs 1.1)."""
    of_site = ojs_settings.RETRY
    if not (of_site or of_queue or of_job):
        return _DEFAULT_POLICY
    return retry_policy.merge(retry_policy.parse(of_site or {}), retry_policy.parse(of_queue or {}), of_job)


_DEFAULT_POLICY = retry_policy.DEFAULT


# Unique jobs (jobs 2.4 to 2.6): `lock_keys` makes pushes of one key take turns; what is read after it stays true until
# the commit. Jobs without a unique policy come past none of this.

#: Who cancelled a job that a newer one replaced.
REPLACER = "system:unique"


class Verdict(NamedTuple):
    """What a unique policy says: refuse, take the existing job, or replace these (none: nothing is in the way)."""

    error: Duplicate | None = None
    existing: JobRow | None = None
    replaced: Sequence[JobRow] = ()


#: What most policies say: nothing is in the way.
FREE = Verdict()


def lock_keys(specs: Iterable[JobSpec], using: str) -> None:
    """Wait for everybody who pushes one of these keys, and make the others wait."""
    stripes = sorted({UniqueLock.of(spec.unique_key) for spec in specs if spec.unique_key})
    if stripes:
        store_of(using).lock_stripes(stripes)


class Ledger:
    """The jobs with the keys of a push: those that were there, and those that the push has added so far."""

    def __init__(self, rows: Iterable[JobRow]) -> None:
        self._rows: dict[str, list[JobRow]] = defaultdict(list)
        self._ended: dict[object, str] = {}
        for row in rows:
            self._rows[row["unique_key"]].append(row)

    @classmethod
    def read(cls, specs: Iterable[JobSpec], using: str) -> Ledger:
        policies = {spec.unique_key: spec.unique_policy for spec in specs if spec.unique_policy}
        wanted = {state for spec in specs if spec.unique_policy for state in spec.unique_policy.states}
        return cls(store_of(using).same_key(list(policies), states.ordered(wanted)) if policies else ())

    def is_free_for(self, specs: Sequence[JobSpec]) -> bool:
        """Whether nothing is in the way of any of these jobs, nor they in the way of each other."""
        keys = [spec.unique_key for spec in specs if spec.unique_key]
        return not self._rows and len(set(keys)) == len(keys)

    def judge(self, spec: JobSpec, now: dt.datetime) -> Verdict:
        policy = spec.unique_policy
        if policy is None or spec.unique_key not in self._rows:
            return FREE
        met = [row for row in self._rows[spec.unique_key] if policy.conflicts(self._state(row), row["created_at"], now)]
        if not met:
            return FREE
        met.sort(key=lambda row: (self._state(row) in states.LIVE, row["created_at"]), reverse=True)
        match policy.on_conflict:
            case Strategy.REJECT:
                return Verdict(error=_duplicate_of_key(spec, met[0], self._state(met[0])))
            case Strategy.IGNORE:
                return Verdict(existing=met[0])
        return Verdict(replaced=[row for row in met if self._state(row) in states.LIVE])

    def end(self, rows: Iterable[JobRow], state: State) -> None:
        """Note that the push ends these jobs, so that they no longer count as live ones."""
        self._ended.update((row["id"], state) for row in rows)

    def add(self, row: JobRow) -> None:
        if row["unique_key"]:
            self._rows[row["unique_key"]].append(row)

    def _state(self, row: JobRow) -> str:
        return self._ended.get(row["id"]) or row["state"]


def rescheduled(spec: JobSpec, replaced: Iterable[JobRow]) -> JobSpec:
    """`spec` with the start of the scheduled job that it replaces, where its policy says so; else as it is."""
    policy = spec.unique_policy
    if policy is None or policy.on_conflict is not Strategy.REPLACE_EXCEPT_SCHEDULE:
        return spec
    waiting = [row for row in replaced if row["state"] == State.SCHEDULED]
    if not waiting:
        return spec
    first = min(waiting, key=lambda row: row["due_at"])
    shown = envelope.render(first)["scheduled_at"]
    extra = {**spec.extra, "scheduled_at": shown}
    return dataclasses.replace(
        spec, pending=False, scheduled_at=first["due_at"], extra=extra, extra_text=jsontext.dumps(extra), form=None
    )


def _duplicate_of_key(spec: JobSpec, row: JobRow, state: str) -> Duplicate:
    job_id = str(row["id"])
    details = {
        "existing_job_id": job_id, "existing_job_state": str(state), "existing_state": str(state),
        "unique_key": spec.unique_key, "uniqueness_key": spec.unique_key,
    }  # fmt: skip
    message = phrase(
        "A unique job of type '%(type)s' exists already: '%(job)s' is %(state)s.",
        type=spec.type, job=job_id, state=str(state),
    )  # fmt: skip
    return Duplicate(message, details=details, hint="Wait for the existing job, or choose another on_conflict.")
