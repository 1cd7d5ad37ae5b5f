"""The server around the calls: unknown methods, callers who leave, streams, health, reflection, and how it ends."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytest.importorskip("grpc")

import grpc
from django.core.management import CommandError, call_command
from django.db import OperationalError
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2

from django_ojs import keys, parts
from django_ojs.grpc import calls, messages, server
from django_ojs.grpc.calls import OPERATIONS, UnaryCall
from django_ojs.grpc.definition import METHODS
from django_ojs.grpc.metadata import Metadata, trailers
from django_ojs.grpc.streams import GRPCCaller
from django_ojs.http import jobs, workers
from django_ojs.jobs.push import push
from django_ojs.models import Job
from django_ojs.realtime import access, slots
from tests.grpc import fakestreams
from tests.grpc.serving import PATIENCE, Failure, Served, serving
from tests.waiting import eventually

SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING
pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def streaming(transactional_db: None, settings: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    """A server whose StreamJobs is that of `fakestreams`."""
    settings.OJS = {**getattr(settings, "OJS", {}), "ALLOW_ANONYMOUS": True}
    place = ("work", fakestreams.__name__, "stream_jobs")
    monkeypatch.setitem(server.STREAMS, "StreamJobs", place)
    fakestreams.seen.clear()
    with serving() as found:
        yield found


class Gate:
    """Holds the calls of a function until it is opened."""

    def __init__(self, function: Callable[..., Any], *, after: bool = False) -> None:
        self.function, self.after = function, after
        self.reached, self.opened = threading.Event(), threading.Event()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        found = self.function(*args, **kwargs) if self.after else None
        self.reached.set()
        assert self.opened.wait(PATIENCE)
        return found if self.after else self.function(*args, **kwargs)


def told(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> threading.Event:
    """An event that is set once this function has been called."""
    event, function = threading.Event(), getattr(owner, name)

    def call(*args: Any, **kwargs: Any) -> Any:
        found = function(*args, **kwargs)
        event.set()
        return found

    monkeypatch.setattr(owner, name, call)
    return event


def test_there_is_an_operation_for_every_unary_rpc() -> None:
    assert {name for name, method in METHODS.items() if not method.streams} == set(OPERATIONS)
    assert {name for name, method in METHODS.items() if method.streams} == set(server.STREAMS)


def test_an_unknown_rpc_of_our_service_gets_our_error(served: Served) -> None:
    call = served.channel.unary_unary("/ojs.v1.OJSService/Push")
    with pytest.raises(grpc.RpcError) as caught:
        call(b"", timeout=PATIENCE)
    refused = Failure(caught.value)
    assert (refused.code.name, refused.reason) == ("UNIMPLEMENTED", "unsupported")
    assert "Enqueue" in refused.info.metadata["supported"]


def test_a_call_whose_caller_left_before_its_turn_does_nothing(
    transactional_db: None, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.OJS = {"ALLOW_ANONYMOUS": True, "GRPC_THREADS": 1}
    gate = Gate(jobs.push_one)
    monkeypatch.setattr(jobs, "push_one", gate)
    left = told(monkeypatch, UnaryCall, "leave")
    with serving() as served:
        first = served.stub.Enqueue.future(messages.to_message("EnqueueRequest", {"type": "first"}), timeout=PATIENCE)
        assert gate.reached.wait(PATIENCE)
        waits = told(monkeypatch, UnaryCall, "__init__")
        second = served.stub.Enqueue.future(messages.to_message("EnqueueRequest", {"type": "second"}), timeout=PATIENCE)
        assert waits.wait(PATIENCE)
        second.cancel()
        assert left.wait(PATIENCE)
        gate.opened.set()
        first.result(PATIENCE)
        served.call("Enqueue", {"type": "third", "args": []})
    assert sorted(Job.objects.values_list("type", flat=True)) == ["first", "third"]


def test_a_call_that_has_no_time_left_does_nothing() -> None:
    call = UnaryCall(OPERATIONS["Enqueue"], b"", Metadata({}), seconds=0.0)
    call.run(pytest.fail)


def test_jobs_of_a_fetch_whose_caller_left_go_back(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    push([{"type": "a", "args": []}])
    gate = Gate(workers.fetch_with_others, after=True)
    monkeypatch.setattr(workers, "fetch_with_others", gate)
    left, returned = told(monkeypatch, UnaryCall, "leave"), told(monkeypatch, calls, "_hand_back")
    message = messages.to_message("FetchRequest", {"queues": ["default"], "worker_id": "w"})
    answer = served.channel.unary_unary("/ojs.v1.OJSService/Fetch").future(message.SerializeToString())
    assert gate.reached.wait(PATIENCE)
    assert Job.objects.get().state == "active"
    answer.cancel()
    assert left.wait(PATIENCE)
    gate.opened.set()
    assert returned.wait(PATIENCE)
    job = Job.objects.get()
    assert (job.state, job.uncounted, job.errors) == ("available", 1, None)


@pytest.mark.parametrize("error", [OperationalError("no route to host"), LookupError("a fault of ours")], ids=repr)
def test_jobs_of_a_fetch_that_cannot_go_back_are_told(
    error: Exception, served: Served, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Their reservations end them, and the server goes on."""

    def failing(*args: Any, **kwargs: Any) -> None:
        raise error

    push([{"type": "a", "args": []}])
    gate = Gate(workers.fetch_with_others, after=True)
    monkeypatch.setattr(workers, "fetch_with_others", gate)
    monkeypatch.setattr(calls, "requeue", failing)
    left = told(monkeypatch, UnaryCall, "leave")
    message = messages.to_message("FetchRequest", {"queues": ["default"], "worker_id": "w"})
    answer = served.channel.unary_unary("/ojs.v1.OJSService/Fetch").future(message.SerializeToString())
    assert gate.reached.wait(PATIENCE)
    answer.cancel()
    assert left.wait(PATIENCE)
    gate.opened.set()
    eventually(lambda: "could not be handed back" in caplog.text)
    eventually(lambda: not served.server._running)
    job = Job.objects.get()
    assert (job.state, job.visible_until is not None) == ("active", True)
    served.call("Enqueue", {"type": "b", "args": []})


def test_jobs_that_were_claimed_and_not_written_go_back(transactional_db: None, settings: Any) -> None:
    settings.OJS = {"ALLOW_ANONYMOUS": True}
    push([{"type": "a", "args": []}])
    message = messages.to_message("FetchRequest", {"queues": ["default"]})
    call = UnaryCall(OPERATIONS["Fetch"], message.SerializeToString(), Metadata({}))
    replies: list[Any] = []
    call.run(replies.append)
    assert len(replies[0].jobs) == 1
    assert call.leave()
    call.undo()
    assert Job.objects.get().state == "available"


def test_running_calls_finish_when_the_server_stops(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate(jobs.push_one)
    monkeypatch.setattr(jobs, "push_one", gate)
    health = health_pb2_grpc.HealthStub(served.channel)
    watched = health.Watch(health_pb2.HealthCheckRequest(service="ojs.v1.OJSService"), timeout=PATIENCE)
    assert next(watched).status == SERVING
    running = served.stub.Enqueue.future(messages.to_message("EnqueueRequest", {"type": "a"}), timeout=PATIENCE)
    assert gate.reached.wait(PATIENCE)
    stopping = asyncio.run_coroutine_threadsafe(served.server.stop(PATIENCE), served.loop)
    assert next(watched).status == NOT_SERVING
    watched.cancel()
    gate.opened.set()
    assert running.result(PATIENCE).job.type == "a"
    stopping.result(PATIENCE)
    assert Job.objects.count() == 1


def test_the_task_that_looks_at_the_health_is_a_part(transactional_db: None) -> None:
    with serving() as served:
        assert served.server._watch in parts._parts
        served.run(asyncio.sleep(0))
        assert served.server._watch.is_running()
    assert served.server._watch not in parts._parts


def test_health_without_credentials(served: Served, settings: Any) -> None:
    settings.OJS = {"ALLOW_ANONYMOUS": False}
    health = health_pb2_grpc.HealthStub(served.channel)
    for name in ("", "ojs.v1.OJSService"):
        assert health.Check(health_pb2.HealthCheckRequest(service=name), timeout=PATIENCE).status == SERVING
    with pytest.raises(grpc.RpcError) as caught:
        health.Check(health_pb2.HealthCheckRequest(service="other"), timeout=PATIENCE)
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND


def test_health_while_the_store_is_away(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*args: Any) -> Any:
        raise OperationalError("gone")

    monkeypatch.setattr("django_ojs.http.probes._life.get", away)
    message, _ = served.whole("Health")
    assert message.status == 3  # UNHEALTHY
    assert served.run(served.server._store_answers()) is False


def test_a_stream_has_its_caller_and_ends_with_the_server(streaming: Served) -> None:
    message = messages.to_message("StreamJobsRequest", {"queues": ["a", "b"], "worker_id": "w"})
    stream = streaming.stub.StreamJobs(message, timeout=PATIENCE, metadata=(("x-ojs-request-id", "mine"),))
    assert dict(stream.initial_metadata())["x-ojs-request-id"] == "mine"
    assert [(next(stream).queue, next(stream).queue)] == [("a", "b")]
    (call,) = fakestreams.seen
    assert (call.principal, call.request.worker_id, call.request_id) == ("anonymous", "w", "mine")
    assert slots.open_slots() == 1
    streaming.run(streaming.server.stop(PATIENCE))
    with pytest.raises(grpc.RpcError) as caught:
        next(stream)
    refused = Failure(caught.value)
    assert (refused.code.name, refused.reason) == ("UNAVAILABLE", "backend_error")
    assert "shutting down" in refused.message
    assert slots.open_slots() == 0


@pytest.mark.parametrize(
    "queue, code, reason",
    [("full", "RESOURCE_EXHAUSTED", "QUEUE_FULL"), ("broken", "INTERNAL", "backend_error"), ("end", "OK", "")],
)
def test_a_stream_ends_with_what_its_function_raises(streaming: Served, queue: str, code: str, reason: str) -> None:
    stream = streaming.stub.StreamJobs(messages.to_message("StreamJobsRequest", {"queues": [queue]}), timeout=PATIENCE)
    if code == "OK":
        assert list(stream) == []
        assert dict(stream.trailing_metadata())["x-ojs-request-id"]
        return
    with pytest.raises(grpc.RpcError) as caught:
        list(stream)
    refused = Failure(caught.value)
    assert (refused.code.name, refused.reason) == (code, reason)
    assert b"hunter2" not in refused.raw


def test_a_stream_ends_when_its_key_is_revoked_and_not_when_nobody_knows(
    transactional_db: None, settings: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    settings.OJS = {"ALLOW_ANONYMOUS": False, "REALTIME_RECHECK_INTERVAL": 0.05}
    monkeypatch.setitem(server.STREAMS, "StreamJobs", ("work", fakestreams.__name__, "stream_jobs"))
    monkeypatch.setattr(access._looks, "_told", set())  # of what other tests have seen
    row, text = keys.create("worker", ["work"])
    with serving() as served:
        message = messages.to_message("StreamJobsRequest", {"queues": ["a"]})
        stream = served.stub.StreamJobs(message, timeout=PATIENCE, metadata=(("x-ojs-api-key", text),))
        assert next(stream).id == "key:worker"
        with monkeypatch.context() as patch:  # while the rights cannot be looked at, the stream stays
            asked = threading.Semaphore(0)

            def away(caller: GRPCCaller) -> Any:
                asked.release()
                raise OperationalError("no route to host")

            patch.setattr(GRPCCaller, "reauthenticate", away)
            assert all(asked.acquire(timeout=PATIENCE) for _ in range(3))
        assert caplog.text.count("Looking at the rights of connected clients failed (no route to host,") == 1
        assert stream.is_active()
        keys.revoke(row)
        with pytest.raises(grpc.RpcError) as caught:
            next(stream)
    assert Failure(caught.value).code.name == "UNAUTHENTICATED"


def test_one_client_may_have_so_many_streams(streaming: Served, settings: Any) -> None:
    settings.OJS = {**settings.OJS, "REALTIME_MAX_CONNECTIONS": 1}
    message = messages.to_message("StreamJobsRequest", {"queues": ["a"]})
    first = streaming.stub.StreamJobs(message, timeout=PATIENCE)
    next(first)
    with pytest.raises(grpc.RpcError) as caught:
        next(streaming.stub.StreamJobs(message, timeout=PATIENCE))
    refused = Failure(caught.value)
    assert (refused.code.name, refused.reason) == ("RESOURCE_EXHAUSTED", "rate_limited")
    first.cancel()


#: The name of reflection, and that of its draft.
REFLECTIONS = ["grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection"]


def reflect(served: Served, service: str, metadata: Any = ()) -> list[Any]:
    call = served.channel.stream_stream(
        f"/{service}/ServerReflectionInfo",
        request_serializer=reflection_pb2.ServerReflectionRequest.SerializeToString,
        response_deserializer=reflection_pb2.ServerReflectionResponse.FromString,
    )
    asked = [reflection_pb2.ServerReflectionRequest(list_services="")]
    symbols = ("ojs.v1.OJSService", "grpc.health.v1.Health", service)
    asked += [reflection_pb2.ServerReflectionRequest(file_containing_symbol=symbol) for symbol in symbols]
    return list(call(iter(asked), timeout=PATIENCE, metadata=metadata))


@pytest.mark.parametrize("service", REFLECTIONS)
def test_reflection_tells_callers_with_credentials(transactional_db: None, settings: Any, service: str) -> None:
    settings.OJS = {"ALLOW_ANONYMOUS": False}
    with serving(reflection=True) as served:
        with pytest.raises(grpc.RpcError) as caught:
            reflect(served, service)
        assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
        listed, *files = reflect(served, service, (("x-ojs-api-key", keys.create("any", ["read"])[1]),))
    names = [found.name for found in listed.list_services_response.service]
    assert sorted(names) == sorted(["ojs.v1.OJSService", "grpc.health.v1.Health", *REFLECTIONS])
    packages = [
        [FileDescriptorProto.FromString(raw).package for raw in file.file_descriptor_response.file_descriptor_proto]
        for file in files
    ]
    assert ["ojs.v1" in packages[0], "grpc.health.v1" in packages[1]] == [True, True]
    assert packages[2] == [service.rpartition(".")[0]]


@pytest.mark.parametrize("service", REFLECTIONS)
def test_reflection_is_off_outside_debug(served: Served, service: str) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        reflect(served, service)
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


def test_compressed_requests_and_answers(served: Served) -> None:
    for compression in (grpc.Compression.Gzip, grpc.Compression.Deflate):
        message = messages.to_message("EnqueueRequest", {"type": "a", "args": ["x" * 100_000]})
        answer = served.stub.Enqueue(message, timeout=PATIENCE, compression=compression)
        assert answer.job.args[0].string_value == "x" * 100_000


def test_trailers_are_those_of_http() -> None:
    headers = {
        "Retry-After": "2", "X-RateLimit-Limit": "5", "X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "17",
        "X-OJS-Queue-Depth": "9", "X-OJS-Queue-Bound": "10", "X-OJS-Queue-Pressure": "0.90", "Location": "/x",
        "Idempotency-Replayed": "true",
    }  # fmt: skip
    assert dict(trailers("r", headers)) == {
        "x-ojs-request-id": "r", "retry-after": "2", "x-ojs-ratelimit-limit": "5", "x-ojs-ratelimit-remaining": "0",
        "x-ojs-ratelimit-reset": "17", "x-ojs-queue-depth": "9", "x-ojs-queue-bound": "10",
        "x-ojs-queue-pressure": "0.90", "x-ojs-idempotency-replayed": "true",
    }  # fmt: skip


@pytest.mark.parametrize(
    "peer, address",
    [("ipv4:192.0.2.1:4711", "192.0.2.1"), ("ipv6:%5B::1%5D:4711", "::1"), ("ipv6:[2001:db8::1]:4", "2001:db8::1"),
     ("unix:/run/x", ""), ("unix:", ""), ("", "")],
)  # fmt: skip
def test_the_address_of_a_peer(peer: str, address: str) -> None:
    assert Metadata.of((), peer).address == address


@pytest.mark.parametrize(
    "address",
    ["9090", "localhost", "localhost:http", "::1:9090", "localhost:70000", "unix:", "localhost:٩٠٩٠", "a\udcff:1",
     "localhost:" + "9" * 5000],
    ids=lambda address: ascii(address[:20]),
)  # fmt: skip
def test_the_command_refuses_what_is_no_address(address: str) -> None:
    with pytest.raises(CommandError, match="HOST:PORT"):
        call_command("ojs_grpc", "--bind", address)


def test_the_command_names_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("django_ojs.grpc.missing", lambda: ("grpcio-health-checking",))
    with pytest.raises(CommandError, match=r"grpcio-health-checking.*django-ojs\[grpc\]"):
        call_command("ojs_grpc")


def test_the_command_serves_no_key_in_the_open(settings: Any) -> None:
    settings.OJS = {"GRPC": True}
    with pytest.raises(CommandError, match="GRPC_TLS_CERTIFICATE"):
        call_command("ojs_grpc", "--bind", "0.0.0.0:0")


def test_an_address_that_is_taken_is_named(served: Served) -> None:
    with pytest.raises(CommandError, match="is it taken"):
        call_command("ojs_grpc", "--bind", served.address, verbosity=0)


def test_a_site_without_the_library_does_not_load_it() -> None:
    code = (
        "import sys; sys.modules['grpc'] = None; sys.modules['google.rpc'] = None; import django; django.setup(); "
        "import django_ojs.urls, django_ojs.grpc; from django.core.management import call_command; "
        "call_command('check')"
    )
    done = subprocess.run([sys.executable, "-c", code], env=os.environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
