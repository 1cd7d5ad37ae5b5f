"""Makes a job's row what a claim or an end makes it, and says who holds the job (core 7.2).

A row is a mapping of the columns of `models.Job` to their values.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, MutableMapping
from typing import Any

from django_ojs.states import State

#: When a job is due that waits until something else than time lets it go on.
END_OF_TIME = dt.datetime(9999, 1, 1, tzinfo=dt.UTC)


def reserve(
    row: MutableMapping[str, Any], worker_id: str, now: dt.datetime, *, lease_ms: int, default_timeout_ms: int
) -> None:
    """Make `row` what a claim by this worker makes it: active, one attempt further, and reserved for `lease_ms`.

    A job without a timeout of its own has `default_timeout_ms`, its grace period comes on top.
    """
    timeout = (row["timeout_ms"] or default_timeout_ms) + (row["grace_ms"] or 0)
    row.update(
        state=State.ACTIVE.value, attempt=row["attempt"] + 1, worker_id=worker_id,
        started_at=max(now, row["enqueued_at"] or now),
        lease_ms=lease_ms, visible_until=held_until(row, lease_ms, now),
        timeout_at=now + dt.timedelta(milliseconds=timeout), due_at=None,
    )  # fmt: skip
    row["wake_at"] = min(row["visible_until"], row["timeout_at"], row["deadline_at"] or row["timeout_at"])


def held_until(row: Mapping[str, Any], lease_ms: int, now: dt.datetime) -> dt.datetime:
    """The end of a reservation that begins anew now: no later than its worker has to be heard of the job."""
    return now + dt.timedelta(milliseconds=min(lease_ms, row["heartbeat_ms"] or lease_ms))


def finish(row: MutableMapping[str, Any], state: State, now: dt.datetime) -> None:
    """Make `row` enter a terminal state."""
    row.update(state=state.value, finished_at=moment(row, now), due_at=None, visible_until=None, timeout_at=None)
    row["wake_at"] = None


def holds(row: Mapping[str, Any], worker_id: str, attempt: int | None) -> bool:
    """Whether a worker may speak for this job: it is active, and holder and attempt fit where both are known."""
    return (
        row["state"] == State.ACTIVE
        and (not worker_id or not row["worker_id"] or worker_id == row["worker_id"])
        and (attempt is None or attempt == row["attempt"])
    )


def counted(row: Mapping[str, Any]) -> int:
    """How many of the job's attempts count against its `max_attempts`, the present one included."""
    return int(row["attempt"]) - (row["uncounted"] or 0)


def is_last_attempt(row: Mapping[str, Any]) -> bool:
    """Whether the present attempt is the last that `max_attempts` allows."""
    return counted(row) >= max(1, int(row["max_attempts"]))


def moment(row: Mapping[str, Any], now: dt.datetime) -> dt.datetime:
    """When something happens to this job: now, but neither before it waited nor before it started.

    A statement sees what others have committed since its transaction looked at the clock. Rows whose times are as the
    database gave them (`raw`) are taken at `now`.
    """
    for name in ("enqueued_at", "started_at"):
        before = row.get(name)
        if isinstance(before, dt.datetime) and before.tzinfo is not None and before > now:
            now = before
    return now
