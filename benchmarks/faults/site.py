"""The processes that meet the faults, the clients that push, read and stream meanwhile, and what both say of health."""

from __future__ import annotations

import contextlib
import http.client
import importlib.util
import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from benchmarks import processes, serving
from benchmarks.faults import injection
from benchmarks.faults.record import Record, event_of
from benchmarks.postgres import free_ports

START = 60.0  #: seconds for all to start
PUSHERS, PAUSE = 3, 0.1  #: threads that push, and seconds between two pushes of each
PATIENCE = 45.0  #: seconds for an answer
FRESH = 2.0  #: seconds, at most, of the age of a health file that says to be healthy
TYPES = ("faults.sync", "faults.async")
MARK_EVERY = 10  #: of so many jobs one carries what a fault of statements looks for


class Look(NamedTuple):
    """Which of the processes said to be healthy between two instants."""

    began: float
    ended: float
    healthy: dict[str, bool]


class Site:
    """A worker of two processes, a scheduler, a server of HTTP and one of gRPC on a database; and their clients."""

    def __init__(self, database: str, folder: Path, record: Record) -> None:
        self.folder, self.record = folder, record
        self.switch = folder / "switch"
        self.port, self.grpc_port = free_ports(2)
        self._database = database
        self._ended = threading.Event()
        self._threads: list[threading.Thread] = []
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self.looks: list[Look] = []
        self.replaced: list[str] = []  #: processes that ended by themselves
        self.pushes = True

    def start(self) -> None:
        injection.turn(self.switch, None)
        for name in self._commands():
            self._start(name)
        self._until_up()
        clients = [*[self._push] * PUSHERS, self._read, self._look, self._stream]
        if "gRPC" in self._processes:
            clients.append(self._push_by_grpc)
        self._threads = [threading.Thread(target=client, daemon=True) for client in clients]
        for thread in self._threads:
            thread.start()

    def stop(self) -> list[str]:
        """End all; the processes that did not end as they should."""
        self._ended.set()
        for thread in self._threads:
            thread.join(PATIENCE)
        faults = []
        for process in self._processes.values():
            process.terminate()
        for name, process in self._processes.items():
            try:
                code = process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                code = process.wait()
            if code not in (0, -15):
                faults.append(f"the {name} ended with code {code}")
        return faults

    def _commands(self) -> dict[str, list[str]]:
        options = ("--settings", "benchmarks.faults.settings")
        server, self._kept = next(
            (command, kept) for name, command, kept in serving.servers(self.port) if name == "uvicorn"
        )
        named = ("--name", "faults", "--processes", "2", "--concurrency", "8", "--no-scheduler")
        found = {
            "worker": [*processes.worker("-v", "0", *named, "--health-file", str(self.health("worker"))), *options],
            "scheduler": [*processes.scheduler(), "--health-file", str(self.health("scheduler")), *options],
            "server": server,
        }
        if importlib.util.find_spec("grpc"):
            found["gRPC"] = [*serving.GrpcServer(self.grpc_port).command(), *options]
        return found

    def health(self, name: str) -> Path:
        return self.folder / f"{name}.health"

    def log(self, name: str) -> Path:
        return self.folder / f"{name}.log"

    def _start(self, name: str) -> None:
        query = {"server": self._kept, "gRPC": serving.kept()}.get(name, "")
        environment = {
            **processes.environment(processes.extended(self._database, query)),
            "DJANGO_SETTINGS_MODULE": "benchmarks.faults.settings",
            injection.SWITCH: str(self.switch), injection.ROLE: name, "OJS_FAULTS_NOTES": str(self.folder / "notes"),
        }  # fmt: skip
        with self.log(name).open("ab") as log:
            self._processes[name] = subprocess.Popen(
                [sys.executable, *self._commands()[name]], env=environment, stdout=log, stderr=log,
            )  # fmt: skip

    def _until_up(self) -> None:
        deadline = time.monotonic() + START
        while not all(self._healthy().values()):
            ended = [name for name, process in self._processes.items() if process.poll() is not None]
            if ended or time.monotonic() > deadline:
                texts = [f"{name}: {self.log(name).read_text(errors='replace')[-2000:]}" for name in self._processes]
                raise RuntimeError("Not all have started.\n" + "\n".join(texts))
            time.sleep(0.2)

    def lines(self) -> dict[str, int]:
        """Lines of the log of each process so far."""
        return {name: self.log(name).read_bytes().count(b"\n") for name in self._processes}

    def pids(self) -> dict[str, set[int]]:
        """The processes of each kind; one that has ended is started again, as a service manager would."""
        found: dict[str, set[int]] = {}
        for name, process in list(self._processes.items()):
            if (code := process.poll()) is not None:
                self.replaced.append(f"the {name} ended with code {code}")
                self._start(name)
            family = psutil.Process(self._processes[name].pid)
            with contextlib.suppress(psutil.Error):
                found[name] = {family.pid, *(child.pid for child in family.children(recursive=True))}
        return found

    # Clients

    def _push(self) -> None:
        line = Line(self.port)
        while not self._ended.wait(PAUSE):
            if self.pushes:
                number = self.record.number()
                body = self._job(number)
                sent_at = time.monotonic()
                status, answer = line.call(
                    "POST", "/ojs/v1/jobs", body, {"Idempotency-Key": f"k-{number}"} if number % 2 else {}
                )
                job_id = answer["job"]["id"] if status in ("200", "201") else None
                self.record.answer(number, status, job_id, sent_at)
        line.close()

    def _job(self, number: int) -> dict[str, Any]:
        meta = {"note": injection.MARK} if not number % MARK_EVERY else {}
        return {"type": TYPES[number // 2 % 2], "args": [number], "queue": "default", "meta": meta}

    def _push_by_grpc(self) -> None:
        import grpc

        from django_ojs.grpc import messages
        from django_ojs.grpc.definition import Stub

        stub = Stub(grpc.insecure_channel(f"127.0.0.1:{self.grpc_port}"))
        while not self._ended.wait(PAUSE):
            if not self.pushes:
                continue
            number, sent_at = self.record.number(), time.monotonic()
            try:
                answer = stub.Enqueue(messages.to_message("EnqueueRequest", self._job(number)), timeout=PATIENCE)
            except grpc.RpcError as error:
                self.record.answer(number, f"gRPC {error.code().name}", None, sent_at)
            else:
                self.record.answer(number, "gRPC OK", answer.job.id, sent_at)

    def _read(self) -> None:
        line = Line(self.port)
        while not self._ended.wait(2 * PAUSE):
            ids = list(self.record.answered.values())
            path = f"/ojs/v1/jobs/{ids[-1]}" if ids else "/ojs/v1/queues"
            status, _ = line.call("GET", path)
            self.record.count(f"GET {status}")
        line.close()

    def _look(self) -> None:
        while not self._ended.wait(0.25):
            began, healthy = time.monotonic(), self._healthy()
            self.looks.append(Look(began, time.monotonic(), healthy))

    def _healthy(self) -> dict[str, bool]:
        found = {}
        for name in ("worker", "scheduler"):
            try:
                found[name] = time.time() - self.health(name).stat().st_mtime < FRESH
            except FileNotFoundError:
                found[name] = False
        line = Line(self.port)
        found["server"] = line.call("GET", "/readyz")[0] == "200"
        line.close()
        if "gRPC" in self._processes:
            found["gRPC"] = self._grpc_serves()
        return found

    def _grpc_serves(self) -> bool:
        import grpc
        from grpc_health.v1 import health_pb2, health_pb2_grpc

        with grpc.insecure_channel(f"127.0.0.1:{self.grpc_port}") as channel:
            try:
                answer = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=PATIENCE)
            except grpc.RpcError:
                return False
        return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)

    def _stream(self) -> None:
        """A client of event streams: it connects again where it is cut off, from the last event that it has seen."""
        last = ""
        while not self._ended.is_set():
            with contextlib.suppress(OSError, http.client.HTTPException):
                for name, value in self._frames(last):
                    if name == "id":
                        last = value
                    elif name == "data" and (event := event_of(value)) is not None and event[0] == "job.completed":
                        self.record.streamed.add(event[1])
                        self.record.last_stream = time.monotonic()
                    if self._ended.is_set():
                        return
            self._ended.wait(0.5)

    def _frames(self, last: str) -> Iterator[tuple[str, str]]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        with contextlib.closing(connection):
            headers = {"Accept": "text/event-stream"} | ({"Last-Event-ID": last} if last else {})
            connection.request("GET", "/ojs/v1/events/stream?types=job.completed", headers=headers)
            answer = connection.getresponse()
            self.record.count(f"stream {answer.status}")
            while answer.status == 200 and (line := answer.readline()):
                name, found, value = line.decode().rstrip("\r\n").partition(": ")
                if found:
                    yield name, value


class Line:
    """One connection of HTTP, opened again where it breaks."""

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)

    def call(
        self, method: str, path: str, body: object = None, headers: dict[str, str] | None = None
    ) -> tuple[str, Any]:
        """Status and body; the name of what went wrong in the place of the status where no answer came."""
        content = None if body is None else json.dumps(body)
        try:
            self._connection.request(method, path, content, {"Content-Type": "application/json", **(headers or {})})
            answer = self._connection.getresponse()
            text = answer.read()
        except (OSError, http.client.HTTPException) as error:
            self._connection.close()
            return type(error).__name__, {}
        try:
            return str(answer.status), json.loads(text or b"{}")
        except ValueError:
            return f"{answer.status} without JSON", {}

    def close(self) -> None:
        self._connection.close()
