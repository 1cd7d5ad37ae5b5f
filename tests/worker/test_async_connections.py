"""Asynchronous runs have a thread and a connection each: nothing of one reaches another; a slot takes one at most."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import datetime as dt
import logging
import queue
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.contrib.auth.models import Group
from django.db import connection, transaction

from django_ojs import JobContext, Typed, enqueue, enqueue_many, job
from django_ojs.models import Job
from django_ojs.worker.execution import LoopRunner, ThreadRunner
from django_ojs.worker.pool import Deadlines, Pool
from django_ojs.worker.runs import Completed, Failed, Interruption, JobRun
from tests.waiting import eventually
from tests.worker.conftest import WorkerThread
from tests.worker.test_runners import make, outcome_of, reporting

__all__ = ["make"]

Drain = Callable[..., WorkerThread]
ONCE = {"max_attempts": 1}


def names() -> set[str]:
    return set(Group.objects.values_list("name", flat=True))


@pytest.fixture
def ended() -> queue.SimpleQueue[tuple[JobRun, Any]]:
    return queue.SimpleQueue()


@pytest.fixture
def threads(ended: Any) -> Iterator[ThreadRunner]:
    runner = ThreadRunner(reporting(ended))
    yield runner
    runner.close()


@pytest.fixture
def loop(ended: Any, threads: ThreadRunner) -> Iterator[LoopRunner]:
    runner = LoopRunner(reporting(ended), threads)
    yield runner
    runner.close()


# Databases


@pytest.mark.skipif(connection.vendor == "sqlite", reason="SQLite has one writer at a time")
def test_a_rollback_undoes_what_its_own_run_has_written(drain: Drain) -> None:
    """A transaction is open over an `await` while five others write a row each."""
    opened, written = asyncio.Event(), asyncio.Barrier(6)

    @job("async.hold")
    async def hold() -> None:
        block = transaction.atomic()
        await sync_to_async(block.__enter__)()
        await Group.objects.acreate(name="undone")
        opened.set()
        await written.wait()
        await sync_to_async(transaction.set_rollback)(True)
        await sync_to_async(block.__exit__)(None, None, None)

    @job("async.write")
    async def write(name: str) -> None:
        await opened.wait()
        await Group.objects.acreate(name=name)
        await written.wait()

    holding, *handles = enqueue_many([hold.s(), *(write.s(f"row-{n}") for n in range(5))])
    drain(concurrency=6)
    assert [handle.refresh().state for handle in (holding, *handles)] == ["completed"] * 6
    assert names() == {f"row-{n}" for n in range(5)}


def test_six_queries_run_side_by_side(drain: Drain) -> None:
    together = threading.Barrier(6)

    @job("async.query")
    async def query() -> None:
        await Group.objects.acount()
        await sync_to_async(together.wait)(60)

    handles = enqueue_many([query.s() for _ in range(6)])
    drain(concurrency=6)
    assert [handle.refresh().state for handle in handles] == ["completed"] * 6


def test_the_tasks_of_a_run_share_its_connection(drain: Drain) -> None:
    @job("async.gather")
    async def gather() -> int:
        return len(set(await asyncio.gather(*(sync_to_async(lambda: id(connection.connection))() for _ in range(5)))))

    handle = gather.enqueue()
    drain()
    assert handle.refresh().result == 1


@pytest.mark.timeout(60)
def test_stop_iteration_in_the_thread_of_a_run_ends_its_wait(drain: Drain) -> None:
    """Before Python 3.12 no future of asyncio's takes it: the run waited for ever."""

    @job("async.stops", retry=ONCE)
    async def stops() -> None:
        await sync_to_async(next)(iter([]))

    handle = stops.enqueue()
    drain()
    assert handle.refresh().errors[0]["type"] == "RuntimeError"


@pytest.mark.parametrize("is_async", [True, False])
@pytest.mark.parametrize("kept,closes", [(0, False), (60, False), (60, True)])
def test_what_a_run_leaves_at_its_connection_reaches_no_other(
    drain: Drain, monkeypatch: pytest.MonkeyPatch, is_async: bool, kept: int, closes: bool
) -> None:
    """The same thread runs both. An aborted transaction, also one whose connection is closed, or a wrapper would change
    what the next one does."""
    monkeypatch.setitem(connection.settings_dict, "CONN_MAX_AGE", kept)
    seen: list[str] = []

    def note(execute: Any, sql: str, *rest: Any) -> Any:
        seen.append(sql)
        return execute(sql, *rest)

    def leave() -> None:
        connection.execute_wrappers.append(note)
        transaction.atomic().__enter__()
        with contextlib.suppress(Exception), connection.cursor() as cursor:
            cursor.execute("SELECT nothing FROM nowhere")
        if closes:
            connection.close()

    def look() -> int:
        del seen[:]
        return Group.objects.count()

    async def aleave() -> None:
        await sync_to_async(leave)()

    async def alook() -> int:
        return await sync_to_async(look)()

    job("left.leave", retry=ONCE)(aleave if is_async else leave)
    job("left.look", retry=ONCE)(alook if is_async else look)
    handles = [enqueue(f"left.{name}") for name in ("leave", "look", "leave", "look")]
    drain(concurrency=1)
    assert [handle.refresh().state for handle in handles] == ["completed"] * 4
    assert not seen


def test_wrappers_of_the_site_stay(drain: Drain, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that it puts on every connection where it is made."""
    from django.db.backends.signals import connection_created

    monkeypatch.setitem(connection.settings_dict, "CONN_MAX_AGE", 60)
    seen: list[str] = []

    def note(execute: Any, sql: str, *rest: Any) -> Any:
        if "auth_group" in sql:
            seen.append(sql)
        return execute(sql, *rest)

    def install(connection: Any, **kwargs: Any) -> None:
        connection.execute_wrappers.append(note)

    @job("site.count")
    async def count() -> None:
        await Group.objects.acount()

    enqueue_many([count.s() for _ in range(3)])
    connection_created.connect(install)
    try:
        drain(concurrency=1)
    finally:
        connection_created.disconnect(install)
    assert len(seen) == 3


def test_a_transaction_left_open_is_told_of_with_its_job(drain: Drain, caplog: pytest.LogCaptureFixture) -> None:
    @job("async.leave")
    async def leave() -> None:
        await sync_to_async(transaction.atomic().__enter__)()
        await Group.objects.acreate(name="left open")

    handle = leave.enqueue()
    with caplog.at_level(logging.ERROR, "django_ojs.jobs"):
        drain(concurrency=1)
    assert f"async.leave {handle.id} left a transaction open" in caplog.text
    assert (handle.refresh().state, names()) == ("completed", set())


def test_sync_and_async_runs_share_the_connections_of_the_slots(drain: Drain) -> None:
    sync: set[int] = set()
    async_: set[int] = set()

    def note(seen: set[int]) -> None:
        seen.add(threading.get_ident())
        Group.objects.count()

    async def anote() -> None:
        await sync_to_async(note)(async_)

    job("mixed.sync")(lambda: note(sync))
    job("mixed.async")(anote)
    enqueue_many([(f"mixed.{'sync' if n % 2 else 'async'}", []) for n in range(20)])
    drain(concurrency=1)
    assert sync & async_


# Threads


def test_a_run_without_queries_borrows_no_thread(
    threads: ThreadRunner, loop: LoopRunner, ended: Any, make: Any
) -> None:
    async def nothing() -> None:
        await asyncio.sleep(0)

    loop.start([make(nothing)])
    assert outcome_of(ended) == Completed(None)
    assert not threads._threads


def test_no_more_than_allowed_borrow_at_once(
    threads: ThreadRunner, loop: LoopRunner, ended: Any, make: Any, settings: Any
) -> None:
    """The others wait with their first query, until one has ended; one that is cancelled meanwhile ends at once."""
    settings.OJS = {"ASYNC_CONNECTIONS": 1}
    gate = threading.Event()
    order: list[str] = []

    async def query(name: str) -> str:
        await sync_to_async(order.append)(name)
        if name == "first":
            await asyncio.to_thread(gate.wait, 60)
            await sync_to_async(order.append)("first again")
        return name

    first, second, third = (make(query, f'["{name}"]') for name in ("first", "second", "third"))
    loop.start([first])
    eventually(lambda: order == ["first"])
    loop.start([second, third])
    eventually(lambda: len(threads._borrowers) == 2)
    second.interrupt(Interruption.TIMEOUT, force=True)
    run, outcome = ended.get(timeout=60)
    assert (run, outcome.error["code"]) == (second, "timeout")
    gate.set()
    assert [outcome_of(ended), outcome_of(ended)] == [Completed('"first"'), Completed('"third"')]
    assert order == ["first", "first again", "third"]
    assert (len(threads._threads), threads._lent) == (1, 0)


def test_a_slot_is_taken_until_the_thread_of_its_run_is_free(loop: LoopRunner, ended: Any, make: Any) -> None:
    """A handler may give up a query, which goes on all the same."""
    began, gate = threading.Event(), threading.Event()

    def slow() -> None:
        began.set()
        assert gate.wait(60)

    async def impatient() -> str:
        task = asyncio.ensure_future(sync_to_async(slow)())
        await asyncio.to_thread(began.wait, 60)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        return "gave up"

    async def neighbour() -> str:
        return await sync_to_async(lambda: "neighbour")()

    run = make(impatient)
    loop.start([run])
    assert began.wait(60)
    loop.start([make(neighbour)])
    assert outcome_of(ended) == Completed('"neighbour"')
    assert run.is_inside
    gate.set()
    assert outcome_of(ended) == Completed('"gave up"')
    assert not run.is_inside


def test_a_task_that_outlives_its_run_can_query(threads: ThreadRunner, loop: LoopRunner, ended: Any, make: Any) -> None:
    gate, done = asyncio.Event(), threading.Event()
    left: list[Any] = []

    async def late() -> None:
        await gate.wait()
        await sync_to_async(done.set)()

    async def leave() -> None:
        await sync_to_async(bool)()
        left.append(asyncio.ensure_future(late()))

    async def let_go() -> None:
        gate.set()

    loop.start([make(leave)])
    assert outcome_of(ended) == Completed(None)
    loop.start([make(let_go)])
    assert done.wait(60)
    eventually(lambda: threads._lent == 0)


def test_calls_whose_thread_has_died_end_with_an_error(
    threads: ThreadRunner, loop: LoopRunner, ended: Any, make: Any
) -> None:
    began, waits = threading.Event(), threading.Event()

    async def wait() -> None:
        await sync_to_async(began.set)()
        await asyncio.to_thread(waits.wait, 60)
        await sync_to_async(bool)()

    loop.start([make(wait)])
    assert began.wait(60)
    (thread,) = threads._threads
    loan: Any = threads._threads[thread].batch
    eventually(lambda: loan._changed._waiters)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident or 0), ctypes.py_object(MemoryError))
    with loan._changed:
        loan._changed.notify()  # Python raises it as soon as the thread goes on
    eventually(lambda: not threads.is_whole())
    assert threads.replace_dead()
    waits.set()
    assert outcome_of(ended) == Completed(None), "the next call borrows another"


def test_a_system_without_threads_fails_the_query_and_nothing_else(
    loop: LoopRunner, ended: Any, make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def query() -> None:
        await sync_to_async(bool)()

    async def ready() -> None: ...

    loop.start([make(ready)])
    assert outcome_of(ended) == Completed(None)

    def refuse(self: Any) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        loop.start([make(query)])
        outcome = outcome_of(ended)
    assert isinstance(outcome, Failed)
    assert outcome.error["message"] == "can't start new thread"
    loop.start([make(query)])
    assert outcome_of(ended) == Completed(None)


# Exits beside the handler


async def exits(error: BaseException) -> None:
    raise error


async def in_gather() -> None:
    await asyncio.gather(exits(SystemExit(3)), asyncio.Event().wait())


async def in_group() -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(exits(KeyboardInterrupt()))
        group.create_task(asyncio.Event().wait())


async def in_shield() -> None:
    await asyncio.wait_for(asyncio.shield(exits(SystemExit(3))), 600)


async def left_behind() -> None:
    task = asyncio.create_task(exits(SystemExit(3)))
    await asyncio.Event().wait()
    del task


async def in_a_callback() -> None:
    asyncio.get_running_loop().call_later(0, sys.exit, 3)
    await asyncio.Event().wait()


async def in_wait() -> None:
    await asyncio.wait({asyncio.create_task(exits(SystemExit(3)))})
    await asyncio.Event().wait()


@pytest.mark.parametrize("handler", [in_gather, in_group, in_shield, left_behind, in_a_callback, in_wait],
                         ids=lambda handler: handler.__name__)  # fmt: skip
def test_an_exit_in_a_part_of_a_handler_fails_its_job_and_nothing_else(
    loop: LoopRunner, ended: Any, make: Any, handler: Any
) -> None:
    began, gate = threading.Event(), threading.Event()

    async def neighbour() -> str:
        began.set()
        await asyncio.to_thread(gate.wait, 60)
        return "unharmed"

    loop.start([make(neighbour)])
    assert began.wait(60)
    loop.start([make(handler)])
    outcome = outcome_of(ended)
    assert isinstance(outcome, Failed)
    assert outcome.error["type"] == ("KeyboardInterrupt" if handler is in_group else "SystemExit")
    assert loop.is_whole()
    gate.set()
    assert outcome_of(ended) == Completed('"unharmed"')


def test_a_handler_may_receive_the_exit_of_its_task(loop: LoopRunner, ended: Any, make: Any) -> None:
    async def receive() -> str:
        try:
            await asyncio.gather(exits(SystemExit(3)))
        except SystemExit as error:
            await asyncio.sleep(0)
            return f"it ended with {error.code}"
        return ""

    loop.start([make(receive)])
    assert outcome_of(ended) == Completed('"it ended with 3"')


def test_a_handler_that_stops_its_loop_goes_on(loop: LoopRunner, ended: Any, make: Any) -> None:
    async def stop() -> str:
        asyncio.get_running_loop().stop()
        await asyncio.sleep(0)
        return "goes on"

    loop.start([make(stop)])
    assert outcome_of(ended) == Completed('"goes on"')


def test_a_task_of_a_handler_that_blocks_the_loop_is_interrupted(ended: Any, make: Any) -> None:
    """Not only the handler's own coroutine may block it."""
    pool = Pool(1, lambda done: [ended.put(item) for item in done], lambda: None)  # type: ignore[func-returns-value]
    began = threading.Event()

    async def spin() -> None:
        began.set()
        while True:
            pass

    async def handler() -> None:
        await asyncio.gather(spin())

    run = make(handler)
    with pool._changed:
        pool._line.append(run)
        pool._active.add(run)
        started = pool._take()
    assert started is not None
    started[0].start(started[1])
    assert began.wait(60)
    deadlines = Deadlines(pool, print)
    deadlines.UNBLOCK = 0  # type: ignore[misc]
    run.deadline = 0
    deadlines.start()
    try:
        outcome = outcome_of(ended)
    finally:
        assert deadlines.stop(20)
        pool.close()
    assert isinstance(outcome, Failed)
    assert outcome.error["code"] == "timeout"


# Awaitables


class Asynchronous:
    async def __call__(self, a: int, b: int) -> int:
        await asyncio.sleep(0)
        return a + b


async def add(a: int, b: int) -> int:
    await Group.objects.acount()
    return a + b


def decorated(a: int, b: int) -> Any:
    return add(a, b)


@pytest.mark.parametrize("transactional", [False, True])
@pytest.mark.parametrize("handler", [Asynchronous(), decorated, add], ids=["object", "decorated", "function"])
def test_what_is_awaitable_is_awaited(drain: Drain, handler: Any, transactional: bool) -> None:
    job("await.add", transactional=transactional, context=False, retry=ONCE)(handler)
    handle = enqueue("await.add", 3, 4)
    drain()
    assert (handle.refresh().state, handle.result, handle.errors) == ("completed", 7, [])


def test_an_awaitable_of_a_plain_function_can_be_interrupted(threads: ThreadRunner, ended: Any, make: Any) -> None:
    began, cleaned = threading.Event(), threading.Event()

    async def hang() -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            cleaned.set()

    def handler() -> Any:
        return hang()

    run = make(handler)
    threads.start([run])
    assert began.wait(60)
    run.interrupt(Interruption.TIMEOUT, force=True)
    outcome = outcome_of(ended)
    assert isinstance(outcome, Failed)
    assert outcome.error["code"] == "timeout"
    assert cleaned.is_set()
    threads.start([make(lambda: "fine")])
    assert outcome_of(ended) == Completed('"fine"')


def generator() -> Any:
    yield 1


async def agenerator() -> Any:
    yield 1


class Generating:
    def __call__(self) -> Any:
        yield 1


@pytest.mark.parametrize("handler", [generator, agenerator, Generating()], ids=["generator", "async", "object"])
def test_generators_are_refused(handlers: Any, handler: Any) -> None:
    job("generator.made")(handler)
    assert ["is a generator" in fault.message for fault in handlers.faults()] == [True]


# Transactions


def test_an_asynchronous_handler_and_its_completion_are_one_transaction(drain: Drain) -> None:
    @job("atx.write", transactional=True)
    async def write(name: str) -> str:
        await Group.objects.acreate(name=name)
        await asyncio.sleep(0)
        assert await sync_to_async(lambda: connection.in_atomic_block)()
        return name

    handles = enqueue_many([write.s(f"group-{n}") for n in range(3)])
    drain()
    assert names() == {f"group-{n}" for n in range(3)}
    assert [(handle.refresh().state, handle.result) for handle in handles] == [
        ("completed", f"group-{n}") for n in range(3)
    ]


@pytest.mark.parametrize("error", [ValueError("x"), SystemExit(1), KeyboardInterrupt(), asyncio.CancelledError()])
def test_an_asynchronous_handler_that_fails_leaves_nothing_behind(drain: Drain, error: BaseException) -> None:
    @job("atx.fail", transactional=True, retry=ONCE)
    async def fail() -> None:
        await Group.objects.acreate(name="written")
        raise error

    handle = fail.enqueue()
    drain()
    assert (handle.refresh().state, names()) == ("discarded", set())
    assert [each["type"] for each in handle.errors] == [type(error).__name__]


def test_one_that_is_stopped_leaves_nothing_behind(start_worker: Callable[..., WorkerThread]) -> None:
    written = threading.Event()

    @job("atx.hang", transactional=True, retry=ONCE)
    async def hang(context: JobContext) -> None:
        await Group.objects.acreate(name="written")
        written.set()
        await asyncio.Event().wait()

    handle = hang.enqueue()
    worker = start_worker()
    assert written.wait(60)
    (run,) = worker.worker.pool.running()
    run.interrupt(Interruption.TIMEOUT, force=True)
    eventually(lambda: handle.refresh().state == "discarded")
    assert (names(), [each["code"] for each in handle.errors]) == (set(), ["timeout"])
    assert not Job.objects.filter(state="active").exists()


@pytest.mark.django_db(transaction=True)
def test_an_asynchronous_handler_gets_instances_too(drain: Any) -> None:
    @job("test.group", args=Typed)
    async def greet(group: Group, day: dt.date) -> str:
        return f"{group.name} {day.year}"

    handle = greet.enqueue(Group.objects.create(name="staff"), dt.date(2026, 1, 15))
    drain()
    assert handle.refresh().result == "staff 2026"
