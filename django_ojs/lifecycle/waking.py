"""Wake sleeping workers when there is work: those of this process by a call, all others by `NOTIFY` on PostgreSQL.

A NOTIFY in every transaction would serialise commits, so one is sent only after the commit and only while
some worker sleeps, which its row says (`Worker.asleep`). A worker that misses one looks again within a second: this
saves milliseconds, and correctness does not depend on it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import lru_cache

from django.db import connections, transaction

from django_ojs.database import harmless
from django_ojs.models import Worker
from django_ojs.models.job import LIMITED, JobRow
from django_ojs.rules.ids import new_id

CHANNEL = "ojs_jobs"
_WORKER = Worker._meta.db_table
_WAKE = f"SELECT pg_notify('{CHANNEL}', %s) WHERE EXISTS (SELECT 1 FROM {_WORKER} WHERE asleep)"  # noqa: S608
_SAY_ASLEEP = (
    f"UPDATE {_WORKER} SET asleep = %(asleep)s WHERE id IN "  # noqa: S608
    f"(SELECT id FROM {_WORKER} WHERE id = ANY(%(workers)s) FOR NO KEY UPDATE SKIP LOCKED) RETURNING id"
)
#: The sleeping workers of this process: database and call that wakes.
_sleepers: set[tuple[str, Callable[[], None]]] = set()


@contextlib.contextmanager
def woken_here(using: str, wake: Callable[[], None]) -> Iterator[None]:
    """Have `wake` called, in any thread, when this process gives workers something to do."""
    _sleepers.add((using, wake))
    try:
        yield
    finally:
        _sleepers.discard((using, wake))


def wake_workers(using: str) -> None:
    """Wake sleeping workers once the current transaction is committed; several calls in it count once."""
    connection = connections[using]
    if connection.vendor != "postgresql" and not _sleepers:
        return
    if not connection.in_atomic_block:
        _waker(using)()
        return
    waker = _waker(using)
    if not any(hook[1] is waker for hook in connection.run_on_commit):
        transaction.on_commit(waker, using=using)


def say_asleep(workers: Collection[str], asleep: bool, using: str) -> list[str]:
    """Write into the rows of these workers whether they sleep; return whose rows do not say so now.

    For PostgreSQL. It waits for nobody: a row that another transaction holds is left as it is.
    """
    with connections[using].cursor() as cursor:
        cursor.execute(_SAY_ASLEEP, {"asleep": asleep, "workers": list(workers)})
        written = {name for (name,) in cursor.fetchall()}
    if not (left := [name for name in workers if name not in written]):
        return []
    found = dict(Worker.objects.using(using).filter(pk__in=left).values_list("pk", "asleep"))
    return [name for name in left if found.get(name, False) is not asleep]


def slots_freed(rows: Iterable[JobRow], using: str) -> None:
    """Wake workers if a limit counted one of these jobs, which are active no longer: the next job may start.

    `rows` need `LIMITED`. No job waits for the end of one that is under no limit, so no worker is woken for that.
    """
    if any(row[LIMITED] for row in rows):
        wake_workers(using)


def process_identity() -> str:
    """What the notifications of this process carry, so that it can ignore its own: it woke its workers itself."""
    return _identity(os.getpid())


@lru_cache(maxsize=1)
def _identity(pid: int) -> str:
    """Of one process: a child made by fork has another."""
    return new_id().hex


@lru_cache(maxsize=16)
def _waker(using: str) -> Callable[[], None]:
    """The same object each time, by which a second call in a transaction is recognised."""
    return harmless(lambda: _wake(using), using)


def _wake(using: str) -> None:
    for place, wake in list(_sleepers):
        if place == using:
            wake()
    if connections[using].vendor == "postgresql":
        with connections[using].cursor() as cursor:
            cursor.execute(_WAKE, [process_identity()])
