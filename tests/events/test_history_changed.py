"""Readers of a log that has lost its newest events, or is another than it was: they get all of what it has now, and are
told what they cannot get."""

from __future__ import annotations

from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.db import OperationalError, connection, connections, transaction
from django.test import Client

from django_ojs import clock
from django_ojs.events import ids, log, order
from django_ojs.events.filters import Filter
from django_ojs.events.log import EventPage
from django_ojs.events.order import LogPosition
from django_ojs.models import Event, EventLog, MetricSeries
from django_ojs.parts import LastingTask, PartEvent
from django_ojs.realtime import hub as hubs
from django_ojs.realtime import messages
from django_ojs.realtime.hub import Hub
from django_ojs.statistics import eventcounts
from tests.events.changing import Copy, LostPasses, enqueue
from tests.operations.test_event_order import HeldOrder, OpenTransaction
from tests.realtime.conftest import names, nothing_more, take
from tests.realtime.listening import listen
from tests.realtime.sockets import connected

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("new_log")]


@pytest.fixture
def new_log(frozen_clock: Any) -> None:
    ids.forget()


def types_of(page: EventPage) -> list[str]:
    return [event["data"]["job_type"] for event in page.events]


def times() -> dict[str, str]:
    return {event["data"]["job_type"]: event["time"] for event in log.read().events}


def written(*types: str) -> None:
    """Push a job of each type, at times of their own."""
    for name in types:
        clock.advance(seconds=1)
        enqueue(name)


#: What sequences give out next after a failover: what was given out before, or something beyond it.
JUMPS = pytest.mark.parametrize("jump", [0, 1, 32], ids=["no jump", "a jump among the lost", "a jump beyond them"])


class TestACursor:
    @JUMPS
    @pytest.mark.parametrize("new", [["a.new"], ["a.new", "a.other"], ["a.new", "a.other", "a.third"]])
    def test_of_a_lost_event_goes_on_behind_the_last_one_before_it(self, new: list[str], jump: int) -> None:
        """Whether the log is shorter than before, another event has the id, or it is longer."""
        written("a.first", "a.kept")
        copy = Copy()
        written("a.lost", "a.last")
        cursor, told = log.read().cursor, times()
        copy.come_back(*new, jump=jump)
        page = log.read(after=cursor)
        assert types_of(page) == new
        assert page.gap == {
            "reason": "history_changed", "gap_start": told["a.kept"], "gap_end": told["a.last"],
            "estimated_missed_count": 2,
        }  # fmt: skip
        assert log.read(after=page.cursor) == EventPage([], page.cursor, False)

    def test_of_a_lost_event_where_nothing_has_come_since(self) -> None:
        written("a.kept")
        copy, kept = Copy(), log.read().cursor
        written("a.lost")
        cursor = log.read().cursor
        copy.come_back()
        page = log.read(after=cursor)
        assert (page.events, page.cursor) == ([], kept)
        assert page.gap is not None
        enqueue("a.new")
        assert types_of(log.read(after=page.cursor)) == types_of(log.read(after=cursor)) == ["a.new"]

    def test_where_all_that_is_there_is_newer(self) -> None:
        ids.log_row("default")
        copy = Copy()
        written("a.lost", "a.last")
        cursor, told = log.read().cursor, times()
        copy.come_back("a.new", "a.other", "a.third")
        page = log.read(after=cursor)
        assert types_of(page) == ["a.new", "a.other", "a.third"]
        assert page.gap is not None
        assert (page.gap["reason"], page.gap["gap_start"]) == ("history_changed", told["a.last"])
        assert page.gap["gap_end"] == page.events[0]["time"] > page.gap["gap_start"]

    def test_of_an_event_that_is_there_still_has_no_gap(self) -> None:
        written("a.first")
        first = log.read().cursor
        written("a.kept")
        copy = Copy()
        written("a.lost")
        copy.come_back("a.new")
        page = log.read(after=first)
        assert (types_of(page), page.gap) == (["a.kept", "a.new"], None)

    def test_of_a_change_or_a_notice(self) -> None:
        written("a.kept")
        copy = Copy()
        written("a.lost")
        order.catch_up("default")
        place = order.end_position("default")
        (event,) = log.read(types=["job.enqueued"], since=place.time).events
        notice = messages.notice("server.shutdown", place, None)
        standing = notice.split('"id":"')[1][:40]
        assert types_of(log.read(after=standing)) == []
        clock.advance(seconds=1)
        late = messages.notice("server.shutdown", place, None).split('"id":"')[1][:40]
        assert log.read(after=late) == EventPage([], late, False)
        copy.come_back("a.new", "a.other")
        for cursor in (ids.of_change(event["id"], ids.salt_of("default")), standing, late):
            page = log.read(after=cursor)
            assert (types_of(page), page.gap and page.gap["reason"]) == (["a.new", "a.other"], "history_changed")

    def test_that_was_pruned_goes_on_with_the_oldest(self) -> None:
        written("a.first", "a.second", "a.third")
        told, first = times(), log.read(limit=1)
        pruned = Event.objects.get(job_type="a.second").pk
        EventLog.objects.update(pruned_to=pruned)
        Event.objects.filter(pk__lte=pruned).delete()
        page = log.read(after=first.cursor)
        assert types_of(page) == ["a.third"]
        assert page.gap == {
            "reason": "pruned", "gap_start": told["a.first"], "gap_end": told["a.third"], "estimated_missed_count": 1
        }  # fmt: skip

    def test_that_a_standby_does_not_have_yet_waits_for_it(self, monkeypatch: pytest.MonkeyPatch) -> None:
        written("a.first")
        copy = Copy()
        written("a.ahead")
        cursor = log.read().cursor
        monkeypatch.setattr(order, "_is_standby", lambda using: True)
        copy.come_back()
        assert log.read(after=cursor) == EventPage([], cursor, False)
        assert order.find("default", ids.decode(cursor, ids.salt_of("default")).position, clock.now()).state == "ahead"

    @pytest.mark.skipif(connection.vendor == "sqlite", reason="SQLite has one writer at a time: there are no passes")
    def test_of_an_event_that_has_no_place_yet_waits_for_it(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(order, "PATIENCE", 0.05)
        written("a.first")
        other = HeldOrder()
        try:
            written("a.second")
            row = Event.objects.get(job_type="a.second")
            cursor = ids.encode(row.pk, row.time, ids.salt_of("default"))
            assert log.read(after=cursor) == EventPage([], cursor, False)
            assert order.before("default", clock.now()).time == Event.objects.get(job_type="a.first").time
        finally:
            other.let_go()
        assert log.read(after=cursor) == EventPage([], cursor, False)

    def test_that_a_standby_will_never_have_is_told(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Its id was jumped over, so that no other event has it."""
        written("a.first")
        copy = Copy()
        written("a.lost")
        cursor = log.read().cursor
        monkeypatch.setattr(order, "_is_standby", lambda using: True)
        copy.come_back("a.new", jump=32)
        assert log.read(after=cursor) == EventPage([], cursor, False)
        clock.advance(seconds=90)
        enqueue("a.later")
        page = log.read(after=cursor)
        assert (types_of(page), page.gap and page.gap["reason"]) == (["a.new", "a.later"], "history_changed")

    def test_behind_a_load_balancer_with_a_standby_has_one_answer_for_each_case(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Pruned, not here yet, and lost: on the standby, too."""
        written("a.pruned", "a.first")
        pruned = log.read(limit=1).cursor
        oldest = Event.objects.get(job_type="a.first").pk
        EventLog.objects.update(pruned_to=oldest - 1)
        Event.objects.filter(pk__lt=oldest)._raw_delete("default")
        lost = Copy()
        written("a.lost")
        lost_cursor = log.read().cursor
        lost.come_back("a.new")
        lagging = Copy()
        clock.advance(seconds=1)
        enqueue("a.newest")
        newest = log.read().cursor
        on_primary = [log.read(after=cursor) for cursor in (pruned, lost_cursor, newest)]
        lagging.come_back()
        monkeypatch.setattr(order, "_is_standby", lambda using: True)
        on_standby = [log.read(after=cursor) for cursor in (pruned, lost_cursor, newest)]
        reasons = ["pruned", "history_changed", None]
        for pages, more in ((on_primary, ["a.newest"]), (on_standby, [])):
            assert [page.gap and page.gap["reason"] for page in pages] == reasons
            assert [types_of(page) for page in pages] == [["a.first", "a.new", *more], ["a.new", *more], []]
        assert on_standby[2].cursor == newest

    def test_where_sequences_have_jumped_and_nothing_is_lost_has_no_gap(self) -> None:
        written("a.first")
        cursor = log.read().cursor
        Copy().come_back("a.new", jump=32)
        page = log.read(after=cursor)
        assert (types_of(page), page.gap) == (["a.new"], None)
        assert log.read(after=page.cursor) == EventPage([], page.cursor, False)
        assert types_of(log.earlier(Filter(), before=page.cursor)) == ["a.first"]

    def test_a_reader_of_earlier_pages_goes_on_with_what_is_older(self) -> None:
        written("a.first", "a.kept")
        copy = Copy()
        written("a.lost")
        (event,) = log.earlier(Filter(), limit=1).events
        copy.come_back("a.new", "a.other")
        assert types_of(log.earlier(Filter(), before=event["id"])) == ["a.kept", "a.first"]

    @pytest.mark.parametrize("near, found", [(0, ["a.new"]), (5_000, ["a.kept", "a.new"])], ids=["long", "just"])
    def test_goes_not_back_to_an_earlier_change_that_has_been_pruned(
        self, near: int, found: list[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Nor to the begin of the log, in place of it. What was written close to it may still be there for a while."""
        monkeypatch.setattr(order, "_NEAR", near)
        monkeypatch.setattr(order, "before", lambda using, time: order.last(using, job_type="a.kept"))
        written("a.changed", "a.kept")
        log.read()
        changed = Event.objects.get(job_type="a.changed").pk
        EventLog.objects.update(kept_to=changed, pruned_to=changed)
        Event.objects.filter(pk=changed)._raw_delete("default")
        copy = Copy()
        written("a.lost")
        cursor = log.read().cursor
        copy.come_back("a.new")
        assert types_of(log.read(after=cursor)) == found

    def test_over_http(self, settings: Any) -> None:
        settings.OJS = {"ALLOW_ANONYMOUS": True}
        written("a.kept")
        copy = Copy()
        written("a.lost")
        cursor = Client().get("/ojs/v1/events").json()["cursor"]
        copy.come_back("a.new")
        found = Client().get("/ojs/v1/events", {"after": cursor}).json()
        assert [event["data"]["job_type"] for event in found["events"]] == ["a.new"]
        assert (found["gap"]["reason"], found["gap"]["estimated_missed_count"]) == ("history_changed", 1)


@pytest.mark.skipif(connection.vendor == "sqlite", reason="SQLite has one writer at a time: there are no passes")
class TestATransactionThatIsSlowerThanALostPass:
    """It is open during the pass, and what it has written is kept: readers have seen events behind its own."""

    def lose_a_pass(self) -> tuple[str, str]:
        """The cursors of a reader of before, and of what it has seen last that another has put in order."""
        written("a.kept")
        kept = log.read().cursor
        lost = LostPasses()
        slow = OpenTransaction("a.slow")
        clock.advance(seconds=1)
        enqueue("a.quick")
        cursor = log.read(after=kept).cursor
        slow.commit()
        lost.happen()
        assert kept
        assert cursor
        return kept, cursor

    def test_a_reader_of_what_came_behind_it_gets_it_and_is_told(self) -> None:
        kept, cursor = self.lose_a_pass()
        page = log.read(after=cursor)
        assert types_of(page) == ["a.slow", "a.quick"]
        assert page.gap is not None
        assert page.gap["reason"] == "history_changed"
        again = log.read(after=kept)
        assert (again.events, again.gap) == (page.events, None)
        assert types_of(log.read()) == ["a.kept", "a.slow", "a.quick"]
        first = log.read(after=kept, limit=1)
        assert types_of(log.read(after=first.cursor)) == ["a.quick"]

    @pytest.mark.parametrize("is_lost", [True, False], ids=["lost", "kept"])
    def test_a_reader_that_looks_while_the_pass_is_made_gets_it(
        self, monkeypatch: pytest.MonkeyPatch, is_lost: bool
    ) -> None:
        """Whether the event that it has seen last is lost, or waits for a place."""
        kept, cursor = self.lose_a_pass()
        if is_lost:
            Event.objects.filter(job_type="a.quick")._raw_delete("default")
        before = order.before

        def after_the_pass(*given: Any) -> LogPosition:
            order.catch_up("default")
            return before(*given)

        monkeypatch.setattr(order, "before", after_the_pass)
        place, gap = log.start(cursor, "default")
        assert log.cursor(place, "default") == kept
        assert gap is not None

    def test_of_a_host_whose_clock_is_behind(self, frozen_clock: Any) -> None:
        _, cursor = self.lose_a_pass()
        frozen_clock.advance(seconds=-30)
        enqueue("a.new")
        assert types_of(log.read(after=cursor)) == ["a.slow", "a.quick", "a.new"]

    def test_a_server_that_only_began_again_loses_nothing_and_tells_nobody(self) -> None:
        written("a.kept")
        log.read()
        run = EventLog.objects.get().run
        EventLog.objects.update(run=f"{run.partition('@')[0]}@1")
        enqueue("a.new")
        page = log.read()
        assert (types_of(page), page.gap, EventLog.objects.get().changes) == (["a.kept", "a.new"], None, 0)
        assert log.read(after=page.cursor) == EventPage([], page.cursor, False)

    def test_metrics_count_each_event_once(self) -> None:
        written("a.kept")
        eventcounts.catch_up("default")
        self.lose_a_pass()
        log.read()
        eventcounts.catch_up("default")
        assert sum(MetricSeries.objects.filter(event="job.enqueued").values_list("count", flat=True)) == 4


def do(call: Any, *args: Any) -> Any:
    return sync_to_async(call)(*args)


@pytest.fixture
async def closing(new_log: None, transactional_db: None) -> Any:
    yield
    await sync_to_async(connections.close_all)()


def lost_with(slow: OpenTransaction, lost: LostPasses) -> None:
    """The transaction ends and the passes are lost, in one moment for the hub."""
    with transaction.atomic():
        EventLog.objects.select_for_update().get(pk=1)
        slow.commit()
        lost.happen()


@pytest.mark.usefixtures("closing")
class TestAListener:
    @JUMPS
    @pytest.mark.parametrize("new", [[], ["a.new"], ["a.new", "a.b", "a.c", "a.d", "a.e"]])
    async def test_is_told_and_gets_all_that_comes_then(self, new: list[str], jump: int) -> None:
        await do(written, "a.kept")
        async with Hub.current().subscribe(Filter()) as stream, Hub.current().subscribe(Filter()) as idle:
            await nothing_more(stream)
            copy = await do(Copy)
            await do(written, "a.lost", "a.gone", "a.last")
            assert names(await take(stream, 3)) == names(await take(idle, 3)) == ["a.lost", "a.gone", "a.last"]
            await do(lambda: copy.come_back(*new, jump=jump))
            for each in (stream, idle):
                gap, *events = await take(each, 1 + len(new))
                assert names([gap, *events]) == ["gap", *new]
                assert gap.details["reason"] == "history_changed"
                assert gap.details["estimated_missed_count"] == 3
                await nothing_more(each)
            await do(enqueue, "a.live")
            assert names(await take(stream, 1)) == ["a.live"]

    @pytest.mark.skipif(connection.vendor == "sqlite", reason="SQLite has one writer at a time: there are no passes")
    async def test_gets_what_a_transaction_wrote_that_was_slower_than_a_lost_pass(self) -> None:
        await do(written, "a.kept")
        async with Hub.current().subscribe(Filter()) as stream:
            await nothing_more(stream)
            lost, slow = await do(LostPasses), await do(OpenTransaction, "a.slow")
            await do(written, "a.quick")
            assert names(await take(stream, 1)) == ["a.quick"]
            await do(lost_with, slow, lost)
            assert names(await take(stream, 3)) == ["gap", "a.slow", "a.quick"]
            await nothing_more(stream)

    async def test_that_is_slow_is_told_once_and_goes_on(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(hubs, "PAGE", 2)
        await do(written, "a.kept")
        async with Hub.current().subscribe(Filter(), buffer=1) as slow, Hub.current().subscribe(Filter()) as quick:
            await nothing_more(quick)
            copy = await do(Copy)
            await do(written, "a.l1", "a.l2", "a.l3", "a.l4")
            await take(quick, 4)
            assert slow.lags
            assert names(await take(slow, 3)) == ["a.l1", "a.l2", "a.l3"]
            await do(copy.come_back, "a.n1", "a.n2", "a.n3", "a.n4", "a.n5")
            found = names(await take(slow, 6))
            assert found == ["gap", "a.n1", "a.n2", "a.n3", "a.n4", "a.n5"]
            await nothing_more(slow)

    async def test_gets_nothing_that_the_hub_has_not_reached_and_so_would_not_miss(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A listener that reads from the log by itself would else have events of which the hub never learns that they
        are lost."""
        monkeypatch.setattr(hubs, "BUSY", 60.0)
        monkeypatch.setattr(hubs, "IDLE", 60.0)
        await do(written, "a.kept", "a.also")
        first = (await do(lambda: log.read(limit=1))).cursor
        async with Hub.current().subscribe(Filter(), after=first) as stream:
            copy = await do(Copy)
            await do(written, "a.lost", "a.gone")
            await do(order.catch_up, "default")
            assert names(await take(stream, 1)) == ["a.also"]
            await do(copy.come_back, "a.new")
            await Hub.current().synced()
            assert names(await take(stream, 1)) == ["a.new"]

    async def test_whose_own_events_are_all_there_has_no_gap(self) -> None:
        await do(written, "a.first", "a.kept")
        first = (await do(lambda: log.read(limit=1))).cursor
        copy = await do(Copy)
        await do(written, "a.lost")
        async with Hub.current().subscribe(Filter(), after=first, buffer=1) as stream:
            await do(copy.come_back, "a.new")
            await Hub.current().synced()
            assert names(await take(stream, 2)) == ["a.kept", "a.new"]

    async def test_whose_log_was_pruned_up_to_where_it_is_has_no_gap(self) -> None:
        async with Hub.current().subscribe(Filter()) as stream:
            await do(written, "a.first", "a.second")
            assert names(await take(stream, 2)) == ["a.first", "a.second"]

            def prune(further: int) -> None:
                newest = EventLog.objects.get().pruned_to or order.newest_id("default")
                EventLog.objects.update(pruned_to=newest + further)
                Event.objects.all()._raw_delete("default")

            await do(prune, 0)
            await nothing_more(stream)
            await do(prune, 3)  # the process stood still meanwhile
            (gap,) = await take(stream, 1)
            assert (gap.kind, gap.details["estimated_missed_count"]) == ("dropped", 3)
            await nothing_more(stream)
            await do(enqueue, "a.new")
            assert names(await take(stream, 1)) == ["a.new"]

    async def test_is_told_of_a_gap_also_where_the_database_goes_away_while_that_is_read(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        named, errors = log.named, iter([OperationalError("gone")])

        def flaky(*args: Any) -> Any:
            for error in errors:
                raise error
            return named(*args)

        for pause in ("BUSY", "IDLE"):  # a look for each call of `synced`, and none of its own accord
            monkeypatch.setattr(hubs, pause, 3600.0)
        async with Hub.current().subscribe(Filter()) as stream:
            await do(written, "a.first")
            await Hub.current().synced()
            assert names(await take(stream, 1)) == ["a.first"]
            monkeypatch.setattr(log, "named", flaky)

            def prune() -> None:
                EventLog.objects.update(pruned_to=order.newest_id("default") + 3)
                Event.objects.all()._raw_delete("default")

            await do(prune)
            await Hub.current().synced()
            assert not list(errors)
            assert [(item.kind, item.details["estimated_missed_count"]) for item in stream._buffer] == [("dropped", 3)]
            await take(stream, 1)
            await nothing_more(stream)

    async def test_of_a_standby_that_lags_waits(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(order, "_is_standby", lambda using: True)
        async with Hub.current().subscribe(Filter()) as stream:
            await do(written, "a.first")
            copy = await do(Copy)
            await do(written, "a.ahead")
            assert names(await take(stream, 2)) == ["a.first", "a.ahead"]
            await do(copy.come_back)
            await nothing_more(stream)


def test_to_look_for_new_events_is_one_statement(django_assert_num_queries: Any) -> None:
    """It also shows that the log is the one that was read."""
    written("a.first")
    order.catch_up("default")
    ids.salt_of("default")
    stopping = PartEvent(LastingTask("event hub", hubs.Hub()._run))
    reader, place = hubs.LogReader("default", stopping), order.end_position("default")
    reader.stop()
    with django_assert_num_queries(1):
        page = reader._new(place)
    assert (page.entries, page.place) == ([], place)
    written("a.second")
    order.catch_up("default")
    with django_assert_num_queries(1):
        assert len(reader._new(place).entries) == 1


@pytest.mark.usefixtures("closing")
class TestTheDoors:
    @pytest.fixture(autouse=True)
    def _open_site(self, settings: Any) -> None:
        settings.OJS = {"ALLOW_ANONYMOUS": True}

    async def test_event_streams(self) -> None:
        await do(written, "a.kept")
        kept = (await do(log.read)).cursor
        async with listen("/events/stream", "types=job.enqueued,job.state_changed") as stream:
            copy = await do(Copy)
            await do(written, "a.lost", "a.gone")
            seen = await stream.events(4)
            await do(copy.come_back, "a.new")
            gap, change, event = await stream.events(3)
        assert [frame.event for frame in seen] == ["job.state_changed", "job.enqueued"] * 2
        assert [gap.event, change.event, event.event] == ["system.gap", "job.state_changed", "job.enqueued"]
        assert (gap.data["reason"], gap.data["estimated_missed_count"]) == ("history_changed", 2)
        assert event.data["data"]["job_type"] == "a.new"
        async with listen("/events/stream", "types=job.enqueued", last_event_id=seen[-1].id) as stream:
            gap, event = await stream.events(2)
        assert (gap.event, gap.data["gap_end"]) == ("system.gap", seen[-1].data["time"])
        assert event.data["data"]["job_type"] == "a.new"
        assert [frame.id for frame in stream.seen if frame.id and not frame.event] == [kept]

    async def test_web_sockets(self) -> None:
        await do(written, "a.kept")
        kept = (await do(log.read)).cursor
        async with connected() as socket, connected() as other:
            await socket.ask({"action": "subscribe", "channel": "all", "event_types": ["job.enqueued"]})
            await socket.ask({"action": "subscribe", "channel": "queue:default", "event_types": ["job.failed"]})
            copy = await do(Copy)
            await do(written, "a.lost", "a.gone")
            lost = await socket.events(2)
            # Behind what is lost, and with nothing to come that it would have to be told of.
            await other.ask({"action": "subscribe", "channel": "events", "filter": {"event_types": ["job.enqueued"]}})
            await do(copy.come_back, "a.new", "a.more")
            found = await socket.events(4)
            assert [frame["event"] for frame in found] == ["system.gap", "system.gap", "job.enqueued", "job.enqueued"]
            assert found[0]["data"]["reason"] == "history_changed"
            assert [frame["data"]["job_type"] for frame in found[2:]] == ["a.new", "a.more"]
            gap, *news = await other.events(3)
            assert [gap["type"], *(each["data"]["job_type"] for each in news)] == ["system.gap", "a.new", "a.more"]
        for cursor in (lost[-1]["id"], found[0]["id"], kept):
            async with connected() as socket:
                await socket.ask(
                    {"action": "subscribe", "channel": "all", "event_types": ["job.enqueued"], "after": cursor}
                )
                again = await socket.events(3 if cursor == lost[-1]["id"] else 2)
                assert [frame["data"]["job_type"] for frame in again[-2:]] == ["a.new", "a.more"]
