"""StreamEvents from a client to the log and back: filters, resumption, keepalive, gaps, and how a stream ends."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from tests.waiting import eventually

pytest.importorskip("grpc")

from django.db import connections
from django.test import Client

from django_ojs import keys
from django_ojs.errors import InvalidRequest
from django_ojs.events import ids, log
from django_ojs.events.filters import MAX_SOURCES
from django_ojs.grpc import messages
from django_ojs.grpc.eventstream import is_seeds_order, read
from django_ojs.jobs.fetch import Fetch, fetch
from django_ojs.jobs.finish import Ack, Failure, ack_one, fail_one
from django_ojs.jobs.push import push
from django_ojs.models import Event, EventLog
from django_ojs.realtime.slots import open_slots
from tests.events.changing import Copy
from tests.grpc.serving import Served, serving
from tests.grpc.streaming import Listener, refused

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("new_log")]


@pytest.fixture
def new_log() -> None:
    ids.forget()


def listen(served: Served, document: dict[str, Any] | None = None, **metadata: str) -> Listener:
    return Listener(served, "StreamEvents", document or {}, **metadata)


def enqueue(*types: str, **more: Any) -> list[str]:
    """Push a job of each type, each in its own transaction."""
    return [str(push([{"type": name, "args": [], **more}])[0].row["id"]) for name in types]  # type: ignore[union-attr, index]


def types(found: list[dict[str, Any]]) -> list[str]:
    return [event["type"] for event in found]


def test_the_life_of_a_job_in_order(served: Served) -> None:
    stream = listen(served)
    assert stream.initial["x-ojs-request-id"]
    (job,) = enqueue("a.job")
    fetch(Fetch(["default"], worker_id="w1"))
    served.call("Ack", {"job_id": job})
    found = stream.take(1)
    while found[-1]["type"] != "job.completed":
        found += stream.take(1)
    events = [event for event in found if event["type"].startswith("job.")]
    assert types(events) == ["job.enqueued", "job.started", "job.completed"]
    for event in events:
        assert event["data"]["job_id"] == job
        assert event["source"].startswith("ojs://")
    (stored,) = log.read(types=["job.completed"]).events
    assert (events[2]["id"], events[2]["data"], events[2]["time"]) == (stored["id"], stored["data"], stored["time"])


def test_the_fields_of_an_event(served: Served) -> None:
    stream = listen(served, {"event_types": ["job.enqueued"]})
    (job,) = enqueue("a.job")
    eventually(lambda: not stream.has_nothing)
    request = messages.to_message("StreamEventsRequest", {"after": None} | {"event_types": ["job.enqueued"]})
    cursor = log.read(limit=1).cursor
    enqueue("b.job", queue="other")
    call = served.stub.StreamEvents(request, metadata=(("x-ojs-last-event-id", cursor),))
    message = next(call)
    assert (message.type, message.job_type, message.queue) == ("job.enqueued", "b.job", "other")
    assert message.job_id != job
    assert uuid.UUID(message.job_id)
    assert message.timestamp.seconds > 0
    call.cancel()


def test_filters_are_combined(served: Served) -> None:
    (known,) = enqueue("a.job")
    everything = listen(served, {"event_types": ["job.enqueued"]})
    by_queue = listen(served, {"queues": ["q"], "event_types": ["job.*"]})
    by_type = listen(served, {"job_types": ["b.job"], "event_types": ["job.enqueued"]})
    by_job = listen(served, {"job_id": [known]})
    nothing = listen(served, {"workflow_id": "there is none"})
    unknown = listen(served, {"job_id": ["01900000-0000-7000-8000-000000000000"]})
    enqueue("b.job", "c.job")
    enqueue("b.job", queue="q")
    fetch(Fetch(["default"]))
    assert [event["data"]["job_type"] for event in everything.take(3)] == ["b.job", "c.job", "b.job"]
    assert [event["data"]["queue"] for event in by_queue.take(1)] == ["q"]
    assert [event["data"]["queue"] for event in by_type.take(2)] == ["default", "q"]
    assert by_job.next()["type"] == "job.started"
    for stream in (nothing, unknown, by_queue, by_job):
        assert stream.has_nothing


def test_the_seeds_order_of_the_fields(served: Served) -> None:
    stream = listen(served, {"queues": ["job.enqueued"], "event_types": ["mail"], "job_id": ["mail.send"]})
    enqueue("mail.send", queue="other")
    enqueue("mail.other", "mail.send", queue="mail")
    event = stream.next()
    assert (event["data"]["queue"], event["data"]["job_type"], event["type"]) == ("mail", "mail.send", "job.enqueued")


@pytest.mark.parametrize(
    "first, second, seed",
    [
        ([], [], False),
        (["mail"], [], False),
        (["mail"], ["job.completed"], False),
        (["job.completed"], [], True),
        (["job.*", "worker.started"], ["mail"], True),
        (["job.completed"], ["job.failed"], False),
        (["job.completed", "mail"], [], False),
        ([], ["mail"], True),
        ([], ["job.unheard-of"], False),
        ([], ["job.completed"], False),
        ([], ["mail", "job.completed"], False),
        ([], ["*"], False),
        (["job.dead"], ["mail"], True),
    ],
)
def test_which_order_is_meant(first: list[str], second: list[str], seed: bool) -> None:
    assert is_seeds_order(first, second) is seed


def test_a_request_is_read() -> None:
    job = "019539A4-b68c-7def-8000-aabbccddeeff"
    request = messages.to_message("StreamEventsRequest", {"job_id": [job, "a.job"], "job_types": ["b.job"]})
    asked = read(request, "evt_x")
    assert asked.wanted.job_ids == (uuid.UUID(job),)
    assert asked.wanted.job_types == ("a.job", "b.job")
    assert asked.after == "evt_x"
    with pytest.raises(InvalidRequest):
        read(messages.to_message("StreamEventsRequest", {"sources": ["x"] * (MAX_SOURCES + 1)}))


def test_a_workflow_and_its_jobs(served: Served) -> None:
    steps = [
        {"id": "one", "type": "a.job", "args": []},
        {"id": "two", "type": "b.job", "args": [], "depends_on": ["one"]},
    ]
    flow = served.call("CreateWorkflow", {"name": "flow", "steps": steps})["workflow"]
    stream = listen(served, {"workflow_id": flow["id"]})
    enqueue("other.job")
    for _ in steps:
        (row,) = fetch(Fetch(["default"], types=["a.job", "b.job"]))
        ack_one(Ack(row["id"]))
    events: list[str] = []
    while "workflow.completed" not in events:
        event = stream.next()
        events.append(event["type"])
        assert event["data"].get("job_type") != "other.job"
    assert events.count("job.completed") == 2
    assert "workflow.step_completed" in events


def test_resumption_is_exclusive_and_without_a_hole(served: Served) -> None:
    enqueue("a.n0")
    cursor = log.read().cursor
    assert cursor
    expected = [f"a.n{i}" for i in range(1, 30)]
    enqueue(*expected[:15])
    stream = listen(served, {"after": cursor, "event_types": ["job.enqueued"]})
    enqueue(*expected[15:])
    assert [event["data"]["job_type"] for event in stream.take(29)] == expected
    other = listen(served, {"event_types": ["job.enqueued"]}, x_ojs_last_event_id=cursor)
    assert [event["data"]["job_type"] for event in other.take(29)] == expected


@pytest.mark.parametrize("cursor", ["x", "evt_019539a4-b68c-7def-8000-aabbccddeeff", "\0"])
def test_a_cursor_that_was_never_issued(served: Served, cursor: str) -> None:
    failure = refused(served, "StreamEvents", {"after": cursor})
    assert (failure.code.name, failure.reason) == ("INVALID_ARGUMENT", "invalid_request")
    eventually(lambda: open_slots() == 0)


def test_what_was_pruned_is_told_first(served: Served) -> None:
    enqueue("a.old", "a.kept")
    cursor = log.read(limit=1).cursor
    EventLog.objects.update(pruned_to=Event.objects.get(job_type="a.old").pk)
    Event.objects.filter(job_type="a.old").delete()
    stream = listen(served, {"after": cursor, "event_types": ["job.completed", "job.enqueued"]})
    gap, kept = stream.take(2)
    assert (gap["type"], gap["id"]) == ("system.gap", "")
    assert gap["data"]["gap_start"] <= gap["data"]["gap_end"] == kept["time"]
    assert kept["data"]["job_type"] == "a.kept"


def test_a_history_that_has_changed_is_told_and_what_comes_then_is_sent(served: Served, frozen_clock: Any) -> None:
    enqueue("a.kept")
    frozen_clock.advance(seconds=1)
    stream = listen(served, {"event_types": ["job.enqueued"]})
    copy = Copy()
    enqueue("a.lost", "a.gone")
    lost = stream.take(2)
    copy.come_back("a.new")
    other = listen(served, {"after": lost[-1]["id"], "event_types": ["job.enqueued"]})
    for each in (stream, other):
        gap, new = each.take(2)
        assert (gap["type"], gap["data"]["reason"]) == ("system.gap", "history_changed")
        assert gap["data"]["gap_start"] < gap["data"]["gap_end"]
        assert new["data"]["job_type"] == "a.new"


def test_a_keepalive_passes_the_filter_and_says_where_to_go_on(served: Served, settings: Any) -> None:
    settings.OJS = {**getattr(settings, "OJS", {}), "REALTIME_HEARTBEAT": 0.05}
    enqueue("a.before")
    stream = listen(served, {"event_types": ["job.completed"]})
    alive = stream.next()
    assert (alive["type"], alive["id"]) == ("stream.keepalive", "")
    assert alive["time"]
    enqueue("a.between")
    stream.leave()
    resumed = listen(served, {"after": alive["data"]["last_event_id"], "event_types": ["job.enqueued"]})
    while (event := resumed.next())["type"] == "stream.keepalive":
        pass
    assert event["data"]["job_type"] == "a.between"


def test_an_empty_log_keeps_alive_too(served: Served, settings: Any) -> None:
    settings.OJS = {**getattr(settings, "OJS", {}), "REALTIME_HEARTBEAT": 0.05}
    assert "last_event_id" not in listen(served).next()["data"]


@pytest.mark.parametrize(
    "word",
    ["types", "type", "queue", "job_type", "job_ids", "workflow_ids", "filter", "since", "last_event_id", "cursor"],
)
def test_the_words_of_other_doors_are_refused(word: str) -> None:
    """Passed over, each would let out the events of all."""
    for value in ("x", ["x"], {"queues": ["x"]}):
        with pytest.raises(InvalidRequest) as refused:
            read(messages.to_message("StreamEventsRequest", {"queues": ["mail"], word: value}))
        assert refused.value.details["field"] == word
    read(messages.to_message("StreamEventsRequest", {"queues": ["mail"], word: "", "hostname": "no word about events"}))


def test_dead_is_another_name_for_discarded(served: Served) -> None:
    dead, discarded = listen(served, {"event_types": ["job.dead"]}), listen(served, {"event_types": ["job.*"]})
    enqueue("a.job")
    (row,) = fetch(Fetch(["default"]))
    fail_one(Failure(row["id"], error={"message": "no", "retryable": False}))
    found = dead.next()
    assert (found["type"], found["data"]["state"]) == ("job.dead", "discarded")
    assert "job.discarded" in types(discarded.take(4))


def test_changes_of_state_by_name(served: Served) -> None:
    stream = listen(served, {"event_types": ["job.state_changed"]})
    enqueue("a.job")
    fetch(Fetch(["default"]))
    assert [(e["data"]["from"], e["data"]["to"]) for e in stream.take(2)] == [
        ("", "available"),
        ("available", "active"),
    ]


def test_what_happens_over_http_is_on_the_stream(served: Served) -> None:
    stream = listen(served, {"event_types": ["job.enqueued"]})
    made = Client().post("/ojs/v1/jobs", {"type": "a.http", "args": []}, content_type="application/json").json()
    assert stream.next()["data"]["job_id"] == made["job"]["id"]


def test_a_slow_client_loses_nothing(served: Served) -> None:
    """It reads nothing while more comes than the server keeps for it."""
    request = messages.to_message("StreamEventsRequest", {"event_types": ["job.enqueued"]})
    call = served.stub.StreamEvents(request)
    call.initial_metadata()
    pushed = [str(one.row["id"]) for _ in range(3) for one in push([{"type": "a.job", "args": []}] * 1000)]  # type: ignore[union-attr, index]
    events = (event.job_id for event in call if event.type != "stream.keepalive")
    assert [next(events) for _ in pushed] == pushed
    call.cancel()


def test_a_hole_behind_a_slow_client_is_told(served: Served, settings: Any) -> None:
    cursor = log.read().cursor
    enqueue("a.first", "a.old", "a.kept")
    first = log.read(limit=1).cursor
    kept = Event.objects.order_by("-pk").first()
    assert kept is not None
    assert cursor is None
    ids.log_row(log.database())
    EventLog.objects.update(pruned_to=kept.pk - 1)
    Event.objects.filter(pk__lt=kept.pk).delete()
    found = listen(served, {"after": first}).take(2)
    assert [event["type"] for event in found] == ["system.gap", "job.enqueued"]
    assert found[0]["data"]["estimated_missed_count"] == 1


def test_a_key_sees_what_it_may(guarded: Served) -> None:
    assert refused(guarded, "StreamEvents", {}).code.name == "UNAUTHENTICATED"
    _, worker = keys.create("worker", ["work"])
    assert refused(guarded, "StreamEvents", {}, x_ojs_api_key=worker).code.name == "PERMISSION_DENIED"
    _, text = keys.create("limited", ["read"], queues=["mail"], job_types=["mail.*"])
    denied = refused(guarded, "StreamEvents", {"queues": ["default"]}, x_ojs_api_key=text)
    assert (denied.code.name, denied.info.metadata["queue"]) == ("PERMISSION_DENIED", "default")
    denied = refused(guarded, "StreamEvents", {"job_types": ["a.job"]}, x_ojs_api_key=text)
    assert denied.code.name == "PERMISSION_DENIED"
    stream = listen(guarded, x_ojs_api_key=text)
    enqueue("mail.send")
    enqueue("a.job", "mail.send", queue="mail")
    assert [event["data"]["job_type"] for event in stream.take(1)] == ["mail.send"]
    assert stream.has_nothing


def test_a_key_that_changes_or_ends(guarded: Served) -> None:
    key, text = keys.create("reader", ["read"])
    stream = listen(guarded, {"event_types": ["job.enqueued"]}, authorization=f"Bearer {text}")
    enqueue("a.job", queue="other")
    assert stream.next()["data"]["queue"] == "other"
    key.queues = ["mail"]
    key.save()

    def narrowed() -> bool:
        """Whether a job elsewhere is not seen any more, though one behind it is."""
        enqueue("a.job", queue="other")
        enqueue("b.job", queue="mail")
        seen = [stream.next()]
        while seen[-1]["data"]["queue"] != "mail":
            seen.append(stream.next())
        return len(seen) == 1

    eventually(narrowed)
    keys.revoke(key)
    assert stream.end().code.name == "UNAUTHENTICATED"


def test_the_server_stops(transactional_db: None, settings: Any) -> None:
    settings.OJS = {**getattr(settings, "OJS", {}), "ALLOW_ANONYMOUS": True, "GRPC": True}
    with serving() as served:
        streams = [listen(served) for _ in range(5)]
        served.run(served.server.stop(10))
        for stream in streams:
            failure = stream.end()
            assert (failure.code.name, failure.reason) == ("UNAVAILABLE", "backend_error")
            assert "shutting down" in failure.message
    connections.close_all()
