"""Holds the parts of the statements about workflows that every database understands, and reads their rows."""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Iterable, Sequence
from typing import Any

from django_ojs.models import (
    Workflow,
    WorkflowStart,
    WorkflowStep,
)
from django_ojs.store.conditions import _JOB
from django_ojs.store.values import EndedMembers, Membership, Running

#: What `lock_members` reads of a job that has ended, and its place.
MEMBER = ("workflow_id", "position", "step_id", "job_id", "type", "job__state", "job__started_at", "job__finished_at",
          "job__worker_id", "job__trace_id", "job__attempt")  # fmt: skip
#: What is read of a step whose job is to be enqueued.
NEXT = ("workflow_id", "position", "step_id", "job_id", "type", "document")
_FLOW, _STEP, _START = (model._meta.db_table for model in (Workflow, WorkflowStep, WorkflowStart))
#: What is read beside the step `s` of a job that ended in the workflow `w`: its start, and in a chain the step behind.
BESIDE = (
    f"LEFT JOIN {_START} b ON b.workflow_id = s.workflow_id "
    f"LEFT JOIN {_STEP} n ON w.type = 'chain' AND n.workflow_id = s.workflow_id AND n.position = s.position + 1"
)


def shown_beside(place: str, text: str) -> str:
    """What is shown of `BESIDE`; only the first of the rows of a workflow, which come in the order `place`, shows its
    progress."""
    return (
        f"w.created_at{text}, b.started_at{text}, "
        f"CASE WHEN lag(s.workflow_id) OVER ({place}) = s.workflow_id THEN NULL ELSE w.progress END, "
        f"n.step_id, n.job_id, n.type, n.document"
    )


def members_statement(own: str, given: str, lock: str, *, text: str, errors: bool) -> str:
    """`lock_members` as one statement. `own` are the steps of the jobs that are meant, as the source `s`, `given` says
    which workflows, `lock` how rows are locked, `text` how times become text, which is the fastest to read.

    The steps are found by their jobs, and the workflows by their ids in words that fit no other index, since there may
    be many steps in a workflow, and many workflows that run.
    """
    times = ", ".join(f"j.{name}{text}" for name in ("started_at", "finished_at"))
    place = "ORDER BY s.workflow_id, j.finished_at, s.position"
    return (
        f"WITH flows AS (SELECT id, created_at, progress, type FROM {_FLOW} "
        f"WHERE id {given} AND state || '' = 'running' ORDER BY id {lock}), "
        f"ended AS MATERIALIZED (SELECT s.workflow_id, s.position, s.step_id, s.job_id, s.type "
        f"FROM {own}) "
        f"SELECT s.workflow_id, s.position, s.step_id, s.job_id, s.type, j.state, {times}, j.worker_id, j.trace_id, "
        f"j.attempt, {'j.errors' if errors else 'NULL'}, {shown_beside(place, text)} "
        f"FROM ended s JOIN flows w ON w.id = s.workflow_id JOIN {_JOB} j ON j.id = s.job_id {BESIDE} {place}"
    )


#: Between two results of `memberships_statement`: JSON text never contains it.
_BETWEEN = "\x1f"


def results_before(joined: str) -> str:
    """The results of the steps before the step `s` of the workflow `w`, in their order as one text. `joined` makes that
    of the query `{before}`.

    In a chain that has only steps, all before a step lie at lower positions, and that is all it hears. Elsewhere there
    may be many that do not concern it, and this is NULL.
    """
    before = (
        f"SELECT CASE WHEN j.state = 'completed' THEN coalesce(j.result, 'null') ELSE 'null' END AS result "
        f"FROM {_STEP} p LEFT JOIN {_JOB} j ON j.id = p.job_id WHERE p.workflow_id = s.workflow_id "
        f"AND p.position < s.position ORDER BY p.position"
    )
    only_steps = "w.type = 'chain' AND length(w.progress) = w.job_count + 1"
    return f"CASE WHEN {only_steps} THEN coalesce({joined.format(before=before)}, '') END"


def memberships_statement(given: str, joined: str, *, text: str) -> str:
    """`Store.memberships` as one statement. `given` are the steps of the jobs as the source `s`, `joined` is for
    `results_before`, and `text` how a time becomes text."""
    return (
        f"SELECT s.job_id, s.workflow_id, s.position, w.created_at{text}, {results_before(joined)} "
        f"FROM {given} JOIN {_FLOW} w ON w.id = s.workflow_id"
    )


def membership(
    job_id: uuid.UUID, flow_id: uuid.UUID, position: int, created_at: dt.datetime, results: str | None
) -> Membership:
    """A row of `memberships_statement`."""
    before = None if results is None else results.split(_BETWEEN) if results else ()
    return Membership(job_id, flow_id, position, created_at, before)


def results_statement(source: str) -> str:
    """`Store.results` as one statement. `source` gives the places as `v`, with the columns `flow` and `position`."""
    return (
        f"SELECT s.workflow_id, s.position, s.step_id, CASE WHEN j.state = 'completed' THEN j.result END FROM {source} "
        f"JOIN {WorkflowStep._meta.db_table} s ON s.workflow_id = v.flow AND s.position = v.position "
        f"LEFT JOIN {_JOB} j ON j.id = s.job_id"
    )


def members(found: Iterable[Sequence[Any]]) -> EndedMembers:
    """The rows of `members_statement`."""
    answer = EndedMembers([], [], [])
    width = len(MEMBER) + 1
    for row in found:
        answer.ended.append(row[:width])
        created_at, began, progress, *behind = row[width:]
        if progress is not None:
            answer.flows.append((Running(row[0], created_at, progress), began))
        if behind[-1]:
            answer.following.append((row[0], row[1] + 1, *behind))
    return answer


def workflow_values(flow: Workflow | Running, columns: Sequence[str]) -> list[Any]:
    """The id of a workflow and these columns, as they are stored."""
    return [flow.pk, *(_FLOW_FIELDS[name].get_prep_value(getattr(flow, name)) for name in columns)]


_FLOW_FIELDS: dict[str, Any] = {field.attname: field for field in Workflow._meta.concrete_fields}
