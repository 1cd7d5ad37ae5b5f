"""What bad neighbours cost the other clients of a server: eight push plain jobs beside one of them.

The neighbours are what was seen to stop a server once: rows that another transaction holds, calls that wait, readers
that read nothing, and bodies that cost more than they are long.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

from django.db import connection, connections, transaction

from benchmarks.client import request
from benchmarks.serving import Call, Server
from django_ojs.jobs.fetch import Fetch, fetch
from django_ojs.jobs.push import push
from django_ojs.models import Job
from django_ojs.rules.ids import new_job_id

CLIENTS, WAITING = 8, 16
#: What a neighbour sends again as soon as it is answered, given the number of its connection.
Again = Callable[[int], bytes]


@contextlib.contextmanager
def sending(port: int, count: int, again: Again, *, reads: bool = True) -> Iterator[None]:
    """So many connections that send, and send again when they are answered; with `reads` off they read nothing."""
    over = threading.Event()

    def run(number: int) -> None:
        while not over.is_set():
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=2) as client:
                client.sendall(again(number))
                while not over.is_set() and (not reads or client.recv(65536)):
                    if not reads:
                        over.wait(0.1)

    threads = [threading.Thread(target=run, args=(number,), daemon=True) for number in range(count)]
    for thread in threads:
        thread.start()
    time.sleep(0.3)  # until they are under way
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join(5)


@contextlib.contextmanager
def holding(act: Callable[[], object]) -> Iterator[None]:
    """A transaction that has done this, and stays open."""
    done, over = threading.Event(), threading.Event()

    def run() -> None:
        with contextlib.suppress(_Undone), transaction.atomic():
            act()
            done.set()
            over.wait()
            raise _Undone
        connections.close_all()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    done.wait(10)
    try:
        yield
    finally:
        over.set()
        thread.join(10)


class _Undone(Exception):
    pass


def nobody(port: int) -> AbstractContextManager[None]:
    return contextlib.nullcontext()


@contextlib.contextmanager
def a_held_id(port: int) -> Iterator[None]:
    """A job is being inserted by a transaction that stays open, and a client pushes the same id."""
    job = {"type": "bench.sync", "args": [1], "id": str(new_job_id())}
    with holding(lambda: push([job])), sending(port, 1, lambda number: request("/ojs/v1/jobs", job)):
        yield


@contextlib.contextmanager
def a_held_job(port: int) -> Iterator[None]:
    """A worker acknowledges a job that another transaction has locked."""
    push([{"type": "bench.sync", "args": [1], "queue": "held"}])
    (row,) = fetch(Fetch(["held"], worker_id="held"))
    body = {"job_id": str(row["id"]), "worker_id": "held"}

    def lock() -> None:
        Job.objects.select_for_update().get(pk=row["id"])

    with holding(lock), sending(port, 1, lambda number: request("/ojs/v1/workers/ack", body)):
        yield


@contextlib.contextmanager
def waiting_calls(port: int) -> Iterator[None]:
    """Sixteen calls that wait for the result of a job that does not end."""
    job = push([{"type": "bench.sync", "args": [1], "queue": "waits"}])[0].row
    assert job is not None
    path = f"/ojs/v1/jobs/{job['id']}/result?wait=true&timeout=30"
    with sending(port, WAITING, lambda number: request(path)):
        yield


@contextlib.contextmanager
def deaf_readers(port: int) -> Iterator[None]:
    """Sixteen event streams that nobody reads."""
    stream = request("/ojs/v1/events/stream", Accept="text/event-stream")
    with sending(port, WAITING, lambda number: stream, reads=False):
        yield


def raw(body: bytes, *headers: str) -> bytes:
    head = "".join(f"{line}\r\n" for line in ("Content-Type: application/json", *headers))
    return f"POST /ojs/v1/jobs HTTP/1.1\r\nHost: localhost\r\n{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


def hostile(*bodies: bytes) -> Callable[[int], AbstractContextManager[None]]:
    """One client that sends these, one after the other."""

    def beside(port: int) -> AbstractContextManager[None]:
        turn = iter(range(10**9))
        return sending(port, 1, lambda number: bodies[next(turn) % len(bodies)])

    return beside


_UNKNOWN = json.dumps({"type": "a.b", "args": [], **{f"m{n}": 1 for n in range(150_000)}}).encode()
_MEMBERS = b"".join(gzip.compress(b"", 1, mtime=0) for _ in range(40_000)) + gzip.compress(b"{}", mtime=0)
_NUMBERS = gzip.compress(b'{"type":"a.b","args":[' + b"1e5," * 900_000 + b"1]}", 9, mtime=0)
NEIGHBOURS: dict[str, Callable[[int], AbstractContextManager[None]]] = {
    "nobody": nobody, "a held id": a_held_id, "a held job": a_held_job, "waiting calls": waiting_calls,
    "deaf readers": deaf_readers, "unknown members": hostile(raw(_UNKNOWN)),
    "gzip of empty members": hostile(raw(_MEMBERS, "Content-Encoding: gzip")),
    "gzip of numbers": hostile(raw(_NUMBERS, "Content-Encoding: gzip")),
}  # fmt: skip
#: Under WSGI a call that waits takes a thread, and the calls beside it have one less: nothing there to measure.
OF_ASGI = frozenset({"waiting calls", "deaf readers"})
#: SQLite lets one transaction write: beside one that stays open nothing can be pushed.
OF_ROW_LOCKS = frozenset({"a held id", "a held job"})


def possible(server: str) -> list[str]:
    """The neighbours that mean something to this server."""
    impossible = set() if server == "uvicorn" else set(OF_ASGI)
    if connection.vendor == "sqlite":
        impossible |= OF_ROW_LOCKS
    return [name for name in NEIGHBOURS if name not in impossible]


def beside(server: Server, name: str, jobs: int) -> Call:
    """The pushes of the eight beside this neighbour. Raises where one of them is answered with anything but 201."""
    with NEIGHBOURS[name](server.port):
        return server.load("push", CLIENTS, jobs)
