"""What waits at the front of queues: the oldest wait and the types that nobody takes, without counting a queue.

A job that no worker serves stays where it is, so it gathers at the front, and the front is a few entries of
the claim's index for each priority in use.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections import Counter
from collections.abc import Sequence

from django_ojs.models import Job
from django_ojs.operations.common import database

#: Jobs read for each priority of a queue, and the priorities that are looked at.
DEPTH, LEVELS = 20, 6
_TABLE = Job._meta.db_table


@dataclasses.dataclass(slots=True)
class Head:
    """The front of one queue; `oldest` is since when its longest waiting job there could have been taken."""

    oldest: dt.datetime | None = None
    types: Counter[str] = dataclasses.field(default_factory=Counter)


def heads(queues: Sequence[str], now: dt.datetime, *, using: str | None = None) -> dict[str, Head]:
    """The fronts of these queues: one statement for all of them, and one more for each lower priority."""
    using = database(using)
    found = {queue: Head() for queue in queues}
    below: dict[str, int | None] = dict.fromkeys(queues)
    for _ in range(LEVELS):
        if not below:
            break
        last: dict[str, int] = {}
        seen: Counter[str] = Counter()
        for job in _front(below, using):
            seen[job.queue] += 1
            last[job.queue] = min(job.priority, last.get(job.queue, job.priority))
            _look(found[job.queue], job, now)
        below = {queue: last[queue] for queue, number in seen.items() if number == DEPTH}
    return found


def _front(below: dict[str, int | None], using: str) -> Sequence[Job]:
    parts, params = [], list[str | int]()
    for number, (queue, priority) in enumerate(below.items()):
        limit = "" if priority is None else "AND priority < %s "
        params += [queue] if priority is None else [queue, priority]
        parts.append(
            f"SELECT * FROM (SELECT id, queue, type, priority, enqueued_at, due_at FROM {_TABLE} "  # noqa: S608 - the name of our own table
            f"WHERE state = 'available' AND queue = %s {limit}"
            f"ORDER BY priority DESC, enqueued_at, id LIMIT {DEPTH}) AS head{number}"
        )
    return list(Job.objects.using(using).raw(" UNION ALL ".join(parts), params))


def _look(head: Head, job: Job, now: dt.datetime) -> None:
    """Note one job, unless its time has not come: it may be held back by a limit or by an overlap policy."""
    if job.due_at is not None and job.due_at > now:
        return
    head.types[job.type] += 1
    if job.enqueued_at is not None and (head.oldest is None or job.enqueued_at < head.oldest):
        head.oldest = job.enqueued_at
