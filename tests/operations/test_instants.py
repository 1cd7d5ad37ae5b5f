"""The instants of a job are in the order of what happened, whatever the moment at which each statement began."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest

from django_ojs import clock
from django_ojs.events import log
from django_ojs.jobs.cancel import cancel
from django_ojs.jobs.fetch import Fetch, fetch
from django_ojs.jobs.finish import Ack, Failure, ack, fail
from django_ojs.jobs.progress import ProgressReport, of, report
from django_ojs.jobs.push import push
from django_ojs.models import Event, Job
from django_ojs.models.statistics import CountDelta
from django_ojs.store import store_of

pytestmark = pytest.mark.django_db

STARTED_EARLIER = dt.timedelta(milliseconds=17)  #: a statement's look at the clock, before what another committed


def make(count: int = 3, **fields: Any) -> list[Any]:
    found = push([{"type": "a.b", "args": [number], "queue": "q", **fields} for number in range(count)])
    return [each.row["id"] for each in found if each.row is not None]


def check(jobs: list[Any]) -> None:
    """Enqueued, started and ended in this order, and the events of each with times that ascend."""
    for job in Job.objects.filter(pk__in=jobs):
        told = [at for at in (job.enqueued_at, job.started_at, job.finished_at) if at is not None]
        assert told == sorted(told), job.state
        times = list(Event.objects.filter(job_id=job.pk).order_by("id").values_list("time", flat=True))
        assert times == sorted(times), job.state
        started = Event.objects.filter(job_id=job.pk, type="job.started").last()
        if started is not None and job.enqueued_at is not None and job.started_at is not None:
            assert started.time == job.started_at
    waits = [event["data"]["wait_ms"] for event in log.read(types=["job.started"], limit=1000).events]
    assert all(wait >= 0 for wait in waits)
    assert all(delta.wait_ms >= 0 and delta.run_ms >= 0 for delta in CountDelta.objects.all())


@pytest.mark.parametrize("limited", [False, True])
@pytest.mark.parametrize("raw", [False, True])
def test_no_job_starts_before_it_was_enqueued_though_the_claim_began_earlier(
    monkeypatch: pytest.MonkeyPatch, limited: bool, raw: bool
) -> None:
    store = store_of("default")
    queue_status = type(store).queue_status
    jobs: list[Any] = []
    limit = {"rate_limit": {"key": "k", "concurrency": 9}} if limited else {}
    make(1, **limit)

    def late(*args: Any, **given: Any) -> Any:
        found = queue_status(store, *args, **given)
        jobs.extend(make(**limit))
        return found

    monkeypatch.setattr(store, "queue_status", late)
    rows = fetch(Fetch(["q"], count=9, raw=raw))
    assert {row["id"] for row in rows} >= set(jobs)
    check(jobs)


def test_no_promoted_job_starts_before_it_was_promoted() -> None:
    jobs = make(options={"delay_until": (clock.now("default") + dt.timedelta(milliseconds=1)).isoformat()})
    while not (rows := fetch(Fetch(["q"], count=9))):
        pass
    assert {row["id"] for row in rows} <= set(jobs)
    check(jobs)


@pytest.mark.parametrize(
    "verb",
    [
        lambda jobs: ack([Ack(job) for job in jobs]),
        lambda jobs: fail([Failure(job, {"message": "no"}) for job in jobs]),
        lambda jobs: fail([Failure(job, {"message": "no", "retryable": False}) for job in jobs]),
        cancel,
    ],
    ids=["ack", "retry", "discard", "cancel"],
)
def test_no_job_ends_before_it_started_though_the_report_began_earlier(frozen_clock: Any, verb: Any) -> None:
    jobs = make()
    assert len(fetch(Fetch(["q"], count=9))) == 3
    frozen_clock.move_to(frozen_clock.now - STARTED_EARLIER)
    verb(jobs)
    assert not Job.objects.filter(state="active").exists()
    check(jobs)


def test_no_report_of_progress_is_hidden_though_it_began_earlier_than_the_claim_that_it_follows(
    frozen_clock: Any,
) -> None:
    (job, *_) = make()
    assert len(fetch(Fetch(["q"], count=9))) == 3
    frozen_clock.move_to(frozen_clock.now - STARTED_EARLIER)
    report([ProgressReport(job, percent=40.0)])
    assert [known.percent for known in of(Job.objects.filter(pk=job).rows(), "default").values()] == [40.0]
    check([job])
