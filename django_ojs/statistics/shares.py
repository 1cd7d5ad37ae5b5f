"""How the starts of the last minute were shared among the queues, and which queues starve (admin 1.9, jobs 9.1).

There is one strategy: a FETCH takes from its queues strictly from left to right. So a queue far to the right, or one
that no worker names, may wait for ever: this says which do.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections import Counter, defaultdict
from collections.abc import Collection, Sequence

from django_ojs import clock
from django_ojs.database import database
from django_ojs.states import State
from django_ojs.statistics import counters
from django_ojs.statistics.latency import fronts
from django_ojs.statistics.throughput import by_queue

STRATEGY = "strict"
#: The length of the window that is looked at: the last whole minute.
WINDOW = dt.timedelta(minutes=1)
#: Queues whose fronts one statement reads.
_AT_ONCE = 50


@dataclasses.dataclass(slots=True)
class Share:
    """One queue in the window: jobs that were started, their part of all, and how long they had waited on average.

    `starved`: a job could have been fetched since before the window, the queue is not paused, and neither in the
    window nor since was one taken. `mean_wait_ms` is None where nothing was started.
    """

    queue: str
    dispatched: int
    ratio: float
    mean_wait_ms: float | None
    active: int
    available: int
    oldest: dt.datetime | None
    starved: bool


@dataclasses.dataclass(slots=True)
class Spread:
    """The shares of the queues, in the order asked for, between `begin` and `end`."""

    begin: dt.datetime
    end: dt.datetime
    dispatched: int
    shares: list[Share]


def spread(queues: Sequence[str], paused: Collection[str] = (), *, using: str | None = None) -> Spread:
    """How the starts of the last whole minute fell on these queues; ratios are those among them."""
    using = database(using)
    now = clock.now(using)
    end = counters.minute_of(now)
    begin = end - WINDOW
    started, waited, lately = _starts(queues, begin, end, using)
    counted = counters.count_all(queues, using=using)
    available = {queue: one.states[State.AVAILABLE] for queue, one in counted.items()}
    idle = [queue for queue in queues if available.get(queue) and not lately[queue]]
    oldest = _oldest(idle, now, using)
    total = sum(started.values())
    shares = []
    for queue in queues:
        number, waits = started[queue], oldest.get(queue)
        mean = waited[queue] / number if number else None
        shares.append(Share(
            queue, number, number / total if total else 0.0, mean,
            counted[queue].states[State.ACTIVE] if queue in counted else 0, available.get(queue, 0), waits,
            queue not in paused and waits is not None and waits < begin,
        ))  # fmt: skip
    return Spread(begin, end, total, shares)


def _starts(
    queues: Sequence[str], begin: dt.datetime, end: dt.datetime, using: str
) -> tuple[Counter[str], Counter[str], Counter[str]]:
    """Starts and sums of waits in the window, and starts since its begin."""
    started, waited, lately = Counter[str](), Counter[str](), Counter[str]()
    for (queue, minute), done in by_queue(begin, queues, using=using).items():
        lately[queue] += done.started
        if minute < end:
            started[queue] += done.started
            waited[queue] += done.wait_ms
    return started, waited, lately


def _oldest(queues: Sequence[str], now: dt.datetime, using: str) -> dict[str, dt.datetime | None]:
    """Since when the longest waiting job at the front of each queue could have been fetched."""
    found: dict[str, dt.datetime | None] = defaultdict(lambda: None)
    for first in range(0, len(queues), _AT_ONCE):
        read = fronts(queues[first : first + _AT_ONCE], now, using=using)
        found |= {queue: front.oldest for queue, front in read.items()}
    return found
