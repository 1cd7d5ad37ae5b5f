"""The audit log: read only, newest first."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _

from django_ojs.admin import columns, display
from django_ojs.admin.base import TextFilter, ViewAdmin
from django_ojs.models import AuditEntry


class ActorFilter(TextFilter):
    title, parameter_name, field, placeholder = _("actor"), "actor", "actor", _("user:ann or key:*")


class ActionFilter(TextFilter):
    title, parameter_name, field, placeholder = _("action"), "action", "action", _("queue.pause or job.*")


class TargetFilter(TextFilter):
    title, parameter_name, field, placeholder = _("target"), "target", "target", _("an id or a name")


class DoorFilter(admin.SimpleListFilter):
    """The doors there are: asking the rows which they came through would read them all."""

    title, parameter_name = _("door"), "door"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [(door, door) for door in ("http", "admin", "command", "scheduler")]

    def queryset(self, request: HttpRequest, queryset: QuerySet[AuditEntry]) -> QuerySet[AuditEntry]:
        return queryset.filter(door=self.value()) if self.value() else queryset


@admin.register(AuditEntry)
class AuditEntryAdmin(ViewAdmin):
    list_display = ("at", "shown_action", "shown_target", "shown_actor", "outcome_label", "door")
    list_display_links = ("at",)
    list_filter = (ActorFilter, ActionFilter, TargetFilter, "outcome", DoorFilter)
    list_per_page = 100
    many = _("audit entries")  # the list is called the audit log
    ordering = ("-id",)
    fields = (
        "at", "shown_action", "shown_target", "shown_actor", "outcome_label", "door", "source_ip", "request_id",
        "shown_detail",
    )  # fmt: skip
    readonly_fields = fields

    at = columns.time("time", "time")
    shown_action = columns.code("action", "action")
    shown_actor = columns.code("actor", "actor")
    shown_target = columns.code("target", "target")
    shown_detail = columns.json("detail", "detail")

    @admin.display(description=_("outcome"))
    def outcome_label(self, entry: AuditEntry) -> SafeString:
        return display.label(entry.outcome, "good" if entry.outcome == AuditEntry.Outcome.SUCCESS else "discarded")
