"""RETRY (core 6.3): an operator revives jobs from the dead letter queue (jobs 7.3).

The attempt starts from 0 and the errors are cleared; the old ones stay readable under
`x_previous_errors`. A deadline that has passed is lifted, or the job would expire again at once.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from django_ojs import clock, envelope, jsontext, sql
from django_ojs.contention import retried
from django_ojs.errors import InvalidRequest, NotFound
from django_ojs.events import catalogue, log
from django_ojs.models.job import JobRow
from django_ojs.operations import advance, queues
from django_ojs.operations.common import Outcome, atomic, database, each_locked, only, refuse, wake_at
from django_ojs.policies import retry as retry_policy
from django_ojs.states import State, Verb
from django_ojs.waking import wake_workers

OVERRIDABLE = frozenset({"queue", "args", "meta", "retry", "priority"})
COLUMNS = ("state", "attempt", "enqueued_at", "errors", "extra", "started_at", "finished_at", "dead_letter",
           "retry_delay_ms", "losses", "worker_id", "expires_at", "wake_at", "due_at",
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

    `override` may replace `queue`, `args`, `meta`, `retry` and `priority`. Raises `InvalidPayload` or
    `InvalidRequest` when it is malformed, before anything is changed.
    """
    using = database(using)
    with atomic(using=using):
        now = clock.now(using)
        changed: list[JobRow] = []

        def decide(row: JobRow) -> Outcome:
            if row["state"] != State.DISCARDED:
                return refuse(row, Verb.RETRY, State.AVAILABLE)
            if not (row["dead_letter"] or any_discarded):
                return NotFound.resource("dead_letter_job", str(row["id"]))
            _revive(row, now, using)
            if override:
                _apply(row, override, now)
            changed.append(row)
            return row

        outcomes = each_locked(Verb.RETRY, job_ids, using, decide)
        if override and changed:
            queues.ensure({row["queue"] for row in changed}, now, using)
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
        extra["x_previous_errors"] = [*(before if isinstance(before, list) else []), *jsontext.loads(row["errors"])]
    expires_at = row["expires_at"]
    row.update(
        state=State.AVAILABLE.value, attempt=0, enqueued_at=clock.stamps(1, using), errors="", started_at=None,
        extra=jsontext.dumps(extra) if extra else "", finished_at=None, dead_letter=False, retry_delay_ms=None,
        losses=0, worker_id="", due_at=None, expires_at=expires_at if expires_at and expires_at > now else None,
    )  # fmt: skip
    row["wake_at"] = wake_at(row)


def _apply(row: JobRow, override: Mapping[str, Any], now: Any) -> None:
    """Validate the overridden envelope as PUSH would, and take over what may be overridden."""
    unknown = sorted(set(override) - OVERRIDABLE)
    if unknown:
        raise InvalidRequest(
            f"`override` may hold {', '.join(sorted(OVERRIDABLE))} only, not {', '.join(unknown)}.",
            details={"field": f"override.{unknown[0]}"},
        )
    given = {name: value for name, value in override.items() if value is not None}
    document = {"type": row["type"], "queue": row["queue"], "priority": row["priority"], "id": str(row["id"])}
    document |= {"args": jsontext.loads(row["args"]), "meta": jsontext.loads(row["meta"])} | given
    spec = envelope.parse(document, now=now)
    row.update(queue=spec.queue, args=spec.args_text, meta=spec.meta_text, priority=spec.priority)
    row["trace_id"] = spec.trace_id
    if "retry" in given:
        policy = retry_policy.merge(spec.retry)
        row.update(retry=retry_policy.to_json(policy), max_attempts=policy.max_attempts)
        extra = jsontext.loads(row["extra"]) if row["extra"] else {}
        row["extra"] = jsontext.dumps({**extra, "retry": given["retry"]})
