"""Erases what the event log says of jobs: what an operator names, of one job or of many, and what is too much.

No row of the log is deleted, or readers whose cursor is there would have lost their place: it is emptied, so that it is
of no job and of a type that no reader gets, and goes when its time is over.
"""

from __future__ import annotations

import datetime as dt
import time
import uuid
from collections.abc import Hashable
from typing import NamedTuple

from django.db.models import Count, QuerySet

from django_ojs import clock, tenants
from django_ojs.conf import ojs_settings
from django_ojs.database import atomic
from django_ojs.events import catalogue, history, log, order
from django_ojs.events.history import HistoryQuery
from django_ojs.models import Event
from django_ojs.models.job import JobRow
from django_ojs.statistics import eventcounts
from django_ojs.store import store_of

#: The type of an event that was erased.
ERASED = "erased"
#: How often it is looked for jobs with too many events, in seconds; and how many are dealt with at a time.
EVERY, MOST_JOBS = 3600, 100
#: How many events one call erases at most, and how many it looks at in one statement.
MOST_EVENTS, BATCH = 100_000, 1000


def erase(row: JobRow, by: str, using: str) -> int:
    """Erase the events of this job, in the caller's transaction; return how many there were.

    The event `job.purged` says so, and is the first of a new history. Nothing else of the job is touched.
    """
    _count_before(using)
    with atomic(using=using):
        store_of(using).begin_writing()
        events = Event.objects.using(using).filter(job_id=row["id"])
        number = _emptied(events)
        purged = catalogue.of_job(
            "job.purged", row, clock.now(using), "api", events_deleted=number, **{"purged_by": by} if by else {}
        )
        log.append([purged], using)
    return number


class Erased(NamedTuple):
    """How many events were erased, and about how many that were asked for are left."""

    events: int
    left: int = 0


def erase_before(instant: dt.datetime, wanted: HistoryQuery, using: str) -> Erased:
    """Erase the events from before `instant` that are asked for, at most `MOST_EVENTS`, in the caller's transaction.

    The earliest go first, so that another call goes on with those that are left.
    """
    _count_before(using)
    number = last = 0
    with atomic(using=using):
        store_of(using).begin_writing()
        events = Event.objects.using(using).filter(wanted.events.condition(), time__lt=instant).order_by("pk")
        while rows := list(events.filter(pk__gt=last)[:BATCH]):
            # By their ids: for a set, MariaDB may scan the table and wait for the rows of open transactions.
            chosen = [row.pk for row in rows if wanted.events.matches(row) and wanted.accepts(history.facts(row))]
            chosen = chosen[: MOST_EVENTS - number]
            number += _emptied(Event.objects.using(using).filter(pk__in=chosen)) if chosen else 0
            last = rows[-1].pk
            if number >= MOST_EVENTS:
                return Erased(number, events.count())
    return Erased(number)


_looked: dict[Hashable, float] = {}


def forget() -> None:
    """Drop what this process remembers: the next pass looks again."""
    _looked.clear()


def trim(using: str) -> int:
    """Erase the oldest events of jobs that have more than `OJS["HISTORY_MAX_COUNT"]`; return how many.

    It counts the events of all jobs, so a process does it once an hour, and again at once while there are more.
    """
    limit, scope = ojs_settings.HISTORY_MAX_COUNT, tenants.scope(using)
    if time.monotonic() < _looked.get(scope, 0.0):
        return 0
    jobs = Event.objects.using(using).filter(job_id__isnull=False).order_by().values("job_id")
    many = jobs.annotate(number=Count("pk")).filter(number__gt=limit)
    found = list(many.values_list("job_id", flat=True)[:MOST_JOBS])
    if len(found) < MOST_JOBS:
        _looked[scope] = time.monotonic() + EVERY
    if not found:
        return 0
    _count_before(using)
    return sum(_trim(job_id, limit, using) for job_id in found if job_id is not None)


def _trim(job_id: uuid.UUID, limit: int, using: str) -> int:
    with atomic(using=using):
        store_of(using).begin_writing()
        events = Event.objects.using(using).filter(job_id=job_id)
        edge = events.order_by("-pk").values_list("pk", flat=True)[limit : limit + 1].first()
        return 0 if edge is None else _emptied(events.filter(pk__lte=edge))


def _count_before(using: str) -> None:
    """No event goes uncounted. What is not in order yet is put in order first."""
    order.catch_up(using, strict=False)
    if ojs_settings.METRICS:
        eventcounts.catch_up(using)


def _emptied(events: QuerySet[Event]) -> int:
    return events.update(
        type=ERASED, subject="", job_id=None, job_type="", queue="", state="", attempt=0, worker_id="", trace_id="",
        workflow_id=None, data=None,
    )  # fmt: skip
