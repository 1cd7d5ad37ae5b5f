"""Jobs: PUSH, INFO, CANCEL and the other calls about jobs, for callers and for operators (binding 2.3, admin 1.3)."""

from __future__ import annotations

import datetime as dt
import re
import time
import uuid
from collections.abc import Iterable
from typing import Any

from django.db import router
from django.utils.encoding import iri_to_uri
from django.utils.http import http_date
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response

from django_ojs import jsontext, states
from django_ojs.conf import ojs_settings
from django_ojs.database import database
from django_ojs.errors import BatchSizeExceeded, InvalidRequest, OJSError, WaitTimeout
from django_ojs.http import fields, media, permissions, query, ratelimits, shown
from django_ojs.http import jobserializers as serializers
from django_ojs.http.auditing import audited
from django_ojs.http.base import OJSViewSet
from django_ojs.http.filters import JobFilter
from django_ojs.http.idempotency import Idempotent
from django_ojs.http.joblists import JobFilterBackend, JobPagination
from django_ojs.http.openapi import documented
from django_ojs.http.permissions import principal
from django_ojs.http.serializers import EnvelopeSerializer, NothingSerializer
from django_ojs.jobs import progress
from django_ojs.jobs.finish import Ack, Failure, ack_one, fail_one, retrieved
from django_ojs.jobs.gathered import push_once, push_one
from django_ojs.jobs.idempotency import Answer
from django_ojs.jobs.push import Pushed, push
from django_ojs.jobs.transitions import only, refuse
from django_ojs.jobs.verbs import activate_one, cancel_one, duplicate, info, prioritise, retry_failed, run_now
from django_ojs.models import Job
from django_ojs.models.job import JobRow
from django_ojs.queues.bounds import MAX_PATIENCE
from django_ojs.rules import envelope, names
from django_ojs.rules.faults import fault, shorten
from django_ojs.states import State, Verb

#: What a batch pushes: any JSON, until PUSH has read it. (`list` is an action below.)
Documents = list[Any]
DEFAULT_WAIT, MAX_WAIT = 30, 60  #: seconds that a request waits for a result
_SECONDS = re.compile(r"[0-9]{1,6}(?:\.[0-9]{1,3})?")


class JobViewSet(Idempotent, OJSViewSet):
    """`/jobs`, and `/admin/jobs` for operators, who see a job flat where the other door wraps it in `job`.

    PUSH, ACK and FAIL answer with the envelope as it is stored, and ask no serializer.
    """

    lookup_url_kwarg = "job_id"
    model_name = "job"
    gathered = ("create", "ack", "nack")
    serializer_class = serializers.JobSerializer
    operator_serializer_class = serializers.JobDetailSerializer
    action_serializers = {
        "list": serializers.JobLineSerializer,
        "batch": serializers.JobBatchAnswerSerializer,
        "retries": serializers.RetriesSerializer,
        "result": serializers.ResultSerializer,
        "results": serializers.ResultsSerializer,
        "progress": serializers.ProgressSerializer,
        "report_progress": serializers.ProgressSerializer,
        "ack": serializers.AckAnswerSerializer,
        "nack": serializers.NackAnswerSerializer,
    }
    body_serializers = {
        "create": EnvelopeSerializer,
        "batch": serializers.JobBatchSerializer,
        "ack": serializers.AckOfPathSerializer,
        "nack": serializers.NackOfPathSerializer,
        **dict.fromkeys(("activate", "run", "duplicate"), NothingSerializer),
        "partial_update": serializers.PrioritySerializer,
        "cancel": serializers.ReasonSerializer,
        "retry": serializers.RetrySerializer,
        "report_progress": serializers.ProgressReportSerializer,
        "results": serializers.JobIdsSerializer,
    }
    filter_backends = (JobFilterBackend,)
    filterset_class: Any = JobFilter
    pagination_class = JobPagination
    list_names = ("items", "jobs")
    action_scopes = {
        "list": "read", "retrieve": "read", "retries": "read", "result": "read", "results": "read", "progress": "read",
        "create": "push", "batch": "push", "activate": "push",
        "ack": "work", "nack": "work", "report_progress": "work",
    }  # fmt: skip
    action_rights = dict.fromkeys(
        ("partial_update", "destroy", "cancel", "retry", "run", "activate"), "change_job"
    ) | {"duplicate": "add_job"}  # fmt: skip
    public_only = ("create", "batch", "results", "destroy", "retries", "result", "ack", "nack", "progress",
                   "report_progress")  # fmt: skip
    operator_only = ("retry", "run", "duplicate")
    operations = {"create": "push", "batch": "push_batch"}

    def get_queryset(self) -> Any:
        return Job.objects.using(router.db_for_write(Job))

    def get_object(self) -> Any:
        """The row of the job in the path, if the caller may touch it."""
        row = info(fields.path_id(self.kwargs["job_id"]))
        permissions.check_row(self.request, row)
        self.check_object_permissions(self.request, row)
        return row

    def check_job(self, job_id: uuid.UUID) -> None:
        """Raise PermissionDenied for a job that the caller may not touch. Only a site's own permission classes make
        us read the job for that."""
        if self.permission_classes == OJSViewSet.permission_classes:
            permissions.check_jobs(self.request, [job_id])
        else:
            self.get_object()

    def list(self, request: Request) -> Response:
        """The jobs that fit a filter."""
        return self.listed(self.get_queryset())

    @documented(
        public=serializers.JobAnswerSerializer,
        answers={200: (serializers.JobAnswerSerializer, serializers.JobDroppedSerializer)},
    )
    def create(self, request: Request) -> Response:
        """Enqueue a job."""
        document = self.payload(field="envelope")
        permissions.check_documents(request, [document])
        seconds = patience(request)  # without a key: one is not held for so long
        return self.answer(
            lambda using: self._pushed(push_one(document, using=using, patience=seconds)),
            once=lambda operation, using: push_once(document, operation, self._pushed, using=using),
        )

    @documented(public=serializers.JobAnswerSerializer)
    def retrieve(self, request: Request, job_id: str) -> Response:
        """A job."""
        row = self.get_object()
        wait = {} if self.operator or row["state"] in states.TERMINAL else {"Retry-After": "1"}  # jobs 8
        return self.shown(row, headers=wait)

    @documented(public=serializers.JobPrioritisedSerializer)
    @audited("job.prioritise")
    def partial_update(self, request: Request, job_id: str) -> Response:
        """Change the priority of a waiting job."""
        body, identifier = self.payload(), fields.path_id(job_id)
        priority = self.validated(body)["priority"]
        self.check_job(identifier)
        done = prioritise(identifier, priority, by=principal(request))
        return self.shown(done.row, previous_priority=done.previous)

    @documented(200, public=serializers.JobAnswerSerializer)
    @audited("job.cancel")
    def destroy(self, request: Request, job_id: str) -> Response:
        """Cancel a job."""
        return self._cancel(fields.path_id(job_id))

    @documented(public=serializers.JobAnswerSerializer)
    @action(detail=True, methods=["post"])
    @audited("job.cancel")
    def cancel(self, request: Request, job_id: str) -> Response:
        """Cancel a job, with a reason.

        For clients that send no DELETE, too.
        """
        reason = self.validated(self.payload(required=False)).get("reason")
        return self._cancel(fields.path_id(job_id), reason or "")

    @documented(public=serializers.JobAnswerSerializer)
    @action(detail=True, methods=["post"])
    @audited("job.activate", operator_only=True)
    def activate(self, request: Request, job_id: str) -> Response:
        """Release a pending job.

        A caller who may push one may release it too.
        """
        self.payload(required=False)
        identifier = fields.path_id(job_id)
        self.check_job(identifier)
        return self.shown(activate_one(identifier), previous_state="pending")

    @action(detail=True, methods=["post"])
    @audited("job.retry")
    def retry(self, request: Request, job_id: str) -> Response:
        """Run a failed job again.

        A discarded job begins anew, a retryable one waits no longer. Only `/admin/dead-letter` changes the job.
        """
        reason = self.validated(self.payload(required=False))["reason"]
        self.act.detail |= {"reason": reason} if reason else {}
        row = self.get_object()
        return self.shown(only(retry_failed([row["id"]], database(None))), previous_state=row["state"])

    @action(detail=True, methods=["post"])
    @audited("job.run")
    def run(self, request: Request, job_id: str) -> Response:
        """Let a waiting job run now.

        A scheduled or retryable one waits no longer.
        """
        self.payload(required=False)
        row = self.get_object()
        return self.shown(only(run_now([row["id"]])), previous_state=row["state"])

    @documented(201)
    @action(detail=True, methods=["post"])
    @audited("job.copy")
    def duplicate(self, request: Request, job_id: str) -> Response:
        """Enqueue a copy of a job.

        A new one from what the client of this one sent; 201 with the new one.
        """
        self.payload(required=False)
        made = duplicate(self.get_object()["id"])
        self.act.detail["copy"] = str(made["id"])
        return self.shown(made, 201, copy_of=job_id)

    @action(detail=True, methods=["get"])
    def retries(self, request: Request, job_id: str) -> Response:
        """The attempts of a job that failed."""
        return Response(self.represent(self.get_object()))

    @documented(200, 202, query="wait timeout", errors=(408, 410))
    @action(detail=True, methods=["get"])
    def result(self, request: Request, job_id: str) -> Response:
        """The result of a job; may wait for it.

        `?wait=true&timeout=30`: the timeout in seconds, cut to 60, because it holds a thread.
        """
        identifier = fields.path_id(job_id)
        timeout = query.integer(request, "timeout", minimum=0)
        wait = query.flag(request, "wait")
        row = self.get_object()
        if row["state"] not in states.TERMINAL and wait:
            row = _ended(identifier, timeout)
        if row["state"] not in states.TERMINAL:
            body = {"job_id": str(identifier), "state": row["state"], "result": None}
            return Response(body, status=202, headers={"Retry-After": "1"})
        found = shown.outcome(row)
        retrieved([row])
        return Response({"job_id": str(identifier), **found})

    @action(detail=True, methods=["get"], cache_control="no-cache")  # as the binding asks for at this path
    def progress(self, request: Request, job_id: str) -> Response:
        """The progress of a job."""
        row = self.get_object()
        found = progress.of([row], router.db_for_write(Job)).get(row["id"])
        body = shown.progress(row, found)
        headers = {} if body["progress"] is None else {"X-OJS-Progress": f"{body['progress']:g}"}
        if found is not None:
            headers["Last-Modified"] = http_date(found.updated_at.astimezone(dt.UTC).timestamp())
        return Response(body, headers=headers)

    @progress.mapping.put
    def report_progress(self, request: Request, job_id: str) -> Response:
        """Report the progress of a job."""
        return report_progress(self, fields.path_id(job_id), self.payload())

    @action(detail=True, methods=["post"], conflict_code="invalid_state_transition")
    def ack(self, request: Request, job_id: str) -> Response:
        """Complete a job.

        The body may be empty.
        """
        return acknowledge(request, fields.path_id(job_id), self.payload(required=False))

    @action(detail=True, methods=["post"], conflict_code="invalid_state_transition", aliases=("fail",))
    def nack(self, request: Request, job_id: str) -> Response:
        """Report that a job failed."""
        return fail(request, fields.path_id(job_id), self.payload())

    @documented(201)
    @action(detail=False, methods=["post"])
    def batch(self, request: Request) -> Response:
        """Enqueue jobs, all or none."""
        documents = self.payload(limit=ojs_settings.MAX_BATCH_BYTES).get("jobs")
        if not isinstance(documents, list) or not documents:
            raise fault("jobs", "must be an array of at least one job", documents)
        check_size(len(documents))
        permissions.check_documents(request, documents)
        return self.answer(lambda using: self._push_batch(documents, using))

    @action(detail=False, methods=["post"])
    def results(self, request: Request) -> Response:
        """The results of several jobs.

        Null for an unknown one, and no result for one that has not ended.
        """
        ids = self.validated(self.payload())["ids"]
        check_size(len(ids), "ids")
        known = {item: uuid.UUID(item.lower()) for item in ids if names.is_job_id(item.lower())}
        permissions.check_jobs(request, set(known.values()))
        rows = {row["id"]: row for row in self.get_queryset().filter(pk__in=list(known.values())).rows()}
        retrieved(list(rows.values()))
        return Response({"results": {item: shown.brief(rows.get(known.get(item))) for item in ids}})

    def shown(
        self, row: JobRow, status: int = 200, headers: dict[str, str] | None = None, **more: Any
    ) -> Response:  # fmt: skip
        """The answer about one job, as this door has it; `more` is what the call adds."""
        job = self.represent(row)
        if self.operator:
            return Response(job | more, status=status, headers=headers)
        beside = {name: value for name, value in more.items() if name in serializers.OWN}
        inside = {name: value for name, value in more.items() if name not in serializers.OWN}
        return Response(serializers.answer(job | inside, **beside), status=status, headers=headers)

    def _cancel(self, job_id: uuid.UUID, reason: str = "") -> Response:
        """Cancel a job; one that was cancelled before is answered as it is, or with 409 in the published dialect."""
        self.check_job(job_id)
        done = cancel_one(job_id, cancelled_by=principal(self.request), reason=reason)
        if not done.changed and not self.operator and ojs_settings.DIALECT == "published":
            raise refuse(done.row, Verb.CANCEL, State.CANCELLED)
        return self.shown(done.row, previous_state=done.previous_state)

    def _pushed(self, pushed: Pushed) -> Answer:
        if pushed.row is None:
            return Answer(200, '{"job":null,"dropped":true}', {})
        warnings = {"warnings": list(pushed.warnings)} if pushed.warnings else {}
        if pushed.status == "duplicate":  # the job of another caller
            return Answer(200, serializers.answer_text(shown.job(pushed.row), deduplicated=True, **warnings), {})
        job = envelope.render(pushed.row)
        headers = {"Location": f"{iri_to_uri(self.request.path)}/{job['id']}"} | pressure([pushed])
        headers |= ratelimits.headers(pushed.row)
        return Answer(201, serializers.answer_text(job, **warnings), headers)

    def _push_batch(self, documents: Documents, using: str) -> Answer:
        try:
            pushed = push(documents, using=using, patience=patience(self.request))
        except OJSError as error:
            _name_culprit(error, documents)
            raise
        return Answer(201, media.to_text(_batch(pushed)), pressure(pushed))


def acknowledge(request: Request, job_id: uuid.UUID, body: dict[str, Any]) -> Response:
    """ACK, for the worker that holds the job."""
    permissions.check_jobs(request, [job_id])
    result = jsontext.dumps(body["result"]) if "result" in body else None  # an explicit null is a value
    claim = Ack(job_id, result, fields.claimant(body), fields.integer(body, "attempt", minimum=1))
    return Response(serializers.acknowledged(ack_one(claim)))


def fail(request: Request, job_id: uuid.UUID, body: dict[str, Any]) -> Response:
    """FAIL, for the worker that holds the job."""
    permissions.check_jobs(request, [job_id])
    failure = Failure(
        job_id,
        error=body.get("error"),
        worker_id=fields.claimant(body),
        attempt=fields.integer(body, "attempt", minimum=1),
        requeue=fields.flag(body, "requeue"),
    )
    return Response(serializers.failed(fail_one(failure)))


def report_progress(view: OJSViewSet, job_id: uuid.UUID, body: dict[str, Any]) -> Response:
    """Report, and answer with what is known now: also where the report came too late and was ignored."""
    permissions.check_jobs(view.request, [job_id])
    (known,) = progress.report([progress.Report(job_id, **view.validated(body))])
    if isinstance(known, OJSError):
        raise known
    return Response(shown.progress(known.row, known.progress))


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


def patience(request: Request) -> float:
    """Seconds that a push waits for room in a bounded queue (jobs 6): `OJS-Block-Timeout`, 0 without it, at most
    `MAX_PATIENCE`. Raises InvalidRequest."""
    given = request.META.get("HTTP_OJS_BLOCK_TIMEOUT")
    if given is None:
        return 0.0
    if not _SECONDS.fullmatch(given := given.strip()):
        details = {"field": "OJS-Block-Timeout", "expected": "seconds", "received": shorten(given)}
        raise InvalidRequest("OJS-Block-Timeout must be a number of seconds, such as 5.", details=details)
    return min(float(given), MAX_PATIENCE)


def pressure(pushed: Iterable[object]) -> dict[str, str]:
    """The headers that warn of the fullest of the queues, if one of them is nearly full (jobs 6)."""
    found = [item.pressure for item in pushed if isinstance(item, Pushed) and item.pressure]
    if not found:
        return {}
    worst = max(found, key=lambda pressure: (pressure.share, pressure.depth))
    return {
        "X-OJS-Queue-Depth": str(worst.depth),
        "X-OJS-Queue-Bound": str(worst.bound),
        "X-OJS-Queue-Pressure": f"{worst.share:.2f}",
    }


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


def _ended(job_id: uuid.UUID, timeout: int | None) -> JobRow:
    """The job once it has ended, at most `timeout` seconds from now (`DEFAULT_WAIT`, cut to `MAX_WAIT`).

    Raises WaitTimeout.
    """
    seconds = min(DEFAULT_WAIT if timeout is None else timeout, MAX_WAIT)
    deadline = time.monotonic() + seconds
    pause = 0.02
    while True:
        row = info(job_id)
        left = deadline - time.monotonic()
        if row["state"] in states.TERMINAL:
            return row
        if left <= 0:
            details = {"job_id": str(job_id), "state": row["state"], "waited_seconds": seconds}
            raise WaitTimeout(f"Job '{job_id}' is still {row['state']} after {seconds} seconds.", details=details)
        time.sleep(min(pause, left))
        pause = min(pause * 1.5, 0.5)
