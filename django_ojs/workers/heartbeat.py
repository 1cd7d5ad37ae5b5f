"""BEAT (core 7.5): a worker says that it is alive, keeps its jobs, and learns what it is to do."""

from __future__ import annotations

import dataclasses
import datetime as dt
import uuid
from collections.abc import Mapping
from typing import Any

from django.db.models import Q

from django_ojs import clock
from django_ojs.database import atomic, database, retried
from django_ojs.events import catalogue, log
from django_ojs.jobs.transitions import wake_at
from django_ojs.models import Job, Worker
from django_ojs.models.job import JobRow
from django_ojs.states import State
from django_ojs.store import store_of
from django_ojs.store.base import held_until
from django_ojs.workers import registration

#: How workers of other languages spell their states.
STATES = {
    "running": "running", "quiet": "quiet", "drain": "quiet", "draining": "quiet",
    "terminate": "terminate", "terminating": "terminate", "shutting_down": "terminate",
}  # fmt: skip


@dataclasses.dataclass(slots=True)
class Beat:
    """A heartbeat. `visibility_ms` None renews each job for as long as its claim was granted.

    `renew_own` False leaves jobs alone that have a reservation length or a heartbeat timeout of their own: only their
    handler extends those. `attempts` says which attempt of an active job the worker runs, where it knows
    that: a later one is another run, and the job is lost to this one. `incarnation` names the process behind the
    worker's name (`register.meet`).
    """

    worker_id: str
    active: list[uuid.UUID] = dataclasses.field(default_factory=list)
    active_count: int | None = None
    visibility_ms: int | None = None
    state: str = "running"
    info: dict[str, Any] = dataclasses.field(default_factory=dict)
    renew_own: bool = True
    attempts: Mapping[uuid.UUID, int] = dataclasses.field(default_factory=dict)
    incarnation: str = ""


@dataclasses.dataclass(slots=True)
class BeatAnswer:
    """What the server answers. `cancelled`: reported jobs that were cancelled; `lost`: no longer held."""

    state: str
    extended: list[uuid.UUID]
    cancelled: list[uuid.UUID]
    lost: list[uuid.UUID]
    server_time: dt.datetime

    @property
    def directive(self) -> str:
        """The same in the words of the reference servers."""
        return "continue" if self.state == "running" else self.state


@retried
def beat(beat_: Beat, *, using: str | None = None) -> BeatAnswer:
    """Record the heartbeat, renew the reservations of the jobs it names, and answer with the directive.

    Raises `NameInUse` if another process than `incarnation` has the name.
    """
    using = database(using)
    with atomic(using=using):
        now = clock.now(using)
        worker, records = registration.meet(beat_.worker_id, beat_.info, now, using, beat_.incarnation)
        records += _note(worker, beat_, now)
        worker.save(using=using)
        rows = _held(beat_, using)
        renewed = renew(list(rows.values()), beat_.visibility_ms, now, using, own=beat_.renew_own)
        records += [catalogue.heartbeat(row, now, beat_.worker_id) for row in renewed]
        log.append(records, using)
        gone = [job_id for job_id in beat_.active if job_id not in rows]
        cancelled = _cancelled(gone, using)
    return BeatAnswer(
        state=registration.mood(worker),
        extended=[row["id"] for row in renewed],
        cancelled=[job_id for job_id in gone if job_id in cancelled],
        lost=[job_id for job_id in gone if job_id not in cancelled],
        server_time=now,
    )


@retried
def extend(
    job_id: uuid.UUID, worker_id: str, *, attempt: int | None = None, visibility_ms: int | None = None,
    using: str | None = None,
) -> bool:  # fmt: skip
    """Renew one reservation from inside its handler. False when the worker no longer holds the job, or not for this
    attempt."""
    using = database(using)
    with atomic(using=using):
        now = clock.now(using)
        attempts = {} if attempt is None else {job_id: attempt}
        rows = list(_held(Beat(worker_id, [job_id], attempts=attempts), using).values())
        renewed = renew(rows, visibility_ms, now, using)
        log.append([catalogue.heartbeat(row, now, worker_id) for row in renewed], using)
    return bool(renewed)


def renew(rows: list[JobRow], ms: int | None, now: dt.datetime, using: str, *, own: bool = True) -> list[JobRow]:
    """Move the reservations of locked active jobs forward from now; return the rows that were moved."""
    moved = [row for row in rows if own or (row["visibility_ms"] is None and row["heartbeat_ms"] is None)]
    for row in moved:
        row["visible_until"] = held_until(row, ms or row["lease_ms"], now)
        row["wake_at"] = wake_at(row)
    store_of(using).update_jobs(State.ACTIVE, moved, ("visible_until", "wake_at"))
    return moved


def _note(worker: Worker, beat_: Beat, now: dt.datetime) -> list[Any]:
    """Take over what the heartbeat reports; its events."""
    reported = STATES.get(beat_.state, "running")
    was = worker.state
    worker.state = reported
    worker.last_heartbeat_at = now
    worker.active_jobs = beat_.active_count if beat_.active_count is not None else len(beat_.active)
    facts: dict[str, Any] = {"active_jobs": worker.active_jobs, "queues": worker.queues, "state": reported}
    for name in ("memory_mb", "cpu_percent"):
        if beat_.info.get(name) is not None:
            facts[name] = beat_.info[name]
    records = [catalogue.of_worker("worker.heartbeat", worker.pk, now, **facts)]
    if was == "running" and reported != "running":
        records.append(registration.turned_quiet(worker, now))
    return records


def _held(beat_: Beat, using: str) -> dict[uuid.UUID, JobRow]:
    """The reported runs whose jobs are active and held by this worker, or by no worker in particular."""
    if not beat_.active:
        return {}
    mine = Q(pk__in=beat_.active, state=State.ACTIVE) & (Q(worker_id=beat_.worker_id) | Q(worker_id=""))
    rows = {row["id"]: row for row in store_of(using).lock_where(mine)}
    return {pk: row for pk, row in rows.items() if beat_.attempts.get(pk, row["attempt"]) == row["attempt"]}


def _cancelled(ids: list[uuid.UUID], using: str) -> set[uuid.UUID]:
    if not ids:
        return set()
    return set(Job.objects.using(using).filter(pk__in=ids, state=State.CANCELLED).values_list("pk", flat=True))
