"""The attempts of a job: each with its wait, its run and its end, whatever ended it."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
from django.test import Client

from django_ojs import clock
from django_ojs.admin import history
from django_ojs.admin.history import timeline
from django_ojs.jobs import timers
from django_ojs.jobs.fetch import Fetch, fetch
from django_ojs.jobs.finish import Ack, Failure, ack, fail
from django_ojs.jobs.retry import retry_one
from django_ojs.models import Job, JobAttempt
from django_ojs.workerregistry.heartbeat import Beat, beat
from tests.admin.conftest import pushed, url

NOW = dt.datetime(2026, 3, 1, 12, 0, tzinfo=dt.UTC)
pytestmark = pytest.mark.django_db


def test_waits_runs_and_errors_of_every_attempt(admin_client: Client) -> None:
    clock.freeze(NOW)
    (job,) = pushed(retry={"max_attempts": 3, "initial_interval": "10s", "jitter": False})
    clock.advance(seconds=2)
    fetch(Fetch(["default"], worker_id="w-1"))
    clock.advance(seconds=5)
    fail([Failure(job.pk, error={"type": "OSError", "message": "gone"})])
    clock.advance(seconds=11)
    timers.apply_due()
    clock.advance(seconds=1)
    fetch(Fetch(["default"], worker_id="w-2"))
    clock.advance(seconds=3)
    running = timeline(job.pk)["attempts"]
    assert [(one["number"], one["waited"], one["ran"], one["worker"]) for one in running] == [
        (1, "2 s", "5 s", "w-1"), (2, "2 s", "3 s", "w-2")
    ]  # fmt: skip
    assert running[0]["error"] == "OSError: gone"
    assert "active" in running[1]["outcome"]
    ack([Ack(job.pk)])
    clock.advance(seconds=60)
    ended = timeline(job.pk)["attempts"]
    assert (ended[1]["ran"], ended[1]["error"]) == ("3 s", "")
    assert "completed" in ended[1]["outcome"]
    assert "OSError: gone" in admin_client.get(url("job", "change", job.pk)).content.decode()


def test_a_lost_reservation_ends_its_attempt() -> None:
    clock.freeze(NOW)
    (job,) = pushed(options={"visibility_timeout_ms": 1000})
    fetch(Fetch(["default"], worker_id="w-1"))
    clock.advance(seconds=30)
    timers.apply_due()
    (lost,) = timeline(job.pk)["attempts"]
    assert "active" not in lost["outcome"]
    assert Job.objects.get(pk=job.pk).state == "available"


def test_the_backoff_is_the_time_until_the_next_attempt_is_due() -> None:
    clock.freeze(NOW)
    (job,) = pushed(retry={"max_attempts": 3, "initial_interval": "10s", "jitter": False})
    fetch(Fetch(["default"], worker_id="w-1"))
    fail([Failure(job.pk, error={"type": "OSError", "message": "gone"})])
    assert [one["backoff"] for one in timeline(job.pk)["attempts"]] == ["10 s"]
    clock.advance(seconds=30)
    timers.apply_due()
    fetch(Fetch(["default"], worker_id="w-1"))
    ack([Ack(job.pk)])
    assert [one["backoff"] for one in timeline(job.pk)["attempts"]] == ["10 s", "–"]


def test_rounds_releases_and_the_whole_errors_are_there(admin_client: Client) -> None:
    clock.freeze(NOW)
    beat(Beat("w-1", info={"release": "v41"}))
    (job,) = pushed(retry={"max_attempts": 1})
    fetch(Fetch(["default"], worker_id="w-1", check_worker=False))
    fail([Failure(job.pk, error={"type": "OSError", "message": "gone", "backtrace": ["disk.py:7"]})])
    retry_one(job.pk)
    clock.advance(seconds=1)
    fetch(Fetch(["default"], worker_id="w-1", check_worker=False))
    ack([Ack(job.pk)])
    found = timeline(job.pk)
    assert [(one["round"], one["number"], one["release"]) for one in found["attempts"]] == [
        (0, 1, "v41"),
        (1, 1, "v41"),
    ]
    page = admin_client.get(url("job", "change", job.pk)).content.decode()
    for text in ("Round", "Release", "v41", "disk.py:7"):
        assert text in page, text


def test_a_page_shows_the_newest_and_says_how_many_there_are(
    admin_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "ATTEMPTS", 2)
    clock.freeze(NOW)
    (job,) = pushed(retry={"max_attempts": 9})
    for _ in range(5):
        clock.advance(seconds=1)
        fetch(Fetch(["default"], worker_id="w-1"))
        fail([Failure(job.pk, error={"message": "no"}, retry_after_ms=0)])
    assert [one["number"] for one in timeline(job.pk)["attempts"]] == [4, 5]
    assert "3 earlier attempts are not shown." in admin_client.get(url("job", "change", job.pk)).content.decode()


@pytest.mark.parametrize("kept", [True, False])
def test_what_only_the_log_knows_is_shown_too(kept: bool, settings: Any) -> None:
    settings.OJS = {"EXECUTION_HISTORY": kept}
    clock.freeze(NOW)
    (job,) = pushed(retry={"max_attempts": 9})
    fetch(Fetch(["default"], worker_id="w-1"))
    fail([Failure(job.pk, error={"message": "no"}, retry_after_ms=0)])
    JobAttempt.objects.all().delete()
    assert [(one["number"], one["worker"]) for one in timeline(job.pk)["attempts"]] == [(1, "w-1")]
