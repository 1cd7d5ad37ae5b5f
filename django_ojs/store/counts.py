"""Computes what a change of states adds to the counts of each queue: a few numbers, however many jobs change."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Iterable, Sequence
from operator import itemgetter
from typing import Any

from django_ojs.events.catalogue import milliseconds_between
from django_ojs.models.job import JobRow
from django_ojs.models.statistics import NUMBERS
from django_ojs.states import State, Verb


def new_jobs(rows: Sequence[JobRow]) -> Tally:
    """What new jobs change in the counts."""
    tally = Tally()
    for (queue, state), number in Counter(map(itemgetter("queue", "state"), rows)).items():
        tally.add(queue, state, number)
    return tally


#: Where a job was: queue, state, whether it was in the dead letter queue.
Place = tuple[str, str, bool]
COUNTED: tuple[str, ...] = ("queue", "at", *NUMBERS, "failed", "run_ms", "wait_ms")
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
            self.add(queue, "wait_ms", milliseconds_between(row["enqueued_at"], row["started_at"]))
        elif state == State.COMPLETED:
            self.add(queue, "run_ms", milliseconds_between(row["started_at"], row["finished_at"]))
        elif state == State.DISCARDED:
            self.add(queue, "dead", int(row["dead_letter"]))
            self.add(queue, "failed", int(guard in _FAILING))

    def rows(self, at: dt.datetime) -> list[tuple[Any, ...]]:
        """The values of `COLUMNS`, one row a queue; a queue in which nothing changed has none."""
        return [
            (queue, at, *(numbers.get(name, 0) for name in COUNTED[2:]))
            for queue, numbers in self.changes.items()
            if any(numbers.values())
        ]
