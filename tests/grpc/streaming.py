"""Clients of the streams of a gRPC server: what comes is read by a thread, so that a test can wait for it."""

from __future__ import annotations

import threading
from queue import Empty, SimpleQueue
from typing import Any

import grpc

from django_ojs.grpc import messages
from tests.grpc.serving import PATIENCE, Failure, Served, pairs


class Listener:
    """A stream that a client has opened: it is in force when this is made (its initial metadata has come)."""

    def __init__(self, served: Served, rpc: str, document: dict[str, Any], **metadata: str) -> None:
        request = messages.to_message(f"{rpc}Request", document)
        self.call = getattr(served.stub, rpc)(request, metadata=pairs(metadata))
        self.initial: dict[str, Any] = dict(self.call.initial_metadata())
        self.failure: Failure | None = None
        self._found: SimpleQueue[Any] = SimpleQueue()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        try:
            for message in self.call:
                self._found.put(messages.to_document(message))
        except grpc.RpcError as error:
            self.failure = Failure(error)

    def next(self) -> dict[str, Any]:
        found: dict[str, Any] = self._found.get(timeout=PATIENCE)
        return found

    def take(self, count: int) -> list[dict[str, Any]]:
        return [self.next() for _ in range(count)]

    @property
    def has_nothing(self) -> bool:
        return self._found.empty()

    def leave(self) -> None:
        """Cancel the stream, as a client that goes does."""
        self.call.cancel()
        self._thread.join(PATIENCE)

    def end(self) -> Failure:
        """Why the server has ended the stream; waits for that."""
        self._thread.join(PATIENCE)
        assert self.failure is not None
        return self.failure

    def rest(self) -> list[dict[str, Any]]:
        """What came and was not looked at; after the end."""
        found = []
        while True:
            try:
                found.append(self._found.get_nowait())
            except Empty:
                return found


def refused(served: Served, rpc: str, document: dict[str, Any], **metadata: str) -> Failure:
    return Listener(served, rpc, document, **metadata).end()
