"""Record the jobs that a test enqueues: nothing is stored, nothing runs, and no database is needed.

An envelope is validated as at PUSH, the enqueue middleware runs, and unique policies hold among the jobs of the
test. What only the database knows is left out: the settings and bounds of queues, registered schemas, limits.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from django_ojs import clock, jsontext, spellings
from django_ojs.access import UNLIMITED, Limits
from django_ojs.client.handle import JobHandle
from django_ojs.client.sync import declared
from django_ojs.cron import runs, schedules
from django_ojs.errors import Conflict, Duplicate, NotFound, OJSError
from django_ojs.jobs import durableevents
from django_ojs.jobs.cancel import Cancelled
from django_ojs.jobs.candidates import (
    Candidate,
    Pushed,
    PushOutcome,
    Taken,
    aborted,
    duplicate_of,
    or_raise,
    read,
    refuse_repeated_ids,
)
from django_ojs.jobs.newrows import new_row
from django_ojs.jobs.push import Owner
from django_ojs.jobs.uniqueness import Ledger, rescheduled
from django_ojs.lifecycle import transitions
from django_ojs.lifecycle.transitions import refuse
from django_ojs.models import CronSchedule, JobCheckpoint
from django_ojs.models.job import JobRow
from django_ojs.queues import configuration
from django_ojs.rules import workflowgraph as rules
from django_ojs.rules.durableevents import Emitted
from django_ojs.rules.workflows import Plan
from django_ojs.states import LIVE, State, Verb
from django_ojs.testing.jobs import Jobs, JobsMixin, Lasting, Mode
from django_ojs.workflows.advance import refuse_ignored
from django_ojs.workflows.workflow import CancelledWorkflow as WorkflowCancelled
from django_ojs.workflows.workflow import WorkflowView, draft


class FakeJobs(Jobs):
    """The jobs that were enqueued and not stored. Their handles can be refreshed and cancelled."""

    def on_push(
        self, verb: Callable[..., Any], documents: Sequence[Any], *, partial: bool = True, closing: Any = None,
        limits: Limits = UNLIMITED, workflows: Mapping[uuid.UUID, Owner] | None = None, **others: Any,
    ) -> list[PushOutcome]:  # fmt: skip
        """PUSH, as far as it can be done without a database."""
        now = clock.now()
        several = len(documents) > 1
        candidates = [read(document, now, i if several else None, limits) for i, document in enumerate(documents)]
        for candidate in candidates:
            if candidate.spec and (owner := (workflows or {}).get(candidate.spec.id)):
                candidate.spec.workflow_id, candidate.limits = owner
        refuse_repeated_ids(candidates)
        replaced = self._decide(candidates, now)
        if not partial and any(isinstance(candidate.outcome, OJSError) for candidate in candidates):
            for candidate in candidates:
                candidate.outcome = candidate.outcome if isinstance(candidate.outcome, OJSError) else None
        else:
            for row in replaced:
                transitions.cancel(row, now, "", "")
        outcomes = [candidate.outcome or aborted(candidate) for candidate in candidates]
        if closing is not None:
            closing(outcomes)  # its events are for a log that a fake does not have
        self._record_created(outcomes)
        return outcomes

    def on_put(self, verb: Callable[..., Any], documents: Sequence[Any]) -> list[Pushed]:
        """Into the outbox: a fake records those jobs like all others."""
        outcomes = self.on_push(verb, documents, partial=False)
        return or_raise(outcomes)

    def on_put_workflow(self, verb: Callable[..., Any], document: object) -> WorkflowView:
        return self.on_create_workflow(verb, document)

    def on_create_workflow(
        self, verb: Callable[..., Any], document: object, *, limits: Limits = UNLIMITED, using: str | None = None
    ) -> WorkflowView:
        now = clock.now()
        plan = document if isinstance(document, Plan) else spellings.read_workflow(document, now=now)
        flow, steps = draft(plan, now)
        if any(known.id == flow.row.public_id for known in self.workflows):
            raise Duplicate(f"A workflow with the id '{flow.row.public_id}' exists already.", details={"field": "id"})
        ready = {position: steps[position - 1] for position in rules.evaluate(flow.shape.graph, flow.letters)}
        documents = [{**jsontext.loads(step.document), "id": str(step.job_id)} for step in ready.values()]
        owners = {step.job_id: Owner(flow.row.pk, limits) for step in ready.values() if step.job_id}
        lasting = Lasting()
        outcomes = self.on_push(verb, documents, partial=False, workflows=owners)
        pushed = or_raise(outcomes)
        refuse_ignored(pushed)
        flow.row.progress = "".join(flow.letters)
        jobs = {done.row["id"]: done.row for done in pushed if done.row}
        view = WorkflowView(flow.row, steps, jobs)
        self._views.append((view, lasting))
        return view

    def on_read_job(self, verb: Callable[..., JobRow], job_id: uuid.UUID, **others: Any) -> JobRow:
        return self._rows().get(job_id) or verb(job_id, **others)

    def on_read_checkpoint(
        self, verb: Callable[..., JobCheckpoint | None], job_id: uuid.UUID, **others: Any
    ) -> JobCheckpoint | None:
        return None if job_id in self._rows() else verb(job_id, **others)  # none of these has ever run

    def on_cancel_jobs(
        self, verb: Callable[..., Any], job_ids: Sequence[uuid.UUID], **others: Any
    ) -> list[Cancelled | OJSError]:
        rows, now = self._rows(), clock.now()
        if not all(job_id in rows for job_id in job_ids):
            passed: list[Cancelled | OJSError] = verb(job_ids, **others)
            return passed
        return [self._cancel(rows[job_id], now) for job_id in job_ids]

    def on_read_workflow(
        self, verb: Callable[..., WorkflowView], workflow_id: uuid.UUID, **others: Any
    ) -> WorkflowView:
        return self._flows().get(workflow_id) or verb(workflow_id, **others)

    def on_cancel_workflow(self, verb: Callable[..., Any], workflow_id: uuid.UUID, **others: Any) -> WorkflowCancelled:
        view, now = self._flows().get(workflow_id), clock.now()
        if view is None:
            passed: WorkflowCancelled = verb(workflow_id, **others)
            return passed
        if view.workflow.state != view.workflow.State.RUNNING:
            raise Conflict(f"Cannot cancel workflow '{view.workflow.public_id}': it is {view.workflow.state}.")
        view.workflow.state, view.workflow.finished_at = view.workflow.State.CANCELLED, now
        waiting = [row for row in view.jobs.values() if row["state"] in LIVE]
        for row in waiting:
            self._cancel(row, now)
        return WorkflowCancelled(view, len(waiting), 0)

    def on_emit(self, verb: Callable[..., Emitted], name: str, key: str, payload: str, **others: Any) -> Emitted:
        durableevents.check_event(name, key, payload)
        for first in self.emitted:
            if (first.name, first.key) == (name, key):
                return dataclasses.replace(first, is_new=False)
        now = clock.now()
        return self._record_emitted(Emitted(name, key, is_new=True, payload=jsontext.loads(payload), created_at=now))

    def on_trigger(self, verb: Callable[..., Any], name: str, **others: Any) -> tuple[CronSchedule, JobRow]:
        schedule = _schedule(name)
        (done,) = or_raise(self.on_push(verb, [runs.job_document(schedule, clock.now())], partial=False))
        if done.row is None or done.status != "created":
            raise Conflict(f"The schedule '{name}' made no job: {done.status}.", details={"cron_name": name})
        return schedule, done.row

    def _decide(self, candidates: Sequence[Candidate], now: dt.datetime) -> list[JobRow]:
        """Decide the outcome of each; return the jobs that new ones replace, not cancelled yet."""
        known = self._rows()
        ledger = Ledger(row for row in known.values() if row["unique_key"])
        replaced: list[JobRow] = []
        for candidate in candidates:
            if candidate.outcome is not None:
                continue
            spec, verdict = candidate.valid_spec, ledger.judge(candidate.valid_spec, now, candidate.limits)
            if spec.id in known:
                row = known[spec.id]
                candidate.refuse(duplicate_of(candidate, {spec.id: Taken(row["state"], row["queue"], row["type"])}))
            elif verdict.error is not None:
                candidate.refuse(verdict.error)
            elif verdict.existing is not None:
                candidate.outcome = Pushed(verdict.existing, "duplicate")
            else:
                ledger.mark_ended(verdict.replaced, State.CANCELLED)
                replaced += verdict.replaced
                spec = rescheduled(spec, verdict.replaced)
                row = new_row(spec, configuration.PLAIN, now, clock.stamps(1, clock.now()))
                ledger.add(row)
                candidate.outcome = Pushed(row, "created")
        return replaced

    @staticmethod
    def _cancel(row: JobRow, now: dt.datetime) -> Cancelled | OJSError:
        previous = row["state"]
        if previous == State.CANCELLED:
            return Cancelled(row, previous, changed=False)
        if previous not in LIVE:
            return refuse(row, Verb.CANCEL, State.CANCELLED)
        transitions.cancel(row, now, "", "")  # its event is for a log that a fake does not have
        return Cancelled(row, previous, changed=True)

    def _get(self, job_id: uuid.UUID | str) -> JobHandle:
        """Among the jobs of the test: a fake has no others, and no database to look for them."""
        for job in self.enqueued:
            if str(job.id) == str(job_id):
                return job
        raise NotFound.resource("job", str(job_id))

    def _rows(self) -> dict[uuid.UUID, JobRow]:
        return {job.id: job.row for job in self.enqueued}

    def _flows(self) -> dict[uuid.UUID, WorkflowView]:
        return {view.workflow.pk: view for view, lasts in self._views if lasts}


class fake(Mode[FakeJobs]):  # noqa: N801 - reads as what it is used as
    """Record jobs without storing them. Needs no database."""

    def _new(self) -> FakeJobs:
        return FakeJobs()


class FakeJobsMixin(JobsMixin):
    """Records jobs without storing them."""

    jobs: FakeJobs

    def _jobs(self) -> FakeJobs:
        return FakeJobs()


def _schedule(name: str) -> CronSchedule:
    """The schedule of the code, not stored; else the stored one. Raises NotFound."""
    for spec in declared():
        if spec.name == name:
            schedule = CronSchedule(name=name, type=spec.type, queue=spec.queue)
            schedule.template = spec.template
            return schedule
    return schedules.get(name)
