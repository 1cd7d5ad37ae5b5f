"""The processes of the demo: started, kept alive, and ended together."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from django_ojs.backoff import Backoff
from example_project import paths

HEALTHY_AFTER = 5.0  #: a process that lived so many seconds is started again when it ends
FIRST_PAUSE, LONGEST_PAUSE = 0.25, 30.0  #: seconds before it is
GRACE_PERIOD = 10.0  #: how long processes may take to stop, seconds


class ChildFailed(Exception):
    """A process ended right after its start; the message has its last words."""


class Child:
    """One process. It has a process group of its own, so that Ctrl-C reaches only the demo, which stops it in order."""

    def __init__(self, name: str, command: Sequence[str], logs: Path) -> None:
        self.name = name
        self._command = [sys.executable, "-m", "example_project.demo.child", *command]
        self._log = logs / f"{name}.log"
        self._output = logs / f"{name}.out"  #: what it says past its log: a few lines, from each start anew
        self._process: subprocess.Popen[bytes] | None = None
        self._started = 0.0
        self._news: list[str] = []
        self._starts = Backoff(f"The {name}", FIRST_PAUSE, LONGEST_PAUSE, tell=self._news.append)
        self._start_at: float | None = None  #: when it is started again; None: it has not ended, as far as is known

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        group: dict[str, Any] = {"process_group": 0} if os.name == "posix" else {}
        with self._output.open("wb") as output:
            self._process = subprocess.Popen(  # noqa: S603 - a command of ours
                self._command, cwd=paths.BASE_DIR, stdin=subprocess.PIPE, stdout=output, stderr=output,
                env={**os.environ, "DJANGO_LOG_FILE": str(self._log)}, **group,
            )  # fmt: skip
        self._started, self._start_at = time.monotonic(), None

    def revive(self) -> str:
        """Start it again some time after it has ended; what to tell the user, if anything. Raises ChildFailed."""
        if self._process is None:
            return ""
        if self._process.poll() is None:
            self._starts.worked()
        elif self._start_at is None:
            self._check()
            self._start_at = time.monotonic() + self._starts.failed(f"ended ({_describe(self._process.returncode)})")
        elif self._start_at <= time.monotonic():
            self.close()
            self.start()
        told = "\n".join(self._news)
        self._news.clear()
        return told

    def stop(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()

    def wait(self, until: float, is_hurried: Callable[[], bool]) -> None:
        """Wait for the end, until an instant of `time.monotonic()`, then make one."""
        if self._process is None:
            return
        while self._process.poll() is None and time.monotonic() < until and not is_hurried():
            time.sleep(0.02)
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        self.close()

    def close(self) -> None:
        """Let go of the pipe that keeps it alive."""
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()

    def _check(self) -> None:
        if time.monotonic() - self._started >= HEALTHY_AFTER:
            return
        words = self._output.read_text(errors="replace").strip() or f"It said nothing; see {self._log}."
        raise ChildFailed(f"The {self.name} ended right after its start:\n{words[-2000:]}")


def stop_all(children: Sequence[Child], is_hurried: Callable[[], bool]) -> None:
    """End all of them, the way they end by themselves; kill those that take too long, or all in a hurry."""
    for child in children:
        child.stop()
    until = time.monotonic() + GRACE_PERIOD
    for child in children:
        child.wait(until, is_hurried)


def _describe(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit code {code}"
