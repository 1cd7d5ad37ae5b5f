"""Does one thing to many jobs: the engine of the HTTP API, the admin, the commands and bulk actions.

A `BulkVerb` is what is done: a verb, such as `jobs.cancel.cancel`, and what it refuses, which a dry run asks alone.
The jobs are named by their ids or found by a `JobFilter`. `run` does it in one transaction, partly or all together
(binding 6); `run_in_batches` does it to however many, in transactions of 500 jobs, each with its entry in the audit log
(admin 1.4). A caller who breaks off in between leaves whole batches behind, never half of one.

A `BulkAction` is such an act that is asked for once and carried out by the scheduler, or one that erases events of the
history. Each pass is one transaction with one batch of jobs or events, the place behind it, the numbers and the entry
in the audit log. So the next leader goes on where the last one stopped, and nothing is done twice or left out.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import functools
import operator
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from django.db.models import F, Q, QuerySet

from django_ojs import audit, clock, jsontext
from django_ojs.access import UNLIMITED, Limits
from django_ojs.audit import Act
from django_ojs.conf import ojs_settings
from django_ojs.database import atomic, database, retried
from django_ojs.errors import BatchAborted, Conflict, InvalidRequest, NotFound, OJSError, QueueFull
from django_ojs.events import log
from django_ojs.events.catalogue import Record
from django_ojs.events.history import HistoryQuery
from django_ojs.faults import passes
from django_ojs.guard import get_logger
from django_ojs.jobs import history, search
from django_ojs.jobs.cancel import CANCELLABLE, Cancelled, cancel, not_cancelled
from django_ojs.jobs.candidates import PushOutcome
from django_ojs.jobs.delete import DELETABLE, delete, delete_ended, not_a_dead_letter, not_deleted
from django_ojs.jobs.history import Erasure
from django_ojs.jobs.promote import RUNNABLE, not_run, run_now
from django_ojs.jobs.push import push_each
from django_ojs.jobs.retry import FAILED_STATES, check_override, not_retried, not_revived, retry, retry_failed
from django_ojs.jobs.selection import JobFilter, readable
from django_ojs.lifecycle.transitions import done_where_fitting, still_fitting
from django_ojs.messages import phrase
from django_ojs.models import BulkAction, Job
from django_ojs.models.fields import has_exactly
from django_ojs.models.job import JobRow
from django_ojs.queues import bounds
from django_ojs.rules import names, redaction
from django_ojs.rules.durations import format_instant
from django_ojs.rules.faults import integer
from django_ojs.rules.replayrules import MAX_PER_MINUTE
from django_ojs.states import State
from django_ojs.store import store_of

logger = get_logger(__name__)

#: Jobs of one transaction, and ids that are looked up at once.
BATCH, LOOKUP = 500, 10_000
#: Refusals that a report spells out.
MAX_ERRORS = 100
_CHUNK = 2000
#: Refusals that are kept, and how long an action that has ended is.
KEPT_ERRORS, KEPT_FOR = 20, dt.timedelta(days=30)
#: How often a batch may break off before its action has failed.
MAX_TRIES = 5
#: The action that erases events of the history, and how many a call erases at most by itself.
PURGE_HISTORY, MOST_EVENTS = "purge_history", 100_000
#: More jobs than any search finds.
MANY = 2**62
#: An action that has a rate does a batch about so often.
GAP = dt.timedelta(seconds=5)
#: Behind a batch of one job, by the lowest rate.
LONGEST_GAP = dt.timedelta(minutes=1)

#: Reads a rate. Raises `InvalidRequest` with the path of one that cannot be.
rate = integer(1, MAX_PER_MINUTE)


@dataclasses.dataclass(frozen=True, slots=True)
class How:
    """The options of a verb for many jobs.

    Attributes:
        by: who cancels.
        spare_active: running jobs are not cancelled.
        override: what is changed in dead letters that are retried.
        limits: what the caller reaches; the jobs lie within that already.
    """

    by: str = ""
    spare_active: bool = False
    override: Mapping[str, Any] | None = None
    limits: Limits = UNLIMITED


@dataclasses.dataclass(frozen=True, slots=True)
class BulkVerb:
    """What is done to many jobs.

    Attributes:
        name: what requests, bulk actions and the audit log call it.
        done: what its event calls the jobs that it was done to; '' for a verb that the binding does not know.
        takes: the states of the jobs that it does not refuse.
        default: those that a producer's filter means where it names none.
        refusal: why the verb would leave a job as it is; None where it would not.
        apply: does it to jobs of a database, in the caller's transaction.
        resource: what a job that is not there is called.
        dead_letters: it is done to dead letters, and takes nothing else.
    """

    name: str
    done: str
    takes: Sequence[State]
    refusal: Callable[[JobRow], OJSError | None]
    apply: Callable[[Sequence[uuid.UUID], How, str], list[Any]]
    default: Sequence[State] = ()
    resource: str = "job"
    dead_letters: bool = False


#: What may be done to jobs.
JOBS = {
    verb.name: verb
    for verb in (
        BulkVerb(
            "retry", "retried", FAILED_STATES, not_retried,
            lambda ids, how, using: retry_failed(ids, using, limits=how.limits), FAILED_STATES,
        ),
        BulkVerb(
            "delete", "deleted", DELETABLE, not_deleted,
            lambda ids, how, using: delete_ended(ids, using=using), DELETABLE,
        ),
        BulkVerb(
            "cancel", "cancelled", CANCELLABLE, not_cancelled,
            lambda ids, how, using: cancel(
                ids, cancelled_by=how.by, spare_active=how.spare_active, using=using
            ),
            (State.AVAILABLE, State.SCHEDULED),
        ),
        BulkVerb(
            "run", "", RUNNABLE, not_run, lambda ids, how, using: run_now(ids, using=using),
        ),
    )
}  # fmt: skip
#: What may be done to dead letters.
DEAD_LETTERS = {
    verb.name: verb
    for verb in (
        BulkVerb(
            "retry", "retried", (State.DISCARDED,), not_revived,
            lambda ids, how, using: retry(ids, override=how.override, limits=how.limits, using=using),
            dead_letters=True,
        ),
        BulkVerb(
            "delete", "deleted", (State.DISCARDED,), not_a_dead_letter,
            lambda ids, how, using: delete(ids, using=using), resource="dead_letter_job",
            dead_letters=True,
        ),
    )
}  # fmt: skip


def verb_of(name: str, *, dead_letters: bool = False) -> BulkVerb:
    """The verb of this name, for dead letters or for any jobs. Raises KeyError."""
    return (DEAD_LETTERS if dead_letters else JOBS)[name]


# Dry runs


def refusals(
    verb: BulkVerb, ids: Sequence[uuid.UUID], *, using: str | None = None
) -> list[tuple[uuid.UUID, OJSError]]:  # fmt: skip
    """Those of the jobs `ids` that the verb would refuse, in their order, each with the error that it would be."""
    using = database(using)
    found: list[tuple[uuid.UUID, OJSError]] = []
    for part in split(ids):
        rows = {row["id"]: row for row in Job.objects.using(using).filter(pk__in=part).rows(_JUDGED)}
        for job_id in part:
            row = rows.get(job_id)
            error = NotFound.resource(verb.resource, str(job_id)) if row is None else verb.refusal(row)
            found += [(job_id, error)] if error else []
    return found


#: What a refusal reads of a job.
_JUDGED = ("id", "state", "dead_letter")


# In one transaction


def run(
    verb: BulkVerb, job_ids: Sequence[uuid.UUID], how: How | None = None, *, partial: bool, using: str | None = None
) -> list[Any]:  # fmt: skip
    """Do it to these jobs, with the event of a bulk operation; return an outcome or an `OJSError` for each.

    Not `partial`: one refusal and nothing is done; the others come back as `BatchAborted`.
    """
    alias = database(using)
    outcomes: list[Any] = []

    @retried
    def together(*, using: str) -> None:
        with atomic(using=using):
            outcomes[:] = verb.apply(job_ids, how or How(), using)
            if not partial and any(isinstance(outcome, OJSError) for outcome in outcomes):
                raise _UndoneError
            log.append(event(), alias)

    def event() -> list[Record]:
        left = [
            one for one in outcomes if isinstance(one, OJSError) or (isinstance(one, Cancelled) and not one.changed)
        ]
        done = len(outcomes) - len(left)
        return completed(verb, clock.now(alias), len(outcomes), done)

    try:
        together(using=alias)
    except _UndoneError:
        outcomes = [outcome if isinstance(outcome, OJSError) else undone() for outcome in outcomes]
        log.append(event(), alias)
    return outcomes


class _UndoneError(Exception):
    """Rolls an atomic call back that had a refusal."""


def undone() -> BatchAborted:
    return BatchAborted("Left alone, because another job of this atomic request was refused.")


def completed(verb: BulkVerb, time: dt.datetime, total: int, done: int) -> list[Record]:
    """The event of a bulk operation that has ended; none for a verb that the binding does not know."""
    return [_completed(verb.name, time, total=total, **{verb.done: done}, skipped=total - done)] if verb.done else []


def _completed(name: str, time: dt.datetime, **facts: Any) -> Record:
    return Record(f"bulk.{name}.completed", time, "api", "jobs", data=jsontext.dumps(facts))


def enqueue(
    documents: Sequence[Any], *, partial: bool, limits: Limits = UNLIMITED, using: str | None = None
) -> list[PushOutcome]:  # fmt: skip
    """PUSH many jobs; return for each what became of it, or the error that refused it.

    Not `partial`: one error and nothing is stored; the others come back as `BatchAborted`.
    """
    using = database(using)
    logged: list[bool] = []

    def closing(outcomes: Sequence[PushOutcome]) -> list[Record]:
        logged.append(True)
        failed = sum(isinstance(outcome, OJSError) for outcome in outcomes)
        facts = {"total": len(outcomes), "succeeded": len(outcomes) - failed, "failed": failed}
        now = clock.now(using)
        full = {outcome.extra["queue"]: outcome for outcome in outcomes if isinstance(outcome, QueueFull)}
        rejected = [bounds.rejected(error, now) for error in full.values()]
        return [*rejected, _completed("enqueue", now, **facts, atomicity="partial" if partial else "atomic")]

    outcomes = push_each(documents, partial=partial, closing=closing, limits=limits, using=using)
    if not logged:  # refused before anything was to be stored
        log.append(closing(outcomes), using)
    return outcomes


def matching(wanted: JobFilter, limit: int, *, using: str | None = None) -> list[uuid.UUID]:
    """The ids of at most `limit` jobs that fit, oldest id first.

    They fit until the end of the caller's transaction, which has them locked.

    A `meta`, which no index finds, is looked for among so many jobs and so long as `OJS["SEARCH_DEPTH"]` and
    `OJS["SEARCH_SECONDS"]` allow over HTTP. Raises `InvalidRequest` where that was not far enough.
    """
    using = database(using)
    jobs = wanted.jobs(using)
    meta = wanted.values.get("meta")
    if not meta:
        return sorted(still_fitting(jobs, list(jobs.order_by("pk").values_list("pk", flat=True)[:limit]), using))
    rest = functools.reduce(operator.and_, (has_exactly("meta", jsontext.dumps(name)) for name in meta))
    done = search.scan(
        jobs, "id", lambda part: _with_meta(part.filter(rest), meta), limit,
        depth=search.DEEPER * ojs_settings.SEARCH_DEPTH, descending=False,
    )  # fmt: skip
    if done.ended in ("depth", "time"):
        raise InvalidRequest(
            f"filter.meta was looked for in {done.looked} jobs, and more fit the rest of the filter.",
            details={"field": "filter.meta", "searched": done.looked, "found": len(done.found)},
            hint="Nothing was changed. Narrow the filter by queue, type, state, priority or the time of enqueueing.",
        )
    return sorted(still_fitting(jobs, sorted(done.found)[:limit], using))


def _with_meta(jobs: QuerySet[Job], meta: dict[str, Any]) -> list[uuid.UUID]:
    """Those with these members. What the site hides counts as it is shown, or asking would tell what it is."""
    hides = redaction.site_rules() is not None
    found: list[uuid.UUID] = []
    rows: Iterable[tuple[uuid.UUID, str, Any]] = jobs.values_list("pk", "type", "meta").iterator(chunk_size=_CHUNK)
    for job_id, job_type, value in rows:
        shown = redaction.part("meta", value or {}, job_type, value) if hides else value or {}
        if all(name in shown and _same(shown[name], wanted) for name, wanted in meta.items()):
            found.append(job_id)
    return found


def _same(one: Any, other: Any) -> bool:
    """Equal as JSON: 1 is 1.0, and true is neither."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    return bool(one == other) if not isinstance(one, dict | list) else jsontext.dumps(one) == jsontext.dumps(other)


# In batches


@dataclasses.dataclass(slots=True)
class BulkReport:
    """What became of the jobs of one call."""

    matched: int = 0
    succeeded: int = 0
    errors: list[tuple[uuid.UUID, OJSError]] = dataclasses.field(default_factory=list)

    @property
    def failed(self) -> int:
        return self.matched - self.succeeded


def run_in_batches(
    verb: BulkVerb, ids: Iterable[Sequence[uuid.UUID]], how: How, entry: Act, using: str,
    *, selected: QuerySet[Job] | None = None,
) -> BulkReport:  # fmt: skip
    """Do it to all of `ids`, batch by batch. What one job is refused stops no other.

    `selected`, where a filter found the ids, are the jobs that fit it: one that has changed since is refused.
    """
    report = BulkReport()
    for batch in ids:
        noted = dataclasses.replace(entry, detail=dict(entry.detail))
        outcomes = run_batch(verb, batch, how, noted, using, selected=selected)
        refused = [(job_id, out) for job_id, out in zip(batch, outcomes, strict=True) if isinstance(out, OJSError)]
        report.matched += len(batch)
        report.succeeded += len(batch) - len(refused)
        report.errors += refused[: MAX_ERRORS - len(report.errors)]
    return report


def noted(
    wanted: JobFilter | Mapping[str, Any] | None, override: Mapping[str, Any] | None = None, *,
    per_minute: int | None = None, reason: str = "",
) -> dict[str, Any]:  # fmt: skip
    """What the audit log says of an act on many jobs, whatever its door, beside what became of them: the filter that
    found them, in the words of the caller or as it was read, and which of their members were changed.

    It names no arguments and no meta: of a text that was looked for it says only that there was one.
    """
    detail: dict[str, Any] = {}
    if wanted is not None:
        shown = readable(wanted.to_json()) if isinstance(wanted, JobFilter) else dict(wanted)
        shown |= {name: "…" for name in ("text", "q") if shown.get(name)}
        shown |= {"meta": sorted(shown["meta"])} if isinstance(shown.get("meta"), Mapping) else {}
        detail["filter"] = shown
    detail |= {"override": sorted(override)} if override else {}
    detail |= {"per_minute": per_minute} if per_minute else {}
    return detail | ({"reason": reason} if reason else {})


def _name_jobs(entry: Act, done: Sequence[uuid.UUID], matched: int) -> None:
    entry.detail |= {"matched": matched, "succeeded": len(done), "job_ids": [str(job_id) for job_id in done]}


def run_batch(
    verb: BulkVerb, ids: Sequence[uuid.UUID], how: How, entry: Act, using: str, *,
    selected: QuerySet[Job] | None = None, fill_entry: Callable[[Act, Sequence[uuid.UUID], int], None] = _name_jobs,
) -> list[Any]:  # fmt: skip
    """Do it to these jobs, in one transaction with the entry, in which `fill_entry` says to which it was done."""

    def act() -> list[Any]:
        if selected is None:
            outcomes = run(verb, ids, how, partial=True, using=using)
        else:
            outcomes = done_where_fitting(
                lambda kept: run(verb, kept, how, partial=True, using=using), selected, ids, using
            )
        fill_entry(entry, [job_id for job_id, out in zip(ids, outcomes, strict=True) if not isinstance(out, OJSError)],
                   len(ids))  # fmt: skip
        return outcomes

    return audit.perform(act, entry, using=using)


def batches(jobs: QuerySet[Job], using: str) -> Iterator[list[uuid.UUID]]:
    """The ids of all jobs that fit now, in their order. Jobs that come while it runs are left out."""
    jobs = jobs.filter(created_at__lt=clock.stamps(1, clock.now(using))).order_by("pk")
    last: uuid.UUID | None = None
    while True:
        page = jobs if last is None else jobs.filter(pk__gt=last)
        found = list(page.values_list("pk", flat=True)[:LOOKUP])
        yield from split(found)
        if len(found) < LOOKUP:
            return
        last = found[-1]


def split(ids: Sequence[uuid.UUID]) -> Iterator[list[uuid.UUID]]:
    """The ids in batches."""
    for start in range(0, len(ids), BATCH):
        yield list(ids[start : start + BATCH])


# In the background


def start_action(
    verb: str, wanted: JobFilter, entry: Act, *, override: Mapping[str, Any] | None = None,
    per_minute: int | None = None, using: str | None = None,
) -> BulkAction:  # fmt: skip
    """Note down that this is to be done to all jobs that fit now; none that comes later is selected.

    `per_minute` is the number of jobs that it is done to in a minute at most; None: as fast as it goes.

    A text or a tag is looked for here, as far as searches go, and no further later on. `entry` says who wants it.
    Raises `InvalidRequest` for a verb there is not, a malformed `override` or rate, and a filter without states.
    """
    using = database(using)
    if not wanted.wanted_states:
        raise InvalidRequest("A bulk action has to name the states of its jobs.", details={"field": "states"})
    letters = "dead_letters" in wanted.values
    if verb not in (DEAD_LETTERS if letters else JOBS) or (override and not (letters and verb == "retry")):
        raise InvalidRequest(f"There is no bulk action '{verb}'{' with changes' if override else ''}.")
    check_override(override)
    if per_minute is not None:
        per_minute = rate(per_minute, "per_minute")
    action = _begun(verb, entry, using)
    action.per_minute = per_minute
    if wanted.searches:
        found, look = wanted.searched(using, MANY)
        wanted, action.expected = wanted.bounded(look), len(found)
    else:
        action.expected = _selected(action, wanted, using).order_by().count()

    action.filter, action.override = wanted.to_json(), dict(override) if override else None

    def act() -> BulkAction:
        action.pk, action._state.adding = None, True  # where a lost race makes it begin anew
        action.save(using=using, force_insert=True)
        entry.detail |= {"bulk_action": action.pk, "expected": action.expected}
        entry.detail |= noted(wanted, override, per_minute=per_minute)
        return action

    return audit.perform(act, entry, using=using)


def _begun(verb: str, entry: Act, using: str) -> BulkAction:
    return BulkAction(
        verb=verb, created_at=clock.now(using), actor=entry.actor[:255], door=entry.door, source_ip=entry.source_ip[:64]
    )


def purge_history(
    before: dt.datetime, wanted: HistoryQuery, entry: Act, *, using: str | None = None
) -> int | BulkAction:  # fmt: skip
    """Erase the events of the history that are asked for, from before this instant; return how many there were.

    In batches, each its own transaction with its entry in the audit log, so that others write in between. More than
    `MOST_EVENTS` are left to a bulk action, which is returned: the one that runs, if the same caller asks again.
    """
    using = database(using)
    erasure = Erasure.begin(before, wanted, using)
    expected = erasure.events(using).count()
    if expected > MOST_EVENTS:
        return _purge_later(erasure, expected, entry, using)
    number = 0
    place: int | None = 0
    while place is not None:
        ids, place = erasure.following(place, using)
        if ids or (place is None and not number):  # an act that finds nothing has its entry, too
            noted = dataclasses.replace(entry, detail=dict(entry.detail))
            number += audit.perform(functools.partial(_purge, ids, noted, using), noted, using=using)
    return number


def _purge(ids: Sequence[int], entry: Act, using: str) -> int:
    store_of(using).begin_writing()
    entry.detail["events_deleted"] = done = history.emptied(ids, using)
    return done


def _purge_later(erasure: Erasure, expected: int, entry: Act, using: str) -> BulkAction:
    kept = erasure.to_json()

    def act() -> BulkAction:
        store_of(using).begin_writing()
        for action in BulkAction.objects.using(using).filter(
            verb=PURGE_HISTORY, state=BulkAction.State.RUNNING, actor=entry.actor[:255]
        ):
            if action.filter | {"edge": None} == kept | {"edge": None}:
                break
        else:
            action = _begun(PURGE_HISTORY, entry, using)
            action.expected, action.filter = expected, kept
            action.save(using=using, force_insert=True)
        entry.detail |= {"bulk_action": action.pk, "expected": action.expected}
        return action

    return audit.perform(act, entry, using=using)


def cancel_action(action_id: int, *, using: str | None = None) -> BulkAction:
    """Let it end where it is. Raises `NotFound`, and `Conflict` if it has ended already."""
    using = database(using)
    running_actions = BulkAction.objects.using(using).filter(pk=action_id, state=BulkAction.State.RUNNING)
    changed = running_actions.update(state=BulkAction.State.CANCELLED, finished_at=clock.now(using))
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


def running_actions(using: str | None = None) -> list[BulkAction]:
    """Those that are not done, the next first."""
    found = BulkAction.objects.using(database(using)).filter(state=BulkAction.State.RUNNING)
    return list(found.order_by("pk"))


def advance_action(*, using: str | None = None) -> bool:
    """Do one batch of the action whose turn it is; False where there is none.

    That is the first that was asked for, of those whose rate allows a batch now and whose batches broke off the least.
    A fault of the database is noted at the action and raised: it is tried again, behind the others, and ends as failed
    after `MAX_TRIES`. Any other fault would come again, and ends it at once.
    """
    using = database(using)
    begun: list[int] = []
    try:
        return _advance(begun, using=using)
    except Exception as error:
        if not begun:
            raise
        passing = passes(error)
        _broke_off(begun[-1], error, MAX_TRIES if passing else 1, using)
        if passing:
            raise
        logger.exception("Bulk action %s has failed.", begun[-1])
        return True


@retried
def _advance(begun: list[int], *, using: str) -> bool:
    now = clock.now(using)
    # Beyond the longest pause: noted while the clock was ahead.
    due = Q(next_at=None) | Q(next_at__lte=now) | Q(next_at__gt=now + LONGEST_GAP + clock.AHEAD)
    actions = BulkAction.objects.using(using).filter(due, state=BulkAction.State.RUNNING).order_by("tries", "pk")
    if not actions.exists():
        return False
    with atomic(using=using):
        store_of(using).begin_writing()
        action = actions.select_for_update().first()
        if action is None:
            return False
        begun.append(action.pk)
        more = _erase(action, using) if action.verb == PURGE_HISTORY else _act(action, now, using)
        if not more:
            _complete(action, using)
        action.tries, action.problem = 0, ""
        action.save(using=using)
    return True


def _act(action: BulkAction, now: dt.datetime, using: str) -> bool:
    """Do the next batch of jobs; return whether there may be more."""
    batch, more = _next(action, using)
    if batch:
        _do(action, batch, using)
    _pace(action, len(batch), now)
    return more


def _erase(action: BulkAction, using: str) -> bool:
    """Erase the next batch of events; return whether there may be more."""
    ids, place = Erasure.from_json(action.filter).following(action.after_event or 0, using)
    done = history.emptied(ids, using)
    action.after_event = place or action.after_event
    action.matched += done
    action.succeeded += done
    if done:
        detail = {"bulk_action": action.pk, "events_deleted": done}
        audit.append([Act(action.actor, "history.purge", "", detail, action.door, action.source_ip)], using)
    return place is not None


def _pace(action: BulkAction, done: int, now: dt.datetime) -> None:
    """Note when the next batch of an action with a rate may come. What came too late is not made up for."""
    if action.per_minute:
        pause = dt.timedelta(minutes=done / action.per_minute)
        last = action.next_at
        if last is None or not dt.timedelta() <= now - last < GAP:
            last = now
        action.next_at = last + pause


def _size(action: BulkAction) -> int:
    """How many jobs a batch looks at."""
    if not action.per_minute:
        return BATCH
    return max(min(int(action.per_minute * (GAP / dt.timedelta(minutes=1))), BATCH), 1)


def _broke_off(action_id: int, error: Exception, most: int, using: str) -> None:
    """Note why a batch broke off, and end the action if that was once too often.

    Where the site hides anything it is the kind of the error: a sentence may repeat arguments.
    """
    kind = type(error).__name__
    problem = f"{kind}: {error}" if str(error) and redaction.site_rules() is None else kind
    found = BulkAction.objects.using(using).filter(pk=action_id, state=BulkAction.State.RUNNING)
    found.update(tries=F("tries") + 1, problem=names.storable(problem)[:500])
    found.filter(tries__gte=most).update(state=BulkAction.State.FAILED, finished_at=clock.now(using))


def prune_actions(now: dt.datetime, batch: int, using: str) -> int:
    """Forget actions that ended long ago."""
    old = BulkAction.objects.using(using).filter(finished_at__lt=now - KEPT_FOR).order_by("pk")
    return BulkAction.objects.using(using).filter(pk__in=list(old.values_list("pk", flat=True)[:batch])).delete()[0]


def _selected(action: BulkAction, wanted: JobFilter, using: str) -> QuerySet[Job]:
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
    order = ["finished_at", "pk"] if by_end else ["pk"]
    jobs = _selected(action, wanted, using).filter(wanted.rest()).order_by(*order)
    if action.after_id is not None and by_end:
        behind = Q(finished_at__gt=action.after) | Q(finished_at=action.after, pk__gt=action.after_id)
        jobs = jobs.filter(behind, finished_at__gte=action.after)
    elif action.after_id is not None:
        jobs = jobs.filter(pk__gt=action.after_id)
    checks, columns = wanted.checks()
    size = _size(action)
    rows: list[dict[str, Any]] = list(jobs.values("pk", "finished_at", *dict.fromkeys(columns))[:size])
    if rows:
        action.after_id, action.after = rows[-1]["pk"], rows[-1]["finished_at"]
    return [row["pk"] for row in rows if all(check(row) for check in checks)], len(rows) == size


def verb_of_action(action: BulkAction) -> BulkVerb:
    """What an action does to jobs."""
    return verb_of(action.verb, dead_letters=bool(action.filter.get("dead_letters")))


def _do(action: BulkAction, ids: Sequence[uuid.UUID], using: str) -> None:
    wanted = JobFilter.from_json(action.filter)
    how = How(action.actor, State.ACTIVE not in wanted.wanted_states, action.override, wanted.limits)
    outcomes = done_where_fitting(
        lambda kept: verb_of_action(action).apply(kept, how, using), _selected(action, wanted, using), ids, using
    )
    refused = [(job_id, out) for job_id, out in zip(ids, outcomes, strict=True) if isinstance(out, OJSError)]
    done = [str(job_id) for job_id, out in zip(ids, outcomes, strict=True) if not isinstance(out, OJSError)]
    action.matched += len(ids)
    action.succeeded += len(done)
    known = action.errors or []
    refusals = [{"job_id": str(job_id), "error": str(error)[:500]} for job_id, error in refused]
    action.errors = [*known, *refusals[: KEPT_ERRORS - len(known)]] or None
    detail = {"bulk_action": action.pk, "matched": len(ids), "succeeded": len(done), "job_ids": done}
    detail |= noted(wanted, action.override, per_minute=action.per_minute)
    entry = Act(action.actor, f"job.bulk_{action.verb}", "", detail, action.door, action.source_ip)
    audit.append([entry], using)


def _complete(action: BulkAction, using: str) -> None:
    action.state, action.finished_at = BulkAction.State.COMPLETED, clock.now(using)
    if action.verb != PURGE_HISTORY:  # which does nothing to jobs
        log.append(completed(verb_of_action(action), action.finished_at, action.matched, action.succeeded), using)


def filter_of_action(action: BulkAction) -> dict[str, Any]:
    """What the jobs of an action, or the events that it erases, have to fit, as programs see it."""
    if action.verb != PURGE_HISTORY:
        return readable(action.filter)
    return {name: value for name, value in action.filter.items() if name != "edge"}


def changes_of_action(action: BulkAction) -> dict[str, Any]:
    """What an action changes in the jobs that it retries, as it is shown: they are of any type that fits its filter."""
    wanted = action.filter.get("type") or ""
    return redaction.event(wanted if names.prefix(wanted) is None else "", action.override or {})


def describe_action(action: BulkAction) -> dict[str, Any]:
    """An action as programs see it."""
    return {
        "id": action.pk, "action": action.verb, "state": action.state, "expected": action.expected,
        "matched": action.matched, "succeeded": action.succeeded, "failed": action.failed,
        "filter": filter_of_action(action), "override": changes_of_action(action) or None,
        "per_minute": action.per_minute, "errors": action.errors or [],
        "problem": action.problem or None,
        "actor": action.actor, "door": action.door, "created_at": format_instant(action.created_at),
        "finished_at": format_instant(action.finished_at) if action.finished_at else None,
    }  # fmt: skip
