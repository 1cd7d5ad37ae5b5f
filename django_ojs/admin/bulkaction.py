"""Bulk actions in the background: their progress, their outcomes, and a button that stops one."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.db import router
from django.http import HttpRequest
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from django_ojs.admin import display, live
from django_ojs.admin.live import LivePage
from django_ojs.admin.operate import AdminVerb, one_by_one
from django_ojs.jobs import bulk
from django_ojs.models import BulkAction, Lease

_COLOURS = {"completed": "good", "running": "active", "failed": "discarded"}
VERBS = (
    AdminVerb(
        "cancel_bulkactions", "Stop", "stopped", one_by_one(lambda pk, by: bulk.cancel_action(pk)),
        lambda action: action.state == BulkAction.State.RUNNING,
    ),
)  # fmt: skip


def action_label(action: BulkAction) -> str:
    """What it does, for a reader."""
    if action.filter.get("dead_letters"):
        return {"retry": _("Retry dead letters"), "delete": _("Delete dead letters")}.get(action.verb, action.verb)
    words = {
        "retry": _("Retry jobs"), "delete": _("Delete jobs"), "cancel": _("Cancel jobs"), "run": _("Run jobs now"),
        bulk.PURGE_HISTORY: _("Erase history"),
    }  # fmt: skip
    return words.get(action.verb, action.verb)


def progress(action: BulkAction) -> SafeString:
    """How far it is, as a bar and in numbers."""
    done, of = action.matched, max(action.expected, action.matched)
    text = _("%(done)s of %(of)s") % {"done": f"{done:,}", "of": f"{of:,}"}
    return format_html(
        '<progress value="{}" max="{}" aria-label="{}"></progress> {}', done, of or 1, _("Progress"), text
    )


@admin.register(BulkAction)
class BulkActionAdmin(LivePage):
    """Users who may see jobs see these, and users who may change or delete jobs may stop one."""

    list_display = ("name", "state_label", "shown_progress", "shown_succeeded", "refused", "actor", "created_ago")
    ordering = ("-pk",)
    verbs = actions = VERBS
    change_form_template = "django_ojs/admin/bulk_action.html"
    live_types = live.DEAD_LETTERS
    fields = (
        "name", "state_label", "shown_progress", "rate", "shown_succeeded", "refused", "shown_filter",
        "shown_changes", "shown_errors", "shown_problem", "actor", "created", "finished",
    )  # fmt: skip

    created = display.column(display.when, "created_at", "asked for")
    created_ago = display.column(display.ago, "created_at", "asked for")
    finished = display.column(display.when, "finished_at", "ended")
    shown_succeeded = display.column(display.count, "succeeded", "succeeded")
    shown_problem = display.column(lambda text: display.printable(text) or display.NOTHING, "problem", "problem")
    shown_errors = display.column(display.json, "errors", "first refusals")

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return request.user.has_perm("django_ojs.view_job")

    def has_module_permission(self, request: HttpRequest) -> bool:
        return self.has_view_permission(request)

    def has_right(self, request: HttpRequest, right: str) -> bool:
        return any(request.user.has_perm(f"django_ojs.{name}_job") for name in ("change", "delete"))

    def live_age(self, obj: BulkAction) -> float:
        """Each of its jobs is an event; there is nothing to see between two batches."""
        return live.POLLING

    def page_context(self, request: HttpRequest, obj: BulkAction) -> dict[str, Any]:
        return {
            "running": obj.state == BulkAction.State.RUNNING,
            "led": Lease.is_held("scheduler", router.db_for_write(Lease)),
        }

    @admin.display(description=gettext_lazy("bulk action"))
    def name(self, action: BulkAction) -> str:
        return f"{action_label(action)} #{action.pk}"

    @admin.display(description=gettext_lazy("state"))
    def state_label(self, action: BulkAction) -> SafeString:
        return display.colour_label(action.state, _COLOURS.get(action.state, ""))

    @admin.display(description=gettext_lazy("progress"))
    def shown_progress(self, action: BulkAction) -> SafeString:
        return progress(action)

    @admin.display(description=gettext_lazy("in a minute at most"))
    def rate(self, action: BulkAction) -> str:
        return f"{action.per_minute:,}" if action.per_minute else display.NOTHING

    @admin.display(description=gettext_lazy("refused"))
    def refused(self, action: BulkAction) -> str:
        return f"{action.failed:,}"

    @admin.display(description=gettext_lazy("what fits"))
    def shown_filter(self, action: BulkAction) -> SafeString | str:
        return display.json(bulk.filter_of_action(action))

    @admin.display(description=gettext_lazy("changes"))
    def shown_changes(self, action: BulkAction) -> str:
        changes = bulk.changes_of_action(action)
        return ", ".join(f"{name}: {display.ellipsized(value)}" for name, value in changes.items()) or display.NOTHING
