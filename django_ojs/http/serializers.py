"""The base classes of the serializers: how answers are shown, and how bodies are read and refused."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar, TypeVar, cast

from django.utils.functional import cached_property
from rest_framework import serializers
from rest_framework.fields import empty

from django_ojs.http import fields
from django_ojs.rules.durations import format_instant
from django_ojs.states import State

_Answer = TypeVar("_Answer", bound="AnswerSerializer")


class AnswerList(serializers.ListSerializer[Any]):
    """Several of one kind, whose figures are read at once."""

    def to_representation(self, data: Any) -> list[Any]:
        rows, child = list(data), cast("AnswerSerializer", self.child)
        child.prepare(rows)
        return [child.to_representation(row) for row in rows]


class AnswerSerializer(serializers.Serializer[Any]):
    """Shows one thing. A subclass declares fields, or makes the answer in `show`, or both.

    A site's subclass may declare further fields (`customer = SerializerMethodField()`), or change what `show` returns.

    Attributes:
        optional: fields that are left out where they have no value.
        shown: the fields that only describe what `show` returns (see `rendered_by_show`).
    """

    optional: frozenset[str] = frozenset()
    shown: Mapping[str, serializers.Field[Any, Any, Any, Any]] = MappingProxyType({})

    class Meta:
        list_serializer_class = AnswerList

    def prepare(self, instances: list[Any]) -> None:
        """Called before these are shown: a subclass reads here what it needs for all of them."""

    def show(self, instance: Any) -> dict[str, Any]:
        """The members that no field is rendered for."""
        return {}

    def to_representation(self, instance: Any) -> dict[str, Any]:
        found = self.show(instance)
        for field in self._rendered_fields:
            name = str(field.field_name)
            value = field.get_attribute(instance)
            if value is not None:
                found[name] = field.to_representation(value)
            elif name not in self.optional:
                found[name] = None
        return found

    @cached_property
    def _rendered_fields(self) -> list[Any]:
        """The fields that are rendered. `self.fields` copies all of them, so it is left alone where there are none."""
        declared = self._declared_fields
        names = {name for name, field in declared.items() if self.shown.get(name) is not field}
        return [field for field in self._readable_fields if field.field_name in names] if names else []


def rendered_by_show(kind: type[_Answer]) -> type[_Answer]:
    """Class decorator of an `AnswerSerializer` whose fields say, for the OpenAPI document, what its `show` returns.

    `show` renders the answer, because it is faster, or because it leaves members out. A field that is not `required`
    may be absent. Further fields of a subclass are rendered.
    """
    kind.shown = dict(kind._declared_fields)
    return kind


class InstantField(serializers.DateTimeField):
    """A time in UTC with milliseconds, as everywhere in the binding."""

    def to_representation(self, value: dt.datetime) -> str:
        return format_instant(value)


class FilledField(serializers.CharField):
    """A text that has no value where it is empty."""

    def get_attribute(self, instance: Any) -> Any:
        return super().get_attribute(instance) or None


class StateField(serializers.ChoiceField):
    """The state of a job."""

    def __init__(self, **given: Any) -> None:
        super().__init__([state.value for state in State], **given)


class PaginationSerializer(serializers.Serializer[Any]):
    """Where the items of a list stand."""

    total = serializers.IntegerField(required=False)
    limit = serializers.IntegerField()
    offset = serializers.IntegerField(required=False)
    page = serializers.IntegerField(required=False)
    per_page = serializers.IntegerField()
    has_more = serializers.BooleanField()
    next_cursor = serializers.CharField(required=False)
    total_is_minimum = serializers.BooleanField(
        required=False, help_text="There are more than `total`: they were counted no further."
    )


class ErrorDetailSerializer(serializers.Serializer[Any]):
    code = serializers.CharField()
    type = serializers.CharField(required=False)
    canonical_code = serializers.CharField(required=False)
    message = serializers.CharField()
    retryable = serializers.BooleanField()
    details = serializers.DictField()
    hint = serializers.CharField()
    docs_url = serializers.CharField()
    request_id = serializers.CharField()


class ErrorSerializer(serializers.Serializer[Any]):
    """The answer to a call that failed (binding 4)."""

    error = ErrorDetailSerializer()


class WarningSerializer(serializers.Serializer[Any]):
    """What was accepted and is probably a mistake: a member that means nothing here, with the name that was probably
    meant, or what a schema has against the arguments. `index` is the place in a batch."""

    code = serializers.ChoiceField(["unknown_member", "schema_validation"])
    path = serializers.CharField(required=False)
    message = serializers.CharField()
    suggestion = serializers.CharField(required=False)
    schema = serializers.CharField(required=False)
    index = serializers.IntegerField(required=False)


class EnvelopeSerializer(serializers.Serializer[Any]):
    """A job as it is pushed: `schemas/envelope.json`."""


class BodySerializer(serializers.Serializer[Any]):
    """Reads a body. Members that it does not declare are ignored; the first faulty one is refused by its name.

    Attributes:
        needed: whether there must be a body.
        closed: whether there may be no other members than the fields.
    """

    needed: ClassVar[bool] = True
    closed: ClassVar[bool] = False


class NothingSerializer(BodySerializer):
    """A JSON object in which nothing counts."""

    needed = False


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
