"""FETCH under rate limits: read the jobs that could be claimed, ask the limits, claim what they admit.

A constant number of statements for each queue: for the keys of the queues one lock and one count, the jobs, the
claim. Where only queues have limits, and these leave room for all that is asked for, no jobs are read. Where jobs
or their types have keys, these are locked and counted too, and then the jobs are read again, as they are once the
keys are held. What the claim does not get all the same is not counted. A claim that comes to no end of shut keys leaves
the jobs behind them to the next one of its process (`_ShutKeys`), so that those behind up to 10,000 keys are reached.
Jobs and queues without limits never come here (`store.orm.Store.queue_status`).

Concurrency is counted from the jobs that are active, so it cannot drift. A rate is counted over a window that slides,
from the log of starts. A throttle keeps the instant of the next start that it allows (jobs 5.2).

Lock order: the keys of all queues, sorted; the other keys, sorted; then jobs, which are skipped where another
transaction holds them.
"""

from __future__ import annotations

import datetime as dt
import math
import time
import uuid
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from django.db import connections
from django.db.models import Q

from django_ojs import clock, tenants
from django_ojs.database import atomic
from django_ojs.events import catalogue, log
from django_ojs.events.catalogue import Record
from django_ojs.lifecycle import transitions
from django_ojs.lifecycle.ended import jobs_ended
from django_ojs.limits.ratelimits import blocked_until, limits_of, next_allowed, override_of
from django_ojs.models import Job, RateLimit, RateStart
from django_ojs.models.job import JobRow
from django_ojs.rules import ratelimit
from django_ojs.rules.durations import format_instant
from django_ojs.rules.ratelimit import RatePolicy, Window, queue_key, type_key
from django_ojs.states import State, Verb
from django_ojs.store import store_of
from django_ojs.store.orm import Store
from django_ojs.store.values import Choice

#: How many jobs are looked at to fill one claim, for each asked for and at least, where the first were shut out; and
#: how often more are looked at then.
AHEAD, LEAST, ROUNDS = 4, 100, 10
#: A claim that has come to no end of shut keys leaves the rest to the next one of this process, which looks for jobs
#: behind them. When one has come through, those of so many seconds begin there, too. So many keys are left out at most.
LEFT_OUT_SECONDS, MOST_LEFT_OUT = 2.0, 10_000
_PASS_SECONDS = 600.0  #: how long the next claim may be in coming
_MOST_PLACES = 1000

#: `take(queue, ids, limit, now)` claims those of the jobs that are still there; without ids the next ones that have no
#: key of their own, up to the limit.
Take = Callable[[str, list[uuid.UUID] | None, int, dt.datetime], list[JobRow]]


def claim(
    choice: Choice, count: int, take: Take, now: dt.datetime, using: str, *, keyed: bool,
    opens_in: Callable[[float], None] | None = None,
) -> list[JobRow]:  # fmt: skip
    """Claim up to `count` of the chosen jobs through `take`, as far as the limits allow.

    `keyed`: jobs there may have keys of their own. `opens_in` is called with the seconds until the first of the limits
    opens that held jobs back and open by time.
    """
    names = choice.queues
    first, further = max(LEAST, count), max(LEAST, AHEAD * count)
    store = store_of(using)
    limit_keys = LimitKeys.of(names, now, using)

    def claimable() -> dict[str, list[LimitedJob]]:
        return {name: _claimable(store, choice, name, limit_keys.now, first) for name in names}

    limit_keys.hold_queues(names)
    if not keyed and limit_keys.has_room(names, count):
        return _claim_next(names, count, take, limit_keys)
    ahead = claimable()
    if limit_keys.hold([job for jobs in ahead.values() for job in jobs], wait=True) and store.skip_locked:
        ahead = claimable()  # while this claim waited for the keys, others may have claimed what it saw
        limit_keys.hold([job for jobs in ahead.values() for job in jobs], wait=False)
    rows: list[JobRow] = []
    turned_away: list[tuple[LimitedJob, Blocked]] = []
    for name, found in ahead.items():
        jobs = found
        shut = _ShutKeys(choice, name, using)
        full_look = len(jobs) >= first
        for looks in range(1, ROUNDS + 1):
            chosen, blocked = _choose(jobs, count - len(rows), limit_keys)
            turned_away += blocked
            taken = take(name, chosen, len(chosen), limit_keys.now) if chosen else []
            rows += taken
            if len(rows) >= count:
                break
            if missed := set(chosen) - {row["id"] for row in taken}:
                limit_keys.withdraw(missed)
                jobs = [job for job in jobs if job.id not in chosen]
                continue
            shut.meet(blocked)
            if not full_look or not blocked or any(why.key == queue_key(name) and not why.own for _, why in blocked):
                break
            if looks == ROUNDS:
                shut.leave_the_rest()
                break
            jobs = _claimable(store, choice, name, limit_keys.now, further, shut.reasons)
            full_look = len(jobs) >= further
            limit_keys.hold(jobs, wait=False)
        shut.end()
        if len(rows) >= count:
            break
    if opens_in is not None and (opens_at := _opens_first(turned_away)):
        opens_in((opens_at - limit_keys.now).total_seconds())
    records = limit_keys.save()
    more, dropped = _turn_away(turned_away, limit_keys.now, using)
    log.append([*records, *more], using)
    jobs_ended(dropped, limit_keys.now, using)
    return rows


def _claim_next(names: Sequence[str], count: int, take: Take, limit_keys: LimitKeys) -> list[JobRow]:
    """Claim the next jobs of these queues, whose limits leave room for all of them."""
    rows: list[JobRow] = []
    for name in names:
        taken = take(name, None, count - len(rows), limit_keys.now)
        limit_keys.start_of_queue(name, [row["id"] for row in taken])
        rows += taken
        if len(rows) >= count:
            break
    log.append(limit_keys.save(), limit_keys.using)
    return rows


def next_start(choice: Choice, now: dt.datetime, *, using: str) -> dt.datetime | None:
    """When a rate or a throttle next lets one of the chosen jobs start that it holds back; None: it holds back none.

    Counts nothing and claims nothing. Jobs that wait for a slot of a concurrency limit wait for no time.
    """
    with atomic(using=using):
        limit_keys = LimitKeys.of(choice.queues, now, using)
        limit_keys.hold_queues(choice.queues)
        jobs = [job for name in choice.queues for job in _claimable(store_of(using), choice, name, now, LEAST)]
        limit_keys.hold(jobs, wait=True)
        _, blocked = _choose(jobs, len(jobs) + 1, limit_keys)
    return _opens_first([(job, why) for job, why in blocked if why.until > now])


def _opens_first(blocked: Iterable[tuple[LimitedJob, Blocked]]) -> dt.datetime | None:
    """When the first of the limits opens that open by time and for which jobs wait; None: none does."""
    waiting = (why for _, why in blocked if why.strategy not in ("concurrency", "busy") and why.on_limit != "drop")
    return min((why.until for why in waiting), default=None)


def _claimable(
    store: Store, choice: Choice, queue: str, now: dt.datetime, limit: int, without: Collection[_Reason] = (),
) -> list[LimitedJob]:  # fmt: skip
    found = store.claimable(choice, queue, now, limit, without)
    return [LimitedJob(pk, kind, queue, key, policy) for pk, kind, key, policy in found]


def _choose(
    jobs: Sequence[LimitedJob], limit: int, limit_keys: LimitKeys
) -> tuple[list[uuid.UUID], list[tuple[LimitedJob, Blocked]]]:
    """The first jobs that the limits admit, and those before them that they do not."""
    chosen: list[uuid.UUID] = []
    blocked: list[tuple[LimitedJob, Blocked]] = []
    for job in jobs:
        if len(chosen) >= limit:
            break
        why = limit_keys.admit(job)
        if why is None:
            chosen.append(job.id)
        else:
            blocked.append((job, why))
    return chosen, blocked


#: A key with its numbers, or a job type, under which a further look leaves out jobs.
_Reason = tuple[str, str, str]
#: What claims of this process leave out from the start, by queue and job types, and until when.
_left_out: dict[Hashable, tuple[float, frozenset[_Reason]]] = {}


def forget() -> None:
    """Let the next claim look at all keys."""
    _left_out.clear()


class _ShutKeys:
    """What the further looks of a claim leave out in one queue: what it has met itself, and what the claims before it
    have, where these came to no end of shut keys."""

    def __init__(self, choice: Choice, queue: str, using: str) -> None:
        self._place = None if choice.only is not None else (tenants.scope(using), queue, choice.types)
        until, reasons = _left_out.get(self._place, (0.0, frozenset()))
        self._before = (until, reasons) if until > time.monotonic() else None
        self.reasons: set[_Reason] = set(reasons) if self._before else set()
        self._busy: set[_Reason] = set()  #: of keys that another claim holds, which may be open

    def meet(self, blocked: Iterable[tuple[LimitedJob, Blocked]]) -> None:
        """Leave out the keys of these jobs from now on."""
        for job, why in blocked:
            self.reasons.add(_reason(job, why))
            if why.strategy == "busy":
                self._busy.add(_reason(job, why))

    def leave_the_rest(self) -> None:
        """Let the next claim look behind all these."""
        self._before = None
        shut = frozenset(self.reasons - self._busy)
        self._keep(_PASS_SECONDS, shut if len(shut) <= MOST_LEFT_OUT else frozenset())

    def end(self) -> None:
        """The looks have found enough, or all there is: soon the claims look at all keys again."""
        if self._before is not None:
            until, reasons = self._before
            self._keep(min(LEFT_OUT_SECONDS, until - time.monotonic()), reasons)

    def _keep(self, seconds: float, reasons: frozenset[_Reason]) -> None:
        if self._place is None:
            return
        if len(_left_out) >= _MOST_PLACES:  # names of queues and types come from clients
            _left_out.clear()
        _left_out[self._place] = time.monotonic() + seconds, reasons


def _reason(job: LimitedJob, why: Blocked) -> _Reason:
    """What a further look leaves out: jobs under the same key with the same numbers, or of the same type."""
    return ("", "", job.type) if why.key.startswith("type:") else (job.rate_key, job.rate_limit, "")


def _turn_away(
    blocked: Sequence[tuple[LimitedJob, Blocked]], now: dt.datetime, using: str
) -> tuple[list[Record], list[JobRow]]:
    """Do what jobs want done when they meet a limit: put off until it is over, or dropped; return those dropped."""
    reasons = {job.id: why for job, why in blocked if why.on_limit != "wait" and why.strategy != "busy"}
    if not reasons:
        return [], []
    store = store_of(using)
    rows = store.lock_where(Q(pk__in=list(reasons), state=State.AVAILABLE), skip_locked=True)
    later = [row for row in rows if reasons[row["id"]].on_limit == "reschedule"]
    for row in later:
        row["due_at"] = reasons[row["id"]].until
    store.update_jobs(State.AVAILABLE, later, ("due_at",))
    dropped = [row for row in rows if reasons[row["id"]].on_limit == "drop"]
    records = [record for row in dropped for record in _drop(row, reasons[row["id"]], now)]
    store.update_jobs(Verb.EXPIRE, dropped, transitions.DISCARD_COLUMNS)
    return records, dropped


def _drop(row: JobRow, why: Blocked, now: dt.datetime) -> list[Record]:
    message = f"The rate limit '{why.key}' ({why.strategy}) left no room, and the job asks to be dropped then."
    facts: dict[str, Any] = {"key": why.key, "strategy": why.strategy, "release": format_instant(why.until)}
    discarded, *more = transitions.discard_because(row, "rate_limited", message, now, "scheduler", **facts)
    job_id = str(row["id"])
    event = catalogue.of_limit("rate_limit.dropped", why.key, now, strategy=why.strategy, job_id=job_id)
    return [discarded, event, *more]


# The state of the keys

_JOB, _START = Job._meta.db_table, RateStart._meta.db_table
_SOON = dt.timedelta(seconds=1)  #: when to look again at a key that is full: no one can say when a job will end


#: Behind the key of a queue that has limits itself: the starts of its jobs that state one without a key. It has no row.
_OWN = "/own"


def _base(key: str) -> str:
    return key.removesuffix(_OWN)


class LimitedJob(NamedTuple):
    """A job that could be claimed, in as many columns as the limits need."""

    id: Any
    type: str
    queue: str
    rate_key: str
    rate_limit: str


class Blocked(NamedTuple):
    """Why a job may not start now: `strategy` is concurrency, rate, throttle, dynamic, or busy elsewhere; `own`: by
    what the job itself states, or a block of the key that it names."""

    key: str
    strategy: str
    limit: int
    current: int
    until: dt.datetime
    on_limit: str
    own: bool = False


@dataclass(slots=True)
class _LimitKey:
    """One locked key: what runs, what started lately, and what this claim has added."""

    row: RateLimit
    running: int = 0
    naming: int = 0  #: those of them that have it as their own key; the others are of its queue or type
    spent: int = 0  #: starts that some window still reaches: no window holds more
    starts: list[tuple[dt.datetime, int]] | None = None  #: the same one by one; None: not read
    #: The jobs that this claim starts, and how far behind each the next may start (milliseconds).
    admitted: dict[Any, float] = field(default_factory=dict)
    admitted_naming: set[Any] = field(default_factory=set)
    longest_ms: int = 0
    blocked: Blocked | None = None

    def start(self, jobs: Iterable[Any], policies: Iterable[RatePolicy]) -> None:
        """Count starts under these policies; the strictest of their throttles sets the distance to the next."""
        self.keep_for(policies)
        spacings = (_spacing(p.throttle) for p in policies if p.throttle)
        self.admitted |= dict.fromkeys(jobs, max(spacings, default=0.0))

    def keep_for(self, policies: Iterable[RatePolicy]) -> None:
        """Keep the starts of this claim as long as these policies look back: also those of jobs that wait, which may
        state longer windows than the jobs that start."""
        for policy in policies:
            if policy.rate:
                self.longest_ms = max(self.longest_ms, policy.rate.period_ms)
            if policy.throttle and self.is_own:
                self.longest_ms = max(self.longest_ms, math.ceil(_spacing(policy.throttle)))

    def has_room(self, policy: RatePolicy, number: int) -> bool:
        """Whether so many more may start under this policy, as far as can be told without the starts one by one."""
        return not (
            policy.throttle
            or (policy.concurrency is not None and self.active + number > policy.concurrency)
            or (policy.rate and self.spent + self.started + number > policy.rate.limit)
        )

    @property
    def is_own(self) -> bool:
        return self.row.key.endswith(_OWN)

    @property
    def started(self) -> int:
        return len(self.admitted)

    @property
    def active(self) -> int:
        return self.running + self.started

    def counted(self, policy: RatePolicy) -> int:
        """The active jobs that count for this policy: for one that jobs state, those that have the key as their own."""
        return self.naming + len(self.admitted_naming) if policy.key else self.active

    @property
    def throttled(self) -> bool:
        return any(self.admitted.values())

    def next_allowed(self, now: dt.datetime) -> dt.datetime | None:
        """When a throttle lets the next job start; None where none has started under one."""
        if not self.throttled:
            return self.row.next_allowed_at
        distance = dt.timedelta(milliseconds=sum(self.admitted.values()))
        return max(self.row.next_allowed_at or now, now) + distance

    def within(self, window: Window, now: dt.datetime) -> int:
        """How many jobs have started in this window, those of this claim included."""
        edge = now - dt.timedelta(milliseconds=window.period_ms)
        return self.started + sum(number for at, number in self.starts or () if at > edge)


class LimitKeys:
    """The keys that one FETCH has to do with.

    `queue_policies` are those of the queues themselves; `by_type`: types may have limits.
    """

    def __init__(
        self, using: str, now: dt.datetime, queue_policies: Mapping[str, RatePolicy], *, by_type: bool
    ) -> None:
        self.using, self.now, self.queue_policies, self._by_type = using, now, queue_policies, by_type
        self.keys: dict[str, _LimitKey] = {}
        self.shut: set[str] = set()  #: keys that could not be locked
        self._looked_for: set[str] = set()
        self._parts_of: dict[tuple[str, str, str, str], dict[str, list[RatePolicy]]] = {}

    @classmethod
    def of(cls, queues: Sequence[str], now: dt.datetime, using: str) -> LimitKeys:
        """The keys of these queues, with nothing locked yet."""
        policies, by_type = limits_of(queues, using)
        return cls(using, now, policies, by_type=by_type)

    def hold_queues(self, names: Iterable[str]) -> None:
        """Lock the keys of these queues and read what is left of them. To be called first: it waits."""
        needed = {queue_key(name) for name in names if self.queue_policies.get(name, ratelimit.NONE).limits}
        self._hold({queue_key(name) for name in names}, needed, wait=True)

    def hold(self, jobs: Iterable[LimitedJob], *, wait: bool) -> bool:
        """The same for the keys of these jobs and of their types. Returns whether there are some that were not held.

        With `wait` False a key that another claim holds stays shut for this one: further locks are taken out of
        order, and waiting could be for ever.
        """
        needed = {job.rate_key for job in jobs if job.rate_key}
        types = {type_key(job.type) for job in jobs} if self._by_type else set()
        are_new = self._hold(needed | types, needed, wait=wait)
        for job in {job._replace(id=None) for job in jobs}:
            for key, policies in self._parts(job).items():
                if key in self.keys:
                    self.keys[key].keep_for(policies)
        return are_new

    def _hold(self, wanted: set[str], needed: set[str], *, wait: bool) -> bool:
        """Lock those of the keys that are there, in their order; of those that are needed make the rows."""
        wanted = wanted - self.keys.keys() - (self._looked_for - needed)
        if not wanted:
            return False
        self._looked_for |= wanted
        self._parts_of.clear()
        rows = store_of(self.using).with_lock_timeout(
            RateLimit.objects.using(self.using).filter(pk__in=wanted).order_by("key")
        )
        locking = rows.select_for_update(skip_locked=not wait and store_of(self.using).skip_locked)
        # A single one is locked at once. Of several, those that are missing are made first, or the order would be lost.
        found, known = list(locking) if len(wanted) == 1 else [], wanted
        if not found:
            known = set(rows.values_list("pk", flat=True))
            if missing := wanted & needed - known:
                new = [RateLimit(key=key, created_at=self.now, updated_at=self.now) for key in sorted(missing)]
                RateLimit.objects.using(self.using).bulk_create(new, ignore_conflicts=True)
                known |= missing
            if not known:
                return False
            found = list(locking.all())
        held = {row.key: _LimitKey(row) for row in found}
        for row in found:
            if self.queue_policies.get(row.key.removeprefix("queue:"), ratelimit.NONE).limits:
                own = RateLimit(key=row.key + _OWN, blocked_until=row.blocked_until, updated_at=row.updated_at)
                held[own.key] = _LimitKey(own)
        if held:
            store_of(self.using).certify(RateLimit.objects.using(self.using).filter(pk__in=list(held)))
        if wait:
            self.now = clock.now(self.using)  # the locks may have taken a while
        for key in held.values():
            key.row.next_allowed_at = next_allowed(key.row, self.now)
            key.row.blocked_until = blocked_until(key.row, self.now)
        if held:
            self._count(held)
        self.keys |= held
        self.shut |= known - self.keys.keys()
        return True

    def admit(self, job: LimitedJob) -> Blocked | None:
        """None when the job may start now, and it is counted as started; else what stops it."""
        parts = self._parts(job)
        for key, policies in parts.items():
            for policy in policies:
                if blocked := self._test(key, policy, named=_base(key) == job.rate_key):
                    met = self.keys.get(_base(key))
                    if met is not None and met.blocked is None:
                        met.blocked = blocked
                    return blocked
        for key, policies in parts.items():
            self.keys[key].start([job.id], policies)
            if _base(key) == job.rate_key:
                self.keys[key].admitted_naming.add(job.id)
        return None

    def has_room(self, names: Iterable[str], number: int) -> bool:
        """Whether each of these queues lets so many more jobs start, of any type and without a key of their own."""
        return not self._by_type and all(
            key in self.keys and self.keys[key].has_room(policy, number)
            for name in names
            for key, policies in self._of_queue(name).items()
            for policy in policies
        )

    def start_of_queue(self, name: str, jobs: Sequence[Any]) -> None:
        """Count these jobs as started, for which there was room."""
        for key, policies in self._of_queue(name).items() if jobs else ():
            self.keys[key].start(jobs, policies)

    def _of_queue(self, name: str) -> dict[str, list[RatePolicy]]:
        """`_parts` of a job that has no key of its own and is of no type with a limit."""
        return self._parts(LimitedJob(None, "", name, "", ""))

    def withdraw(self, jobs: Iterable[Any]) -> None:
        """Count these jobs no longer: they were admitted, and the claim found them taken or locked by another."""
        for job_id in jobs:
            for key in self.keys.values():
                key.admitted.pop(job_id, None)
                key.admitted_naming.discard(job_id)

    def save(self) -> list[Record]:
        """Write what the starts changed; return the events that tell who met a limit, and who left it behind."""
        used = [key for key in self.keys.values() if key.started]
        RateStart.objects.using(self.using).bulk_create(
            RateStart(
                key=key.row.key, at=self.now, count=key.started,
                expires_at=self.now + dt.timedelta(milliseconds=key.longest_ms),
            )
            for key in used if key.longest_ms
        )  # fmt: skip
        stored = [key for key in self.keys.values() if not key.is_own]
        before = {key.row.key: key.row.exceeded for key in stored}
        records = [record for key in stored for record in _limit_events(key, self.now)]
        changed = [key.row for key in stored if key.throttled or key.row.exceeded != before[key.row.key]]
        for key in used:
            key.row.next_allowed_at = key.next_allowed(self.now)
        for row in changed:
            row.updated_at = self.now
        if changed:
            columns = ["next_allowed_at", "blocked_until", "exceeded", "updated_at"]
            RateLimit.objects.using(self.using).bulk_update(changed, columns)
        return records

    def _parts(self, job: LimitedJob) -> dict[str, list[RatePolicy]]:
        """Every key, with its policies, that has to let the job pass.

        An override replaces what jobs and queue say. A key that is shut is asked too, and says no.
        """
        signature = (job.queue, job.rate_key, job.rate_limit, job.type)
        if (known := self._parts_of.get(signature)) is not None:
            return known
        own_queue, of_queue = queue_key(job.queue), self.queue_policies.get(job.queue, ratelimit.NONE)
        stated = [(own_queue, of_queue)]

        def override_under(key: str) -> RatePolicy | None:
            return override_of(self.keys[key].row, self.now) if key in self.keys else None

        if job.rate_key:
            apart = job.rate_key == own_queue and of_queue.limits and not override_under(own_queue)
            key = job.rate_key + _OWN if apart else job.rate_key
            stated.insert(0, (key, replace(ratelimit.from_json(job.rate_limit), key=job.rate_key)))
        parts: dict[str, list[RatePolicy]] = {}
        for key, policy in [*stated, (type_key(job.type), ratelimit.NONE)]:
            override = override_under(key)
            if policy.limits or override or _base(key) == job.rate_key or key in self.shut:
                parts.setdefault(key, []).append(override or policy)
        self._parts_of[signature] = parts
        return parts

    def _test(self, key: str, policy: RatePolicy, *, named: bool) -> Blocked | None:
        """What stops a job. A block, as a worker reported it, stops those for which the key is `named`: not those that
        only are in its queue."""
        found = self.keys.get(key)
        key, own = _base(key), bool(policy.key)
        if found is None:
            return Blocked(key, "busy", 0, 0, self.now, "wait")
        row, now, on_limit = found.row, self.now, policy.on_limit
        if named and row.blocked_until:
            return Blocked(key, "dynamic", 0, 0, row.blocked_until, on_limit, own=True)
        if policy.concurrency is not None and (active := found.counted(policy)) >= policy.concurrency:
            return Blocked(key, "concurrency", policy.concurrency, active, now + _SOON, on_limit, own)
        if policy.rate and found.spent + found.started >= policy.rate.limit:
            starts = self._read_starts(found)
            if (number := found.within(policy.rate, now)) >= policy.rate.limit:
                opens_at = _opens_at(starts, policy.rate, now)
                return Blocked(key, "rate", policy.rate.limit, number, opens_at, on_limit, own)
        if policy.throttle and (following := self._following(found, policy.throttle)) and following > now:
            return Blocked(key, "throttle", policy.throttle.limit, 1, following, on_limit, own)
        return None

    def _following(self, key: _LimitKey, throttle: Window) -> dt.datetime | None:
        """When this throttle lets the next job start; None: at once. Of jobs that state limits of their own, each keeps
        its own distance to the latest start, also where that is of this claim."""
        if not key.is_own:
            return key.next_allowed(self.now)
        starts = [(self.now, 1)] if key.started else self._read_starts(key)
        return starts[-1][0] + dt.timedelta(milliseconds=_spacing(throttle)) if starts else None

    def _count(self, held: Mapping[str, _LimitKey]) -> None:
        """One statement for all the keys: the active jobs, by job, by queue and by type; and the starts."""
        queues = [key.removeprefix("queue:") for key in held if key.startswith("queue:")]
        types = [key.removeprefix("type:") for key in held if key.startswith("type:")]
        conditions: list[str] = []
        params: list[Any] = []
        for column, values in (("rate_key", list(held)), ("queue", queues), ("type", types)):
            if values:
                conditions.append(f"{column} IN ({', '.join(['%s'] * len(values))})")
                params += values
        connection = connections[self.using]
        key, count = map(connection.ops.quote_name, ("key", "count"))
        params += [*held, connection.ops.adapt_datetimefield_value(self.now)]
        with connection.cursor() as cursor:
            cursor.execute(
                f"SELECT rate_key, queue, type, count(*), 0 FROM {_JOB} WHERE state = 'active' "  # noqa: S608 - our own
                f"AND ({' OR '.join(conditions)}) GROUP BY rate_key, queue, type "
                f"UNION ALL SELECT {key}, '', '', 0, sum({count}) FROM {_START} "
                f"WHERE {key} IN ({', '.join(['%s'] * len(held))}) AND expires_at > %s GROUP BY {key}",
                params,
            )
            groups = cursor.fetchall()
        for name, queue, job_type, running, spent in groups:
            if spent:
                held[name].spent = int(spent)
                continue
            for found in {name, name + _OWN, queue_key(queue), type_key(job_type)} & held.keys():
                held[found].running += running
                held[found].naming += running if _base(found) == name else 0

    def _read_starts(self, key: _LimitKey) -> list[tuple[dt.datetime, int]]:
        if key.starts is None:
            log = RateStart.objects.using(self.using).filter(key=key.row.key, expires_at__gt=self.now)
            log = log.filter(at__lte=self.now + clock.AHEAD).order_by("at")
            key.starts = list(log.values_list("at", "count"))
        return key.starts


def _spacing(throttle: Window) -> float:
    """Milliseconds from one start to the next."""
    return throttle.period_ms / throttle.limit


def _opens_at(starts: Iterable[tuple[dt.datetime, int]], window: Window, now: dt.datetime) -> dt.datetime:
    period = dt.timedelta(milliseconds=window.period_ms)
    oldest = min((at for at, _ in starts if at > now - period), default=now)
    return oldest + period


def _limit_events(key: _LimitKey, now: dt.datetime) -> list[Record]:
    """An event when a key comes to its limit and when it leaves it, not at each look in between."""
    row, blocked = key.row, key.blocked
    if blocked and not row.exceeded:
        row.exceeded = blocked.strategy
        return [
            catalogue.of_limit(
                "rate_limit.exceeded", row.key, now,
                strategy=blocked.strategy, limit=blocked.limit, current=blocked.current,
            )
        ]  # fmt: skip
    if key.started and row.exceeded and not blocked:
        strategy, row.exceeded = row.exceeded, ""
        return [
            catalogue.of_limit(
                "rate_limit.released", row.key, now, strategy=strategy, job_id=str(next(iter(key.admitted)))
            )
        ]
    return []
