"""Every member of every message of a WebSocket, and every parameter and header of the event streams and of waits under
ASGI, is hostile in its turn: no 5xx, no `internal_error`, and the connection answers the next message.

The members are those that the server asks a message for; the streams and their parameters are those of the document.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest

from django_ojs.jobs.fetch import Fetch, fetch
from django_ojs.jobs.finish import Ack, ack
from django_ojs.realtime import messages
from tests.hostile.calls import V1
from tests.hostile.places import Operation, Place, of_value, operations, put, quoted, watched
from tests.hostile.values import ODD, WORDS, write
from tests.hostile.walking import FULL, report, some
from tests.realtime.conftest import database, do, enqueue
from tests.realtime.listening import Listener
from tests.realtime.sockets import Refused, Socket, connected

__all__ = ["database"]
pytestmark = pytest.mark.usefixtures("database", "anonymous")
FEW, MANY = 1, 20 if FULL else 2
PATIENCE = 60.0
#: What good clients say, in each dialect.
MESSAGES: dict[str, dict[str, Any]] = {
    "events": {"action": "subscribe", "channel": "events", "filter": {
        "event_types": ["job.completed"], "queues": ["email"], "job_types": ["a.b"], "sources": ["*"], "job_ids": [],
        "workflow_ids": []}},
    "queue": {"action": "subscribe", "channel": "queue:email", "event_types": ["job.*"], "min_interval_ms": 5},
    "all": {"type": "subscribe", "channel": "all", "filter": {"event_types": []}, "last_event_id": "evt_x"},
    "proposal": {"action": "subscribe", "subscription_id": "one", "filters": {"types": ["job.*"]}, "after": "evt_x"},
    "unsubscribe": {"action": "unsubscribe", "channel": "all", "subscription_id": "sub_x"},
    "resume": {"action": "resume", "last_event_id": "evt_x", "subscriptions": ["all", {"channel": "events"}]},
    "ping": {"action": "ping"},
}  # fmt: skip


@pytest.fixture
def anonymous(settings: Any) -> None:
    settings.OJS = {"ALLOW_ANONYMOUS": True}


def members(message: dict[str, Any]) -> list[tuple[str | int, ...]]:
    """What the server asks such a message for, and what is in it."""
    asked: set[tuple[str | int, ...]] = set()

    def note(names: tuple[str | int, ...]) -> None:
        asked.add(names)

    messages.parse(watched(message, (), note))
    return sorted(asked | set(of_value(message, ())), key=str)


async def answers(socket: Socket, text: str) -> list[dict[str, Any]]:
    """All that comes until the pong of a ping that is sent behind the text."""
    await socket.send(text)
    await socket.send({"action": "ping"})
    found = []
    while (frame := await socket.take()) is not None:
        found.append(frame)
        if frame.get("type") == "pong":
            return found
    raise AssertionError(f"closed with {socket.closed}")


def walk_messages(count: int) -> Iterator[tuple[str, str]]:
    for name, message in MESSAGES.items():
        for path in members(message):
            for value in some(ODD, count, name, path):
                yield f"{name} {path} {value!r:.60}", write(put(message, path, value))
    for value in some(ODD, 4 * count, "whole"):
        yield f"whole {value!r:.60}", write(value)


async def faults_of_messages(count: int) -> list[str]:
    wrong = []
    for label, text in walk_messages(count):
        async with connected() as socket:
            try:
                frames = await answers(socket, text)
            except (AssertionError, TimeoutError) as error:
                wrong.append(f"{label}: {error!r}")
                continue
        codes = [frame.get("code") for frame in frames if frame.get("type") == "error"]
        if "internal_error" in codes:
            wrong.append(f"{label}: {frames}")
    return wrong


def streams() -> list[Operation]:
    def is_one(operation: Operation) -> bool:
        waits = any(place.names == ["wait"] for place in operation.places)
        return operation.method == "GET" and (waits or operation.path.endswith(("/stream", "/events")))

    return [operation for operation in operations() if is_one(operation)]


async def status_of(path: str, query: str, headers: dict[str, str]) -> tuple[int, Any]:
    """The status of an answer, and what it says where it is no stream."""
    async with Listener(path, query, **{"accept": "text/event-stream", **headers}) as stream:
        told = await stream.body() if not stream.headers["content-type"].startswith("text/event-stream") else None
        return stream.status, told


async def faults_of_streams(operation: Operation, job_id: str, count: int) -> list[str]:
    path = operation.path.removeprefix(V1.rstrip("/")).replace("{job_id}", job_id).replace("{name}", "email")
    wrong = []
    headers = [
        place for place in operation.places if place.kind == "header" and not place.names[0].startswith("Content")
    ]
    chosen = [place for place in operation.places if place.kind == "query"] + some(headers, 3 * count, operation)
    for place in dict.fromkeys([*chosen, Place("header", ("Last-Event-ID",))]):
        name, waits = place.names[0], "&wait=true&timeout=0" if path.endswith("/result") else ""
        for word in some(WORDS, count, operation, place):
            sent = {name.lower(): word.encode("utf-8", "replace").decode()} if place.kind == "header" else {}
            query = f"{name}={quoted(word)}{waits}" if place.kind == "query" else ""
            status, told = await asyncio.wait_for(status_of(path, query, sent), PATIENCE)
            if status >= 500:
                wrong.append(f"{operation} {place} {word!r:.60}: {status} {told}")
            elif status in (400, 422) and place.kind == "query" and name not in json.dumps(told):
                wrong.append(f"{operation} {place} {word!r:.60}: the error does not name it: {told}")
    return wrong


async def faults_of_handshakes(count: int) -> list[str]:
    wrong = []
    for name in ("ticket", "token", "last_event_id", "after"):
        for word in some(WORDS, count, name):
            try:
                async with connected(f"/ojs/v1/ws?{name}={quoted(word)}") as socket:
                    await socket.nothing()
            except Refused as refused:
                if refused.status >= 500:
                    wrong.append(f"?{name}={word!r:.60}: {refused.status} {refused.body}")
    return wrong


async def ended() -> str:
    (job_id,) = await enqueue("a.b", queue="email")
    (row,) = await do(fetch, Fetch(["email"], worker_id="w"))
    await do(ack, [Ack(row["id"])])
    return job_id


@pytest.mark.parametrize("count", [FEW, pytest.param(MANY, marks=pytest.mark.wide)])
async def test_no_value_breaks_a_websocket(count: int) -> None:
    wrong = await faults_of_messages(count) + await faults_of_handshakes(10 * count)
    assert not wrong, report(wrong)


@pytest.mark.parametrize("count", [FEW, pytest.param(MANY, marks=pytest.mark.wide)])
async def test_no_value_breaks_a_stream_or_a_wait(count: int) -> None:
    job_id, wrong = await ended(), []
    for operation in streams():
        wrong += await faults_of_streams(operation, job_id, count)
    assert not wrong, report(wrong)
