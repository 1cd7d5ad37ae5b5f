"""RETRY (core 6.3, jobs 7.3): lets dead letters and other failed jobs run again, also changed by an operator.

It is an act of an operator, or of an operator's rule. The backoff after a failure is no RETRY (`jobs.finish`). The HTTP
API retries every failed job. The admin offers "Retry" for dead letters, and "Run now" for jobs that wait for their
backoff (`jobs.promote`). The events of a retry have the component `api`, also where an operator uses the admin, and
`scheduler` where a rule retries. The audit log names the operator.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from django_ojs import clock, jsontext, spellings
from django_ojs.access import UNLIMITED, Limits
from django_ojs.database import atomic, database, retried
from django_ojs.errors import Conflict, InvalidRequest, NotFound, OJSError
from django_ojs.events import catalogue, log
from django_ojs.events.catalogue import Record
from django_ojs.hooks import replaceable, together
from django_ojs.jobs import checkpoints, compensations, schemas, steps
from django_ojs.jobs.candidates import Candidate
from django_ojs.jobs.newrows import policy_of
from django_ojs.jobs.promote import run_now
from django_ojs.lifecycle import transitions
from django_ojs.lifecycle.ended import jobs_revived
from django_ojs.lifecycle.transitions import RowOrError, each_locked, only, refuse
from django_ojs.lifecycle.waking import wake_workers
from django_ojs.messages import phrase
from django_ojs.models import Approval
from django_ojs.models.job import JobRow
from django_ojs.queues import configuration
from django_ojs.queues.configuration import QueueDefaults
from django_ojs.registry import registry
from django_ojs.rules import replayrules, retrypolicy
from django_ojs.rules.durations import format_instant
from django_ojs.rules.faults import shorten
from django_ojs.rules.ratelimit import key_in
from django_ojs.states import State, Verb
from django_ojs.store import store_of

FAILED_STATES = (State.DISCARDED, State.RETRYABLE)
#: What an operator may change in a dead letter that is retried.
OVERRIDABLE = frozenset({"queue", "args", "meta", "retry", "priority"})
_REVIVED = (*transitions.REVIVE_COLUMNS, "queue", "args", "meta", "retry", "priority", "max_attempts", "trace_id",
            "rate_key", "unique_key")  # fmt: skip


@dataclasses.dataclass(frozen=True, slots=True)
class RuleReplay:
    """A retry by a rule: its name, the how-manieth this is of that rule for the job, and of all rules together."""

    rule: str
    count: int
    total: int


@replaceable("retry_jobs")
@retried
def retry(
    job_ids: Sequence[uuid.UUID],
    *,
    override: Mapping[str, Any] | None = None,
    any_discarded: bool = False,
    replays: Mapping[uuid.UUID, RuleReplay] | None = None,
    clear_checkpoint: bool = False,
    limits: Limits = UNLIMITED,
    using: str | None = None,
) -> list[RowOrError]:
    """Make dead letters available again; return for each its row, or the error that refused it.

    The attempt starts from 0 and the errors are cleared; the newest of the old ones, `OJS["ERROR_HISTORY"]` at most,
    stay readable under `x_previous_errors`. A deadline that has passed is lifted, or the job would expire again at
    once, and its `expires_at` shows no more. A rule's automatic retry (`jobs.replay`) is the same, and noted in
    the job's `meta`.

    A job goes on from its checkpoint and its steps, unless `clear_checkpoint` deletes these: not before the job that
    undoes what it did, if there is one, has completed.

    `any_discarded` revives those too that were kept out of the dead letter queue. `replays` says of each job by which
    rule it is retried, where it is not an operator who asks.

    `override` may replace `queue`, `args`, `meta`, `retry` and `priority`; what a push would refuse then (a bad
    envelope, a schema, a queue that takes no such jobs) refuses that job. `limits` are those of the caller, as at PUSH
    and for a workflow that goes on with the job. Raises `InvalidRequest` where `override` holds anything else, before
    anything is changed.
    """
    using = database(using)
    check_override(override)
    with atomic(using=using):
        now = clock.now(using)
        changed: list[JobRow] = []
        known: dict[str, QueueDefaults] = {}
        undoing: dict[uuid.UUID, uuid.UUID] | None = None
        refused: dict[uuid.UUID, OJSError] = {}
        if clear_checkpoint:
            refused = compensations.undo_first(store_of(using).lock(set(job_ids)), using=using)

        def decide(row: JobRow) -> RowOrError:
            nonlocal undoing
            if error := not_revived(row, any_discarded) or refused.get(row["id"]):
                return error
            if undoing is None:
                undoing = steps.undone_by(job_ids, using=using)
            if row["id"] in undoing:
                return _is_undone(row["id"], undoing[row["id"]])
            changed_job = _changed(row, override, known, now, limits, using) if override else None
            if isinstance(changed_job, OJSError):
                return changed_job
            transitions.revive(row, now, using)
            if changed_job and override:
                _apply(row, changed_job, override)
            if replays:
                _record_replay(row, replays[row["id"]], now)
            changed.append(row)
            return row

        outcomes = each_locked(job_ids, using, decide)
        store_of(using).update_jobs(Verb.RETRY, changed, _REVIVED)
        if override and override.get("queue") and changed:
            moved = Approval.objects.using(using).filter(job_id__in=[row["id"] for row in changed])
            moved.update(queue=changed[0]["queue"])
        was = State.DISCARDED.value
        component = "scheduler" if replays else "api"
        records = [catalogue.enqueued(row, now, component, previous_state=was) for row in changed]
        records += [_event(row, now, replays[row["id"]] if replays else None) for row in changed]
        log.append(records, using)
        jobs_revived(changed, using, limits.to_json())
        if clear_checkpoint:
            checkpoints.start_over(changed, using)
        if changed:
            wake_workers(using)
    return outcomes


def retry_one(
    job_id: uuid.UUID, *, override: Mapping[str, Any] | None = None, any_discarded: bool = False,
    clear_checkpoint: bool = False, limits: Limits = UNLIMITED, using: str | None = None,
) -> JobRow:  # fmt: skip
    """Revive one dead letter. Raises `NotFound` or `InvalidStateTransition`."""
    return only(
        retry(
            [job_id], override=override, any_discarded=any_discarded, clear_checkpoint=clear_checkpoint, limits=limits,
            using=using,
        )
    )  # fmt: skip


def not_revived(row: JobRow, any_discarded: bool = False) -> OJSError | None:
    """Why `retry` refuses this job; None where it does not."""
    if row["state"] != State.DISCARDED:
        return refuse(row, Verb.RETRY, State.AVAILABLE)
    if not (row["dead_letter"] or any_discarded):
        return NotFound.resource("dead_letter_job", str(row["id"]))
    return None


def _is_undone(job_id: uuid.UUID, undoing: uuid.UUID) -> Conflict:
    return Conflict(
        phrase(
            "Job '%(other)s' undoes what job '%(job)s' did, and has not completed.", other=undoing, job=job_id
        ),
        details={"resource_type": "job", "resource_id": str(undoing)},
        hint="Wait for that job, retry it where it has failed, or cancel or delete it.",
    )  # fmt: skip


def retry_failed(
    job_ids: Sequence[uuid.UUID], using: str, *, clear_checkpoint: bool = False, limits: Limits = UNLIMITED
) -> list[RowOrError]:  # fmt: skip
    """Make failed jobs available, dead letters or not, and those that wait for their next attempt, for a caller with
    these limits. In the caller's transaction."""
    return together(lambda: _retry_failed(job_ids, using, clear_checkpoint, limits))


def _retry_failed(
    job_ids: Sequence[uuid.UUID], using: str, clear_checkpoint: bool, limits: Limits
) -> list[RowOrError]:  # fmt: skip
    rows = {row["id"]: row for row in store_of(using).lock(set(job_ids))}
    by_state = {state: [i for i in rows if rows[i]["state"] == state] for state in FAILED_STATES}
    revived, waiting = by_state[State.DISCARDED], by_state[State.RETRYABLE]
    outcomes = retry(revived, any_discarded=True, clear_checkpoint=clear_checkpoint, limits=limits, using=using)
    done: dict[uuid.UUID, RowOrError] = dict(zip(revived, outcomes, strict=True))
    done |= zip(waiting, run_now(waiting, using=using), strict=True)
    done |= {job_id: error for job_id, row in rows.items() if (error := not_retried(row))}
    if clear_checkpoint:
        checkpoints.start_over([row for row in map(done.get, waiting) if row and not isinstance(row, OJSError)], using)
    return [done[job_id] if job_id in done else NotFound.resource("job", str(job_id)) for job_id in job_ids]


@replaceable("restart_job")
@retried
def restart_from(job_id: uuid.UUID, step: str, *, limits: Limits = UNLIMITED, using: str | None = None) -> JobRow:
    """Make a failed durable job available, as a retry does, from one of its steps: this step and those that were
    recorded after it are forgotten, and the handler does them again. `limits` are those of the caller.

    Raises NotFound where there is no such job or step, InvalidStateTransition for a job that has not failed and does
    not wait, and Conflict where what it did is not undone yet.
    """
    using = database(using)
    with atomic(using=using):
        refused = compensations.undo_first(store_of(using).lock([job_id]), using=using)
        done = [*refused.values()] or retry_failed([job_id], using, limits=limits)
        if not isinstance(done[0], OJSError):
            steps.delete_from(job_id, step, using=using)
    return only(done)


def not_retried(row: JobRow) -> OJSError | None:
    """Why `retry_failed` refuses this job; None where it does not."""
    if row["state"] in FAILED_STATES:
        return None
    return refuse(row, Verb.RETRY, State.AVAILABLE, expected_state=[state.value for state in FAILED_STATES])


def _record_replay(row: JobRow, replay: RuleReplay, now: dt.datetime) -> None:
    values = (replay.total, format_instant(now), replay.rule)
    row["meta"] = jsontext.dumps({**jsontext.loads(row["meta"]), **dict(zip(replayrules.META, values, strict=True))})


def _event(row: JobRow, now: dt.datetime, replay: RuleReplay | None) -> Record:
    if replay is None:
        return catalogue.of_job("dead_letter.retried", row, now, "api")
    return catalogue.of_job("dead_letter.replayed", row, now, "scheduler", rule=replay.rule, count=replay.count)


def check_override(override: Mapping[str, Any] | None) -> None:
    """Raise `InvalidRequest` if there is anything in it that may not be overridden."""
    unknown = set(override or {}) - OVERRIDABLE
    if unknown:
        first = shorten(min(unknown))
        raise InvalidRequest(
            f"`override` may hold {', '.join(sorted(OVERRIDABLE))} only, not {first}.",
            details={"field": f"override.{first}"},
        )


def _changed(
    row: JobRow, override: Mapping[str, Any], known: dict[str, QueueDefaults], now: dt.datetime, limits: Limits,
    using: str,
) -> Candidate | OJSError:  # fmt: skip
    """The overridden envelope, checked as PUSH would, or why PUSH would refuse it. `known` are queues seen before."""
    given = {name: value for name, value in override.items() if value is not None}
    extra = jsontext.loads(row["extra"]) if row["extra"] else {}
    document = {"type": row["type"], "queue": row["queue"], "priority": row["priority"], "id": str(row["id"])}
    named = ("schema", "version", "unique") if row["unique_key"] else ("schema", "version")
    document |= {name: extra[name] for name in named if name in extra}
    document |= {"args": jsontext.loads(row["args"]), "meta": jsontext.loads(row["meta"])} | given
    try:
        candidate = Candidate(None, spellings.read_job(document, now=now), limits=limits)
        if given.keys() & {"args", "meta"}:
            schemas.check([candidate], using)
        if given.keys() & {"queue", "retry"}:
            name = candidate.valid_spec.queue
            if name not in known:
                known |= configuration.ensure([name], now, using)
            candidate.queue = known[name]
        if "queue" in given:
            configuration.admit(candidate.queue, candidate.valid_spec.queue, row["type"], None)
    except OJSError as error:
        return error
    return candidate.outcome if isinstance(candidate.outcome, OJSError) else candidate


def _apply(row: JobRow, changed: Candidate, override: Mapping[str, Any]) -> None:
    """Take over what may be overridden. A retry policy counts over those of the site, the queue and the type, as at a
    push."""
    spec = changed.valid_spec
    row.update(queue=spec.queue, args=spec.args_text, meta=spec.meta_text, priority=spec.priority)
    row.update(trace_id=spec.trace_id, unique_key=spec.unique_key, rate_key=key_in(row["rate_key"], spec.queue))
    if override.get("retry") is not None:
        policy = policy_of(changed.queue.retry, registry.retry_of(spec.type), spec.retry)
        row.update(retry=retrypolicy.to_json(policy), max_attempts=policy.max_attempts)
        extra = jsontext.loads(row["extra"]) if row["extra"] else {}
        row["extra"] = jsontext.dumps({**extra, "retry": override["retry"]})
