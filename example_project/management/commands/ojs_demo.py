"""`manage.py ojs_demo`: everything at once, on an embedded database, with jobs to look at."""

from __future__ import annotations

import argparse
import contextlib
import errno
import http.client
import importlib.util
import os
import signal
import socket
import sys
import time
from collections.abc import Iterator
from types import FrameType
from typing import Any

from django.conf import settings
from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import connections
from django.urls import reverse

from django_ojs import grpc
from django_ojs.backoff import Backoff
from django_ojs.conf import ojs_settings
from django_ojs.faults import passes, suppress_passing
from example_project.demo import login
from example_project.demo.load import Load
from example_project.demo.processes import Child, ChildFailed, stop_all
from example_project.demo.status import StatusLine, summary
from example_project.paths import DATA_DIR

HOST = "127.0.0.1"
GRPC_PORT = 9090  #: or any other, where that is taken
LOGS = DATA_DIR / "log"
TICK = 0.1  #: seconds between two looks at what there is to do
LONGEST_PAUSE = 5.0  #: the same while the database is away
READY_WITHIN = 30.0

WELCOME = """
  Admin      {url}{overview}
             user {user}, password {password}
  Manifest   {url}/ojs/manifest
  API        {url}/ojs/v1/queues (also jobs, dead-letter, events)
  gRPC       {grpc}
  Reports    {url}/reports/
  Data       {data} (logs in log/; delete it to begin anew)

  Try        curl -s {url}/ojs/v1/jobs -H 'Content-Type: application/json' \\
               -d '{{"type": "files.hash", "args": ["json/decoder.py"]}}'

  Ctrl-C stops everything; the next start carries on.
"""


class Command(BaseCommand):
    help = "Runs servers of HTTP and gRPC, scheduler and worker with a workload, on this machine alone, until Ctrl-C."
    requires_system_checks: list[str] = []  # they take a while: done once Ctrl-C is listened to

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--port", type=_port, default=8000, help="0 for any that is free (default: 8000)")
        parser.add_argument("--seconds", type=float, metavar="N", help="end by itself after so long")
        parser.add_argument("--no-load", action="store_true", help="enqueue nothing")

    def handle(self, *args: Any, **options: Any) -> None:
        self._stops = 0
        _check_site()
        self._port = _free_port(options["port"])
        self._grpc_port = None if grpc.missing() else _grpc_port(options["port"])
        self._line = StatusLine(self.stdout)
        with self._signals(), _closed_terminal():
            self._prepare()
            children = self._children()
            try:
                self._serve(children, options)
            except ChildFailed as error:
                raise CommandError(str(error)) from None
            finally:
                stop_all(children, lambda: self._stops > 1)
            with suppress_passing():
                self._line.say(summary())
            self._line.say("Stopped.")

    def _prepare(self) -> None:
        LOGS.mkdir(parents=True, exist_ok=True)
        self._line.say("Migrating the database ...")
        self.check()
        call_command("migrate", verbosity=0)
        self._password = login.ensure(DATA_DIR / "admin-password")

    def _children(self) -> list[Child]:
        worker = ["manage.py", "ojs_worker", "--concurrency", "8"]  # one of its threads is the scheduler
        children = [Child("server", server_command(self._port), LOGS), Child("worker", worker, LOGS)]
        if self._grpc_port is not None:
            command = ["manage.py", "ojs_grpc", "--bind", f"{HOST}:{self._grpc_port}"]
            children.append(Child("gRPC server", command, LOGS))
        return children

    def _serve(self, children: list[Child], options: dict[str, Any]) -> None:
        self._start(children)
        load = Load(self._port, () if options["no_load"] else None)
        end = time.monotonic() + (options["seconds"] or float("inf"))
        tries = Backoff("Using the database", TICK, LONGEST_PAUSE, tell=self._line.say)
        while not self._stops and time.monotonic() < end:
            for child in children:
                if news := child.revive():
                    self._line.say(news)
            pause = TICK
            try:
                load.run_once()
                self._line.update()
            except Exception as error:
                if not passes(error):
                    raise
                connections.close_all()
                pause = tries.failed()
            else:
                tries.worked()
            time.sleep(pause)
        self._line.say(f"Stopping: running jobs have {ojs_settings.SHUTDOWN_GRACE_PERIOD:g} seconds to finish ...")

    def _start(self, children: list[Child]) -> None:
        for child in children:
            self._line.say(f"Starting the {child.name} ...")
            child.start()
        late = time.monotonic() + READY_WITHIN
        while not (self._stops or _is_healthy(self._port)):
            children[0].revive()
            if time.monotonic() > late:
                raise ChildFailed(f"The server does not answer on port {self._port}; see {LOGS}.")
            time.sleep(TICK)
        if not self._stops:
            self._welcome()

    def _welcome(self) -> None:
        password = self._password or "as you have set it"
        url = f"http://{HOST}:{self._port}"
        facts = {"overview": reverse("admin:django_ojs_overview"), "user": login.NAME, "password": password}
        address = f"not here: {grpc.HINT}" if self._grpc_port is None else f"{HOST}:{self._grpc_port}"
        self._line.say(WELCOME.format(url=url, grpc=address, data=DATA_DIR, **facts))

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        """The first Ctrl-C or SIGTERM ends the demo, the second does not wait for the jobs."""

        def handle(number: int, frame: FrameType | None) -> None:
            self._stops += 1

        known = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
        before = {number: signal.signal(number, handle) for number in known}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def server_command(port: int) -> list[str]:
    """The arguments of Python that serve the site on `port`."""
    return [
        "-m", "uvicorn", "example_project.asgi:application", "--host", HOST, "--port", str(port), "--http", "h11",
        "--lifespan", "off", "--no-access-log", "--log-level", "warning", "--timeout-graceful-shutdown", "3",
    ]  # fmt: skip


def _check_site() -> None:
    """Refuse to run where the demo cannot run, or should not."""
    if importlib.util.find_spec("uvicorn") is None:
        raise CommandError("uvicorn is not installed. Install what the demo needs: pip install -e '.[demo]'")
    if not settings.DEBUG:
        raise CommandError("The demo lets anybody on this machine in: run it with DJANGO_DEBUG=1, or not at all.")


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0 to 65535")
    return int(text)


def _free_port(wanted: int) -> int:
    """`wanted` if no program listens there, any free port for 0. Raises CommandError."""
    with socket.socket() as probe:
        if os.name == "posix":  # as the server will: connections of the last run may still be closing
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, wanted))
        except OSError as error:
            taken = error.errno == errno.EADDRINUSE
            why = "is taken; is the demo running already?" if taken else f"cannot be used: {error.strerror}."
            raise CommandError(f"Port {wanted} {why} Choose another with --port, or any with --port 0.") from None
        port: int = probe.getsockname()[1]
        return port


def _grpc_port(wanted: int) -> int:
    """The usual port of gRPC if it is free and the caller has not asked for any, else one that is free."""
    if wanted:
        with contextlib.suppress(CommandError):
            return _free_port(GRPC_PORT)
    return _free_port(0)


def _is_healthy(port: int) -> bool:
    connection = http.client.HTTPConnection(HOST, port, timeout=2)
    try:
        connection.request("GET", "/ojs/v1/health")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


@contextlib.contextmanager
def _closed_terminal() -> Iterator[None]:
    """End quietly, as after a signal, when no program reads the output any more (`| head`, a closed window)."""
    try:
        yield
    except OSError as error:
        if not isinstance(error, BrokenPipeError) and error.errno != errno.EIO:
            raise
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())  # what is buffered must not fail once more at the exit
