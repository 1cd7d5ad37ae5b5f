"""Workflows: create, list, read, cancel, resume (orchestration 1, binding 2.8)."""

from __future__ import annotations

import uuid
from typing import Any

from django.db import router
from django.db.models import Exists, OuterRef, QuerySet
from django_filters import FilterSet
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from django_ojs import clock, spellings
from django_ojs.http import compat, links, media, permissions, query
from django_ojs.http.base import OJSViewSet
from django_ojs.http.idempotency import Idempotent
from django_ojs.http.jobserializers import ReasonSerializer
from django_ojs.http.operation import operation
from django_ojs.http.pagination import SamePagination, SortKey, parse_time, parse_uuid
from django_ojs.http.permissions import check_queue, check_type, principal
from django_ojs.http.query import OJSFilterBackend, WordFilter
from django_ojs.http.serializers import (
    AnswerSerializer,
    BodySerializer,
    FlagField,
    InstantField,
    JSONValueField,
    NothingSerializer,
    NumberField,
    WarnedSerializer,
    warned,
)
from django_ojs.jobs import progress as jobprogress
from django_ojs.jobs.idempotency import Answer
from django_ojs.models import Workflow, WorkflowStep
from django_ojs.rules import problems, redaction, workflowgraph
from django_ojs.states import State
from django_ojs.workflows import graphs
from django_ojs.workflows import workflow as operations
from django_ojs.workflows.workflow import WorkflowView


class WorkflowFilter(FilterSet):  # type: ignore[misc]
    #: The binding knows `pending`, too, and clients ask for it: no workflow of this server is in it.
    state = WordFilter(spellings.WORKFLOW_STATE.with_words(Workflow.State) | {"pending": "pending"})


_TEXT, _TIME, _ANY = {"type": "string"}, {"type": "string", "format": "date-time"}, dict[str, Any]()
#: A step of a workflow. One that is a workflow itself has `steps` and perhaps `callbacks`, which are steps, too.
_STEP: dict[str, Any] = {
    "type": "object",
    "required": ["index", "id", "type", "state", "job_id", "job_ids", "depends_on"],
    "properties": {
        "index": {"type": "integer"},
        "id": _TEXT,
        "type": _TEXT,
        "state": _TEXT,
        "job_id": {"type": ["string", "null"]},
        "job_ids": {"type": "array", "items": _TEXT},
        "depends_on": {"type": "array", "items": _TEXT},
        "skipped": {"type": "boolean"},
        "args": _ANY,
        "error": _ANY,
        "job_state": _TEXT,
        "started_at": _TIME,
        "completed_at": _TIME,
        "result": _ANY,
        "steps": {"type": "array", "items": {"type": "object"}},
        "callbacks": {"type": "object"},
    },
}
_STEPS = {"type": "array", "items": _STEP}


class WorkflowLineSerializer(AnswerSerializer):
    """A workflow in a list."""

    id = serializers.CharField()
    name = serializers.CharField()
    type = serializers.CharField()
    state = serializers.CharField()
    step_count = serializers.IntegerField()
    steps_total = serializers.IntegerField()
    steps_completed = serializers.IntegerField()
    created_at = InstantField()
    completed_at = InstantField(required=False)

    def gather(self, instance: Workflow) -> dict[str, Any]:
        return workflowgraph.summary(instance)

    def to_representation(self, instance: Workflow) -> dict[str, Any]:
        return compat.workflow(super().to_representation(instance), self.context["request"]._request)


class WorkflowMetadataSerializer(AnswerSerializer):
    """The times of a workflow, and how many of its jobs there are and have ended."""

    created_at = InstantField()
    started_at = InstantField(required=False)
    completed_at = InstantField(required=False)
    cancelled_at = InstantField(required=False)
    job_count = serializers.IntegerField()
    completed_count = serializers.IntegerField()
    failed_count = serializers.IntegerField()


class WorkflowSerializer(AnswerSerializer):
    """A workflow with its steps, without what the site hides."""

    id = serializers.CharField()
    type = serializers.CharField()
    name = serializers.CharField()
    state = serializers.CharField()
    steps_total = serializers.IntegerField()
    steps_completed = serializers.IntegerField()
    jobs_total = serializers.IntegerField()
    jobs_completed = serializers.IntegerField()
    steps = JSONValueField(_STEPS)
    callbacks = JSONValueField({"type": "object", "additionalProperties": _STEP}, required=False)
    error = serializers.JSONField(required=False)
    created_at = InstantField()
    started_at = InstantField(required=False)
    completed_at = InstantField(required=False)
    cancelled_at = InstantField(required=False)
    jobs = JSONValueField(_STEPS, required=False)
    metadata = WorkflowMetadataSerializer()

    def gather(self, instance: WorkflowView) -> dict[str, Any]:
        return workflowgraph.render(*instance)

    def to_representation(self, instance: WorkflowView) -> dict[str, Any]:
        shown = super().to_representation(instance)
        return compat.workflow(shown | redaction.job(self.own(shown)), self.context["request"]._request)


class CancellationSerializer(AnswerSerializer):
    """What the cancellation of a workflow did."""

    cancelled_at = InstantField(source="view.workflow.finished_at")
    steps_cancelled = serializers.IntegerField()
    cancelled_steps = serializers.IntegerField(source="steps_cancelled")
    steps_already_completed = serializers.IntegerField()


class StepProgressSerializer(AnswerSerializer):
    """How far a step is, from 0 to 1; null where it has told nothing."""

    id = serializers.CharField()
    job_id = serializers.CharField(allow_null=True)
    type = serializers.CharField()
    state = serializers.CharField()
    progress = NumberField(allow_null=True)


class WorkflowProgressSerializer(AnswerSerializer):
    """How far a workflow and its steps are."""

    workflow_id = serializers.CharField()
    type = serializers.CharField()
    progress = NumberField()
    updated_at = InstantField()
    steps = StepProgressSerializer(many=True)

    def gather(self, instance: WorkflowView) -> dict[str, Any]:
        running = [row for row in instance.jobs.values() if row["state"] != State.COMPLETED]
        return workflowgraph.progress(*instance, jobprogress.of(running, router.db_for_write(Workflow)))


class WorkflowRequestSerializer(BodySerializer):
    """A workflow as a client sends it: `validated_data` is its `Plan`."""

    def to_internal_value(self, data: Any) -> Any:
        return spellings.read_workflow(data, now=clock.now(router.db_for_write(Workflow)))


class WorkflowCancelSerializer(ReasonSerializer):
    """Why a workflow is cancelled, and whether the members that run are stopped, too."""

    cancel_active = FlagField()


class WorkflowViewSet(Idempotent, OJSViewSet):
    """The operator's door cannot make workflows: that is no operator's act."""

    lookup_url_kwarg = "workflow_id"
    model_name = "workflow"
    serializer_class = operator_serializer_class = WorkflowSerializer
    filter_backends = (OJSFilterBackend,)
    filterset_class = WorkflowFilter
    pagination_class = SamePagination
    ordering = [
        SortKey("created_at", descending=True, parse=parse_time),
        SortKey("id", descending=True, parse=parse_uuid),
    ]
    list_names = ("workflows", "items")
    entry_names = ("workflow",)  # some readers unwrap it, others do not

    def get_queryset(self) -> QuerySet[Workflow]:
        """The workflows whose jobs the caller may all see."""
        found = Workflow.objects.using(router.db_for_write(Workflow))
        if not permissions.is_limited(self.request):
            return found.all()
        reach = permissions.limits(self.request)
        steps = WorkflowStep.objects.filter(workflow_id=OuterRef("pk"), job_id__isnull=False)
        moved = steps.exclude(reach.condition("job__"))  # a job may change its queue
        return found.filter(~Exists(steps.exclude(reach.condition())), ~Exists(moved))

    @operation(scope="read", answer=WorkflowLineSerializer)
    def list(self, request: Request) -> Response:
        """The workflows."""
        return self.listed(self.get_queryset().select_related("start").defer("facts"))

    @operation(
        scope="push",
        doors="public",
        body=WorkflowRequestSerializer,
        outside=WarnedSerializer,
        name="create_workflow",
        errors=(409, 429),
        headers="Location Idempotency-Replayed",
    )
    def create(self, request: Request) -> Response:
        """Create a workflow."""
        document = self.batch_payload()
        plan: Any = self.validated(document)
        permissions.check_documents(request, plan.documents())
        warnings = problems.warnings(spellings.unknown_in_workflow(document))

        def act(using: str) -> Answer:
            view = operations.create(plan, limits=permissions.limits(request), using=using)
            location = links.to_new(request, self, view.workflow.public_id)
            return Answer(201, media.to_text(self.entry(view, outside=warned(warnings))), {"Location": location})

        return self.answer(act)

    @operation(scope="read")
    def retrieve(self, request: Request, workflow_id: str) -> Response:
        """A workflow and its jobs."""
        return Response(self.entry(operations.info(_find(request, workflow_id))))

    @operation(
        right="change_workflow",
        beside=CancellationSerializer,
        statuses=(200,),
        query="cancel_active",
        audit="workflow.cancel",
        errors=(409,),
    )
    def destroy(self, request: Request, workflow_id: str) -> Response:
        """Cancel a workflow.

        `?cancel_active=true` stops the members that run, too.
        """
        return self._cancel(workflow_id)

    @operation(
        detail=True,
        methods=["post"],
        right="change_workflow",
        body=WorkflowCancelSerializer,
        beside=CancellationSerializer,
        query="cancel_active",
        audit="workflow.cancel",
        errors=(409,),
    )
    def cancel(self, request: Request, workflow_id: str) -> Response:
        """Cancel a workflow, with a reason.

        `cancel_active`, in the body or the query, stops the members that run, too.
        """
        body = self.validated(self.payload(required=False))
        return self._cancel(workflow_id, body.get("reason") or "", active=bool(body.get("cancel_active")))

    @operation(
        detail=True,
        methods=["post"],
        right="change_workflow",
        body=NothingSerializer,
        audit="workflow.retry",
        errors=(409,),
    )
    def retry(self, request: Request, workflow_id: str) -> Response:
        """Go on with a failed workflow from where it failed."""
        self.payload(required=False)
        return Response(self.entry(operations.retry(_find(request, workflow_id), limits=permissions.limits(request))))

    @operation(detail=True, methods=["get"], scope="read", answer=WorkflowProgressSerializer)
    def progress(self, request: Request, workflow_id: str) -> Response:
        """How far a workflow has come."""
        return Response(self.represent(operations.info(_find(request, workflow_id), brief=True)))

    def _cancel(self, workflow_id: str, reason: str = "", *, active: bool = False) -> Response:
        active = query.flag(self.request, "cancel_active") or active
        done = operations.cancel(
            _find(self.request, workflow_id), cancel_active=active, cancelled_by=principal(self.request), reason=reason
        )
        return Response(self.entry(done.view, done))


def _find(request: Request, text: str) -> uuid.UUID:
    """The workflow in a path, if the caller may use the queues and types of all its jobs."""
    workflow_id = operations.identify(text)
    if permissions.is_limited(request):
        for _, queue, job_type in sorted(graphs.places_of([workflow_id], router.db_for_write(Workflow))):
            check_queue(request, queue)
            check_type(request, job_type)
    return workflow_id
