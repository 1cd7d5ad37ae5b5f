"""The wall clock of one of two hosts is set while both run jobs: each job runs once, and schedules fire on time."""

from __future__ import annotations

import datetime as dt
import itertools
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from django.db import connection
from django.utils import timezone

from django_ojs.cron import schedules
from django_ojs.jobs.push import push
from django_ojs.models import CronRun, Event, Job
from tests import stepping
from tests.processes.conftest import Site, enqueue
from tests.waiting import eventually

pytestmark = pytest.mark.wide

JOBS = 8


@pytest.fixture
def wrong(child_environment: dict[str, str], tmp_path: Path) -> Iterator[Site]:
    """A site on a host whose wall clock is wrong by as many seconds as the file `wall` in its folder says."""
    folder = tmp_path / "wrong"
    folder.mkdir()
    (folder / "wall").write_text("0")
    path = os.pathsep.join([str(Path(__file__).with_name("wrongclock")), child_environment["PYTHONPATH"]])
    site = Site(child_environment | {"PYTHONPATH": path, stepping.FILE: str(folder / "wall")}, folder)
    try:
        yield site
    finally:
        site.end()


@pytest.mark.parametrize("seconds", [3600, pytest.param(-3600, marks=pytest.mark.wide)])
def test_a_step_on_one_host_ruins_no_job_of_any_host(wrong: Site, site: Site, tmp_path: Path, seconds: int) -> None:
    settings = {"VISIBILITY_TIMEOUT": 30, "HEARTBEAT_TIMEOUT": 30}
    sites = [wrong] if connection.vendor == "sqlite" else [wrong, site]  # all of SQLite's processes are on one host
    for each, name in zip(sites, ("wrong", "right"), strict=False):
        # The first to start leads.
        each.worker(name, "--queues", "default", "--concurrency", str(JOBS // len(sites)), **settings)
    enqueue("load.hold", JOBS)
    eventually(lambda: sum((each.runs("began") for each in sites), Counter()).total() == JOBS, "all jobs run")
    delayed = timezone.now() + dt.timedelta(minutes=30)
    push([{"type": "load.note", "args": [99], "options": {"delay_until": delayed.isoformat()}}])
    schedules.register({"name": "each-second", "cron": "@every 1s", "type": "load.nowhere", "queue": "nowhere",
                   "overlap_policy": "allow"})  # fmt: skip

    (tmp_path / "wrong" / "wall").write_text(str(seconds))
    stepped = timezone.now()
    eventually(lambda: CronRun.objects.filter(triggered_at__gt=stepped).count() >= 5, "schedules go on firing")
    fired = list(CronRun.objects.order_by("scheduled_at").values_list("scheduled_at", flat=True))
    # A scheduler that comes late leaves a tick out; none comes twice or in between.
    gaps = [later - earlier for earlier, later in itertools.pairwise(fired)]
    assert all(gap > dt.timedelta(0) and gap % dt.timedelta(seconds=1) == dt.timedelta(0) for gap in gaps)
    assert fired[-1] < timezone.now() + dt.timedelta(minutes=1)
    for each in sites:
        each.let_go()
    eventually(lambda: not Job.objects.filter(type="load.hold").live().exists(), "the jobs end")
    for each in sites:
        each.stop(*each.processes)

    assert sum((each.runs("began") for each in sites), Counter()) == Counter(range(JOBS))
    assert set(Job.objects.filter(type="load.hold").values_list("state", "attempt")) == {("completed", 1)}
    assert not Event.objects.filter(type__in=["job.stalled", "job.failed", "job.timeout", "job.discarded"]).exists()
    assert Job.objects.get(type="load.note").state == "scheduled", "it is due in half an hour"
