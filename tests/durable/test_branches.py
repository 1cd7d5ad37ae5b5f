"""Asynchronous handlers that do several things at once: a branch that waits does not cut off those that go on."""

from __future__ import annotations

import asyncio
import datetime as dt
import functools
import gc
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from django_ojs import EventTimeout, JobContext, emit_event, job
from django_ojs.client import branches
from django_ojs.client.directives import Suspended
from django_ojs.client.steps import Durable, MemorySteps, StepLog
from django_ojs.guard import uncancelled
from django_ojs.models import Job, JobStep
from django_ojs.rules.steps import Step
from django_ojs.testing.storedjobs import WorkerJobs
from django_ojs.worker.runs import Interruption, JobRun
from tests.durable.conftest import NOW

pytestmark = pytest.mark.django_db

Handler = Callable[..., Awaitable[Any]]


async def in_a_group(*parts: Any) -> list[Any]:
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(part) for part in parts]
    return [task.result() for task in tasks]


def asynchronous(handler: Handler) -> Handler:
    return handler


def plainly(handler: Handler) -> Handler:
    @functools.wraps(handler)
    def wrapper(*args: Any) -> Any:
        return handler(*args)

    return wrapper


@pytest.fixture(params=[asyncio.gather, in_a_group], ids=["gather", "TaskGroup"])
def together(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture
def calls() -> list[Any]:
    return []


def recorded(handle: Any) -> dict[str, bool]:
    """The steps of the job, and whether each has ended."""
    found = JobStep.objects.filter(job_id=handle.id).order_by("id").values_list("name", "ended_at")
    return {name: ended is not None for name, ended in found}


async def nothing() -> None:
    pass


async def a_moment() -> None:
    await asyncio.sleep(0.01)


@pytest.mark.parametrize("between", [nothing, a_moment], ids=["at once", "behind a plain await"])
@pytest.mark.parametrize("decorated", [asynchronous, plainly])
def test_what_follows_a_sleep_is_done_beside_a_wait(
    jobs: WorkerJobs, calls: list[Any], together: Any, decorated: Any, between: Any
) -> None:
    @job("order.reminded", durable=True)
    @decorated
    async def handler(context: JobContext) -> list[Any]:
        async def remind() -> str:
            await between()
            await context.asleep("1d")
            await between()
            await context.astep("remind", calls.append, "remind")
            await between()
            await context.asleep("1d", name="again")
            await context.astep("second", calls.append, "second")
            return "reminded"

        return list(await together(context.await_for_event("paid", name="paid"), remind()))

    handle = handler.enqueue()
    jobs.drain()
    assert recorded(handle) == {"paid": False, "$sleep-1": False}
    jobs.drain(with_scheduled=True)
    assert calls == ["remind", "second"]
    assert Job.objects.get(pk=handle.id).state == "retryable"
    emit_event("paid", payload=5)
    jobs.drain(with_scheduled=True).raise_first()
    assert (handle.refresh().result, calls) == ([5, "reminded"], ["remind", "second"])


def test_so_is_what_a_branch_begins_with_and_what_branches_of_branches_do(
    jobs: WorkerJobs, calls: list[Any], together: Any
) -> None:
    @job("order.nested", durable=True)
    async def handler(context: JobContext) -> Any:
        async def first() -> None:
            await a_moment()  # such as a query of the model
            await context.astep("first", calls.append, "first")

        async def second() -> None:
            await together(context.await_for_event("b", name="b"), first())
            await a_moment()
            await context.astep("behind", calls.append, "behind")

        return await together(context.await_for_event("a", name="a"), second(), context.asleep("1h"))

    handle = handler.enqueue()
    jobs.drain()
    assert (calls, Job.objects.get(pk=handle.id).due_at) == (["first"], NOW.replace(hour=13))
    emit_event("b")
    jobs.drain()
    assert calls == ["first", "behind"]
    emit_event("a")
    jobs.drain(with_scheduled=True).raise_first()
    assert (handle.refresh().state, calls) == ("completed", ["first", "behind"])


def test_so_is_what_the_code_does_that_has_started_the_branches(jobs: WorkerJobs, calls: list[Any]) -> None:
    """The body of a group did one step, was cut off behind it, and went on when the wait was over."""

    @job("order.body", durable=True)
    async def handler(context: JobContext) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(context.await_for_event("paid"))
            for page in range(3):
                await a_moment()
                await context.astep(f"page-{page}", calls.append, page)

    handle = handler.enqueue()
    jobs.drain()
    assert (calls, recorded(handle)["$event-1"]) == ([0, 1, 2], False)
    emit_event("paid")
    jobs.drain().raise_first()
    assert calls == [0, 1, 2]


async def by_wait(*parts: Any) -> None:
    done, _ = await asyncio.wait([asyncio.ensure_future(part) for part in parts])
    [task.result() for task in done]


async def as_completed(*parts: Any) -> None:
    for one in asyncio.as_completed(parts):
        await one


async def one_by_one(*parts: Any) -> None:
    for task in [asyncio.ensure_future(part) for part in parts]:
        await task


@pytest.mark.parametrize("gather", [asyncio.gather, in_a_group, by_wait, as_completed, one_by_one])
def test_who_only_waits_for_branches_keeps_no_slot(
    jobs: WorkerJobs, gather: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(branches, "LONGEST_BETWEEN_STEPS", 0.01)
    gc.collect()  # the garbage of other tests, of which asyncio may tell, too
    caplog.clear()

    @job("order.waits", durable=True)
    async def handler(context: JobContext) -> None:
        async def inner(name: str) -> None:
            await gather(context.await_for_event(name, name=name), context.astep(f"look-{name}", int))

        await gather(inner("a"), inner("b"))

    handle = handler.enqueue()
    jobs.drain()
    assert recorded(handle) == {"a": False, "b": False, "look-a": True, "look-b": True}
    gc.collect()  # asyncio tells then of a task whose exception no one has asked for
    assert "waits, although" not in caplog.text
    assert "never retrieved" not in caplog.text


@pytest.mark.parametrize("limit", [None, "1h"], ids=["without a limit", "with a limit"])
def test_so_is_what_goes_on_inside_of_a_step(
    jobs: WorkerJobs, calls: list[Any], together: Any, limit: str | None
) -> None:
    """Two steps with branches of their own wait for each other's, not for each other."""

    @job("order.inside", durable=True)
    async def handler(context: JobContext) -> Any:
        async def work(number: int) -> None:
            await context.asleep("1h")
            await context.astep("remind", calls.append, number)

        async def both(number: int) -> list[Any]:
            return list(await asyncio.gather(context.await_for_event("a", key=number, name="a"), work(number)))

        return await together(*(context.astep(f"outer-{n}", both, n, timeout=limit) for n in range(2)))

    handle = handler.enqueue()
    jobs.drain(with_scheduled=True)
    assert sorted(calls) == [0, 1]
    emit_event("a", key=0, payload="zero")
    jobs.drain(with_scheduled=True)
    emit_event("a", key=1, payload="one")
    jobs.drain(with_scheduled=True).raise_first()
    assert (handle.refresh().result, sorted(calls)) == ([["zero", None], ["one", None]], [0, 1])


def test_a_branch_that_another_waits_for_ends_the_run(
    jobs: WorkerJobs, together: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What goes on only when the wait is over does not keep the slot for ever."""
    monkeypatch.setattr(branches, "LONGEST_BETWEEN_STEPS", 0.01)

    @job("order.queue", durable=True)
    async def handler(context: JobContext) -> Any:
        queue: asyncio.Queue[Any] = asyncio.Queue()

        async def give() -> None:
            await queue.put(await context.await_for_event("paid"))

        async def take() -> Any:
            await context.astep("look", int)
            return await context.astep("take", str, await queue.get())

        return (await together(give(), take()))[1]

    handle = handler.enqueue()
    jobs.drain()
    assert recorded(handle) == {"$event-1": False, "look": True}
    assert f"order.queue {handle.id} waits, although a branch of its handler (" in caplog.text
    assert ".take) has been" in caplog.text
    emit_event("paid", payload=5)
    jobs.drain().raise_first()
    assert handle.refresh().result == "5"


def test_the_first_of_several_waits_may_end_the_others(jobs: WorkerJobs) -> None:
    @job("order.race", durable=True)
    async def handler(context: JobContext) -> Any:
        async with asyncio.timeout(60):
            event = asyncio.create_task(context.await_for_event("paid"))
            late = asyncio.create_task(context.asleep("1d"))
            done, others = await asyncio.wait({event, late}, return_when=asyncio.FIRST_COMPLETED)
        for other in others:
            other.cancel()
        return "paid" if event in done else await context.astep("late", str, "late")

    handle = handler.enqueue()
    jobs.drain()
    assert recorded(handle) == {"$event-1": False, "$sleep-1": False}
    emit_event("paid")
    jobs.drain().raise_first()
    assert handle.refresh().result == "paid"


def test_a_branch_that_fails_fails_the_job_while_another_waits(jobs: WorkerJobs, together: Any) -> None:
    @job("order.fails", durable=True, retry={"max_attempts": 1})
    async def handler(context: JobContext) -> Any:
        async def fails() -> None:
            await context.astep("look", int)
            raise ValueError("no lorry")

        return await together(context.await_for_event("paid"), fails())

    handle = handler.enqueue()
    jobs.drain()
    assert handle.refresh().state == "discarded"
    assert handle.errors[-1]["message"].endswith("no lorry")


def test_a_wait_that_is_over_is_seen_beside_one_that_is_not(jobs: WorkerJobs, together: Any) -> None:
    @job("order.late", durable=True)
    async def handler(context: JobContext) -> Any:
        async def late() -> str:
            try:
                await context.await_for_event("b", timeout="1h")
            except EventTimeout:
                await context.astep("note", str)
            return "late"

        return await together(context.await_for_event("a", name="a"), late())

    handle = handler.enqueue()
    jobs.drain(with_scheduled=True)
    assert recorded(handle)["note"]
    emit_event("a")
    jobs.drain(with_scheduled=True).raise_first()
    assert handle.refresh().result == [None, "late"]


def test_a_handler_that_begins_anew_shuts_the_door_on_its_other_branches(
    jobs: WorkerJobs, calls: list[Any], together: Any
) -> None:
    """What ends the other branch first is no reason to wait until the reservation ends."""

    @job("order.anew", durable=True)
    async def handler(context: JobContext, left: int) -> str:
        gone = asyncio.Event()

        async def anew() -> None:
            try:
                await context.acontinue_as_new(left - 1)
            finally:
                gone.set()
                await a_moment()

        async def other() -> None:
            await gone.wait()
            await context.astep("late", calls.append, "late")

        return str(await together(anew(), other())) if left else "done"

    handle = handler.enqueue(1)
    jobs.drain().raise_first()
    assert (handle.refresh().result, calls) == ("done", [])
    assert "late" not in recorded(handle)


def test_a_step_that_goes_on_while_the_handler_begins_anew_is_not_of_the_next_run(
    jobs: WorkerJobs, calls: list[Any]
) -> None:
    """Its record would be found there, and the step would not be done."""

    @job("order.goes_on", durable=True)
    async def handler(context: JobContext, left: int) -> Any:
        begun, gone = asyncio.Event(), asyncio.Event()

        async def look() -> int:
            calls.append(left)
            begun.set()
            if left:
                await gone.wait()
            return left

        async def anew() -> None:
            await begun.wait()
            try:
                await context.acontinue_as_new(left - 1)
            finally:
                gone.set()

        parts: list[Any] = [context.astep("look", look), *([anew()] if left else [])]
        return (await asyncio.gather(*parts))[0]

    handle = handler.enqueue(1)
    jobs.drain().raise_first()
    assert (handle.refresh().result, calls) == (0, [1, 0])


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> list[JobRun]:
    """The runs so far, the latest last."""
    found: list[JobRun] = []
    begin = JobRun.begin_steps

    def begin_steps(run: JobRun) -> None:
        found.append(run)
        begin(run)

    monkeypatch.setattr(JobRun, "begin_steps", begin_steps)
    return found


@pytest.mark.parametrize("turned", [False, True], ids=["the wait first", "the step first"])
@pytest.mark.parametrize("reason", [Interruption.SHUTDOWN, Interruption.TIMEOUT])
def test_a_run_that_is_cut_off_does_not_count_as_waiting(
    jobs: WorkerJobs, calls: list[Any], run: list[JobRun], together: Any, turned: bool, reason: Interruption
) -> None:
    """Its other branch was in the middle of a step, which waited until the event came."""

    @job("order.cut", durable=True, retry={"max_attempts": 3, "initial_interval": "1s"})
    async def handler(context: JobContext) -> Any:
        task = asyncio.current_task()
        assert task is not None
        run[-1].enter(task.cancel)

        async def slow() -> None:
            calls.append("slow")
            if len(calls) == 1:
                await a_moment()  # the other rests by now
                run[-1].interrupt(reason, force=True)
                await asyncio.Event().wait()

        parts = [context.await_for_event("paid"), context.astep("slow", slow)]
        return await together(*(parts[::-1] if turned else parts))

    handle = handler.enqueue()
    jobs.drain(with_scheduled=True)
    assert (calls, recorded(handle)) == (["slow", "slow"], {"$event-1": False, "slow": True})
    if reason == Interruption.TIMEOUT:
        assert handle.refresh().error["code"] == "timeout"  # type: ignore[index]
    emit_event("paid", payload=5)
    jobs.drain(with_scheduled=True).raise_first()
    assert handle.refresh().state == "completed"


async def test_a_cancellation_counts_before_what_a_call_in_a_thread_raises() -> None:
    """Else the branch would begin to wait for others, which may be about to be cancelled, too."""
    loop, began, cancelled = asyncio.get_running_loop(), asyncio.Event(), threading.Event()

    def waits() -> None:
        loop.call_soon_threadsafe(began.set)
        loop.call_soon_threadsafe(task.cancel)
        loop.call_soon_threadsafe(cancelled.set)
        assert cancelled.wait(60)
        raise Suspended(5)

    task = asyncio.ensure_future(uncancelled(waits))
    with pytest.raises(asyncio.CancelledError) as raised:
        await task
    assert began.is_set()
    assert isinstance(raised.value.__cause__, Suspended)


def test_what_a_run_waits_for_is_counted_by_the_clock_of_its_database() -> None:
    """That of this host may be days away."""
    log = StepLog(MemorySteps(lambda job: {}), Durable("", "restart"), 1, sequential=False)
    log._began, log._began_here = NOW - dt.timedelta(days=500), time.monotonic() - 60
    log._known["sleep"] = Step("sleep", "sleep", log._began, 1, due_at=log._began + dt.timedelta(hours=1))
    end = log.of_all_branches(Suspended(10**9, ("paid",)))
    assert 3_000_000 < end.delay_ms <= 3_540_000
    assert end.waits == ("paid",)


@pytest.mark.timeout(60)
async def test_who_ends_the_wait_for_the_steps_of_a_handler_ends_the_run_all_the_same() -> None:
    """So does a step that a thread of the handler's does on a loop of its own: nothing on this one hears of its end."""
    found = branches.Branches()
    began, ended = threading.Event(), threading.Event()

    async def elsewhere() -> None:
        async with found.wait():
            began.set()
            await asyncio.to_thread(ended.wait, 60)

    thread = threading.Thread(target=asyncio.run, args=(elsewhere(),))
    thread.start()
    assert await asyncio.to_thread(began.wait, 60)

    async def here() -> None:
        async with found.wait():
            await asyncio.Event().wait()

    task = asyncio.create_task(here())
    settling = asyncio.create_task(found.settle())
    await asyncio.sleep(0)
    settling.cancel()
    await asyncio.wait({settling})
    assert settling.cancelled()
    assert found.is_over
    task.cancel()
    await asyncio.wait({task})
    await found.settle()
    ended.set()
    await asyncio.to_thread(thread.join, 60)
    assert not thread.is_alive()


def test_a_loop_whose_tasks_another_library_makes_goes_on_with_that(
    jobs: WorkerJobs, calls: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as one that traces them. Their branches were unknown, and the first that waited cut off the others."""
    begin = branches.Branches.begin

    def make(loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> asyncio.Task[Any]:
        calls.append("traced")
        return asyncio.Task(coroutine, loop=loop, **options)

    def begin_there(self: branches.Branches) -> None:
        asyncio.get_running_loop().set_task_factory(make)
        begin(self)

    monkeypatch.setattr(branches.Branches, "begin", begin_there)

    @job("order.traced", durable=True)
    async def handler(context: JobContext) -> None:
        async def first() -> None:
            await a_moment()
            await context.astep("first", int)

        await asyncio.gather(context.await_for_event("paid"), first())

    handle = handler.enqueue()
    jobs.drain()
    assert recorded(handle) == {"$event-1": False, "first": True}
    assert "traced" in calls
