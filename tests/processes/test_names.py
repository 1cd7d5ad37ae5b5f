"""Two processes with one worker name: the name belongs to the one that beats, and to its heir once it is dead."""

from __future__ import annotations

from typing import Any

import pytest

from django_ojs.models import Event, Job, Worker
from tests.processes.conftest import Site, enqueue, settled
from tests.waiting import eventually

HELD = 4
OJS: dict[str, Any] = {"HEARTBEAT_INTERVAL": 0.5, "HEARTBEAT_TIMEOUT": 600.0, "WORKER_VISIBILITY_TIMEOUT": 600}

pytestmark = [pytest.mark.slow]


@pytest.mark.parametrize("processes", [1, pytest.param(2, marks=pytest.mark.wide)])
def test_a_second_worker_of_a_name_is_refused_and_takes_no_job_from_the_first(site: Site, processes: int) -> None:
    enqueue("load.hold", HELD)
    options = ("--processes", str(processes), "--concurrency", str(HELD))
    first = site.worker("twin", *options, **OJS)
    eventually(lambda: len(site.runs("began")) == HELD, "the first holds all jobs")
    second = site.start("ojs_worker", "--name", "twin", *options, **OJS)
    said, _ = second.communicate(timeout=60)
    assert second.returncode == 1, said + site.logs()
    assert "has the worker name 'twin" in site.logs()
    assert Job.objects.filter(state="active").count() == HELD, "it handed back nothing"
    assert Worker.objects.count() == processes
    site.let_go()
    eventually(settled, "the first goes on")
    site.stop(first)
    assert site.runs("began") == dict.fromkeys(range(HELD), 1)


@pytest.mark.wide
def test_a_group_that_was_killed_and_starts_again_under_its_name_gets_its_jobs_back_at_once(site: Site) -> None:
    """Neither the reservations nor the heartbeat timeout would give them back within ten minutes."""
    enqueue("load.hold", HELD)
    victim = site.worker("again", "--concurrency", str(HELD), **OJS)
    eventually(lambda: len(site.runs("began")) == HELD, "the victim holds all jobs")
    site.kill(victim)
    site.let_go()
    heir = site.worker("again", "--concurrency", str(HELD), **OJS)
    eventually(settled, "the heir did the work")
    site.stop(heir)
    assert site.runs("ended") == dict.fromkeys(range(HELD), 1)
    assert set(Job.objects.values_list("state", "attempt")) == {("completed", 2)}
    ends = Event.objects.filter(type="worker.stopped", worker_id="again").order_by("time")
    assert [end.data["reason"] for end in ends] == ["error", "signal"]
