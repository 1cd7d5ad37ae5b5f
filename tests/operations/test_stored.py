"""What PUSH stores: the rows that it returned and the events of them, for one job and for many, like and unlike."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.db import connection, transaction
from django.db.models import BooleanField, Max

from django_ojs import clock, jsontext
from django_ojs.events import catalogue
from django_ojs.jobs.fetch import Fetch, fetch
from django_ojs.jobs.finish import Ack, ack
from django_ojs.jobs.push import push
from django_ojs.models import CountDelta, Event, Job
from django_ojs.models.job import COLUMNS, LIMITED
from django_ojs.states import State
from django_ojs.store import sqlite, store_of, values

pytestmark = pytest.mark.django_db

LATER = "2999-12-31T23:59:59.123Z"
#: Members that jobs may have beside type and arguments; each changes other columns.
MEMBERS: tuple[dict[str, Any], ...] = (
    {}, {"queue": "mail"}, {"priority": -3}, {"meta": {"trace_id": "t1", "note": 'say "so" \\ or {not}'}},
    {"scheduled_at": LATER}, {"pending": True}, {"pending": True, "scheduled_at": LATER}, {"expires_at": LATER},
    {"timeout_ms": 1500, "total_timeout": 60, "enqueue_ttl": 30, "heartbeat_timeout": 9, "grace_period": 2},
    {"visibility_timeout_ms": 700}, {"retry": {"max_attempts": 7}}, {"result_ttl": 0}, {"x_own": [None, "é", "NULL"]},
    {"unique": {"keys": ["type", "args"]}}, {"rate_limit": {"key": "k", "concurrency": 1}}, {"tags": ["a,b", "{}"]},
)  # fmt: skip
ARGUMENTS = ([], [1], ["NULL"], ['"', "\\", "{,}"], [{"a": [None, True]}], ["ü \u2028 %s %(id)s"])


def stored(documents: list[dict[str, Any]]) -> None:
    """Push them, and compare what is in the database with what PUSH returned."""
    last_event = Event.objects.aggregate(last=Max("pk"))["last"] or 0
    last_delta = CountDelta.objects.aggregate(last=Max("pk"))["last"] or 0
    rows = [item.row for item in push(documents) if item.row]
    found = {row["id"]: row for row in Job.objects.filter(pk__in=[row["id"] for row in rows]).rows()}  # type: ignore[attr-defined]
    assert [found[row["id"]] for row in rows] == [{name: row[name] for name in COLUMNS} for row in rows]

    events = Event.objects.filter(pk__gt=last_event)
    names = [name for name in catalogue.Record._fields if name != "data"]
    logged = {event.job_id: (*(getattr(event, name) for name in names), event.data) for event in events}
    made = [record for row in rows if (record := catalogue.of_new_job(row, "api"))]
    assert logged == {record.job_id: (*record[:-1], jsontext.loads(record.data)) for record in made}
    assert connection.vendor != "postgresql" or not events.filter(commit=None).exists()

    counted: Counter[tuple[str, str]] = Counter()
    for delta in CountDelta.objects.filter(pk__gt=last_delta):
        counted.update({(delta.queue, state.value): getattr(delta, state) for state in State})
    assert +counted == Counter((row["queue"], row["state"]) for row in rows)


def documents(members: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for number, arguments in enumerate(ARGUMENTS):
        yield {"type": f"a.b{number % 2}", "args": arguments, **members}


@pytest.mark.parametrize("members", MEMBERS, ids=lambda members: "-".join(members) or "plain")
def test_one_job_and_several_with_the_same_members_are_stored_as_they_were_pushed(members: dict[str, Any]) -> None:
    for document in documents(members):
        stored([{**document, "type": "a.single"}])
    stored(list(documents(members)))
    stored([{"type": "a.like", "args": [1], **members} | ({"unique": None} if "unique" in members else {})] * 3)


def test_jobs_that_differ_in_everything_are_stored_as_they_were_pushed() -> None:
    stored([document for members in MEMBERS for document in documents(members)])


@pytest.mark.parametrize("with_result", [False, True])
@pytest.mark.parametrize("count", [1, 3])
def test_the_events_of_a_claim_and_of_a_completion_say_what_their_templates_say(
    count: int, with_result: bool, settings: Any
) -> None:
    settings.OJS = {"RESULTS_IN_EVENTS": with_result}
    push([{"type": "a.b", "args": [number], "meta": {"trace_id": "t"}, "unique": {}} for number in range(count)])
    claimed = fetch(Fetch(["default"], count=count, worker_id="w"))
    ack([Ack(row["id"], None if number else '{"a":[1]}', "w") for number, row in enumerate(claimed)])
    ended = Job.objects.filter(pk__in=[row["id"] for row in claimed]).rows()  # type: ignore[attr-defined]
    made = [catalogue.started(row, row["started_at"]) for row in claimed]
    made += [catalogue.completed(row, row["finished_at"], with_result=with_result) for row in ended]
    names = [name for name in catalogue.Record._fields if name != "data"]
    told = Event.objects.filter(type__in=["job.started", "job.completed"])
    logged = {(event.type, event.job_id): event for event in told}
    assert len(logged) == len(told) == len(made) == 2 * count
    for record in made:
        event, data = logged[record.type, record.job_id], jsontext.loads(record.data)
        assert [getattr(event, name) for name in names] == [*record[:-1]]
        assert event.data.keys() == data.keys()
        assert event.data.get("result") == data.get("result")
        for name in data.keys() - {"result"}:
            assert event.data[name] == pytest.approx(data[name], abs=1), "databases round in their own ways"
    (first,) = [one for one in made if (one.type, one.job_id) == ("job.completed", claimed[0]["id"])]
    assert ("result" in logged[first.type, first.job_id].data) == with_result


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("inside", [False, True], ids=["alone", "in the caller's transaction"])
def test_a_job_whose_event_cannot_be_stored_is_not_stored(
    count: int, inside: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    push([{"type": "a.b", "args": []}])
    jobs, events = Job.objects.count(), Event.objects.count()
    if connection.vendor == "sqlite":
        monkeypatch.setattr(sqlite, "_EVENT_STATEMENT", "INSERT INTO nowhere VALUES (%s)")
        monkeypatch.setattr(sqlite, "_pushed_statement", lambda place: "INSERT INTO nowhere VALUES (%s, %s)")
    elif connection.vendor == "postgresql" and count > 1:
        pytest.skip("one statement writes both")
    else:
        monkeypatch.setattr(catalogue, "of_new_job", None)
    with transaction.atomic() if inside else contextlib.nullcontext(), contextlib.suppress(Exception):
        push([{"type": "a.b", "args": [number]} for number in range(count)])
    assert (Job.objects.count(), Event.objects.count()) == (jobs, events)


@pytest.mark.django_db(transaction=True)
def test_pushes_of_many_threads_are_all_stored() -> None:
    def produce(number: int) -> None:
        try:
            for _ in range(10):
                push([{"type": "a.b", "args": [number]}])
                push([{"type": "a.b", "args": [number, place]} for place in range(3)])
        finally:
            connection.close()

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(produce, range(6)))
    assert Job.objects.count() == Event.objects.count() == 6 * 10 * 4
    assert sum(CountDelta.objects.values_list("available", flat=True)) == 6 * 10 * 4


def test_booleans_are_booleans_in_the_rows_of_every_statement(monkeypatch: pytest.MonkeyPatch) -> None:
    """SQLite and MariaDB keep numbers."""
    store = store_of(connection.alias)
    (one,) = push(
        [{"type": "a.b", "args": [], "unique": {"keys": ["type"]}, "rate_limit": {"key": "k", "concurrency": 9}}]
    )
    assert one.row is not None
    job_id, key = one.row["id"], one.row["unique_key"]
    claimed: list[Any] = []
    claim = type(store).claim

    def seen(self: Any, wanted: Any, columns: Any = COLUMNS, **options: Any) -> Any:
        found = claim(self, wanted, COLUMNS)
        claimed.extend(row for rows in found for row in rows)
        return found

    Job.objects.filter(pk=job_id).update(suspected=True, resumable=True)
    with transaction.atomic():
        read = [*store.lock([job_id], columns=(*COLUMNS, LIMITED)), *store.lock_live([key], [State.AVAILABLE])]
    Job.objects.filter(pk=job_id).update(suspected=None)
    monkeypatch.setattr(type(store), "claim", seen)
    fetch(Fetch(["default"], worker_id="w"))
    with transaction.atomic():
        acks = [values.Ack(job_id, worker_id="w")]
        read += store.complete(acks, clock.now(), with_result=True, columns=(*COLUMNS, LIMITED))
    assert len(read) == 3
    assert len(claimed) == 1
    found = {
        (name, type(value))
        for row in (*read, *claimed)
        for name, value in row.items()
        if name == LIMITED or isinstance(Job._meta.get_field(name), BooleanField)
    }
    assert {name for name, _ in found} == {"suspected", "resumable", "dead_letter", LIMITED}
    assert {kind for _, kind in found} == {bool, type(None)}
