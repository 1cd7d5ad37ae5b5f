"""The same secret behind each door that shows jobs: shown where the site has no rule, and hidden where it has one.

The first half of each case sees to it that the second can fail.
"""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.management import call_command
from django.test import Client

from django_ojs.events import order
from django_ojs.jobs.verbs import info
from django_ojs.models import Event, Job, WebhookDelivery, WebhookSubscription, Workflow
from django_ojs.realtime import sse
from django_ojs.realtime.sse import Beginning
from django_ojs.statistics import summary
from django_ojs.telemetry import logs
from django_ojs.webhooks import subscriptions
from django_ojs.webhooks.relay import relay
from tests.http.conftest import Api

pytestmark = pytest.mark.django_db
SECRET = "hunter2"
TYPE = "payments.charge"
RULES: list[dict[str, Any]] = [{"types": {"payments.*": ["*"]}}, {"classified": True}]
#: A job in each situation.
World = dict[str, Any]


@pytest.fixture
def world(api: Api, settings: Any) -> Iterator[World]:
    """Each job is classified and of the hidden type; it holds the secret wherever it may hold anything."""
    settings.OJS = {**settings.OJS, "WEBHOOK_ALLOWED_HOSTS": ["127.0.0.1"]}
    hook = {"url": "https://127.0.0.1/hook", "events": ["*"], "secret": "a-secret-for-tests"}
    subscriptions.create(subscriptions.read_definition(hook))
    given = {"args": [SECRET], "meta": {"k": SECRET, "data_classification": "restricted"}}
    error = {"message": SECRET, "code": "x", "type": "Declined", "backtrace": [SECRET]}
    found: World = {"api": api, "active": api.push(TYPE, queue="a", **given)["id"]}
    api.fetch("a")
    report = {"progress": 0.5, "message": SECRET, "data": {"at": SECRET}}
    assert api.post("/workers/progress", {"job_id": found["active"], **report}).status_code == 200
    found["completed"] = api.push(TYPE, queue="c", **given)["id"]
    api.fetch("c")
    api.post("/workers/ack", {"job_id": found["completed"], "result": {"card": SECRET}})
    for name in ("dead", "again"):
        found[name] = api.push(TYPE, queue=name, retry={"max_attempts": 1}, **given)["id"]
        api.fetch(name)
        assert api.post("/workers/nack", {"job_id": found[name], "error": error}).json()["state"] == "discarded"
    assert api.post(f"/dead-letter/{found['again']}/retry").status_code == 200
    flow = {
        "type": "chain",
        "name": "flow",
        "steps": [{"type": TYPE, "queue": "f", "retry": {"max_attempts": 1}, **given}],
    }
    found["workflow"] = api.post("/workflows", flow).json()["id"]
    job = api.fetch("f")
    api.post("/workers/nack", {"job_id": job["id"], "error": error})
    order.catch_up("default")
    summary.forget()
    yield found
    summary.forget()


def command(*arguments: str) -> Callable[[World], str]:
    def run(world: World) -> str:
        out = io.StringIO()
        call_command(*(part.format(**world) for part in arguments), stdout=out, stderr=out, no_color=True)
        return out.getvalue()

    return run


def answer(path: str) -> Callable[[World], str]:
    def get(world: World) -> str:
        response = world["api"].get(path.format(**world))
        assert response.status_code == 200, response.content
        return response.content.decode()

    return get


def page(path: str) -> Callable[[World], str]:
    def get(world: World) -> str:
        client = Client()
        client.force_login(User.objects.get_or_create(username="root", is_staff=True, is_superuser=True)[0])
        summary.forget()
        flow = Workflow.objects.get()
        response = client.get("/admin/django_ojs/" + path.format(**{**world, "workflow": flow.pk}))
        assert response.status_code == 200, path
        return response.content.decode()

    return get


def stream(teller: Any, job: str) -> Callable[[World], str]:
    begin = Beginning(order.START)
    return lambda world: teller(info(Job.objects.get(pk=world[job]).pk)).opening(begin)


def sent(world: World) -> str:
    """The bodies of the webhooks about all that has happened."""
    WebhookDelivery.objects.all().delete()
    begin = WebhookSubscription.objects.get()
    while relay():
        pass
    bodies = list(WebhookDelivery.objects.filter(subscription=begin).values_list("body", flat=True))
    return "".join(bodies)


def log_lines(world: World) -> str:
    """What the log says of the events that are there, with all fields."""
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(str(vars(record)))  # type: ignore[method-assign]
    logs.logger.addHandler(handler)
    try:
        for event in Event.objects.filter(type="job.discarded"):
            event.data = json.dumps(event.data)
            logs._write([event])  # type: ignore[list-item]
    finally:
        logs.logger.removeHandler(handler)
    return "".join(lines)


DOORS: dict[str, Callable[[World], str]] = {
    "ojs_jobs list": command("ojs_jobs", "list"),
    "ojs_jobs list --json": command("ojs_jobs", "list", "--json"),
    "ojs_jobs show": command("ojs_jobs", "show", "{completed}"),
    "ojs_jobs show active": command("ojs_jobs", "show", "{active}"),
    "ojs_dead_letter list": command("ojs_dead_letter", "list"),
    "ojs_dead_letter list --json": command("ojs_dead_letter", "list", "--json"),
    "ojs_events": command("ojs_events", "--limit", "200"),
    "ojs_events --json": command("ojs_events", "--json", "--limit", "200"),
    "progress over HTTP": answer("/jobs/{active}/progress"),
    "a job's progress over HTTP": answer("/jobs/{active}"),
    "a retried job over HTTP": answer("/jobs/{again}"),
    "stream of progress": stream(sse.ProgressFeed, "active"),
    "stream of a result": stream(sse.ResultFeed, "completed"),
    "stream of an error": stream(sse.ResultFeed, "dead"),
    "admin: jobs": page("job/"),
    "admin: active job": page("job/{active}/change/"),
    "admin: dead letter": page("job/{dead}/change/"),
    "admin: retried job": page("job/{again}/change/"),
    "admin: events": page("event/"),
    "admin: overview": page("job/overview/"),
    "admin: overview, live": page("job/overview/live/"),
    "admin: dead letters": page("job/dead-letters/"),
    "admin: dead letters, live": page("job/dead-letters/live/"),
    "admin: workflow": page("workflow/{workflow}/change/"),
    "webhooks": sent,
    "the log": log_lines,
}


@pytest.mark.parametrize("rule", RULES, ids=["type", "classified"])
@pytest.mark.parametrize("door", DOORS)
def test_no_door_shows_it(world: World, settings: Any, door: str, rule: dict[str, Any]) -> None:
    if door != "webhooks":  # what was handed out is not rendered again
        assert SECRET in DOORS[door](world)
    settings.OJS = {**settings.OJS, "REDACT": rule}
    assert SECRET not in DOORS[door](world)


def test_without_a_rule_a_webhook_says_it(world: World) -> None:
    assert SECRET in sent(world)


def test_a_hidden_progress_keeps_its_number(world: World, settings: Any) -> None:
    settings.OJS = {**settings.OJS, "REDACT": RULES[0]}
    shown = world["api"].get(f"/jobs/{world['active']}/progress").json()
    assert (shown["progress"], shown["message"], shown["data"]) == (0.5, "[REDACTED]", {"at": "[REDACTED]"})
