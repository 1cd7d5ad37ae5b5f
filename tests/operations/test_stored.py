"""What PUSH stores: the rows that it returned and the events of them, for one job and for many, like and unlike."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.db import connection, transaction
from django.db.models import Max

from django_ojs import jsontext
from django_ojs.events import catalogue
from django_ojs.jobs.push import push
from django_ojs.models import CountDelta, Event, Job
from django_ojs.models.job import COLUMNS
from django_ojs.states import State
from django_ojs.store import sqlite

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
