"""The page of what is wrong with the installation: what `manage.py ojs_doctor` finds, in the viewer's language."""

from __future__ import annotations

from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.urls import URLPattern
from django.utils.translation import gettext as _

from django_ojs import doctor
from django_ojs.admin import attention, live
from django_ojs.admin.operate import OperatingAdmin
from django_ojs.statistics.summary import Shared

_current = Shared(doctor.examine, live.FRESH)


class DoctorPage(OperatingAdmin):
    """Adds the page to the admin of jobs, with the permission of the overview."""

    def get_urls(self) -> list[URLPattern]:
        return [self.route("doctor/", self.doctor_page, "doctor"), *super().get_urls()]

    def doctor_page(self, request: HttpRequest) -> HttpResponse:
        if not self.has_view_permission(request):
            raise PermissionDenied
        hidden = attention.hidden(request)
        shown = [attention.finding_context(one) for one in _current.get() if one.id not in hidden]
        return self.page(request, "doctor", _("What is wrong"), here="doctor", findings=shown)
