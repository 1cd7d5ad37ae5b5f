"""RETRY (core 6.3): an operator revives jobs from the dead letter queue (jobs 7.3).

The attempt starts from 0 and the errors are cleared; the newest of the old ones, `OJS["ERROR_HISTORY"]` at most,
stay readable under `x_previous_errors`. A deadline that has passed is lifted, or the job would expire again at once.
"""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from django_ojs import clock, envelope, jsontext, sql
from django_ojs.conf import ojs_settings
from django_ojs.contention import retried
from django_ojs.envelope import JobSpec
from django_ojs.errors import InvalidRequest, NotFound, OJSError
from django_ojs.events import catalogue, log
from django_ojs.models.job import JobRow
from django_ojs.operations import advance, queues, schemas
from django_ojs.operations.candidates import Candidate
from django_ojs.operations.common import Outcome, atomic, database, each_locked, only, refuse, wake_at
from django_ojs.policies import retry as retry_policy
from django_ojs.states import State, Verb
from django_ojs.waking import wake_workers

OVERRIDABLE = frozenset({"queue", "args", "meta", "retry", "priority"})
COLUMNS = ("state", "attempt", "enqueued_at", "errors", "extra", "started_at", "finished_at", "dead_letter",
           "retry_delay_ms", "losses", "worker_id", "expires_at", "start_by", "deadline_at", "wake_at", "due_at",
           "queue", "args", "meta", "retry", "priority", "max_attempts", "trace_id")  # fmt: skip


@retried
def retry(
    job_ids: Sequence[uuid.UUID],
    *,
    override: Mapping[str, Any] | None = None,
    any_discarded: bool = False,
    using: str | None = None,
) -> list[Outcome]:
    """Make dead letters available again; return for each its row, or the error that refused it.

    `any_discarded` revives those too that were kept out of the dead letter queue.

    `override` may replace `queue`, `args`, `meta`, `retry` and `priority`; what a push would refuse then (a bad
    envelope, a schema, a queue that takes no such jobs) refuses that job. Raises `InvalidRequest` where it holds
    anything else, before anything is changed.
    """
    using = database(using)
    check_override(override)
    with atomic(using=using):
        now = clock.now(using)
        changed: list[JobRow] = []
        known: dict[str, queues.QueueDefaults] = {}

        def decide(row: JobRow) -> Outcome:
            if row["state"] != State.DISCARDED:
                return refuse(row, Verb.RETRY, State.AVAILABLE)
            if not (row["dead_letter"] or any_discarded):
                return NotFound.resource("dead_letter_job", str(row["id"]))
            spec: Candidate | OJSError | None = _changed(row, override, known, now, using) if override else None
            if isinstance(spec, OJSError):
                return spec
            _revive(row, now, using)
            if spec and override:
                _apply(row, spec.job, override)
            changed.append(row)
            return row

        outcomes = each_locked(Verb.RETRY, job_ids, using, decide)
        sql.store(using).update_jobs(Verb.RETRY, changed, COLUMNS)
        was = State.DISCARDED.value
        records = [catalogue.enqueued(row, now, "api", previous_state=was) for row in changed]
        records += [catalogue.of_job("dead_letter.retried", row, now, "api") for row in changed]
        log.append(records, using)
        advance.revived(changed, using)
        if changed:
            wake_workers(using)
    return outcomes


def retry_one(job_id: uuid.UUID, *, override: Mapping[str, Any] | None = None, using: str | None = None) -> JobRow:
    """Revive one dead letter. Raises `NotFound` or `InvalidStateTransition`."""
    return only(retry([job_id], override=override, using=using))


def _revive(row: JobRow, now: Any, using: str) -> None:
    extra = jsontext.loads(row["extra"]) if row["extra"] else {}
    if row["errors"]:
        before = extra.get("x_previous_errors")  # a client may have sent one of its own, of any kind
        errors = [*(before if isinstance(before, list) else []), *jsontext.loads(row["errors"])]
        extra["x_previous_errors"] = errors[-ojs_settings.ERROR_HISTORY :]
    ends = {name: row[name] for name in ("expires_at", "start_by", "deadline_at")}
    row.update(
        state=State.AVAILABLE.value, attempt=0, enqueued_at=clock.stamps(1, using), errors="", started_at=None,
        extra=jsontext.dumps(extra) if extra else "", finished_at=None, dead_letter=False, retry_delay_ms=None,
        losses=0, worker_id="", due_at=None,
    )  # fmt: skip
    row.update({name: end if end and end > now else None for name, end in ends.items()})  # what is over counts no more
    row["wake_at"] = wake_at(row)


def check_override(override: Mapping[str, Any] | None) -> None:
    """Raise `InvalidRequest` if there is anything in it that may not be overridden."""
    unknown = sorted(set(override or {}) - OVERRIDABLE)
    if unknown:
        raise InvalidRequest(
            f"`override` may hold {', '.join(sorted(OVERRIDABLE))} only, not {', '.join(unknown)}.",
            details={"field": f"override.{unknown[0]}"},
        )


def _changed(
    row: JobRow, override: Mapping[str, Any], known: dict[str, queues.QueueDefaults], now: dt.datetime, using: str
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
                known |= queues.ensure([name], now, using)
            queues.admit(known[name], name, row["type"], None)
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
