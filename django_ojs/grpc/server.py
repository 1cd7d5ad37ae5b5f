"""The server of the gRPC binding: takes the calls of all RPCs, unary and streams, and ends with grace (grpc 1, 8, 11).

    server = Server("127.0.0.1:9090")
    await server.start()
    ...
    await server.stop()

The library hands over bytes, so that a request that cannot be read gets an error of ours. Unary calls run on threads
that last, as over ASGI; a stream holds none of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import importlib.util
import ipaddress
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.db import Error, close_old_connections
from google.protobuf import descriptor_pb2, descriptor_pool
from google.protobuf.message import DecodeError
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_health.v1._async import HealthServicer
from grpc_reflection.v1alpha import reflection, reflection_pb2, reflection_pb2_grpc
from grpc_reflection.v1alpha._async import ReflectionServicer

from django_ojs import errors, parts
from django_ojs.backoff import Backoff
from django_ojs.conf import ojs_settings
from django_ojs.grpc import calls, definition, jobstream, metadata
from django_ojs.grpc.calls import RpcOperation, RpcReply, UnaryCall
from django_ojs.grpc.errors import Code, RpcError, logger, refusal
from django_ojs.grpc.metadata import Metadata
from django_ojs.grpc.streams import STREAM_GRACE, GRPCCaller, Serve, StreamCall
from django_ojs.http import permissions, probes
from django_ojs.parts import LastingTask
from django_ojs.realtime.access import lost_rights
from django_ojs.realtime.handler import PROBES, StreamThreads
from django_ojs.realtime.slots import Slot

DEFAULT_ADDRESS = "127.0.0.1:9090"
#: Bytes that a message may have beyond a batch: so it is our error that says what is too large.
ABOVE_BATCH = 1_048_576
#: Answers from this size on, in bytes, are compressed for clients that take it.
WORTH_PACKING = 16_384
#: Seconds between two looks at the store for the health service.
LOOK_EVERY = 5.0
#: The calls that may wait for room in a bounded queue at a time: they hold a thread meanwhile.
PATIENT = 64

#: Calls that may wait to be taken up. Beyond a thousand the library would cancel some of them, by chance and without a
#: reason, and a client takes a call that was cancelled for one that it should not repeat.
MANY = 100_000

NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
SERVING = health_pb2.HealthCheckResponse.SERVING

#: The scope that each stream needs, and the module and the function that serve it.
STREAMS = {
    "StreamJobs": ("work", "django_ojs.grpc.jobstream", "stream_jobs"),
    "StreamEvents": ("read", "django_ojs.grpc.eventstream", "stream_events"),
}


@dataclasses.dataclass(frozen=True)
class TLS:
    """Files in PEM: the certificate with its chain, its key, and the CA whose certificates clients must have."""

    certificate: Path
    key: Path
    client_ca: Path | None = None

    @classmethod
    def of_settings(cls) -> TLS | None:
        """What `GRPC_TLS_CERTIFICATE` and its neighbours say. Raises ImproperlyConfigured."""
        certificate, key = ojs_settings.GRPC_TLS_CERTIFICATE, ojs_settings.GRPC_TLS_KEY
        ca = ojs_settings.GRPC_TLS_CLIENT_CA
        if not certificate and not key:
            if ca:
                raise ImproperlyConfigured("OJS['GRPC_TLS_CLIENT_CA'] needs GRPC_TLS_CERTIFICATE and GRPC_TLS_KEY.")
            return None
        if not certificate or not key:
            raise ImproperlyConfigured("Set both OJS['GRPC_TLS_CERTIFICATE'] and OJS['GRPC_TLS_KEY'], or neither.")
        return cls(Path(certificate), Path(key), Path(ca) if ca else None)

    def credentials(self) -> grpc.ServerCredentials:
        """Of the library; the files are read again when they have changed. Raises ImproperlyConfigured."""
        known = self._stamp()
        try:
            first = self._configuration()
        except OSError as error:
            raise ImproperlyConfigured(f"A file for TLS cannot be read: {error}") from error

        def fetch() -> Any:
            """Called at each handshake; None means what it was before."""
            nonlocal known
            try:
                if (stamp := self._stamp()) == known:
                    return None
                found = self._configuration()
            except OSError as error:
                logger.error("The new files for TLS cannot be read, so the old ones stay: %s", error)
                return None
            known = stamp
            return found

        return grpc.dynamic_ssl_server_credentials(first, fetch, require_client_authentication=bool(self.client_ca))

    def _configuration(self) -> Any:
        pair = (self.key.read_bytes(), self.certificate.read_bytes())
        roots = self.client_ca.read_bytes() if self.client_ca else None
        return grpc.ssl_server_certificate_configuration([pair], roots)

    def _stamp(self) -> tuple[Any, ...]:
        files = (self.certificate, self.key, self.client_ca)
        try:
            return tuple((found.st_mtime_ns, found.st_size, found.st_ino) for found in (f.stat() for f in files if f))
        except OSError:
            return ()


def check_exposure(address: str, tls: TLS | None) -> None:
    """Raise ImproperlyConfigured where keys would travel in the open (SEC-3)."""
    if tls is not None or settings.DEBUG or ojs_settings.GRPC_BEHIND_TLS_PROXY or is_local(address):
        return
    raise ImproperlyConfigured(
        f"Without TLS, API keys would travel unencrypted to {address}. Set OJS['GRPC_TLS_CERTIFICATE'] and "
        "OJS['GRPC_TLS_KEY'], or OJS['GRPC_BEHIND_TLS_PROXY'] = True if a proxy in front of this server ends TLS."
    )


def is_local(address: str) -> bool:
    """Whether only this machine reaches the address."""
    host = address.rpartition(":")[0].strip("[]")
    if address.startswith("unix:") or host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class Server:
    """The gRPC server of this process.

    Args:
        address: `host:port`, `[::1]:port` or `unix:path`; port 0 takes any that is free.
        tls: None: what the settings say.
        reflection: None: what the settings say.
    """

    def __init__(self, address: str = DEFAULT_ADDRESS, *, tls: TLS | None = None, reflection: bool | None = None):
        self.address = address
        self._tls = tls or TLS.of_settings()
        check_exposure(address, self._tls)
        self._threads = StreamThreads(max(1, ojs_settings.GRPC_THREADS))
        self._patient, self._probes = StreamThreads(PATIENT), StreamThreads(PROBES)
        self._reflection = _reflects() if reflection is None else reflection
        self.stopping = asyncio.Event()
        self._watch = LastingTask("health task of gRPC", self._watch_store)
        self._running: set[asyncio.Task[Any]] = set()
        self._looks = Backoff("Looking at the store for the health service", LOOK_EVERY, 60.0)

    async def start(self) -> int:
        """Answer calls from now on; gives the port. Raises ImproperlyConfigured where the address cannot be had."""
        self._health = HealthServicer()
        self._server = grpc.aio.server(options=_options())
        self._server.add_generic_rpc_handlers((_Handlers(self._handlers()),))
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        if self._reflection:
            _add_reflection(_Reflection(self), self._server)
        try:
            if self._tls is None:
                port = self._server.add_insecure_port(self.address)
            else:
                port = self._server.add_secure_port(self.address, self._tls.credentials())
        except RuntimeError as error:
            raise ImproperlyConfigured(f"The address {self.address} cannot be used: is it taken?") from error
        await self._server.start()
        await self._look()
        self._watch.start()
        return int(port)

    async def stop(self, grace: float | None = None) -> None:
        """Take no new calls, tell the streams to end, and wait for the running calls, at most `grace` seconds."""
        grace = ojs_settings.GRPC_SHUTDOWN_GRACE if grace is None else grace
        if ojs_settings.GRPC_TERMINATE_WORKERS and not self.stopping.is_set():
            await self._terminate_workers()
        self.stopping.set()
        await self._health.enter_graceful_shutdown()
        await self._watch.stop()
        await self._server.stop(grace)
        if self._running:  # a stream that hands jobs back, a Fetch whose caller has gone
            await asyncio.wait(self._running, timeout=STREAM_GRACE)

    async def _terminate_workers(self) -> None:
        try:
            await self.on_thread(jobstream.terminate_workers)
        except Error:
            logger.exception("The workers that have streams could not be told to terminate; the server stops anyway.")

    async def wait(self) -> None:
        """Until the server has stopped."""
        await self._server.wait_for_termination()

    # Handlers

    def _handlers(self) -> Mapping[str, Any]:
        found: dict[str, Any] = {}
        for method in definition.METHODS.values():
            if method.streams:
                found[method.path] = grpc.unary_stream_rpc_method_handler(self._stream_handler(method.name))
            elif method.name == "Fetch":
                # On the wire a unary answer is a stream of one, and this form tells when it has been written.
                found[method.path] = grpc.unary_stream_rpc_method_handler(self._fetch)
            else:
                handler = self._unary_handler(calls.OPERATIONS[method.name])
                found[method.path] = grpc.unary_unary_rpc_method_handler(handler)
        return found

    def _unary_handler(self, operation: RpcOperation) -> Callable[[bytes, Any], Awaitable[bytes]]:
        async def handle(raw: bytes, context: Any) -> bytes:
            reply = await self._answered(self._call(operation, raw, context), context)
            return reply.body

        return handle

    async def _fetch(self, raw: bytes, context: Any) -> None:
        call = self._call(calls.OPERATIONS["Fetch"], raw, context)
        try:
            reply = await self._answered(call, context)
            await context.write(reply.body)
        except BaseException:
            self._give_back(call)
            raise

    def _call(self, operation: RpcOperation, raw: bytes, context: Any) -> UnaryCall:
        given = Metadata.of(context.invocation_metadata(), context.peer())
        return UnaryCall(operation, raw, given, context.time_remaining())

    async def _answered(self, call: UnaryCall, context: Any) -> RpcReply:
        """Carry the call out on a thread; send all of the answer but its message."""
        threads = self._threads
        if call.operation.rpc == "Health":
            threads = self._probes
        elif "ojs-block-timeout" in call.metadata.values:
            threads = self._patient
        try:
            reply: RpcReply = await threads.run(call.run)
        except RpcError as refused:
            await _refuse(context, refused)
        except asyncio.CancelledError:
            self._give_back(call)
            raise
        if len(reply.body) >= WORTH_PACKING:
            context.set_compression(grpc.Compression.Gzip)
        await context.send_initial_metadata(metadata.initial(reply.request_id))
        context.set_trailing_metadata(reply.trailers)
        return reply

    def _give_back(self, call: UnaryCall) -> None:
        """Let a thread hand back what was claimed for a caller who has gone."""
        if call.leave():
            self._run(self._threads.run(call.undo))

    async def on_thread(self, function: Callable[..., Any], *args: Any) -> Any:
        """What `function` returns, called on one of the threads that carry out calls."""

        def call(answer: Callable[[Any], None]) -> None:
            try:
                answer(function(*args))
            finally:
                close_old_connections()

        return await self._threads.run(call)

    def _run(self, coroutine: Any) -> None:
        task = asyncio.ensure_future(coroutine)
        self._running.add(task)
        task.add_done_callback(self._ran)

    def _ran(self, task: asyncio.Future[Any]) -> None:
        self._running.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("What a call had claimed could not be handed back; its reservation ends it.", exc_info=error)

    # Streams

    def _stream_handler(self, rpc: str) -> Callable[[bytes, Any], Awaitable[None]]:
        needs, path, name = STREAMS[rpc]
        there = importlib.util.find_spec(path) is not None
        serve: Serve | None = getattr(importlib.import_module(path), name) if there else None

        async def handle(raw: bytes, context: Any) -> None:
            given = Metadata.of(context.invocation_metadata(), context.peer())
            request_id = given.answered_id()
            try:
                caller = await self.on_thread(GRPCCaller, given, rpc, needs)
                if serve is None:
                    message = f"{rpc} is optional in the specification, and this server does not have it."
                    error = errors.Unsupported(message, details={"rpc": rpc})
                    raise RpcError.of(error, request_id, Code.UNIMPLEMENTED)
                request = _parsed(rpc, raw)
                slot = Slot("streams", caller.name)
            except Exception as exc:  # noqa: BLE001 - whatever it is, the client gets an error of the binding
                await _refuse(context, _refused(exc, rpc, request_id))
                return
            call = StreamCall(request, given, caller, self.stopping, context)
            call.request_id = request_id
            try:
                await self._streamed(rpc, serve, call)
            finally:
                slot.free()

        return handle

    async def _streamed(self, rpc: str, serve: Serve, call: StreamCall) -> None:
        """Serve a stream while its client is there, may have it, and the server lasts."""
        if self.stopping.is_set():
            await _refuse(call.context, _shutting_down(call.request_id))
        serving = asyncio.ensure_future(serve(call))
        watching = asyncio.ensure_future(_watch_rights(call.caller))
        stopping = asyncio.ensure_future(self._grace_over())
        tasks = (serving, watching, stopping)
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            over, lost = serving.done(), watching.done() and not watching.cancelled()
            for task in tasks:
                task.cancel()
            ending = asyncio.gather(*tasks, return_exceptions=True)
            self._run(ending)
            await asyncio.shield(ending)
        failure = serving.exception() if over and not serving.cancelled() else None
        if failure is None and lost:
            failure = watching.exception()
        if failure is not None:
            await _refuse(call.context, _refused(failure, rpc, call.request_id))
        if self.stopping.is_set():
            await _refuse(call.context, _shutting_down(call.request_id))
        await call.begin()
        call.context.set_trailing_metadata(metadata.trailers(call.request_id, {}))

    async def _grace_over(self) -> None:
        """Until the time is over that streams have to end by themselves once the server stops."""
        await self.stopping.wait()
        await asyncio.sleep(STREAM_GRACE)

    # Health

    async def _watch_store(self) -> None:
        while True:
            self._watch.tick()
            await asyncio.sleep(LOOK_EVERY)
            await self._look()

    async def _look(self) -> None:
        """Set the health by what the store answers now. What cannot be found out is no health, and is asked again."""
        try:
            serving = await self._store_answers() and not parts.stuck()
        except Exception:  # noqa: BLE001 - it is logged there
            self._looks.failed()
            serving = False
        else:
            self._looks.worked()
        await self._set_health(serving)

    async def _set_health(self, serving: bool) -> None:
        for name in ("", definition.SERVICE):
            await self._health.set(name, SERVING if serving else NOT_SERVING)

    async def _store_answers(self) -> bool:
        def check(answer: Callable[[bool], None]) -> None:
            try:
                probes.store_answers()
            except Error:
                answer(False)
            else:
                answer(True)

        return bool(await self._probes.run(check))


class _Handlers(grpc.GenericRpcHandler):  # type: ignore[type-arg]
    """Finds the handler of a method; ours answers for every name below our service."""

    def __init__(self, found: Mapping[str, Any]) -> None:
        self._found = found

    def service(self, details: Any) -> Any:
        method = details.method
        if method in self._found or not method.startswith(f"/{definition.SERVICE}/"):
            return self._found.get(method)
        return grpc.unary_unary_rpc_method_handler(_unknown(method))


def _unknown(method: str) -> Callable[[bytes, Any], Awaitable[bytes]]:
    async def handle(raw: bytes, context: Any) -> bytes:
        given = Metadata.of(context.invocation_metadata(), context.peer())
        name = method.rpartition("/")[2][:100]
        error = errors.Unsupported(
            f"{definition.SERVICE} has no RPC {name!r}.",
            details={"rpc": name, "supported": list(definition.METHODS)},
            hint="Call one of those that details.supported names.",
        )
        await _refuse(context, RpcError.of(error, given.answered_id(), Code.UNIMPLEMENTED))
        return b""

    return handle


async def _refuse(context: Any, refused: RpcError) -> None:
    """End the call with an error. Its initial metadata has to be on its way before."""
    with contextlib.suppress(grpc.aio.UsageError, grpc.aio.InternalError):  # it is already
        await context.send_initial_metadata(metadata.initial(refused.request_id))
    await context.abort(refused.code, refused.message, refused.trailers)


def _refused(exc: BaseException, rpc: str, request_id: str) -> RpcError:
    if not isinstance(exc, Exception):
        raise exc
    return refusal(exc, rpc, request_id)


def _shutting_down(request_id: str) -> RpcError:
    error = errors.BackendUnavailable(
        "The server is shutting down.", hint="Connect again; another server, or this one, will answer."
    )
    return RpcError.of(error, request_id)


def _parsed(rpc: str, raw: bytes) -> Any:
    """The request of a stream. Raises InvalidPayload."""
    message = definition.METHODS[rpc].request()
    try:
        message.ParseFromString(raw)
    except DecodeError:
        raise calls.unreadable(raw, rpc) from None
    return message


async def _watch_rights(caller: GRPCCaller) -> None:
    """Look at the rights of a caller for as long as it is there. Raises what they are refused with."""
    while True:
        await asyncio.sleep(min(ojs_settings.REALTIME_RECHECK_INTERVAL, 60.0))
        try:
            await caller.renew()
        except Exception as cause:
            if lost_rights(cause) is not None:
                raise


def _options() -> list[tuple[str, int]]:
    age = ojs_settings.GRPC_MAX_CONNECTION_AGE
    aged = [] if age is None else [
        ("grpc.max_connection_age_ms", round(age * 1000)),
        ("grpc.max_connection_age_grace_ms", round(ojs_settings.GRPC_SHUTDOWN_GRACE * 1000)),
    ]  # fmt: skip
    return [
        ("grpc.max_receive_message_length", ojs_settings.MAX_BATCH_BYTES + ABOVE_BATCH),
        ("grpc.max_send_message_length", -1),
        ("grpc.keepalive_time_ms", 60_000),
        ("grpc.keepalive_timeout_ms", 20_000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
        ("grpc.http2.min_recv_ping_interval_without_data_ms", 10_000),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.so_reuseport", 0),
        ("grpc.server.max_pending_requests", MANY),
        ("grpc.server.max_pending_requests_hard_limit", MANY),
        *aged,
    ]


# Reflection

#: The service under its present name. The library serves only its draft, whose messages are the same on the wire.
REFLECTION = "grpc.reflection.v1.ServerReflection"


def _reflects() -> bool:
    return settings.DEBUG if ojs_settings.GRPC_REFLECTION is None else ojs_settings.GRPC_REFLECTION


class _Reflection(ReflectionServicer):  # type: ignore[misc]
    """The library's, for callers who may call something."""

    def __init__(self, ours: Server) -> None:
        names = (definition.SERVICE, health.SERVICE_NAME, REFLECTION, reflection.SERVICE_NAME)
        super().__init__(names, pool=_Pools())
        self._ours = ours

    async def ServerReflectionInfo(self, request_iterator: Any, context: Any) -> Any:  # noqa: N802 - the RPC's name
        given = Metadata.of(context.invocation_metadata(), context.peer())
        try:
            await self._ours.on_thread(_check_known, given)
        except Exception as exc:  # noqa: BLE001 - whatever it is, the client gets an error of the binding
            await _refuse(context, _refused(exc, "ServerReflectionInfo", given.answered_id()))
        async for answer in super().ServerReflectionInfo(request_iterator, context):
            yield answer


def _add_reflection(servicer: _Reflection, server: Any) -> None:
    """Serve reflection under both of its names: clients ask for one, and few of them for the other as well."""
    reflection_pb2_grpc.add_ServerReflectionServicer_to_server(servicer, server)
    handler = grpc.stream_stream_rpc_method_handler(
        servicer.ServerReflectionInfo,
        request_deserializer=reflection_pb2.ServerReflectionRequest.FromString,
        response_serializer=reflection_pb2.ServerReflectionResponse.SerializeToString,
    )
    handlers = grpc.method_handlers_generic_handler(REFLECTION, {"ServerReflectionInfo": handler})
    server.add_generic_rpc_handlers((handlers,))


def _check_known(given: Metadata) -> None:
    """Raise Unauthenticated for a caller without credentials, where calls need some."""
    caller = GRPCCaller(given, "ServerReflectionInfo", "")
    if permissions.principal(caller.request) == "anonymous" and not ojs_settings.anonymous_allowed:
        raise errors.Unauthenticated("This call needs credentials and the request has none.")


class _Pools:
    """Looks in our own pool of messages, in that of reflection, then in the library's, which has the health service."""

    def __init__(self) -> None:
        self._pools = (definition.POOL, _reflection_pool(), descriptor_pool.Default())

    def __getattr__(self, name: str) -> Any:
        *first, last = self._pools

        def find(*args: Any) -> Any:
            for pool in first:
                with contextlib.suppress(KeyError):
                    return getattr(pool, name)(*args)
            return getattr(last, name)(*args)

        return find


def _reflection_pool() -> descriptor_pool.DescriptorPool:
    """The definition of reflection under its present name, made of that of the draft."""
    draft, present = reflection.SERVICE_NAME.rpartition(".")[0], REFLECTION.rpartition(".")[0]
    file = descriptor_pb2.FileDescriptorProto()
    reflection_pb2.DESCRIPTOR.CopyToProto(file)
    file.package, file.name = present, f"{present.replace('.', '/')}/reflection.proto"
    for field in (field for message in file.message_type for field in message.field if field.type_name):
        field.type_name = field.type_name.replace(f".{draft}.", f".{present}.")
    for method in (method for service in file.service for method in service.method):
        method.input_type = method.input_type.replace(f".{draft}.", f".{present}.")
        method.output_type = method.output_type.replace(f".{draft}.", f".{present}.")
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return pool
