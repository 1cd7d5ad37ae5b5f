"""Real `manage.py ojs_worker` processes: signals, drains, kills."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from django_ojs import enqueue, enqueue_many, get_job
from django_ojs.conf import ojs_settings
from django_ojs.models import Job, Lease, Worker
from django_ojs.registry import Registry
from django_ojs.worker.lifecycle import ECHO
from tests.waiting import eventually
from tests.worker.conftest import WorkerCommand

Start = Callable[..., WorkerCommand]

pytestmark = pytest.mark.slow


def test_a_worker_finds_the_handlers_of_every_app_and_runs_them(start_process: Start) -> None:
    once = {"retry": {"max_attempts": 1}}
    handles = enqueue_many(
        [("site.add", [1, 2]), ("site.aadd", [3, 4]), ("site.fail", ["broken"], once), ("site.exit", [], once)]
    )
    process = start_process("ojs_worker", "--until-empty", "--name", "w1", "--queues", "default", "--concurrency", "2")
    assert process.wait() == 0, process.output
    for handle in handles:
        handle.refresh()
    assert [handle.result for handle in handles[:2]] == [3, 7]
    assert [str(handle.state) for handle in handles[2:]] == ["discarded", "discarded"]
    assert process.said("ojs_worker w1 started: queues default, concurrency 2, ")
    assert process.said("ojs_worker w1 stopped: 2 jobs completed")
    assert process.said("ValueError: broken"), "the traceback reached the log"
    assert not Worker.objects.exists()


@pytest.mark.wide
@pytest.mark.postgres
def test_a_pool_of_the_server_does_not_starve_a_worker(start_process: Start) -> None:
    """Four handlers hold a connection each, and the worker its own, though the site's pool has two."""
    names = ["one", "two", "three", "four"]
    handles = enqueue_many([("site.consult", [name]) for name in names])
    process = start_process("ojs_worker", "--until-empty", "--concurrency", "4", pool=2)
    eventually(lambda: all(process.trace(f"{name}.started") for name in names))
    for name in names:
        process.let_go(name)
    assert process.wait() == 0, process.output
    assert [str(handle.refresh().state) for handle in handles] == ["completed"] * 4
    assert not process.said("Pool")


@pytest.mark.wide
@pytest.mark.postgres
def test_nor_does_it_starve_a_scheduler_of_its_own(start_process: Start) -> None:
    """Its threads look at the database side by side, and the site's pool has one connection."""
    handle = enqueue("site.add", 1, 2, delay="1s")
    process = start_process("ojs_scheduler", pool=1)
    eventually(lambda: handle.refresh().state == "available")
    process.signal(signal.SIGTERM)
    assert process.wait(60) == 0, process.output
    assert not process.said("database"), process.output


def test_sigterm_finishes_what_is_running(start_process: Start) -> None:
    handle = enqueue("site.hold", "slow")
    process = start_process()
    eventually(lambda: process.trace("slow.started"))
    process.signal(signal.SIGTERM)
    eventually(lambda: process.said("Stopping (SIGTERM)"))  # by the supervisor, before it tells its process
    eventually(lambda: Worker.objects.filter(state="terminate").exists())
    waiting = enqueue("site.add", 1, 2)
    process.let_go("slow")
    assert process.wait() == 0, process.output
    assert handle.refresh().result == "slow"
    assert waiting.refresh().state == "available"
    assert not Worker.objects.exists()
    assert not Lease.objects.exists(), "the next scheduler need not wait for the lease to end"


def test_sigterm_hands_back_what_does_not_end_in_time(start_process: Start) -> None:
    handles = [enqueue("site.hold", "thread"), enqueue("site.ahold", "task")]
    process = start_process(grace=0.2)
    eventually(lambda: process.trace("thread.started") and process.trace("task.started"))
    process.signal(signal.SIGTERM)
    assert process.wait() == 0, process.output
    assert process.trace("task.cancelled")
    for handle in handles:
        handle.refresh()
        assert (handle.state, handle.attempt, handle.errors, handle.row["worker_id"]) == ("available", 1, [], "")
    assert not Worker.objects.exists()


@pytest.mark.wide
def test_a_handler_that_saw_the_end_coming_and_returned_is_handed_back(start_process: Start) -> None:
    """It stopped because it was asked to, not because its work was done."""
    handle = enqueue("site.watch", "watched")
    process = start_process(grace=0.2)
    eventually(lambda: process.trace("watched.started"))
    process.signal(signal.SIGTERM)
    assert process.wait() == 0, process.output
    handle.refresh()
    assert (handle.state, handle.attempt, handle.errors) == ("available", 1, [])


@pytest.mark.wide
def test_a_second_signal_hurries(start_process: Start) -> None:
    handle = enqueue("site.hold", "slow")
    process = start_process(grace=600)
    eventually(lambda: process.trace("slow.started"))
    process.signal(signal.SIGINT)
    eventually(lambda: process.said("Stopping (SIGINT)"))
    process.signal(signal.SIGTERM)
    assert process.wait() == 0, process.output
    assert handle.refresh().state == "available"


def told(process: WorkerCommand) -> list[str]:
    """What a person read of the stop, without the level, the worker's name and the time that it took."""
    lines = [
        re.sub(r"^(?:INFO|WARNING) |(?<=ojs_worker )\S+ |in [\d.]+ s", "", line.rstrip()) for line in process.lines
    ]
    words = ("Stopping", "running", "ojs_worker", "serves")
    return [line for line in lines if any(word in line for word in words) and "started:" not in line]


@pytest.mark.parametrize("processes", [pytest.param("1", marks=pytest.mark.wide), "2"])
def test_a_stop_is_told_in_one_line_with_the_way_to_stop_at_once(start_process: Start, processes: str) -> None:
    """A terminal sends its Ctrl-C to all processes; each of two runs a job, or the only one runs both."""
    handles = [enqueue("site.hold", name) for name in ("one", "two")]
    process = start_process(
        "ojs_worker", "--processes", processes, "--concurrency", str(2 // int(processes)), grace=600
    )
    eventually(lambda: process.trace("one.started") and process.trace("two.started"))
    process.press_ctrl_c()
    eventually(lambda: process.said("Stopping"))
    eventually(lambda: Worker.objects.filter(state="terminate").count() == int(processes))
    process.let_go("one"), process.let_go("two")
    assert process.wait() == 0, process.output
    assert [handle.refresh().state for handle in handles] == ["completed"] * 2
    assert told(process) == [
        "Stopping (SIGINT): 2 jobs are running. Press Ctrl-C again to stop at once.",
        "ojs_worker stopped: 2 jobs completed .",
    ]


def test_ctrl_c_pressed_again_stops_at_once(start_process: Start) -> None:
    handle = enqueue("site.hold", "slow")
    process = start_process("ojs_worker", "--name", "w", grace=600)
    eventually(lambda: process.trace("slow.started"))
    process.press_ctrl_c()
    eventually(lambda: process.said("Stopping (SIGINT)"))
    told_at = time.monotonic()
    eventually(lambda: Worker.objects.filter(pk="w", state="terminate").exists())
    eventually(lambda: time.monotonic() > told_at + ECHO)  # what comes before is the same press
    process.press_ctrl_c()
    eventually(lambda: process.said("Stopping at once (SIGINT)."))
    assert process.wait() == 0, process.output
    assert (handle.refresh().state, handle.attempt) == ("available", 1)
    assert told(process) == [
        "Stopping (SIGINT): 1 job is running. Press Ctrl-C again to stop at once.",
        "Stopping at once (SIGINT).",
        "ojs_worker stopped: 0 jobs completed .",
    ]


@pytest.mark.wide
def test_a_signal_to_one_process_alone_is_told_with_its_name(start_process: Start) -> None:
    process = start_process("ojs_worker", "--name", "w")
    first = eventually(lambda: Worker.objects.filter(pk="w", last_heartbeat_at__isnull=False).first())
    os.kill(first.pid, signal.SIGTERM)
    eventually(lambda: process.said("w: Stopping (SIGTERM)."))
    process.signal(signal.SIGTERM)
    assert process.wait() == 0, process.output


@pytest.mark.wide
def test_sigtstp_quiets_and_sigcont_resumes(start_process: Start) -> None:
    process = start_process("ojs_worker", "--name", "w1")
    eventually(lambda: Worker.objects.filter(pk="w1", state="running").exists())
    process.signal(signal.SIGTSTP)
    eventually(lambda: Worker.objects.filter(pk="w1", state="quiet").exists())
    handle = enqueue("site.add", 1, 2)
    process.signal(signal.SIGCONT)
    assert handle.wait(timeout=90).result == 3
    process.signal(signal.SIGTERM)
    assert process.wait() == 0


def test_a_handler_that_never_ends_is_ended_by_its_timeout(start_process: Start) -> None:
    handle = enqueue("site.spin", "spin", timeout=1, retry={"max_attempts": 1})
    process = start_process()
    assert handle.wait(timeout=90, raise_error=False).state == "discarded"
    assert handle.error is not None
    assert handle.error["type"] == "timeout"
    eventually(lambda: process.trace("spin.ended"))
    assert enqueue("site.add", 1, 2).wait(timeout=90).result == 3
    process.signal(signal.SIGTERM)
    assert process.wait() == 0


@pytest.mark.wide
def test_a_cancelled_job_is_noticed_by_its_handler(start_process: Start) -> None:
    handle = enqueue("site.watch", "watched")
    process = start_process()
    eventually(lambda: process.trace("watched.started"))
    handle.cancel()
    eventually(lambda: process.trace("watched.noticed"))
    process.signal(signal.SIGTERM)
    assert process.wait() == 0
    assert get_job(handle.id).state == "cancelled"


@pytest.mark.wide
def test_two_workers_share_the_work_and_run_nothing_twice(start_process: Start) -> None:
    enqueue_many([("site.once", [f"job-{number}"]) for number in range(400)])
    processes = [start_process("ojs_worker", "--until-empty") for _ in range(2)]
    for process in processes:
        assert process.wait() == 0, process.output
    # A worker that had claimed ahead gives back what it cannot start soon: only then is there a second attempt.
    assert not any(Job.objects.values_list("errors", flat=True))
    assert Job.objects.exclude(state="completed").count() == 0


def test_a_scheduled_job_runs_on_time_though_no_other_server_is_there(start_process: Start) -> None:
    handle = enqueue("site.add", 1, 2, delay="300ms")
    process = start_process()
    assert handle.wait(timeout=90).result == 3
    process.signal(signal.SIGTERM)
    assert process.wait() == 0


@pytest.mark.wide
def test_another_scheduler_takes_over_when_the_leader_is_killed(start_process: Start) -> None:
    first = start_process("ojs_scheduler")
    lease = eventually(Lease.objects.first)
    second = start_process("ojs_scheduler")
    eventually(lambda: second.said("started"))
    first.signal(signal.SIGKILL)
    eventually(lambda: Lease.objects.exclude(holder=lease.holder).exists())
    handle = enqueue("site.add", 1, 2, delay="10ms")
    eventually(lambda: handle.refresh().state == "available")
    second.signal(signal.SIGTERM)
    assert second.wait() == 0, second.output
    assert not Lease.objects.exists()


# The command itself


@pytest.mark.parametrize(
    "arguments,message",
    [
        (["--queues", "No Queue"], "the queue 'No Queue'"),
        (["--queues", ","], "name at least one queue"),
        (["--concurrency", "0"], "'0' is not a number above zero"),
        (["--max-jobs", "many"], "'many' is not a number"),
        (["--name", "a\tb"], "printable"),
    ],
)
def test_mistaken_options_are_told(arguments: list[str], message: str, handlers: Registry) -> None:
    with pytest.raises(CommandError, match=message):
        call_command("ojs_worker", *arguments)


@pytest.mark.parametrize("value", ["soon", "-1", "nan", "inf", "PT25S"])
def test_a_grace_period_in_the_environment_that_is_none_is_told(
    value: str, monkeypatch: pytest.MonkeyPatch, settings: Any, handlers: Registry
) -> None:
    monkeypatch.setenv("OJS_SHUTDOWN_GRACE_PERIOD", value)
    settings.OJS = {}
    with pytest.raises(CommandError, match=f"OJS_SHUTDOWN_GRACE_PERIOD is '{value}'; it must be a number of seconds"):
        call_command("ojs_worker")
    settings.OJS = {"SHUTDOWN_GRACE_PERIOD": 3}
    with pytest.raises(CommandError, match="nothing to run"):
        call_command("ojs_worker")


@pytest.mark.parametrize(
    "value,given,wanted", [("40.5", {}, 40.5), ("0", {}, 0), ("40", {"SHUTDOWN_GRACE_PERIOD": 3}, 3), ("", {}, 25)]
)
def test_the_grace_period_comes_from_the_setting_then_the_environment(
    value: str, given: dict[str, Any], wanted: float, monkeypatch: pytest.MonkeyPatch, settings: Any
) -> None:
    monkeypatch.setenv("OJS_SHUTDOWN_GRACE_PERIOD", value)
    settings.OJS = given
    assert wanted == ojs_settings.SHUTDOWN_GRACE_PERIOD


def test_a_site_without_handlers_is_told_what_to_run_instead(handlers: Registry, db: Any) -> None:
    with pytest.raises(CommandError, match="ojs_scheduler"):
        call_command("ojs_worker")
