"""Workers: FETCH, ACK, FAIL, BEAT, coming and going, and what operators do with workers (binding 2.4, orchestration 3).

A key that is limited to queues sees the workers that serve one of them, and of their jobs its own. It directs none: a
worker serves whoever uses its queues.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Collection
from typing import Any

from django.db import router
from django.db.models import Count, Q, QuerySet
from django.db.models.functions import Coalesce
from django.utils.functional import cached_property
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response

from django_ojs import clock, jsontext
from django_ojs.conf import ojs_settings
from django_ojs.errors import Conflict, NotFound, PermissionDenied
from django_ojs.http import access, answers, compat, fields, jobs, testhooks
from django_ojs.http import workerserializers as serializers
from django_ojs.http.auditing import audited
from django_ojs.http.jobserializers import ProgressReportSerializer
from django_ojs.http.pagination import DEFAULT_LIMIT, MAX_LIMIT, Key, OJSPagination, Page, paginate, parse_name
from django_ojs.http.permissions import check_queue, principal, queue_limit, type_limit
from django_ojs.http.viewsets import OJSViewSet
from django_ojs.http.workerserializers import DIRECTIVES
from django_ojs.jobs.fetch import fetch
from django_ojs.models import Job, Worker
from django_ojs.models.fields import RawJSON
from django_ojs.rules import envelope, names
from django_ojs.rules.durations import format_instant
from django_ojs.rules.faults import shorten
from django_ojs.states import State
from django_ojs.workers import heartbeat as beats
from django_ojs.workers.directory import is_stale, with_held
from django_ojs.workers.registration import deregister, direct, register

HELD = 1000  #: jobs that a worker's page names


class WorkerPagination(OJSPagination):
    """Workers by id, with the number of jobs that each of them holds; both doors have pages of the same size."""

    operator_max_limit, operator_default_limit = MAX_LIMIT, DEFAULT_LIMIT

    def get_page(self, queryset: QuerySet[Any], request: Request, view: Any) -> Page:
        maximum, default = self.sizes(view)

        def rows(found: QuerySet[Worker]) -> list[Worker]:
            return list(with_held(found))

        return paginate(queryset, request, view.ordering, rows=rows, maximum=maximum, default=default)


class WorkerViewSet(OJSViewSet):
    """`/workers`, for workers; `/admin/workers`, for operators."""

    lookup_url_kwarg = "worker_id"
    model_name = "worker"
    serializer_class = serializers.WorkerSerializer
    operator_serializer_class = serializers.WorkerSerializer
    body_serializers = {
        "deregister": serializers.DeregisterSerializer,
        "direct_all": serializers.DirectiveSerializer,
        "progress": ProgressReportSerializer,
    }
    pagination_class = WorkerPagination
    ordering = (Key("id", descending=False, parse=parse_name),)
    list_names = ("items", "workers")
    action_scopes = {
        "create": "work", "fetch": "work", "ack": "work", "nack": "work", "heartbeat": "work", "deregister": "work",
        "destroy": "work", "progress": "work", "health": "read",
    }  # fmt: skip
    action_rights = {
        "destroy": "delete_worker", "direct_all": "change_worker",
        **dict.fromkeys(("quiet", "resume", "terminate"), "change_worker"),
    }  # fmt: skip
    public_only = ("create", "fetch", "ack", "nack", "heartbeat", "deregister", "progress", "health")
    operator_only = ("list", "retrieve", "direct_all", "quiet", "resume", "terminate")

    # What workers call

    @action(detail=False, methods=["post"], aliases=("/jobs/fetch",))
    def fetch(self, request: Request) -> Response:
        """FETCH."""
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
        found = [RawJSON(jsontext.dumps(envelope.render(row))) for row in rows]
        return Response({"jobs": found, "job": found[0]} if found else {"jobs": []})

    @action(detail=False, methods=["post"])
    def ack(self, request: Request) -> Response:
        """ACK."""
        body = self.payload()
        return jobs.acknowledge(request, fields.job_id(body), body)

    @action(detail=False, methods=["post"], aliases=("fail",))
    def nack(self, request: Request) -> Response:
        """FAIL."""
        body = self.payload()
        return jobs.fail(request, fields.job_id(body), body)

    @action(detail=False, methods=["post"], aliases=("beat",))
    def heartbeat(self, request: Request) -> Response:
        """BEAT."""
        body = self.payload()
        active, unknown, count = serializers.active_jobs(body)
        worker_id = fields.worker_id(body, required=True)
        access.check_jobs(request, active)
        answer = beats.beat(
            beats.Beat(
                worker_id,
                active=active,
                active_count=count,
                visibility_ms=fields.duration_ms(body, "visibility_timeout_ms"),
                state=serializers.state(body),
                info=serializers.facts(body),
            )
        )
        directive = testhooks.directive(active)
        return Response(answers.beaten(worker_id, answer, unknown, directive))

    @action(detail=False, methods=["post"])
    def progress(self, request: Request) -> Response:
        """Report the progress of a job, for the published clients."""
        body = self.payload()
        return jobs.report_progress(self, fields.job_id(body), body)

    def create(self, request: Request) -> Response:
        """Register. Optional: FETCH and BEAT register an unknown worker as well."""
        body = self.payload()
        worker_id = fields.worker_id(body, required=True)
        facts = serializers.facts(body)
        check_queue(request, facts.get("queues") or [])
        register(worker_id, facts)
        return Response(
            {
                "ok": True,
                "worker_id": worker_id,
                "server_time": format_instant(clock.now(_using())),
                "heartbeat_interval": compat.whole(ojs_settings.HEARTBEAT_INTERVAL),
                "heartbeat_timeout": compat.whole(ojs_settings.HEARTBEAT_TIMEOUT),
                "visibility_timeout_default": ojs_settings.VISIBILITY_TIMEOUT,
            }
        )

    @action(detail=False, methods=["post"])
    def deregister(self, request: Request) -> Response:
        """The worker is gone, and what it holds goes back to its queue."""
        found = self.validated(self.payload())
        return _goodbye(request, found["worker_id"], found["reason"] or "shutdown")

    @action(detail=True, methods=["get"])
    def health(self, request: Request, worker_id: str) -> Response:
        """What the worker last said, and whether it still beats; 503 for one that takes no more jobs, or is silent."""
        using = router.db_for_read(Worker)
        worker = with_held(Worker.objects.using(using)).filter(pk=_path_worker(worker_id)).first()
        if worker is None:
            raise NotFound.resource("worker", worker_id)
        health = answers.worker_health(worker, clock.now(using))
        if health["state"] == "running" and health["status"] == "ok":
            return Response(health)
        return Response(health, status=503, headers={"Retry-After": str(math.ceil(ojs_settings.HEARTBEAT_INTERVAL))})

    # What operators call

    def get_queryset(self) -> Any:
        """The workers that the caller may see. Their queues are JSON, so for a limited key they get compared here."""
        workers = _workers()
        if queue_limit(self.request) is None:
            return workers
        served = workers.values_list("pk", "queues")
        return workers.filter(pk__in=[pk for pk, queues in served if _is_seen(self.request, queues)])

    def get_object(self) -> Any:
        """The worker in the path; what cannot be the id of one is not found."""
        worker_id = self.kwargs["worker_id"]
        worker = with_held(_workers()).filter(pk=_path_worker(worker_id)).first()
        if worker is None:
            raise NotFound.resource("worker", shorten(worker_id))
        self.check_object_permissions(self.request, worker)
        return worker

    def get_serializer_context(self) -> dict[str, Any]:
        return {**super().get_serializer_context(), "now": self.now}

    @cached_property
    def now(self) -> dt.datetime:
        return clock.now(_using())

    def list(self, request: Request) -> Response:
        """By id. The summary counts all that the caller sees, the page or not."""
        seen = self.get_queryset()
        return self.listed(seen, summary=_summary(seen, self.now))

    def retrieve(self, request: Request, worker_id: str) -> Response:
        worker = self.get_object()
        if not _is_seen(request, worker.queues):
            raise PermissionDenied(
                "This worker serves no queue of this API key.",
                details={"principal": principal(request), "operation": f"{request.method} {request.path}",
                         "worker_id": worker.pk},
            )  # fmt: skip
        held = Job.objects.using(_using()).filter(state=State.ACTIVE, worker_id=worker.pk).order_by("id")
        held = held.filter(access.visible(request))
        found = [
            {"id": str(job["id"]), "type": job["type"], "queue": job["queue"], "attempt": job["attempt"]}
            | ({"started_at": format_instant(job["started_at"])} if job["started_at"] else {})
            for job in held.values("id", "type", "queue", "attempt", "started_at")[:HELD]
        ]  # fmt: skip
        return Response({**self.represent(worker), "active_job_ids": [job["id"] for job in found], "jobs": found})

    @audited("worker.deregister", operator_only=True)
    def destroy(self, request: Request, worker_id: str) -> Response:
        """The worker is gone: it says so itself, or an operator removes a dead one. Its jobs go back."""
        if not self.operator:
            return _goodbye(request, _path_worker(worker_id), "shutdown")
        _check_unlimited(request)
        worker = self.get_object()
        if not is_stale(worker, self.now):
            raise Conflict(
                f"The worker '{worker.pk}' is alive.",
                details={"worker_id": worker.pk, "state": worker.state},
                hint="Tell it to terminate; it hands its jobs back and goes.",
            )
        deregister(worker.pk, reason="error")
        return Response(status=204)

    @action(detail=True, methods=["post"])
    @audited("worker.direct")
    def quiet(self, request: Request, worker_id: str) -> Response:
        """The worker's next heartbeat is answered that it takes no more jobs."""
        return self._direct("quiet")

    @action(detail=True, methods=["post"])
    @audited("worker.direct")
    def resume(self, request: Request, worker_id: str) -> Response:
        """The worker's next heartbeat is answered that it goes on."""
        return self._direct("running")

    @action(detail=True, methods=["post"])
    @audited("worker.direct")
    def terminate(self, request: Request, worker_id: str) -> Response:
        """The worker's next heartbeat is answered that it ends."""
        return self._direct("terminate")

    @action(detail=False, methods=["post"], url_path="directive")
    @audited("worker.direct_all")
    def direct_all(self, request: Request) -> Response:
        """The same to every worker."""
        body = self.payload()
        _check_unlimited(request)
        value = self.validated(body)["directive"]
        directed = [*_workers().order_by("id").values_list("pk", flat=True)]
        for worker_id in directed:
            try:
                direct(worker_id, DIRECTIVES[value])
            except NotFound:  # gone meanwhile
                continue
        self.act.detail["workers"] = directed
        answer = {"directive": value, "state": DIRECTIVES[value], "workers": directed, "count": len(directed)}
        return Response(answer)

    def _direct(self, directive: str) -> Response:
        self.payload(required=False)
        _check_unlimited(self.request)
        self.act.action = f"worker.{self.action}"
        worker = direct(self.get_object().pk, directive)
        return Response({"id": worker.pk, "worker_id": worker.pk, "state": worker.directive,
                         "directive": worker.directive})  # fmt: skip


def _goodbye(request: Request, worker_id: str, reason: str) -> Response:
    access.check_held(request, worker_id)
    returned = deregister(worker_id, reason=reason)
    return Response({"ok": True, "deregistered": True, "worker_id": worker_id, "jobs_requeued": returned})


def _using() -> str:
    return router.db_for_write(Worker)


def _workers() -> Any:
    return Worker.objects.using(_using())


def _path_worker(text: str) -> str:
    """The worker id in a path; what cannot be one is not found."""
    try:
        return names.check_worker_id(text)
    except ValueError:
        raise NotFound.resource("worker", shorten(text)) from None


def _is_seen(request: Request, queues: Collection[str] | None) -> bool:
    """Whether the caller may see a worker that serves these queues."""
    limit = queue_limit(request)
    return limit is None or not set(limit).isdisjoint(queues or ())


def _check_unlimited(request: Request) -> None:
    if access.is_limited(request):
        raise PermissionDenied(
            "A key that is limited to queues or types cannot direct workers, which may serve others.",
            details={"principal": principal(request), "operation": f"{request.method} {request.path}"},
        )


def _summary(workers: QuerySet[Worker], now: dt.datetime) -> dict[str, int]:
    """Every one of these workers is counted in `total` and in one of the others; one that ends counts as quiet."""
    edge = now - dt.timedelta(seconds=ojs_settings.HEARTBEAT_TIMEOUT)
    heard = workers.annotate(heard=Coalesce("last_heartbeat_at", "last_seen_at"))
    counts: dict[str, int] = heard.aggregate(
        total=Count("pk"),
        running=Count("pk", filter=Q(heard__gte=edge, state="running")),
        quiet=Count("pk", filter=Q(heard__gte=edge) & ~Q(state="running")),
        stale=Count("pk", filter=Q(heard__lt=edge)),
    )
    return counts
