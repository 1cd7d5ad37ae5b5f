"""The hub: one reader of the log for each server process, whatever the number of its subscribers.

    hub = Hub.current()
    async with hub.subscribe(Filter(queues=("mail",)), after=None) as stream:
        async for item in stream:
            ...

The `Hub` tails the log and offers what is new to the streams in memory. A `Stream` is one subscriber's events: from
memory while it keeps up, from the log while it does not. The `LogReader` asks the database, in two threads of its own
with a connection each: the tail, and replays.

The hub has no state that a crash could cost: a client names the last event it has seen, and everything after that is
read from the log. A database that is away is waited for in the reader, with growing pauses and one log line
(`scheduler.service`); reading then goes on from where it was, because the place in the log is the caller's.

It polls, 20 times a second while there is something and 4 times while there is not. A hint that something happened
would have to come from each push, which may cost nothing, or from a pass of `events.order`, which is no faster.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property
from typing import Any, Literal, TypeVar
from weakref import WeakKeyDictionary

from django.db import connections

from django_ojs.backoff import Backoff
from django_ojs.errors import BackendUnavailable
from django_ojs.events import filters, ids, log, order
from django_ojs.events.filters import Filter, Kinds, condition_of
from django_ojs.events.order import LogPosition
from django_ojs.guard import get_logger
from django_ojs.models import Event
from django_ojs.parts import LastingTask, PartEvent
from django_ojs.scheduler.service import GaveUp, persist

T = TypeVar("T")
logger = get_logger(__name__)

BUSY, IDLE = 0.05, 0.25  #: seconds between two looks, when the last one found something and after a while of nothing
SLICE = 200  #: events that are offered before others of the event loop get their turn
AFTER_FAULT, LONGEST_AFTER_FAULT = 1.0, 30.0
#: Events that one read of the log brings.
PAGE = 1000


class SharedEvent:
    """One event on its way to its readers, who share it: rendered on first use, and then once for all of them."""

    def __init__(self, event: Event, salt: str) -> None:
        self.event, self._salt = event, salt
        self.place = order.place_of(event)
        self.texts: dict[Any, str] = {}  #: frames made from it, by what tells them apart

    @cached_property
    def envelope(self) -> dict[str, Any]:
        """The event's envelope (events 2.1). Shared: copy it before changing it."""
        return log.render(self.event, self._salt)

    @cached_property
    def changed(self) -> dict[str, Any] | None:
        """The `job.state_changed` made from it, if it tells of a change."""
        return filters.state_changed(self.envelope, self._salt)

    def views(self, wanted: Kinds, behind: LogPosition) -> list[dict[str, Any]]:
        """What a reader at `behind` sees of it (`filters.views`)."""
        return filters.views(wanted, self.envelope, self._salt, self.place, behind)


@dataclasses.dataclass(slots=True)
class EventLogPage:
    """What one read of the log brought: the events, the place to go on from, whether there may be more, and what cannot
    be had.

    `back`: the log's history has changed, and the place lies before what the reader has seen of it.
    """

    entries: list[SharedEvent]
    place: LogPosition
    full: bool
    gap: dict[str, Any] | None = None
    back: bool = False


class LogReader:
    """Reads the log for a hub in two threads. The event loop calls its methods, and a thread does what they ask."""

    def __init__(self, using: str, stopping: PartEvent) -> None:
        self._using, self._stopping = using, stopping
        self._read_to = 0  #: the highest id that the tail has read, which need not be that of the last event
        # The hub lives while this thread waits for a database that is away.
        self._tail = ThreadPoolExecutor(1, "ojs-tail", stopping.belongs_to_this_thread)
        self._replays = ThreadPoolExecutor(1, "ojs-replay")

    async def end_position(self) -> LogPosition:
        """The end of the log as it is now."""

        def read_end() -> LogPosition:
            ids.salt_of(self._using)  # from here on the loop knows it without asking
            order.catch_up(self._using, strict=False)
            highest, place = order.highest_id(self._using), order.end_position(self._using)
            self._read_to = max(highest, place.id)
            return place

        return await self._run(self._tail, read_end)

    async def tail(self, place: LogPosition, *, thorough: bool) -> EventLogPage:
        """What is new behind `place`, whatever it is. `thorough`: all that is committed now must be found, and not only
        what is in order already."""

        def read_tail() -> EventLogPage:
            if thorough:
                order.catch_up(self._using)
            else:
                order.advance(self._using)
            page = self._new(place)
            read_to = page.place.id if page.back else self._read_to
            if page.gap and not page.back:  # all of the page has been read: the next one does not tell this gap again
                read_to += page.gap["estimated_missed_count"]
            self._read_to = max([read_to, *(entry.place.id for entry in page.entries)])
            return page

        return await self._run(self._tail, read_tail)

    async def replay(self, place: LogPosition, filters: Sequence[Filter]) -> EventLogPage:
        """What matches one of the filters behind `place`."""

        def read_replay() -> EventLogPage:
            other, gap = self._checked(place, place.id)
            if other is not None:
                return other
            found = order.behind(self._using, place).filter(condition_of(filters))
            return self._pages(found[:PAGE], filters, place, gap)

        return await self._run(self._replays, read_replay)

    async def start(self, after: str) -> tuple[LogPosition, dict[str, Any] | None]:
        """The place of a cursor, and the gap if it has been pruned. Raises `InvalidRequest` if it was never issued."""
        return await self._run(self._replays, lambda: log.start(after, self._using))

    def stop(self) -> list[Future[None]]:
        """Let the threads close their connections and end; a read under way gives up if it waits for the database.

        They do so also where no reader waits for what this returns: the loop may end before.
        """
        self._stopping.set()
        pools = (self._tail, self._replays)
        closing = [pool.submit(connections.close_all) for pool in pools]
        for pool in pools:
            pool.shutdown(wait=False)
        return closing

    def join(self) -> None:
        """Wait for the ends of the threads, whose connections are closed: this takes no time."""
        for pool in (self._tail, self._replays):
            pool.shutdown()

    async def _run(self, pool: ThreadPoolExecutor, look: Callable[[], T]) -> T:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(pool, persist, look, self._using, self._stopping)

    def _checked(self, place: LogPosition, read_to: int) -> tuple[EventLogPage | None, dict[str, Any] | None]:
        """What a reader gets instead of what is behind `place`, where the log is not what it has read; and the gap, if
        what was behind it has been pruned: ids above `read_to`."""
        found = order.is_there(self._using, place)
        if found.state == "here":
            return None, None
        if found.state == "ahead":  # the rest will come
            self._stopping.wait(BUSY)
            return EventLogPage([], place, True), None
        if found.state == "lost":
            assert place.time is not None
            gap = log.gap_of(found, place.id, place.time, self._using)
            return EventLogPage([], found.place, True, gap, back=True), None
        gap = log.gap_behind(read_to, place.time, self._using)
        return None, gap if gap["estimated_missed_count"] else None

    def _new(self, place: LogPosition) -> EventLogPage:
        if place.time is None:
            return self._pages(order.behind(self._using, place)[:PAGE], None, place)
        # With the event at the place, which shows that the log is the one that was read.
        found = list(order.behind(self._using, place.having(order.CHANGE))[: PAGE + 1])
        if found and order.place_of(found[0]) == place and found[0].time == place.time:
            return self._pages(found[1:], None, place)
        other, gap = self._checked(place, self._read_to)
        if other is not None:
            return dataclasses.replace(other, full=other.back)
        return self._pages(found[:PAGE], None, place, gap)

    def _pages(
        self, events: Iterable[Event], filters: Sequence[Filter] | None, place: LogPosition,
        gap: dict[str, Any] | None = None,
    ) -> EventLogPage:  # fmt: skip
        found = list(events)
        last = order.place_of(found[-1]) if found else place
        salt = ids.salt_of(self._using)
        kept = found if filters is None else [row for row in found if any(each.matches(row) for each in filters)]
        shared = [SharedEvent(row, salt) for row in log.named(kept, self._using)]
        return EventLogPage(shared, last, len(found) == PAGE, gap)


@dataclasses.dataclass(slots=True)
class StreamItem:
    """What a stream gives to its subscriber.

    `event` has an `entry`; `gap` (the cursor was pruned, or the log's history has changed) and `dropped` (events behind
    the subscriber's place were pruned before it read them) say in `details` what is known of the loss; `shutdown` comes
    before the server closes. A `nudge` is what the subscriber itself has put there (`Stream.put`).

    A gap where the history has changed has a `place`: it lies before events that were handed out, and those behind it
    come next.
    """

    kind: Literal["event", "gap", "dropped", "shutdown", "nudge"]
    entry: SharedEvent | None = None
    details: dict[str, Any] = dataclasses.field(default_factory=dict)
    place: LogPosition | None = None

    @property
    def envelope(self) -> dict[str, Any] | None:
        """The event's envelope, shared by all subscribers: copy it before changing it."""
        return None if self.entry is None else self.entry.envelope


class Stream:
    """An async iterator of items, in the order of the log, without hole and without repetition.

    While it is *live* the hub offers it each new event. When its buffer is full it is not live any more: it hands out
    what it has, and then reads on from the log behind that, page by page, until it has caught up.
    """

    def __init__(self, hub: Hub, filters: Sequence[Filter], buffer: int, place: LogPosition, *, live: bool) -> None:
        self.filters = tuple(filters)
        self._hub, self._limit = hub, buffer
        self._place = place  #: up to here everything has been handed out or stands in the buffer
        self._changed_at = place  #: the place of the hub when the filters were changed
        self._live = live
        self._offered = place
        self._buffer: deque[StreamItem] = deque()
        self._joining: list[SharedEvent] | None = None
        self._changes = 0
        self._ready = asyncio.Event()

    @property
    def lags(self) -> bool:
        """Whether it reads from the log, because it was slow or has asked for what was."""
        return not self._live

    def offer(self, entry: SharedEvent) -> None:
        """Called by the hub for each new event that may match, in their order."""
        if entry.place <= self._offered or (self._live and entry.place <= self._place):
            return  # offered before, or read from the log ahead of the hub
        self._offered = entry.place
        if not self._live and self._joining is None:
            return
        if not any(each.matches(entry.event) for each in self.filters):
            return
        if self._joining is not None:
            self._joining.append(entry)
            if len(self._joining) > self._limit:
                self._joining = None
        elif len(self._buffer) >= self._limit:
            self._live = False
        else:
            self._take(entry)

    def put(self, item: StreamItem, *, at_once: bool = False) -> None:
        """Hand out something that is no event, `at_once` before all that waits."""
        if at_once:
            self._buffer.appendleft(item)
        else:
            self._buffer.append(item)
        self._ready.set()

    def change(self, filters: Sequence[Filter]) -> None:
        """Match other events from now on. What was read ahead of now comes as the old filters had it."""
        self.filters = tuple(filters)
        self._changes += 1
        self._changed_at = self._hub.place
        if self._live:
            self._place = max(self._place, self._hub.place)
        self._hub.reroute(self)

    def go_back(self, place: LogPosition, gap: dict[str, Any] | None) -> None:
        """Go back to `place`, behind which the log's history is another than what was offered; tell of the gap."""
        self._changes += 1  # a page that is being read, and what was offered meanwhile, may be of either
        self._offered = min(self._offered, place)
        if max(self._place, self._changed_at) > place:
            self._place, self._changed_at = min(self._place, place), place
            self.put(StreamItem("gap", details=gap or {}, place=place))

    async def report_other_history(self, page: EventLogPage) -> None:
        """Let all streams know at once that the log's history has changed, as this page shows, read for one of them."""
        changes = self._changes
        await self._hub.synced()
        if changes == self._changes:
            self.go_back(page.place, page.gap)

    def __aiter__(self) -> Stream:
        return self

    async def __anext__(self) -> StreamItem:
        while not self._buffer:
            if self._live:
                self._ready.clear()
                await self._ready.wait()
            else:
                await self._read_on()
        return self._buffer.popleft()

    async def _read_on(self) -> None:
        """One page from the log. If that was all, join what was offered meanwhile and be live again.

        What the hub has not reached yet is left to the hub: it knows only of what it has read itself whether the log's
        history has changed.
        """
        self._joining = []
        seen, changes = self._hub.place, self._changes
        try:
            page = await self._hub.replay(self._place, self.filters)
        finally:
            offered, self._joining = self._joining, None
        if changes != self._changes:
            return  # the page may lack what the new filters match
        if page.back:
            await self.report_other_history(page)
            return
        if page.gap:
            self.put(StreamItem("dropped", details=page.gap))
        end = min(page.place, self._hub.place)
        for entry in page.entries:
            if entry.place <= end:
                self._take(entry)
        self._place = max(self._place, end)
        if (page.full and end == page.place) or offered is None:
            return
        self._place = max(self._place, seen)
        for entry in offered:
            if entry.place > self._place:
                self._take(entry)
        self._live = True

    def _take(self, entry: SharedEvent) -> None:
        self._place = entry.place
        self._buffer.append(StreamItem("event", entry))
        self._ready.set()


_hubs: WeakKeyDictionary[asyncio.AbstractEventLoop, Hub] = WeakKeyDictionary()


class Hub:
    """Reads the log once for all subscribers, from the first to the last of them. Belongs to one event loop."""

    def __init__(self) -> None:
        self.place: LogPosition = order.START
        self.closing = False
        self._streams: dict[Stream, None] = {}
        self._anywhere: dict[Stream, None] = {}
        self._routes: dict[tuple[str, object], dict[Stream, None]] = {}
        self._users = 0
        self._reader: LogReader | None = None
        self._tail: LastingTask | None = None
        self._begun = False  #: whether the end of the log has been found, from which on it is read
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
        self, wanted: Filter | Sequence[Filter], *, after: str | LogPosition | None = None, buffer: int = 1000
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
            await self._leave()

    async def replay(self, place: LogPosition, filters: Sequence[Filter]) -> EventLogPage:
        """One page of the log behind `place`."""
        assert self._reader is not None
        return await self._reader.replay(place, filters)

    async def start(self, after: str) -> tuple[LogPosition, dict[str, Any] | None]:
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
                stream.put(StreamItem("shutdown", details=details), at_once=True)

    async def left(self) -> None:
        """Return when there is no subscriber."""
        await self._empty.wait()

    # The tail

    def _enter(self) -> None:
        if self.closing:
            raise BackendUnavailable("The server is shutting down.", hint="Connect again: another server answers.")
        self._users += 1
        if self._tail is None:
            self._tail = LastingTask("event hub", self._run)
            self._reader = LogReader(log.database(), PartEvent(self._tail))
            self._begun = False
            self._tail.start()

    async def _leave(self) -> None:
        self._users -= 1
        if self._users or self._tail is None or self._reader is None:
            return
        tail, reader = self._tail, self._reader
        self._tail = self._reader = None
        tail.cancel()
        closing = reader.stop()
        # From here on this task may be cancelled.
        await tail.stop()
        await asyncio.wait([asyncio.wrap_future(done) for done in closing])
        reader.join()

    async def _open(self, filters: tuple[Filter, ...], after: str | LogPosition | None, buffer: int) -> Stream:
        await self.synced()
        if isinstance(after, str):
            place, gap = await self.start(after)
        else:
            place, gap = self.place if after is None else after, None
        stream = Stream(self, filters, buffer, place, live=after is None)
        if gap is not None:
            stream.put(StreamItem("gap", details=gap))
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

    async def _run(self) -> None:
        """Read for ever. A fault of ours is logged and tried again; the place is kept."""
        reader, tail = self._reader, self._tail
        assert reader is not None
        assert tail is not None
        pause = BUSY
        faults = Backoff("Reading the event log", AFTER_FAULT, LONGEST_AFTER_FAULT, logger=logger)
        while True:
            tail.tick()
            self._kick.clear()
            waiting, self._waiting = self._waiting, []
            try:
                if not self._begun:
                    self.place = await reader.end_position()
                else:
                    page = await reader.tail(self.place, thorough=bool(waiting))
                    pause = BUSY if page.entries else min(pause * 1.5, IDLE)
                    if page.back:
                        self._go_back(page)
                    await self._spread(page)
                    self.place = page.place
                    if page.full:
                        self._waiting = waiting + self._waiting
                        continue
            except GaveUp:  # , because the reader is to stop
                raise
            except BaseException as error:
                self._waiting = waiting + self._waiting
                if not isinstance(error, Exception):
                    raise
                await asyncio.sleep(faults.failed())
                continue
            faults.worked()
            self._begun = True
            for future in waiting:
                if not future.done():
                    future.set_result(None)
            # Not wait_for: before Python 3.12 it forgets that it was cancelled if the kick comes at the same moment.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._kick.wait()

    def _go_back(self, page: EventLogPage) -> None:
        logger.warning("The history of the event log has changed: listeners go on behind event %d.", page.place.id)
        for stream in self._streams:
            stream.go_back(page.place, page.gap)

    async def _spread(self, page: EventLogPage) -> None:
        if page.gap and not page.back:
            for stream in self._streams:
                stream.put(StreamItem("dropped", details=page.gap))
        for start in range(0, len(page.entries), SLICE):
            for entry in page.entries[start : start + SLICE]:
                self._offer(entry)
            await asyncio.sleep(0)

    def _offer(self, entry: SharedEvent) -> None:
        event = entry.event
        for streams in (
            self._anywhere, self._routes.get(("queue", event.queue)), self._routes.get(("job", event.job_id))
        ):  # fmt: skip
            for stream in streams or ():
                stream.offer(entry)
        self.place = entry.place
