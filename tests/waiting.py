"""Waits until something holds: by asking, for as long as the busiest machine may need."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def eventually(look: Callable[[], T], what: str = "", *, timeout: float = 120.0, pause: float = 0.01) -> T:
    """The first true value of `look`, which is asked every `pause` seconds; fails after `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while not (found := look()):
        if time.monotonic() > deadline:
            raise AssertionError(f"It did not happen in time: {what or look.__qualname__}")
        time.sleep(pause)
    return found
