"""What handlers log while they run: a row for each line of an attempt that is kept."""

from __future__ import annotations

from django.db import models

from django_ojs.models.fields import JSONTextField, OJSModel


class JobLog(OJSModel):
    """One line that a handler has logged in one attempt.

    An attempt is known by its job and by when it started: a job that is retried by hand counts its attempts anew. Its
    lines are in the order of `sequence`. Of an attempt that logs more than is kept, the first lines and the last ones
    stay (`jobs.joblog`), and a row between them has in `dropped` how many are missing.
    """

    id = models.BigAutoField(primary_key=True)
    job_id = models.UUIDField()
    attempt = models.PositiveIntegerField()
    started_at = models.DateTimeField(help_text="When the attempt started.")
    sequence = models.BigIntegerField(help_text="The place of the line in its attempt.")
    time = models.DateTimeField()
    level = models.PositiveSmallIntegerField(help_text="As in Python's logging: 20 is INFO.")
    logger = models.CharField(max_length=255, default="", blank=True)
    message = models.TextField(default="", blank=True)
    fields = JSONTextField(null=True, blank=True, help_text="What the handler said beside the message, as an object.")
    exception = models.TextField(default="", blank=True, help_text="The traceback that was logged with it.")
    dropped = models.PositiveBigIntegerField(null=True, blank=True, help_text="How many lines are missing here.")

    class Meta:
        default_permissions = ()
        constraints = [models.UniqueConstraint(fields=["job_id", "started_at", "sequence"], name="ojs_log_place")]

    def __str__(self) -> str:
        return f"{self.job_id}, attempt {self.attempt}: {self.message[:80]}"
