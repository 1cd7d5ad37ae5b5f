"""What handlers raise reaches the site's error reporters and receivers, once each, and never what the site hides."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest
from django.core.management import call_command
from django.core.management.base import SystemCheckError

from django_ojs import Discard, Fail, JobContext, Retry, Snooze, enqueue, job
from django_ojs.models import Event, Job
from django_ojs.registry import registry
from django_ojs.signals import job_failed
from django_ojs.telemetry.reporting import MAX_TEXT
from django_ojs.testing import WorkerJobs

pytestmark = pytest.mark.django_db(transaction=True)
HERE = "tests.telemetry.test_reporting"
seen: list[tuple[str, str, int]] = []


def note(exception: BaseException, context: JobContext) -> str:
    seen.append((repr(exception), context.type, context.attempt))
    return "https://errors.example.com/1"


def explode(exception: BaseException, context: JobContext) -> str:
    raise RuntimeError("the tracker is down")


def verbose(exception: BaseException, context: JobContext) -> str:
    return "x" * 10_000


def silent(exception: BaseException, context: JobContext) -> None:
    return None


def fails(kind: str = "ValueError") -> None:
    raise {
        "ValueError": ValueError("no total"), "Retry": Retry(60), "Discard": Discard("no"), "Snooze": Snooze(60),
    }[kind]  # fmt: skip


@pytest.fixture(autouse=True)
def _handler() -> Iterator[None]:
    seen.clear()
    with registry.isolated():
        job("reporting.fails", retry={"max_attempts": 1})(fails)
        yield


def error() -> dict[str, Any]:
    found: dict[str, Any] = Job.objects.get().errors[-1]
    return found


def test_a_reporter_gets_each_failure_and_the_error_says_where_it_is(settings: Any, ojs_worker: WorkerJobs) -> None:
    settings.OJS = {"ERROR_REPORTERS": [f"{HERE}.note", f"{HERE}.silent", f"{HERE}.verbose"]}
    enqueue("reporting.fails")
    ojs_worker.drain()
    assert seen == [("ValueError('no total')", "reporting.fails", 1)]
    assert error()["details"]["reports"] == ["https://errors.example.com/1", "x" * MAX_TEXT]


def test_a_reporter_that_fails_changes_nothing(settings: Any, ojs_worker: WorkerJobs, caplog: Any) -> None:
    settings.OJS = {"ERROR_REPORTERS": [f"{HERE}.explode", f"{HERE}.note"]}
    enqueue("reporting.fails")
    ojs_worker.drain()
    assert "The error reporter tests.telemetry.test_reporting.explode failed." in caplog.text
    assert (len(seen), error()["type"]) == (1, "ValueError")


@pytest.mark.parametrize("kind", ["Retry", "Discard", "Snooze"])
def test_what_a_handler_says_on_purpose_is_no_error(settings: Any, ojs_worker: WorkerJobs, kind: str) -> None:
    settings.OJS = {"ERROR_REPORTERS": [f"{HERE}.note"]}
    enqueue("reporting.fails", kind)
    ojs_worker.drain()
    assert seen == []


@pytest.mark.parametrize("kind, dead", [(Fail, True), (Discard, False)])
def test_who_fails_for_good_is_reported_and_a_dead_letter_and_who_discards_is_neither(
    settings: Any, ojs_worker: WorkerJobs, caplog: Any, kind: type[Exception], dead: bool
) -> None:
    settings.OJS = {"ERROR_REPORTERS": [f"{HERE}.note"]}
    asked: list[BaseException] = []

    @job("reporting.hopeless", retry={"max_attempts": 5}, retry_if=lambda error: not asked.append(error))
    def hopeless() -> None:
        try:
            raise LookupError("17")
        except LookupError as error:
            raise kind("no such card") from error

    hopeless.enqueue()
    ojs_worker.drain()
    assert Job.objects.dead_letters().exists() is dead
    assert seen == [("Fail('no such card')", "reporting.hopeless", 1)] * dead
    assert ("LookupError: 17" in caplog.text) is dead, "the log has the traceback of what led to it"
    assert asked == []
    found = error()
    assert (found["type"], found["message"], found["retryable"]) == ("LookupError", "no such card", False)
    assert [event.type for event in Event.objects.filter(type__in=("job.failed", "job.discarded"))] == [
        "job.failed", "job.discarded",
    ]  # fmt: skip


@pytest.mark.parametrize("hidden", ["errors", "backtraces"])
def test_what_the_site_hides_is_not_reported(settings: Any, ojs_worker: WorkerJobs, hidden: str) -> None:
    settings.OJS = {"ERROR_REPORTERS": [f"{HERE}.note"], "REDACT": {"types": {"reporting.*": [hidden]}}}
    enqueue("reporting.fails")
    ojs_worker.drain()
    assert seen == []
    assert error()["type"] == "ValueError"


def test_the_signal_has_the_handler_and_a_receiver_that_fails_changes_nothing(
    ojs_worker: WorkerJobs, caplog: Any
) -> None:
    got: list[Any] = []

    def receive(sender: Any, context: JobContext, exception: BaseException, **kwargs: Any) -> None:
        got.append((sender, context.type, str(exception)))
        raise RuntimeError("broken receiver")

    job_failed.connect(receive)
    try:
        enqueue("reporting.fails")
        with caplog.at_level(logging.ERROR):
            ojs_worker.drain()
    finally:
        job_failed.disconnect(receive)
    assert got == [(fails, "reporting.fails", "no total")]
    assert "of job_failed failed" in caplog.text
    assert "reports" not in error()["details"]


@pytest.mark.parametrize("path", ["no.such.module", f"{HERE}.HERE", f"{HERE}.missing"])
def test_a_reporter_that_cannot_be_used_is_an_error_of_the_settings(settings: Any, path: str) -> None:
    settings.OJS = {"ERROR_REPORTERS": [path]}
    with pytest.raises(SystemCheckError, match="ERROR_REPORTERS"):
        call_command("check")


def test_sentry_gets_tags_and_the_trace_once(settings: Any, ojs_worker: WorkerJobs) -> None:
    sdk = pytest.importorskip("sentry_sdk", reason="needs sentry-sdk")
    from sentry_sdk.integrations.logging import LoggingIntegration

    sent: list[dict[str, Any]] = []
    settings.OJS = {"ERROR_REPORTERS": ["django_ojs.telemetry.reporting.sentry"]}
    trace = "4bf92f3577b34da6a3ce929d0e0e4736"
    enqueue("reporting.fails", meta={"traceparent": f"00-{trace}-00f067aa0ba902b7-01"})
    ojs_worker.drain()
    assert "reports" not in error()["details"], "nobody has called init()"
    Job.objects.all().delete()
    sdk.init(
        dsn="https://key@errors.example.com/1", before_send=lambda event, hint: sent.append(event),
        # Nothing that stays in Django, in threads or in the interpreter when this test is over.
        default_integrations=False, auto_enabling_integrations=False, integrations=[LoggingIntegration()],
    )  # fmt: skip
    try:
        enqueue("reporting.fails", meta={"traceparent": f"00-{trace}-00f067aa0ba902b7-01"})
        ojs_worker.drain()
    finally:
        sdk.get_client().close(timeout=0)
        sdk.get_global_scope().set_client(None)
    (event,) = sent
    row = Job.objects.get()
    assert event["tags"] == {
        "ojs.job_id": str(row.pk), "ojs.job_type": "reporting.fails", "ojs.queue": "default", "ojs.attempt": 1,
    }  # fmt: skip
    assert event["transaction"] == "job reporting.fails"
    assert event["contexts"]["trace"]["trace_id"] == trace
    assert event["contexts"]["job"]["worker_id"]
    assert event["exception"]["values"][-1]["value"] == "no total"
