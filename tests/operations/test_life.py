"""The life of a job through the operations: the behaviour suite that every database runs."""

from __future__ import annotations

import datetime as dt
import uuid
from typing import Any

import pytest

from django_ojs import clock, jsontext
from django_ojs.errors import (
    Duplicate,
    InvalidPayload,
    InvalidRequest,
    InvalidStateTransition,
    NotFound,
    ResultTooLarge,
)
from django_ojs.events import log
from django_ojs.jobs.cancel import cancel_one
from django_ojs.jobs.delete import delete_one
from django_ojs.jobs.fetch import Fetch, fetch
from django_ojs.jobs.finish import Ack, Failure, ack, ack_one, fail, fail_one, requeue
from django_ojs.jobs.promote import activate_one, run_now
from django_ojs.jobs.push import push
from django_ojs.jobs.read import info
from django_ojs.jobs.retry import retry_one
from django_ojs.jobs.timers import apply_due, next_due
from django_ojs.models import Job, Queue, Worker
from django_ojs.queues import configuration
from django_ojs.queues.configuration import pause, resume
from django_ojs.queues.deletion import remove
from django_ojs.retention import prune
from django_ojs.rules import envelope
from django_ojs.rules.ids import new_job_id
from django_ojs.workerregistry.dead import hand_back, replace_dead_worker, rescue_dead_workers
from django_ojs.workerregistry.heartbeat import Beat, beat, extend
from django_ojs.workerregistry.registration import NameInUse, deregister, direct, register, requeue_unknown

pytestmark = pytest.mark.django_db

ERROR = {"type": "Boom", "message": "it broke"}


def make(type: str = "test.job", args: list[Any] | None = None, **fields: Any) -> Any:
    """Push one job and return its row."""
    return push([{"type": type, "args": args or [], **fields}])[0].row


def claim(queue: str = "default", **options: Any) -> Any:
    rows = fetch(Fetch([queue], **options))
    assert len(rows) == 1
    return rows[0]


def state(row: dict[str, Any]) -> str:
    return str(info(row["id"])["state"])


def events(row: dict[str, Any]) -> list[str]:
    return [event["type"] for event in log.read(job_id=row["id"], limit=1000).events]


@pytest.mark.parametrize("shared", [{}, {"unique": {"keys": ["args"]}}], ids=["plain", "under locks"])
def test_a_job_that_is_available_at_once_was_created_when_it_was_enqueued(
    shared: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long the push takes (core 5.3); and a batch keeps its order."""
    ticks = iter([clock.now() + dt.timedelta(milliseconds=5 * n) for n in range(1000)])
    monkeypatch.setattr(clock, "now", lambda using=None: next(ticks))
    later = {"scheduled_at": "2126-01-01T00:00:00Z"}
    documents = [{"type": "a.b", "args": [n], **shared, **(later if n == 1 else {})} for n in range(4)]
    rows = [info(pushed.row["id"]) for pushed in push(documents) if pushed.row]
    waiting = [row for row in rows if row["state"] == "available"]
    assert len(waiting) == 3
    assert [row["created_at"] for row in waiting] == [row["enqueued_at"] for row in waiting]
    assert len({row["enqueued_at"] for row in waiting}) == 3
    assert [row["enqueued_at"] for row in waiting] == sorted(row["enqueued_at"] for row in waiting)
    shown = [envelope.render(row) for row in rows]
    assert all(job["created_at"] == job["enqueued_at"] for job in shown if job["state"] == "available")
    assert "enqueued_at" not in shown[1]


def later(**delta: float) -> str:
    return (clock.now() + dt.timedelta(**delta)).isoformat()


class TestPush:
    def test_a_job_is_available_and_complete(self) -> None:
        row = make("email.send", ["a@b.c", {"n": 1.0}], meta={"trace_id": "abc"}, x_unknown={"kept": [1]})
        shown = envelope.render(info(row["id"]))
        assert shown["state"] == "available"
        assert shown["args"] == ["a@b.c", {"n": 1.0}]
        assert shown["x_unknown"] == {"kept": [1]}
        assert shown["attempt"] == 0
        assert events(row) == ["job.enqueued"]

    def test_numbers_and_control_characters_come_back_as_sent(self) -> None:
        text = '["\\u0000",1.0,1e400,0.1234567890123456789,123456789012345678901234567890,"\\ud800","é"]'
        row = make(args=jsontext.loads(text))
        stored = info(row["id"])["args"]
        assert jsontext.loads(stored) == jsontext.loads(text)
        assert "0.1234567890123456789" in stored
        assert "1e400" in stored

    def test_a_taken_id_is_refused_and_nothing_is_stored(self) -> None:
        row = make()
        with pytest.raises(Duplicate) as refusal:
            push([{"type": "a.b", "args": []}, {"type": "a.b", "args": [], "id": str(row["id"])}])
        assert refusal.value.details["existing_job_id"] == str(row["id"])
        assert Job.objects.count() == 1

    def test_a_batch_with_the_same_id_twice_is_refused(self) -> None:
        job_id = str(new_job_id())
        with pytest.raises(Duplicate):
            push([{"type": "a.b", "args": [], "id": job_id}] * 2)

    def test_one_faulty_job_refuses_the_batch_and_names_its_index(self) -> None:
        with pytest.raises(InvalidPayload) as refusal:
            push([{"type": "a.b", "args": []}, {"type": "a.b"}])
        assert refusal.value.details["index"] == 1
        assert not Job.objects.exists()

    def test_the_queue_appears(self) -> None:
        make(queue="reports")
        assert Queue.objects.filter(name="reports").exists()

    def test_queue_defaults_apply_to_jobs_that_say_nothing(self) -> None:
        Queue.objects.create(
            name="q", timeout_ms=7000, visibility_ms=9000, retry={"max_attempts": 9},
            created_at=clock.now(), updated_at=clock.now(),
        )  # fmt: skip
        row = make(queue="q", retry={"initial_interval": "5s"})
        assert (row["timeout_ms"], row["max_attempts"]) == (7000, 9)
        assert claim("q")["lease_ms"] == 9000

    def test_future_start_is_scheduled_past_start_is_available_pending_wins(self) -> None:
        assert make(scheduled_at=later(hours=1))["state"] == "scheduled"
        assert make(scheduled_at="2020-01-01T00:00:00Z")["state"] == "available"
        assert make(scheduled_at=later(hours=1), pending=True)["state"] == "pending"


class TestFetch:
    def test_priority_then_first_in_first_out(self, frozen_clock: Any) -> None:
        names = [("low", -5), ("first", 0), ("second", 0), ("high", 7)]
        for name, priority in names:
            make(args=[name], priority=priority)
        order = [jsontext.loads(row["args"])[0] for row in fetch(Fetch(["default"], count=10))]
        assert order == ["high", "first", "second", "low"]

    def test_a_batch_keeps_its_order_whatever_the_ids(self) -> None:
        ids = sorted((str(new_job_id()) for _ in range(20)), reverse=True)
        push([{"type": "a.b", "args": [], "id": job_id} for job_id in ids])
        assert [str(row["id"]) for row in fetch(Fetch(["default"], count=20))] == ids

    def test_queues_are_served_left_to_right(self) -> None:
        for queue in ("b", "a", "b"):
            make(queue=queue)
        assert [row["queue"] for row in fetch(Fetch(["b", "a"], count=3))] == ["b", "b", "a"]

    def test_a_claim_counts_the_attempt_and_reserves_the_job(self, frozen_clock: Any) -> None:
        make()
        row = claim(worker_id="w1", visibility_ms=5000)
        assert (row["state"], row["attempt"], row["worker_id"]) == ("active", 1, "w1")
        stored = info(row["id"])
        assert stored["visible_until"] - stored["started_at"] == dt.timedelta(seconds=5)
        assert stored == {**row, "visible_until": stored["visible_until"]}
        assert fetch(Fetch(["default"])) == []

    def test_the_requests_visibility_beats_the_jobs(self) -> None:
        make(visibility_timeout=100)
        assert claim(visibility_ms=5000)["lease_ms"] == 5000
        make(visibility_timeout=100)
        assert claim(fallback_visibility_ms=60_000)["lease_ms"] == 100_000
        make()
        assert claim(fallback_visibility_ms=60_000)["lease_ms"] == 60_000

    def test_only_the_named_types_are_claimed(self) -> None:
        make("a.one")
        two = make("a.two")
        assert [row["id"] for row in fetch(Fetch(["default"], count=5, types=["a.two"]))] == [two["id"]]
        assert fetch(Fetch(["default"], types=[])) == []

    def test_a_paused_queue_gives_nothing_and_takes_jobs(self) -> None:
        pause("default", by="me")
        row = make()
        assert fetch(Fetch(["default"])) == []
        resume("default")
        assert claim()["id"] == row["id"]

    def test_a_scheduled_job_is_fetched_when_due_and_not_before(self, frozen_clock: Any) -> None:
        row = make(scheduled_at=later(seconds=10))
        frozen_clock.advance(seconds=9.9)
        assert fetch(Fetch(["default"])) == []
        frozen_clock.advance(seconds=0.2)
        assert claim()["id"] == row["id"]
        assert events(row) == ["job.scheduled", "job.enqueued", "job.started"]

    def test_an_expired_job_is_never_fetched(self, frozen_clock: Any) -> None:
        row = make(expires_at=later(seconds=5))
        frozen_clock.advance(seconds=5)
        assert fetch(Fetch(["default"])) == []
        assert state(row) == "discarded"
        assert events(row) == ["job.enqueued", "job.expired"]

    def test_an_unknown_worker_is_noted_once(self) -> None:
        for _ in range(3):
            fetch(Fetch(["default"], worker_id="w9"))
        assert Worker.objects.get().last_heartbeat_at is None
        kinds = [event["type"] for event in log.read(types=["worker.*"]).events]
        assert kinds == ["worker.registered", "worker.started"]

    @pytest.mark.parametrize("mood", ["quiet", "terminate"])
    def test_a_worker_told_to_stop_gets_nothing(self, mood: str) -> None:
        make()
        register("w1", {})
        direct("w1", mood)
        assert fetch(Fetch(["default"], worker_id="w1")) == []
        assert len(fetch(Fetch(["default"], worker_id="w1", check_worker=False))) == 1


class TestAck:
    def test_success_stores_the_result_and_drops_the_error(self) -> None:
        row = make(retry={"initial_interval": "1ms", "jitter": False})
        claim()
        fail_one(Failure(row["id"], ERROR, retry_after_ms=0))
        claim()
        done = ack_one(Ack(row["id"], '{"ok":true}'))
        shown = envelope.render(done)
        assert (shown["state"], shown["result"]) == ("completed", {"ok": True})
        assert "error" not in shown
        assert len(shown["errors"]) == 1
        assert envelope.render(info(row["id"])) == shown
        assert events(row)[-1] == "job.completed"

    def test_an_explicit_null_is_a_result_and_no_result_is_none(self) -> None:
        row = make()
        claim()
        ack_one(Ack(row["id"], "null"))
        assert "result" in envelope.render(info(row["id"]))
        row = make()
        claim()
        ack_one(Ack(row["id"]))
        assert "result" not in envelope.render(info(row["id"]))

    def test_late_worker_cannot_complete_a_job_it_lost(self, frozen_clock: Any) -> None:
        row = make()
        claim(worker_id="slow", visibility_ms=1000)
        frozen_clock.advance(seconds=2)
        apply_due()
        again = claim(worker_id="quick")
        assert again["attempt"] == 2
        with pytest.raises(InvalidStateTransition) as refusal:
            ack_one(Ack(row["id"], worker_id="slow"))
        assert refusal.value.details["reason"] == "not_claimant"
        with pytest.raises(InvalidStateTransition):
            ack_one(Ack(row["id"], worker_id="quick", attempt=1))
        assert state(row) == "active"
        ack_one(Ack(row["id"], worker_id="quick", attempt=2))

    def test_many_acks_have_an_outcome_each(self) -> None:
        first, second = make(), make()
        claim()
        unknown = uuid.uuid4()
        outcomes = ack([Ack(second["id"]), Ack(first["id"]), Ack(unknown), Ack(first["id"])])
        assert isinstance(outcomes[0], InvalidStateTransition)
        assert outcomes[1]["state"] == "completed"  # type: ignore[index]
        assert isinstance(outcomes[2], NotFound)
        assert outcomes[3] is outcomes[1]

    def test_too_large_a_result_leaves_the_job_active(self, settings: Any) -> None:
        settings.OJS = {"MAX_RESULT_BYTES": 10}
        row = make()
        claim()
        with pytest.raises(ResultTooLarge):
            ack_one(Ack(row["id"], '"' + "x" * 20 + '"'))
        assert state(row) == "active"


class TestFail:
    def test_a_failure_waits_for_its_backoff_and_comes_back(self, frozen_clock: Any) -> None:
        row = make(retry={"max_attempts": 3, "initial_interval": "2s", "jitter": False})
        claim()
        failed = fail_one(Failure(row["id"], ERROR))
        assert (failed["state"], failed["retry_delay_ms"]) == ("retryable", 2000)
        frozen_clock.advance(seconds=1.9)
        assert fetch(Fetch(["default"])) == []
        frozen_clock.advance(seconds=0.1)
        assert claim()["attempt"] == 2
        assert envelope.render(info(row["id"]))["retry_delay_ms"] == 2000
        assert events(row) == ["job.enqueued", "job.started", "job.failed", "job.retrying", "job.started"]

    def test_exhausted_retries_end_in_the_dead_letter_queue(self) -> None:
        row = make(retry={"max_attempts": 1})
        claim()
        dead = fail_one(Failure(row["id"], ERROR))
        assert (dead["state"], dead["dead_letter"]) == ("discarded", True)
        assert [job.pk for job in Job.objects.dead_letters()] == [row["id"]]
        assert events(row) == ["job.enqueued", "job.started", "job.failed", "job.discarded"]

    def test_an_explicit_discard_stays_out_of_it(self) -> None:
        row = make(retry={"max_attempts": 1, "on_exhaustion": "discard"})
        claim()
        fail_one(Failure(row["id"], ERROR))
        assert not Job.objects.dead_letters().exists()
        assert state(row) == "discarded"

    def test_handing_back_counts_as_no_failure(self) -> None:
        row = make(retry={"max_attempts": 1})
        claim(worker_id="w")
        back = fail_one(Failure(row["id"], requeue=True, worker_id="w"))
        assert (back["state"], back["attempt"], back["started_at"], back["errors"]) == ("available", 1, None, "")
        assert claim()["attempt"] == 2

    def test_snooze_is_not_a_failure(self, frozen_clock: Any) -> None:
        row = make(retry={"max_attempts": 1})
        claim()
        snoozed = fail_one(Failure(row["id"], snooze_ms=1000))
        assert (snoozed["state"], snoozed["max_attempts"], snoozed["errors"]) == ("retryable", 1, "")
        frozen_clock.advance(seconds=1)
        assert claim()["attempt"] == 2

    def test_snoozes_use_up_none_of_the_attempts_and_raise_no_limit(self, frozen_clock: Any) -> None:
        row = make(retry={"max_attempts": 2, "initial_interval": "1s", "jitter": False})
        states = []
        for report in (
            {"snooze_ms": 1000},
            {"snooze_ms": 1000},
            {"error": ERROR},
            {"snooze_ms": 1000},
            {"error": ERROR},
        ):
            claim()
            row = fail_one(Failure(row["id"], **report))
            states.append(row["state"])
            frozen_clock.advance(seconds=1)
        assert states == ["retryable"] * 4 + ["discarded"], "the second real failure is the last"
        assert (row["attempt"], row["max_attempts"], row["uncounted"]) == (5, 2, 3)
        assert retry_one(row["id"])["uncounted"] is None

    def test_a_snooze_hides_no_lost_reservation(self, frozen_clock: Any, settings: Any) -> None:
        settings.OJS = {"POISON_LIMIT": 2}
        row = make(visibility_timeout=1)
        for _ in range(2):
            claim()
            frozen_clock.advance(seconds=2)
            apply_due()
            if state(row) == "available":
                claim()
                assert fail_one(Failure(row["id"], snooze_ms=1000))["losses"] == 1
                frozen_clock.advance(seconds=1)
        assert state(row) == "discarded"

    def test_an_outage_counts_as_a_loss_up_to_the_limit(self, frozen_clock: Any, settings: Any) -> None:
        settings.OJS = {"POISON_LIMIT": 3}
        row = make(retry={"max_attempts": 2, "initial_interval": "1h", "jitter": False})
        found = []
        for unrun in (True, False, True, False, False):
            claim()
            frozen_clock.advance(seconds=1)
            found.append(fail_one(Failure(row["id"], requeue=True, outage="gone", unrun=unrun)))
            frozen_clock.advance(hours=2)
        assert [one["state"] for one in found] == ["retryable"] * 5
        assert [one["losses"] for one in found] == [0, 1, 1, 2, 3]
        assert [one["uncounted"] for one in found] == [1, 2, 3, 4, 4], "the last one is a failure as any other"
        assert [one["retry_delay_ms"] for one in found] == [1000, 1000, 1000, 2000, 3_600_000]
        assert len(jsontext.loads(found[-1]["errors"])) == 3, "where no handler ran nothing is recorded"
        claim()
        row = fail_one(Failure(row["id"], requeue=True, outage="gone"))
        assert (row["state"], row["losses"], row["attempt"]) == ("discarded", 0, 6)

    def test_another_end_begins_the_count_of_outages_anew(self, frozen_clock: Any, settings: Any) -> None:
        settings.OJS = {"POISON_LIMIT": 2}
        row = make(retry={"max_attempts": 3, "initial_interval": "1s", "jitter": False})
        losses = []
        for failure in ({"requeue": True, "outage": "gone"}, {"error": ERROR}, {"requeue": True, "outage": "gone"}):
            claim()
            losses.append(fail_one(Failure(row["id"], **failure))["losses"])
            frozen_clock.advance(seconds=10)
        assert losses == [1, 0, 1]

    def test_an_outage_leaves_no_time_that_the_job_does_not_have(self, frozen_clock: Any) -> None:
        row = make(total_timeout=1)
        claim()
        frozen_clock.advance(seconds=0.5)
        row = fail_one(Failure(row["id"], requeue=True, outage="gone"))
        assert (row["state"], jsontext.loads(row["errors"])[-1]["type"]) == ("discarded", "total_timeout")

    def test_a_hand_back_names_the_run_that_it_is_about(self) -> None:
        row = make(retry={"max_attempts": 1})
        claim(worker_id="w")
        assert requeue([row["id"]], worker_id="w", attempts={row["id"]: 1}, unrun=[row["id"]]) == [row["id"]]
        claim(worker_id="w")
        assert requeue([row["id"]], worker_id="w", attempts={row["id"]: 1}) == []
        assert fail_one(Failure(row["id"], ERROR))["state"] == "discarded", "the hand-back cost no attempt"

    def test_a_claim_leaves_out_the_jobs_that_it_is_told_to(self) -> None:
        first, second = make(), make()
        limited = make(queue="limited", rate_limit={"key": "k", "concurrency": 5})
        assert fetch(Fetch(["default"], count=5, except_ids=[first["id"]]))[0]["id"] == second["id"]
        assert fetch(Fetch(["limited"], count=5, except_ids=[limited["id"]])) == []
        assert [row["id"] for row in fetch(Fetch(["default", "limited"], count=5))] == [first["id"], limited["id"]]

    def test_a_report_without_error_is_refused_and_changes_nothing(self) -> None:
        row = make()
        claim()
        for error in (None, {}, {"message": 5}, "text"):
            with pytest.raises(InvalidRequest):
                fail([Failure(row["id"], error)])
        assert state(row) == "active"

    def test_the_history_is_bounded(self, settings: Any) -> None:
        settings.OJS = {"ERROR_HISTORY": 10}
        row = make(retry={"max_attempts": 100})
        for _ in range(12):
            claim()
            fail_one(Failure(row["id"], ERROR, retry_after_ms=0))
        errors = jsontext.loads(info(row["id"])["errors"])
        assert [error["attempt"] for error in errors] == list(range(3, 13))

    @pytest.mark.parametrize(
        "error, attempts, retryable",
        [
            ({"type": "Fatal", "message": "no"}, 3, False),
            ({"type": "X", "message": "no", "details": {"error_class": "auth.expired"}, "retryable": True}, 3, False),
            ({"type": "X", "message": "no", "code": "DISCARD", "retryable": True}, 3, False),
            ({"type": "X", "message": "no"}, 1, True),
        ],
    )
    def test_an_error_says_what_was_decided_about_it_and_not_what_was_reported(
        self, error: dict[str, Any], attempts: int, retryable: bool
    ) -> None:
        row = make(retry={"max_attempts": attempts, "non_retryable_errors": ["Fatal", "auth.*"]})
        claim()
        shown = envelope.render(fail_one(Failure(row["id"], error)))
        told = [event["data"]["error"] for event in log.read(job_id=row["id"]).events if "error" in event["data"]]
        assert len(told) == 2  # job.failed and job.discarded
        assert {e["retryable"] for e in [*told, shown["error"], *shown["errors"]]} == {retryable}

    def test_an_error_that_its_worker_wants_retried_says_so(self) -> None:
        row = make(retry={"non_retryable_errors": ["Fatal"]})
        claim()
        error = {"type": "Fatal", "message": "later", "retryable": False}
        failed = fail_one(Failure(row["id"], error, retry_after_ms=1000))
        assert (failed["state"], envelope.render(failed)["error"]["retryable"]) == ("retryable", True)

    def test_a_timeout_that_the_policy_lists_says_that_it_is_not_retried(self, frozen_clock: Any) -> None:
        row = make(timeout=2, retry={"non_retryable_errors": ["timeout"]})
        claim()
        frozen_clock.advance(seconds=3)
        apply_due()
        shown = envelope.render(info(row["id"]))
        assert (shown["state"], shown["error"]["retryable"]) == ("discarded", False)

    def test_not_active_is_refused(self) -> None:
        row = make()
        with pytest.raises(InvalidStateTransition) as refusal:
            fail_one(Failure(row["id"], ERROR))
        assert refusal.value.details["current_state"] == "available"


class TestTime:
    def test_a_lost_reservation_comes_back_with_its_attempt(self, frozen_clock: Any) -> None:
        row = make(retry={"max_attempts": 1})
        claim(worker_id="gone", visibility_ms=1000)
        assert apply_due() == 0
        assert next_due() == frozen_clock.now + dt.timedelta(seconds=1)
        frozen_clock.advance(seconds=1)
        assert apply_due() == 1
        stored = info(row["id"])
        assert (stored["state"], stored["attempt"], stored["started_at"]) == ("available", 1, None)
        assert jsontext.loads(stored["errors"])[-1]["type"] == "visibility_timeout"
        assert events(row) == ["job.enqueued", "job.started"]

    def test_a_job_that_kills_its_workers_is_given_up(self, frozen_clock: Any, settings: Any) -> None:
        settings.OJS = {"POISON_LIMIT": 3}
        row = make(retry={"max_attempts": 1})
        for _ in range(3):
            claim(visibility_ms=1000)
            frozen_clock.advance(seconds=2)
            apply_due()
        stored = info(row["id"])
        assert (stored["state"], stored["dead_letter"]) == ("discarded", True)
        assert jsontext.loads(stored["errors"])[-1]["type"] == "visibility_timeout"

    def test_the_execution_timeout_is_a_failure(self, frozen_clock: Any) -> None:
        row = make(timeout=2, retry={"max_attempts": 2, "initial_interval": "1s", "jitter": False})
        claim(worker_id="w")
        frozen_clock.advance(seconds=1)
        beat(Beat("w", [row["id"]]))
        frozen_clock.advance(seconds=1)
        apply_due()
        stored = info(row["id"])
        error = jsontext.loads(stored["errors"])[-1]
        assert (stored["state"], error["type"], error["timeout_kind"]) == ("retryable", "timeout", "execution")
        assert events(row)[-2:] == ["job.failed", "job.retrying"]
        named = log.read(types=["job.timeout"], job_id=row["id"]).events
        assert [event["type"] for event in named] == ["job.timeout"]

    @pytest.mark.parametrize("seconds, told", [(9, []), (9.5, ["job.timeout"]), (10, ["job.timeout"])])
    def test_a_worker_s_word_of_a_timeout_counts_when_the_time_is_over(
        self, frozen_clock: Any, seconds: float, told: list[str]
    ) -> None:
        """By the server's clock, which may go a little slower than the worker's."""
        row = make(timeout=10)
        claim()
        frozen_clock.advance(seconds=seconds)
        failed = fail_one(Failure(row["id"], {"message": "too long", "timeout_kind": "execution"}))
        assert (failed["state"], jsontext.loads(failed["errors"])[-1]["message"]) == ("retryable", "too long")
        assert [event["type"] for event in log.read(types=["job.timeout"], job_id=row["id"]).events] == told

    @pytest.mark.parametrize("seconds, told", [(8, []), (12, ["job.total_timeout"]), (13, ["job.total_timeout"])])
    def test_so_does_its_word_that_the_time_of_the_job_as_a_whole_is_over(
        self, frozen_clock: Any, seconds: float, told: list[str]
    ) -> None:
        row = make(total_timeout=3600)
        frozen_clock.advance(seconds=3600 - 12.5)
        claim()
        frozen_clock.advance(seconds=seconds)
        error = {"message": "too long", "timeout_kind": "total", "retryable": False}
        assert fail_one(Failure(row["id"], error))["state"] == "discarded"
        assert [event["type"] for event in log.read(types=["job.total_timeout"], job_id=row["id"]).events] == told

    @pytest.mark.parametrize("left, told", [(61, []), (60, ["job.total_timeout"])])
    def test_of_long_hours_a_minute_may_be_left(self, frozen_clock: Any, left: float, told: list[str]) -> None:
        """And not half an hour: no attempt comes after that word."""
        row = make(total_timeout=36_000)
        claim()
        frozen_clock.advance(seconds=36_000 - left)
        error = {"message": "too long", "timeout_kind": "total"}
        assert fail_one(Failure(row["id"], error))["state"] == ("discarded" if told else "retryable")
        assert [event["type"] for event in log.read(types=["job.total_timeout"], job_id=row["id"]).events] == told

    @pytest.mark.parametrize("waiting", ["scheduled", "available", "pending", "retryable"])
    def test_every_waiting_state_expires(self, waiting: str, frozen_clock: Any) -> None:
        options: dict[str, Any] = {"expires_at": later(seconds=5)}
        if waiting == "scheduled":
            options["scheduled_at"] = later(seconds=9)
        row = make(pending=waiting == "pending", **options)
        if waiting == "retryable":
            claim()
            fail_one(Failure(row["id"], ERROR, retry_after_ms=60_000))
        assert state(row) == waiting
        frozen_clock.advance(seconds=5)
        apply_due()
        assert state(row) == "discarded"
        assert events(row)[-1] == "job.expired"
        assert [job.pk for job in Job.objects.dead_letters()] == [row["id"]]

    def test_an_active_job_does_not_expire(self, frozen_clock: Any) -> None:
        row = make(expires_at=later(seconds=5))
        claim()
        frozen_clock.advance(seconds=6)
        apply_due()
        assert state(row) == "active"

    def test_a_pending_job_with_a_start_ahead_is_not_fetched_early(self, frozen_clock: Any) -> None:
        start = later(seconds=10)
        row = make(pending=True, scheduled_at=start)
        shown = envelope.render(activate_one(row["id"]))
        assert (shown["state"], shown["scheduled_at"]) == ("scheduled", start)
        assert shown["activated_at"]
        assert "enqueued_at" not in shown
        assert next_due() == info(row["id"])["due_at"] == dt.datetime.fromisoformat(start)
        assert events(row) == ["job.scheduled"]
        assert fetch(Fetch(["default"])) == []
        frozen_clock.advance(seconds=10)
        assert claim()["id"] == row["id"]
        assert events(row) == ["job.scheduled", "job.enqueued", "job.started"]

    def test_a_pending_job_whose_start_has_come_is_available_when_activated(self, frozen_clock: Any) -> None:
        row = make(pending=True, scheduled_at=later(seconds=10))
        frozen_clock.advance(seconds=10)
        shown = envelope.render(activate_one(row["id"]))
        assert shown["state"] == "available"
        assert "scheduled_at" not in shown
        assert events(row) == ["job.enqueued"]

    @pytest.mark.parametrize("how", ["scheduler", "fetch", "operator"])
    def test_a_promoted_job_shows_no_start_that_it_waits_for(self, how: str, frozen_clock: Any) -> None:
        """Core 6.3: the promotion clears it. What the client sent beside it stays."""
        start = later(seconds=10)
        row = make(options={"scheduled_at": start}, x_own={"scheduled_at": 1}, retry={"max_attempts": 2})
        assert envelope.render(info(row["id"]))["scheduled_at"] == start
        if how == "operator":
            run_now([row["id"]])
        else:
            frozen_clock.advance(seconds=10)
            apply_due() if how == "scheduler" else claim()
        shown = envelope.render(info(row["id"]))
        assert "scheduled_at" not in shown
        assert (shown["x_own"], shown["retry"]) == ({"scheduled_at": 1}, {"max_attempts": 2})
        assert shown["enqueued_at"]
        told = [event for event in log.read(job_id=row["id"]).events if event["type"] == "job.enqueued"]
        assert dt.datetime.fromisoformat(told[0]["data"]["scheduled_at"]) == dt.datetime.fromisoformat(start)

    def test_a_start_in_the_past_delayed_nothing_and_is_kept_as_sent(self) -> None:
        row = make(scheduled_at="2020-01-01T00:00:00+01:00", retry={"initial_interval": "1ms"})
        claim()
        fail_one(Failure(row["id"], ERROR, retry_after_ms=0))
        claim()
        assert envelope.render(info(row["id"]))["scheduled_at"] == "2020-01-01T00:00:00+01:00"


class Discarding:
    """The ways in which a job that failed once is discarded; each is given the job and the clock."""

    @staticmethod
    def exhaustion(row: Any, clock: Any) -> None:
        claim("doomed")
        fail_one(Failure(row["id"], ERROR))

    @staticmethod
    def verdict(row: Any, clock: Any) -> None:
        claim("doomed")
        fail_one(Failure(row["id"], {**ERROR, "code": "DISCARD"}))

    @staticmethod
    def total_timeout(row: Any, clock: Any) -> None:
        clock.advance(seconds=100)
        apply_due()

    @staticmethod
    def expiry(row: Any, clock: Any) -> None:
        clock.advance(seconds=50)
        apply_due()

    @staticmethod
    def overflow(row: Any, clock: Any) -> None:
        config = {"backpressure": {"max_depth": 1, "strategy": "drop_oldest"}}
        Queue.objects.filter(pk="doomed").update(config=config)
        configuration.forget()
        make(queue="doomed")

    @staticmethod
    def rate_limit(row: Any, clock: Any) -> None:
        limit = {"key": "k", "concurrency": 1, "on_limit": "drop"}
        Job.objects.filter(pk=row["id"]).update(rate_key="k", rate_limit='{"concurrency":1,"on_limit":"drop"}')
        make(queue="busy", rate_limit=limit)
        claim("busy")
        assert fetch(Fetch(["doomed"])) == []

    @staticmethod
    def removal(row: Any, clock: Any) -> None:
        remove("doomed", "discard")

    @staticmethod
    def lost_reservations(row: Any, clock: Any) -> None:
        for _ in range(2):
            claim("doomed", visibility_ms=1000)
            clock.advance(seconds=2)
            apply_due()


class TestDiscard:
    @pytest.mark.parametrize("way", [name for name in vars(Discarding) if not name.startswith("_")])
    def test_a_discarded_job_waits_for_no_retry_and_its_error_is_final(
        self, way: str, frozen_clock: Any, settings: Any
    ) -> None:
        settings.OJS = {"POISON_LIMIT": 2}
        row = make(
            queue="doomed", total_timeout=100, expires_at=later(seconds=50),
            retry={"max_attempts": 2, "initial_interval": "1s", "jitter": False},
        )  # fmt: skip
        claim("doomed")
        fail_one(Failure(row["id"], ERROR))
        frozen_clock.advance(seconds=1)
        apply_due()
        assert envelope.render(info(row["id"]))["retry_delay_ms"] == 1000
        getattr(Discarding, way)(row, frozen_clock)
        stored = info(row["id"])
        shown = envelope.render(stored)
        assert shown["state"] == "discarded"
        assert not {"retry_delay_ms", "next_attempt_at", "next_retry_at"} & shown.keys()
        assert (stored["losses"], stored["due_at"], stored["wake_at"]) == (0, None, None)
        assert stored["dead_letter"] is (way != "verdict")
        assert shown["error"]["retryable"] is (way == "exhaustion")

    def test_a_job_cancelled_during_its_backoff_waits_for_no_retry(self) -> None:
        row = make()
        claim()
        fail_one(Failure(row["id"], ERROR, retry_after_ms=60_000))
        assert "retry_delay_ms" not in envelope.render(cancel_one(row["id"]).row)
        assert "retry_delay_ms" not in envelope.render(info(row["id"]))


class TestCancelActivateRetryDelete:
    @pytest.mark.parametrize("source", ["scheduled", "available", "pending", "active", "retryable"])
    def test_every_live_state_can_be_cancelled_once(self, source: str) -> None:
        row = make(pending=source == "pending", **({"scheduled_at": later(hours=1)} if source == "scheduled" else {}))
        if source in ("active", "retryable"):
            claim()
        if source == "retryable":
            fail_one(Failure(row["id"], ERROR, retry_after_ms=60_000))
        done = cancel_one(row["id"], cancelled_by="user:x", reason="no")
        assert (done.row["state"], done.previous_state, done.changed) == ("cancelled", source, True)
        assert cancel_one(row["id"]).changed is False
        assert events(row).count("job.cancelled") == 1
        with pytest.raises(InvalidStateTransition):
            ack_one(Ack(row["id"]))

    def test_a_completed_job_cannot_be_cancelled(self) -> None:
        row = make()
        claim()
        ack_one(Ack(row["id"]))
        with pytest.raises(InvalidStateTransition) as refusal:
            cancel_one(row["id"])
        assert refusal.value.details == {
            "job_id": str(row["id"]), "current_state": "completed", "attempted": "cancel",
            "attempted_state": "cancelled", "expected_state": refusal.value.details["expected_state"],
        }  # fmt: skip

    def test_activation(self) -> None:
        row = make(pending=True)
        assert events(row) == []
        assert activate_one(row["id"])["activated_at"] is not None
        assert events(row) == ["job.enqueued"]
        with pytest.raises(InvalidStateTransition):
            activate_one(row["id"])

    def test_manual_retry_starts_over_and_keeps_the_old_errors(self) -> None:
        row = make(args=[1], retry={"max_attempts": 1})
        claim()
        fail_one(Failure(row["id"], ERROR))
        revived = retry_one(row["id"], override={"args": [2], "queue": "other", "priority": 3})
        shown = envelope.render(revived)
        assert (shown["state"], shown["attempt"], shown["args"], shown["queue"]) == ("available", 0, [2], "other")
        assert not {"errors", "error", "discarded_at"} & set(shown)
        assert shown["x_previous_errors"][0]["message"] == "it broke"
        assert envelope.render(info(row["id"])) == shown
        assert claim("other")["attempt"] == 1
        assert events(row)[-2:] == ["job.enqueued", "job.started"]

    def test_manual_retry_with_changes_makes_the_keys_anew(self) -> None:
        unique = {"keys": ["type", "args", "queue"]}
        row = make(args=[1], retry={"max_attempts": 1}, unique=unique, rate_limit={"concurrency": 1})
        claim()
        fail_one(Failure(row["id"], ERROR))
        revived = retry_one(row["id"], override={"args": [2], "queue": "other"})
        assert revived["rate_key"] == info(row["id"])["rate_key"] == "queue:other"
        make(args=[1], unique=unique)
        with pytest.raises(Duplicate):
            make(args=[2], queue="other", unique=unique)

    @pytest.mark.parametrize("ahead", [False, True], ids=["past", "still ahead"])
    def test_manual_retry_shows_no_deadline_that_has_passed(self, ahead: bool, frozen_clock: Any) -> None:
        """Whoever reads the envelope would think that no worker may start it (core 5.2)."""
        end = later(seconds=5)
        row = make(scheduled_at=later(seconds=9), expires_at=end, queue="doomed", x_own=1)
        if ahead:
            remove("doomed", "discard")
        else:
            frozen_clock.advance(seconds=5)
            apply_due()
        revived = retry_one(row["id"], override={"queue": "default"})
        shown = envelope.render(revived)
        assert (shown["state"], shown.get("expires_at"), shown["x_own"]) == ("available", end if ahead else None, 1)
        assert "scheduled_at" not in shown
        assert envelope.render(info(row["id"])) == shown
        assert claim()["id"] == row["id"]

    def test_manual_retry_refuses_the_living_the_unknown_and_nonsense(self) -> None:
        row = make(retry={"max_attempts": 1})
        with pytest.raises(InvalidStateTransition):
            retry_one(row["id"])
        with pytest.raises(NotFound):
            retry_one(uuid.uuid4())
        claim()
        fail_one(Failure(row["id"], ERROR))
        for override in ({"type": "x"}, {"priority": 1000}, {"args": "no"}):
            with pytest.raises((InvalidRequest, InvalidPayload)):
                retry_one(row["id"], override=override)
        assert state(row) == "discarded"

    def test_only_dead_letters_are_deleted(self) -> None:
        row = make(retry={"max_attempts": 1})
        with pytest.raises(NotFound):
            delete_one(row["id"])
        claim()
        fail_one(Failure(row["id"], ERROR))
        assert delete_one(row["id"]) == row["id"]
        with pytest.raises(NotFound):
            info(row["id"])


class TestWorkers:
    def test_a_heartbeat_keeps_the_jobs_and_tells_what_was_lost(self, frozen_clock: Any) -> None:
        kept, stopped, stranger = make(), make(), make()
        for _ in range(2):
            claim(worker_id="w", visibility_ms=2000)
        claim(worker_id="other")
        cancel_one(stopped["id"])
        frozen_clock.advance(seconds=1)
        answer = beat(Beat("w", [kept["id"], stopped["id"], stranger["id"]]))
        assert (answer.extended, answer.cancelled, answer.lost) == ([kept["id"]], [stopped["id"]], [stranger["id"]])
        assert (answer.state, answer.directive) == ("running", "continue")
        assert info(kept["id"])["visible_until"] == frozen_clock.now + dt.timedelta(seconds=2)
        assert events(kept)[-1] == "job.heartbeat"

    def test_our_worker_leaves_jobs_with_a_reservation_of_their_own(self, frozen_clock: Any) -> None:
        row = make(visibility_timeout=2)
        claim(worker_id="w", fallback_visibility_ms=60_000)
        frozen_clock.advance(seconds=1)
        assert beat(Beat("w", [row["id"]], renew_own=False)).extended == []
        frozen_clock.advance(seconds=0.5)
        assert extend(row["id"], "w")
        assert info(row["id"])["visible_until"] == frozen_clock.now + dt.timedelta(seconds=2)
        assert not extend(row["id"], "somebody else")

    @pytest.mark.parametrize(
        "reported, told, answer",
        [
            ("running", "", "running"), ("running", "quiet", "quiet"), ("quiet", "", "quiet"),
            ("drain", "", "running"), ("quiet", "running", "running"), ("terminate", "running", "terminate"),
            ("quiet", "terminate", "terminate"),
        ],
    )  # fmt: skip
    def test_the_answer_is_the_more_severe_word(self, reported: str, told: str, answer: str) -> None:
        beat(Beat("w"))
        direct("w", told)
        assert beat(Beat("w", state=reported)).state == answer

    def test_jobs_of_a_silent_worker_come_back(self, frozen_clock: Any) -> None:
        row = make()
        beat(Beat("w"))
        claim(worker_id="w")
        fetched_only = make()
        claim(worker_id="never-beats")
        frozen_clock.advance(seconds=44)
        assert rescue_dead_workers() == 0
        frozen_clock.advance(seconds=2)
        assert rescue_dead_workers() == 1
        assert state(row) == "available"
        assert state(fetched_only) == "active"
        assert not Worker.objects.filter(pk="w").exists()
        assert [e["type"] for e in log.read(types=["worker.stopped"]).events] == ["worker.stopped"]

    def test_a_leaving_worker_hands_back_its_jobs(self) -> None:
        row = make()
        register("w", {"hostname": "h", "concurrency": 4, "queues": ["default"]})
        claim(worker_id="w")
        assert deregister("w") == 1
        assert state(row) == "available"
        assert info(row["id"])["errors"] == ""
        with pytest.raises(NotFound):
            deregister("w")

    def test_requeue_only_takes_what_the_worker_holds(self) -> None:
        first, second = make(), make()
        claim(worker_id="a")
        claim(worker_id="b")
        assert requeue([first["id"], second["id"]], worker_id="a") == [first["id"]]
        assert (state(first), state(second)) == ("available", "active")


class TestPrune:
    def test_finished_jobs_go_by_age_and_live_ones_stay(self, frozen_clock: Any) -> None:
        done, live = make(), make(queue="x")
        claim()
        ack_one(Ack(done["id"]))
        frozen_clock.advance(days=6)
        assert prune()["jobs"] == 0
        frozen_clock.advance(days=2)
        assert prune()["jobs"] == 1
        assert [job.pk for job in Job.objects.all()] == [live["id"]]

    def test_events_go_by_age_and_readers_learn_of_the_gap(self, frozen_clock: Any) -> None:
        make()
        first = log.read().cursor
        frozen_clock.advance(days=8)
        row = make()
        assert prune()["events"] == 1
        page = log.read(after=first)
        assert [event["data"]["job_id"] for event in page.events] == [str(row["id"])]
        assert page.gap is not None

    def test_workers_that_never_beat_are_forgotten_when_they_are_silent(self, frozen_clock: Any) -> None:
        fetch(Fetch(["default"], worker_id="gone"))
        fetch(Fetch(["default"], worker_id="there"))
        beat(Beat("beating"))
        frozen_clock.advance(hours=20)
        fetch(Fetch(["default"], worker_id="there"))
        assert prune()["workers"] == 0
        frozen_clock.advance(hours=20)
        assert prune()["workers"] == 1
        assert set(Worker.objects.values_list("pk", flat=True)) == {"there", "beating"}

    def test_the_dead_letter_queue_keeps_the_newest(self, settings: Any, frozen_clock: Any) -> None:
        settings.OJS = {"DEAD_LETTER_MAX_COUNT": 2}
        rows = []
        for _ in range(4):
            rows.append(make(retry={"max_attempts": 1}))
            claim()
            fail_one(Failure(rows[-1]["id"], ERROR))
            frozen_clock.advance(seconds=1)
        assert prune()["dead_letters"] == 2
        assert {job.pk for job in Job.objects.all()} == {row["id"] for row in rows[2:]}

    def test_one_process_does_not_speak_for_another_of_its_name(self) -> None:
        """Deregistering, burying and looking for stray jobs: each leaves the jobs of the other process alone."""
        row = make()
        beat(Beat("w", incarnation="new"))
        claim(worker_id="w")
        with pytest.raises(NotFound):
            deregister("w", incarnation="old")
        assert hand_back("w", incarnation="old").returned == 0
        assert requeue_unknown([], "w", incarnation="old") == []
        assert replace_dead_worker("w", "old", Worker.objects.get().last_heartbeat_at) is None
        assert replace_dead_worker("w", "new", None) is None, "it has beaten since"
        assert state(row) == "active"
        with pytest.raises(NameInUse):
            beat(Beat("w", incarnation="old"))
        assert requeue_unknown([], "w", incarnation="new") == [row["id"]]
        assert deregister("w", incarnation="new") == 0

    def test_a_worker_known_from_fetch_alone_leaves_its_name_to_the_first_that_beats(self) -> None:
        make()
        claim(worker_id="w")
        beat(Beat("w", incarnation="new"))
        assert Worker.objects.get().incarnation == "new"
