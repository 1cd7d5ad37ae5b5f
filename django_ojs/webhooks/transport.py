"""One attempt over HTTP: to checked addresses only, within one deadline, and with little of the answer read.

The connection goes to the address that was checked (no second look-up that may answer otherwise), under the
name of the URL in Host and TLS. Proxies of the environment are ignored: they would resolve the name anew.

`signed_headers` signs the exact bytes (events 6.3). A `DeliveryReply` says what the answer means and when to try again
(events 6.4).
"""

from __future__ import annotations

import contextlib
import datetime as dt
import hashlib
import hmac
import http.client
import re
import socket
import ssl
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from email.utils import parsedate_to_datetime
from enum import StrEnum
from functools import cache
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from django_ojs import clock
from django_ojs.messages import phrase, reason
from django_ojs.webhooks import addresses
from django_ojs.webhooks.addresses import AddressRefused, Target

if TYPE_CHECKING:
    from urllib3.connection import HTTPConnection


MAX_REDIRECTS = 3
MAX_ADDRESSES = 3  #: of one name that are tried, one after the other
READ_BYTES = 65_536  #: of the answer's body at most
KEPT_CHARACTERS = 4_096  #: of which so many are kept
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_CHUNK = 8_192


class WebhookRequest(NamedTuple):
    """What to send. `private` headers are those of the subscription, which no other origin gets to see."""

    url: str
    body: bytes
    headers: Mapping[str, str]
    timeout: float  #: seconds for everything: look-up, TLS, redirects, answer
    private: frozenset[str] = frozenset()


class _HttpAnswer(NamedTuple):
    status: int
    location: str | None
    retry_after: str | None
    body: str


def send(request: WebhookRequest) -> DeliveryReply:
    """POST it and say what came of it. Never raises for anything that a receiver can do."""
    import urllib3

    began = time.monotonic()
    try:
        reply = _follow(request, began + request.timeout)
    except (AddressRefused, addresses.Malformed) as error:
        reply = DeliveryReply(DeliveryOutcome.DEAD, error=phrase("The URL %(problem)s.", problem=reason(error)))
    except TimeoutError:
        reply = DeliveryReply(DeliveryOutcome.RETRY, error=_late(request))
    except (OSError, ValueError, urllib3.exceptions.HTTPError, http.client.HTTPException) as error:
        late = time.monotonic() - began >= request.timeout
        reply = DeliveryReply(DeliveryOutcome.RETRY, error=_late(request) if late else _described(error))
    return reply._replace(duration_ms=round((time.monotonic() - began) * 1000))


@cache
def tls_context() -> ssl.SSLContext:
    """The system's certificate authorities; SSL_CERT_FILE and SSL_CERT_DIR name others."""
    context = ssl.create_default_context()
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


def _follow(request: WebhookRequest, deadline: float) -> DeliveryReply:
    target = origin = addresses.parse_url(request.url)
    headers = dict(request.headers)
    for _ in range(MAX_REDIRECTS + 1):
        answer = _exchange(target, request.body, headers, deadline)
        if answer.status not in _REDIRECTS or not answer.location:
            return _reply(answer)
        target = addresses.redirected(target, answer.location)
        if target.origin != origin.origin:
            headers = {name: value for name, value in headers.items() if name not in request.private}
    return DeliveryReply(
        DeliveryOutcome.DEAD, answer.status, phrase("More than %(most)s redirects.", most=MAX_REDIRECTS)
    )


def _reply(answer: _HttpAnswer) -> DeliveryReply:
    verdict = verdict_of(answer.status)
    error = (
        "" if verdict is DeliveryOutcome.SUCCESS else phrase("The receiver answered %(status)s.", status=answer.status)
    )
    wait = seconds_to_wait(answer.retry_after, clock.now()) if verdict is DeliveryOutcome.RETRY else None
    return DeliveryReply(verdict, answer.status, error, answer.body, wait)


def _exchange(target: Target, body: bytes, headers: Mapping[str, str], deadline: float) -> _HttpAnswer:
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
        return _HttpAnswer(response.status, found.get("Location"), found.get("Retry-After"), _read(response, deadline))


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
        connection = HTTPConnection(address, target.port, timeout=timeout)
    else:
        connection = HTTPSConnection(
            address, target.port, timeout=timeout, ssl_context=tls_context(), server_hostname=target.host
        )
    connection.response_class = _FinalAnswer
    return connection


class _FinalAnswer(http.client.HTTPResponse):
    """The answer behind those that a receiver or a proxy sends before it (1xx): Python passes over 100 only."""

    def begin(self) -> None:
        super().begin()
        while 100 <= self.status < 200 and self.status != HTTPStatus.SWITCHING_PROTOCOLS:
            self.headers = self.msg = None  # type: ignore[assignment]
            super().begin()


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


def _late(request: WebhookRequest) -> str:
    return phrase("No answer within %(seconds)s s.", seconds=f"{request.timeout:g}")


def _described(error: Exception) -> str:
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


SignatureFormat = Literal["body", "timestamp.body"]
FORMATS: tuple[SignatureFormat, ...] = ("body", "timestamp.body")
USER_AGENT = "OJS-Webhook/1.0"
SIGNATURE, OTHER_SIGNATURE = "X-OJS-Signature", "X-OJS-Signature-Timestamped"


def signed_headers(
    body: bytes,
    keys: Sequence[str],
    signed: SignatureFormat,
    *,
    event_type: str,
    delivery_id: str,
    subscription_id: str,
    timestamp: int,
    extra: Mapping[str, str],
) -> dict[str, str]:
    """All headers but Host and Content-Length. `keys`: the secret, and before its end the one before it, new first.

    The seed's signature is over the body, the companion's over timestamp, dot and body; `signed` says which of
    the two `X-OJS-Signature` holds, and the other is in `X-OJS-Signature-Timestamped`.
    """
    whole = b"%d." % timestamp + body
    first, second = (body, whole) if signed == "body" else (whole, body)
    return {
        **extra,
        "Content-Type": "application/json",
        "User-Agent": USER_AGENT,
        "X-OJS-Event-Type": event_type,
        "X-OJS-Delivery-ID": delivery_id,
        "X-OJS-Subscription-ID": subscription_id,
        "X-OJS-Timestamp": str(timestamp),
        SIGNATURE: signature(first, keys),
        OTHER_SIGNATURE: signature(second, keys),
    }


def signature(content: bytes, keys: Sequence[str]) -> str:
    """`sha256=` and 64 hexadecimal digits for each key, joined by commas."""
    return ",".join(
        "sha256=" + hmac.digest(key.encode("utf-8", "surrogatepass"), content, hashlib.sha256).hex() for key in keys
    )


#: The longest wait that a receiver's Retry-After is granted, seconds.
LONGEST_WAIT = 86_400.0


class DeliveryOutcome(StrEnum):
    SUCCESS = "success"
    RETRY = "failed"
    DEAD = "dead"


class DeliveryReply(NamedTuple):
    """One attempt: `status` None where no answer came, `error` '' where it went well."""

    verdict: DeliveryOutcome
    status: int | None = None
    error: str = ""
    body: str = ""
    retry_after: float | None = None  #: seconds
    duration_ms: int = 0


def verdict_of(status: int) -> DeliveryOutcome:
    """2xx is success, 429 and 5xx may pass, everything else never will."""
    if 200 <= status < 300:
        return DeliveryOutcome.SUCCESS
    return DeliveryOutcome.RETRY if status == 429 or status >= 500 else DeliveryOutcome.DEAD


def seconds_to_wait(value: str | None, now: dt.datetime) -> float | None:
    """The seconds that a Retry-After header asks for, as a number or a date; None where it says nothing sensible."""
    text = (value or "").strip()
    if re.fullmatch(r"[0-9]{1,10}", text):
        return min(float(text), LONGEST_WAIT)
    try:
        instant = parsedate_to_datetime(text)
    except (ValueError, OverflowError):
        return None
    instant = instant if instant.tzinfo else instant.replace(tzinfo=dt.UTC)
    return min(max((instant - now).total_seconds(), 0.0), LONGEST_WAIT)


def next_delay(attempts: int, delays: Sequence[float], wanted: float | None) -> float | None:
    """Seconds until the next attempt after `attempts` of them; None where there is none. Retry-After only lengthens."""
    if attempts > len(delays):
        return None
    return max(delays[attempts - 1], wanted or 0.0)
