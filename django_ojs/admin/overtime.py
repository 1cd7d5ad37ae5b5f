"""What was done over time, as charts for the overview and for the pages of a queue and of a worker."""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from django.utils import timezone
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from django_ojs import clock
from django_ojs.admin import charts, display, live
from django_ojs.admin.charts import Chart, Series
from django_ojs.models import Release, Worker
from django_ojs.statistics import history, workerminutes
from django_ojs.statistics.counters import minute_of
from django_ojs.statistics.history import Point
from django_ojs.workerregistry import releases


@dataclasses.dataclass(frozen=True, slots=True)
class Range:
    """A stretch of time that the charts show: how far back, in periods of which length. A label stands below every
    `every` periods, in this form of `strftime`. The figures may be so many seconds old."""

    name: str
    text: Any
    back: dt.timedelta
    period: dt.timedelta
    every: int
    form: str = "%H:%M"
    fresh: float = live.FRESH


#: What a viewer may choose, by the parameter `range`. Long ones have most of the rows, and change slowly.
RANGES = {
    one.name: one
    for one in (
        Range("15m", gettext_lazy("15 minutes"), dt.timedelta(minutes=15), dt.timedelta(minutes=1), 5),
        Range("1h", gettext_lazy("1 hour"), dt.timedelta(hours=1), dt.timedelta(minutes=1), 15),
        Range("6h", gettext_lazy("6 hours"), dt.timedelta(hours=6), dt.timedelta(minutes=5), 12, fresh=15.0),
        Range("24h", gettext_lazy("24 hours"), dt.timedelta(hours=24), dt.timedelta(minutes=20), 18, fresh=60.0),
        Range("7d", gettext_lazy("7 days"), dt.timedelta(days=7), dt.timedelta(hours=3), 8, "%m-%d %H:%M", fresh=60.0),
        Range(
            "30d", gettext_lazy("30 days"), dt.timedelta(days=30), dt.timedelta(hours=12), 10, "%m-%d %H:%M", fresh=60.0
        ),
    )
}
DEFAULT_RANGE = RANGES["1h"]
#: What the page of a worker shows.
LATELY = Range("3h", gettext_lazy("3 hours"), dt.timedelta(hours=3), dt.timedelta(minutes=1), 30)
#: The values of a column, one for each series.
Values = Sequence[float | None]
#: Releases that a chart marks: the newest.
MARKED = 5


@dataclasses.dataclass(frozen=True, slots=True)
class Past:
    """A stretch of time: what was done in each of its periods, and the releases that came in it."""

    points: list[Point]
    releases: list[Release]


class Card(NamedTuple):
    """A chart as the templates show it; `legend` has the name and the colour of each series."""

    title: str
    drawing: SafeString
    legend: list[tuple[str, str]]


def chosen(name: str) -> Range:
    """The stretch of this name; the usual one if there is none."""
    return RANGES.get(name, DEFAULT_RANGE)


def past(stretch: Range, using: str, queue: str = "") -> Past:
    """What was done, in one queue or in all."""
    now = clock.now(using)
    points = history.history(stretch.period, now - stretch.back, now, queue, using=using)
    return Past(points, _marked(points[0].time, now, using) if points else [])


def cards(found: Past, stretch: Range) -> list[Card]:
    """The charts of what was done."""
    ended = [(_("completed"), "good"), (_("failed for good"), "bad")]
    came = [(_("enqueued"), "wait"), (_("ended"), "good")]
    waits = [("p50", "run"), ("p95", "wait"), ("p99", "bad")]
    runs = [(_("mean run"), "run")]
    busy = [(_("jobs"), "run")]
    length = stretch.period / dt.timedelta(milliseconds=1)

    def card(
        name: str, title: str, legend: list[tuple[str, str]], values: Callable[[Point], Values],
        unit: Callable[[float], str] = number, *, drawn: Callable[[Chart], SafeString] = charts.lines,
    ) -> Card:  # fmt: skip
        columns = [values(point) for point in found.points]
        times = [point.time for point in found.points]
        return Card(title, drawn(chart(name, title, times, legend, columns, stretch, found.releases, unit)), legend)

    return [
        card("jobs", _("Jobs ended"), ended, lambda one: (one.completed, one.failed), drawn=charts.bars),
        card("flow", _("Jobs enqueued and ended"), came, lambda one: (one.enqueued, one.completed + one.failed)),
        card("wait", _("How long jobs waited"), waits, lambda one: one.percentiles(0.5, 0.95, 0.99), duration),
        card("run", _("How long jobs ran"), runs, lambda one: (one.mean_run_ms,), duration),
        card("busy", _("Jobs that ran at the same time"), busy, lambda one: (one.run_ms / length,), mean),
    ]


def worker_cards(worker: Worker, using: str) -> list[Card]:
    """The charts of what a worker said in the last hours: its jobs and slots, and its memory where it says that."""
    stretch, now = LATELY, clock.now(using)
    begin = minute_of(now - stretch.back)
    times = [begin + stretch.period * place for place in range(int(stretch.back / stretch.period) + 1)]
    said = workerminutes.since(worker.pk, begin, using=using)
    found = _marked(begin, now, using)
    rows = [said.get(time) for time in times]
    load = [(_("active jobs"), "run"), (_("slots"), "wait")]
    memory = [(_("memory"), "run")]
    busy: list[Values] = [(row.active_jobs, row.concurrency) if row else (None, None) for row in rows]
    size: list[Values] = [(row.memory_mb if row else None,) for row in rows]
    drawn = [("load", _("Jobs and slots"), load, busy, number), ("memory", _("Memory"), memory, size, megabytes)]
    return [
        Card(title, charts.lines(chart(name, title, times, legend, columns, stretch, found, unit)), legend)
        for name, title, legend, columns, unit in drawn
        if any(value is not None for column in columns for value in column)
    ]


def _marked(begin: dt.datetime, end: dt.datetime, using: str) -> list[Release]:
    """The releases that a chart of this time marks."""
    return releases.between(begin, end, using=using)[-MARKED:]


def chart(
    name: str, title: str, times: Sequence[dt.datetime], legend: Sequence[tuple[str, str]],
    columns: Sequence[Values], stretch: Range, found: Sequence[Release],
    unit: Callable[[float], str],
) -> Chart:  # fmt: skip
    """A chart with a column of values for each of these times, one value for each entry of the legend."""
    rows = list(zip(*columns, strict=True)) or [()] * len(legend)
    series = [Series(label, row, colour) for (label, colour), row in zip(legend, rows, strict=True)]
    at = [timezone.localtime(time).strftime(stretch.form) for time in times]
    shown = charts.marks(moments(found), times[0], stretch.period) if times else []
    return Chart(f"ojs-chart-{name}", title, at, series, stretch.every, unit, shown)


def moments(found: Sequence[Release]) -> list[tuple[dt.datetime, str]]:
    """When each release came, and what a chart says there."""
    text = _("release %(name)s")
    return [(one.first_seen_at, text % {"name": display.ellipsized(one.name, 20)}) for one in found]


def number(value: float) -> str:
    return f"{value:,.0f}"


def mean(value: float) -> str:
    return f"{value:,.3g}"


def megabytes(value: float) -> str:
    return f"{value:,.0f} MB"


def duration(value: float) -> str:
    return display.duration(round(value))
