"""Schedules: when they run, what they make, and the three things an operator does with them."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from typing import ClassVar

from django.contrib import admin
from django.contrib.admin.models import DELETION
from django.urls import reverse
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _

from django_ojs import clock
from django_ojs.admin import columns, display
from django_ojs.admin.operate import OperatingAdmin, Verb, as_action, one_by_one
from django_ojs.models import CronRun, CronSchedule, Job
from django_ojs.operations import cron, crontick
from django_ojs.policies import cron as cron_policy
from django_ojs.policies import redaction
from django_ojs.policies.cron import SHORTCUTS

#: Runs that a schedule's page shows.
SHOWN_RUNS = 20

VERBS = (
    Verb("run_schedules", "Run now", "run", one_by_one(lambda pk, by: crontick.trigger(pk))),
    Verb(
        "enable_schedules", "Enable", "enabled", one_by_one(lambda pk, by: cron.set_enabled(pk, True)),
        lambda schedule: not schedule.enabled,
    ),
    Verb(
        "disable_schedules", "Disable", "disabled", one_by_one(lambda pk, by: cron.set_enabled(pk, False)),
        lambda schedule: schedule.enabled,
        question="It makes no jobs until it is enabled again, and what it misses is not made up for.",
    ),
    Verb(
        "delete_schedules", "Delete", "deleted", one_by_one(lambda pk, by: cron.delete(pk)),
        question="Its jobs stay. One that comes from the code is back after the next ojs_cron sync.",
        right="delete", flag=DELETION,
    ),
)  # fmt: skip


@admin.register(CronSchedule)
class CronScheduleAdmin(OperatingAdmin):
    """Definitions are not edited here: they belong to the code, or to whoever registered them over HTTP."""

    list_display = (
        "name",
        "status_label",
        "shown_expression",
        "timezone",
        "type",
        "queue",
        "next",
        "last",
        "run_count",
    )
    list_filter = ("enabled", "overlap_policy", "source")
    search_fields = ("name", "type")
    ordering = ("name",)
    verbs: ClassVar[Sequence[Verb]] = VERBS
    actions = [as_action(verb) for verb in VERBS]
    fieldsets = (
        (None, {"fields": ("name", "status_label", "description", ("shown_expression", "timezone"), "in_words")}),
        ("Runs", {"fields": (("next", "last", "run_count"), "upcoming", "overlap_policy", "its_runs")}),
        ("Its jobs", {"fields": (("type", "queue"), "shown_template")}),
        ("Row", {"fields": ("source", ("created", "updated"))}),
    )

    shown_expression = columns.code("expression", "schedule")
    created = columns.time("created_at", "registered")
    updated = columns.time("updated_at", "changed")
    last = columns.ago("last_run_at", "last run")

    @admin.display(description="template")
    def shown_template(self, schedule: CronSchedule) -> SafeString | str:
        return display.json(redaction.job({"type": schedule.type, "meta": {}, **schedule.document}))

    @admin.display(description="status")
    def status_label(self, schedule: CronSchedule) -> SafeString:
        return display.label(schedule.status, "good" if schedule.enabled else "")

    @admin.display(description="next run", ordering="next_run_at")
    def next(self, schedule: CronSchedule) -> SafeString | str:
        """In the site's zone, and how long that is from now."""
        if schedule.next_run_at is None:
            return display.NOTHING
        left = schedule.next_run_at - clock.now()
        soon = f"in {display.duration(round(left / dt.timedelta(milliseconds=1)))}" if left > dt.timedelta(0) else "due"
        return format_html("{} ({})", display.when(schedule.next_run_at), soon)

    @admin.display(description=_("next five, in its zone"))
    def upcoming(self, schedule: CronSchedule) -> SafeString | str:
        lines = ((instant.strftime("%a %Y-%m-%d %H:%M:%S %Z"),) for instant in next_runs(schedule))
        return format_html_join("", '<span class="ojs-line">{}</span><br>', lines) or display.NOTHING

    @admin.display(description="in words")
    def in_words(self, schedule: CronSchedule) -> str:
        return _in_words(schedule.expression) or display.NOTHING

    @admin.display(description="last runs")
    def its_runs(self, schedule: CronSchedule) -> SafeString | str:
        runs = cron.history(schedule.name, limit=SHOWN_RUNS)
        states = dict(Job.objects.filter(pk__in=[run.job_id for run in runs]).values_list("pk", "state"))
        lines = [(self._job(run, states.get(run.job_id)), display.when(run.scheduled_at)) for run in runs]
        return format_html_join("", '<span class="ojs-line">{} {}</span><br>', lines) or display.NOTHING

    def _job(self, run: CronRun, state: str | None) -> SafeString:
        """The job's state as a link to it; of one that was pruned only the fact."""
        if state is None:
            return display.label("deleted")
        url = reverse("admin:django_ojs_job_change", args=[run.job_id], current_app=self.admin_site.name)
        return format_html('<a href="{}">{}</a>', url, display.label(state))


def next_runs(schedule: CronSchedule, number: int = 5) -> list[dt.datetime]:
    """When it fires next, as the clocks of its zone will show it; none while it is disabled."""
    if schedule.next_run_at is None:
        return []
    parsed = cron_policy.parse(schedule.expression, schedule.timezone)
    found = [schedule.next_run_at]
    while len(found) < number:
        found.append(parsed.next_after(found[-1], found[-1]).at)
    return [instant.astimezone(parsed.zone) for instant in found]


def _in_words(expression: str) -> str:
    """The expression in English where cron-descriptor is installed and knows it; '' otherwise."""
    try:
        from cron_descriptor import FormatError, get_description
    except ImportError:
        return ""
    try:
        return str(get_description(SHORTCUTS.get(expression.lower(), expression)))
    except FormatError:  # @every, and forms that only we accept
        return ""
