"""Every model of the app: one module for each family of nouns."""

from django_ojs.models.access import APIKey, IdempotencyKey, Ticket
from django_ojs.models.approval import Approval, ApprovalAssignee
from django_ojs.models.attempt import JobAttempt
from django_ojs.models.cron import CronRun, CronSchedule
from django_ojs.models.durable import JobCheckpoint
from django_ojs.models.event import Event, EventCommit, EventLog
from django_ojs.models.job import Job, JobProgress, JobRow, JobSchema, OutboxEntry, UniqueLock
from django_ojs.models.logs import JobLog
from django_ojs.models.operation import Alert, AuditEntry, BulkAction, ErrorNote, JobReplay, ReplayRule
from django_ojs.models.queue import Maintenance, Queue, RateLimit, RateStart
from django_ojs.models.statistics import (
    CountDelta,
    MetricPlace,
    MetricSeries,
    QueueCount,
    QueueHour,
    QueueMinute,
    QueueTraffic,
    TypeMinute,
)
from django_ojs.models.steps import DurableEvent, JobStep
from django_ojs.models.webhook import WebhookCount, WebhookDelivery, WebhookRelay, WebhookSubscription
from django_ojs.models.worker import Lease, Release, Worker, WorkerDeath, WorkerMinute, WorkerRelease
from django_ojs.models.workflow import Workflow, WorkflowStart, WorkflowStep

__all__ = [
    "APIKey",
    "Alert",
    "Approval",
    "ApprovalAssignee",
    "AuditEntry",
    "BulkAction",
    "CountDelta",
    "CronRun",
    "CronSchedule",
    "DurableEvent",
    "ErrorNote",
    "Event",
    "EventCommit",
    "EventLog",
    "IdempotencyKey",
    "Job",
    "JobAttempt",
    "JobCheckpoint",
    "JobLog",
    "JobProgress",
    "JobReplay",
    "JobRow",
    "JobSchema",
    "JobStep",
    "Lease",
    "Maintenance",
    "MetricPlace",
    "MetricSeries",
    "OutboxEntry",
    "Queue",
    "QueueCount",
    "QueueHour",
    "QueueMinute",
    "QueueTraffic",
    "RateLimit",
    "RateStart",
    "Release",
    "ReplayRule",
    "Ticket",
    "TypeMinute",
    "UniqueLock",
    "WebhookCount",
    "WebhookDelivery",
    "WebhookRelay",
    "WebhookSubscription",
    "Worker",
    "WorkerDeath",
    "WorkerMinute",
    "WorkerRelease",
    "Workflow",
    "WorkflowStart",
    "WorkflowStep",
]
