"""The base classes of the serializers: how answers are shown, and how bodies are read and refused."""

from __future__ import annotations

import datetime as dt
import functools
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, ClassVar, TypeVar, cast

from django.utils.functional import cached_property
from rest_framework import serializers
from rest_framework.fields import SkipField, empty

from django_ojs.http import fields
from django_ojs.http.compat import whole
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
    """Shows one thing: its fields in their order, without those that are not `required` and have no value.

    Where that would cost too much, a subclass makes the answer in `show` (see `rendered_by_show`). A site's subclass
    may declare further fields (`customer = SerializerMethodField()`), or change what `show` returns.

    Attributes:
        first: the fields that stand before those that the class inherits.
        gathered: the fields that read what `gather` returns; those of a subclass read the instance.
        shown: the fields that only describe what `show` returns.
    """

    first: tuple[str, ...] = ()
    gathered: Mapping[str, serializers.Field[Any, Any, Any, Any]] = MappingProxyType({})
    shown: Mapping[str, serializers.Field[Any, Any, Any, Any]] = MappingProxyType({})

    class Meta:
        list_serializer_class = AnswerList

    def __init_subclass__(cls, **given: Any) -> None:
        super().__init_subclass__(**given)
        if "gather" in vars(cls):
            cls.gathered = dict(cls._declared_fields)

    def prepare(self, instances: list[Any]) -> None:
        """Called before these are shown: a subclass reads here what it needs for all of them."""

    def gather(self, instance: Any) -> Any:
        """What the fields read, where that is not the instance."""
        return instance

    def show(self, instance: Any) -> dict[str, Any]:
        """The members that no field is rendered for."""
        return {}

    def get_fields(self) -> dict[str, serializers.Field[Any, Any, Any, Any]]:
        found = super().get_fields()
        return {**{name: found[name] for name in self.first}, **found}

    def to_representation(self, instance: Any) -> dict[str, Any]:
        found, fields = self.show(instance), self._rendered_fields
        gathered = self.gather(instance) if fields else instance
        for name, key, field, is_own in fields:
            source = gathered if is_own else instance
            try:
                if key is None or type(source) is not dict:
                    value = field.get_attribute(source)
                elif (value := source.get(key, empty)) is empty:
                    if not (field.required or field.allow_null) and field.default is empty:
                        continue
                    value = field.get_attribute(source)
            except SkipField:  # it is not required, and not there
                continue
            if value is not None:
                found[name] = field.to_representation(value)
            elif field.required or field.read_only or field.allow_null:
                found[name] = None
        return found

    def own(self, shown: Mapping[str, Any]) -> dict[str, Any]:
        """What of the answer is of the class with `gather`, and not of a subclass."""
        return {name: value for name, value in shown.items() if name in self.gathered}

    @cached_property
    def _rendered_fields(self) -> list[tuple[str, str | None, Any, bool]]:
        """The fields that are rendered: their names; the keys under which they stand in a dict, if that is all that
        they look for; and whether they read what is gathered. `self.fields` copies all of them, so it is left alone
        where there are none."""
        declared = self._declared_fields
        described = {name for name, field in declared.items() if self.shown.get(name) is field}
        if self.shown and len(described) == len(declared):
            return []
        fields: list[Any] = [field for field in self._readable_fields if field.field_name not in described]
        return [
            (field.field_name, _key_of(field), field,
             declared.get(field.field_name) is self.gathered.get(field.field_name))
            for field in fields
        ]  # fmt: skip


def _key_of(field: Any) -> str | None:
    """The key of a field that reads one member of a dict, and nothing else of it."""
    plain = type(field).get_attribute is serializers.Field.get_attribute
    return field.source_attrs[0] if plain and len(field.source_attrs) == 1 else None


_Shared = TypeVar("_Shared", bound=AnswerSerializer)


@functools.cache
def shared(kind: type[_Shared]) -> _Shared:
    """The one instance that a process has of a serializer which needs nothing of a request: copying its fields takes
    longer than showing something with them."""
    return kind()


def rendered_by_show(kind: type[_Answer]) -> type[_Answer]:
    """Class decorator of the serializers of busy calls (push, lists of jobs, events): `show` renders the answer, since
    fields would cost too much, and the fields say for the OpenAPI document what it returns.

    A field that is not `required` may be absent. Further fields of a subclass are rendered.
    """
    kind.shown = dict(kind._declared_fields)
    return kind


class InstantField(serializers.DateTimeField):
    """A time in UTC with milliseconds, as everywhere in the binding."""

    def to_representation(self, value: dt.datetime | str) -> str:
        return value if isinstance(value, str) else format_instant(value)


class NumberField(serializers.FloatField):
    """A number as it is: an integer stays one."""

    def to_representation(self, value: float) -> Any:
        return value


class WholeNumberField(NumberField):
    """A number that is written as an integer where it is whole."""

    def to_representation(self, value: float) -> Any:
        return whole(value)


class MillisecondsField(WholeNumberField):
    """A mean of milliseconds, to three digits; 0 where there is none, or null where the field allows it."""

    def get_attribute(self, instance: Any) -> Any:
        found = super().get_attribute(instance)
        return 0 if found is None and not self.allow_null else found

    def to_representation(self, value: float) -> Any:
        return super().to_representation(round(value, 3))


class EitherField(serializers.Field[Any, Any, Any, Any]):
    """A value of one of several kinds, as it is. A field describes each kind."""

    def __init__(self, *kinds: serializers.Field[Any, Any, Any, Any], **given: Any) -> None:
        super().__init__(**given)
        self.kinds = kinds

    def to_representation(self, value: Any) -> Any:
        return value


class JSONValueField(serializers.JSONField):
    """A JSON value as it is, which a schema describes."""

    def __init__(self, schema: Mapping[str, Any], **given: Any) -> None:
        super().__init__(**given)
        self.schema = schema


class DocumentField(JSONValueField):
    """A JSON object as it is kept. `members` are the schemas of those that mean something; there may be others."""

    def __init__(self, members: Mapping[str, Any], **given: Any) -> None:
        super().__init__(open_object(**members), **given)


def open_object(**members: Any) -> dict[str, Any]:
    """The schema of an object that has these members and may have others."""
    return {"type": "object", "properties": members, "additionalProperties": True}


class FilledField(serializers.CharField):
    """A text that has no value where it is empty."""

    def get_attribute(self, instance: Any) -> Any:
        return super().get_attribute(instance) or None


class StateField(serializers.ChoiceField):
    """The state of a job."""

    def __init__(self, **given: Any) -> None:
        super().__init__([state.value for state in State], **given)


class SearchedSerializer(AnswerSerializer):
    """How far a search got: how many jobs it looked at, and back to when."""

    jobs = serializers.IntegerField()
    up_to = InstantField()


class PaginationSerializer(AnswerSerializer):
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
    searched = SearchedSerializer(required=False)


class OnePageSerializer(AnswerSerializer):
    """What a list has beside its items."""

    pagination = PaginationSerializer()


class CountedPageSerializer(OnePageSerializer):
    """What a list whose items are counted has beside them: `total` at the top too, where clients look for it."""

    total = serializers.IntegerField()


class CappedPageSerializer(CountedPageSerializer):
    """What a list whose items are counted up to a bound has beside them."""

    total_is_minimum = serializers.BooleanField(required=False)


class ErrorDetailSerializer(AnswerSerializer):
    """What `OJSError.as_dict` says of an error. An error of a site's own may say more."""

    open = True

    code = serializers.CharField()
    type = serializers.CharField(required=False)
    canonical_code = serializers.CharField(required=False)
    message = serializers.CharField()
    retryable = serializers.BooleanField()
    details = serializers.DictField()
    hint = serializers.CharField()
    docs_url = serializers.CharField()
    doc_url = serializers.CharField()
    request_id = serializers.CharField()
    queue = serializers.CharField(required=False, help_text="The queue that is full.")
    depth = serializers.IntegerField(required=False)
    bound = serializers.IntegerField(required=False)
    strategy = serializers.CharField(required=False)
    extension = serializers.CharField(required=False, help_text="The extension that the server does not have.")
    max_batch_size = serializers.IntegerField(required=False)

    def to_representation(self, instance: dict[str, Any]) -> dict[str, Any]:
        """In the order in which it was given."""
        return {**instance, **super().to_representation(instance)}


class ErrorSerializer(AnswerSerializer):
    """The answer to a call that failed (binding 4)."""

    error = ErrorDetailSerializer()


class WarningSerializer(AnswerSerializer):
    """What was accepted and is probably a mistake: a member that means nothing here, with the name that was probably
    meant, or what a schema has against the arguments. `index` is the place in a batch."""

    code = serializers.ChoiceField(["unknown_member", "schema_validation"])
    path = serializers.CharField(required=False)
    message = serializers.CharField()
    suggestion = serializers.CharField(required=False)
    schema = serializers.CharField(required=False)
    index = serializers.IntegerField(required=False)


class WarnedSerializer(AnswerSerializer):
    """What an answer has beside the rest where something was probably a mistake."""

    warnings = WarningSerializer(many=True, required=False)


def warned(warnings: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """What `WarnedSerializer` shows: nothing where there is no warning."""
    found = [*warnings]
    return {"warnings": found} if found else {}


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
        return fields.text({str(self.field_name): data}, str(self.field_name), maximum=self.max_length or 255)


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
