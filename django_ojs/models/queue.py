"""Queues, their rate limits, and the maintenance mode, which stops delivery from all of them."""

from __future__ import annotations

from typing import ClassVar

from django.db import models
from django.db.models import Exists, Q
from django.utils.functional import cached_property

from django_ojs.models.fields import JSONTextField, NameField, OJSModel


class Queue(OJSModel):
    """A name under which jobs wait, whether it is paused, and the defaults for its jobs.

    The row appears with the first job, or when an operator configures or pauses the queue.
    """

    name = models.CharField(max_length=128, primary_key=True)
    paused = models.BooleanField(default=False)
    paused_at = models.DateTimeField(null=True, blank=True)
    resumed_at = models.DateTimeField(null=True, blank=True)
    visibility_ms = models.BigIntegerField(null=True, blank=True, help_text="Reservation length, milliseconds.")
    timeout_ms = models.BigIntegerField(null=True, blank=True, help_text="Default execution timeout, milliseconds.")
    retry = JSONTextField(default=None, blank=True, help_text="Default retry policy, in the wire's spelling.")
    config = JSONTextField(default=None, blank=True)
    pressured_at = models.DateTimeField(null=True, blank=True, help_text="Since when a bounded queue is nearly full.")
    limited = models.BooleanField(
        default=False, help_text="A claim has to look at rate limits first; on `_default`: in every queue."
    )
    draining = models.BooleanField(default=False, help_text="Delivers, but takes no new jobs.")
    move_to = models.CharField(max_length=128, default="", blank=True, help_text="Where its jobs go before it ends.")
    created_at = models.DateTimeField()
    updated_at = models.DateTimeField()

    class Meta:
        ordering = ["name"]

    def __str__(self) -> str:
        return self.name

    @property
    def status(self) -> str:
        return "paused" if self.paused else "draining" if self.draining or self.all_drain else "active"

    @cached_property
    def all_drain(self) -> bool:
        """Whether the template drains, and so every queue. Lists read it along with their rows (`ALL_DRAIN`)."""
        return Queue.objects.using(self._state.db).filter(_TEMPLATE_DRAINS).exists()


#: The reserved name of the row whose values all queues begin with (jobs 4.1); no queue can be called so.
TEMPLATE = "_default"
_TEMPLATE_DRAINS = Q(pk=TEMPLATE, draining=True)
#: For `annotate`: whether the template drains.
ALL_DRAIN = {"all_drain": Exists(Queue.objects.filter(_TEMPLATE_DRAINS))}


class RateLimit(OJSModel):
    """One rate limit (jobs 5): a key that jobs share. A claim of jobs with that key locks its row.

    Keys of ours begin with `queue:` (a queue's own limits) and `type:` (those of a job type).
    """

    key = NameField(max_length=255, primary_key=True)
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


class RateStart(OJSModel):
    """Starts under one key at one instant: the sliding log by which a rate is counted."""

    key = NameField(max_length=255)
    at = models.DateTimeField()
    count = models.PositiveIntegerField()
    expires_at = models.DateTimeField(help_text="When no window reaches back to it any more.")

    class Meta:
        indexes = [models.Index(fields=["key", "at"], name="ojs_start_key")]

    def __str__(self) -> str:
        return f"{self.key}: {self.count} at {self.at}"


class Maintenance(OJSModel):
    """Maintenance mode: why nothing is delivered, since when, and until when about.

    It is on while its only row is there: a FETCH asks whether the table is empty, and while it is, that costs nothing.
    """

    ONLY: ClassVar[int] = 1

    id = models.PositiveSmallIntegerField(primary_key=True, default=ONLY, editable=False)
    reason = models.CharField(max_length=500, default="", blank=True)
    enabled_at = models.DateTimeField()
    enabled_by = models.CharField(max_length=255, default="", blank=True, help_text="As in the audit log.")
    estimated_end = models.DateTimeField(null=True, blank=True)
    auto_end = models.BooleanField(default=False, help_text="The scheduler ends it at its estimated end.")

    class Meta:
        verbose_name = "maintenance mode"
        verbose_name_plural = "maintenance mode"
        default_permissions = ("view", "change")
        constraints = [models.CheckConstraint(condition=Q(id=1), name="ojs_maintenance_only")]

    def __str__(self) -> str:
        return f"maintenance since {self.enabled_at:%Y-%m-%d %H:%M}Z"
