"""The inline mode: a job runs before the call that enqueues it returns."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
from django.contrib.auth.models import Group
from django.db import transaction

from django_ojs import (
    Discard,
    JobContext,
    Retry,
    Snooze,
    batch,
    chain,
    clock,
    emit_event,
    enqueue,
    enqueue_many,
    job,
)
from django_ojs.errors import Duplicate
from django_ojs.models import Job
from django_ojs.testing import InlineJobs, JobFailed, inline

pytestmark = pytest.mark.django_db


@pytest.fixture
def note() -> Any:
    @job("test.note", queue="notes")
    def note(name: str) -> str:
        Group.objects.create(name=name)
        return name.upper()

    return note


def names() -> list[str]:
    return sorted(Group.objects.values_list("name", flat=True))


def test_the_job_has_run_when_enqueue_returns(ojs_inline: InlineJobs, note: Any) -> None:
    handle = note.enqueue("a")
    assert (names(), handle.state, handle.result, handle.attempt) == (["a"], "completed", "A", 1)
    assert Job.objects.get().state == "completed"
    ojs_inline.assert_enqueued(note, times=1)
    ojs_inline.assert_completed(note, times=1)


def test_a_job_that_was_there_before_is_left_alone(ojs_inline: InlineJobs, note: Any) -> None:
    with inline() as other:
        other.on_push = None  # type: ignore[assignment,method-assign]  # as if there were no mode
        earlier = note.enqueue("earlier")
    note.enqueue("a")
    assert (names(), earlier.refresh().state) == (["a"], "available")


def test_many_run_in_order_and_what_they_enqueue_after_them(ojs_inline: InlineJobs) -> None:
    seen = []

    @job("test.tree")
    def tree(name: str, depth: int) -> None:
        if depth:
            tree.enqueue(f"{name}/", depth - 1)
        seen.append(name)

    enqueue_many([tree.s("a", 2), tree.s("b", 1)])
    assert seen == ["a", "b", "a/", "b/", "a//"]


def test_delays_are_not_waited_for_and_the_clock_says_when_it_would_be(ojs_inline: InlineJobs) -> None:
    seen = []

    @job("test.late")
    def late() -> None:
        seen.append(clock.now())

    before = clock.now()
    handle = late.options(delay="1d").enqueue()
    assert handle.state == "completed"
    assert dt.timedelta(days=1) <= seen[0] - before < dt.timedelta(days=1, minutes=1)
    assert clock.override() is None


def test_all_attempts_of_the_real_policy_and_then_the_error(ojs_inline: InlineJobs) -> None:
    attempts = []

    @job("test.flaky", context=True, retry={"max_attempts": 3, "initial_interval": "1h"})
    def flaky(context: JobContext, good_at: int) -> None:
        attempts.append(context.attempt)
        if context.attempt < good_at:
            raise ConnectionError(f"attempt {context.attempt}")

    assert flaky.enqueue(3).state == "completed"
    assert attempts == [1, 2, 3]
    with pytest.raises(ConnectionError, match="attempt 3"):
        flaky.enqueue(4)
    assert sorted(Job.objects.values_list("state", flat=True)) == ["completed", "discarded"]


def test_errors_can_be_left_to_the_handle() -> None:
    @job("test.bad", retry={"max_attempts": 1})
    def bad() -> None:
        raise ValueError("bad")

    @job("test.object", retry={"max_attempts": 1})
    def result() -> Any:
        return object()

    with inline(raise_errors=False) as jobs:
        handle = bad.enqueue()
        assert (handle.state, handle.errors[0]["message"]) == ("discarded", "bad")
        jobs.assert_failed(bad)
        with pytest.raises(AssertionError):
            jobs.assert_completed(bad)
    with inline(), pytest.raises(JobFailed, match="not JSON"):
        result.enqueue()


def test_one_that_fails_does_not_keep_the_others_from_running(ojs_inline: InlineJobs, note: Any) -> None:
    ojs_inline.fail_all("test.note", None)
    ojs_inline.fail_next(note, ValueError("first"), times=3)
    with pytest.raises(ValueError, match="first"):
        enqueue_many([note.s("a"), note.s("b")])
    assert names() == ["b"]


def test_directives(ojs_inline: InlineJobs) -> None:
    seen = []

    @job("test.directed")
    def directed(what: str) -> None:
        seen.append(what)
        if what == "discard":
            raise Discard("no use")
        if seen.count(what) == 1:
            raise Snooze("1h") if what == "snooze" else Retry("later", after="2h")

    assert [directed.enqueue(what).state for what in ("discard", "snooze", "retry")] == [
        "discarded",
        "completed",
        "completed",
    ]
    assert seen == ["discard", "snooze", "snooze", "retry", "retry"]


@pytest.mark.django_db(transaction=True)
def test_it_runs_inside_the_open_transaction_and_goes_with_it(ojs_inline: InlineJobs, note: Any) -> None:
    with transaction.atomic():
        note.enqueue("a")
        assert names() == ["a"]
        transaction.set_rollback(True)
    assert (names(), Job.objects.count(), ojs_inline.enqueued) == ([], 0, [])
    note.enqueue("b")
    assert names() == ["b"]


def test_workflows_advance_and_callbacks_fire(ojs_inline: InlineJobs, note: Any) -> None:
    @job("test.bad", retry={"max_attempts": 1})
    def bad() -> None:
        raise ValueError("bad")

    flow = chain(note.s("a"), note.s("b")).enqueue()
    assert (flow.state, [member.result for member in flow.jobs]) == ("completed", ["A", "B"])
    with inline(raise_errors=False):
        failed = batch(note.s("c"), bad.s(), on_failure=note.s("sorry")).enqueue()
    assert failed.state == "completed"  # the callback has taken care of it
    assert names() == ["a", "b", "c", "sorry"]
    with pytest.raises(ValueError, match="bad"):
        chain(bad.s(), note.s("never")).enqueue()


def test_a_refused_push_runs_nothing(ojs_inline: InlineJobs, note: Any) -> None:
    unique = {"states": ["completed"]}
    note.options(unique=unique).enqueue("a")
    with pytest.raises(Duplicate):
        enqueue_many([note.s("b"), ("test.note", ["a"], {"unique": unique})])
    assert names() == ["a"]
    note.enqueue("c")
    assert names() == ["a", "c"]


def test_jobs_of_other_languages_and_staged_ones_wait(ojs_inline: InlineJobs, note: Any) -> None:
    assert enqueue("other.language").state == "available"
    assert note.options(pending=True).enqueue("a").state == "pending"


def test_the_schedule_and_http_are_doors_like_any_other(
    ojs_inline: InlineJobs, note: Any, client: Any, settings: Any
) -> None:
    settings.OJS = {"ALLOW_ANONYMOUS": True}

    @job("report.make", cron="@daily")
    def make() -> str:
        return "made"

    assert ojs_inline.trigger("report.make").state == "completed"
    answer = client.post(
        "/ojs/v1/jobs", {"type": "test.note", "args": ["http"], "options": {"queue": "notes"}}, "application/json"
    )
    assert answer.status_code == 201, answer.content
    assert names() == ["http"]


@pytest.mark.django_db(transaction=True)
async def test_asynchronous_code(ojs_inline: InlineJobs) -> None:
    @job("test.async")
    async def work(depth: int) -> str:
        if depth:
            await work.aenqueue(depth - 1)
        return f"depth {depth}"

    handle = await work.aenqueue(2)
    assert (handle.state, handle.result) == ("completed", "depth 2")
    ojs_inline.assert_completed(work, times=3)


@pytest.mark.parametrize("durable", [False, True], ids=["retry", "from a step"])
def test_a_retry_by_hand_runs_at_once(durable: bool) -> None:
    broken = True

    @job("order.ship", durable=durable, retry={"max_attempts": 1})
    def ship(context: JobContext) -> str:
        if durable:
            context.step("look", int)
        if broken:
            raise ConnectionError("no answer")
        return "sent"

    with inline(raise_errors=False) as jobs:
        handle = ship.enqueue()
        assert handle.state == "discarded"
        broken = False
        assert handle.retry(from_step="look" if durable else "").state == "completed"
        jobs.assert_performed(ship, times=2)
    assert handle.result == "sent"


def test_events_reach_the_jobs_that_wait_and_are_recorded(ojs_inline: InlineJobs) -> None:
    @job("order.fulfil", durable=True)
    def fulfil(context: JobContext) -> Any:
        return context.wait_for_event("order.paid", key=7)

    handle = fulfil.enqueue()
    emit_event("order.paid", 7, "12.50")
    assert handle.refresh().result == "12.50"
    assert not emit_event("order.paid", 7).is_new
    assert ojs_inline.emitted == [ojs_inline.assert_emitted("order.paid", 7, "12.50")]


def test_the_retry_of_a_workflow_runs_it_to_its_end() -> None:
    broken = True

    @job("order.pack", retry={"max_attempts": 1})
    def pack(name: str) -> str:
        if broken and name == "b":
            raise ConnectionError("no answer")
        return name

    with inline(raise_errors=False):
        flow = chain(pack.s("a"), pack.s("b"), pack.s("c")).enqueue()
        assert flow.refresh().state == "failed"
        broken = False
        assert flow.retry().refresh().state == "completed"
