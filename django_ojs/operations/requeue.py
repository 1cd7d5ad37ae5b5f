"""REQUEUE: a supervisor or a draining worker hands active jobs back at once (orchestration 3.6)."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from django.db.models import Q

from django_ojs import clock, sql
from django_ojs.contention import retried
from django_ojs.operations.common import atomic, database
from django_ojs.operations.fail import release
from django_ojs.states import State


@retried
def requeue(job_ids: Sequence[uuid.UUID], *, worker_id: str = "", using: str | None = None) -> list[uuid.UUID]:
    """Hand back those of the jobs that are active and, if `worker_id` is given, held by that worker.

    No error is recorded and no backoff applies. Returns the ids that were handed back.
    """
    return release_where(Q(pk__in=list(job_ids)), worker_id, using)


def requeue_held_by(worker_id: str, *, using: str | None = None) -> list[uuid.UUID]:
    """Hand back every job that this worker holds."""
    return release_where(Q(), worker_id, using)


def release_where(condition: Q, worker_id: str, using: str | None) -> list[uuid.UUID]:
    using = database(using)
    if worker_id:
        condition &= Q(worker_id=worker_id)
    with atomic(using=using):
        rows = sql.store(using).lock_where(condition & Q(state=State.ACTIVE))
        release(rows, clock.now(using), using)
    return [row["id"] for row in rows]
