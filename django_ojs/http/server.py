"""The server as a whole: what it says of itself, and what operators see and switch (admin 1.6 to 1.9, jobs 9.1).

To every caller it shows its manifest and its OpenAPI document; to operators its middleware, figures, scheduling,
settings, maintenance mode and the audit log.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, ClassVar

from django.core.exceptions import DisallowedHost
from django.core.handlers.asgi import ASGIRequest
from django.db.models import QuerySet
from django_filters import FilterSet
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

import django_ojs
from django_ojs import clock, jsontext, middleware, spellings
from django_ojs.conf import FIELDS, ojs_settings
from django_ojs.errors import NotFound
from django_ojs.http import compat, fields, links, manifest, media, openapi, permissions, query
from django_ojs.http.base import OJSView, OJSViewSet, PublicView, using
from django_ojs.http.compat import whole
from django_ojs.http.operation import operation
from django_ojs.http.pagination import CappedPagination, SortKey, paginate, parse_name
from django_ojs.http.permissions import principal, queue_limit
from django_ojs.http.probes import uptime
from django_ojs.http.query import OJSFilterBackend, ReaderFilter, WordFilter, read_instant, read_text
from django_ojs.http.queues import StateCountsSerializer, ThroughputSerializer
from django_ojs.http.serializers import (
    AnswerSerializer,
    BodySerializer,
    EitherField,
    FilledField,
    FlagField,
    InstantField,
    MillisecondsField,
    NothingSerializer,
    NumberField,
    PaginationSerializer,
    TextField,
    shared,
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
#: Settings that name queues and job types, which a limited key may not reach.
_OF_QUEUES = {"ALERTS", "REPLAY_RULES"}
#: Queues in one answer about scheduling: a sum over all of them is what it is for, so pages are large.
MAX_QUEUES = 1000
#: The names under which a request may say how long maintenance will take.
_DURATIONS = spellings.MAINTENANCE.names("estimated_duration")


class ImplementationSerializer(AnswerSerializer):
    name = serializers.CharField()
    version = serializers.CharField()
    language = serializers.CharField()
    backend = serializers.CharField()
    repository = serializers.CharField(required=False)


class PayloadLimitsSerializer(AnswerSerializer):
    max_envelope_bytes = serializers.IntegerField()
    max_meta_bytes = serializers.IntegerField()
    max_result_bytes = serializers.IntegerField()
    max_batch_size = serializers.IntegerField()
    max_batch_bytes = serializers.IntegerField()
    max_queue_name_bytes = serializers.IntegerField()
    max_job_type_bytes = serializers.IntegerField()
    supported_compression = serializers.ListField(child=serializers.CharField())
    external_references = serializers.BooleanField()
    chunking = serializers.BooleanField()
    per_queue_limits = serializers.BooleanField()


class EventDeliverySerializer(AnswerSerializer):
    delivery = serializers.CharField()
    delivery_guarantee = serializers.CharField()
    ordering = serializers.CharField()
    retention_period = serializers.CharField()
    max_count = serializers.IntegerField(allow_null=True)
    transports = serializers.ListField(child=serializers.CharField())


class EndpointsSerializer(AnswerSerializer):
    base_url = serializers.CharField()
    manifest = serializers.CharField()
    health = serializers.CharField()
    events = serializers.CharField()
    websocket = serializers.CharField(required=False)


class ExtensionSerializer(AnswerSerializer):
    name = serializers.CharField()
    uri = serializers.CharField()
    version = serializers.CharField()


class ExtensionsSerializer(AnswerSerializer):
    """The extensions of the protocol that are complete."""

    official = ExtensionSerializer(many=True)
    experimental = ExtensionSerializer(many=True)


class ManifestSerializer(AnswerSerializer):
    """What this server can do (binding 2.2). Clients that say the version of the protocol that they speak get the names
    of the extensions as a list."""

    specversion = serializers.CharField()
    ojs_version = serializers.CharField()
    implementation = ImplementationSerializer()
    conformance_level = serializers.IntegerField()
    conformance_tier = serializers.ChoiceField(["runtime", "full"])
    protocols = serializers.ListField(child=serializers.CharField())
    backend = serializers.CharField()
    capabilities = serializers.DictField(child=serializers.BooleanField())
    extensions: Any = EitherField(serializers.ListField(child=serializers.CharField()), ExtensionsSerializer())
    unique_job_strength = serializers.CharField()
    schema_validation = serializers.BooleanField()
    test_suite_version = serializers.CharField(required=False)
    test_suite_passed_at = InstantField(required=False)
    payload_limits = PayloadLimitsSerializer()
    events = EventDeliverySerializer()
    endpoints = EndpointsSerializer()


class _WaitingSinceField(InstantField):
    """Since when a job waits for which a queue starves; null where it does not starve."""

    def get_attribute(self, instance: Share) -> Any:
        return instance.oldest if instance.starved else None


class MiddlewareSerializer(AnswerSerializer):
    name = serializers.CharField()
    phase = serializers.CharField()
    order = serializers.IntegerField()


class MiddlewareChainsSerializer(AnswerSerializer):
    enqueue = MiddlewareSerializer(many=True)
    execution = MiddlewareSerializer(many=True)


class RatesSerializer(ThroughputSerializer):
    """The same, and more for the published command line."""

    enqueued_per_min = NumberField(allow_null=True)
    completed_per_min = NumberField(source="completed_per_minute")
    failed_per_min = NumberField(source="failed_per_minute")
    avg_latency_ms = MillisecondsField(source="mean_wait_ms")


class StatsSerializer(AnswerSerializer):
    queues = serializers.IntegerField()
    workers = serializers.IntegerField()
    jobs = StateCountsSerializer()
    throughput = RatesSerializer()
    uptime_seconds = serializers.IntegerField()


class HistoryPointSerializer(AnswerSerializer):
    """A period. What is made of the event log is null where the site keeps no metrics, percentiles also where nothing
    was started."""

    timestamp = InstantField(source="time")
    processed = serializers.SerializerMethodField()
    completed = serializers.IntegerField()
    failed = serializers.IntegerField()
    started = serializers.IntegerField()
    enqueued = serializers.SerializerMethodField()
    latency_p50_ms = serializers.SerializerMethodField()
    latency_p99_ms = serializers.SerializerMethodField()
    avg_latency_ms = MillisecondsField(source="mean_wait_ms")
    avg_duration_ms = MillisecondsField(source="mean_run_ms")

    def get_processed(self, point: Point) -> int:
        return point.completed + point.failed

    def get_enqueued(self, point: Point) -> int | None:
        return point.enqueued if ojs_settings.METRICS else None

    def get_latency_p50_ms(self, point: Point) -> float | None:
        return _percentile(point, 0.5)

    def get_latency_p99_ms(self, point: Point) -> float | None:
        return _percentile(point, 0.99)


class HistorySerializer(AnswerSerializer):
    period = serializers.ChoiceField(list(PERIODS))
    kept_since = InstantField()
    data = HistoryPointSerializer(many=True, source="points")  # type: ignore[assignment]
    data_points = HistoryPointSerializer(many=True, source="points")


class QueueShareSerializer(AnswerSerializer):
    """What a queue got. The context has `paused`, the names of the queues that are."""

    name = serializers.CharField(source="queue")
    paused = serializers.SerializerMethodField()
    dispatched = serializers.IntegerField()
    dispatch_count_1m = serializers.IntegerField(source="dispatched")
    dispatch_ratio_1m = serializers.SerializerMethodField()
    avg_wait_ms = MillisecondsField(source="mean_wait_ms", allow_null=True)
    active_jobs = serializers.IntegerField(source="active")
    available_jobs = serializers.IntegerField(source="available")
    waiting_since = _WaitingSinceField(source="oldest", allow_null=True)
    starved = serializers.BooleanField()

    def get_paused(self, share: Share) -> bool:
        return share.queue in self.context["paused"]

    def get_dispatch_ratio_1m(self, share: Share) -> float:
        return whole(round(share.ratio, 4))


class SharesSerializer(AnswerSerializer):
    strategy = serializers.CharField()
    dispatched = serializers.IntegerField()
    active_jobs = serializers.IntegerField()
    starved_queues = serializers.IntegerField()
    queues = QueueShareSerializer(many=True)


class SchedulingSerializer(AnswerSerializer):
    queues = QueueShareSerializer(many=True)
    strategy = serializers.ChoiceField([latency.STRATEGY])
    window = serializers.CharField()
    window_start = InstantField()
    window_end = InstantField()
    stats = SharesSerializer()
    total = serializers.IntegerField()
    pagination = PaginationSerializer()


class _SettingField(serializers.JSONField):
    """The value of a setting, of any type."""

    schema: ClassVar[dict[str, Any]] = {}

    def to_representation(self, value: Any) -> Any:
        return _plain(value)


class SettingValuesSerializer(AnswerSerializer):
    """The settings by their names, without those that are code or may hold what is secret. A key that is limited to
    queues or job types does not see those that name any."""

    def get_fields(self) -> dict[str, Any]:
        fields: dict[str, Any] = {name: _SettingField() for name in sorted(FIELDS.keys() - _UNSHOWN)}
        return fields | {name: _SettingField(required=False, allow_null=True) for name in sorted(_OF_QUEUES)}


class SettingsSerializer(AnswerSerializer):
    settings = SettingValuesSerializer()
    redaction = serializers.BooleanField()


class _IsOnField(serializers.BooleanField):
    def get_attribute(self, instance: Maintenance | None) -> Any:
        return instance is not None


class MaintenanceSerializer(AnswerSerializer):
    """Maintenance mode, or None while it is off: then all but the switch is null. The names come from three clients;
    each fact has all of its names."""

    maintenance = _IsOnField()
    enabled = _IsOnField()
    reason = FilledField(allow_null=True)
    enabled_at = InstantField(allow_null=True)
    started_at = InstantField(source="enabled_at", allow_null=True)
    enabled_by = FilledField(allow_null=True)
    estimated_end = InstantField(allow_null=True)
    ends_at = InstantField(source="estimated_end", allow_null=True)
    auto_end = serializers.BooleanField(allow_null=True)


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

    needs_database = False

    @operation(answers={200: ManifestSerializer})
    def get(self, request: Request) -> Response:
        """What this server can do."""
        extensions = compat.extensions(manifest.extensions(), request._request)
        found = manifest.manifest(_base_url(request), extensions, streams=is_asgi(request))
        return Response(shared(ManifestSerializer).to_representation(found))

    def media_type(self) -> str:
        return media.JSON


class OpenAPI(PublicView):
    """`GET /openapi.json`: this server's description of itself, for tools."""

    needs_database = False

    @operation(answers={200: NothingSerializer}, errors=(404,))
    def get(self, request: Request) -> Response:
        """This document."""
        if not openapi.available():
            raise NotFound(
                "The OpenAPI document needs drf-spectacular, which this server does not have.",
                hint="Install django-ojs[openapi].",
            )
        return Response(_openapi(links.prefix(request)))

    def media_type(self) -> str:
        return media.JSON


class MiddlewareChains(OJSView):
    """`GET /middleware`: what is around every push and every run in this process, outermost first."""

    @operation(scope="admin.read", right="view_job", answers={200: MiddlewareChainsSerializer})
    def get(self, request: Request) -> Response:
        """What is around every push and every run."""
        chains = {"enqueue": middleware.enqueue_chain, "execution": middleware.execution_chain}
        return Response(MiddlewareChainsSerializer({phase: [
            {"name": middleware.dotted_name(entry).rpartition(".")[2], "phase": phase, "order": order}
            for order, entry in enumerate(chain.list())
        ] for phase, chain in chains.items()}).data)  # fmt: skip


class ServerViewSet(OJSViewSet):
    """What there is once: `/admin/stats`, `/admin/stats/history`, `/admin/scheduling/stats`, `/admin/system/config` and
    `/admin/system/maintenance`."""

    model_name = "queue"
    operator_serializer_class = MaintenanceSerializer

    @operation(detail=False, methods=["get"], answer=StatsSerializer, query="queue")
    def stats(self, request: Request) -> Response:
        """Queues, workers, counts and rates.

        Of all queues or of one: `?queue=`.
        """
        permissions.check_figures(request)
        chosen = _chosen(request)
        counted = counters.count_all(chosen, using=using()).values()
        done = total(rates(chosen).values())
        named = Queue.objects.using(using()).exclude(name=TEMPLATE)
        enqueued = latency.enqueued_per_minute(chosen, using=using())
        return Response(self.represent({
            "queues": (named if chosen is None else named.filter(name__in=chosen)).count(),
            "workers": summary.workers_active(queue_limit(request), using=using()),
            "jobs": counters.totals(counted),
            "throughput": {**dataclasses.asdict(done), "mean_wait_ms": done.mean_wait_ms, "enqueued_per_min": enqueued},
            "uptime_seconds": uptime(),
        }))  # fmt: skip

    @operation(
        detail=False,
        methods=["get"],
        url_path="stats/history",
        answer=HistorySerializer,
        query="period since until queue",
    )
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
        permissions.check_figures(request)
        chosen = _chosen(request)
        queue = chosen[0] if chosen and len(chosen) == 1 else ""
        if chosen and not queue:
            raise query_fault("queue", "must be given, since the key is limited to several", "")
        period = dt.timedelta(seconds=PERIODS[name])
        found = history.history(period, since, until, queue, using=using())
        kept = history.kept_since(period, now)
        return Response(self.represent({"period": name, "kept_since": kept, "points": found}))

    @operation(
        detail=False,
        methods=["get"],
        url_path="scheduling/stats",
        answer=SchedulingSerializer,
        query="limit offset page per_page cursor",
    )
    def scheduling(self, request: Request) -> Response:
        """What each queue got in the last minute, and which of them starve."""
        permissions.check_figures(request)
        limit = queue_limit(request)
        named = Queue.objects.using(using()).exclude(name=TEMPLATE)
        if limit is not None:
            named = named.filter(name__in=limit)
        order = [SortKey("name", descending=False, parse=parse_name)]
        page = paginate(named, request, order, maximum=MAX_QUEUES, default=MAX_QUEUES)
        paused = {queue.name for queue in page.rows if queue.paused}
        found = latency.spread([queue.name for queue in page.rows], paused, using=using())
        totals = {
            "strategy": latency.STRATEGY,
            "dispatched": found.dispatched,
            "active_jobs": sum(share.active for share in found.shares),
            "starved_queues": sum(share.starved for share in found.shares),
        }
        facts = {
            "strategy": latency.STRATEGY,
            "window": "PT1M",
            "window_start": found.begin,
            "window_end": found.end,
            "stats": {**totals, "queues": found.shares},
        }
        shown = self.get_serializer(context={**self.get_serializer_context(), "paused": paused})
        return Response(shown.to_representation(page.listed(found.shares, "queues", **facts)))

    @operation(detail=False, methods=["get"], url_path="system/config", aliases=("config",), answer=SettingsSerializer)
    def config(self, request: Request) -> Response:
        """The settings in force.

        Without paths of code and rules.
        """
        shown = self.represent({"settings": ojs_settings, "redaction": bool(ojs_settings.REDACT)})
        for name in _OF_QUEUES if permissions.is_limited(request) else ():
            del shown["settings"][name]
        return Response(shown)

    @operation(
        detail=False, methods=["get"], url_path="system/maintenance", aliases=("maintenance",), right="view_maintenance"
    )
    def maintenance(self, request: Request) -> Response:
        """Whether maintenance mode is on, why and until when."""
        return Response(self.represent(maintenance.current(using=using())))

    @operation(
        at=maintenance,
        methods=["post"],
        right="change_maintenance",
        body=MaintenanceSwitchSerializer,
        audit="maintenance.switch",
    )
    def switch(self, request: Request) -> Response:
        """Stop all delivery, promotion and schedules, or let them go on."""
        body = self.payload()
        if permissions.is_limited(request):
            message = "A key that is limited to queues or types cannot stop all of them."
            raise permissions.denied(request, message, maintenance.STARTED)
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
    """What `?actor=&action=&target=&outcome=&since=&until=` asks for; a final `*` of a name is for any end."""

    actor = ReaderFilter(read_text, method="of_name")
    action = ReaderFilter(read_text, method="of_name")
    target = ReaderFilter(read_text, method="of_name")
    outcome = WordFilter({**{word: word for word in AuditEntry.Outcome.values}, "failure": AuditEntry.Outcome.DENIED})
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
    ordering = (SortKey("id", descending=True, parse=int),)

    def get_queryset(self) -> Any:
        if permissions.is_limited(self.request):
            raise NotFound("A key that is limited to queues or types has no audit log.")
        return AuditEntry.objects.using(using())

    @operation(errors=(404,))
    def list(self, request: Request) -> Response:
        """What operators did."""
        return self.listed(self.get_queryset())


def is_asgi(request: Request) -> bool:
    """Whether the server that brought this request can send an answer that does not end."""
    return isinstance(request._request, ASGIRequest)


def rendered(mode: Maintenance | None) -> dict[str, Any]:
    """Maintenance mode as programs see it."""
    shown: dict[str, Any] = shared(MaintenanceSerializer).to_representation(mode)
    return shown


def _percentile(point: Point, share: float) -> float | None:
    found = point.percentiles(share)[0]
    return None if found is None else whole(found)


@lru_cache(maxsize=8)
def _openapi(url: str) -> RawJSON:
    """The document as text: it changes with the code only."""
    return RawJSON(jsontext.dumps(openapi.document(django_ojs.__version__, url)))


def _base_url(request: Request) -> str:
    """Scheme, host and whatever lies before `/ojs` where the site included our URLs."""
    below = links.prefix(request)
    if hasattr(request._request, "binding"):  # over gRPC, where a call names no host
        return below
    try:
        return request._request.build_absolute_uri(below or "/").rstrip("/")
    except DisallowedHost:
        return below


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
