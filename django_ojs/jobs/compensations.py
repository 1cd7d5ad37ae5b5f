"""Enqueue the job that undoes what a durable handler did whose own job was discarded or cancelled
(`context.on_failure`).

A handler records each call that would undo something as a step of the kind `undo`. The scheduler looks for such steps
whose jobs have ended. So the verbs that end jobs do nothing for them, and none can forget them: neither a cancellation
by SQL nor one while the scheduler was away. If a caller deletes a job, or lets it begin anew, before the scheduler has
looked, the server enqueues the job that undoes it first (`undo_first`). `retention` does not delete such a job. The
steps move to the new job, of the same type and queue. So the old job has no record any more, and starts over if it is
retried.
"""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Collection
from typing import Any

from django.db import Error
from django.db.models import OuterRef, Q, QuerySet, Subquery

from django_ojs import clock, jsontext, output, states
from django_ojs.conf import ojs_settings
from django_ojs.database import atomic, database, retried
from django_ojs.errors import BackendUnavailable, Conflict, OJSError, sentence_of
from django_ojs.faults import is_general
from django_ojs.guard import get_logger
from django_ojs.jobs import steps
from django_ojs.jobs.copy import document_of
from django_ojs.jobs.push import push
from django_ojs.lifecycle.transitions import outcome_of
from django_ojs.messages import phrase
from django_ojs.models import Job, JobAttempt, JobStep
from django_ojs.models.job import JobRow
from django_ojs.rules import redaction
from django_ojs.rules.durations import format_instant
from django_ojs.rules.ids import new_job_id
from django_ojs.rules.steps import COMPENSATES, JOB_FAILED
from django_ojs.states import State
from django_ojs.store import store_of

logger = get_logger(__name__)

#: After how long a job is enqueued again that was refused, such as by a full queue.
_LATER = dt.timedelta(minutes=1)
#: The ends of a job after which what it did is undone.
_FAILED = (State.DISCARDED, State.CANCELLED)


def follow_up(*, limit: int = 100, using: str | None = None) -> int:
    """Enqueue what undoes the jobs that were discarded or cancelled, and forget it of those that have completed; return
    how many jobs that was."""
    using = database(using)
    now = clock.now(using)
    ended = Job.objects.filter(pk=OuterRef("job_id"), state__in=states.ordered(states.TERMINAL))
    ahead = Q(due_at__gt=now + _LATER + clock.AHEAD)  # it was refused while the clock was
    due = _registered(using).filter(Q(due_at=None) | Q(due_at__lte=now) | ahead)
    # Looked up for each step: as EXISTS it may become a join with all jobs.
    due = due.alias(ended=Subquery(ended.values("pk")[:1])).filter(ended__isnull=False)
    ids = list(due.order_by("job_id").values_list("job_id", flat=True).distinct()[:limit])
    settled = 0
    for job_id in ids:
        try:
            settled += _settle(job_id, using=using)
        except BackendUnavailable:  # maybe only what a middleware of the site asks: the next pass begins with others
            _registered(using).filter(job_id=job_id).update(due_at=now + _LATER)
            raise
    return settled


def undo_first(rows: Collection[JobRow], *, using: str) -> dict[uuid.UUID, OJSError]:
    """Enqueue what undoes those of these locked jobs that have failed, because their record is about to be deleted;
    return the jobs where that is refused, which are to keep it."""
    failed = {row["id"]: row for row in rows if row["state"] in _FAILED}
    if not failed:
        return {}
    due = _registered(using).filter(job_id__in=list(failed)).order_by("job_id")
    refused: dict[uuid.UUID, OJSError] = {}
    for job_id in due.values_list("job_id", flat=True).distinct():
        if refusal := _refused(failed[job_id], using):
            refused[job_id] = _is_not_undone(job_id, refusal)
    return refused


def without_due(jobs: QuerySet[Job]) -> QuerySet[Job]:
    """Those of these jobs for which `follow_up` has nothing to do."""
    registered = JobStep.objects.filter(job_id=OuterRef("pk"), event_name=JOB_FAILED, ended_at__isnull=True)
    # Looked up for each job: as EXISTS it may become a join with all steps. The order names the index.
    return jobs.alias(registered=Subquery(registered.order_by("name").values("pk")[:1])).filter(registered=None)


def _is_not_undone(job_id: uuid.UUID, reason: str) -> Conflict:
    return Conflict(
        phrase("What job '%(job)s' did is to be undone first, and the job for that is refused now.", job=job_id),
        details={"resource_type": "job", "resource_id": str(job_id), "reason": reason},
        hint="The scheduler tries it again each minute. Do this later.",
    )


def _registered(using: str) -> Any:
    return JobStep.objects.using(using).filter(event_name=JOB_FAILED, ended_at__isnull=True)


@retried
def _settle(job_id: uuid.UUID, *, using: str) -> bool:
    with atomic(using=using):
        rows = store_of(using).lock([job_id])
        if not rows or rows[0]["state"] not in states.TERMINAL:  # it runs again
            return False
        store_of(using).certify(Job.objects.using(using).filter(pk=job_id), "finished_at")
        registered = _registered(using).filter(job_id=job_id)
        if rows[0]["state"] == State.COMPLETED:
            return bool(registered._raw_delete(using))
        if not registered.exists():  # another scheduler was faster
            return False
        if refusal := _refused(rows[0], using):
            registered.update(due_at=clock.now(using) + _LATER)
    if refusal:
        logger.warning(
            "What undoes job %s cannot be enqueued, and is tried again in %d s: %s",
            job_id, _LATER.total_seconds(), refusal,
        )  # fmt: skip
    return not refusal


def _refused(row: JobRow, using: str) -> str:
    """Enqueue the job that undoes this locked one; why that was refused, or an empty text.

    Raises what concerns whatever is enqueued: waiting for one job does not help.
    """
    try:
        with atomic(using=using):
            _enqueue(row, using)
    except Error:
        raise
    except Exception as error:  # also what a middleware of the site raises; the caller tells it
        if is_general(error):
            raise
        return output.one_line(redaction.refusal(sentence_of(error), row["type"]))
    return ""


def _enqueue(row: JobRow, using: str) -> None:
    """Enqueue the job that undoes this locked one, and give it the steps."""
    new_id, now = new_job_id(), clock.now(using)
    steps.hand_over(row["id"], new_id, now, using=using)
    registered = _registered(using).filter(job_id=new_id)
    registered.update(event_name=None, event_key=None, due_at=None, ended_at=now)
    (pushed,) = push([_document(row, new_id, using)], component="scheduler", accepted=True, using=using)
    if pushed.row is None or pushed.row["id"] != new_id:
        raise OJSError(f"The push was answered with {pushed.status!r}.")


def _document(row: JobRow, new_id: uuid.UUID, using: str) -> dict[str, Any]:
    extra = jsontext.loads(row["extra"]) if row["extra"] else {}
    root = extra.get("root_id") or extra.get("parent_id") or str(row["id"])
    line = {"parent_id": str(row["id"]), "root_id": root, COMPENSATES: str(row["id"])}
    of_arguments = {name: extra[name] for name in ("schema", "version") if name in extra}
    document = document_of(row, of_arguments) | {"id": str(new_id)} | line
    if _was_running(row, using):
        # Its worker learns at the end of the reservation, at the latest, that it has lost the job.
        begins = row["finished_at"] + dt.timedelta(milliseconds=row["lease_ms"] or 0)
        document["scheduled_at"] = format_instant(begins)
    return document


def _was_running(row: JobRow, using: str) -> bool:
    """Whether a worker ran the job when it was cancelled or its time was over, as far as that is known; such a run may
    still do a step."""
    outcomes = JobAttempt.Outcome
    outcome = outcomes.CANCELLED if row["state"] == State.CANCELLED else outcomes.TIMED_OUT
    if not row["worker_id"]:
        return False
    if not ojs_settings.attempts_kept:
        latest = jsontext.loads(row["errors"] or "[]")[-1:]
        return outcome == outcomes.CANCELLED or any(outcome_of(error) == outcome for error in latest)
    runs = JobAttempt.objects.using(using).filter(job_id=row["id"], attempt=row["attempt"], round=row["round"] or 0)
    return runs.filter(outcome=outcome).exists()
