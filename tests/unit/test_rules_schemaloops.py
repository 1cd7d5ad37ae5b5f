"""Schemas that ask themselves are refused; schemas of trees and lists, which refer to themselves too, are not."""

from __future__ import annotations

from typing import Any

import pytest

from django_ojs.errors import InvalidRequest
from django_ojs.rules import schemas

REF = {"$ref": "#"}
TREE = {"type": "object", "properties": {"left": REF, "right": REF}, "required": ["value"]}


@pytest.mark.parametrize(
    "schema",
    [
        REF,
        {"allOf": [REF]},
        {"type": "array", "anyOf": [{"type": "null"}, {"oneOf": [REF]}]},
        {"if": REF, "then": {"type": "array"}},
        {"not": {"not": REF}},
        {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"allOf": [{"$ref": "#/$defs/a"}]}}},
        {"items": {"$ref": "#/$defs/a%20b~1c"}, "$defs": {"a b/c": {"$ref": "#/$defs/a%20b~1c"}}},
        {"properties": {"a": {"$ref": "#/properties/a"}}},
        {"$ref": "#me", "$anchor": "me"},
        {"$id": "urn:example:me", "$ref": "urn:example:me"},
        {"$id": "https://example.com/me.json", "allOf": [{"$ref": "me.json#"}]},
        {"$schema": "http://json-schema.org/draft-07/schema#", "definitions": {"a": {"$ref": "#/definitions/a"}}},
        {"$schema": "https://json-schema.org/draft/2019-09/schema", "$recursiveRef": "#"},
        {"dependentSchemas": {"a": REF}},
    ],
)
def test_what_asks_itself_is_refused(schema: Any) -> None:
    with pytest.raises(InvalidRequest, match="refers to itself") as refused:
        schemas.check_document(schema)
    assert refused.value.details["field"] == "schema"


@pytest.mark.parametrize(
    "schema",
    [
        TREE,
        {"type": "array", "items": REF},
        {"allOf": [{"type": "array", "items": {"anyOf": [{"type": "string"}, REF]}}]},
        {"allOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/a"}], "$defs": {"a": {"type": "array"}}},
        {"additionalProperties": REF},
        {"const": REF},
        {"enum": [REF], "default": REF, "examples": [REF]},
        {"properties": {"$ref": {"type": "string"}, "allOf": {"type": "array"}}},
        {"$schema": "http://json-schema.org/draft-07/schema#", "$ref": "#/definitions/a", "allOf": [REF],
         "definitions": {"a": {"type": "array"}}},
        True,
        False,
        {},
    ],
)  # fmt: skip
def test_what_goes_deeper_is_fine(schema: Any) -> None:
    schemas.check_document(schema)


def test_a_long_way_is_no_circle_and_is_gone_without_a_stack() -> None:
    steps = {f"s{number}": {"$ref": f"#/$defs/s{number + 1}"} for number in range(3000)}
    assert not schemas.loops({"$ref": "#/$defs/s0", "$defs": {**steps, "s3000": {"type": "array"}}})
    assert schemas.loops({"$ref": "#/$defs/s0", "$defs": {**steps, "s3000": {"$ref": "#/$defs/s7"}}})
