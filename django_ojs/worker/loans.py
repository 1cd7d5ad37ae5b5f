"""Lend each asynchronous run a thread for its queries, and so database connections that are the run's own.

asgiref makes the thread-sensitive calls of a context (the queries of the asynchronous ORM, `sync_to_async`) in one
thread, one after the other. Each run has a context of its own, a `RunContext`, and a `Loan` is its executor.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from asgiref.sync import SyncToAsync, ThreadSensitiveContext

from django_ojs.guard import Interrupted, for_future

if TYPE_CHECKING:
    from django_ojs.client.context import JobContext
    from django_ojs.worker.runs import JobRun

Call: TypeAlias = tuple["Future[Any]", Callable[[], Any]]


class RunContext(ThreadSensitiveContext):
    """Tells asgiref and the event loop which run a task or callback belongs to: these have copies of the run's context.

    A run that makes no thread-sensitive call pays for no more than this object.
    """

    def __init__(self, run: JobRun, lend: Callable[[Loan], None], tidy: Callable[[JobContext], None]) -> None:
        """`lend` lets a thread call `Loan.serve`, `tidy` looks after the connections of a thread."""
        super().__init__()
        self.run = run
        self._lend, self._tidy = lend, tidy
        self._loan: Loan | None = None
        self._over = False
        SyncToAsync.thread_sensitive_context.set(self)

    def __bool__(self) -> bool:
        """asgiref asks whether there is a context, and then for its executor, which has to be there from now on."""
        if self._loan is None:
            self._loan = Loan(self._lend, partial(self._tidy, self.run.context), over=self._over)
            SyncToAsync.context_to_thread_executor[self] = self._loan
        return True

    @staticmethod
    def of(context: contextvars.Context) -> JobRun | None:
        """The run of this context; None: it is that of no run."""
        found = context.get(SyncToAsync.thread_sensitive_context)
        return found.run if isinstance(found, RunContext) else None

    def leave(self) -> Future[None] | None:
        """The run has ended. Returns what its slot has to `wait_for`, if there is anything."""
        self._over = True
        return None if self._loan is None else self._loan.leave()


class Loan(Executor):
    """Makes the thread-sensitive calls of one run in a thread, which it borrows with the first of them and gives back
    when the run has ended. A run that makes none borrows none.

    A task that outlives its run may make more: for these it borrows a thread again.
    """

    def __init__(self, lend: Callable[[Loan], None], tidy: Callable[[], None], *, over: bool = False) -> None:
        self._lend, self._tidy = lend, tidy
        self._changed = threading.Condition(threading.Lock())
        self._calls: deque[Call] = deque()
        self._asked = self._serving = False
        self._over = over  #: the run has ended: no more calls than those that are there

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """What `fn` returns, as a future. Raises RuntimeError where the system has no thread for it."""
        future: Future[Any] = Future()
        with self._changed:
            self._calls.append((future, partial(fn, *args, **kwargs)))
            self._changed.notify()
            asked, self._asked = self._asked, True
        if not asked:
            try:
                self._lend(self)
            except BaseException as error:
                self.fail(error)
                raise
        return future

    def serve(self) -> None:
        """Make the calls in this thread until the run has ended and none is left."""
        with self._changed:
            self._serving = True
        self._tidy()
        while (call := self._next()) is not None:
            _make(*call)
            del call
        self._tidy()

    def leave(self) -> Future[None] | None:
        """The run has ended: its thread is given back when it has made the calls and looked after its connections.

        Returns the future of that; None: no thread has begun.
        """
        with self._changed:
            self._over = True
            if not self._serving:
                return None
            tidied: Future[None] = Future()
            self._calls.append((tidied, partial(contextvars.copy_context().run, self._tidy)))
            self._changed.notify()
        return tidied

    def fail(self, error: BaseException) -> None:
        """Its thread has died, or could not be made: the calls that wait end with this error."""
        with self._changed:
            calls, self._calls = self._calls, deque()
            self._asked = self._serving = False
        for future, _ in calls:
            if future.set_running_or_notify_cancel():
                future.set_exception(error)

    def _next(self) -> Call | None:
        with self._changed:
            while not self._calls and not self._over:
                self._changed.wait()
            if self._calls:
                return self._calls.popleft()
            self._asked = self._serving = False
            return None


async def wait_for(done: Future[None]) -> None:
    """Wait for that, and let no interruption end the wait: a thread still works for the run."""
    waiting = asyncio.wrap_future(done)
    while not waiting.done():
        with contextlib.suppress(asyncio.CancelledError, Interrupted):
            await asyncio.wait({waiting})


def _make(future: Future[Any], call: Callable[[], Any]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = call()
    except BaseException as error:  # noqa: BLE001 - whoever awaits the call gets it
        future.set_exception(for_future(error))
    else:
        future.set_result(result)
