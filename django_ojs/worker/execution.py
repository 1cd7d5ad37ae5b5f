"""Run a handler inside its middleware chain, and make a value of whatever comes out."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
import traceback
from typing import Any

from django_ojs.middleware import arun_execution_chain, run_execution_chain
from django_ojs.policies import redaction
from django_ojs.telemetry import tracing
from django_ojs.worker import outcomes
from django_ojs.worker.context import JobContext, log_fields
from django_ojs.worker.directives import Directive, Interrupted
from django_ojs.worker.outcomes import Outcome
from django_ojs.worker.run import Run
from django_ojs.worker.transactional import inside_transaction

logger = logging.getLogger("django_ojs.jobs")


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
    """What the span may say of a failure."""
    if not isinstance(outcome, outcomes.Failed):
        return None
    error: dict[str, Any] = redaction.part("errors", outcome.error, run.context.type, run.context.meta)
    return error


def _execute(run: Run) -> Outcome:
    """Whatever the handler raises stays here, SystemExit, KeyboardInterrupt and GeneratorExit included."""
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
            return await run.definition.handler(*_arguments(run))
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
        return run.definition.handler(*_arguments(run))
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


def _arguments(run: Run) -> list[Any]:
    return [run.context, *run.context.args] if run.definition.takes_context else run.context.args


def _of_value(run: Run, value: Any) -> Outcome:
    # A handler that saw that it is to stop and returned has not done its work; one that never looked has.
    nobody_waits = run.interruption in (outcomes.Interruption.CANCELLED, outcomes.Interruption.LOST)
    if run.interruption is not None and (nobody_waits or run.context.saw_cancel):
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
        what, told = _tellable(run.context, exc)
        if told is not None:
            tracing.record(told)
        _log(logging.ERROR, run.context, "%s %s failed: %s", what, told)
    return outcomes.of_exception(exc)


def _tellable(context: JobContext, exc: BaseException) -> tuple[str, BaseException | None]:
    """What the log may say of an exception: its traceback ends with its message, so each may be hidden (`REDACT`)."""
    kind = type(exc).__name__
    if redaction.hides("errors", context.type, context.meta):
        return kind, None
    return (f"{kind}: {exc}", None) if redaction.hides("backtraces", context.type, context.meta) else (kind, exc)


def _log(level: int, context: JobContext, message: str, what: str, exc: BaseException | None = None) -> None:
    logger.log(level, message, context.type, context.id, what, exc_info=exc, extra=log_fields(context.row))


def _without_our_frames(exc: BaseException) -> BaseException:
    """The exception with a traceback that begins at the site's own code: a reader looks for the handler."""
    frame = exc.__traceback__
    while frame is not None and frame.tb_frame.f_globals.get("__name__", "").split(".")[0] in _OURS:
        frame = frame.tb_next
    return exc if frame is None else exc.with_traceback(frame)


_OURS = frozenset({"django_ojs", "asgiref"})
