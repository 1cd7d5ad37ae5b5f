"""The event log, newest first, as far back as it is kept, and the page that follows it live."""

from __future__ import annotations

import dataclasses
import uuid
from typing import Any

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, QueryDict
from django.urls import URLPattern
from django.utils.cache import add_never_cache_headers
from django.utils.dateparse import parse_datetime
from django.utils.html import format_html
from django.utils.http import urlencode
from django.utils.safestring import SafeString
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from django_ojs import jsontext
from django_ojs.admin import display
from django_ojs.admin.base import EndlessChangeList, IdSearchAdmin, JobTypeFilter, text_filter, unless_large
from django_ojs.admin.history import WORTH, event_summary
from django_ojs.errors import BackendUnavailable, InvalidRequest
from django_ojs.events import log, order
from django_ojs.events.filters import Filter
from django_ojs.http.events import socket_address
from django_ojs.models import Event, Job
from django_ojs.rules import redaction
from django_ojs.rules.ids import parse_id


class EventChangeList(EndlessChangeList):
    """Loads no large data, such as the results that events of completed jobs may carry.

    No index finds what the filters ask for, so they look at the newest events only.
    """

    #: What the page says about that; '' where all events are listed.
    reach = ""

    def get_queryset(self, request: HttpRequest, exclude_parameters: Any = None) -> QuerySet[Event]:
        events: QuerySet[Event] = super().get_queryset(request, exclude_parameters)
        if self.has_active_filters and not self.query:
            events = events.filter(pk__gt=order.newest_id(events.db) - log.WINDOW)
            self.reach = gettext("Filters look at the newest %(number)s events.") % {"number": f"{log.WINDOW:,}"}
        return events.defer("data").annotate(short_data=unless_large("data"))


#: Events that the page begins with, that one answer has at most, and characters of one's data.
FIRST, MOST, CHARACTERS = 50, 200, 4000
#: How many rows the page may keep.
ROWS = (100, 200, 500)
_VALUES = 20
_NOWHERE = uuid.UUID(int=0)


@dataclasses.dataclass(frozen=True)
class EventQuery:
    """The events that a user follows and how the page shows them, read from the query string.

    `problem` says what is wrong with that, '' mostly.
    """

    types: tuple[str, ...] = ()
    queues: tuple[str, ...] = ()
    job_types: tuple[str, ...] = ()
    job_id: str = ""
    detail: str = "short"
    order: str = "top"
    rows: int = ROWS[1]
    problem: str = ""

    @classmethod
    def of(cls, query: QueryDict) -> EventQuery:
        job_id = _clean(query.get("job_id", "")).lower()
        problem = ""
        if job_id and not parse_id(job_id):
            problem = gettext("“%(text)s” is not the id of a job.") % {"text": display.ellipsized(job_id, 40)}
        rows = query.get("rows", "")
        return cls(
            types=_several(query.get("types", "")),
            queues=_several(query.get("queues", "")),
            job_types=_several(query.get("job_types", "")),
            job_id=job_id,
            detail="full" if query.get("detail") == "full" else "short",
            order="bottom" if query.get("order") == "bottom" else "top",
            rows=int(rows) if rows in map(str, ROWS) else ROWS[1],
            problem=problem,
        )

    @property
    def filter(self) -> Filter:
        ids = (uuid.UUID(self.job_id),) if self.job_id else ()
        return Filter(types=self.types, queues=self.queues, job_types=self.job_types, job_ids=ids)

    @property
    def on_the_wire(self) -> dict[str, list[str]]:
        """The same as the WebSocket takes it."""
        found = {"types": self.types, "queues": self.queues, "job_types": self.job_types}
        found["job_ids"] = (self.job_id,) if self.job_id else ()
        return {name: list(values) for name, values in found.items() if values}

    @property
    def query(self) -> str:
        """The same as the query string takes it."""
        given = {name: " ".join(getattr(self, name)) for name in ("types", "queues", "job_types")}
        return urlencode({name: text for name, text in {**given, "job_id": self.job_id}.items() if text})


@admin.register(Event)
class EventAdmin(IdSearchAdmin):
    """The list, and the live tail: a page that follows the log over the WebSocket, or asks every two seconds."""

    list_display = ("shown_type", "at", "about", "job_type", "queue", "state_label", "attempt", "who", "glance")
    list_display_links = ("shown_type",)
    list_filter = (
        text_filter(_("event type"), "type", _("job.failed or worker.*")),
        JobTypeFilter,
        text_filter(_("queue"), "queue"),
    )
    list_per_page = 100
    ordering = ("-id",)
    id_column = "job_id"
    fields = (
        "shown_type", "at", "about", "job_type", "queue", "state_label", "attempt", "worker_id", "component",
        "trace_id", "workflow_id", "shown_data",
    )  # fmt: skip

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[EndlessChangeList]:
        return EventChangeList

    at = display.column(display.when, "time", "time")
    shown_type = display.column(display.code, "type", "event")

    @admin.display(description=_("about"))
    def about(self, event: Event) -> SafeString | str:
        if event.job_id is None:
            return display.code(event.subject)
        if not (url := self.url_of(Job, event.job_id)):
            return display.code(event.job_id)
        text = str(event.job_id)
        return format_html('<a class="ojs-id" title="{}" href="{}">{}…{}</a>', text, url, text[:8], text[-6:])

    @admin.display(description=_("state"))
    def state_label(self, event: Event) -> SafeString | str:
        return display.colour_label(event.state) if event.state else display.NOTHING

    @admin.display(description=_("by"))
    def who(self, event: Event) -> str:
        return display.ellipsized(event.worker_id or event.component, 40)

    @admin.display(description=_("data"))
    def glance(self, event: Any) -> str:
        return event_summary(event.short_data, event.job_type) or display.NOTHING

    @admin.display(description=_("data"))
    def shown_data(self, event: Event) -> SafeString | str:
        return display.json(redaction.event(event.job_type, event.data) if event.data else event.data)

    # The live tail

    def get_urls(self) -> list[URLPattern]:
        return [
            self.route("tail/", self.tail_page, "event_tail"),
            self.route("tail/more/", self.tail_more, "event_tail_more"),
            *super().get_urls(),
        ]

    def tail_page(self, request: HttpRequest) -> HttpResponse:
        if not self.has_view_permission(request):
            raise PermissionDenied
        wanted = EventQuery.of(request.GET)
        end = _last_cursor()
        found = [] if wanted.problem else log.newest(wanted.filter, limit=FIRST).events
        if wanted.order == "bottom":
            found.reverse()
        context = {
            "here": "event_tail",
            "wanted": wanted,
            "shown": {name: " ".join(getattr(wanted, name)) for name in ("types", "queues", "job_types")},
            "rows_choices": ROWS,
            "events": [_line(event) for event in found],
            "cursor": end or "",
            "more": f"{self.url('event_tail_more')}?{wanted.query}",
            "socket": socket_address(request),
            "filter": jsontext.dumps(wanted.on_the_wire),
            "worth": jsontext.dumps({name: str(word) for name, word in WORTH.items()}),
            "job_url": self._job_url(request),
        }
        return self.page(request, "tail", gettext("Live events"), **context)

    def tail_more(self, request: HttpRequest) -> HttpResponse:
        """The events behind the cursor `after`, oldest first, and where to go on."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        wanted, after = EventQuery.of(request.GET), _clean(request.GET.get("after", "")) or None
        end = _last_cursor()  # taken first: what comes while we read is behind it or among what is read
        try:
            if wanted.problem:
                raise InvalidRequest(wanted.problem)
            page = log.read(wanted=wanted.filter, after=after, limit=MOST)
        except (InvalidRequest, BackendUnavailable) as error:
            return HttpResponse(jsontext.dumps({"error": error.message}), "application/json", status=error.status)
        cursor = page.cursor if page.has_more or page.events else end or after
        body = {"events": page.events, "cursor": cursor, "has_more": page.has_more, "gap": page.gap}
        response = HttpResponse(jsontext.dumps(body).encode("utf-8", "backslashreplace"), "application/json")
        add_never_cache_headers(response)
        return response

    def _job_url(self, request: HttpRequest) -> str:
        """A job's page with an id of zeros for the script to replace; '' for a user who may not see it."""
        return self.url_of(Job, _NOWHERE, request)


def _last_cursor() -> str | None:
    """The cursor of the log's last event, what was committed just now included."""
    using = log.database()
    order.catch_up(using, strict=False)
    return log.cursor(order.end_position(using), using)


def _clean(text: str) -> str:
    return "".join(letter for letter in text if letter.isprintable()).strip()[:255]


def _several(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(_clean(text.replace(",", " ")).split()))[:_VALUES]


def _line(event: dict[str, Any]) -> dict[str, Any]:
    """One event as the page shows it; the script makes the same of what comes later."""
    data, time = event["data"], parse_datetime(event["time"])
    text = display.printable(display.pretty(data))
    return {
        "id": event["id"],
        "type": event["type"],
        "exact": event["time"],
        "time": display.when(time),
        "job": str(data.get("job_id") or ""),
        "subject": display.ellipsized(event["subject"], 60),
        "job_type": display.ellipsized(data.get("job_type") or "", 60),
        "queue": display.ellipsized(data.get("queue") or "", 60),
        "state": display.colour_label(data["state"]) if data.get("state") else "",
        "attempt": data.get("attempt") or "",
        "note": event_summary(data, str(data.get("job_type") or "")),
        "data": text[:CHARACTERS] + ("…" if len(text) > CHARACTERS else ""),
    }
