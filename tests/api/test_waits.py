"""A caller that waits: a lost race or a moment's outage ends no wait, and the deadline holds."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.db import OperationalError, connections

from django_ojs import database, job, lock
from django_ojs.client import locks
from django_ojs.client.handle import JobHandle
from django_ojs.faults import LostRace, ReadOnly
from django_ojs.http import waits
from django_ojs.jobs.fetch import Fetch, fetch
from django_ojs.jobs.finish import Ack, ack_one
from django_ojs.registry import Registry
from tests.waiting import eventually

pytestmark = pytest.mark.django_db(transaction=True)

USING = "default"


def gone() -> Exception:
    return OperationalError(2013, "Lost connection to server during query")


#: What asks the database, and is to fail.
HANDLE, LOCK, HTTP = (JobHandle, "refresh"), (locks, "_take"), (waits, "_going_on")


@pytest.fixture
def handle(handlers: Registry) -> JobHandle:
    """Of a job that is completed."""

    @job("any.thing")
    def anything() -> None: ...

    found = anything.enqueue()
    fetch(Fetch(["default"], worker_id="w"))
    ack_one(Ack(found.id, worker_id="w"))
    return found


@pytest.fixture
def handlers() -> Iterator[Registry]:
    from django_ojs.registry import registry

    with registry.isolated() as isolated:
        yield isolated


def taken(wait: float) -> bool:
    with lock("import", timeout="1m", wait=wait):
        return True


async def ataken(wait: float) -> bool:
    async with lock("import", timeout="1m", wait=wait):
        return True


WAITS: dict[str, tuple[tuple[Any, str], Callable[[JobHandle, float], Any]]] = {
    "wait": (HANDLE, lambda handle, seconds: handle.wait(seconds).is_finished),
    "await_": (HANDLE, lambda handle, seconds: asyncio.run(handle.await_(seconds)).is_finished),
    "with lock": (LOCK, lambda handle, seconds: taken(seconds)),
    "async with lock": (LOCK, lambda handle, seconds: asyncio.run(ataken(seconds))),
    "?wait=true": (HTTP, lambda handle, seconds: waits._poll_alone(uuid.UUID(str(handle.id)), seconds, USING) is None),
}


@pytest.fixture(params=WAITS)
def way(request: Any) -> Any:
    return WAITS[request.param]


@pytest.mark.parametrize("error", [gone(), LostRace("first")], ids=repr)
def test_what_passes_ends_no_wait(
    error: Exception, way: Any, handle: JobHandle, monkeypatch: pytest.MonkeyPatch
) -> None:
    (owner, name), wait = way
    before, errors = getattr(owner, name), iter([error, error])

    def flaky(*args: Any, **kwargs: Any) -> Any:
        if (found := next(errors, None)) is not None:
            raise found
        return before(*args, **kwargs)

    monkeypatch.setattr(owner, name, flaky)
    assert wait(handle, 60)
    assert next(errors, None) is None


@pytest.mark.parametrize("seconds", [0, 0.03])
def test_the_deadline_holds_while_the_database_is_away(
    seconds: float, way: Any, handle: JobHandle, monkeypatch: pytest.MonkeyPatch
) -> None:
    (owner, name), wait = way

    def away(*args: Any, **kwargs: Any) -> Any:
        raise gone()

    monkeypatch.setattr(owner, name, away)
    if owner is waits:
        assert wait(handle, seconds), "what comes next says what there is to say"
        return
    with pytest.raises((TimeoutError, locks.LockHeld)) as caught:
        wait(handle, seconds)
    assert isinstance(caught.value.__cause__, OperationalError)


def test_what_another_look_would_not_change_ends_the_wait(
    way: Any, handle: JobHandle, monkeypatch: pytest.MonkeyPatch
) -> None:
    (owner, name), wait = way

    def unmigrated(*args: Any, **kwargs: Any) -> Any:
        raise OperationalError("no such column: state")

    monkeypatch.setattr(owner, name, unmigrated)
    with pytest.raises(OperationalError, match="no such column"):
        wait(handle, 60)


def test_a_lock_that_was_taken_by_a_call_whose_answer_was_lost_is_the_callers(monkeypatch: pytest.MonkeyPatch) -> None:
    before, answers = locks._take, iter([gone()])

    def lost(*args: Any, **kwargs: Any) -> Any:
        result = before(*args, **kwargs)
        if (error := next(answers, None)) is not None:
            raise error
        return result

    monkeypatch.setattr(locks, "_take", lost)
    with lock("import", timeout="1m", wait=60):
        assert not lock("import", timeout="1m").acquire()
    connections.close_all()
    assert lock("import", timeout="1m").acquire()


@pytest.mark.parametrize("told", [True, False])
def test_requests_that_wait_leave_a_server_that_takes_no_writes_any_more(
    monkeypatch: pytest.MonkeyPatch, told: bool
) -> None:
    """Their thread only reads: while one request waited after the other, it kept its session with the old server. In a
    process in which nobody writes, nobody tells of that."""
    monkeypatch.setattr(database, "CLOSE_EVERY", 0.0)
    sessions: list[Any] = []

    def look(ids: Any, using: str) -> Any:
        connections[using].ensure_connection()
        sessions.append(connections[using].connection)
        return ids

    monkeypatch.setattr(waits, "_going_on", look)
    ends = waits.Ends(USING, lambda: None)
    with ends.watching(uuid.uuid4(), lambda: None):
        eventually(lambda: len(sessions) > 1)
        if told:
            database.note_read_only(ReadOnly("It stores nothing."))
        else:
            monkeypatch.setattr(database, "LASTS", 0.0)
        eventually(lambda: sessions[-1] is not sessions[0])
