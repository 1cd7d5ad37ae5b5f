"""A log line for every change of a job's state, and for what workers, queues and workflows do (events 8.6).

`lines` listens to events (`hooks.event_listeners`). The lines are made of the events' own records, at the levels of the
specification, and written once the transaction is committed: a log never tells what was rolled back. Where no handler
takes a level, nothing is formatted, parsed or copied; that is asked once for a batch. Arguments, results and `meta` are
never in a line.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from django.db import transaction

from django_ojs import jsontext
from django_ojs.events.catalogue import Record
from django_ojs.rules import redaction

logger = logging.getLogger("django_ojs.jobs.lifecycle")

#: The level of each kind of event; None for those whose pair tells the same. Others are DEBUG.
LEVELS: dict[str, int | None] = {
    "job.enqueued": logging.INFO, "job.scheduled": logging.INFO, "job.completed": logging.INFO,
    "job.cancelled": logging.INFO, "job.retrying": logging.WARNING, "job.discarded": logging.ERROR,
    "job.expired": logging.ERROR, "job.timeout": logging.ERROR, "job.stalled": logging.ERROR,
    "job.failed": None, "worker.registered": None, "worker.terminated": None,
    "worker.started": logging.INFO, "worker.stopped": logging.INFO, "worker.quiet": logging.INFO,
    "queue.paused": logging.INFO, "queue.resumed": logging.INFO, "queue.created": logging.INFO,
    "queue.config_updated": logging.INFO, "queue.deleted": logging.INFO,
    "workflow.started": logging.INFO, "workflow.completed": logging.INFO, "workflow.cancelled": logging.INFO,
    "workflow.failed": logging.ERROR, "cron.triggered": logging.INFO, "cron.skipped": logging.WARNING,
    "backpressure.warning": logging.WARNING, "backpressure.dropped": logging.WARNING,
}  # fmt: skip
#: Members of an event's data that a line repeats.
_FACTS = ("duration_ms", "wait_ms", "delay_ms", "next_retry_at", "scheduled_at", "priority", "cancelled_by", "reason",
          "total_attempts", "max_attempts", "timeout_kind", "elapsed_seconds")  # fmt: skip
#: What a line about a job that a worker took or completed needs of its row.
COLUMNS = ("id", "type", "queue", "state", "attempt", "worker_id", "trace_id", "workflow_id", "started_at")


class Lines:
    """A line for each event of a level that is logged."""

    columns: Sequence[str] = COLUMNS

    def wants(self, event: str) -> bool:
        level = LEVELS.get(event, logging.DEBUG)
        return level is not None and logger.isEnabledFor(level)

    def tell(self, records: Sequence[Record], using: str) -> None:
        """Log these events when the transaction is committed."""
        levels = (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR)
        heard = {level for level in levels if logger.isEnabledFor(level)}
        told = [record for record in records if LEVELS.get(record.type, logging.DEBUG) in heard]
        if told:
            transaction.on_commit(partial(_write, told), using=using)


lines = Lines()


def _write(records: Iterable[Record]) -> None:
    for record in records:
        level = LEVELS.get(record.type, logging.DEBUG) or logging.DEBUG
        who = f"{record.job_type} {record.job_id}" if record.job_id else record.subject
        fields = _fields(record)
        logger.log(level, "%s: %s%s", record.type, who, _next_attempt(fields), extra=fields)


def _next_attempt(fields: Mapping[str, Any]) -> str:
    """Of a job that is tried again: which attempt failed, of how many, and when the next one is."""
    if fields["event"] != "job.retrying":
        return ""
    of = f" of {fields['max_attempts']}" if "max_attempts" in fields else ""
    return f": attempt {fields.get('attempt', 0)}{of} failed, the next one is at {fields.get('next_retry_at')}"


def _fields(record: Record) -> dict[str, Any]:
    fields: dict[str, Any] = {"event": record.type, "event_component": record.component}
    if record.job_id:
        fields |= {"job_id": str(record.job_id), "job_type": record.job_type, "attempt": record.attempt}
        fields["state"] = record.state
    given = {"queue": record.queue, "worker_id": record.worker_id, "trace_id": record.trace_id}
    fields |= {name: value for name, value in given.items() if value}
    if record.workflow_id:
        fields["workflow_id"] = str(record.workflow_id)
    data = jsontext.loads(record.data) if record.data else {}
    fields |= {name: data[name] for name in _FACTS if name in data}
    if isinstance(data.get("error"), dict):
        error = redaction.error(record.job_type, data["error"])
        fields["error"] = {name: error[name] for name in ("type", "code", "message") if name in error}
    return fields
