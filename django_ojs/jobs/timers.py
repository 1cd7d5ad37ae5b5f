"""Changes the jobs whose time has come: PROMOTE, EXPIRE, the timeouts of binding 5, and lost reservations.

Every job that time will change carries the instant in `wake_at`, behind one index. The scheduler, all the time,
and each FETCH, for the waiting jobs of its queues, take those whose instant has come; `_change` decides what becomes of
each.

In maintenance mode nothing is promoted. Everything else goes on, so that no caller waits in vain: running jobs
lose their reservations and time out, and jobs whose time has run out are discarded.
"""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

from django.db.models import Min, Q

from django_ojs import clock
from django_ojs.conf import ojs_settings
from django_ojs.database import atomic, database, piece_by_piece, retried
from django_ojs.events import catalogue, log
from django_ojs.events.catalogue import Record
from django_ojs.jobs.finish import apply_retry_policy
from django_ojs.lifecycle import transitions
from django_ojs.lifecycle.ended import jobs_ended
from django_ojs.lifecycle.waking import wake_workers
from django_ojs.models import Job, Worker
from django_ojs.models.job import JobRow
from django_ojs.queues import maintenance
from django_ojs.rules import errorobjects
from django_ojs.states import State, Verb
from django_ojs.store import store_of
from django_ojs.store.conditions import ended
from django_ojs.workerregistry import deaths, directory

#: Workflows that are tried by themselves in one pass, where another transaction holds what one of them needs.
_PIECES = 5


@retried
def apply_due(
    *, limit: int = 500, spare_active: bool = False, ids: Sequence[uuid.UUID] | None = None, using: str | None = None
) -> int:
    """Do what is due, for at most `limit` jobs; return how many there were. Locked jobs are left alone.

    `spare_active`: leave active jobs alone, too; so are they where the clock was set a moment ago, since their workers
    may have renewed them by another time. `ids`: look at these jobs only.
    """
    using = database(using)
    clock.look(using)
    condition = ~Q(state=State.ACTIVE) if spare_active or clock.was_set_lately(using) else Q()
    if maintenance.is_on(using=using):
        condition &= ~Q(state__in=[State.SCHEDULED, State.RETRYABLE]) | ended(clock.now(using))
    if ids is not None:
        condition &= Q(pk__in=ids)

    def pieces() -> Iterator[Q]:
        yield Q(workflow_id__isnull=True)
        members = Job.objects.using(using).filter(condition, wake_at__lte=clock.now(using), workflow_id__isnull=False)
        for flow in members.order_by("?").values_list("workflow_id", flat=True)[:_PIECES]:
            yield Q(workflow_id=flow)

    return piece_by_piece(
        lambda part, patient: _apply_due(condition & part, using, limit, patient=patient), pieces, using
    )


def apply_due_waiting(queues: Sequence[str], using: str) -> int:
    """`apply_due` for the waiting jobs of these queues, as part of a FETCH: promote and expire them."""
    waiting = [State.SCHEDULED, State.RETRYABLE, State.AVAILABLE]
    return _apply_due(Q(queue__in=list(queues), state__in=waiting), using, limit=500)


def next_due(*, using: str | None = None) -> dt.datetime | None:
    """The earliest instant at which time will change a job; None when there is none."""
    found: dt.datetime | None = Job.objects.using(database(using)).aggregate(at=Min("wake_at"))["at"]
    return found


def _apply_due(condition: Q, using: str, limit: int, *, patient: bool = True) -> int:
    """Lock the jobs whose instant has come, but for those that are locked, and do what is due; return how many.

    `patient` False: fail soon where another transaction holds a workflow, or a queue into which it goes on.
    """
    with atomic(using=using):
        now = clock.now(using)
        store = store_of(using)
        rows = store.lock_where(condition & Q(wake_at__lte=now), limit=limit, skip_locked=True)
        if not rows:
            return 0
        if not patient and any(row["workflow_id"] for row in rows):
            store.set_lock_timeout()
        changes: dict[Verb | State, tuple[list[JobRow], Sequence[str]]] = {
            State.SCHEDULED: ([], transitions.PROMOTE_COLUMNS), State.RETRYABLE: ([], transitions.AVAILABLE_COLUMNS),
            Verb.EXPIRE: ([], transitions.DISCARD_COLUMNS), Verb.FAIL: ([], transitions.FAIL_COLUMNS),
            Verb.RESCUE: ([], transitions.LOST_COLUMNS),
        }  # fmt: skip
        records: list[Record] = []
        holders = {row["id"]: row["worker_id"] for row in rows if row["state"] == State.ACTIVE}
        dead = _dead_workers(holders.values(), now, using)
        for row in sorted(rows, key=lambda row: (row["wake_at"], row["created_at"], row["id"])):
            guard, events = _change(row, now, using)
            changes[guard][0].append(row)
            records += events
            if guard is Verb.RESCUE and (worker := dead.get(holders[row["id"]])) is not None:
                deaths.suspect(row)
                deaths.record_deaths([row], worker.pk, deaths.of_silent(worker), now, using, alone=worker.held == 1)
        for guard, (changed, columns) in changes.items():
            store.update_jobs(guard, changed, columns)
        log.append(records, using)
        jobs_ended(rows, now, using)
        wake_workers(using)
        return len(rows)


def _dead_workers(ids: Collection[str], now: dt.datetime, using: str) -> dict[str, Worker]:
    """Those of our own workers that have been silent for so long that they died, with what they hold. What a worker
    lost that lives is no reason to run it alone: its handler did not ask to keep it."""
    edge = now - dt.timedelta(seconds=3 * ojs_settings.HEARTBEAT_INTERVAL)
    found = Worker.objects.using(using).filter(pk__in=set(ids) - {""}, last_heartbeat_at__lt=edge)
    found = found.exclude(incarnation="")
    return {worker.pk: worker for worker in directory.with_held(found)} if ids else {}


def _change(row: JobRow, now: dt.datetime, using: str) -> tuple[Verb | State, list[Record]]:
    """What is due for this job: change the row, name the guard of its update, return the events."""
    active, over = row["state"] == State.ACTIVE, _passed(row, now)
    if over("deadline_at"):
        return Verb.FAIL if active else Verb.EXPIRE, transitions.give_up(row, now, "scheduler")
    if active:
        if over("timeout_at"):
            return Verb.FAIL, _time_out(row, now)
        if row["heartbeat_ms"] is not None and row["heartbeat_ms"] <= row["lease_ms"]:
            return Verb.FAIL, _stall(row, now)
        return Verb.RESCUE, transitions.lose(
            row, now, using, "visibility_timeout", "The reservation expired unanswered."
        )
    if over("expires_at"):
        return Verb.EXPIRE, transitions.expire(
            row, "expired", "The job expired before it started.", row["expires_at"], now
        )
    if over("start_by") and row["attempt"] == 0:
        return Verb.EXPIRE, _miss_start(row, now)
    return State(row["state"]), transitions.promote(row, now, "scheduler", using)


def _passed(row: JobRow, now: dt.datetime) -> Callable[[str], bool]:
    return lambda column: row[column] is not None and row[column] <= now


def _miss_start(row: JobRow, now: dt.datetime) -> list[Record]:
    """No worker took the job within its `enqueue_ttl`."""
    facts = errorobjects.overrun("enqueue_ttl", row["start_by"] - row["created_at"], now - row["created_at"])
    message = f"Nothing began the job within its enqueue TTL of {facts['limit_seconds']:g} s."
    records = transitions.expire(row, "enqueue_ttl_expired", message, row["start_by"], now, **facts)
    return [*records, catalogue.of_job("job.ttl_expired", row, now, "scheduler", **facts)]


def _stall(row: JobRow, now: dt.datetime) -> list[Record]:
    """Its worker was silent about the job for longer than its `heartbeat_timeout`: a failure like any other."""
    limit = dt.timedelta(milliseconds=row["heartbeat_ms"])
    facts = errorobjects.overrun("stalled", limit, now - row["visible_until"] + limit)
    message = (
        f"The worker was silent about the job for longer than its heartbeat timeout of {facts['limit_seconds']:g} s."
    )
    return _failed(row, now, "stalled", message, "job.stalled", facts)


def _time_out(row: JobRow, now: dt.datetime) -> list[Record]:
    """The attempt ran longer than its execution timeout: a failure like any other."""
    limit = dt.timedelta(milliseconds=row["timeout_ms"])
    facts = errorobjects.overrun("execution", limit, now - row["started_at"])
    message = f"The job ran longer than its execution timeout of {facts['limit_seconds']:g} s."
    return _failed(row, now, "timeout", message, "job.timeout", facts)


def _failed(row: JobRow, now: dt.datetime, kind: str, message: str, event: str, facts: dict[str, Any]) -> list[Record]:
    """Let the retry policy decide about a failure that the server found, and tell of it by the event `event`, too."""
    error = errorobjects.server_error(kind, message, row["attempt"], now, **facts)
    records = apply_retry_policy(row, error, now, "scheduler")
    return [*records, catalogue.of_job(event, row, now, "scheduler", worker_id=row["worker_id"], **facts)]
