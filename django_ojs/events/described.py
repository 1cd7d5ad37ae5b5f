"""What each event type tells and which members its `data` has. The reference is made of this; tests hold events to it.

A member whose name ends in `?` may be missing. `SHARED` comes before it in every event of the kind (`log.render`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from django_ojs.events.catalogue import STATE_CHANGED

Members = Mapping[str, str]


class Description(NamedTuple):
    text: str
    data: Members = {}


#: By the first part of the type; "" is in every event.
SHARED: dict[str, Members] = {
    "": {"timestamp": "instant", "worker_id?": "string", "trace_id?": "string", "workflow_id?": "string"},
    "job": {
        "job_id": "UUID", "job_type": "string", "type": "string", "queue": "string", "state": "string",
        "attempt": "integer",
    },
    "queue": {"queue": "string"},
}  # fmt: skip
#: Types that are about a job, or about a queue, and do not say so by their name.
ABOUT_JOBS = frozenset({
    "dead_letter.added", "dead_letter.retried", "dead_letter.replayed", "dead_letter.deleted", "backpressure.dropped",
    "priority.changed", "result.pruned", "result.stored", "result.rejected", "result.retrieved",
})  # fmt: skip
ABOUT_QUEUES = frozenset({
    "dead_letter.pruned", "backpressure.rejected", "backpressure.warning", "backpressure.cleared", "cron.triggered",
    "cron.skipped",
})  # fmt: skip

_WAS: Members = {"previous_state?": "string"}
_WORKER: Members = {"hostname": "string", "queues": "array of strings", "concurrency": "integer"}
_TIMEOUT: Members = {"timeout_kind": "string", "limit_seconds": "number", "elapsed_seconds": "number"}
_CRON: Members = {
    "cron_name": "string", "cron_expr": "string", "cron_expression": "string", "timezone": "string",
    "job_type": "string", "scheduled_at": "instant or null", "scheduled_time": "instant or null",
    "next_at": "instant or null",
}  # fmt: skip
_FLOW: Members = {
    "workflow_id": "string", "workflow_name": "string", "workflow_type": "string", "total_steps": "integer",
}  # fmt: skip
_STEP: Members = {
    "step_id": "string", "step_type": "string", "duration_ms": "integer", "step": "integer", "job_id": "UUID",
}  # fmt: skip
_FLOW_JOB: Members = {
    **_FLOW, **_STEP, "job_type": "string", "state": "string", "attempt": "integer", "callback?": "string",
}  # fmt: skip
_BULK: Members = {"total": "integer", "skipped": "integer"}
_BOUND: Members = {"depth": "integer", "bound": "integer"}
_PRESSURE: Members = {**_BOUND, "pressure": "number", "threshold": "number"}
_RESULT: Members = {"size_bytes": "integer", "expires_at": "instant or null"}
_LIMIT: Members = {"key": "string", "strategy": "string"}
_DELIVERY: Members = {
    "subscription_id": "string", "delivery_id": "string", "event_id": "string", "event_type": "string",
    "attempts": "integer", "response_status": "integer or null", "error": "string",
}  # fmt: skip
_SUBSCRIPTION: Members = {"subscription_id": "string", "by?": "string"}

DESCRIBED: dict[str, Description] = {
    "job.enqueued": Description(
        "A job waits to be claimed: it is new, or its time has come, or somebody activated or revived it.",
        {"priority": "integer", "unique_key?": "string", "scheduled_at?": "instant", **_WAS},
    ),
    "job.scheduled": Description("A new or activated job waits for its time.", {"scheduled_at": "instant", **_WAS}),
    "job.started": Description("A worker has claimed a job.", {"wait_ms": "integer"}),
    "job.completed": Description("A job is done.", {"duration_ms": "integer", "result?": "any"}),
    "job.failed": Description("An attempt has failed.", {"duration_ms": "integer", "error": "error"}),
    "job.retrying": Description(
        "A failed or snoozed attempt is to be repeated.",
        {
            "max_attempts": "integer",
            "next_retry_at": "instant",
            "next_attempt_at": "instant",
            "delay_ms": "integer",
            "error": "error",
            **_WAS,
        },
    ),
    "job.discarded": Description(
        "A job has ended without success.",
        {"total_attempts": "integer", "last_error": "error", "error": "error", **_WAS},
    ),
    "job.cancelled": Description(
        "A job was cancelled.", {"cancelled_by": "string", "previous_state": "string", "reason?": "string"}
    ),
    "job.heartbeat": Description("A reservation was renewed.", {"visible_until": "instant"}),
    "job.expired": Description(
        "A job did not start in time.",
        {
            "created_at": "instant",
            "expired_at": "instant",
            "expires_at": "instant",
            "ttl_ms": "integer",
            "previous_state": "string",
        },
    ),
    "job.progress": Description(
        "How far an attempt has come.",
        {
            "progress_percent": "number",
            "progress": "integer",
            "visible_until": "instant",
            "progress_message?": "string",
            "message?": "string",
            "progress_data?": "object",
        },
    ),
    "worker.registered": Description("A worker was heard of for the first time.", _WORKER),
    "worker.started": Description("The same, under the other name of the specification.", _WORKER),
    "worker.heartbeat": Description(
        "A worker is alive.",
        {
            "active_jobs": "integer",
            "queues": "array of strings",
            "state": "string",
            "memory_mb?": "number",
            "cpu_percent?": "number",
        },
    ),
    "worker.quiet": Description("A worker takes no further jobs.", {"active_jobs": "integer"}),
    "worker.terminated": Description("A worker is gone.", {"reason": "string"}),
    "worker.stopped": Description(
        "A worker is gone, and what it did.",
        {"reason": "`shutdown`, `signal` or `error`", "jobs_completed": "integer", "uptime_ms": "integer"},
    ),
    "queue.paused": Description("A queue delivers nothing any more.", {"paused_by?": "string"}),
    "queue.resumed": Description("A queue delivers again.", {"resumed_by?": "string"}),
    "workflow.started": Description("The first job of a workflow has begun.", _FLOW),
    "workflow.step_completed": Description(
        "A member of a workflow is done.", {**_FLOW, **_STEP, "steps_remaining": "integer"}
    ),
    "workflow.completed": Description("A workflow is done.", {**_FLOW, "duration_ms": "integer"}),
    "workflow.failed": Description(
        "A workflow cannot be completed.",
        {
            **_FLOW,
            "failed_step_id": "string",
            "failed_step_type": "string",
            "step": "integer",
            "job_id": "UUID",
            "error": "error",
        },
    ),
    "cron.triggered": Description(
        "A schedule has made a job.", {**_CRON, "job_id": "UUID", "run_count": "integer", "actual_time": "instant"}
    ),
    "cron.skipped": Description(
        "An occurrence of a schedule made no job.",
        {
            **_CRON,
            "reason": "string",
            "reason_code": "string",
            "existing_job_id?": "UUID",
            "active_job_id?": "UUID",
            "local_time?": "local time",
            "error?": "object",
        },
    ),
    "job.timeout": Description("An attempt ran longer than its execution timeout.", _TIMEOUT),
    "job.stalled": Description(
        "A reservation expired unanswered and the job is available again; or its worker was silent about it for longer "
        "than its heartbeat timeout, and the attempt has failed.",
        _TIMEOUT,
    ),
    "job.total_timeout": Description("A job's time as a whole ran out; it was discarded.", _TIMEOUT),
    "job.ttl_expired": Description("Nothing began a job within its enqueue TTL; it was discarded.", _TIMEOUT),
    "dead_letter.added": Description("A job was discarded into the dead letter queue."),
    "dead_letter.retried": Description("A job left the dead letter queue to run again."),
    "dead_letter.replayed": Description(
        "A rule made a job leave the dead letter queue to run again; `count` is how often it did so with this job.",
        {"rule": "string", "count": "integer"},
    ),
    "dead_letter.deleted": Description("A dead letter was deleted."),
    "dead_letter.pruned": Description("Dead letters were too old or too many.", {"count": "integer"}),
    "bulk.enqueue.completed": Description(
        "A bulk request was carried out.",
        {"total": "integer", "succeeded": "integer", "failed": "integer", "atomicity": "string"},
    ),
    "bulk.cancel.completed": Description("A bulk request was carried out.", {**_BULK, "cancelled": "integer"}),
    "bulk.retry.completed": Description("A bulk request was carried out.", {**_BULK, "retried": "integer"}),
    "bulk.delete.completed": Description("A bulk request was carried out.", {**_BULK, "deleted": "integer"}),
    "backpressure.rejected": Description("A full queue refused a job.", {**_BOUND, "strategy": "string"}),
    "backpressure.dropped": Description("A full queue gave up its oldest job for a new one.", _BOUND),
    "backpressure.warning": Description("A bounded queue is nearly full.", _PRESSURE),
    "backpressure.cleared": Description("A bounded queue has room again.", _PRESSURE),
    "priority.changed": Description(
        "The priority of a waiting job was changed.",
        {"priority": "integer", "previous_priority": "integer", "changed_by?": "string"},
    ),
    "result.pruned": Description("A result was kept for its time and is gone."),
    "queue.created": Description("A queue was configured for the first time."),
    "queue.config_updated": Description("A queue was configured.", {"config": "object", "updated_by?": "string"}),
    "queue.deleted": Description("A queue was deleted."),
    "rate_limit.exceeded": Description(
        "A key has come to its limit.", {**_LIMIT, "limit": "integer", "current": "integer"}
    ),
    "rate_limit.released": Description("A key has room again, and this job took it.", {**_LIMIT, "job_id": "UUID"}),
    "rate_limit.dropped": Description("A job that asked for it was dropped at a limit.", {**_LIMIT, "job_id": "UUID"}),
    "rate_limit.dynamic_adjusted": Description(
        "A worker asked to start nothing more under a key for a while.",
        {"key": "string", "until": "instant", "reason": "string"},
    ),
    "webhook.subscription.created": Description(
        "Somebody subscribed.", {**_SUBSCRIPTION, "events": "array of strings"}
    ),
    "webhook.subscription.updated": Description("A subscription was changed.", {**_SUBSCRIPTION, "active": "boolean"}),
    "webhook.subscription.deleted": Description(
        "A subscription was deleted.", {**_SUBSCRIPTION, "cancelled_deliveries": "integer"}
    ),
    "webhook.subscription.disabled": Description(
        "A subscription was switched off because nothing arrived.", {**_SUBSCRIPTION, "reason": "string"}
    ),
    "webhook.dead": Description("A delivery was given up.", _DELIVERY),
    "workflow.cancelled": Description("A workflow was cancelled.", {**_FLOW, "cancelled_by": "string"}),
    "workflow.created": Description(
        "A workflow was created.", {**_FLOW, "state": "string", "total_callbacks": "integer"}
    ),
    "workflow.step_failed": Description(
        "A member of a workflow has failed; without a `job_id` it could not be enqueued.",
        {
            **_FLOW,
            "step_id": "string",
            "step_type": "string",
            "step": "integer",
            "steps_remaining": "integer",
            "error": "error",
            "duration_ms?": "integer",
            "job_id?": "UUID",
        },
    ),
    "workflow.job_completed": Description("A member or callback is done.", _FLOW_JOB),
    "workflow.job_failed": Description("A member or callback has failed.", {**_FLOW_JOB, "error": "error"}),
    "workflow.callback_fired": Description(
        "A callback waits in its queue.",
        {**_FLOW, "callback": "string", "step_id": "string", "job_id": "UUID", "job_type": "string"},
    ),
    "result.stored": Description("A result was stored.", _RESULT),
    "result.rejected": Description(
        "A result was too large; the job is still active.",
        {"reason": "string", "size_bytes?": "integer", "max_bytes?": "integer"},
    ),
    "result.retrieved": Description("Somebody read a result by an endpoint for results.", _RESULT),
    "webhook.delivered": Description("An event arrived at its receiver.", _DELIVERY),
    "webhook.failed": Description("An attempt at a delivery failed and will be repeated.", _DELIVERY),
    STATE_CHANGED: Description(
        "A job's state changed: made of the events above when a reader names it.",
        {"from": "string", "to": "string"},
    ),
}


def shared(type: str) -> Members:
    """What events of this type have besides their own members."""
    if type in ABOUT_JOBS or type.startswith("job."):
        return SHARED["job"]
    return SHARED["queue"] if type in ABOUT_QUEUES or type.startswith("queue.") else {}


def deviations(type: str, data: Mapping[str, Any]) -> list[str]:
    """Where the members of `data`, as the log stores them, differ from the description of their type."""
    if type not in DESCRIBED:
        return [f"{type} is not described"]
    members = DESCRIBED[type].data
    missing = [f"{type} lacks {name}" for name in members if not name.endswith("?") and name not in data]
    return missing + [f"{type} has {name}" for name in data if name not in members and f"{name}?" not in members]
