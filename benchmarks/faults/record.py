"""What was promised while a fault lasted and what was done: jobs that were pushed, and how often their handlers ran."""

from __future__ import annotations

import dataclasses
import json
import threading
import time
from collections import Counter
from pathlib import Path

from django_ojs.models import Job
from django_ojs.states import State

#: Seconds in which what was promised has to be done once the fault is over.
SETTLE = 60.0


@dataclasses.dataclass(slots=True)
class Row:
    """What the table says of one fault."""

    fault: str
    code: str
    answered: int = 0
    refused: int = 0
    done: int = 0
    twice: int = 0
    lost: int = 0
    lines: int = 0
    back: float = 0.0
    wrong: list[str] = dataclasses.field(default_factory=list)

    HEAD = "| fault | code | pushes answered | refused | jobs done | twice | lost | lines of log | back after |"

    def text(self) -> str:
        figures = (self.answered, self.refused, self.done, self.twice, self.lost, self.lines, f"{self.back:.1f} s")
        line = " | ".join(map(str, (self.fault, self.code, *figures)))
        return "\n".join([f"| {line} |", *(f"  WRONG: {each}" for each in self.wrong[:10])])


class Record:
    """The pushes since the last `begin`, for several threads."""

    def __init__(self, notes: Path) -> None:
        self._notes = notes
        self._lock = threading.Lock()
        self._number = self._in_flight = 0
        self.begin()

    def begin(self) -> None:
        with self._lock:
            self._first = self._number + 1
            self.answered: dict[int, str] = {}  #: the number of each job that was promised, and its id
            self.pushed = 0
            self.statuses: Counter[str] = Counter()
            self.streamed: set[str] = set()  #: ids of jobs that the streams told to be completed
            self.last_answer = self.last_stream = float("-inf")

    def number(self) -> int:
        with self._lock:
            self._number += 1
            self._in_flight += 1
            return self._number

    def count(self, status: str) -> None:
        """Count the answer to something else than a push."""
        with self._lock:
            self.statuses[status] += 1

    def answer(self, number: int, status: str, job_id: str | None, sent_at: float) -> None:
        with self._lock:
            self._in_flight -= 1
            self.pushed += 1
            self.statuses[status] += 1
            if job_id is not None:
                self.answered[number] = job_id
                self.last_answer = max(self.last_answer, sent_at)

    def runs(self) -> Counter[int]:
        """How often each job's handler ran."""
        text = self._notes.read_text() if self._notes.exists() else ""
        return Counter(int(line) for line in text.split())

    def settle(self, row: Row) -> None:
        """Wait until all is done that was promised, and say what was not, or was done twice."""
        deadline = time.monotonic() + SETTLE
        while self._in_flight and time.monotonic() < deadline:
            time.sleep(0.05)
        while (left := self._unfinished()) and time.monotonic() < deadline:
            time.sleep(0.2)
        runs = self.runs()
        # Of those that nobody was promised, each may be there or not: its answer was lost.
        numbers = [number for number in runs if number >= self._first]
        row.answered, row.refused = len(self.answered), self.pushed - len(self.answered)
        row.done = sum(runs[number] > 0 for number in self.answered)
        row.twice = sum(runs[number] > 1 for number in numbers)
        row.lost = len(left)
        if left:
            states = Counter(Job.objects.filter(pk__in=list(left)[:500]).values_list("state", "attempt"))
            row.wrong.append(f"{len(left)} jobs were promised and are not completed: {dict(states)}")
        if row.twice:
            row.wrong.append(f"{row.twice} jobs ran more than once")
        while (missed := set(self.answered.values()) - self.streamed - left) and time.monotonic() < deadline:
            time.sleep(0.2)
        if missed:
            row.wrong.append(f"a stream missed the end of {len(missed)} jobs")

    def _unfinished(self) -> set[str]:
        ids = list(self.answered.values())
        done: set[str] = set()
        for start in range(0, len(ids), 500):
            part = Job.objects.filter(pk__in=ids[start : start + 500], state=State.COMPLETED)
            done.update(map(str, part.values_list("pk", flat=True)))
        return set(ids) - done


def event_of(text: str) -> tuple[str, str] | None:
    """Type and job of an event in a frame's data."""
    found = json.loads(text)
    return (found["type"], found["subject"]) if "subject" in found else None
