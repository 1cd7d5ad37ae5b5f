"""Reads which jobs a request means: the filters of `jobs.selection`, in the query string of a list and in the `filter`
of a body (admin 1.3, 1.4, binding 6)."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from typing import Any

from django.db.models import Q, QuerySet
from django.db.models.functions import Coalesce
from django.db.models.lookups import In
from rest_framework.request import Request

from django_ojs import clock
from django_ojs.database import database
from django_ojs.http import query
from django_ojs.http.permissions import queue_limit, type_limit
from django_ojs.jobs import selection
from django_ojs.jobs.filterfields import DeclaredFilter, Notation, StatesFilterField
from django_ojs.jobs.selection import JobFilter as JobFilter  # noqa: PLC0414 - sites import it from here
from django_ojs.models import Job, job
from django_ojs.models.job import JobQuerySet
from django_ojs.rules import durations, faults, ids
from django_ojs.states import State


class ScannedJobs(JobFilter):
    """The filter of jobs that a caller goes through in batches by their ids. An expression keeps databases that guess
    (SQLite does) from reading all jobs of a state by its index instead, for every batch."""

    states = JobFilter.base_filters["states"].replaced(
        condition=lambda wanted, value: Q(In(Coalesce("state", "state"), [state.value for state in value]))
    )


def in_states(jobs: QuerySet[Job], wanted: Sequence[State]) -> QuerySet[Job]:
    """Those in these states."""
    return jobs.filter(job.in_states(wanted))


def made_between(jobs: JobQuerySet, since: dt.datetime | None, until: dt.datetime | None) -> JobQuerySet:
    """Jobs whose ids were made in this time, by the index of the ids, which begin with it.

    A job cannot be made before its id, so `until` leaves out none that was. One whose id is older than itself, as
    that of a workflow's later steps is, counts for `since` from when the id was made.
    """
    found = jobs if since is None else jobs.filter(pk__gte=ids.first_at(since))
    return found if until is None else found.filter(pk__lt=ids.first_at(until + dt.timedelta(milliseconds=1)))


def of_query(
    request: Request, jobs: JobQuerySet | None = None, *, by_id: bool = False, walked: bool = False,
    kind: type[JobFilter] = JobFilter,
) -> QuerySet[Job]:  # fmt: skip
    """The jobs that the caller may see and the query string asks for.

    Args:
        by_id: times are looked up by the ids too.
        walked: for jobs of a small stretch of ids.
        kind: the filter; a site's may have more members, which are parameters of the same name.
    """
    jobs = Job.objects.using(database(None)) if jobs is None else jobs
    wanted = wanted_by(request, ScannedJobs if walked else kind)
    if by_id:
        jobs = made_between(jobs, wanted.values.get("created_since"), wanted.values.get("created_until"))
    found: QuerySet[Job] = wanted.narrow(jobs)
    return found


def wanted_by(request: Request, kind: type[JobFilter] = JobFilter) -> JobFilter:
    """What the query string asks for, within the caller's limits."""
    names = selection.names_in(Notation.LIST, kind)
    listed = {name for name, member in names.items() if kind.base_filters[member].field_class is StatesFilterField}
    given = {name: (query.joined if name in listed else query.given)(request, name) for name in names}
    return _read(request, {name: value for name, value in given.items() if value}, names, faults.query_fault, kind)


def asks_for_only(wanted: JobFilter, *members: str) -> bool:
    """Whether it has no other members than these and the caller's limit of queues."""
    return wanted.values.keys() <= {*members, "only_queues"}


def of_body(request: Request, given: Mapping[str, Any]) -> JobFilter:
    """What the `filter` in an operator's body means, within the caller's limits. Unknown members would widen it:
    refused."""
    return _of_body(request, given, Notation.OPERATOR)


def of_client(request: Request, given: Mapping[str, Any], default_states: Sequence[State]) -> JobFilter:
    """The same for a producer's body; it means `default_states` where it names none."""
    given = {name: value for name, value in given.items() if name != "states" or given.get("state") is None}
    wanted = _of_body(request, given, Notation.PRODUCER)
    return wanted if wanted.wanted_states else wanted.replace(states=list(default_states))


def older_than(value: Any, name: str = "older_than") -> dt.datetime | None:
    """The instant before which jobs ended: an age such as PT24H or 7d, or a time; None where absent."""
    if value is None:
        return None
    try:
        return durations.parse_moment(value, clock.now())
    except ValueError:
        raise faults.fault(name, "must be a duration such as P7D, or a time", value) from None


def _of_body(request: Request, given: Mapping[str, Any], notation: Notation) -> JobFilter:
    """The filter of a body."""
    names = selection.names_in(notation)

    def fault(name: str, message: str, value: Any = None) -> Exception:
        return faults.fault(f"filter.{name}"[:100], message, value)

    given = {name: value for name, value in given.items() if value is not None or name not in names}
    for name, value in given.items():
        if name not in names:
            raise fault(name, f"must be one of {', '.join(names)}")
        if problem := JobFilter.base_filters[names[name]].wrong_type(value):
            raise fault(name, problem, value)
        if value == [] or (isinstance(value, str) and not value.strip()):
            raise fault(name, "must not be empty: leave it out to mean all", value)
    return _read(request, given, names, fault, JobFilter)


def _read(
    request: Request, given: Mapping[str, Any], names: Mapping[str, str], fault: Any, kind: type[JobFilter]
) -> JobFilter:
    """The filter that these members make, within the limits of the caller; `fault` makes the error for one."""
    found: dict[str, Any] = {"only_queues": queue_limit(request), "only_types": type_limit(request)}
    for name, value in given.items():
        declared = kind.base_filters[names[name]]
        read = declared.strictly if isinstance(declared, DeclaredFilter) else str
        found[names[name]] = faults.checked(read, value, name, fault)
    wanted = kind(found)
    if problem := wanted.fault():
        name = next(name for name in given if names[name] == problem[0])
        raise fault(name, problem[1], given[name])
    return wanted
