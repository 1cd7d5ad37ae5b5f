"""From the figures of all viewers to what one of them sees: charts drawn, times in words. No query here."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Sequence
from typing import Any

from django.utils import timezone
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from django_ojs.admin import charts, display
from django_ojs.admin.charts import Chart, Series
from django_ojs.admin.figures import PERCENTILES, Figures
from django_ojs.admin.operate import MAX_REASON
from django_ojs.models import CronSchedule, Worker
from django_ojs.operations import roster
from django_ojs.operations.series import Work

Points = Sequence[tuple[dt.datetime, Work]]


def overview(figures: Figures, may: dict[str, bool]) -> dict[str, Any]:
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
    state = roster.state_of(worker, now)
    heard = worker.last_heartbeat_at or worker.last_seen_at
    return {
        "id": worker.pk,
        "name": display.shorten(worker.pk, 40),
        "state": display.label("silent" if state == "stale" else worker.directive or state),
        "heard": _since(heard, now),
        "active": worker.active_jobs,
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
