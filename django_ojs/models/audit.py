"""The audit log: who did what to what, written with the change and never changed again."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from django.db import models

from django_ojs.models.fields import JSONTextField


class AppendOnlyError(TypeError):
    """Code tried to change the audit log."""


class AuditQuerySet(models.QuerySet["AuditEntry"]):
    """Reading and appending. What is too old goes with `jobs.prune`, by no other way."""

    def update(self, **kwargs: Any) -> int:
        raise AppendOnlyError("Entries of the audit log are not changed.")

    def delete(self) -> tuple[int, dict[str, int]]:
        raise AppendOnlyError("Entries of the audit log are not deleted; OJS['AUDIT_RETENTION'] prunes them.")

    def bulk_update(self, objs: Iterable[AuditEntry], *args: Any, **kwargs: Any) -> int:
        raise AppendOnlyError("Entries of the audit log are not changed.")

    def bulk_create(self, objs: Iterable[AuditEntry], *args: Any, **kwargs: Any) -> list[AuditEntry]:
        if kwargs.get("update_conflicts"):
            raise AppendOnlyError("Entries of the audit log are not changed.")
        return super().bulk_create(objs, *args, **kwargs)


class AuditEntry(models.Model):
    """One act of an operator. `target` is one object; an act on many has one entry, with the ids in `detail`."""

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

    objects = AuditQuerySet.as_manager()

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
            raise AppendOnlyError("Entries of the audit log are not changed.")
        super().save(**{**kwargs, "force_insert": True})

    def delete(self, **kwargs: Any) -> tuple[int, dict[str, int]]:  # type: ignore[override]
        raise AppendOnlyError("Entries of the audit log are not deleted; OJS['AUDIT_RETENTION'] prunes them.")
