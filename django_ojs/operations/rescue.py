"""RESCUE: hand back the jobs of workers that stopped beating (core 7.5, orchestration 3.9)."""

from __future__ import annotations

import datetime as dt

from django.db.models import Q

from django_ojs import clock, sql
from django_ojs.conf import ojs_settings
from django_ojs.contention import retried
from django_ojs.events import log
from django_ojs.models import Worker
from django_ojs.operations import advance
from django_ojs.operations.common import atomic, database
from django_ojs.operations.due import LOST_COLUMNS, lose
from django_ojs.operations.register import farewell
from django_ojs.states import State, Verb
from django_ojs.waking import wake_workers


@retried
def rescue_dead_workers(*, spare: bool = False, using: str | None = None) -> int:
    """Forget workers without a heartbeat for `HEARTBEAT_TIMEOUT` seconds; return how many jobs came back.

    `spare` leaves them alone: after an outage of the database, in which nobody could beat.
    Workers that never sent a heartbeat are left to the visibility timeout.
    """
    using = database(using)
    now = clock.now(using)
    # Never below three beats of our own worker, whatever the setting says.
    patience = max(ojs_settings.HEARTBEAT_TIMEOUT, 3 * ojs_settings.HEARTBEAT_INTERVAL)
    silent = Worker.objects.using(using).filter(last_heartbeat_at__lt=now - dt.timedelta(seconds=patience))
    if not silent.exists() or spare:
        return 0
    with atomic(using=using):
        dead = list(silent.select_for_update(skip_locked=sql.store(using).skip_locked))
        held = Q(worker_id__in=[worker.pk for worker in dead], state=State.ACTIVE)
        rows = sql.store(using).lock_where(held)
        records = [record for worker in dead for record in farewell(worker, now, "error")]
        for row in rows:
            records += lose(row, now, using, "worker_death", f"The worker {row['worker_id']!r} stopped beating.")
        sql.store(using).update_jobs(Verb.RESCUE, rows, LOST_COLUMNS)
        Worker.objects.using(using).filter(pk__in=[worker.pk for worker in dead]).delete()
        log.append(records, using)
        advance.settled(rows, now, using)
        if rows:
            wake_workers(using)
    return len(rows)
