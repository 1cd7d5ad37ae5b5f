"""What the queues get done, by the minute: a few thousand small rows that are counted as it happens, never jobs.

What is not folded yet (`counters`) is read in the same statement, and so from the same snapshot, as what is. Periods
are counted in whole minutes: "the last hour" begins with the minute that lies an hour back, "lately" with the one
five minutes back, "today" at midnight UTC.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Iterable, Mapping, Sequence

from django.db import connections

from django_ojs import clock
from django_ojs.database import database
from django_ojs.models import CountDelta, QueueMinute
from django_ojs.statistics import counters
from django_ojs.statistics.counters import Counts, minute_of

#: How far back "lately" looks, beginning with a whole minute.
RECENT = dt.timedelta(minutes=5)
#: What is counted of the work done, and the columns of a difference that tell it: of the change to `active` only a
#: claim's counts, which is what makes it larger, and of that to `completed` only an ACK's.
MEASURES = ("started", "completed", "failed", "run_ms", "wait_ms")
OF_DELTA = ("active", *MEASURES[1:])

_DELTA, _MINUTE = CountDelta._meta.db_table, QueueMinute._meta.db_table


@dataclasses.dataclass(slots=True)
class Work:
    """Jobs started, completed and ended by a failure, and the sums of the times that they ran and waited."""

    started: int = 0
    completed: int = 0
    failed: int = 0
    run_ms: int = 0
    wait_ms: int = 0

    def add(self, other: Work) -> None:
        self.started += other.started
        self.completed += other.completed
        self.failed += other.failed
        self.run_ms += other.run_ms
        self.wait_ms += other.wait_ms

    @property
    def mean_run_ms(self) -> float | None:
        return self.run_ms / self.completed if self.completed else None

    @property
    def mean_wait_ms(self) -> float | None:
        return self.wait_ms / self.started if self.started else None


Minutes = dict[tuple[str, dt.datetime], Work]


def by_queue(since: dt.datetime, queues: Sequence[str] | None = None, *, using: str | None = None) -> Minutes:
    """The work of each queue, of these or of all, in each minute from that of `since`; minutes without any are left
    out."""
    using, since = database(using), minute_of(since)
    folded = QueueMinute.objects.using(using).filter(minute__gte=since)
    recent = CountDelta.objects.using(using).filter(at__gte=since)
    if queues is not None:
        folded, recent = folded.filter(queue__in=queues), recent.filter(queue__in=queues)
    rows = folded.values_list("queue", "minute", *MEASURES).union(
        recent.values_list("queue", "at", *OF_DELTA), all=True
    )
    found: Minutes = {}
    for queue, at, *numbers in rows:
        found.setdefault((queue, minute_of(at)), Work()).add(_work(numbers))
    return found


def since_each(instants: Sequence[dt.datetime], queue: str | None = None, *, using: str | None = None) -> list[Work]:
    """All the work from each of these instants on, of one queue or of all together, added up by the database."""
    using = database(using)
    adapt = connections[using].ops.adapt_datetimefield_value
    sums = ", ".join(f"sum(CASE WHEN at >= %s THEN {name} ELSE 0 END)" for _ in instants for name in MEASURES)
    bounds = [adapt(instant) for instant in instants for _ in MEASURES]
    of_queue, which = ("AND queue = %s", [queue]) if queue is not None else ("", [])
    oldest = [adapt(min(instants)), *which]
    with connections[using].cursor() as cursor:
        cursor.execute(
            f"SELECT {sums} FROM (SELECT minute AS at, {', '.join(MEASURES)} FROM {_MINUTE} "  # noqa: S608 - names of our own models
            f"WHERE minute >= %s {of_queue} UNION ALL SELECT at, CASE WHEN active > 0 THEN active ELSE 0 END, "
            f"CASE WHEN completed > 0 THEN completed ELSE 0 END, failed, run_ms, wait_ms FROM {_DELTA} "
            f"WHERE at >= %s {of_queue}) AS done",
            [*bounds, *oldest, *oldest],
        )
        numbers = [int(value or 0) for value in cursor.fetchone()]
    size = len(MEASURES)
    return [Work(*numbers[place : place + size]) for place in range(0, len(numbers), size)]


def _work(numbers: Iterable[int]) -> Work:
    return Work(*(max(int(number), 0) for number in numbers))


# Of one queue, and of the installation (L4-STATS-001, jobs 4.4)


@dataclasses.dataclass(slots=True)
class Throughput:
    """Jobs ended; `failed` means ended by a failure. Averages, of the last hour, in milliseconds; what is counted by
    the second is the mean of the last whole minute and the one that has begun."""

    completed_last_hour: int
    failed_last_hour: int
    completed_today: int
    failed_today: int
    avg_duration_ms: float
    avg_wait_ms: float
    completed_per_second: float
    failed_per_second: float


@dataclasses.dataclass(slots=True)
class Stats:
    """Everything there is to say about one queue at `computed_at`."""

    counts: Counts
    throughput: Throughput
    computed_at: dt.datetime


def stats(queue: str, *, using: str | None = None) -> Stats:
    """The statistics of a queue; zeros for one that was never seen."""
    using = database(using)
    now = clock.now(using)
    return Stats(counters.count(queue, using=using), throughput(now, queue, using=using), now)


def throughput(now: dt.datetime, queue: str | None = None, *, using: str | None = None) -> Throughput:
    """What one queue, or all together, did in the last hour, today, and in the minute or two before `now`."""
    hour, today = minute_of(now - dt.timedelta(hours=1)), now.replace(hour=0, minute=0, second=0, microsecond=0)
    begin = minute_of(now - dt.timedelta(minutes=1))
    hourly, daily, last = since_each([hour, today, begin], queue, using=using)
    seconds = max((now - begin).total_seconds(), 1.0)
    return Throughput(
        completed_last_hour=hourly.completed, failed_last_hour=hourly.failed,
        completed_today=daily.completed, failed_today=daily.failed,
        avg_duration_ms=round(hourly.mean_run_ms or 0, 3), avg_wait_ms=round(hourly.mean_wait_ms or 0, 3),
        completed_per_second=round(last.completed / seconds, 3), failed_per_second=round(last.failed / seconds, 3),
    )  # fmt: skip


# Rates (admin 1.2, 1.6)


@dataclasses.dataclass(slots=True)
class Rate:
    """What was done per minute lately; `wait_ms_per_minute` is what the started jobs had waited together."""

    processed_per_minute: float = 0.0
    failed_per_minute: float = 0.0
    completed_per_minute: float = 0.0
    started_per_minute: float = 0.0
    wait_ms_per_minute: float = 0.0

    @property
    def mean_wait_ms(self) -> float | None:
        return self.wait_ms_per_minute / self.started_per_minute if self.started_per_minute else None


def rates(queues: Sequence[str] | None = None, *, using: str | None = None) -> dict[str, Rate]:
    """By queue, for those of these or of all that did anything in the last five minutes and this one."""
    using = database(using)
    now = clock.now(using)
    return rates_of(by_queue(lately(now), queues, using=using), now)


def rates_of(work: Mapping[tuple[str, dt.datetime], Work], now: dt.datetime) -> dict[str, Rate]:
    """`rates`, of work that has been read already and may reach back further."""
    done: dict[str, Work] = {}
    for (queue, minute), one in work.items():
        if minute >= lately(now):
            done.setdefault(queue, Work()).add(one)
    return {queue: _rate(one, minutes_lately(now)) for queue, one in done.items()}


def total(found: Iterable[Rate]) -> Rate:
    """All queues together."""
    rows = list(found)
    return Rate(*(round(sum(getattr(row, field.name) for row in rows), 2) for field in dataclasses.fields(Rate)))


def lately(now: dt.datetime) -> dt.datetime:
    """Where "lately" begins."""
    return minute_of(now - RECENT)


def minutes_lately(now: dt.datetime) -> float:
    """How long "lately" is: five to six minutes."""
    return (now - lately(now)) / dt.timedelta(minutes=1)


def _rate(done: Work, minutes: float) -> Rate:
    numbers = (done.completed + done.failed, done.failed, done.completed, done.started, done.wait_ms)
    return Rate(*(round(number / minutes, 2) for number in numbers))
