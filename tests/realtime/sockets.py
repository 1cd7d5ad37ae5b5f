"""A WebSocket client in the process of the test, over ASGI. (Channels' own communicator would need daphne.)"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from asgiref.testing import ApplicationCommunicator
from django.core.asgi import get_asgi_application

from django_ojs.realtime.asgi import application as with_events
from tests.realtime.conftest import PATIENCE

APPLICATION = with_events(get_asgi_application())
WS = "/ojs/v1/ws"


class Refused(Exception):
    """The handshake was answered with an error, or closed."""

    def __init__(self, status: int, body: dict[str, Any], headers: dict[str, str] | None = None) -> None:
        super().__init__(status, body)
        self.status, self.body, self.headers = status, body, headers or {}


class Socket:
    """Frames as dicts; `None` when the server has closed, with the code in `closed`."""

    def __init__(self, communicator: ApplicationCommunicator) -> None:
        self._communicator = communicator
        self.closed: int | None = None

    async def send(self, message: Any) -> None:
        text = message if isinstance(message, str) else json.dumps(message)
        await self._communicator.send_input({"type": "websocket.receive", "text": text})

    async def send_bytes(self, data: bytes) -> None:
        await self._communicator.send_input({"type": "websocket.receive", "bytes": data})

    async def take(self) -> Any:
        message = await self._communicator.receive_output(PATIENCE)
        if message["type"] == "websocket.close":
            self.closed = message.get("code", 1000)
            return None
        return json.loads(message["text"])

    async def events(self, count: int) -> list[Any]:
        return [await self.take() for _ in range(count)]

    async def ask(self, message: Any) -> Any:
        """Send, and take the next frame, which is the answer where no events are due."""
        await self.send(message)
        return await self.take()

    async def nothing(self) -> None:
        """What was sent before is done with, and nothing else waits: a ping is answered with a pong and no event."""
        assert await self.ask({"action": "ping"}) == {"action": "pong", "type": "pong"}

    async def end(self) -> int | None:
        """The close code; frames that come before it are put aside."""
        while await self.take() is not None:
            pass
        return self.closed


@asynccontextmanager
async def connected(
    path: str = WS,
    *,
    headers: dict[str, str] | None = None,
    subprotocols: list[str] | None = None,
    answers: bool = True,
    application: Any = None,
) -> AsyncIterator[Socket]:
    """A connection; `Refused` if there is none. `answers`: whether the server can answer a handshake with a status."""
    given = {"host": "testserver", **(headers or {})}
    raw = [(name.encode(), value.encode("latin1")) for name, value in given.items()]
    path, _, query = path.partition("?")
    scope: dict[str, Any] = {
        "type": "websocket", "path": path, "query_string": query.encode(errors="surrogateescape"), "headers": raw,
        "subprotocols": subprotocols or [], "client": ("127.0.0.1", 1234),
    }  # fmt: skip
    if answers:
        scope["extensions"] = {"websocket.http.response": {}}
    communicator = ApplicationCommunicator(application or APPLICATION, scope)
    await communicator.send_input({"type": "websocket.connect"})
    first = await communicator.receive_output(PATIENCE)
    if first["type"] == "websocket.close":
        await _leave(communicator)
        raise Refused(first.get("code", 1000), {})
    if first["type"] == "websocket.http.response.start":
        body = await communicator.receive_output(PATIENCE)
        await communicator.wait()
        told = {name.decode(): value.decode() for name, value in first["headers"]}
        raise Refused(first["status"], json.loads(body["body"] or "{}"), told)
    socket = Socket(communicator)
    socket.subprotocol = first.get("subprotocol")  # type: ignore[attr-defined]
    try:
        yield socket
    finally:
        await asyncio.shield(_leave(communicator))


async def _leave(communicator: ApplicationCommunicator) -> None:
    await communicator.send_input({"type": "websocket.disconnect", "code": 1000})
    await communicator.wait(PATIENCE)
