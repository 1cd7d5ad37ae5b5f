"""Telling sleeping workers that there is work: `NOTIFY` on PostgreSQL, nothing elsewhere.

A NOTIFY in every transaction would serialise commits, so one is sent only after the commit and only while
some worker sleeps, which workers say in their row (`Worker.asleep`). Who misses one still looks again by
himself before long; this is about milliseconds, not about correctness.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from django.db import connections, transaction

from django_ojs.contention import harmless
from django_ojs.models import Worker

CHANNEL = "ojs_jobs"
_WAKE = f"SELECT pg_notify('{CHANNEL}', '') WHERE EXISTS (SELECT 1 FROM {Worker._meta.db_table} WHERE asleep)"  # noqa: S608


def wake_workers(using: str) -> None:
    """Wake sleeping workers once the current transaction is committed; several calls in it count once."""
    connection = connections[using]
    if connection.vendor != "postgresql":
        return
    if not connection.in_atomic_block:
        _notifier(using)()
        return
    notifier = _notifier(using)
    if not any(hook[1] is notifier for hook in connection.run_on_commit):
        transaction.on_commit(notifier, using=using)


@lru_cache(maxsize=16)
def _notifier(using: str) -> Callable[[], None]:
    """The same object each time, by which a second call in a transaction is recognised."""
    return harmless(lambda: _notify(using), using)


def _notify(using: str) -> None:
    with connections[using].cursor() as cursor:
        cursor.execute(_WAKE)
