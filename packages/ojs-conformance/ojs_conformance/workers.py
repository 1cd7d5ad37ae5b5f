"""Starts workers for a server under test by the command that its author names."""

from __future__ import annotations

import contextlib
import shlex
import subprocess
from collections.abc import Iterator
from typing import Any, Final

from ojs_conformance.running import WorkerFactory

STOP_SECONDS: Final = 15


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


def stop(process: subprocess.Popen[Any], seconds: float = STOP_SECONDS) -> None:
    """Ask a process to end; kill it if it has not after so many seconds."""
    process.terminate()
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
