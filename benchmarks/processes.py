"""The worker and server processes that are measured."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

#: The checkout, where the processes find this package.
HOME = Path(__file__).resolve().parents[1]


def environment(database: str) -> dict[str, str]:
    return {
        **os.environ,
        "DJANGO_SETTINGS_MODULE": "benchmarks.settings",
        "OJS_BENCH_DATABASE": database,
        "PYTHONPATH": os.pathsep.join(filter(None, [str(HOME), os.environ.get("PYTHONPATH", "")])),
    }


def extended(url: str, query: str) -> str:
    """A database URL with more of a query; what it said already under the same names no longer counts."""
    return f"{url}{'&' if '?' in url else '?'}{query}" if query else url


@contextlib.contextmanager
def running(command: Sequence[str], database: str, stdin: int | None = None) -> Iterator[subprocess.Popen[str]]:
    """A process of the benchmark, ended with SIGTERM when the block ends."""
    process = subprocess.Popen(
        [sys.executable, *command], env=environment(database), stdin=stdin, stdout=subprocess.PIPE, text=True
    )
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.communicate(timeout=30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()


def worker(*options: str) -> list[str]:
    return ["-m", "django", "ojs_worker", "-v", "1", *options]


def scheduler() -> list[str]:
    return ["-m", "django", "ojs_scheduler", "-v", "0"]
