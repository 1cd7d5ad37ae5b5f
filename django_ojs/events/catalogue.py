"""Every event type this server emits, how the event of each is made, and what is in it (events specification 3 and 4).

A record holds what the log stores. What all job events share (job_id, type, queue, state, attempt, time,
trace_id) comes from the job's row; `data` holds only what is special to the type.
"""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Collection, Mapping
from functools import lru_cache
from typing import Any, NamedTuple
from urllib.parse import quote

from django_ojs import jsontext
from django_ojs.conf import ojs_settings
from django_ojs.rules.durations import format_instant
from django_ojs.rules.rows import moment
from django_ojs.states import State

#: The seed's closed catalogue: what an absent filter or a wildcard returns.
CATALOGUE: tuple[str, ...] = (
    "job.enqueued", "job.started", "job.completed", "job.failed", "job.discarded", "job.retrying", "job.cancelled",
    "job.heartbeat", "job.scheduled", "job.expired", "job.progress",
    "worker.registered", "worker.started", "worker.heartbeat", "worker.quiet", "worker.terminated", "worker.stopped",
    "queue.paused", "queue.resumed",
    "workflow.started", "workflow.step_completed", "workflow.completed", "workflow.failed",
    "cron.triggered", "cron.skipped",
)  # fmt: skip

#: Events of extensions: stored, and returned only to a reader who names the type exactly.
EXTENSIONS: tuple[str, ...] = (
    "job.timeout", "job.stalled", "job.total_timeout", "job.ttl_expired",
    "dead_letter.retried", "dead_letter.replayed", "dead_letter.deleted", "workflow.cancelled",
    "bulk.enqueue.completed", "bulk.cancel.completed", "bulk.retry.completed", "bulk.delete.completed",
    "backpressure.rejected", "backpressure.dropped", "backpressure.warning", "backpressure.cleared",
    "priority.changed", "result.pruned", "job.purged",
    "dead_letter.pruned", "queue.created", "queue.config_updated", "queue.deleted",
    "rate_limit.exceeded", "rate_limit.released", "rate_limit.dropped", "rate_limit.dynamic_adjusted",
    "webhook.subscription.created", "webhook.subscription.updated", "webhook.subscription.deleted",
    "webhook.subscription.disabled", "webhook.dead", "alert.raised", "alert.cleared",
    "approval.requested", "approval.decided", "approval.delegated", "approval.escalated",
)  # fmt: skip

#: Extension events that come with every workflow, result, checkpoint, webhook or dead letter, rather than now and then:
#: written only where the site asks for them (`OJS["EXTENSION_EVENTS"]`).
ON_REQUEST: tuple[str, ...] = (
    "workflow.created", "workflow.step_failed", "workflow.job_completed", "workflow.job_failed",
    "workflow.callback_fired", "result.stored", "result.rejected", "result.retrieved",
    "webhook.delivered", "webhook.failed", "dead_letter.added", "job.checkpointed",
    "job.retry_exhausted", "job.dead_lettered",
)  # fmt: skip

#: Job events that must name the worker (events 4.1): '' where the claim named none.
NAMES_WORKER = frozenset({"job.started", "job.heartbeat", "job.progress"})
#: The component whose events have their worker in the `source`.
WORKERS = "workers"

#: Every change of a job's state under one name: made from stored events when it is read, never stored (events 1.4).
STATE_CHANGED = "job.state_changed"
#: The stored events that may tell of a change, and the state before it where their data has no `previous_state`.
#: None: without it the event follows another one about the same change, as `job.retrying` does `job.failed`.
TRANSITIONS: Mapping[str, str | None] = {
    "job.enqueued": "", "job.scheduled": "", "job.started": "available", "job.completed": "active",
    "job.failed": "active", "job.stalled": "active",
    "job.retrying": None, "job.discarded": None, "job.cancelled": None, "job.expired": None,
}  # fmt: skip


class Fact(NamedTuple):
    """A member of an event's data that is taken from the row of its job as it is."""

    name: str
    #: `number`, `text`, `instant`, `json` (a JSON text), or `elapsed`: the milliseconds from the instant in the column
    #: to the time of the event.
    kind: str
    column: str
    optional: bool = False  #: left out where the column holds nothing; such members come after the others


class Template(NamedTuple):
    """What an event takes from the row of its job, where that is all there is to say. The store makes the statements of
    such events of it, and this module the records."""

    time: str  #: the column with the time of the event
    facts: tuple[Fact, ...]
    component: str = ""  #: what makes the event; '' for what the caller names
    of_worker: bool = False  #: whether the event names the worker that has the job


TEMPLATES: Mapping[str, Template] = {
    "job.enqueued": Template(
        "created_at", (Fact("priority", "number", "priority"), Fact("unique_key", "text", "unique_key", optional=True))
    ),
    "job.scheduled": Template("created_at", (Fact("scheduled_at", "instant", "due_at"),)),
    "job.started": Template("started_at", (Fact("wait_ms", "elapsed", "enqueued_at"),), "workers", of_worker=True),
    "job.completed": Template(
        "finished_at", (Fact("duration_ms", "elapsed", "started_at"), Fact("result", "json", "result", optional=True)),
        "workers", of_worker=True,
    ),
}  # fmt: skip
#: The event of a new job by its state; a pending one has none until it is activated (events 1.7).
OF_NEW_JOBS: Mapping[str, str] = {State.AVAILABLE: "job.enqueued", State.SCHEDULED: "job.scheduled"}
#: The member of `job.completed` that a site may leave out (`OJS["RESULTS_IN_EVENTS"]`).
RESULT = "result"


class Record(NamedTuple):
    """One event on its way into the log; the fields are the columns of `models.Event`."""

    type: str
    time: dt.datetime
    component: str
    subject: str = ""
    job_id: uuid.UUID | None = None
    job_type: str = ""
    queue: str = ""
    state: str = ""
    attempt: int = 0
    worker_id: str = ""
    trace_id: str = ""
    workflow_id: uuid.UUID | None = None
    data: str = ""


def of_job(
    type: str,
    row: Mapping[str, Any],
    time: dt.datetime,
    component: str,
    *,
    worker_id: str = "",
    **data: Any,
) -> Record:
    """An event about the job in `row`, which must show the job after the event (events 1.6)."""
    return Record(
        type, moment(row, time), component, "", row["id"], row["type"], row["queue"], row["state"], row["attempt"],
        worker_id, row["trace_id"], row["workflow_id"], jsontext.dumps(data) if data else "",
    )  # fmt: skip


def of_new_job(row: Mapping[str, Any], component: str) -> Record | None:
    """The event of a new job; None for a pending one."""
    if (kind := OF_NEW_JOBS.get(row["state"])) is None:
        return None
    return from_row(kind, row, row["created_at"], component)


def enqueued(row: Mapping[str, Any], time: dt.datetime, component: str, **data: Any) -> Record:
    """The event of a job that waits from now on; `data` says why."""
    return from_row("job.enqueued", row, time, component, **data)


def scheduled(row: Mapping[str, Any], time: dt.datetime, component: str, **data: Any) -> Record:
    """The event of a job that waits for its time from now on; `data` says why."""
    return from_row("job.scheduled", row, time, component, **data)


def started(row: Mapping[str, Any], time: dt.datetime) -> Record:
    """The event of a job that a worker has claimed."""
    return from_row("job.started", row, time)


def completed(row: Mapping[str, Any], time: dt.datetime, *, with_result: bool) -> Record:
    """The event of a job that is done."""
    return from_row("job.completed", row, time, without=() if with_result else (RESULT,))


def from_row(
    type: str, row: Mapping[str, Any], time: dt.datetime, component: str = "", without: Collection[str] = (),
    **data: Any,
) -> Record:  # fmt: skip
    """An event that has a template, with `data` behind what it takes from the row, and without some of the facts."""
    template = TEMPLATES[type]
    parts = []
    for name, kind, column, optional in template.facts:
        if name in without:
            continue
        value = row[column]
        if optional and not value:
            continue
        if kind == "elapsed":
            value = milliseconds_between(value, time)
        elif kind == "instant":
            value = f'"{format_instant(value)}"'
        elif kind == "text":
            value = jsontext.dumps(value)
        parts.append(f'"{name}":{value}')
    if data:
        parts.append(jsontext.dumps(data)[1:-1])
    return Record(
        type, moment(row, time), template.component or component, "", row["id"], row["type"], row["queue"],
        row["state"], row["attempt"], row["worker_id"] if template.of_worker else "", row["trace_id"],
        row["workflow_id"], f"{{{','.join(parts)}}}",
    )  # fmt: skip


def failed(row: Mapping[str, Any], time: dt.datetime, component: str, error: Mapping[str, Any]) -> Record:
    # The duration first, where `statistics.eventcounts` looks for it.
    facts = {"duration_ms": milliseconds_between(row["started_at"], time), "error": event_error(error)}
    return of_job("job.failed", row, time, component, worker_id=row["worker_id"], **facts)


def retrying(
    row: Mapping[str, Any], time: dt.datetime, component: str, error: Mapping[str, Any], **data: Any
) -> Record:
    due = format_instant(row["due_at"])
    return of_job(
        "job.retrying", row, time, component, worker_id=row["worker_id"], max_attempts=row["max_attempts"],
        next_retry_at=due, next_attempt_at=due, delay_ms=row["retry_delay_ms"], error=event_error(error), **data,
    )  # fmt: skip


def discarded(
    row: Mapping[str, Any], time: dt.datetime, component: str, error: Mapping[str, Any], **data: Any
) -> Record:
    """`previous_state` goes into `data` where no `job.failed` comes before it."""
    shown = event_error(error)
    return of_job(
        "job.discarded", row, time, component, worker_id=row["worker_id"],
        total_attempts=row["attempt"], last_error=shown, error=shown, **data,
    )  # fmt: skip


def retry_exhausted(row: Mapping[str, Any], time: dt.datetime, component: str) -> Record:
    return of_job(
        "job.retry_exhausted", row, time, component, worker_id=row["worker_id"],
        total_attempts=row["attempt"], max_attempts=row["max_attempts"],
    )  # fmt: skip


def expired(row: Mapping[str, Any], time: dt.datetime, previous: State | str, end: dt.datetime) -> Record:
    """`end` is when its time ran out: its `expires_at`, or the end of its `enqueue_ttl`."""
    return of_job(
        "job.expired", row, time, "scheduler", created_at=format_instant(row["created_at"]),
        expired_at=format_instant(time), expires_at=format_instant(end),
        ttl_ms=milliseconds_between(row["created_at"], end), previous_state=str(previous),
    )  # fmt: skip


def cancelled(row: Mapping[str, Any], time: dt.datetime, by: str, reason: str, previous: State | str) -> Record:
    data: dict[str, Any] = {"cancelled_by": by or "system", "previous_state": str(previous)}
    if reason:
        data["reason"] = reason
    return of_job("job.cancelled", row, time, "api", **data)


def heartbeat(row: Mapping[str, Any], time: dt.datetime, worker_id: str) -> Record:
    until = format_instant(row["visible_until"])
    return of_job("job.heartbeat", row, time, "workers", worker_id=worker_id, visible_until=until)


def progress(
    row: Mapping[str, Any], time: dt.datetime, percent: float, message: str, details: Mapping[str, Any] | None = None
) -> Record:
    """Carries the end of the reservation, which a report renews as a heartbeat does."""
    data: dict[str, Any] = {"progress_percent": percent, "progress": round(percent)}
    data["visible_until"] = format_instant(row["visible_until"])
    if message:
        data |= {"progress_message": message, "message": message}
    if details is not None:
        data["progress_data"] = details
    return of_job("job.progress", row, time, "workers", worker_id=row["worker_id"], **data)


def of_worker(type: str, worker_id: str, time: dt.datetime, **data: Any) -> Record:
    return Record(type, time, "workers", worker_id, worker_id=worker_id, data=jsontext.dumps(data) if data else "")


def of_workflow(
    type: str,
    flow_id: uuid.UUID,
    public_id: str,
    facts: str,
    time: dt.datetime,
    *,
    trace_id: str = "",
    worker_id: str = "",
    **data: Any,
) -> Record:
    """An event about a workflow; `facts` are the members that all of its events share, without braces."""
    more = jsontext.dumps(data)[1:-1]
    text = f"{{{facts},{more}}}" if more else f"{{{facts}}}"
    component = "workers" if worker_id else "api"
    return Record(type, time, component, public_id, worker_id=worker_id, trace_id=trace_id, workflow_id=flow_id,
                  data=text)  # fmt: skip


def of_queue(type: str, queue: str, time: dt.datetime, **data: Any) -> Record:
    return Record(type, time, "api", queue, queue=queue, data=jsontext.dumps(data) if data else "")


def of_cron(type: str, name: str, queue: str, time: dt.datetime, **data: Any) -> Record:
    return Record(type, time, "cron", name, queue=queue, data=jsontext.dumps(data))


def of_limit(type: str, key: str, time: dt.datetime, component: str = "scheduler", **data: Any) -> Record:
    return Record(type, time, component, key, data=jsontext.dumps({"key": key, **data}))


def of_webhook(type: str, subject: str, time: dt.datetime, component: str = "api", **data: Any) -> Record:
    return Record(type, time, component, subject, data=jsontext.dumps(data))


def of_alert(type: str, time: dt.datetime, **data: Any) -> Record:
    return Record(type, time, "scheduler", str(data["about"]), data=jsontext.dumps(data))


def origin() -> str:
    """What the source of every event of this service begins with: `ojs://service/`, a URI whatever the service is
    called (events 2.4)."""
    return _origin(ojs_settings.SERVICE_NAME)


@lru_cache(maxsize=16)
def _origin(service: str) -> str:
    return f"ojs://{quote(service, safe='', errors='replace')}/"


def milliseconds_between(since: dt.datetime | None, until: dt.datetime | None) -> int:
    """From one instant to another; 0 where one of them is not known: a job that never started, say."""
    return max(0, round((until - since).total_seconds() * 1000)) if since and until else 0


def event_error(error: Mapping[str, Any]) -> dict[str, Any]:
    """The error object as events carry it: the stored one with `stack_trace` beside `backtrace` (events 1.5)."""
    shown = dict(error)
    shown.pop("timestamp", None)
    if shown.get("backtrace"):
        shown["stack_trace"] = "\n".join(shown["backtrace"])
    return shown


# What each type tells, and which members its `data` has: the reference is made of this, and tests hold events to it.
# A member whose name ends in `?` may be missing. `SHARED` comes before it in every event of the kind (`log.render`).

MemberTypes = Mapping[str, str]


class Description(NamedTuple):
    text: str
    data: MemberTypes = {}


#: By the first part of the type; "" is in every event.
SHARED: dict[str, MemberTypes] = {
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
    "approval.requested", "approval.decided", "approval.delegated", "approval.escalated",
})  # fmt: skip
ABOUT_QUEUES = frozenset({
    "dead_letter.pruned", "backpressure.rejected", "backpressure.warning", "backpressure.cleared", "cron.triggered",
    "cron.skipped",
})  # fmt: skip

_WAS: MemberTypes = {"previous_state?": "string"}
_WORKER: MemberTypes = {"hostname": "string", "queues": "array of strings", "concurrency": "integer"}
_TIMEOUT: MemberTypes = {"timeout_kind": "string", "limit_seconds": "number", "elapsed_seconds": "number"}
_DEATH: MemberTypes = {"signal?": "string", "exit_code?": "integer", "memory_mb?": "number"}
_CRON: MemberTypes = {
    "cron_name": "string", "cron_expr": "string", "cron_expression": "string", "timezone": "string",
    "job_type": "string", "scheduled_at": "instant or null", "scheduled_time": "instant or null",
    "next_at": "instant or null",
}  # fmt: skip
_FLOW: MemberTypes = {
    "workflow_id": "string", "workflow_name": "string", "workflow_type": "string", "total_steps": "integer",
}  # fmt: skip
_STEP: MemberTypes = {
    "step_id": "string", "step_type": "string", "duration_ms": "integer", "step": "integer", "job_id": "UUID",
}  # fmt: skip
_FLOW_JOB: MemberTypes = {
    **_FLOW, **_STEP, "job_type": "string", "state": "string", "attempt": "integer", "callback?": "string",
}  # fmt: skip
_BULK: MemberTypes = {"total": "integer", "skipped": "integer"}
_BOUND: MemberTypes = {"depth": "integer", "bound": "integer"}
_PRESSURE: MemberTypes = {**_BOUND, "pressure": "number", "threshold": "number"}
_RESULT: MemberTypes = {"size_bytes?": "integer", "expires_at": "instant or null"}
_LIMIT: MemberTypes = {"key": "string", "strategy": "string"}
_DELIVERY: MemberTypes = {
    "subscription_id": "string", "delivery_id": "string", "event_id": "string", "event_type": "string",
    "attempts": "integer", "response_status": "integer or null", "error": "string",
}  # fmt: skip
_ALERT: MemberTypes = {
    "alert_id": "string", "kind": "string", "about": "string", "says": "string", "mend": "string",
    "raised_at": "instant", "figures": "object",
}  # fmt: skip
_APPROVAL: MemberTypes = {"approval_id": "UUID", "name": "string", "title": "string", "assignees": "array of strings"}
_SUBSCRIPTION: MemberTypes = {"subscription_id": "string", "by?": "string"}

DESCRIBED: dict[str, Description] = {
    "job.enqueued": Description(
        "A job waits to be claimed: it is new, or its time has come, or a caller activated or revived it.",
        {"priority": "integer", "unique_key?": "string", "scheduled_at?": "instant", **_WAS},
    ),
    "job.scheduled": Description("A new or activated job waits for its time.", {"scheduled_at": "instant", **_WAS}),
    "job.started": Description("A worker has claimed a job.", {"wait_ms": "integer"}),
    "job.completed": Description("A job is done.", {"duration_ms": "integer", "result?": "any"}),
    "job.failed": Description("An attempt has failed.", {"duration_ms": "integer", "error": "error"}),
    "job.retrying": Description(
        "An attempt that failed, was snoozed, or lost its database is to be repeated.",
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
    "job.checkpointed": Description(
        "The state of a job was saved, from which its next attempt goes on; the event does not have the state.",
        {"sequence": "integer", "size_bytes": "integer"},
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
    "worker.terminated": Description(
        "A worker is gone. Of one whose process died: how, and the most memory that it had.",
        {"reason": "string", **_DEATH},
    ),
    "worker.stopped": Description(
        "A worker is gone, and what it did.",
        {"reason": "`shutdown`, `signal` or `error`", "jobs_completed": "integer", "uptime_ms": "integer"},
    ),
    "queue.paused": Description("A queue delivers nothing any more.", {"paused_by?": "string", "reason?": "string"}),
    "queue.resumed": Description("A queue delivers again.", {"resumed_by?": "string", "reason?": "string"}),
    "workflow.started": Description("The first job of a workflow has begun.", _FLOW),
    "workflow.step_completed": Description(
        "A member of a workflow is done.", {**_FLOW, **_STEP, "steps_remaining": "integer"}
    ),
    "workflow.completed": Description("A workflow is done.", {**_FLOW, "duration_ms": "integer"}),
    "workflow.failed": Description(
        "A workflow cannot be completed; without a `job_id` the step could not be enqueued.",
        {
            **_FLOW,
            "failed_step_id": "string",
            "failed_step_type": "string",
            "step": "integer",
            "job_id?": "UUID",
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
        "than its heartbeat timeout, and the attempt has failed. Where the process of its worker died: how, and the "
        "most memory that it had.",
        {**_TIMEOUT, **_DEATH},
    ),
    "job.total_timeout": Description("A job's time as a whole ran out; it was discarded.", _TIMEOUT),
    "job.ttl_expired": Description("Nothing began a job within its enqueue TTL; it was discarded.", _TIMEOUT),
    "job.retry_exhausted": Description(
        "The last attempt that a job may have failed with an error that allows another one; it was discarded.",
        {"total_attempts": "integer", "max_attempts": "integer"},
    ),
    "job.dead_lettered": Description(
        "As `dead_letter.added`, by the name that follows `job.retry_exhausted` in the specification."
    ),
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
    "job.purged": Description(
        "An operator erased the history of a job.", {"events_deleted": "integer", "purged_by?": "string"}
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
        "A worker asked to start nothing more under a key for a while, or an operator lifted that.",
        {"key": "string", "until": "instant", "reason": "string", "lifted_by?": "string"},
    ),
    "webhook.subscription.created": Description(
        "A caller subscribed.", {**_SUBSCRIPTION, "events": "array of strings"}
    ),
    "webhook.subscription.updated": Description("A subscription was changed.", {**_SUBSCRIPTION, "active": "boolean"}),
    "webhook.subscription.deleted": Description(
        "A subscription was deleted.", {**_SUBSCRIPTION, "cancelled_deliveries": "integer"}
    ),
    "webhook.subscription.disabled": Description(
        "A subscription was switched off because nothing arrived.", {**_SUBSCRIPTION, "reason": "string"}
    ),
    "webhook.dead": Description("A delivery was given up.", _DELIVERY),
    "alert.raised": Description('Something needs an operator\'s attention (`OJS["ALERTS"]`).', _ALERT),
    "alert.cleared": Description("What needed attention is over.", _ALERT),
    "approval.requested": Description(
        "A durable job asks people for a decision, and waits.", {**_APPROVAL, "due_at?": "instant"}
    ),
    "approval.decided": Description(
        "A user or a key has decided what a durable job asked, or its time was over (`timed_out`).",
        {"approval_id": "UUID", "name": "string", "title": "string", "outcome": "string", "decided_by?": "string"},
    ),
    "approval.delegated": Description("Other people are asked instead.", {**_APPROVAL, "delegated_by?": "string"}),
    "approval.escalated": Description(
        "The scheduler asks more people, because the first have not decided in time.", _APPROVAL
    ),
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
    "result.retrieved": Description("A caller read a result by an endpoint for results.", _RESULT),
    "webhook.delivered": Description("An event arrived at its receiver.", _DELIVERY),
    "webhook.failed": Description("An attempt at a delivery failed and will be repeated.", _DELIVERY),
    STATE_CHANGED: Description(
        "A job's state changed: made of the events above when a reader names it.",
        {"from": "string", "to": "string"},
    ),
}


def shared(type: str) -> MemberTypes:
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
