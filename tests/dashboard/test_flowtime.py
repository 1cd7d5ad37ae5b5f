"""When the jobs of a workflow ran: the critical path through every shape, what it waits for, and the chart."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from django_ojs import clock
from django_ojs.admin import flowtime
from django_ojs.admin.flowtime import Span, critical
from django_ojs.jobs.fetch import Fetch, fetch
from django_ojs.jobs.finish import Ack, Failure, ack, fail
from django_ojs.models import Workflow
from django_ojs.rules import workflows
from django_ojs.rules.ids import new_job_id
from django_ojs.workflows import workflow
from tests.admin.conftest import url
from tests.conftest import FrozenClock

NOW = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
JOB = {"type": "mail.send", "args": []}


def span(position: int, start: float, end: float | None) -> Span:
    def at(seconds: float) -> dt.datetime:
        return NOW + dt.timedelta(seconds=seconds)

    return Span(
        position, f"s{position}", "mail.send", new_job_id(), "active" if end is None else "completed", "default", 1,
        at(start), at(start), None if end is None else at(end),
    )  # fmt: skip


def path(document: dict[str, Any], *ran: tuple[int, float, float | None]) -> set[int]:
    graph = workflows.parse(document, now=NOW).graph
    return critical(graph, [span(*one) for one in ran], NOW + dt.timedelta(hours=1))


def test_all_of_a_chain_is_critical() -> None:
    assert path({"type": "chain", "steps": [JOB] * 3}, (1, 0, 1), (2, 1, 2), (3, 2, 3)) == {1, 2, 3}


def test_of_a_group_it_is_the_one_that_ended_last() -> None:
    assert path({"type": "group", "jobs": [JOB] * 3}, (1, 0, 1), (2, 0, 9), (3, 0, 2)) == {2}
    assert path({"type": "group", "jobs": [JOB] * 3}, (1, 0, 1), (2, 0, 9), (3, 0, None)) == {3}


def test_it_goes_through_groups_within_chains() -> None:
    nested = {"type": "chain", "steps": [JOB, {"type": "group", "jobs": [JOB, JOB]}, JOB]}
    graph = workflows.parse(nested, now=NOW).graph
    jobs = [position for position, node in enumerate(graph.nodes) if node.kind == "job"]
    a, b = (one for one in jobs if graph.nodes[one].scope)
    first, last = (one for one in jobs if not graph.nodes[one].scope)
    assert path(nested, (first, 0, 1), (a, 1, 5), (b, 1, 3), (last, 5, 6)) == {first, a, last}
    assert path(nested, (first, 0, 1), (a, 1, 2), (b, 1, None)) == {first, b}


def test_it_goes_through_a_free_graph_and_to_a_callback() -> None:
    def step(name: str, *needs: str) -> dict[str, Any]:
        return {**JOB, "id": name, "depends_on": list(needs)}

    free = {"name": "g", "steps": [step("a"), step("b", "a"), step("c", "a"), step("d", "b", "c")]}
    assert path(free, (1, 0, 1), (2, 1, 2), (3, 1, 7), (4, 7, 8)) == {1, 3, 4}
    batch = {"type": "batch", "jobs": [JOB, JOB], "callbacks": {"on_complete": JOB}}
    assert path(batch, (1, 0, 1), (2, 0, 4), (3, 4, 5)) == {2, 3}


def test_nothing_has_no_path() -> None:
    assert path({"type": "chain", "steps": [JOB]}) == set()


# On the page


@pytest.mark.django_db
def test_a_workflow_that_hangs_says_what_it_waits_for(admin_client: Client, frozen_clock: FrozenClock) -> None:
    jobs = [{**JOB, "queue": "mail"}] * 3 + [{**JOB, "type": "report.daily", "queue": "reports"}]
    flow = workflow.create({"type": "chain", "steps": [JOB, {"type": "group", "jobs": jobs}]}).workflow
    page = url("workflow", "change", flow.pk)
    (first,) = fetch(Fetch(["default"], worker_id="w-1"))
    frozen_clock.advance(seconds=90)
    body = admin_client.get(page).content.decode()
    assert [one["queue"] for one in admin_client.get(page).context["awaited"]] == ["default"]
    assert "Waits for" in body
    assert "1 min ago" in body
    ack([Ack(first["id"])])
    ids = [row["id"] for row in fetch(Fetch(["mail"], count=3, worker_id="w-1"))]
    frozen_clock.advance(minutes=5)
    ack([Ack(ids[0])])
    fail([Failure(ids[1], {"type": "Broken", "message": "no", "retryable": False})])
    context = admin_client.get(page).context
    assert [(one["type"], one["queue"]) for one in context["awaited"]] == [
        ("mail.send", "mail"), ("report.daily", "reports")
    ]  # fmt: skip
    assert context["times"].count("<rect") > 4
    assert context["times"].count("ojs-critical") == 2


@pytest.mark.django_db
def test_a_finished_workflow_waits_for_nothing_and_one_that_has_not_begun_has_no_chart(admin_client: Client) -> None:
    flow = workflow.create({"type": "chain", "steps": [JOB]}).workflow
    page = url("workflow", "change", flow.pk)
    assert admin_client.get(page).context["times"] == ""
    ack([Ack(row["id"]) for row in fetch(Fetch(["default"], worker_id="w-1"))])
    context = admin_client.get(page).context
    assert context["awaited"] == []
    assert "ojs-gantt-run" in context["times"]


@pytest.mark.django_db
def test_many_jobs_take_one_statement_and_few_rows(frozen_clock: FrozenClock) -> None:
    flow = workflow.create({"type": "group", "jobs": [JOB] * 500}).workflow
    ids = [row["id"] for row in fetch(Fetch(["default"], count=500, worker_id="w-1"))]
    frozen_clock.advance(seconds=10)
    ack([Ack(job_id) for job_id in ids[:480]])
    row = Workflow.objects.get(pk=flow.pk)
    with CaptureQueriesContext(connection) as captured:
        found = flowtime.spans(row)
        drawn = flowtime.draw(row, found, lambda job: "/x/")
    assert len(captured) == 1 + (connection.vendor != "sqlite" and clock.offset("default") is None)
    assert drawn.count("ojs-gantt-run") == flowtime.ROWS
    assert drawn.count("ojs-box-active") == 20
    assert len(flowtime.awaited(found, lambda job: "")) == 20
