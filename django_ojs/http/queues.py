"""Queues: list, create, detail, statistics, delete, pause, resume (binding 2.5, jobs 4)."""

from __future__ import annotations

from typing import Any

from django.db import router
from django.db.models import Q
from django.utils.encoding import iri_to_uri
from rest_framework.request import Request
from rest_framework.response import Response

from django_ojs import clock
from django_ojs.errors import NotFound
from django_ojs.http import compat, fields
from django_ojs.http import queueshapes as shapes
from django_ojs.http.auditing import audited
from django_ojs.http.base import OJSView
from django_ojs.http.pagination import Key, paginate, parse_name
from django_ojs.http.permissions import check_queue, principal, queue_limit
from django_ojs.models import Queue
from django_ojs.models.queue import TEMPLATE
from django_ojs.operations import counts, queues
from django_ojs.operations.configure import check_name, configure, create, document, effective
from django_ojs.operations.pause import MAX_REASON, pause, resume
from django_ojs.operations.remove import remove
from django_ojs.operations.stats import stats
from django_ojs.policies import names
from django_ojs.policies.attributes import DEFAULT_QUEUE
from django_ojs.policies.durations import format_instant
from django_ojs.policies.faults import shorten

_ORDER = [Key("name", descending=False, parse=parse_name)]


class Queues(OJSView):
    """`GET /queues`, by name; `default` is always there. `POST /queues` makes one."""

    scopes = {"GET": "read", "POST": "admin"}
    rights = {"POST": "add_queue"}

    def get(self, request: Request) -> Response:
        limit = queue_limit(request)
        found = _queues().filter(Q() if limit is None else Q(name__in=limit))
        page = paginate(found, request, _ORDER)
        counted = counts.count_all([queue.name for queue in page.rows])
        shown = [_summary(queue) | shapes.tally(counted.get(queue.name)) for queue in page.rows]
        return Response({"queues": shown, "pagination": page.pagination})

    @audited("queue.create")
    def post(self, request: Request) -> Response:
        body = self.payload()
        name = fields.queue_name(body.get("name"), "name")
        check_queue(request, name)
        self.act.target = name
        queue = create(name, fields.member(body, "config") or {}, by=principal(request))
        config = document(queue)
        answer = _summary(queue) | {"config": config, "queue": _summary(queue)}
        return Response(answer, status=201, headers={"Location": f"{iri_to_uri(request.path)}/{name}"})


class QueueDetail(OJSView):
    """`GET /queues/{name}`; `DELETE /queues/{name}` with a strategy, in the body or the query."""

    scopes = {"GET": "read", "DELETE": "admin"}
    rights = {"DELETE": "delete_queue"}

    def get(self, request: Request, name: str) -> Response:
        check_queue(request, _path_name(name))
        queue = _queues().filter(name=name).first()
        if queue is None:
            raise NotFound.resource("queue", name)
        found = stats(name)
        summary = _summary(queue) | shapes.tally(found.counts)
        detail = summary | {"config": document(queue), "updated_at": format_instant(queue.updated_at)}
        return Response({"queue": summary, **detail, "stats": shapes.statistics(found, _config(queue))})

    @audited("queue.delete", together=False)
    def delete(self, request: Request, name: str) -> Response:
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


class QueueStats(OJSView):
    """`GET /queues/{name}/stats`: zeros for a queue that was never seen."""

    scopes = {"GET": "read"}

    def get(self, request: Request, name: str) -> Response:
        check_queue(request, _path_name(name))
        queue = _queues().filter(name=name).first()
        found = stats(name)
        status = queue.status if queue else "active"
        flat = {"name": name, "status": status, "state": status, "paused": bool(queue and queue.paused)}
        flat |= shapes.tally(found.counts)
        shown = name if compat.wants_exact_shapes(request._request) else flat
        figures = shapes.statistics(found, _config(queue))
        return Response({**flat, "queue": shown, "stats": figures, "computed_at": format_instant(found.computed_at)})


class QueueConfig(OJSView):
    """`GET`, `PUT /queues/{name}/config`: a partial configuration is merged in."""

    scopes = {"GET": "read", "PUT": "admin", "PATCH": "admin"}
    rights = {"PUT": "change_queue", "PATCH": "change_queue"}

    def get(self, request: Request, name: str) -> Response:
        check_queue(request, _config_name(name))
        queue = Queue.objects.using(router.db_for_write(Queue)).filter(name=name).first()
        if queue is None and name != TEMPLATE:
            raise NotFound.resource("queue", name)
        return Response(_configured(name, queue))

    @audited("queue.configure")
    def put(self, request: Request, name: str) -> Response:
        body = self.payload()
        check_queue(request, check_name(name))
        change = fields.member(body, "config") if body.keys() == {"config"} else body
        return Response(_configured(name, configure(name, change or {}, by=principal(request))))

    patch = put


class QueuePause(OJSView):
    """`POST /queues/{name}/pause`: delivery stops, enqueueing goes on."""

    scopes = {"POST": "admin"}
    rights = {"POST": "change_queue"}

    @audited("queue.pause")
    def post(self, request: Request, name: str) -> Response:
        queue = pause(self.named(name), by=principal(request), reason=self.reason())
        return Response(_switched(queue, "paused_at", queue.paused_at or queue.updated_at))

    def named(self, name: str) -> str:
        self.payload(required=False)
        check_queue(self.request, fields.queue_name(name))
        return name

    def reason(self) -> str:
        """Why, if the body says it; for the event and the audit log."""
        return fields.text(dict(self.body), "reason", maximum=MAX_REASON) or ""


class QueueResume(QueuePause):
    """`POST /queues/{name}/resume`"""

    @audited("queue.resume")
    def post(self, request: Request, name: str) -> Response:
        queue = resume(self.named(name), by=principal(request), reason=self.reason())
        return Response(_switched(queue, "resumed_at", queue.resumed_at or queue.updated_at))


def _queues() -> Any:
    using = router.db_for_write(Queue)
    queues.ensure([DEFAULT_QUEUE], clock.now(using), using)
    return Queue.objects.using(using).exclude(name=TEMPLATE)


def _config(queue: Queue | None) -> dict[str, Any]:
    """What holds for a queue, the template's values included."""
    template = Queue.objects.using(router.db_for_write(Queue)).filter(name=TEMPLATE).first()
    return effective(queue, template)


def _configured(name: str, queue: Queue | None) -> dict[str, Any]:
    summary = _summary(queue) if queue else {"name": name}
    answer = {"queue": summary, **summary, "config": document(queue) if queue else {}}
    return answer | {"effective_config": _config(queue)}


def _config_name(name: str) -> str:
    return name if name == TEMPLATE else _path_name(name)


def _path_name(name: str) -> str:
    try:
        return names.check_queue(name)
    except ValueError:
        raise NotFound.resource("queue", shorten(name)) from None


def _summary(queue: Queue) -> dict[str, Any]:
    return {
        "name": queue.name,
        "status": queue.status,
        "state": queue.status,
        "paused": queue.paused,
        "created_at": format_instant(queue.created_at),
    }


def _switched(queue: Queue, name: str, time: Any) -> dict[str, Any]:
    state = {"name": queue.name, "paused": queue.paused, "status": queue.status}
    return {"queue": state, **state, name: format_instant(time)}
