"""The threads of the scheduler, and what a duty that fails does to the others."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from django.db import OperationalError

from django_ojs import enqueue
from django_ojs.models import Lease
from django_ojs.queues import configuration
from django_ojs.registry import registry
from django_ojs.scheduler import service as outage_module
from django_ojs.scheduler.scheduler import Scheduler
from django_ojs.scheduler.service import RESTART, DutyThread, Outage, Service
from tests.waiting import eventually


@pytest.fixture(autouse=True)
def _fresh() -> Any:
    configuration.forget()
    with registry.isolated():
        yield


class Duty:
    """Counts its calls; raises what it is given, once each."""

    def __init__(self, name: str = "duty", *errors: Exception, every: float = 0.0) -> None:
        self.name, self.errors, self.every = name, list(errors), every
        self.calls = 0

    def run_once(self, using: str) -> float:
        self.calls += 1
        if self.errors:
            raise self.errors.pop(0)
        return self.every


def test_each_duty_is_done_when_it_asked_to_be() -> None:
    often, seldom = Duty("often"), Duty("seldom", every=60)
    thread = DutyThread("test", [often, seldom], "default")
    pauses = [thread.run_once() for _ in range(3)]
    assert (often.calls, seldom.calls) == (3, 1)
    assert pauses == [0.0, 0.0, 0.0]


def test_a_duty_that_fails_does_not_stop_the_others_and_is_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    broken, sound = Duty("broken", LookupError("a fault of ours")), Duty("sound")
    thread = DutyThread("test", [broken, sound], "default")
    thread.run_once()
    thread.run_once()
    assert (broken.calls, sound.calls) == (1, 2)
    assert "The scheduler's duty 'broken' failed; the next try is in " in caplog.text
    assert "a fault of ours" in caplog.text
    thread._due["broken"] = 0.0
    thread.run_once()
    assert broken.calls == 2


def test_a_duty_waits_for_a_database_that_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outage_module, "outage", Outage())
    monkeypatch.setattr(outage_module, "answers", lambda using, writes: False)
    monkeypatch.setattr(outage_module, "FIRST_PAUSE", 0.0001)
    duty = Duty("duty", OperationalError(2006, "gone"), OperationalError(2006, "gone"))
    DutyThread("test", [duty], "default").run_once()
    assert duty.calls == 3


def test_whoever_does_not_lead_does_nothing() -> None:
    leads, done = threading.Event(), threading.Event()

    class Note(Duty):
        def run_once(self, using: str) -> float:
            done.set()
            return super().run_once(using)

    duty = Note()
    thread = DutyThread("test", [duty], "default", leads.is_set)
    thread.start()
    assert not done.wait(0.05)
    leads.set()
    assert done.wait(60)
    assert thread.stop(10)


@pytest.mark.django_db(transaction=True)
def test_a_scheduler_leads_settles_and_gives_its_lease_back() -> None:
    handle = enqueue("a.b", delay="50ms")
    scheduler = Scheduler("me")
    scheduler.start()
    eventually(lambda: handle.refresh().state == "available")
    assert scheduler.leads
    assert scheduler.stop(10)
    assert not scheduler.leads
    assert not Lease.objects.exists()


@pytest.mark.django_db
def test_one_pass_needs_neither_threads_nor_lease(frozen_clock: Any) -> None:
    handle = enqueue("a.b", delay=5)
    frozen_clock.advance(seconds=5)
    assert Scheduler("me").run_once() == 0.0
    assert handle.refresh().state == "available"
    assert not Lease.objects.exists()


def test_a_service_that_crashes_says_so(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(Service):
        name = "broken"

        def run(self) -> None:
            raise LookupError("a fault of ours")

    told: list[str] = []
    service = Broken(told.append)
    service.start()
    assert service.stop(10)
    assert told == ["broken"]
    assert "The broken thread died." in caplog.text


def test_a_service_that_was_never_started_can_be_stopped() -> None:
    assert Service(RESTART).stop(1)
