"""An empty store, quickly: for conformance runs against a server that keeps running."""

from __future__ import annotations

from django.db import connections, router, transaction

from django_ojs.models import (
    CountDelta,
    CronRun,
    CronSchedule,
    Event,
    EventCommit,
    IdempotencyKey,
    Job,
    JobProgress,
    JobSchema,
    Queue,
    QueueCount,
    QueueHour,
    QueueMinute,
    QueueTraffic,
    RateLimit,
    RateStart,
    WebhookCount,
    WebhookDelivery,
    WebhookRelay,
    WebhookSubscription,
    Worker,
    Workflow,
    WorkflowStart,
    WorkflowStep,
)
from django_ojs.operations import cronruns, queues, schemas

#: What a run leaves behind, in the order in which operations lock it. API keys, the scheduler's lease and the
#: log's own row belong to the installation.
TRANSIENT = (
    Worker, Queue, CronSchedule, CronRun, Job, JobProgress, WorkflowStart, WorkflowStep, Workflow, Event, EventCommit,
    IdempotencyKey, JobSchema, CountDelta, QueueCount, QueueMinute, QueueTraffic, QueueHour,
    RateLimit, RateStart, WebhookSubscription, WebhookDelivery, WebhookRelay, WebhookCount,
)  # fmt: skip


def reset(using: str | None = None) -> None:
    """Delete every job, event, queue, worker and remembered answer, and what this process cached of them."""
    using = using or router.db_for_write(Job)
    connection = connections[using]
    tables = [connection.ops.quote_name(model._meta.db_table) for model in TRANSIENT]
    with transaction.atomic(using=using), connection.cursor() as cursor:
        for table in tables:
            cursor.execute(f"DELETE FROM {table}")  # noqa: S608 - names of our own models
    queues.forget()
    cronruns.forget()
    schemas.forget()
