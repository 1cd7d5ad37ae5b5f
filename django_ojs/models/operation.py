"""What operators do: the audit log, bulk actions in the background, rules that retry dead letters; and their alerts."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from django.db import models

from django_ojs.models.fields import JSONTextField, MomentField, NameField, NaturalKeys, OJSModel, RowManager, Rows

_UNCHANGED = "Entries of the audit log are not changed."
_UNDELETED = "Entries of the audit log are not deleted; OJS['AUDIT_RETENTION'] prunes them."


class AppendOnlyError(TypeError):
    """Code tried to change the audit log."""


class AuditQuerySet(Rows["AuditEntry"]):
    """The queryset of the audit log, to read and append. Only `retention` deletes entries, those that are too old."""

    def update(self, **kwargs: Any) -> int:
        raise AppendOnlyError(_UNCHANGED)

    def delete(self) -> tuple[int, dict[str, int]]:
        raise AppendOnlyError(_UNDELETED)

    def bulk_update(self, objs: Iterable[AuditEntry], *args: Any, **kwargs: Any) -> int:
        raise AppendOnlyError(_UNCHANGED)

    def bulk_create(self, objs: Iterable[AuditEntry], *args: Any, **kwargs: Any) -> list[AuditEntry]:
        if kwargs.get("update_conflicts"):
            raise AppendOnlyError(_UNCHANGED)
        return super().bulk_create(objs, *args, **kwargs)


class AuditEntry(OJSModel):
    """One act of an operator, written with the change and never changed again.

    `target` is one object; an act on many has one entry, with the ids in `detail`.
    """

    class Outcome(models.TextChoices):
        SUCCESS = "success", "done"
        DENIED = "denied", "denied"

    id = models.BigAutoField(primary_key=True)
    time = models.DateTimeField()
    actor = models.CharField(max_length=255, help_text="user:NAME, key:NAME, command:NAME or anonymous.")
    action = models.CharField(max_length=64, help_text="Such as queue.pause.")
    target_type = models.CharField(max_length=32, default="")
    target = models.CharField(max_length=512, default="")
    outcome = models.CharField(max_length=8, choices=Outcome.choices, default=Outcome.SUCCESS)
    door = models.CharField(max_length=16, default="", help_text="http, admin, command or scheduler.")
    source_ip = models.CharField(max_length=64, default="")
    request_id = models.CharField(max_length=128, default="")
    detail = JSONTextField(default=None)

    objects = RowManager.from_queryset(AuditQuerySet)()  # type: ignore[misc]

    class Meta:
        verbose_name = "audit entry"
        verbose_name_plural = "audit log"
        indexes = [
            models.Index(fields=["time"], name="ojs_audit_time"),
            models.Index(fields=["target", "id"], name="ojs_audit_target"),
        ]

    def __str__(self) -> str:
        return f"{self.action} {self.target} by {self.actor}"

    def save(self, **kwargs: Any) -> None:
        if not self._state.adding:
            raise AppendOnlyError(_UNCHANGED)
        super().save(**{**kwargs, "force_insert": True})

    def delete(self, **kwargs: Any) -> tuple[int, dict[str, int]]:  # type: ignore[override]
        raise AppendOnlyError(_UNDELETED)


class BulkAction(OJSModel):
    """An act on every job, or on every event, that fits a filter, done by the scheduler in batches since it is too long
    for a request.

    `after` and `after_id` are the place of the last job that was looked at, `after_event` that of the last event.
    """

    class State(models.TextChoices):
        RUNNING = "running", "running"
        COMPLETED = "completed", "completed"
        CANCELLED = "cancelled", "cancelled"
        FAILED = "failed", "failed"

    id = models.BigAutoField(primary_key=True)
    verb = models.CharField(max_length=32)
    filter = JSONTextField(default=dict)
    override = JSONTextField(default=None, blank=True, help_text="What a retry changes in the jobs.")
    state = models.CharField(max_length=9, choices=State, default=State.RUNNING)
    actor = NameField(max_length=255)
    door = models.CharField(max_length=16, default="")
    source_ip = models.CharField(max_length=64, default="")
    created_at = models.DateTimeField()
    finished_at = models.DateTimeField(null=True, blank=True)
    expected = models.PositiveIntegerField(help_text="What fitted when it was asked for.")
    matched = models.PositiveIntegerField(default=0, help_text="What was looked at.")
    succeeded = models.PositiveIntegerField(default=0)
    errors = JSONTextField(default=None, blank=True, help_text="The first refusals.")
    tries = models.PositiveSmallIntegerField(default=0, help_text="How often its next batch has broken off.")
    problem = models.CharField(max_length=500, default="", blank=True, help_text="Why that was.")
    after = MomentField(null=True, blank=True)
    after_id = models.UUIDField(null=True, blank=True)
    after_event = models.BigIntegerField(null=True, blank=True)
    per_minute = models.PositiveIntegerField(
        null=True, blank=True, help_text="How many jobs are acted on in a minute at most; null: as fast as it goes."
    )
    next_at = models.DateTimeField(null=True, blank=True, help_text="When its next batch may come; null: at once.")

    class Meta:
        verbose_name = "bulk action"
        default_permissions = ()  # who may act on jobs

    def __str__(self) -> str:
        return f"{self.verb} #{self.pk} ({self.state})"

    @property
    def failed(self) -> int:
        return self.matched - self.succeeded


class ReplayRule(OJSModel):
    """A rule by which dead letters are retried without an operator. Only `jobs.replay` writes it.

    Those of `OJS["REPLAY_RULES"]` have no row. Rules are asked in the order of their ids.
    """

    id = models.BigAutoField(primary_key=True)
    name = NameField(max_length=128, unique=True)
    filter = JSONTextField(default=dict, help_text="Which dead letters it is for: queue, type, error type, times.")
    delay_ms = models.BigIntegerField(help_text="How long after its end a job is retried.")
    max_replays = models.PositiveIntegerField(help_text="How often it retries one job.")
    per_minute = models.PositiveIntegerField(help_text="How many jobs it retries in a minute at most.")
    enabled = models.BooleanField(default=True)
    limits = JSONTextField(
        default=None,
        null=True,
        blank=True,
        editable=False,
        help_text="What who made it reaches (access.py); null: everything.",
    )
    created_at = models.DateTimeField()
    updated_at = models.DateTimeField()

    objects = NaturalKeys["ReplayRule"]("name")  # type: ignore[misc]

    class Meta:
        ordering = ["id"]
        verbose_name = "replay rule"

    def __str__(self) -> str:
        return self.name

    def natural_key(self) -> tuple[str]:
        return (self.name,)


class JobReplay(OJSModel):
    """One retry by a replay rule. The job's rows go when the job is deleted; the rule may be gone by now."""

    id = models.BigAutoField(primary_key=True)
    job_id = models.UUIDField()
    rule = NameField(max_length=128)
    replayed_at = models.DateTimeField()

    class Meta:
        default_permissions = ()
        indexes = [
            models.Index(fields=["job_id", "rule"], name="ojs_replay_job"),
            models.Index(fields=["rule", "replayed_at"], name="ojs_replay_rule"),
        ]

    def __str__(self) -> str:
        return f"{self.rule}: {self.job_id}"


class ErrorNote(OJSModel):
    """What operators noted about the dead letters of one type with one error, and whether they want to see them.

    `key` is the digest of the type, the kind of the error and its message without numbers and ids.
    """

    key = models.CharField(max_length=64, primary_key=True)
    job_type = models.CharField(max_length=255)
    error = models.CharField(max_length=255, default="", blank=True, help_text="The kind of the error.")
    message = models.CharField(max_length=255, default="", blank=True, help_text="Without numbers and ids.")
    note = models.TextField(default="", blank=True)
    muted = models.BooleanField(default=False, help_text="The page of dead letters shows them folded.")
    changed_by = models.CharField(max_length=255, default="")
    changed_at = models.DateTimeField()

    class Meta:
        default_permissions = ()  # who may act on jobs

    def __str__(self) -> str:
        return f"{self.job_type} {self.error}".strip()


class Alert(OJSModel):
    """Something that needed an operator's attention, from when the scheduler found it until it was over.

    Only `django_ojs.alerts` writes it. At most one is open about the same thing: `key` is unique, and null once it is
    over.
    """

    class Untold(models.TextChoices):
        RAISED = "raised", "raised"
        CLEARED = "cleared", "cleared"

    id = models.BigAutoField(primary_key=True)
    key = NameField(max_length=330, null=True, unique=True)  # those that are over have none
    kind = models.CharField(max_length=64, help_text="The kind of finding, such as queue-unserved.")
    about = NameField(max_length=255, default="", help_text="The queue, job type or worker; empty: the whole.")
    says = models.TextField(help_text="What is wrong, as it was found last.")
    mend = models.TextField(default="", help_text="What to do about it.")
    phrases = JSONTextField(default=dict, help_text="What `says` and `mend` are made of, to be translated.")
    figures = JSONTextField(default=dict)
    raised_at = models.DateTimeField()
    seen_at = models.DateTimeField(help_text="When it was found last.")
    cleared_at = models.DateTimeField(null=True, blank=True)
    untold = models.CharField(max_length=7, choices=Untold.choices, default="", help_text="What no mail has told yet.")

    class Meta:
        default_permissions = ("view",)
        indexes = [models.Index(fields=["cleared_at"], name="ojs_alert_cleared")]

    def __str__(self) -> str:
        return f"{self.kind} {self.about}".strip()
