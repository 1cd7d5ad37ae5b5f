"""Every field of every RPC, every member that its attributes may carry, and every key of metadata is hostile in its
turn: no INTERNAL, no UNAVAILABLE, an error that names the field, no half of a change.

The fields come from the descriptors, the members from the HTTP operation that the RPC is, the keys from the source.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any
from unittest import mock

import pytest
from google.protobuf.descriptor import FieldDescriptor as Field

from django_ojs import jsontext, keys
from django_ojs.grpc import calls, definition, messages, values
from django_ojs.grpc.errors import RpcError
from django_ojs.grpc.metadata import VISIBILITY, Metadata
from tests.hostile.calls import V1
from tests.hostile.places import SOURCE, operations
from tests.hostile.values import ODD, WORDS, write
from tests.hostile.walking import FULL, Writes, report, some
from tests.rights.calls import RPCS, filled
from tests.rights.conftest import closed, world
from tests.rights.world import World

__all__ = ["closed", "world"]
pytestmark = [pytest.mark.slow, pytest.mark.once, pytest.mark.django_db, pytest.mark.usefixtures("frozen_clock")]
#: So many tests share the RPCs: the rows that each needs are made once for all of its own.
PARTS = 4
FEW, MANY = 1, 20 if FULL else 2
#: Where the fault is ours.
OURS = {"INTERNAL", "UNAVAILABLE", "UNKNOWN", "DATA_LOSS", "UNIMPLEMENTED"}
_INTEGERS = {
    Field.TYPE_INT32: 2**31 - 1, Field.TYPE_INT64: 2**63 - 1,
    Field.TYPE_UINT32: 2**32 - 1, Field.TYPE_UINT64: 2**64 - 1,
}  # fmt: skip
_DOUBLES = (float("nan"), float("inf"), float("-inf"), 1e308, -1.0, 1e-320, 2.0**63)
_SECONDS = (-(2**63), 2**63 - 1, -62_135_596_801, 253_402_300_800, 315_576_000_001, -1, 0)
_NANOS = (-(2**31), -1, 10**9, 2**31 - 1)
#: JSON values that a message can carry: of the others JSON itself has none.
_SAID: list[Any] = []


def said() -> list[Any]:
    if not _SAID:
        for value in ODD:
            try:
                _SAID.append(jsontext.loads(write(value)))
            except jsontext.JSONTextError:
                continue
    return _SAID


#: Protobuf's own encoder refuses half a character.
TEXTS = WORDS[:-1]
#: What cannot be a call: bytes that are no message, a text that is no UTF-8, groups without an end.
BYTES = (b"\xff", b"\x0a\x05ab", b"{}", b"\x0a\x02\xed\xa0", b"\x0a\x03\xed\xa0\x80", b"\x0b" * 500)
#: What the HTTP binding calls a field, after which errors name it.
ALSO = {"extend_by": "visibility_timeout_ms", "current_state": "state"}


def fields(message: Any, before: tuple[str, ...] = (), depth: int = 3) -> Iterator[tuple[tuple[str, ...], Any]]:
    """The fields of a message and of those in it, by their paths; well-known types are values."""
    for field in message.DESCRIPTOR.fields:
        path = (*before, field.name)
        yield path, field
        is_map = field.message_type is not None and field.message_type.GetOptions().map_entry
        if field.message_type is None or is_map or field.message_type.full_name.startswith("google.") or depth == 0:
            continue
        inner = getattr(message, field.name)
        if repeated(field):
            yield from fields(definition.MESSAGES[field.message_type.name](), path, depth - 1)
        else:
            yield from fields(inner, path, depth - 1)


def repeated(field: Any) -> bool:
    return bool(field.is_repeated if hasattr(field, "is_repeated") else field.label == Field.LABEL_REPEATED)


def hostile(field: Any) -> list[Any]:
    """What a field of this kind may hold; a callable fills the message in it."""
    kind = field.message_type.full_name if field.message_type is not None else ""
    if field.type in _INTEGERS:
        most = _INTEGERS[field.type]
        least = 0 if field.type in (Field.TYPE_UINT32, Field.TYPE_UINT64) else -most - 1
        return [least, most, max(least, -1), 0, 1, 101]
    if field.type in (Field.TYPE_DOUBLE, Field.TYPE_FLOAT):
        return list(_DOUBLES)
    if field.type == Field.TYPE_ENUM:
        return [-1, 9999, 0]
    if field.type == Field.TYPE_STRING:
        return TEXTS
    match kind:
        case "google.protobuf.Timestamp" | "google.protobuf.Duration":
            found = [filler("seconds", seconds) for seconds in _SECONDS]
            return found + [filler("nanos", nanos) for nanos in _NANOS]
        case "google.protobuf.Struct":
            found = [partial(values_object, value=value) for value in said() if isinstance(value, dict)]
            return [*found, _no_kind, _no_number, _no_json, _no_text]
        case "google.protobuf.Value":
            found = [partial(values.write_value, value=value) for value in said()]
            return [*found, lambda message: message.Clear(), filler("number_value", float("inf"))]
    return []


def filler(name: str, value: Any) -> Callable[[Any], None]:
    return lambda message: setattr(message, name, value)


def values_object(message: Any, value: Any) -> None:
    values.write_object(message, value)


def _no_kind(message: Any) -> None:
    message.fields["a"].Clear()


def _no_number(message: Any) -> None:
    message.fields["a"].number_value = float("nan")


def _no_json(message: Any) -> None:
    message.fields[values.TAG].string_value = '{"a": 1e400'


def _no_text(message: Any) -> None:
    message.fields[values.TAG].number_value = 1.0


def put(message: Any, path: tuple[str, ...], value: Any, attribute: str = "") -> None:
    """Set the field; what is above it is there afterwards."""
    for name in path[:-1]:
        field = message.DESCRIPTOR.fields_by_name[name]
        inner = getattr(message, name)
        message = (inner[0] if inner else inner.add()) if repeated(field) else inner
        if not repeated(field):
            message.SetInParent()
    name, field = path[-1], message.DESCRIPTOR.fields_by_name[path[-1]]
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        value(getattr(message, name)[attribute])
    elif repeated(field):
        inner = getattr(message, name)
        if callable(value):
            value(inner.add())
        else:
            inner.append(value)
    elif callable(value):
        getattr(message, name).SetInParent()
        value(getattr(message, name))
    else:
        setattr(message, name, value)


def metadata_keys() -> list[str]:
    """The keys of metadata that the source of the binding knows."""
    found: set[str] = set()
    for name in (SOURCE / "grpc").glob("*.py"):
        found |= set(
            re.findall(r"""["']((?:x-)?ojs-[a-z-]+|x-request-id|authorization|user-agent)["']""", name.read_text())
        )
    return [*sorted(found - {"ojs-asgi", "authorization", "x-ojs-api-key"}), "traceparent", "tracestate", "baggage"]


class Server:
    """Unary calls through the transport's own code, on the connection of the test."""

    def __init__(self, world: World) -> None:
        self.side = world.own
        self.key = keys.create("everything", ["admin"])[1]
        self.writes = Writes()

    def message(self, rpc: str) -> Any:
        return messages.to_message(f"{rpc}Request", filled(RPCS[rpc][1], self.side) if rpc in RPCS else {})

    def send(self, rpc: str, raw: bytes, **given: str) -> tuple[str, Any, bool]:
        """The code of the answer, what it says, and whether rows have changed though it is an error."""
        found: list[Any] = []
        head = Metadata({"authorization": f"Bearer {self.key}", **given}, "127.0.0.1")

        def act() -> tuple[str, Any]:
            try:
                with mock.patch.object(calls, "close_old_connections"):  # the test's transaction is open on this one
                    calls.UnaryCall(calls.OPERATIONS[rpc], raw, head).run(found.append)
            except RpcError as refused:
                return refused.code.name, refused
            return "OK", found[0]

        (code, answer), changed = self.writes.during(act, lambda told: told[0] != "OK")
        return code, answer, changed


def told(answer: Any) -> str:
    return f"{answer.message} {dict(answer.trailers)['grpc-status-details-bin']!r}".lower()


def faults(server: Server, rpc: str, label: str, raw: bytes, names: Iterable[str], **given: str) -> Iterator[str]:
    try:
        code, answer, changed = server.send(rpc, raw, **given)
    except Exception as error:
        raise AssertionError(f"{rpc} {label}: {error!r}") from error
    if code in OURS:
        yield f"{rpc} {label}: {code} {answer.message}"
    if changed:
        yield f"{rpc} {label}: {code}, and half of a change"
    # What nests deeper than JSON may is refused before there are members.
    known = ("body", *names, *(ALSO[name] for name in names if name in ALSO))
    if code == "INVALID_ARGUMENT" and not any(name.lower() in told(answer) for name in known):
        yield f"{rpc} {label}: the error does not name it: {told(answer)}"


def members_of(rpc: str) -> list[str]:
    """The members that the body of the HTTP operation has, and the parameters of a list, which attributes may carry."""
    operation = calls.OPERATIONS[rpc]
    path = V1 + re.sub(r"{\w+}", "{}", operation.path)
    kinds = ("body", "query") if operation.items else ("body",)
    found = {
        place.names[0] for one in operations() for place in one.places
        if place.kind in kinds and (one.method, re.sub(r"{\w+}", "{}", one.path)) == (operation.method, path)
    }  # fmt: skip
    return sorted(found | {"\x00", "", values.TAG})


def walk(server: Server, rpc: str, count: int) -> Iterator[str]:
    for path, field in fields(definition.METHODS[rpc].request()):
        for value in some(hostile(field), count, rpc, path):
            sent = server.message(rpc)
            put(sent, path, value)
            yield from faults(server, rpc, f"{'.'.join(path)} {value!r:.60}", sent.SerializeToString(), path)
    for path in [path for path, _ in fields(server.message(rpc)) if path[-1] == "attributes"]:
        for member in members_of(rpc):
            for value in some(said(), count, rpc, path, member):
                sent = server.message(rpc)
                put(sent, path, partial(values.write_value, value=value), member)
                label = f"{'.'.join(path)}[{member!r}] {value!r:.60}"
                yield from faults(server, rpc, label, sent.SerializeToString(), [member, *path])
    for raw in BYTES:
        yield from faults(server, rpc, f"{raw[:6]!r}", raw, [])
    for key in metadata_keys():
        for word in {"9" * 5000, *some(TEXTS, count, rpc, key)}:
            text = "".join(char for char in word if " " <= char <= "~")  # what gRPC carries
            names = [part for part in key.split("-") if part not in ("x", "ojs")]
            sent = server.message(rpc).SerializeToString()
            yield from faults(server, rpc, f"{key}={text!r:.60}", sent, names, **{key: text})


def walk_part(world: World, part: int, count: int) -> list[str]:
    server = Server(world)
    return [fault for rpc in list(calls.OPERATIONS)[part::PARTS] for fault in walk(server, rpc, count)]


@pytest.mark.parametrize("part", range(PARTS))
def test_no_value_breaks_an_rpc(part: int, world: World) -> None:
    wrong = walk_part(world, part, FEW)
    assert not wrong, report(wrong)


@pytest.mark.wide
@pytest.mark.parametrize("part", range(PARTS))
def test_none_of_many_values_breaks_an_rpc(part: int, world: World) -> None:
    wrong = walk_part(world, part, MANY)
    assert not wrong, report(wrong)


@pytest.mark.parametrize("text", ["9" * 5000, "9" * 19, "\u0661", "-1", "0", "1e3", "soon", " 5"])
def test_a_reservation_in_metadata_is_read_as_the_member_is(text: str, world: World) -> None:
    server = Server(world)
    code, answer, _ = server.send("Fetch", server.message("Fetch").SerializeToString(), **{VISIBILITY: text})
    assert code == "INVALID_ARGUMENT"
    assert "visibility_timeout_ms" in answer.message
    code, answer, _ = server.send("Fetch", server.message("Fetch").SerializeToString(), **{VISIBILITY: "5000"})
    assert code == "OK"
