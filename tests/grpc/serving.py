"""A gRPC server for tests, on an event loop in a thread of its own, and clients of it."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import grpc
from google.rpc import error_details_pb2, status_pb2

from django_ojs.grpc import messages
from django_ojs.grpc.definition import Stub
from django_ojs.grpc.server import Server

PATIENCE = 60.0


class Served:
    """A running server: its `port`, a `channel` to it, and the RPCs as methods that take and give documents."""

    def __init__(self, server: Server, port: int, loop: asyncio.AbstractEventLoop) -> None:
        self.server, self.port, self.loop = server, port, loop
        self.address = f"127.0.0.1:{port}"
        self.channel = grpc.insecure_channel(self.address)
        self.stub = Stub(self.channel)

    def call(self, rpc: str, document: dict[str, Any] | None = None, **metadata: str) -> dict[str, Any]:
        """The answer as a document. `metadata` with underscores for hyphens."""
        return messages.to_document(self.whole(rpc, document, **metadata)[0])

    def whole(self, rpc: str, document: dict[str, Any] | None = None, **metadata: str) -> tuple[Any, Any]:
        """The answer as a message, and the call itself."""
        message = messages.to_message(f"{rpc}Request", document or {})
        return getattr(self.stub, rpc).with_call(message, metadata=pairs(metadata), timeout=PATIENCE)

    def refused(self, rpc: str, document: dict[str, Any] | None = None, **metadata: str) -> Failure:
        try:
            self.whole(rpc, document, **metadata)
        except grpc.RpcError as error:
            return Failure(error)
        raise AssertionError(f"{rpc} was not refused")

    def run(self, coroutine: Any) -> Any:
        """The result of a coroutine of the server's event loop."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(PATIENCE)


class Failure:
    """An error as a client sees it."""

    def __init__(self, error: Any) -> None:
        self.code, self.message = error.code(), error.details()
        self.initial = dict(error.initial_metadata() or ())
        self.trailers = dict(error.trailing_metadata() or ())
        self.raw = self.trailers.get("grpc-status-details-bin", b"")
        self.status = status_pb2.Status.FromString(self.raw)
        self.details: dict[str, Any] = {entry.type_url.rpartition("/")[2]: entry.value for entry in self.status.details}

    @property
    def info(self) -> Any:
        return error_details_pb2.ErrorInfo.FromString(self.details["google.rpc.ErrorInfo"])

    @property
    def reason(self) -> str:
        return self.info.reason


def pairs(metadata: dict[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple((name.replace("_", "-"), value) for name, value in metadata.items())


@contextlib.contextmanager
def serving(**options: Any) -> Iterator[Served]:
    """A server on a free port of this machine."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="grpc-of-test", daemon=True)
    thread.start()

    def run(coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, loop).result(PATIENCE)

    async def start() -> tuple[Server, int]:
        server = Server("127.0.0.1:0", **options)
        return server, await server.start()

    server, port = run(start())
    served = Served(server, port, loop)
    try:
        yield served
    finally:
        served.channel.close()
        run(server.stop(0))
        run(_rest())
        loop.call_soon_threadsafe(loop.stop)
        thread.join(PATIENCE)
        loop.close()


async def _rest() -> None:
    """Wait for what goes on behind the calls: the hub closes the connections of its threads after its last stream.

    An event loop that is closed before leaves them to the collector, whose warning counts against any other test.
    """
    others = asyncio.all_tasks() - {asyncio.current_task()}
    if others:
        _, running = await asyncio.wait(others, timeout=PATIENCE)
        assert not running, running
