"""Takes back the jobs of dead workers (core 7.5, orchestration 3.6 and 3.9).

`rescue_dead_workers` is the scheduler's, for workers that stopped beating. A worker that takes the name of a dead one
calls `replace_dead_worker`, a supervisor whose child has died `hand_back`. Jobs of callers that only fetch come back
when their reservations end (`jobs.timers`).
"""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Iterator, Sequence

from django.db.models import Q, QuerySet

from django_ojs import clock
from django_ojs.conf import ojs_settings
from django_ojs.database import atomic, database, piece_by_piece, retried
from django_ojs.events import log
from django_ojs.events.catalogue import Record
from django_ojs.jobs.finish import release
from django_ojs.jobs.transitions import LOST_COLUMNS, lose
from django_ojs.models import Lease, Worker
from django_ojs.states import State, Verb
from django_ojs.store import store_of
from django_ojs.workers.registration import farewell
from django_ojs.workers.waking import wake_workers
from django_ojs.workflows import advance


@retried
def rescue_dead_workers(*, spare: bool = False, using: str | None = None) -> int:
    """Forget workers without a heartbeat for `HEARTBEAT_TIMEOUT` seconds; return how many jobs came back.

    `spare` leaves them alone: after an outage of the database, in which no worker could beat.
    Workers that never sent a heartbeat are left to the visibility timeout.
    """
    using = database(using)
    now = clock.now(using)
    silent = Worker.objects.using(using).filter(last_heartbeat_at__lt=now - dt.timedelta(seconds=patience()))
    if not silent.exists() or spare:
        return 0
    names = silent.values_list("pk", flat=True)

    def pieces() -> Iterator[Q]:
        return (Q(pk=name) for name in list(names))

    return piece_by_piece(
        lambda part, patient: _rescue(silent.filter(part), now, using, patient=patient), pieces, using
    )


def _rescue(silent: QuerySet[Worker], now: dt.datetime, using: str, *, patient: bool) -> int:
    """Hand back what these workers held. What another transaction holds is left for the next time, its worker too."""
    store = store_of(using)
    with atomic(using=using):
        dead = list(silent.select_for_update(skip_locked=store.skip_locked))
        return _forget(dead, now, using, skip_locked=True, patient=patient)


@retried
def replace_dead_worker(
    worker_id: str, incarnation: str, heard_at: dt.datetime | None, *, using: str | None = None
) -> int | None:
    """Forget one worker whose process is known to be dead; return how many jobs came back.

    Does nothing, and returns None, if it has beaten since `heard_at` or is another process than `incarnation`.
    """
    using = database(using)
    with atomic(using=using):
        found = Worker.objects.using(using).select_for_update().filter(pk=worker_id, last_heartbeat_at=heard_at)
        worker = found.filter(incarnation=incarnation).first()
        returned = None if worker is None else _forget([worker], clock.now(using), using)
    if returned is not None:
        Lease.objects.using(using).filter(holder=worker_id).delete()  # if it led, the next may lead at once
    return returned


def patience() -> float:
    """Seconds of silence after which a worker is dead: three beats of our own at least, whatever the setting says."""
    return max(ojs_settings.HEARTBEAT_TIMEOUT, 3 * ojs_settings.HEARTBEAT_INTERVAL)


def _forget(
    dead: Sequence[Worker], now: dt.datetime, using: str, *, skip_locked: bool = False, patient: bool = True
) -> int:
    """Delete these locked workers and take back what they held, as losses; return how many jobs.

    With `skip_locked`, jobs that another transaction holds stay as they are, and so do their workers.
    """
    store = store_of(using)
    held = Q(worker_id__in=[worker.pk for worker in dead], state=State.ACTIVE)
    rows = store.lock_where(held, skip_locked=skip_locked)
    if skip_locked and store.skip_locked:
        left = store.jobs.filter(held).exclude(pk__in=[row["id"] for row in rows]).values_list("worker_id", flat=True)
        busy = set(left)
        dead = [worker for worker in dead if worker.pk not in busy]
    if not patient and any(row["workflow_id"] for row in rows):
        store.lose_patience()
    records = [record for worker in dead for record in farewell(worker, now, "error")]
    for row in rows:
        records += lose(row, now, using, "worker_death", f"The worker {row['worker_id']!r} stopped beating.")
    store.update_jobs(Verb.RESCUE, rows, LOST_COLUMNS)
    Worker.objects.using(using).filter(pk__in=[worker.pk for worker in dead]).delete()
    log.append(records, using)
    advance.settled(rows, now, using)
    if rows:
        wake_workers(using)
    return len(rows)


@dataclasses.dataclass(frozen=True, slots=True)
class HandedBack:
    """`returned`: how many jobs the worker held. `directive`: the directive that an operator had given it, or ''."""

    returned: int
    directive: str


@retried
def hand_back(worker_id: str, *, incarnation: str = "", blame: bool = False, using: str | None = None) -> HandedBack:
    """Forget a worker whose process is known to be dead, and hand back what it held. Does nothing for an unknown one.

    With `incarnation` nothing either if another process has its name by now.

    No error is recorded and nothing counts against the jobs, but for one case: with `blame`, the
    process ended itself (a crash, not a signal from outside), and if it held a single job then, that job did
    it. It is counted as a loss, with an error of type `worker_death`, so that `POISON_LIMIT` ends a job that
    kills its worker. Of several jobs any may be innocent, so none is blamed.
    """
    using = database(using)
    with atomic(using=using):
        now = clock.now(using)
        worker = Worker.objects.using(using).select_for_update().filter(pk=worker_id).first()
        if worker is not None and incarnation and worker.incarnation != incarnation:
            return HandedBack(0, "")
        rows = store_of(using).lock_where(Q(worker_id=worker_id, state=State.ACTIVE))
        records: list[Record] = farewell(worker, now, "error") if worker is not None else []
        if blame and len(rows) == 1:
            message = f"The worker {worker_id!r} died while it ran this job and no other."
            records += lose(rows[0], now, using, "worker_death", message)
            store_of(using).update_jobs(Verb.RESCUE, rows, LOST_COLUMNS)
            wake_workers(using)
        else:
            release(rows, now, using)
        if worker is not None:
            worker.delete(using=using)
        log.append(records, using)
        advance.settled(rows, now, using)
    Lease.objects.using(using).filter(holder=worker_id).delete()  # if it led, the next may lead at once
    return HandedBack(len(rows), worker.directive if worker is not None else "")
