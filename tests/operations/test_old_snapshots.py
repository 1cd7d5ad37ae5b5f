"""A row that is newer than the snapshot of the caller's transaction: an insert finds it, and a look does not.

Who begins the transaction again sees it, so it is a lost race, and not an error of the server's.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.db import IntegrityError, OperationalError, connection, connections, transaction

from django_ojs import clock, outbox
from django_ojs.cron import schedules
from django_ojs.database import unseen
from django_ojs.errors import Duplicate
from django_ojs.faults import LostRace, is_contention, status_of
from django_ojs.jobs import replay
from django_ojs.jobs.push import push, push_each
from django_ojs.models import CronSchedule, Job, OutboxEntry, ReplayRule
from django_ojs.rules import replayrules
from django_ojs.rules.ids import new_job_id

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(connection.vendor == "sqlite", reason="there an old transaction may not write at all"),
]


@contextlib.contextmanager
def old_snapshot() -> Iterator[None]:
    """A transaction that sees what had been committed when it began."""
    postgresql = connection.vendor == "postgresql"
    with connection.cursor() as cursor:
        if not postgresql:
            cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    try:
        with transaction.atomic():
            with connection.cursor() as cursor:
                if postgresql:
                    cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            assert not Job.objects.exists()
            yield
    finally:
        connection.close()


def elsewhere(act: Callable[[], Any]) -> None:
    """`act` on another connection, which commits."""

    def run() -> None:
        try:
            act()
        finally:
            connections.close_all()

    with ThreadPoolExecutor(1) as pool:
        pool.submit(run).result(60)


def job(**more: Any) -> dict[str, Any]:
    return {"id": str(new_job_id()), "type": "a.b", "args": [], **more}


UNIQUE = {"unique": {"keys": ["type", "args"]}}


@pytest.mark.parametrize("partial", [False, True])
@pytest.mark.parametrize("more", [{}, UNIQUE], ids=["plain", "unique"])
def test_a_job_with_the_same_id(more: dict[str, Any], partial: bool) -> None:
    taken, others = job(**more), [job(args=[number], **more) for number in range(2)]
    documents = [taken, *others] if partial else [taken]
    same_id = job() | {"id": taken["id"]}
    with old_snapshot():
        elsewhere(lambda: push([same_id]))
        with pytest.raises(LostRace) as lost:
            push_each(documents) if partial else push(documents)
        assert (is_contention(lost.value), status_of(lost.value)) == (True, 503)
        push(others)  # the caller's transaction is whole
    with transaction.atomic(), pytest.raises(Duplicate) as refused:
        push([taken])
    assert refused.value.details["existing_job_state"] == "available"
    assert Job.objects.count() == 3


def test_a_schedule_a_rule_and_an_entry_of_the_outbox_of_the_same_name() -> None:
    """MariaDB changes the newest row, whatever the transaction sees: there a schedule and a rule are changed."""
    spec = {"name": "nightly", "cron": "0 3 * * *", "type": "a.b"}
    rule = replayrules.parse({"name": "again", "filter": {"type": "a.b"}})
    entry = outbox._entry(new_job_id(), "job", "a.b", job(), clock.now())
    doubled = outbox._entry(entry.target_id, "job", "a.b", job(), entry.created_at)
    changes_newest = connection.vendor == "mysql"
    acts: list[tuple[Callable[[], Any], Callable[[], Any], bool]] = [
        (lambda: schedules.register(spec), lambda: schedules.register(spec)[1], changes_newest),
        (lambda: replay.put(rule), lambda: replay.put(rule), changes_newest),
        (lambda: outbox._insert([entry], "default"), lambda: outbox._insert([doubled], "default"), False),
    ]
    for first, second, goes_well in acts:
        with old_snapshot():
            elsewhere(first)
            if goes_well:
                assert not second(), "it is not new"
                continue
            with pytest.raises(OperationalError) as refused:
                second()
            assert is_contention(refused.value)  # as the database says, where a lock is asked for first
    assert [model.objects.count() for model in (CronSchedule, ReplayRule, OutboxEntry)] == [1, 1, 1]


def test_what_another_constraint_refuses_stays_what_it_is() -> None:
    """READ COMMITTED sees whatever is in the way."""
    taken = IntegrityError(1062, "Duplicate entry")
    with transaction.atomic():
        assert unseen(taken, "default") is taken
    with old_snapshot():
        assert isinstance(unseen(taken, "default"), LostRace)
