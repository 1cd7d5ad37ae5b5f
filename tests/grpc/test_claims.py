"""One claim loop for all job streams: who gets which job and when a place is free again, without a network."""

from __future__ import annotations

import datetime as dt
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from queue import Empty, SimpleQueue
from typing import Any

import pytest
from django.db import OperationalError, connection, connections, transaction
from django.test.utils import CaptureQueriesContext

from django_ojs import clock
from django_ojs.grpc import claims
from django_ojs.grpc.claims import JobStream, JobStreams
from django_ojs.jobs import timers
from django_ojs.jobs.cancel import cancel
from django_ojs.jobs.finish import Ack, Failure, ack, ack_one, fail, fail_one, requeue
from django_ojs.jobs.push import push
from django_ojs.models import Event, Job, Worker
from django_ojs.models.job import JobRow
from django_ojs.queues.configuration import pause, resume
from django_ojs.workerregistry.heartbeat import Beat, beat, extend
from django_ojs.workerregistry.registration import direct
from tests.gathering import holding
from tests.waiting import eventually

pytestmark = pytest.mark.django_db(transaction=True)

PATIENCE = 30.0


class Client:
    """The far end of one stream: what was delivered, taken at once and `written` unless it is `slow`."""

    def __init__(self, streams: JobStreams, worker_id: str, *queues: str, places: int = 1, slow: bool = False) -> None:
        self.streams, self.slow = streams, slow
        self.rows: SimpleQueue[JobRow] = SimpleQueue()
        self.held: set[uuid.UUID] = set()
        self.most = 0
        self.ended = threading.Event()
        self.stream = JobStream(
            queues or ("default",), worker_id, places=places, deliver=self.deliver, close=self.ended.set
        )

    def deliver(self, rows: Sequence[JobRow]) -> None:
        if self.slow:
            for row in rows:
                self.rows.put(row)
            return
        for row in rows:
            if self.streams.take(self.stream, row["id"]):
                self.held.add(row["id"])
                self.rows.put(row)
        self.most = max(self.most, len(self.held))
        self.streams.written(self.stream)

    def next(self) -> JobRow:
        return self.rows.get(timeout=PATIENCE)

    def ack(self, row: JobRow) -> None:
        self.held.discard(row["id"])
        ack_one(Ack(row["id"], worker_id=row["worker_id"], attempt=row["attempt"]))

    @property
    def has_nothing(self) -> bool:
        return self.rows.empty()


Connect = Callable[..., Client]


@pytest.fixture
def streams() -> Iterator[JobStreams]:
    found = JobStreams(connection.alias)
    found.start()
    yield found
    assert found.stop(PATIENCE)


@pytest.fixture
def connect(streams: JobStreams) -> Connect:
    def make(worker_id: str = "w1", *queues: str, **options: Any) -> Client:
        client = Client(streams, worker_id, *queues, **options)
        assert streams.open(client.stream)
        return client

    return make


def enqueue(count: int = 1, *, queue: str = "default", **more: Any) -> list[uuid.UUID]:
    pushed = push([{"type": "grpc.job", "args": [i], "queue": queue, **more} for i in range(count)])
    return [one.row["id"] for one in pushed]  # type: ignore[union-attr, index]


def unheard(streams: JobStreams, act: Callable[[], Any], monkeypatch: pytest.MonkeyPatch) -> Any:
    """`act` as another process does it: nothing tells this one."""
    with monkeypatch.context() as patch:
        patch.setattr(claims.hooks, "event_listeners", [])
        patch.setattr("django_ojs.lifecycle.waking._sleepers", set())
        return act()


def settled(streams: JobStreams) -> None:
    """The claimer has looked, from begin to end, after this call: what it could claim has been delivered."""
    for _ in range(2):
        looked = threading.Event()
        original = streams._claimer._claim

        def claim(original: Any = original, looked: threading.Event = looked) -> Any:
            try:
                return original()
            finally:
                looked.set()

        streams._claimer._claim = claim  # type: ignore[method-assign]
        streams._claimer._around = float("-inf")
        streams._claimer.wake()
        assert looked.wait(PATIENCE)
        del streams._claimer._claim


def test_a_job_that_waits_and_one_that_comes_are_claims_of_fetch(connect: Connect) -> None:
    (waiting,) = enqueue()
    client = connect(places=2)
    first = client.next()
    (coming,) = enqueue()
    second = client.next()
    assert [first["id"], second["id"]] == [waiting, coming]
    for row in Job.objects.all():
        assert (row.state, row.attempt, row.worker_id) == ("active", 1, "w1")
        assert row.visible_until is not None
    assert Event.objects.filter(type="job.started").count() == 2
    assert Worker.objects.get(pk="w1").queues == ["default"]


def test_no_more_than_its_places_and_one_more_for_each_that_ends(streams: JobStreams, connect: Connect) -> None:
    enqueue(10)
    client = connect(places=3)
    rows = [client.next() for _ in range(3)]
    settled(streams)
    assert client.has_nothing
    for _ in range(7):
        client.ack(rows.pop(0))
        rows.append(client.next())
    assert client.most == 3
    assert Job.objects.filter(state="active").count() == 3


def test_streams_that_meet_a_limit_set_the_alarm_of_their_loop(
    streams: JobStreams, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a group of two each claims by itself then."""
    alarms: list[float] = []
    waker = type(streams._claimer._waker)
    monkeypatch.setattr(waker, "wake_in", lambda waker, seconds: alarms.append(seconds))
    enqueue(2, rate_limit={"key": "k", "throttle": {"limit": 1, "period": "P365D"}})
    clients = [connect("w1", places=2), connect("w2", places=2)]
    eventually(lambda: not all(client.has_nothing for client in clients))
    settled(streams)
    assert alarms
    assert min(alarms) > 300 * 86400.0


def test_the_loop_says_what_each_look_brought_also_one_that_fills_a_stream(
    streams: JobStreams, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    brought: list[bool] = []
    waker = type(streams._claimer._waker)
    monkeypatch.setattr(waker, "looked", lambda waker, *, found: brought.append(found))
    enqueue()
    connect(places=1).next()
    settled(streams)
    assert True in brought


def nack(row: JobRow) -> None:
    fail_one(Failure(row["id"], error={"message": "No."}, worker_id=row["worker_id"], attempt=row["attempt"]))


def fail_many(row: JobRow) -> None:
    fail([Failure(row["id"], error={"message": "No."})])


def give_up(row: JobRow) -> None:
    fail_one(Failure(row["id"], requeue=True))


def lose(row: JobRow) -> None:
    """Its reservation is over, and the scheduler notices."""
    past = clock.now() - dt.timedelta(seconds=1)
    Job.objects.filter(pk=row["id"]).update(visible_until=past, wake_at=past)
    assert timers.apply_due(using=connection.alias) == 1


#: Those that hand the job back: it is claimed again, behind the others.
HANDING_BACK: dict[str, Callable[[JobRow], Any]] = {
    "requeue": lambda row: requeue([row["id"]]),
    "nack with requeue": give_up,
    "lost reservation": lose,
}
DOORS: dict[str, Callable[[JobRow], Any]] = {
    "ack": lambda row: ack_one(Ack(row["id"])),
    "acks together": lambda row: ack([Ack(row["id"])]),
    "nack": nack,
    "fail": fail_many,
    "cancel": lambda row: cancel([row["id"]]),
    **HANDING_BACK,
}


def _keep(streams: JobStreams) -> None:
    for held in list(streams._held.values()):
        held.renew_at = 0.0
    streams._asker.keep()
    assert all(held.renew_at > 0 for held in streams._held.values())


def test_a_stream_keeps_the_reservations_of_a_worker_that_never_beats(streams: JobStreams, connect: Connect) -> None:
    (job_id,) = enqueue()
    client = connect()
    client.next()
    ends = Job.objects.filter(pk=job_id).values_list("visible_until", flat=True)
    begun = ends.get()
    _keep(streams)
    eventually(lambda: ends.get() > begun, "the reservation is renewed, here or by the thread of the streams")
    assert Event.objects.filter(type="job.heartbeat").exists()


def _beats(job_id: uuid.UUID) -> None:
    beat(Beat("w1"))


def _has_it_for_longer(job_id: uuid.UUID) -> None:
    """It sends heartbeats of single jobs."""
    assert extend(job_id, "w1", visibility_ms=36_000_000)
    Event.objects.all().delete()


def _needs_to_be_named(job_id: uuid.UUID) -> None:
    Job.objects.filter(pk=job_id).update(heartbeat_ms=20_000)


@pytest.mark.parametrize("before", [_beats, _has_it_for_longer, _needs_to_be_named])
def test_a_stream_leaves_alone_what_its_worker_keeps(
    before: Callable[[uuid.UUID], None], streams: JobStreams, connect: Connect
) -> None:
    (job_id,) = enqueue()
    client = connect()
    client.next()
    before(job_id)
    ends = Job.objects.filter(pk=job_id).values_list("visible_until", flat=True)
    begun = ends.get()
    _keep(streams)
    assert ends.get() == begun
    assert not Event.objects.filter(type="job.heartbeat").exists()


@pytest.mark.parametrize("heard", [True, False], ids=["here", "elsewhere"])
@pytest.mark.parametrize("door", DOORS)
def test_a_claim_that_ends_through_any_door_frees_its_place(
    door: str, heard: bool, streams: JobStreams, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = enqueue(), enqueue()
    client = connect()
    row = client.next()
    assert row["id"] == first[0]
    if heard:
        DOORS[door](row)
    else:
        unheard(streams, lambda: DOORS[door](row), monkeypatch)
    expected = {(second[0], 1), (first[0], 2)} if door in HANDING_BACK else {(second[0], 1)}
    found = set()
    for _ in expected:
        row = client.next()
        found.add((row["id"], row["attempt"]))
        client.ack(row)
    assert found == expected
    assert client.has_nothing


def test_what_this_process_ends_frees_the_place_without_asking(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claims._Asker, "ask", lambda self: False)
    enqueue(50)
    client = connect()
    for _ in range(50):
        client.ack(client.next())
    assert client.most == 1


def test_a_report_that_is_rolled_back_frees_nothing(streams: JobStreams, connect: Connect) -> None:
    enqueue(2)
    client = connect()
    row = client.next()
    with transaction.atomic():
        ack([Ack(row["id"])])
        transaction.set_rollback(True)
    settled(streams)
    assert client.has_nothing
    client.ack(row)
    client.next()


def test_the_end_of_an_attempt_before_does_not_free_the_place_of_the_next(
    streams: JobStreams, connect: Connect
) -> None:
    (job,) = enqueue()
    client = connect()
    client.next()
    requeue([job])
    assert client.next()["attempt"] == 2
    streams.ended(job, 1)
    enqueue()
    settled(streams)
    assert client.has_nothing


def test_a_claim_that_another_stream_has_now_frees_the_place_of_the_first(
    streams: JobStreams, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reservation of the first was lost, and the second claims the job before anybody asked."""
    monkeypatch.setattr(claims._Asker, "ask", lambda self: False)
    (job,) = enqueue()
    first = connect("w1")
    first.next()
    second = connect("w2")
    unheard(streams, lambda: requeue([job]), monkeypatch)
    assert second.next()["attempt"] == 2
    (next_job,) = enqueue()
    assert first.next()["id"] == next_job


def test_claims_of_many_streams_are_one_statement(
    streams: JobStreams, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[int] = []
    original = claims.fetch_each

    def fetch_each(asked: Any, *, using: str) -> Any:
        with CaptureQueriesContext(connections[using]) as captured:
            found = original(asked, using=using)
        if any(found):
            made.append(sum("UPDATE" in query["sql"] and "worker" not in query["sql"][:40] for query in captured))
        return found

    clients = [connect(f"w{i}") for i in range(10)]
    settled(streams)
    monkeypatch.setattr(claims, "fetch_each", fetch_each)
    enqueue(10)
    assert Counter(client.next()["worker_id"] for client in clients) == {f"w{i}": 1 for i in range(10)}
    if connection.vendor == "postgresql":
        assert made == [1]
    assert len(made) <= 2  # on SQLite a look may see some of the jobs before the others


def test_few_jobs_are_shared_and_turns_are_taken(streams: JobStreams, connect: Connect) -> None:
    clients = [connect(f"w{i}", places=10) for i in range(4)]
    settled(streams)
    enqueue(4)
    assert [client.next()["worker_id"] for client in clients] == ["w0", "w1", "w2", "w3"]
    enqueue(2)
    assert [client.next()["worker_id"] for client in clients[:2]] == ["w0", "w1"]
    settled(streams)
    enqueue(2)
    assert [client.next()["worker_id"] for client in clients[2:]] == ["w2", "w3"]


def test_the_turns_of_a_claim() -> None:
    streams = JobStreams("default")

    def group(*rooms: int) -> list[tuple[str, int]]:
        members = [
            JobStream(("q",), f"w{i}", places=room, deliver=lambda rows: None, close=lambda: None)
            for i, room in enumerate(rooms)
        ]
        for member in members:
            member.is_open = True
        found = claims._StreamGroup(members[0].wish, dict.fromkeys(members))
        return [(stream.worker_id, count) for stream, count in streams.turns(found)]

    assert group(50) == [("w0", 50)]
    assert group(4, 1, 2) == [("w0", 1), ("w1", 1), ("w2", 1), ("w0", 2), ("w2", 1), ("w0", 1)]
    assert group(*[1] * 40) == [(f"w{i}", 1) for i in range(claims.FEW)]


def test_a_stream_of_other_queues_is_not_kept_waiting(streams: JobStreams, connect: Connect) -> None:
    """However much there is to do for one, the others are looked at."""
    busy = connect("busy", "many", places=5)
    others = [connect(f"w{i}", f"q{i}") for i in range(8)]
    enqueue(60, queue="many")
    done = threading.Event()

    def work() -> None:
        try:
            while not done.is_set():
                try:
                    busy.ack(busy.rows.get(timeout=0.1))
                except Empty:
                    continue
                enqueue(queue="many")
        finally:
            connections.close_all()

    worker = threading.Thread(target=work)
    worker.start()
    try:
        for i, client in enumerate(others):
            enqueue(queue=f"q{i}")
            assert client.next()["queue"] == f"q{i}"
    finally:
        done.set()
        worker.join()


def test_idle_streams_cost_one_look_together(
    streams: JobStreams, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thousand streams of a hundred wishes: one statement while nothing waits, and few more where a job does."""
    clients = [connect(f"w{i % 50}", f"q{i % 100}") for i in range(1000)]
    settled(streams)
    counts: SimpleQueue[tuple[bool, int]] = SimpleQueue()
    original = streams._claimer._claim

    def claim() -> tuple[bool, bool]:
        with CaptureQueriesContext(connections[connection.alias]) as captured:
            found, more = original()
        statements = [query["sql"] for query in captured if "data_version" not in query["sql"]]
        counts.put((found, len(statements)))
        return found, more

    streams._claimer._around = float("-inf")
    monkeypatch.setattr(streams._claimer, "_claim", claim)
    streams._claimer.wake()
    assert counts.get(timeout=PATIENCE) in [(False, 0), (False, 1)]  # 0: right behind the look before
    assert counts.get(timeout=PATIENCE) == (False, 1)
    enqueue(queue="q7")
    assert clients[7].next()["queue"] == "q7"
    while not (look := counts.get(timeout=PATIENCE))[0]:
        assert look[1] <= 4
    assert look[1] <= 4 + 8


def test_full_streams_and_no_streams_cost_nothing(
    streams: JobStreams, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked = SimpleQueue[int]()
    original = claims.fetch_each

    def fetch_each(asked: Any, *, using: str) -> Any:
        looked.put(len(asked))
        return original(asked, using=using)

    monkeypatch.setattr(claims, "fetch_each", fetch_each)
    streams._claimer.wake()
    enqueue(3)
    clients = [connect(f"w{i}") for i in range(2)]
    for client in clients:
        client.next()
    settled(streams)
    while not looked.empty():
        looked.get()
    settled(streams)
    assert looked.empty()
    for client in clients:
        streams.close(client.stream)
    streams._claimer.wake()
    assert len(streams) == 0
    assert not streams.has_room()
    assert looked.empty()


def test_what_nobody_has_taken_goes_back_at_once_and_the_rest_stays(streams: JobStreams, connect: Connect) -> None:
    jobs = enqueue(3)
    slow = connect("gone", places=3, slow=True)
    rows = [slow.next() for _ in range(3)]
    assert streams.take(slow.stream, rows[0]["id"])
    streams.close(slow.stream)
    other = connect("other", places=5)
    back = [other.next(), other.next()]
    assert [row["id"] for row in back] == jobs[1:]
    assert [row["attempt"] for row in back] == [2, 2]
    sent = Job.objects.get(pk=jobs[0])
    assert (sent.state, sent.worker_id, sent.attempt) == ("active", "gone", 1)
    for job in Job.objects.filter(pk__in=jobs[1:]):
        assert not job.errors
        assert job.uncounted == 1
    assert not streams.take(slow.stream, rows[1]["id"])


def test_a_claim_for_a_stream_that_has_gone_meanwhile_goes_back(
    streams: JobStreams, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = claims.fetch_each
    claimed, go = threading.Event(), threading.Event()

    def fetch_each(asked: Any, *, using: str) -> Any:
        found = original(asked, using=using)
        if any(found) and not claimed.is_set():
            claimed.set()
            assert go.wait(PATIENCE)
        return found

    monkeypatch.setattr(claims, "fetch_each", fetch_each)
    (job,) = enqueue()
    gone = connect("gone")
    assert claimed.wait(PATIENCE)
    streams.close(gone.stream)
    other = Client(streams, "other")
    assert streams.open(other.stream)
    go.set()
    row = other.next()
    assert (row["id"], row["attempt"]) == (job, 2)
    assert gone.has_nothing


def test_a_stream_claims_only_when_what_it_has_is_written(streams: JobStreams, connect: Connect) -> None:
    client = connect(places=5, slow=True)
    (job,) = enqueue()
    client.next()
    enqueue(2)
    settled(streams)
    assert client.has_nothing
    assert streams.take(client.stream, job)
    settled(streams)
    assert client.has_nothing
    streams.written(client.stream)
    assert {client.next()["attempt"], client.next()["attempt"]} == {1}


def test_a_job_that_ends_before_it_is_sent_is_not_sent(streams: JobStreams, connect: Connect) -> None:
    client = connect(slow=True)
    (job,) = enqueue()
    client.next()
    cancel([job])
    assert not streams.take(client.stream, job)


def test_a_paused_queue_gives_nothing_and_goes_on(streams: JobStreams, connect: Connect) -> None:
    enqueue(queue="stopped")
    pause("stopped")
    client = connect("w1", "stopped", "open", places=5)
    (other,) = enqueue(queue="open")
    assert client.next()["id"] == other
    settled(streams)
    assert client.has_nothing
    resume("stopped")
    assert client.next()["queue"] == "stopped"


@pytest.mark.parametrize("order", ["quiet", "terminate"])
def test_a_worker_that_is_to_take_nothing_gets_nothing(order: str, streams: JobStreams, connect: Connect) -> None:
    client = connect("calm", places=5)
    settled(streams)
    beat(Beat("calm"))
    direct("calm", order)
    (job,) = enqueue()
    settled(streams)
    assert client.has_nothing
    assert Job.objects.get(pk=job).state == "available"
    direct("calm", "running")
    assert client.next()["id"] == job


def test_quiet_workers_do_not_stand_before_the_others(
    streams: JobStreams, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    calm = [connect(f"calm{i}") for i in range(3 * claims.FEW)]
    settled(streams)
    Worker.objects.update(directive="quiet")
    awake = connect("awake")
    (job,) = enqueue()
    assert awake.next()["id"] == job
    Worker.objects.update(directive="")
    enqueue(len(calm))
    for client in calm:
        client.next()


def test_a_key_limited_to_types(streams: JobStreams, connect: Connect) -> None:
    client = connect(places=5)
    settled(streams)
    streams.limit(client.stream, ["mail.*"])
    enqueue()
    push([{"type": "mail.send", "args": []}])
    assert client.next()["type"] == "mail.send"
    settled(streams)
    assert client.has_nothing
    streams.limit(client.stream, None)
    assert client.next()["type"] == "grpc.job"


def test_the_visibility_that_a_client_asks_for(streams: JobStreams) -> None:
    got: SimpleQueue[Sequence[JobRow]] = SimpleQueue()
    stream = JobStream(("default",), "w", places=1, deliver=got.put, close=lambda: None, visibility_ms=1234)
    streams.open(stream)
    enqueue()
    (row,) = got.get(timeout=PATIENCE)
    assert row["lease_ms"] == 1234


def test_the_end(streams: JobStreams, connect: Connect) -> None:
    enqueue(2)
    slow, idle = connect("slow", places=2, slow=True), connect("idle", "other")
    slow.next()
    assert streams.stop(PATIENCE)
    assert slow.ended.is_set()
    assert idle.ended.is_set()
    assert {(job.state, job.uncounted) for job in Job.objects.all()} == {("available", 1)}
    late = Client(streams, "late")
    assert not streams.open(late.stream)
    assert not Worker.objects.filter(asleep=True).exists()


def test_a_database_that_is_away_is_waited_for(
    streams: JobStreams, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    original, faults = claims.fetch_each, iter([OperationalError("gone"), ZeroDivisionError("a fault of ours")])

    def fetch_each(asked: Any, *, using: str) -> Any:
        for error in faults:
            raise error
        return original(asked, using=using)

    monkeypatch.setattr(streams._claimer._faults, "first", 0.01)
    monkeypatch.setattr(claims, "fetch_each", fetch_each)
    (job,) = enqueue()
    assert connect().next()["id"] == job
    assert next(faults, None) is None


def test_a_limit_of_concurrency(streams: JobStreams, connect: Connect) -> None:
    for _ in range(4):
        enqueue(rate_limit={"key": "one", "concurrency": 2})
    clients = [connect(f"w{i}") for i in range(4)]
    for _ in range(4):
        row = next_of(clients)
        assert Job.objects.filter(state="active").count() <= 2
        clients[0].ack(row)


def next_of(clients: Sequence[Client]) -> JobRow:
    found: list[JobRow] = []

    def some() -> bool:
        for client in clients:
            if not client.rows.empty():
                found.append(client.next())
                return True
        return False

    eventually(some)
    return found[0]


@pytest.mark.skipif(connection.vendor == "sqlite", reason="SQLite has no locked rows: PostgreSQL, MariaDB")
def test_a_job_that_somebody_holds_stops_neither_the_claims_nor_what_is_handed_back(
    streams: JobStreams, connect: Connect
) -> None:
    held, free = enqueue(2)
    leaving = connect("leaving", places=2, slow=True)
    assert {leaving.next()["id"] for _ in range(2)} == {held, free}
    other = connect("other", places=3)
    with holding(Job.objects.filter(pk=held)):
        streams.close(leaving.stream)
        (more,) = enqueue(1)
        assert {other.next()["id"] for _ in range(2)} == {free, more}
    assert other.next()["id"] == held


@pytest.mark.skipif(connection.vendor == "sqlite", reason="SQLite has no locked rows: PostgreSQL, MariaDB")
def test_what_somebody_holds_for_a_moment_as_the_server_stops_is_handed_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before it was tried once, and the job waited for the end of its reservation."""
    enqueue()
    streams = JobStreams(connection.alias)
    streams.start()
    leaving = Client(streams, "leaving", slow=True)
    assert streams.open(leaving.stream)
    leaving.next()
    tried = threading.Semaphore(0)

    def counted(*args: Any, **kwargs: Any) -> Any:
        try:
            return requeue(*args, **kwargs)
        finally:
            tried.release()

    monkeypatch.setattr(claims, "requeue", counted)
    monkeypatch.setattr(claims, "HAND_BACK", PATIENCE)
    with holding(Job.objects.all()):
        streams.ask_to_stop()
        for _ in range(2):
            assert tried.acquire(timeout=PATIENCE)
    assert streams.stop(PATIENCE)
    assert Job.objects.get().state == "available"


def test_what_was_not_sent_is_handed_back_also_where_nothing_could_be_claimed_any_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The claims fail, and begin anew after a pause: the server stops in it."""
    (job,) = enqueue()
    streams = JobStreams(connection.alias)
    streams.start()
    leaving = Client(streams, "leaving", slow=True)
    assert streams.open(leaving.stream)
    leaving.next()
    failed = threading.Event()

    def no_descriptors(*args: Any) -> Any:
        failed.set()
        raise OSError(24, "Too many open files")

    def broken() -> None:
        raise LookupError("a fault of ours")

    monkeypatch.setattr(claims, "waker_for", no_descriptors)
    monkeypatch.setattr(streams._claimer, "_poll", broken)
    streams._claimer.wake()
    assert failed.wait(PATIENCE)
    assert streams.stop(PATIENCE)
    assert Job.objects.get(pk=job).state == "available"


def test_a_stream_to_which_nothing_can_be_delivered_keeps_nothing_from_the_others(
    streams: JobStreams, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(rows: Sequence[JobRow]) -> None:
        raise LookupError("a fault of ours")

    ended = threading.Event()
    stream = JobStream(("default",), "broken", places=1, deliver=broken, close=ended.set)
    assert streams.open(stream)
    (job,) = enqueue()
    assert ended.wait(PATIENCE)
    assert not stream.is_open
    assert connect("sound").next()["id"] == job
    assert "could not be delivered" in caplog.text


FAULTS = [OperationalError("no route to host"), LookupError("a fault of ours"), SystemExit(3)]


@pytest.mark.parametrize("error", FAULTS, ids=repr)
def test_a_hand_back_that_fails_as_a_stream_ends_is_done_again(
    error: BaseException, streams: JobStreams, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    enqueue()
    leaving = connect("leaving", slow=True)
    leaving.next()
    faults = iter([error, error])

    def flaky(*args: Any, **kwargs: Any) -> Any:
        if (fault := next(faults, None)) is not None:
            raise fault
        return requeue(*args, **kwargs)

    monkeypatch.setattr(claims, "requeue", flaky)
    streams.close(leaving.stream)
    eventually(lambda: Job.objects.get().state == "available")
    job = Job.objects.get()
    assert (next(faults, None), job.attempt, job.uncounted, job.errors) == (None, 1, 1, None)
    assert connect("next").next()["attempt"] == 2


@pytest.mark.parametrize("error", [*FAULTS, None], ids=repr)
def test_what_is_not_handed_back_as_the_server_stops_is_told(
    error: BaseException | None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its reservation ends it. None: another transaction has locked it."""
    if error is None and connection.vendor == "sqlite":
        pytest.skip("SQLite has no locked rows: PostgreSQL, MariaDB")
    enqueue()
    streams = JobStreams(connection.alias)
    streams.start()
    leaving = Client(streams, "leaving", slow=True)
    assert streams.open(leaving.stream)
    leaving.next()

    def failing(*args: Any, **kwargs: Any) -> Any:
        raise error  # type: ignore[misc]

    if error is None:
        monkeypatch.setattr(claims, "HAND_BACK", 0.05)
        with holding(Job.objects.all()):
            assert streams.stop(PATIENCE)
    else:
        monkeypatch.setattr(claims, "requeue", failing)
        assert streams.stop(PATIENCE)
    assert "when their reservations end" in caplog.text
    job = Job.objects.get()
    assert (job.state, job.visible_until is not None) == ("active", True)


@pytest.mark.skipif(connection.vendor == "sqlite", reason="SQLite has no locked rows: PostgreSQL, MariaDB")
def test_a_worker_whose_row_somebody_holds_stops_no_other_stream(streams: JobStreams, connect: Connect) -> None:
    beat(Beat("held"))
    Worker.objects.update(last_seen_at=clock.now(connection.alias) - dt.timedelta(hours=1))
    with holding(Worker.objects.filter(pk="held")):
        connect("held")
        free = connect("free")
        (job,) = enqueue(1)
        assert free.next()["id"] == job


@pytest.mark.postgres
def test_a_worker_whose_row_somebody_holds_stops_no_stream_that_falls_asleep(
    streams: JobStreams, connect: Connect
) -> None:
    """The loop says in the rows of some workers that it sleeps, and that it does no more."""
    beat(Beat("held"))
    with holding(Worker.objects.filter(pk="held")):
        connect("held", "another")
        free = connect("free")
        for _ in range(3):
            settled(streams)
            (job,) = enqueue(1)
            row = free.next()
            assert row["id"] == job
            free.ack(row)


@pytest.mark.wide
def test_a_storm(streams: JobStreams) -> None:
    """Streams that come, drop, give up, and work: each job is done once, none is with two, no stream has too many."""
    total = 150
    jobs = set(enqueue(total))
    done: Counter[uuid.UUID] = Counter()
    lock = threading.Lock()
    finished = threading.Event()

    def client(number: int) -> None:
        try:
            turn = 0
            while not finished.is_set():
                turn += 1
                one = Client(streams, f"w{number}-{turn}", places=1 + number % 3, slow=turn % 4 == 3)
                assert streams.open(one.stream)
                for _ in range(7):
                    try:
                        row = one.rows.get(timeout=0.3)
                    except Empty:
                        break
                    if one.slow:
                        break  # it is gone before it has read anything
                    if number % 4 == 1 and turn % 2:
                        one.held.discard(row["id"])
                        fail_one(Failure(row["id"], requeue=True, worker_id=row["worker_id"], attempt=row["attempt"]))
                        continue
                    one.ack(row)
                    with lock:
                        done[row["id"]] += 1
                        if len(done) == total:
                            finished.set()
                assert one.most <= one.stream.places
                held = [row["id"] for row in rows_left(one)]
                streams.close(one.stream)
                requeue(held, worker_id=one.stream.worker_id)  # what it had taken, and does not do
        finally:
            connections.close_all()

    with ThreadPoolExecutor(6) as pool:
        for future in [pool.submit(client, number) for number in range(6)]:
            future.result(120)
    assert set(done) == jobs
    assert set(done.values()) == {1}
    assert set(Job.objects.values_list("state", flat=True)) == {"completed"}
    assert not streams.holds


def rows_left(client: Client) -> list[JobRow]:
    found = []
    while not client.slow:
        try:
            found.append(client.rows.get_nowait())
        except Empty:
            break
    return found
