"""The app that has `manage.py ojs_conformance`: for those who test OJS servers, and not for sites."""

from __future__ import annotations

from django.apps import AppConfig


class ConformanceConfig(AppConfig):
    name = "ojs_conformance.djangoapp"
    label = "ojs_conformance"
    verbose_name = "Open Job Spec conformance"
