"""Jobs: the list, a job's page with its attempts and events, and what an operator can do with it.

The overview, the dead letters and the maintenance page are pages of this admin too (`JobAdmin`'s bases).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.models import CHANGE, DELETION, LogEntry
from django.contrib.admin.views.main import SEARCH_VAR
from django.core.exceptions import PermissionDenied
from django.db import DEFAULT_DB_ALIAS
from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import URLPattern
from django.utils.cache import add_never_cache_headers
from django.utils.html import format_html
from django.utils.http import urlencode
from django.utils.safestring import SafeString
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _

from django_ojs import audit, clock, jsontext
from django_ojs.admin import display, jobpage, live, logs, steps
from django_ojs.admin.base import EndlessChangeList
from django_ojs.admin.deadletters import DeadLetters
from django_ojs.admin.doctor import DoctorPage
from django_ojs.admin.forms import WireField, blame, number
from django_ojs.admin.history import log_ticks, timeline
from django_ojs.admin.jobfilters import (
    LARGE,
    ROWS,
    JobChangeList,
    address,
    job_filter,
    list_filters,
    pack,
    spread,
    unpack,
    with_shown_names,
)
from django_ojs.admin.live import LivePage
from django_ojs.admin.maintenance import MaintenanceMode
from django_ojs.admin.operate import AdminVerb, one_by_one
from django_ojs.admin.overview import Overview
from django_ojs.errors import Conflict, OJSError
from django_ojs.jobs import checkpoints, durableevents
from django_ojs.jobs.cancel import CANCELLABLE, cancel
from django_ojs.jobs.copy import duplicate
from django_ojs.jobs.delete import delete, is_dead_letter
from django_ojs.jobs.priority import PRIORITISABLE, prioritise
from django_ojs.jobs.promote import ACTIVATABLE, RUNNABLE, activate, run_now
from django_ojs.jobs.retry import restart_from, retry, retry_one
from django_ojs.messages import phrase
from django_ojs.models import Job
from django_ojs.rules import redaction
from django_ojs.rules.durableevents import Emitted
from django_ojs.rules.durations import format_instant
from django_ojs.states import State
from django_ojs.statistics import summary


def _cancel(pks: Sequence[UUID], by: str) -> list[Any]:
    return [
        Conflict(phrase("Job '%(job)s' was cancelled before.", job=pk))
        if getattr(outcome, "changed", True) is False
        else outcome
        for pk, outcome in zip(pks, cancel(pks, cancelled_by=by), strict=True)
    ]


def _clear_checkpoint(pk: UUID) -> Any:
    if not checkpoints.clear(pk):
        raise Conflict(phrase("Job '%(job)s' has no checkpoint.", job=pk))
    return pk


def _restart(step: str) -> Any:
    return one_by_one(lambda pk, by: restart_from(pk, step))


#: The parts of a job that its form edits as JSON.
_PARTS = ("args", "meta")
_AREA = forms.Textarea(attrs={"cols": 80, "class": "ojs-edit", "spellcheck": "false"})


def in_dead_letters(job: Job) -> bool:
    return is_dead_letter({"state": job.state, "dead_letter": job.dead_letter})


class RetryForm(forms.Form):
    """What may be changed. A part that the site hides is not shown: an empty field leaves it as it is."""

    queue = forms.CharField(label=_("queue"), max_length=128, required=False)
    priority = forms.CharField(label=_("priority"), max_length=32, required=False)
    args = WireField(kind=object, rows=8, label=_("arguments"), widget=_AREA)
    meta = WireField(kind=object, rows=8, label=_("meta"), widget=_AREA)

    def __init__(self, data: Any, job: Job) -> None:
        initial: dict[str, Any] = {"queue": job.queue, "priority": str(job.priority)}
        self.job, self.hidden = job, []
        for name in _PARTS:
            value = getattr(job, name)
            if redaction.part(name, value, job.type, job.meta) == value:
                initial[name] = value
            else:
                self.hidden.append(name)
        super().__init__(data, initial=initial)
        for name in self.hidden:
            self.fields[name].help_text = gettext("Parts of it are hidden. Leave the field empty to keep it as it is.")

    def override(self) -> dict[str, Any]:
        """What differs from the job."""
        given = {name: value for name, value in self.cleaned_data.items() if value not in (None, "")}
        if "priority" in given:
            given["priority"] = number(given["priority"])
        known = {name: getattr(self.job, name) for name in given}
        return {name: value for name, value in given.items() if jsontext.dumps(value) != jsontext.dumps(known[name])}


class EventForm(forms.Form):
    """What the event says. An empty field is null."""

    payload = WireField(kind=object, rows=8, label=_("payload"), widget=_AREA, help_text=_("Any JSON value."))


VERBS = (
    AdminVerb(
        "cancel_jobs", "Cancel", "cancelled", _cancel, lambda job: job.state in CANCELLABLE,
        question="A cancelled job never runs again. A worker that runs it now learns of this at its next heartbeat.",
    ),
    AdminVerb(
        "activate_jobs", "Activate", "activated", lambda pks, by: activate(pks), lambda job: job.state in ACTIVATABLE
    ),
    AdminVerb(
        "run_jobs_now", "Run now", "made available", lambda pks, by: run_now(pks),
        lambda job: job.state in RUNNABLE,
    ),
    AdminVerb("retry_dead_letters", "Retry", "made available again", lambda pks, by: retry(pks), in_dead_letters),
    AdminVerb(
        "delete_dead_letters", "Delete", "deleted", lambda pks, by: delete(pks), in_dead_letters,
        question="A dead letter that is deleted is gone for good, with its arguments and errors.",
        right="delete", flag=DELETION,
    ),
    AdminVerb(
        "copy_jobs", "Run a copy", "copied", one_by_one(lambda pk, by: duplicate(pk)),
        question="A new job with the same type, arguments and options is enqueued; this one stays as it is.",
        right="add",
    ),
    AdminVerb(
        "clear_checkpoints", "Clear checkpoint", "cleared of checkpoints",
        one_by_one(lambda pk, by: _clear_checkpoint(pk)), lambda job: bool(job.resumable),
        question="What the job has saved is gone for good, and its next attempt starts over.",
    ),
)  # fmt: skip


@admin.register(Job)
class JobAdmin(Overview, DoctorPage, DeadLetters, MaintenanceMode, LivePage):
    list_display = ("short_id", "type", "state_label", "queue", "attempts")
    search_fields = ("id",)
    search_help_text = _(
        "The id of a job, a text in the arguments or meta of new ones, or filters: "
        'type:mail.* state:retryable error:"timed out" since:1h'
    )
    ordering = ("-id",)
    verbs = actions = VERBS
    large_columns = LARGE
    change_form_template = "django_ojs/admin/job.html"
    live_types, live_filter = live.JOB, "job_ids"
    fieldsets = ()  # the page's own template shows the facts of `jobpage`

    @property
    def list_filter(self) -> list[Any]:  # type: ignore[override]
        return list_filters()

    def get_urls(self) -> list[URLPattern]:
        return [
            self.route("rows/", self.rows_view, "job_rows"),
            self.route("<uuid:job_id>/priority/", self.priority_view, "job_priority"),
            self.route("<uuid:job_id>/edit/", self.edit_view, "job_edit"),
            self.route("<uuid:job_id>/logs/", self.logs_view, "job_logs"),
            self.route("<uuid:job_id>/restart/", self.restart_view, "job_restart"),
            self.route("<uuid:job_id>/give/", self.give_view, "job_give"),
            *super().get_urls(),
        ]

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[EndlessChangeList]:
        return JobChangeList

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        """The list. Filters that the search names become the parameters of its address, where the page shows them."""
        named, text = spread(request.GET.get(SEARCH_VAR, ""))
        named = with_shown_names(request.GET) | named
        if named and request.method == "GET":
            return HttpResponseRedirect(address(request.GET.dict(), **{SEARCH_VAR: text, **named}))
        response = super().changelist_view(request, extra_context)
        if not isinstance(response, TemplateResponse) or response.context_data is None:
            return response
        shown = response.context_data.get("cl")
        if shown is not None and shown.look is None:  # a search that looks through jobs is not repeated
            query = {**request.GET.dict(), ROWS: pack(job.pk for job in shown.result_list)}
            url = f"{self.url('job_rows')}?{urlencode(query)}"
            response.context_data["follow"] = live.follow(
                request, url, live.JOBS, age=live.POLLING, every=live.PAGE_POLLING
            )
        return response

    def rows_view(self, request: HttpRequest) -> HttpResponse:
        """What the list shows now of the jobs that the viewer has on the page, which stay where they are."""
        if request.method != "GET":
            return HttpResponseNotAllowed(["GET"])
        given = request.GET.copy()
        request.live_rows = unpack("".join(given.pop(ROWS, [])))  # type: ignore[attr-defined]
        request.GET = given  # type: ignore[assignment]
        response = super().changelist_view(request)
        if isinstance(response, TemplateResponse):
            response.template_name = "django_ojs/admin/job_rows.html"
        add_never_cache_headers(response)
        return response

    def get_list_display(self, request: HttpRequest) -> Any:
        """Which times the list shows depends on the states it lists: where they wait, run or have ended."""
        wanted, _faults = job_filter(request.GET)
        times: tuple[str, ...]
        match wanted.wanted_states:
            case [State.SCHEDULED] | [State.RETRYABLE]:
                times = ("last_error", "created_ago", "due")
            case [State.AVAILABLE] | [State.PENDING]:
                times = ("priority", "last_error", "created_ago", "enqueued_ago")
            case [State.ACTIVE]:
                times = ("ran", "last_error", "created_ago", "started_ago")
            case _ if wanted.along != "id":
                times = ("ran", "last_error", "finished_ago")
            case _:
                times = ("ran", "last_error", "created_ago", "finished_ago")
        return (*self.list_display, *times)

    def meant_by_list(self, request: HttpRequest) -> QuerySet[Job]:
        wanted, _faults = job_filter(request.GET)
        return wanted.jobs()

    def get_search_results(self, request: HttpRequest, queryset: Any, search_term: str) -> tuple[Any, bool]:
        return queryset, False  # `JobChangeList` searches

    def page_context(self, request: HttpRequest, obj: Job) -> dict[str, Any]:
        using = obj._state.db or DEFAULT_DB_ALIAS
        sides = (
            (gettext("Policy"), jobpage.policy(obj)),
            (gettext("Relations"), jobpage.relations(self, obj, using)),
            (gettext("Times"), jobpage.times(obj)),
        )
        done = steps.read(obj)
        past = timeline(obj.pk, done, obj.finished_at)
        return {
            "title": display.ellipsized(obj.type), "subtitle": str(obj.pk),
            "strip": jobpage.strip(self, obj, done, using), "failures": jobpage.failures(obj),
            "data": jobpage.data(obj),
            "sides": [side for side in sides if side[1]], "timeline": past,
            "steps": steps.section(self, obj, done, past["axis"]),
            "prioritise": self.kept_url(request, "priority", obj.pk) if obj.state in PRIORITISABLE else "",
            "edit": self.kept_url(request, "edit", obj.pk) if in_dead_letters(obj) else "",
            "log_ticks": log_ticks(obj.pk, past["axis"], using) if past["attempts"] else None,
            "logs": logs.section(obj, self.own_url("logs", obj.pk), using),
        }  # fmt: skip

    def logs_view(self, request: HttpRequest, job_id: UUID) -> HttpResponse:
        """The lines behind those that the page has, or all of them as a file."""
        if request.method != "GET":
            return HttpResponseNotAllowed(["GET"])
        job = self.get_object(request, str(job_id))
        if job is None:
            raise Http404
        if not self.has_view_permission(request, job):
            raise PermissionDenied
        return logs.part(request, job, job._state.db or DEFAULT_DB_ALIAS)

    state_label = live.cell(display.column(display.colour_label, "state", "state"))
    created_ago = live.cell(display.column(display.ago, "created_at", "created"))
    enqueued_ago = live.cell(display.column(display.ago, "enqueued_at", "enqueued"))
    started_ago = live.cell(display.column(display.ago, "started_at", "started"))
    finished_ago = live.cell(display.column(display.ago, "finished_at", "ended"))
    due = live.cell(display.column(display.when, "due_at", "due"))

    @admin.display(description=_("id"))
    def short_id(self, job: Job) -> SafeString:
        return display.ends(str(job.pk))

    @live.cell
    @admin.display(description=_("attempt"))
    def attempts(self, job: Job) -> str:
        return jobpage.attempts(job)

    @live.cell
    @admin.display(description=_("ran"))
    def ran(self, job: Job) -> str:
        """How long the latest attempt ran, or has been running."""
        return display.duration(jobpage.ran_ms(job, clock.now(job._state.db)))

    @live.cell
    @admin.display(description=_("last error"))
    def last_error(self, job: Any) -> SafeString | str:
        """What failed last, in short. For the list, which loads the history."""
        failure = jobpage.last_failure(job)
        if failure is None:
            return display.NOTHING
        return format_html('<span class="ojs-error" title="{0} {1}"><b>{0}</b> {1}</span>', *failure)

    # Changing the priority of a job that waits

    def priority_view(self, request: HttpRequest, job_id: UUID) -> HttpResponse:
        job = self._to_change(request, job_id)
        if request.method != "POST":  # after a login: the session had ended
            return HttpResponseRedirect(self.kept_url(request, "change", job.pk))
        given = request.POST.get("priority", "").strip()
        if given:
            change = one_by_one(lambda pk, by: prioritise(pk, number(given), by=by))
            done = gettext("given the priority %(priority)s") % {"priority": given}
            verb = AdminVerb("prioritise", "Change priority", done, change)
            self.report(request, verb, self.perform(request, verb, [job]))
        else:
            self.message_user(request, gettext("Enter a priority, a number such as 5."), messages.ERROR)
        return HttpResponseRedirect(self.kept_url(request, "change", job.pk))

    # Retrying a dead letter with other arguments, meta, queue or priority

    def edit_view(self, request: HttpRequest, job_id: UUID) -> HttpResponse:
        job = self._to_change(request, job_id)
        back = self.kept_url(request, "change", job.pk)
        form = RetryForm(request.POST if request.method == "POST" else None, job)
        if form.is_valid() and self._retry(request, form):
            return HttpResponseRedirect(back)
        title = gettext("Change and retry")
        return self.page(request, "retry_form", title, form=form, job=display.printable(job), back=back)

    def _retry(self, request: HttpRequest, form: RetryForm) -> bool:
        """Retry it as the form says; False, with the reason in the form, where that is refused."""
        job, override = form.job, form.override()
        entry = self.audit_entry(request, "job.retry", job.pk, override=sorted(override))
        try:
            audit.perform(lambda: retry_one(job.pk, override=override or None), entry)
        except OJSError as error:
            blame(form, error, {})
            return False
        summary.forget()
        text = gettext("Made available again.")
        if override:
            text = gettext("Made available again with other %(parts)s.") % {"parts": ", ".join(sorted(override))}
        LogEntry.objects.log_actions(request.user.pk, [job], CHANGE, text)  # type: ignore[arg-type]
        self.message_user(request, gettext("1 job made available again."), messages.SUCCESS)
        return True

    # Letting a durable job begin again at one of its steps

    def restart_view(self, request: HttpRequest, job_id: UUID) -> HttpResponse:
        """Ask whether the job is to begin again at the step that the address names, and let it."""
        job, step = self._to_change(request, job_id), request.GET.get("step", "")
        back = self.kept_url(request, "change", job.pk)
        if request.method != "POST":
            title = gettext("Begin again at a step")
            return self.page(request, "restart", title, step=step, job=display.printable(job), back=back)
        verb = AdminVerb("restart", "Begin again at this step", "made available again", _restart(step))
        self.report(request, verb, self.perform(request, verb, [job], {"from_step": step}))
        return HttpResponseRedirect(back)

    # Giving a durable job the event that it waits for

    def give_view(self, request: HttpRequest, job_id: UUID) -> HttpResponse:
        """Ask for the payload of the event that the step waits for which the address names, and emit it."""
        job, name = self._to_change(request, job_id), request.GET.get("step", "")
        back = self.kept_url(request, "change", job.pk)
        form = EventForm(request.POST if request.method == "POST" else None)
        if form.is_valid() and self._give(request, job, name, form):
            return HttpResponseRedirect(back)
        step = next((one for one in steps.read(job) if one.name == name and steps.waits_for_event(one)), None)
        event = "" if step is None else display.ellipsized(" ".join(filter(None, step.event)), 200)
        shown = {"form": form, "step": name, "event": event, "job": display.printable(job), "back": back}
        return self.page(request, "give_form", gettext("Give the event"), **shown)

    def _give(self, request: HttpRequest, job: Job, step: str, form: EventForm) -> bool:
        """Emit it; False, with the reason in the form, where that is refused."""
        entry = self.audit_entry(request, "durable_event.emit")

        def give() -> Emitted:
            done = durableevents.emit_for(job.pk, step, jsontext.dumps(form.cleaned_data["payload"]))
            entry.target = f"{done.name} {done.key}".rstrip()
            entry.detail = {"is_new": done.is_new, "jobs": len(done.job_ids), "job_id": str(job.pk), "step": step}
            return done

        try:
            done = audit.perform(give, entry)
        except OJSError as error:
            blame(form, error, {}, "payload")
            return False
        if not done.is_new:
            text = gettext("The event had come at %(time)s already: nothing has changed.")
            self.message_user(request, text % {"time": format_instant(done.created_at)}, messages.WARNING)
            return True
        summary.forget()
        number = len(done.job_ids)
        text = ngettext("%(number)s job has got the event.", "%(number)s jobs have got the event.", number)
        self.message_user(request, text % {"number": f"{number:,}"}, messages.SUCCESS)
        return True

    def _to_change(self, request: HttpRequest, job_id: UUID) -> Job:
        """The job of a form, for a user who may see and change it."""
        job: Job | None = self.get_object(request, str(job_id))
        if job is None:
            raise Http404
        if not self.has_right(request, "change") or not self.has_view_permission(request, job):
            raise PermissionDenied
        return job
