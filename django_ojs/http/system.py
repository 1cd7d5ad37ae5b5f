"""The manifest, the health check, and the probes of load balancers: for everybody, without credentials."""

from __future__ import annotations

import time
from functools import lru_cache
from typing import Any

from django.core.exceptions import DisallowedHost
from django.core.handlers.asgi import ASGIRequest
from django.db import Error, router
from django.db.models import Count, Q
from rest_framework.authentication import BaseAuthentication
from rest_framework.exceptions import APIException
from rest_framework.request import Request
from rest_framework.response import Response

import django_ojs
from django_ojs import clock, jsontext, middleware
from django_ojs.database import unmigrated
from django_ojs.errors import NotFound, OJSError
from django_ojs.http import compat, manifest, media, openapi, permissions, probing
from django_ojs.http.base import VERSION, OJSView, PublicView
from django_ojs.http.exceptions import logger
from django_ojs.http.permissions import require_scope
from django_ojs.models import Job, Queue, Worker
from django_ojs.models.fields import RawJSON
from django_ojs.models.queue import TEMPLATE
from django_ojs.queues import maintenance
from django_ojs.rules.durations import format_instant
from django_ojs.statistics import counters, summary
from django_ojs.workers.directory import unserved_queues

_STARTED = time.monotonic()
_RETRY_AFTER = {"Retry-After": "5"}


class Manifest(PublicView):
    """`GET /ojs/manifest`, always as application/json."""

    def get(self, request: Request) -> Response:
        extensions = compat.extensions(manifest.EXTENSIONS, request._request)
        return Response(manifest.manifest(_base_url(request), extensions, streams=is_asgi(request)))

    def media_type(self) -> str:
        return media.JSON


class Health(PublicView):
    """`GET /health`: whether the store answers and, for callers with the scope `read`, what waits in front of it.

    Maintenance mode is told there, too; the server serves while it is on, so the status is as ever.
    """

    def get_authenticators(self) -> list[BaseAuthentication]:
        return OJSView.get_authenticators(self)

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        """Credentials are looked at once the store is known to answer, and bad ones are as good as none."""

    def get(self, request: Request) -> Response:
        body: dict[str, Any] = {
            "status": "ok",
            "version": VERSION,
            "uptime_seconds": uptime(),
            "timestamp": format_instant(clock.now()),
        }
        try:
            body["backend"] = _backend()
            if _may_see_more(request):
                body |= _counts()
        except Error as error:
            logger.error("The health check could not reach the job store: %s", error)
            body |= {"status": "unhealthy", "backend": _unreachable(error)}
            return Response(body, status=503, headers=_RETRY_AFTER)
        return Response(body)


class OpenAPI(PublicView):
    """`GET /openapi.json`: this server's description of itself, for tools."""

    def get(self, request: Request) -> Response:
        if not openapi.available():
            raise NotFound(
                "The OpenAPI document needs drf-spectacular, which this server does not have.",
                hint="Install django-ojs[openapi].",
            )
        url = request.path.removesuffix("/ojs/v1/openapi.json")
        return Response(_openapi(url))

    def media_type(self) -> str:
        return media.JSON


@lru_cache(maxsize=8)
def _openapi(url: str) -> RawJSON:
    """The document as text: it changes with the code only."""
    return RawJSON(jsontext.dumps(openapi.document(django_ojs.__version__, url)))


class MiddlewareChains(OJSView):
    """`GET /middleware`: what is around every push and every run in this process, outermost first."""

    scopes = {"GET": "admin.read"}
    rights = {"GET": "view_job"}

    def get(self, request: Request) -> Response:
        chains = {"enqueue": middleware.enqueue_chain, "execution": middleware.execution_chain}
        return Response({phase: [
            {"name": middleware.dotted_name(entry).rpartition(".")[2], "phase": phase, "order": order}
            for order, entry in enumerate(chain.list())
        ] for phase, chain in chains.items()})  # fmt: skip


class Alive(PublicView):
    """`/healthz`: the process answers; the database is not asked."""

    def get(self, request: Request) -> Response:
        return Response({"status": "ok"})


class Ready(PublicView):
    """`/ready`, `/readyz`: whether this process can serve, that is, reach its database."""

    def get(self, request: Request) -> Response:
        try:
            _backend()
        except Error:
            return Response({"status": "not_ready"}, status=503, headers=_RETRY_AFTER)
        return Response({"status": "ready"})


def uptime() -> int:
    """Seconds since this process began to serve."""
    return int(time.monotonic() - _STARTED)


def is_asgi(request: Request) -> bool:
    """Whether the server that brought this request can send an answer that does not end."""
    return isinstance(request._request, ASGIRequest)


def _may_see_more(request: Request) -> bool:
    try:
        require_scope(request, "read")
    except (OJSError, APIException):
        return False
    return not permissions.is_limited(request)


def _base_url(request: Request) -> str:
    """Scheme, host and whatever lies before `/ojs` where the site included our URLs."""
    prefix = request.path.removesuffix("/ojs/manifest")
    try:
        return request._request.build_absolute_uri(prefix or "/").rstrip("/")
    except DisallowedHost:
        return prefix


def _backend() -> dict[str, Any]:
    """Ask the store for a sign of life, and time it."""
    latency = round(probing.ask(router.db_for_write(Job)) * 1000)  # whole: clients decode an integer
    return {"type": manifest.backend(), "status": "ok", "connection": "connected", "latency_ms": latency}


def _unreachable(error: Error) -> dict[str, Any]:
    message = unmigrated(error) or "The job store cannot be reached."
    return {"type": manifest.backend(), "status": "unhealthy", "connection": "disconnected", "error": message}


def _counts() -> dict[str, Any]:
    using = router.db_for_write(Job)
    named = Queue.objects.using(using).exclude(name=TEMPLATE)
    queues = named.aggregate(total=Count("pk"), paused=Count("pk", filter=Q(paused=True)))
    total, connected = Worker.objects.using(using).count(), summary.workers_active(using=using)
    workers = {"total": total, "stale": max(0, total - connected)}  # one may come between the two statements
    counted = counters.count_all(using=using)
    unserved = unserved_queues(counted, using=using)
    return {
        "maintenance": maintenance.is_on(using=using),
        "queues": {"active": queues["total"] - queues["paused"], **queues, "unserved": unserved},
        "jobs": counters.totals(counted.values()),
        "workers": {"connected": connected, "active": connected, **workers},
    }
