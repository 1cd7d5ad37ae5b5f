"""Faults that are the same on all databases, each made to happen; and a healthy site, with and without jobs."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.core.checks import Warning as Caution
from django.core.checks.registry import registry
from django.db import connection, connections
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.recorder import MigrationRecorder

import django_ojs
from django_ojs import clock, doctor, job
from django_ojs.cron import schedules
from django_ojs.doctor import health
from django_ojs.events import order
from django_ojs.jobs.fetch import Fetch, fetch
from django_ojs.jobs.push import push
from django_ojs.models import EventLog, Job, MetricPlace, WebhookRelay, Worker
from django_ojs.queues import maintenance
from django_ojs.registry import registry as handlers
from django_ojs.scheduler.scheduler import ROLE, Leadership, Scheduler, Synchronise
from django_ojs.statistics import eventcounts
from django_ojs.tasks import discovery
from django_ojs.workerregistry.heartbeat import Beat, beat
from django_ojs.workerregistry.registration import register
from tests.conftest import FrozenClock
from tests.doctor.conftest import found

pytestmark = pytest.mark.django_db(transaction=True)
NEWEST = MigrationLoader(None).graph.leaf_nodes("django_ojs")[0][1]
Ids = Callable[[], list[str]]


@pytest.fixture
def led() -> Iterator[Leadership]:
    """A scheduler leads; `run_once` renews its lease."""
    lease = Leadership(ROLE, "the-leader", connection.alias)
    assert lease.run_once()
    yield lease
    lease.resign()


@pytest.fixture(autouse=True)
def _no_second_thoughts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "SECOND_LOOK", 0.0)


def enqueued(count: int = 1, **fields: Any) -> None:
    push([{"type": "mail.send", "args": [], **fields} for _ in range(count)])


def test_a_fresh_site_is_healthy(ids: Ids) -> None:
    assert ids() == []


def test_a_site_at_work_is_healthy(led: Leadership, ids: Ids) -> None:
    register("w-1", {"queues": ["default"], "job_types": ["mail.send"], "version": django_ojs.__version__})
    schedules.register({"name": "daily", "cron": "0 0 * * *", "type": "mail.send"})
    enqueued(20)
    fetch(Fetch(["default"], count=5, worker_id="w-1"))
    assert ids() == []


def test_schedules_that_nobody_synchronises_are_told(led: Leadership, ids: Ids, settings: Any) -> None:
    """To the doctor, and as work for an operator: the overview, `ojs_status` and the alerts show the same."""
    with handlers.isolated():
        job("nightly.cleanup", cron="0 3 * * *")(lambda: None)
        assert ids() == ["schedules-differ"], "whoever leads has other code"
        settings.OJS = {"SYNC_SCHEDULES": False}
        led.resign()
        (finding,) = found("schedules-differ")
        assert finding.figures == {"schedules": ["nightly.cleanup"]}
        assert [one.id for one in doctor.attention(doctor.Site(connection.alias))] == ["schedules-differ"]
        settings.OJS = {}
        assert ids() == [], "the scheduler will when it leads"
        assert led.run_once()
        Synchronise().run_once(connection.alias)
        assert ids() == []
        schedules.delete("nightly.cleanup")
        schedules.register({"name": "nightly.cleanup", "cron": "@daily", "type": "their.own"})
        (finding,) = found("schedules-differ")
        assert "registered over HTTP as well: nightly.cleanup" in finding.says


def test_a_pass_of_the_scheduler_leaves_nothing_behind(led: Leadership, ids: Ids) -> None:
    enqueued(5)
    register("w-1", {"queues": ["default"]})
    Scheduler("x").run_once()
    clock.freeze(clock.now() + dt.timedelta(seconds=25))
    assert led.run_once()
    register("w-1", {"queues": ["default"]})
    assert ids() == []


def test_a_check_that_is_not_silenced(settings: Any, ids: Ids) -> None:
    settings.OJS = {"HEARTBEAT_INTERVAL": 50}
    assert ids() == ["django_ojs.W005"]
    (finding, *_) = found("django_ojs.W005")
    assert "less than three heartbeats" in finding.says
    assert finding.mend.startswith("Raise it to at least 150")
    assert finding.title == "A system check reports a problem"
    settings.SILENCED_SYSTEM_CHECKS = ["django_ojs.W005"]
    assert ids() == []


def test_checks_for_deploys_count_and_those_of_others_do_not(settings: Any, ids: Ids) -> None:
    def theirs(**kwargs: Any) -> list[Caution]:
        return [Caution("wrong", id="other.W001")]

    registry.registered_checks.add(theirs)  # type: ignore[arg-type]
    try:
        settings.OJS = {"ALLOW_ANONYMOUS": True}
        assert ids() == ["django_ojs.W001"]
    finally:
        registry.registered_checks.discard(theirs)  # type: ignore[arg-type]


def test_missing_migrations_end_the_examination(ids: Ids) -> None:
    enqueued()  # which no worker runs
    recorder = MigrationRecorder(connection)
    recorder.record_unapplied("django_ojs", NEWEST)
    try:
        assert ids() == ["migrations-missing"]
        (finding,) = found("migrations-missing")
        assert NEWEST in finding.says
        assert finding.mend == "Run manage.py migrate --database default."
    finally:
        recorder.record_applied("django_ojs", NEWEST)
    assert "workers-missing" in ids()


def test_a_database_ahead_of_the_code(ids: Ids) -> None:
    recorder = MigrationRecorder(connection)
    recorder.record_applied("django_ojs", "9999_of_tomorrow")
    try:
        assert ids() == ["migrations-ahead"]
        assert "9999_of_tomorrow" in found("migrations-ahead")[0].says
    finally:
        recorder.record_unapplied("django_ojs", "9999_of_tomorrow")


@pytest.mark.parametrize("seconds,wrong", [(0, False), (1.5, False), (90, True), (-3600, True)])
def test_the_clock_of_this_host(ids: Ids, monkeypatch: pytest.MonkeyPatch, seconds: float, wrong: bool) -> None:
    wall = clock._wall
    monkeypatch.setattr(clock, "_wall", lambda: wall() + dt.timedelta(seconds=seconds))
    if connection.vendor == "sqlite":
        assert (clock.offset("default"), ids()) == (None, [])
        return
    assert ids() == (["clock-offset"] if wrong else [])
    if wrong:
        (finding,) = found("clock-offset")
        assert finding.figures["seconds"] == pytest.approx(seconds, abs=1)
        assert f"{seconds:+.0f}" in finding.says


def test_a_scheduler_that_stopped_renewing_its_lease(frozen_clock: FrozenClock, ids: Ids) -> None:
    schedules.register({"name": "daily", "cron": "0 0 * * *", "type": "mail.send"})
    lease = Leadership(ROLE, "suspended", connection.alias)
    assert lease.run_once()
    assert ids() == []
    frozen_clock.advance(seconds=6)
    assert ids() == ["scheduler-missing"]
    assert lease.run_once()
    assert ids() == []
    lease.resign()


def test_without_anything_to_do_nobody_need_lead(ids: Ids) -> None:
    assert ids() == []
    enqueued(3, scheduled_at="2099-01-01T00:00:00Z")
    assert ids() == ["scheduler-missing"]
    assert found("scheduler-missing")[0].figures == {"jobs": 3}


def test_a_scheduler_that_leaves_due_jobs_alone(led: Leadership, frozen_clock: FrozenClock, ids: Ids) -> None:
    due = (frozen_clock.now + dt.timedelta(seconds=10)).isoformat()
    enqueued(1, scheduled_at=due)
    order.catch_up("default")
    eventcounts.catch_up("default")
    frozen_clock.advance(seconds=10 + health.LATE)
    assert led.run_once()
    assert ids() == []
    frozen_clock.advance(seconds=1)
    assert ids() == ["scheduler-behind"]
    assert found("scheduler-behind")[0].figures == {"seconds": 31}
    maintenance.start(by="ann")
    order.catch_up("default")
    assert ids() == [], "in maintenance mode jobs stay due"


@pytest.mark.skipif(connection.vendor == "sqlite", reason="ids are the order")
def test_events_that_nobody_puts_in_order(led: Leadership, frozen_clock: FrozenClock, ids: Ids) -> None:
    enqueued(1, scheduled_at="2099-01-01T00:00:00Z")
    order.catch_up("default")
    frozen_clock.advance(seconds=60)
    assert led.run_once()
    assert ids() == []
    enqueued(1, scheduled_at="2099-01-01T00:00:00Z")
    assert ids() == []
    frozen_clock.advance(seconds=31)
    assert led.run_once()
    assert ids() == ["event-order-behind"]
    assert found("event-order-behind")[0].figures["seconds"] == 31
    order.catch_up("default")
    assert ids() == []


@pytest.mark.parametrize("scheduler_works", [True, False])
def test_events_of_a_long_transaction_are_old_when_it_commits(
    led: Leadership, frozen_clock: FrozenClock, ids: Ids, monkeypatch: pytest.MonkeyPatch, scheduler_works: bool
) -> None:
    """Between its commit and the next pass they are not late; the second look comes after that pass."""
    enqueued(1, scheduled_at="2099-01-01T00:00:00Z")
    frozen_clock.advance(seconds=600)
    assert led.run_once()

    def duties() -> None:
        order.catch_up("default")
        eventcounts.catch_up("default")
        connections.close_all()

    def pause(seconds: float) -> None:
        if scheduler_works:
            with ThreadPoolExecutor(1) as pool:
                pool.submit(duties).result(30)

    monkeypatch.setattr(health.time, "sleep", pause)
    late = ["metrics-behind"] if connection.vendor == "sqlite" else ["event-order-behind"]
    assert ids() == ([] if scheduler_works else late)


@pytest.mark.skipif(connection.vendor == "sqlite", reason="ids are the order")
def test_events_before_the_first_pass(led: Leadership, frozen_clock: FrozenClock, ids: Ids) -> None:
    EventLog.objects.all().delete()
    enqueued(1, scheduled_at="2099-01-01T00:00:00Z")
    frozen_clock.advance(seconds=31)
    assert led.run_once()
    assert "event-order-behind" in ids()


def test_metrics_that_nobody_counts(led: Leadership, frozen_clock: FrozenClock, ids: Ids, settings: Any) -> None:
    enqueued(4, scheduled_at="2099-01-01T00:00:00Z")
    order.catch_up("default")
    frozen_clock.advance(seconds=121)
    assert led.run_once()
    assert ids() == ["metrics-behind"]
    (finding,) = found("metrics-behind")
    assert finding.figures["seconds"] == 121
    assert finding.figures["events"] >= 4
    settings.OJS = {"METRICS": False}
    assert ids() == []
    settings.OJS = {}
    eventcounts.catch_up("default")
    assert ids() == []
    assert MetricPlace.objects.get().event > 0


def test_webhooks_that_nobody_relays(led: Leadership, frozen_clock: FrozenClock, ids: Ids) -> None:
    enqueued(2, scheduled_at="2099-01-01T00:00:00Z")
    order.catch_up("default")
    eventcounts.catch_up("default")
    frozen_clock.advance(seconds=121)
    assert led.run_once()
    assert ids() == [], "nobody subscribes"
    WebhookRelay.objects.create(pk=1, commit=0, event=0)
    assert ids() == ["webhooks-behind"]
    end = order.end_position("default")
    WebhookRelay.objects.update(commit=end.order, event=end.id)
    assert ids() == []


# Workers


def test_a_worker_of_another_version(led: Leadership, ids: Ids) -> None:
    for name, version in {"old": "0.0.1", "new": django_ojs.__version__}.items():
        beat(Beat(name, info={"queues": ["default"], "version": version, "hostname": "box"}, incarnation=name))
    register("node", {"queues": ["default"], "version": "4.2.0"})  # of another language: a version of its own
    assert ids() == ["worker-versions"]
    (finding,) = found("worker-versions")
    assert (finding.about, finding.figures["version"]) == ("old", "0.0.1")
    assert "old on box runs django-ojs 0.0.1" in finding.says


def test_a_worker_that_fell_silent(led: Leadership, frozen_clock: FrozenClock, ids: Ids) -> None:
    register("w-1", {"queues": ["default"], "hostname": "box", "pid": 7})
    fetch(Fetch(["default"], worker_id="only-fetches"))
    order.catch_up("default")
    eventcounts.catch_up("default")
    assert ids() == []
    frozen_clock.advance(hours=1)
    assert led.run_once()
    assert ids() == ["worker-silent"]
    (finding,) = found("worker-silent")
    assert "w-1 (process 7 on box) has sent no heartbeat for 3,600 s" in finding.says


def test_jobs_without_any_worker(led: Leadership, ids: Ids) -> None:
    enqueued(2)
    enqueued(1, queue="mail")
    assert ids() == ["workers-missing"]
    assert found("workers-missing")[0].figures == {"jobs": 3, "queues": {"default": 2, "mail": 1}}


def test_a_queue_and_a_type_without_a_worker(led: Leadership, ids: Ids) -> None:
    clock.freeze(clock.now())
    enqueued(2, queue="mial")
    enqueued(3, type="report.make")
    clock.advance(seconds=1)
    register("w-1", {"queues": ["default", "mail"], "job_types": ["mail.send"]})
    assert ids() == ["queue-unserved", "type-unserved"]
    (queue,) = found("queue-unserved")
    (kind,) = found("type-unserved")
    assert (queue.about, queue.figures) == ("mial", {"jobs": 2})
    assert (kind.about, kind.figures) == ("report.make", {"jobs": 3})
    assert f"its module must be {discovery.modules()} of an installed app" in kind.mend
    assert "--queues mial" in queue.mend


# What cannot be looked at


def test_a_diagnosis_that_the_database_refuses_is_told_and_the_others_go_on(
    led: Leadership, monkeypatch: pytest.MonkeyPatch, ids: Ids
) -> None:
    Worker.objects.all().delete()
    enqueued()

    def refused(site: Any) -> Any:
        return site.rows("SELECT nothing FROM django_ojs_job")

    monkeypatch.setattr(doctor, "DIAGNOSES", (refused, *doctor.DIAGNOSES))
    assert ids() == ["not-examined", "workers-missing"]
    (finding,) = found("not-examined")
    assert finding.about == "refused"
    assert "nothing" in finding.says


def test_an_error_of_the_code_is_told_and_the_others_go_on(
    led: Leadership, monkeypatch: pytest.MonkeyPatch, ids: Ids, caplog: pytest.LogCaptureFixture
) -> None:
    """As of a system check of the site: neither the other diagnoses nor the alerts depend on it."""
    Worker.objects.all().delete()
    enqueued()

    def broken(site: Any) -> Any:
        raise KeyError("x")

    monkeypatch.setattr(doctor, "DIAGNOSES", (broken, *doctor.DIAGNOSES))
    monkeypatch.setattr(doctor, "WORK", {broken: ("x",), **doctor.WORK})
    assert ids() == ["not-examined", "workers-missing"]
    (finding,) = found("not-examined")
    assert (finding.about, str(finding.says)) == ("broken", "The diagnosis broken failed: KeyError: 'x'")
    assert "pg_monitor" not in finding.mend
    assert caplog.records[0].exc_info is not None
    attention = doctor.attention(doctor.Site("default"))
    assert [one.id for one in attention] == ["not-examined", "workers-missing"]
    assert doctor.unseen(attention) == {"x"}


@pytest.mark.django_db
def test_a_callers_transaction_stays_usable(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(site: Any) -> Any:
        return site.rows("SELECT nothing FROM django_ojs_job")

    monkeypatch.setattr(doctor, "DIAGNOSES", (refused,))
    assert [finding.id for finding in doctor.examine()] == ["not-examined"]
    assert not Job.objects.exists()


def test_every_finding_has_a_title_and_each_title_a_diagnosis() -> None:
    from pathlib import Path

    package = Path(doctor.__file__).parent
    code = "".join(file.read_text() for file in package.glob("*.py") if file.name != "findings.py")
    named = {name for name in doctor.TITLES if f'"{name}"' in code}
    assert set(doctor.TITLES) - named == {"check", "not-examined"}
