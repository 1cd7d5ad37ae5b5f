"""The live tail of the event log: a page that follows it, and what its script asks for where there is no WebSocket."""

from __future__ import annotations

import dataclasses
import uuid
from typing import Any

from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, QueryDict
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils.cache import add_never_cache_headers
from django.utils.dateparse import parse_datetime
from django.utils.http import urlencode
from django.utils.translation import gettext as _

from django_ojs import jsontext
from django_ojs.admin import display
from django_ojs.admin.base import IdSearchAdmin
from django_ojs.admin.timeline import WORTH, note
from django_ojs.errors import BackendUnavailable, InvalidRequest
from django_ojs.events import log, newest, order, places
from django_ojs.events.filters import Filter
from django_ojs.http import sockets
from django_ojs.models import Job
from django_ojs.rules import names

#: Events that the page begins with, that one answer has at most, and characters of one's data.
FIRST, MOST, CHARACTERS = 50, 200, 4000
#: How many rows the page may keep.
ROWS = (100, 200, 500)
_VALUES = 20
_NOWHERE = uuid.UUID(int=0)


@dataclasses.dataclass(frozen=True)
class Wanted:
    """What is followed and how it is shown, as the query string says it; `problem`: what is wrong with that."""

    types: tuple[str, ...] = ()
    queues: tuple[str, ...] = ()
    job_types: tuple[str, ...] = ()
    job_id: str = ""
    detail: str = "short"
    order: str = "top"
    rows: int = ROWS[1]
    problem: str = ""

    @classmethod
    def of(cls, query: QueryDict) -> Wanted:
        job_id = _clean(query.get("job_id", "")).lower()
        problem = ""
        if job_id and not names.is_job_id(job_id):
            problem = _("“%(text)s” is not the id of a job.") % {"text": display.shorten(job_id, 40)}
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


class TailAdmin(IdSearchAdmin):
    """Adds the pages to the admin of events."""

    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view
        name = f"{self.opts.app_label}_event_tail"
        return [
            path("tail/", view(self.tail_page), name=name),
            path("tail/more/", view(self.tail_more), name=f"{name}_more"),
            *super().get_urls(),
        ]

    def tail_page(self, request: HttpRequest) -> HttpResponse:
        if not self.has_view_permission(request):
            raise PermissionDenied
        wanted = Wanted.of(request.GET)
        end = _end()
        found = [] if wanted.problem else newest.page(wanted.filter, limit=FIRST).events
        if wanted.order == "bottom":
            found.reverse()
        place = reverse(f"admin:{self.opts.app_label}_event_tail_more", current_app=self.admin_site.name)
        context = {
            **self.admin_site.each_context(request),
            "title": _("Live events"),
            "opts": self.opts,
            "media": self.media,
            "here": "event_tail",
            "wanted": wanted,
            "shown": {name: " ".join(getattr(wanted, name)) for name in ("types", "queues", "job_types")},
            "rows_choices": ROWS,
            "events": [_line(event) for event in found],
            "cursor": end or "",
            "more": f"{place}?{wanted.query}",
            "socket": sockets.address(request),
            "filter": jsontext.dumps(wanted.on_the_wire),
            "worth": jsontext.dumps({name: str(word) for name, word in WORTH.items()}),
            "job_url": self._job_url(request),
        }
        return TemplateResponse(request, "django_ojs/admin/tail.html", context)

    def tail_more(self, request: HttpRequest) -> HttpResponse:
        """The events behind the cursor `after`, oldest first, and where to go on."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        wanted, after = Wanted.of(request.GET), _clean(request.GET.get("after", "")) or None
        end = _end()  # taken first: what comes while we read is behind it or among what is read
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
        """A job's page with an id of zeros for the script to replace; '' for who may not see it."""
        if Job not in self.admin_site._registry or not request.user.has_perm(f"{self.opts.app_label}.view_job"):
            return ""
        return reverse("admin:django_ojs_job_change", args=[_NOWHERE], current_app=self.admin_site.name)


def _end() -> str | None:
    """The cursor of the log's last event, what was committed just now included."""
    using = log.database()
    order.catch_up(using, strict=False)
    return log.cursor(places.end(using), using)


def _clean(text: str) -> str:
    return "".join(letter for letter in text if letter.isprintable()).strip()[:255]


def _several(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(_clean(text.replace(",", " ")).split()))[:_VALUES]


def _line(event: dict[str, Any]) -> dict[str, Any]:
    """One event as the page shows it; the script makes the same of what comes later."""
    data, time = event["data"], parse_datetime(event["time"])
    told = display.printable(display.pretty(data))
    return {
        "id": event["id"],
        "type": event["type"],
        "exact": event["time"],
        "time": display.when(time),
        "job": str(data.get("job_id") or ""),
        "subject": display.shorten(event["subject"], 60),
        "job_type": display.shorten(data.get("job_type") or "", 60),
        "queue": display.shorten(data.get("queue") or "", 60),
        "state": display.label(data["state"]) if data.get("state") else "",
        "attempt": data.get("attempt") or "",
        "note": note(data, str(data.get("job_type") or "")),
        "data": told[:CHARACTERS] + ("…" if len(told) > CHARACTERS else ""),
    }
