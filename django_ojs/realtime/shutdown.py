"""A server that stops says so to its clients before it closes their connections (events 3.5).

ASGI has no word for it: a server such as uvicorn closes WebSockets first and ends the lifespan afterwards, and a
stream over HTTP would keep it waiting for ever. So the first SIGTERM or SIGINT is taken a moment before the server
takes it: clients hear of it, connections close, and then the server's own handler is called, at the latest when the
grace period is over. A second signal goes through at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
from types import FrameType
from typing import Any

from django_ojs.conf import ojs_settings
from django_ojs.realtime.hub import Hub

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class _Attendant:
    """Stands before the handler of one signal, for one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, handler: Any) -> None:
        self._loop, self.handler = loop, handler
        self._draining: asyncio.Task[None] | None = None
        self._called = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self._called or self._loop.is_closed():
            self.handler(number, frame)
            return
        self._called = True
        self._loop.call_soon_threadsafe(self._begin, number)

    def _begin(self, number: int) -> None:
        self._draining = self._loop.create_task(self._drain(number))

    async def _drain(self, number: int) -> None:
        try:
            await drain_connections()
        finally:
            self.handler(number, None)


def attend() -> None:
    """Stand before the server's signal handlers, where it has any that can be called and this is its main thread."""
    if threading.current_thread() is not threading.main_thread():
        return
    for number in _SIGNALS:
        handler = signal.getsignal(number)
        if callable(handler) and handler is not signal.default_int_handler and not isinstance(handler, _Attendant):
            signal.signal(number, _Attendant(asyncio.get_running_loop(), handler))


async def drain_connections(reason: str = "shutdown") -> None:
    """Tell the subscribers of this event loop that the server stops, and wait until they have gone or time is up."""
    grace = min(ojs_settings.REALTIME_SHUTDOWN_GRACE, 5.0)
    hub = Hub.current()
    hub.shut_down(reason=reason, grace_period_ms=round(grace * 1000))
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(hub.left(), grace)
