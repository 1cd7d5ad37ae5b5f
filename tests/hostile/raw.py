"""HTTP/1.1 by hand, so that nothing between the attacker and the server straightens a request."""

from __future__ import annotations

import contextlib
import socket
import time
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

from tests.hostile.answers import STREAM, Answer
from tests.hostile.calls import Call

TIMEOUT = 60.0
#: Seconds after which a kept connection is not used again: the server may be about to close it (uvicorn's 5).
KEPT = 2.0


class Closed(Exception):
    """The server ended the connection without an answer."""


class Wire:
    """One server; a connection is kept while the server keeps it."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._address = (parts.hostname or "", parts.port or 80)
        self._socket: socket.socket | None = None
        self._buffer = b""
        self._used = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
        self._socket, self._buffer = None, b""

    def send(self, call: Call) -> Answer:
        """The answer to a call whose length is right."""
        if time.monotonic() - self._used > KEPT:
            self.close()
        answer = self._exchange(bytes_of(call), head=call.method == "HEAD")
        self._used = time.monotonic()
        if answer.headers.get("connection", "") == "close" or answer.headers.get("content-type") == STREAM:
            self.close()
        return answer

    def throw(self, data: bytes) -> Answer:
        """The answer to bytes that may be anything, after which nothing more comes from us. Raises Closed."""
        self.close()
        try:
            return self._exchange(data, head=data.startswith(b"HEAD "), last=True)
        finally:
            self.close()

    def _exchange(self, data: bytes, *, head: bool, last: bool = False) -> Answer:
        if self._socket is None:
            self._socket = socket.create_connection(self._address, TIMEOUT)
        with contextlib.suppress(OSError):  # an answer may be there already, before all was read
            self._socket.sendall(data)
            if last:
                self._socket.shutdown(socket.SHUT_WR)
        return self._read(head)

    def _read(self, head: bool) -> Answer:
        while b"\r\n\r\n" not in self._buffer:
            self._more()
        top, _, self._buffer = self._buffer.partition(b"\r\n\r\n")
        status, *lines = top.decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        code = int(status.split(" ")[1])
        if code == 100:
            return self._read(head)
        length = 0 if head or code == 204 else int(headers.get("content-length", "0"))
        while len(self._buffer) < length:
            self._more()
        body, self._buffer = self._buffer[:length], self._buffer[length:]
        return Answer(code, headers, body)

    def _more(self) -> None:
        assert self._socket is not None
        try:
            data = self._socket.recv(65_536)
        except ConnectionError as error:
            raise Closed from error
        if not data:
            raise Closed
        self._buffer += data


def bytes_of(call: Call) -> bytes:
    lines = [f"{call.method} {call.target} HTTP/1.1", "Host: localhost"]
    lines += [f"{name}: {value}" for name, value in call.headers.items()]
    return "\r\n".join([*lines, "", ""]).encode("latin-1", "replace") + call.body
