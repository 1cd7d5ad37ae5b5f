"""What OpenTelemetry is told: everything once, by the process that counts."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from django.db import transaction
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from django_ojs.errors import InvalidPayload
from django_ojs.events import order
from django_ojs.jobs.fetch import Fetch, fetch
from django_ojs.jobs.finish import Ack, Failure, ack, fail
from django_ojs.jobs.push import push, push_each
from django_ojs.models import WebhookDelivery
from django_ojs.scheduler.scheduler import Scheduler
from django_ojs.statistics import eventcounts, webhookcounts
from django_ojs.telemetry import export, otel, pushes
from django_ojs.telemetry.gather import COUNTERS, DURATION_S, GAUGES, TIMINGS, WEBHOOKS
from tests.conftest import FrozenClock

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def reader(monkeypatch: Any) -> InMemoryMetricReader:
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    monkeypatch.setattr(otel.metrics, "get_meter_provider", lambda: provider)
    monkeypatch.setattr(otel, "_TOGETHER", 0.0)
    return reader


class Leader:
    leads = True

    def __call__(self) -> bool:
        return self.leads


@pytest.fixture
def leader(reader: InMemoryMetricReader) -> Iterator[Leader]:
    leader = Leader()
    exported = export(leader, "default")
    yield leader
    exported.stop()
    assert eventcounts.listeners == []


def points(reader: InMemoryMetricReader) -> dict[str, list[Any]]:
    data = reader.get_metrics_data()
    if data is None:
        return {}
    return {
        metric.name: list(metric.data.data_points)
        for resource in data.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
    }


def count() -> None:
    order.catch_up("default")
    eventcounts.catch_up("default")


@pytest.mark.usefixtures("leader")
def test_what_is_counted_is_recorded_once(reader: InMemoryMetricReader, frozen_clock: FrozenClock) -> None:
    once = {"retry": {"max_attempts": 1}}
    push([{"type": "a.b", "args": [], **once} for _ in range(3)])
    frozen_clock.advance(milliseconds=40)
    ids = [row["id"] for row in fetch(Fetch(["default"], count=3))]
    frozen_clock.advance(milliseconds=200)
    ack([Ack(job_id) for job_id in ids[:2]])
    fail([Failure(ids[2], {"message": "no"})])
    count()
    count()
    found = points(reader)
    (enqueued,) = found["ojs.jobs.enqueued"]
    assert (enqueued.value, enqueued.attributes) == (3, {"job_type": "a.b", "queue": "default"})
    assert found["ojs.job.enqueued"][0].attributes == {"type": "a.b", "queue": "default"}
    assert [found[name][0].value for name in ("ojs.jobs.completed", "ojs.jobs.failed")] == [2, 1]
    (duration,) = found["ojs.jobs.duration_ms"]
    assert (duration.count, duration.sum) == (3, pytest.approx(600, abs=3))
    assert tuple(duration.explicit_bounds) == TIMINGS[0].edges
    states = {point.attributes["state"]: point.count for point in found["ojs.job.duration"]}
    assert states == {"completed": 2, "discarded": 1}
    assert found["ojs.job.queue_time"][0].sum == pytest.approx(0.120, abs=0.006)
    assert found["ojs.dead_letter.depth"][0].value == 1


@pytest.mark.usefixtures("leader")
def test_every_metric_has_an_instrument_by_its_name(reader: InMemoryMetricReader, frozen_clock: FrozenClock) -> None:
    from tests.telemetry.test_metrics import test_cancelling_and_expiring_have_counters_of_their_own as end

    end(frozen_clock)
    push([{"type": "a.b", "args": []}])
    (row,) = fetch(Fetch(["default"]))
    fail([Failure(row["id"], {"message": "no"})])
    push([{"type": "a.b", "args": [], "retry": {"max_attempts": 1}}])
    (row,) = fetch(Fetch(["default"]))
    fail([Failure(row["id"], {"message": "no"})])
    push([{"type": "a.b", "args": []}])
    (row,) = fetch(Fetch(["default"]))
    ack([Ack(row["id"])])
    count()
    names = {name for counter in COUNTERS for name in (counter.seed, counter.companion) if name}
    deliver()
    timings = {timing.name for timing in TIMINGS}
    assert set(points(reader)) == names | timings | set(GAUGES) | set(WEBHOOKS) | {pushes.NAME}


def deliver() -> None:
    """Two attempts: one that is to be repeated, one that was the last."""
    open_, dead = (
        WebhookDelivery(event_type="job.failed", status=status, response_time_ms=took, attempt_count=number)
        for status, took, number in (("failed", 7, 1), ("dead", 30, 8))
    )
    with transaction.atomic():
        webhookcounts.count([open_, dead], "default")


@pytest.mark.usefixtures("leader")
def test_webhooks_are_recorded_by_event_type_and_outcome(reader: InMemoryMetricReader) -> None:
    deliver()
    found = points(reader)
    counted = {point.attributes["status"]: point.value for point in found["ojs.webhook.delivery.count"]}
    assert counted == {"failed": 1, "dead": 1}
    assert {point.sum for point in found["ojs.webhook.delivery.duration_ms"]} == {7, 30}
    (retries,) = found["ojs.webhook.delivery.retry_count"]
    assert (retries.count, retries.sum) == (1, 7)
    (dead,) = found["ojs.webhook.dead_delivery.count"]
    assert (dead.value, dead.attributes) == (1, {"event_type": "job.failed"})
    assert found["ojs.webhook.subscription.count"][0].value == 0


@pytest.mark.usefixtures("leader")
def test_attempts_that_are_rolled_back_are_not_recorded(reader: InMemoryMetricReader) -> None:
    with contextlib.suppress(ZeroDivisionError), transaction.atomic():
        deliver()
        raise ZeroDivisionError
    assert "ojs.webhook.delivery.count" not in points(reader)


def test_gauges_come_from_the_leader_alone(reader: InMemoryMetricReader, leader: Leader) -> None:
    push([{"type": "a.b", "args": []}])
    assert points(reader)["ojs.queue.depth"][0].value == 1
    leader.leads = False
    assert "ojs.queue.depth" not in points(reader)


def test_without_a_provider_nothing_is_recorded(leader: Leader, monkeypatch: Any) -> None:
    monkeypatch.undo()
    assert not otel.is_on()
    push([{"type": "a.b", "args": []}])
    count()


def test_a_push_is_timed_by_the_process_that_does_it_for_each_queue(
    reader: InMemoryMetricReader, settings: Any, monkeypatch: Any
) -> None:
    monkeypatch.setattr(pushes, "_queues", set())
    settings.OJS = {**settings.OJS, "METRICS_MAX_SERIES": 2}
    push([{"type": "a.b", "args": [], "queue": queue} for queue in ("one", "one", "two")])
    push([{"type": "a.b", "args": [], "queue": "one"}])
    push([{"type": "a.b", "args": [], "queue": "three"}])
    push_each([{"type": "a.b", "args": [], "queue": "one", "priority": "no"}])  # refused: no push
    with contextlib.suppress(InvalidPayload):
        push([{"type": "NO", "args": []}])
    found = {point.attributes["queue"]: point for point in points(reader)["ojs.job.enqueue_duration"]}
    assert {queue: point.count for queue, point in found.items()} == {"one": 2, "two": 1, "other": 1}
    assert found["one"].explicit_bounds == DURATION_S
    assert 0 < found["two"].sum < 60


def test_a_push_is_not_timed_where_nobody_listens(
    reader: InMemoryMetricReader, settings: Any, monkeypatch: Any
) -> None:
    def never() -> float:
        raise AssertionError("the time was taken")

    monkeypatch.setattr(pushes.time, "perf_counter", never)
    settings.OJS = {**settings.OJS, "METRICS": False}
    push([{"type": "a.b", "args": []}])
    settings.OJS = {}
    for api in (False, None):
        monkeypatch.setattr(pushes, "_otel", api)
        if api is None:
            monkeypatch.setitem(sys.modules, "django_ojs.telemetry.otel", None)
            monkeypatch.delattr("django_ojs.telemetry.otel")
        push([{"type": "a.b", "args": []}])


def test_a_scheduler_exports_while_it_runs(reader: InMemoryMetricReader) -> None:
    scheduler = Scheduler("test")
    scheduler.start()
    try:
        assert len(eventcounts.listeners) == 1
    finally:
        scheduler.stop(30)
    assert eventcounts.listeners == []
