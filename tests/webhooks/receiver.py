"""A receiver of webhooks: a real HTTP server on loopback that answers as it is told and remembers what it got."""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple


class Got(NamedTuple):
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def event(self) -> dict[str, Any]:
        return json.loads(self.body)


Answer = tuple[int, dict[str, str], bytes] | Callable[["Handler"], None]


class Handler(BaseHTTPRequestHandler):
    """Takes the next planned answer, else 204. A callable answer has the connection for itself."""

    protocol_version = "HTTP/1.1"
    server: Server

    def do_POST(self) -> None:
        length = int(self.headers.get("Content-Length", 0))
        body = self.rfile.read(length)
        if len(body) < length:  # the sender was killed in the middle: no receiver could answer that
            self.close_connection = True
            return
        answer = self.server.receiver.note(Got(self.path, dict(self.headers), body))
        if callable(answer):
            answer(self)
            self.close_connection = True
            return
        status, headers, text = answer
        self.send_response(status)
        for name, value in {"Content-Length": str(len(text)), "Connection": "close", **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(text)
        self.close_connection = True

    def do_GET(self) -> None:
        self.do_POST()

    def log_message(self, *args: Any) -> None:
        pass


class Server(ThreadingHTTPServer):
    daemon_threads = True
    receiver: Receiver

    def handle_error(self, *args: Any) -> None:
        pass  # clients that hang up are part of the tests


class Receiver:
    def __init__(self) -> None:
        self.got: list[Got] = []
        self.planned: deque[Answer] = deque()
        self.otherwise: Answer = (204, {}, b"")
        self.by_path: dict[str, Answer] = {}
        self._lock = threading.Lock()
        self.server = Server(("127.0.0.1", 0), Handler)
        self.server.receiver = self
        self._thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        return int(self.server.server_address[1])

    def url(self, path: str = "/hook") -> str:
        return f"http://127.0.0.1:{self.port}{path}"

    def plan(self, *answers: Answer | int) -> None:
        self.planned.extend((one, {}, b"") if isinstance(one, int) else one for one in answers)

    def note(self, got: Got) -> Answer:
        with self._lock:
            self.got.append(got)
            if got.path in self.by_path:
                return self.by_path[got.path]
            return self.planned.popleft() if self.planned else self.otherwise

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self._thread.join(10)
