"""API keys: who may call the HTTP binding from outside, and what they may do."""

from __future__ import annotations

from django.db import models

from django_ojs.models.fields import JSONTextField


class APIKey(models.Model):
    """One key. Only its SHA-256 is stored: 256 random bits need no slow hash, and lookup is one index read."""

    class Scope(models.TextChoices):
        PUSH = "push", "push: enqueue jobs"
        WORK = "work", "work: fetch, ack, fail, heartbeat"
        READ = "read", "read: jobs, queues, dead letters, events"
        INSPECT = "admin.read", "admin.read: look at everything below /admin"
        OPERATE = "admin.write", "admin.write: operate below /admin, but delete nothing"
        PURGE = "admin.purge", "admin.purge: delete below /admin"
        ADMIN = "admin", "admin: everything, and manage"

    name = models.CharField(max_length=100, unique=True)
    prefix = models.CharField(max_length=16, editable=False, help_text="The first characters, to recognise it by.")
    digest = models.CharField(max_length=64, unique=True, editable=False)
    scopes = JSONTextField(default=list)
    queues = JSONTextField(default=None, blank=True, help_text="Limits the key to these queues; null: all.")
    job_types = JSONTextField(
        default=None, blank=True, help_text="Limits the key to these types (`mail.*`); null: all."
    )
    created_at = models.DateTimeField()
    expires_at = models.DateTimeField(null=True, blank=True)
    revoked_at = models.DateTimeField(null=True, blank=True)
    last_used_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        verbose_name = "API key"
        ordering = ["name"]

    def __str__(self) -> str:
        return f"{self.name} ({self.prefix}…)"
