"""FETCH (core 7.2): a worker claims jobs.

Queues are served in the order given, each until it is empty or the worker has enough; inside a queue
priority descending, then first in, first out. Due jobs of these queues are promoted first, in the same
transaction, so that a job is never late because the scheduler is. In maintenance mode nothing is claimed or promoted;
FETCH learns of it from the statement with which it begins.
"""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Sequence

from django_ojs import clock, hooks
from django_ojs.conf import ojs_settings
from django_ojs.cron import runs
from django_ojs.database import atomic, database, retried
from django_ojs.events import catalogue
from django_ojs.jobs import timers
from django_ojs.limits import claim as limited
from django_ojs.models.job import COLUMNS, JobRow
from django_ojs.queues import configuration
from django_ojs.store import store_of
from django_ojs.store.base import Claim
from django_ojs.workers import registration
from django_ojs.workflows import graphs


@retried
def fetch(
    names: Sequence[str],
    *,
    count: int = 1,
    worker_id: str = "",
    visibility_ms: int | None = None,
    fallback_visibility_ms: int | None = None,
    types: Sequence[str] | None = None,
    ids: Sequence[uuid.UUID] | None = None,
    except_ids: Sequence[uuid.UUID] = (),
    gate: bool = True,
    columns: Sequence[str] = COLUMNS,
    raw: bool = False,
    using: str | None = None,
) -> list[JobRow]:
    """Claim up to `count` jobs; return their rows as they are after the claim.

    Args:
        names: queues, left to right.
        visibility_ms: reservation length asked for by the request; beats that of the job.
        fallback_visibility_ms: length for jobs and queues without one of their own.
        types: claim only these job types, `mail.*` for all that begin with `mail.`; None: any.
        ids: claim only these jobs, whatever the limits say; None: any.
        except_ids: leave these jobs to other workers; a worker names those that its handlers still run.
        gate: give nothing to a worker that is quiet or terminating, and note an unknown one.
        columns, raw: what to return of each job, and whether times may come as ISO text; a worker needs less of both.
    """
    using = database(using)
    count = min(max(count, 0), ojs_settings.MAX_FETCH_COUNT)
    with atomic(using=using):
        if gate and worker_id and not registration.may_fetch(worker_id, names, using):
            return []
        now, store = clock.now(using), store_of(using)
        outlook = store.outlook(names, now)
        if outlook.closed:
            return []
        if outlook.due:
            timers.settle_waiting(names, using)
            now = clock.now(using)  # what was promoted just now waits since a moment ago
        runs.release_waiting(names, using)

        def take(name: str, limit: int, ids: Sequence[uuid.UUID] | None, at: dt.datetime) -> list[JobRow]:
            base = configuration.defaults(name, using).visibility_ms or fallback_visibility_ms
            claim = Claim(
                queue=name, limit=limit, now=at, worker_id=worker_id, visibility_ms=visibility_ms, types=types, ids=ids,
                base_visibility_ms=base or ojs_settings.VISIBILITY_TIMEOUT * 1000,
                base_timeout_ms=ojs_settings.DEFAULT_TIMEOUT * 1000, except_ids=except_ids,
            )  # fmt: skip
            return store.claim(claim, columns, raw=raw)

        # What was promoted just now may be under a limit.
        if ids is None and (outlook.limited or (outlook.due and store.outlook(names, now).limited)):
            chosen = lambda q, ids, at: take(q, len(ids), ids, at)  # noqa: E731
            rows = limited.claim(names, count, types, chosen, now, using, except_ids=except_ids)
        else:
            rows = []
            for name in dict.fromkeys(names):
                if len(rows) >= count:
                    break
                rows += take(name, count - len(rows), ids, now)
        listening = [one for one in hooks.event_listeners if one.wants("job.started")]
        if listening := [one for one in listening if set(columns).issuperset(one.columns)]:
            hooks.tell(listening, [catalogue.of_job("job.started", row, now, "workers") for row in rows], using)
        graphs.attach_parent_results(rows, using)
        return rows
