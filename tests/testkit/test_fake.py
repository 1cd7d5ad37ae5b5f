"""The fake mode: what is enqueued is taken down, checked as PUSH checks it, and goes no further."""

from __future__ import annotations

import contextlib
import datetime as dt
import uuid
from typing import Any
from unittest import mock

import pytest
from django.db import transaction

from django_ojs import Workflow, aenqueue, batch, chain, emit_event, enqueue, enqueue_many, get_job, group, job
from django_ojs.errors import Conflict, Duplicate, InvalidPayload, InvalidRequest, InvalidWorkflow, MiddlewareRejected
from django_ojs.models import CronRun, Event, Job, OutboxEntry, Queue
from django_ojs.testing import FakeJobs, fake
from tests.middlewares import added


@pytest.fixture
def send() -> Any:
    @job("email.send", queue="email", retry={"max_attempts": 5}, tags=["mail"])
    def send(to: str, template: str = "plain") -> None:
        raise AssertionError("nothing runs in a fake")

    return send


def test_it_needs_no_database(ojs_fake: FakeJobs, send: Any) -> None:
    """No django_db mark here: pytest-django forbids every query."""
    handle = send.enqueue("a@b.c")
    assert handle.refresh().state == "available"
    assert get_job(handle.id) == handle
    assert handle.cancel("not wanted").state == "cancelled"
    assert ojs_fake.assert_enqueued(send).state == "cancelled"


@pytest.mark.django_db
def test_nothing_is_written(ojs_fake: FakeJobs, send: Any) -> None:
    send.enqueue("a@b.c")
    enqueue_many([send.s("a"), ("report.make", [1], {"delay": "1h"})])
    chain(send.s("a"), send.s("b")).enqueue(name="both")
    assert not any(model.objects.exists() for model in (Job, Event, Queue, CronRun, OutboxEntry))


def test_sentences_about_what_was_enqueued(ojs_fake: FakeJobs, send: Any, frozen_clock: Any) -> None:
    send.options(meta={"tenant": "x", "user": 1}, priority="HIGH").enqueue("a@b.c", "welcome")
    send.options(delay="10m").enqueue("a@b.c")
    enqueue("report.make", {"year": 2026}, (1, 2))
    ojs_fake.assert_enqueued("email.send", times=2)
    ojs_fake.assert_enqueued(send, args=["a@b.c", "welcome"], queue="email", times=1, tags=["mail"])
    ojs_fake.assert_enqueued(send, args=[mock.ANY, "welcome"], meta={"tenant": "x"}, priority="HIGH")
    ojs_fake.assert_enqueued(send, delay="10m", at=frozen_clock.now + dt.timedelta(minutes=10), state="scheduled")
    ojs_fake.assert_enqueued("report.make", args=[{"year": 2026}, (1, 2)], delay=0)
    assert len(ojs_fake.assert_enqueued_in("email", times=2)) == 2
    ojs_fake.assert_enqueued_in("default", "report.make")
    ojs_fake.assert_not_enqueued(send, args=["someone@else"])
    ojs_fake.assert_not_enqueued("report.send")
    assert [found.type for found in ojs_fake.find(queue="email")] == ["email.send", "email.send"]
    ojs_fake.clear()
    ojs_fake.assert_nothing_enqueued()


def test_the_names_of_the_specification_say_the_same(ojs_fake: FakeJobs, send: Any, frozen_clock: Any) -> None:
    """No django_db mark here either."""
    first = send.enqueue("a@b.c")
    assert ojs_fake.assert_enqueued(send, count=1) == first
    assert ojs_fake.assert_enqueued_in("email", count=1) == ojs_fake.all_enqueued(send, queue="email", args=["a@b.c"])
    ojs_fake.refute_enqueued(send, args=["b@b.c"])
    with pytest.raises(AssertionError, match="not to be enqueued"):
        ojs_fake.refute_enqueued(send)
    with pytest.raises(AssertionError, match="1 time, not 2"):
        ojs_fake.assert_enqueued(send, count=2)
    with pytest.raises(TypeError, match=r"count=0: say assert_not_enqueued\(\) or refute_enqueued\(\)"):
        ojs_fake.assert_enqueued(send, count=0)
    with pytest.raises(TypeError, match="give one of them"):
        ojs_fake.assert_enqueued(send, count=1, times=1)
    ojs_fake.assert_job_state(str(first.id), "available")
    with pytest.raises(AssertionError, match="available> is not completed"):
        ojs_fake.assert_job_state(first, "completed")
    with pytest.raises(AssertionError, match=r"(?s)There is no job 2026.*There is 1 job.*email.send\('a@b.c'"):
        ojs_fake.assert_job_state("2026", "available")
    chain(send.s("a"), send.s("b")).enqueue(name="both")
    assert ojs_fake.assert_workflow_created("chain", name="both", count=1).name == "both"
    with pytest.raises(AssertionError, match="No workflow of type batch"):
        ojs_fake.assert_workflow_created("batch")
    at = ojs_fake.freeze_time()
    assert ojs_fake.advance_time("10m") == at + dt.timedelta(minutes=10)
    ojs_fake.clear_all()
    ojs_fake.assert_nothing_enqueued()


@pytest.mark.parametrize(
    "expected",
    [
        {"args": ["a@b.c", "other"]}, {"queue": "default"}, {"meta": {"tenant": "y"}}, {"meta": {"none": None}},
        {"priority": 0}, {"tags": ["x"]}, {"delay": "1s"}, {"at": dt.datetime(2026, 1, 1, tzinfo=dt.UTC)},
        {"state": "scheduled"}, {"times": 2},
    ],
)  # fmt: skip
def test_a_sentence_that_is_not_true_fails(ojs_fake: FakeJobs, send: Any, expected: dict[str, Any]) -> None:
    send.options(meta={"tenant": "x"}, priority=3).enqueue("a@b.c", "welcome")
    with pytest.raises(AssertionError):
        ojs_fake.assert_enqueued(send, **expected)
    with pytest.raises(AssertionError):
        ojs_fake.assert_not_enqueued(send)
    with pytest.raises(AssertionError):
        ojs_fake.assert_not_enqueued()
    with pytest.raises(AssertionError):
        ojs_fake.assert_nothing_enqueued()
    with pytest.raises(AssertionError):
        ojs_fake.assert_enqueued_in("default")


def test_a_failure_tells_what_there_is_and_why_it_does_not_fit(ojs_fake: FakeJobs, send: Any) -> None:
    send.options(delay="1h").enqueue("a@b.c", "welcome")
    enqueue("report.make", 1)
    with pytest.raises(AssertionError) as caught:
        ojs_fake.assert_enqueued(send, args=["x@y.z"], queue="email")
    text = str(caught.value)
    assert "This was not enqueued: email.send, args=['x@y.z'], queue='email'." in text
    assert "1. email.send('a@b.c', 'welcome') queue='email', scheduled, not before 2" in text
    assert "<- args differ" in text
    assert "2. report.make(1) queue='default', available   <- another type" in text


def test_a_mistyped_expectation_is_no_expectation_that_always_holds(ojs_fake: FakeJobs, send: Any) -> None:
    send.enqueue("a")
    with pytest.raises(TypeError, match="que"):
        ojs_fake.assert_not_enqueued(send, que="email")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="assert_not_enqueued"):
        ojs_fake.assert_enqueued(send, times=0)


@pytest.mark.parametrize("bad", [("a", "b", "c"), (dt.date(2026, 1, 1),), ()])
def test_arguments_that_a_real_enqueue_refuses_fail_the_test(ojs_fake: FakeJobs, send: Any, bad: tuple[Any]) -> None:
    with pytest.raises(TypeError):
        send.enqueue(*bad)
    ojs_fake.assert_nothing_enqueued()


def test_the_envelope_is_validated(ojs_fake: FakeJobs, send: Any) -> None:
    with pytest.raises(InvalidPayload):
        enqueue("No Such Type")
    with pytest.raises(InvalidPayload) as caught:
        enqueue_many([send.s("a"), ("Bad", [])])
    assert caught.value.details["index"] == 1
    with pytest.raises(InvalidWorkflow):
        Workflow.graph({"a": send.s("a")}, after={"a": "a"}).enqueue()
    ojs_fake.assert_nothing_enqueued()


def test_a_taken_id_is_refused(ojs_fake: FakeJobs, send: Any) -> None:
    handle = send.enqueue("a")
    with pytest.raises(Duplicate):
        send.options(id=handle.id).enqueue("b")


def test_unique_policies_hold_among_the_jobs_of_the_test(ojs_fake: FakeJobs, send: Any) -> None:
    first = send.options(unique=True).enqueue("a")
    with pytest.raises(Duplicate):
        send.options(unique=True).enqueue("a")
    assert send.options(unique={"on_conflict": "ignore"}).enqueue("a").deduplicated
    second = send.options(unique={"on_conflict": "replace"}).enqueue("a")
    assert (first.refresh().state, second.state) == ("cancelled", "available")
    send.options(unique=True).enqueue("b")
    assert len(ojs_fake.enqueued) == 3


def test_a_workflow_does_not_begin_with_a_unique_job_that_is_there_already(ojs_fake: FakeJobs, send: Any) -> None:
    reindex = send.options(unique={"on_conflict": "ignore"})
    first = reindex.enqueue("a")
    with pytest.raises(Duplicate, match=str(first.id)):
        chain(reindex.s("a"), send.s("b")).enqueue()
    assert (ojs_fake.workflows, ojs_fake.enqueued) == ([], [first])


def test_enqueue_middleware_runs(ojs_fake: FakeJobs, send: Any) -> None:
    def gate(document: dict[str, Any], proceed: Any) -> Any:
        if document["args"][0] == "drop":
            return None
        if document["args"][0] == "refuse":
            raise MiddlewareRejected("no")
        return proceed({**document, "meta": {"seen": True}})

    with added(gate):
        send.enqueue("a")
        assert send.enqueue("drop").dropped
        with pytest.raises(MiddlewareRejected):
            send.enqueue("refuse")
    assert ojs_fake.assert_enqueued(send, times=1).meta == {"seen": True}


@pytest.mark.django_db
def test_what_is_rolled_back_was_never_enqueued(ojs_fake: FakeJobs, send: Any) -> None:
    with transaction.atomic():
        send.enqueue("kept")
        with contextlib.suppress(ZeroDivisionError), transaction.atomic():
            send.enqueue("lost")
            chain(send.s("lost")).enqueue()
            1 / 0  # noqa: B018
        send.options(unique=True).enqueue("also")
    assert [found.args for found in ojs_fake.enqueued] == [["kept"], ["also"]]
    assert ojs_fake.workflows == []


@pytest.mark.django_db(transaction=True)
def test_what_is_committed_or_rolled_back_without_a_test_case(ojs_fake: FakeJobs, send: Any) -> None:
    with transaction.atomic():
        send.enqueue("kept")
    with contextlib.suppress(ZeroDivisionError), transaction.atomic():
        send.enqueue("lost")
        1 / 0  # noqa: B018
    ojs_fake.assert_enqueued(send, args=["kept"], times=1)
    assert len(ojs_fake.enqueued) == 1


def test_workflows_are_stored_as_definitions(ojs_fake: FakeJobs, send: Any) -> None:
    flow = chain(send.s("a"), send.s("b")).enqueue(name="etl")
    assert (flow.state, [member.args for member in flow.jobs]) == ("running", [["a"]])
    assert flow.refresh().document["steps"][1]["args"] == ["b"]
    assert ojs_fake.assert_workflow_enqueued("chain", name="etl", times=1) == flow
    ojs_fake.assert_enqueued(send, times=1)
    batch(send.s("x"), send.s("y"), on_success=send.s("done")).enqueue()
    ojs_fake.assert_enqueued(send, times=3)
    with pytest.raises(AssertionError, match="chain"):
        ojs_fake.assert_workflow_enqueued("group")
    with pytest.raises(Duplicate):
        group(send.s("a")).enqueue(id=flow.id)
    assert flow.cancel().state == "cancelled"
    assert flow.jobs[0].state == "cancelled"
    with pytest.raises(Conflict):
        flow.cancel()


def test_a_schedule_of_the_code_can_be_triggered(ojs_fake: FakeJobs) -> None:
    @job("report.make", cron="0 9 * * *", cron_args=["daily"], cron_name="daily-report")
    def make(kind: str) -> None: ...

    handle = ojs_fake.trigger("daily-report")
    assert (handle.type, handle.args, handle.meta["cron_name"]) == ("report.make", ["daily"], "daily-report")
    ojs_fake.assert_enqueued(make, meta={"cron_name": "daily-report"})


async def test_asynchronous_code(ojs_fake: FakeJobs, send: Any) -> None:
    handle = await send.aenqueue("a")
    await aenqueue("report.make")
    assert (await handle.arefresh()).state == "available"
    ojs_fake.assert_enqueued(send)
    ojs_fake.assert_enqueued("report.make")


def test_modes_nest_and_end(send: Any) -> None:
    with fake() as outer:
        send.enqueue("outer")
        with fake() as inner:
            send.enqueue("inner")
        send.enqueue("outer again")
    assert [found.args for found in outer.enqueued] == [["outer"], ["outer again"]]
    assert [found.args for found in inner.enqueued] == [["inner"]]
    with pytest.raises(RuntimeError, match="Database access not allowed"):
        send.enqueue("no fake any more")


def test_a_decorated_function() -> None:
    @fake(kwarg_name="jobs")
    def decorated(*, jobs: FakeJobs) -> FakeJobs:
        enqueue("a.b")
        jobs.assert_enqueued("a.b")
        return jobs

    assert len(decorated().enqueued) == 1  # type: ignore[call-arg]
    assert decorated() is not decorated()  # type: ignore[call-arg]


async def test_a_decorated_coroutine() -> None:
    @fake(kwarg_name="jobs")
    async def decorated(*, jobs: FakeJobs) -> None:
        await aenqueue("a.b")
        jobs.assert_enqueued("a.b", times=1)

    await decorated()  # type: ignore[call-arg]


def test_an_unknown_job_is_not_invented(ojs_fake: FakeJobs) -> None:
    with pytest.raises(RuntimeError, match="Database access not allowed"):
        get_job(uuid.uuid4())


def test_keyword_arguments_are_expected_by_name(ojs_fake: FakeJobs, send: Any) -> None:
    send.options(queue="email").enqueue("a@b.c", template="welcome")
    ojs_fake.assert_enqueued(send, args=["a@b.c"], kwargs={"template": "welcome"})
    ojs_fake.assert_not_enqueued(send, kwargs={"template": "other"})
    with pytest.raises(AssertionError, match=r"email\.send\('a@b\.c', template='welcome'\)"):
        ojs_fake.assert_enqueued(send, args=["other"])


def test_only_a_stopped_clock_is_advanced(ojs_fake: FakeJobs) -> None:
    with pytest.raises(RuntimeError, match=r"call jobs\.freeze\(\) first"):
        ojs_fake.advance("10m")


def test_events_for_durable_jobs(ojs_fake: FakeJobs) -> None:
    """No django_db mark here, either."""
    first = emit_event("order.paid", 7, {"amount": "12.50"})
    again = emit_event("order.paid", 7, {"amount": "1"})
    emit_event("order.paid", 8)
    assert (first.is_new, again.is_new, again.payload) == (True, False, first.payload)
    assert ojs_fake.assert_emitted("order.paid", 7, {"amount": "12.50"}) == first
    assert ojs_fake.assert_emitted("order.paid").key == "8"
    ojs_fake.assert_emitted("order.paid", payload={"amount": mock.ANY})
    ojs_fake.assert_not_emitted("order.paid", 7, {"amount": "1"})
    ojs_fake.assert_not_emitted("order.sent")
    with pytest.raises(AssertionError, match=r"not emitted: order\.sent, key='7'(?s:.)*order\.paid, key='7'"):
        ojs_fake.assert_emitted("order.sent", "7")
    with pytest.raises(AssertionError, match="This was not to be emitted"):
        ojs_fake.assert_not_emitted("order.paid", 8, None)
    with pytest.raises(InvalidRequest):
        emit_event("$mine")
    ojs_fake.clear()
    with pytest.raises(AssertionError, match="There are no events"):
        ojs_fake.assert_emitted("order.paid")


@pytest.mark.django_db
def test_an_event_that_was_rolled_back_was_not_emitted(ojs_fake: FakeJobs) -> None:
    with contextlib.suppress(ZeroDivisionError), transaction.atomic():
        emit_event("order.paid", 7)
        raise ZeroDivisionError
    assert ojs_fake.emitted == []
    assert emit_event("order.paid", 7).is_new
