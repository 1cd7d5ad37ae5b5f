"""Workflows: create, list, read, cancel, resume (orchestration 1, binding 2.8)."""

from __future__ import annotations

import uuid
from typing import Any

from django.db import router
from django.db.models import Exists, OuterRef, Q, QuerySet
from django.utils.encoding import iri_to_uri
from django_filters import FilterSet
from rest_framework import serializers
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response

from django_ojs import clock
from django_ojs.conf import ojs_settings
from django_ojs.http import compat, media, permissions, query, shown
from django_ojs.http.auditing import audited
from django_ojs.http.base import OJSViewSet
from django_ojs.http.idempotency import Idempotent
from django_ojs.http.jobserializers import ReasonSerializer
from django_ojs.http.openapi import documented
from django_ojs.http.pagination import Key, SamePagination, parse_time, parse_uuid
from django_ojs.http.permissions import check_queue, check_type, principal
from django_ojs.http.query import OJSFilterBackend, WordFilter
from django_ojs.http.serializers import (
    AnswerSerializer,
    BodySerializer,
    InstantField,
    NothingSerializer,
    WarningSerializer,
    rendered_by_show,
)
from django_ojs.jobs.idempotency import Answer
from django_ojs.models import Workflow, WorkflowStep
from django_ojs.rules import problems, workflowgraph, workflows
from django_ojs.rules.durations import format_instant
from django_ojs.workflows import workflow as operations
from django_ojs.workflows.workflow import View


class WorkflowFilter(FilterSet):  # type: ignore[misc]
    state = WordFilter({"active": Workflow.State.RUNNING, **{state.value: state for state in Workflow.State}})


@rendered_by_show
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

    def show(self, instance: Workflow) -> dict[str, Any]:
        return compat.workflow(workflowgraph.summary(instance), self.context["request"]._request)


@rendered_by_show
class WorkflowSerializer(WorkflowLineSerializer):
    """A workflow with its steps, without what the site hides."""

    step_count = None  # type: ignore[assignment]
    jobs_total = serializers.IntegerField()
    jobs_completed = serializers.IntegerField()
    steps = serializers.ListField(child=serializers.DictField())
    jobs = serializers.ListField(child=serializers.DictField(), required=False)
    callbacks = serializers.JSONField(required=False)
    error = serializers.JSONField(required=False)
    started_at = InstantField(required=False)
    cancelled_at = InstantField(required=False)
    metadata = serializers.DictField()
    warnings = WarningSerializer(many=True, required=False)

    def show(self, instance: Any) -> dict[str, Any]:
        return compat.workflow(shown.workflow(instance), self.context["request"]._request)


@rendered_by_show
class WorkflowProgressSerializer(AnswerSerializer):
    """How far a workflow and its steps are."""

    workflow_id = serializers.CharField()
    type = serializers.CharField()
    progress = serializers.FloatField()
    updated_at = InstantField()
    steps = serializers.ListField(child=serializers.DictField())

    def show(self, instance: View) -> dict[str, Any]:
        return workflowgraph.progress(*instance)


class WorkflowRequestSerializer(BodySerializer):
    """A workflow as a client sends it: `validated_data` is its `Plan`."""

    def to_internal_value(self, data: Any) -> Any:
        return workflows.parse(data, now=clock.now(router.db_for_write(Workflow)))


class WorkflowViewSet(Idempotent, OJSViewSet):
    """The operator's door cannot make workflows: that is no operator's act."""

    lookup_url_kwarg = "workflow_id"
    model_name = "workflow"
    action_scopes = {"create": "push", "list": "read", "retrieve": "read", "progress": "read"}
    action_rights = {"destroy": "change_workflow", "cancel": "change_workflow", "retry": "change_workflow"}
    public_only = ("create",)
    operations = {"create": "create_workflow"}
    serializer_class = operator_serializer_class = WorkflowSerializer
    action_serializers = {"list": WorkflowLineSerializer, "progress": WorkflowProgressSerializer}
    body_serializers = {
        "create": WorkflowRequestSerializer, "cancel": ReasonSerializer, "retry": NothingSerializer,
    }  # fmt: skip
    filter_backends = (OJSFilterBackend,)
    filterset_class = WorkflowFilter
    pagination_class = SamePagination
    ordering = [Key("created_at", descending=True, parse=parse_time), Key("id", descending=True, parse=parse_uuid)]
    list_names = ("workflows", "items")

    def get_queryset(self) -> QuerySet[Workflow]:
        """The workflows whose jobs the caller may all see."""
        found = Workflow.objects.using(router.db_for_write(Workflow))
        if not permissions.is_limited(self.request):
            return found.all()
        jobs = WorkflowStep.objects.filter(workflow_id=OuterRef("pk"), job_id__isnull=False)
        return found.filter(~Exists(jobs.exclude(permissions.visible(self.request))))

    def list(self, request: Request) -> Response:
        """The workflows."""
        return self.listed(self.get_queryset().select_related("start").defer("facts"))

    def create(self, request: Request) -> Response:
        """Create a workflow."""
        document = self.payload(limit=ojs_settings.MAX_BATCH_BYTES)
        plan: Any = self.validated(document)
        permissions.check_documents(request, plan.documents())
        warnings = problems.warnings(problems.unknown_in_workflow(document))

        def act(using: str) -> Answer:
            view = operations.create(plan, using=using)
            location = f"{iri_to_uri(request.path)}/{view.workflow.public_id}"
            shown = self._wrapped(view) | ({"warnings": list(warnings)} if warnings else {})
            return Answer(201, media.to_text(shown), {"Location": location})

        return self.answer(act)

    def retrieve(self, request: Request, workflow_id: str) -> Response:
        """A workflow and its jobs."""
        return Response(self._wrapped(operations.info(_find(request, workflow_id))))

    @documented(200, query="cancel_active")
    @audited("workflow.cancel")
    def destroy(self, request: Request, workflow_id: str) -> Response:
        """Cancel a workflow.

        `?cancel_active=true` stops the members that run, too.
        """
        return self._cancel(workflow_id)

    @documented(query="cancel_active")
    @action(detail=True, methods=["post"])
    @audited("workflow.cancel")
    def cancel(self, request: Request, workflow_id: str) -> Response:
        """Cancel a workflow, with a reason."""
        return self._cancel(workflow_id, self.validated(self.payload(required=False)).get("reason") or "")

    @action(detail=True, methods=["post"])
    @audited("workflow.retry")
    def retry(self, request: Request, workflow_id: str) -> Response:
        """Go on with a failed workflow from where it failed."""
        self.payload(required=False)
        return Response(self._wrapped(operations.retry(_find(request, workflow_id))))

    @action(detail=True, methods=["get"])
    def progress(self, request: Request, workflow_id: str) -> Response:
        """How far a workflow has come."""
        return Response(self.represent(operations.info(_find(request, workflow_id), brief=True)))

    def _cancel(self, workflow_id: str, reason: str = "") -> Response:
        active = query.text(self.request, "cancel_active").lower() in ("true", "1", "yes")
        done = operations.cancel(
            _find(self.request, workflow_id), cancel_active=active, cancelled_by=principal(self.request), reason=reason
        )
        finished = done.view.workflow.finished_at
        facts = {
            "cancelled_at": format_instant(finished) if finished else None,
            "steps_cancelled": done.steps_cancelled,
            "cancelled_steps": done.steps_cancelled,
            "steps_already_completed": done.steps_already_completed,
        }
        return Response(self._wrapped(done.view, facts))

    def _wrapped(self, view: View, more: dict[str, Any] | None = None) -> dict[str, Any]:
        """The workflow under its key, and its members beside it: some readers unwrap, others do not."""
        whole = self.represent(view) | (more or {})
        return {**whole, "workflow": whole}


def _find(request: Request, text: str) -> uuid.UUID:
    """The workflow in a path, if the caller may use the queues and types of all its jobs."""
    workflow_id = operations.identify(text)
    if permissions.is_limited(request):
        steps = WorkflowStep.objects.using(router.db_for_write(Workflow))
        jobs = steps.filter(Q(workflow_id=workflow_id), job_id__isnull=False).order_by()
        for queue, job_type in jobs.values_list("queue", "type").distinct():
            check_queue(request, queue)
            check_type(request, job_type)
    return workflow_id
