"""Which jobs an operator means: the same filters in the query of a list and in the body of a bulk act (admin 1.3, 1.4).

Made of django-filter's parts. Its app need not be in INSTALLED_APPS: that is for its HTML.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from typing import Any

from django import forms
from django.core.exceptions import ValidationError
from django.db import router
from django.db.models import QuerySet
from django.db.models.functions import Coalesce
from django.db.models.lookups import In
from django_filters import Filter, FilterSet
from rest_framework.request import Request

from django_ojs.http import access, fields, query
from django_ojs.http.permissions import queue_limit, type_limit
from django_ojs.models import Job
from django_ojs.models.job import JobQuerySet
from django_ojs.operations import selection
from django_ojs.operations.deadletters import typed
from django_ojs.operations.selection import Selection
from django_ojs.operations.walking import id_at
from django_ojs.policies import durations, names
from django_ojs.states import State


class StatesField(forms.Field):
    """One state, several joined by commas, or a list of them."""

    def to_python(self, value: Any) -> list[State]:
        given = value.split(",") if isinstance(value, str) else value or []
        wanted = [item.strip() if isinstance(item, str) else item for item in given]
        if not all(item in set(State) for item in map(str, wanted)):
            raise ValidationError(f"must be some of {', '.join(State)}")
        return [State(item) for item in dict.fromkeys(wanted)]


class InstantField(forms.Field):
    def to_python(self, value: Any) -> dt.datetime | None:
        if not value:
            return None
        try:  # an unescaped + of a zone offset is a space in a query
            return durations.parse_instant(value.replace(" ", "+"))
        except ValueError as error:
            raise ValidationError(str(error)) from error


class QueueField(forms.Field):
    def to_python(self, value: Any) -> str:
        try:
            return names.check_queue(value) if value else ""
        except ValueError as error:
            raise ValidationError(str(error)) from error


class TextField(forms.CharField):
    def to_python(self, value: Any) -> str:
        text = str(super().to_python(value))
        if len(text) > 255 or not text.isprintable():
            raise ValidationError("must be a printable text of at most 255 characters")
        return text


class _Filter(Filter):  # type: ignore[misc]
    def __init__(self, field: type[forms.Field], method: str) -> None:
        self.field_class = field
        super().__init__(method=method)


class JobFilter(FilterSet):  # type: ignore[misc]
    """`queue`, `state`, `type` (exact, or with `*` at its end), `since` and `until` of the creation, `worker_id` of
    who has it now, and `error_type`: the type of one of the errors that the job still has."""

    queue = _Filter(QueueField, "by_column")
    state = _Filter(StatesField, "by_states")
    type = _Filter(TextField, "by_type")
    since = _Filter(InstantField, "by_since")
    until = _Filter(InstantField, "by_until")
    worker_id = _Filter(TextField, "by_holder")
    error_type = _Filter(TextField, "by_error")

    def by_column(self, jobs: QuerySet[Job], name: str, value: str) -> QuerySet[Job]:
        return jobs.filter(**{name: value})

    def by_holder(self, jobs: QuerySet[Job], name: str, value: str) -> QuerySet[Job]:
        return jobs.filter(worker_id=value, state=State.ACTIVE)

    def by_states(self, jobs: QuerySet[Job], name: str, value: list[State]) -> QuerySet[Job]:
        return in_states(jobs, value)

    def by_type(self, jobs: QuerySet[Job], name: str, value: str) -> QuerySet[Job]:
        return jobs.filter(**({"type__startswith": value[:-1]} if value.endswith("*") else {"type": value}))

    def by_since(self, jobs: QuerySet[Job], name: str, value: dt.datetime) -> QuerySet[Job]:
        return jobs.filter(created_at__gte=value)

    def by_until(self, jobs: QuerySet[Job], name: str, value: dt.datetime) -> QuerySet[Job]:
        return jobs.filter(created_at__lt=value)

    def by_error(self, jobs: QuerySet[Job], name: str, value: str) -> QuerySet[Job]:
        return jobs.filter(typed(value))


class WalkedJobFilter(JobFilter):
    """The same for jobs that are gone through by their ids: an expression keeps databases that guess (SQLite does)
    from reading all jobs of a state by its index instead, for every slice."""

    def by_states(self, jobs: QuerySet[Job], name: str, value: list[State]) -> QuerySet[Job]:
        return jobs.filter(In(Coalesce("state", "state"), [state.value for state in value]))


NAMES = tuple(JobFilter.base_filters)
#: What each of them, but the states, is in a `Selection`.
SELECTED = {
    "queue": "queue", "type": "type", "since": "created_since", "until": "created_until", "worker_id": "holder",
    "error_type": "error_type",
}  # fmt: skip


def in_states(jobs: QuerySet[Job], wanted: list[State]) -> QuerySet[Job]:
    """Those in these states."""
    return jobs.filter(selection.in_states(wanted))


def made_between(jobs: JobQuerySet, since: dt.datetime | None, until: dt.datetime | None) -> JobQuerySet:
    """Jobs whose ids were made in this time, by the index of the ids, which begin with it.

    A job cannot be made before its id, so `until` leaves out none that was. One whose id is older than itself, as
    that of a workflow's later steps is, counts for `since` from when the id was made.
    """
    found = jobs if since is None else jobs.filter(pk__gte=id_at(since))
    return found if until is None else found.filter(pk__lt=id_at(until + dt.timedelta(milliseconds=1)))


def of_query(
    request: Request, jobs: JobQuerySet | None = None, *, by_id: bool = False, walked: bool = False
) -> QuerySet[Job]:
    """The jobs that the caller may see and the query string asks for.

    Args:
        by_id: times are looked up by the ids too.
        walked: for jobs of a small stretch of ids.
    """
    given = {name: request.query_params[name] for name in NAMES if request.query_params.get(name)}
    if by_id and ("since" in given or "until" in given):
        every = Job.objects.using(router.db_for_write(Job)) if jobs is None else jobs
        jobs = made_between(every, query.instant(request, "since"), query.instant(request, "until"))
    found: QuerySet[Job] = _filtered(request, given, jobs, query.fault, WalkedJobFilter if walked else JobFilter).qs
    return found


def of_body(request: Request, given: Mapping[str, Any], jobs: JobQuerySet | None = None) -> QuerySet[Job]:
    """The jobs that the caller may act on and a body's `filter` means. Unknown members would widen it: refused."""
    found: QuerySet[Job] = _of_body(request, given, jobs).qs
    return found


def selected(request: Request, given: Mapping[str, Any], wanted: list[State], *, dead_letters: bool) -> Selection:
    """The same as values, within the limits of the caller, for an act that is done later. `wanted` are the states."""
    values = _of_body(request, given, None).form.cleaned_data
    named = {SELECTED[name]: values[name] for name in given if name != "state" and values.get(name)}
    limits: dict[str, Any] = {"only_queues": queue_limit(request), "only_types": type_limit(request)}
    return Selection(states=wanted, dead_letters=dead_letters, **named, **limits)


def _of_body(request: Request, given: Mapping[str, Any], jobs: JobQuerySet | None) -> JobFilter:
    for name, value in given.items():
        if name not in NAMES:
            raise fields.fault(f"filter.{name}"[:100], f"must be one of {', '.join(NAMES)}")
        if value is not None and not isinstance(value, str) and not (name == "state" and isinstance(value, list)):
            raise fields.fault(f"filter.{name}", "must be a text", value)
        if value == [] or value == "":
            raise fields.fault(f"filter.{name}", "must not be empty: leave it out to mean all", value)
    known = {name: value for name, value in given.items() if value is not None}
    return _filtered(request, known, jobs, lambda name, message, value: fields.fault(f"filter.{name}", message, value))


def _filtered(
    request: Request, given: dict[str, Any], jobs: JobQuerySet | None, fault: Any, kind: type[JobFilter] = JobFilter
) -> JobFilter:
    base = Job.objects.using(router.db_for_write(Job)) if jobs is None else jobs
    chosen = kind(given, base.filter(access.visible(request)))
    if not chosen.is_valid():
        name, errors = next(iter(chosen.form.errors.as_data().items()))
        raise fault(name, " ".join(errors[0].messages).rstrip("."), given.get(name))
    return chosen
