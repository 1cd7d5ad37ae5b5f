"""The whole server as operators see it: figures, scheduling, settings, maintenance mode and the audit log (admin 1.6 to
1.9, jobs 9.1)."""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Mapping
from typing import Any

from django.db.models import Q
from rest_framework import serializers
from rest_framework.decorators import action
from rest_framework.filters import BaseFilterBackend
from rest_framework.request import Request
from rest_framework.response import Response

from django_ojs import clock
from django_ojs.conf import FIELDS, ojs_settings
from django_ojs.errors import NotFound, PermissionDenied
from django_ojs.http import fields, permissions, query, system
from django_ojs.http.auditing import audited
from django_ojs.http.base import OJSViewSet, using
from django_ojs.http.compat import whole
from django_ojs.http.pagination import CappedPagination, Key, paginate, parse_name
from django_ojs.http.permissions import principal, queue_limit
from django_ojs.http.queues import throughput
from django_ojs.http.serializers import AnswerSerializer, BodySerializer, FlagField, InstantField, TextField
from django_ojs.models import AuditEntry, Maintenance, Queue
from django_ojs.models.fields import named
from django_ojs.models.queue import TEMPLATE
from django_ojs.queues import maintenance
from django_ojs.rules import durations
from django_ojs.rules.durations import format_instant
from django_ojs.statistics import counters, history, latency, shares, summary
from django_ojs.statistics.history import Point
from django_ojs.statistics.shares import Share
from django_ojs.statistics.throughput import rates, total

PERIODS = {"1m": 60, "5m": 300, "1h": 3600, "1d": 86_400}
#: Settings that are code or may hold what is secret.
_UNSHOWN = {"AUTHENTICATION_CLASSES", "ENQUEUE_MIDDLEWARE", "EXECUTION_MIDDLEWARE", "REDACT"}
#: Queues in one answer about scheduling: a sum over all of them is what it is for, so pages are large.
MAX_QUEUES = 1000
#: The names under which a request may say how long maintenance will take.
_DURATIONS = ("estimated_duration", "duration")


class MaintenanceSerializer(AnswerSerializer):
    """Maintenance mode, or None while it is off. The names come from three clients; each fact has all of its names."""

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
            raise fields.fault("enabled", "must be true or false", enabled)
        reason = fields.text(data, "reason", maximum=maintenance.MAX_REASON)
        lasting = _lasting(data)
        auto_end = fields.flag(data, "auto_end") if data.get("auto_end") is not None else None
        return {"enabled": enabled, "reason": reason, "lasting": lasting, "auto_end": auto_end}


class ServerViewSet(OJSViewSet):
    """What there is once: `/admin/stats`, `/admin/stats/history`, `/admin/scheduling/stats`, `/admin/system/config` and
    `/admin/system/maintenance`."""

    model_name = "queue"
    serializer_class = MaintenanceSerializer
    operator_serializer_class = MaintenanceSerializer
    body_serializers = {"switch": MaintenanceSwitchSerializer}
    action_rights = {"maintenance": "view_maintenance", "switch": "change_maintenance"}

    @action(detail=False, methods=["get"])
    def stats(self, request: Request) -> Response:
        """Queues, workers, jobs and rates, of all queues or of one: `?queue=`."""
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
            "uptime_seconds": system.uptime(),
        })  # fmt: skip

    @action(detail=False, methods=["get"], url_path="stats/history")
    def history(self, request: Request) -> Response:
        """`?period=1m|5m|1h|1d&since=&until=&queue=`: minutes for two days, hours for thirty."""
        name = query.text(request, "period") or "5m"
        if name not in PERIODS:
            raise query.fault("period", f"must be one of {', '.join(PERIODS)}", name)
        now = clock.now(using())
        until = query.instant(request, "until") or now
        since = query.instant(request, "since") or min(until, now) - dt.timedelta(hours=1)
        if since > until:
            raise query.fault("since", "must not lie after until", format_instant(since))
        chosen = _chosen(request)
        queue = chosen[0] if chosen and len(chosen) == 1 else ""
        if chosen and not queue:
            raise query.fault("queue", "must be given, since the key is limited to several", "")
        period = dt.timedelta(seconds=PERIODS[name])
        points = [_point(point) for point in history.history(period, since, until, queue, using=using())]
        kept = format_instant(history.kept_since(period, now))
        return Response({"period": name, "kept_since": kept, "data": points, "data_points": points})

    @action(detail=False, methods=["get"], url_path="scheduling/stats")
    def scheduling(self, request: Request) -> Response:
        """What each queue got in the last whole minute, and which of them starve."""
        limit = queue_limit(request)
        named = Queue.objects.using(using()).exclude(name=TEMPLATE)
        if limit is not None:
            named = named.filter(name__in=limit)
        order = [Key("name", descending=False, parse=parse_name)]
        page = paginate(named, request, order, maximum=MAX_QUEUES, default=MAX_QUEUES)
        paused = {queue.name for queue in page.rows if queue.paused}
        found = shares.spread([queue.name for queue in page.rows], paused, using=using())
        lines = [_line(share, share.queue in paused) for share in found.shares]
        totals = {
            "strategy": shares.STRATEGY,
            "dispatched": found.dispatched,
            "active_jobs": sum(share.active for share in found.shares),
            "starved_queues": sum(share.starved for share in found.shares),
        }
        facts = {
            "strategy": shares.STRATEGY,
            "window": "PT1M",
            "window_start": format_instant(found.begin),
            "window_end": format_instant(found.end),
            "stats": {**totals, "queues": lines},
        }
        return Response(page.listed(lines, "queues", **facts))

    @action(detail=False, methods=["get"], url_path="system/config", aliases=("config",))
    def config(self, request: Request) -> Response:
        """The settings in force, without paths of code and rules."""
        shown = {name: _plain(getattr(ojs_settings, name)) for name in sorted(FIELDS.keys() - _UNSHOWN)}
        return Response({"settings": shown, "redaction": bool(ojs_settings.REDACT)})

    @action(detail=False, methods=["get"], url_path="system/maintenance", aliases=("maintenance",))
    def maintenance(self, request: Request) -> Response:
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
    outcome = serializers.CharField()
    door = serializers.CharField()
    source_ip = serializers.CharField()
    request_id = serializers.CharField()
    detail = serializers.SerializerMethodField()

    def get_detail(self, entry: AuditEntry) -> dict[str, Any]:
        return entry.detail or {}


class AuditFilterBackend(BaseFilterBackend):
    """`?actor=&action=&target=&outcome=&since=&until=`; a final `*` is for any end."""

    def filter_queryset(self, request: Request, queryset: Any, view: Any) -> Any:
        wanted = Q()
        for name in ("actor", "action", "target", "outcome"):
            if value := query.text(request, name):
                wanted &= named(name, value)
        for name, lookup in (("since", "time__gte"), ("until", "time__lt")):
            if (instant := query.instant(request, name)) is not None:
                wanted &= Q(**{lookup: instant})
        return queryset.filter(wanted)


class AuditViewSet(OJSViewSet):
    """`/admin/audit`: what operators did, newest first."""

    model_name = "auditentry"
    operator_serializer_class = AuditEntrySerializer
    filter_backends = (AuditFilterBackend,)
    pagination_class = CappedPagination
    ordering = (Key("id", descending=True, parse=int),)

    def get_queryset(self) -> Any:
        if permissions.is_limited(self.request):
            raise NotFound("A key that is limited to queues or types has no audit log.")
        return AuditEntry.objects.using(using())

    def list(self, request: Request) -> Response:
        return self.listed(self.get_queryset())


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


def _lasting(body: Mapping[str, Any]) -> dt.timedelta | None:
    """How long it will take, under either name; None where nothing is said."""
    given = [(name, body[name]) for name in _DURATIONS if body.get(name) is not None]
    found = []
    for name, value in given:
        try:
            found.append(durations.parse_duration_ms(value))
        except ValueError as error:
            raise fields.fault(name, str(error), value) from error
    if len(set(found)) > 1:
        raise fields.fault("duration", "must say the same as estimated_duration, or be left out", body["duration"])
    return dt.timedelta(milliseconds=found[0]) if found else None


def _line(share: Share, paused: bool) -> dict[str, Any]:
    return {
        "name": share.queue,
        "paused": paused,
        "dispatched": share.dispatched,
        "dispatch_count_1m": share.dispatched,
        "dispatch_ratio_1m": whole(round(share.ratio, 4)),
        "avg_wait_ms": None if share.mean_wait_ms is None else whole(round(share.mean_wait_ms, 3)),
        "active_jobs": share.active,
        "available_jobs": share.available,
        "waiting_since": format_instant(share.oldest) if share.starved and share.oldest else None,
        "starved": share.starved,
    }


def _point(point: Point) -> dict[str, Any]:
    """What is made of the event log is null where nobody counts it, percentiles also where nothing was started."""
    p50, p99 = point.percentiles(0.5, 0.99)
    return {
        "timestamp": format_instant(point.time),
        "processed": point.completed + point.failed,
        "completed": point.completed,
        "failed": point.failed,
        "started": point.started,
        "enqueued": point.enqueued if ojs_settings.METRICS else None,
        "latency_p50_ms": p50 if p50 is None else whole(p50),
        "latency_p99_ms": p99 if p99 is None else whole(p99),
        "avg_latency_ms": whole(round(point.mean_wait_ms or 0, 3)),
        "avg_duration_ms": whole(round(point.mean_run_ms or 0, 3)),
    }


def _chosen(request: Request) -> list[str] | None:
    """The queues meant: that of the query, else those of the key, else all (None)."""
    queue = query.text(request, "queue")
    return list(permissions.queues_to_read(request, [queue] if queue else [])) or None


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return str(value)
    return {str(k): _plain(v) for k, v in value.items()} if isinstance(value, Mapping) else value
