"""Remove a queue (jobs 4.1): only when it has no live jobs (`reject`), or with them (`discard`), or after they
went to another queue (`move`), where the active ones finish first.

Whatever the strategy, finished jobs stay readable until they are pruned. `Queue.move_to` says where the jobs go; a
queue whose jobs are discarded has its own name there. The scheduler goes on with what a caller has left unfinished
(`finish_removals`). Who lets the queue take new jobs again calls its removal off (`configuration.configure`).
"""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Sequence

from django.db import transaction
from django.db.models import F, Q

from django_ojs import audit, clock, jsontext, spellings, states
from django_ojs.audit import Act
from django_ojs.database import atomic, database, retried
from django_ojs.errors import Conflict, NotFound
from django_ojs.events import catalogue, log
from django_ojs.events.catalogue import Record
from django_ojs.lifecycle import transitions
from django_ojs.lifecycle.ended import jobs_ended
from django_ojs.lifecycle.waking import wake_workers
from django_ojs.models import Approval, CronRun, Job, Queue
from django_ojs.models.fields import same_name
from django_ojs.models.job import JobRow, in_states
from django_ojs.queues import configuration
from django_ojs.rules import unique
from django_ojs.rules.faults import fault
from django_ojs.rules.ratelimit import key_in
from django_ojs.rules.rows import END_OF_TIME
from django_ojs.states import State, Verb
from django_ojs.store import store_of

STRATEGIES = ("reject", "discard", "move")
BATCH = 500
#: For how long the scheduler leaves the discarding of a queue's jobs to who has asked for it, and counts them.
PATIENCE = dt.timedelta(minutes=1)
_WAITING = states.ordered(states.WAITING)


@dataclasses.dataclass(slots=True)
class Removal:
    """What became of the queue: `deleted`, or `draining` while active jobs finish."""

    queue: str
    strategy: str
    target: str
    jobs_affected: int
    state: str


def remove(
    name: str, strategy: str = "reject", target: str = "", *, entry: Act | None = None, using: str | None = None
) -> Removal:
    """Remove a queue. Raises `NotFound`, `Conflict` (live jobs, strategy `reject`) or `InvalidRequest`.

    It takes many transactions. `entry` is what the audit log says of it, written in the one that decides.
    """
    using = database(using)
    _check(name, strategy, target)
    place = name if strategy == "discard" else target
    ended, affected = _begin(name, strategy, place, entry, using=using), 0
    while not ended and (count := _empty(name, place, using=using)) is not None:
        affected += count
        ended = not count and _delete_if_empty(name, using=using)
        if not count and strategy == "move":  # else a job has slipped in, while others still thought the queue open
            break
    ended = ended or not Queue.objects.using(using).filter(name=name).exists()
    return Removal(name, strategy, target, affected, "deleted" if ended else "draining")


@retried
def _begin(name: str, strategy: str, place: str, entry: Act | None, *, using: str) -> bool:
    """Let the queue take no more jobs, and note where its jobs go; whether it is deleted already."""
    with atomic(using=using):
        store_of(using).begin_writing()
        # Both queues of a move, so that of two moves into each other the second sees the first.
        wanted = same_name("name", name) | (Q(name=place) if strategy == "move" else Q())
        rows = Queue.objects.using(using).select_for_update().filter(wanted).order_by("name")
        queue = {row.name: row for row in rows}.get(name)
        if queue is None:
            raise NotFound.resource("queue", name)
        if strategy == "move":
            store_of(using).certify(Queue.objects.using(using).filter(name=place))
            _refuse_lost(name, place, using)
        queue.draining, queue.move_to, queue.updated_at = True, place, clock.now(using)
        queue.save(using=using, update_fields=["draining", "move_to", "updated_at"])
        transaction.on_commit(configuration.forget, using=using)
        audit.append([entry] if entry else [], using)
        if strategy != "reject":
            return False
        if not _delete_if_empty(name, using=using):  # which undoes all of this
            live = Job.objects.using(using).live().filter(queue=name)
            raise Conflict(
                f"The queue '{name}' has jobs that have not ended.",
                details={"resource_type": "queue", "resource_id": name, "live_jobs": live.count()},
                hint="Wait for them, or delete with strategy discard or move.",
            )
    return True


def finish_removals(*, using: str | None = None) -> int:
    """Go on with the queues whose jobs are being moved, and with those of which discarding them has broken off; return
    how many jobs moved or were discarded, and queues ended."""
    using = database(using)
    now = clock.now(using)
    under_way = Q(move_to=F("name"), updated_at__range=(now - PATIENCE, now + clock.AHEAD))
    removals = Queue.objects.using(using).exclude(move_to="").exclude(under_way)
    done = 0
    for name, place in list(removals.values_list("name", "move_to")):
        if (count := _empty(name, place, using=using)) is not None:
            done += count + _delete_if_empty(name, using=using)
    return done


def _check(name: str, strategy: str, target: str) -> None:
    if strategy not in STRATEGIES:
        raise fault("strategy", f"must be one of {', '.join(STRATEGIES)}", strategy)
    if name == "default":
        raise fault("name", "must not be default, which always exists", name)
    if strategy == "move" and target in ("", name):
        raise fault("target_queue", "must name another queue, which takes the jobs over", target)
    if target:
        configuration.names_only(target, "target_queue")


def _refuse_lost(name: str, target: str, using: str) -> None:
    """Raise `Conflict` where the jobs that go to `target` would come back, again and again, or be discarded there."""
    rows = Queue.objects.using(using).filter(draining=True).exclude(move_to="")
    onward: dict[str, str] = dict(rows.values_list("name", "move_to"))
    place = target
    while (following := onward.pop(place, None)) is not None:
        if following in (name, place):
            what = "moved back here" if following == name else "discarded"
            raise Conflict(
                f"The queue '{target}' is being deleted, too, and jobs that went there would be {what}.",
                details={"resource_type": "queue", "resource_id": target},
                hint="Name a queue that stays, or call the other deletion off (draining: false).",
            )
        place = following


@retried
def _empty(name: str, place: str, *, using: str) -> int | None:
    """Discard or move one batch of its jobs; None where its removal is over, or was called off."""
    with atomic(using=using):
        store_of(using).begin_writing()
        removed = Queue.objects.using(using).filter(name=name, draining=True, move_to=place)
        if removed.select_for_update().first() is None:
            return None
        store_of(using).certify(removed)
        return _discard(name, using=using) if place == name else _move(name, place, using=using)


@retried
def _delete_if_empty(name: str, *, using: str) -> bool:
    """Delete the queue's row once none of its jobs is alive."""
    with atomic(using=using):
        store_of(using).begin_writing()
        queue = Queue.objects.using(using).select_for_update().filter(name=name, draining=True).first()
        if queue is None or Job.objects.using(using).live().filter(queue=name).exists():
            return False
        queue.delete(using=using)
        log.append([catalogue.of_queue("queue.deleted", name, clock.now(using))], using)
        transaction.on_commit(configuration.forget, using=using)
    return True


def _discard(name: str, *, using: str) -> int:
    now = clock.now(using)
    store = store_of(using)
    rows = store.lock_where(Q(queue=name) & in_states(states.LIVE), limit=BATCH)
    records: list[Record] = []
    waiting: list[JobRow] = [row for row in rows if row["state"] != State.ACTIVE]
    active: list[JobRow] = [row for row in rows if row["state"] == State.ACTIVE]
    for row in rows:
        message = f"The queue '{name}' was deleted."
        records += transitions.discard_because(row, "queue_deleted", message, now, "api")
    store.update_jobs(Verb.EXPIRE, waiting, transitions.DISCARD_COLUMNS)
    store.update_jobs(Verb.FAIL, active, transitions.DISCARD_COLUMNS)
    log.append(records, using)
    jobs_ended(rows, now, using)
    if active:  # their keys may have room for jobs of other queues
        wake_workers(using)
    return len(rows)


def _move(name: str, target: str, *, using: str) -> int:
    """Only the jobs that wait, whose states stay. Those that a limit has put off are due: the target may have room."""
    store = store_of(using)
    configuration.ensure([target], clock.now(using), using)
    rows = store.lock_where(Q(queue=name) & in_states(_WAITING), limit=BATCH)
    for row in rows:
        row.update(queue=target, rate_key=key_in(row["rate_key"], target))
        row["unique_key"] = row["unique_key"] and _unique_key(row)
        if row["state"] == State.AVAILABLE and row["due_at"] != END_OF_TIME:
            row["due_at"] = None
    for state in _WAITING:
        store.update_jobs(state, _of(rows, state), ("queue", "rate_key", "unique_key", "due_at"))
    for model in (Approval, CronRun):  # a FETCH from the target lets the postponed runs of schedules go
        model.objects.using(using).filter(job_id__in=[row["id"] for row in rows]).update(queue=target)
    if rows:
        wake_workers(using)
    return len(rows)


def _unique_key(row: JobRow) -> str:
    extra = jsontext.loads(row["extra"])
    policy = spellings.read_unique(extra["unique"])
    if "queue" not in policy.dimensions:
        return str(row["unique_key"])
    args, meta = jsontext.loads(row["args"]), jsontext.loads(row["meta"])
    return unique.key(policy, row["type"], row["queue"], args, meta, extra.get("version"))


def _of(rows: Sequence[JobRow], state: State) -> list[JobRow]:
    return [row for row in rows if row["state"] == state]
