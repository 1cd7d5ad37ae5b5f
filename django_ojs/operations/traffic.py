"""What came into the queues and how long it waited, by the minute: made of groups of events as they are counted.

A wait is the time from when a job could be fetched (enqueued, or due if it was scheduled) to its start; each attempt
has its own. Waits are kept as a sketch (`policies.sketch`), so percentiles are right to 5 percent.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Iterable, Sequence
from typing import Any

from django_ojs import clock
from django_ojs.events.tally import Group
from django_ojs.models import QueueTraffic
from django_ojs.operations.common import database
from django_ojs.operations.counts import minute_of
from django_ojs.policies import sketch
from django_ojs.policies.sketch import Sketch

#: How far back "lately" looks, beginning with a whole minute.
RECENT = dt.timedelta(minutes=5)
#: The row of all queues together.
ALL = ""


@dataclasses.dataclass(slots=True)
class Traffic:
    """Jobs that could be fetched from then on, and the waits of those that were started."""

    enqueued: int = 0
    waits: Sketch = dataclasses.field(default_factory=Sketch)

    def add(self, enqueued: int, waits: str) -> None:
        self.enqueued += enqueued
        if waits:
            self.waits.update(sketch.parse(waits))


def count(groups: Iterable[Group], using: str) -> None:
    """Add the events of these groups. The caller holds the lock of counting, so nobody else writes these rows."""
    found: dict[tuple[str, dt.datetime], Traffic] = {}
    for group in groups:
        for queue in (group.queue, ALL):
            if group.event == "job.enqueued":
                found.setdefault((queue, group.minute), Traffic()).enqueued += group.number
            elif group.event == "job.started" and group.ms is not None:
                found.setdefault((queue, group.minute), Traffic()).waits[sketch.bucket(group.ms)] += group.number
    rows = QueueTraffic.objects.using(using)
    near = rows.filter(minute__in={minute for _, minute in found}, queue__in={queue for queue, _ in found})
    there = {(row.queue, row.minute): row for row in near} if found else {}
    new: list[QueueTraffic] = []
    changed: list[QueueTraffic] = []
    for (queue, minute), more in sorted(found.items(), key=lambda item: item[0]):
        row = there.get((queue, minute)) or QueueTraffic(queue=queue, minute=minute)
        more.add(row.enqueued, row.waits)
        row.enqueued, row.waits = more.enqueued, sketch.write(more.waits)
        (changed if row.pk else new).append(row)
    rows.bulk_create(new)
    rows.bulk_update(changed, ["enqueued", "waits"])


def lately(queues: Sequence[str] | None = None, *, using: str | None = None) -> dict[str, Traffic]:
    """The traffic of each of these queues, or of those that had any, in the last five minutes and this one."""
    using = database(using)
    rows: Any = QueueTraffic.objects.using(using).filter(minute__gte=since(using)).exclude(queue=ALL)
    if queues is not None:
        rows = rows.filter(queue__in=queues)
    found: dict[str, Traffic] = {}
    for queue, enqueued, waits in rows.values_list("queue", "enqueued", "waits"):
        found.setdefault(queue, Traffic()).add(enqueued, waits)
    return found


def since(using: str) -> dt.datetime:
    """Where "lately" begins."""
    return minute_of(clock.now(using) - RECENT)
