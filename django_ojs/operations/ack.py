"""ACK (core 7.3): a worker reports success."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from django_ojs import clock, sql
from django_ojs.conf import ojs_settings
from django_ojs.contention import retried
from django_ojs.errors import NotFound, OJSError, ResultTooLarge
from django_ojs.events import catalogue
from django_ojs.models import Job
from django_ojs.models.job import COLUMNS, LIMITED, JobRow
from django_ojs.operations import advance, results
from django_ojs.operations.common import Outcome, atomic, database, only, refuse
from django_ojs.sql.base import Ack
from django_ojs.sql.rows import holds
from django_ojs.states import State, Verb
from django_ojs.telemetry import lifecycle
from django_ojs.waking import slots_freed

__all__ = ["Ack", "ack", "ack_one"]


@retried
def ack(acks: Sequence[Ack], *, columns: Sequence[str] = COLUMNS, using: str | None = None) -> list[Outcome]:
    """Complete these jobs; return for each its row, or the error that refused it.

    Of the rows `columns` are returned, `id` among them.

    A result over the limit leaves its job active (jobs section 8). A late or foreign ACK changes nothing.
    """
    using = database(using)
    oversized = {ack.job_id: error for ack in acks if (error := _oversized(ack))}
    wanted = list({ack.job_id: ack for ack in acks if ack.job_id not in oversized}.values())
    with atomic(using=using):
        now = clock.now(using)
        keep = ojs_settings.RESULTS_IN_EVENTS
        needed = results.COLUMNS if ojs_settings.EXTENSION_EVENTS else ("workflow_id",)
        told = lifecycle.hears(logging.INFO)
        returned = tuple(dict.fromkeys((*columns, LIMITED, *needed, *(lifecycle.COLUMNS if told else ()))))
        done = sql.store(using).complete(wanted, now, with_result=keep, columns=returned) if wanted else []
        if ojs_settings.EXTENSION_EVENTS:
            results.stored(done, now, using)
            results.rejected([(ack, oversized[ack.job_id]) for ack in acks if ack.job_id in oversized], now, using)
        if told:
            lifecycle.tell([catalogue.completed(row, now, with_result=False) for row in done], using)
        advance.settled(done, now, using)
        slots_freed(done, using)
        rows = {row["id"]: row for row in done}
        refused = _refusals([ack for ack in wanted if ack.job_id not in rows], using)
    return [rows.get(a.job_id) or oversized.get(a.job_id) or refused[a.job_id] for a in acks]


def ack_one(ack_: Ack, *, using: str | None = None) -> JobRow:
    """Complete one job. Raises `NotFound`, `InvalidStateTransition` or `ResultTooLarge`."""
    return only(ack([ack_], using=using))


def _oversized(ack: Ack) -> ResultTooLarge | None:
    limit = ojs_settings.MAX_RESULT_BYTES
    size = len(ack.result.encode()) if ack.result and len(ack.result) * 4 > limit else 0
    if size <= limit:
        return None
    details = {"actual_bytes": size, "max_bytes": limit, "field": "result", "job_id": str(ack.job_id)}
    return ResultTooLarge(f"The result has {size} bytes; at most {limit} are kept.", details=details)


def _refusals(acks: Sequence[Ack], using: str) -> dict[object, OJSError]:
    """Why each of these could not be completed."""
    if not acks:
        return {}
    found = {row["id"]: row for row in Job.objects.using(using).filter(pk__in=[a.job_id for a in acks]).rows()}
    return {a.job_id: why_not(found.get(a.job_id), a.job_id, Verb.ACK, State.COMPLETED, a) for a in acks}


def why_not(row: JobRow | None, job_id: object, verb: Verb, target: State, claim: Ack) -> OJSError:
    """The refusal of a worker's report: unknown job, wrong state, or held by somebody else."""
    if row is None:
        return NotFound.resource("job", str(job_id))
    if row["state"] == State.ACTIVE and not holds(row, claim.worker_id, claim.attempt):
        return refuse(row, verb, target, reason="not_claimant", worker_id=claim.worker_id)
    return refuse(row, verb, target)
