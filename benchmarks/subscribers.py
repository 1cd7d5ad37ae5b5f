"""What WebSocket subscribers cost while jobs run: nothing lost, how late events come, and what the database notices."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import subprocess
import time
from collections.abc import Sequence
from typing import Any

from django.db import connection

from benchmarks import measures, processes, serving
from benchmarks.listening import queue_of
from django_ojs.jobs.fetch import Fetch, fetch
from django_ojs.jobs.finish import Ack, ack
from django_ojs.jobs.push import push
from django_ojs.worker import processinfo

TICK = 0.1
SPREAD = 10  #: queues that get jobs in one tick: each costs a claim


def available() -> bool:
    """Whether there is a server and a client to measure with."""
    return all(importlib.util.find_spec(name) for name in ("uvicorn", "websockets", "channels"))


@dataclasses.dataclass(slots=True)
class Heard:
    """One run. Milliseconds, megabytes, and per second."""

    p50: float
    p99: float
    lost: int
    frames: int
    backlog_seconds: float
    jobs_per_second: float
    server_mb: float
    transactions: float


def run(database: str, port: int, *, sockets: int, queues: int, filtered: bool, rate: float, seconds: float) -> Heard:
    """So many sockets, each `filtered` to one of the queues or to none, while jobs run at a fixed rate."""
    command, keeping = next((command, keeping) for name, command, keeping in serving.servers(port) if name == "uvicorn")
    with processes.running(command, processes.extended(database, keeping)) as server:
        serving.Server(port).wait()
        ask = ["-m", "benchmarks.listening", *map(str, (port, sockets, queues))]
        with processes.running([*ask, "filtered" if filtered else "all"], database, stdin=subprocess.PIPE) as listener:
            _line(listener)
            before = _transactions()
            jobs, spent = _work(rate, seconds, queues)
            after = _transactions()
            expected = _expected(jobs, sockets, queues) if filtered else sum(jobs) * sockets
            assert listener.stdin is not None
            listener.stdin.write(f"{expected}\n")
            listener.stdin.flush()
            heard: dict[str, Any] = json.loads(_line(listener))
            memory = processinfo.memory_mb(server.pid) or 0.0
    return Heard(
        heard["p50"], heard["p99"], heard["lost"], heard["frames"], heard["backlog_seconds"], sum(jobs) / spent, memory,
        (after - before) / spent,
    )  # fmt: skip


def _line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise RuntimeError("The clients ended with an error; it is on standard error.")
    return line


def _work(rate: float, seconds: float, queues: int) -> tuple[list[int], float]:
    """Push, claim and complete jobs at this rate; returns how many in each queue, and the seconds it took."""
    done = [0] * queues
    each = max(1, round(rate * TICK / SPREAD))
    began = time.perf_counter()
    for tick in range(round(seconds / TICK)):
        numbers = [(tick * SPREAD + n) % queues for n in range(min(SPREAD, queues))]
        share = each * SPREAD // len(numbers)
        push([measures.plain(queue=queue_of(number, queues)) for number in numbers for _ in range(share)])
        rows = fetch(
            Fetch([queue_of(number, queues) for number in numbers], worker_id="bench", count=share * len(numbers))
        )
        ack([Ack(row["id"]) for row in rows])
        for number in numbers:
            done[number] += share
        time.sleep(max(0.0, began + (tick + 1) * TICK - time.perf_counter()))
    return done, time.perf_counter() - began


def _expected(done: Sequence[int], sockets: int, queues: int) -> int:
    return sum(done[number % queues] for number in range(sockets))


def _transactions() -> int:
    """Committed transactions of this database since its beginning; 0 where it does not count them."""
    if connection.vendor != "postgresql":
        return 0
    with connection.cursor() as cursor:
        cursor.execute("SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()")
        return int(cursor.fetchone()[0])
