"""Two deciders at the same moment, a decision and a timeout, a decision and a cancellation: one counts, and the other
is told so."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from django.db import connection, transaction
from django.db.models import QuerySet

from django_ojs import ApprovalTimeout, JobContext, clock
from django_ojs.client.directives import Suspended
from django_ojs.client.steps import Durable, StepLog
from django_ojs.errors import Conflict
from django_ojs.jobs import approvals
from django_ojs.jobs.cancel import cancel
from django_ojs.jobs.fetch import Fetch, fetch
from django_ojs.jobs.finish import Failure, fail
from django_ojs.models import Approval, Event, Job, JobStep
from django_ojs.models.job import JobRow
from django_ojs.worker.steps import StoredSteps
from tests.durable.test_event_races import MOST, Side, claimed, fresh

pytestmark = pytest.mark.django_db(transaction=True)


def run(row: JobRow, timeout: str | None = None) -> Any:
    """What a worker does with a handler that only asks: the decision, or None where the job waits."""
    context = JobContext(row)
    context.record_steps(StepLog(StoredSteps(row), Durable("", "restart"), row["attempt"], sequential=True))
    try:
        return context.wait_for_approval("ask", timeout=timeout)
    except Suspended as end:
        fail([Failure(row["id"], None, row["worker_id"], row["attempt"], snooze_ms=end.delay_ms, waits=end.waits)])
        return None


def again() -> JobRow:
    (row,) = fetch(Fetch(["default"], count=1, worker_id="w", check_worker=False))
    return row


def decide(name: str = "user:anna", *, approved: bool = True) -> Any:
    """What happens to the only approval, or who was first."""
    who = approvals.Decider(name, may_all=True)
    try:
        return approvals.decide(Approval.objects.get().pk, approved, who).decided_by
    except Conflict as error:
        return error


def forget() -> None:
    Approval.objects.all().delete()
    Event.objects.all()._raw_delete(connection.alias)


def test_of_two_deciders_one_counts_and_the_others_learn_who() -> None:
    for _ in range(5):
        with fresh():
            run(claimed())
            begin = threading.Barrier(4)

            def act(number: int, begin: threading.Barrier = begin) -> Any:
                begin.wait(60)
                return decide(f"user:{number}", approved=bool(number % 2))

            sides = [Side(lambda number=number: act(number)) for number in range(4)]  # type: ignore[misc]
            for side in sides:
                side.start()
            ends = [side.end() for side in sides]
            (first,) = [end for end in ends if isinstance(end, str)]
            others = [end for end in ends if isinstance(end, Conflict)]
            assert len(others) == 3
            assert {end.details["decided_by"] for end in others} == {first}
            assert Event.objects.filter(type="approval.decided").count() == 1
            assert run(again()).by == first
            forget()


def test_a_decision_that_comes_before_any_statement_of_the_run_is_not_lost() -> None:
    """The approval is there with its step; the job has not given its slot back, or just has."""
    ends = set()
    for number in range(1, MOST):
        with fresh():
            row = claimed()
            found: list[Any] = []

            def someone() -> Any:
                return decide() if Approval.objects.exists() else None

            other = Side(someone)

            mine = Side(lambda row=row: run(row), stop_before=number, meanwhile=other.run_until_blocked)  # type: ignore[misc]
            mine.start()
            found.append(mine.end())
            if other.ident is None:
                assert number > 5
                break
            decided = other.end()
            assert found == [None]
            assert Job.objects.get().state == ("retryable" if decided is None else "available")
            ends.add(decided)
            if decided is not None:
                assert run(again()).by == decided
            forget()
    else:
        pytest.fail("The run makes more statements than this test stops at.")
    assert ends == {None, "user:anna"}


def test_of_a_decision_and_a_timeout_one_counts() -> None:
    ends = set()
    for number in range(1, MOST):
        with fresh():
            run(claimed(), "1h")
            past = clock.now(connection.alias)
            JobStep.objects.update(due_at=past)
            Approval.objects.update(due_at=past, next_at=past)
            other = Side(decide)

            mine = Side(
                lambda: approvals.tend(using=connection.alias), stop_before=number, meanwhile=other.run_until_blocked
            )
            mine.start()
            count = mine.end()
            if other.ident is None:
                break
            decided = other.end()
            if isinstance(decided, str) and count == 0:
                ends.add("decided")
                assert run(again()).by == decided
            else:
                assert isinstance(decided, Conflict), (decided, count)
                assert decided.details["current_state"] == "timed_out"
                ends.add("timed out")
                with pytest.raises(ApprovalTimeout):
                    run(again())
            assert Event.objects.filter(type="approval.decided").count() == 1
            forget()
    else:
        pytest.fail("The scheduler makes more statements than this test stops at.")
    assert ends == {"decided", "timed out"}


def test_of_a_decision_and_a_cancellation_the_first_counts() -> None:
    ends = set()
    for number in range(1, MOST):
        with fresh():
            row = claimed()
            run(row)
            other = Side(decide)

            mine = Side(lambda row=row: cancel([row["id"]]), stop_before=number, meanwhile=other.run_until_blocked)  # type: ignore[misc]
            mine.start()
            mine.end()
            if other.ident is None:
                break
            decided = other.end()
            assert Job.objects.get().state == "cancelled"
            state = Approval.objects.get().state
            if isinstance(decided, str):
                assert state == "approved"
            else:
                assert (state, decided.details["current_state"]) == ("closed", "closed")
            ends.add(state)
            forget()
    else:
        pytest.fail("The cancellation makes more statements than this test stops at.")
    assert ends == {"approved", "closed"}


@pytest.mark.skipif(connection.vendor == "sqlite", reason="SQLite has one writer at a time.")
def test_the_scheduler_closes_nothing_of_a_job_that_is_just_being_retried() -> None:
    """Its run may ask again before the approval is closed, and would wait for a decision that nobody can take."""
    with fresh():
        row = claimed()
        run(row)
        QuerySet.update(Job.objects.all(), state="discarded", finished_at=clock.now(), due_at=None, wake_at=None)
        with transaction.atomic():
            Job.objects.select_for_update().get()
            other = Side(lambda: approvals.sweep(using=connection.alias))
            other.start()
            assert other.end() == 0
        assert Approval.objects.get().state == "open"
        assert approvals.sweep(using=connection.alias) == 1
        assert Approval.objects.get().state == "closed"
        forget()
