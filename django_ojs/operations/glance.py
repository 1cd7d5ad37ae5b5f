"""What is in the queues and who works, in few numbers, for somebody who looks every other second."""

from __future__ import annotations

import datetime as dt
import threading
import time
from collections.abc import Collection
from typing import Any

from django_ojs import clock
from django_ojs.models import Worker
from django_ojs.operations import counts
from django_ojs.operations.common import database
from django_ojs.operations.roster import is_stale, state_of
from django_ojs.policies.durations import format_instant

FRESH = 1.0  #: seconds for which many who look share one answer
MAX_WORKERS = 100
_STATES = ("available", "active", "scheduled", "retryable")

_lock = threading.Lock()
_last: dict[str, tuple[float, dict[str, Any]]] = {}


def glance(queues: Collection[str] | None = None, *, using: str | None = None) -> dict[str, Any]:
    """`queues` with their counts by state, and `workers`; only these queues, and no workers of others, if given."""
    using = database(using)
    with _lock:
        read, found = _last.get(using, (float("-inf"), {}))
        if time.monotonic() - read > FRESH:
            found = _read(using)
            _last[using] = (time.monotonic(), found)
    if queues is None:
        return dict(found)
    own = [worker for worker in found["workers"]["active"] if not set(queues).isdisjoint(worker["queues"])]
    shown = [entry for entry in found["queues"] if entry["queue"] in queues]
    return {"queues": shown, "workers": {"total": len(own), "active": own}}


def forget() -> None:
    """Drop what this process remembers."""
    _last.clear()


def _read(using: str) -> dict[str, Any]:
    now = clock.now(using)
    counted = counts.count_all(using=using)
    workers = [worker for worker in Worker.objects.using(using).order_by("pk") if not is_stale(worker, now)]
    return {
        "queues": [_queue(name, counted[name]) for name in sorted(counted)],
        "workers": {"total": len(workers), "active": [_worker(worker, now) for worker in workers[:MAX_WORKERS]]},
    }


def _queue(name: str, counted: counts.Counts) -> dict[str, Any]:
    return {"queue": name, **{state: counted.states.get(state, 0) for state in _STATES}}


def _worker(worker: Worker, now: dt.datetime) -> dict[str, Any]:
    beat = worker.last_heartbeat_at
    return {
        "id": worker.pk, "state": state_of(worker, now), "activeJobs": worker.active_jobs,
        "queues": worker.queues or [], "lastHeartbeatAt": format_instant(beat) if beat else None,
    }  # fmt: skip
