"""The outbox: what is on its way to the database of the jobs, and what was set aside."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.contrib.admin.models import DELETION
from django.http import HttpRequest
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _

from django_ojs import outbox
from django_ojs.admin import display
from django_ojs.admin.operate import AdminVerb, OperatingAdmin, one_by_one
from django_ojs.conf import ojs_settings
from django_ojs.models import OutboxEntry
from django_ojs.rules import redaction

VERBS = (
    AdminVerb(
        "retry_entries", "Try again", "given to the relay", one_by_one(lambda pk, by: outbox.try_again(pk)),
        lambda entry: entry.aside,
    ),
    AdminVerb(
        "discard_entries", "Discard", "discarded", one_by_one(lambda pk, by: outbox.discard(pk)),
        lambda entry: entry.aside, question="The job was never stored and never will be.",
        right="delete", flag=DELETION,
    ),
)  # fmt: skip


@admin.register(OutboxEntry)
class OutboxAdmin(OperatingAdmin):
    """Shown only where there is an outbox."""

    list_display = ("target_id", "type", "aside", "attempts", "shown_error", "created", "again")
    list_filter = ("aside", "kind")
    ordering = ("id",)
    verbs = actions = VERBS
    fieldsets = (
        (None, {"fields": ("target_id", "kind", "type", ("aside", "attempts"), "shown_error")}),
        (_("Envelope"), {"fields": ("envelope",)}),
        (_("Times"), {"fields": (("created", "again"),)}),
    )

    created = display.column(display.when, "created_at", "enqueued")
    again = display.column(display.when, "retry_at", "tried again")

    @admin.display(description=_("error"))
    def shown_error(self, entry: OutboxEntry) -> str:
        return outbox.shown_error(entry) or display.NOTHING

    @admin.display(description=_("document"))
    def envelope(self, entry: OutboxEntry) -> SafeString | str:
        return display.json(redaction.job({"type": entry.type, "meta": {}, **entry.document}))

    def has_module_permission(self, request: HttpRequest) -> bool:
        return ojs_settings.OUTBOX is not None and super().has_module_permission(request)

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return ojs_settings.OUTBOX is not None and super().has_view_permission(request, obj)
