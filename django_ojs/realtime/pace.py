"""A limit of events per second for one connection; what is above it waits, first in memory and then in the log."""

from __future__ import annotations

import asyncio
import time


class Pace:
    """Lets a second's worth pass at once, and then so many a second. None: no limit."""

    def __init__(self, per_second: float | None) -> None:
        self.limited = per_second is not None
        self._rate = per_second
        self._left = per_second or 0.0
        self._seen = time.monotonic()

    async def wait(self) -> None:
        """Return when one more may pass."""
        if self._rate is None:
            return
        now = time.monotonic()
        self._left = min(self._rate, self._left + (now - self._seen) * self._rate)
        self._seen = now
        self._left -= 1
        if self._left < 0:
            await asyncio.sleep(-self._left / self._rate)
