"""JSON Schemas that ask themselves: a reference that comes back to where it began without looking any deeper.

`{"$ref": "#"}` says nothing of any value, and a validator that meets it passes everything. A schema of trees, which
refers to itself below `properties` or `items`, is none of these: it ends where the value does.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote, urldefrag, urljoin

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
    while free:  # whom nobody asks is in no circle: leave it out, and then those whom only it asked
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
    """`reference` as `base` makes it whole. `urljoin` takes a fragment alone for whole where the base is a URN."""
    if reference.startswith("#") or not reference:
        return urldefrag(base).url + (reference if reference != "#" else "")
    try:
        return urljoin(base, reference)
    except ValueError:  # no address at all, which the validator refuses in its own words
        return reference
