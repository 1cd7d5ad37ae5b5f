"""A site whose admin has everything of ours but the jobs, and nothing of ours in the default one."""

from __future__ import annotations

from django.contrib.admin import AdminSite
from django.contrib.admin.sites import site as default
from django.urls import include, path

from django_ojs.models import Job

site = AdminSite("partial")
for model, model_admin in default._registry.items():
    if model._meta.app_label == "django_ojs" and model is not Job:
        site.register(model, type(model_admin))

urlpatterns = [path("partial/", site.urls), path("", include("django_ojs.urls"))]
