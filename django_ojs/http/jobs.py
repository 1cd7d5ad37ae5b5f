"""Jobs: PUSH, batch PUSH, INFO, CANCEL, ACTIVATE (binding 2.3)."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

from django.db import router
from django.utils.encoding import iri_to_uri
from rest_framework.request import Request
from rest_framework.response import Response

from django_ojs import envelope, states
from django_ojs.conf import ojs_settings
from django_ojs.errors import BatchSizeExceeded, OJSError, QueueFull
from django_ojs.http import access, admission, fields, idempotency, media, priority, ratelimits, shown
from django_ojs.http.auditing import audited
from django_ojs.http.base import OJSView
from django_ojs.http.idempotency import Answer, Operation
from django_ojs.http.permissions import principal
from django_ojs.models import Job
from django_ojs.models.fields import RawJSON
from django_ojs.models.job import JobRow
from django_ojs.operations import backpressure
from django_ojs.operations.activate import activate_one
from django_ojs.operations.cancel import cancel_one
from django_ojs.operations.common import refuse
from django_ojs.operations.info import info
from django_ojs.operations.push import Pushed, push
from django_ojs.states import State, Verb


class PushView(OJSView):
    """What single and batch PUSH share: the scope, and `Idempotency-Key`."""

    scopes = {"POST": "push"}
    operation = "push"

    def answer(self, act: Callable[[str], Answer], key: str | None = None) -> Response:
        """The answer of `act`, which is given the database alias; with an Idempotency-Key, of its first call.

        `key` is one from the body, which counts where there is no header.
        """
        using = router.db_for_write(Job)
        key = self.request.META.get("HTTP_IDEMPOTENCY_KEY", key)
        if key is None:
            done, replayed = act(using), False
        else:
            operation = Operation(key.strip(), principal(self.request), self.operation, self.raw or b"")
            try:
                done, replayed = idempotency.once(operation, lambda: act(using), using)
            except QueueFull as error:
                backpressure.record(error, using)
                raise
        headers = {**done.headers, "Idempotency-Replayed": "true"} if replayed else done.headers
        return Response(RawJSON(done.text), status=done.status, headers=headers)


class Jobs(PushView):
    """`POST /jobs`"""

    def post(self, request: Request) -> Response:
        document = self.payload(field="envelope")
        access.check_documents(request, [document])
        return self.answer(lambda using: self._push(document, using))

    def _push(self, document: dict[str, Any], using: str) -> Answer:
        (pushed,) = push([document], using=using, patience=admission.patience(self.request))
        if pushed.row is None:
            return Answer(200, '{"job":null,"dropped":true}', {})
        warnings = {"warnings": list(pushed.warnings)} if pushed.warnings else {}
        if pushed.status == "duplicate":  # somebody else's job
            return Answer(200, media.to_text({"job": shown.job(pushed.row), "deduplicated": True, **warnings}), {})
        job = envelope.render(pushed.row)
        headers = {"Location": f"{iri_to_uri(self.request.path)}/{job['id']}"} | admission.headers([pushed])
        headers |= ratelimits.headers(pushed.row)
        return Answer(201, media.to_text({"job": job, **warnings}), headers)


class JobBatch(PushView):
    """`POST /jobs/batch`: all or none."""

    operation = "push_batch"

    def post(self, request: Request) -> Response:
        documents = self.payload(limit=ojs_settings.MAX_BATCH_BYTES).get("jobs")
        if not isinstance(documents, list) or not documents:
            raise fields.fault("jobs", "must be an array of at least one job", documents)
        check_size(len(documents))
        access.check_documents(request, documents)
        return self.answer(lambda using: self._push(documents, using))

    def _push(self, documents: list[Any], using: str) -> Answer:
        try:
            pushed = push(documents, using=using, patience=admission.patience(self.request))
        except OJSError as error:
            _name_culprit(error, documents)
            raise
        return Answer(201, media.to_text(_batch(pushed)), admission.headers(pushed))


class JobDetail(OJSView):
    """`GET /jobs/{id}`: INFO. `DELETE /jobs/{id}`: CANCEL. `PATCH /jobs/{id}`: its priority."""

    scopes = {"GET": "read", "DELETE": "admin", "PATCH": "admin"}
    rights = {"DELETE": "change_job", "PATCH": "change_job"}

    def get(self, request: Request, job_id: str) -> Response:
        row = info(fields.path_id(job_id))
        access.check_row(request, row)
        wait = {} if row["state"] in states.TERMINAL else {"Retry-After": "1"}  # jobs 8
        return Response({"job": shown.job(row)}, headers=wait)

    @audited("job.cancel")
    def delete(self, request: Request, job_id: str) -> Response:
        return cancel(request, fields.path_id(job_id))

    @audited("job.prioritise")
    def patch(self, request: Request, job_id: str) -> Response:
        return priority.change(request, job_id, self.payload())


class JobCancel(OJSView):
    """`POST /jobs/{id}/cancel`: CANCEL for clients that send no DELETE; the body may give a `reason`."""

    scopes = {"POST": "admin"}
    rights = {"POST": "change_job"}

    @audited("job.cancel")
    def post(self, request: Request, job_id: str) -> Response:
        reason = fields.text(self.payload(required=False), "reason", maximum=1000)
        return cancel(request, fields.path_id(job_id), reason or "")


class JobActivate(OJSView):
    """`POST /jobs/{id}/activate`: who may push a job may also release one that was staged."""

    scopes = {"POST": "push"}

    def post(self, request: Request, job_id: str) -> Response:
        self.payload(required=False)
        identifier = fields.path_id(job_id)
        access.check_jobs(request, [identifier])
        row = activate_one(identifier)
        return Response({"job": shown.job(row) | {"previous_state": "pending"}})


def cancel(request: Request, job_id: uuid.UUID, reason: str = "") -> Response:
    """Cancel a job; one that was cancelled before is answered as it is, or with 409 in the published dialect."""
    access.check_jobs(request, [job_id])
    done = cancel_one(job_id, cancelled_by=principal(request), reason=reason)
    if not done.changed and ojs_settings.DIALECT == "published":
        raise refuse(done.row, Verb.CANCEL, State.CANCELLED)
    return Response({"job": shown.job(done.row) | {"previous_state": done.previous_state}})


def check_size(count: int, field: str = "jobs") -> None:
    """Raise BatchSizeExceeded for more items than are taken at once."""
    limit = ojs_settings.MAX_BATCH_SIZE
    if count > limit:
        details = {"actual": count, "max_batch_size": limit, "field": field}
        raise BatchSizeExceeded(
            f"The request has {count} {field}; at most {limit} are taken at once.",
            details=details,
            extra={"max_batch_size": limit},
            headers={"X-OJS-Max-Batch-Size": str(limit), "X-OJS-Batch-Size": str(count)},
        )


def _name_culprit(error: OJSError, documents: list[Any]) -> None:
    """Say in details and message which job of the batch is at fault; a batch of one is a batch all the same."""
    index = error.details.get("index", 0 if len(documents) == 1 else None)
    if index is None and (job_id := error.details.get("job_id")):
        ids = [document.get("id") if isinstance(document, dict) else None for document in documents]
        index = max((i for i, given in enumerate(ids) if given == job_id), default=None)
    if index is not None:
        error.details["index"] = index
        if f"[{index}]" not in error.message:
            error.message = f"jobs[{index}]: {error.message}"


def _batch(pushed: list[Pushed]) -> dict[str, Any]:
    jobs = [_in_batch(item, item.row) for item in pushed if item.row is not None]
    dropped = [index for index, item in enumerate(pushed) if item.row is None]
    warnings = [{"index": i, **warning} for i, item in enumerate(pushed) for warning in item.warnings]
    more = ({"dropped": dropped} if dropped else {}) | ({"warnings": warnings} if warnings else {})
    return {"jobs": jobs, "count": len(jobs)} | more


def _in_batch(item: Pushed, row: JobRow) -> dict[str, Any]:
    return shown.job(row) | {"deduplicated": True} if item.status == "duplicate" else envelope.render(row)
