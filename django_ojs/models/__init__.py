"""The rows, one noun a file."""

from django_ojs.models.apikey import APIKey
from django_ojs.models.audit import AuditEntry
from django_ojs.models.bulkaction import BulkAction
from django_ojs.models.count import CountDelta, QueueCount, QueueHour, QueueMinute, QueueTraffic
from django_ojs.models.cron import CronRun, CronSchedule
from django_ojs.models.event import Event, EventCommit, EventLog
from django_ojs.models.idempotency import IdempotencyKey
from django_ojs.models.job import Job, JobRow
from django_ojs.models.lease import Lease
from django_ojs.models.maintenance import Maintenance
from django_ojs.models.metric import MetricPlace, MetricSeries
from django_ojs.models.outbox import OutboxEntry
from django_ojs.models.progress import JobProgress
from django_ojs.models.queue import Queue
from django_ojs.models.ratelimit import RateLimit, RateStart
from django_ojs.models.replay import JobReplay, ReplayRule
from django_ojs.models.schema import JobSchema
from django_ojs.models.ticket import Ticket
from django_ojs.models.unique import UniqueLock
from django_ojs.models.webhook import WebhookCount, WebhookDelivery, WebhookRelay, WebhookSubscription
from django_ojs.models.worker import Worker
from django_ojs.models.workflow import Workflow, WorkflowStart, WorkflowStep

__all__ = [
    "APIKey",
    "AuditEntry",
    "BulkAction",
    "CountDelta",
    "CronRun",
    "CronSchedule",
    "Event",
    "EventCommit",
    "EventLog",
    "IdempotencyKey",
    "Job",
    "JobProgress",
    "JobReplay",
    "JobRow",
    "JobSchema",
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
    "ReplayRule",
    "Ticket",
    "UniqueLock",
    "WebhookCount",
    "WebhookDelivery",
    "WebhookRelay",
    "WebhookSubscription",
    "Worker",
    "Workflow",
    "WorkflowStart",
    "WorkflowStep",
]
