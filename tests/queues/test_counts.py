"""Counts that drift, that are lost with a rollback, or that make a reader scan."""

from __future__ import annotations

import datetime as dt
import random
import uuid
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from django_ojs import clock
from django_ojs.jobs.cancel import cancel
from django_ojs.jobs.delete import delete
from django_ojs.jobs.fetch import Fetch, fetch
from django_ojs.jobs.finish import Ack, Failure, ack, fail, requeue
from django_ojs.jobs.promote import activate
from django_ojs.jobs.push import push
from django_ojs.jobs.retry import retry
from django_ojs.jobs.timers import apply_due
from django_ojs.models import CountDelta, Job, QueueCount, QueueMinute
from django_ojs.retention import prune
from django_ojs.states import State
from django_ojs.statistics import counters, history
from django_ojs.workerregistry.dead import rescue_dead_workers
from tests.queues.conftest import assert_exact

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("long_memory")]


def jobs(count: int, queue: str = "q", **fields: Any) -> list[uuid.UUID]:
    pushed = push([{"type": "a.b", "args": [], "queue": queue, **fields} for _ in range(count)])
    return [item.row["id"] for item in pushed if item.row]


def test_every_verb_keeps_the_counts_exact(frozen_clock: Any) -> None:
    """Random verbs on several jobs and queues at a time; some are refused, some are rolled back."""
    chance = random.Random(4711)

    def some() -> list[uuid.UUID]:
        known = list(Job.objects.order_by("pk").values_list("pk", flat=True))
        return chance.sample(known, min(len(known), 6))

    def birth() -> None:
        now = clock.now()
        documents: list[dict[str, Any]] = []
        for _ in range(chance.randint(1, 8)):
            document: dict[str, Any] = {"type": "a.b", "args": [], "queue": chance.choice("abc"), "timeout": 5}
            document["retry"] = {"max_attempts": chance.randint(1, 3), "initial_interval": "2s"}
            document["retry"] |= chance.choice([{}, {"on_exhaustion": "discard"}])
            document |= chance.choice([
                {}, {}, {"pending": True}, {"scheduled_at": (now + dt.timedelta(seconds=4)).isoformat()},
                {"expires_at": (now + dt.timedelta(seconds=6)).isoformat()},
            ])  # fmt: skip
            documents.append(document)
        push(documents)

    verbs: list[Callable[[], Any]] = [
        birth, birth, lambda: fetch(Fetch(chance.sample("abc", 3), count=5, visibility_ms=4000, worker_id="w")),
        lambda: ack([Ack(job) for job in some()]),
        lambda: fail([Failure(job, {"message": "no"}, requeue=chance.random() < 0.3) for job in some()]),
        lambda: fail([Failure(job, {"message": "no", "code": "DISCARD"}) for job in some()]),
        lambda: cancel(some()), lambda: activate(some()), lambda: requeue(some()), lambda: retry(some()),
        lambda: retry(some(), override={"queue": "b"}), lambda: delete(some()), rescue_dead_workers,
        lambda: (frozen_clock.advance(seconds=3), apply_due()), lambda: counters.fold(limit=chance.randint(1, 9)),
        lambda: (frozen_clock.advance(days=8), prune(batch=3)),
    ]  # fmt: skip
    for step in range(250):
        act = verbs[-1] if step % 60 == 59 else chance.choice(verbs[:-1])
        try:
            with transaction.atomic():
                act()
                if chance.random() < 0.1:
                    raise RuntimeError("roll back")
        except RuntimeError:
            pass
        if step % 10 == 9:
            assert_exact()
    assert_exact()
    seen = {state for found in counters.count_all().values() for state, n in found.states.items() if n}
    assert len(seen) >= 5, "the walk went nowhere"


def test_folding_changes_no_number_and_leaves_nothing(frozen_clock: Any) -> None:
    ids = jobs(7)
    fetch(Fetch(["q"], count=4))
    frozen_clock.advance(seconds=2)
    ack([Ack(job) for job in ids[:2]])
    before = counters.count("q")
    while counters.fold(limit=1):
        assert counters.count("q") == before
    assert not CountDelta.objects.exists()
    assert before.states == dict.fromkeys(map(str, State), 0) | {"available": 3, "active": 2, "completed": 2}
    assert (before.total, before.depth) == (7, 5)


def test_minutes_tell_what_was_done(frozen_clock: Any) -> None:
    jobs(3, retry={"max_attempts": 1})
    frozen_clock.advance(seconds=4)
    first, second, third = (row["id"] for row in fetch(Fetch(["q"], count=3)))
    frozen_clock.advance(seconds=1)
    ack([Ack(first), Ack(second)])
    fail([Failure(third, {"message": "no"})])
    counters.fold()
    (minute,) = QueueMinute.objects.all()
    assert (minute.started, minute.completed, minute.failed) == (3, 2, 1)
    assert (minute.wait_ms, minute.run_ms) == (12_000, 2_000)
    frozen_clock.advance(days=3)
    assert history.roll_up() == 1


def test_expiry_is_no_failure_and_a_revival_takes_nothing_back(frozen_clock: Any) -> None:
    jobs(1, expires_at=(clock.now() + dt.timedelta(seconds=1)).isoformat())
    frozen_clock.advance(seconds=2)
    apply_due()
    (job,) = Job.objects.values_list("pk", flat=True)
    retry([job])
    counters.fold()
    assert not QueueMinute.objects.filter(failed__gt=0).exists()
    assert_exact()


def test_one_statement_reads_one_queue_or_all() -> None:
    jobs(3, "a")
    jobs(3, "b")
    counters.fold(limit=1)
    for read in (lambda: counters.count("a"), counters.count_all):
        with CaptureQueriesContext(connection) as captured:
            read()
        assert sum("sum(" in query["sql"] for query in captured) == 1
        assert len(captured) <= 3
        assert not any(f"FROM {Job._meta.db_table}" in query["sql"].replace('"', "") for query in captured)


def test_a_million_jobs_are_counted_from_few_rows() -> None:
    QueueCount.objects.create(queue="big", available=700_000, completed=300_000)
    CountDelta.objects.bulk_create(
        CountDelta(queue="big", at=clock.now(), available=-1, active=1) for _ in range(counters.FOLD_BATCH)
    )
    found = counters.count("big")
    assert (found.states["available"], found.states["active"]) == (695_000, 5_000)


def test_a_reader_folds_where_nobody_else_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counters, "TOO_MANY", 10)
    monkeypatch.setattr(counters, "FOLD_BATCH", 5)
    for _ in range(12):
        jobs(1)
    assert counters.count("q").total == 12
    assert CountDelta.objects.count() < 12
