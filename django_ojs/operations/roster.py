"""How a worker stands, for those who list workers (orchestration 3.8)."""

from __future__ import annotations

import datetime as dt

from django_ojs import clock
from django_ojs.conf import ojs_settings
from django_ojs.models import Worker


def is_stale(worker: Worker, now: dt.datetime) -> bool:
    """Whether it has been silent for so long that it counts as dead, or, if it never beat, as gone."""
    heard = worker.last_heartbeat_at or worker.last_seen_at
    return now - heard > dt.timedelta(seconds=ojs_settings.HEARTBEAT_TIMEOUT)


def state_of(worker: Worker, now: dt.datetime) -> str:
    """`running`, `quiet` or `terminate`, as it last reported, or `stale`."""
    return "stale" if is_stale(worker, now) else worker.state


def served_types(using: str) -> set[str] | None:
    """The job types for which a live worker has a handler; None while one is alive that may have any.

    A worker that does not say which types it has, as most clients of other languages, may serve any.
    """
    edge = clock.now(using) - dt.timedelta(seconds=ojs_settings.HEARTBEAT_TIMEOUT)
    alive = Worker.objects.using(using).filter(last_seen_at__gt=edge)
    served: set[str] = set()
    for types in alive.values_list("job_types", flat=True):
        if types is None:
            return None
        served.update(types)
    return served
