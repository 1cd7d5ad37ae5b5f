"""Acts on all jobs that fit, in the background: asked for once, done by the scheduler.

Each pass is one transaction with one batch of jobs, the place behind it, the numbers and the entry in the audit log.
So whoever leads goes on where the last one stopped, and no job is done twice or left out.
"""

from __future__ import annotations

import datetime as dt
import logging
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from django.db import InterfaceError, OperationalError
from django.db.models import F, Q, QuerySet

from django_ojs import audit, clock
from django_ojs.audit import Act
from django_ojs.database import atomic, database, retried
from django_ojs.errors import BackendUnavailable, Conflict, InvalidRequest, NotFound, OJSError
from django_ojs.events import log
from django_ojs.jobs import bulk
from django_ojs.jobs.bulk import BATCH, BulkVerb, How
from django_ojs.jobs.rows import done_where_fitting
from django_ojs.jobs.selection import JobFilter, readable
from django_ojs.jobs.verbs import check_override
from django_ojs.messages import phrase
from django_ojs.models import BulkAction, Job
from django_ojs.rules import redaction
from django_ojs.rules.durations import format_instant
from django_ojs.states import State
from django_ojs.store import store_of

logger = logging.getLogger(__name__)

#: Refusals that are kept, and how long an action that has ended is.
MAX_ERRORS, KEPT = 20, dt.timedelta(days=30)
#: How often a batch may break off before its action has failed.
MAX_TRIES = 5
#: More than anybody looks for.
MANY = 2**62


def start(
    verb: str, wanted: JobFilter, entry: Act, *, override: Mapping[str, Any] | None = None, using: str | None = None
) -> BulkAction:  # fmt: skip
    """Note down that this is to be done to all jobs that fit now; none that comes later is meant.

    A text or a tag is looked for here, as far as searches go, and no further later on. `entry` says who wants it.
    Raises `InvalidRequest` for a verb there is not, a malformed `override`, and a filter without states.
    """
    using = database(using)
    if not wanted.wanted_states:
        raise InvalidRequest("A bulk action has to name the states of its jobs.", details={"field": "states"})
    letters = "dead_letters" in wanted.values
    if verb not in (bulk.DEAD_LETTERS if letters else bulk.JOBS) or (override and not (letters and verb == "retry")):
        raise InvalidRequest(f"There is no bulk action '{verb}'{' with changes' if override else ''}.")
    check_override(override)
    action = BulkAction(
        verb=verb, created_at=clock.now(using), actor=entry.actor[:255], door=entry.door,
        source_ip=entry.source_ip[:64],
    )  # fmt: skip
    if wanted.searches:
        found, look = wanted.searched(using, MANY)
        wanted, action.expected = wanted.bounded(look), len(found)
    else:
        action.expected = _meant(action, wanted, using).order_by().count()

    action.filter, action.override = wanted.to_json(), dict(override) if override else None

    def act() -> BulkAction:
        action.pk, action._state.adding = None, True  # where a lost race makes it begin anew
        action.save(using=using, force_insert=True)
        shown = action.filter | ({"text": "…"} if "text" in wanted.values else {})  # which may be part of arguments
        entry.detail |= {"bulk_action": action.pk, "filter": shown, "expected": action.expected}
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
        raise Conflict(
            phrase("Bulk action %(action_id)s is %(state)s.", action_id=action_id, state=found.state),
            details={"resource_type": "bulk_action", "resource_id": str(action_id), "current_state": found.state},
            hint="It has ended, and what it has done stays done: read it to see how many jobs that were.",
        )
    return found


def running(using: str | None = None) -> list[BulkAction]:
    """Those that are not done, the next first."""
    found = BulkAction.objects.using(database(using)).filter(state=BulkAction.State.RUNNING)
    return list(found.order_by("pk"))


def advance(*, using: str | None = None) -> bool:
    """Do one batch of the action whose turn it is; False where there is none.

    That is the first that was asked for, of those whose batches broke off the least. A fault of the database is noted
    at the action and raised: it is tried again, behind the others, and ends as failed after `MAX_TRIES`. Any other
    fault would come again, and ends it at once.
    """
    using = database(using)
    turn: list[int] = []
    try:
        return _advance(turn, using=using)
    except Exception as error:
        if not turn:
            raise
        passing = isinstance(error, OperationalError | InterfaceError | BackendUnavailable)
        _broke_off(turn[-1], error, MAX_TRIES if passing else 1, using)
        if passing:
            raise
        logger.exception("Bulk action %s has failed.", turn[-1])
        return True


@retried
def _advance(turn: list[int], *, using: str) -> bool:
    actions = BulkAction.objects.using(using).filter(state=BulkAction.State.RUNNING).order_by("tries", "pk")
    if not actions.exists():
        return False
    with atomic(using=using):
        store_of(using).begin_writing()
        action = actions.select_for_update().first()
        if action is None:
            return False
        turn.append(action.pk)
        batch, more = _next(action, using)
        if batch:
            _do(action, batch, using)
        if not more:
            _end(action, using)
        action.tries, action.problem = 0, ""
        action.save(using=using)
    return True


def _broke_off(action_id: int, error: Exception, most: int, using: str) -> None:
    """Note why a batch broke off, and end the action if that was once too often.

    Where the site hides anything it is the kind of the error: a sentence may repeat arguments.
    """
    kind = type(error).__name__
    problem = f"{kind}: {error}" if str(error) and redaction.active() is None else kind
    found = BulkAction.objects.using(using).filter(pk=action_id, state=BulkAction.State.RUNNING)
    found.update(tries=F("tries") + 1, problem=problem.replace("\0", "")[:500])
    found.filter(tries__gte=most).update(state=BulkAction.State.FAILED, finished_at=clock.now(using))


def prune(now: dt.datetime, batch: int, using: str) -> int:
    """Forget actions that ended long ago."""
    old = BulkAction.objects.using(using).filter(finished_at__lt=now - KEPT).order_by("pk")
    return BulkAction.objects.using(using).filter(pk__in=list(old.values_list("pk", flat=True)[:batch])).delete()[0]


def _meant(action: BulkAction, wanted: JobFilter, using: str) -> QuerySet[Job]:
    """The jobs that were there when it was asked for; a clock may be a millisecond ahead."""
    then = action.created_at + dt.timedelta(milliseconds=1)
    column = "finished_at" if wanted.along == "finished_at" else "created_at"
    return wanted.jobs(using).filter(**{f"{column}__lte": then})


def _next(action: BulkAction, using: str) -> tuple[list[uuid.UUID], bool]:
    """The jobs whose turn it is, and whether there may be more; the action's place is behind them.

    Along their end if they are of one ended state, which has an index for that, else along their ids.
    """
    wanted = JobFilter.from_json(action.filter)
    by_end = wanted.along == "finished_at" and len(wanted.wanted_states) == 1
    jobs = _meant(action, wanted, using).filter(wanted.rest()).order_by(*(["finished_at", "pk"] if by_end else ["pk"]))
    if action.after_id is not None and by_end:
        behind = Q(finished_at__gt=action.after) | Q(finished_at=action.after, pk__gt=action.after_id)
        jobs = jobs.filter(behind, finished_at__gte=action.after)
    elif action.after_id is not None:
        jobs = jobs.filter(pk__gt=action.after_id)
    checks, columns = wanted.checks()
    rows: list[dict[str, Any]] = list(jobs.values("pk", "finished_at", *dict.fromkeys(columns))[:BATCH])
    if rows:
        action.after_id, action.after = rows[-1]["pk"], rows[-1]["finished_at"]
    return [row["pk"] for row in rows if all(check(row) for check in checks)], len(rows) == BATCH


def verb_of(action: BulkAction) -> BulkVerb:
    """What an action does."""
    return bulk.verb_of(action.verb, dead_letters=bool(action.filter.get("dead_letters")))


def _do(action: BulkAction, ids: Sequence[uuid.UUID], using: str) -> None:
    wanted = JobFilter.from_json(action.filter)
    how = How(action.actor, State.ACTIVE not in wanted.wanted_states, action.override)
    outcomes = done_where_fitting(
        lambda kept: verb_of(action).apply(kept, how, using), _meant(action, wanted, using), ids, using
    )
    refused = [(job_id, out) for job_id, out in zip(ids, outcomes, strict=True) if isinstance(out, OJSError)]
    done = [str(job_id) for job_id, out in zip(ids, outcomes, strict=True) if not isinstance(out, OJSError)]
    action.matched += len(ids)
    action.succeeded += len(done)
    known = action.errors or []
    refusals = [{"job_id": str(job_id), "error": str(error)[:500]} for job_id, error in refused]
    action.errors = [*known, *refusals[: MAX_ERRORS - len(known)]] or None
    detail = {"bulk_action": action.pk, "matched": len(ids), "succeeded": len(done), "job_ids": done}
    entry = Act(action.actor, f"job.bulk_{action.verb}", "", detail, action.door, action.source_ip)
    audit.append([entry], using)


def _end(action: BulkAction, using: str) -> None:
    action.state, action.finished_at = BulkAction.State.COMPLETED, clock.now(using)
    log.append(bulk.completed(verb_of(action), action.finished_at, action.matched, action.succeeded), using)


def facts(action: BulkAction) -> dict[str, Any]:
    """An action as programs see it."""
    return {
        "id": action.pk, "action": action.verb, "state": action.state, "expected": action.expected,
        "matched": action.matched, "succeeded": action.succeeded, "failed": action.failed,
        "filter": readable(action.filter), "override": action.override, "errors": action.errors or [],
        "problem": action.problem or None,
        "actor": action.actor, "door": action.door, "created_at": format_instant(action.created_at),
        "finished_at": format_instant(action.finished_at) if action.finished_at else None,
    }  # fmt: skip
