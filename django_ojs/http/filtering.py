"""What lists are narrowed by in the query string: DRF's filter backend of our ViewSets, and filters with our errors.

A ViewSet names a django-filter `FilterSet` as its `filterset_class`; a site's subclass may name one with more filters.
The app `django_filters` need not be in INSTALLED_APPS: that is for its HTML.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from django import forms
from django.core.exceptions import ValidationError
from django.db.models import QuerySet
from django_filters import BooleanFilter, Filter, NumberFilter
from django_filters.rest_framework import DjangoFilterBackend
from rest_framework.request import Request

from django_ojs.http import query
from django_ojs.rules.faults import query_fault

_FLAGS = {"true": True, "1": True, "false": False, "0": False}


class OJSFilterBackend(DjangoFilterBackend):  # type: ignore[misc]
    """Raises `InvalidRequest` that names the first faulty parameter (binding 1.7)."""

    def filter_queryset(self, request: Request, queryset: QuerySet[Any], view: Any) -> QuerySet[Any]:
        filters = self.get_filterset(request, queryset, view)
        if filters is None:
            return queryset
        if not filters.is_valid():
            name, (error, *_) = next(iter(filters.form.errors.as_data().items()))
            received = (error.params or {}).get("received", request.query_params.get(name, ""))
            raise query_fault(name, " ".join(error.messages), received)
        found: QuerySet[Any] = filters.qs
        return found

    def get_schema_operation_parameters(self, view: Any) -> list[dict[str, Any]]:
        """The parameters, for the OpenAPI document."""
        kinds = {name: _kind(one) for name, one in view.filterset_class.base_filters.items()}
        return [{"name": name, "in": "query", "schema": {"type": kind}} for name, kind in kinds.items()]


class _ReaderField(forms.Field):
    """A parameter that a function reads; its ValueError or ValidationError says what is wrong with it."""

    def __init__(self, *, read: Callable[[str], Any], **given: Any) -> None:
        super().__init__(**given)
        self.read = read

    def to_python(self, value: str | None) -> Any:
        return None if value is None else self.read(value)


class ReaderFilter(Filter):  # type: ignore[misc]
    """A filter whose value is what `read` makes of the parameter; None and '' filter nothing."""

    field_class = _ReaderField

    def __init__(self, read: Callable[[str], Any], **given: Any) -> None:
        super().__init__(read=read, **given)


class WordFilter(ReaderFilter):
    """One of some words, each with the value that it stands for."""

    def __init__(self, words: Mapping[str, Any] | Iterable[str], **given: Any) -> None:
        values = words if isinstance(words, Mapping) else {word: word for word in words}

        def read(value: str) -> Any:
            if (word := text(value)) and word not in values:
                raise ValidationError(f"must be one of {', '.join(values)}")
            return values.get(word)

        super().__init__(read, **given)


class WordsFilter(ReaderFilter):
    """Texts joined by commas, any of which may fit; each is one of `words`, where those are given."""

    def __init__(self, words: Iterable[str] | None = None, **given: Any) -> None:
        known = None if words is None else tuple(words)

        def read(value: str) -> list[str]:
            found = texts(value)
            for word in found:
                if known is not None and word not in known:
                    raise ValidationError(f"must be one of {', '.join(known)}", params={"received": word})
            return found

        super().__init__(read, lookup_expr="in", **given)


class FlagFilter(ReaderFilter):
    """`true`, `1`, `false` or `0`."""

    def __init__(self, **given: Any) -> None:
        super().__init__(flag, **given)


def _kind(one: Filter) -> str:
    if isinstance(one, FlagFilter | BooleanFilter):
        return "boolean"
    return "number" if isinstance(one, NumberFilter) else "string"


def flag(value: str) -> bool:
    if value.lower() not in _FLAGS:
        raise ValidationError("must be true or false")
    return _FLAGS[value.lower()]


def text(value: str) -> str:
    if message := query.text_fault(value):
        raise ValidationError(message)
    return value


def instant(value: str) -> dt.datetime:
    try:
        return query.parse_instant(value)
    except ValueError as error:
        raise ValidationError(str(error)) from error


def texts(value: str) -> list[str]:
    found = query.split(value)
    if message := query.texts_fault(value, found):
        raise ValidationError(message)
    return found
