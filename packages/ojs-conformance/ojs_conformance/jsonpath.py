"""The part of JSONPath that conformance cases use.

`$.a.b`, `['a']`, `[0]`, `[-1]`, `[*]` and `[?(@.id=='x')]`, in any order. A path with `[*]` is *plural*: it stands
for the list of all it finds. A filter stands for each element that it lets through. Where an object has a member
whose name itself holds dots (`meta["ojs.codec.key_id"]`), the longest such name wins.

By hand, because libraries leave an element without the member out of the result (RFC 9535), so that a case about every
element would pass on an answer where half of them lack it; and they know no names with dots.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from ojs_conformance.values import MISSING, equal


class PathError(ValueError):
    """The text is no path of this subset."""


@dataclass(frozen=True)
class Name:
    """Take a member of an object."""

    name: str


@dataclass(frozen=True)
class Index:
    """Take an element of an array, from the end if negative."""

    index: int


@dataclass(frozen=True)
class Wildcard:
    """Take every element of an array, or every member of an object."""


@dataclass(frozen=True)
class Filter:
    """Take the elements whose value at `path` is equal, or not, to `value`."""

    path: tuple[Step, ...]
    negated: bool
    value: object


Step = Name | Index | Wildcard | Filter


@dataclass(frozen=True)
class Found:
    """What a path leads to. `plural` says that the path asks for a list, which may be empty."""

    values: list[object]
    plural: bool


_TOKEN = re.compile(
    r"""\.(?P<name>[^.\[\]*\s]+)
      | (?P<wild>\.\*|\[\*\])
      | \[(?P<index>-?\d+)\]
      | \[(?P<quoted>'[^']*'|"[^"]*")\]
      | \[\?\(\s*@(?P<left>[^=!]*?)\s*(?P<op>==|!=)\s*(?P<right>'[^']*'|"[^"]*"|[^'"\s)]+)\s*\)\]""",
    re.VERBOSE,
)


def parse(path: str) -> tuple[Step, ...]:
    """The steps of a path that begins with `$`. PathError if any part of it is not understood."""
    if not path.startswith("$"):
        raise PathError(f"{path!r} does not begin with '$'")
    return _steps(path, 1)


def _steps(path: str, start: int) -> tuple[Step, ...]:
    steps: list[Step] = []
    while start < len(path):
        token = _TOKEN.match(path, start)
        if token is None:
            raise PathError(f"cannot read {path[start:]!r} in the path {path!r}")
        steps.append(_step(token))
        start = token.end()
    return tuple(steps)


def _step(token: re.Match[str]) -> Step:
    if token["name"] is not None:
        return Name(token["name"])
    if token["index"] is not None:
        return Index(int(token["index"]))
    if token["quoted"] is not None:
        return Name(token["quoted"][1:-1])
    if token["op"] is not None:
        return Filter(_steps(token["left"], 0), token["op"] == "!=", _constant(token["right"]))
    return Wildcard()


def _constant(text: str) -> object:
    if text[0] in "'\"":
        return text[1:-1]
    try:
        return json.loads(text)
    except ValueError:
        raise PathError(f"cannot read the constant {text!r} in a filter") from None


def find(path: str, document: object) -> Found:
    """All values that a path leads to in a document."""
    steps = parse(path)
    plural = any(isinstance(step, Wildcard) for step in steps)
    values = _walk(steps, document)
    return Found(values or [], plural and values is not None)


def _walk(steps: tuple[Step, ...], value: object) -> list[object] | None:
    """The values at the end of the steps; None if the way breaks off before any choice was possible."""
    if not steps:
        return [value]
    match steps[0]:
        case Name():
            return _member(steps, value)
        case Index(index):
            inside = isinstance(value, list) and -len(value) <= index < len(value)
            return _walk(steps[1:], value[index]) if inside and isinstance(value, list) else None
        case Wildcard():
            if isinstance(value, dict):
                return _each(steps[1:], list(value.values()))
            return _each(steps[1:], value) if isinstance(value, list) else None
        case Filter() as step:
            return _each(steps[1:], [v for v in value if _passes(step, v)]) if isinstance(value, list) else None


def _member(steps: tuple[Step, ...], value: object) -> list[object] | None:
    if not isinstance(value, dict):
        return None
    names: list[str] = []
    for step in steps:
        if not isinstance(step, Name):
            break
        names.append(step.name)
    for count in range(len(names), 0, -1):
        key = ".".join(names[:count])
        if key in value:
            return _walk(steps[count:], value[key])
    return None


def _each(steps: tuple[Step, ...], values: list[object]) -> list[object]:
    """What the rest of the way leads to from each value: MISSING where it breaks off, never silently less."""
    found: list[object] = []
    for value in values:
        ends = _walk(steps, value)
        found += [MISSING] if ends is None else ends
    return found


def _passes(step: Filter, value: object) -> bool:
    found = _walk(step.path, value) or []
    return any(equal(each, step.value) for each in found) is not step.negated
