"""`GET /events`: the event log by cursor, or by page for a dashboard; the history of one job (events 5)."""

from __future__ import annotations

from typing import Any

from rest_framework.request import Request
from rest_framework.response import Response

from django_ojs import jsontext
from django_ojs.errors import NotFound
from django_ojs.events import log, newest
from django_ojs.events.filters import Filter
from django_ojs.http import access, compat, fields, query
from django_ojs.http.base import OJSView
from django_ojs.http.permissions import check_type, queue_limit, type_limit
from django_ojs.models.fields import RawJSON
from django_ojs.operations.info import info

DEFAULT_LIMIT = 100
MAX_LIMIT = 1000
#: Of the dashboard's pages.
PER_PAGE, MAX_PER_PAGE = 50, 100


class Events(OJSView):
    """Oldest first, behind `after`; `cursor` is where to go on. With `page` or `per_page` newest first."""

    scopes = {"GET": "read"}

    def get(self, request: Request) -> Response:
        limit = _limit(request)
        number = query.integer(request, "page", minimum=1)
        size = query.integer(request, "per_page", minimum=1)
        wanted, after = wanted_by(request), query.text(request, "after")
        if after or (number is None and size is None):
            return Response(_body(_read(request, wanted, limit), limit))
        return Response(_newest(request, wanted, number or 1, min(size or PER_PAGE, MAX_PER_PAGE)))


class JobHistory(OJSView):
    """`GET /jobs/{id}/history`, `/events/{id}/history`: what happened to a job, oldest first, while it is known."""

    scopes = {"GET": "read"}

    def get(self, request: Request, job_id: str) -> Response:
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
            access.check_row(request, row)
            job = {"state": row["state"], "attempt": row["attempt"]}
        body = _body(_read(request, wanted, limit), limit)
        return Response({"job_id": str(identifier), **job, **body, "history": body["events"]})


def wanted_by(request: Request) -> Filter:
    """The filter of the query string, within the limits of the caller's key."""
    job_types = query.texts(request, "job_types")
    for name in job_types:
        check_type(request, name)
    job_id, workflow_id = query.uuid7(request, "job_id"), query.uuid7(request, "workflow_id")
    return Filter(
        types=tuple(query.texts(request, "types", "type")),
        queues=tuple(access.queues_to_read(request, query.texts(request, "queues", "queue"))),
        job_types=tuple(job_types),
        sources=tuple(query.texts(request, "sources")),
        job_ids=(job_id,) if job_id else (),
        workflow_ids=(workflow_id,) if workflow_id else (),
        only_types=type_limit(request),
    )


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


def _body(page: log.Page, limit: int) -> dict[str, Any]:
    shown = _shown(page.events)
    pagination: dict[str, Any] = {"limit": limit, "per_page": limit, "has_more": page.has_more}
    if page.has_more:
        pagination["next_cursor"] = page.cursor
    body = {"events": shown, "items": shown, "cursor": page.cursor, "has_more": page.has_more}
    return body | {"pagination": pagination} | ({"gap": page.gap} if page.gap else {})


def _newest(request: Request, wanted: Filter, number: int, size: int) -> dict[str, Any]:
    """A dashboard's page. Its cursor is the newest event shown: who follows the log from there misses nothing."""
    since, until = query.instant(request, "since"), query.instant(request, "until")
    page = newest.page(wanted, since=since, until=until, offset=(number - 1) * size, limit=size)
    shown = _shown(page.events)
    pagination = {"total": page.total, "page": number, "per_page": size, "limit": size, "has_more": page.has_more}
    cursor = page.events[0]["id"] if page.events else None
    return {"events": shown, "items": shown, "cursor": cursor, "has_more": page.has_more, "pagination": pagination}


def _shown(events: list[dict[str, Any]]) -> RawJSON:
    return RawJSON(jsontext.dumps([compat.event(event) for event in events]))
