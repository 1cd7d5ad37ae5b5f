"""The engine in Django's admin: look at everything, and act through the operations of the spec only."""

from django_ojs.admin import (
    apikey,
    audit,
    bulkaction,
    cron,
    event,
    job,
    outbox,
    queue,
    replay,
    schema,
    webhook,
    worker,
    workflow,
)

__all__ = [
    "apikey",
    "audit",
    "bulkaction",
    "cron",
    "event",
    "job",
    "outbox",
    "queue",
    "replay",
    "schema",
    "webhook",
    "worker",
    "workflow",
]
