"""Workflows: create, list, read, cancel, resume (orchestration 1, binding 2.8)."""

from __future__ import annotations

import uuid
from typing import Any

from django.db import router
from django.db.models import Exists, OuterRef, Q, QuerySet
from django.utils.encoding import iri_to_uri
from rest_framework.request import Request
from rest_framework.response import Response

from django_ojs import clock, workflowview
from django_ojs.conf import ojs_settings
from django_ojs.http import access, fields, media, query, shown
from django_ojs.http.auditing import audited
from django_ojs.http.base import OJSView
from django_ojs.http.idempotency import Answer
from django_ojs.http.jobs import PushView
from django_ojs.http.pagination import Key, paginate, parse_time, parse_uuid
from django_ojs.http.permissions import check_queue, check_type, principal
from django_ojs.models import Workflow, WorkflowStep
from django_ojs.operations import workflow as operations
from django_ojs.operations.workflow import View
from django_ojs.policies import workflows
from django_ojs.policies.durations import format_instant

#: Newest first.
_ORDER = [Key("created_at", descending=True, parse=parse_time), Key("id", descending=True, parse=parse_uuid)]
_STATES = {"active": Workflow.State.RUNNING, **{state.value: state for state in Workflow.State}}


class Workflows(PushView):
    """`POST /workflows`, and `GET /workflows?state=`"""

    scopes = {"POST": "push", "GET": "read"}
    operation = "create_workflow"

    def post(self, request: Request) -> Response:
        document = self.payload(limit=ojs_settings.MAX_BATCH_BYTES)
        plan = workflows.parse(document, now=clock.now())
        access.check_documents(request, plan.documents())
        return self.answer(lambda using: self._create(plan, using))

    def _create(self, plan: workflows.Plan, using: str) -> Answer:
        view = operations.create(plan, using=using)
        location = f"{iri_to_uri(self.request.path)}/{view.workflow.public_id}"
        return Answer(201, media.to_text(wrapped(view)), {"Location": location})

    def get(self, request: Request) -> Response:
        found = _visible(request).select_related("start").defer("facts")
        if state := query.text(request, "state"):
            if state not in _STATES:
                raise query.fault("state", f"must be one of {', '.join(_STATES)}", state)
            found = found.filter(state=_STATES[state])
        page = paginate(found, request, _ORDER)
        items = [workflowview.summary(flow) for flow in page.rows]
        return Response(
            {"workflows": items, "items": items, "total": page.pagination["total"], "pagination": page.pagination}
        )


class AdminWorkflows(Workflows):
    """`GET /admin/workflows`: the list alone; making one is no operator's act."""

    http_method_names = ["get", "head", "options"]


class WorkflowDetail(OJSView):
    """`GET /workflows/{id}`, and `DELETE` to cancel it; `?cancel_active=true` stops active members too."""

    scopes = {"GET": "read", "DELETE": "admin"}
    rights = {"DELETE": "change_workflow"}

    def get(self, request: Request, workflow_id: str) -> Response:
        return Response(wrapped(operations.info(_find(request, workflow_id))))

    @audited("workflow.cancel")
    def delete(self, request: Request, workflow_id: str) -> Response:
        return cancel(request, workflow_id)


class WorkflowCancel(OJSView):
    """`POST /workflows/{id}/cancel`: the same for clients that send no DELETE."""

    scopes = {"POST": "admin"}
    rights = {"POST": "change_workflow"}

    @audited("workflow.cancel")
    def post(self, request: Request, workflow_id: str) -> Response:
        reason = fields.text(self.payload(required=False), "reason", maximum=1000)
        return cancel(request, workflow_id, reason or "")


class WorkflowRetry(OJSView):
    """`POST /workflows/{id}/retry`: a failed workflow goes on from where it failed."""

    scopes = {"POST": "admin"}
    rights = {"POST": "change_workflow"}

    @audited("workflow.retry")
    def post(self, request: Request, workflow_id: str) -> Response:
        self.payload(required=False)
        return Response(wrapped(operations.retry(_find(request, workflow_id))))


class WorkflowProgress(OJSView):
    """`GET /workflows/{id}/progress`"""

    scopes = {"GET": "read"}

    def get(self, request: Request, workflow_id: str) -> Response:
        return Response(workflowview.progress(*operations.info(_find(request, workflow_id), brief=True)))


def cancel(request: Request, workflow_id: str, reason: str = "") -> Response:
    active = query.text(request, "cancel_active").lower() in ("true", "1", "yes")
    done = operations.cancel(
        _find(request, workflow_id), cancel_active=active, cancelled_by=principal(request), reason=reason
    )
    finished = done.view.workflow.finished_at
    facts = {
        "cancelled_at": format_instant(finished) if finished else None,
        "steps_cancelled": done.steps_cancelled,
        "cancelled_steps": done.steps_cancelled,
        "steps_already_completed": done.steps_already_completed,
    }
    return Response(wrapped(done.view, facts))


def wrapped(view: View, more: dict[str, Any] | None = None) -> dict[str, Any]:
    """The workflow under its key, and its members beside it: some readers unwrap, others do not."""
    whole = shown.workflow(view) | (more or {})
    return {**whole, "workflow": whole}


def _visible(request: Request) -> QuerySet[Workflow]:
    """The workflows whose jobs the caller may all see."""
    found = Workflow.objects.using(router.db_for_write(Workflow))
    if not access.is_limited(request):
        return found.all()
    jobs = WorkflowStep.objects.filter(workflow_id=OuterRef("pk"), job_id__isnull=False)
    return found.filter(~Exists(jobs.exclude(access.visible(request))))


def _find(request: Request, text: str) -> uuid.UUID:
    """The workflow in a path, if the caller may use the queues and types of all its jobs."""
    workflow_id = operations.identify(text)
    if access.is_limited(request):
        steps = WorkflowStep.objects.using(router.db_for_write(Workflow))
        jobs = steps.filter(Q(workflow_id=workflow_id), job_id__isnull=False).order_by()
        for queue, job_type in jobs.values_list("queue", "type").distinct():
            check_queue(request, queue)
            check_type(request, job_type)
    return workflow_id
