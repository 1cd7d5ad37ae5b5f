"""Workflows: how far they are, with their members; cancel, and resume a failed one."""

from __future__ import annotations

from functools import partial
from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _

from django_ojs.admin import display, flowtime, live
from django_ojs.admin.base import IdSearchAdmin
from django_ojs.admin.flowgraph import GraphView, draw, steps_of
from django_ojs.admin.live import LivePage
from django_ojs.admin.operate import AdminVerb, one_by_one
from django_ojs.models import Job, Workflow, WorkflowStep
from django_ojs.rules import redaction, workflowgraph
from django_ojs.templatetags.ojs_admin import ojs_cards
from django_ojs.workflows import workflow as operations

#: Members that a page lists, and steps that a search names.
MAX_MEMBERS, FITTING = 1000, 20
#: From so many on a page is looked at every so many seconds at most.
LARGE, LARGE_AGE = 200, 5.0
_COLOURS = {"completed": "good", "failed": "discarded", "running": "active"}

VERBS = (
    AdminVerb(
        "cancel_workflows", "Cancel", "cancelled",
        one_by_one(lambda pk, by: operations.cancel(pk, cancelled_by=by)), lambda flow: flow.state == "running",
        question="Members that wait will never run; running ones may finish. No callback fires.",
    ),
    AdminVerb(
        "retry_workflows", "Retry", "resumed", one_by_one(lambda pk, by: operations.retry(pk)),
        lambda flow: flow.state == "failed",
    ),
)  # fmt: skip


@admin.register(Workflow)
class WorkflowAdmin(LivePage, IdSearchAdmin):
    list_display = ("label", "type", "state_label", "members_done", "created_ago", "finished")
    list_filter = ("state", "type")
    ordering = ("-created_at", "-id")
    search_help_text = _("The id of a workflow.")
    no_id = _("“%(text)s” is not the id of a workflow.")
    verbs = actions = VERBS
    large_columns = ("facts",)
    change_form_template = "django_ojs/admin/workflow.html"
    live_types, live_filter = live.WORKFLOW, "workflow_ids"
    fieldsets = (
        (None, {"fields": ("id", ("name", "own_id"), ("type", "state_label"), "members_done")}),
        (_("Members"), {"fields": ("members",)}),
        (_("Error"), {"fields": ("shown_error",)}),
        (_("Times"), {"fields": (("created", "started", "finished"),)}),
        (None, {"fields": ("parent",)}),
    )

    def get_queryset(self, request: HttpRequest) -> QuerySet[Workflow]:
        found: QuerySet[Workflow] = super().get_queryset(request).select_related("start")
        return found

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        """A workflow is found by the id that its client gave it, too."""
        if text := search_term.strip():
            (key,) = operations.keys_of([text])
            text = str(key) if key.int else text
        return super().get_search_results(request, queryset, text)

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        """No error and no parent where there is none."""
        absent = {"shown_error"} if not (obj and obj.error) else set()
        absent |= {"parent"} if not (obj and obj.parent_id) else set()
        return [one for one in self.fieldsets if absent.isdisjoint(map(str, one[1]["fields"]))]

    def page_context(self, request: HttpRequest, obj: Workflow) -> dict[str, Any]:
        link = partial(self.url_of, Job)
        found, view, steps = flowtime.spans(obj), GraphView.of(request.GET), steps_of(obj)
        fitting = [step for step in steps if view.fits(step)]
        awaited = flowtime.awaited(found, link) if obj.state == Workflow.State.RUNNING else []
        return {
            "graph": draw(obj, steps, link, view),
            "list_of": self._list_of(obj),
            "view": view,
            "fitting": [(step.step_id, step.type, self._address(obj, step)) for step in fitting[:FITTING]],
            "fitting_more": len(fitting) - FITTING,
            "times": flowtime.draw(obj, found, link),
            "awaited": awaited[: flowtime.AWAITED],
            "awaited_more": len(awaited) - flowtime.AWAITED,
            "state": self.state_label(obj),
            "progress": self.members_done(obj),
        }

    def _address(self, flow: Workflow, step: WorkflowStep) -> str:
        """The address of a step's job; '' while there is none."""
        unmade = flow.progress[step.position] in workflowgraph.UNMADE
        return self.url_of(Job, step.job_id) if step.job_id and not unmade else ""

    def _list_of(self, flow: Workflow) -> str:
        """The address of the list of its jobs; '' where this admin site has none."""
        return f"{self.url('job_changelist')}?workflow={flow.pk}" if self.may_see(Job) else ""

    def live_age(self, obj: Workflow) -> float:
        """A thousand members take a while to draw and to list."""
        return LARGE_AGE if workflowgraph.summary(obj)["steps_total"] > LARGE else 0.0

    created = display.column(display.when, "created_at", "created")
    created_ago = display.column(display.ago, "created_at", "created")
    started = display.column(display.when, "started_at", "started")
    finished = display.column(display.when, "finished_at", "finished")

    @admin.display(description=_("error"))
    def shown_error(self, flow: Workflow) -> SafeString | str:
        return display.json(redaction.event("", {"error": flow.error})["error"])

    @admin.display(description=_("parent job"))
    def parent(self, flow: Workflow) -> SafeString | str:
        """The job whose handler runs it."""
        url = self.url_of(Job, flow.parent_id)
        text = '<a class="ojs-id" href="{0}">{1}</a>' if url else '<span class="ojs-id">{1}</span>'
        return format_html(text, url, str(flow.parent_id))

    @admin.display(description=_("workflow"))
    def label(self, flow: Workflow) -> str:
        return display.ellipsized(flow.name or flow.public_id, 60)

    @admin.display(description=_("state"))
    def state_label(self, flow: Workflow) -> SafeString:
        return display.colour_label(flow.state, _COLOURS.get(flow.state, ""))

    @admin.display(description=_("steps"))
    def members_done(self, flow: Workflow) -> str:
        found = workflowgraph.summary(flow)
        counted = {name: f"{found[name]:,}" for name in ("steps_completed", "steps_total")}
        return _("%(steps_completed)s of %(steps_total)s completed") % counted

    @admin.display(description=_("in their order"))
    def members(self, flow: Workflow) -> SafeString | str:
        """A line for each job: what it is, its state, and a link to it once it exists."""
        view = operations.info(flow.pk, brief=True)
        rows = [self._member(step, view.jobs) for step in view.steps[:MAX_MEMBERS] if step.job_id]
        table = format_html_join("", "<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>", rows)
        more = len(view.steps) - MAX_MEMBERS
        note = _("and %(number)s more") % {"number": f"{more:,}"} if more > 0 else ""
        words = ((word,) for word in (_("step"), _("type"), _("state"), _("job")))
        head = format_html_join("", '<th scope="col">{}</th>', words)
        text = (
            '<div class="ojs-wide" tabindex="0" role="region" aria-label="{}">'
            '<table class="ojs-table"><thead><tr>{}</tr></thead><tbody>{}</tbody></table></div>{}'
        )
        return ojs_cards(format_html(text, _("Members"), head, table, note))

    def _member(self, step: Any, jobs: Any) -> tuple[Any, ...]:
        job = jobs.get(step.job_id)
        if job is None:
            return (display.ellipsized(step.step_id), step.type, display.NOTHING, _("not enqueued"))
        url = self.url_of(Job, step.job_id)
        text = '<a class="ojs-id" href="{}">{}…{}</a>' if url else '{}<span class="ojs-id">{}…{}</span>'
        link = format_html(text, url, str(step.job_id)[:8], str(step.job_id)[-6:])
        return (display.ellipsized(step.step_id), step.type, display.colour_label(job["state"]), link)
