"""Cron expressions and zones: what is accepted, what is refused and with what advice."""

from __future__ import annotations

import datetime as dt

import pytest

from django_ojs.rules import cron
from django_ojs.rules.cron import InvalidExpression

UTC = dt.UTC
START = dt.datetime(2026, 1, 15, 12, tzinfo=UTC)  # a Thursday


def following(expression: str, count: int = 3, zone: str = "UTC", start: dt.datetime = START) -> list[str]:
    schedule, at, found = cron.parse_expression(expression, zone), start, []
    for _ in range(count):
        at = schedule.next_after(at, start).at
        found.append(at.strftime("%m-%d %H:%M:%S"))
    return found


@pytest.mark.parametrize(
    "expression,expected",
    [
        ("*/5 * * * *", ["01-15 12:05:00", "01-15 12:10:00", "01-15 12:15:00"]),
        ("5/20 * * * *", ["01-15 12:05:00", "01-15 12:25:00", "01-15 12:45:00"]),
        ("*/20 * * * * *", ["01-15 12:00:20", "01-15 12:00:40", "01-15 12:01:00"]),
        ("30 0 9 * * *", ["01-16 09:00:30", "01-17 09:00:30", "01-18 09:00:30"]),
        (" 0\t9  * jan-MAR fri ", ["01-16 09:00:00", "01-23 09:00:00", "01-30 09:00:00"]),
        ("0 0 * * 0", ["01-18 00:00:00", "01-25 00:00:00", "02-01 00:00:00"]),
        ("0 0 * * 7", ["01-18 00:00:00", "01-25 00:00:00", "02-01 00:00:00"]),
        ("0 0 * * SAT-SUN", ["01-17 00:00:00", "01-18 00:00:00", "01-24 00:00:00"]),
        ("0 0 31 * *", ["01-31 00:00:00", "03-31 00:00:00", "05-31 00:00:00"]),
        ("0 0 L * *", ["01-31 00:00:00", "02-28 00:00:00", "03-31 00:00:00"]),
        ("0 0 15W * *", ["02-16 00:00:00", "03-16 00:00:00", "04-15 00:00:00"]),
        ("0 0 31W * *", ["01-30 00:00:00", "02-27 00:00:00", "03-31 00:00:00"]),
        ("0 0 * * 5L", ["01-30 00:00:00", "02-27 00:00:00", "03-27 00:00:00"]),
        ("0 0 * * FRIL", ["01-30 00:00:00", "02-27 00:00:00", "03-27 00:00:00"]),
        ("0 0 * * 5#3", ["01-16 00:00:00", "02-20 00:00:00", "03-20 00:00:00"]),
        ("0 0 * * mon#1", ["02-02 00:00:00", "03-02 00:00:00", "04-06 00:00:00"]),
        ("0 0 1 * 1", ["01-19 00:00:00", "01-26 00:00:00", "02-01 00:00:00"]),
        ("0 0 15W * 1", ["01-19 00:00:00", "01-26 00:00:00", "02-02 00:00:00"]),
        ("0 0 30 2 1", ["02-02 00:00:00", "02-09 00:00:00", "02-16 00:00:00"]),
        ("@yearly", ["01-01 00:00:00"] * 3),
        ("@annually", ["01-01 00:00:00"] * 3),
        ("@monthly", ["02-01 00:00:00", "03-01 00:00:00", "04-01 00:00:00"]),
        ("@weekly", ["01-18 00:00:00", "01-25 00:00:00", "02-01 00:00:00"]),
        ("@daily", ["01-16 00:00:00", "01-17 00:00:00", "01-18 00:00:00"]),
        ("@midnight", ["01-16 00:00:00", "01-17 00:00:00", "01-18 00:00:00"]),
        ("@Hourly", ["01-15 13:00:00", "01-15 14:00:00", "01-15 15:00:00"]),
        ("@every 90m", ["01-15 13:30:00", "01-15 15:00:00", "01-15 16:30:00"]),
        ("@every 1h30m", ["01-15 13:30:00", "01-15 15:00:00", "01-15 16:30:00"]),
        ("@every PT90M", ["01-15 13:30:00", "01-15 15:00:00", "01-15 16:30:00"]),
        ("@every 500ms", ["01-15 12:00:01", "01-15 12:00:02", "01-15 12:00:03"]),
    ],
)
def test_when_it_fires(expression: str, expected: list[str]) -> None:
    assert following(expression) == expected


def test_29_february_is_waited_for() -> None:
    assert cron.parse_expression("0 0 29 2 *").next_after(START).at == dt.datetime(2028, 2, 29, tzinfo=UTC)


@pytest.mark.parametrize(
    "expression,complaint",
    [
        ("", "must be a cron expression"),
        (None, "must be a cron expression"),
        (5, "must be a cron expression"),
        ("* * * *", "must have 5 fields"),
        ("not a valid cron", "must have 5 fields .* not 4"),
        ("0 0 0 0 0 0 0", "must have 5 fields .* not 7"),
        ("CRON_TZ=UTC 0 0 * * *", "not understood"),
        ("60 * * * *", "minute '60', which must be 0 to 59"),
        ("* 24 * * *", "hour '24'"),
        ("* * 0 * *", "day of month '0'"),
        ("* * 32 * *", "day of month '32'"),
        ("* * * 13 *", "month '13', which must be 1 to 12 or JAN to DEC"),
        ("* * * * 8", "day of week '8'"),
        ("60 * * * * *", "second '60'"),
        ("99 25 32 13 8", "minute '99'"),
        ("99999999999999999999999 * * * *", "minute"),
        ("*/0 * * * *", "step 0"),
        ("*/90 * * * *", "@every 90m"),
        ("*/99999999999999999999 * * * *", "step"),
        ("30-10 * * * *", "runs backwards; write 30-59,0-10"),
        ("* 22-6 * * *", "runs backwards; write 22-23,0-6"),
        ("1,,2 * * * *", "not understood"),
        ("1- * * * *", "not understood"),
        ("-1 * * * *", "not understood"),
        ("1-2-3 * * * *", "not understood"),
        ("*/2/3 * * * *", "not understood"),
        ("+1 * * * *", "not understood"),
        ("1.5 * * * *", "not understood"),
        ("R * * * *", "must be 0 to 59"),
        ("H * * * *", "must be 0 to 59"),
        ("L * * * *", "must be 0 to 59"),
        ("? * * * *", "not understood"),
        ("* * * foo *", "month 'FOO'"),
        ("* * * * mond", "day of week 'MOND'"),
        ("* * 1-5W * *", "day of month"),
        ("* * 15W,L * *", "W takes no list"),
        ("* * 32W * *", "day of month '32'"),
        ("* * * * 1#6", "first to fifth"),
        ("* * * * 1#0", "first to fifth"),
        ("* * * * 8L", "day of week"),
        ("* * * * 5L,1", "register two schedules"),
        ("0 0 30 2 *", "never comes"),
        ("0 0 31 4,6,9,11 *", "never comes"),
        ("@reboot", "has no such shortcut"),
        ("@daily 5", "has no such shortcut"),
        ("@every", "needs one duration"),
        ("@every soon", "needs one duration"),
        ("@every 30", "needs one duration"),
        ("@every 1h 30m", "needs one duration"),
        ("@every 0s", "above zero"),
        ("١ * * * *", "ASCII"),
        ("* " * 200, "at most 255 characters"),
        ("* * * * *\x00", "day of week"),
    ],
)
def test_what_is_refused(expression: object, complaint: str) -> None:
    with pytest.raises(InvalidExpression, match=complaint):
        cron.parse_expression(expression)


def test_a_period_keeps_to_its_grid_however_late_it_is_asked() -> None:
    schedule = cron.parse_expression("@every 10m")
    assert schedule.next_after(START + dt.timedelta(hours=5, seconds=1), START).at == START + dt.timedelta(
        hours=5, minutes=10
    )
    assert schedule.next_after(START, START + dt.timedelta(hours=1)).at == START + dt.timedelta(hours=1, minutes=10)


@pytest.mark.parametrize(
    "zone,expected",
    [("Asia/Tokyo", "01-16 00:00:00"), ("America/New_York", "01-15 14:00:00"), ("Asia/Kolkata", "01-16 03:30:00")],
)
def test_wall_time_is_that_of_the_zone(zone: str, expected: str) -> None:
    assert following("0 9 * * *", 1, zone) == [expected]


def test_the_table_of_traps() -> None:
    """What the library gets wrong by itself, in New York."""
    zone = "America/New_York"
    march, november = dt.datetime(2026, 3, 8, 5, tzinfo=UTC), dt.datetime(2026, 11, 1, 4, tzinfo=UTC)
    assert following("30 2 * * *", 1, zone, march) == ["03-09 06:30:00"]
    assert following("30 1 * * *", 2, zone, november) == ["11-01 05:30:00", "11-02 06:30:00"]
    assert following("*/30 * * * *", 5, zone, november) == [
        "11-01 04:30:00", "11-01 05:00:00", "11-01 05:30:00", "11-01 07:00:00", "11-01 07:30:00",
    ]  # fmt: skip


def test_a_day_that_a_zone_skipped_is_lost_and_told() -> None:
    occurrence = cron.parse_expression("0 12 * * *", "Pacific/Apia").next_after(
        dt.datetime(2011, 12, 29, 23, tzinfo=UTC)
    )
    assert occurrence.at == dt.datetime(2011, 12, 30, 22, tzinfo=UTC)
    wall = dt.datetime(2011, 12, 30, 12)  # noqa: DTZ001
    assert occurrence.lost == cron.LostOccurrence(dt.datetime(2011, 12, 30, 10, tzinfo=UTC), wall)
    assert occurrence.wake_at == dt.datetime(2011, 12, 30, 10, tzinfo=UTC)


def test_every_second_of_a_changing_hour_is_found_without_stepping_through_it() -> None:
    schedule = cron.parse_expression("* * * * * *", "America/New_York")
    assert schedule.next_after(dt.datetime(2026, 11, 1, 6, 0, 0, 1, UTC)).at == dt.datetime(2026, 11, 1, 7, tzinfo=UTC)
    assert schedule.next_after(dt.datetime(2026, 3, 8, 6, 59, 59, tzinfo=UTC)).at == dt.datetime(
        2026, 3, 8, 7, tzinfo=UTC
    )


@pytest.mark.parametrize(
    "name",
    [
        *("UTC", "Etc/UTC", "Europe/Paris", "America/Argentina/Buenos_Aires", "US/Eastern"),
        *("Etc/GMT", "Etc/Zulu", "Etc/UCT", "Etc/Universal", "Etc/Greenwich"),
        *("Japan", "Cuba", "GB", "GB-Eire", "NZ-CHAT", "W-SU"),
    ],
)
def test_zones_that_are_accepted(name: str) -> None:
    assert cron.check_zone(name) == name
    assert str(cron.load_zone(name)) == name


@pytest.mark.parametrize(
    "name",
    [
        *("EST", "EST5EDT", "PST8PDT", "CET", "MST", "GMT", "Zulu", "UCT", "Etc/GMT+5", "Etc/GMT-14", "Etc/GMT0"),
        *("+05:00", "-08", "UTC+5", "UTC-05:00", "GMT+1", "HST", "Greenwich", "localtime", "posixrules", "Factory"),
        *("posix/Europe/Paris", "right/Europe/Paris", "europe/paris", "Mars/Phobos", "Europe/", "/etc/localtime"),
        *("../../etc/passwd", "America/../Europe/Paris", "", " UTC", "Europe/Paris\n", None, 5, ["UTC"]),
    ],
)
def test_zones_that_are_refused(name: object) -> None:
    with pytest.raises(ValueError, match="must be UTC or an IANA name"):
        cron.check_zone(name)


def test_nothing_is_advised_in_place_of_an_offset() -> None:
    for name in ("Etc/GMT+5", "UTC+5", "GMT+1", "+05:00"):
        with pytest.raises(ValueError, match="such as Europe/Paris"):
            cron.check_zone(name)


@pytest.mark.parametrize(
    "name,meant",
    [("EST", "America/New_York"), ("europe/paris", "Europe/Paris"), ("Europe/Pari", "Europe/Paris"), ("utc", "UTC")],
)
def test_a_zone_that_was_meant_is_named(name: str, meant: str) -> None:
    with pytest.raises(ValueError, match=f"perhaps {meant} is meant"):
        cron.check_zone(name)


# Both days. Vixie's cron marks a field that begins with `*`, whatever follows, and asks for both days where one is
# marked, else for either (`DOM_STAR`, `DOW_STAR`).

DAYS_OF_MONTH = {"*": range(1, 32), "*/2": range(1, 32, 2), "*/10,5": (1, 5, 11, 21, 31), "*,15": range(1, 32),
                 "15,*": range(1, 32), "1-31": range(1, 32), "1-31/2": range(1, 32, 2), "13": (13,)}  # fmt: skip
DAYS_OF_WEEK = {"*": range(7), "*/2": (0, 2, 4, 6), "*/3,1": (0, 1, 3, 6), "1": (1,), "MON-FRI": range(1, 6),
                "0-6": range(7), "1,*": range(7)}  # fmt: skip


@pytest.mark.parametrize("month", DAYS_OF_MONTH)
@pytest.mark.parametrize("week", DAYS_OF_WEEK)
def test_two_days_mean_what_they_mean_in_vixies_cron(month: str, week: str) -> None:
    together = "*" in (month[0], week[0])
    expected = []
    for number in range(200):
        day = dt.date(2026, 1, 1) + dt.timedelta(days=number)
        fits = (day.day in DAYS_OF_MONTH[month], day.isoweekday() % 7 in DAYS_OF_WEEK[week])
        if all(fits) if together else any(fits):
            expected.append(day)
    schedule = cron.parse_expression(f"30 4 {month} * {week}")
    found, instant = [], dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    for _ in expected:
        instant = schedule.next_after(instant).at
        found.append(instant.date())
    assert found == expected


@pytest.mark.parametrize(
    "expression,first",
    [
        ("0 0 */2 * 1", ["2026-01-05", "2026-01-19", "2026-02-09"]),  # odd Mondays
        ("0 0 1-31/2 * 1", ["2026-01-01", "2026-01-03", "2026-01-05"]),  # odd days, and Mondays
        ("0 0 */2 * 5#3", ["2026-04-17", "2026-05-15", "2026-06-19"]),
        ("0 0 15W * */2", ["2026-01-15", "2026-09-15", "2026-10-15"]),
        ("0 0 L * */2", ["2026-01-31", "2026-02-28", "2026-03-31"]),
    ],
)
def test_a_field_that_begins_with_a_star_is_open(expression: str, first: list[str]) -> None:
    schedule, instant = cron.parse_expression(expression), dt.datetime(2025, 12, 31, 12, tzinfo=dt.UTC)
    found = []
    for _ in first:
        instant = schedule.next_after(instant).at
        found.append(str(instant.date()))
    assert found == first
