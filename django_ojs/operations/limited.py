"""FETCH where limits are in play: look at what could be claimed, ask the gate, claim what it lets through.

A constant number of statements for each queue: the candidates, one lock and two looks for all their keys, the
claim. Jobs and queues without limits never come here (`sql.base.Store.outlook`).

Lock order: the keys of all queues first, sorted; then jobs, which are skipped where somebody else holds them.
"""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Callable, Collection, Sequence

from django.db.models import Q

from django_ojs import sql
from django_ojs.events import catalogue, log
from django_ojs.events.catalogue import Record
from django_ojs.models import Queue
from django_ojs.models.job import JobRow
from django_ojs.models.queue import TEMPLATE
from django_ojs.operations import advance, deadletters
from django_ojs.operations.common import add_error
from django_ojs.operations.configure import effective
from django_ojs.operations.fail import FAIL_COLUMNS
from django_ojs.operations.gate import Blocked, Candidate, Gate
from django_ojs.policies import errorobjects, queueconfig
from django_ojs.policies.durations import format_instant
from django_ojs.policies.ratelimit import RatePolicy, queue_key
from django_ojs.sql.base import Store
from django_ojs.sql.rows import finish
from django_ojs.states import State, Verb

#: How many jobs are looked at to fill one claim, for each asked for and at least; and how often more are
#: looked at when those were shut out.
AHEAD, LEAST, ROUNDS = 4, 100, 10

#: `take(queue, ids, now)` claims those of the jobs that are still there.
Take = Callable[[str, list[uuid.UUID], dt.datetime], list[JobRow]]


def claim(
    names: Sequence[str], count: int, types: Sequence[str] | None, take: Take, now: dt.datetime, using: str
) -> list[JobRow]:
    """Claim up to `count` jobs of these queues through `take`, as far as the limits allow."""
    window = max(LEAST, AHEAD * count)
    store = sql.store(using)
    gate = Gate(using, now, _policies(names, using))
    ahead = {name: _look(store, name, now, types, window) for name in dict.fromkeys(names)}
    gate.hold([job for jobs in ahead.values() for job in jobs], wait=True)
    rows: list[JobRow] = []
    turned_away: list[tuple[Candidate, Blocked]] = []
    for name, found in ahead.items():
        jobs = found
        shut: set[tuple[str, str, str]] = set()
        for _ in range(ROUNDS):
            chosen, blocked = _choose(jobs, count - len(rows), gate)
            turned_away += blocked
            rows += take(name, chosen, gate.now) if chosen else []
            shut |= {_reason(job, why) for job, why in blocked}
            full = len(rows) >= count or len(jobs) < window or not blocked
            if full or any(why.key == queue_key(name) for _, why in blocked):
                break
            jobs = _look(store, name, now, types, window, shut)
            gate.hold(jobs, wait=False)
        if len(rows) >= count:
            break
    records = gate.save()
    more, dropped = _turn_away(turned_away, gate.now, using)
    log.append([*records, *more], using)
    advance.settled(dropped, gate.now, using)
    return rows


def _look(
    store: Store, queue: str, now: dt.datetime, types: Sequence[str] | None, limit: int,
    without: Collection[tuple[str, str, str]] = (),
) -> list[Candidate]:  # fmt: skip
    found = store.candidates(queue, now, types, limit, without)
    return [Candidate(pk, kind, queue, key, policy) for pk, kind, key, policy in found]


def _policies(names: Sequence[str], using: str) -> dict[str, RatePolicy]:
    """The limits of the queues themselves, fresh from their rows."""
    found = {queue.name: queue for queue in Queue.objects.using(using).filter(name__in=[*names, TEMPLATE])}
    template = found.get(TEMPLATE)
    return {name: queueconfig.rate_policy(effective(found.get(name), template)) for name in names}


def _choose(
    jobs: Sequence[Candidate], limit: int, gate: Gate
) -> tuple[list[uuid.UUID], list[tuple[Candidate, Blocked]]]:
    """The first jobs that the gate admits, and those before them that it does not."""
    chosen: list[uuid.UUID] = []
    blocked: list[tuple[Candidate, Blocked]] = []
    for job in jobs:
        if len(chosen) >= limit:
            break
        why = gate.admit(job)
        if why is None:
            chosen.append(job.id)
        else:
            blocked.append((job, why))
    return chosen, blocked


def _reason(job: Candidate, why: Blocked) -> tuple[str, str, str]:
    """What a further look leaves out: jobs under the same key with the same numbers, or of the same type."""
    return ("", "", job.type) if why.key.startswith("type:") else (job.rate_key, job.rate_limit, "")


def _turn_away(
    blocked: Sequence[tuple[Candidate, Blocked]], now: dt.datetime, using: str
) -> tuple[list[Record], list[JobRow]]:
    """Do what jobs want done when they meet a limit: put off until it is over, or dropped; return those dropped."""
    reasons = {job.id: why for job, why in blocked if why.on_limit != "wait" and why.strategy != "busy"}
    if not reasons:
        return [], []
    store = sql.store(using)
    rows = store.lock_where(Q(pk__in=list(reasons), state=State.AVAILABLE), skip_locked=True)
    later = [row for row in rows if reasons[row["id"]].on_limit == "reschedule"]
    for row in later:
        row["due_at"] = reasons[row["id"]].release
    store.update_jobs(State.AVAILABLE, later, ("due_at",))
    dropped = [row for row in rows if reasons[row["id"]].on_limit == "drop"]
    records = [record for row in dropped for record in _drop(row, reasons[row["id"]], now)]
    store.update_jobs(Verb.EXPIRE, dropped, FAIL_COLUMNS)
    return records, dropped


def _drop(row: JobRow, why: Blocked, now: dt.datetime) -> list[Record]:
    message = f"The rate limit '{why.key}' ({why.strategy}) left no room, and the job asks to be dropped then."
    facts = {"key": why.key, "strategy": why.strategy, "release": format_instant(why.release)}
    error = errorobjects.server_error("rate_limited", message, row["attempt"], now, retryable=False, **facts)
    add_error(row, error)
    finish(row, State.DISCARDED, now)
    row["dead_letter"] = True
    job_id = str(row["id"])
    return [
        catalogue.discarded(row, now, "scheduler", error, previous_state=State.AVAILABLE.value),
        catalogue.of_limit("rate_limit.dropped", why.key, now, strategy=why.strategy, job_id=job_id),
        *deadletters.added(row, now, "scheduler"),
    ]
