"""`manage.py ojs_grpc`: serve gRPC."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import signal
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import CommandError, CommandParser
from django.db import connections

from django_ojs import grpc, jsontext, parts
from django_ojs.conf import ojs_settings
from django_ojs.database import database
from django_ojs.guard import get_logger
from django_ojs.management.shell import SteadyCommand, refuse_faulty_handlers, refuse_unmigrated
from django_ojs.rules.names import is_storable
from django_ojs.worker.execution import leave_pools
from django_ojs.worker.lifecycle import HANGUP, Echoes, Order, obeyed
from django_ojs.worker.middleware import show_logs

logger = get_logger(__name__)

ADDRESS = "127.0.0.1:9090"
LOOK_EVERY = 1.0  #: seconds between two looks at the threads and tasks that should run


class Command(SteadyCommand):
    help = (
        "Serves the gRPC binding. SIGTERM or Ctrl-C takes no new calls, lets the running ones finish and ends the "
        "streams; a second one ends at once."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--bind", type=_address, default=ADDRESS, metavar="HOST:PORT",
            help=f"listen here; port 0 takes any that is free (default: {ADDRESS})",
        )  # fmt: skip

    def handle(self, *args: Any, **options: Any) -> None:
        show_logs(options["verbosity"])
        if missing := grpc.missing():
            raise CommandError(f"Without {' and '.join(missing)} there is no gRPC. {grpc.HINT}")
        refuse_unmigrated()
        refuse_faulty_handlers()
        if not ojs_settings.GRPC:
            logger.warning("OJS['GRPC'] is not set, so the manifest does not say that this site offers gRPC.")
        if self.from_command_line:
            _keep_connections()
        runner, stop = asyncio.Runner(), _Stop()
        try:
            with _signals_heard(runner.get_loop(), stop.hear), runner:
                fine = runner.run(self._serve(options, stop))
        except ImproperlyConfigured as error:
            raise CommandError(str(error)) from error
        if not fine:
            sys.exit(1)  # the service manager starts another

    async def _serve(self, options: dict[str, Any], stop: _Stop) -> bool:
        """Serve until a signal comes; False where it ends because a part of it hangs."""
        from django_ojs.grpc.server import Server

        server = Server(options["bind"])
        port = await server.start()
        self.announce(options, f"ojs_grpc listens on {_bound_address(options['bind'], port)}.")
        stuck: list[str] = []
        while not (stop.wanted.is_set() or (stuck := parts.stuck())):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_EVERY):
                    await stop.wanted.wait()
        if stuck:
            logger.error("This server should be replaced: %s.", "; ".join(stuck))
        self.announce(options, f"ojs_grpc stops: running calls have {ojs_settings.GRPC_SHUTDOWN_GRACE:g} seconds.")
        graceful, hurried = asyncio.ensure_future(server.stop()), asyncio.ensure_future(stop.at_once.wait())
        await asyncio.wait({graceful, hurried}, return_when=asyncio.FIRST_COMPLETED)
        if not graceful.done():
            await server.stop(0)
        await graceful
        hurried.cancel()
        self.announce(options, "ojs_grpc stopped.")
        return not stuck


class _Stop:
    """What signals ask for: one that the server stops, a second one that it stops at once."""

    def __init__(self) -> None:
        self.wanted, self.at_once = asyncio.Event(), asyncio.Event()

    def hear(self, name: str) -> None:
        if self.wanted.is_set() and name != HANGUP:
            self.at_once.set()
        self.wanted.set()


@contextlib.contextmanager
def _signals_heard(loop: asyncio.AbstractEventLoop, hear: Callable[[str], None]) -> Iterator[None]:
    """A block in which the loop calls `hear` for each signal to stop that is no echo. That is decided when the signal
    arrives: the loop may be busy, and hear of two at once that came seconds apart. One that comes when the loop is
    closed changes nothing: the server has stopped."""
    echoes = Echoes()

    def handle(number: int, frame: FrameType | None) -> None:
        name = signal.Signals(number).name
        if not (echoes.has(name) or loop.is_closed()):
            loop.call_soon_threadsafe(hear, name)

    before = {number: signal.signal(number, handle) for number in obeyed(Order.STOP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _keep_connections() -> None:
    """Let each thread keep its connection for as long as it lasts: a site's CONN_MAX_AGE is for its web servers."""
    leave_pools()
    connections[database(None)].settings_dict.update(CONN_MAX_AGE=None, CONN_HEALTH_CHECKS=True)


def _bound_address(address: str, port: int) -> str:
    return address if address.startswith("unix:") else f"{address.rpartition(':')[0]}:{port}"


def _address(text: str) -> str:
    host, _, port = text.rpartition(":")
    if text.startswith("unix:"):
        fits = len(text) > len("unix:")
    else:
        number = jsontext.digits(port)
        fits = bool(host) and number is not None and number <= 65535 and (":" not in host or host.startswith("["))
    if not fits or not is_storable(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not HOST:PORT, such as 127.0.0.1:9090, [::1]:9090 or unix:PATH")
    return text
