"""The events of results, which an extension adds (jobs 10). `jobs.prune` writes `result.pruned`.

They are written only where `OJS["EXTENSION_EVENTS"]` asks for them: a result comes with every other job.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from typing import Any

from django_ojs import clock, jsontext
from django_ojs.conf import ojs_settings
from django_ojs.database import database, retried
from django_ojs.errors import ResultTooLarge
from django_ojs.events import catalogue, log
from django_ojs.events.catalogue import Record
from django_ojs.models import Job
from django_ojs.models.job import JobRow
from django_ojs.rules import envelope
from django_ojs.rules.durations import format_instant
from django_ojs.states import State
from django_ojs.store.base import Ack, holds

#: What the events need of a job.
COLUMNS = ("id", "type", "queue", "state", "attempt", "worker_id", "trace_id", "workflow_id", "result", "result_ttl",
           "finished_at")  # fmt: skip


def stored(rows: Sequence[JobRow], now: dt.datetime, using: str) -> None:
    """Write the events of those of the completed jobs that have a result to keep."""
    kept = [row for row in rows if row["result"] is not None and envelope.result_ttl(row) != 0]
    log.append([_of_row("result.stored", row, now) for row in kept], using)


def rejected(refusals: Sequence[tuple[Ack, ResultTooLarge]], now: dt.datetime, using: str) -> None:
    """Write that these results were over the limit, for jobs that the caller may complete; the jobs stay active."""
    acks = {ack.job_id: ack for ack, _ in refusals}
    rows = {row["id"]: row for row in Job.objects.using(using).filter(pk__in=list(acks)).rows()} if acks else {}
    held = [(rows.get(ack.job_id), ack, error) for ack, error in refusals]
    records = [
        rejection(row, now, size_bytes=error.details["actual_bytes"], max_bytes=error.details["max_bytes"])
        for row, ack, error in held
        if row is not None and holds(row, ack.worker_id, ack.attempt)
    ]
    log.append(records, using)


def rejection(row: Mapping[str, Any], now: dt.datetime, **facts: Any) -> Record:
    return catalogue.of_job(
        "result.rejected", row, now, "workers", worker_id=row["worker_id"], reason="RESULT_TOO_LARGE", **facts
    )


@retried
def retrieved(rows: Sequence[JobRow], *, using: str | None = None) -> None:
    """Write that the endpoints for results showed the results of these jobs. INFO never writes."""
    if not ojs_settings.EXTENSION_EVENTS:
        return
    using = database(using)
    now = clock.now(using)
    there = [row for row in rows if row["state"] == State.COMPLETED and row["result"] is not None]
    shown = [row for row in there if not envelope.result_is_gone(row, now)]
    log.append([_of_row("result.retrieved", row, now)._replace(component="api", worker_id="") for row in shown], using)


def _of_row(type: str, row: Mapping[str, Any], now: dt.datetime) -> Record:
    end = envelope.result_expires_at(row)
    facts = {"size_bytes": jsontext.byte_length(row["result"]), "expires_at": format_instant(end) if end else None}
    return catalogue.of_job(type, row, now, "workers", worker_id=row["worker_id"], **facts)
