"""A queue: a name, whether it is paused, and the defaults it gives to its jobs."""

from __future__ import annotations

from django.db import models

from django_ojs.models.fields import JSONTextField


class Queue(models.Model):
    """One queue. The row appears with the first job, or when an operator configures or pauses the queue."""

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
        return "paused" if self.paused else "draining" if self.draining else "active"


#: The reserved name of the row whose values all queues begin with (jobs 4.1); no queue can be called so.
TEMPLATE = "_default"
