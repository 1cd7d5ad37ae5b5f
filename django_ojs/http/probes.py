"""Whether the server is well: the health check, the probes of load balancers, and metrics.

`django_ojs.urls` has nothing outside `/ojs`, so that it collides with nothing of the site. A site that wants `/health`,
`/healthz`, `/ready`, `/readyz` and `/metrics` at its root, for load balancers, monitoring and for clients that look
there, adds `path("", include("django_ojs.http.probes"))`.

A database behind a broken network answers nothing, not even an error, for minutes. So a thread of its own asks the job
store whether it takes writes, on a connection of its own, and a request waits for it a moment. While it hangs no other
is started.
"""

from __future__ import annotations

import threading
import time
from typing import Any

from django.db import Error, connections, router
from django.urls import path
from rest_framework import serializers
from rest_framework.authentication import BaseAuthentication
from rest_framework.exceptions import APIException
from rest_framework.request import Request
from rest_framework.response import Response

from django_ojs import clock, errors, parts
from django_ojs.conf import ojs_settings
from django_ojs.database import note_read_only, try_to_write
from django_ojs.errors import OJSError
from django_ojs.faults import NotAnswered, StoreFull, unmigrated
from django_ojs.guard import described
from django_ojs.http import exceptions, manifest, permissions
from django_ojs.http.base import VERSION, OJSView, PublicView
from django_ojs.http.exceptions import disk_was_full, logger
from django_ojs.http.operation import operation
from django_ojs.http.permissions import require_scope
from django_ojs.http.queues import StateCountsSerializer
from django_ojs.http.serializers import AnswerSerializer, InstantField, NumberField, shared
from django_ojs.models import Job
from django_ojs.models.fields import RawJSON
from django_ojs.statistics import counters, summary
from django_ojs.telemetry import collector
from django_ojs.workerregistry.directory import presence

#: Seconds after which a store that has not answered counts as away.
PATIENCE = 2.0
_STARTED = time.monotonic()
_RETRY_AFTER = {"Retry-After": "5"}
_PROMETHEUS = collector.CONTENT_TYPE.partition(";")[0]
_lock = threading.Lock()
_asking: dict[str, _Question] = {}


class BackendSerializer(AnswerSerializer):
    """The store: how long it took to answer, or why it did not."""

    type = serializers.CharField()
    status = serializers.CharField()
    connection = serializers.CharField()
    latency_ms = serializers.IntegerField(required=False)
    error = serializers.CharField(required=False)


class StatusSerializer(AnswerSerializer):
    status = serializers.CharField()


class HealthQueuesSerializer(AnswerSerializer):
    active = serializers.IntegerField()
    total = serializers.IntegerField()
    paused = serializers.IntegerField()
    unserved = serializers.DictField(
        child=serializers.IntegerField(), help_text="How many jobs of which types wait, and no worker serves them."
    )


class HealthWorkersSerializer(AnswerSerializer):
    connected = serializers.IntegerField()
    active = serializers.IntegerField()
    total = serializers.IntegerField()
    stale = serializers.IntegerField()


class HealthFiguresSerializer(AnswerSerializer):
    """What waits in front of the server."""

    maintenance = serializers.BooleanField(required=False)
    queues = HealthQueuesSerializer(required=False)
    jobs = StateCountsSerializer(required=False)
    workers = HealthWorkersSerializer(required=False)


class HealthSerializer(HealthFiguresSerializer):
    """Whether the store answers; the figures for callers with the scope `read`."""

    first = ("status", "version", "uptime_seconds", "timestamp", "backend")

    status = serializers.CharField()
    version = serializers.CharField()
    uptime_seconds = serializers.IntegerField()
    timestamp = InstantField()
    backend = BackendSerializer()


class Health(PublicView):
    """`GET /health`: whether the store answers and, for callers with the scope `read`, what waits in front of it.

    It says whether maintenance mode is on; the server serves meanwhile, so the status is as ever. All who ask a process
    within a second get the same figures.
    """

    def get_authenticators(self) -> list[BaseAuthentication]:
        return OJSView.get_authenticators(self)

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        """Credentials are looked at once the store is known to answer, and bad ones are as good as none."""

    @operation(answers={200: HealthSerializer, 503: HealthSerializer})
    def get(self, request: Request) -> Response:
        """Whether the job store answers."""
        body: dict[str, Any] = {
            "status": "ok",
            "version": VERSION,
            "uptime_seconds": uptime(),
            "timestamp": clock.now(),
        }
        figures: dict[str, Any] = {}
        try:
            body["backend"] = _backend()
            if _may_see_more(request):
                figures = _figures.get(router.db_for_write(Job))
        except Error as error:
            exceptions.note_refusal("the health check", error, self.request_id)
            body |= {"status": "unhealthy", "backend": _unreachable(error)}
            answer = Response(shared(HealthSerializer).to_representation(body), status=503, headers=_RETRY_AFTER)
            return exceptions.logged(answer)
        return Response(shared(HealthSerializer).to_representation(body) | figures)


class Alive(PublicView):
    """`/healthz`: the process answers; the database is not asked."""

    needs_database = False

    @operation(answers={200: StatusSerializer})
    def get(self, request: Request) -> Response:
        """Whether the process answers."""
        return _status("ok")


class Ready(PublicView):
    """`/ready`, `/readyz`: whether this process can serve: it reaches its database and may write to it, none of its
    requests has found the disk there full in the last seconds, and no thread or task of its own that should run has
    ended or hangs."""

    @operation(answers={200: StatusSerializer, 503: StatusSerializer})
    def get(self, request: Request) -> Response:
        """Whether the process and its database answer."""
        try:
            _backend()
        except Error as error:
            exceptions.note_refusal("the readiness probe", error, self.request_id)
            return exceptions.logged(_status("not_ready", status=503, headers=_RETRY_AFTER))
        if stuck := parts.stuck():
            logger.error("This process is not ready, and should be replaced: %s.", "; ".join(stuck))
            return _status("not_ready", status=503, headers=_RETRY_AFTER)
        return _status("ready")


def _status(word: str, **how: Any) -> Response:
    return Response(shared(StatusSerializer).to_representation({"status": word}), **how)


class MetricsSerializer(AnswerSerializer):
    """The whole installation in a few numbers."""

    uptime_seconds = NumberField()
    jobs_enqueued_total = NumberField()
    jobs_completed_total = NumberField()
    jobs_failed_total = NumberField()
    jobs_active = NumberField()
    queues_active = NumberField()
    workers_active = NumberField()
    avg_latency_ms = NumberField()
    throughput_per_second = NumberField()


class MetricsView(OJSView):
    """Open to every caller unless `METRICS_PUBLIC` is off; not there at all where `METRICS` is off."""

    model_name = "queue"
    negotiates = False

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        if not ojs_settings.METRICS:
            raise errors.NotFound("This site keeps no metrics.", hint="OJS['METRICS'] is off.")
        if ojs_settings.METRICS_PUBLIC:
            return
        super().initial(request, *args, **kwargs)
        if permissions.is_limited(request):
            message = "Metrics are about all queues and job types, and this API key is limited to some."
            raise errors.PermissionDenied(message, hint="Use a key without limits.")

    def exposition(self) -> Response:
        """The text of a scrape, under exactly the media type that a client asks for if it names only that."""
        accept = self.request.META.get("HTTP_ACCEPT", "").strip()
        response = Response(RawJSON(collector.text()))
        self._text_type = accept if accept == "text/plain" else collector.CONTENT_TYPE
        return response


class Prometheus(MetricsView):
    """`GET /metrics`"""

    @operation(scope="read", answers={200: None}, errors=(404,), text=_PROMETHEUS, optional=True)
    def get(self, request: Request) -> Response:
        """All metrics in the text format of Prometheus."""
        return self.exposition()


class Metrics(MetricsView):
    """`GET /ojs/v1/metrics`: the installation in a few numbers as JSON; `?format=prometheus` for the text."""

    @operation(
        scope="read",
        answers={200: MetricsSerializer},
        query="format=json|prometheus",
        errors=(404,),
        text=_PROMETHEUS,
        optional=True,
    )
    def get(self, request: Request) -> Response:
        """A few numbers as JSON, or all metrics as text."""
        wanted = request._request.GET.get("format", "json")
        if wanted == "prometheus":
            return self.exposition()
        if wanted != "json":
            details = {"field": "format", "expected": "json or prometheus", "received": wanted[:100]}
            raise errors.InvalidRequest("There are two formats: json and prometheus.", details=details)
        return Response(shared(MetricsSerializer).to_representation({"uptime_seconds": uptime(), **summary.summary()}))


def uptime() -> int:
    """Seconds since this process began to serve."""
    return int(time.monotonic() - _STARTED)


def ask(using: str) -> float:
    """The seconds that the store took to answer. Raises a `django.db.Error` if it cannot, takes no writes, or does not
    answer in time."""
    with _lock:
        question = _asking.get(using)
        if question is None:
            question = _Question()
            try:
                threading.Thread(target=_ask, args=(using, question), name="ojs-probe", daemon=True).start()
            except RuntimeError as error:  # the system has no more threads for this process
                raise NotAnswered(f"The database cannot be asked: {error}.") from error
            _asking[using] = question  # after the start: only its thread takes it out
    left = PATIENCE - (time.monotonic() - question.began)
    if not question.answered.wait(max(left, 0.0)):
        raise NotAnswered(f"The database has not answered for {time.monotonic() - question.began:.1f} s.")
    if question.error is not None:
        raise question.error
    return question.seconds


class _Question:
    def __init__(self) -> None:
        self.began = time.monotonic()
        self.answered = threading.Event()
        self.seconds = 0.0
        self.error: Exception | None = None


def _ask(using: str, question: _Question) -> None:
    try:
        with connections[using].cursor() as cursor:
            began = time.perf_counter()
            try_to_write(cursor)
            question.seconds = time.perf_counter() - began
    except Exception as error:  # noqa: BLE001 - raised again by `ask`
        note_read_only(error)
        question.error = error
    except BaseException as error:  # noqa: BLE001 - what would end whoever asks
        question.error = NotAnswered(f"Asking the database ended with {described(error)}.")
    finally:
        with _lock:
            del _asking[using]
        question.answered.set()
        connections[using].close()


def _may_see_more(request: Request) -> bool:
    try:
        require_scope(request, "read", model="queue")
    except (OJSError, APIException):
        return False
    return not permissions.is_limited(request)


def store_answers() -> None:
    """Return once the job store has given a sign of life. Raises `django.db.Error` where it has not for `PATIENCE`
    seconds, or where it has no room for what is to be stored."""
    _sign_of_life()


def _sign_of_life() -> float:
    if disk_was_full():
        raise StoreFull("The disk of the database was full a moment ago.")
    return _life.get(router.db_for_write(Job))


def _backend() -> dict[str, Any]:
    """The store's last sign of life, of this second or asked for now."""
    latency = round(_sign_of_life() * 1000)  # whole: clients decode an integer
    return {"type": manifest.backend(), "status": "ok", "connection": "connected", "latency_ms": latency}


def _unreachable(error: Error) -> dict[str, Any]:
    message = unmigrated(error) or "The job store cannot be reached."
    return {"type": manifest.backend(), "status": "unhealthy", "connection": "disconnected", "error": message}


def _read_figures(using: str) -> dict[str, Any]:
    """What waits in front of the server, in two statements, as answers show it."""
    counted = counters.count_all(using=using)
    there = presence(counted, using=using)
    stale = there.workers - there.connected
    found = {
        "maintenance": there.maintenance,
        "queues": {"active": there.queues - there.paused, "total": there.queues, "paused": there.paused,
                   "unserved": there.unserved},
        "jobs": counters.totals(counted.values()),
        "workers": {"connected": there.connected, "active": there.connected, "total": there.workers, "stale": stale},
    }  # fmt: skip
    shown: dict[str, Any] = shared(HealthFiguresSerializer).to_representation(found)
    return shown


#: Seconds that the store took to answer, and what `_read_figures` found, for all who look within a second. A store that
#: does not answer is asked by each request anew, so one that is back is seen at once.
_life, _figures = summary.Shared(ask, summary.FRESH), summary.Shared(_read_figures, summary.FRESH)


urlpatterns = [
    path("health", Health.as_view()),
    path("metrics", Prometheus.as_view()),
    path("healthz", Alive.as_view()),
    path("ready", Ready.as_view()),
    path("readyz", Ready.as_view()),
]
