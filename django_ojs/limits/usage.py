"""What is known of rate limits, and what is left of them: the inspection bodies of jobs 5.3."""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from django.db.models import Count, Min, Q, Sum

from django_ojs import clock
from django_ojs.limits.state import override_of
from django_ojs.models import Job, Queue, RateLimit, RateStart
from django_ojs.models.queue import TEMPLATE
from django_ojs.queues.configuration import effective
from django_ojs.rules import durations, queueconfig, ratelimit
from django_ojs.rules.durations import format_instant
from django_ojs.rules.ratelimit import RatePolicy
from django_ojs.states import State


def describe(rows: Sequence[RateLimit], using: str) -> list[dict[str, Any]]:
    """The inspection body of jobs 5.3 of each, the admin interface's flat keys included.

    The number of queries does not depend on the number of rows.
    """
    now = clock.now(using)
    overrides = {row.key: override_of(row, now) for row in rows}
    own = _policies([row for row in rows if overrides[row.key] is None], using)
    policies = {key: policy or own[key] for key, policy in overrides.items()}
    counted, windows = _counted(policies, using), _windows(policies, now, using)
    return [
        _described(row, policies[row.key], counted[row.key], windows.get(row.key), now)
        | ({"override": row.override | _expiry(row)} if overrides[row.key] else {})
        for row in rows
    ]


def _described(
    row: RateLimit, policy: RatePolicy, counted: Mapping[str, int], window: dict[str, Any] | None, now: dt.datetime
) -> dict[str, Any]:
    active, waiting = counted[State.ACTIVE], counted[State.AVAILABLE]
    body: dict[str, Any] = {"key": row.key, "active": active, "waiting": waiting, "waiting_count": waiting}
    flat = policy.rate or policy.throttle
    if policy.concurrency is not None:
        left = max(policy.concurrency - active, 0)
        body["concurrency"] = {"limit": policy.concurrency, "active": active, "available": left}
    if policy.rate:
        body["rate"] = policy.rate.as_wire() | (window or {})
    if policy.throttle:
        body["throttle"] = policy.throttle.as_wire()
        if row.next_allowed_at:
            body["throttle"]["next_allowed_at"] = format_instant(row.next_allowed_at)
    body["limit"] = flat.limit if flat else policy.concurrency
    body["period"] = durations.format_iso(flat.period_ms) if flat else None
    if row.blocked_until and row.blocked_until > now:
        body["blocked_until"] = format_instant(row.blocked_until)
    return {name: value for name, value in body.items() if value is not None}


def _policies(rows: Iterable[RateLimit], using: str) -> dict[str, RatePolicy]:
    """What jobs and queues say of each of these keys; one query, and none where no key is that of a queue."""
    noted = {row.key: ratelimit.parse({"key": row.key, **(row.policy or {})}) for row in rows}
    names_of = {key: key.removeprefix("queue:") for key in noted if key.startswith("queue:")}
    configured = _queue_policies(names_of.values(), using) if names_of else {}
    return noted | {key: configured[name] for key, name in names_of.items() if configured[name].limits}


def queue_policy(name: str, using: str) -> RatePolicy:
    """The limits that a queue has by its own configuration or the template's."""
    return _queue_policies([name], using)[name]


def _queue_policies(wanted: Collection[str], using: str) -> dict[str, RatePolicy]:
    found = {queue.name: queue for queue in Queue.objects.using(using).filter(name__in=[*wanted, TEMPLATE])}
    template = found.get(TEMPLATE)
    return {name: queueconfig.rate_policy(effective(found.get(name), template)) for name in wanted}


def _counted(keys: Iterable[str], using: str) -> dict[str, dict[str, int]]:
    """The active and the available jobs under each key: one query for each state and each kind of keys."""
    found: dict[str, dict[str, int]] = {key: {State.ACTIVE: 0, State.AVAILABLE: 0} for key in keys}
    columns: dict[str, dict[str, str]] = {"queue": {}, "type": {}, "rate_key": {}}
    for key in found:
        kind, colon, name = key.partition(":")
        is_own = colon and kind in ("queue", "type")
        columns[kind if is_own else "rate_key"][name if is_own else key] = key
    for column, named in columns.items():
        for state in (State.ACTIVE, State.AVAILABLE) if named else ():  # apart, as the indexes are
            jobs = Job.objects.using(using).order_by().filter(state=state, **{f"{column}__in": list(named)})
            if column == "rate_key":
                jobs = jobs.filter(rate_key__gt="")
            for name, number in jobs.values_list(column).annotate(number=Count("pk")):
                if name in named:
                    found[named[name]][state] = number
    return found


def _windows(policies: Mapping[str, RatePolicy], now: dt.datetime, using: str) -> dict[str, dict[str, Any]]:
    """What each rate has used of its window, by key; one query, and none where nothing has a rate."""
    periods = {key: policy.rate.period_ms for key, policy in policies.items() if policy.rate}
    within = Q()
    for period_ms in set(periods.values()):
        keys = [key for key, its_own in periods.items() if its_own == period_ms]
        within |= Q(key__in=keys, at__gt=now - dt.timedelta(milliseconds=period_ms))
    starts = RateStart.objects.using(using).order_by().filter(within) if periods else RateStart.objects.none()
    summed = starts.values("key").annotate(used=Sum("count"), first=Min("at"))
    used = {one["key"]: (one["used"], one["first"]) for one in summed}
    found = {}
    for key, period_ms in periods.items():
        count, first = used.get(key, (0, now))
        resets = first + dt.timedelta(milliseconds=period_ms)
        found[key] = {"current_count": count, "window_resets_at": format_instant(resets)}
    return found


def _expiry(row: RateLimit) -> dict[str, str]:
    return {"expires_at": format_instant(row.override_expires_at)} if row.override_expires_at else {}
