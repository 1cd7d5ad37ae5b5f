"""Watching the server: metrics, traces, structured logs (events specification 7 and 8).

`gather` has the metrics and what a scrape sees of them, `collector` and `otel` hand it to prometheus-client and
OpenTelemetry. `tracing` and `spans` carry the trace context (`tracecontext`), `logs` writes what happens to jobs into
the log, `pushes` takes the time of a PUSH. What is optional is imported where it is used.

Operations know nothing of all this: what takes part in them subscribes when the app is ready.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def subscribe() -> None:
    """Take part in operations from now on: trace context and spans, log lines, the time that a PUSH takes."""
    from django_ojs import hooks
    from django_ojs.telemetry import logs, pushes, tracing

    hooks.subscribe(hooks.event_listeners, logs.lines)
    hooks.subscribe(hooks.around_push, tracing.enqueueing)
    hooks.subscribe(hooks.around_workflow, tracing.creating)
    hooks.subscribe(hooks.around_later_steps, tracing.detached)
    if pushes.is_possible():
        hooks.subscribe(hooks.around_work_of_push, pushes.timed)


def export(leads: Callable[[], bool], using: str) -> Any:
    """Let this process record the metrics with OpenTelemetry while it leads; None where that is not installed.

    The answer has `stop()`.
    """
    try:
        from django_ojs.telemetry.otel import Export
    except ImportError:
        return None
    exported = Export(leads, using)
    exported.start()
    return exported
