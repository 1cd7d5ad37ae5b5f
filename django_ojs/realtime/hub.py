"""The hub: one reader of the log for each server process, whatever the number of its subscribers.

    hub = Hub.current()
    async with hub.subscribe(Filter(queues=("mail",)), after=None) as stream:
        async for item in stream:
            ...

The hub tails the log from a thread and offers what is new to the streams in memory. It has no state that a crash
could cost: a client names the last event it has seen, and everything after that is read from the log.

It polls, 20 times a second while there is something and 4 times while there is not. A hint that something happened
would have to come from each push, which may cost nothing, or from a pass of `events.order`, which is no faster.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any
from weakref import WeakKeyDictionary

from django_ojs.errors import BackendUnavailable
from django_ojs.events import log, places
from django_ojs.events.filters import Filter
from django_ojs.events.places import Place
from django_ojs.realtime.reading import Entry, Pages, Reader
from django_ojs.realtime.streams import Item, Stream
from django_ojs.scheduler.outage import ERRORS

logger = logging.getLogger(__name__)

BUSY, IDLE = 0.05, 0.25  #: seconds between two looks, when the last one found something and after a while of nothing
DOUBTFUL = 30.0  #: seconds without a look after which the log may have been pruned behind our back
SLICE = 200  #: events that are offered before others of the event loop get their turn
AFTER_FAULT = 1.0

_hubs: WeakKeyDictionary[asyncio.AbstractEventLoop, Hub] = WeakKeyDictionary()


class Hub:
    """Begins to read with its first subscriber and stops with its last. Belongs to one event loop."""

    def __init__(self) -> None:
        self.place: Place = places.START
        self.closing = False
        self._streams: dict[Stream, None] = {}
        self._anywhere: dict[Stream, None] = {}
        self._routes: dict[tuple[str, object], dict[Stream, None]] = {}
        self._users = 0
        self._reader: Reader | None = None
        self._tail: asyncio.Task[None] | None = None
        self._waiting: list[asyncio.Future[None]] = []
        self._kick = asyncio.Event()
        self._empty = asyncio.Event()
        self._empty.set()

    @classmethod
    def current(cls) -> Hub:
        """The hub of the running event loop."""
        loop = asyncio.get_running_loop()
        hub = _hubs.get(loop)
        if hub is None:
            hub = _hubs[loop] = cls()
        return hub

    @property
    def subscribers(self) -> int:
        return len(self._streams)

    @contextlib.asynccontextmanager
    async def subscribe(
        self, wanted: Filter | Sequence[Filter], *, after: str | Place | None = None, buffer: int = 1000
    ) -> AsyncIterator[Stream]:
        """The events that match `wanted` (or one of several): those after the event or place `after`, and then live.

        Without `after` they begin with what is committed after this call. Raises `InvalidRequest` if `after` was
        never issued and `BackendUnavailable` while the server shuts down; if it is too old, the first item is a gap.
        """
        filters = (wanted,) if isinstance(wanted, Filter) else tuple(wanted)
        self._enter()
        stream = None
        try:
            stream = await self._open(filters, after, buffer)
            yield stream
        finally:
            if stream is not None:
                self._drop(stream)
            await asyncio.shield(self._leave())

    async def replay(self, place: Place, filters: Sequence[Filter]) -> Pages:
        """One page of the log behind `place`."""
        assert self._reader is not None
        return await self._reader.replay(place, filters)

    async def start(self, after: str) -> tuple[Place, dict[str, Any] | None]:
        """The place of a cursor, and the gap if it has been pruned (see `log.start`)."""
        assert self._reader is not None
        return await self._reader.start(after)

    async def synced(self) -> None:
        """Return when everything that was committed before this call has been offered."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        self._kick.set()
        await future

    def reroute(self, stream: Stream) -> None:
        """Take up the new filters of `stream`."""
        self._unroute(stream)
        routes: list[tuple[str, object]] = []
        for each in stream.filters:
            ways = each.routes()
            if ways is None:
                self._anywhere[stream] = None
                return
            routes += ways
        for way in routes:
            self._routes.setdefault(way, {})[stream] = None

    def shut_down(self, **details: Any) -> None:
        """Take no more subscribers, and tell those that are there, before anything else that waits for them."""
        if not self.closing:
            self.closing = True
            for stream in self._streams:
                stream.tell(Item("shutdown", details=details), at_once=True)

    async def left(self) -> None:
        """Return when there is no subscriber."""
        await self._empty.wait()

    # The tail

    def _enter(self) -> None:
        if self.closing:
            raise BackendUnavailable("The server is shutting down.", hint="Connect again: another server answers.")
        self._users += 1
        if self._tail is None:
            self._reader = Reader(log.database())
            self._tail = asyncio.create_task(self._run(self._reader), name="ojs-hub")

    async def _leave(self) -> None:
        self._users -= 1
        if self._users or self._tail is None or self._reader is None:
            return
        tail, reader = self._tail, self._reader
        self._tail = self._reader = None
        tail.cancel()
        await asyncio.gather(tail, return_exceptions=True)
        await reader.stop()

    async def _open(self, filters: tuple[Filter, ...], after: str | Place | None, buffer: int) -> Stream:
        await self.synced()
        if isinstance(after, str):
            place, gap = await self.start(after)
        else:
            place, gap = self.place if after is None else after, None
        stream = Stream(self, filters, buffer, place, live=after is None)
        if gap is not None:
            stream.tell(Item("gap", details=gap))
        self._streams[stream] = None
        self._empty.clear()
        self.reroute(stream)
        return stream

    def _drop(self, stream: Stream) -> None:
        self._streams.pop(stream, None)
        if not self._streams:
            self._empty.set()
        self._unroute(stream)

    def _unroute(self, stream: Stream) -> None:
        self._anywhere.pop(stream, None)
        for way in [way for way, streams in self._routes.items() if stream in streams]:
            del self._routes[way][stream]
            if not self._routes[way]:
                del self._routes[way]

    async def _run(self, reader: Reader) -> None:
        """Read for ever. A fault of ours is logged and tried again; the place is kept."""
        looked: float | None = None
        pause = BUSY
        while True:
            self._kick.clear()
            waiting, self._waiting = self._waiting, []
            try:
                if looked is None:
                    self.place = await reader.end()
                else:
                    doubtful = time.monotonic() - looked > DOUBTFUL
                    page = await reader.tail(self.place, thorough=bool(waiting), doubtful=doubtful)
                    pause = BUSY if page.entries else min(pause * 1.5, IDLE)
                    await self._spread(page)
                    if page.full:
                        self._waiting = waiting + self._waiting
                        continue
            except ERRORS:  # given up, because the reader has been told to stop
                raise
            except Exception:
                logger.exception("Reading the event log failed; the next try is in %g s.", AFTER_FAULT)
                self._waiting = waiting + self._waiting
                await asyncio.sleep(AFTER_FAULT)
                continue
            looked = time.monotonic()
            for future in waiting:
                if not future.done():
                    future.set_result(None)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._kick.wait(), pause)

    async def _spread(self, page: Pages) -> None:
        if page.gap:
            for stream in self._streams:
                stream.tell(Item("dropped", details=page.gap))
        for start in range(0, len(page.entries), SLICE):
            for entry in page.entries[start : start + SLICE]:
                self._offer(entry)
            await asyncio.sleep(0)

    def _offer(self, entry: Entry) -> None:
        event = entry.event
        for streams in (
            self._anywhere, self._routes.get(("queue", event.queue)), self._routes.get(("job", event.job_id))
        ):  # fmt: skip
            for stream in streams or ():
                stream.offer(entry)
        self.place = entry.place
