"""Tickets: how a page that cannot set headers shows who it is when it opens a WebSocket."""

from __future__ import annotations

from django.db import models


class Ticket(models.Model):
    """One ticket, for one use within seconds, with the rights of its caller. Only its SHA-256 is stored."""

    digest = models.CharField(max_length=64, primary_key=True)
    key = models.ForeignKey("APIKey", models.CASCADE, null=True, related_name="+", db_index=False)
    user = models.CharField(max_length=255, default="", help_text="The primary key of the site's user, as text.")
    expires_at = models.DateTimeField(db_index=True)

    def __str__(self) -> str:
        return f"ticket of {self.key or self.user or 'anonymous'}"
