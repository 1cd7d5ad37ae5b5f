"""Records that the admin only shows: the audit log, newest first, and the registered schemas of arguments.

Schemas are registered over HTTP and by commands.
"""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _

from django_ojs.admin import display
from django_ojs.admin.base import JobTypeFilter, ViewAdmin, text_filter
from django_ojs.models import AuditEntry, JobSchema


class DoorFilter(admin.SimpleListFilter):
    """The filter by door. It offers all doors: to find those that some entry has, Django would read every row."""

    title, parameter_name = _("door"), "door"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [(door, door) for door in ("http", "admin", "command", "scheduler", "python", "mail")]

    def queryset(self, request: HttpRequest, queryset: QuerySet[AuditEntry]) -> QuerySet[AuditEntry]:
        return queryset.filter(door=self.value()) if self.value() in dict(self.lookup_choices) else queryset


@admin.register(AuditEntry)
class AuditEntryAdmin(ViewAdmin):
    list_display = ("at", "shown_action", "shown_target", "shown_actor", "outcome_label", "door")
    list_display_links = ("at",)
    list_filter = (
        text_filter(_("actor"), "actor", _("user:ann or key:*")),
        text_filter(_("action"), "action", _("queue.pause or job.*")),
        text_filter(_("target"), "target", _("an id or a name")),
        "outcome",
        DoorFilter,
    )
    list_per_page = 100
    many = _("audit entries")  # the list is called the audit log
    ordering = ("-id",)
    fields = (
        "at", "shown_action", "shown_target", "shown_actor", "outcome_label", "door", "source_ip", "request_id",
        "shown_detail",
    )  # fmt: skip

    at = display.column(display.when, "time", "time")
    shown_action = display.column(display.code, "action", "action")
    shown_actor = display.column(display.code, "actor", "actor")
    shown_target = display.column(display.code, "target", "target")
    shown_detail = display.column(display.json, "detail", "detail")

    @admin.display(description=_("outcome"))
    def outcome_label(self, entry: AuditEntry) -> SafeString:
        return display.colour_label(
            entry.outcome, "good" if entry.outcome == AuditEntry.Outcome.SUCCESS else "discarded"
        )


@admin.register(JobSchema)
class JobSchemaAdmin(ViewAdmin):
    list_display = ("job_type", "version", "shown_uri", "created")
    list_filter = (JobTypeFilter,)
    ordering = ("job_type", "-id")
    fields = ("job_type", "version", "shown_uri", "created", "document")

    def get_queryset(self, request: HttpRequest) -> QuerySet[JobSchema]:
        """Without the documents, which may be large; a page reads its own."""
        found: QuerySet[JobSchema] = super().get_queryset(request)
        return found.defer("schema")

    shown_uri = display.column(display.code, "uri", "URI")
    created = display.column(display.when, "created_at", "created")
    document = display.column(display.json, "schema", "schema")
