"""Each run starts as a request does: nothing that the run before it set in its thread or on its loop is there."""

from __future__ import annotations

import contextvars
import decimal
import queue
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.core.cache import caches
from django.db import connection
from django.urls import get_script_prefix, get_urlconf, set_script_prefix, set_urlconf
from django.utils import timezone, translation

from django_ojs import JobContext, job
from django_ojs.testing import worker
from django_ojs.worker.pool import Pool
from django_ojs.worker.runs import Completed, JobRun
from tests.worker.test_runners import make

__all__ = ["make"]

tenant = contextvars.ContextVar("tenant", default="none")
#: What a handler sees of each state that belongs to a thread.
CLEAN = ["en", "America/New_York", None, "/site/", "none", 28, 3]


@pytest.fixture(autouse=True)
def _prefix(settings: Any) -> None:
    settings.FORCE_SCRIPT_NAME = "/site"


def state() -> list[Any]:
    numbers = decimal.getcontext()
    rounding = [decimal.ROUND_UP, decimal.ROUND_DOWN, decimal.ROUND_HALF_UP, decimal.ROUND_HALF_EVEN]
    return [
        translation.get_language(), timezone.get_current_timezone_name(), get_urlconf(), get_script_prefix(),
        tenant.get(), numbers.prec, rounding.index(numbers.rounding),
    ]  # fmt: skip


def spoil() -> list[Any]:
    """What was there, before this changes all of it."""
    before = state()
    translation.activate("de")
    timezone.activate("Europe/Berlin")
    set_urlconf("tests.urls")
    set_script_prefix("/below/")
    tenant.set("other")
    numbers = decimal.getcontext()
    numbers.prec, numbers.rounding = 5, decimal.ROUND_UP
    decimal.setcontext(numbers)
    return before


@pytest.fixture
def pool() -> Iterator[tuple[Pool, Any]]:
    written: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def report(done: Any) -> None:
        for _, outcome in done:
            written.put(outcome)

    pool = Pool(1, report, lambda: None)
    yield pool, written
    pool.close()


def handler_of(kind: str, function: Callable[[], Any]) -> Callable[..., Any]:
    async def ahandler() -> Any:
        return function()

    return ahandler if kind == "loop" else function


def run_in_a_row(pool: Pool, runs: list[JobRun]) -> None:
    """The first is started, and each other follows on the one before, in the same thread or on the same loop."""
    with pool._changed:
        pool._line.extend(runs)
        pool._active.update(runs)
        started = pool._take()
    assert started is not None
    started[0].start(started[1])


@pytest.mark.parametrize("kind", ["thread", "inline", "loop"])
def test_nothing_is_left_of_the_run_before(pool: Any, make: Callable[..., JobRun], kind: str) -> None:
    slots, written = pool
    runs = [make(handler_of(kind, spoil)) for _ in range(4)]
    for run in runs:
        run.definition.inline = kind == "inline"
    run_in_a_row(slots, runs[:3])
    outcomes = [written.get(timeout=20) for _ in range(3)]
    run_in_a_row(slots, runs[3:])  # the thread has been idle meanwhile
    outcomes.append(written.get(timeout=20))
    assert [eval(outcome.result, {"null": None}) for outcome in outcomes] == [CLEAN] * 4


@pytest.mark.parametrize("kind", ["thread", "inline", "loop"])
def test_nothing_of_who_starts_a_run_is_there(pool: Any, make: Callable[..., JobRun], kind: str) -> None:
    """Such as the thread of the claimer, or a command that has activated a language."""
    slots, written = pool
    run = make(handler_of(kind, state))
    run.definition.inline = kind == "inline"
    with translation.override("fr"):
        token = tenant.set("starter")
        run_in_a_row(slots, [run])
        assert eval(written.get(timeout=20).result, {"null": None}) == CLEAN
        tenant.reset(token)


def test_what_a_middleware_sets_is_there_for_the_handler_and_for_no_other(
    pool: Any, make: Callable[..., JobRun], settings: Any
) -> None:
    slots, written = pool
    settings.OJS = {"EXECUTION_MIDDLEWARE": [f"{__name__}.of_a_tenant"]}
    run_in_a_row(slots, [make(seen), make(seen)])
    assert [written.get(timeout=20) for _ in range(2)] == [Completed('"none 1"')] * 2


def seen() -> str:
    return tenant.get()


def of_a_tenant(job: dict[str, Any], context: JobContext, next: Callable[[], Any]) -> Any:
    tenant.set(f"{tenant.get()} {context.attempt}")
    return next()


def test_the_caches_of_a_thread_are_kept_from_run_to_run(pool: Any, make: Callable[..., JobRun]) -> None:
    """A cache may hold connections: a thread of a server keeps them, too."""
    slots, written = pool
    run_in_a_row(slots, [make(lambda: id(caches["default"])) for _ in range(3)])
    assert len({written.get(timeout=20).result for _ in range(3)}) == 1


@pytest.mark.django_db(transaction=True)
def test_the_log_of_queries_begins_anew(drain: Any, settings: Any) -> None:
    settings.DEBUG = True

    @job("test.queries")
    def queries() -> list[int]:
        before = len(connection.queries)
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")
        return [before, len(connection.queries)]

    handles = [queries.enqueue() for _ in range(3)]
    drain(concurrency=1)
    counts = [handle.refresh().result for handle in handles]
    assert {before for before, _ in counts} == {0}
    assert all(after > 0 for _, after in counts)


@pytest.mark.django_db(transaction=True)
def test_in_a_worker(drain: Any) -> None:
    @job("test.spoil")
    def sync() -> list[Any]:
        return spoil()

    @job("test.aspoil")
    async def aspoil() -> list[Any]:
        return spoil()

    handles = [definition.enqueue() for definition in (sync, aspoil) for _ in range(3)]
    drain(concurrency=1)
    assert [handle.refresh().result for handle in handles] == [CLEAN] * 6


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("is_async", [False, True])
def test_in_the_testing_kit(handlers: Any, is_async: bool) -> None:
    @job("test.spoil")
    def sync() -> list[Any]:
        return spoil()

    @job("test.aspoil")
    async def aspoil() -> list[Any]:
        return spoil()

    definition = aspoil if is_async else sync
    with translation.override("fr"), worker() as jobs:
        handles = [definition.enqueue() for _ in range(2)]
        jobs.drain()
        assert translation.get_language() == "fr"
    assert [handle.refresh().result[:4] for handle in handles] == [CLEAN[:4]] * 2
    assert tenant.get() == "none"
