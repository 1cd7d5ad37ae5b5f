"""How fast queues fill and empty, and how many slots their jobs need: `flows` for each queue.

A slot is one of the jobs that a worker may run at the same time (`--concurrency`).
"""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Mapping

from django_ojs.conf import ojs_settings
from django_ojs.statistics import latency, throughput
from django_ojs.statistics.throughput import Minutes, Work


@dataclasses.dataclass(frozen=True, slots=True)
class QueueFlow:
    """One queue in the last five minutes.

    Attributes:
        waiting: available jobs now.
        ended: jobs that ended in a minute.
        enqueued: jobs that came in a minute; None where the site does not count them (`OJS["METRICS"]`).
        mean_run_ms: how long a job of the last hour ran; None where none was completed.
    """

    waiting: int
    ended: float
    enqueued: float | None
    mean_run_ms: float | None

    @property
    def drain_time(self) -> dt.timedelta | None:
        """How long the available jobs take, as fast as jobs end now; None where none does."""
        return dt.timedelta(minutes=self.waiting / self.ended) if self.ended else None

    @property
    def growth(self) -> float:
        """Jobs by which the backlog grows in a minute: negative if it shrinks, 0 if `enqueued` is not known."""
        return 0.0 if self.enqueued is None else self.enqueued - self.ended

    @property
    def empty_in(self) -> dt.timedelta | None:
        """How long it takes until no job is available, if nothing changes; None where that is never."""
        if self.waiting <= 0:
            return dt.timedelta()
        shrinks = self.ended - (self.enqueued or 0.0)
        return dt.timedelta(minutes=self.waiting / shrinks) if shrinks > 0 else None

    @property
    def slots(self) -> float | None:
        """How many slots the jobs that come in keep busy (Little's law); None if one of its figures is None."""
        if self.enqueued is None or self.mean_run_ms is None:
            return None
        return self.enqueued * self.mean_run_ms / 60_000

    def slots_to_empty(self, within: dt.timedelta) -> float | None:
        """How many slots it takes to run what comes in, and all that waits within this time."""
        if self.slots is None or self.mean_run_ms is None:
            return None
        return self.slots + self.waiting * self.mean_run_ms / (within / dt.timedelta(milliseconds=1))


#: A queue in which nothing waits and nothing happened.
NO_FLOW = QueueFlow(0, 0.0, None, None)


def flows(waiting: Mapping[str, int], work: Minutes, now: dt.datetime, *, using: str) -> dict[str, QueueFlow]:
    """The flow of each queue that has available jobs, or did anything lately.

    Args:
        waiting: the available jobs of each queue that has any.
        work: what the queues did in the last hour (`throughput.by_queue`).
    """
    hourly: dict[str, Work] = {}
    for (queue, _minute), done in work.items():
        hourly.setdefault(queue, Work()).add(done)
    rates = throughput.rates_of(work, now)
    names = waiting.keys() | rates.keys()
    came = latency.traffic(None, now, using) if names and ojs_settings.METRICS else {}
    minutes = throughput.minutes_lately(now)
    return {
        name: QueueFlow(
            waiting.get(name, 0),
            rates[name].processed_per_minute if name in rates else 0.0,
            (came[name].enqueued / minutes if name in came else 0.0) if ojs_settings.METRICS else None,
            hourly[name].mean_run_ms if name in hourly else None,
        )
        for name in names
    }
