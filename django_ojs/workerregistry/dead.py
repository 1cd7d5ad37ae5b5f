"""Takes back the jobs of dead workers (core 7.5, orchestration 3.6 and 3.9).

`rescue_dead_workers` is the scheduler's, for workers that stopped beating. A worker that takes the name of a dead one
calls `replace_dead_worker`, a supervisor whose child has died `hand_back`. Jobs of callers that only fetch come back
when their reservations end (`jobs.timers`).
"""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections import Counter
from collections.abc import Hashable, Iterator, Sequence

from django.db.models import Q, QuerySet

from django_ojs import clock, tenants
from django_ojs.conf import ojs_settings
from django_ojs.database import atomic, database, piece_by_piece, retried
from django_ojs.events import log
from django_ojs.events.catalogue import Record
from django_ojs.lifecycle.ended import jobs_ended
from django_ojs.lifecycle.reservations import release
from django_ojs.lifecycle.transitions import LOST_COLUMNS, Outcome, end_attempt, lose, uncount
from django_ojs.lifecycle.waking import wake_workers
from django_ojs.models import Lease, Worker
from django_ojs.models.job import JobRow
from django_ojs.rules import errorobjects
from django_ojs.states import State, Verb
from django_ojs.store import store_of
from django_ojs.workerregistry import deaths
from django_ojs.workerregistry.deaths import Death
from django_ojs.workerregistry.registration import terminated_events


@retried
def rescue_dead_workers(*, spare: bool = False, using: str | None = None) -> int:
    """Forget workers without a heartbeat for `HEARTBEAT_TIMEOUT` seconds; return how many jobs came back.

    `spare` leaves them alone: after an outage of the database, in which no worker could beat.
    Workers that never sent a heartbeat are left to the visibility timeout. Where such a worker has been silent for as
    long, the server takes it for awake: a push sends it no notification any more.
    """
    using = database(using)
    now = clock.now(using)
    since = now - dt.timedelta(seconds=dead_after())
    silent = Worker.objects.using(using).filter(Q(last_heartbeat_at__lt=since) | _silent_ahead(now, since, using))
    gone = Worker.objects.using(using).filter(asleep=True, last_heartbeat_at=None, last_seen_at__lt=since)
    if not spare and gone.exists():
        with atomic(using=using):
            free = gone.order_by("pk").select_for_update(skip_locked=store_of(using).skip_locked)
            Worker.objects.using(using).filter(pk__in=[row.pk for row in free]).update(asleep=False)
    if spare or not silent.exists():
        return 0
    clock.look(using)
    if clock.was_set_lately(using):  # some may beat by the old time yet
        return 0
    names = silent.values_list("pk", flat=True)

    def pieces() -> Iterator[Q]:
        return (Q(pk=name) for name in list(names))

    return piece_by_piece(
        lambda part, patient: _rescue(silent.filter(part), now, using, patient=patient), pieces, using
    )


#: Workers whose heartbeats lie ahead, with these and since when this process knows them.
_heard_ahead: dict[Hashable, dict[str, tuple[dt.datetime | None, dt.datetime]]] = {}


def forget() -> None:
    """Know nothing of heartbeats. For tests."""
    _heard_ahead.clear()


def _silent_ahead(now: dt.datetime, since: dt.datetime, using: str) -> Q:
    """The workers that were heard while the clock was ahead, and have been silent since this process knows it: their
    heartbeats would be old enough only when the clock is there again."""
    ahead = Worker.objects.using(using).filter(last_heartbeat_at__gt=now + clock.AHEAD)
    before, known = _heard_ahead.get(tenants.scope(using), {}), {}
    silent = Q(pk__in=())
    for name, heard_at in ahead.values_list("pk", "last_heartbeat_at"):
        beat, first = before.get(name, (heard_at, now))
        known[name] = (beat, first) if beat == heard_at and first <= now else (heard_at, now)
        if known[name][1] < since:
            silent |= Q(pk=name, last_heartbeat_at=heard_at)
    _heard_ahead[tenants.scope(using)] = known
    return silent


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


def dead_after() -> float:
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
        store.set_lock_timeout()
    records = [record for worker in dead for record in terminated_events(worker, now, "error")]
    ours = {worker.pk: worker for worker in dead if worker.incarnation}
    number = Counter(row["worker_id"] for row in rows)
    for row in rows:
        message = f"The worker {row['worker_id']!r} stopped beating."
        worker, alone = ours.get(row["worker_id"]), number[row["worker_id"]] == 1
        if worker is None:
            records += lose(row, now, using, "worker_death", message)
            continue
        # Which of them its handlers ran, no one knows.
        death = deaths.of_silent(worker)
        deaths.suspect(row)
        deaths.record_deaths([row], worker.pk, death, now, using, alone=alone)
        records += lose(row, now, using, "worker_death", message, counts=alone, **death.facts)
    store.update_jobs(Verb.RESCUE, rows, LOST_COLUMNS)
    Worker.objects.using(using).filter(pk__in=[worker.pk for worker in dead]).delete()
    log.append(records, using)
    jobs_ended(rows, now, using)
    if rows:
        wake_workers(using)
    return len(rows)


@dataclasses.dataclass(frozen=True, slots=True)
class DeadWorkerReport:
    """What became of a dead worker.

    Attributes:
        returned: how many jobs it held.
        directive: the directive that an operator had given it, or ''.
        ran: the jobs that ran when it died, as rows.
        blamed: whether there was one alone, which is to blame.
    """

    returned: int
    directive: str
    ran: Sequence[JobRow] = ()
    blamed: bool = False


@retried
def hand_back(
    worker_id: str, *, incarnation: str = "", death: Death | None = None, using: str | None = None
) -> DeadWorkerReport:
    """Forget a worker whose process is known to be dead, and hand back what it held. Does nothing for an unknown one.

    With `incarnation` nothing either if another process has its name by now.

    `death` says how a process died that no one had told to end. Then no attempt of what it held counts, for no handler
    has failed. A job that was the only one to run is to blame: it has a loss and an error of type `worker_death`, so
    that `POISON_LIMIT` ends a job that kills its worker. Of several any may be innocent: no error is recorded, and
    each is run alone next time. Without `death` nothing is recorded at all.
    """
    using = database(using)
    with atomic(using=using):
        now = clock.now(using)
        worker = Worker.objects.using(using).select_for_update().filter(pk=worker_id).first()
        if worker is not None and incarnation and worker.incarnation != incarnation:
            return DeadWorkerReport(0, "")
        rows = store_of(using).lock_where(Q(worker_id=worker_id, state=State.ACTIVE))
        facts = {} if death is None else death.facts
        records: list[Record] = terminated_events(worker, now, "error", **facts) if worker is not None else []
        ran = [row for row in rows if death and (row["id"], row["attempt"]) in death.running]
        blamed: list[JobRow] = []
        if death is not None:
            alone = len(death.running) == 1
            deaths.record_deaths(ran, worker_id, death, now, using, alone=alone)
            for row in ran:
                row["suspected"] = True
                end_attempt(row, now, Outcome.LOST, errorobjects.server_error(
                    "worker_death", f"The worker {worker_id!r} {death} while it ran this job.", row["attempt"], now,
                    **facts,
                ))  # fmt: skip
            for row in rows:
                uncount(row)
            if alone:
                blamed = ran
        for row in blamed:
            message = f"The worker {worker_id!r} {death} while it ran this job and no other."
            records += lose(row, now, using, "worker_death", message, **facts)
        if blamed:
            store_of(using).update_jobs(Verb.RESCUE, blamed, LOST_COLUMNS)
            wake_workers(using)
        release([row for row in rows if row not in blamed], now, using)
        if worker is not None:
            worker.delete(using=using)
        log.append(records, using)
        jobs_ended(rows, now, using)
    Lease.objects.using(using).filter(holder=worker_id).delete()  # if it led, the next may lead at once
    directive = worker.directive if worker is not None else ""
    return DeadWorkerReport(len(rows), directive, ran, bool(blamed))
