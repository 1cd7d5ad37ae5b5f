"""The leader's duties: each does what is due and says when it wants to be called again."""

from __future__ import annotations

import datetime as dt
import logging
import threading
from typing import Any

import pytest
from django.db import InternalError

from django_ojs import clock, enqueue
from django_ojs.database import atomic
from django_ojs.events import log
from django_ojs.jobs.fetch import Fetch, fetch
from django_ojs.models import IdempotencyKey, Job, RateStart, Worker
from django_ojs.queues import configuration
from django_ojs.registry import registry
from django_ojs.scheduler.scheduler import ApplyDue, OrderEvents, Prune, Rescue, Unserved
from django_ojs.scheduler.service import GaveUp, persist
from django_ojs.workerregistry.directory import unserved_queues
from django_ojs.workerregistry.registration import direct, register

pytestmark = pytest.mark.django_db

USING = "default"


@pytest.fixture(autouse=True)
def _handlers() -> Any:
    configuration.forget()
    with registry.isolated():
        yield


def test_settle_sleeps_until_the_next_due_instant_and_never_longer_than_100_ms(frozen_clock: Any) -> None:
    duty = ApplyDue()
    assert duty.run_once(USING) == 0.1, "nothing at all is due"
    handle = enqueue("a.b", delay=10)
    assert duty.run_once(USING) == 0.1
    frozen_clock.advance(seconds=9.97)
    assert duty.run_once(USING) == pytest.approx(0.03)
    assert handle.refresh().state == "scheduled"
    frozen_clock.advance(seconds=0.03)
    assert duty.run_once(USING) == 0.0, "there may be more"
    assert handle.refresh().state == "available"


def test_settle_does_not_spin_when_what_is_due_is_locked_by_another(frozen_clock: Any, monkeypatch: Any) -> None:
    enqueue("a.b", delay=1)
    frozen_clock.advance(seconds=2)
    monkeypatch.setattr("django_ojs.scheduler.scheduler.apply_due", lambda **kwargs: 0)
    assert ApplyDue().run_once(USING) == 0.1


def test_settle_expires_times_out_and_takes_back(frozen_clock: Any) -> None:
    expired = enqueue("a.b", expires_at=frozen_clock.now + dt.timedelta(seconds=5), queue="later")
    timed_out = enqueue("a.b", timeout=5, retry={"max_attempts": 1})
    lost = enqueue("a.b")
    fetch(Fetch(["default"], count=2, worker_id="w", visibility_ms=10_000))
    frozen_clock.advance(seconds=11)
    while ApplyDue().run_once(USING) == 0.0:
        pass
    found = {str(handle.refresh().state): (handle.error or {}).get("type") for handle in (expired, timed_out, lost)}
    assert found == {"discarded": "timeout", "available": "visibility_timeout"}
    assert expired.error is not None
    assert expired.error["type"] == "expired"


def test_events_are_put_in_order() -> None:
    enqueue("a.b")
    assert OrderEvents().run_once(USING) in (OrderEvents.BUSY, OrderEvents.IDLE)
    assert OrderEvents().run_once(USING) == OrderEvents.IDLE
    assert [event["type"] for event in log.read().events] == ["job.enqueued"]


def test_dead_workers_are_rescued(frozen_clock: Any, caplog: pytest.LogCaptureFixture) -> None:
    handle = enqueue("a.b")
    register("w", {"hostname": "h"})
    fetch(Fetch(["default"], worker_id="w"))
    rescue = Rescue()
    assert rescue.run_once(USING) == Rescue.EVERY
    assert handle.refresh().state == "active"
    frozen_clock.advance(seconds=46)
    rescue.run_once(USING)
    assert handle.refresh().state == "available"
    assert not Worker.objects.exists()
    assert "Took 1 job back" in caplog.text


def test_pruning_goes_on_while_batches_are_full(frozen_clock: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Prune, "BATCH", 2)
    for _ in range(3):
        enqueue("a.b").cancel()
    IdempotencyKey.objects.create(digest="d", request="r", created_at=clock.now())
    prune = Prune()
    assert prune.run_once(USING) == Prune.EVERY
    assert Job.objects.count() == 3
    frozen_clock.advance(days=8)
    assert prune.run_once(USING) == Prune.PAUSE
    assert (Job.objects.count(), IdempotencyKey.objects.count()) == (1, 0)
    while prune.run_once(USING) == Prune.PAUSE:
        pass
    assert Job.objects.count() == 0


@pytest.mark.parametrize("make", [
    lambda number, now: IdempotencyKey(digest=f"d{number}", request="r", created_at=now),
    lambda number, now: RateStart(key="k", at=now, count=1, expires_at=now),
])  # fmt: skip
def test_no_pass_deletes_more_than_a_batch_of_what_requests_and_claims_leave(
    make: Any, frozen_clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a day without a scheduler there may be millions of them."""
    monkeypatch.setattr(Prune, "BATCH", 2)
    rows = [make(number, clock.now()) for number in range(3)]
    kind = type(rows[0]).objects
    kind.bulk_create(rows)
    frozen_clock.advance(days=8)
    assert (Prune().run_once(USING), kind.count()) == (Prune.PAUSE, 1)
    assert (Prune().run_once(USING), kind.count()) == (Prune.EVERY, 0)


def test_types_that_nobody_serves_are_warned_about_once(caplog: pytest.LogCaptureFixture) -> None:
    unserved = Unserved()
    enqueue("orphan.type")
    with caplog.at_level(logging.WARNING):
        assert unserved.run_once(USING) == Unserved.FIRST
        assert not caplog.records, "workers that start with it are not known yet"
        unserved.run_once(USING)
        unserved.run_once(USING)
    assert sorted((record.getMessage() for record in caplog.records), reverse=True) == [
        "1 job of type orphan.type waits, and no worker serves it.",
        "1 job in the queue default waits, and no worker serves it.",
    ]
    register("w", {"job_types": ["orphan.type"], "queues": ["default"]})
    unserved.run_once(USING)
    Worker.objects.all().delete()
    caplog.clear()
    unserved.run_once(USING)
    assert len(caplog.records) == 2, "it was served in between, so it is news again"


def test_a_worker_that_finishes_its_last_jobs_is_not_told_that_no_worker_serves_them(
    caplog: pytest.LogCaptureFixture,
) -> None:
    unserved = Unserved()
    unserved.run_once(USING)
    facts = {"job_types": ["orphan.type"], "queues": ["default"]}
    register("w", facts)
    enqueue("orphan.type"), enqueue("orphan.type")
    fetch(Fetch(["default"], worker_id="w", count=1))
    direct("w", "terminate")
    assert unserved_queues(using=USING) == {"default": 1}, "others who look are told that no more is taken"
    unserved.run_once(USING)
    assert caplog.messages == []
    Worker.objects.all().delete()
    unserved.run_once(USING)
    assert "1 job in the queue default waits, and no worker serves it." in caplog.messages


class Ended(Exception):
    """What psycopg raises where the server has ended a transaction that stood still."""

    sqlstate = "25P03"


@pytest.mark.django_db(transaction=True)
def test_a_transaction_that_the_server_has_ended_is_tried_again_as_on_a_lost_connection() -> None:
    """Else the thread of a worker that was stopped for some seconds would die when it goes on."""
    rounds: list[int] = []

    def act() -> str:
        rounds.append(len(rounds))
        with atomic(using=USING):
            if len(rounds) == 1:
                raise InternalError("terminating connection due to idle-in-transaction timeout") from Ended()
        return "done"

    assert persist(act, USING, threading.Event()) == "done"
    assert rounds == [0, 1]
    stopping = threading.Event()
    stopping.set()
    rounds.clear()
    with pytest.raises(GaveUp):
        persist(act, USING, stopping)
