"""Loads an HTTP server over kept connections and prints rate and latencies as JSON: `python -m benchmarks.client`.

It runs in a process of its own and uses neither threads nor an HTTP library, so that the server has the machine's time:
one event loop writes requests that were built before, and reads no more of an answer than its status and its length.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import statistics
import time
from collections.abc import Callable, Generator

#: What one connection does: it yields requests, is sent status and body of each answer, and yields None after a job.
Script = Generator[bytes | None, tuple[int, bytes], None]

_PLAIN = {"type": "bench.sync", "args": [1]}
_numbers = itertools.count()


class Connection(asyncio.Protocol):
    """One connection, which has its script's next request sent as soon as the answer to the last one is there."""

    def __init__(self, script: Script, load: Load) -> None:
        self.script, self.load = script, load
        self.received, self.sent_at = b"", 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self._go_on(None)

    def data_received(self, data: bytes) -> None:
        self.received += data
        head, found, rest = self.received.partition(b"\r\n\r\n")
        if not found:
            return
        length = head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0]
        if not (len(rest) >= int(length) if length else rest.endswith(b"0\r\n\r\n")):  # or in chunks, to the empty one
            return
        self.load.latencies.append(time.perf_counter() - self.sent_at)
        self.received = b""
        try:
            self._go_on((int(head[9:12]), rest))
        except UnexpectedAnswer as error:
            self.load.fail(error)

    def connection_lost(self, exc: Exception | None) -> None:
        self.load.fail(exc or ConnectionError("The server closed a connection."))

    def _go_on(self, answer: tuple[int, bytes] | None) -> None:
        request = next(self.script) if answer is None else self.script.send(answer)
        while request is None:
            if not self.load.one_more():
                return
            request = next(self.script)
        self.sent_at = time.perf_counter()
        self.transport.write(request)


class UnexpectedAnswer(Exception):
    """The server answered with another status than the script's."""


class Load:
    """So many jobs over so many connections, and how long each call took."""

    def __init__(self, jobs: int) -> None:
        self.left = jobs
        self.latencies: list[float] = []
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def one_more(self) -> bool:
        """Count a job that is done; say whether its connection is to go on."""
        self.left -= 1
        if self.left <= 0 and not self.ended.done():
            self.ended.set_result(None)
        return self.left > 0

    def fail(self, error: Exception) -> None:
        if not self.ended.done():
            self.ended.set_exception(error)


def request(path: str, body: object = None, **headers: str) -> bytes:
    content = b"" if body is None else json.dumps(body).encode()
    named = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    head = f"{'POST' if content else 'GET'} {path} HTTP/1.1\r\nHost: localhost\r\n{named}"
    return f"{head}Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n".encode() + content


def repeated(path: str, body: object, status: int) -> Script:
    given = request(path, body)
    while True:
        expect(status, (yield given))
        yield None


def push_unique() -> Script:
    while True:
        job = {**_PLAIN, "args": [next(_numbers), time.time_ns()], "unique": {"keys": ["type", "args"]}}
        expect(201, (yield request("/ojs/v1/jobs", job)))
        yield None


def push_once() -> Script:
    """Each push has an Idempotency-Key of its own."""
    while True:
        key = f"{next(_numbers)}-{time.time_ns()}"
        expect(201, (yield request("/ojs/v1/jobs", _PLAIN, Idempotency_Key=key)))
        yield None


def fetch_and_ack() -> Script:
    """A worker of its own for each connection, which fetches one job and acknowledges it."""
    worker = f"bench-{next(_numbers)}"
    ask = request("/ojs/v1/workers/fetch", {"queues": ["default"], "worker_id": worker})
    while True:
        answer = yield ask
        expect(200, answer)
        job = json.loads(answer[1])["job"]
        expect(200, (yield request("/ojs/v1/workers/ack", {"job_id": job["id"], "worker_id": worker})))
        yield None


def expect(status: int, answer: tuple[int, bytes]) -> None:
    if answer[0] != status:
        raise UnexpectedAnswer(f"The server answered {answer[0]}: {answer[1].decode(errors='replace')}")


SCRIPTS: dict[str, Callable[[], Script]] = {
    "bare": lambda: repeated("/bare", _PLAIN, 201),
    "health": lambda: repeated("/ojs/v1/health", None, 200),
    "push": lambda: repeated("/ojs/v1/jobs", _PLAIN, 201),
    "push_unique": push_unique,
    "push_once": push_once,
    "fetch_ack": fetch_and_ack,
}


async def load(port: int, script: Callable[[], Script], connections: int, jobs: int) -> dict[str, float]:
    """Jobs per second, and milliseconds of a call as p50 and p99."""
    running, loop = Load(jobs), asyncio.get_running_loop()
    started = time.perf_counter()
    transports = [
        (await loop.create_connection(lambda: Connection(script(), running), "127.0.0.1", port))[0]
        for _ in range(connections)
    ]
    try:
        await running.ended
        seconds = time.perf_counter() - started
    finally:
        for transport in transports:
            transport.abort()
        await asyncio.sleep(0)  # until they are closed
    taken = sorted(running.latencies)
    p99 = taken[min(len(taken) - 1, len(taken) * 99 // 100)]
    return {"rate": jobs / seconds, "p50": statistics.median(taken) * 1000, "p99": p99 * 1000}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("port", type=int)
    parser.add_argument("script", choices=SCRIPTS)
    parser.add_argument("--connections", type=int, default=8)
    parser.add_argument("--jobs", type=int, default=2000)
    given = parser.parse_args()
    print(json.dumps(asyncio.run(load(given.port, SCRIPTS[given.script], given.connections, given.jobs))))  # noqa: T201


if __name__ == "__main__":
    main()
