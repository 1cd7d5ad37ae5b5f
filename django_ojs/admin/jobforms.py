"""The forms on a job's page: changing the priority of one that waits, and retrying a dead letter with other arguments,
meta, queue or priority."""

from __future__ import annotations

import uuid
from typing import Any

from django import forms
from django.contrib import messages
from django.contrib.admin.models import CHANGE, LogEntry
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, path
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from django_ojs import audit, jsontext
from django_ojs.admin import auditing, display
from django_ojs.admin.forms import not_json
from django_ojs.admin.operate import OperatingAdmin, Verb, one_by_one
from django_ojs.admin.refusals import local
from django_ojs.errors import OJSError
from django_ojs.jobs.verbs import PRIORITISABLE, is_dead_letter, prioritise, retry_one
from django_ojs.models import Job
from django_ojs.rules import redaction
from django_ojs.statistics import shared

#: What of a job may be edited as JSON.
_PARTS = ("args", "meta")


def in_dead_letters(job: Job) -> bool:
    return is_dead_letter({"state": job.state, "dead_letter": job.dead_letter})


def number(text: str) -> int | str:
    """The text itself where it is no number: it may be a name, and the operation knows."""
    try:
        return int(text)
    except ValueError:
        return text


class JSONText(forms.CharField):
    """A JSON value in a text area, read without loss. Empty: as it is."""

    widget = forms.Textarea(attrs={"rows": 8, "cols": 80, "class": "ojs-edit", "spellcheck": "false"})

    def to_python(self, value: Any) -> Any:
        text = super().to_python(value)
        try:
            return jsontext.loads(text) if text else None
        except jsontext.JSONTextError as error:
            raise not_json(error) from error


class RetryForm(forms.Form):
    """What may be changed. A part that the site hides is not shown: an empty field leaves it as it is."""

    queue = forms.CharField(label=gettext_lazy("queue"), max_length=128, required=False)
    priority = forms.CharField(label=gettext_lazy("priority"), max_length=32, required=False)
    args = JSONText(label=gettext_lazy("arguments"), required=False)
    meta = JSONText(label=gettext_lazy("meta"), required=False)

    def __init__(self, data: Any, job: Job) -> None:
        initial: dict[str, Any] = {"queue": job.queue, "priority": str(job.priority)}
        self.job, self.hidden = job, []
        for name in _PARTS:
            value = getattr(job, name)
            if redaction.part(name, value, job.type, job.meta) == value:
                initial[name] = display.pretty(value)
            else:
                self.hidden.append(name)
        super().__init__(data, initial=initial)
        for name in self.hidden:
            self.fields[name].help_text = _("Parts of it are hidden. Leave the field empty to keep it as it is.")

    def override(self) -> dict[str, Any]:
        """What differs from the job."""
        given = {name: value for name, value in self.cleaned_data.items() if value not in (None, "")}
        if "priority" in given:
            given["priority"] = number(given["priority"])
        return {name: value for name, value in given.items() if value != getattr(self.job, name)}


class Prioritising(OperatingAdmin):
    """Adds the form to the admin of jobs."""

    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view(self.priority_view)
        name = f"{self.opts.app_label}_{self.opts.model_name}_priority"
        return [path("<uuid:job_id>/priority/", view, name=name), *super().get_urls()]

    def prioritise_url(self, job: Job) -> str:
        """Where the form goes; '' for a job whose priority decides nothing any more."""
        return self._url("priority", job.pk) if job.state in PRIORITISABLE else ""

    def priority_view(self, request: HttpRequest, job_id: uuid.UUID) -> HttpResponse:
        if request.method != "POST":
            return HttpResponseNotAllowed(["POST"])
        job = Job.objects.filter(pk=job_id).first()
        if job is None:
            raise Http404
        if not self._has_right(request, "change") or not self.has_view_permission(request, job):
            raise PermissionDenied
        given = request.POST.get("priority", "").strip()
        if given:
            change = one_by_one(lambda pk, by: prioritise(pk, number(given), by=by))
            verb = Verb(
                "prioritise", "Change priority", _("given the priority %(priority)s") % {"priority": given}, change
            )
            self._report(request, verb, self._perform(request, verb, [job]))
        else:
            self.message_user(request, _("Say which priority, a number such as 5."), messages.ERROR)
        return HttpResponseRedirect(self._url("change", job.pk))


class Retrying(OperatingAdmin):
    """Adds the form to the admin of jobs."""

    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view(self.edit_view)
        name = f"{self.opts.app_label}_{self.opts.model_name}_edit"
        return [path("<uuid:job_id>/edit/", view, name=name), *super().get_urls()]

    def edit_url(self, job: Job) -> str:
        """Where the form is; '' for a job that is no dead letter."""
        return self._url("edit", job.pk) if in_dead_letters(job) else ""

    def edit_view(self, request: HttpRequest, job_id: uuid.UUID) -> HttpResponse:
        job = Job.objects.filter(pk=job_id).first()
        if job is None:
            raise Http404
        if not self._has_right(request, "change") or not self.has_view_permission(request, job):
            raise PermissionDenied
        back = self._url("change", job.pk)
        form = RetryForm(request.POST if request.method == "POST" else None, job)
        if form.is_valid() and self._retry(request, form):
            return HttpResponseRedirect(back)
        context = {
            **self.admin_site.each_context(request), "title": _("Change and retry"), "opts": self.opts,
            "media": self.media, "form": form, "job": display.printable(job), "back": back,
        }  # fmt: skip
        return TemplateResponse(request, "django_ojs/admin/retry_form.html", context)

    def _retry(self, request: HttpRequest, form: RetryForm) -> bool:
        """Retry it as the form says; False, with the reason in the form, where that is refused."""
        job, override = form.job, form.override()
        entry = auditing.entry(request, "job.retry", job.pk, override=sorted(override))
        try:
            audit.perform(lambda: retry_one(job.pk, override=override or None), entry)
        except OJSError as error:
            field = str(error.details.get("field", "")).partition(".")[0].partition("[")[0]
            form.add_error(field if field in form.fields else None, display.shorten(local(error), 500))
            return False
        shared.forget()
        text = _("Made available again.")
        if override:
            text = _("Made available again with other %(parts)s.") % {"parts": ", ".join(sorted(override))}
        LogEntry.objects.log_actions(request.user.pk, [job], CHANGE, text)  # type: ignore[arg-type]
        self.message_user(request, _("1 job made available again."), messages.SUCCESS)
        return True
