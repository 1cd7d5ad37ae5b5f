"""Reads what a client sends beside its message, and writes what the server sends beside the answer (grpc 7).

A key of metadata is what a header is over HTTP: `Metadata.environ()` makes the META of an HTTP request of it, and
`trailers()` makes metadata of the headers of an HTTP answer.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import unquote

import django_ojs
from django_ojs import jsontext
from django_ojs.errors import Unauthenticated
from django_ojs.http import manifest
from django_ojs.http.base import VERSION, sent_id
from django_ojs.http.query import FLAGS
from django_ojs.rules.ids import new_request_id

Pairs = tuple[tuple[str, str | bytes], ...]

REQUEST_ID = "x-ojs-request-id"
#: In which clients without `attributes` say how long a reservation is to be, in milliseconds.
VISIBILITY = "x-ojs-visibility-timeout-ms"
#: Names that mean something to Django or to HTTP: of these none comes from metadata under its own name.
_NOT_HEADERS = frozenset({
    "accept", "authorization", "connection", "content-encoding", "content-length", "content-type", "cookie", "host",
    "idempotency-key", "idempotency-replayed", "ojs-block-timeout", "origin", "referer", "te", "transfer-encoding",
    "upgrade", "user-agent", "x-csrftoken", "x-http-method-override", "x-ojs-api-key", "x-request-id",
})  # fmt: skip
#: Headers of answers under the keys of metadata; others that begin with `x-` keep their names.
_TRAILERS = {"Retry-After": "retry-after", "Idempotency-Replayed": "x-ojs-idempotency-replayed"}
_RATE_LIMIT = re.compile(r"X-(?:OJS-)?RateLimit-(Limit|Remaining|Reset)", re.IGNORECASE)
_QUEUE = re.compile(r"X-OJS-Queue-(Depth|Bound|Pressure)", re.IGNORECASE)


@dataclasses.dataclass(frozen=True)
class Metadata:
    """The metadata of one call: text by lower-case key, of a repeated key the last value; and the caller's address."""

    values: Mapping[str, str]
    address: str = ""

    @classmethod
    def of(cls, pairs: Sequence[tuple[str, str | bytes]] | None, peer: str = "") -> Metadata:
        """What a call's context has. Binary values (`-bin`) are left out: none of ours is one."""
        found = {key.lower(): value for key, value in pairs or () if isinstance(value, str)}
        return cls(found, _address(peer))

    def get(self, key: str, default: str = "") -> str:
        return self.values.get(key, default)

    def number(self, key: str) -> int | str | None:
        """The whole number of this key; None where the key is absent or empty. Another text is returned as it is: the
        operation refuses it."""
        given = self.get(key)
        found = jsontext.digits(given)
        return (given or None) if found is None else found

    def flag(self, key: str) -> bool | str | None:
        """True or false in the same way."""
        given = self.get(key)
        return FLAGS.get(given.lower(), given or None)

    @property
    def request_id(self) -> str:
        """The id that the client gave the call; '' where it gave none that is valid."""
        return sent_id(self.values.get(REQUEST_ID) or self.values.get("x-request-id", ""))

    def answered_id(self) -> str:
        """The id of the call where nothing else has given it one."""
        return self.request_id or new_request_id()

    @property
    def authorization(self) -> str:
        """What `Authorization` would be over HTTP. Raises Unauthenticated for two different keys."""
        bearer, key = self.get("authorization").strip(), self.get("x-ojs-api-key").strip()
        if not key:
            return bearer
        scheme, _, text = bearer.partition(" ")
        if bearer and (scheme.lower() != "bearer" or text.strip() != key):
            raise Unauthenticated(
                "The metadata has authorization and x-ojs-api-key, and they are not the same key.",
                hint="Send one of them.",
            )
        return f"Bearer {key}"

    def environ(self, *, idempotent: bool = False) -> dict[str, str]:
        """The META of the equal HTTP request. `idempotent` says whether the operation takes an idempotency key.

        Raises Unauthenticated.
        """
        meta = {
            f"HTTP_{key.upper().replace('-', '_')}": value
            for key, value in self.values.items()
            if key not in _NOT_HEADERS and "_" not in key and not key.startswith((":", "grpc-", "x-forwarded-"))
        }
        meta.setdefault("HTTP_OJS_VERSION", VERSION)
        if authorization := self.authorization:
            meta["HTTP_AUTHORIZATION"] = authorization
        if request_id := self.request_id:
            meta["HTTP_X_REQUEST_ID"] = request_id
        if idempotent and "x-ojs-idempotency-key" in self.values:
            meta["HTTP_IDEMPOTENCY_KEY"] = self.values["x-ojs-idempotency-key"]
        if "ojs-block-timeout" in self.values:
            meta["HTTP_OJS_BLOCK_TIMEOUT"] = self.values["ojs-block-timeout"]
        if agent := self.get("user-agent"):
            meta["HTTP_USER_AGENT"] = agent
        return meta | {"REMOTE_ADDR": self.address, "SERVER_NAME": "localhost", "SERVER_PORT": "80"}

    def headers(self) -> list[tuple[bytes, bytes]]:
        """The headers of the equal ASGI scope. Raises Unauthenticated."""
        return [
            (key.removeprefix("HTTP_").lower().replace("_", "-").encode(), value.encode("latin1", "replace"))
            for key, value in self.environ().items()
            if key.startswith("HTTP_")
        ]


def initial(request_id: str) -> Pairs:
    """The initial metadata of every answer."""
    return (
        (REQUEST_ID, request_id),
        ("x-ojs-server-version", django_ojs.__version__),
        ("x-ojs-conformance-level", str(manifest.CONFORMANCE_LEVEL)),
        ("ojs-version", VERSION),
    )


def trailers(request_id: str, headers: Mapping[str, str]) -> Pairs:
    """The trailing metadata of an answer whose HTTP form has these headers."""
    found: list[tuple[str, str]] = [(REQUEST_ID, request_id)]
    for name, value in headers.items():
        if name in _TRAILERS:
            found.append((_TRAILERS[name], _plain(value)))
        elif match := _RATE_LIMIT.fullmatch(name):
            found.append((f"x-ojs-ratelimit-{match[1].lower()}", _plain(value)))
        elif match := _QUEUE.fullmatch(name):
            found.append((f"x-ojs-queue-{match[1].lower()}", _plain(value)))
    return tuple(found)


def _plain(value: Any) -> str:
    return "".join(character for character in str(value) if " " <= character <= "~")


def _address(peer: str) -> str:
    """The address in what gRPC calls a peer, such as `ipv4:192.0.2.1:4711` or `ipv6:%5B::1%5D:4711`."""
    kind, _, rest = unquote(peer).partition(":")
    if kind not in ("ipv4", "ipv6"):
        return ""
    return rest.rpartition(":")[0].strip("[]")
