"""Workers: their list, the jobs that each holds, what it did over time, and the verbs that send it a directive."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.db import DEFAULT_DB_ALIAS
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.safestring import SafeString
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from django_ojs import clock
from django_ojs.admin import display, live, overtime
from django_ojs.admin.jobpage import running
from django_ojs.admin.live import LivePage
from django_ojs.admin.operate import AdminVerb, one_by_one
from django_ojs.models import Job, Worker
from django_ojs.workerregistry.directory import with_held
from django_ojs.workerregistry.registration import direct


def _telling(directive: str) -> Any:
    return one_by_one(lambda pk, by: direct(pk, directive))


VERBS = (
    AdminVerb(
        "quiet_workers", "Quiet", "told to take no more jobs", _telling("quiet"),
        lambda worker: worker.directive != "quiet",
    ),
    AdminVerb(
        "resume_workers", "Resume", "told to go on", _telling("running"),
        lambda worker: worker.directive in ("quiet", "terminate", "restart"),
    ),
    AdminVerb(
        "terminate_workers", "Terminate", "told to end", _telling("terminate"),
        lambda worker: worker.directive != "terminate",
        question="The worker finishes or hands back its jobs and ends its process. Nothing here starts it again.",
    ),
    AdminVerb(
        "restart_workers", "Restart", "told to restart", _telling("restart"),
        lambda worker: worker.directive not in ("terminate", "restart"),
        question="The worker finishes or hands back its jobs and ends its process. The supervisor of an ojs_worker "
        "starts another in its place, with the same code; a worker in another language ends.",
    ),
)  # fmt: skip


@admin.register(Worker)
class WorkerAdmin(LivePage):
    list_display = (
        "id", "state_label", "directive_label", "jobs_held", "slots", "its_queues", "hostname", "pid",
        "release", "last_seen",
    )  # fmt: skip
    list_filter = ("state", "directive")
    search_fields = ("id", "hostname")
    ordering = ("id",)
    verbs = actions = VERBS
    change_form_template = "django_ojs/admin/worker.html"
    live_types = live.WORKER
    fieldsets = (
        (
            None,
            {"fields": ("id", ("state_label", "directive_label"), ("jobs_held", "slots"), "completed")},
        ),
        (_("Serves"), {"fields": ("its_queues", "its_types", "its_labels")}),
        (_("Process"), {"fields": (("hostname", "pid"), ("version", "release"), ("memory", "cpu"))}),
        (_("Times"), {"fields": ("started", ("heartbeat", "seen"))}),
    )

    def get_queryset(self, request: HttpRequest) -> QuerySet[Worker]:
        return with_held(super().get_queryset(request))

    def live_age(self, obj: Worker) -> float:
        """Its events are those of all workers and jobs."""
        return live.POLLING

    def page_context(self, request: HttpRequest, obj: Worker) -> dict[str, Any]:
        """The jobs it holds, those the index on holders has, and what it did in the last hours."""
        using = obj._state.db or DEFAULT_DB_ALIAS
        held = running(Job.objects.using(using).filter(worker_id=obj.pk))
        return {"running": held, "charts": overtime.worker_cards(obj, using)}

    its_queues = display.column(display.codes, "queues", "queues")
    slots = display.column(display.count, "concurrency", "concurrency")
    completed = display.column(display.count, "jobs_completed", "jobs completed")
    memory = display.column(display.amount, "memory_mb", "memory, MB")
    cpu = display.column(display.amount, "cpu_percent", "CPU, percent")
    its_labels = display.column(display.json, "labels", "labels")
    started = display.column(display.when, "started_at", "started")
    heartbeat = display.column(display.when, "heard_at", "last heartbeat")
    seen = display.column(display.when, "last_seen_at", "last call")
    last_seen = display.column(display.ago, "last_seen_at", "last call")

    @admin.display(description=_("state"))
    def state_label(self, worker: Worker) -> SafeString:
        """As it reported, unless it has been silent for so long that it counts as dead."""
        return display.colour_label("silent" if worker.is_stale(clock.now()) else worker.state)

    jobs_held = display.column(display.count, "held", "active jobs")

    @admin.display(description=_("directive"))
    def directive_label(self, worker: Worker) -> SafeString | str:
        return display.colour_label(worker.directive) if worker.directive else display.NOTHING

    @admin.display(description=_("job types"))
    def its_types(self, worker: Worker) -> SafeString | str:
        return display.codes(worker.job_types, otherwise=gettext("any"))
