"""Cron against a clock that is simply watched: every second or minute of real time, through every kind of change
that a zone of the last and next years makes (L2-CRON-002, orchestration 2.3)."""

from __future__ import annotations

import datetime as dt
import os
import random
import zoneinfo
from collections.abc import Iterable, Iterator
from functools import lru_cache

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from django_ojs.rules import cron

UTC = dt.UTC
FROM, TO = dt.datetime(2020, 1, 1, tzinfo=UTC), dt.datetime(2030, 1, 1, tzinfo=UTC)
AROUND = dt.timedelta(days=3)
MINUTE = dt.timedelta(minutes=1)

Instants = list[dt.datetime]


def changes(zone: zoneinfo.ZoneInfo) -> Instants:
    """The instants at which the offset changes, to the minute."""
    found, day = [], FROM
    while day < TO:
        following = day + dt.timedelta(days=7)  # no zone changes its clock and back within a week
        if _offset(day, zone) != _offset(following, zone):
            low, high = day, following
            while high - low > MINUTE:
                middle = low + (high - low) // (2 * MINUTE) * MINUTE
                low, high = (middle, high) if _offset(middle, zone) == _offset(day, zone) else (low, middle)
            found.append(high)
        day = following
    return found


def _offset(instant: dt.datetime, zone: zoneinfo.ZoneInfo) -> dt.timedelta | None:
    return instant.astimezone(zone).utcoffset()


@lru_cache(maxsize=1)
def rules() -> dict[tuple[object, ...], str]:
    """One zone for each distinct list of changes; zones that never change are not among them."""
    found: dict[tuple[object, ...], str] = {}
    for name in sorted(cron.zone_names()):
        zone = zoneinfo.ZoneInfo(name)
        if moments := changes(zone):
            found.setdefault((_offset(FROM, zone), *((at, _offset(at, zone)) for at in moments)), name)
    return found


# A second reading of the fields: sets of numbers, and a day that is asked whether it fits.


def _set(text: str, low: int, high: int) -> set[int]:
    found: set[int] = set()
    for item in text.split(","):
        span, _, step = item.partition("/")
        first, last = (low, high) if span == "*" else ([*map(int, span.split("-"))] * 2)[:2]
        if step and span.isdecimal():
            last = high
        found |= set(range(first, last + 1, int(step or 1)))
    return found


def _fits_weekday(day: dt.date, text: str) -> bool:
    weekday = day.isoweekday() % 7
    for item in text.split(","):
        if "#" in item:
            wanted, nth = map(int, item.split("#"))
            if weekday == wanted % 7 and (day.day + 6) // 7 == nth:
                return True
        elif item.endswith("L"):
            if weekday == int(item[:-1]) % 7 and (day + dt.timedelta(days=7)).month != day.month:
                return True
        elif weekday in {number % 7 for number in _set(item, 0, 7)}:
            return True
    return False


def _fits_day(day: dt.date, text: str) -> bool:
    last = (day.replace(day=28) + dt.timedelta(days=4)).replace(day=1) - dt.timedelta(days=1)
    if text.endswith("W"):
        wanted = day.replace(day=min(int(text[:-1]), last.day))
        near = sorted(
            (abs((other - wanted).days), other)
            for other in (wanted + dt.timedelta(days=n) for n in range(-3, 4))
            if other.month == day.month and other.isoweekday() < 6
        )
        return near[0][1] == day
    return any(day == last if item == "L" else day.day in _set(item, 1, 31) for item in text.split(","))


class Watch:
    """The minutes around a change of a zone's clock: what the clock shows, and when it first does."""

    def __init__(self, zone: str, moment: dt.datetime, around: dt.timedelta = AROUND) -> None:
        self.start, self.end = moment - around, moment + around
        clock = zoneinfo.ZoneInfo(zone)
        self.minutes: dict[dt.datetime, dt.datetime] = {}  # wall time: instant
        at = self.start - dt.timedelta(hours=26)
        while (at := at + MINUTE) <= self.end:
            self.minutes.setdefault(at.astimezone(clock).replace(tzinfo=None), at)

    def due(self, expression: str) -> Instants:
        """The instants behind `start` whose wall time fits the expression."""
        minute, hour, day, month, weekday = expression.split()
        minutes, hours, months = _set(minute, 0, 59), _set(hour, 0, 23), _set(month, 1, 12)
        days: dict[dt.date, bool] = {}
        together = "*" in (day[0], weekday[0])
        for date in {wall.date() for wall in self.minutes}:
            fits = _fits_day(date, day), _fits_weekday(date, weekday)
            days[date] = date.month in months and (all(fits) if together else any(fits))
        return sorted(
            at
            for wall, at in self.minutes.items()
            if wall.second == 0 and wall.minute in minutes and wall.hour in hours and days[wall.date()]
            if at > self.start
        )


def fired(expression: str, zone: str, start: dt.datetime, end: dt.datetime) -> Instants:
    schedule = cron.parse_expression(expression, zone)
    found: Instants = []
    at = start
    while (at := schedule.next_after(at).at) <= end:
        found.append(at)
    return found


def near(moment: dt.datetime, zone: zoneinfo.ZoneInfo) -> Iterator[str]:
    """Expressions that meet the wall times right at a change, and some that only pass by."""
    before, after = ((moment + n * MINUTE).astimezone(zone) for n in (-1, 0))
    for wall in (before, after):
        yield f"{wall.minute} {wall.hour} * * *"
        yield f"{(wall.minute + 30) % 60} {wall.hour} * * *"
        yield f"*/7 {wall.hour} {wall.day} {wall.month} *"
    middle = before.replace(tzinfo=None) + (after.replace(tzinfo=None) - before.replace(tzinfo=None)) / 2
    yield f"{middle.minute} {middle.hour} * * *"
    yield "*/30 * * * *"
    yield "0 */3 * * 0,6"


def compare(zone: str, moment: dt.datetime, expressions: Iterable[str], around: dt.timedelta = AROUND) -> None:
    watch = Watch(zone, moment, around)
    for expression in expressions:
        due = watch.due(expression)
        assert fired(expression, zone, watch.start, watch.end) == due, (expression, zone, moment)
        schedule = cron.parse_expression(expression, zone)
        for minutes in range(-150, 151, 10):  # asked at any time, also while the clock shows an hour again
            asked = moment + dt.timedelta(minutes=minutes, seconds=7, microseconds=1)
            following = next((at for at in due if at > asked), None)
            if following is not None:
                assert schedule.next_after(asked).at == following, (expression, zone, asked)


def test_there_are_rules_to_test() -> None:
    names = set(rules().values())
    assert len(names) > 40
    assert names & {"Australia/LHI", "Australia/Lord_Howe"}, "half an hour of daylight saving"
    assert any(name.startswith("Africa/") for name in names), "Ramadan"


def test_a_sample_of_the_changes() -> None:
    """A change of some rules; which ones, the seed of the run decides (pytest-randomly)."""
    for name in random.sample(list(rules().values()), 5):
        zone = zoneinfo.ZoneInfo(name)
        moment = random.choice(changes(zone))
        compare(name, moment, near(moment, zone))


@pytest.mark.wide
@pytest.mark.skipif(os.environ.get("OJS_TEST_FULL") != "1", reason="seven minutes of computing: set OJS_TEST_FULL=1")
@pytest.mark.parametrize("part", range(8))
def test_every_change_of_every_rule_in_ten_years(part: int) -> None:
    for name in list(rules().values())[part::8]:
        zone = zoneinfo.ZoneInfo(name)
        for moment in changes(zone):
            compare(name, moment, near(moment, zone))


_minutes = st.sampled_from(["*", "0", "59", "*/7", "5-55/10", "1,2,30", "15/20"])
_hours = st.sampled_from(["*", "0", "23", "*/5", "9-17", "1,2,3"])
_days = st.sampled_from(["*", "1", "31", "L", "15W", "1W", "31W", "1,L", "*/2", "10-20/3", "28-31"])
_months = st.sampled_from(["*", "2", "1-6", "3,11", "*/4"])
_weekdays = st.sampled_from(["*", "0", "7", "1-5", "5-7", "5L", "1#1", "5#3,2#5", "0L,3#2", "*/2", "0,6"])
_zones = st.sampled_from(["UTC", "America/New_York", "Australia/Lord_Howe", "Asia/Kolkata", "Africa/Casablanca"])
_moments = st.integers(0, int((TO - FROM).total_seconds() * 10**6)).map(lambda n: FROM + dt.timedelta(microseconds=n))


@given(_minutes, _hours, _days, _months, _weekdays, _zones, _moments)
@settings(max_examples=25)
def test_any_expression_anywhere(
    minute: str, hour: str, day: str, month: str, weekday: str, zone: str, moment: dt.datetime
) -> None:
    # The 31st of February never comes, and is refused as such (test_rules_cron.py).
    assume(not (day in ("31", "31W") and month == "2"))
    expression = f"{minute} {hour} {day} {month} {weekday}"
    compare(zone, moment.replace(second=0, microsecond=0), [expression], around=dt.timedelta(hours=20))


@given(_zones, _moments)
@settings(max_examples=100)
def test_the_next_one_is_later_and_none_lies_between(zone: str, moment: dt.datetime) -> None:
    """From any instant, with its seconds and microseconds, also in the middle of a repeated hour."""
    schedule = cron.parse_expression("*/10 * * * *", zone)
    following = schedule.next_after(moment).at
    assert following > moment
    assert schedule.next_after(following - dt.timedelta(microseconds=1)).at == following
    assert following.tzinfo is UTC
