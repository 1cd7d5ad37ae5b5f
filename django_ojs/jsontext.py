"""JSON text in and out without loss: what a client sent is what it gets back (binding 1.4).

`loads` is stricter than the standard library (no NaN, no invalid UTF-8, bounded nesting) and keeps every
number: integers of any size stay `int`, and a decimal that a Python float would change becomes an
`ExactNumber` with its literal. `dumps` is its inverse, compact and always valid UTF-8.
"""

from __future__ import annotations

import decimal
import json
import re
import sys
import uuid
from collections.abc import Callable, Iterable
from typing import Any, NoReturn, Self, TypeGuard

MAX_DEPTH = 200  #: nested arrays and objects that `loads` accepts

_JSON_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")


class JSONTextError(ValueError):
    """The text is not JSON, or the value has no JSON text."""


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


def loads(text: str | bytes) -> Any:
    """The value of a JSON text; bytes are UTF-8.

    Raises JSONTextError for invalid UTF-8, invalid JSON, NaN and Infinity, nesting beyond `MAX_DEPTH` and
    integers with more digits than Python converts (4300).
    """
    try:
        if not isinstance(text, str):
            text = str(text, "utf-8")
        value = _decoder.decode(text)
    except UnicodeDecodeError as error:
        raise JSONTextError(f"The text is not valid UTF-8: {error.reason} at byte {error.start}.") from error
    except json.JSONDecodeError as error:
        raise JSONTextError(f"Not valid JSON: {error.msg} at line {error.lineno}, column {error.colno}.") from error
    except RecursionError as error:
        raise _too_deep() from error
    except JSONTextError:
        raise
    except ValueError as error:
        limit = sys.get_int_max_str_digits()
        raise JSONTextError(f"A number in the JSON text is too long: it has more than {limit:,} digits.") from error
    if text.count("[") + text.count("{") > MAX_DEPTH and is_deeper(value, MAX_DEPTH):
        raise _too_deep()
    return value


def dumps(value: Any) -> str:
    """The compact JSON text of `value`: non-ASCII raw, or escaped where UTF-8 cannot carry it.

    Raises TypeError for what JSON does not know, JSONTextError for NaN, Infinity, a circular or an endlessly
    nested value.
    """
    text = _encode(value, _encoder)
    return text if text.isascii() or _fits_utf8(text) else _encode(value, _ascii_encoder)


def dumps_bytes(value: Any) -> bytes:
    """`dumps`, encoded as UTF-8."""
    try:
        return _encode(value, _encoder).encode()
    except UnicodeEncodeError:
        return _encode(value, _ascii_encoder).encode()


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


def _too_deep() -> JSONTextError:
    return JSONTextError(f"The JSON text nests deeper than {MAX_DEPTH} levels.")


def _number(literal: str) -> float | ExactNumber:
    number = float(literal)
    text = repr(number)
    if text == literal:
        return number
    try:
        exact = ExactNumber(literal)
    except ValueError as error:
        raise JSONTextError(str(error)) from error
    same = number - number == 0.0 and exact == decimal.Decimal(text)  # the difference is NaN for infinity
    return number if same else exact


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
        raise JSONTextError(str(error)) from error


def _encode_exact(value: Any, encoder: json.JSONEncoder) -> str:
    """Encode with a string no client can know in the place of each exact number, then put the literals in."""
    mark = uuid.uuid4().hex
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


def _fits_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
