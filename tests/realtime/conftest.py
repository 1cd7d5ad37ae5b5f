"""What tests of realtime channels share: doing synchronous things, and taking items without waiting for ever."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.db import connections

from django_ojs.events import ids
from django_ojs.jobs.push import push
from django_ojs.realtime.hub import Stream, StreamItem

PATIENCE = 60.0


async def do(action: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return await sync_to_async(action)(*args, **kwargs)


async def enqueue(*names: str, queue: str = "default") -> list[str]:
    """Push a job of each type, each in its own transaction; returns their ids."""
    pushed = []
    for name in names:
        (outcome,) = await do(push, [{"type": name, "args": [], "queue": queue}])
        pushed.append(str(outcome.row["id"]))
    return pushed


async def take(stream: Stream, count: int) -> list[StreamItem]:
    async def collect() -> list[StreamItem]:
        return [await anext(stream) for _ in range(count)]

    return await asyncio.wait_for(collect(), PATIENCE)


def names(items: list[StreamItem]) -> list[str]:
    """The job type of each event, and of everything else its kind."""
    return [item.envelope["data"]["job_type"] if item.envelope else item.kind for item in items]


async def nothing_more(stream: Stream) -> None:
    """Everything committed so far has been offered, and none of it is waiting."""
    await stream._hub.synced()  # type: ignore[attr-defined]
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(anext(stream), 0.05)


@pytest.fixture
async def database(transactional_db: None) -> AsyncIterator[None]:
    """A database that the hub's threads see too; the connection of the test's own thread is closed at the end."""
    ids.forget()  # the log is a new one, and a server process of the test may be the first to salt it
    yield
    await sync_to_async(connections.close_all)()
