"""Hands active jobs back to their queues, and moves their reservations forward (core 7.5, orchestration 3.6)."""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Collection, Sequence

from django_ojs.lifecycle import transitions
from django_ojs.lifecycle.transitions import uncount, wake_at
from django_ojs.lifecycle.waking import wake_workers
from django_ojs.models.job import JobRow
from django_ojs.rules.rows import held_until
from django_ojs.states import State, Verb
from django_ojs.store import store_of


def release(rows: Sequence[JobRow], now: dt.datetime, using: str, *, unrun: Collection[uuid.UUID] = ()) -> None:
    """Hand locked active jobs back to their queues: no error, no backoff, the attempt keeps its number.

    The attempts of the jobs in `unrun`, which no handler ran, do not count against `max_attempts`.
    """
    for row in rows:
        if row["id"] in unrun:
            uncount(row)
        transitions.release(row, now, using)
    store_of(using).update_jobs(Verb.REQUEUE, rows, transitions.RELEASE_COLUMNS)
    if rows:
        wake_workers(using)


def renew(rows: list[JobRow], ms: int | None, now: dt.datetime, using: str) -> list[JobRow]:
    """Move the reservations of locked active jobs forward from now; return the rows."""
    moved = moved_forward(rows, ms, now)
    save_renewed(moved, using)
    return moved


def moved_forward(rows: list[JobRow], ms: int | None, now: dt.datetime, *, own: bool = True) -> list[JobRow]:
    """Do in memory what `renew` does; return the rows that were moved, which `save_renewed` stores.

    With `own` False, jobs that have a reservation length or a heartbeat timeout of their own are left alone.
    """
    moved = [row for row in rows if own or (row["visibility_ms"] is None and row["heartbeat_ms"] is None)]
    for row in moved:
        row["visible_until"] = held_until(row, ms or row["lease_ms"], now)
        row["wake_at"] = wake_at(row)
    return moved


def save_renewed(rows: list[JobRow], using: str) -> None:
    """Store the reservations of rows that `moved_forward` has moved."""
    store_of(using).update_jobs(State.ACTIVE, rows, ("visible_until", "wake_at"))
