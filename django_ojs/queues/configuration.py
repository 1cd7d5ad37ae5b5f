"""Configure, pause and resume a queue (jobs 4.1, 4.2, L4-PAUSE-001), and give its defaults to new jobs.

A configuration is a partial change laid over what is there. Three values have columns of their own and are the queue's
defaults for its jobs; the rest is one document. A change takes effect at once for claims, and within seconds
for jobs that are pushed, because each process caches the defaults (`defaults`, `ensure`). It never alters jobs already
stored. A paused queue delivers nothing, and takes jobs all the same.
"""

from __future__ import annotations

import datetime as dt
import functools
import operator
import time
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from django.db import Error, connections, transaction
from django.db.models import Exists, OuterRef, Q, QuerySet

from django_ojs import clock, lockwaits, spellings, states, tenants
from django_ojs.database import atomic, database, harmless, in_callers_transaction, retried
from django_ojs.errors import Conflict, JobTypeNotAllowed, QueuePaused
from django_ojs.events import catalogue, log
from django_ojs.faults import is_contention
from django_ojs.lifecycle.waking import wake_workers
from django_ojs.messages import phrase, reason
from django_ojs.models import AuditEntry, Job, Queue, QueueCount, RateLimit
from django_ojs.models.fields import RawJSON
from django_ojs.models.queue import TEMPLATE
from django_ojs.rules import names, queueconfig, ratelimit
from django_ojs.rules.faults import fault
from django_ojs.rules.queueconfig import Bound, bound_of
from django_ojs.store import store_of

#: Milliseconds in a column, seconds in the document.
_SECONDS = {"visibility_timeout": "visibility_ms", "default_timeout": "timeout_ms"}
#: Longest reason that an operator may give.
MAX_REASON = 500
#: Acts among which the one that paused a queue is looked for.
_LOOKED_AT = 100


def configure(name: str, change: Mapping[str, Any], *, by: str = "", using: str | None = None) -> Queue:
    """Lay a partial configuration over a queue's own; the queue is created if need be.

    `_default` is the template that all queues begin with. Raises `InvalidRequest` that names the field.
    """
    using = database(using)
    queueconfig.check_change(change)
    with atomic(using=using):
        queue, records = _locked(name, using)
        config = spellings.merge_queue(document(queue), change)
        _store(queue, config, using)
        data = {"config": config} | ({"updated_by": by} if by else {})
        log.append([*records, catalogue.of_queue("queue.config_updated", name, queue.updated_at, **data)], using)
    return queue


def create(name: str, config: Mapping[str, Any], *, using: str | None = None) -> Queue:
    """Make a new queue. Raises `Conflict` where there is one already, `InvalidRequest` for a bad configuration."""
    using = database(using)
    names_only(name)
    spellings.check_queue(config)
    with atomic(using=using):
        queue, records = _locked(name, using)
        if not records:
            raise Conflict(
                phrase("The queue '%(name)s' exists already.", name=name),
                details={"resource_type": "queue", "resource_id": name},
                hint="Change it with PUT /queues/{name}/config.",
            )
        _store(queue, queueconfig.merge({}, config), using)
        log.append(records, using)
    return queue


def document(queue: Queue) -> dict[str, Any]:
    """The queue's own configuration as the wire shows it."""
    config = dict(queue.config or {})
    for field, column in _SECONDS.items():
        if (ms := getattr(queue, column)) is not None:
            config[field] = ms // 1000 if ms % 1000 == 0 else ms / 1000
    if queue.retry:
        config["default_retry"] = queue.retry
    if queue.draining:
        config["draining"] = True
    return config


def effective(queue: Queue | None, template: Queue | None) -> dict[str, Any]:
    """What holds for a queue: its own document over that of the template."""
    base = document(template) if template else {}
    return spellings.merge_queue(base, document(queue)) if queue else base


def check_name(name: str) -> str:
    return name if name == TEMPLATE else names_only(name)


def names_only(name: Any, field: str = "name") -> str:
    try:
        return names.check_queue(name)
    except ValueError as error:
        raise fault(field, reason(error), name) from error


def flag_limited(queue_names: Iterable[str], using: str) -> None:
    """Note at these queues whether a claim has to look at limits first; types concern them all."""
    rows = Queue.objects.using(using).filter(name__in=list(queue_names))
    locked = list(rows.select_for_update().order_by("name"))
    if locked:
        store_of(using).certify(rows)
    for queue in locked:
        limited = is_under_limit(queue.name, queue.config or {}, using)
        if limited != queue.limited:
            Queue.objects.using(using).filter(pk=queue.pk).update(limited=limited)


def is_under_limit(name: str, config: Mapping[str, Any], using: str) -> bool:
    overridden = _overridden(using)
    if name == TEMPLATE:
        by_override = overridden.filter(key__startswith="type:").exists()
    else:
        by_override = overridden.filter(key=ratelimit.queue_key(name)).exists()
    return by_override or spellings.rate_policy(config).limits


def _overridden(using: str) -> QuerySet[RateLimit]:
    """The limits that an operator has set."""
    return RateLimit.objects.using(using).exclude(override=RawJSON(""))


def _locked(name: str, using: str) -> tuple[Queue, list[catalogue.Record]]:
    """The queue's row, locked, and the event `queue.created` if it was not there. Raises `InvalidRequest` for a name
    that no queue can have."""
    check_name(name)
    now = clock.now(using)
    defaults = {"created_at": now, "updated_at": now}
    rows = Queue.objects.using(using).select_for_update()
    queue, created = rows.get_or_create(name=name, defaults=defaults)
    if created:
        flag_limited([name], using)
    return queue, [catalogue.of_queue("queue.created", name, now)] if created else []


def _store(queue: Queue, config: dict[str, Any], using: str) -> None:
    spellings.check_queue(config)
    rest = dict(config)
    for field, column in _SECONDS.items():
        seconds = rest.pop(field, None)
        setattr(queue, column, None if seconds is None else int(seconds * 1000))
    queue.retry = rest.pop("default_retry", None)
    queue.draining = bool(rest.pop("draining", False))
    if not queue.draining:  # which calls a removal off
        queue.move_to = ""
    queue.config = rest or None
    queue.limited = is_under_limit(queue.name, rest, using)
    queue.updated_at = clock.now(using)
    fields = ["visibility_ms", "timeout_ms", "retry", "config", "draining", "move_to", "limited", "updated_at"]
    queue.save(using=using, update_fields=fields)
    transaction.on_commit(forget, using=using)


class Pause(NamedTuple):
    """Who paused a queue, and why, as far as it was said."""

    by: str = ""
    reason: str = ""


@retried
def pause(name: str, *, by: str = "", reason: str = "", using: str | None = None) -> Queue:
    """Stop delivery from a queue, which is created if need be. Pausing twice is no error, and changes nothing. Raises
    `InvalidRequest` for a name that no queue can have."""
    return _switch(name, True, by, reason, database(using))


@retried
def resume(name: str, *, by: str = "", reason: str = "", using: str | None = None) -> Queue:
    """Deliver again. Resuming a queue that is not paused is no error."""
    return _switch(name, False, by, reason, database(using))


def why_paused(queue: Queue, *, using: str | None = None) -> Pause:
    """From the audit log: its first entry about this queue from the moment on when it was paused."""
    if not queue.paused or queue.paused_at is None:
        return Pause()
    entries = AuditEntry.objects.using(database(using)).filter(time__gte=queue.paused_at, action="queue.pause")
    for entry in entries.filter(target__in=("", queue.name)).order_by("time", "id")[:_LOOKED_AT]:
        detail = entry.detail if isinstance(entry.detail, dict) else {}
        if queue.name in (entry.target, *detail.get("targets", ())):
            return Pause(entry.actor, str(detail.get("reason") or ""))
    return Pause()


def _switch(name: str, paused: bool, by: str, reason: str, using: str) -> Queue:
    names_only(name)
    with atomic(using=using):
        queue, _ = _locked(name, using)
        now = clock.now(using)
        if queue.paused == paused:
            return queue
        queue.paused, queue.updated_at = paused, now
        setattr(queue, "paused_at" if paused else "resumed_at", now)
        queue.save(using=using, update_fields=["paused", "paused_at", "resumed_at", "updated_at"])
        word = "paused" if paused else "resumed"
        given = {f"{word}_by": by, "reason": reason}
        data = {member: text for member, text in given.items() if text}
        log.append([catalogue.of_queue(f"queue.{word}", name, now, **data)], using)
        if not paused:
            wake_workers(using)
    return queue


# Queues as pushes see them: created when they are first used, with defaults for new jobs

#: For how long a process remembers the settings of a queue; `forget()` drops them.
_TTL_SECONDS = 5.0


class QueueDefaults(NamedTuple):
    """What a queue gives to jobs that say nothing themselves. Lengths in milliseconds; None: no opinion."""

    timeout_ms: int | None = None
    visibility_ms: int | None = None
    retry: tuple[dict[str, Any], ...] = ()  #: retry policies, of which a later one beats those before it
    bound: Bound | None = None
    allowed_types: tuple[str, ...] | None = None  #: patterns; None: any
    draining: bool = False
    limited: bool = False  #: a claim has to look at limits

    @property
    def is_choosy(self) -> bool:
        """Whether `admit` may refuse a job."""
        return self.draining or self.allowed_types is not None


#: Of a queue that says nothing.
PLAIN = QueueDefaults()
#: Limits that this process has noted lately (see `limits.ratelimits`), forgotten together with the rest.
noted: dict[tuple[Hashable, str, str], float] = {}
_cache: dict[tuple[Hashable, str], tuple[float, QueueDefaults]] = {}
#: Queues that workers ask for and that have no row, with the template: so many at most. A push looks itself, because it
#: makes the row.
_MOST_ABSENT = 1000
_absent: dict[tuple[Hashable, str], tuple[float, QueueDefaults]] = {}


def ensure(names: Iterable[str], now: dt.datetime, using: str) -> dict[str, QueueDefaults]:
    """Create the queues that are not there yet; return the defaults of all (jobs 4.1)."""
    wanted = sorted(set(names))
    found = _known(wanted, using)
    missing = [name for name in wanted if name not in found]
    if not missing:
        return found
    stored, template = _load(missing, using)
    new = [name for name in missing if name not in stored]
    if new:
        _create(new, template, now, using)
    scope = tenants.scope(using)
    transaction.on_commit(lambda: _remember(stored, scope), using=using)  # what rolls back was never there
    return found | stored | dict.fromkeys(new, template)


def admit(defaults: QueueDefaults, queue: str, job_type: str, index: int | None) -> None:
    """Raise where a queue takes no new jobs, or none of this type."""
    if defaults.draining:
        raise QueuePaused(
            phrase("The queue '%(queue)s' is draining: it takes no new jobs.", queue=queue),
            details=_at(index, queue=queue),
        )
    if defaults.allowed_types is not None and not queueconfig.allows(defaults.allowed_types, job_type):
        details = _at(index, queue=queue, job_type=job_type, allowed_job_types=list(defaults.allowed_types))
        raise JobTypeNotAllowed(
            phrase("The queue '%(queue)s' takes no jobs of type '%(job_type)s'.", queue=queue, job_type=job_type),
            details=details,
        )


def _at(index: int | None, **facts: Any) -> dict[str, Any]:
    return facts if index is None else facts | {"index": index}


def _create(names: list[str], template: QueueDefaults, now: dt.datetime, using: str) -> None:
    """Add rows for new queues, committed on their own.

    Inside the caller's transaction they would make every other caller that uses the same new queue wait for
    its end; so there they are added right after it, and if that fails, by the scheduler (`restore`).
    """

    def create() -> None:
        if connections[using].in_atomic_block:
            add_rows(names, now, using)
        else:
            _add_soon(names, now, using)
        _remember(dict.fromkeys(names, template), tenants.scope(using))

    follow = harmless(tenants.bound(create, using), using)
    if in_callers_transaction(using):
        transaction.on_commit(follow, using=using)
    else:
        follow()


def _add_soon(names: Sequence[str], now: dt.datetime, using: str) -> None:
    """`add_rows`; nothing, where another transaction makes a queue of the name and has not committed it."""
    try:
        with lockwaits.LockTimeout(lockwaits.SHARED, using), atomic(using=using):
            store_of(using).set_lock_timeout()
            add_rows(names, now, using)
    except Error as error:
        if connections[using].vendor == "sqlite" or not is_contention(error):
            raise


def add_rows(names: Iterable[str], now: dt.datetime, using: str) -> None:
    """Make the rows of those queues that have none. An operator's limit outlives the row of its queue."""
    keys = {ratelimit.queue_key(name): name for name in names}
    limited = set(_overridden(using).filter(pk__in=list(keys)).values_list("pk", flat=True))
    rows = [Queue(name=name, limited=key in limited, created_at=now, updated_at=now) for key, name in keys.items()]
    Queue.objects.using(using).bulk_create(rows, ignore_conflicts=True)


def restore(*, using: str | None = None) -> list[str]:
    """Add the rows of queues that have live jobs and no row; return their names.

    Workers of all queues find queues by their rows. One is missing where a process died between the commit of a push
    and `_create`, or where a queue was deleted while a process that remembered it pushed. The folded counts say cheaply
    which queues may lack a row, and the jobs themselves whether they do.
    """
    using = database(using)
    counted = QueueCount.objects.using(using).exclude(queue="").filter(
        functools.reduce(operator.or_, (Q(**{f"{state}__gt": 0}) for state in states.ordered(states.LIVE)))
    )  # fmt: skip
    without = counted.filter(~Exists(Queue.objects.using(using).filter(name=OuterRef("queue"))))
    live = Job.objects.using(using).live()
    found = [name for name in without.values_list("queue", flat=True) if live.filter(queue=name).exists()]
    if found:
        add_rows(found, clock.now(using), using)
        wake_workers(using)
    return found


def defaults(names: Sequence[str], using: str) -> dict[str, QueueDefaults]:
    """The defaults of these queues, which need not exist."""
    found = _known(names, using)
    missing = [name for name in names if name not in found]
    fresh, scope = time.monotonic() - _TTL_SECONDS, tenants.scope(using)
    for name in missing:
        if (absent := _absent.get((scope, name))) is not None and absent[0] > fresh:  # another thread may empty it
            found[name] = absent[1]
    if missing := [name for name in missing if name not in found]:
        stored, template = _load(missing, using)
        at = time.monotonic()
        if len(_absent) > _MOST_ABSENT:
            _absent.clear()
        _absent.update({(scope, name): (at, template) for name in missing if name not in stored})
        transaction.on_commit(lambda: _remember(stored, scope), using=using)
        found |= dict.fromkeys(missing, template) | stored
    return found


def forget() -> None:
    """Drop what this process remembers about queues."""
    _cache.clear()
    _absent.clear()
    noted.clear()


def _known(names: Sequence[str], using: str) -> dict[str, QueueDefaults]:
    fresh, scope = time.monotonic() - _TTL_SECONDS, tenants.scope(using)
    hits = {name: _cache[scope, name] for name in names if (scope, name) in _cache}
    return {name: value for name, (at, value) in hits.items() if at > fresh}


def _load(names: list[str], using: str) -> tuple[dict[str, QueueDefaults], QueueDefaults]:
    """The defaults of those queues that are there, and those that a new one begins with."""
    rows = {queue.name: queue for queue in Queue.objects.using(using).filter(name__in=[*names, TEMPLATE])}
    top = rows.pop(TEMPLATE, None)
    template = _layered(PLAIN, top, top) if top else PLAIN
    return {name: _layered(template, queue, top) for name, queue in rows.items()}, template


def _layered(below: QueueDefaults, queue: Queue, template: Queue | None) -> QueueDefaults:
    """What a queue says, over what the template says."""
    patterns = (queue.config or {}).get("allowed_job_types")
    return QueueDefaults(
        timeout_ms=queue.timeout_ms or below.timeout_ms,
        visibility_ms=queue.visibility_ms or below.visibility_ms,
        retry=(*below.retry, queue.retry) if queue.retry else below.retry,
        allowed_types=below.allowed_types if patterns is None else tuple(patterns),
        draining=queue.draining or below.draining,
        bound=bound_of(effective(queue, template)),
        limited=queue.limited or below.limited,
    )


def _remember(found: dict[str, QueueDefaults], scope: Hashable) -> None:
    if len(_cache) > 10_000:  # queue names come from clients
        _cache.clear()
    now = time.monotonic()
    _cache.update({(scope, name): (now, value) for name, value in found.items()})
