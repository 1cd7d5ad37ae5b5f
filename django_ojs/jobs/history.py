"""Erases what the event log says of jobs: what an operator names, of one job or of many, and what is too much.

No row of the log is deleted, or readers whose cursor is there would have lost their place: it is emptied, so that it is
of no job and of a type that no reader gets, and goes when its time is over.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import time
import uuid
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from django.db.models import Count, QuerySet

from django_ojs import audit, clock, tenants
from django_ojs.access import UNLIMITED, Limits
from django_ojs.audit import Act
from django_ojs.conf import ojs_settings
from django_ojs.database import atomic
from django_ojs.events import catalogue, history, log, order
from django_ojs.events.filters import Filter
from django_ojs.events.history import HistoryQuery
from django_ojs.models import Event
from django_ojs.models.job import JobRow
from django_ojs.rules.durations import format_instant
from django_ojs.statistics import eventcounts
from django_ojs.store import store_of

#: The type of an event that was erased.
ERASED = "erased"
#: How often it is looked for jobs with too many events, in seconds; and how many are dealt with at a time.
EVERY, MOST_JOBS = 3600, 100
#: How many events one transaction erases at most, and among how many ids of the log it looks for them.
BATCH, STRETCH = 1000, 20_000


def erase(row: JobRow, act: Act, using: str, limits: Limits = UNLIMITED) -> int:
    """Erase the events that this job has now, with an entry in the audit log; return how many there were. A caller with
    limits erases what it may read: the job may have been in another queue.

    In batches, each its own transaction with its entry. The last one has the event `job.purged`, which says so and is
    the first of a new history. Nothing else of the job is touched.
    """
    edge, number, purged = _begin(using), 0, False

    def step() -> int:
        nonlocal purged
        store_of(using).begin_writing()
        events = Event.objects.using(using).filter(job_id=row["id"], pk__lte=edge).order_by("pk")
        if limits.queues is not None:
            events = events.filter(queue__in=limits.queues)
        ids = list(events.values_list("pk", flat=True)[:BATCH])
        done, purged = emptied(ids, using), len(ids) < BATCH
        if purged:
            facts: dict[str, Any] = {"events_deleted": number + done, "purged_by": act.actor}
            log.append([catalogue.of_job("job.purged", row, clock.now(using), "api", **facts)], using)
        act.detail["events_deleted"] = done
        return done

    while not purged:
        number += audit.perform(step, act, using=using)
    return number


@dataclasses.dataclass(frozen=True)
class Erasure:
    """Events that are to be erased: those that are asked for, from before an instant, and with ids up to `edge`.

    So none is erased that comes after the erasure was asked for, and it has an end.
    """

    before: dt.datetime
    wanted: HistoryQuery
    edge: int

    @classmethod
    def begin(cls, before: dt.datetime, wanted: HistoryQuery, using: str) -> Erasure:
        """An erasure of what is in the log now, when all of it has been counted and put in order."""
        return cls(before, wanted, _begin(using))

    def events(self, using: str) -> QuerySet[Event]:
        """The events that may be asked for: `HistoryQuery.accepts` decides."""
        found = Event.objects.using(using).filter(self.wanted.events.condition(), pk__lte=self.edge)
        return found.filter(time__lt=self.before)

    def following(self, place: int, using: str) -> tuple[list[int], int | None]:
        """The ids of the next events behind this id: at most `BATCH`, of `STRETCH` ids; and the place to go on from.

        That is None at the end.
        """
        ids = Event.objects.using(using).filter(pk__gt=place, pk__lte=self.edge).order_by("pk")
        first = ids.values_list("pk", flat=True).first()
        if first is None:
            return [], None
        last = first + STRETCH - 1
        rows = list(self.events(using).filter(pk__gte=first, pk__lte=last).order_by("pk")[:BATCH])
        last = rows[-1].pk if len(rows) == BATCH else last
        wanted = self.wanted
        found = [row.pk for row in rows if wanted.events.matches(row) and wanted.accepts(history.facts(row))]
        return found, last if last < self.edge else None

    def to_json(self) -> dict[str, Any]:
        """What a bulk action keeps of it; what is not asked for is left out."""
        events = self.wanted.events
        kept = {name: getattr(events, name) for name in _KEPT} | {"event_types": self.wanted.names}
        kept |= {name: list(map(str, getattr(events, name))) for name in _KEPT_IDS}
        lists = {name: list(value) if isinstance(value, tuple) else value for name, value in kept.items()}
        asked = {name: value for name, value in lists.items() if value not in ([], None, False)}
        return {"before": format_instant(self.before), **asked, "edge": self.edge}

    @classmethod
    def from_json(cls, kept: Mapping[str, Any]) -> Erasure:
        """That of `to_json`."""
        names = tuple(kept.get("event_types", ()))
        given: dict[str, Any] = {
            name: tuple(kept[name]) if isinstance(kept[name], list) else kept[name] for name in _KEPT & kept.keys()
        }
        given |= {name: tuple(map(uuid.UUID, kept[name])) for name in _KEPT_IDS & kept.keys()}
        wanted = HistoryQuery(Filter(types=history.stored_types(names), **given), names)
        return cls(dt.datetime.fromisoformat(kept["before"]), wanted, kept["edge"])


#: The members of a filter that an erasure may have, beside the types.
_KEPT = {"queues", "job_types", "sources", "only_queues", "only_types", "only_jobs"}
_KEPT_IDS = {"job_ids", "workflow_ids"}
#: What programs see of these.
ERASURE_MEMBERS = ("event_types", "job_types", "queues", "sources", *sorted(_KEPT_IDS))


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
    """In batches, so that others write in between: a job that reports progress may have any number."""
    events = Event.objects.using(using).filter(job_id=job_id)
    edge = events.order_by("-pk").values_list("pk", flat=True)[limit : limit + 1].first()
    number = 0
    while edge is not None:
        with atomic(using=using):
            store_of(using).begin_writing()
            ids = list(events.filter(pk__lte=edge).order_by("pk").values_list("pk", flat=True)[:BATCH])
            number += emptied(ids, using)
        if len(ids) < BATCH:
            break
    return number


def _begin(using: str) -> int:
    """The newest id of the log, of which no event goes uncounted, and all are put in order."""
    edge = order.newest_id(using)
    _count_before(using)
    return edge


def _count_before(using: str) -> None:
    """No event goes uncounted. What is not in order yet is put in order first."""
    order.catch_up(using, strict=False)
    if ojs_settings.METRICS:
        eventcounts.catch_up(using)


def emptied(ids: Sequence[int], using: str) -> int:
    """Erase the events with these ids, in the caller's transaction; return how many there still were."""
    if not ids:
        return 0
    # By their ids: for a set, MariaDB may scan the table and wait for the rows of open transactions.
    return Event.objects.using(using).filter(pk__in=ids).exclude(type=ERASED).update(
        type=ERASED, subject="", job_id=None, job_type="", queue="", state="", attempt=0, worker_id="", trace_id="",
        workflow_id=None, data=None,
    )  # fmt: skip
