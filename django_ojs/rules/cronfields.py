"""The five or six fields of a cron expression: a grammar of our own, stricter than croniter's.

croniter takes ranges that run backwards, steps beyond the range (`*/90` would fire hourly), `R` for a new
random time at every start, and writes `5L` as `L5`. Here each of them is refused with advice, or translated.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple


class InvalidExpression(ValueError):
    """A cron expression that makes no sense; the text says what is wrong and begins without a subject."""


class _Field(NamedTuple):
    name: str
    low: int
    high: int
    names: tuple[str, ...] = ()


_MONTHS = ("JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC")
_DAYS = ("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT")
_DAY, _WEEKDAY = _Field("day of month", 1, 31), _Field("day of week", 0, 7, _DAYS)
_FIELDS = (
    _Field("second", 0, 59), _Field("minute", 0, 59), _Field("hour", 0, 23), _DAY, _Field("month", 1, 12, _MONTHS),
    _WEEKDAY,
)  # fmt: skip

_ITEM = re.compile(r"(?:(\*)|([0-9A-Z]+)(?:-([0-9A-Z]+))?)(?:/([0-9]+))?")
_NTH = re.compile(r"([0-9A-Z]+)#([0-9]+)")
_LAST_WEEKDAY = re.compile(r"([0-6]|7|SUN|MON|TUE|WED|THU|FRI|SAT)L")
_NEAREST = re.compile(r"([0-9]+)W")


def normalise(words: Sequence[str]) -> list[str]:
    """The fields as croniter wants them, six with the seconds first; two lots where either may match.

    Both days restricted means either (Vixie); croniter knows that too, but not together with `W`.
    Raises InvalidExpression.
    """
    fields = _FIELDS[-len(words) :]
    texts = [_field(word.upper(), field) for word, field in zip(words, fields, strict=True)]
    if len(texts) == 5:
        texts.insert(0, "0")
    *time, day, month, weekday = texts
    lots = [(day, weekday)] if "*" in (day, weekday) else [(day, "*"), ("*", weekday)]
    return [" ".join([*time, a, month, b]) for a, b in lots]


def _field(word: str, field: _Field) -> str:
    if word == "?" and field in (_DAY, _WEEKDAY):
        return "*"
    items = word.split(",")
    special = [item for item in items if _NEAREST.fullmatch(item) or "#" in item or _LAST_WEEKDAY.fullmatch(item)]
    if special and len(items) > len(special) and field is _WEEKDAY:
        raise _fault(word, field, "mixes days such as 5L or 5#3 with plain ones; register two schedules")
    return ",".join(_item(item, field, alone=len(items) == 1) for item in items)


def _item(item: str, field: _Field, *, alone: bool) -> str:
    if field is _DAY and item == "L":
        return "L"
    if field is _DAY and (found := _NEAREST.fullmatch(item)):
        if not alone:
            raise _fault(item, field, "must stand alone: W takes no list")
        return f"{_value(found[1], field)}W"
    if field is _WEEKDAY and (found := _LAST_WEEKDAY.fullmatch(item)):
        return f"L{_value(found[1], field) % 7}"
    if field is _WEEKDAY and (found := _NTH.fullmatch(item)):
        if not 1 <= _number(found[2]) <= 5:
            raise _fault(item, field, "must name the first to fifth such day of the month, as in 5#3")
        return f"{_value(found[1], field) % 7}#{int(found[2])}"
    found = _ITEM.fullmatch(item)
    if found is None:
        raise _fault(item, field, f"is not understood; write {_range(field)}, *, lists, ranges or steps")
    return _plain(item, found, field)


def _plain(item: str, found: re.Match[str], field: _Field) -> str:
    star, first, last, step = found.groups()
    if star:
        text = "*"
    else:
        low = _value(first, field)
        text = str(low)
        if last is not None:
            high = _value(last, field)
            if field is _WEEKDAY and high == 0:  # SAT-SUN
                high = 7
            if low > high:
                raise _fault(item, field, f"runs backwards; write {first}-{field.high},{field.low}-{last}")
            text = f"{low}-{high}"
    if step is None:
        return text
    size = _number(step)
    if not 1 <= size <= field.high:
        hint = "" if size == 0 else "; for longer distances there is @every, as in @every 90m"
        raise _fault(item, field, f"has the step {step}, which must lie between 1 and {field.high}{hint}")
    return f"{text}/{size}"


def _value(text: str, field: _Field) -> int:
    if text in field.names:
        return field.names.index(text) + field.low
    number = _number(text) if text.isdecimal() else -1
    if not field.low <= number <= field.high:
        raise _fault(text, field, f"must be {_range(field)}")
    return number


def _number(text: str) -> int:
    return int(text[-9:]) if len(text.lstrip("0")) < 10 else 10**9


def _range(field: _Field) -> str:
    words = f" or {field.names[0]} to {field.names[-1]}" if field.names else ""
    return f"{field.low} to {field.high}{words}"


def _fault(text: str, field: _Field, message: str) -> InvalidExpression:
    return InvalidExpression(f"has the {field.name} {text[:40]!r}, which {message}")
