"""How far a running job says it is (orchestration 5.1): a row of its own, so that no other verb pays for it."""

from __future__ import annotations

from django.db import models
from django.db.models import Q

from django_ojs.models.fields import JSONTextField


class JobProgress(models.Model):
    """The latest report of a job. It belongs to one attempt: the next begins without any.

    Written under the lock of the job's row.
    """

    job_id = models.UUIDField(primary_key=True)
    attempt = models.PositiveIntegerField()
    percent = models.FloatField(null=True, help_text="0 to 100; never goes back within an attempt.")
    message = models.TextField(default="", blank=True)
    data = JSONTextField(null=True)
    updated_at = models.DateTimeField()
    told_at = models.DateTimeField(null=True, help_text="When the latest job.progress event was written.")
    held = models.BooleanField(default=False, help_text="An event about the latest report is still to be written.")

    class Meta:
        verbose_name_plural = "job progress"
        indexes = [models.Index(fields=["told_at"], name="ojs_progress_held", condition=Q(held=True))]

    def __str__(self) -> str:
        return f"{self.job_id}: {'no number' if self.percent is None else f'{self.percent:g} %'}"
