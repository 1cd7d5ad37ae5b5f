"""A site that has the server below a prefix."""

from django.urls import include, path

urlpatterns = [path("below/", include("django_ojs.urls"))]
