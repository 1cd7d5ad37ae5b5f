"""Stories with real jobs, workflows and queues, which lead to each member that an answer may have."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator
from typing import Any

from django_ojs import clock
from django_ojs.jobs.filterfields import Notation
from django_ojs.jobs.retry import OVERRIDABLE
from django_ojs.jobs.selection import names_in
from django_ojs.models import Approval, BulkAction, RateLimit, WebhookSubscription
from django_ojs.rules.ids import new_job_id
from tests.http.conftest import Api
from tests.rights.world import asked

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
    limit = {"concurrency": 2, "max_per_second": 5, "on_limit": "wait", "rate": window, "throttle": window}
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
    Approval.objects.update(schema={"type": "object"}, default=True, due_at=now, escalate_at=now)
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


#: What leads to members that no single good call has.
STORIES: tuple[Callable[[Api], Any], ...] = (
    fetches, acks, nacks, beats, batches, bulks, answers_about_one, details, lines, letters, letters_alone, events,
    queues, stored, limited, registered, flows, exhausted, empty,
)  # fmt: skip
