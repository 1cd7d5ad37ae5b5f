"""Restart the worker when the code changes, in development (`ojs_worker --reload`).

As `runserver` does it, an outer process starts an inner one again and again. Unlike there the inner one works in
its main thread and watches the files in another, so that a change drains it: no job is cut off.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import FrameType

from django.utils import autoreload

from django_ojs.worker.lifecycle import Lifecycle, Order

logger = logging.getLogger(__name__)

#: Tells the inner process when it began: what changed since then it may have read too early.
_BEGAN = "OJS_RELOAD_BEGAN"
CHANGED = 3  #: the exit code that means "again", as Django's
LOOK = 1.0


def is_inner() -> bool:
    return os.environ.get(autoreload.DJANGO_AUTORELOAD_ENV) == "true"


def keep_restarting() -> int:
    """The outer process: returns the exit code of the inner one that ended for another reason than a change.

    One that failed, as over a syntax error, is started again when a file has changed.
    """
    # A terminal sends its Ctrl-C to the inner process as well.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signals: list[int] = []
    inner: list[subprocess.Popen[bytes]] = []

    def pass_on(number: int, frame: FrameType | None) -> None:
        signals.append(number)
        for process in inner:
            process.send_signal(number)

    signal.signal(signal.SIGTERM, pass_on)
    environment = {**os.environ, autoreload.DJANGO_AUTORELOAD_ENV: "true"}
    while True:
        before, environment[_BEGAN] = _times(), str(time.time())
        inner[:] = [subprocess.Popen(autoreload.get_child_arguments(), env=environment, close_fds=False)]  # noqa: S603
        code = inner[0].wait()
        if signals or code == 0:
            return code
        if code != CHANGED:
            logger.error("The worker ended with code %d; it starts again when a file has changed.", code)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            while not signals and _times() == before:
                time.sleep(LOOK)
            signal.signal(signal.SIGINT, signal.SIG_IGN)


def _times() -> dict[Path, float]:
    times = {}
    for path in autoreload.iter_all_python_module_files():
        with contextlib.suppress(OSError):  # an editor is replacing it
            times[path] = path.stat().st_mtime
    return times


class Watch:
    """In the inner process: a thread that stops the worker when a file has changed."""

    def __init__(self, lifecycle: Lifecycle) -> None:
        self._lifecycle = lifecycle
        self.changed = False

    def start(self) -> None:
        threading.Thread(target=self._run, name="ojs-reload", daemon=True).start()

    def _run(self) -> None:
        began = float(os.environ.get(_BEGAN, time.time()))
        seen: dict[Path, float] = {}
        while True:
            times = _times()
            if any(_has_changed(at, seen.get(path), began) for path, at in times.items()):
                break
            seen = times
            time.sleep(LOOK)
        self.changed = True
        self._lifecycle.give(Order.STOP, "the code has changed")


def _has_changed(at: float, seen: float | None, began: float) -> bool:
    """A file not seen before has, if it is younger than the process; a time in the future is another machine's."""
    return at != seen if seen is not None else began < at <= time.time()


def leave(watch: Watch, *, fine: bool) -> None:
    """End the inner process with the exit code that the outer one needs."""
    if watch.changed:
        sys.exit(CHANGED)
    if not fine:
        sys.exit(1)
