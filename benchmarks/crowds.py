"""Drains of a table that is not empty: a long history, a long queue, a snapshot that a transaction holds, pruning.

The crowd is put there by plain SQL for each run, with ids that grow like those of real jobs.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import time
from collections.abc import Callable, Iterator

from django.db import DatabaseError, connection, connections

from benchmarks import longhistory, measures, processes, reference, workloads
from django_ojs.models import Job
from django_ojs.rules.ids import new_job_id
from django_ojs.states import State

_JOB = Job._meta.db_table
TYPE = "bench.inline"
SETTLING = 30.0  #: seconds in which a disk is busy after ten million jobs were loaded
#: One of so many loaded jobs leaves a gap that a small job fits into. The first jobs go there, each to a page of its
#: own, which the server writes to its log as a whole.
GAPS = 50


#: What is measured beside a history: name, jobs per second. Each gets the number of jobs and the database.
BESIDE_HISTORY: dict[str, Callable[[int, str], float]] = {
    "enqueue": lambda jobs, database: measures.enqueue(max(200, jobs // 10)),
    "enqueue_bulk": lambda jobs, database: measures.enqueue_bulk(jobs),
    "unique_enqueue_bulk": lambda jobs, database: workloads.unique_enqueue_bulk(jobs),
    "drain": lambda jobs, database: measures.drain(jobs, "inline", 1, database),
    "chain": lambda jobs, database: workloads.chain(jobs // 2, database),
}


@contextlib.contextmanager
def history(crowd: int) -> Iterator[Callable[[], None]]:
    """So many jobs that have ended; on PostgreSQL with three times as many events. Gives a function that deletes the
    jobs that have come since."""
    if connection.vendor == "postgresql":
        longhistory.make(crowd, days=6, workers=False)
        _settle(crowd)
    else:
        _crowd(crowd, "completed", "default")
    newest = new_job_id()

    def forget() -> None:
        Job.objects.filter(pk__gt=newest).delete()

    measures.enqueue_bulk(crowd // GAPS)
    forget()
    yield forget
    measures.empty()


def _settle(crowd: int) -> None:
    """Wait until the server and its disk have done with what was loaded, as they have where it came in days."""
    with contextlib.suppress(DatabaseError), connection.cursor() as cursor:
        cursor.execute("CHECKPOINT")  # not allowed to everybody
    os.sync()
    time.sleep(SETTLING * crowd / 10_000_000)


def pruning(jobs: int, crowd: int, database: str) -> float:
    """The same where the history is overdue, and a scheduler is pruning it."""
    _crowd(crowd, "completed", "default", days=400)
    with processes.running(processes.scheduler(), database):
        _wait(lambda: Job.objects.count() < crowd, "Nothing is pruned.")
        return measures.drain(jobs, "inline", 1, database)


def snapshot(jobs: int, database: str) -> float:
    """Jobs per second while a transaction that began before them is open, so that no row version can be removed."""
    measures.fill(jobs, TYPE)
    with _snapshot():
        return measures.drained(jobs, 1, database)


def backlog(jobs: int, crowd: int, database: str) -> float:
    """Jobs per second of the first so many of a crowd that waits in two queues."""
    for queue in ("first", "second"):
        _crowd(crowd // 2, "available", queue)
    done = Job.objects.filter(state=State.COMPLETED, finished_at__isnull=False)  # by the index of those
    with processes.running(processes.worker("--no-scheduler", "--queues", "first,second"), database):
        _wait(lambda: done.count() >= jobs, "The jobs were not completed.")
    return measures.steady_rate(jobs)


def _wait(condition: Callable[[], bool], otherwise: str) -> None:
    deadline = time.monotonic() + 600
    while not condition():
        if time.monotonic() > deadline:
            raise RuntimeError(otherwise)
        time.sleep(0.25)


def _crowd(size: int, state: str, queue: str, days: int = 0) -> None:
    postgres = connection.vendor == "postgresql"
    then = _ago(days)
    values = reference.job_values(then) | {
        "id": _numbered_id(next(_crowds)), "type": f"'{TYPE}'", "queue": f"'{queue}'", "state": f"'{state}'"
    }  # fmt: skip
    if state == "completed":
        values |= {"started_at": then, "finished_at": then}
    prefix, series = ("", "generate_series(1, %s) AS n(i)") if postgres else (_SQLITE_NUMBERS, "n")
    with connection.cursor() as cursor:
        cursor.execute(
            f"{prefix}INSERT INTO {_JOB} ({', '.join(values)}) SELECT {', '.join(values.values())} FROM {series}",
            [size],
        )
        cursor.execute(f"VACUUM ANALYZE {_JOB}" if postgres else "ANALYZE")
        if postgres:  # what the crowd has left to be written is no part of the drain
            with contextlib.suppress(DatabaseError):  # only some may
                cursor.execute("CHECKPOINT")


def _numbered_id(crowd: int) -> str:
    """An id that grows with `i`, in a range of the crowd's own."""
    if connection.vendor == "postgresql":
        return f"('01900000-0000-7000-{0x8000 + crowd:04x}-' || lpad(to_hex(i), 12, '0'))::uuid"
    return f"'0190000000007000{0x8000 + crowd:04x}' || printf('%%012x', i)"


_crowds = itertools.count()
_SQLITE_NUMBERS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT %s) "


def _ago(days: int) -> str:
    if connection.vendor == "postgresql":
        return f"now() - interval '{days} days'"
    return f"strftime('%%Y-%%m-%%d %%H:%%M:%%f', 'now', '-{days} days')"


@contextlib.contextmanager
def _snapshot() -> Iterator[None]:
    """A transaction that has read and stays open, on a connection of its own."""
    other = connections["default"].copy("default")
    try:
        with other.cursor() as cursor:
            cursor.execute("BEGIN ISOLATION LEVEL REPEATABLE READ" if other.vendor == "postgresql" else "BEGIN")
            cursor.execute(f"SELECT count(*) FROM {_JOB}")
            yield
            cursor.execute("ROLLBACK")
    finally:
        other.close()
