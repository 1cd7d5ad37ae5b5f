"""What belongs to one trace in the headers of a request and in the `meta` of a job (events specification 8)."""

from __future__ import annotations

from collections.abc import Mapping

from django_ojs.rules.envelope import trace_id_in

#: A job that has one of these gets none of the others from us.
TRACE_KEYS = frozenset({"traceparent", "tracestate", "trace_id"})
MAX_TRACESTATE, MAX_BAGGAGE = 512, 8192


def joined(received: Mapping[str, str], current: dict[str, str]) -> Mapping[str, str]:
    """What the request brought, with the trace of the current span in place of the request's."""
    if not current:
        return received
    kept = {key: value for key, value in received.items() if key not in TRACE_KEYS or "traceparent" not in current}
    trace_id = trace_id_in(current.get("traceparent", ""))
    return kept | current | ({"trace_id": trace_id} if trace_id else {})
