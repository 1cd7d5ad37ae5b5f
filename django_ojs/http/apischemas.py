"""The schemas of the OpenAPI document: what bodies and answers hold. Members that are not named are allowed."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from typing import Any

from django_ojs.states import State

Schema = dict[str, Any]

TEXT: Schema = {"type": "string"}
INTEGER: Schema = {"type": "integer"}
NUMBER: Schema = {"type": "number"}
FLAG: Schema = {"type": "boolean"}
TIME: Schema = {"type": "string", "format": "date-time"}
ANY: Schema = {}
OBJECT: Schema = {"type": "object"}
_ENVELOPE = Path(__file__).parent.parent / "schemas" / "envelope.json"


def ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def array(item: Schema) -> Schema:
    return {"type": "array", "items": item}


def maybe(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"type": "null"}]}


def obj(needed: str = "", **members: Schema) -> Schema:
    """An object with these members, of which those in `needed` are always there."""
    return {"type": "object", "properties": members} | ({"required": needed.split()} if needed else {})


def page(*keys: str, item: Schema = OBJECT) -> Schema:
    """The answer of a list: the same rows under each of the keys, and where they stand."""
    return obj(" ".join((*keys, "pagination")), **dict.fromkeys(keys, array(item)), pagination=ref("Pagination"))


_STATES: Schema = {"type": "string", "enum": [state.value for state in State]}
_COUNTS = obj(" ".join(state.value for state in State), **{state.value: INTEGER for state in State})
_THROUGHPUT = obj(
    "processed_per_minute failed_per_minute", processed_per_minute=NUMBER, failed_per_minute=NUMBER
)  # fmt: skip
_FILTER = obj(
    queue=TEXT, state={"anyOf": [TEXT, array(_STATES)]}, type=TEXT, since=TIME, until=TIME, worker_id=TEXT,
    error_type=TEXT,
)  # fmt: skip
_REPORT = obj(
    progress={**NUMBER, "description": "From 0 to 1."}, percentage={**NUMBER, "description": "From 0 to 100."},
    progress_percent={**NUMBER, "description": "From 0 to 100."}, message=TEXT, data=ANY, worker_id=TEXT,
    attempt=INTEGER,
)  # fmt: skip
_METRICS = (
    "uptime_seconds", "jobs_enqueued_total", "jobs_completed_total", "jobs_failed_total", "jobs_active",
    "queues_active", "workers_active", "avg_latency_ms", "throughput_per_second",
)  # fmt: skip
#: What a subscription has as it is sent and as it is shown.
_SUBSCRIBED: dict[str, Schema] = {
    "active": FLAG, "filter": obj(queues=array(TEXT), job_types=array(TEXT)), "metadata": OBJECT,
    "headers": {**OBJECT, "additionalProperties": TEXT}, "timeout_seconds": INTEGER,
    "signature_format": {"enum": ["body", "timestamp.body"]},
}  # fmt: skip
_JOB_IDS = array({"type": "string", "format": "uuid"})

SCHEMAS: dict[str, Schema] = {
    "Error": obj("error", error=obj(
        "code message retryable details hint docs_url request_id", code=TEXT, type=TEXT, canonical_code=TEXT,
        message=TEXT, retryable=FLAG, details=OBJECT, hint=TEXT, docs_url=TEXT, request_id=TEXT,
    )),
    "Pagination": obj(
        "limit per_page has_more", total=INTEGER, limit=INTEGER, offset=INTEGER, page=INTEGER, per_page=INTEGER,
        has_more=FLAG, next_cursor=TEXT,
        total_is_minimum={**FLAG, "description": "There are more than `total`: they were counted no further."},
    ),
    "Job": {"allOf": [ref("Envelope"), obj(
        "specversion id type queue args meta priority state attempt max_attempts created_at",
        state=_STATES, attempt=INTEGER, max_attempts=INTEGER,
    )]},
    "JobAnswer": obj("job", job=ref("Job"), deduplicated=FLAG, warnings=array(OBJECT)),
    "Pushed": {"anyOf": [ref("JobAnswer"), obj("dropped", job={"type": "null"}, dropped=FLAG)]},
    "JobBatch": obj("jobs", jobs={**array(ref("Envelope")), "minItems": 1}),
    "JobBatchAnswer": obj("jobs count", jobs=array(ref("Job")), count=INTEGER),
    "BulkRequest": obj("jobs", jobs={**array(ref("Envelope")), "minItems": 1},
                       atomicity={"enum": ["partial", "atomic"]}, idempotency_key=TEXT),
    "BulkAnswer": obj("items", items=array(obj("index status", index=INTEGER, status=TEXT))),
    "BulkChange": obj(job_ids=_JOB_IDS, filter=OBJECT, atomicity={"enum": ["partial", "atomic"]},
                      idempotency_key=TEXT),
    "Fetch": obj("queues", queues={**array(TEXT), "minItems": 1}, count=INTEGER, worker_id=TEXT,
                 visibility_timeout_ms=INTEGER),
    "FetchAnswer": obj("jobs", jobs=array(ref("Job")), job=ref("Job")),
    "Ack": obj("job_id", job_id=TEXT, worker_id=TEXT, result=ANY),
    "AckOfPath": obj(worker_id=TEXT, result=ANY),
    "AckAnswer": obj("acknowledged job_id state job", acknowledged=FLAG, job_id=TEXT, state=_STATES, job=ref("Job")),
    "Nack": obj("job_id", job_id=TEXT, worker_id=TEXT, error=OBJECT),
    "NackOfPath": obj(worker_id=TEXT, error=OBJECT),
    "NackAnswer": obj("job_id state job", job_id=TEXT, state=_STATES, job=ref("Job")),
    "Worker": obj("worker_id", worker_id=TEXT, queues=array(TEXT), hostname=TEXT, pid=INTEGER, concurrency=INTEGER),
    "Heartbeat": obj("worker_id", worker_id=TEXT, state={"enum": ["running", "quiet", "terminate"]}, active_jobs=ANY),
    "HeartbeatAnswer": obj(
        "worker_id state server_time", worker_id=TEXT, state=TEXT, directive=TEXT, cancelled_jobs=array(TEXT),
        jobs_lost=array(TEXT), jobs_extended=array(TEXT), server_time=TIME,
    ),
    "WorkerLine": obj(
        "id state queues active_jobs", id=TEXT, state=TEXT, directive=TEXT, hostname=TEXT, queues=array(TEXT),
        concurrency=INTEGER, active_jobs=INTEGER, started_at=TIME, last_heartbeat_at=TIME,
    ),
    "Maintenance": obj(
        "maintenance enabled reason enabled_at started_at estimated_end ends_at", maintenance=FLAG, enabled=FLAG,
        reason=maybe(TEXT), enabled_at=maybe(TIME), started_at=maybe(TIME), enabled_by=maybe(TEXT),
        estimated_end=maybe(TIME), ends_at=maybe(TIME), auto_end=maybe(FLAG),
    ),
    "MaintenanceSwitch": obj("enabled", enabled=FLAG, reason=maybe(TEXT), estimated_duration=maybe(TEXT),
                             duration=maybe(TEXT), auto_end=maybe(FLAG)),
    "Queue": obj("name status paused", name=TEXT, status=TEXT, paused=FLAG, created_at=TIME),
    "AdminQueue": obj(
        "name state paused counts throughput latency_ms", name=TEXT, state=TEXT, paused=FLAG, counts=_COUNTS,
        throughput=_THROUGHPUT, latency_ms=obj("p50 p95 p99", p50=NUMBER, p95=NUMBER, p99=NUMBER), created_at=TIME,
    ),
    "Stats": obj("queues workers jobs throughput uptime_seconds", queues=INTEGER, workers=INTEGER, jobs=_COUNTS,
                 throughput={"allOf": [_THROUGHPUT, obj(
                     "enqueued_per_min completed_per_min failed_per_min avg_latency_ms", enqueued_per_min=maybe(NUMBER),
                     completed_per_min=NUMBER, failed_per_min=NUMBER, avg_latency_ms=NUMBER,
                 )]}, uptime_seconds=INTEGER),
    "HistoryPoint": obj(
        "timestamp processed completed failed started enqueued latency_p50_ms latency_p99_ms avg_latency_ms "
        "avg_duration_ms",
        timestamp=TIME, processed=INTEGER, completed=INTEGER, failed=INTEGER, started=INTEGER, enqueued=maybe(INTEGER),
        latency_p50_ms=maybe(NUMBER), latency_p99_ms=maybe(NUMBER), avg_latency_ms=NUMBER, avg_duration_ms=NUMBER,
    ),
    "History": obj("period kept_since data data_points", period={"enum": ["1m", "5m", "1h", "1d"]}, kept_since=TIME,
                   data=array(ref("HistoryPoint")), data_points=array(ref("HistoryPoint"))),
    "QueueShare": obj(
        "name paused dispatched dispatch_count_1m dispatch_ratio_1m avg_wait_ms active_jobs available_jobs "
        "waiting_since starved",
        name=TEXT, paused=FLAG, dispatched=INTEGER, dispatch_count_1m=INTEGER, dispatch_ratio_1m=NUMBER,
        avg_wait_ms=maybe(NUMBER), active_jobs=INTEGER, available_jobs=INTEGER, waiting_since=maybe(TIME),
        starved=FLAG,
    ),
    "Scheduling": obj(
        "strategy window window_start window_end stats queues pagination", strategy={"enum": ["strict"]}, window=TEXT,
        window_start=TIME, window_end=TIME, queues=array(ref("QueueShare")), pagination=ref("Pagination"),
        stats=obj("strategy dispatched active_jobs starved_queues queues", strategy=TEXT, dispatched=INTEGER,
                  active_jobs=INTEGER, starved_queues=INTEGER, queues=array(ref("QueueShare"))),
    ),
    "JobLine": obj(
        "id type queue state priority attempt created_at", id=TEXT, type=TEXT, queue=TEXT, state=_STATES,
        priority=INTEGER, attempt=INTEGER, created_at=TIME, completed_at=TIME, scheduled_at=TIME,
    ),
    "JobDetail": {"allOf": [ref("Job"), obj(
        "errors retry_policy metadata", errors=array(OBJECT), retry_policy=OBJECT, metadata=OBJECT,
    )]},
    "AdminBulk": obj(filter=_FILTER, job_ids=_JOB_IDS, confirm=FLAG, dry_run=FLAG, background=FLAG, reason=TEXT)
    | {"additionalProperties": False},
    "LetterRetry": obj(filter=_FILTER, job_ids=_JOB_IDS, confirm=FLAG, dry_run=FLAG, background=FLAG, reason=TEXT,
                       override=OBJECT) | {"additionalProperties": False},
    "BulkAction": obj(
        "id action state expected matched succeeded failed filter override errors problem actor created_at finished_at",
        id=INTEGER, action={"enum": ["retry", "cancel", "delete", "run"]},
        state={"enum": ["running", "completed", "cancelled", "failed"]}, problem=maybe(TEXT), expected=INTEGER,
        matched=INTEGER, succeeded=INTEGER, failed=INTEGER, filter=OBJECT, override=maybe(OBJECT),
        errors=array(obj("job_id error", job_id=TEXT, error=TEXT)), actor=TEXT, door=TEXT, created_at=TIME,
        finished_at=maybe(TIME),
    ),
    "AdminBulkAnswer": obj(
        "action dry_run matched succeeded failed errors", action=TEXT, dry_run=FLAG, matched=INTEGER,
        succeeded=INTEGER, failed=INTEGER, errors=array(obj("job_id error", job_id=TEXT, error=OBJECT)),
    ),
    "LetterRetried": {"allOf": [ref("AdminBulkAnswer"), obj("retried", retried=INTEGER)]},
    "DeadLetter": {"allOf": [ref("Job"), obj(
        "errors total_attempts metadata", errors=array(OBJECT), error=OBJECT, total_attempts=INTEGER, metadata=OBJECT,
        discarded_at=TIME,
    )]},
    "Purge": obj("states", states=array({"enum": ["completed", "discarded", "cancelled"]}), older_than=TEXT,
                 confirm=FLAG, dry_run=FLAG),
    "LetterPurge": obj(filter=_FILTER, job_ids=_JOB_IDS, older_than=TEXT, confirm=FLAG, dry_run=FLAG),
    "Purged": obj("purged_count matched", purged_count=INTEGER, matched=INTEGER, dry_run=FLAG),
    "LetterStats": obj(
        "total by_queue by_error_type by_type oldest_at newest_at", total=INTEGER, by_queue=OBJECT,
        by_error_type=OBJECT, by_type=OBJECT, looked_at=INTEGER, oldest_at=maybe(TIME), newest_at=maybe(TIME),
    ),
    "AuditEntry": obj(
        "id timestamp actor action target outcome", id=INTEGER, timestamp=TIME, actor=TEXT, action=TEXT,
        target_type=TEXT, target=TEXT, outcome={"enum": ["success", "denied"]}, door=TEXT, source_ip=TEXT,
        request_id=TEXT, detail=OBJECT,
    ),
    "Workflow": obj("id type state", id=TEXT, type=TEXT, state=TEXT, steps_total=INTEGER, steps_completed=INTEGER),
    "Schedule": obj("name cron type queue enabled", name=TEXT, type=TEXT, queue=TEXT, enabled=FLAG,
                    timezone=TEXT, next_run_at=maybe(TIME), last_run_at=maybe(TIME)),
    "ScheduleRequest": obj("name type", name=TEXT, cron=TEXT, timezone=TEXT, type=TEXT, args=array(ANY), queue=TEXT,
                           enabled=FLAG),
    "Event": obj("specversion id type source time data", specversion=TEXT, id=TEXT, type=TEXT, source=TEXT, time=TIME,
                 subject=TEXT, data=OBJECT),
    "EventPage": obj("events items has_more pagination", events=array(ref("Event")), items=array(ref("Event")),
                     cursor=maybe(TEXT), has_more=FLAG, pagination=ref("Pagination"), gap=OBJECT),
    "JobHistory": {"allOf": [ref("EventPage"), obj("job_id history", job_id=TEXT, state=_STATES, attempt=INTEGER,
                                                   history=array(ref("Event")))]},
    "Progress": obj("job_id state progress data message updated_at", job_id=TEXT, state=_STATES,
                    progress=maybe({**NUMBER, "minimum": 0, "maximum": 1}), data=ANY, message=maybe(TEXT),
                    updated_at=maybe(TIME)),
    "ProgressReport": _REPORT,
    "WorkerProgressReport": {"allOf": [ref("ProgressReport"), obj("job_id", job_id=TEXT)]},
    "Metrics": obj(" ".join(_METRICS), **dict.fromkeys(_METRICS, NUMBER)),
    "Ticket": obj("ticket expires_at expires_in", ticket=TEXT, expires_at=TIME, expires_in=NUMBER),
    "SubscriptionChange": obj(
        "", url={**TEXT, "format": "uri"}, events={**array(TEXT), "minItems": 1}, secret=TEXT, **_SUBSCRIBED
    ),
    "SubscriptionRequest": {"allOf": [ref("SubscriptionChange"), {"required": ["url", "events"]}]},
    "Subscription": obj(
        "id url events active filter metadata headers timeout_seconds signature_format success_count failure_count "
        "created_at updated_at",
        id=TEXT, url=TEXT, events=array(TEXT), disabled_reason=TEXT, created_by=TEXT,
        last_delivery_at=TIME, last_delivery_status=INTEGER, success_count=INTEGER,
        failure_count=INTEGER, created_at=TIME, updated_at=TIME,
        secret={**TEXT, "description": "Shown once, in the answer that made the subscription."}, **_SUBSCRIBED,
    ),
    "SubscriptionAnswer": {"allOf": [ref("Subscription"), obj("subscription", subscription=ref("Subscription"))]},
    "SecretRotated": obj("id secret new_secret previous_secret_expires_at", id=TEXT, secret=TEXT, new_secret=TEXT,
                         previous_secret_expires_at=maybe(TIME)),
    "SubscriptionTested": obj(
        "success status_code status response_time_ms response_body error delivery_id", success=FLAG,
        status_code=INTEGER, status=INTEGER, response_time_ms=maybe(INTEGER), response_body=TEXT, error=maybe(TEXT),
        delivery_id=TEXT,
    ),
    "Delivery": obj(
        "id subscription_id event_id event_type subject status held attempt_count max_attempts created_at",
        id=TEXT, subscription_id=TEXT, event_id=TEXT, event_type=TEXT, subject=TEXT, status=TEXT, held=FLAG,
        attempt_count=INTEGER, max_attempts=INTEGER, response_status=INTEGER, response_time_ms=INTEGER,
        error=TEXT, next_attempt_at=TIME, created_at=TIME, delivered_at=TIME,
    ),
    "DeliveryDetail": {"allOf": [ref("Delivery"), obj("attempts", attempts=array(OBJECT), response_body=TEXT)]},
}  # fmt: skip


@lru_cache(maxsize=1)
def components() -> dict[str, Schema]:
    """All of them, with the envelope's, whose parts become components of their own."""
    document = json.loads(_ENVELOPE.read_text())
    parts = {f"Envelope{name.capitalize()}": schema for name, schema in document.pop("$defs").items()}
    for name in ("$schema", "$id"):
        document.pop(name)
    return {name: _moved(schema) for name, schema in {"Envelope": document, **parts, **SCHEMAS}.items()}


def _moved(value: Any) -> Any:
    """References to `$defs` of the envelope's schema as references to components; lists of words one level down.

    drf-spectacular would give each list of words in a site's document a name, and warn where it finds none.
    """
    if isinstance(value, list):
        return [_moved(item) for item in value]
    if not isinstance(value, dict):
        return value
    if isinstance(target := value.get("$ref"), str) and target.startswith("#/$defs/"):
        return ref(f"Envelope{target.removeprefix('#/$defs/').capitalize()}")
    if "enum" in value:
        return {"allOf": [value]}
    return {name: _moved(item) for name, item in value.items()}
