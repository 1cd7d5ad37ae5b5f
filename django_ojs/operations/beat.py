"""BEAT (core 7.5): a worker is alive, keeps its jobs, and learns what it is to do."""

from __future__ import annotations

import dataclasses
import datetime as dt
import uuid
from typing import Any

from django.db.models import Q

from django_ojs import clock, sql
from django_ojs.contention import retried
from django_ojs.events import catalogue, log
from django_ojs.models import Job, Worker
from django_ojs.models.job import JobRow
from django_ojs.operations import register
from django_ojs.operations.common import atomic, database, wake_at
from django_ojs.sql.rows import held_until
from django_ojs.states import State

#: How workers of other languages spell their states.
STATES = {
    "running": "running", "quiet": "quiet", "drain": "quiet", "draining": "quiet",
    "terminate": "terminate", "terminating": "terminate", "shutting_down": "terminate",
}  # fmt: skip


@dataclasses.dataclass(slots=True)
class Beat:
    """A heartbeat. `visibility_ms` None renews each job for as long as its claim was granted.

    `renew_own` False leaves jobs alone that have a reservation length or a heartbeat timeout of their own: only their
    handler extends those (decision 4).
    """

    worker_id: str
    active: list[uuid.UUID] = dataclasses.field(default_factory=list)
    active_count: int | None = None
    visibility_ms: int | None = None
    state: str = "running"
    info: dict[str, Any] = dataclasses.field(default_factory=dict)
    renew_own: bool = True


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
    """Record the heartbeat, renew the reservations of the jobs it names, and answer with the directive."""
    using = database(using)
    with atomic(using=using):
        now = clock.now(using)
        worker, records = register.meet(beat_.worker_id, beat_.info, now, using)
        records += _note(worker, beat_, now)
        worker.save(using=using)
        rows = _held(beat_, using)
        renewed = renew(list(rows.values()), beat_.visibility_ms, now, using, own=beat_.renew_own)
        records += [catalogue.heartbeat(row, now, beat_.worker_id) for row in renewed]
        log.append(records, using)
        gone = [job_id for job_id in beat_.active if job_id not in rows]
        cancelled = _cancelled(gone, using)
    return BeatAnswer(
        state=register.mood(worker),
        extended=[row["id"] for row in renewed],
        cancelled=[job_id for job_id in gone if job_id in cancelled],
        lost=[job_id for job_id in gone if job_id not in cancelled],
        server_time=now,
    )


@retried
def extend(job_id: uuid.UUID, worker_id: str, *, visibility_ms: int | None = None, using: str | None = None) -> bool:
    """Renew one reservation from inside its handler. False when the worker no longer holds the job."""
    using = database(using)
    with atomic(using=using):
        now = clock.now(using)
        rows = list(_held(Beat(worker_id, [job_id]), using).values())
        renewed = renew(rows, visibility_ms, now, using)
        log.append([catalogue.heartbeat(row, now, worker_id) for row in renewed], using)
    return bool(renewed)


def renew(rows: list[JobRow], ms: int | None, now: dt.datetime, using: str, *, own: bool = True) -> list[JobRow]:
    """Move the reservations of locked active jobs forward from now; return the rows that were moved."""
    moved = [row for row in rows if own or (row["visibility_ms"] is None and row["heartbeat_ms"] is None)]
    for row in moved:
        row["visible_until"] = held_until(row, ms or row["lease_ms"], now)
        row["wake_at"] = wake_at(row)
    sql.store(using).update_jobs(State.ACTIVE, moved, ("visible_until", "wake_at"))
    return moved


def _note(worker: Worker, beat_: Beat, now: dt.datetime) -> list[Any]:
    """Take over what the heartbeat reports; its events."""
    reported = STATES.get(beat_.state, "running")
    turned_quiet = reported == "quiet" and worker.state != "quiet"
    worker.state = reported
    worker.last_heartbeat_at = now
    worker.active_jobs = beat_.active_count if beat_.active_count is not None else len(beat_.active)
    facts: dict[str, Any] = {"active_jobs": worker.active_jobs, "queues": worker.queues, "state": reported}
    for name in ("memory_mb", "cpu_percent"):
        if beat_.info.get(name) is not None:
            facts[name] = beat_.info[name]
    records = [catalogue.of_worker("worker.heartbeat", worker.pk, now, **facts)]
    if turned_quiet:
        records.append(catalogue.of_worker("worker.quiet", worker.pk, now, active_jobs=worker.active_jobs))
    return records


def _held(beat_: Beat, using: str) -> dict[uuid.UUID, JobRow]:
    """The reported jobs that are active and held by this worker, or by nobody in particular."""
    if not beat_.active:
        return {}
    mine = Q(pk__in=beat_.active, state=State.ACTIVE) & (Q(worker_id=beat_.worker_id) | Q(worker_id=""))
    return {row["id"]: row for row in sql.store(using).lock_where(mine)}


def _cancelled(ids: list[uuid.UUID], using: str) -> set[uuid.UUID]:
    if not ids:
        return set()
    return set(Job.objects.using(using).filter(pk__in=ids, state=State.CANCELLED).values_list("pk", flat=True))
