"""The outbox: jobs on their way from the database of the site's data to the one that holds the jobs."""

from __future__ import annotations

from django.db import models
from django.db.models import Q

from django_ojs.models.fields import JSONTextField


class OutboxEntry(models.Model):
    """A validated job or workflow, written in the caller's transaction; gone when it is stored where it belongs.

    The table is in the database that `OJS["OUTBOX"]` names. One that the other side refuses for good stays,
    `aside` and with the `error`.
    """

    class Kind(models.TextChoices):
        JOB = "job", "job"
        WORKFLOW = "workflow", "workflow"

    id = models.BigAutoField(primary_key=True)
    target_id = models.UUIDField(unique=True, help_text="The id that the job or workflow has already.")
    kind = models.CharField(max_length=8, choices=Kind.choices, default=Kind.JOB)
    type = models.CharField(max_length=255, help_text="The job type; of a workflow its kind.")
    document = JSONTextField(help_text="The envelope, as the enqueue middleware left it.")
    created_at = models.DateTimeField(help_text="When it was enqueued: delays count from here.")
    attempts = models.PositiveIntegerField(default=0, help_text="How often the other side said: not now.")
    retry_at = models.DateTimeField(null=True, blank=True)
    aside = models.BooleanField(default=False, help_text="Refused for good; nobody tries again.")
    error = models.TextField(default="", blank=True)

    class Meta:
        verbose_name_plural = "outbox entries"
        indexes = [models.Index(fields=["id"], name="ojs_outbox_waiting", condition=Q(aside=False))]

    def __str__(self) -> str:
        return f"{self.type} {self.target_id}"
