"""Workers that die, by kill -9 or by SIGTERM, with jobs in their hands."""

from __future__ import annotations

from typing import Any

import pytest

from django_ojs.models import Event, Job, Worker
from tests.processes.conftest import Site, enqueue, settled
from tests.waiting import eventually

HELD = 6

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    "ojs,options,kind",
    [
        pytest.param({"HEARTBEAT_TIMEOUT": 1.0}, {}, "worker_death", id="silent-worker"),
        pytest.param(
            {"HEARTBEAT_TIMEOUT": 600.0, "WORKER_VISIBILITY_TIMEOUT": 1},
            {},
            "visibility_timeout",
            id="workers-reservation",
            marks=pytest.mark.wide,
        ),
        pytest.param(
            {"HEARTBEAT_TIMEOUT": 600.0},
            {"visibility_timeout": "1s", "retry": {"max_attempts": 9}},
            "visibility_timeout",
            id="jobs-own-reservation",
            marks=pytest.mark.wide,
        ),
    ],
)
def test_the_jobs_of_a_killed_worker_come_back_and_complete_once(
    site: Site, ojs: dict[str, Any], options: dict[str, Any], kind: str
) -> None:
    enqueue("load.hold", HELD, **options)
    victim = site.worker("victim", "--no-scheduler", "--concurrency", str(HELD), **ojs)
    eventually(lambda: len(site.runs("began")) == HELD, "the victim holds all jobs")
    site.kill(victim)
    assert Job.objects.filter(state="active", worker_id="victim").count() == HELD
    keeper = site.start("ojs_scheduler", **ojs)
    eventually(lambda: not Job.objects.filter(state="active").exists(), "the jobs came back")
    site.stop(keeper)
    # The heir is held to nothing of a second's length: on a busy machine it would lose jobs by right.
    Job.objects.update(visibility_ms=None)
    site.let_go()
    heir = site.worker("heir")
    eventually(settled, "the heir did the work")
    site.stop(heir)

    assert site.runs("began") == dict.fromkeys(range(HELD), 2)
    assert site.runs("ended") == dict.fromkeys(range(HELD), 1), "completed exactly once"
    for job in Job.objects.all():
        assert (job.state, job.attempt, job.losses) == ("completed", 2, 0)
        assert job.worker_id.startswith("heir-alone"), "any of them may have killed the victim"
        assert job.errors is not None
        assert [error["type"] for error in job.errors] == [kind]
        told = Event.objects.filter(job_id=job.pk).exclude(type="job.heartbeat").order_by("id")
        names = ["job.enqueued", "job.started", "job.stalled", "job.started", "job.completed"]
        assert list(told.values_list("type", flat=True)) == names


@pytest.mark.wide
def test_a_job_that_kills_its_workers_is_given_up(site: Site) -> None:
    ojs = {"HEARTBEAT_TIMEOUT": 600.0, "WORKER_VISIBILITY_TIMEOUT": 1, "POISON_LIMIT": 2}
    enqueue("load.hold", 1)
    keeper = site.start("ojs_scheduler", **ojs)
    for life in (1, 2):
        victim = site.worker(f"victim{life}", "--no-scheduler", **ojs)
        # More than once where a busy machine lets the victim's reservation run out: that is a loss, too.
        eventually(lambda: site.runs("began")[0] >= life, "the victim holds the job")  # noqa: B023
        site.kill(victim)
    job = eventually(lambda: Job.objects.filter(state="discarded").first(), "the job is given up")
    site.stop(keeper)
    assert (job.attempt, job.dead_letter) == (2, True)
    assert (job.error["type"], "2 times in a row" in job.error["message"]) == ("visibility_timeout", True)


@pytest.mark.wide
def test_sigterm_drains_what_ends_in_time_and_hands_back_the_rest(site: Site) -> None:
    enqueue("load.hold", HELD)
    patient = site.worker("patient", "--no-scheduler", "--concurrency", str(HELD // 2), SHUTDOWN_GRACE_PERIOD=60.0)
    eventually(lambda: len(site.runs("began")) == HELD // 2, "the first half is held")
    hasty = site.worker("hasty", "--no-scheduler", "--concurrency", str(HELD), SHUTDOWN_GRACE_PERIOD=0.1)
    eventually(lambda: len(site.runs("began")) == HELD, "the second half is held")
    site.stop(hasty)
    back = Job.objects.filter(state="available", worker_id="", attempt=1)
    assert [job.errors for job in back] == [None] * (HELD // 2)
    patient.terminate()
    eventually(lambda: Worker.objects.filter(pk="patient", state="terminate").exists(), "the patient one drains")
    assert Job.objects.filter(state="available").count() == HELD // 2, "a draining worker claims nothing"
    site.let_go()
    patient.wait()
    assert patient.returncode == 0, site.logs()
    assert Job.objects.filter(state="completed", worker_id="patient").count() == HELD // 2
    heir = site.worker("heir")
    eventually(settled, "the heir did the rest")
    site.stop(heir)
    assert site.runs("ended") == dict.fromkeys(range(HELD), 1)
    assert sum(site.runs("began").values()) == HELD + HELD // 2
    assert not Worker.objects.exists()
    assert not Event.objects.filter(type__in=["job.failed", "job.stalled", "job.discarded"]).exists()
