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
from django_ojs.jobs.read import info
from django_ojs.models import Event, Job, WebhookDelivery, WebhookSubscription, Workflow
from django_ojs.realtime import sse
from django_ojs.realtime.sse import Beginning
from django_ojs.statistics import summary
from django_ojs.telemetry import logs
from django_ojs.webhooks import subscriptions
from django_ojs.webhooks.relay import relay
from tests.http.conftest import Api

pytestmark = [pytest.mark.django_db, pytest.mark.once, pytest.mark.slow]
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
    line = {"message": SECRET, "fields": {"k": SECRET}, "exception": SECRET}
    assert api.post(f"/jobs/{found['active']}/logs", {"lines": [line]}).json()["accepted"] == 1
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
    unique = {"keys": ["type", "args", "meta"], "meta_keys": ["k"]}
    found["unique"] = api.push(TYPE, queue="u", unique=unique, **given)["id"]
    found["digest"] = Job.objects.get(pk=found["unique"]).unique_key
    schedule = {"name": "hourly", "cron": "@hourly", "type": TYPE, "queue": "u", "unique": unique, **given}
    assert api.post("/cron", schedule).status_code == 201
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


def conflict(path: str, **body: Any) -> Callable[[World], str]:
    def post(world: World) -> str:
        response = world["api"].post(path, body or None)
        assert response.status_code == 409, response.content
        return response.content.decode()

    return post


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
    logs.logger.logger.addHandler(handler)
    try:
        for event in Event.objects.filter(type="job.discarded"):
            event.data = json.dumps(event.data)
            logs._write([event])  # type: ignore[list-item]
    finally:
        logs.logger.logger.removeHandler(handler)
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
    "logs over HTTP": answer("/jobs/{active}/logs"),
    "a text in logs": answer(f"/jobs/{{active}}/logs?text={SECRET}"),
    "logs as text": answer("/jobs/{active}/logs?format=text"),
    "stream of logs": stream(lambda row: sse.LogFeed(row, None, None, 0), "active"),
    "ojs_jobs logs": command("ojs_jobs", "logs", "{active}"),
    "admin: logs": page("job/{active}/logs/"),
    "admin: logs as text": page("job/{active}/logs/?format=text"),
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


#: Doors that show the digest of arguments and meta where nothing is hidden. One who sees it can try what it is made of.
DIGEST_DOORS: dict[str, Callable[[World], str]] = {
    "events over HTTP": answer("/events?limit=1000"),
    "ojs_events --json": DOORS["ojs_events --json"],
    "unique keys over HTTP": answer("/unique-jobs"),
    "a duplicate": conflict(
        "/jobs", type=TYPE, args=[SECRET], meta={"k": SECRET, "data_classification": "restricted"}, queue="u",
        unique={"keys": ["type", "args", "meta"], "meta_keys": ["k"]},
    ),
    "admin: unique job": page("job/{unique}/change/"),
    "admin: event": lambda world: page(f"event/{Event.objects.get(job_id=world['unique']).pk}/change/")(world),
    "webhooks": sent,
}  # fmt: skip
#: The rules of all of them, and one that hides members by their names: arguments may hold such members.
DIGEST_RULES = [*RULES, {"keys": ["*password*"]}]


@pytest.mark.parametrize("rule", DIGEST_RULES, ids=["type", "classified", "keys"])
@pytest.mark.parametrize("door", DIGEST_DOORS)
def test_no_door_shows_a_digest_of_it(world: World, settings: Any, door: str, rule: dict[str, Any]) -> None:
    if door != "webhooks":
        assert world["digest"] in DIGEST_DOORS[door](world)
    settings.OJS = {**settings.OJS, "REDACT": rule}
    assert world["digest"] not in DIGEST_DOORS[door](world)


@pytest.mark.parametrize("rule", DIGEST_RULES, ids=["type", "classified", "keys"])
def test_no_other_door_shows_a_digest_either(world: World, settings: Any, rule: dict[str, Any]) -> None:
    settings.OJS = {**settings.OJS, "REDACT": rule}
    assert not [name for name, door in DOORS.items() if world["digest"] in door(world)]


def test_a_digest_of_what_nobody_hides_is_shown(world: World, settings: Any) -> None:
    settings.OJS = {**settings.OJS, "REDACT": {"types": {"*": ["backtraces"], "mail.*": ["args"]}}}
    for door in DIGEST_DOORS.values():
        assert world["digest"] in door(world)


@pytest.mark.parametrize("rule", DIGEST_RULES, ids=["type", "classified", "keys"])
def test_no_door_says_how_long_a_hidden_result_is(world: World, settings: Any, rule: dict[str, Any]) -> None:
    settings.OJS = {**settings.OJS, "EXTENSION_EVENTS": True}
    api = world["api"]
    job = api.push(TYPE, queue="long", meta={"data_classification": "restricted"})["id"]
    api.fetch("long")
    assert api.post("/workers/ack", {"job_id": job, "result": {"card": SECRET}}).status_code == 200
    api.get(f"/jobs/{job}/result")
    paths = (f"/jobs/{job}", f"/admin/jobs/{job}", "/events?types=result.stored,result.retrieved")
    for path in paths:
        assert "size_bytes" in api.get(path).content.decode()
    settings.OJS = {**settings.OJS, "REDACT": rule}
    for path in paths:
        assert "size_bytes" not in api.get(path).content.decode()
    assert api.get(f"/jobs/{job}/result").status_code == 200
    assert "size_bytes" not in sent(world)


@pytest.mark.parametrize("rule", DIGEST_RULES, ids=["type", "classified", "keys"])
def test_no_error_says_it_in_its_details(world: World, settings: Any, rule: dict[str, Any]) -> None:
    """A worker may report the refusal of a push, or of a result, as the error of its own job."""
    api = world["api"]
    error = {"message": f"It has {len(SECRET) + 2} bytes.", "code": "RESULT_TOO_LARGE", "type": "ResultTooLarge"}
    error["details"] = {"unique_key": world["digest"], "actual_bytes": 1234567, "field": "result"}
    job = api.push(TYPE, queue="e", retry={"max_attempts": 1}, meta={"data_classification": "restricted"})["id"]
    api.fetch("e")
    api.post("/workers/nack", {"job_id": job, "error": error})
    rule = {**rule, "types": {"payments.*": ["args", "result"]}} if "types" in rule else rule
    paths = (f"/jobs/{job}", "/events?limit=1000", f"/dead-letter/{job}")
    told = (world["digest"], "1234567", error["message"])
    assert all(said in api.get(path).content.decode() for path in paths for said in told)
    settings.OJS = {**settings.OJS, "REDACT": rule}
    assert not [(path, said) for path in paths for said in told if said in api.get(path).content.decode()]


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
