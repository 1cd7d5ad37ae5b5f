"""A second connection for what has to be held while the doctor looks, and what the server of the tests has itself."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
from django.db import connection, connections, transaction

from django_ojs import clock, doctor
from django_ojs.doctor.findings import Finding
from django_ojs.models import Queue


@pytest.fixture
def ids() -> Callable[[], list[str]]:
    """The ids that an examination finds, but for those that the tests' own server and settings cause."""
    return lambda: sorted({finding.id for finding in doctor.examine()} - own())


def own() -> set[str]:
    """What is true of the server of the tests: nobody pulls its plug, and nobody vacuums it."""

    def asked(sql: str) -> Any:
        with connection.cursor() as cursor:
            cursor.execute(sql)
            return cursor.fetchone()[0]

    found = set()
    if connection.vendor == "postgresql":
        if "off" in (asked("SHOW synchronous_commit"), asked("SHOW fsync"), asked("SHOW full_page_writes")):
            found.add("commits-can-be-lost")
        if "off" in (asked("SHOW autovacuum"), asked("SHOW track_counts")):
            found.add("autovacuum-off")
        # What other tests have written and deleted, no matter how soon autovacuum comes.
        found |= {"vacuum-late", "analyze-late"}
    elif connection.vendor == "sqlite":
        if asked("PRAGMA synchronous") == 0:
            found.add("commits-can-be-lost")
    elif asked("SELECT @@innodb_flush_log_at_trx_commit") != 1:
        found.add("commits-can-be-lost")
    return found


def found(id: str) -> list[Finding]:
    return [finding for finding in doctor.examine() if finding.id == id]


@contextmanager
def elsewhere(act: Callable[[], Any]) -> Iterator[Any]:
    """Another connection has done `act` in a transaction that stays open meanwhile. The value is what it returned."""
    done, leave, results = threading.Event(), threading.Event(), []

    def hold() -> None:
        with transaction.atomic():
            results.append(act())
            done.set()
            assert leave.wait(60)

    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(hold)
        try:
            while not done.wait(0.05) and not running.done():
                pass
            assert results, running.exception()
            yield results[0]
        finally:
            leave.set()
            running.result(30)
            pool.submit(connections.close_all).result(30)


def made_queue(name: str) -> Queue:
    now = clock.now("default")
    return Queue.objects.create(name=name, created_at=now, updated_at=now)


def sql(statement: str, params: Any = ()) -> list[Any]:
    with connection.cursor() as cursor:
        cursor.execute(statement, params)
        return list(cursor.fetchall()) if cursor.description else []
