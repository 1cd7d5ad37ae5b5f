"""What clients, workers, operators and the scheduler do, as short stories. Each asks the database for all that the act
asks for in a site.

They commit what they do, so they may run on any database with jobs in it.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import io
import uuid
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlencode

from django.contrib import admin
from django.contrib.auth import get_user_model
from django.core.management import call_command
from django.db import connection
from django.test import Client
from django.urls import reverse

from django_ojs import clock, doctor
from django_ojs.cron import runs, schedules
from django_ojs.cron.runs import tick
from django_ojs.events import order
from django_ojs.jobs import compensations, replay
from django_ojs.jobs.cancel import cancel
from django_ojs.jobs.copy import duplicate
from django_ojs.jobs.delete import delete
from django_ojs.jobs.fetch import Fetch, fetch
from django_ojs.jobs.finish import Ack, Failure, ack, fail
from django_ojs.jobs.priority import prioritise
from django_ojs.jobs.promote import activate, run_now
from django_ojs.jobs.push import push
from django_ojs.jobs.retry import retry
from django_ojs.jobs.setright import set_right
from django_ojs.jobs.timers import apply_due, next_due
from django_ojs.models import Job, WebhookSubscription
from django_ojs.queues import bounds
from django_ojs.queues.configuration import configure, restore
from django_ojs.queues.deletion import finish_removals, remove
from django_ojs.retention import prune
from django_ojs.rules import replayrules
from django_ojs.scheduler.scheduler import ROLE, Leadership, Unserved
from django_ojs.statistics import counters, eventcounts
from django_ojs.webhooks.relay import relay
from django_ojs.workerregistry.dead import rescue_dead_workers
from django_ojs.workerregistry.heartbeat import Beat, beat
from django_ojs.workerregistry.registration import register
from django_ojs.workflows import children, workflow
from tests.dashboard.everything import fill, pages
from tests.http.conftest import Api

Story = Callable[[], Any]
PATIENT = {"initial_interval": "1h", "max_interval": "1h"}


def documents(count: int, queue: str = "plans", **more: Any) -> list[dict[str, Any]]:
    return [{"type": "plans.work", "queue": queue, "args": [i], "retry": PATIENT, **more} for i in range(count)]


def claimed(count: int, queue: str = "plans", worker: str = "plans-1", **more: Any) -> list[uuid.UUID]:
    push(documents(count, queue, **more))
    return [row["id"] for row in fetch(Fetch([queue], count=count, worker_id=worker))]


def dead(count: int) -> list[uuid.UUID]:
    ids = claimed(count)
    fail([Failure(job_id, {"type": "Boom", "message": "no", "retryable": False}) for job_id in ids])
    return ids


@contextlib.contextmanager
def later(**delta: float) -> Iterator[None]:
    """Some time from now, for a while."""
    clock.freeze(clock.now() + dt.timedelta(**delta))
    try:
        yield
    finally:
        clock.freeze(None)


# The verbs


def pushes() -> None:
    push(documents(1))
    push(documents(300))
    for states in ({}, {"states": ["available", "completed"]}, {"states": ["completed"], "period": "PT1H"}):
        unique = {"unique": {"keys": ["type", "args"], "on_conflict": "ignore", **states}}
        push(documents(1, **unique))
        push(documents(100, **unique))
    push(documents(2, scheduled_at="2099-01-01T00:00:00Z"))
    push(documents(2, pending=True))
    configure("plans-bounded", {"max_size": 1000})
    push(documents(3, "plans-bounded"))
    push(documents(1, "plans-bounded"))


def claims() -> None:
    push(documents(40))
    fetch(Fetch(["plans", "default", "mail"], count=1, worker_id="plans-1"))
    fetch(Fetch(["plans"], count=20, worker_id="plans-1"))
    fetch(Fetch(["plans"], count=3, worker_id="plans-1", types=["plans.work", "plans.other"]))
    fetch(Fetch(["plans"], count=3, worker_id="plans-1", types=["plans.*"]))
    push(documents(5, "plans-limited", rate_limit={"key": "plans", "concurrency": 2}))
    fetch(Fetch(["plans-limited"], count=5, worker_id="plans-1"))
    configure("plans-slow", {"concurrency": 2})
    push(documents(5, "plans-slow"))
    fetch(Fetch(["plans-slow", "plans"], count=5, worker_id="plans-1"))


def ends() -> None:
    ack([Ack(claimed(1)[0], '{"ok":true}')])
    ack([Ack(job_id, "1") for job_id in claimed(100)])
    fail([Failure(claimed(1)[0], {"message": "later"})])
    fail([Failure(job_id, {"message": "later"}) for job_id in claimed(50)])
    dead(50)
    ack([Ack(job_id) for job_id in claimed(3, "plans-limited", rate_limit={"key": "plans-b", "concurrency": 9})])


def beats() -> None:
    register("plans-1", {"queues": ["plans"], "job_types": ["plans.work"], "concurrency": 4})
    beat(Beat("plans-1", claimed(20)))
    beat(Beat("plans-1"))


def what_time_brings() -> None:
    next_due()
    push(documents(20, scheduled_at="2020-01-01T00:00:00Z"))
    claimed(5, visibility_timeout="PT1S")
    push(documents(3, expires_at=(clock.now() + dt.timedelta(seconds=5)).isoformat()))
    apply_due()
    with later(minutes=1):
        apply_due()
        fetch(Fetch(["plans"], count=1, worker_id="plans-1"))


def dead_workers() -> None:
    register("plans-gone", {"queues": ["plans"]})
    beat(Beat("plans-gone"))
    claimed(3, worker="plans-gone")
    with later(minutes=10):
        rescue_dead_workers()


def operators_verbs() -> None:
    push(documents(20))
    cancel(claimed(3))
    letters = dead(4)
    retry(letters[:2])
    delete(letters[2:])
    waiting = [one.row["id"] for one in push(documents(3, scheduled_at="2099-01-01T00:00:00Z")) if one.row]
    prioritise(waiting[0], 5)
    run_now(waiting)
    activate([one.row["id"] for one in push(documents(2, pending=True)) if one.row])
    duplicate(waiting[0])


def workflows() -> None:
    step = {"type": "plans.step", "queue": "plans-flow", "args": [], "retry": {"max_attempts": 1}}
    chains = [workflow.create({"type": "chain", "name": "c", "steps": [step] * 3}).workflow for _ in range(3)]
    workflow.create({"type": "batch", "jobs": [step] * 5, "callbacks": {"on_complete": step}})
    for _ in range(2):
        ids = [row["id"] for row in fetch(Fetch(["plans-flow"], count=50, worker_id="plans-1"))]
        ack([Ack(job_id, "1") for job_id in ids])
    ids = [row["id"] for row in fetch(Fetch(["plans-flow"], count=50, worker_id="plans-1"))]
    fail([Failure(job_id, {"message": "no", "retryable": False}) for job_id in ids])
    workflow.info(chains[0].pk)
    workflow.cancel(workflow.create({"type": "chain", "name": "c", "steps": [step] * 3}).workflow.pk)


def removed_queues() -> None:
    for strategy, target in (("discard", ""), ("move", "plans")):
        push(documents(5, f"plans-{strategy}"))
        remove(f"plans-{strategy}", strategy, target)
    finish_removals()
    restore()


# The scheduler


def pruning() -> None:
    ids = claimed(30, result_ttl=60)
    ack([Ack(job_id, '{"ok":true}') for job_id in ids])
    with later(days=1):
        prune(batch=500, event_batch=2000)
    prune(batch=500, event_batch=2000)


def scheduling() -> None:
    order.catch_up(connection.alias)
    eventcounts.count()
    counters.fold()
    bounds.relieve()
    children.follow_up()
    compensations.follow_up()
    set_right()
    unserved = Unserved()
    for _ in range(2):
        unserved.run_once(connection.alias)


def replaying() -> None:
    rule = replayrules.parse({"name": "plans", "filter": {"type": "app1.*", "error_type": "Timeout"}, "delay": "PT1S"})
    replay.put(rule)
    replay.preview(rule)
    replay.replay()
    replay.delete("plans")


def firing() -> None:
    schedules.register({"name": "plans", "cron": "@every 1m", "type": "plans.work", "args": [], "queue": "plans"})
    with later(minutes=2):
        tick()
        runs.let_next_go()


def webhooks() -> None:
    now = clock.now()
    made = {"events": ["job.*"], "secret": "", "created_by": "x", "created_at": now, "updated_at": now}
    row = WebhookSubscription.objects.create(url="https://example.com/x", active=True, active_since=now, **made)
    push(documents(3))
    for _ in range(2):
        relay()
    row.delete()


def examination() -> None:
    """What the doctor asks where a scheduler leads: also how far the readers of the log are."""
    lease = Leadership(ROLE, "plans", connection.alias)
    assert lease.run_once()
    doctor.examine()
    lease.resign()


STORIES: tuple[Story, ...] = (
    pushes, claims, ends, beats, what_time_brings, dead_workers, operators_verbs, workflows, removed_queues, pruning,
    scheduling, replaying, firing, webhooks, examination,
)  # fmt: skip


# Lists


TYPE, QUEUE = "app1.task1", "mail"
#: Query strings that lists of jobs take.
FILTERS: list[dict[str, Any]] = [
    {}, *({"state": state} for state in (
        "scheduled", "available", "pending", "active", "completed", "retryable", "cancelled", "discarded",
    )),
    {"queue": QUEUE}, {"queue": QUEUE, "state": "completed"}, {"queue": QUEUE, "state": "available"},
    {"type": TYPE}, {"type": "nothing.such"}, {"type": "app1.*", "state": "completed"},
    {"type": TYPE, "queue": QUEUE}, {"state": "completed,discarded"}, {"state": "available,active,retryable"},
]  # fmt: skip
#: Those of the lists over HTTP alone, and of the admin's alone.
OF_HTTP: list[dict[str, Any]] = [
    *({"sort": sort, "order": order} for sort in ("created_at", "finished_at", "scheduled_at", "priority")
      for order in ("asc", "desc")),
    *({"state": "completed", "sort": sort} for sort in ("finished_at", "priority", "scheduled_at")),
    {"worker_id": "worker-1"}, {"worker_id": "plans-1"}, {"error_type": "SmtpError"},
    {"error_type": "SmtpError", "state": "discarded"}, {"type": TYPE, "sort": "finished_at", "state": "completed"},
    {"since": "{yesterday}"}, {"since": "{yesterday}", "until": "{noon}", "queue": QUEUE}, {"queue": "plans-few"},
    {"until": "2000-01-01T00:00:00Z"}, {"queue": "plans-few", "state": "cancelled"}, {"offset": 5000},
    {"queue": "plans-few", "state": "completed"}, {"queue": "plans-few", "state": "completed", "sort": "finished_at"},
    {"page": 100, "state": "completed"}, {"type": TYPE, "since": "{yesterday}"},
]  # fmt: skip
OF_ADMIN: list[dict[str, Any]] = [
    {"state": "dead_letter"}, {"q": "customer-77"}, {"q": "no such text"}, {"tag": "tag3"}, {"error": "No answer"},
    {"error": "SmtpError", "state": "discarded"}, {"last_worker": "worker-7"}, {"worker_id": "worker-7"},
    {"since": "2d"}, {"since": "2d", "until": "1d", "state": "completed"}, {"p": "50"}, {"q": "{job}"},
    {"workflow": "{job}"}, {"queue": "ma*", "state": "completed"}, {"queue": QUEUE, "since": "2h"},
]  # fmt: skip


def queries(*lists: list[dict[str, Any]]) -> list[dict[str, Any]]:
    now = clock.now()
    known = {"yesterday": (now - dt.timedelta(days=1)).isoformat(), "noon": (now - dt.timedelta(hours=12)).isoformat(),
             "job": Job.objects.order_by("-pk").values_list("pk", flat=True)[50]}  # fmt: skip
    return [{name: str(value).format(**known) for name, value in query.items()} for part in lists for query in part]


def lists_of_clients() -> list[str]:
    """The addresses of the lists over HTTP, with their filters, and what one job, queue or event has of its own."""
    letter = Job.objects.dead_letters().order_by("-pk").values_list("pk", flat=True).first()
    job = Job.objects.order_by("-pk").values_list("pk", flat=True).first()
    found = [f"{path}?{urlencode(query)}" for path in ("/jobs", "/admin/jobs") for query in queries(FILTERS, OF_HTTP)]
    for path in ("/dead-letter", "/admin/dead-letter"):
        found += [path, f"{path}?queue={QUEUE}", f"{path}?type={TYPE}", f"{path}?error_type=SmtpError", f"{path}/stats",
                  f"{path}/stats?queue={QUEUE}", f"{path}/{letter}"]  # fmt: skip
    found += ["/admin/dead-letter?sort=created_at&order=asc", "/dead-letter?offset=2000"]
    found += [f"/jobs/{job}{part}" for part in ("", "/history", "/result", "/retries")] + [f"/admin/jobs/{job}"]
    found += ["/events", "/events?limit=1000", f"/events?queues={QUEUE}", "/events?types=job.failed",
              f"/events?job_id={job}", f"/events?job_types={TYPE}", "/events?types=queue.paused", "/events?page=1",
              "/events?page=20&per_page=100", f"/events?page=1&queues={QUEUE}", f"/events?page=1&job_id={job}",
              "/events?page=1&types=job.failed", f"/events?workflow_id={job}"]  # fmt: skip
    found += [f"/events?{urlencode(query)}" for query in queries([{"since": "{yesterday}"}])]
    found += ["/unique-jobs", "/workflows", "/workflows?state=running", "/admin/workflows", "/queues", "/admin/queues",
              f"/queues/{QUEUE}", f"/queues/{QUEUE}/stats", f"/queues/{QUEUE}/priority-stats", f"/admin/queues/{QUEUE}",
              "/admin/workers", "/health", "/metrics", "/metrics?format=prometheus", "/admin/stats",
              "/admin/stats/history", "/admin/stats/history?period=1h", "/admin/scheduling/stats", "/admin/audit",
              "/admin/bulk-actions", "/cron", "/rate-limits", "/admin/rate-limits", "/webhooks/deliveries"]  # fmt: skip
    return found


def acts_on_many() -> list[tuple[str, dict[str, Any]]]:
    """Acts of clients and operators on all jobs that fit, as they are tried out, and some of them done."""
    few = {"queue": "plans-few", "state": "available"}
    confirm = {"confirm": True, "reason": "a test"}
    return [
        ("/admin/jobs/bulk/cancel", {"filter": {"queue": "plans", "state": "available"}, "dry_run": True}),
        ("/admin/jobs/bulk/retry", {"filter": {"state": "discarded"}, "dry_run": True}),
        ("/admin/jobs/bulk/cancel", {"filter": few, **confirm}),
        ("/admin/jobs/bulk/cancel", {"filter": few, "background": True, **confirm}),
        ("/admin/dead-letter/retry", {"filter": {"queue": QUEUE}, "dry_run": True}),
        ("/admin/dead-letter/purge", {"filter": {"queue": QUEUE}, "dry_run": True}),
        ("/jobs/bulk/cancel", {"filter": few}),
    ]


def lists_of_operators() -> list[str]:
    """The addresses of the admin's pages, and of the list of jobs with its filters."""
    found = pages(admin.site)
    jobs, events = reverse("admin:django_ojs_job_changelist"), reverse("admin:django_ojs_event_changelist")
    letters, tail = reverse("admin:django_ojs_dead_letters"), reverse("admin:django_ojs_event_tail")
    found += [f"{jobs}?{urlencode(query)}" for query in queries(FILTERS, OF_ADMIN)]
    job = Job.objects.order_by("-pk").values_list("pk", flat=True).first()
    found += [f"{events}?{query}" for query in ("type=job.failed", "type=worker.*", f"job_type={TYPE}",
                                                f"queue={QUEUE}", f"q={job}", "p=50")]  # fmt: skip
    found += [f"{letters}?{query}" for query in (f"type={TYPE}", f"queue={QUEUE}", "error=SmtpError")]
    found += [f"{tail}?{query}" for query in ("types=job.failed", f"queues={QUEUE}", f"job_id={job}")]
    return found


def commands() -> list[tuple[str, ...]]:
    return [
        ("ojs_status",), ("ojs_status", "--check"), ("ojs_doctor",), ("ojs_queues", "list"), ("ojs_workers", "list"),
        ("ojs_bulk", "list"), ("ojs_events",), ("ojs_events", "--types", "job.failed"), ("ojs_events", "--since", "1h"),
        ("ojs_jobs", "list"), ("ojs_jobs", "list", "--state", "completed"), ("ojs_jobs", "list", "--queue", QUEUE),
        ("ojs_jobs", "list", "--type", TYPE), ("ojs_jobs", "list", "--state", "discarded", "--type", TYPE),
        ("ojs_jobs", "cancel", "--queue", "plans", "--dry-run"), ("ojs_jobs", "retry", "--type", TYPE, "--dry-run"),
        ("ojs_dead_letter", "list"), ("ojs_dead_letter", "list", "--queue", QUEUE),
        ("ojs_dead_letter", "retry", "--type", TYPE, "--dry-run"),
    ]  # fmt: skip


def page(client: Client, address: str) -> None:
    response = client.get(address)
    assert response.status_code in (200, 302, 403), (address, response.status_code)  # 403: no outbox in this site


def answer(api: Api, address: str) -> None:
    """The first page, and the one behind its cursor."""
    response = api.get(address)
    assert response.status_code in (200, 202, 404), (address, response.content[:300])
    if "json" in response["Content-Type"] and (cursor := response.json().get("pagination", {}).get("next_cursor")):
        mark = "&" if "?" in address else "?"
        name = "after" if address.startswith("/events") else "cursor"
        follow = api.get(f"{address}{mark}{urlencode({name: cursor})}")
        assert follow.status_code == 200, (address, follow.content[:300])


def act(api: Api, address: str, body: dict[str, Any]) -> None:
    push(documents(3, "plans-few"))
    response = api.post(address, body)
    assert response.status_code in (200, 202), (address, body, response.content[:300])


def command(*arguments: str) -> None:
    with contextlib.suppress(SystemExit):
        call_command(*arguments, stdout=io.StringIO(), stderr=io.StringIO())


def staff() -> Client:
    """A superuser, logged in, in a site that has something of each kind."""
    fill()
    user = get_user_model().objects.create_superuser(f"ann-{uuid.uuid4()}", password="x")
    client = Client()
    client.force_login(user)
    return client
