"""A site that has Django's own admin beside one of its own class, with all our pages on both."""

from __future__ import annotations

from django.contrib import admin
from django.urls import path

from tests.admin import urls_own_site

urlpatterns = [path("admin/", admin.site.urls), *urls_own_site.urlpatterns]
