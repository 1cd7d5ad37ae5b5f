"""Compare an actual JSON value with an expectation, and say precisely what differs.

An expectation is a literal, a text matcher (`text_matchers`), or an object of operators (`$in`, `$exists`, `$or`, …)
and paths (`$.job.state`), all of which must hold. An expected null is also met by absence. `recognition` says
beforehand whether an expectation is understood.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final

from . import jsonpath
from .text_matchers import UnknownMatcher, text_matcher
from .values import MISSING, equal, has_type, is_number, show

__all__ = ["MISSING", "OPERATORS", "UnknownMatcher", "check", "is_path"]

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
