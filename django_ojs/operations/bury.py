"""A supervisor's word on a child that died: its jobs go back at once (orchestration 3.6 and 3.9)."""

from __future__ import annotations

import dataclasses

from django.db.models import Q

from django_ojs import clock, sql
from django_ojs.contention import retried
from django_ojs.events import log
from django_ojs.events.catalogue import Record
from django_ojs.models import Lease, Worker
from django_ojs.operations import advance
from django_ojs.operations.common import atomic, database
from django_ojs.operations.due import LOST_COLUMNS, lose
from django_ojs.operations.fail import release
from django_ojs.operations.register import farewell
from django_ojs.states import State, Verb
from django_ojs.waking import wake_workers


@dataclasses.dataclass(frozen=True, slots=True)
class Burial:
    """`returned`: how many jobs the worker held. `directive`: what an operator had told it, or nothing."""

    returned: int
    directive: str


@retried
def bury(worker_id: str, *, blame: bool = False, using: str | None = None) -> Burial:
    """Forget a worker whose process is known to be dead, and hand back what it held. Does nothing for an unknown one.

    No error is recorded and nothing counts against the jobs (decision 5), but for one case: with `blame`, the
    process ended itself (a crash, not a signal from outside), and if it held a single job then, that job did
    it. It is counted as a loss, with an error of type `worker_death`, so that `POISON_LIMIT` ends a job that
    kills its worker. Of several jobs any may be innocent, so none is blamed.
    """
    using = database(using)
    with atomic(using=using):
        now = clock.now(using)
        worker = Worker.objects.using(using).select_for_update().filter(pk=worker_id).first()
        rows = sql.store(using).lock_where(Q(worker_id=worker_id, state=State.ACTIVE))
        records: list[Record] = farewell(worker, now, "error") if worker is not None else []
        if blame and len(rows) == 1:
            message = f"The worker {worker_id!r} died while it ran this job and no other."
            records += lose(rows[0], now, using, "worker_death", message)
            sql.store(using).update_jobs(Verb.RESCUE, rows, LOST_COLUMNS)
            wake_workers(using)
        else:
            release(rows, now, using)
        if worker is not None:
            worker.delete(using=using)
        log.append(records, using)
        advance.settled(rows, now, using)
    Lease.objects.using(using).filter(holder=worker_id).delete()  # if it led, the next may lead at once
    return Burial(len(rows), worker.directive if worker is not None else "")
