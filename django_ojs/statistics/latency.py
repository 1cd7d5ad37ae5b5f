"""How long jobs wait: those that were started lately, and those at the front of queues now; and how many came in.

A wait is the time from when a job could be fetched (enqueued, or due if it was scheduled) to its start; each attempt
has its own. `count` adds up the waits of all starts from groups of events, as sketches (`percentiles`), so that
percentiles are right to 5 percent whatever the load. Where no process counts the log, the latest completed jobs stand
for all of them.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import sys
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from django_ojs import clock
from django_ojs.conf import ojs_settings
from django_ojs.database import database
from django_ojs.models import Job, QueueTraffic
from django_ojs.states import State
from django_ojs.statistics import counters, percentiles, throughput
from django_ojs.statistics.percentiles import Sketch
from django_ojs.statistics.throughput import by_queue

if TYPE_CHECKING:
    from django_ojs.statistics.eventcounts import EventGroup

#: The row of all queues together.
ALL = ""
#: Completed jobs that a sample looks at: the latest.
SAMPLE = 1000
#: Jobs read for each priority of a queue, the priorities that are looked at, and the queues of one statement.
DEPTH, LEVELS, _AT_ONCE = 20, 6, 50
_TABLE = Job._meta.db_table


# What came in and was started, from the event log


@dataclasses.dataclass(slots=True)
class Traffic:
    """Jobs that could be fetched from then on, and the waits of those that were started."""

    enqueued: int = 0
    waits: Sketch = dataclasses.field(default_factory=Sketch)

    def add(self, enqueued: int, waits: str) -> None:
        self.enqueued += enqueued
        if waits:
            self.waits.update(percentiles.parse(waits))


def count(groups: Iterable[EventGroup], using: str) -> None:
    """Add the events of these groups. The caller holds the lock of counting, so no other process writes these rows."""
    found: dict[tuple[str, dt.datetime], Traffic] = {}
    for group in groups:
        for queue in (group.queue, ALL):
            if group.event == "job.enqueued":
                found.setdefault((queue, group.minute), Traffic()).enqueued += group.number
            elif group.event == "job.started" and group.ms is not None:
                place = percentiles.bucket(group.ms)
                found.setdefault((queue, group.minute), Traffic()).waits[place] += group.number
    rows = QueueTraffic.objects.using(using)
    near = rows.filter(minute__in={minute for _, minute in found}, queue__in={queue for queue, _ in found})
    there = {(row.queue, row.minute): row for row in near} if found else {}
    new: list[QueueTraffic] = []
    changed: list[QueueTraffic] = []
    for (queue, minute), more in sorted(found.items(), key=lambda item: item[0]):
        row = there.get((queue, minute)) or QueueTraffic(queue=queue, minute=minute)
        more.add(row.enqueued, row.waits)
        row.enqueued, row.waits = more.enqueued, percentiles.write(more.waits)
        (changed if row.pk else new).append(row)
    rows.bulk_create(new)
    rows.bulk_update(changed, ["enqueued", "waits"])


def enqueued_per_minute(queues: Sequence[str] | None = None, *, using: str | None = None) -> float | None:
    """Jobs of these queues, or of all, that could be fetched from then on; None where no process counts the log."""
    if not ojs_settings.METRICS:
        return None
    using = database(using)
    now = clock.now(using)
    came = sum(one.enqueued for one in traffic(queues, now, using).values())
    return round(came / throughput.minutes_lately(now), 2)


def waits(queues: Sequence[str] | None = None, *, using: str | None = None) -> dict[str, dict[str, float | None]]:
    """By queue the percentiles, in ms, of how long the jobs had waited that were started in the last five minutes."""
    using = database(using)
    now = clock.now(using)
    shares = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
    found: dict[str, Sequence[float | None]] = {}
    if ojs_settings.METRICS:
        for queue, came in traffic(queues, now, using).items():
            if came.waits:
                found[queue] = percentiles.of_sketch(came.waits, shares.values())
    else:
        sampled: dict[str, list[float]] = defaultdict(list)
        for times in latest_completed(throughput.lately(now), queues, using=using):
            if times.wait_ms is not None:
                sampled[times.queue].append(times.wait_ms)
        for queue, values in sampled.items():
            found[queue] = [round(ms, 3) for ms in percentiles.of_values(sorted(values), shares.values())]
    return {queue: dict(zip(shares, values, strict=True)) for queue, values in found.items()}


def traffic(queues: Sequence[str] | None, now: dt.datetime, using: str) -> dict[str, Traffic]:
    """The traffic of each of these queues, or of those that had any, in the last five minutes and this one."""
    rows: Any = QueueTraffic.objects.using(using).filter(minute__gte=throughput.lately(now)).exclude(queue=ALL)
    if queues is not None:
        rows = rows.filter(queue__in=queues)
    found: dict[str, Traffic] = {}
    for queue, enqueued, waits in rows.values_list("queue", "enqueued", "waits"):
        found.setdefault(queue, Traffic()).add(enqueued, waits)
    return found


# A sample of the jobs themselves


class Times(NamedTuple):
    """How long a completed job waited for its last start, None where that is not known, and ran."""

    queue: str
    wait_ms: float | None
    run_ms: float


def latest_completed(
    since: dt.datetime, queues: Sequence[str] | None = None, *, using: str | None = None
) -> Iterator[Times]:
    """The latest `SAMPLE` jobs that were completed since, of these queues or of all."""
    jobs = Job.objects.using(database(using)).filter(
        state=State.COMPLETED, finished_at__gte=since, started_at__isnull=False
    )
    if queues is not None:
        jobs = jobs.filter(queue__in=queues)
    names = ("queue", "enqueued_at", "started_at", "finished_at")
    rows: Iterable[Any] = jobs.order_by("-finished_at").values_list(*names)[:SAMPLE]
    for queue, enqueued, started, finished in rows:
        yield Times(queue, None if enqueued is None else _ms(started - enqueued), _ms(finished - started))


def _ms(period: dt.timedelta) -> float:
    return max(period / dt.timedelta(milliseconds=1), 0.0)


# The front of queues


@dataclasses.dataclass(slots=True)
class Front:
    """The front of one queue; `oldest` is since when its longest waiting job there could have been taken."""

    oldest: dt.datetime | None = None
    types: Counter[str] = dataclasses.field(default_factory=Counter)


def fronts(
    queues: Sequence[str], now: dt.datetime, *, levels: int = LEVELS, using: str | None = None
) -> dict[str, Front]:  # fmt: skip
    """What waits at the front of these queues, without counting a queue: the oldest wait, and the types.

    A job that no worker serves stays where it is, so it gathers at the front, and the front is a few entries of
    the claim's index for each priority in use: one statement for each 50 queues, and one more for each lower priority,
    up to `levels` of them.
    """
    using = database(using)
    found: dict[str, Front] = {}
    for first in range(0, len(queues), _AT_ONCE):
        found |= _fronts(queues[first : first + _AT_ONCE], now, levels, using)
    return found


def _fronts(queues: Sequence[str], now: dt.datetime, levels: int, using: str) -> dict[str, Front]:
    found = {queue: Front() for queue in queues}
    below: dict[str, int | None] = dict.fromkeys(queues)
    while below and levels:
        levels -= 1
        last: dict[str, int] = {}
        seen: Counter[str] = Counter()
        for job in _jobs_at_front(below, using):
            seen[job.queue] += 1
            last[job.queue] = min(job.priority, last.get(job.queue, job.priority))
            _count_job(found[job.queue], job, now)
        below = {queue: last[queue] for queue, number in seen.items() if number == DEPTH}
    return found


def oldest_available(queue: str, *, using: str | None = None) -> dt.datetime | None:
    """Since when the longest waiting job of a queue can be fetched, whatever its priority."""
    using = database(using)
    return fronts([queue], clock.now(using), levels=sys.maxsize, using=using)[queue].oldest


def _jobs_at_front(below: dict[str, int | None], using: str) -> Sequence[Job]:
    parts, params = [], list[str | int]()
    for number, (queue, priority) in enumerate(below.items()):
        limit = "" if priority is None else "AND priority < %s "
        params += [queue] if priority is None else [queue, priority]
        parts.append(
            f"SELECT * FROM (SELECT id, queue, type, priority, enqueued_at, due_at FROM {_TABLE} "  # noqa: S608 - the name of our own table
            f"WHERE state = 'available' AND queue = %s {limit}"
            f"ORDER BY priority DESC, enqueued_at, id LIMIT {DEPTH}) AS head{number}"
        )
    return list(Job.objects.using(using).raw(" UNION ALL ".join(parts), params))


def _count_job(front: Front, job: Job, now: dt.datetime) -> None:
    """Note one job, unless its time has not come: it may be held back by a limit or by an overlap policy."""
    if job.due_at is not None and job.due_at > now:
        return
    front.types[job.type] += 1
    if job.enqueued_at is not None and (front.oldest is None or job.enqueued_at < front.oldest):
        front.oldest = job.enqueued_at


# How the starts of the last minute were shared among the queues, and which queues starve (admin 1.9, jobs 9.1). A FETCH
# takes from its queues strictly from left to right, so a queue far to the right, or one that no worker names, may wait
# for ever.

STRATEGY = "strict"
#: The length of the window that is looked at: the last whole minute.
WINDOW = dt.timedelta(minutes=1)


@dataclasses.dataclass(slots=True)
class Share:
    """One queue in the window: jobs that were started, their part of all, and how long they had waited on average.

    `starved`: a job could have been fetched since before the window, the queue is not paused, and neither in the
    window nor since was one taken. `mean_wait_ms` is None where nothing was started.
    """

    queue: str
    dispatched: int
    ratio: float
    mean_wait_ms: float | None
    active: int
    available: int
    oldest: dt.datetime | None
    starved: bool


@dataclasses.dataclass(slots=True)
class Spread:
    """The shares of the queues, in the order asked for, between `begin` and `end`."""

    begin: dt.datetime
    end: dt.datetime
    dispatched: int
    shares: list[Share]


def spread(queues: Sequence[str], paused: Collection[str] = (), *, using: str | None = None) -> Spread:
    """How the starts of the last whole minute fell on these queues; ratios are those among them."""
    using = database(using)
    now = clock.now(using)
    end = counters.minute_of(now)
    begin = end - WINDOW
    started, waited, lately = _starts(queues, begin, end, using)
    counted = counters.count_all(queues, using=using)
    available = {queue: one.states[State.AVAILABLE] for queue, one in counted.items()}
    idle = [queue for queue in queues if available.get(queue) and not lately[queue]]
    oldest = {queue: front.oldest for queue, front in fronts(idle, now, using=using).items()}
    total = sum(started.values())
    shares = []
    for queue in queues:
        number, waits = started[queue], oldest.get(queue)
        mean = waited[queue] / number if number else None
        shares.append(Share(
            queue, number, number / total if total else 0.0, mean,
            counted[queue].states[State.ACTIVE] if queue in counted else 0, available.get(queue, 0), waits,
            queue not in paused and waits is not None and waits < begin,
        ))  # fmt: skip
    return Spread(begin, end, total, shares)


def _starts(
    queues: Sequence[str], begin: dt.datetime, end: dt.datetime, using: str
) -> tuple[Counter[str], Counter[str], Counter[str]]:
    """Starts and sums of waits in the window, and starts since its begin."""
    started, waited, lately = Counter[str](), Counter[str](), Counter[str]()
    for (queue, minute), done in by_queue(begin, queues, using=using).items():
        lately[queue] += done.started
        if minute < end:
            started[queue] += done.started
            waited[queue] += done.wait_ms
    return started, waited, lately
