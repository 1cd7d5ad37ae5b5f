"""No reader ever passes an event unseen, in whatever order transactions commit."""

from __future__ import annotations

import datetime as dt
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.db import OperationalError, connection, connections, transaction
from django.test import Client

from django_ojs import clock
from django_ojs.errors import InvalidRequest
from django_ojs.events import ids, log, order
from django_ojs.events.filters import Filter
from django_ojs.faults import HeldByAnother
from django_ojs.jobs.fetch import Fetch, fetch
from django_ojs.jobs.push import push
from django_ojs.models import Event, EventCommit, EventLog, Queue
from django_ojs.retention import prune
from django_ojs.statistics import eventcounts
from tests.waiting import eventually


def types_of(page: log.EventPage) -> list[str]:
    return [event["data"]["job_type"] for event in page.events]


def enqueue(name: str) -> None:
    push([{"type": name, "args": []}])


class OpenTransaction:
    """A transaction in another thread (another connection) that enqueues a job and stays open until told."""

    def __init__(self, name: str, at_last: Callable[[], object] = lambda: None) -> None:
        self.written, self.go_on = threading.Event(), threading.Event()
        self.thread = threading.Thread(target=self._run, args=[name, at_last])
        self.thread.start()
        assert self.written.wait(60)

    def _run(self, name: str, at_last: Callable[[], object]) -> None:
        try:
            with transaction.atomic():
                enqueue(name)
                self.written.set()
                assert self.go_on.wait(60)
                at_last()
        finally:
            connections.close_all()

    def commit(self) -> None:
        self.go_on.set()
        self.thread.join(20)


@pytest.mark.django_db(transaction=True)
@pytest.mark.skipif(connection.vendor == "sqlite", reason="SQLite has one writer at a time: nothing to overtake")
class TestOvertaking:
    def test_a_transaction_held_open_delays_nobody_and_is_missed_by_nobody(self) -> None:
        enqueue("a.first")
        slow = OpenTransaction("a.slow")
        enqueue("a.quick")
        page = log.read()
        assert types_of(page) == ["a.first", "a.quick"]
        slow.commit()
        after = log.read(after=page.cursor)
        assert types_of(after) == ["a.slow"]
        assert Event.objects.get(job_type="a.slow").pk < Event.objects.get(job_type="a.quick").pk
        assert types_of(log.read()) == ["a.first", "a.quick", "a.slow"]

    def test_a_transaction_comes_after_those_whose_jobs_it_changes(self) -> None:
        """A claim may begin with a promotion, and take a job that was pushed and committed after that."""
        slow = OpenTransaction("a.slow", lambda: fetch(Fetch(["default"], count=2)))
        enqueue("a.quick")
        slow.commit()
        told = [(event["data"]["job_type"], event["type"]) for event in log.read().events]
        assert [event for name, event in told if name == "a.quick"] == ["job.enqueued", "job.started"]
        assert [event for name, event in told if name == "a.slow"] == ["job.enqueued", "job.started"]

    def test_many_passes_while_it_is_open_lose_nothing(self) -> None:
        slow = OpenTransaction("a.slow")
        seen: list[str] = []
        cursor = None
        for i in range(5):
            enqueue(f"a.n{i}")
            order.advance("default")
            page = log.read(after=cursor)
            seen += types_of(page)
            cursor = page.cursor
        slow.commit()
        seen += types_of(log.read(after=cursor))
        assert seen == ["a.n0", "a.n1", "a.n2", "a.n3", "a.n4", "a.slow"]

    def test_a_transaction_that_reads_the_log_before_it_writes_to_it_is_not_forgotten(self) -> None:
        with transaction.atomic():
            Queue.objects.create(name="first", created_at=clock.now(), updated_at=clock.now())
            OpenTransaction("a.other").commit()  # others come and go meanwhile
            cursor = log.read().cursor
            enqueue("a.own")
            enqueue("a.more")
        OpenTransaction("a.later").commit()
        assert types_of(log.read(after=cursor)) == ["a.other", "a.own", "a.more", "a.later"]

    def test_two_passes_at_once_number_nothing_twice(self) -> None:
        for i in range(20):
            enqueue(f"a.n{i}")

        def run(_: int) -> None:
            try:
                order.advance("default")
            finally:
                connections.close_all()

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(run, range(8)))
        assert types_of(log.read()) == [f"a.n{i}" for i in range(20)]


@pytest.mark.django_db(transaction=True)
def test_a_log_that_another_transaction_begins_is_not_waited_for_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    if connection.vendor == "sqlite":
        pytest.skip("One transaction writes at a time, so the caller's makes the row itself.")
    EventLog.objects.all().delete()
    made, go_on = threading.Event(), threading.Event()

    def hold() -> None:
        try:
            with transaction.atomic():
                EventLog.objects.create(pk=1, salt="0" * 32)
                made.set()
                go_on.wait(60)
                transaction.set_rollback(True)
        finally:
            connections.close_all()

    monkeypatch.setattr(ids, "PATIENCE", 0.05)
    other = threading.Thread(target=hold)
    other.start()
    try:
        assert made.wait(60)
        with transaction.atomic(), pytest.raises(HeldByAnother):
            ids.log_row("default")
        (late,) = [thread for thread in threading.enumerate() if thread.name.startswith("ojs-log-row")]
        assert late.daemon, "a process that ends would wait for as long as the database does"
    finally:
        go_on.set()
        other.join()
    eventually(lambda: not any(thread.name.startswith("ojs-log-row") for thread in threading.enumerate()))
    assert EventLog.objects.get().pk == 1


def restored_elsewhere(snapshot: str = "") -> None:
    """Make of the log what a restore in another cluster does: the transactions that come now get the numbers of those
    that are in it."""
    ids.log_row("default")
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SELECT pg_current_xact_id()::text::bigint")
        (own,) = cursor.fetchone()
        numbers = sorted(set(Event.objects.filter(commit_id__gt=0).values_list("commit_id", flat=True)))
        for number, txid in reversed([*enumerate(numbers, own + 1)]):
            Event.objects.filter(commit_id=txid).update(commit_id=number)
            EventCommit.objects.filter(txid=txid).update(txid=number)
        last = own + 1 + len(numbers)
        EventLog.objects.update(server=f"elsewhere:{own}", snapshot=snapshot or f"{last}:{last}:")


@pytest.mark.postgres
@pytest.mark.django_db(transaction=True)
class TestAMoveToAnotherCluster:
    """Its transaction ids count from somewhere else."""

    @pytest.mark.parametrize("snapshot", ["", "3:3:"], ids=["behind", "ahead"])
    def test_what_is_pushed_before_the_first_pass_comes_behind_all_that_was_there(self, snapshot: str) -> None:
        before, after = [f"a.b{n}" for n in range(20)], [f"a.a{n}" for n in range(25)]
        for name in before:
            enqueue(name)
        cursor = log.read().cursor
        places = dict(EventCommit.objects.values_list("seq", "txid"))
        restored_elsewhere(snapshot)
        for name in after:
            enqueue(name)
        assert types_of(log.read(after=cursor)) == after
        assert types_of(log.read()) == before + after
        assert places.keys() <= set(EventCommit.objects.values_list("seq", flat=True))
        enqueue("a.last")
        assert types_of(log.read(after=cursor)) == [*after, "a.last"]

    def test_what_was_not_in_order_when_it_was_dumped_is_not_lost(self) -> None:
        enqueue("a.first")
        cursor = log.read().cursor
        enqueue("a.waits")
        enqueue("a.too")
        restored_elsewhere()
        expected = ["a.waits", "a.too", *(f"a.n{n}" for n in range(6))]
        for name in expected[2:]:
            enqueue(name)
        assert types_of(log.read(after=cursor)) == expected
        enqueue("a.last")
        assert types_of(log.read(after=cursor)) == [*expected, "a.last"]

    def test_twice_and_there_and_back_within_the_retention(self, frozen_clock: Any) -> None:
        expected = []
        for move in range(4):
            for number in range(5):
                expected.append(f"a.m{move}_{number}")
                enqueue(expected[-1])
            if move % 2:
                log.read()
            restored_elsewhere()
        assert types_of(log.read()) == expected
        assert eventcounts.count() == len(expected)
        frozen_clock.advance(days=8)
        enqueue("a.last")
        assert prune()["events"] == len(expected)
        assert types_of(log.read()) == ["a.last"]
        assert EventCommit.objects.count() == 1

    def test_a_log_from_before_the_server_was_written_down_keeps_its_order(self) -> None:
        enqueue("a.first")
        cursor = log.read().cursor
        EventLog.objects.update(server="", last_seq=0)
        enqueue("a.second")
        assert types_of(log.read(after=cursor)) == ["a.second"]
        restored_elsewhere()
        enqueue("a.third")
        assert types_of(log.read(after=cursor)) == ["a.second", "a.third"]

    def test_of_a_copy_of_this_server_into_the_same_table(self) -> None:
        """By TRUNCATE and COPY: the server that was dumped has the identifier of this one, and has gone on since. The
        log's row was not restored."""
        before, after = [f"a.b{n}" for n in range(20)], [f"a.a{n}" for n in range(25)]
        for name in before:
            enqueue(name)
        cursor = log.read().cursor
        here = EventLog.objects.values_list("server", flat=True).get()
        rewritten()
        restored_elsewhere()
        EventLog.objects.update(server=here, snapshot="3:3:")
        for name in after:
            enqueue(name)
        assert types_of(log.read(after=cursor)) == after
        assert types_of(log.read()) == before + after

    def test_of_a_copy_of_this_server_whose_numbers_are_passed_before_the_first_pass(self) -> None:
        """By DELETE and COPY: only the transaction that wrote the log's row tells of it."""
        before, after = [f"a.b{n}" for n in range(20)], [f"a.a{n}" for n in range(25)]
        for name in before:
            enqueue(name)
        cursor = log.read().cursor
        here = EventLog.objects.values_list("server", flat=True).get()
        restored_elsewhere()
        EventLog.objects.update(server=here)
        for name in after:
            enqueue(name)
        assert types_of(log.read(after=cursor)) == after
        assert types_of(log.read()) == before + after

    def test_a_table_that_was_only_rewritten_keeps_its_order(self) -> None:
        enqueue("a.first")
        cursor = log.read().cursor
        enqueue("a.second")
        before = set(Event.objects.values_list("pk", "commit_id"))
        with connection.cursor() as statement:
            statement.execute("VACUUM FULL django_ojs_event")
        log.read()
        assert set(Event.objects.values_list("pk", "commit_id")) == before  # no row of it was written
        other = OpenTransaction("a.last")
        enqueue("a.third")
        assert types_of(log.read(after=cursor)) == ["a.second", "a.third"]
        other.commit()
        assert types_of(log.read(after=cursor)) == ["a.second", "a.third", "a.last"]


def rewritten() -> None:
    """Empty the table of events as for a restore, and fill it again."""
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("CREATE TEMPORARY TABLE kept ON COMMIT DROP AS SELECT * FROM django_ojs_event")
        cursor.execute("TRUNCATE django_ojs_event")
        cursor.execute("INSERT INTO django_ojs_event SELECT * FROM kept")


@pytest.fixture
def role_without_the_right() -> Iterator[str]:
    """A role that may do everything with our tables, and not ask for the server."""
    role = connection.ops.quote_name(f"hosted_{connection.settings_dict['NAME']}")
    with connection.cursor() as cursor:
        cursor.execute("REVOKE EXECUTE ON FUNCTION pg_control_system() FROM PUBLIC")
        cursor.execute(f"DROP ROLE IF EXISTS {role}")
        cursor.execute(f"CREATE ROLE {role}")
        for what in ("TABLES", "SEQUENCES"):
            cursor.execute(f"GRANT ALL ON ALL {what} IN SCHEMA public TO {role}")
        cursor.execute(f"SET ROLE {role}")
    order._knows_server.cache_clear()
    yield role
    order._knows_server.cache_clear()
    with connection.cursor() as cursor:
        cursor.execute("RESET ROLE")
        cursor.execute(f"DROP OWNED BY {role}")
        cursor.execute(f"DROP ROLE {role}")
        cursor.execute("GRANT EXECUTE ON FUNCTION pg_control_system() TO PUBLIC")


@pytest.mark.postgres
@pytest.mark.django_db(transaction=True)
class TestARoleThatMayNotAskForTheServer:
    """Hosted services may refuse `pg_control_system()`."""

    @pytest.mark.parametrize(
        "snapshot, elsewhere", [("", True), ("3:3:", True), ("", False)],
        ids=["behind", "ahead", "behind, and made alike"],
    )  # fmt: skip
    def test_reads_the_log_and_notices_a_move(
        self, role_without_the_right: str, snapshot: str, elsewhere: bool
    ) -> None:
        before, after = [f"a.b{n}" for n in range(20)], [f"a.a{n}" for n in range(25)]
        for name in before:
            enqueue(name)
        page = log.read()
        assert types_of(page) == before
        here = EventLog.objects.values_list("server", flat=True).get()
        assert here.startswith("-:")
        restored_elsewhere(snapshot)
        if not elsewhere:
            EventLog.objects.update(server=here)
        for name in after:
            enqueue(name)
        assert types_of(log.read(after=page.cursor)) == after
        assert types_of(log.read()) == before + after

    def test_that_loses_the_right_while_the_process_runs(self, role_without_the_right: str) -> None:
        order._knows_server.cache_clear()
        with connection.cursor() as cursor:
            cursor.execute("RESET ROLE")
            enqueue("a.first")
            cursor_before = log.read().cursor
            cursor.execute(f"SET ROLE {role_without_the_right}")
        enqueue("a.second")
        assert types_of(log.read(after=cursor_before)) == ["a.second"]


@pytest.mark.django_db
class TestReading:
    def test_pages_join_without_gap_or_overlap(self) -> None:
        for i in range(7):
            enqueue(f"a.n{i}")
        seen, cursor, more = [], None, True
        while more:
            page = log.read(after=cursor, limit=3)
            seen += types_of(page)
            cursor, more = page.cursor, page.has_more
        assert seen == [f"a.n{i}" for i in range(7)]
        empty = log.read(after=cursor)
        assert (empty.events, empty.cursor, empty.has_more) == ([], cursor, False)

    @pytest.mark.parametrize(
        "query, expected",
        [
            ({"types": ["job.*"]}, 3), ({"types": ["job.enqueued"]}, 2), ({"types": ["job.sch*"]}, 1),
            ({"types": ["worker.*"]}, 0), ({"types": ["nonsense"]}, 0), ({"queues": ["q1"]}, 1),
            ({"job_types": ["a.one", "a.two"]}, 2), ({"sources": ["ojs://django-ojs/*"]}, 3),
            ({"sources": ["ojs://django-ojs/workers/*"]}, 0), ({"sources": ["ojs://django-ojs/api"]}, 3),
            ({"sources": ["ojs://other/*"]}, 0),
        ],
    )  # fmt: skip
    def test_filters(self, query: dict[str, Any], expected: int) -> None:
        push([{"type": "a.one", "args": [], "queue": "q1"}])
        push([{"type": "a.two", "args": []}])
        push([{"type": "a.three", "args": [], "scheduled_at": "2100-01-01T00:00:00Z"}])
        assert len(log.read(**query).events) == expected

    @pytest.mark.parametrize(
        "cursor", ["evt_", "x", "evt_019539a4-b68c-7def-8000-aabbccddeeff", "evt_zzz", "evt_" + "0" * 36, "\x00"]
    )
    def test_a_cursor_that_was_never_issued_is_refused(self, cursor: str) -> None:
        with pytest.raises(InvalidRequest):
            log.read(after=cursor)

    def test_ids_lead_back_to_their_event_and_differ_between_installations(self) -> None:
        now = dt.datetime(2026, 5, 6, 7, 8, 9, 123456, tzinfo=dt.UTC)
        for position in (1, 12345, 2**48 - 1):
            text = ids.encode(position, now, "salt")
            assert ids.decode(text, "salt") == ids.Cursor(position)
            changed = ids.of_change(text, "salt")
            assert changed != text
            assert ids.decode(changed, "salt") == ids.Cursor(position, is_change=True)
            notice = ids.encode(position, now, "salt", notice=True)
            assert ids.decode(notice, "salt") == ids.Cursor(position, is_notice=True)
            assert text[18:19] == "7"
            with pytest.raises(InvalidRequest):
                ids.decode(text, "pepper")

    def test_an_event_shows_what_all_job_events_share(self) -> None:
        push([{"type": "a.b", "args": ["secret"], "meta": {"trace_id": "t1"}, "priority": 4}])
        (event,) = log.read().events
        assert event["specversion"] == "1.0"
        assert event["source"] == "ojs://django-ojs/api"
        data = event["data"]
        assert {k: data[k] for k in ("job_type", "type", "queue", "state", "attempt", "trace_id", "priority")} == {
            "job_type": "a.b", "type": "a.b", "queue": "default", "state": "available", "attempt": 0,
            "trace_id": "t1", "priority": 4,
        }  # fmt: skip
        assert data["job_id"] == event["subject"]
        assert "secret" not in str(event)


def test_stamps_keep_their_order_when_the_clock_stands_still(frozen_clock: Any) -> None:
    taken = [clock.stamps(count, clock.now()) for count in (3, 1, 2)]
    assert taken == sorted(taken)
    assert taken[1] - taken[0] == dt.timedelta(microseconds=3)


class HeldOrder:
    """Another connection that holds the lock of the ordering passes until told, as one that hangs within a pass."""

    def __init__(self) -> None:
        self.held, self.go_on = threading.Event(), threading.Event()
        self.thread = threading.Thread(target=self._run)
        log.read()  # the row is there
        self.thread.start()
        assert self.held.wait(60)

    def _run(self) -> None:
        try:
            with transaction.atomic():
                EventLog.objects.select_for_update().get(pk=1)
                self.held.set()
                assert self.go_on.wait(60)
        finally:
            connections.close_all()

    def let_go(self) -> None:
        self.go_on.set()
        self.thread.join(20)


@pytest.mark.django_db(transaction=True)
@pytest.mark.skipif(connection.vendor == "sqlite", reason="SQLite has one writer at a time: there are no passes")
class TestThePassOfAnother:
    def test_a_reader_waits_for_it_however_slow_and_misses_nothing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(order, "PATIENCE", 60.0)
        other = HeldOrder()
        enqueue("a.own")
        release = threading.Timer(0.5, other.let_go)
        release.start()
        assert types_of(log.read()) == ["a.own"]
        release.join()

    def test_a_reader_that_cannot_have_the_order_reads_what_is_in_order_and_later_the_rest(
        self, monkeypatch: pytest.MonkeyPatch, settings: Any
    ) -> None:
        settings.OJS = {"ALLOW_ANONYMOUS": True}
        monkeypatch.setattr(order, "PATIENCE", 0.05)
        enqueue("a.first")
        other = HeldOrder()
        try:
            enqueue("a.own")
            page = log.read()
            assert types_of(page) == ["a.first"]
            assert Client().get("/ojs/v1/events").json()["cursor"] == page.cursor
            with pytest.raises(HeldByAnother, match="another connection holds the event log"):
                order.catch_up("default")
            assert order.advance("default") == 0
        finally:
            other.let_go()
        assert types_of(log.read(after=page.cursor)) == ["a.own"]

    @pytest.mark.parametrize("code", [1213, 1205, 1180])
    def test_a_pass_that_learns_at_its_end_that_another_was_first_is_made_again(
        self, code: int, monkeypatch: pytest.MonkeyPatch, settings: Any
    ) -> None:
        """As on a node of a Galera cluster, whose locks bind no other node."""
        settings.OJS = {"ALLOW_ANONYMOUS": True}
        number = "_number_transactions" if connection.vendor == "postgresql" else "_stamp_rows"
        act, lost = getattr(order, number), [code, code]

        def lose(using: str, row: EventLog) -> int:
            done: int = act(using, row)
            if lost:
                raise OperationalError(lost.pop(), "Deadlock found when trying to get lock; try restarting transaction")
            return done

        enqueue("a.own")
        monkeypatch.setattr(order, number, lose)
        answer = Client().get("/ojs/v1/events")
        assert answer.status_code == 200
        assert [event["data"]["job_type"] for event in answer.json()["events"]] == ["a.own"]
        assert lost == []


@pytest.mark.django_db(transaction=True)
@pytest.mark.skipif(connection.vendor == "sqlite", reason="SQLite has one writer at a time: there are no passes")
class TestInsideACallersTransaction:
    @pytest.mark.parametrize("look", [log.read, lambda: log.newest(Filter()), lambda: order.advance("default")])
    @pytest.mark.parametrize("manual", [False, True], ids=["atomic", "without autocommit"])
    def test_a_transaction_that_has_read_the_log_stops_no_reader(
        self, look: Callable[[], object], manual: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(order, "PATIENCE", 60.0)
        ids.forget()  # the first that reads the log of a new site, even
        enqueue("a.first")
        has_read, go_on = threading.Event(), threading.Event()

        def read_and_stay() -> None:
            look()
            has_read.set()
            assert go_on.wait(60)

        def run() -> None:
            try:
                if manual:
                    transaction.set_autocommit(False)
                    read_and_stay()
                    transaction.rollback()
                else:
                    with transaction.atomic():
                        read_and_stay()
            finally:
                connections.close_all()

        reader = threading.Thread(target=run)
        reader.start()
        try:
            assert has_read.wait(60)
            enqueue("a.second")
            with ThreadPoolExecutor(1) as pool:
                try:
                    found = pool.submit(_read_and_close).result(20)
                finally:
                    go_on.set()
            assert types_of(found) == ["a.first", "a.second"]
        finally:
            go_on.set()
            reader.join(20)

    def test_a_reader_there_sees_what_is_in_order_and_misses_nothing_later(self) -> None:
        enqueue("a.first")
        cursor = log.read().cursor
        with transaction.atomic():
            enqueue("a.own")
            OpenTransaction("a.other").commit()
            assert types_of(log.read()) == ["a.first"]
            inside = log.read(after=cursor)
            assert inside.events == []
        assert types_of(log.read(after=inside.cursor)) == ["a.own", "a.other"]


def _read_and_close() -> log.EventPage:
    try:
        return log.read()
    finally:
        connections.close_all()


@pytest.mark.django_db
def test_a_reader_finds_what_was_committed_however_much_has_piled_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where rows are stamped in batches, one batch is not all there is."""
    monkeypatch.setattr(order, "_STAMP_BATCH", 10)
    push([{"type": "a.b", "args": [n]} for n in range(35)])
    page = log.read(types=["job.enqueued"], limit=100)
    assert [event["subject"] for event in page.events] == [
        str(pk) for pk in Event.objects.filter(type="job.enqueued").order_by("pk").values_list("job_id", flat=True)
    ]
    assert len(page.events) == 35


@pytest.mark.django_db(transaction=True)
def test_the_place_before_an_instant_is_found_by_halves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(order, "_NEAR", 2)
    begin = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    push([{"type": "a.b", "args": []} for _ in range(40)])
    for number, pk in enumerate(Event.objects.order_by("pk").values_list("pk", flat=True)):
        Event.objects.filter(pk=pk).update(time=begin + dt.timedelta(seconds=number))
    order.catch_up("default")
    some = list(Event.objects.order_by("pk").values_list("pk", flat=True)[5:17:2])
    Event.objects.filter(pk__in=some).delete()
    for number in range(-1, 42):
        instant = begin + dt.timedelta(seconds=number)
        before = Event.objects.filter(time__lt=instant).order_by("-pk").first()
        assert order.before("default", instant).id == (0 if before is None else before.pk), number
