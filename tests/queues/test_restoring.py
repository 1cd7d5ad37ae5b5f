"""Jobs in a queue that has no row are served all the same: workers of all queues find queues by their rows."""

from __future__ import annotations

import logging
import threading
from typing import Any

import pytest
from django.db import connection, connections
from django.test.utils import CaptureQueriesContext

from django_ojs.jobs.fetch import Fetch, fetch
from django_ojs.jobs.finish import ack
from django_ojs.jobs.push import push
from django_ojs.models import Job, Queue, Worker
from django_ojs.queues import configuration
from django_ojs.queues.deletion import remove
from django_ojs.scheduler.scheduler import FoldCounts, RestoreQueues
from django_ojs.statistics import counters
from django_ojs.store.values import Ack
from django_ojs.worker.claimer import QueueNames

USING = "default"
pytestmark = pytest.mark.django_db(transaction=True)


def waiting(queue: str = "fresh", **attributes: Any) -> Any:
    return push([{"type": "a.b", "args": [], "queue": queue, **attributes}])[0].row


def duties() -> None:
    """What the scheduler does every two seconds."""
    while counters.fold() >= counters.FOLD_BATCH:
        pass
    RestoreQueues().run_once(USING)


def serve_all() -> list[Any]:
    """What a worker of all queues gets."""
    rows: list[Any] = []
    while taken := fetch(Fetch(QueueNames([], USING).refresh() or ["default"], count=100, worker_id="w")):
        rows += taken
        ack([Ack(row["id"]) for row in taken])
    return rows


def test_a_process_that_dies_between_its_commit_and_the_queue_s_row_strands_no_job(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with monkeypatch.context() as dying:
        dying.setattr(configuration, "_create", lambda *args: None)
        row = waiting()
    assert serve_all() == []
    with caplog.at_level(logging.WARNING, "django_ojs.scheduler"):
        duties()
    assert "The queue fresh had jobs and no row" in caplog.text
    assert [taken["id"] for taken in serve_all()] == [row["id"]]


@pytest.mark.parametrize("attributes", [{}, {"delay_until": "2090-01-01T00:00:00Z"}], ids=["available", "scheduled"])
def test_a_push_by_a_process_that_still_knows_a_deleted_queue_strands_no_job(
    monkeypatch: pytest.MonkeyPatch, attributes: dict[str, Any]
) -> None:
    waiting()
    serve_all()
    with monkeypatch.context() as remembering:
        remembering.setattr(configuration, "forget", lambda: None)  # as in another process than that which deletes
        remove("fresh", "discard")
        row = waiting(**attributes)
    assert not Queue.objects.filter(name="fresh").exists()
    duties()
    assert Queue.objects.filter(name="fresh", paused=False, draining=False).exists()
    assert Job.objects.get(pk=row["id"]).state in ("available", "scheduled")


def test_a_deleted_queue_does_not_come_back_because_counts_are_not_folded_yet() -> None:
    waiting()
    counters.fold()
    remove("fresh", "discard")
    assert RestoreQueues().run_once(USING) == RestoreQueues.EVERY
    assert not Queue.objects.filter(name="fresh").exists()


def test_a_look_that_finds_nothing_is_one_statement_and_says_nothing(caplog: pytest.LogCaptureFixture) -> None:
    waiting()
    counters.fold()
    with CaptureQueriesContext(connection) as captured:
        assert configuration.restore() == []
    assert len(captured) == 1
    assert caplog.text == ""


@pytest.mark.postgres
def test_sleeping_workers_are_woken_for_what_was_found(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as dying:
        dying.setattr(configuration, "_create", lambda *args: None)
        waiting()
    counters.fold()
    fetch(Fetch(["default"], worker_id="w"))
    Worker.objects.update(asleep=True)
    with CaptureQueriesContext(connection) as captured:
        configuration.restore()
    assert "pg_notify" in captured[-1]["sql"]


@pytest.mark.slow
def test_threads_that_push_while_the_queue_is_deleted_leave_no_job_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    failures: list[BaseException] = []
    stop = threading.Event()

    def run(work: Any) -> threading.Thread:
        def guarded() -> None:
            try:
                work()
            except BaseException as error:  # noqa: BLE001 - told below
                failures.append(error)
            finally:
                connections.close_all()

        thread = threading.Thread(target=guarded)
        thread.start()
        return thread

    def pushing() -> None:
        for _ in range(150):
            try:
                waiting()
            except configuration.QueuePaused:
                configuration._cache.clear()  # it drains: ask the database the next time

    def deleting() -> None:
        while not stop.is_set():
            if Queue.objects.filter(name="fresh").exists():
                remove("fresh", "discard")

    with monkeypatch.context() as remembering:
        remembering.setattr(configuration, "forget", lambda: None)  # as in other processes than that which deletes
        deleter = run(deleting)
        for thread in [run(pushing) for _ in range(3)]:
            thread.join(120)
        stop.set()
        deleter.join(120)
    assert failures == []
    FoldCounts().run_once(USING)
    duties()
    serve_all()
    assert not Job.objects.live().exists()
