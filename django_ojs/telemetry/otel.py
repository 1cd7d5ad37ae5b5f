"""The metrics as instruments of OpenTelemetry, for a site that has set a meter provider (events specification 7.1).

They are recorded by the process that counts the log, which is the leading scheduler, after each pass: so everything is
recorded once for the whole installation, also work that was not done in Python. Instruments in every process would
miss workers in other languages or count them in whichever web server they happened to call, and would record what
is rolled back; totals read from the database would be a leap for the backend whenever another process leads.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from django.db import connections
from opentelemetry import metrics
from opentelemetry.metrics import CallbackOptions, Observation

import django_ojs
from django_ojs.statistics import eventcounts, webhookcounts
from django_ojs.statistics.eventcounts import EventGroup
from django_ojs.statistics.webhookcounts import DeliveryAttempt
from django_ojs.telemetry.gather import COUNTERS, GAUGES, TIMINGS, WEBHOOKS, Family, Timing, gauges, prometheus_name

#: Seconds for which all gauges of one export are read once.
_TOGETHER = 1.0


class Export:
    """The instruments of this process; `leads` says whether it is the one that counts."""

    def __init__(self, leads: Callable[[], bool], using: str) -> None:
        self._leads, self._using = leads, using
        self._read: tuple[float, dict[str, Family]] = (float("-inf"), {})
        meter = metrics.get_meter_provider().get_meter("django_ojs", django_ojs.__version__)
        self._counters: dict[str, list[tuple[str, Any]]] = {
            counter.event: [
                (name, meter.create_counter(name, "{job}", counter.help))
                for name in (counter.seed, counter.companion)
                if name
            ]
            for counter in COUNTERS
        }
        self._histograms = [(timing, _histogram(meter, timing)) for timing in TIMINGS]
        for name, text in GAUGES.items():
            unit = "{worker}" if name == "ojs.workers.active" else "{job}"
            meter.create_observable_gauge(name, [self._observer(name)], unit, text)
        self._webhooks = _Webhooks(meter, self._subscriptions)

    def start(self) -> None:
        eventcounts.listeners.append(self.record)
        webhookcounts.listeners.append(self._webhooks.record)

    def stop(self) -> None:
        eventcounts.listeners.remove(self.record)
        webhookcounts.listeners.remove(self._webhooks.record)

    def record(self, groups: Sequence[EventGroup]) -> None:
        """Record what a pass has counted. The times are those of the events, to the millisecond."""
        if not is_on():
            return
        for group in groups:
            for name, counter in self._counters.get(group.event, ()):
                counter.add(group.number, _labels(name, group))
            if group.ms is not None:
                self._time(group, group.ms)

    def _time(self, group: EventGroup, ms: int) -> None:
        for timing, histogram in self._histograms:
            if group.event not in timing.events or (timing.labels and group.label not in timing.labels):
                continue
            labels = _labels(timing.name, group) | ({"state": group.label} if timing.by_state else {})
            for _ in range(group.number):
                histogram.record(ms / 1000 if timing.unit == "s" else ms, labels)

    def _observer(self, name: str) -> Callable[[CallbackOptions], Iterable[Observation]]:
        def observe(options: CallbackOptions) -> list[Observation]:
            if not self._leads():
                return []
            family = self._families()[prometheus_name(name)]
            return [Observation(float(str(sample.value)), sample.labels) for sample in family.samples]

        return observe

    def _subscriptions(self, options: CallbackOptions) -> list[Observation]:
        if not self._leads():
            return []
        try:
            return [Observation(webhookcounts.subscriptions(using=self._using))]
        finally:
            self._close()

    def _families(self) -> dict[str, Family]:
        if time.monotonic() - self._read[0] > _TOGETHER:
            try:
                self._read = time.monotonic(), {family.name: family for family in gauges(self._using)}
            finally:
                self._close()
        return self._read[1]

    def _close(self) -> None:
        """Gauges are asked on a thread of the SDK, which must not keep a connection."""
        if not connections[self._using].in_atomic_block:
            connections[self._using].close()


class _Webhooks:
    """The instruments that move with attempts to deliver, in the process that sends them."""

    def __init__(self, meter: metrics.Meter, subscriptions: Callable[[CallbackOptions], list[Observation]]) -> None:
        def create(name: str, **more: Any) -> Any:
            metric = WEBHOOKS[name]
            return getattr(meter, f"create_{metric.kind}")(name, unit=metric.unit, description=metric.help, **more)

        self._attempts = create("ojs.webhook.delivery.count")
        self._dead = create("ojs.webhook.dead_delivery.count")
        self._durations = create(
            "ojs.webhook.delivery.duration_ms", explicit_bucket_boundaries_advisory=list(webhookcounts.DURATION_MS)
        )
        self._retries = create(
            "ojs.webhook.delivery.retry_count", explicit_bucket_boundaries_advisory=list(webhookcounts.RETRIES)
        )
        name = "ojs.webhook.subscription.count"
        meter.create_observable_gauge(name, [subscriptions], WEBHOOKS[name].unit, WEBHOOKS[name].help)

    def record(self, attempts: Sequence[DeliveryAttempt]) -> None:
        if not is_on():
            return
        for attempt in attempts:
            labels = {"event_type": attempt.event_type, "status": attempt.status}
            self._attempts.add(1, labels)
            self._durations.record(attempt.duration_ms, labels)
            if attempt.retries is not None:
                self._retries.record(attempt.retries, labels)
            if attempt.status == "dead":
                self._dead.add(1, {"event_type": attempt.event_type})


def is_on() -> bool:
    """Whether the site has set a provider: the API alone brings one that drops everything."""
    return not type(metrics.get_meter_provider()).__module__.startswith("opentelemetry.metrics")


def _histogram(meter: Any, timing: Timing) -> Any:
    edges = list(timing.edges)
    return meter.create_histogram(timing.name, timing.unit, timing.help, explicit_bucket_boundaries_advisory=edges)


def _labels(name: str, group: EventGroup) -> dict[str, str]:
    if name.startswith("ojs.jobs."):
        return {"job_type": group.job_type, "queue": group.queue}
    return {"queue": group.queue, "type": group.job_type}
