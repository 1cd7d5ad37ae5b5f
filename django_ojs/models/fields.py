"""Columns that keep JSON as the text that was sent, so that nothing is lost in between."""

from __future__ import annotations

from typing import Any

from django.db import models

from django_ojs import jsontext


class JSONTextField(models.TextField):  # type: ignore[type-arg]
    """JSON kept as text: PostgreSQL's jsonb refuses `\\u0000` and rewrites numbers, text does neither.

    Instances and `values()` give Python values; `QuerySet.rows()` gives the stored text. An empty column
    stands for "nothing here" and reads as None.
    """

    def from_db_value(self, value: str | None, expression: object, connection: object) -> Any:
        return jsontext.loads(value) if value else None

    def to_python(self, value: Any) -> Any:
        return value

    def get_prep_value(self, value: Any) -> str | None:
        if value is None:
            return None if self.null else ""
        return value.text if isinstance(value, RawJSON) else jsontext.dumps(value)

    def value_to_string(self, obj: models.Model) -> str:
        return jsontext.dumps(self.value_from_object(obj))

    def formfield(self, **kwargs: Any) -> Any:
        from django import forms

        return super().formfield(**{"form_class": forms.JSONField, "required": False, **kwargs})


class RawJSON:
    """Marks a string that is JSON text already, on its way into a `JSONTextField`."""

    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        self.text = text
