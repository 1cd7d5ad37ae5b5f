"""A schedule, and the jobs it made."""

from __future__ import annotations

from typing import Any

from django.db import models
from django.db.models import Q

from django_ojs.models.fields import JSONTextField, NameField, OJSModel
from django_ojs.rules.cron import OverlapPolicy


class CronSchedule(OJSModel):
    """One named schedule. Only `cron.schedules` and `cron.runs` write it.

    `wake_at` is when the scheduler has to look: usually `next_run_at`, earlier where a clock change
    swallows an occurrence before that; both are None while the schedule is disabled. A tick is claimed by a
    conditional UPDATE of `wake_at`. `updated_at` changes with the definition, not with a tick.
    """

    class Source(models.TextChoices):
        API = "api"  #: registered by a caller, over HTTP for instance
        CODE = "code"  #: from `@job(..., cron=...)`; `client.sync` keeps it as the code says

    name = NameField(max_length=255, primary_key=True)
    expression = models.CharField(max_length=255, help_text="As it was given.")
    timezone = models.CharField(max_length=64, default="UTC")
    type = models.CharField("job type", max_length=255)
    queue = models.CharField(max_length=128, default="default")
    template = JSONTextField(default=dict, help_text="The envelope that each of its jobs is made from.")
    overlap_policy = models.CharField(
        max_length=15, choices=[(p.value, p.value) for p in OverlapPolicy], default=OverlapPolicy.SKIP
    )
    enabled = models.BooleanField(default=True)
    description = models.TextField(default="", blank=True)
    limits = JSONTextField(
        default=None,
        null=True,
        blank=True,
        editable=False,
        help_text="What who defined it reaches (access.py); null: everything.",
    )
    source = models.CharField(max_length=4, choices=Source.choices, default=Source.API)
    #: `client.sync.Declaration`. A sync compares it with the row, to find what operators changed.
    declared = JSONTextField(
        null=True, blank=True, editable=False, help_text="What the code said of it when it was last synchronised."
    )
    anchor_at = models.DateTimeField(help_text="From where @every counts.")
    wake_at = models.DateTimeField(null=True, blank=True)
    next_run_at = models.DateTimeField("next run", null=True, blank=True)
    last_run_at = models.DateTimeField("last run", null=True, blank=True)
    run_count = models.PositiveBigIntegerField(default=0)
    created_at = models.DateTimeField()
    updated_at = models.DateTimeField()

    class Meta:
        ordering = ["name"]
        verbose_name = "schedule"
        indexes = [models.Index(fields=["wake_at"], name="ojs_cron_wake", condition=Q(wake_at__isnull=False))]
        constraints = [
            models.CheckConstraint(
                condition=Q(enabled=True, wake_at__isnull=False, next_run_at__isnull=False)
                | Q(enabled=False, wake_at__isnull=True, next_run_at__isnull=True),
                name="ojs_cron_enabled_iff_due",
            ),
        ]

    def __str__(self) -> str:
        return self.name

    @property
    def status(self) -> str:
        return "active" if self.enabled else "paused"

    @property
    def document(self) -> dict[str, Any]:
        """The envelope of its jobs, without what makes each of them its own."""
        return dict(self.template or {})


class CronRun(OJSModel):
    """One job that a schedule made. The schedule and the job may both be gone by now.

    A postponed job (`held`) waits behind a run that has not ended (policy `enqueue`): it is `available`, and its
    `due_at` keeps every claim away until `cron.runs` lets it go.
    """

    id = models.BigAutoField(primary_key=True)
    name = NameField(max_length=255, help_text="The schedule's name.")
    job_id = models.UUIDField(unique=True)
    queue = models.CharField(max_length=128)
    scheduled_at = models.DateTimeField(help_text="The nominal time.")
    triggered_at = models.DateTimeField()
    held = models.BooleanField(default=False)

    class Meta:
        indexes = [
            models.Index(fields=["name", "id"], name="ojs_cronrun_name"),
            models.Index(fields=["queue"], name="ojs_cronrun_held", condition=Q(held=True)),
        ]

    def __str__(self) -> str:
        return f"{self.name}: {self.job_id}"
