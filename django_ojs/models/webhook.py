"""Webhooks: who wants which events, what was sent to whom, and how far the log has been handed out."""

from __future__ import annotations

import uuid

from django.db import models
from django.db.models import Q

from django_ojs.models.fields import JSONTextField, NameField, OJSModel
from django_ojs.rules.ids import new_id


class WebhookSubscription(OJSModel):
    """A receiver and the events it wants (events 6.1). Only `webhooks.subscriptions` and its neighbours write it.

    `secret`, `previous_secret` and `headers` are sealed (`webhooks.subscriptions.seal`). Events from before
    `active_since` are not for it. `failing_since` is the first attempt that failed since the last good one.
    """

    class SignatureFormat(models.TextChoices):
        BODY = "body"
        TIMESTAMP_BODY = "timestamp.body"

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    url = models.TextField()
    events = JSONTextField(default=list, help_text="Event types: exact, job.*, or *.")
    queues = JSONTextField(default=None, blank=True, help_text="Only events of these queues; empty: all.")
    job_types = JSONTextField(default=None, blank=True, help_text="Only events of these job types; empty: all.")
    limited = models.BooleanField(default=False, help_text="Defined by somebody limited to these queues or types.")
    active = models.BooleanField(default=True)
    active_since = models.DateTimeField(null=True)
    disabled_reason = models.TextField(default="", blank=True)
    secret = models.TextField(editable=False)
    previous_secret = models.TextField(default="", editable=False)
    previous_secret_expires_at = models.DateTimeField(null=True, editable=False)
    signature_format = models.CharField(
        max_length=14, choices=SignatureFormat.choices, default=SignatureFormat.BODY,
        help_text="What X-OJS-Signature is over; X-OJS-Signature-Timestamped is over the other.",
    )  # fmt: skip
    headers = models.TextField(default="", editable=False)
    timeout_seconds = models.PositiveSmallIntegerField(null=True, blank=True, help_text="5 to 60; empty: the site's.")
    metadata = JSONTextField(default=dict, blank=True)
    created_by = models.CharField(max_length=255, default="")
    last_delivery_at = models.DateTimeField(null=True)
    last_delivery_status = models.IntegerField(null=True)
    failing_since = models.DateTimeField(null=True)
    success_count = models.PositiveBigIntegerField(default=0)
    failure_count = models.PositiveBigIntegerField(default=0)
    created_at = models.DateTimeField()
    updated_at = models.DateTimeField()

    class Meta:
        ordering = ["-created_at"]
        indexes = [models.Index(fields=["active"], name="ojs_hook_active")]
        constraints = [
            models.CheckConstraint(
                condition=Q(active=False) | Q(active_since__isnull=False), name="ojs_hook_active_since_when"
            )
        ]

    def __str__(self) -> str:
        return self.public_id

    @property
    def public_id(self) -> str:
        return f"sub_{self.pk}"


class WebhookDelivery(OJSModel):
    """One event for one subscription, in the order of the log.

    `next_attempt_at` is when it is due; None while it waits for an earlier one of its subject (it is postponed:
    `held`), and when it has ended. While it is being sent, `claim` names the attempt, and `next_attempt_at` is when the
    attempt counts as lost. `body` holds the bytes that every attempt sends, whatever becomes of the log.
    """

    class Status(models.TextChoices):
        PENDING = "pending"  #: not tried yet
        SUCCESS = "success"
        FAILED = "failed"  #: tried, and to be tried again
        DEAD = "dead"

    OPEN = (Status.PENDING, Status.FAILED)

    id = models.BigAutoField(primary_key=True)
    uid = models.UUIDField(unique=True, default=new_id)
    subscription = models.ForeignKey(
        WebhookSubscription, models.DO_NOTHING, db_constraint=False, db_index=False, related_name="+"
    )
    event_id = models.CharField(max_length=64)
    event_type = models.CharField(max_length=64)
    subject = NameField(max_length=255)
    queue = models.CharField(max_length=128, default="", db_default="", help_text="Of the event; empty: none.")
    type = models.CharField("job type", max_length=255, default="", db_default="")
    body = models.TextField()
    status = models.CharField(max_length=7, choices=Status.choices, default=Status.PENDING)
    held = models.BooleanField(default=False)
    next_attempt_at = models.DateTimeField(null=True)
    claim = models.UUIDField(null=True)
    attempt_count = models.PositiveSmallIntegerField(default=0)
    max_attempts = models.PositiveSmallIntegerField()
    attempts = JSONTextField(default=list, help_text="The latest attempts, oldest first.")
    response_status = models.IntegerField(null=True)
    response_time_ms = models.PositiveIntegerField(null=True)
    response_body = models.TextField(default="")
    error = models.TextField(default="")
    created_at = models.DateTimeField()
    delivered_at = models.DateTimeField(null=True)

    class Meta:
        verbose_name = "webhook delivery"
        verbose_name_plural = "webhook deliveries"
        indexes = [
            models.Index(fields=["next_attempt_at"], name="ojs_delivery_due"),
            models.Index(fields=["subscription", "next_attempt_at"], name="ojs_delivery_sub_due"),
            models.Index(fields=["subscription", "status", "subject", "id"], name="ojs_delivery_subject"),
            models.Index(fields=["subscription", "id"], name="ojs_delivery_sub"),
            models.Index(fields=["status", "created_at"], name="ojs_delivery_old"),
        ]

    def __str__(self) -> str:
        return self.public_id

    @property
    def public_id(self) -> str:
        return f"del_{self.uid}"

    @property
    def is_open(self) -> bool:
        return self.status in self.OPEN


class WebhookRelay(OJSModel):
    """The single row of the relay: the place in the log up to which deliveries have been stored.

    `event` None: there were no subscriptions, and the next pass begins where the first subscription did.
    """

    id = models.SmallIntegerField(primary_key=True, default=1)
    commit = models.BigIntegerField(default=0, help_text="PostgreSQL: the number of the transaction; MariaDB: seq.")
    event = models.BigIntegerField(null=True)
    changes = models.PositiveIntegerField(
        default=0, db_default=0, help_text="Of how many changes of the log's history receivers have been told."
    )
    missed = models.PositiveBigIntegerField(
        default=0, db_default=0, help_text="Events behind the place that are pruned, and receivers not told of it yet."
    )

    def __str__(self) -> str:
        return f"webhooks: event {self.event}"


class WebhookCount(OJSModel):
    """Attempts of one event type with one outcome, counted (`statistics.webhookcounts`)."""

    id = models.BigAutoField(primary_key=True)
    event_type = models.CharField(max_length=64)
    status = models.CharField(max_length=7, choices=WebhookDelivery.Status.choices)
    attempts = models.PositiveBigIntegerField(default=0)
    duration_ms = models.PositiveBigIntegerField(default=0, help_text="Of all of them together.")
    durations = JSONTextField(default=list, help_text="Attempts by bucket of their duration.")
    retries = JSONTextField(default=list, help_text="Ended deliveries by bucket of their retries.")
    retries_total = models.PositiveBigIntegerField(default=0)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["event_type", "status"], name="ojs_hook_count")]

    def __str__(self) -> str:
        return f"{self.event_type} {self.status}: {self.attempts}"


def parse_public_id(text: str, prefix: str) -> uuid.UUID | None:
    """The UUID in `sub_…` or `del_…`; None where it is none."""
    try:
        value = uuid.UUID(text.removeprefix(prefix))
    except ValueError:
        return None
    return value if text == f"{prefix}{value}" else None
