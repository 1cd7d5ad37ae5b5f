"""A whole worker in a thread, on the test's database: every way a job can end."""

from __future__ import annotations

import asyncio
import datetime as dt
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from django.db import OperationalError, connection, transaction

from django_ojs import Discard, JobContext, Retry, Snooze, enqueue, enqueue_many, job
from django_ojs.events import log
from django_ojs.jobs.cancel import cancel_one
from django_ojs.jobs.finish import requeue
from django_ojs.models import Job, Worker
from django_ojs.registry import registry
from django_ojs.telemetry import tracing
from django_ojs.worker import process
from django_ojs.worker.wakers import PollingWaker
from django_ojs.worker.writer import Writer
from django_ojs.workerregistry.registration import direct
from tests.middlewares import added
from tests.waiting import eventually
from tests.worker.conftest import WorkerThread

Drain = Callable[..., WorkerThread]
Start = Callable[..., WorkerThread]


def test_jobs_of_both_kinds_are_run_and_their_results_kept(drain: Drain) -> None:
    @job("math.add")
    def add(a: int, b: int) -> int:
        return a + b

    @job("math.aadd", queue="slow")
    async def aadd(a: int, b: int) -> int:
        await asyncio.sleep(0)
        return a + b

    handles = enqueue_many([*(add.s(n, 1) for n in range(20)), *(aadd.s(n, 2) for n in range(20))])
    worker = drain(concurrency=4)
    assert worker.ended_well
    assert [handle.refresh().result for handle in handles] == [*range(1, 21), *range(2, 22)]
    assert {(handle.state, handle.attempt) for handle in handles} == {("completed", 1)}
    assert not Worker.objects.exists(), "it deregistered"
    assert worker.lines[0].endswith("started: queues all, concurrency 4, 2 job types.")
    assert "stopped: 40 jobs completed" in worker.lines[1]


def test_a_worker_imports_what_makes_spans_before_it_takes_jobs(
    start_worker: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracing, "_spans", None)
    worker = start_worker(scheduler=False)
    eventually(lambda: worker.lines)
    assert tracing._spans is not None


def test_every_ending(drain: Drain, settings: Any) -> None:
    settings.OJS = {"MAX_RESULT_BYTES": 1000}

    @job("end.error", retry={"initial_interval": "1h", "jitter": False})
    def error() -> None:
        raise ConnectionError("refused")

    @job("end.last", retry={"max_attempts": 1})
    def last() -> None:
        raise ConnectionError("refused")

    @job("end.retry")
    def again() -> None:
        raise Retry("busy", after="5m")

    @job("end.discard")
    async def discard() -> None:
        raise Discard("no such user")

    @job("end.snooze", retry={"max_attempts": 1})
    def snooze() -> None:
        raise Snooze("2m")

    @job("end.exit", retry={"max_attempts": 1})
    def leave() -> None:
        raise SystemExit

    @job("end.unserializable", retry={"max_attempts": 1})
    def unserializable() -> Any:
        return {"when": dt.date(2026, 1, 1)}

    @job("end.large", retry={"max_attempts": 1})
    def large() -> Any:
        return "x" * 2000

    handles = {handle.type.removeprefix("end."): handle for handle in enqueue_many([(t, []) for t in registry.types()])}
    drain()
    found = {
        name: (str(handle.refresh().state), (handle.error or {}).get("type"), handle.row["retry_delay_ms"])
        for name, handle in handles.items()
    }
    assert found == {
        "error": ("retryable", "ConnectionError", 3_600_000),
        "last": ("discarded", "ConnectionError", None),
        "retry": ("retryable", "Retry", 300_000),
        "discard": ("discarded", "Discard", None),
        "snooze": ("retryable", None, 120_000),
        "exit": ("discarded", "SystemExit", None),
        "unserializable": ("discarded", "ResultNotSerializable", None),
        "large": ("discarded", "ResultTooLarge", None),
    }
    assert not handles["discard"].row["dead_letter"]
    assert handles["last"].row["dead_letter"]


def test_a_handler_gets_keyword_arguments_by_name_whoever_enqueued_them(drain: Drain) -> None:
    given: list[Any] = []

    @job("test.named")
    def named(a: int, b: int = 0, *, c: int = 0) -> None:
        given.append((a, b, c))

    @job("test.anamed")
    async def anamed(context: Any, a: int, **more: int) -> None:
        given.append((a, more))

    named.enqueue(1, c=3)
    named.enqueue(b=2, a=1)
    anamed.enqueue(1, x=2)
    enqueue("test.named", 1, {"$kwargs": {"b": 5}})  # as a client in another language writes it
    drain()
    assert sorted(given, key=repr) == [(1, 0, 3), (1, 2, 0), (1, 5, 0), (1, {"x": 2})]


def test_a_retried_job_runs_again_when_its_backoff_is_over(start_worker: Start) -> None:
    attempts: list[int] = []

    @job("flaky.run", retry={"initial_interval": "10ms", "jitter": False})
    def flaky(context: JobContext) -> str:
        attempts.append(context.attempt)
        if context.attempt < 3:
            raise ConnectionError("refused")
        return "at last"

    handle = flaky.enqueue()
    start_worker()
    assert handle.wait(timeout=90).result == "at last"
    assert attempts == [1, 2, 3]
    assert [error["attempt"] for error in handle.errors] == [1, 2]


def test_only_types_with_a_handler_here_are_claimed(drain: Drain) -> None:
    @job("known.type")
    def known() -> None: ...

    foreign, own = enqueue("foreign.type"), known.enqueue()
    drain()
    assert (foreign.refresh().state, own.refresh().state) == ("available", "completed")
    assert foreign.attempt == 0


def test_a_worker_says_which_of_its_queues_do_not_exist_and_which_queues_with_jobs_no_worker_serves(
    drain: Drain, caplog: pytest.LogCaptureFixture
) -> None:
    enqueue("test.none", queue="warehouse"), enqueue("test.none", queue="payments")
    drain(queues=["payments", "warehous"])
    assert "There is no queue warehous yet: did you mean warehouse?" in caplog.messages
    assert "1 job in the queue warehouse waits, and no worker serves it." in caplog.messages


def test_only_the_given_queues_are_served_from_left_to_right(drain: Drain) -> None:
    order: list[str] = []

    @job("queue.note")
    def note(name: str) -> None:
        order.append(name)

    for name in ("b", "a", "c"):
        for _ in range(2):
            note.options(queue=name).enqueue(name)
    drain(queues=["a", "b"], concurrency=1)
    assert order == ["a", "a", "b", "b"]
    assert Job.objects.filter(queue="c", state="available").count() == 2


def test_max_jobs_ends_the_worker_after_so_many(start_worker: Start) -> None:
    @job("count.one")
    def one() -> None: ...

    enqueue_many([one.s() for _ in range(10)])
    worker = start_worker(max_jobs=3, concurrency=2)
    worker.wait()
    assert Job.objects.filter(state="completed").count() == 3
    assert Job.objects.filter(state="available", attempt=0).count() == 7


def test_a_job_enqueued_by_a_job_is_run_before_until_empty_ends(drain: Drain) -> None:
    @job("chain.link")
    def link(left: int) -> None:
        if left:
            link.enqueue(left - 1)

    link.enqueue(5)
    drain()
    assert Job.objects.filter(state="completed").count() == 6


def test_until_empty_finds_a_job_in_a_queue_that_is_new(drain: Drain) -> None:
    """A worker of all queues knows them by a look that is up to a second old."""

    @job("new.leaf")
    def leaf() -> None: ...

    @job("new.root")
    def root() -> None:
        leaf.options(queue="quite-new").enqueue()

    root.enqueue()
    drain()
    assert Job.objects.filter(state="completed").count() == 2


def test_concurrency_is_a_limit(drain: Drain) -> None:
    lock, running, most = threading.Lock(), 0, 0
    three = threading.Barrier(3)

    @job("busy.work")
    def work() -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        three.wait(60)  # passed by three at a time only
        with lock:
            running -= 1

    enqueue_many([work.s() for _ in range(21)])
    drain(concurrency=3)
    assert most == 3


class Sleeper(PollingWaker):
    """Never wakes by itself. `naps` counts how often it fell asleep, `sleeping` is set while it does."""

    def __init__(self) -> None:
        super().__init__(shortest=3600.0, longest=3600.0)
        self.sleeping, self.naps = threading.Event(), 0

    def _await(self, seconds: float, descriptor: int | None) -> None:
        if not self._woken.is_set():
            self.naps += 1
            self.sleeping.set()
        super()._await(seconds, descriptor)
        self.sleeping.clear()


def test_a_claimer_that_a_limit_turned_away_is_woken_after_the_commit(
    start_worker: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    waker = Sleeper()
    monkeypatch.setattr(process, "waker_for", lambda using, workers: waker)
    naps, write = [0], Writer.write

    @job("limit.one", rate_limit={"key": "one", "concurrency": 1})
    def one() -> None:
        assert waker.sleeping.wait(60)
        naps[0] = waker.naps

    def write_late(self: Writer, batch: Any) -> Any:
        """Not before the end of the handler has made the claimer look in vain and lie down again."""
        if batch:
            eventually(lambda: waker.naps > naps[0] and waker.sleeping.is_set())
        return write(self, batch)

    monkeypatch.setattr(Writer, "write", write_late)
    handles = enqueue_many([one.s() for _ in range(3)])
    start_worker(concurrency=2, scheduler=False)
    eventually(lambda: all(handle.refresh().state == "completed" for handle in handles))


def test_the_reservation_is_the_workers_unless_the_job_has_its_own(start_worker: Start, settings: Any) -> None:
    settings.OJS = {"WORKER_VISIBILITY_TIMEOUT": 77}
    gate, started = threading.Event(), threading.Semaphore(0)

    @job("lease.show")
    def show() -> None:
        started.release()
        gate.wait(60)

    handles = [show.enqueue(), show.options(visibility_timeout="3m").enqueue()]
    start_worker()
    assert started.acquire(timeout=60)
    assert started.acquire(timeout=60)
    leases = [handle.refresh().row["lease_ms"] for handle in handles]
    gate.set()
    assert leases == [77_000, 180_000]


def test_a_timeout_ends_the_handler_and_the_job(start_worker: Start) -> None:
    ended = threading.Event()

    @job("slow.loop", timeout="300ms", retry={"max_attempts": 1})
    def loop() -> None:
        try:
            while True:
                time.sleep(0.005)
        finally:
            ended.set()

    @job("slow.aloop", timeout="300ms", retry={"max_attempts": 1})
    async def aloop() -> None:
        await asyncio.Event().wait()

    handles = [loop.enqueue(), aloop.enqueue()]
    worker = start_worker(scheduler=False)
    for handle in handles:
        assert handle.wait(timeout=90, raise_error=False).state == "discarded"
        assert handle.error is not None
        assert handle.error["type"] == "timeout"
    assert ended.wait(60)
    eventually(lambda: not worker.worker.pool.running())


def test_a_cancelled_job_tells_its_handler(start_worker: Start, settings: Any) -> None:
    settings.OJS = {"HEARTBEAT_INTERVAL": 0.05}
    started, noticed, cancelled = threading.Semaphore(0), threading.Event(), threading.Event()

    @job("stop.thread")
    def thread(context: JobContext) -> str:
        started.release()
        while not context.is_cancelled:
            time.sleep(0.005)
        noticed.set()
        return "too late"

    @job("stop.task")
    async def task() -> None:
        started.release()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    handles = [thread.enqueue(), task.enqueue()]
    worker = start_worker()
    assert started.acquire(timeout=60)
    assert started.acquire(timeout=60)
    for handle in handles:
        cancel_one(handle.id)
    assert noticed.wait(60)
    assert cancelled.wait(60)
    eventually(lambda: not worker.worker.pool.active())
    assert {str(handle.refresh().state) for handle in handles} == {"cancelled"}
    assert not thread.enqueue().is_finished, "the worker goes on"


def test_directives_are_obeyed(start_worker: Start, settings: Any) -> None:
    settings.OJS = {"HEARTBEAT_INTERVAL": 0.05}

    @job("any.thing")
    def anything() -> None: ...

    worker = start_worker(name="w1")
    eventually(lambda: Worker.objects.filter(pk="w1").exists())
    direct("w1", "quiet")
    eventually(lambda: Worker.objects.get(pk="w1").state == "quiet")
    handle = anything.enqueue()
    direct("w1", "running")
    assert handle.wait(timeout=90).state == "completed"
    direct("w1", "terminate")
    worker.wait()
    assert not Worker.objects.exists()


def test_the_worker_tells_what_it_is(start_worker: Start) -> None:
    @job("any.thing", queue="things")
    def anything() -> None: ...

    start_worker(name="w1", concurrency=3)
    row = eventually(lambda: Worker.objects.filter(pk="w1").first())
    assert (row.concurrency, row.job_types, row.queues, row.state) == (3, ["any.thing"], ["things"], "running")
    assert row.hostname
    assert row.memory_mb > 1
    assert row.version


def test_progress_and_heartbeats_are_written_outside_the_handlers_transaction(start_worker: Start) -> None:
    """A handler that works inside one long transaction must be able to keep its job."""
    told = threading.Event()

    @job("long.work", visibility_timeout="1m")
    def work(context: JobContext) -> None:
        with transaction.atomic():
            if connection.vendor != "sqlite":  # there a transaction that has not written yet holds nothing
                Job.objects.filter(pk=context.id).exists()
            assert context.progress(40, "forty")
            told.wait(60)

    if connection.vendor == "sqlite":
        pytest.skip("BEGIN IMMEDIATE: a handler's transaction holds the only write lock")
    handle = work.enqueue()
    start_worker()

    def reported() -> Any:
        return [e for e in log.read(types=["job.progress"]).events if e["data"]["job_id"] == str(handle.id)]

    (event,) = eventually(reported)
    told.set()
    assert event["data"]["progress_percent"] == 40
    assert event["data"]["progress_message"] == "forty"
    assert handle.wait(timeout=90).state == "completed"


def test_progress_of_a_handler_is_an_event(start_worker: Start) -> None:
    @job("long.work")
    def work(context: JobContext) -> None:
        for percent in range(100):
            context.progress(percent)
        context.progress(100, "done")
        eventually(lambda: log.read(types=["job.progress"]).events)

    handle = work.enqueue()
    start_worker()
    assert handle.wait(timeout=90).state == "completed"
    events = log.read(types=["job.progress"]).events
    assert 1 <= len(events) <= 3, "a tight loop does not flood the log"
    assert events[-1]["data"]["progress_percent"] == 100
    assert events[-1]["data"]["worker_id"]


def test_a_late_worker_cannot_complete_a_job_it_lost(start_worker: Start, caplog: pytest.LogCaptureFixture) -> None:
    gate, started = threading.Event(), threading.Event()

    @job("lose.me")
    def lose() -> str:
        started.set()
        gate.wait(60)
        return "late"

    handle = lose.enqueue()
    worker = start_worker(scheduler=False)
    assert started.wait(60)
    Job.objects.filter(pk=handle.id).update(worker_id="somebody-else", attempt=2)
    with caplog.at_level("INFO", "django_ojs.worker.writer"):
        gate.set()
        eventually(lambda: not worker.worker.pool.active())
    assert handle.refresh().state == "active"
    assert handle.result is None
    assert "no longer ours" in caplog.text


def test_a_draining_worker_finishes_what_it_has_and_claims_nothing_more(start_worker: Start) -> None:
    gate, started = threading.Event(), threading.Event()

    @job("drain.slow")
    def slow() -> str:
        started.set()
        gate.wait(60)
        return "finished"

    running = slow.enqueue()
    worker = start_worker(concurrency=1)
    assert started.wait(60)
    worker.worker.stop()
    eventually(lambda: worker.worker.lifecycle.stage == "terminate")
    waiting = slow.enqueue()
    gate.set()
    worker.wait()
    assert (running.refresh().result, waiting.refresh().state) == ("finished", "available")


def test_a_drain_that_takes_too_long_hands_the_jobs_back(start_worker: Start, settings: Any) -> None:
    settings.OJS = {"SHUTDOWN_GRACE_PERIOD": 0.1}
    gate, started = threading.Event(), threading.Semaphore(0)

    @job("drain.deaf")
    def deaf() -> str:
        started.release()
        gate.wait(30)  # in C: no exception gets in
        return "too late"

    @job("drain.polite")
    async def polite() -> None:
        started.release()
        await asyncio.Event().wait()

    handles = [deaf.enqueue(), polite.enqueue()]
    worker = start_worker()
    assert started.acquire(timeout=60)
    assert started.acquire(timeout=60)
    worker.stop()
    gate.set()
    for handle in handles:
        handle.refresh()
        assert (handle.state, handle.attempt, handle.errors, handle.row["worker_id"]) == ("available", 1, [], "")
    assert not Worker.objects.exists()


def test_a_part_that_crashes_ends_the_worker_with_an_error(
    start_worker: Start, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    @job("any.thing")
    def anything() -> None: ...

    def broken(*args: Any, **kwargs: Any) -> None:
        raise LookupError("a fault of ours")

    monkeypatch.setattr("django_ojs.worker.claimer.fetch", broken)
    worker = start_worker()
    worker.wait()
    assert worker.ended_well is False
    assert "The claimer thread died." in caplog.text
    assert "a fault of ours" in caplog.text


def test_middlewares_wrap_every_handler_that_the_worker_runs(drain: Drain) -> None:
    from django_ojs.middleware import execution_chain

    seen: list[str] = []

    @job("wrapped.well")
    def well() -> str:
        seen.append("handler")
        return "plain"

    @job("wrapped.badly", retry={"max_attempts": 1})
    def badly() -> None:
        raise ConnectionError("refused")

    def outer(job: Any, context: Any, next: Any) -> Any:
        seen.append("before")
        try:
            return f"wrapped {next()}"
        finally:
            seen.append("after")

    with added(outer, execution_chain):
        handles = enqueue_many([well.s(), badly.s()])
        drain(concurrency=1)
    assert [handle.refresh().state for handle in handles] == ["completed", "discarded"]
    assert handles[0].result == "wrapped plain"
    assert seen == ["before", "handler", "after", "before", "after"]


def test_the_chains_cannot_change_while_a_worker_runs(start_worker: Start) -> None:
    from django_ojs.middleware import execution_chain

    @job("any.thing")
    def anything() -> None: ...

    worker = start_worker()
    eventually(lambda: worker.lines)
    with pytest.raises(RuntimeError):
        execution_chain.add(lambda job, context, proceed: proceed())
    worker.stop()
    added = lambda job, context, proceed: proceed()  # noqa: E731
    execution_chain.add(added)
    execution_chain.remove(added)


def test_connections_of_handlers_follow_conn_max_age(drain: Drain, monkeypatch: pytest.MonkeyPatch) -> None:
    """With CONN_MAX_AGE 0 each job gets a connection of its own; the worker's own stay open."""
    seen: list[Any] = []

    @job("db.use")
    def use() -> None:
        connection.ensure_connection()
        seen.append(connection.connection)

    monkeypatch.setitem(connection.settings_dict, "CONN_MAX_AGE", 0)
    enqueue_many([use.s() for _ in range(3)])
    drain(concurrency=1)
    assert len(seen) == len({id(each) for each in seen}) == 3


@pytest.mark.postgres
def test_terminated_connections_lose_no_job(start_worker: Start, caplog: pytest.LogCaptureFixture) -> None:
    @job("steady.add")
    def add(a: int) -> int:
        return a + 1

    @job("steady.db")
    def use_database(a: int) -> int:
        return a + Job.objects.filter(pk__isnull=True).count()

    start_worker(concurrency=4)
    assert add.enqueue(1).wait(timeout=90).result == 2
    for _ in range(3):
        handles = enqueue_many([*(add.s(n) for n in range(50)), *(use_database.s(n) for n in range(5))])
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
        for handle in handles[:50]:
            assert handle.wait(timeout=60).state == "completed"
    assert "thread died" not in caplog.text


def test_a_worker_stops_though_the_database_is_away(
    start_worker: Start, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    @job("any.thing")
    def anything() -> None: ...

    def gone(*args: Any, **kwargs: Any) -> None:
        raise OperationalError("server closed the connection unexpectedly")

    worker = start_worker(scheduler=False)
    eventually(Worker.objects.exists)
    for place in ("claimer.fetch", "keepalive.beat", "process.deregister"):
        monkeypatch.setattr(f"django_ojs.worker.{place}", gone)
    eventually(lambda: "The database cannot be used" in caplog.text)
    worker.stop()
    assert worker.ended_well
    assert "thread died" not in caplog.text
    assert "Could not deregister, as the database is away" in caplog.text


# Jobs that this very worker still runs though it has lost them


def test_a_worker_never_runs_a_job_beside_its_own_earlier_run_of_it(start_worker: Start) -> None:
    """The handler outlives its reservation: that is one loss, and the job waits until the handler has ended."""
    started, go, done = threading.Semaphore(0), threading.Event(), []

    @job("own.slow")
    def slow(context: JobContext) -> None:
        started.release()
        go.wait(60)
        done.append(context.attempt)

    @job("own.other")
    def other() -> None: ...

    # From half of it on the worker does not claim the job: a machine may stand still for as long
    handle = slow.options(visibility_timeout=3).enqueue()
    start_worker(name="w", concurrency=4)
    assert started.acquire(timeout=60)
    eventually(lambda: handle.refresh().errors)
    for _ in range(3):  # claims that could take it
        other.enqueue().wait(timeout=60)
    # A claim that met the run that goes on is given back, and counts for nothing.
    eventually(lambda: (handle.refresh().state, handle.attempt) == ("available", 1))
    Job.objects.filter(pk=handle.id).update(visibility_ms=None)  # a busy machine would lose the second one, too
    go.set()
    assert handle.wait(timeout=60).attempt == 2
    assert sorted(done) == [1, 2]
    types = [event["type"] for event in log.read(job_id=handle.id, types=["job.*", "job.stalled"], limit=100).events]
    assert types == ["job.enqueued", "job.started", "job.stalled", "job.started", "job.completed"]
    assert Job.objects.get(pk=handle.id).uncounted is None


def test_a_handler_that_outlives_every_reservation_is_given_up_after_the_poison_limit(
    start_worker: Start, settings: Any
) -> None:
    settings.OJS = {"POISON_LIMIT": 2}

    @job("own.poison")
    def outlive(context: JobContext) -> None:
        eventually(lambda: Job.objects.get(pk=context.id).losses >= context.attempt)

    handle = outlive.options(visibility_timeout=1).enqueue()
    start_worker(name="w", concurrency=2)
    eventually(lambda: handle.refresh().state == "discarded")
    assert (handle.attempt, handle.row["max_attempts"]) == (2, 3)
    assert handle.error is not None
    assert handle.error["type"] == "visibility_timeout"


def test_a_claim_of_a_job_that_still_runs_here_is_given_back_uncounted(start_worker: Start) -> None:
    """It takes a jump of the clock, or a worker that stood still, to come so far."""
    started, go = threading.Semaphore(0), threading.Event()

    @job("own.met")
    def met() -> None:
        started.release()
        go.wait(60)

    handle = met.options(retry={"max_attempts": 1}).enqueue()
    worker = start_worker(name="w", concurrency=4)
    assert started.acquire(timeout=60)
    requeue([handle.id])
    worker.worker._waker.wake()
    row = eventually(lambda: Job.objects.filter(pk=handle.id, state="available", attempt=2).first())
    assert (row.uncounted, row.losses, row.max_attempts, row.errors) == (1, 0, 1, None)
    go.set()
    assert (handle.wait(timeout=60).state, handle.attempt) == ("completed", 3)


@pytest.mark.parametrize("busy", [True, False])
def test_a_drain_tells_once_that_the_worker_is_quiet_before_it_stops(start_worker: Start, busy: bool) -> None:
    """Whether a heartbeat comes between the order and the end, or the worker has ended before."""
    started, go = threading.Semaphore(0), threading.Event()

    @job("drain.hold")
    def hold() -> None:
        started.release()
        go.wait(60)

    if busy:
        hold.enqueue()
    worker = start_worker(name="w", scheduler=False)
    eventually(lambda: Worker.objects.filter(pk="w", state="running").exists())
    if busy:
        assert started.acquire(timeout=60)
    worker.worker.stop()
    if busy:
        eventually(lambda: Worker.objects.get(pk="w").state == "terminate")
    go.set()
    worker.wait()
    types = [event["type"] for event in log.read(types=["worker.*"], limit=100).events]
    assert [kind for kind in types if kind != "worker.heartbeat"] == [
        "worker.registered", "worker.started", "worker.quiet", "worker.terminated", "worker.stopped",
    ]  # fmt: skip
