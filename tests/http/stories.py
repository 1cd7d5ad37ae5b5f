"""Stories with real jobs, workflows and queues, which lead to each member that an answer may have."""

from __future__ import annotations

import contextlib
import datetime as dt
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

from django.conf import settings
from django.db import OperationalError
from django.test import override_settings

from django_ojs import clock
from django_ojs.events import order
from django_ojs.http import manifest
from django_ojs.jobs import bulk, schemas
from django_ojs.jobs.filterfields import Notation
from django_ojs.jobs.history import ERASURE_MEMBERS
from django_ojs.jobs.retry import OVERRIDABLE
from django_ojs.jobs.selection import names_in
from django_ojs.models import Approval, BulkAction, Event, Job, JobLog, RateLimit, WebhookDelivery, WebhookSubscription
from django_ojs.rules.durations import format_instant
from django_ojs.rules.ids import new_job_id
from django_ojs.statistics import eventcounts, summary
from tests.http.conftest import Api
from tests.http.described import described
from tests.middlewares import added
from tests.rights.world import asked, build
from tests.webhooks.receiver import Receiver

Answers = list[Any]


def call(api: Api, path: str, body: dict[str, Any]) -> Any:
    answer = api.post(path, body)
    assert answer.status_code < 300, answer.content
    return answer.json()


def claimed(api: Api, **more: Any) -> str:
    job = api.push(**more)["id"]
    assert call(api, "/workers/fetch", {"queues": ["default"], "worker_id": "w"})["job"]["id"] == job
    return str(job)


def fetches(api: Api) -> Answers:
    nothing = call(api, "/workers/fetch", {"queues": ["default"]})
    for _ in range(2):
        api.push()
    several = call(api, "/workers/fetch", {"queues": ["default"], "count": 2})
    assert len(several["jobs"]) == 2
    return [nothing, several]


def acks(api: Api) -> Answers:
    return [
        call(api, "/workers/ack", {"job_id": claimed(api), "result": {"a": 1}}),
        call(api, f"/jobs/{claimed(api)}/ack", {}),
    ]


def nacks(api: Api) -> Answers:
    error = {"error": {"message": "m"}}
    return [
        call(api, "/workers/nack", {"job_id": claimed(api), **error}),
        call(api, "/workers/nack", {"job_id": claimed(api, retry={"max_attempts": 1}), **error}),
        call(api, f"/jobs/{claimed(api)}/nack", {"requeue": True}),
    ]


def beats(api: Api) -> Answers:
    held, lost = claimed(api), api.push()["id"]
    cancelled = claimed(api, queue="default") if api.delete(f"/jobs/{lost}").status_code == 200 else ""
    api.delete(f"/jobs/{cancelled}")
    answer = call(api, "/workers/heartbeat", {"worker_id": "w", "active_job_ids": [held, cancelled, "none"]})
    assert (answer["jobs_extended"], answer["jobs_cancelled"], answer["jobs_lost"]) == ([held], [cancelled], ["none"])
    return [answer, call(api, "/workers/heartbeat", {"worker_id": "idle"})]


def batches(api: Api) -> Answers:
    unique = {"type": "a.b", "args": [], "unique": {"keys": ["type"], "on_conflict": "ignore"}}
    plain = {"type": "a.c", "args": [], "retrys": {}}
    first, again = (call(api, "/jobs/batch", {"jobs": [unique]}) for _ in range(2))
    assert again["jobs"] == [{**first["jobs"][0], "deduplicated": True}]
    return [first, again, call(api, "/jobs/batch", {"jobs": [plain]})]


def bulks(api: Api) -> Answers:
    unique = {"type": "a.b", "args": [], "unique": {"keys": ["type"], "on_conflict": "ignore"}}
    fine, again = (call(api, "/jobs/bulk", {"jobs": [unique]}) for _ in range(2))
    assert again["items"][0]["status"] == "duplicate"
    return [fine, again, call(api, "/jobs/bulk", {"jobs": [{"type": "a.c", "args": [], "retrys": {}}, {"type": "A"}]})]


def jobs(api: Api) -> Iterator[str]:
    """The ids of jobs, each when the server knows something of it that it knows of no other."""
    line = {name: str(new_job_id()) for name in ("parent_id", "root_id")}
    done = claimed(api, options={"result_ttl": 60}, **line)
    call(api, "/workers/progress", {"job_id": done, "progress": 0.5, "message": "half", "data": {"a": 1}})
    yield done
    call(api, "/workers/ack", {"job_id": done, "result": {"a": 1}})
    yield done
    chain = {"type": "chain", "steps": [{"type": "a.b", "args": []}, {"type": "a.b", "args": []}]}
    call(api, "/workflows", chain)
    call(api, "/workers/ack", {"job_id": claimed_of_workflow(api), "result": 1})
    yield claimed_of_workflow(api)
    step = {"type": "a.b", "args": [], "retry": {"max_attempts": 1}}
    needs = ["a", "b"]
    steps = [{"id": name, **step} for name in needs] + [{"id": "on_complete", "depends_on": needs, **step}]
    call(api, "/workflows", {"steps": steps})
    first, second = (claimed_of_workflow(api) for _ in needs)
    call(api, "/workers/ack", {"job_id": first, "result": 1})
    call(api, "/workers/nack", {"job_id": second, "error": {"message": "m"}})
    yield second
    yield claimed_of_workflow(api)
    failed = claimed(api, retry={"max_attempts": 1}, scheduled_at="2020-01-01T00:00:00Z")
    call(api, "/workers/nack", {"job_id": failed, "error": {"message": "m"}})
    yield failed
    call(api, f"/dead-letter/{failed}/retry", {})
    yield failed


def claimed_of_workflow(api: Api) -> str:
    return str(call(api, "/workers/fetch", {"queues": ["default"], "worker_id": "w"})["job"]["id"])


def answers_about_one(api: Api) -> Answers:
    found = [api.get(f"/jobs/{job}").json() for job in jobs(api)]
    dead = api.dead_letter(queue="letters")["id"]
    found.append(call(api, f"/dead-letter/{dead}/retry", {}))
    found.append(api.client.patch(f"/ojs/v1/jobs/{dead}", {"priority": 3}, content_type="application/json").json())
    found.append(api.delete(f"/jobs/{dead}").json())
    unique = {"type": "a.u", "args": [], "unique": {"keys": ["type"], "on_conflict": "ignore"}}
    found += [call(api, "/jobs", unique) for _ in range(2)]
    return [*found, call(api, "/jobs", {"type": "a.b", "args": [], "retry": {"max_attemps": 1}})]


def details(api: Api) -> Answers:
    found = [api.get(f"/admin/jobs/{job}").json() for job in jobs(api)]
    dead = api.dead_letter(queue="letters")["id"]
    found.append(call(api, f"/admin/jobs/{dead}/duplicate", {}))
    found.append(call(api, f"/admin/dead-letter/{dead}/retry", {}))
    changed = api.client.patch(f"/ojs/v1/admin/jobs/{dead}", {"priority": 3}, content_type="application/json")
    return [*found, changed.json(), call(api, f"/admin/jobs/{dead}/cancel", {})]


def lines(api: Api) -> Answers:
    for _ in jobs(api):
        pass
    api.push(scheduled_at="2030-01-01T00:00:00Z")
    api.delete(f"/jobs/{api.push()['id']}")
    return [line for path in ("/jobs", "/admin/jobs") for line in api.get(path).json()["items"]]


def dead(api: Api) -> Iterator[str]:
    """The ids of dead letters: one that another job enqueued, one of a workflow, one that died again."""
    error = {"error": {"message": "m"}}
    line = {name: str(new_job_id()) for name in ("parent_id", "root_id")}
    told = claimed(api, retry={"max_attempts": 1}, **line)
    call(api, "/workers/nack", {"job_id": told, **error})
    yield told
    step = {"type": "a.b", "args": [], "retry": {"max_attempts": 1}}
    call(api, "/workflows", {"type": "chain", "steps": [{"type": "a.b", "args": []}, step]})
    call(api, "/workers/ack", {"job_id": claimed_of_workflow(api), "result": 1})
    last = claimed_of_workflow(api)
    call(api, "/workers/nack", {"job_id": last, **error})
    yield last
    call(api, f"/dead-letter/{told}/retry", {})
    assert claimed_of_workflow(api) == told
    call(api, "/workers/nack", {"job_id": told, **error})
    yield told


def letters(api: Api) -> Answers:
    paths = (("/dead-letter", "jobs"), ("/admin/dead-letter", "items"))
    return [letter for _ in dead(api) for path, name in paths for letter in api.get(path).json()[name]]


def letters_alone(api: Api) -> Answers:
    return [api.get(f"/dead-letter/{job}").json() for job in dead(api)]


def events(api: Api) -> Answers:
    for _ in jobs(api):
        pass
    call(api, "/workers/heartbeat", {"worker_id": "w", "state": "terminate"})
    return list(api.get("/events", {"limit": 200}).json()["events"])


def queues(api: Api) -> None:
    """A queue with everything that one may be set to, paused; and one with nothing."""
    window = {"limit": 3, "period": "PT1S"}
    limit = {"concurrency": 2, "max_per_second": 5, "on_limit": "reschedule", "rate": window, "throttle": window}
    days = {"max_age": "P30D", "max_count": 5}
    put(api, "/queues/full/config", {
        "max_size": 9, "max_size_bytes": 9000, "overflow_policy": "reject", "concurrency": 3, "rate_limit": limit,
        "backpressure": {"max_depth": 9, "max_size_bytes": 9000, "strategy": "reject", "warning_threshold": 0.8},
        "visibility_timeout": 30, "default_timeout": 60, "default_retry": {"max_attempts": 2},
        "retention": {"completed": "P1D", "cancelled": "P1D", "discarded": "P1D"}, "dead_letter": {"retention": days},
        "dead_letter_queue": "letters", "dead_letter_max_size": 5, "dead_letter_ttl": "P1D",
        "allowed_job_types": ["a.b"], "producers": ["web"], "draining": True,
    })  # fmt: skip
    api.post("/queues/full/pause")
    api.post("/queues", {"name": "bare"})
    for name in ("full", "bare"):
        for path in (f"/queues/{name}", f"/queues/{name}/config", f"/admin/queues/{name}"):
            api.get(path)
        api.get(f"/admin/queues/{name}/config")
    api.get("/queues")
    api.get("/admin/queues")


def put(api: Api, path: str, body: Any) -> Any:
    answer = api.client.put(f"/ojs/v1{path}", body, content_type="application/json")
    assert answer.status_code < 300, answer.content
    return answer.json()


def stored(api: Api) -> None:
    """What operations of other doors, and time, have left in rows."""
    now = clock.now()
    asked(api.push()["id"], "default", "a.b", "refund")
    Approval.objects.update(schema={"type": "object"}, form="forms:Refund", default=True, due_at=now, escalate_at=now)
    api.get("/approvals")
    hook = {"url": "https://hooks.example/", "events": ["job.*"]}
    made = api.post("/webhooks/subscriptions", hook).json()["id"]
    WebhookSubscription.objects.update(disabled_reason="gone", last_delivery_at=now, last_delivery_status=500)
    api.get(f"/webhooks/subscriptions/{made}")
    BulkAction.objects.create(
        verb="retry", filter=dict.fromkeys(names_in(Notation.OPERATOR), "2020-01-01T00:00:00Z"),
        override=dict.fromkeys(OVERRIDABLE, 1), created_at=now, expected=1,
        errors=[{"job_id": str(new_job_id()), "error": "conflict"}],
    )  # fmt: skip
    api.get("/admin/bulk-actions")
    chosen = {"since": "2020-01-01T00:00:00Z", "until": "2030-01-01T00:00:00Z", "queue": "q", "type": "a.b"}
    put(api, "/admin/dead-letter/replay-rules/again", {"filter": {**chosen, "error_type": "E"}})
    api.get("/admin/dead-letter/replay-rules")


def limited(api: Api) -> None:
    """Rate limits of all kinds, blocked and with an override; a queue whose window is used up."""
    api.push(rate_limit={"key": "k", "limit": 1, "period": "PT1M"})
    api.push(rate_limit={"key": "k", "limit": 1, "period": "PT1M"})
    call(api, "/workers/fetch", {"queues": ["default"], "count": 2})
    api.get("/rate-limits/k")
    later = "2098-01-01T00:00:00Z"
    put(api, "/rate-limits/k/override", {"concurrency": 3, "on_limit": "wait", "expires_at": later})
    RateLimit.objects.update(blocked_until=clock.now() + dt.timedelta(days=1))
    for door in ("", "/admin"):
        api.get(f"{door}/rate-limits/k")
        api.get(f"{door}/rate-limits")


def registered(api: Api) -> None:
    """A worker that says all of itself."""
    facts = {"hostname": "h", "pid": 7, "release": "v1", "labels": ["a"], "cpu_percent": 3.5, "queues": ["q"]}
    call(api, "/workers/register", {"worker_id": "w", **facts})
    api.get("/admin/workers/w")
    api.get("/admin/workers")


def flows(api: Api) -> None:
    """Workflows with steps of all kinds: a group in a chain, callbacks, a step that is left out."""
    one = {"type": "a.b", "args": [], "retry": {"max_attempts": 1}}
    batch = {"type": "batch", "jobs": [one], "callbacks": {"on_success": one, "on_failure": one}}
    for flow in (batch, {"type": "chain", "steps": [one, batch, one]}, {"type": "chain", "steps": [one, one]}):
        made = call(api, "/workflows", flow)["id"]
        job = claimed_of_workflow(api)
        call(api, "/workers/ack", {"job_id": job, "result": 1})
        for door in ("", "/admin"):
            api.get(f"{door}/workflows/{made}")
        api.get(f"/jobs/{job}/lineage")
        api.post(f"/workflows/{made}/cancel")


def exhausted(api: Api) -> None:
    """A job whose policy says what becomes of it at its end, at both doors."""
    api.get(f"/admin/jobs/{api.push(retry={'max_attempts': 2, 'on_exhaustion': 'dead_letter'})['id']}")


def empty(api: Api) -> None:
    """Lists of nothing."""
    for path in ("/events", "/jobs", "/queues", "/workers", "/workflows", "/cron", "/rate-limits", "/admin/queues"):
        api.get(path)


def everything(api: Api) -> None:
    """A site with two of everything, all of it read at both doors, and what is known of a side's jobs in each state."""
    built = build()
    documented = described().document["paths"]
    for path in sorted(path for path, item in documented.items() if "get" in item and not path.endswith("stream")):
        route, has_job = path.removeprefix("/ojs/v1/").replace("{", "<").replace("}", ">"), "{job_id}" in path
        for state in built.own.jobs if has_job else ("active",):
            api.client.get(path if "<" not in route else "/ojs/v1" + built.own.path(route, state, "queue:qa"))


@contextlib.contextmanager
def configured(**given: Any) -> Iterator[None]:
    """A site with these settings."""
    with override_settings(OJS={**settings.OJS, **given}):
        yield


def stored_members(api: Api) -> None:
    """Jobs with all that a row may hold, in the answers to a batch that meets them, and to a claim."""
    line = {"parent_id": str(new_job_id()), "root_id": str(new_job_id())}
    of_workflow = {
        "workflow_step": 1, "parent_results": [1], "parent_results_by_step": {"a": 1}, "parent_errors": {"b": {}},
        "x_previous_errors": [{"message": "m"}],
    }  # fmt: skip
    always = {"keys": ["type"], "on_conflict": "ignore", "states": ["active", "completed", "retryable"]}
    batch = {"jobs": [{"type": "a.b", "args": [], "unique": always, "options": {"result_ttl": 60}, **line}]}
    made = call(api, "/jobs/batch", batch)["jobs"][0]["id"]
    job = Job.objects.get(pk=made)
    Job.objects.update(extra={**job.extra, **of_workflow}, workflow_id=new_job_id())
    for state in ("active", "active", "completed"):
        if state == "active":
            call(api, "/workers/fetch", {"queues": ["default"], "worker_id": "w"})
            call(api, "/workers/progress", {"job_id": made, "progress": 0.5, "message": "half", "data": {"a": 1}})
            call(api, f"/jobs/{made}/checkpoint", {"state": [1]})
            call(api, "/jobs/batch", batch)
            api.post("/workers/nack", {"job_id": made, "requeue": True})
        else:
            call(api, "/workers/fetch", {"queues": ["default"], "worker_id": "w"})
            Job.objects.update(workflow_id=None)  # members of workflows keep their results
            api.post("/workers/ack", {"job_id": made, "result": {"a": 1}})
            call(api, "/jobs/batch", batch)
    for path in (f"/jobs/{made}/checkpoint", f"/checkpoints/{made}/resume"):
        api.get(path)


def failures(api: Api) -> None:
    """Jobs that failed with all that an error may say, and what their history, their result and their policy say."""
    error = {"type": "E", "code": "c", "message": "m", "details": {"a": 1}, "backtrace": ["x"], "retryable": True}
    policy = {"max_attempts": 2, "initial_interval": "1h", "max_interval": "1h", "retryable_errors": ["E"]}
    waiting = claimed(api, retry=policy)
    call(api, "/workers/nack", {"job_id": waiting, "error": error})
    api.get(f"/jobs/{waiting}/retries")
    final = claimed(api, retry={"max_attempts": 1}, scheduled_at="2020-01-01T00:00:00Z")
    call(api, "/workers/nack", {"job_id": final, "error": {**error, "retryable": False}})
    done = claimed(api)
    call(api, "/workers/ack", {"job_id": done, "result": {"a": 1}})
    api.delete(f"/jobs/{(cancelled := api.push()['id'])}")
    api.get(f"/jobs/{cancelled}/result")
    call(api, "/jobs/results", {"ids": [cancelled, waiting, final, done]})
    for path in (
        f"/jobs/{waiting}/result",
        f"/jobs/{final}/result",
        f"/jobs/{done}/result",
        "/dead-letter",
        "/admin/dead-letter/stats",
    ):
        api.get(path)
    with configured(RETENTION={"dead_letter": None}):
        api.get("/admin/dead-letter/stats")
    call(api, f"/admin/dead-letter/{final}/retry", {})
    call(api, "/workers/fetch", {"queues": ["default"], "worker_id": "w"})
    for query in ({}, {"limit": 1}):
        for path in (f"/jobs/{final}/attempts", f"/jobs/{final}/history", "/history"):
            api.get(path, query)


def lineages(api: Api) -> None:
    """Jobs that jobs have enqueued, over three generations."""
    first = api.push()["id"]
    second = api.push(parent_id=first, root_id=first)["id"]
    api.push(parent_id=second, root_id=first)
    for job in (first, second):
        api.get(f"/jobs/{job}/lineage")
    api.get("/history/stats")


def logged(api: Api) -> None:
    """Lines of a log, with one that stands for those that are missing."""
    job = claimed(api)
    whole = {"message": "m", "level": "info", "logger": "l", "fields": {"a": 1}, "exception": "E"}
    call(api, f"/jobs/{job}/logs", {"lines": [whole, whole]})
    JobLog.objects.filter(sequence=JobLog.objects.order_by("sequence").values("sequence")[:1]).update(dropped=3)
    api.get(f"/jobs/{job}/logs")


def pruned(api: Api) -> None:
    """A log whose beginning is gone, then all of it."""
    job = api.push()["id"]
    api.push()
    first = api.get("/events", {"limit": 1}).json()["events"][0]["id"]
    Event.objects.filter(pk=Event.objects.order_by("id").values("pk")[:1]).delete()
    for _ in range(2):
        for path in ("/events", f"/events/{job}/history", f"/jobs/{job}/history"):
            api.get(path, {"after": first, "cursor": first})
            api.get(path)
        Event.objects.all().delete()


def delivered(api: Api) -> None:
    """Deliveries with all that attempts may have left, and a test of a subscription that nobody receives."""
    made = api.post("/webhooks/subscriptions", {"url": "https://hooks.example/", "events": ["job.*"]}).json()["id"]
    now, subscription = clock.now(), WebhookSubscription.objects.get()
    delivery = WebhookDelivery.objects.create(
        subscription=subscription, event_id="evt_x", event_type="job.completed", subject="x", body="{}",
        status="pending", attempt_count=1, max_attempts=2, response_status=500, response_time_ms=5, error="e",
        next_attempt_at=now, created_at=now, delivered_at=now, response_body="no",
        attempts=[{"at": format_instant(now), "status": 500, "response_time_ms": 5, "error": "e"},
                  {"at": format_instant(now), "status": None, "response_time_ms": 0}],
    )  # fmt: skip
    api.get("/webhooks/deliveries")
    api.get(f"/webhooks/deliveries/{delivery.public_id}")
    call(api, f"/webhooks/subscriptions/{made}/rotate-secret", {})
    receiver = Receiver()
    with configured(WEBHOOK_ALLOW_HTTP=True, WEBHOOK_ALLOWED_HOSTS=["127.0.0.1"]):
        made = api.post("/webhooks/subscriptions", {"url": receiver.url(), "events": ["*"]}).json()["id"]
        call(api, f"/webhooks/subscriptions/{made}/test", {})
        receiver.close()
        call(api, f"/webhooks/subscriptions/{made}/test", {})
    call(api, f"/webhooks/subscriptions/{made}/test", {})  # not sent: it is no https


def acted(api: Api) -> None:
    """What operators' acts on many jobs answer, and what the audit log says of them."""
    done, waiting = claimed(api), api.push()["id"]
    call(api, "/workers/ack", {"job_id": done})
    api.post("/jobs/bulk/cancel", {"job_ids": [done, api.push()["id"]]})
    api.post("/admin/jobs/bulk/cancel", {"job_ids": [done, waiting], "confirm": True})
    for _ in range(2):
        api.push()
    with configured(MAX_BATCH_SIZE=1):
        api.post("/jobs/bulk/cancel", {"filter": {}})
    dead = api.dead_letter(queue="letters")["id"]
    for path in ("/dead-letter", "/admin/dead-letter"):
        api.client.delete(f"/ojs/v1{path}", {"job_ids": [dead], "confirm": True}, content_type="application/json")
    with mock.patch.multiple(bulk, MOST_EVENTS=1):
        api.delete("/history?before=2999-01-01T00:00:00Z")
    BulkAction.objects.update(per_minute=5, problem="E: no", filter=dict.fromkeys(("before", *ERASURE_MEMBERS), "x"))
    for path in ("/admin/bulk-actions", "/admin/audit", "/durable-events"):
        api.get(path)
    call(api, "/durable-events", {"name": "order.paid", "key": "7", "payload": {"cents": 1}})
    api.get("/durable-events")


def schedules(api: Api) -> None:
    """Runs of a schedule: one that waits, one that has ended."""
    call(api, "/cron", {"name": "nightly", "cron": "@daily", "type": "a.b", "retrys": {}})
    for _ in range(2):
        api.post("/cron/nightly/trigger")
    call(api, "/workers/fetch", {"queues": ["default"], "worker_id": "w"})
    for job in Job.objects.filter(state="active"):
        call(api, "/workers/ack", {"job_id": str(job.pk)})
    for path in ("/cron/nightly/history", "/cron/nightly/executions", "/admin/cron/nightly/history"):
        api.get(path)


def figures(api: Api) -> None:
    """Figures with and without the site's metrics, of a queue that waits and of one that does not."""
    call(api, "/workers/ack", {"job_id": claimed(api)})
    api.push(queue="starving")
    api.post("/queues", {"name": "bare"})
    call(api, "/queues/full/pause", {})
    order.catch_up("default")
    eventcounts.catch_up("default")
    now = clock.now()
    for kept, minutes in ((False, 0), (True, 1), (True, 4)):
        later = now + dt.timedelta(minutes=minutes)
        with (configured(METRICS=kept, EVENT_MAX_COUNT=100 if kept else None),
              mock.patch.object(clock, "now", lambda using=None, at=later: at),
              mock.patch.object(manifest, "TRANSPORTS", [*manifest.TRANSPORTS, "websocket"])):  # fmt: skip
            summary.forget()
            for path in ("/ojs/manifest", "/ojs/v1/admin/stats", "/ojs/v1/admin/stats/history",
                         "/ojs/v1/admin/scheduling/stats", "/ojs/v1/history/stats"):  # fmt: skip
                api.client.get(path)


def searched(api: Api) -> None:
    """Lists that end on the way, and lists that are counted up to a bound."""
    for number in range(7):
        api.push(priority=number % 3)
    small = mock.patch.multiple("django_ojs.http.joblists", FEW=0, DEEPER=1)
    few = mock.patch("django_ojs.jobs.search.FIRST", 2)
    with configured(SEARCH_DEPTH=4, SEARCH_SECONDS=60), mock.patch("django_ojs.http.pagination.CAP", 2), small, few:
        for path in ("/jobs", "/admin/jobs"):
            api.get(path, {"type": "no.such"})
            api.get(path, {"since": "2000-01-01T00:00:00Z", "limit": 2})


def refused(api: Api) -> None:
    """Errors that say more than others."""
    job = {"type": "a.b", "args": [], "queue": "small"}
    put(api, "/queues/small/config", {"max_size": 1, "overflow_policy": "reject"})
    for _ in range(2):
        api.post("/jobs", job)
    api.get("/queues", **{"OJS-Requires-Extension": "urn:ojs:ext:teleportation"})
    with configured(MAX_BATCH_SIZE=1):
        api.post("/jobs/batch", {"jobs": [job, job]})
    with mock.patch("django_ojs.http.probes._sign_of_life", side_effect=OperationalError("away")):
        api.get("/health")


def dropped(api: Api) -> None:
    """Pushes that a site's middleware drops, and those that a schema has something against."""
    with added(lambda job, proceed: None):
        api.post("/jobs", {"type": "a.b", "args": []})
    call(api, "/schemas", {"schema": {"type": "array", "maxItems": 0}, "job_type": "a.s", "version": "1"})
    with configured(SCHEMA_VALIDATION="warn"):
        schemas.forget()
        wrong = {"type": "a.s", "args": [1]}
        call(api, "/jobs", wrong)
        call(api, "/jobs/batch", {"jobs": [wrong]})
        call(api, "/jobs/bulk", {"jobs": [wrong]})


def failed_flows(api: Api) -> None:
    """Workflows of which a step failed: the rest never runs, and a callback that was not triggered is left out."""
    one = {"type": "a.b", "args": [], "retry": {"max_attempts": 1}}
    batch = {"type": "batch", "jobs": [one], "callbacks": {"on_success": one, "on_failure": one}}
    for flow in ({"type": "chain", "steps": [one, one]}, batch):
        made = call(api, "/workflows", flow)["id"]
        call(api, "/workers/nack", {"job_id": claimed_of_workflow(api), "error": {"message": "m"}})
        for door in ("", "/admin"):
            api.get(f"{door}/workflows/{made}")
            api.get(f"{door}/workflows")
        api.get(f"/workflows/{made}/progress")
        api.post(f"/workflows/{made}/retry")
        call(api, "/workers/ack", {"job_id": claimed_of_workflow(api)})
        api.get(f"/workflows/{made}/progress")
        api.post(f"/workflows/{made}/cancel")
    made = call(api, "/workflows", {"type": "chain", "steps": [one, one]})["id"]
    call(api, "/workers/fetch", {"queues": ["default"], "worker_id": "w"})
    api.post(f"/workflows/{made}/cancel")
    Job.objects.all().delete()
    steps = [{"id": "a", **one}, {"id": "on_failure", "depends_on": ["a"], **one}]
    made = call(api, "/workflows", {"steps": steps})["id"]
    call(api, "/workers/ack", {"job_id": claimed_of_workflow(api)})
    api.get(f"/workflows/{made}")


def commanded(api: Api) -> None:
    """Workers that have been told what to do, and one that holds a job."""
    facts = {"hostname": "h", "memory_mb": 3.5, "job_types": ["a.b"], "queues": ["default"]}
    call(api, "/workers/register", {"worker_id": "w", **facts})
    claimed(api)
    for verb in ("quiet", "terminate"):
        api.post(f"/admin/workers/w/{verb}")
    for path in ("/workers", "/admin/workers", "/admin/workers/w"):
        api.get(path)


def overridden(api: Api) -> None:
    """Limits with windows of both kinds, and queues with windows in every unit; a queue whose jobs move."""
    for unit in ({"period": "PT1S"}, {"period_ms": 1000}, {"period_seconds": 1}):
        window = {"limit": 3, **unit}
        put(api, "/queues/full/config", {"rate_limit": {"rate": window, "throttle": window}})
        api.get("/admin/queues/full/config")
    window = {"limit": 1, "period": "PT1M"}
    for _ in range(2):
        api.push(rate_limit={"key": "k", "throttle": window})
    call(api, "/workers/fetch", {"queues": ["default"], "count": 2})
    api.get("/rate-limits/k")
    put(
        api, "/rate-limits/k/override", {"concurrency": 3, "on_limit": "reschedule", "rate": window, "throttle": window}
    )
    for door in ("", "/admin"):
        api.get(f"{door}/rate-limits/k")
    api.push(queue="old")
    api.post("/queues", {"name": "new"})
    for door in ("", "/admin"):
        api.delete(f"{door}/queues/old?strategy=move&target_queue=new")
        api.push(queue="old")


def held_keys(api: Api) -> None:
    """Unique keys: one until the job's end, one for a time."""
    for number, more in enumerate(({}, {"period": "PT1H"})):
        api.push(f"a.u{number}", unique={"keys": ["type"], "on_conflict": "ignore", **more})
    api.get("/unique-jobs")


def headed(api: Api) -> None:
    """Headers that no other answer has: of a file, an answer given again, fewer entries than asked for, a refusal."""
    job = api.push()
    assert api.get(f"/jobs/{job['id']}/logs", {"format": "text"}).status_code == 200
    assert api.get("/history", {"limit": 10**6}).status_code == 200
    for _ in range(2):
        api.post("/jobs", {"type": "mail.send", "args": []}, idempotency_key="one")
    assert api.get("/jobs", authorization="Bearer none").status_code == 401


#: What leads to members that no single good call has.
STORIES: tuple[Callable[[Api], Any], ...] = (
    fetches, acks, nacks, beats, batches, bulks, answers_about_one, details, lines, letters, letters_alone, events,
    queues, stored, limited, registered, flows, exhausted, empty,
    everything, stored_members, failures, lineages, logged, pruned, delivered, acted, schedules, figures, searched,
    refused, dropped, failed_flows, commanded, overridden, held_keys, headed,
)  # fmt: skip
