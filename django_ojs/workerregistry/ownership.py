"""Decides whose a worker is: the principal that registered it, and who else may call itself by its name.

A worker's id is a word in a request, and any caller could say that of another. So the row of a worker names the
principal that it is of: the first that registered it, or beat or fetched as it. Another principal is refused, unless it
is an operator, or the name is free again. A name is free

* if no principal has it: the row is older than this rule;
* if the key behind it is revoked, expired or deleted;
* if the worker has been silent for so long that it counts as dead;

and then the next principal takes it whose limits cover what the worker served. The name of an `ojs_worker`, which asks
the database itself, is never free while its row is there.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import time
from collections.abc import Hashable, Mapping

from django_ojs import clock, keys, tenants
from django_ojs.access import UNLIMITED, Limits
from django_ojs.conf import ojs_settings
from django_ojs.database import check_health, database
from django_ojs.errors import PermissionDenied
from django_ojs.models import APIKey, Worker

#: Who has no credentials, where a site lets such callers in.
ANONYMOUS = "anonymous"
#: Seconds for which a process goes by what it has seen of a worker's owner when a job is reported. What reports name is
#: decided by the job's holder; this spares them a statement.
TRUST = 60.0
MOST = 10_000  #: of these it remembers

#: When (by `time.monotonic`) a principal was last seen to have a worker's name: (`tenants.scope`, worker, principal).
_seen: dict[tuple[Hashable, str, str], float] = {}


@dataclasses.dataclass(frozen=True, slots=True)
class Principal:
    """Who names a worker.

    Attributes:
        id: how the row of a worker has it: `key:` or `user:` with the primary key, or `ANONYMOUS`.
        operator: whether it may name every worker.
        limits: what it reaches.
        facts: what the details of a refusal say of the call.
    """

    id: str
    operator: bool = False
    limits: Limits = UNLIMITED
    facts: Mapping[str, str] = dataclasses.field(default_factory=dict)


def take_name(worker: Worker, who: Principal | None, now: dt.datetime) -> None:
    """Let `who` own a worker that is free; the caller saves it. Raises PermissionDenied if `who` may not name it.

    `who` is None where this process itself names the worker, as an `ojs_worker` does.
    """
    if who is None or worker.owner == who.id:
        return
    free = not worker.owner and not worker.incarnation
    if not (free or who.operator):
        free = _is_free(worker, now)
    if free and (who.operator or _is_covered(worker, who.limits)):
        worker.owner = who.id
    elif not who.operator:
        raise refusal(worker.pk, who)


def check(worker: Worker, who: Principal | None, now: dt.datetime) -> None:
    """`take_name` for a call that changes no owner."""
    owner = worker.owner
    take_name(worker, who, now)
    worker.owner = owner


def check_name(worker_id: str, who: Principal, *, using: str | None = None) -> None:
    """Raise PermissionDenied if the principal may not report as this worker; one that is not known passes."""
    if not worker_id or who.operator:
        return
    using = database(using)
    if time.monotonic() - _seen.get((tenants.scope(using), worker_id, who.id), float("-inf")) < TRUST:
        return
    check_health(using)
    worker = Worker.objects.using(using).filter(pk=worker_id).first()
    if worker is not None:
        check(worker, who, clock.now(using))
        remember_owner(worker_id, who, using)


def remember_owner(worker_id: str, who: Principal | None, using: str) -> None:
    """Remember that the principal was seen to have this name."""
    if who is None or who.operator:
        return
    if len(_seen) >= MOST:
        _seen.clear()
    _seen[tenants.scope(using), worker_id, who.id] = time.monotonic()


def forget() -> None:
    """Drop what this process knows of workers."""
    _seen.clear()


def refusal(worker_id: str, who: Principal) -> PermissionDenied:
    return PermissionDenied(
        f"The worker {worker_id!r} was registered by another caller.",
        details={**who.facts, "worker_id": worker_id},
        hint="Give every worker a name of its own. A name is free when its key is revoked, or when the worker has been "
        f"silent for {ojs_settings.HEARTBEAT_TIMEOUT:g} seconds.",
    )


def _is_free(worker: Worker, now: dt.datetime) -> bool:
    if worker.incarnation:
        return False
    if not worker.owner or worker.is_stale(now):
        return True
    if worker.owner == ANONYMOUS:
        return not ojs_settings.anonymous_allowed
    kind, _, pk = worker.owner.partition(":")
    if kind != "key":
        return False
    key = APIKey.objects.filter(pk=pk).first()
    return key is None or keys.status(key) != "active"


def _is_covered(worker: Worker, limits: Limits) -> bool:
    """Whether what the worker is known to serve lies within these limits."""
    queues, types = worker.queues or (), worker.job_types or ()
    return limits.first_beyond(queues) is None and all(map(limits.covers_type, types))
