"""How long the handlers of each job type take, and so how far ahead it pays to claim.

A job that waits in this worker's line cannot be run by another one. So only types that were measured to be
short are claimed ahead, and of them no more than are done in a moment.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

from django_ojs.worker.outcomes import Outcome
from django_ojs.worker.run import Run

SHORT_SECONDS = 0.02  #: what counts as a short job
AHEAD_SECONDS = 0.05  #: how much work the line may hold, measured in time
MOST_AHEAD = 500  #: batches larger than a few hundred gain nothing (docs/performance.md)
_WEIGHT = 0.2  #: of the newest batch in the moving average


class Pace:
    """Moving averages per type, fed by the pool with every batch that ended."""

    def __init__(self, concurrency: int) -> None:
        self._concurrency = concurrency
        self._seconds: dict[str, float] = {}
        self._short: list[str] = []
        self._mean = SHORT_SECONDS
        self._lock = threading.Lock()

    def note(self, done: Sequence[tuple[Run, Outcome]]) -> None:
        """Take the durations of runs that ended into account."""
        with self._lock:
            for run, _ in done:
                name, seconds = run.definition.type, run.seconds
                before = self._seconds.get(name, SHORT_SECONDS)
                mean = before + _WEIGHT * (seconds - before) if name in self._seconds else seconds
                self._seconds[name] = mean
                self._mean += _WEIGHT * (seconds - self._mean)
                if (before < SHORT_SECONDS) != (mean < SHORT_SECONDS):
                    self._short = sorted(known for known, each in self._seconds.items() if each < SHORT_SECONDS)

    def slow_down(self) -> None:
        """The line did not move: claim nothing ahead until jobs have been measured anew."""
        with self._lock:
            self._mean = SHORT_SECONDS
            self._seconds.clear()
            self._short = []

    def short_types(self) -> list[str]:
        """The types whose jobs may be claimed ahead."""
        return self._short

    def ahead(self) -> int:
        """How many jobs the line may hold; 0 as long as nothing short was seen."""
        if not self._short or self._mean >= SHORT_SECONDS:
            return 0
        return min(MOST_AHEAD, int(self._concurrency * AHEAD_SECONDS / max(self._mean, 1e-4)))
