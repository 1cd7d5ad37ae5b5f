"""Let an asynchronous handler do several steps at once: a branch of it that comes to a sleep or a wait lets the others
go on before it ends the run.

A branch is a task that the handler has started. Without this the first that waits would cut off those that could go on,
and the job would wait for that one alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from typing import Any

from django_ojs.client.directives import StepBoundary, Suspended
from django_ojs.client.running import running
from django_ojs.guard import Interrupted, logger

#: Seconds that a branch which waits leaves to one that does something else than a step, such as a query.
LONGEST_BETWEEN_STEPS = 5.0
#: Turns of the loop in which a branch goes on whose step or whose own branches have ended.
TURNS = 10

#: Where asyncio lets a task wait for others, and the functions there that do so.
_PLACES = {asyncio.tasks.sleep.__code__.co_filename, asyncio.TaskGroup.__aexit__.__code__.co_filename}
_FOR_OTHERS = {"_wait", "__aexit__", "_aexit", "_wait_for_one"}
_IF_INNERMOST = {*_FOR_OTHERS, "wait_for"}  # which on Python 3.12 awaits a coroutine in its own task
_Gathering: Any = getattr(asyncio.tasks, "_GatheringFuture", ())

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
        self._handler: asyncio.Task[Any] | None = None  # the one that runs the handler itself
        self._tasks: dict[asyncio.Task[Any], None] = {}  # those that it, or one of them, has started
        self._resting: dict[asyncio.Task[Any] | None, tuple[Ended, ...]] = {}
        self._watch: asyncio.Task[None] | None = None  # it ends when no branch goes on
        self._changed: Ended | None = None

    def begin(self) -> None:
        """Know from now on the tasks that the handler starts, which is about to be called on this loop."""
        self._loop = loop = asyncio.get_running_loop()
        self._handler = asyncio.current_task()
        if not isinstance(make := loop.get_task_factory(), _KnownTasks):
            loop.set_task_factory(_KnownTasks(make or _task))

    def add(self, task: asyncio.Task[Any]) -> None:
        """Know this task of the handler until it ends."""
        self._tasks[task] = None
        task.add_done_callback(self._remove)

    def _remove(self, task: asyncio.Task[Any]) -> None:
        self._tasks.pop(task, None)
        if isinstance(getattr(task, "_exception", None), (Suspended, Interrupted)):
            task.exception()  # asked for, or asyncio logs an error where the handler has awaited another branch only
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
            elif active := self._active():
                done, _ = await asyncio.wait({self._changed}, timeout=LONGEST_BETWEEN_STEPS)
                if not done and begun == self._begun:
                    logger.warning(
                        "%s waits, although a branch of its handler (%s) has been doing something else than a step for "
                        "more than %g s. The next run begins that again: do it in a step.",
                        label, ", ".join(sorted({*map(self._name, active)})), LONGEST_BETWEEN_STEPS,
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
        return next((one for one in self._of_loop(self._running, loop) if one not in around), None)

    @staticmethod
    def _of_loop(found: Iterable[Ended], loop: asyncio.AbstractEventLoop) -> list[Ended]:
        """Those that this loop can wait for: a thread of the handler's may do steps on a loop of its own."""
        return [one for one in [*found] if one.get_loop() is loop]

    def _active(self) -> list[asyncio.Task[Any]]:
        """The branches, the handler's own code among them, that go on, and do not only wait for others."""
        known = [*self._tasks] if self._handler is None else [self._handler, *self._tasks]
        return [task for task in known if not (task.done() or task in self._resting or self._waits(task))]

    def _waits(self, task: asyncio.Task[Any]) -> bool:
        """Whether a task does nothing but wait for others: for one of them, in a gather or a TaskGroup, or by
        `asyncio.wait` or `as_completed`."""
        waiter = getattr(task, "_fut_waiter", None)
        if waiter in self._tasks or isinstance(waiter, _Gathering):
            return True
        place: Any = task.get_coro()
        while (code := getattr(place, "cr_code", None)) is not None:
            place = place.cr_await
            names = _FOR_OTHERS if hasattr(place, "cr_code") else _IF_INNERMOST
            if code.co_name in names and code.co_filename in _PLACES:
                return True
        return False

    def _name(self, task: asyncio.Task[Any]) -> str:
        """What a task runs."""
        return "its own code" if task is self._handler else str(getattr(task.get_coro(), "__qualname__", task))

    async def settle(self, *, waits: bool = True) -> None:
        """Let no step begin any more, and wait for those that are being done. Otherwise what they did would not be
        recorded, and would be done again."""
        loop = asyncio.get_running_loop()
        try:
            if waits and (beginning := self._of_loop(self._beginning, loop)):
                await asyncio.wait(beginning)
        finally:  # the worker may end the wait
            self.is_over = True
            if self._watch is not None:
                self._watch.cancel()
        while waits and (going_on := self._of_loop(self._running, loop)):
            await asyncio.wait(going_on)


def _task(loop: asyncio.AbstractEventLoop, coroutine: Any, **kwargs: Any) -> asyncio.Task[Any]:
    return asyncio.Task(coroutine, loop=loop, **kwargs)


class _KnownTasks:
    """Makes the tasks of a loop, as what has made them before does, and lets the run know them in which they begin."""

    def __init__(self, make: Callable[..., Any]) -> None:
        self._make = make

    def __call__(self, loop: asyncio.AbstractEventLoop, coroutine: Any, **kwargs: Any) -> Any:
        task = self._make(loop, coroutine, **kwargs)
        given: contextvars.Context | None = kwargs.get("context")
        run = running.get() if given is None else given.get(running)
        if run is not None and (branches := run.branches) is not None:
            branches.add(task)
        return task
