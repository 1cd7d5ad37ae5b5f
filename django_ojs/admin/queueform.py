"""The form of a queue: its configuration member by member, checked by the rules that hold for all doors."""

from __future__ import annotations

from typing import Any

from django import forms
from django.core.exceptions import ValidationError
from django.db.models import BLANK_CHOICE_DASH
from django.utils.translation import gettext_lazy as _

from django_ojs.admin.forms import LinesField, WireField, blame
from django_ojs.admin.refusals import local
from django_ojs.errors import OJSError
from django_ojs.models import Queue
from django_ojs.queues import configuration
from django_ojs.rules import names, queueconfig

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
        return int(text) if text.isascii() and text.isdigit() else text

    def has_changed(self, initial: Any, data: Any) -> bool:
        return super().has_changed("" if initial is None else str(initial), data)


def _number(label: Any, minimum: int = 0, help_text: Any = "") -> forms.IntegerField:
    return forms.IntegerField(required=False, label=label, min_value=minimum, help_text=help_text)


class QueueForm(forms.ModelForm):  # type: ignore[type-arg]
    """What a queue is configured to. Pausing is no field: it is an operation with an event.

    An empty field takes a value back: then that of the template `_default` holds, or the site's.
    """

    concurrency = _number(_("Jobs at a time"), help_text=_("Of the whole queue, in all workers. 0: none."))
    rate_limit = WireField(
        label=_("Rate limit"), example='{"limit": 100, "period": "PT1M"}',
        help_text=_('Such as {"limit": 100, "period": "PT1M"} or {"max_per_second": 2}.'),
    )  # fmt: skip
    max_depth = _number(_("Most waiting jobs"), help_text=_("0: as many as come."))
    strategy = forms.ChoiceField(choices=[*BLANK_CHOICE_DASH, *_WORDS], required=False, label=_("When it is full"))
    warning_threshold = forms.FloatField(
        required=False, min_value=0, max_value=1, label=_("Warn at"), help_text=_("A share of it, such as 0.8.")
    )
    allowed_job_types = LinesField(
        required=False, label=_("Allowed job types"), help_text=_("One a line, such as email.*. Empty: all types.")
    )
    draining = forms.BooleanField(
        required=False, label=_("Draining"), help_text=_("Delivers what it has, and takes no new jobs.")
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
    others = WireField(label=_("Other members"), help_text=_("Of its configuration, as JSON."))

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
        self.initial.setdefault("others", rest)

    def clean_name(self) -> str:
        name: str = self.cleaned_data["name"]
        try:
            return names.check_queue(name)
        except ValueError as error:
            raise ValidationError(_("The name %(fault)s."), params={"fault": local(error)}) from error

    def clean(self) -> dict[str, Any]:
        super().clean()
        if not self.errors:
            try:
                queueconfig.check(self.document())
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

    def _post_clean(self) -> None:
        """The operations check and write; the row itself is not touched here, but its name must be free."""
        if self.instance._state.adding and "name" in self.cleaned_data:
            self.instance.name = self.cleaned_data["name"]
            self.validate_unique()


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
