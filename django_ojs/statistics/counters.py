"""Exact counts of jobs by queue and state, without looking at a single job (L4-STATS-001).

Each statement that changes states leaves a row with the differences behind (`store`). `fold` turns these into
one row a queue, and one a queue and minute for what was done (`throughput`); a reader adds both, in one statement and
therefore from one snapshot.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Iterable, Sequence
from typing import Any

from django.db import connections
from django.db.models import F

from django_ojs.database import atomic, database
from django_ojs.models import CountDelta, QueueCount, QueueMinute
from django_ojs.models.statistics import NUMBERS
from django_ojs.states import LIVE, State
from django_ojs.store import store_of
from django_ojs.store.counts import COUNTED

#: Differences folded in one go, and the number from which a reader folds them for the next one.
FOLD_BATCH, TOO_MANY = 5_000, 20_000
#: How long the minutes are kept before they become part of their hour: long enough for "today" in any zone.
KEEP_MINUTES = dt.timedelta(days=2)

_DELTA, _COUNT = CountDelta._meta.db_table, QueueCount._meta.db_table
_LOCK = ""  #: the row of `QueueCount` that a process must hold to fold
_ZERO = dict.fromkeys(NUMBERS, 0)


@dataclasses.dataclass(slots=True)
class Counts:
    """The jobs of one queue by state; `dead` of the discarded are in the dead letter queue."""

    queue: str
    states: dict[str, int]
    dead: int

    @property
    def total(self) -> int:
        return sum(self.states.values())

    @property
    def depth(self) -> int:
        """Jobs that have not ended."""
        return sum(self.states[state] for state in LIVE)


def count(queue: str, *, using: str | None = None) -> Counts:
    """The counts of one queue; zeros for one that was never seen."""
    return count_all([queue], using=using).get(queue) or nothing(queue)


def nothing(queue: str) -> Counts:
    """The counts of a queue that was never seen."""
    return Counts(queue, dict.fromkeys(map(str, State), 0), 0)


def count_all(queues: Sequence[str] | None = None, *, using: str | None = None) -> dict[str, Counts]:
    """The counts of these queues, or of every queue that ever had a job."""
    using = database(using)
    where, params = "", list[Any]()
    if queues is not None:
        where = f"WHERE queue IN ({', '.join(['%s'] * len(queues))})"
        params = [*queues, *queues]
        if not queues:
            return {}
    numbers = ", ".join(NUMBERS)
    sums = ", ".join(f"sum({name})" for name in NUMBERS)
    with connections[using].cursor() as cursor:
        cursor.execute(
            f"SELECT queue, sum(unfolded), {sums} FROM (SELECT queue, 0 AS unfolded, {numbers} FROM {_COUNT} {where} "  # noqa: S608 - names of our own models
            f"UNION ALL SELECT queue, 1, {numbers} FROM {_DELTA} {where}) AS c WHERE queue <> '' GROUP BY queue",
            params,
        )
        found = cursor.fetchall()
    _relieve(sum(int(unfolded) for _, unfolded, *_ in found), using)
    return {queue: _counts(queue, [int(value) for value in values]) for queue, _, *values in found}


def totals(counted: Iterable[Counts]) -> dict[str, int]:
    """The jobs of all these queues together by state; every state, none missing."""
    rows = list(counted)
    return {state.value: sum(one.states[state] for one in rows) for state in State}


def _counts(queue: str, values: list[int]) -> Counts:
    numbers = dict(zip(NUMBERS, values, strict=True))
    return Counts(queue, {state.value: numbers[state] for state in State}, numbers["dead"])


def _relieve(unfolded: int, using: str) -> None:
    """Fold on the time of a reader that met so many, where the scheduler does not keep up or there is none."""
    while unfolded >= TOO_MANY and (folded := fold(using=using)):
        unfolded -= folded


def fold(*, limit: int = FOLD_BATCH, using: str | None = None) -> int:
    """Fold the oldest differences, at most `limit`; return how many. 0 also when another process is at it."""
    using = database(using)
    if not CountDelta.objects.using(using).exists():
        return 0
    with atomic(using=using):
        if not _lock(using):
            return 0
        # A locking read sees what is committed now, whatever snapshot the caller's transaction has.
        oldest = CountDelta.objects.using(using).select_for_update().order_by("id")[:limit]
        rows = list(oldest.values_list("id", *COUNTED))
        _add_counts(rows, using)
        _add_minutes(rows, using)
        CountDelta.objects.using(using).filter(pk__in=[row[0] for row in rows])._raw_delete(using)
        return len(rows)


def _lock(using: str) -> bool:
    """Take the lock of folding, which is a row; False where another process holds it."""
    counts = QueueCount.objects.using(using)
    held = counts.select_for_update(skip_locked=store_of(using).skip_locked).filter(pk=_LOCK)
    if held.all():
        return True
    counts.bulk_create([QueueCount(queue=_LOCK)], ignore_conflicts=True)
    return bool(held.all())


def _add_counts(rows: Iterable[Sequence[Any]], using: str) -> None:
    sums: dict[str, dict[str, int]] = {}
    for row in rows:
        found = sums.setdefault(row[1], dict(_ZERO))
        for name, value in zip(NUMBERS, row[3 : 3 + len(NUMBERS)], strict=True):
            found[name] += value
    counts = QueueCount.objects.using(using)
    known = set(counts.filter(pk__in=list(sums)).values_list("pk", flat=True))
    counts.bulk_create(QueueCount(queue=queue, **values) for queue, values in sums.items() if queue not in known)
    for queue in sorted(known):
        changed = {name: F(name) + value for name, value in sums[queue].items() if value}
        if changed:
            counts.filter(pk=queue).update(**changed)


def _add_minutes(rows: Iterable[Sequence[Any]], using: str) -> None:
    sums: dict[tuple[str, dt.datetime], dict[str, int]] = {}
    for row in rows:
        done = _work(dict(zip(COUNTED, row[1:], strict=True)))
        if any(done.values()):
            found = sums.setdefault((row[1], minute_of(row[2])), dict.fromkeys(done, 0))
            for name, value in done.items():
                found[name] += value
    if not sums:
        return
    minutes = QueueMinute.objects.using(using)
    times = {minute for _, minute in sums}
    there = {(m.queue, m.minute): m for m in minutes.filter(minute__in=times, queue__in={queue for queue, _ in sums})}
    minutes.bulk_create(
        QueueMinute(queue=queue, minute=minute, **values)
        for (queue, minute), values in sums.items()
        if (queue, minute) not in there
    )
    for key in sorted(sums.keys() & there.keys()):
        values = {name: F(name) + value for name, value in sums[key].items() if value}
        minutes.filter(pk=there[key].pk).update(**values)


def _work(delta: dict[str, Any]) -> dict[str, int]:
    """What a difference tells about work done: only a claim adds to `active`, only an ACK to `completed`."""
    return {
        "started": max(delta["active"], 0),
        "completed": max(delta["completed"], 0),
        "failed": delta["failed"],
        "run_ms": delta["run_ms"],
        "wait_ms": delta["wait_ms"],
    }


def minute_of(instant: dt.datetime) -> dt.datetime:
    return instant.replace(second=0, microsecond=0)
