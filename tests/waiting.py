"""Waits until something holds: by asking, for as long as the busiest machine may need; and lets a thread wait."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

import pytest
from asgiref.sync import sync_to_async

T = TypeVar("T")


def eventually(look: Callable[[], T], what: str = "", *, timeout: float = 120.0, pause: float = 0.01) -> T:
    """The first true value of `look`, which is asked every `pause` seconds; fails after `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while not (found := look()):
        if time.monotonic() > deadline:
            raise AssertionError(f"It did not happen in time: {what or look.__qualname__}")
        time.sleep(pause)
    return found


async def occupied(free: threading.Event) -> None:
    """Let the thread of `sync_to_async` do nothing until `free` is set."""
    waits = asyncio.ensure_future(sync_to_async(free.wait)())
    waits.add_done_callback(lambda done: done.result())
    await asyncio.sleep(0)  # it waits now


async def cancelled(task: asyncio.Future[Any], free: threading.Event) -> None:
    """Cancel a task while the thread of `sync_to_async` is occupied, and set `free` then."""
    task.cancel()
    await asyncio.sleep(0)
    free.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    await sync_to_async(int)()  # the thread has done what it was to do
