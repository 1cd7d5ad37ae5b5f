"""What our pages lead to: what this admin site has and this user may see, the daily pages first."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from django.http import HttpRequest
from django.urls import NoReverseMatch, reverse
from django.utils.translation import gettext_lazy as _


@dataclasses.dataclass(frozen=True, slots=True)
class Page:
    """One link. `here` is what a page of its calls itself; `view` is its name where it is no list of `model`."""

    model: str
    text: Any
    here: str
    view: str = ""


#: What operators look at daily.
DAILY = (
    Page("Job", _("Overview"), "overview", "overview"),
    Page("Job", _("Jobs"), "job"),
    Page("Job", _("Dead letters"), "dead_letters", "dead_letters"),
    Page("Queue", _("Queues"), "queue"),
    Page("Worker", _("Workers"), "worker"),
    Page("Workflow", _("Workflows"), "workflow"),
    Page("CronSchedule", _("Schedules"), "cronschedule"),
)
#: The rest, by what it is about.
MORE = (
    (_("What happened"), (
        Page("Event", _("Events"), "event"),
        Page("Event", _("Live events"), "event_tail", "event_tail"),
        Page("BulkAction", _("Bulk actions"), "bulkaction"),
        Page("AuditEntry", _("Audit log"), "auditentry"),
    )),
    (_("In and out"), (
        Page("ReplayRule", _("Replay rules"), "replayrule"),
        Page("JobSchema", _("Schemas"), "jobschema"),
        Page("WebhookSubscription", _("Webhooks"), "webhooksubscription"),
        Page("WebhookDelivery", _("Deliveries"), "webhookdelivery"),
        Page("OutboxEntry", _("Outbox"), "outboxentry"),
        Page("APIKey", _("API keys"), "apikey"),
    )),
)  # fmt: skip


def links(request: HttpRequest, apps: Iterable[Mapping[str, Any]], here: str) -> dict[str, Any]:
    """The links of a page that calls itself `here`. `apps` is `AdminSite.get_app_list`: only what may be seen."""
    lists = {
        model["object_name"]: model["admin_url"]
        for app in apps
        if app["app_label"] == "django_ojs"
        for model in app["models"]
        if model["admin_url"] and (model["perms"]["view"] or model["perms"]["change"])
    }
    site = request.resolver_match.namespace if request.resolver_match else ""

    def link(page: Page) -> dict[str, Any] | None:
        address = lists.get(page.model, "")
        if address and page.view:
            try:
                address = reverse(f"admin:django_ojs_{page.view}", current_app=site)
            except NoReverseMatch:  # the site's own class for these rows
                return None
        return {"text": page.text, "address": address, "here": page.here == here} if address else None

    more = [(title, [found for page in pages if (found := link(page))]) for title, pages in MORE]
    more = [(title, found) for title, found in more if found]
    return {
        "daily": [found for page in DAILY if (found := link(page))],
        "more": more,
        "inside": next((one["text"] for _title, found in more for one in found if one["here"]), ""),
    }
