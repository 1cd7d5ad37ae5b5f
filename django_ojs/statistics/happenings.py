"""How many events of each type there were by the minute, the hour or the day, in the words of the execution history,
and how long attempts took (extensions 7). It counts the events that the log still has."""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections import Counter

from django_ojs.events import history, order
from django_ojs.events.history import HistoryQuery
from django_ojs.models import Event
from django_ojs.statistics import percentiles

#: The periods there are.
PERIODS = {"minute": dt.timedelta(minutes=1), "hour": dt.timedelta(hours=1), "day": dt.timedelta(days=1)}
#: How many events one call counts at most, the newest.
MOST = 100_000
_COLUMNS = ("type", "time", "state", "queue", "job_type", "job_id", "workflow_id", "component", "worker_id", "data")


@dataclasses.dataclass(slots=True)
class EventBucket:
    """One period from `timestamp` on: the events by their names, and how long the attempts took that ended in it."""

    timestamp: dt.datetime
    events: Counter[str] = dataclasses.field(default_factory=Counter)
    durations: list[int] = dataclasses.field(default_factory=list)

    @property
    def avg_duration_ms(self) -> float | None:
        """The mean, in ms; None where no attempt ended."""
        return round(sum(self.durations) / len(self.durations), 1) if self.durations else None

    @property
    def p95_duration_ms(self) -> float | None:
        """What 95 % of the attempts took at most, in ms; None where none ended."""
        return next(iter(percentiles.of_values(sorted(self.durations), [0.95])), None)


def buckets(
    wanted: HistoryQuery, period: dt.timedelta, since: dt.datetime, until: dt.datetime, using: str
) -> tuple[list[EventBucket], bool]:
    """The periods between these times in which something happened, and whether earlier ones were left out because
    there were more than `MOST` events."""
    order.catch_up(using, strict=False)
    events = Event.objects.using(using).filter(wanted.events.condition(), time__gte=since, time__lt=until)
    rows = list(events.order_by("-pk").only(*_COLUMNS)[: MOST + 1])
    seconds = int(period.total_seconds())
    found: dict[int, EventBucket] = {}
    for row in rows[:MOST]:
        told = history.facts(row)
        if not (wanted.events.matches(row) and wanted.accepts(told)):
            continue
        at = int(row.time.timestamp()) // seconds * seconds
        bucket = found.setdefault(at, EventBucket(dt.datetime.fromtimestamp(at, dt.UTC)))
        bucket.events[history.name_of(told)] += 1
        if row.type in ("job.completed", "job.failed") and isinstance(took := told["data"].get("duration_ms"), int):
            bucket.durations.append(took)
    made = [found[at] for at in sorted(found)]
    truncated = len(rows) > MOST
    return (made[1:] if truncated and len(made) > 1 else made), truncated  # the first is not whole
