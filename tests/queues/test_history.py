"""History that counts twice, forgets, or tells of times it does not know."""

from __future__ import annotations

import datetime as dt
import itertools
import threading
from typing import Any

import pytest
from django.db import connection

from django_ojs import clock
from django_ojs.database import retried
from django_ojs.events import order
from django_ojs.jobs.fetch import Fetch, fetch
from django_ojs.jobs.finish import Ack, Failure, ack, fail
from django_ojs.jobs.push import push
from django_ojs.models import QueueHour, QueueMinute, QueueTraffic
from django_ojs.queues.configuration import ensure, pause
from django_ojs.statistics import counters, eventcounts, history, latency, percentiles
from django_ojs.statistics import latency as dispatching
from django_ojs.statistics.history import HOUR, Point

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("long_memory")]

MINUTE, DAY = dt.timedelta(minutes=1), dt.timedelta(days=1)


def count(*, fold: bool = True) -> None:
    order.catch_up("default")
    eventcounts.catch_up("default")
    while fold and counters.fold():
        pass


def work(number: int, queue: str = "q", *, wait: float = 0.0, clock: Any) -> None:
    """So many jobs that wait so long, and are completed after a second, but for the first, which fails."""
    push([{"type": "a.b", "args": [], "queue": queue, "retry": {"max_attempts": 1}} for _ in range(number)])
    clock.advance(seconds=wait)
    ids = [row["id"] for row in fetch(Fetch([queue], count=number))]
    clock.advance(seconds=1)
    fail([Failure(ids[0], {"message": "no"})])
    ack([Ack(job_id) for job_id in ids[1:]])


def past(period: dt.timedelta, back: dt.timedelta, queue: str = "") -> list[Point]:
    now = clock.now()
    return history.history(period, now - back, now, queue)


def sums(points: list[Point]) -> tuple[int, ...]:
    names = ("enqueued", "started", "completed", "failed", "wait_ms", "run_ms")
    first = [sum(getattr(point, name) for point in points) for name in names]
    return (*first, sum(point.waits.total() for point in points))


@pytest.fixture
def full_hour(frozen_clock: Any) -> Any:
    """The clock, at the beginning of an hour."""
    now = clock.now()
    frozen_clock.advance(seconds=(now.replace(minute=0, second=0, microsecond=0) + HOUR - now).total_seconds())
    return frozen_clock


@pytest.mark.parametrize("fold", [True, False])
def test_a_minute_tells_what_came_and_how_long_it_waited(full_hour: Any, fold: bool) -> None:
    work(3, wait=2, clock=full_hour)
    work(1, "other", wait=10, clock=full_hour)
    count(fold=fold)
    full_hour.advance(minutes=2)
    points = past(MINUTE, 2 * MINUTE, "q")
    assert [point.started for point in points] == [3, 0, 0]
    first = points[0]
    assert (first.enqueued, first.completed, first.failed, first.wait_ms, first.run_ms) == (3, 2, 1, 6000, 2000)
    assert first.percentiles(0.5, 0.99) == [pytest.approx(2000, rel=percentiles.ERROR)] * 2
    assert points[1].percentiles(0.5) == [None]
    (both, *_) = past(MINUTE, 2 * MINUTE)
    assert (both.enqueued, both.started) == (4, 4)
    assert both.percentiles(0.5, 1.0) == [
        pytest.approx(2000, rel=percentiles.ERROR), pytest.approx(10_000, rel=percentiles.ERROR),
    ]  # fmt: skip


def test_counting_in_any_portions_counts_each_event_once(full_hour: Any) -> None:
    for queue in ("a", "b"):
        work(4, queue, wait=1, clock=full_hour)
        order.catch_up("default")
        while eventcounts.count(limit=3):
            pass
    count()
    assert sums(past(MINUTE, 5 * MINUTE))[0] == 8
    assert sums(past(MINUTE, 5 * MINUTE, "a"))[-1] == 4
    assert QueueTraffic.objects.filter(queue="").count() <= 2


@pytest.mark.parametrize("period", [HOUR, DAY])
def test_rolled_up_or_not_the_sums_are_the_same(full_hour: Any, period: dt.timedelta) -> None:
    for _ in range(5):
        work(3, wait=2, clock=full_hour)
        work(2, "other", wait=30, clock=full_hour)
        full_hour.advance(hours=13, minutes=7)
    count()
    before = {queue: sums(past(period, 6 * DAY, queue)) for queue in ("", "q", "other")}
    assert before["q"] == (15, 15, 10, 5, 30_000, 10_000, 15)
    assert before[""] == tuple(one + two for one, two in zip(before["q"], before["other"], strict=True))
    assert history.roll_up() > 0
    assert QueueHour.objects.filter(queue="q").exists()
    assert QueueMinute.objects.exists(), "the last two days stay by the minute"
    assert history.roll_up() == 0
    assert {queue: sums(past(period, 6 * DAY, queue)) for queue in ("", "q", "other")} == before
    assert past(period, 6 * DAY)[0].percentiles(0.5) != [0]


def test_what_is_folded_late_joins_its_hour(full_hour: Any) -> None:
    work(3, wait=2, clock=full_hour)
    count(fold=False)
    full_hour.advance(days=3)
    history.roll_up()  # the waits are known, and the differences lie there still
    assert sums(past(HOUR, 4 * DAY, "q")) == (3, 3, 2, 1, 6000, 2000, 3)
    count()
    history.roll_up()
    assert sums(past(HOUR, 4 * DAY, "q")) == (3, 3, 2, 1, 6000, 2000, 3)
    assert QueueHour.objects.filter(queue="q").count() == 1
    assert not QueueMinute.objects.exists()
    assert not QueueTraffic.objects.exists()


def test_hours_go_after_thirty_days_and_nothing_is_told_of_before(full_hour: Any) -> None:
    work(2, clock=full_hour)
    count()
    full_hour.advance(days=3)
    history.roll_up()
    full_hour.advance(days=26)
    assert sums(past(DAY, 100 * DAY))[1] == 2
    full_hour.advance(days=3)
    assert history.roll_up() == 2
    now = clock.now()
    for period in (MINUTE, 5 * MINUTE, HOUR, DAY):
        points = history.history(period, now - 100 * DAY, now)
        assert points[0].time == history.kept_since(period, now)
        assert points[-1].time <= now < points[-1].time + period
        assert {b.time - a.time for a, b in itertools.pairwise(points)} == {period}
        assert len(points) <= history.MAX_POINTS
    assert history.history(MINUTE, now - 9 * DAY, now - 8 * DAY) == []
    assert history.history(HOUR, now + DAY, now + 2 * DAY) == []


@pytest.mark.django_db(transaction=True)
@pytest.mark.skipif(connection.vendor == "sqlite", reason="one writer at a time anyway")
def test_two_who_roll_up_at_once_count_once(full_hour: Any) -> None:
    for _ in range(4):
        work(3, wait=1, clock=full_hour)
        full_hour.advance(minutes=20)
    count()
    full_hour.advance(days=3)
    barrier = threading.Barrier(2)
    gone: list[int] = []

    def run() -> None:
        try:
            barrier.wait()
            gone.append(retried(history.roll_up)(using="default"))  # as pruning does: one may lose a deadlock
        finally:
            connection.close()

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(gone) == 2, "one of them gave up"
    assert sums(past(HOUR, 5 * DAY))[:2] == (12, 12)


def test_waits_of_queues_are_those_of_all_that_was_started_lately(full_hour: Any, settings: Any) -> None:
    work(20, "q", wait=1, clock=full_hour)
    work(1, "q", wait=100, clock=full_hour)
    count()
    found = latency.waits(["q", "none"])
    assert found.keys() == {"q"}
    assert found["q"]["p50"] == pytest.approx(1000, rel=percentiles.ERROR)
    assert found["q"]["p99"] == pytest.approx(100_000, rel=percentiles.ERROR)
    assert latency.enqueued_per_minute(["q"]) == pytest.approx(21 / (5 + 43 / 60), abs=0.01)
    full_hour.advance(minutes=10)
    assert latency.waits(["q"]) == {}
    settings.OJS = {"METRICS": False}
    assert latency.enqueued_per_minute() is None


def test_dispatching_tells_shares_and_who_starves(full_hour: Any) -> None:
    for queue in ("busy", "calm", "idle", "starving", "halted"):
        ensure([queue], clock.now(), "default")
    for queue in ("starving", "halted"):
        push([{"type": "a.b", "args": [], "queue": queue}])
    pause("halted")
    full_hour.advance(seconds=70)
    work(6, "busy", wait=3, clock=full_hour)
    work(2, "calm", wait=1, clock=full_hour)
    push([{"type": "a.b", "args": [], "queue": "calm"}])
    full_hour.advance(seconds=60)
    names = ["busy", "calm", "halted", "idle", "starving"]
    for fold in (False, True):
        count(fold=fold)
        found = dispatching.spread(names, {"halted"})
        assert (found.dispatched, found.end - found.begin) == (8, MINUTE)
        shares = {share.queue: share for share in found.shares}
        assert [shares[name].dispatched for name in names] == [6, 2, 0, 0, 0]
        assert [shares[name].ratio for name in names] == [0.75, 0.25, 0, 0, 0]
        assert (shares["busy"].mean_wait_ms, shares["idle"].mean_wait_ms) == (3000, None)
        assert [name for name in names if shares[name].starved] == ["starving"]
        assert shares["halted"].available == 1
    fetch(Fetch(["starving"]))
    assert not any(share.starved for share in dispatching.spread(names, {"halted"}).shares)
