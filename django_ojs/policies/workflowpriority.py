"""Steps of a workflow inherit the priority of its root unless they or the workflow set one (jobs 3).

Roots are the jobs that wait for nothing: the first step of a chain, the members of a group or batch, the steps of a
graph without dependencies. Whatever comes after several of them, such as a callback, has the highest of theirs. A
priority that a later step sets is its own and goes no further.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from django_ojs.policies.workflowgraph import ROOT, Node


def inherited(nodes: Sequence[Node], priorities: Mapping[int, int]) -> dict[int, int]:
    """The priority of its roots for every job that waits for something, by position.

    `priorities` are those of all jobs as they were given, 0 where none was. Positions grow from a composite to its
    parts and from a step to what needs it.
    """
    #: What the parts of a composite inherit; absent where they are roots themselves.
    passed: dict[int, int] = {}
    #: The highest priority of the roots that a node descends from, or that it holds.
    highest: dict[int, int] = {}
    found: dict[int, int] = {}
    for position, node in enumerate(nodes):
        if node.needs:
            passed[position] = max(highest[need] for need in node.needs)
        elif node.scope in passed:
            passed[position] = passed[node.scope]
        if position in passed:
            highest[position] = passed[position]
            if node.kind == "job":
                found[position] = passed[position]
        elif node.kind == "job":
            highest[position] = priorities[position]
            scope = node.scope
            while scope > ROOT:
                highest[scope] = max(highest.get(scope, priorities[position]), priorities[position])
                scope = nodes[scope].scope
    return found


def with_priority(document: dict[str, Any], priority: int) -> dict[str, Any]:
    """The envelope of a step with this priority, or as it is where one is given, also by the workflow's options."""
    options = document.get("options") or {}
    if document.get("priority") is not None or options.get("priority") is not None:
        return document
    return {**document, "priority": priority}
