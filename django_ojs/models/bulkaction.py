"""Acts on everything that fits a filter, which are too long for a request: the scheduler does them in batches."""

from __future__ import annotations

from django.db import models

from django_ojs.models.fields import JSONTextField


class BulkAction(models.Model):
    """One such act, and how far it is. `after` and `after_id` are the place of the last job that was looked at."""

    class State(models.TextChoices):
        RUNNING = "running", "running"
        COMPLETED = "completed", "completed"
        CANCELLED = "cancelled", "cancelled"
        FAILED = "failed", "failed"

    id = models.BigAutoField(primary_key=True)
    verb = models.CharField(max_length=32)
    filter = JSONTextField(default=dict)
    override = JSONTextField(default=None, blank=True, help_text="What a retry changes in the jobs.")
    state = models.CharField(max_length=9, choices=State, default=State.RUNNING)
    actor = models.CharField(max_length=255)
    door = models.CharField(max_length=16, default="")
    source_ip = models.CharField(max_length=64, default="")
    created_at = models.DateTimeField()
    finished_at = models.DateTimeField(null=True, blank=True)
    expected = models.PositiveIntegerField(help_text="Jobs that fitted when it was asked for.")
    matched = models.PositiveIntegerField(default=0, help_text="Jobs that were looked at.")
    succeeded = models.PositiveIntegerField(default=0)
    errors = JSONTextField(default=None, blank=True, help_text="The first refusals.")
    tries = models.PositiveSmallIntegerField(default=0, help_text="How often its next batch has broken off.")
    problem = models.CharField(max_length=500, default="", blank=True, help_text="Why that was.")
    after = models.DateTimeField(null=True, blank=True)
    after_id = models.UUIDField(null=True, blank=True)

    class Meta:
        verbose_name = "bulk action"
        default_permissions = ()  # who may act on jobs

    def __str__(self) -> str:
        return f"{self.verb} #{self.pk} ({self.state})"

    @property
    def failed(self) -> int:
        return self.matched - self.succeeded
