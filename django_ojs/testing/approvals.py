"""Decide in a test what a durable handler asks people."""

from __future__ import annotations

import uuid
from typing import Any

from django_ojs.database import database
from django_ojs.jobs import approvals
from django_ojs.models import Approval
from django_ojs.rules.approvals import ApprovalState


def approve(
    job: Any, name: str = "", *, approved: bool = True, comment: str = "", data: Any = None, by: Any = None
) -> Approval:
    """Decide the open approval of a job. The job goes on in the next `drain()`, and where jobs run inline at once.

    Args:
        job: the job, by its handle or its id.
        name: the name of the approval, where the job has several that are open.
        approved: False rejects it.
        data: what was entered into its form.
        by: the user who decides, which must be one of those who are asked. None: a user who may decide everything.

    Raises AssertionError unless there is one such approval, and what `django_ojs.approve` raises.
    """
    __tracebackhide__ = True
    job_id = getattr(job, "id", job)
    asked = Approval.objects.using(database(None)).filter(job_id=uuid.UUID(str(job_id)))
    found = list(asked.filter(state=ApprovalState.OPEN, **({"name": name} if name else {})))
    if len(found) != 1:
        listed = ", ".join(f"{one.name} ({one.state})" for one in asked) or "none"
        raise AssertionError(f"Not one open approval {name!r} of the job {job_id}, but {len(found)}. It has: {listed}.")
    who = approvals.Decider("user:test", may_all=True) if by is None else approvals.Decider.of(by)
    return approvals.decide(found[0].pk, approved, who, comment=comment, data=data)
