"""What our forms share: fields that read what the API reads, and refusals shown beside the field that they are about.

Such a form saves no row. It makes what a client would send, has it read by the code that reads it over HTTP, and hands
the result to the operation.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl, urlencode

from django import forms
from django.core.exceptions import ValidationError
from django.utils.functional import cached_property
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from django_ojs import clock, jsontext
from django_ojs.admin import display
from django_ojs.admin.display import ellipsized, explain, pretty, printable
from django_ojs.admin.operate import last_to_change
from django_ojs.errors import OJSError
from django_ojs.keys import distinct

#: What `shown` calls the instant. No field has this name.
_AT = "@"
LINES = {"rows": 3, "class": "vLargeTextField"}


class OperationForm(forms.ModelForm):  # type: ignore[type-arg]
    """A form whose values an operation checks and writes. The row is not touched here, but a new name must be free.

    Who has had the form open for a while writes over no change that another has made since, without being told.
    """

    @cached_property
    def shown(self) -> str:
        """A hash of each value that the form of a row shows, and when. The page sends it back as `ojs_shown`."""
        if self.instance._state.adding:
            return ""
        now = clock.now(self.instance._state.db).timestamp()
        return urlencode({**{name: self._hash(name) for name in self.fields}, _AT: now})

    def _post_clean(self) -> None:
        if self.instance._state.adding:
            if "name" in self.cleaned_data:
                self.instance.name = self.cleaned_data["name"]
                self.validate_unique()
            return
        shown = dict(parse_qsl(self.data.get("ojs_shown", "")))
        for name in self.changed_data:
            if shown.get(name, self._hash(name)) != self._hash(name):
                by = last_to_change(self.instance, name, _number(shown.get(_AT)))
                self.add_error(name, changed_meanwhile(str(self[name].label), self._text(name), by))

    def _text(self, name: str) -> str:
        value = self.fields[name].prepare_value(self[name].initial)
        return "" if value is None else str(value)

    def _hash(self, name: str) -> str:
        return hashlib.sha256(self._text(name).encode("utf-8", "backslashreplace")).hexdigest()[:16]


def changed_meanwhile(what: str, value: str, by: str) -> str:
    """The error of a field that another user has changed since the form was shown; `by` is that user, '' if unknown."""
    text = gettext("Meanwhile %(who)s has changed “%(what)s” to “%(value)s”. Save again to have your value instead.")
    value = ellipsized(value, 300) or display.NOTHING
    return text % {"who": ellipsized(by) or gettext("somebody else"), "what": what, "value": value}


def _number(text: str | None) -> float:
    """The instant in `ojs_shown`, which anybody may have written; without one, the beginning of time."""
    try:
        found = float(text or 0)
    except ValueError:
        return 0.0
    return found if 0 < found < 1e11 else 0.0


def blame(form: forms.BaseForm, error: OJSError, fields: Mapping[str, str], otherwise: str | None = None) -> None:
    """Show a refusal beside the field for it, else beside `otherwise` (None: above the form).

    Args:
        fields: names of fields by their paths on the wire, where the two differ.
    """
    parts = str(error.details.get("field", "")).replace("[", ".").split(".")
    paths = [".".join(parts[:length]) for length in range(len(parts), 0, -1)]
    name = next((name for path in paths if (name := fields.get(path, path)) in form.fields), otherwise)
    form.add_error(name, ValidationError(ellipsized(explain(error), 500)))


def text_field(label: Any, help_text: Any = "", length: int = 255, **more: Any) -> forms.CharField:
    """A name or an expression on one line, which no browser corrects."""
    widget = forms.TextInput(attrs={"autocapitalize": "none", "spellcheck": "false", "class": "vTextField"})
    return forms.CharField(label=label, help_text=help_text, widget=widget, max_length=length, **more)


class LinesField(forms.CharField):
    """Texts, one a line."""

    widget = forms.Textarea(attrs=LINES)

    def clean(self, value: Any) -> list[str]:
        return _lines(super().clean(value))

    def has_changed(self, initial: Any, data: Any) -> bool:
        return (initial or []) != _lines(data or "")

    def prepare_value(self, value: Any) -> Any:
        return "\n".join(map(str, value)) if isinstance(value, list) else value


def _lines(text: str) -> list[str]:
    """The entries. Commas alone are one that nothing is called by, or they would mean that there is no limit."""
    return distinct(text.replace(",", "\n").splitlines()) or distinct([text])


class WireField(forms.CharField):
    """JSON to type in, read as the HTTP binding reads it: numbers keep their digits. Empty: None.

    Args:
        kind: `dict`, `list`, or `object` for any value.
        example: what the refusal of another kind shows.
    """

    widget = forms.Textarea(attrs={**LINES, "spellcheck": "false", "autocapitalize": "none"})
    default_error_messages = {
        "dict": _("This must be a JSON object, such as %(example)s."),
        "list": _("This must be a JSON array, such as %(example)s."),
    }

    def __init__(self, *, kind: type = dict, example: str = "{}", rows: int = 3, **kwargs: Any) -> None:
        self.kind, self.example = kind, example
        super().__init__(required=False, strip=False, **kwargs)
        self.widget.attrs["rows"] = rows

    def to_python(self, value: str | None) -> Any:
        if value is None or not value.strip():
            return None
        try:
            found = jsontext.loads(value)
        except jsontext.JSONTextError as error:
            fault = str(error).removeprefix("Not valid JSON: ")
            raise ValidationError(_("This cannot be read as JSON: %(fault)s"), params={"fault": fault}) from error
        if not isinstance(found, self.kind):
            raise ValidationError(self.error_messages[self.kind.__name__], params={"example": self.example})
        return found

    def validate(self, value: Any) -> None:
        """Nothing is required."""

    def run_validators(self, value: Any) -> None:
        """None of a text's apply."""

    def has_changed(self, initial: Any, data: Any) -> bool:
        try:
            return jsontext.dumps(self.to_python(data)) != jsontext.dumps(initial or None)  # `==` takes true for 1
        except ValidationError:
            return True

    def prepare_value(self, value: Any) -> Any:
        if value is None or isinstance(value, str):
            return value or ""
        return printable(pretty(value))


def number(text: str) -> int | str:
    """The number in a text, or else the text: it may be the name of a priority, which the operation knows."""
    try:
        return int(text)
    except ValueError:
        return text
