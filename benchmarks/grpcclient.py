"""Loads a gRPC server and prints rate and latencies as JSON: `python -m benchmarks.grpcclient`.

As `benchmarks.client` does with an HTTP server: in a process of its own, on one event loop, with so many callers that
each send one call after the other. Each caller has a connection of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import statistics
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc.aio

from django_ojs.grpc import messages
from django_ojs.grpc.definition import Stub

#: What one caller does: it makes calls, and yields after each job.
Script = Callable[[Stub, Callable[..., Any]], AsyncIterator[None]]

_PLAIN = messages.to_message("EnqueueRequest", {"type": "bench.sync", "args": [1]})
_numbers = itertools.count()
#: Jobs that one stream may hold.
ROOM = 100


async def push(stub: Stub, call: Callable[..., Any]) -> AsyncIterator[None]:
    while True:
        await call(stub.Enqueue, _PLAIN)
        yield


async def fetch_and_ack(stub: Stub, call: Callable[..., Any]) -> AsyncIterator[None]:
    worker = f"bench-{next(_numbers)}"
    ask = messages.to_message("FetchRequest", {"queues": ["default"], "worker_id": worker})
    while True:
        (job,) = (await call(stub.Fetch, ask)).jobs
        await call(stub.Ack, messages.to_message("AckRequest", {"job_id": job.id, "worker_id": worker}))
        yield


async def stream(stub: Stub, call: Callable[..., Any]) -> AsyncIterator[None]:
    """One stream of a worker, whose jobs are acknowledged as they come, several at a time."""
    worker = f"bench-{next(_numbers)}"
    wanted = {"queues": ["default"], "worker_id": worker, "max_concurrent": ROOM}
    done: asyncio.Queue[None] = asyncio.Queue()

    async def acknowledge(job: Any) -> None:
        await call(stub.Ack, messages.to_message("AckRequest", {"job_id": job.id, "worker_id": worker}))
        done.put_nowait(None)

    async def receive() -> None:
        async with asyncio.TaskGroup() as group:
            async for job in stub.StreamJobs(messages.to_message("StreamJobsRequest", wanted)):
                group.create_task(acknowledge(job))

    receiving = asyncio.create_task(receive())
    try:
        while True:
            ended = asyncio.create_task(done.get())
            await asyncio.wait({ended, receiving}, return_when=asyncio.FIRST_COMPLETED)
            if not ended.done():
                ended.cancel()
                await receiving  # raises what went wrong
                raise ConnectionError("The server ended a stream.")
            yield
    finally:
        receiving.cancel()


SCRIPTS: dict[str, Script] = {"push": push, "fetch_ack": fetch_and_ack, "stream": stream}


async def load(address: str, script: Script, callers: int, jobs: int) -> dict[str, float]:
    """Jobs per second, and milliseconds of a unary call as p50 and p99."""
    taken: list[float] = []
    left = jobs

    async def call(rpc: Any, request: Any) -> Any:
        began = time.perf_counter()
        answer = await rpc(request)
        taken.append(time.perf_counter() - began)
        return answer

    async def caller(stub: Stub) -> None:
        nonlocal left
        acting = script(stub, call)
        try:
            async for _ in acting:
                left -= 1
                if left <= 0:
                    return
        finally:
            await acting.aclose()  # type: ignore[attr-defined]

    alone = [("grpc.use_local_subchannel_pool", 1)]
    channels = [grpc.aio.insecure_channel(address, options=alone) for _ in range(callers)]
    for channel in channels:
        await channel.channel_ready()
    started = time.perf_counter()
    tasks = [asyncio.create_task(caller(Stub(channel))) for channel in channels]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    seconds = time.perf_counter() - started
    ended = [task for task in tasks if task.done()]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)  # calls that are cut off here have nothing to say
    for channel in channels:
        await channel.close(None)
    for task in ended:
        task.result()  # raises what went wrong
    done = max(1, jobs - max(left, 0))
    taken.sort()
    p99 = taken[min(len(taken) - 1, len(taken) * 99 // 100)]
    return {"rate": done / seconds, "p50": statistics.median(taken) * 1000, "p99": p99 * 1000}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("port", type=int)
    parser.add_argument("script", choices=SCRIPTS)
    parser.add_argument("--connections", type=int, default=8)
    parser.add_argument("--jobs", type=int, default=2000)
    given = parser.parse_args()
    address = f"127.0.0.1:{given.port}"
    print(json.dumps(asyncio.run(load(address, SCRIPTS[given.script], given.connections, given.jobs))))  # noqa: T201


if __name__ == "__main__":
    main()
