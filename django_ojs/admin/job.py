"""Jobs: the list, a job's page with all it went through, and what an operator can do with it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from django.contrib import admin
from django.contrib.admin.models import DELETION
from django.contrib.admin.utils import flatten_fieldsets
from django.db import DEFAULT_DB_ALIAS
from django.db.models import Q, QuerySet
from django.http import HttpRequest
from django.utils.html import format_html
from django.utils.safestring import SafeString

from django_ojs import jsontext
from django_ojs.admin import columns, display
from django_ojs.admin.base import EndlessChangeList, IdSearchAdmin, TextFilter, unless_large
from django_ojs.admin.board import Board
from django_ojs.admin.deadletters import mentions
from django_ojs.admin.operate import Verb, as_action, one_by_one
from django_ojs.admin.prioritising import Prioritising
from django_ojs.admin.timeline import timeline
from django_ojs.errors import Conflict
from django_ojs.models import Job, Queue
from django_ojs.operations import progress
from django_ojs.operations.activate import activate
from django_ojs.operations.cancel import cancel
from django_ojs.operations.delete import delete
from django_ojs.operations.duplicate import duplicate
from django_ojs.operations.hurry import hurry
from django_ojs.operations.retry import retry
from django_ojs.policies import redaction
from django_ojs.states import LIVE, State

LARGE = ("args", "meta", "extra", "result", "errors", "retry")
DEAD_LETTER = "dead_letter"


def _cancel(pks: Sequence[UUID], by: str) -> list[Any]:
    already = "Job '{}' was cancelled before."
    return [
        Conflict(already.format(pk)) if getattr(outcome, "changed", True) is False else outcome
        for pk, outcome in zip(pks, cancel(pks, cancelled_by=by), strict=True)
    ]


def _in_dead_letters(job: Job) -> bool:
    return job.state == State.DISCARDED and job.dead_letter


VERBS = (
    Verb(
        "cancel_jobs", "Cancel", "cancelled", _cancel, lambda job: job.state in LIVE,
        question="A cancelled job never runs again. A worker that has it now is told at its next heartbeat.",
    ),
    Verb(
        "activate_jobs", "Activate", "activated", lambda pks, by: activate(pks), lambda job: job.state == State.PENDING
    ),
    Verb(
        "run_jobs_now", "Run now", "made available", lambda pks, by: hurry(pks),
        lambda job: job.state in (State.SCHEDULED, State.RETRYABLE),
    ),
    Verb("retry_dead_letters", "Retry", "made available again", lambda pks, by: retry(pks), _in_dead_letters),
    Verb(
        "delete_dead_letters", "Delete", "deleted", lambda pks, by: delete(pks), _in_dead_letters,
        question="A dead letter that is deleted is gone for good, with its arguments and errors.",
        right="delete", flag=DELETION,
    ),
    Verb(
        "copy_jobs", "Run a copy", "copied", one_by_one(lambda pk, by: duplicate(pk)),
        question="A new job with the same type, arguments and options is enqueued; this one stays as it is.",
        right="add",
    ),
)  # fmt: skip


class StateFilter(admin.SimpleListFilter):
    title, parameter_name = "state", "state"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [*((state.value, state.value) for state in State), (DEAD_LETTER, "dead letter queue")]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Job]) -> QuerySet[Job]:
        if self.value() == DEAD_LETTER:
            return queryset.filter(state=State.DISCARDED, dead_letter=True)
        return queryset.filter(state=self.value()) if self.value() else queryset


class QueueFilter(admin.SimpleListFilter):
    title, parameter_name = "queue", "queue"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [(name, name) for name in Queue.objects.values_list("name", flat=True)[:100]]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Job]) -> QuerySet[Job]:
        return queryset.filter(queue=self.value()) if self.value() else queryset


class TypeFilter(TextFilter):
    title, parameter_name, field, placeholder = "type", "type", "type", "mail.send or mail.*"


class ErrorFilter(TextFilter):
    """Of dead letters only: the others' errors are in no index that would lead to them."""

    title, parameter_name, field, placeholder = "error of a dead letter", "error", "errors", "ConnectionError"

    def queryset(self, request: HttpRequest, queryset: QuerySet[Job]) -> QuerySet[Job]:
        text = (self.value() or "").replace("\0", "").strip()
        wanted = Q(state=State.DISCARDED, dead_letter=True, finished_at__isnull=False)
        return queryset.filter(wanted & mentions(text)) if text else queryset


class JobChangeList(EndlessChangeList):
    """Loads no arguments and no results, and no errors of a completed job: it has none to show (core 5.3)."""

    def get_queryset(self, request: HttpRequest, exclude_parameters: Any = None) -> QuerySet[Job]:
        jobs: QuerySet[Job] = super().get_queryset(request, exclude_parameters)
        return jobs.defer(*LARGE).annotate(history=unless_large("errors", ~Q(state=State.COMPLETED), limit=262_144))


@admin.register(Job)
class JobAdmin(Prioritising, Board, IdSearchAdmin):
    list_display = (
        "short_id", "type", "queue", "state_label", "attempts", "priority", "last_error", "created_ago", "enqueued_ago",
    )  # fmt: skip
    list_filter = (StateFilter, QueueFilter, TypeFilter, ErrorFilter)
    ordering = ("-id",)
    verbs = VERBS
    actions = [as_action(verb) for verb in VERBS]
    large_columns = LARGE
    change_form_template = "django_ojs/admin/job.html"
    fieldsets = (
        (None, {"fields": (
            "id", ("type", "queue"), ("state_label", "dead"), ("attempts", "priority"), "holder", "progress",
        )}),
        ("Errors", {"fields": ("shown_errors",)}),
        ("Data", {"fields": ("shown_args", "shown_meta", "shown_extra", "shown_result")}),
        ("Times", {"fields": (
            ("created", "enqueued"), ("due", "activated"), ("started", "finished"), ("visible", "timeout_end"),
            "expires",
        )}),
        ("Engine", {"classes": ("collapse",), "fields": (
            "shown_retry", ("max_attempts", "retry_delay"), ("timeout", "visibility"), ("lease", "losses"), "wake",
            "unique_key", "trace_id", "workflow_id",
        )}),
    )  # fmt: skip

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[EndlessChangeList]:
        return JobChangeList

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        """No heading for errors where there are none."""
        return [(name, options) for name, options in self.fieldsets if name != "Errors" or (obj and obj.errors)]

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        return flatten_fieldsets(self.fieldsets)

    def page_context(self, obj: Job) -> dict[str, Any]:
        return {"timeline": timeline(obj.pk), "prioritise": self.prioritise_url(obj)}

    state_label = columns.label("state", "state")
    holder = columns.code("worker_id", "worker")
    shown_args = columns.part("args")("args", "arguments")
    shown_meta = columns.part("meta")("meta", "meta")
    shown_extra = columns.part("extra")("extra", "other attributes")
    shown_result = columns.part("result")("result", "result")
    created = columns.time("created_at", "created")
    created_ago = columns.ago("created_at", "created")
    enqueued_ago = columns.ago("enqueued_at", "enqueued")
    due = columns.time("due_at", "due")
    activated = columns.time("activated_at", "activated")
    enqueued = columns.time("enqueued_at", "enqueued")
    started = columns.time("started_at", "started")
    visible = columns.time("visible_until", "reserved until")
    timeout_end = columns.time("timeout_at", "times out")
    expires = columns.time("expires_at", "expires")
    finished = columns.time("finished_at", "finished")
    wake = columns.time("wake_at", "next look by the scheduler")
    retry_delay = columns.duration("retry_delay_ms", "latest backoff")
    timeout = columns.duration("timeout_ms", "execution timeout")
    visibility = columns.duration("visibility_ms", "own reservation length")
    lease = columns.duration("lease_ms", "reservation granted")

    @admin.display(description="id")
    def short_id(self, job: Job) -> SafeString:
        return display.ends(str(job.pk))

    @admin.display(description="attempt")
    def attempts(self, job: Job) -> str:
        return f"{job.attempt} of {job.max_attempts}"

    @admin.display(description="progress")
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
        return format_html("{} <small>({})</small>", words or "data only", display.when(found.updated_at))

    @admin.display(description="dead letter")
    def dead(self, job: Job) -> str:
        return "yes" if job.dead_letter else "no"

    @admin.display(description="last error")
    def last_error(self, job: Any) -> SafeString | str:
        """What failed last, in short. For the list, which loads the history."""
        if not job.history:
            return display.NOTHING
        if redaction.hides("errors", job.type):  # meta is not loaded here: `hides` is careful without it
            return redaction.MASK
        error = redaction.error(job.type, job.history[-1])
        kind, message = display.shorten(error.get("type") or "error", 40), display.shorten(error.get("message") or "")
        return format_html('<span class="ojs-error"><b>{}</b> {}</span>', kind, message)

    @admin.display(description="newest first")
    def shown_errors(self, job: Job) -> SafeString | str:
        return display.errors(redaction.part("errors", job.errors, job.type, job.meta))

    @admin.display(description="retry policy")
    def shown_retry(self, job: Job) -> SafeString | str:
        return display.json(jsontext.loads(job.retry)) if job.retry else "the default"
