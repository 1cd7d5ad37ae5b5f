"""Queues: what is in them, what they are configured to, pause and resume."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, ClassVar

from django.contrib import admin
from django.contrib.admin.utils import unquote
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.utils.html import format_html
from django.utils.http import urlencode
from django.utils.safestring import SafeString
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from django_ojs import clock
from django_ojs.admin import auditing, columns, display
from django_ojs.admin.operate import EditingAdmin, Verb, as_action, one_by_one
from django_ojs.admin.queueform import QueueForm
from django_ojs.database import database
from django_ojs.models import Job, Queue
from django_ojs.models.queue import TEMPLATE
from django_ojs.queues import configuration as configure
from django_ojs.queues.configuration import pause, resume, why_paused
from django_ojs.states import TERMINAL, WAITING, State
from django_ojs.statistics import counters
from django_ojs.statistics.throughput import stats

VERBS = (
    Verb(
        "pause_queues", "Pause", "paused",
        one_by_one(lambda pk, by, reason: pause(configure.names_only(pk), by=by, reason=reason)),
        lambda queue: not queue.paused and queue.name != TEMPLATE, reason=True,
        question="Workers get no jobs from a paused queue; jobs are still accepted. Running jobs go on.",
    ),
    Verb(
        "resume_queues", "Resume", "resumed",
        one_by_one(lambda pk, by: resume(configure.names_only(pk), by=by)), lambda queue: queue.paused,
    ),
)  # fmt: skip


@admin.register(Queue)
class QueueAdmin(EditingAdmin):
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
        (None, {"fields": ("name", "status_label", ("paused_since", "paused_by", "pause_reason"), "its_jobs")}),
        (_("Jobs"), {"fields": ("state_counts", "last_hour")}),
    )
    configuration = (
        (_("Limits"), {"fields": (("concurrency", "rate_limit"), ("max_depth", "strategy", "warning_threshold"))}),
        (_("What it takes"), {"fields": ("allowed_job_types", "draining")}),
        (_("Defaults of its jobs"), {"fields": (("visibility_timeout", "default_timeout"), "default_retry")}),
        (
            _("How long jobs are kept"),
            {"fields": (("keep_completed", "keep_cancelled", "keep_discarded"), ("keep_dead", "most_dead"))},
        ),
        (_("More"), {"fields": ("others",)}),
    )
    shown_configuration = ((_("Configuration"), {"fields": ("own",)}),)
    what_holds = (
        (_("What holds"), {"fields": ("effective",)}),
        (_("Row"), {"fields": (("created", "updated", "resumed"),)}),
    )
    computed = (
        "state_counts",
        "last_hour",
        "status_label",
        "paused_since",
        "paused_by",
        "pause_reason",
        "resumed",
        "its_jobs",
        "own",
        "effective",
        "created",
        "updated",
    )

    def get_queryset(self, request: HttpRequest) -> QuerySet[Queue]:
        """The template below all queues has a page but is none of them."""
        found: QuerySet[Queue] = super().get_queryset(request)
        return found.exclude(pk=TEMPLATE)

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Queue | None:
        if unquote(object_id) != TEMPLATE:
            found: Queue | None = super().get_object(request, object_id, from_field)
            return found
        return _template() or Queue(name=TEMPLATE, created_at=clock.now(), updated_at=clock.now())

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        if obj is None:
            return ((None, {"fields": ("name",)}), *self.configuration)
        if not self.has_change_permission(request, obj):
            return (*self.fieldsets, *self.shown_configuration, *self.what_holds)
        if obj.name == TEMPLATE:
            return ((None, {"fields": ("name",)}), *self.configuration)
        return (*self.fieldsets, *self.configuration, *self.what_holds)

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        return ("name", *self.computed) if obj else ()

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        template = self._url("change", TEMPLATE) if self.has_change_permission(request) else ""
        response: HttpResponse = super().changelist_view(request, {**(extra_context or {}), "template": template})
        return response

    def save_model(self, request: HttpRequest, obj: Queue, form: Any, change: bool) -> None:
        by = f"user:{request.user.get_username()}"
        if change:
            save = partial(configure.configure, obj.name, form.change(), by=by)
        else:
            save = partial(configure.create, obj.name, form.document(), by=by)
        auditing.saved(request, form, obj, "queue.configure" if change else "queue.create", save)

    def get_changelist_instance(self, request: HttpRequest) -> Any:
        """The counts of all queues on the page, read at once."""
        changelist = super().get_changelist_instance(request)
        found = counters.count_all([queue.pk for queue in changelist.result_list])
        for queue in changelist.result_list:
            queue.counted = found.get(queue.pk)
        return changelist

    @admin.display(description=_("waiting"))
    def waiting(self, queue: Queue) -> int:
        states = _counted(queue)
        return sum(states.get(state, 0) for state in WAITING)

    @admin.display(description=_("active"))
    def running(self, queue: Queue) -> int:
        return _counted(queue).get(State.ACTIVE, 0)

    @admin.display(description=_("ended"))
    def ended(self, queue: Queue) -> int:
        states = _counted(queue)
        return sum(states.get(state, 0) for state in TERMINAL)

    @admin.display(description=_("by state"))
    def state_counts(self, queue: Queue) -> str:
        found = counters.count(queue.pk)
        return " · ".join(f"{number} {state}" for state, number in found.states.items() if number) or display.NOTHING

    @admin.display(description=_("last hour"))
    def last_hour(self, queue: Queue) -> str:
        done = stats(queue.pk).throughput
        numbers = {"completed": done.completed_last_hour, "failed": done.failed_last_hour}
        told = [gettext("%(completed)s completed, %(failed)s failed for good") % numbers]
        if done.completed_last_hour:
            told.append(gettext("a job took %(seconds)s s") % {"seconds": f"{done.avg_duration_ms / 1000:.2f}"})
        if done.avg_wait_ms:
            told.append(gettext("a start waited %(seconds)s s") % {"seconds": f"{done.avg_wait_ms / 1000:.2f}"})
        return "; ".join(told)

    visibility = columns.duration("visibility_ms", "reservation")
    timeout = columns.duration("timeout_ms", "execution timeout")
    created = columns.time("created_at", "created")
    updated = columns.time("updated_at", "changed")
    resumed = columns.time("resumed_at", "resumed")

    @admin.display(description=_("status"))
    def status_label(self, queue: Queue) -> SafeString:
        return display.label(queue.status, "" if queue.status != "active" else "good")

    @admin.display(description=_("paused since"))
    def paused_since(self, queue: Queue) -> SafeString | str:
        return display.when(queue.paused_at) if queue.paused else display.NOTHING

    @admin.display(description=_("paused by"))
    def paused_by(self, queue: Queue) -> str:
        return display.shorten(why_paused(queue).by, 100) or display.NOTHING

    @admin.display(description=_("reason"))
    def pause_reason(self, queue: Queue) -> str:
        return display.printable(why_paused(queue).reason) or display.NOTHING

    @admin.display(description=_("its own"))
    def own(self, queue: Queue) -> SafeString | str:
        return display.json(configure.document(queue) or None)

    @admin.display(description=_("with what all queues have"))
    def effective(self, queue: Queue) -> SafeString | str:
        return display.json(configure.effective(queue, _template()) or None)

    @admin.display(description=_("jobs"))
    def its_jobs(self, queue: Queue) -> SafeString | str:
        if not self.admin_site.is_registered(Job):
            return display.NOTHING
        url = reverse("admin:django_ojs_job_changelist", current_app=self.admin_site.name)
        waiting = urlencode({"queue": queue.name, "state": "available"})
        return format_html(
            '<span class="ojs-line"><a href="{0}?{1}">{3}</a> · <a href="{0}?{2}">{4}</a></span>',
            url, urlencode({"queue": queue.name}), waiting, gettext("all"), gettext("waiting"),
        )  # fmt: skip


def _template() -> Queue | None:
    return Queue.objects.using(database(None)).filter(pk=TEMPLATE).first()


def _counted(queue: Queue) -> dict[str, int]:
    """The counts that the list read for this row."""
    found: counters.Counts | None = getattr(queue, "counted", None)
    return found.states if found else {}
