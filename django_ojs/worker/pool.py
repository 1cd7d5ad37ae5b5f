"""The slots of a worker: which jobs run here, which wait for a slot, and room for how many more."""

from __future__ import annotations

import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from django_ojs.models import JobRow
from django_ojs.registry import registry
from django_ojs.worker.context import Link
from django_ojs.worker.outcomes import Interruption, Outcome, Snoozed, of_interruption
from django_ojs.worker.pace import Pace
from django_ojs.worker.run import Run
from django_ojs.worker.runners import InlineRunner, LoopRunner, Runner, ThreadRunner

#: What the pool does with outcomes: the writer takes them.
Report = Callable[[Sequence[tuple[Run, Outcome]]], None]

AGAIN_MS = 1000
INLINE_BATCH = 64  #: inline handlers that run one after the other before their outcomes are reported


class Pool:
    """`concurrency` slots, and before them a line of jobs that were claimed ahead.

    A slot is free again when its handler has ended, not when it should have. A runner whose handler ends
    takes the next job of the line itself, so that no thread has to be woken between two short jobs. A run
    counts as `active`, and its reservation is renewed, until `forget()`: when its outcome is written.
    """

    def __init__(self, concurrency: int, report: Report, on_room: Callable[[], None]) -> None:
        self.concurrency = concurrency
        self.pace = Pace(concurrency)
        self._report, self._on_room = report, on_room
        self._changed = threading.Condition()
        self.cautious = False  #: one job at a time, none ahead: the last process died of one
        self._line: deque[Run] = deque()
        self._running: set[Run] = set()
        self._active: set[Run] = set()
        self._busy = 0
        self._low = 0  #: the line is short when it has fewer than this
        self._closed = False  #: given up: outcomes no longer count
        self._threads, self._inline = ThreadRunner(self._ended), InlineRunner(self._ended)
        self._loop = LoopRunner(self._ended)

    def free(self) -> int:
        """How many more jobs could start at once."""
        if self.cautious:  # not before the last outcome is written: whoever dies holds one job then
            return 0 if self._active else 1
        return max(0, self._slots - self._busy - len(self._line))

    def ahead(self) -> int:
        """How many more jobs may be claimed to wait in the line, of the types that `pace` knows to be short."""
        wanted = 0 if self.cautious else self.pace.ahead()
        self._low = wanted // 2
        waiting = len(self._line)
        return wanted - waiting if waiting <= self._low else 0

    def offer(self, rows: Iterable[JobRow], link: Link) -> None:
        """Take claimed jobs: into free slots, and the rest into the line."""
        claimed = time.monotonic()
        runs = [Run(row, _definition(row), claimed, link) for row in rows]
        with self._changed:
            self._active.update(runs)
            running = {run.id for run in self._running}
            self._line.extend(run for run in runs if run.id not in running)
            # A retry whose earlier run here was told to end and has not yet: later, as if not claimed.
            self._report([(run, Snoozed(AGAIN_MS)) for run in runs if run.id in running])
            started = self._take_all()
        for runner, batch in started:
            runner.start(batch)

    def active(self) -> list[Run]:
        """The runs whose outcome is not written yet."""
        with self._changed:
            return list(self._active)

    def running(self) -> list[Run]:
        """The runs whose handler has begun and not ended yet."""
        with self._changed:
            return list(self._running)

    def stale(self, age: float) -> list[Run]:
        """Take those out of the line that have waited for so many seconds: another worker may be free."""
        edge = time.monotonic() - age
        with self._changed:
            old = [run for run in self._line if run.claimed < edge]
            self._take_out(old)
        return old

    def give_up(self, run: Run) -> bool:
        """Report a run as what it was interrupted for though its handler goes on, and count it no longer.

        Its slot stays taken. False if it has been given up before or has ended meanwhile.
        """
        with self._changed:
            if run.released or run not in self._running or run.interruption is None:
                return False
            run.released = True
            self._report([(run, of_interruption(run.interruption, run.timeout_ms))])
        return True

    def unblock(self, run: Run) -> None:
        """Interrupt a coroutine that keeps its loop from running, and with it from being cancelled."""
        self._loop.unblock(run)

    def interrupt(self, ids: Iterable[uuid.UUID], reason: Interruption) -> None:
        """Stop these jobs: coroutines are cancelled, threads only asked (`context.is_cancelled`)."""
        wanted = set(ids)
        for run in self.active():
            if run.id in wanted:
                run.interrupt(reason, force=run.definition.is_async)

    def interrupt_all(self, reason: Interruption) -> None:
        for run in self.running():
            run.interrupt(reason, force=True)

    def forget(self, runs: Iterable[Run]) -> None:
        """The outcomes of these runs are written."""
        with self._changed:
            self._active.difference_update(runs)
            self._changed.notify_all()
        if self.cautious:
            self._on_room()

    def wait_until_idle(self, timeout: float, is_hurried: Callable[[], bool] = lambda: False) -> bool:
        """Wait until every outcome is written; False if that takes longer than `timeout` seconds."""
        deadline = time.monotonic() + timeout
        with self._changed:
            while self._active:
                left = deadline - time.monotonic()
                if left <= 0 or is_hurried():
                    return False
                self._changed.wait(min(left, 0.1))
        return True

    def empty_line(self) -> list[Run]:
        """Take everything out of the line that has not started."""
        with self._changed:
            waiting = list(self._line)
            self._take_out(waiting)
        return waiting

    def release(self) -> list[Run]:
        """Give up the runs whose handler has not ended: whatever they still do no longer counts."""
        waiting = self.empty_line()
        with self._changed:
            given_up = [run for run in self._running if not run.released]
            for run in given_up:
                run.released = True
            self._active.difference_update(given_up)
        return waiting + given_up

    def close(self) -> None:
        for runner in (self._threads, self._loop, self._inline):
            runner.close()

    def _take_out(self, runs: Sequence[Run]) -> None:
        gone = set(runs)
        if gone:
            self._line = deque(run for run in self._line if run not in gone)
            self._active.difference_update(gone)
            self._changed.notify_all()

    @property
    def _slots(self) -> int:
        return 1 if self.cautious else self.concurrency

    def _take_all(self) -> list[tuple[Runner, list[Run]]]:
        """As much of the line as there are slots for, with the runner of each."""
        taken = []
        while (following := self._take()) is not None:
            taken.append(following)
        return taken

    def _take(self) -> tuple[Runner, list[Run]] | None:
        """What is to run next: the first job of the line, or the inline ones at its head together."""
        if not self._line or self._busy >= self._slots:
            return None
        first = self._line.popleft()
        batch = [first]
        if first.definition.inline and not self.cautious:
            while self._line and self._line[0].definition.inline and len(batch) < INLINE_BATCH:
                batch.append(self._line.popleft())
        self._busy += 1
        self._running.update(batch)
        return self._runner(first), batch

    def _runner(self, run: Run) -> Runner:
        if run.definition.inline:
            return self._inline
        return self._loop if run.definition.is_async else self._threads

    def _ended(self, runner: Runner, done: Sequence[tuple[Run, Outcome]]) -> list[Run] | None:
        """A runner's handlers ended: report them, and give it the next batch if that is of its kind."""
        with self._changed:
            self._busy -= 1
            self._running.difference_update(run for run, _ in done)
            # Inside the lock, so that a drain that closes the writer comes before or after.
            self._report([(run, outcome) for run, outcome in done if not run.released])
            following = self._take()
            wanted = len(self._line) <= self._low or (following is None and self._busy + 1 == self.concurrency)
        self.pace.note(done)
        if wanted:
            self._on_room()
        if following is None:
            return None
        if following[0] is runner:
            return following[1]
        following[0].start(following[1])
        return None

    def __repr__(self) -> str:
        return f"<Pool {self._busy}/{self.concurrency}, {len(self._line)} waiting>"


def _definition(row: JobRow) -> Any:
    definition = registry.get(row["type"])
    assert definition is not None, f"claimed a {row['type']} without a handler"
    return definition


def ids_of(runs: Iterable[Run]) -> list[Any]:
    """The jobs that are still ours to renew: not those that the server took away."""
    gone = (Interruption.CANCELLED, Interruption.LOST)
    return [run.id for run in runs if run.interruption not in gone]
