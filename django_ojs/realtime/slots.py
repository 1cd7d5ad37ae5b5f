"""How many connections one client may hold open in this process (events 3.5), so that one page's bug stays small."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Literal

from rest_framework.request import Request

from django_ojs.conf import ojs_settings
from django_ojs.errors import RateLimited
from django_ojs.http.permissions import principal

#: Event streams and WebSockets are counted apart.
Kind = Literal["streams", "connections"]
#: Seconds after which a client that is refused may try again.
RETRY_AFTER: dict[Kind, int] = {"streams": 3, "connections": 5}

_lock = threading.RLock()  # the collector may drop a slot, and so release it, while this thread holds the lock
_open: Counter[tuple[Kind, str]] = Counter()


class Slot:
    """One open connection. Given back by `release()`, or at the latest when nothing refers to it any more."""

    def __init__(self, kind: Kind, client: str) -> None:
        self._key: tuple[Kind, str] | None = (kind, client)

    def release(self) -> None:
        with _lock:
            key, self._key = self._key, None
            if key is not None:
                _open[key] -= 1
                if not _open[key]:
                    del _open[key]

    def __del__(self) -> None:
        self.release()


def client(request: Request, address: str) -> str:
    """What connections are counted by: key, user, or the address of a caller without credentials."""
    name = principal(request)
    return f"anonymous@{address}" if name == "anonymous" else name


def take(kind: Kind, client: str) -> Slot:
    """A slot for one more connection of this client. Raises RateLimited (429)."""
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
    return Slot(kind, client)


def count() -> int:
    """The connections that are open in this process."""
    return sum(_open.values())
