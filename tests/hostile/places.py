"""Every place of an HTTP request that holds a value: read from the OpenAPI document, from the package's own source, and
from what a view asks for while it answers. So an operation, a parameter or a member that comes new is walked, too.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock
from urllib.parse import quote

from django.http import QueryDict

import django_ojs
from django_ojs.http import body, openapi
from django_ojs.rules import queueconfig, ratelimit
from tests.hostile import words
from tests.hostile.calls import V1, Call
from tests.hostile.values import Raw, write
from tests.rights import calls as rights
from tests.rights.world import Side

SOURCE = Path(django_ojs.__file__).parent
#: How deep the members of members are walked.
DEPTH = 4
#: What Django, DRF or a server before them reads.
_OF_OTHERS = (
    "Content-Type", "Content-Length", "Cookie", "Accept-Language", "If-None-Match", "Range", "Origin", "Referer",
    "X-CSRFToken", "X-Forwarded-For", "X-HTTP-Method-Override",
)  # fmt: skip


_WINDOW = dict.fromkeys(sorted(ratelimit.WINDOW_MEMBERS))
_LIMIT = {**dict.fromkeys(sorted(ratelimit.MEMBERS)), "rate": _WINDOW, "throttle": _WINDOW}
_OVERRIDE = {**_LIMIT, "expires_at": None, "blocked_until": None}
_CONFIG = {
    **dict.fromkeys(queueconfig.KEYS), "rate_limit": _LIMIT, "retention": dict.fromkeys(queueconfig.RETENTION),
    "backpressure": dict.fromkeys(("max_depth", "max_size_bytes", "strategy", "warning_threshold")),
    "dead_letter": {"retention": dict.fromkeys(("max_age", "max_count"))}, "default_retry": {"max_attempts": None},
    "config": {"max_size": None},
}  # fmt: skip
_CRON = {**dict.fromkeys(words.CRON), "job_template": {"type": None, "args": None, "options": {"queue": None}}}
_FLOW = {
    **dict.fromkeys(words.WORKFLOW),
    "steps": [{"id": None, "type": None, "args": None, "depends_on": [None], "options": {"queue": None}}],
    "jobs": [{"type": None}], "callbacks": {"on_success": {"type": None}}, "options": {"queue": None},
}  # fmt: skip
#: By the ends of paths, the members of bodies that the package describes to nobody.
OPAQUE: dict[str, Any] = {
    "/config": _CONFIG, "/rate-limit": _LIMIT, "/override": _OVERRIDE, "/rate-limits/{key}": _OVERRIDE,
    "/cron/{name}": _CRON, "/crons/{name}": _CRON, "/v1/workflows": _FLOW,
}  # fmt: skip


class Place(NamedTuple):
    """Where a value stands: `kind` is query, path, header or body; `path` the names down to it."""

    kind: str
    path: tuple[str | int, ...]

    @property
    def names(self) -> list[str]:
        return [part for part in self.path if isinstance(part, str)]

    def __str__(self) -> str:
        return f"{self.kind} {'.'.join(map(str, self.path))}"


class Operation(NamedTuple):
    """A method of a path of the document. `call` is the one of the table of rights, which knows what a good client
    sends; None where that has none."""

    method: str
    path: str
    places: tuple[Place, ...]
    call: rights.Call | None

    def __str__(self) -> str:
        return f"{self.method} {self.path}"

    @property
    def key(self) -> str:
        return str(self.call) if self.call is not None else ""

    def good_body(self, side: Side) -> Any:
        """What a good client sends. New jobs have what the values of others are combined with, too."""
        found = rights.filled(rights.BODIES.get(self.key, {}), side)
        for job in (
            [found, *(found.get("jobs") or ())[:1]] if self.key.startswith(("POST jobs", "POST workflows")) else []
        ):
            if "type" in job and "args" in job:
                job["unique"] = {"keys": ["type", "args", "queue"], "period": "PT1H"}
        return found

    def good_query(self, side: Side) -> dict[str, str]:
        text = rights.filled(rights.QUERIES.get(self.key, ""), side).removeprefix("?")
        return dict(pair.split("=", 1) for pair in text.split("&") if pair)

    def request(self, side: Side, place: Place | None = None, value: Any = None) -> Call:
        """What a good client sends, with the value in its place."""
        parts, query, headers = self._parts(side), self.good_query(side), {}
        sent = self.good_body(side) if any(one.kind == "body" for one in self.places) or self.method != "GET" else None
        extra = ""
        match place:
            case Place("path", (str(name),)):
                parts[name] = value
            case Place("query", (str(name),)):
                if isinstance(value, list):
                    extra = "&".join(f"{quote(name)}={quoted(one)}" for one in value)
                    query.pop(name, None)
                else:
                    query[name] = value
            case Place("header", (str(name),)):
                headers[name] = value.encode("utf-8", "replace").decode("latin-1")
            case Place("body", names):
                sent = put(sent, names, value)
        target = re.sub(r"{(\w+)}", lambda found: quoted(parts[found[1]]), self.path)
        text = "&".join([*(f"{quote(name)}={quoted(one)}" for name, one in query.items()), *([extra] * bool(extra))])
        call = Call(self.method, f"{target}?{text}" if text else target, headers)
        if sent is not None:
            call.body = write(sent).encode("utf-8", "surrogatepass")
            headers.setdefault("Content-Type", "application/json")
            headers.setdefault("Content-Length", str(len(call.body)))
        return call

    def _parts(self, side: Side) -> dict[str, Any]:
        state = self.call.state if self.call is not None else "available"
        found = {}
        for name in re.findall(r"{(\w+)}", self.path):
            before = self.path.partition(f"/{{{name}}}")[0].removeprefix(V1)
            try:
                found[name] = side.path(f"{before}/<str:{name}>", state, f"queue:{side.queue}").rpartition("/")[2]
            except KeyError:
                found[name] = "x"
        return found


def put(document: Any, names: tuple[str | int, ...], value: Any) -> Any:
    """The document with the value at that place; what is missing above it is made."""
    found = copy.deepcopy(document) if isinstance(document, dict | list) else {}
    holder: Any = found
    part: Any
    for part, below in zip(names, (*names[1:], None), strict=True):
        kind: Any = list if isinstance(below, int) else dict
        if isinstance(holder, list) and not holder:
            holder.append(None)
        there = holder[part] if isinstance(holder, list) else holder.get(part)
        holder[part] = value if below is None else there if isinstance(there, kind) else kind()
        holder = holder[part]
    return found


def quoted(value: Any) -> str:
    if isinstance(value, Raw):
        return str(value)  # as it stands on the wire
    return quote(str(value).encode("utf-8", "surrogatepass"), safe="")


@lru_cache(maxsize=1)
def operations() -> tuple[Operation, ...]:
    """All of the document, with the places that it knows, and the headers that the source reads."""
    document = openapi.document("1", "")
    table = {f"{call.method} {call.route}": call for call in rights.CALLS}
    found = []
    for path, item in document["paths"].items():
        route = re.sub(r"{(\w+)}", r"<\1>", path.removeprefix(V1))
        for method, said in item.items():
            places = [Place(_WHERE[one["in"]], (one["name"],)) for one in said["parameters"]]
            for content in list(said.get("requestBody", {}).get("content", {}).values())[:1]:
                places += [Place("body", names) for names in _members(content["schema"], document, ())]
            call = table.get(f"{method.upper()} {route}")
            good = rights.BODIES.get(str(call), {}) if call is not None else {}
            if "requestBody" in said:
                places += [Place("body", names) for names in of_value(opaque(path), ())]
            if method != "get":
                places += [Place("body", names) for names in of_value(good, ())]
            places += [Place("header", (name,)) for name in headers()]
            found.append(Operation(method.upper(), path, tuple(dict.fromkeys(places)), call))
    return tuple(found)


def opaque(path: str) -> Any:
    """What is in the body of an operation of which the document says only that it is an object; {} for others."""
    return next((members for end, members in OPAQUE.items() if path.endswith(end)), {})


_WHERE = {"query": "query", "path": "path", "header": "header"}


@lru_cache(maxsize=1)
def headers() -> list[str]:
    """The headers that the source of the package reads, and those that Django does."""
    read = set()
    for name in SOURCE.rglob("*.py"):
        text = name.read_text()
        read |= set(re.findall(r"\bHTTP_([A-Z]+(?:_[A-Z]+)*)\b", text))
        read |= {
            found.upper().replace("-", "_").removeprefix("HTTP_")
            for found in re.findall(r"""headers(?:\.get\(|\[)["']([\w-]+)""", text)
        }
    ours = {"-".join(part.capitalize() for part in name.split("_")) for name in read}
    return sorted(ours | set(_OF_OTHERS))


def _members(
    schema: Mapping[str, Any], document: Any, before: tuple[str | int, ...]
) -> Iterator[tuple[str | int, ...]]:
    """The paths of a schema's members, and of theirs."""
    if len(before) >= DEPTH:
        return
    if (target := schema.get("$ref")) is not None:
        schema = document["components"]["schemas"][target.rpartition("/")[2]]
    for name in ("allOf", "anyOf", "oneOf"):
        for part in schema.get(name, ()):
            yield from _members(part, document, before)
    for name, part in schema.get("properties", {}).items():
        yield (*before, name)
        yield from _members(part, document, (*before, name))
    if isinstance(schema.get("items"), dict):
        yield (*before, 0)
        yield from _members(schema["items"], document, (*before, 0))


def of_value(value: Any, before: tuple[str | int, ...]) -> Iterator[tuple[str | int, ...]]:
    pairs: Any = (
        value.items() if isinstance(value, dict) else list(enumerate(value))[:1] if isinstance(value, list) else ()
    )
    for name, part in pairs:
        yield (*before, name)
        yield from of_value(part, (*before, name))


class Watched(dict[str, Any]):
    """A JSON object that notes the names that it is asked for, and so do the objects in it."""

    def __init__(self, given: Mapping[str, Any], before: tuple[str | int, ...], note: Callable[..., None]) -> None:
        self._before, self._note = before, note
        super().__init__({name: watched(value, (*before, name), note) for name, value in given.items()})

    def get(self, name: Any, default: Any = None) -> Any:
        self._note((*self._before, name))
        return super().get(name, default)

    def pop(self, name: Any, *default: Any) -> Any:
        self._note((*self._before, name))
        return super().pop(name, *default)

    def __getitem__(self, name: Any) -> Any:
        self._note((*self._before, name))
        return super().__getitem__(name)

    def __contains__(self, name: Any) -> bool:
        self._note((*self._before, name))
        return super().__contains__(name)


def watched(value: Any, before: tuple[str | int, ...], note: Callable[..., None]) -> Any:
    if isinstance(value, dict):
        return Watched(value, before, note)
    if isinstance(value, list):
        return [watched(one, (*before, 0), note) for one in value]
    return value


class Asked:
    """`with Asked() as asked: ...`: the parameters and members that views ask for meanwhile, documented or not."""

    def __init__(self) -> None:
        self.places: set[Place] = set()

    def __enter__(self) -> Asked:
        parse = body.parse

        def parsed(*args: Any, **kwargs: Any) -> Any:
            return watched(parse(*args, **kwargs), (), lambda names: self.places.add(Place("body", names)))

        self._patches = [mock.patch.object(body, "parse", parsed)]
        for name in ("get", "getlist", "__getitem__", "__contains__"):
            self._patches.append(mock.patch.object(QueryDict, name, self._noting(getattr(QueryDict, name))))
        for patch in self._patches:
            patch.start()
        return self

    def __exit__(self, *exc: object) -> None:
        for patch in self._patches:
            patch.stop()

    def _noting(self, method: Any) -> Any:
        def noted(query: Any, name: Any, *more: Any) -> Any:
            if isinstance(name, str):
                self.places.add(Place("query", (name,)))
            return method(query, name, *more)

        return noted


def shown(value: Any) -> str:
    return json.dumps(value, default=str)[:80]
