"""The dead letter queue by what went wrong."""

from __future__ import annotations

import dataclasses
import datetime as dt
import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

from django.utils.http import urlencode

from django_ojs.admin import display
from django_ojs.admin.base import unless_large
from django_ojs.admin.figures import last_errors
from django_ojs.admin.shared import Shared
from django_ojs.models import Job
from django_ojs.operations import bulkactions, counts
from django_ojs.operations.deadletters import Filter
from django_ojs.policies import redaction

#: Dead letters that are grouped: the newest; the size up to which their errors are read; groups shown.
SAMPLE, MAX_ERRORS, GROUPS = 1000, 16_384, 50
#: Single dead letters that the page lists.
NEWEST = 20
#: How old what all viewers share may be, in seconds; a text in errors is looked for in all of them.
FRESH, SEARCHED = 2.0, 15.0

_VARIABLE = re.compile(r"0x[0-9a-fA-F]+|\b[0-9a-fA-F]{8}(?:-?[0-9a-fA-F]{4}){3}-?[0-9a-fA-F]{12}\b|\d+")


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

    @property
    def query(self) -> str:
        """The filter that finds these, and others with this kind of error."""
        return urlencode({"type": self.type, "error": self.kind} if self.kind else {"type": self.type})


@lru_cache(maxsize=64)
def newest(wanted: Filter) -> Shared[list[dict[str, Any]]]:
    """The newest dead letters that fit, for all who look at this filter: columns, and `error` as lists show it."""

    def read(using: str) -> list[dict[str, Any]]:
        jobs = wanted.jobs().using(using).order_by("-finished_at")
        rows = list(jobs.values("pk", "type", "queue", "attempt", "finished_at")[:NEWEST])
        errors = last_errors([row["pk"] for row in rows], using)
        return [{**row, "error": display.brief(errors.get(row["pk"]))} for row in rows]

    return Shared(read, SEARCHED if wanted.error else FRESH)


def compute(using: str) -> list[Group]:
    """The newest dead letters by type and error, the largest group first."""
    newest = Job.objects.using(using).dead_letters().order_by("-finished_at")
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
    return sum(one.dead for one in counts.count_all(using=using).values())


groups, total = Shared(compute, FRESH), Shared(count, FRESH)
actions = Shared(bulkactions.running, FRESH)


def shape(message: str) -> str:
    """A message without what differs from job to job: numbers, addresses, ids."""
    return _VARIABLE.sub("#", message)
