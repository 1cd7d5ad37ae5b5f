"""The events of workflows and results beside the spec's catalogue: written on request, shown by exact name."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from django_ojs.errors import Duplicate, MiddlewareRejected
from django_ojs.events import catalogue, log
from django_ojs.jobs.fetch import Fetch, fetch
from django_ojs.jobs.finish import Ack, Failure, ack, fail_one, retrieved
from django_ojs.jobs.push import push
from django_ojs.jobs.read import info
from django_ojs.jobs.timers import apply_due
from django_ojs.models import Event
from django_ojs.worker.runs import Failed, of_result
from tests.middlewares import added
from tests.operations.test_workflows import ONCE, chain, claim, complete, create, discard, job

pytestmark = pytest.mark.django_db


@pytest.fixture
def wanted(settings: Any) -> None:
    settings.OJS = {"EXTENSION_EVENTS": True}


def told(*types: str) -> list[tuple[str, dict[str, Any]]]:
    """The last word of each event's type with its data, in order."""
    found = log.read(types=types or catalogue.ON_REQUEST, limit=1000).events
    return [(event["type"].partition(".")[2], event["data"]) for event in found]


def words(*types: str) -> list[str]:
    return [word for word, _ in told(*types)]


def test_without_the_setting_nothing_is_written() -> None:
    create(type="batch", jobs=[job("a"), job("b")], callbacks={"on_failure": job("cb")})
    complete("1")
    discard()
    complete("1")
    assert not Event.objects.filter(type__in=catalogue.ON_REQUEST).exists()


@pytest.mark.usefixtures("wanted")
class TestWorkflows:
    def test_the_whole_story_in_order(self) -> None:
        callbacks = {"on_complete": job("all"), "on_failure": job("bad")}
        flow = create(type="batch", name="n", jobs=[job("a"), job("b")], callbacks=callbacks)
        complete("1")
        failed = discard("broken")
        complete()
        discard()
        types = [*catalogue.ON_REQUEST[:5], "job.enqueued", "job.completed", "job.discarded", "workflow.*"]
        assert words(*types) == [
            "created", "enqueued", "enqueued", "started",
            "completed", "job_completed", "step_completed",
            "discarded", "job_failed", "step_failed", "enqueued", "enqueued", "callback_fired", "callback_fired",
            "completed", "job_completed", "discarded", "job_failed", "failed",
        ]  # fmt: skip
        data = dict(told("workflow.created", "workflow.step_failed"))
        for shared in data.values():
            assert (shared["workflow_id"], shared["workflow_name"]) == (str(flow.pk), "n")
            assert (shared["workflow_type"], shared["total_steps"]) == ("batch", 2)
        assert (data["created"]["state"], data["created"]["total_callbacks"]) == ("running", 2)
        step = data["step_failed"]
        assert (step["step_id"], step["step_type"], step["step"], step["steps_remaining"]) == ("job-1", "test.b", 1, 0)
        assert (step["job_id"], step["error"]) == (
            str(failed["id"]), {"code": "boom", "type": "Boom", "message": "broken", "retryable": False},
        )  # fmt: skip
        first, second = (data for _, data in told("workflow.callback_fired"))
        assert (first["callback"], second["callback"], second["job_type"]) == ("on_complete", "on_failure", "test.bad")
        jobs = told("workflow.job_completed", "workflow.job_failed")
        assert [(word, data["state"], data.get("callback")) for word, data in jobs] == [
            ("job_completed", "completed", None), ("job_failed", "discarded", None),
            ("job_completed", "completed", "on_complete"), ("job_failed", "discarded", "on_failure"),
        ]  # fmt: skip

    def test_a_step_that_is_refused_has_failed(self) -> None:
        chain("a", "b")

        def refuse(document: dict[str, Any], proceed: Any) -> Any:
            raise MiddlewareRejected("not today")

        with added(refuse):
            complete()
        (step,) = [data for _, data in told("workflow.step_failed")]
        assert (step["step_id"], step["error"]["code"], step["steps_remaining"]) == (
            "step-1", "x_middleware_rejected", 0,
        )  # fmt: skip
        assert "job_id" not in step

    def test_a_workflow_that_is_refused_was_never_created(self) -> None:
        push([job("a", unique={})])
        with pytest.raises(Duplicate):
            create(type="chain", steps=[job("a", unique={})])
        assert not told("workflow.created")

    def test_a_wildcard_does_not_show_them(self) -> None:
        chain("a")
        complete("1")
        assert words("workflow.*", "result.*") == ["started", "step_completed", "completed"]


@pytest.mark.usefixtures("wanted")
class TestResults:
    def test_stored_with_size_and_end(self) -> None:
        push([job("a", result_ttl=60), job("b"), job("c", result_ttl=0), job("d")])
        rows = claim(4)
        ack([Ack(row["id"], text) for row, text in zip(rows, ('"é"', "null", "1", None), strict=True)], columns=["id"])
        first, second = (data for _, data in told("result.stored"))
        assert (first["job_id"], first["size_bytes"], second["size_bytes"]) == (str(rows[0]["id"]), 4, 4)
        assert (first["job_type"], first["state"]) == ("test.a", "completed")
        assert first["expires_at"] < second["expires_at"]
        assert words("job.completed", "result.stored") == ["completed"] * 4 + ["stored"] * 2

    def test_rejected_when_too_large(self, settings: Any) -> None:
        settings.OJS |= {"MAX_RESULT_BYTES": 100}
        push([job("a"), job("b")])
        (row,) = fetch(Fetch(["default"], worker_id="w"))
        big = '"' + "x" * 100 + '"'
        ack([Ack(row["id"], big, "stranger")])
        assert not told()
        ack([Ack(row["id"], big, "w")])
        ((word, data),) = told()
        assert (word, data["size_bytes"], data["max_bytes"], data["state"]) == ("rejected", 102, 100, "active")
        assert (data["reason"], data["worker_id"]) == ("RESULT_TOO_LARGE", "w")

    def test_rejected_by_our_own_worker_which_looks_itself(self, settings: Any) -> None:
        settings.OJS |= {"MAX_RESULT_BYTES": 100}
        push([job("a", retry=ONCE)])
        (row,) = claim()
        failed = of_result("x" * 100)
        assert isinstance(failed, Failed)
        fail_one(Failure(row["id"], failed.error))
        assert words("job.failed", "job.discarded", "result.rejected") == ["failed", "discarded", "rejected"]

    def test_retrieved_tells_of_what_was_shown(self) -> None:
        push([job("a"), job("b"), job("c", result_ttl=0), job("d")])
        rows = claim(4)
        ack([Ack(row["id"], text) for row, text in zip(rows[:3], ("1", None, "1"), strict=True)])
        retrieved([info(row["id"]) for row in rows])
        ((word, data),) = told("result.retrieved")
        assert (word, data["job_id"], data["size_bytes"]) == ("retrieved", str(rows[0]["id"]), 1)


def test_a_plain_job_pays_one_statement_and_only_with_the_setting(settings: Any) -> None:
    costs = []
    for extra in (False, False, True):
        settings.OJS = {"EXTENSION_EVENTS": extra}
        with CaptureQueriesContext(connection) as captured:
            push([job("a")] * 3)
            ack([Ack(row["id"], "1") for row in claim(3)])
        # With the setting, ACK is more than one statement on every database, so it has a transaction.
        # A process asks for the database's time now and then, whatever it does.
        costs.append(sum(not re.search("SAVEPOINT|clock_timestamp", query["sql"]) for query in captured))
    assert costs[2] == costs[1] + 1


DEAD = ["dead_letter.added", "job.dead_lettered", "job.discarded", "job.expired", "job.retry_exhausted"]


def dead() -> list[tuple[str, str]]:
    """Discard a job by a failure, one that wants to stay out, and one whose deadline passed."""
    once, never = {"max_attempts": 1}, {"max_attempts": 1, "on_exhaustion": "discard"}
    push([{"type": "a.b", "args": [], "queue": "q", "retry": retry} for retry in (once, never)])
    for row in fetch(Fetch(["q"], count=2)):
        fail_one(Failure(row["id"], error={"message": "broken"}))
    push([{"type": "a.late", "args": [], "queue": "q", "expires_at": "2026-01-01T00:00:00Z"}])
    apply_due()
    found = log.read(types=DEAD, limit=100).events
    return [(event["type"], event["data"]["job_type"]) for event in found]


def test_a_job_that_comes_into_the_dead_letter_queue_is_told_on_request(wanted: None) -> None:
    assert dead() == [
        ("job.retry_exhausted", "a.b"), ("job.discarded", "a.b"), ("dead_letter.added", "a.b"),
        ("job.dead_lettered", "a.b"), ("job.retry_exhausted", "a.b"), ("job.discarded", "a.b"),
        ("job.expired", "a.late"), ("dead_letter.added", "a.late"), ("job.dead_lettered", "a.late"),
    ]  # fmt: skip
    (event, _) = log.read(types=["dead_letter.added"]).events
    assert event["data"]["state"] == "discarded"
    assert {event["type"] for event in log.read(types=["*"], limit=100).events} & set(DEAD) == {
        "job.discarded", "job.expired",
    }  # fmt: skip


def test_an_error_that_allows_no_retry_does_not_use_up_attempts(wanted: None) -> None:
    push([job("a")])
    (row,) = claim()
    fail_one(Failure(row["id"], error={"message": "broken", "code": "non_retryable", "retryable": False}))
    assert [event["type"] for event in log.read(types=DEAD).events] == [
        "job.discarded", "dead_letter.added", "job.dead_lettered",
    ]  # fmt: skip


def test_nobody_who_did_not_ask_is_told_of_dead_letters() -> None:
    assert [told for told, _ in dead()] == ["job.discarded", "job.discarded", "job.expired"]
