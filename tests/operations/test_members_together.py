"""Members of workflows that end at the same time, in several connections: each workflow goes on once, and only once."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.db import connections

from django_ojs.events import log
from django_ojs.jobs.fetch import fetch
from django_ojs.jobs.finish import Ack, Failure, ack, fail
from django_ojs.jobs.verbs import cancel
from django_ojs.models import Job, Workflow
from django_ojs.rules import envelope
from django_ojs.workflows import workflow as operations

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("described_events")]

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
        while rows := fetch(["default"], count=100):
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
