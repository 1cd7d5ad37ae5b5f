"""Serve OJS on a throwaway database, for the tests of clients (`manage.py ojs_testserver`).

The site's own settings do not apply: the URLs are those of OJS alone, callers need no credentials, and the published
suite's test hooks are on.
"""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import secrets
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from django.core.management.base import CommandError
from django.db import connections
from django.test.utils import override_settings

from django_ojs import parts
from django_ojs.database import POOL_OPTIONS, parse_url, url_of
from django_ojs.http import testhooks
from django_ojs.testing import database

#: Seconds that running calls have when a server stops.
GRACE = 10


@contextlib.contextmanager
def throwaway_database(url: str, *, durable: bool = False) -> Iterator[str]:
    """Make `default` a new, migrated database that is gone afterwards; gives its URL.

    Args:
        url: a server to make it on; empty: an SQLite file in a temporary directory.
        durable: whether SQLite waits for the disk as a site's would.
    """
    with tempfile.TemporaryDirectory(prefix="ojs-testserver-") as folder:
        config = _config(url, Path(folder), durable)
        connections.close_all()
        connections.settings = connections.configure_settings({"default": config})
        for alias in list(connections):
            with contextlib.suppress(AttributeError):
                del connections[alias]
        connection = connections["default"]
        connection.creation.create_test_db(verbosity=0, autoclobber=True, serialize=False)
        try:
            yield url_of(_without_pool(connection.settings_dict))
        finally:
            connections.close_all()
            connections["default"].creation.destroy_test_db("", verbosity=0)


@contextlib.contextmanager
def test_settings(dialect: str, **ojs: Any) -> Iterator[None]:
    """Our URLs, no middleware, anonymous callers, the test hooks; and these settings of OJS."""
    overrides: dict[str, Any] = {
        "ROOT_URLCONF": "django_ojs.testing.urls",
        "MIDDLEWARE": [],
        "ALLOWED_HOSTS": ["*"],  # bound to loopback, and names of this machine are many
        "DEBUG": False,
        "DATABASE_ROUTERS": [],
        "OJS": {"DIALECT": dialect, "ALLOW_ANONYMOUS": True, **ojs},
    }
    with override_settings(**overrides):
        testhooks.enable(database.reset)
        try:
            yield
        finally:
            testhooks.disable()


def serve(
    port: int, on_ready: Callable[[str, str], None], host: str = "127.0.0.1", grpc_port: int | None = None
) -> None:
    """Answer HTTP and WebSockets until a signal comes, and gRPC if it has a port.

    `on_ready` gets the base URL and the `host:port` of gRPC ('' without) once both answer. CommandError if a package is
    missing, and where a part of the process hangs (`parts`).
    """
    try:
        import uvicorn
    except ImportError:
        raise CommandError("uvicorn is needed: pip install 'django-ojs[server]'.") from None
    from django.core.handlers.asgi import ASGIHandler

    from django_ojs.realtime.asgi import application

    _check_grpc(grpc_port)
    stuck: list[str] = []

    class Server(uvicorn.Server):
        grpc: Any = None

        async def on_tick(self, counter: int) -> bool:
            stuck.extend(parts.stuck())
            return await super().on_tick(counter) or bool(stuck)

        async def startup(self, sockets: Any = None) -> None:
            await super().startup(sockets)
            if self.started:
                bound = self.servers[0].sockets[0].getsockname()[1]
                on_ready(f"http://{host}:{bound}", await self._start_grpc())

        async def _start_grpc(self) -> str:
            if grpc_port is None:
                return ""
            from django_ojs.grpc.server import Server as GrpcServer

            self.grpc = GrpcServer(f"{host}:{grpc_port}", reflection=True)
            return f"{host}:{await self.grpc.start()}"

        async def shutdown(self, sockets: Any = None) -> None:
            if self.grpc is not None:
                await self.grpc.stop(GRACE)
            await super().shutdown(sockets)

        @contextlib.contextmanager
        def capture_signals(self) -> Iterator[None]:
            # uvicorn's own would raise the signal again afterwards, and the database would be left behind.
            signals = (signal.SIGINT, signal.SIGTERM)
            before = {number: signal.signal(number, self.handle_exit) for number in signals}
            try:
                yield
            finally:
                for number, handler in before.items():
                    signal.signal(number, handler)

    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
    config = uvicorn.Config(
        application(ASGIHandler()), host=host, port=port, log_config=None, access_log=False, lifespan="off",
        http="h11",  # httptools drops the body of a request that offers HTTP/2, as every one of Java's client does
        timeout_graceful_shutdown=GRACE,
    )  # fmt: skip
    Server(config).run()
    if stuck:
        raise CommandError(f"The server ends: {', '.join(stuck)}.")


def _check_grpc(port: int | None) -> None:
    if port is not None and importlib.util.find_spec("grpc") is None:
        raise CommandError("grpcio is needed: pip install 'django-ojs[grpc]'.")


def _without_pool(config: dict[str, Any]) -> dict[str, Any]:
    """For other processes: a pool is for many short-lived threads, such as those of requests."""
    return {**config, "OPTIONS": {key: value for key, value in config["OPTIONS"].items() if key != "pool"}}


def _config(url: str, folder: Path, durable: bool) -> dict[str, Any]:
    config = parse_url(url or f"sqlite:///{folder}/ojs.sqlite3", folder)
    unique = secrets.token_hex(5)
    if config["ENGINE"].endswith("sqlite3"):
        config["TEST"] = {"NAME": str(folder / f"{unique}.sqlite3")}
        if not durable:
            config["OPTIONS"]["init_command"] = "PRAGMA journal_mode=WAL; PRAGMA synchronous=OFF"
    else:
        config["TEST"] = {"NAME": f"ojs_testserver_{unique}"}
    if config["ENGINE"].endswith("postgresql"):
        # A request has a thread of its own under ASGI: connections must outlive it, or each would cost one.
        config["OPTIONS"].setdefault("pool", dict(POOL_OPTIONS))
    return config
