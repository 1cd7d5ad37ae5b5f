"""The overview: its page, its figures, computed once for all viewers, and what one of them sees of these.

The figures are read from counters, fronts of indexes and a bounded number of rows; never by a scan.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Sequence
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.urls import URLPattern
from django.utils.http import urlencode
from django.utils.translation import gettext as _

from django_ojs import clock, doctor
from django_ojs.admin import attention, charts, display, live, maintenance, overtime
from django_ojs.admin.base import unless_large
from django_ojs.admin.live import LiveSitePages
from django_ojs.admin.operate import OperatingAdmin
from django_ojs.admin.overtime import RANGES, Past, Range
from django_ojs.models import CronSchedule, Job, Queue, Worker
from django_ojs.queues.configuration import MAX_REASON
from django_ojs.rules import redaction
from django_ojs.states import WAITING, State
from django_ojs.statistics import counters, failures, jobtypes, latency, percentiles, throughput
from django_ojs.statistics.capacity import NO_FLOW, QueueFlow
from django_ojs.statistics.failures import Failing
from django_ojs.statistics.jobtypes import Outcomes
from django_ojs.statistics.summary import Shared
from django_ojs.statistics.throughput import Rate
from django_ojs.workerregistry import directory

#: Rows that the page has of each kind.
QUEUES, WORKERS, TYPES, SCHEDULES = 30, 50, 8, 6
#: What needs attention: so many findings stand there, so many more are folded.
FINDINGS, FOLDED = 12, 100
PERCENTILES = (50, 95, 99)
#: How far back the figures of job types are added up: there is a row for each type and minute.
TYPES_BACK = dt.timedelta(days=1)
#: Parts of a stretch of time for which a trend has a number.
TREND = 24


class Overview(LiveSitePages):
    """Adds the page to the admin of jobs, so that every admin site with the jobs has it, under its own name."""

    def get_urls(self) -> list[URLPattern]:
        return [
            self.route("overview/", self.overview_page, "overview"),
            self.route("overview/live/", self.overview_live, "overview_live"),
            *super().get_urls(),
        ]

    def overview_page(self, request: HttpRequest) -> HttpResponse:
        shown = self._page_context(request)
        address = f"{self.url('overview_live')}?{urlencode({'range': shown['range'].name})}"
        shown["follow"] = live.follow(request, address, live.OVERVIEW, age=live.FRESH)
        shown["maintenance"] = maintenance.address(request)
        return self.live_page(request, "overview", _("Overview"), shown)

    def overview_live(self, request: HttpRequest) -> HttpResponse:
        return self.live_part(request, "overview", self._page_context(request))

    def _page_context(self, request: HttpRequest) -> dict[str, Any]:
        chosen = overtime.chosen(request.GET.get("range", ""))
        figures = current.get()
        hidden = attention.hidden(request)
        visible = [one for one in figures.attention if one.id not in hidden]
        found = [
            {
                **attention.finding_context(one),
                "address": attention.address(one.id, one.about, one.figures, self, request),
            }
            for one in visible[: FINDINGS + FOLDED]
        ]
        return {
            **context(figures, stretches[chosen.name].get(), chosen, self._may(request)),
            "attention": found[:FINDINGS],
            "folded": found[FINDINGS:],
            "more_findings": len(visible) - FINDINGS,
            "unlisted": len(visible) - len(found),
        }

    def _may(self, request: HttpRequest) -> dict[str, bool]:
        """What of the page this user sees, and whether there are buttons; nothing that this site does not have."""
        rights: list[tuple[str, Any]] = [("view", Queue), ("change", Queue), ("view", Worker), ("view", CronSchedule)]
        return {
            (right := f"{verb}_{model._meta.model_name}"): self.admin_site.is_registered(model)
            and (verb == "view" or isinstance(self.admin_site.get_model_admin(model), OperatingAdmin))
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
    """One queue: jobs waiting and running, since when its front waits, jobs completed a minute, how it fills and
    empties."""

    name: str
    status: str
    waiting: int
    active: int
    oldest: dt.datetime | None
    rate: float
    flow: QueueFlow


@dataclasses.dataclass(slots=True)
class Figures:
    """Everything on the page at `at`, for all viewers."""

    at: dt.datetime
    states: dict[str, int]
    dead: int
    latency: Latency
    attention: list[doctor.Finding]
    queues: list[QueueLine]
    more_queues: int
    workers: list[Worker]
    failing: list[Failing]
    schedules: list[CronSchedule]


def compute(using: str) -> Figures:
    site = doctor.Site(using, patient=False)
    now, counted = site.now, site.counted
    states = counters.totals(counted.values())
    found = _queues(site)
    rates = throughput.rates_of(site.work, now)
    return Figures(
        at=now,
        states=states,
        dead=sum(one.dead for one in counted.values()),
        latency=_times(now, using),
        attention=doctor.attention(site),
        queues=[_line(name, site, rates.get(name)) for name in found[:QUEUES]],
        more_queues=len(found) - len(found[:QUEUES]),
        workers=list(
            directory.with_held(Worker.objects.using(using)).defer("labels").order_by("-last_seen_at")[: WORKERS + 1]
        ),
        failing=_failing(now, using, states[State.RETRYABLE]),
        schedules=list(CronSchedule.objects.using(using).filter(wake_at__isnull=False).order_by("wake_at")[:SCHEDULES]),
    )


current = Shared(compute, live.FRESH)


def _queues(site: doctor.Site) -> list[str]:
    """The queues with a row or with jobs, those that are paused or have most jobs first."""
    counted, status = site.counted, site.status
    names = [name for name in status.keys() | counted.keys() if name in status or counted[name].depth]
    names.sort(key=lambda name: (-counted[name].depth if name in counted else 0, name))
    names.sort(key=lambda name: status.get(name) != "paused")
    return names


def _line(name: str, site: doctor.Site, rate: Rate | None) -> QueueLine:
    counts = site.counted.get(name)
    return QueueLine(
        name,
        site.status.get(name, "active"),
        waiting=sum(counts.states[state] for state in WAITING) if counts else 0,
        active=counts.states[State.ACTIVE] if counts else 0,
        oldest=site.fronts[name].oldest if name in site.fronts else None,
        rate=rate.completed_per_minute if rate else 0.0,
        flow=site.flows.get(name, NO_FLOW),
    )


@dataclasses.dataclass(slots=True)
class TypeLine:
    """One job type in a stretch of time, and its attempts in each of `TREND` parts of it."""

    type: str
    done: Outcomes
    trend: list[int]


@dataclasses.dataclass(slots=True)
class OverviewPeriod:
    """What was done in a stretch of time, and by which job types; `since` when these are known."""

    past: Past
    types: list[TypeLine]
    since: dt.datetime


def _stretch(chosen: Range) -> Shared[OverviewPeriod]:
    """What was done in a stretch of time, for all viewers."""

    def read(using: str) -> OverviewPeriod:
        now = clock.now(using)
        since = now - min(chosen.back, TYPES_BACK)
        done = jobtypes.since(since, using=using)
        most = sorted(done, key=lambda name: (-done[name].attempts, name))[:TYPES]
        trends = jobtypes.trends(most, since, now, TREND, using=using)
        return OverviewPeriod(
            overtime.past(chosen, using), [TypeLine(name, done[name], trends[name]) for name in most], since
        )  # fmt: skip

    return Shared(read, chosen.fresh)


stretches = {name: _stretch(chosen) for name, chosen in RANGES.items()}


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


def context(figures: Figures, stretch: OverviewPeriod, chosen: Range, may: dict[str, bool]) -> dict[str, Any]:
    """The context of the page. `may` holds rights: sections without theirs are left out."""
    return {
        "may": may,
        "range": chosen,
        "ranges": RANGES.values(),
        "at": display.when(figures.at),
        "states": [(state, f"{number:,}") for state, number in figures.states.items()],
        "dead": f"{figures.dead:,}",
        "charts": overtime.cards(stretch.past, chosen),
        "types": [_type(line, stretch, figures.at) for line in stretch.types],
        "types_since": display.when(stretch.since),
        "latency": _latency(figures),
        "queues": [
            {"line": line, "oldest": _since(line.oldest, figures.at), "rate": f"{line.rate:,.4g}",
             "enqueued": display.NOTHING if line.flow.enqueued is None else f"{line.flow.enqueued:,.4g}",
             "empty_in": display.empty_in(line.flow),
             "label": display.colour_label(line.status, "" if line.status == "paused" else "good")}
            for line in figures.queues
        ] if may["view_queue"] else None,
        "more_queues": figures.more_queues,
        "max_reason": MAX_REASON,
        "workers": [_worker(one, figures.at) for one in figures.workers[:WORKERS]] if may["view_worker"] else None,
        "more_workers": len(figures.workers) > WORKERS,
        "failing": [(one, *display.brief(one.error)) for one in figures.failing],
        "schedules": [_schedule(one, figures.at) for one in figures.schedules] if may["view_cronschedule"] else None,
    }  # fmt: skip


def _latency(figures: Figures) -> dict[str, Any] | None:
    """A row for waiting and one for running; None where nothing was completed lately."""
    found = figures.latency
    if not found.jobs:
        return None
    rows = [(_("wait"), found.wait), (_("run"), found.run)]
    return {
        "heads": [f"p{share}" for share in PERCENTILES],
        "rows": [(word, [overtime.duration(value) for value in values]) for word, values in rows],
        "jobs": found.jobs,
    }


def _type(line: TypeLine, stretch: OverviewPeriod, now: dt.datetime) -> dict[str, Any]:
    done, part = line.done, (now - stretch.since) / TREND
    marks = charts.marks(overtime.moments(stretch.past.releases), stretch.since, part)
    return {
        "name": line.type,
        "completed": f"{done.completed:,}",
        "failed": f"{done.failed:,}",
        "error_rate": f"{done.error_rate:.1%}",
        "run": display.NOTHING if done.mean_run_ms is None else overtime.duration(done.mean_run_ms),
        "trend": charts.spark(line.trend, marks, "run"),
    }


def _since(instant: dt.datetime | None, now: dt.datetime) -> str:
    return display.NOTHING if instant is None else display.duration(max(0, _seconds(now - instant)) * 1000)


def _seconds(period: dt.timedelta) -> int:
    return round(period.total_seconds())


def _worker(worker: Worker, now: dt.datetime) -> dict[str, Any]:
    state = directory.state_of(worker, now)
    return {
        "id": worker.pk,
        "name": display.ellipsized(worker.pk, 40),
        "state": display.colour_label("silent" if state == "stale" else worker.directive or state),
        "heard": _since(worker.heard_at, now),
        "active": worker.held,
        "concurrency": worker.concurrency,
        "memory": f"{worker.memory_mb:,.0f} MB" if worker.memory_mb is not None else display.NOTHING,
        "queues": display.ellipsized(", ".join(map(str, worker.queues or [])), 60) or display.NOTHING,
    }


def _schedule(schedule: CronSchedule, now: dt.datetime) -> dict[str, Any]:
    left = _seconds((schedule.next_run_at or now) - now)
    return {
        "name": schedule.name,
        "type": schedule.type,
        "at": display.when(schedule.next_run_at),
        "left": display.duration(left * 1000) if left > 0 else _("due"),
    }
