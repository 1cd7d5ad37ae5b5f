"""Which results a node of a workflow hears, and what the result of a nested workflow is (orchestration 1.7)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from django_ojs.policies.workflowgraph import Graph


def sources(graph: Graph, position: int) -> list[int]:
    """The positions whose results this node hears, in order.

    A chain's step hears all steps before it, anything else what it needs; what needs nothing hears what the
    workflow around it hears.
    """
    node = graph.nodes[position]
    if node.scope < 0:
        return []
    if graph.nodes[node.scope].kind == "chain" and not node.trigger:
        before = [child for child in graph.members(node.scope) if graph.nodes[child].place < node.place]
    else:
        before = list(node.needs)
    return before or sources(graph, node.scope)


def leaves(graph: Graph, position: int, *, last: bool = True) -> Iterator[int]:
    """The jobs of which this node's result is made; with `last` False, all jobs in it."""
    node = graph.nodes[position]
    if node.kind == "job":
        yield position
        return
    members = graph.members(position)
    for child in members[-1:] if last and node.kind == "chain" else members:
        yield from leaves(graph, child, last=last)


def value_of(graph: Graph, position: int, value: Callable[[int], Any]) -> Any:
    """The result of a node, given those of the jobs: a nested chain's is its last step's, others have one per part."""
    node = graph.nodes[position]
    if node.kind == "job":
        return value(position)
    members = graph.members(position)
    if node.kind == "chain":
        return value_of(graph, members[-1], value)
    return {str(number): value_of(graph, child, value) for number, child in enumerate(members)}
