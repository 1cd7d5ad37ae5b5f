"""`@job(cron=...)`: refused at decoration where it could not work, and synchronised into the database at deploy."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from functools import partial
from io import StringIO
from typing import Any

import pytest
from django import forms
from django.core.management import CommandError, call_command
from django.db import connections, transaction

from django_ojs import JobContext, delete_schedule, job, register_schedule, validate_cron
from django_ojs.access import Limits
from django_ojs.checks import check_schedules
from django_ojs.client.definition import JobDefinition
from django_ojs.client.sync import NotSynchronised, declarations, out_of_date, sync
from django_ojs.cron import runs, schedules
from django_ojs.cron.runs import tick
from django_ojs.errors import InvalidRequest
from django_ojs.jobs.fetch import Fetch, fetch
from django_ojs.models import CronSchedule, Job
from django_ojs.registry import Registry, registry
from django_ojs.scheduler.scheduler import Scheduler, Synchronise


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
        ({"timezone": "EST"}, "; perhaps America/New_York is meant."),
        ({"overlap": "never"}, "overlap_policy: must be one of skip"),
        ({"cron_args": ["a", 1, 2]}, "cannot take these arguments"),
        ({"cron_args": [{1}]}, "cron_args do not fit"),
        ({"cron_args": "ab"}, "cron_args do not fit. Give a list of arguments, such as [7], not 'ab'."),
        ({"cron_args": 5}, "cron_args do not fit. Give a list of arguments, such as [7], not 5."),
        ({"cron_name": ""}, "name: must be"),
        ({"cron_name": "My Report"}, "name: must be"),
    ],
)
def test_a_schedule_that_cannot_be_kept_is_refused(handlers: Registry, options: Any, complaint: str) -> None:
    declare(**options)
    assert any(complaint in str(fault) for fault in handlers.faults()), handlers.faults()
    assert handlers.types() == []


def test_a_schedule_without_an_expression_is_refused(handlers: Registry) -> None:
    declare(cron=None, timezone="Europe/Paris")
    assert [fault.message for fault in handlers.faults()] == [
        "timezone of @job says how a schedule runs: give cron= as well."
    ]


def test_a_handler_that_needs_arguments_must_give_them(handlers: Registry) -> None:
    @job("a.b", cron="@daily")
    def demanding(context: JobContext, path: str) -> None: ...

    assert ["cron_args" in fault.message for fault in handlers.faults()] == [True]


@pytest.mark.django_db
def test_a_wrong_declaration_removes_no_schedule(handlers: Registry, redeploy: Callable[[], None]) -> None:
    declare("report.daily")
    sync()
    redeploy()
    declare("report.daily", priority="many")
    with pytest.raises(NotSynchronised, match=r"declared wrongly: .*report\.daily"):
        sync()
    assert schedules.get("report.daily").enabled


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
    (row,) = fetch(Fetch(["q"]))
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
def test_the_scheduler_warns_once_about_a_forgotten_sync(handlers: Registry, settings: Any, caplog: Any) -> None:
    settings.OJS = {"SYNC_SCHEDULES": False}
    declare()
    term = 1
    duty = Synchronise(lambda: term)
    duty.run_once("default")
    term = 2
    duty.run_once("default")
    assert not CronSchedule.objects.exists()
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
    assert said("sync") == "Nothing to do: 1 schedule is as the code says.\n"
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
    schedules.delete("report.make")
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


# The scheduler does it


def led(using: str = "default") -> None:
    """Another process takes the lead."""
    Synchronise().run_once(using)


@pytest.mark.django_db
def test_a_schedule_of_the_code_fires_where_nobody_ran_a_command(handlers: Registry, frozen_clock: Any) -> None:
    declare(cron="@every 10s", cron_args=["weekly"])
    scheduler = Scheduler("w1")
    assert scheduler._lease.run_once()
    scheduler.run_once()
    frozen_clock.advance(seconds=10)
    tick()
    assert fetch(Fetch(["default"]))[0]["type"] == "report.make"


@pytest.mark.django_db
def test_it_is_done_once_for_each_lead(handlers: Registry, django_assert_num_queries: Any) -> None:
    declare()
    terms = [1]
    duty = Synchronise(lambda: terms[0])
    assert duty.run_once("default") == Synchronise.LOOK
    schedules.delete("report.make")
    with django_assert_num_queries(0):
        duty.run_once("default")
    terms[0] = 2
    duty.run_once("default")
    assert schedules.get("report.make").source == "code"


def test_each_time_that_a_process_takes_the_lead_is_counted(db: None) -> None:
    lease = Scheduler("w1")._lease
    assert [lease.run_once(), lease.run_once(), lease.terms] == [True, True, 1]
    lease.resign()
    lease.run_once()
    assert lease.terms == 2


@pytest.mark.django_db
def test_what_an_operator_changed_stays_so_whatever_the_code_changes_besides(
    handlers: Registry, redeploy: Callable[[], None]
) -> None:
    declare(priority=1)
    led()
    schedules.update("report.make", {"cron": "0 7 * * *", "description": "earlier"})
    redeploy()
    declare(cron="0 10 * * *", priority=5, overlap="allow")
    assert sync(dry_run=True).kept == ["report.make"]
    led()
    found = schedules.get("report.make")
    assert (found.expression, found.description, found.overlap_policy) == ("0 7 * * *", "earlier", "allow")
    assert found.document["priority"] == 5
    led()
    assert sync().kept == ["report.make"]
    assert schedules.get("report.make").expression == "0 7 * * *"
    assert sync(overwrite=True).updated == ["report.make"]
    assert schedules.get("report.make").expression == "0 10 * * *"
    assert sync().kept == []


@pytest.mark.django_db
def test_a_job_that_a_limited_caller_wrote_keeps_its_limits(handlers: Registry, redeploy: Callable[[], None]) -> None:
    declare()
    led()
    schedules.update("report.make", {"args": ["theirs"]}, limits=Limits(queues=("default",)))
    redeploy()
    declare(cron="0 10 * * *")
    led()
    found = CronSchedule.objects.get()
    assert (found.expression, found.document["args"]) == ("0 10 * * *", ["theirs"])
    assert found.limits is not None
    sync(overwrite=True)
    assert CronSchedule.objects.get().limits is None


@pytest.mark.django_db
def test_what_the_code_comes_to_agree_with_is_the_codes_again(handlers: Registry, redeploy: Callable[[], None]) -> None:
    declare()
    led()
    schedules.update("report.make", {"cron": "0 7 * * *"})
    redeploy()
    declare(cron="0 7 * * *")
    led()
    redeploy()
    declare(cron="0 6 * * *")
    led()
    assert schedules.get("report.make").expression == "0 6 * * *"


@pytest.mark.django_db
def test_a_schedule_of_the_code_that_is_registered_anew_over_http_is_the_operators(handlers: Registry) -> None:
    declare()
    led()
    schedules.register({"name": "report.make", "cron": "@daily", "type": "other.site"})
    led()
    assert (schedules.get("report.make").type, out_of_date()) == ("other.site", [])
    assert "report.make stays as an operator changed it" in said("sync")
    assert "report.make updated" in said("sync", "--overwrite")
    assert (schedules.get("report.make").type, schedules.get("report.make").source) == ("report.make", "code")


@pytest.mark.django_db
def test_what_has_left_the_code_is_switched_off_and_comes_back_with_it(
    handlers: Registry, redeploy: Callable[[], None], frozen_clock: Any
) -> None:
    """An older process leads for a while during a deploy."""
    declare(cron="@every 10s")
    led()
    frozen_clock.advance(seconds=10)
    tick()
    redeploy()
    led()
    assert not schedules.get("report.make").enabled
    assert out_of_date() == []
    declare(cron="@every 10s")
    assert out_of_date() == ["report.make"]
    led()
    found = schedules.get("report.make")
    assert (found.enabled, found.run_count) == (True, 1)


@pytest.mark.django_db
def test_what_an_operator_switches_stays_so_though_it_has_left_the_code(
    handlers: Registry, redeploy: Callable[[], None]
) -> None:
    declare("a.b")
    declare("c.d")
    led()
    schedules.set_enabled("a.b", False)
    redeploy()
    led()
    schedules.set_enabled("c.d", True)
    led()
    assert schedules.get("c.d").enabled
    declare("a.b")
    led()
    assert not schedules.get("a.b").enabled, "it was off before it left"
    assert sync().removed == ["c.d"]


@pytest.mark.django_db
@pytest.mark.parametrize("theirs", [{"module": "their.jobs"}, {"service": "theirs"}])
def test_a_schedule_that_other_code_declares_is_left_alone(handlers: Registry, theirs: dict[str, str]) -> None:
    """Code that is not in this process: that of another project, or apps that it does not install."""
    declare()
    led()
    told = CronSchedule.objects.get().declared
    CronSchedule.objects.update(declared=told | theirs)
    before = CronSchedule.objects.values().get()
    with registry.isolated():
        led()
        assert CronSchedule.objects.values().get() == before
        assert out_of_date() == []
        assert sync(dry_run=True).foreign == ["report.make"]


def test_the_module_of_a_partial_is_that_of_its_function(handlers: Registry) -> None:
    """That of partials themselves is in every process, and each would take the schedule for one that has left it."""
    job("report.daily", cron="@daily")(partial(lambda: None))
    assert declarations()["report.daily"].module == __name__


@pytest.mark.django_db
def test_a_schedule_from_before_declarations_were_kept_is_as_the_code_says(handlers: Registry) -> None:
    declare()
    led()
    CronSchedule.objects.update(declared=None, expression="0 7 * * *")
    with registry.isolated():
        led()
        assert schedules.get("report.make").enabled, "nobody knows whose it is"
    led()
    assert schedules.get("report.make").expression == "0 9 * * *"


@pytest.mark.django_db
def test_a_name_that_is_taken_is_told_and_nothing_changes(handlers: Registry, caplog: Any) -> None:
    schedules.register({"name": "report.make", "cron": "@daily", "type": "other.site"})
    declare()
    led()
    assert "registered over HTTP as well: report.make" in caplog.text
    assert schedules.get("report.make").type == "other.site"


@pytest.mark.django_db
def test_the_check_speaks_where_the_site_synchronises_by_hand(handlers: Registry, settings: Any) -> None:
    def ids() -> list[str | None]:
        return [one.id for one in check_schedules(databases=["default"])]

    declare()
    assert ids() == []
    settings.OJS = {"SYNC_SCHEDULES": False}
    assert check_schedules() == []
    assert ids() == ["django_ojs.W111"]
    (told,) = check_schedules(databases=["default"])
    assert "report.make" in told.msg
    sync()
    assert ids() == []


@pytest.mark.django_db(transaction=True)
def test_two_schedulers_at_once_make_each_schedule_once(handlers: Registry) -> None:
    for number in range(20):
        declare(f"report.number{number:02}")
    together = threading.Barrier(2)
    faults: list[BaseException] = []

    def lead() -> None:
        try:
            together.wait(10)
            led()
        except BaseException as error:  # noqa: BLE001 - shown below
            faults.append(error)
        finally:
            connections.close_all()

    threads = [threading.Thread(target=lead) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert faults == []
    assert CronSchedule.objects.count() == 20
    assert out_of_date() == []


@pytest.fixture
def make(handlers: Registry) -> JobDefinition[..., ..., str]:
    @job("report.make", queue="reports", retry={"max_attempts": 5})
    def make(kind: str, pages: int = 1) -> str:
        return kind

    return make


@pytest.mark.django_db
def test_code_makes_changes_and_deletes_schedules_while_the_site_runs(make: Any) -> None:
    """The jobs have the options of the handler, no sync touches the schedule, and it goes with its transaction."""
    register_schedule("sync-17", make.s("daily", pages=2), cron="*/15 * * * *", description="of Ann")
    row = register_schedule("sync-17", make.options(priority=7).s("weekly"), cron="0 9 * * *", timezone="Europe/Paris")
    assert (row.expression, row.timezone, row.queue, row.source) == ("0 9 * * *", "Europe/Paris", "reports", "api")
    sync()
    runs.trigger("sync-17")
    made = Job.objects.get()
    assert (made.args, made.queue, made.priority, made.max_attempts) == (["weekly"], "reports", 7, 5)
    with contextlib.suppress(ZeroDivisionError), transaction.atomic():
        assert delete_schedule("sync-17")
        raise ZeroDivisionError
    assert CronSchedule.objects.exists()
    assert (delete_schedule("sync-17"), delete_schedule("sync-17")) == (True, False)


@pytest.mark.django_db
def test_a_name_that_no_schedule_can_have_deletes_none() -> None:
    assert [delete_schedule(name) for name in ("a\0", "a\ud800", "")] == [False] * 3
    name: Any = None
    with pytest.raises(TypeError, match=r"^The name of a schedule is a text, not None\.$"):
        delete_schedule(name)


@pytest.mark.django_db
def test_a_schedule_that_cannot_be_is_refused_with_what_to_write(make: Any) -> None:
    for complaint, name, cron in (
        ("name: must be", "User sync: 17", "@daily"),
        ("cron: has the hour '25'", "sync", "0 25 * * *"),
    ):
        with pytest.raises(InvalidRequest, match=complaint):
            register_schedule(name, make.s("daily"), cron=cron)
    with pytest.raises(TypeError, match=r"pass handler\.s\(\.\.\.\)"):
        register_schedule("sync", make, cron="@daily")
    assert not CronSchedule.objects.exists()


def test_a_field_can_refuse_what_is_no_cron_expression() -> None:
    assert forms.CharField(validators=[validate_cron]).clean("*/15 * * * *") == "*/15 * * * *"
    with pytest.raises(forms.ValidationError, match=r"0 25 \* \* \* has the hour '25', which must be 0 to 23\."):
        forms.CharField(validators=[validate_cron]).clean("0 25 * * *")
