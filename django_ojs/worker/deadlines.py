"""Execution timeouts inside the worker.

The server fails a job at its deadline by itself (jobs 1.8). This thread ends the handler as well, so that
its slot becomes free and no handler goes on working for a job that has been given to somebody else.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from django_ojs.scheduler.service import Service
from django_ojs.worker.outcomes import Interruption
from django_ojs.worker.pool import Pool
from django_ojs.worker.run import Run

TICK = 0.05  #: how late a handler is told, seconds


class Deadlines(Service):
    """Interrupts runs whose execution timeout is over: a coroutine is cancelled, a thread gets `Interrupted`.

    A coroutine that goes on is blocking the loop: after `UNBLOCK` seconds it gets `Interrupted` too. What goes
    on for `STUCK` seconds cannot be ended, as a blocked C call cannot: `on_stuck` is told. Both count from the end of
    the job's grace period.
    """

    name = "deadlines"
    UNBLOCK, STUCK = 1.0, 5.0

    def __init__(
        self, pool: Pool, on_crash: Callable[[str], None] | None = None, on_stuck: Callable[[Run], None] | None = None
    ) -> None:
        super().__init__(on_crash)
        self._pool, self._on_stuck = pool, on_stuck

    def run(self) -> None:
        while not self.stopping.wait(TICK):
            self.run_once(time.monotonic())

    def run_once(self, now: float) -> None:
        for run in self._pool.running():
            if run.deadline <= now:
                run.interrupt(Interruption.TIMEOUT, force=True)
                self._insist(run, now - (run.forced_at or now) - run.grace)

    def _insist(self, run: Run, seconds: float) -> None:
        if seconds >= self.UNBLOCK and run.definition.is_async:
            self._pool.unblock(run)
        if seconds >= self.STUCK and self._on_stuck is not None and self._pool.give_up(run):
            self._on_stuck(run)
