"""What a person sees on a worker's terminal."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from django_ojs import Fail, Retry, enqueue, job
from django_ojs.worker import middleware
from django_ojs.worker.middleware import LineLimit


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """What the handler that `show_logs` installs writes; our loggers are as before afterwards."""
    written: list[str] = []

    class Terminal:
        def write(self, text: str) -> None:
            written.extend(text.splitlines())

        def flush(self) -> None: ...

        def isatty(self) -> bool:
            return True

    ours = [logging.getLogger(name) for name in ("django_ojs", "django_ojs.jobs", "django_ojs.jobs.lifecycle")]
    before = [(logger.level, logger.handlers[:]) for logger in ours]
    monkeypatch.setattr(middleware, "sys", SimpleNamespace(stderr=Terminal()))
    monkeypatch.setattr(logging.Logger, "hasHandlers", lambda self: False)
    monkeypatch.setattr(middleware, "line_limit", None)
    yield written
    for logger, (level, handlers) in zip(ours, before, strict=True):
        logger.setLevel(level)
        logger.handlers = handlers


@pytest.mark.django_db(transaction=True)
def test_success_and_the_next_attempt_show_at_the_default_verbosity(terminal: list[str], drain: Any) -> None:
    @job("test.fine")
    def fine() -> None: ...

    @job("test.again", retry={"max_attempts": 3})
    def again() -> None:
        raise Retry(after="1h")

    middleware.show_logs(1)
    fine.enqueue(), again.enqueue()
    drain()
    lines = "\n".join(terminal)
    assert "\x1b[32m" in lines, "a completed job is green"
    assert "test.fine" in lines
    assert "completed after" in lines
    assert "attempt 1 of 3 failed (Retry: The handler asked for a retry.), the next one is at " in lines


@pytest.mark.django_db(transaction=True)
def test_what_a_handler_raises_steers_no_terminal(terminal: list[str], drain: Any) -> None:
    @job("test.hostile", retry={"max_attempts": 2})
    def hostile(name: str) -> None:
        raise ValueError(f"no customer {name}")

    middleware.show_logs(1)
    hostile.enqueue("\x1b]0;owned\x07 \x9b2J")
    drain()
    lines = "".join(terminal)
    assert "]0;owned" in lines
    assert not {"\x07", "\x9b", "\x1b]"} & {lines[i : i + n] for i in range(len(lines)) for n in (1, 2)}


@pytest.mark.parametrize("seconds,expected", [(4.9, []), (5.0, ["3 more jobs completed in 5 s."])])
def test_a_flood_of_jobs_is_summed_up(caplog: pytest.LogCaptureFixture, seconds: float, expected: list[str]) -> None:
    caplog.set_level(logging.INFO, "django_ojs.jobs")
    now = [100.0]
    limit = LineLimit(2, 5.0, lambda: now[0])
    assert [limit.admits() for _ in range(5)] == [True, True, False, False, False]
    now[0] += seconds
    limit.sum_up()
    assert caplog.messages == expected
    assert limit.admits(), "a new second"
    limit.sum_up()
    assert caplog.messages == expected


@pytest.mark.django_db(transaction=True)
def test_an_exception_comes_out_of_the_log_line(drain: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    @job("test.fails", retry={"max_attempts": 1})
    def fails() -> None:
        raise ValueError("no")

    monkeypatch.setattr(middleware, "line_limit", LineLimit(0, 5.0))
    handle = enqueue("test.fails")
    drain()
    assert handle.refresh().state == "discarded"


class Busy(Exception): ...


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    "options, error, level",
    [
        ({"retry": {"max_attempts": 3}}, Busy("a\nb"), "WARNING"),
        ({"retry": {"max_attempts": 1}}, Busy("a"), "ERROR"),
        ({"retry": {"max_attempts": 3, "non_retryable_errors": [Busy]}}, Busy("a"), "ERROR"),
        ({"retry": {"max_attempts": 3}, "retry_if": lambda error: False}, Busy("a"), "ERROR"),
        ({"retry": {"max_attempts": 3}}, Fail("a"), "ERROR"),
        ({"retry": {"max_attempts": 3, "initial_interval": "1m"}, "total_timeout": "10s"}, Busy("a"), "ERROR"),
    ],
)
def test_an_attempt_that_is_repeated_is_one_warning_and_the_one_that_ends_the_job_an_error(
    drain: Any, caplog: pytest.LogCaptureFixture, options: dict[str, Any], error: Exception, level: str
) -> None:
    @job("test.fails", **options)
    def fails() -> None:
        raise error

    handle = fails.enqueue()
    with caplog.at_level(logging.INFO, "django_ojs.jobs"):
        drain()
    told = [
        record for record in caplog.records if str(handle.id) in record.getMessage() and "enqueued" not in record.msg
    ]
    told = [record for record in told if record.levelno > logging.INFO]
    if level == "WARNING":
        (record,) = told
        assert (record.levelname, record.exc_info, handle.refresh().state) == ("WARNING", None, "retryable")
        assert "attempt 1 of 3 failed (Busy: a b), the next one is at " in record.getMessage()
        assert not [one for one in caplog.records if "after" in one.getMessage() and one.levelno == logging.INFO]
        return
    (record,) = [record for record in told if record.name == "django_ojs.jobs"]
    assert (record.levelname, handle.refresh().state) == ("ERROR", "discarded")
    assert record.exc_info


@pytest.mark.django_db(transaction=True)
def test_the_traceback_of_an_attempt_that_is_repeated_is_there_at_debug(
    drain: Any, caplog: pytest.LogCaptureFixture
) -> None:
    @job("test.fails")
    def fails() -> None:
        raise Busy("a")

    fails.enqueue()
    with caplog.at_level(logging.DEBUG, "django_ojs.jobs"):
        drain()
    (record,) = [record for record in caplog.records if record.exc_info]
    assert record.levelname == "DEBUG"
    assert "Busy: a" in caplog.text
