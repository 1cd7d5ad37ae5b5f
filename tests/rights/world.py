"""A site with two of everything: what is a caller's own, and what is another's and says so.

Whatever belongs to the other queue has `qbx` in it, whatever belongs to the other job type has `tbx`: names, arguments,
meta, results, errors, hosts. So a limited caller has been shown, or has changed, what it may not reach if one of these
letters comes back to it, or stands in a row that its call has changed.
"""

from __future__ import annotations

import dataclasses
import json
import zlib
from typing import Any

from django.apps import apps
from django.db import connection
from django.test import Client

from django_ojs import clock, keys
from django_ojs.events import order
from django_ojs.jobs import checkpoints, progress
from django_ojs.jobs.cancel import cancel
from django_ojs.jobs.checkpoints import NewCheckpoint
from django_ojs.jobs.fetch import Fetch, fetch
from django_ojs.jobs.finish import Ack, Failure, ack, fail
from django_ojs.jobs.push import push
from django_ojs.models import APIKey, Approval, JobStep, WebhookDelivery, WebhookSubscription, Worker
from django_ojs.queues import configuration
from django_ojs.rules.approvals import EVENT
from django_ojs.rules.ids import new_job_id
from django_ojs.statistics import eventcounts, summary
from django_ojs.workerregistry import ownership
from django_ojs.workerregistry.heartbeat import Beat, beat
from django_ojs.workerregistry.ownership import Principal

OWN_QUEUE, OTHER_QUEUE = "qa", "qbx"
OWN_TYPE, OTHER_TYPE = "ta.run", "tbx.run"
#: The letters that tell a row or an answer of the other queue, and of the other type.
QUEUE_MARK, TYPE_MARK = "qbx", "tbx"
PATIENT = {"initial_interval": "1h", "max_interval": "1h"}
#: What callers leave behind whatever they do: when a key was used, that it was refused, what was answered.
TRACES = {"APIKey", "AuditEntry", "IdempotencyKey", "Session", "User", "Lease", "EventLog", "UniqueLock", "ContentType"}


@dataclasses.dataclass
class Side:
    """The values that a call names: those of one caller, or of another."""

    queue: str
    type: str
    jobs: dict[str, str]
    name: str  #: of what has a name: worker, schedule, rule
    secret: str
    workflow: str = ""
    subscription: str = ""
    delivery: str = ""
    action: str = ""
    approval: str = ""

    def path(self, route: str, state: str, key: str) -> str:
        """The path of a route, with what is of this side in it."""
        values = {
            "job_id": self.jobs[state], "worker_id": f"w-{self.name}", "workflow_id": self.workflow, "key": key,
            "subscription_id": self.subscription, "delivery_id": self.delivery, "action_id": self.action,
            "approval_id": self.approval,
            "version": "1",
        }  # fmt: skip
        parts = []
        for part in route.split("/"):
            name = part.strip("<>").rpartition(":")[2] if part.startswith("<") else ""
            if name == "name":
                kind = parts[-1]
                values["name"] = {"queues": self.queue, "schemas": self.type}.get(kind, f"n-{self.name}")
            parts.append(values[name] if name else part)
        return "/" + "/".join(parts)


def word(queue: str, job_type: str) -> str:
    """What a caller may guess of the arguments of the unique job of a side; it tells nothing of whose they are."""
    return f"PIN {zlib.crc32(f'{queue} {job_type}'.encode()) % 10_000}"


def jobs(queue: str, job_type: str, worker: str) -> dict[str, str]:
    """A job in each state, with the letters of its queue and its type in every part."""
    secret = f"secret-{queue}-{job_type}"

    def new(count: int = 1, **more: Any) -> list[Any]:
        document = {"type": job_type, "queue": queue, "args": [secret], "meta": {"of": secret}, "retry": PATIENT}
        pushed = push([{**document, **more} for _ in range(count)])
        return [one.row["id"] for one in pushed]  # type: ignore[union-attr, index]

    waiting = {"scheduled": new(scheduled_at="2099-01-01T00:00:00Z")[0], "pending": new(pending=True)[0]}
    taken = new(4) + new(1, retry={"max_attempts": 1})
    fetch(Fetch([queue], ids=taken, count=9, worker_id=worker))
    active, completed, retryable, cancelled, dead = taken
    progress.report([progress.ProgressReport(active, percent=5, message=secret, data={"of": secret})])
    checkpoints.save(NewCheckpoint(active, {"of": secret}))
    ack([Ack(completed, result=json.dumps(secret))])
    fail([Failure(job_id, error={"type": "Boom", "message": secret}) for job_id in (retryable, dead)])
    cancel([cancelled])
    found = waiting | {"active": active, "completed": completed, "retryable": retryable, "cancelled": cancelled}
    found |= {"discarded": dead, "available": new()[0]}
    found["unique"] = new(args=[word(queue, job_type)], unique={"keys": ["args"], "on_conflict": "ignore"})[0]
    return {state: str(job_id) for state, job_id in found.items()}


def asked(job_id: str, queue: str, job_type: str, secret: str) -> str:
    """An approval of this job, which waits for it."""
    now, pk = clock.now(), new_job_id()
    Approval.objects.create(
        id=pk, job_id=job_id, type=job_type, queue=queue, name=secret, title=secret, details=secret, requested_at=now,
    )  # fmt: skip
    JobStep.objects.create(
        job_id=job_id, name=secret, kind="event", attempt=1, began_at=now, event_name=EVENT, event_key=str(pk)
    )
    return str(pk)


def owned(names: dict[str, str], queue: str, job_type: str) -> Side:
    """Everything that has a queue and a type, made by an operator with the API."""
    name, secret = names["name"], f"secret-{queue}-{job_type}"
    worker = f"w-{name}"
    beat(
        Beat(worker, info={"queues": [queue], "job_types": [job_type], "hostname": f"host-{secret}"},
             who=Principal(names["owner"]))
    )  # fmt: skip
    side = Side(queue, job_type, jobs(queue, job_type, worker), name, secret)
    key, text = keys.create(f"boss {name}", ["admin"])
    boss = Client(headers={"Authorization": f"Bearer {text}"})

    def call(method: str, path: str, body: Any) -> Any:
        sent = boss.generic(method, f"/ojs/v1{path}", json.dumps(body), content_type="application/json")
        assert sent.status_code < 300, (path, sent.content)
        return sent.json() if sent.content else {}

    call("PUT", f"/cron/n-{name}", {"cron": "0 3 * * *", "type": job_type, "queue": queue, "args": [secret]})
    step = {"type": job_type, "args": [secret], "queue": queue, "options": {"queue": queue}}
    flow = call("POST", "/workflows", {"type": "chain", "name": secret, "steps": [step, step]})
    side.workflow = flow["workflow"]["id"]
    call("PUT", f"/admin/schemas/{job_type}/1", {"schema": {"title": secret}})
    call("PUT", f"/admin/queues/{queue}/config", {"concurrency": 100})
    for limit in (f"queue:{queue}", f"type:{job_type}"):
        call("PUT", f"/rate-limits/{limit}/override", {"concurrency": 100})
    rule = {"filter": {"queue": queue, "type": job_type, "error_type": secret}, "delay": "PT1H"}
    call("PUT", f"/admin/dead-letter/replay-rules/n-{name}", rule)
    now = clock.now()
    hook = WebhookSubscription.objects.create(
        url=f"https://example.com/{secret}", events=["job.*"], secret="", queues=[queue], job_types=[job_type],
        limited=True, created_by=f"key:{name}", active=False, created_at=now, updated_at=now,
    )  # fmt: skip
    sent = WebhookDelivery.objects.create(
        queue=queue, type=job_type,
        subscription=hook, event_id="evt_x", event_type="job.completed", subject=side.jobs["completed"], body=secret,
        status="dead", max_attempts=3, created_at=now,
    )  # fmt: skip
    side.subscription, side.delivery = f"sub_{hook.pk}", sent.public_id
    bulk = call(
        "POST",
        "/admin/jobs/bulk/retry",
        {"filter": {"queue": queue, "type": job_type}, "confirm": True, "background": True},
    )
    side.approval = asked(side.jobs["retryable"], queue, job_type, secret)
    side.action = str(bulk.get("id", bulk.get("action_id", "")) or "1")
    key.delete()
    return side


@dataclasses.dataclass
class World:
    own: Side
    other: Side
    #: Jobs that share the queue with the caller's, or the type.
    own_queue: Side
    own_type: Side


def build() -> World:
    stranger, _ = keys.create("stranger", ["work"])
    of = f"key:{stranger.pk}"
    own = owned({"name": "own", "owner": "user:0"}, OWN_QUEUE, OWN_TYPE)
    other = owned({"name": "qbx-tbx", "owner": of}, OTHER_QUEUE, OTHER_TYPE)
    shared = "w-shared"
    beat(
        Beat(shared, info={"queues": [OWN_QUEUE, OTHER_QUEUE], "job_types": [OWN_TYPE, OTHER_TYPE]}, who=Principal(of))
    )
    own_queue = dataclasses.replace(
        other, queue=OWN_QUEUE, type=OTHER_TYPE, jobs=jobs(OWN_QUEUE, OTHER_TYPE, shared), secret="secret-qa-tbx.run"
    )
    own_queue.approval = asked(own_queue.jobs["retryable"], OWN_QUEUE, OTHER_TYPE, own_queue.secret)
    own_type = dataclasses.replace(
        other, queue=OTHER_QUEUE, type=OWN_TYPE, jobs=jobs(OTHER_QUEUE, OWN_TYPE, shared), secret="secret-qbx-ta.run"
    )
    own_type.approval = asked(own_type.jobs["retryable"], OTHER_QUEUE, OWN_TYPE, own_type.secret)
    order.catch_up("default")
    eventcounts.catch_up("default")  # so that no call finds something to count that others have left
    return World(own, other, own_queue, own_type)


def more(world: World, *, queue: bool, job_type: bool) -> None:
    """More of what a caller does not reach who is limited to its queue, to its type or to both."""
    worker = "w-more-qbx-tbx"
    beat(Beat(worker, info={"queues": [OTHER_QUEUE], "job_types": [OTHER_TYPE], "hostname": "host-qbx-tbx"},
              who=Principal(Worker.objects.get(pk="w-qbx-tbx").owner)))  # fmt: skip
    jobs(OTHER_QUEUE, OTHER_TYPE, worker)
    if queue:
        jobs(OTHER_QUEUE, OWN_TYPE, worker)
    if job_type:
        jobs(OWN_QUEUE, OTHER_TYPE, worker)


def forget() -> None:
    """Drop what this process remembers of the database."""
    configuration.forget()
    summary.forget()
    ownership.forget()
    keys.forget()


def own_worker(key: APIKey) -> None:
    """Make the worker of the own side the key's."""
    Worker.objects.filter(pk="w-own").update(owner=f"key:{key.pk}")


def written() -> int | object:
    """Another value after each statement that may have changed a row. SQLite counts what a connection has written."""
    with connection.cursor():
        return getattr(connection.connection, "total_changes", object())


def snapshot() -> set[str]:
    """Every row of ours, as a text."""
    found: set[str] = set()
    with connection.cursor() as cursor:
        for model in apps.get_app_config("django_ojs").get_models():
            if model.__name__ not in TRACES:
                cursor.execute(f"SELECT * FROM {model._meta.db_table}")
                found.update(f"{model.__name__} {row}" for row in cursor.fetchall())
    return found
