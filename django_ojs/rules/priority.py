"""Priorities: an integer from -100 to 100, higher first, or the name of a level (jobs 3, L4-PRI-001)."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal

from django_ojs.messages import Phrase, phrase

MIN, MAX = -100, 100


def parse(value: object, levels: Mapping[str, int]) -> int:
    """The number of a priority; `5.0` is an integer, `true` is not, names ignore case.

    ValueError for everything else. `levels` is what the names mean: `{"HIGH": 3, ...}`.
    """
    if isinstance(value, str):
        return _named(value, levels)
    if isinstance(value, int | float | Decimal) and not isinstance(value, bool) and MIN <= value <= MAX:
        number = int(value)
        if number == value:
            return number
    raise ValueError(_allowed(levels))


def _named(name: str, levels: Mapping[str, int]) -> int:
    wanted = name.casefold()
    for level, number in levels.items():
        if level.casefold() == wanted:
            return number
    raise ValueError(_allowed(levels))


def _allowed(levels: Mapping[str, int]) -> Phrase:
    if levels:
        return phrase(
            "must be an integer from %(minimum)s to %(maximum)s, or one of %(words)s",
            minimum=MIN, maximum=MAX, words=", ".join(levels),
        )  # fmt: skip
    return phrase("must be an integer from %(minimum)s to %(maximum)s", minimum=MIN, maximum=MAX)
