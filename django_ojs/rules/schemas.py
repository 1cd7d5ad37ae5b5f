"""JSON Schemas of job arguments: checking the document, checking arguments, comparing versions (binding 7).

Needs jsonschema-rs (the extra `schemas`). A reference to another document is never followed.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, NoReturn
from urllib.parse import unquote, urldefrag, urljoin

from django_ojs import jsontext
from django_ojs.errors import InvalidRequest, Unsupported
from django_ojs.jsontext import ExactNumber
from django_ojs.rules.faults import shorten

MAX_PROBLEMS = 20
_DRAFTS = {
    "https://json-schema.org/draft/2020-12/schema": "Draft202012Validator",
    "https://json-schema.org/draft/2019-09/schema": "Draft201909Validator",
    "http://json-schema.org/draft-07/schema": "Draft7Validator",
}
#: What a document without `$schema` is tried as: draft 7 knows `items` as a list.
_UNNAMED = ("Draft202012Validator", "Draft7Validator")
_SEMVER = re.compile(
    r"v?(\d{1,9})(?:\.(\d{1,9}))?(?:\.(\d{1,9}))?(?:-([0-9A-Za-z.-]+))?(?:\+[0-9A-Za-z.-]+)?", re.ASCII
)
_LARGEST = 1.7976931348623157e308


def available() -> bool:
    """Whether the validator is installed."""
    return importlib.util.find_spec("jsonschema_rs") is not None


def check_document(schema: Any) -> None:
    """Raise InvalidRequest, with `details.schema_error`, unless `schema` is a JSON Schema of a known draft."""
    if not isinstance(schema, dict | bool):
        raise _refused("must be a JSON Schema: an object, true or false", "not an object")
    named = schema.get("$schema") if isinstance(schema, dict) else None
    if named is not None and not (isinstance(named, str) and named.rstrip("#") in _DRAFTS):
        problem = f"$schema must be one of {', '.join(_DRAFTS)}"
        raise _refused(problem, f"unknown draft {shorten(named)}")
    try:
        validator(jsontext.dumps(schema))
    except ValueError as error:
        raise _refused("is not a valid JSON Schema", str(error).partition("\n")[0][:500]) from error
    if loops(schema):
        raise _refused("refers to itself and says nothing", "a $ref leads back to where it stands, and no deeper")


def problems(schema_text: str, args: list[Any]) -> list[dict[str, str]]:
    """What a schema has against these arguments, at most `MAX_PROBLEMS`, each with `path` and `message`.

    A schema that asks for an object gets the first argument, if that is the only one and an object.
    """
    schema = jsontext.loads(schema_text)
    wants_object = isinstance(schema, dict) and schema.get("type") == "object"
    alone = wants_object and len(args) == 1 and isinstance(args[0], dict)
    instance, base = (args[0], "args[0]") if alone else (args, "args")
    return problems_of(schema_text, instance, base)


def problems_of(schema_text: str, instance: Any, base: str) -> list[dict[str, str]]:
    """What a schema has against a value, at most `MAX_PROBLEMS`; each `path` begins with `base`."""
    found: list[dict[str, str]] = []
    for error in validator(schema_text).iter_errors(_plain(instance)):
        found.append({"path": _path(base, error.instance_path), "message": error.message[:500]})
        if len(found) == MAX_PROBLEMS:
            break
    return found


@lru_cache(maxsize=256)
def validator(schema_text: str) -> Any:
    """The compiled schema. ValueError where it is none, Unsupported where jsonschema-rs is not installed."""
    try:
        import jsonschema_rs
    except ImportError:
        raise Unsupported(
            "Schemas need jsonschema-rs on this server.", hint="Install it: pip install 'django-ojs[schemas]'."
        ) from None
    schema = _plain(jsontext.loads(schema_text))
    named = schema.get("$schema") if isinstance(schema, dict) else None
    drafts = (_DRAFTS[named.rstrip("#")],) if isinstance(named, str) else _UNNAMED
    first: ValueError | None = None
    for draft in drafts:
        try:
            return getattr(jsonschema_rs, draft)(schema, retriever=_refuse_remote)
        except ValueError as error:
            first = first or error
    assert first is not None
    raise first


def order(version: str) -> tuple[Any, ...]:
    """Sorts versions: numbers and SemVer by their parts, a pre-release before its release, other words first."""
    found = _SEMVER.fullmatch(version)
    if found is None:
        return (0, (), (), version)
    numbers = tuple(int(part or 0) for part in found.groups()[:3])
    if found[4] is None:
        return (1, numbers, (1,), "")
    parts = [(0, int(part), "") if part.isdecimal() else (1, 0, part) for part in found[4].split(".")]
    return (1, numbers, (0, *parts), "")


def same_version(one: str, other: str) -> bool:
    """Whether two texts name one version: `2`, `2.0` and `2.0.0` do."""
    return one == other or (order(one) == order(other) and order(one)[0] == 1)


def is_minor_step(old: str, new: str) -> bool:
    """Whether both are SemVer of one major version, between which a schema may not break."""
    one, other = order(old), order(new)
    dotted = "." in old and "." in new
    return dotted and one[0] == other[0] == 1 and one[1][0] == other[1][0]


def breaking_changes(old: Any, new: Any, path: str = "") -> list[str]:
    """Why arguments that fit `old` may not fit `new`, as far as types, members and choices tell."""
    if not isinstance(old, dict) or not isinstance(new, dict):
        return [f"{path or 'schema'}: now refuses everything"] if new is False and old is not False else []
    return list(_breaks(old, new, path))


def _breaks(old: Mapping[str, Any], new: Mapping[str, Any], path: str) -> Iterator[str]:
    where = path or "schema"
    if _types(new) and not _types(old) <= _types(new) | ({"integer"} if "number" in _types(new) else set()):
        yield f"{where}: type {_words(old)} became {_words(new)}"
    elif _types(new) and not _types(old):
        yield f"{where}: type is now limited to {_words(new)}"
    for name in sorted(set(_list(new, "required")) - set(_list(old, "required"))):
        yield f"{where}: {name} became required"
    if "enum" in new:
        gone = [value for value in _list(old, "enum") if value not in _list(new, "enum")]
        if gone or "enum" not in old:
            yield f"{where}: choices were taken away"
    closed = new.get("additionalProperties") is False
    before, after = _members(old), _members(new)
    for name in before:
        if name in after:
            yield from breaking_changes(before[name], after[name], f"{path}.{name}".lstrip("."))
        elif closed:
            yield f"{where}: {name} was removed"
    if closed and old.get("additionalProperties") is not False and not before.keys() - after.keys():
        yield f"{where}: further members are now refused"
    if isinstance(old.get("items"), dict) and isinstance(new.get("items"), dict):
        yield from breaking_changes(old["items"], new["items"], f"{path}[]")


def _types(schema: Mapping[str, Any]) -> set[str]:
    given = schema.get("type")
    return {given} if isinstance(given, str) else {item for item in _list(schema, "type") if isinstance(item, str)}


def _words(schema: Mapping[str, Any]) -> str:
    return " or ".join(sorted(_types(schema))) or "any"


def _list(schema: Mapping[str, Any], name: str) -> list[Any]:
    value = schema.get(name)
    return value if isinstance(value, list) else []


def _members(schema: Mapping[str, Any]) -> dict[str, Any]:
    value = schema.get("properties")
    return value if isinstance(value, dict) else {}


def _refuse_remote(uri: str) -> NoReturn:
    raise ValueError(f"references to other documents are not followed: {uri}")


def _refused(message: str, error: str) -> InvalidRequest:
    details = {"field": "schema", "schema_error": error, "validation_errors": [{"path": "schema", "message": error}]}
    return InvalidRequest(f"schema: {message} ({error}).", details=details)


def _path(base: str, path: list[Any]) -> str:
    return base + "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)


def _plain(value: Any) -> Any:
    """What the validator can read: doubles for exact numbers, and no half of a surrogate pair."""
    match value:
        case ExactNumber():
            return max(-_LARGEST, min(float(value), _LARGEST))
        case str():
            return value if value.isascii() else value.encode("utf-8", "replace").decode()
        case list() | tuple():
            return [_plain(item) for item in value]
        case dict():
            return {_plain(name): _plain(item) for name, item in value.items()}
    return value


# Schemas that ask themselves: a reference that comes back to where it began without looking any deeper. `{"$ref": "#"}`
# says nothing of any value, and a validator that meets it passes everything. A schema of trees, which refers to itself
# below `properties` or `items`, is none of these: it ends where the value does.


_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
#: Keywords whose schemas look at the same value: one, a list of them, or an object of them.
_SAME = ("not", "if", "then", "else", "allOf", "anyOf", "oneOf", "dependentSchemas", "dependencies")
#: Keywords whose schemas look at a part of it, or at nothing until they are referred to.
_BELOW = ("items", "prefixItems", "additionalItems", "contains", "unevaluatedItems", "properties", "patternProperties",
          "additionalProperties", "unevaluatedProperties", "propertyNames", "$defs", "definitions",
          "contentSchema")  # fmt: skip
#: Keywords that hold an object of schemas, by names of the author's.
_NAMED = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies"})


class _Document:
    """The schemas in a document, and which of them each asks about the same value."""

    def __init__(self, schema: dict[str, Any]) -> None:
        self._alone = "draft-07" in str(schema.get("$schema", ""))  # where what stands beside $ref does not count
        self._bases: dict[int, str] = {}
        self._found: dict[str, Any] = {"": schema}
        self.nodes: dict[int, dict[str, Any]] = {}
        self._read(schema, "")

    def _read(self, schema: dict[str, Any], base: str) -> None:
        """Note a schema and those within, and the names they can be referred to by."""
        waiting = [(schema, base)]
        while waiting:
            node, base = waiting.pop()
            if id(node) in self.nodes:
                continue
            if isinstance(named := node.get("$id"), str):
                base = _joined(base, named.removesuffix("#"))
                self._found.setdefault(base, node)
            for keyword in ("$anchor", "$dynamicAnchor"):
                if isinstance(node.get(keyword), str):
                    self._found.setdefault(f"{base}#{node[keyword]}", node)
            self.nodes[id(node)], self._bases[id(node)] = node, base
            waiting += [(part, base) for keyword in (*_SAME, *_BELOW) for part in _schemas(node, keyword)]

    def asked(self, node: dict[str, Any]) -> list[int]:
        """The schemas that this one asks about its own value."""
        targets = [self._target(node, node[name]) for name in _REFERENCES if isinstance(node.get(name), str)]
        known = [id(target) for target in targets if isinstance(target, dict)]
        if self._alone and "$ref" in node:
            return known
        return known + [id(part) for keyword in _SAME for part in _schemas(node, keyword)]

    def _target(self, node: dict[str, Any], reference: str) -> Any:
        base = self._bases[id(node)]
        uri, fragment = urldefrag(_joined(base, reference))
        if not fragment.startswith("/"):
            return self._found.get(f"{uri}#{fragment}" if fragment else uri)
        found = self._found.get(uri)
        for step in fragment[1:].split("/"):
            found = _step(found, unquote(step).replace("~1", "/").replace("~0", "~"))
        if isinstance(found, dict):
            self._read(found, uri)  # it may lie where no keyword leads
        return found


def loops(schema: Any) -> bool:
    """Whether a schema, or one of those within, asks itself about the same value again."""
    if not isinstance(schema, dict):
        return False
    document = _Document(schema)
    asked: dict[int, list[int]] = {}
    while missing := [key for key in document.nodes if key not in asked]:  # a reference may find more of them
        asked |= {key: document.asked(document.nodes[key]) for key in missing}
    askers = dict.fromkeys(asked, 0)
    for targets in asked.values():
        for target in targets:
            askers[target] += 1
    free = [key for key, number in askers.items() if not number]
    seen = 0
    while free:  # a schema to which none refers is in no circle: leave it out, and then those to which only it referred
        seen += 1
        for target in asked[free.pop()]:
            askers[target] -= 1
            if not askers[target]:
                free.append(target)
    return seen < len(asked)


def _schemas(node: dict[str, Any], keyword: str) -> Iterator[dict[str, Any]]:
    value = node.get(keyword)
    parts = value if isinstance(value, list) else [value]
    if isinstance(value, dict) and keyword in _NAMED:
        parts = list(value.values())
    return (part for part in parts if isinstance(part, dict))


def _step(found: Any, name: str) -> Any:
    if isinstance(found, dict):
        return found.get(name)
    if isinstance(found, list) and name.isascii() and name.isdecimal() and len(name) < 9 and int(name) < len(found):
        return found[int(name)]
    return None


def _joined(base: str, reference: str) -> str:
    """The absolute form of `reference`. `urljoin` returns a fragment alone as it is where the base is a URN."""
    if reference.startswith("#") or not reference:
        return urldefrag(base).url + (reference if reference != "#" else "")
    try:
        return urljoin(base, reference)
    except ValueError:  # no address at all, which the validator refuses in its own words
        return reference
