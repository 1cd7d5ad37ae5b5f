"""A small reader of event streams, over a site's ASGI application or over a socket."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import AsyncIterator
from typing import Any

from asgiref.testing import ApplicationCommunicator
from django.core.asgi import get_asgi_application

from django_ojs.realtime.asgi import application

PATIENCE = 60.0


@dataclasses.dataclass
class Frame:
    """One frame: an event, or something beside the events (a comment, the time to wait, an id alone)."""

    event: str = ""
    id: str = ""
    data: Any = None
    comment: str = ""
    retry: int | None = None


def parse(text: str) -> Frame:
    found, lines = Frame(), []
    for line in text.split("\n"):
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        match name:
            case "":
                found.comment = value
            case "data":
                lines.append(value)
            case "retry":
                found.retry = int(value)
            case "event" | "id":
                setattr(found, name, value)
            case _:
                raise AssertionError(f"No field of an event stream: {line!r}")
    assert len(lines) <= 1, "data is one line"
    if lines:
        found.data = json.loads(lines[0])
    return found


class Listener:
    """`async with listen("/events/stream") as stream: await stream.event()`"""

    def __init__(self, path: str, query: str = "", method: str = "GET", **headers: str) -> None:
        names = [(name.replace("_", "-").lower().encode(), value.encode()) for name, value in headers.items()]
        self.scope = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method,
            "path": f"/ojs/v1{path}", "raw_path": f"/ojs/v1{path}".encode(), "query_string": query.encode(),
            "root_path": "", "scheme": "http", "headers": [(b"host", b"testserver"), *names],
            "client": ("127.0.0.1", 5), "server": ("testserver", 80),
        }  # fmt: skip
        self.status = 0
        self.headers: dict[str, str] = {}
        self.seen: list[Frame] = []
        self.over = False
        self._text = ""

    async def __aenter__(self) -> Listener:
        self._app = ApplicationCommunicator(application(get_asgi_application()), self.scope)
        await self._app.send_input({"type": "http.request", "body": b"", "more_body": False})
        start = await self._app.receive_output(PATIENCE)
        self.status = start["status"]
        self.headers = {name.decode().lower(): value.decode() for name, value in start["headers"]}
        return self

    async def __aexit__(self, *exc: object) -> None:
        if not self.over:
            await self._app.send_input({"type": "http.disconnect"})
        await self._app.wait(PATIENCE)

    async def body(self) -> Any:
        """The whole answer as JSON: for an error."""
        text = ""
        while True:
            message = await self._app.receive_output(PATIENCE)
            text += message.get("body", b"").decode()
            if not message.get("more_body"):
                self.over = True
                return json.loads(text) if text else None

    async def frame(self) -> Frame | None:
        """The next frame of any kind; None at the end."""
        while "\n\n" not in self._text:
            message = await self._app.receive_output(PATIENCE)
            self._text += message.get("body", b"").decode()
            if not message.get("more_body"):
                self.over = True
                assert not self._text, "a frame was cut"
                return None
        text, _, self._text = self._text.partition("\n\n")
        self.seen.append(found := parse(text))
        return found

    async def event(self) -> Frame | None:
        """The next frame with data."""
        while (found := await self.frame()) is not None:
            if found.data is not None:
                return found
        return None

    async def events(self, count: int) -> list[Frame]:
        found = [await self.event() for _ in range(count)]
        assert None not in found, self.seen
        return [frame for frame in found if frame is not None]

    async def rest(self) -> list[Frame]:
        """All events until the end."""
        found: list[Frame] = []
        while (frame := await self.event()) is not None:
            found.append(frame)
        return found


listen = Listener


async def nothing_but_comments(stream: Listener, seconds: float = 0.2) -> None:
    async def look() -> AsyncIterator[Frame]:
        while (found := await stream.event()) is not None:
            yield found

    try:
        async with asyncio.timeout(seconds):
            async for found in look():
                raise AssertionError(f"Nothing was to come: {found}")
    except TimeoutError:
        pass
