"""A storm of kill -9 over processes, parents and leaders: every job is done once, and nothing is late for long.

OJS_TEST_FULL=1 runs the size that counts: 5,000 jobs, 8 processes, a kill every second until the end.
"""

from __future__ import annotations

import datetime as dt
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

import psutil
import pytest

from django_ojs import clock, enqueue_many
from django_ojs.models import Event, Job, Lease, Worker
from tests.waiting import eventually
from tests.worker.conftest import WorkerCommand

Start = Callable[..., WorkerCommand]

pytestmark = [pytest.mark.wide, pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")]

FULL = os.environ.get("OJS_TEST_FULL") == "1"
JOBS, PROCESSES, KILLS = (5000, 8, 10**6) if FULL else (120, 2, 4)
SLOTS = 2  #: of each process
TIMEOUT = 1500 if FULL else 100


def left() -> int:
    return Job.objects.exclude(state="completed").count()


def kill_one(choose: Callable[[], str | None]) -> tuple[str, dt.datetime] | None:
    """Kill the process of a chosen worker; its id and when."""
    worker = Worker.objects.filter(pk=choose() or "").first()
    if worker is None or worker.pid is None:
        return None
    when = clock.now()
    try:
        psutil.Process(worker.pid).kill()
    except psutil.NoSuchProcess:
        return None
    return worker.pk, when


def any_worker() -> str | None:
    names = list(Worker.objects.values_list("pk", flat=True))
    return random.choice(names) if names else None


def leader() -> str | None:
    return Lease.objects.values_list("holder", flat=True).first()


def storm(choose: Callable[[], str | None], kills: int = KILLS, *, every: float = 1.0) -> list[tuple[str, dt.datetime]]:
    """Kill one after the other until the jobs are done, or the number of kills is reached."""
    killed: list[tuple[str, dt.datetime]] = []
    deadline = time.monotonic() + TIMEOUT
    next_kill = time.monotonic()
    while left() and time.monotonic() < deadline:
        if len(killed) < kills and time.monotonic() >= next_kill:
            if (victim := kill_one(choose)) is not None:
                killed.append(victim)
            next_kill = time.monotonic() + every
        time.sleep(0.05)
    return killed


def assert_all_is_well(traces: Path, killed: Iterable[str] = ()) -> None:
    """Every job completed once, its attempts are its starts, nothing was given up, and only workers that were killed
    lost jobs, at most those that they held."""
    assert Counter(Job.objects.values_list("state", flat=True)) == {"completed": JOBS}
    assert not Job.objects.exclude(losses=0).exists()
    completed = Counter(Event.objects.filter(type="job.completed").values_list("job_id", flat=True))
    assert set(completed.values()) == {1}
    started = Counter(Event.objects.filter(type="job.started").values_list("job_id", flat=True))
    assert dict(Job.objects.values_list("pk", "attempt")) == dict(started)
    assert not Event.objects.filter(type__in=["job.discarded", "job.failed"]).exists()
    lost = Counter(Event.objects.filter(type="job.stalled").values_list("worker_id", flat=True))
    assert lost <= Counter(list(killed) * SLOTS)
    assert len(traces.read_text().split()) >= JOBS


def delays(killed: list[tuple[str, dt.datetime]]) -> list[float]:
    """Seconds from each kill to the event that says that the process' jobs are back."""
    ends = Event.objects.filter(type="worker.terminated").order_by("time").values_list("worker_id", "time")
    ends_by_worker: dict[str, list[dt.datetime]] = {}
    for name, at in ends:
        ends_by_worker.setdefault(name, []).append(at)
    return [
        min((at - when).total_seconds() for at in ends_by_worker[name] if at >= when - dt.timedelta(milliseconds=50))
        for name, when in killed
    ]


@pytest.mark.parametrize("choose", [any_worker, leader])
def test_processes_are_killed_at_random(
    start_process: Start, tmp_path: Path, choose: Callable[[], str | None], record_property: Callable[..., None]
) -> None:
    enqueue_many([("site.tick", [n]) for n in range(JOBS)])
    process = start_process("ojs_worker", "--name", "w", "--processes", str(PROCESSES), "--concurrency", str(SLOTS))
    eventually(lambda: Worker.objects.count() == PROCESSES)
    began = time.monotonic()
    killed = storm(choose)
    assert killed, "nobody was killed"
    seconds = time.monotonic() - began
    process.signal(signal.SIGTERM)
    assert process.wait(60) == 0, process.output
    assert_all_is_well(tmp_path / "ticks", [name for name, _ in killed])
    late = sorted(delays(killed))
    attempts = Counter(Job.objects.values_list("attempt", flat=True))
    report = (
        f"{len(killed)} kills in {seconds:.0f} s, attempts {dict(attempts)}, back after {late[len(late) // 2]:.2f} s"
    )
    record_property("storm", f"{report} (median), {late[-1]:.2f} s (most)")
    print(f"\n{choose.__name__}: {report} (median), {late[-1]:.2f} s (most)")


def test_the_parent_is_killed(start_process: Start, tmp_path: Path) -> None:
    """Its processes drain; the next parent, as systemd would start it, finishes the rest."""
    enqueue_many([("site.tick", [n]) for n in range(JOBS)])
    for round_ in range(3):
        process = start_process("ojs_worker", "--processes", str(PROCESSES), "--concurrency", str(SLOTS))
        done = JOBS - left()
        eventually(lambda done=done: JOBS - left() > done or not left())
        process.signal(signal.SIGKILL if round_ < 2 else signal.SIGCONT)
    eventually(lambda: not left(), timeout=TIMEOUT)
    process.signal(signal.SIGTERM)
    assert process.wait(60) == 0, process.output
    eventually(lambda: not Worker.objects.exists())
    assert_all_is_well(tmp_path / "ticks")
