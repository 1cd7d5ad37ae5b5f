"""Watching the server: metrics, traces, structured logs (events specification 7 and 8).

`families` and `gather` are what a scrape sees, `exposition` writes it down, `collector` and `otel` hand it to
prometheus-client and OpenTelemetry. `tracing` and `spans` carry the trace context, `lifecycle` and `logs` write what
happens to jobs into the log. Everything that is optional is imported where it is used.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


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
