"""Durable jobs in real workers: crashes at every point, drains, lost reservations, two runs at once."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import Group
from django.db import OperationalError, connection, transaction

from django_ojs import JobContext, StepTimeout, clock, job
from django_ojs.jobs import steps
from django_ojs.jobs.cancel import cancel_one
from django_ojs.jobs.fetch import Fetch, fetch
from django_ojs.jobs.push import push
from django_ojs.models import Job, JobStep
from django_ojs.rules.steps import Step, StepExists, StepKind
from django_ojs.store.steps import Holder
from tests.waiting import eventually
from tests.worker.conftest import WorkerThread, _forget_queues, drain, handlers, start_worker

__all__ = ["_forget_queues", "drain", "handlers", "start_worker"]  # fixtures
pytestmark = pytest.mark.django_db(transaction=True)

Start = Callable[..., WorkerThread]


@pytest.mark.parametrize("kept", [False, True], ids=["raised", "kept by the handler"])
def test_a_drain_ends_a_durable_handler_before_its_next_step_and_costs_no_attempt(
    start_worker: Start, kept: bool
) -> None:
    inside, on = threading.Event(), threading.Event()

    @job("durable.long", durable=True, retry={"max_attempts": 1})
    def handler(context: JobContext) -> str:
        context.step("one", int)
        if not inside.is_set():
            inside.set()
            on.wait(60)
        try:
            context.step("two", int)
        except BaseException:
            if not kept:
                raise
        return "done"

    handle = handler.enqueue()
    first = start_worker(scheduler=False)
    assert inside.wait(60)
    first.worker.stop()
    eventually(lambda: first.worker.pool.running()[0].interruption)
    on.set()
    first.wait()
    row = Job.objects.get(pk=handle.id)
    assert (row.state, row.attempt, row.uncounted, row.errors) == ("available", 1, 1, None)
    assert list(JobStep.objects.values_list("name", flat=True)) == ["one"]
    start_worker(until_empty=True, scheduler=False).wait()
    assert handle.refresh().result == "done"


undone: list[str] = []


def test_the_scheduler_has_a_worker_undo_a_job_that_is_cancelled(start_worker: Start) -> None:
    undone.clear()
    inside, on = threading.Event(), threading.Event()

    @job("durable.undone", durable=True, visibility_timeout="1s")
    def handler(context: JobContext) -> None:
        context.on_failure(_undo, "one")
        inside.set()
        on.wait(60)

    handle = handler.enqueue()
    start_worker()
    assert inside.wait(60)
    cancel_one(handle.id)
    on.set()
    eventually(lambda: undone == ["one"])
    eventually(lambda: Job.objects.get(parent_id=handle.id).state == "completed")


def _undo(what: str) -> None:
    undone.append(what)


def test_a_run_whose_job_another_worker_has_does_not_go_on(start_worker: Start) -> None:
    inside, on, after = threading.Event(), threading.Event(), []

    @job("durable.taken", durable=True)
    def handler(context: JobContext) -> None:
        inside.set()
        on.wait(60)
        try:
            context.step_transaction("effect", Group.objects.create, name="written by the first")
            after.append("went on")
        finally:
            after.append("ended")

    handle = handler.enqueue()
    first = start_worker(scheduler=False)
    assert inside.wait(60)
    Job.objects.filter(pk=handle.id).update(attempt=2, worker_id="other")
    on.set()
    first.stop()
    assert after == ["ended"]
    assert not Group.objects.exists()
    row = Job.objects.get(pk=handle.id)
    assert (row.state, row.worker_id, row.errors) == ("active", "other", None)


def claimed(**members: Any) -> Holder:
    push([{"type": "a.b", "args": [], **members}])
    (row,) = fetch(Fetch(["default"], count=1, worker_id="w", check_worker=False))
    return Holder(row["id"], "w", row["attempt"])


def a_step(name: str, **values: Any) -> Step:
    return Step(name, StepKind.CALL, clock.now(connection.alias), 1, **values)


def test_of_two_runs_one_records_a_step() -> None:
    holder = claimed()
    start, outcomes = threading.Barrier(4), []

    def record(number: int) -> None:
        try:
            start.wait(60)
            outcomes.append(steps.record(holder, a_step("once", result=str(number)), using=connection.alias))
        except StepExists:
            outcomes.append("exists")
        finally:
            connection.close()

    threads = [threading.Thread(target=record, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(outcomes, key=str) == [True, "exists", "exists", "exists"]
    assert JobStep.objects.count() == 1


@pytest.mark.parametrize("change", [{"worker_id": "other"}, {"attempt": 2}], ids=str)
def test_every_change_needs_the_run_that_holds_the_job(change: dict[str, Any]) -> None:
    holder, using = claimed(), connection.alias
    stranger = holder._replace(**change)
    assert steps.record(holder, a_step("one"), using=using)
    assert not steps.record(stranger, a_step("two"), using=using)
    assert not steps.record(stranger, a_step("two"), locked=True, using=using)
    assert not steps.replace(stranger, a_step("one", tries=2), using=using)
    assert not steps.delete_all(stranger, using=using)
    assert not steps.start_over(stranger, a_step("three"), using=using)
    (found,) = steps.of(holder.job_id)
    assert (found.name, found.tries) == ("one", 1)
    assert steps.replace(holder, a_step("one", result="5"), locked=False, using=using)
    assert steps.of(holder.job_id)[0].result == "5"
    assert steps.start_over(holder, a_step("three"), using=using)
    assert [step.name for step in steps.of(holder.job_id)] == ["three"]
    assert steps.delete_all(holder, using=using)
    assert steps.of(holder.job_id) == []


@pytest.mark.postgres
def test_a_record_does_not_wait_for_a_heartbeat_and_one_with_effects_is_before_or_after_a_cancellation() -> None:
    """A plain step reads the job's row and does not lock it; a step with effects does."""
    holder, using = claimed(), connection.alias
    other = connection.copy()
    try:
        with other.cursor() as cursor, connection.cursor() as ours:
            ours.execute("SET lock_timeout = '50ms'")
            cursor.execute("SET lock_timeout = '50ms'")
            cursor.execute("BEGIN")
            cursor.execute("SELECT 1 FROM django_ojs_job WHERE id = %s FOR UPDATE", [holder.job_id])
            assert steps.record(holder, a_step("free"), using=using)
            with pytest.raises(OperationalError, match="lock timeout"):
                steps.record(holder, a_step("locked"), locked=True, using=using)
            cursor.execute("ROLLBACK")
            with transaction.atomic():
                assert steps.record(holder, a_step("locked"), locked=True, using=using)
                with pytest.raises(OperationalError, match="lock timeout"):
                    cursor.execute("UPDATE django_ojs_job SET state = state WHERE id = %s", [holder.job_id])
    finally:
        other.close()
        connection.close()


def test_steps_are_recorded_by_each_connection_that_the_handler_has(start_worker: Start) -> None:
    @job("kept.connection", durable=True)
    def handler(context: JobContext) -> list[int]:
        found = []
        for number in range(3):
            found.append(context.step(f"step-{number}", int, number))
            connection.close()
        return found

    handle = handler.enqueue()
    start_worker(until_empty=True, scheduler=False).wait()
    assert handle.refresh().result == [0, 1, 2]
    assert list(JobStep.objects.order_by("pk").values_list("name", flat=True)) == ["step-0", "step-1", "step-2"]


def test_a_step_that_reaches_its_timeout_within_a_query_leaves_no_broken_connection(start_worker: Start) -> None:
    def ask() -> None:
        with connection.cursor() as cursor:
            while True:
                cursor.execute("SELECT 1")
                cursor.fetchall()

    @job("kept.query", durable=True, retry={"max_attempts": 1})
    def handler(context: JobContext) -> None:
        for number in range(15):
            with pytest.raises(StepTimeout):
                context.step(f"ask-{number}", ask, timeout=0.03)
            context.step(f"after-{number}", int)

    handle = handler.enqueue()
    start_worker(until_empty=True, scheduler=False).wait()
    row = Job.objects.get(pk=handle.id)
    assert (row.state, row.attempt, row.errors) == ("completed", 1, None)
    assert JobStep.objects.filter(ended_at__isnull=False).count() == 15
