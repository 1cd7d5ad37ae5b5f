"""Readers that reconnect all the time get each event once and in order: directly, behind nginx and below a sub-path."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings as site_settings
from django.db import connections
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from django_ojs.events import ids, log
from django_ojs.jobs.push import push
from tests.realtime.listening import parse
from tests.realtime.test_processes import PATIENCE, Server, work
from tests.waiting import eventually

pytestmark = [pytest.mark.wide, pytest.mark.usefixtures("transactional_db")]

JOBS = 3_000
EVENTS = 3 * JOBS
PAGES = Path(site_settings.BASE_DIR) / "docs" / "production"
NGINX = shutil.which("nginx", path="/usr/sbin:/usr/local/sbin:/usr/bin:/usr/local/bin")
#: The gate, whose working folder has this name, has installed it.
needs_nginx = pytest.mark.skipif(
    NGINX is None and "CI_WORK" not in os.environ, reason="needs nginx: install Debian's package nginx-light"
)

#: What a reader says of an event: its id and the type of its job.
Seen = tuple[str, str]
Read = Callable[[str, str], Generator[Seen, None, None]]


# Three kinds of readers. Each yields what it sees on one connection, which begins behind the cursor.


def by_resume(base: str, cursor: str) -> Generator[Seen, None, None]:
    wanted = {"channel": "all", "event_types": ["job.*"]}
    with socket_to(base) as client:
        client.send(json.dumps({"action": "resume", "last_event_id": cursor, "subscriptions": [wanted]}))
        while True:
            frame = json.loads(client.recv(PATIENCE))
            assert frame.get("event") != "system.gap", frame
            if frame["type"] == "event" and frame["event"].startswith("job."):
                yield frame["id"], frame["data"]["job_type"]


def by_events(base: str, cursor: str) -> Generator[Seen, None, None]:
    wanted = {"channel": "events", "filter": {"event_types": ["job.*"]}, "after": cursor}
    with socket_to(base) as client:
        client.send(json.dumps({"action": "subscribe", **wanted}))
        while True:
            frame = json.loads(client.recv(PATIENCE))
            assert frame["type"] != "system.gap", frame
            if frame["type"].startswith("job."):
                yield frame["id"], frame["data"]["job_type"]


def by_stream(base: str, cursor: str) -> Generator[Seen, None, None]:
    host, _, prefix = base.partition("/")
    connection = http.client.HTTPConnection(host, timeout=PATIENCE)
    with contextlib.closing(connection):
        path = f"/{prefix}/ojs/v1/events/stream?types=job.*".replace("//", "/")
        connection.request("GET", path, headers={"Last-Event-ID": cursor})
        answer = connection.getresponse()
        if answer.status in AWAY:
            raise Refused(answer.status)
        assert (answer.status, answer.headers["Content-Type"]) == (200, "text/event-stream")
        lines: list[str] = []
        while line := answer.readline():
            if line != b"\n":
                lines.append(line.decode().removesuffix("\n"))
                continue
            frame, lines = parse("\n".join(lines)), []
            assert frame.event != "system.gap", frame.data
            if frame.event.startswith("job."):
                yield frame.id, frame.data["data"]["job_type"]


READERS = (by_resume, by_events, by_stream)


@contextlib.contextmanager
def socket_to(base: str) -> Iterator[ClientConnection]:
    try:
        client = connect(f"ws://{base}/ojs/v1/ws", proxy=None, max_queue=None)
    except InvalidStatus as error:
        if error.response.status_code in AWAY:
            raise Refused(error.response.status_code) from error
        raise
    except InvalidHandshake as error:  # the connection has ended
        raise Refused(0) from error
    with client:
        yield client


#: What is answered while a server stops or is away: by uvicorn to a handshake that it is in the middle of, by nginx, by
#: the server itself.
AWAY = (500, 502, 503, 504)
restarting = threading.Event()


class Refused(ConnectionError):
    """An answer of `AWAY`, or none."""


class Reader(threading.Thread):
    """Reads until it has seen all, and connects again after every so many events, and when it was cut off."""

    def __init__(
        self, read: Callable[[str, str], Generator[Seen, None, None]], base: str, cursor: str, turn: int
    ) -> None:
        super().__init__(name=f"{read.__name__} {base}", daemon=True)
        self.seen: list[str] = []
        self.turns = self.cuts = 0
        self.error: BaseException | None = None
        self._read, self._base, self._cursor, self._turn = read, base, cursor, turn

    def run(self) -> None:
        try:
            deadline = time.monotonic() + 10 * PATIENCE
            while len(self.seen) < EVENTS:
                assert time.monotonic() < deadline, f"It did not happen in time: {len(self.seen)} of {EVENTS} events"
                allowed = restarting.is_set()
                try:
                    self._take_turn()
                except Refused:
                    if not (allowed or restarting.is_set()):
                        raise
                    self.cuts += 1
                    time.sleep(0.05)
                except (OSError, ConnectionClosed, http.client.HTTPException):
                    self.cuts += 1
                    time.sleep(0.05)
        except BaseException as error:  # noqa: BLE001 - the test raises it
            self.error = error

    def _take_turn(self) -> None:
        with contextlib.closing(self._read(self._base, self._cursor)) as found:
            for number, (event, job_type) in enumerate(found, 1):
                self._cursor = event
                if job_type == "a.b":
                    self.seen.append(event)
                if number == self._turn or len(self.seen) >= EVENTS:
                    self.turns += 1
                    return
        raise ConnectionError("The server has ended it.")


# nginx, as the page about web servers has it


@pytest.fixture
def proxied(tmp_path: Path) -> Iterator[Callable[..., str]]:
    """Starts nginx before a server with the sample of the docs, and says where it listens."""
    started: list[subprocess.Popen[bytes]] = []

    def start(server: Server, prefix: str = "") -> str:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        file = tmp_path / "nginx.conf"
        file.write_text(configured(port, server.port, prefix, tmp_path))
        command = [str(NGINX), "-p", str(tmp_path), "-e", str(tmp_path / "error.log"), "-c", str(file)]
        assert "syntax is ok" in subprocess.run([*command, "-t"], capture_output=True, text=True, check=True).stderr
        started.append(subprocess.Popen([*command, "-g", "daemon off;"]))
        wait_for(port)
        return f"127.0.0.1:{port}{prefix}"

    yield start
    for process in started:
        process.terminate()
        process.wait(PATIENCE)


def configured(port: int, server: int, prefix: str, folder: Path) -> str:
    """The sample with other ports and folders, one server behind both names, and below a prefix with that location."""
    text = (PAGES / "files" / "nginx.conf").read_text(encoding="utf-8")
    if prefix:
        (location,) = re.findall(r"```nginx\n(location /shop/ .*?)```", (PAGES / "web.md").read_text(), re.DOTALL)
        text = text.replace("        location / {", f"{location.replace('/shop/', f'{prefix}/')}        location / {{")
    changes = {
        "worker_processes auto;": "worker_processes 1;", "listen 8080;": f"listen 127.0.0.1:{port};",
        "127.0.0.1:8001": f"127.0.0.1:{server}", "127.0.0.1:8002": f"127.0.0.1:{server}", "/tmp/": f"{folder}/",
    }  # fmt: skip
    for old, new in changes.items():
        assert old in text, old
        text = text.replace(old, new)
    return text


def wait_for(port: int) -> None:
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(0.05)
    raise AssertionError(f"Nobody listens on port {port}.")


@pytest.fixture
def served(child_environment: dict[str, str]) -> Iterator[Callable[..., Server]]:
    started: list[Server] = []
    ids.forget()  # the log is a new one

    def start(*options: str, **environment: str) -> Server:
        server = Server(child_environment | environment, *options)
        server.start()
        started.append(server)
        server.wait()
        return server

    yield start
    for server in started:
        server.kill()
    connections.close_all()


def stop(server: Server) -> None:
    """As in a deploy: it tells its listeners, and ends."""
    assert server.process is not None
    server.process.send_signal(signal.SIGTERM)
    server.process.wait(PATIENCE)


def check(server: Server, *bases: str) -> None:
    """All kinds of readers at each address, while jobs run and the server restarts twice."""
    push([{"type": "a.first", "args": [], "queue": "other"}])
    (first,) = [event["id"] for event in log.read(types=["job.*"]).events]
    readers = [Reader(read, base, first, 250 + 50 * number) for number, read in enumerate(READERS) for base in bases]
    working = threading.Thread(target=work, args=[JOBS], daemon=True)
    for thread in (*readers, working):
        thread.start()
    for ends, share in ((stop, 1), (Server.kill, 2)):
        await_events(readers, EVENTS * share // 3)
        restarting.set()
        ends(server)
        server.start()
        server.wait()
        restarting.clear()
    for reader in readers:
        reader.join(10 * PATIENCE)
        assert reader.error is None, reader.name
        assert not reader.is_alive(), f"{reader.name}: {len(reader.seen)} of {EVENTS} events"
    working.join(PATIENCE)
    expected = everything(first)
    assert len(expected) == EVENTS
    for reader in readers:
        assert reader.seen == expected, reader.name
        assert reader.turns >= EVENTS // 350 - 2
        assert reader.cuts, "the server has restarted"


def await_events(readers: list[Reader], number: int) -> None:
    eventually(
        lambda: any(len(reader.seen) >= number or not reader.is_alive() for reader in readers),
        f"{number} events", timeout=10 * PATIENCE,
    )  # fmt: skip


def everything(after: str) -> list[str]:
    found: list[str] = []
    page: Any = None
    while page is None or page.has_more:
        page = log.read(after=after, types=["job.*"], limit=1000)
        found += [event["id"] for event in page.events]
        after = page.cursor
    return found


def test_directly(served: Callable[..., Server]) -> None:
    server = served()
    check(server, f"127.0.0.1:{server.port}")


@needs_nginx
def test_behind_nginx(served: Callable[..., Server], proxied: Callable[..., str]) -> None:
    server = served()
    check(server, proxied(server))


@needs_nginx
@pytest.mark.parametrize("by", ["root path", "setting"])
def test_below_a_sub_path_that_nginx_strips(
    served: Callable[..., Server], proxied: Callable[..., str], by: str
) -> None:
    server = served("--root-path", "/shop") if by == "root path" else served(OJS_TEST_SCRIPT_NAME="/shop")
    base = proxied(server, "/shop")
    status, told = get(base, "/ojs/manifest")
    assert (status, json.loads(told)["endpoints"]["websocket"]) == (200, "/shop/ojs/v1/ws")
    assert [get(base, path)[0] for path in ("/metrics", "/ojs/v1/metrics")] == [404, 404]
    check(server, base)


def get(base: str, path: str) -> tuple[int, bytes]:
    host, _, prefix = base.partition("/")
    with contextlib.closing(http.client.HTTPConnection(host, timeout=PATIENCE)) as connection:
        connection.request("GET", f"/{prefix}{path}")
        answer = connection.getresponse()
        return answer.status, answer.read()
