"""HTTP servers of the benchmark, and the load on them."""

from __future__ import annotations

import contextlib
import http.client
import importlib.util
import json
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from django.db import connection

from benchmarks.client import SCRIPTS
from benchmarks.measures import fill
from benchmarks.processes import HOME

__all__ = ["SCRIPTS", "Call", "Server", "servers"]


class Call(NamedTuple):
    """One run of a script of `benchmarks.client`: jobs (or calls) a second, and milliseconds of a call."""

    rate: float
    p50: float
    p99: float


class Server:
    """A server that runs, and is loaded by a client in a process of its own."""

    def __init__(self, port: int) -> None:
        self.port = port

    def wait(self) -> None:
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            client = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
            with contextlib.suppress(OSError), contextlib.closing(client):
                client.request("GET", "/ojs/v1/health")
                if client.getresponse().status == 200:
                    return
            time.sleep(0.05)
        raise RuntimeError("The server did not answer within 20 seconds.")

    #: The module of the client, and the scripts for which jobs have to be there, with how many more for a connection.
    client = "benchmarks.client"
    takes: Mapping[str, int] = {"fetch_ack": 1}  # so that the last calls find a job, too

    def load(self, script: str, connections: int, jobs: int) -> Call:
        if script in self.takes:
            fill(jobs + connections * self.takes[script], "bench.sync")
        options = ["--connections", str(connections), "--jobs", str(jobs)]
        done = subprocess.run(
            [sys.executable, "-m", self.client, str(self.port), script, *options],
            cwd=HOME, stdout=subprocess.PIPE, check=True,
        )  # fmt: skip
        return Call(**json.loads(done.stdout))


class GrpcServer(Server):
    """The same of `ojs_grpc`. A client that streams has jobs in its hands, which do not count."""

    client = "benchmarks.grpcclient"
    takes: Mapping[str, int] = {"fetch_ack": 1, "stream": 100}

    @staticmethod
    def available() -> bool:
        return importlib.util.find_spec("grpc") is not None

    def command(self) -> list[str]:
        return ["-m", "django", "ojs_grpc", "-v", "0", "--bind", f"127.0.0.1:{self.port}"]

    def wait(self) -> None:
        import grpc

        channel = grpc.insecure_channel(f"127.0.0.1:{self.port}")
        try:
            grpc.channel_ready_future(channel).result(timeout=20)
        finally:
            channel.close()


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
            ("gunicorn", ["-m", "gunicorn", "benchmarks.wsgi:application", "-b", bind, "--threads", "16",
                          "--log-level", "error"], kept())
        )  # fmt: skip
    return found


def kept() -> str:
    """What keeps the connections of threads that last, as those of gunicorn and of gRPC do."""
    return "conn_max_age=60"


def _pool() -> str:
    """Under ASGI each request has a thread of its own, so nothing but a pool outlives it; PostgreSQL has one."""
    return "pool=true" if connection.vendor == "postgresql" and importlib.util.find_spec("psycopg_pool") else ""
