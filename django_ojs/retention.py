"""Deletes in small batches what a site need not keep: ended jobs, old events, results, idempotency keys, deliveries of
webhooks, audit entries and what belongs to them (jobs 4.2, 7.2). docs/retention.md has them all."""

from __future__ import annotations

import datetime as dt
import time
import uuid
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from django.db import connections, transaction
from django.db.models import Min, OuterRef, Q, QuerySet, Subquery
from django.db.models.functions import Greatest
from django.db.models.lookups import IsNull

from django_ojs import audit, clock, tenants
from django_ojs.conf import ojs_settings
from django_ojs.cron import runs
from django_ojs.database import atomic, database, retried
from django_ojs.events import catalogue, log, order
from django_ojs.events.catalogue import Record
from django_ojs.events.ids import log_row
from django_ojs.jobs import approvals, bulk, checkpoints, compensations, durableevents, joblog
from django_ojs.jobs import history as jobhistory
from django_ojs.lifecycle.transitions import still_fitting
from django_ojs.limits import ratelimits
from django_ojs.models import (
    Alert,
    Event,
    EventCommit,
    EventLog,
    IdempotencyKey,
    Job,
    Lease,
    Queue,
    Worker,
    Workflow,
    WorkflowStart,
    WorkflowStep,
)
from django_ojs.models.job import JobRow
from django_ojs.models.queue import TEMPLATE
from django_ojs.rules import envelope, queueconfig
from django_ojs.states import State
from django_ojs.statistics import counters, eventcounts, history
from django_ojs.store import store_of
from django_ojs.webhooks import deliveries, relay
from django_ojs.workerregistry import releases

#: How long alerts are kept that are over.
ALERTS_KEPT = dt.timedelta(days=30)
#: Lines of logs that one transaction deletes along with their jobs, if they are of several jobs.
MOST_LINES = 10_000
#: The end of the calendar.
_LAST = dt.datetime.max.replace(tzinfo=dt.UTC)


@retried
def prune(*, batch: int = 1000, event_batch: int | None = None, using: str | None = None) -> dict[str, int]:
    """Delete at most `batch` rows of each kind; return the counts. Call again while a count is `batch`.

    Of events, which are cheap to delete and of which each job makes several, `event_batch` if given.
    """
    using = database(using)
    now, ages = clock.now(using), _ages(using)
    return {
        "jobs": sum(
            _delete(Job.objects.using(using).filter(condition).order_by("finished_at"), batch, using)
            for condition in _retention(ages, now)
        ),
        "workflows": _prune_workflows(ages, now, batch, using),
        "dead_letters": _prune_surplus_dead_letters(batch, using),
        "results": _prune_results(now, batch, using),
        "checkpoints": checkpoints.prune(now, batch, using),
        "durable_events": durableevents.prune(now, batch, using),
        "approvals": approvals.prune(now, batch, using),
        "logs": joblog.prune(now, event_batch or batch, using),
        "events": _prune_events(now, event_batch or batch, using),
        "histories": jobhistory.trim(using),
        "idempotency_keys": _prune_keys(now, batch, using),
        "workers": _prune_workers(now, using),
        "leases": _prune_leases(now, batch, using),
        "cron_runs": runs.prune(batch, using),
        "rate_limits": ratelimits.prune(now, batch, using),
        "audit": audit.prune(_audit_edge(now), batch, using),
        "bulk_actions": bulk.prune_actions(now, batch, using),
        "alerts": _prune_alerts(now, batch, using),
        "minutes": history.roll_up(using=using),
        "releases": releases.prune(using),
        "webhook_deliveries": deliveries.prune(now, batch, using),
    }


def _prune_alerts(now: dt.datetime, batch: int, using: str) -> int:
    """Forget alerts that were over long ago."""
    alerts = Alert.objects.using(using)
    old = alerts.filter(cleared_at__lt=now - ALERTS_KEPT).order_by("cleared_at").values_list("pk", flat=True)
    return alerts.filter(pk__in=list(old[:batch])).delete()[0]


def _audit_edge(now: dt.datetime) -> dt.datetime | None:
    seconds = ojs_settings.AUDIT_RETENTION
    return None if seconds is None else _edge(now, seconds)


#: The kinds of ended jobs, each with an age of its own.
_KINDS = {
    "completed": Q(state=State.COMPLETED),
    "cancelled": Q(state=State.CANCELLED),
    "discarded": Q(state=State.DISCARDED, dead_letter=False),
    "dead_letter": Q(state=State.DISCARDED, dead_letter=True),
}


class _Ages(NamedTuple):
    """How long jobs of one kind are kept, in seconds; None: for ever. `own` are the ages of queues that say another."""

    age: float | None
    own: dict[str, float]


def _ages(using: str) -> dict[str, _Ages]:
    """By the site's settings, over which the template counts, and over that what a queue says itself."""
    says = Q(config__contains='"retention"') | Q(config__contains='"dead_letter_ttl"')
    queues = list(Queue.objects.using(using).filter(says))
    found: dict[str, _Ages] = {}
    for kind in _KINDS:
        said = {queue.name: queueconfig.retention_seconds(queue.config or {}, kind) for queue in queues}
        own = {name: age for name, age in said.items() if age is not None}
        template = own.pop(TEMPLATE, None)
        found[kind] = _Ages(ojs_settings.RETENTION.get(kind) if template is None else template, own)
    return found


def _retention(ages: Mapping[str, _Ages], now: dt.datetime) -> list[Q]:
    """Which jobs are too old."""
    conditions = []
    for kind, condition in _KINDS.items():
        age, own = ages[kind]
        if age is not None:
            rest = condition & ~Q(queue__in=list(own)) if own else condition
            conditions.append(rest & Q(finished_at__lt=_edge(now, age)))
        conditions += [condition & Q(queue=queue, finished_at__lt=_edge(now, age)) for queue, age in own.items()]
    return conditions


class LetterRetention(NamedTuple):
    """How long dead letters are kept in queues that say nothing else, in seconds (None: for ever), how many of all, and
    when the first of some will be too old (None: never)."""

    max_age: float | None
    max_count: int
    next_at: dt.datetime | None


def of_dead_letters(letters: QuerySet[Job], *, using: str) -> LetterRetention:
    """The retention of dead letters (jobs 7.2), and when the first of these will be too old."""
    age, own = _ages(using)["dead_letter"]
    oldest: Any = letters.filter(queue__in=list(own)).order_by().values_list("queue").annotate(first=Min("finished_at"))
    ends = [(first, own[queue]) for queue, first in oldest] if own else []
    if age is not None:
        rest = letters.exclude(queue__in=list(own)).order_by("finished_at")
        ends += [(first, age) for first in rest.values_list("finished_at", flat=True)[:1]]
    in_time = [(first, seconds) for first, seconds in ends if seconds < (_LAST - first).total_seconds()]
    next_at = min((first + dt.timedelta(seconds=seconds) for first, seconds in in_time), default=None)
    return LetterRetention(age, ojs_settings.DEAD_LETTER_MAX_COUNT, next_at)


def _edge(now: dt.datetime, seconds: float) -> dt.datetime:
    return now - dt.timedelta(seconds=seconds)


def _unneeded(jobs: QuerySet[Job], using: str) -> QuerySet[Job]:
    """Without those of running workflows, which may pass their results and errors on, and without the completed ones of
    failed workflows, which a retry does not run again."""
    flows = Workflow.objects.using(using).order_by().values("pk")
    # Looked up for each job: there may be many failed workflows, and few of them have jobs so old.
    failed: Any = Subquery(flows.filter(pk=OuterRef("workflow_id"), state=Workflow.State.FAILED)[:1])
    unneeded = ~Q(state=State.COMPLETED) | Q(workflow_id=None) | Q(IsNull(failed, True))
    return jobs.exclude(workflow_id__in=flows.filter(state=Workflow.State.RUNNING)).filter(unneeded)


def _prune_workflows(ages: Mapping[str, _Ages], now: dt.datetime, batch: int, using: str) -> int:
    """A completed or cancelled workflow goes with its jobs, a failed one with its dead letters; where queues keep
    theirs longer, not before the last that it has there.

    Those that stay are passed by in stretches, for as long as a search may take; the next pass goes on from there.
    """
    old, edges = Q(pk__in=[]), []
    for state, kind in (("completed", "completed"), ("cancelled", "cancelled"), ("failed", "dead_letter")):
        age, own = ages[kind]
        if age is None:
            continue
        edges.append(_edge(now, age))
        due = Q(state=state, finished_at__lt=edges[-1])
        if (longest := max(own.values(), default=age)) > age:
            kept = WorkflowStep.objects.using(using).filter(workflow_id=OuterRef("pk"), job__queue__in=list(own))
            # Looked up for each workflow: for EXISTS all steps and jobs may be read.
            first: Any = Subquery(kept.order_by("position").values("pk")[:1])
            due &= Q(finished_at__lt=_edge(now, longest)) | Q(IsNull(first, True))
        old |= due
    if not edges:
        return 0
    finished = Workflow.objects.using(using).filter(finished_at__lt=max(edges))
    if not (listed := _old_workflows(finished.order_by("finished_at"), old, batch, using)):
        return 0
    with atomic(using=using):
        # A failed one may have been retried since.
        ids = still_fitting(finished.filter(old), listed, using, skip_locked=True)
        if ids:
            WorkflowStep.objects.using(using).filter(workflow_id__in=ids)._raw_delete(using)
            WorkflowStart.objects.using(using).filter(pk__in=ids)._raw_delete(using)
            Workflow.objects.using(using).filter(pk__in=ids)._raw_delete(using)
    return len(ids)


#: The end up to which this process has looked at workflows; those before it are looked at again after the last.
_looked_at: dict[Hashable, dt.datetime] = {}


def _old_workflows(finished: QuerySet[Workflow], old: Q, batch: int, using: str) -> list[uuid.UUID]:
    scope = tenants.scope(using)
    found: list[uuid.UUID] = []
    until = time.monotonic() + ojs_settings.SEARCH_SECONDS
    while True:
        place = _looked_at.get(scope)
        rest = finished if place is None else finished.filter(finished_at__gt=place)
        reached = rest.values_list("finished_at", flat=True)[_STRETCH : _STRETCH + 1].first()
        due = rest.filter(old) if reached is None else rest.filter(old, finished_at__lte=reached)
        found += due.values_list("pk", flat=True)[: batch - len(found)]
        if len(found) == batch:
            return found
        if reached is None:
            _looked_at.pop(scope, None)
            return found
        _looked_at[scope] = reached
        if time.monotonic() > until:
            return found


def _prune_results(now: dt.datetime, batch: int, using: str) -> int:
    """Empty results whose time is over; those of workflow members go with their jobs (jobs 8)."""
    kept = Q(result__isnull=False, workflow_id__isnull=True)
    jobs = Job.objects.using(using).filter(kept).order_by("finished_at")
    with atomic(using=using):
        ids = _own_results(jobs, now, batch)
        ids += _default_results(jobs, now, batch - len(ids), using)
        locked = store_of(using).lock(ids) if ids else []
        rows = [row for row in locked if _is_over(row, now)]
        Job.objects.using(using).filter(pk__in=[row["id"] for row in rows]).update(result=None)
        log.append([catalogue.of_job("result.pruned", row, now, "scheduler") for row in rows], using)
    return len(rows)


def _is_over(row: JobRow, now: dt.datetime) -> bool:
    """Whether a locked job still has a result whose time is over: another process may have emptied it since."""
    end = envelope.result_expires_at(row)
    return row["state"] == State.COMPLETED and row["result"] is not None and end is not None and end <= now


def _own_results(jobs: QuerySet[Job], now: dt.datetime, batch: int) -> list[Any]:
    """By the times that jobs name, of which there are few, so that an index finds what is over."""
    found: list[Any] = []
    ttl: int | None = -1
    while ttl is not None and len(found) < batch:
        # One after the other: the database would read all of them to tell the different ones.
        longer: QuerySet[Any] = jobs.filter(result_ttl__gt=ttl).order_by("result_ttl", "finished_at")
        ttl = longer.values_list("result_ttl", flat=True).first()
        if ttl is not None:
            over = jobs.filter(result_ttl=ttl, finished_at__lte=_before(now, ttl)).order_by("finished_at")
            found += over.values_list("pk", flat=True)[: batch - len(found)]
    return found


def _before(now: dt.datetime, seconds: int) -> dt.datetime:
    """The instant so long ago, or the first of all where that is before the calendar begins."""
    try:
        return now - dt.timedelta(seconds=seconds)
    except OverflowError:
        return dt.datetime.min.replace(tzinfo=dt.UTC)


#: Up to which end of a job this process has dealt with the results that are kept for the site's time.
_seen: dict[Hashable, dt.datetime] = {}
#: A job may be committed so long after its end.
_LATE = dt.timedelta(hours=1)
#: Ended jobs among which one statement looks for results.
_STRETCH = 10_000


def forget() -> None:
    """Drop what this process remembers: the next pass looks at all results and checkpoints."""
    _seen.clear()
    _looked_at.clear()
    checkpoints.forget_reached()


def _default_results(jobs: QuerySet[Job], now: dt.datetime, batch: int, using: str) -> list[Any]:
    """The index of ended jobs is read from where the last pass ended, in stretches, as long as a search may take."""
    if ojs_settings.RESULT_TTL is None or batch <= 0:
        return []
    scope = tenants.scope(using)
    edge = _before(now, ojs_settings.RESULT_TTL)
    completed = Job.objects.using(using).filter(state=State.COMPLETED, finished_at__lte=edge).order_by("finished_at")
    begin = _seen.get(scope)
    if begin is not None:  # what is committed late is younger than the edge, unless results are kept for less than that
        begin -= max(_LATE - dt.timedelta(seconds=ojs_settings.RESULT_TTL), dt.timedelta())
        completed = completed.filter(finished_at__gte=begin)
    found: list[tuple[Any, Any]] = []
    until = time.monotonic() + ojs_settings.SEARCH_SECONDS
    while True:
        reached = completed.values_list("finished_at", flat=True)[_STRETCH : _STRETCH + 1].first() or edge
        due = (completed & jobs).filter(result_ttl__isnull=True, finished_at__lte=reached)
        found += due.values_list("pk", "finished_at")[: batch - len(found)]
        if len(found) == batch:
            reached = found[-1][1]
        elif reached != edge and time.monotonic() < until:
            completed = completed.filter(finished_at__gt=reached)
            continue
        transaction.on_commit(partial(_seen.update, {scope: reached}), using=using)
        break
    return [pk for pk, _ in found]


def _prune_surplus_dead_letters(batch: int, using: str) -> int:
    """Keep the newest: `DEAD_LETTER_MAX_COUNT` in all, and of each queue as many as it, or else the template, says.

    Those of running workflows do not count, and stay.
    """
    dead = Job.objects.using(using).dead_letters()
    pruned = _prune_surplus(dead, ojs_settings.DEAD_LETTER_MAX_COUNT, batch, using)
    says = Q(config__contains='"max_count"') | Q(config__contains='"dead_letter_max_size"')
    queues = Queue.objects.using(using).filter(says)
    said = {queue.name: queueconfig.dead_letter_max_count(queue.config or {}) for queue in queues}
    limits = {name: limit for name, limit in said.items() if limit is not None}
    if (rest := limits.pop(TEMPLATE, None)) is not None:
        counted = counters.count_all(using=using)
        limits = {name: rest for name, counts in counted.items() if counts.dead > rest} | limits
    for queue, limit in sorted(limits.items()):
        pruned += _prune_surplus(dead.filter(queue=queue), limit, batch, using)
    return pruned


def _prune_surplus(dead: QuerySet[Job], limit: int, batch: int, using: str) -> int:
    """The newest `limit` stay; the id decides between those that ended at the same instant."""
    newest = _unneeded(dead, using).order_by("-finished_at", "-pk").values_list("finished_at", "pk")
    edge = newest[limit : limit + 1].first()
    if edge is None:
        return 0
    instant, pk = edge
    # One that is retried and dies again has a later end, so it is not among these any more.
    surplus = dead.filter(Q(finished_at__lt=instant) | Q(finished_at=instant, pk__lte=pk), finished_at__lte=instant)
    return _delete(surplus.order_by("-finished_at", "-pk"), batch, using)


#: Events that readers have had a chance to see: what has no place in the log's order yet stays.
_IN_ORDER = {
    "postgresql": Q(commit__isnull=True) | Q(commit__seq__isnull=False),
    "mysql": Q(seq__isnull=False),
}


def _prune_events(now: dt.datetime, batch: int, using: str) -> int:
    """Oldest first, by age and by number. Ids count the events closely enough for a limit of a million."""
    order.catch_up(using)
    events = Event.objects.using(using)
    newest = events.order_by("-id").values_list("id", flat=True).first()
    if newest is None:
        return 0
    surplus = newest - ojs_settings.EVENT_MAX_COUNT
    old = Q(id__lte=surplus) | Q(time__lt=now - ojs_settings.event_retention)
    # Look at the oldest rows only: a condition on the time alone would scan the log for nothing.
    oldest = events.order_by("id").values_list("id", flat=True)[batch - 1 : batch].first() or newest
    due = events.filter(old, _IN_ORDER.get(connections[using].vendor, Q()), id__lte=oldest)
    doomed: list[tuple[int, int | None]] = list(due.values_list("id", "commit_id"))
    if not doomed:
        return 0
    if ojs_settings.METRICS:
        eventcounts.catch_up(using)  # no event goes uncounted
    with atomic(using=using):
        log_row(using)
        relay.note_pruned([pk for pk, _ in doomed], using)
        events.filter(pk__in=[pk for pk, _ in doomed])._raw_delete(using)
        _forget_commits({txid for _, txid in doomed if txid is not None}, using)
        # At last: the log's row is the lock of ordering passes, for which readers wait.
        EventLog.objects.using(using).filter(pk=1).update(pruned_to=Greatest("pruned_to", max(pk for pk, _ in doomed)))
    return len(doomed)


def _forget_commits(txids: set[int], using: str) -> None:
    """Drop the numbers of transactions of which no event is left."""
    if txids:
        kept = Event.objects.using(using).filter(commit_id__in=txids).values_list("commit_id", flat=True)
        EventCommit.objects.using(using).filter(txid__in=txids.difference(kept)).delete()


def _prune_keys(now: dt.datetime, batch: int, using: str) -> int:
    edge = now - dt.timedelta(seconds=ojs_settings.IDEMPOTENCY_TTL)
    old = IdempotencyKey.objects.using(using).filter(created_at__lt=edge)
    return old.filter(pk__in=list(old.values_list("pk", flat=True)[:batch])).delete()[0]


#: How long a worker that never beats is remembered after its latest FETCH: nothing else tells when it has gone. And for
#: how long a lease is kept that has ended.
_FORGOTTEN = dt.timedelta(days=1)


def _prune_workers(now: dt.datetime, using: str) -> int:
    """Those that beat are declared dead instead (`rescue`). A worker that comes back is met anew."""
    silent = Worker.objects.using(using).filter(last_heartbeat_at=None, last_seen_at__lt=now - _FORGOTTEN)
    return silent.delete()[0]


def _prune_leases(now: dt.datetime, batch: int, using: str) -> int:
    """Locks and roles whose holders have died. One that is wanted again is made anew."""
    leases = Lease.objects.using(using).filter(expires_at__lt=now - _FORGOTTEN)
    return leases.filter(pk__in=list(leases.values_list("pk", flat=True)[:batch])).delete()[0]


def _delete(jobs: QuerySet[Job], batch: int, using: str) -> int:
    """Delete at most `batch` of these jobs, the first of their order; not those that running workflows need, nor those
    whose undoing is not enqueued yet. Those with many lines of logs are deleted in several transactions.

    They are listed first and deleted by the same condition under the lock: a dead letter that an operator has retried
    since is none any more. What others have locked stays until the next pass.
    """
    listed = list(compensations.without_due(_unneeded(jobs, using)).values_list("pk", flat=True)[:batch])
    parts = joblog.in_parts(listed, MOST_LINES, using) if listed else ()
    return sum(_delete_listed(jobs, part, using) for part in parts)


def _delete_listed(jobs: QuerySet[Job], listed: Sequence[uuid.UUID], using: str) -> int:
    with atomic(using=using):
        fitting = still_fitting(jobs, listed, using, skip_locked=True)
        columns = ("pk", "queue", "dead_letter", "state", "workflow_id")
        rows = Job.objects.using(using).filter(pk__in=fitting).values_list(*columns)
        running, failed = _needed({flow for *_, flow in rows if flow is not None}, using)
        doomed = [
            (pk, queue, dead)
            for pk, queue, dead, state, flow in rows
            if flow not in running and not (state == State.COMPLETED and flow in failed)
        ]
        if not doomed:
            return 0
        dead = Counter(queue for _, queue, dead in doomed if dead)
        now = clock.now(using)
        log.append([_pruned(queue, count, now) for queue, count in sorted(dead.items())], using)
        return store_of(using).delete_jobs([pk for pk, *_ in doomed])


def _needed(ids: set[uuid.UUID], using: str) -> tuple[set[uuid.UUID], set[uuid.UUID]]:
    """Those of these workflows that still need all their jobs, because they run or another transaction is changing
    them; and those that need the completed ones, because they have failed and may be retried.

    A retry of a failed workflow does not touch its completed members, so their own locks tell nothing of it.
    """
    if not ids:
        return set(), set()
    flows = Workflow.objects.using(using).filter(pk__in=ids).order_by("pk")
    locked = flows.select_for_update(skip_locked=store_of(using).skip_locked).values_list("pk", "state")
    over = {pk: state for pk, state in locked if state != Workflow.State.RUNNING}
    if over:
        store_of(using).certify(flows.filter(pk__in=over), "finished_at")
    failed = {pk for pk, state in over.items() if state == Workflow.State.FAILED}
    return set(flows.values_list("pk", flat=True)) - over.keys(), failed


def _pruned(queue: str, count: int, now: dt.datetime) -> Record:
    return catalogue.of_queue("dead_letter.pruned", queue, now, count=count)._replace(component="scheduler")
