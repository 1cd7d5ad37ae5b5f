"""Compare an actual JSON value with an expectation, and say precisely what differs.

An expectation is a literal, a text matcher (`string:uuidv7`, `array:length(3)`, `one_of:400,422`, `~1s`, `absent`), or
an object of operators (`$in`, `$exists`, `$or`, …) and paths (`$.job.state`), all of which must hold. An expected null
is also met by absence. `lint` says beforehand whether an expectation is understood.

A text that begins with the name of a family of matchers but is in no table raises `UnknownMatcher`; any other text is
a literal. The tables `WORDS`, `FORMS` and `OPERATORS` are the whole list.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final

from ojs_conformance import jsonpath, values
from ojs_conformance.values import MISSING, equal, has_type, is_number, show

Reasons = list[str]
Test = Callable[[object, object], bool]


def is_path(key: str) -> bool:
    """Whether a key of an expectation is a path into the value, not an operator."""
    return key == "$" or key.startswith(("$.", "$["))


def check(expected: object, actual: object, where: str = "$") -> Reasons:
    """The reasons why a value does not meet an expectation; none if it does. UnknownMatcher if not understood."""
    if isinstance(expected, str):
        return _check_text(expected, actual, where)
    if isinstance(expected, dict):
        return _check_object(expected, actual, where)
    if isinstance(expected, list):
        return _check_list(expected, actual, where)
    held = actual in (None, MISSING) if expected is None else actual is not MISSING and equal(expected, actual)
    return [] if held else [_differs(where, show(expected), actual)]


def _differs(where: str, expected: str, actual: object) -> str:
    return f"{where}: expected {expected}, got {show(actual)}"


def _check_text(expected: str, actual: object, where: str) -> Reasons:
    matcher = text_matcher(expected)
    held = matcher(actual) if matcher else expected == actual
    return [] if held else [_differs(where, show(expected), actual)]


def _check_list(expected: list[object], actual: object, where: str) -> Reasons:
    if not isinstance(actual, list) or len(actual) != len(expected):
        return [_differs(where, show(expected), actual)]
    return [reason for i, wanted in enumerate(expected) for reason in check(wanted, actual[i], f"{where}[{i}]")]


def _check_object(expected: dict[str, object], actual: object, where: str) -> Reasons:
    if not any(key.startswith("$") for key in expected):
        return _check_literal_object(expected, actual, where)
    reasons: Reasons = []
    for key, wanted in expected.items():
        if is_path(key):
            reasons += _check_path(key, wanted, actual, where)
        elif key in OPERATORS:
            reasons += OPERATORS[key](wanted, actual, where)
        else:
            raise UnknownMatcher(f"unknown operator {key!r} at {where}")
    return reasons


def _check_literal_object(expected: dict[str, object], actual: object, where: str) -> Reasons:
    if not isinstance(actual, dict):
        return [_differs(where, show(expected), actual)]
    extra = [f"{where}: unexpected member {key!r}" for key in actual if key not in expected]
    return extra + [
        reason for key in expected for reason in check(expected[key], actual.get(key, MISSING), f"{where}.{key}")
    ]


def _check_path(path: str, expected: object, actual: object, where: str) -> Reasons:
    name = where + path[1:]
    found = jsonpath.find(path, actual)
    if found.plural and _asks_for_list(expected):
        lacking = [f"{name}: an element has no such member"] if MISSING in found.values else []
        return lacking or check(expected, found.values, name)
    return [reason for value in found.values or [MISSING] for reason in check(expected, value, name)]


def _asks_for_list(expected: object) -> bool:
    """Whether an expectation about `[*]` is about the list as a whole, and not about each element."""
    if isinstance(expected, str):
        return expected.startswith(("contains:", "not_contains:", "array:", "contains(", "not_contains("))
    if isinstance(expected, dict):
        return not {"$size", "$contains", "$empty"}.isdisjoint(expected)
    return isinstance(expected, list)


def _simple(name: str, test: Test) -> Callable[[object, object, str], Reasons]:
    """An operator that compares its argument with a value that must be there."""

    def operator(argument: object, actual: object, where: str) -> Reasons:
        held = actual is not MISSING and test(argument, actual)
        return [] if held else [_differs(where, f"{name} {show(argument)}", actual)]

    return operator


def _ordered(test: Callable[[float, float], bool]) -> Test:
    return lambda arg, v: is_number(arg) and is_number(v) and test(v, arg)  # type: ignore[arg-type]


def items(argument: object) -> list[object]:
    """An operator's argument as a list; a single value counts as a list of one."""
    return argument if isinstance(argument, list) else [argument]


def _op_contains(argument: object, actual: object) -> bool:
    if isinstance(actual, list):
        return any(equal(argument, each) for each in actual)
    return isinstance(actual, str) and isinstance(argument, str) and argument in actual


def _op_exists(argument: object, actual: object, where: str) -> Reasons:
    held = (actual is not MISSING) is bool(argument)
    return [] if held else [_differs(where, "a value" if argument else "no value", actual)]


def _op_empty(argument: object, actual: object, where: str) -> Reasons:
    held = (actual in (MISSING, None, "", [], {})) is bool(argument)
    return [] if held else [_differs(where, "nothing" if argument else "something", actual)]


def _op_size(argument: object, actual: object, where: str) -> Reasons:
    if not isinstance(actual, (list, dict, str)):
        return [_differs(where, f"$size {show(argument)}", actual)]
    return check(argument, len(actual), f"size of {where}")


def _op_not(argument: object, actual: object, where: str) -> Reasons:
    return [] if check(argument, actual, where) else [_differs(where, f"not {show(argument)}", actual)]


def _op_or(argument: object, actual: object, where: str) -> Reasons:
    outcomes = [check(each, actual, where) for each in items(argument)]
    if any(not reasons for reasons in outcomes):
        return []
    return ["none of the alternatives holds: " + " | ".join("; ".join(reasons) for reasons in outcomes)]


def _op_and(argument: object, actual: object, where: str) -> Reasons:
    return [reason for each in items(argument) for reason in check(each, actual, where)]


OPERATORS: Final[Mapping[str, Callable[[object, object, str], Reasons]]] = {
    "$exists": _op_exists,
    "$empty": _op_empty,
    "$type": _simple("$type", lambda arg, v: any(has_type(v, str(name)) for name in items(arg))),
    "$eq": _simple("$eq", equal),
    "$ne": _simple("$ne", lambda arg, v: not equal(arg, v)),
    "$in": _simple("$in", lambda arg, v: any(equal(each, v) for each in items(arg))),
    "$nin": _simple("$nin", lambda arg, v: not any(equal(each, v) for each in items(arg))),
    "$match": _simple("$match", lambda arg, v: isinstance(v, str) and re.search(str(arg), v) is not None),
    "$regex": _simple("$regex", lambda arg, v: isinstance(v, str) and re.search(str(arg), v) is not None),
    "$contains": _simple("$contains", _op_contains),
    "$gt": _simple("$gt", _ordered(lambda v, arg: v > arg)),
    "$gte": _simple("$gte", _ordered(lambda v, arg: v >= arg)),
    "$lt": _simple("$lt", _ordered(lambda v, arg: v < arg)),
    "$lte": _simple("$lte", _ordered(lambda v, arg: v <= arg)),
    "$size": _op_size,
    "$not": _op_not,
    "$or": _op_or,
    "$and": _op_and,
}


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
        values.instant(text)
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
    target = float(wanted) if _is_float(wanted) else values.seconds(wanted)
    if isinstance(value, str):
        try:
            value = values.seconds(value)
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
