"""Built-in execution middleware."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

from django_ojs.worker.context import JobContext, log_fields
from django_ojs.worker.directives import Discard, Interrupted, Retry, Snooze

logger = logging.getLogger("django_ojs.jobs")

_STATUS = {Retry: "retry", Discard: "discarded", Snooze: "snoozed", Interrupted: "interrupted"}


class LoggingMiddleware:
    """One INFO line for each run, with job_id, job_type, queue, attempt, duration_ms, status and error as fields.

    No arguments and no traceback: an exception is logged with its traceback by the worker itself.
    """

    needs_job = False

    def __call__(self, job: dict[str, Any], context: JobContext, next: Callable[[], Any]) -> Any:
        with _logged(context):
            return next()

    async def acall(self, job: dict[str, Any], context: JobContext, next: Callable[[], Awaitable[Any]]) -> Any:
        with _logged(context):
            return await next()


@contextlib.contextmanager
def _logged(context: JobContext) -> Iterator[None]:
    if not logger.isEnabledFor(logging.INFO):
        yield
        return
    logger.debug("%s %s starts (attempt %d).", context.type, context.id, context.attempt, extra=log_fields(context.row))
    started, status, error = time.perf_counter(), "completed", ""
    try:
        yield
    except BaseException as exc:
        status, error = _STATUS.get(type(exc), "failed"), type(exc).__name__
        raise
    finally:
        ms = round((time.perf_counter() - started) * 1000, 1)
        extra = log_fields(context.row) | {"duration_ms": ms, "status": status, "error": error}
        logger.info("%s %s %s after %s ms.", context.type, context.id, status, ms, extra=extra)
