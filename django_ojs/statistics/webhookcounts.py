"""Counts attempts to deliver webhooks in rows, where the process that is scraped finds them (events 8.1).

A row for each event type and outcome: labels stay bounded, and nothing is ever counted by reading deliveries.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from django.db import transaction

from django_ojs.database import database
from django_ojs.models import WebhookCount, WebhookDelivery, WebhookSubscription

#: Upper edges of the buckets for an attempt's duration, ms, and for the retries of a delivery that has ended.
DURATION_MS = (5, 10, 25, 50, 100, 250, 500, 1000, 2500, 5000, 10_000, 30_000, 60_000)
RETRIES = (0, 1, 2, 3, 5, 7)


class Count(NamedTuple):
    """Attempts of one event type with one outcome; buckets are not cumulated, and the last is above all edges."""

    event_type: str
    status: str  #: `success`, `failed` (to be tried again) or `dead`
    attempts: int
    duration_ms: int  #: of all of them together
    durations: tuple[int, ...]
    retries: tuple[int, ...]  #: of the deliveries that ended so; none for `failed`
    retries_total: int


class DeliveryAttempt(NamedTuple):
    """One attempt that was counted. `retries` is None unless the delivery ended with it."""

    event_type: str
    status: str
    duration_ms: int
    retries: int | None


#: Called with the attempts that were counted together once that is committed, in the process that sent them.
listeners: list[Callable[[Sequence[DeliveryAttempt]], None]] = []


def count(done: Iterable[WebhookDelivery], using: str) -> None:
    """Count the latest attempt of each, in the caller's transaction."""
    attempts = [_attempt(delivery) for delivery in done]
    groups: dict[tuple[str, str], list[DeliveryAttempt]] = defaultdict(list)
    for attempt in attempts:
        groups[attempt.event_type, attempt.status].append(attempt)
    for event_type, status in sorted(groups):
        rows = WebhookCount.objects.using(using).select_for_update()
        row, _ = rows.get_or_create(event_type=event_type, status=status, defaults=_zero())
        for attempt in groups[event_type, status]:
            _add(row, attempt)
        row.save(using=using, force_update=True)
    transaction.on_commit(lambda: _notify(attempts), using=using)


def read(*, using: str | None = None) -> list[Count]:
    """Everything that was counted, by event type and outcome."""
    rows = WebhookCount.objects.using(database(using)).order_by("event_type", "status")
    return [
        Count(
            row.event_type, row.status, row.attempts, row.duration_ms, tuple(row.durations), tuple(row.retries),
            row.retries_total,
        )
        for row in rows
    ]  # fmt: skip


def subscriptions(*, using: str | None = None) -> int:
    """How many subscriptions there are, paused ones included."""
    return WebhookSubscription.objects.using(database(using)).count()


def _zero() -> dict[str, list[int]]:
    return {"durations": [0] * (len(DURATION_MS) + 1), "retries": [0] * (len(RETRIES) + 1)}


def _attempt(delivery: WebhookDelivery) -> DeliveryAttempt:
    retries = None if delivery.is_open else max(delivery.attempt_count - 1, 0)
    return DeliveryAttempt(delivery.event_type, delivery.status, delivery.response_time_ms or 0, retries)


def _add(row: WebhookCount, attempt: DeliveryAttempt) -> None:
    row.attempts += 1
    row.duration_ms += attempt.duration_ms
    row.durations[bisect_left(DURATION_MS, attempt.duration_ms)] += 1
    if attempt.retries is not None:
        row.retries[bisect_left(RETRIES, attempt.retries)] += 1
        row.retries_total += attempt.retries


def _notify(attempts: Sequence[DeliveryAttempt]) -> None:
    for listener in listeners:
        listener(attempts)
