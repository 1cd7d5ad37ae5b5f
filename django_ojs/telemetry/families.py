"""What a metric is made of, and which ones there are (events specification 7.2 and the companion's names)."""

from __future__ import annotations

from typing import Literal, NamedTuple

Kind = Literal["counter", "gauge", "histogram"]


class Histogram(NamedTuple):
    """`counts` by bucket, not cumulated, one more than there are `edges`: the last is above them all."""

    edges: tuple[float, ...]
    counts: tuple[int, ...]
    total: float


class Sample(NamedTuple):
    labels: dict[str, str]
    value: float | Histogram


class Family(NamedTuple):
    """All samples of one metric. `name` is that of Prometheus, a counter's without `_total`."""

    name: str
    kind: Kind
    help: str
    samples: list[Sample]


class Counter(NamedTuple):
    """A counter that moves with one kind of event, under both names that clients look for."""

    event: str
    help: str
    seed: str  #: the name of the specification, '' where it has none
    companion: str


COUNTERS: tuple[Counter, ...] = (
    Counter("job.enqueued", "Jobs enqueued.", "ojs.jobs.enqueued", "ojs.job.enqueued"),
    Counter("job.completed", "Jobs that completed successfully.", "ojs.jobs.completed", "ojs.job.completed"),
    Counter("job.discarded", "Jobs that failed for good.", "ojs.jobs.failed", "ojs.job.failed"),
    Counter("job.retrying", "Attempts that are to be repeated.", "", "ojs.job.retried"),
    Counter("job.cancelled", "Jobs cancelled.", "", "ojs.job.cancelled"),
    Counter("job.expired", "Jobs that expired before they started.", "", "ojs.job.expired"),
)

#: The buckets of the specification, ms; those of the companion are in seconds.
DURATION_MS = (5, 10, 25, 50, 100, 250, 500, 1000, 2500, 5000, 10_000, 30_000, 60_000, 300_000)
WAIT_MS = (10, 50, 100, 500, 1000, 5000, 10_000, 30_000, 60_000, 300_000, 600_000)
DURATION_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
QUEUE_TIME_S = (0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0, 600.0, 1800.0, 3600.0)


class Timing(NamedTuple):
    """A histogram of the times that `events` measure. `labels` are the stored labels that count, () for all."""

    name: str
    help: str
    unit: Literal["ms", "s"]
    edges: tuple[float, ...]
    events: tuple[str, ...]
    labels: tuple[str, ...] = ()
    by_state: bool = False


TIMINGS: tuple[Timing, ...] = (
    Timing("ojs.jobs.duration_ms", "Time of an attempt from its start to its end.", "ms", DURATION_MS,
           ("job.completed", "job.failed")),
    Timing("ojs.jobs.wait_ms", "Time from enqueued_at to started_at.", "ms", WAIT_MS, ("job.started",)),
    Timing("ojs.job.duration", "Time of an attempt, by the state it led to.", "s", DURATION_S,
           ("job.completed", "job.failed"), by_state=True),
    Timing("ojs.job.queue_time", "Time from enqueued_at to the first start.", "s", QUEUE_TIME_S, ("job.started",),
           ("first",)),
)  # fmt: skip

GAUGES: dict[str, str] = {
    "ojs.queue.depth": "Jobs that are available.",
    "ojs.queue.unserved": "Jobs that are available in a queue that no live worker serves.",
    "ojs.queue.active": "Jobs that are being worked on.",
    "ojs.dead_letter.depth": "Discarded jobs in the dead letter queue.",
    "ojs.queue.jobs": "Jobs by state.",
    "ojs.workers.busy": "Jobs that workers are executing.",
    "ojs.workers.active": "Workers that were heard of lately.",
}

#: The metrics that move with attempts to deliver a webhook, and what they tell.
WEBHOOKS: dict[str, str] = {
    "ojs.webhook.delivery.count": "Attempts to deliver a webhook.",
    "ojs.webhook.delivery.duration_ms": "Time of an attempt to deliver a webhook.",
    "ojs.webhook.delivery.retry_count": "Retries of a delivery that has ended.",
    "ojs.webhook.dead_delivery.count": "Deliveries that were given up.",
    "ojs.webhook.subscription.count": "Subscriptions of webhooks, paused ones included.",
}


def prometheus_name(name: str, unit: str = "") -> str:
    """`ojs.job.duration` in seconds is `ojs_job_duration_seconds`."""
    return name.replace(".", "_") + ("_seconds" if unit == "s" else "")
