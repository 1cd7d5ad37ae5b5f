"""Dead letters: the page that groups them by what went wrong, and the rules that retry them without an operator."""

from __future__ import annotations

import dataclasses
import datetime as dt
import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.models import DELETION
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import URLPattern
from django.utils.http import urlencode
from django.utils.safestring import SafeString
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _

from django_ojs import audit, clock, jsontext
from django_ojs.admin import charts, display, live, overtime
from django_ojs.admin.base import unless_large
from django_ojs.admin.bulkaction import action_label, progress
from django_ojs.admin.forms import OperationForm, blame, changed_meanwhile, number, text_field
from django_ojs.admin.jobfilters import clean
from django_ojs.admin.live import LiveSitePages
from django_ojs.admin.operate import SPELLED_OUT, AdminVerb, OperatingAdmin, actor, came_from, one_by_one
from django_ojs.admin.overview import last_errors
from django_ojs.conf import ojs_settings
from django_ojs.errors import InvalidRequest, OJSError
from django_ojs.jobs import bulk, replay
from django_ojs.jobs.retry import retry
from django_ojs.jobs.selection import JobFilter, dead_letters
from django_ojs.models import BulkAction, ErrorNote, Release, ReplayRule
from django_ojs.rules import names, redaction, replayrules
from django_ojs.rules.attributes import parse_priority
from django_ojs.rules.durations import format_instant, format_iso, parse_instant
from django_ojs.statistics import counters, summary
from django_ojs.statistics.summary import Shared
from django_ojs.workerregistry import releases

#: Dead letters that are grouped: the newest; the size up to which their errors are read; groups shown.
SAMPLE, MAX_ERRORS, GROUPS = 1000, 16_384, 50
#: Parts of the time for which a group's trend has a number; the longest note, and notes that are looked at.
TREND, MAX_NOTE, NOTES = 24, 2000, 5000
#: Releases that are looked at: the newest.
RELEASES = 50
#: Single dead letters that the page lists.
NEWEST = 20
#: How old, in seconds, a search in errors may be, which reads those of all dead letters.
SEARCHED = 15.0
#: What may be done with all dead letters that fit a filter: names of the jobs' verbs.
BULK = {"retry_dead_letters": "retry", "delete_dead_letters": "delete"}
#: So many are done at once, more in the background; so many are counted for the question.
AT_ONCE, COUNTED = 1000, 100_000

#: The parameters of the page that are members of the filter by the same name.
_TEXTS = ("type", "queue", "error")

#: What differs from job to job in messages: URLs, addresses of mail and of machines, ids, hexadecimal and other
#: numbers, and quoted texts, but for names as code has them (`KeyError: 'price'`), which tell errors apart.
_VARIABLE = re.compile(
    r"""
      (?<![\w+.-]) [A-Za-z][\w+.-]{0,19} :// [^\s'"<>)\]]* [^\s'"<>)\].,:;!?]
    | (?<![\w.+%-]) [\w.+%-]{1,64} @ [\w-]+ (?:\.[\w-]+)*
    | (?<!\w) (?: '(?![A-Za-z_][\w.]*')[^'\n]{1,200}' | "(?![A-Za-z_][\w.]*")[^"\n]{1,200}" ) (?!\w)
    | [“«„] [^”»“\n]{1,200} [”»“]
    | \b [0-9a-fA-F]{8} (?: -? [0-9a-fA-F]{4} ){3} -? [0-9a-fA-F]{12} \b
    | \b [0-9a-fA-F]{1,4} (?: ::? [0-9a-fA-F]{1,4} ){2,7} \b
    | 0x [0-9a-fA-F]+
    | (?<![A-Za-z0-9]) (?= [A-Za-z]{0,40} \d ) (?: [0-9a-fA-F]{6,} | [A-Za-z0-9]{12,} ) (?![A-Za-z0-9])
    | \d+
    """,
    re.VERBOSE,
)
#: Characters of a message that are looked at.
_LOOKED_AT = 2000


class DeadLetters(LiveSitePages):
    """Adds the page to the admin of jobs, so that every admin site with the jobs has it, under its own name."""

    def get_urls(self) -> list[URLPattern]:
        return [
            self.route("dead-letters/", self.dead_letters_page, "dead_letters"),
            self.route("dead-letters/live/", self.dead_letters_live, "dead_letters_live"),
            self.route("dead-letters/all/<slug:name>/", self.dead_letters_all, "dead_letters_all"),
            self.route("dead-letters/group/", self.dead_letters_group, "dead_letters_group"),
            *super().get_urls(),
        ]

    def dead_letters_page(self, request: HttpRequest) -> HttpResponse:
        context = self._dead_letters(request)
        url = _with(self.url("dead_letters_live"), context["query"])
        age = SEARCHED if "error" in context["filter"] else live.FRESH
        context["follow"] = live.follow(request, url, live.DEAD_LETTERS, age=age)
        return self.live_page(request, "dead_letters", gettext("Dead letters"), context)

    def dead_letters_live(self, request: HttpRequest) -> HttpResponse:
        return self.live_part(request, "dead_letters", self._dead_letters(request))

    def _dead_letters(self, request: HttpRequest) -> dict[str, Any]:
        wanted = dead_letter_filter(request.GET)
        given = parameters(wanted)
        found = groups(wanted).get()
        noted = notes.get()
        sampled, total_now = found.sampled, total.get()
        shown = [_group_context(group, wanted, noted.get(group.key)) for group in found.groups]
        return {
            "total": total_now,
            "groups": [group for group in shown if not group["muted"]],
            "muted": [group for group in shown if group["muted"]],
            "more_groups": found.more,
            "sampled": sampled,
            "numbers": {"total": f"{total_now:,}", "sampled": f"{sampled:,}"},
            "newest": [{**job, "ended": display.ago(job["finished_at"])} for job in newest(wanted).get()],
            "filter": given,
            "query": request.GET.urlencode(),
            "here_again": urlencode({"next": _with(self.url("dead_letters"), request.GET.urlencode())}),
            "filtered": bool(given),
            "may_retry": self.has_right(request, "change"),
            "may_delete": self.has_right(request, "delete"),
            "bulk_actions": [_progress(action) for action in actions.get()],
        }

    def dead_letters_group(self, request: HttpRequest) -> HttpResponse:
        """What operators noted about dead letters of one type with one error; POST changes it."""
        if not self.has_right(request, "change") or not self.has_view_permission(request):
            raise PermissionDenied
        given = {name: clean(request.GET.get(name, ""))[:255] for name in ("type", "error", "message")}
        if not given["type"]:
            raise Http404
        back = came_from(request) or self.url("dead_letters")
        key = key_of(**given)
        known = ErrorNote.objects.filter(pk=key).first()
        stored = known.note if known else ""
        note, muted = stored, (was_muted := bool(known and known.muted))
        if request.method == "POST":
            note, muted = request.POST.get("note", "").replace("\0", "").strip()[:MAX_NOTE], "muted" in request.POST
            if muted == bool(request.POST.get("seen_muted", was_muted)):  # who leaves it takes back no other's change
                muted = was_muted
            if stored.split() not in (note.split(), request.POST.get("seen", stored).split()):
                by = known.changed_by if known else ""
                self.message_user(
                    request, changed_meanwhile(gettext("Note about dead letters"), stored, by), messages.ERROR
                )
            else:
                entry = self.audit_entry(request, "dead_letter.note")
                entry.target, entry.detail = given["type"], {"error": given["error"], "note": note, "muted": muted}
                audit.perform(lambda: write_note(key, given, note, muted, actor(request)), entry)
                summary.forget()
                self.message_user(request, gettext("Noted."), messages.SUCCESS)
                return HttpResponseRedirect(back)
        title = gettext("Note about dead letters")
        return self.page(
            request, "dead_letter_group", title, here="dead_letters", group=given, known=known, max_note=MAX_NOTE,
            stored=stored, note=note, was_muted=was_muted, muted=muted, back=back,
            changed=display.when(known.changed_at) if known else "",
        )  # fmt: skip

    def dead_letters_all(self, request: HttpRequest, name: str) -> HttpResponse:
        """GET: the number of dead letters that fit. POST: act on them, but on none that came after the question."""
        verb = next((verb for verb in self.verbs if verb.name == name and name in BULK), None)
        if verb is None:
            raise Http404
        if not self.has_right(request, verb.right) or not self.has_view_permission(request):
            raise PermissionDenied
        wanted = dead_letter_filter(request.POST)
        if request.method == "POST" and "until" in wanted.values:  # else the user has confirmed nothing yet
            return self._do_all(request, verb, wanted)
        given = {**request.GET.dict(), "until": format_instant(clock.now())}
        return self._ask_for_all(request, verb, dead_letter_filter(given))

    def _do_all(self, request: HttpRequest, verb: AdminVerb, wanted: JobFilter) -> HttpResponse:
        """Few at once, many in the background, where they have a page of their own."""
        back = came_from(request) or self.url("dead_letters")
        try:
            per_minute = _rate(request.POST.get("per_minute", ""))
            override = _changes(request.POST) if BULK[verb.name] == "retry" else None
        except (InvalidRequest, ValueError) as error:
            self.message_user(request, display.explain(error), messages.ERROR)
            return self._ask_for_all(request, verb, wanted)
        if per_minute is None and wanted.jobs().order_by()[: AT_ONCE + 1].count() <= AT_ONCE:
            if override:
                verb = dataclasses.replace(verb, run=lambda pks, by: retry(pks, override=override))
            found = wanted.jobs().order_by("finished_at")
            self.act_on_all(request, verb, found, bulk.noted(wanted, override), wanted.jobs())
            return HttpResponseRedirect(back)
        entry = self.audit_entry(request, f"job.bulk_{BULK[verb.name]}")
        action = bulk.start_action(BULK[verb.name], wanted, entry, override=override, per_minute=per_minute)
        summary.forget()
        number = f"{action.expected:,}"
        text = gettext("%(number)s dead letters are being worked on in the background.") % {"number": number}
        self.message_user(request, text, messages.SUCCESS)
        return HttpResponseRedirect(self.url_of(BulkAction, action.pk, request) or back)

    def _ask_for_all(self, request: HttpRequest, verb: AdminVerb, wanted: JobFilter) -> HttpResponse:
        jobs, given = wanted.jobs(), parameters(wanted)
        number = jobs.order_by()[: COUNTED + 1].count()
        sample = jobs.defer(*self.large_columns).order_by("finished_at")[:SPELLED_OUT]
        return self.page(
            request, "confirm_all", gettext("%(verb)s: are you sure?") % {"verb": verb.label}, here="dead_letters",
            verb=verb, number=min(number, COUNTED), many=f"{min(number, COUNTED):,}", too_many=number > COUNTED,
            background=number > AT_ONCE,
            may_move=BULK[verb.name] == "retry", most=replayrules.MAX_PER_MINUTE, filter=given, fields=given.items(),
            sample=[display.printable(job) for job in sample], more=number > SPELLED_OUT,
            back=came_from(request) or self.url("dead_letters"), given=request.POST,
        )  # fmt: skip


def _with(address: str, query: str) -> str:
    return f"{address}?{query}" if query else address


def _rate(text: str) -> int | None:
    """What the form holds for the number of jobs in a minute; None if it is empty."""
    text = text.strip()
    if not text:
        return None
    number = jsontext.digits(text)
    return bulk.rate(text if number is None else number, gettext("In a minute at most"))


def _changes(given: Mapping[str, str]) -> dict[str, Any] | None:
    """What the form changes in all that are retried; None where that is nothing. Raises `ValueError`."""
    queue, priority = (given.get(name, "").strip() for name in ("to_queue", "to_priority"))
    found: dict[str, Any] = {}
    if queue:
        try:
            found["queue"] = names.check_queue(queue)
        except ValueError as error:
            raise ValueError(gettext("The queue %(problem)s.") % {"problem": display.explain(error)}) from None
    if priority:
        try:
            found["priority"] = parse_priority(number(priority), ojs_settings.PRIORITY_LEVELS)
        except ValueError as error:
            raise ValueError(gettext("The priority %(problem)s.") % {"problem": display.explain(error)}) from None
    return found or None


def _progress(action: BulkAction) -> dict[str, Any]:
    """A bulk action that runs, as the template shows it."""
    return {"pk": action.pk, "name": action_label(action), "progress": progress(action)}


def _group_context(group: DeadLetterGroup, wanted: JobFilter, noted: ErrorNote | None) -> dict[str, Any]:
    """A group of what fits `wanted`, as the template shows it."""
    found = dataclasses.asdict(group)
    own = urlencode({"type": group.type, "error": group.error, "message": group.message})
    return found | {
        "number": f"{group.count:,}",
        "query": group.query(wanted), "first": display.ago(group.first), "last": display.ago(group.last), "own": own,
        "trend": charts.spark(group.trend, group.marks), "note": display.ellipsized(noted.note, 200) if noted else "",
        "muted": bool(noted and noted.muted),
    }  # fmt: skip


def dead_letter_filter(given: Mapping[str, str]) -> JobFilter:
    """The dead letters that the parameters of a request ask for: by type, queue and error, not newer than `until`. An
    unreadable time counts as none."""
    texts = {name: clean(given.get(name, "")) for name in _TEXTS}
    try:
        until = parse_instant(given["until"]) + _NEXT if given.get("until") else None
    except ValueError:
        until = None
    return dead_letters(**texts, until=until)


def parameters(wanted: JobFilter) -> dict[str, str]:
    """What `dead_letter_filter` reads this filter from."""
    found = {name: wanted.values[name] for name in _TEXTS if name in wanted.values}
    until = wanted.values.get("until")
    return found | ({"until": format_instant(until - _NEXT)} if until else {})


#: A filter takes what ended before its `until`, and the page what ended then or before.
_NEXT = dt.timedelta(microseconds=1)


@dataclasses.dataclass(slots=True)
class DeadLetterGroup:
    """Dead letters of one type with one error: how many of the sample, and since when until when. `release` was the
    newest one when the first of them ended, `marks` when others came, in parts of the trend."""

    type: str
    error: str
    message: str
    count: int
    first: dt.datetime
    last: dt.datetime
    example: Any
    kind: str  #: the error's type as it is stored
    trend: list[int] = dataclasses.field(default_factory=list)  #: how many ended, by part of the time of the sample
    release: str = ""
    marks: list[tuple[float, str]] = dataclasses.field(default_factory=list)

    @property
    def key(self) -> str:
        return key_of(self.type, self.error, self.message)

    def query(self, wanted: JobFilter) -> str:
        """The filter that finds these, and others with this kind of error, but none that `wanted` does not find."""
        kind = {"error": self.kind} if self.kind else {}
        return urlencode({**kind, **parameters(wanted), "type": self.type})


class Grouped(NamedTuple):
    """The largest groups first, how many dead letters were grouped, and how many smaller groups are not among these."""

    groups: list[DeadLetterGroup]
    sampled: int
    more: int


@lru_cache(maxsize=64)
def newest(wanted: JobFilter) -> Shared[list[dict[str, Any]]]:
    """The newest dead letters that fit, shared by all viewers of this filter: columns, and `error` as lists show it."""

    def read(using: str) -> list[dict[str, Any]]:
        jobs = wanted.jobs(using).order_by("-finished_at")
        rows = list(jobs.values("pk", "type", "queue", "attempt", "finished_at")[:NEWEST])
        errors = last_errors([row["pk"] for row in rows], using)
        return [{**row, "error": display.brief(errors.get(row["pk"]))} for row in rows]

    return Shared(read, SEARCHED if "error" in wanted.values else live.FRESH)


@lru_cache(maxsize=64)
def groups(wanted: JobFilter) -> Shared[Grouped]:
    """The newest dead letters that fit, by type and error, shared by all viewers of this filter."""
    return Shared(lambda using: compute(wanted, using), SEARCHED if "error" in wanted.values else live.FRESH)


def compute(wanted: JobFilter, using: str) -> Grouped:
    """The newest dead letters that fit, by type and error."""
    newest = wanted.jobs(using).order_by("-finished_at")
    read = newest.annotate(history=unless_large("errors", limit=MAX_ERRORS))
    found: dict[tuple[str, str, str], DeadLetterGroup] = {}
    ends: dict[tuple[str, str, str], list[dt.datetime]] = {}
    rows: Iterable[Any] = read.values_list("pk", "type", "finished_at", "history")[:SAMPLE]
    for pk, job_type, ended, history in rows:
        error = redaction.error(job_type, history[-1]) if history else {}
        key = job_type, *display.brief({**error, "message": shape(str(error.get("message") or ""))})
        if key not in found:
            found[key] = DeadLetterGroup(*key, 0, ended, ended, pk, display.printable(error.get("type") or ""))
        group = found[key]
        group.count += 1
        group.first = ended
        ends.setdefault(key, []).append(ended)
    if found:
        _add_trends(found, ends, clock.now(using), releases.newest(RELEASES, using=using))
    largest = sorted(found.values(), key=lambda group: (-group.count, group.type, group.error))
    return Grouped(largest[:GROUPS], sum(group.count for group in largest), len(largest[GROUPS:]))


def _add_trends(
    found: Mapping[Any, DeadLetterGroup], ends: Mapping[Any, Sequence[dt.datetime]], now: dt.datetime,
    known: Sequence[Release],
) -> None:  # fmt: skip
    """Note how many of each group ended in each of `TREND` parts of the time from the first of all to now, and the
    releases by then."""
    begin = min(group.first for group in found.values())
    length = max(now - begin, dt.timedelta(seconds=1))
    marks = charts.marks(overtime.moments(known), begin, length / TREND)
    for key, group in found.items():
        group.marks = marks
        group.release = next((one.name for one in reversed(known) if one.first_seen_at <= group.first), "")
        places = Counter(min(int((ended - begin) / length * TREND), TREND - 1) for ended in ends[key])
        group.trend = [places[place] for place in range(TREND)]


def key_of(type: str, error: str, message: str) -> str:
    """The key of an `ErrorNote`. The message is a `shape`."""
    return hashlib.sha256(f"{type}\0{error}\0{message}".encode("utf-8", "replace")).hexdigest()


def write_note(key: str, group: Mapping[str, str], note: str, muted: bool, by: str) -> None:
    """Store a note, or forget it where there is nothing to note."""
    if not note and not muted:
        ErrorNote.objects.filter(pk=key).delete()
        return
    values = {"job_type": group["type"], "error": group["error"], "message": group["message"], "note": note}
    ErrorNote.objects.update_or_create(
        pk=key, defaults={**values, "muted": muted, "changed_by": by[:255], "changed_at": clock.now()}
    )


def read_notes(using: str) -> dict[str, ErrorNote]:
    """The notes by their keys, the newest first where there are very many."""
    return {note.pk: note for note in ErrorNote.objects.using(using).order_by("-changed_at")[:NOTES]}


def count(using: str) -> int:
    """All dead letters, exactly, from the counters."""
    return sum(one.dead for one in counters.count_all(using=using).values())


total = Shared(count, live.FRESH)
notes = Shared(read_notes, live.FRESH)
actions = Shared(bulk.running_actions, live.FRESH)


def shape(message: str) -> str:
    """A message without what differs from job to job."""
    return _VARIABLE.sub("#", message[:_LOOKED_AT])


# Replay rules

#: The form's fields by the members that a refusal names.
_BY_PATH = {"filter": "queue", **{f"filter.{name}": name for name in replayrules.FILTERS}}


def _switch(enabled: bool) -> Any:
    def act(pk: Any, by: str) -> Any:
        row = ReplayRule.objects.get(pk=pk)
        return replay.put(dataclasses.replace(replay.of_row(row), enabled=enabled))

    return one_by_one(act)


RULE_VERBS = (
    AdminVerb("enable_rules", "Enable", "enabled", _switch(True), lambda rule: not rule.enabled),
    AdminVerb("disable_rules", "Disable", "disabled", _switch(False), lambda rule: rule.enabled),
    AdminVerb(
        "delete_rules", "Delete", "deleted",
        one_by_one(lambda pk, by: replay.delete(ReplayRule.objects.get(pk=pk).name)),
        question="Jobs that it has retried stay as they are.", right="delete", flag=DELETION,
    ),
)  # fmt: skip


class ReplayRuleForm(OperationForm):
    """A rule as `rules.replayrules` reads it. Switching it is an act of its own once it is there."""

    name = text_field(_("Name"), _("Lowercase letters, digits, hyphens and dots."))
    queue = text_field(_("Queue"), _("Only dead letters of this queue."), required=False)
    type = text_field(
        _("Job type"), _("Only this type. mail.* stands for all types that begin with mail."), required=False
    )
    error_type = text_field(_("Error type"), _("Only jobs with an error of this type."), required=False)
    since = text_field(
        _("Created since"), _("Only jobs created then or later, such as 2026-01-31T12:00:00Z."), required=False
    )
    until = text_field(_("Created before"), _("Only jobs created before then."), required=False)
    delay = text_field(_("Delay"), _("How long after its end a job is retried, such as PT1H or 30m."), initial="PT1H")
    max_replays = forms.IntegerField(
        label=_("Retries of one job"), min_value=1, max_value=replayrules.MAX_REPLAYS, initial=3
    )
    per_minute = forms.IntegerField(
        label=_("Retries in a minute"), min_value=1, max_value=replayrules.MAX_PER_MINUTE, initial=60
    )
    enabled = forms.BooleanField(label=_("Enabled"), required=False, initial=True)

    class Meta:
        model = ReplayRule
        fields = ("name", "max_replays", "per_minute", "enabled")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.rule: replayrules.Rule
        if not self.instance._state.adding:
            self.initial.update(self.instance.filter, delay=format_iso(self.instance.delay_ms))

    def clean(self) -> dict[str, Any]:
        """Read the fields as the document that a request would hold."""
        found = super().clean() or {}
        if self.errors:
            return found
        adding = self.instance._state.adding
        given = {name: found[name] for name in ("delay", "max_replays", "per_minute")}
        given["name"] = found["name"] if adding else self.instance.name
        given["enabled"] = found["enabled"] if adding else self.instance.enabled
        given["filter"] = {name: found[name] for name in replayrules.FILTERS if found[name]}
        try:
            self.rule = replayrules.parse(given)
        except OJSError as error:
            blame(self, error, _BY_PATH, "queue")
        return found


@admin.register(ReplayRule)
class ReplayRuleAdmin(OperatingAdmin):
    """The rules that retry dead letters: made, changed, switched and deleted here, through `jobs.replay`."""

    editing = ("add", "change")
    form = ReplayRuleForm
    list_display = ("name", "status", "means", "delay", "most_replays", "rate")
    list_filter = ("enabled",)
    search_fields = ("name",)
    ordering = ("id",)
    verbs = actions = RULE_VERBS
    definition = (
        (_("Which dead letters"), {"fields": ("queue", "type", "error_type", ("since", "until"))}),
        (_("When and how often"), {"fields": ("delay", "max_replays", "per_minute")}),
    )
    shown = ("name", "status", "means", "delay", "most_replays", "rate", "matching", "created", "updated")

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        if obj is None:
            return ((None, {"fields": ("name", "enabled")}), *self.definition)
        if not self.has_change_permission(request, obj):
            return ((None, {"fields": self.shown}),)
        return ((None, {"fields": ("name", "status", "matching")}), *self.definition,
                (_("Row"), {"fields": (("created", "updated"),)}))  # fmt: skip

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        return ("name", "status", "matching", "created", "updated") if obj else ()

    def save_model(self, request: HttpRequest, obj: ReplayRule, form: Any, change: bool) -> None:
        def save() -> None:
            replay.put(form.rule)
            obj.pk = ReplayRule.objects.get(name=form.rule.name).pk

        self.save_audited(request, form, obj, "replayrule.set", save)

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        """The list, and the names of the rules that it cannot show because the site's settings hold them."""
        fixed = [rule.name for rule in replay.rules() if rule.source == "settings"]
        text = ngettext(
            "The site's settings have %(names)s, which comes before these.",
            "The site's settings have %(names)s, which come before these.",
            len(fixed),
        ) % {"names": ", ".join(fixed)}
        return super().changelist_view(request, {"subtitle": text if fixed else None, **(extra_context or {})})

    created = display.column(display.when, "created_at", "made")
    updated = display.column(display.when, "updated_at", "changed")

    @admin.display(description=_("status"))
    def status(self, rule: ReplayRule) -> SafeString:
        return display.colour_label("active" if rule.enabled else "paused", "good" if rule.enabled else "")

    @admin.display(description=_("for"))
    def means(self, rule: ReplayRule) -> str:
        return display.printable(", ".join(f"{name} {value}" for name, value in rule.filter.items()))

    most_replays = display.column(display.count, "max_replays", "Retries of one job")
    rate = display.column(display.count, "per_minute", "Retries in a minute")

    @admin.display(description=_("delay"))
    def delay(self, rule: ReplayRule) -> SafeString | str:
        return display.duration(rule.delay_ms)

    @admin.display(description=_("dead letters"))
    def matching(self, rule: ReplayRule) -> str:
        found = replay.preview(replay.of_row(rule))
        return gettext("%(matched)s fit, %(due)s are due, %(exhausted)s have no retry left.") % {
            "matched": f"{found.matched:,}", "due": f"{found.due:,}", "exhausted": f"{found.exhausted:,}",
        }  # fmt: skip
