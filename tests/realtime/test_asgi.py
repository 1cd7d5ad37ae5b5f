"""The one call for a site's asgi.py: with Channels, without it, and around the server's end."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from django.conf import settings

from django_ojs.events.filters import Filter
from django_ojs.realtime import shutdown
from django_ojs.realtime.asgi import application as with_events
from django_ojs.realtime.hub import Hub
from tests.realtime.conftest import PATIENCE, take
from tests.realtime.sockets import connected

WITHOUT = """
import os, sys
sys.modules["channels"] = None
os.environ["DJANGO_SETTINGS_MODULE"] = "tests.settings"
from django.conf import settings
settings.INSTALLED_APPS = [app for app in settings.INSTALLED_APPS if app != "channels"]
import django
django.setup()
from django.core import checks
from django_ojs.realtime import hub
from django_ojs.realtime.asgi import application
from django_ojs.http import manifest
import asyncio
said = []
async def http(scope, receive, send):
    said.append(scope["type"])
async def receive():
    return {"type": "websocket.connect"}
async def send(message):
    said.append(message)
for kind in ("http", "lifespan", "websocket"):
    asyncio.run(application(http)({"type": kind}, receive, send))
assert said == ["http", "lifespan", {"type": "websocket.close"}], said
assert manifest.TRANSPORTS == ["http-polling", "sse"], manifest.TRANSPORTS
assert "django_ojs.W003" in {message.id for message in checks.run_checks()}
"""


def test_without_channels_the_rest_works_and_a_check_says_so() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT], cwd=settings.BASE_DIR, capture_output=True, text=True, timeout=PATIENCE * 3,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


async def test_other_paths_go_to_the_sites_own_websockets() -> None:
    async def own(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        await send({"type": "websocket.send", "text": '{"hello": 1}'})

    async def http(scope: Any, receive: Any, send: Any) -> None:
        pytest.fail("asked")

    async with connected("/chat", application=with_events(http, own)) as socket:
        assert await socket.take() == {"hello": 1}


@pytest.mark.usefixtures("database")
async def test_the_end_of_the_lifespan_drains_connections() -> None:
    said: list[str] = []
    messages = iter([{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}])

    async def receive() -> Any:
        return next(messages)

    async def send(message: Any) -> None:
        said.append(message["type"])

    async with Hub.current().subscribe(Filter()) as stream:
        ending = asyncio.create_task(with_events(None)({"type": "lifespan"}, receive, send))  # type: ignore[arg-type]
        assert (await take(stream, 1))[0].kind == "shutdown"
    await asyncio.wait_for(ending, PATIENCE)
    assert said == ["lifespan.startup.complete", "lifespan.shutdown.complete"]


class Handled:
    """A server's handler of a signal, which notes that it was called."""

    def __init__(self) -> None:
        self.calls, self.called = 0, asyncio.Event()

    def __call__(self, number: int, frame: Any) -> None:
        self.calls += 1
        self.called.set()


class TestSignals:
    @pytest.fixture
    def handled(self) -> Iterator[Handled]:
        handled = Handled()
        before = signal.signal(signal.SIGTERM, handled)
        yield handled
        signal.signal(signal.SIGTERM, before)

    @pytest.mark.usefixtures("database")
    async def test_clients_are_told_before_the_server_is(self, handled: Handled) -> None:
        shutdown.attend()
        shutdown.attend()  # once is enough
        async with Hub.current().subscribe(Filter()) as stream:
            signal.raise_signal(signal.SIGTERM)
            assert (await take(stream, 1))[0].details["grace_period_ms"] == 5000
            assert handled.calls == 0
        await asyncio.wait_for(handled.called.wait(), PATIENCE)
        signal.raise_signal(signal.SIGTERM)
        assert handled.calls == 2

    @pytest.mark.usefixtures("database")
    async def test_a_client_that_stays_is_not_waited_for_for_ever(self, handled: Handled, settings: Any) -> None:
        settings.OJS = {"REALTIME_SHUTDOWN_GRACE": 0.01}
        shutdown.attend()
        async with Hub.current().subscribe(Filter()):
            signal.raise_signal(signal.SIGTERM)
            await asyncio.wait_for(handled.called.wait(), PATIENCE)

    def test_handlers_that_cannot_be_called_are_left_alone(self) -> None:
        ours = {signal.SIGTERM: signal.SIG_DFL, signal.SIGINT: signal.default_int_handler}
        before = {number: signal.signal(number, handler) for number, handler in ours.items()}
        loop = asyncio.new_event_loop()
        try:  # not asyncio.run(): it handles SIGINT, and its handler can be called
            loop.run_until_complete(self._attend())
            assert {number: signal.getsignal(number) for number in ours} == ours
        finally:
            loop.close()
            for number, handler in before.items():
                signal.signal(number, handler)

    async def _attend(self) -> None:
        shutdown.attend()
