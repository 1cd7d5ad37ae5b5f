"""What a change of states means for the counts: a few numbers a queue, whatever the number of jobs."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable
from typing import Any

from django_ojs.models.job import JobRow
from django_ojs.models.statistics import NUMBERS
from django_ojs.states import State, Verb

#: Where a job was: queue, state, whether it was in the dead letter queue.
Place = tuple[str, str, bool]

COLUMNS: tuple[str, ...] = ("queue", "at", *NUMBERS, "failed", "run_ms", "wait_ms")
#: The verbs by which a job fails for good, as `job.discarded` tells; expiry is no failure.
_FAILING = frozenset({Verb.FAIL, Verb.RESCUE})


class Tally:
    """Differences, by queue and column of `CountDelta`."""

    def __init__(self) -> None:
        self.changes: dict[str, dict[str, int]] = {}

    def add(self, queue: str, column: str, amount: int) -> None:
        numbers = self.changes.setdefault(queue, {})
        numbers[column] = numbers.get(column, 0) + amount

    def leave(self, places: Iterable[Place]) -> None:
        for queue, state, dead in places:
            self.add(queue, str(state), -1)
            if dead:
                self.add(queue, "dead", -1)

    def enter(self, row: JobRow, guard: Verb | State | None = None) -> None:
        """Count the job in `row` where it is now, and what its way there tells about the work done."""
        queue, state = row["queue"], str(row["state"])
        self.add(queue, state, 1)
        if state == State.ACTIVE and guard is Verb.FETCH:
            self.add(queue, "wait_ms", milliseconds(row["enqueued_at"], row["started_at"]))
        elif state == State.COMPLETED:
            self.add(queue, "run_ms", milliseconds(row["started_at"], row["finished_at"]))
        elif state == State.DISCARDED:
            self.add(queue, "dead", int(row["dead_letter"]))
            self.add(queue, "failed", int(guard in _FAILING))

    def rows(self, at: dt.datetime) -> list[tuple[Any, ...]]:
        """The values of `COLUMNS`, one row a queue; a queue in which nothing changed has none."""
        return [
            (queue, at, *(numbers.get(name, 0) for name in COLUMNS[2:]))
            for queue, numbers in self.changes.items()
            if any(numbers.values())
        ]


def milliseconds(since: dt.datetime | None, until: dt.datetime | None) -> int:
    return max(0, round((until - since).total_seconds() * 1000)) if since and until else 0
