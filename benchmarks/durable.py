"""What durable steps cost beside plain SQL that stores such a row, and what jobs that sleep or wait cost other jobs."""

from __future__ import annotations

import time

from django.db import connection

from benchmarks import measures, processes
from django_ojs.jobs.push import push
from django_ojs.models import CountDelta, Job, JobStep
from django_ojs.rules.ids import new_job_id
from django_ojs.states import State

_STEP = JobStep._meta.db_table


def steps(count: int, database: str) -> float:
    """Steps per second of one handler that records so many, each committed before the next begins."""
    push([{"type": "bench.steps", "args": [count], "queue": "default"}])
    measures.drained(1, 1, database)
    (seconds,) = Job.objects.filter(type="bench.steps").values_list("result", flat=True)
    return count / float(seconds or 0)


def plain_steps(count: int) -> float:
    """Rows per second that plain SQL inserts into the table of the steps, each committed before the next."""
    now = "now()" if connection.vendor == "postgresql" else "CURRENT_TIMESTAMP"
    statement = (
        f"INSERT INTO {_STEP} (job_id, name, kind, result, tries, code, attempt, began_at, ended_at)"
        f" VALUES (%s, %s, 'call', '1', 1, '', 1, {now}, {now})"
    )
    job_id = JobStep._meta.get_field("job_id").get_db_prep_save(new_job_id(), connection)
    with connection.cursor() as cursor:
        cursor.execute(statement, [job_id, "first"])
        started = time.perf_counter()
        for number in range(count):
            cursor.execute(statement, [job_id, f"step-{number}"])
    return count / (time.perf_counter() - started)


def beside_sleepers(jobs: int, sleepers: int, database: str) -> float:
    """Jobs per second beside so many durable jobs, of which one half sleeps and the other waits for events."""
    for start in range(0, sleepers, measures.BULK):
        numbers = range(start, min(start + measures.BULK, sleepers))
        push([{"type": ("bench.sleep", "bench.wait")[n % 2], "args": [n], "queue": "default"} for n in numbers])
    _until_held(sleepers, database)
    measures.fill(jobs, "bench.inline")
    return measures.drained(jobs, 1, database, "--queues", "default")


def beside_nobody(jobs: int, database: str) -> float:
    """The same drain, with the scheduler, of a table that holds nothing else."""
    measures.fill(jobs, "bench.inline")
    return measures.drained(jobs, 1, database, "--queues", "default")


def _until_held(sleepers: int, database: str) -> None:
    """Let a worker run them until all have given their slots back, and its scheduler has counted them: else the
    drain would be measured beside that, too."""
    with processes.running(processes.worker("--queues", "default"), database):
        deadline = time.monotonic() + 600
        while Job.objects.filter(state=State.RETRYABLE).count() < sleepers or CountDelta.objects.exists():
            if time.monotonic() > deadline:
                raise RuntimeError("The jobs that sleep and wait were not all begun within ten minutes.")
            time.sleep(0.25)
