"""When the jobs of a workflow waited and ran: a row for each (a Gantt chart), what it waits for now, its critical path.

The critical path are the jobs that decided when the workflow ended, or how far it is: each is the one whose end let the
next begin.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import uuid
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext

from django_ojs import clock
from django_ojs.admin.display import ago, colour_label, duration, ellipsized, printable
from django_ojs.models import Workflow, WorkflowStep
from django_ojs.rules.workflowgraph import ROOT, Graph
from django_ojs.states import TERMINAL, State

#: Rows of the chart, and jobs that are named as what the workflow waits for.
ROWS, AWAITED = 40, 10
#: The width of the names and of the time, the height of a row, and labels of the time.
_NAMES, _TIME, _ROW, _HEAD, _LABELS = 220, 680, 22, 20, 5


@dataclasses.dataclass(slots=True)
class Span:
    """A job of the workflow that is or was: since when it waited, when it started last, and when it ended."""

    position: int
    name: str
    type: str
    job: uuid.UUID
    state: str
    queue: str
    attempt: int
    waited: dt.datetime
    started: dt.datetime | None
    ended: dt.datetime | None

    def until(self, now: dt.datetime) -> dt.datetime:
        return self.ended or now

    @property
    def is_over(self) -> bool:
        return self.state in TERMINAL


def spans(flow: Workflow) -> list[Span]:
    """Those whose jobs exist, in the order of their positions: one statement, whatever their number."""
    names = ("type", "state", "queue", "attempt", "created_at", "enqueued_at", "started_at", "finished_at")
    steps = WorkflowStep.objects.filter(workflow_id=flow.pk, job__state__isnull=False).order_by("position")
    rows: Iterable[Any] = steps.values_list("position", "step_id", "job_id", *(f"job__{name}" for name in names))
    return [
        Span(position, step_id, job_type, job_id, state, queue, attempt, enqueued or created, started, ended)
        for position, step_id, job_id, job_type, state, queue, attempt, created, enqueued, started, ended in rows
        if state != State.PENDING
    ]


def awaited(found: Sequence[Span], link: Callable[[uuid.UUID], str]) -> list[dict[str, Any]]:
    """What the workflow waits for: the jobs that are not over, the one that has been there longest first."""
    live = sorted((one for one in found if not one.is_over), key=lambda one: one.started or one.waited)
    return [
        {
            "name": ellipsized(one.name, 60), "type": one.type, "queue": one.queue, "attempt": one.attempt,
            "state": colour_label(one.state), "since": ago(one.started if one.state == State.ACTIVE else one.waited),
            "address": link(one.job),
        }
        for one in live
    ]  # fmt: skip


# The critical path


def critical(graph: Graph, found: Sequence[Span], now: dt.datetime) -> set[int]:
    """The positions on the critical path, from the job that ended last, or has not ended, back to the first."""
    ends = {one.position: one.until(now) for one in found}
    path: set[int] = set()
    position = max(ends, key=lambda one: (ends[one], one), default=None)
    while position is not None and position not in path:
        path.add(position)
        position = max(_before(graph, position, ends), key=lambda one: (ends[one], one), default=None)
    return path


def _before(graph: Graph, position: int, ends: dict[int, dt.datetime]) -> list[int]:
    """The jobs whose end this one waited for: what it needs, or what the composite around it needs."""
    while position != ROOT:
        node = graph.nodes[position]
        needs = graph.members(node.scope) if node.trigger else node.needs
        if needs:
            return [job for need in needs for job in _jobs(graph, need) if job in ends]
        position = node.scope
    return []


def _jobs(graph: Graph, position: int) -> list[int]:
    """The jobs of a node: itself, or all that are in it."""
    found, pending = [], [position]
    while pending:
        one = pending.pop()
        if graph.nodes[one].kind == "job":
            found.append(one)
        else:
            pending += graph.children[one]
    return found


# The chart


def draw(flow: Workflow, found: Sequence[Span], link: Callable[[uuid.UUID], str]) -> SafeString | str:
    """The chart; '' where no job has started. Of many jobs it has those on the critical path, those that failed or have
    not ended, and those that took longest."""
    now = clock.now()
    if not any(one.started for one in found):
        return ""
    path = critical(flow.shape, found, now)
    chosen = _chosen(found, path, now)
    begin = min(one.waited for one in chosen)
    length = max((one.until(now) for one in chosen), default=now) - begin or dt.timedelta(milliseconds=1)

    def x(instant: dt.datetime) -> float:
        return _NAMES + _TIME * max(0.0, min((instant - begin) / length, 1.0))

    height = _HEAD + _ROW * len(chosen)
    marks = [(begin + length * part / _LABELS) for part in range(_LABELS + 1)]
    grid = format_html_join(
        "", '<path class="ojs-gantt-grid" d="M{0} {1}V{2}"/><text class="ojs-gantt-at" x="{0}" y="12">{3}</text>',
        ((f"{x(at):.1f}", _HEAD, height, duration(round((at - begin) / dt.timedelta(milliseconds=1)))) for at in marks),
    )  # fmt: skip
    rows = [(_row(one, number, x, now, one.position in path, link),) for number, one in enumerate(chosen)]
    title = gettext("When the jobs of %(name)s waited and ran") % {"name": printable(flow.name or flow.public_id)}
    return format_html(
        '<svg class="ojs-flow ojs-gantt" width="{0}" height="{1}" viewBox="0 0 {0} {1}" role="group" '
        'aria-labelledby="gantt-t"><title id="gantt-t">{2}</title>{3}{4}</svg>',
        _NAMES + _TIME + 60, height + 4, title, grid, format_html_join("", "{}", rows),
    )  # fmt: skip


def _chosen(found: Sequence[Span], path: set[int], now: dt.datetime) -> list[Span]:
    def rank(one: Span) -> tuple[bool, bool, dt.timedelta]:
        grave = not one.is_over or one.state == State.DISCARDED
        return one.position not in path, not grave, one.waited - one.until(now)

    return sorted(sorted(found, key=rank)[:ROWS], key=lambda one: (one.waited, one.position))


def _row(
    one: Span, number: int, x: Callable[[dt.datetime], float], now: dt.datetime, critical: bool,
    link: Callable[[uuid.UUID], str],
) -> SafeString:  # fmt: skip
    """The name, a thin bar while it waited and a thick one while it ran its last attempt."""
    top = _HEAD + _ROW * number
    ran = one.started is not None and (one.is_over or one.state == State.ACTIVE)
    start = one.started if ran and one.started else one.until(now)
    waited, took = start - one.waited, one.until(now) - start
    facts = [
        printable(one.name), one.type, one.state,
        gettext("waited %(time)s") % {"time": _spelled(waited)},
        *([gettext("ran %(time)s") % {"time": _spelled(took)}] if ran else []),
        *([gettext("attempt %(number)d") % {"number": one.attempt}] if one.attempt > 1 else []),
        *([gettext("on the critical path")] if critical else []),
    ]  # fmt: skip
    wait = format_html(
        '<rect class="ojs-gantt-wait" x="{}" y="{}" width="{}" height="4"/>',
        _px(x(one.waited)), top + 9, _px(x(start) - x(one.waited)),
    )  # fmt: skip
    bar = format_html(
        '<rect class="ojs-gantt-run" x="{}" y="{}" width="{}" height="12" rx="2"/>',
        _px(x(start)), top + 5, _px(max(x(one.until(now)) - x(start), 2.0)),
    ) if ran else ""  # fmt: skip
    drawn = format_html(
        '<g class="ojs-box-{}{}"><title>{}</title><text class="{}" x="4" y="{}">{}</text>{}{}</g>',
        one.state, " ojs-critical" if critical else "", "\n".join(facts), "ojs-node-name" if critical else "",
        top + 15, ellipsized(one.name, 32), wait, bar,
    )  # fmt: skip
    address = link(one.job)
    return format_html('<a href="{}">{}</a>', address, drawn) if address else drawn


def _px(length: float) -> str:
    return f"{length:.1f}"


def _spelled(time: dt.timedelta) -> str:
    return duration(max(round(time / dt.timedelta(milliseconds=1)), 0))
