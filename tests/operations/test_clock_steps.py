"""A host's wall clock is set while jobs run: nothing is lost, run twice, early or late because of it."""

from __future__ import annotations

import datetime as dt
import logging
import time
from types import SimpleNamespace
from typing import Any

import pytest
from django.db import connection
from django.db.models import F

from django_ojs import clock
from django_ojs.cron import schedules
from django_ojs.cron.runs import tick
from django_ojs.jobs import progress
from django_ojs.jobs.fetch import Fetch, fetch
from django_ojs.jobs.finish import Ack, Failure, ack_one, fail_one
from django_ojs.jobs.push import push
from django_ojs.jobs.read import info
from django_ojs.jobs.setright import set_right
from django_ojs.jobs.timers import apply_due
from django_ojs.limits import ratelimits
from django_ojs.models import CronSchedule, Event, Job, Lease, RateLimit, Ticket, Worker
from django_ojs.queues import configuration, deletion, maintenance
from django_ojs.scheduler import scheduler
from django_ojs.scheduler.scheduler import LEASE_SECONDS, Cron, Leadership, SetRight
from django_ojs.workerregistry import directory
from django_ojs.workerregistry.dead import dead_after, rescue_dead_workers
from django_ojs.workerregistry.heartbeat import Beat, beat
from django_ojs.workerregistry.registration import register
from tests.stepping import shifted

on_a_server = pytest.mark.skipif(connection.vendor == "sqlite", reason="SQLite has no clock but that of the host")
STEPS = pytest.mark.parametrize("seconds", [3600.0, 120.0, -3600.0])


class Host:
    """The clocks of this process: `step()` sets the wall clock, `wait()` lets time pass."""

    def __init__(self) -> None:
        self.wrong = 0.0
        self.passed = 0.0

    def step(self, seconds: float) -> None:
        self.wrong += seconds

    def wait(self, seconds: float) -> None:
        self.passed += seconds


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A host whose clock is right, until the test sets it."""
    found = Host()
    monkeypatch.setattr(clock, "dt", shifted(lambda: found.wrong + found.passed))
    ticks = getattr(clock, "_ticks", time.monotonic)
    monkeypatch.setattr(clock, "_ticks", lambda: ticks() + found.passed, raising=False)
    clock.forget()
    yield found
    clock.forget()


def job(**fields: Any) -> Any:
    (pushed,) = push([{"type": "a.b", "args": [], **fields}])
    assert pushed.row is not None
    return pushed.row["id"]


@pytest.mark.django_db
class TestAStep:
    @STEPS
    def test_takes_no_job_from_its_worker(self, host: Host, seconds: float) -> None:
        register("w", {"queues": ["default"]})
        held = job()
        assert [row["id"] for row in fetch(Fetch(["default"], worker_id="w", visibility_ms=30_000))] == [held]
        host.step(seconds)
        beat(Beat("w", [held]))
        assert (apply_due(), rescue_dead_workers()) == (0, 0)
        assert info(held)["visible_until"] - clock.now("default") < dt.timedelta(seconds=31)
        ack_one(Ack(held, worker_id="w"))
        row = info(held)
        assert (row["attempt"], row["losses"], row["state"]) == (1, 0, "completed")
        assert dt.timedelta() <= row["finished_at"] - row["started_at"] < dt.timedelta(seconds=100)

    @STEPS
    def test_starts_no_delayed_job_early_and_none_late(self, host: Host, seconds: float) -> None:
        clock.now("default")
        host.step(seconds)
        soon = job(scheduled_at=(dt.datetime.now(dt.UTC) + dt.timedelta(milliseconds=1)).isoformat())
        job(options={"delay_until": (dt.datetime.now(dt.UTC) + dt.timedelta(minutes=30)).isoformat()})
        host.wait(1)
        assert [row["id"] for row in fetch(Fetch(["default"], count=9))] == [soon]

    @STEPS
    def test_neither_gives_away_the_lease_nor_keeps_it_for_ever(self, host: Host, seconds: float) -> None:
        first, second = Leadership("scheduler", "first", "default"), Leadership("scheduler", "second", "default")
        assert first.run_once()
        host.step(seconds)
        assert not second.run_once()
        assert first.run_once()

    @STEPS
    def test_neither_fires_a_schedule_early_nor_silences_it(self, host: Host, seconds: float) -> None:
        schedules.register({"name": "a", "cron": "@every 20m", "type": "a.b"})
        host.step(seconds)
        assert tick() == 0
        assert CronSchedule.objects.get().wake_at - clock.now("default") < dt.timedelta(minutes=20)  # type: ignore[operator]

    def test_lets_no_ticket_or_key_outlive_its_time(self, host: Host) -> None:
        """What expires is judged by the time of the database in which it is."""
        from django_ojs import keys

        text, _ = keys.issue_ticket(None, None)
        Ticket.objects.update(expires_at=clock.now("default") - dt.timedelta(seconds=1))
        host.step(-3600)
        assert keys.redeem_ticket(text) is None


@on_a_server
@pytest.mark.django_db
class TestAServerDatabase:
    @STEPS
    def test_is_asked_again_and_the_wall_clock_does_not_matter(self, host: Host, seconds: float) -> None:
        before = clock.now("default")
        host.step(seconds)
        clock.forget()
        assert abs(clock.now("default") - before) < dt.timedelta(seconds=100)
        assert abs(clock.now() - before) < dt.timedelta(seconds=100), "without a name it is the one asked last"

    def test_goes_on_between_two_questions(
        self, host: Host, monkeypatch: pytest.MonkeyPatch, django_assert_num_queries: Any
    ) -> None:
        """Time passes only when the test lets it."""
        monkeypatch.setattr(clock, "_ticks", lambda: host.passed)
        monkeypatch.setattr(clock, "_RESYNC_SECONDS", 60.0)
        clock.forget()
        before = clock.now("default")
        with django_assert_num_queries(0):
            host.wait(59)
            assert dt.timedelta(seconds=59) <= clock.now("default") - before < dt.timedelta(seconds=79)
        with django_assert_num_queries(1):
            host.wait(1)
            clock.now("default")
            clock.now("default")

    @pytest.mark.parametrize("seconds", [3600, -3600])
    @pytest.mark.parametrize("first", [apply_due, rescue_dead_workers])
    def test_that_is_set_takes_no_job_from_a_worker_that_lives(
        self, host: Host, monkeypatch: pytest.MonkeyPatch, seconds: int, first: Any
    ) -> None:
        """Each process notices it by itself, within a minute: until then some renew their jobs by another time."""
        moved, question = dt.timedelta(), clock._question

        def asked(using: str) -> Any:
            answer = question(using)
            shift = moved + dt.timedelta(seconds=host.passed)
            return answer._replace(theirs=answer.theirs + shift, wall=answer.wall + shift)

        monkeypatch.setattr(clock, "_question", asked)
        clock.forget()
        register("w", {"queues": ["default"]})
        held = job()
        fetch(Fetch(["default"], worker_id="w", visibility_ms=30_000))
        moved = dt.timedelta(seconds=seconds)
        if seconds < 0:  # the process of the worker has noticed it
            Worker.objects.update(last_heartbeat_at=F("last_heartbeat_at") + moved)
            Job.objects.update(visible_until=F("visible_until") + moved, wake_at=F("visible_until") + moved)
        host.wait(2)
        assert (first(), apply_due(), rescue_dead_workers()) == (0, 0, 0)
        assert info(held)["state"] == "active"
        host.wait(clock._SET_SECONDS)
        assert first() + apply_due() + rescue_dead_workers() == 1, "it has died in fact"


class TestAHost:
    """The clock of SQLite, and of what names no database."""

    @pytest.fixture(autouse=True)
    def _still(self, host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
        """Time passes only when the test lets it."""
        start = dt.datetime(2026, 1, 15, 12, tzinfo=dt.UTC)
        monkeypatch.setattr(clock, "_ticks", lambda: host.passed)
        monkeypatch.setattr(clock, "_wall", lambda: start + dt.timedelta(seconds=host.passed + host.wrong))

    @pytest.mark.parametrize("seconds", [3600.0, -3600.0, 31536000.0])
    def test_follows_slowly_never_back_and_arrives(
        self, host: Host, seconds: float, caplog: pytest.LogCaptureFixture
    ) -> None:
        before = clock.now()
        host.step(seconds)
        with caplog.at_level(logging.WARNING):
            for _ in range(50):
                host.wait(10)
                now = clock.now()
                assert dt.timedelta(seconds=9.4) < now - before < dt.timedelta(seconds=10.6)
                before = now
        assert [record.levelname for record in caplog.records] == ["WARNING"], "it is said once"
        host.step(-seconds + (90 if seconds > 0 else -90))
        for _ in range(60):
            host.wait(60)
            clock.now()
        assert clock.now() == clock._wall()

    def test_a_process_that_seldom_asks_leaps_no_further(self, host: Host) -> None:
        before = clock.now()
        host.step(3600)
        host.wait(7200)
        assert clock.now() - before == dt.timedelta(seconds=7200)
        host.wait(7200)
        assert clock.now() - before == dt.timedelta(seconds=14403)


@pytest.mark.django_db
class TestAClockThatWasAhead:
    def test_leaves_no_lease_that_lasts_until_it_is_there_again(self, frozen_clock: Any) -> None:
        Leadership("scheduler", "old", "default").run_once()
        frozen_clock.advance(seconds=-3600)
        assert Leadership("scheduler", "new", "default").run_once()
        assert Lease.objects.get().expires_at == frozen_clock.now + dt.timedelta(seconds=LEASE_SECONDS)

    @pytest.mark.parametrize("expression", ["* * * * *", "@every 1m", "30 9 * * *"])
    def test_leaves_no_schedule_silent_until_it_is_there_again(self, frozen_clock: Any, expression: str) -> None:
        start = frozen_clock.now
        schedules.register({"name": "a", "cron": expression, "type": "a.b"})
        due = CronSchedule.objects.get().wake_at
        frozen_clock.advance(days=365)
        Cron().run_once("default")
        frozen_clock.move_to(start)
        Cron().run_once("default")
        assert CronSchedule.objects.get().wake_at == due

    def test_by_less_than_a_moment_fires_nothing_twice(self, frozen_clock: Any) -> None:
        schedules.register({"name": "a", "cron": "* * * * *", "type": "a.b"})
        frozen_clock.advance(seconds=60)
        assert tick() == 1
        frozen_clock.advance(milliseconds=-500)
        assert schedules.aim_again() == 0
        frozen_clock.advance(milliseconds=600)
        assert tick() == 0

    @pytest.mark.parametrize("limit", ["rate", "throttle"])
    @pytest.mark.parametrize("named", [{"key": "mail"}, {}])
    def test_leaves_no_limit_shut_until_it_is_there_again(
        self, frozen_clock: Any, limit: str, named: dict[str, str]
    ) -> None:
        job = {"type": "a.b", "args": [], "rate_limit": {**named, limit: {"limit": 1, "period": "PT1M"}}}
        push([job] * 4)
        start = frozen_clock.now
        frozen_clock.advance(days=1)
        assert len(fetch(Fetch(["default"]))) == 1
        frozen_clock.move_to(start)
        configuration.forget()
        push([job])
        if named:
            assert "next_allowed_at" not in ratelimits.inspect("mail").get("throttle", {})
            assert ratelimits.inspect("mail").get("rate", {}).get("current_count", 0) == 0
        for more in (1, 0, 0):
            assert len(fetch(Fetch(["default"]))) == more, "one a minute from now on"
        frozen_clock.advance(seconds=61)
        assert len(fetch(Fetch(["default"]))) == 1

    @pytest.mark.parametrize("by", ["an override", "the end of one", "its removal", "a block", "a lifted block"])
    def test_leaves_no_throttle_shut_that_is_written_before_the_next_start(self, frozen_clock: Any, by: str) -> None:
        limit = {"throttle": {"limit": 1, "period": "PT1M"}}
        push([{"type": "a.b", "args": [], "rate_limit": {"key": "mail", **limit}}] * 2)
        start = frozen_clock.now
        frozen_clock.advance(days=1)
        assert len(fetch(Fetch(["default"]))) == 1
        frozen_clock.move_to(start)
        configuration.forget()
        if by in ("a block", "a lifted block"):
            ratelimits.block({"mail": start + dt.timedelta(seconds=5)}, start, "default")
            if by == "a lifted block":
                ratelimits.lift("mail")
            frozen_clock.advance(seconds=6)
        else:
            ratelimits.override("mail", {**limit, "expires_at": (start + dt.timedelta(seconds=5)).isoformat()})
            if by == "its removal":
                ratelimits.clear_override("mail")
            if by == "the end of one":
                frozen_clock.advance(seconds=6)
                ratelimits.prune(frozen_clock.now, 1000, "default")
        assert len(fetch(Fetch(["default"]))) == 1

    @pytest.mark.parametrize("then", ["nothing", "a start", "another report"])
    def test_leaves_no_key_blocked_until_it_is_there_again(self, frozen_clock: Any, then: str) -> None:
        limit = {"key": "mail", "throttle": {"limit": 1, "period": "PT1M"}}
        push([{"type": "a.b", "args": [], "rate_limit": limit}] * 3)
        start = frozen_clock.now
        frozen_clock.advance(days=1)
        now = frozen_clock.now
        ratelimits.block({"mail": now + dt.timedelta(minutes=5)}, now, "default")
        assert fetch(Fetch(["default"])) == []
        frozen_clock.move_to(start)
        configuration.forget()
        if then == "another report":
            ratelimits.block({"mail": start + dt.timedelta(seconds=5)}, start, "default")
            assert ratelimits.inspect("mail")["blocked_until"] == "2026-01-15T12:00:05.000Z"
            assert fetch(Fetch(["default"])) == []
            frozen_clock.advance(seconds=6)
        assert "blocked_until" not in ratelimits.inspect("mail")
        assert not RateLimit.objects.filter(ratelimits.blocked(frozen_clock.now)).exists()
        assert len(fetch(Fetch(["default"]))) == 1
        if then == "a start":
            frozen_clock.advance(seconds=61)
            assert len(fetch(Fetch(["default"]))) == 1

    def test_leaves_no_dead_worker_that_counts_as_alive(self, frozen_clock: Any) -> None:
        held, start = job(), frozen_clock.now
        frozen_clock.advance(days=365)
        register("w", {"queues": ["default"]})
        fetch(Fetch(["default"], worker_id="w"))
        beat(Beat("w", [held]))
        frozen_clock.move_to(start)
        assert rescue_dead_workers() == 0
        assert {worker.pk for worker in directory.connected("default")} == {"w"}
        frozen_clock.advance(seconds=dead_after() - 1)
        assert rescue_dead_workers() == 0
        frozen_clock.advance(seconds=2)
        assert rescue_dead_workers() == 1
        assert info(held)["state"] == "available"
        assert not directory.connected("default").exists()

    def test_leaves_a_worker_that_lives_alone(self, frozen_clock: Any) -> None:
        held, start = job(), frozen_clock.now
        frozen_clock.advance(days=1)
        register("w", {"queues": ["default"]})
        fetch(Fetch(["default"], worker_id="w"))
        frozen_clock.move_to(start)
        for _ in range(9):
            assert rescue_dead_workers() == 0
            frozen_clock.advance(seconds=dead_after() - 1)
            assert beat(Beat("w", [held])).extended == [held]

    def test_leaves_no_retry_that_waits_until_it_is_there_again(self, frozen_clock: Any) -> None:
        policy = {"max_attempts": 9, "initial_interval": "PT10M", "backoff_strategy": "constant", "jitter": False}
        failed, waits = job(retry=policy), job(retry=policy)
        later = job(scheduled_at=(frozen_clock.now + dt.timedelta(days=9)).isoformat())
        due = info(later)["due_at"]
        fetch(Fetch(["default"], count=2))
        start = frozen_clock.now
        fail_one(Failure(waits, {"message": "no"}))
        before = info(waits)
        frozen_clock.advance(days=365)
        fail_one(Failure(failed, {"message": "no"}))
        frozen_clock.move_to(start)
        SetRight().run_once("default")
        assert info(failed)["due_at"] == info(failed)["wake_at"] == start + dt.timedelta(minutes=10)
        assert info(waits) == before
        assert info(later)["due_at"] == due
        frozen_clock.advance(minutes=10)
        assert len(fetch(Fetch(["default"], count=9))) == 2

    def test_leaves_no_reservation_that_lasts_until_it_is_there_again(self, frozen_clock: Any) -> None:
        held, start = job(), frozen_clock.now
        frozen_clock.advance(days=365)
        fetch(Fetch(["default"], visibility_ms=30_000))
        frozen_clock.move_to(start)
        assert set_right() == 1
        assert (info(held)["started_at"], info(held)["attempt"]) == (start, 1)
        frozen_clock.advance(seconds=29)
        assert apply_due() == 0
        frozen_clock.advance(seconds=2)
        assert apply_due() == 1
        assert info(held)["state"] == "available"

    def test_leaves_no_job_behind_all_that_come_later(self, frozen_clock: Any) -> None:
        start = frozen_clock.now
        frozen_clock.advance(days=365)
        first, second = job(), job()
        frozen_clock.move_to(start)
        assert (set_right(), set_right()) == (2, 0)
        third = job()
        given = [fetch(Fetch(["default"]))[0] for _ in range(3)]
        assert [row["id"] for row in given] == [first, second, third]
        assert {row["started_at"] - start < dt.timedelta(seconds=1) for row in given} == {True}

    def test_leaves_no_job_put_off_by_a_limit_until_it_is_there_again(
        self, frozen_clock: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        limit = {"key": "mail", "throttle": {"limit": 1, "period": "PT1M"}, "on_limit": "reschedule"}
        job(rate_limit=limit)
        put_off, start = job(rate_limit=limit), frozen_clock.now
        frozen_clock.advance(days=1)
        assert len(fetch(Fetch(["default"], count=2))) == 1
        assert info(put_off)["due_at"] > frozen_clock.now
        frozen_clock.move_to(start)
        before = info(put_off)
        monkeypatch.setattr(clock, "times_set_back", lambda using: 0)
        assert set_right() == 1, "the other one: a limit may put a job off for so long by itself"
        assert info(put_off) == before
        monkeypatch.setattr(clock, "times_set_back", lambda using: 1)
        assert set_right() == 1
        assert [row["id"] for row in fetch(Fetch(["default"]))] == [put_off]

    def test_is_looked_for_when_a_process_leads_and_when_it_was_set_back(
        self, frozen_clock: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        looks: list[str] = []
        passed, terms = 0.0, 1
        monkeypatch.setattr(scheduler, "set_right", lambda **named: looks.append(named["using"]))
        monkeypatch.setattr(scheduler, "time", SimpleNamespace(monotonic=lambda: passed))
        duty = SetRight(lambda: terms)

        def looked() -> int:
            before = len(looks)
            for _ in range(2):
                duty.run_once("default")
            return len(looks) - before

        assert looked() == 1
        passed += SetRight.AGAIN
        assert looked() == 1, "as other processes may have gone by the old clock for a while"
        passed += 9 * SetRight.AGAIN
        assert looked() == 0
        clock._set_back["default"] += 1
        assert looked() == 1
        terms += 1
        assert looked() == 1

    @pytest.mark.parametrize("lasting", [dt.timedelta(minutes=5), None])
    def test_leaves_no_maintenance_on_until_it_is_there_again(
        self, frozen_clock: Any, lasting: dt.timedelta | None
    ) -> None:
        start = frozen_clock.now
        frozen_clock.advance(days=365)
        maintenance.start(lasting=lasting, auto_end=bool(lasting))
        frozen_clock.move_to(start)
        assert not maintenance.end_if_over()
        mode = maintenance.current()
        assert mode is not None
        assert (mode.enabled_at, mode.estimated_end) == (start, lasting and start + lasting)
        frozen_clock.advance(minutes=5)
        assert maintenance.end_if_over() is bool(lasting)

    def test_leaves_no_progress_untold_until_it_is_there_again(self, frozen_clock: Any, monkeypatch: Any) -> None:
        monkeypatch.setattr(progress, "BURST", 1)
        held, start = job(), frozen_clock.now
        fetch(Fetch(["default"], worker_id="w"))

        def told(percent: float) -> bool:
            before = Event.objects.filter(type="job.progress").count()
            progress.report([progress.ProgressReport(held, percent=percent)])
            progress.log_postponed()
            return Event.objects.filter(type="job.progress").count() > before

        frozen_clock.advance(days=1)
        assert told(10)
        frozen_clock.move_to(start)
        assert not told(20), "within a second, as far as is known"
        frozen_clock.advance(seconds=1)
        assert told(30)
        assert not told(40), "within a second"

    def test_leaves_no_queue_that_is_never_removed(self, frozen_clock: Any) -> None:
        push([{"type": "a.b", "queue": "q", "args": []}])
        start = frozen_clock.now
        frozen_clock.advance(days=1)
        deletion._begin("q", "discard", "q", None, using="default")  # whose process dies
        frozen_clock.move_to(start)
        assert deletion.finish_removals() == 2
