"""Keeps account of the jobs that schedules made: which still live, and which have to wait for the one before.

A job that must wait for the previous run (overlap policy `enqueue`) is `available` with a `due_at` that no
claim reaches. FETCH lets the next one go, as it promotes due jobs, so that it is there as soon as the run
before it has ended, however that came about; the scheduler does the same for sites that do not fetch.
"""

from __future__ import annotations

import datetime as dt
import time
import uuid
from collections.abc import Sequence

from django.db.models import Exists, Min, OuterRef, Q, QuerySet

from django_ojs import states
from django_ojs.database import atomic, database
from django_ojs.models import CronRun, Job
from django_ojs.models.job import JobRow
from django_ojs.queues import maintenance
from django_ojs.states import State
from django_ojs.store import store_of

HELD_UNTIL = dt.datetime(9999, 1, 1, tzinfo=dt.UTC)
#: How many ended runs of a schedule its history shows.
KEPT_RUNS = 100
#: For how long a process trusts that nothing is held, in seconds.
_TRUST = 1.0

_nothing_held: dict[str, float] = {}


def live(name: str, using: str) -> list[uuid.UUID]:
    """The jobs of this schedule that have not ended, oldest first."""
    runs = CronRun.objects.using(using).filter(_is_live(), name=name)
    return list(runs.order_by("id").values_list("job_id", flat=True))


def note(name: str, row: JobRow, nominal: dt.datetime, now: dt.datetime, using: str, *, hold: bool) -> None:
    """Record a job that a schedule just made, and hold it back if it has to wait; then forget the oldest runs."""
    runs = CronRun.objects.using(using)
    if hold:
        Job.objects.using(using).filter(pk=row["id"], state=State.AVAILABLE).update(due_at=HELD_UNTIL)
        _nothing_held.pop(using, None)
    runs.create(
        name=name, job_id=row["id"], queue=row["queue"], scheduled_at=nominal, triggered_at=now, held=hold
    )  # fmt: skip
    edge = runs.filter(name=name).order_by("-id").values_list("id", flat=True)[KEPT_RUNS : KEPT_RUNS + 1].first()
    if edge is not None:
        runs.filter(~_is_live(), name=name, id__lte=edge).delete()


def release(queues: Sequence[str] | None = None, *, using: str | None = None) -> int:
    """Let the oldest held job of each schedule go whose other runs have ended; return how many went."""
    using = database(using)
    runs = CronRun.objects.using(using)
    held = runs.filter(held=True)
    if not held.exists():
        _nothing_held[using] = time.monotonic()
        return 0
    if maintenance.is_on(using=using):
        return 0
    held = held if queues is None else held.filter(queue__in=list(queues))
    with atomic(using=using):
        held.filter(~_is_live()).update(held=False)  # cancelled or expired while it waited
        first = dict(held.values_list("name").annotate(Min("id")))
        busy = set(runs.filter(_is_live(), name__in=first, held=False).values_list("name", flat=True))
        heads = [pk for name, pk in first.items() if name not in busy]
        return _let_go(runs.filter(pk__in=heads), using) if heads else 0


def release_waiting(queues: Sequence[str], using: str) -> None:
    """`release` as part of a FETCH; costs nothing while nothing is held anywhere."""
    if time.monotonic() - _nothing_held.get(using, float("-inf")) > _TRUST:
        release(queues, using=using)


def prune(batch: int, using: str) -> int:
    """Forget runs whose job is gone."""
    gone = CronRun.objects.using(using).filter(~Exists(Job.objects.using(using).filter(pk=OuterRef("job_id"))))
    ids = list(gone.order_by("id").values_list("id", flat=True)[:batch])
    return CronRun.objects.using(using).filter(pk__in=ids).delete()[0] if ids else 0


def forget() -> None:
    """Drop what this process remembers."""
    _nothing_held.clear()


def _let_go(runs: QuerySet[CronRun], using: str) -> int:
    """Several may have chosen the same jobs: who finds one still held, behind its lock, frees it."""
    store = store_of(using)
    wanted = Q(pk__in=list(runs.values_list("job_id", flat=True)), state=State.AVAILABLE, due_at=HELD_UNTIL)
    rows = store.lock_where(wanted, skip_locked=True)
    for row in rows:
        row["due_at"] = None
    store.update_jobs(State.AVAILABLE, rows, ("due_at",))
    CronRun.objects.using(using).filter(job_id__in=[row["id"] for row in rows]).update(held=False)
    return len(rows)


def _is_live() -> Exists:
    return Exists(Job.objects.filter(pk=OuterRef("job_id"), state__in=states.ordered(states.LIVE)))
