"""The overview: its page, its figures, computed once for all viewers, and what one of them sees of these.

The figures are read from counters, fronts of indexes and a bounded number of rows; never by a scan.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.urls import URLPattern
from django.utils import timezone
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from django_ojs import clock
from django_ojs.admin import charts, display, live, maintenance
from django_ojs.admin.base import unless_large
from django_ojs.admin.charts import Chart, Series
from django_ojs.admin.live import LivePages
from django_ojs.admin.operate import MAX_REASON
from django_ojs.models import CronSchedule, Job, Queue, Worker
from django_ojs.models.queue import TEMPLATE
from django_ojs.rules import redaction
from django_ojs.states import WAITING, State
from django_ojs.statistics import counters, failures, latency, percentiles, throughput
from django_ojs.statistics.counters import Counts
from django_ojs.statistics.failures import Failing
from django_ojs.statistics.latency import Front
from django_ojs.statistics.summary import Shared
from django_ojs.statistics.throughput import Minutes, Rate, Work
from django_ojs.workers import directory

#: Rows that the page has of each kind.
QUEUES, WORKERS, TYPES, SCHEDULES = 30, 50, 8, 6
#: How old, in seconds, the figures of the day may be: they change slowly and are most of the rows.
DAY_FRESH = 60.0
#: Minutes in a bar of the day's chart.
DAY_STEP = 20
PERCENTILES = (50, 95, 99)

Points = Sequence[tuple[dt.datetime, Work]]


class Overview(LivePages):
    """Adds the page to the admin of jobs, so that every admin site with the jobs has it, under its own name."""

    def get_urls(self) -> list[URLPattern]:
        return [
            self.route("overview/", self.overview_page, "overview"),
            self.route("overview/live/", self.overview_live, "overview_live"),
            *super().get_urls(),
        ]

    def overview_page(self, request: HttpRequest) -> HttpResponse:
        shown = context(current.get(), self._may(request))
        shown["follow"] = live.follow(request, self.url("overview_live"), live.OVERVIEW, age=live.FRESH)
        shown["maintenance"] = maintenance.address(request)
        return self.live_page(request, "overview", _("Overview"), shown)

    def overview_live(self, request: HttpRequest) -> HttpResponse:
        return self.live_part(request, "overview", context(current.get(), self._may(request)))

    def _may(self, request: HttpRequest) -> dict[str, bool]:
        """What of the page this user sees, and whether there are buttons; nothing that this site does not have."""
        rights = [("view", Queue), ("change", Queue), ("view", Worker), ("view", CronSchedule)]
        return {
            (right := f"{verb}_{model._meta.model_name}"): self.admin_site.is_registered(model)
            and request.user.has_perm(f"{self.opts.app_label}.{right}")
            for verb, model in rights
        }


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
class Figures:
    """Everything on the page at `at`, for all viewers."""

    at: dt.datetime
    states: dict[str, int]
    dead: int
    hour: Points
    day: Points
    latency: Latency
    queues: list[QueueLine]
    more_queues: int
    workers: list[Worker]
    failing: list[Failing]
    unserved: list[tuple[str, int]]
    unserved_queues: list[tuple[str, int]]
    schedules: list[CronSchedule]


def compute(using: str) -> Figures:
    now = clock.now(using)
    counted = counters.count_all(using=using)
    states = counters.totals(counted.values())
    work = throughput.by_queue(now - dt.timedelta(hours=1), using=using)
    found, status = _queues(counted, using)
    names = found[:QUEUES]
    fronts, rates = latency.fronts(names, now, using=using), throughput.rates_of(work, now)
    return Figures(
        at=now,
        states=states,
        dead=sum(one.dead for one in counted.values()),
        hour=_hour(work, now),
        day=_day(now),
        latency=_times(now, using),
        queues=[
            _line(name, status.get(name, "active"), counted.get(name), fronts[name].oldest, rates.get(name))
            for name in names
        ],
        more_queues=len(found) - len(names),
        workers=list(
            directory.with_held(Worker.objects.using(using)).defer("labels").order_by("-last_seen_at")[:WORKERS]
        ),
        failing=_failing(now, using, states[State.RETRYABLE]),
        unserved=_unserved(fronts.values(), using),
        unserved_queues=list(directory.unserved_queues(counted, using=using).items())[:QUEUES],
        schedules=list(CronSchedule.objects.using(using).filter(wake_at__isnull=False).order_by("wake_at")[:SCHEDULES]),
    )


current = Shared(compute, live.FRESH)


def _queues(counted: Mapping[str, Counts], using: str) -> tuple[list[str], dict[str, str]]:
    """The queues with a row or with jobs, those that need attention first, and the status of each that has a row."""
    known = Queue.objects.using(using).exclude(pk=TEMPLATE).only("name", "paused", "draining")
    rows = {queue.name: queue.status for queue in known}
    names = [name for name in rows.keys() | counted.keys() if name in rows or counted[name].depth]
    names.sort(key=lambda name: (-counted[name].depth if name in counted else 0, name))
    names.sort(key=lambda name: rows.get(name) != "paused")
    return names, rows


def _line(name: str, status: str, counts: Counts | None, oldest: dt.datetime | None, rate: Rate | None) -> QueueLine:
    waiting = sum(counts.states[state] for state in WAITING) if counts else 0
    active = counts.states[State.ACTIVE] if counts else 0
    return QueueLine(name, status, waiting, active, oldest, rate.completed_per_minute if rate else 0.0)


def _unserved(fronts: Iterable[Front], using: str) -> list[tuple[str, int]]:
    """Types at the front of queues that no live worker serves, with the jobs seen there."""
    waiting: Counter[str] = Counter()
    for front in fronts:
        waiting += front.types
    return list(directory.unserved_among(waiting, using).items())[:TYPES]


def _hour(work: Minutes, now: dt.datetime) -> Points:
    """The last sixty minutes, this one included."""
    first = counters.minute_of(now) - dt.timedelta(minutes=59)
    found = {first + dt.timedelta(minutes=minute): Work() for minute in range(60)}
    for (_queue, minute), done in work.items():
        if minute in found:
            found[minute].add(done)
    return list(found.items())


def _day(now: dt.datetime) -> Points:
    """The last 24 hours in steps, up to the last minute that has been folded."""
    step = dt.timedelta(minutes=DAY_STEP)
    first = now.replace(minute=now.minute // DAY_STEP * DAY_STEP, second=0, microsecond=0) - step * (1440 // DAY_STEP)
    found = {first + step * number: Work() for number in range(1440 // DAY_STEP + 1)}
    for minute, done in _day_minutes.get().items():
        start = minute.replace(minute=minute.minute // DAY_STEP * DAY_STEP)
        if start in found:
            found[start].add(done)
    return list(found.items())


def _read_day(using: str) -> dict[dt.datetime, Work]:
    now = clock.now(using)
    return throughput.by_minute(now - dt.timedelta(days=1, minutes=DAY_STEP), now, using=using)


_day_minutes = Shared(_read_day, DAY_FRESH)


def _times(now: dt.datetime, using: str) -> Latency:
    """How long the latest completed jobs waited for their last start, and ran."""
    times = list(latency.latest_completed(now - dt.timedelta(hours=1), using=using))
    shares = [share / 100 for share in PERCENTILES]
    waits = sorted(one.wait_ms for one in times if one.wait_ms is not None)
    runs = sorted(one.run_ms for one in times)
    return Latency(percentiles.of_values(waits, shares), percentiles.of_values(runs, shares), len(times))


def _failing(now: dt.datetime, using: str, retryable: int) -> list[Failing]:
    """The types that fail most, each with its last error."""
    worst = failures.failing(now, using, retryable)
    errors = last_errors([one.newest for one in worst], using)
    for one in worst:
        one.error = errors.get(one.newest)
    return worst


def last_errors(pks: Sequence[Any], using: str) -> dict[Any, dict[str, Any]]:
    """The latest error of these jobs as it may be shown; of none whose history is too large to be read for a list."""
    if not pks:
        return {}
    jobs = Job.objects.using(using).filter(pk__in=pks).order_by().annotate(history=unless_large("errors"))
    found = jobs.values_list("pk", "type", "history")
    return {pk: redaction.error(job_type, history[-1]) for pk, job_type, history in found if history}


# For one viewer


def context(figures: Figures, may: dict[str, bool]) -> dict[str, Any]:
    """The context of the page. `may` holds rights: sections without theirs are left out."""
    return {
        "may": may,
        "at": display.when(figures.at),
        "states": [(state, f"{number:,}") for state, number in figures.states.items()],
        "dead": f"{figures.dead:,}",
        "charts": _charts(figures),
        "latency": _latency(figures),
        "queues": [
            {"line": line, "oldest": _since(line.oldest, figures.at), "rate": f"{line.rate:,.4g}",
             "label": display.label(line.status, "" if line.status == "paused" else "good")}
            for line in figures.queues
        ] if may["view_queue"] else None,
        "more_queues": figures.more_queues,
        "max_reason": MAX_REASON,
        "workers": [_worker(worker, figures.at) for worker in figures.workers] if may["view_worker"] else None,
        "failing": [(one, *display.brief(one.error)) for one in figures.failing],
        "unserved": figures.unserved,
        "unserved_queues": figures.unserved_queues,
        "schedules": [_schedule(one, figures.at) for one in figures.schedules] if may["view_cronschedule"] else None,
    }  # fmt: skip


def _charts(figures: Figures) -> list[tuple[str, SafeString, list[tuple[str, str]]]]:
    """Heading, drawing and legend of each chart."""
    jobs = [(_("completed"), "good"), (_("failed for good"), "bad")]
    times = [(_("mean wait"), "wait"), (_("mean run"), "run")]
    hour = _chart("hour", _("Jobs a minute, last hour"), figures.hour, jobs, _ended, 15)
    day = _chart("day", _("Jobs in 20 minutes, last day"), figures.day, jobs, _ended, 18)
    mean = _chart("mean", _("Mean wait and run, last hour"), figures.hour, times, _means, 15, _duration)
    return [
        (hour.title, charts.bars(hour), jobs),
        (day.title, charts.bars(day), jobs),
        (mean.title, charts.lines(mean), times),
    ]


def _chart(
    name: str, title: str, points: Points, measures: Sequence[tuple[str, str]],
    values: Callable[[Work], tuple[float | None, ...]], every: int, unit: Callable[[float], str] | None = None,
) -> Chart:  # fmt: skip
    columns = list(zip(*(values(work) for _at, work in points), strict=True))
    series = [Series(label, column, colour) for (label, colour), column in zip(measures, columns, strict=True)]
    at = [timezone.localtime(at).strftime("%H:%M") for at, _work in points]
    return Chart(f"ojs-chart-{name}", title, at, series, every, unit or (lambda value: f"{value:,.0f}"))


def _ended(work: Work) -> tuple[float | None, ...]:
    return (work.completed, work.failed)


def _means(work: Work) -> tuple[float | None, ...]:
    return (work.mean_wait_ms, work.mean_run_ms)


def _duration(value: float) -> str:
    return display.duration(round(value))


def _latency(figures: Figures) -> dict[str, Any] | None:
    """A row for waiting and one for running; None where nothing was completed lately."""
    found = figures.latency
    if not found.jobs:
        return None
    rows = [(_("wait"), found.wait), (_("run"), found.run)]
    return {
        "heads": [f"p{share}" for share in PERCENTILES],
        "rows": [(word, [_duration(value) for value in values]) for word, values in rows],
        "jobs": found.jobs,
    }


def _since(instant: dt.datetime | None, now: dt.datetime) -> str:
    return display.NOTHING if instant is None else display.duration(max(0, _seconds(now - instant)) * 1000)


def _seconds(period: dt.timedelta) -> int:
    return round(period.total_seconds())


def _worker(worker: Worker, now: dt.datetime) -> dict[str, Any]:
    state = directory.state_of(worker, now)
    return {
        "id": worker.pk,
        "name": display.shorten(worker.pk, 40),
        "state": display.label("silent" if state == "stale" else worker.directive or state),
        "heard": _since(worker.heard_at, now),
        "active": worker.held,
        "concurrency": worker.concurrency,
        "memory": f"{worker.memory_mb:,.0f} MB" if worker.memory_mb is not None else display.NOTHING,
        "queues": display.shorten(", ".join(map(str, worker.queues or [])), 60) or display.NOTHING,
    }


def _schedule(schedule: CronSchedule, now: dt.datetime) -> dict[str, Any]:
    left = _seconds((schedule.next_run_at or now) - now)
    return {
        "name": schedule.name,
        "type": schedule.type,
        "at": display.when(schedule.next_run_at),
        "left": display.duration(left * 1000) if left > 0 else _("due"),
    }
