"""The system has no more threads for this process: what could not be started is tried again, and no book says that it
runs."""

from __future__ import annotations

import asyncio
import queue
import threading
import uuid
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from django.db import OperationalError

from django_ojs import database, job
from django_ojs.client.context import NoLink
from django_ojs.grpc import jobstream, server
from django_ojs.http import probes, waits
from django_ojs.realtime.handler import StreamThreads
from django_ojs.registry import registry
from django_ojs.scheduler import webhooks
from django_ojs.scheduler.webhooks import DeliveryThreads
from django_ojs.worker import pool as pool_module
from django_ojs.worker.pool import Pool
from django_ojs.worker.runs import Completed
from tests.waiting import eventually
from tests.worker.test_runners import NOW, blank_row

Refuse = Callable[[str], None]


@pytest.fixture
def refuse(monkeypatch: pytest.MonkeyPatch) -> Refuse:
    """Threads whose name begins so cannot be started; '' ends that."""
    refused: list[str] = []
    real = threading.Thread.start

    def start(thread: threading.Thread) -> None:
        if refused and thread.name.startswith(refused[-1]):
            raise RuntimeError("can't start new thread")
        real(thread)

    def set_(name: str) -> None:
        refused[:] = [name] if name else []

    monkeypatch.setattr(threading.Thread, "start", start)
    return set_


@pytest.mark.django_db(transaction=True)
def test_a_probe_is_away_now_and_asked_anew(refuse: Refuse) -> None:
    refuse("ojs-probe")
    for _ in range(2):
        with pytest.raises(OperationalError, match="can't start new thread"):
            probes.ask("default")
    refuse("")
    assert probes.ask("default") >= 0


def test_a_question_that_ends_its_thread_is_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    def cursor() -> Any:
        raise SystemExit(3)

    monkeypatch.setattr(probes, "connections", {"default": SimpleNamespace(cursor=cursor, close=lambda: None)})
    with pytest.raises(OperationalError, match="SystemExit"):
        probes.ask("default")


def test_a_pool_is_renewed_by_the_next_request(refuse: Refuse) -> None:
    checked = threading.Event()
    connection = SimpleNamespace(pool=SimpleNamespace(check=checked.set), in_atomic_block=True)
    lost = OperationalError("the connection is closed")
    refuse("ojs-pool")
    database.leave(connection, lost)
    refuse("")
    database.leave(connection, lost)
    assert checked.wait(60)
    eventually(lambda: not database._renewing.locked())


def test_webhooks_leave_by_the_threads_that_there_are(refuse: Refuse, caplog: pytest.LogCaptureFixture) -> None:
    done = threading.Event()
    threads = DeliveryThreads(done.set)
    refuse("ojs-webhook")
    for _ in range(40):
        with pytest.raises(RuntimeError):
            threads.submit(lambda: "never")
    assert (threads._busy, threads._threads) == (0, 0)
    refuse("")
    held = threading.Event()
    threads.submit(lambda: held.wait(60) and "first")
    refuse("ojs-webhook")
    threads.submit(lambda: "second")
    held.set()
    found: list[str] = []
    eventually(lambda: found.extend(threads.results()) or len(found) == 2)
    assert found == ["first", "second"]
    assert (threads._busy, threads._threads) == (0, 1)
    assert "Making one more thread for webhooks failed" in caplog.text
    threads.close()


def test_an_attempt_that_exits_is_an_attempt_that_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    def attempt(sending: Any) -> Any:
        raise SystemExit(3)

    monkeypatch.setattr(webhooks.deliveries, "attempt", attempt)
    sending: Any = SimpleNamespace(delivery="d")
    assert webhooks._attempt(sending)[1].error == "This server failed while it was sending."


def test_a_request_that_waits_for_a_job_leaves_nothing_behind(refuse: Refuse) -> None:
    ends, job_id = waits.Ends("default", lambda: None), uuid.uuid4()
    refuse("ojs-ends")
    with pytest.raises(RuntimeError), ends.watching(job_id, print):
        pass
    assert (ends._watching, ends._thread) == ({}, None)


def test_job_streams_begin_with_the_next_stream(refuse: Refuse) -> None:
    async def stream() -> bool:
        async with jobstream._running() as streams:
            return streams._claimer.is_running() and streams._asker.is_running()

    for name in ("ojs-stream-claimer", "ojs-stream-places"):
        refuse(name)
        with pytest.raises(RuntimeError):
            asyncio.run(stream())
        assert (jobstream._streams, jobstream._users) == (None, 0)
        eventually(lambda: not [each for each in threading.enumerate() if each.name.startswith("ojs-stream")])
    refuse("")


def test_the_health_of_grpc_goes_on(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    told: list[bool] = []
    answers = iter([RuntimeError("can't start new thread"), True, RuntimeError("can't start new thread"), True])
    monkeypatch.setattr(server, "LOOK_EVERY", 0.001)

    async def run() -> None:
        served, over = server.Server(), asyncio.Event()

        async def store_answers() -> bool:
            found = next(answers)
            if isinstance(found, Exception):
                raise found
            return found

        async def set_health(serving: bool) -> None:
            told.append(serving)
            if len(told) == 4:
                over.set()
                await asyncio.Event().wait()

        monkeypatch.setattr(served, "_store_answers", store_answers)
        monkeypatch.setattr(served, "_set_health", set_health)
        watch = asyncio.create_task(served._watch_store())
        await asyncio.wait_for(over.wait(), 60)
        watch.cancel()
        await asyncio.gather(watch, return_exceptions=True)

    asyncio.run(run())
    assert told == [False, True, False, True]
    assert caplog.text.count("Traceback") == 1


@pytest.mark.parametrize("kind", ["ojs-handler", "ojs-inline", "ojs-loop"])
def test_a_job_waits_in_the_line_with_its_slot_free(kind: str, refuse: Refuse, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_module, "FIRST_PAUSE", 0.001)
    written: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def report(done: Any) -> None:
        for item in done:
            written.put(item)

    def handler() -> str:
        return "done"

    async def ahandler() -> str:
        return "done"

    with registry.isolated():
        job("a.b", inline=kind == "ojs-inline")(ahandler if kind == "ojs-loop" else handler)
        pool = Pool(2, report, lambda: None)
        refuse(kind)
        row = blank_row(NOW, type="a.b", args="[]", attempt=1, timeout_ms=60_000)
        pool.offer([row], NoLink())
        assert (pool._busy, pool.running(), len(pool._line)) == (0, [], 1)
        assert pool.free() == 0, "what cannot be started is not claimed"
        for _ in range(20):
            pool._stalled_until = 0.0
            pool.replace_dead()
        assert (pool._busy, len(pool._line)) == (0, 1)
        refuse("")
        pool._stalled_until = 0.0
        pool.replace_dead()
        run, outcome = written.get(timeout=60)
        assert (run.id, outcome) == (row["id"], Completed('"done"'))
        eventually(lambda: pool.free() == 2)
        pool.close()


def test_a_call_of_a_server_that_cannot_be_answered_costs_no_thread() -> None:
    async def run() -> list[Any]:
        threads = StreamThreads(1)

        def stops(answer: Any) -> None:
            raise StopIteration

        found = []
        for act in (stops, lambda answer: answer(1)):
            try:
                found.append(await asyncio.wait_for(threads.run(act), 60))
            except RuntimeError as error:
                found.append(str(error)[:28])
        return found

    assert asyncio.run(run()) == ["A call raised StopIteration ", 1]
