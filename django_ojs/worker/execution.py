"""Run a handler inside its middleware chain, in its transaction if it has one, and make its end an outcome."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any

from django.db import connections, transaction

from django_ojs.client import arguments
from django_ojs.client.context import Directive, Interrupted, JobContext, log_fields
from django_ojs.jobs import progress
from django_ojs.jobs.finish import Ack, ack
from django_ojs.middleware import arun_execution_chain, run_execution_chain
from django_ojs.rules import redaction
from django_ojs.telemetry import tracing
from django_ojs.worker import outcomes
from django_ojs.worker.outcomes import Acknowledged, Completed, Forgotten, Outcome, last_progress
from django_ojs.worker.run import Run

logger = logging.getLogger("django_ojs.jobs")

LONG = 1.0  #: seconds after which a transaction is too long for SQLite, which has one writer at a time


def execute(run: Run) -> Outcome:
    """The outcome of a synchronous handler, run in this thread, in a span of its own where spans are made."""
    if (spans := tracing.active()) is None:
        return _execute(run)
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
    if not isinstance(outcome, outcomes.Failed):
        return None
    error: dict[str, Any] = redaction.part("errors", outcome.error, run.context.type, run.context.meta)
    return error


def _execute(run: Run) -> Outcome:
    """The outcome. Every exception ends here, SystemExit, KeyboardInterrupt and GeneratorExit included."""
    try:
        if run.definition.transactional is not None:
            return inside_transaction(
                run, lambda: run_execution_chain(run.context, lambda: _call(run)), lambda value: _of_value(run, value)
            )
        value = run_execution_chain(run.context, lambda: _call(run))
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
    args, kwargs = arguments.decode(run.context.args)
    if run.definition.takes_context:
        args.insert(0, run.context)
    return run.definition.handler(*args, **kwargs)


def _of_value(run: Run, value: Any) -> Outcome:
    # A handler that saw that it is to stop and returned has not done its work; one that never looked has.
    void = run.interruption in (outcomes.Interruption.CANCELLED, outcomes.Interruption.LOST)
    if run.interruption is not None and (void or run.context.saw_cancel):
        return outcomes.of_interruption(run.interruption, run.timeout_ms)
    outcome = outcomes.of_result(run.context.result if value is None else value)
    if isinstance(outcome, outcomes.Failed):
        hidden = redaction.hides("errors", run.context.type, run.context.meta)
        _log(logging.ERROR, run.context, "%s %s failed: %s", redaction.MASK if hidden else outcome.error["message"])
    return outcome


def _judge(run: Run, exc: BaseException) -> Outcome:
    """The outcome of an exception. An interruption of ours counts as such only if it is what came out."""
    if run.interruption is not None and isinstance(exc, Interrupted | asyncio.CancelledError):
        _log(logging.WARNING, run.context, "%s %s was stopped: %s", run.interruption.value)
        return outcomes.of_interruption(run.interruption, run.timeout_ms)
    exc = _without_our_frames(exc)
    run.raised(exc)
    if not isinstance(exc, Directive):
        what, shown = _loggable(run.context, exc)
        if shown is not None:
            tracing.record(shown)
        _log(logging.ERROR, run.context, "%s %s failed: %s", what, shown)
    return outcomes.of_exception(exc)


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


def inside_transaction(run: Run, perform: Callable[[], Any], judge: Callable[[Any], Outcome]) -> Outcome:
    """The outcome of `perform`, run with the execution chain around it in one transaction with the job's ACK.

    The ACK is the last statement, so the job's row is not locked while the handler works. If the job is no longer this
    run's, everything is rolled back. Exceptions of `perform` pass through, after the rollback.
    """
    using = run.definition.transactional
    assert using is not None
    started = time.monotonic()
    try:
        with transaction.atomic(using=using, durable=True):
            outcome = judge(perform())
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
