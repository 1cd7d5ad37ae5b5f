"""Asynchronous handlers that do several things at once: a branch that waits does not cut off those that go on."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from django_ojs import EventTimeout, JobContext, emit_event, job
from django_ojs.client import branches
from django_ojs.models import Job, JobStep
from django_ojs.testing.storedjobs import WorkerJobs
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
    assert f"order.queue {handle.id} waits, although a branch of its handler" in caplog.text
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
