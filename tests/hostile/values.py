"""Odd JSON values, and a writer for texts that the standard library would not write."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any


class Raw(str):
    """JSON text, right or wrong, to be put in as it is."""

    __slots__ = ()


class Pairs(list[tuple[str, Any]]):
    """An object as its members in order; names may repeat."""


def write(value: Any) -> str:
    match value:
        case Raw():
            return str(value)
        case Pairs():
            return _object(value)
        case dict():
            return _object(value.items())
        case list() | tuple():
            return "[" + ",".join(map(write, value)) + "]"
    return json.dumps(value, ensure_ascii=not isinstance(value, str) or not value.isprintable())


def _object(members: Iterable[tuple[str, Any]]) -> str:
    return "{" + ",".join(f"{json.dumps(name)}:{write(value)}" for name, value in members) + "}"


def nested(depth: int, inner: str = "") -> Raw:
    """Arrays in arrays, as text: the depth may be more than Python's own encoder takes."""
    return Raw("[" * depth + inner + "]" * depth)


NUMBERS: list[Any] = [
    0, -1, 1, 2, 100, 101, 32_768, 2**31 - 1, 2**31, 2**53 + 1, 2**63 - 1, 2**63, -(2**63) - 1, 2**64, 10**30, 10**400,
    0.5, 5.0, -0.0, 1e-320, 1e308, Raw("1e400"), Raw("-1e400"), Raw("1E5"), Raw("0.1234567890123456789"), Raw("-0"),
    Raw("1" * 5000), Raw("1e99999999999999999999"), Raw("NaN"), Raw("Infinity"), Raw("-Infinity"), Raw("01"),
    Raw("0x1"),
]  # fmt: skip
TEXTS: list[Any] = [
    "", " ", "\x00", "a\x00b", "\x7f", "\u2028", "\ufeff", "\u202e", "é", "日本", "🎉", "x" * 129, "x" * 256,
    "x" * 5000,
    Raw('"\\ud800"'), Raw('"\\udc00\\ud800"'), Raw('"\\uD83C\\uDF89"'), Raw('"\ttab"'), Raw("'single'"), "null", "true",
    "1", "٣", "%s", "%(now)s", "{0}", "'; DROP TABLE django_ojs_job; --", "{a,\"b\\", "\\", "../../etc/passwd", "a.b",
    "A.B", "a..b", "a.b\n", "default\n", "-", "a-b", "a_b@1.0", "x@" + "1" * 400, "NORMAL", "running", "TERMINATE",
    "AAA", "%", "_", "a%b_c", "*", "**", "a*", "a,b,,c", ",", '{"a": [1]}', "[]", "NaN", "Infinity", "-1", "1e400",
    "9" * 5000, "-" + "9" * 5000, "١٢٣", "²", "\n", "\x85",
]  # fmt: skip
TIMES: list[Any] = [
    "0001-01-01T00:00:00Z", "0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59.999999999Z", "9999-12-31T23:59:59-23:59",
    "2026-02-30T00:00:00Z", "2026-01-15T12:00:00", "2026-01-15t12:00:00z", "1969-12-31T23:59:59Z", "+PT5S", "+P99999Y",
    "PT0S", "PT5S", "P100Y", "1h30m", "-1s", "1e9s", "9" * 90 + "s", "P" + "9" * 90 + "D", "PT0.0000001S", "0ms", "٣s",
    "0000-00-00", "0000-00-00T00:00:00Z", "9999-12-31T23:59:60Z", "10000-01-01T00:00:00Z", "2026-01-15T12:00:00Z",
    "2026-01-15", "2026-01-15 12:00:00+00:00", "2026-01-15T24:00:00Z", "+1h", "now", "9" * 5000 + "h", "24h",
]  # fmt: skip
STRUCTURES: list[Any] = [
    None, True, False, [], {}, [[]], [None], [{}], {"": None}, {"\x00": "\x00"}, Pairs([("a", 1), ("a", 2)]),
    ["x"] * 50,
    [1, [2, [3]]], {"type": "a.b", "args": []}, {"message": "m"}, {"max_attempts": 2**31}, {"max_attempts": -1},
    {"initial_interval": "PT0S"}, {"initial_interval": "1s", "max_interval": "1ms"}, {"backoff_coefficient": 1e308},
    {"non_retryable_errors": [""]}, {"strategy": "none", "jitter": "x"}, {"message": "m", "details": []},
    {"message": "m", "backtrace": [1]}, {"message": "m", "code": "RETRY", "type": "\x00" * 300}, nested(30), nested(33),
    nested(199), nested(201), nested(3000), Raw("{" * 50), Raw(""), Raw("]"), {str(i): i for i in range(300)},
]  # fmt: skip
ODD: list[Any] = [*NUMBERS, *TEXTS, *TIMES, *STRUCTURES]

#: The same as texts, for queries, paths, headers and forms. The last one is half a character.
WORDS: list[str] = [
    *(value for value in (*TEXTS, *TIMES) if not isinstance(value, Raw)), *(str(value) for value in NUMBERS),
    "[1]", "a&b", "a;b", "x" * 9000, ",".join(["x"] * 1500), "true", "yes", "TRUE", "\ud800",
]  # fmt: skip
#: A parameter that comes more than once.
REPEATED: list[list[str]] = [["1", "x"], ["", "a,b,,c", "a"], ["x"] * 500]
