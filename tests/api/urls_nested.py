"""A URLconf that includes django-ojs below another include."""

from django.urls import include, path

urlpatterns = [path("jobs/", include([path("", include("django_ojs.urls"))]))]
