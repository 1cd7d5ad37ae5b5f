"""Matchers written as text: `string:uuidv7`, `array:length(3)`, `one_of:400,422`, `~1s`, `absent`.

A text that begins with the name of a matcher family but is in no table raises `UnknownMatcher`; any other text is
a literal. The tables below are the whole list.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from . import durations
from .values import MISSING, has_type, is_number, show

Predicate = Callable[[object], bool]

TOLERANCE: Final = 0.5
_FAMILY = re.compile(r"(string|number|integer|boolean|array|object|one_of|contains|not_contains):|~\d|~PT?\d")
_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-([0-9a-f])[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}", re.IGNORECASE)
_UUID7 = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}", re.IGNORECASE)


class UnknownMatcher(ValueError):
    """A matcher or an assertion key that this runner does not know. It fails the case."""


def _text(value: object, test: Callable[[str], object]) -> bool:
    return isinstance(value, str) and bool(test(value))


def _number(value: object, test: Callable[[float], bool]) -> bool:
    return is_number(value) and test(value)  # type: ignore[arg-type]


def _array(value: object, test: Callable[[int], bool]) -> bool:
    return isinstance(value, list) and test(len(value))


def _is_datetime(text: str) -> bool:
    try:
        durations.instant(text)
    except ValueError:
        return False
    return True


def _contains(value: object, wanted: str) -> bool:
    if isinstance(value, list):
        return any(_plain(each) == wanted for each in value)
    return isinstance(value, str) and wanted in value


def _plain(value: object) -> str:
    return value if isinstance(value, str) else show(value)


def _about(value: object, wanted: str) -> bool:
    """Within 50 % (conformance spec 5.6). A wanted duration compares with seconds or with a duration text."""
    target = float(wanted) if _is_float(wanted) else durations.seconds(wanted)
    if isinstance(value, str):
        try:
            value = durations.seconds(value)
        except ValueError:
            return False
    return _number(value, lambda n: abs(n - target) <= target * TOLERANCE)


def _is_float(text: str) -> bool:
    return re.fullmatch(r"\d+(\.\d+)?", text) is not None


WORDS: Final[dict[str, Predicate]] = {
    "any": lambda v: v is not MISSING,
    "exists": lambda v: v is not MISSING,
    "absent": lambda v: v is MISSING,
    "string:nonempty": lambda v: _text(v, bool),
    "string:non_empty": lambda v: _text(v, bool),
    "string:uuid": lambda v: _text(v, _UUID.fullmatch),
    "string:uuidv7": lambda v: _text(v, _UUID7.fullmatch),
    "string:datetime": lambda v: _text(v, _is_datetime),
    "number:positive": lambda v: _number(v, lambda n: n > 0),
    "number:non_negative": lambda v: _number(v, lambda n: n >= 0),
    "number:integer": lambda v: has_type(v, "integer"),
    "array:nonempty": lambda v: _array(v, lambda n: n > 0),
    "array:non_empty": lambda v: _array(v, lambda n: n > 0),
    "array:empty": lambda v: _array(v, lambda n: n == 0),
}

# Each with one argument, after a colon or in parentheses: `array:length:3`, `array:length(3)`.
FORMS: Final[tuple[tuple[str, str, Callable[[object, str], bool]], ...]] = (
    ("string:contains", r".+", lambda v, arg: _text(v, lambda s: arg in s)),
    ("string:matches", r".+", lambda v, arg: _text(v, re.compile(arg).search)),
    ("string:pattern", r".+", lambda v, arg: _text(v, re.compile(arg).search)),
    ("number:range", r"-?[\d.]+\s*,\s*-?[\d.]+", lambda v, arg: _number(v, lambda n: _in_range(n, arg))),
    ("array:length", r"\d+", lambda v, arg: _array(v, lambda n: n == int(arg))),
    ("array:min_length", r"\d+", lambda v, arg: _array(v, lambda n: n >= int(arg))),
    ("array:max_length", r"\d+", lambda v, arg: _array(v, lambda n: n <= int(arg))),
    ("array:contains", r".+", lambda v, arg: isinstance(v, list) and _contains(v, arg)),
    ("one_of", r".+", lambda v, arg: _plain(v) in [each.strip() for each in arg.split(",")]),
    ("contains", r".+", _contains),
    ("not_contains", r".+", lambda v, arg: isinstance(v, (list, str)) and not _contains(v, arg)),
)
_FORM_PATTERNS = [(re.compile(rf"{name}(?::({arg})|\(({arg})\))", re.DOTALL), test) for name, arg, test in FORMS]
_APPROXIMATE = re.compile(r"~(\d+(?:\.\d+)?(?:ms|s|m|h|d)?|P[\dTDHMS.]+)")


def _in_range(number: float, argument: str) -> bool:
    low, high = (float(end) for end in argument.split(","))
    return low <= number <= high


def text_matcher(text: str) -> Predicate | None:
    """The matcher that a text names, or None if the text is a literal. UnknownMatcher if it only looks like one."""
    if text in WORDS:
        return WORDS[text]
    for pattern, test in _FORM_PATTERNS:
        found = pattern.fullmatch(text)
        if found:
            argument, bound = found[1] or found[2], test
            return lambda value: bound(value, argument)
    about = _APPROXIMATE.fullmatch(text)
    if about:
        wanted = about[1]
        return lambda value: _about(value, wanted)
    if _FAMILY.match(text):
        raise UnknownMatcher(f"unknown matcher {text!r}")
    return None
