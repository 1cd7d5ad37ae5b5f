"""The attempts of a job: each outcome, who ran it and with which release, rounds, the bound, and what they cost."""

from __future__ import annotations

import datetime as dt
import io
import json
import threading
import uuid
from collections.abc import Callable
from typing import Any

import pytest
from django.core.management import call_command
from django.db import connection
from django.test.utils import CaptureQueriesContext

from django_ojs import get_job, retention
from django_ojs.errors import InvalidStateTransition, OJSError
from django_ojs.jobs import attempts
from django_ojs.jobs.attempts import Attempt
from django_ojs.jobs.cancel import cancel_one
from django_ojs.jobs.delete import delete_ended
from django_ojs.jobs.fetch import Fetch, fetch
from django_ojs.jobs.finish import Failure, ack, fail, requeue
from django_ojs.jobs.push import push
from django_ojs.jobs.retry import retry_one
from django_ojs.jobs.timers import apply_due
from django_ojs.models import Job, JobAttempt, Worker, WorkerRelease
from django_ojs.models.job import JobRow
from django_ojs.rules.ids import new_job_id
from django_ojs.store.values import Ack
from django_ojs.workerregistry import releases
from django_ojs.workerregistry.dead import hand_back, rescue_dead_workers
from django_ojs.workerregistry.deaths import Death
from django_ojs.workerregistry.heartbeat import Beat, beat
from tests.conftest import FrozenClock

pytestmark = pytest.mark.django_db(transaction=True)


def job(**members: Any) -> dict[str, Any]:
    return {"type": "report.make", "args": [], "retry": {"max_attempts": 3}} | members


def pushed(**members: Any) -> uuid.UUID:
    (item,) = push([job(**members)])
    assert item.row is not None
    pk: uuid.UUID = item.row["id"]
    return pk


def claimed(worker: str = "w", **how: Any) -> JobRow:
    (row,) = fetch(Fetch(["default"], worker_id=worker, check_worker=False, **how))
    return row


def failed(row: JobRow, message: str = "no", **more: Any) -> None:
    error = {"message": message, **more}
    (outcome,) = fail([Failure(row["id"], error, row["worker_id"], row["attempt"], retry_after_ms=0)])
    assert isinstance(outcome, dict), outcome


def of(pk: uuid.UUID) -> list[Attempt]:
    (row,) = Job.objects.filter(pk=pk).rows(attempts.COLUMNS)
    return attempts.of_job(row).attempts


def told(pk: uuid.UUID) -> list[tuple[int, int, str]]:
    return [(one.round, one.attempt, one.outcome) for one in of(pk)]


def test_a_job_that_succeeds_at_once_has_its_attempt_and_no_row(frozen_clock: FrozenClock) -> None:
    pk = pushed()
    assert of(pk) == []
    row = claimed()
    (running,) = of(pk)
    assert (running.outcome, running.ended_at, running.duration_ms, running.worker_id) == ("running", None, None, "w")
    frozen_clock.advance(seconds=1.5)
    ack([Ack(pk, '"done"', "w", row["attempt"])])
    (completed,) = of(pk)
    assert (completed.outcome, completed.duration_ms, completed.error) == ("completed", 1500, None)
    assert (completed.number, completed.started_at) == ((0, 1), running.started_at)
    assert not JobAttempt.objects.exists()


def test_each_failure_is_kept_with_its_error_and_traceback(frozen_clock: FrozenClock) -> None:
    pk = pushed()
    for number in (1, 2):
        row = claimed(f"w{number}")
        frozen_clock.advance(milliseconds=number * 100)
        failed(row, f"no {number}", backtrace=["a.py:1", "b.py:2"], type="ValueError")
    ack([Ack(pk, None, claimed("w3")["worker_id"])])
    third, second, first = of(pk)
    assert (third.outcome, third.worker_id, third.error) == ("completed", "w3", None)
    assert (first.worker_id, first.duration_ms, first.outcome) == ("w1", 100, "failed")
    assert (second.worker_id, second.duration_ms, second.outcome) == ("w2", 200, "failed")
    assert second.error is not None
    assert (second.error["type"], second.error["message"]) == ("ValueError", "no 2")
    assert second.error["backtrace"] == ["a.py:1", "b.py:2"]
    assert second.error["attempt"] == 2


def test_the_last_failure_is_kept_as_those_before() -> None:
    pk = pushed(retry={"max_attempts": 1})
    failed(claimed())
    assert Job.objects.get(pk=pk).state == "discarded"
    assert told(pk) == [(0, 1, "failed")]


def test_what_is_handed_back_is_released_and_what_is_put_off_is_snoozed() -> None:
    pk = pushed()
    requeue([claimed()["id"]])
    fail([Failure(pk, worker_id="w", attempt=claimed()["attempt"], requeue=True)])
    row = claimed()
    fail([Failure(pk, worker_id="w", attempt=row["attempt"], snooze_ms=0)])
    claimed()
    assert told(pk) == [(0, 4, "running"), (0, 3, "snoozed"), (0, 2, "released"), (0, 1, "released")]
    assert all(one.error is None for one in of(pk))


def test_a_cancelled_attempt_and_a_job_that_was_cancelled_while_it_waited() -> None:
    runs, waits = pushed(), pushed(scheduled_at="2099-01-01T00:00:00Z")
    claimed()
    cancel_one(runs)
    cancel_one(waits)
    assert (told(runs), told(waits)) == ([(0, 1, "cancelled")], [])


@pytest.mark.parametrize("way", ["reservation", "timeout", "silence", "total"])
def test_what_time_ends_is_lost_or_timed_out(way: str, frozen_clock: FrozenClock) -> None:
    members: dict[str, Any] = {
        "reservation": {"visibility_timeout": 5}, "timeout": {"timeout": 5}, "silence": {"heartbeat_timeout": 5},
        "total": {"total_timeout": 5},
    }[way]  # fmt: skip
    pk = pushed(**members)
    claimed()
    frozen_clock.advance(seconds=6)
    assert apply_due() == 1
    (one,) = of(pk)
    outcome = {"reservation": "lost", "timeout": "timed_out", "silence": "lost", "total": "timed_out"}[way]
    error = {
        "reservation": "visibility_timeout", "timeout": "timeout", "silence": "stalled", "total": "total_timeout"
    }[way]  # fmt: skip
    assert (one.outcome, one.duration_ms) == (outcome, 6000)
    assert one.error is not None
    assert one.error["type"] == error


def test_a_failure_that_leaves_no_time_for_another_attempt_is_a_failure() -> None:
    pk = pushed(total_timeout=60, retry={"max_attempts": 3, "initial_interval": "1h", "jitter": False})
    fail([Failure(claimed()["id"], {"message": "card refused"})])
    (one,) = of(pk)
    assert one.error is not None
    assert (Job.objects.get(pk=pk).state, one.outcome, one.error["message"]) == ("discarded", "failed", "card refused")


def test_a_silent_worker_has_lost_what_it_held(frozen_clock: FrozenClock) -> None:
    pk = pushed()
    beat(Beat("w", incarnation="one"))
    claimed()
    frozen_clock.advance(seconds=120)
    assert rescue_dead_workers() == 1
    (one,) = of(pk)
    assert one.error is not None
    assert (one.outcome, one.error["type"]) == ("lost", "worker_death")


def test_of_a_worker_that_died_what_ran_is_lost_and_what_waited_is_released() -> None:
    first, second, third = pushed(), pushed(), pushed()
    rows = fetch(Fetch(["default"], count=3, worker_id="w", check_worker=False))
    hand_back("w", death=Death("SIGKILL", running=frozenset((row["id"], row["attempt"]) for row in rows[:2])))
    assert [told(pk)[0][2] for pk in (first, second, third)] == ["lost", "lost", "released"]
    (one,) = of(first)
    assert one.error is not None
    assert one.error["message"] == "The worker 'w' was killed by SIGKILL while it ran this job."
    assert Job.objects.get(pk=first).errors is None, "nobody knows whether it is to blame"


def test_a_retry_by_hand_begins_another_round_and_keeps_the_one_before() -> None:
    pk = pushed(retry={"max_attempts": 2})
    for _ in range(2):
        failed(claimed())
    retry_one(pk)
    failed(claimed())
    ack([Ack(pk, None, claimed()["worker_id"])])
    assert told(pk) == [(1, 2, "completed"), (1, 1, "failed"), (0, 2, "failed"), (0, 1, "failed")]


def test_the_release_is_that_of_the_worker_then_also_when_it_has_gone() -> None:
    pk = pushed()
    beat(Beat("w", info={"release": "v1"}))
    failed(claimed())
    Worker.objects.all().delete()
    beat(Beat("w", info={"release": "v2"}))
    ack([Ack(pk, None, claimed()["worker_id"])])
    Worker.objects.all().delete()
    beat(Beat("w", info={"release": "v3"}))
    assert [one.release for one in of(pk)] == ["v2", "v1"]


def test_which_worker_ran_which_release_is_forgotten_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(3):
        beat(Beat(f"w{number}", info={"release": "v1"}))
    monkeypatch.setattr(releases, "WORKERS_KEPT", 2)
    retention.prune()
    assert list(WorkerRelease.objects.order_by("pk").values_list("worker_id", flat=True)) == ["w1", "w2"]


def test_a_job_keeps_so_many_and_loses_the_oldest(settings: Any) -> None:
    settings.OJS = {"ATTEMPT_MAX_COUNT": 3}
    pk, other = pushed(retry={"max_attempts": 5}), pushed(queue="elsewhere")
    for _ in range(5):
        failed(claimed())
    assert told(pk) == [(0, 5, "failed"), (0, 4, "failed"), (0, 3, "failed")]
    retry_one(pk)
    for _ in range(2):
        failed(claimed())
    assert told(pk) == [(1, 2, "failed"), (1, 1, "failed"), (0, 5, "failed")]
    assert JobAttempt.objects.count() == 3
    assert told(other) == []
    settings.OJS = {"ATTEMPT_MAX_COUNT": 2}
    assert told(pk) == [(1, 2, "failed"), (1, 1, "failed")]


@pytest.mark.parametrize("off", [{"ATTEMPT_MAX_COUNT": 0}, {"EXECUTION_HISTORY": False}])
def test_switched_off_none_is_kept(off: dict[str, Any], settings: Any) -> None:
    settings.OJS = {**off}
    pk = pushed()
    failed(claimed())
    assert told(pk) == []
    claimed()
    assert told(pk) == [(0, 2, "running")]


def test_pages_go_by_the_number_of_the_attempt() -> None:
    pk = pushed(retry={"max_attempts": 9})
    for _ in range(4):
        failed(claimed())
    claimed()
    (row,) = Job.objects.filter(pk=pk).rows(attempts.COLUMNS)
    first = attempts.of_job(row, limit=2)
    assert ([one.attempt for one in first.attempts], first.total, first.has_more) == ([5, 4], 5, True)
    second = attempts.of_job(row, before=first.attempts[-1].number, limit=2)
    assert ([one.attempt for one in second.attempts], second.has_more) == ([3, 2], True)
    last = attempts.of_job(row, before=second.attempts[-1].number, limit=2)
    assert ([one.attempt for one in last.attempts], last.has_more) == ([1], False)
    assert [one.attempt for one in attempts.of_job(row, offset=1, limit=3).attempts] == [4, 3, 2]
    assert attempts.of_job(row, offset=9, limit=3).attempts == []


def test_they_go_with_the_job(frozen_clock: FrozenClock) -> None:
    by_hand, by_age = pushed(retry={"max_attempts": 1}), pushed(retry={"max_attempts": 1})
    for _ in range(2):
        failed(claimed())
    delete_ended([by_hand])
    assert list(JobAttempt.objects.values_list("job_id", flat=True)) == [by_age]
    frozen_clock.advance(days=4000)
    retention.prune()
    assert not JobAttempt.objects.exists()


def test_two_reports_of_one_attempt_leave_one() -> None:
    pk = pushed()
    row = claimed()
    failed(row)
    (late,) = fail([Failure(pk, {"message": "late"}, "w", row["attempt"])])
    assert isinstance(late, InvalidStateTransition)
    assert told(pk) == [(0, 1, "failed")]


def test_the_handle_of_a_job_tells_them() -> None:
    pk = pushed()
    failed(claimed())
    handle = get_job(pk)
    (one,) = handle.attempts()
    assert (one.outcome, one.started_at.tzinfo) == ("failed", dt.UTC)
    claimed()
    assert [one.outcome for one in handle.attempts()] == ["running", "failed"]


def test_jobs_that_do_not_fail_cost_the_same_without_it(settings: Any) -> None:
    def cost() -> list[int]:
        pk = pushed()
        counts = []
        for act in (claimed, lambda: ack([Ack(pk, None, "w")])):
            with CaptureQueriesContext(connection) as captured:
                act()
            counts.append(len(captured))
        return counts

    cost()
    with_it = cost()
    settings.OJS = {"EXECUTION_HISTORY": False}
    assert cost() == with_it


def test_the_command_prints_them() -> None:
    pk = pushed()
    failed(claimed("w1"), "card refused", type="ValueError")
    out = io.StringIO()
    call_command("ojs_jobs", "attempts", str(pk), stdout=out)
    heading, line = out.getvalue().splitlines()
    assert heading.split()[:3] == ["ROUND", "ATTEMPT", "OUTCOME"]
    assert line.split()[:3] == ["0", "1", "failed"]
    assert line.endswith("ValueError: card refused")
    out = io.StringIO()
    call_command("ojs_jobs", "attempts", str(pk), "--json", stdout=out)
    (one,) = json.loads(out.getvalue())
    assert (one["worker_id"], one["error"]["message"], one["ended_at"] > one["started_at"][:10]) == (
        "w1", "card refused", True,
    )  # fmt: skip
    out = io.StringIO()
    call_command("ojs_jobs", "attempts", str(pushed()), stdout=out)
    assert out.getvalue() == "No attempts of this job are known.\n"


def test_of_reports_at_the_same_moment_one_is_the_end_of_the_attempt() -> None:
    """Each attempt is told once, whoever reports what of it: its failure, its end, its cancellation, its release."""
    for number in range(6):
        pk = pushed(id=str(new_job_id()))
        row = claimed()
        start = threading.Barrier(4)

        def act(verb: Callable[[], Any], start: threading.Barrier = start) -> None:
            try:
                start.wait(30)
                verb()
            except OJSError:
                pass
            finally:
                connection.close()

        verbs: list[Callable[[], Any]] = [
            lambda pk=pk, row=row: fail([Failure(pk, {"message": "a"}, "w", row["attempt"])]),  # type: ignore[misc]
            lambda pk=pk, row=row: ack([Ack(pk, None, "w", row["attempt"])]),  # type: ignore[misc]
            lambda pk=pk: cancel_one(pk),  # type: ignore[misc]
            lambda pk=pk: requeue([pk], worker_id="w"),  # type: ignore[misc]
        ]  # fmt: skip
        threads = [threading.Thread(target=act, args=(verb,)) for verb in verbs]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        (one,) = of(pk)
        job = Job.objects.get(pk=pk)
        expected = {"retryable": "failed", "completed": "completed", "cancelled": ("cancelled", "failed", "released")}
        assert one.attempt == 1
        assert one.outcome in (expected.get(job.state) or "released"), (number, job.state)
        Job.objects.filter(pk=pk).delete()
