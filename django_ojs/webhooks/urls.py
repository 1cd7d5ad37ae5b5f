"""The URL of a receiver: taken apart by our own narrow rules, and held to the site's policy."""

from __future__ import annotations

import re
from typing import NamedTuple
from urllib.parse import SplitResult, urljoin, urlsplit

from django_ojs.conf import ojs_settings
from django_ojs.messages import phrase
from django_ojs.webhooks import addresses
from django_ojs.webhooks.addresses import Refused

MAX_LENGTH = 2048
_PORTS = {"https": 443, "http": 80}
_LOCAL = ("localhost", "local", "internal", "lan", "home.arpa")
#: Printable ASCII without what parsers read differently: blanks, backslashes, quotes, angle brackets.
_CHARACTERS = re.compile(r"[!#-;=?-\[\]_a-z~]+")
_LABEL = re.compile(r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")


class Malformed(ValueError):
    """The text is no absolute HTTP URL; the message begins after the field's name."""


class Target(NamedTuple):
    """Where to connect: `host` in lower case without brackets, `path` with its query."""

    scheme: str
    host: str
    port: int
    path: str

    @property
    def authority(self) -> str:
        """What the Host header says."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS[self.scheme] else f"{host}:{self.port}"

    @property
    def origin(self) -> tuple[str, str, int]:
        return self.scheme, self.host, self.port


def parse(url: str) -> Target:
    """`url` taken apart and checked against the site's policy, without asking any name server.

    Raises Malformed for what is no http(s) URL, Refused for one that webhooks may not reach.
    """
    if not url or len(url) > MAX_LENGTH or not _CHARACTERS.fullmatch(url):
        raise Malformed(
            phrase(
                "must be an https URL of at most %(most)s ASCII characters without blanks or backslashes",
                most=MAX_LENGTH,
            )
        )
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise Malformed(phrase("must be an absolute https URL")) from error
    if parts.scheme not in _PORTS or not parts.hostname:
        raise Malformed(phrase("must be an absolute https URL"))
    host = _host(parts)
    target = Target(parts.scheme, host, _PORTS[parts.scheme] if port is None else port, _path(parts))
    _check(target, parts)
    return target


def redirected(target: Target, location: str) -> Target:
    """Where a receiver sends us on to; every rule holds anew. Raises Malformed or Refused."""
    return parse(urljoin(f"{target.scheme}://{target.authority}{target.path}", location).partition("#")[0])


def _host(parts: SplitResult) -> str:
    """The host, if it is an address in the standard spelling or a name that cannot be read as a number."""
    host = (parts.hostname or "").rstrip(".")
    if addresses.literal(host) is not None:
        return host
    labels = host.split(".")
    if len(host) > 253 or not all(_LABEL.fullmatch(label) for label in labels):
        raise Malformed(phrase("must name its host in ASCII (an international name in its xn-- form)"))
    if _NUMBER.fullmatch(labels[-1]):  # 127.1, 2130706433, 0x7f.1: some resolvers take them for addresses
        raise Refused(phrase("has a host that is neither a name nor an address in the usual spelling"))
    return host


def _path(parts: SplitResult) -> str:
    return (parts.path or "/") + (f"?{parts.query}" if parts.query else "")


def _check(target: Target, parts: SplitResult) -> None:
    if parts.username is not None or parts.password is not None:
        raise Refused(phrase("must not hold a user name or password: use headers"))
    if target.scheme == "http" and not ojs_settings.WEBHOOK_ALLOW_HTTP:
        raise Refused(phrase("must begin with https:// (OJS['WEBHOOK_ALLOW_HTTP'] lets http in)"))
    if addresses.is_allowed_name(target.host):
        return
    address = addresses.literal(target.host)
    if address is not None and not addresses.is_allowed(address):
        raise Refused(phrase("leads to an address that webhooks may not reach"))
    if address is None and (target.host.rpartition(".")[2] in _LOCAL or target.host.endswith(".home.arpa")):
        raise Refused(phrase("leads to a host of the local network (OJS['WEBHOOK_ALLOWED_HOSTS'] lets hosts in)"))
    listed = address is not None and addresses.is_listed(address)
    if not listed and target.port not in _ports(target.scheme):
        raise Refused(
            phrase("must use one of the ports %(words)s", words=", ".join(map(str, sorted(_ports(target.scheme)))))
        )


def _ports(scheme: str) -> set[int]:
    """The ports of the setting; where plain http is let in, its own as well."""
    return {*ojs_settings.WEBHOOK_PORTS} | ({_PORTS["http"]} if scheme == "http" else set())
