"""What workers did over time: a row a minute, whatever they say and however often."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from django_ojs.models import Release, Worker, WorkerMinute
from django_ojs.retention import prune
from django_ojs.statistics import history, workerminutes
from django_ojs.workerregistry import releases
from django_ojs.workerregistry.heartbeat import Beat, beat, beat_with_others
from django_ojs.workerregistry.registration import direct, register
from tests.conftest import FrozenClock

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.database]


def test_the_first_heartbeat_of_a_minute_is_noted(frozen_clock: FrozenClock) -> None:
    for second in range(0, 150, 5):
        beat(Beat("w", active_count=second, info={"memory_mb": 50.0 + second, "concurrency": 8}))
        frozen_clock.advance(seconds=5)
    rows = list(WorkerMinute.objects.order_by("minute"))
    assert len(rows) in (3, 4)
    assert all(row.minute.second == 0 and row.concurrency == 8 for row in rows)
    assert (rows[0].active_jobs, rows[0].memory_mb) == (0, 50.0)
    assert [row.minute for row in workerminutes.since("w", rows[1].minute).values()] == [r.minute for r in rows[1:]]


def test_other_heartbeats_cost_no_statement_more(frozen_clock: FrozenClock) -> None:
    beat_with_others(Beat("w"))
    with CaptureQueriesContext(connection) as captured:
        beat_with_others(Beat("w"))
    assert "workerminute" not in " ".join(query["sql"] for query in captured)


def test_a_worker_that_comes_back_within_the_minute_changes_nothing(frozen_clock: FrozenClock) -> None:
    beat(Beat("w", active_count=1))
    Worker.objects.all().delete()
    beat(Beat("w", active_count=2))
    assert WorkerMinute.objects.get().active_jobs == 1


def test_old_minutes_are_forgotten(frozen_clock: FrozenClock) -> None:
    beat(Beat("w"))
    frozen_clock.advance(seconds=49 * 3600)
    beat(Beat("w"))
    history.roll_up()
    assert WorkerMinute.objects.count() == 1


def test_a_release_is_noted_when_its_first_worker_comes(frozen_clock: FrozenClock, settings: Any) -> None:
    beat(Beat("a", info={"release": "1"}))
    began = Release.objects.get().first_seen_at
    frozen_clock.advance(seconds=30)
    beat(Beat("b", info={"release": "1"}))
    beat(Beat("a", info={"release": "2"}))
    beat(Beat("a"))
    assert [(one.name, one.first_seen_at - began) for one in releases.newest(9)] == [
        ("1", dt.timedelta(0)), ("2", dt.timedelta(seconds=30)),
    ]  # fmt: skip
    assert dict(Worker.objects.values_list("pk", "release")) == {"a": "2", "b": "1"}
    assert [one.name for one in releases.between(began + dt.timedelta(seconds=1), began + dt.timedelta(days=1))] == [
        "2"
    ]
    with CaptureQueriesContext(connection) as captured:
        beat(Beat("a", info={"release": "2"}))
    assert "_release" not in " ".join(query["sql"] for query in captured)


def test_of_very_many_releases_the_newest_are_kept(frozen_clock: FrozenClock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(releases, "KEPT", 3)
    for number in range(5):
        beat(Beat("w", info={"release": f"r{number}"}))
        frozen_clock.advance(seconds=1)
    assert prune()["releases"] == 2
    assert [one.name for one in releases.newest(9)] == ["r2", "r3", "r4"]


@pytest.mark.parametrize("again", ["registers", "beats with another pid"])
def test_a_worker_that_has_restarted_is_not_told_so_again(again: str) -> None:
    register("w", {"pid": 1})
    direct("w", "restart")
    assert (beat(Beat("w", info={"pid": 1})).state, beat(Beat("w")).restart) == ("terminate", True)
    if again == "registers":
        register("w", {"pid": 1})
    answer = beat(Beat("w", info={"pid": 2}))
    assert (answer.state, answer.restart, Worker.objects.get().directive) == ("running", False, "")


def test_one_that_is_to_terminate_is_told_so_until_another_order() -> None:
    register("w", {"pid": 1})
    direct("w", "terminate")
    register("w", {"pid": 2})
    assert beat(Beat("w", info={"pid": 3})).state == "terminate"
