"""Pushes of many callers at once: one insert for all, and to each what became of its own."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from typing import Any

import pytest
from django.db import DataError, OperationalError, connection, connections, transaction
from django.test.utils import CaptureQueriesContext

from django_ojs.errors import BackendUnavailable, Duplicate, InvalidPayload, JobTypeNotAllowed, QueueFull
from django_ojs.jobs import push_group
from django_ojs.jobs.candidates import Pushed
from django_ojs.jobs.push import push
from django_ojs.jobs.push_group import push_one
from django_ojs.models import Event, Job
from django_ojs.queues import configuration
from django_ojs.rules.ids import new_job_id
from django_ojs.store import store_of
from django_ojs.store.orm import Store
from tests.gathering import SECONDS, Gathering, gathering
from tests.middlewares import added

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("long_memory")]


def job(token: int, **more: Any) -> dict[str, Any]:
    return {"type": "a.b", "args": [token], **more}


def unique(token: int, key: int, on_conflict: str = "reject") -> dict[str, Any]:
    policy = {"keys": ["queue", "type", "meta"], "meta_keys": ["key"], "on_conflict": on_conflict}
    return job(token, meta={"key": key}, unique=policy)


@pytest.fixture
def plain() -> Iterator[Gathering]:
    with gathering(push_group._plain) as meeting:
        yield meeting


@pytest.fixture
def deciding() -> Iterator[Gathering]:
    with gathering(push_group._deciding) as meeting:
        yield meeting


def pushed_together(meeting: Gathering, *documents: Any) -> list[Future[Pushed]]:
    """What became of these, which are one batch, behind a first job of another caller."""
    assert push_one(job(-2)).status == "created"  # the queue is there
    meeting.batches.clear()
    first, *others = meeting.together(
        lambda: push_one(_leader(meeting)),
        *(lambda document=document: push_one(document) for document in documents),
    )
    assert first.result().status == "created"
    return others


def _leader(meeting: Gathering) -> dict[str, Any]:
    return unique(-1, -1) if meeting.group is push_group._deciding else job(-1)


def token(done: Future[Pushed]) -> int:
    row = done.result().row
    assert row is not None
    found: int = Job.objects.get(pk=row["id"]).args[0]
    assert row["args"] == f"[{found}]"
    return found


def test_the_jobs_of_callers_that_wait_are_one_insert_and_each_gets_its_own(plain: Gathering) -> None:
    done = pushed_together(plain, *(job(n) for n in range(64)))
    assert [token(future) for future in done] == list(range(64))
    assert [len(batch) for batch in plain.batches] == [1, 64]
    assert Job.objects.count() == 66
    assert Event.objects.filter(type="job.enqueued").count() == 66


def test_they_are_first_in_first_out(plain: Gathering) -> None:
    pushed_together(plain, *(job(n) for n in range(20)))
    assert [row.args[0] for row in Job.objects.order_by("enqueued_at")] == [-2, -1, *range(20)]


def test_a_faulty_document_does_not_come_so_far(plain: Gathering) -> None:
    assert push_one(job(-2))
    leader = plain.lead(lambda: push_one(job(0)))
    for faulty in ({"type": "a.b"}, {"type": "A B", "args": []}, [], None, {**job(1), "queue": "Not A Queue"}):
        with pytest.raises(InvalidPayload):
            plain.start(lambda faulty=faulty: push_one(faulty)).result(SECONDS)
    good = plain.follow(lambda: push_one(job(2)))
    plain.go.set()
    assert (token(leader), token(good)) == (0, 2)


def test_a_taken_id_is_refused_and_the_others_are_stored(plain: Gathering) -> None:
    taken = push([job(1)])[0].row
    assert taken is not None
    named = {"id": str(new_job_id())}
    before, refused, after, own = pushed_together(
        plain, job(10), job(11, id=str(taken["id"])), job(12), job(13, **named)
    )
    assert [token(before), token(after), token(own)] == [10, 12, 13]
    with pytest.raises(Duplicate) as caught:
        refused.result()
    assert caught.value.details == {
        "job_id": str(taken["id"]), "existing_job_id": str(taken["id"]),
        "existing_job_state": "available", "existing_state": "available",
    }  # fmt: skip
    assert [len(batch) for batch in plain.batches] == [1, 4]  # none had to go alone


def test_of_two_that_share_an_id_one_is_stored(plain: Gathering) -> None:
    same = str(new_job_id())
    one, two, other = pushed_together(plain, job(1, id=same), job(2, id=same), job(3))
    assert (token(one), token(other)) == (1, 3)
    with pytest.raises(Duplicate) as caught:
        two.result()
    assert caught.value.details["existing_job_state"] == "available"


@pytest.fixture
def dropping(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A middleware that drops the jobs with an odd token, and notes in which thread it met each."""

    def odd(document: Mapping[str, Any], proceed: Any) -> Any:
        return None if document["args"][0] % 2 else proceed(document)

    with added(odd):
        yield


def test_the_middleware_drops_for_its_own_caller(plain: Gathering, dropping: None) -> None:
    push_one(job(-2))
    leader = plain.lead(lambda: push_one(job(0)))
    assert plain.start(lambda: push_one(job(1))).result(SECONDS) == Pushed(None, "dropped")
    good = plain.follow(lambda: push_one(job(2)))
    plain.go.set()
    assert (token(leader), token(good)) == (0, 2)


def test_a_queue_that_refuses_a_type_refuses_only_that(plain: Gathering) -> None:
    configuration.configure("narrow", {"allowed_job_types": ["c.*"]})
    configuration.forget()
    one = plain.lead(lambda: push_one(job(1)))
    with pytest.raises(JobTypeNotAllowed) as caught:  # it does not come so far
        plain.start(lambda: push_one(job(2, queue="narrow"))).result(SECONDS)
    assert "index" not in caught.value.details  # it was no batch to its caller
    fits = plain.follow(lambda: push_one({"type": "c.d", "args": [3], "queue": "narrow"}))
    plain.go.set()
    assert (token(one), token(fits)) == (1, 3)


def test_a_fault_of_one_row_is_met_by_its_own_caller(plain: Gathering, monkeypatch: pytest.MonkeyPatch) -> None:
    store = type(store_of("default"))
    insert = store.push

    def push(self: Store, rows: Any, *how: Any) -> bool:
        if any(row["args"] == "[1]" for row in rows):
            raise DataError("out of range")
        return insert(self, rows, *how)

    monkeypatch.setattr(store, "push", push)
    zero, bad, two = pushed_together(plain, job(0), job(1), job(2))
    assert (token(zero), token(two)) == (0, 2)
    assert isinstance(bad.exception(), DataError)
    assert sorted(row.args[0] for row in Job.objects.all()) == [-2, -1, 0, 2]


def test_a_database_that_is_away_is_away_for_all_and_nothing_is_pushed_twice(
    plain: Gathering, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer is lost behind the commit."""
    store = type(store_of("default"))
    insert = store.push

    def push(self: Store, rows: Any, *how: Any) -> bool:
        done = insert(self, rows, *how)
        if len(rows) > 1:
            connections["default"].close()
            raise OperationalError("server closed the connection unexpectedly")
        return done

    monkeypatch.setattr(store, "push", push)
    done = pushed_together(plain, *(job(n) for n in range(5)))
    errors = [future.exception() for future in done]
    assert {type(error) for error in errors} == {OperationalError}
    assert len(set(map(id, errors))) == 5
    assert Job.objects.count() == 7  # each once: no caller ran its own again


def test_a_leader_that_is_stopped_leaves_no_caller_waiting(plain: Gathering, monkeypatch: pytest.MonkeyPatch) -> None:
    store = type(store_of("default"))
    insert = store.push

    def push(self: Store, rows: Any, *how: Any) -> bool:
        if len(rows) > 1:
            raise SystemExit(1)
        return insert(self, rows, *how)

    monkeypatch.setattr(store, "push", push)
    done = pushed_together(plain, *(job(n) for n in range(5)))
    kinds = [type(future.exception()) for future in done]
    assert kinds == [SystemExit, *[BackendUnavailable] * 4]
    assert Job.objects.count() == 2


def test_unique_jobs_are_decided_together_each_for_its_caller(deciding: Gathering) -> None:
    stored = push([unique(0, 7)])[0].row
    assert stored is not None
    refused, first, ignored, second = pushed_together(
        deciding, unique(1, 7), unique(2, 8), unique(3, 8, "ignore"), unique(4, 9)
    )
    with pytest.raises(Duplicate) as caught:
        refused.result()
    assert caught.value.details["existing_job_id"] == str(stored["id"])
    assert (token(first), token(second)) == (2, 4)
    assert (ignored.result().status, token(ignored)) == ("duplicate", 2)


def test_a_bounded_queue_takes_as_many_as_fit(deciding: Gathering) -> None:
    configuration.configure("small", {"backpressure": {"max_depth": 3, "strategy": "reject"}})
    configuration.forget()
    done = pushed_together(deciding, *(job(n, queue="small") for n in range(5)))
    assert [token(future) for future in done[:3]] == [0, 1, 2]
    assert [type(future.exception()) for future in done[3:]] == [QueueFull, QueueFull]
    assert Event.objects.filter(type="backpressure.rejected").count() == 2


def test_a_caller_that_waits_for_room_keeps_no_other_waiting() -> None:
    configuration.configure("small", {"backpressure": {"max_depth": 1, "strategy": "block"}})
    configuration.forget()
    full = push_one(job(0, queue="small")).row
    assert full is not None
    with gathering(push_group._deciding) as meeting:
        meeting.go.set()
        patient = meeting.lead(lambda: push_one(job(1, queue="small"), patience=30.0))
        assert meeting.start(lambda: push_one(unique(2, 2))).result(SECONDS).status == "created"
        assert not patient.done()
        Job.objects.filter(pk=full["id"])._raw_delete("default")
        assert token(patient) == 1


def test_plain_jobs_do_not_wait_for_those_that_are_decided(plain: Gathering, deciding: Gathering) -> None:
    leader = deciding.lead(lambda: push_one(unique(1, 1)))
    plain.go.set()
    assert plain.start(lambda: push_one(job(2))).result(SECONDS).status == "created"
    deciding.go.set()
    assert token(leader) == 1


@pytest.mark.postgres
def test_a_key_that_another_transaction_holds_keeps_only_its_own_caller_waiting(deciding: Gathering) -> None:
    push_one(unique(0, 0))
    leader = deciding.lead(lambda: push_one(unique(-1, -1)))
    with transaction.atomic():
        push([unique(1, 1)])
        held = deciding.follow(lambda: push_one(unique(2, 1)))
        free = deciding.follow(lambda: push_one(unique(3, 3)))
        deciding.go.set()
        assert token_in(free) == 3
        assert not held.done()
    assert isinstance(held.exception(SECONDS), Duplicate)
    assert token(leader) == -1


def token_in(done: Future[Pushed]) -> int:
    row = done.result(SECONDS).row
    assert row is not None
    return int(row["args"][1:-1])


def test_inside_a_transaction_of_the_callers_its_job_is_stored_alone(plain: Gathering) -> None:
    push_one(job(-2))
    leader = plain.lead(lambda: push_one(job(0)))
    with transaction.atomic():
        assert push_one(job(1)).status == "created"
        assert Job.objects.count() == 2
        transaction.set_rollback(True)
    plain.go.set()
    assert token(leader) == 0
    assert sorted(row.args[0] for row in Job.objects.all()) == [-2, 0]


@pytest.mark.postgres
def test_a_push_alone_is_one_statement_and_no_transaction() -> None:
    push_one(job(0))
    with CaptureQueriesContext(connection) as captured:
        push_one(job(1))
    assert len(captured) == 1, [query["sql"] for query in captured]


@pytest.mark.postgres
def test_so_is_a_batch(plain: Gathering) -> None:
    counts: list[int] = []
    execute = plain._execute

    def counted(items: Any, *, using: str) -> Any:
        with CaptureQueriesContext(connections[using]) as captured:
            done = execute(items, using=using)
        counts.append(len(captured))
        return done

    plain._execute = counted
    pushed_together(plain, *(job(n) for n in range(64)))
    assert counts == [1, 1, 1]


def attempt(mine: int, kind: int, taken: str) -> str:
    """Push a job of one of four kinds; '' where its caller gets what it is due."""
    documents = [job(mine), unique(mine, mine), job(mine, id=taken), {"type": "a.b"}]
    try:
        done = push_one(documents[kind])
    except Duplicate as error:
        return "" if kind == 2 and error.details["job_id"] == taken else str(error)
    except InvalidPayload as error:
        return "" if kind == 3 else str(error)
    return "" if kind < 2 and done.row is not None and done.row["args"] == f"[{mine}]" else str(done)


def test_sixty_four_callers_without_order() -> None:
    """Each has its own again, faulty ones, taken ids and unique jobs between them."""
    known = push([job(-1)])[0].row
    assert known is not None
    wrong: list[str] = []

    def calls(caller: int) -> None:
        try:
            wrong.extend(
                filter(None, (attempt(caller * 100 + n, (caller + n) % 4, str(known["id"])) for n in range(12)))
            )
        finally:
            connections.close_all()

    threads = [threading.Thread(target=calls, args=(caller,)) for caller in range(64)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SECONDS * 2)
    assert wrong == []
    expected = {caller * 100 + n for caller in range(64) for n in range(12) if (caller + n) % 4 < 2}
    assert sorted(row.args[0] for row in Job.objects.all()) == sorted(expected | {-1})
