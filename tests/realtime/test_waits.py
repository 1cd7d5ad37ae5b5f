"""Who waits holds neither a connection to the database nor a thread that short requests need."""

from __future__ import annotations

import asyncio
import json
import threading
import time
import uuid
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from http.client import HTTPConnection
from types import SimpleNamespace
from typing import Any

import pytest
from django.core.asgi import get_asgi_application
from django.db import connection, connections, transaction
from django.test import Client

from benchmarks.processes import extended
from django_ojs.database import POOL_OPTIONS, give_back
from django_ojs.http import waits
from django_ojs.jobs.fetch import Fetch, fetch
from django_ojs.jobs.finish import Ack, ack_one
from django_ojs.jobs.push import push
from django_ojs.jobs.push_group import push_one
from django_ojs.models import Job
from django_ojs.queues import bounds, configuration
from django_ojs.realtime import slots
from django_ojs.realtime.handler import on_threads
from tests.realtime.conftest import PATIENCE, do, enqueue
from tests.realtime.test_handler import scope_of
from tests.realtime.test_processes import Server
from tests.waiting import eventually

READERS = POOL_OPTIONS["max_size"]


@pytest.fixture(autouse=True)
def anonymous(settings: Any) -> None:
    settings.ROOT_URLCONF, settings.MIDDLEWARE = "django_ojs.urls", []
    settings.OJS = {"ALLOW_ANONYMOUS": True, "ASGI_THREADS": 2}


class Asked:
    """A request to an ASGI application; its client may leave."""

    def __init__(self, application: Any, target: str, method: str = "GET", body: bytes = b"") -> None:
        self._messages = asyncio.Queue[Any]()
        self._messages.put_nowait({"type": "http.request", "body": body})
        self.sent: list[Any] = []
        self.task = asyncio.create_task(application(scope_of(target, method), self._messages.get, self._send))

    async def _send(self, message: Any) -> None:
        self.sent.append(message)

    def leave(self) -> None:
        self._messages.put_nowait({"type": "http.disconnect"})

    async def answer(self) -> tuple[int, Any]:
        await asyncio.wait_for(self.task, PATIENCE)
        return self.sent[0]["status"], json.loads(b"".join(message.get("body", b"") for message in self.sent[1:]))


async def waiting(count: int) -> None:
    await asyncio.to_thread(eventually, lambda: slots._open["waits", "anonymous@"] == count)


def end(job_id: str) -> None:
    fetch(Fetch(["default"], count=100))
    ack_one(Ack(uuid.UUID(job_id), '"done"'))


@pytest.mark.usefixtures("database")
class TestOnTheLoop:
    async def test_waiting_readers_hold_no_thread_and_are_answered_when_the_job_ends(self) -> None:
        application = on_threads(get_asgi_application())
        first, second = await enqueue("a.b", "a.b")
        readers = [Asked(application, f"/ojs/v1/jobs/{first}/result?wait=true&timeout=50") for _ in range(READERS)]
        other = Asked(application, f"/ojs/v1/jobs/{second}/result?wait=true&timeout=50")
        await waiting(READERS + 1)
        threads = application.short.threads
        await asyncio.to_thread(eventually, lambda: len(threads._idle) == threads._count)
        body = json.dumps({"type": "a.b", "args": []}).encode()
        assert (await Asked(application, "/ojs/v1/jobs", "POST", body).answer())[0] == 201
        assert not any(reader.task.done() for reader in readers)
        await do(end, first)
        for reader in readers:
            assert await reader.answer() == (200, {"job_id": first, "state": "completed", "result": "done"})
        assert not other.task.done()
        await do(end, second)
        assert (await other.answer())[0] == 200
        assert slots.open_slots() == 0

    async def test_a_client_that_leaves_ends_its_wait(self) -> None:
        application = on_threads(get_asgi_application())
        (job,) = await enqueue("a.b")
        reader = Asked(application, f"/ojs/v1/jobs/{job}/result?wait=true&timeout=50")
        await waiting(1)
        reader.leave()
        await asyncio.wait_for(reader.task, PATIENCE)
        assert (reader.sent, slots.open_slots()) == ([], 0)
        ends = waits.ends_in("default")
        assert ends is not None
        assert ends._watching == {}

    async def test_one_that_waits_in_vain_is_told_so(self) -> None:
        application = on_threads(get_asgi_application())
        (job,) = await enqueue("a.b")
        status, body = await Asked(application, f"/ojs/v1/jobs/{job}/result?wait=true&timeout=1").answer()
        assert (status, body["error"]["details"]["waited_seconds"]) == (408, 1)
        assert (await Asked(application, f"/ojs/v1/jobs/{job}/result?wait=false&timeout=9").answer())[0] == 202
        assert (await Asked(application, f"/ojs/v1/jobs/{uuid.uuid4()}/result?wait=true").answer())[0] == 404

    async def test_a_job_that_is_deleted_is_waited_for_no_longer(self) -> None:
        application = on_threads(get_asgi_application())
        (job,) = await enqueue("a.b")
        reader = Asked(application, f"/ojs/v1/jobs/{job}/result?wait=true&timeout=50")
        await waiting(1)
        await do(lambda: Job.objects.all()._raw_delete("default"))
        assert (await reader.answer())[0] == 404

    async def test_a_client_has_so_many_requests_that_wait(self, settings: Any) -> None:
        settings.OJS = {**settings.OJS, "REALTIME_MAX_CONNECTIONS": 2}
        application = on_threads(get_asgi_application())
        (job,) = await enqueue("a.b")
        readers = [Asked(application, f"/ojs/v1/jobs/{job}/result?wait=true&timeout=50") for _ in range(2)]
        await waiting(2)
        more = Asked(application, f"/ojs/v1/jobs/{job}/result?wait=true&timeout=50")
        status, body = await more.answer()
        assert (status, body["error"]["code"]) == (429, "rate_limited")
        assert (b"Retry-After", b"3") in more.sent[0]["headers"]
        await do(end, job)
        assert [(await reader.answer())[0] for reader in readers] == [200, 200]


@pytest.mark.django_db(transaction=True)
class TestInAThread:
    def asked(self, act: Callable[[], Any]) -> tuple[ThreadPoolExecutor, Future[Any]]:
        def run() -> Any:
            try:
                return act()
            finally:
                connections.close_all()

        pool = ThreadPoolExecutor(1)
        return pool, pool.submit(run)

    def test_a_reader_has_no_connection_while_it_sleeps(self, monkeypatch: pytest.MonkeyPatch) -> None:
        (pushed,) = push([{"type": "a.b", "args": []}])
        assert pushed.row is not None
        job_id = str(pushed.row["id"])
        had: list[Any] = []
        watching = waits.Ends.watching

        def noting(self: waits.Ends, *args: Any) -> Any:
            had.append(connections["default"].connection)
            return watching(self, *args)

        monkeypatch.setattr(waits.Ends, "watching", noting)
        pool, answer = self.asked(lambda: Client().get(f"/ojs/v1/jobs/{job_id}/result?wait=true&timeout=50"))
        with pool:
            eventually(lambda: had)
            end(job_id)
            assert answer.result(PATIENCE).json()["result"] == "done"
        if not getattr(connection, "is_in_memory_db", lambda: False)():
            assert had == [None]

    def test_nor_has_a_push_that_waits_for_room(self, monkeypatch: pytest.MonkeyPatch) -> None:
        configuration.configure("full", {"backpressure": {"max_depth": 1, "strategy": "block"}})
        configuration.forget()
        push_one({"type": "a.b", "args": [], "queue": "full"})
        had: list[Any] = []
        go_on = threading.Event()

        def sleep(seconds: float) -> None:
            had.append(connections["default"].connection)
            assert go_on.wait(PATIENCE)

        monkeypatch.setattr(bounds, "time", SimpleNamespace(sleep=sleep, monotonic=time.monotonic))
        body = {"type": "a.b", "args": [], "queue": "full"}

        def post() -> Any:
            return Client().post("/ojs/v1/jobs", body, content_type="application/json", HTTP_OJS_BLOCK_TIMEOUT="30")

        pool, answer = self.asked(post)
        with pool:
            eventually(lambda: had)
            assert slots._open["waits", "anonymous@127.0.0.1"] == 1
            Job.objects.all()._raw_delete("default")
            go_on.set()
            assert answer.result(PATIENCE).status_code == 201
        if not getattr(connection, "is_in_memory_db", lambda: False)():
            assert set(had) == {None}
        assert slots.open_slots() == 0

    @pytest.mark.parametrize("given", [{"GROUP_KEY": lambda: "one"}, {"GROUP_CALLS": False}], ids=["key", "no groups"])
    def test_a_connection_that_the_site_has_told_whose_data_to_show_is_kept(self, settings: Any, given: Any) -> None:
        """Another one would show the data of all: it looks by itself, and nothing looks in its stead."""
        settings.OJS = {**settings.OJS, **given}
        (row,) = [pushed.row for pushed in push([{"type": "a.b", "args": []}])]
        assert row is not None
        assert waits.ends_in("default") is None
        path = f"/ojs/v1/jobs/{row['id']}/result?wait=true&timeout=50"
        kept: list[bool] = []

        def ask() -> Any:
            connection.ensure_connection()
            before = connection.connection
            answer = Client().get(path)
            kept.append(connection.connection is before)
            connections.close_all()
            return answer

        with ThreadPoolExecutor(1) as pool:
            answer = pool.submit(ask)
            eventually(lambda: slots._open["waits", "anonymous@127.0.0.1"] == 1)
            end(str(row["id"]))
            assert answer.result(PATIENCE).json()["result"] == "done"
        assert kept == [True]
        assert slots.open_slots() == 0

    def test_a_transaction_of_the_callers_is_not_lost(self) -> None:
        with transaction.atomic():
            push([{"type": "a.b", "args": []}])
            give_back("default")
            assert Job.objects.count() == 1


@pytest.mark.slow
@pytest.mark.postgres
def test_readers_that_wait_leave_a_pool_to_those_who_push(child_environment: dict[str, str]) -> None:
    """As many as the pool has connections: while they wait, every push is stored, and health is good."""
    url = extended(child_environment["OJS_TEST_DATABASE_URL"], "pool=true")
    server = Server(child_environment | {"OJS_TEST_DATABASE_URL": url}, REALTIME_MAX_CONNECTIONS=READERS)
    server.start()
    try:
        server.wait()
        job = call(server, "POST", "/jobs", {"type": "a.b", "args": []})[1]["job"]["id"]
        with ThreadPoolExecutor(READERS) as pool:
            path = f"/jobs/{job}/result?wait=true&timeout=60"
            readers = [pool.submit(waited, server, path) for _ in range(READERS)]
            one_more = f"/jobs/{job}/result?wait=true&timeout=1"
            eventually(lambda: call(server, "GET", one_more)[0] == 429)  # all of them wait
            for number in range(20):
                assert call(server, "POST", "/jobs", {"type": "a.c", "args": [number]})[0] == 201
            assert call(server, "GET", "/health")[0] == 200
            assert not any(reader.done() for reader in readers)
            end(job)
            assert [reader.result(PATIENCE) for reader in readers] == [
                (200, {"job_id": job, "state": "completed", "result": "done"})
            ] * READERS
    finally:
        server.kill()


def waited(server: Server, path: str) -> tuple[int, Any]:
    """The answer behind a wait. The test itself may have had the last place."""
    while (answer := call(server, "GET", path))[0] == 429:
        time.sleep(0.1)
    return answer


def call(server: Server, method: str, path: str, body: Any = None) -> tuple[int, Any]:
    client = HTTPConnection("127.0.0.1", server.port, timeout=90)
    try:
        content = None if body is None else json.dumps(body)
        client.request(method, f"/ojs/v1{path}", content, {"Content-Type": "application/json"})
        answer = client.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        client.close()
