"""What follows a commit raises nothing: the work is stored, and would be done twice by whoever tries again."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import InterfaceError, OperationalError, connection, transaction
from django.db.models import QuerySet

from django_ojs import database
from django_ojs.database import harmless
from django_ojs.jobs.push import push
from django_ojs.lifecycle import waking
from django_ojs.limits import ratelimits
from django_ojs.models import Job, Queue, RateLimit
from django_ojs.queues import configuration

LIMITED = {"type": "a.b", "args": [], "queue": "q", "rate_limit": {"key": "k", "concurrency": 1}}


def broken(*args: Any, **kwargs: Any) -> None:
    raise OperationalError("database is locked")


def full(*args: Any, **kwargs: Any) -> None:
    """Not contention: the row of a queue that another transaction is making is not made twice."""
    raise OperationalError("database or disk is full")


def _without_queues(create: Any) -> Any:
    """`bulk_create`, broken for queues alone: some databases push jobs by it."""
    return lambda rows, *args, **kwargs: (full if rows.model is Queue else create)(rows, *args, **kwargs)


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "FIRST_PAUSE", 0)


@pytest.mark.django_db(transaction=True)
class TestAfterACommit:
    def test_a_limit_that_cannot_be_noted_costs_no_second_job(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(ratelimits, "_record_limit", broken)
            push([LIMITED])
        assert Job.objects.count() == 1
        assert not RateLimit.objects.exists()
        push([LIMITED])  # notes it
        assert Job.objects.count() == 2
        assert RateLimit.objects.get().key == "k"

    @pytest.mark.parametrize("in_callers", [False, True])
    def test_nor_does_a_queue_that_cannot_be_created(self, monkeypatch: pytest.MonkeyPatch, in_callers: bool) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(QuerySet, "bulk_create", _without_queues(QuerySet.bulk_create))
            if in_callers:
                with transaction.atomic():
                    push([LIMITED])
            else:
                push([LIMITED])
        assert Job.objects.count() == 1
        assert not Queue.objects.exists()
        configuration.noted.clear()
        push([LIMITED])
        assert Queue.objects.get().name == "q"

    @pytest.mark.postgres
    @pytest.mark.parametrize("in_callers", [False, True])
    def test_nor_do_workers_that_cannot_be_woken(self, monkeypatch: pytest.MonkeyPatch, in_callers: bool) -> None:
        monkeypatch.setattr(waking, "_wake", broken)
        noting = _noting_sleepers()
        for module in ("newrows", "decisions"):
            monkeypatch.setattr(f"django_ojs.jobs.{module}.insert", noting)
        if in_callers:
            with transaction.atomic():
                push([LIMITED])
        else:
            push([LIMITED])
        assert Job.objects.count() == 1

    def test_a_lost_connection_is_logged(self, caplog: pytest.LogCaptureFixture) -> None:
        def lost() -> None:
            raise InterfaceError("connection already closed")

        harmless(lost, connection.alias)()
        assert "could not be done" in caplog.text

    def test_other_faults_are_raised(self) -> None:
        def wrong() -> None:
            raise ValueError("a fault of ours")

        with pytest.raises(ValueError, match="a fault of ours"):
            harmless(wrong, connection.alias)()


@pytest.mark.django_db
def test_inside_a_transaction_the_fault_is_the_callers() -> None:
    with transaction.atomic(), pytest.raises(OperationalError):
        harmless(broken, connection.alias)()


def _noting_sleepers() -> Any:
    from django_ojs.jobs import newrows

    real = newrows.insert

    def insert(*args: Any) -> bool:
        real(*args)
        return True

    return insert
