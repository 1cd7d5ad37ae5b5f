"""What workers call: FETCH, ACK, FAIL, BEAT, and coming and going (binding 2.4, orchestration 3)."""

from __future__ import annotations

import math
import uuid
from typing import Any

from django.db import router
from rest_framework.request import Request
from rest_framework.response import Response

from django_ojs import clock, envelope, jsontext
from django_ojs.conf import ojs_settings
from django_ojs.errors import NotFound
from django_ojs.http import access, answers, compat, fields, testhooks, workerinfo
from django_ojs.http.base import OJSView
from django_ojs.http.permissions import check_queue, type_limit
from django_ojs.models import Worker
from django_ojs.models.fields import RawJSON
from django_ojs.operations import beat as beats
from django_ojs.operations.ack import Ack, ack_one
from django_ojs.operations.fail import Failure, fail_one
from django_ojs.operations.fetch import fetch
from django_ojs.operations.register import deregister, register
from django_ojs.policies import names
from django_ojs.policies.durations import format_instant
from django_ojs.policies.faults import shorten


class WorkerView(OJSView):
    scopes = {"POST": "work"}


class Fetch(WorkerView):
    """`POST /workers/fetch`, `/jobs/fetch`"""

    def post(self, request: Request) -> Response:
        body = self.payload()
        queues = fields.queue_names(body)
        count = fields.integer(body, "count" if body.get("count") is not None else "max_jobs")
        check_queue(request, queues)
        rows = fetch(
            queues,
            count=1 if count is None else max(count, 1),
            worker_id=fields.worker_id(body),
            visibility_ms=fields.duration_ms(body, "visibility_timeout_ms"),
            types=type_limit(request),
        )
        jobs = [RawJSON(jsontext.dumps(envelope.render(row))) for row in rows]
        return Response({"jobs": jobs, "job": jobs[0]} if jobs else {"jobs": []})


class WorkerAck(WorkerView):
    """`POST /workers/ack`"""

    def post(self, request: Request) -> Response:
        body = self.payload()
        return self.acknowledge(request, fields.job_id(body), body)

    def acknowledge(self, request: Request, job_id: uuid.UUID, body: dict[str, Any]) -> Response:
        access.check_jobs(request, [job_id])
        result = jsontext.dumps(body["result"]) if "result" in body else None  # an explicit null is a value
        claim = Ack(job_id, result, fields.claimant(body), fields.integer(body, "attempt", minimum=1))
        return Response(answers.acknowledged(ack_one(claim)))


class JobAck(WorkerAck):
    """`POST /jobs/{id}/ack`; the body may be empty."""

    conflict_code = "invalid_state_transition"

    def post(self, request: Request, job_id: str) -> Response:  # type: ignore[override]
        return self.acknowledge(request, fields.path_id(job_id), self.payload(required=False))


class WorkerNack(WorkerView):
    """`POST /workers/nack`, `/workers/fail`"""

    def post(self, request: Request) -> Response:
        body = self.payload()
        return self.refuse(request, fields.job_id(body), body)

    def refuse(self, request: Request, job_id: uuid.UUID, body: dict[str, Any]) -> Response:
        access.check_jobs(request, [job_id])
        failure = Failure(
            job_id,
            error=body.get("error"),
            worker_id=fields.claimant(body),
            attempt=fields.integer(body, "attempt", minimum=1),
            requeue=fields.flag(body, "requeue"),
        )
        return Response(answers.failed(fail_one(failure)))


class JobNack(WorkerNack):
    """`POST /jobs/{id}/nack`, `/jobs/{id}/fail`"""

    conflict_code = "invalid_state_transition"

    def post(self, request: Request, job_id: str) -> Response:  # type: ignore[override]
        return self.refuse(request, fields.path_id(job_id), self.payload())


class Heartbeat(WorkerView):
    """`POST /workers/heartbeat`, `/workers/beat`"""

    def post(self, request: Request) -> Response:
        body = self.payload()
        active, unknown, count = workerinfo.active_jobs(body)
        worker_id = fields.worker_id(body, required=True)
        access.check_jobs(request, active)
        answer = beats.beat(
            beats.Beat(
                worker_id,
                active=active,
                active_count=count,
                visibility_ms=fields.duration_ms(body, "visibility_timeout_ms"),
                state=workerinfo.state(body),
                info=workerinfo.facts(body),
            )
        )
        directive = testhooks.directive(active)
        return Response(answers.beaten(worker_id, answer, unknown, directive))


class Register(WorkerView):
    """`POST /workers/register`, `POST /workers`. Optional: FETCH and BEAT register an unknown worker as well."""

    def post(self, request: Request) -> Response:
        body = self.payload()
        worker_id = fields.worker_id(body, required=True)
        facts = workerinfo.facts(body)
        check_queue(request, facts.get("queues") or [])
        register(worker_id, facts)
        return Response(
            {
                "ok": True,
                "worker_id": worker_id,
                "server_time": format_instant(clock.now()),
                "heartbeat_interval": compat.whole(ojs_settings.HEARTBEAT_INTERVAL),
                "heartbeat_timeout": compat.whole(ojs_settings.HEARTBEAT_TIMEOUT),
                "visibility_timeout_default": ojs_settings.VISIBILITY_TIMEOUT,
            }
        )


class Deregister(WorkerView):
    """`POST /workers/deregister`: the worker is gone, and what it holds goes back to its queue."""

    def post(self, request: Request) -> Response:
        body = self.payload()
        reason = fields.text(body, "reason", maximum=64)
        return goodbye(request, fields.worker_id(body, required=True), reason or "shutdown")


class WorkerDetail(OJSView):
    """`DELETE /workers/{id}`: the same by path."""

    scopes = {"DELETE": "work"}

    def delete(self, request: Request, worker_id: str) -> Response:
        return goodbye(request, _path_worker(worker_id), "shutdown")


class WorkerHealth(OJSView):
    """`GET /workers/{id}/health`: what the worker last said, and whether it still beats; 503 for one that takes no
    more jobs, or is silent."""

    scopes = {"GET": "read"}

    def get(self, request: Request, worker_id: str) -> Response:
        using = router.db_for_read(Worker)
        worker = Worker.objects.using(using).filter(pk=_path_worker(worker_id)).first()
        if worker is None:
            raise NotFound.resource("worker", worker_id)
        health = answers.worker_health(worker, clock.now(using))
        if health["state"] == "running" and health["status"] == "ok":
            return Response(health)
        return Response(health, status=503, headers={"Retry-After": str(math.ceil(ojs_settings.HEARTBEAT_INTERVAL))})


def goodbye(request: Request, worker_id: str, reason: str) -> Response:
    access.check_held(request, worker_id)
    returned = deregister(worker_id, reason=reason)
    return Response({"ok": True, "deregistered": True, "worker_id": worker_id, "jobs_requeued": returned})


def _path_worker(text: str) -> str:
    """The worker id in a path; what cannot be one is not found."""
    try:
        return names.check_worker_id(text)
    except ValueError:
        raise NotFound.resource("worker", shorten(text)) from None
