"""Remove a queue (jobs 4.1): only when it has no live jobs (`reject`), or with them (`discard`), or after they
went to another queue (`move`), where the active ones finish first.

Whatever the strategy, finished jobs stay readable until they are pruned.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from django.db import transaction
from django.db.models import Q

from django_ojs import audit, clock, states
from django_ojs.audit import Act
from django_ojs.database import atomic, database, retried
from django_ojs.errors import Conflict, NotFound
from django_ojs.events import catalogue, log
from django_ojs.events.catalogue import Record
from django_ojs.lifecycle import transitions
from django_ojs.lifecycle.ended import jobs_ended
from django_ojs.lifecycle.waking import wake_workers
from django_ojs.models import Job, Queue
from django_ojs.models.fields import same_name
from django_ojs.models.job import JobRow, in_states
from django_ojs.queues import configuration
from django_ojs.rules.faults import fault
from django_ojs.states import State, Verb
from django_ojs.store import store_of

STRATEGIES = ("reject", "discard", "move")
BATCH = 500
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
    with atomic(using=using):
        queue = Queue.objects.using(using).select_for_update().filter(same_name("name", name)).first()
        if queue is None:
            raise NotFound.resource("queue", name)
        queue.draining, queue.move_to = True, target
        queue.save(using=using, update_fields=["draining", "move_to"])
        transaction.on_commit(configuration.forget, using=using)
        audit.append([entry] if entry else [], using)
        ended = strategy == "reject" and _delete_if_empty(name, using)
        if strategy == "reject" and not ended:  # which undoes all of this
            live = Job.objects.using(using).live().filter(queue=name)
            raise Conflict(
                f"The queue '{name}' has jobs that have not ended.",
                details={"resource_type": "queue", "resource_id": name, "live_jobs": live.count()},
                hint="Wait for them, or delete with strategy discard or move.",
            )
    affected = 0
    while strategy == "move" and (count := _move(name, target, using)):
        affected += count
    while strategy == "discard" and not ended:  # a job may slip in while others still think the queue is open
        while count := _discard(name, using=using):
            affected += count
        ended = _delete_if_empty(name, using)
    ended = ended or _delete_if_empty(name, using)
    return Removal(name, strategy, target, affected, "deleted" if ended else "draining")


def finish_removals(*, using: str | None = None) -> int:
    """Go on with the queues whose jobs are being moved; return how many jobs moved and queues ended."""
    using = database(using)
    done = 0
    for name, target in list(Queue.objects.using(using).exclude(move_to="").values_list("name", "move_to")):
        done += _move(name, target, using) + _delete_if_empty(name, using)
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


def _delete_if_empty(name: str, using: str) -> bool:
    """Delete the queue's row once none of its jobs is alive."""
    with atomic(using=using):
        queue = Queue.objects.using(using).select_for_update().filter(name=name, draining=True).first()
        if queue is None or Job.objects.using(using).live().filter(queue=name).exists():
            return False
        queue.delete(using=using)
        log.append([catalogue.of_queue("queue.deleted", name, clock.now(using))], using)
        transaction.on_commit(configuration.forget, using=using)
    return True


@retried
def _discard(name: str, *, using: str) -> int:
    """Discard one batch of live jobs."""
    with atomic(using=using):
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


def _move(name: str, target: str, using: str) -> int:
    """Move one batch of waiting jobs; their states stay."""
    with atomic(using=using):
        store = store_of(using)
        configuration.ensure([target], clock.now(using), using)
        rows = store.lock_where(Q(queue=name) & in_states(_WAITING), limit=BATCH)
        for row in rows:
            row["queue"] = target
        for state in _WAITING:
            store.update_jobs(state, _of(rows, state), ("queue",))
    return len(rows)


def _of(rows: Sequence[JobRow], state: State) -> list[JobRow]:
    return [row for row in rows if row["state"] == state]
