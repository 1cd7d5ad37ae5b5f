"""Maintenance mode in the admin: the banner on every page of ours, and the page that switches it on and off."""

from __future__ import annotations

import datetime as dt
import hashlib
from typing import Any

from django import forms
from django.contrib import messages
from django.core.exceptions import PermissionDenied, ValidationError
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import NoReverseMatch, URLPattern, reverse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from django_ojs import audit, clock
from django_ojs.admin import display, live
from django_ojs.admin.operate import OperatingAdmin
from django_ojs.errors import OJSError
from django_ojs.models import Maintenance
from django_ojs.queues import maintenance
from django_ojs.rules import durations
from django_ojs.statistics import summary
from django_ojs.statistics.summary import Shared

#: The field of the form that a refusal's field is.
_FIELDS = {"estimated_duration": "lasting", "auto_end": "auto_end", "reason": "reason"}

_current = Shared(lambda using: maintenance.current(using=using), live.FRESH)


def may_switch(request: HttpRequest) -> bool:
    return request.user.has_perm("django_ojs.change_maintenance")


def address(request: HttpRequest) -> str:
    """The page that switches it; '' where this user may not, or where this admin site has no such page."""
    if not may_switch(request):
        return ""
    here = request.resolver_match.namespace if request.resolver_match else None  # the admin site that is shown
    try:
        return reverse("admin:django_ojs_maintenance", current_app=here)
    except NoReverseMatch:
        return ""


def banner(request: HttpRequest, *, live: bool = False) -> dict[str, Any] | None:
    """What the banner says; None while the mode is off. All `live` pages share one look every two seconds."""
    mode = _current.get() if live else maintenance.current()
    if mode is None:
        return None
    return {
        "reason": mode.reason,
        "since": display.when(mode.enabled_at),
        "by": mode.enabled_by,
        "end": display.when(mode.estimated_end) if mode.estimated_end else "",
        "late": mode.estimated_end is not None and mode.estimated_end <= clock.now(),
        "by_itself": mode.auto_end,
        "address": address(request),
    }


class DurationField(forms.CharField):
    """A time from now on, as the API and the commands read it. Empty: unknown, or as it was."""

    def to_python(self, value: Any) -> Any:
        text = super().to_python(value)
        try:
            return dt.timedelta(milliseconds=durations.parse_duration_ms(text)) if text else None
        except ValueError as error:
            raise ValidationError(_("This is not a duration such as 30m, 2h or PT1H30M.")) from error


class SwitchForm(forms.Form):
    """The reason, and for how long."""

    reason = forms.CharField(
        label=gettext_lazy("reason"), max_length=maintenance.MAX_REASON, required=False,
        widget=forms.TextInput(attrs={"size": 60, "autocomplete": "off"}),
        help_text=gettext_lazy("All users see it on the pages about jobs and queues."),
    )  # fmt: skip
    lasting = DurationField(
        label=gettext_lazy("about how long"), required=False,
        widget=forms.TextInput(attrs={"size": 12, "maxlength": 64, "autocomplete": "off", "autocapitalize": "none"}),
        help_text=gettext_lazy("From now on, such as 30m, 2h or PT1H30M. Empty: unknown, or unchanged."),
    )  # fmt: skip
    auto_end = forms.BooleanField(
        label=gettext_lazy("end it then"), required=False,
        help_text=gettext_lazy(
            "The scheduler ends it when the time is up. Otherwise it stays on until an operator ends it."
        ),
    )  # fmt: skip


class MaintenanceMode(OperatingAdmin):
    """Adds the page to the admin of jobs."""

    def get_urls(self) -> list[URLPattern]:
        return [self.route("maintenance/", self.maintenance_page, "maintenance"), *super().get_urls()]

    def maintenance_page(self, request: HttpRequest) -> HttpResponse:
        """GET: the form. POST: switch the mode on, change what the banner says of it, or end it."""
        if not may_switch(request):
            raise PermissionDenied
        mode = maintenance.current()
        here = self.url("maintenance")
        shown = _shown(mode)
        is_old = request.method == "POST" and request.POST.get("shown", shown) != shown
        if is_old:
            text = _(
                "Meanwhile somebody else has switched maintenance mode on, changed it or ended it. This page shows how "
                "it is now: send it again if you still want to."
            )
            self.message_user(request, text, messages.ERROR)
        elif request.method == "POST" and "end" in request.POST:
            self._stop(request)
            return HttpResponseRedirect(here)
        initial = {"reason": mode.reason, "auto_end": mode.auto_end} if mode else {}
        posted = request.POST if request.method == "POST" and "end" not in request.POST else None
        form = SwitchForm(posted, initial=initial)
        if form.is_valid() and not is_old and self._start(request, form, is_new=mode is None):
            return HttpResponseRedirect(here)
        title = _("Maintenance mode")
        return self.page(
            request, "maintenance", title, form=form, is_on=mode is not None, shown=shown, here="maintenance"
        )  # fmt: skip

    def _start(self, request: HttpRequest, form: SwitchForm, *, is_new: bool) -> bool:
        """Switch it on as the form says; False, with the reason in the form, where that is refused."""
        entry = self.audit_entry(request, maintenance.STARTED)

        def act() -> None:
            entry.detail = maintenance.audit_detail(maintenance.start(**form.cleaned_data, by=entry.actor))

        try:
            audit.perform(act, entry)
        except OJSError as error:
            field = _FIELDS.get(str(error.details.get("field")))
            form.add_error(field, _refusal(field))
            return False
        summary.forget()
        text = _("Maintenance mode is on.") if is_new else _("Maintenance mode was changed.")
        self.message_user(request, text, messages.SUCCESS)
        return True

    def _stop(self, request: HttpRequest) -> None:
        entry = self.audit_entry(request, maintenance.STOPPED)

        def act() -> None:
            ended = maintenance.stop()
            entry.detail = maintenance.audit_detail(ended) if ended else {}

        audit.perform(act, entry)
        summary.forget()
        self.message_user(request, _("Maintenance mode has ended: jobs are delivered again."), messages.SUCCESS)


def _shown(mode: Maintenance | None) -> str:
    """A digest of the state that the page shows. The forms send it back: if it is another one by then, another operator
    has changed the mode meanwhile, and the page says so."""
    facts = (mode.enabled_at, mode.reason, mode.estimated_end, mode.auto_end) if mode else ()
    return hashlib.sha256(repr(facts).encode("utf-8", "backslashreplace")).hexdigest()[:16]


def _refusal(field: str | None) -> str:
    """What the operation refused, in the viewer's language and the form's words."""
    if field == "lasting":
        return _("It must be a positive time of at most a year.")
    return _("To end it by itself, say about how long it will take.")
