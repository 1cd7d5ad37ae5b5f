"""The event log, newest first, as far back as it is kept. `tail` is the page that follows it."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _

from django_ojs.admin import columns, display
from django_ojs.admin.base import EndlessChangeList, TextFilter, unless_large
from django_ojs.admin.tail import TailAdmin
from django_ojs.admin.timeline import note
from django_ojs.models import Event
from django_ojs.rules import redaction


class EventTypeFilter(TextFilter):
    title, parameter_name, field, placeholder = _("event type"), "type", "type", _("job.failed or worker.*")


class JobTypeFilter(TextFilter):
    title, parameter_name, field, placeholder = _("job type"), "job_type", "job_type", _("mail.send or mail.*")


class QueueNameFilter(TextFilter):
    title, parameter_name, field = _("queue"), "queue", "queue"


class EventChangeList(EndlessChangeList):
    """Loads no large data, such as the results that events of completed jobs may carry."""

    def get_queryset(self, request: HttpRequest, exclude_parameters: Any = None) -> QuerySet[Event]:
        events: QuerySet[Event] = super().get_queryset(request, exclude_parameters)
        return events.defer("data").annotate(short_data=unless_large("data"))


@admin.register(Event)
class EventAdmin(TailAdmin):
    list_display = ("shown_type", "at", "about", "job_type", "queue", "state_label", "attempt", "who", "glance")
    list_display_links = ("shown_type",)
    list_filter = (EventTypeFilter, JobTypeFilter, QueueNameFilter)
    list_per_page = 100
    ordering = ("-id",)
    id_column = "job_id"
    fields = (
        "shown_type", "at", "about", "job_type", "queue", "state_label", "attempt", "worker_id", "component",
        "trace_id", "workflow_id", "shown_data",
    )  # fmt: skip
    readonly_fields = fields

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[EndlessChangeList]:
        return EventChangeList

    at = columns.time("time", "time")
    shown_type = columns.code("type", "event")

    @admin.display(description=_("about"))
    def about(self, event: Event) -> SafeString | str:
        if event.job_id is None:
            return display.code(event.subject)
        if not (url := self.job_url(event.job_id)):
            return display.code(event.job_id)
        text = str(event.job_id)
        return format_html('<a class="ojs-id" title="{}" href="{}">{}…{}</a>', text, url, text[:8], text[-6:])

    @admin.display(description=_("state"))
    def state_label(self, event: Event) -> SafeString | str:
        return display.label(event.state) if event.state else display.NOTHING

    @admin.display(description=_("by"))
    def who(self, event: Event) -> str:
        return display.shorten(event.worker_id or event.component, 40)

    @admin.display(description=_("data"))
    def glance(self, event: Any) -> str:
        return note(event.short_data, event.job_type) or display.NOTHING

    @admin.display(description=_("data"))
    def shown_data(self, event: Event) -> SafeString | str:
        return display.json(redaction.event(event.job_type, event.data) if event.data else event.data)
