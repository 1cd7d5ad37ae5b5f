"""A database that answers and stores nothing for a while, as in a failover: nothing is lost, nobody dies, nothing is
done twice, and what holds a session to the old server lets it go."""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from django.db import DataError, Error, OperationalError, connection, connections
from django.db.backends.signals import connection_created

from django_ojs import enqueue, job
from django_ojs.cron.runs import tick
from django_ojs.database import atomic
from django_ojs.errors import BackendUnavailable
from django_ojs.http import exceptions, probes
from django_ojs.jobs import bulk
from django_ojs.jobs.finish import Ack, Failure
from django_ojs.models import Job, Lease, Worker
from django_ojs.scheduler import service
from django_ojs.scheduler.scheduler import Leadership
from django_ojs.scheduler.service import DutyThread, Outage, persist
from django_ojs.worker import writer
from django_ojs.worker.writer import deliver_reports, keep_reports
from tests import refusing
from tests.http.conftest import api
from tests.middlewares import added
from tests.operations.test_bulkactions import dead
from tests.operations.test_bulkactions import started as begun_action
from tests.operations.test_cron import make
from tests.refusing import PASSING
from tests.waiting import eventually
from tests.worker.conftest import WorkerThread

__all__ = ["api"]  # a fixture

pytestmark = pytest.mark.django_db(transaction=True)
USING = "default"
each_fault = pytest.mark.parametrize("codes", PASSING.values(), ids=PASSING)
with_server = pytest.mark.skipif(connection.vendor == "sqlite", reason="SQLite has no server: PostgreSQL, MariaDB")


#: What makes all that follows on a session read-only.
BECOMES_READ_ONLY = {
    "postgresql": "SET default_transaction_read_only = on",
    "mysql": "SET SESSION TRANSACTION READ ONLY",
    "sqlite": "PRAGMA query_only = 1",
}


@pytest.fixture
def outage(monkeypatch: pytest.MonkeyPatch) -> Outage:
    """That of the test, with short pauses."""
    monkeypatch.setattr(service, "outage", made := Outage())
    monkeypatch.setattr(service, "FIRST_PAUSE", 0.001)
    monkeypatch.setattr(service, "LONGEST_PAUSE", 0.05)
    return made


@each_fault
@pytest.mark.usefixtures("outage")
def test_a_worker_lives_through_it_and_reports_what_ended_meanwhile(
    start_worker: Callable[..., WorkerThread], codes: Any, settings: Any, caplog: pytest.LogCaptureFixture
) -> None:
    settings.OJS = {"HEARTBEAT_INTERVAL": 0.2}
    go, begun = threading.Event(), list[int]()

    @job("refused.work")
    def work(number: int) -> int:
        begun.append(number)
        assert go.wait(60)
        return number

    handles = [work.enqueue(number) for number in range(3)]
    started = start_worker(concurrency=3)
    eventually(lambda: len(begun) == 3)
    scheduler = started.worker._scheduler
    assert scheduler is not None
    eventually(lambda: scheduler.leads)
    with refusing.refusing(codes) as refused:
        go.set()
        for name in ("ojs-writer", "ojs-heartbeat", "ojs-lease"):
            eventually(lambda name=name: refused.by(name) > 2)  # type: ignore[misc]
    eventually(lambda: {handle.refresh().state for handle in handles} == {"completed"})
    later = work.enqueue(3)
    eventually(lambda: later.refresh().state == "completed")
    assert sorted(begun) == [0, 1, 2, 3], "each once"
    eventually(lambda: scheduler.leads)
    assert started.worker._is_healthy()
    started.stop()
    assert started.ended_well
    assert not Worker.objects.exists()
    assert "died" not in caplog.text
    assert "could not be written" not in caplog.text


@each_fault
@pytest.mark.usefixtures("outage")
def test_the_lease_is_taken_again(codes: Any) -> None:
    """Before, the thread ended by the first error that was no OperationalError, and told nobody."""
    lease = Leadership("scheduler", "me", USING)
    lease.start()
    try:
        eventually(lambda: lease.leads)
        with refusing.refusing(codes) as refused:
            eventually(lambda: refused.by("ojs-lease") > 2)
            Lease.objects.using(USING).count()
        eventually(lambda: lease.is_running() and lease.leads)
    finally:
        assert lease.stop(60)


@each_fault
def test_a_file_of_outcomes_stays_until_each_was_answered(tmp_path: Path, codes: Any) -> None:
    path = keep_reports([Ack(uuid.uuid4(), "1", "w", 1)], tmp_path)
    with refusing.refusing(codes, lambda sql: True), pytest.raises(Error, match="refused"):
        deliver_reports(tmp_path, USING)
    assert list(tmp_path.iterdir()) == [path]
    assert deliver_reports(tmp_path, USING) == 0, "there is no such job"
    assert list(tmp_path.iterdir()) == []


def test_an_outcome_with_any_character_is_read_again(tmp_path: Path) -> None:
    """Python knows more ends of lines than a file has."""
    keep_reports([Ack(uuid.uuid4(), '"one\u2028two\x85three\u2029"', "w", 1)], tmp_path)
    deliver_reports(tmp_path, USING)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("line", ['{"kind": "ack"', "7", '["ack"]', '{"kind": "ack", "job_id": 7}', '{"kind": "new"}'])
def test_a_line_of_a_newer_release_costs_no_other_line(
    tmp_path: Path, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = keep_reports([Ack(uuid.uuid4(), "1", "w", 1)], tmp_path)
    path.write_text(f"{line}\n{path.read_text()}")
    sent: list[Any] = []
    monkeypatch.setattr(writer, "ack", lambda acks, **how: sent.extend(acks) or [None] * len(acks))
    assert deliver_reports(tmp_path, USING) == 1
    assert ([one.result for one in sent], [left.suffix for left in tmp_path.iterdir()]) == (["1"], [".unreadable"])


def test_a_file_of_outcomes_names_nothing_that_an_older_release_need_not_know(tmp_path: Path) -> None:
    path = keep_reports([Ack(uuid.uuid4(), "1", "w", 1), Failure(uuid.uuid4(), {"message": "no"}, "w", 1)], tmp_path)
    members = [sorted(json.loads(line)) for line in path.read_text().splitlines()]
    common = ["attempt", "job_id", "kind", "worker_id"]
    assert members == [sorted([*common, "result"]), sorted([*common, "error"])]


def test_a_file_with_an_outcome_that_the_database_does_not_take_is_set_aside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad, good = Ack(uuid.uuid4(), None, "w", 1), Ack(uuid.uuid4(), "1", "w", 1)
    path = keep_reports([bad, good], tmp_path)
    ack = writer.ack

    def refuse(acks: Any, **how: Any) -> Any:
        if bad.job_id in {one.job_id for one in acks}:
            raise DataError("no such value")
        return ack(acks, **how)

    monkeypatch.setattr(writer, "ack", refuse)
    deliver_reports(tmp_path, USING)
    assert [left.name for left in tmp_path.iterdir()] == [f"{path.name}.undelivered"]


def test_a_folder_that_cannot_be_written_does_not_stop_the_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    keep_reports([Ack(uuid.uuid4(), "1", "w", 1)], tmp_path)

    def refuse(*args: Any, **how: Any) -> None:
        raise PermissionError("read-only file system")

    monkeypatch.setattr(Path, "unlink", refuse)
    assert deliver_reports(tmp_path, USING) == 0
    assert "the next worker delivers it again" in caplog.text


@pytest.fixture
def read_only_sessions() -> Iterator[None]:
    """Every session that begins now is read-only, as PostgreSQL's are by `default_transaction_read_only`."""

    def begin(connection: Any, **kwargs: Any) -> None:
        with connection.cursor() as cursor:
            cursor.execute(BECOMES_READ_ONLY[connection.vendor])

    connection_created.connect(begin)
    yield
    connection_created.disconnect(begin)


@pytest.mark.skipif(connection.vendor == "mysql", reason="MariaDB says it of the server, and never to root")
@pytest.mark.usefixtures("read_only_sessions")
def test_readiness_asks_whether_one_can_write(client: Any, settings: Any) -> None:
    settings.ROOT_URLCONF = "django_ojs.testing.urls"
    for path, word in (("/readyz", "not_ready"), ("/health", "unhealthy")):
        response = client.get(path)
        assert (response.status_code, response.json()["status"]) == (503, word)


def test_a_store_that_somebody_writes_to_is_ready() -> None:
    with atomic(using=USING):
        Lease.objects.create(name="other", holder="me", expires_at="2020-01-01T00:00Z")
        assert probes.ask(USING) >= 0


@pytest.fixture
def open_to_all(settings: Any) -> None:
    settings.OJS = {"ALLOW_ANONYMOUS": True}


@with_server
@pytest.mark.usefixtures("open_to_all")
def test_a_request_leaves_a_session_that_is_read_only(api: Any) -> None:
    """Before, the call was a 500 on PostgreSQL, and each later one of this thread, too."""
    with connection.cursor() as cursor:
        cursor.execute(BECOMES_READ_ONLY[connection.vendor])
    response = api.post("/jobs", {"type": "a.b", "args": []})
    assert response.status_code == 503
    assert response["Retry-After"]
    assert api.post("/jobs", {"type": "a.b", "args": []}).status_code == 201
    assert Job.objects.count() == 1


@pytest.mark.usefixtures("open_to_all")
def test_what_a_request_meets_is_503_on_each_database(api: Any) -> None:
    for codes in (*PASSING.values(), refusing.SLOW, refusing.RACE):
        with refusing.refusing(codes):
            assert api.post("/jobs", {"type": "a.b", "args": []}).status_code == 503


@pytest.mark.usefixtures("open_to_all")
def test_readiness_sees_a_disk_that_requests_find_full(
    api: Any, client: Any, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The probes write nothing, and what they could write may still have room."""
    settings.ROOT_URLCONF = "django_ojs.testing.urls"
    assert client.get("/readyz").status_code == 200
    for codes in (refusing.SLOW, refusing.RACE, refusing.MEMORY):
        with refusing.refusing(codes):
            assert api.post("/jobs", {"type": "a.b", "args": []}).status_code == 503
        assert client.get("/readyz").status_code == 200, "one statement says nothing of the disk"
    with refusing.refusing(refusing.FULL):
        assert api.post("/jobs", {"type": "a.b", "args": []}).status_code == 503
        assert [client.get(path).status_code for path in ("/readyz", "/health", "/healthz")] == [503, 503, 200]
    monkeypatch.setattr(exceptions, "FULL_SECONDS", 0.0)
    assert client.get("/readyz").status_code == 200


def test_a_store_that_is_away_costs_no_occurrence_of_a_schedule(frozen_clock: Any) -> None:
    made = make("often")
    frozen_clock.advance(seconds=61)
    away = [True]

    def refuse(document: Any, next: Any) -> Any:
        if away:
            raise BackendUnavailable("The store of the site is away.")
        return next(document)

    with added(refuse):
        with pytest.raises(BackendUnavailable):
            tick()
        due = made.next_run_at
        made.refresh_from_db()
        assert made.next_run_at == due, "it is still to come"
        away.clear()
        tick()
    assert Job.objects.count() == 1


class Broken:
    """A duty whose statement never ends in time."""

    name = "broken"

    def run_once(self, using: str) -> float:
        with refusing.refusing(refusing.SLOW), connections[using].cursor() as cursor:
            cursor.execute("UPDATE nothing")
        raise AssertionError("It was refused.")


class Sound:
    name = "sound"
    calls = 0

    def run_once(self, using: str) -> float:
        self.calls += 1
        return 0.0


def test_a_duty_with_a_lasting_fault_of_its_own_stops_no_other_and_is_no_outage(outage: Outage) -> None:
    """Else dead workers would be spared for as long as it lasts."""
    sound = Sound()
    thread = DutyThread("test", [Broken(), sound], USING)
    thread.run_once()
    thread.run_once()
    assert sound.calls == 2
    assert not outage.is_recent


class FindsAnotherAway:
    """A duty that asks another database, which is away: the outbox's own, or one of a middleware."""

    name = "elsewhere"

    def __init__(self) -> None:
        self.calls = 0

    def run_once(self, using: str) -> float:
        self.calls += 1
        raise OperationalError(2002, "no route to the other host")


def test_another_database_that_is_away_stops_no_other_duty_and_is_no_outage_of_the_jobs(
    outage: Outage, caplog: pytest.LogCaptureFixture
) -> None:
    sound, other = Sound(), FindsAnotherAway()
    thread = DutyThread("test", [other, sound], USING)
    thread.run_once()
    thread.run_once()
    assert (sound.calls, other.calls) == (2, 2)
    assert not outage.is_recent
    assert caplog.messages == [caplog.messages[0]]
    assert caplog.messages[0].startswith("The scheduler's duty 'elsewhere' failed (")


def test_the_jobs_database_that_is_away_is_an_outage(outage: Outage, monkeypatch: pytest.MonkeyPatch) -> None:
    other = FindsAnotherAway()
    thread = DutyThread("test", [other], USING)
    monkeypatch.setattr(service, "answers", lambda using, writes: other.calls > 2)
    thread.run_once()
    assert other.calls == 4
    assert outage.is_recent


def test_a_statement_that_is_at_fault_is_not_waited_for(outage: Outage) -> None:
    def act() -> None:
        raise DataError("no such value")

    with pytest.raises(DataError):
        persist(act, USING, threading.Event())
    assert not outage.is_recent


@pytest.mark.usefixtures("outage")
@each_fault
def test_a_session_that_was_refused_is_closed(codes: Any) -> None:
    held: list[Any] = []

    def act() -> str:
        held.append(connections[USING].connection)
        if len(held) == 1:
            with refusing.refusing(codes):
                enqueue("a.b")
        return "done"

    connections[USING].ensure_connection()
    assert persist(act, USING, threading.Event()) == "done"
    if connection.vendor != "sqlite":  # where a database in memory lives as long as its connection
        assert held[0] is not None
        assert held[1] is not held[0]


@with_server
def test_a_worker_that_lived_through_a_cut_deregisters(start_worker: Callable[..., WorkerThread]) -> None:
    """The thread that does it has used its connection at the start only."""
    started = start_worker(scheduler=False)
    eventually(lambda: Worker.objects.filter(state="running").exists())
    eventually(lambda: started.lines)
    cut_others()
    started.stop()
    assert not Worker.objects.exists()


def cut_others() -> None:
    """End all sessions of this database but this thread's."""
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            cursor.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
            return
        cursor.execute("SELECT id FROM information_schema.processlist WHERE db = DATABASE() AND id <> CONNECTION_ID()")
        for (number,) in cursor.fetchall():
            cursor.execute(f"KILL {number}")


@each_fault
def test_an_action_on_many_jobs_is_tried_again(codes: Any, frozen_clock: Any) -> None:
    ids = dead(2)
    action = begun_action()
    real = bulk._do

    def broken(*args: Any) -> None:
        with refusing.refusing(codes):
            real(*args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bulk, "_do", broken)
        with pytest.raises(Error, match="refused"):
            bulk.advance_action()
    action.refresh_from_db()
    assert (action.state, action.tries) == ("running", 1)
    while bulk.advance_action():
        pass
    assert Job.objects.filter(pk__in=ids, state="available").count() == 2
