"""Decide which receivers a webhook may reach: the public internet and what the site allows, nothing of its own network.

A receiver's URL comes from a client, and this server would call it from inside. So the URL is taken apart by narrow
rules of our own and held to the site's policy. Every address that its host resolves to is checked at the moment of
connecting, and the connection goes to the checked address.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple
from urllib.parse import SplitResult, urljoin, urlsplit

from django_ojs.conf import ojs_settings
from django_ojs.messages import phrase

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


def parse_url(url: str) -> Target:
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
    try:
        url = urljoin(f"{target.scheme}://{target.authority}{target.path}", location)
    except ValueError as error:
        raise Malformed(phrase("must be an absolute https URL")) from error
    return parse_url(url.partition("#")[0])


def _host(parts: SplitResult) -> str:
    """The host, if it is an address in the standard spelling or a name that cannot be read as a number."""
    host = (parts.hostname or "").rstrip(".")
    if literal(host) is not None:
        return host
    labels = host.split(".")
    if len(host) > 253 or not all(_LABEL.fullmatch(label) for label in labels):
        raise Malformed(phrase("must name its host in ASCII (an international name in its xn-- form)"))
    if _NUMBER.fullmatch(labels[-1]):  # 127.1, 2130706433, 0x7f.1: some resolvers take them for addresses
        raise AddressRefused(phrase("has a host that is neither a name nor an address in the usual spelling"))
    return host


def _path(parts: SplitResult) -> str:
    return (parts.path or "/") + (f"?{parts.query}" if parts.query else "")


def _check(target: Target, parts: SplitResult) -> None:
    if parts.username is not None or parts.password is not None:
        raise AddressRefused(phrase("must not hold a user name or password: use headers"))
    if target.scheme == "http" and not ojs_settings.WEBHOOK_ALLOW_HTTP:
        raise AddressRefused(phrase("must begin with https:// (OJS['WEBHOOK_ALLOW_HTTP'] lets http in)"))
    if is_allowed_name(target.host):
        return
    address = literal(target.host)
    if address is not None and not is_allowed(address):
        raise AddressRefused(phrase("leads to an address that webhooks may not reach"))
    if address is None and (target.host.rpartition(".")[2] in _LOCAL or target.host.endswith(".home.arpa")):
        raise AddressRefused(
            phrase("leads to a host of the local network (OJS['WEBHOOK_ALLOWED_HOSTS'] lets hosts in)")
        )
    listed = address is not None and is_listed(address)
    if not listed and target.port not in _ports(target.scheme):
        raise AddressRefused(
            phrase("must use one of the ports %(words)s", words=", ".join(map(str, sorted(_ports(target.scheme)))))
        )


def _ports(scheme: str) -> set[int]:
    """The ports of the setting; where plain http is let in, its own as well."""
    return {*ojs_settings.WEBHOOK_PORTS} | ({_PORTS["http"]} if scheme == "http" else set())


Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class AddressRefused(ValueError):
    """The site does not allow a connection to this address; the message says why, beginning after the URL."""


#: IPv4 addresses of no public host: this network, private, shared (CGNAT), loopback, link-local, protocol
#: assignments, documentation, the 6to4 relay, benchmarks, multicast, reserved and broadcast.
_BLOCKED_V4 = tuple(
    ipaddress.IPv4Network(text)
    for text in (
        "0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12",
        "192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16", "198.18.0.0/15", "198.51.100.0/24",
        "203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4",
        "168.63.129.16/32",  # public in form, and the host's own service in one large cloud
    )
)  # fmt: skip
#: IPv6 is allowed only where global unicast is assigned: loopback, mapped, NAT64, unique local, link-local and
#: multicast addresses all lie outside of it. Within it: protocol assignments (Teredo), documentation, 6to4.
_GLOBAL_V6 = ipaddress.IPv6Network("2000::/3")
_BLOCKED_V6 = tuple(map(ipaddress.IPv6Network, ("2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20")))


def is_public(address: Address) -> bool:
    if isinstance(address, ipaddress.IPv4Address):
        return not any(address in network for network in _BLOCKED_V4)
    return address.scope_id is None and address in _GLOBAL_V6 and not any(address in network for network in _BLOCKED_V6)


def literal(host: str) -> Address | None:
    """The address that `host` is, in the standard spelling; None where it is a name."""
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def is_allowed_name(host: str) -> bool:
    """Whether the site lists this host, by name, as one that webhooks may reach wherever it is."""
    return host in _allowlist(tuple(ojs_settings.WEBHOOK_ALLOWED_HOSTS))[0]


def is_listed(address: Address) -> bool:
    """Whether the site lists this address, or a network around it."""
    networks = _allowlist(tuple(ojs_settings.WEBHOOK_ALLOWED_HOSTS))[1]
    return any(address.version == network.version and address in network for network in networks)


def is_allowed(address: Address) -> bool:
    """Whether a connection may go there."""
    return is_public(address) or is_listed(address)


def lookup(host: str, port: int) -> list[str]:
    """What the name resolves to; tests put another in its place. OSError where it does not."""
    return [str(entry[4][0]) for entry in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]


def resolve(host: str, port: int) -> list[str]:
    """The addresses to connect to, each of them checked. Refused if one is not allowed, OSError if there is none."""
    found = list(dict.fromkeys([host] if literal(host) else lookup(host, port)))
    if not found:
        raise OSError(f"{host} has no address")
    if not is_allowed_name(host):
        check(found)
    return found


def check(found: Iterable[str]) -> None:
    """Raise Refused if one of these addresses is not allowed; the error does not name the address."""
    for text in found:
        address = literal(text)
        if address is None or not is_allowed(address):
            raise AddressRefused("leads to an address that webhooks may not reach")


@lru_cache(maxsize=8)
def _allowlist(entries: tuple[str, ...]) -> tuple[frozenset[str], tuple[Network, ...]]:
    """The names and the networks of WEBHOOK_ALLOWED_HOSTS; a single address is a network of one."""
    names: set[str] = set()
    networks: list[Network] = []
    for entry in entries:
        try:
            networks.append(ipaddress.ip_network(entry))
        except ValueError:
            names.add(entry.lower().rstrip("."))
    return frozenset(names), tuple(networks)
