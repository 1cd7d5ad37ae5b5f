"""HTTP to one server: one kept-alive connection, every byte sent as given."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final
from urllib.parse import urlsplit

from .values import MISSING

MEDIA_TYPE: Final = "application/openjobspec+json"
_GONE: Final = (http.client.RemoteDisconnected, ConnectionResetError, BrokenPipeError)


@dataclass(frozen=True)
class Response:
    """A server's answer. `body` is the JSON value, the text if it is no JSON, or MISSING if there are no bytes."""

    status: int
    headers: Mapping[str, str] = field(default_factory=dict)
    body: object = MISSING

    def header(self, name: str) -> object:
        """The value of a header, whatever the case of its name; MISSING if it was not sent."""
        return self.headers.get(name.lower(), MISSING)

    def document(self) -> dict[str, object]:
        """The answer as JSON, for references such as `{{steps.a.response.body.job.id}}`."""
        body = None if self.body is MISSING else self.body
        return {"status": self.status, "headers": dict(self.headers), "body": body}


class Client:
    """Requests to a base URL, for one thread. A connection that lay idle is opened anew, as servers close them."""

    idle_limit: float = 3.0

    def __init__(self, base_url: str, timeout: float = 30.0) -> None:
        self.base_url = base_url.rstrip("/")
        self._url = urlsplit(self.base_url)
        self._timeout = timeout
        self._connection: http.client.HTTPConnection | None = None
        self._used = 0.0

    def __enter__(self) -> Client:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection; the next request opens another."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def request(
        self, method: str, path: str, headers: Mapping[str, str] | None = None, body: bytes | None = None
    ) -> Response:
        """Send a request and read the whole answer. `path` may be absolute. OSError if the server cannot be reached."""
        if self._connection is not None and time.monotonic() - self._used > self.idle_limit:
            self.close()
        reused = self._connection is not None
        try:
            return self._exchange(method, path, headers or {}, body)
        except _GONE:
            self.close()
            if not reused:
                raise
            return self._exchange(method, path, headers or {}, body)
        except (OSError, http.client.HTTPException):
            self.close()
            raise

    def json(self, method: str, path: str, body: object = MISSING) -> Response:
        """Send a JSON value with the protocol's media type."""
        if body is MISSING:
            return self.request(method, path, {"Accept": MEDIA_TYPE})
        headers = {"Accept": MEDIA_TYPE, "Content-Type": MEDIA_TYPE}
        return self.request(method, path, headers, json.dumps(body).encode())

    def _exchange(self, method: str, path: str, headers: Mapping[str, str], body: bytes | None) -> Response:
        if self._connection is None:
            self._connection = self._open()
        self._connection.request(method, self._target(path), body=body, headers=dict(headers))
        answer = self._connection.getresponse()
        content = answer.read()
        self._used = time.monotonic()
        if answer.will_close:
            self.close()
        lower = {name.lower(): value for name, value in answer.getheaders()}
        return Response(answer.status, lower, _decode(content))

    def _open(self) -> http.client.HTTPConnection:
        kind = http.client.HTTPSConnection if self._url.scheme == "https" else http.client.HTTPConnection
        return kind(self._url.hostname or "localhost", self._url.port, timeout=self._timeout)

    def _target(self, path: str) -> str:
        if path.startswith(("http://", "https://")):
            path = path.removeprefix(self.base_url)
        return self._url.path + path


def _decode(content: bytes) -> object:
    if not content:
        return MISSING
    try:
        return json.loads(content)
    except ValueError:
        return content.decode("utf-8", "replace")
