"""Record the steps of a durable run in the database of the jobs."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

from django_ojs import clock
from django_ojs.client import stepvalues
from django_ojs.database import database
from django_ojs.jobs import approvals, durableevents, steps
from django_ojs.rules.approvals import ApprovalRequest
from django_ojs.rules.steps import Step
from django_ojs.store.steps import Holder
from django_ojs.workflows import children


class StoredSteps:
    """The steps of a claimed job, in the database of the jobs. What is refused because the job is lost is False."""

    def __init__(self, row: Mapping[str, Any]) -> None:
        self.using: str = database(None)
        self._holder = Holder(row["id"], row["worker_id"], row["attempt"])
        self._resumable = bool(row.get("resumable"))

    def load(self) -> list[Step]:
        """What is recorded, and what a client of another language has kept in a checkpoint."""
        found = steps.of(self._holder.job_id, using=self.using)
        if self._resumable:
            known = {step.name for step in found}
            theirs = steps.of_clients(self._holder.job_id, clock.now(self.using), using=self.using)
            for step in theirs:
                step.result = stepvalues.of_client(step.result or "null")
            found = [*(step for step in theirs if step.name not in known), *found]
        return found

    def record(self, step: Step, *, locked: bool) -> bool:
        return steps.record(self._holder, step, locked=locked, using=self.using)

    def replace(self, step: Step, *, locked: bool) -> bool:
        return steps.replace(self._holder, step, locked=locked, using=self.using)

    def delete_all(self) -> bool:
        return steps.delete_all(self._holder, using=self.using)

    def start_over(self, arguments: Step) -> bool:
        return steps.start_over(self._holder, arguments, using=self.using)

    def event(self, name: str, key: str) -> str | None:
        return durableevents.find(name, key, using=self.using)

    def wait(self, step: Step) -> bool | None:
        return durableevents.wait(self._holder, step, using=self.using)

    def begin(self, step: Step, document: dict[str, Any], *, limit: int, outlives: bool) -> bool:
        return children.begin(self._holder, step, document, limit=limit, outlives=outlives, using=self.using)

    def time_out(self, step: Step) -> bool | None:
        return durableevents.time_out(self._holder, step, using=self.using)

    def ask(self, step: Step, request: ApprovalRequest, *, again: bool) -> bool:
        return approvals.ask(self._holder, step, request, again=again, using=self.using)

    def time_out_approval(self, step: Step) -> bool:
        return approvals.time_out(uuid.UUID(step.event_key or ""), using=self.using)
