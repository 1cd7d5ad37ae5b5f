"""The manifest, the health check, and the probes of load balancers: for everybody, without credentials."""

from __future__ import annotations

import datetime as dt
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
from django_ojs import clock, jsontext
from django_ojs.conf import ojs_settings
from django_ojs.errors import NotFound, OJSError
from django_ojs.http import access, apidoc, compat, manifest, media, probing
from django_ojs.http.base import VERSION, OJSView, PublicView
from django_ojs.http.exceptions import logger
from django_ojs.http.permissions import require_scope
from django_ojs.models import Job, Queue, Worker
from django_ojs.models.fields import RawJSON
from django_ojs.models.queue import TEMPLATE
from django_ojs.operations import maintenance
from django_ojs.operations.counts import count_all
from django_ojs.policies.durations import format_instant
from django_ojs.states import State

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
            body |= {"status": "unhealthy", "backend": _unreachable()}
            return Response(body, status=503, headers=_RETRY_AFTER)
        return Response(body)


class OpenAPI(PublicView):
    """`GET /openapi.json`: this server's description of itself, for tools."""

    def get(self, request: Request) -> Response:
        if not apidoc.available():
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
    return RawJSON(jsontext.dumps(apidoc.document(django_ojs.__version__, url)))


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
    return not access.is_limited(request)


def _base_url(request: Request) -> str:
    """Scheme, host and whatever lies before `/ojs` where the site included our URLs."""
    prefix = request.path.removesuffix("/ojs/manifest")
    try:
        return request._request.build_absolute_uri(prefix or "/").rstrip("/")
    except DisallowedHost:
        return prefix


def _backend() -> dict[str, Any]:
    """Ask the store for a sign of life, and time it."""
    latency = round(probing.ask(router.db_for_write(Job)) * 1000, 3)
    return {"type": manifest.backend(), "status": "ok", "connection": "connected", "latency_ms": latency}


def _unreachable() -> dict[str, Any]:
    message = "The job store cannot be reached."
    return {"type": manifest.backend(), "status": "unhealthy", "connection": "disconnected", "error": message}


def _jobs(using: str) -> dict[str, int]:
    """The jobs of all queues by state."""
    found = count_all(using=using).values()
    return {state.value: sum(counts.states[state] for counts in found) for state in State}


def _counts() -> dict[str, Any]:
    using = router.db_for_write(Job)
    named = Queue.objects.using(using).exclude(name=TEMPLATE)
    queues = named.aggregate(total=Count("pk"), paused=Count("pk", filter=Q(paused=True)))
    long_ago = clock.now(using) - dt.timedelta(seconds=ojs_settings.HEARTBEAT_TIMEOUT)
    workers = Worker.objects.using(using).aggregate(
        total=Count("pk"), stale=Count("pk", filter=Q(last_seen_at__lt=long_ago))
    )
    connected = workers["total"] - workers["stale"]
    return {
        "maintenance": maintenance.is_on(using=using),
        "queues": {"active": queues["total"] - queues["paused"], **queues},
        "jobs": _jobs(using),
        "workers": {"connected": connected, "active": connected, **workers},
    }
