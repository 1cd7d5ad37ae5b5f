"""The base classes of the serializers: how answers are shown, and how bodies are read and refused."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from typing import Any, cast

from rest_framework import serializers
from rest_framework.fields import empty

from django_ojs.http import fields
from django_ojs.rules.durations import format_instant


class AnswerList(serializers.ListSerializer[Any]):
    """Several of one kind, whose figures are read at once."""

    def to_representation(self, data: Any) -> list[Any]:
        rows, child = list(data), cast("AnswerSerializer", self.child)
        child.prepare(rows)
        return [child.to_representation(row) for row in rows]


class AnswerSerializer(serializers.Serializer[Any]):
    """Shows one thing. A subclass declares fields, or makes the answer in `show`, or both.

    A site's subclass may declare further fields (`customer = SerializerMethodField()`), or change what `show` returns.
    Fields in `optional` are left out where they have no value.
    """

    optional: frozenset[str] = frozenset()

    class Meta:
        list_serializer_class = AnswerList

    def prepare(self, instances: list[Any]) -> None:
        """Called before these are shown: a subclass reads here what it needs for all of them."""

    def show(self, instance: Any) -> dict[str, Any]:
        """The members that no field is declared for."""
        return {}

    def to_representation(self, instance: Any) -> dict[str, Any]:
        found = self.show(instance)
        for field in self._readable_fields:
            name = str(field.field_name)
            value = field.get_attribute(instance)
            if value is not None:
                found[name] = field.to_representation(value)
            elif name not in self.optional:
                found[name] = None
        return found


class InstantField(serializers.DateTimeField):
    """A time in UTC with milliseconds, as everywhere in the binding."""

    def to_representation(self, value: dt.datetime) -> str:
        return format_instant(value)


class BodySerializer(serializers.Serializer[Any]):
    """Reads a body. Members that it does not declare are ignored; the first faulty one is refused by its name."""


class TextField(serializers.CharField):
    """A printable text of at most `max_length` characters; null is as good as absent."""

    def __init__(self, *, max_length: int = 255, **given: Any) -> None:
        super().__init__(max_length=max_length, **_absent(given))

    def run_validation(self, data: Any = empty) -> Any:
        return serializers.Field.run_validation(self, data)

    def to_internal_value(self, data: Any) -> Any:
        return fields.text({self.name: data}, self.name, maximum=self.max_length or 255)

    @property
    def name(self) -> str:
        return str(self.field_name)


class ObjectField(serializers.DictField):
    """A JSON object, kept as it came."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**_absent(given))

    def to_internal_value(self, data: Any) -> Any:
        return fields.member({str(self.field_name): data}, str(self.field_name))


class FlagField(serializers.BooleanField):
    """true or false, and no text that means one of them."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**_absent(given))

    def to_internal_value(self, data: Any) -> Any:
        return fields.flag({str(self.field_name): data}, str(self.field_name))


def _absent(given: Mapping[str, Any]) -> dict[str, Any]:
    return {"required": False, "allow_null": True, **given}
