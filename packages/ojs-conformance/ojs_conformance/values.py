"""Values as the runner sees them: JSON with absence and strict equality, durations, instants, and the clock."""

from __future__ import annotations

import datetime as dt
import enum
import json
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final


class Missing(enum.Enum):
    """The one value that stands for "there is nothing here", which JSON's null does not."""

    MISSING = "missing"

    def __repr__(self) -> str:
        return "MISSING"


MISSING: Final = Missing.MISSING

TYPE_NAMES: Final = frozenset({"string", "number", "integer", "boolean", "array", "object", "null"})


def is_number(value: object) -> bool:
    """True for JSON numbers; Python's booleans are no numbers here."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def has_type(value: object, name: str) -> bool:
    """Whether a value has the JSON type of that name. 3.0 is an integer, as in JSON Schema."""
    match name:
        case "string":
            return isinstance(value, str)
        case "number":
            return is_number(value)
        case "integer":
            return is_number(value) and float(value) == int(value)  # type: ignore[call-overload, arg-type]
        case "boolean":
            return isinstance(value, bool)
        case "array":
            return isinstance(value, list)
        case "object":
            return isinstance(value, dict)
        case "null":
            return value is None
        case _:
            raise ValueError(f"unknown JSON type {name!r}")


def equal(left: object, right: object) -> bool:
    """JSON equality: 1 equals 1.0, but true does not equal 1."""
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(equal(a, b) for a, b in zip(left, right, strict=True))
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(equal(left[key], right[key]) for key in left)
    return left == right


def show(value: object, limit: int = 160) -> str:
    """A value as short JSON text for a reason."""
    text = "nothing" if value is MISSING else json.dumps(value, ensure_ascii=False, default=repr)
    return text if len(text) <= limit else text[: limit - 1] + "…"


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


@dataclass(frozen=True)
class Clock:
    """What time it is, and how to wait (seconds): one object, so that a test waits a minute in no time."""

    now: Callable[[], dt.datetime] = lambda: dt.datetime.now(dt.UTC)
    sleep: Callable[[float], None] = time.sleep

    def seconds(self) -> float:
        """The current instant in seconds since 1970."""
        return self.now().timestamp()
