"""Log a line for each run of a job: the built-in execution middleware.

`show_logs` shows those lines on the terminal for a site that has not configured its logging.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import Any

from django_ojs import output
from django_ojs.client.context import JobContext, log_fields
from django_ojs.client.directives import Discard, Retry, Snooze, StepBoundary, Suspended
from django_ojs.guard import Interrupted, get_logger, may_fail
from django_ojs.messages import count
from django_ojs.telemetry import logs
from django_ojs.worker.runs import Acknowledged, Completed, Failed, RunOutcome, Snoozed, meant

logger = get_logger("django_ojs.jobs")


class LineLimit:
    """Which completed jobs get a line of their own: so many a second. The others are counted, and summed up."""

    def __init__(self, a_second: int, every: float, now: Callable[[], float] = time.monotonic) -> None:
        self._a_second, self._every, self._now = a_second, every, now
        self._lock = threading.Lock()
        self._second, self._shown, self._since, self._more = -1, 0, 0.0, 0

    def admits(self) -> bool:
        """Whether the job that has just completed gets a line."""
        with self._lock:
            now = self._now()
            if int(now) != self._second:
                self._second, self._shown = int(now), 0
            self._shown += 1
            if self._shown <= self._a_second:
                return True
            self._since = self._since if self._more else now
            self._more += 1
            return False

    def sum_up(self) -> None:
        """Log how many jobs completed without a line, if it is time for that. The worker's health reporter calls it."""
        with self._lock:
            elapsed, more = self._now() - self._since, self._more
            if not more or elapsed < self._every:
                return
            self._more = 0
        logger.info("%s completed in %.0f s.", count(more, "more job"), elapsed)


#: Set where a person reads the log (`show_logs`): it limits the lines of completed jobs, and of no others.
line_limit: LineLimit | None = None

_STATUS = {
    Retry: "retry", Discard: "discarded", Snooze: "snoozed", Suspended: "suspended", Interrupted: "interrupted",
    StepBoundary: "interrupted",
}  # fmt: skip
#: What another line tells, at WARNING or ERROR.
_TOLD = ("failed", "retry")


class LoggingMiddleware:
    """One INFO line for each run, with job_id, job_type, queue, attempt, duration_ms, status and error as fields.

    No arguments and no traceback. Of a run that failed the worker's own line tells, or `job.retrying`: this one is at
    DEBUG then. Where the handler has returned, the worker writes the line when it knows what becomes of the run: the
    result may be refused, or the transaction not be committed.
    """

    needs_job = False

    def __call__(self, job: dict[str, Any], context: JobContext, next: Callable[[], Any]) -> Any:
        if not logger.isEnabledFor(logging.INFO):
            return next()
        with _logged(context):
            return next()

    async def acall(self, job: dict[str, Any], context: JobContext, next: Callable[[], Awaitable[Any]]) -> Any:
        if not logger.isEnabledFor(logging.INFO):
            return await next()
        with _logged(context):
            return await next()


@contextlib.contextmanager
def _logged(context: JobContext) -> Iterator[None]:
    logger.debug("%s %s starts (attempt %d).", context.type, context.id, context.attempt, extra=log_fields(context.row))
    started, status, error = time.perf_counter(), "", ""
    try:
        yield
    except BaseException as exc:
        status, error = may_fail("Reading an exception", _status_of, exc) or ("failed", type(exc).__name__)
        raise
    finally:
        ms = round((time.perf_counter() - started) * 1000, 1)
        if status:
            # It may not change how the job ends, even where the run's time is over while it is written.
            may_fail("The log line of a run", _log_end, context, ms, status, error)
        else:
            context.tell_end = partial(_log_outcome, context, ms)


def _status_of(exc: BaseException) -> tuple[str, str]:
    return _STATUS.get(type(meant(exc)), "failed"), type(exc).__name__


def _log_outcome(context: JobContext, ms: float, outcome: RunOutcome) -> None:
    """Log what became of a run whose handler has returned."""
    match outcome:
        case Completed() | Acknowledged():
            _log_end(context, ms, "completed", "")
        case Failed(error):
            _log_end(context, ms, "failed", error["type"])
        case Snoozed(_, waits):
            _log_end(context, ms, "suspended" if waits else "snoozed", "")
        case _:
            _log_end(context, ms, "interrupted", "")  # it has not done its work


def _log_end(context: JobContext, ms: float, status: str, error: str) -> None:
    if line_limit is None or (status == "completed" and line_limit.admits()):
        extra = log_fields(context.row) | {"duration_ms": ms, "status": status, "error": error}
        level = logging.DEBUG if status in _TOLD else logging.INFO
        logger.log(level, "%s %s %s after %s ms.", context.type, context.id, status, ms, extra=extra)


_FORMAT = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"
#: ANSI colours by level; a failed, retried or discarded job stands out, and a completed one is green.
_COLOURS = {logging.DEBUG: "2", logging.WARNING: "33", logging.ERROR: "31", logging.CRITICAL: "1;31"}
_GREEN = "32"

#: Completed jobs a second that get a line each at verbosity 1, and how often those beyond are summed up.
LINES_A_SECOND, SUMMARY_SECONDS = 10, 5.0


def show_logs(verbosity: int) -> None:
    """Send our log to stderr, unless the site's LOGGING takes care of it.

    Verbosity 0 shows warnings, 1 what the worker does and how jobs end (a line each while they are few, a count of
    them while they are many), 2 a line for each job, 3 everything, every change of a job's state included.
    """
    global line_limit
    ours = logging.getLogger("django_ojs")
    if ours.hasHandlers():
        return
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(Terminal(_FORMAT, colours=output.is_terminal(sys.stderr)))
    ours.addHandler(handler)
    levels = {0: logging.WARNING, 1: logging.INFO, 2: logging.INFO}
    ours.setLevel(levels.get(verbosity, logging.DEBUG))
    if verbosity == 1:
        line_limit = LineLimit(LINES_A_SECOND, SUMMARY_SECONDS)
    if verbosity in (1, 2):
        logs.logger.setLevel(logging.WARNING)


class Terminal(logging.Formatter):
    """Lines for people: coloured where the stream is a terminal, which finds nothing else to obey in them."""

    def __init__(self, line: str, *, colours: bool) -> None:
        super().__init__(line)
        self._colours = colours

    def format(self, record: logging.LogRecord) -> str:
        text = output.lines(super().format(record))
        colour = _GREEN if getattr(record, "status", "") == "completed" else _COLOURS.get(record.levelno, "")
        return f"\x1b[{colour}m{text}\x1b[0m" if self._colours and colour else text
