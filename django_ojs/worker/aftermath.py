"""What is to be done about jobs when their outcomes are stored, away from the threads that run and write."""

from __future__ import annotations

import logging
import queue
from collections.abc import Callable, Sequence
from typing import Any

from django_ojs.scheduler.service import Service
from django_ojs.worker.run import Run
from django_ojs.worker.tidying import tidy

logger = logging.getLogger(__name__)

#: What a definition has as `after`: called with runs whose outcomes were stored, or refused.
After = Callable[[Sequence[Run]], None]


class Aftermath(Service):
    """Calls the `after` of definitions that have one. What it raises is logged and changes no job."""

    name = "aftermath"

    def __init__(self) -> None:
        super().__init__()
        self._inbox: queue.SimpleQueue[Sequence[Run] | None] = queue.SimpleQueue()

    def put(self, runs: Sequence[Run]) -> None:
        """Costs nothing where no definition asks for it."""
        wanted = [run for run in runs if run.definition.after is not None]
        if wanted:
            self._inbox.put(wanted)

    def wake(self) -> None:
        self._inbox.put(None)

    def run(self) -> None:
        """Work off what comes until `stop()`, and what had been put before it."""
        while (runs := self._inbox.get()) is not None or not self.stopping.is_set():
            groups: dict[Any, list[Run]] = {}
            for run in runs or ():
                groups.setdefault(run.definition.after, []).append(run)
            for after, group in groups.items():
                _call(after, group)


def _call(after: After, runs: Sequence[Run]) -> None:
    try:
        after(runs)
    except Exception:
        logger.exception("What is to follow on %d jobs failed.", len(runs))
    finally:
        tidy()
