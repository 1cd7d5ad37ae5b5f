"""Pauses that grow, stay bounded and begin anew after lasting health only; and a log that is short."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest
from django.db import OperationalError

from django_ojs import backoff as module
from django_ojs.backoff import Backoff, SharedBackoff


class Clock:
    now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    monkeypatch.setattr(module, "random", SimpleNamespace(uniform=lambda low, high: high))
    return clock


def test_pauses_double_up_to_the_longest_and_no_number_of_failures_is_too_many() -> None:
    backoff = Backoff("It", 1.0, 60.0)
    assert [backoff.failed() for _ in range(8)] == [1, 2, 4, 8, 16, 32, 60, 60]
    backoff.failures = 10**6
    assert backoff.failed() == 60


def test_pauses_are_spread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "random", SimpleNamespace(uniform=lambda low, high: low))
    assert Backoff("It", 1.0, 60.0).failed() == 0.5


def test_only_lasting_health_begins_anew(clock: Clock) -> None:
    backoff = Backoff("It", 1.0, 60.0)
    for expected in (1, 2, 4):
        assert backoff.failed() == expected
        clock.now += 3600  # of which nothing was well but the last moment
        backoff.worked()
    clock.now += 59
    backoff.worked()
    assert backoff.failed() == 8
    backoff.worked()
    clock.now += 60
    assert backoff.failed() == 1, "the next failure may be the first that asks"


def fail(backoff: Backoff, error: BaseException) -> None:
    try:
        raise error
    except BaseException:  # noqa: BLE001
        backoff.failed()


def test_a_condition_that_lasts_is_logged_once_then_by_the_minute_then_at_its_end(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "django_ojs")
    backoff = Backoff("The relay", 1.0, 10.0)
    fail(backoff, LookupError("first"))
    assert caplog.messages == ["The relay failed; the next try is in 1 s."]
    assert "LookupError: first" in caplog.text
    for _ in range(119):
        clock.now += 1
        fail(backoff, LookupError("the same"))
    assert caplog.messages[1:] == [
        f"The relay failed again ({place(caplog)}), 61 times in 60 s; the next try is in 10 s."
    ]
    assert caplog.text.count("Traceback") == 1
    fail(backoff, KeyError("another"))
    assert caplog.text.count("Traceback") == 2, "another error is news"
    backoff.worked()
    clock.now += 9
    backoff.worked()
    assert len(caplog.messages) == 3
    clock.now += 1
    backoff.worked()
    assert caplog.messages[3:] == ["The relay works again, since 10 s; it had failed 121 times in 119 s."]
    backoff.worked()
    assert len(caplog.messages) == 4


def place(caplog: Any) -> str:
    found: str = caplog.messages[1].partition("(")[2].partition(")")[0]
    assert found.startswith("LookupError at ")
    return found


def of_database(kind: type[Exception], code: str) -> Exception:
    error = kind(f"refused\n ({code})")
    error.__cause__ = Exception()
    error.__cause__.sqlstate = code  # type: ignore[attr-defined]
    return error


@pytest.mark.parametrize(
    "code, lines, tracebacks", [("P0001", 1, 1), ("XX000", 1, 0), ("53100", 1, 0), ("57014", 3, 0), ("23514", 3, 3)]
)
def test_many_that_meet_the_same_error_of_the_database_fill_no_log(
    caplog: pytest.LogCaptureFixture, code: str, lines: int, tracebacks: int
) -> None:
    for name in ("one", "two", "three"):
        fail(Backoff(name, 1.0, 60.0, among="duties"), of_database(OperationalError, code))
    assert len(caplog.messages) == lines
    assert caplog.text.count("Traceback") == tracebacks
    assert all("\n" not in message for message in caplog.messages)


def test_what_concerns_all_is_told_again_after_a_minute(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    duties = [Backoff(name, 1.0, 60.0, among="duties") for name in ("one", "two")]
    for _ in range(2):
        for duty in duties:
            fail(duty, of_database(OperationalError, "53100"))
        clock.now += 60
    assert len(caplog.messages) == 3, "whoever still fails then says so"


def test_calls_of_many_threads_have_one_log(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    calls = SharedBackoff("The database")
    for number in range(50):
        calls.failed(f"refuses call {number}", of_database(OperationalError, "57014"))
    assert caplog.messages == ["The database refuses call 0 (refused (57014))."]
    calls.worked()
    clock.now += 60
    calls.worked()
    assert caplog.messages[1:] == ["The database works again, since 60 s; it had failed 50 times in 0 s."]
