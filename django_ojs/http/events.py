"""The event log by cursor, or by page for a dashboard; the history of one job; the WebSocket of events: its address for
pages of the site, and tickets (events 5)."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from django.core.handlers.asgi import ASGIRequest
from django.http import HttpRequest
from django.urls import get_script_prefix
from rest_framework import serializers
from rest_framework.exceptions import APIException
from rest_framework.request import Request
from rest_framework.response import Response

from django_ojs import jsontext, keys
from django_ojs.conf import ojs_settings
from django_ojs.errors import NotFound, OJSError
from django_ojs.events import log
from django_ojs.events.filters import Filter
from django_ojs.http import base, compat, fields, manifest, permissions, query
from django_ojs.http.base import OJSViewSet
from django_ojs.http.openapi import EVENT_STREAM, documented
from django_ojs.http.permissions import api_key, check_type, queue_limit, type_limit
from django_ojs.http.serializers import (
    AnswerSerializer,
    InstantField,
    PaginationSerializer,
    StateField,
    rendered_by_show,
)
from django_ojs.jobs.verbs import info
from django_ojs.models.fields import RawJSON
from django_ojs.rules.durations import format_instant

DEFAULT_LIMIT = 100
MAX_LIMIT = 1000
#: Of the dashboard's pages.
PER_PAGE, MAX_PER_PAGE = 50, 100
#: Below the root of the site; `realtime.routing` serves the WebSocket there.
SOCKET_PATH = "ojs/v1/ws"
#: The parameters that say which events are meant.
FILTERS = "types queues job_types sources job_id workflow_id since"


@rendered_by_show
class EventSerializer(AnswerSerializer):
    """An event as the log has it, with the members at its top level that dashboards look for."""

    specversion = serializers.CharField()
    id = serializers.CharField()
    type = serializers.CharField()
    source = serializers.CharField()  # type: ignore[assignment]
    time = InstantField()
    subject = serializers.CharField(required=False)
    datacontenttype = serializers.CharField()
    data = serializers.DictField()  # type: ignore[assignment]
    event = serializers.CharField()
    timestamp = InstantField()
    job_id = serializers.CharField(required=False)
    queue = serializers.CharField(required=False)
    state = serializers.CharField(required=False)

    def show(self, instance: dict[str, Any]) -> dict[str, Any]:
        return compat.event(instance)


class EventPageSerializer(serializers.Serializer[Any]):
    events = EventSerializer(many=True)
    items = EventSerializer(many=True)
    cursor = serializers.CharField(required=False, allow_null=True)
    has_more = serializers.BooleanField()
    pagination = PaginationSerializer()
    gap = serializers.DictField(required=False)


class JobHistorySerializer(EventPageSerializer):
    job_id = serializers.CharField()
    state = StateField(required=False)
    attempt = serializers.IntegerField(required=False)
    history = EventSerializer(many=True)


class TicketSerializer(serializers.Serializer[Any]):
    ticket = serializers.CharField()
    expires_at = InstantField()
    expires_in = serializers.FloatField()


class EventViewSet(OJSViewSet):
    """The event log: oldest first behind `after`, where `cursor` is where to go on; with `page` newest first."""

    action_scopes = {"list": "read", "history": "read", "ticket": "read"}
    serializer_class = EventPageSerializer
    action_serializers = {"history": JobHistorySerializer, "ticket": TicketSerializer}
    event_serializer_class: Any = EventSerializer
    pagination_class = None

    @documented(query=f"after until limit page per_page channel last_event_id {FILTERS}", text=EVENT_STREAM,
                resumes=True, errors=(404, 406))  # fmt: skip
    def list(self, request: Request) -> Any:
        """A page of the event log, or a stream."""
        if (stream := self.stream(request)) is not None:
            return stream
        limit = _limit(request)
        number = query.integer(request, "page", minimum=1)
        size = query.integer(request, "per_page", minimum=1)
        wanted, after = wanted_by(request), query.text(request, "after")
        if after or (number is None and size is None):
            return Response(self._body(_read(request, wanted, limit), limit))
        return Response(self._newest(wanted, number or 1, min(size or PER_PAGE, MAX_PER_PAGE)))

    def stream(self, request: Request) -> Any:
        """The answer that streams, if the caller wants that; None for a page. `realtime.sse` makes streams."""
        return None

    @documented(query="after types since until limit")
    def history(self, request: Request, job_id: str) -> Response:
        """What happened to a job.

        Oldest first, while it is known.
        """
        identifier, limit = fields.path_id(job_id), _limit(request)
        types = tuple(query.texts(request, "types", "type"))
        wanted = Filter(
            types=types, job_ids=(identifier,), only_queues=queue_limit(request), only_types=type_limit(request)
        )
        job: dict[str, Any] = {}
        try:
            row = info(identifier)
        except NotFound:  # pruned, perhaps before its events
            if not log.read(wanted=Filter(job_ids=(identifier,)), limit=1).events:
                raise
        else:
            permissions.check_row(request, row)
            job = {"state": row["state"], "attempt": row["attempt"]}
        body = self._body(_read(request, wanted, limit), limit)
        return Response({"job_id": str(identifier), **job, **body, "history": body["events"]})

    @documented(201)
    def ticket(self, request: Request) -> Response:
        """A ticket for one WebSocket.

        It has the caller's own rights and is to be used once before `expires_at`, as `?ticket=`.
        """
        key = api_key(request)
        user = request.user if key is None and getattr(request.user, "is_authenticated", False) else None
        text, expires_at = keys.issue_ticket(key, user)
        told = {"ticket": text, "expires_at": format_instant(expires_at)}
        return Response({**told, "expires_in": ojs_settings.REALTIME_TICKET_TTL}, status=201)

    def _body(self, page: log.Page, limit: int) -> dict[str, Any]:
        shown = self._shown(page.events)
        pagination: dict[str, Any] = {"limit": limit, "per_page": limit, "has_more": page.has_more}
        if page.has_more:
            pagination["next_cursor"] = page.cursor
        body = {"events": shown, "items": shown, "cursor": page.cursor, "has_more": page.has_more}
        return body | {"pagination": pagination} | ({"gap": page.gap} if page.gap else {})

    def _newest(self, wanted: Filter, number: int, size: int) -> dict[str, Any]:
        """A dashboard's page. Its cursor is the newest event shown: who follows the log from there misses nothing."""
        since, until = query.instant(self.request, "since"), query.instant(self.request, "until")
        page = log.newest(wanted, since=since, until=until, offset=(number - 1) * size, limit=size)
        shown = self._shown(page.events)
        pagination = {"total": page.total, "page": number, "per_page": size, "limit": size, "has_more": page.has_more}
        cursor = page.events[0]["id"] if page.events else None
        return {"events": shown, "items": shown, "cursor": cursor, "has_more": page.has_more, "pagination": pagination}

    def _shown(self, events: Sequence[dict[str, Any]]) -> RawJSON:
        one = self.event_serializer_class(context=self.get_serializer_context())
        return RawJSON(jsontext.dumps([one.to_representation(event) for event in events]))


def wanted_by(request: Request) -> Filter:
    """The filter of the query string, within the limits of the caller's key."""
    job_types = query.texts(request, "job_types")
    for name in job_types:
        check_type(request, name)
    job_id, workflow_id = query.uuid7(request, "job_id"), query.uuid7(request, "workflow_id")
    return Filter(
        types=tuple(query.texts(request, "types", "type")),
        queues=tuple(permissions.queues_to_read(request, query.texts(request, "queues", "queue"))),
        job_types=tuple(job_types),
        sources=tuple(query.texts(request, "sources")),
        job_ids=(job_id,) if job_id else (),
        workflow_ids=(workflow_id,) if workflow_id else (),
        only_types=type_limit(request),
    )


def socket_address(request: HttpRequest) -> str:
    """The path or URL at which this visitor's browser may connect to the WebSocket; '' where there is none, or the
    server would refuse it.

    Without `OJS["REALTIME_URL"]` there is one where the process that serves the page serves WebSockets too.
    """
    found = ojs_settings.REALTIME_URL
    if found is None:
        served = isinstance(request, ASGIRequest) and "websocket" in manifest.TRANSPORTS
        found = f"{get_script_prefix()}{SOCKET_PATH}" if served else ""
    return found if found and _may_read(request) else ""


def _limit(request: Request) -> int:
    return min(query.integer(request, "limit", minimum=1) or DEFAULT_LIMIT, MAX_LIMIT)


def _read(request: Request, wanted: Filter, limit: int) -> log.Page:
    return log.read(
        wanted=wanted,
        after=query.text(request, "after") or None,
        since=query.instant(request, "since"),
        until=query.instant(request, "until"),
        limit=limit,
    )


def _may_read(request: HttpRequest) -> bool:
    """Whether the binding knows this visitor by the session, and lets it read. The page's own request stays."""
    asked = Request(copy.copy(request), authenticators=base.authenticators(tuple(ojs_settings.AUTHENTICATION_CLASSES)))
    try:
        permissions.require_scope(asked, "read", operation="events")
    except (OJSError, APIException):
        return False
    return True
