"""CANCEL (core 7.6): stop a job that has not ended. An active one is cancelled at once; its worker is told
by its next heartbeat."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any, NamedTuple

from django_ojs import clock, sql, states
from django_ojs.contention import retried
from django_ojs.errors import OJSError
from django_ojs.events import catalogue, log
from django_ojs.models.job import JobRow
from django_ojs.operations import advance
from django_ojs.operations.common import WITH_LIMITED, atomic, database, each_locked, only, refuse
from django_ojs.operations.rehearsal import rehearsed
from django_ojs.sql.rows import FINISH_COLUMNS, finish
from django_ojs.states import State, Verb
from django_ojs.waking import slots_freed

#: Where an act that spares running jobs begins.
_WAITING: dict[str, Any] = {"expected_state": [state.value for state in states.ordered(states.WAITING)]}


class Cancelled(NamedTuple):
    """`changed` is False for a job that was cancelled before: cancelling twice is no error."""

    row: JobRow
    previous_state: str
    changed: bool


@rehearsed("cancel_jobs")
@retried
def cancel(
    job_ids: Sequence[uuid.UUID],
    *,
    cancelled_by: str = "",
    reason: str = "",
    spare_active: bool = False,
    ended: list[JobRow] | None = None,
    using: str | None = None,
) -> list[Cancelled | OJSError]:
    """Cancel these jobs; return for each what happened, or the error that refused it.

    `spare_active` leaves jobs alone that are running. Where `ended` is given, those that are cancelled are
    added to it, and it is the caller who takes their workflows further.
    """
    using = database(using)
    with atomic(using=using):
        now = clock.now(using)
        changed: list[Cancelled] = []

        def decide(row: JobRow) -> Cancelled | OJSError:
            previous = row["state"]
            if previous == State.CANCELLED:
                return Cancelled(row, previous, changed=False)
            if previous not in states.sources(Verb.CANCEL) or (spare_active and previous == State.ACTIVE):
                return refuse(row, Verb.CANCEL, State.CANCELLED, **_WAITING if spare_active else {})
            finish(row, State.CANCELLED, now)
            changed.append(Cancelled(row, previous, changed=True))
            return changed[-1]

        outcomes = each_locked(Verb.CANCEL, job_ids, using, decide, WITH_LIMITED)
        sql.store(using).update_jobs(Verb.CANCEL, [done.row for done in changed], FINISH_COLUMNS)
        records = [catalogue.cancelled(c.row, now, cancelled_by, reason, c.previous_state) for c in changed]
        log.append(records, using)
        slots_freed([done.row for done in changed if done.previous_state == State.ACTIVE], using)
        if ended is None:
            advance.settled([done.row for done in changed], now, using)
        else:
            ended += [done.row for done in changed]
    return outcomes


def cancel_one(job_id: uuid.UUID, *, cancelled_by: str = "", reason: str = "", using: str | None = None) -> Cancelled:
    """Cancel one job. Raises `NotFound` or `InvalidStateTransition` (completed, discarded)."""
    return only(cancel([job_id], cancelled_by=cancelled_by, reason=reason, using=using))
