"""The figures of a queue as the binding shows them: a superset of what its readers expect (jobs 4.4)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django_ojs.http.compat import whole
from django_ojs.operations.counts import Counts
from django_ojs.operations.stats import Stats
from django_ojs.states import State


def tally(counts: Counts | None) -> dict[str, int]:
    """The numbers of jobs, flat: total, depth and each state."""
    if counts is None:
        return {"total": 0, "depth": 0, **{state.value: 0 for state in State}}
    return {"total": counts.total, "depth": counts.depth, **counts.states}


def statistics(stats: Stats, config: Mapping[str, Any]) -> dict[str, Any]:
    """The object under `stats`. `max_depth` 0 means unbounded."""
    done = stats.throughput
    return {
        "queue": stats.counts.queue,
        **tally(stats.counts),
        "max_depth": max_depth(config),
        "dead": stats.counts.dead,
        "completed_last_hour": done.completed_last_hour,
        "failed_last_hour": done.failed_last_hour,
        "completed_today": done.completed_today,
        "failed_today": done.failed_today,
        "avg_duration_ms": whole(done.avg_duration_ms),
        "avg_wait_ms": whole(done.avg_wait_ms),
        "throughput_per_second": done.completed_per_second,
        "failures_per_second": done.failed_per_second,
    }


def max_depth(config: Mapping[str, Any]) -> int:
    """The bound of a bounded queue: that of its backpressure, else its `max_size`."""
    bound = (config.get("backpressure") or {}).get("max_depth") or config.get("max_size")
    return int(bound or 0)
