"""What a queue has and what it gets done (L4-STATS-001, jobs 4.4): read from counts, never from jobs.

Periods are counted in whole minutes: "the last hour" begins with the minute that lies an hour back, "today"
at midnight UTC. Averages are those of the last hour.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
from typing import Any

from django.db import connections

from django_ojs import clock
from django_ojs.models import CountDelta, QueueMinute
from django_ojs.operations.common import database
from django_ojs.operations.counts import Counts, count, minute_of

_DELTA, _MINUTE = CountDelta._meta.db_table, QueueMinute._meta.db_table
_POSITIVE = "CASE WHEN {0} > 0 THEN {0} ELSE 0 END"


@dataclasses.dataclass(slots=True)
class Throughput:
    """Jobs ended in a queue; `failed` means ended by a failure. Averages in milliseconds."""

    completed_last_hour: int
    failed_last_hour: int
    completed_today: int
    failed_today: int
    avg_duration_ms: float
    avg_wait_ms: float
    completed_per_second: float
    failed_per_second: float


@dataclasses.dataclass(slots=True)
class Stats:
    """Everything there is to say about one queue at `computed_at`."""

    counts: Counts
    throughput: Throughput
    computed_at: dt.datetime


def stats(queue: str, *, using: str | None = None) -> Stats:
    """The statistics of a queue; zeros for one that was never seen."""
    using = database(using)
    now = clock.now(using)
    return Stats(count(queue, using=using), throughput(queue, now, using), now)


def throughput(queue: str, now: dt.datetime, using: str) -> Throughput:
    """What was done in the last hour, today, and in the minute or two before now."""
    hour, today = minute_of(now - dt.timedelta(hours=1)), now.replace(hour=0, minute=0, second=0, microsecond=0)
    lately = minute_of(now - dt.timedelta(minutes=1))
    adapt = connections[using].ops.adapt_datetimefield_value
    oldest = adapt(min(hour, today))
    windows = [("completed", hour), ("failed", hour), ("completed", today), ("failed", today), ("completed", lately),
               ("failed", lately), ("started", hour), ("run_ms", hour), ("wait_ms", hour)]  # fmt: skip
    sums = ", ".join(f"sum(CASE WHEN at >= %s THEN {name} ELSE 0 END)" for name, _ in windows)
    params: list[Any] = [*(adapt(since) for _, since in windows), queue, oldest, queue, oldest]
    with connections[using].cursor() as cursor:
        cursor.execute(
            f"SELECT {sums} FROM (SELECT minute AS at, started, completed, failed, run_ms, wait_ms FROM {_MINUTE} "  # noqa: S608 - names of our own models
            f"WHERE queue = %s AND minute >= %s UNION ALL SELECT at, {_POSITIVE.format('active')}, "
            f"{_POSITIVE.format('completed')}, failed, run_ms, wait_ms FROM {_DELTA} "
            f"WHERE queue = %s AND at >= %s) AS done",
            params,
        )
        hourly, failed, daily, failed_daily, recent, failing, started, run, wait = (
            int(value or 0) for value in cursor.fetchone()
        )
    seconds = max((now - lately).total_seconds(), 1.0)
    return Throughput(
        completed_last_hour=hourly, failed_last_hour=failed, completed_today=daily, failed_today=failed_daily,
        avg_duration_ms=_mean(run, hourly), avg_wait_ms=_mean(wait, started),
        completed_per_second=round(recent / seconds, 3), failed_per_second=round(failing / seconds, 3),
    )  # fmt: skip


def _mean(total: int, number: int) -> float:
    return round(total / number, 3) if number else 0
