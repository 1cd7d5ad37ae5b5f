"""`@job(cron=...)`: refused at decoration where it could not work, and synchronised into the database at deploy."""

from __future__ import annotations

from collections.abc import Callable
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from django_ojs import JobContext, job
from django_ojs.client.sync import NotSynchronised, out_of_date, sync
from django_ojs.cron import schedules
from django_ojs.cron.runs import tick
from django_ojs.jobs.fetch import fetch
from django_ojs.models import CronSchedule, Job
from django_ojs.registry import InvalidHandler, Registry, registry
from django_ojs.scheduler.scheduler import Unsynchronised


def declare(type: str = "report.make", **options: Any) -> None:
    options.setdefault("cron", "0 9 * * *")

    @job(type, **options)
    def make(kind: str = "daily", pages: int = 1) -> str:
        return kind


def said(*arguments: str) -> str:
    out = StringIO()
    call_command("ojs_cron", *arguments, stdout=out, no_color=True)
    return out.getvalue()


@pytest.fixture
def redeploy(handlers: Registry) -> Callable[[], None]:
    """The code again, from nothing: what is not declared afterwards has left it."""

    def restart() -> None:
        registry._definitions.clear()

    return restart


@pytest.mark.parametrize(
    "options,complaint",
    [
        ({"cron": "0 25 * * *"}, r"cron: has the hour '25', which must be 0 to 23"),
        ({"timezone": "EST"}, "did you mean America/New_York"),
        ({"overlap": "never"}, "overlap_policy: must be one of skip"),
        ({"cron_args": ["a", 1, 2]}, "cannot take these arguments"),
        ({"cron_args": [{1}]}, "cron_args do not fit"),
        ({"cron_name": "My Report"}, "name: must be"),
    ],
)
def test_a_schedule_that_cannot_be_kept_is_refused(handlers: Registry, options: Any, complaint: str) -> None:
    with pytest.raises(InvalidHandler, match=complaint):
        declare(**options)
    assert handlers.types() == []


def test_a_schedule_without_an_expression_is_refused(handlers: Registry) -> None:
    with pytest.raises(TypeError, match="timezone of @job says how a schedule runs: give cron="):
        declare(cron=None, timezone="Europe/Paris")


def test_a_handler_that_needs_arguments_must_give_them(handlers: Registry) -> None:
    with pytest.raises(InvalidHandler, match="cron_args"):

        @job("a.b", cron="@daily")
        def demanding(context: JobContext, path: str) -> None: ...


@pytest.mark.django_db
def test_the_first_sync_creates_and_the_second_changes_nothing(handlers: Registry, frozen_clock: Any) -> None:
    declare("report.make_all", timezone="Europe/Paris", overlap="allow", cron_args=["weekly"], queue="q", tags=["t"])
    job("unscheduled")(lambda: None)
    assert sync().created == ["report.make-all"]
    schedule = schedules.get("report.make-all")
    assert (schedule.timezone, schedule.overlap_policy, schedule.queue) == ("Europe/Paris", "allow", "q")
    assert (schedule.source, schedule.document["args"]) == ("code", ["weekly"])
    before = CronSchedule.objects.values().get()
    frozen_clock.advance(seconds=5)
    assert sync().unchanged == ["report.make-all"]
    assert CronSchedule.objects.values().get() == before


@pytest.mark.django_db
def test_its_jobs_are_those_that_the_handler_would_enqueue(handlers: Registry, frozen_clock: Any) -> None:
    declare(cron="@every 10s", cron_args=["weekly", 3], queue="q", priority=4, retry={"max_attempts": 7}, timeout=30)
    sync()
    frozen_clock.advance(seconds=10)
    tick()
    (row,) = fetch(["q"])
    stored = Job.objects.get(pk=row["id"])
    assert (stored.args, stored.priority, stored.max_attempts, stored.timeout_ms) == (["weekly", 3], 4, 7, 30_000)


@pytest.mark.django_db
def test_what_changes_in_the_code_is_updated(handlers: Registry, redeploy: Callable[[], None]) -> None:
    declare()
    sync()
    redeploy()
    declare(cron="0 10 * * *")
    assert out_of_date() == ["report.make"]
    assert sync().updated == ["report.make"]
    assert schedules.get("report.make").expression == "0 10 * * *"
    assert out_of_date() == []


@pytest.mark.django_db
def test_what_has_left_the_code_is_removed_and_nothing_else(handlers: Registry, redeploy: Callable[[], None]) -> None:
    schedules.register({"name": "theirs", "cron": "@daily", "type": "other.site"})
    declare()
    sync()
    redeploy()
    assert sync(dry_run=True).removed == ["report.make"]
    assert CronSchedule.objects.count() == 2
    assert sync().removed == ["report.make"]
    assert list(CronSchedule.objects.values_list("name", flat=True)) == ["theirs"]


@pytest.mark.django_db
def test_what_an_operator_disabled_stays_disabled(handlers: Registry, redeploy: Callable[[], None]) -> None:
    declare()
    sync()
    schedules.set_enabled("report.make", False)
    assert sync().unchanged == ["report.make"]
    redeploy()
    declare(cron="@hourly")
    sync()
    assert not schedules.get("report.make").enabled


@pytest.mark.django_db
def test_a_schedule_of_the_same_name_registered_over_http_is_not_touched(handlers: Registry) -> None:
    schedules.register({"name": "report.make", "cron": "@daily", "type": "other.site"})
    before = CronSchedule.objects.values().get()
    declare()
    declare("another.report")
    with pytest.raises(NotSynchronised, match=r"registered over HTTP as well: report\.make"):
        sync()
    assert CronSchedule.objects.values().get() == before, "nor was anything else created"


@pytest.mark.django_db
def test_two_handlers_with_one_schedule_name_are_refused(handlers: Registry) -> None:
    declare("a.b", cron_name="same")
    declare("c.d", cron_name="same")
    with pytest.raises(NotSynchronised, match=r"a\.b and c\.d both have the schedule 'same'"):
        sync()


@pytest.mark.django_db
def test_the_scheduler_warns_once_about_a_forgotten_sync(handlers: Registry, caplog: Any) -> None:
    declare()
    duty = Unsynchronised()
    assert duty.run_once("default") == Unsynchronised.EVERY
    duty.run_once("default")
    assert [record.getMessage() for record in caplog.records] == [
        "Schedules differ between code and database; run manage.py ojs_cron sync: report.make"
    ]


@pytest.mark.django_db
def test_the_command(handlers: Registry) -> None:
    assert "There are no schedules." in said("list")
    declare(timezone="Europe/Paris")
    assert said("sync", "--dry-run") == "report.make would be created\n"
    assert not CronSchedule.objects.exists()
    assert said("sync") == "report.make created\n"
    assert said("sync") == "Nothing to do: 1 schedules are as the code says.\n"
    header, line = said("list").splitlines()
    assert header.split()[:3] == ["NAME", "SCHEDULE", "ZONE"]
    assert line.startswith("report.make  0 9 * * *  Europe/Paris  report.make  active")
    assert said("disable", "report.make") == "report.make does not run until enabled.\n"
    assert said("enable", "report.make").startswith("report.make runs next at 20")
    assert said("trigger", "report.make") == f"report.make made the job {Job.objects.get().pk}.\n"
    with pytest.raises(CommandError, match="has a run that has not ended"):
        said("trigger", "report.make")
    with pytest.raises(CommandError, match="'nobody' not found"):
        said("enable", "nobody")
    schedules.register({"name": "report.make", "cron": "@daily", "type": "other.site"})
    with pytest.raises(CommandError, match="registered over HTTP"):
        said("sync")


@pytest.mark.django_db
def test_the_command_asks_before_it_removes(handlers: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    declare()
    said("sync")
    asked: list[str] = []

    def no(question: str) -> str:
        asked.append(question)
        return "n"

    monkeypatch.setattr("builtins.input", no)
    with registry.isolated():  # its handler has left the code
        with pytest.raises(CommandError, match="Nothing was changed"):
            said("sync")
        assert asked == ["Remove report.make, no longer in the code? [y/N] "]
        assert CronSchedule.objects.exists()
        assert said("sync", "--dry-run") == "report.make would be removed\n"
        assert said("sync", "--yes") == "report.make removed\n"
    assert not CronSchedule.objects.exists()
