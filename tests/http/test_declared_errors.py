"""Each error that the OpenAPI document declares of an operation can happen; `described_answers` sees to the other way
round, that each that happens is declared.
"""

from __future__ import annotations

import datetime as dt
import json
import re
from collections.abc import Callable, Iterator
from threading import BoundedSemaphore
from typing import Any
from unittest import mock

import pytest
from django.conf import settings
from django.db import OperationalError, connection
from django.db.models import F
from django.test import override_settings

from django_ojs import clock, keys
from django_ojs.http import openapi
from django_ojs.http.deadletter import DeadLetterViewSet
from django_ojs.jobs.retry import retry
from django_ojs.models import Job, JobStep
from django_ojs.queues import configuration
from django_ojs.rules.steps import JOB_FAILED, StepKind
from django_ojs.webhooks import deliveries
from django_ojs.webhooks.transport import DeliveryOutcome, DeliveryReply
from tests.http.conftest import Api, undone
from tests.http.described import described
from tests.http.stories import put
from tests.http.test_openapi import (
    NEEDED_QUERIES,
    OPERATIONS,
    STREAMS,
    _approval,
    _ended,
    _queue,
    _schedule,
    _schema,
    _subscription,
    _worker,
    body_of,
    url_of,
)  # fmt: skip

pytest.importorskip("drf_spectacular")
pytestmark = [
    pytest.mark.django_db,
    pytest.mark.once,
    pytest.mark.slow,
    pytest.mark.usefixtures("echoed", "frozen_clock"),
]

Story = Callable[[Api], Any]
_ALIASES = re.compile("/crons|/ojs/v1/ojs/v1/|/workers/(beat|fail|register)$|/jobs/fetch$|/fail$")


def away(execute: Any, sql: str, *given: Any) -> Any:
    """A database that is lost in the middle of a call; what this test does with savepoints goes on."""
    if "SAVEPOINT" in sql:
        return execute(sql, *given)
    raise OperationalError("server closed the connection unexpectedly")


def without_rights(call: Callable[..., int], texts: list[str]) -> Iterator[int]:
    """What a caller gets who shows no key, and one with each of these keys."""
    with override_settings(OJS={**settings.OJS, "ALLOW_ANONYMOUS": False, "METRICS_PUBLIC": False}):
        yield call()
        for text in texts:
            yield call(Authorization=f"Bearer {text}")


def full(api: Api) -> None:
    """The queue `default` takes no job any more."""
    api.push()
    put(api, "/queues/default/config", {"max_size": 1, "overflow_policy": "reject"})
    configuration.forget()


def in_full_queue(path: str, body: Any = None, before: Callable[[Api], Any] = lambda api: None) -> Story:
    """A POST where it would make a job in a queue that is full; `before` makes what the path has in its place."""

    def story(api: Api) -> Any:
        made = before(api)
        full(api)
        return api.post(path.format(made), body)

    return story


def _waiting(api: Api) -> str:
    return str(api.push()["id"])


def of_ended(method: str, path: str, body: Any = None) -> Story:
    """A call for a job that has ended."""
    return lambda api: sent(api, method, path.format(_ended(api)), body)


def sent(api: Api, method: str, path: str, body: Any = None) -> Any:
    data, kind = (b"", "") if body is None else (json.dumps(body).encode(), "application/json")
    return api.client.generic(method, f"/ojs/v1{path}", data, content_type=kind)


def configured(story: Story, **given: Any) -> Story:
    """A story at a site with these settings."""

    def told(api: Api) -> Any:
        with override_settings(OJS={**settings.OJS, **given}):
            return story(api)

    return told


def a_running_name(api: Api) -> Any:
    api.push(unique={"keys": ["type"], "on_conflict": "reject"})
    return api.post(f"/admin/jobs/{api.get('/jobs').json()['items'][0]['id']}/duplicate")


def many_tests(api: Api) -> Any:
    made = _subscription(api)
    with mock.patch.object(deliveries, "_tests", BoundedSemaphore(1)) as tests:
        tests.acquire()
        return api.post(f"/webhooks/subscriptions/{made}/test")


def other_schema(method: str, path: str) -> Story:
    body = {"schema": {"type": "object"}, "job_type": "mail.send", "version": "1"}
    return lambda api: (_schema(api), sent(api, method, path, body))[1]


def by_a_limited_key(path: str) -> Story:
    def story(api: Api) -> Any:
        with override_settings(OJS={**settings.OJS, "ALLOW_ANONYMOUS": False}):
            _, text = keys.create("limited", ["admin"], queues=["mine"])
            return api.get(path, Authorization=f"Bearer {text}")

    return story


def without_result(api: Api) -> Any:
    job = api.push(options={"result_ttl": 0})["id"]
    api.fetch()
    api.post("/workers/ack", {"job_id": job, "result": 1})
    Job.objects.update(finished_at=F("created_at") - dt.timedelta(hours=1))
    return api.get(f"/jobs/{job}/result")


def decided(api: Api) -> Any:
    approval = _approval(api)
    api.post(f"/approvals/{approval}/decide", {"approved": True})
    return api.post(f"/approvals/{approval}/delegate", {"to": ["perm:shop.refund"]})


def retried_meanwhile(api: Api) -> Any:
    """Another caller retries the dead letter after this one has looked at it."""
    dead, look = api.dead_letter()["id"], DeadLetterViewSet.get_object

    def then_retried(view: Any) -> Any:
        found = look(view)
        retry([found["id"]])
        return found

    with mock.patch.object(DeadLetterViewSet, "get_object", then_retried):
        return api.post(f"/dead-letter/{dead}/retry")


def while_undoing_is_refused(path: str) -> Story:
    """A DELETE of the record of a failed job, whose queue does not take the job that is to undo it."""

    def story(api: Api) -> Any:
        dead = api.dead_letter()["id"]
        step = JobStep(job_id=dead, name="undo", kind=StepKind.UNDO, attempt=1, began_at=clock.now())
        step.event_name, step.event_key = JOB_FAILED, dead
        step.save()
        put(api, "/queues/default/config", {"allowed_job_types": ["other.*"]})
        configuration.forget()
        return sent(api, "DELETE", path.format(dead))

    return story


def without_spectacular(api: Api) -> Any:
    with mock.patch.object(openapi, "available", return_value=False):
        return api.get("/openapi.json")


def sick(api: Api) -> Any:
    with mock.patch("django_ojs.http.probes._sign_of_life", side_effect=OperationalError("away")):
        return api.get("/health")


_JOB = {"type": "a.b", "args": []}
_CRON = {"name": "nightly", "cron": "@daily", "type": "a.b"}
_UNBLOCK = {"blocked_until": None}
_ERROR = {"error": {"message": "m"}}
_UNKNOWN = "019461a8-1a2b-7c3d-8e4f-5a6b7c8d9e0f"
_RULES = [{"name": "again", "filter": {"queue": "q"}}]
_RULE = "/admin/dead-letter/replay-rules/again"
#: What depends on what is there: the operation and the status -> a call with that answer.
STORIES: dict[str, Story] = {
    "delete /admin/dead-letter/replay-rules/{name} 409": configured(
        lambda api: sent(api, "DELETE", _RULE), REPLAY_RULES=_RULES
    ),
    "put /admin/dead-letter/replay-rules/{name} 409": configured(
        lambda api: sent(api, "PUT", _RULE, {"filter": {"queue": "q"}}), REPLAY_RULES=_RULES
    ),
    "delete /admin/workers/{worker_id} 409": lambda api: sent(api, "DELETE", f"/admin/workers/{_worker(api)}"),
    "delete /jobs/{job_id} 409": of_ended("DELETE", "/jobs/{}"),
    "patch /jobs/{job_id} 409": of_ended("PATCH", "/jobs/{}", {"priority": 3}),
    "patch /admin/jobs/{job_id} 409": of_ended("PATCH", "/admin/jobs/{}", {"priority": 3}),
    "post /admin/jobs/{job_id}/cancel 409": of_ended("POST", "/admin/jobs/{}/cancel"),
    "post /jobs/{job_id}/cancel 409": of_ended("POST", "/jobs/{}/cancel"),
    "delete /jobs/{job_id}/checkpoint 409": while_undoing_is_refused("/jobs/{}/checkpoint"),
    "delete /admin/jobs/{job_id}/checkpoint 409": while_undoing_is_refused("/admin/jobs/{}/checkpoint"),
    "delete /checkpoints/{job_id} 409": while_undoing_is_refused("/checkpoints/{}"),
    "put /jobs/{job_id}/checkpoint 409": of_ended("PUT", "/jobs/{}/checkpoint", {"state": 1}),
    "post /jobs/{job_id}/checkpoint 409": of_ended("POST", "/jobs/{}/checkpoint", {"state": 1}),
    "post /checkpoints/{job_id} 409": of_ended("POST", "/checkpoints/{}", {"state": 1}),
    "delete /queues/{name} 409": lambda api: sent(api, "DELETE", f"/queues/{_queue(api)}"),
    "post /admin/jobs/{job_id}/duplicate 409": a_running_name,
    "post /admin/jobs/{job_id}/duplicate 429": in_full_queue("/admin/jobs/{}/duplicate", None, _waiting),
    "post /admin/schemas 409": other_schema("POST", "/admin/schemas"),
    "post /schemas 409": other_schema("POST", "/schemas"),
    "put /admin/schemas/{name}/{version} 409": other_schema("PUT", "/admin/schemas/mail.send/1"),
    "post /admin/cron/{name}/trigger 429": in_full_queue("/admin/cron/{}/trigger", None, _schedule),
    "post /cron/{name}/trigger 429": in_full_queue("/cron/{}/trigger", None, _schedule),
    "post /jobs 429": in_full_queue("/jobs", _JOB),
    "post /jobs/batch 429": in_full_queue("/jobs/batch", {"jobs": [_JOB]}),
    "post /workflows 429": in_full_queue("/workflows", {"type": "chain", "steps": [_JOB]}),
    "post /webhooks/subscriptions 409": configured(
        lambda api: api.post("/webhooks/subscriptions", {"url": "https://a.example", "events": ["*"]}),
        WEBHOOK_MAX_SUBSCRIPTIONS=0,
    ),
    "post /webhooks/subscriptions/{subscription_id}/test 429": many_tests,
    "post /workers/ack 404": lambda api: api.post("/workers/ack", {"job_id": _UNKNOWN}),
    "post /workers/nack 404": lambda api: api.post("/workers/nack", {"job_id": _UNKNOWN, **_ERROR}),
    "post /workers/progress 404": lambda api: api.post("/workers/progress", {"job_id": _UNKNOWN, "progress": 0.5}),
    "post /workers/deregister 404": lambda api: api.post("/workers/deregister", {"worker_id": "nobody"}),
    "put /rate-limits/{key} 404": lambda api: sent(api, "PUT", "/rate-limits/none", _UNBLOCK),
    "put /admin/rate-limits/{key} 404": lambda api: sent(api, "PUT", "/admin/rate-limits/none", _UNBLOCK),
    "get /jobs/{job_id}/result 408": lambda api: api.get(f"/jobs/{api.push()['id']}/result?wait=true&timeout=0"),
    "get /jobs/{job_id}/result 410": without_result,
    "delete /jobs/{job_id}/history 400": lambda api: api.delete(f"/jobs/{_ended(api)}/history?before=1h"),
    "get /history 501": lambda api: api.get("/history?query=boom"),
    "get /events 406": lambda api: api.get("/events", Accept="text/event-stream"),
    "get /events 404": lambda api: api.get(f"/events?channel=job:{_UNKNOWN}", Accept="text/event-stream"),
    "get /admin/audit 404": by_a_limited_key("/admin/audit"),
    "get /webhooks/deliveries 404": lambda api: api.get("/webhooks/deliveries?subscription_id=sub_9"),
    "get /health 503": sick,
    "get /metrics 404": configured(lambda api: api.get("/metrics?format=prometheus"), METRICS=False),
    "get /openapi.json 404": without_spectacular,
    "post /approvals/{approval_id}/delegate 409": decided,
    "post /dead-letter/{job_id}/retry 409": retried_meanwhile,
}  # fmt: skip


def provoked(api: Api, path: str, method: str, operation: Any, texts: list[str]) -> Iterator[int]:
    """The statuses that what a client may do wrong leads to, and a database that is away."""
    good, body = url_of(api, path, method), json.dumps(body_of(path, method, api) or {}).encode()
    query, takes = NEEDED_QUERIES.get((path, method), ""), "requestBody" in operation
    kind = "application/json" if takes else ""

    def call(url: str, sent: bytes = body, **more: Any) -> int:
        with undone():
            answer = api.client.generic(method.upper(), url, sent if takes else b"", content_type=kind, **more)
        return int(answer.status_code)

    yield call(good + query, headers={"OJS-Version": "9"})
    yield from without_rights(lambda **headers: call(good + query, headers=headers), texts)
    with undone():
        for sent in (body, body, body + b" "):
            yield int(api.client.generic(method.upper(), good, sent if takes else b"", content_type=kind,
                                         headers={"Idempotency-Key": "k"}).status_code)  # fmt: skip
    with undone():
        for _ in range(2):
            yield int(api.client.generic(method.upper(), good, body if takes else b"", content_type=kind).status_code)
    with connection.execute_wrapper(away):
        yield call(good + query, headers={"Authorization": "Bearer ojs_" + "0" * 64})
    for unknown in ("nothing-here", "%00"):
        yield call(re.sub(r"{\w+}", unknown, path) + query)
    if takes:
        yield call(good, b"[")
        yield call(good, headers={"Content-Encoding": "br"})
        yield call(good, CONTENT_LENGTH="999999999")
    for parameter in operation["parameters"]:
        if parameter["in"] == "query":
            yield call(f"{good}?{parameter['name']}=%01x")


def test_each_declared_error_can_happen(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deliveries, "attempt", lambda sending: DeliveryReply(DeliveryOutcome.SUCCESS, 204))
    missing, undeclared = [], []
    texts = [keys.create(scope, [scope])[1] for scope in ("push", "work")]  # each may do little
    for path, method in OPERATIONS:
        if _ALIASES.search(path) or path in STREAMS:
            continue
        operation = described().document["paths"][path][method]
        with undone():
            found = set(provoked(api, path, method, operation, texts))
        for name, story in STORIES.items():
            if name.rpartition(" ")[0] == f"{method} {path.removeprefix('/ojs/v1')}":
                with undone():
                    answer = story(api)
                found.add(answer.status_code)
                assert name.endswith(str(answer.status_code)), (name, answer.status_code, answer.content)
        declared = {int(status) for status in operation["responses"] if status.isdigit() and status >= "400"}
        left = [f"{method} {path} {status}" for status in sorted(declared - found)]
        missing += left
        undeclared += [f"{method} {path} {status}" for status in sorted(found - declared) if status >= 400]
    assert missing == [], "\n".join(missing)
    assert undeclared == [], "\n".join(undeclared)
