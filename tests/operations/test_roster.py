"""Which queues with waiting jobs no worker serves."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from django_ojs import clock
from django_ojs.jobs.fetch import Fetch, fetch
from django_ojs.jobs.push import push
from django_ojs.models import Event, Worker
from django_ojs.workerregistry import directory
from django_ojs.workerregistry.directory import unserved_queues
from django_ojs.workerregistry.heartbeat import Beat, beat
from django_ojs.workerregistry.registration import direct, register

pytestmark = pytest.mark.django_db


def pushed(number: int, queue: str, **more: Any) -> None:
    push([{"type": "a.b", "args": [], "queue": queue, **more} for _ in range(number)])


def test_queues_with_available_jobs_and_no_worker_are_found_the_fullest_first(frozen_clock: Any) -> None:
    pushed(1, "default")
    pushed(3, "payments")
    pushed(2, "warehouse")
    pushed(5, "later", scheduled_at="2099-01-01T00:00:00Z")
    assert list(unserved_queues().items()) == [("payments", 3), ("warehouse", 2), ("default", 1)]
    register("w-1", {"queues": ["payments", "warehous"]})
    assert unserved_queues() == {"warehouse": 2, "default": 1}


def test_a_worker_that_only_fetches_over_http_serves_the_queues_that_it_names(frozen_clock: Any) -> None:
    pushed(2, "default")
    pushed(2, "payments")
    fetch(Fetch(["default"], worker_id="curl"))
    assert unserved_queues() == {"payments": 2}


def test_a_worker_that_names_no_queue_may_serve_any(frozen_clock: Any) -> None:
    pushed(2, "default")
    beat(Beat("other-language"))
    assert unserved_queues() == {}


def test_a_silent_or_quiet_worker_serves_no_queue_and_no_type(frozen_clock: Any) -> None:
    pushed(2, "default")
    register("w-1", {"queues": ["default"], "job_types": ["a.b"]})
    assert (unserved_queues(), directory.served_types("default")) == ({}, {"a.b"})
    direct("w-1", "quiet")
    assert (unserved_queues(), directory.served_types("default")) == ({"default": 2}, set())
    direct("w-1", "running")
    assert unserved_queues() == {}
    clock.advance(seconds=46)
    assert (unserved_queues(), directory.served_types("default")) == ({"default": 2}, set())


def test_a_queue_is_judged_only_by_workers_heard_since_it_was_made(frozen_clock: Any) -> None:
    register("of-all-queues", {"queues": ["default"]})
    clock.advance(seconds=1)
    pushed(1, "new")
    assert unserved_queues() == {}
    clock.advance(seconds=4)
    beat(Beat("of-all-queues", info={"queues": ["default"]}))
    assert unserved_queues() == {"new": 1}
    beat(Beat("of-all-queues", info={"queues": ["default", "new"]}))
    assert unserved_queues() == {}


def test_looking_at_queues_reads_no_jobs(frozen_clock: Any, django_assert_num_queries: Any) -> None:
    """One for the counts, which tells how much there is to fold, and one for the workers."""
    pushed(1, "default")
    register("w-1", {"queues": ["default"]})
    with django_assert_num_queries(2):
        assert unserved_queues() == {}


def test_the_heartbeats_of_a_worker_of_very_many_queues_do_not_repeat_their_names(frozen_clock: Any) -> None:
    names = [f"customer-{number}" for number in range(101)]

    def rewritten(*queues: str) -> bool:
        """Whether a heartbeat writes the names into the row of the worker."""
        with CaptureQueriesContext(connection) as asked:
            beat(Beat("w", info={"queues": list(queues), "concurrency": 3}))
        rows = [str(entry["sql"]) for entry in asked if str(entry["sql"]).startswith("UPDATE")]
        assert rows
        return any(queues[-1] in row for row in rows)

    assert rewritten(*names)
    frozen_clock.advance(seconds=5)
    assert not rewritten(*names)
    assert (stored := Worker.objects.get()).last_heartbeat_at == frozen_clock.now
    assert stored.queues == names
    frozen_clock.advance(seconds=5)
    assert rewritten(*names, "new")
    assert "new" in Worker.objects.get().queues
    heartbeats = Event.objects.filter(type="worker.heartbeat").order_by("pk")
    assert [len(event.data["queues"]) for event in heartbeats] == [101]
    frozen_clock.advance(minutes=1)
    assert not rewritten(*names, "new")
    frozen_clock.advance(seconds=5)
    assert rewritten("few")
    assert [len(event.data["queues"]) for event in heartbeats.all()] == [101, 102, 1]
