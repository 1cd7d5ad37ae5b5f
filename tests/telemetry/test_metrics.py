"""Every metric moves with its event and by the right amount, once, whoever counts and whoever asks."""

from __future__ import annotations

import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.db import connection, connections, transaction
from django.test.utils import CaptureQueriesContext
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from django_ojs.events import order
from django_ojs.jobs.cancel import cancel
from django_ojs.jobs.fetch import Fetch, fetch
from django_ojs.jobs.finish import Ack, Failure, ack, fail
from django_ojs.jobs.push import push
from django_ojs.jobs.timers import apply_due
from django_ojs.models import Event, MetricPlace, MetricSeries, WebhookDelivery
from django_ojs.retention import prune
from django_ojs.scheduler.scheduler import Scheduler
from django_ojs.statistics import eventcounts, webhookcounts
from django_ojs.telemetry import collector, gather
from django_ojs.telemetry.collector import OJSCollector
from django_ojs.telemetry.gather import Family, Sample
from django_ojs.webhooks import subscriptions
from tests.conftest import FrozenClock

pytestmark = pytest.mark.django_db

Labels = dict[str, str]
MAIL = {"job_type": "mail.send", "queue": "mail"}


def job(**attributes: Any) -> dict[str, Any]:
    return {"type": "mail.send", "queue": "mail", "args": [], **attributes}


def count() -> None:
    order.catch_up("default")
    eventcounts.catch_up("default")


def scrape() -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Every sample of a scrape, as a reader of the text sees it."""
    text = collector.text()
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def value(name: str, **labels: str) -> float:
    """The sum of the samples of this name that carry these labels."""
    found = scrape()
    return sum(n for (at, have), n in found.items() if at == name and labels.items() <= dict(have).items())


def moved(act: Callable[[], Any]) -> dict[str, float]:
    """By how much each sample without buckets moved, summed over its labels."""

    def totals() -> dict[str, float]:
        found: dict[str, float] = {}
        for (name, _), n in scrape().items():
            if not name.endswith("_bucket"):
                found[name] = found.get(name, 0) + n
        return found

    before = totals()
    act()
    count()
    return {name: n - before.get(name, 0) for name, n in totals().items() if n != before.get(name, 0)}


def claimed(clock: FrozenClock, number: int = 1, **attributes: Any) -> list[uuid.UUID]:
    push([job(**attributes) for _ in range(number)])
    clock.advance(milliseconds=30)
    return [row["id"] for row in fetch(Fetch(["mail"], count=number))]


def test_a_push_moves_enqueued_and_depth(frozen_clock: FrozenClock) -> None:
    assert moved(lambda: push([job(), job()])) == {
        "ojs_jobs_enqueued_total": 2, "ojs_job_enqueued_total": 2, "ojs_queue_depth": 2, "ojs_queue_jobs": 2,
        "ojs_queue_unserved": 2,
    }  # fmt: skip
    assert value("ojs_jobs_enqueued_total", type="mail.send", **MAIL) == 2
    assert value("ojs_queue_depth", queue="mail", state="available") == 2


def test_a_start_measures_the_wait_in_both_units(frozen_clock: FrozenClock) -> None:
    push([job()])
    count()
    frozen_clock.advance(milliseconds=40)
    change = moved(lambda: fetch(Fetch(["mail"])))
    assert change["ojs_jobs_wait_ms_count"] == change["ojs_job_queue_time_seconds_count"] == 1
    assert change["ojs_jobs_wait_ms_sum"] == pytest.approx(40, abs=2)
    assert change["ojs_job_queue_time_seconds_sum"] == pytest.approx(0.040, abs=0.002)
    assert (change["ojs_queue_depth"], change["ojs_queue_active"], change["ojs_workers_busy"]) == (-1, 1, 1)
    assert value("ojs_jobs_wait_ms_bucket", le="10", **MAIL) == 0
    assert value("ojs_jobs_wait_ms_bucket", le="50", **MAIL) == 1
    assert value("ojs_jobs_wait_ms_bucket", le="+Inf", **MAIL) == 1


def test_a_completion_moves_completed_and_duration(frozen_clock: FrozenClock) -> None:
    ids = claimed(frozen_clock, 3)
    count()
    frozen_clock.advance(milliseconds=200)
    change = moved(lambda: ack([Ack(job_id, '{"duration_ms":7}') for job_id in ids]))
    assert change["ojs_jobs_completed_total"] == change["ojs_job_completed_total"] == 3
    assert change["ojs_jobs_duration_ms_count"] == change["ojs_job_duration_seconds_count"] == 3
    assert change["ojs_jobs_duration_ms_sum"] == pytest.approx(600, abs=3)
    assert value("ojs_job_duration_seconds_bucket", state="completed", le="0.25") == 3
    assert value("ojs_job_duration_seconds_bucket", state="completed", le="0.1") == 0


def test_a_failure_that_is_retried_is_no_failed_job_but_takes_time(frozen_clock: FrozenClock) -> None:
    (job_id,) = claimed(frozen_clock)
    count()
    frozen_clock.advance(seconds=1)
    error = {"message": '{"duration_ms":99}', "details": {"duration_ms": 98}}
    change = moved(lambda: fail([Failure(job_id, error)]))
    assert change["ojs_job_retried_total"] == change["ojs_jobs_duration_ms_count"] == 1
    assert change["ojs_jobs_duration_ms_sum"] == pytest.approx(1000, abs=2)
    assert "ojs_jobs_failed_total" not in change
    assert value("ojs_job_duration_seconds_count", state="retryable") == 1


def test_a_second_start_waits_but_is_not_the_first(frozen_clock: FrozenClock) -> None:
    (job_id,) = claimed(frozen_clock)
    fail([Failure(job_id, {"message": "no"})])
    frozen_clock.advance(hours=1)
    count()
    change = moved(lambda: fetch(Fetch(["mail"])))
    assert change["ojs_jobs_wait_ms_count"] == 1
    assert "ojs_job_queue_time_seconds_count" not in change


def test_the_last_failure_moves_failed_and_the_dead_letters(frozen_clock: FrozenClock) -> None:
    (job_id,) = claimed(frozen_clock, retry={"max_attempts": 1})
    count()
    change = moved(lambda: fail([Failure(job_id, {"message": "no"})]))
    assert change["ojs_jobs_failed_total"] == change["ojs_job_failed_total"] == change["ojs_dead_letter_depth"] == 1
    assert change["ojs_jobs_duration_ms_count"] == 1
    assert value("ojs_job_duration_seconds_count", state="discarded") == 1


def test_cancelling_and_expiring_have_counters_of_their_own(frozen_clock: FrozenClock) -> None:
    (pushed,) = push([job()])
    assert pushed.row is not None
    count()
    assert moved(lambda: cancel([pushed.row["id"]]))["ojs_job_cancelled_total"] == 1
    push([job(expires_at="2026-01-15T12:00:10Z")])
    count()
    frozen_clock.advance(seconds=11)
    change = moved(apply_due)
    assert change["ojs_job_expired_total"] == 1
    assert "ojs_jobs_failed_total" not in change


def test_workers_count_while_they_are_heard_of(api: Any, frozen_clock: FrozenClock) -> None:
    api.post("/workers/heartbeat", {"worker_id": "w1"})
    assert value("ojs_workers_active") == 1
    frozen_clock.advance(seconds=46)
    assert value("ojs_workers_active") == 0


# Once, whatever happens


def test_nothing_is_counted_twice(frozen_clock: FrozenClock) -> None:
    push([job() for _ in range(5)])
    count()
    count()
    assert eventcounts.count() == 0
    assert value("ojs_jobs_enqueued_total") == 5


def test_a_stretch_may_end_within_a_transaction() -> None:
    push([job() for _ in range(10)])
    order.catch_up("default")
    passes = 0
    while eventcounts.count(limit=3):
        passes += 1
    assert passes == 4
    assert value("ojs_jobs_enqueued_total") == 10


@pytest.mark.django_db(transaction=True)
def test_a_counter_that_is_killed_has_done_nothing(monkeypatch: Any) -> None:
    push([job() for _ in range(5)])
    order.catch_up("default")

    class Killed(BaseException):
        pass

    def die(*args: Any, **kwargs: Any) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(transaction, "on_commit", die)  # the last thing before the commit
        with pytest.raises(Killed):
            eventcounts.count()
    assert MetricSeries.objects.count() == 0
    count()
    assert value("ojs_jobs_enqueued_total") == 5


_HANG = """
import time
import django
django.setup()
from django.db import transaction
from django_ojs.statistics import eventcounts

def hang(*args, **kwargs):
    print("counted", flush=True)
    time.sleep(600)

transaction.on_commit = hang
eventcounts.count()
"""


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
def test_a_process_that_is_killed_before_its_commit_has_done_nothing(child_environment: dict[str, str]) -> None:
    push([job() for _ in range(5)])
    order.catch_up("default")
    process = subprocess.Popen([sys.executable, "-c", _HANG], env=child_environment, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "counted\n"
    finally:
        process.kill()
        process.wait(60)
        process.stdout.close()
    count()
    assert value("ojs_jobs_enqueued_total") == 5


@pytest.mark.django_db(transaction=True)
def test_two_that_count_at_once_count_once() -> None:
    push([job() for _ in range(300)])
    order.catch_up("default")
    start = threading.Barrier(4)
    failures: list[BaseException] = []

    def work() -> None:
        try:
            start.wait(30)
            while eventcounts.count(limit=20):
                pass
        except BaseException as error:  # noqa: BLE001 - told by the test below
            failures.append(error)
        finally:
            connections.close_all()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert failures == []
    count()
    assert value("ojs_jobs_enqueued_total") == 300


@pytest.mark.postgres
@pytest.mark.django_db(transaction=True)
def test_what_is_committed_late_is_counted_though_its_id_is_old() -> None:
    wrote, go_on = threading.Event(), threading.Event()

    def slowly() -> None:
        try:
            with transaction.atomic():
                push([job()])
                wrote.set()
                assert go_on.wait(60)
        finally:
            connections.close_all()

    thread = threading.Thread(target=slowly)
    thread.start()
    try:
        assert wrote.wait(60)
        push([job(), job()])
        count()
        assert value("ojs_jobs_enqueued_total") == 2
    finally:
        go_on.set()
        thread.join(60)
    assert MetricPlace.objects.get().event > Event.objects.earliest("id").pk
    count()
    assert value("ojs_jobs_enqueued_total") == 3


def test_events_are_counted_before_they_are_pruned(frozen_clock: FrozenClock, settings: Any) -> None:
    settings.OJS = {**settings.OJS, "EVENT_MAX_COUNT": 1}
    push([job() for _ in range(7)])
    while prune(batch=2)["events"]:
        pass
    assert Event.objects.count() == 1
    assert value("ojs_jobs_enqueued_total") == 7


def test_the_scheduler_counts(frozen_clock: FrozenClock) -> None:
    push([job()])
    order.catch_up("default")
    scheduler = Scheduler("test")
    scheduler._lease.run_once()
    scheduler.run_once()
    assert value("ojs_jobs_enqueued_total") == 1


def test_who_listens_is_told_what_was_counted(django_capture_on_commit_callbacks: Any, monkeypatch: Any) -> None:
    heard: list[Any] = []
    monkeypatch.setattr(eventcounts, "listeners", [heard.extend])
    push([job(), job()])
    with django_capture_on_commit_callbacks(execute=True):
        count()
    assert [(group.event, group.number) for group in heard] == [("job.enqueued", 2)]


# Bounded


def test_too_many_job_types_become_other(settings: Any) -> None:
    settings.OJS = {**settings.OJS, "METRICS_MAX_SERIES": 3}
    push([job(type=f"t.n{i}") for i in range(3)])
    count()
    push([job(type=f"t.n{i}") for i in range(20)])
    count()
    assert value("ojs_jobs_enqueued_total", job_type="t.n1") == 2
    assert value("ojs_jobs_enqueued_total", job_type="other", queue="mail") == 17
    assert value("ojs_jobs_enqueued_total") == 23


def test_too_many_queues_become_other_too(settings: Any) -> None:
    settings.OJS = {**settings.OJS, "METRICS_MAX_SERIES": 3}
    for i in range(20):
        push([job(queue=f"q{i:02}")])
        count()
    assert MetricSeries.objects.count() == 7
    assert value("ojs_jobs_enqueued_total", queue="other") == 14
    assert value("ojs_jobs_enqueued_total") == 20
    assert value("ojs_queue_depth", queue="other") == 17
    assert value("ojs_queue_depth") == 20


def test_a_scrape_costs_the_same_for_one_job_and_for_many(frozen_clock: FrozenClock) -> None:
    costs = []
    for number in (1, 200):
        ids = claimed(frozen_clock, number)
        ack([Ack(job_id) for job_id in ids])
        push([job(queue=f"q{i % 7}") for i in range(number)])
        count()
        with CaptureQueriesContext(connection) as captured:
            collector.text()
        costs.append(len(captured))
    assert costs[0] == costs[1] <= 8


def test_counting_costs_the_same_for_one_event_and_for_many(frozen_clock: FrozenClock) -> None:
    costs = []
    push([job()])
    count()
    for number in (1, 500):
        push([job() for _ in range(number)])
        order.catch_up("default")
        with CaptureQueriesContext(connection) as captured:
            eventcounts.count()
        costs.append(len(captured))
    assert costs[0] == costs[1] <= 13


# As text, as JSON, in a registry


@pytest.fixture
def _root(settings: Any) -> None:
    settings.ROOT_URLCONF = "django_ojs.testing.urls"


@pytest.mark.usefixtures("_root")
def test_the_content_type_is_what_was_asked_for(api: Any) -> None:
    assert api.client.get("/metrics")["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert api.client.get("/metrics", headers={"accept": "text/plain"})["Content-Type"] == "text/plain"
    asked = {"accept": "text/plain;version=0.0.4;q=0.5,*/*;q=0.1"}
    assert api.client.get("/metrics", headers=asked)["Content-Type"].startswith("text/plain; version=0.0.4")


@pytest.mark.usefixtures("_root")
def test_metrics_are_for_everybody_unless_the_site_says_otherwise(api: Any, with_key: Any, settings: Any) -> None:
    assert api.client.get("/metrics").status_code == 200
    settings.OJS = {**settings.OJS, "METRICS_PUBLIC": False}
    assert api.client.get("/metrics").status_code == 401
    assert with_key("work").client.get("/metrics").status_code == 403
    assert with_key("read", queues=["a"]).client.get("/metrics").status_code == 403
    assert with_key("read").client.get("/metrics").status_code == 200
    settings.OJS = {**settings.OJS, "METRICS": False}
    assert with_key("read").client.get("/metrics").status_code == 404


def test_json_has_the_numbers_of_the_command_line(api: Any, frozen_clock: FrozenClock) -> None:
    ids = claimed(frozen_clock, 2)
    frozen_clock.advance(milliseconds=100)
    ack([Ack(ids[0])])
    count()
    Scheduler("test").run_once()
    from django_ojs.statistics.counters import fold

    fold()
    body = api.get("/metrics").json()
    assert body.keys() == {
        "uptime_seconds", "jobs_enqueued_total", "jobs_completed_total", "jobs_failed_total", "jobs_active",
        "queues_active", "workers_active", "avg_latency_ms", "throughput_per_second",
    }  # fmt: skip
    assert (body["jobs_enqueued_total"], body["jobs_completed_total"], body["jobs_active"]) == (2, 1, 1)
    assert body["queues_active"] == 1
    assert body["avg_latency_ms"] == pytest.approx(100, abs=2)
    assert body["throughput_per_second"] > 0
    assert api.get("/metrics", {"format": "prometheus"}).content.startswith(b"# HELP ojs_jobs_enqueued_total")
    assert api.get("/metrics", {"format": "xml"}).status_code == 400


def test_a_registry_shows_what_the_text_shows(frozen_clock: FrozenClock) -> None:
    ids = claimed(frozen_clock, 3, retry={"max_attempts": 1})
    ack([Ack(ids[0])])
    fail([Failure(ids[1], {"message": "no"})])
    count()
    registry = CollectorRegistry()
    registry.register(OJSCollector())
    ours = {key: n for key, n in scrape().items() if not key[0].endswith("_created")}
    theirs = {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(generate_latest(registry).decode())
        for sample in family.samples
        if not sample.name.endswith("_created")
    }
    assert ours == theirs


ODD = 'quote " back \\ line\n'


@pytest.fixture
def _source() -> Iterator[None]:
    odd = Family("odd", "gauge", 'a "b"\nc', [Sample({"l": ODD}, 1)])
    gather.register("others", lambda using: [Family("others_count", "gauge", "", [Sample({}, 4)]), odd])
    yield
    gather.unregister("others")


@pytest.mark.usefixtures("_source")
def test_other_parts_add_their_own() -> None:
    assert value("others_count") == 4


@pytest.mark.usefixtures("_source")
def test_labels_are_escaped() -> None:
    assert value("odd", l=ODD) == 1


# Webhooks


def tried(event_type: str, status: str, ms: int, attempts: int = 1) -> WebhookDelivery:
    return WebhookDelivery(event_type=event_type, status=status, response_time_ms=ms, attempt_count=attempts)


def test_webhooks_are_counted_by_event_type_and_outcome(api: Any) -> None:
    done = [tried("job.completed", "success", 7), tried("job.completed", "failed", 40),
            tried("job.completed", "success", 30, 3), tried("job.failed", "dead", 90_000, 6)]  # fmt: skip
    webhookcounts.count(done, "default")
    subscriptions.create(
        subscriptions.read_definition({"url": "https://example.com/", "events": ["*"], "secret": "a-secret-for-tests"})
    )
    text = api.get("/metrics", {"format": "prometheus"}).content.decode()
    found = {
        (sample.name, *sorted(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name.startswith("ojs_webhook")
    }
    assert found["ojs_webhook_delivery_count_total", "job.completed", "success"] == 2
    assert found["ojs_webhook_delivery_count_total", "failed", "job.completed"] == 1
    assert found["ojs_webhook_delivery_duration_ms_sum", "job.completed", "success"] == 37
    assert found["ojs_webhook_delivery_duration_ms_bucket", "10", "job.completed", "success"] == 1
    assert found["ojs_webhook_delivery_duration_ms_bucket", "+Inf", "dead", "job.failed"] == 1
    assert found["ojs_webhook_delivery_duration_ms_bucket", "60000", "dead", "job.failed"] == 0
    assert found["ojs_webhook_delivery_retry_count_sum", "job.completed", "success"] == 2
    assert found["ojs_webhook_delivery_retry_count_count", "dead", "job.failed"] == 1
    assert ("ojs_webhook_delivery_retry_count_count", "failed", "job.completed") not in found
    assert found["ojs_webhook_dead_delivery_count_total", "job.failed"] == 1
    assert found["ojs_webhook_subscription_count",] == 1


@pytest.mark.usefixtures("long_memory")
def test_a_scrape_costs_the_same_however_many_webhooks_were_sent() -> None:
    costs = []
    for number in (0, 40):
        webhookcounts.count([tried(f"job.x{i}", "success", 1) for i in range(number)], "default")
        with CaptureQueriesContext(connection) as captured:
            collector.text()
        costs.append(len(captured))
    assert costs[0] == costs[1]
