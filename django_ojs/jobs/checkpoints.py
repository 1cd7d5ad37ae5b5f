"""Checkpoints (orchestration 5.2): a running job saves its state, and its next attempt goes on from it.

A job has one checkpoint; each save replaces it as a whole. Saves of one job take turns by the lock of its row, whose
`resumable` says whether there is one: FETCH asks for checkpoints only where a claimed job has one. A save that names
its worker is refused where another one has the job; with the attempt, where the job is not active in that attempt.
A checkpoint goes some minutes after its job was completed or cancelled (`prune`), and stays with a dead letter.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import time
import uuid
from collections.abc import Collection, Hashable, Mapping, Sequence
from typing import Any, NamedTuple

from django.db.models import ExpressionWrapper, F, TextField

from django_ojs import clock, jsontext, states, tenants
from django_ojs.conf import ojs_settings
from django_ojs.database import atomic, database, retried
from django_ojs.errors import Conflict, NotFound, PayloadTooLarge, ReservationLost
from django_ojs.events import catalogue, log
from django_ojs.hooks import replaceable
from django_ojs.jobs import compensations, durableevents, promote, steps
from django_ojs.lifecycle.reservations import moved_forward
from django_ojs.models import Job, JobCheckpoint
from django_ojs.models.fields import RawJSON
from django_ojs.models.job import JobRow
from django_ojs.rules import replaylog
from django_ojs.rules.durations import format_instant
from django_ojs.rules.rows import holds
from django_ojs.rules.steps import Step
from django_ojs.states import State
from django_ojs.store import store_of

#: The largest `sequence` and `step_index` that a caller may name: every JSON reader has it as an exact number.
MAX_NUMBER = 2**53 - 1
#: Where there is no state; None is one.
NOTHING: Any = object()
#: What a save reads of the job's row.
_COLUMNS = ("id", "type", "queue", "state", "attempt", "worker_id", "trace_id", "workflow_id", "enqueued_at",
            "started_at", "visibility_ms", "heartbeat_ms", "lease_ms", "visible_until", "timeout_at", "deadline_at",
            "wake_at", "resumable")  # fmt: skip
#: Seconds for which a checkpoint is readable after the end of its job, whatever the site sets.
LEAST_TTL = 60.0
#: Checkpoints among which one statement looks for those of ended jobs.
_STRETCH = 10_000
#: The ends after which a checkpoint is not kept: a discarded job may be retried.
_CLOSED = (State.COMPLETED, State.CANCELLED)


@dataclasses.dataclass(frozen=True, slots=True)
class NewCheckpoint:
    """What a caller saves of a job.

    Attributes:
        state: any JSON value, None too.
        step_index, metadata: what a client keeps beside the state: a number, and texts by name.
        sequence: must be greater than the stored one; None: the next one.
        worker_id, attempt: whose run it is, where known: one that does not hold the job is refused.
    """

    job_id: uuid.UUID
    state: Any
    step_index: int | None = None
    metadata: Mapping[str, str] | None = None
    sequence: int | None = None
    worker_id: str = ""
    attempt: int | None = None


class Kept(NamedTuple):
    """The checkpoint of a claimed job in its row: `state` is JSON text, read only where it is needed."""

    state: str
    sequence: int


@retried
def save(new: NewCheckpoint, *, using: str | None = None) -> JobCheckpoint:
    """Replace the checkpoint of a job; return it. A save by the holder renews the reservation, as a heartbeat does.

    Raises PayloadTooLarge, NotFound, and Conflict: the job has ended, the `sequence` is not greater than the stored
    one, or a setting asks for the holder; `ReservationLost`, which is one, where the worker does not hold the job.
    Whatever it raises, the checkpoint is as it was.
    """
    using = database(using)
    texts = _texts(new)
    with atomic(using=using):
        store_of(using).begin_writing()
        return _store(_locked(new.job_id, using), new, texts, clock.now(using), using)


def save_locked(row: JobRow, new: NewCheckpoint, now: dt.datetime, using: str) -> JobCheckpoint:
    """`save` for a job whose whole row the caller has locked."""
    return _store(row, new, _texts(new), now, using)


@replaceable("read_checkpoint")
def read(job_id: uuid.UUID, *, using: str | None = None) -> JobCheckpoint | None:
    """The checkpoint of a job; None where it has none. Raises NotFound for an unknown job."""
    using = database(using)
    found = JobCheckpoint.objects.using(using).filter(pk=job_id).first()
    if found is None and not Job.objects.using(using).filter(pk=job_id).exists():
        raise NotFound.resource("job", str(job_id))
    return found


@retried
def clear(
    job_id: uuid.UUID, *, worker_id: str = "", attempt: int | None = None, with_steps: bool = False,
    using: str | None = None,
) -> bool:  # fmt: skip
    """Delete the checkpoint of a job, in whatever state that is; return whether there was one. The next save has the
    sequence 1 again. `with_steps`: what a durable handler has recorded, too, so that its next run starts over; a job
    that waited for an event or for other jobs runs at once, because it no longer waits. What a job that has failed did
    is undone first.

    Raises NotFound; ReservationLost where a worker or an attempt is named that does not hold the job; Conflict where
    the job that undoes it cannot be enqueued.
    """
    using = database(using)
    with atomic(using=using):
        store_of(using).begin_writing()
        row = _locked(job_id, using, None if with_steps else _COLUMNS)
        _check_holder(row, worker_id, attempt)
        if not with_steps:
            return bool(delete([row], using))
        if refused := compensations.undo_first([row], using=using):
            raise refused[job_id]
        waited = row["state"] == State.RETRYABLE and durableevents.waiting([job_id], using=using)
        recorded = steps.delete([job_id], using=using)
        if recorded and row["state"] == State.ACTIVE:
            steps.mark_deleted(row, clock.now(using), using=using)
        if waited:
            promote.end_waits(store_of(using).lock([job_id]), clock.now(using), "api", using)
        return bool(delete([row], using) + recorded)


def start_over(rows: Collection[JobRow], using: str) -> int:
    """Delete the checkpoints and the recorded steps of these locked jobs; return how many there were."""
    return delete(rows, using) + steps.delete([row["id"] for row in rows], using=using)


def delete(rows: Collection[JobRow], using: str) -> int:
    """Delete the checkpoints of these locked jobs; return how many there were."""
    ids = [row["id"] for row in rows if row["resumable"]]
    if not ids:
        return 0
    gone: int = JobCheckpoint.objects.using(using).filter(pk__in=ids)._raw_delete(using)
    Job.objects.using(using).filter(pk__in=ids).update(resumable=None)
    for row in rows:
        row["resumable"] = None
    return gone


def attach(rows: Sequence[JobRow], using: str) -> None:
    """Add `checkpoint`, which `envelope.render` and the context of a handler show, to those of the rows that have one:
    in one statement, and in none where no row says that there is one."""
    marked = {row["id"]: row for row in rows if row.get("resumable")}
    if not marked:
        return
    text = ExpressionWrapper(F("state"), output_field=TextField())
    found = JobCheckpoint.objects.using(using).filter(pk__in=list(marked)).values_list("pk", text, "sequence")
    for pk, state, sequence in found:
        marked[pk]["checkpoint"] = Kept(state, sequence)


def resume(found: JobCheckpoint | None, recorded: Sequence[Step] = ()) -> dict[str, Any]:
    """What a client is told that asks where to go on: the one place that makes this answer.

    The `recorded` steps of a durable job are in its metadata, as the log from which other clients go on (CKP-19).
    """
    told = [step for step in recorded if step.has_ended and step.kind in replaylog.KINDS]
    if found is None and not told:
        return {"has_checkpoint": False}
    kept: dict[str, Any] = {"state": None, "step_index": None, "metadata": {}, "sequence": 0}
    latest = max((step.ended_at for step in told if step.ended_at), default=None)
    if found is not None:
        kept = {"state": found.state, "step_index": found.step_index, "metadata": metadata_of(found)}
        kept |= {"sequence": found.sequence}
        latest = found.created_at
    assert latest is not None
    theirs = replaylog.read(kept["metadata"].get(replaylog.LOG), latest)
    known = {step.name for step in theirs}
    if ours := [step for step in told if step.name not in known]:  # else the client's log stays as it was sent
        log, attempt = replaylog.write([*theirs, *ours]), str(max(step.attempt for step in ours))
        kept["metadata"] = {**kept["metadata"], replaylog.LOG: log, replaylog.ATTEMPT: attempt}
    return {"has_checkpoint": True, "checkpoint": {**kept, "created_at": format_instant(latest)}}


def metadata_of(found: JobCheckpoint) -> dict[str, str]:
    """What a client kept beside the state, as it was sent."""
    kept: dict[str, str] = found.metadata or {}
    return kept


def prune(now: dt.datetime, batch: int, using: str) -> int:
    """Delete at most `batch` checkpoints of jobs that were completed or cancelled `CHECKPOINT_TTL` ago; return how
    many. A pass looks at all checkpoints, as long as a search may take; the next one goes on where it ended."""
    edge = now - dt.timedelta(seconds=max(ojs_settings.CHECKPOINT_TTL, LEAST_TTL))
    listed = _ended(edge, batch, using)
    if not listed:
        return 0
    with atomic(using=using):
        store = store_of(using)
        store.begin_writing()
        columns = ("id", "state", "finished_at", "resumable")
        rows = store.lock(listed, skip_locked=True, columns=columns)
        return delete([row for row in rows if row["state"] in _CLOSED and row["finished_at"] <= edge], using)


#: Behind which job this process goes on to look for ended ones.
_reached: dict[Hashable, uuid.UUID] = {}


def forget_reached() -> None:
    """Drop what this process remembers: the next pass of `prune` begins with the oldest job."""
    _reached.clear()


def _ended(edge: dt.datetime, batch: int, using: str) -> list[uuid.UUID]:
    """Jobs with a checkpoint that ended before `edge`, `batch` at most."""
    scope = tenants.scope(using)
    after, found = _reached.pop(scope, None), list[uuid.UUID]()
    until = time.monotonic() + ojs_settings.SEARCH_SECONDS
    while True:
        stretch = JobCheckpoint.objects.using(using).order_by("pk")
        stretch = stretch if after is None else stretch.filter(pk__gt=after)
        rows = list(stretch.values_list("pk", "job__state", "job__finished_at")[:_STRETCH])
        for pk, state, finished_at in rows:
            if state in _CLOSED and finished_at is not None and finished_at <= edge:
                found.append(pk)
                if len(found) == batch:
                    _reached[scope] = pk
                    return found
        if len(rows) < _STRETCH:
            return found
        after = rows[-1][0]
        if time.monotonic() >= until:
            _reached[scope] = after
            return found


class _Texts(NamedTuple):
    """What a save writes, as JSON, and the bytes that it takes."""

    state: str
    metadata: str
    size: int


def _texts(new: NewCheckpoint) -> _Texts:
    """Raises PayloadTooLarge; TypeError and ValueError for what JSON does not know."""
    state = jsontext.dumps(new.state)
    metadata = jsontext.dumps(dict(new.metadata)) if new.metadata else ""
    size = jsontext.byte_length(state) + jsontext.byte_length(metadata)
    if size > ojs_settings.MAX_CHECKPOINT_BYTES:
        raise PayloadTooLarge(
            f"The checkpoint has {size} bytes, more than the {ojs_settings.MAX_CHECKPOINT_BYTES} allowed.",
            details={"actual_bytes": size, "max_bytes": ojs_settings.MAX_CHECKPOINT_BYTES, "field": "checkpoint"},
            hint="Store large data elsewhere and save a reference to it. The former checkpoint is still there.",
        )
    return _Texts(state, metadata, size)


def _locked(job_id: uuid.UUID, using: str, columns: Sequence[str] | None = _COLUMNS) -> JobRow:
    rows = store_of(using).lock([job_id], columns=columns)
    if not rows:
        raise NotFound.resource("job", str(job_id))
    return rows[0]


def _store(row: JobRow, new: NewCheckpoint, texts: _Texts, now: dt.datetime, using: str) -> JobCheckpoint:
    """Write the checkpoint of a locked job, unless something speaks against it."""
    _check_holder(row, new.worker_id, new.attempt)
    _check_state(row, new)
    stored = JobCheckpoint.objects.using(using).filter(pk=row["id"])
    # The row is locked, too: a transaction that the caller began long ago would read an old version of it.
    before = stored.select_for_update().values_list("sequence", flat=True).first() if row["resumable"] else None
    if new.sequence is not None and before is not None and new.sequence <= before:
        raise _not_greater(row, new.sequence, before)
    sequence = (before or 0) + 1 if new.sequence is None else new.sequence
    if sequence > MAX_NUMBER:
        raise _is_last(row, sequence - 1)
    values = {
        "state": RawJSON(texts.state), "metadata": RawJSON(texts.metadata), "step_index": new.step_index,
        "sequence": sequence, "size": texts.size, "created_at": now,
    }  # fmt: skip
    if before is None:
        JobCheckpoint.objects.using(using).bulk_create([JobCheckpoint(job_id=row["id"], **values)])
    else:
        stored.update(**values)
    _mark(row, new, now, using)
    saved = JobCheckpoint(job_id=row["id"], **values)
    saved.state, saved.metadata = new.state, dict(new.metadata) if new.metadata else None
    if ojs_settings.EXTENSION_EVENTS:
        facts = {"sequence": saved.sequence, "size_bytes": saved.size}
        log.append([catalogue.of_job("job.checkpointed", row, now, "workers", worker_id=new.worker_id, **facts)], using)
    return saved


def _mark(row: JobRow, new: NewCheckpoint, now: dt.datetime, using: str) -> None:
    """Let the job's row say that there is a checkpoint; and renew the reservation where the holder saved it, as a
    heartbeat does. One statement, or none."""
    columns: tuple[str, ...] = () if row["resumable"] else ("resumable",)
    row["resumable"] = True
    if new.worker_id and holds(row, new.worker_id, new.attempt) and moved_forward([row], None, now, own=False):
        columns += ("visible_until", "wake_at")
    if columns:
        store_of(using).update_jobs(State(row["state"]), [row], columns)
    elif row["state"] == State.ACTIVE:
        store_of(using).certify(Job.objects.using(using).filter(pk=row["id"]), "visible_until")


def _check_state(row: JobRow, new: NewCheckpoint) -> None:
    """Raise Conflict where the job has ended, or where a setting lets only the holder of an active job save."""
    state, job_id = row["state"], str(row["id"])
    details = {"job_id": job_id, "current_state": state, "attempted": "checkpoint"}
    if state in states.TERMINAL:
        raise Conflict(f"Cannot checkpoint job '{job_id}': it is {state}.", details=details)
    if state != State.ACTIVE:
        if ojs_settings.STRICT_CHECKPOINTS:
            details["expected_state"] = State.ACTIVE.value
            raise Conflict(f"Cannot checkpoint job '{job_id}': it is {state}, not active.", details=details)
    elif not new.worker_id and (ojs_settings.STRICT_CHECKPOINTS or ojs_settings.STRICT_OWNERSHIP):
        raise Conflict(
            f"Cannot checkpoint job '{job_id}' without a worker_id: it is active.",
            details=details | {"field": "worker_id"},
            hint="Send the worker_id of the FETCH.",
        )


def _check_holder(row: JobRow, worker_id: str, attempt: int | None) -> None:
    """Raise ReservationLost where another worker has the job, or had it last; with an attempt also where the job is not
    active in it."""
    other = worker_id and row["worker_id"] and worker_id != row["worker_id"]
    if other or (attempt is not None and not holds(row, worker_id, attempt)):
        raise ReservationLost.of(str(row["id"]), row["state"], "checkpoint", worker_id)


def _not_greater(row: JobRow, given: int, stored: int) -> Conflict:
    details = {**_sequence_of(row), "sequence": given, "stored_sequence": stored}
    return Conflict(
        f"Cannot checkpoint job '{row['id']}': the sequence {given} is not greater than the stored {stored}.",
        details=details,
        hint="Read the checkpoint, or leave the sequence out.",
    )


def _is_last(row: JobRow, stored: int) -> Conflict:
    return Conflict(
        f"Cannot checkpoint job '{row['id']}': the stored sequence {stored} is the last that there is.",
        details={**_sequence_of(row), "stored_sequence": stored},
        hint="Delete the checkpoint: the next save has the sequence 1.",
    )


def _sequence_of(row: JobRow) -> dict[str, Any]:
    job_id, state = str(row["id"]), row["state"]
    return {"job_id": job_id, "current_state": state, "attempted": "checkpoint", "field": "sequence"}
