"""The server as a whole: what it says of itself, and what operators see and switch (admin 1.6 to 1.9, jobs 9.1).

To every caller it shows its manifest and its OpenAPI document; to operators its middleware, figures, scheduling,
settings, maintenance mode and the audit log.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from django.core.exceptions import DisallowedHost
from django.core.handlers.asgi import ASGIRequest
from django.db.models import QuerySet
from django_filters import FilterSet
from rest_framework import serializers
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response

import django_ojs
from django_ojs import clock, jsontext, middleware
from django_ojs.conf import FIELDS, ojs_settings
from django_ojs.errors import NotFound, PermissionDenied
from django_ojs.http import compat, fields, manifest, media, openapi, permissions, query
from django_ojs.http.auditing import audited
from django_ojs.http.base import OJSView, OJSViewSet, PublicView, using
from django_ojs.http.compat import whole
from django_ojs.http.openapi import documented
from django_ojs.http.pagination import CappedPagination, Key, paginate, parse_name
from django_ojs.http.permissions import principal, queue_limit
from django_ojs.http.probes import uptime
from django_ojs.http.query import OJSFilterBackend, ReaderFilter, read_instant, read_text
from django_ojs.http.queues import StateCountsSerializer, ThroughputSerializer, throughput
from django_ojs.http.serializers import (
    AnswerSerializer,
    BodySerializer,
    FlagField,
    InstantField,
    NothingSerializer,
    PaginationSerializer,
    TextField,
    rendered_by_show,
)
from django_ojs.models import AuditEntry, Maintenance, Queue
from django_ojs.models.fields import RawJSON, named
from django_ojs.models.queue import TEMPLATE
from django_ojs.queues import maintenance
from django_ojs.rules import durations
from django_ojs.rules.durations import format_instant
from django_ojs.rules.faults import fault, query_fault
from django_ojs.statistics import counters, history, latency, summary
from django_ojs.statistics.history import Point
from django_ojs.statistics.latency import Share
from django_ojs.statistics.throughput import rates, total

PERIODS = {"1m": 60, "5m": 300, "1h": 3600, "1d": 86_400}
#: Settings that are code or may hold what is secret.
_UNSHOWN = {"AUTHENTICATION_CLASSES", "ENQUEUE_MIDDLEWARE", "EXECUTION_MIDDLEWARE", "REDACT"}
#: Queues in one answer about scheduling: a sum over all of them is what it is for, so pages are large.
MAX_QUEUES = 1000
#: The names under which a request may say how long maintenance will take.
_DURATIONS = ("estimated_duration", "duration")


class ManifestSerializer(serializers.Serializer[Any]):
    specversion = serializers.CharField()
    implementation = serializers.DictField()
    conformance_level = serializers.IntegerField()
    protocols = serializers.ListField(child=serializers.CharField())
    backend = serializers.CharField()


class MiddlewareSerializer(serializers.Serializer[Any]):
    name = serializers.CharField()
    phase = serializers.CharField()
    order = serializers.IntegerField()


class MiddlewareChainsSerializer(serializers.Serializer[Any]):
    enqueue = MiddlewareSerializer(many=True)
    execution = MiddlewareSerializer(many=True)


class RatesSerializer(ThroughputSerializer):
    enqueued_per_min = serializers.FloatField(allow_null=True)
    completed_per_min = serializers.FloatField()
    failed_per_min = serializers.FloatField()
    avg_latency_ms = serializers.FloatField()


class StatsSerializer(serializers.Serializer[Any]):
    queues = serializers.IntegerField()
    workers = serializers.IntegerField()
    jobs = StateCountsSerializer()
    throughput = RatesSerializer()
    uptime_seconds = serializers.IntegerField()


@rendered_by_show
class HistoryPointSerializer(AnswerSerializer):
    """A period. What is made of the event log is null where the site keeps no metrics, percentiles also where nothing
    was started."""

    timestamp = InstantField()
    processed = serializers.IntegerField()
    completed = serializers.IntegerField()
    failed = serializers.IntegerField()
    started = serializers.IntegerField()
    enqueued = serializers.IntegerField(allow_null=True)
    latency_p50_ms = serializers.FloatField(allow_null=True)
    latency_p99_ms = serializers.FloatField(allow_null=True)
    avg_latency_ms = serializers.FloatField()
    avg_duration_ms = serializers.FloatField()

    def show(self, instance: Point) -> dict[str, Any]:
        p50, p99 = instance.percentiles(0.5, 0.99)
        return {
            "timestamp": format_instant(instance.time),
            "processed": instance.completed + instance.failed,
            "completed": instance.completed,
            "failed": instance.failed,
            "started": instance.started,
            "enqueued": instance.enqueued if ojs_settings.METRICS else None,
            "latency_p50_ms": p50 if p50 is None else whole(p50),
            "latency_p99_ms": p99 if p99 is None else whole(p99),
            "avg_latency_ms": whole(round(instance.mean_wait_ms or 0, 3)),
            "avg_duration_ms": whole(round(instance.mean_run_ms or 0, 3)),
        }


class HistorySerializer(serializers.Serializer[Any]):
    period = serializers.ChoiceField(list(PERIODS))
    kept_since = InstantField()
    data = HistoryPointSerializer(many=True)  # type: ignore[assignment]
    data_points = HistoryPointSerializer(many=True)


@rendered_by_show
class QueueShareSerializer(AnswerSerializer):
    """What a queue got. The context has `paused`, the names of the queues that are."""

    name = serializers.CharField()
    paused = serializers.BooleanField()
    dispatched = serializers.IntegerField()
    dispatch_count_1m = serializers.IntegerField()
    dispatch_ratio_1m = serializers.FloatField()
    avg_wait_ms = serializers.FloatField(allow_null=True)
    active_jobs = serializers.IntegerField()
    available_jobs = serializers.IntegerField()
    waiting_since = InstantField(allow_null=True)
    starved = serializers.BooleanField()

    def show(self, instance: Share) -> dict[str, Any]:
        wait = instance.mean_wait_ms
        return {
            "name": instance.queue,
            "paused": instance.queue in self.context["paused"],
            "dispatched": instance.dispatched,
            "dispatch_count_1m": instance.dispatched,
            "dispatch_ratio_1m": whole(round(instance.ratio, 4)),
            "avg_wait_ms": None if wait is None else whole(round(wait, 3)),
            "active_jobs": instance.active,
            "available_jobs": instance.available,
            "waiting_since": format_instant(instance.oldest) if instance.starved and instance.oldest else None,
            "starved": instance.starved,
        }


class SharesSerializer(serializers.Serializer[Any]):
    strategy = serializers.CharField()
    dispatched = serializers.IntegerField()
    active_jobs = serializers.IntegerField()
    starved_queues = serializers.IntegerField()
    queues = QueueShareSerializer(many=True)


class SchedulingSerializer(serializers.Serializer[Any]):
    strategy = serializers.ChoiceField([latency.STRATEGY])
    window = serializers.CharField()
    window_start = InstantField()
    window_end = InstantField()
    stats = SharesSerializer()
    queues = QueueShareSerializer(many=True)
    pagination = PaginationSerializer()


class SettingsSerializer(serializers.Serializer[Any]):
    settings = serializers.DictField()
    redaction = serializers.BooleanField()


@rendered_by_show
class MaintenanceSerializer(AnswerSerializer):
    """Maintenance mode, or None while it is off. The names come from three clients; each fact has all of its names."""

    maintenance = serializers.BooleanField()
    enabled = serializers.BooleanField()
    reason = serializers.CharField(allow_null=True)
    enabled_at = InstantField(allow_null=True)
    started_at = InstantField(allow_null=True)
    enabled_by = serializers.CharField(allow_null=True)
    estimated_end = InstantField(allow_null=True)
    ends_at = InstantField(allow_null=True)
    auto_end = serializers.BooleanField(allow_null=True)

    def show(self, instance: Maintenance | None) -> dict[str, Any]:
        return rendered(instance)


class MaintenanceSwitchSerializer(BodySerializer):
    """`{"enabled": true, "reason": …, "estimated_duration": "PT30M", "auto_end": false}`"""

    enabled = serializers.BooleanField()
    reason = TextField(max_length=maintenance.MAX_REASON)
    estimated_duration = TextField()
    duration = TextField()
    auto_end = FlagField()

    def to_internal_value(self, data: Any) -> dict[str, Any]:
        enabled = data.get("enabled")
        if not isinstance(enabled, bool):
            raise fault("enabled", "must be true or false", enabled)
        reason = fields.text(data, "reason", maximum=maintenance.MAX_REASON)
        lasting = _lasting(data)
        auto_end = fields.flag(data, "auto_end") if data.get("auto_end") is not None else None
        return {"enabled": enabled, "reason": reason, "lasting": lasting, "auto_end": auto_end}


class Manifest(PublicView):
    """`GET /ojs/manifest`, always as application/json."""

    @documented(answers={200: ManifestSerializer})
    def get(self, request: Request) -> Response:
        """What this server can do."""
        extensions = compat.extensions(manifest.EXTENSIONS, request._request)
        return Response(manifest.manifest(_base_url(request), extensions, streams=is_asgi(request)))

    def media_type(self) -> str:
        return media.JSON


class OpenAPI(PublicView):
    """`GET /openapi.json`: this server's description of itself, for tools."""

    @documented(answers={200: NothingSerializer}, errors=(404,))
    def get(self, request: Request) -> Response:
        """This document."""
        if not openapi.available():
            raise NotFound(
                "The OpenAPI document needs drf-spectacular, which this server does not have.",
                hint="Install django-ojs[openapi].",
            )
        url = request.path.removesuffix("/ojs/v1/openapi.json")
        return Response(_openapi(url))

    def media_type(self) -> str:
        return media.JSON


class MiddlewareChains(OJSView):
    """`GET /middleware`: what is around every push and every run in this process, outermost first."""

    scopes = {"GET": "admin.read"}
    rights = {"GET": "view_job"}

    @documented(answers={200: MiddlewareChainsSerializer})
    def get(self, request: Request) -> Response:
        """What is around every push and every run."""
        chains = {"enqueue": middleware.enqueue_chain, "execution": middleware.execution_chain}
        return Response({phase: [
            {"name": middleware.dotted_name(entry).rpartition(".")[2], "phase": phase, "order": order}
            for order, entry in enumerate(chain.list())
        ] for phase, chain in chains.items()})  # fmt: skip


class ServerViewSet(OJSViewSet):
    """What there is once: `/admin/stats`, `/admin/stats/history`, `/admin/scheduling/stats`, `/admin/system/config` and
    `/admin/system/maintenance`."""

    model_name = "queue"
    operator_serializer_class = MaintenanceSerializer
    action_serializers = {
        "stats": StatsSerializer, "history": HistorySerializer, "scheduling": SchedulingSerializer,
        "config": SettingsSerializer,
    }  # fmt: skip
    body_serializers = {"switch": MaintenanceSwitchSerializer}
    action_rights = {"maintenance": "view_maintenance", "switch": "change_maintenance"}

    @documented(query="queue")
    @action(detail=False, methods=["get"])
    def stats(self, request: Request) -> Response:
        """Queues, workers, counts and rates.

        Of all queues or of one: `?queue=`.
        """
        chosen = _chosen(request)
        counted = counters.count_all(chosen, using=using()).values()
        done = total(rates(chosen).values())
        named = Queue.objects.using(using()).exclude(name=TEMPLATE)
        # For the published command line.
        more = {
            "enqueued_per_min": latency.enqueued_per_minute(chosen, using=using()),
            "completed_per_min": done.completed_per_minute,
            "failed_per_min": done.failed_per_minute,
            "avg_latency_ms": whole(round(done.mean_wait_ms or 0, 3)),
        }
        return Response({
            "queues": (named if chosen is None else named.filter(name__in=chosen)).count(),
            "workers": summary.workers_active(using=using()),
            "jobs": counters.totals(counted),
            "throughput": throughput(done) | more,
            "uptime_seconds": uptime(),
        })  # fmt: skip

    @documented(query="period since until queue")
    @action(detail=False, methods=["get"], url_path="stats/history")
    def history(self, request: Request) -> Response:
        """Throughput and latencies over time.

        `?period=1m|5m|1h|1d&since=&until=&queue=`: minutes for two days, hours for thirty.
        """
        name = query.text(request, "period") or "5m"
        if name not in PERIODS:
            raise query_fault("period", f"must be one of {', '.join(PERIODS)}", name)
        now = clock.now(using())
        until = query.instant(request, "until") or now
        since = query.instant(request, "since") or min(until, now) - dt.timedelta(hours=1)
        if since > until:
            raise query_fault("since", "must not lie after until", format_instant(since))
        chosen = _chosen(request)
        queue = chosen[0] if chosen and len(chosen) == 1 else ""
        if chosen and not queue:
            raise query_fault("queue", "must be given, since the key is limited to several", "")
        period = dt.timedelta(seconds=PERIODS[name])
        found = history.history(period, since, until, queue, using=using())
        points = HistoryPointSerializer(many=True).to_representation(found)
        kept = format_instant(history.kept_since(period, now))
        return Response({"period": name, "kept_since": kept, "data": points, "data_points": points})

    @documented(query="limit offset page per_page cursor")
    @action(detail=False, methods=["get"], url_path="scheduling/stats")
    def scheduling(self, request: Request) -> Response:
        """What each queue got in the last minute, and which of them starve."""
        limit = queue_limit(request)
        named = Queue.objects.using(using()).exclude(name=TEMPLATE)
        if limit is not None:
            named = named.filter(name__in=limit)
        order = [Key("name", descending=False, parse=parse_name)]
        page = paginate(named, request, order, maximum=MAX_QUEUES, default=MAX_QUEUES)
        paused = {queue.name for queue in page.rows if queue.paused}
        found = latency.spread([queue.name for queue in page.rows], paused, using=using())
        lines = QueueShareSerializer(many=True, context={"paused": paused}).to_representation(found.shares)
        totals = {
            "strategy": latency.STRATEGY,
            "dispatched": found.dispatched,
            "active_jobs": sum(share.active for share in found.shares),
            "starved_queues": sum(share.starved for share in found.shares),
        }
        facts = {
            "strategy": latency.STRATEGY,
            "window": "PT1M",
            "window_start": format_instant(found.begin),
            "window_end": format_instant(found.end),
            "stats": {**totals, "queues": lines},
        }
        return Response(page.listed(lines, "queues", **facts))

    @action(detail=False, methods=["get"], url_path="system/config", aliases=("config",))
    def config(self, request: Request) -> Response:
        """The settings in force.

        Without paths of code and rules.
        """
        shown = {name: _plain(getattr(ojs_settings, name)) for name in sorted(FIELDS.keys() - _UNSHOWN)}
        return Response({"settings": shown, "redaction": bool(ojs_settings.REDACT)})

    @action(detail=False, methods=["get"], url_path="system/maintenance", aliases=("maintenance",))
    def maintenance(self, request: Request) -> Response:
        """Whether maintenance mode is on, why and until when."""
        return Response(self.represent(maintenance.current(using=using())))

    @maintenance.mapping.post
    @audited("maintenance.switch")
    def switch(self, request: Request) -> Response:
        """Stop all delivery, promotion and schedules, or let them go on."""
        body = self.payload()
        if permissions.is_limited(request):
            raise PermissionDenied(
                "A key that is limited to queues or types cannot stop all of them.",
                details={"principal": principal(request), "operation": maintenance.STARTED},
            )
        wanted = self.validated(body)
        enabled = wanted.pop("enabled")
        self.act.action = maintenance.STARTED if enabled else maintenance.STOPPED
        if enabled:
            mode = maintenance.start(**wanted, by=principal(request), using=using())
            self.act.detail |= maintenance.audit_detail(mode)
            return Response(self.represent(mode))
        ended = maintenance.stop(using=using())
        self.act.detail |= maintenance.audit_detail(ended) if ended else {}
        return Response(self.represent(None))


class AuditEntrySerializer(AnswerSerializer):
    """What one operator did once."""

    id = serializers.IntegerField()
    timestamp = InstantField(source="time")
    actor = serializers.CharField()
    action = serializers.CharField()
    target_type = serializers.CharField()
    target = serializers.CharField()
    outcome = serializers.ChoiceField(["success", "denied"])
    door = serializers.CharField()
    source_ip = serializers.CharField()
    request_id = serializers.CharField()
    detail = serializers.SerializerMethodField()

    def get_detail(self, entry: AuditEntry) -> dict[str, Any]:
        return entry.detail or {}


class AuditFilter(FilterSet):  # type: ignore[misc]
    """What `?actor=&action=&target=&outcome=&since=&until=` asks for; a final `*` is for any end."""

    actor = ReaderFilter(read_text, method="of_name")
    action = ReaderFilter(read_text, method="of_name")
    target = ReaderFilter(read_text, method="of_name")
    outcome = ReaderFilter(read_text, method="of_name")
    since = ReaderFilter(read_instant, field_name="time", lookup_expr="gte")
    until = ReaderFilter(read_instant, field_name="time", lookup_expr="lt")

    def of_name(self, entries: QuerySet[AuditEntry], name: str, value: str) -> QuerySet[AuditEntry]:
        return entries.filter(named(name, value))


class AuditViewSet(OJSViewSet):
    """`/admin/audit`: what operators did, newest first."""

    model_name = "auditentry"
    operator_serializer_class = AuditEntrySerializer
    filter_backends = (OJSFilterBackend,)
    filterset_class = AuditFilter
    pagination_class = CappedPagination
    ordering = (Key("id", descending=True, parse=int),)

    def get_queryset(self) -> Any:
        if permissions.is_limited(self.request):
            raise NotFound("A key that is limited to queues or types has no audit log.")
        return AuditEntry.objects.using(using())

    def list(self, request: Request) -> Response:
        """What operators did."""
        return self.listed(self.get_queryset())


def is_asgi(request: Request) -> bool:
    """Whether the server that brought this request can send an answer that does not end."""
    return isinstance(request._request, ASGIRequest)


def rendered(mode: Maintenance | None) -> dict[str, Any]:
    """The answer. While the mode is off, all but the switch is null."""
    began = format_instant(mode.enabled_at) if mode else None
    end = format_instant(mode.estimated_end) if mode and mode.estimated_end else None
    return {
        "maintenance": mode is not None,
        "enabled": mode is not None,
        "reason": mode.reason or None if mode else None,
        "enabled_at": began,
        "started_at": began,
        "enabled_by": mode.enabled_by or None if mode else None,
        "estimated_end": end,
        "ends_at": end,
        "auto_end": mode.auto_end if mode else None,
    }


@lru_cache(maxsize=8)
def _openapi(url: str) -> RawJSON:
    """The document as text: it changes with the code only."""
    return RawJSON(jsontext.dumps(openapi.document(django_ojs.__version__, url)))


def _base_url(request: Request) -> str:
    """Scheme, host and whatever lies before `/ojs` where the site included our URLs."""
    prefix = request.path.removesuffix("/ojs/manifest")
    try:
        return request._request.build_absolute_uri(prefix or "/").rstrip("/")
    except DisallowedHost:
        return prefix


def _lasting(body: Mapping[str, Any]) -> dt.timedelta | None:
    """How long it will take, under either name; None where nothing is said."""
    given = [(name, body[name]) for name in _DURATIONS if body.get(name) is not None]
    found = []
    for name, value in given:
        try:
            found.append(durations.parse_duration_ms(value))
        except ValueError as error:
            raise fault(name, str(error), value) from error
    if len(set(found)) > 1:
        raise fault("duration", "must say the same as estimated_duration, or be left out", body["duration"])
    return dt.timedelta(milliseconds=found[0]) if found else None


def _chosen(request: Request) -> list[str] | None:
    """The queues meant: that of the query, else those of the key, else all (None)."""
    queue = query.text(request, "queue")
    return list(permissions.queues_to_read(request, [queue] if queue else [])) or None


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return str(value)
    return {str(k): _plain(v) for k, v in value.items()} if isinstance(value, Mapping) else value
