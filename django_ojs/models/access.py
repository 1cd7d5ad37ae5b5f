"""Callers of the HTTP binding: API keys, tickets for WebSockets, and answers remembered by `Idempotency-Key`."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _

from django_ojs.models.fields import JSONTextField, NameField, NaturalKeys, OJSModel


class APIKey(OJSModel):
    """A key, and what its caller may do with it.

    Only its SHA-256 is stored: 256 random bits need no slow hash, and lookup is one index read.
    """

    class Scope(models.TextChoices):
        PUSH = "push", _("push: enqueue jobs")
        WORK = "work", _("work: fetch, ack, fail, heartbeat")
        EMIT = "emit", _("emit: give durable jobs the events that they wait for")
        APPROVE = "approve", _("approve: decide what durable jobs ask people")
        READ = "read", _("read: jobs, queues, dead letters, events")
        INSPECT = "admin.read", _("admin.read: look at everything below /admin")
        OPERATE = "admin.write", _("admin.write: operate below /admin, but delete nothing")
        PURGE = "admin.purge", _("admin.purge: delete below /admin")
        ADMIN = "admin", _("admin: everything, and manage")

    name = NameField(max_length=100, unique=True)
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

    objects = NaturalKeys["APIKey"]("name")  # type: ignore[misc]

    class Meta:
        verbose_name = "API key"
        ordering = ["name"]

    def __str__(self) -> str:
        return f"{self.name} ({self.prefix}…)"

    def natural_key(self) -> tuple[str]:
        return (self.name,)


class Ticket(OJSModel):
    """How a page that cannot set headers authenticates when it opens a WebSocket: for one use within seconds.

    It has the rights of its caller. Only its SHA-256 is stored.
    """

    digest = models.CharField(max_length=64, primary_key=True)
    key = models.ForeignKey("APIKey", models.CASCADE, null=True, related_name="+", db_index=False)
    user = models.CharField(max_length=255, default="", help_text="The primary key of the site's user, as text.")
    session = models.CharField(
        max_length=255, default="", db_default="",
        help_text="The session of the user, to be read with the ticket only; empty: none.",
    )  # fmt: skip
    expires_at = models.DateTimeField(db_index=True)

    def __str__(self) -> str:
        return f"ticket of {self.key or self.user or 'anonymous'}"


class IdempotencyKey(OJSModel):
    """A request that carried an `Idempotency-Key`: whose and for what, its digest, and the answer once there is one."""

    digest = models.CharField(max_length=64, primary_key=True, help_text="SHA-256 of principal, operation and key.")
    request = models.CharField(max_length=64, help_text="SHA-256 of the request body.")
    status = models.PositiveSmallIntegerField(null=True)
    body = models.TextField(default="")
    headers = models.TextField(default="")
    created_at = models.DateTimeField(db_index=True)

    def __str__(self) -> str:
        return self.digest[:12]
