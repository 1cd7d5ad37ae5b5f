"""Django's signals at the start and at the end of a worker's process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.db import connection, transaction
from django.dispatch import Signal

from django_ojs import job
from django_ojs.models import Worker
from django_ojs.signals import worker_started, worker_stopped
from tests.waiting import eventually

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def connect() -> Iterator[Callable[[Signal, Callable[..., Any]], None]]:
    connected: list[tuple[Signal, Callable[..., Any]]] = []

    def to(signal: Signal, receiver: Callable[..., Any]) -> None:
        signal.connect(receiver, weak=False)
        connected.append((signal, receiver))

    yield to
    for signal, receiver in connected:
        signal.disconnect(receiver)


def test_a_worker_tells_before_its_first_job_and_after_its_last(start_worker: Any, connect: Any) -> None:
    told: list[tuple[str, str]] = []

    @job("test.told")
    def handler() -> None:
        told.append(("ran", ""))

    def started(sender: type, worker: Any, **kwargs: Any) -> None:
        eventually(Worker.objects.filter(pk=worker.id).exists, "the worker is registered")
        assert "test.told" in worker.types
        assert (worker.options.concurrency, list(worker.options.queues)) == (3, ["default"])
        told.append(("started", worker.id))

    def stopped(sender: type, worker: Any, **kwargs: Any) -> None:
        told.append(("stopped", worker.id))

    connect(worker_started, started)
    connect(worker_stopped, stopped)
    handler.enqueue()
    start_worker(name="w", concurrency=3, queues=["default"], until_empty=True).wait()
    assert told == [("started", "w"), ("ran", ""), ("stopped", "w")]


def test_a_receiver_that_fails_or_leaves_a_transaction_open_stops_no_worker(
    start_worker: Any, connect: Any, caplog: pytest.LogCaptureFixture
) -> None:
    left: list[bool] = []

    def fail(**kwargs: Any) -> None:
        raise LookupError("no model")

    def leave_open(**kwargs: Any) -> None:
        transaction.set_autocommit(False)
        Worker.objects.count()

    def look(**kwargs: Any) -> None:
        left.append(connection.connection is not None and not connection.get_autocommit())

    @job("test.told")
    def handler() -> None: ...

    connect(worker_started, fail)
    connect(worker_started, leave_open)
    connect(worker_stopped, look)
    handle = handler.enqueue()
    worker = start_worker(until_empty=True)
    worker.wait()
    assert worker.ended_well
    assert handle.refresh().state == "completed"
    assert left == [False]
    assert "no model" in caplog.text
