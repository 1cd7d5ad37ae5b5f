"""Makes the rows of new jobs and inserts them: the last step of a push.

`store_plain` is all that it takes for jobs about which there is nothing to decide. A row says what its envelope asks
for, over the defaults of its queue, over those of the site.
"""

from __future__ import annotations

import contextlib
import datetime as dt
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from itertools import islice
from typing import Any, overload

from django.db import IntegrityError, connections

from django_ojs import hooks, spellings
from django_ojs.conf import ojs_settings
from django_ojs.database import atomic
from django_ojs.events import catalogue
from django_ojs.jobs.candidates import Candidate, PushContext, Pushed, duplicate_of, duplicate_of_id, taken_ids
from django_ojs.lifecycle.transitions import wake_at
from django_ojs.lifecycle.waking import wake_workers
from django_ojs.limits import ratelimits
from django_ojs.models.job import BLANK, JobRow
from django_ojs.queues import configuration as queues
from django_ojs.registry import registry
from django_ojs.rules import ratelimit, retrypolicy
from django_ojs.rules.envelope import JobSpec
from django_ojs.rules.ids import parse_id
from django_ojs.rules.retrypolicy import RetryPolicy
from django_ojs.states import State
from django_ojs.store import store_of
from django_ojs.store.values import FlowChange

#: How often a push looks again for ids that were taken between its last look and its insert.
LOOKS = 3


def store_plain(waiting: Sequence[Candidate], context: PushContext) -> None:
    """Store jobs about which there is nothing to decide, all or none; with `partial` those whose ids are free, and
    refuse the others. Which ids are taken it asks only where an insert has failed."""
    using = context.using
    for looks in range(LOOKS if context.partial else 0, -1, -1):
        try:
            with savepoint_for(waiting, context):
                rows = make_rows(waiting, context)
                worker_sleeps = insert(rows, context.component, using, context.workflow_change)
        except IntegrityError as error:
            if looks:
                waiting = _with_free_ids(waiting, using)
                continue
            if context.own:
                raise
            raise duplicate_of_id(error, waiting, using) from error
        mark_created(waiting, rows)
        wake(worker_sleeps, using)
        return


def _with_free_ids(waiting: Sequence[Candidate], using: str) -> list[Candidate]:
    """Refuse those whose ids are taken; return the others."""
    taken = taken_ids(waiting, using)
    for candidate in waiting:
        if candidate.valid_spec.id in taken:
            candidate.refuse(duplicate_of(candidate, taken))
    return [candidate for candidate in waiting if candidate.outcome is None]


def savepoint_for(waiting: Iterable[Candidate], context: PushContext) -> AbstractContextManager[None]:
    """A block around an insert, with a savepoint where it is needed: inside the caller's transaction a taken id must
    not spoil the rest of it. Ids of ours are not taken."""
    foreign = connections[context.using].in_atomic_block and not context.own
    needed = foreign and any(candidate.named for candidate in waiting)
    return atomic(using=context.using) if needed else contextlib.nullcontext()


def make_rows(waiting: Sequence[Candidate], context: PushContext) -> Sequence[JobRow]:
    """The rows of jobs that nothing is in the way of, in this order."""
    if len(waiting) == 1:
        (candidate,) = waiting
        return [new_row(candidate.valid_spec, candidate.queue, context.now, context.stamp)]
    specs = [candidate.valid_spec for candidate in waiting]
    return NewRows(RowMaker(queues_of(waiting), context.now), specs, context.stamps(), len(specs))


def queues_of(candidates: Sequence[Candidate]) -> dict[str, queues.QueueDefaults]:
    """What the queues of these jobs give, by their names."""
    return {candidate.valid_spec.queue: candidate.queue for candidate in candidates}


def insert(
    rows: Sequence[JobRow], component: str, using: str, workflow_change: FlowChange | None = None
) -> bool:  # fmt: skip
    """Insert new rows with their events; say whether a worker sleeps. Raises IntegrityError when an id is taken."""
    if not rows:
        return False
    worker_sleeps = store_of(using).push(rows, component, workflow_change)
    after_insert(rows, component, using)
    return worker_sleeps


def mark_created(candidates: Sequence[Candidate], rows: Iterable[JobRow]) -> None:
    """Note in each candidate that this row was inserted for it."""
    for candidate, row in zip(candidates, rows, strict=True):
        candidate.outcome = Pushed(row, "created", candidate.warnings)


def wake(worker_sleeps: bool, using: str) -> None:
    """Wake sleeping workers. Inside the caller's transaction always: a worker may fall asleep before it commits."""
    if worker_sleeps or connections[using].in_atomic_block:
        wake_workers(using)


def after_insert(rows: Sequence[JobRow], component: str, using: str) -> None:
    """What follows on an insert, in its transaction if it has one."""
    if listening := [one for one in hooks.event_listeners if one.wants("job.enqueued")]:
        hooks.notify(listening, [made for row in rows if (made := catalogue.of_new_job(row, component))], using)
    if any(row["rate_key"] for row in rows):
        ratelimits.record_limits(rows, using)


def new_row(spec: JobSpec, defaults: queues.QueueDefaults, now: dt.datetime, enqueued_at: dt.datetime) -> JobRow:
    """The row of a new job, in the state that its envelope asks for (core 7.1). One that is available at once is
    created when it is enqueued (core 5.3); others are created `now`."""
    return _with_own(_blank(spec, defaults, now), spec, now, enqueued_at)


class RowMaker:
    """Makes the rows of the jobs of one push. What jobs of one form have in common it decides once."""

    def __init__(self, defaults: Mapping[str, queues.QueueDefaults], now: dt.datetime) -> None:
        self._defaults, self._now = defaults, now
        self._blanks: dict[int, JobRow] = {}  # by the identity of the form

    def __call__(self, spec: JobSpec, enqueued_at: dt.datetime) -> JobRow:
        blank = self._blanks.get(id(spec.form))
        if blank is None:
            blank = _blank(spec, self._defaults[spec.queue], self._now)
            if spec.form is not None:
                self._blanks[id(spec.form)] = blank
        return _with_own(blank, spec, self._now, enqueued_at)


class NewRows(Sequence[JobRow]):
    """The rows of new jobs. Each is made when it, or one behind it, is first looked at: a store that sends a large push
    in parts has the first on its way before the last is made."""

    def __init__(self, make: RowMaker, specs: Iterable[JobSpec], stamps: Iterator[dt.datetime], length: int) -> None:
        self._made: list[JobRow] = []
        self._length, self._coming = length, map(make, specs, stamps)

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, place: int) -> JobRow: ...
    @overload
    def __getitem__(self, place: slice) -> list[JobRow]: ...
    def __getitem__(self, place: int | slice) -> JobRow | list[JobRow]:
        last = max(range(self._length)[place], default=-1) if isinstance(place, slice) else range(self._length)[place]
        self._made += islice(self._coming, max(0, last + 1 - len(self._made)))
        return self._made[place]

    def __iter__(self) -> Iterator[JobRow]:
        self._made += self._coming
        return iter(self._made)


def _blank(spec: JobSpec, defaults: queues.QueueDefaults, now: dt.datetime) -> JobRow:
    """What the rows of all jobs of one form say that are pushed at the same time."""
    policy = policy_of(defaults.retry, registry.retry_of(spec.type), spec.retry)
    later = spec.scheduled_at is not None and spec.scheduled_at > now
    state = State.PENDING if spec.pending else State.SCHEDULED if later else State.AVAILABLE
    blank = {
        **BLANK, "type": spec.type, "queue": spec.queue, "state": state.value, "priority": spec.priority,
        "max_attempts": policy.max_attempts, "retry": retrypolicy.to_json(policy),
        "timeout_ms": spec.timeout_ms or defaults.timeout_ms or ojs_settings.DEFAULT_TIMEOUT * 1000,
        "visibility_ms": spec.visibility_ms, "expires_at": spec.expires_at, "result_ttl": spec.result_ttl,
    }  # fmt: skip
    if later:
        blank["due_at"] = spec.scheduled_at
    if spec.rate_limit is not None:
        blank["rate_key"] = spec.rate_limit.key or ratelimit.queue_key(spec.queue)
        blank["rate_limit"] = ratelimit.to_json(spec.rate_limit)
    blank["wake_at"] = wake_at(blank)
    return blank


def _with_own(blank: JobRow, spec: JobSpec, now: dt.datetime, enqueued_at: dt.datetime) -> JobRow:
    """The row of one job: what all jobs of its form have, and what it has of its own."""
    row = blank.copy()
    row["id"], row["args"], row["meta"], row["trace_id"] = spec.id, spec.args_text, spec.meta_text, spec.trace_id
    row["unique_key"], row["workflow_id"], row["extra"] = spec.unique_key, spec.workflow_id, spec.extra_text
    if "parent_id" in spec.extra:
        row["parent_id"] = parse_id(spec.extra["parent_id"])
    if row["state"] == State.AVAILABLE:
        row["created_at"] = row["enqueued_at"] = enqueued_at
    else:
        row["created_at"] = now
    if spec.other_timeouts_ms:
        _set_timeouts(row, spec.other_timeouts_ms)
        row["wake_at"] = wake_at(row)
    return row


def _set_timeouts(row: JobRow, given: Mapping[str, int]) -> None:
    """Write the timeouts beside that of an execution (binding 5): how long the job may take as a whole, wait for its
    start, be silent, clean up."""
    for name, column in (("enqueue_ttl", "start_by"), ("total_timeout", "deadline_at")):
        if name in given:
            row[column] = row["created_at"] + dt.timedelta(milliseconds=given[name])
    row.update(heartbeat_ms=given.get("heartbeat_timeout"), grace_ms=given.get("grace_period") or None)


def policy_of(
    of_queue: Sequence[Mapping[str, Any]], of_type: Mapping[str, Any] | None, of_job: Mapping[str, Any]
) -> RetryPolicy:
    """The retry policy in force: site, template, queue, type, job; the later layer wins, field by field (jobs 1.1)."""
    of_site = ojs_settings.RETRY
    if not (of_site or of_queue or of_type or of_job):
        return _DEFAULT_POLICY
    layers = [spellings.read_retry(given) for given in (of_site, *of_queue, of_type) if given]
    return retrypolicy.merge(*layers, of_job)


_DEFAULT_POLICY = retrypolicy.DEFAULT
