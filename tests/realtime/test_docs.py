"""The subscription of docs/events.md prints what happens in its queue, and nothing else."""

from __future__ import annotations

import ast
import asyncio
import contextlib
from typing import Any

import pytest

from tests.docs.pages import DOCS, blocks
from tests.realtime.conftest import PATIENCE, enqueue

pytestmark = pytest.mark.usefixtures("database")


async def test_the_subscription_in_python() -> None:
    [block] = [block for block in blocks(DOCS / "events.md") if "Hub.current()" in block.text]
    printed: list[Any] = []
    code = compile(block.text, str(block), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
    reading = asyncio.create_task(eval(code, {"print": printed.append}))
    async with asyncio.timeout(PATIENCE):
        while not printed and not reading.done():  # until it has subscribed
            await enqueue("a.other")
            await enqueue("a.one", queue="email")
            await asyncio.sleep(0.05)
    assert {event["data"]["job_type"] for event in printed} == {"a.one"}
    reading.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await reading
