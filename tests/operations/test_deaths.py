"""Processes of workers that died: which jobs are to blame, which are run alone, and what that costs each."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from django.test import Client

from django_ojs.doctor import Site, attention
from django_ojs.jobs.fetch import Fetch, fetch
from django_ojs.jobs.finish import Failure, ack, fail
from django_ojs.jobs.push import push
from django_ojs.jobs.retry import retry
from django_ojs.jobs.timers import apply_due
from django_ojs.models import Event, Job, WorkerDeath
from django_ojs.models.job import JobRow
from django_ojs.queues.configuration import configure
from django_ojs.statistics import history
from django_ojs.store.values import Ack
from django_ojs.workerregistry import deaths
from django_ojs.workerregistry.dead import hand_back, rescue_dead_workers
from django_ojs.workerregistry.deaths import Death
from django_ojs.workerregistry.heartbeat import Beat, beat
from tests.conftest import FrozenClock

pytestmark = pytest.mark.django_db(transaction=True)


def job(type: str = "report.make", **members: Any) -> dict[str, Any]:
    return {"type": type, "args": [], **members}


def claimed(number: int, worker: str = "w", **how: Any) -> list[JobRow]:
    rows = fetch(Fetch(["default"], count=number, worker_id=worker, check_worker=False, **how))
    assert len(rows) == number
    return rows


def killed(*ran: JobRow, memory_mb: float | None = 812.0) -> Death:
    return Death("SIGKILL", memory_mb=memory_mb, running=frozenset((row["id"], row["attempt"]) for row in ran))


def waiting(types: tuple[str, ...] = ("report.make",)) -> list[uuid.UUID]:
    return deaths.waiting({"default"}, types)


def test_one_that_ran_alone_is_to_blame_and_says_how_its_worker_died() -> None:
    push([job(), job()])
    ran, line = claimed(2)
    answer = hand_back("w", death=killed(ran))
    assert (answer.returned, answer.blamed, [row["id"] for row in answer.ran]) == (2, True, [ran["id"]])
    guilty, other = Job.objects.get(pk=ran["id"]), Job.objects.get(pk=line["id"])
    assert (guilty.state, guilty.losses, guilty.suspected, guilty.uncounted) == ("available", 1, True, 1)
    assert guilty.errors is not None
    (error,) = guilty.errors
    assert (error["type"], error["signal"], error["memory_mb"]) == ("worker_death", "SIGKILL", 812.0)
    assert error["message"] == (
        "The worker 'w' was killed by SIGKILL and had 812 MB of memory while it ran this job and no other."
    )
    assert (other.state, other.losses, other.suspected, other.uncounted) == ("available", 0, None, 1)
    assert other.errors is None, "its handler had not begun"
    stalled = Event.objects.get(type="job.stalled")
    assert (stalled.job_id, stalled.data["signal"], stalled.data["memory_mb"]) == (ran["id"], "SIGKILL", 812.0)


def test_of_several_each_is_suspected_and_none_loses_anything() -> None:
    push([job(), job(), job()])
    first, second, _ = claimed(3)
    assert not hand_back("w", death=killed(first, second)).blamed
    rows = list(Job.objects.order_by("pk").values_list("suspected", "losses", "uncounted", "errors", "state"))
    assert rows == [(True, 0, 1, None, "available")] * 2 + [(None, 0, 1, None, "available")]
    assert not Event.objects.filter(type__in=["job.stalled", "job.failed"]).exists()


def test_a_handler_whose_job_another_has_may_have_done_it() -> None:
    """Its run goes on in the process although the job was cancelled; so the other is not alone."""
    push([job(), job()])
    gone, other = claimed(2)
    Job.objects.filter(pk=gone["id"])._raw_delete("default")
    assert not hand_back("w", death=killed(gone, other)).blamed
    assert Job.objects.get().losses == 0


def test_one_that_the_parent_told_to_end_leaves_no_trace() -> None:
    push([job()])
    claimed(1)
    hand_back("w")
    assert Job.objects.values_list("suspected", "losses", "errors").get() == (None, 0, None)
    assert not WorkerDeath.objects.exists()


def test_suspected_jobs_are_left_by_processes_that_run_others(frozen_clock: FrozenClock) -> None:
    push([job(priority=9), job(priority=9), job()])
    first, second = claimed(2)
    hand_back("w", death=killed(first, second))
    assert [row["priority"] for row in fetch(Fetch(["default"], count=9, check_worker=False, unsuspected=True))] == [0]
    assert waiting() == [first["id"], second["id"]]
    (row,) = fetch(Fetch(["default"], count=9, check_worker=False, only=waiting()[:1]))
    assert row["id"] == first["id"]
    assert waiting() == [second["id"]], "the other runs"


def test_workers_of_other_languages_get_them_as_any_other() -> None:
    push([job()])
    (row,) = claimed(1)
    hand_back("w", death=killed(row))
    assert claimed(1, "other")[0]["id"] == row["id"]


@pytest.mark.parametrize("limit", ["queue", "key"])
def test_limits_hold_for_them_too(limit: str) -> None:
    own = {"rate_limit": {"key": "k", "concurrency": 1}} if limit == "key" else {}
    push([job(**own), job(**own), job("report.other")])
    first, second = claimed(2)[:2] if limit == "queue" else (claimed(1)[0], None)
    ran = [row for row in (first, second) if row]
    hand_back("w", death=Death("SIGKILL", running=frozenset([*killed(*ran).running, (uuid.uuid4(), 1)])))
    if limit == "queue":
        configure("default", {"concurrency": 1})
    busy = fetch(Fetch(["default"], count=9, check_worker=False, unsuspected=True))
    suspects = {row["id"] for row in ran}
    assert busy
    assert not suspects & {row["id"] for row in busy}
    assert fetch(Fetch(["default"], count=1, check_worker=False, only=waiting()[:1])) == []
    ack([Ack(row["id"]) for row in busy])
    assert [row["id"] for row in fetch(Fetch(["default"], count=1, check_worker=False, only=waiting()[:1]))] == [
        ran[0]["id"]
    ]


def test_those_that_were_lost_least_often_come_first() -> None:
    push([job(priority=5), job()])
    high, low = claimed(2)
    hand_back("w", death=killed(high, low))
    assert waiting() == [high["id"], low["id"]]
    (row,) = fetch(Fetch(["default"], worker_id="alone", check_worker=False, only=[high["id"]]))
    hand_back("alone", death=killed(row))
    assert waiting() == [low["id"], high["id"]]


@pytest.mark.parametrize("end", ["ack", "fail", "discard"])
def test_a_run_that_ends_clears_it(end: str) -> None:
    push([job(retry={"max_attempts": 1 if end == "discard" else 2, "initial_interval": "PT1S"})])
    (row,) = claimed(1)
    hand_back("w", death=killed(row, {**row, "id": uuid.uuid4()}))
    (row,) = claimed(1)
    if end == "ack":
        ack([Ack(row["id"])])
    else:
        fail([Failure(row["id"], {"message": "no"})])
    assert Job.objects.get().state == {"ack": "completed", "fail": "retryable", "discard": "discarded"}[end]
    assert waiting() == []
    assert not WorkerDeath.objects.filter(open=True).exists()
    if end == "discard":
        retry([row["id"]])
    if end != "ack":
        assert Job.objects.get().suspected is None


def test_one_that_is_handed_back_while_it_runs_alone_stays_suspected() -> None:
    push([job()])
    (row,) = claimed(1)
    hand_back("w", death=killed(row, {**row, "id": uuid.uuid4()}))
    (row,) = claimed(1)
    fail([Failure(row["id"], requeue=True)])
    assert waiting() == [row["id"]]


def test_what_kills_again_and_again_is_given_up(settings: Any) -> None:
    settings.OJS = {"POISON_LIMIT": 3}
    push([job(retry={"max_attempts": 1})])
    for _ in range(3):
        (row,) = claimed(1)
        hand_back("w", death=killed(row))
    found = Job.objects.get()
    assert (found.state, found.dead_letter, found.attempt, found.uncounted) == ("discarded", True, 3, 3)
    assert found.errors is not None
    assert [error["type"] for error in found.errors] == ["worker_death", "worker_death", "visibility_timeout"]
    assert found.errors[-1]["memory_mb"] == 812.0
    assert waiting() == []


def ours(worker: str, rows: list[JobRow]) -> None:
    """A worker of ours that has sent a heartbeat for these jobs."""
    beat(Beat(worker, [row["id"] for row in rows], info={"memory_mb": 300.0, "pid": 1}, incarnation="m:1:t"))


@pytest.mark.parametrize("number", [1, 3])
def test_of_a_silent_worker_of_ours_each_is_suspected(frozen_clock: FrozenClock, number: int) -> None:
    push([job()] * number)
    ours("w", claimed(number))
    frozen_clock.advance(seconds=100)
    assert rescue_dead_workers() == number
    found = list(Job.objects.values_list("losses", "suspected", "uncounted", "state"))
    assert found == [(int(number == 1), True, 1, "available")] * number
    assert [death.memory_mb for death in WorkerDeath.objects.all()] == [300.0] * number
    assert len(waiting()) == number


def test_of_a_silent_worker_of_another_language_each_has_a_loss(frozen_clock: FrozenClock) -> None:
    push([job()] * 2)
    beat(Beat("w", [row["id"] for row in claimed(2)]))
    frozen_clock.advance(seconds=100)
    rescue_dead_workers()
    assert list(Job.objects.values_list("losses", "suspected", "uncounted")) == [(1, None, None)] * 2


@pytest.mark.parametrize("lives", [True, False])
def test_reservations_that_end_after_their_worker(frozen_clock: FrozenClock, settings: Any, lives: bool) -> None:
    settings.OJS = {"HEARTBEAT_TIMEOUT": 600}
    push([job(visibility_timeout=60)] * 2)
    ours("w", claimed(2))
    frozen_clock.advance(seconds=70)
    if lives:
        ours("w", [])
    assert apply_due() == 2
    expected = (1, None, None) if lives else (1, True, 1)
    assert list(Job.objects.values_list("losses", "suspected", "uncounted")) == [expected] * 2


def test_the_doctor_and_the_alerts_name_the_type_that_does_it(frozen_clock: FrozenClock) -> None:
    push([job("video.cut"), job(), job()])
    rows = claimed(3)
    hand_back("w", death=killed(*rows))
    (guilty,) = fetch(Fetch(["default"], worker_id="alone", check_worker=False, only=[rows[0]["id"]]))
    hand_back("alone", death=killed(guilty))

    def found() -> dict[str, Any]:
        findings = attention(Site("default"))
        return {finding.id: finding for finding in findings if finding.id in ("type-kills-workers", "workers-died")}

    both = found()
    assert both["type-kills-workers"].about == "video.cut"
    assert "The last one: SIGKILL, 812 MB." in both["type-kills-workers"].says
    assert both["workers-died"].figures == {"deaths": 1, "signal": "SIGKILL", "memory_mb": 812.0}
    frozen_clock.advance(hours=2)
    assert found() == {}


def test_the_doctor_names_a_worker_whose_threads_have_died(frozen_clock: FrozenClock) -> None:
    for replaced in (0, 2):
        beat(Beat("w", info={"hostname": "here", "threads_replaced": replaced}, incarnation="here:1:x"))
        found = [one for one in attention(Site("default")) if one.id == "worker-threads-died"]
        assert [one.figures for one in found] == [{"threads": 2, "host": "here"}] * bool(replaced)


def test_what_is_noted_goes_after_two_days(frozen_clock: FrozenClock) -> None:
    push([job(), job()])
    done, left = claimed(2)
    hand_back("w", death=killed(done, left))
    ack([Ack(row["id"]) for row in fetch(Fetch(["default"], check_worker=False, only=[done["id"]]))])
    waiting()
    frozen_clock.advance(days=3)
    history.roll_up()
    assert [death.job_id for death in WorkerDeath.objects.all()] == [left["id"]], "else it would wait for ever"


def test_the_page_of_the_job_says_how_its_worker_died(admin_client: Client) -> None:
    push([job(), job()])
    rows = claimed(2)
    hand_back("w", death=killed(*rows))

    def page() -> str:
        return admin_client.get(f"/admin/django_ojs/job/{rows[0]['id']}/change/").content.decode()

    body = page()
    assert all(
        text in body for text in ("Worker died", "SIGKILL, 812 MB", "others ran beside it", "alone in a process")
    )
    (row,) = fetch(Fetch(["default"], worker_id="alone", check_worker=False, only=[rows[0]["id"]]))
    hand_back("alone", death=killed(row, memory_mb=1204.0))
    body = page()
    assert all(text in body for text in ("SIGKILL, 1,204 MB", "it ran alone", "Losses in a row"))
