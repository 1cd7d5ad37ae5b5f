"""Takes workflows further, inside the transaction in which a member ends (orchestration 1.4, 1.8 and 1.10).

Every verb that ends a job calls `settled()` with its rows, after their own events; without a member among
them nothing happens. The workflow rows are locked, always after the jobs, and the letters of their progress
are changed under that lock, so two members that end at the same instant fire one callback. A
transaction that holds a workflow's lock waits for no job's lock: it only inserts jobs, which no other sees yet.
"""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Sequence
from typing import Any

from django_ojs import hooks, jsontext
from django_ojs.conf import ojs_settings
from django_ojs.database import atomic
from django_ojs.errors import OJSError
from django_ojs.events import log
from django_ojs.events.catalogue import Record
from django_ojs.jobs.push import push
from django_ojs.models import Workflow, WorkflowStart, WorkflowStep
from django_ojs.models.job import JobRow
from django_ojs.rules import workflowgraph as rules
from django_ojs.states import TERMINAL, State
from django_ojs.store import store_of
from django_ojs.workflows import events
from django_ojs.workflows.events import Flow, Member
from django_ojs.workflows.graphs import error_of, read_steps, shapes

_LETTERS = {
    State.COMPLETED: rules.COMPLETED, State.DISCARDED: rules.FAILED, State.CANCELLED: rules.CANCELLED,
}  # fmt: skip
_ENDS = {rules.COMPLETED: Workflow.State.COMPLETED, rules.FAILED: Workflow.State.FAILED}
#: Errors that a failed workflow spells out; the ids of all failed jobs are kept.
_SPELLED_OUT = 20


def settled(rows: Sequence[JobRow], now: dt.datetime, using: str) -> None:
    """Take the workflows of those jobs further that have ended; `rows` need `id`, `workflow_id` and `state`."""
    while ids := _ended(rows):
        members = _members(ids, using)
        flows = lock_running({member.workflow_id for member in members}, using)
        records: list[Record] = []
        for member in members:
            flow = flows.get(member.workflow_id)
            if flow is not None and flow.letters[member.position] == rules.RUNNING:
                records += _settle(flow, member, now)
        log.append(records, using)
        rows = go_on(list(flows.values()), now, using)


def _ended(rows: Sequence[JobRow]) -> list[uuid.UUID]:
    """The members of workflows among these jobs that have ended."""
    states = ((row, row.get("state", State.COMPLETED)) for row in rows if row["workflow_id"] is not None)
    return [row["id"] for row, state in states if state in TERMINAL]


def revived(rows: Sequence[JobRow], using: str) -> None:
    """Dead letters run again: their running workflows wait for them anew, unless others went on without them."""
    ids = [row["id"] for row in rows if row["workflow_id"] is not None]
    if not ids:
        return
    steps = WorkflowStep.objects.using(using).filter(job_id__in=ids).values_list("workflow_id", "position")
    places = list(steps)
    flows = lock_running({flow for flow, _ in places}, using)
    for flow_id, position in places:
        flow = flows.get(flow_id)
        if flow is None or flow.letters[position] not in rules.FAULTS:
            continue
        if not rules.is_settled_by_others(flow.shape.graph, flow.letters, position):
            rules.reopen(flow.shape.graph, flow.letters, [position])
    save(list(flows.values()), using)


def lock_running(ids: set[uuid.UUID], using: str) -> dict[uuid.UUID, Flow]:
    """Lock these workflows in the order of their ids; one that has ended ignores what its members still do."""
    if not ids:
        return {}
    running = Workflow.objects.using(using).select_for_update().filter(pk__in=ids, state=Workflow.State.RUNNING)
    rows = list(running.order_by("pk").defer("graph", "facts"))
    known = shapes({row.pk: row.created_at for row in rows}, using)
    return {row.pk: Flow(row, known[row.pk], list(row.progress)) for row in rows}


def go_on(flows: Sequence[Flow], now: dt.datetime, using: str) -> list[JobRow]:
    """Enqueue what has become ready, end what has ended, and store the progress.

    Returns the jobs that had to make room for the new ones. They may be members too, of these workflows or of
    others, so they are for `settled`: in its loop rather than here, since one may lead to the next.
    """
    ousted: list[JobRow] = []
    records = run(flows, now, ousted, using)
    save(flows, using)
    log.append(records, using)
    return ousted


def run(flows: Sequence[Flow], now: dt.datetime, ousted: list[JobRow], using: str) -> list[Record]:
    """Enqueue and end; the progress is not stored yet. Returns the events of workflows that ended.

    A job that is refused is a failed step; then there may be more to enqueue. Jobs that had to make room are
    added to `ousted`.
    """
    while ready := [(flow, position) for flow in flows for position in rules.evaluate(flow.shape.graph, flow.letters)]:
        if not enqueue(ready, now, ousted, using):
            break
    ended = [flow for flow in flows if flow.letters[rules.ROOT] in _ENDS]
    for flow in ended:
        flow.row.state = _ENDS[flow.letters[rules.ROOT]]
        flow.row.finished_at = now
    _explain([flow for flow in ended if flow.row.state == Workflow.State.FAILED], using)
    began = _began([flow.row for flow in ended], using)
    return [events.farewell(flow, began.get(flow.row.pk, flow.row.created_at), now) for flow in ended]


def save(flows: Sequence[Flow], using: str) -> None:
    """Store the progress of locked workflows, and how they ended, in one statement."""
    for flow in flows:
        flow.row.progress = "".join(flow.letters)
    ended = any(flow.row.finished_at for flow in flows)
    columns = ["progress", "state", "finished_at", "error"] if ended else ["progress"]
    if flows:
        store_of(using).save_workflows([flow.row for flow in flows], columns)


def _members(ids: Sequence[uuid.UUID], using: str) -> list[Member]:
    steps = (
        WorkflowStep.objects.using(using).filter(job_id__in=ids).order_by("workflow_id", "job__finished_at", "position")
    )
    instant = store_of(using).instant
    columns = ["job__state", instant("job__started_at"), instant("job__finished_at"), "job__worker_id", "job__trace_id"]
    columns += ["job__attempt", *(["job__errors"] if ojs_settings.EXTENSION_EVENTS else [])]
    return [
        Member(*values)
        for values in steps.values_list("workflow_id", "position", "step_id", "job_id", "type", *columns)
    ]


def _settle(flow: Flow, member: Member, now: dt.datetime) -> list[Record]:
    node = flow.shape.graph.nodes[member.position]
    left = 0 if node.trigger else flow.count_down()
    flow.letters[member.position] = _LETTERS[State(member.state)]
    flow.trace_id = member.trace_id or flow.trace_id
    return events.ended(flow, member, left, now)


def enqueue(
    ready: list[tuple[Flow, int]], now: dt.datetime, ousted: list[JobRow], using: str, *, strict: bool = False
) -> bool:
    """Push the jobs at these places; True if one was refused, which its letter and step now say.

    Jobs that had to make room are added to `ousted`, and the caller owes them `settled`. With `strict` a refusal
    is raised instead; only a job that a middleware silently dropped is a failed step.
    """
    wanted = {(flow.row.pk, position): flow for flow, position in ready}
    steps = WorkflowStep.objects.using(using).filter(
        workflow_id__in={pk for pk, _ in wanted}, position__in={position for _, position in wanted}
    )
    found = {(step.workflow_id, step.position): step for step in steps if (step.workflow_id, step.position) in wanted}
    ordered = [found[flow.row.pk, position] for flow, position in ready]
    jobs = [(step, {**jsontext.loads(step.document), "id": str(step.job_id)}) for step in ordered]
    refusals = _push(jobs, ousted, using, strict)
    records: list[Record] = []
    for step, error in refusals:
        flow = wanted.pop((step.workflow_id, step.position))
        flow.letters[step.position] = rules.REFUSED
        WorkflowStep.objects.using(using).filter(pk=step.pk).update(error=error)
        records += events.refused(flow, step, error, now)
    for place, flow in wanted.items():
        records += events.enqueued(flow, found[place], now)
    log.append(records, using)
    return bool(refusals)


def _push(
    jobs: list[tuple[WorkflowStep, dict[str, Any]]], ousted: list[JobRow], using: str, strict: bool
) -> list[tuple[WorkflowStep, dict[str, Any]]]:
    """Push all together, or one by one to find those that are refused; returns the refused ones with the error."""
    owners = {step.job_id: step.workflow_id for step, _ in jobs if step.job_id}
    try:
        with atomic(using=using), hooks.inside(hooks.around_later_steps):
            done = push([document for _, document in jobs], workflows=owners, ended=ousted, using=using)
    except OJSError as error:
        if strict:
            raise
        if len(jobs) > 1:
            return [refused for job in jobs for refused in _push([job], ousted, using, strict)]
        return [
            (jobs[0][0], {"code": error.error_code, "type": error.kind or error.error_code, "message": error.message})
        ]
    return [
        (step, _NOT_CREATED[pushed.status])
        for (step, _), pushed in zip(jobs, done, strict=True)
        if pushed.status in _NOT_CREATED
    ]


_NOT_CREATED: dict[str, dict[str, Any]] = {
    "dropped": {"code": "x_dropped", "type": "x_dropped", "message": "An enqueue middleware dropped the job."},
    "duplicate": {
        "code": "duplicate",
        "type": "duplicate",
        "message": "A job with the same unique key exists already.",
    },
}


def _explain(flows: Sequence[Flow], using: str) -> None:
    """Note why these workflows failed: the jobs whose failure it was, and what they said."""
    faults = {flow.row.pk: rules.causes(flow.shape.graph, flow.letters) for flow in flows}
    heard = read_steps({(pk, position) for pk, positions in faults.items() for position in positions}, using)
    for flow in flows:
        positions = faults[flow.row.pk]
        first = flow.shape.graph.nodes[positions[0]]
        entries = [heard[flow.row.pk, position] for position in positions]
        flow.row.error = {
            "failed_step_index": first.place,
            "failed_step_id": entries[0]["step_id"],
            "failed_step_type": entries[0]["type"],
            "failed_job_ids": [str(entry["job_id"]) for entry in entries],
            "errors": [error for entry in entries[:_SPELLED_OUT] if (error := error_of(entry))],
            "callback": first.trigger or None,
        }


def _began(rows: Sequence[Workflow], using: str) -> dict[uuid.UUID, dt.datetime]:
    if not rows:
        return {}
    starts = WorkflowStart.objects.using(using).filter(pk__in=[row.pk for row in rows])
    return dict(starts.values_list("pk", "started_at"))
