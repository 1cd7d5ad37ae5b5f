"""The OpenAPI document, and how an answer differs from what it says, in both directions."""

from __future__ import annotations

import datetime as dt
import re
import uuid
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from functools import cache
from typing import Any

from django_ojs import jsontext
from django_ojs.http import openapi

Schema = Mapping[str, Any]
_FORMATS: dict[str, Callable[[str], object]] = {
    "date-time": dt.datetime.fromisoformat,
    "uuid": uuid.UUID,
}
_TYPES: dict[str, Callable[[Any], bool]] = {
    "null": lambda value: value is None,
    "boolean": lambda value: isinstance(value, bool),
    "integer": lambda value: isinstance(value, int | float) and not isinstance(value, bool) and value == value // 1,
    "number": lambda value: isinstance(value, int | float | Decimal) and not isinstance(value, bool),
    "string": lambda value: isinstance(value, str),
    "array": lambda value: isinstance(value, list),
    "object": lambda value: isinstance(value, dict),
}


def mistake(value: Any, schema: Schema) -> str:
    """What is wrong with a value by itself, whatever is in it; "" for nothing."""
    types = schema.get("type", list(_TYPES))
    wanted = [types] if isinstance(types, str) else types
    if not any(_TYPES[one](value) for one in wanted):
        return f"not {' or '.join(wanted)}"
    if value is not None and "enum" in schema and value not in schema["enum"]:
        return f"none of {schema['enum']}"
    if isinstance(value, str) and (check := _FORMATS.get(schema.get("format", ""))):
        try:
            check(value)
        except ValueError:
            return f"no {schema['format']}"
    return ""


def _schema(answer: Schema) -> Schema:
    found: Schema = answer.get("content", {}).get("application/json", {}).get("schema", {})
    return found


class Described:
    """The document, and how a value differs from a schema in it."""

    def __init__(self) -> None:
        self.document = openapi.document("1", "")

    def schemas(self, path: str, method: str, status: int) -> Schema | None:
        said = self.document["paths"][path][method.lower()]["responses"].get(str(status))
        return None if said is None else _schema(said)

    def faults(self, route: str, method: str, status: int, media: str, content: bytes) -> Iterator[str]:
        """What an answer has that the document does not say, and the other way round; nothing of what is no JSON.

        Args:
            route: that of Django, from `ojs/` on where it has that.
        """
        if "json" not in media or not content:
            return
        path = "/" + re.sub(r"<(?:\w+:)?(\w+)>", r"{\1}", route)
        said = self.document["paths"].get(path, {}).get(method.lower())
        if said is None:
            if status < 400 and route.startswith("ojs/"):
                yield f"{method} {path} is not declared"
            return
        answer = said["responses"].get(str(status), said["responses"]["default"] if status >= 400 else None)
        if answer is None:
            yield f"{method} {path}: {status} is not declared"
            return
        for found in self.differences(jsontext.loads(content.decode()), _schema(answer), ""):
            yield f"{method} {path}: {status}{found}"

    def resolve(self, schema: Schema) -> Schema:
        """What the component says to which a schema refers."""
        while "$ref" in schema or len(schema.get("allOf", ())) == 1:
            if "$ref" in schema:
                schema = self.document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
            else:
                schema = schema["allOf"][0]
        return self.joined([self.resolve(part) for part in schema["allOf"]], schema) if "allOf" in schema else schema

    def joined(self, parts: list[Schema], whole: Schema) -> Schema:
        """One schema for all of which a value has to be."""
        found: dict[str, Any] = {name: value for name, value in whole.items() if name != "allOf"}
        for part in parts:
            found = {
                **part,
                **found,
                "properties": {**part.get("properties", {}), **found.get("properties", {})},
                "required": [*part.get("required", ()), *found.get("required", ())],
            }
        return found

    def differences(self, value: Any, schema: Schema, place: str) -> Iterator[str]:
        """What a value at this place of an answer has that the schema does not say, and the other way round."""
        schema = self.resolve(schema)
        if branches := schema.get("oneOf") or schema.get("anyOf"):
            found = [list(self.differences(value, branch, place)) for branch in branches]
            if all(found):
                # of the branch that is most like the value
                is_other = {id(faults): any(one.startswith(f"{place} is ") for one in faults) for faults in found}
                yield from min(found, key=lambda faults: (is_other[id(faults)], len(faults)))
            return
        if wrong := mistake(value, schema):
            yield f"{place} is {value!r:.60}, {wrong}"
        elif isinstance(value, list):
            for item in value:
                yield from self.differences(item, schema.get("items", {}), f"{place}[]")
        elif isinstance(value, dict) and ("properties" in schema or schema.get("additionalProperties") is not None):
            yield from self._of_object(value, schema, place)

    def _of_object(self, value: dict[str, Any], schema: Schema, place: str) -> Iterator[str]:
        known: Schema = schema.get("properties", {})
        others = schema.get("additionalProperties", False)
        for member, inside in known.items():
            if member in value:
                yield from self.differences(value[member], inside, f"{place}.{member}")
            elif member in schema.get("required", ()):
                yield f"{place} lacks {member}"
        for member in value.keys() - known.keys():
            if others is False:
                yield f"{place} has {member}, undeclared"
            elif isinstance(others, dict):
                yield from self.differences(value[member], others, f"{place}.*")


@cache
def described() -> Described:
    """The document, as this process reads it once."""
    return Described()
