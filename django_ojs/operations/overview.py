"""The figures that operators watch: rates, waits, history, and what is in the dead letter queue (admin 1.2, 1.6, 1.7).

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
from django_ojs.models import CountDelta, Job, QueueMinute
from django_ojs.operations.common import database
from django_ojs.operations.counts import minute_of, work
from django_ojs.states import State

#: How far back rates and waits look, and how many jobs the waits are taken from.
RECENT, SAMPLE = dt.timedelta(minutes=5), 1000
#: Dead letters that are looked at one by one.
LETTERS = 10_000
#: Points that a history has at most.
MAX_POINTS = 3000
_WORK = ("started", "completed", "failed", "run_ms", "wait_ms")


@dataclasses.dataclass(slots=True)
class Rate:
    """What was done per minute, over the last five minutes."""

    processed_per_minute: float = 0.0
    failed_per_minute: float = 0.0
    completed_per_minute: float = 0.0
    started_per_minute: float = 0.0


def rates(queues: Sequence[str] | None = None, *, using: str | None = None) -> dict[str, Rate]:
    """By queue, for these or for all that did anything lately."""
    using = database(using)
    now = clock.now(using)
    since = minute_of(now - RECENT)
    minutes = max((now - since).total_seconds() / 60, 1.0)
    done = _work_since(since, None, queues, using)
    sums: dict[str, Counter[str]] = defaultdict(Counter)
    for (queue, _), figures in done.items():
        sums[queue].update(figures)
    return {queue: _rate(figures, minutes) for queue, figures in sums.items()}


def total(found: Iterable[Rate]) -> Rate:
    """All queues together."""
    names = [field.name for field in dataclasses.fields(Rate)]
    sums = Counter[str]()
    for rate in found:
        sums.update({name: getattr(rate, name) for name in names})
    return Rate(**{name: round(sums[name], 2) for name in names})


def waits(queues: Sequence[str] | None = None, *, using: str | None = None) -> dict[str, dict[str, float]]:
    """By queue the percentiles, in ms, of the time that recently completed jobs had waited; a sample of the latest."""
    using = database(using)
    recent = Job.objects.using(using).filter(
        state=State.COMPLETED, finished_at__isnull=False, finished_at__gte=clock.now(using) - RECENT
    )
    if queues is not None:
        recent = recent.filter(queue__in=queues)
    waited: dict[str, list[float]] = defaultdict(list)
    for queue, enqueued, started in recent.order_by("-finished_at").values_list("queue", "enqueued_at", "started_at")[
        :SAMPLE
    ]:
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


def history(
    period: dt.timedelta, since: dt.datetime, until: dt.datetime, queue: str = "", *, using: str | None = None
) -> list[dict[str, Any]]:
    """What was done in each period from `since` to `until`, zeros included; `time` is the period's begin."""
    using = database(using)
    seconds = int(period.total_seconds())
    first = int(since.timestamp()) // seconds * seconds
    found: dict[int, Counter[str]] = defaultdict(Counter)
    begin = dt.datetime.fromtimestamp(first, dt.UTC)
    for (_, minute), figures in _work_since(begin, until, [queue] if queue else None, using).items():
        found[int(minute.timestamp()) // seconds * seconds].update(figures)
    points = range(first, int(until.timestamp()), seconds)[:MAX_POINTS]
    return [{"time": dt.datetime.fromtimestamp(at, dt.UTC), **{n: found[at][n] for n in _WORK}} for at in points]


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


def _work_since(
    since: dt.datetime, until: dt.datetime | None, queues: Sequence[str] | None, using: str
) -> dict[tuple[str, dt.datetime], Counter[str]]:
    """What each queue got done in each minute, folded or not."""
    minutes = QueueMinute.objects.using(using).filter(minute__gte=since)
    deltas = CountDelta.objects.using(using).filter(at__gte=since)
    if until is not None:
        minutes, deltas = minutes.filter(minute__lt=until), deltas.filter(at__lt=until)
    if queues is not None:
        minutes, deltas = minutes.filter(queue__in=queues), deltas.filter(queue__in=queues)
    found: dict[tuple[str, dt.datetime], Counter[str]] = defaultdict(Counter)
    names = ("active", "completed", "failed", "run_ms", "wait_ms")
    for row in deltas.values("queue", "at", *names):
        found[row["queue"], minute_of(row["at"])].update(work(row))
    for minute in minutes:
        found[minute.queue, minute.minute].update({name: getattr(minute, name) for name in _WORK})
    return found


def _rate(done: Counter[str], minutes: float) -> Rate:
    completed, failed, started = (done[name] / minutes for name in ("completed", "failed", "started"))
    return Rate(*(round(value, 2) for value in (completed + failed, failed, completed, started)))


def _percentiles(values: list[float]) -> dict[str, float]:
    def at(share: float) -> float:
        return round(values[min(int(share * len(values)), len(values) - 1)], 3)

    return {"p50": at(0.5), "p95": at(0.95), "p99": at(0.99)}
