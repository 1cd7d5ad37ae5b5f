"""Says how a message and a JSON object become each other: kinds of fields, and tables of them (`MessageShape`).

What has no field in a message, or does not fit it (a text where a number belongs, another spelling of a duration), is
an attribute under its own name. So nothing is lost, and a faulty document is as faulty behind the message as before it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from django_ojs.errors import OJSError
from django_ojs.grpc import values
from django_ojs.grpc.definition import ENUMS, MESSAGES
from django_ojs.grpc.values import UnreadableMessage
from django_ojs.jsontext import digits, is_integer
from django_ojs.messages import phrase
from django_ojs.rules import durations
from django_ojs.rules.faults import fault

ATTRIBUTES = 200  #: the number of the field

Document = dict[str, Any]
Filled = Callable[[], Document]


class Unfit(Exception):
    """The field of the message cannot hold this value, or not all of it: an attribute carries the value."""


class FieldKind(NamedTuple):
    """How one field is read and written. `write` takes the message, the name of the field and the value."""

    read: Callable[[Any], Any]
    write: Callable[[Any, str, Any], None]


def same(value: Any) -> Any:
    return value


def scalar(*types: type) -> Callable[[Any, str, Any], None]:
    allowed = frozenset(types)

    def write(message: Any, field: str, value: Any) -> None:
        if type(value) not in allowed:
            raise Unfit
        setattr(message, field, value)  # UnicodeEncodeError for a lone surrogate, ValueError for too large a number

    return write


def _write_integer(message: Any, field: str, value: Any) -> None:
    if not is_integer(value):
        raise Unfit
    setattr(message, field, int(value))


def _write_count(message: Any, field: str, value: Any) -> None:
    if type(value) is str:
        value = digits(value)
    _write_integer(message, field, value)


def _write_double(message: Any, field: str, value: Any) -> None:
    if type(value) is not float and not (type(value) is int and values.is_double(value)):
        raise Unfit
    setattr(message, field, float(value))


def list_of(kind: type) -> Callable[[Any, str, Any], None]:
    def write(message: Any, field: str, value: Any) -> None:
        if type(value) is not list or not all(type(item) is kind for item in value):
            raise Unfit
        getattr(message, field).extend(value)

    return write


def filling(fill: Callable[[Any, Any], None], *types: type) -> Callable[[Any, str, Any], None]:
    """A writer that fills a field which is a message; what it began is undone where the value does not fit."""

    def write(message: Any, field: str, value: Any) -> None:
        if types and type(value) not in types:
            raise Unfit
        try:
            fill(getattr(message, field), value)
        except ValueError as error:
            message.ClearField(field)
            raise Unfit from error

    return write


def _write_values(message: Any, field: str, value: Any) -> None:
    if type(value) is not list:
        raise Unfit
    values.write_values(getattr(message, field), value)


def write_object(message: Any, field: str, value: Any) -> None:
    """Members that a Struct cannot name are in the attribute, and `Shape.read` puts both together."""
    if type(value) is not dict:
        raise Unfit
    struct = getattr(message, field)
    struct.SetInParent()
    if rest := values.write_object(struct, value):
        raise _Rest(rest)


class _Rest(Unfit):
    """The members of an object that its field could not take."""


def _write_result(message: Any, field: str, value: Any) -> None:
    struct = getattr(message, field)
    struct.SetInParent()
    values.write_result(struct, value)


def _fill_milliseconds(duration: Any, value: Any) -> None:
    if not is_integer(value) or not 0 <= value <= durations.MAX_MS:
        raise ValueError("no whole milliseconds")
    values.write_milliseconds(duration, int(value))


def _fill_relative(duration: Any, value: Any) -> None:
    if not value.startswith("+"):
        raise ValueError("an instant")
    values.write_duration(duration, value[1:])


def _read_ttl(duration: Any) -> str:
    if not values.read_milliseconds(duration):
        raise UnreadableMessage(phrase("must be longer than zero"))
    return f"+{values.read_duration(duration)}"


TEXT = FieldKind(same, scalar(str))
FLAG = FieldKind(same, scalar(bool))
INTEGER = FieldKind(same, _write_integer)
COUNT = FieldKind(same, _write_count)  #: in the query of HTTP, where it is a text
DOUBLE = FieldKind(values.read_number, _write_double)
TEXTS = FieldKind(values.read_texts, list_of(str))
VALUES = FieldKind(values.read_values, _write_values)
OBJECT = FieldKind(values.read_object, write_object)
RESULT = FieldKind(values.read_result, _write_result)
INSTANT = FieldKind(values.read_instant, filling(values.write_instant, str))
DURATION = FieldKind(values.read_duration, filling(values.write_duration, str))
MILLISECONDS = FieldKind(values.read_milliseconds, filling(_fill_milliseconds))
TTL = FieldKind(_read_ttl, filling(_fill_relative, str))


class Words:
    """An enum's words in JSON: those of its numbers, without the prefix. `also` has words that mean one of them and
    are kept as attributes."""

    def __init__(self, enum: str, prefix: str, also: Mapping[str, str] | None = None) -> None:
        self.words = {
            value.number: value.name.removeprefix(prefix).lower() for value in ENUMS[enum].values if value.number
        }
        self.numbers = {word: number for number, word in self.words.items()}
        self.also = {word: self.numbers[meant] for word, meant in (also or {}).items()}

    def read(self, number: int) -> str:
        word = self.words.get(number)
        if word is None:
            raise UnreadableMessage(phrase("must be one of %(words)s", words=", ".join(self.numbers)), number, fault)
        return word

    def write(self, message: Any, field: str, value: Any) -> None:
        if type(value) is not str:
            raise Unfit
        if value in self.also:
            setattr(message, field, self.also[value])
            raise Unfit
        if value not in self.numbers:
            raise Unfit
        setattr(message, field, self.numbers[value])

    def read_list(self, numbers: Any) -> list[str]:
        values.count(numbers)
        return [self.read(number) for number in numbers]

    def write_list(self, message: Any, field: str, value: Any) -> None:
        if type(value) is not list or not all(type(word) is str and word in self.numbers for word in value):
            raise Unfit
        getattr(message, field).extend(self.numbers[word] for word in value)

    @property
    def one(self) -> FieldKind:
        return FieldKind(self.read, self.write)

    @property
    def many(self) -> FieldKind:
        return FieldKind(self.read_list, self.write_list)


class MessageShape:
    """How a message and a JSON object become each other.

    Args:
        name: the message's.
        fields: the kind of each field, or (kind, name of the member) where it is called differently.
        answer: whether attributes beat fields.
        filled: the members that are always there, with the zero that the wire does not carry.
        before: makes of the JSON object the one that the fields and attributes are written from.
        beside: writes what follows from the JSON object and has no member of its own; such fields are not read.
        after: makes of what was read the JSON object.
        refuse: makes every error of a request.
    """

    def __init__(
        self,
        name: str,
        fields: Mapping[str, FieldKind | tuple[FieldKind, str]] | None = None,
        *,
        answer: bool = False,
        filled: Filled = dict,
        before: Callable[[Document], Document] | None = None,
        beside: Callable[[Any, Mapping[str, Any]], None] | None = None,
        after: Callable[[Document], Document] | None = None,
        refuse: Callable[..., OJSError] | None = None,
    ) -> None:
        self.type: Any = MESSAGES[name]
        self.answer, self.filled = answer, filled
        self.before, self.beside, self.after, self.refuse = before, beside, after, refuse
        descriptors = self.type.DESCRIPTOR.fields_by_name
        self.has_attributes = "attributes" in descriptors
        self._readers: dict[int, tuple[str, Callable[[Any], Any]]] = {}
        self._writers: dict[str, tuple[str, Callable[[Any, str, Any], None], bool]] = {}
        always = filled()
        for field, given in (fields or {}).items():
            kind, member = given if not isinstance(given, FieldKind) else (given, "")
            member = member or field
            descriptor = descriptors[field]
            self._readers[descriptor.number] = (member, kind.read)
            self._writers[member] = (field, kind.write, descriptor.has_presence or member in always)

    def read(self, message: Any) -> Document:
        """The JSON object. Raises Unreadable."""
        document = self.read_members(message)
        return document if self.after is None else self.after(document)

    def read_members(self, message: Any) -> Document:
        """What is in the message, before it is made into what HTTP has."""
        document: Document = {}
        readers = self._readers
        for descriptor, value in message.ListFields():
            number = descriptor.number
            if number == ATTRIBUTES:
                self._add_attributes(document, values.read_attributes(value))
                break
            found = readers.get(number)
            if found is not None:
                try:
                    read = found[1](value)
                except UnreadableMessage as unreadable:
                    raise unreadable.inside(found[0]) from None
                if read is not None or found[1] is not values.read_instant:  # a Timestamp of zero is absent
                    document[found[0]] = read
        return {**self.filled(), **document} if self.filled is not dict else document

    def write(self, message: Any, document: Mapping[str, Any]) -> None:
        """Fill an empty message. What has no field becomes an attribute; it is lost where the message has none."""
        if self.before is not None:
            document = self.before(dict(document))
        rest: Document = {}
        writers = self._writers
        for name, value in document.items():
            found = writers.get(name)
            if found is None or not (value or found[2]):
                rest[name] = value
                continue
            try:
                found[1](message, found[0], value)
            except _Rest as left:
                rest[name] = left.args[0]
            except (Unfit, ValueError):  # ValueError: a lone surrogate, or a number that is too large
                rest[name] = value
        if rest and self.has_attributes:
            values.write_attributes(message.attributes, rest)
        if self.beside is not None:
            self.beside(message, document)

    def write_member(self, message: Any, name: str, value: Any) -> bool:
        """Fill the field of one member, if the value fits it whole; else leave it empty."""
        field, write, zero_counts = self._writers[name]
        if not (value or zero_counts):
            return False
        try:
            write(message, field, value)
        except (Unfit, ValueError):
            message.ClearField(field)
            return False
        return True

    def _add_attributes(self, document: Document, attributes: Document) -> None:
        for name, value in attributes.items():
            known = document.get(name)
            if isinstance(known, dict) and isinstance(value, dict) and self.is_object(name):
                document[name] = {**value, **known}
            elif self.answer or name not in document:
                document[name] = value

    def is_object(self, name: str) -> bool:
        found = self._writers.get(name)
        return found is not None and found[1] is write_object


def nested(shape: MessageShape) -> FieldKind:
    """A field that is one message."""

    def write(message: Any, field: str, value: Any) -> None:
        if type(value) is not dict:
            raise Unfit
        inner = getattr(message, field)
        inner.SetInParent()
        shape.write(inner, value)

    return FieldKind(shape.read, write)


def repeated(shape: MessageShape) -> FieldKind:
    """A field that is many messages."""

    def read(messages: Any) -> list[Document]:
        values.count(messages)
        found = []
        for index, message in enumerate(messages):
            try:
                found.append(shape.read(message))
            except UnreadableMessage as unreadable:
                raise unreadable.inside(index) from None
        return found

    def write(message: Any, field: str, value: Any) -> None:
        if type(value) is not list or not all(type(item) is dict for item in value):
            raise Unfit
        messages = getattr(message, field)
        for item in value:
            shape.write(messages.add(), item)

    return FieldKind(read, write)
