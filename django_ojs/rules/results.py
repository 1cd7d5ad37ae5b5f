"""How long the result of a job is kept (jobs 8)."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from typing import Any

from django_ojs.conf import ojs_settings

FOR_EVER = -1


def ttl_of(row: Mapping[str, Any]) -> int:
    """Seconds from the end of the job, or `FOR_EVER`; the job's own, else the site's."""
    own = row["result_ttl"]
    if own is not None:
        return int(own)
    return FOR_EVER if ojs_settings.RESULT_TTL is None else ojs_settings.RESULT_TTL


def expires_at(row: Mapping[str, Any]) -> dt.datetime | None:
    """When the result goes; None: never, or not before the job has ended. Members of workflows keep theirs."""
    ttl = ttl_of(row)
    if row["finished_at"] is None or ttl == FOR_EVER or row["workflow_id"] is not None:
        return None
    end: dt.datetime = row["finished_at"]
    try:
        return end + dt.timedelta(seconds=ttl)
    except OverflowError:
        return None


def is_gone(row: Mapping[str, Any], now: dt.datetime) -> bool:
    """Whether the result's time is over: to the second where the job names it, else once it was pruned."""
    end = expires_at(row)
    return end is not None and end <= now and (row["result_ttl"] is not None or row["result"] is None)
