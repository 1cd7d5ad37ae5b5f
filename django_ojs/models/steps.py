"""What durable handlers have done so far, a row for each recorded step of a job, and the events that they wait for."""

from __future__ import annotations

from django.db import models
from django.db.models import Q

from django_ojs.models.fields import JSONTextField, MomentField, NameField, OJSModel
from django_ojs.rules.steps import MAX_STEP_NAME, StepKind

KINDS = [(kind.value, kind.value) for kind in StepKind]


class JobStep(OJSModel):
    """A recorded step of a durable job, by its name (extension durable-execution).

    The handler of a durable job runs again from its beginning; what is recorded here it does not do again. A row
    without `ended_at` is a step that has failed and is tried again, a sleep that lasts until `due_at`, or a wait for an
    event, which ends then or, without `due_at`, with the event.
    """

    id = models.BigAutoField(primary_key=True)
    job_id = models.UUIDField()
    name = NameField(max_length=MAX_STEP_NAME)
    kind = models.CharField(max_length=9, choices=KINDS, default=StepKind.CALL.value)
    result = JSONTextField(null=True, blank=True, help_text="What the step returned.")
    error = JSONTextField(null=True, blank=True, help_text="Why the latest try failed.")
    tries = models.PositiveIntegerField(default=1, help_text="How often the step was begun.")
    code = models.CharField(max_length=64, default="", blank=True, help_text="The mark of the handler's code.")
    attempt = models.PositiveIntegerField(help_text="The attempt of the job that recorded it.")
    began_at = MomentField()
    ended_at = MomentField(null=True, blank=True)
    due_at = MomentField(null=True, blank=True, help_text="When a sleep ends, or a failed step is tried again.")
    # NULL where it waits for no event, so that no condition has to say so for the database to use the index.
    event_name = NameField(max_length=200, null=True, blank=True, help_text="The event that it waits for.")
    event_key = NameField(max_length=200, null=True, blank=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["job_id", "name"], name="ojs_step_name")]
        indexes = [
            # Steps that wait for no event, and those that have it, pay for none.
            models.Index(
                fields=["event_name", "event_key"], name="ojs_step_waits",
                condition=Q(event_name__isnull=False, ended_at__isnull=True),
            ),
        ]  # fmt: skip

    def __str__(self) -> str:
        return f"{self.kind} {self.name} of {self.job_id}"


class DurableEvent(OJSModel):
    """Something that has happened on the site, such as `order.paid` of order 7, for durable jobs that wait for it.

    Name and key are unique: the first that is emitted counts. It has nothing to do with the event log (`Event`).
    """

    id = models.BigAutoField(primary_key=True)
    name = NameField(max_length=200)
    key = NameField(max_length=200, default="", blank=True, help_text="What it is about, such as an order's id.")
    payload = JSONTextField(null=True, blank=True, help_text="What handlers that wait for it get, as JSON.")
    created_at = MomentField(db_index=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["name", "key"], name="ojs_durable_event")]

    def __str__(self) -> str:
        return f"{self.name} {self.key}".rstrip()
