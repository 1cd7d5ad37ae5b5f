"""Decides about unique jobs, and about jobs of bounded queues, and stores those that may be stored.

A push decides under locks, which it holds until its commit: keys, then queues, then jobs. So no other pushes a key,
or takes the last place of a queue, between the look and the insert. Nothing is written before all is decided.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence

from django.db import IntegrityError

from django_ojs import states
from django_ojs.database import atomic
from django_ojs.errors import Duplicate, OJSError
from django_ojs.events import log
from django_ojs.events.catalogue import Record
from django_ojs.faults import only_if_taken
from django_ojs.jobs.cancel import cancel
from django_ojs.jobs.candidates import (
    Candidate,
    PushContext,
    Pushed,
    PushOutcome,
    Taken,
    aborted,
    any_refused,
    duplicate_of,
    duplicate_of_id,
    taken_ids,
)
from django_ojs.jobs.newrows import (
    LOOKS,
    RowMaker,
    after_insert,
    insert,
    make_rows,
    mark_created,
    queues_of,
    savepoint_for,
    wake,
)
from django_ojs.jobs.uniqueness import FREE, REPLACER, Ledger, lock_keys, may_ignore, rescheduled
from django_ojs.lifecycle.ended import jobs_ended
from django_ojs.models import Job
from django_ojs.models.job import JobRow
from django_ojs.queues import bounds
from django_ojs.states import State
from django_ojs.store import store_of

#: Given the outcomes, what else to log in the transaction of the push.
Closing = Callable[[Sequence[PushOutcome]], Sequence[Record]]


def store_decided(
    candidates: Sequence[Candidate], context: PushContext, closing: Closing | None = None
) -> None:  # fmt: skip
    """Decide about those that are still open, and store what may be stored, all or none unless `partial`.

    What `closing` makes of the outcomes of all is logged in the same transaction.
    """
    using = context.using
    waiting = [candidate for candidate in candidates if candidate.outcome is None]
    bounded = [name for name, queue in queues_of(waiting).items() if queue.bound]
    if context.workflow_change:
        store_of(using).save(context.workflow_change)
    if not closing and not bounded and _store_if_free(waiting, context):
        return

    def act() -> None:
        for candidate in waiting:
            candidate.outcome = None
        try:
            with atomic(using=using):
                sleeps = _decide_and_write(waiting, bounded, context)
                if closing:
                    log.append(closing([candidate.outcome or aborted(candidate) for candidate in candidates]), using)
        except IntegrityError as error:
            raise duplicate_of_id(error, waiting, using) from error
        wake(sleeps, using)

    _despite_races(act) if context.partial else act()


def _despite_races(act: Callable[[], None]) -> None:
    """`act` again, where an id was taken between the look and the insert: the next look finds it."""
    for _ in range(LOOKS):
        with contextlib.suppress(Duplicate):
            return act()
    return act()


def _store_if_free(waiting: Sequence[Candidate], context: PushContext) -> bool:
    """Store a unique job that comes alone, and has nothing in its way; False: it takes a closer look to tell."""
    if len(waiting) != 1:
        return False
    (candidate,) = waiting
    policy, using = candidate.valid_spec.unique_policy, context.using
    if policy is None or not candidate.valid_spec.unique_key:
        return False
    rows = make_rows(waiting, context)
    wanted, since = states.ordered(policy.states), policy.since(context.now)
    try:
        with savepoint_for(waiting, context):
            worker_sleeps = store_of(using).push_if_free(rows[0], context.component, wanted, since)
    except IntegrityError as error:
        if context.own:
            raise
        only_if_taken(error)  # the id
        return False
    if worker_sleeps is None:
        return False
    after_insert(rows, context.component, using)
    mark_created(waiting, rows)
    wake(worker_sleeps, using)
    return True


def _decide_and_write(waiting: Sequence[Candidate], bounded: Sequence[str], context: PushContext) -> bool:
    """Take the locks (keys, queues, jobs, in this order), decide, write. Returns whether a worker sleeps."""
    using = context.using
    specs = [candidate.valid_spec for candidate in waiting]
    store_of(using).begin_writing()
    lock_keys(specs, using)
    locked = bounds.lock(bounded, using)
    ledger = Ledger.read(specs, using)
    gates = bounds.gates(locked, specs, using)
    taken = taken_ids(waiting, using) if context.partial or any(map(may_ignore, specs)) else {}
    if gates or taken or not ledger.is_free_for(specs):
        return _decide(waiting, ledger, gates, taken, context)
    # The transaction holds what others need. Between two parts of what is sent, the database does not notice that a
    # process stands still, so all rows are made before the first is sent.
    rows = list(make_rows(waiting, context))
    worker_sleeps = insert(rows, context.component, using, context.workflow_change)
    mark_created(waiting, rows)
    return worker_sleeps


def _decide(
    waiting: Sequence[Candidate], ledger: Ledger, gates: Mapping[str, bounds.QueueBound],
    taken: Mapping[uuid.UUID, Taken], context: PushContext,
) -> bool:  # fmt: skip
    """Decide about each job under the locks, one after the other, and write. Returns whether a worker sleeps."""
    rows: list[JobRow] = []
    replaced: dict[uuid.UUID, JobRow] = {}
    new_row_of = RowMaker(queues_of(waiting), context.now)
    for candidate, stamp in zip(waiting, context.stamps()):  # noqa: B905 - there are always more stamps
        spec = candidate.valid_spec
        verdict = ledger.judge(spec, context.now, candidate.limits)
        refusal: OJSError | None = verdict.error
        if spec.id in taken:
            refusal = duplicate_of(candidate, taken)
        elif verdict is FREE and not gates:  # nothing is in the way of most
            row = new_row_of(spec, stamp)
            ledger.add(row)
            rows.append(row)
            candidate.outcome = Pushed(row, "created", candidate.warnings)
            continue
        if refusal is None and verdict.existing is not None:
            candidate.outcome = Pushed(verdict.existing, "duplicate", candidate.warnings)
            continue
        gate = gates.get(spec.queue)
        if refusal is None and gate:
            dropped = len(gate.dropped)
            refusal = gate.enter(spec, verdict.replaced, candidate.limits)
            ledger.mark_ended(gate.dropped[dropped:], State.DISCARDED)
        if refusal is not None:
            candidate.refuse(refusal)
            continue
        for row in verdict.replaced:
            if row["queue"] in gates:
                gates[row["queue"]].leave(row)
        ledger.mark_ended(verdict.replaced, State.CANCELLED)
        replaced |= {row["id"]: row for row in verdict.replaced}
        spec = rescheduled(spec, verdict.replaced)
        row = new_row_of(spec, stamp)
        ledger.add(row)
        rows.append(row)
        candidate.outcome = Pushed(row, "created", candidate.warnings, gate.pressure if gate else None)
    if context.partial or not any_refused(waiting):
        return _write(rows, replaced, gates.values(), context)
    for candidate in waiting:
        candidate.outcome = candidate.outcome if isinstance(candidate.outcome, OJSError) else None
    return False


def _write(
    rows: Sequence[JobRow],
    replaced: Mapping[uuid.UUID, JobRow],
    gates: Collection[bounds.QueueBound],
    context: PushContext,
) -> bool:
    """Cancel what is replaced, make room, insert; then cancel what a later job of the same push replaced.

    The workflows of all that ended go on last: they may push jobs into the same queues, where those of this
    push must have been counted by then.
    """
    using = context.using
    new = {row["id"]: row for row in rows}
    gone = _cancel([job_id for job_id in replaced if job_id not in new], using)
    if gates:
        gone += bounds.enforce(gates, context.now, using)
    worker_sleeps = insert(rows, context.component, using)
    for row in _cancel([job_id for job_id in replaced if job_id in new], using):
        new[row["id"]].update(row)
        gone.append(row)
    if context.ended is not None:
        context.ended.extend(gone)
    elif any(row["workflow_id"] for row in gone):
        jobs_ended(gone, context.now, using)
        for row in Job.objects.using(using).filter(pk__in=list(new), state=State.DISCARDED).rows():
            new[row["id"]].update(row)  # it had to make room for a callback
    return worker_sleeps


def _cancel(job_ids: Sequence[uuid.UUID], using: str) -> list[JobRow]:
    gone: list[JobRow] = []
    if not job_ids:
        return gone
    reason = "Replaced by a newer unique job."
    for outcome in cancel(job_ids, cancelled_by=REPLACER, reason=reason, ended=gone, using=using):
        if isinstance(outcome, OJSError):
            raise outcome
    return gone
