"""HTTP servers of the benchmark, and clients of them."""

from __future__ import annotations

import contextlib
import http.client
import importlib.util
import json
import threading
import time
from collections.abc import Sequence
from typing import Any

from django.db import connection

from benchmarks.measures import fill


class Server:
    """A server that runs, with as many clients as connections."""

    def __init__(self, port: int, connections: int = 8) -> None:
        self.port, self.connections = port, connections

    def wait(self) -> None:
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError):
                if self._client()("GET", "/ojs/v1/health", None)[0] == 200:
                    return
            time.sleep(0.05)
        raise RuntimeError("The server did not answer within 20 seconds.")

    def push_rate(self, jobs: int) -> float:
        body = json.dumps({"type": "bench.sync", "args": [1]})
        return self._rate(jobs, lambda send: _expect(send("POST", "/ojs/v1/jobs", body), 201))

    def cycle_rate(self, jobs: int) -> float:
        """Jobs per second fetched and acknowledged, one at a time."""
        fill(jobs, "bench.sync")
        ask = json.dumps({"queues": ["default"], "worker_id": "bench"})

        def cycle(send: Any) -> None:
            job = _expect(send("POST", "/ojs/v1/workers/fetch", ask), 200)["job"]
            _expect(send("POST", "/ojs/v1/workers/ack", json.dumps({"job_id": job["id"]})), 200)

        return self._rate(jobs, cycle)

    def _rate(self, jobs: int, act: Any) -> float:
        share = max(1, jobs // self.connections)
        errors: list[BaseException] = []

        def work() -> None:
            send = self._client()
            try:
                for _ in range(share):
                    act(send)
            except BaseException as error:  # noqa: BLE001 - raised below, in the main thread
                errors.append(error)

        threads = [threading.Thread(target=work) for _ in range(self.connections)]
        started = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]
        return share * self.connections / (time.perf_counter() - started)

    def _client(self) -> Any:
        client = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)

        def send(method: str, path: str, body: str | None) -> tuple[int, Any]:
            client.request(method, path, body, {"Content-Type": "application/json"})
            response = client.getresponse()
            return response.status, json.loads(response.read())

        return send


def _expect(answer: tuple[int, Any], status: int) -> Any:
    if answer[0] != status:
        raise RuntimeError(f"The server answered {answer[0]}: {answer[1]}")
    return answer[1]


def servers(port: int) -> Sequence[tuple[str, list[str], str]]:
    """The HTTP servers that are installed: name, command, and how such a server keeps its database connections."""
    found = []
    bind = f"127.0.0.1:{port}"
    if importlib.util.find_spec("uvicorn"):
        found.append(
            ("uvicorn", ["-m", "uvicorn", "benchmarks.asgi:application", "--port", str(port),
                         "--http", "h11", "--log-level", "error", "--no-access-log", "--lifespan", "off"], _pool())
        )  # fmt: skip
    if importlib.util.find_spec("gunicorn"):
        found.append(
            ("gunicorn", ["-m", "gunicorn", "benchmarks.wsgi:application", "-b", bind, "--threads", "8",
                          "--log-level", "error"], "conn_max_age=60")
        )  # fmt: skip
    return found


def _pool() -> str:
    """Under ASGI each request has a thread of its own, so nothing but a pool outlives it; PostgreSQL has one."""
    return "pool=true" if connection.vendor == "postgresql" and importlib.util.find_spec("psycopg_pool") else ""
