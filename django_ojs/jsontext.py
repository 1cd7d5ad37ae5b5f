"""JSON text in and out without loss: what a client sent is what it gets back (binding 1.4).

`loads` is stricter than the standard library (no NaN, no invalid UTF-8, bounded nesting) and keeps every
number: integers of any size stay `int`, and a decimal that a Python float would change becomes an
`ExactNumber` with its literal. `dumps` is its inverse, compact and always valid UTF-8.
"""

from __future__ import annotations

import decimal
import json
import re
import secrets
import sys
from collections.abc import Callable, Collection, Iterable
from typing import Any, NamedTuple, NoReturn, Self, TypeGuard

MAX_DEPTH = 200  #: nested arrays and objects that `loads` accepts
MAX_DIGITS = 18  #: of a number that `digits` reads: fewer than the largest of 64 bits has

_JSON_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")


class JSONTextError(ValueError):
    """The text is not JSON, or the value has no JSON text."""


class Bounds(NamedTuple):
    """What a text may cost. It is known before what costs it is made.

    Attributes:
        values: how many keys and values it may have, at any depth.
        numbers: how many numbers of which a float may say something else: each costs as much as fifty others.
        arrays: members of the outermost object that are arrays of at most `elements`.
    """

    values: int = sys.maxsize
    numbers: int = sys.maxsize
    arrays: Collection[str] = ()
    elements: int = sys.maxsize


class BeyondBounds(JSONTextError):
    """The text has more of something than its `Bounds` allow: `what` is `values`, `numbers`, or the name of the array;
    `most` is the bound."""

    def __init__(self, what: str, most: int) -> None:
        super().__init__(f"There are more than {most} {what}.")
        self.what, self.most = what, most


class ExactNumber(decimal.Decimal):
    """A JSON number that a float would change, such as `1e400`; `literal` is how the client wrote it.

    It calculates like the `Decimal` it is. ValueError for anything but a JSON number.
    """

    __slots__ = ("literal",)
    literal: str

    def __new__(cls, literal: str) -> Self:
        if not _JSON_NUMBER.fullmatch(literal):
            raise ValueError(f"{literal[:40]!r} is not a JSON number.")
        try:
            number = super().__new__(cls, literal)
        except decimal.InvalidOperation as error:
            raise ValueError(f"The number {literal[:40]} is beyond what can be represented.") from error
        number.literal = literal
        return number

    def __reduce__(self) -> tuple[type[Self], tuple[str]]:
        return (type(self), (self.literal,))


def loads(text: str | bytes, bounds: Bounds | None = None) -> Any:
    """The value of a JSON text; bytes are UTF-8.

    Raises JSONTextError for invalid UTF-8, invalid JSON, NaN and Infinity, nesting beyond `MAX_DEPTH` and
    integers with more digits than Python converts (4300); BeyondBounds, which is one, for what is beyond `bounds`.
    """
    try:
        if not isinstance(text, str):
            text = str(text, "utf-8")
        value = _decoder.decode(text) if bounds is None else _decode(text, bounds)
    except UnicodeDecodeError as error:
        raise JSONTextError(f"The text is not valid UTF-8: {error.reason} at byte {error.start}.") from error
    except json.JSONDecodeError as error:
        raise JSONTextError(f"Not valid JSON: {error.msg} at line {error.lineno}, column {error.colno}.") from error
    except RecursionError as error:
        raise _too_deep() from error
    except JSONTextError:
        raise
    except ValueError as error:
        raise JSONTextError(
            f"A number in the JSON text is too long: it has more than {_most_digits()} digits."
        ) from error
    if text.count("[") + text.count("{") > MAX_DEPTH and is_deeper(value, MAX_DEPTH):
        raise _too_deep()
    return value


def dumps(value: Any) -> str:
    """The compact JSON text of `value`: non-ASCII raw, but for half a surrogate pair, which UTF-8 cannot carry.

    Raises TypeError for what JSON does not know, JSONTextError for NaN, Infinity, a circular or an endlessly
    nested value.
    """
    text = _encode(value, _encoder)
    return text if text.isascii() or _fits_utf8(text) else without_halves(text)


def dumps_ascii(value: Any) -> str:
    """`dumps` with everything but ASCII escaped, for what passes through other formats."""
    return _encode(value, _ascii_encoder)


def printable(text: str) -> str:
    """A compact JSON text in which a terminal finds nothing to obey: what is not printable is escaped, and means the
    same."""
    return text if text.isprintable() else "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in text)


def dumps_bytes(value: Any) -> bytes:
    """`dumps`, encoded as UTF-8."""
    text = _encode(value, _encoder)
    try:
        return text.encode()
    except UnicodeEncodeError:
        return without_halves(text).encode()


def byte_length(text: str) -> int:
    """How many bytes a text takes as UTF-8."""
    return len(text) if text.isascii() else len(text.encode())


def is_deeper(value: Any, limit: int) -> bool:
    """Whether arrays and objects nest deeper than `limit`; `[]` has depth 1. Needs no stack."""
    level = [value] if isinstance(value, dict | list | tuple) else []
    for _ in range(limit):
        level = [
            child
            for node in level
            for child in (node.values() if isinstance(node, dict) else node)
            if isinstance(child, dict | list | tuple)
        ]
        if not level:
            return False
    return bool(level)


def is_integer(value: object) -> TypeGuard[int | float]:
    """Whether a JSON number is an integer: `5` and `5.0` are, `true` is not (binding 1.4). Never an ExactNumber."""
    if isinstance(value, float):
        return value.is_integer()
    return isinstance(value, int) and not isinstance(value, bool)


def digits(text: str) -> int | None:
    """The number that a text of ASCII digits says; None for any other text, and for more digits than a column holds.

    For numbers that come as texts, in metadata, paths and forms: Python refuses to read several thousand digits.
    """
    return int(text) if len(text) <= MAX_DIGITS and text.isascii() and text.isdecimal() else None


def _most_digits() -> str:
    """How many digits of a whole number Python reads and writes."""
    return f"{sys.get_int_max_str_digits():,}"


def _too_deep() -> JSONTextError:
    return JSONTextError(f"The JSON text nests deeper than {MAX_DEPTH} levels.")


# Bounds


#: A string, up to the end of the text where nothing closes it.
_STRING = re.compile(r'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)
_WHITE = re.compile(r"[ \t\n\r]*")
_HALF = re.compile("[\ud800-\udfff]")
#: Marks for each element of an array, up to which a text is read as a whole: that is faster.
_AS_A_WHOLE = 20
_SHORTEST = 5  #: characters of the shortest number that a float may change, and the comma behind it


def _decode(text: str, bounds: Bounds) -> Any:
    if not bounds.arrays and len(text) < min(bounds.values, bounds.numbers * _SHORTEST):
        return _decoder.decode(text)
    few = _AS_A_WHOLE * bounds.elements if bounds.arrays else sys.maxsize
    marks = _marks(text) if len(text) >= min(bounds.values, few) else 0
    if marks >= bounds.values and _has_more_values(text, bounds.values):
        raise BeyondBounds("values", bounds.values)
    decoder = _decoder if len(text) <= bounds.numbers * _SHORTEST else _counting(bounds.numbers)
    if marks >= few:
        try:
            value, end = _object(text, _white(text, 0), bounds, decoder)
            if _white(text, end) == len(text):
                return value
        except (StopIteration, IndexError, json.JSONDecodeError):
            decoder = _decoder if decoder is _decoder else _counting(bounds.numbers)
    value = decoder.decode(text)  # where it is no JSON, this says where
    for name in bounds.arrays if isinstance(value, dict) else ():
        if isinstance(value.get(name), list) and len(value[name]) > bounds.elements:
            raise BeyondBounds(name, bounds.elements)
    return value


def _has_more_values(text: str, most: int) -> bool:
    rest, strings = _STRING.subn("", text, most + 1)  # what looks like JSON inside of a string is none
    return strings > most or _marks(rest) >= most


def _marks(text: str) -> int:
    """The marks of which each key and each value but the first takes at least one."""
    return text.count(",") + text.count(":") + text.count("[") + text.count("{")


def _counting(most: int) -> json.JSONDecoder:
    """A decoder for one text, with at most so many numbers that are read exactly."""
    left = most

    def read(literal: str) -> float | ExactNumber:
        nonlocal left
        number = _plain(literal)
        if number is not None:
            return number
        left -= 1
        if left < 0:
            raise BeyondBounds("numbers", most)
        return _exact(literal)

    return json.JSONDecoder(parse_float=read, parse_constant=_constant)


def _object(text: str, at: int, bounds: Bounds, decoder: json.JSONDecoder) -> tuple[dict[str, Any], int]:
    """The object that begins at `at`, and where it ends. IndexError or StopIteration where there is none."""
    found: dict[str, Any] = {}
    at = _white(text, _passed(text, at, "{"))
    while text[at] != "}":
        _passed(text, at, '"')
        name, at = decoder.raw_decode(text, at)
        at = _white(text, _passed(text, _white(text, at), ":"))
        if name in bounds.arrays and text[at] == "[":
            found[name], at = _array(text, at, name, bounds.elements, decoder)
        else:
            found[name], at = decoder.raw_decode(text, at)
        at = _next(text, at, "}")
    return found, at + 1


def _array(text: str, at: int, name: str, most: int, decoder: json.JSONDecoder) -> tuple[list[Any], int]:
    found: list[Any] = []
    read = decoder.raw_decode
    at = _white(text, at + 1)
    while text[at] != "]":
        if len(found) >= most:
            raise BeyondBounds(name, most)
        value, at = read(text, at)
        found.append(value)
        at = _next(text, at, "]")
    return found, at + 1


def _next(text: str, at: int, end: str) -> int:
    """Where the next item of a container begins, or its `end` is."""
    if text[at] in " \t\n\r":
        at = _white(text, at)
    if text[at] == end:
        return at
    at = _passed(text, at, ",")
    if text[at] in " \t\n\r":
        at = _white(text, at)
    if text[at] == end:
        raise StopIteration
    return at


def _passed(text: str, at: int, mark: str) -> int:
    if text[at] != mark:
        raise StopIteration
    return at + 1


def _white(text: str, at: int) -> int:
    """The end of the white space that begins at `at`."""
    found = _WHITE.match(text, at)
    return found.end() if found else at


# Numbers


#: A decimal of so many digits between these two is the only one of that length that becomes its float.
_FLOAT_DIGITS, _SMALL, _LARGE = sys.float_info.dig, 1e-290, 1e290


def _number(literal: str) -> float | ExactNumber:
    number = _plain(literal)
    return _exact(literal) if number is None else number


def _plain(literal: str) -> float | None:
    """The float that a literal is; None where it takes more to know whether it is one."""
    number = float(literal)
    if len(literal) <= _FLOAT_DIGITS and (_SMALL < abs(number) < _LARGE or not (number or _has_digit(literal))):
        return number
    return number if repr(number) == literal else None


def _has_digit(literal: str) -> bool:
    """Whether there is another digit than 0 before the exponent."""
    return bool(literal.lower().partition("e")[0].strip("-0."))


def _exact(literal: str) -> float | ExactNumber:
    number = float(literal)
    try:
        exact = decimal.Decimal.__new__(ExactNumber, literal)
    except decimal.InvalidOperation as error:
        raise JSONTextError(f"The number {literal[:40]} is beyond what can be represented.") from error
    if number - number == 0.0 and exact == decimal.Decimal(repr(number)):  # the difference is NaN for infinity
        return number
    exact.literal = literal
    return exact


def _constant(name: str) -> NoReturn:
    raise JSONTextError(f"Not valid JSON: {name} is not a JSON number.")


class _HasExactNumber(Exception):
    """The value holds an ExactNumber, which the C encoder cannot write."""


def _default(value: Any) -> NoReturn:
    if isinstance(value, ExactNumber):
        raise _HasExactNumber
    raise TypeError(f"Object of type {type(value).__name__} is not JSON serializable")


_decoder = json.JSONDecoder(parse_float=_number, parse_constant=_constant)
_encoder = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=_default)
_ascii_encoder = json.JSONEncoder(ensure_ascii=True, allow_nan=False, separators=(",", ":"), default=_default)


#: Makes the encoder in C, where Python has one. `JSONEncoder` makes it for each value, which takes as long as its use.
_make_writer = getattr(json.encoder, "c_make_encoder", None)


def _writer() -> Callable[[Any, int], Iterable[str]] | None:
    """What `_encoder` makes for each value, made once, but without its notes of the containers that a value is in."""
    if _make_writer is None:
        return None
    writer: Callable[[Any, int], Iterable[str]] = _make_writer(
        None, _default, json.encoder.encode_basestring, None, ":", ",", False, False, False
    )
    return writer


_write = _writer()


def _encode(value: Any, encoder: json.JSONEncoder) -> str:
    try:
        if _write is not None and encoder is _encoder:
            try:
                return "".join(_write(value, 0))
            except RecursionError:  # circular, or too deep: the encoder can tell
                pass
        return encoder.encode(value)
    except _HasExactNumber:
        return _encode_exact(value, encoder)
    except RecursionError as error:
        raise JSONTextError("The value nests too deeply to be written as JSON.") from error
    except ValueError as error:
        if "integer string conversion" in str(error):
            raise JSONTextError(f"A number is too long: it has more than {_most_digits()} digits.") from error
        raise JSONTextError(str(error)) from error


def _encode_exact(value: Any, encoder: json.JSONEncoder) -> str:
    """Encode with a string no client can know in the place of each exact number, then put the literals in."""
    mark = secrets.token_hex(16)
    literals: list[str] = []

    def default(found: Any) -> str:
        if not isinstance(found, ExactNumber):
            _default(found)
        literals.append(found.literal)
        return mark

    marking = json.JSONEncoder(
        ensure_ascii=encoder.ensure_ascii, allow_nan=False, separators=(",", ":"), default=default
    )
    pieces = _encode(value, marking).split(f'"{mark}"')
    return "".join(piece + literal for piece, literal in zip(pieces, [*literals, ""], strict=True))


def without_halves(text: str) -> str:
    """A JSON text with each half of a surrogate pair escaped, and nothing else: a search finds the rest as it is."""
    return _HALF.sub(lambda half: f"\\u{ord(half[0]):04x}", text)


def _fits_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
