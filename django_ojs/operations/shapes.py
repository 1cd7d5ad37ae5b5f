"""What never changes about a workflow, remembered by each process: its graph and how it is called."""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Mapping
from typing import NamedTuple

from django_ojs.models import Workflow
from django_ojs.policies import workflowgraph
from django_ojs.policies.workflowgraph import Graph

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
            found[flow.pk] = _cache[using, flow.pk, flow.created_at] = of(flow)
        size = sum(len(shape.graph.nodes) for shape in list(_cache.values()))
        while size > _SIZE and (oldest := next(iter(list(_cache)), None)):
            forgotten = _cache.pop(oldest, None)  # another thread may be at it as well
            size -= len(forgotten.graph.nodes) if forgotten else 0
    return found


def forget() -> None:
    """Drop what this process remembers of workflows."""
    _cache.clear()


def of(flow: Workflow) -> Shape:
    return Shape(workflowgraph.decode(flow.graph), flow.public_id, flow.facts)
