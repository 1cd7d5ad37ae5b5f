"""The parts of a worker one by one: what they ask of the database, and what they do when it refuses."""

from __future__ import annotations

import datetime as dt
import json
import logging
import os
import subprocess
import sys
import threading
import time
import uuid
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from django.db import OperationalError, connection, connections
from django.test.utils import CaptureQueriesContext

from django_ojs import backoff, database, enqueue_many, job
from django_ojs.client.context import JobContext, NoLink
from django_ojs.faults import is_contention
from django_ojs.jobs.cancel import cancel_one
from django_ojs.jobs.fetch import Fetch, fetch
from django_ojs.jobs.finish import Ack, requeue
from django_ojs.models import Event, Job, JobProgress, JobRow, Queue, Worker
from django_ojs.models.job import blank_row
from django_ojs.queues.configuration import configure
from django_ojs.registry import Registry, registry
from django_ojs.scheduler import service as outage_module
from django_ojs.scheduler.service import GaveUp, Outage, persist
from django_ojs.store import store_of
from django_ojs.worker import processinfo
from django_ojs.worker.claimer import Claimer, QueueNames
from django_ojs.worker.keepalive import Heartbeat
from django_ojs.worker.lifecycle import Lifecycle, Order
from django_ojs.worker.pool import ClaimAhead, Deadlines, Pool
from django_ojs.worker.runs import Completed, Failed, Interruption, JobRun
from django_ojs.worker.wakers import PollingWaker
from django_ojs.worker.writer import FairLock, Writer, deliver_reports, keep_reports, write_lock_for
from django_ojs.workerregistry.directory import unserved_types
from django_ojs.workerregistry.heartbeat import Beat, BeatAnswer, beat, extend
from django_ojs.workerregistry.registration import NameInUse, register
from tests.refusing import READ_ONLY, refusing
from tests.waiting import eventually

USING = "default"


class FakePool:
    def __init__(self, runs: list[JobRun]) -> None:
        self.runs = runs
        self.interrupted: dict[Interruption, list[uuid.UUID]] = {}

    def active(self) -> list[JobRun]:
        return self.runs

    running = active

    def give_up(self, run: JobRun) -> bool:
        return True

    def not_to_claim(self) -> list[uuid.UUID]:
        return []

    def interrupt(self, runs: Any, reason: Interruption) -> None:
        self.interrupted.setdefault(reason, []).extend(run.id for run in runs)


@pytest.fixture
def claimed(handlers: Registry, db: None) -> Any:
    """Claims so many fresh jobs for worker `w`, as runs."""

    @job("part.work")
    def work() -> None: ...

    def claim(count: int, **options: Any) -> list[JobRun]:
        enqueue_many([work.options(**options).s() for _ in range(count)])
        rows = fetch(Fetch(["default"], count=count, worker_id="w", check_worker=False, fallback_visibility_ms=60_000))
        return [make_run(row) for row in rows]

    return claim


def make_run(row: JobRow) -> JobRun:
    definition = registry.get(row["type"])
    assert definition is not None
    return JobRun(row, definition, time.monotonic(), NoLink())


@pytest.fixture
def writer() -> Writer:
    return Writer("w", USING, lambda runs: None, lambda name: None)


# The writer


def test_the_statements_of_a_batch_do_not_grow_with_it(claimed: Any, writer: Writer) -> None:
    def statements(count: int) -> int:
        batch: Any = [(run, Completed("1")) for run in claimed(count)]
        with CaptureQueriesContext(connection) as queries:
            writer.write(batch)
        return len(queries)

    assert statements(40) == statements(2)
    assert writer.completed == 42
    assert set(Job.objects.values_list("state", flat=True)) == {"completed"}


def test_only_what_the_server_took_counts_as_completed(claimed: Any, writer: Writer, settings: Any) -> None:
    settings.OJS = {"MAX_RESULT_BYTES": 65_536}
    done, gone, large = claimed(3)
    cancel_one(gone.id)
    writer.write([(done, Completed("1")), (gone, Completed("1")), (large, Completed(f'"{"x" * 70_000}"'))])
    assert [Job.objects.get(pk=run.id).state for run in (done, gone, large)] == ["completed", "cancelled", "retryable"]
    assert writer.completed == 1


def test_one_poisonous_report_does_not_take_its_batch_with_it(
    claimed: Any, writer: Writer, caplog: pytest.LogCaptureFixture
) -> None:
    good, bad = claimed(2)
    writer.write([(bad, Failed({"code": "no message"})), (good, Failed({"message": "fine"}))])
    states = {run.id: Job.objects.get(pk=run.id).state for run in (good, bad)}
    assert states == {good.id: "retryable", bad.id: "retryable"}, "what is left of it is written"
    assert f"The outcome of job {bad.id} could not be written" in caplog.text


def test_a_result_that_the_server_refuses_fails_the_job(claimed: Any, writer: Writer, settings: Any) -> None:
    (run,) = claimed(1)
    settings.OJS = {"MAX_RESULT_BYTES": 10}
    writer.write([(run, Completed('"12345678901234567890"'))])
    failed = Job.objects.get(pk=run.id)
    assert (failed.state, failed.error["code"] if failed.error else "") == ("retryable", "RESULT_TOO_LARGE")


def test_two_runs_of_one_job_are_never_in_one_batch(claimed: Any) -> None:
    from django_ojs.worker.writer import _one_for_each_job

    (lost,) = claimed(1)
    row = {**lost.context.row, "attempt": 2}
    won = make_run(row)
    now, later = _one_for_each_job((), [(lost, Completed("1")), (won, Completed("2"))])
    assert ([run.attempt for run, _ in now], [run.attempt for run, _ in later]) == ([1], [2])


@pytest.mark.django_db(transaction=True)
def test_a_writer_that_is_stopped_writes_what_it_has(claimed: Any) -> None:
    runs = claimed(5)
    written: list[JobRun] = []
    writer = Writer("w", USING, written.extend, lambda name: None)
    for run in runs:
        writer.put([(run, Completed(None))])
    writer.start()
    assert writer.stop(10)
    assert written == runs
    assert Job.objects.filter(state="completed").count() == 5


@pytest.fixture
def unreachable(monkeypatch: pytest.MonkeyPatch) -> None:
    """The database is away for the writer, and stays so."""

    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise OperationalError("connection refused")

    monkeypatch.setattr(outage_module, "outage", Outage())
    for name in ("ack", "ack_free", "fail", "fail_free"):
        monkeypatch.setattr(f"django_ojs.worker.writer.{name}", refuse)


def end_with(writer: Writer, outcomes: Any) -> None:
    """Let it have these outcomes, and tell it to stop without its database."""
    writer.put(outcomes)
    writer.give_up()
    writer.start()
    assert writer.stop(10)


@pytest.mark.usefixtures("unreachable")
@pytest.mark.django_db(transaction=True)
def test_outcomes_that_cannot_be_reported_are_named_by_job(
    claimed: Any, writer: Writer, caplog: pytest.LogCaptureFixture
) -> None:
    good, bad = claimed(2)
    end_with(writer, [(good, Completed("1")), (bad, Failed({"message": "broke"}))])
    assert f"{good.id} (attempt 1), {bad.id} (attempt 1)" in caplog.text
    assert writer.completed == 0


@pytest.mark.usefixtures("unreachable")
@pytest.mark.django_db(transaction=True)
def test_outcomes_that_cannot_be_reported_are_delivered_at_the_next_start_once(
    claimed: Any, writer: Writer, settings: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "spool"
    settings.OJS = {"WORKER_SPOOL": str(folder)}
    good, bad, late = claimed(3)
    end_with(writer, [(good, Completed('"größer"')), (bad, Failed({"message": "broke"})), (late, Completed("2"))])
    (path,) = folder.iterdir()
    assert (path.stat().st_mode & 0o777, folder.stat().st_mode & 0o777) == (0o600, 0o700)
    text = path.read_text()
    requeue([late.id])
    fetch(Fetch(["default"], worker_id="other", check_worker=False))
    monkeypatch.undo()  # the database is back
    Heartbeat("w", dict, FakePool([]), Lifecycle(), USING)._deliver_reports()  # type: ignore[arg-type]
    found = {pk: (state, attempt) for pk, state, attempt in Job.objects.values_list("pk", "state", "attempt")}
    assert found == {good.id: ("completed", 1), bad.id: ("retryable", 1), late.id: ("active", 2)}
    assert Job.objects.get(pk=good.id).result == "größer"
    assert list(folder.iterdir()) == []
    path.write_text(text)
    (folder / "half.outcomes").write_text('{"kind": "ack"')
    assert deliver_reports(folder, USING) == 0, "they have been reported"
    assert [left.name for left in folder.iterdir()] == ["half.outcomes.unreadable"]


@pytest.mark.django_db(transaction=True)
def test_what_another_user_has_written_into_the_spool_ends_no_job(
    claimed: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    (run,) = claimed(1)
    path = keep_reports([Ack(run.id)], tmp_path)
    theirs = SimpleNamespace(st_uid=os.geteuid() + 1)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "lstat", lambda self: theirs)
        assert deliver_reports(tmp_path, USING) == 0
    assert f"{path} is not delivered" in caplog.text
    with monkeypatch.context() as patch:  # where it has been put in the place of ours meanwhile
        patch.setattr(os, "fstat", lambda number: theirs)
        assert deliver_reports(tmp_path, USING) == 0
    assert list(tmp_path.iterdir()) == [path]
    assert deliver_reports(tmp_path, USING) == 1


@pytest.mark.django_db(transaction=True)
def test_a_spool_whose_files_cannot_be_deleted_stops_no_worker(
    claimed: Any, settings: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    """Its folder belongs to another user, or is on a disk that became read-only."""
    settings.OJS = {"WORKER_SPOOL": str(tmp_path)}
    (run,) = claimed(1)
    keep_reports([Ack(run.id)], tmp_path)
    (tmp_path / "half.outcomes").write_text('{"kind": "ack"')
    there = {path.name for path in tmp_path.iterdir()}

    def refuse(*args: Any, **options: Any) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "unlink", refuse)
    monkeypatch.setattr(Path, "rename", refuse)
    Heartbeat("w", dict, FakePool([]), Lifecycle(), USING)._deliver_reports()  # type: ignore[arg-type]
    assert Job.objects.get(pk=run.id).state == "completed"
    assert {path.name for path in tmp_path.iterdir()} == there
    assert caplog.text.count("could not be removed: the next worker delivers it again") == 2
    Heartbeat("w", dict, FakePool([]), Lifecycle(), USING)._deliver_reports()  # type: ignore[arg-type]
    assert Job.objects.get(pk=run.id).attempt == 1


# The claimer


def test_jobs_claimed_while_the_worker_was_told_to_stop_are_given_back(
    claimed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The order comes between the claim and its answer."""
    (run,) = claimed(1)
    lifecycle = Lifecycle()
    started: list[JobRow] = []

    class Pool(FakePool):
        def offer(self, rows: list[JobRow], link: Any) -> None:
            started.extend(rows)

    claimer = Claimer(
        "w", ["part.work"], QueueNames([], USING), Pool([]), NoLink(), lifecycle,  # type: ignore[arg-type]
        PollingWaker(), threading.Event(), USING,
    )  # fmt: skip

    def fetch_late(*args: Any, **kwargs: Any) -> list[JobRow]:
        lifecycle.give(Order.QUIET, "the operator")
        lifecycle.follow(timeout=1)
        return [run.context.row]

    monkeypatch.setattr("django_ojs.worker.claimer.fetch", fetch_late)
    assert claimer._claim(1, ["part.work"]) == 0
    assert started == []
    assert Job.objects.get(pk=run.id).state == "available"


@pytest.mark.parametrize("practice", [False, True])
def test_a_claim_is_urgent_where_the_worker_was_told_of_a_job_and_has_none(
    practice: bool, claimed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first look knows of nothing. Then it is told of a job, gets one, looks again beside it, and sleeps."""
    (run,) = claimed(1)
    asked: list[tuple[bool, bool]] = []
    found, told = [[], [run.context.row], [], []], [True, True, False]
    pool = FakePool([])
    pool.ahead_limit = ClaimAhead(2)  # type: ignore[attr-defined]
    pool.free, pool.ahead = lambda: 2, lambda: 0  # type: ignore[attr-defined]
    pool.stale = lambda age: []  # type: ignore[attr-defined]
    pool.offer = lambda rows, link: pool.runs.extend([run] * len(rows))  # type: ignore[attr-defined]
    waker = PollingWaker()
    waker.wait = lambda *, found: told.pop(0) if told else False  # type: ignore[method-assign]
    claimer = Claimer(
        "w", ["part.work"], QueueNames(["default"], USING), pool, NoLink(), Lifecycle(),  # type: ignore[arg-type]
        waker, threading.Event(), USING,
    )  # fmt: skip

    def answer(wanted: Fetch, *, using: str) -> list[JobRow]:
        asked.append((wanted.optimistic, wanted.urgent))
        return found.pop(0)

    monkeypatch.setattr("django_ojs.worker.claimer.fetch", answer)
    monkeypatch.setattr(type(store_of(USING)), "needs_warmup", lambda store: practice)
    for _ in range(4):
        claimer._poll()
    assert asked == [(practice, False), (True, True), (True, False), (practice, False)]


def test_a_claimer_says_what_each_look_brought_also_one_that_takes_its_last_slot(
    claimed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else its alarms would rest as if they had brought nothing."""
    (run,) = claimed(1)
    found, brought = [[run.context.row], []], []
    pool = FakePool([])
    pool.ahead_limit = ClaimAhead(2)  # type: ignore[attr-defined]
    pool.free, pool.ahead = lambda: 1, lambda: 0  # type: ignore[attr-defined]
    pool.stale = lambda age: []  # type: ignore[attr-defined]
    pool.offer = lambda rows, link: None  # type: ignore[attr-defined]
    waker = PollingWaker()
    waker.wait = lambda *, found: False  # type: ignore[method-assign]
    waker.looked = lambda *, found: brought.append(found)  # type: ignore[method-assign]
    claimer = Claimer(
        "w", ["part.work"], QueueNames(["default"], USING), pool, NoLink(), Lifecycle(),  # type: ignore[arg-type]
        waker, threading.Event(), USING,
    )  # fmt: skip
    monkeypatch.setattr("django_ojs.worker.claimer.fetch", lambda wanted, *, using: found.pop(0))
    for _ in range(2):
        claimer._poll()
    assert brought == [True, False]


def test_a_claimer_that_meets_a_limit_sets_its_own_alarm(frozen_clock: Any, claimed: Any) -> None:
    """And not that of others in its process."""
    throttle = {"key": "k", "throttle": {"limit": 1, "period": "PT1H"}}
    enqueue_many([("part.work", [], {"rate_limit": throttle})] * 2)
    alarms: dict[str, list[float]] = {"first": [], "second": []}

    def claimer(name: str) -> Claimer:
        pool = FakePool([])
        pool.not_to_claim = list  # type: ignore[attr-defined]
        pool.offer = lambda rows, link: None  # type: ignore[attr-defined]
        waker = PollingWaker()
        waker.wake_in = alarms[name].append  # type: ignore[method-assign]
        return Claimer(
            name, ["part.work"], QueueNames(["default"], USING), pool, NoLink(), Lifecycle(),  # type: ignore[arg-type]
            waker, threading.Event(), USING,
        )  # fmt: skip

    first, second = claimer("first"), claimer("second")
    assert first._claim(2, ["part.work"]) == 1
    assert alarms == {"first": [3600.0], "second": []}
    assert second._claim(2, ["part.work"]) == 0
    assert alarms == {"first": [3600.0], "second": [3600.0]}


# The heart


@pytest.fixture
def heart(claimed: Any) -> Heartbeat:
    register("w", {"hostname": "here"})
    return Heartbeat("w", lambda: {"hostname": "here", "cpu_percent": 1.5}, FakePool([]), Lifecycle(), USING)  # type: ignore[arg-type]


def visible_until(run: JobRun) -> dt.datetime:
    value = Job.objects.get(pk=run.id).visible_until
    assert value is not None
    return value


def test_a_beat_renews_jobs_but_not_those_with_a_length_of_their_own(
    frozen_clock: Any, heart: Heartbeat, claimed: Any
) -> None:
    """L1-007: only the handler itself extends a reservation that the job asked for."""
    (plain,), (own,) = claimed(1), claimed(1, visibility_timeout=30)
    heart._pool = FakePool([plain, own])  # type: ignore[assignment]
    start = frozen_clock.now
    frozen_clock.advance(seconds=10)
    answer = heart.beat_once()
    assert answer is not None
    assert answer.extended == [plain.id]
    assert visible_until(plain) == start + dt.timedelta(seconds=70)
    assert visible_until(own) == start + dt.timedelta(seconds=30)
    heart._answer(own.context, beat=True)
    assert visible_until(own) == start + dt.timedelta(seconds=40)


def test_beats_come_in_time_for_the_shortest_reservation_that_they_renew(
    heart: Heartbeat, claimed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its queue may say less than HEARTBEAT_INTERVAL, and the job may be claimed between two beats."""
    configure("default", {"visibility_timeout": 3})
    (own,), (short,) = claimed(1, visibility_timeout=1), claimed(1)
    pool, now, beats = FakePool([own]), [100.0], list[float]()
    heart._pool = pool  # type: ignore[assignment]
    monkeypatch.setattr("django_ojs.worker.keepalive.time", SimpleNamespace(monotonic=lambda: now[0]))

    def beat_once() -> None:
        beats.append(now[0])
        if len(beats) == 4:
            heart.stopping.set()

    def serve(seconds: float) -> bool:
        now[0] += seconds
        if now[0] >= 106:
            pool.runs = [own, short]
        return True

    monkeypatch.setattr(heart, "beat_once", beat_once)
    monkeypatch.setattr(heart, "_serve", serve)
    heart.run()
    assert beats == [100, 105, 106, 107]


def test_a_beat_hears_of_cancelled_and_lost_jobs(heart: Heartbeat, claimed: Any) -> None:
    kept, cancelled, lost = claimed(3)
    pool = FakePool([kept, cancelled, lost])
    heart._pool = pool  # type: ignore[assignment]
    cancel_one(cancelled.id)
    Job.objects.filter(pk=lost.id).update(worker_id="other")
    heart.beat_once()
    assert pool.interrupted == {Interruption.CANCELLED: [cancelled.id], Interruption.LOST: [lost.id]}
    cancelled.interrupt(Interruption.CANCELLED, force=False)
    lost.interrupt(Interruption.LOST, force=False)
    answer = heart.beat_once()
    assert answer is not None
    assert (answer.cancelled, answer.lost) == ([], []), "what is gone is not reported again"


def test_the_answer_about_an_earlier_run_interrupts_that_run_alone(
    heart: Heartbeat, claimed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the beat is on its way, the first run ends and the second attempt of the same job begins here."""
    (first,) = claimed(1)
    requeue([first.id])
    second = make_run(fetch(Fetch(["default"], worker_id="w", check_worker=False, fallback_visibility_ms=60_000))[0])
    pool = Pool(4, lambda done: None, lambda: None)
    pool._active = {first}
    heart._pool = pool

    def answer_late(*args: Any, **kwargs: Any) -> BeatAnswer:
        answer = beat(*args, **kwargs)
        pool._active = {second}
        return answer

    monkeypatch.setattr("django_ojs.worker.keepalive.beat", answer_late)
    until = visible_until(second)
    answer = heart.beat_once()
    assert answer is not None
    assert (answer.lost, answer.extended) == ([first.id], [])
    assert (first.interruption, second.interruption) == (Interruption.LOST, None)
    assert visible_until(second) == until, "what the first run says renews nothing of the second"
    assert not extend(first.id, "w", attempt=1)
    assert extend(first.id, "w", attempt=2)
    pool.close()


def test_a_name_that_beats_elsewhere_is_refused_and_the_name_of_a_dead_process_is_taken_over(claimed: Any) -> None:
    (run,) = claimed(1)
    lifecycle = Lifecycle()
    other = Beat("w", info={"hostname": "elsewhere", "pid": 7}, incarnation="elsewhere:7:x")
    beat(other)
    ours = Heartbeat("w", dict, FakePool([]), lifecycle, USING, "here:8:y")  # type: ignore[arg-type]

    def look() -> bool:
        try:
            return ours.beat_once() is not None
        except NameInUse as error:
            return ours._awaits_holder(error)

    assert look(), "it waits for a sign of life"
    assert not ours.known.is_set()
    beat(other)
    assert not look()
    assert Job.objects.get(pk=run.id).state == "active"
    assert ours._holder is not None
    ours._holder = None
    assert look()
    ours._holder = ours._holder[0], time.monotonic() - 60  # type: ignore[index]
    assert look(), "the other is silent for so long"
    lost = Job.objects.get(pk=run.id)
    assert (lost.state, lost.losses) == ("available", 1)
    assert look()
    assert ours.known.is_set()
    assert Worker.objects.get().incarnation == "here:8:y"
    with pytest.raises(NameInUse, match="has the worker name 'w'"):
        beat(other)


def test_a_process_of_this_machine_is_known_to_be_gone() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    there = processinfo.incarnation("x", child.pid)
    assert not processinfo.has_ended(there)
    child.communicate(b"\n")
    assert processinfo.has_ended(there) == bool(processinfo._machine())
    assert not processinfo.has_ended(processinfo.incarnation("x")), "it is this one"
    assert not processinfo.has_ended(f"another:{child.pid}:x")
    assert not processinfo.has_ended("")


def test_requests_are_collected_and_each_run_is_served_once(heart: Heartbeat, claimed: Any) -> None:
    first, second = (run.context for run in claimed(2))
    for context in (first, first, second):
        heart.progress(context)
    heart.heartbeat(first)
    wish = heart._requests.get_nowait()
    assert wish is not None
    wishes, beat_wanted = heart._waiting(wish)
    assert dict(wishes) == {first: True, second: False}
    assert not beat_wanted
    heart.beat_now()
    heart.heartbeat(first)
    assert heart._waiting((second, False)) == ([(second, False), (first, True)], True)


def test_a_wish_for_a_job_that_is_no_longer_ours_asks_for_a_beat(heart: Heartbeat, claimed: Any) -> None:
    (run,) = claimed(1)
    heart._pool = FakePool([run])  # type: ignore[assignment]
    Job.objects.filter(pk=run.id).update(worker_id="other")
    run.context.progress(50)
    heart._answer(run.context, beat=False)
    assert heart._requests.get_nowait() is None
    heart._pool = FakePool([])  # type: ignore[assignment]
    heart._answer(run.context, beat=True)
    assert heart._requests.empty(), "nobody waits for a run that has ended"


def test_a_second_report_waits_its_second_and_the_newest_counts(
    heart: Heartbeat, claimed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (run,) = claimed(1)
    context = run.context
    heart._pool = FakePool([run])  # type: ignore[assignment]
    for percent in (10, 20, 30):
        context.progress(percent)
        heart._answer(context, beat=False)
    assert JobProgress.objects.get(pk=run.id).percent == 10
    assert heart._later.keys() == {context}
    heart._later[context] = 0.0  # the second is over
    assert heart._serve(60.0), "and the beat is not due for that"
    assert JobProgress.objects.get(pk=run.id).percent == 30
    assert context.take_progress() is None


def test_a_report_that_waits_renews_nothing_by_itself(heart: Heartbeat, claimed: Any) -> None:
    (run,) = claimed(1)
    heart._pool = FakePool([run])  # type: ignore[assignment]
    for percent in (10, 20):
        run.context.progress(percent)
        heart._answer(run.context, beat=False)
    assert not Event.objects.filter(type="job.heartbeat").exists()
    assert Event.objects.filter(type="job.progress").count() == 1


# Context


def test_the_context_of_a_run(claimed: Any) -> None:
    (run,) = claimed(1, meta={"tenant": "x"}, priority=3)
    context = run.context
    assert (context.id, context.type, context.queue, context.attempt, context.max_attempts) == (
        run.id, "part.work", "default", 1, 3,
    )  # fmt: skip
    assert context.meta == {"tenant": "x"}
    assert context.job["priority"] == 3
    assert context.metadata == {}
    assert context.heartbeat() is True
    run.interrupt(Interruption.CANCELLED, force=False)
    assert context.heartbeat() is False
    assert context.progress(1) is False


def test_progress_is_clamped_and_the_worker_is_told_once_until_it_has_looked(claimed: Any) -> None:
    told: list[JobContext] = []

    class Link(NoLink):
        def progress(self, context: JobContext) -> None:
            told.append(context)

    (run,) = claimed(1)
    context = JobContext(run.context.row, Link())
    for percent in (-5, 10, 20, 150):
        context.progress(percent, str(percent))
    assert told == [context]
    assert context.take_progress() == (100.0, "150", None)
    assert context.take_progress() is None
    context.progress(7)
    assert told == [context, context]
    with pytest.raises(ValueError, match="from 0 to 100"):
        context.progress(float("nan"))


def test_progress_has_data_that_later_reports_leave_and_the_handler_may_change(claimed: Any) -> None:
    (run,) = claimed(1)
    context, data = run.context, {"done": [1]}
    context.progress(10, "ten", data=data)
    data["done"].append(2)
    context.progress(20)
    first = context.take_progress()
    assert first == (20.0, "", {"done": [1]})
    context.progress(30, data={})
    context.give_back_progress(first)
    assert context.take_progress() == (30.0, "", {}), "an object without members takes the earlier ones back"
    context.progress(40)
    context.give_back_progress(first)
    assert context.take_progress() == (40.0, "", {"done": [1]}), "what could not be written is not lost"


@pytest.mark.parametrize(
    "data, error, match",
    [
        ({"at": object()}, TypeError, r'data\["at"\] is an object, which is not JSON'),
        ({"text": "x" * 4096}, ValueError, "at most 4096 bytes of JSON, not 4107"),
        ([1], TypeError, "are an object"),
        (json.loads('{"a":' * 40 + "1" + "}" * 40), ValueError, "deeper than 32"),
    ],
)
def test_progress_data_that_http_would_refuse_are_refused_in_the_handler(
    claimed: Any, data: Any, error: type[Exception], match: str
) -> None:
    (run,) = claimed(1)
    with pytest.raises(error, match=match):
        run.context.progress(1, data=data)
    assert run.context.take_progress() is None


def test_the_log_of_a_run_carries_its_job_and_what_the_caller_adds(
    claimed: Any, caplog: pytest.LogCaptureFixture
) -> None:
    (run,) = claimed(1)
    with caplog.at_level(logging.INFO, "django_ojs.jobs"):
        run.context.log.info("half way", extra={"percent": 50})
    record: Any = caplog.records[0]
    assert (record.job_id, record.job_type, record.queue, record.attempt, record.percent) == (
        str(run.id), "part.work", "default", 1, 50,
    )  # fmt: skip


# Deadlines, queues, waking, vitals


def test_deadlines_count_from_the_claim_as_the_server_does(claimed: Any) -> None:
    late, early = claimed(1, timeout=10)[0], claimed(1, timeout=100)[0]
    deadlines = Deadlines(FakePool([late, early]), print)  # type: ignore[arg-type]
    deadlines.run_once(late.claimed + 9.9)
    assert (late.interruption, early.interruption) == (None, None)
    deadlines.run_once(late.claimed + 10.1)
    assert (late.interruption, early.interruption) == (Interruption.TIMEOUT, None)


def test_a_run_ends_with_the_time_of_its_job_as_a_whole(claimed: Any) -> None:
    short, long = claimed(1, timeout=10, total_timeout=10)[0], claimed(1, timeout=10, total_timeout=99)[0]
    assert short.deadline - short.claimed < 10, "it waited for its claim"
    assert long.deadline - long.claimed == pytest.approx(10)


@pytest.mark.parametrize(
    "options, kind, event",
    [({"timeout": 10}, "timeout", "job.timeout"), ({"total_timeout": 10}, "total_timeout", "job.total_timeout")],
)
def test_what_a_worker_stops_is_told_of_as_if_the_server_had(
    frozen_clock: Any, claimed: Any, writer: Writer, options: dict[str, int], kind: str, event: str
) -> None:
    (run,) = claimed(1, **options)
    frozen_clock.advance(seconds=10)
    run.interrupt(Interruption.TIMEOUT, force=False)
    writer.write([(run, run.interrupted(Interruption.TIMEOUT))])
    stored = Job.objects.get(pk=run.id)
    assert stored.state == ("retryable" if kind == "timeout" else "discarded")
    assert [(error["type"], error["limit_seconds"]) for error in stored.errors] == [(kind, 10.0)]
    (told,) = Event.objects.filter(type__in=["job.timeout", "job.total_timeout"])
    assert (told.type, told.data["limit_seconds"], told.data["elapsed_seconds"]) == (event, 10.0, 10.0)


def test_who_cleans_up_is_left_alone_for_the_grace_period(claimed: Any) -> None:
    (run,) = claimed(1, timeout=10, grace_period=60)
    stuck: list[JobRun] = []
    deadlines = Deadlines(FakePool([run]), print, on_stuck=stuck.append)  # type: ignore[arg-type]
    run.enter(lambda: None)
    deadlines.run_once(run.claimed + 10.1)
    assert run.interruption is Interruption.TIMEOUT
    assert run.forced_at is not None
    deadlines.run_once(run.forced_at + 60 + Deadlines.STUCK - 0.1)
    assert stuck == []
    deadlines.run_once(run.forced_at + 60 + Deadlines.STUCK + 0.1)
    assert stuck == [run]


def test_one_that_waits_in_a_row_for_others_is_not_taken_for_stuck(claimed: Any) -> None:
    """Of inline handlers several run one after the other. Else a slow one would cost its process, and all that hold
    jobs there."""
    (run,) = claimed(1, timeout=10)
    run.deadline = run.claimed
    stuck: list[JobRun] = []
    deadlines = Deadlines(FakePool([run]), print, on_stuck=stuck.append)  # type: ignore[arg-type]
    deadlines.run_once(run.claimed + 0.1)
    assert run.interruption is Interruption.TIMEOUT
    deadlines.run_once(time.monotonic() + 1000)
    assert stuck == []
    stopped: list[bool] = []
    run.enter(lambda: stopped.append(True))
    assert (stopped, run.began) == ([True], False), "it ends before its handler begins"
    assert run.forced_at is not None
    deadlines.run_once(run.forced_at + Deadlines.STUCK - 0.1)
    assert stuck == [], "the wait does not count"
    deadlines.run_once(run.forced_at + Deadlines.STUCK + 0.1)
    assert stuck == [run], "what surrounds it does not end"


def test_all_queues_are_those_of_handlers_and_database_each_in_turn_the_first(handlers: Registry, db: None) -> None:
    job("a.a", queue="own")(lambda: None)
    now = dt.datetime.now(dt.UTC)
    Queue.objects.bulk_create([Queue(name=name, created_at=now, updated_at=now) for name in ("email", "zoo")])
    names = QueueNames([], USING)
    looks = [names.current() for _ in range(3)]
    assert {tuple(sorted(look)) for look in looks} == {("email", "own", "zoo")}
    assert {look[0] for look in looks} == {"email", "own", "zoo"}
    assert str(names) == "all"


def test_given_queues_keep_their_order_and_ask_nobody(django_assert_num_queries: Any) -> None:
    names = QueueNames(["b", "a"], USING)
    assert [names.current(), names.current(), names.refresh()] == [["b", "a"]] * 3
    assert str(names) == "b, a"


def test_the_waker_slows_down_while_there_is_nothing_and_wakes_when_told() -> None:
    waker = PollingWaker(shortest=0.001, longest=0.004)
    for found, interval in (
        (True, 0.001),
        (False, 0.0015),
        (False, 0.00225),
        (False, 0.003375),
        (False, 0.004),
        (True, 0.001),
    ):
        waker.wait(found=found)
        assert waker._interval == pytest.approx(interval)
    patient = PollingWaker(longest=60)
    patient.wake()
    patient.wait_for_slot()  # returns at once


def test_vitals() -> None:
    assert processinfo.default_name() != processinfo.default_name()
    assert (processinfo.memory_mb() or 0) > 1
    assert (processinfo._peak_mb() or 0) > 1
    assert processinfo.CPU().percent() >= 0


# Outages


def test_an_outage_is_told_once_at_its_beginning_and_once_at_its_end(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(outage_module, "outage", Outage())
    monkeypatch.setattr(outage_module, "FIRST_PAUSE", 0.0001)
    answers = [OperationalError(2002, "connection refused")] * 4

    def action() -> str:
        if answers:
            raise answers.pop()
        return "done"

    assert persist(action, USING, threading.Event()) == "done"
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == 2
    assert messages[0].startswith("The database cannot be used (")
    assert messages[1].startswith("The database is back after")


def test_an_outage_ends_when_the_worker_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outage_module, "outage", Outage())
    stopping = threading.Event()
    stopping.set()

    def action() -> None:
        raise OperationalError("connection refused")

    with pytest.raises(GaveUp, match="connection refused") as caught:
        persist(action, USING, stopping)
    assert isinstance(caught.value.__cause__, OperationalError)


@pytest.mark.django_db(transaction=True)
def test_one_that_only_reads_leaves_a_server_that_takes_no_writes_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that has nothing to do kept its session with the old server for ever: no job came to it any more."""
    monkeypatch.setattr(database, "CLOSE_EVERY", 0.0)
    read, told = threading.Semaphore(0), threading.Event()
    sessions: list[Any] = []

    def reads() -> None:
        try:
            for _ in range(4):
                persist(lambda: sessions.append(_session(Worker.objects.exists())), USING, threading.Event())
                read.release()
                if len(sessions) == 2:
                    assert told.wait(60)
        finally:
            connections.close_all()

    def writes() -> None:
        with refusing(READ_ONLY):
            Worker.objects.update(asleep=False)

    thread = threading.Thread(target=reads)
    thread.start()
    for _ in range(2):
        assert read.acquire(timeout=60)
    try:
        stopping = threading.Event()
        stopping.set()
        with pytest.raises(GaveUp):
            persist(writes, USING, stopping)
    finally:
        told.set()
        thread.join(60)
    assert [sessions[0] is one for one in sessions] == [True, True, False, False]
    assert sessions[2] is sessions[3]


def _session(asked: object) -> Any:
    return connections[USING].connection


def test_contention_is_no_outage(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    class Deadlock(Exception):
        sqlstate = "40P01"

    deadlock = OperationalError("deadlock detected")
    deadlock.__cause__ = Deadlock()
    assert is_contention(deadlock)
    assert is_contention(OperationalError(1213, "Deadlock found"))
    assert is_contention(OperationalError("database is locked"))
    assert not is_contention(OperationalError("server closed the connection unexpectedly"))
    errors: list[Exception] = [deadlock]

    def action() -> str:
        if errors:
            raise errors.pop()
        return "done"

    monkeypatch.setattr(outage_module, "outage", Outage())  # others may have left one behind
    monkeypatch.setattr(outage_module, "FIRST_PAUSE", 0.0001)
    assert persist(action, USING, threading.Event()) == "done"
    assert not caplog.records


@pytest.mark.parametrize("others", [True, False])
def test_contention_that_lasts_is_logged_once_a_minute_for_all_and_is_an_outage_where_nothing_goes_well(
    others: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """No worker can beat then, and none is to be taken for dead."""

    class Clock:
        now = 1000.0

        def monotonic(self) -> float:
            return self.now

    clock, held = Clock(), Outage()
    told = backoff.Backoff("What is asked", 1.0, 60.0, brief=True, tries=False, logger=outage_module.logger)
    monkeypatch.setattr(outage_module, "outage", held)
    monkeypatch.setattr(outage_module._refusals, "_backoff", told)
    for module in (outage_module, backoff):
        monkeypatch.setattr(module, "time", clock)
    left = iter([OperationalError(1205, "Lock wait timeout exceeded")] * 100)

    def wait(seconds: float) -> None:
        clock.now += 1
        if others:
            held.over(clock.now)

    def action() -> str:
        if (error := next(left, None)) is not None:
            raise error
        return "done"

    stopping: Any = SimpleNamespace(wait=wait)
    assert persist(action, USING, stopping) == "done"
    lines = (
        ["What is asked has waited 10 s for other", "What is asked has waited 70 s for other"]
        if others
        else ["The database cannot be used", "The database could not be used for 60 s", "The database is back"]
    )
    assert [line[: len(begin)] for line, begin in zip(caplog.messages, lines, strict=True)] == lines
    assert held.is_recent == (not others)
    if others:
        left = iter([OperationalError(1205, "Lock wait timeout exceeded")] * 20)
        assert persist(action, USING, stopping) == "done"
        assert len(caplog.messages) == len(lines), "another action has nothing new to say"


# Who serves what


def test_types_that_nobody_serves_are_visible(handlers: Registry, db: None) -> None:
    enqueue_many([("served.type", []), ("orphan.type", []), ("orphan.type", []), ("rare.type", [])])
    assert unserved_types() == {"orphan.type": 2, "rare.type": 1, "served.type": 1}
    register("w", {"job_types": ["served.type"]})
    assert unserved_types() == {"orphan.type": 2, "rare.type": 1}
    register("other-language", {"queues": ["default"]})
    assert unserved_types() == {}, "a worker that does not say may serve any"
    Worker.objects.update(last_seen_at=dt.datetime(2020, 1, 1, tzinfo=dt.UTC))
    assert "served.type" in unserved_types(), "a dead worker serves nothing"


def test_blank_rows_make_contexts() -> None:
    """What a test of a handler needs: a context without a worker."""
    context = JobContext(blank_row(dt.datetime.now(dt.UTC), type="a.b", attempt=1))
    assert context.progress(50)
    assert context.heartbeat()


def test_a_pool_tells_when_the_last_outcome_is_written(claimed: Any) -> None:
    """Else a worker that ends when no job is left would sleep for a second first."""
    told: list[bool] = []
    first, second = claimed(2)
    pool = Pool(2, lambda done: None, lambda: told.append(True))
    try:
        pool._active.update([first, second])
        pool.forget([first, second])
        assert told == []
        pool.tells_when_idle = True
        pool._active.update([first, second])
        pool.forget([first])
        assert told == []
        pool.forget([second])
        assert told == [True]
    finally:
        pool.close()


# Turns


def test_a_turn_goes_to_who_waits_for_it() -> None:
    """Though the thread that gives it back wants it again at once."""
    write_lock, order = FairLock(), list[str]()

    def second() -> None:
        with write_lock:
            order.append("second")

    for _ in range(20):
        thread = threading.Thread(target=second)
        with write_lock:
            thread.start()
            eventually(write_lock.is_wanted)
        with write_lock:
            order.append("first")
        thread.join(60)
    assert order == ["second", "first"] * 20


@pytest.mark.sqlite
def test_claimer_and_writer_take_turns_on_sqlite(claimed: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither finds the write lock taken by the other, for which it would sleep."""
    write_lock = write_lock_for(USING)
    held: list[bool] = []
    (run,) = claimed(1)
    pool = Pool(1, lambda done: None, lambda: None)
    claimer = Claimer(
        "w", ["part.work"], QueueNames(["default"], USING), pool, NoLink(), Lifecycle(),  # type: ignore[arg-type]
        PollingWaker(), threading.Event(), USING, write_lock=write_lock,
    )  # fmt: skip

    def answer(rows: list[Any]) -> list[Any]:
        held.append(write_lock.locked())  # type: ignore[attr-defined]
        return rows

    monkeypatch.setattr("django_ojs.worker.claimer.fetch", lambda *args, **options: answer([]))
    monkeypatch.setattr("django_ojs.worker.writer.ack", lambda *args, **options: answer([None]))
    claimer._claim(1, ["part.work"])
    pool.close()
    Writer("w", USING, lambda runs: None, lambda name: None, write_lock).write([(run, Completed(None))])
    assert held == [True, True]
    assert not write_lock.locked()  # type: ignore[attr-defined]


def test_a_health_file_that_cannot_be_touched_ends_nothing_and_is_told_once_and_at_its_end(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "run"
    file = processinfo.HealthFile(folder / "healthy")
    file._tries.longest = 0.0
    for _ in range(2):
        file._next = 0.0
        file.touch()
    (message,) = caplog.messages
    assert message.startswith("Touching the health file failed (")
    folder.mkdir()
    for _ in range(2):  # it has recovered when it works for a while, which is no time here
        file._next = 0.0
        file.touch()
    assert (folder / "healthy").exists()
    assert len(caplog.messages) == 2
    file.remove()
    file.remove()
    assert not (folder / "healthy").exists()
