"""Ends the wait of jobs: PROMOTE by hand of scheduled and retryable ones, ACTIVATE of staged ones (core 6.3)."""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Sequence

from django_ojs import clock, states
from django_ojs.database import atomic, database, retried
from django_ojs.errors import OJSError
from django_ojs.events import log
from django_ojs.events.catalogue import Record
from django_ojs.lifecycle import transitions
from django_ojs.lifecycle.transitions import RowOrError, each_locked, only, refuse
from django_ojs.lifecycle.waking import wake_workers
from django_ojs.models.job import JobRow
from django_ojs.states import State, Verb
from django_ojs.store import store_of

ACTIVATABLE = states.ordered(states.sources(Verb.ACTIVATE))
RUNNABLE = states.ordered(states.sources(Verb.PROMOTE))


@retried
def run_now(job_ids: Sequence[uuid.UUID], *, using: str | None = None) -> list[RowOrError]:
    """PROMOTE by hand: end the wait of scheduled and retryable jobs, which keep their attempts and errors; return
    for each its row, or the error that refused it.

    A scheduled job is enqueued thereby and shows no `scheduled_at` any more; the end of a backoff has no event of its
    own (events 1.7).
    """
    using = database(using)
    with atomic(using=using):
        now = clock.now(using)
        changed: list[JobRow] = []
        enqueued: list[Record] = []

        def decide(row: JobRow) -> RowOrError:
            if error := not_run(row):
                return error
            enqueued.extend(transitions.promote(row, now, "api", using))
            changed.append(row)
            return row

        outcomes = each_locked(job_ids, using, decide)
        store_of(using).update_jobs(Verb.PROMOTE, changed, transitions.PROMOTE_COLUMNS)
        log.append(enqueued, using)
        if changed:
            wake_workers(using)
    return outcomes


def end_waits(rows: Sequence[JobRow], now: dt.datetime, component: str, using: str) -> None:
    """PROMOTE of locked jobs that wait for their next attempt, because what they wait for has come."""
    for row in rows:
        transitions.promote(row, now, component, using)
    store_of(using).update_jobs(Verb.PROMOTE, rows, transitions.AVAILABLE_COLUMNS)
    if rows:
        wake_workers(using)


def not_run(row: JobRow) -> OJSError | None:
    """Why `run_now` refuses this job; None where it does not."""
    return None if row["state"] in RUNNABLE else refuse(row, Verb.PROMOTE, State.AVAILABLE, called="run")


@retried
def activate(job_ids: Sequence[uuid.UUID], *, using: str | None = None) -> list[RowOrError]:
    """Make staged jobs available, or scheduled while their `scheduled_at` is still ahead (core 6.3); return for each
    its row, or the error that refused it."""
    using = database(using)
    with atomic(using=using):
        now = clock.now(using)
        changed: list[JobRow] = []
        records: list[Record] = []

        def decide(row: JobRow) -> RowOrError:
            if row["state"] not in ACTIVATABLE:
                return refuse(row, Verb.ACTIVATE, State.AVAILABLE)
            records.append(transitions.activate(row, now, using))
            changed.append(row)
            return row

        outcomes = each_locked(job_ids, using, decide)
        store_of(using).update_jobs(Verb.ACTIVATE, changed, transitions.ACTIVATE_COLUMNS)
        if any(row["state"] == State.AVAILABLE for row in changed):
            wake_workers(using)
        log.append(records, using)
    return outcomes


def activate_one(job_id: uuid.UUID, *, using: str | None = None) -> JobRow:
    """Activate one job. Raises `NotFound` or `InvalidStateTransition`."""
    return only(activate([job_id], using=using))
