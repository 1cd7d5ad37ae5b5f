"""How answers are shown: what is left out, what comes first, and values that keep their form."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
from rest_framework import serializers

from django_ojs.http.serializers import (
    AnswerSerializer,
    DocumentField,
    EitherField,
    FilledField,
    InstantField,
    MillisecondsField,
    NumberField,
    WholeNumberField,
    rendered_by_show,
)


class Thing(AnswerSerializer):
    name = serializers.CharField()
    owner = FilledField(required=False)
    at = InstantField(allow_null=True)


class Shown(Thing):
    first = ("kind",)

    kind = serializers.CharField()


@rendered_by_show
class ByHand(Thing):
    def show(self, instance: Any) -> dict[str, Any]:
        return {"name": instance["name"].upper()}


class WithMore(ByHand):
    size = serializers.IntegerField()


def test_a_member_that_is_not_required_is_left_out_where_it_has_no_value() -> None:
    at = dt.datetime(2026, 1, 2, tzinfo=dt.UTC)
    assert Thing({"name": "a", "owner": "b", "at": at}).data == {
        "name": "a",
        "owner": "b",
        "at": "2026-01-02T00:00:00.000Z",
    }
    for empty in ({"owner": None}, {"owner": ""}, {}):
        assert Thing({"name": "a", "at": None, **empty}).data == {"name": "a", "at": None}


def test_what_is_not_declared_is_not_shown_and_what_is_required_must_be_there() -> None:
    assert Thing({"name": "a", "at": None, "secret": 1}).data == {"name": "a", "at": None}
    with pytest.raises(KeyError):
        Thing({"at": None}).data  # noqa: B018 - it is a property that renders


class Gathered(Thing):
    def gather(self, instance: Any) -> Any:
        return {"name": f"{instance['first']} {instance['last']}", "at": None}


class GatheredWithMore(Gathered):
    last = serializers.CharField()


def test_fields_read_what_is_gathered_and_those_of_a_subclass_the_instance() -> None:
    shown = GatheredWithMore({"first": "a", "last": "b"})
    assert shown.data == {"name": "a b", "at": None, "last": "b"}
    assert shown.own(shown.data) == {"name": "a b", "at": None}


def test_what_comes_first_stands_before_what_is_inherited() -> None:
    assert list(Shown({"kind": "k", "name": "a", "at": None}).data) == ["kind", "name", "at"]


def test_the_fields_of_what_is_made_by_hand_only_describe_it_and_those_of_a_subclass_are_rendered() -> None:
    assert ByHand({"name": "a"}).data == {"name": "A"}
    assert WithMore({"name": "a", "size": "7"}).data == {"name": "A", "size": 7}


@pytest.mark.parametrize(
    "field,value,shown",
    [
        (NumberField(), 2, "2"),
        (NumberField(), 2.0, "2.0"),
        (WholeNumberField(), 2.0, "2"),
        (WholeNumberField(), 2.5, "2.5"),
        (MillisecondsField(), 1.00049, "1"),
        (MillisecondsField(), None, "0"),
        (MillisecondsField(allow_null=True), None, "None"),
        (EitherField(serializers.IntegerField(), serializers.CharField()), "2", "2"),
        (DocumentField({"a": {}}), {"b": 1}, "{'b': 1}"),
        (InstantField(), "2026-01-02T00:00:00.000Z", "2026-01-02T00:00:00.000Z"),
    ],
)
def test_values_keep_their_form(field: Any, value: Any, shown: str) -> None:
    kind = type("Kind", (AnswerSerializer,), {"value": field})
    assert str(kind({"value": value}).data["value"]) == shown
