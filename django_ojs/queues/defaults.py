"""Creates queues when they are first used, and gives their defaults to new jobs.

Their settings are cached for a few seconds in each process; `forget()` empties the cache.
"""

from __future__ import annotations

import datetime as dt
import functools
import operator
import time
from collections.abc import Iterable
from typing import Any, NamedTuple

from django.db import transaction
from django.db.models import Exists, OuterRef, Q

from django_ojs import clock, states
from django_ojs.contention import harmless, in_callers_transaction
from django_ojs.database import database
from django_ojs.errors import JobTypeNotAllowed, QueuePaused
from django_ojs.messages import phrase
from django_ojs.models import Job, Queue, QueueCount
from django_ojs.models.queue import TEMPLATE
from django_ojs.rules import queueconfig
from django_ojs.rules.queueconfig import Bound, bound_of
from django_ojs.waking import wake_workers

_TTL_SECONDS = 5.0


class QueueDefaults(NamedTuple):
    """What a queue gives to jobs that say nothing themselves. Lengths in milliseconds; None: no opinion."""

    retry: dict[str, Any] | None
    timeout_ms: int | None
    visibility_ms: int | None
    bound: Bound | None = None
    allowed_types: tuple[str, ...] | None = None  #: patterns; None: any
    draining: bool = False


#: Of a queue that says nothing.
PLAIN = QueueDefaults(None, None, None)
#: Limits that this process has noted lately (see `limits.ratelimits`), forgotten together with the rest.
noted: dict[tuple[str, str, str], float] = {}
_cache: dict[tuple[str, str], tuple[float, QueueDefaults]] = {}


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
    transaction.on_commit(lambda: _remember(stored, using), using=using)  # what rolls back was never there
    return found | stored | dict.fromkeys(new, template)


def admit(defaults: QueueDefaults, queue: str, job_type: str, index: int | None) -> None:
    """Raise where a queue takes no new jobs, or none of this type."""
    if defaults.draining:
        raise QueuePaused(
            phrase("The queue '%(queue)s' is draining: it takes no new jobs.", queue=queue),
            details=_at(index, queue=queue),
        )
    if not queueconfig.allows(defaults.allowed_types, job_type):
        details = _at(index, queue=queue, job_type=job_type, allowed_job_types=list(defaults.allowed_types or ()))
        raise JobTypeNotAllowed(
            phrase("The queue '%(queue)s' takes no jobs of type '%(job_type)s'.", queue=queue, job_type=job_type),
            details=details,
        )


def _at(index: int | None, **facts: Any) -> dict[str, Any]:
    return facts if index is None else facts | {"index": index}


def _create(names: list[str], template: QueueDefaults, now: dt.datetime, using: str) -> None:
    """Add rows for new queues, committed on their own.

    Inside the caller's transaction they would make everybody else who uses the same new queue wait for
    its end; so there they are added right after it, and if that fails, by the scheduler (`restore`).
    """

    def create() -> None:
        rows = [Queue(name=name, created_at=now, updated_at=now) for name in names]
        Queue.objects.using(using).bulk_create(rows, ignore_conflicts=True)
        _remember(dict.fromkeys(names, template), using)

    follow = harmless(create, using)
    if in_callers_transaction(using):
        transaction.on_commit(follow, using=using)
    else:
        follow()


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
        now = clock.now(using)
        rows = [Queue(name=name, created_at=now, updated_at=now) for name in found]
        Queue.objects.using(using).bulk_create(rows, ignore_conflicts=True)
        wake_workers(using)
    return found


def defaults(name: str, using: str) -> QueueDefaults:
    """The defaults of one queue, which need not exist."""
    if known := _known([name], using):
        return known[name]
    found, template = _load([name], using)
    if name not in found:
        return template
    transaction.on_commit(lambda: _remember(found, using), using=using)
    return found[name]


def forget() -> None:
    """Drop what this process remembers about queues."""
    _cache.clear()
    noted.clear()


def _known(names: list[str], using: str) -> dict[str, QueueDefaults]:
    fresh = time.monotonic() - _TTL_SECONDS
    hits = {name: _cache[using, name] for name in names if (using, name) in _cache}
    return {name: value for name, (at, value) in hits.items() if at > fresh}


def _load(names: list[str], using: str) -> tuple[dict[str, QueueDefaults], QueueDefaults]:
    """The defaults of those queues that are there, and those that a new one begins with."""
    rows = {queue.name: queue for queue in Queue.objects.using(using).filter(name__in=[*names, TEMPLATE])}
    top = rows.pop(TEMPLATE, None)
    template = _layered(PLAIN, top) if top else PLAIN
    return {name: _layered(template, queue) for name, queue in rows.items()}, template


def _layered(below: QueueDefaults, queue: Queue) -> QueueDefaults:
    """What a queue says, over what the template says."""
    patterns = (queue.config or {}).get("allowed_job_types")
    return QueueDefaults(
        retry={**(below.retry or {}), **queue.retry} if queue.retry else below.retry,
        timeout_ms=queue.timeout_ms or below.timeout_ms,
        visibility_ms=queue.visibility_ms or below.visibility_ms,
        allowed_types=below.allowed_types if patterns is None else tuple(patterns),
        draining=queue.draining,
        bound=bound_of(queue.config) or below.bound,
    )


def _remember(found: dict[str, QueueDefaults], using: str) -> None:
    if len(_cache) > 10_000:  # queue names come from clients
        _cache.clear()
    now = time.monotonic()
    _cache.update({(using, name): (now, value) for name, value in found.items()})
