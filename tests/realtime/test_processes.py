"""The binding over real sockets, in a uvicorn process that is killed, stopped, and read by many."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import websockets
from django.db import connection, connections
from websockets.asyncio.client import ClientConnection, connect

from django_ojs.events import log
from django_ojs.jobs.fetch import Fetch, fetch
from django_ojs.jobs.finish import Ack, ack
from django_ojs.jobs.push import push
from tests.operations.test_event_order import OpenTransaction
from tests.realtime.conftest import do, enqueue

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("database")]

FULL = bool(os.environ.get("OJS_TEST_FULL"))
JOBS = 10_000 if FULL else 1_000
LIFE = ["job.enqueued", "job.started", "job.completed"]
PATIENCE = 60.0


class Server:
    """A uvicorn of the test's own on a fixed port, which can be killed and started again."""

    def __init__(self, environment: dict[str, str], *options: str, **ojs: Any) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        settings = {"DJANGO_SETTINGS_MODULE": "tests.realtime.settings", "OJS_TEST_OJS": json.dumps(_open(ojs))}
        self._environment, self._options = environment | settings, options
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"ws://127.0.0.1:{self.port}/ojs/v1/ws"

    def start(self) -> None:
        command = [
            "-m",
            "uvicorn",
            "tests.realtime.site:application",
            "--port",
            str(self.port),
            "--log-level",
            "warning",
            *self._options,
        ]
        self.process = subprocess.Popen([sys.executable, *command], env=self._environment)

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def wait(self) -> None:
        """Until the port is open."""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=1):
                return
            time.sleep(0.05)
        raise AssertionError("The server did not start.")

    async def connect(self, **options: Any) -> ClientConnection:
        """A connection, as soon as the server answers."""
        deadline = asyncio.get_running_loop().time() + PATIENCE
        while True:
            try:
                return await connect(self.url, proxy=None, max_queue=None, **options)
            except (OSError, websockets.InvalidHandshake):
                if asyncio.get_running_loop().time() > deadline:
                    raise
                await asyncio.sleep(0.05)


def _open(ojs: dict[str, Any]) -> dict[str, Any]:
    return {"ALLOW_ANONYMOUS": True, "REALTIME_RATE_LIMIT": None, **ojs}


@pytest.fixture
def server(child_environment: dict[str, str]) -> Iterator[Server]:
    found = Server(child_environment)
    found.start()
    yield found
    if found.process is not None and found.process.poll() is None:
        found.kill()


async def said(client: ClientConnection) -> Any:
    return json.loads(await asyncio.wait_for(client.recv(), PATIENCE))


async def ask(client: ClientConnection, message: Any) -> Any:
    await client.send(json.dumps(message))
    return await said(client)


@contextlib.asynccontextmanager
async def client_of(server: Server, **options: Any) -> AsyncIterator[ClientConnection]:
    client = await server.connect(**options)
    try:
        yield client
    finally:
        await client.close()


def work(jobs: int) -> None:
    """Push so many jobs in batches, claim and complete them, each step a transaction of its own."""
    try:
        for first in range(0, jobs, 50):
            push([{"type": "a.b", "args": [n]} for n in range(first, min(first + 50, jobs))])
            rows = fetch(Fetch(["default"], worker_id="w", count=50))
            ack([Ack(row["id"]) for row in rows])
    finally:
        connections.close_all()


@pytest.mark.wide
async def test_a_server_that_is_killed_amid_it_all_costs_a_client_that_resumes_nothing(server: Server) -> None:
    """Every event at least once; those of a job in their order, whatever came twice."""
    kills = 3
    seen: dict[str, list[str]] = defaultdict(list)
    ids: set[str] = set()
    last: str | None = None
    async with client_of(server) as client:
        await ask(client, {"action": "subscribe", "channel": "events", "filter": {"event_types": ["job.*"]}})
        await enqueue("a.first", queue="other")
        last = (await said(client))["id"]
    working = asyncio.create_task(asyncio.to_thread(work, JOBS))

    async def follow() -> None:
        nonlocal last
        async with client_of(server) as client:
            wanted = {"event_types": ["job.*"]}
            await client.send(json.dumps({"action": "subscribe", "channel": "events", "filter": wanted, "after": last}))
            while len(ids) < 3 * JOBS:
                if working.done():
                    working.result()
                frame = await said(client)
                if frame["type"] == "subscribed" or frame["data"]["job_type"] != "a.b":
                    continue
                last = frame["id"]
                if frame["id"] not in ids:
                    ids.add(frame["id"])
                    seen[frame["subject"]].append(frame["type"])
                nonlocal kills
                if kills and len(ids) > 3 * JOBS * (4 - kills) // 5:
                    kills -= 1
                    server.kill()
                    server.start()

    while len(ids) < 3 * JOBS:
        with contextlib.suppress(websockets.ConnectionClosed):
            await follow()
    await working
    assert kills == 0
    assert len(seen) == JOBS
    assert {tuple(types) for types in seen.values()} == {tuple(LIFE)}


async def test_a_stopping_server_says_so_closes_and_is_gone(server: Server) -> None:
    async with client_of(server) as client, client_of(server) as idle:
        await ask(client, {"action": "subscribe", "channel": "all"})
        await ask(idle, {"action": "ping"})
        assert server.process is not None
        server.process.send_signal(signal.SIGTERM)
        notice = await said(client)
        assert (notice["event"], notice["data"]["grace_period_ms"]) == ("server.shutdown", 5000)
        assert (await said(idle))["type"] == "server.shutdown"
        for each in (client, idle):
            with pytest.raises(websockets.ConnectionClosed):
                await said(each)
            assert each.close_code == 1001
        await asyncio.wait_for(asyncio.to_thread(server.process.wait), PATIENCE)


@pytest.mark.wide
async def test_a_client_that_takes_nothing_does_not_keep_a_stopping_server(server: Server) -> None:
    async with client_of(server) as client:
        await ask(client, {"action": "subscribe", "channel": "all"})
        client.transport.pause_reading()  # type: ignore[attr-defined]
        assert server.process is not None
        server.process.send_signal(signal.SIGTERM)
        await asyncio.wait_for(asyncio.to_thread(server.process.wait), PATIENCE)


@pytest.mark.skipif(connection.vendor == "sqlite", reason="SQLite has one writer at a time: nothing to overtake")
async def test_a_transaction_held_open_delays_nobody_and_is_missed_by_nobody(server: Server) -> None:
    async with client_of(server) as client:
        await ask(client, {"action": "subscribe", "channel": "events", "filter": {"event_types": ["job.enqueued"]}})
        slow = await do(OpenTransaction, "a.slow")
        await enqueue("a.quick", "a.more")
        assert [(await said(client))["data"]["job_type"] for _ in range(2)] == ["a.quick", "a.more"]
        await do(slow.commit)
        assert (await said(client))["data"]["job_type"] == "a.slow"


@pytest.mark.wide
async def test_a_client_that_reads_slowly_loses_nothing(child_environment: dict[str, str]) -> None:
    server = Server(child_environment, REALTIME_BUFFER_SIZE=10, REALTIME_WRITE_TIMEOUT=30.0)
    server.start()
    try:
        async with client_of(server) as client:
            await ask(client, {"action": "subscribe", "channel": "events", "filter": {"event_types": ["job.enqueued"]}})
            client.transport.pause_reading()  # type: ignore[attr-defined]
            count = 3000
            for first in range(0, count, 500):
                await do(push, [{"type": f"a.n{n}", "args": ["x" * 100]} for n in range(first, first + 500)])
            client.transport.resume_reading()  # type: ignore[attr-defined]
            names = [(await said(client))["data"]["job_type"] for _ in range(count)]
            assert names == [f"a.n{n}" for n in range(count)]
    finally:
        server.kill()


@pytest.mark.wide
async def test_the_manifest_names_the_transport_that_is_there(server: Server) -> None:
    from urllib.request import urlopen

    async with client_of(server) as client:
        await ask(client, {"type": "ping"})
        url = f"http://127.0.0.1:{server.port}/ojs/manifest"
        told = json.loads(await asyncio.to_thread(lambda: urlopen(url).read()))
    assert "websocket" in told["events"]["transports"]
    assert told["events"]["delivery"] == "at_least_once"
    assert told["capabilities"]["events"] is True
    assert told["endpoints"]["websocket"] == "/ojs/v1/ws"


@pytest.mark.wide
@pytest.mark.parametrize("frame", [b"\x00\xff" * 10, "x" * 100_000])
async def test_what_is_no_message_closes_with_its_code(server: Server, frame: Any) -> None:
    async with client_of(server) as client:
        await client.send(frame)
        with pytest.raises(websockets.ConnectionClosed):
            await said(client)
        assert client.close_code == (1003 if isinstance(frame, bytes) else 1009)


@pytest.mark.wide
async def test_refusals_are_answers_of_http(child_environment: dict[str, str]) -> None:
    server = Server(child_environment, ALLOW_ANONYMOUS=False)
    server.start()
    try:
        await asyncio.to_thread(server.wait)
        with pytest.raises(websockets.InvalidStatus) as refused:
            await connect(server.url, proxy=None)
        assert refused.value.response.status_code == 401
        assert json.loads(refused.value.response.body or b"")["error"]["code"] == "unauthenticated"
    finally:
        server.kill()


@pytest.mark.wide
async def test_fifty_clients_get_the_same(server: Server) -> None:
    async with contextlib.AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(client_of(server)) for _ in range(50)]
        for client in clients:
            await ask(client, {"action": "subscribe", "channel": "events", "filter": {"event_types": ["job.*"]}})
        await do(work, 50)
        expected = [event["id"] for event in (await do(log.read, types=["job.*"], limit=1000)).events]

        async def heard(client: ClientConnection) -> list[str]:
            return [(await said(client))["id"] for _ in expected]

        for ids in await asyncio.gather(*map(heard, clients)):
            assert ids == expected
