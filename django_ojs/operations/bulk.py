"""Bulk operations (binding 6): many jobs in one call, partly or all together.

Each is made of the verb's own operation, which takes many jobs in a constant number of statements; what is
added here is the choice between partly and atomically, and the event of the call.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import functools
import operator
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from django.db.models import Q, QuerySet

from django_ojs import clock, jsontext, sql, states
from django_ojs.conf import ojs_settings
from django_ojs.contention import retried
from django_ojs.errors import BatchAborted, InvalidRequest, NotFound, OJSError, QueueFull
from django_ojs.events import log
from django_ojs.events.catalogue import Record
from django_ojs.models import Job
from django_ojs.operations import backpressure, walking
from django_ojs.operations.cancel import cancel
from django_ojs.operations.common import atomic, database, refuse
from django_ojs.operations.delete import delete, delete_ended
from django_ojs.operations.hurry import hurry
from django_ojs.operations.push import Outcome, push_each
from django_ojs.operations.retry import retry
from django_ojs.policies import redaction
from django_ojs.states import State, Verb

#: What a filter that names no states looks for.
CANCEL_STATES = (State.AVAILABLE, State.SCHEDULED)
RETRY_STATES = (State.DISCARDED, State.RETRYABLE)
DELETE_STATES = tuple(states.ordered(states.TERMINAL))
_CHUNK = 2000


@dataclasses.dataclass(frozen=True, slots=True)
class Filter:
    """Which jobs are meant; everything given must fit."""

    states: Sequence[State]
    type: str = ""
    queue: str = ""
    enqueued_before: dt.datetime | None = None
    enqueued_after: dt.datetime | None = None
    priority: int | None = None
    meta: dict[str, Any] = dataclasses.field(default_factory=dict)

    def condition(self) -> Q:
        """What the database decides, which is all but `meta`."""
        found = Q(state__in=list(self.states))
        for column in ("type", "queue", "priority"):
            if (value := getattr(self, column)) not in ("", None):
                found &= Q(**{column: value})
        if self.enqueued_before:
            found &= Q(enqueued_at__lt=self.enqueued_before)
        if self.enqueued_after:
            found &= Q(enqueued_at__gt=self.enqueued_after)
        return found


def matching(wanted: Filter, visible: Q, limit: int, *, using: str | None = None) -> list[uuid.UUID]:
    """The ids of at most `limit` jobs that fit, oldest id first. `visible` is what the caller may touch.

    A `meta`, which no index finds, is looked for among so many jobs and so long as `OJS["SEARCH_DEPTH"]` and
    `OJS["SEARCH_SECONDS"]` allow over HTTP. Raises `InvalidRequest` where that was not far enough.
    """
    jobs = Job.objects.using(database(using)).filter(wanted.condition() & visible)
    if not wanted.meta:
        return list(jobs.order_by("pk").values_list("pk", flat=True)[:limit])
    rest = functools.reduce(operator.and_, (Q(meta__contains=name) for name in wanted.meta))
    done = walking.walk(
        jobs, "id", lambda part: _with_meta(part.filter(rest), wanted.meta), limit,
        depth=walking.DEEPER * ojs_settings.SEARCH_DEPTH, seconds=ojs_settings.SEARCH_SECONDS, descending=False,
    )  # fmt: skip
    if done.ended in ("depth", "time"):
        raise InvalidRequest(
            f"filter.meta was looked for in {done.looked} jobs, and more fit the rest of the filter.",
            details={"field": "filter.meta", "searched": done.looked, "found": len(done.found)},
            hint="Nothing was changed. Narrow the filter by queue, type, state, priority or the time of enqueueing.",
        )
    return sorted(done.found)[:limit]


def _with_meta(jobs: QuerySet[Job], meta: dict[str, Any]) -> list[uuid.UUID]:
    """Those with these members. What the site hides counts as it is shown, or asking would tell what it is."""
    hides = redaction.active() is not None
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


def enqueue(documents: Sequence[Any], *, partial: bool, using: str | None = None) -> list[Outcome]:
    """PUSH many jobs; return for each what became of it, or the error that refused it.

    Not `partial`: one error and nothing is stored; the others come back as `BatchAborted`.
    """
    using = database(using)
    logged: list[bool] = []

    def closing(outcomes: Sequence[Outcome]) -> list[Record]:
        logged.append(True)
        failed = sum(isinstance(outcome, OJSError) for outcome in outcomes)
        facts = {"total": len(outcomes), "succeeded": len(outcomes) - failed, "failed": failed}
        atomicity = "partial" if partial else "atomic"
        now = clock.now(using)
        full = {outcome.extra["queue"]: outcome for outcome in outcomes if isinstance(outcome, QueueFull)}
        refusals = [backpressure.rejected(error, now) for error in full.values()]
        return [*refusals, completed("enqueue", now, **facts, atomicity=atomicity)]

    outcomes = push_each(documents, partial=partial, closing=closing, using=using)
    if not logged:  # refused before anything was to be stored
        log.append(closing(outcomes), using)
    return outcomes


def cancel_many(
    job_ids: Sequence[uuid.UUID], *, partial: bool, spare_active: bool = False, by: str = "", using: str | None = None
) -> list[Any]:
    """CANCEL many jobs; return a `Cancelled` or an error for each."""

    def act(alias: str) -> list[Any]:
        return cancel(job_ids, cancelled_by=by, spare_active=spare_active, using=alias)

    return _bulk("cancel", "cancelled", act, partial, using)


def retry_many(
    job_ids: Sequence[uuid.UUID], *, partial: bool, dead_letters: bool = False,
    override: Mapping[str, Any] | None = None, using: str | None = None,
) -> list[Any]:  # fmt: skip
    """Make discarded and retryable jobs available; return a row or an error for each.

    With `dead_letters` those in the dead letter queue alone, which `override` may change (`operations.retry`).
    """

    def act(alias: str) -> list[Any]:
        return retry(job_ids, override=override, using=alias) if dead_letters else retry_failed(job_ids, alias)

    return _bulk("retry", "retried", act, partial, using)


def retry_failed(job_ids: Sequence[uuid.UUID], using: str) -> list[Any]:
    """`retry_many` without its event, in the caller's transaction."""
    rows = {row["id"]: row for row in sql.store(using).lock(set(job_ids))}
    by_state = {state: [i for i in rows if rows[i]["state"] == state] for state in RETRY_STATES}
    revived, hurried = by_state[State.DISCARDED], by_state[State.RETRYABLE]
    done: dict[uuid.UUID, Any] = dict(zip(revived, retry(revived, any_discarded=True, using=using), strict=True))
    done |= zip(hurried, hurry(hurried, using=using), strict=True)
    takes = [state.value for state in RETRY_STATES]
    left = {i: row for i, row in rows.items() if i not in done}
    done |= {i: refuse(row, Verb.RETRY, State.AVAILABLE, expected_state=takes) for i, row in left.items()}
    return [done[job_id] if job_id in done else _not_found(job_id) for job_id in job_ids]


def delete_many(
    job_ids: Sequence[uuid.UUID], *, partial: bool, dead_letters: bool = False, using: str | None = None
) -> list[Any]:
    """Delete many ended jobs, or dead letters alone; return the id or an error for each."""
    act = delete if dead_letters else delete_ended
    return _bulk("delete", "deleted", lambda alias: act(job_ids, using=alias), partial, using)


class _UndoneError(Exception):
    """Rolls an atomic call back that had a refusal."""


def _bulk(
    name: str, done_name: str, act: Callable[[str], list[Any]], partial: bool, using: str | None
) -> list[Any]:  # fmt: skip
    alias = database(using)
    outcomes: list[Any] = []

    @retried
    def together(*, using: str) -> None:
        with atomic(using=using):
            outcomes[:] = act(using)
            if not partial and any(isinstance(outcome, OJSError) for outcome in outcomes):
                raise _UndoneError
            log.append([event()], alias)

    def event() -> Record:
        done = sum(not isinstance(outcome, OJSError) for outcome in outcomes)
        facts = {"total": len(outcomes), done_name: done, "skipped": len(outcomes) - done}
        return completed(name, clock.now(alias), **facts)

    try:
        together(using=alias)
    except _UndoneError:
        outcomes = [outcome if isinstance(outcome, OJSError) else undone() for outcome in outcomes]
        log.append([event()], alias)
    return outcomes


def undone() -> BatchAborted:
    return BatchAborted("Left alone, because another job of this atomic request was refused.")


def _not_found(job_id: uuid.UUID) -> OJSError:
    return NotFound.resource("job", str(job_id))


def completed(name: str, time: dt.datetime, **facts: Any) -> Record:
    """The event of a bulk operation that has ended."""
    return Record(f"bulk.{name}.completed", time, "api", "jobs", data=jsontext.dumps(facts))
