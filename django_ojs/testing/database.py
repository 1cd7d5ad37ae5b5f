"""An empty store, quickly: for conformance runs against a server that keeps running."""

from __future__ import annotations

import sys
from collections import defaultdict

from django.db import connections, models, router, transaction

from django_ojs.models import (
    APIKey,
    AuditEntry,
    BulkAction,
    CountDelta,
    CronRun,
    CronSchedule,
    Event,
    EventCommit,
    EventLog,
    IdempotencyKey,
    Job,
    JobProgress,
    JobSchema,
    Lease,
    Maintenance,
    MetricPlace,
    MetricSeries,
    OutboxEntry,
    Queue,
    QueueCount,
    QueueHour,
    QueueMinute,
    QueueTraffic,
    RateLimit,
    RateStart,
    Ticket,
    UniqueLock,
    WebhookCount,
    WebhookDelivery,
    WebhookRelay,
    WebhookSubscription,
    Worker,
    Workflow,
    WorkflowStart,
    WorkflowStep,
)
from django_ojs.operations import cronruns, glance, prune, queues, schemas, shapes

#: What a run leaves behind, in the order in which operations lock it.
TRANSIENT: tuple[type[models.Model], ...] = (
    BulkAction, OutboxEntry, UniqueLock, Worker, Queue, CronSchedule, CronRun, Job, JobProgress, WorkflowStart,
    WorkflowStep, Workflow, MetricPlace, MetricSeries, Event, EventCommit,
    IdempotencyKey, JobSchema, CountDelta, QueueCount, QueueMinute, QueueTraffic, QueueHour,
    RateLimit, RateStart, WebhookSubscription, WebhookDelivery, WebhookRelay, WebhookCount,
    AuditEntry, Maintenance, Ticket,
)  # fmt: skip
#: What belongs to the installation and stays.
KEPT: tuple[type[models.Model], ...] = (APIKey, EventLog, Lease)


def reset(using: str | None = None) -> None:
    """Delete every job, event, queue, worker and remembered answer, and what this process cached of them.

    Tables that the site has in another database than its jobs are emptied there.
    """
    using = using or router.db_for_write(Job)
    homes: defaultdict[str, list[type[models.Model]]] = defaultdict(list)
    for model in TRANSIENT:
        homes[using if router.allow_migrate_model(using, model) else router.db_for_write(model)].append(model)
    for alias, found in homes.items():
        quote = connections[alias].ops.quote_name
        with transaction.atomic(using=alias), connections[alias].cursor() as cursor:
            for model in found:
                cursor.execute(f"DELETE FROM {quote(model._meta.db_table)}")  # noqa: S608 - names of our own models
    forget()


def forget() -> None:
    """Drop what this process remembers of the store."""
    queues.forget()  # limits, too
    cronruns.forget()
    schemas.forget()
    shapes.forget()
    glance.forget()
    prune.forget()
    if shared := sys.modules.get("django_ojs.admin.shared"):  # sites may have no admin
        shared.forget()
