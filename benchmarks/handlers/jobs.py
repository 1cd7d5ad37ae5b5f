"""The handlers that are measured: they do nothing, so that what is left is ours."""

from __future__ import annotations

import time

from django_ojs import job


@job("bench.async")
async def in_a_coroutine(number: int) -> None:
    return None


@job("bench.inline", inline=True)
def in_line(number: int) -> None:
    return None


@job("bench.sync")
def in_a_thread(number: int) -> None:
    return None


@job("bench.clock", inline=True)
def when() -> float:
    """The instant at which the handler started, for the latency."""
    return time.time()
