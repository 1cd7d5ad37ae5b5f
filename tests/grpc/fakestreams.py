"""Streams that a test steers, in the place of those of the binding."""

from __future__ import annotations

from typing import Any

from django_ojs.errors import QueueFull
from django_ojs.grpc import messages
from django_ojs.grpc.streams import StreamCall

seen: list[Any] = []


async def stream_jobs(call: StreamCall) -> None:
    """Sends a job for each queue that is asked for, and lasts until the server stops; the queue `full` fails."""
    seen.append(call)
    await call.begin()
    for queue in call.request.queues:
        if queue == "full":
            raise QueueFull.of("full", 1, 1, "reject")
        if queue == "broken":
            raise ValueError("the password is hunter2")
        if queue == "end":
            return
        await call.send(messages.to_message("Job", {"type": "a", "queue": queue, "id": call.principal}))
    await call.stopping.wait()
