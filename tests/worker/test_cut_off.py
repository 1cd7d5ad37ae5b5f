"""The database ends the connection of a handler: no failure of the handler, unless it happens again and again."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.contrib.auth.models import Group
from django.db import (
    DataError,
    IntegrityError,
    InterfaceError,
    OperationalError,
    ProgrammingError,
    connection,
    connections,
)

from django_ojs import Discard, JobContext, enqueue, job
from django_ojs.conf import ojs_settings
from django_ojs.faults import is_outage
from django_ojs.models import Event, Job
from django_ojs.signals import job_failed
from django_ojs.worker import execution, runs
from tests.waiting import eventually
from tests.worker.conftest import WorkerThread

with_server = pytest.mark.skipif(
    connection.vendor == "sqlite", reason="SQLite has no server that could go away: PostgreSQL, MariaDB"
)
Start = Callable[..., WorkerThread]
ONCE: Any = {"max_attempts": 1, "initial_interval": "10ms", "jitter": False}


def cut() -> None:
    """End this thread's connection, from within, as a server that is shut down does. Raises."""
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            cursor.execute("SELECT pg_terminate_backend(pg_backend_pid())")
        else:
            cursor.execute("SELECT CONNECTION_ID()")
            cursor.execute(f"KILL {cursor.fetchone()[0]}")
        cursor.execute("SELECT 1")


@pytest.fixture
def failures() -> Iterator[list[Any]]:
    told: list[Any] = []

    def hear(**given: Any) -> None:
        told.append(given)

    job_failed.connect(hear)
    yield told
    job_failed.disconnect(hear)


def declare(kind: str, times: int) -> Any:
    """A handler of this kind whose connection is cut as often."""
    runs = itertools.count(1)

    def work() -> str:
        Group.objects.create(name="made") if kind == "transactional" else Group.objects.count()
        if next(runs) <= times:
            cut()
        return "done"

    return of_kind(kind, work)


def of_kind(kind: str, work: Callable[[], Any]) -> Any:
    """A handler of this kind that does this."""
    if kind == "async":

        @job("cut.work", retry=ONCE)
        async def later() -> Any:
            return await sync_to_async(work)()

        return later
    return job("cut.work", retry=ONCE, transactional=kind == "transactional", inline=kind == "inline")(work)


KINDS = pytest.mark.parametrize("kind", ["sync", "async", "inline", "transactional"])


@with_server
@KINDS
def test_an_outage_costs_no_attempt(
    start_worker: Start, kind: str, failures: list[Any], caplog: pytest.LogCaptureFixture
) -> None:
    handle = declare(kind, times=2).enqueue()
    start_worker(scheduler=False)
    eventually(lambda: handle.refresh().state == "completed")
    stored = Job.objects.get()
    assert (stored.attempt, stored.uncounted, stored.max_attempts) == (3, 2, 1)
    assert [error["type"] for error in stored.errors] == ["database_outage"] * 2
    assert Group.objects.count() == (kind == "transactional")
    assert not failures
    assert not Event.objects.filter(type="job.failed").exists()
    assert Event.objects.filter(type="job.retrying").count() == 2
    assert caplog.text.count("does not count, the next one is at") == 2
    assert caplog.text.count("was cut off, because the database went away, and runs again") == 2


@with_server
@KINDS
def test_a_handler_that_always_ends_its_connection_is_given_up(start_worker: Start, kind: str) -> None:
    handle = declare(kind, times=1000).enqueue()
    start_worker(scheduler=False)
    eventually(lambda: handle.refresh().state == "discarded")
    stored = Job.objects.get()
    assert stored.attempt == ojs_settings.POISON_LIMIT
    assert stored.dead_letter
    assert "The database went away while the handler ran" in stored.errors[-1]["message"]
    assert not Group.objects.exists()


@with_server
def test_a_connection_that_ends_before_the_commit_leaves_nothing(
    start_worker: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle = declare("transactional", times=0).enqueue()
    whole, calls = execution._acknowledge, itertools.count(1)

    def acknowledge(*args: Any) -> None:
        whole(*args)
        if next(calls) == 1:
            cut()

    monkeypatch.setattr(execution, "_acknowledge", acknowledge)
    start_worker(scheduler=False)
    eventually(lambda: handle.refresh().state == "completed")
    assert (Job.objects.get().attempt, Group.objects.count()) == (2, 1)


@with_server
def test_a_commit_whose_answer_is_lost_is_not_repeated(start_worker: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """The report that hands the job back is refused, because the job is completed."""
    handle = declare("transactional", times=0).enqueue()
    whole: Any = execution._inside_transaction

    def commit_unheard(*args: Any) -> Any:
        whole(*args)
        cut()

    monkeypatch.setattr(execution, "_inside_transaction", commit_unheard)
    worker = start_worker(scheduler=False)
    eventually(lambda: handle.refresh().state == "completed")
    worker.stop()
    assert (Job.objects.get().state, Job.objects.get().attempt, Group.objects.count()) == ("completed", 1, 1)


@with_server
def test_of_a_group_each_must_be_of_the_outage(start_worker: Start) -> None:
    async def fail() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            raise LookupError("its own")

    @job("cut.group", context=True, retry=ONCE)
    async def both(context: JobContext, more: bool) -> None:
        if context.attempt == 1:
            async with asyncio.TaskGroup() as group:
                group.create_task(sync_to_async(cut)())
                if more:
                    group.create_task(fail())

    alone, mixed = both.enqueue(False), both.enqueue(True)
    start_worker(concurrency=1)
    assert alone.wait(timeout=60).attempt == 2
    assert mixed.wait(timeout=60, raise_error=False).state == "discarded"
    assert (mixed.attempt, mixed.errors[0]["type"]) == (1, "ExceptionGroup")


@with_server
def test_what_a_handler_says_of_the_outage_counts(start_worker: Start) -> None:
    @job("cut.discard", retry=ONCE)
    def discard() -> None:
        try:
            cut()
        except OperationalError as error:
            raise Discard("not worth it") from error

    @job("cut.slow", retry=ONCE)
    def slow() -> None:
        with connection.cursor() as cursor:
            if connection.vendor == "postgresql":
                cursor.execute("SET statement_timeout = 1")
                cursor.execute("SELECT pg_sleep(5)")
            else:
                many = [f"information_schema.columns {letter}" for letter in "abc"]
                cursor.execute("SET STATEMENT max_statement_time = 0.001 FOR SELECT count(*) FROM " + ", ".join(many))

    handles = discard.enqueue(), slow.enqueue()
    start_worker(concurrency=1)
    for handle in handles:
        assert handle.wait(timeout=60, raise_error=False).state == "discarded"
        assert (handle.attempt, handle.errors[0]["code"] != "database_outage") == (1, True)


class Refusing:
    """A server that refuses the connections of handlers, so many times."""

    def __init__(self, times: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left = times
        self._whole = type(connections["default"]).get_new_connection
        refusing = self

        def connect(self: Any, parameters: Any) -> Any:
            if threading.current_thread().name.startswith("ojs-handler") and refusing.left:
                refusing.left -= 1
                raise self.Database.OperationalError(2002, "Connection refused")
            return refusing._whole(self, parameters)

        monkeypatch.setattr(type(connections["default"]), "get_new_connection", connect)


@with_server
def test_a_transaction_that_cannot_begin_is_not_even_a_loss(
    start_worker: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusing = Refusing(ojs_settings.POISON_LIMIT + 1, monkeypatch)
    handle = declare("transactional", times=0).enqueue()
    start_worker(concurrency=1)
    assert handle.wait(timeout=60).state == "completed"
    assert (refusing.left, handle.attempt, handle.errors) == (0, ojs_settings.POISON_LIMIT + 2, [])
    assert (Job.objects.get().uncounted, Job.objects.get().losses) == (ojs_settings.POISON_LIMIT + 1, 0)


@with_server
def test_a_database_that_stays_away_leaves_a_job_the_time_that_its_policy_gives_it(
    start_worker: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No more connections are to be had: that is said at once, as often as the job runs."""
    Refusing(ojs_settings.POISON_LIMIT + 1, monkeypatch)
    handle = declare("sync", times=0).options(retry=ONCE | {"max_attempts": 4}).enqueue()
    start_worker(concurrency=1)
    assert handle.wait(timeout=60).state == "completed"
    assert (handle.attempt, Job.objects.get().uncounted) == (
        ojs_settings.POISON_LIMIT + 2,
        ojs_settings.POISON_LIMIT - 1,
    )
    assert Event.objects.filter(type="job.failed").count() == 2


@pytest.mark.postgres
def test_a_connection_that_was_cut_while_it_was_idle_is_not_given_to_a_handler(
    start_worker: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(connections["default"].settings_dict, "CONN_MAX_AGE", None)
    pids: list[int] = []

    @job("cut.idle", retry=ONCE)
    def look() -> None:
        Group.objects.count()
        raw: Any = connection.connection
        pids.append(raw.info.backend_pid)

    start_worker(concurrency=1)
    for _ in range(2):
        assert look.enqueue().wait(timeout=60).state == "completed"
    assert pids[0] == pids[1], "it is kept from run to run"
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_terminate_backend(%s, 5000)", [pids[0]])
    last = look.enqueue().wait(timeout=60)
    assert (last.attempt, last.errors) == (1, [])


def test_a_look_that_fails_costs_no_outcome(
    start_worker: Start, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*args: Any) -> None:
        raise SystemExit

    monkeypatch.setattr(runs, "is_cut_off", broken)
    job("cut.look", retry=ONCE)(lambda: 1 / 0)
    handle = enqueue("cut.look")
    start_worker()
    assert handle.wait(timeout=60, raise_error=False).errors[0]["type"] == "ZeroDivisionError"
    assert "SystemExit" in caplog.text


class OfServer(Exception):
    def __init__(self, sqlstate: str | None) -> None:
        super().__init__("said")
        self.sqlstate = sqlstate


def of_postgresql(kind: type[Exception], sqlstate: str | None) -> Exception:
    try:
        raise kind("said") from OfServer(sqlstate)
    except kind as error:
        return error


def test_what_is_an_outage() -> None:
    lost = [None, "08006", "08003", "57P01", "57P02", "57P03"]
    answered = ["40001", "40P01", "55P03", "57014", "53100", "54000"]
    assert all(is_outage(of_postgresql(OperationalError, state)) for state in lost)
    assert is_outage(of_postgresql(InterfaceError, None))
    assert not any(is_outage(of_postgresql(OperationalError, state)) for state in answered)
    assert all(is_outage(OperationalError(code, "said")) for code in (2006, 2013, 1927, 2003))
    assert not any(is_outage(OperationalError(code, "said")) for code in (1054, 1205, 1213, 1153, 1969, 3024))
    others: list[Exception] = [OperationalError("no such table"), ValueError(2006), IntegrityError(2006, "said")]
    assert not any(map(is_outage, [*others, DataError("said"), ProgrammingError("said"), OperationalError()]))
