"""No event is lost between the look of a job and its sleep, whatever comes first (`jobs/durableevents.py`).

Each test runs the two sides in threads with connections of their own. One side stops before each of its statements in
turn, and the other runs there until it has ended or waits for a lock.
"""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.db import connection, connections, transaction

from django_ojs import EventTimeout, JobContext, clock, emit_event, job
from django_ojs.client.directives import Suspended
from django_ojs.client.steps import Durable, StepLog
from django_ojs.jobs import durableevents, timers
from django_ojs.jobs.fetch import Fetch, fetch
from django_ojs.jobs.finish import Failure, fail
from django_ojs.jobs.push import push
from django_ojs.models import DurableEvent, Job, JobSchema, JobStep, Queue, RateLimit
from django_ojs.models.job import JobRow
from django_ojs.worker.steps import StoredSteps
from tests.waiting import eventually
from tests.worker.conftest import WorkerThread, _forget_queues, drain, handlers, start_worker

__all__ = ["_forget_queues", "drain", "handlers", "start_worker"]  # fixtures
pytestmark = pytest.mark.django_db(transaction=True)

#: Asks on the connection that holds a lock whether another one waits for it.
WAITED_FOR = {
    "postgresql": "SELECT count(*) FROM pg_locks WHERE NOT granted AND pg_backend_pid() = ANY(pg_blocking_pids(pid))",
    "mysql": "SELECT count(*) FROM information_schema.innodb_lock_waits w JOIN information_schema.innodb_trx t"
    " ON t.trx_id = w.blocking_trx_id WHERE t.trx_mysql_thread_id = connection_id()",
}
#: Seconds that a side on SQLite has to end beside a transaction of the other, for whose end each of its writes waits.
BESIDE = 0.05
#: Seconds after which a run has given up to wait for an emitter, by itself. One that is slow only shows less.
GIVES_UP = 0.15 if connection.vendor == "sqlite" else 0.9
#: More statements than either side makes.
MOST = 30
#: What a process asks again after some seconds: the time, and what it remembers of queues, schemas and limits. It is
#: not counted, or the statements before which a side stops would depend on how fast the test is.
REMEMBERED = re.compile(
    r"SELECT (clock_timestamp\(\)|UTC_TIMESTAMP\(6\)|[^()]*? FROM [\"`]("
    + "|".join(model._meta.db_table for model in (Queue, JobSchema, RateLimit))
    + r")[\"`])"
)


class Side(threading.Thread):
    """One of the two: an act in a thread of its own."""

    def __init__(self, act: Callable[[], Any], *, stop_before: int = 0, meanwhile: Callable[[], Any] = int) -> None:
        super().__init__(daemon=True)
        self._act, self._before, self._meanwhile = act, stop_before, meanwhile
        self.statements: list[str] = []
        self.result: Any = None
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            with connections[connection.alias].execute_wrapper(self._count):
                self.result = self._act()
        except BaseException as error:  # noqa: BLE001 - told to the test
            self.error = error
        finally:
            connections.close_all()

    def _count(self, execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        if REMEMBERED.match(sql):
            return execute(sql, params, many, context)
        self.statements.append(sql)
        if len(self.statements) == self._before:
            self._meanwhile()
        return execute(sql, params, many, context)

    def run_until_blocked(self) -> None:
        """Start, and return once this side has ended or waits for a lock of the thread that calls."""
        self.start()
        pause = (
            0.15 if connection.vendor == "mysql" else 0.01
        )  # its tables of locks are renewed when none has read them
        eventually(
            lambda: not self.is_alive() or self._is_blocked(), "the other side ends, or waits for a lock", pause=pause
        )

    def _is_blocked(self) -> bool:
        ours = connections[connection.alias]
        if ours.vendor == "sqlite":
            if ours.connection.in_transaction:
                self.join(BESIDE)
                return True
            return False
        with ours.connection.cursor() as cursor:  # the driver's: its statements are not counted
            cursor.execute(WAITED_FOR[ours.vendor])
            return bool(cursor.fetchone()[0])

    def end(self) -> Any:
        self.join(60)
        assert not self.is_alive(), self.statements[-1:]
        if self.error is not None:
            raise self.error
        return self.result


def claimed() -> JobRow:
    push([{"type": "a.b", "args": []}])
    (row,) = fetch(Fetch(["default"], count=1, worker_id="w", check_worker=False))
    return row


def run(row: JobRow, timeout: str | None = None) -> Any:
    """What a worker does with a handler that only waits: the payload, or the delay after which the job goes on."""
    context = JobContext(row)
    context.record_steps(StepLog(StoredSteps(row), Durable("", "restart"), row["attempt"], sequential=True))
    try:
        return context.wait_for_event("paid", key=1, timeout=timeout, name="w")
    except Suspended as end:
        report = Failure(row["id"], None, row["worker_id"], row["attempt"], snooze_ms=end.delay_ms, waits=end.waits)
        fail([report])
        return end


def again() -> Any:
    """The next run of the job, if there is one: what its handler gets."""
    timers.apply_due()
    found = fetch(Fetch(["default"], count=1, worker_id="w", check_worker=False))
    return run(found[0]) if found else None


def check(side: Any) -> None:
    """The event is there, so the job has it or is to run again."""
    assert DurableEvent.objects.count() == 1
    if side == "payload":
        return
    if JobStep.objects.filter(ended_at=None).exists() or not JobStep.objects.exists():
        # It could not be told whether the event has come; the job looks again after a second.
        assert side.waits == ()
        Job.objects.update(wake_at=clock.now(connection.alias), due_at=clock.now(connection.alias))
    else:
        assert Job.objects.get().state == "available"
    assert again() == "payload"


def emit() -> Any:
    return emit_event("paid", 1, "payload")


@contextlib.contextmanager
def fresh() -> Iterator[None]:
    yield
    for model in (JobStep, DurableEvent):
        model.objects.all().delete()
    Job.objects.all()._raw_delete(connection.alias)


@pytest.mark.slow
def test_an_event_that_comes_before_any_statement_of_the_run_is_not_lost() -> None:
    ends = set()
    for number in range(1, MOST):
        with fresh():
            row = claimed()
            other = Side(emit)

            mine = Side(lambda row=row: run(row), stop_before=number, meanwhile=other.run_until_blocked)  # type: ignore[misc]
            mine.start()
            result = mine.end()
            if other.ident is None:
                assert number > 3
                break
            assert other.end().is_new
            ends.add((result == "payload", Job.objects.get().state))
            check(result)
    else:
        pytest.fail("The run makes more statements than this test stops at.")
    assert (True, "active") in ends  # it came before the look
    assert (False, "available") in ends  # it came behind it


@pytest.mark.parametrize("rolls_back", [False, True], ids=["commit", "rollback"])
def test_a_run_that_comes_before_any_statement_of_the_emitter_is_not_left_asleep(rolls_back: bool) -> None:
    """The emitter is in a transaction of a site, which stays open a while."""

    def act() -> Any:
        with transaction.atomic():
            done = emit()
            list(Job.objects.values_list("pk"))  # something of the site's
            if rolls_back:
                transaction.set_rollback(True)
            return done

    for number in range(1, MOST):
        with fresh():
            row = claimed()
            other = Side(lambda row=row: run(row))  # type: ignore[misc]

            def meanwhile(other: Side = other) -> None:
                other.start()
                other.join(GIVES_UP)

            mine = Side(act, stop_before=number, meanwhile=meanwhile)
            mine.start()
            assert mine.end().is_new
            if other.ident is None:
                assert number > 3
                break
            result = other.end()
            if not rolls_back:
                check(result)
            else:
                assert not DurableEvent.objects.exists()
                assert Job.objects.get().state == "retryable"
                assert emit().is_new
                check(result)
    else:
        pytest.fail("The emitter makes more statements than this test stops at.")


def test_of_two_emitters_one_is_the_first() -> None:
    row = claimed()
    run(row)
    begin = threading.Barrier(4)

    def act(number: int) -> Any:
        begin.wait(60)
        # Two are operators, who give it from the page of the job.
        return durableevents.emit_for(row["id"], "w", str(number)) if number % 2 else emit_event("paid", 1, number)

    sides = [Side(lambda number=number: act(number)) for number in range(4)]  # type: ignore[misc]
    for side in sides:
        side.start()
    done = [side.end() for side in sides]
    (first,) = [one for one in done if one.is_new]
    assert {one.payload for one in done} == {first.payload}
    assert first.job_ids == (row["id"],)
    assert JobStep.objects.get().result == first.payload


def test_of_an_event_and_a_timeout_one_counts() -> None:
    ends = set()
    for number in range(1, MOST):
        with fresh():
            row = claimed()
            run(row, "1h")
            past = clock.now(connection.alias)
            JobStep.objects.update(due_at=past)
            Job.objects.update(wake_at=past, due_at=past)
            timers.apply_due()
            (row,) = fetch(Fetch(["default"], count=1, worker_id="w", check_worker=False))
            other = Side(emit)

            def act(row: JobRow = row) -> Any:
                try:
                    return run(row)
                except EventTimeout:
                    return "timeout"

            mine = Side(act, stop_before=number, meanwhile=other.run_until_blocked)
            mine.start()
            result = mine.end()
            if other.ident is None:
                break
            other.end()
            step = JobStep.objects.get()
            if isinstance(result, Suspended):  # it could not be told
                Job.objects.update(wake_at=past, due_at=past)
                assert again() == "payload"
                result = "payload"
            assert (step.result, step.error is not None) == ((result, False) if result == "payload" else (None, True))
            ends.add(result)
    assert "timeout" in ends
    assert "payload" in ends


@pytest.mark.postgres
def test_a_worker_is_not_kept_by_a_transaction_that_stays_open() -> None:
    row = claimed()
    inside, on = threading.Event(), threading.Event()

    def act() -> None:
        with transaction.atomic():
            emit()
            inside.set()
            assert on.wait(60)

    site = Side(act)
    site.start()
    assert inside.wait(60)
    end = run(row)
    assert (end.delay_ms, end.waits) == (1000, ())
    assert not JobStep.objects.exists()
    on.set()
    site.end()
    check(end)


@pytest.mark.slow
def test_many_jobs_in_a_real_worker_and_an_event_for_each(start_worker: Callable[..., WorkerThread]) -> None:
    """Each event is emitted while the handler is about to wait."""
    about: list[int] = []
    come = threading.Condition()

    @job("order.many", durable=True)
    def handler(context: JobContext, number: int) -> int:
        with come:
            if number not in about:  # it runs twice
                about.append(number)
            come.notify_all()
        return context.wait_for_event("many", key=number, timeout="1h") + number  # type: ignore[no-any-return]

    count = 40
    handles = [handler.enqueue(number) for number in range(count)]

    def emit_all() -> None:
        for place in range(count):
            with come:
                assert come.wait_for(lambda least=place: len(about) > least, 60)  # type: ignore[misc]
                number = about[place]
            emit_event("many", number, 1000)

    emitter = Side(emit_all)
    emitter.start()
    worker = start_worker()
    emitter.end()
    eventually(lambda: Job.objects.filter(state="completed").count() == count)
    worker.stop()
    assert [handle.refresh().result for handle in handles] == [1000 + number for number in range(count)]
    assert durableevents.waiting([handle.id for handle in handles]) == set()
