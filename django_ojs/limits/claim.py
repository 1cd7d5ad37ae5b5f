"""FETCH under rate limits: read the jobs that could be claimed, ask the limits, claim what they admit.

A constant number of statements for each queue: the candidates, one lock and two looks for all their keys, the
candidates again as they are once the keys are held, the claim. What the claim does not get all the same is not counted.
Jobs and queues without limits never come here (`store.base.Store.outlook`).

Lock order: the keys of all queues first, sorted; then jobs, which are skipped where another transaction holds them.
"""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Callable, Collection, Sequence
from typing import Any

from django.db.models import Q

from django_ojs.database import atomic
from django_ojs.events import catalogue, log
from django_ojs.events.catalogue import Record
from django_ojs.jobs import transitions
from django_ojs.limits.state import Blocked, Candidate, Gate
from django_ojs.models import Queue
from django_ojs.models.job import JobRow
from django_ojs.models.queue import TEMPLATE
from django_ojs.queues.configuration import effective
from django_ojs.rules import queueconfig
from django_ojs.rules.durations import format_instant
from django_ojs.rules.ratelimit import RatePolicy, queue_key
from django_ojs.states import State, Verb
from django_ojs.store import store_of
from django_ojs.store.base import Store
from django_ojs.workflows import advance

#: How many jobs are looked at to fill one claim, for each asked for and at least; and how often more are
#: looked at when those were shut out.
AHEAD, LEAST, ROUNDS = 4, 100, 10

#: `take(queue, ids, now)` claims those of the jobs that are still there.
Take = Callable[[str, list[uuid.UUID], dt.datetime], list[JobRow]]


def claim(
    names: Sequence[str], count: int, types: Sequence[str] | None, take: Take, now: dt.datetime, using: str, *,
    except_ids: Sequence[uuid.UUID] = (),
) -> list[JobRow]:  # fmt: skip
    """Claim up to `count` jobs of these queues through `take`, as far as the limits allow, and none of `except_ids`."""
    window = max(LEAST, AHEAD * count)
    store = store_of(using)
    gate = Gate(using, now, _policies(names, using))

    def look() -> dict[str, list[Candidate]]:
        return {name: _look(store, name, gate.now, types, window, (), except_ids) for name in dict.fromkeys(names)}

    ahead = look()
    gate.hold([job for jobs in ahead.values() for job in jobs], wait=True)
    if store.skip_locked:  # while this claim waited for the keys, others may have claimed what it saw
        ahead = look()
        gate.hold([job for jobs in ahead.values() for job in jobs], wait=False)
    rows: list[JobRow] = []
    turned_away: list[tuple[Candidate, Blocked]] = []
    for name, found in ahead.items():
        jobs = found
        shut: set[tuple[str, str, str]] = set()
        full_look = len(jobs) >= window
        for _ in range(ROUNDS):
            chosen, blocked = _choose(jobs, count - len(rows), gate)
            turned_away += blocked
            taken = take(name, chosen, gate.now) if chosen else []
            rows += taken
            if len(rows) >= count:
                break
            if missed := set(chosen) - {row["id"] for row in taken}:
                gate.withdraw(missed)
                jobs = [job for job in jobs if job.id not in chosen]
                continue
            shut |= {_reason(job, why) for job, why in blocked}
            if not full_look or not blocked or any(why.key == queue_key(name) for _, why in blocked):
                break
            jobs = _look(store, name, gate.now, types, window, shut, except_ids)
            full_look = len(jobs) >= window
            gate.hold(jobs, wait=False)
        if len(rows) >= count:
            break
    records = gate.save()
    more, dropped = _turn_away(turned_away, gate.now, using)
    log.append([*records, *more], using)
    advance.settled(dropped, gate.now, using)
    return rows


def next_release(
    names: Sequence[str], types: Sequence[str] | None, now: dt.datetime, *, using: str
) -> dt.datetime | None:
    """When a rate or a throttle next lets a job of these queues start that it holds back; None: it holds back none.

    Counts nothing and claims nothing. Jobs that wait for a slot of a concurrency limit wait for no time.
    """
    with atomic(using=using):
        gate = Gate(using, now, _policies(names, using))
        jobs = [job for name in dict.fromkeys(names) for job in _look(store_of(using), name, now, types, LEAST)]
        gate.hold(jobs, wait=True)
        _, blocked = _choose(jobs, len(jobs) + 1, gate)
    releases = (why.release for _, why in blocked if why.strategy not in ("concurrency", "busy"))
    return min((at for at in releases if at > now), default=None)


def _look(
    store: Store, queue: str, now: dt.datetime, types: Sequence[str] | None, limit: int,
    without: Collection[tuple[str, str, str]] = (), except_ids: Sequence[uuid.UUID] = (),
) -> list[Candidate]:  # fmt: skip
    found = store.candidates(queue, now, types, limit, without, except_ids)
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
    store = store_of(using)
    rows = store.lock_where(Q(pk__in=list(reasons), state=State.AVAILABLE), skip_locked=True)
    later = [row for row in rows if reasons[row["id"]].on_limit == "reschedule"]
    for row in later:
        row["due_at"] = reasons[row["id"]].release
    store.update_jobs(State.AVAILABLE, later, ("due_at",))
    dropped = [row for row in rows if reasons[row["id"]].on_limit == "drop"]
    records = [record for row in dropped for record in _drop(row, reasons[row["id"]], now)]
    store.update_jobs(Verb.EXPIRE, dropped, transitions.DISCARD_COLUMNS)
    return records, dropped


def _drop(row: JobRow, why: Blocked, now: dt.datetime) -> list[Record]:
    message = f"The rate limit '{why.key}' ({why.strategy}) left no room, and the job asks to be dropped then."
    facts: dict[str, Any] = {"key": why.key, "strategy": why.strategy, "release": format_instant(why.release)}
    discarded, *more = transitions.discard_because(row, "rate_limited", message, now, "scheduler", **facts)
    job_id = str(row["id"])
    event = catalogue.of_limit("rate_limit.dropped", why.key, now, strategy=why.strategy, job_id=job_id)
    return [discarded, event, *more]
