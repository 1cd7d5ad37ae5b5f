"""How many jobs there are in which state, on one line: rewritten on a terminal, now and then anew in a log."""

from __future__ import annotations

import datetime as dt
import shutil
import time
from typing import Any

from django.db.models import Count
from django.utils import timezone

from django_ojs.models import Job
from django_ojs.states import State

LABELS = {
    state: state.value for state in (State.AVAILABLE, State.ACTIVE, State.SCHEDULED, State.RETRYABLE, State.COMPLETED)
} | {State.DISCARDED: "dead", State.CANCELLED: "cancelled"}
WINDOW = 10.0  #: seconds over which the throughput is measured
ON_TERMINAL, IN_LOG = 1.0, 10.0  #: seconds between two lines


class StatusLine:
    """`update()` writes when it is time to; `say()` writes anything else."""

    def __init__(self, stream: Any, *, live: bool | None = None) -> None:
        self._stream = stream
        self._live = stream.isatty() if live is None else live
        self._due = time.monotonic()

    def update(self) -> None:
        if time.monotonic() < self._due:
            return
        self._due = time.monotonic() + (ON_TERMINAL if self._live else IN_LOG)
        text = summary()
        if self._live:
            self._write(f"\r\x1b[K{text[: shutil.get_terminal_size().columns - 1]}")
        else:
            self._write(f"{timezone.now():%H:%M:%S}  {text}\n")

    def say(self, text: str) -> None:
        """Write a line that stays; on a terminal it takes the place of the status line."""
        self._write(f"\r\x1b[K{text}\n" if self._live else f"{text}\n")

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()


def summary() -> str:
    """`4.1/s  available 0  active 2  …`: what matters least comes last, where a narrow terminal cuts it off."""
    counts = dict(_counts())
    parts = [f"{label} {counts.get(state, 0):,}" for state, label in LABELS.items()]
    return "  ".join([f"{throughput():.1f}/s", *parts])


def throughput() -> float:
    """Jobs completed per second, lately."""
    since = timezone.now() - dt.timedelta(seconds=WINDOW)
    return Job.objects.filter(state=State.COMPLETED, finished_at__gt=since).count() / WINDOW


def _counts() -> Any:
    return Job.objects.values_list("state").annotate(count=Count("pk")).order_by()
