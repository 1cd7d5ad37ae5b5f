"""What callers do to stored jobs: cancel, retry, run now, activate, delete, change the priority, run a copy, read.

Each verb takes the ids of many jobs, locks them, and returns an outcome for each in their order: what became of the
job, or the `OJSError` that refused it. The statements are as many for a thousand jobs as for one. What a verb refuses
is a function of the row (`not_cancelled`, `not_retried`, ...), which dry runs ask too.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from django.db import router

from django_ojs import clock, jsontext, states
from django_ojs.conf import ojs_settings
from django_ojs.database import atomic, database, retried
from django_ojs.errors import Conflict, InvalidRequest, InvalidStateTransition, NotFound, OJSError
from django_ojs.events import catalogue, log
from django_ojs.events.catalogue import Record
from django_ojs.hooks import replaceable
from django_ojs.jobs import progress, schemas, transitions
from django_ojs.jobs.push import Candidate, push_each
from django_ojs.jobs.transitions import WITH_LIMITED, Outcome, each_locked, only, refuse
from django_ojs.messages import phrase
from django_ojs.messages import reason as reason_of
from django_ojs.models import Job
from django_ojs.models.job import JobRow
from django_ojs.queues import configuration
from django_ojs.queues.configuration import QueueDefaults
from django_ojs.rules import envelope
from django_ojs.rules import retry as retry_policy
from django_ojs.rules.attributes import parse_priority
from django_ojs.rules.durations import format_instant
from django_ojs.rules.envelope import JobSpec
from django_ojs.rules.faults import job_fault
from django_ojs.states import State, Verb
from django_ojs.store import store_of
from django_ojs.workers.waking import slots_freed, wake_workers
from django_ojs.workflows import advance, graphs

#: The states that each verb takes.
CANCELLABLE = states.ordered(states.sources(Verb.CANCEL))
ACTIVATABLE = states.ordered(states.sources(Verb.ACTIVATE))
RETRYABLE = (State.DISCARDED, State.RETRYABLE)
RUNNABLE = states.ordered(states.sources(Verb.PROMOTE))
DELETABLE = states.ordered(states.TERMINAL)
#: Where a priority still decides something.
PRIORITISABLE = (State.AVAILABLE, State.SCHEDULED)
#: What a rule's retry writes into `meta`.
REPLAY_META = ("ojs.replay_count", "ojs.last_replayed_at", "ojs.replay_rule")
#: What an operator may change in a dead letter that is retried.
OVERRIDABLE = frozenset({"queue", "args", "meta", "retry", "priority"})
_REVIVED = (*transitions.REVIVE_COLUMNS, "queue", "args", "meta", "retry", "priority", "max_attempts", "trace_id")
#: What belonged to a job's time and to its history, and is not copied.
_NOT_COPIED = frozenset({"scheduled_at", "expires_at", "x_previous_errors"})


# Cancel (core 7.6)


class Cancelled(NamedTuple):
    """`changed` is False for a job that was cancelled before: cancelling twice is no error."""

    row: JobRow
    previous_state: str
    changed: bool


@replaceable("cancel_jobs")
@retried
def cancel(
    job_ids: Sequence[uuid.UUID],
    *,
    cancelled_by: str = "",
    reason: str = "",
    spare_active: bool = False,
    ended: list[JobRow] | None = None,
    using: str | None = None,
) -> list[Cancelled | OJSError]:
    """Cancel these jobs; return for each what happened, or the error that refused it. An active one is cancelled at
    once; its worker learns it from its next heartbeat.

    `spare_active` leaves jobs alone that are running. Where `ended` is given, those that are cancelled are
    added to it, and it is the caller who takes their workflows further.
    """
    using = database(using)
    with atomic(using=using):
        now = clock.now(using)
        changed: list[Cancelled] = []
        records: list[Record] = []

        def decide(row: JobRow) -> Cancelled | OJSError:
            previous = row["state"]
            if error := not_cancelled(row, spare_active):
                return error
            if previous == State.CANCELLED:
                return Cancelled(row, previous, changed=False)
            records.append(transitions.cancel(row, now, cancelled_by, reason))
            changed.append(Cancelled(row, previous, changed=True))
            return changed[-1]

        outcomes = each_locked(job_ids, using, decide, WITH_LIMITED)
        store_of(using).update_jobs(Verb.CANCEL, [done.row for done in changed], transitions.CANCEL_COLUMNS)
        log.append(records, using)
        slots_freed([done.row for done in changed if done.previous_state == State.ACTIVE], using)
        if ended is None:
            advance.settled([done.row for done in changed], now, using)
        else:
            ended += [done.row for done in changed]
    return outcomes


def not_cancelled(row: JobRow, spare_active: bool = False) -> OJSError | None:
    """What CANCEL refuses. A job that was cancelled before is none of it, but nothing is done either."""
    if row["state"] == State.CANCELLED or (row["state"] in CANCELLABLE and not (spare_active and _runs(row))):
        return None
    waiting = [state.value for state in states.ordered(states.WAITING)]
    facts: dict[str, Any] = {"expected_state": waiting} if spare_active else {}
    return refuse(row, Verb.CANCEL, State.CANCELLED, **facts)


def _runs(row: JobRow) -> bool:
    return bool(row["state"] == State.ACTIVE)


def cancel_one(job_id: uuid.UUID, *, cancelled_by: str = "", reason: str = "", using: str | None = None) -> Cancelled:
    """Cancel one job. Raises `NotFound` or `InvalidStateTransition` (completed, discarded)."""
    return only(cancel([job_id], cancelled_by=cancelled_by, reason=reason, using=using))


# Retry (core 6.3, jobs 7.3)


@dataclasses.dataclass(frozen=True, slots=True)
class Replay:
    """A retry by a rule: its name, the how-manieth this is of that rule for the job, and of all rules together."""

    rule: str
    count: int
    total: int


@retried
def retry(
    job_ids: Sequence[uuid.UUID],
    *,
    override: Mapping[str, Any] | None = None,
    any_discarded: bool = False,
    replays: Mapping[uuid.UUID, Replay] | None = None,
    using: str | None = None,
) -> list[Outcome]:
    """Make dead letters available again; return for each its row, or the error that refused it.

    The attempt starts from 0 and the errors are cleared; the newest of the old ones, `OJS["ERROR_HISTORY"]` at most,
    stay readable under `x_previous_errors`. A deadline that has passed is lifted, or the job would expire again at
    once, and its `expires_at` shows no more. A rule's automatic retry (`jobs.replay`) is the same, and noted in
    the job's `meta`.

    `any_discarded` revives those too that were kept out of the dead letter queue. `replays` says of each job by which
    rule it is retried, where it is not an operator who asks.

    `override` may replace `queue`, `args`, `meta`, `retry` and `priority`; what a push would refuse then (a bad
    envelope, a schema, a queue that takes no such jobs) refuses that job. Raises `InvalidRequest` where it holds
    anything else, before anything is changed.
    """
    using = database(using)
    check_override(override)
    with atomic(using=using):
        now = clock.now(using)
        changed: list[JobRow] = []
        known: dict[str, QueueDefaults] = {}

        def decide(row: JobRow) -> Outcome:
            if error := not_revived(row, any_discarded):
                return error
            spec: Candidate | OJSError | None = _changed(row, override, known, now, using) if override else None
            if isinstance(spec, OJSError):
                return spec
            transitions.revive(row, now, using)
            if spec and override:
                _apply(row, spec.job, override)
            if replays:
                _note(row, replays[row["id"]], now)
            changed.append(row)
            return row

        outcomes = each_locked(job_ids, using, decide)
        store_of(using).update_jobs(Verb.RETRY, changed, _REVIVED)
        was = State.DISCARDED.value
        component = "scheduler" if replays else "api"
        records = [catalogue.enqueued(row, now, component, previous_state=was) for row in changed]
        records += [_told(row, now, replays[row["id"]] if replays else None) for row in changed]
        log.append(records, using)
        advance.revived(changed, using)
        if changed:
            wake_workers(using)
    return outcomes


def retry_one(job_id: uuid.UUID, *, override: Mapping[str, Any] | None = None, using: str | None = None) -> JobRow:
    """Revive one dead letter. Raises `NotFound` or `InvalidStateTransition`."""
    return only(retry([job_id], override=override, using=using))


def not_revived(row: JobRow, any_discarded: bool = False) -> OJSError | None:
    """What `retry` refuses."""
    if row["state"] != State.DISCARDED:
        return refuse(row, Verb.RETRY, State.AVAILABLE)
    if not (row["dead_letter"] or any_discarded):
        return NotFound.resource("dead_letter_job", str(row["id"]))
    return None


def retry_failed(job_ids: Sequence[uuid.UUID], using: str) -> list[Outcome]:
    """Make failed jobs available, dead letters or not, and those that wait for their next attempt. In the caller's
    transaction."""
    rows = {row["id"]: row for row in store_of(using).lock(set(job_ids))}
    by_state = {state: [i for i in rows if rows[i]["state"] == state] for state in RETRYABLE}
    revived, waiting = by_state[State.DISCARDED], by_state[State.RETRYABLE]
    done: dict[uuid.UUID, Outcome] = dict(zip(revived, retry(revived, any_discarded=True, using=using), strict=True))
    done |= zip(waiting, run_now(waiting, using=using), strict=True)
    done |= {job_id: error for job_id, row in rows.items() if (error := not_retried(row))}
    return [done[job_id] if job_id in done else NotFound.resource("job", str(job_id)) for job_id in job_ids]


def not_retried(row: JobRow) -> OJSError | None:
    """What `retry_failed` refuses."""
    if row["state"] in RETRYABLE:
        return None
    return refuse(row, Verb.RETRY, State.AVAILABLE, expected_state=[state.value for state in RETRYABLE])


def _note(row: JobRow, replay: Replay, now: dt.datetime) -> None:
    values = (replay.total, format_instant(now), replay.rule)
    row["meta"] = jsontext.dumps({**jsontext.loads(row["meta"]), **dict(zip(REPLAY_META, values, strict=True))})


def _told(row: JobRow, now: dt.datetime, replay: Replay | None) -> Record:
    if replay is None:
        return catalogue.of_job("dead_letter.retried", row, now, "api")
    return catalogue.of_job("dead_letter.replayed", row, now, "scheduler", rule=replay.rule, count=replay.count)


def check_override(override: Mapping[str, Any] | None) -> None:
    """Raise `InvalidRequest` if there is anything in it that may not be overridden."""
    unknown = sorted(set(override or {}) - OVERRIDABLE)
    if unknown:
        raise InvalidRequest(
            f"`override` may hold {', '.join(sorted(OVERRIDABLE))} only, not {', '.join(unknown)}.",
            details={"field": f"override.{unknown[0]}"},
        )


def _changed(
    row: JobRow, override: Mapping[str, Any], known: dict[str, QueueDefaults], now: dt.datetime, using: str
) -> Candidate | OJSError:  # fmt: skip
    """The overridden envelope, checked as PUSH would, or why PUSH would refuse it. `known` are queues seen before."""
    given = {name: value for name, value in override.items() if value is not None}
    extra = jsontext.loads(row["extra"]) if row["extra"] else {}
    document = {"type": row["type"], "queue": row["queue"], "priority": row["priority"], "id": str(row["id"])}
    document |= {name: extra[name] for name in ("schema", "version") if name in extra}
    document |= {"args": jsontext.loads(row["args"]), "meta": jsontext.loads(row["meta"])} | given
    try:
        candidate = Candidate(None, envelope.parse(document, now=now))
        if given.keys() & {"args", "meta"}:
            schemas.check([candidate], using)
        if "queue" in given:
            name = candidate.job.queue
            if name not in known:
                known |= configuration.ensure([name], now, using)
            configuration.admit(known[name], name, row["type"], None)
    except OJSError as error:
        return error
    return candidate.outcome if isinstance(candidate.outcome, OJSError) else candidate


def _apply(row: JobRow, spec: JobSpec, override: Mapping[str, Any]) -> None:
    """Take over what may be overridden."""
    row.update(queue=spec.queue, args=spec.args_text, meta=spec.meta_text, priority=spec.priority)
    row["trace_id"] = spec.trace_id
    if override.get("retry") is not None:
        policy = retry_policy.merge(spec.retry)
        row.update(retry=retry_policy.to_json(policy), max_attempts=policy.max_attempts)
        extra = jsontext.loads(row["extra"]) if row["extra"] else {}
        row["extra"] = jsontext.dumps({**extra, "retry": override["retry"]})


# Run now, activate


@retried
def run_now(job_ids: Sequence[uuid.UUID], *, using: str | None = None) -> list[Outcome]:
    """PROMOTE by hand: end the wait of scheduled and retryable jobs, which keep their attempts and errors; return
    for each its row, or the error that refused it.

    A scheduled job is enqueued thereby and shows no `scheduled_at` any more; the end of a backoff has no event of its
    own (events 1.7).
    """
    using = database(using)
    with atomic(using=using):
        now = clock.now(using)
        changed: list[JobRow] = []
        enqueued: list[Record] = []

        def decide(row: JobRow) -> Outcome:
            if error := not_run(row):
                return error
            enqueued.extend(transitions.promote(row, now, "api", using))
            changed.append(row)
            return row

        outcomes = each_locked(job_ids, using, decide)
        store_of(using).update_jobs(Verb.PROMOTE, changed, transitions.PROMOTE_COLUMNS)
        log.append(enqueued, using)
        if changed:
            wake_workers(using)
    return outcomes


def not_run(row: JobRow) -> OJSError | None:
    """What `run_now` refuses."""
    return None if row["state"] in RUNNABLE else refuse(row, Verb.PROMOTE, State.AVAILABLE, called="run")


@retried
def activate(job_ids: Sequence[uuid.UUID], *, using: str | None = None) -> list[Outcome]:
    """Make staged jobs available, or scheduled while their `scheduled_at` is still ahead (core 6.3); return for each
    its row, or the error that refused it."""
    using = database(using)
    with atomic(using=using):
        now = clock.now(using)
        changed: list[JobRow] = []
        records: list[Record] = []

        def decide(row: JobRow) -> Outcome:
            if row["state"] not in ACTIVATABLE:
                return refuse(row, Verb.ACTIVATE, State.AVAILABLE)
            records.append(transitions.activate(row, now, using))
            changed.append(row)
            return row

        outcomes = each_locked(job_ids, using, decide)
        store_of(using).update_jobs(Verb.ACTIVATE, changed, transitions.ACTIVATE_COLUMNS)
        if any(row["state"] == State.AVAILABLE for row in changed):
            wake_workers(using)
        log.append(records, using)
    return outcomes


def activate_one(job_id: uuid.UUID, *, using: str | None = None) -> JobRow:
    """Activate one job. Raises `NotFound` or `InvalidStateTransition`."""
    return only(activate([job_id], using=using))


# Delete


@retried
def delete(job_ids: Sequence[uuid.UUID], *, using: str | None = None) -> list[uuid.UUID | OJSError]:
    """Delete these jobs from the dead letter queue (jobs 7.3); whatever is not in there is `NotFound`."""
    return _delete(job_ids, not_a_dead_letter, "dead_letter_job", database(using))


@retried
def delete_ended(job_ids: Sequence[uuid.UUID], *, using: str | None = None) -> list[uuid.UUID | OJSError]:
    """Delete these jobs, dead letters or not (binding 6); one that has not ended is refused with its state."""
    return _delete(job_ids, not_deleted, "job", database(using))


def _delete(
    job_ids: Sequence[uuid.UUID], refusal: Callable[[JobRow], OJSError | None], resource: str, using: str
) -> list[uuid.UUID | OJSError]:
    with atomic(using=using):
        refused: dict[uuid.UUID, OJSError] = {}
        gone: dict[uuid.UUID, JobRow] = {}
        for row in store_of(using).lock(set(job_ids)):
            if error := refusal(row):
                refused[row["id"]] = error
            else:
                gone[row["id"]] = row
        if gone:
            store_of(using).delete_jobs(list(gone))
        now = clock.now(using)
        letters = [row for row in gone.values() if is_dead_letter(row)]
        log.append([catalogue.of_job("dead_letter.deleted", row, now, "api") for row in letters], using)

    def outcome(job_id: uuid.UUID) -> uuid.UUID | OJSError:
        return job_id if job_id in gone else refused.get(job_id) or NotFound.resource(resource, str(job_id))

    return [outcome(job_id) for job_id in job_ids]


def is_dead_letter(row: Mapping[str, Any]) -> bool:
    return bool(row["state"] == State.DISCARDED and row["dead_letter"])


def not_a_dead_letter(row: JobRow) -> OJSError | None:
    """What `delete` refuses."""
    return None if is_dead_letter(row) else NotFound.resource("dead_letter_job", str(row["id"]))


def not_deleted(row: JobRow) -> OJSError | None:
    """What `delete_ended` refuses."""
    if row["state"] in DELETABLE:
        return None
    ended = [state.value for state in DELETABLE]
    return InvalidStateTransition.of(str(row["id"]), row["state"], "delete", "deleted", expected_state=ended)


def delete_one(job_id: uuid.UUID, *, using: str | None = None) -> uuid.UUID:
    """Delete one dead letter. Raises `NotFound`."""
    return only(delete([job_id], using=using))


# Priority (jobs 3)


class Prioritised(NamedTuple):
    row: JobRow
    previous: int


@retried
def prioritise(job_id: uuid.UUID, value: Any, *, by: str = "", using: str | None = None) -> Prioritised:
    """Give a job this priority, a number or a name. Its place among equals stays, for it keeps `enqueued_at`.

    Raises `InvalidPayload` for what is no priority, `NotFound`, and `Conflict` unless the job is available
    or scheduled.
    """
    using = database(using)
    try:
        number = parse_priority(value, ojs_settings.PRIORITY_LEVELS)
    except ValueError as error:
        raise job_fault("priority", reason_of(error), value) from error
    with atomic(using=using):
        store = store_of(using)
        rows = store.lock([job_id])
        if not rows:
            raise NotFound.resource("job", str(job_id))
        (row,) = rows
        if row["state"] not in PRIORITISABLE:
            raise _not_prioritised(row)
        previous, row["priority"] = row["priority"], number
        if number != previous:
            store.update_jobs(State(row["state"]), [row], ("priority",))
            facts = {"priority": number, "previous_priority": previous} | ({"changed_by": by} if by else {})
            log.append([catalogue.of_job("priority.changed", row, clock.now(using), "api", **facts)], using)
    return Prioritised(row, previous)


def _not_prioritised(row: JobRow) -> Conflict:
    details = {"job_id": str(row["id"]), "current_state": row["state"], "attempted": "prioritise"}
    details |= {"expected_state": [state.value for state in PRIORITISABLE]}
    message = phrase(
        "The priority of job '%(job)s' cannot be changed: it is %(state)s, not available or scheduled.",
        job=row["id"], state=str(row["state"]),
    )  # fmt: skip
    return Conflict(message, details=details)


# Copy


def duplicate(job_id: uuid.UUID, *, using: str | None = None) -> JobRow:
    """PUSH a job anew from what its client sent, to run now; return the copy's row. The old job stays as it is, and a
    workflow's job is copied alone, outside the workflow.

    Raises `NotFound`, whatever refuses a push (`Duplicate`, `QueueFull`), and `Conflict` where a push is answered
    with a job that is there already, or dropped by a middleware.
    """
    using = database(using)
    found = Job.objects.using(using).filter(pk=job_id).rows()
    if not found:
        raise NotFound.resource("job", str(job_id))
    (outcome,) = push_each([_document(found[0])], partial=True, using=using)
    if isinstance(outcome, OJSError):
        raise outcome
    if outcome.status != "created" or outcome.row is None:
        facts = {"job_id": job_id, "status": outcome.status}
        if outcome.row is None:
            raise Conflict(phrase("No copy of job '%(job_id)s' was enqueued (%(status)s).", **facts))
        raise Conflict(
            phrase(
                "No copy of job '%(job_id)s' was enqueued: '%(other)s' is there already (%(status)s).",
                other=outcome.row["id"], **facts,
            )
        )  # fmt: skip
    return outcome.row


def _document(row: JobRow) -> dict[str, Any]:
    extra = jsontext.loads(row["extra"]) if row["extra"] else {}
    document = {"type": row["type"], "queue": row["queue"], "priority": row["priority"]}
    meta = {name: value for name, value in jsontext.loads(row["meta"]).items() if name not in REPLAY_META}
    document |= {"args": jsontext.loads(row["args"]), "meta": meta}
    return document | {name: value for name, value in extra.items() if name not in _NOT_COPIED}


# Info (core 7.7)


@replaceable("read_job")
def info(job_id: uuid.UUID, *, using: str | None = None) -> JobRow:
    """Read a job; return its row. Never writes. Raises `NotFound`."""
    using = using or router.db_for_write(Job)
    rows = Job.objects.using(using).filter(pk=job_id).rows()
    if not rows:
        raise NotFound.resource("job", str(job_id))
    graphs.attach_parent_results(rows, using)
    progress.attach(rows, using)
    return rows[0]
