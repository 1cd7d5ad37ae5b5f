"""Rate limits: what is left of each key, and when its jobs started (jobs 5)."""

from __future__ import annotations

from django.db import models

from django_ojs.models.fields import JSONTextField


class RateLimit(models.Model):
    """One key that jobs share: a claim of jobs with it locks its row.

    Keys of ours begin with `queue:` (a queue's own limits) and `type:` (those of a job type).
    """

    key = models.CharField(max_length=255, primary_key=True)
    policy = JSONTextField(default=None, blank=True, help_text="The latest that a job or a queue gave.")
    override = JSONTextField(default=None, blank=True, help_text="An operator's; replaces what jobs and queue say.")
    override_expires_at = models.DateTimeField(null=True, blank=True)
    next_allowed_at = models.DateTimeField(null=True, blank=True, help_text="Throttle: the earliest next start.")
    blocked_until = models.DateTimeField(null=True, blank=True, help_text="As a worker reported of the far side.")
    exceeded = models.CharField(max_length=16, default="", blank=True, help_text="What stops the key right now.")
    created_at = models.DateTimeField()
    updated_at = models.DateTimeField()

    class Meta:
        ordering = ["key"]

    def __str__(self) -> str:
        return self.key


class RateStart(models.Model):
    """Starts under one key at one instant: the sliding log by which a rate is counted."""

    key = models.CharField(max_length=255)
    at = models.DateTimeField()
    count = models.PositiveIntegerField()
    expires_at = models.DateTimeField(help_text="When no window reaches back to it any more.")

    class Meta:
        indexes = [models.Index(fields=["key", "at"], name="ojs_start_key")]

    def __str__(self) -> str:
        return f"{self.key}: {self.count} at {self.at}"
