"""The HTTP binding, `/metrics`, the admin's overview and the commands answer one question with one number."""

from __future__ import annotations

import datetime as dt
import io
import json
from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any

import pytest
from django.core.management import call_command
from django.db.models import Sum
from django.test import Client
from prometheus_client.parser import text_string_to_metric_families

from django_ojs.admin import overview
from django_ojs.events import order
from django_ojs.jobs.cancel import cancel
from django_ojs.jobs.fetch import Fetch, fetch
from django_ojs.jobs.finish import Ack, Failure, ack, fail
from django_ojs.jobs.push import push
from django_ojs.models import CountDelta, Event, Job
from django_ojs.states import State
from django_ojs.statistics import counters, eventcounts, jobtypes, percentiles
from django_ojs.workerregistry.registration import register
from tests.conftest import FrozenClock

pytestmark = pytest.mark.django_db

QUEUES = ("mail", "reports", "nobody")
STATES = [state.value for state in State]


@pytest.fixture(params=["folded", "not folded", "partly folded"])
def store(request: pytest.FixtureRequest, api: Any, frozen_clock: FrozenClock) -> None:
    """Jobs in every state, in queues that workers serve and in one that none does."""
    register("w-1", {"queues": ["mail", "reports"], "concurrency": 4})
    for minute in range(8):
        push([{"type": "mail.send", "queue": "mail", "args": [], "priority": n} for n in range(9)])
        push([{"type": "report.make", "queue": "reports", "args": []}])
        push([{"type": "mail.send", "queue": "nobody", "args": []}] * (minute % 2))
        frozen_clock.advance(seconds=7 + minute)
        ids = [row["id"] for row in fetch(Fetch(["mail", "reports"], count=8, worker_id="w-1"))]
        frozen_clock.advance(seconds=3)
        ack([Ack(job_id) for job_id in ids[:5]])
        fail([Failure(ids[5], {"type": "ValueError", "message": "never", "retryable": False})])
        fail([Failure(ids[6], {"type": "OSError", "message": "later"})])
        frozen_clock.advance(seconds=40)
        if request.param == "partly folded" and minute == 4:
            counters.fold()
    register("w-1", {})
    push([{"type": "mail.send", "queue": "mail", "args": [], "scheduled_at": "2099-01-01T00:00:00Z"}])
    push([{"type": "mail.send", "queue": "reports", "args": [], "pending": True}])
    cancel([job.pk for job in Job.objects.filter(queue="nobody", state="available")[:2]])
    order.catch_up("default")
    eventcounts.catch_up("default")
    if request.param == "folded":
        while counters.fold():
            pass


Scrape = Callable[..., float]


@pytest.fixture
def scrape(store: None, api: Any) -> Scrape:
    """`scrape("ojs_queue_depth", queue="mail")`: the sum of the samples that carry these labels."""
    text = api.get("/metrics", {"format": "prometheus"}).content.decode()
    families = list(text_string_to_metric_families(text))

    def value(name: str, **labels: str) -> float:
        samples = [s for family in families for s in family.samples if s.name == name]
        assert samples, name
        return sum(s.value for s in samples if labels.items() <= s.labels.items())

    return value


@pytest.fixture
def page(store: None, admin_client: Client) -> Any:
    """What the overview shows, as its template gets it."""
    return admin_client.get("/admin/django_ojs/job/overview/").context


def command(name: str, *args: str) -> Any:
    out = io.StringIO()
    call_command(name, *args, "--json", stdout=out)
    return json.loads(out.getvalue())


@pytest.fixture
def lines(page: Any) -> dict[str, Any]:
    return {one["line"].name: one["line"] for one in page["queues"]}


def test_jobs_by_state(api: Any, scrape: Scrape, page: Any) -> None:
    true = Counter(Job.objects.values_list("state", flat=True))
    assert {state for state in STATES if true[state]} == set(STATES)
    assert api.get("/admin/stats").json()["jobs"] == true
    assert api.get("/health").json()["jobs"] == true
    assert {state: int(scrape("ojs_queue_jobs", state=state)) for state in STATES} == true
    assert {state: int(number) for state, number in page["states"]} == true
    assert {state: command("ojs_status")["jobs"][state] for state in STATES} == true
    assert api.get("/metrics").json()["jobs_active"] == true["active"]


def test_jobs_of_each_queue_by_state(api: Any, scrape: Scrape, lines: dict[str, Any]) -> None:
    true: dict[str, Counter[str]] = defaultdict(Counter)
    for queue, state in Job.objects.values_list("queue", "state"):
        true[queue][state] += 1
    told = {door: {one["name"]: one for one in facts} for door, facts in {
        "status": command("ojs_status")["queues"], "queues": command("ojs_queues", "list"),
        "binding": api.get("/queues").json()["queues"],
    }.items()}  # fmt: skip
    assert set(true) == set(QUEUES)
    for queue in QUEUES:
        stats = api.get(f"/queues/{queue}/stats").json()["stats"]
        admin = api.get(f"/admin/queues/{queue}").json()["counts"]
        for state in STATES:
            assert stats[state] == admin[state] == true[queue][state], (queue, state)
            assert {facts[queue][state] for facts in told.values()} == {true[queue][state]}, (queue, state)
            assert scrape("ojs_queue_jobs", queue=queue, state=state) == true[queue][state], (queue, state)
        assert scrape("ojs_queue_depth", queue=queue) == true[queue]["available"]
        assert lines[queue].active == scrape("ojs_queue_active", queue=queue) == true[queue]["active"]
        waiting = ("available", "scheduled", "retryable", "pending")
        assert lines[queue].waiting == stats["depth"] - stats["active"] == sum(true[queue][state] for state in waiting)


def test_dead_letters(api: Any, scrape: Scrape, page: Any) -> None:
    true = Job.objects.dead_letters().count()
    assert true > 5
    assert int(page["dead"]) == command("ojs_status")["jobs"]["dead"] == scrape("ojs_dead_letter_depth") == true
    assert sum(queue["dead"] for queue in command("ojs_queues", "list")) == true
    assert sum(api.get(f"/queues/{queue}/stats").json()["stats"]["dead"] for queue in QUEUES) == true
    assert api.get("/dead-letter/stats").json()["total"] == true


def test_queues_that_no_worker_serves(api: Any, scrape: Scrape, page: Any) -> None:
    true = {"nobody": Job.objects.filter(queue="nobody", state="available").count()}
    assert true["nobody"]
    assert command("ojs_status")["unserved_queues"] == api.get("/health").json()["queues"]["unserved"] == true
    told = {one["about"]: one["says"] for one in page["attention"] if one["id"] == "queue-unserved"}
    assert told == {"nobody": f"No worker serves the queue nobody, and jobs wait in it: {true['nobody']}."}
    assert {queue: scrape("ojs_queue_unserved", queue=queue) for queue in QUEUES} == dict.fromkeys(QUEUES, 0) | true


def test_workers(api: Any, scrape: Scrape, page: Any) -> None:
    running = [worker for worker in command("ojs_status")["workers"] if worker["state"] == "running"]
    assert len(running) == len(page["workers"]) == scrape("ojs_workers_active") == 1
    assert api.get("/admin/stats").json()["workers"] == api.get("/health").json()["workers"]["active"] == 1
    assert api.get("/metrics").json()["workers_active"] == 1


def test_jobs_completed_a_minute(api: Any, lines: dict[str, Any]) -> None:
    for queue in QUEUES:
        of_queue = api.get("/admin/stats", {"queue": queue}).json()["throughput"]
        listed = api.get(f"/admin/queues/{queue}").json()["throughput"]
        assert lines[queue].rate == of_queue["completed_per_min"], queue
        assert listed["processed_per_minute"] == of_queue["processed_per_minute"], queue
    total = api.get("/admin/stats").json()["throughput"]["completed_per_min"]
    assert total == pytest.approx(sum(line.rate for line in lines.values()), abs=0.03)
    assert total > 4


def test_work_of_the_last_hour(api: Any, scrape: Scrape) -> None:
    completed = Job.objects.filter(state="completed").count()
    failed = Job.objects.filter(state="discarded").count()
    stats = [api.get(f"/queues/{queue}/stats").json()["stats"] for queue in QUEUES]
    past = api.get("/admin/stats/history", {"period": "1h"}).json()["data"]
    hour = overview.stretches["1h"].get().past.points
    assert sum(one["completed_last_hour"] for one in stats) == sum(point.completed for point in hour) == completed
    assert sum(one["failed_last_hour"] for one in stats) == sum(point.failed for point in hour) == failed
    types = jobtypes.since(dt.datetime.min.replace(tzinfo=dt.UTC) + dt.timedelta(days=1))
    assert sum(one.completed for one in types.values()) == completed
    assert sum(one.discarded for one in types.values()) == failed
    assert sum(point["completed"] for point in past) == scrape("ojs_jobs_completed_total") == completed
    assert sum(point["failed"] for point in past) == scrape("ojs_jobs_failed_total") == failed
    summary = api.get("/metrics").json()
    assert (summary["jobs_completed_total"], summary["jobs_failed_total"]) == (completed, failed)


def test_jobs_a_second_and_their_mean_duration(api: Any, scrape: Scrape) -> None:
    stats = [api.get(f"/queues/{queue}/stats").json()["stats"] for queue in QUEUES]
    summary = api.get("/metrics").json()
    per_second = sum(one["throughput_per_second"] for one in stats)
    assert per_second
    assert summary["throughput_per_second"] == pytest.approx(per_second, abs=0.002)
    run_ms = sum(one["avg_duration_ms"] * one["completed_last_hour"] for one in stats)
    completed = sum(one["completed_last_hour"] for one in stats)
    assert summary["avg_latency_ms"] == pytest.approx(run_ms / completed, abs=0.01)
    of_completed = scrape("ojs_job_duration_seconds_sum", state="completed")
    assert of_completed * 1000 / completed == pytest.approx(summary["avg_latency_ms"], abs=1)


@pytest.mark.parametrize("each", [1, 3])
def test_a_wait_and_a_run_of_more_than_a_minute(api: Any, frozen_clock: FrozenClock, each: int) -> None:
    """The database takes these times as a whole: not their seconds without their minutes, hours and days."""
    wait, run = dt.timedelta(days=2, hours=3, minutes=4, seconds=5.5), dt.timedelta(hours=1, minutes=2, seconds=3.25)
    push([{"type": "mail.send", "queue": "mail", "args": []}] * each)
    frozen_clock.advance(seconds=wait.total_seconds())
    ids = [row["id"] for row in fetch(Fetch(["mail"], count=each))]
    frozen_clock.advance(seconds=run.total_seconds())
    ack([Ack(job_id) for job_id in ids])
    wait_ms, run_ms = (int(time.total_seconds() * 1000) for time in (wait, run))
    deltas = CountDelta.objects.aggregate(wait=Sum("wait_ms"), run=Sum("run_ms"))
    assert deltas == {"wait": each * wait_ms, "run": each * run_ms}
    told = {event.type: event.data for event in Event.objects.filter(type__in=["job.started", "job.completed"])}
    assert (told["job.started"]["wait_ms"], told["job.completed"]["duration_ms"]) == (wait_ms, run_ms)
    assert api.get("/queues/mail/stats").json()["stats"]["avg_duration_ms"] == run_ms


def test_the_longest_wait(api: Any, lines: dict[str, Any], frozen_clock: FrozenClock) -> None:
    for queue in QUEUES:
        told = api.get(f"/admin/queues/{queue}").json()["oldest_available_at"]
        assert dt.datetime.fromisoformat(told) == pytest.approx(lines[queue].oldest, abs=dt.timedelta(milliseconds=1))
    waited = frozen_clock.now - lines["mail"].oldest
    told = command("ojs_status", "--max-age", f"{int(waited.total_seconds()) - 1}s")["attention"]
    assert [line for line in told if line.startswith("A job in the queue mail has been waiting since")]
    told = command("ojs_status", "--max-age", f"{int(waited.total_seconds()) + 2}s")["attention"]
    assert [line for line in told if line.startswith("A job in the queue mail has been waiting since")] == []


def test_waits(api: Any, scrape: Scrape) -> None:
    """The history's percentiles are those of the times that the events tell and the histogram adds up."""
    started = Event.objects.filter(type="job.started", queue="mail")
    true = sorted((event.data or {})["wait_ms"] for event in started)
    (point,) = api.get("/admin/stats/history", {"period": "1d", "queue": "mail"}).json()["data"]
    told = [point["latency_p50_ms"], point["latency_p99_ms"]]
    assert told == pytest.approx(percentiles.of_values(true, (0.5, 0.99)), rel=percentiles.ERROR)
    assert scrape("ojs_jobs_wait_ms_count", queue="mail") == point["started"] == len(true)
    assert scrape("ojs_jobs_wait_ms_sum", queue="mail") == sum(true)
    assert point["avg_latency_ms"] == pytest.approx(sum(true) / len(true), abs=1)
    assert api.get("/queues/mail/stats").json()["stats"]["avg_wait_ms"] == point["avg_latency_ms"]
