"""The steps that durable handlers record: read them, add one, replace an unfinished one, delete them.

Every change is fenced: it needs the run that holds the job. A run that has lost it changes nothing.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import itertools
import uuid
from collections.abc import Collection
from typing import Any

from django.db import IntegrityError, connections
from django.db.models import Exists, ExpressionWrapper, F, OuterRef, Q, QuerySet, Subquery, TextField

from django_ojs import clock, states
from django_ojs.database import atomic, database, retried
from django_ojs.errors import NotFound
from django_ojs.faults import only_if_taken
from django_ojs.messages import phrase
from django_ojs.models import Approval, Job, JobCheckpoint, JobStep, Workflow
from django_ojs.models.fields import RawJSON
from django_ojs.models.job import JobRow
from django_ojs.rules import replaylog
from django_ojs.rules.approvals import ApprovalState
from django_ojs.rules.names import is_storable
from django_ojs.rules.steps import CLEARED, INSIDE, UNDOING, Step, StepExists, StepKind
from django_ojs.states import State
from django_ojs.store import steps as statements
from django_ojs.store import store_of
from django_ojs.store.steps import Holder

#: The columns of a step in the order of its fields, without the result.
_FIELDS = tuple(field.name for field in dataclasses.fields(Step))[:-1]
#: Those of a job that is to undo another one: they were that job's.
_HANDED_OVER = Q(kind=StepKind.UNDO, event_name=None)


def of(job_id: uuid.UUID, *, latest: int | None = None, using: str | None = None) -> list[Step]:
    """The recorded steps of a job in the order in which they were recorded; so many of them, the latest, for people;
    None: all, with the mark of a record that was deleted."""
    found = JobStep.objects.using(database(using)).filter(job_id=job_id).order_by("pk" if latest is None else "-pk")
    if latest is not None:
        found = found.exclude(name=CLEARED)
    text: Any = ExpressionWrapper(F("result"), output_field=TextField())  # as it is kept
    steps = [Step(*values) for values in found.values_list(*_FIELDS, text)[:latest]]
    return steps if latest is None else steps[::-1]


@retried
def record(holder: Holder, step: Step, *, locked: bool = False, using: str) -> bool:
    """Add this step; False where the job is no longer this run's. Raises `StepExists`.

    One statement, which is its own transaction unless one is open. `locked`: the effects of the step are in the open
    transaction, and what would take the job away waits until it ends.
    """
    connection = connections[using]
    try:
        if not connection.in_atomic_block:
            return statements.insert(holder, step, connection, locked=locked)
        with atomic(using=using):
            if locked:
                store_of(using).certify(Job.objects.using(using).filter(_is(holder)), "visible_until")
            return statements.insert(holder, step, connection, locked=locked)
    except IntegrityError as error:
        only_if_taken(error)
        raise StepExists(step.name) from error


@retried
def replace(holder: Holder, step: Step, *, locked: bool = False, using: str) -> bool:
    """Write this step over the unfinished one of its name; False where the job is no longer this run's.

    `locked` as of `record`.
    """
    if locked and not _lock(holder, using):
        return False
    found = JobStep.objects.using(using).filter(_held(holder), name=step.name, ended_at=None)
    return bool(found.update(**_values(step)))


@retried
def delete_all(holder: Holder, *, using: str) -> bool:
    """Delete all steps of the job, whose code has changed; False where the job is no longer this run's."""
    with atomic(using=using):
        if not _lock(holder, using):
            return False
        delete([holder.job_id], using=using)
    return True


@retried
def start_over(holder: Holder, arguments: Step, *, using: str) -> bool:
    """Replace all steps of the job by its new arguments; False where the job is no longer this run's."""
    with atomic(using=using):
        if not _lock(holder, using):
            return False
        delete([holder.job_id], using=using)
        JobStep.objects.using(using).create(job_id=holder.job_id, **_values(arguments))
    return True


def of_clients(job_id: uuid.UUID, now: dt.datetime, *, using: str) -> list[Step]:
    """The steps in the replay log that a client of another language has kept in the job's checkpoint."""
    metadata: Any = JobCheckpoint.objects.using(using).filter(pk=job_id).values_list("metadata", flat=True).first()
    return replaylog.read((metadata or {}).get(replaylog.LOG), now)


def delete(job_ids: Collection[uuid.UUID], *, using: str) -> int:
    """Delete the steps of jobs that the caller has locked: their handlers start over. Return how many there were."""
    return _delete(_own(job_ids, using), job_ids, using)


def mark_deleted(row: JobRow, now: dt.datetime, *, using: str) -> None:
    """Let the next run of an active job, whose steps were deleted, start over whatever this run still records."""
    mark = Step(CLEARED, StepKind.ARGUMENTS, now, row["attempt"], ended_at=now)
    JobStep.objects.using(using).bulk_create([JobStep(job_id=row["id"], **_values(mark))], ignore_conflicts=True)


def _own(job_ids: Collection[uuid.UUID], using: str) -> QuerySet[JobStep]:
    """What these jobs have recorded themselves: where one undoes another, not what says what is to be undone."""
    found = JobStep.objects.using(using).filter(job_id__in=job_ids)
    undoing = list(found.filter(_HANDED_OVER).values_list("job_id", flat=True).distinct())
    return found.exclude(~Q(name__startswith=UNDOING), job_id__in=undoing) if undoing else found


def named(job_id: uuid.UUID, name: str, *, using: str) -> QuerySet[JobStep]:
    """What a job has recorded under this name, whatever a caller wrote: no step has a name that no database holds."""
    found = JobStep.objects.using(using).filter(job_id=job_id)
    return found.filter(name=name) if is_storable(name) else found.none()


def delete_from(job_id: uuid.UUID, name: str, *, using: str) -> int:
    """Delete this step of a job that the caller has locked, the ones that it is inside of, what it did inside, and what
    was recorded after it: its handler does that again, and keeps the others, also where the record was deleted before.
    Return how many there were. Raises NotFound where nothing of the name is recorded."""
    found = _own([job_id], using)
    anew = named(job_id, name, using=using).exclude(kind=StepKind.ARGUMENTS) & found
    pk = anew.values_list("pk", flat=True).first()
    if pk is None:
        raise NotFound(
            phrase("Job '%(job)s' has recorded no step '%(step)s'.", job=job_id, step=name),
            details={"resource_type": "step", "resource_id": name},
        )
    around = itertools.accumulate(name.split(INSIDE), lambda outer, one: outer + INSIDE + one)
    again = Q(pk__gte=pk) | Q(name__startswith=name + INSIDE) | Q(name__in=list(around))
    found.filter(name=CLEARED).update(ended_at=None)
    return _delete(found.filter(again), [job_id], using)


def _delete(found: Any, job_ids: Collection[uuid.UUID], using: str) -> int:
    """Delete these steps of locked jobs, and what they wait for. A wait for people is asked anew, with all others of
    the job that no user has decided."""
    if keys := list(_of_children(found).values_list("event_key", flat=True)):
        _leave(keys, using)
    count: int = found._raw_delete(using) or 0  # None where it is clear without a statement
    if count:
        close_approvals(job_ids, clock.now(using), using=using)
    return count


def hand_over(job_id: uuid.UUID, to: uuid.UUID, now: dt.datetime, *, using: str) -> None:
    """Give the steps of a job that the caller has locked, and which has ended, to another job, but for what they still
    waited for."""
    found = JobStep.objects.using(using).filter(job_id=job_id)
    sleeps = Q(kind=StepKind.SLEEP, due_at__lte=now)
    left = found.filter(ended_at__isnull=True).exclude(sleeps).exclude(kind__in=(StepKind.UNDO, StepKind.CALL))
    _delete(left, [job_id], using)
    found.update(job_id=to)


def undone_by(job_ids: Collection[uuid.UUID], *, using: str) -> dict[uuid.UUID, uuid.UUID]:
    """By these jobs, which the caller has locked: the jobs that are to undo what they did and have not done so yet.

    Such a job has steps that were handed over to it, which no client can give it; what its envelope says counts not.
    """
    handed = JobStep.objects.filter(_HANDED_OVER, job_id=OuterRef("pk")).order_by("name")
    found = Job.objects.using(using).filter(parent_id__in=list(job_ids))
    found = found.exclude(state__in=(State.COMPLETED, State.CANCELLED))
    # Looked up for each job: as EXISTS it may become a join with all steps.
    found = found.alias(handed=Subquery(handed.values("pk")[:1])).filter(handed__isnull=False)
    return {job_id: pk for job_id, pk in found.values_list("parent_id", "pk") if job_id is not None}


def undoes(job_id: uuid.UUID, *, using: str) -> bool:
    """Whether the job undoes another one, or has done so, as `undone_by` knows it."""
    return JobStep.objects.using(using).filter(_HANDED_OVER, job_id=job_id).exists()


def withdraw(job_id: uuid.UUID, key: str, *, using: str) -> None:
    """Forget that a job, which the caller has locked, waits for the jobs of this workflow: if it runs again, it
    enqueues such jobs anew."""
    _of_children(JobStep.objects.using(using).filter(job_id=job_id, event_key=key))._raw_delete(using)
    _leave([key], using)


def _of_children(found: Any) -> Any:
    return found.filter(kind=StepKind.CHILDREN, ended_at__isnull=True)


def _leave(keys: Collection[str], using: str) -> None:
    """No job waits for the end of these workflows any more, and `workflows.children` cancels them."""
    Workflow.objects.using(using).filter(pk__in=list(keys)).update(awaited=None)


def close_approvals(job_ids: Collection[uuid.UUID], now: dt.datetime, *, ended: bool = False, using: str) -> int:
    """Close the open approvals of these jobs, which have ended or no longer wait; return how many there were.

    The caller has locked the jobs, unless it says that they have `ended`: those that run again meanwhile keep theirs.
    """
    found = Approval.objects.using(using).filter(job_id__in=list(job_ids), state=ApprovalState.OPEN)
    if ended:
        live = states.ordered(set(State) - states.TERMINAL)
        found = found.filter(~Q(Exists(Job.objects.filter(pk=OuterRef("job_id"), state__in=live))))
    return found.update(state=ApprovalState.CLOSED.value, decided_at=now, next_at=None)


def _lock(holder: Holder, using: str) -> bool:
    """Lock the job's row; whether it is still this run's."""
    rows = Job.objects.using(using).filter(_is(holder))
    if rows.select_for_update().values_list("pk").first() is None:
        return False
    store_of(using).certify(rows, "visible_until")
    return True


def _is(holder: Holder) -> Q:
    return Q(pk=holder.job_id, state=State.ACTIVE, worker_id=holder.worker_id, attempt=holder.attempt)


def _held(holder: Holder) -> Q:
    return Q(job_id=holder.job_id) & Q(Exists(Job.objects.filter(_is(holder))))


def _values(step: Step) -> dict[str, Any]:
    values = {name: getattr(step, name) for name in _FIELDS}
    if step.event_name is None:
        del values["event_name"], values["event_key"]
    values["result"] = None if step.result is None else RawJSON(step.result)
    return values
