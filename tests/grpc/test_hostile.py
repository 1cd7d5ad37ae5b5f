"""Bytes, sizes, metadata, deadlines and clients that no honest program sends (grpc SEC-7, LIM-2, LIM-5).

Whatever comes ends in a status of the binding's table with our details, leaves no half of a row, and leaves a server
that answers the next call.
"""

from __future__ import annotations

import asyncio
import gc
import os
import random
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection, connections

from tests.waiting import eventually

grpc = pytest.importorskip("grpc")

from django_ojs.grpc import definition, messages  # noqa: E402
from django_ojs.grpc.definition import MESSAGES, METHODS  # noqa: E402
from django_ojs.jobs import timers  # noqa: E402
from django_ojs.models import Event, Job  # noqa: E402
from django_ojs.realtime import slots  # noqa: E402
from django_ojs.states import State  # noqa: E402
from tests.grpc.serving import PATIENCE, Failure, Served  # noqa: E402

pytestmark = pytest.mark.django_db(transaction=True)

Code = grpc.StatusCode
#: What hostile input may end in. NOT_FOUND and FAILED_PRECONDITION: it happened to be a valid message.
TABLE = {Code.INVALID_ARGUMENT, Code.RESOURCE_EXHAUSTED, Code.UNAUTHENTICATED, Code.NOT_FOUND, Code.FAILED_PRECONDITION}
UNARY = sorted(name for name, method in METHODS.items() if not method.streams)
SETTLED = 90.0
#: Turns of twenty streams each; all ways to leave them come within six.
TURNS = 50 if os.environ.get("OJS_TEST_FULL") == "1" else 18
#: Twice of what the library lets wait. Without being told to, it cancels a tenth of these.
CALLS = 2000


def raw(served: Served, rpc: str, body: bytes, **options: Any) -> Failure | bytes:
    """The bytes of an answer, or the error, to bytes that nothing has looked at."""
    options.setdefault("timeout", PATIENCE)
    try:
        answer: bytes = served.channel.unary_unary(f"/{definition.SERVICE}/{rpc}")(body, **options)
    except grpc.RpcError as error:
        return Failure(error)
    return answer


def check(found: Failure | bytes) -> None:
    """Answered, or refused with a status of the table, our details and one reason."""
    if isinstance(found, Failure):
        assert found.code in TABLE, (found.code, found.message)
        assert found.reason
        assert found.info.domain == "openjobspec.org"
        assert len(found.raw) <= 4096


def until(holds: Callable[[], bool], what: str) -> None:
    eventually(holds, what, timeout=SETTLED)


def alive(served: Served) -> None:
    """The server takes and hands out a job."""
    pushed = served.call("Enqueue", {"type": "after.all", "args": [], "queue": "after"})["job"]
    (fetched,) = served.call("Fetch", {"queues": ["after"], "worker_id": "w"})["jobs"]
    assert fetched["id"] == pushed["id"]
    assert served.call("Ack", {"job_id": fetched["id"]})["acknowledged"] is True


@pytest.mark.parametrize("rpc", UNARY)
def test_bytes_by_chance_are_no_fault_of_the_server(served: Served, rpc: str) -> None:
    chance = random.Random(rpc)
    for _ in range(15):
        check(raw(served, rpc, chance.randbytes(chance.choice((1, 2, 7, 40, 300)))))
    alive(served)


@pytest.mark.parametrize("rpc", ["Enqueue", "EnqueueBatch", "CreateWorkflow", "RegisterCron", "Nack", "Heartbeat"])
def test_messages_with_some_bytes_changed(served: Served, rpc: str) -> None:
    whole = _example(rpc).SerializeToString()
    chance = random.Random(rpc)
    for _ in range(20):
        body = bytearray(whole)
        for _ in range(chance.randint(1, 4)):
            place = chance.randrange(len(body))
            match chance.randrange(3):
                case 0:
                    body[place] = chance.randrange(256)
                case 1:
                    del body[place:]
                    body = body or bytearray(b"\n")
                case _:
                    body[place:place] = chance.randbytes(3)
        check(raw(served, rpc, bytes(body)))
    alive(served)
    for job in Job.objects.all():  # what was stored is whole
        assert served.call("GetJob", {"job_id": str(job.id)})["job"]["type"] == job.type
    begun = Event.objects.filter(type__in=("job.enqueued", "job.scheduled")).count()
    assert begun >= Job.objects.exclude(state=State.PENDING).exclude(attempt=0, state=State.PENDING).count()


def _example(rpc: str) -> Any:
    options = {"queue": "a", "meta": {"k": [1, {"deep": None}]}, "tags": ["x"], "retry": {"max_attempts": 2}}
    job = {"type": "some.job", "args": [1, "two", None, {"three": [3.5]}], "options": options}
    return messages.to_message(f"{rpc}Request", {
        "Enqueue": job,
        "EnqueueBatch": {"jobs": [job, job]},
        "CreateWorkflow": {"name": "w", "steps": [{"id": "a", **job}, {"id": "b", **job, "depends_on": ["a"]}]},
        "RegisterCron": {"name": "c", "cron": "* * * * *", "type": "some.job", "args": [1]},
        "Nack": {"job_id": "0190f3c4-5b6a-7d8e-9f01-23456789abcd", "error": {"code": "e", "message": "m"}},
        "Heartbeat": {"worker_id": "w", "state": "running", "visibility_timeout_ms": 5},
    }[rpc])  # fmt: skip


def test_json_as_the_body_is_told_that_it_is_json(served: Served) -> None:
    found = raw(served, "Enqueue", b'{"type": "some.job", "args": []}')
    assert isinstance(found, Failure)
    assert (found.code, found.reason) == (Code.INVALID_ARGUMENT, "invalid_payload")
    assert "JSON" in found.info.metadata["hint"]


def test_fields_that_nobody_knows_are_left_out(served: Served) -> None:
    unknown = bytes([0x82, 0x7D, 3]) + b"abc" + bytes([0xF8, 0xFF, 0x01, 7])  # fields 2000, as bytes, and 4095
    answer = raw(served, "Enqueue", MESSAGES["EnqueueRequest"](type="some.job").SerializeToString() + unknown)
    assert not isinstance(answer, Failure)
    job = messages.to_document(MESSAGES["EnqueueResponse"].FromString(answer))["job"]
    assert job["type"] == "some.job"


def test_an_rpc_that_nobody_knows(served: Served) -> None:
    for name in ("Push", "enqueue", "Enqueue/x", "x" * 5000):
        found = raw(served, name, b"")
        assert isinstance(found, Failure)
        assert (found.code, found.reason) == (Code.UNIMPLEMENTED, "unsupported")


@pytest.mark.once
@pytest.mark.slow
@pytest.mark.parametrize("levels", [20, 90, 2000, 100_000])
def test_values_nested_without_end(served: Served, levels: int) -> None:
    value = b"\x1a\x00"  # a Value that holds an empty text
    for _ in range(levels):
        value = _field(6, _field(1, value))  # a Value that is a list of that
        if len(value) > 2_000_000:
            break
    found = raw(served, "Enqueue", _field(1, b"some.job") + _field(2, value))
    check(found)
    assert isinstance(found, bytes) == (levels == 20)
    assert Job.objects.count() == (levels == 20)


def _field(number: int, content: bytes) -> bytes:
    size, length = len(content), bytearray()
    while size > 127:
        length.append(size & 127 | 128)
        size >>= 7
    return bytes([number << 3 | 2, *length, size]) + content


def test_a_tag_is_read_before_its_size_and_depth_are_judged(served: Served) -> None:
    deep = "[" * 5000 + "]" * 5000
    for text in (deep, "nothing", "[1", '"\\ud800', "NaN", "1e999999999"):
        request = MESSAGES["EnqueueRequest"](type="some.job")
        request.args.add().struct_value.fields["__ojs_json"].string_value = text
        check(raw(served, "Enqueue", request.SerializeToString()))
    assert Job.objects.count() <= 1  # the huge number, which is JSON


def test_sizes(served: Served, settings: Any) -> None:
    """Ours up to a little above a batch; above that the library's."""
    settings.OJS = {**settings.OJS, "MAX_ENVELOPE_BYTES": 10_000}
    for size, code, reason in ((5_000, None, ""), (20_000, Code.RESOURCE_EXHAUSTED, "payload_too_large")):
        request = MESSAGES["EnqueueRequest"](type="some.job")
        request.args.add().string_value = "x" * size
        found = raw(served, "Enqueue", request.SerializeToString())
        assert (found.code if isinstance(found, Failure) else None) == code
        if isinstance(found, Failure):
            assert found.reason == reason
            assert "RetryInfo" not in " ".join(found.details)
            assert found.info.metadata["retryable"] == "false"
    request.args[0].string_value = "x" * 40_000_000
    with pytest.raises(grpc.RpcError) as caught:
        served.stub.Enqueue(request, timeout=PATIENCE)
    assert caught.value.code() is Code.RESOURCE_EXHAUSTED
    assert Job.objects.count() == 1


@pytest.mark.once
def test_sizes_are_those_of_what_was_compressed(served: Served, settings: Any) -> None:
    settings.OJS = {**settings.OJS, "MAX_ENVELOPE_BYTES": 10_000}
    request = MESSAGES["EnqueueRequest"](type="some.job")
    request.args.add().string_value = "x" * 1_000_000
    for compression in (grpc.Compression.Gzip, grpc.Compression.Deflate):
        found = raw(served, "Enqueue", request.SerializeToString(), compression=compression)
        assert isinstance(found, Failure)
        assert found.reason == "payload_too_large"
    request.args[0].string_value = "x" * 20_000_000  # twenty kilobytes on the wire
    with pytest.raises(grpc.RpcError) as caught:
        served.stub.Enqueue(request, timeout=PATIENCE, compression=grpc.Compression.Gzip)
    assert caught.value.code() is Code.RESOURCE_EXHAUSTED
    assert Job.objects.count() == 0


@pytest.mark.parametrize(
    "metadata",
    [
        [("x-ojs-request-id", "x" * 4000)],
        [("x-ojs-request-id", " "), ("x-request-id", "a b")],
        [("traceparent", "00-zz"), ("tracestate", "," * 500)],
        [("ojs-block-timeout", "-1")],
        [("x-ojs-idempotency-key", "")],
        [("x-ojs-worker-id", "w" * 4000)],
        [("content-length", "5"), ("content-encoding", "gzip"), ("x-forwarded-for", "8.8.8.8"), ("cookie", "a=b")],
        [("x-http-method-override", "DELETE"), ("host", "elsewhere"), ("referer", "http://x")],
        [("any-bin", b"\x00\xff")],
        [(f"key-{number}", "v") for number in range(100)],  # from 8 KiB on the library refuses some by chance
    ],
)
def test_metadata(served: Served, metadata: list[tuple[str, str | bytes]]) -> None:
    body = MESSAGES["EnqueueRequest"](type="some.job").SerializeToString()
    found = raw(served, "Enqueue", body, metadata=metadata)
    check(found)
    assert Job.objects.count() == isinstance(found, bytes)


def test_metadata_that_asks_for_another_version(served: Served) -> None:
    for pair in (("ojs-version", "9.9"), ("ojs-requires-extension", "urn:ojs:ext:none")):
        found = raw(served, "Enqueue", MESSAGES["EnqueueRequest"](type="some.job").SerializeToString(), metadata=[pair])
        assert isinstance(found, Failure)
        assert (found.code, found.reason) == (Code.FAILED_PRECONDITION, "unsupported")
    assert Job.objects.count() == 0


@pytest.mark.parametrize("rpc", ["StreamJobs", "StreamEvents"])
def test_metadata_of_a_stream_that_asks_for_another_version(served: Served, rpc: str) -> None:
    asked = {"queues": ["default"], "worker_id": "w"} if rpc == "StreamJobs" else {}
    message = messages.to_message(f"{rpc}Request", asked)
    for pair in (("ojs-version", "9.9"), ("ojs-requires-extension", "urn:ojs:ext:none")):
        with pytest.raises(grpc.RpcError) as caught:
            next(getattr(served.stub, rpc)(message, metadata=[pair], timeout=PATIENCE))
        found = Failure(caught.value)
        assert (found.code, found.reason) == (Code.FAILED_PRECONDITION, "unsupported")


def test_a_deadline_that_has_passed_stores_nothing_by_halves(served: Served) -> None:
    request = MESSAGES["EnqueueBatchRequest"]()
    for number in range(50):
        request.jobs.add(type="some.job").options.queue = f"q{number % 3}"
    body = request.SerializeToString()
    chance, answered = random.Random(1), 0
    for number in range(40):
        found = raw(served, "EnqueueBatch", body, timeout=0 if number < 10 else chance.uniform(0.0005, 0.05))
        if isinstance(found, Failure):
            assert found.code is Code.DEADLINE_EXCEEDED, found.message
        else:
            answered += 1
    alive(served)  # behind whatever runs still
    until(lambda: served.server is not None and Job.objects.exclude(type="after.all").count() >= 50 * answered, "lost")
    stored = Job.objects.exclude(type="after.all").count()
    assert stored % 50 == 0
    assert Event.objects.filter(type="job.enqueued", data__contains="some.job").count() in (0, stored)


def test_a_fetch_whose_caller_has_gone_loses_no_job(served: Served) -> None:
    """What was claimed for it goes back at once; what had been sent as it went, the scheduler hands back when its
    reservation is over."""
    # An answer that is lost on its way uses up an attempt, and on a busy machine one job may be lost several times.
    patient = {"retry": {"max_attempts": 100, "initial_interval": "PT0.1S", "backoff_coefficient": 1.0}}
    for number in range(20):
        served.call("Enqueue", {"type": "some.job", "args": [number], "options": patient})
    wanted = {"queues": ["default"], "count": 5, "worker_id": "w", "visibility_timeout_ms": 5000}
    request = messages.to_message("FetchRequest", wanted)
    chance, done, ended = random.Random(2), [], set()

    def finish(jobs: Any) -> None:
        for job_id in jobs:
            assert served.call("Ack", {"job_id": job_id})["acknowledged"] is True
            done.append(job_id)

    for _ in range(25):
        try:
            answer = served.stub.Fetch(request, timeout=chance.uniform(0.0005, 0.03))
        except grpc.RpcError as error:
            ended.add(error.code())
        else:
            finish(job.id for job in answer.jobs)
    assert ended <= {Code.DEADLINE_EXCEEDED}

    def drained() -> bool:
        timers.apply_due(using=connection.alias)
        finish(job["id"] for job in served.call("Fetch", wanted | {"count": 50})["jobs"])
        return len(done) >= 20

    until(drained, "jobs that nobody received do not come back")
    assert sorted(done) == sorted(
        str(pk) for pk in Job.objects.filter(state=State.COMPLETED).values_list("pk", flat=True)
    )


@pytest.mark.once
@pytest.mark.wide
@pytest.mark.parametrize("rpc", ["StreamJobs", "StreamEvents"])
def test_streams_that_are_dropped_leave_nothing(served: Served, settings: Any, rpc: str) -> None:
    """Hundreds, twenty at a time: some cancelled before they stand, some after, some with their connection."""
    settings.OJS = {**settings.OJS, "REALTIME_MAX_CONNECTIONS": None}
    request = messages.to_message(
        f"{rpc}Request", {"queues": ["idle"], "worker_id": "w"} if rpc == "StreamJobs" else {}
    )
    for turn in range(TURNS):
        channel = grpc.insecure_channel(served.address, options=[("grpc.use_local_subchannel_pool", 1)])
        stub = definition.Stub(channel)
        calls = [getattr(stub, rpc)(request, wait_for_ready=True) for _ in range(20)]
        if turn % 3:
            for call in calls[: turn % 20]:
                call.initial_metadata()
        if turn % 2:
            for call in calls:
                call.cancel()
        channel.close()
    until(lambda: not slots._open, "streams are still counted")
    until(lambda: not served.server._running, "tasks of streams are left")
    gc.collect()
    alive(served)


def test_many_streams_take_no_place_from_calls(served: Served, settings: Any) -> None:
    settings.OJS = {**settings.OJS, "REALTIME_MAX_CONNECTIONS": None}
    request = messages.to_message("StreamEventsRequest", {})
    calls = [served.stub.StreamEvents(request) for _ in range(100)]
    try:
        for call in calls:
            call.initial_metadata()
        alive(served)
    finally:
        for call in calls:
            call.cancel()


@pytest.mark.once
@pytest.mark.wide
def test_thousands_of_calls_at_once_are_all_answered(served: Served) -> None:
    """The library would cancel some of those that wait, unless it is told to let them."""

    async def drive() -> list[Any]:
        async with grpc.aio.insecure_channel(served.address) as channel:
            stub, request = definition.Stub(channel), messages.to_message("ManifestRequest", {})
            return await asyncio.gather(*(stub.Manifest(request) for _ in range(CALLS)))

    answers = asyncio.run(drive())
    assert {answer.ojs_version for answer in answers} == {"1.0"}
    assert len(answers) == CALLS


def test_one_client_may_have_so_many_streams(served: Served, settings: Any) -> None:
    settings.OJS = {**settings.OJS, "REALTIME_MAX_CONNECTIONS": 2}
    request = messages.to_message("StreamEventsRequest", {})
    calls = [served.stub.StreamEvents(request) for _ in range(2)]
    for call in calls:
        call.initial_metadata()
    with pytest.raises(grpc.RpcError) as caught:
        next(served.stub.StreamEvents(request))
    failure = Failure(caught.value)
    assert (failure.code, failure.reason) == (Code.RESOURCE_EXHAUSTED, "rate_limited")
    assert failure.trailers["retry-after"]
    for call in calls:
        call.cancel()
    connections.close_all()
