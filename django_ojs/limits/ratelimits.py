"""Note, inspect, override and prune rate limits (jobs 5.3)."""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from django.db import transaction
from django.db.models import Count, Exists, Min, OuterRef, Q, Subquery, Sum, TextField, Value
from django.db.models.functions import Cast, Greatest, Substr

from django_ojs import clock, spellings, states, tenants
from django_ojs.access import Limits
from django_ojs.conf import ojs_settings
from django_ojs.database import atomic, database, harmless, in_callers_transaction
from django_ojs.errors import InvalidRequest, NotFound
from django_ojs.events import catalogue, log
from django_ojs.events.catalogue import Record
from django_ojs.lifecycle.waking import wake_workers
from django_ojs.models import Job, Queue, RateLimit, RateStart
from django_ojs.models.fields import RawJSON
from django_ojs.models.job import JobRow
from django_ojs.models.queue import TEMPLATE
from django_ojs.queues import configuration
from django_ojs.queues.configuration import effective, flag_limited
from django_ojs.rules import durations, names, ratelimit
from django_ojs.rules.durations import format_instant
from django_ojs.rules.faults import fault
from django_ojs.rules.ratelimit import RatePolicy, queue_key
from django_ojs.states import State
from django_ojs.store import store_of

_NOTED_SECONDS = 5.0
_IDLE = dt.timedelta(days=1)  #: how long a key without jobs is kept

LIFT = "rate_limit.lift"  #: what the audit log calls it to lift a block


def record_limits(rows: Sequence[JobRow], using: str) -> None:
    """Remember the limits that new jobs name, so that they can be inspected.

    Outside the caller's transaction, right after its commit: inside it, all jobs of a key would wait for
    each other. The claim does not depend on it. Where it fails, the next push of that limit does it.
    """
    fresh = time.monotonic() - _NOTED_SECONDS
    scope = tenants.scope(using)
    named = {(row["rate_key"], row["rate_limit"]) for row in rows if row["rate_key"]}
    news = sorted(pair for pair in named if configuration.noted.get((scope, *pair), 0.0) < fresh)
    if not news:
        return

    def write() -> None:
        now = clock.now(using)
        for key, text in news:
            _record_limit(key, ratelimit.from_json(text), now, using)
        moment = time.monotonic()
        configuration.noted.update({(scope, *pair): moment for pair in news})

    follow = harmless(tenants.bound(write, using), using)
    if in_callers_transaction(using):
        transaction.on_commit(follow, using=using)
    else:
        follow()


def _record_limit(key: str, policy: RatePolicy, now: dt.datetime, using: str) -> None:
    values = {"policy": policy.as_wire()}
    RateLimit.objects.using(using).update_or_create(
        key=key, defaults={**values, **_written(now)}, create_defaults={**values, "created_at": now, "updated_at": now}
    )


def _written(now: dt.datetime) -> dict[str, Any]:
    """That a row is written now. What a start wrote while the clock was ahead stays known as such (`next_allowed`)."""
    return {"updated_at": Greatest("updated_at", Value(now))}


def inspect(key: str, *, policy: RatePolicy | None = None, using: str | None = None) -> dict[str, Any]:
    """What is known of a key and what is left of it. Raises `NotFound` for one that no job or operator has named.

    `policy` is that of a job under this key, and counts where the key has not been noted yet.
    """
    using = database(using)
    row = None
    if key.isprintable():  # a NUL cannot even be looked for
        row = RateLimit.objects.using(using).filter(pk=key).first() or _of_queue(key, using)
    if row is None and policy is not None:
        given: Mapping[str, Any] = {"key": key, "policy": policy.as_wire()}
        row = RateLimit(**given)
    if row is None:
        raise NotFound.resource("rate_limit", key)
    return describe([row], using)[0]


def inspect_stored(key: str, policy: RatePolicy, *, using: str | None = None) -> dict[str, Any]:
    """The same for a job that has just been stored; empty where the database does not say."""
    using = database(using)
    found: dict[str, Any] = {}
    harmless(lambda: found.update(inspect(key, policy=policy, using=using)), using)()
    return found


def override(key: str, given: Mapping[str, Any], *, by: str = "", using: str | None = None) -> dict[str, Any]:
    """Let these numbers replace what jobs and queue say under a key; return the inspection body.

    `expires_at` ends it by itself. `blocked_until: null`, alone or beside the numbers, lifts a block. Raises
    `InvalidRequest` for a bad key or policy.
    """
    using = database(using)
    if "blocked_until" in given:
        if given["blocked_until"] is not None:
            raise fault(
                "blocked_until", "must be null, which lifts the block: workers report one", given["blocked_until"]
            )
        given = {name: value for name, value in given.items() if name != "blocked_until"}
        with atomic(using=using):
            lifted = lift(key, by=by, using=using)
            return override(key, given, by=by, using=using) if given else lifted
    if not ratelimit.is_key(key):
        raise fault("key", "must be letters, digits and . _ : -, at most 255", key)
    policy = spellings.read_override({**given, "key": key})
    if not policy.limits:
        raise fault("rate_limit", "must hold at least one of concurrency, rate and throttle", dict(given))
    expires_at = _instant(given.get("expires_at"), "expires_at")
    with atomic(using=using):
        now = clock.now(using)
        configuration.add_rows(_flagged(key), now, using)
        values = {"override": policy.as_wire(), "override_expires_at": expires_at}
        row, _ = RateLimit.objects.using(using).update_or_create(
            key=key, defaults=values, create_defaults={**values, "created_at": now, "updated_at": now}
        )
        flag_limited(_flagged(key), using)
    return describe([row], using)[0]


def act_of_override(given: Mapping[str, Any]) -> str:
    """What the audit log calls an `override` by these members: without any for a limit, it only lifts a block."""
    return LIFT if given.keys() == {"blocked_until"} else "rate_limit.override"


def clear_override(key: str, *, by: str = "", using: str | None = None) -> str:
    """Take an override back, and lift a block; return what the audit log calls it: where a block was all that was in
    force, the act that lifts one.

    Raises `NotFound` for a key that no job or operator has named.
    """
    using = database(using)
    with atomic(using=using):
        now = clock.now(using)
        row = _locked(key, using)
        only_lifted = _lift(row, by, now, using) and override_of(row, now) is None
        row.override, row.override_expires_at, row.updated_at = RawJSON(""), None, max(row.updated_at, now)
        row.save(using=using, update_fields=["override", "override_expires_at", "updated_at"])
        flag_limited(_flagged(key), using)
    return LIFT if only_lifted else "rate_limit.clear_override"


def override_of(row: RateLimit, now: dt.datetime) -> RatePolicy | None:
    """An operator's override while it is in force."""
    if not row.override or (row.override_expires_at and row.override_expires_at <= now):
        return None
    return ratelimit.parse(row.override)


def next_allowed(row: RateLimit, now: dt.datetime) -> dt.datetime | None:
    """When a throttle lets the next job start, as the last start says; None too where the clock was ahead then."""
    return row.next_allowed_at if row.next_allowed_at and row.updated_at <= now + clock.AHEAD else None


def blocked_until(row: RateLimit, now: dt.datetime) -> dt.datetime | None:
    """Until when a worker's report blocks a key; None where that is over, and where the clock was ahead then."""
    blocked = row.blocked_until and row.blocked_until > now and row.updated_at <= now + clock.AHEAD
    return row.blocked_until if blocked else None


def blocked(now: dt.datetime) -> Q:
    """`blocked_until` as a condition: the keys that are blocked."""
    return Q(blocked_until__gt=now, updated_at__lte=now + clock.AHEAD)


def rate_limit_until(error: Any) -> dt.datetime | None:
    """The instant until which a failed job's far side wants to be left alone. Raises `InvalidRequest` for a bad one."""
    value = error.get("rate_limit_until") if isinstance(error, Mapping) else None
    return _instant(value, "error.rate_limit_until")


def block(until: Mapping[str, dt.datetime], now: dt.datetime, using: str) -> list[Record]:
    """Start nothing under these keys until then, which is `RATE_LIMIT_MAX_BLOCK` from now at most (dynamic limits); an
    earlier end never shortens a later one, and one that has passed changes nothing."""
    latest = now + dt.timedelta(seconds=ojs_settings.RATE_LIMIT_MAX_BLOCK)
    until = {key: min(instant, latest) for key, instant in until.items() if instant > now}
    records: list[Record] = []
    rows = RateLimit.objects.using(using).select_for_update().filter(pk__in=sorted(until)).order_by("key")
    found = {row.key: row for row in rows}
    for key in sorted(until.keys() - found.keys()):
        found[key] = RateLimit.objects.using(using).create(key=key, created_at=now, updated_at=now)
    for key, row in found.items():
        if (before := blocked_until(row, now)) is None or before < until[key]:
            row.next_allowed_at = next_allowed(row, now)
            row.blocked_until, row.updated_at = until[key], now
            row.save(using=using, update_fields=["next_allowed_at", "blocked_until", "updated_at"])
            facts = {"until": format_instant(until[key]), "reason": "rate_limit_until"}
            records.append(catalogue.of_limit("rate_limit.dynamic_adjusted", key, now, "workers", **facts))
    return records


def lift(key: str, *, by: str = "", using: str | None = None) -> dict[str, Any]:
    """Let jobs start again under a key that a worker's report has blocked; return the inspection body.

    Those that have put themselves off until the end of the block may start as well. A key that is not blocked stays as
    it is. Raises `NotFound` for one that no job or operator has named.
    """
    using = database(using)
    with atomic(using=using):
        row = _locked(key, using)
        _lift(row, by, clock.now(using), using)
    return describe([row], using)[0]


def _locked(key: str, using: str) -> RateLimit:
    row = RateLimit.objects.using(using).select_for_update().filter(pk=key).first() if key.isprintable() else None
    if row is None:
        raise NotFound.resource("rate_limit", key)
    return row


def _lift(row: RateLimit, by: str, now: dt.datetime, using: str) -> bool:
    """Lift the block of a key; return whether there was one."""
    until = row.blocked_until
    if until is None or until <= now:
        return False
    row.blocked_until, row.updated_at = None, max(row.updated_at, now)
    row.save(using=using, update_fields=["blocked_until", "updated_at"])
    put_off = Job.objects.using(using).filter(state=State.AVAILABLE, due_at=until, **_under(row.key))
    put_off.update(due_at=None)
    facts = {"until": format_instant(now), "reason": "lifted"} | ({"lifted_by": by} if by else {})
    log.append([catalogue.of_limit("rate_limit.dynamic_adjusted", row.key, now, **facts)], using)
    wake_workers(using)
    return True


def _under(key: str) -> dict[str, str]:
    """The condition of the jobs that a key holds back."""
    kind, colon, name = key.partition(":")
    return {kind: name} if colon and kind in ("queue", "type") else {"rate_key": key}


def is_shared(key: str, limits: Limits, using: str) -> bool:
    """Whether jobs beyond these limits wait or run under a key, so that to block it would stop them."""
    if limits.unlimited:
        return False
    jobs = Job.objects.using(using).filter(rate_key=key, state__in=states.ordered(states.LIVE))
    jobs = jobs.filter(rate_key__gt="")  # in the words of the index
    return jobs.exclude(limits.condition()).exists()


def prune(now: dt.datetime, batch: int, using: str) -> int:
    """Forget starts that no window reaches any more, overrides that ended, and keys without jobs that hold nothing
    back; of those of queues the ones whose queue is gone."""
    over = RateStart.objects.using(using).filter(expires_at__lte=now)
    starts = over.filter(pk__in=list(over.values_list("pk", flat=True)[:batch])).delete()[0]
    ended = RateLimit.objects.using(using).filter(override_expires_at__lte=now)
    for key in list(ended.values_list("pk", flat=True)):
        with atomic(using=using):  # by the same condition: an operator may have set another one since
            if ended.filter(pk=key).update(override=RawJSON(""), override_expires_at=None, **_written(now)):
                flag_limited(_flagged(key), using)
    with atomic(using=using):
        idle = RateLimit.objects.using(using).filter(updated_at__lt=now - _IDLE, override=RawJSON(""))
        idle = idle.exclude(next_allowed_at__gt=now).exclude(blocked_until__gt=now)
        # As text, which MariaDB compares with a name of any collation.
        name = Cast(Substr(OuterRef("key"), len(queue_key("")) + 1), TextField())
        queues = Queue.objects.using(using).filter(name=name)
        idle = idle.exclude(Exists(queues), key__startswith=queue_key(""))
        limited = Job.objects.using(using).filter(rate_key__gt="")  # in the words of the index
        # Looked up for each key: as EXISTS it may become a join with all of the index.
        first: Any = Subquery(limited.filter(rate_key=OuterRef("key")).order_by("state").values("pk")[:1])
        idle = idle.alias(job=first).filter(job=None)
        locked = idle.select_for_update(skip_locked=store_of(using).skip_locked)
        keys = list(locked.values_list("pk", flat=True)[:batch])
        return starts + RateLimit.objects.using(using).filter(pk__in=keys).delete()[0]


def _of_queue(key: str, using: str) -> RateLimit | None:
    """A queue whose limits were configured but never met has no row of its own yet."""
    name = key.removeprefix("queue:")
    if name == key or not queue_policies([name], using)[name].limits:
        return None
    now = clock.now(using)
    return RateLimit(key=key, created_at=now, updated_at=now)


def _instant(value: Any, path: str) -> dt.datetime | None:
    if value is None:
        return None
    try:
        return durations.parse_instant(value)
    except ValueError as error:
        raise InvalidRequest(f"{path}: {error}.", details={"field": path}) from error


def _flagged(key: str) -> Iterable[str]:
    """The row that says "limited": that of the queue, or of the template for a job type."""
    if key.startswith("type:"):
        return (TEMPLATE,)
    name = key.removeprefix("queue:")
    try:
        return (names.check_queue(name),) if name != key else ()
    except ValueError as error:
        raise fault("key", f"must name a queue, and its name {error}", key) from error


# What is known of a key, and what is left of it


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
        if following := next_allowed(row, now):
            body["throttle"]["next_allowed_at"] = format_instant(following)
    body["limit"] = flat.limit if flat else policy.concurrency
    body["period"] = durations.format_iso(flat.period_ms) if flat else None
    if blocked := blocked_until(row, now):
        body["blocked_until"] = format_instant(blocked)
    return {name: value for name, value in body.items() if value is not None}


def _policies(rows: Iterable[RateLimit], using: str) -> dict[str, RatePolicy]:
    """What jobs and queues say of each of these keys; one query, and none where no key is that of a queue."""
    noted = {row.key: ratelimit.parse({"key": row.key, **(row.policy or {})}) for row in rows}
    names_of = {key: key.removeprefix("queue:") for key in noted if key.startswith("queue:")}
    configured = queue_policies(names_of.values(), using) if names_of else {}
    return noted | {key: configured[name] for key, name in names_of.items() if configured[name].limits}


def queue_policies(wanted: Collection[str], using: str) -> dict[str, RatePolicy]:
    """The limits that queues have by their own configuration or the template's, fresh from their rows."""
    return limits_of(wanted, using)[0]


def limits_of(wanted: Collection[str], using: str) -> tuple[dict[str, RatePolicy], bool]:
    """`queue_policies`, and whether job types may have limits, too."""
    found = {queue.name: queue for queue in Queue.objects.using(using).filter(name__in=[*wanted, TEMPLATE])}
    template = found.get(TEMPLATE)
    policies = {name: spellings.rate_policy(effective(found.get(name), template)) for name in wanted}
    return policies, template is not None and template.limited


def _counted(policies: Mapping[str, RatePolicy], using: str) -> dict[str, dict[str, int]]:
    """The active and the available jobs under each key: one query for each state and each kind of keys. A limit of a
    queue that only jobs state counts those that state it."""
    found: dict[str, dict[str, int]] = {key: {State.ACTIVE: 0, State.AVAILABLE: 0} for key in policies}
    columns: dict[str, dict[str, str]] = {"queue": {}, "type": {}, "rate_key": {}}
    for key in found:
        kind, colon, name = key.partition(":")
        is_own = colon and kind in ("queue", "type") and not (policies[key].key and policies[key].limits)
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
        within |= Q(key__in=keys, at__gt=now - dt.timedelta(milliseconds=period_ms), at__lte=now + clock.AHEAD)
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
