"""Maintenance mode: on while its row is there."""

from __future__ import annotations

from typing import ClassVar

from django.db import models
from django.db.models import Q


class Maintenance(models.Model):
    """Why nothing is delivered, since when, and until when about. At most one row: what a FETCH asks is whether the
    table is empty, and while it is, that costs nothing."""

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
