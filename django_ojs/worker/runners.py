"""Run handlers: synchronous ones in threads, asynchronous ones on one event loop, inline ones in a row.

Every runner reports to the pool what ended, and gets from it what to run next, if that is of its kind.
"""

from __future__ import annotations

import asyncio
import ctypes
import logging
import queue
import threading
from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

from asgiref.sync import sync_to_async
from django.db import connections

from django_ojs.client.context import Interrupted
from django_ojs.worker import outcomes
from django_ojs.worker.connections import drop_all, tidy
from django_ojs.worker.execution import aexecute, execute
from django_ojs.worker.outcomes import Interruption, Outcome
from django_ojs.worker.run import Run

logger = logging.getLogger(__name__)

#: How often the connections that asynchronous handlers use are looked after, seconds.
CONNECTION_CHECK = 1.0


class Runner(Protocol):
    """Runs a batch of jobs of one kind, which takes one slot."""

    def start(self, batch: list[Run]) -> None: ...

    def close(self) -> None: ...


#: Reports to the pool that handlers ended, and returns the runner's next batch.
Done: TypeAlias = Callable[[Runner, Sequence[tuple[Run, Outcome]]], "list[Run] | None"]


class ThreadRunner:
    """Threads that are made as they are needed and then kept. How many run at once is the pool's business."""

    name = "handler"

    def __init__(self, done: Done) -> None:
        self._done = done
        self._inbox: queue.SimpleQueue[list[Run] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._idle = 0
        self._threads = 0

    def start(self, batch: list[Run]) -> None:
        with self._lock:
            if self._idle:
                self._idle -= 1
            else:
                self._threads += 1
                name = f"ojs-{self.name}-{self._threads}"
                threading.Thread(target=self._work, name=name, daemon=True).start()
        self._inbox.put(batch)

    def close(self) -> None:
        """Let the idle threads end. One that is stuck in a handler ends with the process."""
        for _ in range(self._threads):
            self._inbox.put(None)

    def _work(self) -> None:
        try:
            while (batch := self._inbox.get()) is not None:
                following: list[Run] | None = batch
                while following is not None:
                    following = self._done(self, [(run, _run_in_thread(run)) for run in following])
                with self._lock:
                    self._idle += 1
        finally:
            connections.close_all()


class InlineRunner(ThreadRunner):
    """Trivial handlers, many in a row in one thread: no hop between two of them, no slot for each.

    Their connections are looked after between batches only, and one that takes long keeps the others of its
    batch waiting: `inline=True` is a promise of the handler's author.
    """

    name = "inline"


def _run_in_thread(run: Run) -> Outcome:
    """Run the handler between two looks at the connections, and take an interruption wherever it strikes.

    An asynchronous exception is raised a few instructions after it was asked for: maybe behind the handler,
    in code of ours. After `leave()` none is asked for any more, and one at most ever is.
    """
    thread_id = threading.get_ident()
    outcome: Outcome | None = None
    try:
        tidy()
        try:
            run.enter(lambda: _raise_in(thread_id))
            outcome = execute(run)
        finally:
            run.leave()
        if run.interruption is not None:
            _take_back(thread_id)
    except Interrupted:
        run.leave()
        outcome = outcome or outcomes.of_interruption(run.interruption or Interruption.TIMEOUT, run.timeout_ms)
    if run.interruption is None:
        tidy(run.context)
    else:
        drop_all()  # it may have been struck in the middle of a query
    return outcome


def _raise_in(thread_id: int) -> None:
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread_id), ctypes.py_object(Interrupted))


def _take_back(thread_id: int) -> None:
    """Cancel an exception that was asked for and has not been raised yet."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread_id), None)


class LoopRunner:
    """One event loop; every run is a task of it, so that handlers do not see each other's context variables."""

    def __init__(self, done: Done) -> None:
        self._done = done
        self._loop = asyncio.new_event_loop()
        self._tasks: dict[asyncio.Task[None], Run] = {}
        self._used = False
        self._thread = threading.Thread(target=self._serve, name="ojs-loop", daemon=True)
        self._lock = threading.Lock()
        self._arrived: list[Run] = []

    def start(self, batch: list[Run]) -> None:
        with self._lock:
            if self._thread.ident is None:
                self._thread.start()
            waiting = bool(self._arrived)
            self._arrived += batch
        if not waiting:  # else the loop has been called and has not come to it yet
            self._loop.call_soon_threadsafe(self._spawn_arrived)

    def unblock(self, run: Run) -> None:
        """Interrupt the coroutine of this run if it is the one that keeps the loop busy right now."""
        thread_id = self._thread.ident
        task = asyncio.current_task(self._loop) if not self._loop.is_closed() else None
        if task is not None and thread_id is not None and self._tasks.get(task) is run:
            _raise_in(thread_id)

    def close(self) -> None:
        """End the loop, and what still runs on it; waits up to a second."""
        if self._thread.ident is None:
            self._loop.close()
            return
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(1.0)

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        keeper = self._loop.create_task(self._keep_connections())
        while True:
            try:
                self._loop.run_forever()
                break
            except Interrupted:  # meant for a coroutine that has ended just before
                continue
        left = [keeper, *self._tasks]
        for task in left:
            task.cancel()
        self._loop.run_until_complete(
            asyncio.gather(*left, sync_to_async(connections.close_all)(), return_exceptions=True)
        )
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.close()

    def _spawn_arrived(self) -> None:
        with self._lock:
            batch, self._arrived = self._arrived, []
        self._spawn(batch)

    def _spawn(self, batch: Sequence[Run]) -> None:
        self._used = True
        for run in batch:
            task = self._loop.create_task(self._perform(run))
            self._tasks[task] = run
            task.add_done_callback(self._tasks.pop)

    async def _perform(self, run: Run) -> None:
        task = asyncio.current_task()
        assert task is not None

        def stop() -> None:
            self._loop.call_soon_threadsafe(task.cancel)

        try:
            run.enter(stop)
            outcome = await aexecute(run)
        except asyncio.CancelledError:
            outcome = outcomes.of_interruption(run.interruption or Interruption.SHUTDOWN, run.timeout_ms)
        finally:
            run.leave()
        following = self._done(self, [(run, outcome)])
        if following is not None:
            self._spawn(following)

    async def _keep_connections(self) -> None:
        """Asynchronous handlers share the connections of one thread; CONN_MAX_AGE holds there to the second."""
        while True:
            await asyncio.sleep(CONNECTION_CHECK)
            if self._used:
                self._used = bool(self._tasks)
                await sync_to_async(tidy)()
