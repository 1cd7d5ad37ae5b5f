"""Keeps the graphs of workflows that a process has read, and makes `parent_results`, which a job learns of the jobs
before it (orchestration 1.7).
"""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from django_ojs import jsontext, tenants
from django_ojs.access import UNLIMITED, Limits
from django_ojs.lifecycle.ended import jobs_read
from django_ojs.models import Job, Workflow, WorkflowStep
from django_ojs.models.fields import RawJSON
from django_ojs.models.job import JobRow
from django_ojs.models.workflow import forget_ids, is_there, know
from django_ojs.rules import workflowgraph
from django_ojs.rules.workflowgraph import ROOT, Graph
from django_ojs.states import State
from django_ojs.store import store_of
from django_ojs.store.values import MEMBERSHIP, Heard, Membership

#: Nodes of all the graphs that a process remembers; some hundred bytes each.
_SIZE = 50_000
#: By database and the number that the id is: to hash a UUID is Python code. With the time of creation, since a client
#: may use an id again after the first workflow was pruned. Whoever changes the limits of a workflow changes that time.
_cache: dict[tuple[Hashable, int], tuple[dt.datetime, WorkflowShape]] = {}
_nodes = 0


class WorkflowShape(NamedTuple):
    """What all jobs and events of a workflow have in common.

    `facts` are the members that its events share, as a JSON object without its braces. `limits` are what the creator of
    the workflow reaches, and who has resumed it: none of its jobs may lie beyond them.
    """

    graph: Graph
    public_id: str
    facts: str
    limits: Limits = UNLIMITED
    parent_id: uuid.UUID | None = None  #: the job whose handler runs it


def shapes(wanted: Mapping[uuid.UUID, dt.datetime], using: str) -> dict[uuid.UUID, WorkflowShape]:
    """The shapes of these workflows, given with the time of their creation; one that was pruned is missing."""
    found = {pk: known for pk, at in wanted.items() if (known := _known(pk, at, using)) is not None}
    for pk in found:
        is_there(pk)
    if len(found) < len(wanted):
        rows = Workflow.objects.using(using).filter(pk__in=[pk for pk in wanted if pk not in found])
        columns = ("pk", "created_at", "own_id", "graph", "facts", "limits", "parent_id")
        for pk, at, *values in rows.values_list(*columns):
            found[pk] = _shape(pk, *values)
            _remember((tenants.scope(using), pk.int), at, found[pk])
    return found


def _remember(key: tuple[Hashable, int], created_at: dt.datetime, shape: WorkflowShape) -> None:
    """Put a shape into the cache, and drop the oldest where it is full.

    To count all nodes takes long, so it is counted upwards. What threads count wrong is put right when it seems full.
    """
    global _nodes
    _cache[key] = created_at, shape
    _nodes += len(shape.graph.nodes)
    if _nodes <= _SIZE:
        return
    _nodes = sum(len(known.graph.nodes) for _, known in list(_cache.values()))
    while _nodes > _SIZE and (oldest := next(iter(list(_cache)), None)):
        forgotten = _cache.pop(oldest, None)  # another thread may be at it as well
        _nodes -= len(forgotten[1].graph.nodes) if forgotten else 0


def _known(pk: uuid.UUID, created_at: dt.datetime, using: str) -> WorkflowShape | None:
    at, shape = _cache.get((tenants.scope(using), pk.int), _NOTHING)
    return shape if at == created_at else None


_NOTHING: tuple[None, None] = None, None


def forget() -> None:
    """Drop what this process remembers of workflows."""
    global _nodes
    _cache.clear()
    forget_ids()
    _nodes = 0


def shape_of(flow: Workflow) -> WorkflowShape:
    """What never changes about this workflow."""
    return _shape(flow.pk, flow.own_id, flow.graph, flow.facts, flow.limits, flow.parent_id)


def _shape(
    pk: uuid.UUID, own_id: str | None, graph: str, facts: str, limits: dict[str, Any] | None,
    parent_id: uuid.UUID | None,
) -> WorkflowShape:  # fmt: skip
    know(pk, own_id)
    return WorkflowShape(workflowgraph.decode(graph), own_id or str(pk), facts, Limits.of_json(limits), parent_id)


def places_of(ids: Iterable[uuid.UUID], using: str) -> set[tuple[uuid.UUID, str, str]]:
    """The workflow, the queue and the type of each job of these workflows, each once: as it is defined, whether it is
    made or not, and where it is now."""
    steps = WorkflowStep.objects.using(using).filter(workflow_id__in=ids, job_id__isnull=False).order_by()
    defined = steps.values_list("workflow_id", "queue", "type").distinct()
    now = steps.filter(job__queue__isnull=False).values_list("workflow_id", "job__queue", "job__type").distinct()
    return {*defined, *now}


#: (workflow, position) -> the job there, as far as its successors want to know.
_Known = dict[tuple[uuid.UUID, int], dict[str, Any]]
#: What is read of a job that may have failed.
_HEARD = ("id", "state", "result", "errors", "attempt")


@jobs_read.subscribe
def attach_parent_results(rows: Sequence[JobRow], using: str) -> None:
    """Add `lineage`, which `envelope.render` shows, and `workflow_type` to the rows that belong to a workflow.

    One statement for the steps of plain chains and for jobs that hear nothing, two for the others, however many, and
    two more for callbacks; none without workflows. One less where the rows have their `MEMBERSHIP`, which is taken off.
    """
    own = {row["id"]: row for row in rows if row.get("workflow_id") is not None}
    if not own:
        return
    found: list[Membership] = [row.pop(MEMBERSHIP) for row in own.values() if MEMBERSHIP in row]
    if len(found) < len(own):
        found += store_of(using).memberships(own.keys() - {place.job_id for place in found})
    known = shapes({place.workflow_id: place.created_at for place in found}, using)
    others: dict[tuple[uuid.UUID, int], JobRow] = {}
    for place in found:
        if (shape := known.get(place.workflow_id)) is None:
            continue
        row = own[place.job_id]
        row["workflow_type"] = shape.graph.nodes[ROOT].kind
        if place.before is None or shape.graph.free:
            others[place.workflow_id, place.position] = row
        else:
            row["lineage"] = _begun(shape, place.position, [_result(text) for text in place.before])
    if others:
        _attach(others, known, using)


def _result(text: str) -> Any:
    """The value of a result. Most jobs have none."""
    return None if text == "null" else jsontext.loads(text)


def _attach(rows: Mapping[tuple[uuid.UUID, int], JobRow], known: Mapping[uuid.UUID, WorkflowShape], using: str) -> None:
    """Add `lineage` to the rows at these places."""
    wanted = {(flow, position): workflowgraph.sources(known[flow].graph, position) for flow, position in rows}
    heard = store_of(using).results(_leaves(known, wanted.items()))
    callbacks = {place for place in wanted if known[place[0]].graph.nodes[place[1]].trigger}
    failed = read_steps(_leaves(known, ((place, wanted[place]) for place in callbacks), last=False), using)
    for place, row in rows.items():
        row["lineage"] = _lineage(known[place[0]], place, wanted[place], heard, failed)


def _begun(shape: WorkflowShape, position: int, results: list[Any]) -> dict[str, Any]:
    """What every member learns."""
    place = shape.graph.nodes[position].place
    return {"workflow_id": shape.public_id, "workflow_step": place, "parent_results": results}


def _leaves(
    known: Mapping[uuid.UUID, WorkflowShape],
    wanted: Iterable[tuple[tuple[uuid.UUID, int], list[int]]],
    *,
    last: bool = True,
) -> set[tuple[uuid.UUID, int]]:
    """The jobs of which the sources of these places are made."""
    return {
        (flow, leaf)
        for (flow, _), positions in wanted
        for position in positions
        for leaf in workflowgraph.leaves(known[flow].graph, position, last=last)
    }


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


def _lineage(
    shape: WorkflowShape, place: tuple[uuid.UUID, int], sources: list[int],
    heard: Mapping[tuple[uuid.UUID, int], Heard], failed: _Known,
) -> dict[str, Any]:  # fmt: skip
    flow, position = place
    graph, node = shape.graph, shape.graph.nodes[position]

    def value(leaf: int) -> Any:
        found = heard.get((flow, leaf))
        return None if found is None or found.result is None else RawJSON(found.result)

    values = [workflowgraph.value_of(graph, source, value) for source in sources]
    lineage = _begun(shape, position, [_plain(item) for item in values])
    if graph.free and node.needs:
        names = [heard[flow, source].step_id for source in sources if (flow, source) in heard]
        lineage["parent_results_by_step"] = dict(zip(names, lineage["parent_results"], strict=True))
    if node.trigger:
        lineage["parent_errors"] = _errors(graph, flow, sources, failed)
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
    """How a step failed, in short; None if it did not. `entry`: `job` (row or None), and the `error` of a step that was
    refused, of which there is no job."""
    row, refused = entry.get("job"), entry.get("error")
    if refused:
        return {"attempt": 0, **refused}
    if row is None or row["state"] not in (State.DISCARDED, State.CANCELLED):
        return None
    history = jsontext.loads(row["errors"]) if row["errors"] else []
    if row["state"] == State.CANCELLED or not history:
        word = "cancelled" if row["state"] == State.CANCELLED else "discarded"
        return {"job_id": str(row["id"]), "code": word, "type": word, "message": f"The job was {word}.",
                "attempt": row["attempt"]}  # fmt: skip
    kept = {name: history[-1].get(name) for name in ("code", "type", "message")}
    return {"job_id": str(row["id"]), **kept, "attempt": row["attempt"]}
