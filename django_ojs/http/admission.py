"""Bounded queues in the binding: how long a push may wait for room, and the headers that warn (jobs 6)."""

from __future__ import annotations

import re
from collections.abc import Iterable

from rest_framework.request import Request

from django_ojs.errors import InvalidRequest
from django_ojs.operations.backpressure import MAX_PATIENCE
from django_ojs.operations.candidates import Pushed
from django_ojs.policies.faults import shorten

_SECONDS = re.compile(r"[0-9]{1,6}(?:\.[0-9]{1,3})?")


def patience(request: Request) -> float:
    """Seconds from `OJS-Block-Timeout`, 0 without it, at most `MAX_PATIENCE`. Raises InvalidRequest."""
    given = request.META.get("HTTP_OJS_BLOCK_TIMEOUT", "0").strip()
    if not _SECONDS.fullmatch(given):
        details = {"field": "OJS-Block-Timeout", "expected": "seconds", "received": shorten(given)}
        raise InvalidRequest("OJS-Block-Timeout must be a number of seconds, such as 5.", details=details)
    return min(float(given), MAX_PATIENCE)


def headers(pushed: Iterable[object]) -> dict[str, str]:
    """What to tell about the fullest of the queues, if one of them is nearly full."""
    found = [item.pressure for item in pushed if isinstance(item, Pushed) and item.pressure]
    if not found:
        return {}
    worst = max(found, key=lambda pressure: (pressure.share, pressure.depth))
    return {
        "X-OJS-Queue-Depth": str(worst.depth),
        "X-OJS-Queue-Bound": str(worst.bound),
        "X-OJS-Queue-Pressure": f"{worst.share:.2f}",
    }
