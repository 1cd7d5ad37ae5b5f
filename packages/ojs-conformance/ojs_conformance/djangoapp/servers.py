"""Starts test servers of django-ojs as processes, and workers on their databases."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import IO, Final, NamedTuple

import django_ojs
import ojs_conformance
from ojs_conformance.handlers import HANDLERS
from ojs_conformance.report import Binding
from ojs_conformance.suite import Target
from ojs_conformance.workers import stop

RESET: Final = "/ojs/v1/admin/reset"
SETTINGS: Final = "ojs_conformance.djangoapp.site.settings"
STOP_SECONDS: Final = 30
#: Where these very copies of the packages are.
_HOMES: Final = [str(Path(package.__path__[0]).resolve().parent) for package in (django_ojs, ojs_conformance)]


class NotStarted(RuntimeError):
    """A server or a worker did not come up. The text is what the process wrote."""


@contextlib.contextmanager
def farm(count: int, dialect: str = "spec", database: str = "", binding: Binding = "http") -> Iterator[list[Target]]:
    """Several servers side by side, started at once. NotStarted if one does not come up.

    Args:
        count: how many; cases wait more than they work.
        dialect: `spec` or `published`.
        database: URL of a server to make the throwaway databases on; empty: SQLite.
        binding: which one the steps of the cases go to.
    """
    options = ["--grpc-port", "0"] if binding == "grpc" else []
    with contextlib.ExitStack() as stack:
        processes = [stack.enter_context(_server(dialect, database, *options)) for _ in range(count)]
        yield [_target(process) for process in processes]


@contextlib.contextmanager
def running(dialect: str = "spec", database: str = "") -> Iterator[Target]:
    """One `ojs_testserver`, ready to be asked, whose cases may start workers on its database."""
    with farm(1, dialect, database) as targets:
        yield targets[0]


class _Server(NamedTuple):
    process: subprocess.Popen[str]
    errors: IO[str]  #: what it writes to standard error: a file, which is never full as a pipe that nobody reads


@contextlib.contextmanager
def _server(dialect: str, database: str, *options: str) -> Iterator[_Server]:
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            _command("ojs_testserver", "--port", "0", "--dialect", dialect, "--database", database, *options),
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env=_environment(),
        )
        try:
            yield _Server(process, errors)
        finally:
            stop(process, STOP_SECONDS)


def _first_line(process: subprocess.Popen[str]) -> str:
    """What a process says first. Whatever comes then is read, and forgotten."""
    assert process.stdout is not None
    line = process.stdout.readline()
    threading.Thread(target=_read_all, args=[process.stdout], name="reader", daemon=True).start()
    return line


def _read_all(stream: IO[str]) -> None:
    with stream:
        deque(stream, 0)


def _target(server: _Server) -> Target:
    """The server that a process has become: it says `ready URL`, and maybe ` grpc ADDRESS`; and on standard error which
    database it made."""
    words = _first_line(server.process).split()
    server.errors.seek(0)
    said = server.errors.read()
    if words[:1] != ["ready"]:
        raise NotStarted(f"the server did not start: {said.strip()}")
    database = next(line for line in said.splitlines() if line.startswith("database "))
    worker = worker_on(database.removeprefix("database "))
    grpc = words[3] if words[2:3] == ["grpc"] else ""
    return Target(words[1], RESET, worker, frozenset(HANDLERS), grpc)


def worker_on(database: str) -> Callable[[], AbstractContextManager[None]]:
    """How to start an `ojs_worker` with the standard handlers on a database."""

    @contextlib.contextmanager
    def worker() -> Iterator[None]:
        process = subprocess.Popen(
            _command("ojs_worker", "--no-scheduler", "--concurrency", "8"),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=_environment() | {"OJS_SITE_DATABASE": database},
            start_new_session=True,
        )
        try:
            if not _first_line(process):
                raise NotStarted("the worker did not start")
            yield
        finally:
            # Its children too: they hold handlers that sleep. Its jobs are wiped with the server's next reset.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(STOP_SECONDS)

    return worker


def _command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "django", *arguments]


def _environment() -> dict[str, str]:
    """This process's, with the conformance site and these very copies of the packages."""
    path = os.pathsep.join(filter(None, [*_HOMES, os.environ.get("PYTHONPATH", "")]))
    return os.environ | {"DJANGO_SETTINGS_MODULE": SETTINGS, "PYTHONPATH": path}
