"""What a scrape sees: the counted series and the exact counts, in a number of statements that never grows.

Nothing here looks at a job or an event, so a scrape costs the same with a thousand jobs and with a hundred million.
"""

from __future__ import annotations

import datetime as dt
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from django.db import connections

import django_ojs
from django_ojs import clock
from django_ojs.conf import ojs_settings
from django_ojs.models import MetricSeries, Worker
from django_ojs.operations import counts, metrics
from django_ojs.operations.common import database
from django_ojs.telemetry import deliveries
from django_ojs.telemetry.families import (
    COUNTERS,
    GAUGES,
    TIMINGS,
    Counter,
    Family,
    Histogram,
    Sample,
    Timing,
    prometheus_name,
)

#: Families of other parts of the server: given the database, what they have to show.
Source = Callable[[str], Iterable[Family]]
_sources: dict[str, Source] = {"webhooks": deliveries.families}


def register(name: str, source: Source) -> None:
    """Let `source` add families to every scrape. Registering a name again replaces what it stood for.

    A source must answer from rows that whoever does the work has counted, as all metrics here do: the process that is
    scraped is any of many.
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
    for queue, states, dead in _queues(using):
        samples["ojs.queue.depth"].append(Sample({"queue": queue, "state": "available"}, states["available"]))
        samples["ojs.queue.active"].append(Sample({"queue": queue}, states["active"]))
        samples["ojs.dead_letter.depth"].append(Sample({"queue": queue}, dead))
        samples["ojs.workers.busy"].append(Sample({"queue": queue}, states["active"]))
        samples["ojs.queue.jobs"] += [Sample({"queue": queue, "state": s}, n) for s, n in states.items()]
    samples["ojs.workers.active"].append(Sample({}, workers_active(using)))
    return [Family(prometheus_name(name), "gauge", GAUGES[name], found) for name, found in samples.items()]


def workers_active(using: str) -> int:
    """Workers of any language that called within the heartbeat timeout."""
    since = clock.now(using) - dt.timedelta(seconds=ojs_settings.HEARTBEAT_TIMEOUT)
    return Worker.objects.using(using).filter(last_seen_at__gte=since).count()


def _queues(using: str) -> list[tuple[str, dict[str, int], int]]:
    """The counts by queue; queues beyond the number of series that are told apart are added up as `other`."""
    found = sorted(counts.count_all(using=using).items())
    limit = ojs_settings.METRICS_MAX_SERIES
    shown = [(queue, of_queue.states, of_queue.dead) for queue, of_queue in found[:limit]]
    if rest := [of_queue for _, of_queue in found[limit:]]:
        states = {state: sum(one.states[state] for one in rest) for state in rest[0].states}
        shown.append((metrics.OTHER, states, sum(one.dead for one in rest)))
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
        stored = metrics.edges(row.event)
        for index, count in enumerate(metrics.buckets_of(row)):
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
