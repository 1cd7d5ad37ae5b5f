"""Rules that retry dead letters by themselves, and what each of them has retried."""

from __future__ import annotations

from django.db import models

from django_ojs.models.fields import JSONTextField


class ReplayRule(models.Model):
    """One rule that an operator made; those of `OJS["REPLAY_RULES"]` have no row. Only `jobs.replay` writes it.

    Rules are asked in the order of their ids.
    """

    id = models.BigAutoField(primary_key=True)
    name = models.CharField(max_length=128, unique=True)
    filter = JSONTextField(default=dict, help_text="Which dead letters it is for: queue, type, error type, times.")
    delay_ms = models.BigIntegerField(help_text="How long after its end a job is retried.")
    max_replays = models.PositiveIntegerField(help_text="How often it retries one job.")
    per_minute = models.PositiveIntegerField(help_text="How many jobs it retries in a minute at most.")
    enabled = models.BooleanField(default=True)
    created_at = models.DateTimeField()
    updated_at = models.DateTimeField()

    class Meta:
        ordering = ["id"]
        verbose_name = "replay rule"

    def __str__(self) -> str:
        return self.name


class JobReplay(models.Model):
    """One retry by a rule. The job's rows go when the job is deleted; the rule may be gone by now."""

    id = models.BigAutoField(primary_key=True)
    job_id = models.UUIDField()
    rule = models.CharField(max_length=128)
    replayed_at = models.DateTimeField()

    class Meta:
        default_permissions = ()
        indexes = [
            models.Index(fields=["job_id", "rule"], name="ojs_replay_job"),
            models.Index(fields=["rule", "replayed_at"], name="ojs_replay_rule"),
        ]

    def __str__(self) -> str:
        return f"{self.rule}: {self.job_id}"
