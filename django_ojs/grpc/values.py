"""JSON in protobuf's well-known types, without loss: any JSON value in Value and Struct, instants and durations.

What Value cannot carry travels as a *tag*, an object with the single key `__ojs_json` whose value is JSON text: numbers
that a double would change, strings and keys with a lone surrogate, what nests deeper than `MAX_LEVELS`, an object that
looks like a tag, and a job's result that is no object.

A reader takes a message and returns JSON; it raises `UnreadableMessage`. A writer fills a message, which must be empty.
Values are those of `jsontext.loads`; a writer raises TypeError or ValueError for what JSON does not know.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sized
from contextvars import ContextVar
from decimal import Decimal
from typing import Any, NoReturn

from django_ojs import jsontext
from django_ojs.errors import OJSError
from django_ojs.messages import phrase
from django_ojs.rules import durations
from django_ojs.rules.faults import job_fault

TAG = "__ojs_json"
#: Arrays and objects within each other that are written as such. Parsers stop at 100 nested messages, and an object
#: takes three of them.
MAX_LEVELS = 24

_EXACT = 2**53  #: up to here every integer is a double
_PADDED = 1e21  #: up to here ECMAScript writes a number without an exponent
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_FIRST_SECOND, _LAST_SECOND = -62_135_596_800, 253_402_300_799  #: of the years 1 and 9999
_MAX_SECONDS = 315_576_000_000  #: of a Duration
_NANOS = re.compile(r"\.[0-9]{6}([0-9]{1,3})")


class UnreadableMessage(Exception):
    """The message has a value that JSON cannot represent. `problem` goes on from the name of the member: `must be a
    number`.

    The reader of an object or a list adds its own part of the path with `inside`.
    """

    def __init__(self, problem: str, received: Any = None, refuse: Callable[..., OJSError] = job_fault) -> None:
        super().__init__(problem)
        self.problem, self.received, self.refuse = problem, received, refuse
        self.parts: list[str | int] = []

    def inside(self, part: str | int) -> UnreadableMessage:
        self.parts.append(part)
        return self

    def error(self) -> OJSError:
        """The error for the client, with the path that the HTTP binding would name."""
        path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in reversed(self.parts))
        return self.refuse(path.removeprefix("."), self.problem, self.received)


# Reading

#: How many values the message that is being read may still have, and how many numbers that are read exactly; None
#: where there is no limit.
_room: ContextVar[list[int] | None] = ContextVar("room", default=None)


class TooMany(Exception):
    """A message has more of something (`values` or `numbers`) than `bounded` allows."""


@contextlib.contextmanager
def bounded(most: int, numbers: int) -> Iterator[None]:
    """Read one message. Raises TooMany before more than `most` keys and values, and messages in lists, are made, or
    more `numbers` that a double would change."""
    token = _room.set([most, numbers])
    try:
        yield
    finally:
        _room.reset(token)


def count(items: Sized, each: int = 1) -> None:
    """Called before the items of a list or of a map are read."""
    room = _room.get()
    if room is not None:
        room[0] -= each * len(items)
        if room[0] < 0:
            raise TooMany("values")


def _count_tag(value: Any) -> None:
    """`count` what a tag has held."""
    waiting = [value]
    while waiting:
        match waiting.pop():
            case dict() as members:
                count(members, 2)
                waiting += members.values()
            case list() as items:
                count(items)
                waiting += items
            case jsontext.ExactNumber() if (room := _room.get()) is not None:
                room[1] -= 1


def read_texts(texts: Any) -> list[str]:
    """A list of texts."""
    count(texts)
    return list(texts)


def read_value(value: Any) -> Any:
    """The JSON value of a Value."""
    return _READERS[value.WhichOneof("kind")](value)


def read_values(values: Any) -> list[Any]:
    """The JSON values of repeated Values."""
    count(values)
    found = []
    for index, value in enumerate(values):
        try:
            found.append(_READERS[value.WhichOneof("kind")](value))
        except UnreadableMessage as fault:
            raise fault.inside(index) from None
    return found


def read_object(struct: Any) -> dict[str, Any]:
    """The JSON object of a Struct that is never a tag as a whole, such as `meta`. Keys are sorted: Structs have no
    order, and the same message has to become the same text."""
    return _read_fields(struct.fields)


def read_result(struct: Any) -> Any:
    """The JSON value of a Struct that may be a tag: a job's result."""
    fields = struct.fields
    if len(fields) == 1 and TAG in fields:
        return _read_tag(fields[TAG])
    return _read_fields(fields)


def read_attributes(fields: Any) -> dict[str, Any]:
    """The members in a map of attributes, with those that `write_attributes` had to put under the tag."""
    if TAG not in fields:
        return _read_fields(fields)
    more = _read_tag(fields[TAG])
    if not isinstance(more, dict):
        raise UnreadableMessage(phrase("must be the text of a JSON object"), more).inside(TAG)
    return {name: value for name, value in _read_fields(fields).items() if name != TAG} | more


def read_number(number: float) -> float | int:
    """A double as ECMAScript prints it: 42.0 is the integer 42."""
    if number.is_integer():
        if -_EXACT <= number <= _EXACT:
            return int(number)
        return int(Decimal(repr(number))) if abs(number) < _PADDED else number
    if not math.isfinite(number):
        raise UnreadableMessage(phrase("must be a number; JSON has no NaN and no Infinity"), number)
    return number


def read_instant(timestamp: Any) -> str | None:
    """The RFC 3339 text of a Timestamp in UTC, with 0, 3, 6 or 9 digits of a second's fraction; None for zero."""
    seconds, nanos = timestamp.seconds, timestamp.nanos
    if not seconds and not nanos:
        return None
    if not (_FIRST_SECOND <= seconds <= _LAST_SECOND and 0 <= nanos < 1_000_000_000):
        raise UnreadableMessage(phrase("must be an instant in the years 1 to 9999, with 0 to 999999999 nanos"), seconds)
    text = (_EPOCH + dt.timedelta(seconds=seconds)).isoformat()[:19]
    if not nanos:
        return f"{text}Z"
    digits = f"{nanos:09d}"
    return f"{text}.{digits[:3] if digits.endswith('000000') else digits[:6] if digits.endswith('000') else digits}Z"


def read_milliseconds(duration: Any) -> int:
    """The whole milliseconds of a Duration, rounded up. It must not be negative."""
    seconds, nanos = duration.seconds, duration.nanos
    if not (0 <= seconds <= _MAX_SECONDS and 0 <= nanos < 1_000_000_000):
        raise UnreadableMessage(phrase("must be a duration of 0 s or more, with 0 to 999999999 nanos"), seconds)
    return int(seconds * 1000 - (-nanos // 1_000_000))


def read_duration(duration: Any) -> str:
    """The ISO 8601 text of a Duration, in whole milliseconds."""
    return durations.format_iso(read_milliseconds(duration))


def _read_fields(fields: Any) -> dict[str, Any]:
    count(fields, 2)
    found = {}
    for name in sorted(fields) if len(fields) > 1 else fields:
        value = fields[name]
        try:
            found[name] = _READERS[value.WhichOneof("kind")](value)
        except UnreadableMessage as fault:
            raise fault.inside(name) from None
    return found


def _read_number_value(value: Any) -> float | int:
    return read_number(value.number_value)


def _read_list(value: Any) -> list[Any]:
    return read_values(value.list_value.values)


def _read_struct(value: Any) -> Any:
    return read_result(value.struct_value)


def _read_nothing(value: Any) -> NoReturn:
    raise UnreadableMessage(phrase("must have a value; one of its kinds has to be set"))


def _read_tag(value: Any) -> Any:
    if value.WhichOneof("kind") != "string_value":
        raise UnreadableMessage(phrase("must be a string of JSON text")).inside(TAG)
    room = _room.get()
    try:
        found = jsontext.loads(value.string_value, None if room is None else jsontext.Bounds(room[0], room[1]))
    except jsontext.BeyondBounds as error:
        raise TooMany(error.what) from None
    except jsontext.JSONTextError as error:
        raise UnreadableMessage(phrase("must be a string of JSON text (%(error)s)", error=error)).inside(TAG) from error
    _count_tag(found)
    return found


_READERS: Mapping[str | None, Callable[[Any], Any]] = {
    "string_value": lambda value: value.string_value,
    "number_value": _read_number_value,
    "struct_value": _read_struct,
    "list_value": _read_list,
    "bool_value": lambda value: value.bool_value,
    "null_value": lambda value: None,
    None: _read_nothing,
}


# Writing


def write_value(message: Any, value: Any, room: int = MAX_LEVELS) -> None:
    """Fill a Value; `room` is how many arrays and objects may still be opened within each other."""
    (_WRITERS.get(type(value)) or _writer(value))(message, value, room)


def write_values(messages: Any, values: list[Any]) -> None:
    """Fill repeated Values."""
    for value in values:
        write_value(messages.add(), value)


def write_object(struct: Any, value: Mapping[str, Any]) -> dict[str, Any]:
    """Fill a Struct that is never a tag as a whole. Returns the members whose names it cannot carry, which have a lone
    surrogate: they go into attributes."""
    return _write_members(struct.fields, value, MAX_LEVELS - 1)


def write_result(struct: Any, value: Any) -> None:
    """Fill a Struct with any JSON value: an object as itself, anything else as a tag."""
    if isinstance(value, dict) and not (len(value) == 1 and TAG in value):
        if not _write_members(struct.fields, value, MAX_LEVELS - 1):
            return
        struct.Clear()
    struct.fields[TAG].string_value = jsontext.dumps(value)


def write_attributes(fields: Any, value: Mapping[str, Any]) -> None:
    """Fill a map of attributes. Members that are called like the tag, or whose names no message can carry, are one JSON
    object under the tag."""
    rest = {TAG: value[TAG]} if TAG in value else {}
    rest |= _write_members(fields, {name: value[name] for name in value if name != TAG} if rest else value, MAX_LEVELS)
    if rest:
        fields[TAG].string_value = jsontext.dumps(rest)


def is_double(number: int | Decimal) -> bool:
    """Whether the shortest text of the nearest double is this very number, so that a double can carry it."""
    try:
        double = float(number)
    except OverflowError:
        return False
    return math.isfinite(double) and Decimal(repr(double)) == number


def write_instant(timestamp: Any, text: Any) -> None:
    """Fill a Timestamp. ValueError for a text that is no RFC 3339 timestamp, and for the beginning of 1970, which would
    count as absent."""
    instant = _server_time(text) or durations.parse_instant(text)
    since = instant - _EPOCH
    seconds, nanos = since.days * 86_400 + since.seconds, since.microseconds * 1000
    if len(text) > 26 and (found := _NANOS.search(text)):
        nanos += int(found[1].ljust(3, "0"))
    if not seconds and not nanos:
        raise ValueError("a Timestamp of zero is absent")
    timestamp.seconds, timestamp.nanos = seconds, nanos


def write_milliseconds(duration: Any, ms: int) -> None:
    """Fill a Duration; one of zero is there, and counts."""
    duration.SetInParent()
    duration.seconds, duration.nanos = ms // 1000, ms % 1000 * 1_000_000


def write_duration(duration: Any, text: Any) -> None:
    """Fill a Duration. ValueError for a text that `read_duration` would not give back: attributes carry it."""
    ms = durations.parse_duration_ms(text)
    if durations.format_iso(ms) != text:
        raise ValueError("another spelling")
    write_milliseconds(duration, ms)


def _server_time(text: Any) -> dt.datetime | None:
    """The quick way for a time as the server writes it."""
    if type(text) is str and len(text) == 24 and text[10] == "T" and text[19] == "." and text[23] == "Z":
        try:
            return dt.datetime.fromisoformat(text)
        except ValueError:
            return None
    return None


def _write_members(fields: Any, value: Mapping[str, Any], room: int) -> dict[str, Any]:
    rest = {}
    for name, inner in value.items():
        try:
            message = fields[name]
        except UnicodeEncodeError:
            rest[name] = inner
            continue
        (_WRITERS.get(type(inner)) or _writer(inner))(message, inner, room)
    return rest


def _write_null(message: Any, value: None, room: int) -> None:
    message.null_value = 0


def _write_bool(message: Any, value: bool, room: int) -> None:
    message.bool_value = value


def _write_int(message: Any, value: int, room: int) -> None:
    if -_EXACT <= value <= _EXACT or is_double(value):
        message.number_value = value
    else:
        _write_tag(message, value)


def _write_float(message: Any, value: float, room: int) -> None:
    if not math.isfinite(value):
        raise ValueError("NaN and Infinity are not JSON numbers.")
    message.number_value = value


def _write_exact(message: Any, value: jsontext.ExactNumber, room: int) -> None:
    if is_double(value):
        message.number_value = float(value)
    else:
        _write_tag(message, value)


def _write_text(message: Any, value: str, room: int) -> None:
    try:
        message.string_value = value
    except UnicodeEncodeError:
        _write_tag(message, value)


def _write_list(message: Any, value: list[Any], room: int) -> None:
    if not room:
        _write_tag(message, value)
        return
    message.list_value.SetInParent()
    values = message.list_value.values
    for inner in value:
        (_WRITERS.get(type(inner)) or _writer(inner))(values.add(), inner, room - 1)


def _write_dict(message: Any, value: dict[str, Any], room: int) -> None:
    if not room or (len(value) == 1 and TAG in value):
        _write_tag(message, value)
        return
    message.struct_value.SetInParent()
    if _write_members(message.struct_value.fields, value, room - 1):
        message.Clear()
        _write_tag(message, value)


def _write_tag(message: Any, value: Any) -> None:
    message.struct_value.fields[TAG].string_value = jsontext.dumps(value)


_WRITERS: dict[type, Callable[[Any, Any, int], None]] = {
    str: _write_text,
    int: _write_int,
    float: _write_float,
    bool: _write_bool,
    type(None): _write_null,
    dict: _write_dict,
    list: _write_list,
    tuple: _write_list,
    jsontext.ExactNumber: _write_exact,
}


def _writer(value: Any) -> Callable[[Any, Any, int], None]:
    """The writer for a subclass, such as a translated text or an IntEnum."""
    for kind in type(value).__mro__:
        if kind in _WRITERS:
            return _WRITERS[kind]
    raise TypeError(f"Object of type {type(value).__name__} is not JSON serializable")
