"""Makes what a handler logs fit for storing, and says from which level on a line is stored."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from django_ojs import jsontext
from django_ojs.rules.errorobjects import MAX_ERROR_DEPTH, MAX_NAME, cut, within

#: The levels of Python's logging by their words on the wire.
LEVELS: dict[str, int] = {
    "debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR,
    "critical": logging.CRITICAL,
}  # fmt: skip
#: Above all levels.
OFF = 10_000
#: Values that the fields of one line have, at any depth.
MOST_VALUES = 200


def level_of(word: str) -> int:
    """The number of a level that is written as a word. Raises ValueError."""
    found = LEVELS.get(word.lower())
    if found is None:
        raise ValueError(f"must be one of {', '.join(LEVELS)}")
    return found


def level_word(level: int) -> str:
    """The word of the highest level that is not above this number."""
    return next((word for word, number in reversed(LEVELS.items()) if number <= level), "debug")


def level_number(level: int) -> int:
    """A level as a column takes it: a site's own may be any number."""
    return min(max(level, 1), OFF)


def lowest(logger: str, otherwise: str, levels: Mapping[str, str]) -> int:
    """The lowest level of a logger's lines that is stored: what `levels` has for the logger or the nearest above it."""
    name = logger
    while levels and name:
        if (word := levels.get(name)) is not None:
            return OFF + 1 if word == "OFF" else LEVELS[word.lower()]
        name = name.rpartition(".")[0]
    return LEVELS[otherwise.lower()]


def text(given: str, limit: int) -> str:
    """Text that every database takes, with a mark where it had to be cut."""
    shown = cut(given, limit)
    if shown.isascii():
        return shown.replace("\0", "�")
    return shown.replace("\0", "�").encode(errors="replace").decode()


def fields_text(fields: Mapping[str, Any] | None, limit: int) -> str | None:
    """The JSON of what was logged beside a message, with about so many characters at most; None for nothing.

    What is no JSON stands there as the text that `str` makes of it. Raises nothing.
    """
    if not fields:
        return None
    try:
        return jsontext.dumps(within(_Reading(limit).object(fields, 0), limit))
    except Exception as error:  # noqa: BLE001 - a line is stored whatever its fields do
        return jsontext.dumps({"…": f"[not stored: {type(error).__name__}]"})


class _Reading:
    """Makes JSON of values that may be anything: with so many values at most, however they are nested."""

    def __init__(self, limit: int) -> None:
        self._limit, self._left = limit, MOST_VALUES

    def object(self, value: Mapping[Any, Any], depth: int) -> dict[str, Any]:
        items = list(value.items())
        taken: dict[str, Any] = {}
        for number, (name, item) in enumerate(items):
            if self._left <= 0:
                taken["…"] = f"[cut: {len(items) - number} more]"
                break
            taken[str_of(name, MAX_NAME)] = self.take(item, depth + 1)
        return taken

    def take(self, value: Any, depth: int) -> Any:
        self._left -= 1
        if value is None or isinstance(value, bool):
            return value
        if type(value) is int and -(2**63) <= value < 2**63:
            return value
        if type(value) is float and value - value == 0:  # neither NaN nor infinite
            return value
        if depth < MAX_ERROR_DEPTH and self._left > 0:
            if isinstance(value, Mapping):
                return self.object(value, depth)
            if isinstance(value, list | tuple | set | frozenset):
                items = list(value)
                taken = [self.take(item, depth + 1) for item in items[: self._left]]
                return taken if len(taken) == len(items) else [*taken, f"… [cut: {len(items) - len(taken)} more]"]
        return str_of(value, self._limit)


def str_of(value: object, limit: int) -> str:
    """What `str` makes of an object, fit for storing; its type where that raises."""
    try:
        return text(str(value), limit)
    except Exception as error:  # noqa: BLE001 - code of the site
        return f"<{type(value).__name__}: str() raised {type(error).__name__}>"
