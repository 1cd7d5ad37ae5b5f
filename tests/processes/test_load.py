"""Many processes, many jobs: nothing runs twice, nothing is lost, and the books add up.

`OJS_TEST_FULL=1` makes it 20,000 jobs.
"""

from __future__ import annotations

import os
import subprocess

import pytest
from django.db import connection
from django.db.models import Count, Sum

from django_ojs.models import Event, Job, RateStart, Worker
from django_ojs.queues.configuration import configure
from tests.processes.conftest import Site, enqueue, settled
from tests.waiting import eventually

JOBS = 20_000 if os.environ.get("OJS_TEST_FULL") == "1" else 2_000
PROCESSES = 8

pytestmark = pytest.mark.slow


def test_eight_workers_run_every_job_exactly_once(site: Site) -> None:
    workers = [site.start("ojs_worker", "--name", f"w{n}", "--concurrency", "4") for n in range(PROCESSES)]
    eventually(lambda: Worker.objects.filter(last_heartbeat_at__isnull=False).count() == PROCESSES, "all joined")
    enqueue("load.note", JOBS)
    eventually(settled, "all jobs ended", timeout=500)
    site.stop(*workers)

    assert site.runs("ran") == dict.fromkeys(range(JOBS), 1), "each ran once, none twice, none not at all"
    jobs = list(Job.objects.only("state", "attempt", "errors", "result"))
    assert {(job.state, job.attempt, job.errors) for job in jobs} == {("completed", 1, None)}
    assert sorted(job.result for job in jobs) == list(range(JOBS))
    assert Job.objects.order_by().values("worker_id").distinct().count() > 1, "one worker did everything"

    told = dict(Event.objects.exclude(job_id=None).order_by().values_list("type").annotate(Count("id")))
    assert told == dict.fromkeys(["job.enqueued", "job.started", "job.completed"], JOBS) | {
        kind: number for kind, number in told.items() if kind == "job.heartbeat"
    }
    assert Job.objects.aggregate(total=Sum("attempt"))["total"] == told["job.started"]
    once = Event.objects.filter(type="job.started").order_by().values("job_id").annotate(n=Count("id")).filter(n__gt=1)
    assert not once.exists()
    assert not Worker.objects.exists()


@pytest.mark.sqlite_too
def test_no_two_claims_give_out_the_same_job(site: Site) -> None:
    enqueue("load.note", JOBS)
    claimants = [site.start("-m", "tests.processes.claim", f"p{n}") for n in range(PROCESSES)]
    for claimant in claimants:
        assert claimant.stdout is not None
        assert claimant.stdout.readline().strip() == "ready", site.logs()
    given: dict[str, list[str]] = {}
    for claimant in claimants:
        assert claimant.stdin is not None
        claimant.stdin.write("go\n")
        claimant.stdin.flush()
    for number, claimant in enumerate(claimants):
        given[f"p{number}"] = finish(claimant, site)
    ids = [job_id for found in given.values() for job_id in found]
    assert len(ids) == JOBS, connection.vendor
    assert len(set(ids)) == JOBS
    held = {
        (str(pk), holder) for pk, holder in Job.objects.filter(state="active", attempt=1).values_list("pk", "worker_id")
    }
    assert held == {(job_id, name) for name, found in given.items() for job_id in found}


@pytest.mark.parametrize("limited", ["jobs", pytest.param("queue", marks=pytest.mark.wide)])
def test_a_rate_is_used_up_by_starts_that_happened_and_by_no_others(site: Site, limited: str) -> None:
    """Eight processes, a hundred starts an hour: a hundred jobs start, and as many starts are counted."""
    rate = {"rate": {"limit": 100, "period": "1h"}}
    if limited == "queue":
        configure("default", {"rate_limit": rate})
    enqueue("load.note", 400, **({"rate_limit": {"key": "api", **rate}} if limited == "jobs" else {}))
    claimants = [site.start("-m", "tests.processes.claim", f"p{n}", "5") for n in range(PROCESSES)]
    for claimant in claimants:
        assert claimant.stdout is not None
        assert claimant.stdout.readline().strip() == "ready", site.logs()
    for claimant in claimants:
        assert claimant.stdin is not None
        claimant.stdin.write("go\n")
        claimant.stdin.flush()
    given = [job_id for claimant in claimants for job_id in finish(claimant, site)]
    assert (len(given), len(set(given))) == (100, 100)
    assert Job.objects.filter(state="active").count() == 100
    assert RateStart.objects.aggregate(total=Sum("count"))["total"] == 100


def finish(process: subprocess.Popen[str], site: Site) -> list[str]:
    output, _ = process.communicate(timeout=500)
    assert process.returncode == 0, site.logs()
    return output.split()
