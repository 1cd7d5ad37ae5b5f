"""Run handlers: synchronous ones in threads, asynchronous ones on one event loop, inline ones in a row.

Every runner reports to the pool what ended, and gets from it what to run next, if that is of its kind. `execute` calls
one handler inside its middleware chain, and in its transaction if it has one, and makes its end an outcome. `tidy`
cleans up the database connections that a handler leaves behind in its thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import ctypes
import decimal
import inspect
import logging
import os
import queue
import sqlite3
import sys
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from types import FrameType
from typing import Any, Protocol, TypeAlias, TypeVar

from asgiref.sync import async_to_sync, sync_to_async
from django.core.cache import caches
from django.db import Error, connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created
from django.dispatch import receiver
from django.urls import set_urlconf
from django.utils import timezone, translation

from django_ojs import output
from django_ojs.client.context import JobContext, log_fields
from django_ojs.client.directives import Directive, Fail, StepBoundary, Suspended
from django_ojs.client.options import decode_arguments
from django_ojs.client.running import running
from django_ojs.conf import ojs_settings, use_site_prefix
from django_ojs.database import close_if_cut
from django_ojs.guard import (
    Interrupted,
    described,
    get_logger,
    log_fault,
    may_fail,
    release_logging_locks,
    tolerated,
)
from django_ojs.jobs import progress
from django_ojs.jobs.finish import Ack, Failure, ack, is_repeated
from django_ojs.middleware import arun_execution_chain, dotted_name, run_execution_chain
from django_ojs.rules import errorobjects, redaction
from django_ojs.telemetry import reporting, tracing
from django_ojs.worker import runs
from django_ojs.worker.loans import Loan, RunContext, wait_for
from django_ojs.worker.runs import Acknowledged, Completed, Forgotten, Interruption, JobRun, RunOutcome, last_progress

logger = get_logger("django_ojs.jobs")

LONG = 1.0  #: seconds after which a transaction is too long for SQLite, which has one writer at a time


T = TypeVar("T")


class Runner(Protocol):
    """Runs a batch of jobs of one kind, which takes one slot."""

    def start(self, batch: list[JobRun]) -> None: ...

    def close(self) -> None: ...

    def is_whole(self) -> bool:
        """Whether every thread that the runner counts on is alive."""

    def replace_dead(self) -> list[LostRuns]:
        """Put a thread in the place of each that has died, and return what those had in hand."""


#: Reports to the pool that handlers ended, and returns the runner's next batch.
Done: TypeAlias = Callable[[Runner, Sequence[tuple[JobRun, RunOutcome]]], "list[JobRun] | None"]
#: What a thread that died had in hand, and what it died of.
LostRuns: TypeAlias = tuple[list[JobRun], BaseException | None]


class ThreadRunner:
    """Threads that are made as they are needed and then kept. How many run at once is the pool's business."""

    name = "handler"

    def __init__(self, done: Done) -> None:
        self._done = done
        self._lock = threading.Lock()
        self._waiting: deque[list[JobRun] | Loan] = deque()
        self._calls: queue.SimpleQueue[bool] = queue.SimpleQueue()  #: one for each batch that waits; False: end
        self._idle = 0
        self._short = 0  #: batches for which no thread could be made
        self._made = 0
        self._threads: dict[threading.Thread, _Hand] = {}
        self._lent = 0
        self._borrowers: deque[Loan] = deque()  #: those for which `ASYNC_CONNECTIONS` leaves no thread yet

    def start(self, batch: list[JobRun] | Loan) -> None:
        with self._lock:
            if self._idle:
                self._idle -= 1
            else:
                self._make_thread()
            self._waiting.append(batch)
        self._calls.put(True)

    def lend(self, loan: Loan) -> None:
        """Let a thread serve an asynchronous run, as soon as fewer than `ASYNC_CONNECTIONS` do."""
        most = ojs_settings.ASYNC_CONNECTIONS
        with self._lock:
            if most is not None and self._lent >= max(1, most):
                self._borrowers.append(loan)
                return
            self._lent += 1
        try:
            self.start(loan)
        except BaseException:
            with self._lock:
                self._lent -= 1
            raise

    def close(self) -> None:
        """Let the idle threads end. One that is stuck in a handler ends with the process."""
        for _ in range(len(self._threads)):
            self._calls.put(False)

    def is_whole(self) -> bool:
        return all(thread.is_alive() for thread in list(self._threads))

    def replace_dead(self) -> list[LostRuns]:
        if self.is_whole():
            return []
        lost: list[LostRuns] = []
        loans: list[tuple[Loan, BaseException | None]] = []
        with self._lock:
            for thread, hand in list(self._threads.items()):
                if thread.is_alive():
                    continue
                del self._threads[thread]
                if self._waiting and self._waiting[0] is hand.batch:
                    del self._waiting[0]
                if isinstance(hand.batch, Loan):
                    loans.append((hand.batch, hand.error))
                    lost.append(([], hand.error))
                    continue
                lost.append((hand.batch, hand.error))
                if not hand.batch:  # it was counted on for the next batch
                    self._make_thread()
            for _ in range(len(self._waiting) - self._calls.qsize()):  # it may have died of a call
                self._calls.put(True)
        for loan, error in loans:
            loan.fail(RuntimeError(f"The thread of this run's queries has died: {error!r:.200}"))
            if (following := self._given_back()) is not None:
                self.start(following)
        return lost

    def _make_thread(self) -> None:
        hand = _Hand()
        name = f"ojs-{self.name}-{self._made + 1}"
        thread = threading.Thread(target=self._work, args=(hand,), name=name, daemon=True)
        try:
            thread.start()
        except RuntimeError:  # the system has no more threads for this process
            if not self._threads:
                raise
            self._short += 1  # the next that is free takes the batch
            logger.warning("No thread can be made for another handler: it waits for one of %d.", len(self._threads))
            return
        self._made += 1
        self._threads[thread] = hand

    def _work(self, hand: _Hand) -> None:
        _used.database = False
        try:
            clean = _clean_context()
            while self._calls.get():
                following: list[JobRun] | Loan | None = self._take(hand)
                while following is not None:
                    hand.batch = following
                    if isinstance(following, Loan):
                        following.serve()
                        following = self._given_back()
                    else:
                        following = self._done(self, _run_all(following, clean))
                with self._lock:
                    if not hand.batch:
                        continue
                    hand.batch = []
                    if self._short:
                        self._short -= 1
                    else:
                        self._idle += 1
            with self._lock:
                del self._threads[threading.current_thread()]
        except BaseException as error:  # noqa: BLE001 - `replace_dead` tells of it
            hand.error = error
        finally:
            may_fail("Closing the connections of a thread", connections.close_all)

    def _given_back(self) -> Loan | None:
        """A thread no longer serves an asynchronous run: who is to have it next, of those that wait."""
        with self._lock:
            if self._borrowers:
                return self._borrowers.popleft()
            self._lent -= 1
            return None

    def _take(self, hand: _Hand) -> list[JobRun] | Loan | None:
        """Take the batch that has waited longest; None where another thread has it already.

        A stray exception, which a library of the site's raises in this thread too late, may strike between any two
        steps: a batch is always in the line or in a hand.
        """
        with self._lock:
            if not self._waiting:
                return None
            hand.batch = self._waiting[0]
            del self._waiting[0]
            return hand.batch


class _Hand:
    """What a thread has in hand, and what it died of."""

    def __init__(self) -> None:
        self.batch: list[JobRun] | Loan = []
        self.error: BaseException | None = None


class InlineRunner(ThreadRunner):
    """Runs trivial handlers one after the other in one thread, without a slot for each.

    Their database connections are checked between batches only, and a handler that takes long keeps the others of its
    batch waiting: with `inline=True` the author of a handler promises that it is quick.
    """

    name = "inline"


def _clean_context() -> contextvars.Context:
    """The context that every run of a thread gets a copy of: what a run sets there, no other sees.

    It is empty but for the prefix of the site's URLs and its caches, which are kept from run to run, as a thread of a
    server keeps them.
    """
    clean = contextvars.Context()
    clean.run(use_site_prefix)
    with contextlib.suppress(Exception):  # one that cannot be made is an error of the handler that uses it
        clean.run(caches.all)
    return clean


def in_clean_context(function: Callable[[], T]) -> T:
    """What the function returns, called as a run is that begins in this thread, for callers other than a runner: what
    it sets in context variables ends with it, and the language, the time zone and the URLconf are the site's."""

    def call() -> T:
        translation.deactivate()
        timezone.deactivate()
        set_urlconf(None)
        use_site_prefix()
        decimal.setcontext(decimal.DefaultContext.copy())
        return function()

    return contextvars.copy_context().run(call)


def _run_all(batch: Sequence[JobRun], clean: contextvars.Context) -> list[tuple[JobRun, RunOutcome]]:
    """Run these one after the other. The connections are checked once between two handlers."""
    spans = may_fail("Looking for OpenTelemetry", tracing.spans_in_use)
    return [(run, clean.copy().run(_run_in_thread, run, spans, looked=index > 0)) for index, run in enumerate(batch)]


def _run_in_thread(run: JobRun, spans: Any, *, looked: bool = False) -> RunOutcome:
    """The outcome of a run in this thread, whatever happens around its handler.

    `looked`: the look at the connections was just now. `spans` as `tracing.spans_in_use()` returns it.
    """
    try:
        outcome = _run_interruptibly(run, spans, looked=looked)
    except BaseException as error:  # noqa: BLE001 - the last resort: nothing may end the thread before the report
        run.leave()
        outcome = _after_fault(run, error)
    run.outcome = outcome
    _tell_end(run, outcome)  # unless it was told inside
    return outcome


def _after_fault(run: JobRun, error: BaseException) -> RunOutcome:
    """The outcome where our own code failed: the one that was decided, else a failure that says so."""
    log_fault(f"What surrounds the handler of {run.definition.type} {run.id}", error)
    return run.outcome or runs.of_fault(described(error))


def _run_interruptibly(run: JobRun, spans: Any, *, looked: bool) -> RunOutcome:
    """Run the handler between two looks at the connections, and take an interruption wherever it strikes.

    An asynchronous exception is raised a few instructions after it was asked for: maybe behind the handler,
    in code of ours. After `leave()` none is asked for any more, and one at most ever is.
    """
    thread_id = threading.get_ident()
    try:
        if not looked:
            tidy()
        try:
            run.enter(lambda: _raise_in(thread_id))
            outcome = _execute(run) if spans is None else _traced(run, spans)
        finally:
            run.leave()
        if run.interruption is not None:
            _take_back(thread_id)
    except Interrupted:
        run.leave()
        outcome = run.outcome or run.interrupted(Interruption.TIMEOUT)
    run.outcome = outcome
    if run.interruption is None:
        tidy(run.context)
    else:
        release_logging_locks()
        may_fail("Closing the connections of a handler", drop_all)  # it may have been struck in the middle of a query
    return outcome


def _raise_in(thread_id: int) -> None:
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread_id), ctypes.py_object(Interrupted))


def _take_back(thread_id: int) -> None:
    """Cancel an exception that was asked for and has not been raised yet."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread_id), None)


class LoopRunner:
    """One event loop; every run is a task of it, so that handlers do not see each other's context variables.

    A run that queries a database borrows one of the `threads` of the synchronous handlers until it has ended, so a slot
    takes one thread at most and one connection to each database, whatever its handler is.
    """

    _thread: threading.Thread

    def __init__(self, done: Done, threads: ThreadRunner) -> None:
        self._done, self._borrowed = done, threads
        self._lock = threading.Lock()
        self._closing = False
        self._make_loop()

    def start(self, batch: list[JobRun]) -> None:
        with self._lock:
            if self._thread.ident is None:
                try:
                    self._thread.start()
                except RuntimeError:  # the system has no more threads: the next try needs another one
                    self._thread = self._make_thread()
                    raise
            waiting = bool(self._arrived)
            self._arrived += batch
            if not waiting:  # else the loop has been called and has not come to it yet
                # One that died a moment ago may be closed: `replace_dead` finds the batch.
                with contextlib.suppress(RuntimeError):
                    self._loop.call_soon_threadsafe(self._spawn_arrived, context=contextvars.Context())

    def unblock(self, run: JobRun) -> None:
        """Interrupt the code of this run if that is what keeps the loop busy right now."""
        thread_id = self._thread.ident
        frame = sys._current_frames().get(thread_id) if thread_id is not None else None
        while frame is not None and thread_id is not None:
            if (handle := _handle_of(frame)) is not None:
                if _run_of(handle) is run:
                    _raise_in(thread_id)
                return
            frame = frame.f_back

    def close(self) -> None:
        """End the loop, and what still runs on it; waits up to a second."""
        self._closing = True
        if self._thread.ident is None:
            self._loop.close()
            return
        with contextlib.suppress(RuntimeError):  # it has died
            self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(1.0)

    def is_whole(self) -> bool:
        return self._closing or self._thread.ident is None or self._thread.is_alive()

    def replace_dead(self) -> list[LostRuns]:
        if self.is_whole():
            return []
        with self._lock:
            lost: list[LostRuns] = [([run], self._error) for run in (*self._tasks.values(), *self._arrived)]
            lost = lost or [([], self._error)]
            self._make_loop()
        return lost

    def _make_loop(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._tasks: dict[asyncio.Task[None], JobRun] = {}
        self._contexts: dict[asyncio.Task[None], contextvars.Context] = {}
        self._arrived: list[JobRun] = []
        self._error: BaseException | None = None
        self._thread = self._make_thread()

    def _make_thread(self) -> threading.Thread:
        return threading.Thread(target=self._serve, name="ojs-loop", daemon=True)

    def _serve(self) -> None:
        try:
            asyncio.set_event_loop(self._loop)
            while not self._closing:
                # A handler may stop the loop, too.
                try:
                    self._loop.run_forever()
                except Interrupted:  # for a coroutine that has ended just before
                    pass
                except (SystemExit, KeyboardInterrupt, GeneratorExit) as error:  # asyncio lets these through
                    may_fail("Looking for the run that has ended a loop", self._blame, error)
                release_logging_locks()
            left = list(self._tasks)
            for task in left:
                task.cancel()
            self._loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.close()
        except BaseException as error:  # noqa: BLE001 - `replace_dead` tells of it
            self._error = error
            for task in asyncio.all_tasks(self._loop):  # now, and not in whatever thread collects the garbage
                context = self._contexts.get(task) or contextvars.Context()  # where what it has set can be put back
                may_fail("Ending a coroutine", context.run, task.get_coro().close)
            may_fail("Closing an event loop", self._loop.close)

    def _blame(self, error: BaseException) -> None:
        """Fail the run of which a task or a callback has raised this, unless another task of the run receives it."""
        place = error.__traceback__
        while place is not None and (handle := _handle_of(place.tb_frame)) is None:
            place = place.tb_next
        if place is None or handle is None:
            log_fault("Something on the loop of asynchronous handlers", error)
            return
        run, task = _run_of(handle), getattr(handle._callback, "__self__", None)  # type: ignore[attr-defined]
        if run is not None and task in self._tasks:  # it has been reported
            return

        def fail() -> None:
            received = isinstance(task, asyncio.Future) and not task._log_traceback
            if not received and (run is None or not run.end_with(error)):
                log_fault("What a handler has left on the loop", error)
            if isinstance(task, asyncio.Future):
                task.exception()  # it is told of

        # Behind the callbacks of the task, which were called a moment ago: a gather or a TaskGroup looks at its end.
        self._loop.call_soon(fail, context=contextvars.Context())

    def _spawn_arrived(self) -> None:
        with self._lock:
            batch, self._arrived = self._arrived, []
        self._spawn(batch)

    def _spawn(self, batch: Sequence[JobRun]) -> None:
        for run in batch:
            # A context of its own: that of the run before, whose task calls this, has what that set.
            context = contextvars.Context()
            context.run(use_site_prefix)
            task = self._loop.create_task(self._perform(run), context=context)
            self._tasks[task], self._contexts[task] = run, context
            task.add_done_callback(self._tasks.pop)
            task.add_done_callback(self._contexts.pop)

    async def _perform(self, run: JobRun) -> None:
        task = asyncio.current_task()
        assert task is not None

        def stop() -> None:
            self._loop.call_soon_threadsafe(task.cancel)

        context = RunContext(run, self._borrowed.lend, tidy)
        try:
            run.enter(stop)
            outcome = await aexecute(run)
        except asyncio.CancelledError:
            outcome = run.outcome or run.interrupted(Interruption.SHUTDOWN)
        except BaseException as error:  # noqa: BLE001 - the last resort: nothing may end the task before the report
            outcome = _after_fault(run, error)
        tidied = context.leave()
        try:
            if tidied is not None and self._error is None:
                await wait_for(tidied)
        finally:
            run.leave()
        if self._error is not None:  # it ends with its loop, which has died: `replace_dead` returns it
            return
        if run.interruption is not None:
            release_logging_locks()
        run.outcome = outcome
        may_fail("Closing the caches of a run", caches.close_all)  # they are of its context
        following = self._done(self, [(run, outcome)])
        if following is not None:
            self._spawn(following)


def _handle_of(frame: FrameType) -> asyncio.Handle | None:
    """The step of a task, or the callback, that an event loop runs in this frame; None: it is another frame."""
    return frame.f_locals.get("self") if frame.f_code is asyncio.Handle._run.__code__ else None


def _run_of(handle: asyncio.Handle) -> JobRun | None:
    """Whose task or callback this is."""
    return RunContext.of(handle._context)  # type: ignore[attr-defined]


def execute(run: JobRun) -> RunOutcome:
    """The outcome of a synchronous handler, run in this thread, in a span of its own where spans are made."""
    spans = tracing.spans_in_use()
    return _execute(run) if spans is None else _traced(run, spans)


def _traced(run: JobRun, spans: Any) -> RunOutcome:
    """The outcome of a synchronous handler, run in a span of its own."""
    with tolerated("The span of a run", partial(spans.executing, run.context)) as span:
        outcome = run.outcome = _execute(run)
        if span is not None:
            may_fail("The end of a span", _conclude, run, spans, span)
    return outcome


async def aexecute(run: JobRun) -> RunOutcome:
    """The outcome of an asynchronous handler, run on this loop."""
    if (spans := may_fail("Looking for OpenTelemetry", tracing.spans_in_use)) is None:
        return await _aexecute(run)
    with tolerated("The span of a run", partial(spans.executing, run.context)) as span:
        outcome = run.outcome = await _aexecute(run)
        if span is not None:
            may_fail("The end of a span", _conclude, run, spans, span)
    return outcome


def _conclude(run: JobRun, spans: Any, span: Any) -> None:
    """Tell the span of the outcome, with the error as `REDACT` lets it be seen."""
    error = None
    if isinstance(run.outcome, runs.Failed):
        error = redaction.part("errors", run.outcome.error, run.context.type, run.context.meta)
    spans.conclude(span, error, run.attempt)


def _execute(run: JobRun) -> RunOutcome:
    """The outcome of a synchronous handler."""
    outcome = _decide(run, lambda: run_execution_chain(run.context, partial(_call, run)))
    _tell_end(run, outcome)
    return outcome


def _tell_end(run: JobRun, outcome: RunOutcome) -> None:
    """Let the log line of a run whose handler has returned say what has become of the run."""
    tell, run.context.tell_end = run.context.tell_end, None
    if tell is not None:
        may_fail("The log line of a run", tell, outcome)


def _decide(run: JobRun, chain: Callable[[], Any]) -> RunOutcome:
    """The outcome of the handler, which `chain` calls inside the execution chain: in its transaction if it has one.

    Every exception ends here, SystemExit, KeyboardInterrupt and GeneratorExit included.
    """
    try:
        if run.definition.transactional is not None:
            run.outcome = outcome = _inside_transaction(run, run.definition.transactional, chain)
            return outcome
        value = chain()
    except BaseException as exc:  # noqa: BLE001 - nothing a handler raises may end the worker
        return _judge(run, exc)
    return _of_value(run, value)


async def _aexecute(run: JobRun) -> RunOutcome:
    outcome = await _adecide(run)
    _tell_end(run, outcome)
    return outcome


async def _adecide(run: JobRun) -> RunOutcome:
    if run.definition.transactional is not None:
        return await _adecide_in_transaction(run)
    try:
        value = await arun_execution_chain(run.context, partial(_acall, run))
    except BaseException as exc:
        if isinstance(exc, GeneratorExit) and not _is_on_loop():  # it ends with its loop, which has died
            raise
        return _judge(run, exc)
    return _of_value(run, value)


async def _adecide_in_transaction(run: JobRun) -> RunOutcome:
    """The outcome of a handler whose transaction is open in the thread of its queries, and which runs on this loop.

    The thread decides, and a cancellation reaches the handler only: whether the transaction is committed is known when
    the thread has ended it.
    """
    inside: list[asyncio.Task[Any]] = []

    async def chain() -> Any:
        task = asyncio.current_task()
        assert task is not None
        inside.append(task)
        try:
            return await arun_execution_chain(run.context, partial(_acall, run))
        finally:
            inside.clear()

    deciding = asyncio.ensure_future(sync_to_async(_decide)(run, async_to_sync(chain)))
    while not deciding.done():
        try:
            await asyncio.wait({deciding})
        except asyncio.CancelledError:  # before the handler has begun, `_called` sees that it is to stop
            for task in inside:
                task.cancel()
    return deciding.result()


async def _acall(run: JobRun) -> Any:
    process, token = os.getpid(), running.set(run.context)
    try:
        if run.definition.durable is not None:
            await sync_to_async(run.begin_steps)()
            _begin_branches(run)
        return await _called(run)
    finally:
        _end_copy(process)
        running.reset(token)
        await _settle(run)


def _begin_branches(run: JobRun) -> None:
    if (branches := run.context.branches) is not None:
        branches.begin()


async def _settle(run: JobRun) -> None:
    """Wait for the steps that an asynchronous handler is still doing, which has ended."""
    if (branches := run.context.branches) is not None and _is_on_loop():
        await branches.settle(waits=run.forced_at is None)


def _is_on_loop() -> bool:
    """Whether an event loop runs in this thread."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _call(run: JobRun) -> Any:
    process, token = os.getpid(), running.set(run.context)
    try:
        if run.definition.durable is not None:
            run.begin_steps()
        value = _called(run)
        return _awaited(run, value) if inspect.isawaitable(value) else value
    finally:
        _end_copy(process)
        running.reset(token)


def _awaited(run: JobRun, value: Awaitable[Any]) -> Any:
    """What an awaitable gives that a plain function has returned, such as a decorator around an `async def`.

    It runs on a loop of its own, and its queries run in this thread, which waits: an interruption has to end it there.
    """

    async def inside() -> Any:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None

        def stop() -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: the awaitable has ended
                loop.call_soon_threadsafe(task.cancel)

        run.stop_by(stop)
        _begin_branches(run)
        try:
            return await value
        finally:
            if not run.undoes:  # else this was the handler alone, and the steps come now
                await _settle(run)

    run.context.may_do_steps_at_once()
    return async_to_sync(inside)()


def _end_copy(process: int) -> None:
    """A handler that forked returns twice: its copy ends here, or two workers would have the same jobs."""
    if os.getpid() == process:
        return
    code = 1
    try:
        error = sys.exception()
        given = error.code if isinstance(error, SystemExit) else error and 1
        code = given if isinstance(given, int) else int(given is not None)
        if error is not None and not isinstance(error, SystemExit):
            output.say_error(error)
        output.flush()
    finally:  # whatever the texts of an exception raise
        os._exit(code)


def _called(run: JobRun) -> Any:
    """What the handler returns; for an asynchronous one, its coroutine."""
    if run.forced_at is not None:  # what surrounds a handler may have kept the interruption
        raise Interrupted
    if run.undoes:
        undo = run.context.aundo if run.definition.is_async else run.context.undo
        return undo(partial(_handled if run.definition.is_async else _finished, run))
    return _handled(run)


def _finished(run: JobRun) -> Any:
    """What the handler returns, which is no awaitable any more."""
    value = _handled(run)
    return _awaited(run, value) if inspect.isawaitable(value) else value


def _handled(run: JobRun) -> Any:
    args, kwargs = decode_arguments(run.arguments)
    if (typed := run.definition.typed) is not None:
        if run.definition.is_async and typed.reads_database:
            return _called_with_instances(run, args, kwargs)
        args, kwargs = typed.decode(args, kwargs)
    return _entered(run, args, kwargs)


def _entered(run: JobRun, args: list[Any], kwargs: dict[str, Any]) -> Any:
    if run.definition.takes_context:
        args.insert(0, run.context)
    try:
        return run.definition.handler(*args, **kwargs)
    except TypeError as error:
        if error.__traceback__ is not None and error.__traceback__.tb_next is None:  # it was not entered
            taken = f"{run.definition.type}{inspect.signature(run.definition.handler)}"
            error.add_note(f"The job was enqueued by other code, such as an earlier release: its handler is {taken}.")
        raise


async def _called_with_instances(run: JobRun, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """What an asynchronous handler returns for which a thread reads the instances among its arguments."""
    args, kwargs = await sync_to_async(run.definition.typed.decode)(args, kwargs)
    return await _entered(run, args, kwargs)


def _of_value(run: JobRun, value: Any) -> RunOutcome:
    if (kept := run.context.ended_by) is not None:
        may_fail("The log line of an exception that was kept", _log, logging.WARNING, run.context,
                "%s %s has returned after a step had ended its run, and what it did since may be done again: %s",
                f"let its except clauses raise {type(kept).__name__} again")  # fmt: skip
        return _judge(run, kept)
    if lost := [end for end in run.context.endings if not isinstance(end, StepBoundary)]:
        may_fail("The log line of an exception that was lost", _log, logging.WARNING, run.context,
                "%s %s has returned although a step was to end its run, and does not wait for it: %s",
                f"a branch of it has raised {type(lost[0]).__name__}, which it has to raise, too")  # fmt: skip
    # A handler that saw that it is to stop and returned has not done its work; one that never looked has.
    void = run.interruption in (runs.Interruption.CANCELLED, runs.Interruption.LOST)
    if run.interruption is not None and (void or run.context.saw_cancel):
        return run.interrupted(run.interruption)
    run.outcome = outcome = runs.of_result(run.context.result if value is None else value)
    if isinstance(outcome, runs.Failed):
        may_fail("The log line of a failure", _log_refused, run.context, outcome)
    return outcome


def _log_refused(context: JobContext, outcome: runs.Failed) -> None:
    hidden = redaction.hides("errors", context.type, context.meta)
    _log_failure(context, outcome, redaction.MASK if hidden else outcome.error["message"])


def _judge(run: JobRun, exc: BaseException) -> RunOutcome:
    """The outcome of an exception, which is decided before it is reported. An interruption of ours counts as such only
    if it is what came out."""
    if run.ended_with is not None and isinstance(exc, asyncio.CancelledError):
        exc = run.ended_with
    if (end := may_fail("Reading an exception", _end_behind, run, exc)) is not None:
        exc = end
    if may_fail("Reading an exception", runs.is_boundary, exc):
        run.outcome = run.stopped_between_steps()
        return run.outcome
    if run.interruption is not None and may_fail("Reading an exception", runs.is_interruption, exc):
        run.outcome = run.interrupted(run.interruption)
        may_fail("The log line of a run that was stopped", _log, logging.WARNING, run.context,
                "%s %s was stopped: %s", run.interruption.value)  # fmt: skip
        return run.outcome
    if may_fail("Reading an exception", runs.is_cut_off, exc):
        return _cut_off(run, exc)
    may_fail("Trimming a traceback", _without_our_frames, exc)
    if isinstance(end := may_fail("Reading an exception", runs.meant, exc), Suspended):
        exc = may_fail("Looking for what a run waits for", run.context.of_all_branches, end) or end
    run.outcome = outcome = runs.of_exception(exc)
    may_fail("What follows on a failure", run.raised, exc)
    means = may_fail("Reading an exception", runs.meant, exc)
    if not isinstance(means, Directive | Suspended):
        may_fail("Asking retry_if", _ask_handler, run, exc, outcome)
    if isinstance(means, Fail) or not isinstance(means, Directive | Suspended):
        may_fail("Telling of a failure", _report_failure, run, exc, outcome)
    return outcome


def _end_behind(run: JobRun, exc: BaseException) -> BaseException | None:
    """What a step had raised to end this run, where the handler has made another exception of it; None: it has not, or
    it has decided what becomes of the job."""
    ends = {id(end): end for end in run.context.endings}
    if not ends or isinstance(runs.meant(exc), Directive) or any(id(leaf) in ends for leaf in errorobjects.leaves(exc)):
        return None
    kept, behind, pending = run.context.ended_by, set[int](), [exc]
    while kept is None and pending:
        one = pending.pop()
        kept = ends.get(id(one))
        if id(one) not in behind:
            behind.add(id(one))
            pending += [earlier for earlier in (one.__cause__, one.__context__) if earlier is not None]
    if isinstance(kept, Suspended) and kept is not run.context.ended_by and _is_forced(run, exc):
        return None  # the wait of one branch: the others went on, and were to end
    if kept is not None:
        what, shown = _loggable(run.context, exc)
        _log(logging.WARNING, run.context,
             "%s %s has raised another exception after a step had ended its run, which ends as the step said: %s",
             f"let its except clauses raise {type(kept).__name__} again, in place of {what}", shown)  # fmt: skip
    return kept


def _is_forced(run: JobRun, exc: BaseException) -> bool:
    """Whether this came of an interruption that a handler cannot decline."""
    return run.forced_at is not None and runs.is_interruption(exc)


def _ask_handler(run: JobRun, exc: BaseException, outcome: RunOutcome) -> None:
    """Let `retry_if` of the handler say that another attempt is of no use."""
    asked = run.definition.retry_if
    if asked is not None and isinstance(outcome, runs.Failed) and not asked(exc):
        outcome.error["retryable"] = False


def _cut_off(run: JobRun, exc: BaseException, *, began: bool = True) -> RunOutcome:
    """The outcome where the database went away under the handler: no failure of its own, so no one is told of one. If
    that was while its transaction was committed, the server knows whether it was."""
    what = may_fail("Redacting an error", _said, run.context, exc) or type(exc).__name__
    run.outcome = outcome = runs.CutOff(what, began)
    may_fail("The log line of a run that was cut off", _log, logging.WARNING, run.context,
            "%s %s was cut off, because the database went away, and runs again: %s", what)  # fmt: skip
    return outcome


def _report_failure(run: JobRun, exc: BaseException, outcome: RunOutcome) -> None:
    """Tell the span, the site's reporters and the log of an exception: each whatever the others do."""
    context = run.context
    what, shown = may_fail("Redacting an error", _loggable, context, exc) or (type(exc).__name__, None)
    if shown is not None:
        may_fail("Recording an exception in a span", tracing.record, shown)
        reports = may_fail("Reporting an exception", reporting.report, shown, context, run.definition.handler)
        if reports and isinstance(outcome, runs.Failed):
            outcome.error.setdefault("details", {})["reports"] = reports
    _log_failure(context, outcome, what, shown)


def _log_failure(context: JobContext, outcome: RunOutcome, what: str, exc: BaseException | None = None) -> None:
    """One line, at ERROR, for a failure that ends the job. Of one that will be repeated `job.retrying` is the line,
    with its error and the time of the next attempt; the traceback is here, at DEBUG, and in the job's error."""
    repeated = may_fail("Asking whether an attempt is repeated", _is_repeated, context, outcome)
    _log(logging.DEBUG if repeated else logging.ERROR, context, "%s %s failed: %s", what, exc)


def _is_repeated(context: JobContext, outcome: RunOutcome) -> bool:
    failure = runs.report(outcome, context.id, "", context.attempt)
    return isinstance(failure, Failure) and is_repeated(context.whole_row, failure)


def _said(context: JobContext, exc: BaseException) -> str:
    """The type of an exception, and its message unless `REDACT` hides it."""
    kind = type(exc).__name__
    if redaction.hides("errors", context.type, context.meta):
        return kind
    return f"{kind}: {errorobjects.cut(errorobjects.text_of(exc), errorobjects.MAX_MESSAGE)}"


def _loggable(context: JobContext, exc: BaseException) -> tuple[str, BaseException | None]:
    """The text and the exception to log: `REDACT` may hide either, as a traceback ends with the message."""
    kind = type(exc).__name__
    if redaction.hides("errors", context.type, context.meta):
        return kind, None
    hidden = redaction.hides("backtraces", context.type, context.meta)
    return (_said(context, exc), None) if hidden else (kind, exc)


class NotCompleted(BaseException):
    """Rolls back what a handler wrote that did not complete. Not an Exception, so that no handler catches it."""

    def __init__(self, outcome: RunOutcome) -> None:
        super().__init__()
        self.outcome = outcome


def _inside_transaction(run: JobRun, using: str, chain: Callable[[], Any]) -> RunOutcome:
    """The outcome of the handler, run by `chain` with the execution chain around it in one transaction with the ACK.

    The ACK is the last statement, so the job's row is not locked while the handler works. If the job is no longer this
    run's, everything is rolled back. Exceptions of the handler pass through, after the rollback.
    """
    started, opened = time.monotonic(), False
    try:
        with transaction.atomic(using=using, durable=True):
            opened = True
            outcome = _of_value(run, chain())
            if not isinstance(outcome, Completed):
                raise NotCompleted(outcome)
            _acknowledge(run, outcome, using)
    except NotCompleted as other:
        return other.outcome
    except Error as error:
        if opened or not runs.is_cut_off(error):
            raise
        return _cut_off(run, error, began=False)
    finally:
        may_fail("The look at a long transaction", _warn_if_long, run, using, time.monotonic() - started)
    return Acknowledged()


def _acknowledge(run: JobRun, outcome: Completed, using: str) -> None:
    claim = Ack(run.id, outcome.result, run.context.row["worker_id"], run.attempt)
    if reports := last_progress([run.context]):
        progress.report(reports, using=using)
    (answer,) = ack([claim], columns=("id",), using=using)
    if isinstance(answer, Exception):
        logger.info("Job %s was no longer ours when it ended, so nothing of it stays: %s", run.id, answer)
        raise NotCompleted(Forgotten())


def _warn_if_long(run: JobRun, using: str, seconds: float) -> None:
    if seconds > LONG and connections[using].vendor == "sqlite":
        logger.warning(
            "%s %s held the only write lock of SQLite for %.1f s: no other process could write, enqueue or claim. "
            "Leave out transactional=True or use PostgreSQL.",
            run.definition.type, run.id, seconds, extra=log_fields(run.context.row),
        )  # fmt: skip


def _log(level: int, context: JobContext, message: str, what: str, exc: BaseException | None = None) -> None:
    logger.log(level, message, context.type, context.id, what, exc_info=exc, extra=log_fields(context.row))


def _without_our_frames(exc: BaseException) -> BaseException:
    """The exception with a traceback that begins at the site's own code: a reader looks for the handler."""
    frame = exc.__traceback__
    while frame is not None and frame.tb_frame.f_globals.get("__name__", "").split(".")[0] in _OURS:
        frame = frame.tb_next
    return exc if frame is None else exc.with_traceback(frame)


_OURS = frozenset({"django_ojs", "asgiref"})


#: Per thread that runs handlers: whether it has opened a connection to a database.
_used = threading.local()
#: The names of the `execute_wrappers` of connections that other threads of this process have opened: no handler has put
#: them there, but a receiver of the site's, for every connection.
_wrappers_of_site: set[str] = set()


@receiver(connection_created)
def _mark_used(connection: BaseDatabaseWrapper, **kwargs: Any) -> None:
    if hasattr(_used, "database"):
        _used.database = True
    else:
        _wrappers_of_site.update(map(dotted_name, connection.execute_wrappers))


def tidy(context: JobContext | None = None) -> None:
    """End transactions and close dead connections that a handler left behind in this thread.

    An open transaction is rolled back and logged as an error; the outcome of the handler counts nevertheless,
    or a job that did its work would do it again. What the handler has put into `execute_wrappers` goes, too. A
    runner's thread that has opened no connection is left alone. Where this fails, what runs next in the thread gets
    new connections.
    """
    if not getattr(_used, "database", True):
        return
    try:
        _tidy(context)
    except BaseException as error:  # noqa: BLE001
        log_fault("Looking after the connections of this thread", error)
        may_fail("Closing the connections of this thread", drop_all)


def _tidy(context: JobContext | None) -> None:
    for connection in connections.all(initialized_only=True):
        connection.queries_log.clear()
        left = hasattr(_used, "database") and _take_wrappers(connection)
        if connection.connection is None:
            continue
        state = _state(connection) or ("wrapped" if left else "")
        if state == "open transaction":
            _log_open(context, connection.alias)
        if state:
            drop(connection)
        else:
            _close(connection.close_if_unusable_or_obsolete)
            _close(partial(close_if_cut, connection))


def _take_wrappers(connection: BaseDatabaseWrapper) -> bool:
    """Take the `execute_wrappers` of a handler away; whether there were any. If it was the site that put one there when
    the connection was made, it does so again when it is made anew."""
    of_site = [each for each in connection.execute_wrappers if dotted_name(each) in _wrappers_of_site]
    left = len(of_site) < len(connection.execute_wrappers)
    connection.execute_wrappers[:] = of_site
    return left


def drop(connection: BaseDatabaseWrapper) -> None:
    """Close a connection whatever it is in the middle of. Django would keep one that is inside `atomic`, also one that
    was closed there, and lets no durable block begin while it remembers another one, until it connects again."""
    connection.in_atomic_block = connection.closed_in_transaction = False
    connection.atomic_blocks.clear()
    _close(connection.close)


def drop_all() -> None:
    """`drop` all connections of this thread."""
    for connection in connections.all(initialized_only=True):
        drop(connection)


def leave_pools() -> None:
    """Close all connections, which must not go through a fork, and let each thread of this process connect for itself.

    A pool (`OPTIONS["pool"]`) is for the many short requests of a server. The threads of a worker live long: those
    that claim, write and send heartbeats would hold most of a pool for ever, and handlers would wait for the rest.
    """
    for connection in connections.all():
        connection.close()
        if hasattr(connection, "close_pool"):
            connection.close_pool()
        config = connection.settings_dict
        if config.get("OPTIONS", {}).pop("pool", None):
            config.update(CONN_MAX_AGE=None, CONN_HEALTH_CHECKS=True)  # kept, as a pool would have kept it


def _close(close: Callable[[], None]) -> None:
    """mysqlclient refuses to close what the handler has closed; Django has dropped the connection by then."""
    try:
        close()
    except Error as error:
        logger.debug("A connection could not be closed: %s", error)


def _state(connection: BaseDatabaseWrapper) -> str:
    """What is wrong with this connection, if anything: as Django sees it, and as its driver does."""
    if connection.in_atomic_block or not connection.autocommit:
        return "open transaction"
    raw: Any = connection.connection
    if connection.vendor == "postgresql":
        if raw.closed:
            return "closed"
        return "" if raw.info.transaction_status == 0 else "open transaction"
    if connection.vendor == "sqlite":
        try:
            return "open transaction" if raw.in_transaction else ""
        except sqlite3.ProgrammingError:  # the handler closed it behind Django's back
            return "closed"
    return ""


def _log_open(context: JobContext | None, alias: str) -> None:
    handler = f"{context.type} {context.id}" if context else "A handler"
    extra = log_fields(context.row) if context else {}
    logger.error("%s left a transaction open on the database %r: it was rolled back.", handler, alias, extra=extra)
