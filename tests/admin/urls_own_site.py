"""A site whose URLs lead to an admin of its own class only, with all our pages."""

from __future__ import annotations

from django.contrib.admin import AdminSite
from django.urls import include, path

from django_ojs.admin import register_all


class StaffSite(AdminSite):
    site_header = "Staff"


site = StaffSite("staff")
register_all(site)

urlpatterns = [path("staff/", site.urls), path("", include("django_ojs.urls"))]
