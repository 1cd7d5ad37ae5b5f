"""Queues: list, create, configure, figures, delete, pause, resume (binding 2.5, jobs 4, admin 1.2)."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from django.db import router
from django.db.models import Count
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from django_ojs import clock, spellings
from django_ojs.errors import NotFound
from django_ojs.http import compat, fields, links, query
from django_ojs.http.base import OJSViewSet
from django_ojs.http.bulk import AliasPurgeSerializer, PurgeSerializer, QueuePurgedSerializer, purge_queue
from django_ojs.http.operation import operation
from django_ojs.http.pagination import OJSPagination, SortKey, parse_name
from django_ojs.http.permissions import (
    check_figures,
    check_queue,
    check_whole_queue,
    principal,
    queue_limit,
    visible,
)
from django_ojs.http.serializers import (
    AnswerSerializer,
    BodySerializer,
    DocumentField,
    EitherField,
    InstantField,
    MillisecondsField,
    NumberField,
    ObjectField,
    TextField,
    open_object,
    shared,
)
from django_ojs.messages import phrase
from django_ojs.models import Job, Queue
from django_ojs.models.fields import same_name
from django_ojs.models.queue import ALL_DRAIN, TEMPLATE
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
from django_ojs.rules import names, queueconfig
from django_ojs.rules.attributes import DEFAULT_QUEUE
from django_ojs.rules.faults import fault, shorten
from django_ojs.rules.queueconfig import Bound, bound_of
from django_ojs.states import State
from django_ojs.statistics import counters, latency
from django_ojs.statistics.throughput import Rate, rates, stats
from django_ojs.store import store_of

_NO_WAITS = {"p50": 0, "p95": 0, "p99": 0}
_COUNT, _TEXT, _TEXTS = {"type": "integer"}, {"type": "string"}, {"type": "array", "items": {"type": "string"}}
#: A duration such as P1D, or seconds.
_AGE = {"type": ["string", "number"]}
_WINDOW = open_object(limit=_COUNT, period=_TEXT, period_ms=_COUNT, period_seconds=_COUNT)
_RATE_LIMIT = {"concurrency": _COUNT, "throttle": _WINDOW, "max_per_second": {"type": "number"}, "on_limit": _TEXT}
_RETENTION = dict.fromkeys(queueconfig.RETENTION, _AGE)
_CONFIGURATION: dict[str, Any] = {
    "max_size": _COUNT,
    "max_size_bytes": _COUNT,
    "overflow_policy": _TEXT,
    "backpressure": open_object(
        max_depth=_COUNT, max_size_bytes=_COUNT, strategy=_TEXT, warning_threshold={"type": "number"}
    ),
    "concurrency": _COUNT,
    "rate_limit": open_object(**_RATE_LIMIT),
    "visibility_timeout": {"type": "number"},
    "default_timeout": {"type": "number"},
    "default_retry": {"type": "object"},
    "retention": open_object(**_RETENTION),
    "dead_letter": open_object(retention=open_object(max_age=_AGE, max_count=_COUNT)),
    "dead_letter_queue": _TEXT,
    "dead_letter_max_size": _COUNT,
    "dead_letter_ttl": _AGE,
    "allowed_job_types": _TEXTS,
    "producers": _TEXTS,
    "draining": {"type": "boolean"},
}


class ConfigurationField(DocumentField):
    """A queue's configuration (jobs 4.2). Members that the server does not know are kept as they came."""

    def __init__(self, **given: Any) -> None:
        super().__init__(_CONFIGURATION, **given)


class StateCountsSerializer(AnswerSerializer):
    """Jobs by state: every state, none missing."""

    def get_fields(self) -> dict[str, Any]:
        return {state.value: serializers.IntegerField() for state in State}


class ThroughputSerializer(AnswerSerializer):
    """What is processed, and what of it fails, in a minute."""

    processed_per_minute = NumberField()
    failed_per_minute = NumberField()


class LatencySerializer(AnswerSerializer):
    p50 = NumberField()
    p95 = NumberField()
    p99 = NumberField()


class TallySerializer(AnswerSerializer):
    """How many jobs there are: all, those that wait, and by state. What is shown has them as its `counts`."""

    total = serializers.IntegerField(source="counts.total")
    depth = serializers.IntegerField(source="counts.depth")

    def get_fields(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, field in super().get_fields().items():
            found[name] = field
            if name == "depth":
                found |= {one.value: serializers.IntegerField(source=f"counts.states.{one.value}") for one in State}
        return found


class QueueStatusSerializer(AnswerSerializer):
    """Whether a queue delivers."""

    name = serializers.CharField()
    status = serializers.CharField()
    state = serializers.CharField(source="status")
    paused = serializers.BooleanField()


class QueueStateSerializer(QueueStatusSerializer):
    """A queue without figures."""

    created_at = InstantField()


class QueueSerializer(QueueStateSerializer, TallySerializer):
    """A queue as the public door shows it: its state, and how many jobs are in which state."""

    def prepare(self, instances: Sequence[Any]) -> None:
        counted = counters.count_all([queue.name for queue in instances])
        for queue in instances:
            queue.counts = counted.get(queue.name) or counters.nothing(queue.name)


class QueueFiguresSerializer(TallySerializer):
    """What a queue holds, and what it did. `max_depth` 0 means unbounded."""

    first = ("queue",)

    queue = serializers.CharField(source="name")
    max_depth = serializers.SerializerMethodField()
    dead = serializers.IntegerField(source="counts.dead")
    completed_last_hour = serializers.IntegerField(source="done.completed_last_hour")
    failed_last_hour = serializers.IntegerField(source="done.failed_last_hour")
    completed_today = serializers.IntegerField(source="done.completed_today")
    failed_today = serializers.IntegerField(source="done.failed_today")
    avg_duration_ms = MillisecondsField(source="done.avg_duration_ms")
    avg_wait_ms = MillisecondsField(source="done.avg_wait_ms")
    throughput_per_second = NumberField(source="done.completed_per_second")
    failures_per_second = NumberField(source="done.failed_per_second")

    def get_max_depth(self, queue: Queue) -> int:
        return _max_depth(queue.effective)  # type: ignore[attr-defined]


class QueueTallySerializer(QueueStatusSerializer, TallySerializer):
    """Whether a queue delivers, and what it holds."""


class QueueOrNameField(EitherField):
    """The name of a queue for clients that say the version of the protocol that they speak; for others the queue."""

    def __init__(self) -> None:
        super().__init__(serializers.CharField(), QueueTallySerializer(), source="*")

    def to_representation(self, value: Any) -> Any:
        exact = compat.wants_exact_shapes(self.context["request"]._request)
        return value.name if exact else shared(QueueTallySerializer).to_representation(value)


class QueueStatsSerializer(QueueTallySerializer):
    """The figures of a queue."""

    queue = QueueOrNameField()
    stats = QueueFiguresSerializer(source="*")
    computed_at = InstantField()

    def prepare(self, instances: Sequence[Any]) -> None:
        for queue in instances:
            _count(queue)
            _configure(queue)


class QueueDetailSerializer(QueueSerializer):
    """A queue with its figures and its configuration."""

    first = ("queue",)

    queue = QueueSerializer(source="*")
    config = ConfigurationField(source="document")
    updated_at = InstantField()
    stats = QueueFiguresSerializer(source="*")

    def prepare(self, instances: Sequence[Any]) -> None:
        for queue in instances:
            _count(queue)
            _configure(queue)


class AdminQueueSerializer(AnswerSerializer):
    """A queue as operators see it: with its rates and its waiting times."""

    name = serializers.CharField()
    state = serializers.CharField(source="status")
    paused = serializers.BooleanField()
    counts = StateCountsSerializer(source="counts.states")
    throughput = ThroughputSerializer()
    latency_ms = LatencySerializer()
    created_at = InstantField()

    def prepare(self, instances: Sequence[Any]) -> None:
        named = [queue.name for queue in instances]
        counted, done, waits = counters.count_all(named), rates(named), latency.waits(named)
        for queue in instances:
            queue.counts = counted.get(queue.name) or counters.nothing(queue.name)
            queue.throughput, queue.latency_ms = done.get(queue.name, Rate()), waits.get(queue.name, _NO_WAITS)


class BackpressureSerializer(AnswerSerializer):
    """How full a queue is, and what happens once it is full."""

    enabled = serializers.BooleanField()
    strategy = serializers.CharField()
    threshold = serializers.IntegerField()
    current_depth = serializers.IntegerField()
    state = serializers.ChoiceField(["normal", "warning", "full"])

    def gather(self, instance: Any) -> dict[str, Any]:
        bound, depth, size = bound_of(instance.effective), instance.counts.depth, 0
        if bound and bound.max_bytes:
            depth, size = store_of(router.db_for_write(Job)).depths([instance.name], in_bytes=True)[instance.name]
        share = bound.pressure(depth, size) if bound else 0.0
        return {
            "enabled": bound is not None,
            "strategy": (bound or Bound()).strategy,
            "threshold": _max_depth(instance.effective),
            "current_depth": depth,
            "state": "full" if share >= 1 else "warning" if bound and share >= bound.warning else "normal",
        }


class OperatedConfigurationSerializer(AnswerSerializer):
    """The part of the configuration that operators' tools read."""

    concurrency = NumberField(source="effective.concurrency", allow_null=True)
    rate_limit = DocumentField(_RATE_LIMIT, source="effective.rate_limit", allow_null=True)
    retention = DocumentField(_RETENTION, source="effective.retention", allow_null=True)
    backpressure = BackpressureSerializer(source="*")


class _PausedAtField(InstantField):
    """Since when a queue is paused; null where it is not."""

    def get_attribute(self, instance: Any) -> Any:
        return instance.paused_at if instance.paused else None


class AdminQueueDetailSerializer(AdminQueueSerializer):
    """The same with its configuration, and how full it is."""

    configuration = OperatedConfigurationSerializer(source="*")
    config = ConfigurationField(source="document")
    effective_config = ConfigurationField(source="effective")
    oldest_available_at = InstantField(allow_null=True)
    paused_at = _PausedAtField(allow_null=True)
    updated_at = InstantField()

    def prepare(self, instances: Sequence[Any]) -> None:
        super().prepare(instances)
        for queue in instances:
            _configure(queue)
            queue.oldest_available_at = latency.oldest_available(queue.name)


class NamedQueueSerializer(QueueStateSerializer):
    """A queue without figures; of one that there is not yet, such as the template, only its name."""

    def get_fields(self) -> dict[str, Any]:
        return _optional(super().get_fields(), "name")


class AdminNamedQueueSerializer(AnswerSerializer):
    """The same as operators see it."""

    name = serializers.CharField()
    state = serializers.CharField(source="status")
    paused = serializers.BooleanField()
    created_at = InstantField()
    status = serializers.CharField()

    def get_fields(self) -> dict[str, Any]:
        return _optional(super().get_fields(), "name")


class TemplateSerializer(AnswerSerializer):
    """The values that all queues begin with."""

    name = serializers.CharField()
    queue = AdminNamedQueueSerializer(source="*")
    config = ConfigurationField(source="document")
    effective_config = ConfigurationField(source="document")


class AdminQueueConfigSerializer(AdminQueueDetailSerializer):
    """A queue with its configuration. Of the template (`*`) there is only that."""

    queue = AdminNamedQueueSerializer(source="*")

    def get_fields(self) -> dict[str, Any]:
        return _optional(super().get_fields(), "name", "queue", "config", "effective_config")

    def prepare(self, instances: Sequence[Any]) -> None:
        super().prepare([queue for queue in instances if queue.name != TEMPLATE])

    def to_representation(self, instance: Any) -> dict[str, Any]:
        if instance.name == TEMPLATE:
            own = {"name": TEMPLATE, "document": document(instance)}
            shown: dict[str, Any] = shared(TemplateSerializer).to_representation(own)
            return shown
        return super().to_representation(instance)


class QueueConfigSerializer(NamedQueueSerializer):
    """A queue with its configuration, and what holds for it, the template's values included. Of the template (`*`)
    there is only its name beside that, until it is configured."""

    first = ("queue",)

    queue = NamedQueueSerializer(source="*")
    config = ConfigurationField(source="document")
    effective_config = ConfigurationField(source="effective")

    def get_fields(self) -> dict[str, Any]:
        found = super().get_fields()
        for name in ("queue", "config", "effective_config"):
            found[name].required = True
        return found


class QueueCreatedSerializer(QueueStateSerializer):
    config = ConfigurationField(source="document")
    queue = QueueStateSerializer(source="*")


class QueueDeletedSerializer(AnswerSerializer):
    queue = serializers.CharField()
    strategy = serializers.CharField()
    target_queue = serializers.CharField(allow_null=True)
    jobs_affected = serializers.IntegerField()
    state = serializers.CharField()
    deleted = serializers.BooleanField()


class SwitchedQueueSerializer(AnswerSerializer):
    """A queue that delivers from now on, or does not."""

    name = serializers.CharField()
    paused = serializers.BooleanField()
    status = serializers.CharField()


class QueueSwitchedSerializer(SwitchedQueueSerializer):
    """The answer to a pause or to its end, with the time of that."""

    first = ("queue",)

    queue = SwitchedQueueSerializer(source="*")
    paused_at = InstantField(required=False)
    resumed_at = InstantField(required=False)


class AdminQueueSwitchedSerializer(AnswerSerializer):
    """The same as operators see it."""

    name = serializers.CharField()
    paused = serializers.BooleanField()
    state = serializers.CharField(source="status")
    paused_at = InstantField(required=False)
    resumed_at = InstantField(required=False)


class PriorityCountSerializer(AnswerSerializer):
    priority = serializers.IntegerField()
    count = serializers.IntegerField()


class PriorityStatsSerializer(AnswerSerializer):
    queue = serializers.CharField()
    counts_by_priority = serializers.DictField(child=serializers.IntegerField())
    total = serializers.IntegerField()
    distribution = PriorityCountSerializer(many=True)


class QueueRequestSerializer(BodySerializer):
    """The body that makes a queue."""

    name = TextField(required=True, allow_null=False)
    config = ObjectField()

    def to_internal_value(self, data: Any) -> dict[str, Any]:
        return {"name": fields.queue_name(data.get("name"), "name"), "config": _config(data, queueconfig.KEYS)}


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


class QueuePagination(OJSPagination):
    """Pages of queues. They are large at the public door, where most clients read one page and take it for all
    queues."""

    max_limit = default_limit = 1000


class QueueViewSet(OJSViewSet):
    """`/queues`, and `/admin/queues` for operators, who see rates and waiting times as well."""

    lookup_url_kwarg = "name"
    model_name = "queue"
    serializer_class = QueueSerializer
    operator_serializer_class = AdminQueueDetailSerializer
    pagination_class = QueuePagination
    ordering = (SortKey("name", descending=False, parse=parse_name),)
    list_names = ("queues",)
    operator_list_names = ("items",)

    def get_queryset(self) -> Any:
        """The queues that the caller may see. At the public door `default` is always there."""
        using = router.db_for_write(Queue)
        if not self.operator:
            configuration.ensure([DEFAULT_QUEUE], clock.now(using), using)
        found = Queue.objects.using(using).exclude(name=TEMPLATE).annotate(**ALL_DRAIN)
        limit = queue_limit(self.request)
        return found if limit is None else found.filter(name__in=limit)

    def get_object(self) -> Any:
        """The queue in the path; what cannot be the name of one is not found."""
        name = self.kwargs["name"]
        check_queue(self.request, _path_name(name))
        check_figures(self.request)
        queue = self.get_queryset().filter(name=name).first()
        if queue is None:
            raise NotFound.resource("queue", name)
        self.check_object_permissions(self.request, queue)
        return queue

    @operation(scope="read", operator_answer=AdminQueueSerializer)
    def list(self, request: Request) -> Response:
        """The queues."""
        check_figures(request)
        return self.listed(self.get_queryset())

    @operation(
        right="add_queue",
        doors="public",
        body=QueueRequestSerializer,
        answer=QueueCreatedSerializer,
        audit="queue.create",
        errors=(409,),
        headers="Location",
    )
    def create(self, request: Request) -> Response:
        """Make a queue."""
        body = self.payload()
        name = fields.queue_name(body.get("name"), "name")
        check_whole_queue(request, name)
        self.act.target = name
        queue = create(name, self.validated(body)["config"])
        _configure(queue)
        headers = {"Location": links.to_new(request, self, name)}
        return Response(self.represent(queue), status=201, headers=headers)

    @operation(scope="read", answer=QueueDetailSerializer, operator_answer=AdminQueueDetailSerializer)
    def retrieve(self, request: Request, name: str) -> Response:
        """A queue."""
        return Response(self.represent(self.get_object()))

    @operation(
        right="delete_queue",
        doors="public",
        body=QueueDeletionSerializer,
        answer=QueueDeletedSerializer,
        statuses=(200, 202),
        query="strategy target_queue",
        audit="queue.delete",
        audits_itself=True,
        errors=(409,),
    )
    def destroy(self, request: Request, name: str) -> Response:
        """Delete a queue, and its jobs by a strategy.

        The `strategy` stands in the body or the query.
        """
        check_whole_queue(request, _path_name(name))
        body = {**query.every(request), **self.payload(required=False)}
        strategy, target = fields.text(body, "strategy") or "reject", body.get("target_queue") or ""
        if target:
            check_whole_queue(request, fields.queue_name(target, "target_queue"))
        self.act.detail = {"strategy": strategy} | ({"target_queue": target} if target else {})
        done = remove(name, strategy, target, entry=self.act)
        answer = self.represent({
            "queue": name, "strategy": strategy, "target_queue": done.target or None,
            "jobs_affected": done.jobs_affected, "state": done.state, "deleted": done.state == "deleted",
        })  # fmt: skip
        return Response(answer, status=202 if strategy == "move" else 200)

    @operation(detail=True, methods=["get"], scope="read", doors="public", answer=QueueStatsSerializer)
    def stats(self, request: Request, name: str) -> Response:
        """The counts of a queue.

        Zeros for one that was never seen.
        """
        check_queue(request, _path_name(name))
        check_figures(request)
        return Response(self.represent(self.get_queryset().filter(name=name).first() or Queue(name=name)))

    @operation(
        detail=True,
        methods=["get"],
        url_path="priority-stats",
        scope="read",
        doors="public",
        answer=PriorityStatsSerializer,
    )
    def priority_stats(self, request: Request, name: str) -> Response:
        """Jobs that can be fetched, by priority.

        The highest first.
        """
        check_queue(request, _path_name(name))
        jobs = Job.objects.using(router.db_for_write(Job)).filter(queue=name, state=State.AVAILABLE)
        jobs = jobs.filter(visible(request))
        found = [*jobs.order_by("-priority").values_list("priority").annotate(count=Count("pk"))]
        answer = {
            "queue": name,
            "counts_by_priority": {str(priority): count for priority, count in found},
            "total": sum(count for _, count in found),
            "distribution": [{"priority": priority, "count": count} for priority, count in found],
        }
        return Response(self.represent(answer))

    @operation(
        detail=True,
        methods=["get"],
        scope="read",
        answer=QueueConfigSerializer,
        operator_answer=AdminQueueConfigSerializer,
    )
    def config(self, request: Request, name: str) -> Response:
        """The configuration of a queue."""
        return self._config(name)

    @operation(
        at=config,
        methods=["patch", "put"],
        right="change_queue",
        body=QueueConfigurationSerializer,
        answer=QueueConfigSerializer,
        operator_answer=AdminQueueConfigSerializer,
        audit="queue.configure",
        missing_ok=True,
    )
    def configure(self, request: Request, name: str) -> Response:
        """Lay a partial configuration over that of a queue."""
        body = self.payload()
        check_whole_queue(request, check_name(name))
        return Response(self._configured(name, configure(name, _config(body, body), by=principal(request))))

    @operation(detail=True, methods=["get"], url_path="rate-limit", doors="operator", answer=AdminQueueConfigSerializer)
    def rate_limit(self, request: Request, name: str) -> Response:
        """The limits of a queue."""
        return self._config(name)

    @operation(
        at=rate_limit,
        methods=["patch", "put"],
        right="change_queue",
        doors="operator",
        body=QueueConfigurationSerializer,
        answer=AdminQueueConfigSerializer,
        audit="queue.configure",
        missing_ok=True,
    )
    def limit_rate(self, request: Request, name: str) -> Response:
        """Lay limits over those of a queue."""
        body = self.payload()
        check_whole_queue(request, check_name(name))
        fields.only(body, *sorted(spellings.RATE_LIMIT_MEMBERS))
        change = {"concurrency": body["concurrency"]} if "concurrency" in body else {}
        if rest := {key: value for key, value in body.items() if key != "concurrency"}:
            change["rate_limit"] = rest
        return Response(self._configured(name, configure(name, change, by=principal(request))))

    @operation(
        detail=True,
        methods=["post"],
        right="change_queue",
        body=QueueReasonSerializer,
        answer=QueueSwitchedSerializer,
        operator_answer=AdminQueueSwitchedSerializer,
        audit="queue.pause",
        missing_ok=True,
    )
    def pause(self, request: Request, name: str) -> Response:
        """Stop delivery; enqueueing goes on."""
        queue = pause(name, by=principal(request), reason=self._reason(name))
        return self._switched(queue, paused_at=queue.paused_at or queue.updated_at)

    @operation(
        detail=True,
        methods=["post"],
        right="change_queue",
        body=QueueReasonSerializer,
        answer=QueueSwitchedSerializer,
        operator_answer=AdminQueueSwitchedSerializer,
        audit="queue.resume",
        missing_ok=True,
    )
    def resume(self, request: Request, name: str) -> Response:
        """Deliver again."""
        queue = resume(name, by=principal(request), reason=self._reason(name))
        return self._switched(queue, resumed_at=queue.resumed_at or queue.updated_at)

    @operation(
        detail=True,
        methods=["delete"],
        url_path="jobs",
        url_name="jobs",
        right="delete_job",
        doors="operator",
        body=PurgeSerializer,
        answer=QueuePurgedSerializer,
        query="states older_than confirm dry_run",
        audit="job.purge",
        audits_itself=True,
        missing_ok=True,
    )
    def clear_jobs(self, request: Request, name: str) -> Response:
        """Delete ended jobs of a queue."""
        return purge_queue(self, name)

    @operation(
        detail=True,
        methods=["post"],
        scope="admin.purge",
        right="delete_job",
        doors="public",
        body=AliasPurgeSerializer,
        answer=QueuePurgedSerializer,
        audit="job.purge",
        audits_itself=True,
        missing_ok=True,
    )
    def purge(self, request: Request, name: str) -> Response:
        """Delete ended jobs of a queue."""
        return purge_queue(self, name)

    def _config(self, name: str) -> Response:
        check_queue(self.request, name if name == TEMPLATE else _path_name(name))
        if self.operator:  # at this door figures stand beside the configuration
            check_figures(self.request)
        queue = Queue.objects.using(router.db_for_write(Queue)).filter(same_name("name", name)).first()
        if queue is None and name != TEMPLATE:
            raise NotFound.resource("queue", name)
        return Response(self._configured(name, queue))

    def _reason(self, name: str) -> str:
        """Why, if the body says so, for a queue that the caller may use."""
        body = self.payload(required=False)
        check_whole_queue(self.request, fields.queue_name(name))
        return self.validated(body).get("reason") or ""

    def _switched(self, queue: Queue, **time: dt.datetime) -> Response:
        answer = {"name": queue.name, "paused": queue.paused, "status": queue.status, **time}
        return Response(self.represent(answer))

    def _configured(self, name: str, queue: Queue | None) -> dict[str, Any]:
        """The configuration beside the queue; of the template only the configuration, at the operator's door."""
        found: Any = queue or Queue(name=name)
        if not self.operator and queue is None:  # nothing else is true of it
            found = {"name": name, "document": {}, "effective": _effective_config(None)}
        elif not self.operator:
            _configure(found)
        shown: dict[str, Any] = self.represent(found)
        return shown


def _config(body: dict[str, Any], flat: Iterable[str]) -> dict[str, Any]:
    """The configuration in a body: its `config`, or these members of the body itself. It is not in both."""
    if "config" not in body:
        return {name: body[name] for name in flat if name in body}
    if beside := sorted(body.keys() & {*queueconfig.KEYS}):
        raise fault(beside[0], phrase("belongs into %(member)s", member="config"))
    return fields.member(body, "config") or {}


def _count(queue: Any) -> None:
    """Give a queue what `QueueFiguresSerializer` shows; zeros to one that was never seen."""
    found = stats(queue.name)
    queue.counts, queue.done, queue.computed_at = found.counts, found.throughput, found.computed_at


def _configure(queue: Any) -> None:
    """Give a queue its own configuration as the wire has it, and what holds for it."""
    queue.document, queue.effective = document(queue), _effective_config(queue)


def _optional(found: dict[str, Any], *besides: str) -> dict[str, Any]:
    """The fields of a serializer, all of which but these may be absent."""
    for name in found.keys() - {*besides}:
        found[name].required = False
    return found


def _effective_config(queue: Queue | None) -> dict[str, Any]:
    """What holds for a queue, the template's values included."""
    template = Queue.objects.using(router.db_for_write(Queue)).filter(name=TEMPLATE).first()
    return effective(queue, template)


def _max_depth(config: Mapping[str, Any]) -> int:
    """The bound of a bounded queue: that of its backpressure, else its `max_size`."""
    bound = (config.get("backpressure") or {}).get("max_depth") or config.get("max_size")
    return int(bound or 0)


def _path_name(name: str) -> str:
    try:
        return names.check_queue(name)
    except ValueError:
        raise NotFound.resource("queue", shorten(name)) from None
