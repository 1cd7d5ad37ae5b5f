"""The app's entry in INSTALLED_APPS."""

from __future__ import annotations

from django.apps import AppConfig


class DjangoOJSConfig(AppConfig):
    name = "django_ojs"
    verbose_name = "Open Job Spec"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from django_ojs import checks, telemetry  # noqa: F401  (checks register themselves)
        from django_ojs.cron import runs  # noqa: F401  (subscribes to what becomes of jobs, as workflows do)
        from django_ojs.events import restored
        from django_ojs.jobs import approvals  # noqa: F401
        from django_ojs.models import fields
        from django_ojs.registry import registry
        from django_ojs.tasks import discovery
        from django_ojs.workflows import advance  # noqa: F401

        registry.add_source(discovery.discover)
        fields.translate_names(self.get_models())
        restored.subscribe()
        telemetry.subscribe()
