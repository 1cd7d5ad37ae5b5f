"""What the queues got done, by the minute: a few thousand small rows that are counted as it happens.

Never looks at a job. What is not folded yet (`operations.counts`) is read in the same statement, and so
from the same snapshot, as what is.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Iterable
from typing import Any

from django.db.models import Sum

from django_ojs.models import CountDelta, QueueMinute
from django_ojs.operations.common import database
from django_ojs.operations.counts import minute_of

_MEASURES = ("completed", "failed", "run_ms", "wait_ms")


@dataclasses.dataclass(slots=True)
class Work:
    """Jobs started, completed and ended by a failure, and the sums of the times that they ran and waited."""

    started: int = 0
    completed: int = 0
    failed: int = 0
    run_ms: int = 0
    wait_ms: int = 0

    def add(self, other: Work) -> None:
        self.started += other.started
        self.completed += other.completed
        self.failed += other.failed
        self.run_ms += other.run_ms
        self.wait_ms += other.wait_ms

    @property
    def mean_run_ms(self) -> float | None:
        return self.run_ms / self.completed if self.completed else None

    @property
    def mean_wait_ms(self) -> float | None:
        return self.wait_ms / self.started if self.started else None


def by_queue(since: dt.datetime, *, using: str | None = None) -> dict[tuple[str, dt.datetime], Work]:
    """The work of each queue in each minute from that of `since`; minutes without any are left out."""
    using, since = database(using), minute_of(since)
    folded = QueueMinute.objects.using(using).filter(minute__gte=since)
    recent = CountDelta.objects.using(using).filter(at__gte=since)
    rows = folded.values_list("queue", "minute", "started", *_MEASURES).union(
        # Of the change to `active` only a claim's counts, which is what makes it larger.
        recent.values_list("queue", "at", "active", *_MEASURES), all=True,
    )  # fmt: skip
    found: dict[tuple[str, dt.datetime], Work] = {}
    for queue, at, *numbers in rows:
        found.setdefault((queue, minute_of(at)), Work()).add(_work(numbers))
    return found


def by_minute(since: dt.datetime, until: dt.datetime, *, using: str | None = None) -> dict[dt.datetime, Work]:
    """The work of all queues together in each folded minute from `since`, before `until`."""
    minutes = QueueMinute.objects.using(database(using)).filter(minute__gte=minute_of(since), minute__lt=until)
    sums = [Sum(name) for name in ("started", *_MEASURES)]
    rows: Iterable[Any] = minutes.order_by().values_list("minute").annotate(*sums)
    return {minute: _work(numbers) for minute, *numbers in rows}


def _work(numbers: Iterable[int]) -> Work:
    return Work(*(max(int(number), 0) for number in numbers))
