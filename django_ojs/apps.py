"""The app's entry in INSTALLED_APPS."""

from __future__ import annotations

from django.apps import AppConfig


class DjangoOJSConfig(AppConfig):
    name = "django_ojs"
    verbose_name = "Open Job Spec"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from django_ojs import checks, telemetry  # noqa: F401  (checks register themselves)
        from django_ojs.models import fields
        from django_ojs.registry import registry
        from django_ojs.tasks import discovery

        registry.add_source(discovery.discover)
        fields.translate_names(self.get_models())
        telemetry.subscribe()
