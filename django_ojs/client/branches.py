"""Let an asynchronous handler do several steps at once: a branch of it that comes to a sleep or a wait lets the others
go on before it ends the run.

A branch is a task that the handler has started. Without this the first that waits would cut off those that could go on,
and the job would wait for that one alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
from collections.abc import AsyncIterator, Iterator
from typing import Any

from django_ojs.client.directives import StepBoundary, Suspended
from django_ojs.client.running import running
from django_ojs.guard import logger

#: Seconds that a branch which waits leaves to one that does something else than a step, such as a query.
LONGEST_BETWEEN_STEPS = 5.0
#: Turns of the loop in which a branch goes on whose step or whose own branches have ended.
TURNS = 10

Ended = asyncio.Future[None]

#: The steps inside of which this code is called, the outermost first.
_enclosing: contextvars.ContextVar[tuple[Ended, ...]] = contextvars.ContextVar("ojs_steps", default=())
#: Whether one of them has a time limit. What waits inside does not rest there: that would be cut off by the limit.
limited: contextvars.ContextVar[bool] = contextvars.ContextVar("ojs_limited", default=False)


class Branches:
    """The branches of one run of a handler, and the steps that they are doing."""

    def __init__(self) -> None:
        self.is_over = False  #: the handler has ended: no step begins any more
        self._loop: asyncio.AbstractEventLoop | None = None
        self._running: dict[Ended, None] = {}  # for each step that is being done, the oldest first
        self._beginning: set[Ended] = set()  # of those, for each that is about to wait for something
        self._begun = 0
        self._tasks: dict[asyncio.Task[Any], asyncio.Task[Any] | None] = {}  # each with the one that has started it
        self._resting: dict[asyncio.Task[Any] | None, tuple[Ended, ...]] = {}
        self._watch: asyncio.Task[None] | None = None  # it ends when no branch goes on
        self._changed: Ended | None = None

    def begin(self) -> None:
        """Know from now on the tasks that the handler starts, which is about to be called on this loop."""
        self._loop = asyncio.get_running_loop()
        if self._loop.get_task_factory() is None:
            self._loop.set_task_factory(_known_task)

    def add(self, task: asyncio.Task[Any], parent: asyncio.Task[Any] | None) -> None:
        """Know this task of the handler until it ends."""
        self._tasks[task] = parent
        task.add_done_callback(self._remove)

    def _remove(self, task: asyncio.Task[Any]) -> None:
        self._tasks.pop(task, None)
        self._tell()

    def _tell(self) -> None:
        if self._changed is not None and not self._changed.done():
            self._changed.set_result(None)

    @contextlib.asynccontextmanager
    async def step(self) -> AsyncIterator[None]:
        """A block in which a branch does a step. `Suspended` leaves it when no other branch goes on."""
        try:
            with self._in_flight():
                yield
        except Suspended:
            await self._rest()
            raise

    @contextlib.asynccontextmanager
    async def wait(self) -> AsyncIterator[None]:
        """`step` that records what it waits for, although the handler may have ended meanwhile."""
        try:
            with self._in_flight() as ended:
                self._beginning.add(ended)
                try:
                    yield
                finally:
                    self._beginning.discard(ended)
        except Suspended:
            await self._rest()
            raise

    @contextlib.contextmanager
    def _in_flight(self) -> Iterator[Ended]:
        if self.is_over:
            raise StepBoundary
        ended = asyncio.get_running_loop().create_future()
        self._running[ended] = None
        self._begun += 1
        token = _enclosing.set((*_enclosing.get(), ended))
        try:
            yield ended
        finally:
            _enclosing.reset(token)
            del self._running[ended]
            ended.set_result(None)

    async def _rest(self) -> None:
        """Return when each other branch of the handler has ended or rests, too."""
        run, loop, task, inside = running.get(), asyncio.get_running_loop(), asyncio.current_task(), _enclosing.get()
        if self.is_over or limited.get() or run is None or loop is not self._loop:
            return
        if not self._tasks and not self._running.keys() - {*inside}:  # there is no other
            return
        self._resting[task] = inside
        try:
            if self._watch is None or self._watch.done():
                watching = self._until_all_rest(loop, f"{run.type} {run.id}")
                self._watch = loop.create_task(watching, context=contextvars.Context())
            self._tell()
            await asyncio.wait({self._watch})
        finally:
            self._resting.pop(task, None)

    async def _until_all_rest(self, loop: asyncio.AbstractEventLoop, label: str) -> None:
        turns = TURNS
        while turns:
            begun, self._changed = self._begun, loop.create_future()
            if (step := self._step_in_flight(loop)) is not None:
                await asyncio.wait({step, self._changed}, return_when=asyncio.FIRST_COMPLETED)
            elif self._is_one_active():
                done, _ = await asyncio.wait({self._changed}, timeout=LONGEST_BETWEEN_STEPS)
                if not done and begun == self._begun:
                    logger.warning(
                        "%s waits, although a branch of its handler has been doing something else than a step for more "
                        "than %g s. The next run begins that again: do it in a step.", label, LONGEST_BETWEEN_STEPS,
                    )  # fmt: skip
                    return
            else:  # one whose step has ended just now may be about to do another
                turns -= 1
                await asyncio.sleep(0)
                continue
            turns = TURNS

    def _step_in_flight(self, loop: asyncio.AbstractEventLoop) -> Ended | None:
        """A step that is being done, and not one inside of which a branch rests."""
        around = {ended for inside in self._resting.values() for ended in inside}
        return next((one for one in self._running if one not in around and one.get_loop() is loop), None)

    def _is_one_active(self) -> bool:
        """Whether a branch goes on, and not only waits for branches of its own."""
        parents = {*self._tasks.values()}
        return any(task not in self._resting and task not in parents for task in self._tasks)

    async def settle(self, *, waits: bool = True) -> None:
        """Let no step begin any more, and wait for those that are being done. Otherwise what they did would not be
        recorded, and would be done again."""
        if waits and self._beginning:
            await asyncio.wait(self._beginning)
        self.is_over = True
        if self._watch is not None:
            self._watch.cancel()
        while waits and self._running:
            await asyncio.wait(self._running)


def _known_task(loop: asyncio.AbstractEventLoop, coroutine: Any, **kwargs: Any) -> asyncio.Task[Any]:
    """A task of the loop, which the run knows in which it is started."""
    task: asyncio.Task[Any] = asyncio.Task(coroutine, loop=loop, **kwargs)
    given: contextvars.Context | None = kwargs.get("context")
    run = running.get() if given is None else given.get(running)
    if run is not None and (branches := run.branches) is not None:
        branches.add(task, asyncio.current_task(loop))
    return task
