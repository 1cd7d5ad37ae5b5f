"""The metrics: which there are, and what a scrape sees of them (events specification 7.2 and the companion's names).

A scrape is made of the counted series and the exact counts, in a number of statements that never grows. Nothing here
looks at a job or an event, so it costs the same with a thousand jobs and with a hundred million.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from django.db import connections

import django_ojs
from django_ojs.conf import ojs_settings
from django_ojs.database import database
from django_ojs.models import MetricSeries
from django_ojs.statistics import counters, eventcounts, webhookcounts
from django_ojs.statistics.summary import workers_active
from django_ojs.workerregistry.directory import unserved_queues

MetricKind = Literal["counter", "gauge", "histogram"]


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
    kind: MetricKind
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


class WebhookMetric(NamedTuple):
    """A metric that moves with attempts to deliver a webhook. `unit` is what OpenTelemetry calls it."""

    kind: MetricKind
    unit: str
    help: str


WEBHOOKS: dict[str, WebhookMetric] = {
    "ojs.webhook.delivery.count": WebhookMetric("counter", "{delivery}", "Attempts to deliver a webhook."),
    "ojs.webhook.delivery.duration_ms": WebhookMetric("histogram", "ms", "Time of an attempt to deliver a webhook."),
    "ojs.webhook.delivery.retry_count": WebhookMetric("histogram", "{retry}", "Retries of a delivery that has ended."),
    "ojs.webhook.dead_delivery.count": WebhookMetric("counter", "{delivery}", "Deliveries that were given up."),
    "ojs.webhook.subscription.count": WebhookMetric(
        "gauge", "{subscription}", "Subscriptions of webhooks, paused ones included."
    ),
}


def prometheus_name(name: str, unit: str = "") -> str:
    """`ojs.job.duration` in seconds is `ojs_job_duration_seconds`."""
    return name.replace(".", "_") + ("_seconds" if unit == "s" else "")


#: Families of other parts of the server: given the database, what they have to show.
Source = Callable[[str], Iterable[Family]]
_sources: dict[str, Source] = {}


def register(name: str, source: Source) -> None:
    """Let `source` add families to every scrape. Registering a name again replaces what it stood for.

    A source must answer from rows, in which the processes that do the work have counted it, as all metrics here do: the
    process that is scraped is any of many.
    """
    _sources[name] = source


def unregister(name: str) -> None:
    _sources.pop(name, None)


def gather(*, using: str | None = None) -> list[Family]:
    """Every metric of the installation."""
    using = database(using)
    series = list(MetricSeries.objects.using(using).order_by("event", "job_type", "queue", "label"))
    families = [family for counter in COUNTERS for family in _counter(counter, series)]
    families += [_histogram(timing, series) for timing in TIMINGS]
    families += gauges(using)
    families.append(_info(using))
    for source in _sources.values():
        families += source(using)
    return families


def gauges(using: str) -> list[Family]:
    """How many jobs are where, and how many workers there are."""
    samples: dict[str, list[Sample]] = {name: [] for name in GAUGES}
    counted = counters.count_all(using=using)
    unserved = unserved_queues(counted, using=using)
    for queue, states, dead in _queues(counted):
        samples["ojs.queue.depth"].append(Sample({"queue": queue, "state": "available"}, states["available"]))
        samples["ojs.queue.unserved"].append(Sample({"queue": queue}, unserved.get(queue, 0)))
        samples["ojs.queue.active"].append(Sample({"queue": queue}, states["active"]))
        samples["ojs.dead_letter.depth"].append(Sample({"queue": queue}, dead))
        samples["ojs.workers.busy"].append(Sample({"queue": queue}, states["active"]))
        samples["ojs.queue.jobs"] += [Sample({"queue": queue, "state": s}, n) for s, n in states.items()]
    samples["ojs.workers.active"].append(Sample({}, workers_active(using=using)))
    return [Family(prometheus_name(name), "gauge", GAUGES[name], found) for name, found in samples.items()]


def _queues(counted: Mapping[str, counters.Counts]) -> list[tuple[str, dict[str, int], int]]:
    """The counts by queue; queues beyond the number of series that have labels of their own are added up as `other`."""
    found = sorted(counted.items())
    limit = ojs_settings.METRICS_MAX_SERIES
    shown = [(queue, of_queue.states, of_queue.dead) for queue, of_queue in found[:limit]]
    if rest := [of_queue for _, of_queue in found[limit:]]:
        states = {state: sum(one.states[state] for one in rest) for state in rest[0].states}
        shown.append((eventcounts.OTHER, states, sum(one.dead for one in rest)))
    return shown


def _counter(counter: Counter, series: Sequence[MetricSeries]) -> Iterable[Family]:
    sums: dict[tuple[str, str], int] = {}
    for row in series:
        if row.event == counter.event:
            sums[row.job_type, row.queue] = sums.get((row.job_type, row.queue), 0) + row.count
    if counter.seed:
        yield Family(
            prometheus_name(counter.seed), "counter", counter.help,
            [Sample({"job_type": t, "type": t, "queue": q}, count) for (t, q), count in sums.items()],
        )  # fmt: skip
    yield Family(
        prometheus_name(counter.companion), "counter", counter.help,
        [Sample({"queue": q, "type": t}, count) for (t, q), count in sums.items()],
    )  # fmt: skip


def _histogram(timing: Timing, series: Sequence[MetricSeries]) -> Family:
    """The stored buckets are finer: each lies wholly in one of the metric's."""
    scale = 1000 if timing.unit == "s" else 1
    sums: dict[tuple[str, str, str], tuple[list[int], int]] = {}
    for row in series:
        if row.event not in timing.events or (timing.labels and row.label not in timing.labels):
            continue
        key = row.job_type, row.queue, row.label if timing.by_state else ""
        buckets, total = sums.get(key) or ([0] * (len(timing.edges) + 1), 0)
        stored = eventcounts.edges(row.event)
        for index, count in enumerate(eventcounts.buckets_of(row)):
            place = bisect_left(timing.edges, stored[index] / scale) if index < len(stored) else len(timing.edges)
            buckets[place] += count
        sums[key] = buckets, total + row.total_ms
    samples = [
        Sample(_labels(timing, *key), Histogram(timing.edges, tuple(buckets), total / scale))
        for key, (buckets, total) in sums.items()
    ]
    return Family(prometheus_name(timing.name, timing.unit), "histogram", timing.help, samples)


def _labels(timing: Timing, job_type: str, queue: str, state: str) -> dict[str, str]:
    if timing.unit == "ms":
        return {"job_type": job_type, "queue": queue}
    return {"queue": queue, "type": job_type} | ({"state": state} if timing.by_state else {})


def _info(using: str) -> Family:
    labels: dict[str, Any] = {"version": django_ojs.__version__, "backend": connections[using].vendor}
    return Family("ojs_server_info", "gauge", "The version of this server and its database.", [Sample(labels, 1)])


def webhooks(using: str) -> list[Family]:
    """Attempts, durations, retries and dead deliveries by event type and outcome; subscriptions (events 8.1)."""
    attempts, durations, retries, dead = list[Sample](), list[Sample](), list[Sample](), list[Sample]()
    for one in webhookcounts.read(using=using):
        labels = {"event_type": one.event_type, "status": one.status}
        attempts.append(Sample(labels, one.attempts))
        durations.append(Sample(labels, Histogram(webhookcounts.DURATION_MS, one.durations, one.duration_ms)))
        if sum(one.retries):
            retries.append(Sample(labels, Histogram(webhookcounts.RETRIES, one.retries, one.retries_total)))
        if one.status == "dead":
            dead.append(Sample({"event_type": one.event_type}, one.attempts))
    found = {
        "ojs.webhook.delivery.count": attempts, "ojs.webhook.delivery.duration_ms": durations,
        "ojs.webhook.delivery.retry_count": retries, "ojs.webhook.dead_delivery.count": dead,
        "ojs.webhook.subscription.count": [Sample({}, webhookcounts.subscriptions(using=using))],
    }  # fmt: skip
    return [Family(prometheus_name(n), WEBHOOKS[n].kind, WEBHOOKS[n].help, samples) for n, samples in found.items()]


register("webhooks", webhooks)
