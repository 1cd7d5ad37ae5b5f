"""Reads a workflow in every form in which clients send it, and makes one plan of it (orchestration 1.2 and 1.3).

`parse` checks the whole request before anything is stored: structure, ids, dependencies, cycles, sizes, and
every job's envelope. The job documents of a plan carry the workflow's options below their own, and the priority of the
roots of the workflow unless they have one: roots are the jobs that wait for nothing.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from itertools import chain, count
from typing import Any, TypeGuard

from django_ojs.conf import ojs_settings
from django_ojs.errors import InvalidPayload, OJSError, Unsupported
from django_ojs.rules import envelope
from django_ojs.rules.attributes import TIMEOUTS
from django_ojs.rules.envelope import JobSpec
from django_ojs.rules.faults import shorten, workflow_fault
from django_ojs.rules.workflowgraph import CALLBACKS, ROOT, Graph, WorkflowNode

KINDS = ("chain", "group", "batch")
MAX_DEPTH = 10  #: nested workflows, the outermost included
MAX_NAME = 255

#: An id that a client may give a workflow.
CLIENT_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")


@dataclass(slots=True)
class PlannedStep:
    """One node that is not the root. `document` is the envelope to push; None for a nested workflow."""

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
    steps: list[PlannedStep]

    def limited(self, limit: int) -> Plan:
        """The same, of whose jobs at most so many are enqueued at the same time."""
        graph = Graph(self.graph.nodes, self.graph.free, limit)
        return Plan(self.id, self.name, self.type, graph, self.steps)

    def documents(self) -> list[dict[str, Any]]:
        return [step.document for step in self.steps if step.document is not None]


def parse(document: object, *, now: dt.datetime, read: Callable[..., JobSpec] = envelope.parse) -> Plan:
    """The plan of a request; `read` reads the envelope of a job, as `envelope.parse` does.

    Raises InvalidWorkflow (400), Unsupported (422) or PayloadTooLarge (413).
    """
    if not isinstance(document, dict):
        raise workflow_fault("$", "must be an object with steps or jobs")
    builder = _Builder()
    kind = builder.build(document)
    plan = Plan(_own_id(document), _name(document), kind, Graph(tuple(builder.nodes), builder.free), builder.steps)
    priorities: dict[int, int] = {}
    for step in plan.steps:
        if step.document is not None:
            priorities[step.position] = _check_job(step, now, read)
    roots = inherited_priorities(plan.graph.nodes, priorities)
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
        self.nodes: list[WorkflowNode] = []
        self.steps: list[PlannedStep] = []
        self.free = False
        self._jobs = 0

    def build(self, document: dict[str, Any]) -> str:
        self.nodes.append(WorkflowNode("dag", -1))
        if document.get("type") is None:
            self.free = True
            kind = self._free(document)
        else:
            kind = _kind(document, "$")
            self._composite(document, kind, 0, "$", {}, 1)
        self.nodes[0] = WorkflowNode(kind, -1)
        self._refuse_repeated_ids()
        return kind

    def _composite(
        self, document: dict[str, Any], kind: str, scope: int, path: str, inherited: dict[str, Any], depth: int
    ) -> None:
        """The parts of a chain, group or batch."""
        if depth > MAX_DEPTH:
            raise workflow_fault(path, f"must not nest deeper than {MAX_DEPTH} workflows", max_depth=MAX_DEPTH)
        key, items = _items(document, path)
        options = inherit(inherited, document, path)
        prefix = "" if scope == 0 else f"{self.steps[-1].id}."
        ids = step_ids(items, prefix + ("step" if kind == "chain" else "job"))
        dependencies(items, ids, f"{path}.{key}")  # checked; the type of the workflow decides
        members: list[int] = []
        for index, item in enumerate(items):
            needs = tuple(members[-1:]) if kind == "chain" else ()
            place = f"{path}.{key}[{index}]"
            members.append(
                self._item(item, ids[index], WorkflowNode("job", scope, index, needs), place, options, depth)
            )
        self._callbacks(document, kind, scope, path, options, members)

    def _item(
        self, item: dict[str, Any], name: str, node: WorkflowNode, path: str, options: dict[str, Any], depth: int
    ) -> int:
        position = len(self.nodes)
        if not is_nested(item):
            self._job(item, name, node, path, options)
            return position
        kind = _kind(item, path)
        self.nodes.append(node._replace(kind=kind))
        self.steps.append(PlannedStep(position, name, kind, path))
        self._composite(item, kind, position, path, options, depth + 1)
        return position

    def _job(self, item: dict[str, Any], name: str, node: WorkflowNode, path: str, options: dict[str, Any]) -> None:
        self._jobs += 1
        if self._jobs > ojs_settings.MAX_BATCH_SIZE:
            limit = ojs_settings.MAX_BATCH_SIZE
            raise workflow_fault("$", f"must not hold more than {limit} jobs", max_jobs=limit)
        document = leaf(item, options, path)
        self.steps.append(PlannedStep(len(self.nodes), name, str(document.get("type")), path, document))
        self.nodes.append(node)

    def _callbacks(
        self, document: dict[str, Any], kind: str, scope: int, path: str, options: dict[str, Any], members: list[int]
    ) -> None:
        given = document.get("callbacks")
        if kind != "batch":
            if given:
                raise workflow_fault(f"{path}.callbacks", "belong to a batch; give type batch")
            return
        for key, item in _checked_callbacks(given, path):
            node = WorkflowNode("job", scope, CALLBACKS.index(key), tuple(members), key)
            prefix = "" if scope == 0 else f"{self.steps[scope - 1].id}."
            self._job(item, prefix + key, node, f"{path}.callbacks.{key}", options)

    def _free(self, document: dict[str, Any]) -> str:
        """Steps that name what they depend on, in an order in which each comes after what it needs."""
        key, items = _items(document, "$")
        options = inherit({}, document, "$")
        place = f"$.{key}"
        for index, item in enumerate(items):
            if is_nested(item):
                raise workflow_fault(
                    f"{place}[{index}]", "nests a workflow, which needs a workflow with a type around it"
                )
        ids = step_ids(items, "step")
        needs = dependencies(items, ids, place, named=True)
        positions = {index: rank for rank, index in enumerate(sorted_by_needs(needs, ids, place), start=1)}
        triggers = [trigger_of(item, ids[i], needs[i]) for i, item in enumerate(items)]
        for index in positions:
            wanted = tuple(positions[need] for need in needs[index])
            node = WorkflowNode("job", 0, index, wanted, triggers[index])
            self._job(items[index], ids[index], node, f"{place}[{index}]", options)
        return inferred_type(needs, triggers)

    def _refuse_repeated_ids(self) -> None:
        seen: set[str] = set()
        for step in self.steps:
            if step.id in seen:
                raise workflow_fault(f"{step.path}.id", f"repeats the id {shorten(step.id)}")
            seen.add(step.id)


def _kind(document: dict[str, Any], path: str) -> str:
    kind = document.get("type")
    if kind == "saga":
        raise Unsupported("This server has no sagas.", details={"field": f"{path}.type", "received": "saga"})
    if kind not in KINDS:
        raise workflow_fault(f"{path}.type", f"must be one of {', '.join(KINDS)}", received=kind)
    return str(kind)


def _items(document: dict[str, Any], path: str) -> tuple[str, list[dict[str, Any]]]:
    """The array of items and the name under which the client gave it."""
    steps, jobs = document.get("steps"), document.get("jobs")
    if steps is not None and jobs is not None and steps != jobs:
        raise workflow_fault(f"{path}.jobs", "contradicts steps; give one of the two")
    key, items = ("steps", steps) if steps is not None else ("jobs", jobs)
    if not isinstance(items, list) or not items:
        raise workflow_fault(f"{path}.{key if items is not None else 'steps'}", "must be an array of at least one item")
    for index, item in enumerate(items):
        if not isinstance(item, dict):
            raise workflow_fault(f"{path}.{key}[{index}]", "must be an object", received=item)
    return key, items


def _checked_callbacks(given: Any, path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    place = f"{path}.callbacks"
    if not isinstance(given, dict) or not any(value is not None for value in given.values()):
        raise workflow_fault(place, f"must hold at least one of {', '.join(CALLBACKS)}")
    if unknown := sorted(set(given) - set(CALLBACKS)):
        raise workflow_fault(f"{place}.{shorten(unknown[0])}", f"is none of {', '.join(CALLBACKS)}")
    for key in CALLBACKS:
        item = given.get(key)
        if item is None:
            continue
        if not isinstance(item, dict) or is_nested(item):
            raise workflow_fault(f"{place}.{key}", "must be a single job")
        yield key, item


def _check_job(step: PlannedStep, now: dt.datetime, read: Callable[..., JobSpec]) -> int:
    """Validate the envelope as PUSH will, and take over the type and queue that it means; return its priority."""
    try:
        spec = read(step.document, now=now)
        step.type, step.queue = spec.type, spec.queue
        return spec.priority
    except InvalidPayload as error:
        field = error.details.get("field")
        path = step.path if field in (None, "job") else f"{step.path}.{field}"
        message = error.message.removeprefix(f"{field}: ").rstrip(".")
        facts = {name: error.details[name] for name in ("expected", "received") if name in error.details}
        raise workflow_fault(path, message, step_id=step.id, **facts) from error
    except OJSError as error:
        error.details |= {"step_id": step.id, "path": step.path}
        raise


def _own_id(document: dict[str, Any]) -> str:
    given = document.get("id")
    return given if isinstance(given, str) and CLIENT_ID.fullmatch(given) else ""


def check_id(given: str) -> str:
    """The id that a caller wants a workflow to have. Raises InvalidWorkflow for one that `parse` would pass over."""
    if not CLIENT_ID.fullmatch(given):
        raise workflow_fault("$.id", "must be 1 to 128 letters, digits, '.', '_', ':' or '-'", received=given)
    return given


def _name(document: dict[str, Any]) -> str:
    name = document.get("name")
    if name is None:
        return ""
    if not isinstance(name, str) or len(name) > MAX_NAME or not name.isprintable():
        raise workflow_fault("$.name", f"must be a printable text of at most {MAX_NAME} characters", received=name)
    return name


# Step ids and the dependencies between them: unique, known, without a cycle.


MAX_STEP_ID = 255


def step_ids(items: Sequence[dict[str, Any]], word: str) -> list[str]:
    """The id of each item: its own, else its name where that is free, else `word-{index}`; '' for a faulty one.

    Those that are made here begin with the ids of the workflows around them, and so may be longer than one of a client.
    """
    own = [item.get("id") for item in items]
    taken = {value for value in own if isinstance(value, str)}
    found: list[str] = []
    for index, item in enumerate(items):
        value, name = own[index], item.get("name")
        if value is not None:
            found.append(value if _is_id(value) else "")
        elif _is_id(name) and name not in taken:
            found.append(name)
        else:
            others = (f"{word}-{index}.{number}" for number in count(len(items)))
            found.append(next(one for one in chain((f"{word}-{index}",), others) if one not in taken))
        taken.add(found[-1])
    return found


def dependencies(
    items: Sequence[dict[str, Any]], names: Sequence[str], path: str, *, named: bool = False
) -> list[tuple[int, ...]]:
    """The items that each item depends on, by index; `path` is that of the array, for errors.

    Raises InvalidWorkflow for a faulty or repeated id and a dependency on nothing, on itself or in a circle;
    with `named` also for a step without an id where steps depend on each other.
    """
    places: dict[str, int] = {}
    depends = any(item.get("depends_on") for item in items)
    for index, name in enumerate(names):
        if not name:
            message = f"must be a printable text of 1 to {MAX_STEP_ID} characters"
            raise workflow_fault(f"{path}[{index}].id", message, received=items[index].get("id"))
        if named and depends and items[index].get("id") is None and items[index].get("name") is None:
            raise workflow_fault(f"{path}[{index}].id", "is needed where steps depend on each other")
        if name in places:
            raise workflow_fault(f"{path}[{index}].id", f"repeats the id {shorten(name)}")
        places[name] = index
    found = [_needs_of(item.get("depends_on"), i, places, f"{path}[{i}].depends_on") for i, item in enumerate(items)]
    if depends:
        sorted_by_needs(found, names, path)
    return found


def sorted_by_needs(needs: Sequence[tuple[int, ...]], names: Sequence[str], path: str) -> list[int]:
    """Indexes in an order in which each comes after what it needs.

    Raises InvalidWorkflow for a cycle, described by the `names` of its steps.
    """
    sorter = TopologicalSorter(dict(enumerate(needs)))
    try:
        sorter.prepare()
    except CycleError as error:
        last, *_ = found = list(error.args[1])
        cycle = [names[index] for index in reversed(found)]
        steps = " → ".join(map(shorten, cycle))
        message = f"closes a circle of steps, in which each needs the next ({steps})"
        raise workflow_fault(f"{path}[{last}].depends_on", message, cycle=cycle) from None
    order: list[int] = []
    while sorter.is_active():
        ready = sorted(sorter.get_ready())
        order += ready
        sorter.done(*ready)
    return order


def trigger_of(item: dict[str, Any], name: str, needs: tuple[int, ...]) -> str:
    """Which callback a step of the free form is, by its marker or its id, in which `-` is as good as `_` (orchestration
    1.2); '' for an ordinary step."""
    if not needs:
        return ""
    options = item.get("options")
    marker = options.get("callback_type") if isinstance(options, dict) else None
    for word in (marker, name):
        if isinstance(word, str) and word.replace("-", "_") in CALLBACKS:
            return word.replace("-", "_")
    return ""


def inferred_type(needs: Sequence[tuple[int, ...]], triggers: Sequence[str]) -> str:
    """What a workflow of the free form is called."""
    if any(triggers):
        plain = all(not need for need, trigger in zip(needs, triggers, strict=True) if not trigger)
        return "batch" if plain else "dag"
    if len(needs) == 1 or all(need == ((i - 1,) if i else ()) for i, need in enumerate(needs)):
        return "chain"
    return "group" if not any(needs) else "dag"


def _needs_of(given: Any, index: int, places: dict[str, int], path: str) -> tuple[int, ...]:
    if given is None:
        return ()
    if not isinstance(given, list):
        raise workflow_fault(path, "must be an array of step ids", received=given)
    for number, name in enumerate(given):
        if not isinstance(name, str) or name not in places:
            raise workflow_fault(f"{path}[{number}]", f"names the unknown step {shorten(name)}", received=name)
        if places[name] == index:
            raise workflow_fault(f"{path}[{number}]", "names its own step")
    return tuple(dict.fromkeys(places[name] for name in given))


def _is_id(value: Any) -> TypeGuard[str]:
    return isinstance(value, str) and 0 < len(value) <= MAX_STEP_ID and value.isprintable()


# What a workflow's options mean for its jobs: item options > item members > workflow options.


#: The other member of a timeout, which has one for seconds and one for milliseconds: a value of one overrides both.
_OTHER_UNIT = {name: f"{name}_ms" for name in TIMEOUTS} | {f"{name}_ms": name for name in TIMEOUTS}
#: Members of an item that describe its place in the workflow.
_STRUCTURE = frozenset({"id", "name", "depends_on"})


def inherit(inherited: dict[str, Any], document: dict[str, Any], path: str) -> dict[str, Any]:
    """The options that the parts of a workflow get: its own over those of the workflow around it."""
    own = document.get("options")
    if own is None:
        return inherited
    if not isinstance(own, dict):
        raise workflow_fault(f"{path}.options", "must be an object")
    return _over(inherited, own)


def leaf(item: dict[str, Any], inherited: dict[str, Any], path: str) -> dict[str, Any]:
    """The envelope of a job: what the item says, over what the workflow says."""
    document = {name: value for name, value in item.items() if name not in _STRUCTURE}
    own = document.pop("options", None)
    if own is not None and not isinstance(own, dict):
        raise workflow_fault(f"{path}.options", "must be an object")
    options = {name: value for name, value in (own or {}).items() if name != "callback_type"}
    given = {name for source in (document, options) for name, value in source.items() if value is not None}
    hidden = {"meta", "callback_type"}
    options |= {name: value for name, value in inherited.items() if name not in hidden and not _is_in(given, name)}
    below = _meta(inherited)
    if below:
        own_meta = document.get("meta")
        document["meta"] = below | own_meta if isinstance(own_meta, dict) else own_meta or below
    return document | {"options": options} if options else document


def _over(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    given = {name for name, value in above.items() if value is not None}
    kept = {name: value for name, value in below.items() if name != "meta" and not _is_in(given, name)}
    meta = _meta(below) | _meta(above)
    return kept | {name: value for name, value in above.items() if name != "meta"} | ({"meta": meta} if meta else {})


def _meta(options: dict[str, Any]) -> dict[str, Any]:
    meta = options.get("meta")
    return meta if isinstance(meta, dict) else {}


def _is_in(given: set[str], name: str) -> bool:
    """Whether what is given overrides this attribute."""
    return name in given or _OTHER_UNIT.get(name) in given


# Priorities: what comes after several jobs, such as a callback, has the highest of theirs (jobs 3).


def inherited_priorities(nodes: Sequence[WorkflowNode], priorities: Mapping[int, int]) -> dict[int, int]:
    """The priority of each job that waits for others, by position: that of its roots.

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
