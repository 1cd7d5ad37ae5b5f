"""The subscriptions of one connection, and what becomes of an event for them together."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Iterator, Sequence

from django_ojs.events.places import CHANGE, Place
from django_ojs.realtime import frames
from django_ojs.realtime.messages import Dialect, Subscribe
from django_ojs.realtime.reading import Entry


@dataclasses.dataclass(slots=True, eq=False)
class Subscription:
    """What was asked for, from behind which place on, and from behind which one the stream brings it."""

    asked: Subscribe
    begin: Place
    live_from: Place
    told: float = -math.inf  #: when it last got an event

    @property
    def is_bare(self) -> bool:
        """Whether its events come without anything around them that would tell subscriptions apart."""
        return self.asked.dialect is Dialect.EVENTS

    def sees(self, entry: Entry) -> tuple[bool, bool]:
        """Whether it gets the event, and the change of state made from it."""
        wanted = self.asked.wanted
        if not wanted.matches(entry.event):
            return False, False
        shown, changes = wanted.kinds
        is_new = changes and entry.place._replace(seen=CHANGE) > self.begin
        return entry.event.type in shown, is_new and entry.changed is not None

    @property
    def rests(self) -> bool:
        """Whether an event now comes too soon after the last; it does without it, as it has asked for."""
        return bool(self.asked.interval) and time.monotonic() - self.told < self.asked.interval


@dataclasses.dataclass(slots=True)
class Replay:
    """Events between two places for some subscriptions."""

    to: list[Subscription]
    place: Place
    until: Place


class Subscriptions(dict[str, Subscription]):
    """By their keys, in the order in which they were made."""

    def find(self, channel: str, identity: str) -> list[Subscription]:
        """The one with this id, or without an id those of the channel."""
        return [
            each
            for each in self.values()
            if identity == each.asked.id or (not identity and channel == each.asked.channel)
        ]

    def frames(self, entry: Entry, to: Sequence[Subscription], *, replayed: bool) -> Iterator[str]:
        """One event as some of them get it: bare once for the connection, wrapped once for each of the others."""
        bare: dict[bool, Subscribe] = {}
        for each in to:
            if not replayed and entry.place <= each.live_from:
                continue  # a replay brings it
            if each.rests:
                continue  # asked first: to see whether there was a change takes more
            plain, changed = each.sees(entry)
            if each.asked.interval and (plain or changed):
                each.told = time.monotonic()
            for wanted, is_change in ((changed, True), (plain, False)):
                if not wanted:
                    continue
                if not each.is_bare:
                    yield frames.event(entry, each.asked, changed=is_change)
                elif not (replayed and self._brings(entry, to, is_change)):
                    bare[is_change] = each.asked
        for is_change, asked in sorted(bare.items(), reverse=True):
            yield frames.event(entry, asked, changed=is_change)

    def _brings(self, entry: Entry, replayed: Sequence[Subscription], is_change: bool) -> bool:
        """Whether the connection gets the bare event for another subscription than those of the replay."""
        others = [each for each in self.values() if each.is_bare and not each.asked.interval and each not in replayed]
        return any(entry.place > each.begin and each.sees(entry)[is_change] for each in others)
