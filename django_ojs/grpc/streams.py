"""What the server gives to an RPC that answers with a stream: its caller, its metadata, and how it ends (grpc 9, 10).

    async def stream_jobs(call: StreamCall) -> None:
        await call.begin()
        async for ...:
            await call.send(message)

The coroutine returns when the stream is over. It raises an `OJSError` to end it with that error. It looks at
`call.stopping`, which is set when the server shuts down, and then returns within `STREAM_GRACE` seconds; the server
ends the stream with UNAVAILABLE. It is cancelled when the client has gone, and when the caller has lost its rights.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from google.protobuf.message import Message

from django_ojs.grpc import metadata
from django_ojs.grpc.metadata import Metadata
from django_ojs.http import permissions
from django_ojs.realtime.access import Caller

#: Seconds that a stream has to end once the server stops.
STREAM_GRACE = 5.0


class GRPCCaller(Caller):
    """The client of a call, as the request that the rules of the HTTP binding ask about.

    Raises what the HTTP binding answers, as `Caller` does.
    """

    def __init__(self, given: Metadata, operation: str, needs: str) -> None:
        self.operation, self.needs = operation, needs
        self.on_change: Callable[[], None] | None = None  #: called when `limits` have changed
        super().__init__({
            "type": "http", "method": "POST", "path": f"/{operation}", "query_string": b"",
            "headers": given.headers(), "client": (given.address, 0),
        })  # fmt: skip

    async def renew(self) -> bool:
        changed = await super().renew()
        if changed and self.on_change is not None:
            self.on_change()
        return changed


class StreamCall:
    """One call that is answered with a stream.

    Attributes:
        request: the message of the client.
        metadata: what came beside it.
        caller: who calls; `caller.request` is what `http.permissions` asks about, `caller.limits` its queues and types.
            Its rights are renewed while the stream lasts.
        stopping: set when the server shuts down.
        context: the call's `grpc.aio.ServicerContext`.
        request_id: the id of the call.
    """

    def __init__(
        self, request: Any, given: Metadata, caller: GRPCCaller, stopping: asyncio.Event, context: Any
    ) -> None:  # fmt: skip
        self.request, self.metadata, self.caller = request, given, caller
        self.stopping, self.context = stopping, context
        self.request_id = given.answered_id()
        self.begun = False

    async def begin(self) -> None:
        """Send the initial metadata, which says that the stream is in force."""
        if not self.begun:
            self.begun = True
            await self.context.send_initial_metadata(metadata.initial(self.request_id))

    async def send(self, message: Message) -> None:
        """Send a message; returns when it has been handed to the transport."""
        await self.begin()
        await self.context.write(message.SerializeToString())

    @property
    def principal(self) -> str:
        """Who calls, for logs and records."""
        return permissions.principal(self.caller.request)


#: What serves an RPC that streams.
Serve = Callable[[StreamCall], Awaitable[None]]
