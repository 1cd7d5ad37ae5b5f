"""A real worker process starts delayed jobs when their time has come, and never before (L2-DEL-002, L2-DEL-003).

`tests/operations/test_delays.py` sees that it looks in time, with a clock of its own. The benchmark measures this.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable

import pytest

from django_ojs import clock, enqueue
from django_ojs.cron import schedules
from django_ojs.jobs.push import push
from django_ojs.models import Job
from tests.waiting import eventually
from tests.worker.conftest import WorkerCommand

Start = Callable[..., WorkerCommand]

pytestmark = pytest.mark.wide


def test_delays_and_deadlines_with_a_worker(start_process: Start) -> None:
    start_process("ojs_worker", "--name", "w1", "--concurrency", "4")
    first = enqueue("site.add", 0, 0)
    eventually(lambda: first.refresh().state == "completed")
    now = clock.now("default")
    soon = [now + dt.timedelta(milliseconds=ms) for ms in (700, 1200, 1201, 1900)]
    handles = [enqueue("site.add", 1, 2, at=instant) for instant in soon]
    relative = push([{"type": "site.add", "args": [1, 2], "options": {"delay_until": "+PT1.5S"}}])[0].row
    assert relative is not None
    never = enqueue("site.add", 1, 2, at=now + dt.timedelta(seconds=60), expires_at=now + dt.timedelta(seconds=1))
    due = {handle.id: instant for handle, instant in zip(handles, soon, strict=True)}
    due[relative["id"]] = relative["due_at"]
    eventually(lambda: Job.objects.filter(pk__in=due, state="completed").count() == len(due))
    for job in Job.objects.filter(pk__in=due):
        assert job.started_at is not None
        assert job.started_at >= due[job.pk]
    eventually(lambda: never.refresh().state == "discarded")
    assert never.row["started_at"] is None


def test_a_schedule_with_nothing_but_a_worker(start_process: Start) -> None:
    """The worker brings its scheduler along: it fires the schedule and runs the job."""
    schedules.register({"name": "sum", "cron": "* * * * * *", "type": "site.add", "args": [20, 22]})
    start_process("ojs_worker", "--name", "w1")
    eventually(lambda: Job.objects.filter(state="completed").count() >= 2)
    assert set(Job.objects.filter(state="completed").values_list("result", flat=True)) == {42}
