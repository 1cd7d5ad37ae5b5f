"""The rules that retry dead letters: made, changed, switched and deleted here, through `jobs.replay`."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar

from django import forms
from django.contrib import admin
from django.contrib.admin.models import DELETION
from django.http import HttpRequest, HttpResponse
from django.utils.safestring import SafeString
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _

from django_ojs.admin import auditing, columns, display
from django_ojs.admin.forms import blame
from django_ojs.admin.operate import EditingAdmin, Verb, as_action, one_by_one
from django_ojs.errors import OJSError
from django_ojs.jobs import replay
from django_ojs.models import ReplayRule
from django_ojs.rules import replayrules
from django_ojs.rules.durations import format_iso

#: The form's fields by the members that a refusal names.
_BY_PATH = {
    **{name: name for name in ("name", "delay", "max_replays", "per_minute", "enabled")},
    **{f"filter.{name}": name for name in replayrules.FILTERS},
    "filter": "queue",
}


def _switch(enabled: bool) -> Any:
    def act(pk: Any, by: str) -> Any:
        row = ReplayRule.objects.get(pk=pk)
        return replay.put(dataclasses.replace(replay.of_row(row), enabled=enabled))

    return one_by_one(act)


VERBS = (
    Verb("enable_rules", "Enable", "enabled", _switch(True), lambda rule: not rule.enabled),
    Verb("disable_rules", "Disable", "disabled", _switch(False), lambda rule: rule.enabled),
    Verb(
        "delete_rules", "Delete", "deleted",
        one_by_one(lambda pk, by: replay.delete(ReplayRule.objects.get(pk=pk).name)),
        question="What it has retried stays as it is.", right="delete", flag=DELETION,
    ),
)  # fmt: skip


def _text(label: Any, help_text: Any = "", **more: Any) -> forms.CharField:
    widget = forms.TextInput(attrs={"autocapitalize": "none", "spellcheck": "false", "class": "vTextField"})
    return forms.CharField(label=label, help_text=help_text, widget=widget, max_length=255, **more)


class ReplayRuleForm(forms.ModelForm):  # type: ignore[type-arg]
    """A rule as `rules.replayrules` reads it. Switching it is an act of its own once it is there."""

    name = _text(_("Name"), _("Lowercase letters, digits, hyphens and dots."))
    queue = _text(_("Queue"), _("Only dead letters of this queue."), required=False)
    type = _text(_("Job type"), _("Only this type, or such as mail.* for all that begin so."), required=False)
    error_type = _text(_("Error type"), _("Only jobs with an error of this type."), required=False)
    since = _text(_("Made since"), _("Only jobs made then or later, such as 2026-01-31T12:00:00Z."), required=False)
    until = _text(_("Made before"), _("Only jobs made before then."), required=False)
    delay = _text(_("Delay"), _("How long after its end a job is retried, such as PT1H or 30m."), initial="PT1H")
    max_replays = forms.IntegerField(
        label=_("Retries of one job"), min_value=1, max_value=replayrules.MAX_REPLAYS, initial=3
    )
    per_minute = forms.IntegerField(
        label=_("Jobs in a minute"), min_value=1, max_value=replayrules.MAX_PER_MINUTE, initial=60
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
class ReplayRuleAdmin(EditingAdmin):
    form = ReplayRuleForm
    list_display = ("name", "status", "means", "delay", "max_replays", "per_minute")
    list_filter = ("enabled",)
    search_fields = ("name",)
    ordering = ("id",)
    verbs: ClassVar[Sequence[Verb]] = VERBS
    actions = [as_action(verb) for verb in VERBS]
    definition = (
        (_("Which dead letters"), {"fields": ("queue", "type", "error_type", ("since", "until"))}),
        (_("When and how often"), {"fields": ("delay", "max_replays", "per_minute")}),
    )
    shown = ("name", "status", "means", "delay", "max_replays", "per_minute", "matching", "created", "updated")

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        if obj is None:
            return ((None, {"fields": ("name", "enabled")}), *self.definition)
        if not self.has_change_permission(request, obj):
            return ((None, {"fields": self.shown}),)
        return ((None, {"fields": ("name", "status", "matching")}), *self.definition,
                (_("Row"), {"fields": (("created", "updated"),)}))  # fmt: skip

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        if obj is None:
            return ()
        always = ("name", "status", "matching", "created", "updated")
        return always if self.has_change_permission(request, obj) else self.shown

    def save_model(self, request: HttpRequest, obj: ReplayRule, form: Any, change: bool) -> None:
        def save() -> None:
            replay.put(form.rule)
            obj.pk = ReplayRule.objects.get(name=form.rule.name).pk

        auditing.saved(request, form, obj, "replayrule.set", save)

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        """The list, and the names of the rules that it cannot show because the site's settings hold them."""
        fixed = [rule.name for rule in replay.rules() if rule.source == "settings"]
        told = ngettext(
            "Asked before these: %(names)s, which is in the site's settings.",
            "Asked before these: %(names)s, which are in the site's settings.",
            len(fixed),
        ) % {"names": ", ".join(fixed)}
        return super().changelist_view(request, {"subtitle": told if fixed else None, **(extra_context or {})})

    created = columns.time("created_at", "made")
    updated = columns.time("updated_at", "changed")

    @admin.display(description=_("status"))
    def status(self, rule: ReplayRule) -> SafeString:
        return display.label("active" if rule.enabled else "paused", "good" if rule.enabled else "")

    @admin.display(description=_("for"))
    def means(self, rule: ReplayRule) -> str:
        return display.printable(", ".join(f"{name} {value}" for name, value in rule.filter.items()))

    @admin.display(description=_("delay"))
    def delay(self, rule: ReplayRule) -> SafeString | str:
        return display.duration(rule.delay_ms)

    @admin.display(description=_("dead letters"))
    def matching(self, rule: ReplayRule) -> str:
        found = replay.preview(replay.of_row(rule))
        return gettext("%(matched)s fit, %(due)s are due, %(exhausted)s have no retry left.") % {
            "matched": found.matched, "due": found.due, "exhausted": found.exhausted,
        }  # fmt: skip
