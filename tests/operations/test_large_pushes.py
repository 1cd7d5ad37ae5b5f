"""A large push is stored while it is read, where nothing has to be decided about its jobs; and is the same push."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from django.db import connection, transaction

from django_ojs.errors import Duplicate, OJSError
from django_ojs.jobs import bulk
from django_ojs.jobs.candidates import Pushed, PushOutcome
from django_ojs.jobs.push import push, push_each
from django_ojs.models import Event, Job
from django_ojs.queues import configuration
from django_ojs.store import prepared, store_of
from django_ojs.store.orm import Store
from django_ojs.store.postgresql import PART
from tests.middlewares import added

pytestmark = pytest.mark.django_db(transaction=True)

TOTAL = 4 * PART
LATE = TOTAL - 7  #: the place of the job that is not like the others
TAKEN = "0190a000-0000-7000-8000-000000000001"
REPEATED = "0190a000-0000-7000-8000-000000000002"


@pytest.fixture(autouse=True)
def connection_that_prepares() -> Iterator[None]:
    for _ in range(prepared.UNPREPARED + 1):
        push([{"type": "before.it", "args": []}])
    push([{"type": "before.it", "args": [], "id": TAKEN}])
    Job.objects.exclude(pk=TAKEN).delete()
    yield
    connection.close()


class Documents(list[Any]):
    """Envelopes that count how many of them have been read."""

    read = 0

    def __iter__(self) -> Iterator[Any]:
        for one in super().__iter__():
            self.read += 1
            yield one


def many(**late: Any) -> Documents:
    documents = Documents({"type": "a.b", "args": [i]} for i in range(TOTAL))
    documents[LATE].update(late)
    documents[LATE - 300].update({"id": REPEATED} if late.get("id") == REPEATED else {})
    return documents


def stored() -> list[Any]:
    jobs = Job.objects.filter(type__in=("a.b", "other.type")).order_by("enqueued_at", "pk")
    return list(jobs.values_list("type", "queue", "state", "args", "unique_key"))


def events() -> list[uuid.UUID | None]:
    return list(Event.objects.filter(job_type="a.b", type="job.enqueued").values_list("job_id", flat=True))


def seen(outcomes: list[PushOutcome]) -> list[Any]:
    return [
        (type(one).__name__, one.details.get("index")) if isinstance(one, OJSError) else (one.status, one.row is None)
        for one in outcomes
    ]


@pytest.mark.postgres
def test_the_database_has_the_first_jobs_before_the_last_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    documents, at = many(), list[int]()
    pipelined = prepared.pipelined

    def noting(using: str, statements: Any) -> Any:
        def noted() -> Iterator[Any]:
            for statement in statements:
                at.append(documents.read)
                yield statement

        return pipelined(using, noted())

    monkeypatch.setattr(prepared, "pipelined", noting)
    done = push(documents)
    assert at == [PART, 2 * PART, 3 * PART, TOTAL]
    assert [str(one.row["args"]) for one in done if one.row] == [f"[{i}]" for i in range(TOTAL)]
    assert len(stored()) == TOTAL == len(set(events()))


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("partial", [False, True])
@pytest.mark.parametrize(
    "late",
    [
        {"type": "no good!"},
        {"args": "none"},
        {"unique": {"keys": ["type", "args"]}},
        {"type": "other.type", "queue": "other", "priority": 7},
        {"delay_until": "2999-01-01T00:00:00Z"},
        {"id": TAKEN},
        {"id": REPEATED},
        {"queue": "full"},
    ],
    ids=lambda late: "-".join(late) + str(len(str(late))),
)
def test_a_job_that_needs_a_decision_is_decided_on_as_in_a_small_push(
    late: dict[str, Any], partial: bool, inside: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    configuration.configure("full", {"backpressure": {"max_depth": 1, "strategy": "reject"}})
    push([{"type": "it.fills", "args": [], "queue": "full"}])
    found = []
    for hurried in (True, False):
        if not hurried:
            monkeypatch.setattr(type(store_of(connection.alias)), "takes_rows_as_they_come", lambda self, count: False)
        with transaction.atomic() if inside else contextlib.nullcontext():
            outcomes: list[PushOutcome]
            try:
                outcomes = push_each(many(**late), partial=partial)
            except Duplicate as error:  # of an id, in an atomic push
                outcomes = [error]
            push([{"type": "after.it", "args": []}])  # the transaction goes on
        assert len(events()) == len([one for one in stored() if one[0] == "a.b" and one[2] == "available"])
        found.append((seen(outcomes), stored()))
        Job.objects.filter(type__in=("a.b", "other.type")).exclude(pk=TAKEN).delete()
        Event.objects.all().delete()
    assert found[0] == found[1]
    assert Job.objects.filter(type="after.it").count() == 2


def test_a_policy_that_means_nothing_for_the_first_jobs_counts_for_the_others() -> None:
    """The unique key of encoded arguments would mean nothing, so such jobs have none."""
    unique = {"unique": {"keys": ["type", "args"]}}
    push([{"type": "a.b", "args": ["there"], **unique}])
    documents = Documents({"type": "a.b", "args": [i], "meta": {"ojs_encoded": True}, **unique} for i in range(TOTAL))
    documents[LATE] = {"type": "a.b", "args": ["there"], **unique}
    outcomes = push_each(documents)
    assert seen(outcomes)[LATE] == ("Duplicate", LATE)
    assert sum(isinstance(one, Pushed) for one in outcomes) == TOTAL - 1 == len(stored()) - 1


@pytest.mark.parametrize("partial", [False, True])
def test_a_bulk_request_closes_with_its_event(partial: bool) -> None:
    outcomes = bulk.enqueue(many(), partial=partial)
    assert all(isinstance(one, Pushed) and one.status == "created" for one in outcomes)
    (closed,) = Event.objects.filter(type="bulk.enqueue.completed")
    assert (closed.data["succeeded"], closed.data["failed"]) == (TOTAL, 0)
    of_jobs = Event.objects.filter(type="job.enqueued", job_type="a.b")
    assert set(of_jobs.values_list("commit_id", flat=True)) == {closed.commit_id}


def test_an_enqueue_middleware_sees_each_job_before_anything_is_written() -> None:
    """It may use the database, and drop jobs."""
    counts = set()

    def middleware(job: dict[str, Any], call_next: Any) -> Any:
        counts.add(Job.objects.filter(type="a.b").count())
        return None if job["args"] == [LATE] else call_next(job)

    with added(middleware):
        outcomes = push_each(many())
    assert counts == {0}
    assert len(stored()) == TOTAL - 1
    assert seen(outcomes)[LATE] == ("dropped", True)


def test_the_base_store_takes_rows_when_all_are_made() -> None:
    assert not Store.takes_rows_as_they_come(store_of(connection.alias), 10_000)
