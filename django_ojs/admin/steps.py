"""Shows on a job's page what its durable handler has done: each step with its result and its time."""

from __future__ import annotations

import datetime as dt
from typing import Any

from django.utils.functional import Promise
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from django_ojs import clock, jsontext, states
from django_ojs.admin import display
from django_ojs.admin.base import ViewAdmin
from django_ojs.admin.history import Axis, span
from django_ojs.jobs import steps
from django_ojs.jobs.retry import FAILED_STATES
from django_ojs.models import Approval, Job, Workflow
from django_ojs.rules import redaction
from django_ojs.rules.approvals import EVENT as APPROVAL
from django_ojs.rules.steps import COMPENSATES, UNDOING, Step, StepKind

#: Steps that a page shows: the latest.
LENGTH = 200
#: Characters of a result that stand in its row.
SHORT = 28

_KINDS: dict[str, str | Promise] = {
    StepKind.CALL: _("step"), StepKind.TIME: _("time"), StepKind.RANDOM: _("random"), StepKind.SLEEP: _("sleep"),
    StepKind.ARGUMENTS: _("new arguments"), StepKind.EVENT: _("event"), StepKind.CHILDREN: _("other jobs"),
    StepKind.UNDO: _("on failure"),
}  # fmt: skip


def read(job: Job) -> list[Step]:
    """The latest steps, and one more where there are more than the page shows."""
    return steps.of(job.pk, latest=LENGTH + 1, using=job._state.db)


def section(admin: ViewAdmin, job: Job, found: list[Step], axis: Axis | None = None) -> dict[str, Any]:
    """What a page shows of these steps, without what the site hides; `cut`: there are more.

    `axis` is that of the attempts on the page of the job, where the job may begin again at one of them; None: there are
    no attempts beside them.
    """
    now = job.finished_at or clock.now(job._state.db)
    on_its_page = axis is not None
    may = on_its_page and job.state in FAILED_STATES
    axis = axis or Axis.of([], found, now)
    rows = [_row(admin, job, step, axis, now) for step in found[-LENGTH:]]
    gives = on_its_page and job.state not in states.TERMINAL and any(row["waits"] for row in rows)
    return {
        "rows": rows, "cut": len(found) > LENGTH, "length": LENGTH, "acts": may or gives,
        "restart": admin.own_url("restart", job.pk) if may else "",
        "give": admin.own_url("give", job.pk) if gives else "",
    }  # fmt: skip


def _row(admin: ViewAdmin, job: Job, step: Step, axis: Axis, now: dt.datetime) -> dict[str, Any]:
    ended = step.until(now)
    took = display.duration(max(0, round((ended - step.began_at) / dt.timedelta(milliseconds=1))))
    word, colour, fill = _state(step, now)
    kind = gettext("approval") if step.event_name == APPROVAL else str(_KINDS.get(step.kind, step.kind))
    own = COMPENSATES not in (job.extra or {}) or step.name.startswith(UNDOING)  # not of the job that it undoes
    errors = [step.error] if step.error else []
    failures = display.errors(redaction.part("errors", errors, job.type, job.meta))
    return {
        "name": step.name, "shown": display.ellipsized(step.name), "kind": kind,
        "state": display.colour_label(word, colour), "began": display.when(step.began_at), "took": took,
        "tries": step.tries, "attempt": step.attempt, "about": _about(admin, step, now),
        "result": _result(job, step), "errors": failures, "error": display.error_line(failures[0]) if failures else "",
        "bar": span(step.began_at, ended, axis, fill, f"{kind} {step.name}: {took}"),
        "again": step.kind != StepKind.ARGUMENTS and own, "waits": waits_for_event(step),
    }  # fmt: skip


def waits_for_event(step: Step) -> bool:
    """Whether an operator may give it what it waits for: not jobs, and not a decision."""
    return step.kind == StepKind.EVENT and step.event_name != APPROVAL and not step.has_ended


def _state(step: Step, now: dt.datetime) -> tuple[str, str, str]:
    """How it is: the word, the colour of its label, and the colour of its bar."""
    slept = step.kind == StepKind.SLEEP and step.due_at is not None and step.due_at <= now
    if slept or (step.has_ended and step.error is None):
        return gettext("done"), "completed", "good"
    if step.has_ended:
        return gettext("timed out"), "discarded", "bad"
    if step.kind == StepKind.SLEEP:
        return gettext("sleeps"), "scheduled", "wait"
    if step.kind == StepKind.UNDO:
        return gettext("to undo"), "scheduled", "wait"
    if step.event_name is not None:
        return gettext("waits"), "scheduled", "wait"
    return gettext("failed"), "retryable", "bad"


def _about(admin: ViewAdmin, step: Step, now: dt.datetime) -> SafeString | str:
    """What it waits or waited for, and until when."""
    if step.kind == StepKind.UNDO:
        return ""
    if step.event_name is None:
        return display.when(step.due_at) if step.due_at and step.due_at > now and not step.has_ended else ""
    if step.kind == StepKind.CHILDREN:
        return _link(admin.url_of(Workflow, step.event_key), gettext("workflow"))
    if step.event_name == APPROVAL:
        return _link(admin.url_of(Approval, step.event_key), gettext("approval"))
    return display.ellipsized(" ".join(filter(None, step.event)), 60)


def _link(address: str, text: str) -> SafeString | str:
    return format_html('<a href="{}">{}</a>', address, text) if address else text


def _result(job: Job, step: Step) -> dict[str, Any] | None:
    """The result in short, and whole where that is not all of it. It is hidden where the site hides checkpoints."""
    if step.result is None or step.kind == StepKind.SLEEP:
        return None
    value = redaction.part("checkpoint", jsontext.loads(step.result), job.type, job.meta)
    short = display.ellipsized(jsontext.dumps(value), SHORT)
    return {"short": short, "whole": display.json(value) if short.endswith("…") else ""}
