"""Changing the priority of one job that waits, on its page."""

from __future__ import annotations

import uuid

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect
from django.urls import URLPattern, path
from django.utils.translation import gettext as _

from django_ojs.admin.operate import OperatingAdmin, Verb, one_by_one
from django_ojs.models import Job
from django_ojs.operations.prioritise import WAITING, prioritise


class Prioritising(OperatingAdmin):
    """Adds the form to the admin of jobs."""

    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view(self.priority_view)
        name = f"{self.opts.app_label}_{self.opts.model_name}_priority"
        return [path("<uuid:job_id>/priority/", view, name=name), *super().get_urls()]

    def prioritise_url(self, job: Job) -> str:
        """Where the form goes; '' for a job whose priority decides nothing any more."""
        return self._url("priority", job.pk) if job.state in WAITING else ""

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


def number(text: str) -> int | str:
    """The text itself where it is no number: it may be a name, and the operation knows."""
    try:
        return int(text)
    except ValueError:
        return text
