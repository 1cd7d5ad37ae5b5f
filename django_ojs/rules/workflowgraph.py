"""A workflow as one graph, the rules by which it goes on (orchestration 1.4 and 1.8), and what clients see of it.

Chains, groups, batches and free graphs, nested or not, become the same thing: nodes, each of which has a
*scope* (the composite around it; node 0 is the whole workflow), the siblings it *needs*, and a *trigger*.
How far a workflow is fits into one letter per node. Nothing here knows a database: `evaluate()` changes the
letters until nothing more follows and says which jobs are to be enqueued; `render()` makes JSON values of the rows.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from django_ojs import jsontext
from django_ojs.rules.durations import format_instant
from django_ojs.states import State

if TYPE_CHECKING:
    from django_ojs.models import JobProgress, JobRow, Workflow, WorkflowStep


ON_COMPLETE, ON_SUCCESS, ON_FAILURE = "on_complete", "on_success", "on_failure"
#: The callbacks, in the order in which they are enqueued.
CALLBACKS = (ON_COMPLETE, ON_SUCCESS, ON_FAILURE)

#: The letters. A composite node uses them too; it is `RUNNING` once its parts may start.
WAITING, RUNNING, COMPLETED = "w", "r", "c"
FAILED = "f"  #: its job was discarded, or a composite failed
CANCELLED = "x"  #: its job was cancelled
REFUSED = "e"  #: its job could not be enqueued
NEVER = "n"  #: never enqueued, because something before it failed or the workflow was cancelled
SKIPPED = "s"  #: a callback that was not triggered, or what waits for one

OPEN = frozenset({WAITING, RUNNING})
BAD = frozenset({FAILED, CANCELLED, REFUSED, NEVER})  #: what counts as a failed member
UNMADE = frozenset({WAITING, NEVER, SKIPPED, REFUSED})  #: there is no job of it
FAULTS = frozenset({FAILED, CANCELLED, REFUSED})  #: a failure of the node's own
ROOT = 0


class WorkflowNode(NamedTuple):
    """`kind` is `job`, or `chain`, `group`, `batch` or `dag`; `place` is the index in the client's array."""

    kind: str
    scope: int  #: position of the composite around it; -1 for the whole workflow
    place: int = 0
    needs: tuple[int, ...] = ()
    trigger: str = ""  #: one of `CALLBACKS`; empty for an ordinary step


@dataclass(slots=True)
class Graph:
    """The nodes by their positions. `free` is the form in which clients name dependencies themselves. With a `limit`
    at most so many jobs are enqueued at the same time, in the order of their positions; 0: all that can."""

    nodes: tuple[WorkflowNode, ...]
    free: bool = False
    limit: int = 0
    children: dict[int, list[int]] = field(init=False)
    leaves: list[int] = field(init=False)  #: the positions of all jobs that are no callbacks
    others: list[int] = field(init=False)  #: those of all other nodes

    def __post_init__(self) -> None:
        self.children = {position: [] for position, node in enumerate(self.nodes) if node.kind != "job"}
        self.leaves = [p for p, node in enumerate(self.nodes) if node.kind == "job" and not node.trigger]
        leaves = set(self.leaves)
        self.others = [position for position in range(len(self.nodes)) if position not in leaves]
        for position, node in enumerate(self.nodes):
            if node.scope >= 0:
                self.children[node.scope].append(position)

    def members(self, scope: int) -> list[int]:
        """The parts of a composite without its callbacks, in the client's order."""
        found = [child for child in self.children[scope] if not self.nodes[child].trigger]
        return sorted(found, key=lambda child: self.nodes[child].place)

    def callbacks(self, scope: int) -> list[int]:
        return [child for child in self.children[scope] if self.nodes[child].trigger]

    def count_open(self, letters: list[str]) -> int:
        """How many jobs have not ended, callbacks left out."""
        every = letters.count(WAITING) + letters.count(RUNNING)
        return every - sum(letters[position] in OPEN for position in self.others)

    def room(self, letters: Sequence[str]) -> int:
        """How many jobs may be enqueued beside those that have not ended."""
        if not self.limit:
            return len(self.nodes)
        return self.limit - sum(letters[p] == RUNNING for p, node in enumerate(self.nodes) if node.kind == "job")

    def encode(self) -> str:
        rows = [list(node) for node in self.nodes]
        limit = {"limit": self.limit} if self.limit else {}
        return json.dumps({"free": self.free, **limit, "nodes": rows}, separators=(",", ":"))


@lru_cache(maxsize=64)
def decode(text: str) -> Graph:
    """The graph that `encode` wrote. Shared: the same object for the same text."""
    value = json.loads(text)
    nodes = tuple(
        WorkflowNode(kind, scope, place, tuple(needs), trigger) for kind, scope, place, needs, trigger in value["nodes"]
    )
    return Graph(nodes, value["free"], value.get("limit", 0))


def evaluate(graph: Graph, letters: list[str]) -> list[int]:
    """Change `letters` in place until nothing more follows from them; return the jobs to enqueue, in order.

    Positions grow from a composite to its parts and from a step to what needs it, so a pass settles all
    that hangs on a step, and another one is needed only for each composite that ends.
    """
    ready: list[int] = []
    room = graph.room(letters)
    changed = True
    while changed:
        changed = False
        for position, node in enumerate(graph.nodes):
            letter = letters[position]
            if letter == WAITING:
                new = _begin(node, letters)
                if new == RUNNING and node.kind == "job":
                    if room <= 0:
                        continue
                    room -= 1
            elif letter == RUNNING and node.kind != "job":
                new = _composite_letter(graph, position, letters)
            else:
                continue
            if new != letter:
                letters[position] = new
                if new != RUNNING:
                    changed = True  # what is around it, and so comes before it, may end
                elif node.kind == "job":
                    ready.append(position)
    return sorted(ready, key=lambda position: _delivery(graph, position)) if len(ready) > 1 else ready


def cancel(letters: list[str], cancelled: Iterable[int]) -> None:
    """End the whole workflow, in place: `cancelled` are the jobs that were cancelled, active ones stay."""
    for position in cancelled:
        letters[position] = CANCELLED
    for position, letter in enumerate(letters):
        if letter == WAITING:
            letters[position] = NEVER
    letters[ROOT] = CANCELLED


def causes(graph: Graph, letters: Sequence[str], scope: int = ROOT) -> list[int]:
    """The jobs whose failure made this composite fail: of its callbacks, and of its members without a callback."""
    faulty = [child for child in graph.callbacks(scope) if letters[child] in FAULTS]
    found: list[int] = []
    for child in faulty + _unhandled(graph, scope, letters):
        found += [child] if graph.nodes[child].kind == "job" else causes(graph, letters, child)
    return found


def dependents(graph: Graph, positions: Iterable[int]) -> Iterator[tuple[int, bool]]:
    """The nodes that depend on these: (position, whether it contains one of them rather than waits for it)."""
    seen, work = set(positions), list(positions)
    while work:
        position = work.pop()
        node = graph.nodes[position]
        around = [(node.scope, True)] if node.scope >= 0 else []
        waiting = [
            (child, False) for child in graph.children.get(node.scope, ()) if position in graph.nodes[child].needs
        ]
        for found, contains in (*around, *waiting):
            if found not in seen:
                seen.add(found)
                work.append(found)
                yield found, contains


def reopen(graph: Graph, letters: list[str], revived: Sequence[int]) -> None:
    """Let failed jobs run again, in place: composites around them are open again, and what never began waits again."""
    for position in revived:
        letters[position] = RUNNING
    for position, contains in dependents(graph, revived):
        if contains:
            letters[position] = RUNNING
        elif letters[position] in (NEVER, SKIPPED):
            _reset(graph, letters, position)


def is_settled_by_others(graph: Graph, letters: Sequence[str], position: int) -> bool:
    """Whether something has begun because of how this job ended, so that it cannot be taken back."""
    begun = (
        letters[found] not in (WAITING, NEVER, SKIPPED) for found, inside in dependents(graph, [position]) if not inside
    )
    return any(begun)


def _begin(node: WorkflowNode, letters: Sequence[str]) -> str:
    """The next letter of a node that waits."""
    scope = letters[node.scope] if node.scope >= 0 else RUNNING
    if scope == WAITING:
        return WAITING
    if scope != RUNNING:
        return SKIPPED if scope == SKIPPED else NEVER
    if node.trigger:
        return _trigger(node, letters)
    return _follow(node, letters)


def _follow(node: WorkflowNode, letters: Sequence[str]) -> str:
    """An ordinary step begins when all it needs has completed, and never when some of it cannot."""
    answer = RUNNING
    for need in node.needs:
        letter = letters[need]
        if letter in BAD:
            return NEVER
        if letter == SKIPPED:
            answer = SKIPPED
        elif letter != COMPLETED and answer == RUNNING:
            answer = WAITING
    return answer


def _trigger(node: WorkflowNode, letters: Sequence[str]) -> str:
    """A callback is decided on when all it needs has ended."""
    failed = False
    for need in node.needs:
        letter = letters[need]
        if letter in OPEN:
            return WAITING
        failed = failed or letter in BAD
    wanted = node.trigger == ON_COMPLETE or failed == (node.trigger == ON_FAILURE)
    return RUNNING if wanted else SKIPPED


def _composite_letter(graph: Graph, scope: int, letters: Sequence[str]) -> str:
    """The next letter of a composite that is open: it ends with the last of its parts, callbacks included."""
    parts = graph.children[scope]
    if any(letters[child] in OPEN for child in parts):
        return RUNNING
    failed = any(letters[child] in BAD for child in graph.callbacks(scope)) or _unhandled(graph, scope, letters)
    return FAILED if failed else COMPLETED


def _unhandled(graph: Graph, scope: int, letters: Sequence[str]) -> list[int]:
    """The members that failed and of whose failure no callback was told that is for one: none of these needs them, or
    what waited for them."""
    handled: set[int] = set()
    for child in reversed(graph.children[scope]):
        node = graph.nodes[child]
        told = node.trigger in (ON_COMPLETE, ON_FAILURE) and letters[child] not in (SKIPPED, NEVER)
        if told or child in handled:
            handled.update(node.needs)
    return [child for child in graph.members(scope) if letters[child] in FAULTS and child not in handled]


def _reset(graph: Graph, letters: list[str], position: int) -> None:
    letters[position] = WAITING
    for child in graph.children.get(position, ()):
        _reset(graph, letters, child)


def _delivery(graph: Graph, position: int) -> tuple[int, int]:
    """Array order, callbacks last and in their own order."""
    node = graph.nodes[position]
    rank = CALLBACKS.index(node.trigger) + 1 if node.trigger else 0
    return (rank, node.place) if graph.free else (0, position)


# Which results a node learns of, and what the result of a nested workflow is (orchestration 1.7).


def sources(graph: Graph, position: int) -> list[int]:
    """The positions whose results this node receives, in order.

    A chain's step receives those of all steps before it, any other node those of what it needs. A node that needs
    nothing receives what the workflow around it receives.
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


# What clients see of a workflow (orchestration 1.5, 1.6, binding 2.8): rows in, JSON values out.


_OF_JOB = {
    State.ACTIVE: "active", State.COMPLETED: "completed", State.DISCARDED: "failed", State.CANCELLED: "cancelled",
}  # fmt: skip
_OF_LETTER = {
    RUNNING: "active", COMPLETED: "completed", FAILED: "failed", REFUSED: "failed",
    CANCELLED: "cancelled", NEVER: "cancelled", SKIPPED: "cancelled",
}  # fmt: skip


def render(flow: Workflow, steps: list[WorkflowStep], jobs: Mapping[uuid.UUID, JobRow]) -> dict[str, Any]:
    """The whole object, with every member that the specification or its published clients expect."""
    shown = {step.position: _step(flow, step, jobs) for step in steps}
    listed = _listed(flow, ROOT, shown)
    counted = summary(flow)
    view: dict[str, Any] = {
        **{name: counted[name] for name in ("id", "type", "name", "state", "steps_total", "steps_completed")},
        "jobs_total": counted["steps_total"],
        "jobs_completed": counted["steps_completed"],
        "steps": listed,
        **_callbacks(flow, ROOT, shown),
        "error": flow.error,
        **_times(flow),
    }
    if flow.type in ("group", "batch") and not flow.shape.free:
        view["jobs"] = listed
    leaves = flow.shape.leaves
    view["metadata"] = _times(flow) | {
        "job_count": flow.job_count,
        "completed_count": sum(flow.progress[leaf] == COMPLETED for leaf in leaves),
        "failed_count": sum(flow.progress[leaf] in FAULTS for leaf in leaves),
    }
    return {name: value for name, value in view.items() if value is not None or name != "error"}


def summary(flow: Workflow) -> dict[str, Any]:
    """The item of a list."""
    members = flow.shape.members(ROOT)
    done = sum(flow.progress[member] == COMPLETED for member in members)
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


def progress(
    flow: Workflow, steps: list[WorkflowStep], jobs: Mapping[uuid.UUID, JobRow],
    reported: Mapping[uuid.UUID, JobProgress],
) -> dict[str, Any]:  # fmt: skip
    """How far it is, from 0 to 1 (orchestration 5.3). `jobs` may be those of a brief view; `reported` is what their
    handlers have told of them."""
    graph = flow.shape
    shown = {step.position: _head(flow, step, _job(step, jobs)) for step in steps}
    told = {
        step.position: found.percent for step in steps if step.job_id and (found := reported.get(step.job_id))
    }  # fmt: skip

    def part(position: int) -> float | None:
        """How far a step is; None where nothing is known of it."""
        if shown[position]["state"] == "completed":
            return 1.0
        if graph.nodes[position].kind != "job":
            return whole(position) if flow.progress[position] == RUNNING else None
        percent = told.get(position)
        return None if percent is None else round(percent / 100, 4)

    def whole(scope: int) -> float:
        """How far a workflow is: the mean of its steps; of a batch only those count that have completed."""
        members, in_parts = graph.members(scope), graph.nodes[scope].kind != "batch"
        parts = [part(member) or 0.0 for member in members if in_parts or shown[member]["state"] == "completed"]
        return round(sum(parts) / len(members), 4)

    times = [row["finished_at"] or row["started_at"] for row in jobs.values()]
    times += [progress.updated_at for progress in reported.values()]
    updated = max((time for time in times if time is not None), default=flow.created_at)
    ordinary = [position for position in shown if not graph.nodes[position].trigger]
    return {
        "workflow_id": flow.public_id,
        "type": flow.type,
        "progress": whole(ROOT),
        "updated_at": format_instant(updated),
        "steps": [
            {name: shown[position][name] for name in ("id", "job_id", "type", "state")} | {"progress": part(position)}
            for position in sorted(ordinary, key=lambda position: shown[position]["index"])
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
    """The member `callbacks`, absent where there are none."""
    nodes = flow.shape.nodes
    found = {nodes[position].trigger: shown[position] for position in flow.shape.callbacks(scope)}
    return {"callbacks": found} if found else {}


def _step(flow: Workflow, step: WorkflowStep, jobs: Mapping[uuid.UUID, JobRow]) -> dict[str, Any]:
    job = _job(step, jobs)
    view = _head(flow, step, job) | {"depends_on": []}
    view["job_ids"] = [view["job_id"]] if view["job_id"] else []
    if flow.progress[step.position] == SKIPPED:
        view["skipped"] = True
    if step.document:
        view["args"] = jsontext.loads(step.document).get("args")
    if step.error:
        view["error"] = step.error
    return view | (_of_job(job) if job is not None else {})


def _head(flow: Workflow, step: WorkflowStep, job: JobRow | None) -> dict[str, Any]:
    """Which step it is and how far; only what a brief view has."""
    letter, node = flow.progress[step.position], flow.shape.nodes[step.position]
    began = letter not in (WAITING, NEVER, SKIPPED, REFUSED) and node.kind == "job"
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
    """The state of a step for clients: from its job where it has one. The words depend on the form (section 1.5)."""
    waiting, enqueued = ("pending", "available") if flow.shape.free else ("waiting", "pending")
    if letter == WAITING:
        return waiting
    if letter == RUNNING and job is not None:
        return _OF_JOB.get(State(job["state"]), enqueued)
    if letter == RUNNING and flow.state == "cancelled":
        return "cancelled"  # a nested workflow, open when the whole was cancelled
    return _OF_LETTER[letter]


def _times(flow: Workflow) -> dict[str, str]:
    given = {"created_at": flow.created_at, "started_at": flow.started_at, "completed_at": flow.finished_at}
    times = {name: format_instant(instant) for name, instant in given.items() if instant is not None}
    return times | ({"cancelled_at": times["completed_at"]} if flow.state == "cancelled" else {})
