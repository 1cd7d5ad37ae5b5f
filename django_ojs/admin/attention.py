"""What needs attention, as the overview, the page of the doctor and the alerts show it: texts, and where to look."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.urls import NoReverseMatch
from django.utils.html import format_html
from django.utils.http import urlencode
from django.utils.safestring import SafeString
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from django_ojs import alerts, doctor
from django_ojs.admin import display, maintenance
from django_ojs.admin.base import ViewAdmin
from django_ojs.messages import translated
from django_ojs.models import Alert, Job, OutboxEntry, Queue, Worker

#: Findings that name workers, for those who may see workers.
_ABOUT_WORKERS = frozenset({"worker-silent", "worker-threads-died", "worker-versions"})
#: Where to look into a finding: the page, and what its parameters are called, `{}` standing for what it is about.
_JOBS: dict[str, tuple[str, dict[str, str]]] = {
    "queue-unserved": ("job_changelist", {"state": "available", "queue": "{}"}),
    "type-unserved": ("job_changelist", {"state": "available", "type": "{}"}),
    "workers-missing": ("job_changelist", {"state": "available"}),
    "type-failing": ("dead_letters", {"type": "{}"}),
    "type-dead-letters": ("dead_letters", {"type": "{}"}),
    "type-kills-workers": ("job_changelist", {"type": "{}"}),
    "queue-failing": ("dead_letters", {"queue": "{}"}),
    "queue-dead-letters": ("dead_letters", {"queue": "{}"}),
    "maintenance-on": ("maintenance", {}),
    "outbox-aside": ("outboxentry_changelist", {"aside__exact": "1"}),
}
_QUEUES = frozenset({"queue-paused", "wait-long", "backlog-large", "backlog-slow"})


def hidden(request: HttpRequest) -> frozenset[str]:
    """The kinds of findings that this user may not see: those that name workers need the right to see workers."""
    return frozenset() if request.user.has_perm("django_ojs.view_worker") else _ABOUT_WORKERS


def finding_context(finding: doctor.Finding) -> dict[str, Any]:
    """The texts of a finding in the viewer's language; those of system checks are in English."""
    texts = {name: translated(getattr(finding, name)) for name in ("title", "says", "mend")}
    return {"id": finding.id, "about": finding.about, **texts}


def address(kind: str, about: str, figures: dict[str, Any], page: ViewAdmin, request: HttpRequest) -> str:
    """Where to look into it: the page of the queue or worker, the dead letters or the list of jobs, else the doctor; ''
    for who may see none of them.

    Args:
        page: an admin of the same site, which knows its addresses.
    """
    if kind in _QUEUES and (url := page.url_of(Queue, about, request)):
        return url
    if kind in _ABOUT_WORKERS and (url := page.url_of(Worker, about, request)):
        return url
    if kind in _QUEUES:
        name, parameters = "job_changelist", {"state": "available", "queue": "{}"}
    elif kind == "type-failing" and not figures.get("discarded"):
        name, parameters = "job_changelist", {"state": "retryable", "type": "{}"}
    elif kind in _JOBS:
        name, parameters = _JOBS[kind]
    else:
        name, parameters = "doctor", {}
    allowed = {
        "maintenance": maintenance.may_switch(request),
        "outboxentry_changelist": page.may_see(OutboxEntry, request),
    }
    if not allowed.get(name, True):
        name, parameters = "doctor", {}
    if not page.may_see(Job, request) and not allowed.get(name):
        return ""
    try:
        url = page.url(name)
    except NoReverseMatch:  # this admin site has no pages of ours for jobs, or a class of its own for them
        return ""
    query = urlencode({name: value.format(about) for name, value in parameters.items()})
    return f"{url}?{query}" if query else url


class OpenFilter(admin.SimpleListFilter):
    """Alerts that are open, or over."""

    title, parameter_name = _("state"), "state"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        return [("open", _("open")), ("over", _("over"))]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Alert]) -> QuerySet[Alert]:
        value = self.value()
        return queryset if value is None else queryset.filter(cleared_at__isnull=value == "open")


@admin.register(Alert)
class AlertAdmin(ViewAdmin):
    """What was found wrong, newest first. The scheduler writes it where the site has `OJS["ALERTS"]`."""

    list_display = ("raised", "state", "what", "about_code", "shown_says", "over")
    list_display_links = ("raised",)
    list_filter = (OpenFilter,)
    ordering = ("-id",)
    fields = (
        "what",
        "about_code",
        "state",
        "shown_says",
        "shown_mend",
        "place",
        "raised",
        "seen",
        "over",
        "shown_figures",
    )

    raised = display.column(display.when, "raised_at", "since")
    seen = display.column(display.when, "seen_at", "found last")
    over = display.column(display.when, "cleared_at", "over since")
    about_code = display.column(display.code, "about", "about")
    shown_figures = display.column(display.json, "figures", "figures")

    def get_queryset(self, request: HttpRequest) -> QuerySet[Alert]:
        return super().get_queryset(request).exclude(kind__in=hidden(request))

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Any:
        """The alert, with the address of where this user may look into it."""
        found = super().get_object(request, object_id, from_field)
        if found is not None:
            found.address = address(found.kind, found.about, found.figures, self, request)
        return found

    @admin.display(description=_("what was found"))
    def shown_says(self, alert: Alert) -> str:
        return display.printable(alerts.texts(alert)[0])

    @admin.display(description=_("what to do"))
    def shown_mend(self, alert: Alert) -> str:
        return display.printable(alerts.texts(alert)[1])

    @admin.display(description=_("where to look"))
    def place(self, alert: Alert) -> SafeString | str:
        address = getattr(alert, "address", "")
        return format_html('<a href="{0}">{0}</a>', address) if address else display.NOTHING

    @admin.display(description=_("state"))
    def state(self, alert: Alert) -> SafeString:
        word, colour = (gettext("over"), "good") if alert.cleared_at else (gettext("open"), "discarded")
        return display.colour_label(word, colour)

    @admin.display(description=_("kind"))
    def what(self, alert: Alert) -> str:
        return translated(doctor.TITLES.get(alert.kind, doctor.TITLES["check"]))
