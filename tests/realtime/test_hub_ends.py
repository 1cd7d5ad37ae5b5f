"""The hub's reader of the log ends when the last subscriber leaves, whatever happens at that moment."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from django_ojs.parts import LastingTask
from django_ojs.realtime import hub as hubs
from django_ojs.realtime.hub import Hub


class NothingThere:
    """A reader of a log without events."""

    async def end_position(self) -> Any:
        return SimpleNamespace()

    async def tail(self, place: Any, **_: Any) -> Any:
        return SimpleNamespace(entries=[], place=place, full=False, gap=None, back=False)


@pytest.mark.parametrize("ticks", range(5))
async def test_a_cancelled_reader_ends_although_somebody_kicks_it(ticks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A subscriber that comes while the last one leaves: wait_for of Python 3.11 forgot the cancellation."""
    monkeypatch.setattr(hubs, "BUSY", 60.0)
    hub = Hub()
    hub._reader, hub._tail = NothingThere(), LastingTask("event hub", hub._run)  # type: ignore[assignment]
    tail = asyncio.create_task(hub._run())
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    hub._waiting.append(future)
    await future
    for _ in range(5):  # until it waits for the next kick
        await asyncio.sleep(0)
    hub._kick.set()
    for _ in range(ticks):
        await asyncio.sleep(0)
    tail.cancel()
    done, _ = await asyncio.wait({tail}, timeout=5)
    assert done
    assert tail.cancelled()
