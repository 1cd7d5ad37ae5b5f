"""The OpenAPI document, and how an answer differs from what it says, in both directions."""

from __future__ import annotations

import datetime as dt
import re
import uuid
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from functools import cache
from typing import Any, NamedTuple

from django_ojs import jsontext
from django_ojs.http import openapi

Schema = Mapping[str, Any]
#: Headers that OpenAPI says elsewhere, or that are there for caches.
_OF_DJANGO = {"Content-Type", "Content-Length", "Vary"}
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


class Sent(NamedTuple):
    """An answer that was sent. `route` is that of Django, from `ojs/` on where it has that."""

    route: str
    method: str
    status: int
    media: str
    content: bytes
    headers: frozenset[str] = frozenset()

    @property
    def is_json(self) -> bool:
        return "json" in self.media and bool(self.content)

    @property
    def path(self) -> str:
        return "/" + re.sub(r"<(?:\w+:)?(\w+)>", r"{\1}", self.route)

    @property
    def value(self) -> Any:
        return jsontext.loads(self.content.decode())


class Described:
    """The document, and how a value differs from a schema in it."""

    def __init__(self) -> None:
        self.document = openapi.document("1", "")

    def schemas(self, path: str, method: str, status: int) -> Schema | None:
        said = self.document["paths"][path][method.lower()]["responses"].get(str(status))
        return None if said is None else _schema(said)

    def schema_of(self, sent: Sent) -> Schema | None:
        """What the document says of the JSON of an answer; None for what is none, and for what it does not declare."""
        if not sent.is_json or (said := self._operation(sent)) is None:
            return None
        answer = said["responses"].get(str(sent.status), said["responses"]["default"] if sent.status == 500 else None)
        return None if answer is None else _schema(answer)

    def faults(self, sent: Sent) -> Iterator[str]:
        """What an answer has that the document does not say, and the other way round; nothing of what is no JSON but
        its headers."""
        if (operation := self._operation(sent)) is not None:
            said = operation["responses"].get(str(sent.status), operation["responses"]["default"])["headers"]
            for name in sorted(sent.headers - said.keys() - _OF_DJANGO):
                yield f"{sent.method} {sent.path}: {sent.status} has the header {name}, which is not declared"
        if not sent.is_json:
            return
        if self._operation(sent) is None:
            if sent.status < 400 and sent.route.startswith("ojs/"):
                yield f"{sent.method} {sent.path} is not declared"
        elif (schema := self.schema_of(sent)) is None:
            yield f"{sent.method} {sent.path}: {sent.status} is not declared"
        else:
            for found in self.differences(sent.value, schema, ""):
                yield f"{sent.method} {sent.path}: {sent.status}{found}"

    def _operation(self, sent: Sent) -> Any:
        return self.document["paths"].get(sent.path, {}).get(sent.method.lower())

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


class Members:
    """The members that the document's answers may have, and which of them have been sent.

    A member belongs to a component, or to a schema without a name wherever that stands.

    Attributes:
        declared: member -> whether it may be null. What may be of any type has no null of its own, and what is always
            null has nothing else.
        values, nulls: those that have been sent with a value, and as null.
    """

    def __init__(self, described: Described) -> None:
        self.described = described
        self.declared: dict[str, bool] = {}
        self.values: set[str] = set()
        self.nulls: set[str] = set()
        self._owners: dict[str, str] = {}
        for path, item in described.document["paths"].items():
            for method, operation in item.items():
                for status, answer in operation["responses"].items():
                    self._declare(_schema(answer), f"{method.upper()} {path} {status}")

    def _owner(self, schema: Schema, place: str) -> tuple[Schema, str]:
        """The schema itself, and the name of what its members belong to."""
        while "$ref" in schema:
            place = schema["$ref"].rpartition("/")[2]
            schema = self.described.document["components"]["schemas"][place]
            self._owners.setdefault(jsontext.dumps(schema), place)
        return schema, self._owners.setdefault(jsontext.dumps(schema), place)

    def _may_be_null(self, schema: Schema) -> bool:
        """Whether a schema says that its value may be null; what may be of any type says nothing."""
        is_any = not self.described.resolve(schema).keys() & {"type", "oneOf", "anyOf", "enum", "properties"}
        return not is_any and not any(self.described.differences(None, schema, ""))

    def _declare(self, schema: Schema, place: str) -> None:
        schema, owner = self._owner(schema, place)
        for part in _parts(schema):
            self._declare(part, owner)
        if "items" in schema:
            self._declare(schema["items"], f"{owner}[]")
        for member, inside in schema.get("properties", {}).items():
            if (name := f"{owner}.{member}") not in self.declared:
                self.declared[name] = inside.get("type") != "null" and self._may_be_null(inside)
                self._declare(inside, name)

    def send(self, value: Any, schema: Schema) -> None:
        """Note the members of a value which is as the schema says."""
        schema, owner = self._owner(schema, "")
        for part in schema.get("allOf", ()):
            self.send(value, part)
        for branch in schema.get("oneOf") or schema.get("anyOf") or ():
            if not any(self.described.differences(value, branch, "")):
                self.send(value, branch)
        if isinstance(value, list) and "items" in schema:
            for item in value:
                self.send(item, schema["items"])
        elif isinstance(value, dict):
            for member, inside in schema.get("properties", {}).items():
                if member in value:
                    name = f"{owner}.{member}"
                    is_null = value[member] is None and self.declared[name]
                    (self.nulls if is_null else self.values).add(name)
                    self.send(value[member], inside)

    def unsent(self) -> set[str]:
        """The members that have never been sent, and with ` null` behind them those that have never been null."""
        never_null = {f"{name} null" for name, nullable in self.declared.items() if nullable and name not in self.nulls}
        return {name for name in self.declared if name not in self.values} | never_null


def _parts(schema: Schema) -> list[Schema]:
    return [*schema.get("allOf", ()), *schema.get("oneOf", ()), *schema.get("anyOf", ())]


@cache
def described() -> Described:
    """The document, as this process reads it once."""
    return Described()
