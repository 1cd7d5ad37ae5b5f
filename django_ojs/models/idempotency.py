"""Remembered answers to requests that carried an `Idempotency-Key`."""

from __future__ import annotations

from django.db import models


class IdempotencyKey(models.Model):
    """A key of one caller and operation, the digest of the request, and the answer once there is one."""

    digest = models.CharField(max_length=64, primary_key=True, help_text="SHA-256 of principal, operation and key.")
    request = models.CharField(max_length=64, help_text="SHA-256 of the request body.")
    status = models.PositiveSmallIntegerField(null=True)
    body = models.TextField(default="")
    headers = models.TextField(default="")
    created_at = models.DateTimeField(db_index=True)

    def __str__(self) -> str:
        return self.digest[:12]
