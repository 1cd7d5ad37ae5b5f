"""Queues: list, create, configure, statistics, delete, pause, resume (binding 2.5, jobs 4, admin 1.2)."""

from __future__ import annotations

from typing import Any

from django.db import router
from django.db.models import Count
from django.utils.encoding import iri_to_uri
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response

from django_ojs import clock
from django_ojs.errors import NotFound
from django_ojs.http import compat, fields
from django_ojs.http import queueserializers as serializers
from django_ojs.http.auditing import audited
from django_ojs.http.pagination import Key, parse_name
from django_ojs.http.permissions import check_queue, principal, queue_limit
from django_ojs.http.viewsets import OJSViewSet
from django_ojs.models import Job, Queue
from django_ojs.models.queue import TEMPLATE
from django_ojs.queues import configuration
from django_ojs.queues.configuration import check_name, configure, create, document, pause, resume
from django_ojs.queues.deletion import remove
from django_ojs.rules import names
from django_ojs.rules.attributes import DEFAULT_QUEUE
from django_ojs.rules.durations import format_instant
from django_ojs.rules.faults import shorten
from django_ojs.states import State
from django_ojs.statistics.throughput import stats


class QueueViewSet(OJSViewSet):
    """`/queues`, and `/admin/queues` for operators, who see rates and waiting times as well."""

    lookup_url_kwarg = "name"
    model_name = "queue"
    serializer_class = serializers.QueueSerializer
    operator_serializer_class = serializers.OperatorQueueDetailSerializer
    operator_list_serializer_class = serializers.OperatorQueueSerializer
    body_serializers = {
        "create": serializers.QueueRequestSerializer,
        "pause": serializers.QueueReasonSerializer,
        "resume": serializers.QueueReasonSerializer,
    }
    ordering = (Key("name", descending=False, parse=parse_name),)
    list_names = ("queues",)
    operator_list_names = ("items",)
    action_scopes = dict.fromkeys(("list", "retrieve", "stats", "config", "priority_stats"), "read")
    action_rights = {
        "create": "add_queue", "destroy": "delete_queue",
        **dict.fromkeys(("configure", "pause", "resume", "limit_rate"), "change_queue"),
    }  # fmt: skip
    public_only = ("create", "destroy", "stats", "priority_stats")
    operator_only = ("rate_limit", "limit_rate")

    def get_serializer_class(self) -> Any:
        if self.operator and self.action == "list":
            return self.operator_list_serializer_class
        return super().get_serializer_class()

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
        return self.listed(self.get_queryset())

    @audited("queue.create")
    def create(self, request: Request) -> Response:
        body = self.payload()
        name = fields.queue_name(body.get("name"), "name")
        check_queue(request, name)
        self.act.target = name
        queue = create(name, self.validated(body)["config"], by=principal(request))
        summary = serializers.summary(queue)
        answer = summary | {"config": document(queue), "queue": summary}
        return Response(answer, status=201, headers={"Location": f"{iri_to_uri(request.path)}/{name}"})

    def retrieve(self, request: Request, name: str) -> Response:
        queue = self.get_object()
        if self.operator:
            return Response(self.represent(queue))
        found = stats(name)
        summary = self.represent(queue)
        detail = summary | {"config": document(queue), "updated_at": format_instant(queue.updated_at)}
        figures = serializers.statistics(found, serializers.effective_config(queue))
        return Response({"queue": summary, **detail, "stats": figures})

    @audited("queue.delete", together=False)
    def destroy(self, request: Request, name: str) -> Response:
        """By a `strategy` in the body or the query."""
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
        """Zeros for a queue that was never seen."""
        check_queue(request, _path_name(name))
        queue = self.get_queryset().filter(name=name).first()
        found = stats(name)
        status = queue.status if queue else "active"
        flat = {"name": name, "status": status, "state": status, "paused": bool(queue and queue.paused)}
        flat |= serializers.tally(found.counts)
        shown = name if compat.wants_exact_shapes(request._request) else flat
        figures = serializers.statistics(found, serializers.effective_config(queue))
        return Response({**flat, "queue": shown, "stats": figures, "computed_at": format_instant(found.computed_at)})

    @action(detail=True, methods=["get"], url_path="priority-stats")
    def priority_stats(self, request: Request, name: str) -> Response:
        """How many jobs can be fetched, by priority, highest first."""
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

    @action(detail=True, methods=["get"])
    def config(self, request: Request, name: str) -> Response:
        return self._config(name)

    @config.mapping.patch
    @config.mapping.put
    @audited("queue.configure")
    def configure(self, request: Request, name: str) -> Response:
        """A partial configuration is laid over what is there."""
        body = self.payload()
        check_queue(request, check_name(name))
        change = fields.member(body, "config") or {} if body.keys() == {"config"} else body
        return Response(self._configured(name, configure(name, change, by=principal(request))))

    @action(detail=True, methods=["get"], url_path="rate-limit")
    def rate_limit(self, request: Request, name: str) -> Response:
        return self._config(name)

    @rate_limit.mapping.patch
    @rate_limit.mapping.put
    @audited("queue.configure")
    def limit_rate(self, request: Request, name: str) -> Response:
        """Lay limits alone over those of the queue."""
        body = self.payload()
        check_queue(request, check_name(name))
        change = {"concurrency": body["concurrency"]} if "concurrency" in body else {}
        if rest := {key: value for key, value in body.items() if key != "concurrency"}:
            change["rate_limit"] = rest
        return Response(self._configured(name, configure(name, change, by=principal(request))))

    @action(detail=True, methods=["post"])
    @audited("queue.pause")
    def pause(self, request: Request, name: str) -> Response:
        """Delivery stops, enqueueing goes on."""
        queue = pause(name, by=principal(request), reason=self._reason(name))
        return self._switched(queue, "paused_at", queue.paused_at or queue.updated_at)

    @action(detail=True, methods=["post"])
    @audited("queue.resume")
    def resume(self, request: Request, name: str) -> Response:
        queue = resume(name, by=principal(request), reason=self._reason(name))
        return self._switched(queue, "resumed_at", queue.resumed_at or queue.updated_at)

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
            summary = serializers.summary(queue) if queue else {"name": name}
            return {"queue": summary, **summary, "config": own, "effective_config": serializers.effective_config(queue)}
        if queue is None or name == TEMPLATE:
            return {"name": name, "queue": {"name": name}, "config": own, "effective_config": own}
        shown = self.represent(queue)
        summary = {key: shown[key] for key in ("name", "state", "paused", "created_at")}
        return {**shown, "queue": summary | {"status": queue.status}}


def _path_name(name: str) -> str:
    try:
        return names.check_queue(name)
    except ValueError:
        raise NotFound.resource("queue", shorten(name)) from None
