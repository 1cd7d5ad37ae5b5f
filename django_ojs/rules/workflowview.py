"""Render a workflow for clients (orchestration 1.5, 1.6, binding 2.8): rows in, JSON values out, no database."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from django_ojs import jsontext
from django_ojs.rules import workflowgraph as rules
from django_ojs.rules.durations import format_instant
from django_ojs.states import State

if TYPE_CHECKING:
    from django_ojs.models import JobRow, Workflow, WorkflowStep

_OF_JOB = {
    State.ACTIVE: "active", State.COMPLETED: "completed", State.DISCARDED: "failed", State.CANCELLED: "cancelled",
}  # fmt: skip
_OF_LETTER = {
    rules.RUNNING: "active", rules.COMPLETED: "completed", rules.FAILED: "failed", rules.REFUSED: "failed",
    rules.CANCELLED: "cancelled", rules.NEVER: "cancelled", rules.SKIPPED: "cancelled",
}  # fmt: skip


def render(flow: Workflow, steps: list[WorkflowStep], jobs: Mapping[uuid.UUID, JobRow]) -> dict[str, Any]:
    """The whole object, with every member that one of the sources or their readers expects."""
    shown = {step.position: _step(flow, step, jobs) for step in steps}
    listed = _listed(flow, rules.ROOT, shown)
    counted = summary(flow)
    view: dict[str, Any] = {
        **{name: counted[name] for name in ("id", "type", "name", "state", "steps_total", "steps_completed")},
        "jobs_total": counted["steps_total"],
        "jobs_completed": counted["steps_completed"],
        "steps": listed,
        **_callbacks(flow, rules.ROOT, shown),
        "error": flow.error,
        **_times(flow),
    }
    if flow.type in ("group", "batch") and not flow.shape.free:
        view["jobs"] = listed
    leaves = flow.shape.leaves
    view["metadata"] = _times(flow) | {
        "job_count": flow.job_count,
        "completed_count": sum(flow.progress[leaf] == rules.COMPLETED for leaf in leaves),
        "failed_count": sum(flow.progress[leaf] in rules.FAULTS for leaf in leaves),
    }
    return {name: value for name, value in view.items() if value is not None or name != "error"}


def summary(flow: Workflow) -> dict[str, Any]:
    """The item of a list."""
    members = flow.shape.members(rules.ROOT)
    done = sum(flow.progress[member] == rules.COMPLETED for member in members)
    times = _times(flow)
    return {
        "id": flow.public_id,
        "name": flow.name,
        "type": flow.type,
        "state": flow.word,
        "step_count": len(members),
        "steps_total": len(members),
        "steps_completed": done,
        **{name: times[name] for name in ("created_at", "completed_at") if name in times},
    }


def progress(flow: Workflow, steps: list[WorkflowStep], jobs: Mapping[uuid.UUID, JobRow]) -> dict[str, Any]:
    """How far it is, from 0 to 1 (orchestration 5.3). A brief view will do."""
    counted = summary(flow)
    nodes = flow.shape.nodes
    shown = [_head(flow, step, _job(step, jobs)) for step in steps if not nodes[step.position].trigger]
    times = [row["finished_at"] or row["started_at"] for row in jobs.values()]
    updated = max((time for time in times if time is not None), default=flow.created_at)
    return {
        "workflow_id": flow.public_id,
        "type": flow.type,
        "progress": round(counted["steps_completed"] / counted["steps_total"], 4),
        "updated_at": format_instant(updated),
        "steps": [
            {name: step[name] for name in ("id", "job_id", "type", "state")}
            | {"progress": 1.0 if step["state"] == "completed" else None}
            for step in sorted(shown, key=lambda step: step["index"])
        ],
    }


def _listed(flow: Workflow, scope: int, shown: dict[int, dict[str, Any]]) -> list[dict[str, Any]]:
    """The steps of one level in the client's order, nested ones with their own; callbacks where they were steps."""
    graph = flow.shape
    members = graph.members(scope)
    if graph.free:
        members = sorted(graph.children[scope], key=lambda child: graph.nodes[child].place)
    found = []
    for position in members:
        step = shown[position]
        step["depends_on"] = [shown[need]["id"] for need in graph.nodes[position].needs]
        if graph.nodes[position].kind != "job":
            step["steps"] = _listed(flow, position, shown)
            step |= _callbacks(flow, position, shown)
        found.append(step)
    return found


def _callbacks(flow: Workflow, scope: int, shown: dict[int, dict[str, Any]]) -> dict[str, Any]:
    """The member `callbacks`, which what has none lacks."""
    nodes = flow.shape.nodes
    found = {nodes[position].trigger: shown[position] for position in flow.shape.callbacks(scope)}
    return {"callbacks": found} if found else {}


def _step(flow: Workflow, step: WorkflowStep, jobs: Mapping[uuid.UUID, JobRow]) -> dict[str, Any]:
    job = _job(step, jobs)
    view = _head(flow, step, job) | {"depends_on": []}
    if flow.progress[step.position] == rules.SKIPPED:
        view["skipped"] = True
    if step.document:
        view["args"] = jsontext.loads(step.document).get("args")
    if step.error:
        view["error"] = step.error
    return view | (_of_job(job) if job is not None else {})


def _head(flow: Workflow, step: WorkflowStep, job: JobRow | None) -> dict[str, Any]:
    """Which step it is and how far; nothing that a brief view lacks."""
    letter, node = flow.progress[step.position], flow.shape.nodes[step.position]
    began = letter not in (rules.WAITING, rules.NEVER, rules.SKIPPED, rules.REFUSED) and node.kind == "job"
    return {
        "index": node.place,
        "id": step.step_id,
        "type": step.type,
        "state": _state(flow, letter, job),
        "job_id": str(step.job_id) if began else None,
    }


def _job(step: WorkflowStep, jobs: Mapping[uuid.UUID, JobRow]) -> JobRow | None:
    return jobs.get(step.job_id) if step.job_id else None


def _of_job(job: JobRow) -> dict[str, Any]:
    found: dict[str, Any] = {"job_state": str(job["state"])}
    if job["started_at"] is not None:
        found["started_at"] = format_instant(job["started_at"])
    if job["finished_at"] is not None:
        found["completed_at"] = format_instant(job["finished_at"])
    if job["result"] is not None:
        found["result"] = jsontext.loads(job["result"])
    if job["errors"] and job["state"] != State.COMPLETED:
        found["error"] = jsontext.loads(job["errors"])[-1]
    return found


def _state(flow: Workflow, letter: str, job: JobRow | None) -> str:
    """The word for a step: derived from its job where it has one, and differing by the form (section 1.5)."""
    waiting, enqueued = ("pending", "available") if flow.shape.free else ("waiting", "pending")
    if letter == rules.WAITING:
        return waiting
    if letter == rules.RUNNING and job is not None:
        return _OF_JOB.get(State(job["state"]), enqueued)
    if letter == rules.RUNNING and flow.state == "cancelled":
        return "cancelled"  # a nested workflow, open when the whole was cancelled
    return _OF_LETTER[letter]


def _times(flow: Workflow) -> dict[str, str]:
    given = {"created_at": flow.created_at, "started_at": flow.started_at, "completed_at": flow.finished_at}
    times = {name: format_instant(instant) for name, instant in given.items() if instant is not None}
    return times | ({"cancelled_at": times["completed_at"]} if flow.state == "cancelled" else {})
