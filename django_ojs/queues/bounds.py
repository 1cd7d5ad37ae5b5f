"""Bounded queues at PUSH (jobs 6): admit a job, refuse it, or drop older ones for it, and write the events.

The row of a bounded queue is locked from the count until the commit, so that two pushes never share the
last place. Unbounded queues come past none of this.
"""

from __future__ import annotations

import datetime as dt
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from django.db import connections
from django.db.models import F, Func, IntegerField, Q, QuerySet, Subquery, Value

from django_ojs import clock, spellings
from django_ojs.access import UNLIMITED, Limits
from django_ojs.database import atomic, database, give_back, retried
from django_ojs.errors import QueueFull
from django_ojs.events import catalogue, log
from django_ojs.events.catalogue import Record
from django_ojs.jsontext import byte_length
from django_ojs.lifecycle import transitions
from django_ojs.models import Job, Queue
from django_ojs.models.job import JobRow
from django_ojs.models.queue import TEMPLATE
from django_ojs.rules.envelope import JobSpec
from django_ojs.rules.queueconfig import Bound, bound_of
from django_ojs.states import State, Verb
from django_ojs.store import store_of

#: Seconds that a push may wait at most: it holds a thread of the server.
MAX_PATIENCE = 30.0
#: Columns whose bytes count.
_SIZED = ("args", "meta", "extra")
#: Jobs whose lengths are looked at together.
_SLICE = 500


class Pressure(NamedTuple):
    """How full a bounded queue is after the push, where it is worth a warning (jobs 6)."""

    queue: str
    depth: int
    bound: int
    share: float


def lock(names: Collection[str], using: str) -> dict[str, Queue]:
    """Lock the rows of these queues, in the order of their names; return those that are bounded as of now.

    A queue that is new in a transaction which is still open has no row to lock (`configuration.ensure`): the bound of
    the template holds for what this push can see.
    """
    queues = {queue.name: queue for queue in _lock(names, using, wait=True)}
    if missing := set(names) - queues.keys():
        template = Queue.objects.using(using).filter(name=TEMPLATE).first()
        for name in missing:
            queues[name] = new = Queue(name=name)
            new.template = template and template.config  # type: ignore[attr-defined]
    return {name: queue for name, queue in queues.items() if _bound_of(queue)}


def _lock(names: Collection[str], using: str, *, wait: bool) -> list[Queue]:
    """Lock the rows of these queues, or without waiting those that no other transaction holds."""
    wanted = sorted(names)
    if not wanted:
        return []
    skip = not wait and store_of(using).skip_locked
    template = Queue.objects.filter(name=TEMPLATE).values("config")
    rows = Queue.objects.using(using).filter(name__in=wanted).annotate(template=Subquery(template)).order_by("name")
    found: list[Queue] = list(store_of(using).with_lock_timeout(rows).select_for_update(skip_locked=skip))
    if found:
        store_of(using).certify(Queue.objects.using(using).filter(pk__in=[queue.pk for queue in found]))
    return found


def _bound_of(queue: Any) -> Bound | None:
    """The bound of a queue that `_lock` has read: its own over that of the template."""
    return bound_of(spellings.merge_queue(queue.template or {}, queue.config or {}))


def gates(queues: Mapping[str, Queue], specs: Sequence[JobSpec], using: str) -> dict[str, QueueBound]:
    """A gate before each of these locked queues, for a push of `specs`; an open one where there is no bound."""
    if not queues:
        return {}
    bounds = {name: _bound_of(queue) or Bound() for name, queue in queues.items()}
    in_bytes = any(bound.max_bytes for bound in bounds.values())
    depths = store_of(using).depths(list(bounds), in_bytes=in_bytes)
    found = {name: QueueBound(queues[name], bound, *depths[name]) for name, bound in bounds.items()}
    for name, gate in found.items():
        coming = [spec for spec in specs if spec.queue == name]
        if gate.bound.strategy == "drop_oldest" and coming and gate.overflows(coming):
            gate.droppable = _oldest(gate, coming, using)
    return found


def _oldest(gate: QueueBound, coming: Sequence[JobSpec], using: str) -> list[JobRow]:
    """The jobs that would have to go, oldest first. One that another transaction has locked is about to leave anyway.

    No more are locked than have to go, since no worker can claim a job that is. Where bytes count, it takes a look at
    the lengths to tell how many those are.
    """
    store = store_of(using)
    waiting = store.jobs.filter(queue=gate.queue.name, state=State.AVAILABLE).order_by("enqueued_at", "pk")
    if not gate.bound.max_bytes:
        return _locked(waiting[: len(coming)], using)
    jobs, size = gate.excess(coming)
    found: list[JobRow] = []
    behind = Q()
    while jobs > 0 or size > 0:
        lengths = waiting.filter(behind).annotate(length=sum(map(_octets(using), _SIZED), Value(0)))
        chosen: list[uuid.UUID] = []
        more_jobs, more_size = jobs, size
        for job_id, enqueued_at, length in lengths.values_list("pk", "enqueued_at", "length")[:_SLICE]:
            if more_jobs <= 0 and more_size <= 0:
                break
            more_jobs, more_size = more_jobs - 1, more_size - length
            chosen.append(job_id)
            later = Q(enqueued_at__gt=enqueued_at) | Q(enqueued_at=enqueued_at, pk__gt=job_id)
            behind = later & Q(enqueued_at__gte=enqueued_at)
        if not chosen:
            break
        rows = _locked(waiting.filter(pk__in=chosen), using)
        jobs, size = jobs - len(rows), size - sum(map(_size_of_row, rows))
        found += rows
    return found


def _locked(waiting: QuerySet[Job], using: str) -> list[JobRow]:
    return waiting.select_for_update(skip_locked=store_of(using).skip_locked).rows()  # type: ignore[attr-defined, no-any-return]


def _octets(using: str) -> Callable[[str], Func]:
    """The bytes of a column, as the database counts them."""
    template = store_of(using).octets.format("%(expressions)s")
    return lambda name: Func(F(name), template=template, output_field=IntegerField())


class QueueBound:
    """One bounded queue during a push: it counts who goes in and out."""

    def __init__(self, queue: Queue, bound: Bound, depth: int, size: int) -> None:
        self.queue, self.bound, self.depth, self.size = queue, bound, depth, size
        self.droppable: list[JobRow] = []
        self.dropped: list[JobRow] = []
        self._next = 0  # of `droppable`: those before it are gone
        self._gone: set[Any] = set()

    def overflows(self, specs: Sequence[JobSpec]) -> bool:
        return not self._fits(len(specs), sum(map(size_of, specs)))

    def excess(self, specs: Sequence[JobSpec]) -> tuple[int, int]:
        """How many jobs and bytes at most have to go for these to get in; those that never fit do not count."""
        sizes = [size for size in map(size_of, specs) if size <= (self.bound.max_bytes or size)]
        jobs = 0 if self.bound.max_depth is None else self.depth + len(sizes) - self.bound.max_depth
        return jobs, 0 if self.bound.max_bytes is None else self.size + sum(sizes) - self.bound.max_bytes

    def enter(
        self, spec: JobSpec, leaving: Sequence[JobRow] = (), limits: Limits = UNLIMITED
    ) -> QueueFull | None:  # fmt: skip
        """Let a job in, for which `leaving` jobs (of any queue) are cancelled; or say that there is no room.

        No job beyond the `limits` of the caller is dropped to make some, nor a younger one in its stead.
        """
        out = [row for row in leaving if row["queue"] == self.queue.name]
        depth, size = self.depth - len(out), self.size - sum(map(_size_of_row, out))
        mine = size_of(spec)
        gone = {row["id"] for row in out}
        dropped: list[JobRow] = []
        place = self._next
        while not self._fits(1, mine, depth, size):
            if place == len(self.droppable):
                return self._full()
            victim = self.droppable[place]
            place += 1
            if victim["id"] not in gone and victim["id"] not in self._gone:
                if not limits.covers_row(victim):
                    return self._full()
                dropped.append(victim)
                depth, size = depth - 1, size - _size_of_row(victim)
        self.dropped += dropped
        self._next = place
        # Those in `leaving` are still counted here: `leave` takes them out.
        self.depth, self.size = depth + len(out) + 1, size + sum(map(_size_of_row, out)) + mine
        return None

    def leave(self, row: JobRow) -> None:
        """Count a job out that is cancelled to make room for another with its key."""
        self._gone.add(row["id"])
        self.depth -= 1
        self.size -= _size_of_row(row)

    @property
    def pressure(self) -> Pressure | None:
        """What the caller is warned of; None while the queue is not nearly full."""
        share = self.bound.pressure(self.depth, self.size)
        limit = self.bound.max_depth or self.bound.max_bytes or 0
        depth = self.depth if self.bound.max_depth else self.size
        return Pressure(self.queue.name, depth, limit, share) if share >= self.bound.warning else None

    def _fits(self, count: int, size: int, depth: int | None = None, taken: int | None = None) -> bool:
        depth = (self.depth if depth is None else depth) + count
        taken = (self.size if taken is None else taken) + size
        too_many = self.bound.max_depth is not None and depth > self.bound.max_depth
        return not (too_many or (self.bound.max_bytes is not None and taken > self.bound.max_bytes))

    def _full(self) -> QueueFull:
        if self.bound.max_depth is not None and self.depth >= self.bound.max_depth:
            return QueueFull.of(self.queue.name, self.depth, self.bound.max_depth, self.bound.strategy)
        if self.bound.max_bytes is not None:
            return QueueFull.of(self.queue.name, self.size, self.bound.max_bytes, self.bound.strategy)
        return QueueFull.of(self.queue.name, self.depth, self.bound.max_depth or 0, self.bound.strategy)


def size_of(spec: JobSpec) -> int:
    """Bytes that a job takes in the count of `max_size_bytes`: arguments, meta and what else the client sent."""
    return sum(map(byte_length, (spec.args_text, spec.meta_text, spec.extra_text)))


def _size_of_row(row: JobRow) -> int:
    return sum(byte_length(row[name] or "") for name in _SIZED)


def enforce(gates: Iterable[QueueBound], now: dt.datetime, using: str) -> list[JobRow]:
    """Discard what had to make room, and log where a queue became nearly full or ceased to be.

    Returns what was discarded, whose workflows the push takes further when it has inserted its own jobs.
    """
    records: list[Record] = []
    dropped: list[JobRow] = []
    for gate in gates:
        records += [record for row in gate.dropped for record in _drop(row, now, gate)]
        dropped += gate.dropped
        records += _pressed(gate, now, using)
    store_of(using).update_jobs(Verb.EXPIRE, dropped, transitions.DISCARD_COLUMNS)
    log.append(records, using)
    return dropped


def _drop(row: JobRow, now: dt.datetime, gate: QueueBound) -> list[Record]:
    message = "The queue was full and this was its oldest job."
    discarded, *more = transitions.discard_because(row, "overflow", message, now, "api")
    facts: dict[str, Any] = {"depth": gate.depth, "bound": gate.bound.max_depth or gate.bound.max_bytes}
    return [discarded, catalogue.of_job("backpressure.dropped", row, now, "api", **facts), *more]


def _pressed(gate: QueueBound, now: dt.datetime, using: str) -> list[Record]:
    """The warning when the queue crosses its threshold, not for every job beyond it."""
    pressure, queue = gate.pressure, gate.queue
    if (pressure is None) == (queue.pressured_at is None) or queue._state.adding:  # which has no row yet to note it in
        return []
    Queue.objects.using(using).filter(pk=queue.pk).update(pressured_at=now if pressure else None)
    share = gate.bound.pressure(gate.depth, gate.size)
    facts: dict[str, Any] = {"depth": gate.depth, "bound": gate.bound.max_depth or gate.bound.max_bytes or 0}
    facts |= {"pressure": round(share, 2), "threshold": gate.bound.warning}
    return [catalogue.of_queue(f"backpressure.{'warning' if pressure else 'cleared'}", queue.name, now, **facts)]


@retried
def relieve(*, using: str | None = None) -> int:
    """Note which nearly full queues have emptied since, or are bounded no more; return how many. For the scheduler.

    A queue whose row another transaction holds is looked at again next time: that one may stay open for long.
    """
    using = database(using)
    names = list(Queue.objects.using(using).filter(pressured_at__isnull=False).values_list("name", flat=True))
    if not names:
        return 0
    with atomic(using=using):
        store_of(using).begin_writing()
        queues = {queue.name: queue for queue in _lock(names, using, wait=False)}
        records: list[Record] = []
        for gate in gates(queues, (), using).values():
            records += _pressed(gate, clock.now(using), using)
        log.append(records, using)
    return len(records)


def record(error: QueueFull, using: str) -> None:
    """Log a refusal, once. The push itself left nothing; inside the caller's transaction the event is part of it."""
    if error.recorded:
        return
    log.append([rejected(error, clock.now(using))], using)
    error.recorded = not connections[using].in_atomic_block


def rejected(error: QueueFull, now: dt.datetime) -> Record:
    facts = {name: value for name, value in error.extra.items() if name != "queue"}
    return catalogue.of_queue("backpressure.rejected", error.extra["queue"], now, **facts)


class Patience:
    """How long a push waits for room in a queue that blocks (jobs 6, `block`): so many seconds from now.

    A push inside an open transaction does not wait: no worker could make room as long as that one lasts.
    """

    __slots__ = ("_deadline", "_pause", "_using")

    def __init__(self, seconds: float, using: str) -> None:
        waits = seconds > 0 and not connections[using].in_atomic_block
        self._deadline = time.monotonic() + (min(seconds, MAX_PATIENCE) if waits else 0.0)
        self._pause, self._using = 0.02, using

    def waits_for_room(self, error: QueueFull) -> bool:
        """Wait a moment before another try; False where it is over, or of no use: the refusal is logged, and the caller
        is to raise it."""
        left = self._deadline - time.monotonic()
        if error.extra["strategy"] != "block" or left <= 0:
            record(error, self._using)
            return False
        give_back(self._using)
        time.sleep(min(self._pause, left))
        self._pause = min(self._pause * 1.5, 0.25)
        return True
