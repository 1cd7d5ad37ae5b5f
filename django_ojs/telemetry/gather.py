"""What a scrape sees: the counted series and the exact counts, in a number of statements that never grows.

Nothing here looks at a job or an event, so a scrape costs the same with a thousand jobs and with a hundred million.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from django.db import connections

import django_ojs
from django_ojs.conf import ojs_settings
from django_ojs.database import database
from django_ojs.models import MetricSeries
from django_ojs.statistics import counters, eventcounts, webhookcounts
from django_ojs.statistics.summary import workers_active
from django_ojs.telemetry.families import (
    COUNTERS,
    GAUGES,
    TIMINGS,
    WEBHOOKS,
    Counter,
    Family,
    Histogram,
    Kind,
    Sample,
    Timing,
    prometheus_name,
)
from django_ojs.workers.directory import unserved_queues

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
    """The counts by queue; queues beyond the number of series that are told apart are added up as `other`."""
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
    subscriptions = [Sample({}, webhookcounts.subscriptions(using=using))]
    kinds: list[tuple[str, Kind, list[Sample]]] = [
        ("delivery.count", "counter", attempts), ("delivery.duration_ms", "histogram", durations),
        ("delivery.retry_count", "histogram", retries), ("dead_delivery.count", "counter", dead),
        ("subscription.count", "gauge", subscriptions),
    ]  # fmt: skip
    names = [(f"ojs.webhook.{name}", kind, samples) for name, kind, samples in kinds]
    return [Family(prometheus_name(name), kind, WEBHOOKS[name], samples) for name, kind, samples in names]


register("webhooks", webhooks)
