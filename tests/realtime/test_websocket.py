"""The WebSocket binding: dialects, filters, cursors, and what a hostile or a slow client gets (events 3)."""

from __future__ import annotations

import asyncio
import json
import uuid
from typing import Any

import pytest
from django.db import OperationalError

from django_ojs.events import ids, log
from django_ojs.jobs.cancel import cancel
from django_ojs.jobs.fetch import Fetch, fetch
from django_ojs.jobs.finish import Ack, ack
from django_ojs.jobs.push import push
from django_ojs.models import Event, EventLog
from django_ojs.realtime import hub as hub_module
from django_ojs.realtime import websocket as connection_module
from django_ojs.realtime.hub import Hub
from django_ojs.rules.ids import new_job_id
from django_ojs.workflows import workflow
from tests.realtime.conftest import do, enqueue
from tests.realtime.sockets import Socket, connected

pytestmark = [pytest.mark.usefixtures("database", "anonymous")]

NEVER = "evt_019539a4-b68c-7def-8000-aabbccddeeff"


@pytest.fixture
def anonymous(settings: Any) -> None:
    settings.OJS = {"ALLOW_ANONYMOUS": True}


async def subscribe(socket: Socket, **message: Any) -> dict[str, Any]:
    answer = await socket.ask({"action": "subscribe", **message})
    assert answer["type"] == answer["action"] == "subscribed", answer
    return answer  # type: ignore[no-any-return]


async def complete(count: int = 1, queue: str = "default") -> None:
    rows = await do(fetch, Fetch([queue], worker_id="w", count=count))
    await do(ack, [Ack(row["id"]) for row in rows])


def kinds(frames: list[Any]) -> list[str]:
    return [frame["event"] if frame.get("type") == "event" else frame["type"] for frame in frames]


class TestDialects:
    @pytest.mark.parametrize("path", ["/ojs/v1/ws", "/ojs/v1/events/ws"])
    async def test_the_events_specification(self, path: str) -> None:
        async with connected(path) as socket:
            wanted = {"event_types": ["job.completed", "job.failed"], "queues": ["email"]}
            answer = await subscribe(socket, channel="events", filter=wanted)
            assert answer["channel"] == "events"
            assert answer["subscription_id"].startswith("sub_")
            assert answer["filter"] == wanted
            await enqueue("email.send", queue="email")
            await enqueue("other.thing")
            await complete(queue="email")
            await complete()
            event = await socket.take()
            assert set(event) == {"specversion", "id", "type", "source", "time", "subject", "datacontenttype", "data"}
            assert (event["type"], event["data"]["queue"]) == ("job.completed", "email")
            gone = await socket.ask({"action": "unsubscribe", "subscription_id": answer["subscription_id"]})
            assert (gone["action"], gone["subscription_id"]) == ("unsubscribed", answer["subscription_id"])
            await enqueue("email.send", queue="email")
            await complete(queue="email")
            await Hub.current().synced()
            await socket.nothing()

    async def test_the_realtime_document(self) -> None:
        async with connected() as socket:
            (job_id,) = await enqueue("a.b")
            answer = await subscribe(socket, channel=f"job:{job_id}", event_types=["job.*", "job.state_changed"])
            assert answer["channel"] == f"job:{job_id}"
            await enqueue("a.other")
            await do(cancel, [uuid.UUID(job_id)])
            change, event = await socket.events(2)
            assert (event["type"], event["event"], event["channel"]) == ("event", "job.cancelled", f"job:{job_id}")
            assert event["id"] != change["id"]
            assert change["event"] == "job.state_changed"
            assert change["data"] == {
                "job_id": job_id, "queue": "default", "type": "a.b", "job_type": "a.b", "state": "cancelled",
                "attempt": 0, "from": "available", "to": "cancelled", "timestamp": change["timestamp"],
            }  # fmt: skip
            assert (await socket.ask({"action": "unsubscribe", "channel": f"job:{job_id}"}))["type"] == "unsubscribed"
            assert (await socket.ask({"action": "unsubscribe", "channel": "queue:never"}))["channel"] == "queue:never"

    async def test_a_channel_subscribed_again_has_its_filter_replaced(self) -> None:
        async with connected() as socket:
            await subscribe(socket, channel="queue:default")
            answer = await subscribe(socket, channel="queue:default", event_types=["job.state_changed"])
            assert answer["event_types"] == ["job.state_changed"]
            await enqueue("a.b")
            await complete()
            assert kinds(await socket.events(3)) == ["job.state_changed"] * 3
            await socket.nothing()

    async def test_the_proposal(self) -> None:
        async with connected() as socket:
            answer = await subscribe(socket, subscription_id="mine", filters={"types": ["job.enqueued"]})
            assert answer["subscription_id"] == "mine"
            await enqueue("a.b")
            frame = await socket.take()
            assert frame["subscription_id"] == "mine"
            assert frame["event"]["type"] == "job.enqueued"
            gone = await socket.ask({"action": "unsubscribe", "subscription_id": "mine"})
            assert gone["subscription_id"] == "mine"

    async def test_a_filter_beside_an_id_of_the_client_counts_and_what_is_empty_narrows_nothing(self) -> None:
        wanted, empty = {"queues": ["mail"]}, {"types": [], "queues": None, "job_types": []}
        async with connected() as socket:
            for given in ({"filter": wanted}, {"filters": wanted, "filter": wanted}, {"filters": wanted, "filter": {}}):
                answer = await subscribe(socket, subscription_id="mine", **given)
                assert answer["filters"] == wanted
            await enqueue("a.b")
            await enqueue("a.b", queue="mail")
            assert (await socket.take())["event"]["data"]["queue"] == "mail"
            await socket.nothing()
            await subscribe(socket, channel="all", filter=empty, filters={}, event_types=[])
            await subscribe(socket, channel="events", filter=empty, event_types=[], queues=[])

    async def test_all_of_them_on_one_connection(self) -> None:
        """Bare once though two subscriptions match, wrapped once for each of the others."""
        async with connected() as socket:
            await subscribe(socket, channel="events")
            await subscribe(socket, filter={"event_types": ["job.*"]})
            await subscribe(socket, channel="all", event_types=["job.enqueued"])
            await subscribe(socket, subscription_id="x")
            await enqueue("a.b")
            frames = await socket.events(3)
            await socket.nothing()
            assert sorted(next(k for k in ("specversion", "channel", "subscription_id") if k in f) for f in frames) == [
                "channel", "specversion", "subscription_id"
            ]  # fmt: skip

    @pytest.mark.parametrize("ping", [{"action": "ping"}, {"type": "ping"}])
    async def test_both_pings(self, ping: dict[str, str]) -> None:
        async with connected() as socket:
            assert await socket.ask(ping) == {"action": "pong", "type": "pong"}
            answer = await socket.ask({"type": "subscribe", "channel": "all"})
            assert answer["type"] == "subscribed"

    @pytest.mark.parametrize("more", [{}, {"event_types": ["job.*"]}, {"event_types": ["*"]}])
    async def test_no_channel_repeats_an_id_so_that_who_deduplicates_loses_nothing(self, more: Any) -> None:
        await complete()  # from here on its worker is known
        async with connected() as socket:
            (job_id,) = await enqueue("a.b")
            for channel in ("all", "queue:default", f"job:{job_id}"):
                await subscribe(socket, channel=channel, **more)
            await complete()
            frames = await socket.events(6)
            await socket.nothing()
            assert [frame["event"] for frame in frames] == ["job.started"] * 3 + ["job.completed"] * 3
            assert len({frame["id"] for frame in frames}) == 2

    async def test_each_id_is_a_cursor_between_a_change_and_its_event_too(self) -> None:
        types = ["job.enqueued", "job.state_changed"]
        await enqueue("a.one", "a.two")
        whole = [event["id"] for event in (await do(log.read, types=types)).events]
        for number, cursor in enumerate(whole[:-1], 1):
            for how in ({"channel": "all", "event_types": types}, {"filter": {"event_types": types}}):
                async with connected() as socket:
                    await subscribe(socket, after=cursor, **how)
                    frames = await socket.events(len(whole) - number)
                    await socket.nothing()
                    assert [frame["id"] for frame in frames] == whole[number:]

    async def test_a_change_of_state_only_for_who_names_it(self) -> None:
        async with connected() as socket:
            await subscribe(socket, filter={"event_types": ["job.state_changed"]})
            await subscribe(socket, filter={"event_types": ["job.*"]})
            await enqueue("a.b")
            assert {frame["type"] for frame in await socket.events(2)} == {"job.enqueued", "job.state_changed"}
            await socket.nothing()

    async def test_prefixes_and_the_other_dimensions(self) -> None:
        async with connected() as socket:
            (job_id,) = await enqueue("a.b")
            await subscribe(socket, filter={"job_ids": [job_id], "sources": ["ojs://django-ojs/workers/*"]})
            await subscribe(socket, filter={"job_types": ["c.d"], "event_types": ["job.en*"]})
            await enqueue("c.d")
            await complete(2)
            frames = await socket.events(3)
            assert [(f["type"], f["data"]["job_type"]) for f in frames] == [
                ("job.enqueued", "c.d"), ("job.started", "a.b"), ("job.completed", "a.b")
            ]  # fmt: skip

    async def test_a_workflow_by_the_id_that_its_client_gave_it(self) -> None:
        document = {"type": "chain", "steps": [{"type": "a.b", "args": []}]}
        async with connected() as socket:
            for own in ({"id": "order:17"}, {}, {}):
                flow = (await do(workflow.create, {**own, **document})).workflow
            wanted = {"workflow_ids": ["order:17", str(flow.pk)], "event_types": ["workflow.completed"]}
            assert (await subscribe(socket, filter=wanted))["filter"] == wanted
            await complete(3)
            assert [event["subject"] for event in await socket.events(2)] == ["order:17", str(flow.pk)]

    async def test_a_workflow_that_there_is_not_has_no_events(self) -> None:
        async with connected() as socket:
            await subscribe(socket, filter={"workflow_ids": ["order:18"]})
            await enqueue("a.b")
            await do(workflow.create, {"id": "order:17", "type": "chain", "steps": [{"type": "a.b", "args": []}]})
            await socket.nothing()


class TestCursors:
    async def test_after_replays_then_goes_on_live(self) -> None:
        await enqueue("a.n0")
        cursor = (await do(log.read)).cursor
        await enqueue("a.n1", "a.n2")
        async with connected() as socket:
            await subscribe(socket, channel="events", after=cursor)
            await enqueue("a.n3")
            frames = await socket.events(3)
            assert [frame["data"]["job_type"] for frame in frames] == ["a.n1", "a.n2", "a.n3"]
            await socket.nothing()

    async def test_nothing_is_read_for_subscriptions_that_have_ended(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Each of many replays would cost a look through the whole log."""
        monkeypatch.setattr(hub_module, "PAGE", 1)
        await enqueue("a.n0")
        cursor = (await do(log.read)).cursor
        await enqueue("a.n1", "a.n2", "a.n3")
        read, begun, ended = hub_module.LogReader.replay, asyncio.Event(), asyncio.Event()
        looks: list[int] = []

        async def replay(reader: Any, place: Any, filters: Any) -> Any:
            looks.append(len(filters))
            begun.set()
            await ended.wait()
            return await read(reader, place, filters)

        monkeypatch.setattr(hub_module.LogReader, "replay", replay)
        async with connected() as socket:
            await subscribe(socket, channel="all", after=cursor)
            await begun.wait()
            assert (await socket.ask({"action": "unsubscribe", "channel": "all"}))["type"] == "unsubscribed"
            ended.set()
            await subscribe(socket, channel="queue:default", after=cursor)
            frames = await socket.events(3)
            await socket.nothing()
        assert [frame["channel"] for frame in frames] == ["queue:default"] * 3
        assert 0 not in looks

    async def test_two_overlapping_replays_send_each_event_once(self) -> None:
        await enqueue("a.n0")
        cursor = (await do(log.read)).cursor
        await enqueue("a.n1", "a.n2")
        async with connected() as socket:
            await socket.send({"action": "subscribe", "channel": "events", "after": cursor})
            await socket.send({"action": "subscribe", "filter": {"event_types": ["job.*"]}, "after": cursor})
            frames = await socket.events(4)
            await socket.nothing()
            ids = [frame["id"] for frame in frames if frame["type"] == "job.enqueued"]
            assert len(ids) == len(set(ids)) == 2

    async def test_resume_on_a_new_connection(self) -> None:
        await enqueue("a.n0")
        cursor = (await do(log.read)).cursor
        await enqueue("a.n1")
        async with connected() as socket:
            assert (await socket.ask({"action": "resume", "last_event_id": cursor}))["type"] == "resumed"
            await subscribe(socket, channel="queue:default", event_types=["job.enqueued"])
            await enqueue("a.n2")
            frames = await socket.events(2)
            assert [frame["data"]["job_type"] for frame in frames] == ["a.n1", "a.n2"]

    async def test_resume_restarts_what_is_subscribed_and_takes_subscriptions_along(self) -> None:
        await enqueue("a.n0")
        cursor = (await do(log.read)).cursor
        await enqueue("a.n1")
        async with connected() as socket:
            await subscribe(socket, channel="all", event_types=["job.enqueued"])
            more = ["queue:default", {"channel": "events"}]
            await socket.send({"action": "resume", "last_event_id": cursor, "subscriptions": more})
            frames = await socket.events(3)
            await enqueue("a.n2")
            frames += await socket.events(6)
            assert frames[0]["type"] == "resumed"
            assert [frame["type"] for frame in frames[1:3]] == ["subscribed"] * 2
            for channel in ("all", "queue:default"):
                told = [f["data"]["job_type"] for f in frames[3:] if f.get("channel") == channel]
                assert told == ["a.n1", "a.n2"]
            assert [f["data"]["job_type"] for f in frames[3:] if "specversion" in f] == ["a.n1", "a.n2"]
            await socket.nothing()

    async def test_a_resume_takes_the_place_of_those_before(self, monkeypatch: pytest.MonkeyPatch) -> None:
        await enqueue("a.n0")
        cursor = (await do(log.read)).cursor
        await enqueue("a.n1", "a.n2")
        read, begun, resumed = hub_module.LogReader.replay, asyncio.Event(), asyncio.Event()

        async def replay(reader: Any, place: Any, filters: Any) -> Any:
            begun.set()
            await resumed.wait()
            return await read(reader, place, filters)

        monkeypatch.setattr(hub_module.LogReader, "replay", replay)
        async with connected() as socket:
            await subscribe(socket, channel="all", event_types=["job.enqueued"])
            for _ in range(3):
                assert (await socket.ask({"action": "resume", "last_event_id": cursor}))["type"] == "resumed"
                await begun.wait()
            resumed.set()
            frames = await socket.events(2)
            await enqueue("a.n3")
            frames += await socket.events(1)
        assert [frame["data"]["job_type"] for frame in frames] == ["a.n1", "a.n2", "a.n3"]

    async def test_a_resume_that_is_refused_changes_nothing(self) -> None:
        await enqueue("a.n0")
        cursor = (await do(log.read)).cursor
        await enqueue("a.n1")
        async with connected() as socket:
            for unknown in (f"job:{new_job_id()}", "queue:nowhere"):
                more = ["queue:default", unknown]
                answer = await socket.ask({"action": "resume", "last_event_id": cursor, "subscriptions": more})
                assert (answer["type"], answer["code"]) == ("error", "not_found")
            await subscribe(socket, channel="queue:default")
            await enqueue("a.n2")
            assert [frame["data"]["job_type"] for frame in await socket.events(1)] == ["a.n2"]
            await socket.nothing()

    async def test_an_interval_leaves_out_what_comes_too_soon_and_only_there(self) -> None:
        async with connected() as socket:
            answer = await subscribe(socket, channel="events", filter={}, min_interval_ms=60_000)
            assert answer["min_interval_ms"] == 60_000
            await subscribe(socket, channel="all", event_types=["job.enqueued"])
            await enqueue("a.b", "a.c", "a.d")
            found = await socket.events(4)
            assert sorted(kinds(found)) == ["job.enqueued"] * 4
            assert [frame["data"]["job_type"] for frame in found if frame["type"] != "event"] == ["a.b"]
            await socket.nothing()

    @pytest.mark.parametrize("interval", [-1, 60_001, 1.5, True, "500", [500]])
    async def test_an_interval_that_is_none(self, interval: Any) -> None:
        async with connected() as socket:
            message = {"action": "subscribe", "channel": "events", "min_interval_ms": interval}
            assert (await socket.ask(message))["code"] == "invalid_request"

    async def test_an_id_that_was_never_issued(self) -> None:
        async with connected() as socket:
            for message in (
                {"action": action, "channel": "events", name: cursor}
                for action, name in (("resume", "last_event_id"), ("subscribe", "after"))
                for cursor in (NEVER, "evt_x", "17")
            ):
                answer = await socket.ask(message)
                assert (answer["type"], answer["code"]) == ("error", "unknown_event_id")
            await subscribe(socket, channel="events")

    async def test_an_id_that_was_pruned(self) -> None:
        await enqueue("a.old", "a.kept")
        cursor = (await do(log.read, limit=1)).cursor

        def prune() -> None:
            EventLog.objects.update(pruned_to=Event.objects.get(job_type="a.old").pk)
            Event.objects.filter(job_type="a.old").delete()

        await do(prune)
        async with connected() as socket:
            await subscribe(socket, channel="all", event_types=["job.enqueued"], after=cursor)
            gap, kept = await socket.events(2)
            assert gap["event"] == "system.gap"
            assert gap["data"]["channel"] == "all"
            assert gap["data"]["gap_start"] <= gap["data"]["gap_end"] == kept["timestamp"]
            await socket.ask({"action": "unsubscribe", "channel": "all"})
            assert (await subscribe(socket, channel="events", after=gap["id"]))["channel"] == "events"
            assert [frame["type"] for frame in await socket.events(2)] == ["system.gap", "job.enqueued"]
            await socket.ask({"action": "unsubscribe", "channel": "events"})
            await subscribe(socket, channel="events", after=cursor)
            assert [frame["type"] for frame in await socket.events(2)] == ["system.gap", "job.enqueued"]

    async def test_the_id_of_a_notice_is_a_cursor_too(self) -> None:
        async with connected() as socket:
            await subscribe(socket, channel="events")
            await enqueue("a.one")
            (event,) = await socket.events(1)
            Hub.current().shut_down(reason="test", grace_period_ms=5000)
            notice = await socket.take()
            assert (notice["type"], notice["data"]["grace_period_ms"]) == ("server.shutdown", 5000)
            assert await socket.end() == 1001
        assert notice["id"] != event["id"]
        await enqueue("a.two")
        page = await do(log.read, after=notice["id"])
        assert [entry["data"]["job_type"] for entry in page.events] == ["a.two"]

    async def test_replays_of_many_pages_while_new_events_come(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(hub_module, "PAGE", 5)
        await enqueue("a.n0")
        cursor = (await do(log.read)).cursor
        await enqueue(*(f"a.n{n}" for n in range(1, 30)))
        async with connected() as socket:
            await subscribe(socket, channel="events")
            await subscribe(socket, subscription_id="late", after=cursor)
            await enqueue(*(f"a.n{n}" for n in range(30, 40)))
            frames = await socket.events(29 + 20)
            late = [frame["event"]["data"]["job_type"] for frame in frames if "event" in frame]
            live = [frame["data"]["job_type"] for frame in frames if "specversion" in frame]
            assert late == [f"a.n{n}" for n in range(1, 40)]
            assert live == [f"a.n{n}" for n in range(30, 40)]


NONSENSE = [
    "", "x", "[]", "null", "17", '"x"', "{", "{}", '{"action":1}', '{"action":"fly"}', '{"action":null}',
    '{"action":"subscribe"}', '{"action":"subscribe","channel":7}', '{"action":"subscribe","channel":"job:x"}',
    '{"action":"subscribe","channel":"queue:"}', '{"action":"subscribe","channel":"queue:A B"}',
    '{"action":"subscribe","channel":"tenant:x"}', '{"action":"subscribe","channel":"all","event_types":"x"}',
    '{"action":"subscribe","channel":"events","filter":[]}',
    '{"action":"subscribe","filter":{"event_types":[1]}}', '{"action":"subscribe","filter":{"queues":[""]}}',
    '{"action":"subscribe","filter":{"sources":["a\\u0000b"]}}',
    '{"action":"subscribe","filter":{"job_ids":["x"]}}', '{"action":"subscribe","filters":{"types":{}}}',
    '{"action":"subscribe","filter":{"queue":["mail"]}}', '{"action":"subscribe","filters":{"job_type":["a.b"]}}',
    '{"action":"subscribe","channel":"all","filter":{"queues":["mail"]}}',
    '{"action":"subscribe","channel":"all","queues":["mail"]}',
    '{"action":"subscribe","channel":"events","queues":["mail"]}',
    '{"action":"subscribe","channel":"events","filters":{"queues":["mail"]}}',
    '{"action":"subscribe","filter":{},"event_types":["job.failed"]}',
    '{"action":"subscribe","filters":{"types":["job.failed"]},"filter":{"queues":["mail"]}}',
    '{"action":"subscribe","subscription_id":"a","queues":["mail"]}',
    '{"action":"resume"}', '{"action":"resume","last_event_id":[]}',
    '{"action":"resume","last_event_id":"evt_1","subscriptions":[1]}', '{"action":"unsubscribe","channel":[]}',
    "[" * 5000 + "]" * 5000, '{"action":"subscribe","channel":"events","after":"\\u0000"}',
    json.dumps({"action": "subscribe", "filter": {"queues": ["q"] * 101}}), '{"action":"\\ud800"}',
]  # fmt: skip


class TestHostileFrames:
    async def test_nonsense_is_refused_and_the_connection_stays(self) -> None:
        async with connected() as socket:
            for text in NONSENSE:
                answer = await socket.ask(text)
                assert (answer["action"], answer["type"], answer["code"]) == ("error", "error", "invalid_request"), text
                assert answer["message"]
            await subscribe(socket, channel="events")
            await enqueue("a.b")
            assert (await socket.take())["type"] == "job.enqueued"

    async def test_the_error_names_the_message_it_is_about(self) -> None:
        async with connected() as socket:
            answer = await socket.ask({"action": "subscribe", "channel": "x:y", "request_id": "r1"})
            assert (answer["request_id"], answer["channel"]) == ("r1", "x:y")

    async def test_the_job_or_queue_of_a_channel_is_unknown(self) -> None:
        async with connected() as socket:
            for channel in (f"job:{new_job_id()}", "queue:nowhere"):
                answer = await socket.ask({"action": "subscribe", "channel": channel})
                assert (answer["code"], answer["channel"]) == ("not_found", channel)
            await subscribe(socket, filter={"queues": ["nowhere"], "event_types": ["job.enqueued"]})
            await enqueue("first.job", queue="nowhere")  # a filter has waited for it
            assert (await socket.take())["data"]["queue"] == "nowhere"
            await subscribe(socket, channel="queue:nowhere")

    async def test_a_message_that_is_too_long(self) -> None:
        async with connected() as socket:
            assert (await socket.ask('"' + "é" * 32_767 + '"'))["code"] == "invalid_request"  # 65,536 bytes
            await socket.send('"' + "é" * 32_768 + '"')
            assert await socket.end() == 1009

    async def test_binary_frames(self) -> None:
        async with connected() as socket:
            await socket.send_bytes(b"{}")
            assert await socket.end() == 1003

    async def test_too_many_subscriptions(self, settings: Any) -> None:
        settings.OJS |= {"REALTIME_MAX_SUBSCRIPTIONS": 2}
        async with connected() as socket:
            await subscribe(socket, channel="events")
            await subscribe(socket, channel="all")
            await subscribe(socket, channel="all")  # the same one again
            answer = await socket.ask({"action": "subscribe", "channel": "queue:default"})
            assert answer["code"] == "too_many_subscriptions"
            await socket.ask({"action": "unsubscribe", "channel": "all"})
            await subscribe(socket, channel="queue:default")

    async def test_a_path_that_nobody_serves(self) -> None:
        from tests.realtime.sockets import Refused

        with pytest.raises(Refused) as refused:
            async with connected("/ojs/v1/elsewhere"):
                pytest.fail("connected")
        assert (refused.value.status, refused.value.body["error"]["code"]) == (404, "not_found")
        assert refused.value.headers["x-request-id"] == refused.value.body["error"]["request_id"]

    async def test_the_subprotocol_is_chosen_when_it_is_offered(self) -> None:
        async with connected(subprotocols=["x", "ojs.v1"]) as socket:
            assert socket.subprotocol == "ojs.v1"  # type: ignore[attr-defined]
        async with connected(subprotocols=["x"]) as socket:
            assert socket.subprotocol is None  # type: ignore[attr-defined]


class TestSlowClients:
    async def test_a_small_buffer_loses_nothing(self, settings: Any) -> None:
        settings.OJS |= {"REALTIME_BUFFER_SIZE": 3, "REALTIME_RATE_LIMIT": 200.0}
        async with connected() as socket:
            await subscribe(socket, channel="events", filter={"event_types": ["job.enqueued"]})
            await do(push, [{"type": f"a.n{n}", "args": []} for n in range(300)])
            frames = await socket.events(300)
            assert [frame["data"]["job_type"] for frame in frames] == [f"a.n{n}" for n in range(300)]

    async def test_what_was_pruned_before_it_was_read_is_told_in_both_ways(
        self, settings: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        settings.OJS |= {"REALTIME_BUFFER_SIZE": 1}
        may = asyncio.Event()
        deliver = connection_module.Connection._deliver

        async def slow(self: Any, *args: Any, **kwargs: Any) -> None:
            await may.wait()
            await deliver(self, *args, **kwargs)

        monkeypatch.setattr(connection_module.Connection, "_deliver", slow)
        async with connected() as socket:
            await subscribe(socket, channel="all", event_types=["job.enqueued"])
            await enqueue("a.n0", "a.n1", "a.n2", "a.n3", "a.n4")
            await Hub.current().synced()

            def prune() -> None:
                ids.log_row("default")
                last = Event.objects.order_by("-pk").values_list("pk", flat=True)[0]
                EventLog.objects.update(pruned_to=last - 1)
                Event.objects.filter(pk__lt=last).delete()

            await do(prune)
            may.set()
            frames = [await socket.take()]
            while frames[-1]["data"].get("job_type") != "a.n4" if "data" in frames[-1] else True:
                frames.append(await socket.take())
            told = [frame.get("event", frame["type"]) for frame in frames]
            lost = told.index("warning")
            assert told[lost : lost + 2] == ["warning", "system.events_dropped"]
            assert [frame["data"]["job_type"] for frame in frames[:lost]] == [f"a.n{n}" for n in range(lost)]
            assert told.count("warning") == 1
            warning = frames[lost]
            assert (warning["code"], warning["channel"]) == ("events_dropped", "all")
            assert warning["count"] >= 1

    async def test_a_frame_that_nobody_takes_closes_the_connection(self, settings: Any) -> None:
        settings.OJS |= {"REALTIME_WRITE_TIMEOUT": 0.05}
        said: list[Any] = []

        async def write(text: str) -> None:
            await asyncio.Event().wait()

        async def close(code: int) -> None:
            said.append(code)

        class Nobody:
            request: Any = None

        connection = connection_module.Connection(Nobody(), write, close)  # type: ignore[arg-type]
        running = asyncio.create_task(connection.run())
        await connection.receive('{"action":"ping"}')
        assert said == [1013]
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    async def test_the_database_is_away_when_somebody_subscribes(self, monkeypatch: pytest.MonkeyPatch) -> None:
        async with connected() as socket:
            await subscribe(socket, channel="events")

            def broken(*args: Any) -> Any:
                raise OperationalError("gone")

            with monkeypatch.context() as patch:
                patch.setattr(connection_module, "PATIENCE", 0.2)
                patch.setattr(log.order, "_pass", broken)
                answer = await socket.ask({"action": "subscribe", "channel": "all"})
                assert answer["code"] == "internal_error"
                assert (await socket.ask({"type": "ping"}))["type"] == "pong"
            await subscribe(socket, channel="all")


async def test_shutdown_is_told_in_every_dialect_and_new_connections_are_refused() -> None:
    from tests.realtime.sockets import Refused

    async with connected() as socket:
        await subscribe(socket, channel="events")
        await subscribe(socket, channel="all")
        await subscribe(socket, subscription_id="x")
        Hub.current().shut_down(reason="deploy", grace_period_ms=5000)
        wrapped, proposal, bare = await socket.events(3)
        assert (wrapped["event"], wrapped["data"]["channel"]) == ("server.shutdown", "all")
        assert (proposal["subscription_id"], proposal["event"]["type"]) == ("x", "server.shutdown")
        assert (bare["type"], bare["data"]["reason"]) == ("server.shutdown", "deploy")
        assert await socket.end() == 1001
        with pytest.raises(Refused) as refused:
            async with connected():
                pytest.fail("connected")
        assert refused.value.status == 503
