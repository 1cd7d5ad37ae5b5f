"""A JSON Schema for the arguments of a job type (binding 7)."""

from __future__ import annotations

from typing import Any

from django.db import models

from django_ojs import jsontext
from django_ojs.models.fields import JSONTextField


class JobSchema(models.Model):
    """One version of the schema of one job type. `schema` is the document as it was registered."""

    job_type = models.CharField(max_length=255)
    version = models.CharField(max_length=64, help_text="1 and the text 1 are one version.")
    numeric = models.BooleanField(default=False, help_text="Whether the version was registered as a number.")
    uri = models.CharField(max_length=512, unique=True)
    schema = JSONTextField()
    created_at = models.DateTimeField()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["job_type", "version"], name="ojs_schema_version")]

    def __str__(self) -> str:
        return f"{self.job_type} {self.version}"

    @property
    def wire_version(self) -> Any:
        """The version as it was registered."""
        return jsontext.loads(self.version) if self.numeric else self.version
