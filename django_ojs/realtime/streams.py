"""One subscriber's events: from memory while it keeps up, from the log while it does not, and never none."""

from __future__ import annotations

import asyncio
import dataclasses
from collections import deque
from collections.abc import Sequence
from typing import Any, Literal, Protocol

from django_ojs.events.filters import Filter
from django_ojs.events.places import Place
from django_ojs.realtime.reading import Entry, Pages


@dataclasses.dataclass(slots=True)
class Item:
    """What a subscriber gets.

    `event` has an `entry`; `gap` (the cursor was pruned) and `dropped` (events behind the subscriber's place were
    pruned before it read them) say in `details` what is known of the loss; `shutdown` comes before the server closes.
    A `nudge` is what the subscriber itself has put there (`Stream.tell`).
    """

    kind: Literal["event", "gap", "dropped", "shutdown", "nudge"]
    entry: Entry | None = None
    details: dict[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def envelope(self) -> dict[str, Any] | None:
        """The event's envelope, shared by all subscribers: copy it before changing it."""
        return None if self.entry is None else self.entry.envelope


class Source(Protocol):
    """What a stream needs of the hub."""

    place: Place  #: up to here everything has been offered

    async def replay(self, place: Place, filters: Sequence[Filter]) -> Pages: ...
    def reroute(self, stream: Stream) -> None: ...


class Stream:
    """An async iterator of items, in the order of the log, without hole and without repetition.

    While it is *live* the hub offers it each new event. When its buffer is full it is not live any more: it hands out
    what it has, and then reads on from the log behind that, page by page, until it has caught up.
    """

    def __init__(self, hub: Source, filters: Sequence[Filter], buffer: int, place: Place, *, live: bool) -> None:
        self.filters = tuple(filters)
        self._hub, self._limit = hub, buffer
        self._place = place  #: up to here everything has been handed out or stands in the buffer
        self._live = live
        self._offered = place
        self._buffer: deque[Item] = deque()
        self._joining: list[Entry] | None = None
        self._changes = 0
        self._ready = asyncio.Event()
        self._ended = False

    @property
    def lags(self) -> bool:
        """Whether it reads from the log, because it was slow or has asked for what was."""
        return not self._live

    def offer(self, entry: Entry) -> None:
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

    def tell(self, item: Item, *, at_once: bool = False) -> None:
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
        if self._live:
            self._place = max(self._place, self._hub.place)
        self._hub.reroute(self)

    def end(self) -> None:
        """Let the iteration end once the buffer is empty."""
        self._ended = True
        self._ready.set()

    def __aiter__(self) -> Stream:
        return self

    async def __anext__(self) -> Item:
        while not self._buffer:
            if self._ended:
                raise StopAsyncIteration
            if self._live:
                self._ready.clear()
                await self._ready.wait()
            else:
                await self._read_on()
        return self._buffer.popleft()

    async def _read_on(self) -> None:
        """One page from the log. If that was all, join what was offered meanwhile and be live again."""
        self._joining = []
        seen, changes = self._hub.place, self._changes
        try:
            page = await self._hub.replay(self._place, self.filters)
        finally:
            offered, self._joining = self._joining, None
        if changes != self._changes:
            return  # the page may lack what the new filters match
        if page.gap:
            self.tell(Item("dropped", details=page.gap))
        for entry in page.entries:
            self._take(entry)
        self._place = max(self._place, page.place)
        if page.full or offered is None:
            return
        self._place = max(self._place, seen)
        for entry in offered:
            if entry.place > self._place:
                self._take(entry)
        self._live = True

    def _take(self, entry: Entry) -> None:
        self._place = entry.place
        self._buffer.append(Item("event", entry))
        self._ready.set()
