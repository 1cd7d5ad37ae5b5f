"""When the jobs of a workflow ran: the critical path through every shape, what it waits for, and the chart."""

from __future__ import annotations

import datetime as dt
import re
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from django_ojs import clock
from django_ojs.admin import flowtime
from django_ojs.admin.flowtime import Span, critical
from django_ojs.jobs import timers
from django_ojs.jobs.cancel import cancel
from django_ojs.jobs.fetch import Fetch, fetch
from django_ojs.jobs.finish import Ack, Failure, ack, fail
from django_ojs.models import Event, Workflow
from django_ojs.rules import workflows
from django_ojs.rules.durations import format_instant
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


TRIED = {**JOB, "options": {"retry": {"max_attempts": 4, "initial_interval": "PT10S", "jitter": False}}}


def attempt(frozen_clock: FrozenClock, *, fails: bool) -> Any:
    """One attempt of the job that can run; it takes a second."""
    (row,) = fetch(Fetch(["default"], worker_id="w-1"))
    frozen_clock.advance(seconds=1)
    if fails:
        fail([Failure(row["id"], {"type": "Broken", "message": "no"})])
    else:
        ack([Ack(row["id"])])
    return row["id"]


def drawn(admin_client: Client, flow: Workflow) -> tuple[str, list[tuple[str, float, float]]]:
    """The chart of a workflow, and of each attempt in it the colour, where it begins, and its width."""
    chart = admin_client.get(url("workflow", "change", flow.pk)).context["times"]
    found = re.findall(r'ojs-gantt-run ojs-fill-(\w+)" x="([\d.]+)" y="\d+" width="([\d.]+)"', chart)
    return chart, [(colour, float(x), float(width)) for colour, x, width in found]


@pytest.mark.django_db
def test_every_attempt_is_drawn_on_an_axis_that_has_all_of_them(
    admin_client: Client, frozen_clock: FrozenClock
) -> None:
    flow = workflow.create({"type": "chain", "steps": [TRIED, JOB]}).workflow
    attempt(frozen_clock, fails=True)
    frozen_clock.advance(seconds=10)
    attempt(frozen_clock, fails=True)
    frozen_clock.advance(seconds=20)
    attempt(frozen_clock, fails=False)
    attempt(frozen_clock, fails=False)
    chart, bars = drawn(admin_client, flow)
    assert [colour for colour, _, _ in bars] == ["bad", "bad", "good", "good"]
    whole = flowtime._TIME / 34  # for a second
    assert [round((x - flowtime._NAMES) / whole) for _, x, _ in bars] == [0, 11, 32, 33]
    assert [round(width / whole) for _, _, width in bars] == [1, 1, 1, 1]
    assert ">34 s</text>" in chart
    assert "waited 30 s\nran 3 s\nattempt 3" in chart
    assert "<title>step-1\nattempt 2\nfailed\nran 1 s</title>" in chart.replace(_first_name(flow), "step-1")


def _first_name(flow: Workflow) -> str:
    return str(flow.steps.order_by("position").first().step_id)


@pytest.mark.django_db
def test_a_job_that_waits_for_its_next_attempt_shows_those_before(
    admin_client: Client, frozen_clock: FrozenClock
) -> None:
    flow = workflow.create({"type": "chain", "steps": [TRIED, JOB]}).workflow
    job = attempt(frozen_clock, fails=True)
    frozen_clock.advance(seconds=4)
    assert [(colour, round(width)) for colour, _, width in drawn(admin_client, flow)[1]] == [("bad", 136)]
    cancel([job])
    frozen_clock.advance(seconds=4)
    assert [(colour, round(width)) for colour, _, width in drawn(admin_client, flow)[1]] == [("bad", 136)]


@pytest.mark.django_db
def test_a_step_says_in_its_box_which_attempt_it_is(admin_client: Client, frozen_clock: FrozenClock) -> None:
    flow = workflow.create({"type": "chain", "steps": [{**TRIED, "type": "a.rather_long_type_of_jobs"}, JOB]}).workflow
    for _ in range(2):
        attempt(frozen_clock, fails=True)
        frozen_clock.advance(minutes=1)
    graph = admin_client.get(url("workflow", "change", flow.pk)).context["graph"]
    assert re.findall(r"<text[^>]*>(attempt 2 · [^<]+)</text>", graph) == ["attempt 2 · Broken"]
    fetch(Fetch(["default"], worker_id="w-1"))
    frozen_clock.advance(minutes=59, seconds=59)
    graph = admin_client.get(url("workflow", "change", flow.pk)).context["graph"]
    assert re.findall(r"<text[^>]*>(active[^<]+)</text>", graph) == ["active · 59 min 59 s"]
    assert re.findall(r"<text[^>]*>(attempt 3)", graph) == ["attempt 3"]


@pytest.mark.django_db
def test_the_attempts_of_an_earlier_round_are_there_too(admin_client: Client, frozen_clock: FrozenClock) -> None:
    once = {**JOB, "options": {"retry": {"max_attempts": 1}}}
    flow = workflow.create({"type": "chain", "steps": [once]}).workflow
    attempt(frozen_clock, fails=True)
    frozen_clock.advance(seconds=6)
    workflow.retry(flow.pk)
    frozen_clock.advance(seconds=1)
    attempt(frozen_clock, fails=False)
    chart, bars = drawn(admin_client, flow)
    assert [colour for colour, _, _ in bars] == ["bad", "good"]
    assert ">9 s</text>" in chart


@pytest.mark.django_db
def test_a_delayed_job_that_is_tried_again_waits_since_it_could_have_started(
    admin_client: Client, frozen_clock: FrozenClock
) -> None:
    """Its row has only the latest of these instants: its delay was drawn as if it had waited for a worker."""
    begin = frozen_clock.now
    due = format_instant(begin + dt.timedelta(seconds=100))
    delayed = {**TRIED, "options": {**TRIED["options"], "delay_until": due}}  # type: ignore[dict-item]
    flow = workflow.create({"type": "chain", "steps": [delayed]}).workflow

    def waited() -> list[float]:
        return [(span.waited - begin).total_seconds() for span in flowtime.spans(flow)]

    frozen_clock.advance(seconds=100)
    timers.apply_due()
    assert waited() == [100]
    frozen_clock.advance(seconds=3)
    attempt(frozen_clock, fails=True)
    assert waited() == [100]
    frozen_clock.advance(seconds=20)
    attempt(frozen_clock, fails=False)
    assert waited() == [100]
    assert "waited 23 s" in drawn(admin_client, flow)[0]
    Event.objects.all().delete()
    assert waited() == [0], "the log has forgotten it"


@pytest.mark.django_db
def test_many_jobs_take_two_statements_and_few_rows(frozen_clock: FrozenClock) -> None:
    flow = workflow.create({"type": "group", "jobs": [JOB] * 500}).workflow
    ids = [row["id"] for row in fetch(Fetch(["default"], count=500, worker_id="w-1"))]
    frozen_clock.advance(seconds=10)
    ack([Ack(job_id) for job_id in ids[:480]])
    row = Workflow.objects.get(pk=flow.pk)
    with CaptureQueriesContext(connection) as captured:
        found = flowtime.spans(row)
        drawn = flowtime.draw(row, found, lambda job: "/x/")
    assert len(captured) == 2 + (connection.vendor != "sqlite" and clock.offset("default") is None)
    assert drawn.count("ojs-gantt-run") == flowtime.ROWS
    assert drawn.count("ojs-box-active") == 20
    assert len(flowtime.awaited(found, lambda job: "")) == 20
