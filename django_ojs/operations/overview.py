"""The figures that operators watch: rates, waits, and what is in the dead letter queue (admin 1.2, 1.6, 1.7).

Made of counts and of bounded samples: nothing here reads a table to its end.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from django.db.models import QuerySet

from django_ojs import clock
from django_ojs.conf import ojs_settings
from django_ojs.models import CountDelta, Job, QueueMinute
from django_ojs.operations import traffic
from django_ojs.operations.common import database
from django_ojs.operations.counts import work
from django_ojs.policies.sketch import percentiles
from django_ojs.states import State

#: Jobs that waits are taken from where nobody counts the log.
SAMPLE = 1000
#: Dead letters that are looked at one by one.
LETTERS = 10_000
_WORK = ("started", "completed", "failed", "run_ms", "wait_ms")


@dataclasses.dataclass(slots=True)
class Rate:
    """What was done per minute, over the last five minutes; `wait_ms` is what the started jobs had waited together."""

    processed_per_minute: float = 0.0
    failed_per_minute: float = 0.0
    completed_per_minute: float = 0.0
    started_per_minute: float = 0.0
    wait_ms_per_minute: float = 0.0

    @property
    def mean_wait_ms(self) -> float | None:
        return self.wait_ms_per_minute / self.started_per_minute if self.started_per_minute else None


def rates(queues: Sequence[str] | None = None, *, using: str | None = None) -> dict[str, Rate]:
    """By queue, for these or for all that did anything lately."""
    using = database(using)
    since = traffic.since(using)
    minutes = _minutes_since(since, using)
    return {queue: _rate(done, minutes) for queue, done in _work_since(since, queues, using).items()}


def enqueued_per_minute(queues: Sequence[str] | None = None, *, using: str | None = None) -> float | None:
    """Jobs of these queues, or of all, that could be fetched from then on; None where nobody counts the log."""
    if not ojs_settings.METRICS:
        return None
    using = database(using)
    came = sum(one.enqueued for one in traffic.lately(queues, using=using).values())
    return round(came / _minutes_since(traffic.since(using), using), 2)


def total(found: Iterable[Rate]) -> Rate:
    """All queues together."""
    names = [field.name for field in dataclasses.fields(Rate)]
    sums = Counter[str]()
    for rate in found:
        sums.update({name: getattr(rate, name) for name in names})
    return Rate(**{name: round(sums[name], 2) for name in names})


def waits(queues: Sequence[str] | None = None, *, using: str | None = None) -> dict[str, dict[str, float | None]]:
    """By queue the percentiles, in ms, of how long the jobs had waited that were started in the last five minutes."""
    using = database(using)
    if not ojs_settings.METRICS:
        return _sampled_waits(queues, using)
    found = traffic.lately(queues, using=using)
    return {
        queue: dict(zip(("p50", "p95", "p99"), percentiles(one.waits, (0.5, 0.95, 0.99)), strict=True))
        for queue, one in found.items()
        if one.waits
    }


def _sampled_waits(queues: Sequence[str] | None, using: str) -> dict[str, dict[str, float | None]]:
    """Where nobody counts the log: of the latest jobs that were completed in that time."""
    recent = Job.objects.using(using).filter(
        state=State.COMPLETED, finished_at__isnull=False, finished_at__gte=traffic.since(using)
    )
    if queues is not None:
        recent = recent.filter(queue__in=queues)
    waited: dict[str, list[float]] = defaultdict(list)
    times = recent.order_by("-finished_at").values_list("queue", "enqueued_at", "started_at")[:SAMPLE]
    for queue, enqueued, started in times:
        if enqueued is not None and started is not None:
            waited[queue].append(max((started - enqueued) / dt.timedelta(milliseconds=1), 0.0))
    return {queue: _percentiles(sorted(values)) for queue, values in waited.items()}


def oldest_available(queue: str, *, using: str | None = None) -> dt.datetime | None:
    """Since when the longest waiting job of a queue can be fetched: one step of the claim's index per priority."""
    waiting = Job.objects.using(database(using)).filter(queue=queue, state=State.AVAILABLE)
    order = waiting.order_by("-priority", "enqueued_at", "id").values_list("priority", "enqueued_at")
    oldest: dt.datetime | None = None
    head = order.first()
    while head is not None:
        oldest = head[1] if oldest is None or head[1] is None else min(oldest, head[1])
        head = order.filter(priority__lt=head[0]).first()
    return oldest


def dead_letters(jobs: QuerySet[Job]) -> dict[str, Any]:
    """The newest dead letters by type and by the type of their last error, and the time of the newest and oldest."""
    by_type, by_error, ends = Counter[str](), Counter[str](), list[dt.datetime]()
    newest: QuerySet[Any, Any] = jobs.order_by("-finished_at", "-id").values_list("type", "errors", "finished_at")[
        : LETTERS + 1
    ]
    for number, (job_type, errors, ended) in enumerate(newest.iterator(chunk_size=500)):
        if number == LETTERS:
            break
        by_type[job_type] += 1
        by_error[str((errors or [{}])[-1].get("type") or "unknown")] += 1
        ends.append(ended)
    oldest = jobs.order_by("finished_at").values_list("finished_at", flat=True).first()
    return {"by_type": dict(by_type), "by_error_type": dict(by_error), "looked_at": len(ends),
            "newest_at": ends[0] if ends else None, "oldest_at": oldest}  # fmt: skip


def _work_since(since: dt.datetime, queues: Sequence[str] | None, using: str) -> dict[str, Counter[str]]:
    """What each queue got done since this minute, folded or not."""
    minutes = QueueMinute.objects.using(using).filter(minute__gte=since)
    deltas = CountDelta.objects.using(using).filter(at__gte=since)
    if queues is not None:
        minutes, deltas = minutes.filter(queue__in=queues), deltas.filter(queue__in=queues)
    found: dict[str, Counter[str]] = defaultdict(Counter)
    names = ("active", "completed", "failed", "run_ms", "wait_ms")
    for row in deltas.values("queue", *names):
        found[row["queue"]].update(work(row))
    for minute in minutes:
        found[minute.queue].update({name: getattr(minute, name) for name in _WORK})
    return found


def _minutes_since(since: dt.datetime, using: str) -> float:
    return max((clock.now(using) - since).total_seconds() / 60, 1.0)


def _rate(done: Counter[str], minutes: float) -> Rate:
    completed, failed, started, wait = (done[name] / minutes for name in ("completed", "failed", "started", "wait_ms"))
    return Rate(*(round(value, 2) for value in (completed + failed, failed, completed, started, wait)))


def _percentiles(values: list[float]) -> dict[str, float | None]:
    def at(share: float) -> float:
        return round(values[min(int(share * len(values)), len(values) - 1)], 3)

    return {"p50": at(0.5), "p95": at(0.95), "p99": at(0.99)}
