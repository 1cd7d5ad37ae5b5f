"""Track one run of one job in this process, from the claim until its outcome is written."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING

from django_ojs.client.context import JobContext, Link, time_left
from django_ojs.worker.outcomes import Interruption

if TYPE_CHECKING:
    from django_ojs.models import JobRow
    from django_ojs.registry import Definition


class Run:
    """Holds what the threads of a worker know about a job, and decides which of them may stop it.

    A runner calls `enter()` before and `leave()` after the handler; `interrupt()` reaches the handler only
    in between, so that a deadline that passes at the last moment never hits the worker's own code.

    `claimed` and `deadline` are instants of this process' monotonic clock, `seconds` is how long the handler
    took. The server counts the execution timeout from the claim, so the deadline does too; it comes earlier where
    the job's time as a whole ends before. `grace` is how many seconds after it the server leaves the job to the
    handler. `forced_at` is when `stop` was first used. From `doubtful_at` on the server may have taken the job from
    this run, as far as this process knows: half of a reservation is left for a claim or a renewal that was slow to be
    answered.
    """

    __slots__ = (
        "_inside", "_lease", "_lock", "_started", "_stop", "attempt", "began", "claimed", "context", "deadline",
        "definition", "doubtful_at", "forced_at", "grace", "id", "interruption", "released", "seconds", "timeout_ms",
    )  # fmt: skip

    def __init__(self, row: JobRow, definition: Definition, claimed: float, link: Link) -> None:
        self.id: uuid.UUID = row["id"]
        self.attempt: int = row["attempt"]
        self.definition = definition
        self.context = JobContext(row, link)
        self.interruption: Interruption | None = None
        self.released = False  #: handed back by a drain, or given up: its outcome no longer counts
        self.timeout_ms: int | None = row["timeout_ms"]
        self.claimed = claimed
        lease, heartbeat = row["lease_ms"], row["heartbeat_ms"]
        self._lease = (min(lease, heartbeat) if heartbeat else lease) / 1000 if lease else float("inf")
        self.doubtful_at = claimed + self._lease / 2
        self.began = False  #: the handler was called, or was about to be
        limit = self.timeout_ms / 1000 if self.timeout_ms else float("inf")
        self.deadline = claimed + min(limit, time_left(row))
        self.grace = (row["grace_ms"] or 0) / 1000
        self.seconds = 0.0
        self._started = claimed
        self._lock = threading.Lock()
        self._stop: Callable[[], None] | None = None
        self._inside = False
        self.forced_at: float | None = None

    def enter(self, stop: Callable[[], None]) -> None:
        """The handler starts; `stop` makes it end. A run that was interrupted before ends at once."""
        self._started = time.monotonic()
        with self._lock:
            self.began = True
            self._inside, self._stop = True, stop
            if self.interruption is not None:
                self.forced_at = self.forced_at or time.monotonic()
                stop()

    def renewed(self, asked_at: float) -> None:
        """The server renewed the reservation, as it was asked to at that instant."""
        with self._lock:
            if self.interruption is None:
                self.doubtful_at = asked_at + self._lease / 2

    def raised(self, exc: BaseException) -> None:
        """Called with what the handler raised. A worker keeps what the job's error says; the testing kit keeps more."""

    def leave(self) -> None:
        """The handler has ended. May be called twice."""
        with self._lock:
            if self._inside:
                self.seconds = time.monotonic() - self._started
            self._inside, self._stop = False, None

    def interrupt(self, reason: Interruption, *, force: bool) -> None:
        """Tell the handler to stop: always through its context, with `force` also by `stop`, once.

        The first reason counts. A handler that was only asked (its job is lost, say) may be forced later.
        """
        self.context.cancel()
        with self._lock:
            self.interruption = self.interruption or reason
            self.doubtful_at = float("-inf")
            if force and self.forced_at is None:
                self.forced_at = time.monotonic()
                if self._inside and self._stop is not None:
                    self._stop()
