"""The soak itself: start a worker, keep it busy, look, let it drain, and add up."""

from __future__ import annotations

import time
from collections.abc import Callable
from subprocess import Popen

from benchmarks import processes
from benchmarks.soak.audit import audit
from benchmarks.soak.gauges import EVERY, Gauges, notes
from benchmarks.soak.ledger import TYPES, Ledger
from benchmarks.soak.load import CRON, KINDS, ROUND, Producer
from benchmarks.soak.report import Report
from django_ojs.events import log
from django_ojs.models import Job, Worker

PROCESSES, CONCURRENCY = 2, 10
#: Seconds, and at most this part of the whole, before the first sample: until then pruning has not begun.
WARM_UP, WARM_UP_PART = 180.0, 0.3
WORD = 60.0  #: seconds between two words about how far it is
START = 60.0  #: seconds for the worker to start
DRAIN = 120.0  #: seconds for the rest of the jobs
PAGE = 1000


class Follower:
    """Reads the event log by its cursor, as any reader does, into the ledger."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._cursor: str | None = None

    def catch_up(self) -> None:
        more = True
        while more:
            page = log.read(after=self._cursor, types=TYPES, limit=PAGE)
            if page.gap is not None:
                self._ledger.faults.append("Events were pruned before they were read: the sum is not exact.")
            for event in page.events:
                self._ledger.hear(event)
            self._cursor, more = page.cursor, page.has_more


def soak(minutes: float, database: str, say: Callable[[str], object]) -> Report:
    """Load a worker on this migrated, empty database for so many minutes; `say` gets lines about how far it is."""
    ledger = Ledger(KINDS)
    producer, follower = Producer(ledger), Follower(ledger)
    began = time.monotonic()
    with processes.running(_command(), database) as worker:
        gauges = Gauges(worker.pid)
        _wait_for_workers(worker)
        producer.start_schedule()
        _run(minutes * 60, worker, producer, follower, gauges, say)
        producer.stop_schedule()
        say("Draining.")
        _drain(worker, follower)
    if worker.returncode:
        ledger.faults.append(f"The worker ended with code {worker.returncode}.")
    for name, pids in gauges.processes.items():
        if len(pids) > 1:
            ledger.faults.append(f"{name} was {len(pids)} processes one after the other: they died.")
    follower.catch_up()
    ledger.expect(CRON.type, producer.runs_of_schedule())
    ledger.settle()
    audit(ledger)
    return Report(ledger, gauges.series, time.monotonic() - began, producer.held_back, notes())


def _command() -> list[str]:
    settings = ("--settings", "benchmarks.soak.settings")
    sizes = ("--processes", str(PROCESSES), "--concurrency", str(CONCURRENCY))
    return processes.worker("--name", "soak", *sizes, *settings)


def _wait_for_workers(worker: Popen[str]) -> None:
    deadline = time.monotonic() + START
    while Worker.objects.count() < PROCESSES:
        if worker.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError("The worker did not start; what it said is on standard error.")
        time.sleep(0.1)


def _run(
    seconds: float, worker: Popen[str], producer: Producer, follower: Follower, gauges: Gauges,
    say: Callable[[str], object],
) -> None:  # fmt: skip
    began = next_round = time.monotonic()
    next_look = began + min(WARM_UP, WARM_UP_PART * seconds)
    next_word = began + WORD
    while (now := time.monotonic()) < began + seconds and worker.poll() is None:
        producer.round()
        follower.catch_up()
        if now >= next_look:
            gauges.look()
            next_look = now + EVERY
        if now >= next_word:
            say(f"{(now - began) / 60:.0f} minutes, {producer.pushed:,} jobs.")
            next_word += WORD
        next_round = max(next_round + ROUND, now)
        time.sleep(max(0.0, next_round - time.monotonic()))
    gauges.look()


def _drain(worker: Popen[str], follower: Follower) -> None:
    """Wait until every job has ended; whatever has not by then is found by the sum."""
    deadline = time.monotonic() + DRAIN
    while time.monotonic() < deadline and worker.poll() is None and Job.objects.live().exists():
        follower.catch_up()
        time.sleep(ROUND)
