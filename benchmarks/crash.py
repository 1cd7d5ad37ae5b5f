"""`ojs_bench --crash`: kill an HTTP server with SIGKILL again and again while clients push, fetch and acknowledge, and
then compare what they were answered with what the database holds.

Each client has a token, which is in all that it sends. A call whose connection breaks is sent again until it is
answered: a push with the same Idempotency-Key. So the sum is exact:

- every push that was answered with 2xx is in the database once, with its caller's token;
- no Idempotency-Key is stored twice, and none did its work twice;
- every job whose ACK was answered with 2xx is completed, with the result of that caller;
- every answer belongs to its caller: it repeats the request's id, and the job has the caller's token.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks import processes
from django_ojs.models import Event, IdempotencyKey, Job
from django_ojs.states import State

TYPE = "bench.crash"
#: Seconds between two kills: at least, and at most.
PEACE = (0.3, 2.0)
#: Seconds that a server may take to answer a call; after a kill it has to start.
PATIENCE = 60.0
#: Kills at least, however fast the server makes its calls.
KILLS = 3
SHOWN = 20


@dataclasses.dataclass(slots=True)
class Sum:
    """What clients were answered, and what was wrong with it."""

    calls: int = 0
    kills: int = 0
    repeated: int = 0  #: calls that were sent again
    pushed: dict[str, str] = dataclasses.field(default_factory=dict)  #: the key of each push -> the id of its job
    acknowledged: dict[str, str] = dataclasses.field(default_factory=dict)  #: the id of a job -> the token of its ACK
    statuses: Counter[str] = dataclasses.field(default_factory=Counter)
    faults: list[str] = dataclasses.field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        return {
            "calls": self.calls, "kills": self.kills, "repeated": self.repeated, "pushed": len(self.pushed),
            "acknowledged": len(self.acknowledged), "statuses": dict(self.statuses), "faults": self.faults,
        }  # fmt: skip

    def text(self) -> str:
        verdict = "\n".join(self.faults[:SHOWN]) or "everything adds up."
        return (
            f"{self.calls:,} calls, {self.kills} kills, {self.repeated} calls sent again, {len(self.pushed):,} jobs "
            f"pushed, {len(self.acknowledged):,} acknowledged: {verdict}"
        )


class Client:
    """One connection, opened again where it breaks."""

    def __init__(self, port: int, token: str, total: Sum, answers: asyncio.Event) -> None:
        self.port, self.token, self.sum, self.answers = port, token, total, answers
        self.streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self.sent = 0

    async def work(self, calls: int) -> None:
        """Push a job, fetch one and acknowledge it, until all clients have made so many calls."""
        number = 0
        while self.sum.calls < calls or self.sum.kills < KILLS:
            number += 1
            await self._push(f"{self.token}:{number}")
            for job in await self._fetch():
                await self._ack(job)
        self.close()

    async def _push(self, key: str) -> None:
        body = {"type": TYPE, "args": [key], "queue": "default"}
        status, answer, _ = await self._call("/ojs/v1/jobs", body, f"Idempotency-Key: {key}\r\n")
        if status not in (200, 201):
            self._fault(f"push {key} was answered {status}: {answer}")
        elif answer["job"]["args"] != [key]:
            self._fault(f"push {key} was answered with the job of {answer['job']['args']}")
        else:
            self.sum.pushed[key] = answer["job"]["id"]

    async def _fetch(self) -> list[dict[str, Any]]:
        status, answer, _ = await self._call("/ojs/v1/workers/fetch", {"queues": ["default"], "worker_id": self.token})
        if status != 200:
            self._fault(f"fetch of {self.token} was answered {status}: {answer}")
            return []
        return list(answer["jobs"])

    async def _ack(self, job: dict[str, Any]) -> None:
        body = {"job_id": job["id"], "worker_id": self.token, "result": self.token}
        status, answer, repeated = await self._call("/ojs/v1/workers/ack", body)
        if status == 200:
            if answer["job_id"] != job["id"]:
                self._fault(f"ACK of {job['id']} was answered for {answer['job_id']}")
            self.sum.acknowledged[job["id"]] = self.token
        elif not (status == 409 and repeated):  # what was sent before the crash was committed
            self._fault(f"ACK of {job['id']} was answered {status}: {answer}")

    async def _call(self, path: str, body: object, headers: str = "") -> tuple[int, Any, bool]:
        """Status and body of the answer, and whether the call was sent more than once."""
        self.sent += 1
        name, content = f"{self.token}-{self.sent}", json.dumps(body).encode()
        head = (
            f"POST {path} HTTP/1.1\r\nHost: localhost\r\nX-Request-Id: {name}\r\nContent-Type: application/json\r\n"
            f"{headers}Content-Length: {len(content)}\r\n\r\n"
        )
        deadline, tries = time.monotonic() + PATIENCE, 0
        while True:
            tries += 1
            try:
                status, given, answer = await asyncio.wait_for(self._exchange(head.encode() + content), PATIENCE)
                if status != 503 and not (status == 409 and b'"IDEMPOTENCY_KEY_IN_USE"' in answer):
                    break
            except (TimeoutError, OSError, EOFError):
                self.close()
            if time.monotonic() > deadline:
                raise RuntimeError(f"The server did not answer {name} within {PATIENCE:g} seconds.")
            self.sum.repeated += 1
            await asyncio.sleep(0.05)
        self.sum.calls += 1
        self.answers.set()
        self.sum.statuses[f"{path} {status}"] += 1
        if given != name:
            self._fault(f"{name} got the answer to {given}")
        return status, json.loads(answer), tries > 1

    async def _exchange(self, request: bytes) -> tuple[int, str, bytes]:
        if self.streams is None:
            self.streams = await asyncio.open_connection("127.0.0.1", self.port)
        reader, writer = self.streams
        writer.write(request)
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        fields = dict(line.split(": ", 1) for line in head.split("\r\n")[1:] if ": " in line)
        fields = {name.lower(): value for name, value in fields.items()}
        answer = await reader.readexactly(int(fields["content-length"]))
        if fields.get("connection", "").lower() == "close":
            self.close()
        return int(head[9:12]), fields.get("x-request-id", ""), answer

    def close(self) -> None:
        if self.streams is not None:
            self.streams[1].transport.abort()
            self.streams = None

    def _fault(self, sentence: str) -> None:
        self.sum.faults.append(sentence)


class Victim:
    """The server, in a process group of its own, which is killed as a whole."""

    def __init__(self, command: Sequence[str], database: str) -> None:
        self.command, self.database = command, database
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, *self.command], env=processes.environment(self.database), start_new_session=True
        )

    def kill(self) -> None:
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


def crash(
    calls: int, clients: int, port: int, command: Sequence[str], database: str, say: Callable[[str], object]
) -> Sum:
    """Let so many clients make so many calls of a server that is killed at random; add up. The database is empty."""
    total, victim = Sum(), Victim(command, database)
    victim.start()
    try:
        asyncio.run(_run(calls, clients, port, victim, total, say))
    finally:
        victim.kill()
    compare(total)
    return total


async def _run(
    calls: int, clients: int, port: int, victim: Victim, total: Sum, say: Callable[[str], object]
) -> None:  # fmt: skip
    answers = asyncio.Event()
    crowd = [Client(port, f"client{number}", total, answers) for number in range(clients)]
    killing = asyncio.create_task(_kill(victim, total, answers, say))
    try:
        await asyncio.gather(*(client.work(calls) for client in crowd))
    finally:
        killing.cancel()
        for client in crowd:
            client.close()
        await asyncio.sleep(0)


async def _kill(victim: Victim, total: Sum, answers: asyncio.Event, say: Callable[[str], object]) -> None:
    chance = random.Random()  # noqa: S311
    while True:
        answers.clear()
        await answers.wait()  # until the server has started
        await asyncio.sleep(chance.uniform(*PEACE))
        victim.kill()
        victim.start()
        total.kills += 1
        say(f"{total.calls:,} calls, {total.kills} kills")


def compare(total: Sum) -> None:
    """What the database says of all that was answered with 2xx."""
    faults = total.faults
    rows = {str(row["id"]): row for row in Job.objects.filter(type=TYPE).rows(("id", "state", "args", "result"))}
    by_key: dict[str, list[str]] = {}
    for job_id, row in rows.items():
        by_key.setdefault(json.loads(row["args"])[0], []).append(job_id)
    for key, job_id in total.pushed.items():
        if by_key.get(key) != [job_id]:
            faults.append(f"push {key} was answered with {job_id}, and stored as {by_key.get(key)}")
    faults += [f"{key} was stored {len(ids)} times" for key, ids in by_key.items() if len(ids) > 1]
    faults += [f"{key} was stored and never answered" for key in by_key.keys() - total.pushed.keys()]
    for job_id, token in total.acknowledged.items():
        stored = rows.get(job_id, {})
        if (stored.get("state"), stored.get("result")) != (State.COMPLETED, json.dumps(token)):
            faults.append(f"ACK of {job_id} by {token} was answered with 2xx, and the row is {stored}")
    if (kept := IdempotencyKey.objects.count()) != len(by_key):
        faults.append(f"{kept} keys are stored for {len(by_key)} jobs")
    events = Counter(Event.objects.filter(job_type=TYPE).values_list("type", flat=True))
    completed = sum(row["state"] == State.COMPLETED for row in rows.values())
    for kind, wanted in (("job.enqueued", len(rows)), ("job.completed", completed)):
        if events[kind] != wanted:
            faults.append(f"{events[kind]} events {kind} of {wanted} jobs")
