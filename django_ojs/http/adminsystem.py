"""The whole server as an operator sees it: `/admin/stats`, `/admin/system/config`, `/admin/audit` (admin 1.6, 1.8)."""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Mapping
from typing import Any

from django.db.models import Q
from rest_framework.request import Request
from rest_framework.response import Response

from django_ojs import clock
from django_ojs.conf import FIELDS, ojs_settings
from django_ojs.errors import NotFound
from django_ojs.http import access, query, system
from django_ojs.http.adminjobs import MAX_PAGE, PAGE, AdminView, using
from django_ojs.http.adminqueues import throughput
from django_ojs.http.compat import whole
from django_ojs.http.pagination import Key, capped, paginate
from django_ojs.models import AuditEntry, Queue, Worker
from django_ojs.models.queue import TEMPLATE
from django_ojs.operations import counts, history, overview
from django_ojs.operations.history import Point
from django_ojs.policies.durations import format_instant
from django_ojs.states import State

PERIODS = {"1m": 60, "5m": 300, "1h": 3600, "1d": 86_400}
#: Settings that are code or may hold what is secret.
_UNSHOWN = {"AUTHENTICATION_CLASSES", "ENQUEUE_MIDDLEWARE", "EXECUTION_MIDDLEWARE", "REDACT"}


class AdminStats(AdminView):
    """`GET /admin/stats?queue=`"""

    scopes = {"GET": "admin.read"}
    rights = {"GET": "view_queue"}

    def get(self, request: Request) -> Response:
        chosen = _chosen(request)
        counted = counts.count_all(chosen, using=using()).values()
        done = overview.total(overview.rates(chosen).values())
        named = Queue.objects.using(using()).exclude(name=TEMPLATE)
        jobs = {state.value: sum(item.states[state] for item in counted) for state in State}
        # For the published command line.
        more = {
            "enqueued_per_min": overview.enqueued_per_minute(chosen, using=using()),
            "completed_per_min": done.completed_per_minute,
            "failed_per_min": done.failed_per_minute,
            "avg_latency_ms": whole(round(done.mean_wait_ms or 0, 3)),
        }
        return Response({
            "queues": (named if chosen is None else named.filter(name__in=chosen)).count(),
            "workers": _workers(),
            "jobs": jobs,
            "throughput": throughput(done) | more,
            "uptime_seconds": system.uptime(),
        })  # fmt: skip


class AdminHistory(AdminView):
    """`GET /admin/stats/history?period=1m|5m|1h|1d&since=&until=&queue=`: minutes for two days, hours for thirty."""

    scopes = {"GET": "admin.read"}
    rights = {"GET": "view_queue"}

    def get(self, request: Request) -> Response:
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


class AdminConfig(AdminView):
    """`GET /admin/system/config`, and `/admin/config`: the settings in force, without paths of code and rules."""

    scopes = {"GET": "admin.read"}
    rights = {"GET": "view_queue"}

    def get(self, request: Request) -> Response:
        shown = {name: _plain(getattr(ojs_settings, name)) for name in sorted(FIELDS.keys() - _UNSHOWN)}
        return Response({"settings": shown, "redaction": bool(ojs_settings.REDACT)})


class AdminAudit(AdminView):
    """`GET /admin/audit?actor=&action=&target=&outcome=&since=&until=`, newest first; a final `*` is for any end."""

    scopes = {"GET": "admin.read"}
    rights = {"GET": "view_auditentry"}

    def get(self, request: Request) -> Response:
        if access.is_limited(request):
            raise NotFound("A key that is limited to queues or types has no audit log.")
        wanted = Q()
        for name in ("actor", "action", "target", "outcome"):
            if value := query.text(request, name):
                wanted &= Q(**({f"{name}__startswith": value[:-1]} if value.endswith("*") else {name: value}))
        for name, lookup in (("since", "time__gte"), ("until", "time__lt")):
            if (instant := query.instant(request, name)) is not None:
                wanted &= Q(**{lookup: instant})
        entries = AuditEntry.objects.using(using()).filter(wanted)
        order = [Key("id", descending=True, parse=int)]
        page = paginate(entries, request, order, maximum=MAX_PAGE, default=PAGE, count=capped)
        return Response({"items": [_entry(entry) for entry in page.rows], "pagination": page.pagination})


def _entry(entry: AuditEntry) -> dict[str, Any]:
    names = ("actor", "action", "target_type", "target", "outcome", "door", "source_ip", "request_id")
    told = {name: getattr(entry, name) for name in names}
    return {"id": entry.pk, "timestamp": format_instant(entry.time), **told, "detail": entry.detail or {}}


def _point(point: Point) -> dict[str, Any]:
    """What is made of the event log is null where nobody counts it, percentiles also where nothing was started."""
    mean = point.run_ms / point.completed if point.completed else 0
    waited = point.wait_ms / point.started if point.started else 0
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
        "avg_latency_ms": whole(round(waited, 3)),
        "avg_duration_ms": whole(round(mean, 3)),
    }


def _chosen(request: Request) -> list[str] | None:
    """The queues meant: that of the query, else those of the key, else all (None)."""
    queue = query.text(request, "queue")
    return list(access.queues_to_read(request, [queue] if queue else [])) or None


def _workers() -> int:
    edge = clock.now(using()) - dt.timedelta(seconds=ojs_settings.HEARTBEAT_TIMEOUT)
    return Worker.objects.using(using()).filter(last_seen_at__gte=edge).count()


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return str(value)
    return {str(k): _plain(v) for k, v in value.items()} if isinstance(value, Mapping) else value
