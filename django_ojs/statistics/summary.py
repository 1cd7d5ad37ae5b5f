"""The few numbers of the whole installation: for `/ojs/v1/metrics`, and for pages that ask every other second."""

from __future__ import annotations

import datetime as dt
import threading
import time
import weakref
from collections.abc import Callable, Collection, Hashable
from typing import Any, ClassVar, Generic, TypeVar

from django.db.models import Sum

from django_ojs import clock, tenants
from django_ojs.database import database
from django_ojs.models import MetricSeries, Worker
from django_ojs.rules.durations import format_instant
from django_ojs.statistics import counters
from django_ojs.statistics.counters import Counts
from django_ojs.statistics.throughput import throughput
from django_ojs.workerregistry import directory
from django_ojs.workerregistry.directory import state_of, with_held

#: Seconds for which all who look at the snapshot share one, and the workers that it has.
FRESH, MAX_WORKERS = 1.0, 100
_STATES = ("available", "active", "scheduled", "retryable")
T = TypeVar("T")


# A value that all callers in a process share, so that ten open dashboards cost the database what one does


class Shared(Generic[T]):
    """The result of `compute`, for each database and tenant, for `seconds`. Callers that come while it is computed wait
    for it."""

    _all: ClassVar[weakref.WeakSet[Shared[Any]]] = weakref.WeakSet()

    def __init__(self, compute: Callable[[str], T], seconds: float) -> None:
        self._compute, self._seconds = compute, seconds
        self._lock = threading.Lock()
        self._known: dict[Hashable, tuple[float, T]] = {}
        self._all.add(self)

    def get(self, using: str | None = None) -> T:
        using = database(using)
        scope = tenants.scope(using)
        with self._lock:
            known = self._known.get(scope)
            if known is None or time.monotonic() - known[0] >= self._seconds:
                known = self._known[scope] = (time.monotonic(), self._compute(using))
            return known[1]

    def forget(self) -> None:
        self._known.clear()


def forget() -> None:
    """Compute everything anew: an operator has just changed something, and wants to see it."""
    for shared in list(Shared._all):
        shared.forget()


# The numbers


def workers_active(queues: Collection[str] | None = None, *, using: str | None = None) -> int:
    """Workers of any language that called within the heartbeat timeout; those that serve one of `queues`, if given."""
    connected = directory.connected(database(using))
    if queues is None:
        return connected.count()
    return sum(not set(queues).isdisjoint(served or ()) for served in connected.values_list("queues", flat=True))


def summary(*, using: str | None = None) -> dict[str, Any]:
    """Totals since the installation began, as far as the log is counted; what is there now; how it goes at present."""
    using = database(using)
    counted = counters.count_all(using=using).values()
    events = dict(MetricSeries.objects.using(using).values_list("event").annotate(total=Sum("count")))
    done = throughput(clock.now(using), using=using)
    return {
        "jobs_enqueued_total": events.get("job.enqueued", 0),
        "jobs_completed_total": events.get("job.completed", 0),
        "jobs_failed_total": events.get("job.discarded", 0),
        "jobs_active": counters.totals(counted)["active"],
        "queues_active": sum(of_queue.depth > 0 for of_queue in counted),
        "workers_active": workers_active(using=using),
        "avg_latency_ms": done.avg_duration_ms,
        "throughput_per_second": done.completed_per_second,
    }


def snapshot(queues: Collection[str] | None = None, *, using: str | None = None) -> dict[str, Any]:
    """`queues` with their counts by state, and `workers`; only these queues, and no workers of others, if given."""
    found = _snapshot.get(using)
    if queues is None:
        return dict(found)
    own = [_seen_by(queues, worker) for worker in found["workers"]["active"]]
    own = [worker for worker in own if worker["queues"]]
    shown = [entry for entry in found["queues"] if entry["queue"] in queues]
    return {"queues": shown, "workers": {"total": len(own), "active": own}}


def _seen_by(queues: Collection[str], worker: dict[str, Any]) -> dict[str, Any]:
    """A worker as one who may see only these queues does. It may hold jobs of others, so their number is left out."""
    shown = {**worker, "queues": [name for name in worker["queues"] if name in queues]}
    if len(shown["queues"]) < len(worker["queues"]):
        del shown["activeJobs"]
    return shown


def _read(using: str) -> dict[str, Any]:
    now = clock.now(using)
    counted = counters.count_all(using=using)
    workers = [worker for worker in with_held(Worker.objects.using(using).order_by("pk")) if not worker.is_stale(now)]
    return {
        "queues": [_queue(name, counted[name]) for name in sorted(counted)],
        "workers": {"total": len(workers), "active": [_worker(worker, now) for worker in workers[:MAX_WORKERS]]},
    }


_snapshot = Shared(_read, FRESH)


def _queue(name: str, counted: Counts) -> dict[str, Any]:
    return {"queue": name, **{state: counted.states.get(state, 0) for state in _STATES}}


def _worker(worker: Worker, now: dt.datetime) -> dict[str, Any]:
    return {
        "id": worker.pk, "state": state_of(worker, now), "activeJobs": worker.held,
        "queues": worker.queues or [], "lastHeartbeatAt": format_instant(worker.heard_at),
    }  # fmt: skip
