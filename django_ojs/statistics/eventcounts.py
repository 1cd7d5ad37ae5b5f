"""Counts the event log into the series of the metrics, each event once (events specification 7.4).

A pass reads the log behind its place, adds to the series and moves the place, in one transaction: a process that
dies in the middle has done nothing, and of two that count at once the second finds nothing left. So the numbers
are those of the whole installation, in whatever process they are read, and they survive every restart.
The same pass counts by the minute what came into the queues and how long it had waited (`latency`), and what became of
the jobs of each type (`jobtypes`).
"""

from __future__ import annotations

import datetime as dt
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from django.db import connections, transaction
from django.db.models import F

from django_ojs.conf import ojs_settings
from django_ojs.database import atomic, database, retried
from django_ojs.events import order, restored
from django_ojs.models import Event, EventCommit, MetricPlace, MetricSeries, Worker
from django_ojs.statistics import jobtypes, latency
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
listeners: list[Callable[[Sequence[EventGroup]], None]] = []

Key = tuple[str, str, str, str]


@retried
def count(*, limit: int = BATCH, using: str | None = None) -> int:
    """Count the next events of the log, at most `limit`; return how many there were.

    Takes no lock where there is nothing to count.
    """
    using = database(using)
    seen = _place(using)
    if seen.seq == restored.UNKNOWN:
        seen = _find_again(seen, using)
    if not read(seen, 1, using).events:
        return 0
    with atomic(using=using):
        store_of(using).begin_writing()
        stretch = read(_locked_place(using), limit, using)
        if stretch.events:
            groups = _named([group for group in stretch.groups if group.event in COUNTED], using)
            _add(groups, using)
            latency.count(stretch.groups, using)
            jobtypes.count(groups, using)
            _count_for_workers(stretch.groups, using)
            MetricPlace.objects.using(using).filter(pk=1).update(seq=stretch.place.seq, event=stretch.place.event)
            transaction.on_commit(lambda: _notify(groups), using=using)
    return stretch.events


def catch_up(using: str) -> None:
    """Count everything that is in order by now."""
    while count(using=using) >= BATCH:
        pass


def counted_up_to(using: str) -> order.LogPosition:
    """Up to where the log has been counted."""
    found = _place(using)
    if found.seq == restored.UNKNOWN:
        return restored.position_of(found.event, using)
    return order.LogPosition(found.event if connections[using].vendor == "sqlite" else found.seq, found.event)


def edges(event: str) -> tuple[int, ...]:
    """The buckets of the times that this kind of event measures."""
    return WAIT_MS if MEASURED[event] == "wait_ms" else DURATION_MS


def buckets_of(series: MetricSeries) -> list[int]:
    """Events by bucket, the last one for those above every edge."""
    if series.buckets:
        return [int(number) for number in series.buckets.split(",")]
    return [0] * (len(edges(series.event)) + 1)


def _notify(groups: Sequence[EventGroup]) -> None:
    for listener in listeners:
        listener(groups)


def _place(using: str) -> ReadPosition:
    found = MetricPlace.objects.using(using).filter(pk=1).values_list("seq", "event").first()
    return ReadPosition(*found) if found else ReadPosition()


def _find_again(loaded: ReadPosition, using: str) -> ReadPosition:
    """The place in this database's order that another database's row was loaded for."""
    found = restored.position_of(loaded.event, using)
    places = MetricPlace.objects.using(using).filter(pk=1, seq=loaded.seq, event=loaded.event)
    places.update(seq=found.order, event=found.id)
    return _place(using)


def _locked_place(using: str) -> ReadPosition:
    """The place, while no other process can move it."""
    places = MetricPlace.objects.using(using)
    held = places.select_for_update().filter(pk=1).values_list("seq", "event")
    found = held.first()
    if found is None:
        places.bulk_create([MetricPlace(pk=1)], ignore_conflicts=True)
        found = held.get()
    return ReadPosition(*found)


def _add(groups: Sequence[EventGroup], using: str) -> None:
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


def _count_for_workers(groups: Iterable[EventGroup], using: str) -> None:
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


def _count_into(row: MetricSeries, group: EventGroup) -> None:
    row.count += group.number
    if group.ms is not None:
        row.total_ms += group.ms * group.number
        buckets = buckets_of(row)
        buckets[bisect_left(edges(group.event), group.ms)] += group.number
        row.buckets = ",".join(map(str, buckets))


def _key(group: EventGroup) -> Key:
    return group.event, group.job_type, group.queue, group.label


Pair = tuple[str, str]


def _named(groups: Iterable[EventGroup], using: str) -> list[EventGroup]:
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


# The log in numbers: one statement reads a stretch of it, in its total order, and groups it in the database, so that
# what comes back is as short for ten thousand events as for ten. Times are those that the events carry as the first
# member of their data.

_EVENT, _COMMIT = Event._meta.db_table, EventCommit._meta.db_table

#: The events that measure a time, by the member that holds it.
MEASURED = {"job.completed": "duration_ms", "job.failed": "duration_ms", "job.started": "wait_ms"}


class ReadPosition(NamedTuple):
    """Up to where a reader has come: the transaction's or event's number, and the event's id."""

    seq: int = 0
    event: int = 0


class EventGroup(NamedTuple):
    """`number` events that are alike and of one minute. `ms` is what each of them measured, None for those without;
    `worker_id` who completed the jobs, empty for other events."""

    event: str
    job_type: str
    queue: str
    label: str
    ms: int | None
    number: int
    minute: dt.datetime
    worker_id: str = ""


class EventBatch(NamedTuple):
    """What was read: the groups of the job events, the number of all events, and the place behind the last."""

    groups: list[EventGroup]
    events: int
    place: ReadPosition


def read(after: ReadPosition, limit: int, using: str) -> EventBatch:
    """The next events behind `after`, at most `limit`, in one statement. What is not in order yet is not there."""
    vendor = connections[using].vendor
    source, params, last = _SOURCES.get(vendor, _by_number)(after)
    ms = _ms_of(_FIRST_NUMBER.get(vendor, _FIRST_NUMBER["sqlite"]))
    with connections[using].cursor() as cursor:
        cursor.execute(
            f"SELECT type, job_type, queue, label, ms, minute, worker, count(*), {last} "
            f"FROM (SELECT e.id, {source[0]} AS seq, "
            f"e.type, e.job_type, e.queue, {_LABEL} AS label, {ms} AS ms, {_MINUTES.get(vendor, _MINUTES['sqlite'])} "
            f"AS minute, {_WORKER} AS worker {source[1]} LIMIT {int(limit)}) AS stretch "
            f"GROUP BY type, job_type, queue, label, ms, minute, worker",
            params,
        )
        rows = cursor.fetchall()
    groups = [
        EventGroup(event, job_type, queue, label, None if ms is None else int(ms), int(number), _minute(minute), worker)
        for event, job_type, queue, label, ms, minute, worker, number, _, _ in rows
        if event.startswith("job.")
    ]
    ends = [ReadPosition(int(seq or 0), int(event)) for *_, seq, event in rows]
    return EventBatch(groups, sum(int(row[7]) for row in rows), max(ends, default=after))


_LABEL = (
    "CASE WHEN e.type = 'job.started' THEN CASE WHEN e.attempt = 1 THEN 'first' ELSE 'again' END "
    "WHEN e.type IN ('job.completed', 'job.failed') THEN e.state ELSE '' END"
)
_WORKER = "CASE WHEN e.type = 'job.completed' THEN e.worker_id ELSE '' END"
#: The number with which a text begins. SQLite's CAST stops at what is none.
_FIRST_NUMBER = {
    "sqlite": "CAST({} AS INTEGER)",
    "postgresql": "CAST(split_part(split_part({}, ',', 1), '}}', 1) AS bigint)",
    "mysql": "CAST(substring_index(substring_index({}, ',', 1), '}}', 1) AS SIGNED)",
}
#: The minute of an event as a text: columns hold UTC on every database.
_MINUTES = {
    "sqlite": "substr(e.time, 1, 16)",
    "postgresql": "to_char(e.time AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI')",
    "mysql": "date_format(e.time, '%%Y-%%m-%%d %%H:%%i')",
}


def _minute(text: str) -> dt.datetime:
    return dt.datetime.fromisoformat(text).replace(tzinfo=dt.UTC)


def _ms_of(number: str) -> str:
    cases = []
    for event, member in MEASURED.items():
        begin = f'{{"{member}":'
        size = len(begin)
        value = number.format(f"substr(e.data, {size + 1}, 18)")
        cases.append(f"WHEN e.type = '{event}' AND substr(e.data, 1, {size}) = '{begin}' THEN {value}")
    return f"CASE {' '.join(cases)} END"


_Source = tuple[tuple[str, str], list[Any], str]


def _by_id(after: ReadPosition) -> _Source:
    """SQLite: ids are the order."""
    return ("0", f"FROM {_EVENT} e WHERE e.id > %s ORDER BY e.id"), [after.event], "0, max(id)"


def _by_transaction(after: ReadPosition) -> _Source:
    """PostgreSQL: the number of the transaction, then the id.

    OFFSET 0 makes it look for each transaction's events by their index. The planner, before it has been told how
    large the tables are, would rather read all of the log.
    """
    joined = (
        f"FROM {_COMMIT} c CROSS JOIN LATERAL (SELECT * FROM {_EVENT} WHERE txid = c.txid OFFSET 0) e "
        "WHERE c.seq >= %s AND (c.seq > %s OR e.id > %s) ORDER BY c.seq, e.id"
    )
    last = "(max(ARRAY[seq, id]))[1], (max(ARRAY[seq, id]))[2]"
    return ("c.seq", joined), [after.seq, after.seq, after.event], last


def _by_number(after: ReadPosition) -> _Source:
    """MariaDB: the number that the relay has stamped."""
    return ("e.seq", f"FROM {_EVENT} e WHERE e.seq > %s ORDER BY e.seq"), [after.seq], "max(seq), max(id)"


_SOURCES = {"sqlite": _by_id, "postgresql": _by_transaction}
