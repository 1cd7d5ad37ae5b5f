"""`lock`: one holder at a time, in the database of the jobs."""

from __future__ import annotations

import asyncio
import datetime as dt
import threading
from typing import Any

import pytest
from django.db import connections, transaction
from django.db.transaction import TransactionManagementError

from django_ojs import JobContext, LockHeld, clock, job, lock
from django_ojs.client.locks import Lock
from django_ojs.models import Lease
from django_ojs.retention import prune
from django_ojs.testing import WorkerJobs
from tests.conftest import FrozenClock
from tests.waiting import cancelled, occupied

pytestmark = pytest.mark.django_db(transaction=True)


def test_one_holder_at_a_time_and_it_is_free_after_the_block(frozen_clock: FrozenClock) -> None:
    with lock("import", timeout="10m"):
        with pytest.raises(LockHeld, match=r"^The lock 'import' is held by process \d+ on ") as raised:
            lock("import", timeout="10m", wait=0).__enter__()
        assert raised.value.name == "import"
        with lock("export", timeout="10m", wait=0):
            pass
    assert not Lease.objects.exists()
    with pytest.raises(ValueError, match="the block's own"), lock("import", timeout="10m", wait=0):
        raise ValueError("the block's own")
    assert not Lease.objects.exists()


def test_a_name_that_is_no_text_is_refused() -> None:
    name: Any
    for name in (7, None, b"import"):
        with pytest.raises(TypeError, match=r"^The name of a lock is a text, not "):
            lock(name, timeout="10m")


def test_names_are_told_apart_on_every_database() -> None:
    held = [lock(name, timeout="10m") for name in ("import", "Import", "\u00efmport", "import ", "i" * 200, "\ud800")]
    assert all(one.acquire() for one in held)
    for one in held:
        one.release()


def test_what_a_dead_holder_leaves_is_pruned(frozen_clock: FrozenClock) -> None:
    assert lock("left", timeout="10m").acquire()
    clock.advance(hours=24)
    assert prune()["leases"] == 0
    clock.advance(minutes=11)
    assert prune()["leases"] == 1


def test_a_holder_that_dies_loses_it_and_one_that_lives_extends_it(
    frozen_clock: FrozenClock, caplog: pytest.LogCaptureFixture
) -> None:
    dead, alive = lock("a" * 100, timeout="10m"), lock("b" * 100, timeout="10m")
    assert dead.acquire()
    assert alive.acquire()
    clock.advance(minutes=9)
    assert not lock("a" * 100, timeout=1).acquire()
    assert alive.extend()
    clock.advance(minutes=1)
    assert not lock("b" * 100, timeout=1).acquire()
    other = lock("a" * 100, timeout=1)
    assert other.acquire()
    assert not dead.extend()
    dead.release()
    assert "was held for longer than its timeout of 600 s" in caplog.text
    assert Lease.objects.count() == 2, "who came too late takes nothing from the one that has it"
    other.release()
    alive.release()


def test_one_that_was_taken_while_the_clock_was_ahead_lasts_as_long_as_it_was_to(frozen_clock: FrozenClock) -> None:
    """If its holder died, it lasted until the clock was there again."""
    start = clock.now()
    clock.advance(days=1)
    dead, alive = lock("dead", timeout="10m"), lock("alive", timeout="10m")
    assert dead.acquire()
    assert alive.acquire()
    clock.freeze(start)
    for name in ("dead", "alive"):
        assert not lock(name, timeout="1h").acquire()
    clock.advance(minutes=9)
    assert alive.extend()
    clock.advance(minutes=1)
    assert lock("dead", timeout=1).acquire()
    assert not lock("alive", timeout=1).acquire()
    alive.release()
    Lease.objects.create(name=lock("old", timeout=1)._key, holder="process 7 on old 123abc", expires_at=start)
    Lease.objects.update(expires_at=clock.now() + dt.timedelta(days=1))
    assert not lock("old", timeout=1).acquire(), "an older release has not said how long"
    assert Lease.objects.filter(expires_at=clock.now() + dt.timedelta(days=1)).exists()


def test_who_waits_gets_it_when_it_is_given_back() -> None:
    order: list[str] = []
    waits = threading.Event()

    def second() -> None:
        try:
            waits.set()
            with lock("import", timeout="10m"):
                order.append("second")
        finally:
            connections.close_all()

    thread = threading.Thread(target=second)
    with lock("import", timeout="10m"):
        thread.start()
        assert waits.wait(60)
        order.append("first")
    thread.join(60)
    assert order == ["first", "second"]


def test_of_many_at_once_one_has_it() -> None:
    """Also where the row is made for the first time, and where it is left by one that died."""
    for _ in range(2):
        Lease.objects.update(expires_at=clock.now() - dt.timedelta(minutes=1))
        start, won = threading.Barrier(6), []

        def race(start: threading.Barrier = start, won: list[Any] = won) -> None:
            try:
                mine = lock("import", timeout="10m")
                start.wait(60)
                if mine.acquire():
                    won.append(mine)
            finally:
                connections.close_all()

        threads = [threading.Thread(target=race) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert len(won) == 1


def test_asynchronous_code_has_it_too() -> None:
    async def both() -> list[str]:
        order: list[str] = []

        async def take(name: str) -> None:
            async with lock("import", timeout="10m"):
                order.append(f"{name} in")
                await asyncio.sleep(0)
                order.append(f"{name} out")

        await asyncio.gather(take("a"), take("b"))
        return order

    order = asyncio.run(both())
    assert [one.split()[1] for one in order] == ["in", "out", "in", "out"]
    assert [order[0][0], order[2][0]] == [order[1][0], order[3][0]]


def test_a_task_that_is_cancelled_as_it_takes_a_lock_leaves_none(monkeypatch: pytest.MonkeyPatch) -> None:
    free = threading.Event()
    acquire = Lock.acquire

    async def main() -> None:
        loop, began = asyncio.get_running_loop(), asyncio.Event()

        def slow(held: Lock) -> bool:
            loop.call_soon_threadsafe(began.set)
            free.wait()
            return acquire(held)

        monkeypatch.setattr(Lock, "acquire", slow)
        task = asyncio.ensure_future(lock("import", timeout="10m").__aenter__())
        await began.wait()
        await cancelled(task, free)

    asyncio.run(main())
    assert not Lease.objects.exists()


def test_a_task_that_is_cancelled_as_it_gives_a_lock_back_leaves_none() -> None:
    async def main() -> None:
        inside, free = asyncio.Event(), threading.Event()

        async def take() -> None:
            async with lock("import", timeout="10m"):
                await occupied(free)
                inside.set()

        task = asyncio.ensure_future(take())
        await inside.wait()
        await cancelled(task, free)

    asyncio.run(main())
    assert not Lease.objects.exists()


def test_a_handler_is_named_as_the_holder(ojs_worker: WorkerJobs) -> None:
    said: list[str] = []

    @job("test.import")
    def work(context: JobContext) -> None:
        with lock("import", timeout="10m"):
            try:
                lock("import", timeout="10m", wait=0).__enter__()
            except LockHeld as error:
                said.append(error.holder)

    handle = work.enqueue()
    ojs_worker.drain().raise_first()
    assert said[0].startswith(f"job {handle.id}, process ")


def test_what_could_not_be_a_lock_is_refused() -> None:
    with transaction.atomic(), pytest.raises(TransactionManagementError, match="inside an open transaction"):
        lock("import", timeout="10m").acquire()
    with pytest.raises(ValueError, match="timeout=0"):
        lock("import", timeout=0)
    with pytest.raises(ValueError, match="has a name"):
        lock("", timeout=1)
    with lock("import", timeout="10m") as held, pytest.raises(RuntimeError, match="make another one"):
        held.acquire()
