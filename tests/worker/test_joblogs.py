"""What handlers log is stored with their jobs: by whatever way they log, and within bounds."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.db.backends.signals import connection_created

from django_ojs import JobContext, Retry, job
from django_ojs.models import JobLog
from django_ojs.worker import joblogs
from tests.waiting import eventually
from tests.worker.conftest import WorkerThread

pytestmark = pytest.mark.django_db(transaction=True)

site = logging.getLogger("shop.orders")
Drain = Callable[..., WorkerThread]


@pytest.fixture(autouse=True)
def _plain_root() -> Iterator[None]:
    """The root logger as a site without LOGGING has it: pytest puts handlers there."""
    root = logging.root
    level, handlers = root.level, root.handlers[:]
    root.setLevel(logging.WARNING)
    yield
    assert root.handlers == handlers, "the worker takes its handler away"
    assert root.level == logging.WARNING, "and leaves the level as it was"
    root.setLevel(level)


def stored(handle: Any) -> list[JobLog]:
    return list(JobLog.objects.filter(job_id=handle.id).order_by("started_at", "sequence"))


def messages(handle: Any) -> list[str]:
    return [line.message for line in stored(handle)]


def test_a_line_has_all_that_was_logged(drain: Drain) -> None:
    @job("test.log")
    def handler(context: JobContext) -> None:
        site.debug("too low")
        site.info("charged %s", "card", extra={"order": 17, "items": ["a", "b"]})
        context.log("by the context", level="warning", step=2)
        context.log.info("and by its %s", "logger")
        try:
            raise ValueError("no such order")
        except ValueError:
            site.exception("it failed")

    done = handler.enqueue()
    drain()
    first, second, third, fourth = stored(done)
    assert (first.message, first.level, first.logger) == ("charged card", logging.INFO, "shop.orders")
    assert first.fields == {"order": 17, "items": ["a", "b"]}
    assert (second.message, second.level, second.fields) == ("by the context", logging.WARNING, {"step": 2})
    assert (third.message, third.fields) == ("and by its logger", None)
    assert (fourth.message, fourth.level) == ("it failed", logging.ERROR)
    assert fourth.exception.startswith("Traceback (most recent call last):")
    assert fourth.exception.endswith("ValueError: no such order")
    assert [line.sequence for line in stored(done)] == [1, 2, 3, 4]
    assert first.attempt == 1
    assert first.started_at <= first.time <= fourth.time


def test_a_line_of_structlog_has_its_event_and_its_fields(drain: Drain) -> None:
    """`ProcessorFormatter.wrap_for_formatter` logs a dict, and its logger and method beside it."""

    @job("test.log")
    def handler() -> None:
        event = {"event": "charged", "order": 17, "level": "info", "logger": "shop", "timestamp": "2026-01-15"}
        site.info(event, extra={"_logger": object(), "_name": "info"})
        site.info({"order": 17})

    done = handler.enqueue()
    drain()
    assert [(line.message, line.fields) for line in stored(done)] == [
        ("charged", {"order": 17}),
        ("{'order': 17}", None),
    ]


def test_each_attempt_has_its_own_lines(drain: Drain) -> None:
    @job("test.log", retry={"max_attempts": 2})
    def handler(context: JobContext) -> None:
        site.info("attempt %d", context.attempt)
        if context.attempt == 1:
            raise Retry(after="0s")

    done = handler.enqueue()
    drain()
    assert [(line.attempt, line.message) for line in stored(done)] == [(1, "attempt 1"), (2, "attempt 2")]


def test_threads_and_tasks_log_for_their_own_job(drain: Drain) -> None:
    """Those that copy the context belong to the run, others do not; the context itself may be used anywhere."""

    @job("test.sync")
    def handler(context: JobContext, name: str) -> None:
        copied = contextvars.copy_context()
        for target in (lambda: copied.run(site.info, "copied by %s", name), lambda: site.info("not copied")):
            thread = threading.Thread(target=target)
            thread.start()
            thread.join()
        thread = threading.Thread(target=context.log, args=(f"by the context of {name}",))
        thread.start()
        thread.join()

    @job("test.async")
    async def ahandler(name: str) -> None:
        site.info("coroutine %s", name)
        await asyncio.gather(
            sync_to_async(site.info)("thread %s", name), asyncio.to_thread(site.info, "to_thread %s", name)
        )
        await asyncio.sleep(0.01)
        site.info("end %s", name)

    @job("test.inline", inline=True)
    def inline(name: str) -> None:
        site.info("inline %s", name)

    names = ["one", "two", "three"]
    sync, tasks = [handler.enqueue(name) for name in names], [ahandler.enqueue(name) for name in names]
    rows = [inline.enqueue(name) for name in names]
    drain(concurrency=9)
    for name, one, two, three in zip(names, sync, tasks, rows, strict=True):
        assert messages(one) == [f"copied by {name}", f"by the context of {name}"]
        assert sorted(messages(two)[1:3]) == [f"thread {name}", f"to_thread {name}"]
        assert (messages(two)[0], messages(two)[3:]) == (f"coroutine {name}", [f"end {name}"])
        assert messages(three) == [f"inline {name}"]


def test_the_beginning_and_the_end_of_many_lines_stay(drain: Drain, settings: Any) -> None:
    settings.OJS = {"JOB_LOG_LINES": 20}

    @job("test.log")
    def handler() -> None:
        for number in range(1, 10_001):
            site.info("line %d", number)

    done = handler.enqueue()
    drain()
    lines = stored(done)
    assert [line.message for line in lines[:10]] == [f"line {number}" for number in range(1, 11)]
    assert lines[10].dropped == 9980
    assert [line.message for line in lines[11:]] == [f"line {number}" for number in range(9991, 10_001)]


def test_the_bytes_of_an_attempt_are_bounded(drain: Drain, settings: Any) -> None:
    settings.OJS = {"JOB_LOG_BYTES": 20_000, "JOB_LOG_LINE_LENGTH": 1_000}

    @job("test.log")
    def handler() -> None:
        for number in range(1, 101):
            site.info("%d %s", number, "x" * 5_000)

    done = handler.enqueue()
    drain()
    lines = stored(done)
    assert sum(len(line.message) for line in lines) < 20_000
    assert [line.message.split()[0] for line in lines if line.message] == [
        *map(str, range(1, 10)),
        *map(str, range(92, 101)),
    ]
    assert {len(line.message) for line in lines if line.message} == {1_000}
    assert "[cut: 500" in lines[0].message
    assert [line.dropped for line in lines if line.dropped] == [82]


def test_while_it_runs_the_last_part_rolls(start_worker: Callable[..., WorkerThread], settings: Any) -> None:
    settings.OJS = {"JOB_LOG_LINES": 4}
    go, said = threading.Event(), threading.Event()

    @job("test.log")
    def handler() -> None:
        for number in range(1, 6):
            site.info("line %d", number)
        said.set()
        go.wait(60)
        for number in range(6, 8):
            site.info("line %d", number)

    done = handler.enqueue()
    worker = start_worker()
    said.wait(60)
    eventually(lambda: messages(done) == ["line 1", "line 2", "", "line 4", "line 5"])
    go.set()
    eventually(lambda: done.refresh().is_finished)
    assert messages(done) == ["line 1", "line 2", "", "line 6", "line 7"]
    assert [line.dropped for line in stored(done) if line.dropped] == [3]
    worker.stop()


class Nasty:
    def __str__(self) -> str:
        raise RuntimeError("no text")


class Chatty:
    def __str__(self) -> str:
        site.info("logged by __str__")
        return "chatty"


def test_what_is_hard_to_store_is_stored_all_the_same(drain: Drain) -> None:
    circle: dict[str, Any] = {}
    circle["self"] = circle

    @job("test.log")
    def handler(context: JobContext) -> None:
        site.info("nul \0 and half \ud800")
        site.info("%s", Nasty())
        site.info("%d", "no number")
        context.log(Nasty())  # type: ignore[arg-type]
        site.info("chatty: %s", Chatty())
        context.log("fields", nasty=Nasty(), circle=circle, bytes=b"\xff", nan=float("nan"), many=list(range(10_000)))
        context.log("reserved", name="n", message="m", exc_info=None, **{"bad \0 key": "\ud800"})  # type: ignore[arg-type]
        site.info("x" * 1_000_000)

    done = handler.enqueue()
    drain()
    assert done.refresh().state == "completed"
    lines = stored(done)
    assert lines[0].message == "nul � and half ?"
    assert "[not formatted: RuntimeError]" in lines[1].message
    assert lines[2].message == "%d [not formatted: TypeError]"
    assert lines[3].message == "<Nasty: str() raised RuntimeError>"
    assert {line.message for line in lines[4:6]} == {"logged by __str__", "chatty: chatty"}
    fields = lines[6].fields
    assert fields["nasty"] == "<Nasty: str() raised RuntimeError>"
    assert fields["nan"] == "nan"
    assert len(str(lines[6].fields)) < 30_000
    assert lines[7].fields["bad � key"] == "?"
    assert len(lines[8].message) == 8_000


def test_a_transaction_that_is_rolled_back_keeps_its_lines(drain: Drain) -> None:
    @job("test.log", transactional=True, retry={"max_attempts": 1})
    def handler() -> None:
        site.info("before")
        raise ValueError("undone")

    done = handler.enqueue()
    drain()
    assert done.refresh().state == "discarded"
    assert messages(done) == ["before"]


def test_lines_that_cannot_be_stored_cost_no_outcome(drain: Drain, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any) -> None:
        raise ValueError("no lines today")

    monkeypatch.setattr(joblogs.joblog, "store", refuse)

    @job("test.log")
    def handler() -> None:
        site.info("lost")

    done = handler.enqueue()
    drain()
    assert done.refresh().state == "completed"
    assert messages(done) == []


def test_what_the_site_chooses_is_stored(drain: Drain, settings: Any) -> None:
    settings.OJS = {
        "JOB_LOG_LEVEL": "WARNING",
        "JOB_LOG_LEVELS": {"shop": "ERROR", "shop.orders": "INFO", "noisy": "OFF"},
    }

    @job("test.log")
    def handler() -> None:
        site.setLevel(logging.INFO)
        site.info("orders info")
        logging.getLogger("shop.other").warning("other warning")
        logging.getLogger("shop.other").error("other error")
        logging.getLogger("noisy.one").critical("never")
        logging.getLogger("else").warning("else warning")
        site.setLevel(logging.NOTSET)

    done = handler.enqueue()
    drain()
    assert messages(done) == ["orders info", "other error", "else warning"]


def test_nothing_is_stored_where_the_site_wants_none(drain: Drain, settings: Any) -> None:
    settings.OJS = {"JOB_LOGS": False}

    @job("test.log")
    def handler(context: JobContext) -> None:
        site.warning("unstored")
        context.log("unstored")

    done = handler.enqueue()
    drain()
    assert done.refresh().state == "completed"
    assert messages(done) == []


def test_the_sites_own_handlers_get_what_they_got_before(drain: Drain) -> None:
    class Keeping(logging.Handler):
        def __init__(self) -> None:
            super().__init__()
            self.seen: list[str] = []

        def emit(self, record: logging.LogRecord) -> None:
            self.seen.append(record.getMessage())

    keeping, below = Keeping(), Keeping()
    explicit = logging.getLogger("shop.explicit")
    explicit.setLevel(logging.INFO)
    logging.root.addHandler(keeping)
    site.addHandler(below)

    @job("test.log")
    def handler() -> None:
        site.info("root has WARNING")
        site.warning("shown")
        explicit.info("has a level of its own")

    try:
        done = handler.enqueue()
        drain()
    finally:
        logging.root.removeHandler(keeping)
        site.removeHandler(below)
        explicit.setLevel(logging.NOTSET)
    assert messages(done) == ["root has WARNING", "shown", "has a level of its own"]
    assert keeping.seen == ["shown", "has a level of its own"]
    assert below.seen == ["shown"]


def test_without_any_handler_warnings_still_reach_the_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(logging.root, "handlers", [])
    with joblogs.in_use():
        site.info("not shown")
        site.warning("shown")
    assert capsys.readouterr().err == "shown\n"
    monkeypatch.undo()


def test_a_job_that_logs_nothing_costs_no_statement(drain: Drain, settings: Any) -> None:
    """The statements of a whole worker that runs it, with and without the lines of handlers being taken."""

    @job("test.quiet")
    def handler() -> None: ...

    seen = []
    for taken in (False, True):
        settings.OJS = {"JOB_LOGS": taken}
        for _ in range(20):
            handler.enqueue()
        statements: list[str] = []
        wrapper = _Noting(statements)
        with wrapper:
            drain(concurrency=1)
        seen.append([one for one in statements if "joblog" in one.lower()])
    assert seen == [[], []]


class _Noting:
    """Notes the statements of all connections, those of other threads, too."""

    def __init__(self, found: list[str]) -> None:
        self._found = found

    def __enter__(self) -> None:
        connection_created.connect(self._wrap, weak=False)

    def __exit__(self, *exc: object) -> None:
        connection_created.disconnect(self._wrap)

    def _wrap(self, connection: Any, **kwargs: Any) -> None:
        connection.execute_wrappers.append(self._note)

    def _note(self, execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        self._found.append(sql)
        return execute(sql, params, many, context)
