"""A lease: who leads, and until when."""

from __future__ import annotations

from django.db import models


class Lease(models.Model):
    """A named role that one process at a time may hold, such as the scheduler's leader."""

    name = models.CharField(max_length=64, primary_key=True)
    holder = models.CharField(max_length=255)
    expires_at = models.DateTimeField()

    def __str__(self) -> str:
        return f"{self.name}: {self.holder}"
