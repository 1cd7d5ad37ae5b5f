"""FETCH, ACK and FAIL of callers that wait at the same moment: one operation, and for each its own rows or refusal."""

from __future__ import annotations

import datetime as dt
import threading
import uuid
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from django.db import DatabaseError, IntegrityError, OperationalError, connection, transaction
from django.test import override_settings
from django.test.utils import CaptureQueriesContext

from django_ojs import clock
from django_ojs.errors import InvalidRequest, InvalidStateTransition, NotFound, ResultTooLarge
from django_ojs.groupcommit import LEFT_OUT
from django_ojs.jobs import fetch as fetching
from django_ojs.jobs import finish
from django_ojs.jobs.cancel import cancel_one
from django_ojs.jobs.fetch import Fetch, fetch, fetch_each, fetch_with_others
from django_ojs.jobs.finish import Ack, Failure, ack, ack_one, fail, fail_one
from django_ojs.jobs.push import push
from django_ojs.lifecycle.ended import jobs_ended
from django_ojs.lifecycle.transitions import in_turns
from django_ojs.models import Event, Job, Worker
from django_ojs.queues import configuration, maintenance
from django_ojs.store import store_of
from django_ojs.workerregistry import heartbeat
from django_ojs.workerregistry.heartbeat import Beat, beat, beat_with_others
from django_ojs.workerregistry.registration import NameInUse, direct
from django_ojs.workflows import workflow
from tests.gathering import SECONDS, gathering

pytestmark = pytest.mark.django_db(transaction=True)


def jobs(count: int, **fields: Any) -> list[uuid.UUID]:
    documents = [{"type": "a.b", "args": [number], **fields} for number in range(count)]
    return [each.row["id"] for each in push(documents) if each.row is not None]


def two_links() -> None:
    workflow.create({"type": "chain", "name": "c", "steps": [{"type": "a.b", "args": []}, {"type": "a.c", "args": []}]})


def each(fetches: Sequence[Fetch]) -> list[list[uuid.UUID]]:
    found = fetch_each(fetches, using="default")
    return [[row["id"] for row in rows] for rows in found if isinstance(rows, list)]


def asking(count: int, **fields: Any) -> list[Fetch]:
    return [Fetch(("default",), worker_id=f"w{number}", **fields) for number in range(count)]


class TestFetch:
    def test_workers_that_ask_together_get_jobs_of_their_own_in_the_order_of_their_calls(self) -> None:
        made = jobs(21)
        with gathering(fetching._fetches) as meeting:
            done = meeting.together(*(lambda one=one: fetch_with_others(one) for one in asking(20)))
            found = [future.result() for future in done]
            assert [len(batch) for batch in meeting.batches] == [1, 19]
        assert [row["id"] for rows in found for row in rows] == made[:20]
        assert [rows[0]["worker_id"] for rows in found] == [f"w{number}" for number in range(20)]
        stored = dict(Job.objects.filter(state="active").values_list("pk", "worker_id"))
        assert stored == {job: f"w{number}" for number, job in enumerate(made[:20])}
        assert Event.objects.filter(type="job.started").count() == 20
        assert Worker.objects.count() == 20

    def test_each_gets_at_most_what_it_asks_for_and_the_first_is_served_first(self) -> None:
        made = jobs(6)
        fetches = [Fetch(("default",), count, f"w{count}") for count in (2, 3, 10, 1)]
        assert each(fetches) == [made[:2], made[2:5], made[5:], []]

    def test_priority_and_queues_come_in_their_order(self) -> None:
        low, high = jobs(2, queue="a"), jobs(1, queue="a", priority=9)
        other = jobs(2, queue="b")
        fetches = [Fetch(("a", "b"), 2, f"w{number}") for number in range(3)]
        assert each(fetches) == [[*high, low[0]], [low[1], other[0]], [other[1]]]

    def test_each_has_its_own_reservation(self) -> None:
        configuration.configure("default", {"visibility_timeout": 50})
        jobs(3)
        jobs(1, visibility_timeout=70)
        begun = clock.now("default")
        fetches = [Fetch(("default",), 1, f"w{number}", ms) for number, ms in enumerate((None, 9000, None, None))]
        rows = [rows[0] for rows in fetch_each(fetches, using="default") if isinstance(rows, list)]
        ended = clock.now("default")
        assert [row["lease_ms"] for row in rows] == [50_000, 9_000, 50_000, 70_000]
        for row in rows:
            lease = dt.timedelta(milliseconds=row["lease_ms"])
            assert begun - dt.timedelta(milliseconds=1) <= row["visible_until"] - lease <= ended
            assert row["attempt"] == 1

    def test_one_worker_may_ask_twice(self) -> None:
        made = jobs(3)
        assert each([Fetch(("default",), 1, "w"), Fetch(("default",), 2, "w")]) == [made[:1], made[1:]]

    def test_a_quiet_worker_gets_nothing_and_takes_nothing_from_the_others(self) -> None:
        made = jobs(2)
        beat(Beat("w1"))
        direct("w1", "quiet")
        assert each(asking(3)) == [made[:1], [], made[1:]]

    def test_other_queues_and_other_types_are_claims_of_their_own(self) -> None:
        (a,), (b,), (mail,) = jobs(1, queue="a"), jobs(1, queue="b"), jobs(1, queue="b", type="mail.send", priority=-1)
        fetches = [
            Fetch(("b",), 1, "w1", types=("mail.*",)), Fetch(("a", "b"), 1, "w2"), Fetch(("b",), 1, "w3"),
            Fetch(("nowhere",), 1, "w4"),
        ]  # fmt: skip
        assert each(fetches) == [[mail], [a], [b], []]

    def test_a_paused_queue_and_maintenance_close_it_to_all(self) -> None:
        open_, _ = jobs(1), jobs(2, queue="paused")
        configuration.pause("paused")
        fetches = [Fetch(("paused", "default"), 1, f"w{number}") for number in range(2)]
        assert each(fetches) == [open_, []]
        jobs(1)
        maintenance.start()
        assert each(fetches) == [[], []]

    def test_a_limit_holds_for_all_together(self) -> None:
        jobs(5, rate_limit={"key": "k", "concurrency": 2})
        found = each(asking(4))
        assert [len(rows) for rows in found] == [1, 1, 0, 0]
        assert Job.objects.filter(state="active").count() == 2

    def test_what_is_due_is_promoted_for_all(self, frozen_clock: Any) -> None:
        made = jobs(3, options={"delay_until": "+PT5S"})
        frozen_clock.advance(seconds=6)
        assert {job for rows in each(asking(3)) for job in rows} == set(made)

    def test_an_error_of_one_claim_costs_the_other_no_jobs(self, monkeypatch: pytest.MonkeyPatch) -> None:
        (a,) = jobs(1, queue="a")
        claim = store_of("default").claim

        def broken(claim_: Any, *args: Any, **given: Any) -> Any:
            if "b" in claim_.queues:
                raise DatabaseError("no")
            return claim(claim_, *args, **given)

        jobs(1, queue="b")
        monkeypatch.setattr(store_of("default"), "claim", broken)
        found = fetch_each([Fetch(("a",), 1, "w1"), Fetch(("b",), 1, "w2")], using="default")
        assert [row["id"] for row in found[0]] == [a]  # type: ignore[union-attr]
        assert isinstance(found[1], DatabaseError)
        with pytest.raises(DatabaseError):
            fetch_each([Fetch(("b",), 1, "w2"), Fetch(("a",), 1, "w1")], using="default")

    def test_members_of_a_workflow_learn_of_the_jobs_before_them(self) -> None:
        two_links()
        (first,) = fetch(Fetch(["default"], worker_id="w0"))
        ack_one(Ack(first["id"], '"yes"'))
        second, none = fetch_each(asking(2), using="default")
        assert [row["lineage"]["parent_results"] for row in second] == [["yes"]]  # type: ignore[union-attr]
        assert none == []


def claimed(count: int, worker_id: str = "w") -> list[uuid.UUID]:
    jobs(count)
    return [row["id"] for row in fetch(Fetch(["default"], count=count, worker_id=worker_id))]


@pytest.fixture
def told() -> Callable[[uuid.UUID], list[str]]:
    return lambda job: list(Event.objects.filter(job_id=job).order_by("id").values_list("type", flat=True))


class TestAck:
    def test_each_caller_has_its_own_answer(self, told: Any) -> None:
        first, good, foreign, late, large, twice = claimed(6)
        two_links()
        (member,) = fetch(Fetch(["default"], worker_id="w"))
        ack_one(Ack(late))
        unknown = uuid.uuid4()
        calls = [
            Ack(first, "1"), Ack(good, "2", "w", 1), Ack(foreign, "3", "another"), Ack(late, "4"), Ack(unknown, "5"),
            Ack(large, '"' + "x" * 999 + '"'), Ack(twice, "6", "another"), Ack(twice, "7"), Ack(twice, "8"),
            Ack(member["id"], "9"),
        ]  # fmt: skip
        with override_settings(OJS={"MAX_RESULT_BYTES": 500}), gathering(finish._acks) as meeting:
            done = meeting.together(*(lambda call=call: ack_one(call) for call in calls))
            assert len(meeting.batches) == 2
        found = [future.exception() or future.result() for future in done]
        kinds = [type(one) for one in found]
        assert kinds == [
            dict, dict, InvalidStateTransition, InvalidStateTransition, NotFound, ResultTooLarge,
            InvalidStateTransition, dict, InvalidStateTransition, dict,
        ]  # fmt: skip
        assert [(row["id"], row["result"]) for row in found if isinstance(row, dict)] == [
            (first, "1"), (good, "2"), (twice, "7"), (member["id"], "9"),
        ]  # fmt: skip
        assert found[2].details["current_state"] == "active"
        assert found[3].details["job_id"] == str(late)
        assert found[6].details["current_state"] == "active"
        assert found[8].details["current_state"] == "completed"
        assert dict(Job.objects.values_list("pk", "state")).items() >= {foreign: "active", large: "active"}.items()
        assert told(twice) == ["job.enqueued", "job.started", "job.completed"]
        (successor,) = fetch(Fetch(["default"], worker_id="w"))
        assert successor["type"] == "a.c"

    def test_what_goes_wrong_with_a_workflow_costs_the_others_nothing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        plain = claimed(1)
        two_links()
        (member,) = fetch(Fetch(["default"], worker_id="w"))

        def broken(rows: Sequence[Any], *args: Any) -> None:
            if any(row["workflow_id"] for row in rows):
                raise IntegrityError("no")

        monkeypatch.setattr(jobs_ended, "subscribers", [broken])
        acks = [Ack(*plain), Ack(member["id"])]
        if store_of("default").single_statements:
            done, error = finish._ack_each(acks, using="default")
            assert done["id"] == plain[0]  # type: ignore[index]
            assert error is LEFT_OUT  # its caller comes again with it, and meets the error
        with pytest.raises(DatabaseError):
            finish._ack_each(acks[1:], using="default")
        assert Job.objects.get(pk=member["id"]).state == "active"


class TestFail:
    def test_each_caller_has_its_own_answer(self, told: Any) -> None:
        first, good, foreign, back, bad, twice = claimed(6)
        calls = [
            Failure(first, {"message": "no"}), Failure(good, {"message": "no"}, "w", 1),
            Failure(foreign, {"message": "no"}, "another"), Failure(back, requeue=True),
            Failure(bad, {"message": 5}), Failure(uuid.uuid4(), {"message": "no"}),
            Failure(twice, {"message": "first"}), Failure(twice, {"message": "second"}),
        ]  # fmt: skip
        with gathering(finish._failures) as meeting:
            malformed = meeting.start(lambda: fail_one(calls[4]))  # it joins no batch
            assert isinstance(malformed.exception(60), InvalidRequest)
            done = meeting.together(*(lambda call=call: fail_one(call) for call in calls if call.job_id != bad))
            assert len(meeting.batches) == 2
        found = [future.exception() or future.result() for future in done]
        assert [type(one) for one in found] == [
            dict, dict, InvalidStateTransition, dict, NotFound, dict, InvalidStateTransition,
        ]  # fmt: skip
        assert [row["state"] for row in found if isinstance(row, dict)] == [
            "retryable", "retryable", "available", "retryable",
        ]  # fmt: skip
        assert Job.objects.get(pk=bad).state == "active"
        assert told(twice) == ["job.enqueued", "job.started", "job.failed", "job.retrying"]

    def test_a_list_with_a_malformed_error_changes_nothing(self) -> None:
        good, bad = claimed(2)
        with pytest.raises(InvalidRequest):
            fail([Failure(good, {"message": "no"}), Failure(bad, {"message": 5})])
        assert set(Job.objects.values_list("state", flat=True)) == {"active"}


class TestBeat:
    def test_each_worker_has_its_own_answer(self) -> None:
        mine, yours, ended = claimed(1, "w1"), claimed(1, "w2"), claimed(1, "w1")
        (anyones,) = claimed(1, "")
        cancel_one(*ended)
        direct("w2", "quiet")
        beat(Beat("ours", incarnation="1"))
        unknown = uuid.uuid4()
        calls = [
            Beat("w0"), Beat("w1", [*mine, *yours, *ended, unknown, anyones], 7, 90_000),
            Beat("w2", [*yours, anyones], visibility_ms=70_000), Beat("ours", incarnation="2"),
            Beat("new", state="quiet"), Beat("w1", state="terminate"),
        ]  # fmt: skip
        with gathering(heartbeat._beats) as meeting:
            done = meeting.together(*(lambda call=call: beat_with_others(call) for call in calls))
            assert len(meeting.batches) == 2
        found = [future.exception() or future.result() for future in done]
        assert isinstance(found[3], NameInUse)
        answers = [one for one in found if isinstance(one, heartbeat.BeatAnswer)]
        assert [one.state for one in answers] == ["running", "running", "quiet", "quiet", "terminate"]
        assert answers[1].extended == sorted([*mine, anyones])
        assert (answers[1].cancelled, answers[1].lost) == (ended, [*yours, unknown])
        assert answers[2].extended == sorted([*yours, anyones])
        left = {job.pk: (job.visible_until - clock.now("default")).total_seconds() for job in Job.objects.all()[:9]
                if job.visible_until}  # fmt: skip
        assert 80 < left[mine[0]] < 91
        assert 60 < left[yours[0]] < 71
        assert 60 < left[anyones] < 71  # the later of the two
        workers = {worker.pk: worker for worker in Worker.objects.all()}
        assert workers["w1"].state == "terminate"
        assert workers["new"].state == "quiet"
        assert workers["ours"].incarnation == "1"
        events = list(Event.objects.filter(type="worker.heartbeat").values_list("subject", flat=True))
        assert sorted(events) == ["new", "ours", "w0", "w1", "w1", "w2"]


@pytest.mark.postgres
class TestLocked:
    """A job whose row another transaction holds keeps its own caller waiting, and none that came beside it."""

    def held_back(self, group: Any, call: Callable[[uuid.UUID], Any], monkeypatch: pytest.MonkeyPatch) -> list[Any]:
        """What three callers get. The job of the last is locked until the others have been answered."""
        first, second, locked = claimed(3)
        alone = threading.Event()
        execute_alone = group._by_itself

        def announced(item: Any, *, using: str) -> Any:
            if alone_for(item):
                alone.set()
            return execute_alone(item, using=using)

        def alone_for(item: Any) -> bool:
            return locked in (getattr(item, "job_id", None), *getattr(item, "active", ()))

        with gathering(group) as meeting:
            monkeypatch.setattr(group, "_by_itself", announced)
            with transaction.atomic():
                Job.objects.select_for_update().get(pk=locked)
                futures = [meeting.lead(lambda: call(first))]
                futures += [meeting.follow(lambda job=job: call(job)) for job in (second, locked)]
                meeting.go.set()
                found = [future.result(SECONDS) for future in futures[:2]]
                assert alone.wait(SECONDS)
                assert not futures[2].done()
            return [*found, futures[2].result(SECONDS)]

    def test_ack(self, monkeypatch: pytest.MonkeyPatch) -> None:
        found = self.held_back(finish._acks, lambda job: ack_one(Ack(job)), monkeypatch)
        assert [row["state"] for row in found] == ["completed"] * 3

    def test_fail(self, monkeypatch: pytest.MonkeyPatch) -> None:
        found = self.held_back(finish._failures, lambda job: fail_one(Failure(job, {"message": "no"})), monkeypatch)
        assert [row["state"] for row in found] == ["retryable"] * 3

    def test_beat(self, monkeypatch: pytest.MonkeyPatch) -> None:
        names = iter(["w1", "w2", "w"])
        for worker_id in ("w1", "w2", "w"):
            beat(Beat(worker_id))
        found = self.held_back(
            heartbeat._beats, lambda job: beat_with_others(Beat(next(names), [job])), monkeypatch
        )  # fmt: skip
        assert [len(answer.extended) for answer in found] == [0, 0, 1]


def test_a_race_that_is_lost_in_a_later_round_is_for_the_caller_to_run_again() -> None:
    rounds: list[list[str]] = []

    def act(reports: Sequence[str]) -> list[str]:
        rounds.append(list(reports))
        if len(rounds) > 1:
            raise OperationalError("database is locked")
        return [report.upper() for report in reports]

    assert in_turns(["a", "b", "a"], act, about=lambda report: report) == ["A", "B", LEFT_OUT]
    assert rounds == [["a", "b"], ["a"]]


@pytest.mark.postgres
def test_acks_of_several_jobs_in_the_callers_transaction_lock_them_in_one_order() -> None:
    """Two callers that pass by locked jobs, and come back for them with locks in hand, would wait for each other."""
    ids = claimed(2)
    with transaction.atomic(), CaptureQueriesContext(connection) as captured:
        assert len(ack([Ack(job_id) for job_id in ids])) == 2
    assert not any("SKIP LOCKED" in query["sql"] for query in captured)
    assert Job.objects.filter(state="completed").count() == 2
