"""Schedules: when they run, what they make, and what an operator does with them."""

from __future__ import annotations

import calendar
import datetime as dt
import re
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar

from django.contrib import admin
from django.contrib.admin.models import DELETION
from django.http import HttpRequest
from django.utils import dateformat, timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import get_language, gettext, to_locale
from django.utils.translation import gettext_lazy as _

from django_ojs import clock
from django_ojs.admin import auditing, columns, display
from django_ojs.admin.cronform import CronForm
from django_ojs.admin.operate import EditingAdmin, Verb, as_action, one_by_one
from django_ojs.cron import runs, schedules
from django_ojs.models import CronRun, CronSchedule, Job
from django_ojs.rules import cron as cron_policy
from django_ojs.rules import redaction
from django_ojs.rules.cron import SHORTCUTS

#: Runs that a schedule's page shows.
SHOWN_RUNS = 20

#: Days and months, which Django has in every language.
_NAMES = re.compile(rf"\b({'|'.join([*calendar.day_name, *calendar.month_name[1:]])})\b")

VERBS = (
    Verb(
        "run_schedules", "Run now", "run",
        one_by_one(lambda pk, by: runs.trigger(pk)),
    ),
    Verb(
        "enable_schedules", "Enable", "enabled",
        one_by_one(lambda pk, by: schedules.set_enabled(pk, True)), lambda schedule: not schedule.enabled,
    ),
    Verb(
        "disable_schedules", "Disable", "disabled",
        one_by_one(lambda pk, by: schedules.set_enabled(pk, False)), lambda schedule: schedule.enabled,
        question="It makes no jobs until it is enabled again, and what it misses is not made up for.",
    ),
    Verb(
        "delete_schedules", "Delete", "deleted",
        one_by_one(lambda pk, by: schedules.delete(pk)),
        question="Its jobs stay. One that comes from the code is back after the next ojs_cron sync.",
        right="delete", flag=DELETION,
    ),
)  # fmt: skip


@admin.register(CronSchedule)
class CronScheduleAdmin(EditingAdmin):
    """What a form asks for goes through the operations, like everything that comes over HTTP."""

    form = CronForm
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
    change_form_template = "django_ojs/admin/schedule.html"
    state = (
        (None, {"fields": ("name", "status_label", "in_words")}),
        (_("Runs"), {"fields": (("next", "last", "run_count"),)}),
    )
    shown = (
        (_("Definition"), {"fields": (("shown_expression", "timezone"), "overlap_policy", "description")}),
        (_("Its jobs"), {"fields": (("type", "queue"), "shown_template")}),
    )
    definition = (
        (_("Definition"), {"fields": (("expression", "timezone"), "overlap_policy", "description")}),
        (_("Its jobs"), {"fields": (("type", "queue"), "args", "others")}),
    )
    row = ((_("Row"), {"fields": ("source", ("created", "updated"))}),)
    adding = ((None, {"fields": ("name", "expression", "timezone", "overlap_policy", "enabled", "description")}),)
    computed = (
        "status_label",
        "in_words",
        "next",
        "last",
        "run_count",
        "source",
        "created",
        "updated",
    )

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        if obj is None:
            return (*self.adding, self.definition[1])
        return (*self.state, *(self.definition if self.has_change_permission(request) else self.shown), *self.row)

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        return ("name", *self.computed, "shown_expression", "shown_template") if obj else ()

    def save_model(self, request: HttpRequest, obj: CronSchedule, form: Any, change: bool) -> None:
        def create() -> None:
            obj.pk = schedules.create(form.fits).pk

        if change:
            auditing.saved(request, form, obj, "cron.update", lambda: schedules.redefine(form.fits))
        else:
            auditing.saved(request, form, obj, "cron.register", create)

    def page_context(self, obj: CronSchedule) -> dict[str, Any]:
        zone = str(timezone.get_current_timezone_name())
        return {
            "schedule_zone": obj.timezone,
            "viewer_zone": zone,
            "upcoming": [_clocks(instant) for instant in next_runs(obj)],
            "runs": self._runs(obj),
            "of_code": obj.source == CronSchedule.Source.CODE,
        }

    def _runs(self, schedule: CronSchedule) -> list[dict[str, Any]]:
        """The last runs with what has become of their jobs, in one query more."""
        runs = schedules.history(schedule.name, limit=SHOWN_RUNS)
        columns_needed = ("pk", "state", "started_at", "finished_at")
        found = {job["pk"]: job for job in Job.objects.filter(pk__in=[r.job_id for r in runs]).values(*columns_needed)}
        return [self._run(run, found.get(run.job_id)) for run in runs]

    def _run(self, run: CronRun, job: dict[str, Any] | None) -> dict[str, Any]:
        """One line; of a job that was pruned only the fact."""
        line = {"scheduled": display.when(run.scheduled_at), "triggered": display.ago(run.triggered_at)}
        if job is None:
            return line | {"id": str(run.job_id), "state": display.label("deleted"), "took": display.NOTHING}
        took = None
        if job["started_at"] and job["finished_at"]:
            took = round((job["finished_at"] - job["started_at"]) / dt.timedelta(milliseconds=1))
        url = self.job_url(run.job_id)
        state = display.label(job["state"])
        return line | {"id": str(run.job_id), "url": url, "state": state, "took": display.duration(took)}

    shown_expression = columns.code("expression", "schedule")
    created = columns.time("created_at", "registered")
    updated = columns.time("updated_at", "changed")
    last = columns.ago("last_run_at", "last run")

    @admin.display(description=_("template"))
    def shown_template(self, schedule: CronSchedule) -> SafeString | str:
        return display.json(redaction.job({"type": schedule.type, "meta": {}, **schedule.document}))

    @admin.display(description=_("status"))
    def status_label(self, schedule: CronSchedule) -> SafeString:
        return display.label(schedule.status, "good" if schedule.enabled else "")

    @admin.display(description=_("next run"), ordering="next_run_at")
    def next(self, schedule: CronSchedule) -> SafeString | str:
        """In the site's zone, and how long that is from now."""
        if schedule.next_run_at is None:
            return display.NOTHING
        left = schedule.next_run_at - clock.now()
        if left > dt.timedelta(0):
            soon = gettext("in %(time)s") % {"time": display.duration(round(left / dt.timedelta(milliseconds=1)))}
        else:
            soon = gettext("due")
        return format_html("{} ({})", display.when(schedule.next_run_at), soon)

    @admin.display(description=_("in words"))
    def in_words(self, schedule: CronSchedule) -> str:
        return in_words(schedule.expression) or display.NOTHING


def next_runs(schedule: CronSchedule, number: int = 5) -> list[dt.datetime]:
    """When it fires next, as the clocks of its zone will show it; none while it is disabled."""
    if schedule.next_run_at is None:
        return []
    parsed = cron_policy.parse_expression(schedule.expression, schedule.timezone)
    found = [schedule.next_run_at]
    while len(found) < number:
        found.append(parsed.next_after(found[-1], found[-1]).at)
    return [instant.astimezone(parsed.zone) for instant in found]


def in_words(expression: str) -> str:
    """The expression in the viewer's language where cron-descriptor is installed and knows both; '' otherwise."""
    if expression.lower().startswith("@every "):
        return gettext("Every %(time)s") % {"time": expression[len("@every ") :].strip()}
    try:
        from cron_descriptor import FormatError, Options, get_description
    except ImportError:
        return ""
    options = Options(locale_code=_locale(get_language() or "en"), use_24hour_time_format=True)
    try:
        told = str(get_description(SHORTCUTS.get(expression.lower(), expression), options))
    except FormatError:  # forms that only we accept
        return ""
    return _NAMES.sub(lambda name: gettext(name[0]), told)  # it takes these from the locale of the process


@lru_cache(maxsize=64)
def _locale(language: str) -> str:
    """The name under which cron-descriptor has a language: `fr` is `fr_FR` there."""
    import cron_descriptor

    wanted = to_locale(language)
    known = sorted(file.stem for file in (Path(cron_descriptor.__file__).parent / "locale").glob("*.mo"))
    alike = [name for name in known if name.partition("_")[0] == wanted.partition("_")[0]]
    return wanted if wanted in known else alike[0] if alike else "en_US"


def _clocks(instant: dt.datetime) -> dict[str, str]:
    """An instant by the clocks of its own zone and of the viewer's."""
    here = timezone.localtime(instant)
    return {
        "exact": instant.astimezone(dt.UTC).isoformat(timespec="seconds"),
        "there": dateformat.format(instant, "D Y-m-d H:i:s T"),
        "here": here.strftime("%Y-%m-%d %H:%M:%S %Z"),
    }
