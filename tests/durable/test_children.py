"""Durable handlers that run other jobs: results, failures, limits, and what becomes of either when the other ends."""

from __future__ import annotations

import asyncio
import datetime as dt
from typing import Any

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from django_ojs import ChildFailed, Discard, JobContext, StepError, clock, emit_event, get_job, group, job
from django_ojs.errors import InvalidRequest, OJSError
from django_ojs.jobs.cancel import cancel
from django_ojs.jobs.retry import retry_failed
from django_ojs.models import DurableEvent, Job, JobStep, Workflow
from django_ojs.registry import registry
from django_ojs.rules.rows import END_OF_TIME
from django_ojs.rules.steps import JOB_FAILED
from django_ojs.states import State
from django_ojs.testing import assert_survives_crashes, job_context
from django_ojs.testing.storedjobs import WorkerJobs, inline
from django_ojs.workflows import children, parents
from django_ojs.workflows import workflow as operations
from tests.durable.conftest import NOW

pytestmark = pytest.mark.django_db


def doubling() -> Any:
    @job("child.double", retry={"max_attempts": 1})
    def double(number: int) -> int:
        if number < 0:
            raise ValueError("negative")
        return number * 2

    return double


def parent(double: Any, **call: Any) -> Any:
    @job("parent.run", durable=True, retry={"max_attempts": 3})
    def handler(context: JobContext, *numbers: int) -> Any:
        context.step("before", int)
        found = context.run_all([double.s(number) for number in numbers], **call)
        return [value if isinstance(value, int) else str(value.error["message"]) for value in found]

    return handler


def row(handle: Any) -> Job:
    return Job.objects.get(pk=handle.id)


def the_children() -> list[Job]:
    return list(Job.objects.filter(type="child.double").order_by("pk"))


def test_a_job_runs_another_and_goes_on_with_its_result(jobs: WorkerJobs) -> None:
    double = doubling()

    @job("parent.one", durable=True)
    def handler(context: JobContext) -> Any:
        return context.run(double.s(21))

    handle = handler.enqueue()
    jobs.drain(max_jobs=1)
    waiting = row(handle)
    assert (waiting.state, waiting.visible_until, waiting.attempt, waiting.uncounted) == ("retryable", None, 1, 1)
    assert waiting.due_at is not None
    assert waiting.due_at >= END_OF_TIME
    step, flow = JobStep.objects.get(), Workflow.objects.get()
    assert (step.name, step.kind, step.event_key, step.ended_at) == ("$run-1", "children", str(flow.pk), None)
    assert (flow.parent_id, flow.awaited, flow.outlives_parent, flow.name) == (handle.id, True, None, "parent.one")
    (child,) = the_children()
    assert (child.parent_id, child.workflow_id, child.state) == (handle.id, flow.pk, "available")
    assert [run.job.type for run in jobs.drain().raise_first().runs] == ["child.double", "parent.one"]
    assert handle.refresh().result == 42
    assert row(handle).errors is None
    flow.refresh_from_db()
    assert (flow.state, flow.awaited) == ("completed", None)
    assert not DurableEvent.objects.exists()


def test_the_results_of_many_come_in_their_order(jobs: WorkerJobs) -> None:
    handle = parent(doubling()).enqueue(*range(20))
    jobs.drain(queues="default").raise_first()
    assert handle.refresh().result == [number * 2 for number in range(20)]


def test_no_jobs_have_no_results_and_cost_nothing(jobs: WorkerJobs) -> None:
    handle = parent(doubling()).enqueue()
    jobs.drain().raise_first()
    assert handle.refresh().result == []
    assert not Workflow.objects.exists()


@pytest.mark.parametrize("value", [None, 0, "x\0", [1, {"a": 1.50}], 12345678901234567890123], ids=repr)
def test_a_result_comes_as_the_child_returned_it(jobs: WorkerJobs, value: Any) -> None:
    @job("child.value")
    def child() -> Any:
        return value

    @job("parent.value", durable=True)
    def handler(context: JobContext) -> Any:
        found = context.run(child.s())
        return [found, type(found).__name__]

    handle = handler.enqueue()
    jobs.drain().raise_first()
    assert handle.refresh().result == [value, type(value).__name__]


def test_a_child_that_fails_is_raised_and_the_parent_is_not_retried(jobs: WorkerJobs) -> None:
    handle = parent(doubling()).enqueue(1, -1, 2)
    jobs.drain(with_scheduled=True)
    found = row(handle)
    assert (found.state, found.attempt, found.uncounted) == ("discarded", 2, 1)
    (error,) = handle.refresh().errors
    assert (error["type"], error["code"], error["retryable"]) == ("ChildFailed", "child_failed", False)
    (failed,) = [child for child in the_children() if child.state == "discarded"]
    for said in (str(failed.pk), "child.double", "discarded", "ValueError: negative", "raise_errors=False"):
        assert said in error["message"]
    assert sorted(child.state for child in the_children()) == ["completed", "completed", "discarded"]


def test_errors_can_be_had_in_the_place_of_results(jobs: WorkerJobs) -> None:
    handle = parent(doubling(), raise_errors=False).enqueue(1, -1, 2)
    jobs.drain()
    assert handle.refresh().result == [2, "negative", 4]


def test_a_handler_may_catch_the_failure_of_a_child_in_each_run(jobs: WorkerJobs) -> None:
    double, seen = doubling(), []

    @job("parent.catches", durable=True, retry={"max_attempts": 3})
    def handler(context: JobContext) -> str:
        try:
            context.run(double.s(-1))
        except ChildFailed as error:
            seen.append((error.job_type, get_job(error.job_id).state, error.error["type"]))
        if len(seen) == 1:
            raise ConnectionError
        return "went on"

    handle = handler.enqueue()
    jobs.drain(with_scheduled=True)
    assert handle.refresh().result == "went on"
    assert seen == [("child.double", "discarded", "ValueError")] * 2
    assert len(the_children()) == 1


@pytest.mark.parametrize("limit", [1, 3, 100])
def test_at_most_so_many_are_enqueued_at_once(jobs: WorkerJobs, limit: int) -> None:
    handle = parent(doubling(), limit=limit).enqueue(*range(8))
    most = 0
    jobs.drain(max_jobs=1)
    while row(handle).state == "retryable":
        most = max(most, Job.objects.filter(type="child.double").exclude(state="completed").count())
        assert jobs.drain(max_jobs=1).raise_first().completed == 1
    jobs.drain().raise_first()
    assert most == min(limit, 8)
    assert handle.refresh().result == [number * 2 for number in range(8)]


@pytest.mark.parametrize("limit", [0, -1, True, "2", 1.5], ids=repr)
def test_a_limit_is_a_number(limit: Any) -> None:
    with pytest.raises(ValueError, match="limit="):
        job_context().run_all([doubling().s(1)], limit=limit)


def test_a_failed_child_makes_room_for_the_next(jobs: WorkerJobs) -> None:
    handle = parent(doubling(), limit=1, raise_errors=False).enqueue(-1, 1, -1, 2)
    jobs.drain()
    assert handle.refresh().result == ["negative", 2, "negative", 4]


def test_a_cancelled_parent_cancels_its_children(jobs: WorkerJobs) -> None:
    handle = parent(doubling(), limit=2).enqueue(1, 2, 3)
    jobs.drain(max_jobs=1)
    cancel([handle.id])
    assert children.follow_up() == 1
    assert [child.state for child in the_children()] == ["cancelled", "cancelled"]
    assert Workflow.objects.get().state == "cancelled"
    assert children.follow_up() == 0
    assert not jobs.drain().runs


def test_children_may_outlive_their_parent(jobs: WorkerJobs) -> None:
    handle = parent(doubling(), cancel_with_parent=False, limit=1).enqueue(1, 2)
    jobs.drain(max_jobs=1)
    cancel([handle.id])
    assert children.follow_up() == 0
    assert len(jobs.drain().raise_first()) == 2
    assert row(handle).state == "cancelled"
    assert Workflow.objects.get().state == "completed"


def test_children_of_a_parent_that_fails_are_cancelled_and_a_retry_runs_new_ones(
    jobs: WorkerJobs,
) -> None:
    @job("parent.expires", durable=True, retry={"max_attempts": 1})
    def handler(context: JobContext) -> Any:
        return context.run(double.s(1))

    double = doubling()
    handle = handler.options(expires_at=NOW + dt.timedelta(hours=1)).enqueue()
    jobs.drain(max_jobs=1)
    clock.advance(hours=2)
    Job.objects.filter(type="child.double").update(queue="elsewhere")
    jobs.drain(queues="default")
    assert row(handle).state == "discarded"
    assert [child.state for child in the_children()] == ["cancelled"]
    assert not JobStep.objects.exists()
    with transaction.atomic():
        retry_failed([handle.id], connection.alias)
    Job.objects.filter(pk=handle.id).update(expires_at=None)
    jobs.drain().raise_first()
    assert handle.refresh().result == 2
    assert [child.state for child in the_children()] == ["cancelled", "completed"]


def test_a_retry_of_the_parent_finds_the_results_that_are_there(jobs: WorkerJobs) -> None:
    double, runs = doubling(), []

    @job("parent.again", durable=True, retry={"max_attempts": 1})
    def handler(context: JobContext) -> Any:
        found = context.run(double.s(1))
        runs.append(found)
        if len(runs) == 1:
            raise ValueError
        return found

    handle = handler.enqueue()
    jobs.drain()
    assert handle.refresh().state == "discarded"
    handle.retry()
    jobs.drain().raise_first()
    assert handle.refresh().result == 2
    assert len(the_children()) == 1


def test_a_parent_that_starts_over_runs_its_children_anew_and_leaves_none_behind(jobs: WorkerJobs) -> None:
    handle = parent(doubling()).enqueue(1)
    jobs.drain(max_jobs=1)
    with transaction.atomic():
        retry_failed([handle.id], connection.alias, clear_checkpoint=True)
    assert children.follow_up() == 1
    assert [child.state for child in the_children()] == ["cancelled"]
    jobs.drain().raise_first()
    assert handle.refresh().result == [2]
    assert [child.state for child in the_children()] == ["cancelled", "completed"]


def test_a_child_may_be_durable_and_sleep(jobs: WorkerJobs) -> None:
    @job("child.sleeps", durable=True)
    def child(context: JobContext) -> str:
        context.sleep("2d")
        return context.now().isoformat()

    @job("parent.sleeps", durable=True)
    def handler(context: JobContext) -> Any:
        return context.run(child.s())

    handle = handler.enqueue()
    jobs.drain(with_scheduled=True).raise_first()
    assert handle.refresh().result == (NOW + dt.timedelta(days=2)).isoformat()


def test_children_may_run_children(jobs: WorkerJobs) -> None:
    double = doubling()

    @job("child.nested", durable=True)
    def nested(context: JobContext, number: int) -> Any:
        return context.run(double.s(number)) + 1

    handle = parent(nested, limit=2).enqueue(1, 2, 3)
    jobs.drain().raise_first()
    assert handle.refresh().result == [3, 5, 7]
    roots = {Job.objects.get(pk=child.parent_id).parent_id for child in the_children()}
    assert roots == {handle.id}


@pytest.mark.parametrize("end", ["cancelled", "discarded", "expired"])
def test_a_child_that_ends_otherwise_has_failed(jobs: WorkerJobs, end: str) -> None:
    @job("child.ends")
    def child() -> None:
        raise Discard("no use")

    @job("parent.told", durable=True)
    def handler(context: JobContext) -> Any:
        prepared = child.options(expires_at=NOW + dt.timedelta(hours=1)) if end == "expired" else child
        try:
            return context.run(prepared.s())
        except ChildFailed as error:
            return [error.state, error.error["message"]]

    handle = handler.enqueue()
    jobs.drain(max_jobs=1)
    if end == "cancelled":
        cancel([Job.objects.get(type="child.ends").pk])
    if end == "expired":
        clock.advance(hours=2)
    jobs.drain()
    state, message = handle.refresh().result
    assert state == ("cancelled" if end == "cancelled" else "discarded")
    assert message == {"cancelled": "The job was cancelled.", "discarded": "no use"}.get(end, message)


def test_an_operator_who_cancels_the_children_lets_the_parent_go_on(jobs: WorkerJobs) -> None:
    handle = parent(doubling(), limit=1, raise_errors=False).enqueue(1, 2)
    jobs.drain(max_jobs=1)
    operations.cancel(Workflow.objects.get().pk)
    jobs.drain().raise_first()
    assert handle.refresh().result == ["The job was cancelled.", "It was not enqueued."]


def test_a_refused_child_is_an_error_of_the_call_and_leaves_nothing(jobs: WorkerJobs) -> None:
    doubling().options(unique={"key": ["type"], "on_conflict": "reject"}).enqueue(5)
    unique = registry.get("child.double").options(unique={"key": ["type"], "on_conflict": "reject"})  # type: ignore[union-attr]
    seen: list[OJSError] = []

    @job("parent.refused", durable=True)
    def handler(context: JobContext) -> str:
        try:
            context.run(unique.s(1))
        except OJSError as error:
            seen.append(error)
        return "went on"

    handle = handler.options(queue="parents").enqueue()
    jobs.drain(queues="parents").raise_first()
    assert handle.refresh().result == "went on"
    assert [error.error_code for error in seen] == ["duplicate"]
    assert not Workflow.objects.exists()
    assert not JobStep.objects.exists()


def test_results_that_are_too_large_are_an_error_that_says_so(
    jobs: WorkerJobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parents, "MAX_RESULTS", 100)

    @job("child.large")
    def child() -> str:
        return "x" * 200

    @job("parent.large", durable=True, retry={"max_attempts": 1})
    def handler(context: JobContext) -> Any:
        return context.run(child.s())

    handle = handler.enqueue()
    jobs.drain()
    assert "return a reference" in handle.refresh().error["message"]  # type: ignore[index]


def test_code_that_runs_other_jobs_by_now_is_told_so(jobs: WorkerJobs) -> None:
    double, types = doubling(), ["child.double"]

    @job("child.other")
    def other(number: int) -> int:
        return number

    @job("parent.changed", durable=True)
    def handler(context: JobContext) -> Any:
        return context.run((double if types[0] == "child.double" else other).s(1))

    handle = handler.enqueue()
    jobs.drain(max_jobs=1)
    types[0] = "child.other"
    jobs.drain()
    error = handle.refresh().error
    assert error is not None
    assert error["code"] == "replay_mismatch"
    assert "child.other" in error["message"]
    assert "child.double" in error["message"]


def test_what_is_no_job_is_refused() -> None:
    context = job_context()
    with pytest.raises(TypeError, match=r"handler\.s"):
        context.run("email.send")  # type: ignore[arg-type]


def test_a_handler_that_is_not_durable_runs_no_others(jobs: WorkerJobs) -> None:
    double = doubling()

    @job("parent.plain", retry={"max_attempts": 1})
    def handler(context: JobContext) -> Any:
        return context.run(double.s(1))

    handle = handler.enqueue()
    jobs.drain()
    assert handle.refresh().error["type"] == "StepError"  # type: ignore[index]


def test_names_of_the_server_are_refused_from_callers() -> None:
    with pytest.raises(InvalidRequest, match="begin with"):
        emit_event("$workflow.ended", "1", {"jobs": []})
    with pytest.raises(StepError):
        job_context().wait_for_event("$workflow.ended")


@pytest.mark.django_db(transaction=True)
def test_an_asynchronous_handler_runs_jobs_side_by_side(jobs: WorkerJobs) -> None:
    double = doubling()

    @job("parent.async", durable=True)
    async def handler(context: JobContext) -> Any:
        return await asyncio.gather(
            context.arun(double.s(1), name="one"), context.arun_all([double.s(2), double.s(3)], name="more")
        )

    handle = handler.enqueue()
    jobs.drain().raise_first()
    assert handle.refresh().result == [2, [4, 6]]


def test_a_flow_with_children_survives_a_crash_at_each_record() -> None:
    double = doubling()

    def once(handle: Any) -> None:
        assert handle.result == [2, 4]
        assert [child.state for child in the_children()] == ["completed", "completed"]

    assert_survives_crashes(parent(double, limit=1).s(1, 2), check=once)


def test_where_jobs_run_inline_children_do_too() -> None:
    double = doubling()
    handler = parent(double, limit=1)
    with inline():
        assert handler.enqueue(1, 2, 3).refresh().result == [2, 4, 6]


def test_without_a_worker_children_are_called_in_line() -> None:
    double = doubling()

    @job("child.coroutine", durable=True)
    async def coroutine(context: JobContext, number: int) -> int:
        return number + await context.astep("one", int, "1")

    async def later(number: int) -> int:
        return number + 1

    @job("child.plain")
    def plain(number: int) -> Any:
        return later(number)

    context = job_context()
    assert context.run(double.s(4)) == 8
    assert context.run(coroutine.s(4)) == 5
    assert context.run(plain.s(4)) == 5
    with pytest.raises(ChildFailed, match="negative"):
        context.run(double.s(-4))


def test_a_parent_that_another_transaction_holds_is_told_later(
    jobs: WorkerJobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle = parent(doubling()).enqueue(1)
    jobs.drain(max_jobs=1)
    with monkeypatch.context() as patch:
        patch.setattr(parents.durableevents, "give", lambda *args, **kwargs: False)
        patch.setattr(children, "follow_up", lambda **kwargs: 0)
        jobs.drain()
    flow = Workflow.objects.get()
    assert (flow.state, flow.awaited, row(handle).state) == ("completed", True, "retryable")
    assert children.follow_up() == 1
    assert row(handle).state == State.AVAILABLE
    jobs.drain().raise_first()
    assert handle.refresh().result == [2]


def test_the_pages_of_the_admin_lead_from_the_parent_to_its_children_and_back(
    jobs: WorkerJobs, admin_client: Any
) -> None:
    handle = parent(doubling()).enqueue(1)
    jobs.drain(max_jobs=1)
    flow, (child,) = Workflow.objects.get(), the_children()
    page = admin_client.get(f"/admin/django_ojs/job/{handle.id}/change/").content.decode().lower()
    assert "child jobs" in page
    assert f"/admin/django_ojs/workflow/{flow.pk}/change/" in page
    assert "parent job" not in page
    for address in (f"workflow/{flow.pk}", f"job/{child.pk}"):
        page = admin_client.get(f"/admin/django_ojs/{address}/change/").content.decode()
        assert "parent job" in page.lower()
        assert f"/admin/django_ojs/job/{handle.id}/change/" in page
    other = group(registry.get("child.double").s(1)).enqueue()  # type: ignore[union-attr]
    assert (
        "parent job" not in admin_client.get(f"/admin/django_ojs/workflow/{other.key}/change/").content.decode().lower()
    )


def test_jobs_without_children_pay_nothing(jobs: WorkerJobs) -> None:
    """A workflow that no job runs ends by the statements that do not name the steps of durable jobs."""
    double = doubling()
    group(double.s(1), double.s(2)).enqueue()
    jobs.drain(max_jobs=1)
    with CaptureQueriesContext(connection) as queries:
        assert jobs._engine.perform(jobs._next(["default"])).state == "completed"
    assert Workflow.objects.get().state == "completed"
    seen = [sql["sql"] for sql in queries if JobStep._meta.db_table in sql["sql"]]
    assert not [sql for sql in seen if JOB_FAILED not in sql]  # for which the scheduler looks


def test_thousands_of_waiting_parents_cost_a_look_each_time_and_nothing_more(jobs: WorkerJobs) -> None:
    handler = parent(doubling())
    for _ in range(3):
        handler.enqueue(1)
    jobs.drain(max_jobs=3)
    with CaptureQueriesContext(connection) as queries:
        assert children.follow_up() == 0
    assert len(queries) == 2
