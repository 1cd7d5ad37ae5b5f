"""Durations and instants: ISO 8601 and the short form to milliseconds, RFC 3339 to UTC (binding 1.5)."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterable
from decimal import ROUND_CEILING, Decimal

from django_ojs.messages import phrase

UTC = dt.UTC
MAX_MS = 100 * 365 * 86_400_000  #: a hundred years; longer durations count as this one

_MAX_LENGTH = 100
_UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_ISO = re.compile(
    r"P(?=\d|T\d)(?:(\d+)Y)?(?:(\d+)M)?(?:(\d+)W)?(?:(\d+)D)?(?:T(?=\d)(?:(\d+)H)?(?:(\d+)M)?(?:(\d+(?:\.\d+)?)S)?)?",
    re.ASCII,
)
_ISO_MS = (365 * 86_400_000, 30 * 86_400_000, 7 * 86_400_000, 86_400_000, 3_600_000, 60_000, 1_000)
_SHORT = re.compile(r"(?:\d+(?:\.\d+)?(?:ms|s|m|h|d))+", re.ASCII)
_SHORT_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)", re.ASCII)
_INSTANT = re.compile(
    r"(\d{4})-(\d{2})-(\d{2})[Tt](\d{2}):(\d{2}):(\d{2})(?:\.(\d+))?(?:[Zz]|([+-])(\d{2}):(\d{2}))", re.ASCII
)


def parse_duration_ms(value: object) -> int:
    """Milliseconds of `PT1M30S`, `P1D`, `1h30m` or `500ms`; a year is 365 days and a month 30.

    Rounded up to whole milliseconds and capped at `MAX_MS`. ValueError for everything else, numbers included.
    """
    if isinstance(value, str) and len(value) <= _MAX_LENGTH:
        if found := _ISO.fullmatch(value):
            return _total((part, ms) for part, ms in zip(found.groups(), _ISO_MS, strict=True) if part)
        if _SHORT.fullmatch(value):
            return _total((part, _UNITS_MS[unit]) for part, unit in _SHORT_PART.findall(value))
    raise ValueError(phrase("must be a duration: ISO 8601 such as PT30S or P1D, or short such as 30s, 500ms or 1h30m"))


def parse_length_ms(value: object) -> int:
    """Milliseconds of a duration that is longer than zero. ValueError for everything else."""
    ms = parse_duration_ms(value)
    if ms == 0:
        raise ValueError(phrase("must be longer than zero"))
    return ms


def _total(parts: Iterable[tuple[str, int]]) -> int:
    total = sum((Decimal(number) * ms for number, ms in parts), Decimal(0))
    return min(int(total.to_integral_value(ROUND_CEILING)), MAX_MS)


def format_iso(ms: int) -> str:
    """`ms` milliseconds as an ISO 8601 duration: 90500 is `PT1M30.5S`. ValueError below zero."""
    if ms < 0:
        raise ValueError("A duration cannot be negative.")
    days, rest = divmod(ms, 86_400_000)
    hours, rest = divmod(rest, 3_600_000)
    minutes, rest = divmod(rest, 60_000)
    seconds = f"{rest // 1000}.{rest % 1000:03d}".rstrip("0").rstrip(".") if rest else ""
    time = "".join(
        f"{number}{unit}" for number, unit in ((hours or "", "H"), (minutes or "", "M"), (seconds, "S")) if number
    )
    date = f"{days}D" if days else ""
    return f"P{date}T{time}" if time else f"P{date or 'T0S'}"


def spell(ms: int) -> str:
    """`ms` milliseconds as a person says them: `250 ms`, `1.5 s`, `4 min 10 s`, `3 h 5 min`, `12 d 4 h`."""
    if ms < 1000:
        return f"{ms} ms"
    if ms < 60_000:
        return f"{ms / 1000:.3g} s"
    seconds = ms // 1000
    for big, small, size in (("d", "h", 86_400), ("h", "min", 3600), ("min", "s", 60)):
        if seconds >= size:
            rest = seconds % size // {"h": 3600, "min": 60, "s": 1}[small]
            return f"{seconds // size} {big}" + (f" {rest} {small}" if rest else "")
    return f"{seconds} s"


def parse_moment(value: object, now: dt.datetime) -> dt.datetime:
    """An instant as `parse_instant` reads it, or an age such as `24h` or `P7D`, counted back from `now`.

    ValueError for everything else.
    """
    try:
        age = dt.timedelta(milliseconds=parse_duration_ms(value))
    except ValueError:
        return parse_instant(value)
    return now - min(age, now - EARLIEST)


def parse_instant(text: object) -> dt.datetime:
    """The instant of an RFC 3339 timestamp, in UTC; digits beyond microseconds are cut off.

    ValueError where the zone is missing, no such instant exists, or it is not between `EARLIEST` and `LATEST`.
    """
    instant = _read_instant(text)
    if not EARLIEST <= instant <= LATEST:
        raise ValueError(
            phrase(
                "is not a real instant: it must lie between %(earliest)s and %(latest)s",
                earliest=f"{EARLIEST:%Y-%m-%d}",
                latest=f"{LATEST:%Y-%m-%d}",
            )
        )
    return instant


def nearest_instant(text: object) -> dt.datetime:
    """As `parse_instant`, but what lies beyond `EARLIEST` or `LATEST` counts as that one: clients write "never" as the
    last second of the year 9999, and an unset time as the first one of the year 1."""
    return min(max(_read_instant(text), EARLIEST), LATEST)


def _read_instant(text: object) -> dt.datetime:
    """The instant, however early or late. One whose zone leads beyond the calendar is as far as that goes. A leap
    second counts as the second after it."""
    found = _INSTANT.fullmatch(text) if isinstance(text, str) else None
    if found is None:
        raise ValueError(phrase("must be an RFC 3339 timestamp with a time zone, such as 2026-03-15T09:30:00Z"))
    *digits, fraction, sign, hours, minutes = found.groups()
    year, month, day, hour, minute, second = map(int, digits)
    micro = int(fraction[:6].ljust(6, "0")) if fraction else 0
    offset, leap = dt.timedelta(), dt.timedelta()
    try:
        offset = _offset(sign, int(hours), int(minutes)) if sign else offset
        if second == 60 and _may_be_leap(dt.datetime(year, month, day, hour, minute, tzinfo=UTC), offset):
            second, leap = 59, dt.timedelta(seconds=1)
        instant = dt.datetime(year, month, day, hour, minute, second, micro, UTC)
    except ValueError as error:
        raise ValueError(phrase("is not a real instant: %(error)s", error=error)) from error
    try:
        return instant - offset + leap
    except OverflowError:
        return instant


def _may_be_leap(minute: dt.datetime, offset: dt.timedelta) -> bool:
    """Whether a minute may have a second 60: the last one of June or December, in UTC (RFC 3339, 5.7)."""
    try:
        return f"{minute - offset:%m-%d %H:%M}" in ("06-30 23:59", "12-31 23:59")
    except OverflowError:
        return False


#: What every database can store and every time zone can show: MariaDB begins in the year 1000, and a day at
#: either end is left for the zones.
EARLIEST, LATEST = dt.datetime(1000, 1, 2, tzinfo=UTC), dt.datetime(9999, 12, 30, tzinfo=UTC)


def _offset(sign: str, hours: int, minutes: int) -> dt.timedelta:
    if hours > 23 or minutes > 59:
        raise ValueError(phrase("a zone offset must lie between -23:59 and +23:59"))
    offset = dt.timedelta(hours=hours, minutes=minutes)
    return -offset if sign == "-" else offset


def format_instant(instant: dt.datetime) -> str:
    """`instant` as the server writes times: UTC, `Z`, milliseconds. ValueError for a naive datetime."""
    if instant.tzinfo is not UTC:
        if instant.utcoffset() is None:
            raise ValueError("A datetime without a time zone is not an instant.")
        instant = instant.astimezone(UTC)
    return instant.isoformat(timespec="milliseconds")[:-6] + "Z"


def resolve_relative(text: str, now: dt.datetime) -> dt.datetime | None:
    """The instant of a relative time: `+` and a duration, counted from `now`. None where it is not relative.

    ValueError where the duration is malformed or leads beyond the year 9999.
    """
    if not text.startswith("+"):
        return None
    try:
        return now + dt.timedelta(milliseconds=parse_duration_ms(text[1:]))
    except OverflowError as error:
        raise ValueError(phrase("lies beyond the year 9999")) from error
