"""Where the boxes of a workflow's picture go: pure, from its graph to rectangles and lines.

Time runs from left to right. A chain is a row, a group a column, a free graph has a column for each step of
its longest way; a nested workflow is a frame around its own picture. What would be too much to look at is
gathered into one box: the members of a large group, the middle of a long chain. Failed and running ones are
never gathered before the others.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Sequence

from django_ojs.rules.workflowgraph import ROOT, Graph

WIDTH, HEIGHT, GAP_X, GAP_Y, PAD, HEAD = 150, 40, 44, 12, 12, 18
#: Boxes that stand above one another, and beside one another in a chain, before the rest is gathered.
MAX_COLUMN, MAX_ROW = 12, 16

#: The positions that one box stands for: one, or those that were gathered.
Cell = tuple[int, ...]


@dataclasses.dataclass(slots=True)
class Box:
    """A job, a frame around a nested workflow (`kind` says which), or jobs that were gathered."""

    x: float
    y: float
    width: float
    height: float
    kind: str
    positions: tuple[int, ...]

    @property
    def gathered(self) -> bool:
        return self.kind == "gathered"


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


def layout(graph: Graph, rank: Callable[[int], int]) -> Picture:
    """The picture of a workflow. `rank` of a position: what has a smaller one is shown rather than gathered."""
    root = _inside(graph, ROOT, rank)
    return Picture(root.width, root.height, root.boxes, root.lines)


def _block(graph: Graph, position: int, rank: Callable[[int], int]) -> _Block:
    kind = graph.nodes[position].kind
    if kind == "job":
        return _Block(WIDTH, HEIGHT, [Box(0, 0, WIDTH, HEIGHT, "job", (position,))], [])
    inner = _inside(graph, position, rank)
    width, height = inner.width + 2 * PAD, inner.height + 2 * PAD + HEAD
    block = _Block(width, height, [Box(0, 0, width, height, kind, (position,))], [])
    block.put(inner, PAD, PAD + HEAD)
    return block


def _gathered(positions: Sequence[int]) -> _Block:
    return _Block(WIDTH, HEIGHT, [Box(0, 0, WIDTH, HEIGHT, "gathered", tuple(positions))], [])


def _inside(graph: Graph, scope: int, rank: Callable[[int], int]) -> _Block:
    """The parts of a composite in columns, its callbacks in the last one."""
    columns = _shorten(_columns(graph, scope), rank)
    callbacks = graph.callbacks(scope)
    if callbacks:
        columns.append([(position,) for position in callbacks])
    block, where = _Block(0, 0, [], []), dict[int, int]()
    placed = [[(cell, _cell(graph, cell, rank)) for cell in column] for column in columns]
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


def _cell(graph: Graph, cell: Cell, rank: Callable[[int], int]) -> _Block:
    return _block(graph, cell[0], rank) if len(cell) == 1 else _gathered(cell)


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
    """At most about `MAX_ROW` columns of cells: the ends, those that matter, and what lies between gathered."""
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
