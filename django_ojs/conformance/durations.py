"""Durations and instants in the forms that conformance cases use."""

from __future__ import annotations

import datetime as dt
import re

_ISO = re.compile(
    r"P(?:(?P<weeks>\d+(?:\.\d+)?)W)?(?:(?P<days>\d+(?:\.\d+)?)D)?"
    r"(?:T(?:(?P<hours>\d+(?:\.\d+)?)H)?(?:(?P<minutes>\d+(?:\.\d+)?)M)?(?:(?P<seconds>\d+(?:\.\d+)?)S)?)?"
)
_SHORT = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
_SHORT_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_RFC3339 = re.compile(r"(\d{4}-\d{2}-\d{2})[Tt](\d{2}:\d{2}:\d{2})(\.\d+)?([Zz]|[+-]\d{2}:\d{2})")


def seconds(text: str) -> float:
    """Seconds of an ISO 8601 duration (`PT0.5S`) or of the short form (`500ms`, `5s`). ValueError otherwise."""
    short = _SHORT.fullmatch(text)
    if short:
        return float(short[1]) * _SHORT_SECONDS[short[2]]
    iso = _ISO.fullmatch(text)
    if iso is None or text.endswith("T") or not any(iso.groups()):
        raise ValueError(f"{text!r} is no duration")
    return dt.timedelta(**{unit: float(amount) for unit, amount in iso.groupdict(default="0").items()}).total_seconds()


def instant(text: str) -> dt.datetime:
    """The instant of an RFC 3339 timestamp. ValueError if it is none; digits beyond microseconds are dropped."""
    found = _RFC3339.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is no RFC 3339 timestamp")
    day, clock, fraction, zone = found.groups()
    digits = (fraction or ".0")[1:7].ljust(6, "0")
    return dt.datetime.fromisoformat(f"{day}T{clock}.{digits}{'+00:00' if zone in 'Zz' else zone}")


def timestamp(moment: dt.datetime) -> str:
    """An instant as RFC 3339 text in UTC, with milliseconds."""
    return moment.astimezone(dt.UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
