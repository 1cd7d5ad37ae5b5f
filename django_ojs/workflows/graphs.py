"""The graphs of workflows: what each process remembers of them, and `parent_results`, which a job learns of the jobs
before it (orchestration 1.7).
"""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from django_ojs import jsontext
from django_ojs.models import Job, Workflow, WorkflowStep
from django_ojs.models.fields import RawJSON
from django_ojs.models.job import JobRow
from django_ojs.rules import workflowgraph
from django_ojs.rules.workflowgraph import ROOT, Graph
from django_ojs.states import State

#: Nodes of all the graphs that a process remembers; some hundred bytes each.
_SIZE = 50_000
#: The time of creation is part of the key: a client may use an id again after the first workflow was pruned.
_cache: dict[tuple[str, uuid.UUID, dt.datetime], Shape] = {}


class Shape(NamedTuple):
    """`facts` are the members that all events of the workflow share, as the inside of a JSON object."""

    graph: Graph
    public_id: str
    facts: str


def shapes(wanted: Mapping[uuid.UUID, dt.datetime], using: str) -> dict[uuid.UUID, Shape]:
    """The shapes of these workflows, given with the time of their creation; one that was pruned is missing."""
    found = {pk: _cache[using, pk, at] for pk, at in wanted.items() if (using, pk, at) in _cache}
    if missing := wanted.keys() - found.keys():
        for flow in Workflow.objects.using(using).filter(pk__in=missing).defer("progress", "error"):
            found[flow.pk] = _cache[using, flow.pk, flow.created_at] = shape_of(flow)
        size = sum(len(shape.graph.nodes) for shape in list(_cache.values()))
        while size > _SIZE and (oldest := next(iter(list(_cache)), None)):
            forgotten = _cache.pop(oldest, None)  # another thread may be at it as well
            size -= len(forgotten.graph.nodes) if forgotten else 0
    return found


def forget() -> None:
    """Drop what this process remembers of workflows."""
    _cache.clear()


def shape_of(flow: Workflow) -> Shape:
    """What never changes about this workflow."""
    return Shape(workflowgraph.decode(flow.graph), flow.public_id, flow.facts)


#: (workflow, position) -> the job there, as far as its successors want to know.
_Known = dict[tuple[uuid.UUID, int], dict[str, Any]]
#: What successors want to know of a job.
_HEARD = ("id", "state", "result", "errors", "attempt")


def attach_parent_results(rows: Sequence[JobRow], using: str) -> None:
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
    wanted = {
        place: workflowgraph.sources(known[place[0]].graph, place[1]) for place in places.values() if place[0] in known
    }
    needed = {
        (flow, leaf)
        for (flow, _), positions in wanted.items()
        for position in positions
        for leaf in workflowgraph.leaves(known[flow].graph, position)
    }
    heard = read_steps(needed, using)
    for row in rows:
        place = places.get(row["id"])
        if place in wanted:
            row["lineage"] = _lineage(known[place[0]], place, wanted[place], heard)
            row["workflow_type"] = known[place[0]].graph.nodes[ROOT].kind


def read_steps(needed: set[tuple[uuid.UUID, int]], using: str) -> _Known:
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

    values = [workflowgraph.value_of(graph, source, value) for source in sources]
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
        for leaf in workflowgraph.leaves(graph, source, last=False):
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
