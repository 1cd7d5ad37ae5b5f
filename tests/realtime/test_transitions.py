"""`job.state_changed`: every change with a stored event appears exactly once, from the right state to the right one."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
from django.db import connection

from django_ojs.events import catalogue, log, order
from django_ojs.events.filters import Filter
from django_ojs.jobs.cancel import cancel
from django_ojs.jobs.fetch import Fetch, fetch
from django_ojs.jobs.finish import Ack, Failure, ack, fail_one
from django_ojs.jobs.promote import activate
from django_ojs.jobs.push import push
from django_ojs.jobs.retry import retry
from django_ojs.jobs.timers import apply_due
from django_ojs.models import EventLog
from django_ojs.rules.durations import format_instant

pytestmark = pytest.mark.django_db

ERROR = {"type": "Boom", "message": "broken"}


def job(**options: Any) -> Any:
    row = push([{"type": "a.b", "args": [], **options}])[0].row
    assert row is not None
    return row["id"]


def changes() -> list[tuple[str, str]]:
    found = log.read(types=["job.state_changed"], limit=1000).events
    return [(event["data"]["from"], event["data"]["to"]) for event in found]


def claim(**options: Any) -> Any:
    (row,) = fetch(Fetch(["default"], worker_id="w", **options))
    return row


def test_success(frozen_clock: Any) -> None:
    job(scheduled_at=format_instant(frozen_clock.now + dt.timedelta(seconds=5)))
    frozen_clock.advance(seconds=6)
    apply_due()
    ack([Ack(claim()["id"])])
    assert changes() == [
        ("", "scheduled"),
        ("scheduled", "available"),
        ("available", "active"),
        ("active", "completed"),
    ]


def test_failure_dead_letter_and_manual_retry(frozen_clock: Any) -> None:
    job(retry={"max_attempts": 2, "jitter": False})
    fail_one(Failure(claim()["id"], ERROR))
    frozen_clock.advance(hours=1)
    row = claim()
    fail_one(Failure(row["id"], ERROR))
    retry([row["id"]])
    assert changes() == [
        ("", "available"), ("available", "active"), ("active", "retryable"), ("available", "active"),
        ("active", "discarded"), ("discarded", "available"),
    ]  # fmt: skip


def test_cancel_activate_expire_and_snooze(frozen_clock: Any) -> None:
    pending = job(pending=True)
    activate([pending])
    cancel([pending])
    assert changes() == [("pending", "available"), ("available", "cancelled")]
    job(expires_at=format_instant(frozen_clock.now + dt.timedelta(seconds=5)))
    frozen_clock.advance(seconds=6)
    apply_due()
    assert changes()[-1] == ("available", "discarded")
    job()
    fail_one(Failure(claim()["id"], ERROR, snooze_ms=1000))
    assert changes()[-2:] == [("available", "active"), ("active", "retryable")]


@pytest.mark.postgres
def test_in_the_transaction_of_a_test_the_order_is_kept_whatever_commits_beside_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    number = order._number_transactions

    def numbered_late(using: str, event_log: EventLog) -> int:
        other = connection.copy()
        with other.cursor() as cursor:
            cursor.execute("SELECT pg_current_xact_id()")
        other.close()
        return number(using, event_log)

    monkeypatch.setattr(order, "_number_transactions", numbered_late)
    pk = job()
    assert changes() == [("", "available")]
    cancel([pk])
    assert changes() == [("", "available"), ("available", "cancelled")]
    job()
    assert changes()[-1] == ("", "available")
    assert EventLog.objects.get().changes == 0


def test_a_lost_worker(frozen_clock: Any, settings: Any) -> None:
    settings.OJS = {"POISON_LIMIT": 2}
    job()
    for _ in range(2):
        claim(visibility_ms=1000)
        frozen_clock.advance(seconds=2)
        apply_due()
    assert changes() == [
        ("", "available"), ("available", "active"), ("active", "available"), ("available", "active"),
        ("active", "discarded"),
    ]  # fmt: skip


def test_a_change_is_a_whole_event_with_an_id_of_its_own() -> None:
    job_id = job(queue="mail")
    (event,) = log.read().events
    (changed,) = log.read(types=["job.state_changed"]).events
    assert changed["id"] != event["id"]
    assert changed == {**event, "id": changed["id"], "type": "job.state_changed", "data": changed["data"]}
    assert changed["data"] == {
        "job_id": str(job_id), "queue": "mail", "type": "a.b", "job_type": "a.b", "state": "available", "attempt": 0,
        "timestamp": event["time"], "from": "", "to": "available",
    }  # fmt: skip
    assert "from" not in event["data"]
    assert catalogue.deviations(
        "job.state_changed", {name: value for name, value in changed["data"].items() if name not in event["data"]}
    ) == []  # fmt: skip


def test_a_reader_of_changes_and_events_loses_and_repeats_none_wherever_it_is_cut_off() -> None:
    """Each id is a cursor of its own: who stops between a change and its event goes on with the event."""
    job()
    ack([Ack(claim()["id"])])
    types = ["job.*", "job.state_changed"]
    whole = log.read(types=types).events
    assert [event["type"] for event in whole] == [
        "job.state_changed", "job.enqueued", "job.state_changed", "job.started", "job.state_changed", "job.completed"
    ]  # fmt: skip
    assert len({event["id"] for event in whole}) == len(whole)
    for number, event in enumerate(whole, 1):
        assert log.read(types=types, after=event["id"]).events == whole[number:]
    for limit in (1, 2, 3, 5):
        found, cursor, more = [], None, True
        while more:
            page = log.read(types=types, after=cursor, limit=limit)
            assert len(page.events) <= limit
            found += page.events
            cursor, more = page.cursor, page.has_more
        assert found == whole
    assert log.newest(Filter(types=tuple(types))).events == whole[::-1]
