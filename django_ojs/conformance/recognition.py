"""Say whether an expectation is understood, without comparing anything: every matcher, operator and path in it."""

from __future__ import annotations

import re
from typing import Final

from . import jsonpath
from .matchers import OPERATORS, Reasons, is_path, items
from .text_matchers import text_matcher
from .values import TYPE_NAMES, show

_HOLDS_EXPECTATIONS: Final = frozenset({"$size", "$not", "$or", "$and"})


def problems(expected: object, where: str = "$") -> Reasons:
    """What in an expectation this runner does not understand; nothing is compared."""
    try:
        if isinstance(expected, str):
            text_matcher(expected)
        if isinstance(expected, list):
            return [p for i, each in enumerate(expected) for p in problems(each, f"{where}[{i}]")]
        if isinstance(expected, dict):
            return [p for key, each in expected.items() for p in _key_problems(key, each, expected, where)]
    except (ValueError, re.error) as error:
        return [f"{where}: {error}"]
    return []


def _key_problems(key: str, argument: object, expected: dict[str, object], where: str) -> Reasons:
    if is_path(key):
        jsonpath.parse(key)
        return problems(argument, where + key[1:])
    if key.startswith("$"):
        return _operator_problems(key, argument, where)
    mixed = any(other.startswith("$") for other in expected)
    return [f"{where}: {key!r} stands beside operators"] if mixed else problems(argument, f"{where}.{key}")


def _operator_problems(key: str, argument: object, where: str) -> Reasons:
    if key not in OPERATORS:
        return [f"{where}: unknown operator {key!r}"]
    if key in _HOLDS_EXPECTATIONS:
        return problems(argument, f"{where} {key}")
    if key in ("$match", "$regex"):
        re.compile(str(argument))
    if key == "$type" and not TYPE_NAMES.issuperset(str(name) for name in items(argument)):
        return [f"{where}: unknown type in {show(argument)}"]
    return []
