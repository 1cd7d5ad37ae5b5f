"""StreamJobs: jobs are pushed to a worker as they become available and as it has room (grpc 9).

What is claimed for the streams of this process, and when a place is free again, is the business of `claims`. Here a
request becomes a stream of that kind, and what is delivered becomes messages, one after the other: the stream claims
again when they are written.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import AsyncIterator, Sequence
from functools import partial
from typing import Any

from django_ojs import jsontext
from django_ojs.access import Limits
from django_ojs.conf import ojs_settings
from django_ojs.database import database
from django_ojs.errors import InvalidRequest, NotFound
from django_ojs.grpc import messages, metadata
from django_ojs.grpc.claims import JobStream, JobStreams
from django_ojs.grpc.streams import STREAM_GRACE, StreamCall
from django_ojs.http import fields, permissions
from django_ojs.models.job import JobRow
from django_ojs.realtime.sse import in_thread
from django_ojs.rules import envelope
from django_ojs.workerregistry.registration import direct, record_fetch


async def stream_jobs(call: StreamCall) -> None:
    """Serve one stream until its client has gone or the server stops.

    Raises InvalidRequest and PermissionDenied for a request that cannot be served, and PermissionDenied when the key
    is limited to other queues meanwhile.
    """
    inbox = _Inbox()
    stream = _wanted(call, inbox)
    call.caller.on_change = inbox.wake
    async with _running() as streams:
        await in_thread(partial(_introduce, call, stream))
        if not streams.open(stream):
            return  # the server stops
        stopping = asyncio.ensure_future(call.stopping.wait())
        try:
            await call.begin()
            await _serve(call, stream, streams, inbox, stopping)
        finally:
            stopping.cancel()
            streams.close(stream)


async def _serve(
    call: StreamCall, stream: JobStream, streams: JobStreams, inbox: _Inbox, stopping: asyncio.Future[Any]
) -> None:
    limits: Limits | None = None
    while not (stopping.done() or inbox.ended):
        if call.caller.limits != limits:
            limits = call.caller.limits
            permissions.check_queue(call.caller.request, stream.wish.queues)
            streams.limit(stream, limits.types)
        if not inbox.rows:
            await inbox.wait(stopping)
            continue
        while inbox.rows and not stopping.done():
            row = inbox.rows.popleft()
            permissions.check_row(call.caller.request, row)
            message = _message(row)
            if call.context.done():
                return
            if streams.take(stream, row["id"]):
                await call.send(message)
        if not inbox.rows:
            streams.written(stream)
    if not stopping.done():
        await in_thread(partial(_introduce, call, stream))  # says it, where the worker is another's by now


def _wanted(call: StreamCall, inbox: _Inbox) -> JobStream:
    """What the request asks for, as FETCH reads it (SJ-1, SJ-4)."""
    asked = messages.read_request(call.request)
    if not asked.get("queues"):
        raise InvalidRequest("Name at least one queue to take jobs from.", details={"field": "queues"})
    queues = fields.queue_names(asked)
    if not asked.get("worker_id"):
        raise InvalidRequest("Say in worker_id which worker takes the jobs.", details={"field": "worker_id"})
    worker_id = fields.worker_id(asked, required=True)
    places = fields.integer(asked, "max_concurrent")
    if "visibility_timeout_ms" not in asked and (given := call.metadata.number(metadata.VISIBILITY)) is not None:
        asked["visibility_timeout_ms"] = given
    permissions.check_queue(call.caller.request, queues)
    return JobStream(
        queues, worker_id,
        places=min(max(places or 1, 1), ojs_settings.MAX_FETCH_COUNT),
        deliver=inbox.deliver, close=inbox.close,
        visibility_ms=fields.duration_ms(asked, "visibility_timeout_ms"),
        types=call.caller.limits.types,
    )  # fmt: skip


def _introduce(call: StreamCall, stream: JobStream) -> None:
    """Note the worker, and that it is the caller's. Raises PermissionDenied if it is another's. For a thread."""
    using = database(None)
    stream.who = permissions.who(call.caller.request)
    record_fetch(stream.worker_id, stream.wish.queues, stream.who, using=using)


def _message(row: JobRow) -> Any:
    """The job as FETCH shows it."""
    shown = envelope.render(row) | {envelope.POLICY_MEMBER: row["retry"]}
    return messages.to_message("Job", jsontext.loads(jsontext.dumps(shown)))


class _Inbox:
    """What other threads deliver to one stream, on its event loop."""

    def __init__(self) -> None:
        self.rows: deque[JobRow] = deque()
        self.ended = False
        self._loop = asyncio.get_running_loop()
        self._filled = asyncio.Event()

    def deliver(self, rows: Sequence[JobRow]) -> None:
        self._loop.call_soon_threadsafe(self._put, rows)

    def close(self) -> None:
        with contextlib.suppress(RuntimeError):  # its event loop is closed
            self._loop.call_soon_threadsafe(self._put, (), True)

    def _put(self, rows: Sequence[JobRow], ended: bool = False) -> None:
        self.rows.extend(rows)
        self.ended = self.ended or ended
        self._filled.set()

    def wake(self) -> None:
        """Let `wait` return."""
        self._filled.set()

    async def wait(self, stopping: asyncio.Future[Any]) -> None:
        """Return when something was delivered, the stream has ended, the server stops, or the key has changed."""
        filled = asyncio.ensure_future(self._filled.wait())
        try:
            await asyncio.wait({filled, stopping}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            filled.cancel()
        self._filled.clear()


# The claim loop of this process: it begins with the first stream and stops with the last.

_lock = threading.Lock()
_streams: JobStreams | None = None
_users = 0


@contextlib.asynccontextmanager
async def _running() -> AsyncIterator[JobStreams]:
    global _streams, _users
    with _lock:
        if _streams is None:
            begun = JobStreams(database(None))
            begun.start()
            _streams = begun
        streams = _streams
        _users += 1
    try:
        yield streams
    finally:
        with _lock:
            _users -= 1
            last = _users == 0
            if last:
                _streams = None
        if last:
            # Also where the client has gone: what was claimed and not sent is back when this returns.
            try:
                await asyncio.shield(asyncio.to_thread(streams.stop, STREAM_GRACE))
            except RuntimeError:  # no thread is to be had
                streams.stop(0.0)  # which waits for nothing


def terminate_workers() -> None:
    """Direct the workers that have streams open in this process to terminate (RUN-5). Asks the database.

    Each learns it by its next heartbeat, whichever server answers that.
    """
    with _lock:
        streams = _streams
    if streams is None:
        return
    for worker_id in streams.workers():
        with contextlib.suppress(NotFound):  # it has deregistered meanwhile
            direct(worker_id, "terminate", using=streams.using)
