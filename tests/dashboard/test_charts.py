"""Charts are readable whatever the numbers, say what they show, and are markup only where we say so."""

from __future__ import annotations

import datetime as dt
import re
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

import django_ojs
from django_ojs.admin import charts, overtime
from django_ojs.admin.charts import Chart, Series, scale

SVG = "{http://www.w3.org/2000/svg}"


def chart(*values: float | None, label: str = "completed") -> Chart:
    at = [f"10:{minute:02}" for minute in range(len(values))]
    return Chart("c", "Jobs a minute", at, [Series(label, values, "good")])


def parsed(markup: str) -> ET.Element:
    return ET.fromstring(markup.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1))


@given(st.floats(min_value=0.001, max_value=1e9))
def test_the_axis_reaches_the_highest_value_in_few_round_steps(highest: float) -> None:
    top, ticks = scale(highest)
    assert highest <= top * 1.000001
    assert 1 <= len(ticks) - 1 <= 5
    assert ticks[0] == 0
    assert ticks[-1] == pytest.approx(top)


def test_counts_of_jobs_have_whole_ticks() -> None:
    for highest in range(1, 200):
        assert all(tick == int(tick) for tick in scale(highest)[1])


@pytest.mark.parametrize("stretch", overtime.RANGES.values(), ids=lambda stretch: stretch.name)
def test_columns_side_by_side_have_different_labels(stretch: overtime.Range) -> None:
    midnight = dt.datetime(2026, 1, 31, tzinfo=dt.UTC)
    assert len({(midnight + number * stretch.period).strftime(stretch.form) for number in range(4)}) == 4


def test_an_empty_chart_is_still_a_chart() -> None:
    for draw in (charts.bars, charts.lines):
        assert parsed(draw(chart())).tag == f"{SVG}svg"
        assert parsed(draw(chart(None, None))).tag == f"{SVG}svg"


def test_bars_are_as_high_as_their_values() -> None:
    drawn = parsed(charts.bars(chart(10, 5, 0)))
    heights = [float(bar.get("height", 0)) for bar in drawn.iter(f"{SVG}rect") if bar.get("class") == "ojs-fill-good"]
    assert len(heights) == 2  # nothing for nothing
    assert heights[0] == pytest.approx(2 * heights[1], abs=0.2)


def test_a_line_stops_where_there_is_no_value() -> None:
    (line,) = (path for path in parsed(charts.lines(chart(1, 2, None, 3))).iter(f"{SVG}path"))
    assert (line.get("d") or "").count("M") == 2


def test_everything_stays_inside() -> None:
    for draw in (charts.bars, charts.lines):
        for rect in parsed(draw(chart(*range(60)))).iter(f"{SVG}rect"):
            x, width = float(rect.get("x", 0)), float(rect.get("width", 0))
            assert 0 <= x <= x + width <= charts.WIDTH + 0.2


def test_a_chart_says_in_words_what_it_shows() -> None:
    drawn = parsed(charts.bars(chart(3, 12, 4)))
    assert drawn.get("role") == "img"
    assert drawn.find(f"{SVG}title") is not None
    description = drawn.find(f"{SVG}desc")
    assert description is not None
    assert description.text == "completed: at most 12 (10:01), 4 at 10:02"
    tips = [tip.text for rect in drawn.iter(f"{SVG}rect") for tip in rect.iter(f"{SVG}title")]
    assert tips == ["10:00\ncompleted: 3", "10:01\ncompleted: 12", "10:02\ncompleted: 4"]


def test_labels_are_text() -> None:
    assert "<script>" not in charts.bars(chart(1, label="<script>alert(1)</script>"))


def test_every_colour_of_a_line_and_of_a_legend_is_in_the_style_sheet() -> None:
    style = (Path(django_ojs.__file__).parent / "static/django_ojs/admin.css").read_text()
    source = (Path(django_ojs.__file__).parent / "admin/overtime.py").read_text()
    colours = set(re.findall(r', "(good|bad|wait|run)"\)', source))
    assert colours == {"good", "bad", "wait", "run"}
    for colour in colours:
        assert f".ojs-line-{colour}" in style
        assert f".ojs-fill-{colour}" in style
