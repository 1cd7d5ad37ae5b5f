"""The URLs of `ojs_testserver`: the binding, and the aliases at the root."""

from __future__ import annotations

from django.urls import include, path

urlpatterns = [
    path("", include("django_ojs.urls")),
    path("", include("django_ojs.http.probes")),
]
