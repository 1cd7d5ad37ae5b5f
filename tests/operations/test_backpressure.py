"""Bounded queues: never one job more than the bound, however many push; and unbounded ones pay nothing."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.db import connection, connections, transaction
from django.test.utils import CaptureQueriesContext

from django_ojs import clock, jsontext
from django_ojs.errors import QueueFull
from django_ojs.events import log
from django_ojs.jobs.fetch import Fetch, fetch
from django_ojs.jobs.finish import Ack, Failure, ack_one, fail_one
from django_ojs.jobs.push import push, push_each
from django_ojs.jobs.read import info
from django_ojs.models import Job, Queue
from django_ojs.queues import bounds as backpressure
from django_ojs.queues import configuration
from django_ojs.rules.queueconfig import Bound, bound_of

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("long_memory")]

QUEUE = "bounded"


def bound(config: dict[str, Any] | None = None, **backpressure: Any) -> None:
    now = clock.now()
    values = {"config": config or {"backpressure": backpressure}, "updated_at": now}
    Queue.objects.update_or_create(pk=QUEUE, defaults=values, create_defaults={**values, "created_at": now})
    configuration.forget()


def job(n: int = 0, **more: Any) -> dict[str, Any]:
    return {"type": "test.bounded", "args": [n], "queue": QUEUE, **more}


def hundred_bytes(n: int) -> dict[str, Any]:
    """A job that takes so many in the count; meta are `{}`."""
    return job() | {"args": ["x" * (92 - len(str(n))), n]}


def _noting_locked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    found: list[int] = []
    real = backpressure._locked

    def locked(*args: Any) -> Any:
        rows = real(*args)
        found.append(len(rows))
        return rows

    monkeypatch.setattr(backpressure, "_locked", locked)
    return found


def make(n: int = 0, **more: Any) -> Any:
    return push([job(n, **more)])[0].row


def types(name: str = "backpressure.") -> list[str]:
    names = [f"backpressure.{word}" for word in ("rejected", "dropped", "warning", "cleared")]
    return [event["type"].removeprefix(name) for event in log.read(types=names).events]


class TestTemplate:
    """What `_default` says holds for every queue, as `effective_config` shows it."""

    def test_a_bound_of_the_template_bounds_each_queue(self) -> None:
        configuration.configure("_default", {"backpressure": {"max_depth": 1}})
        configuration.configure(QUEUE, {"concurrency": 5})
        make()
        push([job(queue="other")])
        for name in (QUEUE, "other"):
            with pytest.raises(QueueFull):
                push([job(queue=name)])
            refused = push_each([job(queue=name)] * 2)
            assert [type(outcome) for outcome in refused] == [QueueFull] * 2
        assert Job.objects.count() == 2

    def test_a_queue_changes_one_member_of_it(self) -> None:
        configuration.configure("_default", {"backpressure": {"max_depth": 1, "strategy": "drop_oldest"}})
        configuration.configure(QUEUE, {"backpressure": {"max_depth": 2}})
        first = make(1)
        rest = [make(2), make(3)]
        assert info(first["id"])["state"] == "discarded"
        assert [info(row["id"])["state"] for row in rest] == ["available"] * 2

    @pytest.mark.parametrize(
        "template, own",
        [
            ({"backpressure": {"max_depth": 1, "strategy": "block"}}, {"max_size": 3, "overflow_policy": "reject"}),
            ({"max_size": 1, "overflow_policy": "block"}, {"backpressure": {"max_depth": 3, "strategy": "reject"}}),
        ],
    )  # fmt: skip
    def test_a_queue_says_it_in_the_other_words(self, template: dict[str, Any], own: dict[str, Any]) -> None:
        configuration.configure("_default", template)
        configuration.configure(QUEUE, own)
        for n in range(3):
            make(n)
        with pytest.raises(QueueFull) as refusal:
            make()
        assert refusal.value.details["strategy"] == "reject"
        configuration.configure(QUEUE, template)
        assert configuration.document(Queue.objects.get(pk=QUEUE)) == template

    def test_a_queue_has_no_bound_if_it_says_so(self) -> None:
        configuration.configure("_default", {"max_size": 1})
        configuration.configure(QUEUE, {"backpressure": {"max_depth": 0}})
        make()
        make()

    def test_it_bounds_a_queue_that_is_new_in_an_open_transaction(self) -> None:
        configuration.configure("_default", {"backpressure": {"max_depth": 2}})
        with transaction.atomic():
            push([job(1)])
            with pytest.raises(QueueFull):
                push([job(n) for n in range(2)])
            push([job(2)])
        assert Job.objects.count() == 2
        assert types() == ["rejected"]

    def test_a_queue_whose_bound_is_taken_back_is_cleared(self) -> None:
        configuration.configure("_default", {"backpressure": {"max_depth": 1}})
        configuration.configure(QUEUE, {})
        make()
        assert backpressure.relieve() == 0
        configuration.configure("_default", {"backpressure": None})
        assert (backpressure.relieve(), backpressure.relieve()) == (1, 0)
        (event,) = log.read(types=["backpressure.cleared"]).events
        assert (event["data"]["depth"], event["data"]["bound"], event["data"]["pressure"]) == (1, 0, 0)


class TestReject:
    def test_the_job_beyond_the_bound_is_refused(self) -> None:
        bound(max_depth=2)
        make()
        make()
        with pytest.raises(QueueFull) as refusal:
            make()
        error = refusal.value
        assert error.as_dict()["code"] == "QUEUE_FULL"
        assert (error.status, error.retryable, error.retry_after) == (429, True, 1)
        facts = {"queue": QUEUE, "depth": 2, "bound": 2, "strategy": "reject"}
        assert {key: error.as_dict()[key] for key in facts} == facts == error.details
        assert error.headers == {"X-OJS-Queue-Depth": "2", "X-OJS-Queue-Bound": "2"}
        assert Job.objects.count() == 2
        assert types() == ["warning", "rejected"]

    @pytest.mark.parametrize(
        "config",
        [{"max_size": 1}, {"max_size": 5, "backpressure": {"max_depth": 1}}, {"max_size_bytes": 8},
         {"backpressure": {"max_size_bytes": 8}}],
    )  # fmt: skip
    def test_all_spellings_of_a_bound(self, config: dict[str, Any]) -> None:
        bound(config)
        make()
        with pytest.raises(QueueFull):
            make()

    @pytest.mark.parametrize("config", [{}, {"max_size": 0}, {"backpressure": {"max_depth": 0}}, {"max_size": "x"}])
    def test_zero_is_no_bound(self, config: dict[str, Any]) -> None:
        assert bound_of(config) is None

    def test_what_the_configuration_means(self) -> None:
        given = {"max_depth": 5, "strategy": "block", "warning_threshold": 0.5}
        assert bound_of({"overflow_policy": "drop_oldest", "backpressure": given}) == Bound(5, None, "block", 0.5)
        assert bound_of({"max_size": 5, "overflow_policy": "drop_oldest"}) == Bound(5, None, "drop_oldest", 0.8)

    def test_jobs_count_until_they_end(self) -> None:
        bound(max_depth=5)
        make(scheduled_at="2100-01-01T00:00:00Z")
        make(pending=True)
        active, retryable = make(priority=9), make(priority=8)
        fetch(Fetch([QUEUE], count=2))
        fail_one(Failure(retryable["id"], {"message": "no"}))
        make()
        with pytest.raises(QueueFull):
            make()
        ack_one(Ack(active["id"]))
        make()

    def test_a_batch_fits_or_is_refused_as_a_whole(self) -> None:
        bound(max_depth=3)
        make()
        with pytest.raises(QueueFull):
            push([job(n) for n in range(3)])
        assert Job.objects.count() == 1
        push([job(n) for n in range(2)])

    def test_a_retry_is_never_refused(self) -> None:
        bound(max_depth=1)
        row = make()
        fetch(Fetch([QUEUE]))
        fail_one(Failure(row["id"], {"message": "no"}))
        assert info(row["id"])["state"] == "retryable"

    def test_a_unique_job_that_replaces_another_takes_its_place(self) -> None:
        bound(max_depth=1)
        old = make(unique={})
        make(unique={"on_conflict": "replace"})
        assert info(old["id"])["state"] == "cancelled"
        with pytest.raises(QueueFull):
            make(unique={"states": ["active"]})

    def test_a_refused_replacement_leaves_the_old_job_alone(self) -> None:
        bound(max_depth=1)
        old = push([job(unique={}) | {"queue": "elsewhere"}])[0].row
        assert old is not None
        make(7)
        with pytest.raises(QueueFull):
            make(unique={"on_conflict": "replace"})
        assert info(old["id"])["state"] == "available"


class TestDropOldest:
    def test_the_oldest_job_that_waits_goes_to_the_dead_letters(self) -> None:
        bound(max_depth=2, strategy="drop_oldest")
        rows = [make(n, priority=n) for n in range(2)]
        new = make(5)
        assert [info(row["id"])["state"] for row in (*rows, new)] == ["discarded", "available", "available"]
        dropped = Job.objects.get(pk=rows[0]["id"])
        assert dropped.dead_letter
        assert dropped.error is not None
        assert dropped.error["type"] == "overflow"
        assert [e["type"] for e in log.read(job_id=dropped.pk).events] == ["job.enqueued", "job.discarded"]
        assert "dropped" in types()

    def test_a_batch_makes_room_for_all_of_it(self) -> None:
        bound(max_depth=3, strategy="drop_oldest")
        for n in range(3):
            make(n)
        push([job(10), job(11)])
        waiting = Job.objects.filter(state="available").order_by("enqueued_at")
        assert [found.args for found in waiting] == [[2], [10], [11]]

    def test_where_nothing_can_be_dropped_the_job_is_refused(self) -> None:
        bound(max_depth=2, strategy="drop_oldest")
        make()
        fetch(Fetch([QUEUE]))
        make(scheduled_at="2100-01-01T00:00:00Z")
        with pytest.raises(QueueFull):
            make()
        assert Job.objects.count() == 2

    def test_by_size(self) -> None:
        bound({"backpressure": {"max_size_bytes": 300, "strategy": "drop_oldest"}})
        for n in range(3):
            push([job() | {"args": ["x" * 90, n]}])
        push([job() | {"args": ["y" * 180]}])
        assert Job.objects.filter(state="available").count() == 2

    @pytest.mark.parametrize("sliced", [1, 2, 500])
    @pytest.mark.parametrize("count, dropped", [(1, 1), (3, 3), (12, 10)])
    def test_by_size_no_more_are_locked_than_have_to_go(
        self, monkeypatch: pytest.MonkeyPatch, sliced: int, count: int, dropped: int
    ) -> None:
        monkeypatch.setattr(backpressure, "_SLICE", sliced)
        bound({"backpressure": {"max_size_bytes": 1000, "strategy": "drop_oldest"}})
        locked = _noting_locked(monkeypatch)
        for n in range(10):
            push([hundred_bytes(n)])
        push_each([hundred_bytes(n) for n in range(10, 10 + count)])
        assert sum(locked) == dropped
        waiting = Job.objects.filter(state="available").order_by("enqueued_at")
        assert [found.args[1] for found in waiting] == [*range(dropped, 10 + min(count, 10))]

    def test_bytes_are_counted_as_they_are_stored(self) -> None:
        bound({"backpressure": {"max_size_bytes": 300, "strategy": "drop_oldest"}})
        push([job() | {"args": ["é" * 70]}])
        push([job() | {"args": ["x" * 130]}])
        push([job() | {"args": ["y" * 130]}])
        assert Job.objects.filter(state="available").count() == 2

    def test_by_size_and_by_number(self) -> None:
        bound({"backpressure": {"max_depth": 4, "max_size_bytes": 1000, "strategy": "drop_oldest"}})
        for n in range(5):
            push([job(n)])
        assert [found.args for found in Job.objects.filter(state="available").order_by("pk")] == [[1], [2], [3], [4]]

    def test_what_never_fits_drops_nothing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        bound({"backpressure": {"max_size_bytes": 300, "strategy": "drop_oldest"}})
        push([hundred_bytes(0)])
        locked = _noting_locked(monkeypatch)
        with pytest.raises(QueueFull):
            push([job() | {"args": ["x" * 400]}])
        assert (sum(locked), Job.objects.filter(state="available").count()) == (0, 1)

    @pytest.mark.django_db(transaction=True)
    @pytest.mark.parametrize("vendor", [
        pytest.param("postgresql", marks=pytest.mark.postgres), pytest.param("mysql", marks=pytest.mark.mariadb),
    ])  # fmt: skip
    def test_a_worker_finds_the_rest_meanwhile(self, vendor: str) -> None:
        bound({"backpressure": {"max_size_bytes": 1000, "strategy": "drop_oldest"}})
        for n in range(10):
            push([hundred_bytes(n)])

        def work() -> list[Any]:
            try:
                return [jsontext.loads(row["args"])[1] for row in fetch(Fetch([QUEUE], count=20))]
            finally:
                connections.close_all()

        with ThreadPoolExecutor(1) as pool, transaction.atomic():
            push([hundred_bytes(10)])
            assert pool.submit(work).result(30) == [*range(1, 10)]


class TestWarning:
    def test_the_pusher_is_warned_and_the_log_once(self) -> None:
        bound(max_depth=10, warning_threshold=0.5)
        pushed = [push([job(n)])[0].pressure for n in range(6)]
        assert pushed[3] is None
        assert pushed[4] == (QUEUE, 5, 10, 0.5)
        assert pushed[5] is not None
        assert types() == ["warning"]

    def test_the_queue_is_cleared_by_the_next_push_or_the_scheduler(self) -> None:
        bound(max_depth=2, warning_threshold=0.9)
        make()
        make()
        assert backpressure.relieve() == 0
        for row in fetch(Fetch([QUEUE], count=2)):
            ack_one(Ack(row["id"]))
        assert backpressure.relieve() == 1
        assert backpressure.relieve() == 0
        assert types() == ["warning", "cleared"]
        assert Queue.objects.get(pk=QUEUE).pressured_at is None


def test_partly_those_that_fit_are_stored() -> None:
    bound(max_depth=2)
    outcomes = push_each([job(n) for n in range(3)])
    assert isinstance(outcomes[2], QueueFull)
    assert Job.objects.count() == 2


def test_an_unbounded_queue_pays_nothing() -> None:
    bound()
    make()
    with CaptureQueriesContext(connection) as captured:
        make()
    assert len(captured) <= 6
    assert not any("union all" in query["sql"].lower() for query in captured)  # how depths are counted


def test_a_bounded_queue_costs_the_same_for_one_and_for_many() -> None:
    bound(max_depth=10_000)
    costs = []
    for count in (2, 200):
        push([job()])
        with CaptureQueriesContext(connection) as captured:
            push([job(n) for n in range(count)])
        costs.append(len(captured))
    assert costs[0] == costs[1]


@pytest.mark.django_db(transaction=True)
class TestConcurrency:
    @pytest.mark.parametrize("strategy", ["reject", "drop_oldest"])
    def test_many_producers_never_pass_the_bound(self, strategy: str) -> None:
        bound(max_depth=10, strategy=strategy)
        barrier = threading.Barrier(20)

        def produce(i: int) -> int:
            try:
                connection.ensure_connection()
                barrier.wait(60)
                refused = 0
                for n in range(3):
                    try:
                        make(n)
                    except QueueFull:
                        refused += 1
                return refused
            finally:
                connections.close_all()

        with ThreadPoolExecutor(20) as pool:
            refused = sum(pool.map(produce, range(20)))
        assert Job.objects.filter(state="available").count() == 10
        assert refused == (50 if strategy == "reject" else 0)

    def test_a_blocked_push_goes_on_when_there_is_room(self) -> None:
        bound(max_depth=1, strategy="block")
        first = make()

        def wait() -> Any:
            try:
                return push([job(2)], patience=20)[0].row
            finally:
                connections.close_all()

        with ThreadPoolExecutor(1) as pool:
            blocked = pool.submit(wait)
            (row,) = fetch(Fetch([QUEUE]))
            assert not blocked.done()
            ack_one(Ack(row["id"]))
            assert blocked.result(20)["id"] != first["id"]
        assert "rejected" not in types()

    def test_without_patience_it_is_refused_at_once_and_so_inside_a_transaction(self) -> None:
        bound(max_depth=1, strategy="block")
        make()
        with pytest.raises(QueueFull):
            push([job(2)])
        with pytest.raises(QueueFull), transaction.atomic():
            push([job(2)], patience=20)
        assert types() == ["warning", "rejected"]
