"""Rate limits: what holds under each key, what stops it at the moment, and the verb that lifts a worker's block."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _

from django_ojs import clock
from django_ojs.admin import display
from django_ojs.admin.base import text_filter
from django_ojs.admin.operate import AdminVerb, OperatingAdmin, one_by_one
from django_ojs.limits import ratelimits
from django_ojs.models import RateLimit


def is_blocked(row: RateLimit) -> bool:
    return ratelimits.blocked_until(row, clock.now()) is not None


VERBS = (
    AdminVerb(
        "lift_blocks",
        "Lift the block",
        "unblocked",
        one_by_one(lambda key, by: ratelimits.lift(key, by=by)),
        is_blocked,
        question=(
            "Jobs under this key start again at once. The far side has asked to be left alone until the end of the "
            "block."
        ),
    ),
)


def in_short(policy: Mapping[str, Any]) -> str:
    """The numbers of a policy on one line, in the words of the wire: `concurrency 2, rate 100/PT1M`."""
    windows = {name: value for name, value in policy.items() if isinstance(value, Mapping)}
    said = [f"{name} {value}" for name, value in policy.items() if name not in windows]
    said += [f"{name} {window['limit']}/{window['period']}" for name, window in windows.items()]
    return ", ".join(said)


class BlockedFilter(admin.SimpleListFilter):
    """The keys that a worker's report has blocked."""

    title, parameter_name = _("blocked"), "blocked"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        return [("yes", _("Yes")), ("no", _("No"))]

    def queryset(self, request: HttpRequest, queryset: QuerySet[RateLimit]) -> QuerySet[RateLimit]:
        blocked = ratelimits.blocked(clock.now())
        return {"yes": partial(queryset.filter, blocked), "no": partial(queryset.exclude, blocked)}.get(
            self.value() or "", queryset.all
        )()


@admin.register(RateLimit)
class RateLimitAdmin(OperatingAdmin):
    list_display = ("shown_key", "blocked", "shown_policy", "has_override")
    list_filter = (text_filter(_("key"), "key", _("partner or queue:*")), BlockedFilter)
    ordering = ("key",)
    verbs = actions = VERBS
    fieldsets = (
        (None, {"fields": ("shown_key", "blocked", "figures")}),
        (_("Times"), {"fields": (("created", "changed"),)}),
    )

    shown_key = display.column(display.code, "key", "key")
    blocked = display.column(display.when, "blocked_until", "blocked until")
    created = display.column(display.when, "created_at", "created")
    changed = display.column(display.when, "updated_at", "changed")

    @admin.display(description=_("limits"))
    def shown_policy(self, row: RateLimit) -> SafeString | str:
        found = ratelimits.override_of(row, clock.now())
        policy = found.as_wire() if found else row.policy
        return display.code(display.ellipsized(in_short(policy))) if policy else display.NOTHING

    @admin.display(description=_("by an operator"), boolean=True)
    def has_override(self, row: RateLimit) -> bool:
        return ratelimits.override_of(row, clock.now()) is not None

    @admin.display(description=_("at the moment"))
    def figures(self, row: RateLimit) -> SafeString | str:
        return display.json(ratelimits.inspect(row.key))
