"""Makes the events of workflows: the spec's, and on request those of the extension (orchestration 1.10).

`OJS["EXTENSION_EVENTS"]` adds `workflow.created`, `.step_failed`, `.job_completed`, `.job_failed` and
`.callback_fired`. Steps are the members, as in `workflow.step_completed`; jobs are members and callbacks.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import uuid
from collections.abc import Mapping
from typing import Any, NamedTuple

from django_ojs.conf import ojs_settings
from django_ojs.events import catalogue
from django_ojs.events.catalogue import Record
from django_ojs.models import Workflow
from django_ojs.states import State
from django_ojs.store.values import Running
from django_ojs.workflows.graphs import WorkflowShape, error_of


class EndedMember(NamedTuple):
    """A job that has ended, and its place in the workflow."""

    workflow_id: uuid.UUID
    position: int
    step_id: str
    job_id: uuid.UUID
    type: str
    state: str
    started_at: dt.datetime | str | None
    finished_at: dt.datetime | str | None
    worker_id: str
    trace_id: str
    attempt: int
    errors: str | None = None  #: JSON text; only where the events of the extension are wanted

    def duration_ms(self, now: dt.datetime) -> int:
        began, ended = (
            dt.datetime.fromisoformat(at) if isinstance(at, str) else at or now
            for at in (self.started_at, self.finished_at)
        )
        return max(0, round((ended - began).total_seconds() * 1000))

    def error(self) -> dict[str, Any] | None:
        job = {"id": self.job_id, "state": self.state, "attempt": self.attempt, "errors": self.errors or ""}
        return error_of({"job": job})


@dataclasses.dataclass(slots=True)
class LockedWorkflow:
    """A workflow's row, locked, with its progress as a list to change."""

    row: Workflow | Running
    shape: WorkflowShape
    letters: list[str]
    began: dt.datetime | None = None  #: when its first member was claimed, where that has been read
    trace_id: str = ""
    _left: int | None = None

    def record(self, type: str, now: dt.datetime, *, worker_id: str = "", **data: Any) -> Record:
        return catalogue.of_workflow(
            type, self.row.pk, self.shape.public_id, self.shape.facts, now,
            trace_id=self.trace_id, worker_id=worker_id, **data,
        )  # fmt: skip

    def count_down(self) -> int:
        """Take one from the jobs that have not ended, callbacks left out; return how many are left."""
        if self._left is None:
            self._left = self.shape.graph.count_open(self.letters)
        self._left -= 1
        return self._left


@dataclasses.dataclass(slots=True)
class WholeFlow(LockedWorkflow):
    """A workflow whose row has all its columns: one that is new, say."""

    row: Workflow


def created(flow: WholeFlow, now: dt.datetime) -> list[Record]:
    if not ojs_settings.EXTENSION_EVENTS:
        return []
    callbacks = sum(bool(node.trigger) for node in flow.shape.graph.nodes)
    return [flow.record("workflow.created", now, state=flow.row.word, total_callbacks=callbacks)]


def ended(flow: LockedWorkflow, member: EndedMember, left: int, now: dt.datetime) -> list[Record]:
    """A member or callback has ended; `left` members have not."""
    node = flow.shape.graph.nodes[member.position]
    good = member.state == State.COMPLETED
    facts: dict[str, Any] = {"step_id": member.step_id, "step_type": member.type}
    facts["duration_ms"] = member.duration_ms(now)
    place = {"step": node.place, "job_id": str(member.job_id)}
    wanted = ojs_settings.EXTENSION_EVENTS
    error = {} if good or not wanted else {"error": _brief(member.error())}
    records: list[Record] = []
    if wanted:
        more = {"job_type": member.type, "state": member.state, "attempt": member.attempt}
        more |= {"callback": node.trigger} if node.trigger else {}
        word = "workflow.job_completed" if good else "workflow.job_failed"
        records.append(flow.record(word, now, worker_id=member.worker_id, **facts, **place, **more, **error))
    if not node.trigger and (good or wanted):
        word = "workflow.step_completed" if good else "workflow.step_failed"
        facts["steps_remaining"] = left
        records.append(flow.record(word, now, worker_id=member.worker_id, **facts, **place, **error))
    return records


def refused(flow: LockedWorkflow, step: Next, error: Mapping[str, Any], now: dt.datetime) -> list[Record]:
    """A step's job could not be enqueued: it has failed though there never was a job."""
    node = flow.shape.graph.nodes[step.position]
    if node.trigger or not ojs_settings.EXTENSION_EVENTS:
        return []
    left = flow.shape.graph.count_open(flow.letters)
    facts: dict[str, Any] = {"step_id": step.step_id, "step_type": step.type, "steps_remaining": left}
    return [flow.record("workflow.step_failed", now, **facts, step=node.place, error=_brief(error))]


class Next(NamedTuple):
    """A step whose turn has come, as far as it takes to enqueue its job."""

    workflow_id: uuid.UUID
    position: int
    step_id: str
    job_id: uuid.UUID | None
    type: str
    document: str


def enqueued(flow: LockedWorkflow, step: Next, now: dt.datetime) -> list[Record]:
    """A job of the workflow waits in its queue; only of callbacks there is more to say than `job.enqueued`."""
    trigger = flow.shape.graph.nodes[step.position].trigger
    if not trigger or not ojs_settings.EXTENSION_EVENTS:
        return []
    facts = {"callback": trigger, "step_id": step.step_id, "job_id": str(step.job_id), "job_type": step.type}
    return [flow.record("workflow.callback_fired", now, **facts)]


def finished(flow: LockedWorkflow, now: dt.datetime) -> Record:
    if flow.row.state == Workflow.State.COMPLETED:
        began = flow.began or flow.row.created_at
        return flow.record("workflow.completed", now, duration_ms=round((now - began).total_seconds() * 1000))
    error = flow.row.error
    reason = error["errors"][0] if error["errors"] else None
    job_id = reason.get("job_id") if reason else error["failed_job_ids"][0]
    return flow.record(
        "workflow.failed", now, failed_step_id=error["failed_step_id"], failed_step_type=error["failed_step_type"],
        error=_brief(reason), step=error["failed_step_index"], **({"job_id": job_id} if job_id else {}),
    )  # fmt: skip


def _brief(error: Mapping[str, Any] | None) -> dict[str, Any]:
    shown = error or {"code": "failed", "type": "failed", "message": "A step failed."}
    brief = {name: shown[name] for name in ("code", "type", "message")}
    return brief | {"retryable": bool(shown.get("retryable"))}
