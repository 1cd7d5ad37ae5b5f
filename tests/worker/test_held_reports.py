"""A transaction that somebody leaves open holds up the reports about the job that it has locked, and no others.

The writer and the heartbeat are real threads, and the rows are really held; nothing is measured: while the transaction
is open the other outcomes are stored.
"""

from __future__ import annotations

import queue
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from django.db import DataError, OperationalError, connection, transaction

from django_ojs import job
from django_ojs.client.context import NoLink
from django_ojs.client.definition import enqueue_many
from django_ojs.jobs import finish
from django_ojs.jobs.fetch import Fetch, fetch
from django_ojs.jobs.finish import Ack
from django_ojs.models import Event, Job, Workflow
from django_ojs.registry import Registry, registry
from django_ojs.worker import keepalive
from django_ojs.worker.keepalive import Heartbeat
from django_ojs.worker.lifecycle import Lifecycle
from django_ojs.worker.runs import Completed, Failed, JobRun
from django_ojs.worker.writer import Writer, _answered_in_pieces
from tests.operations.test_workflows import create
from tests.waiting import eventually

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(connection.vendor == "sqlite", reason="SQLite has no locked rows: PostgreSQL, MariaDB"),
]
SECONDS = 60.0


class Desk:
    """A writer in its thread, and what it has settled."""

    def __init__(self) -> None:
        self.settled: queue.SimpleQueue[list[JobRun]] = queue.SimpleQueue()
        self.writer = Writer("w", "default", self.settled.put, lambda name: None)
        self.writer.start()

    def next(self, count: int) -> set[JobRun]:
        """The next runs that are settled, so many."""
        found: set[JobRun] = set()
        while len(found) < count:
            found |= set(self.settled.get(timeout=SECONDS))
        return found

    def none_settled(self) -> bool:
        return self.settled.empty()


@pytest.fixture
def desk() -> Iterator[Desk]:
    made = Desk()
    yield made
    made.writer.give_up()
    assert made.writer.stop(SECONDS)


@pytest.fixture
def claimed(handlers: Registry) -> Callable[..., list[JobRun]]:
    @job("part.work")
    def work() -> None: ...

    def claim(count: int) -> list[JobRun]:
        enqueue_many([work.s() for _ in range(count)])
        return runs_of(count)

    return claim


def runs_of(count: int) -> list[JobRun]:
    definition = registry.get("part.work")
    assert definition is not None
    rows = fetch(Fetch(["default"], count=count, worker_id="w", check_worker=False, fallback_visibility_ms=60_000))
    return [JobRun(row, definition, time.monotonic(), NoLink()) for row in rows]


def hold(run: JobRun) -> None:
    """In an open transaction: nobody else may change the job until it ends."""
    assert Job.objects.select_for_update().get(pk=run.id)


def state(run: JobRun) -> str:
    return Job.objects.get(pk=run.id).state


@pytest.mark.parametrize("outcome", [Completed(None), Failed({"message": "no"})], ids=["ack", "fail"])
def test_the_other_outcomes_are_stored_and_this_one_follows(desk: Desk, claimed: Any, outcome: Any) -> None:
    held, *others = claimed(4)
    with transaction.atomic():
        hold(held)
        desk.writer.put([(run, outcome) for run in (held, *others[:2])])
        assert desk.next(2) == set(others[:2])
        desk.writer.put([(others[2], outcome)])  # what ends later does not wait either
        assert desk.next(1) == {others[2]}
        assert desk.none_settled()
    assert desk.next(1) == {held}
    assert len({state(run) for run in (held, *others)} - {"active"}) == 1
    assert desk.writer.completed == (4 if isinstance(outcome, Completed) else 0)


@pytest.mark.postgres  # which stores the others first
def test_an_outage_behind_the_first_outcomes_loses_none_of_the_others(
    desk: Desk, claimed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The members of workflows follow in a transaction of their own. The connection is cut in front of it, once."""
    create(type="chain", name="cut", steps=[{"type": "part.work", "args": []}])
    (member,) = runs_of(1)
    (plain,) = claimed(1)
    cuts: list[int] = []

    def cut_first(*args: Any, **kwargs: Any) -> Any:
        if not cuts:
            with connection.cursor() as cursor:  # of the writer's thread
                cursor.execute("SELECT pg_backend_pid()")
                cuts.append(cursor.fetchone()[0])
            other = connection.copy("other")
            with other.cursor() as cursor:
                cursor.execute("SELECT pg_terminate_backend(%s)", cuts)
            other.close()
        return complete_together(*args, **kwargs)

    complete_together = finish._complete_together
    monkeypatch.setattr(finish, "_complete_together", cut_first)
    desk.writer.put([(plain, Completed(None)), (member, Completed(None))])
    assert desk.next(2) == {plain, member}
    assert cuts
    assert (state(plain), state(member)) == ("completed", "completed")


@pytest.mark.parametrize("error", [OperationalError("cut"), DataError("too large"), ValueError("no such text")])
def test_reports_that_were_not_stored_with_the_others_are_reported_again(error: Exception) -> None:
    reports = [Ack(uuid.uuid4(), None) for _ in range(5)]
    asked: list[list[Ack]] = []

    def submit(some: Sequence[Ack]) -> list[Any]:
        asked.append(list(some))
        if len(asked) == 1:
            return ["row", error, "row", error, "row"]
        return ["late"] * len(some)

    answers = {done.job_id: answer for done, answer in _answered_in_pieces(reports, submit)}
    assert [answers[one.job_id] for one in reports] == ["row", "late", "row", "late", "row"]
    assert asked[1:] == [[reports[1], reports[3]]]


def test_a_held_workflow_keeps_its_own_members_waiting(desk: Desk, claimed: Any) -> None:
    for name in ("held", "free"):
        create(type="chain", name=name, steps=[{"type": "part.work", "args": []}])
    members = {run.context.workflow_id: run for run in runs_of(2)}
    (plain,) = claimed(1)
    held = Workflow.objects.get(name="held")
    with transaction.atomic():
        assert Workflow.objects.select_for_update().get(pk=held.pk)
        desk.writer.put([(run, Completed(None)) for run in (*members.values(), plain)])
        assert desk.next(2) == {plain, *(run for flow, run in members.items() if flow != str(held.pk))}
        assert desk.none_settled()
    assert desk.next(1) == {run for flow, run in members.items() if flow == str(held.pk)}
    assert Workflow.objects.get(name="free").state == "completed"


def test_the_last_progress_of_a_held_job_is_told_before_its_end(desk: Desk, claimed: Any) -> None:
    held, free = claimed(2)
    for run in (held, free):
        run.context.progress(75, "nearly")
    with transaction.atomic():
        hold(held)
        desk.writer.put([(held, Completed(None)), (free, Completed(None))])
        assert desk.next(1) == {free}
    assert desk.next(1) == {held}
    for run in (held, free):
        types = Event.objects.filter(job_id=run.id).order_by("pk").values_list("type", flat=True)
        assert [one for one in types if one in ("job.progress", "job.completed")] == ["job.progress", "job.completed"]


def test_the_second_outcome_of_a_held_job_waits_behind_the_first(desk: Desk, claimed: Any) -> None:
    (held,) = claimed(1)
    with transaction.atomic():
        hold(held)
        desk.writer.put([(held, Failed({"message": "first"}))])
        desk.writer.put([(held, Completed(None))])
        (free,) = claimed(1)
        desk.writer.put([(free, Completed(None))])
        assert desk.next(1) == {free}
    eventually(lambda: state(held) == "retryable", SECONDS)
    error = Job.objects.get(pk=held.id).error
    assert error is not None
    assert error["message"] == "first"


def test_a_writer_that_is_stopped_waits_for_what_is_held(claimed: Any) -> None:
    held, free = claimed(2)
    desk = Desk()
    with transaction.atomic():
        hold(held)
        desk.writer.put([(held, Completed(None)), (free, Completed(None))])
        desk.writer.ask_to_stop()
        assert desk.next(1) == {free}
        assert not desk.writer.stop(0)
    assert desk.writer.stop(SECONDS)
    assert state(held) == "completed"


def test_a_writer_that_may_wait_no_longer_keeps_what_is_held(
    claimed: Any, settings: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings.OJS = {"WORKER_SPOOL": str(tmp_path)}
    (held,) = claimed(1)
    desk = Desk()
    with transaction.atomic():
        hold(held)
        desk.writer.put([(held, Completed('"kept"'))])
        desk.writer.give_up()
        assert desk.writer.stop(SECONDS)
    assert state(held) == "active"
    assert desk.writer.completed == 0
    (kept,) = tmp_path.iterdir()
    assert str(held.id) in kept.read_text()
    assert f"outcomes of 1 job are kept in {kept}, another transaction has locked their jobs" in caplog.text


class Runs:
    """A pool with these runs."""

    def __init__(self, *runs: JobRun) -> None:
        self.runs = runs

    def active(self) -> list[JobRun]:
        return list(self.runs)

    def interrupt(self, runs: Any, reason: Any) -> None:
        assert not runs


@pytest.mark.parametrize("wish", ["heartbeat", "progress"])
def test_the_heartbeat_serves_the_others_and_comes_back_to_a_held_job(
    claimed: Any, wish: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keepalive, "LOCKED_PAUSE", 0.01)
    held, free = claimed(2)
    heart = Heartbeat("w", dict, Runs(held, free), Lifecycle(), "default")  # type: ignore[arg-type]
    heart.start()
    eventually(heart.known.is_set, SECONDS)
    before = {run: Job.objects.get(pk=run.id).visible_until for run in (held, free)}

    def renewed(run: JobRun) -> bool:
        until, known = Job.objects.get(pk=run.id).visible_until, before[run]
        assert until is not None
        assert known is not None
        return until > known

    try:
        with transaction.atomic():
            hold(held)
            for run in (held, free):
                run.context.progress(50) if wish == "progress" else None
                heart.progress(run.context) if wish == "progress" else heart.heartbeat(run.context)
            eventually(lambda: renewed(free), SECONDS)
            assert not renewed(held)
        eventually(lambda: renewed(held), SECONDS)
    finally:
        assert heart.stop(SECONDS)
