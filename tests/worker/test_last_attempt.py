"""`context.is_last_attempt` says what the server will decide, whatever befell the runs before."""

from __future__ import annotations

import datetime as dt

import pytest

from django_ojs import JobContext, Retry, Snooze, clock, job
from django_ojs.client.context import CONTEXT_COLUMNS
from django_ojs.jobs.fetch import Fetch, fetch
from django_ojs.jobs.finish import Failure, fail, requeue
from django_ojs.models import Job
from django_ojs.registry import registry
from django_ojs.testing import WorkerJobs, job_context
from django_ojs.workerregistry.dead import hand_back
from django_ojs.workerregistry.deaths import Death

pytestmark = pytest.mark.django_db


def claimed() -> JobContext:
    Job.objects.filter(state="retryable").update(due_at=clock.now(), wake_at=clock.now())
    (row,) = fetch(Fetch(["default"], worker_id="w", check_worker=False, columns=CONTEXT_COLUMNS, raw=True))
    return JobContext(row)


def end_by(context: JobContext, how: str) -> None:
    """Let a run end in a way that is not the handler's failure, and that costs no attempt."""
    match how:
        case "snoozed":
            fail([Failure(context.id, snooze_ms=0)])
        case "given back before it began":
            requeue([context.id], unrun=[context.id])
        case "the database went away":
            fail([Failure(context.id, requeue=True, outage="gone")])
        case "killed alone" | "killed beside another":
            ran = {(context.id, context.attempt)} | ({(context.id, 99)} if how == "killed beside another" else set())
            hand_back("w", death=Death("SIGKILL", running=frozenset(ran)))
        case _:
            raise AssertionError(how)


@pytest.mark.parametrize(
    "how",
    ["snoozed", "given back before it began", "the database went away", "killed alone", "killed beside another"],
)
def test_a_run_that_costs_no_attempt_does_not_bring_the_last_one_nearer(how: str) -> None:
    with registry.isolated():

        @job("last.attempt", retry={"max_attempts": 2, "initial_interval": "1s", "jitter": False})
        def handler() -> None: ...

        handle = handler.enqueue()
    told = []
    for ends in (how, "failed", how, "failed"):
        context = claimed()
        told.append((context.attempt, context.is_last_attempt))
        if ends == "failed":
            fail([Failure(context.id, {"type": "X", "message": "no"})])
        else:
            end_by(context, ends)
    assert told == [(1, False), (2, False), (3, True), (4, True)]
    assert handle.refresh().state == "discarded"


def test_a_handler_is_told_at_its_last_attempt_and_only_then(ojs_worker: WorkerJobs) -> None:
    told: list[tuple[int, bool]] = []

    with registry.isolated():

        @job("last.attempt", retry={"max_attempts": 2})
        def handler(context: JobContext) -> None:
            told.append((context.attempt, context.is_last_attempt))
            raise Snooze("1m") if context.attempt == 1 else Retry("again", after="1h")

        handle = handler.enqueue()
        assert handle.next_attempt_at is None
        before = clock.now()
        ojs_worker.drain()
        due = handle.refresh().next_attempt_at
        assert due is not None
        assert dt.timedelta(0) < due - before
        ojs_worker.drain(with_scheduled=True)
    assert told == [(1, False), (2, False), (3, True)]
    assert handle.refresh().state == "discarded"
    assert handle.next_attempt_at is None


def test_a_test_of_a_handler_says_which_attempt_it_is() -> None:
    assert [job_context(attempt=number).is_last_attempt for number in (1, 2, 3)] == [False, False, True]
    assert job_context(max_attempts=1).is_last_attempt
    assert job_context(max_attempts=0).is_last_attempt


def test_a_delayed_job_says_when_it_may_start() -> None:
    with registry.isolated():

        @job("last.later")
        def later() -> None: ...

        at = clock.now() + dt.timedelta(hours=1)
        due = later.options(at=at).enqueue().next_attempt_at
        assert due is not None
        assert abs(due - at) < dt.timedelta(milliseconds=2)
        assert later.options(pending=True).enqueue().next_attempt_at is None
