"""Canonical JSON (RFC 8785): the same value has the same text, in whatever order and form it was written.

Beyond the RFC every string is NFC-normalised, as uniqueness asks (jobs 2.3), and integers that a double
cannot hold keep all of their digits: two large ids must never become one.
"""

from __future__ import annotations

import re
import unicodedata
from decimal import Decimal
from typing import Any

_ESCAPES = {'"': '\\"', "\\": "\\\\", "\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r"}
# A lone surrogate has no UTF-8: it is escaped, as JavaScript's JSON.stringify does.
_SPECIAL = re.compile(r'["\\\x00-\x1f\ud800-\udfff]')


def canonical(value: Any) -> str:
    """The canonical text of a JSON value. TypeError for what JSON does not know, ValueError for NaN and Infinity."""
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case str():
            return _string(value)
        case int() | float() | Decimal():
            return _number(value)
        case list() | tuple():
            return "[" + ",".join(map(canonical, value)) + "]"
        case dict():
            return "{" + ",".join(text for _, text in sorted(map(_member, value.items()))) + "}"
    raise TypeError(f"{type(value).__name__} is not a JSON value.")


def _member(item: tuple[Any, Any]) -> tuple[bytes, str]:
    """Sort key (UTF-16 code units) and text; names that become equal when normalised are ordered by their text."""
    name, value = item
    if not isinstance(name, str):
        raise TypeError(f"A name in a JSON object is a string, not {type(name).__name__}.")
    normal = unicodedata.normalize("NFC", name)
    return normal.encode("utf-16-be", "surrogatepass"), f"{_string(name)}:{canonical(value)}"


def _string(text: str) -> str:
    return f'"{_SPECIAL.sub(_escape, unicodedata.normalize("NFC", text))}"'


def _escape(found: re.Match[str]) -> str:
    return _ESCAPES.get(found[0]) or f"\\u{ord(found[0]):04x}"


def _number(value: int | float | Decimal) -> str:
    """ECMAScript's Number::toString: the shortest digits of a double; all digits of an integer, and of what no
    double comes near."""
    if isinstance(value, Decimal) and value != value.to_integral_value():
        double = float(value)
        value = double if double and abs(double) != float("inf") else value
    if value != value or value in (float("inf"), float("-inf")):
        raise ValueError("NaN and Infinity are not JSON numbers.")
    if not value:
        return "0"
    exact = value if isinstance(value, Decimal) else Decimal(value if isinstance(value, int) else repr(value))
    sign, digits, exponent = exact.as_tuple()
    assert isinstance(exponent, int)
    text = "".join(map(str, digits))
    significant = text.strip("0")
    point = len(text.lstrip("0")) + exponent
    return ("-" if sign else "") + _layout(significant, point)


def _layout(digits: str, point: int) -> str:
    """Digits with the decimal point `point` places after the first: plain from 1e-6 up to below 1e21."""
    if len(digits) <= point <= 21:
        return digits.ljust(point, "0")
    if 0 < point <= 21:
        return f"{digits[:point]}.{digits[point:]}"
    if -6 < point <= 0:
        return f"0.{'0' * -point}{digits}"
    exponent = point - 1
    mantissa = digits if len(digits) == 1 else f"{digits[0]}.{digits[1:]}"
    return f"{mantissa}e{'+' if exponent > 0 else '-'}{abs(exponent)}"
