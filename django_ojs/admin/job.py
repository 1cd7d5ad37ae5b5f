"""Jobs: the list, a job's page with all it went through, and what an operator can do with it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from django.contrib import admin
from django.contrib.admin.models import DELETION
from django.contrib.admin.utils import flatten_fieldsets
from django.db import DEFAULT_DB_ALIAS
from django.http import HttpRequest
from django.urls import reverse
from django.utils.html import format_html, format_html_join
from django.utils.http import urlencode
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _

from django_ojs import jsontext
from django_ojs.admin import columns, display, live
from django_ojs.admin.base import EndlessChangeList, ViewAdmin
from django_ojs.admin.board import Board
from django_ojs.admin.jobfilters import FILTERS, LARGE, JobChangeList, job_filter
from django_ojs.admin.jobforms import Prioritising, Retrying, in_dead_letters
from django_ojs.admin.livepage import LivePage
from django_ojs.admin.maintenance import Switching
from django_ojs.admin.operate import Verb, as_action, one_by_one
from django_ojs.admin.timeline import timeline
from django_ojs.errors import Conflict
from django_ojs.jobs import progress
from django_ojs.jobs.selection import tags
from django_ojs.jobs.verbs import (
    ACTIVATABLE,
    CANCELLABLE,
    RUNNABLE,
    activate,
    cancel,
    delete,
    duplicate,
    retry,
    run_now,
)
from django_ojs.messages import phrase
from django_ojs.models import Job, Workflow
from django_ojs.rules import redaction
from django_ojs.states import State


def _cancel(pks: Sequence[UUID], by: str) -> list[Any]:
    return [
        Conflict(phrase("Job '%(job)s' was cancelled before.", job=pk))
        if getattr(outcome, "changed", True) is False
        else outcome
        for pk, outcome in zip(pks, cancel(pks, cancelled_by=by), strict=True)
    ]


VERBS = (
    Verb(
        "cancel_jobs", "Cancel", "cancelled", _cancel, lambda job: job.state in CANCELLABLE,
        question="A cancelled job never runs again. A worker that has it now is told at its next heartbeat.",
    ),
    Verb(
        "activate_jobs", "Activate", "activated", lambda pks, by: activate(pks), lambda job: job.state in ACTIVATABLE
    ),
    Verb(
        "run_jobs_now", "Run now", "made available", lambda pks, by: run_now(pks),
        lambda job: job.state in RUNNABLE,
    ),
    Verb("retry_dead_letters", "Retry", "made available again", lambda pks, by: retry(pks), in_dead_letters),
    Verb(
        "delete_dead_letters", "Delete", "deleted", lambda pks, by: delete(pks), in_dead_letters,
        question="A dead letter that is deleted is gone for good, with its arguments and errors.",
        right="delete", flag=DELETION,
    ),
    Verb(
        "copy_jobs", "Run a copy", "copied", one_by_one(lambda pk, by: duplicate(pk)),
        question="A new job with the same type, arguments and options is enqueued; this one stays as it is.",
        right="add",
    ),
)  # fmt: skip


@admin.register(Job)
class JobAdmin(Prioritising, Retrying, Switching, Board, LivePage, ViewAdmin):
    list_display = (
        "short_id", "type", "queue", "state_label", "attempts", "priority", "last_error", "created_ago", "enqueued_ago",
    )  # fmt: skip
    list_filter = FILTERS
    search_fields = ("id",)
    search_help_text = _("The id of a job, or a text in the arguments or meta of new ones.")
    ordering = ("-id",)
    verbs = VERBS
    actions = [as_action(verb) for verb in VERBS]
    large_columns = LARGE
    change_form_template = "django_ojs/admin/job.html"
    live_types, live_filter = live.JOB, "job_ids"
    fieldsets = (
        (None, {"fields": (
            "id", ("type", "queue"), ("state_label", "dead"), ("attempts", "priority"), "holder", "progress",
            ("flow", "trace"), "tags",
        )}),
        (_("Errors"), {"fields": ("shown_errors",)}),
        (_("Data"), {"fields": ("shown_args", "shown_meta", "shown_extra", "shown_result")}),
        (_("Times"), {"fields": (
            ("created", "enqueued"), ("due", "activated"), ("started", "finished"), ("visible", "timeout_end"),
            ("expires", "start_by", "deadline"),
        )}),
        (_("Engine"), {"classes": ("collapse",), "fields": (
            "shown_retry", ("max_attempts", "uncounted", "retry_delay"), ("timeout", "visibility"),
            ("heartbeat", "grace"), ("lease", "losses"), "wake", "unique_key",
        )}),
    )  # fmt: skip

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[EndlessChangeList]:
        return JobChangeList

    def get_list_display(self, request: HttpRequest) -> Any:
        """Ended jobs are listed by their end; of those that wait for their time it is told."""
        wanted, _faults = job_filter(request.GET)
        if wanted.wanted_states in ([State.SCHEDULED], [State.RETRYABLE]):
            return tuple("due" if name == "enqueued_ago" else name for name in self.list_display)
        if wanted.along == "id":
            return self.list_display
        return (*(name for name in self.list_display if name not in ("created_ago", "enqueued_ago")), "finished_ago")

    def get_search_results(self, request: HttpRequest, queryset: Any, search_term: str) -> tuple[Any, bool]:
        return queryset, False  # `JobChangeList` searches

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        """No heading for errors where there are none."""
        return [one for one in self.fieldsets if one[1]["fields"] != ("shown_errors",) or (obj and obj.errors)]

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        return flatten_fieldsets(self.fieldsets)

    def page_context(self, obj: Job) -> dict[str, Any]:
        return {"timeline": timeline(obj.pk), "prioritise": self.prioritise_url(obj), "edit": self.edit_url(obj)}

    state_label = columns.label("state", "state")
    holder = columns.code("worker_id", "worker")
    trace = columns.code("trace_id", "trace id")
    shown_args = columns.part("args")("args", "arguments")
    shown_meta = columns.part("meta")("meta", "meta")
    shown_extra = columns.part("extra")("extra", "other attributes")
    shown_result = columns.part("result")("result", "result")
    created = columns.time("created_at", "created")
    created_ago = columns.ago("created_at", "created")
    enqueued_ago = columns.ago("enqueued_at", "enqueued")
    finished_ago = columns.ago("finished_at", "ended")
    due = columns.time("due_at", "due")
    activated = columns.time("activated_at", "activated")
    enqueued = columns.time("enqueued_at", "enqueued")
    started = columns.time("started_at", "started")
    visible = columns.time("visible_until", "reserved until")
    timeout_end = columns.time("timeout_at", "times out")
    expires = columns.time("expires_at", "expires")
    start_by = columns.time("start_by", "to start by")
    deadline = columns.time("deadline_at", "to end by")
    finished = columns.time("finished_at", "finished")
    wake = columns.time("wake_at", "next look by the scheduler")
    retry_delay = columns.duration("retry_delay_ms", "latest backoff")
    timeout = columns.duration("timeout_ms", "execution timeout")
    visibility = columns.duration("visibility_ms", "own reservation length")
    heartbeat = columns.duration("heartbeat_ms", "heartbeat timeout")
    grace = columns.duration("grace_ms", "grace period")
    lease = columns.duration("lease_ms", "reservation granted")

    @admin.display(description=_("id"))
    def short_id(self, job: Job) -> SafeString:
        return display.ends(str(job.pk))

    @admin.display(description=_("workflow"))
    def flow(self, job: Job) -> SafeString | str:
        """The way to the workflow, where this site has its page."""
        if job.workflow_id is None or not self.admin_site.is_registered(Workflow):
            return display.code(job.workflow_id)
        name = f"admin:{self.opts.app_label}_workflow_change"
        address = reverse(name, args=[job.workflow_id], current_app=self.admin_site.name)
        return format_html('<a class="ojs-id" href="{}">{}</a>', address, str(job.workflow_id))

    @admin.display(description=_("tags"))
    def tags(self, job: Job) -> SafeString | str:
        """Each leads to the list of the jobs that have it."""
        links = ((self._url("changelist"), urlencode({"tag": tag}), display.shorten(tag)) for tag in tags(job.extra))
        return format_html_join(" ", '<a href="{}?{}">{}</a>', links) or display.NOTHING

    @admin.display(description=_("attempt"))
    def attempts(self, job: Job) -> str:
        most = job.max_attempts + (job.uncounted or 0)
        return _("%(number)s of %(most)s") % {"number": job.attempt, "most": most}

    @admin.display(description=_("progress"))
    def progress(self, job: Job) -> SafeString | str:
        """What the handler reported last in this attempt, as it shows in the API."""
        row = {"id": job.pk, "attempt": job.attempt, "started_at": job.started_at, "state": job.state}
        found = progress.of([row], job._state.db or DEFAULT_DB_ALIAS).get(job.pk)
        if found is None:
            return display.NOTHING
        shown = progress.describe(row, found)
        percent = "" if shown["progress"] is None else f"{shown['progress'] * 100:g} %"
        message = redaction.part("progress", found.message, job.type, job.meta) if found.message else ""
        words = ", ".join(filter(None, (percent, display.shorten(message))))
        bar = format_html('<progress max="1" value="{}" aria-hidden="true"></progress> ', shown["progress"] or 0)
        said = format_html("{} <small>({})</small>", words or _("data only"), display.when(found.updated_at))
        return format_html("{}{}", bar if percent else "", said)

    @admin.display(description=_("dead letter"))
    def dead(self, job: Job) -> str:
        return str(_("yes") if job.dead_letter else _("no"))

    @admin.display(description=_("last error"))
    def last_error(self, job: Any) -> SafeString | str:
        """What failed last, in short. For the list, which loads the history."""
        if not job.history:
            return display.NOTHING
        if redaction.hides("errors", job.type):  # meta is not loaded here: `hides` is careful without it
            return redaction.MASK
        error = redaction.error(job.type, job.history[-1])
        kind, message = display.shorten(error.get("type") or "error", 40), display.shorten(error.get("message") or "")
        return format_html('<span class="ojs-error"><b>{}</b> {}</span>', kind, message)

    @admin.display(description=_("newest first"))
    def shown_errors(self, job: Job) -> SafeString | str:
        return display.errors(redaction.part("errors", job.errors, job.type, job.meta))

    @admin.display(description=_("retry policy"))
    def shown_retry(self, job: Job) -> SafeString | str:
        return display.json(jsontext.loads(job.retry)) if job.retry else str(_("the default"))
