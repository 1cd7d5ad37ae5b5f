"""A process that ticks as fast as it can, without a lease: `python -m tests.scheduler.ticker [FOLDER POINT]`.

With a folder it stops for ever in the middle of its first tick, and leaves a file there: at the `push` of the
job, at the `record_run`, which comes next, at the `log` of the event, or at the `commit`.
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import Any

import django

django.setup()

from django.db import connection  # noqa: E402

from django_ojs.cron import runs  # noqa: E402


def stall(folder: Path, point: str) -> None:
    def stop(*args: Any, **kwargs: Any) -> None:
        (folder / "stopped").touch()
        while True:
            signal.pause()

    class Log:
        append = staticmethod(stop)

    match point:
        case "push":
            runs.push = stop  # type: ignore[assignment]
        case "record_run":
            runs.record_run = stop  # type: ignore[assignment]
        case "log":
            runs.log = Log  # type: ignore[assignment]
        case "commit":
            push = runs.push

            def pushing(*args: Any, **kwargs: Any) -> Any:
                connection.commit = stop
                return push(*args, **kwargs)

            runs.push = pushing


def main() -> None:
    if len(sys.argv) > 1:
        stall(Path(sys.argv[1]), sys.argv[2])
    print("ready", flush=True)
    while True:
        runs.tick()


if __name__ == "__main__":
    main()
