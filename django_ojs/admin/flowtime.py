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

from django.db.models import Min
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext

from django_ojs import clock
from django_ojs.admin.display import ago, colour_label, duration, ellipsized, printable
from django_ojs.admin.history import AttemptLine, Axis, colour_of, line_of
from django_ojs.jobs import attempts as kept
from django_ojs.models import Event, Workflow, WorkflowStep
from django_ojs.rules.workflowgraph import ROOT, Graph
from django_ojs.states import TERMINAL, State

#: Rows of the chart, and jobs that are named as what the workflow waits for.
ROWS, AWAITED = 40, 10
#: Attempts that the chart has at most: the latest.
ATTEMPTS = 1000
#: The width of the names and of the time, the height of a row, and labels of the time.
_NAMES, _TIME, _ROW, _HEAD, _LABELS = 220, 680, 22, 20, 5
#: The width of the shortest run.
_THIN = 2.0


@dataclasses.dataclass(slots=True)
class Span:
    """A job of the workflow that is or was: since when it waited, when its last attempt started, and when it ended."""

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
    """Those whose jobs exist, in the order of their positions: one statement, whatever their number, and one more for
    jobs that were tried again.

    The row of such a job says when it waited last. When it could have started first is in the event log; where that
    has forgotten it, the job waited since it was there.
    """
    names = (
        "type", "state", "queue", "attempt", "round", "activated_at", "created_at", "enqueued_at", "started_at",
        "finished_at",
    )  # fmt: skip
    steps = WorkflowStep.objects.filter(workflow_id=flow.pk, job__state__isnull=False).order_by("position")
    rows: Iterable[Any] = steps.values_list("position", "step_id", "job_id", *(f"job__{name}" for name in names))
    found, again = [], []
    for position, step, job, job_type, state, queue, attempt, rounds, *times in rows:
        activated, created, enqueued, started, ended = times
        if state != State.PENDING:
            first = not attempt or (attempt == 1 and started and enqueued and enqueued <= started)
            waited = (first and not rounds and enqueued) or activated or created
            found.append(span := Span(position, step, job_type, job, state, queue, attempt, waited, started, ended))
            if rounds or not first:
                again.append(span)
    if again:
        waits = Event.objects.filter(job_id__in=[span.job for span in again], type="job.enqueued")
        began = dict(waits.order_by().values_list("job_id").annotate(Min("time")))
        for span in again:
            span.waited = began.get(span.job, span.waited)
    return found


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
    ended = kept.ended_of([one.job for one in chosen], limit=ATTEMPTS)
    begin = min(one.waited for one in chosen)
    length = max(one.until(now) for one in chosen) - begin or dt.timedelta(milliseconds=1)
    axis = Axis(begin, begin + length, _NAMES, _TIME, _THIN)
    height = _HEAD + _ROW * len(chosen)
    marks = [(begin + length * part / _LABELS) for part in range(_LABELS + 1)]
    grid = format_html_join(
        "", '<path class="ojs-gantt-grid" d="M{0} {1}V{2}"/><text class="ojs-gantt-at" x="{0}" y="12">{3}</text>',
        ((axis.place(at), _HEAD, height, duration(round((at - begin) / dt.timedelta(milliseconds=1)))) for at in marks),
    )  # fmt: skip
    rows = [
        (_row(one, _lines(one, ended.get(one.job, ())), number, axis, now, one.position in path, link),)
        for number, one in enumerate(chosen)
    ]
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


def _lines(one: Span, ended: Iterable[kept.Attempt]) -> list[AttemptLine]:
    """The attempts of a job, oldest first. The job's own row has the one that runs or completed it, and the last one
    where none are kept."""
    found = [line_of(attempt) for attempt in ended]
    known = {line.started for line in found}
    if one.started and one.started not in known and (one.is_over or one.state == State.ACTIVE):
        outcome = one.state if one.is_over else ""
        found.append(AttemptLine(one.attempt, one.started, "", ended=one.ended, outcome=outcome))
    return found


def _row(
    one: Span, lines: Sequence[AttemptLine], number: int, axis: Axis, now: dt.datetime, critical: bool,
    link: Callable[[uuid.UUID], str],
) -> SafeString:  # fmt: skip
    """The name, a thin bar from when the job was there until it ended, and a thick one upon it for each attempt."""
    top = _HEAD + _ROW * number
    ran = sum((line.run_ms(now) for line in lines), 0)
    waited = max(round((one.until(now) - one.waited) / dt.timedelta(milliseconds=1)) - ran, 0)
    facts = [
        printable(one.name), one.type, one.state,
        gettext("waited %(time)s") % {"time": duration(waited)},
        *([gettext("ran %(time)s") % {"time": duration(ran)}] if lines else []),
        *([gettext("attempt %(number)d") % {"number": one.attempt}] if one.attempt > 1 else []),
        *([gettext("on the critical path")] if critical else []),
    ]  # fmt: skip
    wait = format_html(
        '<rect class="ojs-gantt-wait" x="{}" y="{}" width="{}" height="4"/>',
        axis.place(one.waited), top + 9, round(axis.place(one.until(now)) - axis.place(one.waited), 1),
    )  # fmt: skip
    bars = format_html_join(
        "", '<rect class="ojs-gantt-run ojs-fill-{}" x="{}" y="{}" width="{}" height="12" rx="2">{}</rect>',
        (
            (colour_of(line), at, top + 5, width, _tip(one, line, now) if len(lines) > 1 else "")
            for line in lines
            for at, width in [axis.stretch(line.started, line.ended or now)]
        ),
    )  # fmt: skip
    drawn = format_html(
        '<g class="ojs-box-{}{}"><title>{}</title><text class="{}" x="4" y="{}">{}</text>{}{}</g>',
        one.state, " ojs-critical" if critical else "", "\n".join(facts), "ojs-node-name" if critical else "",
        top + 15, ellipsized(one.name, 32), wait, bars,
    )  # fmt: skip
    address = link(one.job)
    return format_html('<a href="{}">{}</a>', address, drawn) if address else drawn


def _tip(one: Span, line: AttemptLine, now: dt.datetime) -> SafeString:
    """What is said of one attempt among others of its job."""
    attempt = gettext("attempt %(number)d") % {"number": line.number}
    ran = gettext("ran %(time)s") % {"time": duration(line.run_ms(now))}
    return format_html(
        "<title>{}</title>", "\n".join([printable(one.name), attempt, line.outcome or State.ACTIVE, ran])
    )
