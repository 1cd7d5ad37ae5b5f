"""Pages that follow the server while they are open: `LivePage` is of one object, `LiveSitePages` of the site.

The server renders the part that changes. The script `live.js` asks for it when an event says that something happened,
and now and then for what changes without one; where there is no WebSocket, or this user may read no events, it asks
more often instead. `follow` makes the attributes that the script reads.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import wraps
from typing import Any, ClassVar

from django.contrib.admin.utils import quote, unquote
from django.core.exceptions import PermissionDenied
from django.forms.utils import flatatt
from django.http import Http404, HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import URLPattern
from django.utils.cache import add_never_cache_headers
from django.utils.html import format_html
from django.utils.safestring import SafeString

from django_ojs.admin.display import Column
from django_ojs.admin.operate import OperatingAdmin
from django_ojs.http.events import socket_address
from django_ojs.jobs import approvals

#: Seconds between two questions without the WebSocket, and with it, for ages and heartbeats.
POLLING, FOLLOWING = 2.0, 15.0
#: The first for the page of one object, whose answer no two viewers share.
PAGE_POLLING = 5.0
#: How old, in seconds, the numbers may be that all viewers share.
FRESH = 2.0
#: Milliseconds after an event in which no other is sent: one is enough to ask for the page again.
INTERVAL = 500

#: What changes the numbers of the overview. No heartbeats: they come all the time.
OVERVIEW = (
    "job.state_changed", "dead_letter.retried", "dead_letter.replayed", "dead_letter.deleted", "dead_letter.pruned",
    "queue.*", "queue.created", "queue.config_updated", "queue.deleted",
    "worker.registered", "worker.started", "worker.quiet", "worker.stopped", "worker.terminated", "cron.*",
)  # fmt: skip
JOBS = ("job.state_changed",)
DEAD_LETTERS = (
    "job.discarded", "dead_letter.retried", "dead_letter.replayed", "dead_letter.deleted", "dead_letter.pruned",
)  # fmt: skip
#: Of one worker, for what it holds. They cannot be filtered by worker.
WORKER = (
    "job.state_changed", "worker.registered", "worker.started", "worker.quiet", "worker.stopped", "worker.terminated",
)  # fmt: skip
WORKFLOW = ("job.state_changed", "workflow.*", "workflow.cancelled")
JOB = (
    "job.*", "job.state_changed", "job.timeout", "job.stalled", "dead_letter.retried", "dead_letter.replayed",
    "priority.changed", "result.pruned",
)  # fmt: skip


#: What changes the number of approvals at the top of each page, and their list.
APPROVALS = ("approval.requested", "approval.decided", "approval.delegated", "approval.escalated")


def follow(
    request: HttpRequest, url: str, types: Sequence[str], *, age: float = 0.0, every: float = POLLING, **only: Any
) -> SafeString:
    """The attributes of the part at `url`: it changes with events of these types, of the jobs or workflows in `only`,
    and with those of approvals for who sees how many there are.

    Args:
        age: seconds for which the server may show what it has shown before.
        every: seconds between two questions where there are no events.
    """
    attributes = {"data-ojs-live": url, "data-ojs-age": _ms(age), "data-ojs-every": _ms(every)}
    if socket := socket_address(request):
        counted = APPROVALS if any(map(request.user.has_perm, (approvals.DECIDE, approvals.VIEW))) else ()
        asked = {
            "event_types": list(dict.fromkeys([*types, *counted])),
            **{name: [str(value)] for name, value in only.items()},
        }
        subscription = {
            "action": "subscribe", "channel": "events", "filter": asked, "min_interval_ms": INTERVAL
        }  # fmt: skip
        attributes |= {
            "data-ojs-socket": socket, "data-ojs-subscribe": json.dumps(subscription),
            "data-ojs-interval": str(INTERVAL), "data-ojs-following": _ms(FOLLOWING),
        }  # fmt: skip
    return flatatt(attributes)


def cell(column: Column) -> Column:
    """A column of a list whose rows stay where they are: each of its cells is a part of the live page."""

    @wraps(column)
    def render_cell(model_admin: Any, obj: Any) -> SafeString:
        name = f"{obj.pk}-{column.__name__}"
        return format_html('<span data-ojs-part="{}">{}</span>', name, column(model_admin, obj))

    return render_cell


def _ms(seconds: float) -> str:
    return str(round(seconds * 1000))


class LivePage(OperatingAdmin):
    """An admin whose page of an object is live: the script takes from it the parts with `data-ojs-part`."""

    #: Events that change the page, and the member of the subscription's filter that its primary key is; '': none.
    live_types: ClassVar[Sequence[str]] = ()
    live_filter: ClassVar[str] = ""

    def get_urls(self) -> list[URLPattern]:
        page = self.route("<path:object_id>/live/", self.live_view, f"{self.opts.model_name}_live")
        return [page, *super().get_urls()]

    def live_age(self, obj: Any) -> float:
        """Seconds between two looks at least, for a page that costs more than others."""
        return 0.0

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        response = super().change_view(request, object_id, form_url, extra_context)
        if isinstance(response, TemplateResponse) and response.context_data is not None:
            obj = response.context_data["original"]
            only = {self.live_filter: obj.pk} if self.live_filter else {}
            url, age = self.own_url("live", quote(obj.pk)), self.live_age(obj)
            url += f"?{query}" if (query := request.GET.urlencode()) else ""
            response.context_data["follow"] = follow(
                request, url, self.live_types, age=age, every=age or PAGE_POLLING, **only
            )
        return response

    def live_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """The page again, without the messages: those belong to the page that follows an act."""
        if self.get_object(request, unquote(object_id)) is None:
            raise Http404
        response = self.change_view(request, object_id, extra_context={"messages": ()})
        add_never_cache_headers(response)
        return response


class LiveSitePages(OperatingAdmin):
    """An admin with live pages that are about the whole site. The part that changes has an address of its own."""

    def live_page(self, request: HttpRequest, name: str, title: str, context: dict[str, Any]) -> HttpResponse:
        """The page `name`; its template shows the part, and its context has `follow`."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        return self.page(request, name, title, here=name, **context)

    def live_part(self, request: HttpRequest, name: str, context: dict[str, Any]) -> HttpResponse:
        """The part of the page `name` that changes; never from a cache."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        shared = {**self.admin_site.each_context(request), "here": name}
        context = {**shared, **context, "part": f"django_ojs/admin/{name}_live.html"}
        response = TemplateResponse(request, "django_ojs/admin/live.html", context)
        add_never_cache_headers(response)
        return response
