"""Maintenance mode with real workers: nothing is started while it is on, and everything runs after it."""

from __future__ import annotations

import datetime as dt
import time

import pytest
from django.core.management import call_command

from django_ojs import clock
from django_ojs.cron import schedules
from django_ojs.models import AuditEntry, CronSchedule, Job, Lease
from django_ojs.queues import maintenance
from tests.processes.conftest import Site, enqueue, settled
from tests.waiting import eventually

pytestmark = [pytest.mark.slow, pytest.mark.django_db(transaction=True)]
#: So long it is watched that nothing happens: a worker and the scheduler look several times.
WATCHED = 4.0


def leads() -> bool:
    return Lease.objects.filter(name="scheduler", expires_at__gt=clock.now()).exists()


def test_nothing_starts_while_it_is_on_and_everything_runs_when_it_is_over(site: Site) -> None:
    worker = site.worker("w", "--concurrency", "4")
    eventually(leads, "the worker schedules")
    enqueue("load.hold", 2)
    eventually(lambda: len(site.runs("began")) == 2, "two jobs run")

    call_command("ojs_maintenance", "on", "--reason", "new disks", "--yes", verbosity=0)
    enqueue("load.note", 20)
    enqueue("load.note", 1, at=clock.now() + dt.timedelta(seconds=1))
    schedules.register({"name": "seconds", "cron": "@every 1s", "type": "load.note", "args": [99]})
    site.let_go()
    eventually(lambda: len(site.runs("ended")) == 2, "what ran may end")
    eventually(lambda: Job.objects.filter(state="completed").count() == 2, "and is reported")
    time.sleep(WATCHED)
    assert site.runs("ran") == {}, "nothing was started"
    counted = {state: Job.objects.filter(state=state).count() for state in ("available", "scheduled", "active")}
    assert counted == {"available": 20, "scheduled": 1, "active": 0}, "nothing was promoted, and no schedule fired"

    CronSchedule.objects.filter(name="seconds").update(expression="@every 1h")  # so that only the catch-up is seen
    call_command("ojs_maintenance", "off", "--yes", verbosity=0)
    eventually(lambda: sum(site.runs("ran").values()) >= 22 and settled(), "everything runs")
    site.stop(worker)
    found = site.runs("ran")
    assert found[99] == 1, "the schedule fired once for all that it missed"
    assert {number: found[number] for number in range(1, 20)} == dict.fromkeys(range(1, 20), 1)
    assert found[0] == 2, "the scheduled one, too"


@pytest.mark.wide
def test_it_ends_by_itself_where_that_was_wanted(site: Site) -> None:
    maintenance.start(lasting=dt.timedelta(seconds=3), auto_end=True)
    enqueue("load.note", 3)
    worker = site.worker("w")
    eventually(lambda: len(site.runs("ran")) == 3 and settled(), "the scheduler in the worker ended it")
    site.stop(worker)
    assert not maintenance.is_on()
    entry = AuditEntry.objects.get(action="maintenance.stop")
    assert (entry.actor, entry.door) == ("scheduler", "scheduler")
    started = Job.objects.order_by("started_at").values_list("started_at", flat=True)[0]
    assert started is not None
    assert started >= entry.time, "and nothing began before"
