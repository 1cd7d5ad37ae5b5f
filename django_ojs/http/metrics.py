"""`GET /metrics` for Prometheus, and `GET /ojs/v1/metrics` for the command line (events 8.2)."""

from __future__ import annotations

import datetime as dt
from typing import Any

from django.db import router
from django.db.models import Sum
from rest_framework.request import Request
from rest_framework.response import Response

from django_ojs import clock, errors
from django_ojs.conf import ojs_settings
from django_ojs.http import access, system
from django_ojs.http.base import OJSView
from django_ojs.models import Job, MetricSeries, QueueMinute
from django_ojs.models.fields import RawJSON
from django_ojs.operations import counts
from django_ojs.telemetry import exposition, gather


class MetricsView(OJSView):
    """Open to everybody unless `METRICS_PUBLIC` is off; not there at all where `METRICS` is off."""

    scopes = {"GET": "read"}
    negotiates = False
    _text_type = ""

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        if not ojs_settings.METRICS:
            raise errors.NotFound("This site keeps no metrics.", hint="OJS['METRICS'] is off.")
        if ojs_settings.METRICS_PUBLIC:
            return
        super().initial(request, *args, **kwargs)
        if access.is_limited(request):
            message = "Metrics are about all queues and job types, and this API key is limited to some."
            raise errors.PermissionDenied(message, hint="Use a key without limits.")

    def exposition(self) -> Response:
        """The text of a scrape, under exactly the media type that a client asks for if it names only that."""
        accept = self.request.META.get("HTTP_ACCEPT", "").strip()
        response = Response(RawJSON(exposition.render(gather.gather())))
        self._text_type = accept if accept == "text/plain" else exposition.CONTENT_TYPE
        return response

    def handle_exception(self, exc: Exception) -> Response:
        self._text_type = ""
        return super().handle_exception(exc)

    def media_type(self) -> str:
        return self._text_type or super().media_type()


class Prometheus(MetricsView):
    """`GET /metrics`"""

    def get(self, request: Request) -> Response:
        return self.exposition()


class Metrics(MetricsView):
    """`GET /ojs/v1/metrics`: a few numbers as JSON; `?format=prometheus` for the text."""

    def get(self, request: Request) -> Response:
        wanted = request._request.GET.get("format", "json")
        if wanted == "prometheus":
            return self.exposition()
        if wanted != "json":
            details = {"field": "format", "expected": "json or prometheus", "received": wanted[:100]}
            raise errors.InvalidRequest("There are two formats: json and prometheus.", details=details)
        return Response(summary(router.db_for_write(Job)))


def summary(using: str) -> dict[str, Any]:
    """The numbers of the whole installation; throughput of the last full minute and this one, latency of the hour."""
    now = clock.now(using)
    counted = dict(MetricSeries.objects.using(using).values_list("event").annotate(total=Sum("count")))
    queues = counts.count_all(using=using).values()
    lately = counts.minute_of(now - dt.timedelta(minutes=1))
    minutes = QueueMinute.objects.using(using)
    hour = minutes.filter(minute__gte=now - dt.timedelta(hours=1)).aggregate(run=Sum("run_ms"), done=Sum("completed"))
    recent = minutes.filter(minute__gte=lately).aggregate(done=Sum("completed"))["done"] or 0
    return {
        "uptime_seconds": system.uptime(),
        "jobs_enqueued_total": counted.get("job.enqueued", 0),
        "jobs_completed_total": counted.get("job.completed", 0),
        "jobs_failed_total": counted.get("job.discarded", 0),
        "jobs_active": sum(of_queue.states["active"] for of_queue in queues),
        "queues_active": sum(of_queue.depth > 0 for of_queue in queues),
        "workers_active": gather.workers_active(using),
        "avg_latency_ms": round((hour["run"] or 0) / hour["done"], 3) if hour["done"] else 0,
        "throughput_per_second": round(recent / max((now - lately).total_seconds(), 1.0), 3),
    }
