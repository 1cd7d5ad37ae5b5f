"""One reader for all: nothing is missed, doubled or kept from others, however slow a subscriber or the database is."""

from __future__ import annotations

import asyncio
import queue
import threading
from contextlib import AsyncExitStack
from typing import Any

import pytest
from django.db import OperationalError, connection, connections

from django_ojs import parts
from django_ojs.errors import BackendUnavailable, InvalidRequest
from django_ojs.events import ids, log, order
from django_ojs.events.filters import Filter
from django_ojs.jobs.fetch import Fetch, fetch
from django_ojs.models import Event, EventLog
from django_ojs.realtime import hub as hub_module
from django_ojs.realtime.hub import Hub
from django_ojs.retention import prune
from django_ojs.workflows import workflow
from tests.operations.test_event_order import OpenTransaction
from tests.realtime.conftest import PATIENCE, do, enqueue, names, nothing_more, take
from tests.waiting import eventually

pytestmark = pytest.mark.usefixtures("database")

ALL = Filter()


async def test_live_begins_with_what_is_committed_after_the_call() -> None:
    await enqueue("a.before")
    async with Hub.current().subscribe(ALL) as first:
        await enqueue("a.one")
        async with Hub.current().subscribe(ALL) as second:
            await enqueue("a.two")
            assert names(await take(first, 2)) == ["a.one", "a.two"]
            assert names(await take(second, 1)) == ["a.two"]


async def test_events_name_a_workflow_as_its_client_does() -> None:
    async with Hub.current().subscribe(Filter(job_types=("a.b",))) as stream:
        await do(workflow.create, {"id": "order-17", "type": "group", "jobs": [{"type": "a.b", "args": []}]})
        (item,) = await take(stream, 1)
    assert item.envelope is not None
    assert item.envelope["data"]["workflow_id"] == "order-17"


async def test_after_replays_and_goes_on_live_without_hole_or_repetition() -> None:
    await enqueue("a.n0")
    cursor = (await do(log.read)).cursor
    expected = [f"a.n{i}" for i in range(1, 60)]
    await enqueue(*expected[:30])

    async def produce() -> None:
        await enqueue(*expected[30:])

    producer = asyncio.create_task(produce())
    async with Hub.current().subscribe(ALL, after=cursor) as stream:
        assert names(await take(stream, 59)) == expected
        await producer
        await nothing_more(stream)
        assert not stream.lags


async def test_replay_of_many_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_module, "PAGE", 7)
    await enqueue("a.n0")
    cursor = (await do(log.read)).cursor
    expected = [f"a.n{i}" for i in range(1, 40)]
    await enqueue(*expected)
    async with Hub.current().subscribe(ALL, after=cursor) as stream:
        assert names(await take(stream, 39)) == expected


async def test_a_slow_subscriber_reads_on_from_the_log_and_loses_nothing() -> None:
    async with Hub.current().subscribe(ALL, buffer=5) as slow, Hub.current().subscribe(ALL) as quick:
        expected = [f"a.n{i}" for i in range(40)]
        await enqueue(*expected)
        assert names(await take(quick, 40)) == expected
        assert slow.lags
        assert names(await take(slow, 40)) == expected
        await nothing_more(slow)
        await enqueue("a.live")
        assert not slow.lags
        assert names(await take(slow, 1)) == ["a.live"]


async def test_a_subscriber_so_slow_that_the_log_was_pruned_is_told() -> None:
    async with Hub.current().subscribe(ALL, buffer=2) as slow, Hub.current().subscribe(ALL) as quick:
        await enqueue(*(f"a.n{i}" for i in range(6)))
        await take(quick, 6)

        def prune() -> None:
            kept = Event.objects.order_by("-pk").first()
            assert kept is not None
            ids.log_row("default")
            EventLog.objects.update(pruned_to=kept.pk - 1)
            Event.objects.filter(pk__lt=kept.pk).delete()

        await do(prune)
        items = await take(slow, 4)
        assert names(items) == ["a.n0", "a.n1", "dropped", "a.n5"]
        assert items[2].details["gap_end"] == items[3].envelope["time"]  # type: ignore[index]


async def test_a_log_that_was_pruned_as_far_as_it_was_read_is_no_loss(
    frozen_clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind an event that was committed late there is nothing, though others have higher ids."""

    async def write_out_of_order() -> None:
        if connection.vendor != "sqlite":
            slow = await do(OpenTransaction, "a.slow")
        await enqueue("a.quick")
        await do(log.read)  # puts it in order
        if connection.vendor == "sqlite":
            await enqueue("a.slow")
        else:
            await do(slow.commit)

    async def nothing_left() -> None:
        frozen_clock.advance(days=8)
        await do(prune)
        assert not await do(Event.objects.exists)

    await write_out_of_order()
    async with Hub.current().subscribe(ALL) as stream:  # begins behind them
        await nothing_left()
        await nothing_more(stream)
        await write_out_of_order()
        assert names(await take(stream, 2)) == ["a.quick", "a.slow"]
        await nothing_left()
        await nothing_more(stream)

        new, go_on = hub_module.LogReader._new, threading.Event()

        def held(*args: Any) -> Any:
            assert go_on.wait(PATIENCE)
            return new(*args)

        monkeypatch.setattr(hub_module.LogReader, "_new", held)
        await enqueue("a.lost", "a.also")
        await nothing_left()
        await enqueue("a.kept")
        go_on.set()
        dropped, kept = await take(stream, 2)
        assert names([dropped, kept]) == ["dropped", "a.kept"]
        assert dropped.details["estimated_missed_count"] == 2
        await nothing_left()
        await nothing_more(stream)


async def test_a_cursor_that_was_pruned_is_a_gap_and_then_what_is_left() -> None:
    await enqueue("a.old", "a.kept")
    cursor = (await do(log.read, limit=1)).cursor

    def prune() -> None:
        EventLog.objects.update(pruned_to=Event.objects.get(job_type="a.old").pk)
        Event.objects.filter(job_type="a.old").delete()

    await do(prune)
    async with Hub.current().subscribe(ALL, after=cursor) as stream:
        gap, kept = await take(stream, 2)
        assert (gap.kind, gap.envelope) == ("gap", None)
        assert gap.details["gap_start"] <= gap.details["gap_end"] == kept.envelope["time"]  # type: ignore[index]
        await enqueue("a.live")
        assert names([kept, *await take(stream, 1)]) == ["a.kept", "a.live"]


async def test_a_cursor_that_was_never_issued_is_refused_and_the_hub_stops() -> None:
    for cursor in ("evt_019539a4-b68c-7def-8000-aabbccddeeff", "x", "\x00"):
        with pytest.raises(InvalidRequest):
            async with Hub.current().subscribe(ALL, after=cursor):
                pytest.fail("subscribed")
    assert Hub.current()._tail is None
    names = ("ojs-tail", "ojs-replay")
    await asyncio.to_thread(
        eventually, lambda: not [thread for thread in threading.enumerate() if thread.name.startswith(names)]
    )


async def test_the_hub_begins_with_the_first_and_stops_with_the_last() -> None:
    hub = Hub.current()
    for _ in range(3):
        async with hub.subscribe(ALL) as stream:
            await enqueue("a.one")
            assert names(await take(stream, 1)) == ["a.one"]
            assert (hub.subscribers, hub._tail in parts._parts) == (1, True)
        assert not any(isinstance(part, parts.LastingTask) for part in parts._parts)
        assert (hub.subscribers, hub._tail, hub._routes, hub._anywhere) == (0, None, {}, {})


async def test_the_hub_lives_while_it_waits_for_the_database(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("django_ojs.scheduler.service.LONGEST_PAUSE", 0.01)
    asked, away = threading.Semaphore(0), threading.Event()
    advance = order.advance

    def flaky(using: str) -> Any:
        if away.is_set():
            asked.release()
            raise OperationalError("no route to host")
        return advance(using)

    monkeypatch.setattr(order, "advance", flaky)
    hub = Hub.current()
    async with hub.subscribe(ALL) as stream:
        assert hub._tail is not None
        away.set()
        assert await asyncio.to_thread(lambda: [asked.acquire(timeout=PATIENCE) for _ in range(3)]) == [True] * 3
        before = hub._tail._seen_at
        assert await asyncio.to_thread(lambda: [asked.acquire(timeout=PATIENCE) for _ in range(3)]) == [True] * 3
        assert hub._tail._seen_at > before
        away.clear()
        await enqueue("a.back")
        assert names(await take(stream, 1)) == ["a.back"]


async def test_fifty_subscribers_cost_the_queries_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looks are counted, not time: each one is a constant number of statements for the whole process."""
    looks: list[int] = []
    look = hub_module.LogReader._new

    def counted(self: Any, *args: Any) -> Any:
        with connection.execute_wrapper(lambda execute, *rest: looks.append(1) or execute(*rest)):  # type: ignore[func-returns-value]
            return look(self, *args)

    monkeypatch.setattr(hub_module.LogReader, "_new", counted)

    async def cost(subscribers: int) -> int:
        async with AsyncExitStack() as stack:
            hub = Hub.current()
            streams = [await stack.enter_async_context(hub.subscribe(ALL)) for _ in range(subscribers)]
            # From here on one look for each call of `synced`, and none of its own accord.
            patch = stack.enter_context(monkeypatch.context())
            patch.setattr(hub_module, "BUSY", 3600.0)
            patch.setattr(hub_module, "IDLE", 3600.0)
            await enqueue("a.warm")
            await hub.synced()
            await asyncio.gather(*(take(stream, 1) for stream in streams))
            looks.clear()
            for number in range(10):
                await enqueue(f"a.n{number}")
                await hub.synced()
            for stream in streams:
                assert names(await take(stream, 10)) == [f"a.n{number}" for number in range(10)]
            return len(looks)

    assert await cost(1) == await cost(50) > 0


async def test_an_event_is_rendered_once_for_all_subscribers(monkeypatch: pytest.MonkeyPatch) -> None:
    rendered = []
    render = log.render
    monkeypatch.setattr(log, "render", lambda event, salt: rendered.append(event.pk) or render(event, salt))  # type: ignore[func-returns-value]
    hub = Hub.current()
    async with hub.subscribe(ALL) as one, hub.subscribe(ALL) as two, hub.subscribe(Filter(queues=("none",))) as none:
        await enqueue("a.b")
        assert (await take(one, 1))[0].envelope is (await take(two, 1))[0].envelope
        await nothing_more(none)
    assert len(rendered) == 1


async def test_filters_and_what_a_key_may_see() -> None:
    hub = Hub.current()
    async with (
        hub.subscribe(Filter(queues=("q1",))) as queue,
        hub.subscribe(Filter(types=("job.started",))) as started,
        hub.subscribe([Filter(job_types=("a.one",)), Filter(queues=("q2",))]) as either,
        hub.subscribe(Filter(queues=("q1", "q2"), only_queues=("q2",))) as limited,
        hub.subscribe(Filter(only_types=("a.*",), only_queues=("q1", "q3"))) as typed,
    ):
        await enqueue("a.one", "b.one", queue="q1")
        await enqueue("a.two", queue="q2")
        await do(fetch, Fetch(["q2"], worker_id="w"))
        assert names(await take(queue, 2)) == ["a.one", "b.one"]
        assert names(await take(started, 1)) == ["a.two"]
        assert names(await take(either, 3)) == ["a.one", "a.two", "a.two"]
        assert names(await take(limited, 2)) == ["a.two", "a.two"]
        assert names(await take(typed, 1)) == ["a.one"]
        for stream in (queue, started, either, limited, typed):
            await nothing_more(stream)


async def test_the_database_goes_away_and_comes_back(monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    away, felt = threading.Event(), threading.Event()
    advance = order.advance

    def broken(using: str) -> int:
        if away.is_set():
            felt.set()
            raise OperationalError("gone")
        return advance(using)

    monkeypatch.setattr(order, "advance", broken)
    async with Hub.current().subscribe(ALL) as stream:
        await enqueue("a.one")
        assert names(await take(stream, 1)) == ["a.one"]
        away.set()
        await enqueue("a.two", "a.three")
        await do(felt.wait, 20)
        away.clear()
        assert names(await take(stream, 2)) == ["a.two", "a.three"]
    assert caplog.text.count("cannot be used") == 1


async def test_a_fault_of_ours_stops_nobody(monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    monkeypatch.setattr(hub_module, "AFTER_FAULT", 0.01)
    tail, faults = hub_module.LogReader.tail, iter([ValueError("odd")])

    async def faulty(self: Any, *args: Any, **kwargs: Any) -> Any:
        for fault in faults:
            raise fault
        return await tail(self, *args, **kwargs)

    async with Hub.current().subscribe(ALL) as stream:
        monkeypatch.setattr(hub_module.LogReader, "tail", faulty)
        await enqueue("a.one")
        assert names(await take(stream, 1)) == ["a.one"]
    assert "Reading the event log failed" in caplog.text


async def test_shutting_down_is_told_before_what_waits_and_refuses_new_ones() -> None:
    hub = Hub.current()
    async with hub.subscribe(ALL) as stream:
        await enqueue("a.one")
        await hub.synced()
        hub.shut_down(reason="test", grace_period_ms=5000)
        item, event = await take(stream, 2)
        assert (item.kind, item.details) == ("shutdown", {"reason": "test", "grace_period_ms": 5000})
        assert names([event]) == ["a.one"]
        with pytest.raises(BackendUnavailable):
            async with hub.subscribe(ALL):
                pytest.fail("subscribed")


@pytest.mark.skipif(connection.vendor == "sqlite", reason="SQLite has one writer at a time: nothing to overtake")
async def test_a_transaction_held_open_delays_nobody_and_is_missed_by_nobody() -> None:
    async with Hub.current().subscribe(ALL) as stream:
        slow = await do(OpenTransaction, "a.slow")
        await enqueue("a.quick", "a.more")
        assert names(await take(stream, 2)) == ["a.quick", "a.more"]
        await do(slow.commit)
        assert names(await take(stream, 1)) == ["a.slow"]
        cursor = (await do(log.read, limit=1)).cursor
        async with Hub.current().subscribe(ALL, after=cursor) as replay:
            assert names(await take(replay, 2)) == ["a.more", "a.slow"]


@pytest.mark.parametrize("steps", range(4))
async def test_the_connections_are_closed_also_where_the_loop_ends(steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever ends an event loop cancels what is left in it: here the last subscriber is just leaving."""
    closed: queue.SimpleQueue[str] = queue.SimpleQueue()

    class Closing:
        @staticmethod
        def close_all() -> None:
            connections.close_all()
            closed.put(threading.current_thread().name.partition("_")[0])

    monkeypatch.setattr(hub_module, "connections", Closing)

    async def server() -> None:
        inside = asyncio.Event()

        async def subscriber() -> None:
            async with Hub.current().subscribe(ALL):
                inside.set()
                await asyncio.Event().wait()

        task = asyncio.create_task(subscriber())
        await inside.wait()
        task.cancel()
        for _ in range(steps):
            await asyncio.sleep(0)

    await asyncio.to_thread(asyncio.run, server())
    threads = [await asyncio.to_thread(closed.get, timeout=PATIENCE) for _ in range(2)]
    assert sorted(threads) == ["ojs-replay", "ojs-tail"]
