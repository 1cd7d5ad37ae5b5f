"""Calls of several callers that are large together: none of them fails because of the others.

MariaDB takes `max_allowed_packet` at once (16 MiB), and ends the connection on which more comes. The client then hears
that the packet is too large, or only that the server is gone, as it happens.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import threading
import uuid
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
from django.db import DataError, OperationalError, connection, connections

from django_ojs import clock, lockwaits, packets
from django_ojs.access import UNLIMITED
from django_ojs.database import atomic
from django_ojs.errors import PayloadTooLarge
from django_ojs.faults import may_be_done
from django_ojs.groupcommit import CommitGroup, _Lane, _PendingCall
from django_ojs.http.exceptions import to_error
from django_ojs.jobs import finish, push_group, timers
from django_ojs.jobs.fetch import Fetch, fetch
from django_ojs.jobs.finish import Ack, Failure, ack_one, fail_one
from django_ojs.jobs.idempotency import Answer, KeyedRequest
from django_ojs.jobs.push import push
from django_ojs.jobs.push_group import push_once, push_one
from django_ojs.models import Event, Job
from django_ojs.packets import MOST_CHARACTERS
from django_ojs.workerregistry.heartbeat import Beat, beat
from tests.gathering import SECONDS, gathering

pytestmark = [pytest.mark.mariadb, pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("long_memory")]
CALLERS = 20
BIG = "é" * 480_000  # of so many callers these are 19 MB


@pytest.fixture(autouse=True)
def _large(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is too large, and no statement too slow: on MariaDB one that serves several callers has a time limit."""
    settings.OJS = {"MAX_RESULT_BYTES": 80_000_000, "MAX_ENVELOPE_BYTES": 80_000_000}
    monkeypatch.setattr(lockwaits, "_SHORTEST_STATEMENT", SECONDS)


def job(*texts: str) -> dict[str, Any]:
    return {"type": "a.b", "args": [*texts]}


def together(group: CommitGroup[Any, Any], calls: list[Any]) -> list[Any]:
    """The outcomes of these calls, which all wait behind the first."""
    with gathering(group) as meeting:
        first, *others = calls
        futures: list[Future[Any]] = [meeting.lead(first), *map(meeting.follow, others)]
        meeting.go.set()
        return [future.result(SECONDS * 4) for future in futures]


def test_large_results_of_several_workers_are_all_stored() -> None:
    push([{"type": "a.b", "args": []} for _ in range(CALLERS)])
    ids = [row["id"] for row in fetch(Fetch(["default"], count=CALLERS, worker_id="w"))]
    done = together(finish._acks, [lambda one=one: ack_one(Ack(one, f'"{BIG}"', "w")) for one in ids])
    assert [row["state"] for row in done] == ["completed"] * CALLERS
    assert {len(text or "") for text in Job.objects.values_list("result", flat=True)} == {len(BIG)}


def test_large_jobs_of_several_clients_are_all_stored() -> None:
    done = together(push_group._plain, [lambda: push_one(job(BIG)) for _ in range(CALLERS)])
    assert [one.status for one in done] == ["created"] * CALLERS
    assert Job.objects.count() == CALLERS


def test_large_jobs_with_keys_are_all_stored() -> None:
    def once(number: int) -> Any:
        operation = KeyedRequest(f"key-{number}", "anonymous", "push", b"{}")
        return push_once(job(BIG), operation, lambda done: Answer(201, f'"{BIG}"', {}),
                         limits=UNLIMITED)  # fmt: skip

    done = together(push_group._plain_keyed, [lambda n=n: once(n) for n in range(CALLERS)])
    assert [answer.status for answer, _ in done] == [201] * CALLERS
    assert Job.objects.count() == CALLERS


def failing(count: int) -> list[uuid.UUID]:
    """Active jobs that have failed often, each with long errors of its own: of forty the histories are 40 MB."""
    push([{"type": "a.b", "args": []} for _ in range(count)])
    ids = [row["id"] for row in fetch(Fetch(["default"], count=count, worker_id="w"))]
    for number, pk in enumerate(ids):
        error = {"type": "T", "message": f"{number} {'é' * 9_000}", "backtrace": ["ü" * 9_000], "attempt": 1,
                 "occurred_at": "2026-01-01T00:00:00Z"}  # fmt: skip
        Job.objects.filter(pk=pk).update(errors=[{**error, "code": f"{pk}-{n}"} for n in range(30)])
    return ids


def failed(job_id: uuid.UUID) -> Failure:
    return Failure(job_id, {"message": f"{job_id} {'é' * 20_000}", "details": {"text": "é" * 16_000}}, "w")


@pytest.fixture
def long_histories(settings: Any) -> None:
    settings.OJS = {"ERROR_HISTORY": 30}


@pytest.mark.usefixtures("long_histories")
def test_jobs_with_long_histories_of_errors_fail_together() -> None:
    ids = failing(40)
    with gathering(finish._failures) as meeting:
        done = meeting.together(*(lambda one=one: fail_one(failed(one)) for one in ids))
        assert [future.result(SECONDS)["state"] for future in done] == ["retryable"] * 40
        assert list(map(len, meeting.batches)) == [1, 39], "none of them had to go alone"
    assert Event.objects.filter(type="job.failed").count() == 40
    histories: list[tuple[uuid.UUID, Any]] = list(Job.objects.values_list("pk", "errors"))
    assert {pk for pk, errors in histories if errors[-1]["message"].startswith(str(pk)) and len(errors) == 30} == {*ids}


@pytest.mark.usefixtures("long_histories")
@pytest.mark.parametrize("end", ["timeout_at", "visible_until"])
def test_the_scheduler_settles_jobs_with_long_histories_of_errors(end: str) -> None:
    failing(40)
    past = clock.now("default") - dt.timedelta(seconds=1)
    Job.objects.update(**{end: past, "wake_at": past})
    assert timers.apply_due() == 40
    assert not Job.objects.filter(state="active").exists()


class TestGuilty:
    """What is more than the server takes at all, of one caller."""

    @pytest.mark.parametrize("size", [17_000_000, 40_000_000])
    def test_a_result(self, size: int) -> None:
        push([{"type": "a.b", "args": []} for _ in range(4)])
        ids = [row["id"] for row in fetch(Fetch(["default"], count=4, worker_id="w"))]
        texts = ['"fine"', f'"{"x" * size}"', '"fine"', '"fine"']
        with gathering(finish._acks) as meeting:
            calls = [
                lambda one=one, text=text: ack_one(Ack(one, text, "w")) for one, text in zip(ids, texts, strict=True)
            ]
            first, guilty, *others = meeting.together(*calls)
        assert [one.result(SECONDS)["state"] for one in (first, *others)] == ["completed"] * 3
        self.is_too_large(guilty)
        assert Job.objects.get(pk=ids[1]).state == "active"

    @pytest.mark.parametrize("keyed", [False, True])
    @pytest.mark.parametrize("millions", [17, 40])
    def test_a_job(self, millions: int, keyed: bool) -> None:
        def call(number: int, document: dict[str, Any]) -> Any:
            if not keyed:
                return push_one(document)
            operation = KeyedRequest(f"key-{number}", "anonymous", "push", b"{}")
            return push_once(document, operation, lambda done: Answer(201, "{}", {}), limits=UNLIMITED)

        group = push_group._plain_keyed if keyed else push_group._plain
        documents = [job("fine"), job(*["x" * 1_000_000] * millions), job("fine"), job("fine")]
        with gathering(group) as meeting:
            calls = [lambda n=n, one=one: call(n, one) for n, one in enumerate(documents)]
            first, guilty, *others = meeting.together(*calls)
        assert [bool(one.result(SECONDS)) for one in (first, *others)] == [True] * 3
        self.is_too_large(guilty)
        assert Job.objects.count() == 3

    def is_too_large(self, call: Future[Any]) -> None:
        error = call.exception(SECONDS)
        assert isinstance(error, Exception)
        assert isinstance(to_error(error), PayloadTooLarge), error

    @pytest.mark.parametrize("call", ["push", "fail", "beat"])
    def test_a_batch_that_a_small_server_does_not_take_is_stored_in_parts(self, call: str, monkeypatch: Any) -> None:
        ids = []
        if call != "push":
            push([job("fine") for _ in range(3000 if call == "beat" else 40)])
        while rows := fetch(Fetch(["default"], count=1000, worker_id="w")):
            ids += [row["id"] for row in rows]
        monkeypatch.setitem(packets._packets, "default", 350_000)
        sizes: list[int] = []

        def note(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
            sizes.append(packets.length(sql, params))
            return execute(sql, params, many, context)

        with connection.execute_wrapper(note):
            if call == "push":
                push([job("é" * 30_000) for _ in range(20)])
            elif call == "fail":
                finish.fail([failed(one) for one in ids])
            else:
                assert len(beat(Beat("w", ids)).extended) == 3000
        assert sum(sizes) > 350_000
        assert max(sizes) < 350_000

    @pytest.mark.parametrize("within", [False, True], ids=["autocommit", "transaction"])
    def test_the_connection_can_be_used_afterwards(self, within: bool) -> None:
        with (
            pytest.raises(OperationalError) as found,
            atomic() if within else packets.watched(connection),
            connection.cursor() as cursor,
        ):
            cursor.execute("SELECT LENGTH(%s)", ["x" * 40_000_000])
        assert found.value.args[0] == packets.TOO_LARGE
        assert Job.objects.count() == 0

    def test_a_connection_that_is_lost_for_another_reason_is_an_outage(self) -> None:
        def cut_off() -> None:
            with atomic(), connection.cursor() as cursor:
                cursor.execute("SELECT CONNECTION_ID()")
                (number,) = cursor.fetchone()
                with contextlib.closing(connection.copy()) as other, other.cursor() as killing:
                    killing.execute(f"KILL {number}")
                cursor.execute("SELECT LENGTH(%s)", ["x" * 1_000_000])

        with pytest.raises(OperationalError) as found:
            cut_off()
        assert found.value.args[0] != packets.TOO_LARGE
        assert may_be_done(found.value)

    @pytest.mark.parametrize("text", ["plain", "é€😀", "\\ ' \" \n\r\x1a\0"])
    def test_a_statement_has_the_length_that_is_sent(self, text: str) -> None:
        with connection.cursor() as cursor:
            cursor.execute("SELECT %s, %s", [text, text])
            sent = cursor.cursor._executed
        assert packets.length("SELECT %s, %s", [text, text]) - len(sent) == 4  # the placeholders


def test_a_leader_takes_no_more_than_the_database_does() -> None:
    lane: _Lane[int, None] = _Lane()
    leader: _PendingCall[int, None] = _PendingCall(MOST_CHARACTERS // 2)
    lane.join(leader)
    for size in (MOST_CHARACTERS // 4, MOST_CHARACTERS // 4, 1, 0):
        lane.join(_PendingCall(size))
    assert [one.item for one in lane.take(leader, 10, int)] == [MOST_CHARACTERS // 4] * 2
    assert [one.item for one in lane.waiting] == [1, 0], "in the order in which they came"


@pytest.mark.parametrize("lost", [False, True], ids=["answers", "ends the connection"])
def test_a_batch_that_is_too_large_all_the_same_is_executed_call_by_call(lost: bool) -> None:
    alone: list[int] = []

    def execute(items: Any, *, using: str) -> Any:
        if len(items) > 1 or items == [3]:
            if lost:
                connections[using].close()
            raise OperationalError(1153, "Got a packet bigger than 'max_allowed_packet' bytes")
        alone.extend(items)
        return items

    group: CommitGroup[int, int] = CommitGroup(execute)
    began, go = threading.Event(), threading.Event()

    def first(items: Any, *, using: str) -> Any:
        began.set()
        assert go.wait(SECONDS)
        group._execute = execute
        return items

    def call(item: int) -> Any:
        try:
            return group.call(item, "default")
        finally:
            connections.close_all()

    group._execute, group._patience = first, SECONDS
    with ThreadPoolExecutor(8) as pool:
        leader = pool.submit(call, 0)
        assert began.wait(SECONDS)
        followers = [pool.submit(call, number) for number in range(1, 5)]
        lane = next(iter(group._lanes.values()))
        while len(lane.waiting) < 4:
            threading.Event().wait(0.001)
        go.set()
        assert leader.result(SECONDS) == 0
        answers = [future.exception(SECONDS) or future.result(SECONDS) for future in followers]
    assert sorted(alone) == [1, 2, 4]
    assert [answer for answer in answers if isinstance(answer, int)] == [1, 2, 4]
    (guilty,) = (answer for answer in answers if isinstance(answer, Exception))
    assert isinstance(to_error(guilty), PayloadTooLarge)


def test_what_the_database_does_not_take_is_too_large_and_no_outage() -> None:
    error = to_error(OperationalError(1153, "Got a packet bigger than 'max_allowed_packet' bytes"))
    assert (error.status, error.code) == (413, "payload_too_large")
    assert to_error(OperationalError(2006, "Server has gone away")).status == 503
    assert to_error(DataError("said")).status == 500
