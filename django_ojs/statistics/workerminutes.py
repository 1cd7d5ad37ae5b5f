"""What workers had to do and took over time: one row for each worker and minute, from its first heartbeat in it."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable

from django_ojs.database import database
from django_ojs.models import Worker, WorkerMinute
from django_ojs.statistics.counters import minute_of


def record_minutes(workers: Iterable[Worker], now: dt.datetime, using: str) -> None:
    """Note what these workers say at `now`. A minute that is noted already stays as it is."""
    rows = [
        WorkerMinute(
            worker_id=worker.pk, minute=minute_of(now), active_jobs=worker.active_jobs,
            concurrency=worker.concurrency, memory_mb=worker.memory_mb, cpu_percent=worker.cpu_percent,
        )
        for worker in workers
    ]  # fmt: skip
    if rows:
        WorkerMinute.objects.using(using).bulk_create(rows, ignore_conflicts=True)


def is_due(last: dt.datetime | None, now: dt.datetime) -> bool:
    """Whether a heartbeat at `now` is the first of its minute; `last` is the one before."""
    return last is None or minute_of(last) != minute_of(now)


def since(worker_id: str, instant: dt.datetime, *, using: str | None = None) -> dict[dt.datetime, WorkerMinute]:
    """The minutes of a worker from that of `instant` on; those in which it was silent are left out."""
    minutes = WorkerMinute.objects.using(database(using)).filter(worker_id=worker_id, minute__gte=minute_of(instant))
    return {row.minute: row for row in minutes}


def prune(before: dt.datetime, using: str) -> int:
    """Forget the minutes before this one; return how many rows that were."""
    return int(WorkerMinute.objects.using(using).filter(minute__lt=before)._raw_delete(using))
