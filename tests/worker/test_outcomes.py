"""How a run ended, as a value, and what the server is told of it."""

from __future__ import annotations

import asyncio
import datetime as dt
import uuid
from typing import Any

import pytest

from django_ojs.client.directives import Discard, Fail, Retry, Snooze
from django_ojs.jobs.finish import Ack, Failure
from django_ojs.jsontext import ExactNumber
from django_ojs.rules import durations
from django_ojs.worker import runs
from django_ojs.worker.runs import Completed, Failed, Forgotten, Interruption, JobHandedBack, Snoozed, report

ID = uuid.uuid4()


def test_every_outcome_is_reported_with_holder_and_attempt() -> None:
    assert report(Completed("1"), ID, "w", 2) == Ack(ID, "1", "w", 2)
    assert report(Failed({"message": "m"}, 5), ID, "w", 2) == Failure(ID, {"message": "m"}, "w", 2, retry_after_ms=5)
    assert report(Snoozed(7), ID, "w", 2) == Failure(ID, None, "w", 2, snooze_ms=7)
    assert report(JobHandedBack(), ID, "w", 2) == Failure(ID, None, "w", 2, requeue=True)
    assert report(Forgotten(), ID, "w", 2) is None


@pytest.mark.parametrize(
    "value,text",
    [(None, None), (0, "0"), ("", '""'), ({"a": [1.10, ExactNumber("1e400")]}, '{"a":[1.1,1e400]}'), ((1, 2), "[1,2]")],
)
def test_results_are_kept_losslessly(value: Any, text: str | None) -> None:
    assert runs.of_result(value) == Completed(text)


def test_a_result_that_is_not_json_fails_the_job_and_says_where() -> None:
    outcome = runs.of_result({"rows": [1, {2}]})
    assert isinstance(outcome, Failed)
    assert outcome.error["type"] == "ResultNotSerializable"
    assert outcome.error["message"].startswith('result["rows"][1] is a set')


def test_a_result_that_is_too_large_fails_the_job(settings: Any) -> None:
    settings.OJS = {"MAX_RESULT_BYTES": 20}
    assert isinstance(runs.of_result("x" * 18), Completed)
    outcome = runs.of_result("ü" * 10)
    assert isinstance(outcome, Failed)
    assert (outcome.error["type"], outcome.error["message"][:24]) == ("ResultTooLarge", "The result has 22 bytes,")


def test_the_three_directives() -> None:
    assert runs.of_exception(Snooze("1h")) == Snoozed(3_600_000)
    later = runs.of_exception(Retry("busy", after="5m"))
    assert isinstance(later, Failed)
    assert (later.retry_after_ms, later.error["code"], later.error["message"]) == (300_000, "RETRY", "busy")
    never = runs.of_exception(Discard("no such user"))
    assert isinstance(never, Failed)
    assert (never.error["code"], never.error["message"], never.retry_after_ms) == ("DISCARD", "no such user", None)


@pytest.mark.parametrize("kind", [Retry, Discard, Fail])
def test_an_error_names_a_directive_as_sites_import_it(kind: type[Retry | Discard | Fail]) -> None:
    """`error_class` is stored and matched by retry policies, so it must not follow our modules."""
    outcome = runs.of_exception(kind("why"))
    assert isinstance(outcome, Failed)
    assert outcome.error["details"]["error_class"] == f"django_ojs.{kind.__name__}"


def test_a_retry_from_an_error_shows_that_error() -> None:
    try:
        try:
            raise ConnectionError("refused")
        except ConnectionError as error:
            raise Retry(after=1) from error
    except Retry as directive:
        outcome = runs.of_exception(directive)
    assert isinstance(outcome, Failed)
    assert (outcome.error["type"], outcome.error["message"]) == ("ConnectionError", "refused")


def raised_from(directive: Exception, cause: Exception) -> BaseException:
    try:
        raise directive from cause
    except Exception as error:  # noqa: BLE001
        return error


@pytest.mark.parametrize(
    "reason, cause, kind, message",
    [
        ("no card", None, "Fail", "no card"),
        ("no card", LookupError("17"), "LookupError", "no card"),
        ("", LookupError("17"), "LookupError", "17"),
        ("", None, "Fail", "The handler failed the job for good."),
    ],
)
def test_a_failure_for_good_is_an_error_that_is_not_retried(
    reason: str, cause: Exception | None, kind: str, message: str
) -> None:
    outcome = runs.of_exception(Fail(reason) if cause is None else raised_from(Fail(reason), cause))
    assert isinstance(outcome, Failed)
    error = outcome.error
    assert (error["type"], error["message"], error["retryable"]) == (kind, message, False)
    assert "code" not in error, "no verdict: what follows is what follows on any last failure"


@pytest.mark.parametrize("exc", [ValueError("broken"), SystemExit(3), KeyboardInterrupt(), GeneratorExit()])
def test_any_exception_becomes_an_error_object(exc: BaseException) -> None:
    outcome = runs.of_exception(exc)
    assert isinstance(outcome, Failed)
    assert outcome.error["type"] == type(exc).__name__
    assert outcome.error["message"]


def test_a_coroutine_that_cancels_itself_has_failed() -> None:
    outcome = runs.of_exception(asyncio.CancelledError())
    assert isinstance(outcome, Failed)
    assert outcome.error["message"] == "The handler's task was cancelled."


def test_interruptions() -> None:
    timeout = runs.of_interruption(Interruption.TIMEOUT, 1500)
    assert isinstance(timeout, Failed)
    assert (timeout.error["code"], timeout.error["limit_seconds"]) == ("timeout", 1.5)
    assert runs.of_interruption(Interruption.SHUTDOWN) == JobHandedBack()
    assert runs.of_interruption(Interruption.CANCELLED) == Forgotten()
    assert runs.of_interruption(Interruption.LOST) == Forgotten()


@pytest.mark.parametrize("make", [lambda: Snooze("soon"), lambda: Snooze(-1), lambda: Retry(after="never")])
def test_a_mistaken_duration_is_told_where_it_is_raised(make: Any) -> None:
    with pytest.raises(ValueError, match="="):
        make()


@pytest.mark.parametrize(
    "delay", [10**5000, 1e300, dt.timedelta.max, "P9999999Y"], ids=["int", "float", "delta", "text"]
)
def test_the_longest_wait_is_that_of_a_hundred_years(delay: Any) -> None:
    assert runs.of_exception(Snooze(delay)) == Snoozed(durations.MAX_MS)
    outcome = runs.of_exception(Retry(after=delay))
    assert isinstance(outcome, Failed)
    assert outcome.retry_after_ms == durations.MAX_MS
    assert str(Snooze(delay)) == "The handler asked to run again after 36500 d."
