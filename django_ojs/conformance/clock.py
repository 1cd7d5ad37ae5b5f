"""The runner's clock, one object, so that tests can run a minute of waiting in no time."""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Callable
from dataclasses import dataclass


def _utc_now() -> dt.datetime:
    return dt.datetime.now(dt.UTC)


@dataclass(frozen=True)
class Clock:
    """What time it is, and how to wait (seconds)."""

    now: Callable[[], dt.datetime] = _utc_now
    sleep: Callable[[float], None] = time.sleep

    def seconds(self) -> float:
        """The current instant in seconds since 1970."""
        return self.now().timestamp()
