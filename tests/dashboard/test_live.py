"""What pages are told about following events, and the part of a job's page that is asked for."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable
from html import unescape
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Permission
from django.contrib.messages import get_messages
from django.test import AsyncRequestFactory, Client, RequestFactory
from django.urls import reverse, set_script_prefix
from django.urls.base import clear_script_prefix

from django_ojs import audit
from django_ojs.admin import live
from django_ojs.events.catalogue import DESCRIBED
from django_ojs.http.events import socket_address
from django_ojs.jobs import bulk
from django_ojs.jobs.fetch import Fetch, fetch
from django_ojs.jobs.finish import Ack, ack
from django_ojs.jobs.selection import dead_letters
from django_ojs.models import Job
from django_ojs.realtime import routing
from django_ojs.workerregistry.registration import register
from django_ojs.workflows import workflow
from tests.admin.conftest import claimed, dead, url

pytestmark = pytest.mark.django_db
KEYS_ONLY = "django_ojs.http.authentication.APIKeyAuthentication"


def ask(factory: Any = AsyncRequestFactory, right: str = "view_job") -> Any:
    request = factory().get("/admin/")
    request.user, _ = get_user_model().objects.get_or_create(username="ann", is_staff=True)
    request.user.user_permissions.set(Permission.objects.filter(codename=right))
    return request


# Where the WebSocket is


def test_a_page_of_an_asgi_server_finds_it_beside_itself() -> None:
    assert socket_address(ask()) == "/ojs/v1/ws"


def test_below_the_name_of_the_script() -> None:
    set_script_prefix("/below/")
    try:
        assert socket_address(ask()) == "/below/ojs/v1/ws"
    finally:
        clear_script_prefix()
    routes = [str(route.pattern) for route in routing.urlpatterns("/below")]
    assert routes == ["ojs/v1/ws", "ojs/v1/events/ws", "below/ojs/v1/ws", "below/ojs/v1/events/ws"]
    assert len(routing.urlpatterns("")) == 2


def test_a_page_of_a_wsgi_server_finds_none_but_the_one_that_is_named(settings: Any) -> None:
    assert socket_address(ask(RequestFactory)) == ""
    settings.OJS = {"REALTIME_URL": "wss://events.example.com/ojs/v1/ws"}
    assert socket_address(ask(RequestFactory)) == "wss://events.example.com/ojs/v1/ws"
    settings.OJS = {"REALTIME_URL": ""}
    assert socket_address(ask()) == ""


def test_who_would_be_refused_is_not_sent_there(settings: Any) -> None:
    for right in ("view_event", "ojs_read"):
        assert socket_address(ask(right=right)) == "/ojs/v1/ws"
    assert socket_address(ask(right="view_queue")) == ""
    settings.OJS = {"AUTHENTICATION_CLASSES": [KEYS_ONLY]}  # a session is nothing to the binding
    request = ask()
    assert socket_address(request) == ""
    assert request.user.username == "ann"


# What it is told


def test_every_type_that_is_asked_for_exists() -> None:
    known = DESCRIBED.keys()
    for name in {*live.OVERVIEW, *live.DEAD_LETTERS, *live.WORKFLOW, *live.WORKER, *live.JOB}:
        found = [each for each in known if each == name or (name.endswith("*") and each.startswith(name[:-1]))]
        assert found, name


def test_the_attributes_are_markup_and_say_what_to_subscribe_to() -> None:
    job = uuid.uuid4()
    text = live.follow(ask(), "/x/?a=%22&b=1", live.JOB, age=2.0, job_ids=job)
    told = {name: unescape(value) for name, value in re.findall(r' data-ojs-([a-z]+)="([^"]*)"', text)}
    assert told["live"] == "/x/?a=%22&b=1"
    assert (told["age"], told["every"], told["following"]) == ("2000", "2000", "15000")
    asked = json.loads(told["subscribe"])
    assert asked["filter"] == {"event_types": list(live.JOB), "job_ids": [str(job)]}
    assert asked["min_interval_ms"] == int(told["interval"])
    polling = live.follow(ask(right=""), "/x/", live.JOB)
    assert "socket" not in polling
    assert "subscribe" not in polling


@pytest.mark.urls("tests.dashboard.urls")
def test_pages_of_another_admin_site_ask_that_site(admin_client: Client) -> None:
    (job,) = claimed()
    for name, args in (("overview", ()), ("dead_letters", ()), ("job_change", (job.pk,))):
        page = reverse(f"admin:django_ojs_{name}", args=args, current_app="backstage")
        assert 'data-ojs-live="/backstage/' in admin_client.get(page).content.decode()


# A job's page


def part(body: str, name: str) -> str:
    return body.partition(f'data-ojs-part="{name}"')[2]


def test_a_job_that_goes_on_is_asked_for_with_its_buttons(admin_client: Client) -> None:
    (job,) = claimed()
    page = url("job", "live", job.pk)
    assert f'data-ojs-live="{page}"' in admin_client.get(url("job", "change", job.pk)).content.decode()
    body = admin_client.get(page).content.decode()
    assert "cancel_jobs" in part(body, "verbs")
    assert "ojs-active" in part(body, "fields")
    assert "job.started" in part(body, "history")
    assert admin_client.get(page).headers["Cache-Control"].startswith("max-age=0")


def test_asking_takes_no_message_from_who_acts(admin_client: Client) -> None:
    (job,) = dead()
    admin_client.post(url("job", "verb", job.pk, "retry_dead_letters"))
    assert "made available" not in admin_client.get(url("job", "live", job.pk)).content.decode()
    assert "made available" in admin_client.get(url("job", "change", job.pk)).content.decode()


def test_a_job_that_is_gone_is_not_found(admin_client: Client) -> None:
    response = admin_client.get(url("job", "live", uuid.uuid4()))
    assert response.status_code == 404
    assert list(get_messages(response.wsgi_request)) == []


def test_who_may_not_look_may_not_ask(operator: Callable[..., Client]) -> None:
    (job,) = claimed()
    assert operator("view_queue").get(url("job", "live", job.pk)).status_code == 403


# The pages of workflows, workers and bulk actions


def test_a_workflow_that_goes_on_is_asked_for_with_its_steps_and_buttons(admin_client: Client) -> None:
    steps: list[dict[str, Any]] = [{"type": "a.b", "args": []}, {"type": "a.c", "args": []}]
    flow = workflow.create({"type": "chain", "name": "nightly", "steps": steps}).workflow
    page = url("workflow", "live", flow.pk)
    assert f'data-ojs-live="{page}"' in admin_client.get(url("workflow", "change", flow.pk)).content.decode()
    body = admin_client.get(page).content.decode()
    assert "cancel_workflows" in part(body, "verbs")
    fields = part(body, "fields")
    assert "0 of 2 completed" in fields
    assert fields.count("a.b") >= 2  # in the graph, and in the list of the steps
    fetch(Fetch(["default"], worker_id="w"))
    ack([Ack(job.pk) for job in Job.objects.filter(state="active")])
    body = admin_client.get(page).content.decode()
    assert "1 of 2 completed" in part(body, "fields")
    workflow.cancel(flow.pk)
    body = admin_client.get(page).content.decode()
    assert "cancel_workflows" not in body
    assert "ojs-cancelled" in part(body, "fields")


def test_workers_and_bulk_actions_follow_too(admin_client: Client) -> None:
    claimed()
    register("w-1", {"queues": ["claims"]})
    body = admin_client.get(url("worker", "live", "w-1")).content.decode()
    assert "quiet_workers" in part(body, "verbs")
    assert str(Job.objects.get().pk) in part(body, "held")
    action = bulk.start_action("retry", dead_letters(), audit.Act("user:ann", "job.bulk_retry"))
    page = url("bulkaction", "live", action.pk)
    assert "cancel_bulkactions" in part(admin_client.get(page).content.decode(), "verbs")
    assert "No scheduler is running" in part(admin_client.get(page).content.decode(), "verbs")
    bulk.cancel_action(action.pk)
    body = admin_client.get(page).content.decode()
    assert "cancel_bulkactions" not in body
    assert "ojs-cancelled" in part(body, "fields")
    assert admin_client.get(url("bulkaction", "live", action.pk + 1)).status_code == 404


def test_the_pages_of_jobs_are_not_taken_for_jobs(admin_client: Client) -> None:
    """`overview/live/` is no job with the id `overview`."""
    assert "ojs-states" in admin_client.get("/admin/django_ojs/job/overview/live/").content.decode()
    assert admin_client.get("/admin/django_ojs/job/nonsense/live/").status_code == 404
