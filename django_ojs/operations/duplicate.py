"""Run a copy: PUSH a job anew from what its client sent. The old job, whatever its state, stays as it is."""

from __future__ import annotations

import uuid
from typing import Any

from django_ojs import jsontext
from django_ojs.errors import Conflict, NotFound, OJSError
from django_ojs.models import Job
from django_ojs.models.job import JobRow
from django_ojs.operations.common import database
from django_ojs.operations.push import push_each
from django_ojs.told import told

#: What belonged to the old job's time, and to its history.
_LEFT_OUT = frozenset({"scheduled_at", "expires_at", "x_previous_errors"})


def duplicate(job_id: uuid.UUID, *, using: str | None = None) -> JobRow:
    """Enqueue a copy, to run now; return its row. A workflow's job is copied alone, outside the workflow.

    Raises `NotFound`, whatever refuses a push (`Duplicate`, `QueueFull`), and `Conflict` where a push is answered
    with a job that is there already, or dropped by a middleware.
    """
    using = database(using)
    found = Job.objects.using(using).filter(pk=job_id).rows()
    if not found:
        raise NotFound.resource("job", str(job_id))
    (outcome,) = push_each([_document(found[0])], partial=True, using=using)
    if isinstance(outcome, OJSError):
        raise outcome
    if outcome.status != "created" or outcome.row is None:
        facts = {"job_id": job_id, "status": outcome.status}
        if outcome.row is None:
            raise Conflict(told("No copy of job '%(job_id)s' was enqueued (%(status)s).", **facts))
        raise Conflict(
            told(
                "No copy of job '%(job_id)s' was enqueued: '%(other)s' is there already (%(status)s).",
                other=outcome.row["id"], **facts,
            )
        )  # fmt: skip
    return outcome.row


def _document(row: JobRow) -> dict[str, Any]:
    extra = jsontext.loads(row["extra"]) if row["extra"] else {}
    document = {"type": row["type"], "queue": row["queue"], "priority": row["priority"]}
    document |= {"args": jsontext.loads(row["args"]), "meta": jsontext.loads(row["meta"])}
    return document | {name: value for name, value in extra.items() if name not in _LEFT_OUT}
