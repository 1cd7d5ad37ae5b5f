"""What the core's methods take and answer, for the OpenAPI document. A test holds it against the views.

What stands beside the core, such as streams and webhooks, is in `apiextensions`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from django_ojs.http.apischemas import ANY, FLAG, INTEGER, NUMBER, OBJECT, TEXT, Schema, array, obj, page, ref


@dataclasses.dataclass(frozen=True)
class Doc:
    """One method.

    Attributes:
        answers: status -> schema of the JSON; None for an answer without any.
        query: names of the query's parameters.
        body: what it takes, None for nothing; `needed`: whether there must be a body.
        text: the media type of the text that 200 may be, or always is where it has no schema.
        resumes: whether `Last-Event-ID` counts.
        errors: statuses of errors beside those that every method may answer.
        optional: whether the site decides if credentials are needed.
    """

    answers: Mapping[int, Schema | None]
    query: str = ""
    body: Schema | None = None
    needed: bool = True
    text: str = ""
    resumes: bool = False
    errors: tuple[int, ...] = ()
    optional: bool = False


PAGES = " limit offset page per_page cursor"
_JOBS = "queue state type since until worker_id error_type sort order" + PAGES
_LETTERS = "queue type since until error_type"
_DONE: dict[int, Schema | None] = {200: OBJECT}
_JOB, _FLAT = {200: ref("JobAnswer")}, {200: ref("JobDetail")}
_REASON = obj(reason=TEXT)
_MANY = {200: ref("AdminBulkAnswer"), 202: ref("BulkAction")}
_QUEUE_STATE = {200: obj("queue name paused", queue=OBJECT, name=TEXT, paused=FLAG)}
_ADMIN_STATE = {200: obj("name paused", name=TEXT, paused=FLAG)}
_BULK = {200: ref("BulkAnswer"), 207: ref("BulkAnswer"), 422: {"anyOf": [ref("BulkAnswer"), ref("Error")]}}
_FLOW, _SCHEDULE = {200: ref("Workflow")}, ref("Schedule")
_ACTION = obj("id worker_id state directive", id=TEXT, worker_id=TEXT, state=TEXT, directive=TEXT)
_OVERRIDE = obj(override=OBJECT)
_AGAIN = obj(reason=TEXT, confirm=FLAG) | {"additionalProperties": False}
_LETTER_AGAIN = obj(override=OBJECT, reason=TEXT, confirm=FLAG) | {"additionalProperties": False}
_OPEN: dict[str, Any] = {"body": OBJECT, "needed": False}


def plain(answers: Mapping[int, Schema | None], **more: Any) -> Doc:
    """A call whose body may be left out."""
    return Doc(answers, **{**_OPEN, **more})


DOCS: dict[str, Doc] = {
    "Manifest.get": Doc({200: obj("specversion implementation conformance_level protocols backend")}),
    "Health.get": Doc({200: obj("status", status=TEXT), 503: obj("status", status=TEXT)}),
    "Jobs.post": Doc({200: ref("Pushed"), 201: ref("JobAnswer")}, body=ref("Envelope")),
    "JobBatch.post": Doc({201: ref("JobBatchAnswer")}, body=ref("JobBatch")),
    "BulkEnqueue.post": Doc({201: ref("BulkAnswer"), **{k: v for k, v in _BULK.items() if k != 200}},
                            body=ref("BulkRequest")),
    "BulkChange.post": Doc(_BULK, body=ref("BulkChange")),
    "JobDetail.get": Doc(_JOB),
    "JobDetail.delete": Doc(_JOB),
    "JobDetail.patch": Doc({200: obj("id priority", id=TEXT, priority=INTEGER)}, body=obj("priority", priority=ANY)),
    "JobCancel.post": plain(_JOB, body=_REASON),
    "JobActivate.post": plain(_JOB),
    "Result.get": Doc({200: obj("job_id state", job_id=TEXT, state=TEXT, result=ANY), 202: OBJECT}, "wait timeout",
                      errors=(408, 410)),
    "Results.post": Doc({200: obj("results", results=OBJECT)}, body=obj("ids", ids=array(TEXT))),
    "Fetch.post": Doc({200: ref("FetchAnswer")}, body=ref("Fetch")),
    "WorkerAck.post": Doc({200: ref("AckAnswer")}, body=ref("Ack")),
    "JobAck.post": plain({200: ref("AckAnswer")}, body=ref("AckOfPath")),
    "WorkerNack.post": Doc({200: ref("NackAnswer")}, body=ref("Nack")),
    "JobNack.post": Doc({200: ref("NackAnswer")}, body=ref("NackOfPath")),
    "Register.post": Doc({200: OBJECT, 201: OBJECT}, body=ref("Worker")),
    "Deregister.post": Doc({200: OBJECT, 204: None}, body=obj("worker_id", worker_id=TEXT)),
    "Heartbeat.post": Doc({200: ref("HeartbeatAnswer")}, body=ref("Heartbeat")),
    "workers.WorkerDetail.delete": Doc({200: OBJECT, 204: None}),
    "WorkerHealth.get": Doc({status: obj("worker_id status state", worker_id=TEXT, status=TEXT, state=TEXT)
                             for status in (200, 503)}),
    "Queues.get": Doc({200: page("queues", item=ref("Queue"))}, PAGES),
    "Queues.post": Doc({201: obj("name queue config", name=TEXT)}, body=obj("name", name=TEXT, config=OBJECT)),
    "QueueDetail.get": Doc({200: obj("queue name stats config")}),
    "QueueDetail.delete": Doc({200: OBJECT, 202: OBJECT}, "strategy target_queue",
                              body=obj(strategy=TEXT, target_queue=TEXT), needed=False),
    "QueueStats.get": Doc({200: obj("queue name stats", stats=OBJECT)}),
    "QueueConfig.get": Doc(_DONE),
    "QueueConfig.put": Doc(_DONE, body=OBJECT),
    "QueuePause.post": plain(_QUEUE_STATE, body=_REASON),
    "QueueResume.post": plain(_QUEUE_STATE, body=_REASON),
    "PriorityStats.get": Doc({200: obj("queue counts_by_priority total distribution", total=INTEGER)}),
    "Workflows.get": Doc({200: page("workflows", "items", item=ref("Workflow"))}, "state" + PAGES),
    "Workflows.post": Doc({201: ref("Workflow")}, body=OBJECT),
    "WorkflowDetail.get": Doc(_FLOW),
    "WorkflowDetail.delete": Doc(_FLOW, "cancel_active"),
    "WorkflowCancel.post": plain(_FLOW, query="cancel_active", body=_REASON),
    "WorkflowRetry.post": plain(_FLOW),
    "WorkflowProgress.get": Doc({200: obj("workflow_id progress steps", workflow_id=TEXT, progress=NUMBER)}),
    "RateLimits.get": Doc({200: page("items", "rate_limits")}, PAGES),
    "RateLimitDetail.get": Doc({200: obj("key", key=TEXT)}),
    "RateLimitDetail.put": Doc({200: obj("key", key=TEXT)}, body=OBJECT),
    "RateLimitOverride.put": Doc({200: obj("key", key=TEXT)}, body=OBJECT),
    "RateLimitOverride.delete": Doc({204: None}),
    "DeadLetters.get": Doc({200: page("jobs", "items", item=ref("DeadLetter"))}, _LETTERS + PAGES),
    "DeadLetterDetail.get": Doc({200: obj("id job", id=TEXT, job=ref("Job"))}),
    "DeadLetterDetail.delete": Doc({200: obj("deleted job_id", deleted=FLAG, job_id=TEXT)}),
    "DeadLetterRetry.post": plain(_JOB, body=_OVERRIDE),
    "Crons.get": Doc({200: page("crons", "cron_jobs", "items", item=_SCHEDULE)}, "enabled" + PAGES),
    "Crons.post": Doc({200: _SCHEDULE, 201: _SCHEDULE}, body=ref("ScheduleRequest")),
    "CronDetail.get": Doc({200: _SCHEDULE}),
    "CronDetail.put": Doc({200: _SCHEDULE, 201: _SCHEDULE}, body=OBJECT),
    "CronDetail.patch": Doc({200: _SCHEDULE}, body=OBJECT),
    "CronDetail.delete": Doc({200: _SCHEDULE}),
    "CronTrigger.post": plain({200: obj("name job_id job", name=TEXT, job_id=TEXT, job=ref("Job"))}),
    "CronSwitch.post": plain({200: _SCHEDULE}),
    "CronHistory.get": Doc({200: obj("cron_name executions", cron_name=TEXT, executions=array(OBJECT))}, "limit"),
    "Schemas.get": Doc({200: page("schemas")}, PAGES),
    "Schemas.post": Doc({201: obj("schema", schema=OBJECT)},
                        body=obj("schema", schema=ANY, job_type=TEXT, version=ANY)),
    "SchemaVersions.get": Doc({200: obj("versions", versions=array(OBJECT))}),
    "SchemaDetail.get": Doc({200: obj("schema", schema=OBJECT)}),
    "SchemaDetail.delete": Doc({200: obj("deleted", deleted=FLAG)}),
    "AdminSchema.get": Doc({200: obj("type version schema", type=TEXT)}),
    "AdminSchema.put": Doc({201: obj("type version schema", type=TEXT)}, body=obj("schema", schema=ANY)),
    "AdminSchema.delete": Doc({200: obj("deleted", deleted=FLAG)}),
    "AdminLatest.get": Doc({200: obj("type version schema versions", type=TEXT)}),
    "AdminStats.get": Doc({200: ref("Stats")}, "queue"),
    "AdminHistory.get": Doc({200: ref("History")}, "period since until queue"),
    "AdminScheduling.get": Doc({200: ref("Scheduling")}, PAGES.strip()),
    "AdminConfig.get": Doc({200: obj("settings", settings=OBJECT)}),
    "AdminMaintenance.get": Doc({200: ref("Maintenance")}),
    "AdminMaintenance.post": Doc({200: ref("Maintenance")}, body=ref("MaintenanceSwitch")),
    "AdminAudit.get": Doc({200: page("items", item=ref("AuditEntry"))},
                          "actor action target outcome since until" + PAGES),
    "AdminQueues.get": Doc({200: page("items", item=ref("AdminQueue"))}, PAGES),
    "AdminQueueDetail.get": Doc({200: ref("AdminQueue")}),
    "AdminQueuePause.post": plain(_ADMIN_STATE, body=_REASON),
    "AdminQueueResume.post": plain(_ADMIN_STATE, body=_REASON),
    "AdminQueueConfig.get": Doc({200: obj("name config", name=TEXT, config=OBJECT)}),
    "AdminQueueConfig.put": Doc({200: obj("name config", name=TEXT, config=OBJECT)}, body=OBJECT),
    "QueuePurge.delete": Doc({200: ref("Purged")}, "states older_than confirm dry_run",
                             body=ref("Purge"), needed=False),
    "AdminJobs.get": Doc({200: page("items", item=ref("JobLine"))}, _JOBS),
    "AdminJobDetail.get": Doc(_FLAT),
    "AdminJobDetail.patch": Doc(_FLAT, body=obj("priority", priority=ANY)),
    "AdminJobCancel.post": plain(_FLAT, body=_REASON),
    "AdminJobRetry.post": plain(_FLAT, body=_AGAIN),
    "AdminJobRun.post": plain(_FLAT),
    "AdminJobActivate.post": plain(_FLAT),
    "AdminJobDuplicate.post": plain({201: ref("JobDetail")}),
    "DeadLetterBulkRetry.post": Doc({**_MANY, 200: ref("LetterRetried")}, body=ref("LetterRetry")),
    "BulkAct.post": Doc(_MANY, body=ref("AdminBulk")),
    "BulkActions.get": Doc({200: page("items", item=ref("BulkAction"))}, "state" + PAGES),
    "BulkActionDetail.get": Doc({200: ref("BulkAction")}),
    "BulkActionCancel.post": plain({200: ref("BulkAction")}),
    "DeadLetterRoot.get": Doc({200: page("jobs", "items", item=ref("DeadLetter"))},
                              f"{_LETTERS} state worker_id sort order" + PAGES),
    "DeadLetterPurge.delete": Doc({200: obj("purged_count matched")},
                                  f"{_LETTERS} older_than confirm dry_run",
                                  body=ref("LetterPurge"), needed=False),
    "DeadLetterPurge.post": Doc({200: obj("purged_count matched")}, body=ref("LetterPurge")),
    "AdminDeadLetterStats.get": Doc({200: ref("LetterStats")}),
    "AdminDeadLetterDetail.get": Doc(_FLAT),
    "AdminDeadLetterDetail.delete": Doc({204: None}),
    "AdminDeadLetterRetry.post": plain(_FLAT, body=_LETTER_AGAIN),
    "Workers.get": Doc(
        {200: {"allOf": [page("items", "workers", item=ref("WorkerLine")), obj("summary", summary=OBJECT)]}}, PAGES
    ),
    "adminworkers.WorkerDetail.get": Doc({200: {"allOf": [ref("WorkerLine"), obj("active_job_ids jobs")]}}),
    "adminworkers.WorkerDetail.delete": Doc({204: None}),
    "Directive.post": plain({200: _ACTION}),
    "DirectiveForAll.post": Doc(
        {200: obj("directive workers count", directive=TEXT, workers=array(TEXT), count=INTEGER)},
        body=obj("directive", directive={"enum": ["quiet", "resume", "running", "terminate"]}),
    ),
    "OpenAPI.get": Doc(_DONE, errors=(404,)),
}  # fmt: skip
