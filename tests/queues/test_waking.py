"""Who waits for a limit is told when it has room: after the commit, for jobs that it counts, and for no others."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from django_ojs import clock
from django_ojs.jobs.cancel import cancel
from django_ojs.jobs.fetch import Fetch, fetch
from django_ojs.jobs.finish import Ack, Failure, ack, fail, requeue
from django_ojs.jobs.push import push
from django_ojs.jobs.timers import apply_due
from django_ojs.lifecycle.waking import woken_here
from django_ojs.limits import ratelimits
from django_ojs.models import Job, Worker
from django_ojs.queues import configuration
from django_ojs.queues.configuration import configure
from django_ojs.queues.deletion import remove
from django_ojs.workerregistry.dead import dead_after, hand_back, rescue_dead_workers
from django_ojs.workerregistry.heartbeat import Beat, beat
from tests.conftest import FrozenClock

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("long_memory")]

NO = {"message": "no", "retryable": False}


def make(count: int = 2, **fields: Any) -> None:
    push([{"type": "a.b", "args": [i], "queue": "q", **fields} for i in range(count)])


@pytest.fixture
def found() -> Iterator[list[Any]]:
    """What a worker of this process that waits gets when it is woken; None for each time when nothing was there."""
    configuration.forget()
    claims: list[Any] = []

    def look() -> None:
        assert not connection.in_atomic_block
        claims.append(next((row["id"] for row in fetch(Fetch(["q"], worker_id="waits"))), None))

    with woken_here(connection.alias, look):
        yield claims


def _by_key() -> None:
    make(rate_limit={"key": "k", "concurrency": 1})


def _by_queue() -> None:
    make()
    configure("q", {"concurrency": 1})


def _by_template() -> None:
    make()
    configure("_default", {"concurrency": 1})


def _by_type() -> None:
    make()
    ratelimits.override("type:a.b", {"concurrency": 1})


ENDS: dict[str, Callable[[Any, FrozenClock], Any]] = {
    "ack": lambda job, time: ack([Ack(job, "1")], columns=["id"]),
    "fail": lambda job, time: fail([Failure(job, NO)]),
    "retry later": lambda job, time: fail([Failure(job, {"message": "no"}, retry_after_ms=3_600_000)]),
    "snooze": lambda job, time: fail([Failure(job, snooze_ms=3_600_000)]),
    "requeue": lambda job, time: requeue([job]),
    "cancel": lambda job, time: cancel([job]),
    "burial": lambda job, time: hand_back("works"),
    "timeout": lambda job, time: (time.advance(days=1), apply_due()),
    "death": lambda job, time: (time.advance(hours=1), rescue_dead_workers()),
}


@pytest.mark.parametrize("limit", [_by_key, _by_queue, _by_template, _by_type])
def test_the_next_job_can_be_claimed_when_the_waiting_are_woken(limit: Callable[[], None], found: list[Any]) -> None:
    limit()
    ((first,), nothing) = ([row["id"] for row in fetch(Fetch(["q"], count=2))], fetch(Fetch(["q"])))
    assert not nothing
    found.clear()
    with transaction.atomic():
        ack([Ack(first, "1")], columns=["id"])
        assert found == []
    (second,) = found
    assert second == Job.objects.exclude(pk=first).get().pk


@pytest.mark.parametrize("end", ENDS)
def test_whatever_ends_a_limited_job_wakes(end: str, found: list[Any], frozen_clock: FrozenClock) -> None:
    beat(Beat("works"))
    make(rate_limit={"key": "k", "concurrency": 1})
    (row,) = fetch(Fetch(["q"], count=2, worker_id="works"))
    found.clear()
    ENDS[end](row["id"], frozen_clock)
    assert len(found) == 1
    assert found[0] is not None


def test_the_removal_of_another_queue_makes_room_under_a_key(found: list[Any]) -> None:
    limit = {"key": "k", "concurrency": 1}
    push([{"type": "a.b", "args": [], "queue": "other", "rate_limit": limit}])
    assert len(fetch(Fetch(["other"]))) == 1
    make(rate_limit=limit)
    assert not fetch(Fetch(["q"]))
    found.clear()
    remove("other", "discard")
    assert found[0] is not None


def test_those_who_wait_get_what_comes_from_a_queue_that_is_removed(found: list[Any]) -> None:
    push([{"type": "a.b", "args": [], "queue": "other"}])
    configure("q", {})
    found.clear()
    remove("other", "move", "q")
    assert found[0] is not None


def test_nobody_is_woken_for_a_plain_job(found: list[Any]) -> None:
    configure("elsewhere", {"concurrency": 1})
    make(4)
    beat(Beat("sleeps"))
    Worker.objects.update(asleep=True)
    rows = [row["id"] for row in fetch(Fetch(["q"], count=3))]
    found.clear()
    with CaptureQueriesContext(connection) as captured:
        ack([Ack(rows[0], "1")])
        fail([Failure(rows[1], NO)])
        cancel([rows[2]])
    assert found == []
    assert not [query for query in captured if "pg_notify" in query["sql"]]


def test_the_cancellation_of_a_job_that_waits_makes_no_room(found: list[Any]) -> None:
    make(3, rate_limit={"key": "k", "concurrency": 1})
    (row,) = fetch(Fetch(["q"], count=3))
    found.clear()
    cancel([Job.objects.exclude(pk=row["id"]).first().pk])  # type: ignore[union-attr]
    assert found == []


@pytest.mark.postgres
@pytest.mark.parametrize("end", ["ack", "fail", "cancel"])
def test_other_processes_are_told_after_the_commit(end: str, frozen_clock: FrozenClock) -> None:
    make(rate_limit={"key": "k", "concurrency": 1})
    (row,) = fetch(Fetch(["q"], count=2))
    beat(Beat("sleeps"))
    Worker.objects.update(asleep=True)
    with CaptureQueriesContext(connection) as captured:
        ENDS[end](row["id"], frozen_clock)
    assert ["pg_notify" in query["sql"] for query in captured] == [False] * (len(captured) - 1) + [True]


def test_a_worker_that_is_silent_sleeps_no_more(frozen_clock: FrozenClock) -> None:
    """A gRPC server that was killed left its streams' workers asleep, who never send heartbeats, and each push
    notified them until they were forgotten."""
    for name in ("killed", "there"):
        fetch(Fetch(["q"], worker_id=name))
    Worker.objects.update(asleep=True)
    frozen_clock.advance(seconds=dead_after() + 1)
    Worker.objects.filter(pk="there").update(last_seen_at=clock.now())
    rescue_dead_workers(spare=True)
    assert Worker.objects.filter(asleep=True).count() == 2, "no worker could say anything while the database was away"
    rescue_dead_workers()
    assert dict(Worker.objects.values_list("pk", "asleep")) == {"killed": False, "there": True}


# Limits that open by time


def _throttled(window: dict[str, Any]) -> None:
    make(3, rate_limit={"key": "k", "throttle": window})


def _rated(window: dict[str, Any]) -> None:
    make(3, rate_limit={"key": "k", "rate": window})


def _queue_throttled(window: dict[str, Any]) -> None:
    make(3)
    configure("q", {"rate_limit": {"throttle": window}})


def _queue_rated(window: dict[str, Any]) -> None:
    make(3)
    configure("q", {"rate_limit": window})


def _type_throttled(window: dict[str, Any]) -> None:
    make(3)
    ratelimits.override("type:a.b", {"throttle": window})


@pytest.mark.parametrize("limit", [_throttled, _rated, _queue_throttled, _queue_rated, _type_throttled])
@pytest.mark.parametrize("period,seconds", [("PT1H", 3600.0), ("PT0.01S", 0.01)])
def test_a_claim_tells_when_the_limit_opens(
    limit: Any, period: str, seconds: float, frozen_clock: FrozenClock
) -> None:  # fmt: skip
    configuration.forget()
    limit({"limit": 1, "period": period})
    pauses: list[float] = []
    asked = Fetch(["q"], count=2, worker_id="w", opens_in=pauses.append)
    assert len(fetch(asked)) == 1
    assert pauses == [seconds]
    assert not fetch(asked)
    assert pauses == [seconds, seconds]


@pytest.mark.parametrize(
    "policy", [{"concurrency": 1}, {"throttle": {"limit": 1, "period": "PT1H"}, "on_limit": "drop"}]
)
def test_it_tells_no_time_for_a_slot_and_for_jobs_that_are_dropped(
    policy: dict[str, Any], frozen_clock: FrozenClock
) -> None:
    configuration.forget()
    make(rate_limit={"key": "k", **policy})
    pauses: list[float] = []
    assert len(fetch(Fetch(["q"], count=2, worker_id="w", opens_in=pauses.append))) == 1
    assert not pauses
