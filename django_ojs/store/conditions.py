"""Holds the conditions that several statements share: which jobs may be claimed, whose time is over, limits."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from django.db.models import Q

from django_ojs import states
from django_ojs.models import (
    CronRun,
    Job,
    Maintenance,
    Queue,
    Worker,
)
from django_ojs.models.fields import any_of, split
from django_ojs.models.queue import TEMPLATE
from django_ojs.states import State, Verb
from django_ojs.store.values import Claim

_JOB, _QUEUE, _MAINTENANCE, _CRON_RUN, _WORKER = (
    model._meta.db_table for model in (Job, Queue, Maintenance, CronRun, Worker)
)


@lru_cache
def guarded_states(guard: Verb | State) -> tuple[State, ...]:
    """The states that a statement under this guard may touch."""
    return (guard,) if isinstance(guard, State) else tuple(states.ordered(states.sources(guard)))


def _claimable(claim: Claim) -> Q:
    condition = ~ended(claim.now)
    condition &= Q(due_at__isnull=True) | Q(due_at__lte=claim.now)
    if claim.except_ids:
        condition &= ~Q(pk__in=claim.except_ids)
    if claim.unsuspected:
        condition &= Q(suspected__isnull=True)
    return condition & any_of("type", claim.types) if claim.types is not None else condition


def _of_types(entries: Sequence[str]) -> tuple[str, list[Any]]:
    """A condition that every database knows, and its parameters: jobs of these types, or patterns such as `mail.*`.

    The claim reads rows in its own order anyway, so a pattern costs what a name costs.
    """
    exact, prefixes = split(entries)
    marks = ", ".join(["%s"] * len(exact)) or "NULL"
    params = [*exact, *(value for begin in prefixes for value in (len(begin), begin))]
    return f"(type IN ({marks}){' OR substr(type, 1, %s) = %s' * len(prefixes)})", params


#: What a claim writes.
CLAIM_COLUMNS = ("state", "attempt", "started_at", "worker_id", "lease_ms", "visible_until", "timeout_at", "wake_at",
                 "due_at")  # fmt: skip
#: What entering a terminal state writes.
FINISH_COLUMNS = ("state", "finished_at", "due_at", "visible_until", "timeout_at", "wake_at")
#: What may still be claimed, with the time of the claim three times: `ended` in SQL.
ALIVE = (
    "AND (expires_at IS NULL OR expires_at > %s) AND (deadline_at IS NULL OR deadline_at > %s) "
    "AND (start_by IS NULL OR start_by > %s OR attempt > 0)"
)


def ended(now: dt.datetime) -> Q:
    """Waiting jobs whose time has run out (binding 5)."""
    return Q(expires_at__lte=now) | Q(deadline_at__lte=now) | Q(start_by__lte=now, attempt=0)


def under_limit(queue: str) -> str:
    """`models.job.LIMITED` in SQL: whether a job is under a limit; `queue` is its column there."""
    limited = f"SELECT 1 FROM {Queue._meta.db_table} AS q WHERE q.limited AND q.name IN ({queue}, '{TEMPLATE}')"
    return f"(rate_key <> '' OR EXISTS ({limited}))"


def obstacles(these_queues: str, now: str) -> tuple[str, str, str, str, str]:
    """What a plain claim cannot do with, as conditions in SQL, in this order: `due`, `keyed`, `queue_limited`, `closed`
    and `postponed`, as `QueueStatus` has them.

    `these_queues` is how a column is compared with the queues, such as `IN (%s, %s)`. Parameters are `now`, and three
    times the queues after the queues of the first condition.
    """
    # In an order that only the index of these times has: with EXISTS, PostgreSQL may read all jobs.
    due = (
        f"(SELECT wake_at FROM {_JOB} WHERE wake_at <= {now} AND queue {these_queues} "
        f"AND state IN ('scheduled', 'retryable', 'available') ORDER BY wake_at LIMIT 1) IS NOT NULL"
    )
    keyed = f"EXISTS(SELECT 1 FROM {_JOB} WHERE state = 'available' AND rate_key > '' AND queue {these_queues})"
    queue_limited = f"EXISTS(SELECT 1 FROM {_QUEUE} WHERE limited AND (name = '{TEMPLATE}' OR name {these_queues}))"
    closed = f"EXISTS(SELECT 1 FROM {_MAINTENANCE})"
    return due, keyed, queue_limited, closed, f"EXISTS(SELECT 1 FROM {_CRON_RUN} WHERE held AND queue {these_queues})"
