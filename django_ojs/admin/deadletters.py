"""The dead letter queue by what went wrong."""

from __future__ import annotations

import dataclasses
import datetime as dt
import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

from django.utils.http import urlencode

from django_ojs.admin import display
from django_ojs.admin.base import unless_large
from django_ojs.admin.jobfilters import clean
from django_ojs.admin.overview import last_errors
from django_ojs.jobs import bulkactions
from django_ojs.jobs.selection import JobFilter, dead_letters
from django_ojs.rules import redaction
from django_ojs.rules.durations import format_instant, parse_instant
from django_ojs.statistics import counters
from django_ojs.statistics.shared import Shared

#: Dead letters that are grouped: the newest; the size up to which their errors are read; groups shown.
SAMPLE, MAX_ERRORS, GROUPS = 1000, 16_384, 50
#: Single dead letters that the page lists.
NEWEST = 20
#: How old what all viewers share may be, in seconds; a text in errors is looked for in all of them.
FRESH, SEARCHED = 2.0, 15.0

#: The parameters of the page that are members of the filter by the same name.
_TEXTS = ("type", "queue", "error")

_VARIABLE = re.compile(r"0x[0-9a-fA-F]+|\b[0-9a-fA-F]{8}(?:-?[0-9a-fA-F]{4}){3}-?[0-9a-fA-F]{12}\b|\d+")


def letter_filter(given: Mapping[str, str]) -> JobFilter:
    """The dead letters that the parameters of a request mean: by type, queue and error, not newer than `until`. An
    unreadable time counts as none."""
    texts = {name: clean(given.get(name, "")) for name in _TEXTS}
    try:
        until = parse_instant(given["until"]) + _NEXT if given.get("until") else None
    except ValueError:
        until = None
    return dead_letters(**texts, until=until)


def parameters(wanted: JobFilter) -> dict[str, str]:
    """What `letter_filter` reads this filter from."""
    found = {name: wanted.values[name] for name in _TEXTS if name in wanted.values}
    until = wanted.values.get("until")
    return found | ({"until": format_instant(until - _NEXT)} if until else {})


#: A filter means what ended before its `until`, and the page what ended then or before.
_NEXT = dt.timedelta(microseconds=1)


@dataclasses.dataclass(slots=True)
class Group:
    """Dead letters of one type with one error: how many of the sample, and since when until when."""

    type: str
    error: str
    message: str
    count: int
    first: dt.datetime
    last: dt.datetime
    example: Any
    kind: str  #: the error's type as it is stored

    def query(self, wanted: JobFilter) -> str:
        """The filter that finds these, and others with this kind of error, but none that `wanted` does not find."""
        kind = {"error": self.kind} if self.kind else {}
        return urlencode({**kind, **parameters(wanted), "type": self.type})


@lru_cache(maxsize=64)
def newest(wanted: JobFilter) -> Shared[list[dict[str, Any]]]:
    """The newest dead letters that fit, for all who look at this filter: columns, and `error` as lists show it."""

    def read(using: str) -> list[dict[str, Any]]:
        jobs = wanted.jobs(using).order_by("-finished_at")
        rows = list(jobs.values("pk", "type", "queue", "attempt", "finished_at")[:NEWEST])
        errors = last_errors([row["pk"] for row in rows], using)
        return [{**row, "error": display.brief(errors.get(row["pk"]))} for row in rows]

    return Shared(read, SEARCHED if "error" in wanted.values else FRESH)


@lru_cache(maxsize=64)
def groups(wanted: JobFilter) -> Shared[list[Group]]:
    """The newest dead letters that fit, by type and error, for all who look at this filter."""
    return Shared(lambda using: compute(wanted, using), SEARCHED if "error" in wanted.values else FRESH)


def compute(wanted: JobFilter, using: str) -> list[Group]:
    """The newest dead letters that fit, by type and error, the largest group first."""
    newest = wanted.jobs(using).order_by("-finished_at")
    read = newest.annotate(history=unless_large("errors", limit=MAX_ERRORS))
    found: dict[tuple[str, str, str], Group] = {}
    rows: Iterable[Any] = read.values_list("pk", "type", "finished_at", "history")[:SAMPLE]
    for pk, job_type, ended, history in rows:
        error = redaction.error(job_type, history[-1]) if history else {}
        kind, message = display.brief(error)
        key = job_type, kind, shape(message)
        if key not in found:
            found[key] = Group(*key, 0, ended, ended, pk, str(error.get("type") or ""))
        group = found[key]
        group.count += 1
        group.first = ended
    return sorted(found.values(), key=lambda group: (-group.count, group.type, group.error))[:GROUPS]


def count(using: str) -> int:
    """All dead letters, exactly, from the counters."""
    return sum(one.dead for one in counters.count_all(using=using).values())


total = Shared(count, FRESH)
actions = Shared(bulkactions.running, FRESH)


def shape(message: str) -> str:
    """A message without what differs from job to job: numbers, addresses, ids."""
    return _VARIABLE.sub("#", message)
