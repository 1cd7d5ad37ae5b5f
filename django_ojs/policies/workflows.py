"""From every shape in which clients send a workflow to one plan (orchestration 1.2 and 1.3).

`parse` checks the whole request before anything is stored: structure, ids, dependencies, cycles, sizes, and
every job's envelope. The job documents of a plan carry the workflow's options below their own.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from django_ojs import envelope
from django_ojs.conf import ojs_settings
from django_ojs.errors import InvalidPayload, OJSError, Unsupported
from django_ojs.policies import workflowids
from django_ojs.policies.faults import shorten
from django_ojs.policies.faults import workflow_fault as fault
from django_ojs.policies.workflowgraph import CALLBACKS, Graph, Node
from django_ojs.policies.workflowoptions import inherit, leaf
from django_ojs.policies.workflowpriority import inherited, with_priority

KINDS = ("chain", "group", "batch")
MAX_DEPTH = 10  #: nested workflows, the outermost included
MAX_NAME = 255

_CLIENT_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")


@dataclass(slots=True)
class Step:
    """One node but the root. `document` is the envelope to push; None for a nested workflow."""

    position: int
    id: str
    type: str
    path: str
    document: dict[str, Any] | None = None
    queue: str = ""


@dataclass(slots=True)
class Plan:
    """A valid workflow. `id` is the client's own, '' without a usable one; `type` also what was inferred."""

    id: str
    name: str
    type: str
    graph: Graph
    steps: list[Step]

    def documents(self) -> list[dict[str, Any]]:
        return [step.document for step in self.steps if step.document is not None]


def parse(document: object, *, now: dt.datetime) -> Plan:
    """The plan of a request. Raises InvalidWorkflow (400), Unsupported (422) or PayloadTooLarge (413)."""
    if not isinstance(document, dict):
        raise fault("$", "must be an object with steps or jobs")
    builder = _Builder()
    kind = builder.build(document)
    plan = Plan(_own_id(document), _name(document), kind, Graph(tuple(builder.nodes), builder.free), builder.steps)
    priorities: dict[int, int] = {}
    for step in plan.steps:
        if step.document is not None:
            priorities[step.position] = _check_job(step, now)
    roots = inherited(plan.graph.nodes, priorities)
    for step in plan.steps:
        if step.document is not None and step.position in roots:
            step.document = with_priority(step.document, roots[step.position])
    return plan


def is_nested(item: dict[str, Any]) -> bool:
    """Whether an item is a workflow: its `type` does not tell, a job type may be called `chain`."""
    return any(item.get(name) is not None for name in ("steps", "jobs", "callbacks"))


class _Builder:
    """Collects nodes and steps, depth first: a composite before its parts, parts in the client's order."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.steps: list[Step] = []
        self.free = False
        self._jobs = 0

    def build(self, document: dict[str, Any]) -> str:
        self.nodes.append(Node("dag", -1))
        if document.get("type") is None:
            self.free = True
            kind = self._free(document)
        else:
            kind = _kind(document, "$")
            self._composite(document, kind, 0, "$", {}, 1)
        self.nodes[0] = Node(kind, -1)
        self._refuse_repeated_ids()
        return kind

    def _composite(
        self, document: dict[str, Any], kind: str, scope: int, path: str, inherited: dict[str, Any], depth: int
    ) -> None:
        """The parts of a chain, group or batch."""
        if depth > MAX_DEPTH:
            raise fault(path, f"must not nest deeper than {MAX_DEPTH} workflows", max_depth=MAX_DEPTH)
        key, items = _items(document, path)
        options = inherit(inherited, document, path)
        prefix = "" if scope == 0 else f"{self.steps[-1].id}."
        ids = workflowids.ids(items, prefix + ("step" if kind == "chain" else "job"))
        workflowids.needs(items, ids, f"{path}.{key}")  # checked; the type of the workflow decides
        members: list[int] = []
        for index, item in enumerate(items):
            needs = tuple(members[-1:]) if kind == "chain" else ()
            place = f"{path}.{key}[{index}]"
            members.append(self._item(item, ids[index], Node("job", scope, index, needs), place, options, depth))
        self._callbacks(document, kind, scope, path, options, members)

    def _item(self, item: dict[str, Any], name: str, node: Node, path: str, options: dict[str, Any], depth: int) -> int:
        position = len(self.nodes)
        if not is_nested(item):
            self._job(item, name, node, path, options)
            return position
        kind = _kind(item, path)
        self.nodes.append(node._replace(kind=kind))
        self.steps.append(Step(position, name, kind, path))
        self._composite(item, kind, position, path, options, depth + 1)
        return position

    def _job(self, item: dict[str, Any], name: str, node: Node, path: str, options: dict[str, Any]) -> None:
        self._jobs += 1
        if self._jobs > ojs_settings.MAX_BATCH_SIZE:
            limit = ojs_settings.MAX_BATCH_SIZE
            raise fault("$", f"must not hold more than {limit} jobs", max_jobs=limit)
        document = leaf(item, options, path)
        self.steps.append(Step(len(self.nodes), name, str(document.get("type")), path, document))
        self.nodes.append(node)

    def _callbacks(
        self, document: dict[str, Any], kind: str, scope: int, path: str, options: dict[str, Any], members: list[int]
    ) -> None:
        given = document.get("callbacks")
        if kind != "batch":
            if given:
                raise fault(f"{path}.callbacks", "belong to a batch; give type batch")
            return
        for key, item in _checked_callbacks(given, path):
            node = Node("job", scope, CALLBACKS.index(key), tuple(members), key)
            prefix = "" if scope == 0 else f"{self.steps[scope - 1].id}."
            self._job(item, prefix + key, node, f"{path}.callbacks.{key}", options)

    def _free(self, document: dict[str, Any]) -> str:
        """Steps that name what they depend on, in an order in which each comes after what it needs."""
        key, items = _items(document, "$")
        options = inherit({}, document, "$")
        place = f"$.{key}"
        for index, item in enumerate(items):
            if is_nested(item):
                raise fault(f"{place}[{index}]", "nests a workflow, which needs a workflow with a type around it")
        ids = workflowids.ids(items, "step")
        needs = workflowids.needs(items, ids, place, named=True)
        positions = {index: rank for rank, index in enumerate(workflowids.sorted_by_needs(needs, place), start=1)}
        triggers = [workflowids.trigger(item, ids[i], needs[i]) for i, item in enumerate(items)]
        for index in positions:
            wanted = tuple(positions[need] for need in needs[index])
            node = Node("job", 0, index, wanted, triggers[index])
            self._job(items[index], ids[index], node, f"{place}[{index}]", options)
        return workflowids.inferred_type(needs, triggers)

    def _refuse_repeated_ids(self) -> None:
        seen: set[str] = set()
        for step in self.steps:
            if step.id in seen:
                raise fault(f"{step.path}.id", f"repeats the id {shorten(step.id)}")
            seen.add(step.id)


def _kind(document: dict[str, Any], path: str) -> str:
    kind = document.get("type")
    if kind == "saga":
        raise Unsupported("This server has no sagas.", details={"field": f"{path}.type", "received": "saga"})
    if kind not in KINDS:
        raise fault(f"{path}.type", f"must be one of {', '.join(KINDS)}", received=shorten(kind))
    return str(kind)


def _items(document: dict[str, Any], path: str) -> tuple[str, list[dict[str, Any]]]:
    """The array of items and the name under which the client gave it."""
    steps, jobs = document.get("steps"), document.get("jobs")
    if steps is not None and jobs is not None and steps != jobs:
        raise fault(f"{path}.jobs", "contradicts steps; give one of the two")
    key, items = ("steps", steps) if steps is not None else ("jobs", jobs)
    if not isinstance(items, list) or not items:
        raise fault(f"{path}.{key if items is not None else 'steps'}", "must be an array of at least one item")
    for index, item in enumerate(items):
        if not isinstance(item, dict):
            raise fault(f"{path}.{key}[{index}]", "must be an object", received=shorten(item))
    return key, items


def _checked_callbacks(given: Any, path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    place = f"{path}.callbacks"
    if not isinstance(given, dict) or not any(value is not None for value in given.values()):
        raise fault(place, f"must hold at least one of {', '.join(CALLBACKS)}")
    if unknown := sorted(set(given) - set(CALLBACKS)):
        raise fault(f"{place}.{shorten(unknown[0])}", f"is none of {', '.join(CALLBACKS)}")
    for key in CALLBACKS:
        item = given.get(key)
        if item is None:
            continue
        if not isinstance(item, dict) or is_nested(item):
            raise fault(f"{place}.{key}", "must be a single job")
        yield key, item


def _check_job(step: Step, now: dt.datetime) -> int:
    """Validate the envelope as PUSH will, and take over the type and queue that it means; return its priority."""
    try:
        spec = envelope.parse(step.document, now=now)
        step.type, step.queue = spec.type, spec.queue
        return spec.priority
    except InvalidPayload as error:
        field = error.details.get("field")
        path = step.path if field in (None, "job") else f"{step.path}.{field}"
        message = error.message.removeprefix(f"{field}: ").rstrip(".")
        facts = {name: error.details[name] for name in ("expected", "received") if name in error.details}
        raise fault(path, message, step_id=step.id, **facts) from error
    except OJSError as error:
        error.details |= {"step_id": step.id, "path": step.path}
        raise


def _own_id(document: dict[str, Any]) -> str:
    given = document.get("id")
    return given if isinstance(given, str) and _CLIENT_ID.fullmatch(given) else ""


def _name(document: dict[str, Any]) -> str:
    name = document.get("name")
    if name is None:
        return ""
    if not isinstance(name, str) or len(name) > MAX_NAME or not name.isprintable():
        raise fault("$.name", f"must be a printable text of at most {MAX_NAME} characters", received=shorten(name))
    return name
