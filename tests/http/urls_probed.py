"""A site that has the probes at its root, too."""

from django.urls import include, path

urlpatterns = [path("", include("django_ojs.http.probes")), path("", include("django_ojs.urls"))]
