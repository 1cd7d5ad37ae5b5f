"""Jobs: PUSH, INFO, CANCEL and the other calls about jobs, for callers and for operators (binding 2.3, admin 1.3)."""

from __future__ import annotations

import contextlib
import datetime as dt
import re
import uuid
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

from django.db import router
from django.utils.http import http_date
from rest_framework.request import Request
from rest_framework.response import Response

from django_ojs import jsontext, spellings, states
from django_ojs.conf import ojs_settings
from django_ojs.database import database
from django_ojs.errors import InvalidRequest, OJSError, WaitTimeout
from django_ojs.http import fields, links, media, permissions, query, ratelimits, redacted, waits
from django_ojs.http import jobserializers as serializers
from django_ojs.http.base import OJSViewSet
from django_ojs.http.body import check_size, single_limit
from django_ojs.http.checkpoints import JobCheckpoints, body_limit
from django_ojs.http.idempotency import Idempotent
from django_ojs.http.joblists import JobFilterBackend, JobPagination
from django_ojs.http.operation import operation
from django_ojs.http.parameters import PRESSURE, RATE
from django_ojs.http.permissions import principal
from django_ojs.http.serializers import EnvelopeSerializer, NothingSerializer, shared
from django_ojs.jobs import joblog, progress
from django_ojs.jobs.cancel import cancel_one
from django_ojs.jobs.candidates import Pushed
from django_ojs.jobs.copy import duplicate
from django_ojs.jobs.finish import Ack, Failure, ack_one, fail_one, retrieved
from django_ojs.jobs.idempotency import Answer
from django_ojs.jobs.priority import prioritise
from django_ojs.jobs.promote import activate_one, run_now
from django_ojs.jobs.push import push
from django_ojs.jobs.push_group import push_once, push_one
from django_ojs.jobs.read import info
from django_ojs.jobs.retry import restart_from, retry_failed
from django_ojs.jobs.selection import JobFilter
from django_ojs.lifecycle.transitions import only, refuse
from django_ojs.models import Job, JobLog
from django_ojs.models.fields import RawJSON
from django_ojs.models.job import JobRow
from django_ojs.queues.bounds import MAX_PATIENCE
from django_ojs.rules import envelope, joblogs, redaction
from django_ojs.rules.durations import format_instant
from django_ojs.rules.faults import checked, fault, query_fault, shorten
from django_ojs.rules.ids import parse_id
from django_ojs.states import State, Verb

#: What a batch pushes: any JSON, until PUSH has read it. (`list` is an action below.)
Documents = list[Any]
LOG_LEVELS = "|".join(joblogs.LEVELS)
LOG_LINES, MAX_LOG_LINES = 200, 1000  #: lines of logs on a page
DEFAULT_WAIT, MAX_WAIT = 30, 60  #: seconds that a request waits for a result
_SECONDS = re.compile(r"[0-9]{1,6}(?:\.[0-9]{1,3})?")


class JobViewSet(Idempotent, JobCheckpoints):
    """`/jobs`, and `/admin/jobs` for operators, who see a job flat where the other door wraps it in `job`.

    PUSH, ACK and FAIL answer with the envelope as it is stored.
    """

    lookup_url_kwarg = "job_id"
    model_name = "job"
    serializer_class = serializers.JobSerializer
    operator_serializer_class = serializers.JobDetailSerializer
    filter_backends = (JobFilterBackend,)
    filterset_class: Any = JobFilter
    pagination_class = JobPagination
    list_names = ("items", "jobs")

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

    @operation(scope="read", answer=serializers.JobLineSerializer)
    def list(self, request: Request) -> Response:
        """The jobs that fit a filter."""
        return self.listed(self.get_queryset())

    @operation(
        scope="push",
        doors="public",
        body=EnvelopeSerializer,
        public_answer=serializers.JobAnswerSerializer,
        answers={200: (serializers.JobAnswerSerializer, serializers.JobDroppedSerializer)},
        name="push",
        grouped=True,
        errors=(409, 429),
        headers=f"Location Idempotency-Replayed {PRESSURE} {RATE}",
    )
    def create(self, request: Request) -> Response:
        """Enqueue a job."""
        document = self.payload(field="envelope")
        permissions.check_documents(request, [document])
        limits, seconds, keyed = permissions.limits(request), block_timeout(request), self.keyed_request()
        with waits.counted(request) if seconds else contextlib.nullcontext():
            if keyed is not None:  # which is not held for so long as a push may wait for room
                return self.answer_once(lambda: push_once(document, keyed, self._pushed, limits=limits))
            return self.answered(self._pushed(push_one(document, patience=seconds, limits=limits)))

    @operation(scope="read", public_answer=serializers.JobAnswerSerializer, headers="Retry-After")
    def retrieve(self, request: Request, job_id: str) -> Response:
        """A job."""
        row = self.get_object()
        wait = {} if self.operator or row["state"] in states.TERMINAL else {"Retry-After": "1"}  # jobs 8
        return self.respond(row, headers=wait)

    @operation(
        right="change_job",
        body=serializers.PrioritySerializer,
        public_answer=serializers.JobAnswerSerializer,
        audit="job.prioritise",
        errors=(409,),
    )
    def partial_update(self, request: Request, job_id: str) -> Response:
        """Change the priority of a waiting job."""
        body, identifier = self.payload(), fields.path_id(job_id)
        priority = self.validated(body)["priority"]
        self.check_job(identifier)
        done = prioritise(identifier, priority, by=principal(request))
        return self.respond(done.row, previous_priority=done.previous)

    @operation(
        right="change_job",
        doors="public",
        public_answer=serializers.JobAnswerSerializer,
        statuses=(200,),
        audit="job.cancel",
        errors=(409,),
    )
    def destroy(self, request: Request, job_id: str) -> Response:
        """Cancel a job."""
        return self._cancel(fields.path_id(job_id))

    @operation(
        detail=True,
        methods=["post"],
        right="change_job",
        body=serializers.ReasonSerializer,
        public_answer=serializers.JobAnswerSerializer,
        audit="job.cancel",
        errors=(409,),
    )
    def cancel(self, request: Request, job_id: str) -> Response:
        """Cancel a job, with a reason.

        For clients that send no DELETE, too.
        """
        reason = self.validated(self.payload(required=False)).get("reason")
        return self._cancel(fields.path_id(job_id), reason or "")

    @operation(
        detail=True,
        methods=["post"],
        scope="push",
        right="change_job",
        body=NothingSerializer,
        public_answer=serializers.JobAnswerSerializer,
        audit="job.activate",
        audit_doors="operator",
        errors=(409,),
    )
    def activate(self, request: Request, job_id: str) -> Response:
        """Release a pending job.

        A caller who may push one may release it too.
        """
        self.payload(required=False)
        identifier = fields.path_id(job_id)
        self.check_job(identifier)
        return self.respond(activate_one(identifier), previous_state="pending")

    @operation(
        detail=True,
        methods=["post"],
        right="change_job",
        doors="operator",
        body=serializers.RetrySerializer,
        audit="job.retry",
        errors=(409,),
    )
    def retry(self, request: Request, job_id: str) -> Response:
        """Run a failed job again.

        A discarded job begins anew, a retryable one waits no longer. To change a job as it is retried, use
        `/admin/dead-letter`. A durable job goes on with its recorded steps: all of them, none of them with
        `clear_checkpoint`, or those before the step `from_step`.
        """
        body = self.validated(self.payload(required=False))
        self.act.detail |= {name: body[name] for name in ("reason", "clear_checkpoint", "from_step") if body[name]}
        row, limits = self.get_object(), permissions.limits(request)
        if body["from_step"]:
            done = restart_from(row["id"], body["from_step"], limits=limits)
        else:
            anew = body["clear_checkpoint"]
            done = only(retry_failed([row["id"]], database(None), clear_checkpoint=anew, limits=limits))
        return self.respond(done, previous_state=row["state"])

    @operation(
        detail=True,
        methods=["post"],
        right="change_job",
        doors="operator",
        body=NothingSerializer,
        audit="job.run",
        errors=(409,),
    )
    def run(self, request: Request, job_id: str) -> Response:
        """Let a waiting job run now.

        A scheduled or retryable one waits no longer.
        """
        self.payload(required=False)
        row = self.get_object()
        return self.respond(only(run_now([row["id"]])), previous_state=row["state"])

    @operation(
        detail=True,
        methods=["post"],
        right="add_job",
        doors="operator",
        body=NothingSerializer,
        statuses=(201,),
        audit="job.copy",
        errors=(409, 429),
        headers="Location",
    )
    def duplicate(self, request: Request, job_id: str) -> Response:
        """Enqueue a copy of a job.

        A new one from what the client of this one sent; 201 with the new one.
        """
        self.payload(required=False)
        made = duplicate(self.get_object()["id"], limits=permissions.limits(request))
        self.act.detail["copy"] = str(made["id"])
        location = links.to(request, "admin-job", made["id"])
        return self.respond(made, 201, {"Location": location}, copy_of=job_id)

    @operation(detail=True, methods=["get"], scope="read", doors="public", answer=serializers.RetriesSerializer)
    def retries(self, request: Request, job_id: str) -> Response:
        """The attempts of a job that failed."""
        return Response(self.represent(self.get_object()))

    @operation(
        detail=True,
        methods=["get"],
        scope="read",
        doors="public",
        answer=serializers.ResultSerializer,
        statuses=(200, 202),
        query="wait timeout",
        errors=(408, 410),
        headers="Retry-After",
    )
    def result(self, request: Request, job_id: str) -> Response:
        """The result of a job; may wait for it.

        `?wait=true&timeout=30`: the timeout in seconds, cut to 60.
        """
        identifier = fields.path_id(job_id)
        timeout = query.integer(request, "timeout", minimum=0)
        wait = query.flag(request, "wait")
        row = self.get_object()
        if row["state"] not in states.TERMINAL and wait:
            row = _wait_for_end(request, row, timeout)
        if row["state"] not in states.TERMINAL:
            body = self.represent({"job_id": identifier, "state": row["state"], "result": None})
            return Response(body, status=202, headers={"Retry-After": "1"})
        found = redacted.outcome(row)
        retrieved([row])
        return Response(self.represent({"job_id": identifier, **found}))

    @operation(
        detail=True,
        methods=["get"],
        cache_control="no-cache",
        scope="read",
        doors="public",
        answer=serializers.ProgressSerializer,
        headers="Last-Modified X-OJS-Progress",
    )
    def progress(self, request: Request, job_id: str) -> Response:
        """The progress of a job."""
        row = self.get_object()
        found = progress.of([row], router.db_for_write(Job)).get(row["id"])
        body = self.represent(redacted.progress(row, found))
        headers = {} if body["progress"] is None else {"X-OJS-Progress": f"{body['progress']:g}"}
        if found is not None:
            headers["Last-Modified"] = http_date(found.updated_at.astimezone(dt.UTC).timestamp())
        return Response(body, headers=headers)

    @operation(
        at=progress,
        methods=["put"],
        scope="work",
        doors="public",
        body=serializers.ProgressReportSerializer,
        answer=serializers.ProgressSerializer,
    )
    def report_progress(self, request: Request, job_id: str) -> Response:
        """Report the progress of a job."""
        return report_progress(self, fields.path_id(job_id), report_payload(self))

    @operation(
        detail=True,
        methods=["get"],
        scope="read",
        doors="public",
        answer=serializers.LogsSerializer,
        query=f"attempt level={LOG_LEVELS} text after limit format=json|text",
        text="text/plain",
        headers="Content-Disposition",
    )
    def logs(self, request: Request, job_id: str) -> Response:
        """What the handler of a job has logged.

        Oldest first. `?format=text` answers with all lines as text.
        """
        row, wanted = self.get_object(), wanted_logs(request)
        mask = redacted.mask_of_logs(row)
        if (form := query.text(request, "format") or "json") == "text":
            self._text_type = "text/plain; charset=utf-8"
            name = f'attachment; filename="job-{row["id"]}.log"'
            return Response(RawJSON(log_file(row, mask, **wanted(mask))), headers={"Content-Disposition": name})
        if form != "json":
            raise query_fault("format", "must be json or text", form)
        limit = min(query.integer(request, "limit", minimum=1) or LOG_LINES, MAX_LOG_LINES)
        asked = {"limit": limit, "using": router.db_for_write(Job), **wanted(mask)}
        cursor = query.cursor(request)
        with cursor.named():
            page = joblog.read(row["id"], after=cursor.after, **asked)
        lines = [redacted.log_line(line, mask) for line in page.lines]
        body = {"job_id": row["id"], "state": row["state"], "attempt": row["attempt"], "items": lines}
        return Response(self.represent({**body, "cursor": page.cursor, "has_more": page.has_more}))

    @operation(
        at=logs,
        methods=["post"],
        scope="work",
        doors="public",
        body=serializers.SentLogsSerializer,
        answer=serializers.TakenLogsSerializer,
        statuses=(200,),
    )
    def send_logs(self, request: Request, job_id: str) -> Response:
        """Store what a handler in another language logs."""
        identifier, body = fields.path_id(job_id), self.payload()
        permissions.check_jobs(request, [identifier])
        given = self.validated(body)
        permissions.check_worker(request, given["worker_id"])
        accepted = joblog.append(identifier, **given)
        return Response(self.represent({"job_id": identifier, "accepted": accepted}))

    @operation(
        detail=True,
        methods=["post"],
        conflict_code="invalid_state_transition",
        scope="work",
        doors="public",
        body=serializers.AckOfPathSerializer,
        answer=serializers.AckAnswerSerializer,
        grouped=True,
        errors=(409,),
    )
    def ack(self, request: Request, job_id: str) -> Response:
        """Complete a job.

        The body may be empty.
        """
        return acknowledge(self, fields.path_id(job_id), self.payload(required=False))

    @operation(
        detail=True,
        methods=["post"],
        conflict_code="invalid_state_transition",
        aliases=("fail",),
        scope="work",
        doors="public",
        body=serializers.NackOfPathSerializer,
        answer=serializers.NackAnswerSerializer,
        grouped=True,
        errors=(409,),
    )
    def nack(self, request: Request, job_id: str) -> Response:
        """Report that a job failed."""
        return fail(self, fields.path_id(job_id), self.payload())

    @operation(
        detail=False,
        methods=["post"],
        scope="push",
        doors="public",
        body=serializers.JobBatchSerializer,
        answer=serializers.JobBatchAnswerSerializer,
        statuses=(201,),
        name="push_batch",
        errors=(409, 429),
        headers=f"Idempotency-Replayed {PRESSURE}",
    )
    def batch(self, request: Request) -> Response:
        """Enqueue jobs, all or none."""
        documents = self.batch_payload("jobs").get("jobs")
        if not isinstance(documents, list) or not documents:
            raise fault("jobs", "must be an array of at least one job", documents)
        check_size(len(documents))
        permissions.check_documents(request, documents)
        return self.answer(lambda using: self._push_batch(documents, using))

    @operation(
        detail=False,
        methods=["post"],
        scope="read",
        doors="public",
        body=serializers.JobIdsSerializer,
        answer=serializers.ResultsSerializer,
    )
    def results(self, request: Request) -> Response:
        """The results of several jobs.

        Null for an unknown one, and no result for one that has not ended.
        """
        ids = self.validated(self.payload(arrays=("ids",)))["ids"]
        check_size(len(ids), "ids")
        known = {item: found for item in ids if (found := parse_id(item.lower())) is not None}
        permissions.check_jobs(request, set(known.values()))
        rows = {row["id"]: row for row in self.get_queryset().filter(pk__in=list(known.values())).rows()}
        retrieved(list(rows.values()))
        results = {item: redacted.brief(rows.get(known.get(item))) for item in ids}
        return Response(self.represent({"results": results}))

    def respond(
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
        return self.respond(done.row, previous_state=done.previous_state)

    def _pushed(self, pushed: Pushed) -> Answer:
        if pushed.row is None:
            dropped = shared(serializers.JobDroppedSerializer).to_representation({"job": None, "dropped": True})
            return Answer(200, media.to_text(dropped), {})
        warnings = {"warnings": list(pushed.warnings)} if pushed.warnings else {}
        if pushed.status == "duplicate":  # the job of another caller
            return Answer(200, serializers.answer_text(redacted.job(pushed.row), deduplicated=True, **warnings), {})
        job = envelope.render(pushed.row)
        headers = {"Location": links.to_new(self.request, self, job["id"])} | pressure([pushed])
        headers |= ratelimits.headers(pushed.row, self.request)
        return Answer(201, serializers.answer_text(job, **warnings), headers)

    def _push_batch(self, documents: Documents, using: str) -> Answer:
        seconds, limits = block_timeout(self.request), permissions.limits(self.request)
        try:
            with waits.counted(self.request) if seconds else contextlib.nullcontext():
                pushed = push(documents, using=using, patience=seconds, limits=limits)
        except OJSError as error:
            _name_culprit(error, documents)
            raise
        return Answer(201, media.to_text(self.quickly(pushed)), pressure(pushed))


def acknowledge(view: OJSViewSet, job_id: uuid.UUID, body: dict[str, Any]) -> Response:
    """ACK, for the worker that holds the job."""
    request = view.request
    permissions.check_jobs(request, [job_id])
    result = jsontext.dumps(body["result"]) if "result" in body else None  # an explicit null is a value
    claim = Ack(job_id, result, _claimant(request, body), fields.integer(body, "attempt", minimum=1))
    return Response(view.quickly(ack_one(claim)))


def _claimant(request: Request, body: dict[str, Any]) -> str:
    """The id under which a worker answers for a job, if the caller may name it."""
    worker_id = fields.claimant(body)
    permissions.check_worker(request, worker_id)
    return worker_id


def fail(view: OJSViewSet, job_id: uuid.UUID, body: dict[str, Any]) -> Response:
    """FAIL, for the worker that holds the job."""
    request = view.request
    permissions.check_jobs(request, [job_id])
    failure = Failure(
        job_id,
        error=body.get("error"),
        worker_id=_claimant(request, body),
        attempt=fields.integer(body, "attempt", minimum=1),
        requeue=fields.flag(body, "requeue"),
        limits=permissions.limits(request),
    )
    return Response(view.quickly(fail_one(failure)))


def report_payload(view: OJSViewSet) -> dict[str, Any]:
    """The body of a report, which may have a checkpoint in it."""
    return view.payload(limit=max(single_limit(), body_limit()))


def report_progress(view: OJSViewSet, job_id: uuid.UUID, body: dict[str, Any]) -> Response:
    """Report, and answer with what is known now: also where the report came too late and was ignored."""
    permissions.check_jobs(view.request, [job_id])
    given = view.validated(body)
    permissions.check_worker(view.request, given.get("worker_id") or "")
    (known,) = progress.report([progress.ProgressReport(job_id, **given)])
    if isinstance(known, OJSError):
        raise known
    return Response(view.represent(redacted.progress(known.row, known.progress)))


#: Given what may be shown of a job's lines, the members of `joblog.read` that say which are wanted.
WantedLogs: TypeAlias = Callable[[redaction.Logs], dict[str, Any]]


def wanted_logs(request: Request) -> WantedLogs:
    """Which lines the query asks for. A text is looked for in what is shown, or what is hidden could be guessed."""
    found, text = wanted_lines(request), query.text(request, "text").lower()

    def wanted(mask: redaction.Logs) -> dict[str, Any]:
        shows = (lambda line: has_text(line, mask, text)) if text else None
        return {**found, "shows": shows}

    return wanted


def wanted_lines(request: Request) -> dict[str, Any]:
    """The attempt and the lowest level that the query asks for."""
    attempt, word = query.integer(request, "attempt", minimum=1), query.text(request, "level")
    level = checked(spellings.read_log_level, word, "level", query_fault) if word else 0
    return {"attempt": attempt and min(attempt, fields.MAX_INTEGER), "level": level}


def has_text(line: JobLog, mask: redaction.Logs, text: str) -> bool:
    """Whether a line, as it is shown, has a text in small letters."""
    shown = redacted.log_line(line, mask)
    return any(text in str(shown.get(name, "")).lower() for name in ("message", "fields", "exception", "logger"))


def log_file(row: JobRow, mask: redaction.Logs, **wanted: Any) -> str:
    """The lines of a job as text; a heading for each attempt."""
    parts, attempt, after = [], None, None
    while True:
        page = joblog.read(row["id"], after=after, using=router.db_for_write(Job), **wanted)
        for line in page.lines:
            if line.started_at != attempt:
                attempt = line.started_at
                parts.append(f"--- attempt {line.attempt}, started at {format_instant(attempt)}")
            parts.append(redacted.log_text(redacted.log_line(line, mask)))
        after = page.cursor
        if not page.has_more:
            return "\n".join([*parts, ""]) if parts else ""


def block_timeout(request: Request) -> float:
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


def _wait_for_end(request: Request, row: JobRow, timeout: int | None) -> JobRow:
    """Wait until the job has ended, at most `timeout` seconds (`DEFAULT_WAIT`, cut to `MAX_WAIT`), and return its row;
    the row as it is, where the server waits and has the request carried out again.

    Raises WaitTimeout, and RateLimited for a client with too many requests that wait.
    """
    job_id, seconds = row["id"], min(DEFAULT_WAIT if timeout is None else timeout, MAX_WAIT)
    if not waits.wait_for_end(request, job_id, seconds, router.db_for_write(Job)):
        return row
    row = info(job_id)
    permissions.check_row(request, row)  # it may have come to another queue
    if row["state"] not in states.TERMINAL:
        details = {"job_id": str(job_id), "state": row["state"], "waited_seconds": seconds}
        raise WaitTimeout(f"Job '{job_id}' is still {row['state']} after {seconds} seconds.", details=details)
    return row
