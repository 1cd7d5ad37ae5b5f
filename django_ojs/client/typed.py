"""Take UUIDs, dates, decimals, enums and model instances as arguments: `@job("order.send", args=Typed)`.

The annotations of the handler say what an argument is. On the wire it is plain JSON (a UUID is its text, an instance
its primary key), so clients in every language can send such jobs; the worker makes of it what the annotation says.
"""

from __future__ import annotations

import datetime as dt
import enum
import inspect
import types
import uuid
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal, InvalidOperation
from typing import Annotated, Any, Literal, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints

from django.db.models import Model
from django.utils.dateparse import parse_duration
from django.utils.duration import duration_iso_string

from django_ojs.client.options import decode_arguments, encode_arguments
from django_ojs.messages import shown, with_article
from django_ojs.registry import InvalidHandler

KNOWN = (
    "UUID, date, datetime, time, timedelta, Decimal, enums, models, these or None, and lists, tuples and dicts of them"
)


class Typed:
    """What `@job(args=Typed)` takes: the arguments of its jobs are what the annotations of the handler say."""


class Converter(NamedTuple):
    """How values of a type get onto the wire and back. `encode` also takes what the wire has, as `decode` does."""

    encode: Callable[[Any], Any]
    decode: Callable[[Any], Any]


class TypedArguments:
    """The arguments of a handler by its annotations. Raises InvalidHandler for one that is none of `KNOWN`.

    Attributes: `reads_database` (whether an argument is a model instance).
    """

    def __init__(self, handler: Callable[..., Any], signature: inspect.Signature) -> None:
        try:
            hints = get_type_hints(handler, include_extras=False)
        except (NameError, TypeError, AttributeError) as error:
            raise InvalidHandler(f"args=Typed cannot read the annotations: {error}.") from None
        self._places: list[tuple[str, Converter | None]] = []
        self._names: dict[str, Converter | None] = {}
        self._rest: tuple[str, Converter | None] = ("", None)
        self._others: Converter | None = None
        self.reads_database = False
        for name, parameter in signature.parameters.items():
            found = self._of(hints[name], name) if name in hints else None
            match parameter.kind:
                case parameter.VAR_POSITIONAL:
                    self._rest = (name, found)
                case parameter.VAR_KEYWORD:
                    self._others = found
                case parameter.KEYWORD_ONLY:
                    self._names[name] = found
                case _:
                    self._places.append((name, found))
                    self._names[name] = found

    def encode(self, args: Sequence[Any]) -> list[Any]:
        """The `args` of a job for a caller's. Raises TypeError, which names the parameter, for a value of another
        type."""
        return encode_arguments(*self._convert("encode", *decode_arguments(args)))

    def decode(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """The handler's arguments for those of a job. Raises TypeError for what no client should have sent, and
        DoesNotExist for an instance that is gone."""
        return self._convert("decode", args, kwargs)

    def _convert(self, way: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        places = [*self._places, *[self._rest] * (len(args) - len(self._places))]
        found = [_converted(way, *place, value) for place, value in zip(places, args, strict=False)]
        named = {
            name: _converted(way, name, self._names.get(name, self._others), value) for name, value in kwargs.items()
        }
        return found, named

    def _of(self, kind: Any, name: str) -> Converter | None:
        """The converter of a type; None where JSON has its values."""
        origin, inner = get_origin(kind), get_args(kind)
        if origin is Annotated:
            return self._of(inner[0], name)
        if origin in (Union, types.UnionType):
            return self._of_union([one for one in inner if one is not types.NoneType], name)
        if origin not in (None, Literal):
            return self._of_container(kind, origin, inner, name)
        if kind is Any or origin is Literal or isinstance(kind, TypeVar):
            return None
        if isinstance(kind, type):
            if issubclass(kind, enum.Enum):
                return _of_enum(kind, name)
            if issubclass(kind, Model):
                self.reads_database = True
                return _of_model(kind, name)
            if kind in _SCALARS:
                return _SCALARS[kind]
            if kind is object or issubclass(kind, str | int | float | types.NoneType | dict | list):
                return None
        raise _unknown(kind, name)

    def _of_container(self, kind: Any, origin: Any, inner: tuple[Any, ...], name: str) -> Converter | None:
        if not inner:  # `typing.List`, `tuple[()]`
            return self._of(origin, name)
        if origin is tuple:
            return self._of_tuple(inner, name)
        if isinstance(origin, type) and issubclass(origin, Mapping) and len(inner) == 2:
            self._check_keys(inner[0], name)
            return _mapped(self._of(inner[1], name))
        if isinstance(origin, type) and issubclass(origin, Sequence):
            return _listed(self._of(inner[0], name))
        raise _unknown(kind, name)

    def _check_keys(self, kind: Any, name: str) -> None:
        """Refuse what JSON has no keys of: those are texts."""
        if isinstance(kind, type) and issubclass(kind, str):  # members of a StrEnum, too
            return
        wrong = isinstance(kind, type) and kind not in (Any, object)
        if wrong or self._of(kind, name) is not None:
            raise InvalidHandler(f"its parameter {name} is a dict with keys that are no texts, and JSON has no others.")

    def _of_union(self, kinds: Sequence[Any], name: str) -> Converter | None:
        found = [self._of(kind, name) for kind in kinds]
        if not any(found):
            return None
        if len(found) > 1:
            raise InvalidHandler(f"its parameter {name} may be one of several types, which JSON does not tell apart.")
        (one,) = found
        return one and Converter(*(_unless_none(function) for function in one))

    def _of_tuple(self, kinds: Sequence[Any], name: str) -> Converter:
        if len(kinds) == 2 and kinds[1] is Ellipsis:
            one = self._of(kinds[0], name) or _PLAIN
            return Converter(lambda value: [one.encode(item) for item in _sequence(value)],
                             lambda value: tuple(one.decode(item) for item in _sequence(value)))  # fmt: skip
        each = [self._of(kind, name) or _PLAIN for kind in kinds]
        return Converter(
            lambda value: [one.encode(item) for one, item in zip(each, _sequence(value), strict=True)],
            lambda value: tuple(one.decode(item) for one, item in zip(each, _sequence(value), strict=True)),
        )


def _unknown(kind: Any, name: str) -> InvalidHandler:
    return InvalidHandler(f"its parameter {name} is {kind!r:.100}, and args=Typed knows {KNOWN}.")


def _converted(way: str, name: str, converter: Converter | None, value: Any) -> Any:
    if converter is None:
        return value
    try:
        return getattr(converter, way)(value)
    except (TypeError, ValueError, InvalidOperation) as error:
        raise TypeError(f"The argument {name} cannot be {shown(value)}: {error}") from None


def _sequence(value: Any) -> Sequence[Any]:
    if not isinstance(value, list | tuple):
        raise TypeError("it must be a list or a tuple.")
    return value


def _unless_none(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: None if value is None else function(value)


def _listed(one: Converter | None) -> Converter | None:
    if one is None:
        return None
    return Converter(lambda value: [one.encode(item) for item in _sequence(value)],
                     lambda value: [one.decode(item) for item in _sequence(value)])  # fmt: skip


def _mapped(one: Converter | None) -> Converter | None:
    if one is None:
        return None
    return Converter(lambda value: {key: one.encode(item) for key, item in dict(value).items()},
                     lambda value: {key: one.decode(item) for key, item in dict(value).items()})  # fmt: skip


def _scalar(kind: type, write: Callable[[Any], str], read: Callable[[str], Any]) -> Converter:
    """Of a type whose values are texts on the wire."""

    def decode(value: Any) -> Any:
        if not isinstance(value, str):
            raise TypeError(f"it must be {with_article(kind.__name__)}, or its text.")
        return read(value)

    def encode(value: Any) -> str:
        right = isinstance(value, kind) and not (kind is dt.date and isinstance(value, dt.datetime))
        return write(value if right else decode(value))

    return Converter(encode, decode)


def _duration(text: str) -> dt.timedelta:
    found = parse_duration(text)
    if found is None:
        raise ValueError("it is no duration.")
    return found


def _decimal(text: str) -> Decimal:
    try:
        return Decimal(text)
    except InvalidOperation:
        raise ValueError("it is no number.") from None


_SCALARS: dict[type, Converter] = {
    uuid.UUID: _scalar(uuid.UUID, str, uuid.UUID),
    dt.datetime: _scalar(dt.datetime, dt.datetime.isoformat, dt.datetime.fromisoformat),
    dt.date: _scalar(dt.date, dt.date.isoformat, dt.date.fromisoformat),
    dt.time: _scalar(dt.time, dt.time.isoformat, dt.time.fromisoformat),
    dt.timedelta: _scalar(dt.timedelta, duration_iso_string, _duration),
    Decimal: _scalar(Decimal, str, _decimal),
}


def on_wire(value: Any) -> Any:
    """The value as a parameter of its own type has it on the wire; as it is where no such parameter would."""
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, Model):
        return on_wire(value.pk)
    kind = next((kind for kind in _SCALARS if isinstance(value, kind)), None)
    return value if kind is None else _SCALARS[kind].encode(value)


_PLAIN = Converter(lambda value: value, lambda value: value)


def _of_enum(kind: type[enum.Enum], name: str) -> Converter:
    if not all(type(member.value) in (str, int, float, bool, types.NoneType) for member in kind):
        raise InvalidHandler(f"its parameter {name} is {kind.__name__}, whose values are not all texts and numbers.")
    return Converter(lambda value: kind(value).value, kind)


#: Of the kinds of primary keys that JSON does not have.
_KEYS = {
    "UUIDField": uuid.UUID, "DateField": dt.date, "DateTimeField": dt.datetime, "TimeField": dt.time,
    "DurationField": dt.timedelta, "DecimalField": Decimal,
}  # fmt: skip


def _key_of(kind: type[Model]) -> Converter:
    """How the primary key of a model gets onto the wire and back; that of a model it extends may be its own, too."""
    field: Any = kind._meta.pk
    while field.is_relation:
        field = field.target_field
    found = _KEYS.get(field.get_internal_type())
    return _PLAIN if found is None else _SCALARS[found]


def _of_model(kind: type[Model], name: str) -> Converter:
    if kind._meta.abstract:
        raise InvalidHandler(f"its parameter {name} is the abstract model {kind.__name__}, which has no instances.")

    def encode(value: Any) -> Any:
        if isinstance(value, Model):
            if not isinstance(value, kind):
                raise TypeError(f"it must be {with_article(kind.__name__)}.")
            if value.pk is None:
                raise TypeError("it is not saved, and has no primary key.")
            value = value.pk
        return _key_of(kind).encode(value)

    return Converter(encode, lambda value: kind._default_manager.get(pk=_key_of(kind).decode(value)))
