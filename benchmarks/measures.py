"""The measurements. Each gives one value per call; the command repeats them and takes the median."""

from __future__ import annotations

import contextlib
import random
import statistics
import time
from collections.abc import Callable
from typing import Any

from django.db import connection

from benchmarks import processes
from django_ojs.jobs.push import push
from django_ojs.models import (
    Event,
    EventCommit,
    IdempotencyKey,
    Job,
    JobStep,
    Workflow,
    WorkflowStart,
    WorkflowStep,
)
from django_ojs.queues import configuration
from django_ojs.states import State

BULK = 1000


def empty() -> None:
    """No jobs, workflows and events, and statistics that say so."""
    with connection.cursor() as cursor:
        for model in (Job, JobStep, Event, EventCommit, Workflow, WorkflowStep, WorkflowStart, IdempotencyKey):
            table = model._meta.db_table
            cursor.execute(f"TRUNCATE {table}" if connection.vendor == "postgresql" else f"DELETE FROM {table}")
    configuration.forget()


def enqueue(jobs: int, document: Callable[[int], dict[str, Any]] = lambda i: plain()) -> float:
    """Jobs per second pushed one at a time, each committed with its event."""
    push([document(0)])
    documents = [document(i) for i in range(1, jobs + 1)]
    started = time.perf_counter()
    for each in documents:
        push([each])
    return jobs / (time.perf_counter() - started)


def enqueue_bulk(jobs: int, document: Callable[[int], dict[str, Any]] = lambda i: plain()) -> float:
    """Jobs per second pushed a thousand at a time."""
    push([document(0)])
    documents = [document(i) for i in range(1, max(jobs, BULK) + 1)]
    batches = [documents[start : start + BULK] for start in range(0, len(documents) - BULK + 1, BULK)]
    started = time.perf_counter()
    for batch in batches:
        push(batch)
    return len(batches) * BULK / (time.perf_counter() - started)


def drain(jobs: int, kind: str, workers: int, database: str) -> float:
    """Jobs per second that worker processes complete."""
    fill(jobs, f"bench.{kind}")
    return drained(jobs, workers, database)


def drained(jobs: int, workers: int, database: str, *options: str) -> float:
    """Jobs per second, from the 10th to the last percent, of so many jobs that wait; nothing else may be left."""
    command = processes.worker("--until-empty", *(options or ("--no-scheduler", "--queues", "default")))
    with contextlib.ExitStack() as stack:
        running = [stack.enter_context(processes.running(command, database)) for _ in range(workers)]
        for process in running:
            if process.wait(timeout=600):
                raise RuntimeError("A worker ended with an error; it is on standard error.")
    done = Job.objects.filter(state=State.COMPLETED, worker_id__gt="").count()
    if done != jobs:
        raise RuntimeError(f"{done} of {jobs} jobs were completed.")
    return steady_rate(jobs)


def plain(type: str = "bench.sync", queue: str = "default") -> dict[str, Any]:
    return {"type": type, "args": [1], "queue": queue}


def fill(jobs: int, type: str, queue: str = "default") -> None:
    for start in range(0, jobs, BULK):
        push([plain(type, queue)] * min(BULK, jobs - start))
    analyze()


def analyze() -> None:
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute(f"ANALYZE {Job._meta.db_table}")


def steady_rate(jobs: int) -> float:
    """Of the first so many that workers completed; the first tenth of them is left out: workers start in it."""
    done = Job.objects.filter(state=State.COMPLETED, worker_id__gt="").order_by("finished_at")
    instants = [instant for instant in done.values_list("finished_at", flat=True)[:jobs] if instant]
    edge, last = instants[jobs // 10], instants[-1]
    seconds = (last - edge).total_seconds()
    return sum(instant > edge for instant in instants) / seconds if seconds else float("inf")


def latency(samples: int, database: str) -> tuple[float, float]:
    """Milliseconds from the commit of an enqueue to the start of its handler on an idle worker: p50, p99."""
    waits: list[float] = []
    chance = random.Random(1)  # noqa: S311
    with processes.running(processes.worker("--queues", "default"), database) as process:
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(1.0)  # until it is idle
        for _ in range(samples):
            row = push([{"type": "bench.clock", "args": []}])[0].row
            committed = time.time()
            assert row is not None
            time.sleep(0.02)  # a question now would take the processor from those who are measured
            waits.append((_result_of(row["id"]) - committed) * 1000)
            time.sleep(chance.uniform(0.03, 0.13))
    waits.sort()
    return statistics.median(waits), waits[min(len(waits) - 1, int(len(waits) * 0.99))]


def _result_of(job_id: Any) -> float:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        job = Job.objects.filter(pk=job_id, state=State.COMPLETED).first()
        if job is not None:
            return float(job.result)
        time.sleep(0.005)
    raise RuntimeError("The worker did not run a job within 30 seconds.")
