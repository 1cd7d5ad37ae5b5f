"""BEAT (core 7.5): a worker says that it is alive, keeps its jobs, and learns what it is to do."""

from __future__ import annotations

import dataclasses
import datetime as dt
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from django.db.models import Q

from django_ojs import clock
from django_ojs.database import atomic, database, retried
from django_ojs.events import catalogue, log
from django_ojs.events.catalogue import Record
from django_ojs.groupcommit import Group
from django_ojs.jobs.transitions import in_rounds, wake_at
from django_ojs.models import Job, Worker
from django_ojs.models.job import JobRow
from django_ojs.states import State
from django_ojs.statistics import workerminutes
from django_ojs.store import store_of
from django_ojs.store.base import held_until, holds
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
    """What the server answers. `cancelled`: reported jobs that were cancelled; `lost`: no longer held.

    `restart`: the worker is to terminate, and its supervisor to start another process in its place.
    """

    state: str
    extended: list[uuid.UUID]
    cancelled: list[uuid.UUID]
    lost: list[uuid.UUID]
    server_time: dt.datetime
    restart: bool = False

    @property
    def directive(self) -> str:
        """The same in the words of the reference servers."""
        return "continue" if self.state == "running" else self.state


def beat(beat_: Beat, *, using: str | None = None) -> BeatAnswer:
    """Record the heartbeat, renew the reservations of the jobs it names, and answer with the directive.

    Raises `NameInUse` if another process than `incarnation` has the name.
    """
    (answer,) = retried(_beat)([beat_], using=database(using))
    if isinstance(answer, Exception):
        raise answer
    return answer


def beat_with_others(beat_: Beat, *, using: str | None = None) -> BeatAnswer:
    """`beat`, together with the heartbeats that other threads report at this moment."""
    return _beats.call(beat_, database(using))


def _beat_each(beats: Sequence[Beat], *, using: str) -> Sequence[BeatAnswer | Exception]:
    """BEAT for several callers. Of several heartbeats of one worker each counts after the one before."""
    hurried = len(beats) > 1
    return in_rounds(beats, lambda some: _beat(some, hurried=hurried, using=using), about=lambda one: one.worker_id)


_beats: Group[Beat, BeatAnswer] = Group(_beat_each)


def _beat(beats: Sequence[Beat], *, hurried: bool = False, using: str) -> list[BeatAnswer | Exception]:
    """BEAT for different workers: one transaction, and of the statements only one for each worker.

    `hurried`: rather than wait for a lock for long it raises the error of a lost race.
    """
    with atomic(using=using):
        if hurried:
            store_of(using).lose_patience()
        now = clock.now(using)
        records: list[Record] = []
        met = registration.meet_each({beat.worker_id: (beat.info, beat.incarnation) for beat in beats}, now, using)
        workers: dict[str, Worker] = {}
        sampled: list[Worker] = []
        for beat in beats:
            found = met[beat.worker_id]
            if isinstance(found, Exception):
                continue
            worker, more = found
            workers[beat.worker_id] = worker
            if workerminutes.is_due(worker.last_heartbeat_at, now):
                sampled.append(worker)
            records += [*more, *_note(worker, beat, now)]
            worker.save(using=using)
        workerminutes.note(sampled, now, using)
        held = _held([beat for beat in beats if beat.worker_id in workers], using)
        moved: dict[uuid.UUID, JobRow] = {}
        extended: dict[str, list[uuid.UUID]] = {}
        for beat in beats:
            rows = list(held.get(beat.worker_id, {}).values())
            renewed = _renew(rows, beat.visibility_ms, now, own=beat.renew_own)
            extended[beat.worker_id] = [row["id"] for row in renewed]
            moved |= {row["id"]: row for row in renewed}
            records += [catalogue.heartbeat(row, now, beat.worker_id) for row in renewed]
        _save_renewed(list(moved.values()), using)
        log.append(records, using)
        gone = {
            worker_id: [job_id for job_id in beat.active if job_id not in held.get(worker_id, {})]
            for worker_id, beat in ((beat.worker_id, beat) for beat in beats if beat.worker_id in workers)
        }
        cancelled = _cancelled([job_id for ids in gone.values() for job_id in ids], using)

    def answer(beat: Beat) -> BeatAnswer | Exception:
        found = met[beat.worker_id]
        if isinstance(found, Exception):
            return found
        return BeatAnswer(
            state=registration.mood(found[0]),
            extended=extended[beat.worker_id],
            cancelled=[job_id for job_id in gone[beat.worker_id] if job_id in cancelled],
            lost=[job_id for job_id in gone[beat.worker_id] if job_id not in cancelled],
            server_time=now,
            restart=found[0].directive == Worker.Directive.RESTART,
        )

    return [answer(beat) for beat in beats]


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
        held = _held([Beat(worker_id, [job_id], attempts=attempts)], using)
        rows = list(held[worker_id].values())
        renewed = renew(rows, visibility_ms, now, using)
        log.append([catalogue.heartbeat(row, now, worker_id) for row in renewed], using)
    return bool(renewed)


def renew(rows: list[JobRow], ms: int | None, now: dt.datetime, using: str) -> list[JobRow]:
    """Move the reservations of locked active jobs forward from now; return the rows."""
    moved = _renew(rows, ms, now)
    _save_renewed(moved, using)
    return moved


def _renew(rows: list[JobRow], ms: int | None, now: dt.datetime, *, own: bool = True) -> list[JobRow]:
    """`renew` in memory. Without `own` only of jobs with no length of their own; return the rows that were moved."""
    moved = [row for row in rows if own or (row["visibility_ms"] is None and row["heartbeat_ms"] is None)]
    for row in moved:
        row["visible_until"] = held_until(row, ms or row["lease_ms"], now)
        row["wake_at"] = wake_at(row)
    return moved


def _save_renewed(rows: list[JobRow], using: str) -> None:
    store_of(using).update_jobs(State.ACTIVE, rows, ("visible_until", "wake_at"))


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


def _held(beats: Sequence[Beat], using: str) -> dict[str, dict[uuid.UUID, JobRow]]:
    """By worker: the reported runs whose jobs are active and held by it, or by no worker in particular."""
    reported = {job_id for beat in beats for job_id in beat.active}
    if not reported:
        return {beat.worker_id: {} for beat in beats}
    mine = Q(pk__in=reported, state=State.ACTIVE, worker_id__in=["", *(beat.worker_id for beat in beats)])
    rows = {row["id"]: row for row in store_of(using).lock_where(mine)}
    return {
        beat.worker_id: {
            job_id: rows[job_id]
            for job_id in sorted(rows.keys() & beat.active)
            if holds(rows[job_id], beat.worker_id, beat.attempts.get(job_id))
        }
        for beat in beats
    }


def _cancelled(ids: list[uuid.UUID], using: str) -> set[uuid.UUID]:
    if not ids:
        return set()
    return set(Job.objects.using(using).filter(pk__in=ids, state=State.CANCELLED).values_list("pk", flat=True))
