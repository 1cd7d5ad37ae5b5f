"""`GET /metrics` for Prometheus, and `GET /ojs/v1/metrics` for the command line (events 8.2)."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from django_ojs import errors
from django_ojs.conf import ojs_settings
from django_ojs.http import permissions, system
from django_ojs.http.base import OJSView
from django_ojs.http.openapi import documented
from django_ojs.models.fields import RawJSON
from django_ojs.statistics.summary import summary
from django_ojs.telemetry import collector

_PROMETHEUS = collector.CONTENT_TYPE.partition(";")[0]


class MetricsSerializer(serializers.Serializer[Any]):
    """The whole installation in a few numbers."""

    uptime_seconds = serializers.FloatField()
    jobs_enqueued_total = serializers.FloatField()
    jobs_completed_total = serializers.FloatField()
    jobs_failed_total = serializers.FloatField()
    jobs_active = serializers.FloatField()
    queues_active = serializers.FloatField()
    workers_active = serializers.FloatField()
    avg_latency_ms = serializers.FloatField()
    throughput_per_second = serializers.FloatField()


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
        if permissions.is_limited(request):
            message = "Metrics are about all queues and job types, and this API key is limited to some."
            raise errors.PermissionDenied(message, hint="Use a key without limits.")

    def exposition(self) -> Response:
        """The text of a scrape, under exactly the media type that a client asks for if it names only that."""
        accept = self.request.META.get("HTTP_ACCEPT", "").strip()
        response = Response(RawJSON(collector.text()))
        self._text_type = accept if accept == "text/plain" else collector.CONTENT_TYPE
        return response

    def handle_exception(self, exc: Exception) -> Response:
        self._text_type = ""
        return super().handle_exception(exc)

    def media_type(self) -> str:
        return self._text_type or super().media_type()


class Prometheus(MetricsView):
    """`GET /metrics`"""

    @documented(answers={200: None}, text=_PROMETHEUS, errors=(404,), optional=True)
    def get(self, request: Request) -> Response:
        """All metrics in the text format of Prometheus."""
        return self.exposition()


class Metrics(MetricsView):
    """`GET /ojs/v1/metrics`: the installation in a few numbers as JSON; `?format=prometheus` for the text."""

    @documented(answers={200: MetricsSerializer}, query="format", text=_PROMETHEUS, errors=(404,), optional=True)
    def get(self, request: Request) -> Response:
        """A few numbers as JSON, or all metrics as text."""
        wanted = request._request.GET.get("format", "json")
        if wanted == "prometheus":
            return self.exposition()
        if wanted != "json":
            details = {"field": "format", "expected": "json or prometheus", "received": wanted[:100]}
            raise errors.InvalidRequest("There are two formats: json and prometheus.", details=details)
        return Response({"uptime_seconds": system.uptime(), **summary()})
