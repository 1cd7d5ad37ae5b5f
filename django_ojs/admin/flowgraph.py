"""A workflow as a picture with the states of its jobs: SVG, each job a link to its page."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_noop as _

from django_ojs import clock
from django_ojs.admin.display import duration, printable, shorten
from django_ojs.admin.flowlayout import GAP_X, Box, layout
from django_ojs.models import Job, Workflow, WorkflowStep
from django_ojs.rules import workflowgraph as rules
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


class _Node(NamedTuple):
    name: str
    type: str
    colour: str
    word: str
    note: str
    job: uuid.UUID | None


def draw(flow: Workflow, link: Callable[[uuid.UUID], str]) -> SafeString:
    """The picture of a workflow as it is now. `link` gives the address of a job's page.

    Reads the steps and the states of the jobs that run: two statements, whatever the number of members.
    """
    nodes = _nodes(flow)
    picture = layout(flow.shape, lambda position: _FIRST.get(flow.progress[position], 3))
    width, height = picture.width + 2 * _MARGIN, picture.height + 2 * _MARGIN
    lines = [(_line(picture.boxes[a], picture.boxes[b]),) for a, b, word in picture.lines]
    boxes = [(_box(box, nodes, link),) for box in picture.boxes]
    title = gettext("Graph of the workflow %(name)s") % {"name": printable(flow.name or flow.public_id)}
    return format_html(
        '<svg class="ojs-flow" width="{0}" height="{1}" viewBox="{2} {2} {0} {1}" role="group" '
        'aria-labelledby="flow-t"><title id="flow-t">{3}</title>{4}{5}</svg>',
        round(width), round(height), -_MARGIN, title, format_html_join("", "{}", lines),
        format_html_join("", "{}", boxes),
    )  # fmt: skip


def _nodes(flow: Workflow) -> dict[int, _Node]:
    steps = list(WorkflowStep.objects.filter(workflow_id=flow.pk).defer("document", "error"))
    running = [step.job_id for step in steps if step.job_id and flow.progress[step.position] == rules.RUNNING]
    columns = ("pk", "state", "attempt", "started_at")
    jobs = {row[0]: row[1:] for row in Job.objects.filter(pk__in=running).order_by().values_list(*columns)}
    return {step.position: _node(flow, step, jobs.get(step.job_id)) for step in steps}


def _node(flow: Workflow, step: WorkflowStep, job: tuple[str, int, object] | None) -> _Node:
    letter = flow.progress[step.position]
    colour, word = _LOOKS[letter]
    note = ""
    if job is not None:
        state, attempt, started_at = job
        colour = word = state
        if state == State.ACTIVE and started_at is not None:
            passed = clock.now() - started_at  # type: ignore[operator]
            note = duration(max(0, round(passed.total_seconds()) * 1000))
        if attempt > 1:
            note = gettext("attempt %(number)d") % {"number": attempt}
    exists = letter not in (rules.WAITING, rules.NEVER, rules.SKIPPED, rules.REFUSED)
    return _Node(step.step_id, step.type, colour, gettext(word), note, step.job_id if exists else None)


def _line(start: Box, end: Box) -> SafeString:
    """A curve from the right side of one box to the left side of the next, with an arrow head."""
    x1, y1 = start.x + start.width, start.y + start.height / 2
    x2, y2 = end.x, end.y + end.height / 2
    x0 = max(x1, x2 - GAP_X)  # a line over several columns runs straight until the last gap
    bend = (x2 - x0) / 2
    path = f"M{x1:.1f} {y1:.1f}H{x0:.1f}C{x0 + bend:.1f} {y1:.1f} {x2 - bend:.1f} {y2:.1f} {x2 - 5:.1f} {y2:.1f}"
    head = f"M{x2:.1f} {y2:.1f}l-7 -3.5v7z"
    return format_html('<path class="ojs-edge" d="{}"/><path class="ojs-arrow" d="{}"/>', path, head)


def _box(box: Box, nodes: dict[int, _Node], link: Callable[[uuid.UUID], str]) -> SafeString:
    if box.gathered:
        return _gathered(box, nodes)
    node = nodes[box.positions[0]]
    told = [node.word, *([node.note] if node.note else [])]
    tip = f"{printable(node.name)}\n{printable(node.type)}\n{', '.join(told)}"
    if box.kind != "job":
        text = f"{box.kind} · {printable(node.name)} · {node.word}"
        return _group(box, "ojs-frame", node.colour, tip, [(8, 17, "ojs-node-name", _fit(text, box.width))])
    texts = [
        (8, 17, "ojs-node-name", _fit(node.name if node.name != node.type else node.type, box.width)),
        (8, 32, "ojs-node-state", _fit(" · ".join(told), box.width)),
    ]
    drawn = _group(box, "ojs-node", node.colour, tip, texts)
    address = link(node.job) if node.job else ""
    return format_html('<a href="{}">{}</a>', address, drawn) if address else drawn


def _gathered(box: Box, nodes: dict[int, _Node]) -> SafeString:
    """Many jobs as one box: how many, and how many of them in each state."""
    found = Counter((nodes[position].colour, nodes[position].word) for position in box.positions)
    number = len(box.positions)
    told = [f"{count:,} {word}" for (_colour, word), count in found.most_common()]
    label = ngettext("%(number)s more job", "%(number)s more jobs", number) % {"number": f"{number:,}"}
    colour = found.most_common(1)[0][0][0] if len(found) == 1 else "mixed"
    texts = [(8, 17, "ojs-node-name", label), (8, 32, "ojs-node-state", _fit(", ".join(told), box.width))]
    return _group(box, "ojs-node ojs-gathered", colour, "\n".join([label, *told]), texts)


def _group(box: Box, kind: str, colour: str, tip: str, texts: list[tuple[int, int, str, str]]) -> SafeString:
    lines = [(name, round(box.x) + dx, round(box.y) + dy, text) for dx, dy, name, text in texts]
    return format_html(
        '<g class="{} ojs-box-{}"><title>{}</title><rect x="{}" y="{}" width="{}" height="{}" rx="5"/>{}</g>',
        kind, colour, tip, round(box.x), round(box.y), round(box.width), round(box.height),
        format_html_join("", '<text class="{}" x="{}" y="{}">{}</text>', lines),
    )  # fmt: skip


def _fit(text: str, width: float) -> str:
    """About as many characters as fit."""
    return shorten(text, int((width - 12) / 6.4))
