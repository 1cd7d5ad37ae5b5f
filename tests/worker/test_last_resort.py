"""What surrounds a handler fails, wherever it can: the job ends as its handler did, and its slot goes on."""

from __future__ import annotations

import asyncio
import ctypes
import logging
import queue
import sys
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from django_ojs import Discard, JobContext, Retry, Snooze
from django_ojs.guard import get_logger
from django_ojs.rules import redaction
from django_ojs.signals import job_failed
from django_ojs.telemetry import tracing
from django_ojs.worker import execution
from django_ojs.worker.execution import InlineRunner, LoopRunner, ThreadRunner
from django_ojs.worker.pool import Deadlines, Pool
from django_ojs.worker.runs import Completed, Failed, JobRun
from tests.garbage import collected
from tests.waiting import eventually
from tests.worker.test_runners import make, reporting

__all__ = ["make"]

RUNNERS = {"thread": ThreadRunner, "inline": InlineRunner, "loop": lambda done: LoopRunner(done, ThreadRunner(done))}
#: What a site's code may raise where nobody expects it.
ENDS = [ValueError, SystemExit, KeyboardInterrupt, GeneratorExit]


class Bench:
    """One runner: `run(handler)` is the outcome of a handler in it."""

    def __init__(self, kind: str, make: Callable[..., JobRun]) -> None:
        self.kind, self._make = kind, make
        self._ended: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.runner: Any = RUNNERS[kind](reporting(self._ended))

    def run(self, *handlers: Callable[..., Any]) -> Any:
        self.runner.start([self._make(self._of_kind(handler)) for handler in handlers])
        found = [self._ended.get(timeout=5)[1] for _ in handlers]
        return found[0] if len(found) == 1 else found

    def close(self) -> None:
        self.runner.close()

    def _of_kind(self, handler: Callable[..., Any]) -> Callable[..., Any]:
        if self.kind != "loop":
            return handler

        async def ahandler() -> Any:
            return handler()

        return ahandler


@pytest.fixture(autouse=True)
def _collected() -> Iterator[None]:
    """What a handler left on a loop is told of here, and not while another test parses Python."""
    with collected():
        yield


@pytest.fixture(params=list(RUNNERS))
def bench(request: Any, make: Callable[..., JobRun]) -> Iterator[Bench]:
    bench = Bench(request.param, make)
    yield bench
    bench.close()


@pytest.fixture(params=ENDS, ids=lambda kind: kind.__name__)
def end(request: Any) -> type[BaseException]:
    kind: type[BaseException] = request.param
    return kind


def broken() -> None:
    raise LookupError("its own error")


def check(bench: Bench) -> Failed:
    """The outcome of a handler that fails is its own failure, and the runner goes on."""
    outcome = bench.run(broken)
    assert isinstance(outcome, Failed)
    assert (outcome.error["type"], outcome.error["message"]) == ("LookupError", "its own error")
    assert bench.run(lambda: "fine") == Completed('"fine"')
    assert isinstance(bench.run(broken), Failed), "and again"
    assert bench.runner.is_whole()
    return outcome


class Raising(logging.Filter):
    def __init__(self, kind: type[BaseException]) -> None:
        super().__init__()
        self.kind, self.count = kind, 0

    def filter(self, record: logging.LogRecord) -> bool:
        self.count += 1
        raise self.kind("in the logging of the site")


class RaisingHandler(logging.Handler):
    def __init__(self, kind: type[BaseException]) -> None:
        super().__init__()
        self.kind, self.count = kind, 0

    def emit(self, record: logging.LogRecord) -> None:
        self.count += 1
        raise self.kind("in the logging of the site")


@pytest.fixture
def jobs_logger() -> Iterator[logging.Logger]:
    logger = logging.getLogger("django_ojs.jobs")
    level, filters, handlers = logger.level, logger.filters[:], logger.handlers[:]
    logger.setLevel(logging.DEBUG)
    yield logger
    logger.setLevel(level)
    logger.filters, logger.handlers = filters, handlers


def test_a_filter_on_the_logger_of_jobs(bench: Bench, end: type[BaseException], jobs_logger: logging.Logger) -> None:
    found = Raising(end)
    jobs_logger.addFilter(found)
    check(bench)
    assert found.count


def test_a_handler_of_the_logging(bench: Bench, end: type[BaseException], jobs_logger: logging.Logger) -> None:
    found = RaisingHandler(end)
    jobs_logger.addHandler(found)
    check(bench)
    assert found.count


def test_logging_that_fails_is_told_without_what_a_filter_was_to_hide(
    jobs_logger: logging.Logger, capsys: pytest.CaptureFixture[str]
) -> None:
    jobs_logger.addFilter(Raising(KeyError))
    get_logger("django_ojs.jobs").error("the secret is %s", "hunter2")
    told = capsys.readouterr().err
    assert "The logging of django_ojs.jobs raised KeyError at " in told
    assert "hunter2" not in told
    assert "in the logging of the site" not in told


def test_a_safe_logger_names_its_caller_and_keeps_its_extra(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "django_ojs.jobs"):
        get_logger("django_ojs.jobs").info("hello %s", "you", extra={"queue": "q"})
    (record,) = caplog.records
    assert (record.getMessage(), record.filename, record.queue) == ("hello you", "test_last_resort.py", "q")  # type: ignore[attr-defined]


@pytest.mark.parametrize("redact", [{}, {"types": {"*": ["backtraces"]}}, {"types": {"*": ["errors"]}}])
@pytest.mark.parametrize("member", ["__str__", "__notes__", "cause"])
def test_an_exception_that_raises_when_it_is_read(
    bench: Bench, end: type[BaseException], settings: Any, redact: Any, member: str
) -> None:
    settings.OJS = {"REDACT": redact}

    def fail(self: Any) -> Any:
        raise end("while it is read")

    name = "__str__" if member == "cause" else member
    hostile = type("Hostile", (Exception,), {name: property(fail) if name == "__notes__" else fail})

    def handler() -> None:
        if member == "cause":
            raise LookupError("its own error") from hostile()
        raise hostile("text")

    outcome = bench.run(handler)
    assert isinstance(outcome, Failed)
    assert outcome.error["type"] == ("LookupError" if member == "cause" else "Hostile")
    assert outcome.error["message"]
    check(bench)


def test_a_directive_that_lacks_its_facts(bench: Bench) -> None:
    """A subclass whose __init__ does not call that of its base."""
    for base in (Retry, Discard, Snooze):
        kind = type("Mine", (base,), {"__init__": lambda self: None})

        def handler(kind: Any = kind) -> None:
            raise kind

        outcome = bench.run(handler)
        assert isinstance(outcome, Failed)
        assert outcome.error["type"] == "Mine"


def test_reporters_of_errors(bench: Bench, end: type[BaseException], settings: Any) -> None:
    settings.OJS = {"ERROR_REPORTERS": [f"{__name__}.report_badly", f"{__name__}.report", f"{__name__}.report_text"]}
    raising["kind"] = end
    outcome = check(bench)
    assert outcome.error["details"]["reports"] == ["report-1"], "those of the others are kept"


raising: dict[str, type[BaseException]] = {}


def report_badly(exception: BaseException, context: JobContext) -> str:
    raise raising["kind"]("in a reporter")


def report(exception: BaseException, context: JobContext) -> str:
    return "report-1"


def report_text(exception: BaseException, context: JobContext) -> Any:
    def fail(self: Any) -> Any:
        raise raising["kind"]("in the text of a reporter")

    return type("Text", (), {"__str__": fail})()


def test_receivers_of_job_failed(bench: Bench, end: type[BaseException]) -> None:
    def receive(**kwargs: Any) -> None:
        raise end("in a receiver")

    job_failed.connect(receive)
    try:
        check(bench)
    finally:
        job_failed.disconnect(receive)


@pytest.mark.parametrize("place", ["enter", "record", "conclude", "exit", "active"])
def test_spans(bench: Bench, end: type[BaseException], monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    reached = []

    def at(here: str) -> None:
        if here == place:
            reached.append(here)
            raise end("in a span")

    class Span:
        def __enter__(self) -> Any:
            at("enter")
            return self

        def __exit__(self, *exc: object) -> None:
            at("exit")

    spans = SimpleNamespace(
        executing=lambda context: Span(), conclude=lambda *args: at("conclude"), record=lambda exc: at("record"),
        current_ids=lambda: ("", ""),
    )  # fmt: skip

    def spans_in_use() -> Any:
        at("active")
        return spans

    monkeypatch.setattr(tracing, "spans_in_use", spans_in_use)
    check(bench)
    assert reached


def test_redaction(bench: Bench, end: type[BaseException], monkeypatch: pytest.MonkeyPatch, settings: Any,
                   caplog: pytest.LogCaptureFixture) -> None:  # fmt: skip
    """A rule that cannot be applied hides all."""
    settings.OJS = {"REDACT": {"types": {"*": ["backtraces"]}}}
    caplog.set_level(logging.DEBUG, "django_ojs.jobs")

    def hidden(*args: Any) -> Any:
        raise end("in redaction")

    monkeypatch.setattr(redaction.Rules, "hidden", hidden)
    check(bench)
    assert "its own error" not in caplog.text
    assert "failed: LookupError" in caplog.text


def test_results_that_raise_when_they_are_read(bench: Bench, end: type[BaseException]) -> None:
    class Odd(dict[str, int]):
        def items(self) -> Any:
            raise end("while it is read")

    outcome = bench.run(lambda: Odd(a=1))
    assert isinstance(outcome, Failed), outcome
    assert outcome.error["code"] == "result_not_serializable"
    check(bench)


def test_the_look_at_connections(bench: Bench, end: type[BaseException], monkeypatch: pytest.MonkeyPatch) -> None:
    def look(context: Any = None) -> None:
        raise end("in the look at connections")

    monkeypatch.setattr(execution, "_tidy", look)
    check(bench)


def test_our_own_fault_before_the_outcome_is_an_error_of_the_job(
    bench: Bench, end: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: Any, **kwargs: Any) -> Any:
        raise end("a fault of ours")

    with monkeypatch.context() as patch:
        patch.setattr(execution, "_judge", fail)
        outcome = bench.run(broken)
    assert isinstance(outcome, Failed)
    assert outcome.error["code"] == "worker_fault"
    assert end.__name__ in outcome.error["message"]
    check(bench)


def test_one_of_many_that_run_in_a_row_costs_no_other(
    make: Callable[..., JobRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench("inline", make)
    monkeypatch.setattr(execution, "_judge", lambda run, exc: sys.exit(3))
    first, second, third = bench.run(lambda: 1, broken, lambda: 3)
    assert (first, third) == (Completed("1"), Completed("3"))
    assert isinstance(second, Failed)
    bench.close()


def test_an_exception_that_a_library_raises_in_the_thread_too_late(make: Callable[..., JobRun]) -> None:
    """A timeout of the site's own, raised as `Interrupted` is, when the handler has ended already."""
    bench = Bench("thread", make)

    def handler() -> str:
        number = ctypes.c_ulong(threading.get_ident())
        ctypes.pythonapi.PyThreadState_SetAsyncExc(number, ctypes.py_object(TimeoutError))
        return "fine"

    for _ in range(20):
        assert bench.run(handler) is not None
    assert bench.run(lambda: "fine") == Completed('"fine"')
    bench.close()


# The loop


@pytest.mark.parametrize("leave", [
    lambda loop: loop.call_soon(sys.exit, 1),
    lambda loop: loop.create_task(exits()),
    lambda loop: loop.stop(),
    lambda loop: loop.call_soon(interrupts),
], ids=["callback", "task", "stop", "interrupt"])  # fmt: skip
def test_what_a_handler_leaves_on_the_loop_does_not_end_it(
    make: Callable[..., JobRun], leave: Callable[[Any], Any]
) -> None:
    bench = Bench("loop", make)
    left = []
    assert isinstance(bench.run(lambda: left.append(leave(asyncio.get_running_loop()))), Completed)
    for _ in range(3):
        check(bench)
    bench.close()


async def exits() -> None:
    sys.exit(1)


def interrupts() -> None:
    raise KeyboardInterrupt


# Threads that die all the same


@pytest.fixture
def written() -> queue.SimpleQueue[Any]:
    return queue.SimpleQueue()


@pytest.fixture
def pool(written: Any) -> Iterator[Pool]:
    def report(done: Any) -> None:
        for item in done:
            written.put(item)

    pool = Pool(2, report, lambda: None)
    yield pool
    pool.close()


@pytest.mark.parametrize("kind", list(RUNNERS))
@pytest.mark.parametrize("idle", [False, True])
def test_a_slot_whose_thread_has_died_is_replaced_and_told(
    pool: Pool, written: Any, make: Callable[..., JobRun], monkeypatch: pytest.MonkeyPatch, kind: str, idle: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    runner = {"thread": pool._threads, "inline": pool._inline, "loop": pool._loop}[kind]
    bench = Bench(kind, make)
    healthy: list[bool] = []

    def die(run: JobRun) -> None:
        """Let the thread of the runner die, with this run in hand or without."""
        if kind == "loop":
            loop: Any = runner
            if not idle:
                run.definition.handler = stand  # type: ignore[misc]
            give(run)
            if idle:
                written.get(timeout=20)
            else:
                assert stands.wait(60)
            loop._loop.call_soon_threadsafe(fail_hard, loop._loop)
        elif idle:
            give(run)
            written.get(timeout=20)
            eventually(lambda: runner._idle)  # type: ignore[union-attr]
            (thread,) = runner._threads  # type: ignore[union-attr]
            number = ctypes.c_ulong(thread.ident or 0)
            ctypes.pythonapi.PyThreadState_SetAsyncExc(number, ctypes.py_object(MemoryError))
            runner._calls.put(True)  # type: ignore[union-attr]
        else:
            with monkeypatch.context() as patch:
                patch.setattr(execution, "_run_all", fail_hard)
                give(run)
                eventually(lambda: not runner.is_whole())

    stands = threading.Event()

    async def stand() -> None:
        stands.set()
        await asyncio.sleep(600)

    def give(run: JobRun) -> None:
        with pool._changed:
            pool._line.append(run)
            pool._active.add(run)
            started = pool._take()
        assert started is not None
        runner.start(started[1])

    first = make(bench._of_kind(lambda: "first"))
    first.definition.inline = kind == "inline"
    die(first)
    eventually(lambda: not runner.is_whole())
    healthy.append(pool.is_whole())
    pool.replace_dead()
    healthy.append(pool.is_whole())
    assert healthy == [False, True]
    if not idle:
        run, outcome = written.get(timeout=20)
        assert run is first
        assert outcome.error["code"] == "worker_fault"
    assert (pool.deaths, pool._busy, pool.running()) == (1, 0, [])
    assert "has died (" in caplog.text
    assert (str(first.id) in caplog.text) == (not idle)
    for _ in range(3):
        again = make(bench._of_kind(lambda: "again"))
        again.definition.inline = kind == "inline"
        give(again)
        assert written.get(timeout=20) == (again, Completed('"again"'))
    bench.close()


def fail_hard(*args: Any) -> Any:
    if args and isinstance(args[0], asyncio.AbstractEventLoop):
        args[0]._run_once = fail_hard  # type: ignore[attr-defined]
        return None
    raise MemoryError


def test_the_thread_of_deadlines_looks_for_the_dead(pool: Pool, make: Callable[..., JobRun]) -> None:
    looked = threading.Event()
    pool.replace_dead = looked.set  # type: ignore[method-assign]
    deadlines = Deadlines(pool, print)
    deadlines.start()
    assert looked.wait(20)
    assert deadlines.stop(20)


def test_a_system_without_more_threads_lets_a_batch_wait(
    make: Callable[..., JobRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench("thread", make)
    gate = threading.Event()
    bench.runner.start([bench._make(lambda: gate.wait(20) and "slow")])
    eventually(lambda: bench.runner._threads)

    def refuse(self: Any) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        bench.runner.start([bench._make(lambda: "waits")])
    assert not bench.runner._calls.qsize() == len(bench.runner._waiting) == 0
    gate.set()
    assert [bench._ended.get(timeout=20)[1] for _ in range(2)] == [Completed('"slow"'), Completed('"waits"')]
    assert bench.run(lambda: "fine") == Completed('"fine"')
    assert len(bench.runner._threads) == 1
    bench.close()
