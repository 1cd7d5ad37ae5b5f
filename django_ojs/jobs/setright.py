"""Sets jobs right whose times were noted while the clock of the database was ahead.

Once the clock is right again, such a time lies too far in the future: a retry would wait for it, the reservation of a
caller that has died would last until then, and a waiting job would be behind all that are pushed until then. So these
times are made what they would be if it had happened now. What a client has said itself (`scheduled_at`, `expires_at`)
is left alone.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable

from django.db.models import DateTimeField, Func, Q
from django.db.models.lookups import GreaterThan

from django_ojs import clock
from django_ojs.conf import ojs_settings
from django_ojs.database import atomic, database, retried
from django_ojs.lifecycle.transitions import wake_at
from django_ojs.lifecycle.waking import wake_workers
from django_ojs.models.job import JobRow, in_states
from django_ojs.rules.rows import END_OF_TIME, held_until
from django_ojs.states import State
from django_ojs.store import store_of

BATCH = 500
_COLUMNS = ("enqueued_at", "started_at", "due_at", "visible_until", "timeout_at", "wake_at")


def set_right(*, using: str | None = None) -> int:
    """Look through all jobs that have not ended; return how many were set right. What another transaction has locked is
    left alone, and so is what a limit has put off, unless this process has seen the clock set back."""
    using = database(using)
    found = 0
    for state in _CHANGES:
        while done := _batch(state, using=using):
            found += done
            if done < BATCH:
                break
    return found


@retried
def _batch(state: State, *, using: str) -> int:
    store = store_of(using)
    wanted = in_states([state]) & _ahead(state, clock.now(using), using)
    ids = list(store.jobs.filter(wanted).values_list("pk", flat=True)[:BATCH])
    if not ids:  # as nearly always: the look has locked nothing
        return 0
    with atomic(using=using):
        now = clock.now(using)
        rows = store.lock_where(Q(pk__in=ids) & wanted, skip_locked=True)
        for row in sorted(rows, key=lambda row: (row["enqueued_at"] or now, row["id"])):
            _CHANGES[state](row, now)
            row["wake_at"] = wake_at(row)
        store.update_jobs(state, rows, _COLUMNS)
        if rows and state is State.AVAILABLE:
            wake_workers(using)
    return len(rows)


def _ahead(state: State, now: dt.datetime, using: str) -> Q:
    """The jobs in this state whose times were noted while the clock was ahead."""
    edge = now + clock.AHEAD
    if state is State.ACTIVE:
        return Q(started_at__gt=edge)
    if state is State.AVAILABLE:
        enqueued = Q(enqueued_at__gt=edge)
        if clock.times_set_back(using):  # those that a limit has put off ask it again: no row says when it has done so
            enqueued |= Q(due_at__gt=edge, due_at__lt=END_OF_TIME)
        return enqueued
    failed_at = Func(template=store_of(using).waits_since, output_field=DateTimeField())
    return Q(due_at__gt=edge, due_at__lt=END_OF_TIME) & Q(GreaterThan(failed_at, edge))


def _set_available(row: JobRow, now: dt.datetime) -> None:
    if row["enqueued_at"] > now:
        row["enqueued_at"] = clock.stamps(1, now)
    if row["due_at"] != END_OF_TIME:
        row["due_at"] = None


def _set_active(row: JobRow, now: dt.datetime) -> None:
    """Let its reservation and its timeout begin now."""
    timeout = (row["timeout_ms"] or ojs_settings.DEFAULT_TIMEOUT * 1000) + (row["grace_ms"] or 0)
    row.update(
        enqueued_at=min(row["enqueued_at"], now), started_at=now,
        visible_until=min(row["visible_until"], held_until(row, row["lease_ms"], now)),
        timeout_at=min(row["timeout_at"], now + dt.timedelta(milliseconds=timeout)),
    )  # fmt: skip


def _set_retryable(row: JobRow, now: dt.datetime) -> None:
    """Let its wait begin now."""
    row.update(
        enqueued_at=min(row["enqueued_at"], now), started_at=min(row["started_at"], now),
        due_at=now + dt.timedelta(milliseconds=row["retry_delay_ms"]),
    )  # fmt: skip


_CHANGES: dict[State, Callable[[JobRow, dt.datetime], None]] = {
    State.AVAILABLE: _set_available, State.ACTIVE: _set_active, State.RETRYABLE: _set_retryable,
}  # fmt: skip
