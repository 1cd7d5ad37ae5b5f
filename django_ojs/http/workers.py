"""Workers: FETCH, ACK, FAIL, BEAT, coming and going, and what operators do with workers (binding 2.4, orchestration 3).

A key that is limited to queues sees the workers that serve one of them, and of their jobs its own. It directs none: a
worker serves all that use its queues.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import math
import uuid
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from django.db import router
from django.db.models import Count, Q, QuerySet
from django.db.models.functions import Coalesce
from django.utils.functional import cached_property
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from django_ojs import clock, jsontext, spellings
from django_ojs.conf import ojs_settings
from django_ojs.errors import Conflict, InvalidRequest, NotFound
from django_ojs.http import compat, fields, jobs, permissions, testhooks
from django_ojs.http.base import OJSViewSet
from django_ojs.http.jobserializers import (
    AckAnswerSerializer,
    AckSerializer,
    JobSerializer,
    NackAnswerSerializer,
    NackSerializer,
    ProgressReportSerializer,
    ProgressSerializer,
)
from django_ojs.http.operation import operation
from django_ojs.http.pagination import DEFAULT_LIMIT, MAX_LIMIT, ListPage, OJSPagination, SortKey, paginate, parse_name
from django_ojs.http.permissions import check_queue, type_limit
from django_ojs.http.serializers import (
    AnswerSerializer,
    BodySerializer,
    EitherField,
    FilledField,
    InstantField,
    NothingSerializer,
    NumberField,
    TextField,
    WholeNumberField,
    rendered_by_show,
)
from django_ojs.jobs.fetch import Fetch, fetch_with_others
from django_ojs.models import Job, JobRow, Worker
from django_ojs.models.fields import RawJSON
from django_ojs.rules import durations, envelope, names
from django_ojs.rules.durations import format_instant
from django_ojs.rules.faults import fault, shorten
from django_ojs.rules.ids import parse_id
from django_ojs.states import State
from django_ojs.workerregistry import heartbeat as beats
from django_ojs.workerregistry import ownership
from django_ojs.workerregistry.directory import state_of, with_held
from django_ojs.workerregistry.heartbeat import STATES
from django_ojs.workerregistry.registration import deregister, direct, effective_state, ordered_state, register

HELD = 1000  #: jobs that a worker's page names
#: Jobs that one heartbeat may name.
MAX_JOBS = 10_000
#: What an operator may tell a worker -> the directive by which it is stored.
DIRECTIVES = {
    "quiet": "quiet", "resume": "running", "running": "running", "terminate": "terminate", "restart": "restart",
}  # fmt: skip
#: What a heartbeat may call its worker's state.
_STATES = [*STATES, *spellings.WORKER_STATE.words]


class WorkerLineSerializer(AnswerSerializer):
    """A worker in a list, without what it has never told. The `now` of its view counts."""

    id = serializers.CharField()
    worker_id = serializers.CharField(source="pk")
    hostname = serializers.CharField()
    pid = serializers.IntegerField(required=False)
    state = serializers.SerializerMethodField()
    directive = FilledField(required=False)
    queues = serializers.SerializerMethodField()
    job_types = serializers.ListField(child=serializers.CharField(), required=False)
    labels = EitherField(serializers.ListField(child=serializers.CharField()), serializers.DictField(), required=False)
    concurrency = serializers.IntegerField()
    active_jobs = serializers.IntegerField(source="held")
    jobs_completed = serializers.IntegerField(required=False)
    memory_mb = serializers.FloatField(required=False)
    cpu_percent = serializers.FloatField(required=False)
    version = serializers.CharField()
    release = FilledField(required=False)
    started_at = InstantField()
    last_seen_at = InstantField()
    last_heartbeat_at = InstantField(source="heard_at")
    last_heartbeat = InstantField(source="heard_at")
    metadata = serializers.SerializerMethodField()

    def get_state(self, worker: Worker) -> str:
        return state_of(worker, self.context["view"].now)

    def get_queues(self, worker: Worker) -> list[str]:
        return worker.queues or []

    def to_representation(self, instance: Worker) -> dict[str, Any]:
        """Of what the worker serves only what the caller reaches; it completes jobs of others, too."""
        found, reach = super().to_representation(instance), permissions.limits(self.context["view"].request)
        if reach.unlimited:
            return found
        found["queues"] = [*filter(reach.covers_jobs_of, found["queues"])]
        if "job_types" in found:
            found["job_types"] = [*filter(reach.covers_type, found["job_types"])]
        del found["jobs_completed"]
        return found

    def get_metadata(self, worker: Worker) -> dict[str, Any]:
        return {}


class HeldJobSerializer(AnswerSerializer):
    """A job on the page of the worker that holds it."""

    id = serializers.CharField()
    type = serializers.CharField()
    queue = serializers.CharField()
    attempt = serializers.IntegerField()
    started_at = InstantField(required=False)


class HeldJobsSerializer(AnswerSerializer):
    """The jobs that a worker holds."""

    active_job_ids = serializers.SerializerMethodField()
    jobs = HeldJobSerializer(many=True)

    def get_active_job_ids(self, held: dict[str, Any]) -> list[str]:
        return [str(job["id"]) for job in held["jobs"]]


class WorkerHealthSerializer(AnswerSerializer):
    """What a worker last said, in the words of the published case on graceful shutdown."""

    id = serializers.CharField()
    worker_id = serializers.CharField(source="pk")
    status = serializers.SerializerMethodField()
    state = serializers.SerializerMethodField()
    active_jobs = serializers.IntegerField(source="held")
    concurrency = serializers.IntegerField()
    queues = serializers.SerializerMethodField()
    started_at = InstantField()
    last_heartbeat_at = InstantField(source="heard_at")

    def get_status(self, worker: Worker) -> str:
        return "stale" if worker.is_stale(self.context["view"].now) else "ok"

    def get_state(self, worker: Worker) -> str:
        """`draining` or `shutting_down` once the worker reported so or an operator ordered it."""
        return compat.HEALTH_STATES[effective_state(worker)]

    def get_queues(self, worker: Worker) -> list[str]:
        return worker.queues or []


class DirectedSerializer(AnswerSerializer):
    """What an operator ordered a worker to do."""

    id = serializers.CharField()
    worker_id = serializers.CharField(source="pk")
    state = serializers.SerializerMethodField()
    directive = serializers.CharField()

    def get_state(self, worker: Worker) -> str:
        """What its heartbeats are answered with."""
        return ordered_state(worker.directive)


class DirectedAllSerializer(AnswerSerializer):
    directive = serializers.CharField()
    state = serializers.CharField()
    workers = serializers.ListField(child=serializers.CharField())
    count = serializers.IntegerField()


class WorkerSummarySerializer(AnswerSerializer):
    """How many workers the caller sees, by their states."""

    total = serializers.IntegerField()
    running = serializers.IntegerField()
    quiet = serializers.IntegerField()
    stale = serializers.IntegerField()


class WorkerListSerializer(AnswerSerializer):
    """What the list of workers has beside them."""

    summary = WorkerSummarySerializer()


# What the calls of workers take, which `fields` reads, and what they answer, which `show` renders: it has to be fast.


class FetchSerializer(BodySerializer):
    queues = serializers.ListField(child=serializers.CharField(), min_length=1)
    count = serializers.IntegerField(required=False)
    worker_id = serializers.CharField(required=False)
    visibility_timeout_ms = serializers.IntegerField(required=False)


class KeptSerializer(AnswerSerializer):
    """The checkpoint of a claimed job: where its last attempt was."""

    state = serializers.JSONField()
    sequence = serializers.IntegerField()


class FetchedJobSerializer(JobSerializer):
    """A claimed job. Where an attempt of it has saved a checkpoint, it has that; `last_checkpoint` is its state."""

    result = result_stored_at = result_size_bytes = result_expires_at = None  # type: ignore[assignment]  # not active
    progress = progress_message = progress_data = progress_updated_at = None  # type: ignore[assignment]  # of others
    previous_state = re_enqueued_at = None  # type: ignore[assignment]  # of answers about one job
    checkpoint = KeptSerializer(required=False)
    last_checkpoint = serializers.JSONField(required=False)


@rendered_by_show
class FetchAnswerSerializer(AnswerSerializer):
    """The claimed jobs, each as it is stored; `job` is the first of them."""

    jobs = FetchedJobSerializer(many=True)
    job = FetchedJobSerializer(required=False)

    def show(self, instance: list[JobRow]) -> dict[str, Any]:
        found = [RawJSON(jsontext.dumps(envelope.render(row))) for row in instance]
        return {"jobs": found, "job": found[0]} if found else {"jobs": []}


class WorkerProgressReportSerializer(ProgressReportSerializer):
    job_id = serializers.CharField()


class RegistrationSerializer(BodySerializer):
    worker_id = serializers.CharField()
    queues = serializers.ListField(child=serializers.CharField(), required=False)
    hostname = serializers.CharField(required=False)
    pid = serializers.IntegerField(required=False)
    concurrency = serializers.IntegerField(required=False)


class RegisteredSerializer(AnswerSerializer):
    ok = serializers.BooleanField()
    worker_id = serializers.CharField()
    server_time = InstantField()
    heartbeat_interval = WholeNumberField()
    heartbeat_timeout = WholeNumberField()
    visibility_timeout_default = NumberField()


class HeartbeatSerializer(BodySerializer):
    worker_id = serializers.CharField()
    state = serializers.ChoiceField(_STATES, required=False)
    active_jobs = serializers.JSONField(required=False)


class ShownHeartbeat(NamedTuple):
    """What the server answers a worker's heartbeat: `unknown` are texts that are no ids of ours."""

    worker_id: str
    state: str
    answer: beats.BeatAnswer
    unknown: list[str]


@rendered_by_show
class HeartbeatAnswerSerializer(AnswerSerializer):
    """What to do, and what became of the jobs that the worker has named."""

    acknowledged = serializers.BooleanField()
    worker_id = serializers.CharField()
    state = serializers.CharField()
    directive = serializers.CharField()
    jobs_extended = serializers.ListField(child=serializers.CharField())
    cancelled_jobs = serializers.ListField(child=serializers.CharField())
    jobs_cancelled = serializers.ListField(child=serializers.CharField())
    jobs_lost = serializers.ListField(child=serializers.CharField())
    server_time = InstantField()

    def show(self, instance: ShownHeartbeat) -> dict[str, Any]:
        answer = instance.answer
        cancelled = [str(job_id) for job_id in answer.cancelled]
        return {
            "acknowledged": True,
            "worker_id": instance.worker_id,
            "state": instance.state,
            "directive": compat.DIRECTIVES.get(instance.state, instance.state),
            "jobs_extended": [str(job_id) for job_id in answer.extended],
            "cancelled_jobs": cancelled,
            "jobs_cancelled": cancelled,
            "jobs_lost": [*(str(job_id) for job_id in answer.lost), *instance.unknown],
            "server_time": format_instant(answer.server_time),
        }


class GoodbyeSerializer(AnswerSerializer):
    ok = serializers.BooleanField()
    deregistered = serializers.BooleanField()
    worker_id = serializers.CharField()
    jobs_requeued = serializers.IntegerField()


class DirectiveSerializer(BodySerializer):
    """An order to all workers. Other members might name some of them."""

    closed = True

    directive = serializers.ChoiceField(choices=sorted(DIRECTIVES))

    def to_internal_value(self, data: Any) -> dict[str, Any]:
        value = fields.only(data, *self.fields).get("directive")
        if not isinstance(value, str) or value not in DIRECTIVES:
            raise fault("directive", "must be quiet, resume, terminate or restart", value)
        return {"directive": value}


class DeregisterSerializer(BodySerializer):
    reason = TextField(max_length=64)
    worker_id = TextField(required=True, allow_null=False)

    def to_internal_value(self, data: Any) -> dict[str, Any]:
        reason = fields.text(data, "reason", maximum=64)
        return {"reason": reason, "worker_id": fields.worker_id(data, required=True)}


class WorkerPagination(OJSPagination):
    """Workers by id, with the number of jobs that each of them holds; both doors have pages of the same size."""

    operator_max_limit, operator_default_limit = MAX_LIMIT, DEFAULT_LIMIT

    def get_page(self, queryset: QuerySet[Any], request: Request, view: Any) -> ListPage:
        maximum, default = self.sizes(view)

        def rows(found: QuerySet[Worker]) -> list[Worker]:
            return list(with_held(found, permissions.visible(request)))

        return paginate(queryset, request, view.ordering, rows=rows, maximum=maximum, default=default)


class WorkerViewSet(OJSViewSet):
    """`/workers`, for workers; `/admin/workers`, for operators."""

    lookup_url_kwarg = "worker_id"
    lookup_value_converter = "path"  #: an id may hold slashes
    model_name = "worker"
    serializer_class = operator_serializer_class = WorkerLineSerializer
    pagination_class = WorkerPagination
    ordering = (SortKey("id", descending=False, parse=parse_name),)
    list_names = ("items", "workers")

    # What workers call

    @operation(
        detail=False,
        methods=["post"],
        aliases=("/jobs/fetch",),
        scope="work",
        doors="public",
        body=FetchSerializer,
        answer=FetchAnswerSerializer,
        grouped=True,
    )
    def fetch(self, request: Request) -> Response:
        """Claim jobs."""
        body = self.payload()
        queues = fields.queue_names(body)
        count = fields.integer(body, spellings.FETCH.name_in(body, "count"))
        check_queue(request, queues)
        rows = fetch_with_others(
            Fetch(
                queues,
                count=1 if count is None else max(count, 1),
                worker_id=fields.worker_id(body),
                visibility_ms=fields.duration_ms(body, "visibility_timeout_ms"),
                types=type_limit(request),
                who=permissions.who(request),
            )
        )
        return Response(self.quickly(rows))

    @operation(
        detail=False,
        methods=["post"],
        scope="work",
        doors="public",
        body=AckSerializer,
        answer=AckAnswerSerializer,
        grouped=True,
        errors=(404, 409),
    )
    def ack(self, request: Request) -> Response:
        """Complete a job."""
        body = self.payload()
        return jobs.acknowledge(self, fields.job_id(body), body)

    @operation(
        detail=False,
        methods=["post"],
        aliases=("fail",),
        scope="work",
        doors="public",
        body=NackSerializer,
        answer=NackAnswerSerializer,
        grouped=True,
        errors=(404, 409),
    )
    def nack(self, request: Request) -> Response:
        """Report that a job failed."""
        body = self.payload()
        return jobs.fail(self, fields.job_id(body), body)

    @operation(
        detail=False,
        methods=["post"],
        aliases=("beat",),
        scope="work",
        doors="public",
        body=HeartbeatSerializer,
        answer=HeartbeatAnswerSerializer,
        grouped=True,
    )
    def heartbeat(self, request: Request) -> Response:
        """Say that a worker lives, and renew its reservations."""
        body = self.payload()
        active, unknown, count = _active_jobs(body)
        worker_id = fields.worker_id(body, required=True)
        info = _facts(body)
        permissions.check_served(request, info)
        permissions.check_jobs(request, active)
        answer = beats.beat_with_others(
            beats.Beat(
                worker_id,
                active=active,
                active_count=count,
                visibility_ms=fields.duration_ms(body, "visibility_timeout_ms"),
                state=_state(body),
                info=info,
                who=permissions.who(request),
            )
        )
        state = testhooks.directive(active) or answer.state
        return Response(self.quickly(ShownHeartbeat(worker_id, state, answer, unknown)))

    @operation(
        detail=False,
        methods=["post"],
        scope="work",
        doors="public",
        body=WorkerProgressReportSerializer,
        answer=ProgressSerializer,
        errors=(404,),
    )
    def progress(self, request: Request) -> Response:
        """Report the progress of a job.

        At this path for the published clients.
        """
        body = jobs.report_payload(self)
        return jobs.report_progress(self, fields.job_id(body), body)

    @operation(scope="work", doors="public", body=RegistrationSerializer, answer=RegisteredSerializer, statuses=(200,))
    def create(self, request: Request) -> Response:
        """Register a worker.

        It may be left out: FETCH and BEAT register an unknown worker as well.
        """
        body = self.payload()
        worker_id = fields.worker_id(body, required=True)
        facts = _facts(body)
        permissions.check_served(request, facts)
        register(worker_id, facts, who=permissions.who(request))
        answer = {
            "ok": True,
            "worker_id": worker_id,
            "server_time": clock.now(_using()),
            "heartbeat_interval": ojs_settings.HEARTBEAT_INTERVAL,
            "heartbeat_timeout": ojs_settings.HEARTBEAT_TIMEOUT,
            "visibility_timeout_default": ojs_settings.VISIBILITY_TIMEOUT,
        }
        return Response(self.represent(answer))

    @operation(
        detail=False,
        methods=["post"],
        scope="work",
        doors="public",
        body=DeregisterSerializer,
        answer=GoodbyeSerializer,
        errors=(404,),
    )
    def deregister(self, request: Request) -> Response:
        """Say goodbye; what the worker holds goes back."""
        found = self.validated(self.payload())
        return self._goodbye(found["worker_id"], found["reason"] or "shutdown")

    @operation(
        detail=True, methods=["get"], scope="read", doors="public", answer=WorkerHealthSerializer, statuses=(200, 503)
    )
    def health(self, request: Request, worker_id: str) -> Response:
        """What a worker last said, and whether it lives.

        503 for one that takes no more jobs, or is silent.
        """
        using = router.db_for_write(Worker)
        worker = with_held(Worker.objects.using(using)).filter(pk=_path_worker(worker_id)).first()
        if worker is None:
            raise NotFound.resource("worker", worker_id)
        self.now = clock.now(using)
        ownership.check(worker, permissions.who(request, looking=True), self.now)
        health = self.represent(worker)
        if health["state"] == "running" and health["status"] == "ok":
            return Response(health)
        return Response(health, status=503, headers={"Retry-After": str(math.ceil(ojs_settings.HEARTBEAT_INTERVAL))})

    # What operators call

    def get_queryset(self) -> Any:
        """The workers that the caller may see. What they serve is JSON, so for a limited key it gets compared here."""
        workers = _workers()
        if not permissions.is_limited(self.request):
            return workers
        served = workers.only("pk", "queues", "job_types")
        return workers.filter(pk__in=[worker.pk for worker in served if _is_seen(self.request, worker)])

    def get_object(self) -> Any:
        """The worker in the path; what cannot be the id of one is not found."""
        worker_id = self.kwargs["worker_id"]
        worker = with_held(_workers(), permissions.visible(self.request)).filter(pk=_path_worker(worker_id)).first()
        if worker is None:
            raise NotFound.resource("worker", shorten(worker_id))
        self.check_object_permissions(self.request, worker)
        return worker

    @cached_property
    def now(self) -> dt.datetime:
        return clock.now(_using())

    @operation(doors="operator", beside=WorkerListSerializer)
    def list(self, request: Request) -> Response:
        """The workers.

        By id. The summary counts all that the caller sees, the page or not.
        """
        seen = self.get_queryset()
        return self.listed(seen, {"summary": _summary(seen, self.now)})

    @operation(doors="operator", beside=HeldJobsSerializer)
    def retrieve(self, request: Request, worker_id: str) -> Response:
        """A worker and its jobs."""
        worker = self.get_object()
        if not _is_seen(request, worker):
            message = "This worker serves no queue or no job type of this API key."
            raise permissions.denied(request, message, worker_id=worker.pk)
        held = Job.objects.using(_using()).filter(state=State.ACTIVE, worker_id=worker.pk).order_by("id")
        held = held.filter(permissions.visible(request))
        rows = [*held.values("id", "type", "queue", "attempt", "started_at")[:HELD]]
        return Response(self.entry(worker, {"jobs": rows}))

    @operation(
        scope="work",
        right="delete_worker",
        answer=GoodbyeSerializer,
        operator_answer=None,
        audit="worker.deregister",
        audit_doors="operator",
        operator_errors=(409,),
    )
    def destroy(self, request: Request, worker_id: str) -> Response:
        """Remove a worker that is gone; its jobs go back.

        It says so itself, or an operator removes a dead one.
        """
        if not self.operator:
            return self._goodbye(_path_worker(worker_id), "shutdown")
        _check_unlimited(request)
        worker = self.get_object()
        if not worker.is_stale(self.now):
            raise Conflict(
                f"The worker '{worker.pk}' is alive.",
                details={"worker_id": worker.pk, "state": worker.state},
                hint="Tell it to terminate; it hands its jobs back and goes.",
            )
        deregister(worker.pk, reason="error")
        return Response(status=204)

    @operation(
        detail=True,
        methods=["post"],
        right="change_worker",
        doors="operator",
        body=NothingSerializer,
        answer=DirectedSerializer,
        audit="worker.direct",
    )
    def quiet(self, request: Request, worker_id: str) -> Response:
        """Tell a worker: quiet.

        Its next heartbeat is answered that it takes no more jobs.
        """
        return self._direct("quiet")

    @operation(
        detail=True,
        methods=["post"],
        right="change_worker",
        doors="operator",
        body=NothingSerializer,
        answer=DirectedSerializer,
        audit="worker.direct",
    )
    def resume(self, request: Request, worker_id: str) -> Response:
        """Tell a worker: resume.

        Its next heartbeat is answered that it goes on.
        """
        return self._direct("running")

    @operation(
        detail=True,
        methods=["post"],
        right="change_worker",
        doors="operator",
        body=NothingSerializer,
        answer=DirectedSerializer,
        audit="worker.direct",
    )
    def terminate(self, request: Request, worker_id: str) -> Response:
        """Tell a worker: terminate.

        Its next heartbeat is answered that it ends.
        """
        return self._direct("terminate")

    @operation(
        detail=True,
        methods=["post"],
        right="change_worker",
        doors="operator",
        body=NothingSerializer,
        answer=DirectedSerializer,
        audit="worker.direct",
    )
    def restart(self, request: Request, worker_id: str) -> Response:
        """Tell a worker: restart.

        Its next heartbeat is answered that it ends. The supervisor of an `ojs_worker` starts another process.
        """
        return self._direct("restart")

    @operation(
        detail=False,
        methods=["post"],
        url_path="directive",
        right="change_worker",
        doors="operator",
        body=DirectiveSerializer,
        answer=DirectedAllSerializer,
        audit="worker.direct_all",
    )
    def direct_all(self, request: Request) -> Response:
        """Tell all workers the same."""
        body = self.payload()
        _check_unlimited(request)
        value = self.validated(body)["directive"]
        directed = [*_workers().order_by("id").values_list("pk", flat=True)]
        for worker_id in directed:
            try:
                direct(worker_id, DIRECTIVES[value])
            except NotFound:  # gone meanwhile
                continue
        self.act.detail["workers"] = directed
        answer = {
            "directive": value,
            "state": ordered_state(DIRECTIVES[value]),
            "workers": directed,
            "count": len(directed),
        }
        return Response(self.represent(answer))

    def _goodbye(self, worker_id: str, reason: str) -> Response:
        permissions.check_held(self.request, worker_id)
        returned = deregister(worker_id, reason=reason, who=permissions.who(self.request))
        answer = {"ok": True, "deregistered": True, "worker_id": worker_id, "jobs_requeued": returned}
        return Response(self.represent(answer))

    def _direct(self, directive: str) -> Response:
        self.payload(required=False)
        _check_unlimited(self.request)
        self.act.action = f"worker.{self.action}"
        return Response(self.represent(direct(self.get_object().pk, directive)))


def _facts(body: dict[str, Any]) -> dict[str, Any]:
    """The well-formed ones among the things a worker may tell about itself: no heartbeat fails over an odd hostname."""
    found: dict[str, Any] = {}
    for name, read in _READERS.items():
        with contextlib.suppress(InvalidRequest):
            found[name] = read(body, name)
    return {name: value for name, value in found.items() if value is not None}


def _state(body: dict[str, Any]) -> str:
    """The state that a worker reports, in any of its spellings; `shutdown: true` means terminate."""
    if body.get("shutdown") is True:
        return "terminate"
    value = body.get("state")
    if value is None:
        return "running"
    if not isinstance(value, str) or value.lower() not in _STATES:
        raise fault("state", f"must be one of {', '.join(_STATES)}", value)
    return spellings.WORKER_STATE.words.get(value.lower(), value.lower())


def _active_jobs(body: dict[str, Any]) -> tuple[list[uuid.UUID], list[str], int | None]:
    """The jobs a worker says it holds: ids, texts that are no ids of ours, and how many where it says so."""
    ids, number, member = spellings.active_jobs(body)
    count = fields.integer({"active_jobs": number}, "active_jobs", minimum=0)
    if ids is None:
        return [], [], count
    if not isinstance(ids, list) or len(ids) > MAX_JOBS or not all(isinstance(item, str) for item in ids):
        expected = "the id of a job" if member == "job_id" else f"an array of at most {MAX_JOBS} job ids"
        raise fault(member, f"must be {expected}", ids)
    known: dict[uuid.UUID, None] = {}
    unknown: list[str] = []
    for item in ids:
        if (job_id := parse_id(item.lower())) is not None:
            known[job_id] = None
        else:
            unknown.append(shorten(item))
    return list(known), unknown, count


def _labels(body: dict[str, Any], name: str) -> Any:
    return body[name] if isinstance(body.get(name), dict) else fields.texts(body, name)


def _instant(body: dict[str, Any], name: str) -> Any:
    given = body.get(name)
    try:
        return durations.parse_instant(given) if given is not None else None
    except ValueError as error:
        raise fault(name, str(error), given) from error


_READERS: dict[str, Callable[[dict[str, Any], str], Any]] = {
    "hostname": fields.text,
    "version": partial(fields.text, maximum=64),
    "release": partial(fields.text, maximum=64),
    "pid": partial(fields.integer, minimum=0),
    "concurrency": partial(fields.integer, minimum=0),
    "jobs_completed": partial(fields.integer, minimum=0),
    "memory_mb": fields.number,
    "cpu_percent": fields.number,
    "queues": fields.texts,
    "job_types": fields.texts,
    "labels": _labels,
    "started_at": _instant,
}


def _using() -> str:
    return router.db_for_write(Worker)


def _workers() -> Any:
    return Worker.objects.using(_using())


def _path_worker(text: str) -> str:
    """The worker id in a path; what cannot be one is not found."""
    try:
        return names.check_worker_id(text)
    except ValueError:
        raise NotFound.resource("worker", shorten(text)) from None


def _is_seen(request: Request, worker: Worker) -> bool:
    """Whether the caller may see a worker: one that serves a queue and a type of its own."""
    reach = permissions.limits(request)
    queues, types = reach.queues is None or any(map(reach.covers_jobs_of, worker.queues or ())), worker.job_types
    return queues and (types is None or any(map(reach.covers_type, types)))


def _check_unlimited(request: Request) -> None:
    if permissions.is_limited(request):
        message = "A key that is limited to queues or types cannot direct workers, which may serve others."
        raise permissions.denied(request, message)


def _summary(workers: QuerySet[Worker], now: dt.datetime) -> dict[str, int]:
    """Every one of these workers is counted in `total` and in one of the others; one that ends counts as quiet."""
    edge = now - dt.timedelta(seconds=ojs_settings.HEARTBEAT_TIMEOUT)
    heard = workers.annotate(heard=Coalesce("last_heartbeat_at", "last_seen_at"))
    counts: dict[str, int] = heard.aggregate(
        total=Count("pk"),
        running=Count("pk", filter=Q(heard__gte=edge, state="running")),
        quiet=Count("pk", filter=Q(heard__gte=edge) & ~Q(state="running")),
        stale=Count("pk", filter=Q(heard__lt=edge)),
    )
    return counts
