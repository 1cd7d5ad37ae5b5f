"""The event log: what happened, in the transaction in which it happened.

A transaction that commits late brings ids that readers have passed, so ids alone are no cursor. How each
database gives the log its total order is the business of `django_ojs.events.order`.
"""

from __future__ import annotations

from django.db import models
from django.db.models import Q

from django_ojs.models.fields import JSONTextField, NameField, OJSModel


class Event(OJSModel):
    """One lifecycle event (events specification, sections 2 to 4), in columns where readers filter.

    `data` holds only what is special to the type; the fields that all job events share are made from
    the columns when the event is rendered. The public id is computed from the row (`events.ids`).
    """

    id = models.BigAutoField(primary_key=True)
    commit = models.ForeignKey(
        "EventCommit",
        models.DO_NOTHING,
        to_field="txid",
        db_column="txid",
        null=True,
        db_constraint=False,
        db_index=False,
        related_name="+",
        help_text="PostgreSQL: the transaction that wrote the event.",
    )
    seq = models.BigIntegerField(null=True, help_text="MariaDB: the place in the log, given by the relay.")
    type = models.CharField(max_length=64)
    time = models.DateTimeField()
    component = models.CharField(max_length=16, help_text="Second part of the source: api, workers, scheduler, cron.")
    subject = models.CharField(max_length=255, default="", help_text="Empty for job events: their subject is job_id.")
    job_id = models.UUIDField(null=True)
    job_type = models.CharField(max_length=255, default="")
    queue = models.CharField(max_length=128, default="")
    state = models.CharField(max_length=9, default="")
    attempt = models.PositiveIntegerField(default=0)
    worker_id = NameField(max_length=255, default="")
    trace_id = models.CharField(max_length=64, default="")
    workflow_id = models.UUIDField(null=True)
    data = JSONTextField(default=None)

    #: The id that its client gave the workflow, where `events.log` has looked for one.
    own_id = ""

    class Meta:
        indexes = [
            models.Index(fields=["job_id"], name="ojs_event_job", condition=Q(job_id__isnull=False)),
            models.Index(fields=["commit"], name="ojs_event_txid", condition=Q(commit__isnull=False)),
            models.Index(fields=["seq"], name="ojs_event_seq", condition=Q(seq__isnull=False)),
        ]

    def __str__(self) -> str:
        return f"{self.type} {self.job_id or self.subject}"


class EventCommit(OJSModel):
    """PostgreSQL: one transaction that wrote events, numbered after it became visible."""

    seq = models.BigAutoField(primary_key=True)
    txid = models.BigIntegerField(unique=True)

    def __str__(self) -> str:
        return f"{self.seq}: transaction {self.txid}"


class EventLog(OJSModel):
    """The single row of the log itself: its salt, and how far it has been put in order and pruned."""

    id = models.SmallIntegerField(primary_key=True, default=1)
    salt = models.CharField(max_length=64, help_text="Makes event ids unguessable and unique to this installation.")
    snapshot = models.TextField(default="", help_text="PostgreSQL: the snapshot of the last ordering pass.")
    server = models.CharField(
        max_length=64, default="", db_default="", help_text="PostgreSQL: which server numbers the transactions."
    )
    last_seq = models.BigIntegerField(
        default=0,
        help_text="MariaDB: the last place given out. PostgreSQL: events that have places have ids up to this.",
    )
    pruned_to = models.BigIntegerField(default=0, help_text="Events up to this id may be gone.")
    run = models.CharField(
        max_length=64, default="", db_default="", help_text="Which run of which server made the last ordering pass."
    )
    kept_to = models.BigIntegerField(
        null=True, help_text="The event that was the last in order when newer ones may have been lost."
    )
    changes = models.PositiveIntegerField(
        default=0, db_default=0, help_text="How often the log has met another history: failovers and restores."
    )

    def __str__(self) -> str:
        return "event log"
