"""Queues: their numbers, their configuration, and the verbs that pause and resume them.

The form has a field for each member of the configuration, and `rules.queueconfig` checks what it makes.
"""

from __future__ import annotations

import datetime as dt
import math
from functools import partial
from typing import Any

from django import forms
from django.contrib import admin
from django.contrib.admin.utils import unquote
from django.core.exceptions import ValidationError
from django.db.models import BLANK_CHOICE_DASH, QuerySet
from django.http import HttpRequest, HttpResponse
from django.utils.html import format_html
from django.utils.http import urlencode
from django.utils.safestring import SafeString
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _

from django_ojs import clock, jsontext, spellings
from django_ojs.admin import display, overtime
from django_ojs.admin.display import explain
from django_ojs.admin.forms import LinesField, OperationForm, WireField, blame
from django_ojs.admin.jobpage import running
from django_ojs.admin.operate import AdminVerb, OperatingAdmin, actor, one_by_one
from django_ojs.database import database
from django_ojs.errors import OJSError
from django_ojs.models import Job, Queue
from django_ojs.models.queue import ALL_DRAIN, TEMPLATE
from django_ojs.queues import configuration
from django_ojs.queues.configuration import pause, resume, why_paused
from django_ojs.rules import names, queueconfig
from django_ojs.states import TERMINAL, WAITING, State
from django_ojs.statistics import counters
from django_ojs.statistics.capacity import QueueFlow, flows
from django_ojs.statistics.latency import oldest_available
from django_ojs.statistics.throughput import by_queue, stats
from django_ojs.workerregistry import directory

#: Where on the wire the value of a field stands.
PATHS: dict[str, tuple[str, ...]] = {
    "concurrency": ("concurrency",),
    "rate_limit": ("rate_limit",),
    "max_depth": ("backpressure", "max_depth"),
    "strategy": ("backpressure", "strategy"),
    "warning_threshold": ("backpressure", "warning_threshold"),
    "allowed_job_types": ("allowed_job_types",),
    "draining": ("draining",),
    "visibility_timeout": ("visibility_timeout",),
    "default_timeout": ("default_timeout",),
    "default_retry": ("default_retry",),
    "keep_completed": ("retention", "completed"),
    "keep_cancelled": ("retention", "cancelled"),
    "keep_discarded": ("retention", "discarded"),
    "keep_dead": ("dead_letter", "retention", "max_age"),
    "most_dead": ("dead_letter", "retention", "max_count"),
}
_BY_PATH = {".".join(path): field for field, path in PATHS.items()}
_WORDS = [("reject", _("refuse the new job")), ("drop_oldest", _("discard the oldest job")),
          ("block", _("tell the sender to wait"))]  # fmt: skip
_AGE = _("Such as P7D or PT12H, or seconds.")


class AgeField(forms.CharField):
    """A duration as the wire writes it, or seconds."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(required=False, max_length=40, help_text=_AGE, **kwargs)

    def clean(self, value: Any) -> Any:
        text = super().clean(value)
        if not text:
            return None
        number = jsontext.digits(text)
        return text if number is None else number

    def has_changed(self, initial: Any, data: Any) -> bool:
        return super().has_changed("" if initial is None else str(initial), data)


def _number(label: Any, minimum: int = 0, help_text: Any = "") -> forms.IntegerField:
    return forms.IntegerField(required=False, label=label, min_value=minimum, help_text=help_text)


class QueueForm(OperationForm):
    """The configuration of a queue. Pausing is no field: it is an operation with an event.

    An empty field takes a value back: then the template `_default` decides, or else the site.
    """

    concurrency = _number(_("Jobs at a time"), help_text=_("In the whole queue, over all workers. 0: no job starts."))
    rate_limit = WireField(
        label=_("Rate limit"), example='{"limit": 100, "period": "PT1M"}',
        help_text=_('Such as {"limit": 100, "period": "PT1M"} or {"max_per_second": 2}.'),
    )  # fmt: skip
    max_depth = _number(_("Most waiting jobs"), help_text=_("0: no limit."))
    strategy = forms.ChoiceField(choices=[*BLANK_CHOICE_DASH, *_WORDS], required=False, label=_("When it is full"))
    warning_threshold = forms.FloatField(
        required=False,
        min_value=0,
        max_value=1,
        label=_("Warn at"),
        help_text=_("A share of the most waiting jobs, such as 0.8."),
    )
    allowed_job_types = LinesField(
        required=False, label=_("Allowed job types"), help_text=_("One a line, such as email.*. Empty: all types.")
    )
    draining = forms.BooleanField(
        required=False,
        label=_("Draining"),
        help_text=_("The queue delivers the jobs that it has, and accepts no new ones."),
    )
    visibility_timeout = _number(_("Reservation length"), 1, _("Seconds. Empty: the site's."))
    default_timeout = _number(_("Execution timeout"), 1, _("Seconds. Empty: the site's."))
    default_retry = WireField(
        label=_("Retry policy"), rows=4, example='{"max_attempts": 5}',
        help_text=_('As jobs write it, such as {"max_attempts": 5, "initial_interval": "PT2S"}. Empty: the site\'s.'),
    )  # fmt: skip
    keep_completed = AgeField(label=_("Keep completed jobs"))
    keep_cancelled = AgeField(label=_("Keep cancelled jobs"))
    keep_discarded = AgeField(label=_("Keep discarded jobs"))
    keep_dead = AgeField(label=_("Keep dead letters"))
    most_dead = _number(_("Most dead letters"))
    others = WireField(
        label=_("Other members"), help_text=_("Members of the configuration without a field here, as JSON.")
    )

    class Meta:
        model = Queue
        fields = ("name",)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.known = configuration.document(self.instance)
        rest = self.known
        for name, path in PATHS.items():
            found, rest = _taken(rest, path)
            self.initial.setdefault(name, found)
        self.initial.setdefault("others", rest or None)

    def clean_name(self) -> str:
        name: str = self.cleaned_data["name"]
        try:
            return names.check_queue(name)
        except ValueError as error:
            raise ValidationError(_("The name %(fault)s."), params={"fault": explain(error)}) from error

    def clean(self) -> dict[str, Any]:
        super().clean()
        if not self.errors:
            try:
                spellings.check_queue(self.document())
            except OJSError as error:
                blame(self, error, _BY_PATH, "others")
        return self.cleaned_data

    def document(self) -> dict[str, Any]:
        """The whole configuration that the form asks for; a member with a field of its own beats `others`."""
        found = queueconfig.merge({}, self.cleaned_data.get("others") or {})
        for name, path in PATHS.items():
            value: Any = self.cleaned_data.get(name)
            if name not in self.changed_data:
                value = self.initial.get(name)  # as it was: an empty list may mean something
            elif value in ("", [], {}):
                value = None
            if value is None or value is False:
                continue
            for member in reversed(path):
                value = {member: value}
            found = queueconfig.merge(found, value)
        return found

    def change(self) -> dict[str, Any]:
        """The partial configuration that leads there."""
        return queueconfig.difference(self.known, self.document())


def _taken(document: dict[str, Any], path: tuple[str, ...]) -> tuple[Any, dict[str, Any]]:
    """The value at `path`, and the document without it and without objects that this leaves empty."""
    name, below = path[0], path[1:]
    if name not in document:
        return None, document
    rest = {key: value for key, value in document.items() if key != name}
    if not below:
        return document[name], rest
    if not isinstance(document[name], dict):
        return None, document
    found, inner = _taken(document[name], below)
    return found, rest | ({name: inner} if inner else {})


VERBS = (
    AdminVerb(
        "pause_queues", "Pause", "paused",
        one_by_one(lambda pk, by, reason: pause(pk, by=by, reason=reason)),
        lambda queue: not queue.paused and queue.name != TEMPLATE, reason=True,
        question="Workers get no jobs from a paused queue; jobs are still accepted. Running jobs go on.",
    ),
    AdminVerb(
        "resume_queues", "Resume", "resumed",
        one_by_one(lambda pk, by: resume(pk, by=by)), lambda queue: queue.paused,
    ),
)  # fmt: skip


#: What is shown of a pause, where there is one.
_PAUSED = ("paused_since", "paused_by", "pause_reason")


@admin.register(Queue)
class QueueAdmin(OperatingAdmin):
    editing = ("add", "change")
    form = QueueForm
    list_display = (
        "name", "status_label", "waiting", "running", "ended", "its_jobs", "paused_ago", "visibility", "timeout",
        "created_ago",
    )  # fmt: skip
    list_filter = ("paused",)
    search_fields = ("name",)
    ordering = ("name",)
    verbs = actions = VERBS
    change_form_template = "django_ojs/admin/queue.html"
    fieldsets = (
        (None, {"fields": ("name", "status_label", _PAUSED, "its_jobs")}),
        (_("Jobs"), {"fields": ("state_counts", "oldest_wait", "last_hour", "flow", "slots")}),
    )
    form_fieldsets = (
        (_("Limits"), {"fields": (("concurrency", "rate_limit"), ("max_depth", "strategy", "warning_threshold"))}),
        (_("Accepted jobs"), {"fields": ("allowed_job_types", "draining")}),
        (_("Defaults of its jobs"), {"fields": (("visibility_timeout", "default_timeout"), "default_retry")}),
        (
            _("How long jobs are kept"),
            {"fields": (("keep_completed", "keep_cancelled", "keep_discarded"), ("keep_dead", "most_dead"))},
        ),
        (_("More"), {"fields": ("others",)}),
    )
    shown_fieldsets = ((_("Configuration"), {"fields": ("own",)}),)
    effective_fieldsets = (
        (_("Effective configuration"), {"fields": ("effective",)}),
        (_("Row"), {"fields": (("created", "updated", "resumed"),)}),
    )
    computed = (
        "state_counts",
        "oldest_wait",
        "last_hour",
        "flow",
        "slots",
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
        """All but the template, which is no queue: its values hold for all of them. It has a page of its own."""
        found: QuerySet[Queue] = super().get_queryset(request)
        return found.exclude(pk=TEMPLATE).annotate(**ALL_DRAIN)

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Queue | None:
        if unquote(object_id) != TEMPLATE:
            found: Queue | None = super().get_object(request, object_id, from_field)
            return found
        return _template() or Queue(name=TEMPLATE, created_at=clock.now(), updated_at=clock.now())

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        if obj is None or (obj.name == TEMPLATE and self.has_change_permission(request, obj)):
            return ((None, {"fields": ("name",)}), *self.form_fieldsets)
        first = ((None, {"fields": ("name", "status_label", *((_PAUSED,) if obj.paused else ()), "its_jobs")}),)
        own = self.form_fieldsets if self.has_change_permission(request, obj) else self.shown_fieldsets
        return (*first, *self.fieldsets[1:], *own, *self.effective_fieldsets)

    def page_context(self, request: HttpRequest, obj: Queue) -> dict[str, Any]:
        """The jobs that run now, and what was done over time."""
        if obj.name == TEMPLATE:
            return {}
        using, stretch = database(None), overtime.chosen(request.GET.get("range", ""))
        return {
            "running": running(Job.objects.filter(queue=obj.pk)),
            "charts": overtime.cards(overtime.past(stretch, using, obj.pk), stretch),
            "range": stretch,
            "ranges": overtime.RANGES.values(),
        }

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        return ("name", *self.computed) if obj else ()

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        template = self.own_url("change", TEMPLATE) if self.has_change_permission(request) else ""
        response: HttpResponse = super().changelist_view(request, {**(extra_context or {}), "template": template})
        return response

    def save_model(self, request: HttpRequest, obj: Queue, form: Any, change: bool) -> None:
        if change:
            save = partial(configuration.configure, obj.name, form.change(), by=actor(request))
        else:
            save = partial(configuration.create, obj.name, form.document())
        self.save_audited(request, form, obj, "queue.configure" if change else "queue.create", save)

    def get_changelist_instance(self, request: HttpRequest) -> Any:
        """The counts of all queues on the page, read at once."""
        changelist = super().get_changelist_instance(request)
        found = counters.count_all([queue.pk for queue in changelist.result_list])
        for queue in changelist.result_list:
            queue.counted = found.get(queue.pk)
        return changelist

    @admin.display(description=_("waiting"))
    def waiting(self, queue: Queue) -> str:
        states = _counted(queue)
        return display.count(sum(states.get(state, 0) for state in WAITING))

    @admin.display(description=_("active"))
    def running(self, queue: Queue) -> str:
        return display.count(_counted(queue).get(State.ACTIVE, 0))

    @admin.display(description=_("ended"))
    def ended(self, queue: Queue) -> str:
        states = _counted(queue)
        return display.count(sum(states.get(state, 0) for state in TERMINAL))

    @admin.display(description=_("by state"))
    def state_counts(self, queue: Queue) -> str:
        found = counters.count(queue.pk)
        return " · ".join(f"{number:,} {state}" for state, number in found.states.items() if number) or display.NOTHING

    @admin.display(description=_("last hour"))
    def last_hour(self, queue: Queue) -> str:
        done = stats(queue.pk).throughput
        numbers = {"completed": f"{done.completed_last_hour:,}", "failed": f"{done.failed_last_hour:,}"}
        facts = [gettext("%(completed)s completed, %(failed)s failed for good") % numbers]
        if done.completed_last_hour:
            facts.append(gettext("a job took %(seconds)s s") % {"seconds": f"{done.avg_duration_ms / 1000:.2f}"})
        if done.avg_wait_ms:
            facts.append(gettext("a start waited %(seconds)s s") % {"seconds": f"{done.avg_wait_ms / 1000:.2f}"})
        return "; ".join(facts)

    @admin.display(description=_("oldest wait"))
    def oldest_wait(self, queue: Queue) -> SafeString | str:
        return display.ago(oldest_available(queue.pk))

    @admin.display(description=_("in the last minutes"))
    def flow(self, queue: Queue) -> str:
        """What came in and what ended, and when the queue will be empty."""
        found = _flow(queue)
        facts = [gettext("%(jobs)s jobs a minute ended") % {"jobs": f"{found.ended:,.4g}"}]
        if found.enqueued is not None:
            facts.insert(0, gettext("%(jobs)s jobs a minute came in") % {"jobs": f"{found.enqueued:,.4g}"})
        if found.waiting > 0:
            facts.append(gettext("empty in: %(time)s") % {"time": display.empty_in(found)})
        return "; ".join(facts)

    @admin.display(description=_("slots"))
    def slots(self, queue: Queue) -> str:
        """How many jobs its workers can run at the same time, and how many that would have to be."""
        there = directory.slots(queue.pk)
        facts = [ngettext("%(number)s slot serves this queue", "%(number)s slots serve this queue", there)
                 % {"number": f"{there:,}"}]  # fmt: skip
        found = _flow(queue)
        if found.slots is not None:
            facts.append(gettext("what comes in keeps %(slots)s busy") % {"slots": f"{found.slots:,.2g}"})
        if found.waiting > 0 and (needed := found.slots_to_empty(dt.timedelta(hours=1))) is not None:
            facts.append(
                gettext("%(slots)s would empty it within an hour") % {"slots": f"{math.ceil(needed):,}"}
            )  # fmt: skip
        return "; ".join(facts)

    visibility = display.column(display.duration, "visibility_ms", "reservation")
    timeout = display.column(display.duration, "timeout_ms", "execution timeout")
    created = display.column(display.when, "created_at", "created")
    created_ago = display.column(display.ago, "created_at", "created")
    updated = display.column(display.when, "updated_at", "changed")
    resumed = display.column(display.when, "resumed_at", "resumed")

    @admin.display(description=_("status"))
    def status_label(self, queue: Queue) -> SafeString:
        return display.colour_label(queue.status, "" if queue.status != "active" else "good")

    @admin.display(description=_("paused since"))
    def paused_since(self, queue: Queue) -> SafeString | str:
        return display.when(queue.paused_at) if queue.paused else display.NOTHING

    @admin.display(description=_("paused since"))
    def paused_ago(self, queue: Queue) -> SafeString | str:
        return display.ago(queue.paused_at) if queue.paused else display.NOTHING

    @admin.display(description=_("paused by"))
    def paused_by(self, queue: Queue) -> str:
        return display.ellipsized(why_paused(queue).by, 100) or display.NOTHING

    @admin.display(description=_("reason"))
    def pause_reason(self, queue: Queue) -> str:
        return display.printable(why_paused(queue).reason) or display.NOTHING

    @admin.display(description=_("of this queue"))
    def own(self, queue: Queue) -> SafeString | str:
        return display.json(configuration.document(queue) or None)

    @admin.display(description=_("with that of all queues"))
    def effective(self, queue: Queue) -> SafeString | str:
        return display.json(configuration.effective(queue, _template()) or None)

    @admin.display(description=_("jobs"))
    def its_jobs(self, queue: Queue) -> SafeString | str:
        if not self.may_see(Job):
            return display.NOTHING
        url = self.url("job_changelist")
        waiting = urlencode({"queue": queue.name, "state": "available"})
        return format_html(
            '<span class="ojs-line"><a href="{0}?{1}">{3}</a> · <a href="{0}?{2}">{4}</a></span>',
            url, urlencode({"queue": queue.name}), waiting, gettext("all"), gettext("waiting"),
        )  # fmt: skip


def _flow(queue: Queue) -> QueueFlow:
    """How the queue fills and empties; read once for a page."""
    found: QueueFlow | None = getattr(queue, "flow_now", None)
    if found is None:
        using = database(None)
        now = clock.now(using)
        work = by_queue(now - dt.timedelta(hours=1), [queue.pk], using=using)
        waiting = {queue.pk: counters.count(queue.pk).states[State.AVAILABLE]}
        found = queue.flow_now = flows(waiting, work, now, using=using)[queue.pk]  # type: ignore[attr-defined]
    return found


def _template() -> Queue | None:
    return Queue.objects.using(database(None)).filter(pk=TEMPLATE).first()


def _counted(queue: Queue) -> dict[str, int]:
    """The counts that the list read for this row."""
    found: counters.Counts | None = getattr(queue, "counted", None)
    return found.states if found else {}
