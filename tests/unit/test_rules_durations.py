"""Durations, instants and relative times."""

from __future__ import annotations

import datetime as dt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_ojs.rules import durations
from django_ojs.rules.durations import (
    MAX_MS,
    format_instant,
    format_iso,
    parse_duration_ms,
    parse_instant,
    resolve_relative,
)

UTC = dt.UTC
NOW = dt.datetime(2026, 1, 15, 12, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    "text, ms",
    [
        ("PT1S", 1_000),
        ("PT0.5S", 500),
        ("PT0S", 0),
        ("PT0.0001S", 1),
        ("PT5M", 300_000),
        ("PT1H30M", 5_400_000),
        ("P1D", 86_400_000),
        ("P2W", 14 * 86_400_000),
        ("P1M", 30 * 86_400_000),
        ("P1Y", 365 * 86_400_000),
        ("P1Y2M3W4DT5H6M7.8S", (365 + 60 + 21 + 4) * 86_400_000 + 5 * 3_600_000 + 6 * 60_000 + 7_800),
        ("P1000Y", MAX_MS),
        ("P" + "9" * 90 + "Y", MAX_MS),
        ("1s", 1_000),
        ("500ms", 500),
        ("1.5h", 5_400_000),
        ("1h30m", 5_400_000),
        ("2d", 172_800_000),
        ("5m", 300_000),
        ("999999d", MAX_MS),
    ],
)
def test_durations_are_read(text: str, ms: int) -> None:
    assert parse_duration_ms(text) == ms


@pytest.mark.parametrize(
    "value",
    [
        "",
        "P",
        "PT",
        "P1",
        "1",
        "PT1S\n",
        "1s\n",
        " 1s",
        "-PT1S",
        "+PT1S",
        "pt1s",
        "P1DT",
        "PT1.5M",
        "P1S",
        "1w",
        "1 s",
        "1S",
        "s",
        "1..5s",
        "１s",
        "PT１S",
        "1s" * 60,
        1,
        1.5,
        0,
        True,
        None,
        [],
        {},
    ],
)
def test_everything_else_is_no_duration(value: object) -> None:
    with pytest.raises(ValueError, match="must be a duration"):
        parse_duration_ms(value)


@pytest.mark.parametrize(
    "ms, text",
    [
        (0, "PT0S"),
        (1, "PT0.001S"),
        (1_000, "PT1S"),
        (90_500, "PT1M30.5S"),
        (300_000, "PT5M"),
        (86_400_000, "P1D"),
        (90_000_000, "P1DT1H"),
        (10_000, "PT10S"),
    ],
)
def test_durations_are_written(ms: int, text: str) -> None:
    assert format_iso(ms) == text


def test_a_negative_duration_is_refused() -> None:
    with pytest.raises(ValueError, match="negative"):
        format_iso(-1)


@given(st.integers(0, MAX_MS))
def test_written_durations_are_read_alike(ms: int) -> None:
    assert parse_duration_ms(format_iso(ms)) == ms


@given(st.text(alphabet="PTYMWDHS0123456789.smhd", max_size=20))
def test_a_duration_is_read_or_refused(text: str) -> None:
    try:
        assert 0 <= parse_duration_ms(text) <= MAX_MS
    except ValueError as error:
        assert "must be a duration" in str(error)  # noqa: PT017 - either outcome is right


@pytest.mark.parametrize(
    "text, instant",
    [
        ("2026-03-15T09:30:00Z", dt.datetime(2026, 3, 15, 9, 30, tzinfo=UTC)),
        ("2026-03-15t09:30:00z", dt.datetime(2026, 3, 15, 9, 30, tzinfo=UTC)),
        ("2026-03-15T09:30:00+02:00", dt.datetime(2026, 3, 15, 7, 30, tzinfo=UTC)),
        ("2026-03-15T09:30:00-05:30", dt.datetime(2026, 3, 15, 15, 0, tzinfo=UTC)),
        ("2026-03-15T09:30:00-00:00", dt.datetime(2026, 3, 15, 9, 30, tzinfo=UTC)),
        ("2026-03-15T09:30:00.1Z", dt.datetime(2026, 3, 15, 9, 30, 0, 100_000, tzinfo=UTC)),
        ("2026-03-15T09:30:00.123456789Z", dt.datetime(2026, 3, 15, 9, 30, 0, 123_456, tzinfo=UTC)),
        ("1000-01-02T00:00:00Z", dt.datetime(1000, 1, 2, tzinfo=UTC)),
        ("2016-12-31T23:59:60Z", dt.datetime(2017, 1, 1, tzinfo=UTC)),
        ("2012-07-01T01:59:60.5+02:00", dt.datetime(2012, 7, 1, 0, 0, 0, 500_000, tzinfo=UTC)),
    ],
)
def test_instants_are_read(text: str, instant: dt.datetime) -> None:
    assert parse_instant(text) == instant
    assert parse_instant(text).tzinfo is UTC


@pytest.mark.parametrize(
    "text",
    [
        "2026-03-15T09:30:00",
        "2026-03-15",
        "2026-03-15T09:30Z",
        "2026-03-15 09:30:00Z",
        "2026-03-15T09:30:00Z\n",
        "",
        "2026-02-30T00:00:00Z",
        "2026-01-01T24:00:00Z",
        "2026-01-01T23:59:60Z",
        "2016-12-31T22:59:60Z",
        "2016-12-31T23:59:60+01:00",
        "2016-12-31T23:59:61Z",
        "2016-06-31T23:59:60Z",
        "0001-01-01T00:00:60+01:00",
        "0000-01-01T00:00:00Z",
        "2026-01-01T00:00:00+24:00",
        "2026-01-01T00:00:00+01:60",
        "0001-01-01T00:00:00+00:01",
        "0001-01-01T00:00:00Z",
        "1000-01-01T23:59:59Z",
        "9999-12-31T00:00:00Z",
        "+PT5S",
        "9999-12-31T23:59:59-00:01",
        "２026-01-01T00:00:00Z",
        "2026-01-01T00:00:00+0100",
        "2026-13-01T00:00:00Z",
        None,
        1,
        True,
    ],
)
def test_what_is_no_instant_is_refused(text: object) -> None:
    with pytest.raises(ValueError, match=r"RFC 3339|real instant"):
        parse_instant(text)


@pytest.mark.parametrize(
    "text, instant",
    [
        ("2026-03-15T09:30:00+02:00", dt.datetime(2026, 3, 15, 7, 30, tzinfo=UTC)),
        ("9999-12-31T23:59:59.999Z", durations.LATEST),
        ("9999-12-31T23:59:59-23:59", durations.LATEST),
        ("0001-01-01T00:00:00Z", durations.EARLIEST),
        ("0001-01-01T00:00:00+23:59", durations.EARLIEST),
        ("9999-12-31T23:59:60Z", durations.LATEST),
    ],
)
def test_an_instant_that_no_database_keeps_counts_as_the_nearest(text: str, instant: dt.datetime) -> None:
    assert durations.nearest_instant(text) == instant
    with pytest.raises(ValueError, match="real instant"):
        durations.nearest_instant("2026-02-30T00:00:00Z")


@given(st.text(alphabet="0123456789-:.TZ+", max_size=30))
def test_no_text_breaks_the_instant_parser(text: str) -> None:
    try:
        parse_instant(text)
    except ValueError as error:
        assert "RFC 3339" in str(error) or "real instant" in str(error)  # noqa: PT017 - either outcome is right


@given(st.datetimes(min_value=dt.datetime(1000, 1, 4), max_value=dt.datetime(9999, 12, 28), timezones=st.timezones()))  # noqa: DTZ001
def test_written_instants_are_read_alike(instant: dt.datetime) -> None:
    text = format_instant(instant)
    assert text.endswith("Z")
    assert dt.timedelta(0) <= instant.astimezone(UTC) - parse_instant(text) < dt.timedelta(milliseconds=1)


def test_instants_are_written_in_utc_with_milliseconds() -> None:
    assert format_instant(dt.datetime(2026, 2, 12, 10, 30, 0, 1_999, tzinfo=UTC)) == "2026-02-12T10:30:00.001Z"
    elsewhere = dt.datetime(2026, 2, 12, 10, 30, tzinfo=dt.timezone(dt.timedelta(hours=2)))
    assert format_instant(elsewhere) == "2026-02-12T08:30:00.000Z"


def test_a_naive_datetime_is_no_instant() -> None:
    with pytest.raises(ValueError, match="time zone"):
        format_instant(dt.datetime(2026, 1, 1))  # noqa: DTZ001


@pytest.mark.parametrize("text, seconds", [("+PT5S", 5), ("+5s", 5), ("+P1D", 86_400)])
def test_relative_times_count_from_now(text: str, seconds: int) -> None:
    assert resolve_relative(text, NOW) == NOW + dt.timedelta(seconds=seconds)


def test_what_has_no_plus_is_not_relative() -> None:
    assert resolve_relative("2026-03-15T09:30:00Z", NOW) is None
    assert resolve_relative("PT5S", NOW) is None


@pytest.mark.parametrize("text", ["+", "+5", "+-PT5S", "++PT5S"])
def test_a_malformed_relative_time_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="must be a duration"):
        resolve_relative(text, NOW)


def test_a_relative_time_beyond_the_calendar_is_refused() -> None:
    with pytest.raises(ValueError, match="9999"):
        resolve_relative("+P100Y", dt.datetime(9990, 1, 1, tzinfo=UTC))
