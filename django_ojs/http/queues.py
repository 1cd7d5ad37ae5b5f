"""Queues: list, create, configure, figures, delete, pause, resume (binding 2.5, jobs 4, admin 1.2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from django.db import router
from django.db.models import Count
from django.utils.encoding import iri_to_uri
from rest_framework import serializers
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response

from django_ojs import clock
from django_ojs.errors import NotFound
from django_ojs.http import compat, fields
from django_ojs.http.auditing import audited
from django_ojs.http.base import OJSViewSet
from django_ojs.http.bulk import PurgedSerializer, PurgeSerializer, purge_queue
from django_ojs.http.compat import whole
from django_ojs.http.openapi import documented
from django_ojs.http.pagination import Key, parse_name
from django_ojs.http.permissions import check_queue, principal, queue_limit
from django_ojs.http.serializers import (
    AnswerSerializer,
    BodySerializer,
    InstantField,
    ObjectField,
    TextField,
    rendered_by_show,
)
from django_ojs.models import Job, Queue
from django_ojs.models.queue import TEMPLATE
from django_ojs.queues import configuration
from django_ojs.queues.configuration import (
    MAX_REASON,
    check_name,
    configure,
    create,
    document,
    effective,
    pause,
    resume,
)
from django_ojs.queues.deletion import remove
from django_ojs.rules import names
from django_ojs.rules.attributes import DEFAULT_QUEUE
from django_ojs.rules.durations import format_instant
from django_ojs.rules.faults import shorten
from django_ojs.states import State
from django_ojs.statistics import counters, latency
from django_ojs.statistics.counters import Counts
from django_ojs.statistics.throughput import Rate, Stats, rates, stats

_NO_WAITS = {"p50": 0, "p95": 0, "p99": 0}


class StateCountsSerializer(serializers.Serializer[Any]):
    """Jobs by state: every state, none missing."""

    scheduled = serializers.IntegerField()
    available = serializers.IntegerField()
    pending = serializers.IntegerField()
    active = serializers.IntegerField()
    completed = serializers.IntegerField()
    retryable = serializers.IntegerField()
    cancelled = serializers.IntegerField()
    discarded = serializers.IntegerField()


class ThroughputSerializer(serializers.Serializer[Any]):
    processed_per_minute = serializers.FloatField()
    failed_per_minute = serializers.FloatField()


class LatencySerializer(serializers.Serializer[Any]):
    p50 = serializers.FloatField()
    p95 = serializers.FloatField()
    p99 = serializers.FloatField()


@rendered_by_show
class QueueSerializer(StateCountsSerializer, AnswerSerializer):
    """A queue as the public door shows it: its state, and how many jobs are in which state."""

    name = serializers.CharField()
    status = serializers.CharField()
    state = serializers.CharField()
    paused = serializers.BooleanField()
    created_at = InstantField()
    total = serializers.IntegerField()
    depth = serializers.IntegerField()

    def prepare(self, instances: Sequence[Queue]) -> None:
        self.counted = counters.count_all([queue.name for queue in instances])

    def show(self, instance: Queue) -> dict[str, Any]:
        return _summary(instance) | _tally(self.counted.get(instance.name))


class QueueStatsSerializer(serializers.Serializer[Any]):
    """The figures of a queue."""

    queue = serializers.JSONField()
    name = serializers.CharField()
    stats = serializers.DictField()


class QueueDetailSerializer(QueueStatsSerializer):
    """A queue with its figures and its configuration."""

    config = serializers.DictField()


@rendered_by_show
class AdminQueueSerializer(AnswerSerializer):
    """A queue as operators see it: with its rates and its waiting times."""

    name = serializers.CharField()
    state = serializers.CharField()
    paused = serializers.BooleanField()
    counts = StateCountsSerializer()
    throughput = ThroughputSerializer()
    latency_ms = LatencySerializer()
    created_at = InstantField()

    def prepare(self, instances: Sequence[Queue]) -> None:
        named = [queue.name for queue in instances]
        self.counted, self.rates = counters.count_all(named), rates(named)
        self.waits = latency.waits(named)

    def show(self, instance: Queue) -> dict[str, Any]:
        counted = self.counted.get(instance.name)
        return {
            "name": instance.name,
            "state": instance.status,
            "paused": instance.paused,
            "counts": {state.value: counted.states[state] if counted else 0 for state in State},
            "throughput": throughput(self.rates.get(instance.name)),
            "latency_ms": self.waits.get(instance.name, _NO_WAITS),
            "created_at": format_instant(instance.created_at),
        }


@rendered_by_show
class AdminQueueDetailSerializer(AdminQueueSerializer):
    """The same with its configuration, and how full it is."""

    configuration = serializers.DictField()
    config = serializers.DictField()
    effective_config = serializers.DictField()
    oldest_available_at = InstantField(allow_null=True)
    paused_at = InstantField(allow_null=True)
    updated_at = InstantField()

    def show(self, instance: Queue) -> dict[str, Any]:
        oldest = latency.oldest_available(instance.name)
        config = _effective_config(instance)
        return super().show(instance) | {
            "configuration": _configuration(config, counters.count(instance.name).depth),
            "config": document(instance),
            "effective_config": config,
            "oldest_available_at": None if oldest is None else format_instant(oldest),
            "paused_at": format_instant(instance.paused_at) if instance.paused and instance.paused_at else None,
            "updated_at": format_instant(instance.updated_at),
        }


class QueueConfigSerializer(serializers.Serializer[Any]):
    """A queue with its configuration, and what holds for it, the template's values included."""

    name = serializers.CharField()
    queue = serializers.DictField()
    config = serializers.DictField()
    effective_config = serializers.DictField()


class QueueCreatedSerializer(serializers.Serializer[Any]):
    name = serializers.CharField()
    queue = serializers.DictField()
    config = serializers.DictField()


class QueueDeletedSerializer(serializers.Serializer[Any]):
    queue = serializers.CharField()
    strategy = serializers.CharField()
    target_queue = serializers.CharField(allow_null=True)
    jobs_affected = serializers.IntegerField()
    state = serializers.CharField()
    deleted = serializers.BooleanField()


class AdminQueueSwitchedSerializer(serializers.Serializer[Any]):
    name = serializers.CharField()
    paused = serializers.BooleanField()


class QueueSwitchedSerializer(AdminQueueSwitchedSerializer):
    queue = serializers.DictField()


class PriorityStatsSerializer(serializers.Serializer[Any]):
    queue = serializers.CharField()
    counts_by_priority = serializers.DictField(child=serializers.IntegerField())
    total = serializers.IntegerField()
    distribution = serializers.ListField(child=serializers.DictField())


class QueueRequestSerializer(BodySerializer):
    """The body that makes a queue."""

    name = TextField(required=True, allow_null=False)
    config = ObjectField()

    def to_internal_value(self, data: Any) -> dict[str, Any]:
        return {"name": fields.queue_name(data.get("name"), "name"), "config": fields.member(data, "config") or {}}


class QueueDeletionSerializer(BodySerializer):
    needed = False

    strategy = serializers.CharField(required=False)
    target_queue = serializers.CharField(required=False)


class QueueReasonSerializer(BodySerializer):
    """Why a queue is paused or resumed: for the event and the audit log."""

    needed = False

    reason = TextField(max_length=MAX_REASON)


class QueueConfigurationSerializer(BodySerializer):
    """Members of a configuration: `queues.configuration` reads them."""


class QueueViewSet(OJSViewSet):
    """`/queues`, and `/admin/queues` for operators, who see rates and waiting times as well."""

    lookup_url_kwarg = "name"
    model_name = "queue"
    serializer_class = QueueSerializer
    operator_serializer_class = AdminQueueDetailSerializer
    action_serializers = {
        "create": QueueCreatedSerializer, "destroy": QueueDeletedSerializer, "stats": QueueStatsSerializer,
        "priority_stats": PriorityStatsSerializer, "pause": QueueSwitchedSerializer, "resume": QueueSwitchedSerializer,
        "clear_jobs": PurgedSerializer, "purge": PurgedSerializer,
    }  # fmt: skip
    operator_action_serializers = {
        "list": AdminQueueSerializer, "pause": AdminQueueSwitchedSerializer, "resume": AdminQueueSwitchedSerializer,
    }  # fmt: skip
    body_serializers = {
        "create": QueueRequestSerializer, "destroy": QueueDeletionSerializer,
        "pause": QueueReasonSerializer, "resume": QueueReasonSerializer,
        "configure": QueueConfigurationSerializer, "limit_rate": QueueConfigurationSerializer,
        "clear_jobs": PurgeSerializer, "purge": PurgeSerializer,
    }  # fmt: skip
    ordering = (Key("name", descending=False, parse=parse_name),)
    list_names = ("queues",)
    operator_list_names = ("items",)
    action_scopes = {
        **dict.fromkeys(("list", "retrieve", "stats", "config", "priority_stats"), "read"), "purge": "admin.purge",
    }  # fmt: skip
    action_rights = {
        "create": "add_queue", "destroy": "delete_queue",
        **dict.fromkeys(("configure", "pause", "resume", "limit_rate"), "change_queue"),
        **dict.fromkeys(("clear_jobs", "purge"), "delete_job"),
    }  # fmt: skip
    public_only = ("create", "destroy", "stats", "priority_stats", "purge")
    operator_only = ("rate_limit", "limit_rate", "clear_jobs")

    def get_queryset(self) -> Any:
        """The queues that the caller may see. At the public door `default` is always there."""
        using = router.db_for_write(Queue)
        if not self.operator:
            configuration.ensure([DEFAULT_QUEUE], clock.now(using), using)
        found = Queue.objects.using(using).exclude(name=TEMPLATE)
        limit = queue_limit(self.request)
        return found if limit is None else found.filter(name__in=limit)

    def get_object(self) -> Any:
        """The queue in the path; what cannot be the name of one is not found."""
        name = self.kwargs["name"]
        check_queue(self.request, _path_name(name))
        queue = self.get_queryset().filter(name=name).first()
        if queue is None:
            raise NotFound.resource("queue", name)
        self.check_object_permissions(self.request, queue)
        return queue

    def list(self, request: Request) -> Response:
        """The queues."""
        return self.listed(self.get_queryset())

    @audited("queue.create")
    def create(self, request: Request) -> Response:
        """Make a queue."""
        body = self.payload()
        name = fields.queue_name(body.get("name"), "name")
        check_queue(request, name)
        self.act.target = name
        queue = create(name, self.validated(body)["config"], by=principal(request))
        summary = _summary(queue)
        answer = summary | {"config": document(queue), "queue": summary}
        return Response(answer, status=201, headers={"Location": f"{iri_to_uri(request.path)}/{name}"})

    @documented(public=QueueDetailSerializer)
    def retrieve(self, request: Request, name: str) -> Response:
        """A queue."""
        queue = self.get_object()
        if self.operator:
            return Response(self.represent(queue))
        found = stats(name)
        summary = self.represent(queue)
        detail = summary | {"config": document(queue), "updated_at": format_instant(queue.updated_at)}
        figures = _statistics(found, _effective_config(queue))
        return Response({"queue": summary, **detail, "stats": figures})

    @documented(200, 202, query="strategy target_queue")
    @audited("queue.delete", together=False)
    def destroy(self, request: Request, name: str) -> Response:
        """Delete a queue, and its jobs by a strategy.

        The `strategy` stands in the body or the query.
        """
        check_queue(request, _path_name(name))
        body = {**request.query_params.dict(), **self.payload(required=False)}
        strategy, target = fields.text(body, "strategy") or "reject", body.get("target_queue") or ""
        if target:
            check_queue(request, fields.queue_name(target, "target_queue"))
        self.act.detail = {"strategy": strategy} | ({"target_queue": target} if target else {})
        done = remove(name, strategy, target, entry=self.act)
        answer = {
            "queue": name, "strategy": strategy, "target_queue": done.target or None,
            "jobs_affected": done.jobs_affected, "state": done.state, "deleted": done.state == "deleted",
        }  # fmt: skip
        return Response(answer, status=202 if strategy == "move" else 200)

    @action(detail=True, methods=["get"])
    def stats(self, request: Request, name: str) -> Response:
        """The counts of a queue.

        Zeros for one that was never seen.
        """
        check_queue(request, _path_name(name))
        queue = self.get_queryset().filter(name=name).first()
        found = stats(name)
        status = queue.status if queue else "active"
        flat = {"name": name, "status": status, "state": status, "paused": bool(queue and queue.paused)}
        flat |= _tally(found.counts)
        shown = name if compat.wants_exact_shapes(request._request) else flat
        figures = _statistics(found, _effective_config(queue))
        return Response({**flat, "queue": shown, "stats": figures, "computed_at": format_instant(found.computed_at)})

    @action(detail=True, methods=["get"], url_path="priority-stats")
    def priority_stats(self, request: Request, name: str) -> Response:
        """Jobs that can be fetched, by priority.

        The highest first.
        """
        check_queue(request, fields.queue_name(name))
        jobs = Job.objects.using(router.db_for_write(Job)).filter(queue=name, state=State.AVAILABLE)
        found = [*jobs.order_by("-priority").values_list("priority").annotate(count=Count("pk"))]
        return Response(
            {
                "queue": name,
                "counts_by_priority": {str(priority): count for priority, count in found},
                "total": sum(count for _, count in found),
                "distribution": [{"priority": priority, "count": count} for priority, count in found],
            }
        )

    @documented(answers={200: QueueConfigSerializer})
    @action(detail=True, methods=["get"])
    def config(self, request: Request, name: str) -> Response:
        """The configuration of a queue."""
        return self._config(name)

    @documented(answers={200: QueueConfigSerializer})
    @config.mapping.patch
    @config.mapping.put
    @audited("queue.configure")
    def configure(self, request: Request, name: str) -> Response:
        """Lay a partial configuration over that of a queue."""
        body = self.payload()
        check_queue(request, check_name(name))
        change = fields.member(body, "config") or {} if body.keys() == {"config"} else body
        return Response(self._configured(name, configure(name, change, by=principal(request))))

    @documented(answers={200: QueueConfigSerializer})
    @action(detail=True, methods=["get"], url_path="rate-limit")
    def rate_limit(self, request: Request, name: str) -> Response:
        """The limits of a queue."""
        return self._config(name)

    @documented(answers={200: QueueConfigSerializer})
    @rate_limit.mapping.patch
    @rate_limit.mapping.put
    @audited("queue.configure")
    def limit_rate(self, request: Request, name: str) -> Response:
        """Lay limits over those of a queue."""
        body = self.payload()
        check_queue(request, check_name(name))
        change = {"concurrency": body["concurrency"]} if "concurrency" in body else {}
        if rest := {key: value for key, value in body.items() if key != "concurrency"}:
            change["rate_limit"] = rest
        return Response(self._configured(name, configure(name, change, by=principal(request))))

    @action(detail=True, methods=["post"])
    @audited("queue.pause")
    def pause(self, request: Request, name: str) -> Response:
        """Stop delivery; enqueueing goes on."""
        queue = pause(name, by=principal(request), reason=self._reason(name))
        return self._switched(queue, "paused_at", queue.paused_at or queue.updated_at)

    @action(detail=True, methods=["post"])
    @audited("queue.resume")
    def resume(self, request: Request, name: str) -> Response:
        """Deliver again."""
        queue = resume(name, by=principal(request), reason=self._reason(name))
        return self._switched(queue, "resumed_at", queue.resumed_at or queue.updated_at)

    @documented(query="states older_than confirm dry_run")
    @action(detail=True, methods=["delete"], url_path="jobs", url_name="jobs")
    @audited("job.purge", together=False)
    def clear_jobs(self, request: Request, name: str) -> Response:
        """Delete ended jobs of a queue."""
        return purge_queue(self, name)

    @action(detail=True, methods=["post"])
    @audited("job.purge", together=False)
    def purge(self, request: Request, name: str) -> Response:
        """Delete ended jobs of a queue."""
        return purge_queue(self, name)

    def _config(self, name: str) -> Response:
        check_queue(self.request, name if name == TEMPLATE else _path_name(name))
        queue = Queue.objects.using(router.db_for_write(Queue)).filter(name=name).first()
        if queue is None and name != TEMPLATE:
            raise NotFound.resource("queue", name)
        return Response(self._configured(name, queue))

    def _reason(self, name: str) -> str:
        """Why, if the body says so, for a queue that the caller may use."""
        body = self.payload(required=False)
        check_queue(self.request, fields.queue_name(name))
        return self.validated(body).get("reason") or ""

    def _switched(self, queue: Queue, name: str, time: Any) -> Response:
        state = {"name": queue.name, "paused": queue.paused, "status": queue.status}
        if self.operator:
            state = {"name": queue.name, "paused": queue.paused, "state": queue.status}
            return Response({**state, name: format_instant(time)})
        return Response({"queue": state, **state, name: format_instant(time)})

    def _configured(self, name: str, queue: Queue | None) -> dict[str, Any]:
        """The configuration beside the queue; of the template only the configuration, at the operator's door."""
        own = document(queue) if queue else {}
        if not self.operator:
            summary = _summary(queue) if queue else {"name": name}
            return {"queue": summary, **summary, "config": own, "effective_config": _effective_config(queue)}
        if queue is None or name == TEMPLATE:
            return {"name": name, "queue": {"name": name}, "config": own, "effective_config": own}
        shown = self.represent(queue)
        summary = {key: shown[key] for key in ("name", "state", "paused", "created_at")}
        return {**shown, "queue": summary | {"status": queue.status}}


def throughput(rate: Rate | None) -> dict[str, float]:
    """What is processed, and what of it fails, in a minute."""
    known = rate or Rate()
    return {"processed_per_minute": known.processed_per_minute, "failed_per_minute": known.failed_per_minute}


def _effective_config(queue: Queue | None) -> dict[str, Any]:
    """What holds for a queue, the template's values included."""
    template = Queue.objects.using(router.db_for_write(Queue)).filter(name=TEMPLATE).first()
    return effective(queue, template)


def _summary(queue: Queue) -> dict[str, Any]:
    """The members of a queue that need no figures."""
    return {
        "name": queue.name,
        "status": queue.status,
        "state": queue.status,
        "paused": queue.paused,
        "created_at": format_instant(queue.created_at),
    }


def _tally(counted: Counts | None) -> dict[str, int]:
    """The numbers of jobs, flat: total, depth and each state."""
    if counted is None:
        return {"total": 0, "depth": 0, **{state.value: 0 for state in State}}
    return {"total": counted.total, "depth": counted.depth, **counted.states}


def _statistics(stats: Stats, config: Mapping[str, Any]) -> dict[str, Any]:
    """The object under `stats`. `max_depth` 0 means unbounded."""
    done = stats.throughput
    return {
        "queue": stats.counts.queue,
        **_tally(stats.counts),
        "max_depth": _max_depth(config),
        "dead": stats.counts.dead,
        "completed_last_hour": done.completed_last_hour,
        "failed_last_hour": done.failed_last_hour,
        "completed_today": done.completed_today,
        "failed_today": done.failed_today,
        "avg_duration_ms": whole(done.avg_duration_ms),
        "avg_wait_ms": whole(done.avg_wait_ms),
        "throughput_per_second": done.completed_per_second,
        "failures_per_second": done.failed_per_second,
    }


def _max_depth(config: Mapping[str, Any]) -> int:
    """The bound of a bounded queue: that of its backpressure, else its `max_size`."""
    bound = (config.get("backpressure") or {}).get("max_depth") or config.get("max_size")
    return int(bound or 0)


def _configuration(config: dict[str, Any], depth: int) -> dict[str, Any]:
    """The part of the configuration that operators' tools read, with how full the queue is."""
    bound = config.get("backpressure") or {}
    most = _max_depth(config)
    warning = bound.get("warning_threshold")
    share = depth / most if most else 0
    state = "full" if most and depth >= most else "warning" if warning and share >= warning else "normal"
    pressure = {"enabled": bool(most), "strategy": bound.get("strategy") or config.get("overflow_policy") or "reject",
                "threshold": most, "current_depth": depth, "state": state}  # fmt: skip
    named = {name: config.get(name) for name in ("concurrency", "rate_limit", "retention")}
    return {**named, "backpressure": pressure}


def _path_name(name: str) -> str:
    try:
        return names.check_queue(name)
    except ValueError:
        raise NotFound.resource("queue", shorten(name)) from None
