"""What the hub asks the database, in two threads of its own with a connection each: the tail, and replays.

A database that is away is waited for here, with growing pauses and told once (`scheduler.outage`); reading then goes
on from where it was, because the place in the log is the caller's.
"""

from __future__ import annotations

import asyncio
import dataclasses
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import Any, TypeVar

from django.db import connections
from django.db.models import Q

from django_ojs.events import ids, log, order, places, transitions
from django_ojs.events.filters import Filter, Kinds
from django_ojs.events.places import Place
from django_ojs.models import Event
from django_ojs.scheduler.outage import persist

T = TypeVar("T")

#: Events that one read of the log brings.
PAGE = 1000


class Entry:
    """One event on its way to its readers, who share it: rendered on first use, and then once for all of them."""

    def __init__(self, event: Event, salt: str) -> None:
        self.event, self._salt = event, salt
        self.place = places.place_of(event)
        self.texts: dict[Any, str] = {}  #: frames made from it, by what tells them apart

    @cached_property
    def envelope(self) -> dict[str, Any]:
        """The event's envelope (events 2.1). Shared: copy it before changing it."""
        return log.render(self.event, self._salt)

    @cached_property
    def changed(self) -> dict[str, Any] | None:
        """The `job.state_changed` made from it, if it tells of a change."""
        return transitions.state_changed(self.envelope, self._salt)

    def views(self, wanted: Kinds, behind: Place) -> list[dict[str, Any]]:
        """What a reader at `behind` sees of it (`transitions.views`)."""
        return transitions.views(wanted, self.envelope, self._salt, self.place, behind)


@dataclasses.dataclass(slots=True)
class Pages:
    """What one read brought: the events, the place to go on from, whether there may be more, and what was pruned."""

    entries: list[Entry]
    place: Place
    full: bool
    gap: dict[str, Any] | None = None


class Reader:
    """The two threads. Every method is for the event loop; what it asks happens in a thread."""

    def __init__(self, using: str) -> None:
        self._using = using
        self._stopping = threading.Event()
        self._tail = ThreadPoolExecutor(1, "ojs-tail")
        self._replays = ThreadPoolExecutor(1, "ojs-replay")

    async def end(self) -> Place:
        """The end of the log as it is now."""

        def look() -> Place:
            ids.salt_of(self._using)  # from here on the loop knows it without asking
            order.catch_up(self._using)
            return places.end(self._using)

        return await self._run(self._tail, look)

    async def tail(self, place: Place, *, thorough: bool, doubtful: bool) -> Pages:
        """What is new behind `place`, whatever it is.

        Args:
            thorough: whether all that is committed now must be found, and not only what is in order already.
            doubtful: whether so much time has passed that the log may have been pruned in between.
        """

        def look() -> Pages:
            if thorough:
                order.catch_up(self._using)
            else:
                order.advance(self._using)
            gap = self._gap(place) if doubtful else None
            return self._page(place, None, gap)

        return await self._run(self._tail, look)

    async def replay(self, place: Place, filters: Sequence[Filter]) -> Pages:
        """What matches one of the filters behind `place`."""
        return await self._run(self._replays, lambda: self._page(place, filters, self._gap(place)))

    async def start(self, after: str) -> tuple[Place, dict[str, Any] | None]:
        """The place of a cursor, and the gap if it has been pruned. Raises `InvalidRequest` if it was never issued."""
        return await self._run(self._replays, lambda: log.start(after, self._using))

    async def stop(self) -> None:
        """End the threads; a read under way gives up if it waits for the database."""
        self._stopping.set()
        loop = asyncio.get_running_loop()
        for pool in (self._tail, self._replays):
            await loop.run_in_executor(pool, connections.close_all)
            pool.shutdown()  # its thread is idle: this takes no time

    async def _run(self, pool: ThreadPoolExecutor, look: Callable[[], T]) -> T:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(pool, persist, look, self._using, self._stopping)

    def _page(self, place: Place, filters: Sequence[Filter] | None, gap: dict[str, Any] | None) -> Pages:
        query = places.behind(self._using, place)
        if filters is not None:
            condition = Q(pk__in=[])
            for each in filters:
                condition |= each.condition()
            query = query.filter(condition)
        found = list(query[:PAGE])
        last = places.place_of(found[-1]) if found else place
        salt = ids.salt_of(self._using)
        kept = found if filters is None else [row for row in found if any(each.matches(row) for each in filters)]
        return Pages([Entry(row, salt) for row in kept], last, len(found) == PAGE, gap)

    def _gap(self, place: Place) -> dict[str, Any] | None:
        if place == places.START or not places.is_pruned(self._using, place):
            return None
        return log.gap_behind(place.id, None, self._using)
