"""Counts the event log into the series of the metrics, each event once (events specification 7.4).

A pass reads the log behind its place, adds to the series and moves the place, in one transaction: a process that
dies in the middle has done nothing, and of two that count at once the second finds nothing left. So the numbers
are those of the whole installation, in whatever process they are read, and they survive every restart.
The same pass counts what came into the queues by the minute, and how long it had waited (`latency`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from django.db import transaction
from django.db.models import F

from django_ojs.conf import ojs_settings
from django_ojs.database import atomic, database, retried
from django_ojs.models import MetricPlace, MetricSeries, Worker
from django_ojs.statistics import eventlog, latency
from django_ojs.statistics.eventlog import MEASURED, Group, Place
from django_ojs.store import store_of

#: Events counted in one transaction.
BATCH = 5_000
#: The name under which everything is counted that would make too many series.
OTHER = "other"
#: Upper edges of the buckets in ms: those of the specification's histograms, and of the companion's in seconds.
WAIT_MS = (10, 50, 100, 500, 1000, 5000, 10_000, 30_000, 60_000, 300_000, 600_000, 1_800_000, 3_600_000)
DURATION_MS = (5, 10, 25, 50, 100, 250, 500, 1000, 2500, 5000, 10_000, 30_000, 60_000, 120_000, 300_000)
#: What the metrics are made of; other events are read over.
COUNTED = frozenset({
    "job.enqueued", "job.started", "job.completed", "job.failed", "job.discarded", "job.retrying", "job.cancelled",
    "job.expired",
})  # fmt: skip

#: Called with the groups of each pass once it is committed, in the process that counted them.
listeners: list[Callable[[Sequence[Group]], None]] = []

Key = tuple[str, str, str, str]


@retried
def count(*, limit: int = BATCH, using: str | None = None) -> int:
    """Count the next events of the log, at most `limit`; return how many there were.

    Takes no lock where there is nothing to count.
    """
    using = database(using)
    if not eventlog.read(_place(using), 1, using).events:
        return 0
    with atomic(using=using):
        store_of(using).begin_writing()
        stretch = eventlog.read(_locked_place(using), limit, using)
        if stretch.events:
            groups = _named([group for group in stretch.groups if group.event in COUNTED], using)
            _add(groups, using)
            latency.count(stretch.groups, using)
            _count_for_workers(stretch.groups, using)
            MetricPlace.objects.using(using).filter(pk=1).update(seq=stretch.place.seq, event=stretch.place.event)
            transaction.on_commit(lambda: _tell(groups), using=using)
    return stretch.events


def catch_up(using: str) -> None:
    """Count everything that is in order by now."""
    while count(using=using) >= BATCH:
        pass


def edges(event: str) -> tuple[int, ...]:
    """The buckets of the times that this kind of event measures."""
    return WAIT_MS if MEASURED[event] == "wait_ms" else DURATION_MS


def buckets_of(series: MetricSeries) -> list[int]:
    """Events by bucket, the last one for those above every edge."""
    if series.buckets:
        return [int(number) for number in series.buckets.split(",")]
    return [0] * (len(edges(series.event)) + 1)


def _tell(groups: Sequence[Group]) -> None:
    for listener in listeners:
        listener(groups)


def _place(using: str) -> Place:
    found = MetricPlace.objects.using(using).filter(pk=1).values_list("seq", "event").first()
    return Place(*found) if found else Place()


def _locked_place(using: str) -> Place:
    """The place, while nobody else can move it."""
    places = MetricPlace.objects.using(using)
    held = places.select_for_update().filter(pk=1).values_list("seq", "event")
    found = held.first()
    if found is None:
        places.bulk_create([MetricPlace(pk=1)], ignore_conflicts=True)
        found = held.get()
    return Place(*found)


def _add(groups: Sequence[Group], using: str) -> None:
    wanted = {_key(group) for group in groups}
    rows = MetricSeries.objects.using(using)
    found = rows.filter(job_type__in={key[1] for key in wanted}, queue__in={key[2] for key in wanted})
    series: dict[Key, MetricSeries] = {(row.event, row.job_type, row.queue, row.label): row for row in found}
    known = wanted & series.keys()
    for group in groups:
        key = _key(group)
        row = series.get(key)
        if row is None:
            event, job_type, queue, label = key
            row = series[key] = MetricSeries(event=event, job_type=job_type, queue=queue, label=label)
        _count_into(row, group)
    rows.bulk_create([series[key] for key in sorted(wanted - known)])
    rows.bulk_update([series[key] for key in sorted(known)], ["count", "total_ms", "buckets"])


def _count_for_workers(groups: Iterable[Group], using: str) -> None:
    """Note how many jobs those workers have completed that do not count them themselves."""
    done: Counter[str] = Counter()
    for group in groups:
        if group.worker_id:
            done[group.worker_id] += group.number
    if not done:
        return
    silent = Worker.objects.using(using).filter(pk__in=done, counts_itself=False).order_by("pk").select_for_update()
    for name in list(silent.values_list("pk", flat=True)):
        Worker.objects.using(using).filter(pk=name).update(jobs_completed=F("jobs_completed") + done[name])


def _count_into(row: MetricSeries, group: Group) -> None:
    row.count += group.number
    if group.ms is not None:
        row.total_ms += group.ms * group.number
        buckets = buckets_of(row)
        buckets[bisect_left(edges(group.event), group.ms)] += group.number
        row.buckets = ",".join(map(str, buckets))


def _key(group: Group) -> Key:
    return group.event, group.job_type, group.queue, group.label


Pair = tuple[str, str]


def _named(groups: Iterable[Group], using: str) -> list[Group]:
    """The groups under the names by which they are counted."""
    groups = list(groups)
    names = _names({(group.job_type, group.queue) for group in groups}, using)
    found = ((group, names[group.job_type, group.queue]) for group in groups)
    return [group._replace(job_type=job_type, queue=queue) for group, (job_type, queue) in found]


def _names(pairs: set[Pair], using: str) -> dict[Pair, Pair]:
    """The job type and queue under which each of these is counted: its own, while there are few enough.

    A pair keeps the name it has. What comes when there are `METRICS_MAX_SERIES` is counted as the job type
    `other` of its queue, and when there are twice as many, of the queue `other` too.
    """
    series = MetricSeries.objects.using(using)
    some = series.filter(job_type__in={pair[0] for pair in pairs}, queue__in={pair[1] for pair in pairs})
    known: set[Pair] = set(some.values_list("job_type", "queue").distinct())
    names = {pair: pair for pair in pairs & known}
    if len(names) == len(pairs):
        return names
    known = set(series.values_list("job_type", "queue").distinct())
    limit = ojs_settings.METRICS_MAX_SERIES
    for pair in sorted(pairs - names.keys()):
        fallback = (OTHER, pair[1])
        if len(known) < limit:
            names[pair] = pair
        elif fallback in known or len(known) < 2 * limit:
            names[pair] = fallback
        else:
            names[pair] = (OTHER, OTHER)
        known.add(names[pair])
    return names
