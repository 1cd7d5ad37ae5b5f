"""What the methods of views without serializers of their own take and answer, for the OpenAPI document.

An entry goes when its view names its serializers (`OJSViewSet.action_serializers`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django_ojs.http.openapi import Doc

Schema = dict[str, Any]

TEXT: Schema = {"type": "string"}
INTEGER: Schema = {"type": "integer"}
NUMBER: Schema = {"type": "number"}
FLAG: Schema = {"type": "boolean"}
ANY: Schema = {}
OBJECT: Schema = {"type": "object"}


def ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def array(item: Schema) -> Schema:
    return {"type": "array", "items": item}


def obj(needed: str = "", **members: Schema) -> Schema:
    """An object with these members, of which those in `needed` are always there."""
    return {"type": "object", "properties": members} | ({"required": needed.split()} if needed else {})


def page(*keys: str, item: Schema = OBJECT) -> Schema:
    """The answer of a list: the same rows under each of the keys, and where they stand."""
    lists = dict.fromkeys(keys, array(item))
    return obj(" ".join((*keys, "pagination")), **lists, total=INTEGER, total_is_minimum=FLAG,
               pagination=ref("Pagination"))  # fmt: skip


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
_ACTION = obj("id worker_id state directive", id=TEXT, worker_id=TEXT, state=TEXT, directive=TEXT)
_OVERRIDE = obj(override=OBJECT)
_AGAIN = obj(reason=TEXT, confirm=FLAG) | {"additionalProperties": False}
_LETTER_AGAIN = obj(override=OBJECT, reason=TEXT, confirm=FLAG) | {"additionalProperties": False}
_OPEN: dict[str, Any] = {"body": OBJECT, "needed": False}


def plain(answers: Mapping[int, Schema | None], **more: Any) -> Doc:
    """A call whose body may be left out."""
    return Doc(answers, **{**_OPEN, **more})


_STATUS: Schema = obj("status", status=TEXT)


DOCS: dict[str, Doc] = {
    "JobViewSet.create": Doc({200: ref("Pushed"), 201: ref("JobAnswer")}, body=ref("Envelope")),
    "JobViewSet.list": Doc({200: page("items", "jobs", item=ref("JobLine"))}, _JOBS),
    "JobViewSet.retries": Doc({200: obj(
        "job_id state attempt max_attempts retry_policy retries items total", job_id=TEXT, state=TEXT, attempt=INTEGER,
        max_attempts=INTEGER, retry_policy=OBJECT, retries=array(OBJECT), items=array(OBJECT), total=INTEGER,
    )}),
    "JobViewSet.batch": Doc({201: ref("JobBatchAnswer")}, body=ref("JobBatch")),
    "JobViewSet.retrieve": Doc(_JOB),
    "JobViewSet.destroy": Doc(_JOB),
    "JobViewSet.update": Doc({200: {"allOf": [ref("JobAnswer"), obj(previous_priority=INTEGER)]}},
                           body=obj("priority", priority=ANY)),
    "JobViewSet.cancel": plain(_JOB, body=_REASON),
    "JobViewSet.activate": plain(_JOB),
    "JobViewSet.result": Doc({200: obj("job_id state", job_id=TEXT, state=TEXT, result=ANY), 202: OBJECT},
                             "wait timeout", errors=(408, 410)),
    "JobViewSet.results": Doc({200: obj("results", results=OBJECT)}, body=obj("ids", ids=array(TEXT))),
    "JobViewSet.ack": plain({200: ref("AckAnswer")}, body=ref("AckOfPath")),
    "JobViewSet.nack": Doc({200: ref("NackAnswer")}, body=ref("NackOfPath")),
    "DeadLetterViewSet.list": Doc({200: page("jobs", "items", item=ref("DeadLetter"))}, _LETTERS + PAGES),
    "UniqueJobViewSet.list": Doc({200: page("items", "unique_jobs", item=ref("UniqueKey"))}, PAGES),
    "JobViewSet.admin.list": Doc({200: page("items", "jobs", item=ref("JobLine"))}, _JOBS),
    "JobViewSet.admin.retrieve": Doc(_FLAT),
    "JobViewSet.admin.update": Doc(_FLAT, body=obj("priority", priority=ANY)),
    "JobViewSet.admin.cancel": plain(_FLAT, body=_REASON),
    "JobViewSet.retry": plain(_FLAT, body=_AGAIN),
    "JobViewSet.run": plain(_FLAT),
    "JobViewSet.admin.activate": plain(_FLAT),
    "JobViewSet.duplicate": plain({201: ref("JobDetail")}),
    "DeadLetterViewSet.admin.list": Doc({200: page("jobs", "items", item=ref("DeadLetter"))},
                              f"{_LETTERS} state worker_id sort order" + PAGES),
    "JobViewSet.progress": Doc({200: ref("Progress")}),
    "JobViewSet.report_progress": Doc({200: ref("Progress")}, body=ref("ProgressReport")),
}  # fmt: skip
