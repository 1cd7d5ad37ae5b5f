"""Handlers in threads and on the loop: what they raise stays with them, and they can be stopped."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import logging
import queue
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created

from django_ojs import JobContext, job
from django_ojs.client.context import NoLink
from django_ojs.guard import Interrupted
from django_ojs.models.job import blank_row
from django_ojs.registry import Registry
from django_ojs.worker import execution, middleware
from django_ojs.worker.execution import LoopRunner, ThreadRunner
from django_ojs.worker.runs import Completed, Failed, Forgotten, Interruption, JobHandedBack, JobRun, NotRun, RunOutcome

NOW = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)


@pytest.fixture
def ended() -> queue.SimpleQueue[tuple[JobRun, RunOutcome]]:
    return queue.SimpleQueue()


def reporting(ended: Any) -> Any:
    """What a pool would be told, one by one; it has nothing more to run."""

    def done(runner: Any, batch: Any) -> None:
        for item in batch:
            ended.put(item)

    return done


@pytest.fixture
def threads(ended: Any) -> Iterator[ThreadRunner]:
    runner = ThreadRunner(reporting(ended))
    yield runner
    runner.close()


@pytest.fixture
def loop(ended: Any) -> Iterator[LoopRunner]:
    runner = LoopRunner(reporting(ended), ThreadRunner(reporting(ended)))
    yield runner
    runner.close()


@pytest.fixture
def make(handlers: Registry) -> Callable[..., JobRun]:
    def make(handler: Callable[..., Any], args: str = "[]", **values: Any) -> JobRun:
        definition = job(f"test.t{len(handlers.types())}")(handler)
        row = blank_row(NOW, type=definition.type, args=args, attempt=1, timeout_ms=1000, **values)
        return JobRun(row, definition, time.monotonic(), NoLink())

    return make


def outcome_of(ended: Any) -> RunOutcome:
    outcome: RunOutcome = ended.get(timeout=60)[1]
    return outcome


def test_results_and_arguments(threads: ThreadRunner, loop: LoopRunner, ended: Any, make: Any) -> None:
    async def aadd(context: JobContext, a: int, b: int) -> int:
        return a + b

    threads.start([make(lambda a, b: a * b, "[3,4]")])
    assert outcome_of(ended) == Completed("12")
    loop.start([make(aadd, "[3,4]")])
    assert outcome_of(ended) == Completed("7")


def test_set_result_serves_handlers_that_return_nothing(threads: ThreadRunner, ended: Any, make: Any) -> None:
    threads.start([make(lambda context: context.set_result({"a": 1}))])
    assert outcome_of(ended) == Completed('{"a":1}')


@pytest.mark.parametrize("exc", [ValueError("broken"), SystemExit(1), KeyboardInterrupt(), GeneratorExit()])
def test_nothing_a_handler_raises_ends_its_runner(
    exc: BaseException, threads: ThreadRunner, loop: LoopRunner, ended: Any, make: Any
) -> None:
    def fail() -> None:
        raise exc

    async def afail() -> None:
        raise exc

    for runner, handler in ((threads, fail), (loop, afail)):
        runner.start([make(handler)])
        outcome = outcome_of(ended)
        assert isinstance(outcome, Failed)
        assert outcome.error["type"] == type(exc).__name__
        runner.start([make(fail if runner is threads else afail)])
        assert isinstance(outcome_of(ended), Failed), "the runner goes on"


def test_exceptions_reach_logging_with_the_handlers_own_traceback_and_no_arguments(
    threads: ThreadRunner, ended: Any, make: Any, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(secret: str) -> None:
        raise ValueError("broken")

    with caplog.at_level(logging.INFO, "django_ojs.jobs"):
        threads.start([make(fail, '["hunter2"]', max_attempts=1)])
        outcome = outcome_of(ended)
    (record,) = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert record.exc_info is not None
    assert (record.job_type, record.queue, record.attempt) == ("test.t0", "default", 1)  # type: ignore[attr-defined]
    assert isinstance(outcome, Failed)
    (frame,) = outcome.error["backtrace"]
    assert frame.startswith("at ")
    assert "test_runners.py" in frame
    assert "hunter2" not in caplog.text


def test_a_thread_that_does_not_end_is_interrupted(threads: ThreadRunner, ended: Any, make: Any) -> None:
    started, cleaned = threading.Event(), threading.Event()

    def spin() -> None:
        started.set()
        try:
            while True:
                with contextlib.suppress(Exception):  # a handler that keeps every error cannot keep this one
                    time.sleep(0.001)
        finally:
            cleaned.set()

    run = make(spin)
    threads.start([run])
    assert started.wait(60)
    run.interrupt(Interruption.TIMEOUT, force=True)
    run.interrupt(Interruption.SHUTDOWN, force=True)  # once is enough, and the first reason counts
    outcome = outcome_of(ended)
    assert isinstance(outcome, Failed)
    assert (outcome.error["code"], outcome.error["limit_seconds"]) == ("timeout", 1.0)
    assert cleaned.is_set()
    assert run.context.is_cancelled


def test_a_coroutine_that_does_not_end_is_cancelled(loop: LoopRunner, ended: Any, make: Any) -> None:
    started = threading.Event()

    async def hang() -> None:
        started.set()
        await asyncio.Event().wait()

    run = make(hang)
    loop.start([run])
    assert started.wait(60)
    run.interrupt(Interruption.SHUTDOWN, force=True)
    assert outcome_of(ended) == JobHandedBack()


@pytest.mark.parametrize("reason", [Interruption.CANCELLED, Interruption.LOST])
def test_what_a_cancelled_handler_returns_or_raises_is_told_to_nobody(
    reason: Interruption, threads: ThreadRunner, ended: Any, make: Any
) -> None:
    def obedient(context: JobContext) -> str:
        while not context.is_cancelled:
            time.sleep(0.001)
        return "stopped"

    run = make(obedient)
    threads.start([run])
    run.interrupt(reason, force=False)
    assert outcome_of(ended) == Forgotten()


def test_a_handler_that_was_only_asked_to_stop_is_forced_at_its_deadline(
    threads: ThreadRunner, ended: Any, make: Any
) -> None:
    """A heartbeat may tell that the server timed the job out before the worker's own clock does."""
    started = threading.Event()

    def spin() -> None:
        started.set()
        while True:
            time.sleep(0.001)

    run = make(spin)
    threads.start([run])
    assert started.wait(60)
    run.interrupt(Interruption.LOST, force=False)
    run.interrupt(Interruption.TIMEOUT, force=True)
    assert outcome_of(ended) == Forgotten()


def test_an_interruption_before_the_start_takes_effect_at_the_start(
    threads: ThreadRunner, loop: LoopRunner, ended: Any, make: Any
) -> None:
    async def ahandler() -> None:
        await asyncio.sleep(0)

    def handler() -> None:
        for _ in range(1000):
            time.sleep(0.001)

    for runner, function in ((threads, handler), (loop, ahandler)):
        run = make(function)
        run.interrupt(Interruption.SHUTDOWN, force=True)
        runner.start([run])
        assert outcome_of(ended) == NotRun(), "it counts for nothing"


def test_interruptions_at_the_last_moment_never_hit_the_runner(threads: ThreadRunner, ended: Any, make: Any) -> None:
    """Hundreds of handlers that end just when they are interrupted: each has one outcome, no thread dies."""
    runs = [make(lambda: None) for _ in range(300)]
    for run in runs:
        threads.start([run])
        run.interrupt(Interruption.SHUTDOWN, force=True)
    outcomes = [outcome_of(ended) for _ in runs]
    assert {type(outcome) for outcome in outcomes} <= {Completed, JobHandedBack, NotRun}
    threads.start([make(lambda: "alive")])
    assert outcome_of(ended) == Completed('"alive"')


def test_interrupted_is_no_exception() -> None:
    assert not issubclass(Interrupted, Exception)


def test_a_stuck_thread_does_not_keep_other_jobs_waiting(threads: ThreadRunner, ended: Any, make: Any) -> None:
    gate = threading.Event()
    threads.start([make(lambda: gate.wait(60) and None)])
    threads.start([make(lambda: "quick")])
    assert outcome_of(ended) == Completed('"quick"')
    gate.set()
    assert outcome_of(ended) == Completed(None)


def test_a_synchronous_middleware_does_not_hide_the_end_of_an_asynchronous_handler(
    loop: LoopRunner, ended: Any, make: Any, settings: Any
) -> None:
    settings.OJS = {"EXECUTION_MIDDLEWARE": ["tests.worker.test_runners.pass_on"]}
    started = threading.Event()

    async def hang() -> None:
        started.set()
        await asyncio.Event().wait()

    run = make(hang)
    loop.start([run])
    assert started.wait(60)
    run.interrupt(Interruption.TIMEOUT, force=True)
    outcome = outcome_of(ended)
    assert isinstance(outcome, Failed)
    assert outcome.error["code"] == "timeout"


def pass_on(job: dict[str, Any], context: JobContext, next: Callable[[], Any]) -> Any:
    return next()


@pytest.mark.parametrize("looks,expected", [(True, JobHandedBack), (False, Completed)])
def test_who_looked_whether_to_stop_and_returned_has_not_done_its_work(
    threads: ThreadRunner, ended: Any, make: Any, looks: bool, expected: type
) -> None:
    started, told = threading.Event(), threading.Event()

    def handler(context: JobContext) -> str:
        started.set()
        assert told.wait(60)
        return "stopped" if looks and context.is_cancelled else "done"

    run = make(handler)
    threads.start([run])
    assert started.wait(60)
    run.interrupt(Interruption.SHUTDOWN, force=False)
    told.set()
    assert isinstance(outcome_of(ended), expected)


def test_a_thread_that_has_used_no_database_looks_after_no_connection(
    threads: ThreadRunner, ended: Any, make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The look takes as long as a handler that does nothing. One connection, and the thread looks after each job."""
    looks: list[int] = []
    monkeypatch.setattr(execution, "connections", Counting(looks))
    threads.start([make(lambda: None), make(lambda: None)])
    outcome_of(ended), outcome_of(ended)
    assert not looks
    threads.start([make(lambda: connection_created.send(BaseDatabaseWrapper, connection=None)), make(lambda: None)])
    outcome_of(ended), outcome_of(ended)
    assert len(looks) == 2


class Counting:
    """In the place of Django's connections: counts how often a thread asks for its own."""

    def __init__(self, looks: list[int]) -> None:
        self._looks = looks

    def all(self, *, initialized_only: bool) -> list[Any]:
        self._looks.append(1)
        return []

    def close_all(self) -> None:
        """There are none."""


def stops(run: JobRun) -> None:
    run.interrupt(Interruption.SHUTDOWN, force=False)
    assert run.context.is_cancelled


class Refuses:
    """A middleware that does not like some results."""

    def __call__(self, job: Any, context: Any, next: Callable[[], Any]) -> Any:
        return self._liked(next())

    async def acall(self, job: Any, context: Any, next: Callable[[], Any]) -> Any:
        return self._liked(await next())

    def _liked(self, result: Any) -> Any:
        if result == "no":
            raise ValueError
        return result


#: What a handler does, the line's status and its error.
RETURNS: dict[str, tuple[Callable[[JobRun], Any], str, str]] = {
    "a result": (lambda run: 1, "completed", ""),
    "no JSON": (lambda run: object(), "failed", "ResultNotSerializable"),
    "too much": (lambda run: "x" * 70_000, "failed", "ResultTooLarge"),
    "told to stop": (stops, "interrupted", ""),
    "cancelled": (lambda run: run.interrupt(Interruption.CANCELLED, force=False), "interrupted", ""),
    "refused by a middleware": (lambda run: "no", "failed", "ValueError"),
}


@pytest.mark.parametrize("kind", ["threads", "loop"])
@pytest.mark.parametrize("does, status, error", RETURNS.values(), ids=RETURNS)
def test_the_log_line_of_a_run_that_returned_says_what_became_of_it(
    request: Any, settings: Any, monkeypatch: Any, make: Any, ended: Any, caplog: Any, kind: str, does: Any,
    status: str, error: str,
) -> None:  # fmt: skip
    monkeypatch.setattr(middleware, "line_limit", None)  # as it is where the site's LOGGING takes care of our log

    async def handler() -> Any:
        return does(run)

    chain = [f"{__name__}.Refuses", "django_ojs.worker.middleware.LoggingMiddleware"]
    settings.OJS = {"EXECUTION_MIDDLEWARE": chain, "MAX_RESULT_BYTES": 65_536}
    run = make(handler if kind == "loop" else lambda: does(run))
    with caplog.at_level(logging.DEBUG, "django_ojs.jobs"):
        request.getfixturevalue(kind).start([run])
        outcome_of(ended)
    (line,) = (record for record in caplog.records if " after " in record.getMessage())
    assert (line.status, line.error) == (status, error)
    assert f" {status} after " in line.getMessage()
