"""What became of the jobs of each type, by the minute: counted from the event log with the metrics, never from jobs.

The figures are a second or so behind the log, and empty where no process counts it (`OJS["METRICS"]`).
"""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from django.db.models import Sum
from django.db.models.functions import TruncHour

from django_ojs.database import database
from django_ojs.models import TypeMinute
from django_ojs.statistics.counters import minute_of

if TYPE_CHECKING:
    from django_ojs.statistics.eventcounts import EventGroup

MEASURES = ("completed", "failed", "discarded", "run_ms")
#: The column that an event counts into.
_COLUMNS = {"job.completed": "completed", "job.failed": "failed", "job.discarded": "discarded"}


@dataclasses.dataclass(slots=True)
class Outcomes:
    """Jobs completed, attempts that failed, jobs that a failure ended, and the time that the completed jobs took."""

    completed: int = 0
    failed: int = 0
    discarded: int = 0
    run_ms: int = 0

    @property
    def attempts(self) -> int:
        """Attempts that ended."""
        return self.completed + self.failed

    @property
    def error_rate(self) -> float:
        """The part of the attempts that failed, from 0 to 1."""
        return self.failed / self.attempts if self.attempts else 0.0

    @property
    def mean_run_ms(self) -> float | None:
        return self.run_ms / self.completed if self.completed else None


def count(groups: Iterable[EventGroup], using: str) -> None:
    """Add the events of these groups. The caller holds the lock of counting, so no other process writes these rows."""
    found: dict[tuple[str, dt.datetime], Outcomes] = {}
    for group in groups:
        if (column := _COLUMNS.get(group.event)) is None:
            continue
        outcomes = found.setdefault((group.job_type, group.minute), Outcomes())
        setattr(outcomes, column, getattr(outcomes, column) + group.number)
        if column == "completed" and group.ms is not None:
            outcomes.run_ms += group.ms * group.number
    if not found:
        return
    rows = TypeMinute.objects.using(using)
    near = rows.filter(minute__in={minute for _, minute in found}, job_type__in={job_type for job_type, _ in found})
    there = {(row.job_type, row.minute): row for row in near}
    new, changed = list[TypeMinute](), list[TypeMinute]()
    for key, more in sorted(found.items(), key=lambda item: item[0]):
        row = there.get(key) or TypeMinute(job_type=key[0], minute=key[1])
        for name in MEASURES:
            setattr(row, name, getattr(row, name) + getattr(more, name))
        (changed if key in there else new).append(row)
    rows.bulk_create(new)
    rows.bulk_update(changed, MEASURES)


def since(instant: dt.datetime, *, using: str | None = None) -> dict[str, Outcomes]:
    """What became of the jobs of each type from the minute of `instant` on; types without any are left out."""
    minutes = TypeMinute.objects.using(database(using)).filter(minute__gte=minute_of(instant)).order_by()
    rows: Iterable[Any] = minutes.values_list("job_type").annotate(*(Sum(name) for name in MEASURES))
    return {job_type: Outcomes(*(int(number) for number in numbers)) for job_type, *numbers in rows}


def trends(
    job_types: Sequence[str], begin: dt.datetime, end: dt.datetime, parts: int, *, using: str | None = None
) -> dict[str, list[int]]:
    """How many attempts of each of these types ended in each of so many equal parts of the time."""
    found = {name: [0] * parts for name in job_types}
    if not found:
        return found
    length = max((end - begin) / parts, dt.timedelta(seconds=1))
    minutes = TypeMinute.objects.using(database(using)).filter(job_type__in=job_types, minute__gte=minute_of(begin))
    rows: Iterable[Any] = minutes.values_list("job_type", "minute", "completed", "failed")
    if length >= dt.timedelta(hours=1):  # days of minutes are added up by the database
        hours = minutes.order_by().values("job_type", hour=TruncHour("minute", tzinfo=dt.UTC))
        sums = hours.annotate(sum_completed=Sum("completed"), sum_failed=Sum("failed"))
        rows = sums.values_list("job_type", "hour", "sum_completed", "sum_failed")
    for name, at, completed, failed in rows:
        place = int((at - begin) / length)
        found[name][min(max(place, 0), parts - 1)] += int(completed + failed)
    return found


def prune(before: dt.datetime, using: str) -> int:
    """Forget the minutes before this one; return how many rows that were."""
    return int(TypeMinute.objects.using(using).filter(minute__lt=before)._raw_delete(using))
