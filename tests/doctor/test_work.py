"""What needs attention of the jobs themselves, each made to happen; and that a site at work needs none."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from inspect import isfunction
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from django_ojs import clock, doctor
from django_ojs.events import order
from django_ojs.jobs.fetch import Fetch, fetch
from django_ojs.jobs.finish import Ack, Failure, ack, fail
from django_ojs.jobs.push import push
from django_ojs.models import TypeMinute
from django_ojs.queues import configuration, maintenance
from django_ojs.rules import alertrules
from django_ojs.scheduler.scheduler import ROLE, Leadership
from django_ojs.statistics import capacity, counters, eventcounts, history, jobtypes, throughput
from django_ojs.workerregistry.registration import register
from tests.conftest import FrozenClock

pytestmark = pytest.mark.django_db(transaction=True)

MINUTE = dt.timedelta(minutes=1)


class Site:
    """A site with a clock that stands, a leading scheduler and a worker of all that is there."""

    def __init__(self, time: FrozenClock) -> None:
        self.time = time
        self.lease = Leadership(ROLE, "the-leader", connection.alias)
        self.passes(seconds=1)

    def passes(self, **time: float) -> None:
        self.time.advance(**time)
        assert self.lease.run_once()
        register("w-1", {"concurrency": 4})

    def enqueues(self, number: int, queue: str = "mail", type: str = "mail.send", **members: Any) -> None:
        push([{"type": type, "queue": queue, "args": [], "retry": {"max_attempts": 1}, **members}] * number)

    def works(self, number: int, queue: str = "mail", failing: int = 0, seconds: float = 1) -> None:
        """So many jobs are fetched and end after some seconds, the first ones by a failure."""
        ids = [row["id"] for row in fetch(Fetch([queue], count=number, worker_id="w-1"))]
        self.passes(seconds=seconds)
        fail([Failure(job_id, {"type": "Broken", "message": "no"}) for job_id in ids[:failing]])
        ack([Ack(job_id) for job_id in ids[failing:]])
        counts()

    def finds(self, **rules: Any) -> list[tuple[str, str]]:
        counts()
        site = doctor.Site(connection.alias, rules=alertrules.parse(rules))
        return [(finding.id, finding.about) for finding in doctor.attention(site)]

    def says(self, **rules: Any) -> str:
        (finding,) = doctor.attention(doctor.Site(connection.alias, rules=alertrules.parse(rules)))
        assert finding.mend
        return finding.says


def counts() -> None:
    order.catch_up("default")
    eventcounts.catch_up("default")
    while counters.fold():
        pass


@pytest.fixture
def site(frozen_clock: FrozenClock) -> Iterator[Site]:
    found = Site(frozen_clock)
    yield found
    found.lease.resign()


def test_a_site_at_work_needs_no_attention(site: Site) -> None:
    site.enqueues(30)
    site.works(10)
    assert site.finds() == []


def test_jobs_that_wait_for_long(site: Site) -> None:
    site.enqueues(1)
    site.enqueues(1, queue="later", scheduled_at="2030-01-01T00:00:00Z")
    site.passes(minutes=16)
    assert site.finds() == [("wait-long", "mail")]
    assert site.says() == "A job in the queue mail has been waiting since 2026-01-15T12:00:01.000Z (16 min)."
    assert site.finds(queues={"mail": {"oldest_wait": "20m"}}) == []
    assert site.finds(queues={"*": {"oldest_wait": None}}) == []


def test_the_front_of_every_queue_counts(site: Site) -> None:
    """However many longer queues there are."""
    register("w-1", {"queues": ["late", *(f"q{number}" for number in range(110))], "job_types": ["mail.send"]})
    site.enqueues(1, queue="late")
    site.enqueues(1, queue="late", type="other.type")
    site.time.advance(minutes=16)
    assert site.lease.run_once()
    register("w-1", {"queues": ["late", *(f"q{number}" for number in range(110))], "job_types": ["mail.send"]})
    push([{"type": "mail.send", "queue": f"q{number}", "args": []} for number in range(110) for _ in range(3)])
    assert site.finds() == [("type-unserved", "other.type"), ("wait-long", "late")]


def test_of_a_paused_queue_it_is_told_that_it_is_paused_and_in_maintenance_mode_that_it_is_on(site: Site) -> None:
    site.enqueues(2)
    configuration.pause("mail")
    site.passes(minutes=20)
    assert site.finds() == [("queue-paused", "mail")]
    maintenance.start(reason="disks")
    configuration.resume("mail")
    assert site.finds() == [("maintenance-on", "")]
    assert "(disks): no worker gets a job." in site.says()
    site.works(0)
    maintenance.stop()
    site.works(2)
    configuration.pause("mail")
    assert site.finds() == [], "nothing waits there"


def test_a_backlog_beyond_its_limit(site: Site) -> None:
    site.enqueues(5)
    assert site.finds(queues={"mail": {"backlog": 5}}) == []
    assert site.finds(queues={"mail": {"backlog": 4}}) == [("backlog-large", "mail")]


def test_a_queue_that_takes_long_to_empty_and_grows(site: Site) -> None:
    site.enqueues(120)
    site.works(1, seconds=60)
    assert site.finds() == [("backlog-slow", "mail")]
    assert site.says().startswith("Jobs that wait in the queue mail: 119, and by ")
    assert "they take" in site.says()
    site.passes(minutes=8)
    site.works(5, seconds=1)
    assert "and by" not in site.says()
    assert site.finds(queues={"*": {"drain_time": "30h"}}) == []


def test_a_type_whose_attempts_fail(site: Site) -> None:
    site.enqueues(50)
    site.works(50, failing=9)
    assert site.finds() == [], "nine are too few to speak of"
    site.enqueues(50)
    site.works(50, failing=15)
    assert site.finds() == [("type-failing", "mail.send")]
    assert site.says() == "Of 100 attempts of mail.send within 15 minutes failed 24 (24 %)."
    assert site.finds(types={"mail.*": {"error_rate": 0.3}}) == []
    assert site.finds(types={"*": {"error_rate": None}}) == []
    site.passes(minutes=17)
    assert site.finds() == []


def test_failures_that_are_repeated_count_for_the_type_and_not_for_the_queue(site: Site) -> None:
    site.enqueues(12, retry={"max_attempts": 5, "initial_interval": "PT1H"})
    site.works(12, failing=12)
    rules: Any = {"queues": {"*": {"error_rate": 0.0, "dead_letters": 1}}}
    assert site.finds(**rules) == [("type-failing", "mail.send")]
    site.enqueues(12)
    site.works(12, failing=12)
    assert site.finds(**rules) == [
        ("type-failing", "mail.send"), ("queue-failing", "mail"), ("queue-dead-letters", "mail")
    ]  # fmt: skip


def test_dead_letters_of_a_type_within_an_hour(site: Site) -> None:
    site.enqueues(3)
    site.works(3, failing=2)
    assert site.finds(types={"mail.send": {"dead_letters": 3}}) == []
    assert site.finds(types={"mail.send": {"dead_letters": 2}}) == [("type-dead-letters", "mail.send")]
    site.passes(minutes=62)
    assert site.finds(types={"mail.send": {"dead_letters": 2}}) == []


def test_a_queue_or_type_that_needs_no_worker(site: Site) -> None:
    register("w-1", {"queues": ["mail"], "job_types": ["mail.send"]})
    push([{"type": "other.type", "queue": "mail", "args": []}, {"type": "mail.send", "queue": "elsewhere", "args": []}])
    site.time.advance(seconds=1)
    register("w-1", {"queues": ["mail"], "job_types": ["mail.send"]})
    assert set(site.finds()) == {("queue-unserved", "elsewhere"), ("type-unserved", "other.type")}
    lazy: Any = {"queues": {"else*": {"workers": False}}, "types": {"other.*": {"workers": False}}}
    assert site.finds(**lazy) == []


def test_more_queues_and_types_take_no_more_statements(site: Site) -> None:
    def statements() -> int:
        with CaptureQueriesContext(connection) as captured:
            doctor.attention(doctor.Site(connection.alias, patient=False))
        return len(captured)

    site.enqueues(1)
    site.works(1)
    site.enqueues(1)
    counts()
    few = statements()
    for number in range(20):
        site.enqueues(2, queue=f"q{number}", type=f"a.b{number}")
        site.works(1, queue=f"q{number}")
    assert statements() <= few + 1, "the fronts of more queues may take one more"


def test_each_diagnosis_declares_the_kinds_that_it_finds() -> None:
    """By which alerts know what a failed one has not looked for."""

    def named(function: Any, seen: set[Any]) -> set[str]:
        seen.add(function)
        code, here = function.__code__, function.__globals__
        called = [here.get(name) for name in code.co_names]
        theirs = [one for one in called if isfunction(one) and one.__module__.startswith("django_ojs.doctor")]
        return {text for text in code.co_consts if text in doctor.TITLES}.union(
            *(named(one, seen) for one in theirs if one not in seen)
        )

    for diagnosis, kinds in doctor.WORK.items():
        assert named(diagnosis, set()) == set(kinds), diagnosis


# The figures


def test_a_queue_needs_the_slots_that_its_jobs_keep_busy(site: Site) -> None:
    site.passes(minutes=10)
    for _minute in range(6):
        site.enqueues(30)
        site.works(20, seconds=60)
    counts()
    found = doctor.Site(connection.alias).flows["mail"]
    assert found.waiting == 60
    assert found.mean_run_ms == 60_000
    assert found.enqueued == pytest.approx(30, rel=0.2)
    assert found.ended == pytest.approx(20, rel=0.2)
    assert found.slots == pytest.approx(found.enqueued or 0)
    assert found.empty_in is None
    assert found.growth > 0
    assert found.slots_to_empty(dt.timedelta(hours=1)) == pytest.approx((found.slots or 0) + 1)
    calm = capacity.QueueFlow(waiting=60, ended=40.0, enqueued=10.0, mean_run_ms=100.0)
    assert (calm.empty_in, calm.drain_time) == (2 * MINUTE, 1.5 * MINUTE)


def test_without_metrics_nobody_knows_what_came(site: Site, settings: Any) -> None:
    settings.OJS = {"METRICS": False}
    site.enqueues(5)
    found = doctor.Site(connection.alias).flows["mail"]
    assert (found.enqueued, found.slots, found.growth) == (None, None, 0.0)
    assert found.slots_to_empty(MINUTE) is None


def test_what_became_of_each_type_is_counted_once_and_forgotten_after_two_days(site: Site) -> None:
    site.enqueues(4)
    site.enqueues(1, type="report.daily")
    site.works(5, failing=1)
    counts()
    found = jobtypes.since(clock.now() - MINUTE)
    assert {name: (one.completed, one.failed, one.discarded, one.run_ms) for name, one in found.items()} == {
        "mail.send": (3, 1, 1, 3000), "report.daily": (1, 0, 0, 1000),
    }  # fmt: skip
    assert found["mail.send"].error_rate == 0.25
    assert found["report.daily"].mean_run_ms == 1000
    assert sum(throughput.by_queue(clock.now() - MINUTE)[key].failed for key in throughput.by_queue(clock.now())) == 1
    site.passes(days=2, hours=2)
    history.roll_up()
    assert not TypeMinute.objects.exists()
