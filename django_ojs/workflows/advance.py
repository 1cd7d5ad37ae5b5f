"""Takes workflows further, inside the transaction in which a member ends (orchestration 1.4, 1.8 and 1.10).

`on_jobs_ended` is told of every job that has ended, after its own events; without a member among them nothing
happens. The workflow rows are locked, always after the jobs, and the letters of their progress
are changed under that lock, so two members that end at the same instant fire one callback. A
transaction that holds a workflow's lock waits for no job's lock: it only inserts jobs, which no other sees yet.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from django_ojs import hooks, jsontext, middleware
from django_ojs.access import Limits
from django_ojs.conf import ojs_settings
from django_ojs.database import atomic
from django_ojs.errors import Duplicate, OJSError
from django_ojs.events import log
from django_ojs.events.catalogue import Record
from django_ojs.faults import passes
from django_ojs.guard import get_logger
from django_ojs.jobs.candidates import Pushed, or_raise
from django_ojs.jobs.push import Owner, push_each
from django_ojs.lifecycle.ended import jobs_ended, jobs_revived
from django_ojs.messages import phrase
from django_ojs.models import Workflow, WorkflowStep
from django_ojs.models.job import JobRow
from django_ojs.rules import redaction
from django_ojs.rules import workflowgraph as rules
from django_ojs.states import TERMINAL, State
from django_ojs.store import store_of
from django_ojs.store.values import EndedMembers, FlowChange
from django_ojs.store.workflows import NEXT
from django_ojs.workflows import events, parents
from django_ojs.workflows.events import EndedMember, LockedWorkflow, Next
from django_ojs.workflows.graphs import error_of, places_of, read_steps, shapes

logger = get_logger(__name__)

_LETTERS = {
    State.COMPLETED: rules.COMPLETED, State.DISCARDED: rules.FAILED, State.CANCELLED: rules.CANCELLED,
}  # fmt: skip
_ENDS = {rules.COMPLETED: Workflow.State.COMPLETED, rules.FAILED: Workflow.State.FAILED}
#: Errors that a failed workflow spells out; the ids of all failed jobs are kept.
_SPELLED_OUT = 20
#: Beside limits that are not those of the creator alone: where the creator's are kept.
_OF_CREATOR = "creator"


@jobs_ended.subscribe
def on_jobs_ended(rows: Sequence[JobRow], now: dt.datetime, using: str, found: EndedMembers | None = None) -> None:
    """Take the workflows of those jobs further that have ended; `rows` need `id`, `workflow_id` and `state`.

    Where they have been locked and read already, `found` is what was found.
    """
    while found is not None or (ended := _ended(rows)):
        if found is None:
            found = store_of(using).lock_members(ended, set(ended.values()), errors=ojs_settings.EXTENSION_EVENTS)
        known = shapes({row.pk: row.created_at for row, _ in found.flows}, using)
        # By the number that an id is: to hash a UUID is Python code.
        flows = {
            row.pk.int: LockedWorkflow(row, known[row.pk], list(row.progress), began) for row, began in found.flows
        }
        records: list[Record] = []
        for member in map(EndedMember._make, found.ended):
            flow = flows.get(member.workflow_id.int)
            if flow is not None and flow.letters[member.position] == rules.RUNNING:
                records += _mark_ended(flow, member, now)
        rows = go_on(list(flows.values()), records, now, using, map(Next._make, found.following))
        found = None


def _ended(rows: Sequence[JobRow]) -> dict[uuid.UUID, uuid.UUID]:
    """The members of workflows among these jobs that have ended, with their workflows."""
    return {
        row["id"]: row["workflow_id"]
        for row in rows
        if row["workflow_id"] is not None and row.get("state", State.COMPLETED) in TERMINAL
    }


@jobs_revived.subscribe
def on_jobs_revived(rows: Sequence[JobRow], using: str, limits: Mapping[str, Any] | None = None) -> None:
    """Dead letters run again: their running workflows wait for them anew, unless others went on without them.

    So the caller sets off what the creators of the workflows have defined. A workflow of which the caller does not
    reach each job goes on without the job; of another one all that follows has the limits of both.
    """
    ids = [row["id"] for row in rows if row["workflow_id"] is not None]
    if not ids:
        return
    steps = WorkflowStep.objects.using(using).filter(job_id__in=ids).values_list("workflow_id", "position")
    places, reach = list(steps), Limits.of_json(limits)
    wanted = {flow for flow, _ in places}
    flows = lock_running(wanted if reach.unlimited else wanted - _beyond(wanted, reach, using), using)
    for flow_id, position in places:
        flow = flows.get(flow_id)
        if flow is None or flow.letters[position] not in rules.FAULTS:
            continue
        if not rules.is_settled_by_others(flow.shape.graph, flow.letters, position):
            rules.reopen(flow.shape.graph, flow.letters, [position])
            if not reach.unlimited:
                limit(flow, reach, using)
    if flows:
        save(list(flows.values()), [], using)


def _beyond(ids: set[uuid.UUID], limits: Limits, using: str) -> set[uuid.UUID]:
    """Those of these workflows of which a job lies beyond the limits."""
    return {flow for flow, queue, job_type in places_of(ids, using) if not limits.covers(queue, job_type)}


def limit(flow: LockedWorkflow, limits: Limits, using: str) -> None:
    """Let all that follows be pushed within the limits of the creator and of the caller, in every process."""
    row: Any = flow.row
    creator = Limits.of_json((row.limits or {}).get(_OF_CREATOR, row.limits))
    if (both := creator & limits) == flow.shape.limits:
        return
    stored = both.to_json()
    row.limits = None if stored is None else {**stored, _OF_CREATOR: creator.to_json()}
    row.created_at += dt.timedelta(microseconds=1)  # by which processes know the limits that they remember
    row.save(using=using, update_fields=["limits", "created_at"])
    flow.shape = flow.shape._replace(limits=both)


def lock_running(ids: set[uuid.UUID], using: str) -> dict[uuid.UUID, LockedWorkflow]:
    """Lock these workflows in the order of their ids; one that has ended ignores what its members still do."""
    if not ids:
        return {}
    running = Workflow.objects.using(using).select_for_update().filter(pk__in=ids, state=Workflow.State.RUNNING)
    rows = list(running.order_by("pk").defer("graph", "facts", "limits"))
    known = shapes({row.pk: row.created_at for row in rows}, using)
    return {row.pk: LockedWorkflow(row, known[row.pk], list(row.progress)) for row in rows}


def go_on(
    flows: Sequence[LockedWorkflow], records: Sequence[Record], now: dt.datetime, using: str,
    following: Iterable[Next] = (), *, whole: bool = False,
) -> list[JobRow]:  # fmt: skip
    """Store the progress with the events of what led to it, end what has ended, and enqueue what has become ready.

    `following` are steps that have been read already. With `whole` all is stored that may change, also where nothing
    has ended. A job that is refused is a failed step, by which the workflow goes on.

    Returns the jobs that had to make room for the new ones. They may be members too, of these workflows or of
    others, so they are for `on_jobs_ended`: in its loop rather than here, since one may lead to the next.
    """
    ousted: list[JobRow] = []
    awaited: list[uuid.UUID] = []
    while flows:
        ready = [(flow, position) for flow in flows for position in rules.evaluate(flow.shape.graph, flow.letters)]
        change = _change(flows, [*records, *_finish(flows, now, using)], whole=whole)
        log.notify(change.records, using)
        if not ready:
            store_of(using).save(change)
        awaited += [flow.row.pk for flow in flows if flow.shape.parent_id is not None and flow.row.finished_at]
        flows, records = enqueue(ready, now, ousted, using, following, workflow_change=change) if ready else [], ()
    if awaited:
        parents.tell(awaited, using=using)
    return ousted


def _finish(flows: Sequence[LockedWorkflow], now: dt.datetime, using: str) -> list[Record]:
    """End those of these workflows that are over; their progress is not stored yet."""
    ended = [flow for flow in flows if flow.letters[rules.ROOT] in _ENDS]
    for flow in ended:
        flow.row.state = _ENDS[flow.letters[rules.ROOT]]
        flow.row.finished_at = now
    _explain([flow for flow in ended if flow.row.state == Workflow.State.FAILED], using)
    return [events.finished(flow, now) for flow in ended]


def save(flows: Sequence[LockedWorkflow], records: Sequence[Record], using: str, *, whole: bool = False) -> None:
    """Store the progress of locked workflows, and how they ended, with these events."""
    store_of(using).save(_change(flows, records, whole=whole))
    log.notify(records, using)


def _change(flows: Sequence[LockedWorkflow], records: Sequence[Record], *, whole: bool = False) -> FlowChange:
    for flow in flows:
        flow.row.progress = "".join(flow.letters)
    whole = whole or any(flow.row.finished_at for flow in flows)
    columns = ["progress", "state", "finished_at", "error"] if whole else ["progress"]
    return FlowChange([flow.row for flow in flows], columns, records)


def _mark_ended(flow: LockedWorkflow, member: EndedMember, now: dt.datetime) -> list[Record]:
    node = flow.shape.graph.nodes[member.position]
    left = 0 if node.trigger else flow.count_down()
    flow.letters[member.position] = _LETTERS[State(member.state)]
    flow.trace_id = member.trace_id or flow.trace_id
    return events.ended(flow, member, left, now)


def enqueue(
    ready: Sequence[tuple[LockedWorkflow, int]], now: dt.datetime, ousted: list[JobRow], using: str,
    following: Iterable[Next] = (), *, workflow_change: FlowChange | None = None, strict: bool = False,
) -> list[LockedWorkflow]:  # fmt: skip
    """Push the jobs at these places, and store `workflow_change` with them or before them. Returns the workflows of
    those that were refused, which letter and step now say.

    Jobs that had to make room are added to `ousted`, and the caller owes them `on_jobs_ended`. `following` are steps
    that have been read already. With `strict` a refusal is raised instead; only a job that a middleware silently
    dropped is a failed step.
    """
    wanted = {(flow.row.pk.int, position): flow for flow, position in ready}
    found = {(step.workflow_id.int, step.position): step for step in following}
    if missing := wanted.keys() - found.keys():
        flows = {wanted[place].row.pk for place in missing}
        steps = WorkflowStep.objects.using(using).filter(
            workflow_id__in=flows, position__in={position for _, position in missing}
        )
        found |= {(step.workflow_id.int, step.position): step for step in map(Next._make, steps.values_list(*NEXT))}
    owners = {found[place].job_id: Owner(flow.row.pk, flow.shape.limits) for place, flow in wanted.items()}
    refusals = _push([found[place] for place in wanted], owners, workflow_change, ousted, using, strict)
    records: list[Record] = []
    refused: dict[uuid.UUID, LockedWorkflow] = {}
    for step, error in refusals:
        place = (step.workflow_id.int, step.position)
        flow = refused[step.workflow_id] = wanted.pop(place)
        flow.letters[step.position] = rules.REFUSED
        WorkflowStep.objects.using(using).filter(workflow_id=step.workflow_id, position=step.position).update(
            error=error
        )
        records += events.refused(flow, step, error, now)
    for place, flow in wanted.items():
        records += events.enqueued(flow, found[place], now)
    log.append(records, using)
    return list(refused.values())


def _push(
    steps: Sequence[Next], owners: Mapping[uuid.UUID | None, Owner], workflow_change: FlowChange | None,
    ousted: list[JobRow], using: str, strict: bool,
) -> list[tuple[Next, dict[str, Any]]]:  # fmt: skip
    """Push all together, or one by one to find those that are refused; returns the refused ones with the error."""
    if workflow_change and middleware.enqueue_chain:  # what they have written is undone with a refused push
        store_of(using).save(workflow_change)
    documents = [{**jsontext.loads(step.document), "id": str(step.job_id)} for step in steps]
    options: dict[str, Any] = {
        "partial": False, "workflows": owners, "ended": ousted, "workflow_change": workflow_change, "using": using,
    }  # fmt: skip
    # A refused push has written nothing itself. The middleware of the site may have.
    guard = atomic(using=using) if middleware.enqueue_chain else contextlib.nullcontext()
    ousted_before = len(ousted)
    try:
        with guard, hooks.inside(hooks.around_later_steps):
            done = or_raise(push_each(documents, **options))
    except Exception as error:
        # Whatever a middleware raises: else no member could end, and what is due for other jobs would wait with it.
        if strict or not (isinstance(error, OJSError) or (middleware.enqueue_chain and not passes(error))):
            raise
        del ousted[ousted_before:]  # these live, as the push that was to replace them is undone
        if workflow_change:
            store_of(using).save(workflow_change)
        if len(steps) > 1:
            return [refused for step in steps for refused in _push([step], owners, None, ousted, using, strict)]
        return [(steps[0], _refusal(steps[0], error))]
    if strict:
        refuse_ignored(done)
    if workflow_change:
        store_of(using).save(workflow_change)
    return [
        (step, _NOT_CREATED[pushed.status])
        for step, pushed in zip(steps, done, strict=True)
        if pushed.status in _NOT_CREATED
    ]


def _refusal(step: Next, error: Exception) -> dict[str, Any]:
    """What a step says that was not pushed because of this error."""
    if isinstance(error, OJSError):
        message = redaction.refusal_message(error.message, step.type)
        return {"code": error.error_code, "type": error.kind or error.error_code, "message": message}
    logger.error(
        "Step %s of the workflow %s has failed, as its job could not be enqueued: %s", step.step_id, step.workflow_id,
        type(error).__name__, exc_info=None if redaction.hides_refusal(step.type) else error,
    )  # fmt: skip
    return {"code": "internal_error", "type": "internal_error", "message": f"{type(error).__name__} was raised."}


def refuse_ignored(done: Sequence[Pushed]) -> None:
    """Raise Duplicate where one of these jobs, with which a workflow begins, is ignored by its unique policy."""
    for index, pushed in enumerate(done):
        if pushed.status == "duplicate" and (row := pushed.row) is not None:
            state = str(row["state"])
            details = {"existing_job_id": str(row["id"]), "existing_job_state": state, "existing_state": state}
            message = phrase(
                "A unique job of type '%(type)s' exists already: '%(job)s' is %(state)s.",
                type=row["type"], job=str(row["id"]), state=state,
            )  # fmt: skip
            hint = "It cannot be a step of this workflow, too: wait for it, or say 'replace' in on_conflict."
            raise Duplicate(message, details={**details, "index": index}, hint=hint)


_NOT_CREATED: dict[str, dict[str, Any]] = {
    "dropped": {"code": "x_dropped", "type": "x_dropped", "message": "An enqueue middleware dropped the job."},
    "duplicate": {
        "code": "duplicate",
        "type": "duplicate",
        "message": "A job with the same unique key exists already.",
    },
}


def _explain(flows: Sequence[LockedWorkflow], using: str) -> None:
    """Note why these workflows failed: the jobs whose failure it was, and what they said."""
    faults = {flow.row.pk: rules.causes(flow.shape.graph, flow.letters) for flow in flows}
    heard = read_steps({(pk, position) for pk, positions in faults.items() for position in positions}, using)
    for flow in flows:
        positions = faults[flow.row.pk]
        entries = [heard[flow.row.pk, position] for position in positions]
        errors = [error_of(entry) for entry in entries[:_SPELLED_OUT]]
        told = next((index for index, error in enumerate(errors) if error), 0)  # a job may be gone, with its error
        first = flow.shape.graph.nodes[positions[told]]
        flow.row.error = {
            "failed_step_index": first.place,
            "failed_step_id": entries[told]["step_id"],
            "failed_step_type": entries[told]["type"],
            "failed_job_ids": [str(entry["job_id"]) for entry in entries if not entry["error"]],
            "errors": [error for error in errors if error],
            "callback": first.trigger or None,
        }
