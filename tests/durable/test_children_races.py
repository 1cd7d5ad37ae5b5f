"""No parent sleeps on when its children have ended, whatever comes first (`workflows/parents.py`).

Each test runs two sides as `test_event_races` does: one stops before each of its statements in turn.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.db import connection

from django_ojs import ChildFailed, JobContext, job
from django_ojs.client.directives import StepBoundary, Suspended
from django_ojs.client.steps import Durable, StepLog
from django_ojs.jobs import timers
from django_ojs.jobs.cancel import cancel
from django_ojs.jobs.fetch import Fetch, fetch
from django_ojs.jobs.finish import Failure, ack, fail
from django_ojs.jobs.push import push
from django_ojs.models import Job, JobStep, Workflow, WorkflowStart, WorkflowStep
from django_ojs.models.job import JobRow
from django_ojs.registry import registry
from django_ojs.store.values import Ack
from django_ojs.worker.steps import StoredSteps
from django_ojs.workflows import children
from tests.durable.test_event_races import Side
from tests.waiting import eventually
from tests.worker.conftest import WorkerThread, _forget_queues, drain, handlers, start_worker

__all__ = ["_forget_queues", "drain", "handlers", "start_worker"]  # fixtures
pytestmark = [pytest.mark.slow, pytest.mark.django_db(transaction=True)]  # a whole flow for each statement

#: More statements than either side makes.
MOST = 60
PARENT, CHILD = "parent.race", "child.race"


@pytest.fixture
def child() -> Iterator[Any]:
    with registry.isolated():

        @job(CHILD)
        def handler(number: int) -> int:
            return number

        yield handler


def claim(job_type: str) -> JobRow | None:
    timers.apply_due()
    rows = fetch(Fetch(["default"], count=1, worker_id=job_type, types=[job_type], check_worker=False))
    return rows[0] if rows else None


def claimed_parent() -> JobRow:
    push([{"type": PARENT, "args": []}])
    row = claim(PARENT)
    assert row is not None
    return row


def handle(row: JobRow, child: Any) -> Any:
    """What the handler of the parent does in one run."""
    context = JobContext(row)
    context.record_steps(StepLog(StoredSteps(row), Durable("", "restart"), row["attempt"], sequential=True))
    return context.run(child.s(7))


def report(row: JobRow, end: Suspended) -> None:
    fail([Failure(row["id"], None, row["worker_id"], row["attempt"], snooze_ms=end.delay_ms, waits=end.waits)])


def run(row: JobRow, child: Any) -> Any:
    """What a worker does with the parent: the result, or how it goes to sleep."""
    try:
        return handle(row, child)
    except Suspended as end:
        report(row, end)
        return end


def end_child() -> bool:
    """What another worker does with the child, if it is there."""
    row = claim(CHILD)
    if row is None:
        return False
    ack([Ack(row["id"], "42", CHILD, row["attempt"], in_workflow=True)])
    return True


def check(child: Any) -> None:
    """The child has ended, so the parent is to run again, or has its result."""
    children.follow_up()
    assert Workflow.objects.get().awaited is None
    assert JobStep.objects.get().ended_at is not None
    row = claim(PARENT)
    assert row is not None, Job.objects.get(type=PARENT).state
    assert handle(row, child) == 42


@contextlib.contextmanager
def fresh() -> Iterator[None]:
    yield
    for model in (JobStep, WorkflowStart, WorkflowStep, Workflow, Job):
        model.objects.all()._raw_delete(connection.alias)


def test_a_child_that_ends_before_any_statement_of_its_parent_is_not_missed(child: Any) -> None:
    ends = set()
    for number in range(1, MOST):
        with fresh():
            row = claimed_parent()
            other = Side(end_child)
            mine = Side(lambda row=row: run(row, child), stop_before=number, meanwhile=other.run_until_blocked)  # type: ignore[misc]
            mine.start()
            result = mine.end()
            if other.ident is None:
                break
            ends.add((other.end(), Job.objects.get(type=PARENT).state))
            if result == 42:  # it ended before the parent looked what is recorded
                continue
            if not Job.objects.filter(type=CHILD, state="completed").exists():
                assert end_child()
            check(child)
    else:
        pytest.fail("The run makes more statements than this test stops at.")
    assert number > 8
    assert (False, "retryable") in ends  # it came before there was a child
    assert (True, "active") in ends  # it ended before the parent looked
    assert (True, "available") in ends  # it ended before the parent slept


def test_a_parent_that_sleeps_before_any_statement_of_its_last_child_is_woken(child: Any) -> None:
    for number in range(1, MOST):
        with fresh():
            row = claimed_parent()
            with pytest.raises(Suspended) as found:
                handle(row, child)
            other = Side(lambda row=row, end=found.value: report(row, end))  # type: ignore[misc]
            mine = Side(end_child, stop_before=number, meanwhile=other.run_until_blocked)
            mine.start()
            assert mine.end()
            if other.ident is None:
                break
            other.end()
            check(child)
    else:
        pytest.fail("The end of the child makes more statements than this test stops at.")
    assert number > 5


def test_a_parent_that_is_cancelled_before_any_statement_of_its_run_leaves_no_child_behind(child: Any) -> None:
    for number in range(1, MOST):
        with fresh():
            row = claimed_parent()

            def act(row: JobRow = row) -> Any:
                with contextlib.suppress(StepBoundary):
                    return run(row, child)

            other = Side(lambda row=row: cancel([row["id"]]))  # type: ignore[misc]
            mine = Side(act, stop_before=number, meanwhile=other.run_until_blocked)
            mine.start()
            mine.end()
            if other.ident is None:
                break
            other.end()
            children.follow_up()
            assert set(Job.objects.values_list("state", flat=True)) == {"cancelled"}
            assert not Workflow.objects.filter(state="running").exists()
    else:
        pytest.fail("The run makes more statements than this test stops at.")


def test_a_child_that_ends_while_its_parent_is_followed_up(child: Any) -> None:
    for number in range(1, MOST):
        with fresh():
            row = claimed_parent()
            run(row, child)
            cancel([row["id"]])
            other = Side(end_child)
            mine = Side(children.follow_up, stop_before=number, meanwhile=other.run_until_blocked)
            mine.start()
            mine.end()
            if other.ident is None:
                break
            other.end()
            children.follow_up()
            assert Job.objects.get(type=CHILD).state in ("cancelled", "completed")
            assert Workflow.objects.get().state in ("cancelled", "completed")
            assert children.follow_up() == 0
    else:
        pytest.fail("It makes more statements than this test stops at.")


def test_many_parents_in_a_real_worker(start_worker: Callable[..., WorkerThread]) -> None:
    """Children end while their parents are about to sleep; some fail, some have children of their own."""

    @job("many.child", retry={"max_attempts": 1})
    def small(number: int) -> int:
        if number % 5 == 4:
            raise ValueError(number)
        return number

    @job("many.middle", durable=True)
    def middle(context: JobContext, number: int) -> list[int]:
        return context.run_all([small.s(5 * number), small.s(5 * number + 1)], limit=1)

    @job("many.parent", durable=True)
    def handler(context: JobContext, number: int) -> list[Any]:
        first = context.run_all([middle.s(number), small.s(number)], raise_errors=False)
        return [first[0], -1 if isinstance(first[1], ChildFailed) else first[1]]

    count = 20
    handles = [handler.enqueue(number) for number in range(count)]
    worker = start_worker()
    eventually(lambda: Job.objects.filter(type="many.parent", state="completed").count() == count)
    worker.stop()
    wanted = [[[5 * number, 5 * number + 1], -1 if number % 5 == 4 else number] for number in range(count)]
    assert [one.refresh().result for one in handles] == wanted
    assert Job.objects.count() == count * 5
    assert not Workflow.objects.filter(awaited=True).exists()
