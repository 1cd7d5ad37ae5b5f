"""Schedules through the operations: what registering does, and what the tick makes of it, on every database."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest

from django_ojs import clock
from django_ojs.cron import runs, schedules
from django_ojs.cron.runs import tick, trigger
from django_ojs.errors import Conflict, InvalidRequest, MiddlewareRejected, NotFound
from django_ojs.events import log
from django_ojs.jobs.cancel import cancel_one
from django_ojs.jobs.fetch import Fetch, fetch
from django_ojs.jobs.finish import Ack, Failure, ack_one, fail_one
from django_ojs.models import CronRun, CronSchedule, Job
from django_ojs.queues.configuration import pause
from django_ojs.retention import prune
from django_ojs.rules.cron import OverlapPolicy
from django_ojs.rules.redaction import MASK
from django_ojs.scheduler.scheduler import Cron
from tests.middlewares import added

pytestmark = pytest.mark.django_db

UTC = dt.UTC


def make(name: str = "report", expression: str = "* * * * *", **members: Any) -> CronSchedule:
    return schedules.register({"name": name, "cron": expression, "type": "report.make", **members})[0]


def jobs() -> list[dict[str, Any]]:
    return list(Job.objects.order_by("created_at", "pk").values("id", "state", "meta", "queue", "args"))


def events(*types: str) -> list[dict[str, Any]]:
    return log.read(types=types or ["cron.*"], limit=1000).events


def claimed(queue: str = "default", count: int = 10) -> list[Any]:
    return [row["id"] for row in fetch(Fetch([queue], count=count, worker_id="w"))]


class TestRegister:
    def test_a_new_schedule_knows_when_it_runs_next(self, frozen_clock: Any) -> None:
        schedule, new = schedules.register(
            {"name": "a", "cron": "0 9 * * *", "type": "a.b", "timezone": "America/New_York"}
        )
        assert new
        assert schedule.next_run_at == dt.datetime(2026, 1, 15, 14, tzinfo=UTC)
        assert (schedule.overlap_policy, schedule.enabled, schedule.run_count) == ("skip", True, 0)

    def test_the_same_name_again_changes_it_and_keeps_what_happened(self, frozen_clock: Any) -> None:
        born = make().created_at
        frozen_clock.advance(seconds=60)
        tick()
        schedule, new = schedules.register({"name": "report", "cron": "0 * * * *", "type": "report.other", "args": [1]})
        assert not new
        schedule.refresh_from_db()
        assert (schedule.created_at, schedule.run_count, schedule.last_run_at) == (born, 1, frozen_clock.now)
        assert (schedule.type, schedule.document["args"]) == ("report.other", [1])
        assert schedule.next_run_at == dt.datetime(2026, 1, 15, 13, tzinfo=UTC)

    def test_registering_again_does_not_lose_what_is_due(self, frozen_clock: Any) -> None:
        """A program that registers at each start, after a downtime."""
        make("clock")
        make("period", "@every 10m")
        frozen_clock.advance(hours=1)
        make("clock")
        make("period", "@every 10m")
        assert tick() == 2

    def test_registering_again_does_not_put_off_a_period(self, frozen_clock: Any) -> None:
        due = make("period", "@every 10m").next_run_at
        frozen_clock.advance(minutes=7)
        assert make("period", "@every 10m", args=[1]).next_run_at == due

    def test_what_is_refused_leaves_nothing(self) -> None:
        for members in ({"expression": "61 * * * *"}, {"timezone": "EST"}, {"name": "A"}, {"type": "Not A Type"}):
            with pytest.raises(InvalidRequest):
                schedules.register({"name": "a", "type": "a.b", "expression": "@daily", **members})
        assert not CronSchedule.objects.exists()

    def test_delay_and_overlap_policy_enqueue_exclude_each_other(self) -> None:
        with pytest.raises(InvalidRequest, match="overlap_policy: cannot be enqueue"):
            make(overlap_policy="enqueue", options={"delay_until": "+PT5S"})

    def test_an_unknown_name_is_not_found(self) -> None:
        for act in (schedules.get, schedules.delete, trigger, schedules.history):
            with pytest.raises(NotFound):
                act("nobody")


class TestTick:
    def test_nothing_before_the_time_and_one_job_at_it(self, frozen_clock: Any) -> None:
        make(args=[{"n": 1.0}], options={"queue": "q", "priority": 5}, meta={"team": "x"})
        frozen_clock.advance(seconds=59.999)
        assert tick() == 0
        frozen_clock.advance(milliseconds=1)
        assert tick() == 1
        assert tick() == 0
        (row,) = fetch(Fetch(["q"], count=5))
        job = Job.objects.get(pk=row["id"])
        assert (job.priority, job.args) == (5, [{"n": 1.0}])
        assert job.meta == {"team": "x", "cron_name": "report", "cron_triggered_at": "2026-01-15T12:01:00.000Z"}

    def test_the_marks_survive_a_meta_inside_options(self, frozen_clock: Any) -> None:
        make(options={"meta": {"cron_name": "mine", "kept": 1}})
        frozen_clock.advance(minutes=1)
        tick()
        assert jobs()[0]["meta"]["cron_name"] == "report"
        assert jobs()[0]["meta"]["kept"] == 1

    def test_both_events_in_their_order(self, frozen_clock: Any) -> None:
        make()
        frozen_clock.advance(seconds=60.5)
        tick()
        first, second = log.read(limit=10).events
        assert (first["type"], second["type"]) == ("job.enqueued", "cron.triggered")
        assert second["subject"] == "report"
        assert second["source"].endswith("/cron")
        job_id = first["data"]["job_id"]
        assert second["data"] == {
            "queue": "default", "timestamp": "2026-01-15T12:01:00.500Z", "cron_name": "report",
            "cron_expr": "* * * * *", "cron_expression": "* * * * *", "timezone": "UTC", "job_type": "report.make",
            "scheduled_at": "2026-01-15T12:01:00.000Z", "scheduled_time": "2026-01-15T12:01:00.000Z",
            "next_at": "2026-01-15T12:02:00.000Z", "job_id": job_id, "run_count": 1,
            "actual_time": "2026-01-15T12:01:00.500Z",
        }  # fmt: skip

    def test_one_catch_up_after_a_downtime(self, frozen_clock: Any) -> None:
        make(overlap_policy="allow")
        make("period", "@every 10m", overlap_policy="allow")
        frozen_clock.advance(hours=3, minutes=5)
        assert tick() == 2
        assert tick() == 0
        assert len(jobs()) == 2
        assert schedules.get("report").next_run_at == dt.datetime(2026, 1, 15, 15, 6, tzinfo=UTC)
        assert schedules.get("period").next_run_at == dt.datetime(2026, 1, 15, 15, 10, tzinfo=UTC), "the grid is kept"

    def test_what_was_missed_while_disabled_is_not_made_up_for(self, frozen_clock: Any) -> None:
        make()
        schedule = schedules.set_enabled("report", False)
        assert (schedule.next_run_at, schedule.status) == (None, "paused")
        frozen_clock.advance(hours=1)
        assert tick() == 0
        schedules.set_enabled("report", True)
        assert tick() == 0
        frozen_clock.advance(minutes=1)
        assert tick() == 1

    def test_a_paused_queue_gets_its_jobs_and_keeps_them(self, frozen_clock: Any) -> None:
        make()
        pause("default")
        frozen_clock.advance(minutes=1)
        tick()
        assert len(jobs()) == 1
        assert claimed() == []

    def test_a_deleted_schedule_leaves_its_jobs(self, frozen_clock: Any) -> None:
        make()
        frozen_clock.advance(minutes=1)
        tick()
        schedules.delete("report")
        frozen_clock.advance(minutes=1)
        assert tick() == 0
        assert len(claimed()) == 1

    def test_who_read_the_schedule_before_somebody_fired_it_does_nothing(
        self, frozen_clock: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        make(overlap_policy="allow")
        frozen_clock.advance(minutes=1)
        stale = schedules.get("report")
        assert tick() == 1
        from django_ojs.cron import runs

        assert runs._tick(stale, "default") is False
        assert len(jobs()) == 1

    def test_who_read_the_schedule_before_somebody_changed_it_does_nothing(self, frozen_clock: Any) -> None:
        make()
        frozen_clock.advance(minutes=1)
        stale = schedules.get("report")
        schedules.update("report", {"args": ["new"]})
        from django_ojs.cron import runs

        assert runs._tick(stale, "default") is False
        assert tick() == 1
        assert jobs()[0]["args"] == ["new"]

    def test_a_crash_between_claim_and_push_leaves_the_tick_to_the_next_look(
        self, frozen_clock: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        make()
        frozen_clock.advance(minutes=1)
        before = CronSchedule.objects.values().get()

        class Killed(BaseException):
            pass

        def die(*args: Any, **kwargs: Any) -> None:
            assert CronSchedule.objects.get().wake_at > frozen_clock.now, "the tick is claimed"
            raise Killed

        with monkeypatch.context() as patch:
            patch.setattr("django_ojs.cron.runs.push", die)
            with pytest.raises(Killed):
                tick()
        assert CronSchedule.objects.values().get() == before
        assert not Job.objects.exists()
        assert events() == []
        assert tick() == 1
        assert len(jobs()) == 1

    def test_a_schedule_whose_job_is_refused_is_skipped_and_does_not_stop_the_others(
        self, frozen_clock: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for name in ("broken", "dropped", "refused", "sound"):
            make(name, args=[name])

        def awkward(job: dict[str, Any], next: Any) -> Any:
            match job["args"][0]:
                case "broken":
                    raise LookupError("secret words")
                case "refused":
                    raise MiddlewareRejected("not today")
                case "dropped":
                    return None
            return next(job)

        with added(awkward):
            frozen_clock.advance(minutes=1)
            assert tick() == 4
        assert [job["args"] for job in jobs()] == [["sound"]]
        found = {event["subject"]: event["data"] for event in events("cron.skipped")}
        assert {name: data["reason"] for name, data in found.items()} == {
            "broken": "enqueue_failed", "dropped": "enqueue_dropped", "refused": "enqueue_rejected",
        }  # fmt: skip
        assert found["refused"]["error"]["message"] == "not today"
        assert "secret" not in str(found["broken"]), "what a site's own code says stays in its log"
        assert CronSchedule.objects.filter(wake_at__gt=frozen_clock.now).count() == 4

    @pytest.mark.parametrize("part", ["args", "meta"])
    @pytest.mark.parametrize(
        "error, line, message",
        [
            (InvalidRequest("There is no customer hunter2."), "made no job: invalid_request", MASK),
            (LookupError("hunter2"), "this occurrence is lost: LookupError", "LookupError"),
        ],
        ids=["refusal", "fault"],
    )
    def test_neither_the_log_nor_the_event_repeats_what_is_hidden(
        self, frozen_clock: Any, caplog: Any, settings: Any, error: Exception, line: str, message: str, part: str
    ) -> None:
        def refuse(job: Any, following: Any) -> Any:
            raise error

        def told() -> str:
            caplog.clear()
            with added(refuse):
                frozen_clock.advance(minutes=1)
                tick()
            assert line in caplog.text
            return caplog.text

        make()
        assert "hunter2" in told()
        settings.OJS = {"REDACT": {"types": {"report.*": [part]}}}
        assert "hunter2" not in told()
        assert events("cron.skipped")[-1]["data"]["error"]["message"] == message

    def test_a_schedule_that_cannot_be_read_any_more_is_disabled(self, frozen_clock: Any, caplog: Any) -> None:
        make()
        CronSchedule.objects.update(timezone="Gone/Forever")
        frozen_clock.advance(minutes=1)
        tick()
        assert not schedules.get("report").enabled
        assert events()[0]["data"]["reason"] == "disabled"
        assert "is disabled" in caplog.text

    def test_one_that_cannot_be_read_any_more_is_shown_and_can_be_disabled(self, admin_client: Any) -> None:
        make()
        CronSchedule.objects.update(timezone="Gone/Forever")
        assert admin_client.get("/admin/django_ojs/cronschedule/report/change/").status_code == 200
        schedules.set_enabled("report", False)
        schedules.update("report", {"description": "no more"})
        with pytest.raises(InvalidRequest, match="timezone"):
            schedules.set_enabled("report", True)
        schedules.update("report", {"enabled": True, "timezone": "Europe/Paris"})

    def test_one_whose_job_the_site_allows_no_more_can_be_disabled(self) -> None:
        make()
        CronSchedule.objects.update(template={"type": "report.make", "args": [], "priority": "GONE"})
        schedules.set_enabled("report", False)
        schedules.update("report", {"description": "no more"})
        assert schedules.get("report").document["priority"] == "GONE"
        with pytest.raises(InvalidRequest, match="priority"):
            schedules.set_enabled("report", True)
        schedules.update("report", {"enabled": True, "priority": 1})

    def test_one_that_cannot_be_read_and_fired_by_a_clock_ahead_stops_no_other(self, frozen_clock: Any) -> None:
        make("gone")
        make("sound")
        frozen_clock.advance(days=1)
        tick()
        frozen_clock.advance(days=-1)
        CronSchedule.objects.filter(pk="gone").update(timezone="Gone/Forever")
        cron = Cron()
        cron.run_once("default")
        cron.run_once("default")
        assert not schedules.get("gone").enabled
        assert schedules.get("sound").next_run_at == frozen_clock.now + dt.timedelta(minutes=1)


class TestClockChanges:
    def test_what_a_clock_skips_is_told_when_it_skips_it(self, frozen_clock: Any) -> None:
        frozen_clock.move_to(dt.datetime(2026, 3, 7, 12, tzinfo=UTC))
        schedule = make(expression="30 2 * * *", timezone="America/New_York")
        assert schedule.next_run_at == dt.datetime(2026, 3, 9, 6, 30, tzinfo=UTC)
        frozen_clock.move_to(dt.datetime(2026, 3, 8, 6, 59, 59, tzinfo=UTC))
        assert tick() == 0
        frozen_clock.advance(seconds=1)
        assert tick() == 1
        assert jobs() == []
        (event,) = events()
        assert event["type"] == "cron.skipped"
        assert event["data"]["reason"] == event["data"]["reason_code"] == "dst_skip"
        assert event["data"]["local_time"] == "2026-03-08T02:30:00"
        assert event["data"]["next_at"] == "2026-03-09T06:30:00.000Z"
        frozen_clock.move_to(dt.datetime(2026, 3, 9, 6, 30, tzinfo=UTC))
        assert tick() == 1
        assert len(jobs()) == 1
        assert schedules.get("report").run_count == 1

    def test_an_occurrence_right_after_the_gap_fires_beside_the_event(self, frozen_clock: Any) -> None:
        frozen_clock.move_to(dt.datetime(2026, 3, 8, 6, 45, tzinfo=UTC))
        make(expression="*/30 * * * *", timezone="America/New_York")
        frozen_clock.move_to(dt.datetime(2026, 3, 8, 7, 0, tzinfo=UTC))
        assert tick() == 1
        assert [event["type"] for event in events()] == ["cron.skipped", "cron.triggered"]

    def test_a_repeated_hour_fires_once(self, frozen_clock: Any) -> None:
        frozen_clock.move_to(dt.datetime(2026, 11, 1, 4, 45, tzinfo=UTC))
        make(expression="30 1 * * *", timezone="America/New_York", overlap_policy="allow")
        for _ in range(12):
            frozen_clock.advance(minutes=15)
            tick()
        assert [job["meta"]["cron_triggered_at"] for job in jobs()] == ["2026-11-01T05:30:00.000Z"]


class TestOverlap:
    @pytest.mark.parametrize("state", ["available", "active", "retryable"])
    def test_skip_waits_for_the_end_of_the_previous_run(self, frozen_clock: Any, state: str) -> None:
        make()
        frozen_clock.advance(minutes=1)
        tick()
        job_id = jobs()[0]["id"]
        if state != "available":
            assert claimed() == [job_id]
        if state == "retryable":
            fail_one(Failure(job_id, {"type": "Boom", "message": "no"}))
        frozen_clock.advance(minutes=1)
        assert tick() == 1
        assert len(jobs()) == 1
        skipped = events("cron.skipped")[0]["data"]
        assert (skipped["reason"], skipped["reason_code"]) == ("overlap_prevention", "overlap_skip")
        assert skipped["existing_job_id"] == skipped["active_job_id"] == str(job_id)
        assert skipped["next_at"] == "2026-01-15T12:03:00.000Z"
        assert schedules.get("report").run_count == 1
        cancel_one(job_id)
        frozen_clock.advance(minutes=1)
        tick()
        assert len(jobs()) == 2

    def test_skip_sees_jobs_of_a_deleted_schedule_of_the_same_name(self, frozen_clock: Any) -> None:
        make()
        frozen_clock.advance(minutes=1)
        tick()
        schedules.delete("report")
        make()
        frozen_clock.advance(minutes=1)
        tick()
        assert len(jobs()) == 1

    def test_allow_does_not_care(self, frozen_clock: Any) -> None:
        make(overlap_policy="allow")
        for _ in range(3):
            frozen_clock.advance(minutes=1)
            tick()
        assert len(claimed()) == 3

    @pytest.mark.parametrize("name", ["cancel_previous", "replace"])
    def test_cancel_previous_leaves_the_new_one_alone(self, frozen_clock: Any, name: str) -> None:
        assert make(overlap_policy=name).overlap_policy == OverlapPolicy.CANCEL_PREVIOUS
        for _ in range(3):
            frozen_clock.advance(minutes=1)
            tick()
            claimed()
        assert [job["state"] for job in jobs()] == ["cancelled", "cancelled", "active"]
        assert events("job.cancelled")[0]["data"]["cancelled_by"] == "cron:report"

    def test_cancel_previous_of_one_that_has_ended_is_nothing(self, frozen_clock: Any) -> None:
        make(overlap_policy="cancel_previous")
        frozen_clock.advance(minutes=1)
        tick()
        ack_one(Ack(claimed()[0]))
        frozen_clock.advance(minutes=1)
        tick()
        assert [job["state"] for job in jobs()] == ["completed", "available"]

    @pytest.mark.parametrize("refuses", ["dropped", "duplicate"])
    def test_cancel_previous_cancels_nothing_where_no_run_begins(self, frozen_clock: Any, refuses: str) -> None:
        unique = {"keys": ["type"], "on_conflict": "ignore", "states": ["cancelled", "active"]}
        make(overlap_policy="cancel_previous", **({"options": {"unique": unique}} if refuses == "duplicate" else {}))
        frozen_clock.advance(minutes=1)
        tick()
        (first,) = claimed()

        def drop(job: dict[str, Any], further: Any) -> Any:
            return further(job) if refuses == "duplicate" else None

        with added(drop):
            frozen_clock.advance(minutes=1)
            tick()
        assert [(job["id"], job["state"]) for job in jobs()] == [(first, "active")]
        assert events("cron.skipped")[0]["data"]["reason_code"] == refuses
        assert events("job.cancelled") == []


class TestEnqueuePolicy:
    """Available, and yet not handed out while another run is active."""

    @pytest.fixture(autouse=True)
    def _three(self, frozen_clock: Any) -> None:
        make(overlap_policy="queue")
        for _ in range(3):
            frozen_clock.advance(minutes=1)
            tick()

    def test_they_are_all_available_and_only_the_first_is_handed_out(self) -> None:
        assert [job["state"] for job in jobs()] == ["available"] * 3
        assert len(claimed()) == 1
        assert claimed() == []

    def test_the_end_of_one_hands_out_the_next_whatever_the_end(self) -> None:
        (first,) = claimed()
        ack_one(Ack(first))
        (second,) = claimed()
        fail_one(Failure(second, {"type": "Boom", "message": "no", "retryable": False}))
        (third,) = claimed()
        assert [first, second, third] == [job["id"] for job in jobs()]
        cancel_one(third)
        assert claimed() == []
        assert not CronRun.objects.filter(held=True).exists()

    def test_a_retry_is_still_the_run_that_goes_first(self, frozen_clock: Any) -> None:
        (first,) = claimed()
        fail_one(Failure(first, {"type": "Boom", "message": "no"}))
        assert claimed() == []
        frozen_clock.advance(hours=1)
        assert claimed() == [first]

    def test_one_that_is_cancelled_while_it_waits_holds_nobody(self) -> None:
        (first,) = claimed()
        _, second, third = (job["id"] for job in jobs())
        cancel_one(second)
        ack_one(Ack(first))
        assert claimed() == [third]

    def test_the_scheduler_lets_go_too(self) -> None:
        ack_one(Ack(claimed()[0]))
        Cron().run_once("default")
        assert Job.objects.filter(state="available", due_at=None).count() == 1

    def test_two_that_let_go_at_once_let_one_go(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The second chose the same head before the first had its lock, and by now that one is active."""
        ack_one(Ack(claimed()[0]))
        let_go = runs._let_go
        taken: list[Any] = []

        def slow(runs: Any, using: str) -> int:
            monkeypatch.undo()
            chosen = runs.model.objects.filter(pk__in=list(runs.values_list("pk", flat=True)))
            taken.extend(claimed())
            return let_go(chosen, using)

        monkeypatch.setattr(runs, "_let_go", slow)
        assert runs.let_next_go() == 0
        assert len(taken) == 1
        assert claimed() == []

    def test_other_queues_are_not_looked_at(self) -> None:
        ack_one(Ack(claimed()[0]))
        runs.let_next_go(["another"])
        assert CronRun.objects.filter(held=True).count() == 2

    def test_the_first_goes_first_also_where_the_schedule_has_got_another_queue(self, frozen_clock: Any) -> None:
        (first,) = claimed()
        schedules.update("report", {"queue": "other"})
        frozen_clock.advance(minutes=1)
        tick()
        ack_one(Ack(first))
        assert claimed("other") == []
        assert claimed() == [jobs()[1]["id"]]

    def test_the_schedule_may_be_gone(self) -> None:
        schedules.delete("report")
        ack_one(Ack(claimed()[0]))
        assert len(claimed()) == 1

    def test_many_that_wait_are_warned_about(self, frozen_clock: Any, caplog: Any) -> None:
        frozen_clock.advance(minutes=1)
        tick()
        assert "3 runs of the schedule report wait" in caplog.text


class TestTrigger:
    def test_it_makes_a_job_and_moves_nothing(self, frozen_clock: Any) -> None:
        due = make().next_run_at
        frozen_clock.advance(seconds=10)
        schedule, row = trigger("report")
        assert schedule.next_run_at == due
        assert (schedule.run_count, schedule.last_run_at) == (1, frozen_clock.now)
        assert row["state"] == "available"
        assert [event["type"] for event in events("job.*", "cron.*")] == ["job.enqueued", "cron.triggered"]

    def test_it_works_on_a_disabled_schedule(self) -> None:
        make(enabled=False)
        assert trigger("report")[0].next_run_at is None
        assert events("cron.triggered")[0]["data"]["next_at"] is None

    def test_it_is_refused_while_a_run_lives_under_skip(self) -> None:
        make()
        _, row = trigger("report")
        with pytest.raises(Conflict) as refusal:
            trigger("report")
        assert refusal.value.details["existing_job_id"] == str(row["id"])
        assert len(jobs()) == 1

    def test_a_refusal_of_the_job_is_told_to_the_caller(self) -> None:
        def refuse(job: dict[str, Any], next: Any) -> Any:
            raise MiddlewareRejected("not today")

        make()
        with added(refuse), pytest.raises(MiddlewareRejected):
            trigger("report")
        assert schedules.get("report").run_count == 0


class TestRuns:
    def test_the_history_is_newest_first_and_bounded(self, frozen_clock: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(schedules, "KEPT_RUNS", 3)
        make()
        for _ in range(6):
            frozen_clock.advance(minutes=1)
            tick()
            ack_one(Ack(claimed()[0]))
        runs = schedules.history("report")
        assert [run.scheduled_at.minute for run in runs] == [6, 5, 4]
        assert CronRun.objects.count() == 3

    def test_runs_that_live_are_never_forgotten(self, frozen_clock: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(schedules, "KEPT_RUNS", 2)
        make(overlap_policy="allow")
        for _ in range(5):
            frozen_clock.advance(minutes=1)
            tick()
        assert CronRun.objects.count() == 5

    def test_pruned_jobs_take_their_runs_along(self, frozen_clock: Any) -> None:
        make()
        trigger("report")
        ack_one(Ack(claimed()[0]))
        frozen_clock.advance(days=8)
        assert prune()["cron_runs"] == 1
        assert not CronRun.objects.exists()


class TestLoop:
    def test_it_sleeps_until_the_next_and_never_longer_than_a_second(self, frozen_clock: Any) -> None:
        loop = Cron()
        assert loop.run_once("default") == 1.0
        make()
        assert loop.run_once("default") == 1.0
        frozen_clock.advance(seconds=59.75)
        assert loop.run_once("default") == 0.25
        frozen_clock.advance(seconds=0.25)
        assert loop.run_once("default") == 0.0
        assert len(jobs()) == 1

    def test_it_does_not_spin_on_what_another_scheduler_has(self, frozen_clock: Any, monkeypatch: Any) -> None:
        make()
        frozen_clock.advance(minutes=1)
        monkeypatch.setattr("django_ojs.scheduler.scheduler.tick", lambda using: 0)
        assert Cron().run_once("default") == 1.0

    def test_a_schedule_every_half_second_fires_once_a_second(self, frozen_clock: Any) -> None:
        make(expression="@every 500ms", overlap_policy="allow")
        for _ in range(20):
            frozen_clock.advance(milliseconds=250)
            tick()
        assert len(jobs()) == 5
        assert clock.now() == frozen_clock.now
