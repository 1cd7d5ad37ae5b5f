"""Schedules: when they run, the jobs that they make, and the verbs and the form with which operators change them.

`rules.cron` reads what the form makes, as it reads what comes over HTTP.
"""

from __future__ import annotations

import calendar
import datetime as dt
import re
from functools import lru_cache
from pathlib import Path
from typing import Any

from django import forms
from django.contrib import admin
from django.contrib.admin.models import DELETION
from django.core.exceptions import ValidationError
from django.http import HttpRequest
from django.utils import dateformat, timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import get_language, gettext, to_locale
from django.utils.translation import gettext_lazy as _

from django_ojs import clock, jsontext, spellings
from django_ojs.admin import display
from django_ojs.admin.forms import LINES, OperationForm, WireField, blame, text_field
from django_ojs.admin.operate import AdminVerb, OperatingAdmin, one_by_one
from django_ojs.cron import runs, schedules
from django_ojs.errors import OJSError
from django_ojs.models import CronRun, CronSchedule, Job
from django_ojs.rules import cron as cron_policy
from django_ojs.rules import redaction
from django_ojs.rules.attributes import DEFAULT_QUEUE
from django_ojs.rules.cron import SHORTCUTS, OverlapPolicy

#: Runs that a schedule's page shows.
SHOWN_RUNS = 20

#: Days and months, which Django has in every language.
_NAMES = re.compile(rf"\b({'|'.join([*calendar.day_name, *calendar.month_name[1:]])})\b")

#: What each policy does with an occurrence while a run before it has not ended.
POLICIES = (
    (OverlapPolicy.SKIP.value, _("skip: no job this time")),
    (OverlapPolicy.ALLOW.value, _("allow: one more job runs beside it")),
    (OverlapPolicy.ENQUEUE.value, _("enqueue: one more job waits for it")),
    (OverlapPolicy.CANCEL_PREVIOUS.value, _("cancel_previous: the earlier run is cancelled")),
)
#: Members of the envelope with fields of their own.
_APART = ("type", "args", "queue")
_BY_PATH = {
    **dict.fromkeys(("cron", "expression", "schedule"), "expression"),
    **{f"job_template.{name}": name for name in _APART},
}


class CronForm(OperationForm):
    """A schedule and the envelope of its jobs. A value that the site hides is masked, and kept unless it is changed.

    Enabling is no field of a schedule that exists: it is a verb.
    """

    name = text_field(_("Name"), _("Lowercase letters, digits, hyphens and dots."), cron_policy.MAX_NAME)
    expression = text_field(
        _("Schedule"), _("Minute, hour, day, month, day of week, such as 0 9 * * 1-5; or @daily, @every 90m.")
    )
    timezone = text_field(_("Time zone"), _("UTC, or such as Europe/Paris."), 64, initial="UTC")
    overlap_policy = forms.ChoiceField(
        choices=POLICIES, initial=OverlapPolicy.SKIP.value, label=_("When a run is not over")
    )
    enabled = forms.BooleanField(required=False, initial=True, label=_("Enabled"))
    description = forms.CharField(
        required=False,
        max_length=cron_policy.MAX_DESCRIPTION,
        widget=forms.Textarea(attrs=LINES),
        label=_("Description"),
    )
    type = text_field(_("Job type"), _("Such as report.make."))
    queue = text_field(_("Queue"), length=128, initial=DEFAULT_QUEUE, required=False)
    args = WireField(kind=list, example='["daily"]', label=_("Arguments"), help_text=_("A JSON array; empty: none."))
    others = WireField(
        label=_("Other attributes"), rows=4, example='{"priority": 5}',
        help_text=_(
            'More attributes of the jobs, as JSON, such as {"options": {"priority": 5, "retry": {"max_attempts": 3}}}.'
        ),
    )  # fmt: skip

    class Meta:
        model = CronSchedule
        fields = ("name", "expression", "timezone", "overlap_policy", "enabled", "description", "type", "queue")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.spec: cron_policy.CronSpec
        if not self.instance._state.adding:
            document = self.instance.document
            shown = redaction.job({"type": self.instance.type, "meta": {}, **document})
            self.initial["args"] = shown.get("args") or None
            self.initial["others"] = {
                name: value for name, value in shown.items() if name in document and name not in _APART
            } or None

    def clean(self) -> dict[str, Any]:
        super().clean()
        for name in ("args", "others"):
            given = self.cleaned_data.get(name)
            if (
                name in self.changed_data
                and given
                and redaction.site_rules()
                and redaction.MASK in jsontext.dumps(given)
            ):
                text = _("%(mask)s stands for a hidden value. Write the whole new value.")
                self.add_error(name, ValidationError(text, params={"mask": redaction.MASK}))
        if named := {*_APART, "name"} & (self.cleaned_data.get("others") or {}).keys():
            text = _("%(members)s: use the field for this.")
            self.add_error("others", ValidationError(text, params={"members": ", ".join(sorted(named))}))
        if not self.errors:
            try:
                self.spec = spellings.read_schedule(self._body(), now=clock.now())
            except OJSError as error:
                blame(self, error, _BY_PATH, "others")
        return self.cleaned_data

    def _body(self) -> dict[str, Any]:
        """The registration that the form asks for."""
        known, given = {} if self.instance._state.adding else self.instance.document, self.cleaned_data
        job: dict[str, Any] = dict(given["others"] or {})
        if "others" not in self.changed_data:
            job = {name: value for name, value in known.items() if name not in _APART}
        job["args"] = (given["args"] or []) if "args" in self.changed_data else known.get("args") or []
        found = job.get("options")
        options: dict[str, Any] = found if isinstance(found, dict) else {}
        if "queue" in self.changed_data or "queue" not in options:
            job["queue"] = given["queue"] or DEFAULT_QUEUE
            if "queue" in options:
                job["options"] = {name: value for name, value in options.items() if name != "queue"}
        return {
            "name": given["name"] if self.instance._state.adding else self.instance.pk,
            "cron": given["expression"].strip(),
            "timezone": given["timezone"],
            "overlap_policy": given["overlap_policy"],
            "enabled": given["enabled"] if "enabled" in self.fields else True,
            "description": given["description"].replace("\r\n", "\n"),
            "job_template": {"type": given["type"], **job},
        }


VERBS = (
    AdminVerb(
        "run_schedules", "Run now", "run",
        one_by_one(lambda pk, by: runs.trigger(pk)),
    ),
    AdminVerb(
        "enable_schedules", "Enable", "enabled",
        one_by_one(lambda pk, by: schedules.set_enabled(pk, True)), lambda schedule: not schedule.enabled,
    ),
    AdminVerb(
        "disable_schedules", "Disable", "disabled",
        one_by_one(lambda pk, by: schedules.set_enabled(pk, False)), lambda schedule: schedule.enabled,
        question="It makes no jobs until it is enabled again. Runs that it misses are not made up for.",
    ),
    AdminVerb(
        "delete_schedules", "Delete", "deleted",
        one_by_one(lambda pk, by: schedules.delete(pk)),
        question="Its jobs stay. If the code declares it, the scheduler makes it again: disable it instead.",
        right="delete", flag=DELETION,
    ),
)  # fmt: skip


@admin.register(CronSchedule)
class CronScheduleAdmin(OperatingAdmin):
    editing = ("add", "change")
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
        "run_number",
    )
    list_filter = ("enabled", "overlap_policy", "source")
    search_fields = ("name", "type")
    ordering = ("name",)
    verbs = actions = VERBS
    change_form_template = "django_ojs/admin/schedule.html"
    state = (
        (None, {"fields": ("name", "status_label", "in_words")}),
        (_("Runs"), {"fields": (("next", "last", "run_number"),)}),
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
        "run_number",
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
            obj.pk = schedules.create(form.spec).pk

        if change:
            self.save_audited(request, form, obj, "cron.update", lambda: schedules.redefine(form.spec))
        else:
            self.save_audited(request, form, obj, "cron.register", create)

    def page_context(self, request: HttpRequest, obj: CronSchedule) -> dict[str, Any]:
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
            return line | {"id": str(run.job_id), "state": display.colour_label("deleted"), "took": display.NOTHING}
        took = None
        if job["started_at"] and job["finished_at"]:
            took = round((job["finished_at"] - job["started_at"]) / dt.timedelta(milliseconds=1))
        url, state = self.url_of(Job, run.job_id), display.colour_label(job["state"])
        return line | {"id": str(run.job_id), "url": url, "state": state, "took": display.duration(took)}

    shown_expression = display.column(display.code, "expression", "schedule")
    created = display.column(display.when, "created_at", "registered")
    updated = display.column(display.when, "updated_at", "changed")
    last = display.column(display.ago, "last_run_at", "last run")
    run_number = display.column(display.count, "run_count", "runs so far")

    @admin.display(description=_("template"))
    def shown_template(self, schedule: CronSchedule) -> SafeString | str:
        return display.json(redaction.job({"type": schedule.type, "meta": {}, **schedule.document}))

    @admin.display(description=_("status"))
    def status_label(self, schedule: CronSchedule) -> SafeString:
        return display.colour_label(schedule.status, "good" if schedule.enabled else "")

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
    found = [schedule.next_run_at]
    try:
        parsed = cron_policy.parse_expression(schedule.expression, schedule.timezone)
    except ValueError:  # a zone that this machine does not know
        return found
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
        text = str(get_description(SHORTCUTS.get(expression.lower(), expression), options))
    except FormatError:  # forms that only we accept
        return ""
    return _NAMES.sub(lambda name: gettext(name[0]), text)  # it takes these from the locale of the process


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
