"""A URLconf without django-ojs."""

from django.urls import path

urlpatterns = [path("", lambda request: None, name="home")]  # type: ignore[arg-type, return-value]
