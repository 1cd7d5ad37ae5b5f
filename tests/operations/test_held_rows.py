"""A transaction that somebody leaves open holds up the call that needs its rows, and none of the calls beside it.

The callers are threads with connections of their own, the rows are really held, and nothing is measured: while the
transaction is open the others have their answers.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
from django.db import OperationalError, connection, connections, transaction

from django_ojs import clock, lockwaits
from django_ojs.errors import BackendUnavailable, Duplicate, NotFound
from django_ojs.faults import LostRace, is_contention
from django_ojs.groupcommit import LEFT_OUT, CommitGroup
from django_ojs.http.exceptions import to_error
from django_ojs.jobs import fetch as fetching
from django_ojs.jobs import finish, push_group
from django_ojs.jobs.fetch import Fetch, fetch, fetch_with_others
from django_ojs.jobs.finish import Ack, Failure, ack_free, ack_one, fail_free, fail_one
from django_ojs.jobs.idempotency import Answer, KeyedRequest
from django_ojs.jobs.push import push
from django_ojs.jobs.push_group import push_once, push_one
from django_ojs.models import Event, Job, Queue, Worker, Workflow
from django_ojs.queues import configuration
from django_ojs.rules.ids import new_job_id
from django_ojs.workerregistry import heartbeat
from django_ojs.workerregistry.heartbeat import Beat, beat, beat_with_others
from django_ojs.workflows import workflow
from tests.gathering import SECONDS, gathering

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.usefixtures("long_memory"),
    pytest.mark.skipif(connection.vendor == "sqlite", reason="SQLite has no locked rows: PostgreSQL, MariaDB"),
]
LONG = 60.0


@pytest.fixture
def callers() -> Iterator[Callable[..., Future[Any]]]:
    """Starts a call in a thread of its own."""
    with ThreadPoolExecutor(32) as pool:

        def start(act: Callable[..., Any], *args: Any, **given: Any) -> Future[Any]:
            def run() -> Any:
                try:
                    return act(*args, **given)
                finally:
                    connections.close_all()

            return pool.submit(run)

        yield start


def job(**fields: Any) -> dict[str, Any]:
    return {"type": "a.b", "args": [], **fields}


def claimed(count: int, worker_id: str = "w") -> list[uuid.UUID]:
    push([job() for _ in range(count)])
    return [row["id"] for row in fetch(Fetch(["default"], count=count, worker_id=worker_id))]


def hold(job_id: uuid.UUID) -> None:
    """In an open transaction: nobody else may change the job until it ends."""
    assert Job.objects.select_for_update().get(pk=job_id)


def lock_timeout() -> Any:
    """What limits the next statement on this connection."""
    shown = {"postgresql": "SHOW lock_timeout", "mysql": "SELECT @@innodb_lock_wait_timeout, @@max_statement_time"}
    with connection.cursor() as cursor:
        cursor.execute(shown[connection.vendor])
        return cursor.fetchone()


class TestPush:
    @pytest.mark.parametrize("lands", [True, False])
    def test_an_id_that_another_transaction_has_inserted_keeps_its_own_caller_waiting(
        self, lands: bool, callers: Any
    ) -> None:
        push_one(job())
        taken = str(new_job_id())
        with gathering(push_group._plain) as meeting, transaction.atomic():
            push([job(id=taken)])
            leader = meeting.lead(lambda: push_one(job()))
            held = meeting.follow(lambda: push_one(job(id=taken)))
            others = [meeting.follow(lambda: push_one(job())) for _ in range(8)]
            meeting.go.set()
            assert [future.result(SECONDS).status for future in (leader, *others)] == ["created"] * 9
            assert [callers(push_one, job()).result(SECONDS).status for _ in range(8)] == ["created"] * 8
            assert not held.done()
            transaction.set_rollback(not lands)
        if lands:
            assert isinstance(held.exception(LONG), Duplicate)
        else:
            assert held.result(LONG).status == "created"
        assert Job.objects.count() == 19

    def test_so_it_is_with_a_key_and_with_jobs_that_are_decided(self, callers: Any) -> None:
        def keyed(key: str, document: dict[str, Any]) -> Answer:
            operation = KeyedRequest(key, "p", "push", repr(document).encode())
            return push_once(document, operation, lambda pushed: Answer(201, pushed.status, {}))[0]

        def unique(number: int) -> dict[str, Any]:
            return job(args=[number], unique={"keys": ["type", "args"]})

        push_one(unique(0))
        taken = str(new_job_id())
        with (
            gathering(push_group._plain_keyed) as meeting,
            gathering(push_group._deciding) as deciding,
            transaction.atomic(),
        ):
            push([job(id=taken)])
            leaders = [meeting.lead(lambda: keyed("0", job())), deciding.lead(lambda: push_one(unique(1)))]
            held = [meeting.follow(lambda: keyed("1", job(id=taken)))]
            held += [deciding.follow(lambda: push_one({**unique(2), "id": taken}))]
            others = [meeting.follow(lambda: keyed("2", job())), deciding.follow(lambda: push_one(unique(3)))]
            meeting.go.set()
            deciding.go.set()
            answers = [future.result(SECONDS) for future in (*leaders, *others)]
            assert [getattr(one, "text", None) or one.status for one in answers] == ["created"] * 4
            assert not any(future.done() for future in held)
        for future in held:
            assert isinstance(future.exception(LONG), Duplicate)

    def test_one_that_is_never_let_go_is_answered_as_busy(self, monkeypatch: pytest.MonkeyPatch, callers: Any) -> None:
        push_one(job())
        taken = str(new_job_id())
        with transaction.atomic():
            push([job(id=taken)])
            error = callers(push_one, job(id=taken)).exception(LONG)
            assert isinstance(error, OperationalError)
            assert is_contention(error)
            answer = to_error(error)
            assert isinstance(answer, BackendUnavailable)
            assert (answer.status, answer.retry_after) == (503, 1)
            assert "holds what this call needs" in answer.message
        assert isinstance(callers(push_one, job(id=taken)).exception(LONG), Duplicate)

    def test_a_queue_that_another_transaction_makes_keeps_no_push_waiting(self, callers: Any) -> None:
        now = clock.now("default")
        with transaction.atomic():
            Queue.objects.create(name="fresh", created_at=now, updated_at=now)
            pushed = [callers(push_one, job(queue="fresh")) for _ in range(4)]
            assert [future.result(SECONDS).status for future in pushed] == ["created"] * 4
        assert configuration.restore() == []


class TestReports:
    """ACK and FAIL: a batch passes by the jobs that it cannot have, and each of their callers waits by itself."""

    def answers(self, group: CommitGroup[Any, Any], call: Callable[[uuid.UUID], Any]) -> list[Any]:
        first, second, third, held = claimed(4)
        with gathering(group) as meeting:
            with transaction.atomic():
                hold(held)
                futures = [meeting.lead(lambda: call(first))]
                futures += [meeting.follow(lambda one=one: call(one)) for one in (held, second, third)]
                meeting.go.set()
                found = [futures[n].result(SECONDS) for n in (0, 2, 3)]
                assert not futures[1].done()
                assert len(meeting.batches[1]) == 3
                # The others of the batch did not go alone.
                assert [len(batch) for batch in meeting.batches[2:]] in ([], [1])
            return [*found, futures[1].result(LONG)]

    def test_ack(self) -> None:
        found = self.answers(finish._acks, lambda one: ack_one(Ack(one)))
        assert [row["state"] for row in found] == ["completed"] * 4
        assert Event.objects.filter(type="job.completed").count() == 4

    def test_fail(self) -> None:
        found = self.answers(finish._failures, lambda one: fail_one(Failure(one, {"message": "no"})))
        assert [row["state"] for row in found] == ["retryable"] * 4
        assert Event.objects.filter(type="job.failed").count() == 4

    def test_a_workflow_that_is_held_keeps_its_own_members_waiting(self) -> None:
        (plain,) = claimed(1)
        steps = [{"type": "a.b", "args": []}, {"type": "a.c", "args": []}]
        workflow.create({"type": "chain", "name": "c", "steps": steps})
        (member,) = [row["id"] for row in fetch(Fetch(["default"], worker_id="w"))]
        (other,) = claimed(1)
        with gathering(finish._acks) as meeting, transaction.atomic():
            assert Workflow.objects.select_for_update().get()
            leader = meeting.lead(lambda: ack_one(Ack(plain)))
            held = meeting.follow(lambda: ack_one(Ack(member)))
            free = meeting.follow(lambda: ack_one(Ack(other)))
            meeting.go.set()
            assert [future.result(SECONDS)["state"] for future in (leader, free)] == ["completed"] * 2
            assert not held.done()
            transaction.set_rollback(True)
        assert held.result(LONG)["state"] == "completed"
        assert Job.objects.filter(type="a.c").count() == 1

    @pytest.mark.parametrize("report", ["ack", "fail"])
    def test_one_that_is_never_let_go_is_answered_as_busy(self, report: str, callers: Any) -> None:
        (held,) = claimed(1)
        act: Any = (
            (lambda: ack_one(Ack(held))) if report == "ack" else lambda: fail_one(Failure(held, {"message": "m"}))
        )
        with transaction.atomic():
            hold(held)
            error = callers(act).exception(LONG)
            assert isinstance(error, OperationalError)
            assert is_contention(error)
        assert Job.objects.get().state == "active"

    def test_a_worker_that_reports_many_stores_those_that_it_can(self, callers: Any) -> None:
        one, held, two = claimed(3)
        gone = uuid.uuid4()
        with transaction.atomic():
            hold(held)
            done = callers(ack_free, [Ack(one), Ack(held), Ack(two, None, "foreign"), Ack(gone)]).result(SECONDS)
            failed = callers(fail_free, [Failure(held, {"message": "m"}), Failure(two, {"message": "m"}),
                                         Failure(gone, {"message": "m"})]).result(SECONDS)  # fmt: skip
        assert done[0]["state"] == "completed"
        assert (done[1], type(done[3])) == (LEFT_OUT, NotFound)
        assert done[2].details["reason"] == "not_claimant"
        assert (failed[0], failed[1]["state"], type(failed[2])) == (LEFT_OUT, "retryable", NotFound)


class TestBeat:
    def test_a_worker_renews_its_other_jobs_and_has_lost_none(self, callers: Any) -> None:
        one, held, ended = claimed(3)
        ack_one(Ack(ended))
        for act in (beat, beat_with_others):
            with transaction.atomic():
                hold(held)
                answer = callers(act, Beat("w", [one, held, ended])).result(SECONDS)
            assert (answer.extended, answer.lost) == ([one], [ended])
        assert sorted(beat(Beat("w", [one, held])).extended) == sorted([one, held])

    def test_a_worker_whose_row_is_held_keeps_itself_waiting(self) -> None:
        for name in ("a", "b", "c"):
            beat(Beat(name))
        with gathering(heartbeat._beats) as meeting, transaction.atomic():
            assert Worker.objects.select_for_update().get(pk="b")
            leader = meeting.lead(lambda: beat_with_others(Beat("a")))
            held = meeting.follow(lambda: beat_with_others(Beat("b")))
            free = meeting.follow(lambda: beat_with_others(Beat("c")))
            meeting.go.set()
            assert [future.result(SECONDS).state for future in (leader, free)] == ["running"] * 2
            assert not held.done()
        assert held.result(LONG).state == "running"


class TestFetch:
    def test_a_worker_whose_row_is_held_keeps_itself_waiting(self) -> None:
        push([job() for _ in range(3)])
        for name in ("a", "b", "c"):
            fetch(Fetch(["nothing"], worker_id=name))
            beat(Beat(name))
        Worker.objects.update(last_seen_at=clock.now("default") - heartbeat.dt.timedelta(hours=1))  # to be noted again
        with gathering(fetching._fetches) as meeting, transaction.atomic():
            assert Worker.objects.select_for_update().get(pk="b")
            leader = meeting.lead(lambda: fetch_with_others(Fetch(("default",), worker_id="a")))
            held = meeting.follow(lambda: fetch_with_others(Fetch(("default",), worker_id="b")))
            free = meeting.follow(lambda: fetch_with_others(Fetch(("default",), worker_id="c")))
            meeting.go.set()
            assert [len(future.result(SECONDS)) for future in (leader, free)] == [1, 1]
            assert not held.done()
        assert len(held.result(LONG)) == 1


class TestLeader:
    """A leader that hangs alone: those behind it are led by one of them, together."""

    CALLS: Sequence[tuple[CommitGroup[Any, Any], Callable[[uuid.UUID], Any]]] = (
        (finish._acks, lambda one: ack_one(Ack(one))),
        (finish._failures, lambda one: fail_one(Failure(one, {"message": "no"}))),
        (heartbeat._beats, lambda one: beat_with_others(Beat("w", [one]))),
    )

    @pytest.mark.parametrize("group, call", CALLS, ids=["ack", "fail", "beat"])
    def test_the_calls_behind_a_held_row_are_one_batch(self, group: Any, call: Any) -> None:
        held, *others = claimed(5)
        with gathering(group) as meeting:
            group._patience = 2.0  # seconds in which the others come
            with transaction.atomic():
                hold(held)
                meeting.go.set()
                first = meeting.lead(lambda: call(held))
                behind = [meeting.follow(lambda one=one: call(one)) for one in others]
                for future in behind:
                    future.result(SECONDS)
                assert not first.done()
                assert max(map(len, meeting.batches)) == 4  # the others are tries of the first by itself
            first.result(LONG)
        assert Job.objects.filter(pk=held).exclude(state="active").exists() or group is heartbeat._beats


class TestLimit:
    def test_it_ends_with_the_call(self) -> None:
        before = lock_timeout()
        push_one(job())
        push_one(job(unique={"keys": ["type"]}))
        (row,) = fetch_with_others(Fetch(("default",), worker_id="w"))
        fail_one(Failure(row["id"], {"message": "no"}))
        beat_with_others(Beat("w", [row["id"], uuid.uuid4()]))
        (other,) = claimed(1)
        ack_one(Ack(other))
        assert lock_timeout() == before
        assert lockwaits.lock_timeout("default") is None

    def test_it_does_not_reach_the_transaction_of_the_caller(self) -> None:
        push_one(job())
        (row,) = fetch(Fetch(["default"]))
        before = lock_timeout()
        with transaction.atomic():
            push_one(job())
            ack_one(Ack(row["id"]))
            beat_with_others(Beat("w"))
            assert lock_timeout() == before

    def test_many_that_wait_by_themselves_leave_connections_for_others(self, callers: Any) -> None:
        """The first few may wait for long; those beside them are soon answered as busy."""
        held = claimed(12)
        with transaction.atomic():
            list(Job.objects.select_for_update())
            reports = [callers(ack_one, Ack(one)) for one in held]
            for future in reports:
                assert is_contention(future.exception(LONG))
        assert Job.objects.filter(state="active").count() == 12

    @pytest.mark.mariadb
    def test_the_time_of_a_statement_is_a_lost_race(self) -> None:
        (held,) = claimed(1)
        free = threading.Event()

        def wait() -> None:
            try:
                with lockwaits.LockTimeout(lockwaits.SHARED, "default"), transaction.atomic(), pytest.raises(LostRace):
                    hold(held)
            finally:
                connections.close_all()
                free.set()

        with transaction.atomic():
            hold(held)
            threading.Thread(target=wait).start()
            assert free.wait(LONG)

    @pytest.mark.mariadb
    def test_a_statement_that_brings_much_has_the_time_for_it(self) -> None:
        """The limit stands for a wait: forty failures with long histories of errors take a busy server longer."""
        (held,) = claimed(1)
        limits: list[str] = []

        def note(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
            limits.append(sql.partition(" FOR ")[0])
            return execute(sql, params, many, context)

        with lockwaits.LockTimeout(lockwaits.SHARED, "default"), connection.execute_wrapper(note):
            for size in (0, 2_000_000):
                Job.objects.filter(pk=held).update(result="x" * size)
        assert limits == [f"SET STATEMENT max_statement_time={seconds}" for seconds in ("0.250", "2.250")]
