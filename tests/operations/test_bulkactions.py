"""Bulk actions in the background: every job once, whoever goes on with them, and none that came later."""

from __future__ import annotations

import io
import uuid
from typing import Any

import pytest
from django.core.management import call_command
from django.db import OperationalError, connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from django_ojs import clock
from django_ojs import retention as prune
from django_ojs.audit import Act
from django_ojs.errors import Conflict, InvalidRequest, JobTypeNotAllowed, NotFound, SchemaValidation
from django_ojs.jobs import bulk, schemas
from django_ojs.jobs.fetch import Fetch, fetch
from django_ojs.jobs.finish import Failure, fail
from django_ojs.jobs.push import push
from django_ojs.jobs.retry import retry
from django_ojs.jobs.selection import dead_letters
from django_ojs.models import AuditEntry, BulkAction, Event, Job
from django_ojs.queues.configuration import configure
from django_ojs.scheduler.scheduler import Bulk

pytestmark = pytest.mark.django_db
FATAL = {"type": "ValueError", "message": "no", "retryable": False}


@pytest.fixture(autouse=True)
def _small_batches(monkeypatch: pytest.MonkeyPatch, frozen_clock: Any) -> None:
    monkeypatch.setattr(bulk, "BATCH", 3)


def dead(count: int, **attributes: Any) -> list[uuid.UUID]:
    push([{"type": "mail.send", "args": ["a"], "queue": "claims", **attributes}] * count)
    ids = [row["id"] for row in fetch(Fetch([attributes.get("queue", "claims")], count=count, worker_id="w"))]
    fail([Failure(job_id, error=FATAL) for job_id in ids])
    return ids


def started(verb: str = "retry", override: Any = None, per_minute: Any = None, **wanted: str) -> BulkAction:
    entry = Act("user:ann", f"job.bulk_{verb}", door="admin")
    return bulk.start_action(verb, dead_letters(**wanted), entry, override=override, per_minute=per_minute)


def finish() -> int:
    passes = 0
    while bulk.advance_action():
        passes += 1
    return passes


def states(ids: list[uuid.UUID]) -> list[str]:
    found = dict(Job.objects.filter(pk__in=ids).values_list("pk", "state"))
    return [found.get(job_id, "gone") for job_id in ids]


def test_all_that_fit_are_done_in_batches_and_no_others() -> None:
    ids, others = dead(7), dead(2, type="report.daily")
    action = started(type="mail.*")
    assert (action.expected, states(ids)) == (7, ["discarded"] * 7)
    assert finish() == 3
    assert (states(ids), states(others)) == (["available"] * 7, ["discarded"] * 2)
    action.refresh_from_db()
    assert (action.state, action.matched, action.succeeded, action.errors) == ("completed", 7, 7, None)
    assert action.finished_at is not None


def test_what_dies_later_is_not_meant() -> None:
    ids = dead(2)
    action = started()
    clock.advance(seconds=10)
    later = dead(2)
    finish()
    assert (states(ids), states(later)) == (["available"] * 2, ["discarded"] * 2)
    action.refresh_from_db()
    assert action.matched == 2


def test_a_job_that_dies_again_meanwhile_is_not_done_twice() -> None:
    ids = dead(5)
    action = started()
    bulk.advance_action()
    clock.advance(seconds=10)
    again = [row["id"] for row in fetch(Fetch(["claims"], count=3, worker_id="w"))]
    fail([Failure(job_id, error=FATAL) for job_id in again])
    finish()
    assert states(again) == ["discarded"] * 3
    assert states([job_id for job_id in ids if job_id not in again]) == ["available"] * 2
    action.refresh_from_db()
    assert action.matched == 5


def test_a_pass_that_breaks_off_has_done_nothing_and_the_next_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    ids = dead(5)
    action = started("delete")
    bulk.advance_action()
    with monkeypatch.context() as broken:
        broken.setattr(bulk.audit, "append", _explode)
        with pytest.raises(OperationalError):
            bulk.advance_action()
    assert sorted(states(ids)) == ["discarded"] * 2 + ["gone"] * 3
    finish()
    action.refresh_from_db()
    assert (states(ids), action.matched, action.succeeded) == (["gone"] * 5, 5, 5)


def _explode(*args: Any) -> None:
    raise OperationalError("power cut")


def _err(*args: Any) -> None:
    raise ValueError("a fault of ours")


def test_one_that_cannot_go_on_ends_at_once_and_lets_the_others(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    ids, others = dead(4, queue="a"), dead(1, queue="b")
    broken, fine = started("delete", queue="a"), started(queue="b")
    bulk.advance_action()
    with monkeypatch.context() as patch:
        patch.setattr(bulk, "delete", lambda *args, **kwargs: _err())
        assert bulk.advance_action()
    finish()
    broken.refresh_from_db()
    fine.refresh_from_db()
    assert (broken.state, broken.problem, broken.matched) == ("failed", "ValueError: a fault of ours", 3)
    assert broken.finished_at is not None
    assert "a fault of ours" in caplog.text
    assert (fine.state, states(others), sorted(states(ids))) == (
        "completed",
        ["available"],
        ["discarded"] + ["gone"] * 3,
    )
    assert bulk.describe_action(broken)["problem"] == "ValueError: a fault of ours"
    with pytest.raises(Conflict):
        bulk.cancel_action(broken.pk)


def test_one_that_the_database_refuses_is_tried_again_behind_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    dead(1, queue="a")
    others = dead(1, queue="b")
    broken = started("delete", queue="a")
    started(queue="b")
    with monkeypatch.context() as patch:
        patch.setattr(bulk, "delete", lambda *args, **kwargs: _explode())
        with pytest.raises(OperationalError):
            bulk.advance_action()
        broken.refresh_from_db()
        assert (broken.state, broken.tries, broken.problem) == ("running", 1, "OperationalError: power cut")
        assert bulk.advance_action()
        assert states(others) == ["available"]
        for _ in range(bulk.MAX_TRIES - 1):
            with pytest.raises(OperationalError):
                bulk.advance_action()
    broken.refresh_from_db()
    assert (broken.state, broken.succeeded) == ("failed", 0)
    assert not bulk.advance_action()


def test_a_batch_that_is_done_after_all_begins_the_tries_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    dead(1)
    action = started("delete")
    with monkeypatch.context() as patch:
        patch.setattr(bulk, "delete", lambda *args, **kwargs: _explode())
        with pytest.raises(OperationalError):
            bulk.advance_action()
    finish()
    action.refresh_from_db()
    assert (action.state, action.tries, action.problem, action.succeeded) == ("completed", 0, "", 1)


def test_what_the_site_hides_is_not_in_the_reason(monkeypatch: pytest.MonkeyPatch, settings: Any) -> None:
    settings.OJS = {"REDACT": {"keys": ["password"]}}
    dead(1)
    action = started("delete")
    monkeypatch.setattr(bulk, "delete", lambda *args, **kwargs: _err())
    bulk.advance_action()
    action.refresh_from_db()
    assert (action.state, action.problem) == ("failed", "ValueError")


@pytest.mark.parametrize(
    "rule",
    [{"types": {"mail.send": ["args", "meta"]}}, {"types": {"mail.*": ["*"]}}, {"classified": True}],
    ids=["type", "pattern", "classified"],
)
@pytest.mark.parametrize("wanted", [{}, {"type": "mail.send"}, {"type": "mail.*"}, {"type": "m*"}], ids=str)
def test_what_the_site_hides_is_not_in_what_is_shown_of_the_changes(
    settings: Any, admin_client: Client, wanted: dict[str, str], rule: dict[str, Any]
) -> None:
    dead(1)
    override = {"args": ["hunter2"], "meta": {"card": "hunter2", "token": "abc"}, "queue": "later"}
    action = started(override=override, **wanted)

    def shown() -> str:
        out = io.StringIO()
        call_command("ojs_bulk", "show", str(action.pk), "--json", stdout=out, stderr=out)
        page = admin_client.get(reverse("admin:django_ojs_bulkaction_change", args=[action.pk])).content.decode()
        return f"{bulk.describe_action(action)['override']} {out.getvalue()} {page}"

    assert shown().count("hunter2") > 3
    settings.OJS = {"REDACT": rule}
    assert "hunter2" not in shown()
    assert bulk.describe_action(action)["override"]["queue"] == "later"
    settings.OJS = {"REDACT": {"keys": ["token"]}}
    assert bulk.describe_action(action)["override"] == {
        "args": ["hunter2"], "meta": {"card": "hunter2", "token": "[REDACTED]"}, "queue": "later",
    }  # fmt: skip
    finish()
    assert Job.objects.get().args == ["hunter2"]


def test_jobs_that_ended_at_one_instant_are_all_done() -> None:
    ids = dead(8)
    started("delete")
    finish()
    assert states(ids) == ["gone"] * 8


def test_what_is_refused_stops_nothing_and_is_told() -> None:
    ids = dead(4)
    action = started(override={"args": "no list"})
    finish()
    action.refresh_from_db()
    assert states(ids) == ["discarded"] * 4
    assert (action.matched, action.succeeded, action.failed, len(action.errors)) == (4, 0, 4, 4)
    assert "args" in action.errors[0]["error"]


def test_a_retry_may_change_the_queue() -> None:
    ids = dead(4)
    started(override={"queue": "later"})
    finish()
    assert set(Job.objects.filter(pk__in=ids).values_list("queue", "state")) == {("later", "available")}


def test_a_cancelled_action_does_no_more() -> None:
    ids = dead(5)
    action = started()
    bulk.advance_action()
    assert bulk.cancel_action(action.pk).state == "cancelled"
    assert not bulk.advance_action()
    assert sorted(states(ids)) == ["available"] * 3 + ["discarded"] * 2
    with pytest.raises(Conflict):
        bulk.cancel_action(action.pk)
    with pytest.raises(NotFound):
        bulk.cancel_action(0)


def test_actions_are_done_in_the_order_in_which_they_were_asked_for() -> None:
    dead(2)
    first, second = started(), started("delete")
    assert [action.pk for action in bulk.running_actions()] == [first.pk, second.pk]
    bulk.advance_action()
    assert [action.pk for action in bulk.running_actions()] == [second.pk]
    finish()
    second.refresh_from_db()
    assert second.matched == 0


@pytest.mark.parametrize("per_minute, batch, seconds", [(1, 1, 60), (12, 1, 5), (30, 2, 4), (100_000, 3, 0.0018)])
def test_an_action_keeps_to_its_rate(frozen_clock: Any, per_minute: int, batch: int, seconds: float) -> None:
    ids = dead(6)
    action = started(per_minute=per_minute)
    assert bulk.describe_action(action)["per_minute"] == per_minute
    for number in range(1, 6 // batch + 1):
        assert finish() == 1, "one batch, and no other yet"
        assert states(ids).count("available") == number * batch
        frozen_clock.advance(seconds=seconds * 0.9)
        assert finish() == 0
        frozen_clock.advance(seconds=seconds * 0.1 + 0.000_001)
    finish()
    action.refresh_from_db()
    assert (action.state, action.succeeded) == ("completed", 6)


def test_others_go_on_while_one_waits_for_its_turn(frozen_clock: Any) -> None:
    dead(4)
    slow = started("delete", per_minute=1)
    finish()
    quick = started(type="mail.*")
    finish()
    assert BulkAction.objects.get(pk=quick.pk).state == "completed"
    assert BulkAction.objects.get(pk=slow.pk).matched == 1


def test_what_could_not_be_done_in_time_is_not_made_up_for(frozen_clock: Any) -> None:
    ids = dead(6)
    started(per_minute=12)
    finish()
    frozen_clock.advance(minutes=10)  # no scheduler
    assert finish() == 1
    assert states(ids).count("available") == 2
    frozen_clock.advance(seconds=6)  # a second late
    assert finish() == 1
    frozen_clock.advance(seconds=4)
    assert finish() == 1, "which is made up for, or the rate would not be reached"


def test_a_clock_that_was_ahead_keeps_none_waiting_until_it_is_there_again(frozen_clock: Any) -> None:
    ids, start = dead(6), frozen_clock.now
    started(per_minute=1)
    frozen_clock.advance(days=1)
    finish()
    frozen_clock.move_to(start)
    for done in (2, 3):
        assert finish() == 1
        assert states(ids).count("available") == done
        frozen_clock.advance(seconds=61)


@pytest.mark.parametrize("per_minute", [0, -1, 100_001, 1.5, "50", True])
def test_a_rate_that_cannot_be(per_minute: Any) -> None:
    dead(1)
    with pytest.raises(InvalidRequest, match="per_minute: must be an integer from 1 to 100000"):
        started(per_minute=per_minute)
    assert not BulkAction.objects.exists()


def test_who_asked_and_what_was_done_is_in_the_audit_log_and_the_event_log() -> None:
    ids = dead(4)
    action = started(type="mail.send")
    finish()
    begun, *batches = AuditEntry.objects.filter(action="job.bulk_retry").order_by("pk")
    assert (begun.actor, begun.detail["expected"], begun.detail["filter"]["type"]) == ("user:ann", 4, "mail.send")
    assert [entry.detail["matched"] for entry in batches] == [3, 1]
    assert {entry.detail["bulk_action"] for entry in (begun, *batches)} == {action.pk}
    assert {job_id for entry in batches for job_id in entry.detail["job_ids"]} == set(map(str, ids))
    (event,) = Event.objects.filter(type="bulk.retry.completed")
    assert event.data == {"total": 4, "retried": 4, "skipped": 0}


@pytest.mark.parametrize("verb, override", [("explode", None), ("delete", {"queue": "a"}), ("retry", {"state": "x"})])
def test_what_cannot_be_asked_for_is_refused_at_once(verb: str, override: Any) -> None:
    with pytest.raises(InvalidRequest):
        started(verb, override)
    assert not BulkAction.objects.exists()


def test_the_scheduler_hurries_while_there_is_something_to_do() -> None:
    assert Bulk().run_once("default") == Bulk.IDLE
    dead(1)
    started()
    assert Bulk().run_once("default") == Bulk.BUSY


def test_old_actions_are_forgotten_and_running_ones_are_not() -> None:
    dead(4)
    started()
    finish()
    running = started()
    clock.advance(days=31)
    assert prune.prune()["bulk_actions"] == 1
    assert list(BulkAction.objects.all()) == [running]


# What a retry with changes refuses, as a push would


def test_a_changed_job_has_to_fit_its_schema(settings: Any) -> None:
    settings.OJS = {"SCHEMA_VALIDATION": "strict"}
    (job_id,) = dead(1)
    schemas.register("mail.send", "1", {"type": "array", "items": {"type": "string"}})
    (refused,) = retry([job_id], override={"args": [5]})
    assert isinstance(refused, SchemaValidation)
    assert states([job_id]) == ["discarded"]
    retry([job_id], override={"args": ["b"]})
    assert Job.objects.get(pk=job_id).args == ["b"]


def test_a_queue_that_takes_no_such_jobs_refuses_a_changed_one() -> None:
    (job_id,) = dead(1)
    configure("sms", {"allowed_job_types": ["sms.*"]})
    (refused,) = retry([job_id], override={"queue": "sms"})
    assert isinstance(refused, JobTypeNotAllowed)
    assert states([job_id]) == ["discarded"]


@pytest.mark.usefixtures("long_memory")
def test_a_new_queue_for_many_jobs_costs_no_more_than_for_few(django_assert_max_num_queries: Any) -> None:
    few, many = dead(1), dead(30)
    with CaptureQueriesContext(connection) as captured:
        retry(few, override={"queue": "new-one"})
    with django_assert_max_num_queries(len(captured)):
        retry(many, override={"queue": "new-two"})
