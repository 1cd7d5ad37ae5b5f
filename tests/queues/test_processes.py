"""Several processes at once, one of them killed: no limit is exceeded, and the counts stay exact."""

from __future__ import annotations

import datetime as dt
import signal
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise

import pytest

from django_ojs.jobs.push import push
from django_ojs.models import CountDelta, Event, Job
from django_ojs.queues.configuration import configure
from django_ojs.statistics import counters
from tests.queues.conftest import assert_exact

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow, pytest.mark.sqlite_too]

QUEUES = ("keyed", "rated", "spaced", "bounded", "free")
SECONDS = 120


@pytest.fixture
def greedy(child_environment: dict[str, str]) -> Iterator[list[subprocess.Popen[str]]]:
    """Three workers, and one that stops in the middle of its jobs."""
    started = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.queues.greedy", name, *QUEUES],
            env=child_environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )
        for name in ("doomed", "a", "b", "c")
    ]  # fmt: skip
    yield started
    for process in started:
        process.kill()
        process.communicate()


def fill() -> None:
    quick = {"max_attempts": 99, "initial_interval": "20ms", "jitter": False, "backoff_coefficient": 1.0}
    policies = {
        "keyed": {"key": "k", "concurrency": 2},
        "rated": {"key": "r", "rate": {"limit": 5, "period_ms": 400}},
        "spaced": {"key": "s", "throttle": {"limit": 20, "period": "second"}},
        "bounded": None,
        "free": None,
    }
    configure("bounded", {"concurrency": 3})
    for queue, policy in policies.items():
        job = {"type": "a.b", "args": [], "queue": queue, "retry": quick}
        push([job | ({"rate_limit": policy} if policy else {}) for _ in range(60 if queue == "free" else 30)])


def starts(queue: str) -> list[dt.datetime]:
    return sorted(Event.objects.filter(queue=queue, type="job.started").values_list("time", flat=True))


def most_at_once(queue: str) -> int:
    """By the event log: each start opens an attempt, whatever ends it closes it.

    By the ids of the events, not their times: the clocks of two processes differ by some milliseconds on a busy
    machine. A claim that a limit held up takes the ids of its events after the end that made room was committed.
    """
    ends = ("job.completed", "job.failed", "job.stalled")
    events = Event.objects.filter(queue=queue, type__in=["job.started", *ends]).order_by("pk")
    running = most = 0
    for kind in events.values_list("type", flat=True):
        running += 1 if kind == "job.started" else -1
        most = max(most, running)
    return most


def read(process: subprocess.Popen[str]) -> str:
    assert process.stdout
    return process.stdout.readline().strip()


def go(process: subprocess.Popen[str]) -> None:
    assert process.stdin
    process.stdin.write("go\n")
    process.stdin.flush()


def test_no_limit_is_exceeded_and_no_job_is_miscounted(greedy: list[subprocess.Popen[str]]) -> None:
    fill()
    doomed, *others = greedy
    for process in greedy:
        assert read(process) == "ready"
    go(doomed)
    assert read(doomed) == "holding"  # alone until then: the others could leave it nothing to hold
    for process in others:
        go(process)
    doomed.send_signal(signal.SIGKILL)
    assert [process.wait(SECONDS) for process in others] == [0, 0, 0]
    assert set(Job.objects.values_list("state", flat=True)) == {"completed"}
    assert Event.objects.filter(type="job.stalled").exists(), "the killed worker held something"

    assert 1 <= most_at_once("keyed") <= 2
    assert 1 <= most_at_once("bounded") <= 3
    # By the clocks of their processes, which differ by some milliseconds.
    rated, spaced, apart = starts("rated"), starts("spaced"), dt.timedelta(milliseconds=20)
    assert min(b - a for a, b in zip(rated, rated[5:], strict=False)) >= dt.timedelta(milliseconds=400) - apart
    assert min(b - a for a, b in pairwise(spaced)) >= dt.timedelta(milliseconds=50) - apart
    assert_exact()
    while counters.fold():
        pass
    assert not CountDelta.objects.exists()
    assert_exact()
