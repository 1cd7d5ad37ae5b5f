"""Every event type this server emits, and how the event of each is made (events specification 3 and 4).

A record holds what the log stores. What all job events share (job_id, type, queue, state, attempt, time,
trace_id) comes from the job's row; `data` holds only what is special to the type.
"""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Mapping
from typing import Any, NamedTuple

from django_ojs import jsontext
from django_ojs.rules.durations import format_instant
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
    "priority.changed", "result.pruned",
    "dead_letter.pruned", "queue.created", "queue.config_updated", "queue.deleted",
    "rate_limit.exceeded", "rate_limit.released", "rate_limit.dropped", "rate_limit.dynamic_adjusted",
    "webhook.subscription.created", "webhook.subscription.updated", "webhook.subscription.deleted",
    "webhook.subscription.disabled", "webhook.dead",
)  # fmt: skip

#: Extension events that come with every workflow, every result, every webhook or every dead letter, rather than now and
#: then: written only where the site asks for them (`OJS["EXTENSION_EVENTS"]`).
ON_REQUEST: tuple[str, ...] = (
    "workflow.created", "workflow.step_failed", "workflow.job_completed", "workflow.job_failed",
    "workflow.callback_fired", "result.stored", "result.rejected", "result.retrieved",
    "webhook.delivered", "webhook.failed", "dead_letter.added",
)  # fmt: skip

#: Job events that must name the worker (events 4.1): '' where the claim named none.
NAMES_WORKER = frozenset({"job.started", "job.heartbeat", "job.progress"})

#: Names that published clients use for types of the catalogue.
ALIASES: Mapping[str, str] = {
    "job.retried": "job.retrying",
    "job.dead": "job.discarded",
    "worker.deregistered": "worker.terminated",
    "worker.stale": "worker.terminated",
}

#: Every change of a job's state under one name: made from stored events when it is read, never stored (events 1.4).
STATE_CHANGED = "job.state_changed"
#: The stored events that may tell of a change, and the state before it where their data has no `previous_state`.
#: None: without it the event follows another one about the same change, as `job.retrying` does `job.failed`.
TRANSITIONS: Mapping[str, str | None] = {
    "job.enqueued": "", "job.scheduled": "", "job.started": "available", "job.completed": "active",
    "job.failed": "active", "job.stalled": "active",
    "job.retrying": None, "job.discarded": None, "job.cancelled": None, "job.expired": None,
}  # fmt: skip


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


def moment(row: Mapping[str, Any], now: dt.datetime) -> dt.datetime:
    """When something happens to this job: now, but neither before it waited nor before it started.

    A statement sees what others have committed since its transaction looked at the clock. Rows whose times are as the
    database gave them (`raw`) are taken at `now`.
    """
    for name in ("enqueued_at", "started_at"):
        before = row.get(name)
        if isinstance(before, dt.datetime) and before.tzinfo is not None and before > now:
            now = before
    return now


def of_new_job(row: Mapping[str, Any], component: str) -> Record | None:
    """The event of a new job; a pending one has none until it is activated (events 1.7)."""
    match row["state"]:
        case State.AVAILABLE:
            return enqueued(row, row["created_at"], component)
        case State.SCHEDULED:
            return scheduled(row, row["created_at"], component)
    return None


def enqueued(row: Mapping[str, Any], time: dt.datetime, component: str, **data: Any) -> Record:
    if row["unique_key"]:
        data["unique_key"] = row["unique_key"]
    return of_job("job.enqueued", row, time, component, priority=row["priority"], **data)


def scheduled(row: Mapping[str, Any], time: dt.datetime, component: str, **data: Any) -> Record:
    return of_job("job.scheduled", row, time, component, scheduled_at=format_instant(row["due_at"]), **data)


def started(row: Mapping[str, Any], time: dt.datetime) -> Record:
    return of_job(
        "job.started", row, time, "workers", worker_id=row["worker_id"], wait_ms=milliseconds(row["enqueued_at"], time)
    )


def completed(row: Mapping[str, Any], time: dt.datetime, *, with_result: bool) -> Record:
    parts = [f'{{"duration_ms":{milliseconds(row["started_at"], time)}']
    if with_result and row["result"] is not None:
        parts.append(f'"result":{row["result"]}')
    record = of_job("job.completed", row, time, "workers", worker_id=row["worker_id"])
    return record._replace(data=",".join(parts) + "}")


def failed(row: Mapping[str, Any], time: dt.datetime, component: str, error: Mapping[str, Any]) -> Record:
    # The duration first, where `statistics.eventlog` looks for it.
    facts = {"duration_ms": milliseconds(row["started_at"], time), "error": event_error(error)}
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


def expired(row: Mapping[str, Any], time: dt.datetime, previous: State | str, end: dt.datetime) -> Record:
    """`end` is when its time ran out: its `expires_at`, or the end of its `enqueue_ttl`."""
    ttl = end - row["created_at"]
    return of_job(
        "job.expired", row, time, "scheduler", created_at=format_instant(row["created_at"]),
        expired_at=format_instant(time), expires_at=format_instant(end),
        ttl_ms=round(ttl / dt.timedelta(milliseconds=1)), previous_state=str(previous),
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


def milliseconds(since: dt.datetime | None, until: dt.datetime | None) -> int:
    """From one instant to another; 0 where one of them is not known: a job that never started, say."""
    return max(0, round((until - since).total_seconds() * 1000)) if since and until else 0


def event_error(error: Mapping[str, Any]) -> dict[str, Any]:
    """The error object as events carry it: the stored one with `stack_trace` beside `backtrace` (events 1.5)."""
    shown = dict(error)
    shown.pop("timestamp", None)
    if shown.get("backtrace"):
        shown["stack_trace"] = "\n".join(shown["backtrace"])
    return shown
