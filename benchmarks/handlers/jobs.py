"""The handlers that are measured: they do nothing, so that what is left is ours."""

from __future__ import annotations

import time

from benchmarks.handlers.flow import flow  # noqa: F401
from django_ojs import JobContext, job


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


@job("bench.steps", durable=True)
def in_steps(context: JobContext, count: int) -> float:
    """Seconds that so many steps took."""
    started = time.perf_counter()
    for number in range(count):
        context.step(f"step-{number}", int)
    return time.perf_counter() - started


@job("bench.sleep", durable=True)
def asleep(context: JobContext, number: int) -> None:
    context.sleep("7d")


@job("bench.wait", durable=True)
def waiting(context: JobContext, number: int) -> None:
    context.wait_for_event("bench.event", key=number)
