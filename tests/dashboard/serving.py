"""An ASGI server in a thread of the tests' own process, which can be stopped and started again on its port."""

from __future__ import annotations

import asyncio
import socket
import threading
from typing import Any

import uvicorn
from django.contrib.staticfiles.handlers import ASGIStaticFilesHandler
from django.core.asgi import get_asgi_application

from django_ojs.realtime.asgi import application as with_events
from django_ojs.realtime.hub import Hub
from tests.waiting import eventually

PATIENCE = 60.0


class Server:
    """The site of the tests with its WebSockets, as its settings are when this is made."""

    def __init__(self) -> None:
        self._application: Any = with_events(ASGIStaticFilesHandler(get_asgi_application()))  # type: ignore[no-untyped-call]
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self._port}"
        self._server: uvicorn.Server | None = None

    def start(self) -> None:
        options: Any = {
            "ws": "websockets-sansio",
            "log_config": None,
            "access_log": False,
            "timeout_graceful_shutdown": 10,
        }
        config = uvicorn.Config(self._application, "127.0.0.1", self._port, **options)
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._run, args=(self._server,), daemon=True)
        self._thread.start()
        eventually(lambda: self._is_up() or not self._thread.is_alive(), "The server did not start.")
        assert self._is_up()

    def stop(self) -> None:
        """As a server stops that gets SIGTERM: its connections are closed, and nobody can open one."""
        assert self._server is not None
        self._server.should_exit = True
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive()
        self._server = None

    def settle(self) -> None:
        """Wait until nobody is served any more, so that nothing uses the database behind the back of the next test."""
        if self._server is not None:
            eventually(self._is_idle, "The server is still at work.")

    def _is_up(self) -> bool:
        return self._server is not None and self._server.started

    def _is_idle(self) -> bool:
        assert self._server is not None
        hub = asyncio.run_coroutine_threadsafe(_hub(), self._loop).result(PATIENCE)
        return not (self._server.server_state.tasks or hub.subscribers or hub._tail)

    def _run(self, server: uvicorn.Server) -> None:
        async def serve() -> None:
            self._loop = asyncio.get_running_loop()
            await server.serve()

        asyncio.run(serve())


async def _hub() -> Hub:
    return Hub.current()
