"""The picture of a workflow with the states of its jobs: SVG, each job a link to its page.

`draw` makes the picture, `layout` says where its boxes go. Time runs from left to right: a chain is a row, a group a
column, a free graph has a column for each step of its longest way; a nested workflow is a frame around its own picture.
One box stands for many jobs where there are too many to look at: the members of a large group, the middle of a long
chain. Failed and running jobs keep boxes of their own before the others, and so do those that a viewer looks for. A
click opens such a box: then each of its jobs has one of its own, all of them in a frame.
"""

from __future__ import annotations

import dataclasses
import re
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

from django.db.models import Q
from django.http import QueryDict
from django.utils.html import format_html, format_html_join
from django.utils.http import urlencode
from django.utils.safestring import SafeString
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_noop as _

from django_ojs import clock
from django_ojs.admin.base import unless_large
from django_ojs.admin.display import duration, ellipsized, printable
from django_ojs.admin.jobpage import last_failure, ran_ms
from django_ojs.models import Job, Workflow, WorkflowStep
from django_ojs.rules import workflowgraph as rules
from django_ojs.rules.workflowgraph import ROOT, Graph
from django_ojs.states import State

_MARGIN = 10
#: letter -> the colour's name and the word; a running job has those of its own state.
_LOOKS = {
    rules.WAITING: ("waiting", _("waiting")), rules.RUNNING: ("active", _("running")),
    rules.COMPLETED: ("completed", _("completed")), rules.FAILED: ("discarded", _("failed")),
    rules.CANCELLED: ("cancelled", _("cancelled")), rules.REFUSED: ("discarded", _("refused")),
    rules.NEVER: ("cancelled", _("never ran")), rules.SKIPPED: ("cancelled", _("skipped")),
}  # fmt: skip
_FIRST = {rules.FAILED: 0, rules.REFUSED: 0, rules.CANCELLED: 1, rules.RUNNING: 2}
#: The words of a running job's state, for the catalogue.
_STATES = (_("scheduled"), _("available"), _("pending"), _("active"), _("retryable"), _("discarded"))


class _Box(NamedTuple):
    """What a box says: `word` is the state, `took` how long it ran, `attempt` which one it is if it is not the first,
    `error` what failed."""

    name: str
    type: str
    colour: str
    word: str
    took: str
    attempt: str
    error: tuple[str, str] | None
    job: uuid.UUID | None


@dataclasses.dataclass(frozen=True, slots=True)
class GraphView:
    """What a viewer wants to see: the boxes of these composites opened, and the steps in whose name or type a text
    is."""

    opened: frozenset[int] = frozenset()
    find: str = ""

    @classmethod
    def of(cls, given: QueryDict) -> GraphView:
        """The view that the parameters of a request ask for."""
        opened = {int(text) for text in given.getlist("open") if re.fullmatch(r"-?\d{1,6}", text, re.ASCII)}
        return cls(frozenset(opened), given.get("find", "").strip()[:MAX_FIND])

    def address(self, opened: Collection[int]) -> str:
        """That of the page with these composites opened."""
        return "?" + urlencode([("open", scope) for scope in sorted(opened)] + [("find", self.find)] * bool(self.find))

    def toggled(self, scope: int) -> str:
        return self.address(self.opened ^ {scope})

    def fits(self, step: WorkflowStep) -> bool:
        """Whether the viewer looks for this step."""
        text = self.find.casefold()
        return bool(text) and (text in step.step_id.casefold() or text in step.type.casefold())


def draw(
    flow: Workflow, steps: Sequence[WorkflowStep], link: Callable[[uuid.UUID], str], view: GraphView
) -> SafeString:
    """The picture of a workflow as it is now. `link` gives the address of a job's page.

    Reads, beside its `steps` (`steps_of`), the jobs that run or have a box of their own: one statement, whatever the
    number of members.
    """
    found = {step.position for step in steps if view.fits(step)}
    picture = layout(
        flow.shape, lambda position: -1 if position in found else _FIRST.get(flow.progress[position], 3), view.opened
    )
    nodes = _nodes(flow, steps, {box.positions[0] for box in picture.boxes if box.kind == "job"})
    width, height = picture.width + 2 * _MARGIN, picture.height + 2 * _MARGIN
    lines = [(_line(picture.boxes[a], picture.boxes[b]),) for a, b, word in picture.lines]
    boxes = [(_box(box, nodes, link, view, found),) for box in picture.boxes]
    title = gettext("Graph of the workflow %(name)s") % {"name": printable(flow.name or flow.public_id)}
    return format_html(
        '<svg class="ojs-flow" width="{0}" height="{1}" viewBox="{2} {2} {0} {1}" role="group" '
        'aria-labelledby="flow-t"><title id="flow-t">{3}</title>{4}{5}</svg>',
        round(width), round(height), -_MARGIN, title, format_html_join("", "{}", lines),
        format_html_join("", "{}", boxes),
    )  # fmt: skip


def steps_of(flow: Workflow) -> list[WorkflowStep]:
    """The steps of a workflow with what the picture says of them."""
    return list(WorkflowStep.objects.filter(workflow_id=flow.pk).defer("document", "error").order_by("position"))


def _nodes(flow: Workflow, steps: Sequence[WorkflowStep], shown: Collection[int]) -> dict[int, _Box]:
    """By position. Of the jobs at `shown` it is said how they went."""
    wanted = [
        step.job_id
        for step in steps
        if step.job_id and (step.position in shown or flow.progress[step.position] == rules.RUNNING)
    ]
    failed = Q(state__in=(State.DISCARDED, State.RETRYABLE))
    jobs = Job.objects.filter(pk__in=wanted).order_by().annotate(history=unless_large("errors", failed))
    found = {job.pk: job for job in jobs.only("type", "state", "attempt", "started_at", "finished_at")}
    return {step.position: _node(flow, step, found.get(step.job_id) if step.job_id else None) for step in steps}


def _node(flow: Workflow, step: WorkflowStep, job: Job | None) -> _Box:
    letter = flow.progress[step.position]
    colour, word = _LOOKS[letter]
    took, attempt, error = "", "", None
    if job is not None:
        if letter == rules.RUNNING:
            colour = word = job.state
        if (ran := ran_ms(job, clock.now())) is not None:
            took = duration(ran)
        if job.attempt > 1:
            attempt = gettext("attempt %(number)d") % {"number": job.attempt}
        error = last_failure(job)
    job_id = None if letter in rules.UNMADE else step.job_id
    return _Box(step.step_id, step.type, colour, gettext(word), took, attempt, error, job_id)


def _line(start: Box, end: Box) -> SafeString:
    """A curve from the right side of one box to the left side of the next, with an arrow head."""
    x1, y1 = start.x + start.width, start.y + start.height / 2
    x2, y2 = end.x, end.y + end.height / 2
    x0 = max(x1, x2 - GAP_X)  # a line over several columns runs straight until the last gap
    bend = (x2 - x0) / 2
    path = f"M{x1:.1f} {y1:.1f}H{x0:.1f}C{x0 + bend:.1f} {y1:.1f} {x2 - bend:.1f} {y2:.1f} {x2 - 5:.1f} {y2:.1f}"
    head = f"M{x2:.1f} {y2:.1f}l-7 -3.5v7z"
    return format_html('<path class="ojs-edge" d="{}"/><path class="ojs-arrow" d="{}"/>', path, head)


def _box(
    box: Box, nodes: dict[int, _Box], link: Callable[[uuid.UUID], str], view: GraphView, found: Collection[int]
) -> SafeString:
    if box.collapsed:
        drawn = _draw_collapsed(box, nodes)
        if box.scope in view.opened:  # what did not fit into the opened box
            return drawn
        return format_html('<a href="{}#ojs-graph">{}</a>', view.toggled(box.scope), drawn)
    if box.kind == "opened":
        text = ngettext("%(number)s job: close", "%(number)s jobs: close", len(box.positions))
        text %= {"number": f"{len(box.positions):,}"}
        drawn = _group(box, "ojs-frame", "mixed", text, [(8, 17, "ojs-node-name", text)])
        return format_html('<a href="{}#ojs-graph">{}</a>', view.toggled(box.scope), drawn)
    node = nodes[box.positions[0]]
    words = [node.word, *filter(None, [node.took])]
    said = ", ".join(filter(None, [*words, node.attempt]))
    tip = "\n".join([printable(node.name), printable(node.type), said, " ".join(node.error or ())]).strip()
    if box.kind != "job":
        text = f"{box.kind} · {printable(node.name)} · {node.word}"
        return _group(box, "ojs-frame", node.colour, tip, [(8, 17, "ojs-node-name", _fit(text, box.width))])
    detail = node.error[0] if node.error else node.type if node.type != node.name else ""
    texts = [
        (8, 17, "ojs-node-name", _fit(node.name, box.width)),
        (8, 32, "ojs-node-state", _fit(" · ".join(words), box.width)),
        (8, 47, "ojs-node-detail", _fit(" · ".join(filter(None, [node.attempt, detail])), box.width)),
    ]
    kind = "ojs-node ojs-found" if box.positions[0] in found else "ojs-node"
    drawn = _group(box, kind, node.colour, tip, texts)
    address = link(node.job) if node.job else ""
    return format_html('<a href="{}">{}</a>', address, drawn) if address else drawn


def _draw_collapsed(box: Box, nodes: dict[int, _Box]) -> SafeString:
    """Many jobs as one box: how many, how many of them in each state, and a bar of these."""
    found = Counter((nodes[position].colour, nodes[position].word) for position in box.positions)
    number = len(box.positions)
    words = [f"{count:,} {word}" for (_colour, word), count in found.most_common()]
    label = ngettext("%(number)s more job", "%(number)s more jobs", number) % {"number": f"{number:,}"}
    colour = found.most_common(1)[0][0][0] if len(found) == 1 else "mixed"
    texts = [(8, 17, "ojs-node-name", label), (8, 32, "ojs-node-state", _fit(", ".join(words), box.width))]
    drawn = _group(box, "ojs-node ojs-collapsed", colour, "\n".join([label, *words]), texts)
    bars, x, room = [], box.x + 8, box.width - 16
    for (part, _word), count in found.most_common():
        bars.append((part, round(x, 1), round(box.y + 40), round(room * count / number, 1)))
        x += room * count / number
    bar = format_html_join("", '<rect class="ojs-share ojs-share-{}" x="{}" y="{}" width="{}" height="7"/>', bars)
    return format_html("<g>{}{}</g>", drawn, bar)


def _group(box: Box, kind: str, colour: str, tip: str, texts: list[tuple[int, int, str, str]]) -> SafeString:
    lines = [(name, round(box.x) + dx, round(box.y) + dy, text) for dx, dy, name, text in texts]
    return format_html(
        '<g class="{} ojs-box-{}"><title>{}</title><rect x="{}" y="{}" width="{}" height="{}" rx="5"/>{}</g>',
        kind, colour, tip, round(box.x), round(box.y), round(box.width), round(box.height),
        format_html_join("", '<text class="{}" x="{}" y="{}">{}</text>', lines),
    )  # fmt: skip


def _fit(text: str, width: float) -> str:
    """About as many characters as fit."""
    return ellipsized(text, int((width - 12) / 6.4))


# The layout: from a graph to rectangles and lines

WIDTH, HEIGHT, GAP_X, GAP_Y, PAD, HEAD = 150, 55, 44, 12, 12, 18
#: Boxes that stand above one another, and beside one another in a chain, before the rest is collapsed.
MAX_COLUMN, MAX_ROW = 12, 16
#: Boxes that an opened one shows, and how many of them stand above one another.
MAX_OPEN, OPEN_COLUMN = 600, 12
#: The longest text that is looked for.
MAX_FIND = 100

#: The positions that one box stands for: one, or those that were collapsed.
Cell = tuple[int, ...]


@dataclasses.dataclass(slots=True)
class Box:
    """A job, a frame around a nested workflow (`kind` says which), jobs that were collapsed, or a frame around
    some that were opened. `scope` of the latter two is the composite that they are members of."""

    x: float
    y: float
    width: float
    height: float
    kind: str
    positions: tuple[int, ...]
    scope: int = ROOT

    @property
    def collapsed(self) -> bool:
        return self.kind == "collapsed"


@dataclasses.dataclass(slots=True)
class Picture:
    """Boxes, frames before what is in them, and lines between their numbers with a word ('' mostly)."""

    width: float
    height: float
    boxes: list[Box]
    lines: list[tuple[int, int, str]]


@dataclasses.dataclass(slots=True)
class _Block:
    """A piece of the picture with its own origin. `own` is the box that lines lead to."""

    width: float
    height: float
    boxes: list[Box]
    lines: list[tuple[int, int, str]]
    own: int = 0

    def put(self, other: _Block, x: float, y: float) -> int:
        """Take over another block's boxes at (x, y); return the number that its `own` box has here."""
        start = len(self.boxes)
        self.boxes += [dataclasses.replace(box, x=box.x + x, y=box.y + y) for box in other.boxes]
        self.lines += [(start + a, start + b, word) for a, b, word in other.lines]
        return start + other.own


def layout(graph: Graph, rank: Callable[[int], int], opened: Collection[int] = ()) -> Picture:
    """The picture of a workflow. `rank` of a position: what has a smaller one is shown rather than collapsed. Of the
    composites in `opened` what is collapsed is shown too, in a frame."""
    root = _inside(graph, ROOT, rank, opened)
    return Picture(root.width, root.height, root.boxes, root.lines)


def _block(graph: Graph, position: int, rank: Callable[[int], int], opened: Collection[int]) -> _Block:
    kind = graph.nodes[position].kind
    if kind == "job":
        return _Block(WIDTH, HEIGHT, [Box(0, 0, WIDTH, HEIGHT, "job", (position,))], [])
    inner = _inside(graph, position, rank, opened)
    width, height = inner.width + 2 * PAD, inner.height + 2 * PAD + HEAD
    block = _Block(width, height, [Box(0, 0, width, height, kind, (position,))], [])
    block.put(inner, PAD, PAD + HEAD)
    return block


def _collapsed_block(positions: Sequence[int], scope: int) -> _Block:
    return _Block(WIDTH, HEIGHT, [Box(0, 0, WIDTH, HEIGHT, "collapsed", tuple(positions), scope)], [])


def _spread(graph: Graph, cell: Cell, scope: int, rank: Callable[[int], int], opened: Collection[int]) -> _Block:
    """A frame with a box for each member of a cell, column by column; what is beyond `MAX_OPEN` stays collapsed."""
    parts = [_block(graph, position, rank, opened) for position in cell[:MAX_OPEN]]
    if rest := cell[MAX_OPEN:]:
        parts.append(_collapsed_block(rest, scope))
    frame = Box(0, 0, 0, 0, "opened", cell, scope)
    block, x = _Block(0, 0, [frame], []), float(PAD)
    for start in range(0, len(parts), OPEN_COLUMN):
        column, y = parts[start : start + OPEN_COLUMN], float(PAD + HEAD)
        for part in column:
            block.put(part, x, y)
            y += part.height + GAP_Y
        x += max(part.width for part in column) + GAP_Y
        block.height = max(block.height, y - GAP_Y + PAD)
    frame.width, frame.height = block.width, block.height = x - GAP_Y + PAD, block.height
    return block


def _inside(graph: Graph, scope: int, rank: Callable[[int], int], opened: Collection[int]) -> _Block:
    """The parts of a composite in columns, its callbacks in the last one."""
    columns = _shorten(_columns(graph, scope), rank)
    callbacks = graph.callbacks(scope)
    if callbacks:
        columns.append([(position,) for position in callbacks])
    block, where = _Block(0, 0, [], []), dict[int, int]()
    placed = [[(cell, _cell(graph, cell, scope, rank, opened)) for cell in column] for column in columns]
    block.height = max((sum(b.height + GAP_Y for _, b in column) - GAP_Y for column in placed), default=0)
    for column in placed:
        x = block.width + GAP_X if block.width else 0.0
        y = (block.height - sum(part.height + GAP_Y for _, part in column) + GAP_Y) / 2
        for cell, part in column:
            number = block.put(part, x, y)
            where.update(dict.fromkeys(cell, number))
            y += part.height + GAP_Y
        block.width = x + max(part.width for _, part in column)
    block.lines += _lines(graph, scope, where)
    return block


def _cell(graph: Graph, cell: Cell, scope: int, rank: Callable[[int], int], opened: Collection[int]) -> _Block:
    if len(cell) == 1:
        return _block(graph, cell[0], rank, opened)
    return _spread(graph, cell, scope, rank, opened) if scope in opened else _collapsed_block(cell, scope)


def _columns(graph: Graph, scope: int) -> list[list[int]]:
    """The members by the length of the longest way to them, in the client's order."""
    depth: dict[int, int] = {}
    for child in sorted(member for member in graph.children[scope] if not graph.nodes[member].trigger):
        depth[child] = 1 + max((depth[need] for need in graph.nodes[child].needs if need in depth), default=-1)
    columns: list[list[int]] = [[] for _ in range(max(depth.values(), default=-1) + 1)]
    for child in sorted(depth, key=lambda child: (graph.nodes[child].place, child)):
        columns[depth[child]].append(child)
    return columns


def _shorten(columns: list[list[int]], rank: Callable[[int], int]) -> list[list[Cell]]:
    """At most about `MAX_ROW` columns of cells: the ends, those that matter, and what lies between collapsed."""
    kept = set(range(len(columns)))
    if len(columns) > MAX_ROW:
        ends = {0, 1, len(columns) - 2, len(columns) - 1}
        weight = {i: (i not in ends, min(map(rank, column)), i) for i, column in enumerate(columns)}
        kept = set(sorted(kept, key=lambda i: weight[i])[: MAX_ROW // 2])
    short: list[list[Cell]] = []
    run: list[int] = []
    for i, column in enumerate(columns):
        if i in kept:
            short += [[tuple(run)]] if run else []
            short.append(_thin(column, rank))
            run = []
        else:
            run += column
    return short


def _thin(column: Sequence[int], rank: Callable[[int], int]) -> list[Cell]:
    """The cells of a column: each member its own, or the ones that matter most and the others as one."""
    if len(column) <= MAX_COLUMN:
        return [(position,) for position in column]
    shown = set(sorted(column, key=lambda position: (rank(position), position))[: MAX_COLUMN - 1])
    rest = tuple(position for position in column if position not in shown)
    return [*((position,) for position in column if position in shown), rest]


def _lines(graph: Graph, scope: int, where: dict[int, int]) -> list[tuple[int, int, str]]:
    """From what is needed to what needs it, each pair of boxes once; callbacks hang on the last members."""
    found: Counter[tuple[int, int, str]] = Counter()
    members = graph.members(scope)
    for child in members:
        for need in graph.nodes[child].needs:
            if need in where and where[need] != where[child]:
                found[where[need], where[child], ""] += 1
    needed = {need for child in members for need in graph.nodes[child].needs}
    ends = sorted({where[child] for child in members if child not in needed})
    for callback in graph.callbacks(scope):
        for end in ends:
            found[end, where[callback], graph.nodes[callback].trigger] += 1
    return list(found)
