"""Test servers as processes, workers on their databases, and workers that a command starts."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final

from django_ojs.conformance.handlers import HANDLERS
from django_ojs.conformance.report import Binding
from django_ojs.conformance.running import WorkerFactory
from django_ojs.conformance.suite import Target

RESET: Final = "/ojs/v1/admin/reset"
SETTINGS: Final = "django_ojs.conformance.site.settings"
STOP_SECONDS: Final = 30
COMMAND_STOP_SECONDS: Final = 15
_HOME: Final = Path(__file__).resolve().parents[2]


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


@contextlib.contextmanager
def _server(dialect: str, database: str, *options: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        _command("ojs_testserver", "--port", "0", "--dialect", dialect, "--database", database, *options),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=_environment(),
    )
    try:
        yield process
    finally:
        process.terminate()
        process.communicate(timeout=STOP_SECONDS)


def _target(process: subprocess.Popen[str]) -> Target:
    """The server that a process has become: it says `ready URL`, and maybe ` grpc ADDRESS`; and on standard error which
    database it made."""
    assert process.stdout is not None
    assert process.stderr is not None
    words = process.stdout.readline().split()
    if words[:1] != ["ready"]:
        raise NotStarted(f"the server did not start: {process.stderr.read().strip()}")
    worker = worker_on(process.stderr.readline().strip().removeprefix("database "))
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
        assert process.stdout is not None
        try:
            if not process.stdout.readline():
                raise NotStarted("the worker did not start")
            yield
        finally:
            # Its children too: they hold handlers that sleep. Its jobs are wiped with the server's next reset.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate(timeout=STOP_SECONDS)

    return worker


def _command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "django", *arguments]


def _environment() -> dict[str, str]:
    """This process's, with the conformance site and this very copy of the package."""
    path = os.pathsep.join(filter(None, [str(_HOME), os.environ.get("PYTHONPATH", "")]))
    return os.environ | {"DJANGO_SETTINGS_MODULE": SETTINGS, "PYTHONPATH": path}


def command_worker(command: str, target: str) -> WorkerFactory:
    """A factory of workers that run a command; `{target}` in it becomes the base URL."""

    @contextlib.contextmanager
    def worker() -> Iterator[None]:
        process = subprocess.Popen(shlex.split(command.replace("{target}", target)))
        try:
            yield
            if process.poll() is not None:
                raise RuntimeError(f"the worker ended during the case, with exit status {process.returncode}")
        finally:
            stop(process)

    return worker


def stop(process: subprocess.Popen[bytes]) -> None:
    """Ask a process to end; kill it if it does not."""
    process.terminate()
    try:
        process.wait(COMMAND_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
