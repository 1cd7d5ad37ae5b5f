"""Create, read, cancel and resume whole workflows (orchestration 1.1, 1.3 and 1.9)."""

from __future__ import annotations

import contextlib
import datetime as dt
import uuid
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

from django.db import IntegrityError

from django_ojs import clock, hooks, jsontext, spellings, states
from django_ojs.access import UNLIMITED, Limits
from django_ojs.database import atomic, database, retried
from django_ojs.errors import Conflict, Duplicate, NotFound, OJSError
from django_ojs.events import log
from django_ojs.faults import only_if_taken
from django_ojs.hooks import replaceable
from django_ojs.jobs.cancel import cancel as cancel_jobs
from django_ojs.jobs.retry import retry as retry_jobs
from django_ojs.messages import phrase
from django_ojs.models import Job, Workflow, WorkflowStep
from django_ojs.models.job import JobRow
from django_ojs.models.workflow import know
from django_ojs.rules import workflowgraph as rules
from django_ojs.rules import workflows
from django_ojs.rules.ids import new_id, new_job_id
from django_ojs.rules.names import is_storable
from django_ojs.rules.workflows import Plan
from django_ojs.states import State, Verb
from django_ojs.store import store_of
from django_ojs.workflows import advance, events, graphs, parents
from django_ojs.workflows.events import LockedWorkflow, WholeFlow
from django_ojs.workflows.parents import Parent

T = TypeVar("T")
_NONE = uuid.UUID(int=0)  #: the key of no workflow

#: What a brief view has of each job.
BRIEF = ("id", "state", "attempt", "started_at", "finished_at")
#: How often a cancellation tries anew when members come and go while it collects their locks.
_TRIES = 20
#: A failed member in one of these states has to run again.
_NOT_COMPLETED = frozenset({State.DISCARDED, State.CANCELLED})


class WorkflowView(NamedTuple):
    """A workflow with its steps in the order of their positions, and the rows of the jobs that exist."""

    workflow: Workflow
    steps: list[WorkflowStep]
    jobs: dict[uuid.UUID, JobRow]


@replaceable("create_workflow")
@retried
def create(
    document: object, *, key: uuid.UUID | None = None, limits: Limits = UNLIMITED, parent: Parent | None = None,
    using: str | None = None,
) -> WorkflowView:  # fmt: skip
    """Store a workflow, given as a client sends it or as a `Plan`, and enqueue what can start, all or nothing.

    `key` is the primary key that was promised for one whose own id is no UUID. `limits` are those of the caller, by
    which all of its jobs are pushed, also those whose turn comes later. `parent` is the job whose handler runs it.

    Raises InvalidWorkflow, Unsupported, PayloadTooLarge; Duplicate for an id that is taken and for a first
    job that a unique policy rejects or ignores; MiddlewareRejected.
    """
    using = database(using)
    now = clock.now(using)
    plan = document if isinstance(document, Plan) else spellings.read_workflow(document, now=now)
    with hooks.inside(hooks.around_workflow, plan) as told_of:
        view = _store(plan, now, key, limits, parent, using)
        for tell_id in told_of:
            tell_id(view.workflow.public_id)
    return view


def _store(
    plan: Plan, now: dt.datetime, key: uuid.UUID | None, limits: Limits, parent: Parent | None, using: str
) -> WorkflowView:
    """The workflow as it is stored: once that is committed, a worker may change it at any time."""
    flow, steps = draft(plan, now, key, limits, parent)
    with atomic(using=using):
        try:
            with atomic(using=using):
                flow.row.save(using=using, force_insert=True)
        except IntegrityError as error:
            only_if_taken(error)
            details = {"workflow_id": flow.shape.public_id, "field": "id"}
            text = phrase("A workflow with the id '%(id)s' exists already.", id=flow.shape.public_id)
            raise Duplicate(text, details=details) from error
        WorkflowStep.objects.using(using).bulk_create(steps)
        log.append(events.created(flow, now), using)
        _start(flow, plan, now, using)
        return info(flow.row.pk, using=using)


@replaceable("read_workflow")
def info(workflow_id: uuid.UUID, *, brief: bool = False, using: str | None = None) -> WorkflowView:
    """The workflow; with `brief` without the documents of its steps, and of its jobs only `BRIEF`. Raises NotFound."""
    using = database(using)
    flow = Workflow.objects.using(using).select_related("start").filter(pk=workflow_id).first()
    if flow is None:
        raise NotFound.resource("workflow", str(workflow_id))
    found = WorkflowStep.objects.using(using).filter(workflow_id=workflow_id).order_by("position")
    steps = list(found.defer("document") if brief else found)
    ids = [s.job_id for s in steps if s.job_id and flow.progress[s.position] not in (rules.WAITING, rules.NEVER)]
    rows = Job.objects.using(using).filter(pk__in=ids).rows(BRIEF if brief else None)
    return WorkflowView(flow, steps, {row["id"]: row for row in rows})


def identify(text: str, *, using: str | None = None) -> uuid.UUID:
    """The key of the workflow that a client calls `text`. Raises NotFound."""
    (key,) = keys_of([text], using=using)
    if key == _NONE:
        raise NotFound.resource("workflow", text[:128])
    return key


def keys_of(texts: Sequence[str], *, using: str | None = None) -> tuple[uuid.UUID, ...]:
    """The keys of the workflows that a filter names. What there is not has a key that finds nothing."""
    keys: dict[str, uuid.UUID] = {}
    for text in texts:
        if len(text) == 36:
            with contextlib.suppress(ValueError):
                keys[text] = uuid.UUID(text)
    if own := {text for text in texts if text not in keys and is_storable(text)}:
        found = Workflow.objects.using(database(using)).filter(own_id__in=own)
        keys |= {str(name): key for name, key in found.values_list("own_id", "pk")}
    return tuple(keys.get(text, _NONE) for text in texts)


class CancelledWorkflow(NamedTuple):
    view: WorkflowView
    steps_cancelled: int
    steps_already_completed: int


@replaceable("cancel_workflow")
@retried
def cancel(
    workflow_id: uuid.UUID, *, cancel_active: bool = False, cancelled_by: str = "", reason: str = "",
    using: str | None = None,
) -> CancelledWorkflow:  # fmt: skip
    """Cancel a running workflow: what waits never runs, active members end by themselves unless `cancel_active`.

    Raises NotFound, and Conflict for a workflow that has ended.
    """
    using = database(using)
    kinds = states.sources(Verb.CANCEL) - (frozenset() if cancel_active else {State.ACTIVE})

    def attempt() -> tuple[int, int] | None:
        now = clock.now(using)
        jobs = _live_jobs(workflow_id, kinds, using)
        locked = {row["id"] for row in store_of(using).lock(jobs) if row["state"] in kinds}
        flow = _locked(workflow_id, "cancel", [Workflow.State.RUNNING], using)
        if set(_live_jobs(workflow_id, kinds, using)) - locked:
            return None
        before = list(flow.letters)
        flow.row.state, flow.row.finished_at = Workflow.State.CANCELLED, now
        positions = _positions(workflow_id, locked, using)
        rules.cancel(flow.letters, positions)
        advance.save([flow], [], using)  # ended: what the members report from now on changes nothing
        cancel_jobs(sorted(locked), cancelled_by=cancelled_by, reason=reason, using=using)
        log.append([flow.record("workflow.cancelled", now, cancelled_by=cancelled_by or "system")], using)
        if flow.shape.parent_id is not None:
            parents.tell([workflow_id], using=using)
        leaves = flow.shape.graph.leaves
        stopped = sum(before[leaf] in rules.OPEN and flow.letters[leaf] not in rules.OPEN for leaf in leaves)
        return stopped, sum(before[leaf] == rules.COMPLETED for leaf in leaves)

    stopped, completed = _persist(attempt, using)
    return CancelledWorkflow(info(workflow_id, using=using), stopped, completed)


@retried
def retry(workflow_id: uuid.UUID, *, limits: Limits = UNLIMITED, using: str | None = None) -> WorkflowView:
    """Let a failed workflow go on from where it failed: its failed jobs run again, what waited for them waits anew.

    Dead letters are revived; a job that was cancelled, refused or deleted is made anew. This and all later jobs are
    pushed within the `limits` of the caller and of whoever created the workflow. Where an operator has retried a failed
    job by itself since, that run counts: the workflow takes its result, or waits for it. Raises NotFound, and Conflict
    for a workflow that has not failed.
    """
    using = database(using)

    def attempt() -> bool | None:
        now = clock.now(using)
        flow = Workflow.objects.using(using).filter(pk=workflow_id).first()
        faulty = rules.causes(flow.shape, flow.progress) if flow and flow.state == Workflow.State.FAILED else []
        steps = WorkflowStep.objects.using(using).filter(workflow_id=workflow_id, position__in=faulty)
        jobs = [step.job_id for step in steps if step.job_id]
        members = store_of(using).lock(jobs)
        locked = _locked(workflow_id, "retry", [Workflow.State.FAILED], using)
        if flow is None or locked.row.progress != flow.progress:
            return None
        advance.limit(locked, limits, using)
        _resume(locked, faulty, list(steps), members, now, using)
        return True

    hooks.together(lambda: _persist(attempt, using))
    return info(workflow_id, using=using)


def _resume(
    flow: LockedWorkflow, faulty: list[int], steps: list[WorkflowStep], members: list[JobRow], now: dt.datetime,
    using: str,
) -> None:  # fmt: skip
    for outcome in retry_jobs([row["id"] for row in members if _is_dead_letter(row)], using=using):
        if isinstance(outcome, OJSError):
            raise outcome
    rules.reopen(flow.shape.graph, flow.letters, faulty)
    kept = {row["id"] for row in members if row["state"] not in _NOT_COMPLETED or _is_dead_letter(row)}
    anew = [step for step in steps if step.job_id not in kept]
    for step in anew:  # what cannot be revived waits for its turn, under a new id
        step.job_id, step.error = new_job_id(), None
        flow.letters[step.position] = rules.WAITING
    if anew:  # written anew as well: an UPDATE with a CASE for each of a thousand steps takes seconds
        WorkflowStep.objects.using(using).filter(pk__in=[step.pk for step in anew])._raw_delete(using)
        WorkflowStep.objects.using(using).bulk_create(anew)
    flow.row.state, flow.row.finished_at, flow.row.error = Workflow.State.RUNNING, None, None
    if flow.shape.parent_id is not None:  # which knows of the failure, and may have ended
        Workflow.objects.using(using).filter(pk=flow.row.pk).update(outlives_parent=True)
    ousted = advance.go_on([flow], [], now, using, whole=True)
    completed = [row for row in members if row["state"] == State.COMPLETED]
    advance.on_jobs_ended([*ousted, *completed], now, using)


def draft(
    plan: Plan, now: dt.datetime, key: uuid.UUID | None = None, limits: Limits = UNLIMITED,
    parent: Parent | None = None,
) -> tuple[WholeFlow, list[WorkflowStep]]:  # fmt: skip
    """The rows of a new workflow, not stored yet, with its letters before anything has begun."""
    flow = _flow(plan, now, key, limits, parent)
    Workflow.start.related.set_cached_value(flow.row, None)  # there is nothing to look up yet
    return flow, [_step(flow.row, step) for step in plan.steps]


def _flow(plan: Plan, now: dt.datetime, key: uuid.UUID | None, limits: Limits, parent: Parent | None) -> WholeFlow:
    pk, own = key or new_id(), plan.id
    try:
        if len(own) == 36:
            pk, own = uuid.UUID(own), ""
    except ValueError:
        pass  # a name that only looks as long as a UUID
    row = Workflow(pk=pk, own_id=own or None, name=plan.name, type=plan.type, graph=plan.graph.encode(), created_at=now)
    know(row.pk, row.own_id)
    row.job_count, row.limits = len(plan.graph.leaves), limits.to_json()
    if parent is not None:
        row.parent_id, row.awaited, row.outlives_parent = parent.job_id, True, parent.outlives or None
    facts = {"workflow_id": row.public_id, "workflow_name": plan.name or plan.type, "workflow_type": plan.type}
    row.facts = jsontext.dumps(facts | {"total_steps": row.job_count})[1:-1]
    letters = [rules.WAITING] * len(plan.graph.nodes)
    row.progress = "".join(letters)
    shape = graphs.WorkflowShape(plan.graph, row.public_id, row.facts, limits, row.parent_id)
    return WholeFlow(row, shape, letters)


def _step(flow: Workflow, step: workflows.PlannedStep) -> WorkflowStep:
    made = WorkflowStep(workflow=flow, position=step.position, step_id=step.id, type=step.type, queue=step.queue)
    if step.document is not None:
        made.job_id = new_job_id()
        made.document = jsontext.dumps(step.document)
    return made


def _start(flow: LockedWorkflow, plan: Plan, now: dt.datetime, using: str) -> None:
    """Enqueue what can start. Unlike later, a refusal of one of these jobs is one of the whole workflow."""
    ready = rules.evaluate(flow.shape.graph, flow.letters)
    ousted: list[JobRow] = []
    try:
        refused = advance.enqueue([(flow, position) for position in ready], now, ousted, using, strict=True)
    except OJSError as error:
        step = plan.steps[ready[error.details.get("index", 0)] - 1]
        error.details |= {"index": plan.graph.nodes[step.position].place, "step_id": step.id, "path": step.path}
        raise
    if refused:
        ousted += advance.go_on([flow], [], now, using)
    else:
        advance.save([flow], [], using)
    advance.on_jobs_ended(ousted, now, using)


def _locked(workflow_id: uuid.UUID, verb: str, expected: Sequence[str], using: str) -> LockedWorkflow:
    """The workflow, locked and in one of these states."""
    row = Workflow.objects.using(using).select_for_update().filter(pk=workflow_id).first()
    if row is None:
        raise NotFound.resource("workflow", str(workflow_id))
    if row.state not in expected:
        details = {"workflow_id": row.public_id, "current_state": row.word, "attempted": verb,
                   "expected_state": list(map(str, expected))}  # fmt: skip
        raise Conflict(
            phrase(
                "Cannot %(verb)s workflow '%(public_id)s': it is %(word)s.",
                verb=verb,
                public_id=row.public_id,
                word=str(row.word),
            ),
            details=details,
        )
    return LockedWorkflow(row, graphs.shape_of(row), list(row.progress))


def _live_jobs(workflow_id: uuid.UUID, kinds: frozenset[State], using: str) -> list[uuid.UUID]:
    steps = WorkflowStep.objects.using(using).filter(workflow_id=workflow_id, job__state__in=states.ordered(kinds))
    return [row[0] for row in steps.values_list("job_id")]


def _positions(workflow_id: uuid.UUID, jobs: set[uuid.UUID], using: str) -> list[int]:
    steps = WorkflowStep.objects.using(using).filter(workflow_id=workflow_id).values_list("job_id", "position")
    return [position for job_id, position in steps if job_id in jobs]


def _is_dead_letter(row: JobRow) -> bool:
    return row["state"] == State.DISCARDED and bool(row["dead_letter"])


def _persist(attempt: Callable[[], T | None], using: str) -> T:
    """`attempt` in a transaction of its own, again while it gives None.

    Jobs are locked before their workflow, as everywhere; members that came in between are not among them, so
    the locks are given back and collected anew.
    """
    for _ in range(_TRIES):
        with contextlib.suppress(_Again), atomic(using=using):
            if (result := attempt()) is not None:
                return result
            raise _Again
    raise Conflict(phrase("The workflow changes faster than it can be locked; try again."))


class _Again(Exception):
    """The members changed between the two locks."""
