"""Charts as SVG, drawn on the server: pure functions from numbers to markup.

Colours are classes of the style sheet, so that a chart follows the admin's theme and needs no inline style.
Each column has a tooltip (`<title>`), each chart a title and a description for screen readers.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import math
from collections.abc import Callable, Iterable, Sequence

from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString, mark_safe
from django.utils.translation import gettext as _

WIDTH, HEIGHT = 480, 170
LEFT, RIGHT, TOP, BOTTOM = 56, 6, 10, 22
_INNER, _BASE = WIDTH - LEFT - RIGHT, HEIGHT - BOTTOM
_TICKS = 4
#: The height of a spark line.
SPARK = 20


@dataclasses.dataclass(frozen=True, slots=True)
class Series:
    """One measure: its values, None where there is none, and the class that colours it."""

    label: str
    values: Sequence[float | None]
    colour: str


@dataclasses.dataclass(frozen=True, slots=True)
class Chart:
    """What a chart is about; `at` labels each column, `unit` writes a value. `every`: columns between labels. `marks`:
    what happened where, as a number of columns from the left edge and a word."""

    name: str
    title: str
    at: Sequence[str]
    series: Sequence[Series]
    every: int = 10
    unit: Callable[[float], str] = lambda value: f"{value:,.0f}"
    marks: Sequence[tuple[float, str]] = ()


def bars(chart: Chart) -> SafeString:
    """Columns with the series on top of one another."""
    totals = [sum(value or 0 for value in column) for column in _columns(chart)]
    top, ticks = scale(max(totals, default=0))
    step = _INNER / max(len(chart.at), 1)
    marks = []
    for index, column in enumerate(_columns(chart)):
        below = float(_BASE)
        for series, value in zip(chart.series, column, strict=True):
            height = (value or 0) / top * (_BASE - TOP)
            if height:
                below -= height
                box = (_n(LEFT + index * step + step * 0.1), _n(below), _n(step * 0.8), _n(height))
                marks.append((f"ojs-fill-{series.colour}", *box))
    drawn = format_html_join("", '<rect class="{}" x="{}" y="{}" width="{}" height="{}"/>', marks)
    return _frame(chart, drawn, top, ticks)


def lines(chart: Chart) -> SafeString:
    """A line for each series; it stops where there is no value."""
    top, ticks = scale(max((v for series in chart.series for v in series.values if v is not None), default=0))
    step = _INNER / max(len(chart.at), 1)
    drawn = []
    for series in chart.series:
        path, pen = [], "M"
        for index, value in enumerate(series.values):
            if value is None:
                pen = "M"
                continue
            x, y = LEFT + (index + 0.5) * step, _BASE - value / top * (_BASE - TOP)
            path.append(f"{pen}{_n(x)} {_n(y)}h0.1" if pen == "M" else f"L{_n(x)} {_n(y)}")  # a dot if it stays alone
            pen = "L"
        drawn.append((f"ojs-line-{series.colour}", " ".join(path)))
    return _frame(chart, format_html_join("", '<path class="ojs-graph {}" d="{}"/>', drawn), top, ticks)


def marks(
    moments: Iterable[tuple[dt.datetime, str]], begin: dt.datetime, column: dt.timedelta
) -> list[tuple[float, str]]:
    """The marks of a chart that begins then and has columns of this length."""
    return [((at - begin) / column, text) for at, text in moments if at >= begin]


def spark(values: Sequence[int], marks: Sequence[tuple[float, str]] = (), colour: str = "bad") -> SafeString:
    """Small columns without axes, for a row of a table; the tooltip and screen readers have the latest and the most."""
    top, width = max(values, default=0) or 1, 4
    drawn = format_html_join(
        "", '<rect class="{}" x="{}" y="{}" width="{}" height="{}"/>',
        (
            (f"ojs-fill-{colour}", index * width, _n(SPARK * (1 - value / top)), width - 1, _n(SPARK * value / top))
            for index, value in enumerate(values) if value
        ),
    )  # fmt: skip
    drawn += format_html_join(
        "", '<line class="ojs-mark" x1="{0}" y1="0" x2="{0}" y2="{1}"/>', ((_n(x * width), SPARK) for x, _text in marks)
    )
    facts = {"most": f"{max(values, default=0):,}", "latest": f"{values[-1] if values else 0:,}"}
    text = "; ".join([_("at most %(most)s, now %(latest)s") % facts, *(text for _x, text in marks)])
    return format_html(
        '<svg class="ojs-spark" width="{0}" height="{1}" viewBox="0 0 {0} {1}" role="img" aria-label="{2}">'
        "<title>{2}</title>{3}</svg>",
        max(len(values) * width, 1), SPARK, text, drawn,
    )  # fmt: skip


def scale(highest: float) -> tuple[float, list[float]]:
    """A round top for an axis that has to reach `highest`, and the ticks below it, from 0."""
    if highest <= 0:
        return 1.0, [0.0, 1.0]
    raw = highest / _TICKS
    magnitude = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * magnitude for factor in (1, 2, 2.5, 5, 10) if factor * magnitude >= raw * 0.999999)
    if highest >= 1:
        step = max(step, 1.0) if step < 1 or step == int(step) else float(math.ceil(step))
    count = math.ceil(highest / step - 1e-9)
    return step * count, [step * number for number in range(count + 1)]


def _columns(chart: Chart) -> list[tuple[float | None, ...]]:
    return list(zip(*(series.values for series in chart.series), strict=True))


def _frame(chart: Chart, drawn: SafeString, top: float, ticks: Sequence[float]) -> SafeString:
    return format_html(
        '<svg class="ojs-chart" viewBox="0 0 {} {}" role="img" aria-labelledby="{}-t {}-d">'
        '<title id="{}-t">{}</title><desc id="{}-d">{}</desc>{}{}{}{}{}</svg>',
        WIDTH, HEIGHT, *(chart.name,) * 3, chart.title, chart.name, describe(chart), _rules(chart, top, ticks), drawn,
        _times(chart), _tips(chart), _marks(chart),
    )  # fmt: skip


def describe(chart: Chart) -> str:
    """The highest and the latest value of each series, in words."""
    sentences = []
    for series in chart.series:
        known = [(value, at) for value, at in zip(series.values, chart.at, strict=True) if value is not None]
        if known:
            highest, at = max(known, key=lambda one: one[0])
            facts = {
                "series": series.label,
                "highest": chart.unit(highest),
                "at": at,
                "latest": chart.unit(known[-1][0]),
            }
            text = _("%(series)s: at most %(highest)s (%(at)s), %(latest)s at %(end)s")
            sentences.append(text % (facts | {"end": known[-1][1]}))
    return "; ".join([*sentences, *(text for _x, text in chart.marks)])


def _marks(chart: Chart) -> SafeString:
    """A line from top to bottom with its word above the chart, on the side that has room."""
    step, rows = _INNER / max(len(chart.at), 1), []
    for place, text in chart.marks:
        x = LEFT + place * step
        left = x > LEFT + _INNER / 2
        rows.append((_n(x), TOP - 8, _BASE, text, _n(x - 3 if left else x + 3), "end" if left else "start", TOP - 2))
    drawn = (
        '<g class="ojs-mark"><title>{3}</title><line x1="{0}" y1="{1}" x2="{0}" y2="{2}"/>'
        '<text x="{4}" y="{6}" text-anchor="{5}">{3}</text></g>'
    )
    return format_html_join("", drawn, rows)


def _rules(chart: Chart, top: float, ticks: Sequence[float]) -> SafeString:
    rows = []
    for tick in ticks:
        y = _n(_BASE - tick / top * (_BASE - TOP))
        rows.append((LEFT, y, WIDTH - RIGHT, y, LEFT - 6, y, chart.unit(tick)))
    text = (
        '<line class="ojs-rule" x1="{}" y1="{}" x2="{}" y2="{}"/>'
        '<text class="ojs-tick" x="{}" y="{}" dy="0.32em" text-anchor="end">{}</text>'
    )
    return format_html_join("", text, rows)


def _times(chart: Chart) -> SafeString:
    step = _INNER / max(len(chart.at), 1)
    last = len(chart.at) - 1
    shown = [index for index in range(last + 1) if (last - index) % chart.every == 0 and index * step > 12]
    rows = []
    for index in shown:
        x, anchor = LEFT + (index + 0.5) * step, "middle"
        if index == last:
            x, anchor = float(WIDTH - RIGHT), "end"
        rows.append((_n(x), HEIGHT - 6, anchor, chart.at[index]))
    return format_html_join("", '<text class="ojs-tick" x="{}" y="{}" text-anchor="{}">{}</text>', rows)


def _tips(chart: Chart) -> SafeString:
    """An invisible rectangle over each column that has a value, as high as the chart, with the tooltip."""
    step = _INNER / max(len(chart.at), 1)
    rows = []
    for index, column in enumerate(_columns(chart)):
        lines = [f"{s.label}: {chart.unit(v)}" for s, v in zip(chart.series, column, strict=True) if v is not None]
        if any(column):
            rows.append(
                (_n(LEFT + index * step), TOP, _n(step), _BASE - TOP, f"{chart.at[index]}\n" + "\n".join(lines))
            )
    text = '<rect class="ojs-tip" x="{}" y="{}" width="{}" height="{}"><title>{}</title></rect>'
    return format_html_join("", text, rows) or mark_safe("")


def _n(value: float) -> str:
    """A coordinate with at most one decimal."""
    return f"{value:.1f}".removesuffix(".0")
