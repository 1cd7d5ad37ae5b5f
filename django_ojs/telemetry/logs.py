"""Log records as JSON, one object a line, for `LOGGING` (events specification 8.6, the logging companion).

"formatters": {"json": {"()": "django_ojs.telemetry.logs.JSONFormatter"}},

By hand, because of what is here python-json-logger has only the call of `json.dumps`: it knows no groups, no redaction.
"""

from __future__ import annotations

import datetime as dt
import json
import logging
import re
import traceback
import warnings
from collections.abc import Mapping
from typing import Any

from django_ojs.telemetry.tracing import current_ids

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


class JSONFormatter(logging.Formatter):
    """Every record as one JSON object; fields given as `extra` find their places, the others are `attributes`.

    Args:
        dotted: repeat the most used fields under the dotted names of the tracing companion (`ojs.job.id`).
        payloads: let `result` and `job_args`, where somebody logs them, through. They may hold secrets: warns.
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
        return json.dumps(line, default=str, ensure_ascii=False, separators=(",", ":"))

    def _error(self, record: logging.LogRecord) -> dict[str, Any]:
        given = record.__dict__.get("error")
        error = dict(given) if isinstance(given, Mapping) else {"type": given} if given else {}
        if record.exc_info and record.exc_info[0] is not None:
            kind, exc, tb = record.exc_info
            error = {"type": kind.__name__, "message": str(exc)} | error
            error["backtrace"] = [line.rstrip() for line in traceback.format_exception(kind, exc, tb)]
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
    told = _COMPONENTS.get(record.__dict__.get("event_component", ""))
    if told:
        return told
    part = record.name.removeprefix("django_ojs.").partition(".")[0]
    return {"worker": "worker", "jobs": "worker", "client": "client"}.get(part, "server")


def _category(record: logging.LogRecord) -> str:
    if told := record.__dict__.get("category"):
        return str(told)
    if record.levelno >= logging.ERROR or record.exc_info:
        return "error"
    event = record.__dict__.get("event", "")
    if event.startswith("worker.") or record.name.startswith(("django_ojs.worker", "django_ojs.scheduler")):
        return "worker"
    return "lifecycle"
