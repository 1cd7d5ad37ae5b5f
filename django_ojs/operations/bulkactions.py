"""Retry or delete all dead letters that fit a filter, in the background: asked for once, done by the scheduler.

Each pass is one transaction with one batch of jobs, the place behind it, the numbers and the entry in the audit log.
So whoever leads goes on where the last one stopped, and no job is done twice or left out.
"""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from django.db.models import Q

from django_ojs import clock, sql
from django_ojs.contention import retried
from django_ojs.errors import Conflict, InvalidRequest, NotFound, OJSError
from django_ojs.events import log
from django_ojs.models import BulkAction
from django_ojs.operations import audit, bulk
from django_ojs.operations.audit import Act
from django_ojs.operations.common import atomic, database
from django_ojs.operations.deadletters import Filter
from django_ojs.operations.delete import delete
from django_ojs.operations.retry import check_override, retry
from django_ojs.operations.sweep import BATCH

#: The verbs, and what an event calls the jobs that were done.
VERBS = {"retry": "retried", "delete": "deleted"}
#: Refusals that are kept, and how long an action that has ended is.
MAX_ERRORS, KEPT = 20, dt.timedelta(days=30)


def start(
    verb: str, wanted: Filter, entry: Act, *, override: Mapping[str, Any] | None = None, using: str | None = None
) -> BulkAction:
    """Note down that this is to be done to all dead letters that fit now; none that comes later is meant.

    `entry` says who wants it. Raises `InvalidRequest` for a verb there is not, or a malformed `override`.
    """
    using = database(using)
    if verb not in VERBS or (override and verb != "retry"):
        raise InvalidRequest(f"There is no bulk action '{verb}'{' with changes' if override else ''}.")
    check_override(override)
    now = clock.now(using)
    limit = now + dt.timedelta(milliseconds=1)  # filters are kept to the millisecond, rounded down
    wanted = Filter(wanted.type, wanted.queue, wanted.error, min(wanted.until or limit, limit))
    action = BulkAction(
        verb=verb, created_at=now, actor=entry.actor[:255], door=entry.door, source_ip=entry.source_ip[:64],
        expected=wanted.jobs(using).order_by().count(),
    )  # fmt: skip

    action.filter, action.override = wanted.fields(), dict(override) if override else None

    def act() -> BulkAction:
        action.pk, action._state.adding = None, True  # where a lost race makes it begin anew
        action.save(using=using, force_insert=True)
        entry.detail |= {"bulk_action": action.pk, "filter": action.filter, "expected": action.expected}
        entry.detail |= {"override": sorted(override)} if override else {}
        return action

    return audit.perform(act, entry, using=using)


def cancel(action_id: int, *, using: str | None = None) -> BulkAction:
    """Let it end where it is. Raises `NotFound`, and `Conflict` if it has ended already."""
    using = database(using)
    running = BulkAction.objects.using(using).filter(pk=action_id, state=BulkAction.State.RUNNING)
    changed = running.update(state=BulkAction.State.CANCELLED, finished_at=clock.now(using))
    found = BulkAction.objects.using(using).filter(pk=action_id).first()
    if found is None:
        raise NotFound.resource("bulk_action", str(action_id))
    if not changed:
        raise Conflict(f"Bulk action {action_id} is {found.state}.")
    return found


def running(using: str | None = None) -> list[BulkAction]:
    """Those that are not done, the next first."""
    found = BulkAction.objects.using(database(using)).filter(state=BulkAction.State.RUNNING)
    return list(found.order_by("pk"))


@retried
def advance(*, using: str | None = None) -> bool:
    """Do one batch of the action that was asked for first; False where there is none."""
    using = database(using)
    actions = BulkAction.objects.using(using).filter(state=BulkAction.State.RUNNING).order_by("pk")
    if not actions.exists():
        return False
    with atomic(using=using):
        sql.store(using).begin_writing()
        action = actions.select_for_update().first()
        if action is None:
            return False
        batch = _next(action, using)
        if batch:
            _do(action, batch, using)
        if len(batch) < BATCH:
            _end(action, using)
        action.save(using=using)
    return True


def prune(now: dt.datetime, batch: int, using: str) -> int:
    """Forget actions that ended long ago."""
    old = BulkAction.objects.using(using).filter(finished_at__lt=now - KEPT).order_by("pk")
    return BulkAction.objects.using(using).filter(pk__in=list(old.values_list("pk", flat=True)[:batch])).delete()[0]


def _next(action: BulkAction, using: str) -> list[tuple[uuid.UUID, dt.datetime | None]]:
    jobs = Filter.of(action.filter).jobs(using).order_by("finished_at", "pk")
    if action.after is not None:
        behind = Q(finished_at__gt=action.after) | Q(finished_at=action.after, pk__gt=action.after_id)
        jobs = jobs.filter(behind, finished_at__gte=action.after)
    return list(jobs.values_list("pk", "finished_at")[:BATCH])


def _do(action: BulkAction, batch: Sequence[tuple[uuid.UUID, dt.datetime | None]], using: str) -> None:
    ids = [job_id for job_id, _ in batch]
    outcomes: list[Any] = (
        delete(ids, using=using) if action.verb == "delete" else retry(ids, override=action.override, using=using)
    )
    refused = [(job_id, out) for job_id, out in zip(ids, outcomes, strict=True) if isinstance(out, OJSError)]
    done = [str(job_id) for job_id, out in zip(ids, outcomes, strict=True) if not isinstance(out, OJSError)]
    action.after_id, action.after = batch[-1]
    action.matched += len(ids)
    action.succeeded += len(done)
    known = action.errors or []
    told = [{"job_id": str(job_id), "error": str(error)[:500]} for job_id, error in refused]
    action.errors = [*known, *told[: MAX_ERRORS - len(known)]] or None
    detail = {"bulk_action": action.pk, "matched": len(ids), "succeeded": len(done), "job_ids": done}
    entry = Act(action.actor, f"job.bulk_{action.verb}", "", detail, action.door, action.source_ip)
    audit.append([entry], using)


def _end(action: BulkAction, using: str) -> None:
    action.state, action.finished_at = BulkAction.State.COMPLETED, clock.now(using)
    facts = {"total": action.matched, VERBS[action.verb]: action.succeeded, "skipped": action.failed}
    log.append([bulk.completed(action.verb, action.finished_at, **facts)], using)
