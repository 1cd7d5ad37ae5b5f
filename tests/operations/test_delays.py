"""Delayed jobs never start early, and jobs never start after their deadline, whatever state they wait in (level 2)."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from typing import Any

import pytest

from django_ojs import enqueue
from django_ojs.cron import schedules
from django_ojs.cron.runs import tick
from django_ojs.events import log
from django_ojs.jobs.fetch import Fetch, fetch
from django_ojs.jobs.finish import Failure, fail_one
from django_ojs.jobs.promote import activate_one
from django_ojs.jobs.push import push
from django_ojs.jobs.read import info
from django_ojs.jobs.timers import apply_due, next_due
from django_ojs.rules import envelope
from django_ojs.rules.durations import format_instant
from django_ojs.scheduler.scheduler import ApplyDue

pytestmark = pytest.mark.django_db

MICROSECOND = dt.timedelta(microseconds=1)


def make(**members: Any) -> Any:
    return push([{"type": "a.b", "args": [], **members}])[0].row


def fetched() -> list[Any]:
    return [row["id"] for row in fetch(Fetch(["default"], count=10))]


def at(clock: Any, **delta: float) -> str:
    return format_instant(clock.now + dt.timedelta(**delta))


DELAYS: dict[str, Callable[[Any], dict[str, Any]]] = {
    "scheduled_at": lambda clock: {"scheduled_at": at(clock, seconds=5)},
    "scheduled_at in options": lambda clock: {"options": {"scheduled_at": at(clock, seconds=5)}},
    "delay_until": lambda clock: {"options": {"delay_until": at(clock, seconds=5)}},
    "relative scheduled_at": lambda clock: {"options": {"scheduled_at": "+PT5S"}},
    "relative delay_until": lambda clock: {"options": {"delay_until": "+5s"}},
    "another offset": lambda clock: {
        "scheduled_at": (clock.now + dt.timedelta(seconds=5)).astimezone(dt.timezone(dt.timedelta(hours=9))).isoformat()
    },
}


@pytest.mark.parametrize("spelling", DELAYS)
def test_not_a_microsecond_early_and_at_once_without_a_scheduler(frozen_clock: Any, spelling: str) -> None:
    row = make(**DELAYS[spelling](frozen_clock))
    due = frozen_clock.now + dt.timedelta(seconds=5)
    assert (row["state"], next_due()) == ("scheduled", due)
    frozen_clock.move_to(due - MICROSECOND)
    apply_due()
    assert fetched() == []
    frozen_clock.move_to(due)
    assert fetched() == [row["id"]]


def test_python_s_at_is_not_cut_to_an_earlier_millisecond(frozen_clock: Any) -> None:
    instant = frozen_clock.now + dt.timedelta(seconds=5, microseconds=1)
    assert enqueue("a.b", at=instant).row["due_at"] >= instant


def test_the_scheduler_promotes_at_the_instant_within_its_look(frozen_clock: Any) -> None:
    row = make(scheduled_at=at(frozen_clock, seconds=5))
    duty = ApplyDue()
    while info(row["id"])["state"] == "scheduled":
        frozen_clock.advance(seconds=max(duty.run_once("default"), 0.001))
    late = frozen_clock.now - row["due_at"]
    assert dt.timedelta(0) <= late < dt.timedelta(milliseconds=200)


def test_a_job_activated_early_still_waits_for_its_time(frozen_clock: Any) -> None:
    row = make(scheduled_at=at(frozen_clock, seconds=5), pending=True)
    activate_one(row["id"])
    assert fetched() == []
    frozen_clock.advance(seconds=5)
    assert fetched() == [row["id"]]


def scheduled(clock: Any) -> Any:
    return make(scheduled_at=at(clock, seconds=100), expires_at=at(clock, seconds=10))


def available(clock: Any) -> Any:
    return make(expires_at=at(clock, seconds=10))


def pending(clock: Any) -> Any:
    return make(pending=True, expires_at=at(clock, seconds=10))


def retryable(clock: Any) -> Any:
    row = make(expires_at=at(clock, seconds=10), retry={"initial_interval": "PT100S", "jitter": False})
    fetched()
    fail_one(Failure(row["id"], {"message": "no"}))
    return row


def held(clock: Any) -> Any:
    """Behind the previous run of its schedule."""
    template = {"type": "a.b", "options": {"expires_at": "+PT10S"}}
    schedules.register({"name": "n", "cron": "@every 1s", "overlap_policy": "enqueue", "job_template": template})
    clock.advance(seconds=1)
    tick()
    fetched()
    clock.advance(seconds=1)
    tick()
    job_id = schedules.history("n")[0].job_id
    schedules.delete("n")
    return info(job_id)


WAITING = {"scheduled": scheduled, "available": available, "pending": pending, "retryable": retryable, "held": held}


@pytest.mark.parametrize("how", ["scheduler", "fetch"])
@pytest.mark.parametrize("state", WAITING)
def test_a_deadline_holds_in_every_waiting_state(frozen_clock: Any, state: str, how: str) -> None:
    row = WAITING[state](frozen_clock)
    assert info(row["id"])["state"] == ("available" if state == "held" else state)
    deadline = info(row["id"])["expires_at"]
    frozen_clock.move_to(deadline - MICROSECOND)
    apply_due()
    assert info(row["id"])["state"] != "discarded"
    frozen_clock.move_to(deadline)
    if how == "fetch":
        assert row["id"] not in fetched()
    if how == "scheduler" or state == "pending":  # who fetches need not look at staged jobs
        apply_due()
    job = envelope.render(info(row["id"]))
    assert (job["state"], job["error"]["type"]) == ("discarded", "expired")
    assert [e["type"] for e in log.read(job_id=row["id"], limit=100).events][-1] == "job.expired"


def test_a_deadline_before_the_start_wins(frozen_clock: Any) -> None:
    """Seed case L2-002."""
    row = make(scheduled_at=at(frozen_clock, seconds=10), expires_at=at(frozen_clock, seconds=5))
    frozen_clock.advance(seconds=7)
    apply_due()
    assert info(row["id"])["state"] == "discarded"


def test_a_deadline_means_nothing_to_a_job_that_started(frozen_clock: Any) -> None:
    row = make(expires_at=at(frozen_clock, seconds=5))
    assert fetched() == [row["id"]]
    frozen_clock.advance(seconds=6)
    apply_due()
    assert info(row["id"])["state"] == "active"
