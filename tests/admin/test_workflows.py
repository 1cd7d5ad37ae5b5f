"""The pages of workflows: what they show, and the two verbs."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from django_ojs import clock
from django_ojs.jobs.cancel import cancel_one
from django_ojs.jobs.fetch import Fetch, fetch
from django_ojs.jobs.finish import Ack, Failure, ack, fail
from django_ojs.models import Job
from django_ojs.rules import redaction
from django_ojs.workflows import workflow as operations

pytestmark = pytest.mark.django_db


def make(**more: Any) -> Any:
    steps = [{"type": "etl.extract", "args": []}, {"type": "etl.load", "args": []}]
    return operations.create({"type": "chain", "name": "<nightly>", "steps": steps, **more}).workflow


def page(flow: Any) -> str:
    return reverse("admin:django_ojs_workflow_change", args=[flow.pk])


def test_list_and_page_show_the_workflow_and_link_its_members(admin_client: Any) -> None:
    flow = make()
    listed = admin_client.get(reverse("admin:django_ojs_workflow_changelist")).content.decode()
    assert "&lt;nightly&gt;" in listed
    assert "0 of 2 completed" in listed
    shown = admin_client.get(page(flow)).content.decode()
    assert reverse("admin:django_ojs_job_change", args=[Job.objects.get().pk]) in shown
    assert "etl.load" in shown
    assert "not enqueued" in shown


def test_one_is_found_by_its_id_and_by_that_of_its_client(admin_client: Any) -> None:
    flow, other = make(id="order-17"), make()
    listed = reverse("admin:django_ojs_workflow_changelist")
    for text, found in (("order-17", flow), (f" {flow.pk} ", flow), (str(other.pk), other)):
        assert [one.pk for one in admin_client.get(listed, {"q": text}).context["cl"].result_list] == [found.pk]
    page = admin_client.get(listed, {"q": "order-18"})
    assert list(page.context["cl"].result_list) == []
    assert "“order-18” is not the id of a workflow." in page.content.decode()


def picture(client: Any, flow: Any) -> str:
    body = client.get(page(flow)).content.decode()
    found: str = body[body.index('<svg class="ojs-flow"') : body.index("</svg>", body.index("ojs-flow"))]
    return found


def test_each_box_says_how_its_job_went(admin_client: Any, settings: Any) -> None:
    clock.freeze(dt.datetime(2026, 3, 1, 12, 0, tzinfo=dt.UTC))
    flow = make()
    (first,) = fetch(Fetch(["default"]))
    clock.advance(seconds=2)
    assert "active · 2 s" in picture(admin_client, flow)
    ack([Ack(first["id"])])
    (second,) = fetch(Fetch(["default"]))
    clock.advance(seconds=65)
    fail([Failure(second["id"], {"type": "billing.Refused", "message": "card <4711>", "retryable": False})])
    drawn = picture(admin_client, flow)
    for text in ("completed · 2 s", "etl.extract", "failed · 1 min 5 s", ">billing.Refused<", "card &lt;4711&gt;"):
        assert text in drawn, text
    settings.OJS = {"REDACT": {"types": {"etl.*": ["errors"]}}}
    assert "billing" not in picture(admin_client, flow)
    assert redaction.MASK in picture(admin_client, flow)


@pytest.mark.usefixtures("long_memory")
def test_the_page_asks_as_often_for_three_steps_as_for_sixty(admin_client: Any) -> None:
    costs = []
    for size in (2, 3, 60):  # the first warms up what a process asks for once
        address = page(operations.create({"type": "group", "jobs": [{"type": "etl.load", "args": []}] * size}).workflow)
        with CaptureQueriesContext(connection) as captured:
            assert admin_client.get(address).status_code == 200
        costs.append(len(captured))
        assert not [query for query in captured if "document" in query["sql"]]
    assert costs[1] == costs[2], costs


def test_nothing_can_be_edited(admin_client: Any) -> None:
    flow = make()
    assert admin_client.get(reverse("admin:django_ojs_workflow_add")).status_code == 403
    assert admin_client.post(page(flow), {"state": "completed"}).status_code == 403


def test_cancel_and_retry_go_through_the_operations(admin_client: Any) -> None:
    flow = make()
    admin_client.post(reverse("admin:django_ojs_workflow_verb", args=[flow.pk, "cancel_workflows"]))
    flow.refresh_from_db()
    assert flow.state == "cancelled"
    other = make()
    cancel_one(Job.objects.get(workflow_id=other.pk).pk)
    data = {"action": "retry_workflows", "_selected_action": [str(flow.pk), str(other.pk)]}
    answer = admin_client.post(reverse("admin:django_ojs_workflow_changelist"), data, follow=True).content.decode()
    other.refresh_from_db()
    assert other.state == "running"
    assert "1 workflow resumed." in answer
    assert "Cannot retry workflow" in answer
