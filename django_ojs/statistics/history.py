"""What was done over time (admin 1.6): by the minute for two days, by the hour for thirty.

Minutes become part of their hour when they are too old (`roll_up`, a part of pruning), in one transaction, and every
reader adds both in one statement: nothing is counted twice or lost on the way.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Sequence
from typing import Any

from django.db.models import F, Sum
from django.db.models.functions import TruncHour

from django_ojs import clock
from django_ojs.database import atomic, database
from django_ojs.models import CountDelta, QueueHour, QueueMinute, QueueTraffic
from django_ojs.statistics import jobtypes, percentiles, workerminutes
from django_ojs.statistics.counters import KEEP_MINUTES
from django_ojs.statistics.latency import ALL, Traffic
from django_ojs.statistics.percentiles import Sketch
from django_ojs.statistics.throughput import MEASURES, OF_DELTA, Work
from django_ojs.store import store_of
from django_ojs.workerregistry import deaths

KEEP_HOURS = dt.timedelta(days=30)
HOUR = dt.timedelta(hours=1)
#: Points that a history has at most; two days of minutes are fewer.
MAX_POINTS = 3000
#: Hours that one call of `roll_up` makes at most.
HOURS_AT_ONCE = 24
#: Rows that one statement deletes.
CHUNK = 5000


@dataclasses.dataclass(slots=True, kw_only=True)
class Point(Work):
    """One period from `time` on: the work done, jobs enqueued, and the waits."""

    time: dt.datetime
    enqueued: int = 0
    waits: Sketch = dataclasses.field(default_factory=Sketch)

    def percentiles(self, *shares: float) -> list[float | None]:
        """Of the waits, in ms; None where nothing was started."""
        return percentiles.of_sketch(self.waits, shares)


def kept_since(period: dt.timedelta, now: dt.datetime) -> dt.datetime:
    """Where the history of such periods begins: what lies before is not known, or no longer so finely."""
    return _minutes_edge(now) if period < HOUR else _hours_edge(now)


def history(
    period: dt.timedelta, since: dt.datetime, until: dt.datetime, queue: str = "", *, using: str | None = None
) -> list[Point]:
    """The periods that have some part between `since` and `until`, each of them whole; those in which nothing
    happened too, but none from before `kept_since` and none that lies ahead. Of one queue, or of all together.

    Periods begin at whole multiples of their length since 1970, in UTC. At most `MAX_POINTS`, the earliest.
    """
    using = database(using)
    now = clock.now(using)
    seconds = int(period.total_seconds())
    first = int(max(since, kept_since(period, now)).timestamp()) // seconds * seconds
    starts = range(first, int(min(until, now).timestamp()) + 1, seconds)[:MAX_POINTS]
    points = {at: Point(time=dt.datetime.fromtimestamp(at, dt.UTC)) for at in starts if at < until.timestamp()}
    if not points:
        return []
    begin, end = points[first].time, points[max(points)].time + period
    for instant, *done in _work(period, begin, end, queue, using):
        points[int(instant.timestamp()) // seconds * seconds].add(Work(*done))
    for instant, enqueued, waits in _traffic(period, begin, end, queue, using):
        point = points[int(instant.timestamp()) // seconds * seconds]
        point.enqueued += enqueued
        point.waits.update(percentiles.parse(waits))
    return list(points.values())


def _work(period: dt.timedelta, begin: dt.datetime, end: dt.datetime, queue: str, using: str) -> list[Sequence[Any]]:
    """What was done, folded or not, by the minute and before that by the hour: one statement, so one snapshot."""
    folded = QueueMinute.objects.using(using).filter(minute__gte=begin, minute__lt=end)
    recent = CountDelta.objects.using(using).filter(at__gte=begin, at__lt=end)
    parts: list[Any] = []
    if queue:
        recent = recent.filter(queue=queue)
        parts.append(folded.filter(queue=queue).values_list("minute", *MEASURES))
    else:
        sums = {f"sum_{name}": Sum(name) for name in MEASURES}
        begun = TruncHour("minute", tzinfo=dt.UTC) if period >= HOUR else F("minute")
        parts.append(folded.order_by().values(begun=begun).annotate(**sums).values_list("begun", *sums))
    parts.append(recent.values_list("at", *OF_DELTA))
    if period >= HOUR:
        hours = QueueHour.objects.using(using).filter(queue=queue or ALL, hour__gte=begin, hour__lt=end)
        parts.append(hours.values_list("hour", *MEASURES))
    rows = parts[0].union(*parts[1:], all=True)
    return [(at, *(max(int(number), 0) for number in done)) for at, *done in rows]


def _traffic(period: dt.timedelta, begin: dt.datetime, end: dt.datetime, queue: str, using: str) -> list[Any]:
    minutes = QueueTraffic.objects.using(using).filter(queue=queue or ALL, minute__gte=begin, minute__lt=end)
    rows: Any = minutes.values_list("minute", "enqueued", "waits")
    if period >= HOUR:
        hours = QueueHour.objects.using(using).filter(queue=queue or ALL, hour__gte=begin, hour__lt=end)
        rows = rows.union(hours.values_list("hour", "enqueued", "waits"), all=True)
    return list(rows)


def roll_up(*, using: str | None = None) -> int:
    """Add minutes that are older than two days to their hours, and forget hours older than thirty days. The minutes of
    job types and workers, of which no hours are kept, are forgotten, and so are deaths of workers.

    Only hours of which all minutes are that old. Returns the number of rows that went.
    """
    using = database(using)
    now = clock.now(using)
    gone = 0
    for _ in range(HOURS_AT_ONCE):
        moved = _move_oldest(_minutes_edge(now), using)
        gone += moved
        if not moved:
            break
    edge = _minutes_edge(now)
    gone += jobtypes.prune(edge, using) + workerminutes.prune(edge, using) + deaths.prune(edge, using)
    return gone + int(QueueHour.objects.using(using).filter(hour__lt=_hours_edge(now))._raw_delete(using))


def _move_oldest(edge: dt.datetime, using: str) -> int:
    """Move the minutes of the first hour before `edge` that has any; return how many rows they were."""
    models: tuple[Any, ...] = (QueueMinute, QueueTraffic)
    heads = [m.objects.using(using).filter(minute__lt=edge).order_by("minute").values("minute")[:1] for m in models]
    oldest = [row["minute"] for head in heads for row in head]
    if not oldest:
        return 0
    hour = _hour_of(min(oldest))
    with atomic(using=using):
        store_of(using).begin_writing()
        # Locked, so that of two who roll up at once the second finds nothing left.
        theirs = (m.objects.using(using).filter(minute__gte=hour, minute__lt=hour + HOUR) for m in models)
        minutes, traffic = (list(rows.order_by("pk").select_for_update()) for rows in theirs)
        _add_to_hour(hour, minutes, traffic, using)
        for model, rows in zip(models, (minutes, traffic), strict=True):
            for start in range(0, len(rows), CHUNK):
                ids = [row.pk for row in rows[start : start + CHUNK]]
                model.objects.using(using).filter(pk__in=ids)._raw_delete(using)
    return len(minutes) + len(traffic)


def _add_to_hour(hour: dt.datetime, minutes: list[QueueMinute], traffic: list[QueueTraffic], using: str) -> None:
    queues = {row.queue for row in minutes} | {row.queue for row in traffic} | {ALL}
    hours = QueueHour.objects.using(using)
    known = {row.queue: row for row in hours.filter(hour=hour, queue__in=queues).order_by("pk").select_for_update()}
    found = {queue: known.get(queue) or QueueHour(queue=queue, hour=hour) for queue in sorted(queues)}
    for minute in minutes:
        for row in (found[minute.queue], found[ALL]):
            for name in MEASURES:
                setattr(row, name, getattr(row, name) + getattr(minute, name))
    came = {queue: Traffic(row.enqueued, percentiles.parse(row.waits)) for queue, row in found.items()}
    for part in traffic:  # which has a row of all queues of its own
        came[part.queue].add(part.enqueued, part.waits)
    for queue, row in found.items():
        row.enqueued, row.waits = came[queue].enqueued, percentiles.write(came[queue].waits)
    hours.bulk_create([row for queue, row in found.items() if queue not in known])
    hours.bulk_update([row for queue, row in found.items() if queue in known], [*MEASURES, "enqueued", "waits"])


def _minutes_edge(now: dt.datetime) -> dt.datetime:
    """The first minute that is kept as such: a whole hour."""
    return _hour_of(now - KEEP_MINUTES)


def _hours_edge(now: dt.datetime) -> dt.datetime:
    """The first hour that is kept: midnight UTC, so that the first day is whole."""
    return (now - KEEP_HOURS).replace(hour=0, minute=0, second=0, microsecond=0)


def _hour_of(instant: dt.datetime) -> dt.datetime:
    return instant.replace(minute=0, second=0, microsecond=0)
