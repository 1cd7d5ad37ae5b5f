"""Empty the store: for conformance runs and test suites against a server that keeps running."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from django.db import connections, models, router, transaction

from django_ojs import retention as prune
from django_ojs.database import retried
from django_ojs.jobs import schemas
from django_ojs.models import (
    Alert,
    APIKey,
    Approval,
    ApprovalAssignee,
    AuditEntry,
    BulkAction,
    CountDelta,
    CronRun,
    CronSchedule,
    DurableEvent,
    ErrorNote,
    Event,
    EventCommit,
    EventLog,
    IdempotencyKey,
    Job,
    JobAttempt,
    JobCheckpoint,
    JobLog,
    JobProgress,
    JobReplay,
    JobSchema,
    JobStep,
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
    Release,
    ReplayRule,
    Ticket,
    TypeMinute,
    UniqueLock,
    WebhookCount,
    WebhookDelivery,
    WebhookRelay,
    WebhookSubscription,
    Worker,
    WorkerDeath,
    WorkerMinute,
    WorkerRelease,
    Workflow,
    WorkflowStart,
    WorkflowStep,
)
from django_ojs.queues import configuration
from django_ojs.statistics import summary
from django_ojs.workflows import graphs

#: What a run leaves behind, in the order in which operations lock it.
TRANSIENT: tuple[type[models.Model], ...] = (
    BulkAction, OutboxEntry, UniqueLock, Worker, Queue, CronSchedule, CronRun, ReplayRule, Job, JobProgress,
    JobCheckpoint, JobLog, JobReplay, JobStep, JobAttempt, DurableEvent, ApprovalAssignee, Approval,
    WorkflowStart, WorkflowStep, Workflow,
    MetricPlace, MetricSeries, Event, EventCommit,
    IdempotencyKey, JobSchema, CountDelta, QueueCount, QueueMinute, QueueTraffic, TypeMinute, QueueHour,
    RateLimit, RateStart, WebhookSubscription, WebhookDelivery, WebhookRelay, WebhookCount,
    AuditEntry, Maintenance, Ticket, Alert, ErrorNote, WorkerDeath, WorkerMinute, Release, WorkerRelease,
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
    for alias, models_here in homes.items():
        _empty(models_here, using=alias)
    forget()


@retried
def _empty(emptied: Iterable[type[models.Model]], *, using: str) -> None:
    """Delete the rows of these tables in one transaction, which a running scheduler or worker may deadlock with."""
    quote = connections[using].ops.quote_name
    with transaction.atomic(using=using), connections[using].cursor() as cursor:
        for model in emptied:
            cursor.execute(f"DELETE FROM {quote(model._meta.db_table)}")  # noqa: S608 - names of our own models


def forget() -> None:
    """Drop what this process remembers of the store."""
    configuration.forget()  # limits, too
    schemas.forget()
    graphs.forget()
    prune.forget()
    summary.forget()
