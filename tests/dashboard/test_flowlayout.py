"""The picture of a workflow: nothing overlaps, nothing is missing, time runs to the right, thousands fit."""

from __future__ import annotations

import datetime as dt
from itertools import combinations
from typing import Any

import pytest

from django_ojs.admin.flowgraph import MAX_COLUMN, MAX_OPEN, MAX_ROW, Box, Picture, layout
from django_ojs.rules import workflows
from django_ojs.rules.workflowgraph import ROOT

NOW = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
JOB = {"type": "mail.send", "args": []}


def picture(document: dict[str, Any], first: tuple[int, ...] = ()) -> Picture:
    graph = workflows.parse(document, now=NOW).graph
    return layout(graph, lambda position: 0 if position in first else 1)


def chain(number: int) -> dict[str, Any]:
    return {"type": "chain", "steps": [JOB] * number}


def group(number: int) -> dict[str, Any]:
    return {"type": "group", "jobs": [JOB] * number}


def dag(*needs: tuple[int, ...]) -> dict[str, Any]:
    steps = [{**JOB, "id": f"s{i}", "depends_on": [f"s{need}" for need in of]} for i, of in enumerate(needs)]
    return {"name": "graph", "steps": steps}


NESTED = {"type": "chain", "steps": [JOB, group(3), {"type": "chain", "steps": [JOB, group(2)]}, JOB]}
BATCH = {"type": "batch", "jobs": [JOB] * 3, "callbacks": {"on_success": JOB, "on_complete": JOB}}
SHAPES = {
    "one": chain(1), "chain": chain(5), "group": group(6), "nested": NESTED, "batch": BATCH,
    "diamond": dag((), (0,), (0,), (1, 2)), "wide": dag((), *[(0,)] * 40, tuple(range(1, 41))),
    "long": chain(400), "thousand": group(1000),
}  # fmt: skip


def overlap(a: Box, b: Box) -> bool:
    return a.x < b.x + b.width and b.x < a.x + a.width and a.y < b.y + b.height and b.y < a.y + a.height


def inside(a: Box, b: Box) -> bool:
    return b.x <= a.x and a.x + a.width <= b.x + b.width and b.y <= a.y and a.y + a.height <= b.y + b.height


@pytest.mark.parametrize("name", SHAPES)
def test_boxes_are_apart_or_one_within_the_other_and_all_inside_the_picture(name: str) -> None:
    drawn = picture(SHAPES[name])
    for a, b in combinations(drawn.boxes, 2):
        if overlap(a, b):
            assert inside(b, a)
            assert a.kind not in ("job", "collapsed")
    for box in drawn.boxes:
        assert inside(box, Box(0, 0, drawn.width, drawn.height, "", ()))


@pytest.mark.parametrize("name", SHAPES)
def test_every_node_is_in_exactly_one_box(name: str) -> None:
    graph = workflows.parse(SHAPES[name], now=NOW).graph
    shown = [position for box in picture(SHAPES[name]).boxes for position in box.positions]
    assert sorted(shown) == list(range(1, len(graph.nodes)))


@pytest.mark.parametrize("name", SHAPES)
def test_what_is_needed_stands_to_the_left(name: str) -> None:
    drawn = picture(SHAPES[name])
    for start, end, _word in drawn.lines:
        a, b = drawn.boxes[start], drawn.boxes[end]
        assert a.x + a.width <= b.x


def test_a_diamond_has_four_lines_and_a_chain_one_less_than_steps() -> None:
    assert len(picture(SHAPES["diamond"]).lines) == 4
    assert len(picture(chain(5)).lines) == 4
    assert picture(group(5)).lines == []


def test_callbacks_hang_on_the_members_by_their_names() -> None:
    words = [word for _start, _end, word in picture(BATCH).lines]
    assert sorted(set(words)) == ["on_complete", "on_success"]
    assert len(words) == 6


def test_a_large_group_is_collapsed_but_not_what_matters() -> None:
    drawn = picture(group(1000), first=(700, 701))
    assert len(drawn.boxes) == MAX_COLUMN
    alone = {box.positions[0] for box in drawn.boxes if not box.collapsed}
    assert {700, 701} <= alone
    assert [len(box.positions) for box in drawn.boxes if box.collapsed] == [1000 - len(alone)]


def test_a_long_chain_keeps_its_ends_and_where_it_is() -> None:
    drawn = picture(chain(400), first=(200,))
    alone = {box.positions[0] for box in drawn.boxes if not box.collapsed}
    assert {1, 2, 200, 399, 400} <= alone
    assert len(drawn.boxes) <= MAX_ROW + 1
    assert len(drawn.lines) == len(drawn.boxes) - 1


def test_a_thousand_steps_of_a_graph_are_a_picture_of_bounded_size() -> None:
    layers = [tuple()] * 100 + [tuple(range(100))] * 100 + [(100 + i % 100,) for i in range(800)]  # noqa: C408
    drawn = picture(dag(*layers))
    assert len(drawn.boxes) <= 3 * MAX_COLUMN
    assert drawn.height < 1000


def opened(document: dict[str, Any], *scopes: int) -> Picture:
    graph = workflows.parse(document, now=NOW).graph
    return layout(graph, lambda position: 1, scopes)


def test_an_opened_box_shows_each_of_its_jobs_in_a_frame() -> None:
    drawn = opened(group(100), ROOT)
    (frame,) = [box for box in drawn.boxes if box.kind == "opened"]
    jobs = [box for box in drawn.boxes if box.kind == "job"]
    assert sorted(box.positions[0] for box in jobs) == list(range(1, 101))
    held = [box for box in jobs if box.positions[0] in frame.positions]
    assert len(held) == len(frame.positions) == 100 - MAX_COLUMN + 1
    assert all(inside(box, frame) for box in held)
    assert not any(overlap(a, b) for a, b in combinations(jobs, 2))
    assert frame.x + frame.width <= drawn.width
    assert frame.y + frame.height <= drawn.height


def test_what_does_not_fit_into_an_opened_box_stays_collapsed() -> None:
    drawn = opened(group(2000), ROOT)
    (rest,) = [box for box in drawn.boxes if box.collapsed]
    assert len(rest.positions) == 2000 - (MAX_COLUMN - 1) - MAX_OPEN
    assert rest.scope == ROOT


def test_only_the_composite_that_was_asked_for_is_opened() -> None:
    inner = {"type": "group", "jobs": [JOB] * 40}
    document = {"type": "chain", "steps": [inner, inner]}
    graph = workflows.parse(document, now=NOW).graph
    first = min(position for position, node in enumerate(graph.nodes) if node.kind == "group" and position != ROOT)
    drawn = opened(document, first)
    assert [box.scope for box in drawn.boxes if box.kind == "opened"] == [first]
    assert len([box for box in drawn.boxes if box.collapsed]) == 1
