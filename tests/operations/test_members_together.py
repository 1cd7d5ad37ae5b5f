"""Members of workflows that end at the same time, in several connections: each workflow goes on once, and only once."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
from django.db import connection, connections, transaction

from django_ojs.events import log
from django_ojs.jobs.cancel import cancel
from django_ojs.jobs.fetch import Fetch, fetch
from django_ojs.jobs.finish import Ack, Failure, ack, fail
from django_ojs.models import Job, Workflow
from django_ojs.rules import envelope
from django_ojs.workflows import workflow as operations

pytestmark = pytest.mark.django_db(transaction=True)

CHAINS, STEPS, MEMBERS = 6, 4, 12


def job(type: str) -> dict[str, Any]:
    return {"type": type, "args": []}


def end(row: dict[str, Any]) -> None:
    """What a worker does with a job, and an operator beside it, in a connection of its own."""
    try:
        match row["type"]:
            case "to.fail":
                fail([Failure(row["id"], {"message": "no", "retryable": False}, attempt=row["attempt"])])
            case "to.cancel":
                cancel([row["id"]])
            case _:
                result = f'{{"n":{envelope.render(row)["workflow_step"]}}}'
                ack([Ack(row["id"], result, attempt=row["attempt"], in_workflow=True)])
    finally:
        connections.close_all()


def test_members_that_end_at_once_take_their_workflows_on_once() -> None:
    for _ in range(CHAINS):
        operations.create({"type": "chain", "name": "chain", "steps": [job("step")] * STEPS})
    good = [job("member")] * MEMBERS
    for name, last in (("batch", []), ("failing", [job("to.fail")]), ("cancelled", [job("to.cancel")])):
        callbacks = {"on_complete": job("done")}
        operations.create({"type": "batch", "name": name, "jobs": [*good, *last], "callbacks": callbacks})
    heard: list[Any] = []
    with ThreadPoolExecutor(6) as pool:
        while rows := fetch(Fetch(["default"], count=100)):
            heard += [envelope.render(row)["parent_results"] for row in rows if row["type"] == "step"]
            list(pool.map(end, rows))
    assert not Job.objects.exclude(state__in=["completed", "cancelled", "discarded"]).exists()
    assert not Workflow.objects.filter(state="running").exists()
    made = Counter(Job.objects.values_list("type", flat=True))
    assert (made["step"], made["member"], made["done"]) == (CHAINS * STEPS, 3 * MEMBERS, 3)
    assert Counter(len(each) for each in heard) == dict.fromkeys(range(STEPS), CHAINS)
    assert all(each == [{"n": number} for number in range(len(each))] for each in heard)
    told = Counter(
        (event["type"], event["subject"])
        for event in log.read(types=["workflow.started", "workflow.completed", "workflow.failed"], limit=1000).events
    )
    assert set(told.values()) == {1}
    assert len(told) == 2 * (CHAINS + 3)


def wait_for_us(other: Future[Any]) -> None:
    """Return once what another connection does waits for a lock of this one."""
    waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted AND pg_backend_pid() = ANY(pg_blocking_pids(pid))"
    with connection.cursor() as cursor:
        while not other.done():
            cursor.execute(waiting)
            if cursor.fetchone()[0]:
                return
    raise AssertionError("It did not wait.")


def end_all(acks: list[Ack]) -> list[Any]:
    try:
        return list(ack(acks))
    finally:
        connections.close_all()


@pytest.mark.postgres
@pytest.mark.parametrize("ending", ["goes on", "ends", "is cancelled"])
def test_a_completion_that_waited_for_a_workflow_sees_what_the_other_made_of_it(ending: str) -> None:
    """It is one statement, which sees most of the database as it was when it began, but not the workflow."""
    operations.create({"type": "batch", "jobs": [job("member")] * 3, "callbacks": {"on_complete": job("done")}})
    ours, theirs, last = fetch(Fetch(["default"], count=3))
    if ending == "ends":
        end(last)
    flow = Workflow.objects.get()
    with ThreadPoolExecutor(1) as pool:
        with transaction.atomic():
            if ending == "is cancelled":
                Workflow.objects.filter(pk=flow.pk).update(state=Workflow.State.CANCELLED)
            else:
                ack([Ack(ours["id"], "1", in_workflow=True)])
            other = pool.submit(end, theirs)
            wait_for_us(other)
        other.result()
    flow.refresh_from_db()
    callbacks = Job.objects.filter(type="done").count()
    letters = Counter(flow.progress)["c"]
    assert Job.objects.get(pk=theirs["id"]).state == "completed"
    assert (letters, callbacks) == {"goes on": (2, 0), "ends": (3, 1), "is cancelled": (0, 0)}[ending]


@pytest.mark.postgres
def test_a_completion_locks_workflows_in_the_order_of_their_ids() -> None:
    for _ in range(20):
        operations.create({"type": "group", "jobs": [job("member")]})
    acks = [Ack(row["id"], None, in_workflow=True) for row in fetch(Fetch(["default"], count=20))]
    first, *others = Workflow.objects.order_by("pk")
    with ThreadPoolExecutor(1) as pool:
        with transaction.atomic():
            Workflow.objects.select_for_update().get(pk=first.pk)
            other = pool.submit(end_all, acks[::-1])
            wait_for_us(other)
            free = Workflow.objects.select_for_update(skip_locked=True).filter(pk__in=[flow.pk for flow in others])
            assert len(free) == len(others)
        assert all(isinstance(outcome, dict) for outcome in other.result())
    assert set(Workflow.objects.values_list("state", flat=True)) == {"completed"}
