"""The client of `ojs_bench`: it counts what was answered, and an answer that is not the script's is an error."""

from __future__ import annotations

import asyncio
import json

import pytest

from benchmarks import client

JOB = "019539a4-b68c-7def-8000-1a2b3c4d5e6f"


class Server(asyncio.Protocol):
    """Answers each call in two parts, and the second call of a cycle to an ACK only."""

    chunked = False
    status = 201
    calls: list[str] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.transports.append(transport)

    def data_received(self, data: bytes) -> None:
        head, _, body = data.partition(b"\r\n\r\n")
        self.calls.append(head.split()[1].decode())
        status = 200 if b"/workers/" in head else self.status
        answer = json.dumps({"job": {"id": JOB}, "sent": json.loads(body or b"null")}).encode()
        if self.chunked:
            framing, answer = b"Transfer-Encoding: chunked", b"%x\r\n%s\r\n0\r\n\r\n" % (len(answer), answer)
        else:
            framing = b"Content-Length: %d" % len(answer)
        answer = b"HTTP/1.1 %d X\r\n%s\r\n\r\n" % (status, framing) + answer
        self.transport.write(answer[:40])
        asyncio.get_running_loop().call_soon(self.transport.write, answer[40:])


async def loaded(script: str, jobs: int, **server: object) -> tuple[dict[str, float], list[str]]:
    kind = type("Kind", (Server,), {**server, "calls": [], "transports": []})
    listening = await asyncio.get_running_loop().create_server(kind, "127.0.0.1", 0)
    async with listening:
        port = listening.sockets[0].getsockname()[1]
        try:
            return await client.load(port, client.SCRIPTS[script], 3, jobs), kind.calls
        finally:
            for transport in kind.transports:
                transport.abort()
            await asyncio.sleep(0)  # until they are closed


@pytest.mark.parametrize("script,calls", [("push", 1), ("push_unique", 1), ("push_once", 1), ("fetch_ack", 2)])
def test_every_job_is_counted_with_its_calls(script: str, calls: int) -> None:
    found, made = asyncio.run(loaded(script, 30))
    assert 30 * calls <= len(made) <= 33 * calls  # the other connections may be on their way
    assert found["rate"] > 0
    assert 0 < found["p50"] <= found["p99"]


def test_answers_may_come_in_chunks() -> None:
    assert len(asyncio.run(loaded("bare", 30, chunked=True))[1]) >= 30


def test_another_status_is_an_error() -> None:
    with pytest.raises(client.UnexpectedAnswer, match="answered 503"):
        asyncio.run(loaded("push", 3, status=503))
