"""Answer the words of other queues (Celery, RQ, huey, dramatiq, Procrastinate, ...) with ours.

Each table has what a developer types after a move, and what to write instead. `docs/coming-from/words.md` shows the
same words side by side; a test compares the two.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

_ENQUEUE = ".enqueue(...)"
_OPTIONS = ".options(delay=..., queue=...).enqueue(...)"
_COMMIT = ".enqueue(...), which is part of the open transaction"
_CALL = "a plain call, handler(...)"
_PREPARED = "handler.enqueue(...), or enqueue_many([handler.s(...)])"
_CHAIN = "chain(first.s(...), second.s(...)).enqueue()"

#: Of a handler, and of what `.options()` returns.
OF_HANDLER = {
    "delay": _ENQUEUE, "apply_async": _OPTIONS, "delay_on_commit": _COMMIT, "apply_async_on_commit": _COMMIT,
    "apply": _CALL, "run": _CALL, "si": ".s(...)", "signature": ".s(...)", "subtask": ".s(...)",
    "starmap": "enqueue_many([handler.s(...), ...])", "chunks": "enqueue_many([handler.s(...), ...])",
    "AsyncResult": "get_job(id)", "retry": "raise Retry(after=...)", "request": "a first parameter, context",
    "update_state": "context.progress(percent, message)", "enqueue_in": ".options(delay=...).enqueue(...)",
    "enqueue_at": ".options(at=...).enqueue(...)", "schedule": ".options(delay=...).enqueue(...), or at=",
    "call_local": _CALL, "map": "enqueue_many([handler.s(...), ...])", "send": _ENQUEUE, "send_with_options": _OPTIONS,
    "message": ".s(...)", "message_with_options": ".options(...).s(...)", "fn": ".handler", "defer": _ENQUEUE,
    "defer_async": "await .aenqueue(...)", "configure": ".options(...)",
    "batch_defer": "enqueue_many([handler.s(...), ...])", "using": ".options(...)", "call": _CALL, "acall": _CALL,
    "get_result": "get_job(id)", "now": _CALL, "revoke": "get_job(id).cancel()",
}  # fmt: skip
#: Of a job that is prepared by `.s()`.
OF_PREPARED = {
    "delay": _PREPARED, "apply_async": _PREPARED, "apply": _CALL, "send": _PREPARED, "enqueue": _PREPARED,
    "set": "handler.options(...).s(...)", "then": _CHAIN, "link": _CHAIN, "pipe": _CHAIN,
    "link_error": "batch(handler.s(...), on_failure=other.s()).enqueue()",
    "on_error": "batch(handler.s(...), on_failure=other.s()).enqueue()",
    "error": "batch(handler.s(...), on_failure=other.s()).enqueue()",
}  # fmt: skip
#: Of a workflow that is not enqueued yet.
OF_WORKFLOW = {
    "delay": _ENQUEUE,
    "apply_async": _ENQUEUE,
    "apply": _ENQUEUE,
    "run": _ENQUEUE,
    "s": "the workflow itself",
}
#: Of the handle of a job or a workflow.
OF_HANDLE = {
    "get": ".wait(timeout)", "get_result": ".wait(timeout).result", "return_value": ".refresh().result",
    "ready": ".refresh().is_finished", "successful": '.refresh().state == "completed"',
    "failed": '.refresh().state == "discarded"', "status": ".state", "get_status": ".refresh().state",
    "task_id": ".id", "job_id": ".id", "message_id": ".id", "traceback": '.error["backtrace"]', "exc_info": ".error",
    "info": ".result, or .error", "revoke": ".cancel()", "abort": ".cancel()",
    "forget": "result_ttl= where you enqueue", "requeue": ".retry()",
    "reschedule": ".cancel(), and enqueue another job",
    "collect": ".wait(timeout), and .jobs of a workflow", "children": ".jobs of a workflow",
}  # fmt: skip
#: Of a handler's context.
OF_CONTEXT = {
    "request": ".id, .attempt, .meta", "retries": ".attempt, or .is_last_attempt", "attempts": ".attempt",
    "retry": "raise Retry(after=...)", "update_state": ".progress(percent, message)", "save_meta": ".progress(...)",
    "should_abort": ".is_cancelled", "is_aborted": ".is_cancelled", "replace": "other.enqueue(...), and return",
    "task_result": ".id, .attempt, .job", "abort": "raise Discard(...)",
}  # fmt: skip
#: Options of a job or a handler.
OTHER_OPTIONS = {
    "countdown": "delay", "schedule_in": "delay", "eta": "at", "schedule_at": "at", "run_after": "at", "run_at": "at",
    "expires": "expires_at", "ttl": "enqueue_ttl", "task_id": "id", "job_id": "id", "queue_name": "queue",
    "routing_key": "queue", "at_front": "priority", "time_limit": "timeout", "soft_time_limit": "timeout",
    "job_timeout": "timeout", "retries": "retry", "max_retries": "retry", "autoretry_for": "retry",
    "retry_backoff": "retry", "retry_delay": "retry", "retry_when": "retry_if", "min_backoff": "retry",
    "max_backoff": "retry", "lock": "rate_limit", "queueing_lock": "unique", "crontab": "cron", "periodic": "cron",
    "bind": "context", "pass_context": "context", "takes_context": "context",
}  # fmt: skip


class OtherWords:
    """Base of what users of other queues call by other names: such a call raises an AttributeError with our word."""

    __slots__ = ()

    _other_words: ClassVar[Mapping[str, str]] = {}

    if not TYPE_CHECKING:  # to a type checker there are no such names

        def __getattr__(self, name: str) -> Any:
            kind = type(self).__name__
            if (ours := self._other_words.get(name)) is None:
                raise AttributeError(f"{kind!r} object has no attribute {name!r}", name=name, obj=self)
            raise AttributeError(f"{kind} has no .{name}, a word of another queue: write {ours}.")
