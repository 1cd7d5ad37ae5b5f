"""Workers as an operator sees them: `/admin/workers` (orchestration 3.8)."""

from __future__ import annotations

import datetime as dt
from typing import Any

from django.db import router
from django.db.models import Count, Q
from django.db.models.functions import Coalesce
from rest_framework.request import Request
from rest_framework.response import Response

from django_ojs import clock
from django_ojs.conf import ojs_settings
from django_ojs.errors import Conflict, NotFound
from django_ojs.http import fields
from django_ojs.http.auditing import audited
from django_ojs.http.base import OJSView
from django_ojs.http.pagination import Key, paginate, parse_name
from django_ojs.models import Job, Worker
from django_ojs.operations.register import deregister, direct
from django_ojs.operations.roster import is_stale, state_of
from django_ojs.policies import names
from django_ojs.policies.durations import format_instant
from django_ojs.policies.faults import shorten
from django_ojs.states import State

_ORDER = [Key("id", descending=False, parse=parse_name)]
DIRECTIVES = {"quiet": "quiet", "resume": "running", "running": "running", "terminate": "terminate"}
HELD = 1000  #: jobs that a worker's page names


class Workers(OJSView):
    """`GET /admin/workers`, by id. The summary counts all of them, the page or not."""

    scopes = {"GET": "admin.read"}
    rights = {"GET": "view_worker"}

    def get(self, request: Request) -> Response:
        now = clock.now(_using())
        page = paginate(_workers(), request, _ORDER)
        items = [_item(worker, now) for worker in page.rows]
        return Response({"items": items, "workers": items, "summary": _summary(now), "pagination": page.pagination})


class WorkerDetail(OJSView):
    """`GET /admin/workers/{id}`, and `DELETE` of one that is dead: its jobs go back to their queues."""

    scopes = {"GET": "admin.read", "DELETE": "admin.purge"}
    rights = {"GET": "view_worker", "DELETE": "delete_worker"}

    def get(self, request: Request, worker_id: str) -> Response:
        worker = _found(worker_id)
        held = Job.objects.using(_using()).filter(state=State.ACTIVE, worker_id=worker.pk).order_by("id")
        jobs = [
            {"id": str(job["id"]), "type": job["type"], "queue": job["queue"], "attempt": job["attempt"],
             **({"started_at": format_instant(job["started_at"])} if job["started_at"] else {})}
            for job in held.values("id", "type", "queue", "attempt", "started_at")[:HELD]
        ]  # fmt: skip
        item = _item(worker, clock.now(_using()))
        return Response({**item, "active_job_ids": [job["id"] for job in jobs], "jobs": jobs})

    @audited("worker.deregister")
    def delete(self, request: Request, worker_id: str) -> Response:
        worker = _found(worker_id)
        if not is_stale(worker, clock.now(_using())):
            raise Conflict(
                f"The worker '{worker.pk}' is alive.",
                details={"worker_id": worker.pk, "state": worker.state},
                hint="Tell it to terminate; it hands its jobs back and goes.",
            )
        deregister(worker.pk, reason="error")
        return Response(status=204)


class Directive(OJSView):
    """`POST /admin/workers/{id}/quiet`, `/terminate`, `/resume`: what its next heartbeat is answered."""

    scopes = {"POST": "admin.write"}
    rights = {"POST": "change_worker"}
    verb = "quiet"

    @audited("worker.direct")
    def post(self, request: Request, worker_id: str) -> Response:
        self.payload(required=False)
        self.act.action = f"worker.{self.verb}"
        worker = direct(_found(worker_id).pk, DIRECTIVES[self.verb])
        return Response({"id": worker.pk, "worker_id": worker.pk, "state": worker.directive,
                         "directive": worker.directive})  # fmt: skip


class DirectiveForAll(OJSView):
    """`POST /admin/workers/directive` `{"directive": "quiet"}`: the same to every worker."""

    scopes = {"POST": "admin.write"}
    rights = {"POST": "change_worker"}

    @audited("worker.direct_all")
    def post(self, request: Request) -> Response:
        value = self.payload().get("directive")
        if not isinstance(value, str) or value not in DIRECTIVES:
            raise fields.fault("directive", "must be quiet, resume or terminate", value)
        told = list(_workers().order_by("id").values_list("pk", flat=True))
        for worker_id in told:
            try:
                direct(worker_id, DIRECTIVES[value])
            except NotFound:  # gone meanwhile
                continue
        self.act.detail["workers"] = told
        return Response({"directive": value, "state": DIRECTIVES[value], "workers": told, "count": len(told)})


def _using() -> str:
    return router.db_for_write(Worker)


def _workers() -> Any:
    return Worker.objects.using(_using())


def _found(worker_id: str) -> Worker:
    """The worker in a path; what cannot be the id of one is not found."""
    try:
        worker: Worker | None = _workers().filter(pk=names.check_worker_id(worker_id)).first()
    except ValueError:
        worker = None
    if worker is None:
        raise NotFound.resource("worker", shorten(worker_id))
    return worker


def _item(worker: Worker, now: dt.datetime) -> dict[str, Any]:
    """A line of the list, without what the worker has never told."""
    beat = format_instant(worker.last_heartbeat_at) if worker.last_heartbeat_at else None
    shown = {
        "id": worker.pk,
        "worker_id": worker.pk,
        "hostname": worker.hostname,
        "pid": worker.pid,
        "state": state_of(worker, now),
        "directive": worker.directive or None,
        "queues": worker.queues or [],
        "job_types": worker.job_types,
        "labels": worker.labels,
        "concurrency": worker.concurrency,
        "active_jobs": worker.active_jobs,
        "jobs_completed": worker.jobs_completed,
        "memory_mb": worker.memory_mb,
        "cpu_percent": worker.cpu_percent,
        "version": worker.version,
        "started_at": format_instant(worker.started_at),
        "last_seen_at": format_instant(worker.last_seen_at),
        "last_heartbeat_at": beat,
        "last_heartbeat": beat,
        "metadata": {},
    }
    return {name: value for name, value in shown.items() if value is not None}


def _summary(now: dt.datetime) -> dict[str, int]:
    """Every worker is counted in `total` and in one of the others; one that ends counts as quiet."""
    edge = now - dt.timedelta(seconds=ojs_settings.HEARTBEAT_TIMEOUT)
    heard = _workers().annotate(heard=Coalesce("last_heartbeat_at", "last_seen_at"))
    counts: dict[str, int] = heard.aggregate(
        total=Count("pk"),
        running=Count("pk", filter=Q(heard__gte=edge, state="running")),
        quiet=Count("pk", filter=Q(heard__gte=edge) & ~Q(state="running")),
        stale=Count("pk", filter=Q(heard__lt=edge)),
    )
    return counts
