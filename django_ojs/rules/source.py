"""Where an attribute is read from: `options` before the top level, null counts as absent (binding 3.2)."""

from __future__ import annotations

from typing import Any, NamedTuple

from django_ojs.rules.faults import job_fault

#: Attributes of which the document's own value means nothing to us (binding 3.1): dropped without a word.
SYSTEM = frozenset(
    {
        *("state", "attempt", "max_attempts", "created_at", "enqueued_at", "started_at", "completed_at"),
        *("cancelled_at", "discarded_at", "activated_at", "error", "errors", "result", "next_attempt_at"),
        *("next_retry_at", "retry_delay_ms", "parent_results", "previous_state", "worker_id", "workflow_id"),
        *("result_stored_at", "result_expires_at", "result_size_bytes"),
    }
)

OTHER_TIMEOUTS = ("total_timeout", "enqueue_ttl", "heartbeat_timeout", "grace_period")

_BOTH = frozenset(
    {
        *("meta", "queue", "priority", "tags", "unique", "expires_at", "rate_limit", "pending", "schema", "version"),
        "result_ttl",
        *("scheduled_at", "retry", "timeout", "timeout_ms", "visibility_timeout", "visibility_timeout_ms"),
        *OTHER_TIMEOUTS,
        *(f"{name}_ms" for name in OTHER_TIMEOUTS),
    }
)
TOP_LEVEL = _BOTH | SYSTEM | {"specversion", "id", "type", "args", "options"}  #: not copied as unknown
OPTIONS = _BOTH | {"delay_until", "retry_policy", "metadata"}


class Found(NamedTuple):
    """A value, None where no source has one, and the path under which the client knows it."""

    value: Any
    path: str


class Source:
    """A client's document with its `options`; both stay as they came."""

    __slots__ = ("document", "options")

    def __init__(self, document: dict[str, Any]) -> None:
        options = document.get("options")
        if options is not None and not isinstance(options, dict):
            raise job_fault("options", "must be an object", options)
        self.document = document
        self.options: dict[str, Any] = options or {}

    def top(self, name: str) -> Found:
        return Found(self.document.get(name), name)

    def find(self, *in_options: str, top: tuple[str, ...] = ()) -> Found:
        """The first of the names that has a value: in `options`, then at the top level (default: the first name)."""
        for name in in_options if self.options else ():
            value = self.options.get(name)
            if value is not None:
                return Found(value, f"options.{name}")
        for name in top or in_options[:1]:
            value = self.document.get(name)
            if value is not None:
                return Found(value, name)
        return Found(None, in_options[0])

    def unknown(self) -> dict[str, Any]:
        """What no rule of ours names, where it was: at the top level, or under `options` (core 5.5)."""
        kept = {name: value for name, value in self.document.items() if name not in TOP_LEVEL}
        if self.options:
            rest = {name: value for name, value in self.options.items() if name not in OPTIONS}
            if rest:
                kept["options"] = rest
        return kept
