"""Read single values and the filters of lists from the query string, and refuse a faulty one with `invalid_request` and
the name of the parameter (binding 1.7).

A ViewSet names a django-filter `FilterSet` as its `filterset_class`; a site's subclass may name one with more filters.
The app `django_filters` need not be in INSTALLED_APPS: that is for its HTML.
"""

from __future__ import annotations

import datetime as dt
import re
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, NamedTuple

from django import forms
from django.core.exceptions import ValidationError
from django.db.models import QuerySet
from django_filters import BooleanFilter, Filter, NumberFilter
from django_filters.rest_framework import DjangoFilterBackend
from rest_framework.request import Request

from django_ojs import clock
from django_ojs.models.fields import same_name
from django_ojs.rules import durations
from django_ojs.rules.faults import checked, query_fault
from django_ojs.rules.ids import parse_id
from django_ojs.spellings import EVENT_QUERY, Table, as_named, as_written

_INTEGER = re.compile(r"[+-]?[0-9]+")
_MAX_TEXT = 255
_MAX_LIST = 1000
_HUGE = 2**53
FLAGS = {"true": True, "1": True, "false": False, "0": False}


# Readers of one value: a ValueError says what the value must be


def read_text(given: str) -> str:
    """A printable text."""
    if len(given) > _MAX_TEXT or not given.isprintable():
        raise ValueError(f"must be a printable text of at most {_MAX_TEXT} characters")
    return given


def read_texts(given: str, most: int = _MAX_LIST) -> list[str]:
    """The items of a comma-separated list; empty ones do not count."""
    items = [item for item in map(str.strip, given.split(",")) if item]
    if len(items) > most or not given.isprintable() or any(len(item) > _MAX_TEXT for item in items):
        raise ValueError(f"must be at most {most} printable texts joined by commas")
    return items


def read_flag(given: str) -> bool:
    """True or false, also as 1 and 0."""
    if given.lower() not in FLAGS:
        raise ValueError("must be true or false")
    return FLAGS[given.lower()]


def read_instant(given: str) -> dt.datetime:
    """A time, or an age such as `24h`, which is so long ago."""
    return durations.parse_moment(given.replace(" ", "+"), clock.now())  # an unescaped + of a zone offset


# Parameters of a request


#: Where a page is and how long: of several values the last counts, as where a client adds the cursor of each answer.
_PLACES = frozenset({"cursor", "after", "last_event_id", "limit", "page", "per_page", "offset"})


def given(request: Request, name: str) -> str | None:
    """The value of a parameter, '' where it is empty; None where absent. Of several values none may be passed over,
    unless they say where a page is."""
    values = request.query_params.getlist(name)
    filled = list(dict.fromkeys(filter(None, reversed(values))))
    if len(filled) > 1 and name not in _PLACES:
        raise query_fault(name, "must be given once", ", ".join(filled[::-1]))
    return next(iter(filled or values), None)


def joined(request: Request, name: str) -> str | None:
    """The values of a parameter that may be a list, or be given several times, joined by commas; None where absent."""
    values = request.query_params.getlist(name)
    return ",".join(filter(None, values)) if values else None


def every(request: Request) -> dict[str, str]:
    """The whole query, in which each parameter is given once."""
    return {str(name): given(request, name) or "" for name in request.query_params.dict()}


def name_in(request: Request, table: Table, canonical: str) -> str:
    """The name under which the query has a parameter, as `Table.name_in`; an empty one is none."""
    return next((name for name in table.names(canonical) if any(request.query_params.getlist(name))), canonical)


def refuse_others(request: Request, words: Collection[str], read: str, *tables: Table, **same: str) -> None:
    """Refuse parameters of these words that do not count here: passed over, they would let out more, or less.

    Args:
        read: the names of those that count, with a space between.
        tables: other words for these.
        same: what the path or the channel says already: who says it again means nothing else.
    """
    names = read.split()
    known = {*names, *(one for table in tables for name in names for one in table.names(table.words.get(name, name)))}
    for name in request.query_params:
        if name in words and name not in known and (written := joined(request, name)) and written != same.get(name):
            raise query_fault(name, f"does not count here: there are {', '.join(names)}", written)


def integer(request: Request, name: str, *, minimum: int) -> int | None:
    """A whole number of at least `minimum`; None where absent. However large, it stays below 2^53."""
    written = given(request, name)
    if written is None:
        return None
    if not _INTEGER.fullmatch(written):
        raise query_fault(name, "must be an integer", written)
    value = _HUGE if len(written) > 16 and not written.startswith("-") else int(written[:20])
    if value < minimum:
        raise query_fault(name, f"must be at least {minimum}", written)
    return min(value, _HUGE)


def text(request: Request, name: str) -> str:
    """A printable text, '' where absent."""
    return checked(read_text, given(request, name) or "", name, query_fault)


def flag(request: Request, name: str) -> bool:
    """True or false, also as 1 and 0; false where absent."""
    written = text(request, name).lower()
    return bool(written) and checked(read_flag, written, name, query_fault)


def texts(request: Request, name: str, table: Table | None = None, *, most: int = _MAX_LIST) -> list[str]:
    """The values of a comma-separated list, under this name or another one that the table has for it."""
    found = {one: value for one in (table.names(name) if table else (name,)) if (value := joined(request, one))}
    if len(set(found.values())) > 1:
        first, second, *_ = found
        raise query_fault(second, f"says something else than {first}: write it in one place", found[second])
    written, value = next(iter(found.items()), (name, ""))
    return checked(partial(read_texts, most=most), value, written, query_fault)


class Behind(NamedTuple):
    """Behind what a reader of events or lines goes on, and the parameter that says so. None: from the beginning."""

    after: str | None
    written: str

    def named(self) -> AbstractContextManager[None]:
        """A block whose faults about `after` name the parameter."""
        return as_written(as_named({"after": self.written}))


def cursor(request: Request) -> Behind:
    """The `after` of events or lines, under this name or another one. Who adds the `cursor` of an answer to the query
    that it answers goes on behind that one."""
    written = "cursor" if any(request.query_params.getlist("cursor")) else name_in(request, EVENT_QUERY, "after")
    return Behind(text(request, written) or None, written)


def instant(request: Request, name: str) -> dt.datetime | None:
    """A time, or an age such as `24h`, which is so long ago; None where absent."""
    written = given(request, name)
    return checked(read_instant, written, name, query_fault) if written else None


def uuid7(request: Request, name: str) -> uuid.UUID | None:
    written = (given(request, name) or "").lower()
    if not written:
        return None
    found = parse_id(written)
    if found is None:
        raise query_fault(name, "must be a UUIDv7", written)
    return found


# Filters of lists


class OJSFilterBackend(DjangoFilterBackend):  # type: ignore[misc]
    """Raises `InvalidRequest` that names the first faulty parameter (binding 1.7)."""

    def filter_queryset(self, request: Request, queryset: QuerySet[Any], view: Any) -> QuerySet[Any]:
        filters = self.get_filterset(request, queryset, view)
        if filters is None:
            return queryset
        filters.data = data = request.query_params.copy()
        for name, one in filters.filters.items():
            if isinstance(one, ReaderFilter) and name in data:
                data[name] = (joined if isinstance(one, WordsFilter) else given)(request, name) or ""
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
        try:
            return None if value is None else self.read(value)
        except ValueError as error:
            raise ValidationError(str(error)) from error


class ReaderFilter(Filter):  # type: ignore[misc]
    """A filter whose value is what `read` makes of the parameter; None and '' filter nothing."""

    field_class = _ReaderField

    def __init__(self, read: Callable[[str], Any], **given: Any) -> None:
        super().__init__(read=read, **given)

    def filter(self, rows: QuerySet[Any], value: Any) -> QuerySet[Any]:
        if isinstance(value, str) and value and self.lookup_expr == "exact":
            return self.get_method(rows)(same_name(self.field_name, value))  # type: ignore[no-any-return]
        return super().filter(rows, value)  # type: ignore[no-any-return]


class WordFilter(ReaderFilter):
    """One of some words, each with the value that it stands for."""

    def __init__(self, words: Mapping[str, Any] | Iterable[str], **given: Any) -> None:
        values = words if isinstance(words, Mapping) else {word: word for word in words}

        def read(value: str) -> Any:
            if (word := read_text(value)) and word not in values:
                raise ValueError(f"must be one of {', '.join(values)}")
            return values.get(word)

        super().__init__(read, **given)


class WordsFilter(ReaderFilter):
    """Some of these words, joined by commas, any of which may fit."""

    def __init__(self, words: Iterable[str], **given: Any) -> None:
        known = tuple(words)

        def read(value: str) -> list[str]:
            found = read_texts(value)
            for word in found:
                if word not in known:
                    raise ValidationError(f"must be one of {', '.join(known)}", params={"received": word})
            return found

        super().__init__(read, lookup_expr="in", **given)


class FlagFilter(ReaderFilter):
    """`true`, `1`, `false` or `0`."""

    def __init__(self, **given: Any) -> None:
        super().__init__(read_flag, **given)


def _kind(one: Filter) -> str:
    if isinstance(one, FlagFilter | BooleanFilter):
        return "boolean"
    return "number" if isinstance(one, NumberFilter) else "string"
