"""The durable handler of `ojs_bench --flows`: ten steps, of which each that is called says so."""

from __future__ import annotations

import os
import urllib.request
import uuid
from pathlib import Path
from typing import Any

from django.contrib.auth.models import Group

from django_ojs import JobContext, job
from django_ojs.models import JobStep

TYPE, EVENT = "bench.flow", "bench.flow"
BOOKS = tuple(f"book-{number}" for number in range(4))
FILES, CALLS = ("file-0", "file-1"), ("call-0", "call-1")
#: A flow may be cut off any number of times.
RETRY = {"max_attempts": 10_000, "initial_interval": "PT0.5S", "backoff_coefficient": 1.0}


def document(number: int) -> dict[str, Any]:
    """The job of a flow."""
    return {"type": TYPE, "args": [number], "queue": "default", "retry": RETRY}


@job(TYPE, durable=True)
def flow(context: JobContext, number: int) -> None:
    for book, file, call in zip(BOOKS, FILES, CALLS, strict=False):
        context.step_transaction(book, _book, f"{number}:{book}")
        context.step(file, _write, context.id, file, f"{number}:{file}")
        context.step(call, _call, context.id, call, f"{number}:{call}")
    context.sleep("100ms")
    context.step_transaction(BOOKS[2], _book, f"{number}:{BOOKS[2]}")
    context.wait_for_event(EVENT, key=number)
    context.step_transaction(BOOKS[3], _book, f"{number}:{BOOKS[3]}")


def _book(name: str) -> None:
    Group.objects.create(name=f"{name}:{uuid.uuid4()}")


def _write(job_id: uuid.UUID, step: str, name: str) -> None:
    _check(job_id, step, name)
    _append("calls", name)


def _call(job_id: uuid.UUID, step: str, name: str) -> None:
    _check(job_id, step, name)
    address = f"{os.environ['OJS_BENCH_COUNTER']}/{name}"
    with urllib.request.urlopen(urllib.request.Request(address, method="POST"), timeout=60):  # noqa: S310
        pass


def _check(job_id: uuid.UUID, step: str, name: str) -> None:
    if JobStep.objects.filter(job_id=job_id, name=step, ended_at__isnull=False).exists():
        _append("faults", f"The step {name} was called although it was recorded.")


def _append(file: str, text: str) -> None:
    with (Path(os.environ["OJS_BENCH_FLOWS"]) / file).open("a") as opened:
        opened.write(f"{text}\n")
