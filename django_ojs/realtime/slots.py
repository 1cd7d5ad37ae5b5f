"""How many streams one client may hold open in this process (events 3.5): a limit that keeps one page's bug small."""

from __future__ import annotations

import threading
from collections import Counter

from django_ojs.conf import ojs_settings
from django_ojs.errors import RateLimited

_lock = threading.RLock()  # the collector may drop a slot, and so release it, while this thread holds the lock
_open: Counter[str] = Counter()


class Slot:
    """One open stream. Given back by `release()`, or at the latest when nobody knows it any more."""

    def __init__(self, client: str) -> None:
        self._client: str | None = client

    def release(self) -> None:
        with _lock:
            client, self._client = self._client, None
            if client is not None:
                _open[client] -= 1
                if not _open[client]:
                    del _open[client]

    def __del__(self) -> None:
        self.release()


def take(client: str) -> Slot:
    """A slot for one more stream of this client. Raises RateLimited (429)."""
    limit = ojs_settings.REALTIME_MAX_CONNECTIONS
    with _lock:
        if limit is not None and _open[client] >= limit:
            raise RateLimited(
                f"This client has {limit} streams open already, which is the most that one may have.",
                details={"open": _open[client], "limit": limit},
                hint="Close a stream first, or watch several things with one stream.",
                retry_after=3,
            )
        _open[client] += 1
    return Slot(client)


def count() -> int:
    """The streams that are open in this process."""
    return sum(_open.values())
