"""Counts the event streams and WebSockets of each client, and refuses what is too many (events 3.5).

It needs no Channels: a site without that package has event streams all the same.
"""

from __future__ import annotations

import threading
from collections import Counter
from typing import Literal

from rest_framework.request import Request

from django_ojs.conf import ojs_settings
from django_ojs.errors import RateLimited
from django_ojs.http import permissions

#: Event streams, WebSockets, and requests that wait (for a result, or for room in a queue) are counted apart.
SlotKind = Literal["streams", "connections", "waits"]
#: Seconds after which a client that is refused may try again.
RETRY_AFTER: dict[SlotKind, int] = {"streams": 3, "connections": 5, "waits": 3}

_lock = threading.RLock()  # the collector may drop a slot, and so release it, while this thread holds the lock
_open: Counter[tuple[SlotKind, str]] = Counter()


class Slot:
    """One open connection of a client, which may hold so many in this process (events 3.5).

    Raises RateLimited (429) where it holds them already: one page's bug stays small. The slot is given back by
    `free()`, or at the latest when nothing refers to it any more.
    """

    _key: tuple[SlotKind, str] | None = None

    def __init__(self, kind: SlotKind, client: str) -> None:
        limit = ojs_settings.REALTIME_MAX_CONNECTIONS
        with _lock:
            count = _open[kind, client]
            if limit is not None and count >= limit:
                raise RateLimited(
                    f"This client has {limit} {kind} open already, which is the most that one may have.",
                    details={"open": count, "limit": limit},
                    hint="Close one of them first, or watch several things with one.",
                    retry_after=RETRY_AFTER[kind],
                )
            _open[kind, client] += 1
            self._key = kind, client

    def free(self) -> None:
        with _lock:
            key, self._key = self._key, None
            if key is not None:
                _open[key] -= 1
                if not _open[key]:
                    del _open[key]

    def __del__(self) -> None:
        self.free()


def open_slots() -> int:
    """The connections that are open in this process."""
    return sum(_open.values())


def client_of(request: Request, address: str) -> str:
    """What connections are counted by: key, user, or the address of a caller without credentials."""
    name = permissions.principal(request)
    return f"anonymous@{address}" if name == "anonymous" else name
