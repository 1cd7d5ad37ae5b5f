"""What a workflow's job hears of the jobs before it: `parent_results` in its envelope (orchestration 1.7)."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

from django_ojs import jsontext
from django_ojs.models import Job, Workflow, WorkflowStep
from django_ojs.models.fields import RawJSON
from django_ojs.models.job import JobRow
from django_ojs.operations.shapes import Shape, shapes
from django_ojs.policies import workflowresults as results
from django_ojs.policies.workflowgraph import ROOT
from django_ojs.states import State

#: (workflow, position) -> the job there, as far as its successors want to know.
_Known = dict[tuple[uuid.UUID, int], dict[str, Any]]
#: What successors want to know of a job.
_HEARD = ("id", "state", "result", "errors", "attempt")


def attach(rows: Sequence[JobRow], using: str) -> None:
    """Add `lineage`, which `envelope.render` shows, and `workflow_type` to the rows that belong to a workflow.

    Two statements for jobs that hear nothing, four for the others, however many; none without workflows.
    """
    ids = [row["id"] for row in rows if row.get("workflow_id") is not None]
    if not ids:
        return
    steps = WorkflowStep.objects.using(using).filter(job_id__in=ids)
    places = {job: (flow, position) for job, flow, position in steps.values_list("job_id", "workflow_id", "position")}
    flows = Workflow.objects.using(using).filter(pk__in={flow for flow, _ in places.values()})
    known = shapes(dict(flows.values_list("pk", "created_at")), using)
    wanted = {place: results.sources(known[place[0]].graph, place[1]) for place in places.values() if place[0] in known}
    needed = {
        (flow, leaf)
        for (flow, _), positions in wanted.items()
        for position in positions
        for leaf in results.leaves(known[flow].graph, position)
    }
    heard = read(needed, using)
    for row in rows:
        place = places.get(row["id"])
        if place in wanted:
            row["lineage"] = _lineage(known[place[0]], place, wanted[place], heard)
            row["workflow_type"] = known[place[0]].graph.nodes[ROOT].kind


def read(needed: set[tuple[uuid.UUID, int]], using: str) -> _Known:
    """The steps at these places (workflow, position) and the rows of their jobs, None where there is none."""
    if not needed:
        return {}
    steps = WorkflowStep.objects.using(using).filter(
        workflow_id__in={flow for flow, _ in needed}, position__in={position for _, position in needed}
    )
    columns = ("workflow_id", "position", "step_id", "type", "job_id", "error")
    entries = (dict(zip(columns, values, strict=True)) for values in steps.values_list(*columns))
    places = ((entry["workflow_id"], entry["position"], entry) for entry in entries)
    found: _Known = {(flow, position): entry for flow, position, entry in places if (flow, position) in needed}
    ids = [entry["job_id"] for entry in found.values()]
    jobs = {row["id"]: row for row in Job.objects.using(using).filter(pk__in=ids).rows(_HEARD)}
    for entry in found.values():
        entry["job"] = jobs.get(entry["job_id"])
    return found


def _lineage(shape: Shape, place: tuple[uuid.UUID, int], sources: list[int], heard: _Known) -> dict[str, Any]:
    flow, position = place
    graph, node = shape.graph, shape.graph.nodes[position]

    def value(leaf: int) -> Any:
        row: JobRow | None = heard.get((flow, leaf), {}).get("job")
        if row is None or row["state"] != State.COMPLETED or row["result"] is None:
            return None
        return RawJSON(row["result"])

    values = [results.value_of(graph, source, value) for source in sources]
    lineage: dict[str, Any] = {
        "workflow_id": shape.public_id,
        "workflow_step": node.place,
        "parent_results": [_plain(item) for item in values],
    }
    if graph.free and node.needs:
        names = [heard[flow, source]["step_id"] for source in sources if (flow, source) in heard]
        lineage["parent_results_by_step"] = dict(zip(names, lineage["parent_results"], strict=True))
    if node.trigger:
        lineage["parent_errors"] = _errors(graph, flow, sources, heard)
    return lineage


def _plain(value: Any) -> Any:
    """Results in place of their texts."""
    if isinstance(value, RawJSON):
        return jsontext.loads(value.text)
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return value


def _errors(graph: Any, flow: uuid.UUID, sources: list[int], heard: _Known) -> dict[str, Any]:
    """Of each part that failed: the error of its first job that did."""
    found: dict[str, Any] = {}
    for number, source in enumerate(sources):
        for leaf in results.leaves(graph, source, last=False):
            if error := error_of(heard.get((flow, leaf), {})):
                found[str(number)] = error
                break
    return found


def error_of(entry: dict[str, Any]) -> dict[str, Any] | None:
    """How a step failed, in short; None if it did not. `entry`: `job_id`, `job` (row or None), `error` of the step."""
    row, refused = entry.get("job"), entry.get("error")
    if refused:
        return {"job_id": str(entry["job_id"]), "attempt": 0, **refused}
    if row is None or row["state"] not in (State.DISCARDED, State.CANCELLED):
        return None
    history = jsontext.loads(row["errors"]) if row["errors"] else []
    if row["state"] == State.CANCELLED or not history:
        word = "cancelled" if row["state"] == State.CANCELLED else "discarded"
        return {"job_id": str(row["id"]), "code": word, "type": word, "message": f"The job was {word}.",
                "attempt": row["attempt"]}  # fmt: skip
    kept = {name: history[-1].get(name) for name in ("code", "type", "message")}
    return {"job_id": str(row["id"]), **kept, "attempt": row["attempt"]}
