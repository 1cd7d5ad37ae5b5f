"""What the log says about jobs: at the right level, after the commit, and never their payloads."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext
from opentelemetry.sdk.trace import TracerProvider

from django_ojs import alerts, job
from django_ojs.client.context import CONTEXT_COLUMNS, JobContext
from django_ojs.cron import schedules
from django_ojs.cron.runs import tick
from django_ojs.errors import MiddlewareRejected
from django_ojs.events import catalogue, log
from django_ojs.events.catalogue import DESCRIBED, STATE_CHANGED
from django_ojs.jobs.cancel import cancel
from django_ojs.jobs.fetch import Fetch, fetch
from django_ojs.jobs.finish import Ack, Failure, ack, fail
from django_ojs.jobs.push import push
from django_ojs.jobs.timers import apply_due
from django_ojs.queues.configuration import pause
from django_ojs.registry import registry
from django_ojs.telemetry import logs
from django_ojs.telemetry.logs import JobFields, JSONFormatter
from django_ojs.testing import inline
from django_ojs.worker.middleware import show_logs
from django_ojs.workerregistry.registration import register
from django_ojs.workflows import workflow
from tests.conftest import FrozenClock
from tests.middlewares import added

pytestmark = pytest.mark.django_db(transaction=True)


class Lines(logging.Handler):
    """Everything that is logged about jobs, as the formatter writes it."""

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(JSONFormatter())
        self.all: list[dict[str, Any]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.all.append(json.loads(self.format(record)))

    @property
    def told(self) -> list[tuple[str, str]]:
        return [(line["level"], line["attributes"]["event"]) for line in self.all]


@pytest.fixture
def listen() -> Iterator[Callable[[int], Lines]]:
    lines, before = Lines(), logs.logger.logger.level
    logs.logger.logger.addHandler(lines)

    def at(level: int) -> Lines:
        logs.logger.setLevel(level)
        return lines

    yield at
    logs.logger.logger.removeHandler(lines)
    logs.logger.setLevel(before)


def formatted(formatter: JSONFormatter | None = None, message: str = "hello", **given: Any) -> dict[str, Any]:
    record = logging.getLogger("django_ojs.x").makeRecord(
        given.pop("name", "django_ojs.x"), given.pop("level", logging.INFO), "f", 1, message, (),
        given.pop("exc_info", None), extra=given,
    )  # fmt: skip
    line: dict[str, Any] = json.loads((formatter or JSONFormatter()).format(record))
    return line


def test_every_change_has_its_level(listen: Any, frozen_clock: FrozenClock) -> None:
    lines = listen(logging.DEBUG)
    patient = {"max_attempts": 2, "initial_interval": "PT1S"}
    (first, _) = push([{"type": "a.b", "args": [], "retry": patient}, {"type": "a.b", "args": []}])
    assert first.row is not None
    ids = [row["id"] for row in fetch(Fetch(["default"], count=2, worker_id="w1", columns=CONTEXT_COLUMNS, raw=True))]
    ack([Ack(ids[1], worker_id="w1")], columns=("id",))
    fail([Failure(ids[0], {"message": "no"})])
    frozen_clock.advance(hours=1)
    apply_due()
    fetch(Fetch(["default"]))
    fail([Failure(ids[0], {"message": "no"})])
    cancel([done.row["id"] for done in push([{"type": "a.b", "args": []}]) if done.row])
    push([{"type": "a.b", "args": [], "expires_at": "2026-01-15T13:00:10Z"}])
    frozen_clock.advance(hours=1)
    apply_due()
    mine = [told for told in lines.told if told[1].startswith("job.")]
    assert mine == [
        ("info", "job.enqueued"), ("info", "job.enqueued"), ("debug", "job.started"), ("debug", "job.started"),
        ("info", "job.completed"), ("warn", "job.retrying"), ("debug", "job.started"), ("error", "job.discarded"),
        ("info", "job.enqueued"), ("info", "job.cancelled"), ("info", "job.enqueued"), ("error", "job.expired"),
    ]  # fmt: skip


def test_a_line_names_a_workflow_as_its_client_does(listen: Any) -> None:
    lines = listen(logging.INFO)
    workflow.create({"id": "order-17", "type": "group", "jobs": [{"type": "a.b", "args": []}]})
    assert [line["ojs"]["workflow_id"] for line in lines.all] == ["order-17"]


def test_each_type_of_event_has_a_level() -> None:
    assert set(logs.LEVELS) == set(DESCRIBED) - {STATE_CHANGED}, "of which the second is never stored"


def test_what_needs_an_operator_is_a_warning(
    listen: Any, settings: Any, frozen_clock: FrozenClock, made_up_events: None
) -> None:
    """At the level that most sites keep: alerts, jobs that a limit has dropped, deliveries that were given up."""
    settings.OJS = {"ALERTS": {}}
    dropped = {"key": "k", "concurrency": 1, "on_limit": "drop"}
    (_, second) = push([{"type": "a.b", "args": [], "options": {"rate_limit": dropped}}] * 2)
    register("w1", {"concurrency": 4})
    pause("paused")
    push([{"type": "a.b", "queue": "paused", "args": []}])
    lines = listen(logging.WARNING)

    assert len(fetch(Fetch(["default"], count=2, worker_id="w1"))) == 1
    rules = alerts.rules()
    assert rules is not None
    alerts.check(rules, "default", set())
    record = catalogue.of_webhook("webhook.dead", "sub_1", frozen_clock.now, error="HTTP 404")
    log.append([record], "default")

    texts = {line["attributes"]["event"]: line["message"] for line in lines.all if line["level"] == "warn"}
    assert texts.keys() == {"rate_limit.dropped", "alert.raised", "webhook.dead"}
    assert texts["alert.raised"].startswith("alert.raised: queue-paused: The queue paused is paused.")
    assert texts["webhook.dead"] == "webhook.dead: sub_1: HTTP 404"
    assert second.row is not None
    assert str(second.row["id"]) in json.dumps(lines.all)


def test_the_text_of_a_line_says_what_went_wrong(listen: Any, frozen_clock: FrozenClock, made_up_events: None) -> None:
    lines = listen(logging.INFO)
    once = {"retry": {"max_attempts": 1}}
    workflow.create({"id": "flow", "type": "group", "jobs": [{"type": "a.b", "args": [], "options": once}]})
    (job,) = fetch(Fetch(["default"], columns=CONTEXT_COLUMNS, raw=True))
    fail([Failure(job["id"], {"type": "Busy", "message": "no\nanswer " + "x" * 300})])
    record = catalogue.of_webhook("webhook.subscription.disabled", "sub_1", frozen_clock.now, reason="failing")
    log.append([record], "default")
    texts = {line["attributes"]["event"]: line["message"] for line in lines.all}
    start = f"job.discarded: a.b {job['id']}: Busy: no answer xxx"
    assert texts["job.discarded"].startswith(start)
    assert len(texts["job.discarded"]) < len(start) + 250
    assert texts["workflow.failed"].startswith("workflow.failed: flow: ")
    assert texts["webhook.subscription.disabled"] == "webhook.subscription.disabled: sub_1: failing"
    assert texts["job.enqueued"] == f"job.enqueued: a.b {job['id']}"


def test_a_line_repeats_no_argument_that_is_hidden(listen: Any, settings: Any, frozen_clock: FrozenClock) -> None:
    """A schedule has no job whose type the event could name."""

    def refuse(document: Any, proceed: Any) -> Any:
        raise MiddlewareRejected("card 4111 is blocked")

    def told() -> str:
        lines.all.clear()
        with added(refuse):
            frozen_clock.advance(minutes=1)
            tick()
        (line,) = lines.all
        assert "4111" in line["message"] or "4111" not in json.dumps(line)
        return str(line["message"])

    schedules.register({"name": "bill", "cron": "* * * * *", "type": "payments.charge", "args": ["4111"]})
    lines = listen(logging.WARNING)
    assert told() == "cron.skipped: bill: x_middleware_rejected: card 4111 is blocked"
    settings.OJS = {"REDACT": {"types": {"payments.*": ["args"]}}}
    assert told() == "cron.skipped: bill: x_middleware_rejected: [REDACTED]"


def test_the_text_of_a_line_steers_no_terminal(listen: Any, frozen_clock: FrozenClock, made_up_events: None) -> None:
    """Errors, and what events are about, come from workers and callers; a site's own format has no JSON."""
    odd = "\x1b]0;owned\x07 \x9b2J \b\u202e\r\n\u2028end"
    push([{"type": "a.b", "args": [], "retry": {"max_attempts": 2}}])
    lines = listen(logging.INFO)
    for _ in range(2):
        (row,) = fetch(Fetch(["default"]))
        fail([Failure(row["id"], {"type": odd, "message": odd})])
        frozen_clock.advance(hours=1)
        apply_due()
    data = {"kind": odd, "about": odd, "says": odd}
    made = [catalogue.of_webhook("webhook.dead", odd, frozen_clock.now, error=odd)]
    made += [catalogue.of_webhook("webhook.subscription.disabled", odd, frozen_clock.now, reason=odd)]
    made += [catalogue.of_alert("alert.raised", frozen_clock.now, **data)]
    log.append(made, "default")
    assert {line["attributes"]["event"] for line in lines.all} >= {"job.retrying", "job.discarded", "alert.raised"}
    for line in lines.all:
        assert line["message"].isprintable()
        assert line["level"] == "info" or "end" in line["message"]


def test_a_line_has_its_facts_in_their_places(listen: Any, frozen_clock: FrozenClock) -> None:
    lines = listen(logging.INFO)
    trace_id = "a" * 32
    push([{"type": "a.b", "args": ["secret-argument"], "meta": {"trace_id": trace_id, "password": "secret-meta"}}])
    (row,) = fetch(Fetch(["default"], worker_id="w1"))
    frozen_clock.advance(milliseconds=250)
    ack([Ack(row["id"], '"secret-result"', "w1")])
    line = lines.all[-1]
    assert line["ojs"] == {
        "job_id": str(row["id"]), "job_type": "a.b", "queue": "default", "attempt": 1, "state": "completed",
        "worker_id": "w1",
    }  # fmt: skip
    assert line["trace"] == {"trace_id": trace_id}
    assert line["attributes"] == {"event": "job.completed", "duration_ms": 250}
    assert (line["severity"], line["severity_number"], line["level"]) == ("INFO", 9, "info")
    assert (line["component"], line["category"]) == ("worker", "lifecycle")
    assert "secret" not in json.dumps(lines.all)


def test_an_error_is_told_without_a_traceback_of_ours(listen: Any) -> None:
    lines = listen(logging.WARNING)
    push([{"type": "a.b", "args": [], "retry": {"max_attempts": 1}}])
    (row,) = fetch(Fetch(["default"]))
    fail([Failure(row["id"], {"type": "KeyError", "code": "gone", "message": "no such key", "details": {"x": 1}})])
    (line,) = lines.all
    assert line["error"] == {"type": "KeyError", "code": "gone", "message": "no such key"}
    assert line["category"] == "error"


def test_what_is_rolled_back_is_not_told(listen: Any) -> None:
    lines = listen(logging.DEBUG)
    with transaction.atomic():
        push([{"type": "a.b", "args": []}])
        transaction.set_rollback(True)
    assert lines.all == []


def test_a_sites_filter_that_fails_has_no_job_stored_twice(listen: Any) -> None:
    class Broken(logging.Filter):
        def filter(self, record: logging.LogRecord) -> bool:
            raise ValueError("a fault of the site's")

    listen("DEBUG")
    logs.logger.logger.addFilter(broken := Broken())
    try:
        (pushed,) = push([{"type": "a.b", "args": []}])
    finally:
        logs.logger.logger.removeFilter(broken)
    assert pushed.status == "created"


def test_workers_are_told_when_they_come_and_go(listen: Any, api: Any) -> None:
    lines = listen(logging.INFO)
    api.post("/workers/heartbeat", {"worker_id": "w1"})
    api.post("/workers/deregister", {"worker_id": "w1"})
    assert lines.told == [("info", "worker.started"), ("info", "worker.stopped")]
    assert lines.all[0]["ojs"] == {"worker_id": "w1"}
    assert lines.all[0]["category"] == "worker"


def test_listening_costs_no_statement(listen: Any) -> None:
    def statements(level: int) -> list[int]:
        listen(level)
        found = []
        for act in (
            lambda: push([{"type": "a.b", "args": []}] * 3),
            lambda: ids.extend(
                row["id"] for row in fetch(Fetch(["default"], count=3, columns=CONTEXT_COLUMNS, raw=True))
            ),
            lambda: ack([Ack(job_id) for job_id in ids], columns=("id",)),
        ):
            with CaptureQueriesContext(connection) as captured:
                act()
            found.append(len(captured))
        ids.clear()
        return found

    ids: list[Any] = []
    statements(logging.CRITICAL)
    assert statements(logging.CRITICAL) == statements(logging.DEBUG)


def test_nothing_is_formatted_for_nobody(listen: Any, monkeypatch: Any) -> None:
    listen(logging.CRITICAL)

    def fail_(*args: Any) -> None:
        raise AssertionError("formatted in vain")

    monkeypatch.setattr(logs, "_fields_of", fail_)
    ids = [done.row["id"] for done in push([{"type": "a.b", "args": []}]) if done.row]
    fetch(Fetch(["default"]))
    ack([Ack(job_id) for job_id in ids])


@pytest.mark.parametrize(
    "level, word, number",
    [(5, "TRACE", 1), (10, "DEBUG", 5), (20, "INFO", 9), (30, "WARN", 13), (40, "ERROR", 17), (50, "FATAL", 21)],
)
def test_severities(level: int, word: str, number: int) -> None:
    line = formatted(level=level)
    assert (line["severity"], line["severity_number"], line["level"]) == (word, number, word.lower())


def test_secrets_are_redacted_however_deep() -> None:
    meta = {"API_KEY": 1, "userToken": "x", "deep": [{"Authorization": "Bearer x", "fine": 1}], "passwd": "y"}
    hidden = "[redacted]"
    assert formatted(meta=meta)["attributes"]["meta"] == {
        "API_KEY": hidden, "userToken": hidden, "deep": [{"Authorization": hidden, "fine": 1}], "passwd": hidden,
    }  # fmt: skip


def test_payloads_pass_only_where_the_site_insists() -> None:
    assert "attributes" not in formatted(result=1, job_args=[2])
    with pytest.warns(UserWarning, match="secrets"):
        formatter = JSONFormatter(payloads=True)
    assert formatted(formatter, result=1, job_args=[2])["attributes"] == {"result": 1, "job_args": [2]}


def test_an_exception_has_its_traceback() -> None:
    try:
        raise LookupError("gone")
    except LookupError:
        error = formatted(exc_info=sys.exc_info(), level=logging.ERROR)["error"]
    assert (error["type"], error["message"]) == ("LookupError", "gone")
    assert error["backtrace"][0].startswith("Traceback")


def test_the_middlewares_line_and_dotted_names() -> None:
    given = {"job_id": "1", "job_type": "a.b", "queue": "q", "attempt": 2, "duration_ms": 1.5, "error": "KeyError"}
    line = formatted(JSONFormatter(dotted=True), name="django_ojs.jobs", trace_id="t", **given)
    assert line["error"] == {"type": "KeyError"}
    assert (line["component"], line["attributes"]) == ("worker", {"duration_ms": 1.5})
    assert (line["ojs.job.id"], line["ojs.job.type"], line["ojs.job.queue"], line["trace_id"]) == ("1", "a.b", "q", "t")


def test_a_line_within_a_span_names_it() -> None:
    with TracerProvider().get_tracer("x").start_as_current_span("y") as span:
        found = formatted()["trace"]
    context = span.get_span_context()
    assert found == {"trace_id": f"{context.trace_id:032x}", "span_id": f"{context.span_id:016x}"}


def test_what_a_handlers_code_logs_names_its_job() -> None:
    records, site = [logging.makeLogRecord({"queue": "own"}) for _ in range(3)], JobFields()
    with registry.isolated(), inline():

        @job("a.b", queue="slow")
        def plain() -> None:
            site.filter(records[0])

        @job("a.c")
        async def waits(context: JobContext) -> None:
            site.filter(records[1])

        ids = [str(handler.enqueue().id) for handler in (plain, waits)]
    site.filter(records[2])
    said = [(record.job_id, record.job_type, record.attempt, record.queue) for record in records]
    assert said == [(ids[0], "a.b", 1, "own"), (ids[1], "a.c", 1, "own"), ("", "", "", "own")]


def test_a_line_is_one_line_whatever_is_in_it() -> None:
    record = logging.makeLogRecord(
        {"levelno": 20, "name": "x", "msg": "two\nlines %s", "args": ("\x00\u2028\ud800",), "odd": object()}
    )
    assert b"\n" not in JSONFormatter().format(record).encode()


def test_a_line_steers_no_terminal_and_says_the_same() -> None:
    said = "caf\u00e9 \x1b]0;owned\x07 \x9b2J \x7f \u202e"
    line = JSONFormatter().format(logging.makeLogRecord({"levelno": 20, "name": "x", "msg": said}))
    assert line.isprintable()
    assert json.loads(line)["message"] == said


@pytest.mark.parametrize("verbosity, heard", [(0, 30), (1, 30), (2, 30), (3, 10)])
def test_a_terminal_shows_changes_only_when_everything_is_wanted(
    verbosity: int, heard: int, monkeypatch: Any, listen: Any
) -> None:
    ours, jobs = logging.getLogger("django_ojs"), logging.getLogger("django_ojs.jobs")
    monkeypatch.setattr(ours, "handlers", [])
    monkeypatch.setattr(ours, "hasHandlers", lambda: False)
    before = ours.level, jobs.level
    try:
        listen(logging.NOTSET)
        show_logs(verbosity)
        assert logs.logger.getEffectiveLevel() == heard
    finally:
        ours.setLevel(before[0])
        jobs.setLevel(before[1])
