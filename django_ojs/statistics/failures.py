"""What fails: the dead letters by type and by error, and the job types that fail most.

Made of bounded samples, the newest first: nothing here reads a table to its end.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections import Counter
from typing import Any

from django.db.models import QuerySet

from django_ojs.models import Job
from django_ojs.states import State

#: Dead letters that are looked at one by one for what they failed with, and failures for the types that fail most.
LETTERS, FAILURES = 10_000, 500
#: Types that are named at most.
TYPES = 8


def dead_letters(jobs: QuerySet[Job]) -> dict[str, Any]:
    """The newest dead letters by type and by the type of their last error, and the time of the newest and oldest."""
    by_type, by_error, ends = Counter[str](), Counter[str](), list[dt.datetime]()
    newest: QuerySet[Any, Any] = jobs.order_by("-finished_at", "-id").values_list("type", "errors", "finished_at")
    for job_type, errors, ended in newest[:LETTERS].iterator(chunk_size=500):
        by_type[job_type] += 1
        by_error[str((errors or [{}])[-1].get("type") or "unknown")] += 1
        ends.append(ended)
    oldest = jobs.order_by("finished_at").values_list("finished_at", flat=True).first()
    return {"by_type": dict(by_type), "by_error_type": dict(by_error), "looked_at": len(ends),
            "newest_at": ends[0] if ends else None, "oldest_at": oldest}  # fmt: skip


@dataclasses.dataclass(slots=True)
class Failing:
    """A job type whose jobs fail: dead letters of the last day, jobs that wait for another attempt, and the primary
    key of the newest of them. `error` is for its caller to fill in."""

    type: str
    newest: Any
    dead: int = 0
    retrying: int = 0
    error: dict[str, Any] | None = None


def failing(now: dt.datetime, using: str, retryable: int) -> list[Failing]:
    """The types with the most failures among the latest dead letters and, where any job is retryable, the next
    retries."""
    found: dict[str, Failing] = {}
    ended = Job.objects.using(using).filter(state=State.DISCARDED, finished_at__gt=now - dt.timedelta(days=1))
    for pk, job_type in ended.order_by("-finished_at").values_list("pk", "type")[:FAILURES]:
        found.setdefault(job_type, Failing(job_type, pk)).dead += 1
    for pk, job_type in _next_retries(using) if retryable else ():
        found.setdefault(job_type, Failing(job_type, pk)).retrying += 1
    return sorted(found.values(), key=lambda one: (-one.dead, -one.retrying, one.type))[:TYPES]


def _next_retries(using: str) -> list[tuple[Any, str]]:
    """Retryable jobs among those that time will change next: a bounded piece of that index."""
    next_up = Job.objects.using(using).filter(wake_at__isnull=False).order_by("wake_at")
    rows = next_up.values_list("pk", "type", "state")[:FAILURES]
    return [(pk, job_type) for pk, job_type, state in rows if state == State.RETRYABLE]
