"""Lets the handler of a durable job run other jobs: enqueues them with the record of the step, and follows them.

The jobs of one call are a workflow, whose `parent_id` is the job of the handler. It is a group, so all of them run
whatever becomes of the others. `workflows.parents` tells the parent when the last has ended.
"""

from __future__ import annotations

import uuid
from typing import Any

from django.db.models import Exists, OuterRef, Q

from django_ojs import clock, spellings, states
from django_ojs.database import atomic, database, retried
from django_ojs.errors import Conflict, NotFound
from django_ojs.jobs import steps
from django_ojs.models import Job, Workflow
from django_ojs.rules.steps import Step
from django_ojs.store import store_of
from django_ojs.store.steps import Holder
from django_ojs.workflows import parents, workflow
from django_ojs.workflows.parents import Parent


@retried
def begin(
    holder: Holder, step: Step, document: dict[str, Any], *, limit: int = 0, outlives: bool = False, using: str
) -> bool:
    """Record this step and enqueue its jobs, both or neither; False where the job is no longer this run's.

    `document` is a workflow as clients send it, whose id is the key of the event that the step waits for. At most
    `limit` of its jobs are enqueued at the same time; 0: all. Raises `StepExists`, and what creating a workflow raises.
    """
    plan = spellings.read_workflow(document, now=clock.now(using)).limited(limit)
    with atomic(using=using):
        if not steps.record(holder, step, using=using):
            return False
        workflow.create(plan, parent=Parent(holder.job_id, outlives), using=using)
    return True


def follow_up(*, limit: int = 100, using: str | None = None) -> int:
    """Tell parents that could not be told when their jobs ended, and cancel jobs whose parents have ended or have
    forgotten them; return how many workflows that was."""
    using = database(using)
    flows = Workflow.objects.using(using)
    untold = flows.filter(awaited=True, finished_at__isnull=False).order_by("finished_at")
    done = sum(_tell(pk, using) for pk in list(untold.values_list("pk", flat=True)[:limit]))
    live = Job.objects.using(using).filter(pk=OuterRef("parent_id")).exclude(state__in=states.ordered(states.TERMINAL))
    left = flows.filter(
        Q(awaited__isnull=True) | ~Exists(live), parent_id__isnull=False, outlives_parent__isnull=True,
        state=Workflow.State.RUNNING,
    )  # fmt: skip
    return done + sum(_cancel(pk, job_id, using) for pk, job_id in list(left.values_list("pk", "parent_id")[:limit]))


@retried
def _tell(pk: uuid.UUID, using: str) -> bool:
    with atomic(using=using):
        found = Workflow.objects.using(using).select_for_update(skip_locked=store_of(using).skip_locked)
        if not found.filter(pk=pk, awaited=True, finished_at__isnull=False).values_list("pk"):
            return False
        parents.tell([pk], using=using)
    return not Workflow.objects.using(using).filter(pk=pk, awaited=True).exists()


def _cancel(pk: uuid.UUID, job_id: uuid.UUID | None, using: str) -> bool:
    """Cancel a workflow unless its parent runs again by now. If that is retried later, it enqueues its jobs anew."""
    if job_id is None or not _withdraw(pk, job_id, using):
        return False
    try:
        workflow.cancel(pk, cancel_active=True, cancelled_by="system", reason="Its parent has ended.", using=using)
    except (Conflict, NotFound):  # it has ended meanwhile
        return False
    return True


@retried
def _withdraw(pk: uuid.UUID, job_id: uuid.UUID, using: str) -> bool:
    with atomic(using=using):
        rows = store_of(using).lock([job_id], columns=("id", "state"))
        if not rows or rows[0]["state"] in states.TERMINAL:
            store_of(using).certify(Job.objects.using(using).filter(pk=job_id), "finished_at")
            steps.withdraw(job_id, str(pk), using=using)
            return True
        return Workflow.objects.using(using).filter(pk=pk, awaited__isnull=True).exists()
