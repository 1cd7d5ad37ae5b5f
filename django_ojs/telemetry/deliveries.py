"""The metrics of webhooks (events 8.1): from what the senders have counted in rows, and never from deliveries."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

from django_ojs.operations import webhookcounts
from django_ojs.operations.webhookcounts import Count
from django_ojs.telemetry.families import Family, Histogram, Sample, prometheus_name

#: The metrics that move with attempts, and what they tell; `ojs.webhook.` comes before each name.
HELP = {
    "delivery.count": "Attempts to deliver a webhook.",
    "delivery.duration_ms": "Time of an attempt to deliver a webhook.",
    "delivery.retry_count": "Retries of a delivery that has ended.",
    "dead_delivery.count": "Deliveries that were given up.",
    "subscription.count": "Subscriptions of webhooks, paused ones included.",
}


def families(using: str) -> Iterable[Family]:
    """Attempts, durations, retries and dead deliveries by event type and outcome; subscriptions. Two statements."""
    counted = webhookcounts.read(using=using)
    ended = [one for one in counted if sum(one.retries)]
    dead = [one for one in counted if one.status == "dead"]
    subscriptions = [Sample({}, webhookcounts.subscriptions(using=using))]
    return [
        _family("delivery.count", "counter",
                [Sample(_labels(one), one.attempts) for one in counted]),
        _family("delivery.duration_ms", "histogram",
                [Sample(_labels(one), _durations(one)) for one in counted]),
        _family("delivery.retry_count", "histogram",
                [Sample(_labels(one), _retries(one)) for one in ended]),
        _family("dead_delivery.count", "counter",
                [Sample({"event_type": one.event_type}, one.attempts) for one in dead]),
        _family("subscription.count", "gauge", subscriptions),
    ]  # fmt: skip


def _family(name: str, kind: Literal["counter", "gauge", "histogram"], samples: Sequence[Sample]) -> Family:
    return Family(prometheus_name(f"ojs.webhook.{name}"), kind, HELP[name], list(samples))


def _labels(one: Count) -> dict[str, str]:
    return {"event_type": one.event_type, "status": one.status}


def _durations(one: Count) -> Histogram:
    return Histogram(webhookcounts.DURATION_MS, one.durations, one.duration_ms)


def _retries(one: Count) -> Histogram:
    return Histogram(webhookcounts.RETRIES, one.retries, one.retries_total)
