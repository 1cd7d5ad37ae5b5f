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
from django_ojs.groupcommit import CommitGroup
from django_ojs.lifecycle.reservations import moved_forward, renew, save_renewed
from django_ojs.lifecycle.transitions import in_turns
from django_ojs.models import Job, Worker
from django_ojs.models.job import JobRow
from django_ojs.rules.rows import held_until, holds
from django_ojs.states import State
from django_ojs.statistics import workerminutes
from django_ojs.store import store_of
from django_ojs.workerregistry import registration
from django_ojs.workerregistry.ownership import Principal
from django_ojs.workerregistry.registration import Introduction

#: The states that a worker reports.
STATES = ("running", "quiet", "terminate")
#: The event of a heartbeat names all queues of the worker. If these are more, one a minute is written.
MANY_QUEUES = 100


@dataclasses.dataclass(slots=True)
class Beat:
    """A heartbeat. `visibility_ms` None renews each job for as long as its claim was granted.

    `renew_own` False leaves jobs alone that have a reservation length or a heartbeat timeout of their own: only their
    handler extends those. `attempts` says which attempt of an active job the worker runs, where it knows
    that: a later one is another run, and the job is lost to this one. `incarnation` names the process behind the
    worker's name (`registration.meet`), `who` the caller.
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
    who: Principal | None = None


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

    Raises `NameInUse` if another process than `incarnation` has the name, and PermissionDenied if another principal
    than `who` has.
    """
    (answer,) = retried(_beat)([beat_], skip_locked=True, using=database(using))
    if isinstance(answer, Exception):
        raise answer
    return answer


def beat_with_others(beat_: Beat, *, using: str | None = None) -> BeatAnswer:
    """`beat`, together with the heartbeats that other threads report at this moment."""
    return _beats.call(beat_, database(using))


def _beat_each(beats: Sequence[Beat], *, using: str) -> Sequence[BeatAnswer | Exception]:
    """BEAT for several callers. Of several heartbeats of one worker each counts after the one before."""
    several = len(beats) == 1 and len(beats[0].active) > 1
    return in_turns(
        beats, lambda some: _beat(some, skip_locked=several, using=using), about=lambda one: one.worker_id
    )  # fmt: skip


_beats: CommitGroup[Beat, BeatAnswer] = CommitGroup(_beat_each)


def _beat(beats: Sequence[Beat], *, skip_locked: bool, using: str) -> list[BeatAnswer | Exception]:
    """BEAT for different workers: one transaction, and of the statements only one for each worker.

    With `skip_locked` it does not wait for a job that another transaction has locked, so that the others are renewed in
    time: the next heartbeat renews that. It is not `lost`.
    """
    with atomic(using=using):
        now = clock.now(using)
        records: list[Record] = []
        given = {beat.worker_id: Introduction(beat.info, beat.incarnation, beat.who) for beat in beats}
        met = registration.register_many(given, now, using)
        workers: dict[str, Worker] = {}
        sampled: list[Worker] = []
        for beat in beats:
            found = met[beat.worker_id]
            if isinstance(found, Exception):
                continue
            worker, more = found
            workers[beat.worker_id] = worker
            is_first = workerminutes.is_due(worker.last_heartbeat_at, now)
            if is_first:
                sampled.append(worker)
            records += [*more, *_apply_beat(worker, beat, now, told=is_first or len(worker.queues) <= MANY_QUEUES)]
            worker.save_changed(using)
        workerminutes.record_minutes(sampled, now, using)
        held = _held([beat for beat in beats if beat.worker_id in workers], using, skip_locked=skip_locked)
        moved: dict[uuid.UUID, JobRow] = {}
        extended: dict[str, list[uuid.UUID]] = {}
        for beat in beats:
            rows = list(held.get(beat.worker_id, {}).values())
            renewed = moved_forward(rows, beat.visibility_ms, now, own=beat.renew_own)
            extended[beat.worker_id] = [row["id"] for row in renewed]
            moved |= {row["id"]: row for row in renewed}
            records += [catalogue.heartbeat(row, now, beat.worker_id) for row in renewed]
        save_renewed(list(moved.values()), using)
        log.append(records, using)
        gone = {
            worker_id: [job_id for job_id in beat.active if job_id not in held.get(worker_id, {})]
            for worker_id, beat in ((beat.worker_id, beat) for beat in beats if beat.worker_id in workers)
        }
        known = _known([job_id for ids in gone.values() for job_id in ids], using)
        cancelled = {job_id for job_id, row in known.items() if row["state"] == State.CANCELLED}

    def answer(beat: Beat) -> BeatAnswer | Exception:
        found = met[beat.worker_id]
        if isinstance(found, Exception):
            return found
        return BeatAnswer(
            state=registration.effective_state(found[0]),
            extended=extended[beat.worker_id],
            cancelled=[job_id for job_id in gone[beat.worker_id] if job_id in cancelled],
            lost=[
                job_id
                for job_id in gone[beat.worker_id]
                if job_id not in cancelled and not _is_its(known.get(job_id), beat)
            ],
            server_time=now,
            restart=found[0].directive == Worker.Directive.RESTART,
        )

    return [answer(beat) for beat in beats]


@retried
def extend(
    job_id: uuid.UUID, worker_id: str, *, attempt: int | None = None, visibility_ms: int | None = None,
    using: str | None = None,
) -> bool | None:  # fmt: skip
    """Renew one reservation from inside its handler. False when the worker no longer holds the job, or not for this
    attempt; None when another transaction has locked it, so that nothing was changed."""
    using = database(using)
    with atomic(using=using):
        now = clock.now(using)
        beat = Beat(worker_id, [job_id], attempts={} if attempt is None else {job_id: attempt})
        rows = list(_held([beat], using, skip_locked=True)[worker_id].values())
        renewed = renew(rows, visibility_ms, now, using)
        log.append([catalogue.heartbeat(row, now, worker_id) for row in renewed], using)
    return True if renewed else None if _is_its(_known([job_id], using).get(job_id), beat) else False


@retried
def extend_silent(claims: Mapping[uuid.UUID, tuple[str, int]], *, using: str) -> None:
    """Renew the reservations of these jobs, each given with its worker and attempt, for workers that have never sent a
    heartbeat: none becomes shorter, and a job with a heartbeat timeout needs heartbeats that name it. Jobs that others
    have by now, and those that another transaction has locked, are left alone."""
    workers = {worker_id for worker_id, _ in claims.values()}
    known = Worker.objects.using(using).filter(pk__in=workers, last_heartbeat_at__isnull=False)
    silent = workers - set(known.values_list("pk", flat=True))
    if not silent:
        return
    attempts = {job_id: attempt for job_id, (_, attempt) in claims.items()}
    beats = {worker_id: Beat(worker_id, attempts=attempts) for worker_id in silent}
    for job_id, (worker_id, _) in claims.items():
        if worker_id in beats:
            beats[worker_id].active.append(job_id)
    with atomic(using=using):
        now = clock.now(using)
        held = _held(list(beats.values()), using, skip_locked=True)
        rows = [
            row
            for found in held.values()
            for row in found.values()
            if row["heartbeat_ms"] is None and row["visible_until"] < held_until(row, row["lease_ms"], now)
        ]
        log.append([catalogue.heartbeat(row, now, row["worker_id"]) for row in renew(rows, None, now, using)], using)


def _apply_beat(worker: Worker, beat_: Beat, now: dt.datetime, *, told: bool) -> list[Any]:
    """Take over what the heartbeat reports; its events, that of the heartbeat itself if it is to be `told`."""
    reported = beat_.state if beat_.state in STATES else "running"
    was = registration.effective_state(worker)
    registration.take_report(worker, reported)
    worker.last_heartbeat_at = now
    worker.active_jobs = beat_.active_count if beat_.active_count is not None else len(beat_.active)
    facts: dict[str, Any] = {"active_jobs": worker.active_jobs, "queues": worker.queues, "state": reported}
    for name in ("memory_mb", "cpu_percent"):
        if beat_.info.get(name) is not None:
            facts[name] = beat_.info[name]
    records = [catalogue.of_worker("worker.heartbeat", worker.pk, now, **facts)] if told else []
    if was == "running" != registration.effective_state(worker):
        records.append(registration.turned_quiet(worker, now))
    return records


def _held(beats: Sequence[Beat], using: str, *, skip_locked: bool = False) -> dict[str, dict[uuid.UUID, JobRow]]:
    """By worker: the reported runs whose jobs are active and held by it, or by no worker in particular."""
    reported = {job_id for beat in beats for job_id in beat.active}
    if not reported:
        return {beat.worker_id: {} for beat in beats}
    mine = Q(pk__in=reported, state=State.ACTIVE, worker_id__in=["", *(beat.worker_id for beat in beats)])
    rows = {row["id"]: row for row in store_of(using).lock_where(mine, skip_locked=skip_locked)}
    return {
        beat.worker_id: {
            job_id: rows[job_id]
            for job_id in sorted(rows.keys() & beat.active)
            if holds(rows[job_id], beat.worker_id, beat.attempts.get(job_id))
        }
        for beat in beats
    }


def _known(ids: list[uuid.UUID], using: str) -> dict[uuid.UUID, dict[str, Any]]:
    """What became of jobs that were not renewed."""
    if not ids:
        return {}
    rows = Job.objects.using(using).filter(pk__in=ids).values("pk", "state", "worker_id", "attempt")
    return {row["pk"]: dict(row) for row in rows}


def _is_its(row: Mapping[str, Any] | None, beat: Beat) -> bool:
    """Whether the worker has the job all the same: another transaction had locked it."""
    return row is not None and holds(row, beat.worker_id, beat.attempts.get(row["pk"]))
