"""The form of a schedule: read by `rules.cron`, as what comes over HTTP is."""

from __future__ import annotations

from typing import Any

from django import forms
from django.core.exceptions import ValidationError
from django.utils.translation import gettext_lazy as _

from django_ojs import clock, jsontext
from django_ojs.admin.forms import LINES, WireField, blame
from django_ojs.errors import OJSError
from django_ojs.models import CronSchedule
from django_ojs.rules import cron, redaction
from django_ojs.rules.attributes import DEFAULT_QUEUE
from django_ojs.rules.cron import OverlapPolicy

#: What each policy does with an occurrence while a run before it has not ended.
POLICIES = (
    (OverlapPolicy.SKIP.value, _("skip: no job this time")),
    (OverlapPolicy.ALLOW.value, _("allow: one more job beside it")),
    (OverlapPolicy.ENQUEUE.value, _("enqueue: one more job, which waits for it")),
    (OverlapPolicy.CANCEL_PREVIOUS.value, _("cancel_previous: it is cancelled")),
)
#: Members of the envelope with fields of their own.
_APART = ("type", "args", "queue")
_BY_PATH = {
    **{name: name for name in ("name", "timezone", "overlap_policy", "description")},
    **dict.fromkeys(("cron", "expression", "schedule"), "expression"),
    **{f"job_template.{name}": name for name in _APART},
}


def _text(label: Any, length: int, help_text: Any = "", **more: Any) -> forms.CharField:
    attrs = {"autocapitalize": "none", "spellcheck": "false", "class": "vTextField"}
    widget = forms.TextInput(attrs=attrs)
    return forms.CharField(label=label, max_length=length, help_text=help_text, widget=widget, **more)


class CronForm(forms.ModelForm):  # type: ignore[type-arg]
    """A schedule and the envelope of its jobs. What the site hides of it is masked, and kept where it is not touched.

    Enabling is no field of a schedule that exists: it is an act of its own.
    """

    name = _text(_("Name"), cron.MAX_NAME, _("Lowercase letters, digits, hyphens and dots."))
    expression = _text(
        _("Schedule"), 255, _("Minute, hour, day, month, day of week, such as 0 9 * * 1-5; or @daily, @every 90m.")
    )
    timezone = _text(_("Time zone"), 64, _("UTC, or such as Europe/Paris."), initial="UTC")
    overlap_policy = forms.ChoiceField(
        choices=POLICIES, initial=OverlapPolicy.SKIP.value, label=_("When a run is not over")
    )
    enabled = forms.BooleanField(required=False, initial=True, label=_("Enabled"))
    description = forms.CharField(
        required=False, max_length=cron.MAX_DESCRIPTION, widget=forms.Textarea(attrs=LINES), label=_("Description")
    )
    type = _text(_("Job type"), 255, _("Such as report.make."))
    queue = _text(_("Queue"), 128, initial=DEFAULT_QUEUE, required=False)
    args = WireField(kind=list, example='["daily"]', label=_("Arguments"), help_text=_("A JSON array; empty: none."))
    others = WireField(
        label=_("Other attributes"), rows=4, example='{"priority": 5}',
        help_text=_('Of the jobs, as JSON, such as {"options": {"priority": 5, "retry": {"max_attempts": 3}}}.'),
    )  # fmt: skip

    class Meta:
        model = CronSchedule
        fields = ("name", "expression", "timezone", "overlap_policy", "enabled", "description", "type", "queue")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fits: cron.CronSpec
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
            if name in self.changed_data and given and redaction.active() and redaction.MASK in jsontext.dumps(given):
                text = _("%(mask)s stands for what is hidden here: write all of the new value.")
                self.add_error(name, ValidationError(text, params={"mask": redaction.MASK}))
        if named := {*_APART, "name"} & (self.cleaned_data.get("others") or {}).keys():
            text = _("%(members)s: there is a field for this.")
            self.add_error("others", ValidationError(text, params={"members": ", ".join(sorted(named))}))
        if not self.errors:
            try:
                self.fits = cron.parse(self._body(), now=clock.now())
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

    def _post_clean(self) -> None:
        """The operations write; the row itself is not touched here, but a new name must be free."""
        if self.instance._state.adding and "name" in self.cleaned_data:
            self.instance.name = self.cleaned_data["name"]
            self.validate_unique()
