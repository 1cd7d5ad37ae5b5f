"""A process that stops for ever in the middle of one deed: `python -m tests.processes.stalling POINT FILE`.

POINT is `module:name`, a function after which it stops, or `commit`, before which it does, or `nowhere`. It
says so by making FILE, and then waits to be killed. The deed comes in as JSON: `{"push": [...]}` or `{"ack": [...]}`.
"""

from __future__ import annotations

import importlib
import json
import signal
import sys
import uuid
from pathlib import Path
from typing import Any

import django


def stop_at(point: str, file: Path) -> None:
    from django.db import connection

    def stop(*args: Any, **kwargs: Any) -> None:
        file.touch()
        while True:
            signal.pause()

    if point == "nowhere":
        return
    if point == "commit":
        connection.ensure_connection()
        connection.commit = stop
        return
    module, _, name = point.partition(":")
    *path, last = name.split(".")
    owner = importlib.import_module(module)
    for part in path:
        owner = getattr(owner, part)
    original = getattr(owner, last)

    def stopping(*args: Any, **kwargs: Any) -> None:
        original(*args, **kwargs)
        stop()

    setattr(owner, last, stopping)


def main(point: str, file: str) -> None:
    django.setup()
    from django_ojs.jobs.finish import Ack, ack
    from django_ojs.jobs.push import push
    from django_ojs.store import store_of

    deed = json.load(sys.stdin)
    store_of("default")  # so that the class of this database is there to be patched
    stop_at(point, Path(file))
    if "push" in deed:
        push(deed["push"])
    else:
        ack([Ack(uuid.UUID(text), "1") for text in deed["ack"]])


if __name__ == "__main__":
    main(*sys.argv[1:])
