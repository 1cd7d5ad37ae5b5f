"""The URLs of the benchmark with the probes."""

from __future__ import annotations

from django.urls import include, path

urlpatterns = [path("", include("benchmarks.urls")), path("", include("django_ojs.http.probes"))]
