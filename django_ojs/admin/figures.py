"""What the overview shows, read from counters, fronts of indexes and a bounded number of rows; never by a scan."""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from django.db.models import QuerySet

from django_ojs import clock
from django_ojs.admin.base import unless_large
from django_ojs.admin.shared import Shared
from django_ojs.models import CronSchedule, Job, Queue, Worker
from django_ojs.models.queue import TEMPLATE
from django_ojs.operations import counts, roster, series
from django_ojs.operations.heads import Head, heads
from django_ojs.operations.series import Work
from django_ojs.policies import redaction
from django_ojs.states import WAITING, State

#: Rows that the page has of each kind.
QUEUES, WORKERS, TYPES, SCHEDULES = 30, 50, 8, 6
#: Ended jobs that percentiles and failing types are made from: the latest, of the last hour and day.
SAMPLE, FAILURES = 1000, 500
#: How old the figures may be, in seconds; the day changes slowly and is most of the rows.
FRESH, DAY_FRESH = 2.0, 60.0
#: Minutes that a queue's rate is the mean of, and minutes in a bar of the day's chart.
RATE_MINUTES, DAY_STEP = 5, 20
PERCENTILES = (50, 95, 99)


@dataclasses.dataclass(slots=True)
class Latency:
    """Percentiles in milliseconds, in the order of `PERCENTILES`, of so many jobs."""

    wait: list[float]
    run: list[float]
    jobs: int


@dataclasses.dataclass(slots=True)
class QueueLine:
    """One queue: jobs waiting and running, since when its front waits, jobs completed a minute."""

    name: str
    status: str
    waiting: int
    active: int
    oldest: dt.datetime | None
    rate: float


@dataclasses.dataclass(slots=True)
class Failing:
    """A job type whose jobs fail: dead letters lately, jobs that wait for another attempt, the last error."""

    type: str
    dead: int = 0
    retrying: int = 0
    error: dict[str, Any] | None = None


@dataclasses.dataclass(slots=True)
class Figures:
    """Everything on the page at `at`, for all viewers."""

    at: dt.datetime
    states: dict[str, int]
    dead: int
    hour: list[tuple[dt.datetime, Work]]
    day: list[tuple[dt.datetime, Work]]
    latency: Latency
    queues: list[QueueLine]
    more_queues: int
    workers: list[Worker]
    failing: list[Failing]
    unserved: list[tuple[str, int]]
    schedules: list[CronSchedule]


def compute(using: str) -> Figures:
    now = clock.now(using)
    counted = counts.count_all(using=using)
    work = series.by_queue(now - dt.timedelta(hours=1), using=using)
    found, rows = _queues(counted, using)
    names = found[:QUEUES]
    fronts = heads(names, now, using=using)
    return Figures(
        at=now,
        states={state: sum(one.states[state] for one in counted.values()) for state in map(str, State)},
        dead=sum(one.dead for one in counted.values()),
        hour=_hour(work, now),
        day=_day(now),
        latency=latency(now, using),
        queues=[_line(name, rows, counted, fronts, work, now) for name in names],
        more_queues=len(found) - len(names),
        workers=list(Worker.objects.using(using).defer("labels").order_by("-last_seen_at")[:WORKERS]),
        failing=failing(now, using, sum(one.states[State.RETRYABLE] for one in counted.values())),
        unserved=_unserved(fronts.values(), using),
        schedules=list(CronSchedule.objects.using(using).filter(wake_at__isnull=False).order_by("wake_at")[:SCHEDULES]),
    )


current = Shared(compute, FRESH)


# Queues


def _queues(counted: Mapping[str, counts.Counts], using: str) -> tuple[list[str], dict[str, str]]:
    """The queues with a row or with jobs, those that need attention first, and the status of each that has a row."""
    known = Queue.objects.using(using).exclude(pk=TEMPLATE).only("name", "paused", "draining")
    rows = {queue.name: queue.status for queue in known}
    names = [name for name in rows.keys() | counted.keys() if name in rows or counted[name].depth]
    names.sort(key=lambda name: (-counted[name].depth if name in counted else 0, name))
    names.sort(key=lambda name: rows.get(name) != "paused")
    return names, rows


def _line(
    name: str, rows: Mapping[str, str], counted: Mapping[str, counts.Counts], fronts: Mapping[str, Head],
    work: Mapping[tuple[str, dt.datetime], Work], now: dt.datetime,
) -> QueueLine:  # fmt: skip
    states = counted[name].states if name in counted else dict.fromkeys(map(str, State), 0)
    minutes = [counts.minute_of(now) - dt.timedelta(minutes=back) for back in range(1, RATE_MINUTES + 1)]
    done = sum(work[name, minute].completed for minute in minutes if (name, minute) in work)
    waiting = sum(states[state] for state in WAITING)
    return QueueLine(
        name, rows.get(name, "active"), waiting, states[State.ACTIVE], fronts[name].oldest, done / RATE_MINUTES
    )


def _unserved(fronts: Iterable[Head], using: str) -> list[tuple[str, int]]:
    """Types at the front of queues that no live worker serves, with the jobs seen there."""
    waiting: Counter[str] = Counter()
    for front in fronts:
        waiting += front.types
    served = roster.served_types(using) if waiting else None
    return [] if served is None else [(name, n) for name, n in waiting.most_common() if name not in served][:TYPES]


# Over time


def _hour(work: Mapping[tuple[str, dt.datetime], Work], now: dt.datetime) -> list[tuple[dt.datetime, Work]]:
    """The last sixty minutes, this one included."""
    first = counts.minute_of(now) - dt.timedelta(minutes=59)
    found = {first + dt.timedelta(minutes=minute): Work() for minute in range(60)}
    for (_, minute), done in work.items():
        if minute in found:
            found[minute].add(done)
    return list(found.items())


def _day(now: dt.datetime) -> list[tuple[dt.datetime, Work]]:
    """The last 24 hours in steps, up to the last minute that has been folded."""
    folded = _day_minutes.get()
    step = dt.timedelta(minutes=DAY_STEP)
    first = now.replace(minute=now.minute // DAY_STEP * DAY_STEP, second=0, microsecond=0) - step * (1440 // DAY_STEP)
    found = {first + step * number: Work() for number in range(1440 // DAY_STEP + 1)}
    for minute, done in folded.items():
        start = minute.replace(minute=minute.minute // DAY_STEP * DAY_STEP)
        if start in found:
            found[start].add(done)
    return list(found.items())


def _read_day(using: str) -> dict[dt.datetime, Work]:
    now = clock.now(using)
    return series.by_minute(now - dt.timedelta(days=1, minutes=DAY_STEP), now, using=using)


_day_minutes = Shared(_read_day, DAY_FRESH)


def latency(now: dt.datetime, using: str) -> Latency:
    """How long the latest completed jobs waited for their last start, and ran."""
    rows = _ended(State.COMPLETED, now - dt.timedelta(hours=1), using).filter(started_at__isnull=False)
    times: list[Any] = list(rows.values_list("enqueued_at", "started_at", "finished_at")[:SAMPLE])
    waits = sorted(_ms(started - enqueued) for enqueued, started, _ in times if enqueued is not None)
    runs = sorted(_ms(finished - started) for _, started, finished in times)
    return Latency(percentiles(waits), percentiles(runs), len(times))


def _ms(period: dt.timedelta) -> float:
    return max(period / dt.timedelta(milliseconds=1), 0.0)


def percentiles(values: Sequence[float]) -> list[float]:
    """The nearest ranks of `PERCENTILES` in sorted values; empty without any."""
    return [values[-(-len(values) * share // 100) - 1] for share in PERCENTILES] if values else []


# Failures


def failing(now: dt.datetime, using: str, retryable: int) -> list[Failing]:
    """The types with the most failures among the latest dead letters and the next retries."""
    found: dict[str, Failing] = {}
    newest: dict[str, Any] = {}
    ended = _ended(State.DISCARDED, now - dt.timedelta(days=1), using)
    for pk, job_type in ended.values_list("pk", "type")[:FAILURES]:
        found.setdefault(job_type, Failing(job_type)).dead += 1
        newest.setdefault(job_type, pk)
    for pk, job_type in _next_retries(using) if retryable else ():
        found.setdefault(job_type, Failing(job_type)).retrying += 1
        newest.setdefault(job_type, pk)
    worst = sorted(found.values(), key=lambda one: (-one.dead, -one.retrying, one.type))[:TYPES]
    errors = last_errors([newest[one.type] for one in worst], using)
    for one in worst:
        one.error = errors.get(newest[one.type])
    return worst


def last_errors(pks: Sequence[Any], using: str) -> dict[Any, dict[str, Any]]:
    """The latest error of these jobs as it may be shown; of none whose history is too large to be read for a list."""
    if not pks:
        return {}
    jobs = Job.objects.using(using).filter(pk__in=pks).order_by().annotate(history=unless_large("errors"))
    found = jobs.values_list("pk", "type", "history")
    return {pk: redaction.error(job_type, history[-1]) for pk, job_type, history in found if history}


def _ended(state: State, since: dt.datetime, using: str) -> QuerySet[Job]:
    """Jobs that ended in a state, newest first, as the index has them."""
    return Job.objects.using(using).filter(state=state, finished_at__gt=since).order_by("-finished_at")


def _next_retries(using: str) -> list[tuple[Any, str]]:
    """Retryable jobs among those that time will change next: a bounded piece of that index."""
    next_up = Job.objects.using(using).filter(wake_at__isnull=False).order_by("wake_at")
    rows = next_up.values_list("pk", "type", "state")[:FAILURES]
    return [(pk, job_type) for pk, job_type, state in rows if state == State.RETRYABLE]
