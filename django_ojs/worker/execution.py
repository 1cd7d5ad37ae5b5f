"""Run handlers: synchronous ones in threads, asynchronous ones on one event loop, inline ones in a row.

Every runner reports to the pool what ended, and gets from it what to run next, if that is of its kind. `execute` calls
one handler inside its middleware chain, and in its transaction if it has one, and makes its end an outcome. `tidy`
cleans up the database connections that a handler leaves behind in its thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import logging
import os
import queue
import sqlite3
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol, TypeAlias

from asgiref.sync import sync_to_async
from django.db import Error, connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created
from django.dispatch import receiver

from django_ojs.client.context import Directive, Interrupted, JobContext, log_fields
from django_ojs.client.options import decode_arguments
from django_ojs.jobs import progress
from django_ojs.jobs.finish import Ack, ack
from django_ojs.middleware import arun_execution_chain, run_execution_chain
from django_ojs.rules import redaction
from django_ojs.telemetry import reporting, tracing
from django_ojs.worker import runs
from django_ojs.worker.runs import Acknowledged, Completed, Forgotten, Interruption, Outcome, Run, last_progress

logger = logging.getLogger("django_ojs.jobs")

CONNECTION_CHECK = 1.0  #: seconds between two looks at the connections that asynchronous handlers use
LONG = 1.0  #: seconds after which a transaction is too long for SQLite, which has one writer at a time


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
        _used.database = False
        try:
            while (batch := self._inbox.get()) is not None:
                following: list[Run] | None = batch
                while following is not None:
                    following = self._done(self, _run_all(following))
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


def _run_all(batch: Sequence[Run]) -> list[tuple[Run, Outcome]]:
    """Run these one after the other. The look behind a handler is the one before the next."""
    spans = tracing.active()
    return [(run, _run_in_thread(run, spans, looked=index > 0)) for index, run in enumerate(batch)]


def _run_in_thread(run: Run, spans: Any, *, looked: bool = False) -> Outcome:
    """Run the handler between two looks at the connections, and take an interruption wherever it strikes.

    `looked`: the first look was just now. `spans` as `tracing.active()` returns it.

    An asynchronous exception is raised a few instructions after it was asked for: maybe behind the handler,
    in code of ours. After `leave()` none is asked for any more, and one at most ever is.
    """
    thread_id = threading.get_ident()
    outcome: Outcome | None = None
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
        outcome = outcome or runs.of_interruption(run.interruption or Interruption.TIMEOUT, run.timeout_ms)
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
            except Interrupted:  # for a coroutine that has ended just before
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
            outcome = runs.of_interruption(run.interruption or Interruption.SHUTDOWN, run.timeout_ms)
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


def execute(run: Run) -> Outcome:
    """The outcome of a synchronous handler, run in this thread, in a span of its own where spans are made."""
    spans = tracing.active()
    return _execute(run) if spans is None else _traced(run, spans)


def _traced(run: Run, spans: Any) -> Outcome:
    """The outcome of a synchronous handler, run in a span of its own."""
    with spans.executing(run.context) as span:
        outcome = _execute(run)
        spans.conclude(span, _error(run, outcome), run.attempt)
    return outcome


async def aexecute(run: Run) -> Outcome:
    """The outcome of an asynchronous handler, run on this loop."""
    if (spans := tracing.active()) is None:
        return await _aexecute(run)
    with spans.executing(run.context) as span:
        outcome = await _aexecute(run)
        spans.conclude(span, _error(run, outcome), run.attempt)
    return outcome


def _error(run: Run, outcome: Outcome) -> dict[str, Any] | None:
    """The error that the span shows, redacted."""
    if not isinstance(outcome, runs.Failed):
        return None
    error: dict[str, Any] = redaction.part("errors", outcome.error, run.context.type, run.context.meta)
    return error


def _execute(run: Run) -> Outcome:
    """The outcome. Every exception ends here, SystemExit, KeyboardInterrupt and GeneratorExit included."""
    try:
        if run.definition.transactional is not None:
            return _inside_transaction(run, run.definition.transactional)
        value = run_execution_chain(run.context, partial(_call, run))
    except BaseException as exc:  # noqa: BLE001 - nothing a handler raises may end the worker
        return _judge(run, exc)
    return _of_value(run, value)


async def _aexecute(run: Run) -> Outcome:
    async def handler() -> Any:
        process = os.getpid()
        try:
            return await _called(run)
        finally:
            _end_copy(process)

    try:
        value = await arun_execution_chain(run.context, handler)
    except BaseException as exc:  # noqa: BLE001 - nothing a handler raises may end the worker
        return _judge(run, exc)
    return _of_value(run, value)


def _call(run: Run) -> Any:
    process = os.getpid()
    try:
        return _called(run)
    finally:
        _end_copy(process)


def _end_copy(process: int) -> None:
    """A handler that forked returns twice: its copy ends here, or two workers would have the same jobs."""
    if os.getpid() == process:
        return
    error = sys.exception()
    code = error.code if isinstance(error, SystemExit) else error and 1
    if error is not None and not isinstance(error, SystemExit):
        traceback.print_exception(error)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()
    os._exit(code if isinstance(code, int) else int(code is not None))


def _called(run: Run) -> Any:
    """What the handler returns; for an asynchronous one, its coroutine."""
    args, kwargs = decode_arguments(run.context.args)
    if run.definition.takes_context:
        args.insert(0, run.context)
    return run.definition.handler(*args, **kwargs)


def _of_value(run: Run, value: Any) -> Outcome:
    # A handler that saw that it is to stop and returned has not done its work; one that never looked has.
    void = run.interruption in (runs.Interruption.CANCELLED, runs.Interruption.LOST)
    if run.interruption is not None and (void or run.context.saw_cancel):
        return runs.of_interruption(run.interruption, run.timeout_ms)
    outcome = runs.of_result(run.context.result if value is None else value)
    if isinstance(outcome, runs.Failed):
        hidden = redaction.hides("errors", run.context.type, run.context.meta)
        _log(logging.ERROR, run.context, "%s %s failed: %s", redaction.MASK if hidden else outcome.error["message"])
    return outcome


def _judge(run: Run, exc: BaseException) -> Outcome:
    """The outcome of an exception. An interruption of ours counts as such only if it is what came out."""
    if run.interruption is not None and isinstance(exc, Interrupted | asyncio.CancelledError):
        _log(logging.WARNING, run.context, "%s %s was stopped: %s", run.interruption.value)
        return runs.of_interruption(run.interruption, run.timeout_ms)
    exc = _without_our_frames(exc)
    run.raised(exc)
    if not isinstance(exc, Directive):
        what, shown = _loggable(run.context, exc)
        if shown is not None:
            tracing.record(shown)
        reports = [] if shown is None else reporting.report(exc, run.context, run.definition.handler)
        _log(logging.ERROR, run.context, "%s %s failed: %s", what, shown)
        return runs.of_exception(exc, reports)
    return runs.of_exception(exc)


def _loggable(context: JobContext, exc: BaseException) -> tuple[str, BaseException | None]:
    """The text and the exception to log: `REDACT` may hide either, as a traceback ends with the message."""
    kind = type(exc).__name__
    if redaction.hides("errors", context.type, context.meta):
        return kind, None
    return (f"{kind}: {exc}", None) if redaction.hides("backtraces", context.type, context.meta) else (kind, exc)


class NotCompleted(BaseException):
    """Rolls back what a handler wrote that did not complete. Not an Exception, so that no handler catches it."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__()
        self.outcome = outcome


def _inside_transaction(run: Run, using: str) -> Outcome:
    """The outcome of the handler, run with the execution chain around it in one transaction with the job's ACK.

    The ACK is the last statement, so the job's row is not locked while the handler works. If the job is no longer this
    run's, everything is rolled back. Exceptions of the handler pass through, after the rollback.
    """
    started = time.monotonic()
    try:
        with transaction.atomic(using=using, durable=True):
            outcome = _of_value(run, run_execution_chain(run.context, partial(_call, run)))
            if not isinstance(outcome, Completed):
                raise NotCompleted(outcome)
            _acknowledge(run, outcome, using)
    except NotCompleted as other:
        return other.outcome
    finally:
        _warn_if_long(run, using, time.monotonic() - started)
    return Acknowledged()


def _acknowledge(run: Run, outcome: Completed, using: str) -> None:
    claim = Ack(run.id, outcome.result, run.context.row["worker_id"], run.attempt)
    if reports := last_progress([run.context]):
        progress.report(reports, using=using)
    (answer,) = ack([claim], columns=("id",), using=using)
    if isinstance(answer, Exception):
        logger.info("Job %s was no longer ours when it ended, so nothing of it stays: %s", run.id, answer)
        raise NotCompleted(Forgotten())


def _warn_if_long(run: Run, using: str, seconds: float) -> None:
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


#: Per thread: whether it has opened a connection to a database, where that is known.
_used = threading.local()


@receiver(connection_created)
def _note_use(**kwargs: Any) -> None:
    _used.database = True


def tidy(context: JobContext | None = None) -> None:
    """End transactions and close dead connections that a handler left behind in this thread.

    An open transaction is rolled back and logged as an error; the outcome of the handler counts nevertheless,
    or a job that did its work would do it again. A runner's thread that has opened no connection is left alone.
    """
    if not getattr(_used, "database", True):
        return
    for connection in connections.all(initialized_only=True):
        connection.queries_log.clear()
        if connection.connection is None:
            continue
        state = _state(connection)
        if state == "open transaction":
            _log_open(context, connection.alias)
        if state:
            drop(connection)
        else:
            _close(connection.close_if_unusable_or_obsolete)


def drop(connection: BaseDatabaseWrapper) -> None:
    """Close a connection whatever it is in the middle of; Django would keep one that is inside `atomic`."""
    connection.in_atomic_block = False
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
    handler = f"{context.type} {context.id}" if context else "An asynchronous handler"
    extra = log_fields(context.row) if context else {}
    logger.error("%s left a transaction open on the database %r: it was rolled back.", handler, alias, extra=extra)
