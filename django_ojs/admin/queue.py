"""Queues: pause, resume, and the defaults they give to their jobs."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, ClassVar

from django import forms
from django.contrib import admin
from django.core.exceptions import ValidationError
from django.core.validators import MinValueValidator
from django.db import transaction
from django.db.models import Model
from django.http import HttpRequest
from django.urls import reverse
from django.utils.html import format_html
from django.utils.http import urlencode
from django.utils.safestring import SafeString

from django_ojs import clock
from django_ojs.admin import auditing, columns, display
from django_ojs.admin.operate import OperatingAdmin, Verb, as_action, one_by_one
from django_ojs.errors import OJSError
from django_ojs.models import Queue
from django_ojs.operations import counts, queues
from django_ojs.operations.pause import pause, resume
from django_ojs.operations.stats import stats
from django_ojs.policies import names
from django_ojs.policies import retry as retry_policy
from django_ojs.states import TERMINAL, WAITING, State

VERBS = (
    Verb(
        "pause_queues", "Pause", "paused", one_by_one(lambda pk, by: pause(pk, by=by)),
        lambda queue: not queue.paused,
        question="Workers get no jobs from a paused queue; jobs are still accepted. Running jobs go on.",
    ),
    Verb(
        "resume_queues", "Resume", "resumed", one_by_one(lambda pk, by: resume(pk, by=by)), lambda queue: queue.paused
    ),
)  # fmt: skip


class PolicyField(forms.JSONField):
    """JSON to type in; empty where there is none."""

    def prepare_value(self, value: Any) -> Any:
        return "" if value is None else super().prepare_value(value)


class QueueForm(forms.ModelForm):  # type: ignore[type-arg]
    """A queue's defaults. Pausing is no field: it is an operation with an event."""

    retry = PolicyField(
        required=False,
        label="Retry policy",
        widget=forms.Textarea(attrs={"rows": 4, "class": "vLargeTextField"}),
        help_text='As jobs write it, such as {"max_attempts": 5, "initial_interval": "PT2S"}. Empty: the site\'s.',
    )

    class Meta:
        labels = {"visibility_ms": "Reservation length", "timeout_ms": "Execution timeout"}
        help_texts = {
            "visibility_ms": "Milliseconds. Empty: the site's.",
            "timeout_ms": "Milliseconds. Empty: the site's.",
        }

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for name in {"visibility_ms", "timeout_ms"} & self.fields.keys():
            self.fields[name].validators.append(MinValueValidator(1))

    def clean_name(self) -> str:
        name: str = self.cleaned_data["name"]
        try:
            return names.check_queue(name)
        except ValueError as error:
            raise ValidationError(f"The name {error}.") from error

    def clean_retry(self) -> Any:
        policy = self.cleaned_data["retry"]
        if policy is None:
            return None
        try:
            retry_policy.parse(policy)
        except OJSError as error:
            raise ValidationError(error.message) from error
        return policy


@admin.register(Queue)
class QueueAdmin(OperatingAdmin):
    form = QueueForm
    list_display = (
        "name",
        "status_label",
        "waiting",
        "running",
        "ended",
        "paused_since",
        "visibility",
        "timeout",
        "created",
        "its_jobs",
    )
    list_filter = ("paused",)
    search_fields = ("name",)
    ordering = ("name",)
    verbs: ClassVar[Sequence[Verb]] = VERBS
    actions = [as_action(verb) for verb in VERBS]
    fieldsets = (
        (None, {"fields": ("name", "status_label", ("paused_since", "resumed"), "its_jobs")}),
        ("Jobs", {"fields": ("state_counts", "last_hour")}),
        ("Defaults of its jobs", {"fields": ("visibility_ms", "timeout_ms", "retry")}),
        ("Row", {"fields": (("created", "updated"),)}),
    )
    add_fieldsets = ((None, {"fields": ("name", "visibility_ms", "timeout_ms", "retry")}),)
    computed = (
        "state_counts",
        "last_hour",
        "status_label",
        "paused_since",
        "resumed",
        "its_jobs",
        "created",
        "updated",
    )

    def has_add_permission(self, request: HttpRequest) -> bool:
        return self._has_right(request, "add")

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return self._has_right(request, "change")

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        return self.fieldsets if obj else self.add_fieldsets

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        return ("name", *self.computed) if obj else ()

    def save_model(self, request: HttpRequest, obj: Queue, form: Any, change: bool) -> None:
        """Write only what the form has: the queue may have been paused meanwhile."""
        save = partial(self._save, obj, change)
        auditing.saved(request, form, obj, "queue.configure" if change else "queue.create", save)

    def _save(self, obj: Queue, change: bool) -> None:
        now = clock.now()
        obj.updated_at = now
        if change:
            obj.save(update_fields=["visibility_ms", "timeout_ms", "retry", "updated_at"])
        else:
            obj.created_at = now
            obj.save(force_insert=True)
        transaction.on_commit(queues.forget)

    def get_changelist_instance(self, request: HttpRequest) -> Any:
        """The counts of all queues on the page, read at once."""
        changelist = super().get_changelist_instance(request)
        found = counts.count_all([queue.pk for queue in changelist.result_list])
        for queue in changelist.result_list:
            queue.counted = found.get(queue.pk)
        return changelist

    @admin.display(description="waiting")
    def waiting(self, queue: Queue) -> int:
        states = _counted(queue)
        return sum(states.get(state, 0) for state in WAITING)

    @admin.display(description="active")
    def running(self, queue: Queue) -> int:
        return _counted(queue).get(State.ACTIVE, 0)

    @admin.display(description="ended")
    def ended(self, queue: Queue) -> int:
        states = _counted(queue)
        return sum(states.get(state, 0) for state in TERMINAL)

    @admin.display(description="by state")
    def state_counts(self, queue: Queue) -> str:
        found = counts.count(queue.pk)
        return " · ".join(f"{number} {state}" for state, number in found.states.items() if number) or display.NOTHING

    @admin.display(description="last hour")
    def last_hour(self, queue: Queue) -> str:
        done = stats(queue.pk).throughput
        told = f"{done.completed_last_hour} completed, {done.failed_last_hour} failed for good"
        if done.completed_last_hour:
            told += f"; a job took {done.avg_duration_ms / 1000:.2f} s"
        return f"{told}; a start waited {done.avg_wait_ms / 1000:.2f} s" if done.avg_wait_ms else told

    visibility = columns.duration("visibility_ms", "reservation")
    timeout = columns.duration("timeout_ms", "execution timeout")
    created = columns.time("created_at", "created")
    updated = columns.time("updated_at", "changed")
    resumed = columns.time("resumed_at", "resumed")

    @admin.display(description="status")
    def status_label(self, queue: Queue) -> SafeString:
        return display.label(queue.status, "" if queue.paused else "good")

    @admin.display(description="paused since")
    def paused_since(self, queue: Queue) -> SafeString | str:
        return display.when(queue.paused_at) if queue.paused else display.NOTHING

    @admin.display(description="jobs")
    def its_jobs(self, queue: Queue) -> SafeString:
        url = reverse("admin:django_ojs_job_changelist", current_app=self.admin_site.name)
        waiting = urlencode({"queue": queue.name, "state": "available"})
        return format_html(
            '<span class="ojs-line"><a href="{0}?{1}">all</a> · <a href="{0}?{2}">waiting</a></span>',
            url,
            urlencode({"queue": queue.name}),
            waiting,
        )


def _counted(queue: Queue) -> dict[str, int]:
    """The counts that the list read for this row."""
    found: counts.Counts | None = getattr(queue, "counted", None)
    return found.states if found else {}
