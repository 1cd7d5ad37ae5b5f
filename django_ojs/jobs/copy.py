"""Enqueues a copy of a job, from what its client sent."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

from django_ojs import jsontext
from django_ojs.access import UNLIMITED, Limits
from django_ojs.database import database
from django_ojs.errors import Conflict, NotFound, OJSError
from django_ojs.jobs.push import push_each
from django_ojs.messages import phrase
from django_ojs.models import Job
from django_ojs.models.job import JobRow
from django_ojs.rules import replayrules
from django_ojs.rules.steps import COMPENSATES

#: What belonged to a job's time and to its history, and is not copied.
_NOT_COPIED = frozenset({"scheduled_at", "expires_at", "x_previous_errors", COMPENSATES})


def duplicate(job_id: uuid.UUID, *, limits: Limits = UNLIMITED, using: str | None = None) -> JobRow:
    """PUSH a job anew from what its client sent, to run now; return the copy's row. The old job stays as it is, and a
    workflow's job is copied alone, outside the workflow. `limits` are those of the caller, as at PUSH.

    Raises `NotFound`, whatever refuses a push (`Duplicate`, `QueueFull`), and `Conflict` where a push is answered
    with a job that is there already, or dropped by a middleware.
    """
    using = database(using)
    found = Job.objects.using(using).filter(pk=job_id).rows()
    if not found:
        raise NotFound.resource("job", str(job_id))
    row = found[0]
    extra = jsontext.loads(row["extra"]) if row["extra"] else {}
    (outcome,) = push_each([document_of(row, extra)], partial=True, limits=limits, using=using)
    if isinstance(outcome, OJSError):
        raise outcome
    if outcome.status != "created" or outcome.row is None:
        facts = {"job_id": job_id, "status": outcome.status}
        if outcome.row is None:
            raise Conflict(phrase("No copy of job '%(job_id)s' was enqueued (%(status)s).", **facts))
        raise Conflict(
            phrase(
                "No copy of job '%(job_id)s' was enqueued: '%(other)s' is there already (%(status)s).",
                other=outcome.row["id"], **facts,
            )
        )  # fmt: skip
    return outcome.row


def document_of(row: JobRow, extra: Mapping[str, Any]) -> dict[str, Any]:
    """The envelope of a job like this one, with these of its other members."""
    document = {"type": row["type"], "queue": row["queue"], "priority": row["priority"]}
    meta = {name: value for name, value in jsontext.loads(row["meta"]).items() if name not in replayrules.META}
    document |= {"args": jsontext.loads(row["args"]), "meta": meta}
    return document | {name: value for name, value in extra.items() if name not in _NOT_COPIED}
