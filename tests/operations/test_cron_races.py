"""Threads that do the same thing to a schedule at once: the overlap policies hold all the same."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connections

from django_ojs.cron import schedules
from django_ojs.cron.runs import tick, trigger
from django_ojs.errors import Conflict
from django_ojs.jobs.fetch import Fetch, fetch
from django_ojs.jobs.finish import Ack, ack_one
from django_ojs.models import CronRun, CronSchedule, Job
from django_ojs.queues import configuration
from django_ojs.scheduler.service import persist

pytestmark = [pytest.mark.slow, pytest.mark.sqlite_too, pytest.mark.django_db(transaction=True)]

NEVER = threading.Event()


@pytest.fixture(autouse=True)
def _fresh() -> None:
    configuration.forget()


def at_once(count: int, act: Callable[[int], Any]) -> list[Any]:
    """What `act` returned or raised in each of so many threads that begin together; contention is tried again."""
    barrier = threading.Barrier(count)
    outcomes: list[Any] = [None] * count

    def run(number: int) -> None:
        try:
            barrier.wait()
            outcomes[number] = persist(lambda: act(number), "default", NEVER)
        except Exception as error:  # noqa: BLE001 - told to the test
            outcomes[number] = error
        finally:
            connections.close_all()

    threads = [threading.Thread(target=run, args=[number]) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    return outcomes


def make(policy: str) -> None:
    schedules.register({"name": "n", "cron": "@every 1h", "type": "a.b", "overlap_policy": policy})


def test_triggers_at_once_under_skip_make_one_job() -> None:
    make("skip")
    outcomes = at_once(8, lambda _: trigger("n"))
    refused = [outcome for outcome in outcomes if isinstance(outcome, Conflict)]
    assert len(refused) == 7, outcomes
    assert Job.objects.count() == 1


def test_triggers_at_once_under_cancel_previous_leave_one_alive() -> None:
    make("cancel_previous")
    outcomes = at_once(8, lambda _: trigger("n"))
    assert not [outcome for outcome in outcomes if isinstance(outcome, Exception)], outcomes
    assert Job.objects.live().count() == 1
    assert Job.objects.filter(state="cancelled").count() == 7
    assert schedules.get("n").run_count == 8


def test_registrations_of_one_new_name_at_once_make_one_schedule() -> None:
    outcomes = at_once(
        8, lambda number: schedules.register({"name": "n", "cron": "@daily", "type": "a.b", "args": [number]})
    )
    assert not [outcome for outcome in outcomes if isinstance(outcome, Exception)], outcomes
    assert sum(new for _, new in outcomes) == 1
    assert CronSchedule.objects.count() == 1


def test_ticks_and_changes_at_once_fire_once() -> None:
    """The change moves the definition, not the due tick; whoever is second sees what the first did."""
    make("allow")
    due = schedules.get("n").created_at
    for _ in range(5):
        CronSchedule.objects.update(wake_at=due, next_run_at=due)
        before = Job.objects.count()
        outcomes = at_once(6, lambda number: tick() if number % 2 else schedules.update("n", {"args": [number]}))
        assert not [outcome for outcome in outcomes if isinstance(outcome, Exception)], outcomes
        tick()
        assert Job.objects.count() == before + 1


def test_runs_in_line_are_never_active_together() -> None:
    make("enqueue")
    for _ in range(12):
        trigger("n")
    assert CronRun.objects.filter(held=True).count() == 11
    together: list[int] = []
    order: list[Any] = []

    def work(number: int) -> None:
        while Job.objects.live().exists():
            for row in persist(lambda: fetch(Fetch(["default"], count=3, worker_id=f"w{number}")), "default", NEVER):
                together.append(Job.objects.filter(state="active").count())
                order.append(row["id"])
                persist(lambda row=row: ack_one(Ack(row["id"])), "default", NEVER)

    outcomes = at_once(4, work)
    assert not [outcome for outcome in outcomes if isinstance(outcome, Exception)], outcomes
    assert together == [1] * 12
    assert order == list(CronRun.objects.order_by("id").values_list("job_id", flat=True)), "first in, first out"
