"""Report what handlers raise to where a site keeps its errors: `OJS["ERROR_REPORTERS"]`, and the signal `job_failed`.

A reporter is a callable, named by its dotted path. It gets the exception and the `JobContext`, and may return a text by
which people find the report, such as an id or a URL: the job's error then has it in `details["reports"]`. `sentry` is
the reporter for Sentry, and for trackers that understand its SDK.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from django.utils.module_loading import import_string

from django_ojs.client.context import JobContext, log_fields
from django_ojs.conf import ojs_settings
from django_ojs.guard import get_logger, may_fail
from django_ojs.signals import job_failed
from django_ojs.telemetry import tracing

if TYPE_CHECKING:
    from sentry_sdk import Scope

logger = get_logger(__name__)

Reporter = Callable[[BaseException, JobContext], str | None]
#: The loggers whose records tell of the same failure: Sentry would make more events of them.
_SAME = ("django_ojs.jobs", "django_ojs.jobs.lifecycle")
#: The longest text of a reporter that an error keeps.
MAX_TEXT = 500


def report(exception: BaseException, context: JobContext, handler: Any) -> list[str]:
    """Tell the site's reporters and receivers; return the texts of the reporters. One that fails is logged."""
    found = []
    for path in ojs_settings.ERROR_REPORTERS:
        try:
            text = _reporter(path)(exception, context)
            found += [str(text)[:MAX_TEXT]] if text else []
        except BaseException:
            logger.exception("The error reporter %s failed.", path, extra=log_fields(context.row))
    may_fail("Sending job_failed", _send, exception, context, handler)
    return found


def _send(exception: BaseException, context: JobContext, handler: Any) -> None:
    for receiver, answer in job_failed.send_robust(handler, context=context, exception=exception):
        if isinstance(answer, Exception):
            logger.error("The receiver %r of job_failed failed.", receiver, exc_info=answer)


@lru_cache(maxsize=32)
def _reporter(path: str) -> Reporter:
    found: Reporter = import_string(path)
    return found


def sentry(exception: BaseException, context: JobContext) -> str | None:
    """Send the exception to Sentry with the job's id, type, queue and attempt as tags, in the job's trace.

    Returns the id of the event. Arguments are not sent. None where the site has not called `sentry_sdk.init()`.
    """
    import sentry_sdk
    from sentry_sdk.integrations.logging import ignore_logger

    if not sentry_sdk.is_initialized():
        return None
    for name in _SAME:
        ignore_logger(name)
    with sentry_sdk.isolation_scope() as scope:
        _describe(scope, context)
        trace_id, span_id = tracing.ids_of(context.meta)
        if trace_id:
            sentry_sdk.continue_trace({"sentry-trace": f"{trace_id}-{span_id}"})
        return sentry_sdk.capture_exception(exception)


def _describe(scope: Scope, context: JobContext) -> None:
    fields = log_fields(context.row)
    for name, value in fields.items():
        scope.set_tag(f"ojs.{name}", value)
    scope.set_context(
        "job", {**fields, "workflow_id": context.workflow_id, "worker_id": context.row["worker_id"]}
    )  # fmt: skip
    scope.set_transaction_name(f"job {context.type}")
