"""The ended attempts of jobs: one row for each that did not complete its job.

An attempt that completes its job is its last, and all that there is to say of it is in the job's own row. So a job that
succeeds at once has no row here. `jobs.attempts` puts both together.
"""

from __future__ import annotations

from django.db import models

from django_ojs.models.fields import JSONTextField, NameField, OJSModel


class JobAttempt(OJSModel):
    """One attempt that ended without completing its job: who ran it, when, and what came of it.

    It is written in the transaction that ends the attempt, and deleted with the job.
    """

    class Outcome(models.TextChoices):
        FAILED = "failed", "failed"
        TIMED_OUT = "timed_out", "timed out"
        LOST = "lost", "lost"
        RELEASED = "released", "released"
        SNOOZED = "snoozed", "snoozed"
        CANCELLED = "cancelled", "cancelled"

    id = models.BigAutoField(primary_key=True)
    job_id = models.UUIDField()
    round = models.PositiveIntegerField(help_text="How often the job had been retried from the beginning.")
    attempt = models.PositiveIntegerField(help_text="The number of the attempt in its round.")
    worker_id = NameField(max_length=255, default="", blank=True)
    release = NameField(max_length=64, default="", blank=True, help_text="Of the site's own code (RELEASE).")
    started_at = models.DateTimeField()
    ended_at = models.DateTimeField()
    outcome = models.CharField(max_length=9, choices=Outcome.choices)
    error = JSONTextField(default=None, blank=True, help_text="With its traceback; empty: it ended without an error.")

    class Meta:
        default_permissions = ()
        constraints = [models.UniqueConstraint(fields=["job_id", "round", "attempt"], name="ojs_attempt_once")]

    def __str__(self) -> str:
        return f"{self.job_id}: attempt {self.attempt} of round {self.round} ({self.outcome})"
