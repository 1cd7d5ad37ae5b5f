"""One attempt over HTTP: to checked addresses only, within one deadline, and with little of the answer read.

The connection goes to the address that was checked (no second look-up that may answer otherwise), under the
name of the URL in Host and TLS. Proxies of the environment are ignored: they would resolve the name anew.
"""

from __future__ import annotations

import contextlib
import http.client
import socket
import ssl
import threading
import time
from collections.abc import Iterator, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from django_ojs import clock
from django_ojs.messages import phrase, reason
from django_ojs.webhooks import addresses, outcome, urls
from django_ojs.webhooks.addresses import Refused
from django_ojs.webhooks.outcome import Reply, Verdict
from django_ojs.webhooks.urls import Target

if TYPE_CHECKING:
    from urllib3.connection import HTTPConnection

MAX_REDIRECTS = 3
MAX_ADDRESSES = 3  #: of one name that are tried, one after the other
READ_BYTES = 65_536  #: of the answer's body at most
KEPT_CHARACTERS = 4_096  #: of which so many are kept
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_CHUNK = 8_192


class Request(NamedTuple):
    """What to send. `private` headers are those of the subscription, which no other origin gets to see."""

    url: str
    body: bytes
    headers: Mapping[str, str]
    timeout: float  #: seconds for everything: look-up, TLS, redirects, answer
    private: frozenset[str] = frozenset()


class _Answer(NamedTuple):
    status: int
    location: str | None
    retry_after: str | None
    body: str


def send(request: Request) -> Reply:
    """POST it and say what came of it. Never raises for anything that a receiver can do."""
    import urllib3

    began = time.monotonic()
    try:
        reply = _follow(request, began + request.timeout)
    except (Refused, urls.Malformed) as error:
        reply = Reply(Verdict.DEAD, error=phrase("The URL %(problem)s.", problem=reason(error)))
    except TimeoutError:
        reply = Reply(Verdict.RETRY, error=_late(request))
    except (OSError, ValueError, urllib3.exceptions.HTTPError, http.client.HTTPException) as error:
        late = time.monotonic() - began >= request.timeout
        reply = Reply(Verdict.RETRY, error=_late(request) if late else _told(error))
    return reply._replace(duration_ms=round((time.monotonic() - began) * 1000))


@cache
def tls_context() -> ssl.SSLContext:
    """The system's certificate authorities; SSL_CERT_FILE and SSL_CERT_DIR name others."""
    context = ssl.create_default_context()
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


def _follow(request: Request, deadline: float) -> Reply:
    target = origin = urls.parse(request.url)
    headers = dict(request.headers)
    for _ in range(MAX_REDIRECTS + 1):
        answer = _exchange(target, request.body, headers, deadline)
        if answer.status not in _REDIRECTS or not answer.location:
            return _reply(answer)
        target = urls.redirected(target, answer.location)
        if target.origin != origin.origin:
            headers = {name: value for name, value in headers.items() if name not in request.private}
    return Reply(Verdict.DEAD, answer.status, phrase("More than %(most)s redirects.", most=MAX_REDIRECTS))


def _reply(answer: _Answer) -> Reply:
    verdict = outcome.verdict(answer.status)
    error = "" if verdict is Verdict.SUCCESS else phrase("The receiver answered %(status)s.", status=answer.status)
    wait = outcome.retry_after(answer.retry_after, clock.now()) if verdict is Verdict.RETRY else None
    return Reply(verdict, answer.status, error, answer.body, wait)


def _exchange(target: Target, body: bytes, headers: Mapping[str, str], deadline: float) -> _Answer:
    """One request and its answer, on a connection of its own."""
    connection = _connect(target, deadline)
    with _ended_at(connection, deadline):
        connection.request(
            "POST", target.path, body=body, headers={"Host": target.authority, **headers},
            preload_content=False, decode_content=False,
        )  # fmt: skip
        response = connection.getresponse()
        if time.monotonic() >= deadline:  # cut within the headers, which looks like their end
            raise TimeoutError
        found = response.headers
        return _Answer(response.status, found.get("Location"), found.get("Retry-After"), _read(response, deadline))


def _connect(target: Target, deadline: float) -> HTTPConnection:
    """A connection to the first address of the host that takes one."""
    import urllib3

    found = addresses.resolve(target.host, target.port)[:MAX_ADDRESSES]
    for number, address in enumerate(found, 1):
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        connection = _connection(target, address, left)
        try:
            connection.connect()
        except (OSError, urllib3.exceptions.HTTPError):
            connection.close()
            if number == len(found):
                raise
        else:
            return connection
    raise AssertionError("resolve() gives at least one address")


def _connection(target: Target, address: str, timeout: float) -> HTTPConnection:
    from urllib3.connection import HTTPConnection, HTTPSConnection

    if target.scheme == "http":
        return HTTPConnection(address, target.port, timeout=timeout)
    return HTTPSConnection(
        address, target.port, timeout=timeout, ssl_context=tls_context(), server_hostname=target.host
    )


@contextlib.contextmanager
def _ended_at(connection: HTTPConnection, deadline: float) -> Iterator[None]:
    """Cut the connection at the deadline: a timeout of the socket begins anew with every byte that trickles in."""
    sock: Any = connection.sock
    timer = threading.Timer(max(deadline - time.monotonic(), 0.0), _cut, [sock])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        connection.close()


def _cut(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):
        socket.socket.shutdown(sock, socket.SHUT_RDWR)  # below TLS, whose own shutdown is not for other threads


def _read(response: Any, deadline: float) -> str:
    """The beginning of the body. What breaks off behind the status changes nothing about the outcome."""
    import urllib3

    pieces: list[bytes] = []
    missing = READ_BYTES
    with contextlib.suppress(OSError, ValueError, urllib3.exceptions.HTTPError, http.client.HTTPException):
        while missing > 0 and time.monotonic() < deadline and (piece := response.read1(min(missing, _CHUNK))):
            pieces.append(piece)
            missing -= len(piece)
    return b"".join(pieces)[:KEPT_CHARACTERS].decode("utf-8", "replace").replace("\0", "\N{REPLACEMENT CHARACTER}")


def _late(request: Request) -> str:
    return phrase("No answer within %(seconds)s s.", seconds=f"{request.timeout:g}")


def _told(error: Exception) -> str:
    """What went wrong, without addresses of ours or objects of the library."""
    reasons = [one for one in (error, getattr(error, "reason", None), error.__cause__) if isinstance(one, Exception)]
    for one in reasons:
        if isinstance(one, ssl.SSLError):
            why = getattr(one, "verify_message", "") or one.reason or "handshake failure"
            return phrase("TLS failed: %(why)s.", why=why)
        if isinstance(one, socket.gaierror):
            return phrase("The name of the host could not be resolved.")
        if isinstance(one, ConnectionRefusedError):
            return phrase("The connection was refused.")
    return phrase("The connection failed: %(error)s.", error=type(reasons[-1]).__name__)
