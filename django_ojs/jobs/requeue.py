"""REQUEUE: a supervisor or a draining worker hands active jobs back at once (orchestration 3.6)."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Mapping

from django.db.models import Q

from django_ojs import clock
from django_ojs.database import atomic, database, retried
from django_ojs.jobs.finish import release
from django_ojs.models.job import JobRow
from django_ojs.states import State
from django_ojs.store import store_of
from django_ojs.workers import registration


@retried
def requeue(
    job_ids: Collection[uuid.UUID], *, worker_id: str = "", attempts: Mapping[uuid.UUID, int] | None = None,
    unrun: Collection[uuid.UUID] = (), using: str | None = None,
) -> list[uuid.UUID]:  # fmt: skip
    """Hand back those of the jobs that are active and, if `worker_id` is given, held by that worker.

    Where `attempts` names a job's attempt, it must be the present one. The attempts of the jobs in `unrun`, which no
    handler ran, do not count against `max_attempts`. No error is recorded and no backoff applies. Returns the ids that
    were handed back.
    """
    using = database(using)
    with atomic(using=using):
        rows = _held(Q(pk__in=list(job_ids)), worker_id, using)
        rows = [row for row in rows if (attempts or {}).get(row["id"], row["attempt"]) == row["attempt"]]
        release(rows, clock.now(using), using, unrun=unrun)
    return [row["id"] for row in rows]


def requeue_held_by(worker_id: str, *, using: str | None = None) -> list[uuid.UUID]:
    """Hand back every job that this worker holds."""
    using = database(using)
    with atomic(using=using):
        rows = _held(Q(), worker_id, using)
        release(rows, clock.now(using), using)
    return [row["id"] for row in rows]


@retried
def requeue_unknown(
    known: Collection[uuid.UUID], worker_id: str, *, incarnation: str = "", using: str | None = None
) -> list[uuid.UUID]:
    """Hand back what this worker holds beside `known`: jobs of claims whose answer did not reach it.

    No handler ran them, so these attempts do not count against `max_attempts`. With `incarnation` nothing is handed
    back once another process has the worker's name.
    """
    using = database(using)
    with atomic(using=using):
        if incarnation and registration.locked(worker_id, incarnation, using) is None:
            return []
        rows = _held(~Q(pk__in=list(known)), worker_id, using)
        ids = [row["id"] for row in rows]
        release(rows, clock.now(using), using, unrun=ids)
    return ids


def _held(condition: Q, worker_id: str, using: str) -> list[JobRow]:
    """Lock the active jobs that fit, of this worker where it is named."""
    if worker_id:
        condition &= Q(worker_id=worker_id)
    return store_of(using).lock_where(condition & Q(state=State.ACTIVE))
