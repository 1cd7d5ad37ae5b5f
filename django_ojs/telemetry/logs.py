"""Log lines about jobs, and a formatter that writes log records as JSON (events 8.6, the logging companion).

`lines` listens to events (`hooks.event_listeners`): a line for every change of a job's state, and for what workers,
queues and workflows do, at the levels of the specification. They are made of the events' own records and written once
the transaction is committed: a log never shows what was rolled back. Where no handler takes a level, nothing is
formatted, parsed or copied; that is asked once for a batch. Arguments, results and `meta` are never in a line. A
workflow has its client's own id where this process knows it, else the server's: no line costs a statement.

`JSONFormatter` and `JobFields` are for a site's `LOGGING`, which loads them before there are models:

"formatters": {"json": {"()": "django_ojs.telemetry.logs.JSONFormatter"}},
"filters": {"job": {"()": "django_ojs.telemetry.logs.JobFields"}},
"""

from __future__ import annotations

import datetime as dt
import json
import logging
import re
import traceback
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from django.db import transaction

from django_ojs import jsontext, output
from django_ojs.client.running import running
from django_ojs.events.catalogue import Record
from django_ojs.guard import get_logger
from django_ojs.rules import errorobjects, redaction
from django_ojs.telemetry.tracing import current_ids

logger = get_logger("django_ojs.jobs.lifecycle")

#: The level at which a line tells each type of event: the one place that decides it. A type that tells what the one
#: beside it tells has a lower level than that, or None, which is no line at all.
LEVELS: dict[str, int | None] = {
    event: level
    for level, types in {
        None: ("job.failed", "worker.registered", "worker.terminated"),
        logging.DEBUG: (
            "job.started", "job.heartbeat", "job.progress", "job.total_timeout", "job.ttl_expired",
            "worker.heartbeat", "job.checkpointed", "dead_letter.added", "job.dead_lettered", "job.retry_exhausted",
            "result.stored", "result.retrieved", "result.pruned", "rate_limit.exceeded", "rate_limit.released",
            "workflow.created", "workflow.step_completed", "workflow.step_failed", "workflow.job_completed",
            "workflow.job_failed", "workflow.callback_fired", "webhook.delivered",
        ),
        logging.INFO: (
            "job.enqueued", "job.scheduled", "job.completed", "job.cancelled", "priority.changed", "job.purged",
            "worker.started", "worker.stopped", "worker.quiet",
            "queue.paused", "queue.resumed", "queue.created", "queue.config_updated", "queue.deleted",
            "workflow.started", "workflow.completed", "workflow.cancelled", "cron.triggered",
            "dead_letter.retried", "dead_letter.replayed", "dead_letter.deleted", "dead_letter.pruned",
            "bulk.enqueue.completed", "bulk.cancel.completed", "bulk.retry.completed", "bulk.delete.completed",
            "backpressure.cleared", "rate_limit.dynamic_adjusted", "alert.cleared",
            "webhook.subscription.created", "webhook.subscription.updated", "webhook.subscription.deleted",
            "approval.requested", "approval.decided", "approval.delegated",
        ),
        logging.WARNING: (
            "job.retrying", "cron.skipped", "backpressure.warning", "backpressure.dropped", "backpressure.rejected",
            "rate_limit.dropped", "result.rejected", "webhook.failed", "webhook.dead",
            "webhook.subscription.disabled", "alert.raised", "approval.escalated",
        ),
        logging.ERROR: ("job.discarded", "job.expired", "job.timeout", "job.stalled", "workflow.failed"),
    }.items()
    for event in types
}  # fmt: skip
#: Members of an event's data that a line repeats.
_FACTS = (
    "previous_state", "duration_ms", "wait_ms", "delay_ms", "next_retry_at", "scheduled_at", "priority",
    "cancelled_by", "reason", "total_attempts", "max_attempts", "timeout_kind", "elapsed_seconds",
    "kind", "about", "says", "key", "strategy", "depth", "bound", "subscription_id", "delivery_id", "event_type",
    "response_status",
)  # fmt: skip
#: How much of an error the text of a line shows; its field `error` has all of it.
_WHY = 200
#: What a line about a job that a worker took or completed needs of its row.
COLUMNS = ("id", "type", "queue", "state", "attempt", "worker_id", "trace_id", "workflow_id", "started_at")


class Lines:
    """A line for each event of a level that is logged."""

    columns: Sequence[str] = COLUMNS

    def wants(self, event: str) -> bool:
        level = LEVELS.get(event, logging.DEBUG)
        return level is not None and logger.isEnabledFor(level)

    def notify(self, records: Sequence[Record], using: str) -> None:
        """Log these events when the transaction is committed."""
        levels = (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR)
        heard = {level for level in levels if logger.isEnabledFor(level)}
        wanted = [record for record in records if LEVELS.get(record.type, logging.DEBUG) in heard]
        if wanted:
            # The events are stored by then: what a site's logging raises must not have them stored again.
            transaction.on_commit(lambda: _write(wanted), using=using, robust=True)


lines = Lines()


def _write(records: Iterable[Record]) -> None:
    for record in records:
        level = LEVELS.get(record.type, logging.DEBUG) or logging.DEBUG
        fields = _fields_of(record)
        more = _next_attempt(fields) if record.type == "job.retrying" else _why(fields, level)
        logger.log(level, "%s: %s%s", record.type, _subject(record, fields), more, extra=fields)


def _subject(record: Record, fields: Mapping[str, Any]) -> str:
    """What the event is about: of an alert what is wrong, since its subject may be no more than a name or nothing."""
    if record.type.startswith("alert.") and "says" in fields:
        return output.one_line(f"{fields['kind']}: {fields['says']}")
    return f"{record.job_type} {record.job_id}" if record.job_id else output.one_line(record.subject)


def _next_attempt(fields: Mapping[str, Any]) -> str:
    """Of a job that is tried again: which attempt failed, of how many, with what, and when the next one is."""
    if "previous_state" in fields:  # no `job.failed` came before
        return f": attempt {fields.get('attempt', 0)} does not count, the next one is at {fields.get('next_retry_at')}"
    of = f" of {fields['max_attempts']}" if "max_attempts" in fields else ""
    why = f" ({error})" if (error := _error(fields)) else ""
    return f": attempt {fields.get('attempt', 0)}{of} failed{why}, the next one is at {fields.get('next_retry_at')}"


def _why(fields: Mapping[str, Any], level: int) -> str:
    """Of what went wrong: the error, or the reason."""
    why = _error(fields) or _short(str(fields.get("reason") or ""))
    return f": {why}" if why and level >= logging.WARNING else ""


def _error(fields: Mapping[str, Any]) -> str:
    error = fields.get("error", {})
    parts = (error.get("type") or error.get("code"), error.get("message"))
    return _short(": ".join(str(part) for part in parts if part))


def _short(text: str) -> str:
    """The text in one short line, without characters that steer a terminal: any worker may have sent it."""
    return errorobjects.cut(output.one_line(" ".join(text.split())), _WHY)


def _fields_of(record: Record) -> dict[str, Any]:
    fields: dict[str, Any] = {"event": record.type, "event_component": record.component}
    if record.job_id:
        fields |= {"job_id": str(record.job_id), "job_type": record.job_type, "attempt": record.attempt}
        fields["state"] = record.state
    given = {"queue": record.queue, "worker_id": record.worker_id, "trace_id": record.trace_id}
    fields |= {name: value for name, value in given.items() if value}
    if record.workflow_id:
        from django_ojs.models.workflow import known_id

        fields["workflow_id"] = known_id(record.workflow_id)
    data = jsontext.loads(record.data) if record.data else {}
    fields |= {name: data[name] for name in _FACTS if name in data}
    if isinstance(data.get("error"), dict):
        error = redaction.error(record.job_type, data["error"])
        fields["error"] = {name: error[name] for name in ("type", "code", "message") if name in error}
    elif isinstance(data.get("error"), str) and data["error"]:  # of a webhook
        fields["error"] = {"message": data["error"]}
    return fields


#: Python's level -> the word and number of the specification.
_SEVERITIES = ((50, "FATAL", 21), (40, "ERROR", 17), (30, "WARN", 13), (20, "INFO", 9), (10, "DEBUG", 5))
_TRACE = ("TRACE", 1)
_SENSITIVE = re.compile(r"passw(?:or)?d|token|secret|authorization|api[_-]?key|credential|cookie", re.IGNORECASE)
_REDACTED = "[redacted]"
#: What a job was given and gave back: may be anything, secrets included.
_PAYLOADS = frozenset({"result", "job_args", "job_kwargs", "job_result"})
_OJS = ("job_id", "job_type", "queue", "attempt", "state", "worker_id", "workflow_id", "correlation_id")
_DOTTED = {"job_id": "ojs.job.id", "job_type": "ojs.job.type", "queue": "ojs.job.queue", "state": "ojs.job.state"}
_RENAMED = {"wait_ms": "queue_wait_ms"}
#: What every record has, and what is shown in a place of its own.
_KNOWN = frozenset(logging.makeLogRecord({}).__dict__) | {
    *_OJS, "message", "asctime", "taskName", "event_component", "category", "error", "trace_id", "span_id",
}  # fmt: skip
_COMPONENTS = {"workers": "worker", "api": "server", "scheduler": "server", "cron": "server"}


class JobFields(logging.Filter):
    """Says on each record that is made while a handler runs what `context.log` says: `job_id`, `job_type`, `queue` and
    `attempt`. On others they are empty, so a format may name them. What a record says itself stays."""

    def filter(self, record: logging.LogRecord) -> bool:
        run = running.get()
        fields = dict.fromkeys(_OJS[:4], "") if run is None else run.log.extra or {}
        record.__dict__.update({**fields, **record.__dict__})
        return True


class JSONFormatter(logging.Formatter):
    """Every record as one JSON object; fields given as `extra` find their places, the others are `attributes`.

    By hand: python-json-logger knows no groups and no redaction, and would replace only the call of `json.dumps`.

    Args:
        dotted: repeat the most used fields under the dotted names of the tracing companion (`ojs.job.id`).
        payloads: let `result` and `job_args`, where a site logs them, through. They may hold secrets: warns.
    """

    def __init__(self, *, dotted: bool = False, payloads: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._dotted, self._payloads = dotted, payloads
        if payloads:
            warnings.warn("Arguments and results of jobs go into the log, secrets included.", stacklevel=2)

    def format(self, record: logging.LogRecord) -> str:
        given = record.__dict__
        word, number = _severity(record.levelno)
        line: dict[str, Any] = {
            "timestamp": _time(record.created), "severity": word, "severity_number": number, "level": word.lower(),
            "message": record.getMessage(), "logger": record.name, "component": _component(record),
            "category": _category(record),
        }  # fmt: skip
        if found := {name: given[name] for name in _OJS if given.get(name) not in (None, "")}:
            line["ojs"] = found
        if ids := _trace(given):
            line["trace"] = ids
        if self._dotted:
            line |= {_DOTTED[name]: value for name, value in found.items() if name in _DOTTED} | ids
        if error := self._error(record):
            line["error"] = error
        hidden = frozenset() if self._payloads else _PAYLOADS
        rest = {_RENAMED.get(name, name): value for name, value in given.items() if name not in _KNOWN | hidden}
        if rest:
            line["attributes"] = redact(rest)
        return jsontext.printable(json.dumps(line, default=str, ensure_ascii=False, separators=(",", ":")))

    def _error(self, record: logging.LogRecord) -> dict[str, Any]:
        given = record.__dict__.get("error")
        error = dict(given) if isinstance(given, Mapping) else {"type": given} if given else {}
        if record.exc_info and record.exc_info[0] is not None:
            kind, exc, tb = record.exc_info
            message = errorobjects.text_of(exc)
            error = {"type": kind.__name__, "message": errorobjects.cut(message, errorobjects.MAX_MESSAGE)} | error
            lines = traceback.format_exception(kind, exc, tb)
            error["backtrace"] = [errorobjects.cut(line.rstrip(), errorobjects.MAX_MESSAGE) for line in lines]
        return error


def redact(value: Any) -> Any:
    """The value without what stands under a name like `password` or `token`, however deep."""
    if isinstance(value, Mapping):
        return {str(key): _REDACTED if _SENSITIVE.search(str(key)) else redact(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [redact(inner) for inner in value]
    return value


def _severity(level: int) -> tuple[str, int]:
    return next(((word, number) for least, word, number in _SEVERITIES if level >= least), _TRACE)


def _time(seconds: float) -> str:
    return dt.datetime.fromtimestamp(seconds, dt.UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _trace(given: Mapping[str, Any]) -> dict[str, str]:
    """The trace that the record names, else the span in which it was written."""
    trace_id, span_id = current_ids()
    if named := given.get("trace_id"):
        span_id = given.get("span_id") or (span_id if trace_id == named else "")
        trace_id = named
    return {name: value for name, value in (("trace_id", trace_id), ("span_id", span_id)) if value}


def _component(record: logging.LogRecord) -> str:
    if found := _COMPONENTS.get(record.__dict__.get("event_component", "")):
        return found
    part = record.name.removeprefix("django_ojs.").partition(".")[0]
    return {"worker": "worker", "jobs": "worker", "client": "client"}.get(part, "server")


def _category(record: logging.LogRecord) -> str:
    if given := record.__dict__.get("category"):
        return str(given)
    if record.levelno >= logging.ERROR or record.exc_info:
        return "error"
    event = record.__dict__.get("event", "")
    if event.startswith("worker.") or record.name.startswith(("django_ojs.worker", "django_ojs.scheduler")):
        return "worker"
    return "lifecycle"
