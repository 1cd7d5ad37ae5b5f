"""The page of what is wrong with the installation: what `manage.py ojs_doctor` finds, in the viewer's language."""

from __future__ import annotations

from typing import Any

from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.urls import URLPattern
from django.utils.translation import gettext as _

from django_ojs import doctor
from django_ojs.admin import display, live
from django_ojs.admin.operate import OperatingAdmin
from django_ojs.statistics.summary import Shared

#: Findings that name workers, for those who may see workers; as on the overview.
_ABOUT_WORKERS = frozenset({"worker-silent", "worker-versions"})

_current = Shared(doctor.examine, live.FRESH)


class DoctorPage(OperatingAdmin):
    """Adds the page to the admin of jobs, with the permission of the overview."""

    def get_urls(self) -> list[URLPattern]:
        return [self.route("doctor/", self.doctor_page, "doctor"), *super().get_urls()]

    def doctor_page(self, request: HttpRequest) -> HttpResponse:
        if not self.has_view_permission(request):
            raise PermissionDenied
        sees_workers = request.user.has_perm(f"{self.opts.app_label}.view_worker")
        shown = [_shown(one) for one in _current.get() if sees_workers or one.id not in _ABOUT_WORKERS]
        return self.page(request, "doctor", _("What is wrong"), here="doctor", findings=shown)


def _shown(finding: doctor.Finding) -> dict[str, Any]:
    """The texts of a finding; those of system checks are in English."""
    return {
        "id": finding.id,
        **{name: display.translated(getattr(finding, name)) for name in ("title", "says", "mend")},
    }
