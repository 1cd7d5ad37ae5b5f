"""Real processes: exactly one tick however many schedulers run, and none half done however they end."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings

from django_ojs.cron import schedules
from django_ojs.cron.runs import tick
from django_ojs.models import CronRun, CronSchedule, Event, Job, Lease
from django_ojs.queues import configuration
from tests.waiting import eventually

pytestmark = [pytest.mark.slow, pytest.mark.django_db(transaction=True)]

Start = Callable[..., subprocess.Popen[str]]
MANAGE = str(Path(settings.BASE_DIR) / "manage.py")


@pytest.fixture
def start(child_environment: dict[str, str]) -> Iterator[Start]:
    """`start("-m", "tests.scheduler.ticker")`: Python with these arguments, once it has said its first line."""
    configuration.forget()
    environment = {name: value for name, value in child_environment.items() if name != "PYTEST_XDIST_WORKER"}
    started: list[subprocess.Popen[str]] = []

    def run(*arguments: str) -> subprocess.Popen[str]:
        process = subprocess.Popen([sys.executable, *arguments], env=environment, stdout=subprocess.PIPE, text=True)
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline(), "it ended before it said a word"
        return process

    yield run
    for process in started:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def every_second(name: str, **members: Any) -> None:
    schedules.register({"name": name, "cron": "* * * * * *", "type": "a.b", "overlap_policy": "allow", **members})


def check_all_ticks(names: list[str]) -> None:
    """Every tick once, as a job, a run, a count and an event, and none left out in between."""
    for name in names:
        nominal = list(CronRun.objects.filter(name=name).order_by("id").values_list("scheduled_at", flat=True))
        assert max(Counter(nominal).values()) == 1
        schedule = schedules.get(name)
        made = [job for job in Job.objects.all() if job.meta["cron_name"] == name]
        events = [e for e in Event.objects.filter(type="cron.triggered", subject=name) if e.data]
        assert schedule.run_count == len(made) == len(events) == len(nominal)
        assert len({job.meta["cron_triggered_at"] for job in made}) == len(made)


@pytest.mark.wide
def test_many_that_tick_without_a_lease_fire_each_tick_once(start: Start) -> None:
    names = ["a", "b", "c"]
    for name in names:
        every_second(name)
    tickers = [start("-m", "tests.scheduler.ticker") for _ in range(4)]
    eventually(lambda: min(CronSchedule.objects.values_list("run_count", flat=True)) >= 4)
    assert all(ticker.poll() is None for ticker in tickers), "one of them crashed"
    for ticker in tickers:
        ticker.send_signal(signal.SIGKILL)
        ticker.wait()
    check_all_ticks(names)


def test_schedulers_take_over_from_one_that_is_killed(start: Start) -> None:
    every_second("a")
    schedulers = {str(p.pid): p for p in (start(MANAGE, "ojs_scheduler") for _ in range(3))}
    eventually(lambda: schedules.get("a").run_count >= 2)
    leader = Lease.objects.get(name="scheduler").holder
    victim = schedulers[leader.split(":")[1]]
    victim.kill()
    victim.wait()
    killed_at = schedules.get("a").run_count
    eventually(lambda: schedules.get("a").run_count >= killed_at + 2)
    assert Lease.objects.get(name="scheduler").holder != leader
    check_all_ticks(["a"])


@pytest.mark.parametrize(
    "point", ["push", *(pytest.param(point, marks=pytest.mark.wide) for point in ("record_run", "log")), "commit"]
)
def test_kill_9_in_the_middle_of_a_tick_leaves_it_to_the_next(start: Start, tmp_path: Path, point: str) -> None:
    every_second("a")
    before = CronSchedule.objects.values("wake_at", "next_run_at", "run_count", "last_run_at").get()
    process = start("-m", "tests.scheduler.ticker", str(tmp_path), point)
    eventually((tmp_path / "stopped").exists)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert CronSchedule.objects.values("wake_at", "next_run_at", "run_count", "last_run_at").get() == before
    assert not Job.objects.exists()
    assert not Event.objects.exists()
    assert not CronRun.objects.exists()
    eventually(lambda: tick() == 1)
    assert Job.objects.get().meta["cron_triggered_at"] == before["next_run_at"].strftime("%Y-%m-%dT%H:%M:%S.000Z")
    check_all_ticks(["a"])


def test_no_tick_is_before_its_time(start: Start) -> None:
    every_second("a")
    start(MANAGE, "ojs_scheduler")
    eventually(lambda: schedules.get("a").run_count >= 4)
    late = [run.triggered_at - run.scheduled_at for run in CronRun.objects.order_by("id")[1:]]
    assert min(late).total_seconds() >= 0
