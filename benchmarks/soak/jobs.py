"""The handlers of the soak. What they may say of themselves, and what they must not, is in `load`."""

from __future__ import annotations

import asyncio
import time

from django_ojs import Discard, JobContext, job

PAUSE = 0.002  #: what a handler waits for: a little, so that several run at a time
FILLER = "x" * 500  #: in results, so that forgetting to let one go shows


@job("soak.sync")
def in_a_thread(number: int) -> list[object]:
    time.sleep(PAUSE)
    return [number, FILLER]


@job("soak.async")
async def in_a_coroutine(number: int) -> list[object]:
    await asyncio.sleep(PAUSE)
    return [number, FILLER]


@job("soak.inline", inline=True)
def in_line(number: int) -> int:
    return number


@job("soak.later")
def later(number: int) -> int:
    return number


@job("soak.cron")
def by_the_clock() -> None:
    return None


@job("soak.flaky")
def flaky(context: JobContext, number: int) -> int:
    """Fails until its third attempt."""
    if context.attempt < 3:
        raise ConnectionError(f"{number} fails at attempt {context.attempt}")
    return number


@job("soak.hopeless")
async def hopeless(number: int) -> None:
    raise ValueError(f"{number} always fails")


@job("soak.discarded")
def discarded(number: int) -> None:
    raise Discard(f"{number} is not wanted")


@job("soak.stuck")
def stuck(number: int) -> None:
    """Runs until its timeout ends it."""
    while True:
        time.sleep(0.01)


@job("soak.astuck")
async def stuck_in_a_coroutine(number: int) -> None:
    await asyncio.sleep(3600)


@job("soak.never")
def never(number: int) -> None:
    raise AssertionError(f"{number} was cancelled before it was due")


@job("soak.member")
def member(context: JobContext, number: int) -> list[object]:
    """A step of a workflow: it reads what the jobs before it returned."""
    return [number, len(context.parent_results)]
