"""The WebSocket binding as a Channels consumer: what happens before the upgrade, and the frames of the transport."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from typing import Any
from weakref import WeakKeyDictionary

from channels.exceptions import StopConsumer
from channels.generic.websocket import AsyncWebsocketConsumer

from django_ojs import errors, jsontext
from django_ojs.conf import ojs_settings
from django_ojs.errors import OJSError
from django_ojs.http import exceptions
from django_ojs.realtime import shutdown
from django_ojs.realtime.access import Caller
from django_ojs.realtime.codes import FORBIDDEN, TOO_SLOW, UNAUTHENTICATED, UNSUPPORTED
from django_ojs.realtime.connection import Connection
from django_ojs.realtime.hub import Hub
from django_ojs.rules.ids import new_id

logger = logging.getLogger(__name__)

SUBPROTOCOL = "ojs.v1"
#: Close codes where the server cannot answer the handshake with a status.
_CLOSES = {401: UNAUTHENTICATED, 403: FORBIDDEN}
#: Connections of each client, by event loop: one server process has one.
_connected: WeakKeyDictionary[asyncio.AbstractEventLoop, Counter[str]] = WeakKeyDictionary()


class EventsConsumer(AsyncWebsocketConsumer):
    """`/ojs/v1/ws` and `/ojs/v1/events/ws` (events 3). The channel layer is not used: the log is the only source."""

    channel_layer_alias = ""  # none is called so

    _client = ""
    _connection: Connection | None = None
    _running: asyncio.Task[None] | None = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            await self._end()

    async def dispatch(self, message: Any) -> None:
        """Without Channels' look at database connections for every frame: here nothing holds one between two."""
        match message["type"]:
            case "websocket.connect":
                await self.connect()
            case "websocket.receive":
                await self.receive(message.get("text"), message.get("bytes"))
            case "websocket.disconnect":
                raise StopConsumer

    async def connect(self) -> None:
        try:
            caller = await Caller.of(dict(self.scope))
            self._enter(caller.name)
        except Exception as error:  # noqa: BLE001 - whatever it was becomes an answer of the HTTP binding
            await self._refuse(error)
            return
        offered = self.scope.get("subprotocols") or ()
        await self.accept(SUBPROTOCOL if SUBPROTOCOL in offered else None)
        self._connection = Connection(caller, self._write, self.close)
        self._running = asyncio.create_task(self._connection.run())
        shutdown.attend()

    async def receive(self, text_data: str | None = None, bytes_data: bytes | None = None) -> None:
        if self._connection is None:
            return
        if text_data is None:
            await self._connection.close(UNSUPPORTED)
        else:
            await self._connection.receive(text_data)

    async def _write(self, text: str) -> None:
        """One frame, by the shortest way: this is what a busy server does most."""
        message: Any = {"type": "websocket.send", "text": text}
        await self.base_send(message)

    def _enter(self, client: str) -> None:
        if Hub.current().closing:
            raise errors.BackendUnavailable("The server is shutting down.", hint="Connect again.")
        counts = _connected.setdefault(asyncio.get_running_loop(), Counter())
        limit = ojs_settings.REALTIME_MAX_CONNECTIONS
        if limit is not None and counts[client] >= limit:
            raise errors.RateLimited(f"A client may have {limit} connections to a server.", retry_after=5)
        counts[client] += 1
        self._client = client

    async def _end(self) -> None:
        if self._client:
            counts = _connected[asyncio.get_running_loop()]
            counts[self._client] -= 1
            if not counts[self._client]:
                del counts[self._client]
            self._client = ""
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)

    async def _refuse(self, cause: Exception) -> None:
        """Answer the handshake with the error of the HTTP binding, or close where the server knows no such answer."""
        error = exceptions.to_error(cause)
        if error.status >= 500 and not isinstance(cause, OJSError):
            logger.error("A WebSocket could not be opened.", exc_info=cause)
        if "websocket.http.response" not in (self.scope.get("extensions") or {}):
            await self.close(_CLOSES.get(error.status, TOO_SLOW))
            return
        send: Any = self.base_send
        await send({"type": "websocket.http.response.start", "status": error.status, "headers": _headers(error)})
        body = jsontext.dumps_bytes({"error": error.as_dict(f"req_{new_id()}")})
        await send({"type": "websocket.http.response.body", "body": body})
        raise StopConsumer


def _headers(error: OJSError) -> list[tuple[bytes, bytes]]:
    told = {"content-type": "application/json", "cache-control": "no-store", **error.headers}
    if error.status == 401:
        told.setdefault("www-authenticate", "Bearer")
    if error.retry_after is not None:
        told["retry-after"] = str(error.retry_after)
    return [(name.lower().encode("latin1"), value.encode("latin1")) for name, value in told.items()]
