"""Event streams over ASGI: what is sent, to whom, from where on, and what is left when a client goes."""

from __future__ import annotations

import asyncio
import datetime as dt
import gc
import re
import uuid
from typing import Any, ClassVar

import pytest
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Permission
from django.db import OperationalError
from django.test import Client
from rest_framework.authentication import BaseAuthentication
from rest_framework.exceptions import AuthenticationFailed

from django_ojs import clock, keys
from django_ojs.events import catalogue, log
from django_ojs.jobs import joblog
from django_ojs.jobs.cancel import cancel_one
from django_ojs.jobs.fetch import Fetch, fetch
from django_ojs.jobs.finish import Ack, Failure, ack_one, fail_one
from django_ojs.jobs.progress import ProgressReport, report
from django_ojs.jobs.push import push
from django_ojs.models import Event, EventLog, Job, Queue
from django_ojs.queues import configuration
from django_ojs.queues.deletion import remove
from django_ojs.realtime import slots, sse, views
from django_ojs.realtime.hub import Hub
from django_ojs.workerregistry.heartbeat import extend
from django_ojs.workerregistry.registration import register
from tests.http.conftest import error_of
from tests.realtime.conftest import do, enqueue
from tests.realtime.listening import Frame, listen, nothing_but_comments

pytestmark = pytest.mark.usefixtures("database")


@pytest.fixture(autouse=True)
def _open_site(settings: Any) -> None:
    settings.OJS = {"ALLOW_ANONYMOUS": True, "REALTIME_HEARTBEAT": 5.0}


@pytest.fixture(autouse=True)
def _slots_come_back() -> Any:
    yield
    if slots.open_slots():  # what lies in a circle of references, then; to look costs half a second
        gc.collect()
    assert slots.open_slots() == 0


async def claimed(**attributes: Any) -> Any:
    await do(push, [{"type": "mail.send", "args": [], **attributes}])
    (row,) = await do(fetch, Fetch([attributes.get("queue", "default")], worker_id="w1"))
    return row


def seen(frames: list[Frame]) -> list[str]:
    return [frame.event for frame in frames]


CHANGED = "job.state_changed"


class TestFraming:
    async def test_headers_and_the_first_lines(self) -> None:
        await enqueue("a.before")
        async with listen("/events/stream", ojs_version="1.0") as stream:
            assert stream.status == 200
            assert stream.headers["content-type"] == "text/event-stream"
            assert stream.headers["cache-control"] == "no-cache"
            assert stream.headers["x-accel-buffering"] == "no"
            assert stream.headers["x-content-type-options"] == "nosniff"
            assert stream.headers["ojs-version"] == "1.0"
            assert stream.headers["x-request-id"].startswith("req_")
            first, second = await stream.frame(), await stream.frame()
            assert first == Frame(retry=3000)
            assert second == Frame(id=(await do(log.read)).cursor or "")

    async def test_no_stream_repeats_an_id_so_that_who_deduplicates_loses_nothing(self) -> None:
        """A change of state has no id of a stored event, and comes only to who names it."""
        await do(fetch, Fetch(["default"], worker_id="w1"))  # from here on it is known
        (job_id,) = await enqueue("mail.send")
        for path, query in (
            ("/events/stream", ""), ("/events/stream", "types=job.*"), ("/events/stream", "channel=all"),
            ("/events/stream", f"channel=job:{job_id}"), ("/events/stream", "channel=queue:default&types=*"),
            (f"/jobs/{job_id}/events", ""), ("/queues/default/events", "event_types=job.*"),
        ):  # fmt: skip
            async with listen(path, query) as stream:
                (row,) = await do(fetch, Fetch(["default"], worker_id="w1"))
                await do(extend, row["id"], "w1")
                found = await stream.events(2)
                await do(fail_one, Failure(row["id"], requeue=True))
            assert seen(found) == ["job.started", "job.heartbeat"], (path, query)
            assert len({frame.id for frame in found}) == 2
            assert all({"specversion", "id", "source", "time", "data"} <= frame.data.keys() for frame in found)

    async def test_an_event_comes_as_it_is_stored_and_the_change_as_an_event_of_its_own(self) -> None:
        async with listen("/events/stream", "types=job.*,job.state_changed") as stream:
            await enqueue("mail.send", queue="mail")
            change, event = await stream.events(2)
        (stored,) = (await do(log.read)).events
        assert (event.event, event.id) == ("job.enqueued", stored["id"])
        mirrors = {"event": "job.enqueued", "timestamp": stored["time"], "queue": "mail", "state": "available"}
        assert event.data == stored | mirrors | {"job_id": stored["subject"], "from": "", "to": "available"}
        (changed,) = (await do(log.read, types=[CHANGED])).events
        assert (change.event, change.id) == (CHANGED, changed["id"])
        assert change.id != event.id
        mirrors["event"] = CHANGED
        assert change.data == changed | mirrors | {"job_id": stored["subject"], "from": "", "to": "available"}

    async def test_a_quiet_stream_beats(self, settings: Any) -> None:
        settings.OJS = {**settings.OJS, "REALTIME_HEARTBEAT": 0.05}
        async with listen("/events/stream") as stream:
            found = [await stream.frame() for _ in range(3)]
        assert found == [Frame(retry=3000), Frame(comment="heartbeat"), Frame(comment="heartbeat")]

    async def test_a_stream_is_quiet_for_less_than_fifteen_seconds(self, settings: Any) -> None:
        from django_ojs.conf import Settings

        assert Settings().REALTIME_HEARTBEAT < 15

    async def test_events_that_the_client_does_not_see_keep_no_heartbeat_back(
        self, settings: Any, made_up_events: None
    ) -> None:
        settings.OJS = {**settings.OJS, "REALTIME_HEARTBEAT": 0.3}
        row = await claimed()
        stop = asyncio.Event()

        async def chatter() -> None:
            while not stop.is_set():
                # It tells of no change of its own: `job.failed` did before it.
                unseen = catalogue.of_job("job.retrying", row, clock.now(), "workers")
                await do(log.append, [unseen], "default")
                await asyncio.sleep(0.02)

        async with listen("/events/stream", "types=job.state_changed") as stream:
            await stream.frame()
            chatting = asyncio.create_task(chatter())
            while (await stream.frame()) != Frame(comment="heartbeat"):
                pass
            stop.set()
            await chatting

    async def test_line_breaks_in_data_break_no_frame(self) -> None:
        async with listen("/events/stream", "types=job.failed") as stream:
            row = await claimed()
            await do(fail_one, Failure(row["id"], {"message": "a\r\nb\n\ndata: x\u2028é", "type": "Boom"}))
            (event,) = await stream.events(1)
        assert event.data["data"]["error"]["message"] == "a\r\nb\n\ndata: x\u2028é"

    async def test_a_site_that_packs_its_answers_leaves_streams_as_they_are(self, settings: Any) -> None:
        settings.MIDDLEWARE = ["django.middleware.gzip.GZipMiddleware", *settings.MIDDLEWARE]
        async with listen("/events/stream", accept_encoding="gzip") as stream:
            assert await stream.frame() == Frame(retry=3000)

    async def test_head_is_answered_and_over(self) -> None:
        async with listen("/events/stream", method="HEAD") as stream:
            assert (stream.status, stream.headers["content-type"]) == (200, "text/event-stream")
            assert await stream.body() is None


class TestWhere:
    async def test_every_path_streams(self) -> None:
        row = await claimed(queue="mail")
        for path, accept in (
            ("/events/stream", "*/*"), ("/events", "text/event-stream"), (f"/jobs/{row['id']}/events", "*/*"),
            ("/queues/mail/events", "*/*"), ("/queues/default/events", "*/*"),
            (f"/jobs/{row['id']}/progress/stream", "*/*"), (f"/jobs/{row['id']}/result/stream", "*/*"),
            ("/admin/stats/stream", "*/*"),
        ):  # fmt: skip
            async with listen(path, accept=accept) as stream:
                assert (stream.status, stream.headers["content-type"]) == (200, "text/event-stream"), path
                assert await stream.frame() == Frame(retry=3000)

    @pytest.mark.parametrize("accept", ["", "application/json", "*/*"])
    async def test_polling_stays_json(self, accept: str) -> None:
        async with listen("/events", accept=accept) as stream:
            assert "json" in stream.headers["content-type"]
            assert (await stream.body())["events"] == []

    @pytest.mark.parametrize(
        "path, query, status, code",
        [
            ("/jobs/01976f5e-0000-7000-8000-000000000000/events", "", 404, "not_found"),
            ("/jobs/nonsense/events", "", 404, "not_found"),
            ("/jobs/nonsense/progress/stream", "", 404, "not_found"),
            ("/jobs/nonsense/result/stream", "", 404, "not_found"),
            ("/queues/never-used/events", "", 404, "not_found"),
            ("/events/stream", "channel=job:nonsense", 404, "not_found"),
            ("/events/stream", "channel=queue:No%20Queue", 400, "invalid_request"),
            ("/events/stream", "channel=queue:", 400, "invalid_request"),
            ("/events/stream", "channel=everything", 400, "invalid_request"),
            ("/events/stream", "channel=job:", 400, "invalid_request"),
            ("/events/stream", "since=yesterday", 400, "invalid_request"),
            ("/events/stream", "job_id=nonsense", 400, "invalid_request"),
        ],
    )
    async def test_what_is_wrong_is_said_in_json_before_a_stream_begins(
        self, path: str, query: str, status: int, code: str
    ) -> None:
        async with listen(path, query, accept="text/event-stream") as stream:
            assert stream.status == status
            assert "json" in stream.headers["content-type"]
            assert (await stream.body())["error"]["code"] == code

    @pytest.mark.parametrize(
        "path, words",
        [
            ("/events/stream", ("job_type", "job_ids", "workflow_ids", "filter", "until", "start", "source")),
            ("/events/stream?channel=queue:mail", ("queues", "queue", "job_types", "sources", "job_id", "workflow_id")),
            ("/queues/default/events", ("queues", "job_types", "sources", "channel", "until")),
            ("/jobs/{}/events", ("queues", "job_types", "channel", "job_id")),
        ],
    )
    async def test_the_words_of_other_doors_are_refused(self, path: str, words: tuple[str, ...]) -> None:
        """Passed over, each would let out more than was asked for."""
        path, _, query = path.format((await claimed())["id"]).partition("?")
        for word in words:
            async with listen(path, f"{query}&{word}=x", accept="text/event-stream") as stream:
                assert stream.status == 400
                assert (await stream.body())["error"]["details"]["field"] == word
        async with listen(path, f"{query}&_=1&access=x") as stream:
            assert stream.status == 200, "it says nothing of events"

    async def test_wsgi_is_told_to_use_asgi(self) -> None:
        for path in ("/events/stream", "/queues/default/events", "/admin/stats/stream"):
            error = error_of(await do(Client().get, f"/ojs/v1{path}"), 406, "unsupported")
            assert "ASGI" in error["message"]
            assert "GET /ojs/v1/events" in error["hint"]
        answer = await do(Client().get, "/ojs/v1/events", headers={"accept": "text/event-stream"})
        error_of(answer, 406, "unsupported")


class TestChannels:
    async def test_filters_of_the_query(self) -> None:
        queries = {
            "types=job.started": ["job.started"],
            "event_types=job.started": ["job.started"],
            "types=job.state_changed": [CHANGED, CHANGED],
            "types=job.*&job_types=mail.send": ["job.enqueued", "job.started"],
            "queues=mail&types=job.enqueued": ["job.enqueued"],
            "channel=queue:mail&types=job.enqueued,job.started": ["job.enqueued", "job.started"],
        }
        await claimed(queue="mail")
        for query, expected in queries.items():
            async with listen("/events/stream", query) as stream:
                await enqueue("other.type", queue="other")
                await claimed(queue="mail")
                assert seen(await stream.events(len(expected))) == expected, query

    async def test_a_job_until_it_ends(self) -> None:
        row = await claimed()
        async with listen(f"/jobs/{row['id']}/events", f"event_types=job.*,{CHANGED}") as stream:
            await enqueue("other.job")
            await do(fail_one, Failure(row["id"], {"message": "no"}))
            await do(cancel_one, row["id"])
            found = await stream.rest()
        assert seen(found) == [CHANGED, "job.failed", "job.retrying", CHANGED, "job.cancelled"]
        assert [(f.data["from"], f.data["to"]) for f in found if f.event == CHANGED] == [
            ("active", "retryable"), ("retryable", "cancelled"),
        ]  # fmt: skip

    async def test_a_job_ends_its_stream_whatever_is_asked_for(self) -> None:
        row = await claimed()
        async with listen(f"/jobs/{row['id']}/events", "event_types=job.progress") as stream:
            await do(report, [ProgressReport(row["id"], 10)])
            await do(ack_one, Ack(row["id"]))
            assert seen(await stream.rest()) == ["job.progress"]

    async def test_a_job_that_has_ended_says_how_with_the_event_that_ended_it(self) -> None:
        row = await claimed()
        await do(ack_one, Ack(row["id"]))
        *_, stored = (await do(log.read)).events
        for types, expected in (("", ["job.completed"]), (CHANGED, [CHANGED]), ("job.progress", [])):
            async with listen(f"/jobs/{row['id']}/events", f"event_types={types}") as stream:
                found = await stream.rest()
            assert seen(found) == expected
            assert all((frame.data["from"], frame.data["to"]) == ("active", "completed") for frame in found)
            if not types:
                assert (found[0].id, found[0].data["data"]) == (stored["id"], stored["data"])

    async def test_a_job_whose_end_has_been_pruned_has_a_gap(self) -> None:
        row = await claimed()
        await do(ack_one, Ack(row["id"]))
        await do(Event.objects.all().delete)
        async with listen(f"/jobs/{row['id']}/events") as stream:
            (found,) = await stream.rest()
        assert (found.event, found.data["channel"]) == ("system.gap", f"job:{row['id']}")

    async def test_who_comes_back_after_the_end_of_the_job_has_missed_nothing_of_it(self) -> None:
        row = await claimed()
        events = (await do(log.read)).events
        await do(fail_one, Failure(row["id"], {"message": "no", "retryable": False}))
        async with listen(f"/jobs/{row['id']}/events", last_event_id=events[-1]["id"]) as stream:
            found = await stream.rest()
        assert seen(found) == ["job.failed", "job.discarded"]
        async with listen(f"/jobs/{row['id']}/events", last_event_id=found[-1].id) as stream:
            assert await stream.rest() == []

    @pytest.mark.parametrize("path", ["events", "progress/stream"])
    async def test_a_job_that_ends_while_its_stream_is_set_up_ends_the_stream(
        self, path: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        row = await claimed()
        look = views._row

        def then_it_ends(*args: Any) -> Any:
            found = look(*args)
            ack_one(Ack(row["id"]))
            log.read()
            return found

        monkeypatch.setattr(views, "_row", then_it_ends)
        async with listen(f"/jobs/{row['id']}/{path}") as stream:
            assert seen(await stream.rest())[0] in ("job.completed", "completed")

    async def test_a_queue_is_listened_to_before_its_first_job(self) -> None:
        for query in ("channel=queue:never-seen", "queues=never-seen"):
            async with listen("/events/stream", f"{query}&types=job.enqueued") as stream:
                assert stream.status == 200
                await enqueue("first.job", queue="never-seen")
                (found,) = await stream.events(1)
            assert found.data["queue"] == "never-seen"
            await do(Queue.objects.filter(name="never-seen").delete)

    async def test_a_queue(self) -> None:
        await enqueue("first.job", queue="mail")
        async with listen("/queues/mail/events", "event_types=job.enqueued") as stream:
            await enqueue("other.job", queue="other")
            await enqueue("mail.send", queue="mail")
            (found,) = await stream.events(1)
        assert found.data["queue"] == "mail"


class TestResume:
    async def test_from_the_last_event_seen(self) -> None:
        await enqueue("a.one", "a.two", "a.three")
        events = (await do(log.read)).events
        for empty in (None, "last_event_id=&after", "after=&cursor", "last_event_id"):
            where = {} if empty else {"last_event_id": events[0]["id"]}
            query = "types=job.enqueued" + (f"&{empty}={events[0]['id']}" if empty else "")
            async with listen("/events/stream", query, **where) as stream:
                await enqueue("a.four")
                found = await stream.events(3)
            assert [f.data["data"]["job_type"] for f in found][:2] == ["a.two", "a.three"]
            assert [f.id for f in found][:2] == [event["id"] for event in events[1:]]

    async def test_who_was_cut_off_before_any_event_loses_none(self) -> None:
        await enqueue("a.before")
        async with listen("/events/stream") as stream:
            await stream.frame()
            opening = await stream.frame()
        assert opening is not None
        await enqueue("a.between")
        async with listen("/events/stream", "types=job.enqueued", last_event_id=opening.id) as stream:
            (found,) = await stream.events(1)
        assert found.data["data"]["job_type"] == "a.between"

    async def test_an_event_behind_the_headers_is_not_lost(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The client sees 200 before the hub knows the stream."""
        gate = asyncio.Event()
        subscribe = Hub._open

        async def late(*args: Any) -> Any:
            await gate.wait()
            return await subscribe(*args)

        monkeypatch.setattr(Hub, "_open", late)
        async with listen("/events/stream", "types=job.enqueued") as stream:
            assert stream.status == 200
            await enqueue("a.early")
            gate.set()
            (found,) = await stream.events(1)
        assert found.data["data"]["job_type"] == "a.early"

    async def test_since_an_instant(self, frozen_clock: Any) -> None:
        await enqueue("a.old")
        middle = frozen_clock.advance(seconds=60)
        await enqueue("a.new")
        for since, expected in ((middle, ["a.new"]), (middle - dt.timedelta(days=1), ["a.old", "a.new"])):
            query = f"types=job.enqueued&since={since.isoformat().replace('+', '%2B')}"
            async with listen("/events/stream", query) as stream:
                found = await stream.events(len(expected))
            assert [f.data["data"]["job_type"] for f in found] == expected

    @pytest.mark.parametrize("last", ["nonsense", "evt_01976f5e-0000-7000-8000-000000000000"])
    async def test_an_id_that_never_was_is_a_gap_and_no_error(self, last: str) -> None:
        await enqueue("a.before")
        async with listen("/events/stream", "types=job.enqueued", last_event_id=last) as stream:
            await enqueue("a.live")
            gap, live = await stream.events(2)
        assert (gap.event, gap.id, gap.data["channel"], gap.data["reason"]) == (
            "system.gap", "", "all", "unknown_event_id",
        )  # fmt: skip
        assert live.data["data"]["job_type"] == "a.live"

    async def test_an_id_older_than_the_log_is_a_gap(self) -> None:
        await enqueue("a.old", "a.kept")
        first, second = (await do(log.read)).events

        def prune() -> None:
            oldest = Event.objects.order_by("id").first()
            assert oldest is not None
            EventLog.objects.filter(pk=1).update(pruned_to=oldest.pk)
            oldest.delete()

        await do(prune)
        async with listen("/events/stream", "types=job.enqueued", last_event_id=first["id"]) as stream:
            await enqueue("a.live")
            gap, live = await stream.events(2)
        assert (gap.event, gap.data["gap_end"]) == ("system.gap", second["time"])
        assert gap.data["gap_start"]
        assert live.data["data"]["job_type"] == "a.live"

    async def test_between_a_change_and_its_event(self) -> None:
        await enqueue("a.one", "a.two")
        types = ["job.enqueued", CHANGED]
        events = (await do(log.read, types=types)).events
        for number, event in enumerate(events, 1):
            async with listen("/events/stream", f"types={','.join(types)}", last_event_id=event["id"]) as stream:
                await enqueue("a.more")
                found = await stream.events(len(events) - number + 2)
            assert [frame.id for frame in found][: len(events) - number] == [each["id"] for each in events[number:]]


class TestLogs:
    async def test_lines_come_as_they_are_stored_and_then_the_end(self) -> None:
        row = await claimed()
        lines = [joblog.SentLine("first"), joblog.SentLine("second", level=40)]
        await do(joblog.append, row["id"], lines)
        async with listen(f"/jobs/{row['id']}/logs/stream") as stream:
            first = await stream.events(2)
            await do(joblog.append, row["id"], [joblog.SentLine("third", fields={"n": 1})])
            third = await stream.events(1)
            await do(joblog.append, row["id"], [joblog.SentLine("last")])
            await do(ack_one, Ack(row["id"]))
            rest = await stream.rest()
        assert [(frame.event, frame.data["message"]) for frame in (*first, *third)] == [
            ("log", "first"), ("log", "second"), ("log", "third"),
        ]  # fmt: skip
        assert (first[1].data["level"], third[0].data["fields"]) == ("error", {"n": 1})
        assert (rest[0].data["message"], rest[-1].event, rest[-1].data["state"]) == ("last", "end", "completed")
        for where in ({"last_event_id": first[1].id}, {"query": f"cursor={first[1].id}"}):
            async with listen(f"/jobs/{row['id']}/logs/stream", **where) as stream:
                again = await stream.rest()
            assert [frame.data.get("message") for frame in again] == ["third", "last", None]
        async with listen(f"/jobs/{row['id']}/logs/stream", "level=error") as stream:
            assert [frame.data.get("message") for frame in await stream.rest()] == ["second", None]

    async def test_where_lines_are_missing_it_says_so(self, settings: Any) -> None:
        settings.OJS = {**settings.OJS, "JOB_LOG_LINES": 2}
        row = await claimed()
        await do(joblog.append, row["id"], [joblog.SentLine(f"line {number}") for number in range(1, 6)])
        await do(ack_one, Ack(row["id"]))
        async with listen(f"/jobs/{row['id']}/logs/stream") as stream:
            found = await stream.rest()
        assert seen(found) == ["log", "dropped", "log", "end"]
        assert (found[1].data["dropped"], found[2].data["message"]) == (3, "line 5")


class TestProgressAndResult:
    async def test_each_report_twice_and_the_end(self, frozen_clock: Any) -> None:
        row = await claimed()
        await do(report, [ProgressReport(row["id"], 10, "ten", {"n": 1})])
        frozen_clock.advance(seconds=1)
        async with listen(f"/jobs/{row['id']}/progress/stream") as stream:
            first = await stream.events(2)
            await do(report, [ProgressReport(row["id"], 50, "fifty", {"n": 2})])
            second = await stream.events(2)
            await do(ack_one, Ack(row["id"], '"r"'))
            last = await stream.rest()
        for pair, name in ((first, "progress"), (second, "progress"), (last, "completed")):
            assert seen(pair) == [name, ""]
            assert pair[0].data == pair[1].data
        assert first[0].data == {
            "job_id": str(row["id"]), "state": "active", "progress": 0.1, "data": {"n": 1}, "message": "ten",
            "updated_at": "2026-01-15T12:00:00.000Z",
        }  # fmt: skip
        said = second[0].data
        assert (said["progress"], said["message"], said["data"]) == (0.5, "fifty", {"n": 2})
        assert (last[0].data["progress"], last[0].data["state"]) == (1.0, "completed")

    @pytest.mark.parametrize("end, word", [("discard", "failed"), ("cancel", "cancelled")])
    async def test_other_ends(self, end: str, word: str) -> None:
        row = await claimed(retry={"max_attempts": 2, "initial_interval": "PT1S"})
        async with listen(f"/jobs/{row['id']}/progress/stream") as stream:
            if end == "cancel":
                await do(cancel_one, row["id"])
            else:
                await do(fail_one, Failure(row["id"], {"message": "no", "retryable": False}))
            found = await stream.rest()
        assert seen(found) == [word, ""]
        assert found[0].data["state"] == {"failed": "discarded"}.get(word, word)
        async with listen(f"/jobs/{row['id']}/progress/stream") as stream:
            assert seen(await stream.rest()) == [word, ""], "and the same afterwards"

    async def test_the_result_comes_last(self) -> None:
        row = await claimed()
        async with listen(f"/jobs/{row['id']}/result/stream") as stream:
            await do(report, [ProgressReport(row["id"], 50)])
            await do(ack_one, Ack(row["id"], '{"sent":[1,2]}'))
            found = await stream.rest()
        assert seen(found) == ["progress", "", "result"]
        assert found[-1].data == {"value": {"sent": [1, 2]}}
        async with listen(f"/jobs/{row['id']}/result/stream") as stream:
            again = await stream.rest()
        assert seen(again) == ["progress", "", "result"]
        assert again[-1].data == {"value": {"sent": [1, 2]}}

    async def test_or_the_error(self) -> None:
        row = await claimed(retry={"max_attempts": 1})
        async with listen(f"/jobs/{row['id']}/result/stream") as stream:
            await do(fail_one, Failure(row["id"], {"message": "broken", "code": "x", "type": "Boom"}))
            (found,) = await stream.rest()
        assert found.event == "error"
        assert (found.data["message"], found.data["code"]) == ("broken", "x")


class TestStatistics:
    async def test_numbers_and_flat_events(self, monkeypatch: pytest.MonkeyPatch) -> None:
        await do(register, "w1", {"hostname": "h", "queues": ["default"], "concurrency": 2})
        await enqueue("a.waiting")
        async with listen("/admin/stats/stream") as stream:
            metrics = await stream.event()
            row = await claimed()
            await do(fail_one, Failure(row["id"], {"message": "broken", "type": "Boom"}))
            flat = await stream.events(2)
            later = await stream.event()
        assert metrics is not None
        assert later is not None
        assert (metrics.event, later.event) == ("metrics", "metrics")
        assert metrics.data["queues"] == [
            {"queue": "default", "available": 1, "active": 0, "scheduled": 0, "retryable": 0}
        ]
        assert metrics.data["workers"]["total"] == 1
        (worker,) = metrics.data["workers"]["active"]
        assert (worker["id"], worker["state"], worker["activeJobs"]) == ("w1", "running", 0)
        assert set(metrics.data["throughput"]) == {"processed_per_second", "failed_per_second", "enqueued_per_second"}
        assert later.data["throughput"]["failed_per_second"] > 0
        assert later.data["error_rate"] == 1.0
        assert seen(flat) == ["job.enqueued", "job.failed"]
        assert flat[1].data["error"] == "broken"
        assert {"job_id", "type", "queue", "timestamp", "attempt", "duration"} <= flat[1].data.keys()

    async def test_a_limited_key_sees_its_queues_and_their_workers(self, settings: Any) -> None:
        settings.OJS = {}
        await do(register, "w1", {"queues": ["mail"]})
        await do(register, "w2", {"queues": ["other"]})
        await enqueue("a.a", queue="mail")
        await enqueue("a.a", queue="other")
        _, text = await do(keys.create, "k", ["admin"], queues=["mail"])
        async with listen("/admin/stats/stream", authorization=f"Bearer {text}") as stream:
            metrics = await stream.event()
        assert metrics is not None
        assert [entry["queue"] for entry in metrics.data["queues"]] == ["mail"]
        assert [worker["id"] for worker in metrics.data["workers"]["active"]] == ["w1"]


class ByToken(BaseAuthentication):
    """A class of a site, whose tokens can be withdrawn."""

    withdrawn: ClassVar[set[str]] = set()

    def authenticate(self, request: Any) -> tuple[Any, None]:
        if (token := request.META["HTTP_X_TOKEN"]) in self.withdrawn:
            raise AuthenticationFailed
        return get_user_model().objects.get(username=token), None


class TestRights:
    async def test_credentials_as_everywhere(self, settings: Any) -> None:
        settings.OJS = {"ALLOW_ANONYMOUS": False}
        _, pusher = await do(keys.create, "pusher", ["push"])
        for headers, status, code in (
            ({}, 401, "unauthenticated"),
            ({"authorization": "Bearer ojs_wrong"}, 401, "unauthenticated"),
            ({"authorization": f"Bearer {pusher}"}, 403, "permission_denied"),
        ):
            async with listen("/events/stream", **headers) as stream:
                assert stream.status == status
                assert "json" in stream.headers["content-type"]
                assert (await stream.body())["error"]["code"] == code
                assert ("www-authenticate" in stream.headers) == (status == 401)

    async def test_a_key_sees_its_queues_and_types_only(self, settings: Any) -> None:
        settings.OJS = {}
        _, text = await do(keys.create, "k", ["read"], queues=["mail"], job_types=["mail.*"])
        bearer = {"authorization": f"Bearer {text}"}
        row = await claimed(queue="other")
        async with listen("/events/stream", "types=job.enqueued", **bearer) as stream:
            await enqueue("mail.send", queue="other")
            await enqueue("report.make", queue="mail")
            await enqueue("mail.send", queue="mail")
            (found,) = await stream.events(1)
            assert (found.data["queue"], found.data["data"]["job_type"]) == ("mail", "mail.send")
        for path, query in (
            ("/events/stream", "queues=other"), ("/events/stream", "job_types=report.make"),
            ("/queues/other/events", ""), (f"/jobs/{row['id']}/events", ""), (f"/jobs/{row['id']}/result/stream", ""),
        ):  # fmt: skip
            async with listen(path, query, **bearer) as stream:
                assert stream.status == 403, path
                await stream.body()

    async def test_a_stream_about_a_job_has_nothing_of_a_queue_that_it_was_in_before(self, settings: Any) -> None:
        settings.OJS = {}
        _, text = await do(keys.create, "k", ["read"], queues=["mail"])
        (job_id,) = await enqueue("mail.send", queue="other")
        await do(Job.objects.update, queue="mail")
        async with listen(f"/jobs/{job_id}/events", "since=1h", authorization=f"Bearer {text}") as stream:
            assert stream.status == 200
            await do(cancel_one, uuid.UUID(job_id))
            assert [found.data["data"]["queue"] for found in await stream.rest()] == ["mail"]

    @pytest.mark.parametrize("what", ["events", "progress/stream", "result/stream", "logs/stream"])
    async def test_a_job_that_leaves_the_queues_of_a_key_leaves_its_streams(self, settings: Any, what: str) -> None:
        settings.OJS = {"REALTIME_HEARTBEAT": 0.02, "REALTIME_RECHECK_INTERVAL": 3600.0}
        _, text = await do(keys.create, "k", ["read"], queues=["mail"])
        (job_id,) = await enqueue("mail.send", queue="mail")
        async with listen(f"/jobs/{job_id}/{what}", authorization=f"Bearer {text}") as stream:
            assert (await stream.frame()) is not None
            await do(remove, "mail", "move", "other")
            (row,) = await do(fetch, Fetch(["other"], worker_id="w1"))
            await do(report, [ProgressReport(row["id"], 50, "half of a secret", None)])
            await do(ack_one, Ack(row["id"], worker_id="w1", result='{"secret": true}'))
            await nothing_but_comments(stream)
            settings.OJS = {"REALTIME_HEARTBEAT": 0.02, "REALTIME_RECHECK_INTERVAL": 0.0}
            (found,) = await stream.rest()
        assert (found.event, found.data["error"]["code"]) == ("error", "permission_denied")

    async def test_a_key_that_is_revoked_ends_its_streams(self, settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        settings.OJS = {"REALTIME_HEARTBEAT": 0.02, "REALTIME_RECHECK_INTERVAL": 0.0}
        key, text = await do(keys.create, "k", ["read"])
        async with listen("/events/stream", authorization=f"Bearer {text}") as stream:
            await stream.frame()
            assert (await stream.frame()) == Frame(comment="heartbeat"), "it goes on while the key is valid"
            await do(keys.revoke, key)
            (found,) = await stream.rest()
        assert found.event == "error"
        assert found.data["error"]["code"] == "unauthenticated"

    async def test_a_caller_whom_a_class_of_the_site_refuses_by_now(
        self, settings: Any, django_user_model: Any
    ) -> None:
        settings.OJS = {
            "AUTHENTICATION_CLASSES": [f"{__name__}.{ByToken.__name__}"], "REALTIME_HEARTBEAT": 0.02,
            "REALTIME_RECHECK_INTERVAL": 0.0,
        }  # fmt: skip
        user = await do(django_user_model.objects.create_user, "anna", password="x")
        await do(user.user_permissions.set, await do(list, Permission.objects.filter(codename="view_event")))
        async with listen("/events/stream", **{"x-token": "anna"}) as stream:
            assert stream.status == 200
            assert [await stream.frame() for _ in range(3)][2] == Frame(comment="heartbeat")
            ByToken.withdrawn.add("anna")
            (found,) = await stream.rest()
        ByToken.withdrawn.clear()
        assert found.data["error"]["code"] == "unauthenticated"

    async def test_a_database_that_is_away_ends_no_stream(self, settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        settings.OJS = {**settings.OJS, "REALTIME_HEARTBEAT": 0.02, "REALTIME_RECHECK_INTERVAL": 0.0}
        asked = []

        def away() -> None:
            asked.append(1)
            raise OperationalError("gone fishing")

        monkeypatch.setattr(views, "_guard", lambda view, request: away)
        async with listen("/events/stream") as stream:
            await stream.frame()
            assert [await stream.frame() for _ in range(3)] == [Frame(comment="heartbeat")] * 3
            await enqueue("a.a")
            assert (await stream.events(1))[0].event == "job.enqueued"
        assert asked

    @pytest.mark.parametrize("left", ["", "view_job"])
    async def test_a_user_who_may_not_view_all_events_any_more(
        self, settings: Any, django_user_model: Any, left: str
    ) -> None:
        settings.OJS = {"REALTIME_HEARTBEAT": 0.02, "REALTIME_RECHECK_INTERVAL": 0.0}
        user = await do(django_user_model.objects.create_user, "anna", password="x", is_staff=True)
        await do(user.user_permissions.set, await do(list, Permission.objects.filter(codename="view_event")))
        client = Client()
        await do(client.force_login, user)
        async with listen("/events/stream", cookie=f"sessionid={client.cookies['sessionid'].value}") as stream:
            assert stream.status == 200
            assert [await stream.frame() for _ in range(2)][1] == Frame(comment="heartbeat")
            await do(user.user_permissions.set, await do(list, Permission.objects.filter(codename=left)))
            (found,) = await stream.rest()
        assert found.data["error"]["code"] == "permission_denied"

    async def test_a_user_who_may_view_jobs_hears_of_jobs_only(self, settings: Any, django_user_model: Any) -> None:
        settings.OJS = {"REALTIME_HEARTBEAT": 0.02}
        user = await do(django_user_model.objects.create_user, "anna", password="x")
        await do(user.user_permissions.set, await do(list, Permission.objects.filter(codename="view_job")))
        client = Client()
        await do(client.force_login, user)
        async with listen("/events/stream", cookie=f"sessionid={client.cookies['sessionid'].value}") as stream:
            assert stream.status == 200
            await do(register, "w1", {})
            await do(configuration.pause, "default")
            await enqueue("a.a")
            assert (await stream.events(1))[0].event == "job.enqueued"
        seen = (await do(client.get, "/ojs/v1/events")).json()["events"]
        assert {event["type"] for event in seen} == {"job.enqueued"}

    async def test_who_logs_out_ends_their_streams(self, settings: Any, django_user_model: Any) -> None:
        settings.OJS = {"REALTIME_HEARTBEAT": 0.02, "REALTIME_RECHECK_INTERVAL": 0.0}
        user = await do(django_user_model.objects.create_user, "anna", password="x", is_staff=True)
        await do(user.user_permissions.set, await do(list, Permission.objects.filter(codename="view_event")))
        client = Client()
        await do(client.force_login, user)
        async with listen("/events/stream", cookie=f"sessionid={client.cookies['sessionid'].value}") as stream:
            assert stream.status == 200
            assert [await stream.frame() for _ in range(3)][2] == Frame(comment="heartbeat")
            await do(client.logout)
            (found,) = await stream.rest()
        assert found.data["error"]["code"] == "unauthenticated"

    async def test_the_statistics_need_what_the_pages_of_workers_do(self, settings: Any) -> None:
        settings.OJS = {}
        for scope, status in (("admin.read", 200), ("admin", 200), ("read", 403), ("admin.write", 403)):
            _, text = await do(keys.create, scope, [scope])
            async with listen("/admin/stats/stream", authorization=f"Bearer {text}") as stream:
                assert stream.status == status, scope
                if status != 200:
                    await stream.body()

    async def test_a_user_who_loses_the_right_loses_the_statistics(self, settings: Any, django_user_model: Any) -> None:
        settings.OJS = {"REALTIME_HEARTBEAT": 0.02, "REALTIME_RECHECK_INTERVAL": 0.0}
        user = await do(django_user_model.objects.create_user, "anna", password="x", is_staff=True)
        client = Client()
        await do(client.force_login, user)
        cookie = f"sessionid={client.cookies['sessionid'].value}"
        async with listen("/admin/stats/stream", cookie=cookie) as stream:
            assert stream.status == 403, "being staff is not enough"
            details = (await stream.body())["error"]["details"]
            assert details["required_permission"] == "django_ojs.view_worker"
        await do(user.user_permissions.set, await do(list, Permission.objects.filter(codename="view_worker")))
        async with listen("/admin/stats/stream", cookie=cookie) as stream:
            assert stream.status == 200
            metrics = await stream.event()
            assert metrics is not None
            assert metrics.event == "metrics"
            await do(user.user_permissions.clear)
            found = (await stream.rest())[-1]
        assert found.data["error"]["code"] == "permission_denied"

    async def test_too_many_streams_of_one_client(self, settings: Any) -> None:
        settings.OJS = {**settings.OJS, "REALTIME_MAX_CONNECTIONS": 1}
        async with listen("/events/stream") as first:
            await first.frame()
            async with listen("/events/stream") as second:
                assert second.status == 429
                assert second.headers["retry-after"] == "3"
                assert (await second.body())["error"]["code"] == "rate_limited"
        async with listen("/events/stream") as third:
            assert third.status == 200, "the first has gone"


class TestEnds:
    async def test_a_client_that_goes_leaves_nothing(self) -> None:
        async with listen("/events/stream") as stream:
            await stream.frame()
            await enqueue("a.a")
            await stream.events(1)
            hub = Hub.current()
            assert (hub.subscribers, slots.open_slots()) == (1, 1)
        await asyncio.wait_for(_gone(hub), 20)

    async def test_a_client_that_goes_at_once_leaves_nothing(self) -> None:
        for _ in range(5):
            async with listen("/events/stream"):
                pass
        await asyncio.wait_for(_gone(Hub.current()), 20)

    @pytest.mark.parametrize("fault", [LookupError("a fault of ours"), OperationalError("gone fishing")], ids=repr)
    async def test_a_fault_in_one_stream_ends_that_stream_alone(
        self, fault: Exception, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        frames_of = sse._frames_of

        async def broken(item: Any, feed: Any) -> str:
            if item.envelope and item.envelope["type"] == "job.cancelled":
                raise fault
            return await frames_of(item, feed)

        monkeypatch.setattr(sse, "_frames_of", broken)
        async with listen("/events/stream", "types=job.enqueued") as other:
            await other.frame()
            async with listen("/events/stream", "types=job.cancelled") as spoilt:
                await spoilt.frame()
                row = await claimed()
                await do(cancel_one, row["id"])
                (told,) = await spoilt.rest()
            assert (told.event, told.data["error"]["code"]) == ("error", "backend_error")
            await enqueue("a.a")
            assert seen(await other.events(2)) == ["job.enqueued"] * 2
            assert (Hub.current().subscribers, slots.open_slots()) == (1, 1)
        assert [record.exc_info[1] for record in caplog.records if record.exc_info] == [fault]

    async def test_the_server_says_that_it_stops(self) -> None:
        async with listen("/events/stream", "types=job.enqueued") as stream:
            await enqueue("a.a")
            await stream.events(1)
            hub = Hub.current()
            hub.shut_down(reason="deploy")
            (found,) = await stream.rest()
        assert (found.event, found.data) == ("server.shutdown", {"reason": "deploy", "grace_period_ms": 5000})
        async with listen("/events/stream") as refused:
            (found,) = await refused.rest()
        assert found.event == "error"

    async def test_a_slow_client_gets_every_event(self, monkeypatch: pytest.MonkeyPatch) -> None:
        async with listen("/events/stream", "types=job.enqueued") as stream:
            await stream.frame()
            names = [f"a.n{i}" for i in range(60)]
            await enqueue(*names)
            found = await stream.events(60)
        assert [f.data["data"]["job_type"] for f in found] == names
        ids = [f.id for f in found]
        assert all(re.fullmatch(r"evt_[0-9a-f-]{36}", i) for i in ids)
        assert len(set(ids)) == 60


async def _gone(hub: Hub) -> None:
    while hub.subscribers or slots.open_slots():
        gc.collect()
        await asyncio.sleep(0.01)
