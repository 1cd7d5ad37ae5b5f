"""The clients of the subscriber benchmark, in a process of their own: `python -m benchmarks.listening PORT ...`.

Opens the sockets, says `ready`, counts what comes until standard input says how many events there were, and
prints what it heard as JSON.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import json
import resource
import sys
import time
from typing import Any

from websockets.asyncio.client import ClientConnection, connect

EVENT = "job.completed"
PATIENCE = 120.0  #: seconds that late events are waited for


def queue_of(number: int, queues: int) -> str:
    return f"bench.{number % queues}"


class Ears:
    """What all sockets have heard together: how many frames, of which event ids, and how late each came."""

    def __init__(self) -> None:
        self.frames = 0
        self.seen: dict[tuple[int, str], None] = {}
        self.late: list[float] = []  #: milliseconds between the time in the event and its arrival
        self.last = time.monotonic()
        self._expected: int | None = None
        self._all = asyncio.Event()

    async def heard(self, expected: int) -> None:
        """Return when so many events have come, each socket's counted for itself."""
        self._expected = expected
        if len(self.seen) < expected:
            await self._all.wait()

    async def listen(self, number: int, client: ClientConnection) -> None:
        async for text in client:
            now = time.time()
            event = json.loads(text)
            if event["type"] != EVENT:
                continue
            happened = dt.datetime.fromisoformat(event["time"]).timestamp()
            self.late.append((now - happened) * 1000)
            self.seen[number, event["id"]] = None
            self.frames += 1
            self.last = time.monotonic()
            if len(self.seen) == self._expected:
                self._all.set()

    def summary(self, expected: int) -> dict[str, Any]:
        late = sorted(self.late) or [0.0]

        def percentile(share: float) -> float:
            return late[min(len(late) - 1, int(len(late) * share))]

        return {
            "frames": self.frames, "lost": expected - len(self.seen), "p50": percentile(0.5), "p99": percentile(0.99),
            "max": late[-1],
        }  # fmt: skip


async def main(port: int, sockets: int, queues: int, filtered: bool) -> None:
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    ears, clients, tasks = Ears(), [], []
    for number in range(sockets):
        client = await connect(f"ws://127.0.0.1:{port}/ojs/v1/ws", proxy=None, compression=None, max_queue=None)
        wanted: dict[str, Any] = {"event_types": [EVENT]}
        if filtered:
            wanted["queues"] = [queue_of(number, queues)]
        await client.send(json.dumps({"action": "subscribe", "channel": "events", "filter": wanted}))
        await client.recv()
        clients.append(client)
        tasks.append(asyncio.create_task(ears.listen(number, client)))
    _say("ready")
    expected = int(await asyncio.to_thread(sys.stdin.readline))
    stopped = time.monotonic()
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(ears.heard(expected), PATIENCE)
    _say(json.dumps({**ears.summary(expected), "backlog_seconds": max(0.0, ears.last - stopped)}))
    for client, task in zip(clients, tasks, strict=True):
        task.cancel()
        await client.close()


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4] == "filtered"))
