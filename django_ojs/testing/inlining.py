"""The mode in which jobs run as soon as they are enqueued."""

from __future__ import annotations

import threading
import uuid
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

from django_ojs.operations import due, outbox
from django_ojs.operations.cronruns import HELD_UNTIL
from django_ojs.operations.push import Outcome, Pushed
from django_ojs.operations.workflow import View
from django_ojs.operations.workflow import info as read_workflow
from django_ojs.registry import registry
from django_ojs.states import State
from django_ojs.testing.engine import moment
from django_ojs.testing.running import ENDLESS, WAITING, RunningJobs
from django_ojs.worker.directives import Discard

T = TypeVar("T")


class _Thread(threading.local):
    """What a thread is in the middle of."""

    def __init__(self) -> None:
        self.depth = 0
        self.busy = False
        self.waiting: deque[uuid.UUID] = deque()


class InlineJobs(RunningJobs):
    """Jobs that run at once, before the call that enqueues them returns, in its thread and its transaction.

    Delays and the pauses between attempts are skipped, each on a clock that shows the right time. A job that ends
    in the dead letter queue raises what its last attempt raised, unless `raise_errors` is False.
    """

    def __init__(self, *, raise_errors: bool = True) -> None:
        super().__init__()
        self.raise_errors = raise_errors
        self._thread = _Thread()

    def on_push(self, verb: Callable[..., list[Outcome]], *args: Any, **kwargs: Any) -> list[Outcome]:
        whole = not kwargs.get("workflows")  # else it is a part of a workflow's change
        return self._act(lambda: RunningJobs.on_push(self, verb, *args, **kwargs), whole=whole)

    def on_create_workflow(self, verb: Callable[..., View], *args: Any, **kwargs: Any) -> View:
        view = self._act(lambda: RunningJobs.on_create_workflow(self, verb, *args, **kwargs))
        return read_workflow(view.workflow.pk)

    def on_trigger(self, verb: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return self._act(lambda: verb(*args, **kwargs))

    def on_put(self, verb: Callable[..., list[Pushed]], *args: Any, **kwargs: Any) -> list[Pushed]:
        """Into the outbox, and out of it at once."""
        outcomes = self._act(lambda: _relayed(RunningJobs.on_put(self, verb, *args, **kwargs)))
        return [done._replace(status="created") for done in outcomes]

    def on_put_workflow(self, verb: Callable[..., View], *args: Any, **kwargs: Any) -> View:
        view = self._act(lambda: _relayed(RunningJobs.on_create_workflow(self, verb, *args, **kwargs)))
        return read_workflow(view.workflow.pk)

    def on_together(self, verb: Callable[..., T], act: Callable[[], T]) -> T:
        return self._act(lambda: verb(act))

    def _act(self, act: Callable[[], T], *, whole: bool = True) -> T:
        """`act()`, and then run what it enqueued, unless it is a part of something larger."""
        mine = self._thread
        mine.depth += 1
        seen = len(self._entries)
        try:
            result = act()
        except BaseException:
            if mine.depth == 1 and not mine.busy:
                mine.waiting.clear()
            raise
        finally:
            mine.depth -= 1
        known = set(mine.waiting)
        mine.waiting += [job.id for job, _ in self._entries[seen:] if job.id not in known]
        if whole and not mine.depth and not mine.busy:
            try:
                self._run_all(mine)
            finally:
                for job, _ in self._entries[seen:]:
                    job.row.update(self._engine.look(job.id) or {})
        return result

    def _run_all(self, mine: _Thread) -> None:
        errors: list[BaseException] = []
        mine.busy = True
        try:
            while mine.waiting:
                error = self._finish(mine.waiting.popleft())
                if error is not None:
                    errors.append(error)
        finally:
            mine.busy = False
            mine.waiting.clear()
        if errors and self.raise_errors:
            raise errors[0]

    def _finish(self, job_id: uuid.UUID) -> BaseException | None:
        """Run a job until it has ended; the last exception if that is the dead letter queue."""
        for _ in range(ENDLESS):
            row = self._engine.look(job_id)
            if row is None or row["state"] not in WAITING or registry.get(row["type"]) is None:
                return None
            if row["due_at"] is not None and row["due_at"] >= HELD_UNTIL:
                return None
            with moment(row["due_at"]):
                due.settle(ids=[job_id], using=self._engine.using)
                claimed = self._engine.claim([row["queue"]], [job_id])
                if claimed is None:
                    return None
                done = self._perform(claimed)
            if done.state == State.DISCARDED:
                return None if isinstance(done.exception, Discard) else done.exception
        raise RuntimeError(f"The job {job_id} did not end after {ENDLESS} runs.")


def _relayed(answer: T) -> T:
    while outbox.relay():
        pass
    return answer
