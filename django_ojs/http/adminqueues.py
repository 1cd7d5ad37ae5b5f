"""Queues as an operator sees them: `/admin/queues` (admin 1.2)."""

from __future__ import annotations

from typing import Any

from rest_framework.request import Request
from rest_framework.response import Response

from django_ojs.errors import NotFound
from django_ojs.http import fields
from django_ojs.http.adminjobs import MAX_PAGE, PAGE, AdminView
from django_ojs.http.auditing import audited
from django_ojs.http.pagination import Key, paginate, parse_name
from django_ojs.http.permissions import check_queue, principal, queue_limit
from django_ojs.models import Queue
from django_ojs.models.queue import TEMPLATE
from django_ojs.operations import counts, overview
from django_ojs.operations.common import database
from django_ojs.operations.configure import check_name, configure, document, effective
from django_ojs.operations.pause import MAX_REASON, pause, resume
from django_ojs.policies import names
from django_ojs.policies.durations import format_instant
from django_ojs.policies.faults import shorten
from django_ojs.states import State

_ORDER = [Key("name", descending=False, parse=parse_name)]
_NO_WAITS = {"p50": 0, "p95": 0, "p99": 0}


class AdminQueues(AdminView):
    """`GET /admin/queues`, by name."""

    scopes = {"GET": "admin.read"}
    rights = {"GET": "view_queue"}

    def get(self, request: Request) -> Response:
        limit = queue_limit(request)
        found = _queues() if limit is None else _queues().filter(name__in=limit)
        page = paginate(found, request, _ORDER, maximum=MAX_PAGE, default=PAGE)
        return Response({"items": _items(page.rows), "pagination": page.pagination})


class AdminQueueDetail(AdminView):
    """`GET /admin/queues/{name}`"""

    scopes = {"GET": "admin.read"}
    rights = {"GET": "view_queue"}

    def get(self, request: Request, name: str) -> Response:
        check_queue(request, _path_name(name))
        queue = _queues().filter(name=name).first()
        if queue is None:
            raise NotFound.resource("queue", name)
        return Response(_detail(queue))


class AdminQueueConfig(AdminView):
    """`GET`, and `PUT /admin/queues/{name}/config`: a partial configuration, laid over what is there."""

    scopes = {"GET": "admin.read", "PUT": "admin.write", "PATCH": "admin.write"}
    rights = {"GET": "view_queue", "PUT": "change_queue", "PATCH": "change_queue"}

    def get(self, request: Request, name: str) -> Response:
        check_queue(request, name if name == TEMPLATE else _path_name(name))
        queue = Queue.objects.using(database(None)).filter(name=name).first()
        if queue is None and name != TEMPLATE:
            raise NotFound.resource("queue", name)
        return Response(_configured(name, queue))

    @audited("queue.configure")
    def put(self, request: Request, name: str) -> Response:
        body = self.payload()
        check_queue(request, check_name(name))
        change = self.change(body)
        return Response(_configured(name, configure(name, change, by=principal(request))))

    patch = put

    def change(self, body: dict[str, Any]) -> dict[str, Any]:
        return (fields.member(body, "config") or {}) if body.keys() == {"config"} else body


class AdminQueueRateLimit(AdminQueueConfig):
    """`PUT /admin/queues/{name}/rate-limit`: the queue's limits alone."""

    def change(self, body: dict[str, Any]) -> dict[str, Any]:
        known = {"concurrency": body.get("concurrency")} if "concurrency" in body else {}
        rest = {key: value for key, value in body.items() if key != "concurrency"}
        return known | ({"rate_limit": rest} if rest else {})


class AdminQueuePause(AdminView):
    """`POST /admin/queues/{name}/pause`: delivery stops, enqueueing goes on."""

    scopes = {"POST": "admin.write"}
    rights = {"POST": "change_queue"}

    @audited("queue.pause")
    def post(self, request: Request, name: str) -> Response:
        reason = fields.text(self.payload(required=False), "reason", maximum=MAX_REASON) or ""
        check_queue(request, fields.queue_name(name))
        queue = pause(name, by=principal(request), reason=reason)
        return Response({"name": name, "paused": True, "state": queue.status, "paused_at": _time(queue.paused_at)})


class AdminQueueResume(AdminView):
    """`POST /admin/queues/{name}/resume`"""

    scopes = {"POST": "admin.write"}
    rights = {"POST": "change_queue"}

    @audited("queue.resume")
    def post(self, request: Request, name: str) -> Response:
        reason = fields.text(self.payload(required=False), "reason", maximum=MAX_REASON) or ""
        check_queue(request, fields.queue_name(name))
        queue = resume(name, by=principal(request), reason=reason)
        at = queue.resumed_at or queue.updated_at
        return Response({"name": name, "paused": False, "state": queue.status, "resumed_at": _time(at)})


def _items(queues: list[Queue]) -> list[dict[str, Any]]:
    """Lines of the list, with the figures of all of them read at once."""
    named = [queue.name for queue in queues]
    counted, rates, waits = counts.count_all(named), overview.rates(named), overview.waits(named)
    return [
        {
            "name": queue.name,
            "state": queue.status,
            "paused": queue.paused,
            "counts": by_state(counted.get(queue.name)),
            "throughput": throughput(rates.get(queue.name)),
            "latency_ms": waits.get(queue.name, _NO_WAITS),
            "created_at": _time(queue.created_at),
        }
        for queue in queues
    ]


def by_state(counted: counts.Counts | None) -> dict[str, int]:
    """The `counts` object: every state, none missing."""
    return {state.value: counted.states[state] if counted else 0 for state in State}


def throughput(rate: overview.Rate | None) -> dict[str, float]:
    known = rate or overview.Rate()
    return {"processed_per_minute": known.processed_per_minute, "failed_per_minute": known.failed_per_minute}


def _detail(queue: Queue) -> dict[str, Any]:
    oldest = overview.oldest_available(queue.name)
    (line,) = _items([queue])
    config = _effective(queue)
    depth = counts.count(queue.name).depth
    return line | {
        "configuration": _configuration(config, depth),
        "config": document(queue),
        "effective_config": config,
        "oldest_available_at": _time(oldest),
        "paused_at": _time(queue.paused_at) if queue.paused else None,
        "updated_at": _time(queue.updated_at),
    }


def _configuration(config: dict[str, Any], depth: int) -> dict[str, Any]:
    """The part of the configuration that operators' tools read, with how full the queue is."""
    bound = config.get("backpressure") or {}
    most = int(bound.get("max_depth") or config.get("max_size") or 0)
    warning = bound.get("warning_threshold")
    share = depth / most if most else 0
    state = "full" if most and depth >= most else "warning" if warning and share >= warning else "normal"
    pressure = {"enabled": bool(most), "strategy": bound.get("strategy") or config.get("overflow_policy") or "reject",
                "threshold": most, "current_depth": depth, "state": state}  # fmt: skip
    named = {name: config.get(name) for name in ("concurrency", "rate_limit", "retention")}
    return {**named, "backpressure": pressure}


def _configured(name: str, queue: Queue | None) -> dict[str, Any]:
    """The queue's detail; of the template only its configuration."""
    own = document(queue) if queue else {}
    if queue is None or name == TEMPLATE:
        return {"name": name, "queue": {"name": name}, "config": own, "effective_config": own}
    shown = _detail(queue)
    summary = {key: shown[key] for key in ("name", "state", "paused", "created_at")}
    return {**shown, "queue": summary | {"status": queue.status}}


def _effective(queue: Queue) -> dict[str, Any]:
    template = Queue.objects.using(database(None)).filter(name=TEMPLATE).first()
    return effective(queue, template)


def _queues() -> Any:
    return Queue.objects.using(database(None)).exclude(name=TEMPLATE)


def _path_name(name: str) -> str:
    try:
        return names.check_queue(name)
    except ValueError:
        raise NotFound.resource("queue", shorten(name)) from None


def _time(instant: Any) -> str | None:
    return format_instant(instant) if instant is not None else None
