"""CANCEL (core 7.6): ends jobs for good at a caller's wish, and says which jobs it refuses."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any, NamedTuple

from django_ojs import clock, states
from django_ojs.database import atomic, database, retried
from django_ojs.errors import OJSError
from django_ojs.events import log
from django_ojs.events.catalogue import Record
from django_ojs.hooks import replaceable
from django_ojs.lifecycle import transitions
from django_ojs.lifecycle.ended import jobs_ended
from django_ojs.lifecycle.transitions import WITH_LIMITED, each_locked, only, refuse
from django_ojs.lifecycle.waking import slots_freed
from django_ojs.models.job import JobRow
from django_ojs.states import State, Verb
from django_ojs.store import store_of

#: The states that each verb takes.
CANCELLABLE = states.ordered(states.sources(Verb.CANCEL))


class Cancelled(NamedTuple):
    """`changed` is False for a job that was cancelled before: cancelling twice is no error."""

    row: JobRow
    previous_state: str
    changed: bool


@replaceable("cancel_jobs")
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
    """Cancel these jobs; return for each what happened, or the error that refused it. An active one is cancelled at
    once; its worker learns it from its next heartbeat.

    `spare_active` leaves jobs alone that are running. Where `ended` is given, those that are cancelled are
    added to it, and it is the caller who takes their workflows further.
    """
    using = database(using)
    with atomic(using=using):
        now = clock.now(using)
        changed: list[Cancelled] = []
        records: list[Record] = []

        def decide(row: JobRow) -> Cancelled | OJSError:
            previous = row["state"]
            if error := not_cancelled(row, spare_active):
                return error
            if previous == State.CANCELLED:
                return Cancelled(row, previous, changed=False)
            records.append(transitions.cancel(row, now, cancelled_by, reason))
            changed.append(Cancelled(row, previous, changed=True))
            return changed[-1]

        outcomes = each_locked(job_ids, using, decide, WITH_LIMITED)
        store_of(using).update_jobs(Verb.CANCEL, [done.row for done in changed], transitions.CANCEL_COLUMNS)
        log.append(records, using)
        slots_freed([done.row for done in changed if done.previous_state == State.ACTIVE], using)
        if ended is None:
            jobs_ended([done.row for done in changed], now, using)
        else:
            ended += [done.row for done in changed]
    return outcomes


def not_cancelled(row: JobRow, spare_active: bool = False) -> OJSError | None:
    """What CANCEL refuses. A job that was cancelled before is none of it, but nothing is done either."""
    if row["state"] == State.CANCELLED or (row["state"] in CANCELLABLE and not (spare_active and _runs(row))):
        return None
    waiting = [state.value for state in states.ordered(states.WAITING)]
    facts: dict[str, Any] = {"expected_state": waiting} if spare_active else {}
    return refuse(row, Verb.CANCEL, State.CANCELLED, **facts)


def _runs(row: JobRow) -> bool:
    return bool(row["state"] == State.ACTIVE)


def cancel_one(job_id: uuid.UUID, *, cancelled_by: str = "", reason: str = "", using: str | None = None) -> Cancelled:
    """Cancel one job. Raises `NotFound` or `InvalidStateTransition` (completed, discarded)."""
    return only(cancel([job_id], cancelled_by=cancelled_by, reason=reason, using=using))
