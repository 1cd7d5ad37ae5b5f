"""A full queue that drops its oldest jobs, where those are members of workflows or have unique keys."""

from __future__ import annotations

import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.db import connection, connections
from django.test.utils import CaptureQueriesContext

from django_ojs import clock
from django_ojs.errors import QueueFull
from django_ojs.events import log
from django_ojs.jobs.candidates import Pushed
from django_ojs.jobs.fetch import Fetch, fetch
from django_ojs.jobs.finish import Ack, ack
from django_ojs.jobs.push import push, push_each
from django_ojs.jobs.read import info
from django_ojs.models import Job, Queue, Workflow
from django_ojs.queues import configuration
from django_ojs.workflows import workflow as operations

pytestmark = pytest.mark.django_db

FULL = "full"
UNIQUE = {"keys": ["type"]}
REPLACE = UNIQUE | {"on_conflict": "replace"}


def bound(depth: int, strategy: str = "drop_oldest") -> None:
    now = clock.now()
    config = {"backpressure": {"max_depth": depth, "strategy": strategy}}
    Queue.objects.update_or_create(pk=FULL, defaults={"config": config, "created_at": now, "updated_at": now})
    configuration.forget()


def job(name: str, queue: str = FULL, **more: Any) -> dict[str, Any]:
    return {"type": f"test.{name}", "args": [], "queue": queue, **more}


def create(**document: Any) -> Workflow:
    return operations.create({"name": "w", **document}).workflow


def batch(*names: str, queue: str, **more: Any) -> Workflow:
    """Jobs in the bounded queue with a callback for failure in `queue`."""
    callbacks = {"on_failure": job("rescue", queue), **more}
    return create(type="batch", jobs=[job(name) for name in names], callbacks=callbacks)


def add(name: str = "new", **more: Any) -> Any:
    return push([job(name, **more)])[0].row


def waiting(queue: str = FULL) -> list[str]:
    rows = Job.objects.filter(queue=queue, state="available").order_by("enqueued_at")
    return [row.type.removeprefix("test.") for row in rows]


def state(flow: Workflow) -> str:
    return str(Workflow.objects.get(pk=flow.pk).state)


class TestWorkflows:
    def test_a_chain_fails_with_the_step_that_was_dropped(self) -> None:
        bound(1)
        flow = create(type="chain", steps=[job("a"), job("b")])
        add()
        assert state(flow) == "failed"
        error = Workflow.objects.get().error
        assert (error["failed_step_id"], error["errors"][0]["type"]) == ("step-0", "overflow")
        told = [event["type"] for event in log.read(workflow_id=flow.pk).events]
        assert told == ["job.enqueued", "job.discarded", "workflow.failed"]

    def test_a_group_fails_when_the_others_have_ended(self) -> None:
        bound(2)
        flow = create(type="group", jobs=[job("a"), job("b")])
        add()
        assert state(flow) == "running"
        ack([Ack(row["id"]) for row in fetch(Fetch([FULL], count=2))])
        assert state(flow) == "failed"

    def test_a_batch_calls_back(self) -> None:
        bound(1)
        flow = batch("a", queue="elsewhere", on_complete=job("all", "elsewhere"))
        add()
        assert waiting("elsewhere") == ["all", "rescue"]
        ack([Ack(row["id"]) for row in fetch(Fetch(["elsewhere"], count=2))])
        assert state(flow) == "completed"

    def test_the_members_of_several_workflows_in_one_push(self) -> None:
        bound(3)
        flows = [batch("a", queue="elsewhere") for _ in range(3)]
        push([job("new")] * 2)
        assert waiting("elsewhere") == ["rescue"] * 2
        assert waiting() == ["a", "new", "new"]
        assert [state(flow) for flow in flows] == ["running"] * 3

    def test_a_partial_push_tells_them_too(self) -> None:
        bound(1)
        batch("a", queue="elsewhere")
        push_each([job("new"), {"type": "no good!", "args": []}])
        assert waiting("elsewhere") == ["rescue"]

    def test_a_refused_push_drops_nobody(self) -> None:
        bound(1)
        flow = batch("a", queue="elsewhere")
        assert not [found for found in push_each([job("n")] * 2, partial=False) if isinstance(found, Pushed)]
        assert (state(flow), waiting(), waiting("elsewhere")) == ("running", ["a"], [])

    def test_a_workflow_displaces_the_member_of_another(self) -> None:
        bound(1)
        first = create(type="chain", steps=[job("a"), job("b")])
        second = create(type="chain", steps=[job("c", "elsewhere"), job("d")])
        assert state(first) == "running"
        ack([Ack(row["id"]) for row in fetch(Fetch(["elsewhere"]))])
        assert (state(first), waiting()) == ("failed", ["d"])
        third = create(type="chain", steps=[job("e")])
        assert (state(second), state(third), waiting()) == ("failed", "running", ["e"])

    def test_a_workflow_that_is_resumed_displaces_the_member_of_another(self) -> None:
        bound(1)
        first = create(type="chain", steps=[job("a", "elsewhere"), job("b")])
        ack([Ack(row["id"]) for row in fetch(Fetch(["elsewhere"]))])
        operations.cancel_jobs([Job.objects.get(type="test.b").pk])
        second = create(type="chain", steps=[job("c")])
        operations.retry(first.pk)
        assert (state(first), state(second), waiting()) == ("running", "failed", ["b"])


class TestCallbacksIntoTheSameQueue:
    """The bound holds whatever a dropped member sets off."""

    def test_the_callback_takes_the_place_of_the_next_oldest(self) -> None:
        bound(2)
        batch("a", queue=FULL)
        add("b")
        add("new")
        assert waiting() == ["new", "rescue"]

    def test_a_job_that_its_own_callbacks_displace_says_so(self) -> None:
        bound(1)
        batch("a", queue=FULL)
        new = add()
        assert waiting() == ["rescue"]
        assert new["state"] == info(new["id"])["state"] == "discarded"

    def test_one_after_the_other_however_many(self) -> None:
        """A recursion would be too deep for Python."""
        bound(100)
        for _ in range(100):
            batch("a", queue=FULL)
        add()
        assert waiting() == ["rescue"] * 100
        assert Job.objects.filter(state="discarded").count() == 101

    @pytest.mark.parametrize("strategy", ["drop_oldest", "reject"])
    def test_the_callback_of_a_job_that_is_replaced(self, strategy: str) -> None:
        bound(2, strategy)
        add("first")
        flow = create(type="batch", jobs=[job("a", unique=UNIQUE)], callbacks={"on_failure": job("rescue")})
        add("a", unique=REPLACE)
        if strategy == "reject":
            assert (state(flow), waiting()) == ("failed", ["first", "a"])
        else:
            assert (state(flow), waiting()) == ("running", ["a", "rescue"])


class TestUniqueJobs:
    def test_a_job_that_is_dropped_is_not_replaced_as_well(self) -> None:
        bound(2)
        old = add("a", unique=UNIQUE)
        add("b")
        push([job("new"), job("a", unique=REPLACE)])
        assert waiting() == ["new", "a"]
        assert info(old["id"])["state"] == "discarded"

    def test_a_job_that_is_replaced_is_not_dropped_as_well(self) -> None:
        bound(2)
        old = add("a", unique=UNIQUE)
        add("b")
        push([job("a", unique=REPLACE), job("new")])
        assert waiting() == ["a", "new"]
        assert info(old["id"])["state"] == "cancelled"

    def test_a_key_is_free_once_its_job_is_dropped(self) -> None:
        bound(2)
        add("a", unique=UNIQUE)
        add("b")
        done = push([job("new"), job("a", unique=UNIQUE)])
        assert [found.status for found in done] == ["created", "created"]
        assert waiting() == ["new", "a"]

    def test_a_replaced_job_leaves_one_place(self) -> None:
        bound(2, "reject")
        add("a", unique=UNIQUE)
        outcomes = push_each([job("a", unique=REPLACE), job("b"), job("c")])
        assert [isinstance(outcome, Pushed) for outcome in outcomes] == [True, True, False]
        assert waiting() == ["a", "b"]


@pytest.mark.django_db(transaction=True)
def test_pushes_and_completions_at_once_leave_no_workflow_behind() -> None:
    """Members are dropped by some threads while others complete them, and all have callbacks in the same queue."""
    bound(12)
    every = {"on_complete": job("done"), "on_failure": job("rescue")}
    flows = [create(type="batch", jobs=[job("a"), job("b")], callbacks=every) for _ in range(6)]
    barrier = threading.Barrier(6)

    def work(number: int) -> None:
        try:
            connection.ensure_connection()
            barrier.wait(60)
            for _ in range(6):
                if number % 2:
                    with contextlib.suppress(QueueFull):  # a claim may hold for a moment all that could be dropped
                        add()
                else:
                    ack([Ack(row["id"]) for row in fetch(Fetch([FULL], count=2, types=["test.a", "test.b"]))])
        finally:
            connections.close_all()

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(work, range(6)))
    assert Job.objects.live().filter(queue=FULL).count() <= 12
    for flow in flows:
        members = Job.objects.filter(workflow_id=flow.pk)
        assert (state(flow) == "running") == members.live().exists(), list(members.values_list("type", "state"))
        assert members.count() > 2 or members.live().filter(type__in=["test.a", "test.b"]).exists()


def test_a_push_that_ends_nothing_pays_for_nothing_of_it() -> None:
    bound(10)
    add("a", unique=UNIQUE)
    with CaptureQueriesContext(connection) as captured:
        add("b", unique=UNIQUE)
    assert sum("savepoint" in query["sql"].lower() for query in captured) <= 4, "no transaction of a cancellation"
