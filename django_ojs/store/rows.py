"""A job's row in the hands of the verbs: what a claim and an end make of it, and when its time has run out."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING

from django.db.models import Q

from django_ojs.events.catalogue import moment
from django_ojs.models import Queue
from django_ojs.models.job import JobRow
from django_ojs.models.queue import TEMPLATE
from django_ojs.states import State

if TYPE_CHECKING:
    from django_ojs.store.base import Claim

#: What the row of a new job says; all other columns begin at their defaults.
NEW_COLUMNS = ("id", "type", "queue", "state", "priority", "max_attempts", "args", "meta", "extra", "retry",
                 "timeout_ms", "visibility_ms", "heartbeat_ms", "grace_ms", "trace_id", "created_at", "enqueued_at",
                 "due_at", "expires_at", "start_by", "deadline_at", "wake_at", "unique_key", "workflow_id",
                 "result_ttl", "rate_key", "rate_limit")  # fmt: skip
#: What a claim writes.
CLAIM_COLUMNS = ("state", "attempt", "started_at", "worker_id", "lease_ms", "visible_until", "timeout_at", "wake_at",
                 "due_at")  # fmt: skip
#: What entering a terminal state writes.
FINISH_COLUMNS = ("state", "finished_at", "due_at", "visible_until", "timeout_at", "wake_at")
#: What may still be claimed, with the time of the claim three times: `ended` in SQL.
ALIVE = (
    "AND (expires_at IS NULL OR expires_at > %s) AND (deadline_at IS NULL OR deadline_at > %s) "
    "AND (start_by IS NULL OR start_by > %s OR attempt > 0)"
)


def ended(now: dt.datetime) -> Q:
    """Waiting jobs whose time has run out (binding 5)."""
    return Q(expires_at__lte=now) | Q(deadline_at__lte=now) | Q(start_by__lte=now, attempt=0)


def under_limit(queue: str) -> str:
    """`models.job.LIMITED` in SQL: whether a job is under a limit; `queue` is its column there."""
    limited = f"SELECT 1 FROM {Queue._meta.db_table} AS q WHERE q.limited AND q.name IN ({queue}, '{TEMPLATE}')"
    return f"(rate_key <> '' OR EXISTS ({limited}))"


def reserve(row: JobRow, claim: Claim) -> None:
    """Make `row` what the claim makes it (core 7.2)."""
    lease = claim.lease_ms(row["visibility_ms"])
    timeout = (row["timeout_ms"] or claim.base_timeout_ms) + (row["grace_ms"] or 0)
    row.update(
        state=State.ACTIVE.value, attempt=row["attempt"] + 1, worker_id=claim.worker_id,
        started_at=max(claim.now, row["enqueued_at"] or claim.now),
        lease_ms=lease, visible_until=held_until(row, lease, claim.now),
        timeout_at=claim.now + dt.timedelta(milliseconds=timeout), due_at=None,
    )  # fmt: skip
    row["wake_at"] = min(row["visible_until"], row["timeout_at"], row["deadline_at"] or row["timeout_at"])


def held_until(row: JobRow, lease_ms: int, now: dt.datetime) -> dt.datetime:
    """The end of a reservation that begins anew now: no later than its worker has to be heard of the job."""
    return now + dt.timedelta(milliseconds=min(lease_ms, row["heartbeat_ms"] or lease_ms))


def finish(row: JobRow, state: State, now: dt.datetime) -> None:
    """Make `row` enter a terminal state."""
    row.update(state=state.value, finished_at=moment(row, now), due_at=None, visible_until=None, timeout_at=None)
    row["wake_at"] = None


def holds(row: JobRow, worker_id: str, attempt: int | None) -> bool:
    """Whether a worker may speak for this job: it is active, and holder and attempt fit where both are known."""
    return (
        row["state"] == State.ACTIVE
        and (not worker_id or not row["worker_id"] or worker_id == row["worker_id"])
        and (attempt is None or attempt == row["attempt"])
    )
