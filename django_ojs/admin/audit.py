"""The audit log: read only, newest first."""

from __future__ import annotations

from django.contrib import admin
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


@admin.register(AuditEntry)
class AuditEntryAdmin(ViewAdmin):
    list_display = ("at", "shown_action", "shown_target", "shown_actor", "outcome_label", "door")
    list_display_links = ("at",)
    list_filter = (ActorFilter, ActionFilter, TargetFilter, "outcome", "door")
    list_per_page = 100
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
