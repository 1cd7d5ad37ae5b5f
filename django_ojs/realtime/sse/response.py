"""From the hub to the client: the answer that goes on, its heartbeats, and what ends it."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Any, Protocol, TypeVar

from asgiref.sync import sync_to_async
from django.db import connections
from django.http import StreamingHttpResponse

from django_ojs import clock
from django_ojs.conf import ojs_settings
from django_ojs.errors import OJSError
from django_ojs.events.filters import Filter
from django_ojs.events.places import Place
from django_ojs.realtime import shutdown
from django_ojs.realtime.hub import Hub
from django_ojs.realtime.reading import Entry
from django_ojs.realtime.slots import Slot
from django_ojs.realtime.sse import frames
from django_ojs.realtime.streams import Item, Stream
from django_ojs.rules.durations import format_instant
from django_ojs.scheduler.outage import ERRORS

T = TypeVar("T")
#: Says why a listener may not listen any more; None while it may.
Guard = Callable[[], OJSError | None]

#: What the client is told of the time it has to go elsewhere when the server stops.
GRACE_MS = 5000


_EARLY = 0.01  #: by how much a timer may go off too early


class Teller(Protocol):
    """What one kind of stream says. `ended` is asked after each call: the stream ends with it."""

    channel: str
    wanted: Filter
    ended: bool
    pulse: float | None  #: seconds between two calls of `idle`, None for as rarely as heartbeats

    def opening(self, begin: Beginning) -> str:
        """Frames before the first event; may move `begin`. Called in the view's thread, which may use the database."""

    async def tell(self, entry: Entry) -> str:
        """The frames of one event, '' for none."""

    async def idle(self) -> str:
        """The frames that are due because of the time."""


@dataclasses.dataclass(slots=True)
class Beginning:
    """Where a stream begins: behind `place`, whose event is `cursor`; what the client missed before it, if it did.

    `asked`: whether the client named the place, and gets what has happened since.
    """

    place: Place
    cursor: str | None = None
    gap: dict[str, Any] | None = None
    asked: bool = False


class EventStream(StreamingHttpResponse):
    """The answer. Closing it, whoever does, gives back its slot."""

    def __init__(self, pieces: AsyncIterator[str], slot: Slot) -> None:
        super().__init__(pieces, content_type="text/event-stream")
        self["X-Accel-Buffering"] = "no"
        self._resource_closers: list[Callable[[], None]]
        self._resource_closers.append(slot.release)


async def pump(
    teller: Teller, begin: Beginning, opening: str, may_go_on: Guard, slot: Slot
) -> AsyncGenerator[str, None]:
    """The pieces of the answer, from subscribing to the end."""
    try:
        yield frames.opening(begin.cursor)
        if begin.gap is not None:
            yield _gap(teller, begin.gap)
        if opening:
            yield opening
        if teller.ended:
            return
        shutdown.attend()
        async with (
            Hub.current().subscribe(teller.wanted, after=begin.place) as stream,
            aclosing(_beating(stream, teller, may_go_on)) as pieces,
        ):
            async for piece in pieces:
                yield piece
    except OJSError as error:  # the hub takes nobody any more: the server is shutting down
        yield _refusal(error)
    finally:
        slot.release()


async def _beating(stream: Stream, teller: Teller, may_go_on: Guard) -> AsyncGenerator[str, None]:
    """What the stream brings, and between it, whenever it is quiet for so long, a heartbeat."""
    beat, checked = ojs_settings.REALTIME_HEARTBEAT, time.monotonic()
    quiet_since = pulsed = time.monotonic()
    pending = asyncio.ensure_future(anext(stream))
    try:
        while True:
            due = min(quiet_since + beat, pulsed + (teller.pulse or beat))
            done, _ = await asyncio.wait({pending}, timeout=max(0.0, due - time.monotonic()))
            now = time.monotonic()
            if now - checked > ojs_settings.REALTIME_RECHECK_INTERVAL:
                checked = now
                if (error := await _unless_away(in_thread(may_go_on))) is not None:
                    yield _refusal(error)
                    return
            piece = ""
            if now >= pulsed + (teller.pulse or beat) - _EARLY:
                pulsed = now
                piece = await _unless_away(teller.idle()) or ""
            if done:
                try:
                    item = pending.result()
                except StopAsyncIteration:
                    return
                piece += await _told(item, teller)
                if item.kind == "shutdown":
                    yield piece
                    return
                pending = asyncio.ensure_future(anext(stream))
            if not piece and now >= quiet_since + beat - _EARLY:
                piece = frames.HEARTBEAT
            if piece:
                quiet_since = now
                yield piece
            if teller.ended:
                return
    finally:
        pending.cancel()
        await asyncio.gather(pending, return_exceptions=True)


async def _told(item: Item, teller: Teller) -> str:
    match item.kind:
        case "event":
            assert item.entry is not None
            return await teller.tell(item.entry)
        case "gap":
            return _gap(teller, item.details)
        case "dropped":
            dropped = item.details.get("estimated_missed_count", "unknown")
            data = {
                "channel": teller.channel,
                "dropped_count": dropped,
                **item.details,
                "timestamp": format_instant(clock.now()),
            }
            return frames.comment(f"events-dropped {dropped}") + frames.frame(data, event="system.events_dropped")
    data = {"reason": "shutdown", "grace_period_ms": GRACE_MS, **item.details}
    return frames.frame(data, event="server.shutdown")


def _gap(teller: Teller, details: dict[str, Any]) -> str:
    data = {"channel": teller.channel, "gap_start": None, "gap_end": None, **details}
    return frames.frame(data, event="system.gap")


def _refusal(error: OJSError) -> str:
    return frames.frame({"error": error.as_dict()}, event="error")


async def _unless_away(looking: Awaitable[T]) -> T | None:
    """What somebody looks up, or None while the database is away: a stream that stands outlives that."""
    try:
        return await looking
    except ERRORS:
        return None


async def in_thread(look: Callable[[], T]) -> T:
    """Ask the database from the event loop, and keep no connection for the next time: streams are many and slow."""

    def run() -> T:
        try:
            return look()
        finally:
            let_go()

    asked: Callable[[], Awaitable[T]] = sync_to_async(run, thread_sensitive=False)
    return await asked()


def let_go() -> None:
    """Close this thread's connections, but for one whose transaction is somebody else's."""
    for connection in connections.all(initialized_only=True):
        if not connection.in_atomic_block:
            connection.close()
