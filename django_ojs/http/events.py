"""The event log by cursor, or by page for a dashboard; the history of one job; the WebSocket of events: its address for
pages of the site, and tickets (events 5)."""

from __future__ import annotations

import copy
import dataclasses
import re
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
from django_ojs.events.filters import MAX_SOURCES, MEANT, Filter
from django_ojs.http import base, compat, fields, manifest, permissions, query
from django_ojs.http.authentication import session_of
from django_ojs.http.base import OJSViewSet
from django_ojs.http.openapi import EVENT_STREAM
from django_ojs.http.operation import operation
from django_ojs.http.permissions import api_key, check_type, queue_limit, type_limit
from django_ojs.http.serializers import (
    AnswerSerializer,
    DocumentField,
    InstantField,
    NumberField,
    StateField,
    rendered_by_show,
)
from django_ojs.jobs.read import info
from django_ojs.models.fields import RawJSON
from django_ojs.spellings import EVENT_QUERY
from django_ojs.workflows.workflow import keys_of

DEFAULT_EVENTS = 100
MAX_EVENTS = 1000
#: Of the dashboard's pages.
PER_PAGE, MAX_PER_PAGE = 50, 100
#: The `next_cursor` of such a page: the number of the next one, and the size.
_NEXT_PAGE = re.compile(r"page_([1-9][0-9]{0,8})_([1-9][0-9]?|100)")
#: Below the root of the site; `realtime.routing` serves the WebSocket there.
SOCKET_PATH = "ojs/v1/ws"
#: The parameters that say which events are meant.
FILTERS = "types queues job_types sources job_id workflow_id since"
#: The same of the history of a job.
OF_JOB = "after types since until"


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


#: What a reader has missed of the log.
_GAP = {
    "reason": {"type": "string", "enum": ["pruned", "history_changed"]},
    "gap_start": {"type": "string", "format": "date-time"},
    "gap_end": {"type": ["string", "null"], "format": "date-time"},
    "estimated_missed_count": {"type": "integer"},
}


class EventCursorSerializer(AnswerSerializer):
    """How a reader goes on behind a page of events, and what it has missed of the log."""

    cursor = serializers.CharField(required=False, allow_null=True)
    has_more = serializers.BooleanField()
    gap = DocumentField(_GAP, required=False)


class JobHistorySerializer(EventCursorSerializer):
    """The same of the events of one job, with its state while it is known."""

    first = ("job_id", "state", "attempt")

    job_id = serializers.CharField()
    state = StateField(required=False)
    attempt = serializers.IntegerField(required=False)


class TicketSerializer(AnswerSerializer):
    ticket = serializers.CharField()
    expires_at = InstantField()
    expires_in = NumberField()


class EventViewSet(OJSViewSet):
    """The event log: oldest first behind `after`, where `cursor` is where to go on; with `page` newest first."""

    model_name = "event"
    serializer_class = EventSerializer
    pagination_class = None

    @operation(
        scope="read",
        query=f"after until limit page per_page channel last_event_id {FILTERS}",
        errors=(404, 406),
        lists=("events", "items"),
        beside=EventCursorSerializer,
        text=EVENT_STREAM,
        resumes=True,
    )
    def list(self, request: Request) -> Any:
        """A page of the event log, or a stream."""
        if (stream := self.stream(request)) is not None:
            return stream
        query.refuse_others(request, MEANT, f"after until {FILTERS}", EVENT_QUERY, channel="all")
        limit, cursor = _limit(request), query.cursor(request)
        number = query.integer(request, "page", minimum=1)
        size = query.integer(request, "per_page", minimum=1)
        wanted = wanted_by(request)
        if following := _NEXT_PAGE.fullmatch(cursor.after or ""):
            return self._newest(wanted, int(following[1]), int(following[2]))
        if cursor.after or (number is None and size is None):
            return self._page(read_log(request, wanted, limit, cursor), limit)
        return self._newest(wanted, number or 1, min(size or PER_PAGE, MAX_PER_PAGE))

    def stream(self, request: Request) -> Any:
        """The answer that streams, if the caller wants that; None for a page. `realtime.sse` makes streams."""
        return None

    @operation(
        scope="read",
        query=f"{OF_JOB} limit",
        lists=("events", "items", "history"),
        beside=JobHistorySerializer,
    )
    def history(self, request: Request, job_id: str) -> Response:
        """What happened to a job.

        Oldest first, while it is known.
        """
        identifier, limit = fields.path_id(job_id), _limit(request)
        query.refuse_others(request, MEANT, OF_JOB, EVENT_QUERY, job_id=job_id)
        types = tuple(query.texts(request, "types", EVENT_QUERY))
        wanted = Filter(
            types=types, job_ids=(identifier,), only_queues=queue_limit(request), only_types=type_limit(request)
        )
        job: dict[str, Any] = {}
        try:
            row = info(identifier)
        except NotFound:  # pruned, perhaps before its events
            if not log.read(wanted=dataclasses.replace(wanted, types=()), limit=1).events:
                raise
        else:
            permissions.check_row(request, row)
            job = {"state": row["state"], "attempt": row["attempt"]}
        page = read_log(request, wanted, limit, query.cursor(request))
        return self._page(page, limit, job_id=identifier, **job)

    @operation(scope="read", answer=TicketSerializer, statuses=(201,))
    def ticket(self, request: Request) -> Response:
        """A ticket for one WebSocket.

        It has the caller's own rights and is to be used once before `expires_at`, as `?ticket=`.
        """
        key = api_key(request)
        user = request.user if key is None and getattr(request.user, "is_authenticated", False) else None
        session = session_of(request) if user is not None else None
        text, expires_at = keys.issue_ticket(key, user, (session and session.session_key) or "")
        told = {"ticket": text, "expires_at": expires_at, "expires_in": ojs_settings.REALTIME_TICKET_TTL}
        return Response(self.represent(told), status=201)

    def _page(self, page: log.EventPage, limit: int, **job: Any) -> Response:
        """The answer with a page of the log; `job` is what the history says of its job."""
        pagination: dict[str, Any] = {"limit": limit, "per_page": limit, "has_more": page.has_more}
        if page.has_more:
            pagination["next_cursor"] = page.cursor
        beside = {**job, "cursor": page.cursor, "has_more": page.has_more, "gap": page.gap or None}
        return self.whole_list(self._events(page.events), pagination, beside)

    def _newest(self, wanted: Filter, number: int, size: int) -> Response:
        """A dashboard's page. Its cursor is the newest event shown: who follows the log from there misses nothing."""
        since, until = query.instant(self.request, "since"), query.instant(self.request, "until")
        page = log.newest(wanted, since=since, until=until, offset=(number - 1) * size, limit=size)
        pagination: dict[str, Any] = {"total": page.total, "page": number, "per_page": size, "limit": size}
        pagination["has_more"] = page.has_more
        if page.has_more:
            pagination["next_cursor"] = f"page_{number + 1}_{size}"
        beside = {"cursor": page.events[0]["id"] if page.events else None, "has_more": page.has_more}
        return self.whole_list(self._events(page.events), pagination, beside)

    def _events(self, events: Sequence[dict[str, Any]]) -> RawJSON:
        """What is shown of the events, written once for all the names of the list."""
        return RawJSON(jsontext.dumps(self.get_serializer(many=True).to_representation(events)))


def wanted_by(request: Request) -> Filter:
    """The filter of the query string, within the limits of the caller's key."""
    job_types = query.texts(request, "job_types")
    for name in job_types:
        check_type(request, name)
    job_id, workflow = query.uuid7(request, "job_id"), query.text(request, "workflow_id")
    return Filter(
        types=tuple(query.texts(request, "types", EVENT_QUERY)),
        queues=tuple(permissions.queues_to_read(request, query.texts(request, "queues", EVENT_QUERY))),
        job_types=tuple(job_types),
        sources=tuple(query.texts(request, "sources", most=MAX_SOURCES)),
        job_ids=(job_id,) if job_id else (),
        workflow_ids=keys_of((workflow,)) if workflow else (),
        only_types=type_limit(request),
        only_jobs=permissions.only_job_events(request),
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
    return min(query.integer(request, "limit", minimum=1) or DEFAULT_EVENTS, MAX_EVENTS)


def read_log(request: Request, wanted: Filter, limit: int, cursor: query.Behind) -> log.EventPage:
    """The page of the log that the query asks for behind `cursor`, oldest first."""
    since, until = query.instant(request, "since"), query.instant(request, "until")
    with cursor.named():
        return log.read(wanted=wanted, after=cursor.after, since=since, until=until, limit=limit)


def _may_read(request: HttpRequest) -> bool:
    """Whether the binding knows this visitor by the session, and lets it read. The page's own request stays."""
    asked = Request(copy.copy(request), authenticators=base.authenticators(tuple(ojs_settings.AUTHENTICATION_CLASSES)))
    try:
        permissions.require_scope(asked, "read", operation="events", model="event")
    except (OJSError, APIException):
        return False
    return True
