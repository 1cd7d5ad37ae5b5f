"""The middleware chains: order, identity, the guard around `next`, and synchronous beside asynchronous."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured

from django_ojs.errors import MiddlewareRejected
from django_ojs.middleware import (
    Chain,
    arun_execution_chain,
    enqueue_chain,
    execution_chain,
    run_enqueue_chain,
    run_execution_chain,
)


class Tag:
    """Notes its name on the way in and out."""

    def __init__(self, name: str = "tag") -> None:
        self.name = name

    def __call__(self, job: dict[str, Any], context: Any, next: Any) -> Any:
        context.trace.append(f"{self.name}>")
        result = next()
        context.trace.append(f"<{self.name}")
        return result


class AsyncTag(Tag):
    async def __call__(self, job: dict[str, Any], context: Any, next: Any) -> Any:
        context.trace.append(f"{self.name}>")
        result = await next()
        context.trace.append(f"<{self.name}")
        return result


class BothTag(Tag):
    async def acall(self, job: dict[str, Any], context: Any, next: Any) -> Any:
        context.trace.append(f"{self.name}+>")
        result = await next()
        context.trace.append(f"<+{self.name}")
        return result


def stamp(job: dict[str, Any], next: Any) -> Any:
    return next({**job, "meta": {"stamped": True}})


class Context:
    def __init__(self) -> None:
        self.trace: list[str] = []
        self.job: dict[str, Any] = {}


@pytest.fixture(autouse=True)
def _empty_chains(settings: Any) -> Iterator[None]:
    settings.OJS = {"EXECUTION_MIDDLEWARE": (), "ENQUEUE_MIDDLEWARE": ()}
    yield
    for chain in (enqueue_chain, execution_chain):
        for middleware in chain.list():
            chain.remove(middleware)


def names(chain: Chain) -> list[str]:
    return [getattr(middleware, "name", "?") for middleware in chain.list()]


def test_the_five_operations() -> None:
    a, b = Tag("a"), Tag("b")
    execution_chain.add(a)
    execution_chain.add(b)
    execution_chain.prepend(Tag("first"))
    execution_chain.insert_before(b, Tag("before b"))
    execution_chain.insert_after(a, Tag("after a"))
    assert names(execution_chain) == ["first", "a", "after a", "before b", "b"]
    execution_chain.remove(a)
    execution_chain.remove(a)
    assert names(execution_chain) == ["first", "after a", "before b", "b"]
    assert len(execution_chain) == 4


def test_identity_is_by_instance_class_or_dotted_name() -> None:
    execution_chain.add("tests.worker.test_chain.BothTag")
    execution_chain.insert_after(BothTag, Tag("by class"))
    execution_chain.insert_before("tests.worker.test_chain.BothTag", Tag("by name"))
    assert names(execution_chain) == ["by name", "tag", "by class"]
    execution_chain.remove(Tag)
    assert names(execution_chain) == ["tag"]


@pytest.mark.parametrize("operation", ["insert_before", "insert_after"])
def test_an_unknown_neighbour_raises(operation: str) -> None:
    with pytest.raises(LookupError, match=r"is not in the chain, which has \[\]"):
        getattr(execution_chain, operation)(Tag, Tag("new"))


def test_a_chain_cannot_change_while_jobs_run() -> None:
    with execution_chain.in_use(), pytest.raises(RuntimeError, match=r"AppConfig\.ready"):
        execution_chain.add(Tag("late"))
    with execution_chain.in_use(), pytest.raises(RuntimeError):
        execution_chain.remove(Tag)
    assert len(execution_chain) == 0


def test_settings_come_first_and_what_code_added_survives_a_change_of_settings(settings: Any) -> None:
    execution_chain.add(Tag("code"))
    settings.OJS = {"EXECUTION_MIDDLEWARE": ["tests.worker.test_chain.BothTag"]}
    assert names(execution_chain) == ["tag", "code"]
    settings.OJS = {"EXECUTION_MIDDLEWARE": []}
    assert names(execution_chain) == ["code"]


def test_what_cannot_be_a_middleware_is_refused() -> None:
    with pytest.raises(ImproperlyConfigured, match="cannot be called"):
        execution_chain.add(5)
    with pytest.raises(ImproperlyConfigured, match="is asynchronous"):
        enqueue_chain.add(AsyncTag("a"))
    with pytest.raises(ImportError):
        execution_chain.add("tests.worker.nowhere")


# The enqueue chain


def test_an_empty_enqueue_chain_returns_the_document_itself() -> None:
    document = {"type": "a"}
    assert run_enqueue_chain(document) is document


def test_enqueue_middlewares_see_what_those_before_them_made() -> None:
    def number(job: dict[str, Any], next: Any) -> Any:
        return next({**job, "meta": job["meta"] | {"number": len(job["meta"])}})

    enqueue_chain.add(stamp)
    enqueue_chain.add(number)
    assert run_enqueue_chain({"type": "a", "id": "1"}) == {
        "type": "a", "id": "1", "meta": {"stamped": True, "number": 1},
    }  # fmt: skip


def test_enqueue_middleware_may_drop_or_refuse_a_job() -> None:
    def drop(job: dict[str, Any], next: Any) -> Any:
        return None

    def refuse(job: dict[str, Any], next: Any) -> Any:
        raise MiddlewareRejected("no")

    enqueue_chain.add(drop)
    assert run_enqueue_chain({"type": "a"}) is None
    enqueue_chain.prepend(refuse)
    with pytest.raises(MiddlewareRejected):
        run_enqueue_chain({"type": "a"})


@pytest.mark.parametrize(
    "middleware,message",
    [
        (lambda job, proceed: proceed({**job, "id": "2"}), "changed the id"),
        (lambda job, proceed: [proceed(job), proceed(job)][0], r"called next\(\) twice"),
        (lambda job, proceed: "job", "return the job, or None"),
    ],
)
def test_faulty_enqueue_middleware_is_told(middleware: Any, message: str) -> None:
    enqueue_chain.add(middleware)
    with pytest.raises(RuntimeError, match=message):
        run_enqueue_chain({"type": "a", "id": "1"})


# The execution chain


def test_the_first_added_is_outermost() -> None:
    execution_chain.add(Tag("a"))
    execution_chain.add(Tag("b"))
    context = Context()
    assert run_execution_chain(context, lambda: context.trace.append("handler") or 7) == 7
    assert context.trace == ["a>", "b>", "handler", "<b", "<a"]


def test_whoever_does_not_call_next_skips_the_handler_and_gives_the_result() -> None:
    execution_chain.add(lambda job, context, proceed: "cached")
    assert run_execution_chain(Context(), lambda: pytest.fail("called")) == "cached"


def test_an_error_travels_outwards_and_may_be_replaced() -> None:
    def rename(job: Any, context: Any, next: Any) -> Any:
        try:
            return next()
        except KeyError as error:
            raise ValueError("renamed") from error

    execution_chain.add(rename)
    with pytest.raises(ValueError, match="renamed"):
        run_execution_chain(Context(), lambda: {}["missing"])


def test_next_twice_raises_before_the_handler_runs_again() -> None:
    calls: list[int] = []
    execution_chain.add(lambda job, context, proceed: [proceed(), proceed()])
    with pytest.raises(RuntimeError, match="twice"):
        run_execution_chain(Context(), lambda: calls.append(1))
    assert calls == [1]


def test_an_asynchronous_middleware_around_a_synchronous_handler() -> None:
    execution_chain.add(Tag("a"))
    execution_chain.add(AsyncTag("b"))
    execution_chain.add(BothTag("c"))
    context, threads = Context(), []

    def handler() -> int:
        threads.append(threading.get_ident())
        return 7

    assert run_execution_chain(context, handler) == 7
    assert context.trace == ["a>", "b>", "c>", "<c", "<b", "<a"]
    assert threads == [threading.get_ident()], "a synchronous handler stays in its thread"


@pytest.mark.timeout(60)
def test_stop_iteration_passes_through_an_asynchronous_middleware() -> None:
    """No future of asyncio's takes it before Python 3.12: the handler's thread waited for ever."""
    execution_chain.add(AsyncTag("a"))
    with pytest.raises(RuntimeError, match="StopIteration") as raised:
        run_execution_chain(Context(), lambda: next(iter([])))
    assert isinstance(raised.value.__cause__, StopIteration)


async def test_a_synchronous_middleware_around_an_asynchronous_handler() -> None:
    execution_chain.add(BothTag("a"))
    execution_chain.add(Tag("b"))
    execution_chain.add(AsyncTag("c"))
    context, threads = Context(), []

    async def handler() -> int:
        threads.append(threading.get_ident())
        return 7

    assert await arun_execution_chain(context, handler) == 7
    assert context.trace == ["a+>", "b>", "c>", "<c", "<b", "<+a"]
    assert threads == [threading.get_ident()], "an asynchronous handler stays on its loop"


async def test_errors_of_asynchronous_handlers_pass_through_synchronous_middlewares() -> None:
    execution_chain.add(Tag("a"))

    async def handler() -> None:
        raise KeyError("inner")

    with pytest.raises(KeyError, match="inner"):
        await arun_execution_chain(Context(), handler)
