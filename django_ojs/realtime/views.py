"""The paths of event streams. Who may listen is decided as everywhere in the binding, before the stream begins.

The view itself is an ordinary one: it authenticates, looks up what it has to, and gives its connection back. Only
the answer it returns is asynchronous, and an ASGI server sends it. Under WSGI a stream would hold a whole process
for each listener, so it is refused with 406 and the hint to poll.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from django.contrib.auth import get_user
from django.contrib.sessions.backends.base import SessionBase
from django.core.exceptions import ObjectDoesNotExist
from django.db import router
from django.db.models import Model
from django.http import HttpRequest
from rest_framework.request import Request
from rest_framework.response import Response

from django_ojs import keys, tenants
from django_ojs.errors import (
    InvalidRequest,
    OJSError,
    PermissionDenied,
    StreamingUnavailable,
    Unauthenticated,
)
from django_ojs.events import log, order
from django_ojs.events.filters import MEANT, Filter
from django_ojs.http import events, fields, permissions, query, server
from django_ojs.http.authentication import OURS, session_of
from django_ojs.http.base import OJSView
from django_ojs.http.jobs import LOG_LEVELS, wanted_lines
from django_ojs.http.openapi import EVENT_STREAM
from django_ojs.http.operation import operation
from django_ojs.http.permissions import api_key, check_queue, queue_limit, type_limit
from django_ojs.jobs import joblog
from django_ojs.jobs.read import info
from django_ojs.models import APIKey
from django_ojs.realtime import sse
from django_ojs.realtime.access import lost_rights, require_queue
from django_ojs.realtime.slots import Slot, client_of
from django_ojs.realtime.sse import Beginning, EventStream, Feed
from django_ojs.rules import names
from django_ojs.rules.faults import query_fault
from django_ojs.spellings import EVENT_QUERY, STREAM_QUERY

_ONE = "types event_types since last_event_id"
_ALL = f"channel event_types last_event_id {events.FILTERS}"


class Streaming:
    """The base of views whose answer may be an event stream."""

    def finalize_response(self, request: Request, response: Any, *args: Any, **kwargs: Any) -> Any:
        finish: Any = super().finalize_response  # type: ignore[misc]
        if not isinstance(response, EventStream):
            response = finish(request, response, *args, **kwargs)
            if request.method == "HEAD" and response.status_code == 200 and "Content-Type" not in response:
                response["Content-Type"] = "text/event-stream"
            return response
        headers = finish(request, Response(), *args, **kwargs)
        for name in ("OJS-Version", "X-OJS-Version", "X-Content-Type-Options", "X-Request-Id", "Vary"):
            response[name] = headers[name]
        response["Cache-Control"] = "no-cache"
        return response


_Feeding = TypeVar("_Feeding", bound=Callable[..., Feed])


def _stream(
    summary: str, query: str = "since last_event_id", *errors: int, **facts: Any
) -> Callable[[_Feeding], _Feeding]:
    """Declare what a stream is: nothing but its media type is known of what it sends, and under WSGI it answers 406."""
    return operation(
        **{"scope": "read", **facts}, summary=summary, query=query, answers={200: None}, text=EVENT_STREAM,
        resumes=True, errors=(406, *errors),
    )  # fmt: skip


class StreamView(Streaming, OJSView):
    """One kind of stream: a subclass makes its `feed`, and declares there what it is."""

    @classmethod
    def declared(cls, names: Mapping[str, str], *, operator: bool) -> dict[str, Any]:
        return super().declared({"get": "feed"}, operator=operator)

    def get(self, request: Request, **place: str) -> Any:
        # Where it begins is taken first: what happens to a job after that is in the events behind it.
        begin = _beginning(request)
        return stream(self, request, self.feed(request, **place), begin)

    def head(self, request: Request, **place: str) -> Response:
        """What GET would answer, without beginning a stream that no client could end."""
        self.feed(request, **place)
        _need_asgi(request)
        return Response()

    def feed(self, request: Request, **place: str) -> Feed:
        raise NotImplementedError


class AllEventsView(StreamView):
    """`GET /events/stream`: everything the caller may see, or one channel of it."""

    model_name = "event"

    @_stream("A stream of everything", _ALL, 404)
    def feed(self, request: Request, **place: str) -> Feed:
        channel = query.text(request, "channel") or "all"
        kind, _, name = channel.partition(":")
        same = {"job": ("job_id",), "queue": ("queue", "queues")}.get(kind, ())
        read = _ALL if kind == "all" else f"channel {_ONE}"
        query.refuse_others(request, MEANT, read, STREAM_QUERY, EVENT_QUERY, **dict.fromkeys(same, name))
        match kind:
            case "all" if not name:
                wanted = events.wanted_by(request)
                types = tuple(query.texts(request, "event_types", STREAM_QUERY))
                return Feed(channel, dataclasses.replace(wanted, types=types))
            case "job" if name:
                return of_job(request, name)
            case "queue" if name:
                try:
                    return of_queue(request, names.check_queue(name))
                except ValueError as error:
                    raise query_fault("channel", str(error), channel) from error
        raise query_fault("channel", "must be all, job:{id} or queue:{name}", channel)


class StreamingEventViewSet(Streaming, events.EventViewSet):
    """`GET /events` answers with a stream where the caller accepts one."""

    def stream(self, request: Request) -> EventStream | None:
        if "text/event-stream" not in request.META.get("HTTP_ACCEPT", "").lower() or request.method == "HEAD":
            return None
        begin = _beginning(request)
        return stream(self, request, AllEventsView().feed(request), begin)


class JobEventsView(StreamView):
    """`GET /jobs/{id}/events`; ends with the job."""

    @_stream("A stream about a job", _ONE)
    def feed(self, request: Request, **place: str) -> Feed:
        query.refuse_others(request, MEANT, _ONE, STREAM_QUERY, job_id=place["job_id"])
        return of_job(request, place["job_id"])


class QueueEventsView(StreamView):
    """`GET /queues/{name}/events`"""

    model_name = "event"

    @_stream("A stream about a queue", _ONE)
    def feed(self, request: Request, **place: str) -> Feed:
        """Raises NotFound for a queue that nothing has used yet."""
        name = place["name"]
        query.refuse_others(request, MEANT, _ONE, STREAM_QUERY, queue=name, queues=name)
        feed = of_queue(request, name)
        require_queue(name)
        return feed


class JobProgressView(StreamView):
    """`GET /jobs/{id}/progress/stream`"""

    @_stream("A stream of a job's progress")
    def feed(self, request: Request, **place: str) -> Feed:
        return sse.ProgressFeed(_row(request, place["job_id"]))


class JobResultView(StreamView):
    """`GET /jobs/{id}/result/stream`"""

    @_stream("A stream that ends with a job's result")
    def feed(self, request: Request, **place: str) -> Feed:
        return sse.ResultFeed(_row(request, place["job_id"]))


class JobLogsView(StreamView):
    """`GET /jobs/{id}/logs/stream`; ends with the job. Its cursors are those of the job's lines."""

    def get(self, request: Request, **place: str) -> Any:
        begin = _now()
        return stream(self, request, self.feed(request, **place), begin)

    @_stream("A stream of what a job's handler logs", f"attempt level={LOG_LEVELS} after last_event_id")
    def feed(self, request: Request, **place: str) -> Feed:
        row = _row(request, place["job_id"])
        last = request.META.get("HTTP_LAST_EVENT_ID") or query.text(request, "last_event_id")
        if last and joblog.is_cursor(last):
            after: str | None = last
        else:  # an EventSource would never come back after an error (events 4)
            after = query.text(request, "cursor") or query.text(request, "after") or None
        return sse.LogFeed(row, after, **wanted_lines(request))


class StatisticsView(StreamView):
    """`GET /admin/stats/stream`, for dashboards. Shows workers, and so needs what `/admin/workers` does."""

    @_stream("A stream for dashboards", scope="admin.read", right="view_worker")
    def feed(self, request: Request, **place: str) -> Feed:
        permissions.check_figures(request)
        return sse.StatisticsFeed(queue_limit(request))


def stream(view: OJSView, request: Request, feed: Feed, begin: Beginning) -> EventStream:
    """The answer that goes on, within the limits of the caller. Raises StreamingUnavailable under WSGI, RateLimited for
    too many at once."""
    _need_asgi(request)
    feed.wanted = dataclasses.replace(feed.wanted, only_queues=queue_limit(request), only_types=type_limit(request))
    opening = feed.opening(begin)
    slot = Slot("streams", client_of(request, request.META.get("REMOTE_ADDR", "")))
    rights = _guard(view, request)

    def may_go_on() -> OJSError | None:
        return rights() or _job_fault(request, feed)

    sse.close_own_connections()
    return EventStream(sse.pump(feed, begin, opening, may_go_on, slot), slot)


def _need_asgi(request: Request) -> None:
    if not server.is_asgi(request):
        raise StreamingUnavailable("Event streams need an ASGI server, and this site runs under WSGI.")


def of_job(request: Request, job_id: str) -> Feed:
    row = _row(request, job_id)
    types = query.texts(request, "event_types", STREAM_QUERY)
    return sse.JobFeed(row, Filter(types=tuple(types), job_ids=(row["id"],)))


def of_queue(request: Request, name: str) -> Feed:
    """The events of a queue, which may still be to come: a client listens before it pushes the first job."""
    check_queue(request, name)
    types = query.texts(request, "event_types", STREAM_QUERY)
    wanted = Filter(types=tuple(types), queues=(name,), only_jobs=permissions.only_job_events(request))
    return Feed(f"queue:{name}", wanted)


def _row(request: Request, job_id: str) -> Any:
    row = info(fields.path_id(job_id))
    permissions.check_row(request, row)
    return row


def _beginning(request: Request) -> Beginning:
    """Behind the last event that the client has seen, behind `since`, or behind what is there now.

    Now is when the request came, not when the stream has been set up: between the two nothing is lost. An id that
    cannot be resumed from makes a gap, and no error: an EventSource would never come back after one (events 4). Behind
    it comes what is new; where the log's history has changed, all that the client has not seen.
    """
    using = log.database()
    tenants.refuse_streams(using)
    order.catch_up(using, strict=False)
    named = query.name_in(request, STREAM_QUERY, "last_event_id")
    last = request.META.get("HTTP_LAST_EVENT_ID") or query.text(request, named)
    if last:
        try:
            found, gap = log.resume(last, using)
        except InvalidRequest:
            gap = {"reason": "unknown_event_id"}
        else:
            if found.state == "lost":
                return Beginning(found.place, log.cursor(found.place, using), gap, asked=True)
            if gap is None:
                return Beginning(found.place, last, asked=True)
        end = order.end_position(using)
        return Beginning(end, log.cursor(end, using), gap)
    since = query.instant(request, "since")
    place = order.end_position(using) if since is None else order.before(using, since)
    return Beginning(place, log.cursor(place, using), asked=since is not None)


def _now() -> Beginning:
    """Behind all events that are there now."""
    using = log.database()
    tenants.refuse_streams(using)
    order.catch_up(using, strict=False)
    return Beginning(order.end_position(using))


def _guard(view: OJSView, request: Request) -> Callable[[], OJSError | None]:
    """Asks what the view asked, again: a key may be revoked or changed, a user log out or lose their rights."""
    key = api_key(request)
    if key is not None:
        return lambda: _key_fault(key)
    session = session_of(request)
    by: Any = request.successful_authenticator
    only_jobs = permissions.only_job_events(request)

    def check() -> OJSError | None:
        user = request.user
        try:
            if session is not None:
                request.user = _user_of(session)
            else:
                if by is not None and type(by) not in OURS:
                    try:
                        user = Request(request._request, authenticators=[by]).user
                    except Exception as cause:  # noqa: BLE001 - whatever a site's own authentication raises
                        return lost_rights(cause)
                if isinstance(user, Model):
                    user = user.__class__._default_manager.get(pk=user.pk)
                request.user = user
            view.check_permissions(request)
            if permissions.only_job_events(request) and not only_jobs:
                return PermissionDenied("The user of this stream may not view all events any more.")
        except OJSError as error:
            return error
        except ObjectDoesNotExist:
            return Unauthenticated("The user of this stream is gone.")
        return None

    return check


def _job_fault(request: Request, feed: Feed) -> OJSError | None:
    """Whether the job of a stream has come to a queue outside of the caller's limits: nothing more is to be heard."""
    if feed.channel.startswith("job:"):
        try:
            permissions.check_jobs(request, feed.wanted.job_ids)
        except PermissionDenied as error:
            return error
    return None


def _user_of(session: SessionBase) -> Any:
    """The user whom the session names as it is stored now; anonymous if it has ended, or the password is another."""
    http: Any = HttpRequest()
    http.session = type(session)(session.session_key)
    return get_user(http)


def _key_fault(key: APIKey) -> OJSError | None:
    now = APIKey.objects.using(key._state.db or router.db_for_write(APIKey)).filter(pk=key.pk).first()
    active = now is not None and keys.status(now) == "active"
    if now is None or not active or (now.queues, now.job_types, now.scopes) != (key.queues, key.job_types, key.scopes):
        return Unauthenticated("The API key of this stream is no longer valid, or its rights have changed.")
    return None
