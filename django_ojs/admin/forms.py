"""Fields that several of our forms have, and putting what an operation refuses beside the field it is about."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from django import forms
from django.core.exceptions import ValidationError
from django.utils.translation import gettext_lazy as _

from django_ojs import jsontext
from django_ojs.admin.display import pretty, printable
from django_ojs.admin.refusals import local
from django_ojs.errors import OJSError
from django_ojs.keys import distinct

LINES = {"rows": 3, "class": "vLargeTextField"}


def as_lines(text: str) -> list[str]:
    return distinct(text.replace(",", "\n").splitlines())


def not_json(error: jsontext.JSONTextError) -> ValidationError:
    """What a form says of a text that is not JSON; `error` may begin with saying so itself."""
    fault = str(error).removeprefix("Not valid JSON: ")
    return ValidationError(_("This cannot be read as JSON: %(fault)s"), params={"fault": fault})


class LinesField(forms.CharField):
    """Texts, one a line."""

    widget = forms.Textarea(attrs=LINES)

    def clean(self, value: Any) -> list[str]:
        return as_lines(super().clean(value))

    def has_changed(self, initial: Any, data: Any) -> bool:
        return (initial or []) != as_lines(data or "")

    def prepare_value(self, value: Any) -> Any:
        return "\n".join(map(str, value)) if isinstance(value, list) else value


class WireField(forms.CharField):
    """JSON to type in, read as the HTTP binding reads it: numbers stay as they are. Empty: None."""

    widget = forms.Textarea(attrs={**LINES, "spellcheck": "false", "autocapitalize": "none"})
    default_error_messages = {
        "kind": _("This must be a JSON object, such as %(example)s."),
        "list": _("This must be a JSON array, such as %(example)s."),
    }

    def __init__(self, *, kind: type = dict, example: str = "{}", rows: int = 3, **kwargs: Any) -> None:
        self.kind, self.example = kind, example
        super().__init__(required=False, strip=False, **kwargs)
        self.widget.attrs["rows"] = rows

    def to_python(self, value: Any) -> Any:
        if isinstance(value, self.kind):
            return value
        if not str(value or "").strip():
            return None
        try:
            found = jsontext.loads(value)
        except jsontext.JSONTextError as error:
            raise not_json(error) from error
        if not isinstance(found, self.kind):
            word = "kind" if self.kind is dict else "list"
            raise ValidationError(self.error_messages[word], params={"example": self.example})
        return found

    def validate(self, value: Any) -> None:
        """Nothing is required."""

    def run_validators(self, value: Any) -> None:
        """None of a text's apply."""

    def has_changed(self, initial: Any, data: Any) -> bool:
        try:
            return bool(self.to_python(data) != (initial or None))
        except ValidationError:
            return True

    def prepare_value(self, value: Any) -> Any:
        if value is None or isinstance(value, str):
            return value or ""
        return printable(pretty(value))


def blame(form: forms.BaseForm, error: OJSError, fields: Mapping[str, str], otherwise: str) -> None:
    """Show what an operation refuses beside the field for it: `fields` names it by the path on the wire."""
    path = str(error.details.get("field", ""))
    parts: Sequence[str] = path.replace("[", ".").split(".")
    for length in range(len(parts), 0, -1):
        name = fields.get(".".join(parts[:length]))
        if name in form.fields:
            form.add_error(name, ValidationError(local(error)))
            return
    form.add_error(otherwise, ValidationError(local(error)))
