"""What models and their columns are called in the viewer's language.

Set beside the models rather than in them: a migration has no use for it, and would be made for every new word.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from django.db import models
from django.utils.translation import gettext_lazy as _

#: One and several, by the name of the model.
MODELS: dict[str, tuple[Any, Any]] = {
    "APIKey": (_("API key"), _("API keys")),
    "AuditEntry": (_("audit entry"), _("audit log")),
    "BulkAction": (_("bulk action"), _("bulk actions")),
    "CronSchedule": (_("schedule"), _("schedules")),
    "Event": (_("event"), _("events")),
    "Job": (_("job"), _("jobs")),
    "JobSchema": (_("schema of a job type"), _("schemas of job types")),
    "Maintenance": (_("maintenance mode"), _("maintenance mode")),
    "OutboxEntry": (_("outbox entry"), _("outbox entries")),
    "ReplayRule": (_("replay rule"), _("replay rules")),
    "Queue": (_("queue"), _("queues")),
    "WebhookDelivery": (_("webhook delivery"), _("webhook deliveries")),
    "WebhookSubscription": (_("webhook subscription"), _("webhook subscriptions")),
    "Worker": (_("worker"), _("workers")),
    "Workflow": (_("workflow"), _("workflows")),
}
#: Names of columns that pages show as they are.
COLUMNS: dict[str, Any] = {
    "active": _("active"), "active jobs": _("active jobs"), "actor": _("actor"), "aside": _("aside"),
    "attempt": _("attempt"),
    "attempts": _("attempts"), "component": _("component"), "concurrency": _("concurrency"),
    "cpu percent": _("CPU, percent"), "created by": _("created by"), "description": _("description"),
    "directive": _("directive"), "disabled reason": _("disabled because"), "door": _("door"),
    "enabled": _("enabled"), "event id": _("event id"), "expires at": _("expires"), "hostname": _("host name"),
    "job type": _("job type"), "jobs completed": _("jobs completed"), "kind": _("kind"), "losses": _("losses"),
    "max attempts": _("attempts at most"), "memory mb": _("memory, MB"), "name": _("name"),
    "outcome": _("outcome"), "overlap policy": _("overlap policy"), "own id": _("own id"), "pid": _("process id"),
    "priority": _("priority"), "problem": _("broke off because"), "queue": _("queue"), "request id": _("request id"),
    "response status": _("answer"), "run count": _("runs so far"), "scopes": _("scopes"),
    "signature format": _("form of the signature"), "source": _("source"), "source ip": _("source address"),
    "state": _("state"), "status": _("status"), "subject": _("subject"), "succeeded": _("succeeded"),
    "target id": _("id of the job"),
    "timeout seconds": _("timeout, seconds"), "timezone": _("time zone"), "trace id": _("trace id"),
    "type": _("type"), "uncounted": _("attempts that do not count"), "unique key": _("unique key"), "url": _("URL"),
    "version": _("version"), "worker id": _("worker id"),
    "workflow id": _("workflow id"), "paused": _("paused"),
}  # fmt: skip


def name(found: Iterable[type[models.Model]]) -> None:
    """Give models and columns their translated names. What they are called in English stays what it was."""
    for model in found:
        if model.__name__ in MODELS:
            model._meta.verbose_name, model._meta.verbose_name_plural = MODELS[model.__name__]
        for field in model._meta.local_fields:
            if (word := COLUMNS.get(str(field.verbose_name))) is not None:
                field.verbose_name = word
