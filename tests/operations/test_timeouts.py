"""The other timeouts of binding 5, on every database: total, enqueue TTL, heartbeat, grace."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest

from django_ojs import jsontext
from django_ojs.errors import InvalidStateTransition
from django_ojs.events import log
from django_ojs.events.filters import change
from django_ojs.jobs.fetch import Fetch, fetch
from django_ojs.jobs.finish import Ack, Failure, ack_one, fail_one
from django_ojs.jobs.progress import ProgressReport, report
from django_ojs.jobs.promote import activate_one
from django_ojs.jobs.push import push
from django_ojs.jobs.read import info
from django_ojs.jobs.retry import retry_one
from django_ojs.jobs.timers import apply_due, next_due
from django_ojs.queues.maintenance import start
from django_ojs.workerregistry.heartbeat import Beat, beat, extend

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("frozen_clock")]

ERROR = {"type": "Boom", "message": "it broke"}
OVERRUNS = ["job.timeout", "job.stalled", "job.total_timeout", "job.ttl_expired"]


def make(**fields: Any) -> Any:
    return push([{"type": "test.job", "args": [], **fields}])[0].row["id"]


def claim(**options: Any) -> Any:
    (row,) = fetch(Fetch(["default"], **options))
    return row


def error(job: Any) -> dict[str, Any]:
    found: dict[str, Any] = jsontext.loads(info(job)["errors"])[-1]
    return found


def events(job: Any) -> list[str]:
    return [event["type"] for event in log.read(job_id=job, limit=1000).events]


def overruns(job: Any) -> list[dict[str, Any]]:
    return list(log.read(job_id=job, types=OVERRUNS).events)


def after(clock: Any, seconds: float) -> None:
    """Time goes by, and the scheduler looks."""
    clock.advance(seconds=seconds)
    apply_due()


class TestTotal:
    @pytest.mark.parametrize("waiting", ["scheduled", "available", "pending", "retryable"])
    def test_a_waiting_job_ends_with_its_time(self, waiting: str, frozen_clock: Any) -> None:
        begun = frozen_clock.now
        start = (begun + dt.timedelta(hours=1)).isoformat()
        given = {"scheduled": {"scheduled_at": start}, "pending": {"pending": True}}.get(waiting, {})
        job = make(total_timeout=5, timeout=5, **given)
        if waiting == "retryable":
            claim()
            fail_one(Failure(job, ERROR, retry_after_ms=2000))
        assert (info(job)["state"], next_due()) == (
            waiting, begun + dt.timedelta(seconds=2 if waiting == "retryable" else 5)
        )  # fmt: skip
        frozen_clock.advance(seconds=5)
        assert fetch(Fetch(["default"])) == []
        apply_due()
        stored = info(job)
        assert (stored["state"], stored["dead_letter"], stored["wake_at"]) == ("discarded", True, None)
        assert {name: error(job)[name] for name in ("type", "code", "timeout_kind", "limit_seconds", "retryable")} == {
            "type": "total_timeout", "code": "total_timeout", "timeout_kind": "total", "limit_seconds": 5.0,
            "retryable": False,
        }  # fmt: skip
        assert events(job)[-1] == "job.discarded"
        (told,) = overruns(job)
        assert (told["type"], told["data"]["timeout_kind"], told["data"]["elapsed_seconds"]) == (
            "job.total_timeout", "total", 5.0
        )  # fmt: skip

    def test_it_beats_the_retries_of_a_running_job(self, frozen_clock: Any) -> None:
        job = make(total_timeout=10, timeout=10, retry={"max_attempts": 9})
        frozen_clock.advance(seconds=4)
        row = claim(worker_id="w")
        assert row["wake_at"] == frozen_clock.now + dt.timedelta(seconds=6)
        after(frozen_clock, 5)
        assert info(job)["state"] == "active"
        beat(Beat("w", [job]))
        after(frozen_clock, 1)
        assert (info(job)["state"], error(job)["type"]) == ("discarded", "total_timeout")
        with pytest.raises(InvalidStateTransition):
            ack_one(Ack(job, None, "w"))
        (change_told,) = [change(event) for event in log.read(job_id=job, types=["job.discarded"]).events]
        assert change_told == ("active", "discarded")

    def test_what_could_not_begin_again_in_time_is_discarded_at_once(self, frozen_clock: Any) -> None:
        job = make(total_timeout=10, timeout=10, retry={"max_attempts": 9})
        claim()
        frozen_clock.advance(seconds=4)
        fail_one(Failure(job, ERROR, retry_after_ms=6000))
        assert [one["type"] for one in jsontext.loads(info(job)["errors"])] == ["Boom", "total_timeout"]
        assert events(job)[-2:] == ["job.failed", "job.discarded"]
        changes = [change(event) for event in log.read(job_id=job).events]
        assert changes[-2:] == [("active", "discarded"), None]

    def test_what_can_is_retried(self) -> None:
        job = make(total_timeout=10, timeout=10)
        claim()
        fail_one(Failure(job, ERROR, retry_after_ms=9999))
        assert info(job)["state"] == "retryable"

    def test_whoever_retries_it_by_hand_has_time(self, frozen_clock: Any) -> None:
        job = make(total_timeout=5, timeout=5, enqueue_ttl=3)
        after(frozen_clock, 5)
        retry_one(job)
        assert claim()["id"] == job
        assert info(job)["deadline_at"] is None

    def test_it_goes_on_in_maintenance_mode(self, frozen_clock: Any) -> None:
        later = (frozen_clock.now + dt.timedelta(seconds=1)).isoformat()
        over = make(total_timeout=5, timeout=5, scheduled_at=later)
        waits = make(scheduled_at=later)
        start(reason="a test")
        after(frozen_clock, 5)
        assert [info(job)["state"] for job in (over, waits)] == ["discarded", "scheduled"]


class TestEnqueueTTL:
    @pytest.mark.parametrize("waiting", ["scheduled", "available", "pending"])
    def test_a_job_that_nobody_began_in_time_is_discarded(self, waiting: str, frozen_clock: Any) -> None:
        start = (frozen_clock.now + dt.timedelta(hours=1)).isoformat()
        given = {"scheduled": {"scheduled_at": start}, "pending": {"pending": True}}.get(waiting, {})
        job = make(enqueue_ttl=2, **given)
        after(frozen_clock, 1.999)
        assert info(job)["state"] == waiting
        frozen_clock.advance(seconds=0.001)
        assert fetch(Fetch(["default"])) == []
        apply_due()
        assert (info(job)["state"], info(job)["dead_letter"]) == ("discarded", True)
        assert (error(job)["type"], error(job)["timeout_kind"], error(job)["limit_seconds"]) == (
            "enqueue_ttl_expired", "enqueue_ttl", 2.0
        )  # fmt: skip
        (expired,) = log.read(job_id=job, types=["job.expired"]).events
        assert (expired["data"]["ttl_ms"], expired["data"]["previous_state"]) == (2000, waiting)
        assert [event["type"] for event in overruns(job)] == ["job.ttl_expired"]

    def test_a_staged_job_that_is_activated_keeps_its_time(self, frozen_clock: Any) -> None:
        job = make(enqueue_ttl=2, pending=True)
        activate_one(job)
        after(frozen_clock, 2)
        assert info(job)["state"] == "discarded"

    def test_a_job_that_began_once_waits_as_long_as_it_has_to(self, frozen_clock: Any) -> None:
        job = make(enqueue_ttl=2)
        assert claim(visibility_ms=5000)["wake_at"] == frozen_clock.now + dt.timedelta(seconds=5)
        after(frozen_clock, 5)
        assert (info(job)["state"], info(job)["wake_at"]) == ("available", None)
        assert claim()["id"] == job
        fail_one(Failure(job, ERROR, retry_after_ms=60_000))
        after(frozen_clock, 60)
        assert claim()["id"] == job

    def test_the_earlier_of_two_ends_counts(self, frozen_clock: Any) -> None:
        end = (frozen_clock.now + dt.timedelta(seconds=1)).isoformat()
        job = make(enqueue_ttl=2, expires_at=end)
        after(frozen_clock, 1)
        assert error(job)["type"] == "expired"
        assert overruns(job) == []


class TestHeartbeat:
    def test_silence_is_a_failure(self, frozen_clock: Any) -> None:
        job = make(heartbeat_timeout=2, retry={"max_attempts": 2, "initial_interval": "1s", "jitter": False})
        row = claim(worker_id="w")
        assert (row["visible_until"] - row["started_at"], row["lease_ms"]) == (dt.timedelta(seconds=2), 1_800_000)
        after(frozen_clock, 2)
        assert (info(job)["state"], info(job)["retry_delay_ms"]) == ("retryable", 1000)
        assert (error(job)["type"], error(job)["timeout_kind"], error(job)["elapsed_seconds"]) == (
            "stalled",
            "stalled",
            2,
        )
        assert events(job)[-2:] == ["job.failed", "job.retrying"]
        (told,) = overruns(job)
        assert (told["type"], told["data"]["timeout_kind"], change(told)) == ("job.stalled", "stalled", None)

    def test_silence_at_the_last_attempt_discards(self, frozen_clock: Any) -> None:
        job = make(heartbeat_timeout=2, retry={"max_attempts": 1})
        claim()
        after(frozen_clock, 2)
        assert (info(job)["state"], info(job)["dead_letter"]) == ("discarded", True)

    @pytest.mark.parametrize("how", ["beat", "long beat", "extend", "progress"])
    def test_who_is_heard_of_goes_on(self, how: str, frozen_clock: Any) -> None:
        job = make(heartbeat_timeout=2)
        claim(worker_id="w")
        for _ in range(3):
            after(frozen_clock, 1.5)
            match how:
                case "beat":
                    beat(Beat("w", [job]))
                case "long beat":
                    beat(Beat("w", [job], visibility_ms=60_000))
                case "extend":
                    assert extend(job, "w")
                case "progress":
                    report([ProgressReport(job, 50.0, "", worker_id="w")])
        assert info(job)["state"] == "active"
        after(frozen_clock, 2)
        assert error(job)["type"] == "stalled"

    def test_our_worker_leaves_it_to_the_handler(self, frozen_clock: Any) -> None:
        job = make(heartbeat_timeout=2)
        claim(worker_id="w")
        frozen_clock.advance(seconds=1)
        assert beat(Beat("w", [job], renew_own=False)).extended == []
        after(frozen_clock, 1)
        assert error(job)["type"] == "stalled"

    def test_a_shorter_reservation_comes_first(self, frozen_clock: Any) -> None:
        job = make(heartbeat_timeout=5)
        claim(visibility_ms=1000)
        after(frozen_clock, 1)
        assert (info(job)["state"], error(job)["type"]) == ("available", "visibility_timeout")
        (told,) = overruns(job)
        assert change(told) == ("active", "available")


class TestGrace:
    def test_the_server_waits_with_its_reclaim(self, frozen_clock: Any) -> None:
        job = make(timeout=2, grace_period=3)
        row = claim(worker_id="w")
        assert row["timeout_at"] - row["started_at"] == dt.timedelta(seconds=5)
        after(frozen_clock, 4)
        assert info(job)["state"] == "active"
        after(frozen_clock, 1)
        assert (error(job)["timeout_kind"], error(job)["limit_seconds"], error(job)["elapsed_seconds"]) == (
            "execution", 2.0, 5.0
        )  # fmt: skip

    def test_a_worker_that_answers_in_time_is_heard(self, frozen_clock: Any) -> None:
        job = make(timeout=2, grace_period=3)
        claim(worker_id="w")
        after(frozen_clock, 4)
        assert ack_one(Ack(job, None, "w"))["state"] == "completed"


def test_batches_carry_them_too(frozen_clock: Any) -> None:
    given = {"total_timeout_ms": 9000, "timeout_ms": 9000, "enqueue_ttl_ms": 1500, "heartbeat_timeout_ms": 700}
    pushed = push([{"type": "test.job", "args": [], "options": {**given, "grace_period_ms": 50}} for _ in range(3)])
    for outcome in pushed:
        row = info(outcome.row["id"])
        assert (row["deadline_at"] - row["created_at"], row["start_by"] - row["created_at"]) == (
            dt.timedelta(seconds=9), dt.timedelta(seconds=1.5)
        )  # fmt: skip
        assert (row["heartbeat_ms"], row["grace_ms"]) == (700, 50)
    frozen_clock.advance(milliseconds=1)  # the three were enqueued one after the other
    rows = fetch(Fetch(["default"], count=3))
    assert {row["visible_until"] - row["started_at"] for row in rows} == {dt.timedelta(milliseconds=700)}
    assert {row["timeout_at"] - row["started_at"] for row in rows} == {dt.timedelta(milliseconds=9050)}
