"""A site with everything that the pages speak of."""

from __future__ import annotations

from django.contrib import admin
from django.urls import include, path

urlpatterns = [
    path("admin/", admin.site.urls),
    path("", include("django_ojs.urls")),
    path("", include("django_ojs.http.probes")),
]
