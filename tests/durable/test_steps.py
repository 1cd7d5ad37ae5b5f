"""Durable handlers: what is recorded is not done again, what is not recorded is (CKP-17, CKP-18, CKP-20, CKP-22)."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import datetime as dt
import decimal
import functools
import sys
import threading
import uuid
from typing import Any

import pytest
from django.contrib.auth.models import Group, Permission
from django.db import IntegrityError, connection, models, transaction
from django.test.utils import CaptureQueriesContext
from django.utils.safestring import mark_safe

from django_ojs import (
    Discard,
    EventTimeout,
    JobContext,
    JobHandle,
    ReplayMismatch,
    StepError,
    StepTimeout,
    Typed,
    clock,
    emit_event,
    group,
    job,
    step,
    step_type,
)
from django_ojs.client import steps as steps_module
from django_ojs.client import stepvalues
from django_ojs.client.directives import StepBoundary, Suspended
from django_ojs.errors import NotFound
from django_ojs.jobs import checkpoints
from django_ojs.jobs import steps as recorded_steps
from django_ojs.jobs.retry import restart_from
from django_ojs.models import Job, JobStep
from django_ojs.registry import Registry, registry
from django_ojs.rules.steps import CLEARED, JOB_FAILED
from django_ojs.testing import job_context
from django_ojs.testing.storedjobs import WorkerJobs
from django_ojs.testing.storedjobs import worker as stored
from django_ojs.worker import runs
from tests.durable.conftest import NOW
from tests.waiting import cancelled, occupied

pytestmark = pytest.mark.django_db

TWICE = {"max_attempts": 2, "initial_interval": "1s", "jitter": False}


@pytest.fixture
def calls() -> list[Any]:
    return []


def names(job_id: uuid.UUID) -> list[str]:
    return list(JobStep.objects.filter(job_id=job_id).order_by("pk").values_list("name", flat=True))


def of_steps(captured: CaptureQueriesContext) -> list[str]:
    """What the run of a job asks about steps, without the scheduler's look for jobs that have failed."""
    return [query["sql"] for query in captured if "jobstep" in query["sql"] and JOB_FAILED not in query["sql"]]


def test_a_recorded_step_is_not_done_again(jobs: WorkerJobs, calls: list[Any]) -> None:
    @job("flow.two", durable=True, retry=TWICE)
    def handler(context: JobContext, order: int) -> list[Any]:
        charged = context.step("charge", lambda: calls.append("charge") or {"id": order})
        if context.attempt == 1:
            raise ValueError("the power goes")
        mailed = context.step("mail", calls.append, "mail")
        return [charged, mailed]

    handle = handler.enqueue(7)
    jobs.drain(with_scheduled=True)
    assert calls == ["charge", "mail"]
    assert handle.refresh().result == [{"id": 7}, None]
    assert names(handle.id) == ["charge", "mail"]
    found = JobStep.objects.get(name="mail")
    assert (found.attempt, found.kind, found.tries, found.error) == (2, "call", 1, None)
    assert found.began_at <= found.ended_at  # type: ignore[operator]


def test_a_record_that_is_deleted_during_a_run_is_begun_anew_by_the_next(jobs: WorkerJobs, calls: list[Any]) -> None:
    @job("flow.cleared", durable=True, retry=TWICE)
    def handler(context: JobContext) -> None:
        context.step("charge", calls.append, "charge")
        if context.attempt == 1:
            assert checkpoints.clear(handle.id, with_steps=True)
        context.step("mail", calls.append, "mail")
        if context.attempt == 1:
            raise ValueError("the power goes")

    handle = handler.enqueue()
    jobs.drain(with_scheduled=True)
    assert (handle.refresh().state, calls) == ("completed", ["charge", "mail"] * 2)
    assert names(handle.id) == ["charge", "mail"]


def test_a_retry_from_a_step_keeps_those_before_it_though_the_record_was_deleted(
    jobs: WorkerJobs, calls: list[Any]
) -> None:
    @job("flow.again", durable=True, retry={"max_attempts": 1})
    def handler(context: JobContext) -> None:
        context.step("charge", calls.append, "charge")
        if len(calls) == 1:
            assert checkpoints.clear(handle.id, with_steps=True)
        context.step("mail", calls.append, "mail")
        context.step("ship", calls.append, "ship")
        if len(calls) == 3:
            raise ValueError("the power goes")

    handle = handler.enqueue()
    jobs.drain()
    assert names(handle.id) == [CLEARED, "mail", "ship"]
    assert [step.name for step in recorded_steps.of(handle.id, latest=9)] == ["mail", "ship"]  # as people see it
    restart_from(handle.id, "ship")
    jobs.drain()
    assert (handle.refresh().state, calls) == ("completed", ["charge", "mail", "ship", "charge", "ship"])


def test_an_exception_is_not_recorded(jobs: WorkerJobs, calls: list[Any]) -> None:
    def charge() -> str:
        calls.append("charge")
        if len(calls) == 1:
            raise ConnectionError("no line")
        return "paid"

    @job("flow.fails", durable=True, retry=TWICE)
    def handler(context: JobContext) -> str:
        return context.step("charge", charge)

    handle = handler.enqueue()
    jobs.drain(with_scheduled=True)
    assert (handle.refresh().result, calls) == ("paid", ["charge", "charge"])


def test_a_recorded_step_costs_one_statement(jobs: WorkerJobs, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []

    @job("flow.cost", durable=True)
    def handler(context: JobContext) -> None:
        for number in range(5):
            with CaptureQueriesContext(connection) as captured:
                context.step(f"step-{number}", int)
            # In a TestCase a savepoint is around it, so that a refusal leaves the transaction whole.
            seen.append(len([query for query in captured if "SAVEPOINT" not in query["sql"]]))

    handler.enqueue()
    jobs.drain().raise_first()
    assert seen == [1] * 5


def test_a_job_that_is_not_durable_pays_for_nothing(jobs: WorkerJobs) -> None:
    @job("flow.plain")
    def plain() -> None:
        return None

    @job("flow.durable", durable=True)
    def durable(context: JobContext) -> None:
        return None

    plain.enqueue()
    with CaptureQueriesContext(connection) as captured:
        jobs.drain()
    assert not of_steps(captured)
    durable.enqueue()
    with CaptureQueriesContext(connection) as captured:
        jobs.drain()
    assert len(of_steps(captured)) == 1


def test_steps_end_with_their_job(jobs: WorkerJobs) -> None:
    @job("flow.gone", durable=True)
    def handler(context: JobContext) -> None:
        context.step("one", int)
        raise Discard

    handle = handler.enqueue()
    jobs.drain()
    from django_ojs.jobs.delete import delete_ended

    delete_ended([handle.id])
    assert names(handle.id) == []


@dataclasses.dataclass
class Money:
    amount: decimal.Decimal
    currency: str = "EUR"


VALUES = [
    None, True, 0, -1.5, "ü\0", [1, [2, {}]], {"a": {"b": None}}, {1: "x", (1, 2): "y"}, {"$type": "x", "value": 1},
    (1, (2, [3])), {1, 2}, frozenset({"a"}), b"\x00\xff", decimal.Decimal("1.50"), uuid.UUID(int=5), NOW, NOW.date(),
    dt.time(1, 2, 3, 4), dt.timedelta(-1, 2, 3), Money(decimal.Decimal("0.10")), [Money(decimal.Decimal(1), "USD")],
]  # fmt: skip


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_a_result_comes_back_as_it_was(value: Any) -> None:
    step_type(name="tests.Money")(Money)
    found = stepvalues.decode(stepvalues.encode(value, "x"))
    assert found == value
    assert type(found) is type(value)


class Colour(models.TextChoices):
    RED = "red"


class Rank(models.IntegerChoices):
    FIRST = 1


class Ratio(float):
    pass


@pytest.mark.parametrize(
    "value, kept", [(mark_safe("<b>"), "<b>"), (Colour.RED, "red"), (Rank.FIRST, 1), (Ratio(1.5), 1.5)], ids=repr
)
def test_texts_and_numbers_of_a_class_of_their_own_are_kept_as_plain_ones(value: Any, kept: Any) -> None:
    """So they are among the arguments of a job, and a handler finds the same in each run, also in the first."""
    context = job_context()
    for found in (context.step("one", lambda: value), context.step("more", lambda: {"a": [value]})["a"][0]):
        assert (found, type(found)) == (kept, type(kept))
    assert stepvalues.decode(stepvalues.encode({value: 1}, "x")) == {kept: 1}


def test_a_step_may_enqueue_a_job_and_emit_an_event(jobs: WorkerJobs, calls: list[Any]) -> None:
    """What that returns could not be kept, so each attempt enqueued another job."""

    @job("flow.mail")
    def mail(address: str) -> str:
        return address

    @job("flow.mails", durable=True, retry=TWICE)
    def handler(context: JobContext) -> str:
        handle = context.step("mail", mail.enqueue, "a@example.org")
        emitted = context.step_transaction("tell", emit_event, "flow.mailed", 7, {"cents": 1})
        calls.append((handle, handle.id, handle.created, emitted))
        if context.attempt == 1:
            raise ValueError
        return str(handle.refresh().result)

    handler.enqueue()
    jobs.drain(with_scheduled=True)
    assert [found.state for found in Job.objects.filter(type="flow.mail")] == ["completed"]
    assert calls[0] == calls[1]
    handle, _, created, emitted = calls[0]
    assert (handle.type, created, emitted.is_new, emitted.payload) == ("flow.mail", True, True, {"cents": 1})
    assert Job.objects.get(type="flow.mails").state == "completed"
    again = stepvalues.decode(stepvalues.encode([handle, JobHandle(None)], "x"))
    assert (again[0].state, again[0].result, again[1].dropped) == ("completed", "a@example.org", True)
    Job.objects.all()._raw_delete("default")
    again = stepvalues.decode(stepvalues.encode(handle, "x"))
    assert str(handle.id) in repr(again)
    with pytest.raises(NotFound):
        again.state  # noqa: B018


def test_the_handle_of_a_workflow_says_what_to_keep(jobs: WorkerJobs) -> None:
    @job("flow.part")
    def part() -> None: ...

    context = job_context()
    with pytest.raises(TypeError, match=r"WorkflowHandle, which cannot be kept .*: return its id, and read it again"):
        context.step("fan", group(part.s()).enqueue)


def test_a_row_of_a_model_is_kept_by_its_primary_key() -> None:
    group = Group.objects.create(name="before")
    text = stepvalues.encode([group], "x")
    Group.objects.update(name="after")
    assert stepvalues.decode(text)[0].name == "after"
    with pytest.raises(TypeError, match="save it first"):
        stepvalues.encode(Group(name="new"), "x")


def test_what_cannot_be_kept_is_refused_where_it_is_returned(jobs: WorkerJobs) -> None:
    @job("flow.odd", durable=True, retry={"max_attempts": 1})
    def handler(context: JobContext) -> None:
        context.step("odd", lambda: {"found": [object()]})

    handler.enqueue()
    (failed,) = jobs.drain().exceptions
    assert isinstance(failed, TypeError)
    assert "'odd'['found'][0] is a builtins.object" in str(failed)
    with pytest.raises(LookupError, match="not registered"):
        stepvalues.decode('{"$type":"gone.Away","value":1}')


def test_what_is_no_function_is_refused_before_anything_is_recorded(jobs: WorkerJobs) -> None:
    context = job_context()
    for call in (context.step, context.step_transaction, lambda name, odd: context.on_failure(odd, name=name)):
        with pytest.raises(StepError, match=r"takes a function and its arguments, not 'done': write context\.step\("):
            call("charge", "done")
    assert context.step("charge", int) == 0


@pytest.mark.parametrize("odd", ["tomorrow", 5, None, dt.date(2026, 1, 1)])
def test_what_is_no_instant_is_refused(odd: Any) -> None:
    with pytest.raises(TypeError, match=r"^instant=.*: give a datetime with a time zone\. sleep\(\) takes a length\.$"):
        job_context().sleep_until(odd)


@pytest.mark.timeout(60)
async def test_a_step_in_a_thread_may_raise_stop_iteration() -> None:
    """No future of asyncio's takes it before Python 3.12: the handler waited for ever."""
    context = job_context()
    with pytest.raises(RuntimeError, match="StopIteration"):
        await context.astep("first", next, iter([]))


def test_names_are_unique_in_a_run_and_well_formed(jobs: WorkerJobs) -> None:
    context = job_context()
    context.step("a", int)
    with pytest.raises(StepError, match="'a-1' and 'a-2'"):
        context.step("a", int)
    for name in ("", " a", "$a", "a\n", "x" * 201, 5):
        with pytest.raises(StepError):
            context.step(name, int)  # type: ignore[arg-type]
    context.step("A", int)  # another name, also in MariaDB


def test_names_that_differ_in_their_case_are_two(jobs: WorkerJobs) -> None:
    @job("flow.case", durable=True)
    def handler(context: JobContext) -> list[str]:
        return [context.step("a", str, "small"), context.step("A", str, "large")]

    handle = handler.enqueue()
    jobs.drain().raise_first()
    assert handle.refresh().result == ["small", "large"]


def test_a_handler_that_is_not_durable_has_no_steps(jobs: WorkerJobs) -> None:
    @job("flow.none", retry={"max_attempts": 1})
    def handler(context: JobContext) -> None:
        context.step("a", int)

    handler.enqueue()
    (failed,) = jobs.drain().exceptions
    assert "durable=True" in str(failed)


def test_time_and_chance_are_the_same_in_each_run(jobs: WorkerJobs, calls: list[Any]) -> None:
    @job("flow.chance", durable=True, retry=TWICE)
    def handler(context: JobContext) -> None:
        calls.append((context.now(), context.uuid(), context.uuid(), context.random(4), context.now()))
        if context.attempt == 1:
            raise ValueError

    handler.enqueue()
    jobs.drain(with_scheduled=True)
    assert calls[0] == calls[1]
    assert calls[0][0] == NOW
    assert calls[0][1] != calls[0][2]
    assert len(calls[0][3]) == 8


# Code that has changed


def kinds(context: JobContext) -> None:
    context.step("charge", int)
    raise ValueError


def flow(handler: Any, **options: Any) -> Any:
    return job("flow.changing", retry={"max_attempts": 5, "jitter": False}, **{"durable": True, **options})(handler)


def changed(jobs: WorkerJobs, before: Any, after: Any, **options: Any) -> Any:
    """The job after one run by the first handler and the next by the second."""
    with registry.isolated():
        handle = flow(before).enqueue()
        jobs.drain()
    with registry.isolated():
        flow(after, **options)
        jobs.drain(with_scheduled=True, max_jobs=1)
    return handle.refresh()


def one_two(context: JobContext) -> str:
    context.step("one", int)
    context.step("two", int)
    if context.attempt == 1:
        raise ValueError
    return "done"


def one_new_two(context: JobContext) -> str:
    context.step("one", int)
    context.step("new", int)
    context.step("two", int)
    return "new code"


def one_sleeps(context: JobContext) -> None:
    context.sleep("1h", name="one")


@pytest.mark.parametrize("after,words", [
    (one_sleeps, ("the sleep 'one'", "a step of that name")), (one_new_two, ("the step 'new'", "the step 'two'")),
], ids=["kind", "order"])  # fmt: skip
def test_a_record_that_does_not_fit_the_code_is_told_in_words(jobs: WorkerJobs, after: Any, words: Any) -> None:
    found = changed(jobs, one_two, after)
    assert found.state == "discarded"
    assert Job.objects.get(pk=found.id).dead_letter
    error = found.errors[-1]
    assert (error["type"], error["code"]) == ("ReplayMismatch", "replay_mismatch")
    assert all(word in error["message"] for word in words)
    assert f"{__file__}:" in error["message"]
    assert 'durable="2"' in error["message"]


def test_random_bytes_of_another_number_do_not_fit(jobs: WorkerJobs) -> None:
    @job("flow.random", durable=True, retry=TWICE)
    def handler(context: JobContext) -> str:
        found = context.random(16 * context.attempt)
        if context.attempt == 1:
            raise ValueError
        return found

    handle = handler.enqueue()
    jobs.drain(with_scheduled=True)
    assert (handle.refresh().state, handle.errors[-1]["code"]) == ("discarded", "replay_mismatch")
    assert "random value of 32 bytes" in handle.errors[-1]["message"]


def test_a_mismatch_that_the_handler_catches_fails_the_job_all_the_same(jobs: WorkerJobs, calls: list[Any]) -> None:
    @job("flow.caught", durable=True, retry=TWICE)
    def handler(context: JobContext) -> str:
        try:
            context.step(f"step-{context.attempt}", calls.append, context.attempt)
        except Exception:  # noqa: BLE001 - as a handler may have it
            calls.append("caught")
        if context.attempt == 1:
            raise ValueError
        return "done"

    handle = handler.enqueue()
    jobs.drain(with_scheduled=True)
    assert (handle.refresh().state, calls, names(handle.id)) == ("discarded", [1, "caught"], ["step-1"])
    assert handle.errors[-1]["code"] == "replay_mismatch"


def test_new_code_starts_over_goes_on_or_waits_for_the_old(jobs: WorkerJobs) -> None:
    found = changed(jobs, one_two, one_new_two, durable="2")
    assert (found.state, found.result) == ("completed", "new code")
    assert set(JobStep.objects.filter(job_id=found.id).values_list("name", "code")) == {
        ("one", "2"), ("new", "2"), ("two", "2")
    }  # fmt: skip
    found = changed(jobs, one_two, one_new_two, durable="2", on_change="resume")
    assert (found.state, found.result) == ("completed", "new code")
    assert set(JobStep.objects.filter(job_id=found.id).values_list("name", "code")) == {
        ("one", ""), ("new", "2"), ("two", "")
    }  # fmt: skip
    found = changed(jobs, one_two, one_new_two, durable="2", on_change="wait")
    assert found.state == "retryable"
    assert found.errors[-1]["type"] == "ValueError"  # the newest is that of the first run
    with registry.isolated():
        flow(one_two)
        jobs.drain(with_scheduled=True)
    assert found.refresh().result == "done"


def test_a_handler_that_went_another_way_after_a_failure_need_not_go_it_again(
    jobs: WorkerJobs, calls: list[Any]
) -> None:
    def charge() -> None:
        calls.append("charge")
        if len(calls) == 1:
            raise ConnectionError

    @job("flow.fallback", durable=True, retry=TWICE)
    def handler(context: JobContext) -> str:
        try:
            context.step("charge", charge)
        except ConnectionError:
            context.step("invoice", int)
        if context.attempt == 1:
            raise ValueError
        return context.step("end", str, "end")

    handle = handler.enqueue()
    jobs.drain(with_scheduled=True)
    assert (handle.refresh().result, calls) == ("end", ["charge", "charge"])


def no_json() -> object:
    return object()


def no_row(model: Any) -> Any:
    """Breaks a foreign key, which some databases notice at the commit."""
    return lambda: model.objects.create(name="no", codename="no", content_type_id=1_000_000).pk


def refuse() -> None:
    raise Discard("no")


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    "do",
    [
        lambda context: context.step("first", no_json),
        lambda context: context.step("first", refuse),
        lambda context: context.step_transaction("first", no_json),
        lambda context: context.step_transaction("first", no_row(Permission)),
    ],
    ids=["a result that is not kept", "a directive", "a transaction whose result is not kept", "a commit that fails"],
)
def test_whatever_a_step_raises_the_handler_may_go_another_way(jobs: WorkerJobs, do: Any) -> None:
    @job("flow.other", durable=True, retry=TWICE)
    def handler(context: JobContext) -> str:
        try:
            do(context)
        except (TypeError, IntegrityError, Discard):
            context.step("second", int)
        if context.attempt == 1:
            raise ValueError
        return "end"

    handle = handler.enqueue()
    jobs.drain(with_scheduled=True)
    assert (handle.refresh().result, names(handle.id)) == ("end", ["first", "second"]), handle.errors


def test_a_step_has_all_its_tries_in_each_attempt_of_the_job(jobs: WorkerJobs, calls: list[Any]) -> None:
    def charge() -> None:
        calls.append("charge")
        raise ConnectionError

    @job("flow.all", durable=True, retry=TWICE)
    def handler(context: JobContext) -> None:
        context.step("charge", charge, retry={"max_attempts": 3, "initial_interval": "1m"})

    handle = handler.enqueue()
    jobs.drain(with_scheduled=True)
    assert (handle.refresh().state, len(calls)) == ("discarded", 6)
    handle.retry()
    jobs.drain(with_scheduled=True)
    assert len(calls) == 12


def test_a_job_that_is_woken_for_something_else_tries_no_step_before_its_pause_is_over(
    jobs: WorkerJobs, calls: list[Any]
) -> None:
    async def charge() -> str:
        calls.append(clock.now())
        if len(calls) == 1:
            raise ConnectionError
        return "paid"

    async def look(context: JobContext) -> None:
        for minute in range(3):
            await context.asleep("1m", name=f"minute-{minute}")

    @job("flow.woken", durable=True)
    async def handler(context: JobContext) -> str:
        policy: Any = {"max_attempts": 2, "initial_interval": "1h", "max_interval": "1h", "jitter": False}
        paid, _ = await asyncio.gather(context.astep("charge", charge, retry=policy), look(context))
        return paid

    handle = handler.enqueue()
    jobs.drain(with_scheduled=True)
    assert handle.refresh().result == "paid", handle.errors
    assert [at - NOW for at in calls] == [dt.timedelta(0), dt.timedelta(hours=1)]


@pytest.mark.django_db(transaction=True)
def test_a_transaction_whose_commit_has_failed_is_done_again_by_the_next_try() -> None:
    tries: list[int] = []

    def book() -> str:
        tries.append(1)
        if len(tries) == 1:
            no_row(Permission)()
        return "booked"

    @job("flow.commit", durable=True, retry={"max_attempts": 1})
    def handler(context: JobContext) -> str:
        policy: Any = {"max_attempts": 2, "initial_interval": "1ms"}
        return context.step("outer", lambda: context.step_transaction("book", book), retry=policy)

    with stored() as jobs:
        handle = handler.enqueue()
        jobs.drain()
    assert (handle.refresh().result, len(tries)) == ("booked", 2), handle.errors


# Steps that are tried again, and that take too long


def test_a_step_has_tries_of_its_own(jobs: WorkerJobs, calls: list[Any]) -> None:
    def charge() -> str:
        calls.append(clock.now())
        if len(calls) < 4:
            raise ConnectionError
        return "paid"

    @job("flow.tries", durable=True, retry={"max_attempts": 1})
    def handler(context: JobContext) -> str:
        policy = {"max_attempts": 4, "initial_interval": "1m", "jitter": False}
        return context.step("charge", charge, retry=policy)

    handle = handler.enqueue()
    jobs.drain(with_scheduled=True)
    assert handle.refresh().result == "paid"
    assert [(at - NOW).total_seconds() for at in calls] == [0, 60, 180, 420]
    found = JobStep.objects.get(job_id=handle.id)
    assert (found.tries, found.due_at, found.error) == (4, None, None)


def test_a_step_whose_tries_are_used_up_fails_its_job(jobs: WorkerJobs, calls: list[Any]) -> None:
    def charge() -> None:
        calls.append("charge")
        raise ConnectionError("no line")

    @job("flow.used", durable=True, retry={"max_attempts": 1})
    def handler(context: JobContext) -> None:
        context.step("charge", charge, retry={"max_attempts": 3})

    handle = handler.enqueue()
    jobs.drain(with_scheduled=True)
    assert (handle.refresh().state, len(calls)) == ("discarded", 3)
    assert handle.errors[-1]["type"] == "ConnectionError"


def test_a_step_ends_at_its_timeout() -> None:
    free = threading.Event()
    context = job_context()

    def busy() -> None:
        while not free.is_set():
            pass

    with pytest.raises(StepTimeout, match="'busy' took longer than its timeout"):
        context.step("busy", busy, timeout=0.05)
    assert context.step("quick", str, "quick", timeout=60) == "quick"

    async def wait() -> None:
        await asyncio.Event().wait()

    async def handler() -> None:
        with pytest.raises(StepTimeout):
            await context.astep("wait", wait, timeout=0.05)
        with pytest.raises(StepTimeout):
            await context.astep("thread", busy, timeout=0.05)

    asyncio.run(handler())


def spin() -> None:
    while True:
        pass


def test_of_steps_inside_each_other_the_one_whose_time_is_up_ends() -> None:
    context = job_context()

    def outer() -> None:
        context.step("inner", spin, timeout=60)

    def patient() -> None:
        with pytest.raises(StepTimeout, match="'patient > hasty'"):
            context.step("hasty", spin, timeout=0.05)
        spin()

    with pytest.raises(StepTimeout, match="'outer'"):
        context.step("outer", outer, timeout=0.05)
    with pytest.raises(StepTimeout, match="'patient'"):
        context.step("patient", patient, timeout=0.3)


def test_an_alarm_that_strikes_as_its_step_begins_or_ends_is_not_taken_for_one_around_a_later_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    context = job_context()
    enter = steps_module._Alarm.__enter__

    alarms: list[Any] = []

    def struck(alarm: Any) -> None:
        enter(alarm)
        alarm._rang = True
        alarms.append(alarm)
        raise steps_module._TimeIsUp

    with monkeypatch.context() as patched:
        patched.setattr(steps_module._Alarm, "__enter__", struck)
        with pytest.raises(StepTimeout, match="'first'"):
            context.step("first", int, timeout=60)
    alarms[0]._timer.join(60)
    assert not alarms[0]._timer.is_alive()
    alarms[0]._ring()  # in vain
    with pytest.raises(StepTimeout, match="'second'"):
        context.step("second", spin, timeout=0.05)


def test_where_the_alarms_of_two_steps_have_rung_the_outer_one_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """As they do during a long call of C, which no exception interrupts."""
    alarms: list[Any] = []
    enter = steps_module._Alarm.__enter__

    def note(alarm: Any) -> None:
        alarms.append(alarm)
        enter(alarm)

    monkeypatch.setattr(steps_module._Alarm, "__enter__", note)
    context = job_context()

    def inner() -> None:
        alarms[0]._rang = True
        alarms[1]._ring()
        spin()

    def outer() -> str:
        with contextlib.suppress(StepTimeout):
            context.step("inner", inner, timeout=60)
        return "went on"

    with pytest.raises(StepTimeout, match="'outer'"):
        context.step("outer", outer, timeout=60)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("by", ["Django", "the driver"])
def test_a_timeout_closes_the_connection_that_it_has_struck_and_no_other(by: str) -> None:
    context = job_context()
    Group.objects.create(name="kept")
    raw = connection.connection
    with pytest.raises(StepTimeout):
        context.step("elsewhere", spin, timeout=0.05)
    assert connection.connection is raw

    def query() -> None:
        with connection.execute_wrapper(lambda *args: spin()):
            Group.objects.exists()

    def query_of_driver() -> None:
        raw = connection.connection
        spin()
        assert raw

    with pytest.raises(StepTimeout):
        context.step("inside", query if by == "Django" else query_of_driver, timeout=0.05)
    in_memory = connection.vendor == "sqlite" and connection.is_in_memory_db()
    assert connection.connection is (raw if in_memory else None)
    assert Group.objects.get().name == "kept"


def test_a_step_that_returns_what_is_to_be_awaited(jobs: WorkerJobs, calls: list[Any]) -> None:
    async def charge(number: int) -> int:
        calls.append(number)
        if len(calls) == 1:
            raise ConnectionError("no line")
        return number

    @job("flow.awaited", durable=True)
    async def handler(context: JobContext) -> int:
        return await context.astep("charge", lambda: charge(7), retry={"max_attempts": 2, "initial_interval": "1ms"})

    handle = handler.enqueue()
    jobs.drain(with_scheduled=True).raise_first()
    assert (handle.refresh().result, calls, names(handle.id)) == (7, [7, 7], ["charge"])
    with pytest.raises(StepError, match="'charge' is asynchronous, and this handler is not"):
        job_context().step("charge", charge, 7)


def test_a_step_that_is_cancelled_before_its_record_is_stored_is_recorded(calls: list[Any]) -> None:
    context, free = job_context(), threading.Event()

    async def handler() -> None:
        done = asyncio.Event()

        async def charge() -> str:
            await occupied(free)
            calls.append("charge")
            done.set()
            return "charged"

        task = asyncio.ensure_future(context.astep("charge", charge))
        await done.wait()
        task.cancel()
        await asyncio.sleep(0)
        await cancelled(task, free)

    asyncio.run(handler())
    recorded = context._steps.store.load()
    assert [(step.name, step.result) for step in recorded] == [("charge", '"charged"')]


# Transactions


def test_effects_and_record_of_a_transaction_come_together(jobs: WorkerJobs) -> None:
    @job("flow.books", durable=True, retry={"max_attempts": 3, "jitter": False})
    def handler(context: JobContext) -> list[str]:
        first = context.step_transaction("first", lambda: Group.objects.create(name=f"first-{context.attempt}").name)
        with context.step_transaction("second") as block:
            block.result = Group.objects.create(name="second").name
            if context.attempt == 1:
                raise ValueError("undone")
        if context.attempt == 2:
            raise ValueError("after both")
        return [first, block.result, str(block.is_new)]

    handle = handler.enqueue()
    jobs.drain(with_scheduled=True)
    assert handle.refresh().result == ["first-1", "second", "False"]
    assert sorted(Group.objects.values_list("name", flat=True)) == ["first-1", "second"]


@pytest.mark.parametrize(
    "do",
    [
        lambda context: context.step("charge", int),
        lambda context: context.sleep(1),
        lambda context: context.uuid(),
        lambda context: context.continue_as_new(),
    ],
    ids=["step", "sleep", "uuid", "continue_as_new"],
)
def test_a_step_inside_a_transaction_is_refused(jobs: WorkerJobs, do: Any) -> None:
    """Its record would be undone where the handler ends by an exception, as by all that end a run: again and again."""

    @job("flow.inside", durable=True, retry={"max_attempts": 1})
    def handler(context: JobContext) -> None:
        with transaction.atomic():
            do(context)

    handler.enqueue()
    (failed,) = jobs.drain().exceptions
    assert isinstance(failed, StepError)
    assert "step_transaction" in str(failed)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("do", [lambda context: context.step("a", int), lambda context: context.sleep("1s"),
                                lambda context: context.step_transaction("a", int)])  # fmt: skip
def test_a_step_while_autocommit_is_off_is_refused(jobs: WorkerJobs, do: Any) -> None:
    @job("flow.manual", durable=True, retry={"max_attempts": 1})
    def handler(context: JobContext) -> None:
        transaction.set_autocommit(False)
        try:
            with pytest.raises(StepError, match="autocommit is off"):
                do(context)
        finally:
            transaction.rollback()
            transaction.set_autocommit(True)

    handler.enqueue()
    jobs.drain().raise_first()
    assert not JobStep.objects.exists()


def test_a_site_with_an_outbox_has_no_step_transaction(settings: Any) -> None:
    settings.OJS = {"OUTBOX": "default"}
    with pytest.raises(StepError, match="OUTBOX"):
        job_context().step_transaction("book")


# Sleep


def test_a_job_that_sleeps_gives_its_slot_back_and_keeps_the_time(jobs: WorkerJobs, calls: list[Any]) -> None:
    @job("flow.sleeps", durable=True, retry={"max_attempts": 1})
    def handler(context: JobContext) -> str:
        context.step("before", int)
        try:
            context.sleep("2d")
        except Exception:  # noqa: BLE001 - what many handlers have around everything
            calls.append("caught")
        calls.append(clock.now() - NOW)
        context.sleep_until(NOW + dt.timedelta(days=1))
        context.sleep_until(NOW + dt.timedelta(days=5), name="until")
        return "awake"

    handle = handler.enqueue()
    assert len(jobs.drain()) == 1
    assert (handle.refresh().state, Job.objects.get().due_at) == ("retryable", NOW + dt.timedelta(days=2))
    with clock.frozen(NOW + dt.timedelta(days=1)):
        assert len(jobs.drain()) == 0
    jobs.drain(with_scheduled=True)
    assert (handle.refresh().result, handle.errors) == ("awake", [])
    assert calls == [dt.timedelta(days=2), dt.timedelta(days=5)]


@pytest.mark.parametrize("zone", [dt.UTC, dt.timezone(dt.timedelta(hours=-12)), dt.timezone(dt.timedelta(hours=14))])
def test_a_sleep_may_last_until_the_end_of_the_calendar(jobs: WorkerJobs, zone: dt.tzinfo) -> None:
    """No database stores the last of it in each zone, and no wait of a job may lead beyond it."""

    @job("flow.for_ever", durable=True)
    def handler(context: JobContext, instant: str) -> None:
        context.sleep_until(getattr(dt.datetime, instant).replace(tzinfo=zone))

    over, handle = handler.enqueue("min"), handler.enqueue("max")
    jobs.drain().raise_first()
    assert (over.refresh().state, handle.refresh().state, handle.attempt) == ("completed", "retryable", 1)
    assert JobStep.objects.get(job_id=handle.id).due_at.year == 9999
    handle.cancel()


def test_a_sleeping_job_can_be_cancelled(jobs: WorkerJobs) -> None:
    @job("flow.cancelled", durable=True)
    def handler(context: JobContext) -> None:
        context.sleep("2d")

    handle = handler.enqueue()
    jobs.drain()
    handle.cancel()
    jobs.drain(with_scheduled=True)
    assert handle.refresh().state == "cancelled"


def test_a_loop_without_end_keeps_a_small_record(jobs: WorkerJobs) -> None:
    @job("flow.loop", durable=True, retry={"max_attempts": 1})
    def handler(context: JobContext, left: int, *, total: int = 0) -> int:
        total += context.step("work", int, 2)
        context.sleep("1h")
        if left:
            context.continue_as_new(left - 1, total=total)
        return total

    handle = handler.enqueue(20)
    jobs.drain(with_scheduled=True)
    assert handle.refresh().result == 42
    assert handle.args == [20]
    assert names(handle.id) == ["$arguments", "work", "$sleep-1"]
    assert clock.now() == NOW


@pytest.mark.parametrize(
    "call, said",
    [
        (lambda context: context.continue_as_new(), "missing a required argument: 'left'"),
        (lambda context: context.continue_as_new(1, 2), "too many positional arguments"),
        (lambda context: context.continue_as_new(1, totl=2), "unexpected keyword argument 'totl'"),
        (lambda context: context.continue_as_new(object()), r"^args\[0\] is a builtins.object"),
        (lambda context: context.continue_as_new(float("nan")), r"^args\[0\] is nan"),
    ],
)
def test_arguments_that_do_not_fit_are_refused_by_the_run_that_gives_them(
    jobs: WorkerJobs, call: Any, said: str
) -> None:
    """What is recorded stays, and so do the arguments: another run can go on."""

    @job("flow.wrong", durable=True, retry={"max_attempts": 1})
    def handler(context: JobContext, left: int, *, total: int = 0) -> int:
        context.step("work", int, 2)
        with pytest.raises(TypeError, match=said):
            call(context)
        return context.step("more", int, left)

    handle = handler.enqueue(7)
    jobs.drain().raise_first()
    assert handle.refresh().result == 7
    assert names(handle.id) == ["work", "more"]
    with pytest.raises(TypeError, match=said):
        call(job_context(handler))


@pytest.mark.parametrize("is_async", [False, True])
def test_typed_arguments_go_on_as_what_they_are(jobs: WorkerJobs, is_async: bool) -> None:
    known = uuid.UUID(int=7)

    def check(key: uuid.UUID, group: Group, day: dt.date | None) -> bool:
        assert (key, group.name) == (known, "staff")
        return day is not None

    def handler(context: JobContext, key: uuid.UUID, *, group: Group, day: dt.date | None = None) -> str:
        if not check(key, group, day):
            context.continue_as_new(key, group=group, day=dt.date(2026, 5, 4))
        return str(day)

    async def ahandler(context: JobContext, key: uuid.UUID, *, group: Group, day: dt.date | None = None) -> str:
        if not check(key, group, day):
            await context.acontinue_as_new(key, group=group, day=dt.date(2026, 5, 4))
        return str(day)

    made: Any = job("flow.typed", durable=True, args=Typed, retry={"max_attempts": 1})(
        ahandler if is_async else handler
    )
    handle = made.enqueue(known, group=Group.objects.create(name="staff"))
    jobs.drain().raise_first()
    assert handle.refresh().result == "2026-05-04"


# Decorated functions


@step
def reserve(order: int) -> str:
    return f"reserved {order}"


@step(name="pay", retry={"max_attempts": 2}, timeout="10s")
def charge(order: int) -> str:
    return f"charged {order}"


def test_a_function_is_a_step_where_a_durable_handler_calls_it(jobs: WorkerJobs) -> None:
    @job("flow.functions", durable=True)
    def handler(context: JobContext, order: int) -> list[str]:
        return [reserve(order), charge(order), reserve.named("reserve-again")(order)]

    @job("flow.bare")
    def bare() -> str:
        return reserve(1)

    handle, other = handler.enqueue(3), bare.enqueue()
    jobs.drain().raise_first()
    assert handle.refresh().result == ["reserved 3", "charged 3", "reserved 3"]
    assert names(handle.id) == ["reserve", "pay", "reserve-again"]
    assert (other.refresh().result, names(other.id)) == ("reserved 1", [])
    assert reserve(5) == "reserved 5"


@step
def fetch(url: str, timeout: int = 10, retry: int = 0) -> str:
    return f"{url} {timeout} {retry}"


def test_a_function_gets_its_own_arguments_whatever_they_are_called(jobs: WorkerJobs) -> None:
    @job("flow.named", durable=True)
    def handler(context: JobContext) -> str:
        return fetch("a", timeout=30, retry=2)

    handle = handler.enqueue()
    jobs.drain().raise_first()
    assert handle.refresh().result == fetch("a", timeout=30, retry=2) == "a 30 2"


def with_words(function: Any) -> Any:
    """As a decorator of another library, which gives a function attributes of its own."""
    function.retry, function.name = "of another library", "another name"
    return function


@step
@with_words
def decorated() -> str:
    return "done"


def test_a_function_keeps_what_another_decorator_has_given_it(jobs: WorkerJobs) -> None:
    @job("flow.decorated", durable=True)
    def handler(context: JobContext) -> str:
        return decorated()

    handle = handler.enqueue()
    jobs.drain().raise_first()
    assert (handle.refresh().result, names(handle.id)) == ("done", ["decorated"])


class Shop:
    """A service with steps."""

    def __init__(self, city: str) -> None:
        self.city = city

    @step(retry={"max_attempts": 2})
    def charge(self, order: int) -> list[Any]:
        return [self.city, order]

    @step
    async def acharge(self, order: int) -> list[Any]:
        return [self.city, order]

    @staticmethod
    @step
    def fixed(order: int) -> int:
        return order

    @step
    @staticmethod
    def steady(order: int) -> int:
        return order

    @classmethod
    @step
    def named(cls, order: int) -> list[Any]:
        return [cls.__name__, order]


def test_a_method_is_a_step_of_its_object(jobs: WorkerJobs) -> None:
    shop = Shop("Bonn")

    @job("flow.methods", durable=True)
    def handler(context: JobContext) -> list[Any]:
        done = [shop.charge(1), shop.charge.named("again")(2), Shop.charge.named("unbound")(shop, 3)]
        return [*done, shop.fixed(4), Shop.steady(5), shop.steady.named("steady-2")(6), Shop.named(7)]

    @job("flow.methods.async", durable=True)
    async def later(context: JobContext) -> list[Any]:
        return await shop.acharge(8)

    handle, other = handler.enqueue(), later.enqueue()
    jobs.drain().raise_first()
    assert handle.refresh().result == [["Bonn", 1], ["Bonn", 2], ["Bonn", 3], 4, 5, 6, ["Shop", 7]]
    assert names(handle.id) == ["charge", "again", "unbound", "fixed", "steady", "steady-2", "named"]
    assert other.refresh().result == ["Bonn", 8]
    assert shop.charge(9) == ["Bonn", 9]


# Steps inside of steps

booked: list[str] = []


@step
def book(item: str) -> str:
    booked.append(item)
    return item


def book_all(context: JobContext, failing: list[str]) -> list[str]:
    """What a step does that has steps of its own, and fails as often as is said."""
    found = [str(context.uuid()), book("room"), context.step("bus", book.function, "bus"), str(context.now())]
    if failing:
        raise ConnectionError(failing.pop())
    return found


@pytest.mark.parametrize("tries", [1, 3], ids=["tried by the job", "tried by the step"])
def test_what_a_step_does_inside_is_recorded_as_its_own(jobs: WorkerJobs, tries: int) -> None:
    """A run that comes to the step again, or no more, meets no other order, and takes nothing of it for its own."""
    booked.clear()
    failing, keys = ["first", "second"], set()
    policy: Any = {"max_attempts": tries, "initial_interval": "1ms"}

    @job("flow.inside", durable=True, retry={"max_attempts": 3, "initial_interval": "1s"})
    def handler(context: JobContext) -> list[str]:
        key, *found, _ = context.step("travel", book_all, context, failing, retry=policy)
        keys.update([key, str(context.uuid())])
        context.sleep("1h")
        return [*found, book("car")]

    handle = handler.enqueue()
    jobs.drain(with_scheduled=True)
    assert handle.refresh().state == "completed", handle.errors
    assert (handle.result, booked, len(keys)) == (["room", "bus", "car"], ["room", "bus", "car"], 2)
    inside = ["travel > $uuid-1", "travel > book", "travel > bus", "travel > $time-1"]
    assert sorted(names(handle.id)) == sorted([*inside, "travel", "$uuid-1", "$sleep-1", "book"])


@pytest.mark.django_db(transaction=True)
def test_a_step_inside_that_has_failed_is_done_again_with_the_one_around_it(calls: list[Any]) -> None:
    def inner() -> str:
        calls.append("inner")
        if len(calls) < 3:
            raise ConnectionError
        return "done"

    def outer(context: JobContext) -> str:
        return context.step("inner", inner)

    @job("flow.inside.fails", durable=True, retry={"max_attempts": 1})
    def handler(context: JobContext) -> str:
        return context.step("outer", outer, context, retry={"max_attempts": 3, "initial_interval": "1ms"})

    @job("flow.inside.fails.async", durable=True, retry={"max_attempts": 1})
    async def later(context: JobContext) -> str:
        async def around() -> str:
            return await context.astep("inner", inner)

        return await context.astep("outer", around, retry={"max_attempts": 3, "initial_interval": "1ms"})

    for handle in (handler.enqueue(), later.enqueue()):
        calls.clear()
        with stored() as jobs:
            jobs.drain(max_jobs=1)
        assert (handle.refresh().result, len(calls)) == ("done", 3), handle.errors
        assert names(handle.id) == ["outer > inner", "outer"]


def test_a_step_may_wait_inside(jobs: WorkerJobs, calls: list[Any]) -> None:
    def work(context: JobContext) -> None:
        context.sleep("1h")
        calls.append("work")

    @job("flow.waits", durable=True)
    async def later(context: JobContext) -> None:
        async def inside() -> None:
            await context.asleep("1h")
            calls.append("work")

        await context.astep("later", inside)

    @job("flow.waits.sync", durable=True)
    def handler(context: JobContext) -> None:
        context.step("work", work, context)

    handles = [handler.enqueue(), later.enqueue()]
    jobs.drain()
    assert ([handle.refresh().state for handle in handles], calls) == (["retryable"] * 2, [])
    jobs.drain(with_scheduled=True).raise_first()
    assert ([handle.refresh().state for handle in handles], calls) == (["completed"] * 2, ["work"] * 2)


def test_a_job_that_begins_again_at_a_step_forgets_what_that_did_inside(jobs: WorkerJobs) -> None:
    booked.clear()

    @job("flow.anew", durable=True)
    def handler(context: JobContext) -> None:
        context.step("first", int)
        context.step("travel", book_all, context, [])
        context.sleep("1h")

    handle = handler.enqueue()
    jobs.drain()
    restart_from(handle.id, "travel")
    assert names(handle.id) == ["first"]


def test_a_job_that_begins_again_inside_of_a_step_does_that_step_again(jobs: WorkerJobs, calls: list[Any]) -> None:
    def work(context: JobContext) -> None:
        context.step("one", calls.append, "one")
        if calls == ["one"]:
            calls.append("failed")  # the outer step is recorded now, before what it does inside next
            raise ValueError
        context.step("two", calls.append, "two")

    @job("flow.anew.inside", durable=True)
    def handler(context: JobContext) -> None:
        context.step("work", work, context, retry={"max_attempts": 2, "initial_interval": "1m"})
        context.wait_for_event("go")

    handle = handler.enqueue()
    jobs.drain(with_scheduled=True)
    assert names(handle.id)[:3] == ["work > one", "work", "work > two"]
    restart_from(handle.id, "work > two")
    assert names(handle.id) == ["work > one"]
    jobs.drain(with_scheduled=True)
    assert calls == ["one", "failed", "two", "two"]


@pytest.mark.parametrize("name", ["travel > bus", "a > b > c"])
def test_no_step_has_a_name_like_that_of_one_inside(jobs: WorkerJobs, name: str) -> None:
    @job("flow.like", durable=True, retry={"max_attempts": 1})
    def handler(context: JobContext) -> None:
        context.step(name, int)

    handle = handler.enqueue()
    jobs.drain()
    assert "stands between the name of a step" in handle.refresh().errors[0]["message"]


def test_a_step_inside_of_others_has_a_name_that_is_kept(jobs: WorkerJobs) -> None:
    @job("flow.long", durable=True, retry={"max_attempts": 1})
    def handler(context: JobContext) -> None:
        context.step("a" * 190, context.uuid)

    handle = handler.enqueue()
    jobs.drain()
    assert "give them shorter names" in handle.refresh().errors[0]["message"]


# Asynchronous handlers


def plainly(function: Any) -> Any:
    """A decorator that knows nothing of coroutines."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return call


def test_an_asynchronous_handler_behind_a_plain_decorator_may_do_its_steps_in_any_order(
    jobs: WorkerJobs, calls: list[Any]
) -> None:
    @job("flow.plainly", durable=True, retry=TWICE)
    @plainly
    async def handler(context: JobContext) -> list[Any]:
        recorded = asyncio.Event()

        async def first() -> str:
            if context.attempt == 1:
                await recorded.wait()
                raise ConnectionError
            return "first"

        async def second() -> None:
            await context.astep("second", calls.append, "second")
            recorded.set()

        return await asyncio.gather(context.astep("first", first), second())

    handle = handler.enqueue()
    jobs.drain(with_scheduled=True)
    assert (handle.refresh().result, calls) == (["first", None], ["second"]), handle.errors


@pytest.mark.django_db(transaction=True)
def test_steps_of_an_asynchronous_handler_run_side_by_side(jobs: WorkerJobs, calls: list[Any]) -> None:
    async def fetch(page: int, others: asyncio.Barrier) -> int:
        await others.wait()  # which nobody passes alone
        calls.append(page)
        return page * 10

    @job("flow.pages", durable=True, retry=TWICE)
    async def handler(context: JobContext) -> list[int]:
        together = asyncio.Barrier(3)
        found = await asyncio.gather(*(context.astep(f"page-{n}", fetch, n, together) for n in range(3)))
        await context.asleep("1h")
        moment = await context.anow()
        if context.attempt == 2:
            raise ValueError
        context.metadata["at"] = moment
        await context.astep_transaction("book", Group.objects.create, name="booked")
        return [*found, await context.astep("sync", int, 5)]

    handle = handler.enqueue()
    jobs.drain(with_scheduled=True)
    assert handle.refresh().result == [0, 10, 20, 5]
    assert sorted(calls) == [0, 1, 2]
    assert set(names(handle.id)) == {"page-0", "page-1", "page-2", "$sleep-1", "$time-1", "book", "sync"}


@pytest.mark.parametrize("goes_on", [True, False], ids=["to the next step", "to its end"])
def test_a_handler_that_keeps_the_end_of_its_run_ends_there_all_the_same(
    jobs: WorkerJobs, calls: list[Any], caplog: pytest.LogCaptureFixture, goes_on: bool
) -> None:
    @job("flow.keeps", durable=True)
    def handler(context: JobContext) -> str:
        try:
            context.sleep("1h")
        except:  # noqa: E722 - as a handler may have it
            calls.append("kept")
        if goes_on:
            context.step("after", calls.append, "after")
        return "done"

    handle = handler.enqueue()
    jobs.drain()
    assert (handle.refresh().state, calls, names(handle.id)) == ("retryable", ["kept"], ["$sleep-1"])
    assert ("let its except clauses raise Suspended again" in caplog.text) is not goes_on
    jobs.drain(with_scheduled=True).raise_first()
    assert handle.refresh().result == "done"
    assert calls == (["kept", "after"] if goes_on else ["kept"])


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("how", ["from", "instead", "from None", "finally"])
def test_a_handler_that_makes_another_exception_of_the_end_of_its_run_ends_as_the_step_said(
    jobs: WorkerJobs, caplog: pytest.LogCaptureFixture, is_async: bool, how: str
) -> None:
    """The attempt had failed, also the last one, of a job that only slept."""

    @contextlib.contextmanager
    def site() -> Any:
        try:
            yield
        except BaseException as error:
            if how == "from":
                raise OSError("the line is cut") from error
            if how == "from None":
                raise OSError("the line is cut") from None
            if how == "instead":
                raise OSError("the line is cut")  # noqa: B904 - as a site may have it
            raise
        finally:
            if how == "finally" and sys.exception() is not None:
                raise OSError("the line is cut")

    @job("flow.another", durable=True, retry={"max_attempts": 1})
    def handler(context: JobContext) -> str:
        with site():
            context.sleep("1h")
        return "done"

    @job("flow.another.async", durable=True, retry={"max_attempts": 1})
    async def later(context: JobContext) -> str:
        with site():
            await context.asleep("1h")
        return "done"

    handle = (later if is_async else handler).enqueue()
    jobs.drain()
    assert (handle.refresh().state, handle.errors) == ("retryable", [])
    assert "let its except clauses raise Suspended again, in place of OSError" in caplog.text
    jobs.drain(with_scheduled=True).raise_first()
    assert handle.refresh().result == "done"


def test_a_handler_may_decide_what_becomes_of_its_job_when_a_step_ends_its_run(jobs: WorkerJobs) -> None:
    @job("flow.decides", durable=True)
    def handler(context: JobContext) -> None:
        try:
            context.sleep("1h")
        except BaseException as error:
            raise Discard("nobody waits that long") from error

    handle = handler.enqueue()
    jobs.drain()
    assert (handle.refresh().state, handle.errors[-1]["message"]) == ("discarded", "nobody waits that long")


def test_an_asynchronous_handler_that_goes_on_without_a_branch_that_waits_is_told_of(
    jobs: WorkerJobs, caplog: pytest.LogCaptureFixture
) -> None:
    @job("flow.lost.branch", durable=True)
    async def handler(context: JobContext) -> int:
        found = await asyncio.gather(context.asleep("1h"), context.astep("one", int, 1), return_exceptions=True)
        return found[1] if isinstance(found[1], int) else 0

    handle = handler.enqueue()
    jobs.drain()
    assert handle.refresh().result == 1
    assert "a branch of it has raised Suspended" in caplog.text


@pytest.mark.parametrize("decorated", [lambda handler: handler, plainly], ids=["by itself", "behind a plain decorator"])
def test_a_step_beside_one_that_fails_is_recorded_before_the_handler_has_ended(
    jobs: WorkerJobs, calls: list[Any], decorated: Any
) -> None:
    @job("flow.beside", durable=True, retry=TWICE)
    @decorated
    async def handler(context: JobContext) -> None:
        ended = asyncio.Event()

        def fails() -> None:
            if context.attempt == 1:
                raise ValueError("no lorry")

        async def slow() -> None:
            await ended.wait()
            calls.append("slow")

        async def more() -> None:
            await context.astep("slow", slow)
            await context.astep("more", calls.append, "more")

        try:
            await asyncio.gather(context.astep("fails", fails), more())
        finally:
            ended.set()

    handle = handler.enqueue()
    jobs.drain()
    assert (handle.refresh().state, calls, "slow" in names(handle.id)) == ("retryable", ["slow"], True)
    jobs.drain(with_scheduled=True)
    assert calls == ["slow", "more"]


def test_a_step_in_a_thread_is_recorded_although_its_task_was_cancelled(jobs: WorkerJobs, calls: list[Any]) -> None:
    @job("flow.group", durable=True, retry=TWICE)
    async def handler(context: JobContext) -> None:
        began, ended = asyncio.Event(), threading.Event()
        loop = asyncio.get_running_loop()

        def works() -> None:
            loop.call_soon_threadsafe(began.set)
            ended.wait(5)
            calls.append("works")

        async def fails() -> None:
            if context.attempt == 1:
                await began.wait()
                raise ValueError("no lorry")

        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(context.astep("works", works))
                group.create_task(fails())
        finally:
            ended.set()

    handle = handler.enqueue()
    jobs.drain()
    assert (handle.refresh().state, calls, names(handle.id)) == ("retryable", ["works"], ["works"])
    jobs.drain(with_scheduled=True).raise_first()
    assert (handle.refresh().state, calls) == ("completed", ["works"])


def test_a_step_between_two_tries_ends_with_its_handler(calls: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    sleep = asyncio.sleep

    async def until_the_handler_has_ended(seconds: float) -> None:
        while not calls[0].branches.is_over:
            await sleep(0)

    @job("flow.pause", durable=True, retry={"max_attempts": 1})
    async def handler(context: JobContext) -> None:
        tried = asyncio.Event()
        calls.append(context)
        monkeypatch.setattr(asyncio, "sleep", until_the_handler_has_ended)

        async def tries() -> None:
            calls.append("tried")
            tried.set()
            raise ConnectionError

        async def fails() -> None:
            await tried.wait()
            raise ValueError("no lorry")

        await asyncio.gather(context.astep("tries", tries, retry={"max_attempts": 3}), fails())

    with stored() as jobs:
        handle = handler.enqueue()
        jobs.drain()
    assert (handle.refresh().state, calls[1:]) == ("discarded", ["tried"])
    assert handle.errors[-1]["type"] == "ValueError"


def test_a_run_that_is_to_stop_while_a_branch_goes_to_sleep_has_not_failed() -> None:
    end = BaseExceptionGroup("", [Suspended(5), StepBoundary()])
    assert runs.is_boundary(end)
    assert not runs.is_boundary(Suspended(5))
    assert not runs.is_boundary(BaseExceptionGroup("", [StepBoundary(), ValueError()]))


# Fences


@pytest.mark.parametrize("how", ["step", "step_transaction", "sleep", "now"])
def test_a_run_that_has_lost_its_job_ends_at_its_next_step(jobs: WorkerJobs, calls: list[Any], how: str) -> None:
    @job("flow.lost", durable=True, retry={"max_attempts": 1})
    def handler(context: JobContext) -> str:
        if not calls:
            calls.append("lost")
            Job.objects.filter(pk=context.id).update(attempt=7)
            arguments: dict[str, Any] = {
                "step": ("a", calls.append, "done"), "sleep": ("1h",), "now": (),
                "step_transaction": ("a", lambda: Group.objects.create(name="effect").name),
            }  # fmt: skip
            getattr(context, how)(*arguments[how])
            calls.append("went on")
        return "second"

    handle = handler.enqueue()
    with pytest.raises(RuntimeError, match="could not be stored"):
        jobs.drain()
    assert calls == (["lost", "done"] if how == "step" else ["lost"])
    assert names(handle.id) == []
    assert not Group.objects.exists()


def test_a_step_that_another_run_has_ended_meanwhile_strands_no_job(jobs: WorkerJobs, calls: list[Any]) -> None:
    """The record of a run that had lost the job may be stored a moment later. This one still has it."""

    def tries() -> str:
        calls.append("tries")
        if len(calls) == 1:
            raise ConnectionError("no line")
        JobStep.objects.update(result="theirs", ended_at=NOW)
        return "mine"

    @job("flow.met", durable=True, retry={"max_attempts": 1})
    def handler(context: JobContext) -> str:
        return context.step("tries", tries, retry={"max_attempts": 2, "initial_interval": "1h"})

    handle = handler.enqueue()
    jobs.drain(with_scheduled=True).raise_first()
    assert (handle.refresh().result, calls) == ("theirs", ["tries", "tries"])


@pytest.mark.parametrize("options,word", [
    ({"durable": True, "transactional": True}, "step_transaction"), ({"durable": True, "inline": True}, "inline"),
    ({"durable": 5}, "durable=5"), ({"durable": "x" * 65}, "64 characters"),
    ({"durable": True, "on_change": "wiat"}, "'wait'"),
], ids=str)  # fmt: skip
def test_what_does_not_go_together_is_a_fault_of_the_declaration(handlers: Registry, options: Any, word: str) -> None:
    job("flow.wrong", **options)(lambda context: None)
    (fault,) = handlers.faults()
    assert word in fault.message


def test_a_handler_with_steps_can_be_called_as_the_function_that_it_is(calls: list[Any]) -> None:
    def handler(context: JobContext) -> int:
        found = context.step("one", lambda: calls.append(1) or len(calls))
        context.sleep("5d")
        return context.step("two", int, found)

    assert handler(job_context()) == 1
    assert calls == [1]


def test_a_mismatch_is_an_error_of_its_own() -> None:
    assert ReplayMismatch.__module__ == StepError.__module__ == StepTimeout.__module__ == "django_ojs"


def test_time_passes_tick_by_tick() -> None:
    @job("flow.days", durable=True)
    def handler(context: JobContext) -> list[str]:
        began = context.now()
        context.sleep("3d")
        try:
            context.wait_for_event("flow.never", timeout="2d")
        except EventTimeout:
            return [str(context.now() - began)]
        return []

    with stored() as jobs:
        start = jobs.freeze()
        handle = handler.enqueue()
        assert [len(jobs.tick("2d")) for _ in range(2)] == [1, 1]
        assert handle.refresh().state == "retryable"
        assert jobs.tick("1d").completed == 1
        assert clock.now() == start + dt.timedelta(days=5)
    assert clock.override() is None
    assert handle.refresh().result == ["5 days, 0:00:00"]
