"""Maintenance mode (admin 1.8): nothing is delivered, promoted or fired while it is on, and all of it afterwards."""

from __future__ import annotations

import datetime as dt
import threading
from collections.abc import Callable
from typing import Any

import pytest
from django.db import IntegrityError, connection, connections, transaction
from django.test.utils import CaptureQueriesContext

from django_ojs import clock
from django_ojs.cron import runs, schedules
from django_ojs.cron.runs import tick, trigger
from django_ojs.errors import InvalidRequest
from django_ojs.jobs import timers
from django_ojs.jobs.cancel import cancel
from django_ojs.jobs.fetch import Fetch, fetch
from django_ojs.jobs.finish import Ack, Failure, ack, fail
from django_ojs.jobs.promote import activate
from django_ojs.jobs.push import push
from django_ojs.models import AuditEntry, CronSchedule, Job, Maintenance, Worker
from django_ojs.queues import maintenance
from django_ojs.queues.configuration import pause
from django_ojs.rules.durations import format_instant
from django_ojs.scheduler.scheduler import ApplyDue, EndMaintenance, Scheduler
from django_ojs.workerregistry.dead import rescue_dead_workers
from django_ojs.workerregistry.heartbeat import Beat, beat
from tests.conftest import FrozenClock

pytestmark = pytest.mark.django_db
HOUR = dt.timedelta(hours=1)


def job(**attributes: Any) -> Any:
    (pushed,) = push([{"type": "a.b", "args": [], **attributes}])
    assert pushed.row is not None
    return pushed.row["id"]


def claim(**options: Any) -> list[Any]:
    return [row["id"] for row in fetch(Fetch(["default"], count=10, **options))]


def ahead(seconds: int) -> str:
    return format_instant(clock.now() + dt.timedelta(seconds=seconds))


def state(job_id: Any) -> str:
    return str(Job.objects.get(pk=job_id).state)


class TestTheSwitch:
    def test_it_is_off_until_somebody_switches_it_on_and_says_who_why_and_how_long(
        self, frozen_clock: FrozenClock
    ) -> None:
        assert maintenance.current() is None
        assert not maintenance.is_on()
        began = clock.now()
        maintenance.start(reason="new disks", lasting=HOUR, by="user:ann")
        mode = maintenance.current()
        assert mode is not None
        assert maintenance.is_on()
        told = (mode.reason, mode.enabled_at, mode.enabled_by, mode.estimated_end, mode.auto_end)
        assert told == ("new disks", began, "user:ann", began + HOUR, False)
        ended = maintenance.stop()
        assert ended is not None
        assert ended.reason == "new disks"
        assert maintenance.current() is None

    def test_twice_is_as_good_as_once_and_changes_only_what_is_said_anew(self, frozen_clock: FrozenClock) -> None:
        first = maintenance.start(reason="disks", lasting=HOUR, auto_end=True, by="user:ann")
        frozen_clock.advance(minutes=10)
        again = maintenance.start(by="user:bob")
        for name in ("reason", "enabled_at", "enabled_by", "estimated_end", "auto_end"):
            assert getattr(again, name) == getattr(first, name), name
        later = maintenance.start(reason="more disks", lasting=HOUR, auto_end=False)
        assert (later.reason, later.enabled_at, later.auto_end) == ("more disks", first.enabled_at, False)
        assert later.estimated_end == clock.now() + HOUR
        assert maintenance.stop() is not None
        assert maintenance.stop() is None

    @pytest.mark.parametrize("lasting", [dt.timedelta(), -HOUR, dt.timedelta(days=367)])
    def test_an_estimate_lies_ahead_and_within_a_year(self, lasting: dt.timedelta) -> None:
        with pytest.raises(InvalidRequest, match="estimated_duration") as refused:
            maintenance.start(lasting=lasting)
        assert refused.value.details == {"field": "estimated_duration"}
        assert maintenance.current() is None

    def test_it_cannot_end_by_itself_without_an_end(self) -> None:
        with pytest.raises(InvalidRequest, match="auto_end: needs"):
            maintenance.start(auto_end=True)
        assert maintenance.current() is None
        maintenance.start(lasting=HOUR)
        assert maintenance.start(auto_end=True).auto_end

    def test_there_is_one_row_at_most(self) -> None:
        maintenance.start()
        with pytest.raises(IntegrityError), transaction.atomic():
            Maintenance.objects.create(pk=2, enabled_at=clock.now())


class TestWhatStops:
    def test_a_fetch_gives_nothing_from_any_queue_and_push_is_accepted(self) -> None:
        before = job()
        maintenance.start()
        after, other = job(), job(queue="other")
        for options in ({}, {"worker_id": "w"}, {"ids": [before]}, {"types": ["a.b"]}, {"check_worker": False}):
            assert fetch(Fetch(["default", "other"], count=10, **options)) == []
        assert {state(one) for one in (before, after, other)} == {"available"}
        maintenance.stop()
        assert {row["id"] for row in fetch(Fetch(["default", "other"], count=10))} == {before, after, other}

    def test_a_limited_queue_gives_nothing_either(self) -> None:
        limited = job(rate_limit={"key": "k", "concurrency": 1})
        maintenance.start()
        assert claim() == []
        maintenance.stop()
        assert claim() == [limited]

    def test_a_paused_queue_stays_paused_when_it_ends(self) -> None:
        job()
        pause("default")
        maintenance.start()
        maintenance.stop()
        assert claim() == []

    def test_a_worker_that_asks_meanwhile_is_known(self) -> None:
        maintenance.start()
        assert claim(worker_id="w-9") == []
        assert Worker.objects.filter(pk="w-9").exists()

    def test_nothing_is_promoted_by_the_scheduler_or_by_a_fetch(self, frozen_clock: FrozenClock) -> None:
        scheduled = job(scheduled_at=ahead(10))
        failing = job(retry={"initial_interval": "PT10S", "jitter": False})
        claim()
        fail([Failure(failing, error={"type": "OSError", "message": "gone"})])
        maintenance.start()
        frozen_clock.advance(seconds=60)
        assert timers.apply_due() == 0
        assert claim() == []
        assert (state(scheduled), state(failing)) == ("scheduled", "retryable")
        maintenance.stop()
        assert timers.apply_due() == 2
        assert set(claim()) == {scheduled, failing}

    def test_the_scheduler_looks_less_often_at_what_has_to_wait(self, frozen_clock: FrozenClock) -> None:
        job(scheduled_at=ahead(10))
        frozen_clock.advance(seconds=60)
        maintenance.start()
        assert ApplyDue().run_once(connection.alias) == ApplyDue.SUSPENDED
        maintenance.stop()
        assert ApplyDue().run_once(connection.alias) == 0.0

    def test_a_schedule_does_not_fire_and_catches_up_once(self, frozen_clock: FrozenClock) -> None:
        schedules.register({"name": "minutely", "cron": "* * * * *", "type": "a.b"})
        maintenance.start()
        for _ in range(5):
            frozen_clock.advance(minutes=1)
            assert tick() == 0
        assert not Job.objects.exists()
        maintenance.stop()
        assert tick() == 1
        assert tick() == 0
        assert Job.objects.count() == 1
        upcoming = CronSchedule.objects.get(pk="minutely").next_run_at
        assert upcoming is not None
        assert upcoming > clock.now()

    def test_an_operator_may_still_make_a_schedule_s_job(self) -> None:
        schedules.register({"name": "daily", "cron": "0 0 * * *", "type": "a.b"})
        maintenance.start()
        trigger("daily")
        assert Job.objects.count() == 1
        assert claim() == []

    def test_a_run_that_waits_for_the_run_before_it_is_not_let_go(self, frozen_clock: FrozenClock) -> None:
        schedules.register({"name": "minutely", "cron": "* * * * *", "type": "a.b", "overlap_policy": "enqueue"})
        frozen_clock.advance(minutes=1)
        tick()
        (running,) = claim()
        frozen_clock.advance(minutes=1)
        tick()
        maintenance.start()
        ack([Ack(running)])
        assert runs.let_next_go() == 0
        maintenance.stop()
        assert runs.let_next_go() == 1
        assert len(claim()) == 1


class TestWhatGoesOn:
    def test_a_running_job_may_end_in_every_way(self) -> None:
        ids = [job() for _ in range(4)]
        assert set(claim(worker_id="w")) == set(ids)
        maintenance.start()
        done, failed, cancelled, beaten = ids
        ack([Ack(done, worker_id="w")])
        fail([Failure(failed, error={"type": "E", "message": "no", "retryable": False})])
        cancel([cancelled])
        before = Job.objects.get(pk=beaten).visible_until
        assert beat(Beat("w", [beaten])) is not None
        after = Job.objects.get(pk=beaten).visible_until
        assert before is not None
        assert after is not None
        assert after >= before
        assert [state(one) for one in ids] == ["completed", "discarded", "cancelled", "active"]

    def test_lost_reservations_and_timeouts_are_seen_to_and_such_jobs_wait(self, frozen_clock: FrozenClock) -> None:
        lost = job(visibility_timeout=10)
        slow = job(timeout=10, retry={"max_attempts": 1})
        claim(worker_id="w")
        maintenance.start()
        frozen_clock.advance(seconds=11)
        assert timers.apply_due() == 2
        assert (state(lost), state(slow)) == ("available", "discarded")
        assert claim() == []
        maintenance.stop()
        assert claim() == [lost]

    def test_jobs_of_dead_workers_are_taken_back(self, frozen_clock: FrozenClock) -> None:
        held = job(visibility_timeout=3600)
        beat(Beat("w"))
        claim(worker_id="w")
        maintenance.start()
        frozen_clock.advance(minutes=5)
        assert rescue_dead_workers() == 1
        assert state(held) == "available"

    @pytest.mark.parametrize("attributes", [{}, {"scheduled_at": "2026-01-15T12:00:05Z"}])
    def test_what_must_not_run_any_more_expires(self, frozen_clock: FrozenClock, attributes: dict[str, Any]) -> None:
        late = job(expires_at="2026-01-15T12:01:00Z", **attributes)
        maintenance.start()
        frozen_clock.advance(seconds=30)
        assert timers.apply_due() == 0
        frozen_clock.advance(seconds=31)
        assert timers.apply_due() == 1
        assert state(late) == "discarded"

    def test_a_pending_job_is_activated_and_waits(self) -> None:
        pending = job(pending=True)
        maintenance.start()
        activate([pending])
        assert state(pending) == "available"
        assert claim() == []


class TestItsEnd:
    def test_it_goes_on_past_its_estimate_until_somebody_ends_it(self, frozen_clock: FrozenClock) -> None:
        maintenance.start(lasting=HOUR)
        frozen_clock.advance(hours=2)
        assert not maintenance.end_if_over()
        assert maintenance.is_on()

    def test_the_scheduler_ends_it_where_that_was_wanted_and_the_audit_log_tells(
        self, frozen_clock: FrozenClock
    ) -> None:
        waiting = job()
        maintenance.start(reason="disks", lasting=HOUR, auto_end=True, by="user:ann")
        frozen_clock.advance(minutes=59)
        EndMaintenance().run_once(connection.alias)
        assert maintenance.is_on()
        assert not AuditEntry.objects.exists()
        frozen_clock.advance(minutes=1)
        Scheduler("test").run_once()
        assert not maintenance.is_on()
        (entry,) = AuditEntry.objects.all()
        assert (entry.actor, entry.action, entry.target_type, entry.door) == (
            "scheduler", "maintenance.stop", "maintenance", "scheduler"
        )  # fmt: skip
        assert entry.detail["reason"] == "disks"
        assert claim() == [waiting]

    def test_the_setting_decides_where_nobody_did(self, settings: Any, frozen_clock: FrozenClock) -> None:
        settings.OJS = {"MAINTENANCE_AUTO_END": True}
        assert not maintenance.start().auto_end  # no end is known
        assert maintenance.start(lasting=HOUR).auto_end
        assert not maintenance.start(auto_end=False).auto_end
        assert not maintenance.start(lasting=HOUR).auto_end  # as it was said before

    def test_an_end_that_is_put_off_comes_later(self, frozen_clock: FrozenClock) -> None:
        maintenance.start(lasting=HOUR, auto_end=True)
        frozen_clock.advance(minutes=50)
        maintenance.start(lasting=HOUR)
        frozen_clock.advance(minutes=50)
        assert not maintenance.end_if_over()
        frozen_clock.advance(minutes=10)
        assert maintenance.end_if_over()
        assert not maintenance.end_if_over()


@pytest.mark.postgres
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("by_itself", [False, True])
def test_sleeping_workers_are_woken_when_it_ends(frozen_clock: FrozenClock, *, by_itself: bool) -> None:
    beat(Beat("w"))
    Worker.objects.update(asleep=True)
    maintenance.start(lasting=HOUR, auto_end=by_itself)
    frozen_clock.advance(hours=1)
    with CaptureQueriesContext(connection) as captured:
        maintenance.end_if_over() if by_itself else maintenance.stop()
    assert "pg_notify" in captured[-1]["sql"]


@pytest.mark.usefixtures("long_memory")
def test_it_costs_a_fetch_no_statement() -> None:
    def statements(act: Callable[[], Any]) -> list[str]:
        with CaptureQueriesContext(connection) as captured:
            act()
        return [query["sql"] for query in captured]

    push([{"type": "a.b", "args": [number]} for number in range(40)])
    claim()
    asked = [sql for sql in statements(claim) if Maintenance._meta.db_table in sql]
    (look,) = asked
    assert "limited" in look  # it is the look that every FETCH begins with
    off = len(statements(claim))
    maintenance.start()
    assert len(statements(claim)) < off


@pytest.mark.django_db(transaction=True)
def test_a_fetch_that_begins_after_the_switch_gets_nothing_whatever_else_is_under_way() -> None:
    """Threads claim as fast as they can while the mode is switched on; none of what begins later finds a job."""
    push([{"type": "a.b", "args": [number]} for number in range(3000)])
    switched, stop = threading.Event(), threading.Event()
    late: list[int] = []
    claimed: list[int] = []

    def work() -> None:
        try:
            while not stop.is_set():
                is_late = switched.is_set() or (len(claimed) >= 1000 and switched.wait(60))  # there must be jobs left
                (late if is_late else claimed).append(len(fetch(Fetch(["default"], count=1))))
        finally:
            connections.close_all()

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        while sum(claimed) < 20:
            assert any(thread.is_alive() for thread in threads)
        maintenance.start()
        switched.set()
        while len(late) < 30:
            assert any(thread.is_alive() for thread in threads)
    finally:
        stop.set()
        for thread in threads:
            thread.join(60)
    assert sum(late) == 0
    assert Job.objects.filter(state="available").count() == 3000 - sum(claimed)
    maintenance.stop()
    assert len(claim()) == 10


@pytest.mark.django_db(transaction=True)
def test_two_switches_at_once_make_one_mode() -> None:
    barrier, failures = threading.Barrier(4), []

    def switch(number: int) -> None:
        try:
            barrier.wait(30)
            maintenance.start(reason=f"by {number}", by=f"user:{number}")
        except Exception as error:  # noqa: BLE001 - told below
            failures.append(error)
        finally:
            connections.close_all()

    threads = [threading.Thread(target=switch, args=[number]) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert failures == []
    assert Maintenance.objects.count() == 1
