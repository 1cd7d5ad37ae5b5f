"""Durable handlers that wait for events: early and late ones, timeouts, what is told to those who emit."""

from __future__ import annotations

import asyncio
import datetime as dt
import enum
import json
import uuid
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from django_ojs import EventTimeout, JobContext, StepError, aemit_event, clock, emit_event, job
from django_ojs.errors import InvalidRequest, PayloadTooLarge
from django_ojs.jobs import checkpoints, timers
from django_ojs.jobs.cancel import cancel
from django_ojs.jobs.push import push
from django_ojs.models import DurableEvent, Event, Job, JobStep
from django_ojs.registry import registry
from django_ojs.retention import prune
from django_ojs.rules.rows import END_OF_TIME
from django_ojs.rules.steps import JOB_FAILED
from django_ojs.states import State
from django_ojs.testing import assert_survives_crashes, job_context
from django_ojs.testing.storedjobs import InlineJobs, WorkerJobs, inline
from tests.durable.conftest import NOW

pytestmark = pytest.mark.django_db

DAY = dt.timedelta(days=1)


def paid(timeout: str | None = None, **options: Any) -> Any:
    @job("order.fulfil", durable=True, **options)
    def fulfil(context: JobContext, order: int) -> Any:
        context.step("reserve", int)
        return context.wait_for_event("order.paid", key=order, timeout=timeout)

    return fulfil


def row(handle: Any) -> Job:
    return Job.objects.get(pk=handle.id)


def test_a_job_waits_without_a_slot_until_the_event_comes(jobs: WorkerJobs) -> None:
    handle = paid().enqueue(7)
    jobs.drain(with_scheduled=True)
    waiting = row(handle)
    assert (waiting.state, waiting.visible_until, waiting.attempt, waiting.uncounted) == ("retryable", None, 1, 1)
    assert waiting.due_at is not None
    assert waiting.due_at >= END_OF_TIME
    assert clock.now() == NOW
    step = JobStep.objects.get(kind="event")
    assert (step.name, step.event_name, step.event_key, step.ended_at) == ("$event-1", "order.paid", "7", None)
    other = emit_event("order.paid", 8, {"amount": "1.00"})
    assert (other.is_new, other.job_ids) == (True, ())
    assert not jobs.drain().runs
    done = emit_event("order.paid", 7, {"amount": "12.50"})
    assert (done.is_new, done.job_ids) == (True, (handle.id,))
    assert row(handle).state == "available"
    jobs.drain().raise_first()
    assert handle.refresh().result == {"amount": "12.50"}
    assert row(handle).errors is None


@pytest.mark.parametrize("payload", [None, 0, "x\0", [1, {"$type": "uuid", "value": "no"}], {"a": 1.5}], ids=repr)
def test_an_event_that_came_before_is_found(jobs: WorkerJobs, payload: Any) -> None:
    emit_event("order.paid", "7", payload)
    handle = paid("7d").enqueue(7)
    assert len(jobs.drain().raise_first()) == 1
    assert handle.refresh().result == payload


def test_the_first_of_a_name_and_a_key_counts(jobs: WorkerJobs) -> None:
    first = emit_event("order.paid", 7, "first")
    clock.advance(seconds=60)
    second = emit_event("order.paid", 7, "second")
    assert (second.is_new, second.payload, second.created_at, second.job_ids) == (False, "first", first.created_at, ())
    assert emit_event("order.Paid", 7, "another").is_new
    assert emit_event("order.paid", "seven", "another").is_new
    assert emit_event("order.paid", "Seven", "another").is_new
    handle = paid().enqueue(7)
    jobs.drain().raise_first()
    assert handle.refresh().result == "first"


def test_an_event_belongs_to_the_transaction_of_its_caller(jobs: WorkerJobs) -> None:
    handle = paid().enqueue(7)
    jobs.drain()
    with transaction.atomic():
        emit_event("order.paid", 7)
        transaction.set_rollback(True)
    assert not DurableEvent.objects.exists()
    assert row(handle).state == "retryable"
    assert emit_event("order.paid", 7).is_new
    assert len(jobs.drain().raise_first()) == 1


def test_all_jobs_that_wait_get_the_event(jobs: WorkerJobs) -> None:
    handler = paid()
    handles = [handler.enqueue(7) for _ in range(3)]
    cancelled = handler.enqueue(7)
    jobs.drain()
    cancel([cancelled.id])
    done = emit_event("order.paid", 7, 1)
    assert sorted(done.job_ids) == sorted(handle.id for handle in handles)
    jobs.drain().raise_first()
    assert [handle.refresh().result for handle in handles] == [1, 1, 1]
    assert row(cancelled).state == "cancelled"


def test_a_wait_that_has_ended_raises_the_same_in_each_run(jobs: WorkerJobs) -> None:
    seen: list[str] = []

    @job("order.late", durable=True, retry={"max_attempts": 3, "jitter": False})
    def handler(context: JobContext) -> str:
        try:
            context.wait_for_event("order.paid", key=7, timeout="7d")
        except EventTimeout as error:
            seen.append(str(error))
            if context.attempt < 3:
                raise ValueError("again") from error
            return "gave up"
        return "paid"

    handle = handler.enqueue()
    jobs.drain(until=NOW + 6 * DAY)
    assert not seen
    jobs.drain(with_scheduled=True)
    assert seen == ["The event 'order.paid' of '7' did not come in time."] * 2
    assert handle.refresh().result == "gave up"
    step = JobStep.objects.get(kind="event")
    assert (step.due_at, step.ended_at, step.result) == (NOW + 7 * DAY, NOW + 7 * DAY, None)
    assert emit_event("order.paid", 7).job_ids == ()
    assert JobStep.objects.get(kind="event").result is None


def test_a_timeout_is_one_of_python() -> None:
    assert issubclass(EventTimeout, TimeoutError)


def test_a_timeout_that_nobody_catches_is_not_tried_again(jobs: WorkerJobs) -> None:
    handle = paid("1h", retry={"max_attempts": 5}).enqueue(7)
    drained = jobs.drain(with_scheduled=True)
    (error,) = drained.exceptions
    assert isinstance(error, EventTimeout)
    assert len(drained) == 2
    found = row(handle)
    assert (found.state, found.errors[-1]["code"]) == ("discarded", "event_timeout")


def test_an_event_counts_that_comes_after_the_timeout_and_before_the_run_that_finds_it(jobs: WorkerJobs) -> None:
    handle = paid("1h").enqueue(7)
    jobs.drain()
    clock.advance(seconds=3601)
    timers.apply_due()
    assert row(handle).state == "available"
    assert emit_event("order.paid", 7, "late").job_ids == (handle.id,)
    jobs.drain().raise_first()
    assert handle.refresh().result == "late"


def test_a_job_that_is_run_by_hand_goes_on_waiting_for_what_is_left(jobs: WorkerJobs) -> None:
    from django_ojs.jobs.promote import run_now

    handle = paid("1h").enqueue(7)
    jobs.drain()
    clock.advance(seconds=600)
    run_now([handle.id])
    assert len(jobs.drain()) == 1
    assert row(handle).due_at == NOW + dt.timedelta(hours=1)
    assert JobStep.objects.filter(kind="event").count() == 1


def test_a_waiting_job_can_be_cancelled_and_ends_with_its_time(jobs: WorkerJobs) -> None:
    handler = paid()
    cancelled, timed = handler.enqueue(7), handler.options(total_timeout="1h").enqueue(7)
    jobs.drain()
    cancel([cancelled.id])
    clock.advance(seconds=3601)
    timers.apply_due()
    assert (row(cancelled).state, row(timed).state) == ("cancelled", "discarded")
    assert emit_event("order.paid", 7).job_ids == ()


def test_a_waiting_job_whose_record_is_deleted_starts_over_at_once(jobs: WorkerJobs) -> None:
    """Nothing would wake it: it waits in no step any more."""
    handle = paid().enqueue(7)
    jobs.drain()
    assert checkpoints.clear(handle.id, with_steps=True)
    assert (row(handle).state, JobStep.objects.count()) == ("available", 0)
    jobs.drain()
    assert (row(handle).state, JobStep.objects.count()) == ("retryable", 2)
    assert not checkpoints.clear(handle.id)  # what waits is left alone
    assert row(handle).state == "retryable"
    emit_event("order.paid", 7, "payload")
    jobs.drain()
    assert handle.refresh().result == "payload"


def test_a_record_that_is_deleted_before_its_job_sleeps_leaves_none_asleep(jobs: WorkerJobs) -> None:
    cleared: list[bool] = []

    @job("order.cleared", durable=True)
    def handler(context: JobContext) -> Any:
        try:
            return context.wait_for_event("order.paid")
        finally:
            if not cleared:
                cleared.append(checkpoints.clear(context.id, with_steps=True))

    handle = handler.enqueue()
    jobs.drain()
    assert (cleared, row(handle).state, JobStep.objects.count()) == ([True], "retryable", 1)
    emit_event("order.paid", payload="payload")
    jobs.drain()
    assert handle.refresh().result == "payload"


def test_code_that_waits_for_another_event_does_not_fit(jobs: WorkerJobs) -> None:
    handle = paid().enqueue(7)
    jobs.drain()
    emit_event("order.paid", 7)

    with registry.isolated():

        @job("order.fulfil", durable=True)
        def changed(context: JobContext, order: int) -> None:
            context.step("reserve", int)
            context.wait_for_event("order.shipped", key=order)

        jobs.drain()
    (error,) = row(handle).errors
    assert error["code"] == "replay_mismatch"
    assert "the wait '$event-1' for the event 'order.shipped' of '7'" in error["message"]
    assert "one for the event 'order.paid' of '7'" in error["message"]


def test_an_asynchronous_handler_waits_for_several(jobs: WorkerJobs) -> None:
    @job("order.both", durable=True)
    async def handler(context: JobContext) -> list[Any]:
        async with asyncio.TaskGroup() as group:
            one = group.create_task(context.await_for_event("a", name="a"))
            two = group.create_task(context.await_for_event("b", name="b", timeout="1h"))
        return [one.result(), two.result()]

    handle = handler.enqueue()
    jobs.drain()
    emit_event("b", payload=2)
    jobs.drain()
    assert row(handle).state == "retryable"
    emit_event("a", payload=1)
    jobs.drain().raise_first()
    assert handle.refresh().result == [1, 2]


async def in_a_group(*branches: Any) -> list[Any]:
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(branch) for branch in branches]
    return [task.result() for task in tasks]


@pytest.mark.parametrize("together", [asyncio.gather, in_a_group], ids=["gather", "TaskGroup"])
def test_each_of_several_waits_wakes_the_job(jobs: WorkerJobs, together: Any) -> None:
    """Whichever of them has ended the run."""

    async def late(context: JobContext) -> str:
        try:
            return str(await context.await_for_event("b", name="b", timeout="1h"))
        except EventTimeout:
            return "late"

    @job("order.each", durable=True)
    async def handler(context: JobContext) -> list[Any]:
        return list(await together(context.await_for_event("a", name="a"), late(context), context.asleep("1m")))

    handle = handler.enqueue()
    jobs.drain()
    assert set(JobStep.objects.filter(job_id=handle.id).values_list("name", flat=True)) == {"a", "b", "$sleep-1"}
    assert row(handle).due_at == NOW + dt.timedelta(minutes=1)
    jobs.drain(with_scheduled=True)
    assert JobStep.objects.get(job_id=handle.id, name="b").error is not None
    emit_event("a", payload=1)
    jobs.drain(with_scheduled=True).raise_first()
    assert handle.refresh().result == [1, "late", None]


@pytest.mark.parametrize(
    "name, key",
    [("", ""), (" a", ""), ("a\n", ""), ("a" * 201, ""), ("a", "k" * 201), ("a", "k "), ("a", "\0"), ("\ud800", "")],
    ids=repr,
)
def test_what_no_event_is_called(name: str, key: str) -> None:
    with pytest.raises(InvalidRequest) as found:
        emit_event(name, key)
    assert found.value.details["field"] == ("name" if key == "" else "key")
    with pytest.raises(StepError, match="printable"):
        job_context().wait_for_event(name, key=key)


class _Order(str, enum.Enum):  # noqa: UP042 - sites have both kinds
    SEVENTH = "7"


def test_a_key_that_is_a_member_of_an_enum_is_its_value() -> None:
    assert emit_event("order.paid", _Order.SEVENTH).key == "7"
    assert not emit_event("order.paid", "7").is_new


def test_what_no_event_carries(settings: Any) -> None:
    with pytest.raises(TypeError, match="payload"):
        emit_event("a", payload=object())
    with pytest.raises(TypeError, match="key of an event"):
        emit_event("a", key=1.5)  # type: ignore[arg-type]
    settings.OJS = {"MAX_DURABLE_EVENT_BYTES": 10}
    emit_event("a", payload="12345678")
    with pytest.raises(PayloadTooLarge, match="11 bytes, more than the 10"):
        emit_event("b", payload="123456789")
    assert DurableEvent.objects.count() == 1


def test_a_key_may_be_an_id(jobs: WorkerJobs) -> None:
    key = uuid.uuid4()
    assert emit_event("a", key).key == str(key)
    assert not emit_event("a", str(key)).is_new


def test_old_events_are_pruned_and_the_jobs_keep_what_they_got(jobs: WorkerJobs, settings: Any) -> None:
    handle = paid().enqueue(7)
    jobs.drain()
    emit_event("order.paid", 7, "kept")
    clock.advance(seconds=30 * 86_400 - 1)
    emit_event("order.paid", 8)
    assert prune()["durable_events"] == 0
    clock.advance(seconds=2)
    emit_event("order.paid", 9)
    assert prune(batch=1)["durable_events"] == 1
    assert set(DurableEvent.objects.values_list("key", flat=True)) == {"8", "9"}
    jobs.drain().raise_first()
    assert handle.refresh().result == "kept"
    settings.OJS = {"DURABLE_EVENT_RETENTION": 1.0}
    clock.advance(seconds=2)
    assert prune(batch=1)["durable_events"] == 1
    assert emit_event("order.paid", 7).is_new


def test_what_a_wait_and_its_report_cost(jobs: WorkerJobs, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the report of a run that waits for an event looks at the steps."""

    @job("order.sleep", durable=True)
    def sleeps(context: JobContext) -> None:
        context.sleep("1h")

    def reads() -> int:
        with CaptureQueriesContext(connection) as captured:
            jobs.drain().raise_first()
        return len([one for one in captured if "FROM" in one["sql"] and 'ojs_jobstep' in one["sql"]
                    and "INSERT" not in one["sql"] and JOB_FAILED not in one["sql"]])  # fmt: skip

    sleeps.enqueue()
    assert reads() == 1  # of the record, at the beginning
    paid().enqueue(7)
    assert reads() == 2  # and by the report


def test_thousands_that_wait_cost_the_scheduler_nothing(jobs: WorkerJobs) -> None:
    """They are behind the index by which it finds what is due."""
    handler = paid()
    with CaptureQueriesContext(connection) as nothing:
        assert timers.apply_due() == 0
    push([{"type": "other.job", "args": []} for _ in range(2000)])
    Job.objects.filter(type="other.job").update(due_at=END_OF_TIME, wake_at=END_OF_TIME)
    from django.db.models import QuerySet

    QuerySet.update(Job.objects.all(), state="retryable")
    handler.enqueue(7)
    jobs.drain()
    with CaptureQueriesContext(connection) as captured:
        assert timers.apply_due() == 0
    assert len(captured) == len(nothing)
    (statement,) = (one["sql"] for one in captured if "wake_at" in one["sql"])
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            cursor.execute("ANALYZE django_ojs_job")
            cursor.execute("SET LOCAL enable_seqscan = off")  # which it prefers in a table of a few pages
        cursor.execute(f"EXPLAIN {'QUERY PLAN ' if connection.vendor == 'sqlite' else ''}{statement}")
        plan = str(cursor.fetchall())
    assert "ojs_job_wake" in plan, plan
    waits = JobStep.objects.filter(event_name="order.paid", event_key="7", ended_at__isnull=True)
    assert "ojs_step_waits" in waits.explain()
    assert len(emit_event("order.paid", 7).job_ids) == 1


def test_the_log_tells_of_a_wait_as_of_a_snooze(jobs: WorkerJobs) -> None:
    handle = paid().enqueue(7)
    jobs.drain()
    emit_event("order.paid", 7)
    jobs.drain()
    types = list(Event.objects.filter(job_id=handle.id).order_by("pk").values_list("type", flat=True))
    assert types == ["job.enqueued", "job.started", "job.retrying", "job.started", "job.completed"]


def test_from_asynchronous_code() -> None:
    emit = async_to_sync(aemit_event)
    assert emit("a", 1, [2]).is_new
    assert not emit("a", 1).is_new


# Modes of tests


def test_inline_a_job_stays_waiting_and_goes_on_with_the_event() -> None:
    with inline() as jobs:
        assert isinstance(jobs, InlineJobs)
        handler = paid("7d")
        handle = handler.enqueue(7)
        assert handle.state == State.RETRYABLE
        assert len(jobs.performed) == 1
        done = emit_event("order.paid", 7, "paid")
        assert done.job_ids == (handle.id,)
        assert handle.refresh().result == "paid"
        endless = paid().enqueue(8)
        assert endless.state == State.RETRYABLE


def test_a_context_without_a_worker() -> None:
    handler = paid("1h")
    context = job_context(handler, [7])
    with pytest.raises(StepError, match=r"context.emit\('order.paid', '7', payload\)"):
        handler(context, 7)
    context = job_context(handler, [7])
    context.emit("order.paid", 7, {"a": 1})
    context.emit("order.paid", 7, "second")
    assert handler(context, 7) == {"a": 1}


def test_a_worker_says_how_to_emit(jobs: WorkerJobs) -> None:
    @job("order.emits", durable=True)
    def handler(context: JobContext) -> str:
        with pytest.raises(StepError, match=r"django_ojs\.emit_event"):
            context.emit("a")
        done = context.step_transaction("emit", lambda: emit_event("a", 1, "x").is_new)
        return json.dumps(done)

    handle = handler.enqueue()
    jobs.drain().raise_first()
    assert handle.refresh().result == "true"


def test_a_crash_at_each_record_changes_nothing() -> None:
    handler = paid("1h")
    assert_survives_crashes(handler.s(7))  # it waits, and times out
    emit_event("order.paid", 8, "paid")
    ends: set[Any] = set()
    assert_survives_crashes(handler.s(8), check=lambda handle: ends.add(handle.result))
    assert ends == {"paid"}
