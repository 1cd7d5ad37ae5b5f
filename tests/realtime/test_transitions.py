"""`job.state_changed`: every change with a stored event appears exactly once, from the right state to the right one."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest

from django_ojs.events import log
from django_ojs.operations.ack import Ack, ack
from django_ojs.operations.activate import activate
from django_ojs.operations.cancel import cancel
from django_ojs.operations.due import settle
from django_ojs.operations.fail import Failure, fail_one
from django_ojs.operations.fetch import fetch
from django_ojs.operations.push import push
from django_ojs.operations.retry import retry
from django_ojs.policies.durations import format_instant
from django_ojs.realtime import transitions

pytestmark = pytest.mark.django_db

ERROR = {"type": "Boom", "message": "broken"}


def job(**options: Any) -> Any:
    row = push([{"type": "a.b", "args": [], **options}])[0].row
    assert row is not None
    return row["id"]


def changes() -> list[tuple[str, str]]:
    found = [transitions.payload(event) for event in log.read(types=["*", "job.stalled"], limit=1000).events]
    return [(entry["from"], entry["to"]) for entry in found if entry is not None]


def claim(**options: Any) -> Any:
    (row,) = fetch(["default"], worker_id="w", **options)
    return row


def test_success(frozen_clock: Any) -> None:
    job(scheduled_at=format_instant(frozen_clock.now + dt.timedelta(seconds=5)))
    frozen_clock.advance(seconds=6)
    settle()
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
    settle()
    assert changes()[-1] == ("available", "discarded")
    job()
    fail_one(Failure(claim()["id"], ERROR, snooze_ms=1000))
    assert changes()[-2:] == [("available", "active"), ("active", "retryable")]


def test_a_lost_worker(frozen_clock: Any, settings: Any) -> None:
    settings.OJS = {"POISON_LIMIT": 2}
    job()
    for _ in range(2):
        claim(visibility_ms=1000)
        frozen_clock.advance(seconds=2)
        settle()
    assert changes() == [
        ("", "available"), ("available", "active"), ("active", "available"), ("available", "active"),
        ("active", "discarded"),
    ]  # fmt: skip


def test_the_flat_object_carries_the_id_of_its_event() -> None:
    job_id = job(queue="mail")
    (event,) = log.read().events
    changed = transitions.state_changed(event)
    assert changed is not None
    assert (changed["id"], changed["type"]) == (event["id"], "job.state_changed")
    assert changed["data"] == {
        "job_id": str(job_id), "queue": "mail", "type": "a.b", "from": "", "to": "available",
        "timestamp": event["time"],
    }  # fmt: skip
    assert "from" not in event["data"]
